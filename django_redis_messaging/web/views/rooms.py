"""A chat: its page, with the messages around a position."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf
from ...errors import ChatNotFound, NotAMember
from ...services.chats import Changes, Message, Page
from ...services.chats.direct import is_direct
from ..base import ChatMixin, MessagingPage, MessagingView
from ..fitting import count_fitting
from ..params import INVALID_POSITION, get_position, parse_id
from ..people import Person, blocked_in
from ..presentation import (
    NAMES_IN_TITLE,
    MessageView,
    add_authors,
    add_rows,
    chat_face,
    chat_rows,
    event_views,
    join_names,
    kind_text,
    message_views,
    page_title,
    people_of_events,
    shown_title,
)
from ..texts import body_html
from .chats import ChatListMixin

#: messages on a page of a room
MESSAGES_PER_PAGE = 30
#: of these, how many are before the message that the page is about
MESSAGES_BEFORE = 10
#: the messages on a page of a room have at most so many bytes of HTML, but there is at least one
PAGE_BYTES = 128 * 1024
#: bytes of HTML around the text of a message
MARKUP_BYTES = 1200
#: a position after all messages
END = 2**52


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Messages of a chat around a position."""

    messages: Sequence[Message]
    #: whether there are older ones, and newer ones
    older: bool
    newer: bool

    def has_read(self, state: Changes) -> bool:
        """Whether the first unread message of the chat, if it is here, is the first one after those read."""
        return not self.older or self.messages[0].id <= state.read_id + 1


