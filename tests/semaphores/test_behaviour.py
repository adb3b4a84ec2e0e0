"""Semaphores: permits, limits, leases, the queue of waiting clients, and their wake-ups.

What they have in common with locks: tests/locks/test_leases.py and test_renewal.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_redis_messaging import PermitLost, Semaphore, SemaphoreError, SemaphoreInfo, conf
from django_redis_messaging.services.semaphores import semaphore as semaphores
from django_redis_messaging.services.semaphores.semaphore import Permit, SemaphoreKeys

from ..conftest import Call
from ..support.leases import join, scripts, until_async, waiters
from ..support.server import DEADLINE, all_keys, reply_to, server, steps, until

pytestmark = pytest.mark.usefixtures("closing")
#: seconds: longer than any test
LONG = 1000
#: seconds
SHORT = 0.15
#: seconds of tolerance for a busy machine
SLACK = 2.0


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting clients don't poll."""
    monkeypatch.setattr(semaphores, "POLL_INTERVAL", 3600.0)
    monkeypatch.setattr(semaphores, "WAITER_TTL", 3_600_000)


def printer(limit: Any = 1, *, timeout: Any = LONG, **options: Any) -> Semaphore:
    """Another object for the same semaphore."""
    return Semaphore("printer", limit, timeout=timeout, **options)


def keys() -> SemaphoreKeys:
    return SemaphoreKeys(conf.prefix(), "printer")


def info(limit: int, held: int, waiting: int) -> SemaphoreInfo:
    return SemaphoreInfo(limit=limit, held=held, waiting=waiting)


def taken(limit: int = 1, *, timeout: float = LONG) -> Semaphore:
    """A semaphore of which the main thread holds a permit."""
    semaphore = printer(limit, timeout=timeout)
    assert semaphore.acquire()
    return semaphore


def joined(token: str) -> Any:
    """The steps of a client that waits in the queue."""
    return join(printer(), token)[0]


def polled(body: Any) -> bool | None:
    """Poll again; None if it continues to wait."""
    try:
        body.send(reply_to(body.send([])))
    except StopIteration as stop:
        return bool(stop.value)
    return None


def gate() -> int:
    """The highest ticket that the gate is open for; 0 if it is closed."""
    entries = server().xrange(keys().gate)
    return int(entries[-1][0].partition(b"-")[0]) if entries else 0


def ticket(token: str) -> int:
    return int(server().zscore(keys().line, token))


