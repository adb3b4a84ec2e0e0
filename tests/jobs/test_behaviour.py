"""A delay queue: when jobs are popped, in which order, by which client, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import LimitExceeded, conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.jobs import DeadJob, DelayQueue, Job, QueueStats, engine
from django_redis_messaging.services.jobs import queue as base
from django_redis_messaging.services.jobs.keys import REQUEST_SHARDS, JobKeys

from ..conftest import Call
from ..support.leases import blocked, nobody_is_blocked, until_async
from ..support.server import (
    DEADLINE,
    all_keys,
    change,
    let_pass,
    reply_to,
    server,
    server_ms,
    snapshot,
    steps,
    until,
)

pytestmark = pytest.mark.usefixtures("closing")
#: seconds: longer than any test
LONG = 1000
#: seconds that a client waits for its wake-up: a poll would be too late
PATIENCE = 3 * DEADLINE


@pytest.fixture
def queue() -> DelayQueue:
    return DelayQueue("mail")


def data(jobs: list[Job] | list[DeadJob]) -> list[Any]:
    return [job.data for job in jobs]


def pop_one(queue: DelayQueue, *, lease: float | None = LONG, wait: float = DEADLINE) -> Job:
    """Pop the next job, waiting for it if necessary."""
    [job] = queue.pop(1, lease=lease, wait=wait)
    return job


def keys(queue: DelayQueue) -> JobKeys:
    return JobKeys(conf.prefix(), "queue", queue.name)


def delayed(queue: DelayQueue) -> str:
    return keys(queue).queue("jobs").delayed


def request_keys() -> list[str]:
    return [key for key in all_keys() if ":requests:" in key]


def remaining_keys(queue: DelayQueue) -> list[str]:
    """The queue's keys, except those that expire and the wake-up marker."""
    return [
        key
        for key in all_keys()
        if key.startswith(keys(queue).tag) and ":requests:" not in key and not key.endswith(":bell")
    ]


def server_us() -> int:
    seconds, micros = server().time()
    return int(seconds * 10**6 + micros)


def fail_each(queue: DelayQueue, *items: Any) -> None:
    """Push jobs, which fail in different ms."""
    for item in items:
        queue.push(item)
        queue.fail(pop_one(queue), "why")
        let_pass(0)


class TestOrder:
    async def test_push_many_keeps_the_order_over_pages(self, call: Call, queue: DelayQueue) -> None:
        ids = await call(queue, "push_many", range(450))
        assert len(set(ids)) == 450
        jobs = await call(queue, "pop")
        assert data(jobs) == [0, 1, 2, 3, 4]
        jobs += await call(queue, "pop", 500)
        assert data(jobs) == list(range(450))
        assert [job.id for job in jobs] == ids
        assert {(job.attempts, job.queue) for job in jobs} == {(1, "mail")}

    def test_large_payloads_are_pushed_in_pages(self, queue: DelayQueue) -> None:
        queue.cancel(queue.push("registers the queue"))
        items = ["x" * 400_000] * 5
        assert [len(page) for page in engine.pages(items, str)] == [2, 2, 1]
        before = scripts_sent()
        queue.push_many(items, request_id="r")
        assert scripts_sent() - before == 3
        queue.push_many(items, request_id="r")
        assert queue.stats().ready == 5

    async def test_highest_priority_is_first(self, call: Call, queue: DelayQueue) -> None:
        for priority in (0, -100, 100, 0, 99, -1, 1, 100):
            await call(queue, "push", priority, priority=priority)
        assert data(await call(queue, "pop", 10)) == [100, 100, 99, 1, 0, 0, -1, -100]

    def test_earlier_due_jobs_are_first(self, queue: DelayQueue) -> None:
        delays = (900, 300, 1200, 600)
        for delay in delays:
            queue.push(delay, delay=delay)
        for job_id in server().zrange(delayed(queue), 0, -1):  # make an hour pass
            server().zincrby(delayed(queue), -3_600_000, job_id)
        assert data(queue.pop()) == sorted(delays)

    def test_jobs_due_together_keep_their_order(self, queue: DelayQueue) -> None:
        queue.push_many(range(250), delay=0.01)
        queue.push_many(range(250, 270), delay=0.05, request_id="r")
        until(lambda: queue.stats().ready == 270)
        assert data(queue.pop(500)) == list(range(270))

    def test_a_due_job_is_before_those_pushed_later_though_nobody_polled(self, queue: DelayQueue) -> None:
        queue.push("delayed", delay=0.01)
        let_pass(60)
        queue.push("new")
        assert data(queue.pop(min_age=0.04)) == ["delayed"]
        assert data(queue.pop()) == ["new"]

    @pytest.mark.parametrize("verb", ["push", "retry", "reschedule", "redrive", "expire"])
    def test_a_due_job_is_before_those_that_become_ready_again(self, verb: str, queue: DelayQueue) -> None:
        if verb != "push":
            queue.push("again", job_id="x", delay=3600 if verb == "reschedule" else 0)
        found = queue.pop(lease=0.05 if verb == "expire" else 60)
        if verb == "redrive":
            queue.fail(found[0], "broken")
        queue.push("delayed", delay=0.01)
        let_pass(60)
        match verb:
            case "push":
                queue.push("again")
            case "reschedule":
                assert queue.reschedule("x", 0)
            case "redrive":
                assert queue.redrive() == 1
            case "retry":
                assert queue.retry(found[0])
        assert data(queue.pop()) == ["delayed", "again"]

    def test_released_jobs_keep_their_places(self, queue: DelayQueue) -> None:
        """Also after a second release, and among those that another consumer has released."""
        queue.push_many(range(5))
        queue.push("low", priority=-1)
        first, second = queue.pop(2), queue.pop(2)
        queue.push("high", priority=1)
        for job in (second[1], first[1], second[0], first[0]):
            assert queue.release(job)
        again = queue.pop(2)
        assert data(again) == ["high", 0]
        assert queue.release(again[1])
        assert data(queue.pop(3)) == [0, 1, 2]
        queue.push("new")
        assert data(queue.pop(5)) == [3, 4, "new", "low"]

    def test_a_job_that_is_released_with_a_delay_comes_last(self, queue: DelayQueue) -> None:
        queue.push_many(range(3))
        assert queue.release(queue.pop(1)[0], 0.01)
        until(lambda: queue.stats().delayed == 0)
        assert data(queue.pop()) == [1, 2, 0]

    def test_queues_are_independent(self) -> None:
        for name in ("a", "b:{a}", "%"):
            DelayQueue(name).push(name, job_id="same", request_id="same")
        for name in ("a", "b:{a}", "%"):
            assert data(DelayQueue(name).pop()) == [name]


