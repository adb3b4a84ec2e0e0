"""The loops that consume a channel: fetch events, call the handler, keep the position."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NamedTuple

from ...core.backoff import backoff
from ...core.failures import log_exception
from ...errors import ConfigurationError, InvalidArgument, MessagingError
from ..arguments import Stop
from .base import ChannelReader
from .values import Batch, Event

logger = logging.getLogger(__name__)

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
POLL_INTERVAL = 0.05


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

    def calls(self, channel: ChannelReader, batch: Batch) -> Iterator[Call]:
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
        self, channel: ChannelReader, callbacks: Callbacks, cursor: str | None, name: str | None
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
    channel: ChannelReader, callbacks: Callbacks, cursor: str | None, name: str | None, stop: Stop
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
        threading.Event().wait(min(left, POLL_INTERVAL))


async def aconsume(
    channel: ChannelReader, callbacks: Callbacks, cursor: str | None, name: str | None, stop: Stop
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
        await asyncio.sleep(min(left, POLL_INTERVAL))
