"""The public class of semaphores."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from ...core.operations import Script, Steps, asynchronous, operation
from ...core.retry import deadline
from ...errors import MessagingError
from ..arguments import Duration, count, integer
from ..guarding import within_each_call
from ..owners import new_token
from .permits import Permit
from .steps import MAX_PERMITS, SemaphoreSteps
from .values import SemaphoreHolder, SemaphoreInfo, SemaphoreWaiter, parse_pairs

#: seconds; the deadline for leaving the queue after an interrupt
LEAVE_DEADLINE = 1.0
#: maximum number of holders or waiting clients in a list
MAX_LISTED = 500

F = TypeVar("F", bound=Callable[..., Any])
_logger = logging.getLogger(__name__)


class Semaphore(SemaphoreSteps):
    """A semaphore with `limit` permits: a client that holds one proceeds, further clients are refused or
    wait.

    >>> with Semaphore("exports", 3):
    ...     "at most three of these run at a time, across processes"
    'at most three of these run at a time, across processes'

    The number of holders with a valid lease, by the server's clock, never exceeds the stored limit. The
    first use stores `limit`; after that only `set_limit` changes it, until the semaphore has not been used
    for 30 days.

    By default, `acquire` and `with` don't wait: if no permit is free, `acquire` returns False and `with`
    raises SemaphoreError. With `blocking=True` they wait in a queue, for `blocking_timeout` seconds at
    most. Permits are granted in the order of arrival; a client that is killed while it waits delays the
    others by a second at most.

    A permit is free again after its release, or `timeout` seconds after it was acquired or refreshed: its
    holder must finish or refresh it before. With `renew=True` it is refreshed in the background, until its
    release, the end of its thread or task, or the destruction of this object, after which nothing could
    release it. If its lease is lost all the same, `on_lost` is called with a LeaseLost, in a thread of its
    own.

    An object may be shared. A permit belongs to the task of an event loop, or to the thread, that acquired
    it and must release it there. A thread or task may hold several permits; the latest one is released
    first.

    The design follows the fair semaphore in "Redis in Action", chapter 6, but uses one script for each call
    and no client clocks. A failover to a lagging replica may lose permits: until the leases end, there can
    be more holders than permits.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._limit})"

    def acquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Acquire a permit for `timeout` seconds; returns False if none was free for this caller.

        With `blocking` it waits in the queue for a permit, for `blocking_timeout` seconds at most. A
        release wakes it. If its process is suspended for more than a second while it waits, it loses its
        place. Both default to the constructor's.

        >>> one, other = Semaphore("printer", 1), Semaphore("printer", 1)
        >>> one.acquire(), other.acquire(), other.acquire(blocking=True, blocking_timeout=0.01)
        (True, False, False)
        >>> one.release()

        Raises OutcomeUnknown if no reply arrived before the deadline: a permit that was granted is free
        again when its lease ends.
        """
        seconds, permit = self._seconds_to_wait(blocking, blocking_timeout), Permit(new_token())
        try:
            return self._store(permit, self._acquire(permit, seconds))
        except BaseException as error:  # also interrupts
            if self._forget(permit.token, seconds, error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    self._leave(permit.token)
            raise

    async def aacquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """An async version of `acquire`; a task that is cancelled leaves the queue."""
        seconds, permit = self._seconds_to_wait(blocking, blocking_timeout), Permit(new_token())
        try:
            return self._store(permit, await self._aacquire(permit, seconds))
        except GeneratorExit:
            raise  # a closed coroutine can't await: its ticket in the queue expires
        except BaseException as error:  # also cancellation
            if self._forget(permit.token, seconds, error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    await self._aleave(permit.token)
            raise

    def release(self) -> None:
        """Release the latest permit of this thread or task; the next waiting client is woken.

        >>> semaphore = Semaphore("printer", 1)
        >>> semaphore.acquire()
        True
        >>> semaphore.release()

        Raises SemaphoreError if it holds none, or the lease had expired. If Redis can't be reached, the
        permit is free again when its lease ends.
        """
        self._check(self._release(self._owners.current.pop()))

    async def arelease(self) -> None:
        """An async version of `release`."""
        self._check(await self._arelease(self._owners.current.pop()))

    def refresh(self) -> bool:
        """Extend the leases of all permits of this thread or task to `timeout` seconds from now.

        Returns False if one of them had expired: another client may hold that permit.

        >>> with Semaphore("printer", 1) as semaphore:
        ...     semaphore.refresh()
        True

        Raises SemaphoreError if it holds none.
        """
        return self._refresh(self._owners.current.tokens)

    async def arefresh(self) -> bool:
        """An async version of `refresh`."""
        return await self._arefresh(self._owners.current.tokens)

    @operation
    def set_limit(self, limit: int) -> Steps[None]:
        """Set the number of permits for all clients; with 0 none is granted.

        Holders keep their permits: if more are held than the new limit, none is granted until fewer are.

        >>> semaphore = Semaphore("printer", 1)
        >>> semaphore.set_limit(2)
        >>> semaphore.info()
        SemaphoreInfo(limit=2, held=0, waiting=0)
        """
        permits = integer(limit, "limit", minimum=0, maximum=MAX_PERMITS)
        yield Script("semaphore_limit", self._keys, [permits, self._limit_ttl])

    aset_limit = asynchronous(set_limit)

    @operation
    def info(self) -> Steps[SemaphoreInfo]:
        """The limit, and the numbers of holders and of waiting clients.

        >>> Semaphore("printer", 3).info()
        SemaphoreInfo(limit=3, held=0, waiting=0)
        """
        holders, limit, _, waiting, _ = self._keys
        stored, held, queued = yield Script("semaphore_info", [holders, limit, waiting])
        return SemaphoreInfo(limit=self._limit if stored is None else int(stored), held=held, waiting=queued)

    ainfo = asynchronous(info)

    @operation
    def holders(self, *, limit: int = 100) -> Steps[list[SemaphoreHolder]]:
        """Up to `limit` (at most 500) held permits, those whose leases end first at the beginning.

        >>> with Semaphore("printer", 3) as semaphore:
        ...     len(semaphore.holders())
        1
        """
        holders, *_ = self._keys
        reply = yield Script("semaphore_holders", [holders], [count(limit, "limit", maximum=MAX_LISTED)])
        return [SemaphoreHolder(token=token, expires_at=moment) for token, moment in parse_pairs(reply)]

    aholders = asynchronous(holders)

    @operation
    def waiting(self, *, limit: int = 100) -> Steps[list[SemaphoreWaiter]]:
        """Up to `limit` (at most 500) waiting clients, in the order in which they will acquire permits.

        >>> Semaphore("printer", 3).waiting()
        []
        """
        _, _, queue, waiting, _ = self._keys
        size = count(limit, "limit", maximum=MAX_LISTED)
        reply = yield Script("semaphore_waiting", [queue, waiting], [size])
        return [SemaphoreWaiter(token=token, since=moment) for token, moment in parse_pairs(reply)]

    awaiting = asynchronous(waiting)

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except MessagingError as failure:
            self._handle_failed_release(failure, error)

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._not_acquired()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.arelease()
        except MessagingError as failure:
            self._handle_failed_release(failure, error)

    def __call__(self, function: F) -> F:
        """Decorate a function, or a coroutine function: each call holds a permit, as in a `with` block."""
        return within_each_call(self, function)

    def _handle_failed_release(self, failure: MessagingError, error: BaseException | None) -> None:
        """Raise the failure of a release, or log it if the block itself raised an error."""
        if error is None:
            raise failure
        _logger.warning("A permit of the semaphore %r was not released: %s", self.name, failure)
