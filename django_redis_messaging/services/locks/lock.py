"""The public class of locks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, Self, TypeVar

from ...core.operations import Command, Steps, asynchronous, operation
from ...core.retry import deadline
from ...errors import LockError, MessagingError
from ..arguments import Duration, flag, milliseconds
from ..guarding import within_each_call
from ..renewing import AsyncRenewal, Renewal
from .steps import LockSteps

logger = logging.getLogger(__name__)

#: seconds; the deadline for leaving the queue after an interrupt
LEAVE_DEADLINE = 0.5

F = TypeVar("F", bound=Callable[..., Any])


class Lock(LockSteps):
    """A lock: one thread or task holds it at a time, across processes, until its release or lease ends.

    >>> with Lock("report") as lock:
    ...     "no other process runs this now"
    'no other process runs this now'

    `timeout` is the lease: the seconds after which the lock is free even without a release. With None it
    never expires: if a holder dies, the lock blocks all others until its `key` is deleted. `renew=True`
    extends the lease in the background, after each third of it, while the lock is held. `blocking_timeout`
    limits how long `acquire` waits.

    Waiting clients acquire the lock in the order of their arrival; one that dies while it waits delays the
    others by a second. The lock is not reentrant: a holder that acquires it again waits for its own
    release. A lock belongs to the thread, or the task of an event loop, that acquired it, unless
    `thread_local=False`.

    A lease may end while its holder still works (a long pause of the process, a failover that loses
    writes), so mutual exclusion can't be guaranteed. `fence` grows with each acquire: the protected
    resource should reject a smaller fence than it has seen.

    The semantics are those of redis-py's Lock. With `key` the lock uses this Redis key, and excludes
    redis-py's clients that use the same key; those don't queue, and don't increase the fence.
    """

    @property
    def fence(self) -> int:
        """The fence of the latest acquire of this thread or task, also after its release; 0 before the
        first. It is greater than that of every earlier acquire: the server time in µs, or more."""
        return self._holding.fence

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; returns False if it was not free in time.

        `blocking` and `blocking_timeout` default to the constructor's. A `token` that the caller passes
        must be unique.

        >>> Lock("backup").acquire(blocking=False)
        True

        Raises LimitExceeded if 10,000 clients are waiting; Unavailable; OutcomeUnknown: the lock may be held
        until the end of the lease.
        """
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            fence = self._take(attempt)
        except MessagingError:
            raise
        except BaseException:  # interrupted
            with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                self._give_back(attempt.token)
            raise
        return self._store(
            attempt.token,
            fence,
            lambda lock: Renewal(lambda: lock._keep(attempt.token), self._lease / 3000, self.name),
        )

    async def aacquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """An async version of `acquire`."""
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            fence = await self._atake(attempt)
        except (MessagingError, GeneratorExit):
            raise  # a closed coroutine can't await: its ticket in the queue expires
        except BaseException:  # cancelled
            with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                await self._agive_back(attempt.token)
            raise
        return self._store(
            attempt.token,
            fence,
            lambda lock: AsyncRenewal(lambda: lock._akeep(attempt.token), self._lease / 3000, self.name),
        )

    @operation
    def release(self) -> Steps[None]:
        """Release the lock; the first waiting client acquires it.

        Raises LockError if this thread or task has not acquired it, LockNotOwnedError if the lease had
        expired. After Unavailable or OutcomeUnknown, release it again, or let the lease expire.
        """
        holding = self._holding
        token = self._held_token(holding, "release")
        holding.end_renewal()
        released = yield from self._release(token)
        if holding.token == token:
            holding.token = None
        if not released:
            raise self._lease_lost("release")

    arelease = asynchronous(release)

    @operation
    def extend(self, additional_time: Duration, replace_ttl: bool = False) -> Steps[Literal[True]]:
        """Add `additional_time` to the lease; with `replace_ttl`, let the lease end after that time from now.

        Raises LockError if this thread or task has not acquired the lock, or it has no lease;
        LockNotOwnedError if the lease has expired.
        """
        mode = "replace" if flag(replace_ttl, "replace_ttl") else "add"
        ms = milliseconds(additional_time, "additional_time", minimum=1)
        token = self._leased_token("extend")
        if not (yield from self._extend(token, ms, mode)):
            raise self._lease_lost("extend")
        return True

    aextend = asynchronous(extend)

    @operation
    def reacquire(self) -> Steps[Literal[True]]:
        """Restart the lease with its full duration. Raises the same errors as `extend`."""
        token = self._leased_token("reacquire")
        if not (yield from self._extend(token, self._lease, "replace")):
            raise self._lease_lost("reacquire")
        return True

    areacquire = asynchronous(reacquire)

    @operation
    def locked(self) -> Steps[bool]:
        """Whether any client holds the lock.

        >>> Lock("nothing").locked()
        False
        """
        return bool((yield Command("EXISTS", self.key, reads=True)))

    alocked = asynchronous(locked)

    @operation
    def owned(self) -> Steps[bool]:
        """Whether this thread or task holds the lock."""
        token = self._holding.token
        return token is not None and (yield Command("GET", self.key, reads=True)) == token

    aowned = asynchronous(owned)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._not_acquired()
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.release()
        except LockError as error:
            self._handle_lost_lease(error)

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._not_acquired()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self.arelease()
        except LockError as error:
            self._handle_lost_lease(error)

    def __call__(self, function: F) -> F:
        """Decorate a function, or a coroutine function: it holds the lock while it runs.

        >>> @Lock("report")
        ... def report():
        ...     return "done"
        >>> report()
        'done'
        """
        return within_each_call(self, function)

    def _store(self, token: bytes, fence: int, renewal: Callable[[Self], Renewal | AsyncRenewal]) -> bool:
        """Store an acquired lock and start its renewal; returns whether it was acquired."""
        if fence:
            holding = self._holding
            holding.hold(token, fence)
            if self.renew:
                holding.renewal = renewal(self._without_holders())
                holding.renewal.start()
        return fence > 0

    def _handle_lost_lease(self, error: LockError) -> None:
        if self._raises:
            raise error
        logger.warning("%s", error)