class RoomMixin(ChatMixin, MessagingView):
    """Reads a chat as one of its members sees it."""

    #: the members who joined first, up to 200; set by `state`
    member_ids: Sequence[str] = ()

    def state(self) -> Changes:
        """The chat without messages, in one round trip. Raises for users who are not members."""
        state = self.chat.changes(self.me, after=END)
        self.member_ids = state.members
        return state

    def window(
        self, state: Changes, position: int | None = None, *, limit: int = MESSAGES_PER_PAGE
    ) -> Window:
        """The messages around the one with id `position`, else the newest ones; as many as fit on a page."""
        if position is None:
            return newest_window(state, self.chat.history(self.me, limit=limit))
        first = max(min(position - MESSAGES_BEFORE, state.last_id - limit + 1), 1)
        messages = self.chat.history(self.me, after=first - 1, limit=limit).messages
        if messages and messages[-1].id < min(position, state.last_id):  # those before it are very long
            messages = self.chat.history(self.me, after=position - 1, limit=limit).messages
        return make_window(state, fitting_around(messages, position))

    def add_people(self, state: Changes) -> None:
        """Add the people whom the head and the texts of the room name, and those from whom they are told
        apart."""
        self.member_ids = state.members
        if is_direct(self.chat.id):
            self.people.show(self.others)
        shows_names = state.member_count == 2 or not shown_title(self.chat.id, state.title)
        named = {*state.typists, *people_of_events(state.events), *self.readers(state)}
        if named or (shows_names and self.others):
            self.people.add({*named, *self.member_ids})

    def message_views(
        self,
        messages: Sequence[Message],
        *,
        owner: bool,
        read_id: int | None = None,
        quoted: Sequence[Message] | None = None,
    ) -> list[MessageView]:
        """The messages as the user sees them; `owner`: whether the user is an owner of the chat. `quoted`:
        what `quoted` returns for them, if it was called before."""
        if quoted is None:
            quoted = self.quoted(messages)
        people, me = self.people, self.me
        return list(
            message_views(messages, people=people, me=me, owner=owner, read_id=read_id, quoted=quoted)
        )

    def quoted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that these reply to, and that are not among them."""
        known = {message.id for message in messages}
        ids = {message.reply_to for message in messages if message.reply_to and message.reply_to not in known}
        return self.chat.get_messages(self.me, sorted(ids)) if ids else []

    def title(self, title: str, member_count: int) -> str:
        """The chat's title, or the names of the other members."""
        return shown_title(self.chat.id, title) or self.names(member_count)

    def names(self, member_count: int) -> str:
        """The names of the other members, as they are shown for a chat without a title."""
        return join_names(self.told_apart(self.others), member_count - 1)

    @property
    def other(self) -> Person | None:
        """The other member of a direct chat."""
        return self.people[self.others[0]] if self.others and is_direct(self.chat.id) else None

    @property
    def others(self) -> list[str]:
        """The first of the other members."""
        return [member for member in self.member_ids if member != self.me][:NAMES_IN_TITLE]

    def companion(self, title: str, member_count: int) -> str:
        """In a group of two that has a title: the name of the other member, whom the title can't hide."""
        return self.names(2) if member_count == 2 and shown_title(self.chat.id, title) else ""

    def heading(self, state: Changes) -> dict[str, str]:
        """What the head of a room shows."""
        title, count, other = state.title, state.member_count, self.other
        return {
            "title": other.label if other else self.title(title, count),
            "companion": self.companion(title, count),
            "members": kind_text(self.chat.id, count),
            **(other.looks if other else {}),
        }

    def chat_context(self, state: Changes) -> dict[str, Any]:
        """What the pages about a chat show of the chat itself."""
        self.add_people(state)
        heading, other = self.heading(state), self.other
        return {
            "chat": state,
            "heading": heading,
            "other": other,
            "page_title": page_title(self.chat.id, other.name if other else heading["title"]),
            "face": chat_face(self.chat.id, heading["title"], other),
        }

    def seen_of(self, state: Changes) -> str:
        """The text that says who has read the user's newest message."""
        readers = self.readers(state)
        if not readers:
            return ""
        names = join_names(self.told_apart(readers[:NAMES_IN_TITLE]), len(readers))
        return _("Seen by %(names)s") % {"names": names}

    def readers(self, state: Changes) -> list[str]:
        """The members who have read the newest message, and let others see it, if it is the user's own."""
        if state.last_sender != self.me:
            return []
        return [
            member
            for member, read_id in state.positions.items()
            if member != self.me and read_id >= state.last_id and member not in state.newcomers
        ]

    def typing_text(self, typists: Sequence[str]) -> str:
        """Who is typing."""
        if not typists:
            return ""
        names = join_names(self.told_apart(typists[:NAMES_IN_TITLE]), len(typists))
        return ngettext("%(names)s is typing…", "%(names)s are typing…", len(typists)) % {"names": names}

    def told_apart(self, ids: Sequence[str]) -> list[str]:
        """The names of members."""
        return self.people.names(ids, among=self.member_ids)

    def room_state(self, state: Changes, window: Window) -> dict[str, Any]:
        """What the browser needs to know to show the window and to keep it up to date."""
        events = event_views(state.events, people=self.people, members=self.member_ids)
        return {
            "newest": state.last_id,
            "older": window.older,
            "newer": window.newer,
            "gap_text": gap_text(state.removed),
            "divider": divider_text(state.unread),
            **self.changing_state(state),
            "events": [event.as_json() for event in events],
        }

    def changing_state(self, state: Changes) -> dict[str, Any]:
        """The part of the state that each answer to a poll has."""
        return {
            "cursor": state.cursor,
            "edits": state.edits,
            "moved": state.moved,
            "event": state.event,
            "read_id": state.read_id,
            "unread": state.unread,
            "typing": self.typing_text(state.typists),
        }


