"""Holds the lease of a publisher or a consumer while a block of code runs."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

from ...errors import LockError, MessagingError
from ..arguments import Stop
from ..locks import Lock
from .steps import MAX_WAIT

logger = logging.getLogger(__name__)

#: seconds by which the last attempt is longer than the lease of a predecessor that was killed
MARGIN = 1.0


class Leasing:
    """The attempts to acquire a lease. A predecessor that was killed holds it until its end, so they go
    on for a little longer than that."""

    def __init__(self, lock: Lock, title: str, stop: Stop | None) -> None:
        self._lock, self._title, self._stop = lock, title, stop
        self._lease = lock.timeout or 0.0
        self._ends = monotonic() + self._lease + MARGIN
        self._process = os.getpid()

    @property
    def must_stop(self) -> bool:
        """Whether to give up without an error."""
        return self._stop is not None and self._stop.is_set()

    def next_wait(self) -> float:
        """Seconds that the next attempt may take; raises LockError if there is no time left."""
        left = self._ends - monotonic()
        if left <= 0:
            raise LockError(
                f"Another process {self._title}. If it was killed, repeat the call when its lease has ended.",
                lock_name=self._lock.name,
            )
        return min(left, MAX_WAIT)

    @property
    def is_copy(self) -> bool:
        """Whether this process is a fork of the one that holds the lease."""
        return os.getpid() != self._process

    def handle_failed_release(self, failure: MessagingError, *, raised: bool) -> None:
        """Raise the failure of a release. Log it instead if the block itself `raised` an error, or the lease
        had ended before."""
        if not (raised or isinstance(failure, LockError)):
            raise failure
        logger.warning("The lease of the process that %s was not released: %s", self._title, failure)


@contextmanager
def leased(lock: Lock, title: str, stop: Stop | None) -> Iterator[bool]:
    """Acquire the lease, and release it at the end of the block; yields False if it had to stop before.

    `title` says what its holder does, for the LockError that is raised if another process holds the lease.
    """
    leasing, acquired = Leasing(lock, title, stop), False
    while not acquired and not leasing.must_stop:
        acquired = lock.acquire(blocking_timeout=leasing.next_wait())
    raised = True
    try:
        yield acquired
        raised = False
    finally:
        if acquired and not leasing.is_copy:
            try:
                lock.release()
            except MessagingError as failure:
                leasing.handle_failed_release(failure, raised=raised)


@asynccontextmanager
async def aleased(lock: Lock, title: str, stop: Stop | None) -> AsyncIterator[bool]:
    """An async version of `leased`."""
    leasing, acquired = Leasing(lock, title, stop), False
    while not acquired and not leasing.must_stop:
        acquired = await lock.aacquire(blocking_timeout=leasing.next_wait())
    raised = True
    try:
        yield acquired
        raised = False
    finally:
        if acquired and not leasing.is_copy:
            try:
                await lock.arelease()
            except MessagingError as failure:
                leasing.handle_failed_release(failure, raised=raised)
