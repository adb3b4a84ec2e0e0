"""The poller: due jobs become ready although no client claims any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

import django_redis_messaging.tasks.polling  # noqa: F401  (registers the rounds of tasks)
from django_redis_messaging import DelayQueue, conf
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.services import polling as polling_module
from django_redis_messaging.services.jobs.keys import JobKeys, QueueKeys
from django_redis_messaging.services.polling import Poller

from . import jobs
from .working import PATIENCE, burst, engine, keys, running, sent_in, server, server_ms, until

#: seconds: longest time between two polls, plus a margin
SOON = 5.0


@pytest.fixture(autouse=True)
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll every queue once a second, whatever the number of commands."""
    monkeypatch.setattr(polling_module, "MAX_RATE", 1000.0)


@contextmanager
def polling(pollers: int = 1) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(pollers):
            poller = Poller()
            stack.enter_context(running(poller.run, poller.stop))
        yield


def stored(queue: QueueKeys) -> tuple[int, int, int]:
    """Sizes of the ready, delayed and leased sets, as stored."""
    ready, delayed, leased = (server().zcard(key) for key in (queue.ready, queue.delayed, queue.leased))
    return ready, delayed, leased


def of(name: str) -> QueueKeys:
    return JobKeys(conf.prefix(), "queue", name).queue("jobs")


@pytest.mark.timing
class TestDelayQueues:
    def test_nothing_moves_without_a_poller(self) -> None:
        DelayQueue("q").push("job", delay=0.01)
        due = server_ms() + 100
        until(lambda: server_ms() > due)
        assert stored(of("q")) == (0, 1, 0)

    def test_delayed_jobs_become_ready_when_due(self) -> None:
        with polling():
            DelayQueue("q").push("job", delay=2.0)
            due = server().zrange(of("q").delayed, 0, 0, withscores=True)[0][1]
            until(lambda: stored(of("q")) == (1, 0, 0))
            assert due <= server_ms() <= due + SOON * 1000

    def test_expired_leases_are_requeued(self) -> None:
        queue = DelayQueue("q")
        queue.push("job")
        with polling():
            ends = server_ms() + 200
            assert queue.pop(lease=0.2)
            until(lambda: stored(of("q")) == (1, 0, 0))
            assert ends - 20 <= server_ms() <= ends + SOON * 1000
        assert queue.pop()[0].attempts == 2

    def test_jobs_without_attempts_left_are_dead_lettered(self) -> None:
        queue = DelayQueue("q", max_attempts=1)
        queue.push("job")
        assert queue.pop(lease=0.01)
        with polling():
            until(lambda: server().zcard(of("q").dead) == 1)
        assert [job.data for job in queue.dead()] == ["job"]

    def test_many_queues(self) -> None:
        names = [f"q{number}" for number in range(20)]
        for name in names:
            DelayQueue(name).push("job", delay=0.3)
        with polling():
            until(lambda: {stored(of(name)) for name in names} == {(1, 0, 0)})

    def test_waiting_client_is_woken(self) -> None:
        queue = DelayQueue("q")
        with polling():
            queue.push("job", delay=0.5)
            [job] = queue.pop(wait=5)
        assert job.data == "job"


class TestTasks:
    def test_delayed_tasks_and_expired_leases_are_moved(self) -> None:
        jobs.noop.using(queue_name="other").enqueue()
        jobs.noop.using(run_after=timezone.now() + timedelta(seconds=0.5)).enqueue()
        assert engine().claim(["other"], 1, 400).jobs
        default, other = keys().queue("default"), keys().queue("other")
        assert (stored(default), stored(other)) == ((0, 1, 0), (0, 0, 1))
        with polling():
            until(lambda: (stored(default), stored(other)) == ((1, 0, 0), (1, 0, 0)))

    def test_queues_of_a_backend_without_a_list(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
        for name in ("one", "two"):
            later = timezone.now() + timedelta(seconds=0.5)
            jobs.noop.using(queue_name=name, run_after=later).enqueue()
        with polling():
            until(lambda: {stored(keys().queue(name)) for name in ("one", "two")} == {(1, 0, 0)})

    def test_expired_results_are_removed(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"RESULT_TTL": 0.2}}}
        result = jobs.noop.enqueue()
        burst()
        assert server().hexists(keys().states, result.id)
        with polling():
            until(lambda: not server().exists(keys().states, keys().jobs, keys().finished))


class TestSeveral:
    def test_each_job_becomes_ready_once(self) -> None:
        queue, count = DelayQueue("q"), 1200
        queue.push_many(list(range(count)), delay=0.5)
        popped = []
        with polling(4):
            while len(popped) < count:
                found = queue.pop(100, lease=60, wait=5)
                assert found
                popped += [job.data for job in found]
        assert sorted(popped) == list(range(count))
        assert queue.pop() == []

    def test_expired_leases_are_charged_once(self) -> None:
        queue, count = DelayQueue("q"), 250
        queue.push_many(list(range(count)))
        assert len(queue.pop(500, lease=0.3)) == count
        with polling(4):
            until(lambda: stored(of("q")) == (count, 0, 0))
        assert {job.attempts for job in queue.pop(500)} == {2}


@pytest.mark.timing
def test_poller_survives_an_outage(
    own_server: EmbeddedServer, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 1.0}
    with polling():
        DelayQueue("q").push("job", delay=0.1)
        until(lambda: stored(of("q")) == (1, 0, 0))
        own_server.kill()
        until(lambda: "Listing queues failed" in caplog.text and "Polling a queue failed" in caplog.text)
        own_server.start()
        DelayQueue("q").push("job", delay=0.1)
        until(lambda: stored(of("q")) == (2, 0, 0))


def test_stopped_poller_abandons_its_round_and_starts_no_other(
    own_server: EmbeddedServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round would take COMMAND_DEADLINE, which is longer here than `running` waits."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 1.5 * PATIENCE}
    begun = []

    def first_round() -> None:
        begun.append("first")
        DelayQueue("q").stats()

    def second_round() -> None:
        begun.append("second")

    monkeypatch.setattr(polling_module, "_registered", [lambda: [first_round, second_round]])
    own_server.stop()
    with polling():
        until(lambda: begun)
    assert begun == ["first"]


@pytest.mark.parametrize("queues", [12, *(pytest.param(few, marks=pytest.mark.long) for few in (0, 1))])
@pytest.mark.timing
def test_idle_poller_sends_few_commands(
    queues: int, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling_module, "MAX_RATE", 2.0)
    for number in range(queues):
        DelayQueue(f"q{number}").push("job", delay=3600)
    with polling(), own_server.client() as client:
        until(lambda: client.info("commandstats").get("cmdstat_zremrangebyscore"))
        sent, seconds = sent_in(client, 3.0)
    # two a second, plus a round that had already begun
    assert sent <= 2 * seconds + max(2, queues + 2)
