"""One user's live stream: what was read for it and its reader has not taken yet, as events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import InvalidArgument
from ..chats.values import Changes, ChatSummary
from ..common.arguments import parse_cursor
from ..mailboxes.mailbox import MailboxStatus

#: a position after all messages
END = 2**52
#: digits of a number in the text of a Known
_MAX_DIGITS = 15


class Known(NamedTuple):
    """What a reader knows of a chat: the arguments of `Chat.changes`.

    >>> Known("5f-3-1a", edits=4).encode()
    '5f-3-1a.4..'
    >>> Known.parse("5f-3-1a.4..")
    Known(after='5f-3-1a', edits=4, moved=None, events=None)
    >>> Known.parse("") == Known.parse(Known().encode()) == Known()
    True
    """

    #: a cursor or an id; by default, the newest message
    after: str | int = END
    edits: int | None = None
    moved: int | None = None
    events: int | None = None

    def encode(self) -> str:
        """As text: values separated by dots."""
        return ".".join("" if value is None else str(value) for value in self)

    def numbers(self) -> list[int]:
        """The id of the message, and the numbers. What is not known is END."""
        cursor = parse_cursor(self.after, "after")
        return [cursor.id, *(END if value is None else value for value in self[1:])]

    @classmethod
    def parse(cls, text: str) -> Known:
        """Parse the text, or a cursor or id alone; raises InvalidArgument."""
        after, *numbers = text.split(".")
        if len(numbers) > len(cls._fields) - 1 or not all(map(_is_number, numbers)):
            raise InvalidArgument("A known position must be a cursor, and up to three numbers after dots.")
        position = int(after) if after and _is_number(after, max_digits=len(str(END))) else after
        if after:
            parse_cursor(position, "after")
        return cls(position if after else END, *(int(number) if number else None for number in numbers))


def _is_number(text: str, max_digits: int = _MAX_DIGITS) -> bool:
    return not text or (text.isascii() and text.isdigit() and len(text) <= max_digits)


@dataclass(frozen=True, kw_only=True)
class LiveEvent:
    """Something has changed. Events of several users that were read together have the same `shared`."""

    shared: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """A place to keep what is made of the event, such as its JSON, once for all users."""


@dataclass(frozen=True, kw_only=True)
class RoomChanged(LiveEvent):
    """An open chat has changed. The first one describes its state, even if nothing has changed."""

    changes: Changes
    since: Known
    """What the reader knew before: the changes begin there."""

    @property
    def chat_id(self) -> str:
        return self.changes.chat_id

    @property
    def known(self) -> Known:
        """What the reader knows after this event: a later stream can begin with it."""
        return known_after(self.changes)


@dataclass(frozen=True, kw_only=True)
class RoomClosed(LiveEvent):
    """The user is not a member of an open chat (any more), or it does not exist. Nothing of it follows."""

    chat_id: str


@dataclass(frozen=True, kw_only=True)
class PresenceChanged(LiveEvent):
    """Others are online in an open chat. Follows within some seconds of the first `RoomChanged`, and of each
    change. In chats with more than PRESENCE_MAX_MEMBERS members, nobody is shown as online."""

    chat_id: str
    online: frozenset[str]
    """The other members who are online, and let others see it."""


@dataclass(frozen=True, kw_only=True)
class ChatsChanged(LiveEvent):
    """The list of the user's chats has changed."""

    chats: list[ChatSummary]
    """The chats that have changed. The first event has the newest 50 chats of the list."""
    gone: list[str]
    """The ids of chats of which the user is not a member any more."""
    complete: bool
    """Whether `chats` is the list itself, as in the first event, and after hints of changes were lost."""


@dataclass(frozen=True, kw_only=True)
class MailChanged(LiveEvent):
    """The user's mailbox has changed. The first event describes its state."""

    status: MailboxStatus


def known_after(changes: Changes) -> Known:
    """What a reader knows after these changes."""
    return Known(changes.cursor, changes.edits, changes.moved, changes.event)


class Room:
    """A chat that is open in a stream."""

    __slots__ = ("event", "is_behind", "known", "online", "online_event", "shown")

    def __init__(self, known: Known) -> None:
        #: what the reader knows, once it has taken the event
        self.known = known
        #: the event that the reader has not taken yet
        self.event: RoomChanged | None = None
        #: whether there is more to read, now or once the event is taken, however slow the reader is
        self.is_behind = True
        #: the parts of the state that have no number of their own
        self.shown: tuple[Any, ...] | None = None
        #: who else is online, as the reader knows it, or will once it has taken the event
        self.online: frozenset[str] | None = None
        self.online_event: PresenceChanged | None = None

    def put(self, changes: Changes, shared: dict[Any, Any]) -> bool:
        """Make the event of what was read; returns whether there is any."""
        reader = (changes.unread, changes.read_id, changes.muted_until, changes.role, changes.oldest_id)
        shown = (changes.typists, changes.moved, changes.event, *reader)
        since, self.known = self.known, known_after(changes)
        self.is_behind = changes.has_more
        found = changes.messages or changes.edited or changes.edits_missed or changes.reset
        if self.shown == shown and not found:
            return False
        self.shown = shown
        self.event = RoomChanged(changes=changes, since=since, shared=shared)
        return True

    def put_online(self, chat_id: str, online: frozenset[str]) -> bool:
        """Who else is online; returns whether that is new."""
        if online == (self.online or frozenset()):
            return False
        self.online = online
        self.online_event = PresenceChanged(chat_id=chat_id, online=online)
        return True


