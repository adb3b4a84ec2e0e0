"""The values that a broadcast returns, and its cursors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...errors import InvalidArgument

#: channel id, epoch, id of the event, time of the event (µs), all in hexadecimal
_CURSOR = re.compile(r"([0-9a-f]{8})-([0-9a-f]{1,13})-([0-9a-f]{1,13})-([0-9a-f]{1,13})", re.ASCII)


@dataclass(frozen=True)
class Event:
    """A published event."""

    id: int
    """1, 2, 3 … in a channel, the same for all readers; from 1 again after Redis lost the channel."""
    payload: Any
    """The published payload."""
    published_at: datetime
    """When it was published, by the server's clock."""
    cursor: str = field(default="", repr=False, compare=False)
    """The cursor to continue after this event."""


@dataclass(frozen=True)
class Batch:
    """The result of a fetch."""

    events: list[Event]
    """The events in order, without gaps."""
    cursor: str
    """The cursor to continue after these events."""
    missed: bool
    """Whether events may be missing before these: state that was built from events must be rebuilt."""


class Position(NamedTuple):
    """The event that a reader has read last, in an epoch of a channel; id and us are 0 at the beginning."""

    epoch: int
    id: int
    us: int

    def cursor(self, channel_id: str) -> str:
        """The public form; `channel_id` is 8 hexadecimal digits that identify the channel."""
        return f"{channel_id}-{self.epoch:x}-{self.id:x}-{self.us:x}"


def parse_cursor(cursor: str, channel_id: str) -> Position:
    """The position that a cursor of this channel stands for."""
    if not isinstance(cursor, str):
        raise TypeError(f"cursor must be a str or None, not {type(cursor).__name__}.")
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise InvalidArgument("cursor is not valid: use one that fetch() or cursor() returned, or None.")
    found, *numbers = parts.groups()
    if found != channel_id:
        raise InvalidArgument("cursor belongs to another channel: use one of this channel, or None.")
    return Position(*(int(number, 16) for number in numbers))


def events(channel_id: str, epoch: int, stored: Sequence[Sequence[Any]]) -> list[Event]:
    """Convert stored events: id, time (µs), time of the previous event, payload."""
    prefix = f"{channel_id}-{epoch:x}-"
    return [
        _event(number, payload, _at(us / 1_000_000, UTC), f"{prefix}{number:x}-{us:x}")
        for number, us, _, payload in stored
    ]


_at = datetime.fromtimestamp
_new, _set = object.__new__, object.__setattr__


def _event(number: int, payload: Any, published_at: datetime, cursor: str) -> Event:
    # The same as the frozen class's own __init__, in half the time.
    made = _new(Event)
    fields = {"id": number, "payload": payload, "published_at": published_at, "cursor": cursor}
    _set(made, "__dict__", fields)
    return made
