"""Semaphores: a limited number of clients, of all processes, hold a permit at a time."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any

from ...core.commands import Argument, batched
from ...core.encoding import name as checked
from ...core.encoding import tag
from ...core.operations import Listen, Script, Steps, asynchronous, operation
from ...core.outcome import deadline
from ...errors import (
    ConfigurationError,
    InvalidArgument,
    LeaseLost,
    MessagingError,
    OutcomeUnknown,
    PermitLost,
    SemaphoreError,
    Unavailable,
)
from ..common.arguments import Duration, callback, count, flag, integer, milliseconds, to_datetime
from ..common.leases import Leasable, Owned, Owners, RenewedLease, new_token
from ..common.waiters import waiters

logger = logging.getLogger(__name__)

#: maximum number of permits of a semaphore: a script may examine all of them
MAX_PERMITS = 10_000
#: permits that one script refreshes
REFRESH_PAGE = 500
#: ms for which the limit of an unused semaphore is kept
LIMIT_TTL = 30 * 86_400_000
#: seconds; the maximum time between two polls of a waiting client
POLL_INTERVAL = 0.4
#: ms for which a waiting client counts as alive after a poll: at least two polls
WAITER_TTL = 1000
#: seconds; the deadline for leaving the queue after an interrupt
LEAVE_DEADLINE = 1.0
#: maximum number of holders or waiting clients in a list
MAX_LISTED = 500


class SemaphoreKeys:
    """The keys of one semaphore, in one slot."""

    def __init__(self, prefix: str, name: str) -> None:
        self.tag = tag(prefix, "semaphore", name)

    @functools.cached_property
    def limit(self) -> str:
        """STRING: the number of permits. Expires when the semaphore has not been used for a month."""
        return self.tag + ":limit"

    @functools.cached_property
    def holders(self) -> str:
        """ZSET token → µs at which the lease of its permit ends; negative if it was released. Expires at
        least a minute after the last lease. An acquire leaves at most a thousand expired and released
        permits."""
        return self.tag + ":holders"

    @functools.cached_property
    def line(self) -> str:
        """ZSET token → ticket of the waiting clients. Expires when none of them polls any more."""
        return self.tag + ":line"

    @functools.cached_property
    def waiting(self) -> str:
        """ZSET token → µs until which a waiting client counts as alive. Expires with the queue."""
        return self.tag + ":waiting"

    @functools.cached_property
    def gate(self) -> str:
        """STREAM of one entry, whose id is a ticket: wakes the waiting clients with this ticket or a lower
        one. Expires a minute after it was opened."""
        return self.tag + ":gate"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys in the order of all scripts, see semaphore_at() in _semaphores.lua."""
        return [self.holders, self.limit, self.line, self.waiting, self.gate]


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreInfo:
    """The state of a semaphore at one moment."""

    limit: int
    """The number of permits: the stored limit, or the constructor's if none is stored."""
    held: int
    """The number of permits held; greater than `limit` after that was lowered."""
    waiting: int
    """The number of waiting clients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreHolder:
    """A held permit."""

    token: str
    """Identifies the permit: host, process id and a random part."""
    expires_at: datetime
    """When its lease ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SemaphoreWaiter:
    """A client that waits for a permit."""

    token: str
    """Identifies the client: host, process id and a random part."""
    since: datetime
    """When it began to wait."""


