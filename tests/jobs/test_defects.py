"""The original designs of delayed queues as special cases, and the jobs that they lost."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

import pytest
from django.core.cache import caches

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.jobs import DelayQueue
from django_redis_messaging.services.jobs import queue as base
from django_redis_messaging.services.jobs.keys import JobKeys

from ..support.server import DEADLINE, all_keys, crash_after, reply_to, server, server_ms, steps, until
from .test_delay_queue import stored

#: seconds that a job waits before it is popped; the original used 3
AGE = 0.3
processes = multiprocessing.get_context("forkserver")


@pytest.fixture
def queue() -> DelayQueue:
    return DelayQueue("items")


def push_numbers(queue: DelayQueue, count: int = 20) -> int:
    for number in range(count):
        queue.push(number)
    return server_ms()


@pytest.mark.timing
class TestAge:
    """The original list of items with timestamps, which returned only items of a minimum age."""

    def test_nothing_is_popped_early_and_everything_later(self, queue: DelayQueue) -> None:
        began = server_ms()
        last = push_numbers(queue)
        assert queue.pop(10, min_age=3, lease=None) == []
        until(lambda: server_ms() > last + AGE * 1000)
        assert [job.data for job in queue.pop(10, min_age=AGE, lease=None)] == list(range(10))
        assert [job.data for job in queue.pop(10, min_age=AGE, lease=None)] == list(range(10, 20))
        assert queue.pop(10, min_age=AGE, lease=None) == []
        assert server_ms() - began > AGE * 1000

    def test_each_job_reaches_the_age_separately(self, queue: DelayQueue) -> None:
        push_numbers: dict[int, int] = {}
        for number in range(5):
            queue.push(number)
            push_numbers[number] = server_ms()
            until(lambda: server_ms() > push_numbers[number] + 20)  # noqa: B023
        while push_numbers:
            for job in queue.pop(5, min_age=AGE, lease=None, wait=DEADLINE):
                assert server_ms() - push_numbers.pop(job.data) >= AGE * 1000 - 20

    def test_equal_items_are_kept_separately(self, queue: DelayQueue) -> None:
        """The original sorted set of the items themselves kept only one of each."""
        for _ in range(3):
            queue.push("same")
        assert [job.data for job in queue.pop(10, lease=None)] == ["same"] * 3

    def test_jobs_popped_without_a_lease_leave_no_data(self, queue: DelayQueue) -> None:
        push_numbers(queue)
        assert len(queue.pop(500, lease=None)) == 20
        assert [key for key in all_keys() if key.endswith((":jobs", ":states", ":ready"))] == []

    def test_clients_clock_does_not_matter(self, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "time", lambda: 4e9)
        queue.push("now")
        queue.push("later", delay=3600)
        assert [job.data for job in queue.pop()] == ["now"]


def hang_with_a_job(location: str, prefix: str, connection: Connection) -> None:
    """A consumer that pops a job, reports it and then hangs."""
    import django
    from django.conf import settings

    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    settings.configure(CACHES={"messaging": entry}, REDIS_MESSAGING={"PREFIX": prefix})
    django.setup()
    [job] = DelayQueue("items").pop(1, lease=1)
    connection.send(job.id)
    threading.Event().wait()


class TestLosses:
    @pytest.mark.timing
    def test_job_of_a_dead_consumer_is_requeued(self, queue: DelayQueue, messaging_alias: str) -> None:
        job_id = queue.push("x")
        location = caches.settings[messaging_alias]["LOCATION"]
        parent_end, child_end = processes.Pipe()
        consumer = processes.Process(target=hang_with_a_job, args=(location, conf.prefix(), child_end))
        consumer.start()
        assert parent_end.poll(3 * DEADLINE)
        assert parent_end.recv() == job_id
        consumer.kill()
        consumer.join()
        assert queue.pop() == []
        [job] = queue.pop(wait=DEADLINE)
        assert (job.id, job.data, job.attempts) == (job_id, "x", 2)
        assert queue.ack(job)

    def test_unread_reply_loses_no_job(self, queue: DelayQueue) -> None:
        queue.push_many(["a", "b"])
        crash_after(queue.pop, 1, 2, lease=0.05)
        jobs = queue.pop(wait=DEADLINE)
        assert sorted((job.data, job.attempts) for job in jobs) == [("a", 2), ("b", 2)]

    def test_due_jobs_are_moved_atomically(self, queue: DelayQueue) -> None:
        """The original moved jobs by a read, a removal and a push, and lost jobs if the process stopped in
        between."""
        queue.push_many(range(30), delay=0.05)
        claim = next(steps(queue.pop, 1))
        queue_keys = JobKeys(conf.prefix(), "queue", "items").queue(base.ONLY_QUEUE)
        deadline = time.monotonic() + DEADLINE
        while server().zcard(queue_keys.leased) < 30:
            assert time.monotonic() < deadline
            reply_to(claim)
            pipeline = server().pipeline(transaction=False)
            for key in (queue_keys.ready, queue_keys.delayed, queue_keys.leased):
                pipeline.zcard(key)
            assert sum(pipeline.execute()) == 30

    def test_each_job_is_always_in_one_state(self, queue: DelayQueue) -> None:
        """While consumers pop and release jobs."""
        queue.push_many(range(20))
        ended = threading.Event()

        def pop_and_requeue(verb: str) -> None:
            while not ended.is_set():
                for job in queue.pop(3):
                    assert getattr(queue, verb)(job, 0.001)
            clients.close()

        threads = [threading.Thread(target=pop_and_requeue, args=["release"], daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(300):
                stats = queue.stats()
                assert stats.ready + stats.delayed + stats.leased == 20
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert stats.dead == 0

    def test_failed_push_leaves_nothing_half_written(self, queue: DelayQueue) -> None:
        """Neither a payload without its queue entry nor an entry without its payload."""
        queue.push("x")
        [job] = queue.pop(lease=None)
        before = stored()
        with pytest.raises(TypeError):
            queue.push_many(["fine", object()])
        assert stored() == before
        assert job.data == "x"

    def test_delayed_payload_does_not_expire(self, queue: DelayQueue) -> None:
        """The original stored it in a separate key with a TTL slightly above the delay, and lost late
        jobs."""
        queue.push("x", delay=0.001)
        ttls = {key: server().pttl(key) for key in all_keys() if ":requests:" not in key}
        assert set(ttls.values()) == {-1}

    def test_concurrent_consumers_get_each_job_once(self, queue: DelayQueue) -> None:
        """The original used ZRANGE, then ZREM: unless it checked the result of ZREM, two consumers got the
        job."""
        found: list[int] = []

        def consume() -> None:
            while jobs := queue.pop(2, lease=None):
                found.extend(job.data for job in jobs)
            clients.close()

        queue.push_many(range(200))
        threads = [threading.Thread(target=consume, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(200))
