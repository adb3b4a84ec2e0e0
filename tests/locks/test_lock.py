"""Locks: holders, leases, the queue of waiting clients, and fences."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from redis import exceptions
from redis.crc import key_slot
from redis.lock import Lock as DriversLock

from django_redis_messaging import (
    LeaseLost,
    LimitExceeded,
    Lock,
    LockError,
    LockNotOwnedError,
    MessagingError,
    Unavailable,
    conf,
    deadline,
)
from django_redis_messaging.core import clients
from django_redis_messaging.core.commands import load
from django_redis_messaging.core.operations import Script
from django_redis_messaging.errors import TaskTimeout
from django_redis_messaging.services.common import leases as lease_renewer
from django_redis_messaging.services.common import waiters
from django_redis_messaging.services.common.leases import RenewedLease
from django_redis_messaging.services.locks import lock as steps
from django_redis_messaging.services.locks.lock import LockKeys

from ..conftest import Call
from ..support.processes import forked
from ..support.scripts import Planting
from ..support.server import DEADLINE, all_keys, reply_to, server, server_ms, snapshot, until
from ..support.server import steps as operation_steps

#: seconds: longer than any test
LONG = 1000
#: seconds of tolerance for a busy machine
SLACK = 2.0
pytestmark = pytest.mark.usefixtures("messaging_alias", "closing")


@pytest.fixture
def without_polling(plant: Planting) -> None:
    """Waiting clients don't poll, and their tickets don't expire."""
    plant(("locks/_locks", "TICKET = 2000", "TICKET = 36e5"))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def keys(lock: Lock) -> LockKeys:
    return LockKeys(conf.prefix(), lock.key)


def waiting(lock: Lock) -> int:
    """The length of the queue."""
    return int(server().zcard(keys(lock).line))


def ttl(lock: Lock) -> int:
    """ms"""
    return int(server().pttl(lock.key))


def scripts() -> int:
    """The number of scripts that were called."""
    return int(server().info("commandstats")["cmdstat_evalsha"]["calls"])


def source(script: str) -> str:
    return load(script).text


async def until_async(holds: Callable[[], object]) -> None:
    """Wait until a condition is true, without blocking the event loop."""
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110 (it is in Redis, which sets no asyncio.Event)
            await asyncio.sleep(0.002)


class Waiter:
    """A thread that waits for a lock."""

    def __init__(self, lock: Lock, pool: ThreadPoolExecutor, **options: Any) -> None:
        before = waiting(lock)
        self.lock = lock
        self.fence = 0
        #: set by the test to let it release the lock
        self.go_on = threading.Event()
        self.acquired: Future[bool] = Future()
        self.ended = pool.submit(self._run, {"blocking_timeout": DEADLINE, **options})
        until(lambda: waiting(lock) == before + 1)

    def _run(self, options: dict[str, Any]) -> None:
        got = self.lock.acquire(**options)
        self.fence = self.lock.fence
        self.acquired.set_result(got)
        if got:
            self.go_on.wait(DEADLINE)
            self.lock.release()

    def leave(self) -> None:
        """Check that it was acquired, and release it."""
        assert self.acquired.result(DEADLINE)
        self.go_on.set()
        self.ended.result(DEADLINE)


class TestOne:
    async def test_it_is_held_once_until_its_release(self, call: Call) -> None:
        one, other = Lock("door"), Lock("door")
        assert await call(one, "acquire")
        assert not await call(other, "acquire", blocking=False)
        assert (await call(one, "locked"), await call(other, "locked")) == (True, True)
        assert (await call(one, "owned"), await call(other, "owned")) == (True, False)
        await call(one, "release")
        assert (await call(one, "locked"), await call(one, "owned")) == (False, False)
        assert await call(other, "acquire", blocking=False)

    async def test_the_key_holds_the_token_for_the_time_of_the_lease(self, call: Call) -> None:
        lock = Lock("door", timeout=timedelta(seconds=7))
        assert await call(lock, "acquire", token="mine")
        assert lock.key == f"{conf.prefix()}:1:{{lock:door}}"
        assert server().get(lock.key) == b"mine"
        assert 6000 < ttl(lock) <= 7000

    async def test_without_a_timeout_there_is_no_lease(self, call: Call) -> None:
        lock = Lock("door", timeout=None)
        assert await call(lock, "acquire")
        assert (ttl(lock), lock.timeout) == (-1, None)
        for verb, words in {"extend": (1,), "reacquire": ()}.items():
            with pytest.raises(LockError, match="timeout is None"):
                await call(lock, verb, *words)
        await call(lock, "release")
        assert not await call(lock, "locked")

    async def test_it_is_free_after_its_lease(self, call: Call) -> None:
        lock, other = Lock("door", timeout=0.05), Lock("door")
        assert await call(lock, "acquire")
        assert await call(other, "acquire")
        assert not await call(lock, "owned")
        with pytest.raises(LockNotOwnedError, match="its lease had expired"):
            await call(lock, "release")
        assert await call(other, "owned")
        with pytest.raises(LockError, match="hasn't acquired"):
            await call(lock, "release")

    async def test_only_the_owner_releases(self, call: Call) -> None:
        lock = Lock("door")
        assert await call(lock, "acquire")
        server().set(lock.key, "somebody else")
        for verb, words in {"extend": (1,), "reacquire": (), "release": ()}.items():
            with pytest.raises(LockNotOwnedError):
                await call(lock, verb, *words)
        assert server().get(lock.key) == b"somebody else"

    async def test_a_lock_that_was_not_acquired_is_an_error(self, call: Call) -> None:
        for verb, words in {"extend": (1,), "reacquire": (), "release": ()}.items():
            with pytest.raises(LockError, match=f"can't {verb}"):
                await call(Lock("door"), verb, *words)

    async def test_extend_adds_or_replaces(self, call: Call) -> None:
        lock = Lock("door", timeout=10)
        await call(lock, "acquire")
        assert await call(lock, "extend", 10) is True
        assert 18_000 < ttl(lock) <= 20_000
        assert await call(lock, "extend", 5, replace_ttl=True) is True
        assert 4000 < ttl(lock) <= 5000
        assert await call(lock, "reacquire") is True
        assert 8000 < ttl(lock) <= 10_000

    def test_a_repeated_extend_is_applied_once(self) -> None:
        lock = Lock("door", timeout=10)
        lock.acquire(token="mine")
        for _ in range(2):
            names, words = keys(lock).all, ("mine", 10_000, "add", "one")
            extended = server().eval(source("locks/extend"), len(names), *names, *words)
            assert 10_000 < extended <= 20_000
        assert ttl(lock) <= 20_000

    def test_a_repeated_acquire_returns_the_same_fence(self) -> None:
        lock = Lock("door")
        words = ("mine", 10_000, 10, 0)
        text, names = source("locks/acquire"), keys(lock).with_ring
        first = server().eval(text, len(names), *names, *words)
        assert server().eval(text, len(names), *names, *words) == first > 0
        assert waiting(lock) == 0

    def test_a_repeated_release_does_not_affect_the_next_holder(self) -> None:
        lock, other = Lock("door"), Lock("door")
        lock.acquire(token="mine")
        lock.release()
        assert other.acquire()
        assert lock._leave(b"mine")
        assert other.owned()
        assert not lock._leave(b"never")


class TestForms:
    def test_a_with_block(self) -> None:
        with Lock("door") as lock:
            assert lock.owned()
        assert not lock.locked()

    async def test_an_async_with_block(self) -> None:
        async with Lock("door") as lock:
            assert await lock.aowned()
        assert not await lock.alocked()

    async def test_the_error_of_a_with_block_has_the_name(self) -> None:
        Lock("door").acquire()
        with pytest.raises(LockError, match="could not be acquired") as found, Lock("door", blocking=False):
            pytest.fail("it has been acquired")
        assert found.value.lock_name == "door"
        assert isinstance(found.value, exceptions.LockError)
        assert isinstance(found.value, MessagingError)
        with pytest.raises(LockError):
            async with Lock("door", blocking_timeout=0.01):
                pytest.fail("it has been acquired")

    async def test_a_lease_lost_inside_a_with_block_is_reported(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(LockNotOwnedError) as found, Lock("door") as lock:
            server().delete(lock.key)
        assert isinstance(found.value, exceptions.LockNotOwnedError)
        with pytest.raises(LockNotOwnedError):
            async with Lock("door") as lock:
                server().delete(lock.key)
        with Lock("door", raise_on_release_error=False) as lock:
            server().delete(lock.key)
        async with Lock("door", raise_on_release_error=False) as lock:
            server().delete(lock.key)
        assert caplog.text.count("its lease had expired") == 2

    @pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, asyncio.CancelledError])
    async def test_the_error_of_a_with_block_is_not_replaced(
        self, error: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(error), Lock("door") as lock:
            server().delete(lock.key)
            raise error
        with pytest.raises(error):
            async with Lock("door") as lock:
                server().delete(lock.key)
                raise error
        assert caplog.text.count("Lock 'door' was not released: ") == 2

    async def test_a_timeout_around_a_lost_lease_is_a_timeout(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit, Lock("door") as lock:
                server().delete(lock.key)
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.sleep(DEADLINE)

    async def test_a_release_that_failed_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(lock: Lock, token: bytes) -> Any:
            raise Unavailable("away")

        monkeypatch.setattr(Lock, "_release", fail)
        with pytest.raises(ZeroDivisionError), Lock("door"):
            raise ZeroDivisionError
        with pytest.raises(Unavailable), Lock("gate", raise_on_release_error=False):
            pass

    async def test_a_decorator(self) -> None:
        lock = Lock("door")

        @lock
        def blocking(word: str) -> tuple[str, bool]:
            return word, lock.owned()

        @lock
        async def awaiting(word: str) -> tuple[str, bool]:
            return word, await lock.aowned()

        assert blocking("a") == ("a", True)
        assert await awaiting("b") == ("b", True)
        assert blocking.__name__ == "blocking"
        assert not lock.locked()


class TestOwners:
    def test_a_lock_belongs_to_its_thread(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door")
        assert lock.acquire()
        assert not pool.submit(lock.owned).result(DEADLINE)
        with pytest.raises(LockError, match="this thread"):
            pool.submit(lock.release).result(DEADLINE)
        assert lock.owned()
        assert pool.submit(lambda: lock.fence).result(DEADLINE) == 0

    async def test_a_lock_belongs_to_its_task(self) -> None:
        lock = Lock("door")
        assert await lock.aacquire()

        async def another() -> None:
            assert not await lock.aowned()
            with pytest.raises(LockError, match="task"):
                await lock.arelease()

        await asyncio.create_task(another())
        assert await lock.aowned()
        await lock.arelease()

    async def test_tasks_take_turns_with_one_object(self) -> None:
        lock, inside, fences = Lock("door"), 0, []

        async def turn() -> None:
            nonlocal inside
            async with lock:
                inside += 1
                assert inside == 1
                fences.append(lock.fence)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(turn() for _ in range(12)))
        assert fences == sorted(set(fences))
        assert len(fences) == 12

    def test_without_thread_local_another_thread_may_release(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", thread_local=False)
        assert lock.acquire()
        pool.submit(lock.release).result(DEADLINE)
        assert not lock.locked()


class TestFences:
    def test_each_fence_is_greater_than_the_earlier_ones(self) -> None:
        lock, fences = Lock("door", timeout=0.3), []
        assert lock.fence == 0
        for lost in ["", "expiry", "delete", "flush", "", "everything"]:
            assert lock.acquire(blocking_timeout=DEADLINE)
            fences.append(lock.fence)
            match lost:
                case "expiry":
                    until(lambda: not lock.locked())
                case "delete":
                    server().delete(lock.key)
                case "flush":
                    server().script_flush()
                    server().delete(lock.key)
                case "everything":
                    server().delete(*all_keys())
                case _:
                    lock.release()
        assert lock.acquire(blocking_timeout=DEADLINE)
        fences.append(lock.fence)
        assert fences == sorted(set(fences))

    def test_fences_grow_though_the_clock_goes_back(self) -> None:
        """For example after a failover to a server with a slow clock."""
        lock = Lock("door")
        ahead = 2 * int(time.time() * 1_000_000)
        server().set(keys(lock).fence, f"{ahead} - x", px=LONG * 1000)
        fences = []
        for _ in range(3):
            with lock:
                fences.append(lock.fence)
        assert fences == [ahead + 1, ahead + 2, ahead + 3]

    def test_a_fence_that_this_app_has_not_written_is_replaced(self) -> None:
        lock = Lock("door")
        server().set(keys(lock).fence, "none")
        with lock:
            assert lock.fence > 0

    def test_a_fence_is_at_least_the_server_time(self) -> None:
        seconds, us = server().time()
        with Lock("door") as lock:
            assert lock.fence > seconds * 1_000_000 + us

    def test_a_resource_that_rejects_smaller_fences_is_safe(self) -> None:
        paused, other, seen = Lock("door", timeout=0.02), Lock("door"), 0
        assert paused.acquire()
        assert other.acquire(blocking_timeout=DEADLINE)
        seen = max(seen, other.fence)
        assert paused.fence < seen

    def test_each_key_expires(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=None)
        lock.acquire()
        Waiter(lock, pool, blocking_timeout=0.1).ended.result(DEADLINE)
        waiter = Waiter(lock, pool)
        lock.release()
        waiter.leave()
        lock.acquire()
        left = {key: server().pttl(key) for key in all_keys() if key != lock.key}
        assert len(left) >= 3
        assert min(left.values()) > 0
        assert left[keys(lock).fence] > 80_000_000


@pytest.mark.timing
class TestWaiting:
    def test_waiting_clients_acquire_it_in_the_order_of_arrival(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        waiters = [Waiter(lock, pool) for _ in range(5)]
        lock.release()
        fences = [lock.fence]
        for at, waiter in enumerate(waiters):
            assert waiter.acquired.result(DEADLINE)
            assert not any(later.acquired.done() for later in waiters[at + 1 :])
            waiter.leave()
            fences.append(waiter.fence)
        assert fences == sorted(set(fences))
        assert waiting(lock) == 0

    def test_a_short_lease_that_ends_is_noticed_at_once(self) -> None:
        late = []
        for _ in range(3):
            Lock("door", timeout=0.03).acquire()
            began = time.monotonic()
            assert Lock("door", timeout=LONG, thread_local=False).acquire(blocking_timeout=DEADLINE)
            late.append(time.monotonic() - began)
            server().delete(Lock("door").key)
        assert min(late) < 0.06

    def test_a_newcomer_does_not_overtake(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        waiter = Waiter(lock, pool)
        lock.release()
        assert not lock.acquire(blocking=False)
        assert not Lock("door").acquire(blocking_timeout=0.02)
        waiter.leave()
        assert lock.acquire(blocking=False)

    def test_a_newcomer_does_not_overtake_after_the_key_was_deleted(self, pool: ThreadPoolExecutor) -> None:
        """The first client that polls hands it over to the first in the queue."""
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        waiter = Waiter(lock, pool)
        server().delete(lock.key)
        assert not Lock("door").acquire(blocking=False)
        waiter.leave()

    def test_a_release_wakes_the_next_client_at_once(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        waits = []
        for _ in range(5):
            lock.acquire()
            waiter = Waiter(lock, pool)
            began = time.monotonic()
            lock.release()
            assert waiter.acquired.result(DEADLINE)
            waits.append(time.monotonic() - began)
            waiter.leave()
        assert min(waits) < 0.25, "it looked by itself"

    def test_the_end_of_a_lease_wakes_the_next_client(self, pool: ThreadPoolExecutor) -> None:
        waits = []
        for _ in range(3):
            began = time.monotonic()
            Lock("door", timeout=0.25).acquire()
            waiter = Waiter(Lock("door"), pool)
            assert waiter.acquired.result(DEADLINE)
            waits.append(time.monotonic() - began)
            waiter.leave()
        assert 0.25 <= min(waits) < 0.45

    def test_a_deleted_key_is_noticed_within_a_second(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        waiter = Waiter(lock, pool)
        server().delete(lock.key)
        began = time.monotonic()
        waiter.leave()
        assert time.monotonic() - began < 0.5 + SLACK

    def test_a_client_that_gives_up_leaves_the_queue(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        began = time.monotonic()
        one = Waiter(lock, pool, blocking_timeout=0.2)
        other = Waiter(lock, pool)
        assert not one.acquired.result(DEADLINE)
        assert 0.15 < time.monotonic() - began < 0.2 + SLACK
        assert waiting(lock) == 1
        lock.release()
        other.leave()

    def test_a_pending_read_takes_no_wakeup_from_others(
        self, without_polling: None, pool: ThreadPoolExecutor
    ) -> None:
        """The read of the client that gave up is pending for two seconds, at the same place as that of the
        next."""

        def blocked() -> int:
            return sum("b" in client["flags"] for client in server().client_list())

        until(lambda: not blocked())  # those that tests before have left
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        assert not Waiter(lock, pool, blocking_timeout=0.05).acquired.result(DEADLINE)
        waiter = Waiter(lock, pool, blocking_timeout=LONG)
        until(lambda: blocked() == 2)
        lock.release()
        waiter.leave()

    def test_two_clients_at_the_same_place_of_the_ring(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        first = Waiter(lock, pool)
        between = [f"gone {at}" for at in range(7)]
        server().zadd(keys(lock).line, {name: at for at, name in enumerate(between, 2)})
        second = Waiter(lock, pool)
        tickets = dict(server().zrange(keys(lock).line, 0, -1, withscores=True))
        assert sorted(tickets.values()) == list(range(1, 10))
        lock.release()
        first.leave()
        second.leave()

    def test_a_dead_waiter_delays_the_others_by_a_second(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        names = keys(lock).with_ring
        server().eval(source("locks/acquire"), len(names), *names, "dead", LONG, 100, 0)
        waiter = Waiter(lock, pool)
        began = time.monotonic()
        lock.release()
        waiter.leave()
        assert 0.9 < time.monotonic() - began < 1 + SLACK

    def test_an_expired_waiter_delays_nobody(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        dead = {f"dead {at}": at for at in range(-150, 0)}
        server().zadd(keys(lock).line, dead)
        server().zadd(keys(lock).seen, dict.fromkeys(dead, server_ms() - 2000))
        lock.release()
        assert lock.acquire(blocking=False)

    @pytest.mark.parametrize("count", [250, 2500])
    def test_an_expired_waiter_does_not_let_others_overtake(
        self, count: int, pool: ThreadPoolExecutor
    ) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        dead = {f"dead {at}": at for at in range(-count, 0)}
        server().zadd(keys(lock).line, dead)
        server().zadd(keys(lock).seen, dict.fromkeys(dead, 1))
        waiter = Waiter(Lock("door"), pool)
        lock.release()
        assert not lock.acquire(blocking=False)
        waiter.leave()

    async def test_a_client_whose_deadline_ends_leaves_the_queue(self, call: Call) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        with pytest.raises(Unavailable), deadline(0.2):
            await call(Lock("door"), "acquire", blocking_timeout=LONG)
        assert waiting(lock) == 0
        lock.release()
        assert not lock.locked()

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TaskTimeout])
    def test_an_interrupt_after_the_grant_releases_the_lock(
        self, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = Lock("door", timeout=None)
        store = Lock._store

        def interrupted(*args: Any) -> bool:
            store(*args)
            raise interrupt

        monkeypatch.setattr(Lock, "_store", interrupted)
        with pytest.raises(interrupt):
            lock.acquire()
        assert not lock.locked()
        with pytest.raises(LockError, match="hasn't acquired it"):
            lock.release()

    async def test_a_cancelled_task_leaves_the_queue(self) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        task = asyncio.create_task(Lock("door").aacquire())
        await until_async(lambda: waiting(lock))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting(lock) == 0
        await Lock("other").aacquire()

    def test_an_interrupted_thread_leaves_the_queue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()

        def interrupted(*_: object, **__: object) -> None:
            assert waiting(lock) == 1
            raise KeyboardInterrupt

        monkeypatch.setattr(steps, "Listen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Lock("door").acquire()
        assert waiting(lock) == 0

    def test_the_queue_has_a_maximum_length(
        self, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
    ) -> None:
        monkeypatch.setattr(steps, "MAX_WAITING", 1)
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        waiter = Waiter(lock, pool)
        with pytest.raises(LimitExceeded) as found:
            Lock("door").acquire()
        assert (found.value.limit, found.value.actual) == (1, 2)
        lock.release()
        waiter.leave()

    async def test_a_waiting_task_does_not_block_the_loop(self) -> None:
        lock, other = Lock("door", timeout=LONG), Lock("door", timeout=LONG)
        await lock.aacquire()
        task = asyncio.create_task(other.aacquire())
        await until_async(lambda: waiting(lock))
        await lock.arelease()
        assert await asyncio.wait_for(task, DEADLINE)
        assert other.fence == 0, "it is the task's"

    def test_polls_read_the_same_stream_from_the_same_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that the read that is pending on the server is taken over, with its connection."""
        lock, later = Lock("door", timeout=LONG), 0.0
        Lock("door", timeout=LONG).acquire()
        monkeypatch.setattr(waiters, "monotonic", lambda: time.monotonic() + later)
        body = operation_steps(lock._acquire, lock._attempt(True, None, "mine"))
        listens = [body.send(reply_to(next(body)))]
        for _ in range(2):
            later += 1
            listens.append(body.send(reply_to(body.send(None))))
        assert len({listen.words for listen in listens}) == 1

    async def test_tasks_that_wait_poll_for_each_other(self) -> None:
        lock, count = Lock("door", timeout=LONG), 40
        await lock.aacquire()
        tasks = [asyncio.create_task(Lock("door").aacquire()) for _ in range(count)]
        await until_async(lambda: waiting(lock) == count)
        order, before = server().zrange(keys(lock).line, 0, -1), scripts()
        await asyncio.sleep(2.2)  # a client that didn't poll would count as dead
        assert scripts() - before <= 2.2 / steps.KEEP_INTERVAL + 10
        assert (await lock.ainfo()).waiting == count
        assert server().zrange(keys(lock).line, 0, -1) == order
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert waiting(lock) == 0

    async def test_a_client_that_is_not_in_the_queue_any_more_polls_itself(self) -> None:
        """For example after a failover that lost it, or if the wake-up was lost of one that has the lock."""
        lock, count = Lock("door", timeout=LONG), 60
        await lock.aacquire()
        tasks = [asyncio.create_task(Lock("door").aacquire()) for _ in range(count)]
        await until_async(lambda: waiting(lock) == count)
        server().delete(keys(lock).line, keys(lock).seen)
        began = time.monotonic()
        await until_async(lambda: waiting(lock) == count)
        assert time.monotonic() - began < 2 * steps.KEEP_INTERVAL + SLACK  # not one client an interval
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def test_acquire_and_release_take_one_round_trip_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lock, sent = Lock("door"), []
        client = clients.blocking_client(conf.alias())
        execute = client.execute
        monkeypatch.setattr(client, "execute", lambda step: (sent.append(step), execute(step))[1])
        lock.acquire()
        lock.release()
        assert len(sent) == 2


