"""What a consumer of a channel needs: fetch, and the positions of consumers."""

from __future__ import annotations

import zlib
from time import monotonic
from typing import Any

from ... import conf
from ...core import payloads
from ...core.keys import name as checked
from ...core.operations import Command, Listen, Script, Service, Steps, asynchronous, operation
from ..arguments import Duration, count, milliseconds
from .keys import BroadcastKeys
from .values import Batch, Event, Position, events, parse_cursor

#: ms for which an idle channel is kept, and a position that is not updated
IDLE_TTL = 7 * 86_400_000
#: seconds; the maximum time between two polls of a waiting reader
POLL_INTERVAL = 1.0
#: ms for which publishers assume that readers wait: longer than POLL_INTERVAL
WAITING_TTL = 3000
#: maximum number of events that one script call reads
PAGE_SIZE = 500
#: number of buckets that a fetch names first: enough for a reader that is not far behind
NEARBY_BUCKETS = 3
#: maximum number of buckets that the retention is divided into: some calls name all of them
MAX_BUCKETS = 100


class ChannelReader(Service):
    """A channel as its consumers use it."""

    def __init__(self, channel: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.channel = checked(channel, "channel")
        settings = conf.current()
        self._retention = milliseconds(settings.BROADCAST_RETENTION, "BROADCAST_RETENTION", minimum=1)
        shortest = -(-self._retention // MAX_BUCKETS)
        self._bucket = max(milliseconds(settings.BROADCAST_BUCKET, "BROADCAST_BUCKET"), shortest)
        self._keys = BroadcastKeys(self._prefix, channel, self._bucket, self._retention)
        self._idle_ttl = max(IDLE_TTL, 2 * (self._retention + self._bucket))
        self._channel_id = f"{zlib.crc32(self._keys.tag.encode()):08x}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channel!r})"

    @operation
    def fetch(self, cursor: str | None = None, *, limit: int = 1000, wait: Duration = 0) -> Steps[Batch]:
        """Fetch the events after `cursor`, up to `limit` (1 to 1000); None: from the oldest event kept.

        With `wait` (seconds) it returns as soon as an event is published, or an empty batch after that
        time. Large events make a batch shorter than `limit`: fetch until a batch is empty to get all.
        `missed` means that events in between have expired, exceeded BROADCAST_MAX_LENGTH or were lost by
        Redis; the batch then begins with the oldest event kept.

        >>> Broadcast("nothing").fetch(wait=0.01)  # doctest: +ELLIPSIS
        Batch(events=[], cursor='...', missed=False)

        Raises InvalidArgument for a cursor of another channel.
        """
        limit = count(limit, "limit")
        ends = monotonic() + milliseconds(wait, "wait") / 1000
        position = None if cursor is None else parse_cursor(cursor, self._channel_id)
        while True:
            found, position, missed = yield from self._read(position, limit)
            left = ends - monotonic()
            if found or missed or left <= 0:
                return Batch(found, position.cursor(self._channel_id), missed)
            yield from self._wait(position, min(left, POLL_INTERVAL))

    afetch = asynchronous(fetch)

    @operation
    def cursor(self) -> Steps[str]:
        """A cursor after the newest event.

        >>> channel = Broadcast("prices")
        >>> channel.fetch(channel.cursor()).events
        []
        """
        newest = yield from self._open()
        return newest.cursor(self._channel_id)

    acursor = asynchronous(cursor)

    @operation
    def position(self, name: str) -> Steps[str | None]:
        """The cursor that is kept for the consumer with this name, or None.

        >>> Broadcast("prices").position("shop")
        """
        reply = yield Command("GET", self._keys.position(checked(name, "name")), reads=True)
        return None if reply is None else reply.decode()

    aposition = asynchronous(position)

    @operation
    def keep(self, name: str, cursor: str) -> Steps[None]:
        """Keep a cursor for the consumer with this name, for a week.

        >>> channel = Broadcast("prices")
        >>> channel.keep("shop", channel.cursor())
        """
        key = self._keys.position(checked(name, "name"))
        yield Script("broadcast_keep", [key], [self._normalize(cursor), self._idle_ttl])

    akeep = asynchronous(keep)

    def _wait(self, position: Position, seconds: float) -> Steps[None]:
        """Wait for an event after this position."""
        head = f"{position.id}-{position.us}-{position.epoch}-"
        keys = [self._keys.head, self._keys.waiting]
        if (yield Script("broadcast_await", keys, [head, WAITING_TTL])):
            yield Listen(self._keys.wakeup, position.id, seconds=seconds)

    def _normalize(self, cursor: str) -> str:
        """Return a cursor in its canonical form, if it is one of this channel."""
        return parse_cursor(cursor, self._channel_id).cursor(self._channel_id)

    def _read(self, position: Position | None, limit: int) -> Steps[tuple[list[Event], Position, bool]]:
        """Read pages until there are `limit` events, or no more."""
        found, position, missed = yield from self._page(position, min(limit, PAGE_SIZE))
        more = len(found) == PAGE_SIZE
        while more and len(found) < limit:
            page, after, lost = yield from self._page(position, min(limit - len(found), PAGE_SIZE))
            if lost:  # the next fetch reports it
                break
            found, position, more = found + page, after, len(page) == PAGE_SIZE
        return found, position, missed

    def _page(self, position: Position | None, limit: int) -> Steps[tuple[list[Event], Position, bool]]:
        """Read events; returns them, the position after them, and whether some may be missing before them."""
        args = ("", 0, 0) if position is None else position
        limits = (limit, self._bucket, conf.current().BROADCAST_MAX_LENGTH, self._idle_ttl)
        start = position.us // 1000 // self._bucket if position is not None and position.us else -1
        while True:
            buckets = self._keys.buckets if start < 0 else self._keys.buckets_from(start, NEARBY_BUCKETS)
            reply = yield Script("broadcast_fetch", [self._keys.head, *buckets], (*args, *limits, start))
            if reply == b"none":
                yield from self._open()
            elif reply == b"far":
                start = -1
            elif position is None or isinstance(reply, list):
                return self._parse_page(reply)
            elif reply == b"lost":
                # Begin a new epoch, so that all readers learn that events were lost.
                yield from self._open(position.epoch)
            else:
                if reply == b"expiring":
                    yield from self._open()
                return [], position, False

    def _parse_page(self, reply: list[Any]) -> tuple[list[Event], Position, bool]:
        epoch, last, us = map(int, reply[:3])
        stored = payloads.loads_all(reply[4:])
        if stored:
            last, us = stored[-1][:2]
        return events(self._channel_id, epoch, stored), Position(epoch, last, us), bool(reply[3])

    def _open(self, lost_epoch: int | None = None) -> Steps[Position]:
        """Create the channel if it doesn't exist, and a new epoch if it is `lost_epoch`; returns the newest
        position."""
        args = (self._idle_ttl, "" if lost_epoch is None else lost_epoch)
        keys = [self._keys.head, self._keys.wakeup, *self._keys.buckets]
        reply = yield Script("broadcast_open", keys, args)
        last, us, epoch, _ = map(int, reply.split(b"-"))
        return Position(epoch, last, us)
