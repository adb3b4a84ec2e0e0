"""Broadcasts: a channel whose events every reader gets, and the consumers that call a function with each."""

from __future__ import annotations

import functools
import inspect
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import monotonic, monotonic_ns, time_ns
from typing import Any, NamedTuple

from ... import conf
from ...core import encoding
from ...core.encoding import encoded, tag
from ...core.encoding import name as checked
from ...core.operations import Command, Listen, Script, Service, Steps, asynchronous, log_exception, operation
from ...errors import LimitExceeded, MessagingError, OutcomeUnknown, Unavailable
from ..common.arguments import (
    Duration,
    Stop,
    count,
    format_cursor,
    milliseconds,
    parse_channel_cursor,
    request,
    window,
)
from ..common.consuming import FETCH_WAIT, Consumer, pause_after

logger = logging.getLogger(__name__)

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
#: alias → µs by which its server's clock is ahead of the monotonic clock, as of the last publish. A publisher
#: guesses the current buckets from it, and repeats the call if the server replies with another number
_offsets: dict[str, int] = {}


class BroadcastKeys:
    """The keys of one channel, in one slot.

    Time is divided into buckets of `bucket` ms, each kept for `retention` ms after its end, so a ring of a
    few keys is enough: when a key is used again, its former content has expired.
    """

    def __init__(self, prefix: str, channel: str, bucket: int = 10_000, retention: int = 300_000) -> None:
        self.tag = tag(prefix, "broadcast", channel)
        self._bucket = bucket
        self._count = -(-retention // bucket) + 2

    @property
    def head(self) -> str:
        """STRING "last-us-epoch-first": id and time (µs) of the newest event, the channel's epoch (µs), and
        the first id that the length limit has left. Expires when the channel was idle for a week, which
        counts from the first event of its newest bucket."""
        return self.tag + ":head"

    @property
    def requests(self) -> list[str]:
        """HASH request id → first reply: two keys, used in turn for one window each. Each expires when its
        turn comes again."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @property
    def bell(self) -> str:
        """STREAM of one entry, whose id is that of an event: wakes the readers that wait for this event or an
        earlier one. Written while readers wait; expires a minute later."""
        return self.tag + ":bell"

    @property
    def waiting(self) -> str:
        """STRING, empty: readers wait, so publishers must wake them. Expires some seconds later."""
        return self.tag + ":waiting"

    @property
    def buckets(self) -> list[str]:
        """LIST of the events of a bucket, in order, as JSON arrays [id, µs, µs of the previous event,
        payload]. Their names have the length of a bucket (ms) and the number of buckets. Each
        expires `retention` after the end of its bucket."""
        return list(_ring(self.tag, self._bucket, self._count))

    @functools.cached_property
    def fixed(self) -> tuple[str, ...]:
        """The keys before the buckets, in the order of broadcast_at() in _broadcast.lua."""
        return (self.head, *self.requests, self.bell, self.waiting)

    def position(self, name: str) -> str:
        """STRING: the cursor of a named consumer. Expires when it was not updated for a week."""
        return f"{self.tag}:position:{encoded(name)}"

    def buckets_from(self, number: int, count: int) -> list[str]:
        """The keys of `count` consecutive buckets, beginning with this number."""
        ring = _ring(self.tag, self._bucket, self._count)
        return [ring[at % self._count] for at in range(number, number + count)]


@functools.lru_cache(maxsize=1024)
def _ring(slot: str, bucket: int, count: int) -> tuple[str, ...]:
    return tuple(f"{slot}:{bucket}x{count}:{number}" for number in range(count))


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
        return f"{channel_id}-{format_cursor(*self)}"


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


class Broadcast(Service):
    """A channel: every reader gets the events that were published in the last minutes.

    >>> channel = Broadcast("settings")
    >>> start = channel.cursor()
    >>> channel.publish({"theme": "dark"}).id
    1
    >>> batch = channel.fetch(start)
    >>> [event.payload for event in batch.events], batch.missed
    ([{'theme': 'dark'}], False)
    >>> channel.fetch(batch.cursor).events
    []

    A reader that fetches at least every BROADCAST_RETENTION seconds gets every event once, in the same
    order as all readers, independent of clocks. If events may have been lost for it, `missed` is true.
    Events are stored in buckets of time, which expire; a counter defines their order.
    """

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
    def publish(self, payload: Any, *, request_id: str | None = None) -> Steps[Event]:
        """Publish a payload that JSON can encode; waiting readers get it within milliseconds.

        Two calls with equal payloads publish two events. A repeat with the same `request_id` publishes
        nothing and returns the first event, as far as it is still stored. Request ids belong to the channel:
        put the user into an id that a user has chosen.

        >>> Broadcast("prices").publish({"apple": 3}, request_id="import-17").id
        1
        >>> Broadcast("prices").publish({"apple": 3}, request_id="import-17").id
        1

        Raises LimitExceeded (BROADCAST_MAX_BYTES).
        """
        settings = conf.current()
        encoded, request_id = _encode(payload, settings.BROADCAST_MAX_BYTES), request(request_id)
        limits = (self._bucket, self._retention, settings.BROADCAST_MAX_LENGTH, self._idle_ttl)
        number = self._bucket_now()
        while True:
            keys = (*self._keys.fixed, *self._keys.buckets_from(number, 2))
            reply = yield Script("broadcasts/publish", keys, (encoded, request_id, window(), *limits, number))
            if reply == b"none":
                yield from self._open()
            elif isinstance(reply, int):  # the bucket to give
                number = reply
            else:
                break
        reply, is_repeat, first = reply.partition(b" ")
        published, us, epoch = map(int, reply.rstrip(b"+").split(b"-"))
        if is_repeat:
            stored = encoding.loads_all([first]) if first else [(published, us, 0, payload)]
            [event] = events(self._channel_id, epoch, stored)
            return event
        _offsets[self._using] = us - monotonic_ns() // 1000
        if reply.endswith(b"+"):
            yield from self._trim()
        [event] = events(self._channel_id, epoch, [(published, us, 0, payload)])
        return event

    apublish = asynchronous(publish)

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
        position = None if cursor is None else Position(*parse_channel_cursor(cursor, self._channel_id))
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
        yield Script("broadcasts/keep", [key], [self._normalize(cursor), self._idle_ttl])

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
        """Call `handler` with each event, in order, until `stop` is set.

        It begins at `cursor`; without one, at the position that is kept in Redis for the consumer `name`;
        without that, with the next event published. The position is kept after each batch, and after each
        second: after a crash, later events are handled again. `on_missed` is called before the events if
        some may be missing. If a callback raises, the error is logged and the call is repeated after a
        growing pause; after so many `attempts` the event is logged and skipped. During an outage of Redis
        the loop retries.
        """
        EventConsumer(
            self, handler, on_missed, attempts, name=name, cursor=cursor, stop=stop, blocking=True
        ).consume()

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
        """An async version of `consume`, for plain and coroutine functions; `stop` is any object with
        is_set."""
        await EventConsumer(
            self, handler, on_missed, attempts, name=name, cursor=cursor, stop=stop, blocking=False
        ).aconsume()

    def _bucket_now(self) -> int:
        """The number of the current bucket, or of the previous one."""
        offset = _offsets.get(self._using)
        us = time_ns() // 1000 if offset is None else monotonic_ns() // 1000 + offset
        return us // 1000 // self._bucket

    def _trim(self) -> Steps[None]:
        """Remove the events in excess of the maximum length; if that fails, a later publish repeats it."""
        limits = (self._bucket, conf.current().BROADCAST_MAX_LENGTH, self._idle_ttl)
        try:
            yield Script("broadcasts/trim", [*self._keys.fixed, *self._keys.buckets], limits)
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning("Trimming channel %r failed; a later publish repeats it: %s", self.channel, error)

    def _wait(self, position: Position, seconds: float) -> Steps[None]:
        """Wait for an event after this position."""
        head = f"{position.id}-{position.us}-{position.epoch}-"
        if (yield Script("broadcasts/await", self._keys.fixed, [head, WAITING_TTL])):
            yield Listen(self._keys.bell, position.id, seconds=seconds)

    def _normalize(self, cursor: str) -> str:
        """Return a cursor in its canonical form, if it is one of this channel."""
        return Position(*parse_channel_cursor(cursor, self._channel_id)).cursor(self._channel_id)

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
            reply = yield Script("broadcasts/fetch", [self._keys.head, *buckets], (*args, *limits, start))
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
        epoch, last, us, missed, *encoded = reply
        position = Position(int(epoch), int(last), int(us))
        stored = encoding.loads_all(encoded)
        if stored:
            last, us, *_ = stored[-1]
            position = Position(position.epoch, last, us)
        return events(self._channel_id, position.epoch, stored), position, bool(missed)

    def _open(self, lost_epoch: int | None = None) -> Steps[Position]:
        """Create the channel if it doesn't exist, and a new epoch if it is `lost_epoch`; returns the newest
        position."""
        args = (self._idle_ttl, "" if lost_epoch is None else lost_epoch)
        reply = yield Script("broadcasts/open", [*self._keys.fixed, *self._keys.buckets], args)
        last, us, epoch, _ = map(int, reply.split(b"-"))
        return Position(epoch, last, us)


def _encode(payload: Any, limit: int) -> str:
    encoded = encoding.dumps(payload)
    if len(encoded) > limit or (not encoded.isascii() and len(encoded.encode()) > limit):
        actual = len(encoded.encode())
        raise LimitExceeded(
            "an event's payload (bytes)", limit=limit, actual=actual, setting="BROADCAST_MAX_BYTES"
        )
    return encoded


#: seconds; the position is kept after this time even within a batch
KEEP_INTERVAL = 1.0

Handler = Callable[..., object]


class EventConsumer(Consumer[Batch]):
    """Calls a handler with the events of a channel, and keeps its position in Redis if it has a name."""

    def __init__(
        self,
        channel: Broadcast,
        handler: Handler,
        on_missed: Handler | None,
        attempts: int,
        *,
        name: str | None,
        cursor: str | None,
        stop: Stop | None,
        blocking: bool,
    ) -> None:
        super().__init__(f"channel {channel.channel!r}", logger, stop, blocking=blocking)
        self._channel = channel
        self._handler, self._on_missed = handler, on_missed
        self._attempts = count(attempts, "attempts")
        self._name = None if name is None else checked(name, "name")
        #: the position after the last event that was handled; None until the first position is known
        self._cursor = None if cursor is None else channel._normalize(cursor)
        #: the position that Redis has, and when it was last sent there; monotonic
        self._kept: str | None = None
        self._kept_at = monotonic()

    async def fetch(self) -> Batch:
        """Fetch the events after the position."""
        cursor = self._cursor or await self._first_position()
        await self._keep()
        return await self.do(self._channel.fetch, self._channel.afetch, cursor, wait=FETCH_WAIT)

    async def handle(self, fetched: Batch) -> None:
        """Call the callbacks, until the loop must stop, and keep the position."""
        if await self._handle_missed(fetched) and await self._handle_events(fetched.events):
            self._cursor = fetched.cursor
        await self._keep()

    async def _first_position(self) -> str:
        channel = self._channel
        if self._name is not None:
            self._kept = await self.do(channel.position, channel.aposition, self._name)
        if self._kept is None:
            self._cursor = cursor = await self.do(channel.cursor, channel.acursor)
        else:
            self._cursor = cursor = self._kept
        return cursor

    async def _handle_missed(self, batch: Batch) -> bool:
        """Report that events may be missing. Returns False if the loop must stop."""
        if batch.missed:
            logger.warning("Events of %s may be missing.", self.title)
            if self._on_missed is not None:
                return await self._call("missed events", self._on_missed)
        return True

    async def _handle_events(self, events: Sequence[Event]) -> bool:
        """Call the handler with each event. Returns False if the loop must stop before the end."""
        for event in events:
            if not await self._call(f"event {event.id}", self._handler, event):
                return False
            self._cursor = event.cursor
            await self._keep_if_due()
        return True

    async def _call(self, what: str, function: Handler, *args: Event) -> bool:
        """Call a callback, up to so many attempts. Returns False if the loop must stop before."""
        for attempt in range(1, self._attempts + 1):
            if self.stop.is_set():
                return False
            try:
                await self.do(function, partial(_awaited, function), *args)
                return True
            except Exception as error:
                pause = pause_after(attempt) if attempt < self._attempts else None
                self._log_failure(what, attempt, pause, error)
            if pause is not None:
                await self.pause(pause)
        return True

    def _log_failure(self, what: str, attempt: int, pause: float | None, error: Exception) -> None:
        log_exception(
            logger, error, "Handling %s of %s failed, attempt %d of %d: %s.",
            what, self.title, attempt, self._attempts,
            "giving up" if pause is None else f"retrying in {pause:.1f} s",
        )  # fmt: skip

    async def _keep(self) -> None:
        """Keep the position in Redis, if the consumer has a name and Redis has another position."""
        if self._name is not None and self._cursor is not None and self._cursor != self._kept:
            cursor = self._cursor
            await self.do(self._channel.keep, self._channel.akeep, self._name, cursor)
            self._kept, self._kept_at = cursor, monotonic()

    async def _keep_if_due(self) -> None:
        """Keep the position within a long batch. A failure is not retried at once: each attempt may last
        until its deadline, and delays the events."""
        if monotonic() >= self._kept_at + KEEP_INTERVAL:
            try:
                await self._keep()
            except MessagingError as error:
                logger.warning("Keeping the position in %s failed, retrying later: %s", self.title, error)
                self._kept_at = monotonic()


async def _awaited(function: Handler, *args: Event) -> None:
    """Call a plain or coroutine function."""
    result = function(*args)
    if inspect.isawaitable(result):
        await result
