"""A delay queue whose consumers are killed or race, whose server loses replies, or is out of memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest
import redis
from django.core.cache import caches

from django_redis_messaging import OutcomeUnknown, Unavailable, conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.jobs import DelayQueue, Job, QueueStats
from django_redis_messaging.services.jobs import queue as base
from tests.support.engines import Performed
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import (
    GENEROUS,
    PATIENCE,
    SHARE,
    Connect,
    Prepared,
    processes,
    results_around_a_loss,
)
from ..support.scripts import Planting
from ..support.server import DEADLINE, reply_to, server, snapshot, steps, until

#: seconds: longer than any test
LONG = 1000
numbers = itertools.count()
Fill = Callable[[], None]


@pytest.fixture
def queue() -> DelayQueue:
    return DelayQueue("mail", max_attempts=1000)


def zsets(queue: DelayQueue) -> Any:
    return queue._engine.keys.queue(base.ONLY_QUEUE)


def counts(queue: DelayQueue) -> tuple[int, int, int, int]:
    """How many jobs are ready, delayed, leased and dead."""
    stats = queue.stats()
    return stats.ready, stats.delayed, stats.leased, stats.dead


def run_threads(*functions: Callable[[], object]) -> None:
    """Run functions in a thread each, and wait for all."""

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        finally:
            clients.close()

    with ThreadPoolExecutor(len(functions)) as pool:
        for future in [pool.submit(run, function) for function in functions]:
            future.result(2 * PATIENCE)


def hang_with_a_job(entry: dict[str, Any], prefix: str, connection: Connection) -> None:
    """A consumer that pops a job, reports it and then hangs."""
    import django
    from django.conf import settings

    settings.configure(CACHES={"messaging": entry}, REDIS_MESSAGING={"PREFIX": prefix})
    django.setup()
    [job] = DelayQueue("mail").pop(1, lease=LONG)
    connection.send(job.id)
    threading.Event().wait()


class TestLosses:
    """How the original designs of delayed queues lost jobs."""

    @pytest.mark.timing
    def test_job_of_a_killed_consumer_is_requeued(self, queue: DelayQueue, messaging_alias: str) -> None:
        job_id = queue.push("x")
        entry = caches.settings[messaging_alias]
        parent_end, child_end = processes.Pipe()
        consumer = processes.Process(target=hang_with_a_job, args=(entry, conf.prefix(), child_end))
        consumer.start()
        assert parent_end.poll(3 * DEADLINE)
        assert parent_end.recv() == job_id
        consumer.kill()
        consumer.join()
        assert queue.pop() == []
        server().zadd(zsets(queue).leased, {job_id: 1})  # its lease expires
        [job] = queue.pop()
        assert (job.id, job.data, job.attempts) == (job_id, "x", 2)
        assert queue.ack(job)

    def test_due_jobs_are_moved_atomically(self, queue: DelayQueue) -> None:
        """The original moved jobs by a read, a removal and a push, and lost jobs if the process stopped in
        between."""
        queue.push_many(range(30), delay=0.05)
        claim, places = next(steps(queue.pop, 1)), zsets(queue)

        def all_leased() -> bool:
            reply_to(claim)
            pipeline = server().pipeline(transaction=False)
            for key in (places.ready, places.delayed, places.leased):
                pipeline.zcard(key)
            *_, leased = found = pipeline.execute()
            assert sum(found) == 30
            return bool(leased == 30)

        until(all_leased)

    def test_each_job_is_always_in_one_state(self, queue: DelayQueue) -> None:
        """While consumers pop and release jobs."""
        queue.push_many(range(20))
        ended = threading.Event()

        def pop_and_release() -> None:
            while not ended.is_set():
                for job in queue.pop(3):
                    assert queue.release(job, 0.001)

        def count() -> None:
            try:
                for _ in range(300):
                    ready, delayed, leased, dead = counts(queue)
                    assert (ready + delayed + leased, dead) == (20, 0)
            finally:
                ended.set()

        run_threads(count, *[pop_and_release] * 3)

    @pytest.mark.timing
    @pytest.mark.parametrize("lease", [LONG, None])
    def test_concurrent_consumers_get_each_job_once(self, lease: float | None, queue: DelayQueue) -> None:
        """The original used ZRANGE, then ZREM: unless it checked the result of ZREM, two consumers got the
        job."""
        taken: list[int] = []

        def push(start: int) -> None:
            for number in range(start, start + 100):
                queue.push(number)

        def take() -> None:
            while len(taken) < 300:
                for job in queue.pop(3, lease=lease, wait=0.05):
                    taken.append(job.data)
                    assert queue.ack(job) is (lease is not None)

        run_threads(*(lambda start=start: push(start) for start in (0, 100, 200)), *[take] * 4)
        assert sorted(taken) == list(range(300))
        assert counts(queue) == (0, 0, 0, 0)

    def test_a_cut_connection_does_not_end_the_wait(
        self, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(base, "POLL_INTERVAL", 30.0)
        found: list[Job] = []

        def blocked() -> list[str]:
            return [
                one["id"]
                for one in server().client_list()
                if one["cmd"] == "bzpopmin" and "b" in one["flags"]
            ]

        def cut_and_push() -> None:
            until(blocked)
            for client in blocked():
                server().client_kill_filter(_id=client)
            queue.push("x")

        run_threads(lambda: found.extend(queue.pop(wait=30)), cut_and_push)
        assert [job.data for job in found] == ["x"]


def every_state() -> DelayQueue:
    """A new queue with a job in each state: "running", "ready", "later", and two dead ones."""
    queue = DelayQueue(f"mail-{next(numbers)}")
    for job_id in ("dead", "dead too"):
        queue.push("x", job_id=job_id)
        queue.fail(queue.pop(1)[0], "why")
    queue.push("x", job_id="running")
    queue.pop(1)
    queue.push("x", job_id="ready")
    queue.push("x", job_id="later", delay=LONG)
    return queue


def leased(verb: str, *arguments: Any) -> Prepared:
    """An operation of a leased job."""
    queue = every_state()
    return queue, verb, queue.pop(1)[0], *arguments


#: changes of a state; results of a call, of one whose reply is lost, and of a further one
REPEATABLE: dict[str, tuple[Callable[[], Prepared], list[Any]]] = {
    "ack": (lambda: leased("ack"), [True, None, False]),
    "retry": (lambda: leased("retry"), [True, None, False]),
    "release": (lambda: leased("release"), [True, None, False]),
    "fail": (lambda: leased("fail", "why"), [True, None, False]),
    "cancel": (lambda: (every_state(), "cancel", "later"), [True, True, False]),
    "cancel a dead one": (lambda: (every_state(), "cancel", "dead"), [True, True, False]),
    "redrive": (lambda: (every_state(), "redrive"), [2, 2, 0]),
    "redrive one": (lambda: (every_state(), "redrive", ["dead"]), [1, 1, 0]),
    "purge": (lambda: (every_state(), "purge"), [5, 5, 0]),
}


@pytest.mark.one_server
class TestLostReplies:
    """A third of all replies is lost: each job exists once, and each operation counts once."""

    def pop_all(self, queue: DelayQueue, lossy: LossyProxy) -> list[Job]:
        """Pop all ready jobs, without losing replies."""
        lossy.lose_next(0)
        return queue.pop(500, lease=LONG)

    async def test_each_pushed_job_exists_once(
        self, call: Call, lossy: LossyProxy, queue: DelayQueue
    ) -> None:
        ids = [await call(queue, "push", number) for number in range(50)]
        assert lossy.lost > 10
        for start in range(0, 400, 10):
            ids += await call(queue, "push_many", range(start, start + 10))
        assert lossy.lost > 20
        for number in range(40):
            ids.append(await call(queue, "execute_later", "name", [number]))
        assert lossy.lost > 30
        jobs = self.pop_all(queue, lossy)
        calls = [["name", [number]] for number in range(40)]
        assert [job.data for job in jobs] == [*range(50), *range(400), *calls]
        assert [job.id for job in jobs] == ids

    async def test_fail_redrive_and_cancel_count_once(
        self, call: Call, lossy: LossyProxy, queue: DelayQueue
    ) -> None:
        ids = queue.push_many(range(30))
        jobs = self.pop_all(queue, lossy)
        lossy.lose_some(SHARE)
        for job in jobs:
            await call(queue, "fail", job, f"reason {job.data}")
        reasons = {dead.data: dead.reason for dead in await call(queue, "dead")}
        assert reasons == {number: f"reason {number}" for number in range(30)}
        for job_id in ids[:20]:
            await call(queue, "redrive", [job_id])
        for job_id in ids[10:30]:
            await call(queue, "cancel", job_id)
        assert lossy.lost > 15
        assert [job.data for job in self.pop_all(queue, lossy)] == list(range(10))
        assert (queue.stats().dead, queue.purge()) == (0, 10)

    @pytest.mark.parametrize("operation", REPEATABLE)
    async def test_a_repeat_returns_the_first_result_or_none(
        self, operation: str, call: Call, lossy: LossyProxy
    ) -> None:
        """None means that the result is unknown."""
        prepare, results = REPEATABLE[operation]
        assert await results_around_a_loss(call, lossy, prepare) == results

    async def test_pop_is_not_repeated_and_its_jobs_return(
        self, call: Call, connect: Connect, proxy: LossyProxy
    ) -> None:
        """Unless `lease` is None, which means at most once: they are lost with the reply."""
        connect(proxy, COMMAND_DEADLINE=GENEROUS)
        queue = DelayQueue("mail")
        queue.push_many(range(5))
        assert len(await call(queue, "pop", 1, lease=LONG)) == 1
        proxy.lose_next(1)
        with pytest.raises(OutcomeUnknown):
            await call(queue, "pop", 1, lease=0.1)
        proxy.lose_next(1)
        with pytest.raises(OutcomeUnknown):
            await call(queue, "pop", 1, lease=None)
        jobs = await call(queue, "pop", lease=LONG)
        while len(jobs) < 3:  # the lease of 0.1 s may have ended before, on a busy machine
            jobs += await call(queue, "pop", lease=LONG, wait=PATIENCE)
        assert {job.data: job.attempts for job in jobs} == {3: 1, 4: 1, 1: 2}
        assert await call(queue, "pop") == []

    async def test_repeat_by_the_caller_is_safe(
        self, call: Call, connect: Connect, proxy: LossyProxy
    ) -> None:
        connect(proxy, COMMAND_DEADLINE=0.3)
        queue = DelayQueue("mail")
        proxy.lose_next(1000)
        with pytest.raises(OutcomeUnknown):
            await call(queue, "push", "x", request_id="r")
        proxy.lose_next(0)
        job_id = await call(queue, "push", "x", request_id="r")
        assert [(job.id, job.data) for job in queue.pop()] == [(job_id, "x")]

    def test_threads_push_pop_and_ack_at_once(self, lossy: LossyProxy, queue: DelayQueue) -> None:
        """Every job is done, some more than once: none is lost and none remains."""
        done: list[int] = []

        def push(start: int) -> None:
            for number in range(start, start + 20):
                queue.push(number)

        def consume() -> None:
            while set(done) != set(range(60)) or queue.stats().leased:
                try:
                    jobs = queue.pop(3, lease=0.5, wait=0.05)
                except OutcomeUnknown:
                    continue
                for job in jobs:
                    done.append(job.data)
                    queue.ack(job)

        run_threads(*(lambda start=start: push(start) for start in (0, 20, 40)), *[consume] * 3)
        assert lossy.lost > 20
        lossy.lose_next(0)
        assert counts(queue) == (0, 0, 0, 0)

    def test_losses_show_without_request_ids(
        self, lossy: LossyProxy, plant: Planting, queue: DelayQueue
    ) -> None:
        """The losses are real: a planted bug is found."""
        record_line = "local stored = redis.call('HGET', records.states, id)"
        plant(("jobs/push", "if before then", "if false then"))
        plant(("jobs/push", record_line, f"id = id .. us {record_line}"))
        for number in range(50):
            queue.push(number)
        assert len(self.pop_all(queue, lossy)) > 60


#: operations that are refused while memory is full; each has an effect once
ADDITIONS: dict[str, Callable[[DelayQueue], object]] = {
    "push": lambda queue: queue.push("more"),
    "push with a delay": lambda queue: queue.push("more", delay=LONG),
    "push in place of a dead one": lambda queue: queue.push("more", job_id="dead 0"),
    "push with a request ID": lambda queue: queue.push("more", request_id="r"),
    "push_many": lambda queue: queue.push_many(["more"] * 450),
    "execute_later": lambda queue: queue.execute_later("more"),
    "redrive of one": lambda queue: queue.redrive(["dead 1"]),
    "redrive": lambda queue: queue.redrive(),
}


@pytest.mark.one_server
class TestFullMemory:
    """The server is out of memory: what adds jobs is refused entirely, other operations continue."""

    @pytest.fixture
    def messaging(self) -> dict[str, Any]:
        return {"JOB_MAX_ATTEMPTS": 2}

    @pytest.fixture
    def queue(self, fill: Fill) -> DelayQueue:
        """A queue with five jobs that are ready, and others that are delayed or dead."""
        queue = DelayQueue("mail")
        for number in range(3):
            queue.push("dead", job_id=f"dead {number}")
            queue.fail(queue.pop()[0], "why")
        queue.push_many(["one", "two", "three", "four"])
        queue.push("ready", job_id="ready", request_id="known")
        queue.push("delayed", job_id="delayed", delay=LONG)
        return queue

    def test_adding_is_refused_and_changes_nothing(
        self, queue: DelayQueue, fill: Fill, raw: redis.Redis
    ) -> None:
        before = snapshot()
        fill()
        for name, add in ADDITIONS.items():
            with pytest.raises(Unavailable, match="out of memory"):
                add(queue)
            assert snapshot() == before, name
        raw.config_set("maxmemory", 0)
        for name, add in ADDITIONS.items():
            assert add(queue), name
            assert snapshot() != before, name
            before = snapshot()

    def test_other_operations_continue(self, queue: DelayQueue, fill: Fill) -> None:
        jobs = queue.pop(2, lease=LONG)
        fill()
        assert [queue.ack(jobs[0]) for _ in range(2)] == [True, False]
        assert queue.extend(jobs[1], 10 * LONG)
        assert queue.retry(jobs[1], LONG)
        assert counts(queue) == (3, 2, 0, 3)
        assert [job.data for job in queue.pop(min_age=0.001, wait=10)] == ["three", "four", "ready"]
        assert queue.pop(min_age=LONG) == []
        assert counts(queue) == (0, 2, 3, 3)

        assert queue.reschedule(jobs[1].id, 0)
        [two] = queue.pop()
        assert (two.data, two.attempts) == ("two", 2)
        assert queue.release(two)
        [two] = queue.pop()
        assert (two.data, two.attempts) == ("two", 2)
        assert queue.retry(two)
        assert next(dead.data for dead in queue.dead()) == "two"
        assert counts(queue) == (0, 1, 3, 4)

        assert queue.reschedule("delayed", 0)
        assert [job.data for job in queue.pop(lease=None)] == ["delayed"]
        assert [queue.cancel(job_id) for job_id in ("dead 0", two.id, "ready")] == [True, True, False]
        assert counts(queue) == (0, 0, 3, 2)
        engine = Performed(queue._engine, conf.alias())
        for _ in range(2):
            engine.beat("worker", consumed=True, started=0, running=1, done=2, ended={"jobs": 2})
        assert server().hkeys(queue._engine.keys.workers) == [b"worker"]
        with pytest.raises(Unavailable):
            queue.push("more")
        assert queue.push("more", request_id="known") == "ready"
        assert queue.purge() == 5
        assert queue.stats() == QueueStats(0, 0, 0, 0, None)

    def test_released_and_failed_jobs_move(self, queue: DelayQueue, fill: Fill) -> None:
        one, two, three, four, _ = queue.pop(lease=LONG)
        fill()
        assert queue.retry(one)
        assert queue.release(two)
        assert queue.release(three, LONG)
        assert queue.fail(four, "x" * 8000)
        assert next((job.data, job.reason) for job in queue.dead()) == ("four", "x" * 8000)
        assert queue.reschedule("delayed", LONG)
        assert queue.reschedule(one.id, LONG)
        assert counts(queue) == (1, 3, 1, 4)
        assert [(job.data, job.attempts) for job in queue.pop()] == [("two", 1)]
        assert queue.cancel("delayed")
        with pytest.raises(Unavailable):
            queue.push("more")

    def test_jobs_become_due(self, queue: DelayQueue, fill: Fill) -> None:
        queue.push_many(range(100), delay=0.05, priority=100)
        fill()
        found: list[Job] = []
        while len(found) < 105:
            popped = queue.pop(200, wait=10)
            assert popped
            found += popped
        assert {job.data for job in found} == {*range(100), "one", "two", "three", "four", "ready"}

    def test_leases_expire(self, queue: DelayQueue, fill: Fill) -> None:
        """In the last attempt, the job is dead."""
        for job in queue.pop(2):
            queue.retry(job)
        jobs = queue.pop(5, lease=LONG)
        server().zadd(zsets(queue).leased, dict.fromkeys([job.id for job in jobs], 1))
        fill()
        retried = queue.pop()
        assert {job.data: job.attempts for job in retried} == {"three": 2, "four": 2, "ready": 2}
        assert queue.pop() == []
        assert [job.attempts for job in queue.dead()] == [2, 2, 1, 1, 1]

    def test_lost_job_is_started_and_settled(self, queue: DelayQueue, fill: Fill) -> None:
        """As by a worker of tasks."""
        queue = DelayQueue("mail")
        queue._engine.counts_lost = True
        queue.pop(1, lease=0.001)
        queue.pop(4)
        queue.pop(1, lease=0.001, wait=10)
        fill()
        [job] = queue.pop(1, wait=10)
        assert job.attempts == 3
        assert queue.ack(job)

    def test_work_continues(self, queue: DelayQueue, fill: Fill) -> None:
        calls: list[str] = []
        queue.purge()
        queue.execute_later("call", ["x"])
        queue.execute_later("unknown")
        fill()

        class Empty:
            """Set once all jobs are done."""

            def is_set(self) -> bool:
                return counts(queue) == (0, 0, 0, 1)

        queue.work({"call": calls.append}, stop=Empty())
        assert calls == ["x"]