@pytest.mark.timing
class TestTime:
    async def test_delayed_jobs_are_never_early(self, call: Call, queue: DelayQueue) -> None:
        for _ in range(20):
            pushed = server_us()
            await call(queue, "push", "x", delay=0.005)
            [job] = await call(queue, "pop", wait=DEADLINE)
            assert server_us() - pushed >= 5000
            assert server_ms() >= job.due_at.timestamp() * 1000
            for verb in ("retry", "release"):
                requeued = server_us()
                assert await call(queue, verb, job, delay=0.005)
                [job] = await call(queue, "pop", wait=DEADLINE)
                assert server_us() - requeued >= 5000
            await call(queue, "ack", job)

    def test_due_times_are_rounded_up_to_ms(self, queue: DelayQueue) -> None:
        """Due times are stored in whole ms."""
        queue = DelayQueue("mail", max_attempts=100)
        queue.push("x", job_id="x")
        for _ in range(20):
            for operation in (queue.retry, queue.release):
                job = pop_one(queue)
                requeued = server_us()
                operation(job, delay=3600)
                [(_, due)] = server().zrange(delayed(queue), 0, 0, withscores=True)
                assert due * 1000 >= requeued + 3600 * 10**6
                queue.reschedule("x", 0)

    @pytest.mark.parametrize("delay", [0.02, timedelta(milliseconds=20)])
    def test_due_at_is_when_the_job_became_due(self, delay: Any, queue: DelayQueue) -> None:
        before = server_ms()
        queue.push("x", delay=delay)
        after = server_ms()
        due = pop_one(queue).due_at
        assert due.tzinfo is UTC
        assert before + 20 <= due.timestamp() * 1000 <= after + 21

    def test_delay_of_a_century(self, queue: DelayQueue) -> None:
        """The payload does not expire, as it did in the original if the job was popped late."""
        queue.push({"far": "off"}, delay=timedelta(days=100 * 365), job_id="far")
        assert queue.stats() == QueueStats(0, 1, 0, 0, None)
        assert {server().ttl(key) for key in remaining_keys(queue)} == {-1}
        assert queue.reschedule("far", 0)
        assert pop_one(queue).data == {"far": "off"}

    def test_clients_clock_does_not_matter(self, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "time", lambda: 4e9)
        queue.push("now")
        queue.push("later", delay=3600)
        assert data(queue.pop()) == ["now"]


