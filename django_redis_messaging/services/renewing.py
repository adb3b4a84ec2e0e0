"""Renews leases in the background: one class for threads, one for event loops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Self

from ..core.failures import describe, log_exception
from ..core.retry import no_retries_when, without_deadline
from ..errors import MessagingError

logger = logging.getLogger(__name__)

#: seconds that `stop` waits for a renewal in progress, which takes less unless the server is down
STOP_TIMEOUT = 0.1


class Renewal:
    """Calls `renew` every `interval` seconds, in a daemon thread, until it is stopped or the lease is lost.

    After an outage it continues at the next interval. `stop` doesn't wait for an unreachable server, so a
    renewal that is still in progress then must be harmless: it carries a token or a fence.
    """

    def __init__(self, renew: Callable[[], bool], interval: float, name: str) -> None:
        #: whether `renew` has returned False
        self.lost = False
        self._renew = renew
        self._interval = self._pause = interval
        self._name = name
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease of {name}", daemon=True)

    def start(self, *, at_once: bool = False) -> None:
        """Start to renew; the first renewal is after one interval, or at once."""
        self._pause = 0.0 if at_once else self._interval
        self._thread.start()

    def stop(self, timeout: float | None = STOP_TIMEOUT) -> None:
        """Stop, and wait up to `timeout` seconds for a renewal in progress; None: until it has ended."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _run(self) -> None:
        with no_retries_when(self._stopped.is_set):
            while not self.lost and not self._stopped.wait(self._pause):
                started = monotonic()
                try:
                    self.lost = not self._renew()
                except MessagingError as error:
                    if not self._stopped.is_set():
                        _log_failure(self._name, self._interval, error)
                except BaseException as error:  # SystemExit too: the thread must not end
                    _log_failure(self._name, self._interval, error)
                self._pause = max(started + self._interval - monotonic(), 0.0)
        if self.lost and not self._stopped.is_set():
            _log_loss(self._name)


class AsyncRenewal:
    """An async version of `Renewal`, which runs in a task of the running event loop."""

    def __init__(self, renew: Callable[[], Awaitable[bool]], interval: float, name: str) -> None:
        #: whether `renew` has returned False
        self.lost = False
        self._renew = renew
        self._interval = interval
        self._name = name
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start to renew; the first renewal is after one interval."""
        self._task = asyncio.get_running_loop().create_task(self._run(), context=without_deadline())

    async def stop(self) -> None:
        """Stop, and wait until the task has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def _run(self) -> None:
        pause = self._interval
        while not self.lost:
            await asyncio.sleep(pause)
            started = monotonic()
            try:
                self.lost = not await self._renew()
            except Exception as error:
                _log_failure(self._name, self._interval, error)
            pause = max(started + self._interval - monotonic(), 0.0)
        _log_loss(self._name)


def _log_failure(name: str, interval: float, error: BaseException) -> None:
    message = "Renewing the lease of %r failed, retrying in %.1f s: %s"
    if isinstance(error, MessagingError):
        logger.warning(message, name, interval, error)
    else:
        log_exception(logger, error, message, name, interval, describe(error))


def _log_loss(name: str) -> None:
    logger.warning("The lease of %r was lost: another client may hold it now.", name)
