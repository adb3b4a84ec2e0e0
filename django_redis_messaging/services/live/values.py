"""What a live stream returns, and what its reader knows already."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import InvalidArgument
from ..chats.values import Changes, ChatSummary
from ..cursors import parse_cursor
from ..mailboxes.values import MailboxStatus

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
    """An open chat has changed. The first one describes its state, also if nothing has changed."""

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
    change; not in chats with more than PRESENCE_MAX_MEMBERS members: once one grows, nobody is."""

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