@pytest.mark.timing
class TestMinAge:
    """Only jobs of a minimum age are popped, as in the original list of items with timestamps."""

    def test_it_is_never_early(self, queue: DelayQueue) -> None:
        for _ in range(20):
            pushed = server_us()
            queue.push("x")
            while not queue.pop(min_age=0.005):
                assert server_us() - pushed < DEADLINE * 10**6
            assert server_us() - pushed >= 5000

    def test_the_head_of_each_priority_is_checked(self, queue: DelayQueue) -> None:
        queue.push_many(["a", "b"])
        queue.push("urgent", priority=9)
        queue.push("slow", priority=-9)
        let_pass(300)
        queue.push("young")
        queue.push("urgent and young", priority=100)
        assert data(queue.pop(10, min_age=0.3)) == ["urgent", "a", "b", "slow"]
        assert data(queue.pop(10, min_age=LONG)) == []
        assert data(queue.pop(10)) == ["urgent and young", "young"]

    def test_no_more_jobs_than_requested_are_popped(self, queue: DelayQueue) -> None:
        """Equal items are kept separately, unlike in the original sorted set of the items themselves."""
        queue.push_many([*range(19), 18])
        assert queue.pop(10, min_age=3, lease=None) == []
        until(lambda: (queue.stats().oldest_age or 0) > 0.02)
        assert data(queue.pop(10, min_age=0.02, lease=None)) == list(range(10))
        assert data(queue.pop(10, min_age=0.02, lease=None)) == [*range(10, 19), 18]
        assert queue.pop(10, min_age=0.02, lease=None) == []
        assert remaining_keys(queue) == []

    def test_age_of_a_delayed_job_starts_when_it_is_due(self, queue: DelayQueue) -> None:
        began = server_us()
        queue.push("x", delay=0.05)
        assert data(queue.pop(min_age=0.05) or queue.pop(min_age=0.05, wait=DEADLINE)) == ["x"]
        assert server_us() - began >= 100_000


@contextmanager
def waiting(queue: DelayQueue, count: int = 1) -> Iterator[list[Future[list[Job]]]]:
    """Threads blocked in pop(), as many as `count`."""
    nobody_is_blocked()

    def pop() -> list[Job]:
        try:
            return queue.pop(1, lease=LONG, wait=PATIENCE)
        finally:
            clients.close()

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(pop) for _ in range(count)]
        until(lambda: blocked() == count)
        yield futures


@contextmanager
def quickly() -> Iterator[None]:
    """The block must not take long."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < DEADLINE


def scripts_sent() -> int:
    """Number of scripts that clients have called."""
    found = server().info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


#: operations that make a leased job ready again
REQUEUE_OPERATIONS: dict[str, Callable[[DelayQueue, Job], object]] = {
    "retry": lambda queue, job: queue.retry(job),
    "retry later": lambda queue, job: queue.retry(job, 0.02),
    "release": lambda queue, job: queue.release(job),
    "redrive": lambda queue, job: queue.fail(job, "why") and queue.redrive(),
    "reschedule": lambda queue, job: queue.release(job, LONG) and queue.reschedule(job.id, 0),
    "reschedule sooner": lambda queue, job: queue.release(job, LONG) and queue.reschedule(job.id, 0.02),
}


@pytest.mark.timing
class TestWaiting:
    @pytest.fixture(autouse=True)
    def wake_ups_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Clients that wait do not poll."""
        monkeypatch.setattr(engine, "POLL_INTERVAL", 3600.0)
        monkeypatch.setattr(base, "POLL_INTERVAL", 3600.0)

    def test_ended_wait_takes_no_wake_up(self, queue: DelayQueue) -> None:
        nobody_is_blocked()
        assert queue.pop(wait=0.05) == []
        began = time.monotonic()
        until(lambda: blocked() == 0)
        assert time.monotonic() - began < 5  # the server ends such waits on a grid of 100 ms

    async def test_wait_without_jobs_times_out(self, call: Call, queue: DelayQueue) -> None:
        began = server_us()
        assert await call(queue, "pop", wait=0.05) == []
        assert 50_000 <= server_us() - began < 5_000_000

    @pytest.mark.parametrize("delay", [0, 0.05])
    def test_push_wakes_a_waiting_client(self, delay: float, queue: DelayQueue) -> None:
        queue.push("late", delay=LONG)
        with waiting(queue) as [popped]:
            queue.push("x", delay=delay)
            assert data(popped.result(DEADLINE)) == ["x"]

    async def test_push_wakes_a_waiting_coroutine(self, queue: DelayQueue) -> None:
        popping = asyncio.ensure_future(queue.apop(wait=PATIENCE))
        await until_async(blocked)
        assert not popping.done()
        await queue.apush("x")
        assert data(await asyncio.wait_for(popping, DEADLINE)) == ["x"]

    async def test_due_job_ends_the_wait(self, call: Call, queue: DelayQueue) -> None:
        """And the client sends no commands until then."""
        await call(queue, "push", "x", delay=0.3)
        before = scripts_sent()
        with quickly():
            assert data(await call(queue, "pop", wait=PATIENCE)) == ["x"]
        assert scripts_sent() - before <= 3  # one that finds nothing, one at the due time, a spare one

    def test_expired_lease_ends_the_wait(self, queue: DelayQueue) -> None:
        queue.push("x")
        first = pop_one(queue, lease=0.05)
        with quickly():
            requeued = pop_one(queue, wait=PATIENCE)
        assert (requeued.id, requeued.attempts) == (first.id, 2)

    def test_job_that_reaches_min_age_ends_the_wait(self, queue: DelayQueue) -> None:
        queue.push("x")
        with quickly():
            assert data(queue.pop(min_age=0.3, wait=PATIENCE)) == ["x"]

    @pytest.mark.parametrize("how", REQUEUE_OPERATIONS)
    def test_requeued_job_wakes_a_waiting_client(self, how: str, queue: DelayQueue) -> None:
        queue.push("x")
        job = pop_one(queue)
        with waiting(queue) as [popped]:
            assert REQUEUE_OPERATIONS[how](queue, job)
            assert data(popped.result(DEADLINE)) == ["x"]

    def test_one_client_is_woken_per_job(self, queue: DelayQueue) -> None:
        with waiting(queue, 4) as all_four:
            queue.push_many("abcd")
            assert sorted(data(popped.result(DEADLINE))[0] for popped in all_four) == list("abcd")

    def test_woken_client_passes_on_the_next_due_time(self, queue: DelayQueue) -> None:
        """The job that is due soon is popped although the client that waited for it is busy."""
        queue.push("soon", delay=LONG, job_id="soon")
        with waiting(queue, 2) as both:
            server().zadd(delayed(queue), {"soon": server_ms() + 300})
            queue.push("now")
            assert sorted(data(popped.result(DEADLINE))[0] for popped in both) == ["now", "soon"]


