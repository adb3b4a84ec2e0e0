"""A delay queue on a server that is out of memory: pushes are refused entirely, other operations continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redis_messaging import Unavailable, conf
from django_redis_messaging.services.jobs import DelayQueue, Job, QueueStats
from tests.support.engines import Performed

pytestmark = pytest.mark.one_server


#: seconds: longer than any test
LONG = 1000
Fill = Callable[[], None]


@pytest.fixture
def messaging() -> dict[str, Any]:
    return {"JOB_MAX_ATTEMPTS": 2}


@pytest.fixture
def queue(fill: Fill) -> DelayQueue:
    """A queue with jobs in every state and one dead job."""
    queue = DelayQueue("mail")
    queue.push("dead", job_id="dead")
    queue.fail(queue.pop()[0], "why")
    queue.push_many(["one", "two"])
    queue.push("ready", job_id="ready")
    queue.push("delayed", job_id="delayed", delay=LONG)
    return queue


@pytest.fixture
def jobs(queue: DelayQueue, fill: Fill) -> list[Job]:
    """Two jobs popped before memory was full."""
    jobs = queue.pop(2, lease=LONG)
    fill()
    with pytest.raises(Unavailable):
        queue.push("more")
    return jobs


def content(raw: redis.Redis) -> dict[bytes, Any]:
    """All keys of this test with their content."""
    return {
        key: raw.hgetall(key) if raw.type(key) == b"hash" else raw.zrange(key, 0, -1, withscores=True)
        for key in raw.scan_iter(match=f"{conf.prefix()}:1:*", count=1000)
    }


def stats(queue: DelayQueue) -> tuple[int, int, int, int]:
    found = queue.stats()
    return found.ready, found.delayed, found.leased, found.dead


REFUSED: dict[str, Callable[[DelayQueue], object]] = {
    "push": lambda queue: queue.push("more"),
    "push with a delay": lambda queue: queue.push("more", delay=LONG),
    "push in place of a dead one": lambda queue: queue.push("more", job_id="dead"),
    "push with a request ID": lambda queue: queue.push("more", request_id="r"),
    "push_many": lambda queue: queue.push_many(["more"] * 450),
    "execute_later": lambda queue: queue.execute_later("more"),
    "redrive": lambda queue: queue.redrive(),
    "redrive of one": lambda queue: queue.redrive(["dead"]),
}


@pytest.mark.parametrize("operation", REFUSED)
def test_adding_is_refused_and_changes_nothing(
    operation: str, queue: DelayQueue, fill: Fill, raw: redis.Redis
) -> None:
    before = content(raw)
    fill()
    with pytest.raises(Unavailable, match="out of memory"):
        REFUSED[operation](queue)
    assert content(raw) == before
    raw.config_set("maxmemory", 0)
    assert REFUSED[operation](queue)
    assert content(raw) != before


@pytest.mark.usefixtures("jobs")
class TestOtherOperations:
    def test_pop(self, queue: DelayQueue) -> None:
        assert [job.data for job in queue.pop()] == ["ready"]
        assert stats(queue) == (0, 1, 3, 1)

    def test_pop_without_a_lease(self, queue: DelayQueue) -> None:
        assert [job.data for job in queue.pop(lease=None)] == ["ready"]
        assert stats(queue) == (0, 1, 2, 1)

    def test_pop_by_age(self, queue: DelayQueue) -> None:
        assert [job.data for job in queue.pop(min_age=0.001, wait=10)] == ["ready"]
        assert queue.pop(min_age=LONG) == []

    def test_ack(self, queue: DelayQueue, jobs: list[Job]) -> None:
        assert [queue.ack(job) for job in jobs] == [True, True]
        assert [queue.ack(job) for job in jobs] == [False, False]
        assert stats(queue) == (1, 1, 0, 1)

    def test_retry(self, queue: DelayQueue, jobs: list[Job]) -> None:
        assert queue.retry(jobs[0])
        assert queue.retry(jobs[1], LONG)
        assert stats(queue) == (2, 2, 0, 1)

    def test_retry_of_the_last_attempt(self, queue: DelayQueue, jobs: list[Job]) -> None:
        assert queue.retry(jobs[0])
        retried = queue.pop()[-1]
        assert (retried.data, retried.attempts) == ("one", 2)
        assert queue.retry(retried)
        assert queue.dead()[0].data == "one"

    def test_release(self, queue: DelayQueue, jobs: list[Job]) -> None:
        assert queue.release(jobs[0])
        assert queue.release(jobs[1], LONG)
        assert stats(queue) == (2, 2, 0, 1)
        assert {job.data: job.attempts for job in queue.pop()} == {"ready": 1, "one": 1}

    def test_fail(self, queue: DelayQueue, jobs: list[Job]) -> None:
        assert queue.fail(jobs[0], "x" * 8000)
        assert next((job.data, job.reason) for job in queue.dead()) == ("one", "x" * 8000)
        assert stats(queue) == (1, 1, 1, 2)

    def test_extend(self, queue: DelayQueue, jobs: list[Job]) -> None:
        assert queue.extend(jobs[0], 10 * LONG)

    def test_cancel(self, queue: DelayQueue) -> None:
        assert [queue.cancel(job_id) for job_id in ("ready", "delayed", "dead")] == [True] * 3
        assert stats(queue) == (0, 0, 2, 0)

    def test_reschedule(self, queue: DelayQueue) -> None:
        assert queue.reschedule("delayed", 0)
        assert queue.reschedule("ready", LONG)
        assert [job.data for job in queue.pop()] == ["delayed"]

    def test_purge(self, queue: DelayQueue) -> None:
        assert queue.purge() == 5
        assert queue.stats() == QueueStats(0, 0, 0, 0, None)


class TestDueJobs:
    """Jobs that became due while memory was full."""

    def test_delayed_jobs(self, queue: DelayQueue, fill: Fill) -> None:
        queue.push_many(range(100), delay=0.05, priority=100)
        fill()
        found: list[Job] = []
        while len(found) < 103:
            popped = queue.pop(200, wait=10)
            assert popped
            found += popped
        assert {job.data for job in found} == {*range(100), "one", "two", "ready"}

    def test_leases(self, queue: DelayQueue, fill: Fill) -> None:
        first = queue.pop(3, lease=0.001)
        fill()
        retried = queue.pop(3, wait=10)
        assert {job.data: job.attempts for job in retried} == {job.data: 2 for job in first}

    def test_leases_of_last_attempts(self, queue: DelayQueue, fill: Fill) -> None:
        for job in queue.pop(3):
            queue.retry(job)
        queue.pop(3, lease=0.001)
        fill()
        while queue.stats().dead < 4:
            assert queue.pop() == []
        assert queue.pop() == []
        assert len(queue.dead()) == 4


def test_lost_job_is_lone_started_and_settled(queue: DelayQueue, fill: Fill) -> None:
    """As by a worker of tasks."""
    queue._engine.counts_lost = True
    queue.pop(1, lease=0.001)
    queue.pop(2)
    queue.pop(1, lease=0.001, wait=10)
    fill()
    [job] = queue.pop(1, wait=10)
    lease = queue._lease(job)
    state = Performed(queue._engine, conf.alias()).start_lone(lease, "worker")
    assert (job.attempts, state.status, state.attempts, state.lost) == (2, "r", 3, 2)
    assert queue.ack(job)


@pytest.mark.usefixtures("jobs")
def test_heartbeats_of_workers_continue(queue: DelayQueue, raw: redis.Redis) -> None:
    engine = Performed(queue._engine, conf.alias())
    for _ in range(2):
        engine.beat("worker", consumed=True, started=0, running=1, done=2)
    assert raw.hkeys(queue._engine.keys.workers) == [b"worker"]


async def test_work_continues(queue: DelayQueue, fill: Fill) -> None:
    calls: list[str] = []
    queue.purge()
    queue.execute_later("call", ["x"])
    queue.execute_later("unknown")
    fill()

    class Empty:
        """Set once all jobs are done."""

        def is_set(self) -> bool:
            return stats(queue) == (0, 0, 0, 1)

    queue.work({"call": calls.append}, stop=Empty())
    assert calls == ["x"]
