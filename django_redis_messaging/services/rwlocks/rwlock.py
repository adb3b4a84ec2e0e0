"""Read-write locks: any number of threads or tasks, of all processes, read at a time, or one writes."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from ...core.commands import Argument, batched
from ...core.encoding import name as checked
from ...core.encoding import tag
from ...core.operations import Clock, Command, Listen, Script, Service, Steps, asynchronous, operation
from ...core.outcome import deadline
from ...errors import (
    LeaseLost,
    LimitExceeded,
    LockError,
    LockNotOwnedError,
    MessagingError,
)
from ..common.arguments import Duration, callback, count, flag, milliseconds, to_datetime
from ..common.leases import Leasable, Owners, RenewedLease, new_token
from ..common.waiters import waiters
from ..locks.lock import Attempt, Holding, seconds_to_wait

logger = logging.getLogger(__name__)

#: maximum number of clients that read at the same time
MAX_READERS = 10_000
#: maximum number of clients that wait for one lock
MAX_WAITING = 10_000
#: seconds; the maximum time between two polls of a waiting client
POLL_INTERVAL = 0.4
#: ms for which a waiting client counts as alive after a poll: at least two polls
WAITER_TTL = 1000
#: seconds; the deadline for leaving the queue after an interrupt
LEAVE_DEADLINE = 1.0
#: maximum number of holders that `info` lists
MAX_LISTED = 100
#: maximum number of waiting clients in a list
MAX_QUEUE = 500


class ReadWriteLockKeys:
    """The keys of one read-write lock, in one slot."""

    def __init__(self, prefix: str, name: str) -> None:
        self.tag = tag(prefix, "rwlock", name)

    @functools.cached_property
    def holders(self) -> str:
        """ZSET token → µs at which the lease of this holder ends; negative if it was released. Expires at
        least a day after the last lease. Grants remove the ended ones and all but the
        latest thousand released ones, up to 500 of each at a time."""
        return self.tag + ":holders"

    @functools.cached_property
    def grants(self) -> str:
        """HASH latest → the latest fence; writer → the token of the latest writer; token → the fence of each
        holder. Expires with the holders."""
        return self.tag + ":grants"

    @functools.cached_property
    def readers(self) -> str:
        """ZSET token → ticket of the clients that wait to read. Expires when none of them polls any more."""
        return self.tag + ":readers"

    @functools.cached_property
    def writers(self) -> str:
        """ZSET token → ticket of the clients that wait to write. Expires when none of them polls any more."""
        return self.tag + ":writers"

    @functools.cached_property
    def alive(self) -> str:
        """ZSET token → µs until which a waiting client counts as alive. Expires with the queue."""
        return self.tag + ":alive"

    @functools.cached_property
    def gate(self) -> str:
        """STREAM of one entry, whose id is a ticket: wakes the waiting clients with this ticket or a lower
        one. Expires a minute after it was opened."""
        return self.tag + ":gate"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys in the order of all scripts, see rwlock_at() in _rwlocks.lua."""
        return [self.holders, self.grants, self.readers, self.writers, self.alive, self.gate]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadWriteLockHolder:
    """A client that reads or writes."""

    token: str
    """Identifies the holder: host, process id and a random part."""
    expires_at: datetime
    """When its lease ends."""
    acquired_at: datetime
    """When it acquired the lock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadWriteLockWaiter:
    """A client that waits to read or to write."""

    token: str
    """Identifies the client: host, process id and a random part."""
    since: datetime
    """When it began to wait."""
    writes: bool
    """Whether it waits to write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadWriteLockInfo:
    """The state of a read-write lock at one moment."""

    read_at: datetime
    """The moment, by the server's clock."""
    writer: str | None
    """The token of the client that writes; None if none does."""
    readers: int
    """The number of clients that read."""
    waiting: int
    """The number of clients that wait to read or to write."""
    fence: int
    """The fence of the latest grant; 0 if there was none for a day."""
    holders: tuple[ReadWriteLockHolder, ...]
    """The writer, or up to 100 readers; those whose leases end last at the beginning."""


class Options(NamedTuple):
    """The arguments of a read-write lock."""

    #: ms
    lease: int
    #: whether acquire waits by default, and for how many seconds at most
    waits: bool
    wait: float | None
    renew: bool
    on_lost: Callable[[LeaseLost], object] | None