class TestPermits:
    async def test_each_name_has_its_own_permits(self, call: Call) -> None:
        assert await call(Semaphore("a:{b}", 1), "acquire")
        assert await call(Semaphore("a%3A{b}", 1), "acquire")
        assert not await call(Semaphore("a:{b}", 1), "acquire")
        assert repr(Semaphore("a:{b}", 1)) == "Semaphore('a:{b}', 1)"

    async def test_the_stored_limit_applies_to_all_clients(self, call: Call) -> None:
        """The first one that acquires stores its limit, until another one is set. That revokes no permit."""
        assert await call(printer(5), "info") == info(5, 0, 0)
        first = printer(2)
        assert await call(first, "acquire")
        assert await call(printer(5), "info") == info(2, 1, 0)
        assert [await call(printer(5), "acquire") for _ in range(2)] == [True, False]
        await call(printer(7), "set_limit", 3)
        assert [await call(first, "acquire") for _ in range(2)] == [True, False]
        await call(first, "set_limit", 1)
        assert await call(first, "info") == info(1, 3, 0)
        assert await call(first, "refresh")
        await call(first, "release")
        assert not await call(printer(), "acquire")
        await call(first, "set_limit", 0)
        await call(first, "release")
        assert not await call(printer(), "acquire")
        assert not await call(printer(), "acquire", True, 0.01)

    async def test_a_thousand_expired_permits_are_kept_besides_all_held_ones(self, call: Call) -> None:
        one = printer(1005)
        held = {f"held {number}": 2**52 for number in range(1003)}
        dead = {f"dead {number}": number + 1 for number in range(1500)}
        server().zadd(keys().holders, held)
        await call(one, "set_limit", 1)
        assert not await call(printer(), "acquire")
        assert (await call(one, "info")).held == 1003
        server().zrem(keys().holders, *held)
        server().zadd(keys().holders, dead)
        assert await call(one, "acquire")
        assert server().zcard(keys().holders) == 1001
        await call(one, "release")
        assert await call(one, "acquire")
        assert server().zcard(keys().holders) <= 1001

    async def test_a_permit_belongs_to_its_thread_or_task(self) -> None:
        shared = printer(3)

        async def hold() -> None:
            async with shared:
                assert (await shared.ainfo()).held == 2

        assert await shared.aacquire()
        await asyncio.create_task(hold())
        assert await asyncio.to_thread(shared.acquire)
        assert (await shared.ainfo()).held == 2
        await shared.arelease()
        with pytest.raises(SemaphoreError, match="holds no permit"):
            await shared.arelease()
        assert (await shared.ainfo()).held == 1

    async def test_the_latest_is_released_first(self, call: Call) -> None:
        one = printer(2)
        assert await call(one, "acquire")
        [first] = server().zrange(keys().holders, 0, -1)
        assert await call(one, "acquire")
        await call(one, "release")
        assert server().zrangebyscore(keys().holders, 0, "inf") == [first]

    async def test_the_arguments_of_acquire_override_those_of_the_constructor(self, call: Call) -> None:
        taken()
        waits = printer(blocking=True, blocking_timeout=SHORT)
        assert not await call(waits, "acquire", False)
        began = time.monotonic()
        assert not await call(waits, "acquire")
        assert not await call(waits, "acquire", True)
        assert time.monotonic() - began >= 2 * SHORT
        assert not await call(waits, "acquire", blocking_timeout=0)


class TestLists:
    async def test_the_holders(self, call: Call) -> None:
        assert await call(printer(), "holders") == []
        taken(3, timeout=6000)
        taken(3, timeout=3000)
        before = datetime.now(UTC)
        first, second = await call(printer(), "holders")
        for holder, seconds in ((first, 3000), (second, 6000)):
            host, pid, _ = holder.token.rsplit(":", 2)
            assert (host, int(pid)) == (socket.gethostname()[:40], os.getpid())
            assert abs(holder.expires_at - before - timedelta(seconds=seconds)) < timedelta(seconds=DEADLINE)
        assert await call(printer(), "holders", limit=1) == [first]
        server().zadd(keys().holders, {first.token: 1, second.token: -5})  # expired, released
        assert await call(printer(), "holders") == []

    async def test_the_waiting_clients(self, call: Call, without_polling: None) -> None:
        before = datetime.now(UTC)
        taken()
        for token in ("b", "a", "c"):
            joined(token)
        found = await call(printer(), "waiting")
        assert [one.token for one in found] == ["b", "a", "c"]
        assert await call(printer(), "waiting", limit=2) == found[:2]
        assert found == sorted(found, key=lambda one: one.since)
        assert abs(found[0].since - before) < timedelta(seconds=DEADLINE)
        server().zadd(keys().waiting, {"a": 1})  # it has not polled in time
        assert [one.token for one in await call(printer(), "waiting")] == ["b", "c"]


