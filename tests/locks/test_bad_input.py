"""Locks and semaphores: invalid arguments, callers that hold nothing, and keys of another type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from django_redis_messaging import (
    ConfigurationError,
    InvalidArgument,
    LeaseLost,
    Lock,
    LockError,
    LockNotOwnedError,
    Semaphore,
    SemaphoreError,
    conf,
)
from django_redis_messaging.services.locks.lock import LockKeys
from django_redis_messaging.services.semaphores.semaphore import SemaphoreKeys

from ..conftest import Call
from ..support.server import DEADLINE, all_keys, reply_to, server, snapshot, steps

pytestmark = pytest.mark.usefixtures("messaging_alias", "closing")

NAN, INF = float("nan"), float("inf")
#: durations that no operation accepts, and their errors
BAD_DURATIONS: dict[Any, type[Exception]] = {
    -1: InvalidArgument,
    -0.001: InvalidArgument,
    NAN: InvalidArgument,
    INF: InvalidArgument,
    -INF: InvalidArgument,
    1e12: InvalidArgument,
    timedelta(seconds=-1): InvalidArgument,
    True: TypeError,
    "1": TypeError,
    1j: TypeError,
}


def printer(limit: Any = 1, **options: Any) -> Semaphore:
    return Semaphore("printer", limit, **options)


@pytest.mark.parametrize("bad", BAD_DURATIONS, ids=repr)
@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("timeout", lambda bad: Lock("door", timeout=bad)),
        ("timeout", lambda bad: printer(timeout=bad)),
        ("blocking_timeout", lambda bad: Lock("door", blocking_timeout=bad)),
        ("blocking_timeout", lambda bad: Lock("door").acquire(blocking_timeout=bad)),
        ("blocking_timeout", lambda bad: printer().acquire(True, blocking_timeout=bad)),
        ("additional_time", lambda bad: Lock("door").extend(bad)),
        ("additional_time", lambda bad: Lock("door").extend(bad, replace_ttl=True)),
    ],
)
def test_invalid_durations(what: str, act: Callable[[Any], object], bad: Any) -> None:
    with pytest.raises(BAD_DURATIONS[bad], match=what):
        act(bad)
    assert all_keys() == []


@pytest.mark.parametrize(("bad", "error"), [(0, InvalidArgument), (timedelta(0), InvalidArgument)])
def test_a_lease_is_longer_than_zero(bad: Any, error: type[Exception]) -> None:
    for act in (
        lambda: Lock("door", timeout=bad),
        lambda: printer(timeout=bad),
        lambda: Lock("door").extend(bad),
    ):
        with pytest.raises(error, match="must be between"):
            act()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (0, InvalidArgument),
        (-1, InvalidArgument),
        (10_001, InvalidArgument),
        (True, TypeError),
        (1.0, TypeError),
        (NAN, TypeError),
        ("1", TypeError),
        (None, TypeError),
    ],
)
def test_invalid_limits(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="limit"):
        printer(bad)
    if bad != 0:  # it pauses the semaphore
        with pytest.raises(error, match="limit"):
            printer().set_limit(bad)
    assert all_keys() == []


class TestStrangers:
    """Callers that hold nothing, or not any more. They change nothing."""

    @pytest.mark.parametrize("verb", ["release", "extend", "reacquire"])
    async def test_another_thread_or_task(self, verb: str, call: Call) -> None:
        lock, words = Lock("door"), [1] if verb == "extend" else []
        assert await call(lock, "acquire")
        before = snapshot()

        async def as_a_task() -> None:
            with pytest.raises(LockError, match=f"can't {verb}.*hasn't acquired"):
                await call(lock, verb, *words)

        await asyncio.create_task(as_a_task())
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(getattr(lock, verb), *words).exception(DEADLINE)
        assert isinstance(error, LockError)
        assert not isinstance(error, LeaseLost)
        assert snapshot() == before
        await call(lock, "release")

    @pytest.mark.parametrize("verb", ["release", "refresh"])
    async def test_another_thread_or_task_with_a_permit(self, verb: str, call: Call) -> None:
        semaphore = printer()
        assert await call(semaphore, "acquire")
        before = snapshot()

        async def as_a_task() -> None:
            with pytest.raises(SemaphoreError, match="holds no permit"):
                await call(semaphore, verb)

        await asyncio.create_task(as_a_task())
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(getattr(semaphore, verb)).exception(DEADLINE)
        assert isinstance(error, SemaphoreError)
        assert not isinstance(error, LeaseLost)
        assert snapshot() == before
        await call(semaphore, "release")

    async def test_a_second_release(self, call: Call) -> None:
        lock, semaphore = Lock("door"), printer()
        for subject in (lock, semaphore):
            assert await call(subject, "acquire")
            await call(subject, "release")
        others = Lock("door"), printer()
        for other in others:
            assert await call(other, "acquire")
        before = snapshot()
        with pytest.raises(LockError, match="released it"):
            await call(lock, "release")
        with pytest.raises(SemaphoreError, match="holds no permit"):
            await call(semaphore, "release")
        assert snapshot() == before

    @pytest.mark.parametrize(("verb", "words"), [("extend", [1]), ("extend", [1, True]), ("reacquire", [])])
    @pytest.mark.parametrize("taken", [True, False])
    async def test_an_extension_after_the_lease(
        self, verb: str, words: list[Any], taken: bool, call: Call
    ) -> None:
        lock = Lock("door")
        assert await call(lock, "acquire")
        server().delete(lock.key)
        if taken:
            assert await call(Lock("door"), "acquire")
        before = snapshot()
        for _ in range(2):
            with pytest.raises(LockNotOwnedError, match="had expired"):
                await call(lock, verb, *words)
        assert snapshot() == before
        with pytest.raises(LockNotOwnedError):
            await call(lock, "release")

    @pytest.mark.parametrize("taken", [True, False])
    async def test_a_refresh_after_the_lease(self, taken: bool, call: Call) -> None:
        semaphore = printer()
        assert await call(semaphore, "acquire")
        holders = SemaphoreKeys(conf.prefix(), "printer").holders
        [token] = server().zrange(holders, 0, -1)
        server().zadd(holders, {token: 1})
        if taken:
            assert await call(printer(), "acquire")
        before = snapshot()
        for _ in range(2):
            assert await call(semaphore, "refresh") is False
        assert snapshot() == before
        with pytest.raises(SemaphoreError, match="had expired"):
            await call(semaphore, "release")


#: the operations of a held lock with a waiting client, and the keys whose type each must check
TAKES: dict[str, tuple[Callable[[Lock], object], str]] = {
    "acquire": (lambda _: Lock("door").acquire(blocking=False), "key fence line seen"),
    "wait": (lambda _: Lock("door").acquire(blocking_timeout=0.01), "key fence line seen"),
    "release": (lambda lock: lock.release(), "key line seen releases"),
    "extend": (lambda lock: lock.extend(1), "key fence"),
    "reacquire": (lambda lock: lock.reacquire(), "key"),
    "locked": (lambda lock: lock.locked(), ""),
    "owned": (lambda lock: lock.owned(), "key"),
}


@pytest.mark.parametrize("part", ["key", "fence", "line", "seen", "releases"])
@pytest.mark.parametrize("operation", TAKES)
def test_a_key_of_a_lock_that_holds_another_type(operation: str, part: str) -> None:
    act, takes = TAKES[operation]
    lock = Lock("door")
    assert lock.acquire()
    waiter = Lock("door")
    reply_to(next(steps(waiter._acquire, waiter._attempt(True, None, "first"))))
    keys = LockKeys(conf.prefix(), lock.key)
    key = getattr(keys, part)
    server().delete(key)
    server().hset(key, "not", "ours")
    before = snapshot()
    if part in takes.split():
        with pytest.raises(ConfigurationError, match="another type"):
            act(lock)
        assert snapshot() == before
    else:
        act(lock)
        assert snapshot()[key] == before[key]