#: operations that need a lease
LEASE_OPERATIONS: dict[str, Callable[[DelayQueue, Job], bool | None]] = {
    "ack": lambda queue, job: queue.ack(job),
    "retry": lambda queue, job: queue.retry(job),
    "release": lambda queue, job: queue.release(job),
    "fail": lambda queue, job: queue.fail(job, "why"),
    "extend": lambda queue, job: queue.extend(job, LONG),
}


class TestLeases:
    @pytest.mark.parametrize("operation", LEASE_OPERATIONS)
    def test_lease_that_is_not_in_force_changes_nothing(self, operation: str, queue: DelayQueue) -> None:
        settle = LEASE_OPERATIONS[operation]
        queue.push("x", job_id="x")
        stale, current = pop_one(queue, lease=0.001), pop_one(queue)
        before = snapshot()
        assert settle(queue, stale) is False
        with pytest.raises(ValueError, match="of the queue 'other', not of 'mail'"):
            settle(DelayQueue("other"), current)
        assert snapshot() == before
        assert settle(queue, current) is True

        queue.purge()
        assert settle(queue, current) is False
        queue.push("another", job_id="x")
        assert settle(queue, current) is False
        assert pop_one(queue).data == "another"
        assert settle(queue, current) is False

    @pytest.mark.parametrize("operation", LEASE_OPERATIONS)
    def test_job_popped_without_a_lease_is_gone(self, operation: str, queue: DelayQueue) -> None:
        queue.push("x")
        popped = pop_one(queue, lease=None)
        assert (popped.data, popped.attempts) == ("x", 1)
        assert LEASE_OPERATIONS[operation](queue, popped) is False
        assert remaining_keys(queue) == []

    @pytest.mark.timing
    async def test_extend(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "x")
        [job] = await call(queue, "pop", lease=0.2)
        assert await call(queue, "extend", job, LONG)
        assert await call(queue, "extend", job, 0.001)  # never shortened
        until(lambda: server_ms() > job.due_at.timestamp() * 1000 + 300)
        assert await call(queue, "pop") == []
        assert await call(queue, "ack", job)

    def test_fences_grow(self, queue: DelayQueue) -> None:
        """After a purge too, and although the clock was ahead."""
        queue.push("x", job_id="x")
        first = pop_one(queue)
        queue.purge()
        queue.push("y", job_id="x")
        second = pop_one(queue)
        assert second.fence > first.fence
        queue.release(second)
        ahead, state = server_us() + 10**9, server().hget(keys(queue).states, "x").decode()
        server().hset(keys(queue).states, "x", state.replace(f"fence={second.fence}", f"fence={ahead}"))
        assert pop_one(queue).fence == ahead + 1

    def test_max_attempts_is_set_by_the_push(self, settings: Settings) -> None:
        change(settings, JOB_MAX_ATTEMPTS=1)
        DelayQueue("mail").push("x")
        change(settings, JOB_MAX_ATTEMPTS=9)
        queue = DelayQueue("mail")
        queue.retry(pop_one(queue))
        assert queue.stats().dead == 1