class Semaphore(Leasable):
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

    def __init__(
        self,
        name: str,
        limit: int,
        *,
        timeout: Duration = 10,
        blocking: bool = False,
        blocking_timeout: Duration | None = None,
        renew: bool = False,
        on_lost: Callable[[LeaseLost], object] | None = None,
        using: str | None = None,
    ) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        self._limit = integer(limit, "limit", minimum=1, maximum=MAX_PERMITS)
        self._lease = milliseconds(timeout, "timeout", minimum=1)
        #: whether acquire waits by default, and for how long at most
        self._blocking, self._blocking_timeout = blocking, blocking_timeout
        _seconds(blocking, blocking_timeout)  # checks them
        self._renew = bool(flag(renew, "renew"))
        self._on_lost = callback(on_lost, "on_lost", renew=self._renew)
        self._limit_ttl = max(LIMIT_TTL, 2 * self._lease)
        self._keys = SemaphoreKeys(self._prefix, name)
        self._owners = Owners(functools.partial(Permits, name))

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
                    self._release(permit.token)
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
                    await self._arelease(permit.token)
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
        yield Script("semaphores/limit", self._keys.all, [permits, self._limit_ttl])

    aset_limit = asynchronous(set_limit)

    @operation
    def info(self) -> Steps[SemaphoreInfo]:
        """The limit, and the numbers of holders and of waiting clients.

        >>> Semaphore("printer", 3).info()
        SemaphoreInfo(limit=3, held=0, waiting=0)
        """
        stored, held, queued, *_ = yield info_script(self._keys)
        return SemaphoreInfo(limit=self._limit if stored is None else int(stored), held=held, waiting=queued)

    ainfo = asynchronous(info)

    @operation
    def holders(self, *, limit: int = 100) -> Steps[list[SemaphoreHolder]]:
        """Up to `limit` (at most 500) held permits, those whose leases end first at the beginning.

        >>> with Semaphore("printer", 3) as semaphore:
        ...     len(semaphore.holders())
        1
        """
        size = count(limit, "limit", maximum=MAX_LISTED)
        *_, permits, _ = yield info_script(self._keys, permits=size)
        return [SemaphoreHolder(token=token, expires_at=moment) for token, moment in parse_pairs(permits)]

    aholders = asynchronous(holders)

    @operation
    def waiting(self, *, limit: int = 100) -> Steps[list[SemaphoreWaiter]]:
        """Up to `limit` (at most 500) waiting clients, in the order in which they will acquire permits.

        >>> Semaphore("printer", 3).waiting()
        []
        """
        size = count(limit, "limit", maximum=MAX_LISTED)
        *_, clients = yield info_script(self._keys, clients=size)
        return [SemaphoreWaiter(token=token, since=moment) for token, moment in parse_pairs(clients)]

    awaiting = asynchronous(waiting)

    @operation
    def release_holder(self, holder: str) -> Steps[bool]:
        """Release a permit for its holder, for example one that hangs; `holder` is its token, as in
        `holders`. Returns False if that client doesn't hold a permit any more.

        >>> stuck = Semaphore("printer", 1)
        >>> stuck.acquire()
        True
        >>> stuck.release_holder(stuck.holders()[0].token)
        True
        """
        # Neither the holder nor a repeat after a lost reply can recognize this release.
        args = (checked(holder, "holder"),)
        return bool((yield Script("semaphores/evict", self._keys.all, args, once=True)))

    arelease_holder = asynchronous(release_holder)

    @operation
    def _acquire(self, permit: Permit, seconds: float) -> Steps[bool]:
        ends = monotonic() + seconds
        reply = yield from self._poll(permit, waits=seconds > 0)
        if isinstance(reply, int):
            return bool(reply)
        queue = waiters(self._using, self._keys.gate, POLL_INTERVAL)
        token, others = permit.token.encode(), list[bytes]()
        try:
            while not isinstance(reply, int):
                ticket, poll_in, gone = reply
                queue.polled(token, permit.sent_at, gone, others)
                gate = Listen(self._keys.gate, int(ticket) - 1, seconds=min(poll_in / 1000, POLL_INTERVAL))
                yield from queue.wait(gate, token, ends)
                waits = monotonic() < ends  # the last poll leaves the queue
                others = queue.choose_others(token) if waits else []
                reply = yield from self._poll(permit, others, waits=waits)
            return bool(reply)
        finally:
            queue.leave(token)

    _aacquire = asynchronous(_acquire)

    def _poll(self, permit: Permit, others: Sequence[bytes] = (), *, waits: bool) -> Steps[Any]:
        """Acquire the permit if possible; returns 1, 0, or how to wait."""
        args: list[Argument] = [
            permit.token,
            self._lease,
            self._limit,
            self._limit_ttl,
            WAITER_TTL,
            int(waits),
            *others,
        ]
        script, began = Script("semaphores/acquire", self._keys.all, args), monotonic()
        reply = yield script
        permit.sent_at = script.sent_since(began)
        return reply

    @operation
    def _release(self, token: str) -> Steps[bool]:
        """Release a permit. Without one, leave the queue; returns False."""
        reply = yield Script("semaphores/release", self._keys.all, [token])
        return bool(reply)

    _arelease = asynchronous(_release)

    @operation
    def _refresh(self, tokens: list[str]) -> Steps[bool]:
        refreshed = True
        for page in batched(tokens, REFRESH_PAGE):
            args: list[Argument] = [self._lease, self._limit_ttl, *page]
            refreshed &= bool((yield Script("semaphores/refresh", self._keys.all, args)))
        return refreshed

    _arefresh = asynchronous(_refresh)

    def _seconds_to_wait(self, blocking: bool | None, blocking_timeout: Duration | None) -> float:
        """Seconds that an acquire with these arguments waits; 0 if it doesn't wait."""
        waits = self._blocking if blocking is None else blocking
        default = self._blocking_timeout if waits else None
        return _seconds(waits, default if blocking_timeout is None else blocking_timeout)

    def _forget(self, token: str, seconds: float, error: BaseException) -> bool:
        """Forget an acquire that failed. Returns whether its token may still be in the queue, or hold a
        permit."""
        self._owners.current.forget(token)
        if isinstance(error, Unavailable | OutcomeUnknown):
            return seconds > 0  # without waiting, only a lost reply is possible: the lease ends
        return not isinstance(error, ConfigurationError)

    def _store(self, permit: Permit, granted: bool) -> bool:
        """Store a granted permit and start its renewal; returns `granted`."""
        if granted:
            permit.renewal = self._renewal(permit.token) if self._renew else None
            self._owners.current.push(permit)
        return granted

    def _renewal(self, token: str) -> RenewedLease:
        """The renewal must not reference the permits: they end it when they are destroyed."""
        script = Script("semaphores/refresh", self._keys.all, (self._lease, self._limit_ttl, token))
        on_lost = self._on_lost and functools.partial(_report_lost, self._on_lost, self.name)
        return RenewedLease(self._using, self.name, self._lease / 1000, script, on_lost)

    def _check(self, released: bool) -> None:
        if not released:
            raise PermitLost(
                f"The lease ({self._lease / 1000:g} s) of a permit of the semaphore {self.name!r} had "
                "expired: another client may have held it. Use a longer timeout, refresh() or renew=True."
            )

    def _not_acquired(self) -> SemaphoreError:
        problem = "became free in time" if self._blocking else "is free: use blocking=True to wait for one"
        return SemaphoreError(f"No permit of the semaphore {self.name!r} {problem}.")

    def _log_failed_release(self, failure: MessagingError) -> None:
        logger.warning("A permit of the semaphore %r was not released: %s", self.name, failure)