@pytest.mark.timing
class TestLeases:
    async def test_a_permit_is_free_when_its_lease_ends(self, call: Call) -> None:
        lost = printer(timeout=SHORT)
        assert await call(lost, "acquire")
        began = time.monotonic()
        assert await call(printer(), "acquire", True, DEADLINE)
        assert SHORT - 0.01 <= time.monotonic() - began < DEADLINE
        assert await call(lost, "refresh") is False
        with pytest.raises(SemaphoreError, match=r"0\.15 s.* had expired"):
            await call(lost, "release")
        assert printer().info().held == 1

    async def test_a_client_polls_when_the_next_lease_ends(self, call: Call, without_polling: None) -> None:
        short = printer(2, timeout=SHORT)
        assert await call(short, "acquire")
        assert await call(printer(), "acquire")
        began = time.monotonic()
        assert await call(printer(), "acquire", True, 3 * DEADLINE)
        assert time.monotonic() - began < DEADLINE, "only its last poll found it"
        assert printer().info() == info(2, 2, 0)
        assert await call(short, "refresh") is False

    def test_each_waiting_client_polls_when_enough_leases_have_ended(self, without_polling: None) -> None:
        for lease in (100, 200, 300):
            taken(3, timeout=lease)

        def next_poll(token: str) -> float:
            """Hundreds of seconds."""
            ms = reply_to(next(steps(printer()._acquire, Permit(token), LONG)))[1]
            return round(ms / 100_000, 1)

        assert [next_poll(token) for token in "abc"] == [1, 2, 3]
        printer().set_limit(2)
        assert next_poll("a") == 2

    async def test_a_refreshed_permit_lasts(self, call: Call) -> None:
        one = printer(2, timeout=SHORT)
        assert await call(one, "acquire")
        assert await call(one, "acquire")
        ends = time.monotonic() + 2 * SHORT
        while time.monotonic() < ends:
            assert await call(one, "refresh") is True
            assert not await call(printer(), "acquire")
        until(lambda: one.info().held == 0)
        assert await call(one, "refresh") is False

    async def test_a_refresh_of_many_permits(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(semaphores, "REFRESH_PAGE", 2)
        one = printer(9)
        for _ in range(5):
            assert await call(one, "acquire")
        first, *others = server().zrange(keys().holders, 0, -1)
        server().zadd(keys().holders, dict.fromkeys(others, 2**52))
        before = scripts()
        assert await call(one, "refresh") is True
        assert scripts() - before == 3
        assert max(score for _, score in server().zrange(keys().holders, 0, -1, withscores=True)) < 2**52
        server().zrem(keys().holders, first)
        assert await call(one, "refresh") is False
        assert one.info().held == 4


@pytest.mark.timing
class TestQueue:
    def test_a_raised_limit_wakes_as_many_clients(self, without_polling: None) -> None:
        semaphore = taken()
        with waiters(semaphore, 2) as threads:
            semaphore.set_limit(3)
            assert all(thread.acquired.result(DEADLINE) for thread in threads)
            for thread in threads:
                thread.leave()

    def test_a_dead_waiter_after_the_clock_was_set_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(semaphores, "WAITER_TTL", 300)
        semaphore = taken()
        joined("dead")
        alive = joined("alive")
        hour = 3600 * 1_000_000
        for token in ("dead", "alive"):
            server().zincrby(keys().waiting, hour, token)
        semaphore.release()
        assert not printer().acquire()
        assert polled(alive) is None
        began = time.monotonic()
        until(lambda: polled(alive))
        assert time.monotonic() - began < 0.3 + SLACK

    def test_the_next_client_is_woken_when_a_dead_one_is_removed(self, without_polling: None) -> None:
        semaphore = taken()
        joined("dead")
        with waiters(semaphore) as [thread]:
            server().zadd(keys().waiting, {"dead": 1})
            semaphore.release()
            thread.leave()

    def test_any_call_removes_a_dead_waiter(self, without_polling: None) -> None:
        semaphore = taken()
        for name in ("dead", "second"):
            joined(name)
        third = joined("third")
        semaphore.release()
        server().zadd(keys().waiting, {"dead": 1})
        assert polled(third) is None
        assert gate() == ticket("second")

    def test_a_gate_opened_too_far_is_closed(self, without_polling: None) -> None:
        """Otherwise its readers would poll without a pause."""
        semaphore = taken()
        first, second = joined("first"), joined("second")
        semaphore.set_limit(3)
        semaphore.set_limit(2)
        assert polled(second) is None
        assert gate() == ticket("first")
        semaphore.set_limit(1)
        assert polled(first) is None
        assert gate() == 0
        semaphore.set_limit(4)
        assert gate() == ticket("second")
        assert [polled(first), polled(second)] == [True, True]

    def test_a_client_that_gives_up_has_polled_twice(self, without_polling: None) -> None:
        taken()
        printer().acquire(True, 0.01)
        before = scripts()
        assert not printer().acquire(True, 0.05)
        assert scripts() - before == 2

    def test_many_threads_never_exceed_the_limit(self) -> None:
        semaphore, inside, counts = printer(3, blocking=True), list[int](), list[int]()

        def work(number: int) -> None:
            for _ in range(20):
                with semaphore:
                    inside.append(number)
                    counts.append(len(inside))
                    inside.remove(number)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert 1 <= max(counts) <= 3
        assert semaphore.info() == info(3, 0, 0)

    async def test_a_long_queue_keeps_its_order(self) -> None:
        semaphore, order, count = taken(), list[int](), 60

        async def work(at: int) -> None:
            async with printer(blocking=True):
                order.append(at)
                await asyncio.sleep(0.01)

        tasks = []
        for at in range(count):
            tasks.append(asyncio.create_task(work(at)))
            await until_async(lambda: server().zcard(keys().line) == at + 1)  # noqa: B023
        semaphore.release()
        began = time.monotonic()
        await asyncio.gather(*tasks)
        assert order == sorted(order)
        assert time.monotonic() - began < 2.5


class TestRepeats:
    """Calls whose replies were lost. See also test_machine.py."""

    def test_a_repeated_acquire_takes_one_permit_and_restarts_its_lease(self) -> None:
        """The caller counts the lease from its latest request."""
        asking = next(steps(printer(2)._acquire, Permit("token"), 0))
        assert [reply_to(asking) for _ in range(3)] == [1, 1, 1]
        server().zincrby(keys().holders, -1_000_000 * LONG / 2, "token")
        before = server().zscore(keys().holders, "token")
        assert reply_to(asking) == 1
        assert server().zscore(keys().holders, "token") > before
        assert printer().info().held == 1

    @pytest.mark.timing
    def test_a_repeated_release_is_applied_once_even_after_the_lease(self) -> None:
        semaphore, clock = printer(timeout=SHORT), Semaphore("clock", 1, timeout=SHORT)
        assert reply_to(next(steps(semaphore._acquire, Permit("token"), 0))) == 1
        assert clock.acquire()
        releasing = next(steps(semaphore._release, "token"))
        assert [reply_to(releasing) for _ in range(2)] == [1, 1]
        assert printer().acquire()
        until(lambda: clock.info().held == 0)
        assert reply_to(releasing) == 1
        assert semaphore.info().held == 1


class TestExpiry:
    def test_each_key_expires(self, without_polling: None) -> None:
        with printer(2, timeout=60):
            taken(2, timeout=LONG)
            joined("a")
            joined("b")
            printer().set_limit(3)
            ttls = {key.rpartition(":")[2]: server().pttl(key) for key in all_keys()}
        assert ttls.keys() == {"holders", "limit", "line", "waiting", "gate"}
        assert ttls["limit"] > 29 * 86_400_000
        assert 1000 * LONG + 50_000 < ttls["holders"] <= 2 * 1000 * LONG + 60_001
        assert 0 < ttls["gate"] <= 60_000
        assert all(0 < ttls[part] <= semaphores.WAITER_TTL + 1 for part in ("line", "waiting"))

    def test_a_lease_may_be_longer_than_the_limit_is_kept(self) -> None:
        semaphore = printer(timeout=timedelta(days=36_500))
        assert semaphore.acquire()
        assert semaphore.refresh()
        assert min(server().pttl(key) for key in all_keys()) > 36_499 * 86_400_000
        assert not printer().acquire()
        semaphore.release()
        assert printer().acquire()

    def test_use_extends_the_ttl_of_the_limit(self) -> None:
        semaphore = printer()
        for use in (semaphore.acquire, semaphore.refresh, lambda: semaphore.set_limit(1)):
            server().pexpire(keys().limit, 1000)
            use()
            assert server().pttl(keys().limit) > 29 * 86_400_000


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "name": (lambda: Semaphore("", 1), ValueError, "name is empty"),
    "name None": (lambda: Semaphore(None, 1), TypeError, "name must be a str"),  # type: ignore[arg-type]
    "limit 0": (lambda: printer(0), ValueError, "limit must be between 1 and 10000, not 0"),
    "timeout None": (lambda: printer(timeout=None), TypeError, "timeout"),
    "renew": (lambda: printer(renew=1), TypeError, "renew"),
    "blocking": (lambda: printer().acquire(1), TypeError, "blocking"),  # type: ignore[arg-type]
    "blocking_timeout alone": (lambda: printer().acquire(False, 1), ValueError, "needs blocking=True"),
    "blocking_timeout 0 alone": (lambda: printer().acquire(blocking_timeout=0), ValueError, "blocking=True"),
    "blocking_timeout of the object": (lambda: printer(blocking_timeout=1), ValueError, "blocking=True"),
    "blocking of the object": (lambda: printer(blocking=1), TypeError, "blocking"),
    "on_lost": (lambda: printer(on_lost=print), ValueError, "needs renew=True"),
    "on_lost 7": (lambda: printer(renew=True, on_lost=7), TypeError, "must be callable"),
    "holders": (lambda: printer().holders(limit=501), ValueError, "limit must be between 1 and 500"),
    "waiting": (lambda: printer().waiting(limit=0), ValueError, "limit"),
    "set_limit": (lambda: printer().set_limit(-1), ValueError, "limit must be between 0 and 10000, not -1"),
}
#: limits that neither the constructor nor set_limit accepts, by their error
BAD_LIMITS: dict[type[Exception], list[Any]] = {
    ValueError: [-1, 10_001],
    TypeError: [True, 1.0, float("nan"), "1", None],
}


