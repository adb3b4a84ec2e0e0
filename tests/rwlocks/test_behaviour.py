"""Read-write locks: readers and writers, their order, fences, leases and limits.

What the lock of writers has in common with locks and permits: tests/locks/test_leases.py and test_renewal.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from django_redis_messaging import (
    LeaseLost,
    LimitExceeded,
    LockError,
    LockNotOwnedError,
    ReadLock,
    ReadWriteLock,
    Unavailable,
    WriteLock,
    conf,
)
from django_redis_messaging.services.common import leases
from django_redis_messaging.services.locks.lock import Attempt, Holding
from django_redis_messaging.services.rwlocks import rwlock
from django_redis_messaging.services.rwlocks.rwlock import ReadWriteLockKeys

from ..conftest import Call
from ..support.leases import pause, renewed, until_async
from ..support.scripts import Planting
from ..support.server import DEADLINE, all_keys, reply_to, server, steps, until

pytestmark = pytest.mark.usefixtures("closing")
#: seconds: longer than any test
LONG = 1000
#: seconds
SHORT = 0.15
#: seconds of tolerance for a busy machine
SLACK = 2.0
HOUR = 3_600_000_000  # µs
SIDES = ("read", "write")


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting clients don't poll."""
    monkeypatch.setattr(rwlock, "POLL_INTERVAL", 3600.0)
    monkeypatch.setattr(rwlock, "WAITER_TTL", 3_600_000)


def catalogue(*, timeout: Any = LONG, **options: Any) -> ReadWriteLock:
    """Another object for the same lock."""
    return ReadWriteLock("catalogue", timeout=timeout, **options)


def side(name: str, **options: Any) -> ReadLock | WriteLock:
    """One side of another object."""
    lock = catalogue(**options)
    return lock.read if name == "read" else lock.write


def keys() -> ReadWriteLockKeys:
    return ReadWriteLockKeys(conf.prefix(), "catalogue")


def joined(name: str, token: str) -> Any:
    """The steps of a client that waits in the queue."""
    body = steps(side(name)._acquire, Attempt(token.encode(), Holding(), None, b""))
    body.send(reply_to(next(body)))
    return body


def polled(body: Any) -> int:
    """Poll again; returns the fence, or 0 if it continues to wait."""
    try:
        body.send(reply_to(body.send([])))
    except StopIteration as stop:
        return int(stop.value)
    return 0