class RoomView(ChatListMixin, RoomMixin, MessagingPage):
    """A chat around a position, with the form to write. Showing it acks nothing.

    Without parameters, it begins a little before the first unread message. `?at=` selects another message,
    `?before=` and `?after=` the pages around a position.
    """

    checks_membership_first = False
    template_name = "django_redis_messaging/room.html"
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        # Membership first: others must not learn from the answer whether the chat exists. And before the
        # messages: after an edit in between, the number is too low, and the next poll reads the edit.
        try:
            state = self.state()
        except (ChatNotFound, NotAMember):
            person = None if self.wants_json else blocked_in(self.active_identity, self.me, chat_id)
            if person is None:
                raise
            self.template_name = "django_redis_messaging/blocked.html"
            self.people.show_all([person])
            return self.page({"person": self.people[person.id], "chat_id": chat_id})
        window, owner = self.selected_window(state), state.role == "owner"
        read_id = state.read_id if window.has_read(state) else None
        quoted, replied = self.quoted(window.messages), self.selected_message("reply")
        summaries = self.summaries()
        # All people before the first one is read.
        add_rows(self.people, summaries, self.me)
        add_authors(self.people, [*window.messages, *quoted, *([replied] if replied else [])], me=self.me)
        context = self.chat_context(state)
        return self.page(
            {
                **context,
                "window": window,
                "rows": chat_rows(summaries, people=self.people, me=self.me),
                "message_views": self.message_views(
                    window.messages, owner=owner, read_id=read_id, quoted=quoted
                ),
                "last": window.messages[-1] if window.messages else None,
                "removed": gap_text(state.removed),
                "divider": divider_text(state.unread),
                "seen": self.seen_of(state),
                "editing": self.own_message("edit"),
                "replying": self.message_views([replied], owner=owner, quoted=())[0] if replied else None,
                "muted_until": timezone.localtime(state.muted_until) if state.muted_until else None,
                "request_id": uuid.uuid4().hex,
                "state": json.dumps(
                    {**self.room_state(state, window), **context["heading"], **self.constants()}
                ),
            }
        )

    def selected_window(self, state: Changes) -> Window:
        """The window that the parameters select."""
        query = self.request.GET
        before, after = get_position(query, "before"), get_position(query, "after")
        if before is not None:
            return newest_window(state, self.chat.history(self.me, before=before, limit=MESSAGES_PER_PAGE))
        if after is not None:
            page = self.chat.history(self.me, after=after, limit=MESSAGES_PER_PAGE)
            return make_window(state, fitting_around(page.messages, 0))
        if query.get("at"):
            return self.window(state, parse_id(query["at"]))
        return self.window(state, state.read_id + 1 if state.unread else None)

    def constants(self) -> dict[str, Any]:
        """What never changes while the page is shown."""
        chat_id = self.chat.id
        return {
            "chat": chat_id,
            "at": self.request.GET.get("at", ""),
            "window": conf.current().REQUEST_WINDOW,
            "urls": {
                "room": self.url("room", chat_id),
                "feed": self.url("room_feed", chat_id),
                **{name: self.url(name, chat_id) for name in ("send", "ack", "typing")},
            },
        }

    def own_message(self, parameter: str) -> Message | None:
        """The message that the parameter selects, if it is the user's own."""
        found = self.selected_message(parameter)
        return found if found and found.sender == self.me else None

    def selected_message(self, parameter: str) -> Message | None:
        value = self.request.GET.get(parameter)
        found = self.chat.get_messages(self.me, [parse_id(value)]) if value else []
        return next((message for message in found if not message.deleted), None)


def make_window(state: Changes, messages: Sequence[Message]) -> Window:
    """The window of these messages of a chat."""
    if not messages:
        return Window(messages=(), older=False, newer=False)
    older, newer = messages[0].id > state.oldest_id, messages[-1].id < state.last_id
    return Window(messages=messages, older=older, newer=newer)


def newest_window(state: Changes, page: Page) -> Window:
    """The newest messages of a page, as many as fit."""
    return make_window(state, fitting_around(page.messages, END))


def fitting_around(messages: Sequence[Message], position: int) -> Sequence[Message]:
    """As many messages as fit on a page: those from `position` on first, then those before them."""
    start = next((index for index, one in enumerate(messages) if one.id >= position), len(messages))
    newer, older = messages[start:], messages[:start]
    sizes = [len(body_html(message.body).encode()) + MARKUP_BYTES for message in (*newer, *reversed(older))]
    count = count_fitting(sizes, PAGE_BYTES)
    return messages[start - max(count - len(newer), 0) : start + count] if count else []


def divider_text(unread: int) -> str:
    """The text above the first of `unread` messages."""
    return ngettext("%(count)s new message", "%(count)s new messages", unread) % {"count": unread}


def gap_text(gap: int) -> str:
    """The text that is shown where `gap` messages are missing."""
    if not gap:
        return ""
    text = ngettext("%(count)s older message was removed.", "%(count)s older messages were removed.", gap)
    return text % {"count": gap}
