"""Changes to a chat: POST only, answered with a redirect, or with JSON if the request accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...services.chats import Message
from ...services.contacts import RecentContacts
from ...signals import message_sent
from .. import problems
from ..base import ChatMixin
from ..forms import MessageForm, PositionForm, TitleForm, clean
from ..params import INVALID_POSITION, parse_id, parse_position, shown_again
from ..people import reachable_labels
from ..problems import Answer, Problem
from .new import MAX_NEW_CONTACTS, PickerPage
from .rooms import RoomMixin, message_json

#: allowed durations of muting, in hours; 0 unmutes
MUTE_HOURS = {"0": 0, "1": 1, "8": 8, "24": 24, "168": 168}


class MessageMixin(RoomMixin):
    """Sends or changes a message. If that fails, the page shows the text again."""

    invalid_message = _("This message can't be sent.")

    def message_done(self, message: Message | None) -> HttpResponse:
        if message is None:
            raise Problem(problems.GONE)
        if not self.wants_json:
            return self.done({}, "room", self.chat.id)
        # The message is the user's own or has just been deleted: being an owner allows nothing more.
        (view,) = self.message_views([message], owner=False)
        data = {"message": message_json(self, view)}
        return JsonResponse(data, json_dumps_params={"ensure_ascii": False})

    def problem_page(self, problem: Answer, **context: Any) -> HttpResponse:
        """The page that shows the problem, with a form to send the same text again."""
        if self.request.POST.get("body") and problem.status not in (401, 404):
            context["draft"] = shown_again(self.request.POST)
        return super().problem_page(problem, **context)


class SendView(MessageMixin):
    """Sends a message. A repeated request with the same `request_id` returns the first message."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        data = clean(MessageForm(request.POST))
        self.count_use("send")
        message = self.chat.send(
            self.me, data["body"], reply_to=data["reply_to"], request_id=data["request_id"] or None
        )
        message_sent.send_robust(type(self), request=request, message=message)
        return self.message_done(message)


class EditView(MessageMixin):
    """Replaces the body of one of the user's own messages."""

    def post(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        number, body = parse_id(message_id), clean(MessageForm(request.POST))["body"]
        self.count_use("edit")
        return self.message_done(self.chat.edit(self.me, number, body))


class DeleteMessageView(MessageMixin):
    """Deletes a message, leaving a tombstone."""

    def post(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        number = parse_id(message_id)
        self.count_use("edit")
        return self.message_done(self.chat.delete_message(self.me, number))


class AckView(ChatMixin):
    """Stores the position up to which the user has read."""

    invalid_message = INVALID_POSITION

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        up_to = parse_position(clean(PositionForm(request.POST))["up_to"])
        return self.done({"read_id": self.chat.ack(self.me, up_to)}, "room", chat_id)


class RenameView(ChatMixin):
    """Changes the title of a chat."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        title = clean(TitleForm(request.POST))["title"]
        self.count_use("rename")
        self.chat.rename(self.me, title)
        return self.done({"title": title}, "room", chat_id)


class MuteView(ChatMixin):
    """Mutes a chat for some hours, or unmutes it."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        hours = MUTE_HOURS.get(request.POST.get("hours", ""))
        if hours is None:
            raise problems.invalid(_("Choose how long to mute the chat."))
        until = timezone.now() + timedelta(hours=hours) if hours else None
        self.chat.mute(self.me, until)
        return self.done({"until": until.isoformat() if until else None}, "room", chat_id)


class LeaveView(ChatMixin):
    """Removes the user from a chat; with `never_again`, nobody can add them again."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if not self.chat.leave(self.me, again="never_again" not in request.POST):
            raise Problem(problems.NOT_FOUND)
        return self.done({"left": True}, "chats")


class DeleteChatView(ChatMixin):
    """Deletes a chat with all its messages. Only owners may."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if not self.chat.delete(self.me):
            raise Problem(problems.NOT_FOUND)
        return self.done({"deleted": True}, "chats")


class RemoveView(ChatMixin):
    """Removes another member from a chat. Only owners may."""

    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        removed = self.chat.leave(request.POST.get("member", ""), by=self.me)
        return self.done({"removed": removed}, "room", chat_id)


class AddView(PickerPage, RoomMixin):
    """Adds people to a chat: the page to choose them on, and the change itself."""

    template_name = "django_redis_messaging/add.html"

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        return self.show_form()

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if "search" in request.POST:
            return self.show_form()
        chosen = self.chosen_ids()
        self.check_recipients(chosen)
        self.count_use("invite", len(chosen))
        added = self.chat.add(chosen, by=self.me)
        for member in reversed(added[:MAX_NEW_CONTACTS]):
            RecentContacts(self.me).touch(member)
        return self.done({"added": added}, "room", chat_id)

    def check_recipients(self, chosen: Sequence[str]) -> None:
        """Raise the Problem unless the guild rule and the site's own rules allow to add these people."""
        if not chosen:
            raise problems.invalid(_("Choose a person."))
        identity, user = self.active_identity, self.request.user
        if len(reachable_labels(identity, user, chosen)) < len(chosen):
            raise Problem(problems.NOT_IN_DIRECTORY)
        if not all(identity.may_add(user, self.chat.id, member) for member in chosen):
            raise Problem(problems.NOT_PERMITTED)

    def extra_context(self) -> dict[str, object]:
        info = self.chat.info()
        return {"chat": info, "room_title": self.title(info.title, info.member_count)}