class TestNotReentrant:
    async def test_waiting_for_a_lock_of_ones_own_raises_at_once(self, call: Call) -> None:
        lock = Lock("door", timeout=LONG)
        assert await call(lock, "acquire")
        with pytest.raises(LockError, match="not reentrant") as found:
            await call(lock, "acquire")
        assert found.value.lock_name == "door"
        with pytest.raises(LockError, match="not reentrant"):
            await call(lock, "acquire", blocking_timeout=LONG)
        assert not await call(lock, "acquire", blocking=False)
        assert await call(lock, "owned")
        assert waiting(lock) == 0

    @pytest.mark.parametrize("endless", [{"renew": True}, {"timeout": None}])
    async def test_another_object_for_a_lock_without_an_end(
        self, endless: dict[str, Any], call: Call
    ) -> None:
        lock, other = Lock("door", **endless), Lock("door")
        assert await call(lock, "acquire")
        with pytest.raises(LockError, match="not reentrant"):
            await call(other, "acquire")
        assert not await call(other, "acquire", blocking_timeout=0.01)
        await call(lock, "release")
        assert await call(other, "acquire", blocking_timeout=DEADLINE)
        await call(other, "release")

    def test_recursion_of_a_decorated_function(self) -> None:
        @Lock("door")
        def recurse(times: int) -> None:
            if times:
                recurse(times - 1)

        with pytest.raises(LockError, match="not reentrant"):
            recurse(1)
        assert not Lock("door").locked()

    async def test_a_lock_of_another_owner_is_waited_for(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", renew=True)
        assert await lock.aacquire()

        async def another_task() -> None:
            async with lock:
                pass

        def another_thread() -> None:
            with lock:
                pass

        task, thread = asyncio.create_task(another_task()), pool.submit(another_thread)
        await until_async(lambda: waiting(lock) == 2)
        await lock.arelease()
        await task
        await asyncio.to_thread(thread.result, DEADLINE)

    def test_an_own_lease_that_has_ended_is_no_obstacle(self) -> None:
        lock = Lock("door", renew=True)
        lock.acquire()
        fence = lock.fence
        server().delete(lock.key)
        assert lock.acquire(blocking_timeout=DEADLINE)
        assert lock.fence > fence

    def test_after_an_own_lease_has_ended_another_holder_is_waited_for(self) -> None:
        lock = Lock("door", renew=True)
        lock.acquire()
        server().set(lock.key, "another client")
        assert not lock.acquire(blocking_timeout=0.01)

    def test_without_thread_local_another_thread_may_end_the_wait(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", thread_local=False)
        lock.acquire()
        second = pool.submit(lock.acquire, blocking_timeout=DEADLINE)
        until(lambda: waiting(lock) == 1)
        lock.release()
        assert second.result(DEADLINE)


class TestInfo:
    async def test_the_state_of_a_lock(self, call: Call, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=6000)
        free = await call(lock, "info")
        assert (free.holder, free.acquired_at, free.expires_at, free.fence) == (None, None, None, 0)
        before = datetime.now(UTC)
        assert await call(lock, "acquire")
        waiters = [Waiter(Lock("door"), pool) for _ in range(2)]
        info = await call(lock, "info")
        host, pid, _ = info.holder.rsplit(":", 2)
        assert (host, int(pid)) == (socket.gethostname()[:40], os.getpid())
        assert server().get(lock.key).decode() == info.holder
        assert info.fence == lock.fence
        assert abs(info.acquired_at - before) < timedelta(seconds=DEADLINE)
        assert abs(info.expires_at - before - timedelta(seconds=6000)) < timedelta(seconds=DEADLINE)
        assert (info.waiting, len(info.waiters)) == (2, 2)
        await call(lock, "release")
        for waiter, token in zip(waiters, info.waiters, strict=True):
            assert waiter.acquired.result(DEADLINE)
            assert lock.info().holder == token
            waiter.leave()
        assert (await call(lock, "info")).holder is None

    def test_a_lock_without_a_lease(self) -> None:
        lock = Lock("door", timeout=None)
        lock.acquire()
        assert lock.info().holder is not None
        assert lock.info().expires_at is None

    def test_a_lock_of_another_program(self) -> None:
        lock = Lock("door", key="{door}:theirs")
        lock.acquire()
        lock.release()
        server().set(lock.key, b"\xfftheirs", px=5000)
        info = lock.info()
        assert (info.holder, info.acquired_at, info.fence) == ("\\xfftheirs", None, lock.fence)

    def test_dead_waiters_are_not_listed(self) -> None:
        lock = Lock("door")
        lock.acquire()
        server().zadd(keys(lock).line, {"dead": 1, "alive": 2})
        server().zadd(keys(lock).seen, {"dead": 1, "alive": 2**45})
        assert (lock.info().waiting, lock.info().waiters) == (1, ("alive",))

    def test_the_list_of_waiters_is_bounded(self) -> None:
        lock = Lock("door")
        tokens = {f"client {number:03}": number for number in range(300)}
        server().zadd(keys(lock).line, tokens)
        server().zadd(keys(lock).seen, dict.fromkeys(tokens, 2**45))
        info = lock.info()
        assert info.waiting == 300
        assert list(info.waiters) == sorted(tokens)[:100]

    def test_the_fence_is_kept_as_long_as_the_lock_is_extended(self) -> None:
        lock = Lock("door")
        lock.acquire()
        server().pexpire(keys(lock).fence, 5000)
        lock.reacquire()
        assert server().pttl(keys(lock).fence) > 86_000_000


def renewed(name: str) -> list[RenewedLease]:
    """The leases of locks of this name that this process renews."""
    renewers = list(lease_renewer._renewers.values())
    return [lease for renewer in renewers for lease in list(renewer._leases) if lease.name == name]


@pytest.mark.timing
class TestRenewal:
    async def test_a_renewed_lock_outlives_its_lease(self, call: Call) -> None:
        lock = Lock("door", timeout=1.5, renew=True)
        assert await call(lock, "acquire")
        ends = time.monotonic() + 2.0
        while time.monotonic() < ends:
            await asyncio.sleep(0.02)
            assert await call(lock, "owned")
        await call(lock, "release")
        assert not await call(lock, "locked")

    async def test_renewal_ends_with_the_release(self, call: Call) -> None:
        lock = Lock("door", timeout=1, renew=True)
        for _ in range(3):
            await call(lock, "acquire")
            await call(lock, "release")
        assert not renewed("door")

    async def test_a_renewal_does_not_shorten_an_extension(self, call: Call) -> None:
        lock = Lock("door", timeout=0.3, renew=True)
        await call(lock, "acquire")
        await call(lock, "extend", LONG)
        await asyncio.sleep(0.25)  # two renewals
        assert ttl(lock) > 900_000
        await call(lock, "release")

    async def test_a_lost_lease_is_logged(self, call: Call, caplog: pytest.LogCaptureFixture) -> None:
        lock = Lock("door", timeout=0.06, renew=True)
        await call(lock, "acquire")
        server().set(lock.key, "somebody else")
        await until_async(lambda: "was lost" in caplog.text)
        assert not await call(lock, "owned")
        with pytest.raises(LockNotOwnedError):
            await call(lock, "release")

    async def test_a_lost_lease_is_reported_once(self, call: Call) -> None:
        lost: SimpleQueue[LeaseLost] = SimpleQueue()
        lock = Lock("door", timeout=0.06, renew=True, on_lost=lost.put)
        assert await call(lock, "acquire")
        await call(lock, "release")
        assert await call(lock, "acquire")
        server().set(lock.key, "another client")
        error = await asyncio.to_thread(lost.get, timeout=DEADLINE)
        assert isinstance(error, LeaseLost)
        assert isinstance(error, LockNotOwnedError)
        assert error.lock_name == "door"
        assert not renewed("door")
        with pytest.raises(LeaseLost):
            await call(lock, "release")
        assert lost.empty()

    def test_a_lease_lasts_from_when_its_request_was_sent(self) -> None:
        lock = Lock("door", timeout=LONG, renew=True)
        attempt = lock._attempt(True, None, "mine")
        body = operation_steps(lock._acquire, attempt)
        fence, sent_before = reply_to(next(body)), time.monotonic()
        until(lambda: time.monotonic() > sent_before + 0.02)  # the reply is slow
        with pytest.raises(StopIteration):
            body.send(fence)
        lock._store(attempt, fence)
        [lease] = renewed("door")
        assert lease.valid_until <= sent_before + LONG
        assert lease.due <= sent_before + LONG / 3
        lock.release()

    def test_a_renewed_lease_lasts_from_when_its_renewal_was_sent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock, perform = Lock("door", timeout=LONG, renew=True), lease_renewer.perform_renewal
        assert lock.acquire()
        [lease] = renewed("door")
        sent_at = []

        def reply_late(using: str, body: Any) -> Any:
            sent_at.append(time.monotonic())
            replies = perform(using, body)
            until(lambda: time.monotonic() > sent_at[0] + 0.1)
            return replies

        monkeypatch.setattr(lease_renewer, "perform_renewal", reply_late)
        first = lease.valid_until
        lease_renewer._renewers[conf.alias(), RenewedLease]._renew([lease], DEADLINE)
        assert first < lease.valid_until < sent_at[0] + 0.1 + LONG

    def test_a_loss_is_reported_while_the_server_is_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lost: SimpleQueue[float] = SimpleQueue()
        over = threading.Event()

        def hang(*_: object) -> None:
            over.wait(2 * DEADLINE)
            raise Unavailable("away")

        monkeypatch.setattr(lease_renewer, "perform_renewal", hang)
        lock = Lock("door", timeout=0.3, renew=True, on_lost=lambda _: lost.put(time.monotonic()))
        began = time.monotonic()
        assert lock.acquire()
        acquired_at = time.monotonic()
        try:
            lost_at = lost.get(timeout=DEADLINE)
        finally:
            over.set()
        assert began + 0.3 <= lost_at < acquired_at + 0.3 + SLACK
        assert not renewed("door")

    def test_leases_that_are_due_at_about_the_same_time_share_a_round_trip(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rounds: list[set[str]] = []
        extend = lease_renewer.LeaseRenewer._extend

        def record(renewer: Any, leases: Any) -> Any:
            rounds.append({lease.name for lease in leases})
            return extend(renewer, leases)

        monkeypatch.setattr(lease_renewer.LeaseRenewer, "_extend", record)
        with Lock("door", timeout=LONG, renew=True), Lock("gate", timeout=LONG, renew=True):
            [first], [second] = renewed("door"), renewed("gate")
            second.due = time.monotonic() + 0.05 * LONG / 3
            first.due = time.monotonic()
            lease_renewer._renewers[conf.alias(), RenewedLease].add(first)
            until(lambda: rounds)
        assert rounds == [{"door", "gate"}]

    def test_an_error_of_the_callback_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(error: LeaseLost) -> None:
            raise ZeroDivisionError

        lock, other = (
            Lock("door", timeout=0.06, renew=True, on_lost=fail),
            Lock("gate", timeout=0.3, renew=True),
        )
        assert lock.acquire()
        assert other.acquire()
        server().delete(lock.key)
        until(lambda: "The on_lost callback of 'door' failed" in caplog.text)
        ends = time.monotonic() + 0.6
        until(lambda: time.monotonic() > ends)
        assert other.owned()  # the thread goes on

    def test_a_callback_neither_delays_nor_ends_the_renewal_of_others(self) -> None:
        begun, over = threading.Event(), threading.Event()

        def hang(error: LeaseLost) -> None:
            begun.set()
            over.wait(DEADLINE)

        lock = Lock("door", timeout=0.06, renew=True, on_lost=hang)
        other = Lock("gate", timeout=0.6, renew=True)
        assert lock.acquire()
        assert other.acquire()
        server().delete(lock.key)
        assert begun.wait(DEADLINE)
        ends = time.monotonic() + 1.2
        until(lambda: time.monotonic() > ends)
        over.set()
        assert other.owned()
        until(lambda: not [one for one in threading.enumerate() if one.name == "lost lease of door"])
        assert Lock("next", timeout=0.3, renew=True).acquire()

    async def test_a_shortened_lease_is_renewed_in_time(self, call: Call) -> None:
        lost: SimpleQueue[LeaseLost] = SimpleQueue()
        lock = Lock("door", timeout=LONG, renew=True, on_lost=lost.put)
        assert await call(lock, "acquire")
        await call(lock, "extend", 0.3, replace_ttl=True)
        await until_async(lambda: ttl(lock) > 300)
        assert await call(lock, "owned")
        await call(lock, "release")
        assert lost.empty()

    def test_two_threads_serve_all_locks(self) -> None:
        before = set(threading.enumerate())
        locks = [Lock(f"door {number}", timeout=0.3, renew=True) for number in range(30)]
        for lock in locks:
            assert lock.acquire()
        assert len(set(threading.enumerate()) - before) <= 2  # the second one reports losses
        ends = time.monotonic() + 0.6
        until(lambda: time.monotonic() > ends)
        assert all(lock.owned() for lock in locks)

    def test_a_key_of_another_type_does_not_stop_the_renewal_of_others(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        lost: SimpleQueue[LeaseLost] = SimpleQueue()
        broken = Lock("broken", timeout=0.3, renew=True, on_lost=lost.put)
        locks = [Lock(f"door {number}", timeout=0.3, renew=True) for number in range(5)]
        for lock in (broken, *locks):
            assert lock.acquire()
        server().delete(broken.key)
        server().rpush(broken.key, "not ours")
        assert lost.get(timeout=DEADLINE)
        assert "another type" in caplog.text
        assert all(lock.owned() and renewed(lock.name) for lock in locks)

    def test_an_unexpected_error_does_not_end_the_thread(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError

        lost: SimpleQueue[LeaseLost] = SimpleQueue()
        locks = [Lock(f"door {number}", timeout=0.3, renew=True, on_lost=lost.put) for number in range(3)]
        with monkeypatch.context() as broken:
            broken.setattr(lease_renewer.LeaseRenewer, "_extend", fail)
            for lock in locks:
                lock.acquire()
            names = sorted(str(lost.get(timeout=DEADLINE)).split("'")[1] for _ in locks)
        assert names == ["door 0", "door 1", "door 2"]
        assert "Renewing the lease of 'door 0' failed, retrying in 0." in caplog.text
        assert "ZeroDivisionError" in caplog.text
        again = Lock("door", timeout=0.3, renew=True)
        again.acquire()
        ends = time.monotonic() + 0.6
        until(lambda: time.monotonic() > ends)
        assert again.owned()

    def test_a_log_line_lists_some_names(self) -> None:
        leases = [RenewedLease("a", name, 1, Script("locks/extend", ["key"]), print) for name in "abcde"]
        assert lease_renewer._names(leases[:2]) == "'a', 'b'"
        assert lease_renewer._names(leases) == "'a', 'b', 'c' and 2 others"

    async def test_a_blocked_event_loop_keeps_its_lock(self) -> None:
        async with Lock("door", timeout=0.3, renew=True) as lock:
            ends = time.monotonic() + 0.6
            until(lambda: time.monotonic() > ends)
            assert await lock.aowned()

    def test_a_block_of_deadline_does_not_limit_the_renewal(self) -> None:
        with deadline(0.2):
            lock = Lock("door", timeout=0.3, renew=True)
            lock.acquire()
        ends = time.monotonic() + 0.6
        until(lambda: time.monotonic() > ends)
        assert lock.owned()

    def test_a_forked_child_renews_its_own_locks_only(self) -> None:
        lock = Lock("door", timeout=0.3, renew=True)
        assert lock.acquire()

        def child() -> bool:
            inherited, own = renewed("door"), Lock("gate", timeout=0.3, renew=True)
            own.acquire()
            ends = time.monotonic() + 0.6
            until(lambda: time.monotonic() > ends)
            return not inherited and own.owned()

        with forked(child) as finished:
            assert finished()
        assert lock.owned()

    def test_a_forked_child_holds_nothing_of_its_parent(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", renew=True)
        assert lock.acquire()

        def child() -> bool:
            with suppress(LockError):
                lock.release()
                return False
            return not lock.owned() and lock.acquire(blocking_timeout=DEADLINE)

        with forked(child) as finished:
            until(lambda: waiting(lock) == 1)
            assert lock.owned()
            lock.release()
            assert finished()

    def test_a_forked_child_does_not_share_the_lock_of_its_parent(self) -> None:
        lock = Lock("door", thread_local=False)
        assert lock.acquire()

        def child() -> bool:
            if lock.owned():
                return False
            with suppress(LockError):
                lock.release()
                return False
            with suppress(LockError):
                lock.extend(1)
                return False
            return not lock.acquire(blocking=False)

        with forked(child) as finished:
            assert finished()
        assert lock.owned()

    def test_renewal_ends_with_the_thread(self, pool: ThreadPoolExecutor) -> None:
        lock = Lock("door", timeout=0.6, renew=True)
        thread = threading.Thread(target=lock.acquire, daemon=True)
        thread.start()
        thread.join()
        assert Lock("door").acquire(blocking_timeout=DEADLINE)

    def test_renewal_ends_when_the_lock_is_destroyed(self) -> None:
        Lock("door", timeout=0.6, renew=True).acquire()
        gc.collect()
        assert Lock("door").acquire(blocking_timeout=3)

    async def test_renewal_ends_with_the_task(self) -> None:
        lock = Lock("door", timeout=0.6, renew=True)
        await asyncio.create_task(lock.aacquire())
        gc.collect()
        assert await Lock("door").aacquire(blocking_timeout=DEADLINE)


class TestSharedWithTheDriver:
    """The same key, used by redis-py's own Lock."""

    @pytest.fixture(params=["{0}shop-lock", "{{{0}}}:shop lock", "{0}{{a}}:x"])
    def key(self, request: pytest.FixtureRequest, site: str) -> str:
        """A key of the site, outside our prefix."""
        return str(request.param.format(site))

    def theirs(self, key: str, **options: Any) -> Any:
        return DriversLock(server(), key, timeout=LONG, sleep=0.01, **options)

    def test_a_driver_lock_excludes_ours(self, key: str) -> None:
        lock, theirs = Lock("door", key=key), self.theirs(key)
        assert theirs.acquire()
        assert lock.locked()
        assert not lock.acquire(blocking=False)
        theirs.release()
        assert lock.acquire(blocking=False)
        lock.release()

    def test_our_lock_excludes_the_drivers(self, key: str) -> None:
        lock, theirs = Lock("door", key=key), self.theirs(key)
        assert lock.acquire()
        assert theirs.locked()
        assert not theirs.acquire(blocking=False)
        with pytest.raises(exceptions.LockNotOwnedError):
            theirs.do_release(b"not ours")
        lock.release()
        assert theirs.acquire(blocking=False)
        theirs.release()

    @pytest.mark.timing
    def test_a_waiting_client_notices_the_release_of_a_driver_lock(
        self, key: str, pool: ThreadPoolExecutor
    ) -> None:
        lock, theirs = Lock("door", key=key), self.theirs(key)
        theirs.acquire()
        waiter = Waiter(lock, pool)
        began = time.monotonic()
        theirs.release()
        waiter.leave()
        assert time.monotonic() - began < 0.1 + SLACK

    def test_the_driver_acquires_it_if_no_client_of_ours_waits(
        self, key: str, pool: ThreadPoolExecutor
    ) -> None:
        lock, theirs = Lock("door", key=key), self.theirs(key, thread_local=False)
        lock.acquire()
        waits = pool.submit(theirs.acquire)
        lock.release()
        assert waits.result(DEADLINE)
        theirs.release()

    def test_all_keys_share_a_slot_and_the_others_have_our_prefix(self, key: str) -> None:
        lock = Lock("door", key=key)
        assert lock.key == key
        names = keys(lock).with_ring
        slots = {key_slot(name.encode()) for name in names}
        assert len(slots) == 1
        assert all(name.startswith(conf.prefix() + ":") for name in names if name != key)

    def test_two_keys_have_different_queues(self, site: str) -> None:
        names = [f"{site}a", f"{{{site}a}}", f"{{{site}a}}:fence", f"{{{site}a}}:b"]
        assert len({Lock("door", key=name)._keys.fence for name in names}) == 4


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "words"),
        [
            ({"name": ""}, ValueError, "empty"),
            ({"name": b"x"}, TypeError, "must be a str"),
            ({"timeout": 0}, ValueError, "timeout"),
            ({"timeout": -1}, ValueError, "timeout"),
            ({"timeout": float("nan")}, ValueError, "timeout"),
            ({"timeout": "10"}, TypeError, "timeout"),
            ({"blocking": 1}, TypeError, "blocking"),
            ({"blocking_timeout": -1}, ValueError, "blocking_timeout"),
            ({"renew": None}, TypeError, "renew"),
            ({"renew": True, "timeout": None}, ValueError, "needs a timeout"),
            ({"on_lost": print}, ValueError, "on_lost needs renew=True"),
            ({"renew": True, "on_lost": "print"}, TypeError, "on_lost must be callable"),
            ({"key": ""}, ValueError, "key is empty"),
            ({"key": "a}b"}, ValueError, "outside a hash tag"),
            ({"key": "{}b"}, ValueError, "outside a hash tag"),
            ({"thread_local": "no"}, TypeError, "thread_local"),
            ({"raise_on_release_error": 0}, TypeError, "raise_on_release_error"),
        ],
    )
    def test_of_the_constructor(self, options: dict[str, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            Lock(**{"name": "door", **options})

    @pytest.mark.parametrize(
        ("verb", "words", "error"),
        [
            ("acquire", {"token": ""}, ValueError),
            ("acquire", {"token": b"x" * 256}, ValueError),
            ("acquire", {"token": 7}, TypeError),
            ("acquire", {"blocking": "yes"}, TypeError),
            ("acquire", {"blocking_timeout": -1}, ValueError),
            ("extend", {"additional_time": 0}, ValueError),
            ("extend", {"additional_time": "1"}, TypeError),
            ("extend", {"additional_time": 1, "replace_ttl": 1}, TypeError),
        ],
    )
    async def test_of_an_operation(
        self, verb: str, words: dict[str, Any], error: type[Exception], call: Call
    ) -> None:
        before = snapshot()
        with pytest.raises(error):
            await call(Lock("door"), verb, **words)
        assert snapshot() == before

    @pytest.mark.parametrize("odd", ["{}", "a:b", "%", " ", "\n", "é😀", "x" * 255, "{lock:door}"])
    def test_odd_names_are_legal(self, odd: str) -> None:
        with Lock(odd) as lock:
            assert not Lock(odd).acquire(blocking=False)
            assert lock.name == odd
            assert Lock("door").acquire(blocking=False)
