"""A chat: its page, and the JSON that keeps it up to date."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...errors import InvalidArgument
from ...services.chats import Changes, Member, Message, Page
from ..base import ChatMixin, MessagingPage, MessagingView
from ..conditional import conditional_json
from ..fitting import count_fitting, fitting
from ..params import INVALID_POSITION, get_checked_position, get_number, get_position, parse_id
from ..people import Person, people
from ..presentation import NAMES_IN_TITLE, ChatRow, MessageView, join_names, message_views
from ..problems import Problem
from ..texts import body_html, visible_text
from .chats import ChatListMixin

#: messages on a page of a room
MESSAGES_PER_PAGE = 50
#: the messages on a page of a room have at most so many bytes of HTML, but there is at least one
PAGE_BYTES = 128 * 1024
#: bytes of HTML around the text of a message
MARKUP_BYTES = 1500
#: a position after all messages
END = 2**52
#: members that a room lists
LISTED_MEMBERS = 200


class RoomMixin(ChatMixin, MessagingView):
    """Reads a chat as one of its members sees it."""

    def read(self, **position: Any) -> Page:
        """A page of the chat."""
        return self.chat.history(self.me, limit=MESSAGES_PER_PAGE, **position)

    @cached_property
    def members(self) -> list[Member]:
        """The members who joined first, up to LISTED_MEMBERS."""
        return self.chat.members(limit=LISTED_MEMBERS)

    def message_views(
        self, messages: Sequence[Message], *, owner: bool, unread: int = 0
    ) -> list[MessageView]:
        """The messages as the user sees them; `owner`: whether the user is an owner of the chat."""
        identity = self.active_identity
        return list(message_views(messages, identity=identity, me=self.me, owner=owner, unread=unread))

    @cached_property
    def member_ids(self) -> list[str]:
        """The ids of these members."""
        return [member.user for member in self.members]

    def state(self) -> Changes:
        """The chat without messages, in one round trip. Raises for users who are not members."""
        return self.chat.changes(self.me, after=END)

    def title(self, title: str, member_count: int) -> str:
        """The chat's title, or the names of the other members."""
        return visible_text(title) or self.names(member_count)

    def names(self, member_count: int) -> str:
        """The names of the other members, as they are shown for a chat without a title."""
        others = [member for member in self.member_ids if member != self.me][:NAMES_IN_TITLE]
        return join_names(self.labels(others), member_count - 1)

    def companion(self, title: str, member_count: int) -> str:
        """In a chat of two that has a title: the name of the other member, whom the title can't hide."""
        return self.names(2) if member_count == 2 and visible_text(title) else ""

    def seen_text(self, last_id: int, last_sender: str, positions: Mapping[str, int]) -> str:
        """The members who have read the newest message, if it is the user's own."""
        if last_sender != self.me:
            return ""
        readers = [
            member for member, read_id in positions.items() if member != self.me and read_id >= last_id
        ]
        if not readers:
            return ""
        names = join_names(self.labels(readers[:NAMES_IN_TITLE]), len(readers))
        return _("Seen by %(names)s") % {"names": names}

    def labels(self, ids: Sequence[str]) -> list[str]:
        return [person.label for person in people(self.active_identity, ids)]


class RoomView(ChatListMixin, RoomMixin, MessagingPage):
    """A page of a chat's history, with the form to write and the members. Showing it acks nothing."""

    checks_membership_first = False
    template_name = "django_redis_messaging/room.html"
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        # Membership first: others must not learn from the answer whether the chat exists. And before the
        # messages: after an edit in between, the number is too low, and the next poll reads the edit.
        state = self.state()
        before = get_position(request.GET, "before")
        page = self.read(before=before) if before is not None else self.read()
        rows = self.rows()
        unread = 0 if before is not None else self.unread_count(rows)
        owner = page.role == "owner"
        views = self.fitting_views(page.messages, owner=owner, unread=unread)
        is_cut = len(views) < len(page.messages)
        context = {
            "chat": state,
            "page": page,
            "newest": before is None,
            "gap": "" if is_cut else gap_text(page.gap),
            "rows": rows,
            "room_title": self.title(state.title, state.member_count),
            "companion": self.companion(state.title, state.member_count),
            "message_views": views,
            "unread": unread,
            "seen": self.seen(page.messages) if before is None else "",
            "older": views[0].message.id if views and (page.has_more or is_cut) else None,
            "cursor": page.cursor,
            "request_id": uuid.uuid4().hex,
            "editing": self.message_to_edit(),
            "owner": owner,
            "me": self.me,
            **self.roster(state.member_count),
        }
        return self.page(context)

    def fitting_views(self, messages: Sequence[Message], *, owner: bool, unread: int) -> list[MessageView]:
        """The newest of the messages, as many as fit on a page."""
        sizes = (len(body_html(message.body).encode()) + MARKUP_BYTES for message in reversed(messages))
        fitting_messages = messages[len(messages) - count_fitting(sizes, PAGE_BYTES) :]
        return self.message_views(fitting_messages, owner=owner, unread=unread)

    def seen(self, messages: Sequence[Message]) -> str:
        """The members who have read the last of the messages, if it is the user's own."""
        if not messages:
            return ""
        positions = {member.user: member.read_id for member in self.members}
        return self.seen_text(messages[-1].id, messages[-1].sender, positions)

    def unread_count(self, rows: Sequence[ChatRow]) -> int:
        return next((row.summary.unread for row in rows if row.id == self.chat.id), 0)

    def message_to_edit(self) -> Message | None:
        """The message that `?edit=` selects, on this page or not, if it is the user's own."""
        if not self.request.GET.get("edit"):
            return None
        wanted = parse_id(self.request.GET["edit"])
        found = self.chat.history(self.me, before=wanted + 1, limit=1).messages
        own = (message for message in found if message.sender == self.me and not message.deleted)
        return next((message for message in own if message.id == wanted), None)

    def roster(self, member_count: int) -> dict[str, Any]:
        """The listed members, and the number of members that are not listed."""
        persons = people(self.active_identity, [member.user for member in self.members])
        listed: list[tuple[Person, Member]] = list(zip(persons, self.members, strict=True))
        return {"roster": listed, "roster_rest": max(member_count - len(listed), 0)}


