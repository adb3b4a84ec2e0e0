"""The steps of a semaphore, and the permits of its holders."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from ...core.keys import name as checked
from ...core.operations import Listen, Script, Service, Steps, asynchronous, operation
from ...core.steps import Argument, batched
from ...errors import (
    ConfigurationError,
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
    PermitLost,
    SemaphoreError,
    Unavailable,
)
from ..arguments import Duration, callback, flag, integer, milliseconds
from ..lease_renewer import RenewedLease
from ..owners import Owners
from ..waiters import waiters
from .keys import SemaphoreKeys
from .permits import Permit, Permits

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


class SemaphoreSteps(Service):
    """The steps that a semaphore sends, and its permits in this process."""

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
        self._keys = SemaphoreKeys(self._prefix, name).all
        self._owners = Owners(functools.partial(Permits, name))

    @operation
    def _acquire(self, permit: Permit, seconds: float) -> Steps[bool]:
        ends = monotonic() + seconds
        reply = yield from self._poll(permit, waits=seconds > 0)
        if isinstance(reply, int):
            return bool(reply)
        line = waiters(self._using, self._keys[-1], POLL_INTERVAL)
        token, others = permit.token.encode(), list[bytes]()
        try:
            while not isinstance(reply, int):
                ticket, poll_in, gone = reply
                line.polled(token, permit.sent_at, gone, others)
                gate = Listen(self._keys[-1], int(ticket) - 1, seconds=min(poll_in / 1000, POLL_INTERVAL))
                yield from line.wait(gate, token, ends)
                waits = monotonic() < ends  # the last poll leaves the queue
                others = line.choose_others(token) if waits else []
                reply = yield from self._poll(permit, others, waits=waits)
            return bool(reply)
        finally:
            line.leave(token)

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
        script, began = Script("semaphore_acquire", self._keys, args), monotonic()
        reply = yield script
        permit.sent_at = script.sent_since(began)
        return reply

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
        refreshed = True
        for page in batched(tokens, REFRESH_PAGE):
            args: list[Argument] = [self._lease, self._limit_ttl, *page]
            refreshed &= bool((yield Script("semaphore_refresh", self._keys[:2], args)))
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
        script = Script("semaphore_refresh", self._keys[:2], (self._lease, self._limit_ttl, token))
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


def _seconds(blocking: bool, blocking_timeout: Duration | None) -> float:
    """Seconds to wait for a permit."""
    if blocking_timeout is None:
        return float("inf") if flag(blocking, "blocking") else 0.0
    if not flag(blocking, "blocking"):
        raise InvalidArgument("blocking_timeout needs blocking=True.")
    return milliseconds(blocking_timeout, "blocking_timeout") / 1000


def _report_lost(on_lost: Callable[[LeaseLost], object], name: str) -> None:
    on_lost(PermitLost(f"The lease of a permit of the semaphore {name!r} was lost while it was held."))