class Side(Leasable):
    """The lock of the readers, or that of the writers, of a read-write lock."""

    #: what its holder does
    _verb: ClassVar[str]
    #: whether it is exclusive
    _writes: ClassVar[bool]

    def __init__(self, lock: ReadWriteLock, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.name, self._keys, self._options = lock.name, lock._keys, lock._options
        #: what each thread and task holds of this side, and of the other one
        self._owners, self._other_owners = reversed(lock._owners) if self._writes else lock._owners

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.name!r}).{self._verb}"

    @property
    def fence(self) -> int:
        """The fence of the latest acquire of this side by this thread or task, also after its release; 0
        before the first. It is greater than that of every earlier acquire of either side: the server time in
        µs, or more."""
        return self._holding.fence

    def acquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """Acquire it for `timeout` seconds; returns False if it was not free for this caller in time.

        `blocking` and `blocking_timeout` default to the constructor's.

        >>> one, other = ReadWriteLock("prices"), ReadWriteLock("prices")
        >>> one.read.acquire(), other.read.acquire(), one.read.fence < other.read.fence
        (True, True, True)
        >>> ReadWriteLock("prices").write.acquire(blocking=False)
        False

        Raises LockError if this thread or task reads or writes already, by this object; LimitExceeded if
        10,000 clients read or wait; Unavailable; OutcomeUnknown: it may be held until the end of the lease.
        """
        attempt = self._attempt(blocking, blocking_timeout)
        try:
            return self._store(attempt, self._acquire(attempt))
        except BaseException as error:  # also interrupts
            if attempt.forget(error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    self._leave(attempt.token)
            raise

    async def aacquire(self, blocking: bool | None = None, blocking_timeout: Duration | None = None) -> bool:
        """An async version of `acquire`; a task that is cancelled leaves the queue."""
        attempt = self._attempt(blocking, blocking_timeout)
        try:
            return self._store(attempt, await self._aacquire(attempt))
        except GeneratorExit:
            raise  # a closed coroutine can't await: its ticket in the queue expires
        except BaseException as error:  # also cancellation
            if attempt.forget(error):
                with suppress(MessagingError), deadline(LEAVE_DEADLINE):
                    await self._aleave(attempt.token)
            raise

    @operation
    def release(self) -> Steps[None]:
        """Release it; the next waiting clients are woken.

        Raises LockError if this thread or task has not acquired it, LockNotOwnedError if the lease had
        expired. After Unavailable or OutcomeUnknown, release it again, or let the lease expire.
        """
        holding = self._holding
        token = self._held_token(holding, "release")
        holding.end_renewal()
        released = yield from self._release(token)
        holding.forget(token)
        if not released:
            raise self._lease_lost("release")

    arelease = asynchronous(release)

    @operation
    def extend(self) -> Steps[None]:
        """Let the lease end `timeout` seconds from now.

        >>> with ReadWriteLock("prices").write as lock:
        ...     lock.extend()

        Raises LockError if this thread or task has not acquired it, LockNotOwnedError if the lease has
        expired.
        """
        holding = self._holding
        script, began = self._extension(self._held_token(holding, "extend")), monotonic()
        if not (yield script):
            raise self._lease_lost("extend")
        if holding.renewal is not None:
            holding.renewal.change_end(script.sent_since(began) + self._options.lease / 1000)

    aextend = asynchronous(extend)

    @operation
    def owned(self) -> Steps[bool]:
        """Whether this thread or task holds it.

        >>> lock = ReadWriteLock("prices")
        >>> with lock.read:
        ...     lock.read.owned(), lock.write.owned()
        (True, False)
        """
        token = self._holding.token
        if token is None:
            return False
        holders = self._keys.holders
        clock, ends = yield [Clock(holders), Command("ZSCORE", holders, token, reads=True)]
        return ends is not None and float(ends) > 1000 * Clock.milliseconds(clock)

    aowned = asynchronous(owned)

    @property
    def _holding(self) -> Holding:
        return self._owners.current

    def _attempt(self, blocking: bool | None, blocking_timeout: Duration | None) -> Attempt:
        waits = self._options.waits if blocking is None else flag(blocking, "blocking")
        wait = self._options.wait if blocking_timeout is None else seconds_to_wait(blocking_timeout)
        seconds = wait if waits else 0
        ends = math.inf if seconds is None else monotonic() + seconds
        holding = self._holding
        held = holding.token or self._other_owners.current.token or b""
        return Attempt(new_token().encode(), holding, seconds, held, ends)

    def _store(self, attempt: Attempt, fence: int) -> bool:
        """Store a grant and start its renewal; returns whether there is one."""
        if fence:
            self._other_owners.current.forget(attempt.held)  # its lease had ended
            renewal = self._renewal(attempt.token) if self._options.renew else None
            attempt.holding.hold(attempt, fence, renewal)
        return fence > 0

    def _renewal(self, token: bytes) -> RenewedLease:
        """The renewal must not reference the holders: they end it when they are destroyed."""
        lease, on_lost = self._options.lease / 1000, self._options.on_lost
        report = on_lost and functools.partial(_report_lost, on_lost, self.name, self._verb)
        return RenewedLease(self._using, self.name, lease, self._extension(token), report)

    def _extension(self, token: bytes) -> Script:
        return Script("rwlocks/extend", self._keys.all, (token, self._options.lease))

    @operation
    def _acquire(self, attempt: Attempt) -> Steps[int]:
        """Acquire it; returns the fence, or 0."""
        reply = yield from self._poll(attempt, waits=attempt.wait != 0)
        if isinstance(reply, int):
            return reply
        queue, token = waiters(self._using, self._keys.gate, POLL_INTERVAL), attempt.token
        others = list[bytes]()
        try:
            while not isinstance(reply, int):
                ticket, poll_in, gone = reply
                queue.polled(token, attempt.sent_at, gone, others)
                gate = Listen(self._keys.gate, int(ticket) - 1, seconds=min(poll_in / 1000, POLL_INTERVAL))
                yield from queue.wait(gate, token, attempt.ends)
                waits = monotonic() < attempt.ends  # the last poll leaves the queue
                others = queue.choose_others(token) if waits else []
                reply = yield from self._poll(attempt, others, waits=waits)
            return reply
        finally:
            queue.leave(token)

    _aacquire = asynchronous(_acquire)

    def _poll(self, attempt: Attempt, others: Sequence[bytes] = (), *, waits: bool) -> Steps[Any]:
        """Acquire it if possible; returns the fence, or 0, or how to wait."""
        args: list[Argument] = [
            attempt.token,
            int(self._writes),
            self._options.lease,
            attempt.held,
            WAITER_TTL,
            MAX_READERS,
            MAX_WAITING if waits else 0,
            *others,
        ]
        script, began = Script("rwlocks/acquire", self._keys.all, args), monotonic()
        reply = yield script
        attempt.sent_at = script.sent_since(began)
        if reply is None:
            raise self._not_reentrant()
        if reply == -1:
            raise LimitExceeded("readers of a read-write lock", limit=MAX_READERS, actual=MAX_READERS + 1)
        if reply == -2:
            raise LimitExceeded(
                "waiting clients of a read-write lock", limit=MAX_WAITING, actual=MAX_WAITING + 1
            )
        return reply

    @operation
    def _leave(self, token: bytes) -> Steps[bool]:
        """Release it, or leave the queue; returns whether the token held it."""
        return (yield from self._release(token))

    _aleave = asynchronous(_leave)

    def _release(self, token: bytes) -> Steps[bool]:
        return bool((yield Script("rwlocks/release", self._keys.all, (token,))))

    @property
    def _title(self) -> str:
        return f"The {self._verb} lock of {self.name!r}"

    def _held_token(self, holding: Holding, verb: str) -> bytes:
        if holding.token is None:
            raise LockError(
                f"{self._title} can't {verb}: this thread or task hasn't acquired it, or released it.",
                lock_name=self.name,
            )
        return holding.token

    def _not_acquired(self) -> LockError:
        return LockError(f"{self._title} could not be acquired in time.", lock_name=self.name)

    def _log_failed_release(self, failure: MessagingError) -> None:
        logger.warning("%s was not released: %s", self._title, failure)

    def _not_reentrant(self) -> LockError:
        return LockError(
            f"{self._title} can't be acquired: this thread or task reads or writes already. A read-write "
            "lock is not reentrant, and a reader can't become a writer: release it first.",
            lock_name=self.name,
        )

    def _lease_lost(self, verb: str) -> LockNotOwnedError:
        return LockNotOwnedError(
            f"{self._title} can't {verb}: its lease had expired, so another client may have written since. "
            "Use a longer timeout, or renew=True.",
            lock_name=self.name,
        )


class ReadLock(Side):
    """`ReadWriteLock.read`: any number of clients hold it at the same time, while none writes."""

    _verb, _writes = "read", False


class WriteLock(Side):
    """`ReadWriteLock.write`: one client holds it, while none reads."""

    _verb, _writes = "write", True


class ReadWriteLock(Service):
    """A lock that any number of threads or tasks hold to read, or one to write, across processes.

    >>> catalogue = ReadWriteLock("catalogue")
    >>> with catalogue.read:
    ...     "others read, too; nobody writes"
    'others read, too; nobody writes'
    >>> with catalogue.write as lock:
    ...     lock.fence > catalogue.read.fence
    True

    `read` and `write` have the methods `acquire`, `release`, `extend` and `owned`, and `fence`; as a
    decorator, each is held by each call of a function or coroutine function.

    Clients are served in the order of their arrival: a reader that comes after a waiting writer waits behind
    it, so writers don't starve. Readers next to each other in the queue read together. A client that dies
    while it waits delays the others by a second.

    `timeout` is the lease: a holder that doesn't release or extend it within so many seconds loses it. With
    `renew=True`, it is extended in the background while it is held. If it is lost all the same, `on_lost`
    is called with a LeaseLost, in a thread of its own. `blocking_timeout` limits how long `acquire` waits.

    It belongs to the thread, or the task of an event loop, that acquired it. It is not reentrant: a thread
    or task that reads or writes gets a LockError at once if it acquires either side again, by this object.

    A lease may end while its holder still works (a long pause of the process, a failover that loses writes),
    so mutual exclusion can't be guaranteed. `fence` grows with each grant, to a reader or a writer: what a
    writer changes should reject a smaller fence than it has seen.

    The phases of readers and writers in the order of their tickets are those of a fair reader-writer lock
    with tickets (Mellor-Crummey and Scott, "Scalable Reader-Writer Synchronization for Shared-Memory
    Multiprocessors", 1991).
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: Duration = 10,
        blocking: bool = True,
        blocking_timeout: Duration | None = None,
        renew: bool = False,
        on_lost: Callable[[LeaseLost], object] | None = None,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        self._options = Options(
            lease=milliseconds(timeout, "timeout", minimum=1),
            waits=bool(flag(blocking, "blocking")),
            wait=seconds_to_wait(blocking_timeout),
            renew=bool(flag(renew, "renew")),
            on_lost=callback(on_lost, "on_lost", renew=renew),
        )
        self._keys = ReadWriteLockKeys(self._prefix, name)
        #: what each thread and task holds to read, and to write
        self._owners = Owners(Holding), Owners(Holding)
        self._read, self._write = ReadLock(self, using=using), WriteLock(self, using=using)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def read(self) -> ReadLock:
        """The lock of the readers: any number of them hold it at the same time, while nobody writes."""
        return self._read

    @property
    def write(self) -> WriteLock:
        """The lock of the writers: one of them holds it, while nobody reads."""
        return self._write

    @operation
    def info(self) -> Steps[ReadWriteLockInfo]:
        """Who reads or writes, until when, and how many clients wait.

        >>> catalogue = ReadWriteLock("catalogue")
        >>> with catalogue.read:
        ...     info = catalogue.info()
        >>> info.writer, info.readers, info.waiting, info.fence == catalogue.read.fence
        (None, 1, 0, True)
        """
        return parse_info((yield info_script(self._keys)))

    ainfo = asynchronous(info)

    @operation
    def waiting(self, *, limit: int = 100) -> Steps[list[ReadWriteLockWaiter]]:
        """Up to `limit` (at most 500) waiting clients, in the order of their arrival.

        >>> ReadWriteLock("catalogue").waiting()
        []
        """
        size = count(limit, "limit", maximum=MAX_QUEUE)
        readers, writers = yield Script("rwlocks/waiting", self._keys.all, [size])
        queue = [(int(ticket), token, False) for token, ticket in batched(readers, 2)]
        queue += [(int(ticket), token, True) for token, ticket in batched(writers, 2)]
        return [
            ReadWriteLockWaiter(token=token.decode(), since=to_datetime(ticket / 1000), writes=writes)
            for ticket, token, writes in sorted(queue)[:size]
        ]

    awaiting = asynchronous(waiting)

    @operation
    def release_holder(self, holder: str) -> Steps[bool]:
        """Release the lock for another client that reads or writes, for example one that hangs; `holder` is
        its token, as in `info`. Returns False if that client doesn't hold the lock any more.

        >>> stuck = ReadWriteLock("catalogue")
        >>> stuck.write.acquire()
        True
        >>> stuck.release_holder(stuck.info().writer)
        True
        """
        # Neither the holder nor a repeat after a lost reply can recognize this release.
        args = (checked(holder, "holder"),)
        return bool((yield Script("rwlocks/evict", self._keys.all, args, once=True)))

    arelease_holder = asynchronous(release_holder)


def info_script(keys: ReadWriteLockKeys, *, holders: int = MAX_LISTED) -> Script:
    """The script that reads the state of a read-write lock, and lists up to so many holders."""
    return Script("rwlocks/info", keys.all, [holders])


def parse_info(reply: list[Any]) -> ReadWriteLockInfo:
    """The reply of rwlocks/info.lua."""
    now, fence, writer, held, waiting, *holders = reply
    return ReadWriteLockInfo(
        read_at=to_datetime(now / 1000),
        writer=None if writer is None else writer.decode(),
        readers=held if writer is None else 0,
        waiting=waiting,
        fence=int(fence),
        holders=tuple(
            ReadWriteLockHolder(
                token=token.decode(),
                expires_at=to_datetime(int(us) / 1000),
                acquired_at=to_datetime(int(fence_drawn) / 1000),
            )
            for token, us, fence_drawn in batched(holders, 3)
        ),
    )


def _report_lost(on_lost: Callable[[LeaseLost], object], name: str, verb: str) -> None:
    message = f"The lease of the {verb} lock of {name!r} was lost while it was held."
    on_lost(LockNotOwnedError(message, lock_name=name))
