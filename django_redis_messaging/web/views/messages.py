"""What members do with messages: send, edit and delete them, read them, and mention others."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.encoding import MAX_NAME_BYTES
from ...errors import MessagingError
from ...services.chats import Chat, Message
from ...services.chats.chat import MAX_MENTIONS
from ...services.chats.keys import is_direct
from ...services.directories.folding import fold, matches
from ...services.mailboxes import notify_many
from ...signals import message_sent
from .. import problems
from ..base import (
    INVALID_POSITION,
    ChatMixin,
    MessagingPage,
    MessagingView,
    get_search,
    is_number,
    parse_id,
    parse_position,
    shown_again,
)
from ..fields import MessageForm, PositionForm, clean
from ..identity import Identity
from ..people import people
from ..problems import Answer, Problem
from ..rendering import MessageView, add_authors, message_json, message_views
from ..texts import NameSearch, has_place, markup, plain_texts, split, visible_text

_logger = logging.getLogger(__name__)

#: the members who joined first, who can be mentioned
MENTIONABLE = 200
#: members that are suggested for a mention
SUGGESTED_MEMBERS = 8


class MessageMixin(ChatMixin):
    """Sends or changes a message. If that fails, the page shows the text again."""

    checks_membership_first = False
    invalid_message = gettext_lazy("This message can't be sent.")

    def message_done(self, message: Message | None) -> HttpResponse:
        if message is None:
            raise Problem(problems.GONE)
        if not self.wants_json:
            return redirect(f"{self.url('room', self.chat.id)}?at={message.id}#m{message.id}")
        # The message is the user's own or has just been deleted: being an owner allows nothing more.
        (view,) = message_views(
            [message], people=self.people, me=self.me, owner=False, quoted=self.quoted([message])
        )
        data = {"message": message_json(view, self.reader)}
        return JsonResponse(data, json_dumps_params={"ensure_ascii": False})

    def problem_page(self, problem: Answer, **context: Any) -> HttpResponse:
        """The page that shows the problem, with a form to send the same text again."""
        if self.request.POST.get("body") and problem.status not in (401, 404):
            context["draft"] = shown_again(self.request.POST)
        return super().problem_page(problem, **context)


class SendView(MessageMixin):
    """Sends a message. A repeated request with the same `request_id` returns the first message."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        with self.admitted("send"):
            data = clean(MessageForm(request.POST))
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
        with self.admitted("edit"):
            number, body = parse_id(message_id), clean(MessageForm(request.POST))["body"]
        return self.message_done(self.chat.edit(self.me, number, body))


class DeleteMessageView(MessageMixin):
    """Deletes a message, leaving a tombstone."""

    def post(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        with self.admitted("edit"):
            number = parse_id(message_id)
        return self.message_done(self.chat.delete_message(self.me, number))


class MessagePageView(ChatMixin, MessagingPage):
    """The whole text of a message, and what can be done with it. Long texts are shown in parts: `?from=` the
    position of a character selects one."""

    template_name = "django_redis_messaging/message.html"

    def get(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        item = self.find(parse_number(message_id))
        if self.wants_json:
            data = {"message": message_json(item, self.reader)}
            return JsonResponse(data, json_dumps_params={"ensure_ascii": False})
        parts = split(item.message.body)
        context = {"chat": {"chat_id": chat_id}, "item": item, **self.part(parts, item)}
        return self.page(context)

    def find(self, message_id: int) -> MessageView:
        """The message as the user sees it. Raises the Problem for one that doesn't exist."""
        # Also reads the chat for an id that no message can have: outsiders get 404 whatever the id.
        page = self.chat.history(self.me, before=message_id + 1, limit=1)
        found = [one for one in page.messages if one.id == message_id and not one.deleted]
        if not found:
            raise Problem(problems.GONE)
        (view,) = message_views(
            found, people=self.people, me=self.me, owner=page.role == "owner", quoted=self.quoted(found)
        )
        return view

    def part(self, parts: Sequence[str], item: MessageView) -> dict[str, Any]:
        """The part of the text that `?from=` selects, and the positions of its neighbours."""
        starts = [0, *accumulate(len(part) for part in parts[:-1])]
        index = bisect_right(starts, parse_number(self.request.GET.get("from", ""))) - 1
        return {
            "part": markup(parts[index], mentions=item.mentions, own=item.own_name),
            "number": index + 1,
            "count": len(parts),
            "previous": starts[index - 1] if index else None,
            "next": starts[index + 1] if index + 1 < len(parts) else None,
        }


def parse_number(value: str) -> int:
    """The number in a URL; 0 for anything else."""
    return int(value) if is_number(value) else 0


class AckView(ChatMixin):
    """Stores the position up to which the user has read."""

    invalid_message = INVALID_POSITION

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        up_to = parse_position(clean(PositionForm(request.POST))["up_to"])
        return self.done({"read_id": self.chat.ack(self.me, up_to)}, "room", chat_id)


class TypingView(ChatMixin):
    """Records that the user is typing. A chat stores at most one entry for each member."""

    checks_membership_first = False

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        self.admit("typing")
        self.chat.typing(self.me)
        return self.done({}, "room", chat_id)


class SessionView(MessagingView):
    """The user, and a CSRF token: for a page that was loaded before the user signed in again."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"user": self.me, "csrf": get_token(request)})


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


def find_mentions(
    identity: Identity, chat: Chat, sender: str, body: str, chosen: Collection[str] = ()
) -> list[str]:
    """The ids of the members whose name follows an @ in the body, without the sender.

    Of several members with one name, those whom the sender has `chosen`, else all. Reads the members only if
    there is an @ outside of code.
    """
    texts = [text for text in plain_texts(body) if has_place(text)]
    if not texts:
        return []
    ids = [member.user for member in chat.members(limit=MENTIONABLE) if member.user != sender]
    by_name = defaultdict(list)
    for person in people(identity, ids):
        by_name[fold(person.label)].append(person.id)
    names = NameSearch(by_name)
    wanted = set(chosen)
    found: dict[str, None] = {}
    for text in texts:
        for place in names.find(text):
            namesakes = by_name[place.name]
            found |= dict.fromkeys([one for one in namesakes if one in wanted] or namesakes)
    return list(found)[:MAX_MENTIONS]


def notify_mentioned(message: Message, *, label: str, title: str, url: str) -> None:
    """Notify the mentioned members, except those who have blocked the sender.

    `label` is the name of the sender, `title` that of the chat or "", `url` that of the message. The message
    has been sent already: a failure is logged.
    """
    if is_direct(message.chat_id):
        text = _("%(name)s mentioned you.")
    elif title:
        text = _("%(name)s mentioned you in the group “%(chat)s”.")
    else:
        text = _("%(name)s mentioned you in a group.")
    group = f"mention {message.chat_id}"
    try:
        notify_many(
            message.mentions,
            text % {"name": label, "chat": title},
            url=url,
            group=group if len(group.encode()) <= MAX_NAME_BYTES else None,
            sender=message.sender,
            request_id=message.cursor,
        )
    except (MessagingError, ValueError) as error:
        _logger.warning("Notifying of mentions in chat %r failed: %s", message.chat_id, error)