class Stream:
    """What one reader follows. It holds at most one event for each room, one list of chats, and one state of
    the mailbox, so a slow reader takes no more memory than a fast one and delays nobody."""

    __slots__ = (
        "_chats", "_closed", "_complete", "_gone", "_has_news", "_mail", "_must_check", "_read_more",
        "_shared", "_waiter", "chat_ids", "is_ended", "rooms", "token", "user",
    )  # fmt: skip

    def __init__(
        self, user: str, rooms: Mapping[str, Known], *, read_more: Callable[[str], None], token: str = ""
    ) -> None:
        self.user = user
        #: the token with which the stream counts as one of its user; empty if it doesn't count
        self.token = token
        self.rooms = {chat_id: Room(known) for chat_id, known in rooms.items()}
        #: the chats of the user's list
        self.chat_ids: tuple[str, ...] = ()
        #: called with the id of a chat of which there is more to read, once its event is taken
        self._read_more = read_more
        #: whether `take` has something to return; the future for which it waits. An asyncio.Event would take
        #: seven times the memory: it has a deque.
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self._closed: list[str] = []
        self._chats: dict[str, ChatSummary] = {}
        self._gone: frozenset[str] = frozenset()
        self._complete = False
        self._shared: dict[Any, Any] = {}
        self._mail: MailChanged | None = None
        self._must_check = False
        #: whether the reader should end the stream
        self.is_ended = False

    def end(self) -> None:
        """Let `take` return at once: nothing more will come."""
        self.is_ended = True
        self._wake()

    def request_check(self) -> None:
        """Let `take` return at once: the user may have lost the right to read."""
        self._must_check = True
        self._wake()

    def must_check(self) -> bool:
        """Whether a check was requested since the last call."""
        requested, self._must_check = self._must_check, False
        return requested

    async def take(self, seconds: float | None = None) -> list[LiveEvent]:
        """Wait for events, `seconds` at most, and return them all; an empty list if there is none."""
        if not self._has_news:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, _finish, self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self._collect()

    def _collect(self) -> list[LiveEvent]:
        self._has_news = False
        found: list[LiveEvent] = [RoomClosed(chat_id=chat_id) for chat_id in self._closed]
        self._closed.clear()
        for chat_id, room in self.rooms.items():
            if room.event is not None:
                found.append(room.event)
                room.event = None
                if room.is_behind:
                    self._read_more(chat_id)
            if room.online_event is not None:
                found.append(room.online_event)
                room.online_event = None
        if self._chats or self._gone or self._complete:
            found.append(
                ChatsChanged(
                    chats=list(self._chats.values()),
                    gone=sorted(self._gone),
                    complete=self._complete,
                    shared=self._shared,
                )
            )
            self._chats, self._gone, self._complete, self._shared = {}, frozenset(), False, {}
        if self._mail is not None:
            found.append(self._mail)
            self._mail = None
        return found

    def _wake(self) -> None:
        self._has_news = True
        if self._waiter is not None:
            _finish(self._waiter)

    def is_behind(self, chat_id: str) -> bool:
        """Whether there is more to read of an open chat, whatever has changed."""
        return chat_id in self.rooms and self.rooms[chat_id].is_behind

    def known(self, chat_id: str) -> Known | None:
        """What the reader knows of an open chat. None: it is not open, or its event is not taken yet; then it
        is read afterwards."""
        room = self.rooms.get(chat_id)
        if room is None or room.event is None:
            return None if room is None else room.known
        room.is_behind = True
        return None

    def put_changes(self, changes: Changes, shared: dict[Any, Any]) -> None:
        """An open chat has changed."""
        if self.rooms[changes.chat_id].put(changes, shared):
            self._wake()

    def put_online(self, chat_id: str, online: frozenset[str]) -> None:
        """Others are online in an open chat. Ignored until it is known that the user is a member."""
        room = self.rooms[chat_id]
        if room.shown is not None and room.put_online(chat_id, online - {self.user}):
            self._wake()

    def close_room(self, chat_id: str) -> None:
        """The user is not a member of an open chat: forget it, with what was not taken."""
        if self.rooms.pop(chat_id, None) is not None:
            self._closed.append(chat_id)
            self._wake()

    def put_list(self, chats: Collection[ChatSummary]) -> None:
        """The list of the user's chats, which replaces all that was not taken."""
        self._chats = {chat.chat_id: chat for chat in chats}
        self._gone -= self._chats.keys()
        self._complete = True
        self._shared = {}
        self._wake()

    def put_summary(self, summary: ChatSummary, shared: dict[Any, Any]) -> None:
        """A chat of the list has changed."""
        self._shared = {} if self._chats else shared  # those of several chats can't be shared
        self._chats.pop(summary.chat_id, None)  # the latest change comes last
        self._chats[summary.chat_id] = summary
        if summary.chat_id in self._gone:  # the user has joined again
            self._gone -= {summary.chat_id}
        self._wake()

    def remove_chats(self, chat_ids: Collection[str]) -> None:
        """The user is not a member of these chats any more."""
        for chat_id in chat_ids:
            self._chats.pop(chat_id, None)
        if chat_ids:
            self._gone = self._gone.union(chat_ids)
            self._wake()

    def put_mail(self, status: MailboxStatus, shared: dict[Any, Any]) -> None:
        """The state of the mailbox."""
        self._mail = MailChanged(status=status, shared=shared)
        self._wake()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
