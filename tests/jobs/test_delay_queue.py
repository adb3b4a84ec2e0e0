"""A delay queue: when jobs are popped, in which order, by which client, and how they end."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
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
from django_redis_messaging.services.jobs.keys import JobKeys

from ..conftest import Call
from ..support.server import DEADLINE, all_keys, change, reply_to, server, server_ms, steps, until

pytestmark = pytest.mark.usefixtures("closing")
#: seconds: longer than any test
LONG = 1000
#: seconds that a client waits for its wake-up: a poll would be too late
PATIENCE = 3 * DEADLINE


@pytest.fixture
def queue() -> DelayQueue:
    return DelayQueue("mail")


@pytest.fixture
def wake_ups_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that wait do not poll."""
    monkeypatch.setattr(engine, "POLL_INTERVAL", 3600.0)
    monkeypatch.setattr(base, "POLL_INTERVAL", 3600.0)


def data(jobs: list[Job]) -> list[Any]:
    return [job.data for job in jobs]


def pop_one(queue: DelayQueue, *, lease: float | None = LONG, wait: float = DEADLINE) -> Job:
    """Pop the next job, waiting for it if necessary."""
    [job] = queue.pop(1, lease=lease, wait=wait)
    return job


def keys(queue: DelayQueue) -> JobKeys:
    return JobKeys(conf.prefix(), "queue", queue.name)


def stored() -> dict[str, Any]:
    """All keys of this test with their content; hash fields in any order, unlike in a dump."""
    return {
        key: server().hgetall(key)
        if server().type(key) == b"hash"
        else server().zrange(key, 0, -1, withscores=True)
        for key in all_keys()
    }


def remaining_keys(queue: DelayQueue) -> list[str]:
    """The queue's keys, except those that expire and the wake-up marker."""
    return [
        key
        for key in all_keys()
        if key.startswith(keys(queue).tag) and ":requests:" not in key and not key.endswith(":bell")
    ]


