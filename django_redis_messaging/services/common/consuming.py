"""The loop of a consumer: fetch, call the handlers, record what is done; until it is stopped, and through
outages of Redis.

A consumer is written once for both styles. Its coroutines call everything that can block through `do`, which
takes the blocking and the async version of a function. In the blocking style nothing is ever suspended, so no
event loop is needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from time import monotonic, sleep
from typing import Generic, ParamSpec, TypeVar

from ...core.connection import run_blocking
from ...core.outcome import backoff, no_retries_when
from ...errors import ConfigurationError, InvalidArgument, MessagingError
from .arguments import Stop

P = ParamSpec("P")
T = TypeVar("T")
#: what one fetch returns
B = TypeVar("B")

#: seconds that a fetch waits for something to handle; then the loop checks whether it must stop
FETCH_WAIT = 1.0
#: seconds; the maximum of the first pause after a failure, doubled after each further one
FIRST_PAUSE = 0.1
#: seconds; the maximum of any pause
MAX_PAUSE = 10.0
#: seconds between two checks whether the loop must stop, during a pause
STOP_INTERVAL = 0.05


def pause_after(failures: int) -> float:
    """Seconds to pause after so many failures in succession."""
    return backoff(failures, first=FIRST_PAUSE, longest=MAX_PAUSE)


class Loop:
    """What loops of both styles have in common: they end once `stop` is set."""

    def __init__(self, stop: Stop | None, *, blocking: bool) -> None:
        self.stop = stop or threading.Event()
        self._blocking = blocking

    async def do(
        self,
        blocking: Callable[P, T],
        asynchronous: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call the version of a function that the style needs; returns its result."""
        if self._blocking:
            return blocking(*args, **kwargs)
        return await asynchronous(*args, **kwargs)

    async def pause(self, seconds: float) -> None:
        """Pause, at most until the loop must stop."""
        ends = monotonic() + seconds
        while not self.stop.is_set() and (left := ends - monotonic()) > 0:
            await self.do(sleep, _asleep, min(left, STOP_INTERVAL))


class Consumer(Loop, ABC, Generic[B]):
    """One run of a loop. `title` names what it consumes, in log lines: "queue 'mail'"."""

    def __init__(self, title: str, logger: logging.Logger, stop: Stop | None, *, blocking: bool) -> None:
        super().__init__(stop, blocking=blocking)
        self.title = title
        self._logger = logger

    @abstractmethod
    async def fetch(self) -> B:
        """Wait for something to handle, FETCH_WAIT seconds at most. Not retried once the loop must stop."""

    @abstractmethod
    async def handle(self, fetched: B) -> None:
        """Handle what was fetched, and record in Redis what is done."""

    def consume(self) -> None:
        """Run the loop in the blocking style.

        A MessagingError is logged, and the loop continues after a pause. Only ConfigurationError and
        InvalidArgument end it, as no retry helps, and exceptions that the consumer lets through.
        """
        run_blocking(type(self).aconsume, self)

    async def aconsume(self) -> None:
        """Run the loop in the async style; otherwise like `consume`."""
        failures = 0
        while not self.stop.is_set():
            try:
                with no_retries_when(self.stop.is_set):
                    fetched = await self.fetch()
                await self.handle(fetched)
                failures = 0
            except (ConfigurationError, InvalidArgument):
                raise
            except MessagingError as error:
                failures += 1
                seconds = pause_after(failures)
                self._logger.warning(
                    "Consuming %s failed, retrying in %.1f s: %s", self.title, seconds, error
                )
                await self.pause(seconds)


async def _asleep(seconds: float, /) -> None:
    await asyncio.sleep(seconds)
