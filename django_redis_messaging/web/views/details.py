"""What users do in a room: POST only, answered with a redirect, or with JSON if the request accepts it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from ... import conf
from ...errors import MessagingError
from ...services.chats import Changes, Member, Message
from ...services.chats.direct import is_direct
from ...services.chats.values import Role
from ...services.directories.folding import fold, matches
from ...services.directories.recent import RecentContacts
from ...services.live import Presence
from ...signals import message_sent
from .. import problems
from ..base import (
    INVALID_POSITION,
    ChatMixin,
    MessagingPage,
    MessagingView,
    get_search,
    parse_id,
    parse_position,
    shown_again,
)
from ..fields import MessageForm, PositionForm, TitleForm, clean
from ..people import Person, people, reachable_labels
from ..problems import Answer, Problem
from ..rendering import MENTIONABLE, add_authors, find_mentions, notify_mentioned
from ..texts import visible_text
from .chats import MAX_NEW_CONTACTS, PickerPage
from .rooms import RoomMixin, message_json

#: allowed durations of muting, in hours; 0 unmutes
MUTE_HOURS = {"0": 0, "1": 1, "8": 8, "24": 24, "168": 168}
#: members on a page of the details
MEMBERS_PER_PAGE = 100
#: members that are suggested for a mention
SUGGESTED_MEMBERS = 8


class DetailsView(RoomMixin, MessagingPage):
    """The members with their roles, a page at a time, and the settings of a chat."""

    checks_membership_first = False
    template_name = "django_redis_messaging/details.html"

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        state = self.state()
        members = self.chat.members(limit=MEMBERS_PER_PAGE + 1, after=request.GET.get("after") or None)
        shown = members[:MEMBERS_PER_PAGE]
        self.people.show(member.user for member in shown)
        return self.page(
            {
                **self.chat_context(state),
                "roster": self.roster(shown),
                "more": shown[-1].user if len(members) > len(shown) else None,
                "online": self.online(state, shown),
                "owner": state.role == "owner",
                "me": self.me,
            }
        )

    def online(self, state: Changes, members: Sequence[Member]) -> set[str]:
        """The members who are online, if the chat shows it."""
        settings = conf.current()
        if not settings.LIVE or state.member_count > settings.PRESENCE_MAX_MEMBERS:
            return set()
        # Neither sees the other one in a direct chat that is suspended.
        suspended = any(member.suspended for member in members)
        return Presence().online([self.me] if suspended else [member.user for member in members])

    def roster(self, members: Sequence[Member]) -> list[tuple[Person, Member]]:
        """The members as persons, too."""
        return [(self.people[member.user], member) for member in members]


class MemberSuggestView(ChatMixin):
    """Members whose name begins with `q`, as JSON: for mentions. Searches the first MENTIONABLE members."""

    json_only = True

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        prefix = fold(get_search(request.GET))
        ids = [member.user for member in self.chat.members(limit=MENTIONABLE) if member.user != self.me]
        found = [person for person in people(self.active_identity, ids) if matches(prefix, person.label)]
        self.people.show_all(found[: 2 * SUGGESTED_MEMBERS])
        results = [self.people[person.id].as_json for person in found[:SUGGESTED_MEMBERS]]
        return JsonResponse({"results": results}, json_dumps_params={"ensure_ascii": False})


class RenameView(ChatMixin):
    """Changes the title of a chat."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        title = clean(TitleForm(request.POST))["title"]
        if is_direct(chat_id):
            raise problems.invalid(_("A direct chat has no title."))
        self.count_use("rename")
        self.chat.rename(self.me, title)
        return self.done({"title": title}, "room", chat_id)


class MuteView(ChatMixin):
    """Mutes a chat for some hours, or unmutes it."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        hours = MUTE_HOURS.get(request.POST.get("hours", ""))
        if hours is None:
            raise problems.invalid(_("Choose how long to mute the chat."))
        self.count_use("change")
        until = timezone.now() + timedelta(hours=hours) if hours else None
        self.chat.mute(self.me, until)
        return self.done({"until": until.isoformat() if until else None}, "room", chat_id)


class RoleView(ChatMixin):
    """Makes another member an owner, or takes that away. Only owners may."""

    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        role: Role = "owner" if request.POST.get("role") == "owner" else "member"
        self.count_use("change")
        self.chat.set_role(self.me, request.POST.get("member", ""), role)
        return self.done({"role": role}, "details", chat_id)


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
        return self.done({"removed": removed}, "details", chat_id)


class AddView(PickerPage, RoomMixin):
    """Adds people to a chat: the page to choose them on, and the change itself."""

    template_name = "django_redis_messaging/add.html"

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        return self.show_form()

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if "search" in request.POST:
            return self.show_form()
        chosen = self.recipients()
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

    @cached_property
    def read_state(self) -> Changes:
        return self.state()

    def add_others(self) -> None:
        self.add_people(self.read_state)

    def extra_context(self) -> dict[str, object]:
        return self.chat_context(self.read_state)


_logger = logging.getLogger(__name__)


class MessageMixin(RoomMixin):
    """Sends or changes a message. If that fails, the page shows the text again."""

    invalid_message = _("This message can't be sent.")

    def message_done(self, message: Message | None) -> HttpResponse:
        if message is None:
            raise Problem(problems.GONE)
        if not self.wants_json:
            return redirect(f"{self.url('room', self.chat.id)}?at={message.id}#m{message.id}")
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
        chosen = request.POST.getlist("mentions")
        message = self.chat.send(
            self.me,
            data["body"],
            reply_to=data["reply_to"],
            mentions=find_mentions(self.active_identity, self.chat, self.me, data["body"], chosen),
            request_id=data["request_id"] or None,
        )
        if message.mentions:
            self.notify(message)
        message_sent.send_robust(type(self), request=request, message=message)
        return self.message_done(message)

    def notify(self, message: Message) -> None:
        """Notify the members whom the message mentions. It has been sent: a failure is logged."""
        try:
            title = visible_text(self.state().title)
        except MessagingError as error:
            _logger.warning("Notifying of mentions in %r failed: %s", message.chat_id, error)
            return
        url = f"{self.url('room', self.chat.id)}?at={message.id}"
        add_authors(self.people, [message], me=self.me)
        notify_mentioned(message, label=self.people[self.me].label, title=title, url=url)


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


class TypingView(ChatMixin):
    """Records that the user is typing. A chat stores at most one entry for each member."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        self.count_use("typing")
        self.chat.typing(self.me)
        return self.done({}, "room", chat_id)


class SessionView(MessagingView):
    """The user, and a CSRF token: for a page that was loaded before the user signed in again."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"user": self.me, "csrf": get_token(request)})