@contextmanager
def quickly() -> Iterator[None]:
    """The block must not take long."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < DEADLINE


@contextmanager
def waiting(queue: DelayQueue, count: int = 1) -> Iterator[list[Future[list[Job]]]]:
    """Threads blocked in pop(), as many as `count`."""
    clients.close()
    until(lambda: server().info("clients")["blocked_clients"] == 0)

    def pop() -> list[Job]:
        try:
            return queue.pop(1, lease=LONG, wait=PATIENCE)
        finally:
            clients.close()

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(pop) for _ in range(count)]
        until(lambda: server().info("clients")["blocked_clients"] == count)
        yield futures


class TestOrder:
    async def test_first_in_first_out(self, call: Call, queue: DelayQueue) -> None:
        for number in range(12):
            await call(queue, "push", number)
        assert data(await call(queue, "pop")) == [0, 1, 2, 3, 4]
        assert data(await call(queue, "pop", 1)) == [5]
        assert data(await call(queue, "pop", 500)) == [6, 7, 8, 9, 10, 11]
        assert await call(queue, "pop") == []

    async def test_push_many_keeps_the_order_over_pages(self, call: Call, queue: DelayQueue) -> None:
        ids = await call(queue, "push_many", range(450))
        assert len(set(ids)) == 450
        jobs = await call(queue, "pop", 500)
        assert data(jobs) == list(range(450))
        assert [job.id for job in jobs] == ids

    async def test_highest_priority_is_first(self, call: Call, queue: DelayQueue) -> None:
        for priority in (0, -100, 100, 0, 99, -1, 1, 100):
            await call(queue, "push", priority, priority=priority)
        assert data(await call(queue, "pop", 10)) == [100, 100, 99, 1, 0, 0, -1, -100]

    @pytest.mark.parametrize("seed", range(3))
    def test_order_is_a_stable_sort(self, seed: int, queue: DelayQueue) -> None:
        chance = random.Random(seed)
        expected: list[tuple[int, int]] = []
        for number in range(150):
            if expected and chance.random() < 0.3:
                count = chance.randint(1, 4)
                assert data(queue.pop(count)) == [list(pair) for pair in expected[:count]]
                del expected[:count]
            priority = chance.choice([-100, -1, 0, 1, 100])
            queue.push([priority, number], priority=priority)
            expected.append((priority, number))
            expected.sort(key=lambda pair: -pair[0])
        assert data(queue.pop(500)) == [list(pair) for pair in expected]

    def test_earlier_due_jobs_are_first(self, queue: DelayQueue) -> None:
        delays = (900, 300, 1200, 600)
        for delay in delays:
            queue.push(delay, delay=delay)
        delayed = keys(queue).queue("jobs").delayed
        for job_id in server().zrange(delayed, 0, -1):  # make an hour pass
            server().zincrby(delayed, -3_600_000, job_id)
        assert data(queue.pop()) == sorted(delays)

    def test_jobs_due_together_keep_their_order(self, queue: DelayQueue) -> None:
        queue.push_many(range(250), delay=0.01)
        queue.push_many(range(250, 270), delay=0.05, request_id="r")
        until(lambda: queue.stats().ready == 270)
        assert data(queue.pop(500)) == list(range(270))

    def test_retried_job_goes_to_the_end(self, queue: DelayQueue) -> None:
        queue.push_many(["a", "b", "c"])
        assert queue.retry(pop_one(queue))
        assert data(queue.pop()) == ["b", "c", "a"]

    def test_priority_is_kept_by_retry_release_and_reschedule(self, queue: DelayQueue) -> None:
        queue.push("high", priority=5, job_id="high")
        queue.push("low")
        queue.retry(pop_one(queue))
        queue.release(pop_one(queue))
        queue.reschedule("high", 0)
        assert data(queue.pop()) == ["high", "low"]

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
        for _ in range(20):
            queue.push("x", job_id="x")
            for operation in (queue.retry, queue.release):
                job = pop_one(queue)
                requeued = server_us()
                operation(job, delay=3600)
                [(_, due)] = server().zrange(keys(queue).queue("jobs").delayed, 0, 0, withscores=True)
                assert due * 1000 >= requeued + 3600 * 10**6
                queue.reschedule("x", 0)
            queue.purge()

    def test_due_at_is_when_the_job_became_due(self, queue: DelayQueue) -> None:
        before = server_ms()
        queue.push("x", delay=0.02)
        after = server_ms()
        due = pop_one(queue).due_at
        assert due.tzinfo is UTC
        assert before + 20 <= due.timestamp() * 1000 <= after + 21

    def test_delay_can_be_a_timedelta(self, queue: DelayQueue) -> None:
        before = server_ms()
        queue.push("x", delay=timedelta(milliseconds=20))
        after = server_ms()
        assert before + 20 <= pop_one(queue).due_at.timestamp() * 1000 <= after + 21

    def test_delay_of_a_century(self, queue: DelayQueue) -> None:
        century = timedelta(days=100 * 365)
        queue.push({"far": "off"}, delay=century, job_id="far")
        assert queue.stats() == QueueStats(0, 1, 0, 0, None)
        assert [server().ttl(key) for key in remaining_keys(queue)] == [-1] * len(remaining_keys(queue))
        assert queue.reschedule("far", 0)
        assert pop_one(queue).data == {"far": "off"}

    def test_min_age_is_never_early(self, queue: DelayQueue) -> None:
        for _ in range(20):
            pushed = server_us()
            queue.push("x")
            while not queue.pop(min_age=0.005):
                assert server_us() - pushed < DEADLINE * 10**6
            assert server_us() - pushed >= 5000

    def test_min_age_checks_the_head_of_each_priority(self, queue: DelayQueue) -> None:
        queue.push_many(["a", "b"])
        queue.push("urgent", priority=9)
        queue.push("slow", priority=-9)
        pushed = server_ms()
        until(lambda: server_ms() > pushed + 1000)
        queue.push("young")
        queue.push("urgent and young", priority=100)
        assert data(queue.pop(10, min_age=1)) == ["urgent", "a", "b", "slow"]
        assert data(queue.pop(10, min_age=LONG)) == []
        assert data(queue.pop(10)) == ["urgent and young", "young"]

    def test_min_age_pops_no_more_than_requested(self, queue: DelayQueue) -> None:
        queue.push_many(["a", "b", "c"])
        until(lambda: (queue.stats().oldest_age or 0) > 0.02)
        assert data(queue.pop(2, min_age=0.02)) == ["a", "b"]
        assert data(queue.pop(2, min_age=0.02)) == ["c"]

    def test_min_age_of_a_delayed_job_starts_when_it_is_due(self, queue: DelayQueue) -> None:
        began = server_us()
        queue.push("x", delay=0.05)
        assert data(queue.pop(min_age=0.05) or queue.pop(min_age=0.05, wait=DEADLINE)) == ["x"]
        assert server_us() - began >= 100_000


#: operations that make a leased job ready again
REQUEUE_OPERATIONS: dict[str, Callable[[DelayQueue, Job], object]] = {
    "retry": lambda queue, job: queue.retry(job),
    "retry later": lambda queue, job: queue.retry(job, 0.02),
    "release": lambda queue, job: queue.release(job),
    "redrive": lambda queue, job: queue.fail(job, "why") and queue.redrive(),
    "reschedule": lambda queue, job: queue.release(job, LONG) and queue.reschedule(job.id, 0),
    "reschedule sooner": lambda queue, job: queue.release(job, LONG) and queue.reschedule(job.id, 0.02),
}


@pytest.mark.usefixtures("wake_ups_only")
@pytest.mark.timing
class TestWaiting:
    def test_ended_wait_takes_no_wake_up(self, queue: DelayQueue) -> None:
        clients.close()
        until(lambda: server().info("clients")["blocked_clients"] == 0)
        assert queue.pop(wait=0.05) == []
        began = time.monotonic()
        until(lambda: server().info("clients")["blocked_clients"] == 0)
        assert time.monotonic() - began < 5  # the server ends such waits on a grid of 100 ms

    async def test_wait_without_jobs_times_out(self, call: Call, queue: DelayQueue) -> None:
        began = server_us()
        assert await call(queue, "pop", wait=0.05) == []
        assert 50_000 <= server_us() - began < 5_000_000

    def test_push_wakes_a_waiting_client(self, queue: DelayQueue) -> None:
        with waiting(queue) as [popped]:
            queue.push("x")
            assert data(popped.result(DEADLINE)) == ["x"]

    async def test_push_wakes_a_waiting_coroutine(self, queue: DelayQueue) -> None:
        popping = asyncio.ensure_future(queue.apop(wait=PATIENCE))
        async with asyncio.timeout(DEADLINE):
            while not server().info("clients")["blocked_clients"]:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        assert not popping.done()
        await queue.apush("x")
        assert data(await asyncio.wait_for(popping, DEADLINE)) == ["x"]

    async def test_due_job_ends_the_wait(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "x", delay=0.05)
        with quickly():
            assert data(await call(queue, "pop", wait=PATIENCE)) == ["x"]

    def test_expired_lease_ends_the_wait(self, queue: DelayQueue) -> None:
        queue.push("x")
        first = pop_one(queue, lease=0.05)
        with quickly():
            requeued = pop_one(queue, wait=PATIENCE)
        assert (requeued.id, requeued.attempts) == (first.id, 2)

    def test_job_that_reaches_min_age_ends_the_wait(self, queue: DelayQueue) -> None:
        queue.push("x")
        with quickly():
            assert data(queue.pop(min_age=0.5, wait=PATIENCE)) == ["x"]

    def test_earlier_due_job_wakes_a_waiting_client(self, queue: DelayQueue) -> None:
        queue.push("late", delay=LONG)
        with waiting(queue) as [popped]:
            queue.push("early", delay=0.05)
            assert data(popped.result(DEADLINE)) == ["early"]

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
            server().zadd(keys(queue).queue("jobs").delayed, {"soon": server_ms() + 300})
            queue.push("now")
            assert sorted(data(popped.result(DEADLINE))[0] for popped in both) == ["now", "soon"]


#: operations that need a lease
LEASE_OPERATIONS: dict[str, Callable[[DelayQueue, Job], bool]] = {
    "ack": lambda queue, job: queue.ack(job),
    "retry": lambda queue, job: queue.retry(job),
    "release": lambda queue, job: queue.release(job),
    "fail": lambda queue, job: queue.fail(job, "why"),
    "extend": lambda queue, job: queue.extend(job, LONG),
}


class TestLeases:
    async def test_leased_job_is_not_popped_again(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "x")
        [job] = await call(queue, "pop")
        assert (job.attempts, job.queue) == (1, "mail")
        assert await call(queue, "pop") == []
        assert await call(queue, "ack", job) is True
        assert await call(queue, "pop") == []
        assert remaining_keys(queue) == []

    async def test_ack_counts_once(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "x")
        [job] = await call(queue, "pop")
        assert [await call(queue, "ack", job) for _ in range(3)] == [True, False, False]

    @pytest.mark.parametrize("operation", LEASE_OPERATIONS)
    def test_stale_lease_changes_nothing(self, operation: str, queue: DelayQueue) -> None:
        queue.push("x")
        stale = pop_one(queue, lease=0.001)
        current = pop_one(queue)
        before = stored()
        assert LEASE_OPERATIONS[operation](queue, stale) is False
        assert stored() == before
        assert LEASE_OPERATIONS[operation](queue, current) is True

    @pytest.mark.parametrize("operation", LEASE_OPERATIONS)
    def test_lease_of_a_purged_job_changes_nothing(self, operation: str, queue: DelayQueue) -> None:
        queue.push("x", job_id="again")
        job = pop_one(queue)
        queue.purge()
        assert LEASE_OPERATIONS[operation](queue, job) is False
        queue.push("another", job_id="again")
        assert LEASE_OPERATIONS[operation](queue, job) is False
        assert pop_one(queue).data == "another"
        assert LEASE_OPERATIONS[operation](queue, job) is False

    @pytest.mark.parametrize("operation", LEASE_OPERATIONS)
    def test_job_popped_without_a_lease_cannot_be_settled(self, operation: str, queue: DelayQueue) -> None:
        queue.push("x")
        popped = pop_one(queue, lease=None)
        assert (popped.data, popped.attempts) == ("x", 1)
        assert remaining_keys(queue) == []
        assert LEASE_OPERATIONS[operation](queue, popped) is False
        assert remaining_keys(queue) == []

    @pytest.mark.parametrize("operation", LEASE_OPERATIONS)
    def test_lease_of_another_queue_is_rejected(self, operation: str, queue: DelayQueue) -> None:
        queue.push("x")
        job = pop_one(queue)
        with pytest.raises(ValueError, match="of the queue 'other', not of 'mail'"):
            LEASE_OPERATIONS[operation](DelayQueue("other"), job)

    def test_expired_lease_is_valid_until_requeued(self, queue: DelayQueue) -> None:
        queue.push("x")
        job = pop_one(queue, lease=0.001)
        until(lambda: queue.stats().leased == 0)
        assert queue.extend(job, LONG)
        assert queue.pop() == []
        assert queue.ack(job)

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
        queue.push("x", job_id="x")
        fences = []
        for _ in range(4):
            job = pop_one(queue)
            fences.append(job.fence)
            queue.release(job)
        queue.purge()
        queue.push("y", job_id="x")
        fences.append(pop_one(queue).fence)
        assert sorted(set(fences)) == fences

    def test_fence_grows_although_the_clock_was_ahead(self, queue: DelayQueue) -> None:
        queue.push("x", job_id="x")
        queue.release(pop_one(queue))
        words = server().hget(keys(queue).states, "x").decode().split(" ")
        words[5] = str(ahead := server_us() + 10**9)
        server().hset(keys(queue).states, "x", " ".join(words))
        assert pop_one(queue).fence == ahead + 1

    def test_expired_leases_are_requeued_until_max_attempts(self) -> None:
        queue = DelayQueue("mail", max_attempts=3)
        queue.push("x", job_id="x")
        assert [pop_one(queue, lease=0.001).attempts for _ in range(3)] == [1, 2, 3]
        until(lambda: queue.pop() == [] and queue.dead())
        [dead] = queue.dead()
        assert (dead.id, dead.data, dead.attempts) == ("x", "x", 3)
        assert dead.reason == "The lease expired in attempt 3."
        assert dead.buried_at.timestamp() * 1000 <= server_ms()

    async def test_retries_end_at_max_attempts(self, call: Call) -> None:
        queue = DelayQueue("mail", max_attempts=2)
        await call(queue, "push", "x")
        for attempt in (1, 2):
            [job] = await call(queue, "pop")
            assert job.attempts == attempt
            assert await call(queue, "retry", job) is True
        assert await call(queue, "pop") == []
        assert [(job.attempts, job.reason) for job in await call(queue, "dead")] == [(2, "")]

    async def test_release_charges_no_attempt(self, call: Call) -> None:
        queue = DelayQueue("mail", max_attempts=1)
        await call(queue, "push", "x")
        for _ in range(4):
            [job] = await call(queue, "pop")
            assert job.attempts == 1
            assert await call(queue, "release", job) is True
        assert (await call(queue, "stats")).ready == 1

    async def test_retry_and_release_with_delay(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push_many", ["a", "b"])
        first, second = await call(queue, "pop")
        await call(queue, "retry", first, LONG)
        await call(queue, "release", second, timedelta(seconds=LONG))
        assert await call(queue, "stats") == QueueStats(0, 2, 0, 0, None)

    def test_max_attempts_is_set_by_the_push(self, settings: Settings) -> None:
        change(settings, JOB_MAX_ATTEMPTS=1)
        DelayQueue("mail").push("x")
        change(settings, JOB_MAX_ATTEMPTS=9)
        queue = DelayQueue("mail")
        queue.retry(pop_one(queue))
        assert queue.stats().dead == 1

    def test_many_leases_expire_at_once(self, queue: DelayQueue) -> None:
        queue.push_many(range(250))
        assert len(queue.pop(500, lease=0.001)) == 250
        found: list[Job] = []
        until(lambda: found.extend(queue.pop(500, lease=LONG)) or len(found) == 250)
        assert sorted(data(found)) == list(range(250))


class TestDead:
    async def test_failed_job_is_dead_with_its_reason(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", ["x"], job_id="x")
        [job] = await call(queue, "pop")
        before = server_ms()
        assert await call(queue, "fail", job, 'it "broke"\nL😀') is True
        assert await call(queue, "pop") == []
        [dead] = await call(queue, "dead")
        assert dead == DeadJob("x", ["x"], 1, 'it "broke"\nL😀', dead.buried_at)
        assert before <= dead.buried_at.timestamp() * 1000 <= server_ms()

    def test_newest_dead_job_is_first(self, queue: DelayQueue) -> None:
        for number in range(4):
            queue.push(number)
            queue.fail(pop_one(queue), "why")
            next_ms()
        assert [job.data for job in queue.dead()] == [3, 2, 1, 0]
        assert [job.data for job in queue.dead(2)] == [3, 2]

    async def test_redriven_job_has_all_attempts(self, call: Call) -> None:
        queue = DelayQueue("mail", max_attempts=2)
        ids = await call(queue, "push_many", "abc")
        for job in await call(queue, "pop"):
            await call(queue, "fail", job, "why")
            next_ms()
        assert await call(queue, "redrive", [ids[2], "nobody", ids[2]]) == 1
        assert await call(queue, "redrive", []) == 0
        assert await call(queue, "redrive") == 2
        assert await call(queue, "redrive") == 0
        jobs = await call(queue, "pop")
        assert [(job.data, job.attempts) for job in jobs] == [("c", 1), ("a", 1), ("b", 1)]
        await call(queue, "retry", jobs[0])
        assert (await call(queue, "pop"))[0].attempts == 2

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
                reply, now = reply_to(step), server_ms()
                until(lambda: server_ms() > now)  # noqa: B023
                for job in queue.pop():
                    queue.fail(job, "again")
                step = body.send(reply)
        assert ended.value.value == 3
        assert [dead.reason for dead in queue.dead()] == ["again"] * 3

    def test_only_dead_jobs_are_redriven(self, queue: DelayQueue) -> None:
        queue.push("running", job_id="running")
        pop_one(queue)
        queue.push("ready", job_id="ready")
        queue.push("delayed", job_id="delayed", delay=LONG)
        before = stored()
        assert queue.redrive(["running", "ready", "delayed"]) == 0
        assert stored() == before

    def test_oldest_dead_jobs_are_trimmed(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_DEAD=3)
        for number in range(6):
            queue.push(number)
            queue.fail(pop_one(queue), "why")
            next_ms()
        assert [job.data for job in queue.dead()] == [5, 4, 3]
        assert server().hlen(keys(queue).jobs) == 3

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_limit_holds_if_many_jobs_die_in_one_ms(
        self, limit: int, queue: DelayQueue, settings: Settings
    ) -> None:
        change(settings, JOB_MAX_DEAD=limit, JOB_MAX_ATTEMPTS=1)
        DelayQueue("mail").push_many(range(50))
        queue.pop(50, lease=0.001)
        until(lambda: queue.stats().leased == 0)
        assert queue.pop() == []
        assert queue.stats().dead == limit

    def test_expired_dead_jobs_are_hidden_and_removed(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_DEAD_TTL=0.02)
        queue.push("x", job_id="x")
        queue.fail(pop_one(queue), "why")
        until(lambda: not queue.dead())
        assert queue.stats().dead == 0
        queue.push("y")
        queue.fail(pop_one(queue), "why")
        assert server().hkeys(keys(queue).jobs) != [b"x"]
        assert server().hexists(keys(queue).states, "x") is False

    def test_push_with_its_id_replaces_a_dead_job(self) -> None:
        queue = DelayQueue("mail", max_attempts=1)
        queue.push("old", job_id="x")
        queue.fail(pop_one(queue), "old reason")
        queue.push("new", job_id="x")
        assert (queue.stats().ready, queue.stats().dead) == (1, 0)
        job = pop_one(queue)
        assert (job.data, job.attempts) == ("new", 1)
        queue.retry(job)
        assert [(dead.data, dead.reason) for dead in queue.dead()] == [("new", "")]


class TestIds:
    async def test_existing_job_is_not_replaced(self, call: Call, queue: DelayQueue) -> None:
        assert await call(queue, "push", "first", job_id="x") == "x"
        assert await call(queue, "push", "second", job_id="x", delay=LONG, priority=9) == "x"
        [job] = await call(queue, "pop")
        assert job.data == "first"
        await call(queue, "push", "third", job_id="x")
        assert await call(queue, "pop") == []
        await call(queue, "retry", job, LONG)
        await call(queue, "push", "fourth", job_id="x")
        assert await call(queue, "stats") == QueueStats(0, 1, 0, 0, None)
        await call(queue, "reschedule", "x", 0)
        [job] = await call(queue, "pop")
        assert (job.data, job.attempts) == ("first", 2)

    def test_id_can_be_reused_after_the_ack(self, queue: DelayQueue) -> None:
        for text in ("one", "two"):
            queue.push(text, job_id="x")
            job = pop_one(queue)
            assert (job.data, job.attempts) == (text, 1)
            queue.ack(job)

    async def test_repeated_request_adds_nothing(self, call: Call, queue: DelayQueue) -> None:
        ids = {await call(queue, "push", "x", request_id="r") for _ in range(3)}
        assert len(ids) == 1
        [job] = await call(queue, "pop")
        await call(queue, "ack", job)
        await call(queue, "push", "x", request_id="r")
        assert await call(queue, "pop") == []
        await call(queue, "push", "x", request_id="another")
        assert data(await call(queue, "pop")) == ["x"]

    async def test_repeated_request_returns_the_first_id(self, call: Call, queue: DelayQueue) -> None:
        for job_id in ("first", "second"):
            assert await call(queue, "push", "x", job_id=job_id, request_id="r") == "first"
        assert [job.id for job in await call(queue, "pop")] == ["first"]

    async def test_repeated_request_of_push_many(self, call: Call, queue: DelayQueue) -> None:
        ids = await call(queue, "push_many", range(250), request_id="r")
        assert await call(queue, "push_many", range(250), request_id="r") == ids
        assert data(await call(queue, "pop", 500)) == list(range(250))

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

    def test_pushes_without_request_id_are_distinct(self, queue: DelayQueue) -> None:
        assert len({queue.push("x") for _ in range(20)}) == 20
        assert len(queue.pop(100)) == 20

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


PAYLOADS = [
    None, True, 0, 2**53 + 1, -(2**70), 0.1, 1e300, "", "😀 ß \u2028\n\0", [], {}, [[], {}, [[]]],
    {"": {"a": [], "b": {}}, "n": [2**53 + 1, None]}, [1.0, 1], "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: repr(payload)[:20])
def test_payload_round_trip(payload: Any, queue: DelayQueue) -> None:
    queue.push(payload)
    queue.push_many([payload], delay=0.001)
    first = pop_one(queue)
    assert repr(first.data) == repr(payload)
    queue.retry(first)
    assert [repr(pop_one(queue).data) for _ in range(2)] == [repr(payload)] * 2
    queue.push(payload)
    queue.fail(pop_one(queue), "why")
    assert repr(queue.dead()[0].data) == repr(payload)


class TestCancelling:
    async def test_waiting_and_dead_jobs_can_be_cancelled(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "dead", job_id="dead")
        [job] = await call(queue, "pop")
        await call(queue, "fail", job, "why")
        await call(queue, "push", "ready", job_id="ready")
        await call(queue, "push", "delayed", job_id="delayed", delay=0.01)
        for job_id in ("ready", "delayed", "dead"):
            assert await call(queue, "cancel", job_id) is True
            assert await call(queue, "cancel", job_id) is False
        assert remaining_keys(queue) == []
        assert await call(queue, "pop", wait=0.02) == []

    async def test_leased_job_cannot_be_cancelled(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "x", job_id="x")
        [job] = await call(queue, "pop")
        assert await call(queue, "cancel", "x") is False
        assert await call(queue, "cancel", "nobody") is False
        assert await call(queue, "ack", job) is True

    async def test_reschedule(self, call: Call, queue: DelayQueue) -> None:
        await call(queue, "push", "a", job_id="a", delay=LONG)
        await call(queue, "push", "b", job_id="b")
        assert await call(queue, "reschedule", "b", LONG) is True
        assert await call(queue, "pop") == []
        assert await call(queue, "reschedule", "a", 0) is True
        assert await call(queue, "reschedule", "b", 0.01) is True
        assert data(await call(queue, "pop", 1)) == ["a"]
        assert data(await call(queue, "pop", wait=DEADLINE)) == ["b"]
        for job_id in ("a", "nobody"):
            assert await call(queue, "reschedule", job_id, 0) is False

    def test_dead_job_cannot_be_rescheduled(self, queue: DelayQueue) -> None:
        queue.push("x", job_id="x")
        queue.fail(pop_one(queue), "why")
        assert queue.reschedule("x", 0) is False
        assert queue.stats().dead == 1

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
    async def test_counts_by_state(self, call: Call, queue: DelayQueue) -> None:
        assert await call(queue, "stats") == QueueStats(0, 0, 0, 0, None)
        await call(queue, "push_many", range(6))
        await call(queue, "push", "later", delay=LONG)
        first, *_ = await call(queue, "pop", 2)
        await call(queue, "fail", first, "why")
        stats = await call(queue, "stats")
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (4, 1, 1, 1)

    def test_due_and_expired_jobs_are_counted_as_moved(self) -> None:
        queue = DelayQueue("mail", max_attempts=2)
        queue.push_many(["a", "b"])
        queue.retry(pop_one(queue, lease=LONG))
        queue.pop(lease=0.001)
        queue.push("c", delay=0.001)
        until(lambda: queue.stats().leased == queue.stats().delayed == 0)
        predicted = queue.stats()
        assert (predicted.ready, predicted.dead) == (2, 1)
        assert predicted.oldest_age is not None
        assert queue.pop(1, min_age=LONG) == []
        moved = queue.stats()
        assert (moved.ready, moved.delayed, moved.leased, moved.dead) == (2, 0, 0, 1)

    def test_expired_lease_counts_as_ready(self, queue: DelayQueue) -> None:
        queue.push("x")
        queue.pop(lease=0.001)
        until(lambda: queue.stats().ready == 1)
        age = queue.stats().oldest_age
        assert age is not None
        assert 0 <= age < DEADLINE

    def test_oldest_age(self, queue: DelayQueue) -> None:
        pushed = server_ms()
        queue.push("old", priority=-50)
        until(lambda: server_ms() > pushed + 50)
        queue.push("young", priority=50)
        before = server_ms()
        age = queue.stats().oldest_age
        assert age is not None
        assert before - pushed - 50 <= age * 1000 <= server_ms() - pushed
        assert pop_one(queue).data == "young"
        assert queue.stats().oldest_age >= age  # type: ignore[operator]
        pop_one(queue)
        assert queue.stats().oldest_age is None

    def test_stats_and_dead_change_nothing(self, queue: DelayQueue) -> None:
        queue.push("x")
        queue.pop(lease=0.001)
        queue.push("y", delay=0.001)
        before = stored()
        until(lambda: queue.stats().ready == 2)
        queue.dead()
        assert stored() == before


class TestLimits:
    async def test_max_waiting_jobs(self, call: Call, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=3)
        await call(queue, "push_many", ["a", "b"])
        await call(queue, "push", "c", delay=LONG)
        before = stored()
        with pytest.raises(LimitExceeded, match="JOB_MAX_WAITING") as caught:
            await call(queue, "push", "d")
        assert (caught.value.limit, caught.value.actual) == (3, 4)
        with pytest.raises(LimitExceeded):
            await call(queue, "push_many", ["d", "e"])
        with pytest.raises(LimitExceeded):
            await call(queue, "execute_later", "d")
        assert stored() == before
        assert data(await call(queue, "pop", 1)) == ["a"]
        await call(queue, "push", "d")
        assert data(await call(queue, "pop")) == ["b", "d"]

    def test_repeat_succeeds_if_the_queue_is_full(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=1)
        assert queue.push("x", request_id="r") == queue.push("x", request_id="r")

    def test_existing_jobs_need_no_room(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=2)
        queue.push("a", job_id="a")
        job = pop_one(queue)
        queue.push("b", job_id="b")
        queue.push("c", job_id="c", delay=LONG)
        assert [queue.push("x", job_id=job_id) for job_id in "abc"] == ["a", "b", "c"]
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased) == (1, 1, 1)
        queue.fail(job, "why not")
        with pytest.raises(LimitExceeded):
            queue.push("x", job_id="a")

    def test_requeued_jobs_ignore_the_limit(self, queue: DelayQueue, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=1)
        queue.push("a")
        job = pop_one(queue)
        queue.push("b")
        assert queue.retry(job)
        assert data(queue.pop()) == ["b", "a"]

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


def test_every_operation_has_an_async_version() -> None:
    verbs = [name for name, value in inspect.getmembers(DelayQueue, inspect.iscoroutinefunction)]
    assert len(verbs) == 16
    for verb in verbs:
        signature = inspect.signature(getattr(DelayQueue, verb))
        assert signature.parameters == inspect.signature(getattr(DelayQueue, verb[1:])).parameters


@pytest.mark.timing
def test_concurrent_consumers_take_each_job_once(queue: DelayQueue) -> None:
    taken: list[int] = []
    pushed = [list(range(start, start + 100)) for start in (0, 100, 200)]

    def push(numbers: list[int]) -> None:
        for number in numbers:
            queue.push(number)
        clients.close()

    def take() -> None:
        while len(taken) < 300:
            for job in queue.pop(3, lease=LONG, wait=0.05):
                taken.append(job.data)
                assert queue.ack(job)
        clients.close()

    threads = [threading.Thread(target=push, args=[numbers], daemon=True) for numbers in pushed]
    threads += [threading.Thread(target=take, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * DEADLINE)
    assert sorted(taken) == list(range(300))
    assert remaining_keys(queue) == []


def server_us() -> int:
    seconds, micros = server().time()
    return int(seconds * 10**6 + micros)


def next_ms() -> None:
    """Wait for the next ms of the server's clock."""
    before = server_ms()
    until(lambda: server_ms() > before)
