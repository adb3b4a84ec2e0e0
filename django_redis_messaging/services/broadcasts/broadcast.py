"""Broadcasts: a channel whose events every reader gets, and the consumers that call a function with each."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic, monotonic_ns, time_ns
from typing import Any, NamedTuple

from ... import conf
from ...core import payloads
from ...core.keys import name as checked
from ...core.operations import Command, Listen, Script, Service, Steps, asynchronous, log_exception, operation
from ...core.outcome import backoff
from ...errors import (
    ConfigurationError,
    InvalidArgument,
    LimitExceeded,
    MessagingError,
    OutcomeUnknown,
    Unavailable,
)
from ..common.arguments import Duration, Stop, count, milliseconds, request, window
from .keys import BroadcastKeys

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
            keys = (*self._keys.publishing, *self._keys.buckets_from(number, 2))
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
            stored = payloads.loads_all([first])[0] if first else (published, us, 0, payload)
            return events(self._channel_id, epoch, [stored])[0]
        _offsets[self._using] = us - monotonic_ns() // 1000
        if reply.endswith(b"+"):
            yield from self._trim()
        return events(self._channel_id, epoch, [(published, us, 0, payload)])[0]

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
        callbacks = Callbacks(handler, on_missed, count(attempts, "attempts"))
        start = self._check(name, cursor)
        consume(self, callbacks, start, name, stop or threading.Event())

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
        callbacks = Callbacks(handler, on_missed, count(attempts, "attempts"))
        start = self._check(name, cursor)
        await aconsume(self, callbacks, start, name, stop or threading.Event())

    def _bucket_now(self) -> int:
        """The number of the current bucket, or of the previous one."""
        offset = _offsets.get(self._using)
        us = time_ns() // 1000 if offset is None else monotonic_ns() // 1000 + offset
        return us // 1000 // self._bucket

    def _trim(self) -> Steps[None]:
        """Remove the events in excess of the maximum length; if that fails, a later publish repeats it."""
        limits = (self._bucket, conf.current().BROADCAST_MAX_LENGTH, self._idle_ttl)
        try:
            yield Script("broadcasts/trim", [self._keys.head, *self._keys.buckets], limits)
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning("Trimming channel %r failed; a later publish repeats it: %s", self.channel, error)

    def _check(self, name: str | None, cursor: str | None) -> str | None:
        if name is not None:
            checked(name, "name")
        return None if cursor is None else self._normalize(cursor)

    def _wait(self, position: Position, seconds: float) -> Steps[None]:
        """Wait for an event after this position."""
        head = f"{position.id}-{position.us}-{position.epoch}-"
        keys = [self._keys.head, self._keys.waiting]
        if (yield Script("broadcasts/await", keys, [head, WAITING_TTL])):
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
        reply = yield Script("broadcasts/open", keys, args)
        last, us, epoch, _ = map(int, reply.split(b"-"))
        return Position(epoch, last, us)


def _encode(payload: Any, limit: int) -> str:
    encoded = payloads.dumps(payload)
    if len(encoded) > limit or (not encoded.isascii() and len(encoded.encode()) > limit):
        actual = len(encoded.encode())
        raise LimitExceeded(
            "an event's payload (bytes)", limit=limit, actual=actual, setting="BROADCAST_MAX_BYTES"
        )
    return encoded


#: seconds that a fetch waits for events; then the loop checks whether it must stop
FETCH_WAIT = 1.0
#: seconds; the position is kept after this time even within a batch
KEEP_INTERVAL = 1.0
#: seconds; maximum of the first pause after a failure of the handler or of Redis; doubled for each further
#: one
FIRST_PAUSE = 0.1
#: seconds; maximum of any pause
MAX_PAUSE = 10.0
#: seconds; how often a pause checks whether the loop must stop
SHORT_POLL_INTERVAL = 0.05


class Call(NamedTuple):
    """A callback to call."""

    function: Callable[..., Any]
    args: tuple[Event, ...]
    #: the position after the call; None: unchanged
    cursor: str | None


class Callbacks(NamedTuple):
    """The callbacks for events and for missed events, and the number of attempts for each call."""

    handler: Callable[[Event], Any]
    on_missed: Callable[[], Any] | None
    attempts: int

    def calls(self, channel: Broadcast, batch: Batch) -> Iterator[Call]:
        """The calls for a batch, in order."""
        if batch.missed:
            logger.warning("Events of channel %r may be missing.", channel.channel)
            if self.on_missed is not None:
                yield Call(self.on_missed, (), None)
        for event in batch.events:
            yield Call(self.handler, (event,), event.cursor)


class Progress:
    """The position of a consumer, and the position that was kept in Redis."""

    def __init__(
        self, channel: Broadcast, callbacks: Callbacks, cursor: str | None, name: str | None
    ) -> None:
        self.channel = channel
        self.callbacks = callbacks
        self.name = name
        self.cursor = cursor
        self._kept: str | None = None
        self._kept_at = monotonic()
        self._failures = 0

    def start_at(self, cursor: str, *, is_kept: bool) -> str:
        """Set the first position; returns it."""
        self.cursor = cursor
        self._kept = cursor if is_kept else None
        return cursor

    def complete(self, call: Call) -> bool:
        """Move the position after a call; returns whether it is time to keep it."""
        self.cursor = call.cursor or self.cursor
        return monotonic() >= self._kept_at + KEEP_INTERVAL

    def unkept(self) -> tuple[str, str] | None:
        """The name and the position to keep; None if it is kept already, or the consumer has no name."""
        if self.name is None or self.cursor is None or self.cursor == self._kept:
            return None
        return self.name, self.cursor

    def mark_kept(self, cursor: str) -> None:
        """Record that a position was kept."""
        self._kept, self._kept_at = cursor, monotonic()
        self._failures = 0

    def record_failure(self, error: MessagingError) -> float:
        """Log that Redis failed; returns the seconds to pause."""
        self._failures += 1
        self._kept_at = monotonic()
        logger.warning("Consuming channel %r failed, retrying: %s", self.channel.channel, error)
        return _pause(self._failures)

    def record_reply(self) -> None:
        """Record that Redis is available."""
        self._failures = 0

    def log_handler_failure(self, call: Call, attempt: int, error: Exception) -> float | None:
        """Log that a call raised; returns the seconds until the next attempt, None after the last one."""
        what = f"event {call.args[0].id}" if call.args else "missed events"
        pause = None if attempt >= self.callbacks.attempts else _pause(attempt)
        log_exception(
            logger, error, "Handling %s of channel %r failed, attempt %d of %d: %s.",
            what, self.channel.channel, attempt, self.callbacks.attempts,
            "giving up" if pause is None else f"retrying in {pause:.1f} s",
        )  # fmt: skip
        return pause


def _pause(failures: int) -> float:
    return backoff(failures, first=FIRST_PAUSE, longest=MAX_PAUSE)


def consume(
    channel: Broadcast, callbacks: Callbacks, cursor: str | None, name: str | None, stop: Stop
) -> None:
    """See Broadcast.consume."""
    progress = Progress(channel, callbacks, cursor, name)
    while not stop.is_set():
        try:
            position = progress.cursor or _begin(progress)
            _keep(progress)
            batch = channel.fetch(position, wait=FETCH_WAIT)
            progress.record_reply()
            if _handle(progress, batch, stop):
                progress.cursor = batch.cursor
            _keep(progress)
        except (ConfigurationError, InvalidArgument):
            raise
        except MessagingError as error:
            _sleep(stop, progress.record_failure(error))


def _begin(progress: Progress) -> str:
    kept = progress.channel.position(progress.name) if progress.name else None
    return progress.start_at(kept or progress.channel.cursor(), is_kept=kept is not None)


def _keep(progress: Progress) -> None:
    if unkept := progress.unkept():
        progress.channel.keep(*unkept)
        progress.mark_kept(unkept[1])


def _handle(progress: Progress, batch: Batch, stop: Stop) -> bool:
    """Make the calls of a batch; returns False if it was stopped before the end."""
    for call in progress.callbacks.calls(progress.channel, batch):
        if stop.is_set() or not _call(progress, call, stop):
            return False
        if progress.complete(call):
            _try_to_keep(progress)
    return True


def _try_to_keep(progress: Progress) -> None:
    try:
        _keep(progress)
    except MessagingError as error:
        progress.record_failure(error)


def _call(progress: Progress, call: Call, stop: Stop) -> bool:
    """Make a call, with all its attempts; returns False if it was stopped before."""
    attempt = 1
    while True:
        try:
            call.function(*call.args)
            return True
        except Exception as error:
            pause = progress.log_handler_failure(call, attempt, error)
        if pause is None:
            return True
        _sleep(stop, pause)
        if stop.is_set():
            return False
        attempt += 1


def _sleep(stop: Stop, seconds: float) -> None:
    ends = monotonic() + seconds
    while not stop.is_set() and (left := ends - monotonic()) > 0:
        threading.Event().wait(min(left, SHORT_POLL_INTERVAL))


async def aconsume(
    channel: Broadcast, callbacks: Callbacks, cursor: str | None, name: str | None, stop: Stop
) -> None:
    """See Broadcast.aconsume."""
    progress = Progress(channel, callbacks, cursor, name)
    while not stop.is_set():
        try:
            position = progress.cursor or await _abegin(progress)
            await _akeep(progress)
            batch = await channel.afetch(position, wait=FETCH_WAIT)
            progress.record_reply()
            if await _ahandle(progress, batch, stop):
                progress.cursor = batch.cursor
            await _akeep(progress)
        except (ConfigurationError, InvalidArgument):
            raise
        except MessagingError as error:
            await _asleep(stop, progress.record_failure(error))


async def _abegin(progress: Progress) -> str:
    kept = await progress.channel.aposition(progress.name) if progress.name else None
    return progress.start_at(kept or await progress.channel.acursor(), is_kept=kept is not None)


async def _akeep(progress: Progress) -> None:
    if unkept := progress.unkept():
        await progress.channel.akeep(*unkept)
        progress.mark_kept(unkept[1])


async def _ahandle(progress: Progress, batch: Batch, stop: Stop) -> bool:
    """An async version of `_handle`."""
    for call in progress.callbacks.calls(progress.channel, batch):
        if stop.is_set() or not await _acall(progress, call, stop):
            return False
        if progress.complete(call):
            await _atry_to_keep(progress)
    return True


async def _atry_to_keep(progress: Progress) -> None:
    try:
        await _akeep(progress)
    except MessagingError as error:
        progress.record_failure(error)


async def _acall(progress: Progress, call: Call, stop: Stop) -> bool:
    """An async version of `_call`; awaits the result if it is awaitable."""
    attempt = 1
    while True:
        try:
            result = call.function(*call.args)
            if inspect.isawaitable(result):
                await result
            return True
        except Exception as error:
            pause = progress.log_handler_failure(call, attempt, error)
        if pause is None:
            return True
        await _asleep(stop, pause)
        if stop.is_set():
            return False
        attempt += 1


async def _asleep(stop: Stop, seconds: float) -> None:
    ends = monotonic() + seconds
    while not stop.is_set() and (left := ends - monotonic()) > 0:  # noqa: ASYNC110 (any object with is_set)
        await asyncio.sleep(min(left, SHORT_POLL_INTERVAL))
