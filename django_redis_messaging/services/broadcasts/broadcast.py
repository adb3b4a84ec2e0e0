"""Broadcasts: events for whoever asks, in one order, for as long as they are kept."""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Awaitable, Callable
from time import monotonic, monotonic_ns, time_ns
from typing import Any

from ... import conf
from ...core import payloads
from ...core.keys import BroadcastKeys
from ...core.keys import name as checked
from ...core.operations import Command, Listen, Script, Service, Steps, asynchronous, operation
from ...errors import LimitExceeded, OutcomeUnknown, Unavailable
from ..arguments import Duration, count, milliseconds
from ..requests import request, window
from . import consuming
from .consuming import Stop
from .values import Batch, Event, Place, events, place

#: ms for which a channel is known that nobody publishes to or reads, and a position that isn't moved
LIFE = 7 * 86_400_000
#: seconds after which whoever waits looks again, though nothing woke it
LOOK = 1.0
#: ms for which it is known that somebody waits: longer than it waits before it looks again
WAITING = 3000
#: events that one script reads
PAGE = 500
#: buckets that a fetch names: enough for whoever is not far behind
NEAR = 3
#: buckets that the retention is cut into at most: each call names them all
BUCKETS = 100

_logger = logging.getLogger(__name__)
#: alias → µs by which its server's clock is ahead of the monotonic one, as of the last publish: a publisher
#: names the buckets of about now, and repeats where the server says that these are others
_offsets: dict[str, int] = {}


