"""What operators see of broadcast channels: how much they store, and how far named consumers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ... import conf
from ...core.operations import Command, Script, Steps
from ...errors import InvalidArgument
from ..common.arguments import parse_channel_cursor, to_datetime
from .broadcast import Broadcast, Position


@dataclass(frozen=True, kw_only=True, slots=True)
class BroadcastUsage:
    """What a channel stores."""

    name: str
    last_id: int
    """Id of the newest event ever published; 0 before the first."""
    last_at: datetime | None
    first_id: int
    """Id of the oldest stored event; 0 if none is stored."""
    first_at: datetime | None
    bytes: int
    """About how many bytes the stored events have."""
    epoch: int

    @property
    def events(self) -> int:
        """The number of stored events."""
        return self.last_id - self.first_id + 1 if self.first_id else 0

    @property
    def rate(self) -> float | None:
        """Events a second, as of those that are stored; None if there are fewer than two."""
        if self.events < 2 or self.first_at is None or self.last_at is None:
            return None
        return (self.events - 1) / max((self.last_at - self.first_at).total_seconds(), 0.001)


@dataclass(frozen=True, kw_only=True, slots=True)
class Follower:
    """A named consumer of a channel."""

    name: str
    read_id: int
    """Id of the event that it has handled last."""
    read_at: datetime | None
    """When that event was published; None: it has handled none of the present epoch."""
    behind: int
    """Number of events published since."""


def read_usage(using: str, channels: Sequence[str]) -> Steps[list[BroadcastUsage]]:
    """What channels store, without those that don't exist."""
    if not channels:
        return []
    keys = [Broadcast(channel, using=using)._keys for channel in channels]
    limit = conf.current().BROADCAST_MAX_LENGTH
    replies = yield [Script("broadcasts/describe", [one.head, *one.buckets], [limit]) for one in keys]
    pairs = zip(channels, replies, strict=True)
    return [_parse(channel, *reply) for channel, reply in pairs if reply is not None]


def followers_key(using: str, channel: str) -> str:
    """A key in the slot of the positions of all consumers."""
    return Broadcast(channel, using=using)._keys.head


def read_followers(using: str, usage: BroadcastUsage, names: Sequence[str]) -> Steps[list[Follower]]:
    """How far consumers are, without those that are not known."""
    if not names:
        return []
    channel = Broadcast(usage.name, using=using)
    replies = yield [Command("GET", channel._keys.position(name), reads=True) for name in names]
    found = []
    for name, cursor in zip(names, replies, strict=True):
        position = _position(cursor, channel._channel_id)
        if position is not None:
            read_id, us = (position.id, position.us) if position.epoch == usage.epoch else (0, 0)
            read_at = to_datetime(us / 1000) if us else None
            behind = max(usage.last_id - read_id, 0)
            found.append(Follower(name=name, read_id=read_id, read_at=read_at, behind=behind))
    return found


def _position(cursor: bytes | None, channel_id: str) -> Position | None:
    try:
        return None if cursor is None else Position(*parse_channel_cursor(cursor.decode(), channel_id))
    except (InvalidArgument, UnicodeDecodeError):  # another program has written it
        return None


def _parse(channel: str, last: int, us: bytes, epoch: bytes, first: int, *rest: Any) -> BroadcastUsage:
    first_us, size = rest
    return BroadcastUsage(
        name=channel,
        last_id=last,
        last_at=to_datetime(int(us) / 1000) if last else None,
        first_id=first,
        first_at=to_datetime(int(first_us) / 1000) if first else None,
        bytes=size,
        epoch=int(epoch),
    )