class RoomFeedView(RoomMixin):
    """What changed in a chat `after` a cursor, or the page of messages `before` one, as JSON.

    `edits` and `moved` are those of the last answer.
    """

    checks_membership_first = False
    json_only = True
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        query = request.GET
        try:
            before, after = get_checked_position(query, "before"), get_checked_position(query, "after")
            edits, moved = get_number(query, "edits"), get_number(query, "moved")
        except (InvalidArgument, Problem):
            # Others must get the same answer, in as many round trips, whatever the position.
            self.state()
            raise
        data = self.newer(after or 0, edits, moved) if before is None else self.older(before)
        return conditional_json(request, data)

    def newer(self, after: str | int, edits: int | None, moved: int | None) -> dict[str, Any]:
        """New and edited messages, and the read positions if they changed."""
        changes = self.chat.changes(self.me, after=after, edits=edits, moved=moved, limit=MESSAGES_PER_PAGE)
        data = {
            **self.new_and_edited(changes),
            "gap": changes.gap,
            "gap_text": gap_text(changes.gap),
            "reset": changes.reset,
            "edits_missed": changes.edits_missed,
            "moved": changes.moved,
        }
        if changes.positions:
            self.member_ids = list(changes.positions)
            data["title"] = self.title(changes.title, changes.member_count)
            data["seen"] = self.seen_text(changes.last_id, changes.last_sender, changes.positions)
            data["read"] = changes.positions
        return data

    def new_and_edited(self, changes: Changes) -> dict[str, Any]:
        """As many of the messages as fit into an answer, and where the next one begins."""
        new = self.as_json(changes.messages, changes)
        edited = self.as_json(changes.edited, changes)
        found = fitting([*new, *edited])
        messages, changed = found[: len(changes.messages)], found[len(changes.messages) :]
        data: dict[str, Any] = {
            "messages": messages,
            "cursor": messages[-1]["cursor"] if messages else changes.cursor,
            "edits": changes.edits,
            "has_more": changes.has_more,
        }
        if len(found) < len(changes.messages) + len(changes.edited):
            # Continue directly before the first one that did not fit.
            first_left_out = changes.edit_numbers[len(changed)] if changes.edited else changes.edits + 1
            data.update(has_more=True, edits=min(changes.edits, first_left_out - 1))
        if changed:
            data["changed"] = sorted(changed, key=lambda message: message["id"])
        return data

    def older(self, before: str | int) -> dict[str, Any]:
        """The newest of the messages before a position, as many as fit into an answer."""
        page = self.read(before=before)
        messages = fitting(reversed(self.as_json(page.messages, page)))[::-1]
        is_cut = len(messages) < len(page.messages)
        gap = 0 if is_cut else page.gap
        return {
            "messages": messages,
            "gap": gap,
            "gap_text": gap_text(gap),
            "has_more": page.has_more or is_cut,
            "reset": page.reset,
        }

    def as_json(self, messages: Sequence[Message], read: Page | Changes) -> list[dict[str, Any]]:
        """The messages with their labels."""
        views = self.message_views(messages, owner=read.role == "owner")
        return [message_json(self, view) for view in views]


def gap_text(gap: int) -> str:
    """The text that is shown where `gap` messages are missing."""
    if not gap:
        return ""
    text = ngettext("%(count)s older message was removed.", "%(count)s older messages were removed.", gap)
    return text % {"count": gap}


def message_json(view: MessagingView, shown: MessageView) -> dict[str, Any]:
    """A message in the format of all JSON answers; if requested, with HTML instead of the body."""
    message = shown.message
    data = {
        "id": message.id,
        "cursor": message.cursor,
        "sender": message.sender,
        "label": shown.author.label,
        "mine": shown.mine,
        "data": message.data,
        "reply_to": message.reply_to,
        "sent_at": message.sent_at.isoformat(),
        "edited_at": message.edited_at.isoformat() if message.edited_at else None,
        "deleted": message.deleted,
    }
    if view.request.GET.get("html"):
        context = {"item": shown, "chat": {"chat_id": message.chat_id}}
        name = "django_redis_messaging/_message.html"
        return {**data, "html": render_to_string(name, context, request=view.request)}
    return {**data, "body": message.body}
