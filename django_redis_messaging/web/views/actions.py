"""What changes a chat: POST only, answered with a redirect, or with JSON to whoever accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ... import conf
from ...services.chats import Message
from ...services.contacts import RecentContacts
from ...services.rates import Rate
from ...signals import message_sent
from .. import problems
from ..base import ChatMixin
from ..forms import MessageForm, PositionForm, TitleForm, cleaned
from ..frame import frame
from ..people import known
from ..places import number
from ..problems import Problem
from .new import PickerPage
from .rooms import RoomMixin, message_json

MINUTE = 60.0
#: hours for which a chat can be muted; 0 ends it
MUTE_HOURS = {"0": 0, "1": 1, "8": 8, "24": 24, "168": 168}


class MessageMixin(RoomMixin):
    """Sends or changes a message, and keeps what was written when that doesn't work."""

    def message_done(self, message: Message | None) -> HttpResponse:
        if message is None:
            raise Problem(410, "gone", _("This message is not there any more."))
        if not self.wants_json:
            return self.done({}, "room", self.chat.id)
        return JsonResponse({"message": message_json(self, self.bubbles([message])[0])})

    def explain(self, trouble: Problem) -> HttpResponse:
        """The page that says what is wrong, with what was written, to be sent again."""
        if not self.request.POST.get("body") or trouble.status in (401, 404):
            return super().explain(trouble)
        context = {**frame(self.request), "trouble": trouble, "again": self.request.POST}
        name = "django_redis_messaging/problem.html"
        return TemplateResponse(self.request, name, context, status=trouble.status)


class SendView(MessageMixin):
    """Sends a message. A repeat with the same `request_id` sends nothing and gets the first answer."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        data = cleaned(MessageForm(request.POST))
        wait = Rate(self.me, "send", limit=conf.current().SEND_RATE, period=MINUTE).take()
        if wait:
            raise problems.too_fast(wait)
        message = self.send(data["body"], data["reply_to"], data["request_id"] or None)
        message_sent.send_robust(type(self), request=request, message=message)
        return self.message_done(message)

    def send(self, body: str, reply_to: int | None, request_id: str | None) -> Message:
        try:
            return self.chat.send(self.me, body, reply_to=reply_to, request_id=request_id)
        except ValueError:
            raise problems.invalid(_("This can't be sent.")) from None


class EditView(MessageMixin):
    """Replaces the body of one's own message."""

    def post(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        body = cleaned(MessageForm(request.POST))["body"]
        return self.message_done(self.chat.edit(self.me, number(message_id), body))


class DeleteMessageView(MessageMixin):
    """Leaves a tombstone where a message was."""

    def post(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        return self.message_done(self.chat.delete_message(self.me, number(message_id)))


class AckView(ChatMixin):
    """Notes up to which message one has read."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        given = cleaned(PositionForm(request.POST))["up_to"]
        try:
            up_to = self.chat.ack(self.me, number(given) if given.isdigit() else given)
        except ValueError:
            raise problems.invalid(_("This is no place in a chat.")) from None
        return self.done({"read_id": up_to}, "room", chat_id)


class RenameView(ChatMixin):
    """Gives a chat another title."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        title = cleaned(TitleForm(request.POST))["title"]
        self.chat.rename(self.me, title)
        return self.done({"title": title}, "room", chat_id)


class MuteView(ChatMixin):
    """Mutes a chat for some hours, or ends that."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        hours = MUTE_HOURS.get(request.POST.get("hours", ""))
        if hours is None:
            raise problems.invalid(_("Choose how long."))
        until = timezone.now() + timedelta(hours=hours) if hours else None
        self.chat.mute(self.me, until)
        return self.done({"until": until.isoformat() if until else None}, "room", chat_id)


class LeaveView(ChatMixin):
    """Ends one's own membership."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if not self.chat.leave(self.me):
            raise problems.not_found()
        return self.done({"left": True}, "chats")


class DeleteChatView(ChatMixin):
    """Deletes a chat with all it holds; for owners."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if not self.chat.delete(self.me):
            raise problems.not_found()
        return self.done({"deleted": True}, "chats")


class RemoveView(ChatMixin):
    """Ends somebody else's membership; for owners."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        # Only a member is told anything about the chat, not even that it isn't there.
        self.chat.history(self.me, limit=1)
        try:
            removed = self.chat.leave(request.POST.get("member", ""), by=self.me)
        except ValueError:
            raise problems.invalid(_("Choose somebody.")) from None
        return self.done({"removed": removed}, "room", chat_id)


class AddView(PickerPage, RoomMixin):
    """Adds people to a chat: a page to choose them on, and the change itself."""

    template_name = "django_redis_messaging/add.html"

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        return self.show()

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if "search" in request.POST:
            return self.show()
        self.chat.history(self.me, limit=1)
        chosen = self.chosen_ids()
        self.check(chosen)
        added = [member for member in chosen if self.chat.join(member, by=self.me)]
        for member in added:
            RecentContacts(self.me).touch(member)
        return self.done({"added": added}, "room", chat_id)

    def check(self, chosen: Sequence[str]) -> None:
        """The guild rule, and the site's own."""
        if not chosen:
            raise problems.invalid(_("Choose somebody."))
        if len(known(self.who, self.request.user, chosen)) < len(chosen):
            raise problems.not_in_directory()
        if not all(self.who.may_add(self.request.user, self.chat.id, member) for member in chosen):
            raise problems.not_permitted()

    def extra(self) -> dict[str, object]:
        self.chat.history(self.me, limit=1)
        info = self.chat.info()
        return {"chat": info, "room_title": self.title(info.title, info.member_count)}
