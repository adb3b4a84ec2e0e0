"""The public class of locks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from ...core.operations import Command, Script, Steps, asynchronous, operation
from ...core.retry import deadline
from ...errors import LockError, MessagingError
from ..arguments import Duration, flag, milliseconds
from ..guarding import within_each_call
from .steps import LockSteps, checked_token
from .values import LockInfo, parse_info

logger = logging.getLogger(__name__)

#: seconds; the deadline for leaving the queue after an interrupt
LEAVE_DEADLINE = 0.5
#: maximum number of waiting clients that `info` lists
MAX_LISTED = 100

F = TypeVar("F", bound=Callable[..., Any])


class Lock(LockSteps):
    """A lock: one thread or task holds it at a time, across processes, until its release or lease ends.

    >>> with Lock("report") as lock:
    ...     "no other process runs this now"
    'no other process runs this now'

    `timeout` is the lease: the seconds after which the lock is free even without a release. With None it
    never expires: if a holder dies, the lock blocks all others until its `key` is deleted. `renew=True`
    extends the lease in the background, after each third of it, while the lock is held. If the lease is
    lost all the same, `on_lost` is called with a LeaseLost, in a thread of its own. `blocking_timeout`
    limits how long `acquire` waits.

    Waiting clients acquire the lock in the order of their arrival; one that dies while it waits delays the
    others by a second. A lock belongs to the thread, or the task of an event loop, that acquired it, unless
    `thread_local=False`: then to all of the process, but not to a forked child. It is not reentrant: a
    holder that waits for its own lock gets a LockError at once.

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

        Raises LockError if it would wait although this thread or task holds the lock; LimitExceeded if
        10,000 clients are waiting; Unavailable; OutcomeUnknown: the lock may be held until the end of the
        lease.
        """
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            return self._store(attempt, self._take(attempt))
        except BaseException as error:  # also interrupts
            if self._forget(attempt, error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    self._give_back(attempt.token)
            raise

    async def aacquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """An async version of `acquire`."""
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            return self._store(attempt, await self._atake(attempt))
        except GeneratorExit:
            raise  # a closed coroutine can't await: its ticket in the queue expires
        except BaseException as error:  # also cancellation
            if self._forget(attempt, error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    await self._agive_back(attempt.token)
            raise

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
        """Add `additional_time` to the lease; with `replace_ttl`, let the lease end after that time from
        now.

        Raises LockError if this thread or task has not acquired the lock, or it has no lease;
        LockNotOwnedError if the lease has expired.
        """
        mode = "replace" if flag(replace_ttl, "replace_ttl") else "add"
        ms = milliseconds(additional_time, "additional_time", minimum=1)
        return (yield from self._extend("extend", ms, mode))

    aextend = asynchronous(extend)

    @operation
    def reacquire(self) -> Steps[Literal[True]]:
        """Restart the lease with its full duration. Raises the same errors as `extend`."""
        return (yield from self._extend("reacquire", self._lease, "replace"))

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

    @operation
    def info(self) -> Steps[LockInfo]:
        """The holder, its lease and fence, and the clients that wait; the first 100 of these by their
        tokens.

        >>> with Lock("report") as lock:
        ...     info = lock.info()
        >>> info.fence == lock.fence, info.waiting
        (True, 0)
        >>> lock.info().holder is None
        True
        """
        return parse_info((yield Script("lock_info", self._keys.reading, [MAX_LISTED])))

    ainfo = asynchronous(info)

    @operation
    def release_holder(self, holder: str) -> Steps[bool]:
        """Release the lock for another client, for example one that hangs; `holder` is its token, as in
        `info`. Returns False if that client doesn't hold the lock any more.

        >>> lock = Lock("stuck", timeout=None)
        >>> lock.acquire()
        True
        >>> lock.release_holder(lock.info().holder)
        True
        """
        # Neither the holder nor a repeat after a lost reply can recognize this release.
        args = (checked_token(holder), 0)
        return bool((yield Script("lock_release", self._keys.releasing, args, once=True)))

    arelease_holder = asynchronous(release_holder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

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
        """Decorate a function, or a coroutine function: it holds the lock while it runs.

        >>> @Lock("report")
        ... def report():
        ...     return "done"
        >>> report()
        'done'
        """
        return within_each_call(self, function)

    def _handle_failed_release(self, failure: MessagingError, error: BaseException | None) -> None:
        """Raise the failure of a release, or log it if the block itself raised an error."""
        if error is None and (self._raises or not isinstance(failure, LockError)):
            raise failure
        logger.warning("Lock %r was not released: %s", self.name, failure)
