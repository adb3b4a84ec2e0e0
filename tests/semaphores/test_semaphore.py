"""Semaphores: permits, leases, the queue of waiting clients, and their wake-ups."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import pytest

from django_redis_messaging import (
    ConfigurationError,
    LeaseLost,
    PermitLost,
    Semaphore,
    SemaphoreError,
    SemaphoreInfo,
    Unavailable,
    conf,
    deadline,
)
from django_redis_messaging.core import clients
from django_redis_messaging.services.common import leases
from django_redis_messaging.services.semaphores import semaphore as semaphores
from django_redis_messaging.services.semaphores.semaphore import Permit, SemaphoreKeys

from ..conftest import Call
from ..support.server import DEADLINE, all_keys, reply_to, server, snapshot, steps, until

pytestmark = pytest.mark.usefixtures("closing")
#: seconds: longer than any test
LONG = 1000
#: seconds
SHORT = 0.15
#: seconds that a client waits for its wake-up: longer than a poll would take
PATIENCE = 3 * DEADLINE
#: seconds of tolerance for a busy machine
SLACK = 2.0


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting clients don't poll."""
    monkeypatch.setattr(semaphores, "POLL_INTERVAL", 3600.0)
    monkeypatch.setattr(semaphores, "WAITER_TTL", 3_600_000)


def printer(limit: int = 1, *, timeout: float = LONG, **options: Any) -> Semaphore:
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


@contextmanager
def in_queue(*names: str, got: list[str] | None = None) -> Iterator[list[Future[None]]]:
    """Threads that wait for a permit, in this order; each appends its name when it has one, and releases
    it."""
    nobody_is_blocked()
    passed = [] if got is None else got

    def wait(name: str) -> None:
        semaphore = printer()
        assert semaphore.acquire(True, PATIENCE), "it was not woken"
        passed.append(name)
        semaphore.release()

    with ThreadPoolExecutor(len(names)) as pool:
        futures = []
        for at, name in enumerate(names, 1):
            futures.append(pool.submit(wait, name))
            until(lambda: blocked() == at)  # noqa: B023
        yield futures


def blocked() -> int:
    """The number of blocked commands on the server."""
    return int(server().info("clients")["blocked_clients"])


def nobody_is_blocked() -> None:
    """Wait until the pending commands of other tests have ended."""
    clients.close()
    until(lambda: blocked() == 0)


async def queued(semaphore: Semaphore, count: int) -> None:
    """Let other tasks run until this many wait."""
    ends = time.monotonic() + DEADLINE
    while (await semaphore.ainfo()).waiting < count:
        assert time.monotonic() < ends


class TestPermits:
    async def test_the_limit_is_not_exceeded(self, call: Call) -> None:
        one = printer(2)
        assert [await call(one, "acquire") for _ in range(3)] == [True, True, False]
        assert await call(printer(), "acquire") is False
        assert await call(one, "info") == info(2, 2, 0)
        await call(one, "release")
        assert await call(printer(), "acquire") is True

    async def test_each_name_has_its_own_permits(self, call: Call) -> None:
        assert await call(Semaphore("a:{b}", 1), "acquire")
        assert await call(Semaphore("a%3A{b}", 1), "acquire")
        assert not await call(Semaphore("a:{b}", 1), "acquire")

    async def test_the_first_limit_is_stored(self, call: Call) -> None:
        assert await call(printer(5), "info") == info(5, 0, 0)
        assert await call(printer(2), "acquire")
        assert await call(printer(5), "info") == info(2, 1, 0)
        assert [await call(printer(5), "acquire") for _ in range(2)] == [True, False]

    async def test_a_raised_limit_applies_to_all_clients(self, call: Call) -> None:
        first = taken()
        await call(printer(7), "set_limit", 2)
        assert [await call(first, "acquire") for _ in range(2)] == [True, False]

    async def test_a_lowered_limit_revokes_no_permit(self, call: Call) -> None:
        one = printer(3)
        for _ in range(3):
            assert await call(one, "acquire")
        await call(one, "set_limit", 1)
        assert await call(one, "info") == info(1, 3, 0)
        assert await call(one, "refresh")
        for _ in range(2):
            await call(one, "release")
            assert not await call(printer(), "acquire")
        await call(one, "release")
        assert await call(printer(), "acquire")

    async def test_a_limit_of_zero_grants_nothing(self, call: Call) -> None:
        await call(printer(), "set_limit", 0)
        assert not await call(printer(), "acquire")
        assert not await call(printer(), "acquire", True, 0.01)

    async def test_a_lowered_limit_forgets_no_holder(self, call: Call) -> None:
        """A thousand expired permits are remembered, besides all held ones."""
        one = printer(1005)
        for _ in range(1003):
            assert one.acquire()
        await call(one, "set_limit", 1)
        assert not await call(printer(), "acquire")
        assert (await call(one, "info")).held == 1003

    async def test_expired_permits_are_removed(self, call: Call) -> None:
        one = printer()
        server().zadd(keys().holders, {f"dead {number}": number + 1 for number in range(1500)})
        assert await call(one, "acquire")
        assert server().zcard(keys().holders) == 1001
        await call(one, "release")
        assert await call(one, "acquire")
        assert server().zcard(keys().holders) <= 1001