@dataclass(slots=True)
class Permit:
    """A permit that is being acquired, or was granted."""

    token: str
    #: when the latest request was sent, so that the lease lasts from then on at least; monotonic
    sent_at: float = 0.0
    #: renews its lease
    renewal: RenewedLease | None = None


class Permits(Owned):
    """The permits of one thread or task, the latest one last."""

    __slots__ = ("_name", "_permits")

    def __init__(self, name: str) -> None:
        self._name = name
        self._permits: list[Permit] = []

    def push(self, permit: Permit) -> None:
        """Add a permit, and start its renewal."""
        self._permits.append(permit)
        if permit.renewal is not None:
            permit.renewal.start(permit.sent_at)

    def pop(self) -> str:
        """Remove the latest permit, stop its renewal, and return its token; raises SemaphoreError if none is
        held."""
        self._check()
        permit = self._permits.pop()
        if permit.renewal is not None:
            permit.renewal.end()
        return permit.token

    def forget(self, token: str) -> None:
        """Remove the latest permit, if it has this token."""
        if self._permits and self._permits[-1].token == token:
            self.pop()

    @property
    def tokens(self) -> list[str]:
        """The tokens of all permits; raises SemaphoreError if none is held."""
        self._check()
        return [permit.token for permit in self._permits]

    def end_renewal(self) -> None:
        """Stop renewing all permits."""
        for permit in self._permits:
            if permit.renewal is not None:
                permit.renewal.end()

    def _check(self) -> None:
        if not self._permits:
            raise SemaphoreError(
                f"This thread or task holds no permit of the semaphore {self._name!r}: acquire one first, and"
                " release it in the thread or task that acquired it."
            )


def info_script(keys: SemaphoreKeys, *, permits: int = 0, clients: int = 0) -> Script:
    """The script that reads the state of a semaphore, and lists up to so many permits and waiting clients."""
    return Script("semaphores/info", keys.all, [permits, clients])


def parse_pairs(reply: Sequence[bytes]) -> Iterator[tuple[str, datetime]]:
    """The tokens and moments (µs) of a reply."""
    for token, us in batched(reply, 2):
        yield token.decode(), to_datetime(int(us) / 1000)


def _seconds(blocking: bool, blocking_timeout: Duration | None) -> float:
    """Seconds to wait for a permit."""
    if blocking_timeout is None:
        return float("inf") if flag(blocking, "blocking") else 0.0
    if not flag(blocking, "blocking"):
        raise InvalidArgument("blocking_timeout needs blocking=True.")
    return milliseconds(blocking_timeout, "blocking_timeout") / 1000


def _report_lost(on_lost: Callable[[LeaseLost], object], name: str) -> None:
    on_lost(PermitLost(f"The lease of a permit of the semaphore {name!r} was lost while it was held."))
