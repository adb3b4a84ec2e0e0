"""The loops that consume a channel: fetch, call, keep the place."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...errors import ConfigurationError, MessagingError
from .values import Batch, Event

if TYPE_CHECKING:
    from .broadcast import Broadcast

logger = logging.getLogger(__name__)

#: seconds for which a loop waits for events before it looks whether it is to stop
PATIENCE = 1.0
#: seconds after which the place is kept, though the batch goes on
KEEP = 1.0
#: seconds before the second attempt at a handler, or at Redis; doubled each time, up to LONGEST
FIRST, LONGEST = 0.1, 10.0
#: seconds between two looks at whether a pause is to end
GLANCE = 0.05


class Stop(Protocol):
    """Says whether a loop is to end."""

    def is_set(self) -> bool: ...


class Call(NamedTuple):
    """Somebody to be told of something."""

    function: Callable[..., Any]
    args: tuple[Event, ...]
    #: the place once it is done; None: where it was
    cursor: str | None


class Told(NamedTuple):
    """Who is told of events and of losses, and how often it is tried."""

    handler: Callable[[Event], Any]
    on_missed: Callable[[], Any] | None
    attempts: int

    def calls(self, channel: Broadcast, batch: Batch) -> Iterator[Call]:
        """What a batch asks for, in its order."""
        if batch.missed:
            logger.warning("Events of channel %r may be missing.", channel.channel)
            if self.on_missed is not None:
                yield Call(self.on_missed, (), None)
        for event in batch.events:
            yield Call(self.handler, (event,), event.cursor)


class Progress:
    """Where a consumer is, and what is kept of it."""

    def __init__(self, channel: Broadcast, told: Told, cursor: str | None, name: str | None) -> None:
        self.channel = channel
        self.told = told
        self.name = name
        self.cursor = cursor
        self._kept: str | None = None
        self._kept_at = monotonic()
        self._failures = 0

    def began(self, cursor: str, *, kept: bool) -> str:
        """It begins here."""
        self.cursor = cursor
        self._kept = cursor if kept else None
        return cursor

    def moved(self, call: Call) -> bool:
        """It has done this; whether to keep the place now."""
        self.cursor = call.cursor or self.cursor
        return monotonic() >= self._kept_at + KEEP

    def unkept(self) -> tuple[str, str] | None:
        """The name and the place that is to be kept."""
        if self.name is None or self.cursor is None or self.cursor == self._kept:
            return None
        return self.name, self.cursor

    def kept(self, cursor: str) -> None:
        """This place is kept."""
        self._kept, self._kept_at = cursor, monotonic()
        self._failures = 0

    def lost(self, error: MessagingError) -> float:
        """Redis is away; seconds to wait."""
        self._failures += 1
        self._kept_at = monotonic()
        logger.warning("Channel %r can't be reached, trying again: %s", self.channel.channel, error)
        return _pause(self._failures)

    def answered(self) -> None:
        """Redis is there."""
        self._failures = 0

    def failed(self, call: Call, attempt: int) -> float | None:
        """A call has raised; seconds until the next attempt, None when that was the last."""
        what = f"event {call.args[0].id}" if call.args else "the news that events are missing"
        last = attempt >= self.told.attempts
        logger.error(
            "The handler of channel %r failed with %s, in attempt %d of %d%s.",
            self.channel.channel, what, attempt, self.told.attempts, ": it is given up" if last else "",
            exc_info=True,
        )  # fmt: skip
        return None if last else _pause(attempt)


def _pause(failures: int) -> float:
    longest: float = min(FIRST * 2.0 ** min(failures - 1, 20), LONGEST)
    return longest * random.uniform(0.5, 1)  # noqa: S311


def consume(channel: Broadcast, told: Told, cursor: str | None, name: str | None, stop: Stop) -> None:
    """See Broadcast.consume."""
    progress = Progress(channel, told, cursor, name)
    while not stop.is_set():
        try:
            at = progress.cursor or _begin(progress)
            _keep(progress)
            batch = channel.fetch(at, wait=PATIENCE)
            progress.answered()
            if _handled(progress, batch, stop):
                progress.cursor = batch.cursor
            _keep(progress)
        except ConfigurationError:
            raise
        except MessagingError as error:
            _rest(stop, progress.lost(error))


def _begin(progress: Progress) -> str:
    kept = progress.channel.position(progress.name) if progress.name else None
    return progress.began(kept or progress.channel.cursor(), kept=kept is not None)


def _keep(progress: Progress) -> None:
    if unkept := progress.unkept():
        progress.channel.keep(*unkept)
        progress.kept(unkept[1])


def _handled(progress: Progress, batch: Batch, stop: Stop) -> bool:
    """Whether all was done before the end."""
    for call in progress.told.calls(progress.channel, batch):
        if stop.is_set() or not _called(progress, call, stop):
            return False
        if progress.moved(call):
            _keep_if_possible(progress)
    return True


def _keep_if_possible(progress: Progress) -> None:
    try:
        _keep(progress)
    except MessagingError as error:
        progress.lost(error)


def _called(progress: Progress, call: Call, stop: Stop) -> bool:
    """Call, as often as it takes and may be; False where the end came first."""
    attempt = 1
    while True:
        try:
            call.function(*call.args)
            return True
        except Exception:
            pause = progress.failed(call, attempt)
        if pause is None:
            return True
        _rest(stop, pause)
        if stop.is_set():
            return False
        attempt += 1


def _rest(stop: Stop, seconds: float) -> None:
    ends = monotonic() + seconds
    while not stop.is_set() and (left := ends - monotonic()) > 0:
        threading.Event().wait(min(left, GLANCE))


async def aconsume(channel: Broadcast, told: Told, cursor: str | None, name: str | None, stop: Stop) -> None:
    """See Broadcast.aconsume."""
    progress = Progress(channel, told, cursor, name)
    while not stop.is_set():
        try:
            at = progress.cursor or await _abegin(progress)
            await _akeep(progress)
            batch = await channel.afetch(at, wait=PATIENCE)
            progress.answered()
            if await _ahandled(progress, batch, stop):
                progress.cursor = batch.cursor
            await _akeep(progress)
        except ConfigurationError:
            raise
        except MessagingError as error:
            await _arest(stop, progress.lost(error))


async def _abegin(progress: Progress) -> str:
    kept = await progress.channel.aposition(progress.name) if progress.name else None
    return progress.began(kept or await progress.channel.acursor(), kept=kept is not None)


async def _akeep(progress: Progress) -> None:
    if unkept := progress.unkept():
        await progress.channel.akeep(*unkept)
        progress.kept(unkept[1])


async def _ahandled(progress: Progress, batch: Batch, stop: Stop) -> bool:
    """As `_handled`."""
    for call in progress.told.calls(progress.channel, batch):
        if stop.is_set() or not await _acalled(progress, call, stop):
            return False
        if progress.moved(call):
            await _akeep_if_possible(progress)
    return True


async def _akeep_if_possible(progress: Progress) -> None:
    try:
        await _akeep(progress)
    except MessagingError as error:
        progress.lost(error)


async def _acalled(progress: Progress, call: Call, stop: Stop) -> bool:
    """As `_called`; what is awaitable is awaited."""
    attempt = 1
    while True:
        try:
            result = call.function(*call.args)
            if inspect.isawaitable(result):
                await result
            return True
        except Exception:
            pause = progress.failed(call, attempt)
        if pause is None:
            return True
        await _arest(stop, pause)
        if stop.is_set():
            return False
        attempt += 1


async def _arest(stop: Stop, seconds: float) -> None:
    ends = monotonic() + seconds
    while not stop.is_set() and (left := ends - monotonic()) > 0:  # noqa: ASYNC110 (any `stop` will do)
        await asyncio.sleep(min(left, GLANCE))