class TestHolders:
    async def test_only_the_holder_releases(self, call: Call) -> None:
        taken()
        with pytest.raises(SemaphoreError, match="acquire one first"):
            await call(printer(), "release")
        with pytest.raises(SemaphoreError, match="holds no permit"):
            await call(printer(), "refresh")
        assert printer().info().held == 1

    async def test_a_permit_is_released_once(self, call: Call) -> None:
        one = printer()
        assert await call(one, "acquire")
        await call(one, "release")
        with pytest.raises(SemaphoreError):
            await call(one, "release")

    def test_a_permit_belongs_to_its_thread(self) -> None:
        shared = taken(2)
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(SemaphoreError, match="thread"):
                pool.submit(shared.release).result()
            assert pool.submit(shared.acquire).result()
            assert shared.info().held == 2
            shared.release()
            with pytest.raises(SemaphoreError):
                shared.release()
            pool.submit(shared.release).result()
        assert shared.info().held == 0

    async def test_a_permit_belongs_to_its_task(self) -> None:
        shared = printer(2)
        assert await shared.aacquire()
        with pytest.raises(SemaphoreError, match="task"):
            await asyncio.create_task(shared.arelease())

        async def hold() -> None:
            async with shared:
                assert (await shared.ainfo()).held == 2

        await asyncio.create_task(hold())
        await shared.arelease()
        assert (await shared.ainfo()).held == 0

    async def test_the_latest_is_released_first(self, call: Call) -> None:
        one = printer(2)
        assert await call(one, "acquire")
        [first] = server().zrange(keys().holders, 0, -1)
        assert await call(one, "acquire")
        await call(one, "release")
        assert server().zrangebyscore(keys().holders, 0, "inf") == [first]


