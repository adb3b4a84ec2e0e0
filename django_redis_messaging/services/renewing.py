"""Leases that are kept while something runs: one renewal for threads, one for event loops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from ..core.retry import given_up_when, without_deadline
from ..errors import MessagingError

logger = logging.getLogger(__name__)

#: seconds that `stop` waits for a renewal under way: one whose server answers takes less
PATIENCE = 0.1


class Renewal:
    """Calls `renew` every so many seconds, in a daemon thread, until it is stopped or the lease is lost.

    What fails by an outage is tried again at the next turn. Whoever stops it waits for no dead server; a
    renewal that is still under way then must be harmless: it carries a token, or a fence.
    """

    def __init__(self, renew: Callable[[], bool], every: float, name: str) -> None:
        #: whether `renew` has answered that the lease is lost
        self.lost = False
        self._renew = renew
        self._every = every
        self._name = name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease of {name}", daemon=True)

    def start(self) -> None:
        """Begin to renew; the first time is one turn from now."""
        self._thread.start()

    def abandon(self) -> None:
        """Renew no more, and wait for nothing: also for those who can't await, or are being destroyed."""
        self._over.set()

    def stop(self) -> None:
        """Renew no more."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _run(self) -> None:
        with given_up_when(self._over.is_set):
            while not self.lost and not self._over.wait(self._every):
                try:
                    self.lost = not self._renew()
                except MessagingError as error:
                    if not self._over.is_set():
                        _log_outage(self._name, error)
        if self.lost and not self._over.is_set():
            _log_loss(self._name)


class AwaitingRenewal:
    """As `Renewal`, in a task of the event loop that runs."""

    def __init__(self, renew: Callable[[], Awaitable[bool]], every: float, name: str) -> None:
        #: whether `renew` has answered that the lease is lost
        self.lost = False
        self._renew = renew
        self._every = every
        self._name = name
        self._task: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begin to renew; the first time is one turn from now."""
        self._task = asyncio.get_running_loop().create_task(self._run(), context=without_deadline())

    def abandon(self) -> None:
        """Renew no more, and wait for nothing; any thread may say so."""
        if self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing renews there
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def stop(self) -> None:
        """Renew no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def _run(self) -> None:
        while not self.lost:
            await asyncio.sleep(self._every)
            try:
                self.lost = not await self._renew()
            except MessagingError as error:
                _log_outage(self._name, error)
        _log_loss(self._name)


def _log_outage(name: str, error: MessagingError) -> None:
    logger.warning("The lease of %r could not be renewed, trying again: %s", name, error)


def _log_loss(name: str) -> None:
    logger.warning("The lease of %r was lost: somebody else may have it now.", name)