class TestDead:
    async def test_failed_job_is_dead_with_its_reason(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", ["x"], job_id="x")
        [job] = await call(queue, "pop")
        before = server_ms()
        assert await call(queue, "fail", job, 'it "broke"\nL😀') is True
        assert await call(queue, "pop") == []
        [dead] = await call(queue, "dead")
        assert dead == DeadJob("x", ["x"], 1, 'it "broke"\nL😀', dead.buried_at, queue.name)
        assert before <= dead.buried_at.timestamp() * 1000 <= server_ms()

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_limit_holds_if_many_jobs_die_in_one_ms(self, limit: int, settings: Settings) -> None:
        change(settings, JOB_MAX_DEAD=limit, JOB_MAX_ATTEMPTS=1)
        queue = DelayQueue("mail")
        queue.push_many(range(50))
        queue.pop(50, lease=0.001)
        until(lambda: queue.stats().leased == 0)
        assert queue.pop() == []
        assert queue.stats().dead == limit

    def test_they_shrink_to_a_limit_that_is_lowered(self, queue: DelayQueue, settings: Settings) -> None:
        fail_each(queue, *range(8))
        change(settings, JOB_MAX_DEAD=3)
        counts = []
        for number in range(8, 14):
            fail_each(queue, number)
            counts.append(queue.stats().dead)
        assert counts == [7, 6, 5, 4, 3, 3]  # each burial removes one job more than it adds
        assert data(queue.dead()) == [13, 12, 11]
        assert data(queue.dead(2)) == [13, 12]
        assert server().hlen(keys(queue).jobs) == 3

    def test_expired_ones_are_hidden_and_removed(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_DEAD_TTL=0.02)
        queue.push("x", job_id="x")
        queue.fail(pop_one(queue), "why")
        until(lambda: not queue.dead())
        assert queue.stats().dead == 0
        fail_each(queue, "y")
        assert server().hkeys(keys(queue).jobs) != [b"x"]
        assert server().hexists(keys(queue).states, "x") is False

    def test_redrive_of_many_jobs(self, queue: DelayQueue) -> None:
        queue.push_many(range(450))
        ids = [job.id for job in queue.pop(500) if queue.fail(job, "why")]
        assert queue.redrive(ids[:250]) == 250
        assert queue.redrive() == 200
        assert queue.stats().ready == 450

    def test_redrive_skips_jobs_that_die_meanwhile(
        self, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "PAGE", 1)
        queue.push_many(["a", "b", "c"])
        for job in queue.pop():
            queue.fail(job, "no")
        body = steps(queue.redrive)
        step = next(body)
        with pytest.raises(StopIteration) as ended:
            for _ in range(10):
                reply = reply_to(step)
                let_pass(0)
                for job in queue.pop():
                    queue.fail(job, "again")
                step = body.send(reply)
        assert ended.value.value == 3
        assert [dead.reason for dead in queue.dead()] == ["again"] * 3


class TestIds:
    async def test_repeated_request_adds_nothing_and_returns_the_first_id(
        self, call: Call, queue: DelayQueue
    ) -> None:
        for job_id in ("first", "second"):
            assert await call(queue, "push", "x", job_id=job_id, request_id="r") == "first"
        ids = {await call(queue, "push", "y", request_id="s") for _ in range(3)}
        jobs = await call(queue, "pop")
        assert [job.id for job in jobs] == ["first", *ids]
        for job in jobs:
            await call(queue, "ack", job)
        await call(queue, "push", "y", request_id="s")
        assert await call(queue, "pop") == []
        await call(queue, "push", "y", request_id="another")
        assert data(await call(queue, "pop")) == ["y"]

    def test_repeat_adds_missing_jobs(self, queue: DelayQueue) -> None:
        """The process stopped after the first script."""
        pushing = steps(queue.push_many, range(450), request_id="r")
        reply_to(next(pushing))
        pushing.close()
        assert queue.stats().ready == 200
        ids = queue.push_many(range(450), request_id="r")
        assert [job.id for job in queue.pop(500)] == ids

    def test_single_request_is_not_mistaken_for_a_page(self, queue: DelayQueue) -> None:
        queue.push("single", request_id="r:0")
        queue.push_many(["a", "b"], request_id="r")
        assert data(queue.pop()) == ["single", "a", "b"]

    def test_unusual_ids_and_names(self) -> None:
        for odd in ("{}", "a:b", "%", " ", "\n", "😀", "x" * 255, "-", "1", "a b"):
            queue = DelayQueue(odd)
            assert queue.push(odd, job_id=odd, request_id=odd) == odd
            job = pop_one(queue)
            assert (job.id, job.data, job.queue) == (odd, odd, odd)
            assert queue.fail(job, odd)
            assert [(dead.id, dead.reason) for dead in queue.dead()] == [(odd, odd)]
            assert queue.redrive([odd]) == 1
            assert queue.cancel(odd)
            assert remaining_keys(queue) == []

    def test_request_ids_are_spread_over_hashes_that_expire_one_after_the_other(
        self, queue: DelayQueue
    ) -> None:
        """Each before its next turn: Redis keeps a hash in the ms in which it expires."""
        for number in range(300):
            queue.push(number, request_id=f"r{number}")
        found, window = request_keys(), conf.current().REQUEST_WINDOW * 1000
        assert len(found) > 30
        assert max(map(server().hlen, found)) < 20
        assert len({server().pttl(key) // 1000 for key in found}) > 30
        for key in found:
            offset = int(key.split(":")[-2]) * window // REQUEST_SHARDS
            assert (server().pexpiretime(key) + offset) % window == window - 2

    def test_each_request_id_is_remembered_for_a_window(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, REQUEST_WINDOW=1)
        began = server_ms()
        requests = [f"r{number}" for number in range(100)]
        ids = [queue.push("x", request_id=one) for one in requests]
        assert len(queue.pop(500, lease=None)) == 100  # an id is free again once its job has ended
        until(lambda: server_ms() > began + 500)
        again = [queue.push("x", request_id=one) for one in requests]
        in_time = server_ms() < began + 1000
        assert again == ids and (queue.stats().ready == 0 or not in_time)
        until(lambda: not request_keys())


class TestCancelling:
    async def test_reschedule(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "a", job_id="a", delay=LONG)
        await call(queue, "push", "b", job_id="b")
        assert await call(queue, "reschedule", "b", LONG) is True
        assert await call(queue, "pop") == []
        assert await call(queue, "reschedule", "a", 0) is True
        before = server_ms()
        assert await call(queue, "reschedule", "b", 0.05) is True
        assert data(await call(queue, "pop", 1)) == ["a"]
        [job] = await call(queue, "pop", wait=DEADLINE)
        assert job.data == "b"
        assert round(job.due_at.timestamp() * 1000) >= before + 50
        for job_id in ("a", "nobody"):
            assert await call(queue, "reschedule", job_id, 0) is False

    async def test_purge(self, call: Call, queue: DelayQueue) -> None:
        assert await call(queue, "purge") == 0
        await call(queue, "push_many", range(450))
        running, failed = await call(queue, "pop", 2)
        await call(queue, "fail", failed, "why")
        await call(queue, "push", "later", delay=LONG)
        await DelayQueue("other").apush("x")
        assert await call(queue, "purge") == 451
        assert remaining_keys(queue) == []
        assert await call(queue, "ack", running) is False
        assert DelayQueue("other").stats().ready == 1


class TestStats:
    def test_due_and_expired_jobs_are_counted_as_moved(self) -> None:
        """Without a change: reading is only reading."""
        queue = DelayQueue("mail", max_attempts=2)
        queue.push_many(["a", "b"])
        queue.retry(pop_one(queue))
        queue.pop(lease=0.001)
        queue.push("c", delay=0.001)
        before = snapshot()
        until(lambda: queue.stats().leased == queue.stats().delayed == 0)
        predicted = queue.stats()
        assert (predicted.ready, predicted.dead) == (2, 1)
        assert predicted.oldest_age is not None
        assert 0 <= predicted.oldest_age < DEADLINE
        queue.dead()
        assert snapshot() == before
        assert queue.pop(1, min_age=LONG) == []
        moved = queue.stats()
        assert (moved.ready, moved.delayed, moved.leased, moved.dead) == (2, 0, 0, 1)

    def test_oldest_age(self, queue: DelayQueue) -> None:
        earliest = server_ms()
        queue.push("old", priority=-50)
        latest = server_ms()
        let_pass(50)
        queue.push("young", priority=50)
        before = server_ms()
        age = queue.stats().oldest_age
        assert age is not None
        assert before - latest <= age * 1000 <= server_ms() - earliest
        assert pop_one(queue).data == "young"
        assert queue.stats().oldest_age >= age  # type: ignore[operator]
        pop_one(queue)
        assert queue.stats().oldest_age is None


class TestLimits:
    async def test_max_waiting_jobs(self, call: Call, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=3)
        await call(queue, "push_many", ["a", "b"])
        await call(queue, "push", "c", delay=LONG, request_id="r")
        before = snapshot()
        with pytest.raises(LimitExceeded, match="JOB_MAX_WAITING") as caught:
            await call(queue, "push", "d")
        assert (caught.value.limit, caught.value.actual) == (3, 4)
        with pytest.raises(LimitExceeded):
            await call(queue, "push_many", ["d", "e"])
        with pytest.raises(LimitExceeded):
            await call(queue, "execute_later", "d")
        assert snapshot() == before
        await call(queue, "push", "c", delay=LONG, request_id="r")  # a repeat
        assert data(await call(queue, "pop", 1)) == ["a"]
        await call(queue, "push", "d")
        assert data(await call(queue, "pop")) == ["b", "d"]

    def test_existing_jobs_need_no_room(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=2)
        queue.push("a", job_id="a")
        job = pop_one(queue)
        queue.push("b", job_id="b")
        queue.push("c", job_id="c", delay=LONG)
        assert [queue.push("x", job_id=job_id) for job_id in "abc"] == ["a", "b", "c"]
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased) == (1, 1, 1)
        assert queue.retry(job)  # above the limit
        assert data(queue.pop(1, lease=LONG)) == ["b"]
        queue.fail(pop_one(queue), "why not")
        queue.push("d", job_id="d")
        with pytest.raises(LimitExceeded):
            queue.push("x", job_id="a")

    async def test_max_bytes(self, call: Call, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_BYTES=10)
        await call(queue, "push", "12345678")
        await call(queue, "push", "éééé")
        for big in ("123456789", "ééééé"):
            with pytest.raises(LimitExceeded, match="JOB_MAX_BYTES"):
                await call(queue, "push", big)
            with pytest.raises(LimitExceeded):
                await call(queue, "push_many", ["x", big])
        with pytest.raises(LimitExceeded):
            await call(queue, "execute_later", "name", ["123"])
        assert data(await call(queue, "pop")) == ["12345678", "éééé"]


#: values that arrive as they were pushed
PAYLOADS: list[Any] = [
    None, True, 0, 2**53 + 1, -(2**70), 0.1, 1e300, "", "😀 ß \u2028\n\0", [], {}, [[], {}, [[]]],
    {"": {"a": [], "b": {}}, "n": [2**53 + 1, None]}, [1.0, 1], "x" * 100_000,
]  # fmt: skip


def test_payload_round_trip(queue: DelayQueue) -> None:
    for payload in PAYLOADS:
        queue.push(payload)
        queue.push_many([payload], delay=0.001)
        first = pop_one(queue)
        assert repr(first.data) == repr(payload)
        queue.retry(first)
        assert [repr(pop_one(queue, lease=None).data) for _ in range(2)] == [repr(payload)] * 2
        queue.push(payload)
        queue.fail(pop_one(queue), "why")
        assert repr(queue.dead()[0].data) == repr(payload)
        queue.purge()


INVALID: dict[str, tuple[Callable[[DelayQueue, Job], Any], type[Exception], str]] = {
    "name empty": (lambda *_: DelayQueue(""), ValueError, "name is empty"),
    "name bytes": (lambda *_: DelayQueue(b"x"), TypeError, "name must be a str"),  # type: ignore[arg-type]
    "name long": (lambda *_: DelayQueue("x" * 256), ValueError, "256 bytes"),
    "max_attempts 0": (lambda *_: DelayQueue("x", max_attempts=0), ValueError, "max_attempts"),
    "max_attempts bool": (lambda *_: DelayQueue("x", max_attempts=True), TypeError, "max_attempts"),
    "max_attempts huge": (lambda *_: DelayQueue("x", max_attempts=10_001), ValueError, "max_attempts"),
    "data object": (lambda queue, _: queue.push(object()), TypeError, "data must be made of"),
    "data bytes": (lambda queue, _: queue.push([b"x"]), TypeError, "data must be made of"),
    "data key": (lambda queue, _: queue.push({1: 2}), TypeError, "key 1"),
    "data nan": (lambda queue, _: queue.push(float("nan")), ValueError, "data"),
    "data surrogate": (lambda queue, _: queue.push("\ud800"), ValueError, "data"),
    "data of many": (lambda queue, _: queue.push_many(["x", {1}]), TypeError, "data must be made of"),
    "delay negative": (lambda queue, _: queue.push("x", delay=-1), ValueError, "delay"),
    "delay nan": (lambda queue, _: queue.push("x", delay=float("nan")), ValueError, "delay"),
    "delay endless": (lambda queue, _: queue.push("x", delay=float("inf")), ValueError, "delay"),
    "delay too long": (lambda queue, _: queue.push("x", delay=10**10), ValueError, "100 years"),
    "delay str": (lambda queue, _: queue.push("x", delay="1"), TypeError, "delay"),  # type: ignore[arg-type]
    "delay bool": (lambda queue, _: queue.push("x", delay=True), TypeError, "delay"),
    "delay of many": (lambda queue, _: queue.push_many(["x"], delay=-1), ValueError, "delay"),
    "priority 101": (lambda queue, _: queue.push("x", priority=101), ValueError, "priority"),
    "priority -101": (lambda queue, _: queue.push("x", priority=-101), ValueError, "priority"),
    "priority float": (lambda queue, _: queue.push("x", priority=1.0), TypeError, "priority"),  # type: ignore[arg-type]
    "priority bool": (lambda queue, _: queue.push("x", priority=True), TypeError, "priority"),
    "job_id empty": (lambda queue, _: queue.push("x", job_id=""), ValueError, "job_id"),
    "job_id NUL": (lambda queue, _: queue.push("x", job_id="a\0b"), ValueError, "job_id.*NUL"),
    "job_id int": (lambda queue, _: queue.push("x", job_id=7), TypeError, "job_id"),  # type: ignore[arg-type]
    "request_id empty": (lambda queue, _: queue.push("x", request_id=""), ValueError, "request_id"),
    "request_id int": (lambda queue, _: queue.push("x", request_id=7), TypeError, "request_id"),  # type: ignore[arg-type]
    "request_id surrogate": (lambda queue, _: queue.push("x", request_id="\ud800"), ValueError, "request_id"),
    "request_id of many": (lambda queue, _: queue.push_many([], request_id=""), ValueError, "request_id"),
    "num 0": (lambda queue, _: queue.pop(0), ValueError, "num"),
    "num 501": (lambda queue, _: queue.pop(501), ValueError, "num"),
    "num bool": (lambda queue, _: queue.pop(True), TypeError, "num"),
    "lease 0": (lambda queue, _: queue.pop(lease=0), ValueError, "lease"),
    "lease negative": (lambda queue, _: queue.pop(lease=-1), ValueError, "lease"),
    "lease str": (lambda queue, _: queue.pop(lease="1"), TypeError, "lease"),  # type: ignore[arg-type]
    "min_age negative": (lambda queue, _: queue.pop(min_age=-1), ValueError, "min_age"),
    "wait endless": (lambda queue, _: queue.pop(wait=float("inf")), ValueError, "wait"),
    "wait None": (lambda queue, _: queue.pop(wait=None), TypeError, "wait"),  # type: ignore[arg-type]
    "retry delay": (lambda queue, job: queue.retry(job, -1), ValueError, "delay"),
    "release delay": (lambda queue, job: queue.release(job, "x"), TypeError, "delay"),  # type: ignore[arg-type]
    "reason None": (lambda queue, job: queue.fail(job, None), TypeError, "reason"),  # type: ignore[arg-type]
    "reason surrogate": (lambda queue, job: queue.fail(job, "\ud800"), ValueError, "reason"),
    "reason long": (lambda queue, job: queue.fail(job, "x" * 8193), LimitExceeded, "reason"),
    "extend 0": (lambda queue, job: queue.extend(job, 0), ValueError, "lease"),
    "cancel": (lambda queue, _: queue.cancel(None), TypeError, "job_id"),  # type: ignore[arg-type]
    "reschedule": (lambda queue, _: queue.reschedule("", 1), ValueError, "job_id"),
    "reschedule delay": (lambda queue, _: queue.reschedule("x", -1), ValueError, "delay"),
    "dead 0": (lambda queue, _: queue.dead(0), ValueError, "limit"),
    "dead 501": (lambda queue, _: queue.dead(501), ValueError, "limit"),
    "redrive str": (lambda queue, _: queue.redrive("x"), TypeError, "list"),
    "redrive int": (lambda queue, _: queue.redrive([7]), TypeError, "job_id"),  # type: ignore[list-item]
    "callable": (lambda queue, _: queue.execute_later(print), TypeError, "callable_name"),  # type: ignore[arg-type]
    "callable empty": (lambda queue, _: queue.execute_later(""), ValueError, "callable_name"),
    "args str": (lambda queue, _: queue.execute_later("f", "abc"), TypeError, "args"),
    "args object": (lambda queue, _: queue.execute_later("f", [object()]), TypeError, "data"),
    "work lease": (lambda queue, _: queue.work({}, lease=0), ValueError, "lease"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", INVALID)
def test_invalid_arguments_are_rejected_before_sending(
    wrong: str, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, error, text = INVALID[wrong]
    job = Job("x", "x", 1, 1, datetime.now(UTC), "mail", "t")
    monkeypatch.setattr(clients.Client, "execute", lambda *_: pytest.fail("something was sent"))
    with pytest.raises(error, match=text):
        function(queue, job)