class Broadcast(Service):
    """A channel by its name: whoever asks gets all that was published in the last minutes.

    >>> channel = Broadcast("settings")
    >>> start = channel.cursor()
    >>> channel.publish({"theme": "dark"}).id
    1
    >>> batch = channel.fetch(start)
    >>> [event.payload for event in batch.events], batch.missed
    ([{'theme': 'dark'}], False)
    >>> channel.fetch(batch.cursor).events
    []

    Every reader gets every event once, in one order, whatever the clocks say, while it asks at least every
    BROADCAST_RETENTION seconds; where that can't be said, `missed` is true. Events are in buckets of time
    that expire by themselves; their order is a counter's.
    """

    def __init__(self, channel: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.channel = checked(channel, "channel")
        settings = conf.current()
        self._retention = milliseconds(settings.BROADCAST_RETENTION, "BROADCAST_RETENTION", least=1)
        shortest = -(-self._retention // BUCKETS)
        self._bucket = max(milliseconds(settings.BROADCAST_BUCKET, "BROADCAST_BUCKET"), shortest)
        self._keys = BroadcastKeys(self._prefix, channel, self._bucket, self._retention)
        self._publishing = self._keys.publishing
        self._life = max(LIFE, 2 * (self._retention + self._bucket))
        self._mark = f"{zlib.crc32(self._keys.tag.encode()):08x}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channel!r})"

    @operation
    def publish(self, payload: Any, *, request_id: str | None = None) -> Steps[Event]:
        """Publish what JSON can say; whoever waits has it within milliseconds.

        Equal payloads are two events. A repeat with the same `request_id` publishes nothing and returns
        the first event.

        >>> Broadcast("prices").publish({"apple": 3}, request_id="import-17").id
        1
        >>> Broadcast("prices").publish({"apple": 3}, request_id="import-17").id
        1

        Raises LimitExceeded (BROADCAST_MAX_BYTES).
        """
        settings = conf.current()
        encoded, asked = _encoded(payload, settings.BROADCAST_MAX_BYTES), request(request_id)
        limits = (self._bucket, self._retention, settings.BROADCAST_MAX_LENGTH, self._life)
        number = self._bucket_now()
        while True:
            keys = (*self._publishing, *self._keys.some_buckets(number, 2))
            reply = yield Script("broadcast_publish", keys, (encoded, asked, window(), *limits, number))
            if reply == b"none":
                yield from self._opened()
            elif isinstance(reply, int):  # the bucket that it is by the server's clock
                number = reply
            else:
                break
        published, us, epoch = map(int, reply.rstrip(b"+").split(b"-"))
        _offsets[self._using] = us - monotonic_ns() // 1000
        if reply.endswith(b"+"):
            yield from self._trimmed()
        return events(self._mark, epoch, [(published, us, 0, payload)])[0]

    apublish = asynchronous(publish)

    @operation
    def fetch(self, cursor: str | None = None, *, limit: int = 1000, wait: Duration = 0) -> Steps[Batch]:
        """What was published behind `cursor`, up to `limit` events (1 to 1000); None: all that is kept.

        With `wait` (seconds) it returns as soon as there is something, or empty after that time. Large
        events make a batch shorter, so what is left is asked for until a batch is empty. `missed` tells
        that events in between expired, or went beyond BROADCAST_MAX_LENGTH, or were lost by Redis; the
        batch then begins with the oldest event there is.

        >>> Broadcast("nothing").fetch(wait=0.01)  # doctest: +ELLIPSIS
        Batch(events=[], cursor='...', missed=False)

        Raises ValueError for a cursor of another channel.
        """
        most = count(limit, "limit")
        ends = monotonic() + milliseconds(wait, "wait") / 1000
        behind = None if cursor is None else place(cursor, self._mark)
        while True:
            found, behind, missed = yield from self._read(behind, most)
            left = ends - monotonic()
            if found or missed or left <= 0:
                return Batch(found, behind.cursor(self._mark), missed)
            yield from self._woken(behind, min(left, LOOK))

    afetch = asynchronous(fetch)

    @operation
    def cursor(self) -> Steps[str]:
        """Where the channel is now: behind all that was published.

        >>> channel = Broadcast("prices")
        >>> channel.fetch(channel.cursor()).events
        []
        """
        now = yield from self._opened()
        return now.cursor(self._mark)

    acursor = asynchronous(cursor)

    @operation
    def position(self, name: str) -> Steps[str | None]:
        """The cursor that is kept for the consumer of this name; None where there is none.

        >>> Broadcast("prices").position("shop")
        """
        reply = yield Command("GET", self._keys.position(checked(name, "name")), reads=True)
        return None if reply is None else reply.decode()

    aposition = asynchronous(position)

    @operation
    def keep(self, name: str, cursor: str) -> Steps[None]:
        """Keep a cursor for the consumer of this name, for a week.

        >>> channel = Broadcast("prices")
        >>> channel.keep("shop", channel.cursor())
        """
        key = self._keys.position(checked(name, "name"))
        yield Script("broadcast_keep", [key], [place(cursor, self._mark).cursor(self._mark), self._life])

    akeep = asynchronous(keep)

    def consume(
        self,
        handler: Callable[[Event], object],
        *,
        name: str | None = None,
        cursor: str | None = None,
        on_missed: Callable[[], object] | None = None,
        attempts: int = 3,
        stop: Stop | None = None,
    ) -> None:
        """Call `handler` with each event, in their order, until `stop` is set.

        It begins at `cursor`; else where the consumer called `name` was, which is kept in Redis; else with
        what is published from now on. A kept place moves behind each batch, and behind each second: after
        a crash, what came since is handled again. `on_missed` is called, before the events, where some may
        be missing. What raises is logged and tried again, after a growing pause; after so many `attempts`
        the event is logged as given up, and passed over. While Redis is away the loop tries again.
        """
        told = consuming.Told(handler, on_missed, count(attempts, "attempts"))
        start = self._checked(name, cursor)
        consuming.consume(self, told, start, name, stop or threading.Event())

    async def aconsume(
        self,
        handler: Callable[[Event], object | Awaitable[object]],
        *,
        name: str | None = None,
        cursor: str | None = None,
        on_missed: Callable[[], object | Awaitable[object]] | None = None,
        attempts: int = 3,
        stop: Stop | None = None,
    ) -> None:
        """As `consume`; `stop` is anything with is_set, coroutine functions are awaited."""
        told = consuming.Told(handler, on_missed, count(attempts, "attempts"))
        start = self._checked(name, cursor)
        await consuming.aconsume(self, told, start, name, stop or threading.Event())

    def _woken(self, behind: Place, seconds: float) -> Steps[None]:
        """Waits for something behind this place."""
        here = f"{behind.id}-{behind.us}-{behind.epoch}-"
        keys = [self._keys.head, self._keys.waiting]
        if (yield Script("broadcast_await", keys, [here, WAITING])):
            yield Listen(self._keys.bell, behind.id, seconds=seconds)

    def _bucket_now(self) -> int:
        """The number of the bucket of this moment, or the one before it."""
        offset = _offsets.get(self._using)
        us = time_ns() // 1000 if offset is None else monotonic_ns() // 1000 + offset
        return us // 1000 // self._bucket

    def _trimmed(self) -> Steps[None]:
        """Removes what is too much; if that can't be done now, the next publisher does it."""
        limits = (self._bucket, conf.current().BROADCAST_MAX_LENGTH, self._life)
        try:
            yield Script("broadcast_trim", [self._keys.head, *self._keys.buckets], limits)
        except (Unavailable, OutcomeUnknown) as error:
            _logger.warning("Channel %r was not trimmed: %s", self.channel, error)

    def _checked(self, name: str | None, cursor: str | None) -> str | None:
        if name is not None:
            checked(name, "name")
        return None if cursor is None else place(cursor, self._mark).cursor(self._mark)

    def _read(self, behind: Place | None, most: int) -> Steps[tuple[list[Event], Place, bool]]:
        """Pages until there are `most` events, or no more."""
        found, behind, missed = yield from self._page(behind, min(most, PAGE))
        more = len(found) == PAGE
        while more and len(found) < most:
            page, further, lost = yield from self._page(behind, min(most - len(found), PAGE))
            if lost:  # the next fetch says so
                break
            found, behind, more = found + page, further, len(page) == PAGE
        return found, behind, missed

    def _page(self, behind: Place | None, most: int) -> Steps[tuple[list[Event], Place, bool]]:
        """Events, the place behind them, and whether some may be missing before them."""
        words = ("", 0, 0) if behind is None else behind
        limits = (most, self._bucket, conf.current().BROADCAST_MAX_LENGTH, self._life)
        start = behind.us // 1000 // self._bucket if behind is not None and behind.us else -1
        while True:
            buckets = self._keys.buckets if start < 0 else self._keys.some_buckets(start, NEAR)
            reply = yield Script("broadcast_fetch", [self._keys.head, *buckets], (*words, *limits, start))
            if reply == b"none":
                yield from self._opened()
            elif reply == b"far":
                start = -1
            elif behind is None or isinstance(reply, list):
                return self._events(reply)
            elif reply == b"doubt":
                # from now on everybody knows that events were lost: this epoch is over
                yield from self._opened(behind.epoch)
            else:
                if reply == b"fading":
                    yield from self._opened()
                return [], behind, False

    def _events(self, reply: list[Any]) -> tuple[list[Event], Place, bool]:
        epoch, last, us = map(int, reply[:3])
        stored = payloads.loads_all(reply[4:])
        if stored:
            last, us = stored[-1][:2]
        return events(self._mark, epoch, stored), Place(epoch, last, us), bool(reply[3])

    def _opened(self, doubted: int | None = None) -> Steps[Place]:
        """Makes sure that there is a channel, whose epoch is not the doubted one; its newest place."""
        args = (self._life, "" if doubted is None else doubted)
        keys = [self._keys.head, self._keys.bell, *self._keys.buckets]
        reply = yield Script("broadcast_open", keys, args)
        last, us, epoch, _ = map(int, reply.split(b"-"))
        return Place(epoch, last, us)


def _encoded(payload: Any, limit: int) -> str:
    encoded = payloads.dumps(payload)
    if len(encoded) > limit or (not encoded.isascii() and len(encoded.encode()) > limit):
        actual = len(encoded.encode())
        raise LimitExceeded("an event's payload (BROADCAST_MAX_BYTES, bytes)", limit=limit, actual=actual)
    return encoded
