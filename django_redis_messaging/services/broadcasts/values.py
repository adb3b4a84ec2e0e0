"""What a broadcast gives away, and its cursors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

#: of the channel; epoch; id of the event; its time (µs)
_CURSOR = re.compile(r"([0-9a-f]{8})-([0-9a-f]{1,13})-([0-9a-f]{1,13})-([0-9a-f]{1,13})", re.ASCII)


@dataclass(frozen=True)
class Event:
    """What was published once."""

    id: int
    """1, 2, 3 … in a channel, in the order of all its readers; from 1 again where Redis lost the channel."""
    payload: Any
    """As it was published."""
    published_at: datetime
    """By the server's clock."""
    cursor: str = field(default="", repr=False, compare=False)
    """Where to go on behind it."""


@dataclass(frozen=True)
class Batch:
    """What a fetch brought."""

    events: list[Event]
    """In their order, without holes."""
    cursor: str
    """Where to go on behind them."""
    missed: bool
    """Whether events may be missing before these: what was built from events must be built anew."""


class Place(NamedTuple):
    """Behind which event somebody is, in a channel's epoch; 0 and 0: at the beginning."""

    epoch: int
    id: int
    us: int

    def cursor(self, channel: str) -> str:
        """As callers get it; `channel` is 8 digits that tell channels apart."""
        return f"{channel}-{self.epoch:x}-{self.id:x}-{self.us:x}"


def place(cursor: str, channel: str) -> Place:
    """The place that a cursor of this channel means."""
    if not isinstance(cursor, str):
        raise TypeError(f"cursor must be a str or None, not {type(cursor).__name__}.")
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise ValueError(
            "cursor is none of a broadcast: give one that fetch() or cursor() returned, or None."
        )
    whose, *numbers = parts.groups()
    if whose != channel:
        raise ValueError("cursor is one of another channel: give one of this channel, or None.")
    return Place(*(int(number, 16) for number in numbers))


def events(channel: str, epoch: int, stored: Sequence[Sequence[Any]]) -> list[Event]:
    """Events as they are stored: id, time (µs), time of the one before, payload."""
    prefix = f"{channel}-{epoch:x}-"
    return [
        _event(number, payload, _at(us / 1_000_000, UTC), f"{prefix}{number:x}-{us:x}")
        for number, us, _, payload in stored
    ]


_at = datetime.fromtimestamp
_new, _set = object.__new__, object.__setattr__


def _event(number: int, payload: Any, published_at: datetime, cursor: str) -> Event:
    # what the frozen class's own __init__ does, in half the time
    made = _new(Event)
    fields = {"id": number, "payload": payload, "published_at": published_at, "cursor": cursor}
    _set(made, "__dict__", fields)
    return made
