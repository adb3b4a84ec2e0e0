"""The lock."""

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
from ..renewing import AwaitingRenewal, Renewal
from .steps import LockSteps

logger = logging.getLogger(__name__)

#: seconds that whoever was interrupted takes to leave the line, at most
LEAVING = 0.5

F = TypeVar("F", bound=Callable[..., Any])


class Lock(LockSteps):
    """Held by one thread or task at a time, over all processes, until it is released or its lease ends.

    >>> with Lock("report") as lock:
    ...     "nobody else does it now"
    'nobody else does it now'

    `timeout` is the lease: seconds after which the lock is free though nobody released it; None for ever:
    whoever dies holding it then blocks all others until somebody deletes `key`. `renew=True` extends the
    lease each third of it while the lock is held. `blocking_timeout` is for how long `acquire` waits.

    Who waits gets it in the order of coming; who dies waiting costs the others a second. The lock is not
    reentrant: who has it and acquires it again waits for itself. What was acquired belongs to that thread,
    or to that task of an event loop, unless `thread_local=False`.

    A lease may end while its holder still works (a long pause of the process, a failover that loses writes),
    so nothing makes mutual exclusion certain: `fence` grows with each grant, and what is protected should
    refuse a smaller one than it has seen.

    The semantics are those of redis-py's Lock. With `key` the lock has this very key in Redis, and is shared
    with redis-py's clients that use it; those don't wait in the line, nor count up the fence.
    """

    @property
    def fence(self) -> int:
        """Greater than that of every grant before: µs of the server, or more. It is that of the latest
        acquire of this thread or task, also after release; 0 before the first."""
        return self._own.fence

    def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Get the lock; False where it was not to be had in time.

        `blocking` and `blocking_timeout` are the constructor's unless given. A `token` of one's own must not
        be used twice.

        >>> Lock("backup").acquire(blocking=False)
        True

        Raises LimitExceeded where 10,000 wait already; Unavailable; OutcomeUnknown: then it may be held until
        the lease ends.
        """
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            fence = self._take(attempt)
        except MessagingError:
            raise
        except BaseException:  # interrupted
            with suppress(MessagingError), deadline(LEAVING):
                self._give_back(attempt.token)
            raise
        return self._held(
            attempt.token,
            fence,
            lambda keeper: Renewal(lambda: keeper._keep(attempt.token), self._lease / 3000, self.name),
        )

    async def aacquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: Duration | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """As `acquire`."""
        attempt = self._attempt(blocking, blocking_timeout, token)
        try:
            fence = await self._atake(attempt)
        except (MessagingError, GeneratorExit):
            raise  # who is closed can't await: the place in the line ends by itself
        except BaseException:  # cancelled
            with suppress(MessagingError), deadline(LEAVING):
                await self._agive_back(attempt.token)
            raise
        return self._held(
            attempt.token,
            fence,
            lambda keeper: AwaitingRenewal(
                lambda: keeper._akeep(attempt.token), self._lease / 3000, self.name
            ),
        )

    @operation
    def release(self) -> Steps[None]:
        """Give it back: the first who waits has it next.

        Raises LockError where this thread or task has not acquired it, LockNotOwnedError where the lease had
        ended. After Unavailable and OutcomeUnknown, release again to make sure, or let the lease end.
        """
        own = self._own
        token = self._token(own, "release")
        own.end_renewal()
        ours = yield from self._returned(token)
        if own.token == token:
            own.token = None
        if not ours:
            raise self._lost("release")

    arelease = asynchronous(release)

    @operation
    def extend(self, additional_time: Duration, replace_ttl: bool = False) -> Steps[Literal[True]]:
        """Let the lease end so much later; with `replace_ttl`, so much later than now.

        Raises LockError where this thread or task has not acquired it, or it has no lease; LockNotOwnedError
        where the lease has ended.
        """
        how = "replace" if flag(replace_ttl, "replace_ttl") else "add"
        ms = milliseconds(additional_time, "additional_time", least=1)
        token = self._leased_token("extend")
        if not (yield from self._extended(token, ms, how)):
            raise self._lost("extend")
        return True

    aextend = asynchronous(extend)

    @operation
    def reacquire(self) -> Steps[Literal[True]]:
        """Let the whole lease begin anew. Raises as `extend`."""
        token = self._leased_token("reacquire")
        if not (yield from self._extended(token, self._lease, "replace")):
            raise self._lost("reacquire")
        return True

    areacquire = asynchronous(reacquire)

    @operation
    def locked(self) -> Steps[bool]:
        """Whether anybody has it.

        >>> Lock("nothing").locked()
        False
        """
        return bool((yield Command("EXISTS", self.key, reads=True)))

    alocked = asynchronous(locked)

    @operation
    def owned(self) -> Steps[bool]:
        """Whether this thread or task has it."""
        token = self._own.token
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
            self._released_too_late(error)

    async def __aenter__(self) -> Self:
        if not await self.aacquire():
            raise self._not_acquired()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self.arelease()
        except LockError as error:
            self._released_too_late(error)

    def __call__(self, function: F) -> F:
        """As a decorator: the function, or coroutine function, holds the lock while it runs.

        >>> @Lock("report")
        ... def report():
        ...     return "done"
        >>> report()
        'done'
        """
        return within_each_call(self, function)

    def _held(self, token: bytes, fence: int, renewal: Callable[[Self], Renewal | AwaitingRenewal]) -> bool:
        """Note the fence that was granted, if one was, and begin to renew."""
        if fence:
            own = self._own
            own.hold(token, fence)
            if self.renew:
                own.renewal = renewal(self._keeper())
                own.renewal.start()
        return fence > 0

    def _released_too_late(self, error: LockError) -> None:
        if self._raises:
            raise error
        logger.warning("%s", error)
