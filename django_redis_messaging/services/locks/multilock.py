"""Several locks that one thread or task holds at once."""

from __future__ import annotations

import logging
import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Literal

from ...core import encoding
from ...core.operations import Gather, InOrder, Listen, Script, Steps, asynchronous, operation
from ...core.outcome import deadline
from ...errors import InvalidArgument, LeaseLost, LimitExceeded, LockError, LockNotOwnedError, MessagingError
from ..common.arguments import Duration, flag, milliseconds, sequence
from ..common.leases import Leasable, new_token
from .lock import LEAVE_DEADLINE, MAX_WAITING, RELEASE_TTL, Attempt, Lock, is_fence

logger = logging.getLogger(__name__)

#: maximum number of locks that are held together
MAX_LOCKS = 100
#: part of the lease after which a client polls at the latest while it holds some of the locks: a poll extends
#: their leases
KEPT = 1 / 3


class MultiLock(Leasable):
    """Several locks at once: all of them or none. They are the locks `Lock(name)` of these names.

    >>> with MultiLock(["account:7", "account:3"]) as both:
    ...     Lock("account:3").acquire(blocking=False), sorted(both.fences)
    (False, ['account:3', 'account:7'])

    All are acquired in the order of their names, so two of them can't wait for each other, whatever names
    they have in common. It waits in the queue of the first busy one, as `Lock` does, and holds those before
    it meanwhile. When it has all of them, each has the full lease. Without waiting, acquiring and releasing
    take one round trip each; on a Cluster, acquiring takes one for each name.

    `fences` has the fence of each name. `timeout`, at least 1 ms, is the lease of each lock, and `renew=True`
    extends each. If one of them is lost all the same, `on_lost` is called, once, and the others are kept
    until the release. The other options are those of `Lock`.

    It is not reentrant: a thread or task that waits for a name which it holds already, by this object, or
    with renew=True by any `Lock` or `MultiLock`, gets a LockError. Two that wait for each other can result
    from holding one `Lock` or `MultiLock` while waiting for another one.

    The order of acquiring prevents deadlocks as in Havender's ordered resource allocation (1968).
    """

    def __init__(
        self,
        names: Iterable[str],
        *,
        timeout: Duration = 10,
        blocking: bool = True,
        blocking_timeout: Duration | None = None,
        renew: bool = False,
        on_lost: Callable[[LeaseLost], object] | None = None,
        raise_on_release_error: bool = True,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self._lease = milliseconds(timeout, "timeout", minimum=1)
        self._on_lost = on_lost
        self._raises = flag(raise_on_release_error, "raise_on_release_error")
        #: the names in the order in which they are acquired
        self.names = _checked_names(names)
        self._locks = [
            Lock(
                name,
                timeout=timeout,
                blocking=blocking,
                blocking_timeout=blocking_timeout,
                renew=renew,
                on_lost=on_lost,
                using=using,
            )
            for name in self.names
        ]

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each name, of the latest acquire of this thread or task; 0 before the first."""
        return {lock.name: lock.fence for lock in self._locks}

    def acquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Acquire all locks; returns False, and holds none, if they were not free in time.

        >>> MultiLock(["stock", "orders"]).acquire(blocking=False)
        True

        Raises the same errors as `Lock.acquire`, and holds none after them; after OutcomeUnknown, some may be
        held until the end of the lease.
        """
        attempts = self._attempts(blocking, blocking_timeout)
        try:
            return self._store(attempts, self._acquire(attempts))
        except BaseException:  # also interrupts
            self._forget(attempts)
            with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                self._leave(attempts[0].token)
            raise

    async def aacquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """An async version of `acquire`."""
        attempts = self._attempts(blocking, blocking_timeout)
        try:
            return self._store(attempts, await self._aacquire(attempts))
        except GeneratorExit:
            raise  # a closed coroutine can't await: its ticket and leases expire
        except BaseException:  # also cancellation
            self._forget(attempts)
            with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                await self._aleave(attempts[0].token)
            raise

    @operation
    def release(self) -> Steps[None]:
        """Release all locks; the first waiting client of each acquires it.

        Raises LockError if this thread or task has not acquired them; LockNotOwnedError if the lease of some
        had expired: it names them, and the others are released. After Unavailable or OutcomeUnknown, release
        them again, or let the leases expire.
        """
        token = self._held_token("release")
        holdings = [lock._holding for lock in self._locks]
        for holding in holdings:
            holding.end_renewal()
        replies = yield from self._release(self._locks, token)
        for holding in holdings:
            holding.forget(token)
        self._check(replies, "release")

    arelease = asynchronous(release)

    @operation
    def extend(self, additional_time: Duration, replace_ttl: bool = False) -> Steps[Literal[True]]:
        """Add `additional_time` to each lease; with `replace_ttl`, let each end after that time from now.

        Raises LockError if this thread or task has not acquired the locks; LockNotOwnedError if the lease of
        some has expired: it names them, and the others are extended.
        """
        mode = "replace" if flag(replace_ttl, "replace_ttl") else "add"
        ms = milliseconds(additional_time, "additional_time", minimum=1)
        return (yield from self._extend("extend", ms, mode))

    aextend = asynchronous(extend)

    @operation
    def reacquire(self) -> Steps[Literal[True]]:
        """Restart each lease with its full duration. Raises the same errors as `extend`."""
        return (yield from self._extend("reacquire", self._lease, "replace"))

    areacquire = asynchronous(reacquire)

    @operation
    def owned(self) -> Steps[bool]:
        """Whether this thread or task holds all of the locks."""
        token = self._locks[0]._holding.token
        if token is None:
            return False
        return all(holder == token for holder in (yield Gather([lock.key for lock in self._locks])))

    aowned = asynchronous(owned)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_shown(self.names)})"

    def _attempts(self, blocking: bool | None, blocking_timeout: Duration | None) -> list[Attempt]:
        """An attempt at each lock, with one token."""
        token = new_token()
        attempts = [lock._attempt(blocking, blocking_timeout, token) for lock in self._locks]
        on_lost = self._on_lost and _once(self._on_lost)
        for attempt in attempts:
            attempt.on_lost = on_lost
        return attempts

    def _store(self, attempts: Sequence[Attempt], fences: Sequence[int]) -> bool:
        """Store the acquired locks and start their renewal; returns whether they were acquired."""
        for lock, attempt, fence in zip(self._locks, attempts, fences, strict=False):
            lock._store(attempt, fence)
        return bool(fences)

    def _forget(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            attempt.holding.forget(attempt.token)

    @operation
    def _acquire(self, attempts: list[Attempt]) -> Steps[list[int]]:
        """Acquire all locks; returns their fences, or an empty list."""
        first, number, waited = attempts[0], 1, 0
        stream, since, is_woken, is_repeat = "", 0, False, False
        while True:
            is_last = first.wait == 0 or monotonic() >= first.ends
            reply = yield from self._poll(attempts, number, 0 if is_last else MAX_WAITING, waited)
            held = next((at for at, item in enumerate(reply) if not is_fence(item)), len(reply))
            if held == len(self._locks):
                if is_repeat or monotonic() - first.sent_at <= self._lease / 1000 * KEPT:
                    return reply
                # the reply was late, as after retries of one call: the other leases began with their calls
                waited, is_repeat = 1, True
                continue
            if held == len(reply):  # on a Cluster: all that were sent
                number = held + 1
                continue
            kept = 0 if is_last else held + 1
            rest = [lock for lock, item in zip(self._locks[kept:], reply[kept:], strict=False) if item]
            if rest:  # on a Cluster
                yield from self._release(rest, first.token)
            if is_last:
                return []
            place, pause, now, _ = reply[held]
            before, stream = stream, self._locks[held]._keys.wake(place)
            # as before, so that a read that is pending can be taken over
            since = now if is_woken or stream != before else since
            number, waited, is_repeat = held + 1, 1, False
            seconds = min(pause / 1000, first.ends - monotonic())
            seconds = min(seconds, self._lease / 1000 * KEPT) if held else seconds
            listen = Listen(stream, since, seconds=seconds, match=first.token)
            is_woken = seconds > 0 and (yield listen) is not None

    _aacquire = asynchronous(_acquire)

    def _poll(
        self, attempts: Sequence[Attempt], number: int, max_waiting: int, waited: int
    ) -> Steps[list[Any]]:
        """Acquire the locks, on a Cluster the first `number`; returns what acquire_all.lua returns."""
        resources = [
            (lock._keys.with_ring, [attempt.held])
            for lock, attempt in zip(self._locks, attempts, strict=True)
        ]
        args = (attempts[0].token, self._lease, max_waiting, waited)
        step, began = InOrder("locks/acquire_all", resources, args, number=number), monotonic()
        reply: list[Any] = yield step
        sent_at = step.sent_since(began)
        for lock, attempt, item in zip(self._locks, attempts, reply, strict=False):
            attempt.sent_at = sent_at
            if item is None:
                raise lock._not_reentrant()
            if isinstance(item, int) and item < 0:
                raise LimitExceeded("waiting clients of a lock", limit=MAX_WAITING, actual=1 - item)
        return reply

    @operation
    def _leave(self, token: bytes) -> Steps[None]:
        """Release the locks that the token holds, and leave the queues."""
        yield from self._release(self._locks, token)

    _aleave = asynchronous(_leave)

    def _release(self, locks: Iterable[Lock], token: bytes) -> Steps[list[int]]:
        args = (token, RELEASE_TTL)
        replies: list[int] = yield [Script("locks/release", lock._keys.with_ring, args) for lock in locks]
        return replies

    def _extend(self, verb: str, ms: int, mode: str) -> Steps[Literal[True]]:
        """Extend each lease. `verb` is for the message of an error."""
        args, began = (self._held_token(verb), ms, mode, os.urandom(8).hex()), monotonic()
        scripts = [Script("locks/extend", lock._keys.all, args) for lock in self._locks]
        replies: list[int] = yield scripts
        for lock, script, remaining in zip(self._locks, scripts, replies, strict=True):
            renewal = lock._holding.renewal
            if remaining and renewal is not None:
                renewal.change_end(script.sent_since(began) + remaining / 1000)
        self._check(replies, verb)
        return True

    def _held_token(self, verb: str) -> bytes:
        token = self._locks[0]._holding.token
        if token is None:
            raise LockError(f"{self!r} can't {verb}: this thread or task hasn't acquired it, or released it.")
        return token

    def _check(self, replies: Sequence[int], verb: str) -> None:
        """Raise an error if a lease was lost, according to the replies of the locks."""
        lost = [lock.name for lock, reply in zip(self._locks, replies, strict=True) if not reply]
        if lost:
            raise LockNotOwnedError(
                f"{self!r} can't {verb} {_shown(lost)}: the lease had expired, so another "
                "client may have held it since. Use a longer timeout, or renew=True.",
                lock_name=lost[0],
            )

    def _not_acquired(self) -> LockError:
        return LockError(f"{self!r} could not be acquired in time.")

    def _must_raise(self, failure: MessagingError) -> bool:
        return bool(self._raises) or not isinstance(failure, LockError)

    def _log_failed_release(self, failure: MessagingError) -> None:
        logger.warning("%r was not released: %s", self, failure)


def _checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names in order, each once."""
    found = sorted({encoding.name(one, "name") for one in sequence(names, "names")})
    if not 1 <= len(found) <= MAX_LOCKS:
        raise InvalidArgument(f"names must have between 1 and {MAX_LOCKS} different names, not {len(found)}.")
    return tuple(found)


def _shown(names: Iterable[str]) -> str:
    """The first few names."""
    return reprlib.repr(list(names))


def _once(on_lost: Callable[[LeaseLost], object]) -> Callable[[LeaseLost], object]:
    """A callback that reports only the first of several losses."""
    first = threading.Lock()

    def report(lost: LeaseLost) -> None:
        if first.acquire(blocking=False):
            on_lost(lost)

    return report