class TestBadInput:
    """Errors are raised before anything is sent."""

    @pytest.mark.one_server
    @pytest.mark.parametrize("case", BAD)
    def test_bad_arguments(self, case: str) -> None:
        act, error, words = BAD[case]
        with pytest.raises(error, match=words):
            act()
        assert all_keys() == []

    @pytest.mark.one_server
    @pytest.mark.parametrize("error", BAD_LIMITS)
    def test_bad_limits(self, error: type[Exception]) -> None:
        for limit in BAD_LIMITS[error]:
            for act in (printer, printer().set_limit):
                with pytest.raises(error, match="limit"):
                    act(limit)
        assert all_keys() == []

    async def test_the_async_versions_reject_them_too(self) -> None:
        with pytest.raises(ValueError, match="blocking=True"):
            await printer().aacquire(False, 1)
        with pytest.raises(ValueError, match="limit"):
            await printer().aset_limit(-1)
        assert all_keys() == []


class TestHolders:
    async def test_a_permit_is_taken_away_and_no_other(self, without_polling: None, call: Call) -> None:
        """The first client that waits gets it, and the holder learns that it is lost."""
        one, other, body = taken(2), taken(2), joined("waiting")
        [evicted], [kept] = one._owners.current.tokens, other._owners.current.tokens
        assert not await call(printer(), "release_holder", "waiting"), "it holds nothing"
        assert polled(body) is None
        assert await call(printer(), "release_holder", evicted)
        assert server().xlen(keys().gate) == 1, "the client is woken"
        assert not await call(printer(), "release_holder", evicted)
        assert polled(body)
        assert {one.token for one in await call(printer(), "holders")} == {kept, "waiting"}
        assert not await call(one, "refresh")
        with pytest.raises(PermitLost):
            await call(one, "release")
        assert await call(printer(), "info") == info(2, 2, 0)