class TestForms:
    async def test_a_with_block_releases(self) -> None:
        semaphore = printer()
        with semaphore as entered:
            assert entered is semaphore
            assert not printer().acquire()
        async with semaphore as entered:
            assert entered is semaphore
            assert not await printer().aacquire()
        assert semaphore.info().held == 0

    async def test_a_with_block_raises_if_no_permit_is_free(self) -> None:
        taken()
        with pytest.raises(SemaphoreError, match="is free: use blocking=True"), printer():
            pytest.fail("a permit was granted")
        with pytest.raises(SemaphoreError, match="is free"):
            async with printer():
                pytest.fail("a permit was granted")
        options = {"blocking": True, "blocking_timeout": 0.01}
        with pytest.raises(SemaphoreError, match="became free in time"), printer(**options):
            pytest.fail("a permit was granted")
        assert printer().info() == info(1, 1, 0)

    async def test_a_with_block_waits_with_blocking(self) -> None:
        semaphore, waits = printer(), printer(blocking=True, blocking_timeout=DEADLINE)
        assert await semaphore.aacquire()

        async def enter() -> int:
            async with waits:
                return waits.info().held

        entered = asyncio.create_task(enter())
        await queued(semaphore, 1)
        await semaphore.arelease()
        assert await entered == 1

    async def test_the_arguments_of_acquire_override_those_of_the_constructor(self, call: Call) -> None:
        taken()
        waits = printer(blocking=True, blocking_timeout=SHORT)
        assert not await call(waits, "acquire", False)
        began = time.monotonic()
        assert not await call(waits, "acquire")
        assert not await call(waits, "acquire", True)
        assert time.monotonic() - began >= 2 * SHORT
        assert not await call(waits, "acquire", blocking_timeout=0)

    async def test_an_error_in_the_block_releases(self) -> None:
        with pytest.raises(ZeroDivisionError), printer():
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with printer():
                raise ZeroDivisionError
        assert printer().info().held == 0

    @pytest.mark.timing
    async def test_a_lost_lease_raises_at_the_end_of_the_block(self) -> None:
        with pytest.raises(SemaphoreError, match=r"0\.01 s.* had expired"), printer(timeout=0.01):
            until(lambda: printer().info().held == 0)
        with pytest.raises(SemaphoreError, match="renew=True"):
            async with printer(timeout=0.01):
                until(lambda: printer().info().held == 0)

    @pytest.mark.timing
    async def test_a_failed_release_does_not_hide_the_error_of_the_block(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING)
        with pytest.raises(ZeroDivisionError), printer(timeout=0.01):
            until(lambda: printer().info().held == 0)
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with printer(timeout=0.01):
                until(lambda: printer().info().held == 0)
                raise ZeroDivisionError
        assert caplog.text.count("was not released") == 2

    async def test_a_decorated_function_holds_a_permit(self) -> None:
        @printer()
        def held(number: int) -> tuple[int, int]:
            """Says how many."""
            return number, printer().info().held

        @printer()
        async def aheld(number: int) -> tuple[int, int]:
            return number, (await printer().ainfo()).held

        assert (held(1), await aheld(2), printer().info().held) == ((1, 1), (2, 1), 0)
        assert (held.__name__, held.__doc__) == ("held", "Says how many.")

    def test_its_repr(self) -> None:
        assert repr(printer(3)) == "Semaphore('printer', 3)"


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
        assert [one.token for one in await call(printer(), "waiting")] == ["b", "a", "c"]
        assert [one.token for one in await call(printer(), "waiting", limit=2)] == ["b", "a"]
        since = [one.since for one in await call(printer(), "waiting")]
        assert since == sorted(since)
        assert abs(since[0] - before) < timedelta(seconds=DEADLINE)
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

    async def test_a_waiting_client_polls_when_the_next_lease_ends(
        self, call: Call, without_polling: None
    ) -> None:
        assert await call(printer(2, timeout=SHORT), "acquire")
        assert await call(printer(), "acquire")
        began = time.monotonic()
        assert await call(printer(), "acquire", True, PATIENCE)
        assert time.monotonic() - began < DEADLINE, "only its last look found it"
        assert printer().info() == info(2, 2, 0)

    def test_each_waiting_client_polls_when_enough_leases_have_ended(self, without_polling: None) -> None:
        for lease in (100, 200, 300):
            taken(3, timeout=lease)
        looks = [reply_to(next(steps(printer()._acquire, Permit(token), LONG)))[1] for token in "abc"]
        assert [round(ms / 100_000, 1) for ms in looks] == [1, 2, 3]
        printer().set_limit(2)
        look = reply_to(next(steps(printer()._acquire, Permit("a"), LONG)))[1]
        assert round(look / 100_000, 1) == 2

    async def test_a_refreshed_permit_lasts(self, call: Call) -> None:
        one = printer(2, timeout=SHORT)
        assert await call(one, "acquire")
        assert await call(one, "acquire")
        ends = time.monotonic() + 3 * SHORT
        while time.monotonic() < ends:
            assert await call(one, "refresh") is True
            assert not await call(printer(), "acquire")
        until(lambda: one.info().held == 0)
        assert await call(one, "refresh") is False

    async def test_refresh_reports_any_lost_permit(self, call: Call) -> None:
        one = printer(2)
        assert await call(one, "acquire")
        assert await call(one, "acquire")
        server().zrem(keys().holders, server().zrange(keys().holders, 0, 0)[0])
        assert await call(one, "refresh") is False
        assert one.info().held == 1

    async def test_a_refresh_of_many_permits_is_paged(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(semaphores, "REFRESH_PAGE", 2)
        one = printer(9, timeout=LONG)
        for _ in range(5):
            assert await call(one, "acquire")
        first, *others = server().zrange(keys().holders, 0, -1)
        server().zadd(keys().holders, dict.fromkeys(others, 2**52))
        before = evalshas()
        assert await call(one, "refresh") is True
        assert evalshas() - before == 3
        assert max(score for _, score in server().zrange(keys().holders, 0, -1, withscores=True)) < 2**52
        server().zrem(keys().holders, first)
        assert await call(one, "refresh") is False

    async def test_refresh_reports_lost_data(self, call: Call) -> None:
        one = printer()
        assert await call(one, "acquire")
        server().delete(keys().holders)
        assert await call(one, "refresh") is False
        with pytest.raises(SemaphoreError):
            await call(one, "release")

    async def test_leases_may_differ(self, call: Call) -> None:
        short = printer(2, timeout=SHORT)
        taken(2)
        assert await call(short, "acquire")
        until(lambda: short.info().held == 1)
        assert await call(short, "refresh") is False

    async def test_a_renewed_permit_lasts_until_its_release(self, call: Call) -> None:
        kept = printer(timeout=SHORT, renew=True)
        assert await call(kept, "acquire")
        assert not await call(printer(), "acquire", True, 3 * SHORT)
        await call(kept, "release")
        assert not [one for renewer in leases._renewers.values() for one in list(renewer._leases)]
        assert await call(printer(), "acquire")

    async def test_a_lost_permit_is_reported(self, call: Call) -> None:
        lost: SimpleQueue[LeaseLost] = SimpleQueue()
        kept = printer(timeout=0.06, renew=True, on_lost=lost.put)
        assert await call(kept, "acquire")
        server().delete(keys().holders)
        error = await asyncio.to_thread(lost.get, timeout=DEADLINE)
        assert isinstance(error, PermitLost)
        with pytest.raises(PermitLost):
            await call(kept, "release")
        assert lost.empty()

    def test_a_renewed_permit_lasts_until_the_end_of_its_thread(self) -> None:
        kept = printer(timeout=SHORT, renew=True)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(kept.acquire).result()
            assert not printer().acquire(True, 2 * SHORT)
        assert printer().acquire(True, DEADLINE)

    async def test_a_renewed_permit_lasts_until_the_end_of_its_task(self) -> None:
        kept = printer(timeout=SHORT, renew=True)
        assert await asyncio.create_task(kept.aacquire())
        assert await printer().aacquire(True, DEADLINE)


@pytest.mark.timing
class TestWaiting:
    async def test_a_client_without_time_left_leaves_the_queue(self, call: Call) -> None:
        taken()
        began = time.monotonic()
        assert await call(printer(), "acquire", True, SHORT) is False
        assert SHORT <= time.monotonic() - began < DEADLINE
        assert await call(printer(), "acquire", True, timedelta(seconds=0)) is False
        assert printer().info() == info(1, 1, 0)

    async def test_a_client_whose_deadline_ends_leaves_the_queue(self, call: Call) -> None:
        taken()
        with pytest.raises(Unavailable), deadline(0.2):
            await call(printer(), "acquire", True, LONG)
        assert printer().info() == info(1, 1, 0)

    def test_an_interrupt_after_the_grant_releases_the_permit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Semaphore._store

        def interrupted(*args: Any) -> bool:
            store(*args)
            raise KeyboardInterrupt

        semaphore = printer()
        monkeypatch.setattr(Semaphore, "_store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            semaphore.acquire()
        assert printer().info() == info(1, 0, 0)
        with pytest.raises(SemaphoreError, match="holds no permit"):
            semaphore.release()

    def test_a_release_wakes_the_first_client(self, without_polling: None) -> None:
        semaphore, got = taken(), list[str]()
        with in_queue("a", "b", "c", got=got):
            assert semaphore.info() == info(1, 1, 3)
            semaphore.release()
        assert got == ["a", "b", "c"]

    async def test_a_release_wakes_tasks(self, without_polling: None) -> None:
        semaphore, got = printer(), list[int]()
        assert await semaphore.aacquire()

        async def wait(number: int) -> None:
            assert await semaphore.aacquire(blocking=True)
            got.append(number)
            await semaphore.arelease()

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(wait(number))
                await queued(semaphore, number + 1)
            await semaphore.arelease()
        assert got == [0, 1, 2, 3, 4]

    def test_a_raised_limit_wakes_as_many_clients(self, without_polling: None) -> None:
        semaphore, together = taken(), threading.Barrier(3)

        def wait() -> None:
            assert printer().acquire(True, PATIENCE), "it was not woken"
            together.wait(PATIENCE)

        with ThreadPoolExecutor(2) as pool:
            waits = [pool.submit(wait) for _ in range(2)]
            until(lambda: semaphore.info().waiting == 2)
            semaphore.set_limit(3)
            together.wait(PATIENCE)
            for one in waits:
                one.result()

    async def test_no_client_overtakes(self, call: Call, without_polling: None) -> None:
        semaphore = taken()
        waiting = joined("first")
        semaphore.release()
        assert not await call(printer(), "acquire")
        assert not await call(printer(), "acquire", True, 0.01)
        assert looked(waiting) is True

    async def test_a_newcomer_gets_a_spare_permit(self, call: Call, without_polling: None) -> None:
        semaphore = taken()
        waiting = joined("first")
        semaphore.set_limit(3)
        assert await call(printer(), "acquire")
        assert not await call(printer(), "acquire")
        assert looked(waiting) is True

    async def test_a_dead_waiter_delays_the_others_by_a_second(self, call: Call) -> None:
        semaphore = taken()
        joined("dead")
        semaphore.release()
        began = time.monotonic()
        assert not await call(printer(), "acquire")
        assert await call(printer(), "acquire", True, DEADLINE)
        # it may have been alive until then
        assert time.monotonic() - began < 1.0 + SLACK

    def test_a_dead_waiter_delays_nobody_for_longer_after_the_clock_was_set_back(self) -> None:
        semaphore = taken()
        joined("dead")
        alive = joined("alive")
        hour = 3600 * 1_000_000
        for token in ("dead", "alive"):
            server().zincrby(keys().waiting, hour, token)
        semaphore.release()
        assert not printer().acquire()
        assert looked(alive) is None
        began = time.monotonic()
        until(lambda: looked(alive))
        assert time.monotonic() - began < 1.0 + SLACK

    def test_the_next_client_is_woken_when_a_dead_one_is_removed(self, without_polling: None) -> None:
        semaphore = taken()
        joined("dead")
        with in_queue("alive"):
            server().zadd(keys().waiting, {"dead": 1})
            semaphore.release()

    def test_any_call_removes_a_dead_waiter(self, without_polling: None) -> None:
        semaphore = taken()
        for name in ("dead", "second"):
            joined(name)
        third = joined("third")
        semaphore.release()
        server().zadd(keys().waiting, {"dead": 1})
        assert looked(third) is None
        assert gate() == ticket("second")

    def test_a_client_that_gave_up_takes_no_wakeup(self, without_polling: None) -> None:
        """Its read on the server outlives it for two seconds; waking it has no effect on others."""
        semaphore = taken()
        nobody_is_blocked()
        assert not printer().acquire(True, 0.05)
        assert blocked() == 1
        got = list[str]()
        with in_queue("next", got=got):
            semaphore.release()
        assert got == ["next"]

    async def test_tasks_that_wait_poll_for_each_other(self) -> None:
        semaphore, count = printer(), 40
        assert await semaphore.aacquire()
        tasks = [asyncio.create_task(printer().aacquire(True)) for _ in range(count)]
        await queued(semaphore, count)
        order, before = server().zrange(keys().line, 0, -1), evalshas()
        await asyncio.sleep(1.3)  # a client that didn't poll would count as dead
        assert evalshas() - before <= 1.3 / semaphores.POLL_INTERVAL + 10
        assert server().zrange(keys().line, 0, -1) == order
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert await semaphore.ainfo() == info(1, 1, 0)

    async def test_a_cancelled_task_leaves_the_queue_at_once(self, without_polling: None) -> None:
        semaphore = printer()
        assert await semaphore.aacquire()
        nobody_is_blocked()
        waiting = asyncio.create_task(printer().aacquire(True))
        while blocked() == 0:  # noqa: ASYNC110 (the server's state)
            await asyncio.sleep(0.002)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await semaphore.ainfo() == info(1, 1, 0)

    def test_an_interrupted_thread_leaves_the_queue_at_once(
        self, without_polling: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        semaphore = taken()

        def interrupted(*_: object) -> None:
            assert semaphore.info().waiting == 1
            raise KeyboardInterrupt

        monkeypatch.setattr(clients.Client, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            printer().acquire(True)
        assert semaphore.info() == info(1, 1, 0)

    def test_a_permit_granted_to_an_interrupted_caller_is_released(self, without_polling: None) -> None:
        semaphore = taken()
        waiting = joined("gone")
        with in_queue("next"):
            semaphore.release()
            assert looked(waiting) is True
            reply_to(next(steps(semaphore._release, "gone")))

    def test_a_gate_opened_too_far_is_closed(self, without_polling: None) -> None:
        """Otherwise its readers would poll without a pause."""
        semaphore = taken()
        first, second = joined("first"), joined("second")
        semaphore.set_limit(3)
        semaphore.set_limit(2)
        assert looked(second) is None
        assert gate() == ticket("first")
        semaphore.set_limit(1)
        assert looked(first) is None
        assert gate() == 0
        semaphore.set_limit(3)
        assert gate() == ticket("second")
        assert looked(first) is True
        assert looked(second) is True


def joined(token: str) -> Any:
    """The steps of a client that waits in the queue."""
    body = steps(printer()._acquire, Permit(token), float("inf"))
    body.send(reply_to(next(body)))
    return body


def looked(body: Any) -> bool | None:
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


class TestRepeats:
    def test_an_acquire_whose_reply_was_lost_takes_one(self) -> None:
        semaphore = printer(2)
        asking = next(steps(semaphore._acquire, Permit("token"), 0))
        assert [reply_to(asking) for _ in range(3)] == [1, 1, 1]
        assert semaphore.info().held == 1
        assert semaphore.acquire()
        assert reply_to(asking) == 1
        assert semaphore.info().held == 2

    def test_a_repeat_restarts_the_lease(self) -> None:
        """The caller counts the lease from its latest request."""
        asking = next(steps(printer()._acquire, Permit("token"), 0))
        assert reply_to(asking) == 1
        server().zincrby(keys().holders, -1_000_000 * LONG / 2, "token")
        before = server().zscore(keys().holders, "token")
        assert reply_to(asking) == 1
        assert server().zscore(keys().holders, "token") > before

    def test_a_lease_lasts_from_when_its_request_was_sent(self) -> None:
        semaphore, permit = printer(renew=True), Permit("token")
        body = steps(semaphore._acquire, permit, 0)
        reply, sent_before = reply_to(next(body)), time.monotonic()
        until(lambda: time.monotonic() > sent_before + 0.02)  # the reply is slow
        with pytest.raises(StopIteration):
            body.send(reply)
        assert semaphore._store(permit, True)
        assert permit.renewal is not None
        assert permit.renewal.valid_until <= sent_before + LONG
        semaphore.release()

    def test_a_repeat_has_one_place_in_the_queue(self, without_polling: None) -> None:
        taken()
        asking = next(steps(printer()._acquire, Permit("token"), LONG))
        assert len({reply_to(asking)[0] for _ in range(3)}) == 1
        assert printer().info().waiting == 1

    def test_a_release_whose_reply_was_lost_is_applied_once(self) -> None:
        semaphore = printer()
        assert reply_to(next(steps(semaphore._acquire, Permit("token"), 0))) == 1
        releasing = next(steps(semaphore._release, "token"))
        assert [reply_to(releasing) for _ in range(2)] == [1, 1]
        assert semaphore.acquire()
        assert reply_to(releasing) == 1
        assert semaphore.info().held == 1

    @pytest.mark.timing
    def test_a_repeated_release_succeeds_after_the_lease(self) -> None:
        semaphore, clock = printer(timeout=SHORT), Semaphore("clock", 1, timeout=SHORT)
        assert reply_to(next(steps(semaphore._acquire, Permit("token"), 0))) == 1
        assert clock.acquire()
        releasing = next(steps(semaphore._release, "token"))
        assert reply_to(releasing) == 1
        until(lambda: clock.info().held == 0)
        assert reply_to(releasing) == 1


class TestCost:
    def test_acquire_and_release_are_a_round_trip_each(self) -> None:
        semaphore = printer()
        with semaphore:
            pass  # the scripts are loaded
        for act in (semaphore.acquire, semaphore.refresh, semaphore.release, semaphore.info):
            before = evalshas()
            act()
            assert evalshas() - before == 1

    def test_a_client_that_gives_up_has_polled_twice(self, without_polling: None) -> None:
        taken()
        printer().acquire(True, 0.01)
        before = evalshas()
        assert not printer().acquire(True, 0.05)
        assert evalshas() - before == 2

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
        semaphore = Semaphore("printer", 1, timeout=timedelta(days=36_500))
        assert semaphore.acquire()
        assert semaphore.refresh()
        assert min(server().pttl(key) for key in all_keys()) > 36_499 * 86_400_000
        assert not printer().acquire()
        semaphore.release()
        assert printer().acquire()

    def test_use_extends_the_ttl_of_the_limit(self) -> None:
        uses: list[Callable[[Semaphore], object]] = [
            lambda one: one.acquire(), lambda one: one.refresh(), lambda one: one.set_limit(1),
        ]  # fmt: skip
        semaphore = printer()
        for use in uses:
            server().pexpire(keys().limit, 1000)
            use(semaphore)
            assert server().pttl(keys().limit) > 29 * 86_400_000


def evalshas() -> int:
    return int(server().info("commandstats")["cmdstat_evalsha"]["calls"])


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "name": (lambda: Semaphore("", 1), ValueError, "name is empty"),
    "name None": (lambda: Semaphore(None, 1), TypeError, "name must be a str"),  # type: ignore[arg-type]
    "limit 0": (lambda: printer(0), ValueError, "limit must be between 1 and 10000, not 0"),
    "limit huge": (lambda: printer(10_001), ValueError, "limit"),
    "limit bool": (lambda: printer(True), TypeError, "limit"),
    "limit float": (lambda: printer(1.0), TypeError, "limit"),  # type: ignore[arg-type]
    "timeout": (lambda: printer(timeout=0), ValueError, "timeout"),
    "timeout None": (lambda: printer(timeout=None), TypeError, "timeout"),  # type: ignore[arg-type]
    "timeout nan": (lambda: printer(timeout=float("nan")), ValueError, "timeout"),
    "renew": (lambda: printer(renew=1), TypeError, "renew"),
    "blocking": (lambda: printer().acquire(1), TypeError, "blocking"),  # type: ignore[arg-type]
    "blocking_timeout": (lambda: printer().acquire(True, -1), ValueError, "blocking_timeout"),
    "blocking_timeout inf": (lambda: printer().acquire(True, float("inf")), ValueError, "blocking_timeout"),
    "blocking_timeout alone": (lambda: printer().acquire(False, 1), ValueError, "needs blocking=True"),
    "blocking_timeout 0 alone": (lambda: printer().acquire(blocking_timeout=0), ValueError, "blocking=True"),
    "blocking_timeout of the constructor": (
        lambda: printer(blocking_timeout=1),
        ValueError,
        "needs blocking=True",
    ),
    "blocking of the constructor": (lambda: printer(blocking=1), TypeError, "blocking"),
    "on_lost": (lambda: printer(on_lost=print), ValueError, "needs renew=True"),
    "on_lost None": (lambda: printer(renew=True, on_lost=7), TypeError, "must be callable"),
    "holders": (lambda: printer().holders(limit=501), ValueError, "limit must be between 1 and 500"),
    "waiting": (lambda: printer().waiting(limit=0), ValueError, "limit"),
    "set_limit": (lambda: printer().set_limit(-1), ValueError, "limit must be between 0 and 10000, not -1"),
    "set_limit huge": (lambda: printer().set_limit(10_001), ValueError, "limit"),
    "set_limit None": (lambda: printer().set_limit(None), TypeError, "limit"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_raise_before_anything_is_sent(case: str) -> None:
    act, error, words = BAD[case]
    with pytest.raises(error, match=words):
        act()
    assert all_keys() == []


async def test_the_async_versions_reject_them_too() -> None:
    with pytest.raises(ValueError, match="blocking=True"):
        await printer().aacquire(False, 1)
    with pytest.raises(ValueError, match="limit"):
        await printer().aset_limit(-1)
    assert all_keys() == []


#: the keys that each operation uses, whose types it must check
TAKES: dict[str, tuple[Callable[[Semaphore], object], str]] = {
    "acquire": (lambda one: printer().acquire(), "holders limit line waiting gate"),
    "wait": (lambda one: printer().acquire(True, 0.01), "holders limit line waiting gate"),
    "release": (lambda one: one.release(), "holders limit line waiting gate"),
    "refresh": (lambda one: one.refresh(), "holders"),
    "set_limit": (lambda one: one.set_limit(9), "holders limit line waiting gate"),
    "info": (lambda one: one.info(), "holders limit waiting"),
}


@pytest.mark.parametrize("part", ["holders", "limit", "line", "waiting", "gate"])
@pytest.mark.parametrize("operation", TAKES)
def test_a_key_that_holds_another_type(operation: str, part: str, without_polling: None) -> None:
    act, takes = TAKES[operation]
    semaphore = taken()
    joined("one")
    server().delete(getattr(keys(), part))
    server().sadd(getattr(keys(), part), "not ours")
    before = snapshot()
    if part in takes.split():
        with pytest.raises(ConfigurationError, match="another type"):
            act(semaphore)
        assert snapshot() == before
    else:
        act(semaphore)
        assert snapshot()[getattr(keys(), part)] == before[getattr(keys(), part)]


async def test_a_flushed_script_cache_is_not_noticed(call: Call) -> None:
    semaphore = printer()
    for name, answer in [("acquire", True), ("refresh", True), ("info", info(1, 1, 0)), ("release", None)]:
        server().script_flush()
        assert await call(semaphore, name) == answer


@pytest.mark.timing
class TestManyAtOnce:
    def test_many_threads_never_exceed_the_limit(self) -> None:
        inside, most, guard = 0, 0, threading.Lock()
        semaphore = printer(3, blocking=True)

        def work() -> None:
            nonlocal inside, most
            for _ in range(30):
                with semaphore:
                    with guard:
                        inside += 1
                        most = max(most, inside)
                    with guard:
                        inside -= 1

        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= most <= 3
        assert semaphore.info() == info(3, 0, 0)

    async def test_a_long_queue_keeps_its_order(self) -> None:
        semaphore, order = taken(), list[int]()

        async def work(at: int) -> None:
            async with printer(blocking=True):
                order.append(at)
                await asyncio.sleep(0.02)

        tasks = []
        for at in range(120):
            tasks.append(asyncio.create_task(work(at)))
            await queued(semaphore, at + 1)
        semaphore.release()
        began = time.monotonic()
        await asyncio.gather(*tasks)
        assert order == sorted(order)
        assert time.monotonic() - began < 5
