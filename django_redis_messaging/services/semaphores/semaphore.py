"""The public class of semaphores."""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from ...core.keys import name as checked
from ...core.operations import Listen, Script, Service, Steps, asynchronous, operation
from ...core.retry import deadline
from ...errors import InvalidArgument, MessagingError, SemaphoreError
from ..arguments import Duration, flag, integer, milliseconds
from ..guarding import within_each_call
from ..owners import Owners
from ..renewing import AsyncRenewal, Renewal
from .keys import SemaphoreKeys
from .permits import Permit, Permits, SemaphoreInfo

#: maximum number of permits of a semaphore: a script may examine all of them
MAX_PERMITS = 10_000
#: ms for which the limit of an unused semaphore is kept
LIMIT_TTL = 30 * 86_400_000
#: seconds; the maximum time between two polls of a waiting client
POLL_INTERVAL = 0.4
#: ms for which a waiting client counts as alive after a poll: at least two polls
WAITER_TTL = 1000
#: seconds; the deadline for leaving the queue after an interrupt
LEAVE_DEADLINE = 1.0

F = TypeVar("F", bound=Callable[..., Any])
_logger = logging.getLogger(__name__)


class Semaphore(Service):
    """A semaphore with `limit` permits: a client that holds one proceeds, further clients wait in a queue.

    >>> with Semaphore("exports", 3):
    ...     "at most three of these run at a time, across processes"
    'at most three of these run at a time, across processes'

    The number of holders with a valid lease, by the server's clock, never exceeds the stored limit. The
    first use stores `limit`; after that only `set_limit` changes it, until the semaphore has not been used
    for 30 days. Permits are granted in the order of arrival; a client that is killed while it waits delays
    the others by a second at most. A permit is free again after its release, or `timeout` seconds after it
    was acquired or refreshed: its holder must finish or refresh it before. With `renew=True` it is
    refreshed in the background, until its release, the end of its thread or task, or the destruction of
    this object, after which nothing could release it.

    An object may be shared. A permit belongs to the task of an event loop, or to the thread, that acquired it
    and must release it there. A thread or task may hold several permits; the latest one is released first.

    The design follows the fair semaphore in "Redis in Action", chapter 6, but uses one script for each call
    and no client clocks. A failover to a lagging replica may lose permits: until the leases end, there can
    be more holders than permits.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        *,
        timeout: Duration = 10,
        renew: bool = False,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        self._limit = integer(limit, "limit", minimum=1, maximum=MAX_PERMITS)
        self._lease = milliseconds(timeout, "timeout", minimum=1)
        self._renew = bool(flag(renew, "renew"))
        #: seconds between two renewals
        self._renew_interval = self._lease / 3000
        self._limit_ttl = max(LIMIT_TTL, 2 * self._lease)
        self._keys = SemaphoreKeys(self._prefix, name).all
        self._owners = Owners(functools.partial(Permits, name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._limit})"

    def acquire(self, blocking: bool = False, blocking_timeout: Duration | None = None) -> bool:
        """Acquire a permit for `timeout` seconds; returns False if none was free for this caller.

        With `blocking` it waits in the queue for a permit, for `blocking_timeout` seconds at most. A release
        wakes it. If its process is suspended for more than a second while it waits, it loses its place.

        >>> one, other = Semaphore("printer", 1), Semaphore("printer", 1)
        >>> one.acquire(), other.acquire(), other.acquire(blocking=True, blocking_timeout=0.01)
        (True, False, False)
        >>> one.release()

        Raises OutcomeUnknown if no reply arrived before the deadline: a permit that was granted is free again
        when its lease ends.
        """
        seconds, token = _patience(blocking, blocking_timeout), os.urandom(8).hex()
        try:
            granted = self._acquire(token, seconds)
        except MessagingError:
            raise
        except BaseException:  # e.g. KeyboardInterrupt
            with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                self._leave(token)
            raise
        return self._store(
            token,
            granted,
            lambda copied: Renewal(lambda: copied._refresh([token]), self._renew_interval, self.name),
        )

    async def aacquire(self, blocking: bool = False, blocking_timeout: Duration | None = None) -> bool:
        """An async version of `acquire`; a task that is cancelled leaves the queue."""
        seconds, token = _patience(blocking, blocking_timeout), os.urandom(8).hex()
        try:
            granted = await self._aacquire(token, seconds)
        except (MessagingError, GeneratorExit):
            raise  # a closed coroutine can't await: its ticket in the queue expires
        except BaseException:  # e.g. CancelledError
            with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                await self._aleave(token)
            raise
        return self._store(
            token,
            granted,
            lambda copied: AsyncRenewal(lambda: copied._arefresh([token]), self._renew_interval, self.name),
        )

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

    def _store(self, token: str, granted: bool, renewal: Callable[[Self], Renewal | AsyncRenewal]) -> bool:
        """Store a granted permit and start its renewal; returns `granted`."""
        if granted:
            permit = Permit(token)
            self._owners.current.push(permit)
            if self._renew:
                permit.renewal = renewal(self._without_permits())
                permit.renewal.start()
        return granted

    def __enter__(self) -> Self:
        self.acquire(blocking=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except MessagingError as failure:
            self._handle_failed_release(failure, error)

    async def __aenter__(self) -> Self:
        await self.aacquire(blocking=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.arelease()
        except MessagingError as failure:
            self._handle_failed_release(failure, error)

    def __call__(self, function: F) -> F:
        """Decorate a function, or a coroutine function: each call holds a permit."""
        return within_each_call(self, function)

    @operation
    def _acquire(self, token: str, seconds: float) -> Steps[bool]:
        args, ends = (token, self._lease, self._limit, self._limit_ttl), monotonic() + seconds
        while True:
            # the last poll leaves the queue
            patience = WAITER_TTL if monotonic() < ends else 0
            reply = yield Script("semaphore_acquire", self._keys, (*args, patience))
            if isinstance(reply, int):
                return bool(reply)
            ticket, poll_in = reply
            pause = min(poll_in / 1000, POLL_INTERVAL, ends - monotonic())
            if pause > 0:
                yield Listen(self._keys[-1], int(ticket) - 1, seconds=pause)

    _aacquire = asynchronous(_acquire)

    @operation
    def _leave(self, token: str) -> Steps[None]:
        yield Script("semaphore_leave", self._keys, [token])

    _aleave = asynchronous(_leave)

    @operation
    def _release(self, token: str) -> Steps[bool]:
        reply = yield Script("semaphore_release", self._keys, [token])
        return bool(reply)

    _arelease = asynchronous(_release)

    @operation
    def _refresh(self, tokens: list[str]) -> Steps[bool]:
        reply = yield Script("semaphore_refresh", self._keys[:2], [self._lease, self._limit_ttl, *tokens])
        return bool(reply)

    _arefresh = asynchronous(_refresh)

    def _without_permits(self) -> Self:
        """A copy for the renewal. The renewal must not reference the permits: they end it when they are
        destroyed."""
        clone = copy.copy(self)
        del clone._owners
        return clone

    def _check(self, released: bool) -> None:
        if not released:
            raise SemaphoreError(
                f"The lease ({self._lease / 1000:g} s) of a permit of the semaphore {self.name!r} had "
                "expired: another client may have held it. Use a longer timeout, refresh() or renew=True."
            )

    def _handle_failed_release(self, failure: MessagingError, error: BaseException | None) -> None:
        """Raise the failure of a release, or log it if the block itself raised an error."""
        if error is None:
            raise failure
        _logger.warning("A permit of the semaphore %r was not released: %s", self.name, failure)


def _patience(blocking: bool, blocking_timeout: Duration | None) -> float:
    """Seconds to wait for a permit."""
    if blocking_timeout is None:
        return float("inf") if flag(blocking, "blocking") else 0.0
    if not flag(blocking, "blocking"):
        raise InvalidArgument("blocking_timeout needs blocking=True.")
    return milliseconds(blocking_timeout, "blocking_timeout") / 1000
