"""Locks and permits: one set of tests for all, and clients that wait for them."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from django_redis_messaging import (
    LeaseLost,
    Lock,
    LockError,
    LockNotOwnedError,
    MessagingError,
    PermitLost,
    ReadWriteLock,
    Semaphore,
    SemaphoreError,
    WriteLock,
)
from django_redis_messaging.core import clients
from django_redis_messaging.services.common import leases
from django_redis_messaging.services.common.leases import RenewedLease
from django_redis_messaging.services.semaphores.semaphore import Permit

from .server import DEADLINE, reply_to, server, steps, until


@dataclass(frozen=True)
class Kind:
    """A lock, a semaphore of one permit, or the lock of writers, and its errors."""

    make: Callable[..., Any]
    error: type[MessagingError]
    lost: type[LeaseLost]
    #: what it says to a caller that holds nothing
    not_held: str
    #: the sets of the waiting clients: by ticket, and by their latest poll
    queue: tuple[str, str]

    def new(self, name: str = "door", **options: Any) -> Any:
        """Another object for the same lease."""
        return self.make(name, **options)


def write_lock(name: str, **options: Any) -> WriteLock:
    """The lock of writers, with the methods of the whole lock that tests call."""
    lock: Any = ReadWriteLock(name, **options).write
    whole = ReadWriteLock(name)
    lock.info, lock.ainfo = whole.info, whole.ainfo
    return cast("WriteLock", lock)


NOT_ACQUIRED = "can't {verb}: .* hasn't acquired it, or released it"
KINDS = {
    "lock": Kind(Lock, LockError, LockNotOwnedError, NOT_ACQUIRED, ("line", "seen")),
    "write lock": Kind(write_lock, LockError, LockNotOwnedError, NOT_ACQUIRED, ("writers", "alive")),
    "semaphore": Kind(
        lambda name, **options: Semaphore(name, 1, **options),
        SemaphoreError,
        PermitLost,
        "holds no permit .* acquire one first",
        ("line", "waiting"),
    ),
}


def lose(lease: Any) -> None:
    """Delete who holds it, as at the end of the lease."""
    server().delete(lease._keys.all[0])


def acquiring(lease: Any, token: str) -> tuple[Any, Any]:
    """An acquire that waits, and its steps."""
    if isinstance(lease, Lock):
        attempt = lease._attempt(True, None, token)
        return attempt, steps(lease._acquire, attempt)
    if isinstance(lease, WriteLock):
        attempt = lease._attempt(True, None)
        attempt.token = token.encode()
        return attempt, steps(lease._acquire, attempt)
    permit = Permit(token)
    return permit, steps(lease._acquire, permit, math.inf)


def join(lease: Any, token: str) -> tuple[Any, Any]:
    """Let a client wait in the queue; returns its further steps, and what it waits for. It doesn't poll."""
    _, body = acquiring(lease, token)
    return body, body.send(reply_to(next(body)))


class Waiter:
    """A thread that waits for a lease."""

    def __init__(self, lease: Any, pool: ThreadPoolExecutor, options: dict[str, Any]) -> None:
        before = lease.info().waiting
        self.lease = lease
        #: set by the test to let it release the lease
        self.go_on = threading.Event()
        self.acquired: Future[bool] = Future()
        self.ended = pool.submit(self._run, {"blocking": True, "blocking_timeout": DEADLINE, **options})
        until(lambda: lease.info().waiting == before + 1)

    def _run(self, options: dict[str, Any]) -> None:
        got = self.lease.acquire(**options)
        self.acquired.set_result(got)
        if got:
            self.go_on.wait(DEADLINE)
            self.lease.release()

    def leave(self) -> None:
        """Check that it was acquired, and release it."""
        assert self.acquired.result(DEADLINE), "it was not woken"
        self.go_on.set()
        self.ended.result(DEADLINE)


@contextmanager
def waiters(lease: Any, count: int = 1, **options: Any) -> Iterator[list[Waiter]]:
    """Threads that wait for a lease, in this order."""
    with ThreadPoolExecutor(count) as pool:
        yield [Waiter(lease, pool, options) for _ in range(count)]


def renewed(name: str = "door") -> list[RenewedLease]:
    """The leases of this name that this process renews."""
    renewers = list(leases._renewers.values())
    return [lease for renewer in renewers for lease in list(renewer._leases) if lease.name == name]


def blocked() -> int:
    """The number of blocked commands on the server."""
    return int(server().info("clients")["blocked_clients"])


def nobody_is_blocked() -> None:
    """Wait until the pending commands of other tests have ended."""
    clients.close()
    until(lambda: blocked() == 0)


def scripts() -> int:
    """The number of scripts that were called."""
    return int(server().info("commandstats")["cmdstat_evalsha"]["calls"])


def pause(seconds: float) -> None:
    """Let time pass, of which the test says something."""
    ends = time.monotonic() + seconds
    until(lambda: time.monotonic() > ends)


async def until_async(holds: Callable[[], object]) -> None:
    """Wait until a condition is true, without blocking the event loop."""
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110 (it is in Redis, which sets no asyncio.Event)
            await asyncio.sleep(0.002)
