"""Semaphores: something that only so many may do at the same time, over all processes."""

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

from ..core.keys import SemaphoreKeys
from ..core.keys import name as checked
from ..core.operations import Listen, Script, Service, Steps, asynchronous, operation
from ..core.retry import deadline
from ..errors import MessagingError, SemaphoreError
from .arguments import Duration, flag, milliseconds, whole
from .guarding import within_each_call
from .owners import Owners
from .permits import Permit, Permits, SemaphoreInfo
from .renewing import AwaitingRenewal, Renewal

#: permits a semaphore can have: one script looks at them all
MOST = 10_000
#: ms for which a limit is known that nobody uses
LIFE = 30 * 86_400_000
#: seconds after which whoever waits looks again, though nothing woke it
LOOK = 0.4
#: ms for which whoever waits counts as alive: some looks
ALIVE = 1000
#: seconds that whoever was interrupted takes to leave, at most
LEAVING = 1.0

F = TypeVar("F", bound=Callable[..., Any])
_logger = logging.getLogger(__name__)


class Semaphore(Service):
    """`limit` permits under a name: who holds one goes on, who comes in excess waits in a line.

    >>> with Semaphore("exports", 3):
    ...     "at most three of these run at a time, wherever they run"
    'at most three of these run at a time, wherever they run'

    There are never more holders than the stored limit, whose leases run by the server's clock. `limit` is
    stored where none is yet, and kept until nobody has used the semaphore for 30 days; after that only
    `set_limit` changes it. Permits are given in the order of coming, so nobody overtakes those who wait; who
    is killed while waiting costs the others a second at most. A permit comes back when it is released, or
    `timeout` seconds after it was acquired or refreshed: its holder must be done by then, or refresh it.
    With `renew=True` that is done in the background, until it is released, or its thread or task has ended,
    or this object is gone, without which nobody could release it.

    One object may be shared. A permit belongs to the task of an event loop that acquired it, or to the thread
    where none runs, which alone can release it; it may hold several, of which the latest is released first.

    After the design of the fair semaphore in "Redis in Action", chapter 6, here one script a call and
    without client clocks. A failover to a replica that lags may forget permits: then there can be more
    holders than permits until the leases end.
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
        self._limit = whole(limit, "limit", least=1, most=MOST)
        self._lease = milliseconds(timeout, "timeout", least=1)
        self._renew = bool(flag(renew, "renew"))
        #: seconds between two renewals
        self._every = self._lease / 3000
        self._life = max(LIFE, 2 * self._lease)
        self._keys = SemaphoreKeys(self._prefix, name).all
        self._owners = Owners(functools.partial(Permits, name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._limit})"

    def acquire(self, blocking: bool = False, blocking_timeout: Duration | None = None) -> bool:
        """Take a permit, for `timeout` seconds; False where there is none for this caller.

        With `blocking` it waits in the line until there is one, or for `blocking_timeout` seconds. It is
        woken by whoever releases one. Who doesn't look for a second, because the process stands still,
        loses its place.

        >>> one, other = Semaphore("printer", 1), Semaphore("printer", 1)
        >>> one.acquire(), other.acquire(), other.acquire(blocking=True, blocking_timeout=0.01)
        (True, False, False)
        >>> one.release()

        Raises OutcomeUnknown when the reply was lost until the deadline: a permit that was granted then
        comes back when its lease ends.
        """
        seconds, token = _patience(blocking, blocking_timeout), os.urandom(8).hex()
        try:
            granted = self._acquire(token, seconds)
        except MessagingError:
            raise
        except BaseException:  # such as KeyboardInterrupt
            with suppress(MessagingError), deadline(LEAVING):
                self._leave(token)
            raise
        return self._held(
            token, granted, lambda keeper: Renewal(lambda: keeper._refresh([token]), self._every, self.name)
        )

    async def aacquire(self, blocking: bool = False, blocking_timeout: Duration | None = None) -> bool:
        """As `acquire`, for the task that runs; one that is cancelled leaves the line."""
        seconds, token = _patience(blocking, blocking_timeout), os.urandom(8).hex()
        try:
            granted = await self._aacquire(token, seconds)
        except (MessagingError, GeneratorExit):
            raise  # who is closed can't await: the place in the line ends by itself
        except BaseException:  # such as CancelledError
            with suppress(MessagingError), deadline(LEAVING):
                await self._aleave(token)
            raise
        return self._held(
            token,
            granted,
            lambda keeper: AwaitingRenewal(lambda: keeper._arefresh([token]), self._every, self.name),
        )

    def release(self) -> None:
        """Give back the permit that this thread or task acquired last; whoever is next is woken.

        >>> semaphore = Semaphore("printer", 1)
        >>> semaphore.acquire()
        True
        >>> semaphore.release()

        Raises SemaphoreError where it holds none, or the lease had ended. When Redis can't be reached, the
        permit comes back when its lease ends.
        """
        self._check(self._release(self._owners.now.pop()))

    async def arelease(self) -> None:
        """As `release`."""
        self._check(await self._arelease(self._owners.now.pop()))

    def refresh(self) -> bool:
        """Let the leases of all permits that this thread or task holds end `timeout` seconds from now.

        False where one of them had ended: then somebody else may have that permit.

        >>> with Semaphore("printer", 1) as semaphore:
        ...     semaphore.refresh()
        True

        Raises SemaphoreError where it holds none.
        """
        return self._refresh(self._owners.now.tokens)

    async def arefresh(self) -> bool:
        """As `refresh`."""
        return await self._arefresh(self._owners.now.tokens)

    @operation
    def set_limit(self, limit: int) -> Steps[None]:
        """Change how many permits there are, for everybody; 0 lets nobody in.

        Nobody loses a permit: where more are held, none is given until fewer are.

        >>> semaphore = Semaphore("printer", 1)
        >>> semaphore.set_limit(2)
        >>> semaphore.info()
        SemaphoreInfo(limit=2, held=0, waiting=0)
        """
        permits = whole(limit, "limit", least=0, most=MOST)
        yield Script("semaphore_limit", self._keys, [permits, self._life])

    aset_limit = asynchronous(set_limit)

    @operation
    def info(self) -> Steps[SemaphoreInfo]:
        """The limit, and how many hold a permit or wait for one.

        >>> Semaphore("printer", 3).info()
        SemaphoreInfo(limit=3, held=0, waiting=0)
        """
        holders, limit, _, waiting, _ = self._keys
        stored, held, queued = yield Script("semaphore_info", [holders, limit, waiting])
        return SemaphoreInfo(limit=self._limit if stored is None else int(stored), held=held, waiting=queued)

    ainfo = asynchronous(info)

    def _held(self, token: str, granted: bool, renewal: Callable[[Self], Renewal | AwaitingRenewal]) -> bool:
        """Note the permit, if it was granted, and begin to renew."""
        if granted:
            permit = Permit(token)
            self._owners.now.push(permit)
            if self._renew:
                permit.renewal = renewal(self._keeper())
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
            self._told(failure, error)

    async def __aenter__(self) -> Self:
        await self.aacquire(blocking=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.arelease()
        except MessagingError as failure:
            self._told(failure, error)

    def __call__(self, function: F) -> F:
        """Decorates a function, or a coroutine function, each call of which holds a permit."""
        return within_each_call(self, function)

    @operation
    def _acquire(self, token: str, seconds: float) -> Steps[bool]:
        words, ends = (token, self._lease, self._limit, self._life), monotonic() + seconds
        while True:
            # the last look leaves the line
            waits = ALIVE if monotonic() < ends else 0
            reply = yield Script("semaphore_acquire", self._keys, (*words, waits))
            if isinstance(reply, int):
                return bool(reply)
            ticket, look_in = reply
            pause = min(look_in / 1000, LOOK, ends - monotonic())
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
        reply = yield Script("semaphore_refresh", self._keys[:2], [self._lease, self._life, *tokens])
        return bool(reply)

    _arefresh = asynchronous(_refresh)

    def _keeper(self) -> Self:
        """What a renewal holds on to: not what keeps the permits, or they would be renewed for ever."""
        keeper = copy.copy(self)
        del keeper._owners
        return keeper

    def _check(self, kept: bool) -> None:
        if not kept:
            raise SemaphoreError(
                f"The lease ({self._lease / 1000:g} s) of a permit of the semaphore {self.name!r} had ended:"
                " somebody else may have had it meanwhile. Give a longer timeout, refresh(), or renew=True."
            )

    def _told(self, failure: MessagingError, error: BaseException | None) -> None:
        """What the body raised matters more than what the release does."""
        if error is None:
            raise failure
        _logger.warning("A permit of the semaphore %r was not released: %s", self.name, failure)


def _patience(blocking: bool, blocking_timeout: Duration | None) -> float:
    """Seconds to wait for a permit."""
    if blocking_timeout is None:
        return float("inf") if flag(blocking, "blocking") else 0.0
    if not flag(blocking, "blocking"):
        raise ValueError("blocking_timeout says how long to wait: give blocking=True with it.")
    return milliseconds(blocking_timeout, "blocking_timeout") / 1000
