"""The original designs of delayed queues, as special cases; and that what they lost is not lost here."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

import pytest
from django.core.cache import caches

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.jobs import DelayQueue, base
from django_redis_messaging.services.jobs.keys import JobKeys

from .asking import DEADLINE, all_keys, crash_after, reply_to, server, server_ms, steps, until
from .test_jobs import stored

#: seconds that a job waits before it is handed out; the original had 3
AGE = 0.3
processes = multiprocessing.get_context("forkserver")


@pytest.fixture
def queue() -> DelayQueue:
    return DelayQueue("items")


def pushed_at(queue: DelayQueue, count: int = 20) -> int:
    for number in range(count):
        queue.push(number)
    return server_ms()


@pytest.mark.timing
class TestAge:
    """A list of items with their moments, of which only those are handed out that are old enough."""

    def test_nothing_at_once_and_all_after_it(self, queue: DelayQueue) -> None:
        began = server_ms()
        last = pushed_at(queue)
        assert queue.pop(10, min_age=3, lease=None) == []
        until(lambda: server_ms() > last + AGE * 1000)
        assert [job.data for job in queue.pop(10, min_age=AGE, lease=None)] == list(range(10))
        assert [job.data for job in queue.pop(10, min_age=AGE, lease=None)] == list(range(10, 20))
        assert queue.pop(10, min_age=AGE, lease=None) == []
        assert server_ms() - began > AGE * 1000

    def test_each_becomes_old_by_itself(self, queue: DelayQueue) -> None:
        moments: dict[int, int] = {}
        for number in range(5):
            queue.push(number)
            moments[number] = server_ms()
            until(lambda: server_ms() > moments[number] + 20)  # noqa: B023
        while moments:
            for job in queue.pop(5, min_age=AGE, lease=None, wait=DEADLINE):
                assert server_ms() - moments.pop(job.data) >= AGE * 1000 - 20

    def test_equal_items_are_as_many_as_were_pushed(self, queue: DelayQueue) -> None:
        """A sorted set of the items themselves kept one of each."""
        for _ in range(3):
            queue.push("same")
        assert [job.data for job in queue.pop(10, lease=None)] == ["same"] * 3

    def test_what_was_given_away_leaves_nothing(self, queue: DelayQueue) -> None:
        pushed_at(queue)
        assert len(queue.pop(500, lease=None)) == 20
        assert [key for key in all_keys() if key.endswith((":jobs", ":states", ":ready"))] == []

    def test_a_clients_clock_does_not_matter(
        self, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "time", lambda: 4e9)
        queue.push("now")
        queue.push("later", delay=3600)
        assert [job.data for job in queue.pop()] == ["now"]


def hang_with_a_job(location: str, prefix: str, told: Connection) -> None:
    """A consumer that takes a job, says so, and does no more."""
    import django
    from django.conf import settings

    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    settings.configure(CACHES={"messaging": entry}, REDIS_MESSAGING={"PREFIX": prefix})
    django.setup()
    [job] = DelayQueue("items").pop(1, lease=1)
    told.send(job.id)
    threading.Event().wait()


class TestLosses:
    @pytest.mark.timing
    def test_a_job_whose_consumer_dies_comes_back(self, queue: DelayQueue, messaging_alias: str) -> None:
        job_id = queue.push("x")
        location = caches.settings[messaging_alias]["LOCATION"]
        ours, theirs = processes.Pipe()
        consumer = processes.Process(target=hang_with_a_job, args=(location, conf.prefix(), theirs))
        consumer.start()
        assert ours.poll(3 * DEADLINE)
        assert ours.recv() == job_id
        consumer.kill()
        consumer.join()
        assert queue.pop() == []
        [job] = queue.pop(wait=DEADLINE)
        assert (job.id, job.data, job.attempts) == (job_id, "x", 2)
        assert queue.ack(job)

    def test_a_reply_that_is_never_read_loses_nothing(self, queue: DelayQueue) -> None:
        queue.push_many(["a", "b"])
        crash_after(queue.pop, 1, 2, lease=0.05)
        jobs = queue.pop(wait=DEADLINE)
        assert sorted((job.data, job.attempts) for job in jobs) == [("a", 2), ("b", 2)]

    def test_between_pop_and_push_nothing_is_nowhere(self, queue: DelayQueue) -> None:
        """Moving due jobs by a read, a removal and a push lost those of a process that stopped between."""
        queue.push_many(range(30), delay=0.05)
        claim = next(steps(queue.pop, 1))
        places = JobKeys(conf.prefix(), "queue", "items").queue(base.ONLY_QUEUE)
        ends = time.monotonic() + DEADLINE
        while server().zcard(places.leased) < 30:
            assert time.monotonic() < ends
            reply_to(claim)
            pipeline = server().pipeline(transaction=False)
            for place in (places.ready, places.delayed, places.leased):
                pipeline.zcard(place)
            assert sum(pipeline.execute()) == 30

    def test_each_is_somewhere_whenever_anybody_looks(self, queue: DelayQueue) -> None:
        """Among consumers that give jobs back, and take them again."""
        queue.push_many(range(20))
        ended = threading.Event()

        def juggle(verb: str) -> None:
            while not ended.is_set():
                for job in queue.pop(3):
                    assert getattr(queue, verb)(job, 0.001)
            clients.close()

        threads = [threading.Thread(target=juggle, args=["release"], daemon=True) for _ in range(3)]
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

    def test_a_push_that_fails_leaves_no_half(self, queue: DelayQueue) -> None:
        """A payload without its place in the line, or a place without its payload."""
        queue.push("x")
        [job] = queue.pop(lease=None)
        before = stored()
        with pytest.raises(TypeError):
            queue.push_many(["fine", object()])
        assert stored() == before
        assert job.data == "x"

    def test_a_delayed_payload_does_not_expire(self, queue: DelayQueue) -> None:
        """In a key of its own, with a TTL a little above the delay, it was gone if nobody came in time."""
        queue.push("x", delay=0.001)
        ttls = {key: server().pttl(key) for key in all_keys() if ":requests:" not in key}
        assert set(ttls.values()) == {-1}

    def test_consumers_that_race_get_each_job_once(self, queue: DelayQueue) -> None:
        """ZRANGE, then ZREM, and whose ZREM said 0 had lost: or, without looking at it, had it too."""
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