class TestSides:
    async def test_several_read_or_one_writes(self, call: Call) -> None:
        readers, writer = [side("read") for _ in range(3)], side("write")
        for reader in readers:
            assert await call(reader, "acquire", blocking=False)
        assert not await call(writer, "acquire", blocking=False)
        for reader in readers:
            await call(reader, "release")
        assert await call(writer, "acquire", blocking=False)
        assert not await call(side("write"), "acquire", blocking=False)
        assert not await call(side("read"), "acquire", blocking=False)
        assert await call(ReadWriteLock("other").read, "acquire", blocking=False)
        await call(writer, "release")
        assert await call(side("read"), "acquire", blocking=False)
        assert repr(catalogue()) == "ReadWriteLock('catalogue')"
        assert repr(writer) == "ReadWriteLock('catalogue').write"

    async def test_fences_grow(self, call: Call) -> None:
        fences = [0]
        lock = catalogue()
        assert (lock.read.fence, lock.write.fence) == (0, 0)
        for name in ("read", "read", "write", "write", "read", "write"):
            own = side(name)
            assert await call(own, "acquire")
            fences.append(own.fence)
            await call(own, "release")
            assert own.fence == fences[-1]
        assert fences == sorted(set(fences))
        assert (await call(lock, "info")).fence == fences[-1]

    @pytest.mark.parametrize("held", SIDES)
    @pytest.mark.parametrize("wanted", SIDES)
    @pytest.mark.parametrize("blocking", [True, False])
    async def test_it_is_not_reentrant(self, held: str, wanted: str, blocking: bool, call: Call) -> None:
        """Neither for the thread or task that holds it, nor is there an upgrade. Others don't hold it."""
        lock = catalogue()
        assert await call(getattr(lock, held), "acquire")
        began = time.monotonic()
        with pytest.raises(LockError, match=f"The {wanted} lock of 'catalogue' can't be acquired.*reentrant"):
            await call(getattr(lock, wanted), "acquire", blocking=blocking)
        assert time.monotonic() - began < DEADLINE
        info = await call(lock, "info")
        assert (len(info.holders), info.waiting) == (1, 0)
        granted = await asyncio.to_thread(getattr(lock, wanted).acquire, blocking=False)
        assert granted is (held == wanted == "read")
        assert await asyncio.create_task(getattr(lock, wanted).aacquire(blocking=False)) is granted
        await call(getattr(lock, held), "release")

    async def test_a_client_whose_lease_has_ended_may_acquire_it_again(self, call: Call) -> None:
        lock = catalogue()
        assert await call(lock.read, "acquire")
        server().delete(keys().holders)
        assert await call(lock.write, "acquire")
        assert [await call(one, "owned") for one in (lock.read, lock.write)] == [False, True]
        with pytest.raises(LockError, match="hasn't acquired it"):
            await call(lock.read, "release")
        with pytest.raises(LockError, match="not reentrant"):
            await call(lock.read, "acquire")
        await call(lock.write, "release")

    @pytest.mark.timing
    def test_the_lease_of_a_reader_ends(self) -> None:
        lost, kept = side("read", timeout=SHORT), side("read", timeout=3 * SHORT)
        assert lost.acquire()
        assert kept.acquire()
        kept.extend()
        began = time.monotonic()
        assert side("write").acquire(blocking_timeout=DEADLINE)
        assert 3 * SHORT - 0.01 <= time.monotonic() - began < SLACK
        for act in (lost.extend, lost.release, kept.release):
            with pytest.raises(LockNotOwnedError, match="had expired"):
                act()

    @pytest.mark.timing
    def test_renewed_readers_keep_a_writer_out(self) -> None:
        reader, other = (side("read", timeout=SHORT, renew=True) for _ in range(2))
        with reader, other:
            assert not side("write").acquire(blocking_timeout=3 * SHORT)
            assert reader.owned()
            assert other.owned()

    @pytest.mark.timing
    async def test_extensions_count_while_renewals_fail(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise Unavailable("away")

        monkeypatch.setattr(leases, "perform_renewal", fail)
        lost = list[LeaseLost]()
        lock = side("read", timeout=3 * SHORT, renew=True, on_lost=lost.append)
        assert await call(lock, "acquire")
        ends = time.monotonic() + 6 * SHORT
        while time.monotonic() < ends:
            await call(lock, "extend")
            await asyncio.sleep(SHORT / 10)
        assert not lost and renewed("catalogue")
        await call(lock, "release")


class TestInfo:
    async def test_who_reads_writes_and_waits(self, call: Call, without_polling: None) -> None:
        info = await call(catalogue(), "info")
        assert (info.writer, info.readers, info.waiting, info.fence, info.holders) == (None, 0, 0, 0, ())
        late, early = side("read", timeout=6000), side("read", timeout=3000)
        for one in (late, early):
            assert await call(one, "acquire")
        joined("write", "w")
        joined("read", "r")
        info = await call(catalogue(), "info")
        assert (info.writer, info.readers, info.waiting, info.fence) == (None, 2, 2, early.fence)
        for holder, seconds in zip(info.holders, (6000, 3000), strict=True):
            host, pid, _ = holder.token.rsplit(":", 2)
            assert (host, int(pid)) == (socket.gethostname()[:40], os.getpid())
            left = holder.expires_at - info.read_at - timedelta(seconds=seconds)
            assert abs(left) < timedelta(seconds=DEADLINE)
        for one in (late, early):
            await call(one, "release")
        server().delete(keys().writers, keys().readers, keys().alive)
        writer = side("write")
        assert await call(writer, "acquire")
        info = await call(catalogue(), "info")
        assert (info.writer, info.readers) == (info.holders[0].token, 0)

    async def test_a_hundred_holders_are_listed(self, call: Call) -> None:
        server().zadd(keys().holders, {f"r{number}": 2**52 - number for number in range(150)})
        info = await call(catalogue(), "info")
        assert (info.readers, [one.token for one in info.holders]) == (150, [f"r{n}" for n in range(100)])


class TestOrder:
    async def test_nobody_overtakes(self, call: Call, without_polling: None) -> None:
        holder = side("read")
        assert await call(holder, "acquire")
        writer = joined("write", "w")
        for name in SIDES:
            assert not await call(side(name), "acquire", blocking=False)
        reader = joined("read", "r")
        await call(holder, "release")
        assert not await call(side("read"), "acquire", blocking=False)
        assert polled(reader) == 0
        assert polled(writer) > holder.fence
        assert not await call(side("write"), "acquire", blocking=False)

    @pytest.mark.timing
    async def test_consecutive_readers_are_woken_together(self, without_polling: None) -> None:
        """They wait for each other inside: none is woken by the release of another."""
        holder, order, meeting = side("write"), list[str](), asyncio.Barrier(3)
        assert await holder.aacquire()

        async def work(name: str) -> None:
            async with side(name):
                order.append(name)
                if name == "read":
                    await meeting.wait()

        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            for number, name in enumerate(["read"] * 3 + ["write"] * 2 + ["read"] * 3 + ["write"]):
                group.create_task(work(name))
                await until_async(lambda: catalogue().info().waiting == number + 1)  # noqa: B023
            await holder.arelease()
        assert order == ["read"] * 3 + ["write"] * 2 + ["read"] * 3 + ["write"]

    @pytest.mark.timing
    def test_a_writer_waits_for_a_bounded_time(self) -> None:
        """Although readers come all the time, so that one always reads."""
        stop = list[bool]()

        def read() -> None:
            while not stop:
                with side("read"):
                    pause(0.01)

        with ThreadPoolExecutor(3) as pool:
            ended = [pool.submit(read) for _ in range(3)]
            until(lambda: catalogue().info().readers == 3)
            try:
                for _ in range(5):
                    with side("write", blocking_timeout=DEADLINE) as lock:
                        assert catalogue().info().holders[0].expires_at
                    assert lock.fence
            finally:
                stop.append(True)
            for one in ended:
                one.result(DEADLINE)

    @pytest.mark.timing
    def test_a_dead_writer_delays_readers_by_its_ttl(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even if the clock was set back after its last poll."""
        monkeypatch.setattr(rwlock, "WAITER_TTL", 300)
        with side("read"):
            joined("write", "dead")
            server().zincrby(keys().alive, HOUR, "dead")
            began = time.monotonic()
            assert side("read").acquire(blocking_timeout=DEADLINE)
            assert 0.29 <= time.monotonic() - began < 0.3 + SLACK


class TestClock:
    async def test_leases_that_have_ended_are_not_valid_again(self, call: Call, plant: Planting) -> None:
        """When the server's clock is set back: two clients would write."""
        first, second = side("write"), side("write")
        assert await call(first, "acquire")
        server().zincrby(keys().holders, -2 * LONG * 1_000_000, catalogue().info().holders[0].token)
        assert await call(second, "acquire", blocking=False)
        plant(("common/_time", "[1] * 1000000 + time[2]", f"[1] * 1000000 + time[2] - {HOUR}"))
        assert not await call(first, "owned")
        for verb in ("extend", "release"):
            with pytest.raises(LockNotOwnedError):
                await call(first, verb)
        info = await call(catalogue(), "info")
        assert (info.writer, len(info.holders), info.fence) == (info.holders[0].token, 1, second.fence)
        await call(second, "release")
        assert await call(first, "acquire", blocking=False)
        assert first.fence == second.fence + 1


class TestLimits:
    async def test_of_readers(self, call: Call) -> None:
        server().zadd(keys().holders, {f"r{number}": 2**52 for number in range(rwlock.MAX_READERS - 1)})
        assert await call(side("read"), "acquire")
        with pytest.raises(LimitExceeded, match=r"readers of a read-write lock: 10001 .* limit of 10000"):
            await call(side("read"), "acquire")
        assert not await call(side("write"), "acquire", blocking=False)

    async def test_of_waiting_clients(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rwlock, "MAX_WAITING", 2)
        assert await call(side("write"), "acquire")
        for name in SIDES:
            joined(name, name)
        with pytest.raises(LimitExceeded, match="waiting clients of a read-write lock"):
            await call(side("read"), "acquire")
        assert not await call(side("read"), "acquire", blocking=False)
        assert catalogue().info().waiting == 2

    async def test_a_thousand_released_tokens_are_kept_besides_all_holders(self, call: Call) -> None:
        held = {f"held {number}": 2**52 for number in range(1500)}
        ended = {f"ended {number}": number + 1 for number in range(1100)}
        released = {f"released {number}": number - 2**52 for number in range(1100)}
        server().zadd(keys().holders, held | ended | released)
        server().hset(keys().grants, mapping={**held, **ended})
        for _ in range(3):
            assert await call(side("read"), "acquire")
        assert (await call(catalogue(), "info")).readers == 1503
        assert server().zcount(keys().holders, "-inf", 0) == 1000
        assert server().zcount(keys().holders, 1, 10_000) == 0
        assert server().hlen(keys().grants) == 1504

    async def test_a_grant_removes_at_most_five_hundred_of_them(self, call: Call) -> None:
        """Thousands of readers may have released it since the previous grant."""
        server().zadd(keys().holders, {f"released {number}": number - 2**52 for number in range(3000)})
        assert await call(side("read"), "acquire")
        assert server().zcount(keys().holders, "-inf", 0) == 2500


class TestExpiry:
    def test_each_key_expires(self, without_polling: None) -> None:
        day = 86_400_000
        first = side("write", timeout=60)
        with first:
            for name in SIDES:
                joined(name, name)
        ttls = {key.rpartition(":")[2]: server().pttl(key) for key in all_keys()}
        assert ttls.keys() == {"holders", "grants", "readers", "writers", "alive", "gate"}
        for part in ("holders", "grants"):
            assert day + 60_000 < ttls[part] <= 2 * (day + 60_000)
        assert 0 < ttls["gate"] <= 60_000
        assert all(0 < ttls[part] <= rwlock.WAITER_TTL + 1 for part in ("readers", "writers", "alive"))

    @pytest.mark.parametrize("lost", [True, False])
    def test_a_short_lease_does_not_shorten_a_long_one(self, lost: bool) -> None:
        long = side("read", timeout=timedelta(days=36_500))
        assert long.acquire()
        with side("read"):
            pass
        if lost:
            server().delete(keys().holders)
            assert long.acquire()
        assert min(server().pttl(key) for key in all_keys()) > 36_500 * 86_400_000
        long.extend()
        long.release()


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "name": (lambda: ReadWriteLock(""), ValueError, "name is empty"),
    "name None": (lambda: ReadWriteLock(None), TypeError, "name must be a str"),  # type: ignore[arg-type]
    "timeout None": (lambda: catalogue(timeout=None), TypeError, "timeout"),
    "renew": (lambda: catalogue(renew=1), TypeError, "renew"),
    "blocking": (lambda: catalogue(blocking=1), TypeError, "blocking"),
    "blocking of acquire": (lambda: side("read").acquire(1), TypeError, "blocking"),  # type: ignore[arg-type]
    "on_lost": (lambda: catalogue(on_lost=print), ValueError, "needs renew=True"),
}


@pytest.mark.one_server
@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    act, error, words = BAD[case]
    with pytest.raises(error, match=words):
        act()
    assert all_keys() == []


class TestHolders:
    async def test_the_queue_is_listed_in_its_order(self, without_polling: None, call: Call) -> None:
        writer = side("write")
        assert await call(writer, "acquire")
        bodies = [joined(name, token) for name, token in (("read", "a"), ("write", "b"), ("read", "c"))]
        waiting = await call(catalogue(), "waiting")
        assert [(one.token, one.writes) for one in waiting] == [("a", False), ("b", True), ("c", False)]
        assert [one.since for one in waiting] == sorted(one.since for one in waiting)
        assert [one.token for one in await call(catalogue(), "waiting", limit=2)] == ["a", "b"]
        [holder] = (await call(catalogue(), "info")).holders
        assert holder.acquired_at <= waiting[0].since < holder.expires_at
        for body in bodies:
            body.close()

    async def test_a_holder_is_evicted_and_no_other(self, without_polling: None, call: Call) -> None:
        """The writer that waits for both readers gets the lock after the second one only."""
        readers = [side("read"), side("read")]
        tokens = []
        for reader in readers:
            assert await call(reader, "acquire")
            tokens.append(reader._holding.token.decode())
        body = joined("write", "w")
        lock = catalogue()
        assert not await call(lock, "release_holder", "w"), "it waits, and holds nothing"
        assert await call(lock, "release_holder", tokens[0])
        assert not await call(lock, "release_holder", tokens[0])
        assert [one.token for one in (await call(lock, "info")).holders] == [tokens[1]]
        assert server().xlen(keys().gate) == 0, "nobody is woken"
        assert not polled(body)
        with pytest.raises(LockNotOwnedError):
            await call(readers[0], "release")
        assert await call(readers[1], "owned")
        assert await call(lock, "release_holder", tokens[1])
        assert server().xlen(keys().gate) == 1, "the writer is woken"
        assert polled(body)
        with pytest.raises(LockNotOwnedError):
            await call(readers[1], "extend")
        assert (await call(lock, "info")).writer == "w"
