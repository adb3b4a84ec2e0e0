"""A chat as JSON, which keeps its page up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string

from ...errors import InvalidArgument
from ...services.chats import Changes, Message, Page
from ..base import MessagingView
from ..conditional import conditional_json
from ..fitting import fitting, split
from ..params import INVALID_POSITION, get_checked_position, get_number, parse_id
from ..presentation import MessageView, add_authors, event_views
from ..problems import Problem
from .rooms import RoomMixin, gap_text

#: messages in an answer
MESSAGES_PER_ANSWER = 50


class RoomFeedView(RoomMixin):
    """Parts of a chat as JSON. The parameters select which one:

    - `after` a cursor: what changed since; `edits`, `moved` and `events` are those of the last answer
    - `before` or `newer`: the messages directly before or after a position
    - `at` a message id, "unread" or "newest": the state of the room with the messages around that position
    """

    checks_membership_first = False
    json_only = True
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        query = request.GET
        try:
            places = {name: get_checked_position(query, name) for name in ("after", "before", "newer")}
            known = {name: get_number(query, name) for name in ("edits", "moved", "events")}
            at = query.get("at", "")
            position = parse_id(at) if at not in ("", "unread", "newest") else None
        except (InvalidArgument, Problem):
            # Others must get the same answer, in as many round trips, whatever the position.
            self.state()
            raise
        if at:
            return JsonResponse(self.around(at, position), json_dumps_params={"ensure_ascii": False})
        if places["before"] is not None:
            data = self.older(places["before"])
        elif places["newer"] is not None:
            data = self.newer(places["newer"])
        else:
            data = self.changes(places["after"] or 0, **known)
        return conditional_json(request, data)

    def around(self, at: str, position: int | None) -> dict[str, Any]:
        """The state of the room, with the messages around a position."""
        state = self.state()
        if at == "unread" and state.unread:
            position = state.read_id + 1
        window = self.window(state, position, limit=MESSAGES_PER_ANSWER)
        quoted = self.quoted(window.messages)
        self.add_people(state)
        add_authors(self.people, [*window.messages, *quoted], me=self.me)
        return {
            **self.room_state(state, window),
            "messages": list(self.as_json(window.messages, state, quoted)),
            **self.heading(state),
            "seen": self.seen_of(state),
        }

    def changes(self, after: str | int, **known: int | None) -> dict[str, Any]:
        """New and edited messages, and what else changed."""
        changes = self.chat.changes(self.me, after=after, limit=MESSAGES_PER_ANSWER, **known)
        return self.fitting_part(changes)[0]

    def changed(self, changes: Changes) -> dict[str, Any]:
        """What changed besides the messages."""
        events = event_views(changes.events, people=self.people, members=self.member_ids)
        data = {
            **self.changing_state(changes),
            "gap": changes.gap,
            "gap_text": gap_text(changes.gap),
            "reset": changes.reset,
            "edits_missed": changes.edits_missed,
            "events": [event.as_json() for event in events],
        }
        if changes.members:
            data |= self.heading(changes)
            data["read"] = changes.positions
            data["seen"] = self.seen_of(changes)
        return data

    def fitting_part(self, changes: Changes) -> tuple[dict[str, Any], int]:
        """As much of the changes as fits into an answer, and how many of the messages that are."""
        quoted = self.quoted([*changes.messages, *changes.edited])
        self.add_people(changes)
        known = [*quoted, *changes.messages, *changes.edited]
        add_authors(self.people, known, me=self.me)
        new = self.as_json(changes.messages, changes, known)
        edited = self.as_json(changes.edited, changes, known)
        found = fitting(chain(new, edited))
        part, _ = split(changes, len(found))
        changed = found[len(part.messages) :]
        data = {
            **self.changed(part),
            "messages": found[: len(part.messages)],
            "has_more": part.has_more,
        }
        if changed:
            data["changed"] = sorted(changed, key=lambda message: message["id"])
        return data, len(found)

    def older(self, before: str | int) -> dict[str, Any]:
        """The newest of the messages before a position, as many as fit into an answer."""
        page = self.chat.history(self.me, before=before, limit=MESSAGES_PER_ANSWER)
        views = self.message_views(page.messages, owner=page.role == "owner")
        messages = fitting(message_json(self, view) for view in reversed(views))
        return self.part(page, messages[::-1])

    def newer(self, after: str | int) -> dict[str, Any]:
        """The oldest of the messages after a position, as many as fit into an answer."""
        page = self.chat.history(self.me, after=after, limit=MESSAGES_PER_ANSWER)
        return self.part(page, fitting(self.as_json(page.messages, page)))

    def part(self, page: Page, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Messages of a page: all of them, or only some."""
        is_cut = len(messages) < len(page.messages)
        gap = 0 if is_cut else page.gap
        return {
            "messages": messages,
            "gap": gap,
            "gap_text": gap_text(gap),
            "has_more": page.has_more or is_cut,
            "reset": page.reset,
        }

    def as_json(
        self, messages: Sequence[Message], read: Page | Changes, quoted: Sequence[Message] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The messages with their authors, rendered one by one."""
        for view in self.message_views(messages, owner=read.role == "owner", quoted=quoted):
            yield message_json(self, view)


def message_json(view: MessagingView, shown: MessageView) -> dict[str, Any]:
    """A message in the format of all JSON answers; if requested, with HTML instead of the body."""
    message = shown.message
    data = {
        "id": message.id,
        "cursor": message.cursor,
        "nonce": message.nonce,
        "sender": message.sender,
        "label": shown.author.label,
        **({} if shown.mine else shown.author.looks),
        "mine": shown.mine,
        "data": message.data,
        "reply_to": message.reply_to,
        "mentions": message.mentions,
        "sent_at": message.sent_at.isoformat(),
        "edited_at": message.edited_at.isoformat() if message.edited_at else None,
        "deleted": message.deleted,
    }
    if view.request.GET.get("html"):
        context = {"item": shown, "chat": {"chat_id": message.chat_id}}
        name = "django_redis_messaging/_message.html"
        return {**data, "html": render_to_string(name, context, request=view.request)}
    return {**data, "body": message.body}
