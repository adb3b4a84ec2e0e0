"""The poller: due jobs become ready although no client claims any."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from queue import Empty

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django import Settings

import django_redis_messaging.tasks.schedules  # noqa: F401  (registers the rounds of tasks)
from django_redis_messaging import DelayQueue, conf
from django_redis_messaging.core.clients import execute
from django_redis_messaging.core.operations import Steps, perform
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.management import loops
from django_redis_messaging.services.jobs import engine as registry_module
from django_redis_messaging.services.jobs import poller as polling_module
from django_redis_messaging.services.jobs.engine import Engine, check_registration, registered_queues
from django_redis_messaging.services.jobs.keys import JobKeys, QueueKeys, queues_key
from django_redis_messaging.services.jobs.poller import AliasPoller, Poller, Round, default_alias
from tests.support.engines import Performed

from ..support.workers import (
    PATIENCE,
    backend,
    burst,
    engine,
    keys,
    running,
    sent,
    sent_in,
    server,
    server_ms,
    until,
)
from . import jobs

pytestmark = pytest.mark.one_server

#: ms
DAY = 86_400_000
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


class TestRegistry:
    """31 days after a queue was registered."""

    @pytest.mark.parametrize("kind", ["queue", "tasks"])
    def test_queue_with_a_delayed_job_is_kept_and_an_empty_one_removed(
        self, kind: str, settings: Settings
    ) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
        later = timezone.now() + timedelta(days=40)
        for name in ("delayed", "empty"):
            if kind == "queue":
                DelayQueue(name).push("job", delay=40 * 86_400)
            else:
                jobs.noop.using(queue_name=name, run_after=later).enqueue()
        registry = queues_key(conf.prefix()) if kind == "queue" else keys().queues
        registered = dict(server().zrange(registry, 0, -1, withscores=True))
        assert min(registered.values()) > server_ms() + 39 * DAY
        Performed(Engine(conf.prefix(), "queue", "empty"), conf.alias()).purge("jobs")
        engine().purge("empty")
        server().zadd(registry, dict.fromkeys(registered, server_ms() - 31 * DAY))
        assert sorted(names_in(registry)) == ["delayed", "empty"]
        with polling():
            until(lambda: names_in(registry) == ["delayed"])
            until(lambda: server().zscore(registry, "delayed") > server_ms() - DAY)

    def test_later_jobs_and_moved_ones_register_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        queue, registry = DelayQueue("q"), queues_key(conf.prefix())
        job_id = queue.push("job")
        queue.push("job", delay=3600)
        assert server().zscore(registry, "q") <= server_ms()  # no new registration for each job
        queue.push_many(["job"], delay=40 * 86_400)
        assert server().zscore(registry, "q") > server_ms() + 39 * DAY
        queue.reschedule(job_id, 80 * 86_400)
        assert server().zscore(registry, "q") > server_ms() + 79 * DAY
        monkeypatch.setattr(registry_module, "_registered", {})  # as another process
        queue.push("job", delay=10)
        assert server().zscore(registry, "q") > server_ms() + 79 * DAY

    def test_moved_tasks_register_again(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
        result = jobs.noop.enqueue()
        assert result.reschedule(timezone.now() + timedelta(days=40))
        assert server().zscore(keys().queues, "default") > server_ms() + 39 * DAY

    def test_queue_that_is_registered_meanwhile_is_not_removed(self) -> None:
        DelayQueue("q").push("job", job_id="one")
        registry = queues_key(conf.prefix())
        server().zadd(registry, {"q": server_ms() - 31 * DAY})
        DelayQueue("q").cancel("one")
        checking = check_registration(Engine(conf.prefix(), "queue", "q"), "jobs", registry, "q")
        forget = checking.send(execute(conf.alias(), next(checking)))
        server().zadd(registry, {"q": server_ms()})
        assert execute(conf.alias(), forget) == 0


def names_in(registry: str) -> list[str]:
    """The queues that the poller and the statistics know."""
    return list(perform(conf.alias(), registered_queues(registry)))


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
        until(lambda: "Listing queues of" in caplog.text and "Polling a queue of" in caplog.text)
        own_server.start()
        DelayQueue("q").push("job", delay=0.1)
        until(lambda: stored(of("q")) == (2, 0, 0))


@pytest.mark.parametrize("state", ["frozen", "stopped"])
def test_stopped_poller_abandons_its_round_and_starts_no_other(
    state: str, own_server: EmbeddedServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call would take COMMAND_DEADLINE, which is longer here than `running` waits."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 4 * PATIENCE}
    begun = []

    def sweep(number: int) -> Steps[float | None]:
        begun.append(number)
        return (yield from engine().engine.sweep(["default"]))

    def rounds(using: str) -> list[Round]:
        return [Round(number, using, partial(sweep, number)) for number in range(2)]

    monkeypatch.setattr(polling_module, "_registered", {rounds: default_alias})
    DelayQueue("q").stats()  # opens a connection
    own_server.freeze() if state == "frozen" else own_server.stop()
    try:
        with polling():
            until(lambda: begun)
            stopped = time.monotonic()
        assert time.monotonic() - stopped < 5
    finally:
        if state == "frozen":
            own_server.thaw()
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("poller")])
    assert begun == [0]


@pytest.mark.timing
@pytest.mark.parametrize("dead", ["listing", "round"])
def test_a_server_that_does_not_reply_delays_no_other_alias(
    dead: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[float] = []

    def sweep(using: str) -> Steps[float | None]:
        if using == conf.alias():
            done.append(time.monotonic())
        return (yield from engine().engine.sweep(["default"]))

    def rounds(using: str) -> Iterator[Round]:
        if using == "hanging" and dead == "listing":
            perform(using, engine().engine.sweep(["default"]))
        yield Round("sweep", using, partial(sweep, using))

    with socket.create_server(("127.0.0.1", 0)) as hanging:
        location = f"redis://127.0.0.1:{hanging.getsockname()[1]}/0"
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
        settings.CACHES = {**settings.CACHES, "hanging": entry}
        monkeypatch.setattr(polling_module, "_registered", {rounds: lambda: ["hanging", conf.alias()]})
        with polling():
            until(lambda: len(done) > 4)
    assert max(later - earlier for earlier, later in pairwise(done)) < 3


class Clock:
    """A clock that only the waits of a poller and its rounds move forward."""

    def __init__(self, poller: AliasPoller, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.5
        monkeypatch.setattr(polling_module, "monotonic", lambda: self.now)
        monkeypatch.setattr(poller, "_wake", self)

    def get(self, timeout: float) -> None:
        """As the poller's queue, to which nothing is added."""
        self.now += timeout
        raise Empty

    def put(self, item: None) -> None: ...


@pytest.mark.parametrize(("expires", "kept"), [(1, 0), (9_000_000_000_000, 1000)])
def test_backlog_is_worked_off_faster(
    expires: int, kept: int, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """2,000 results have expired, or are over the limit, which was lowered; a script removes 100."""
    options = {"RESULT_MAX": 1000}
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}
    results = {f"r{number}": expires for number in range(2000 + kept)}
    server().hset(keys().states, mapping=dict.fromkeys(results, "s"))
    server().zadd(keys().finished, results)
    is_over = False

    def rounds(using: str) -> Iterator[Round]:
        nonlocal is_over
        is_over = server().zcard(keys().finished) == kept or clock.now > 1100
        yield Round("tasks", using, partial(backend().engine.sweep, ["default"]))

    poller = AliasPoller(conf.alias(), [rounds], lambda: is_over)
    clock = Clock(poller, monkeypatch)
    poller.run()
    assert server().hlen(keys().states) == kept
    assert clock.now < 1000.5 + 20 * 0.05 + 2


@pytest.mark.parametrize("error", [SystemExit(0), RuntimeError("a mistake of the site")])
def test_poller_that_fails_logs_it_and_sets_the_exit_code(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def rounds(using: str) -> list[Round]:
        raise error

    monkeypatch.setattr(polling_module, "_registered", {rounds: default_alias})
    monkeypatch.setattr(loops, "at_signals", lambda stop: None)
    with pytest.raises(CommandError, match="The poller ended by an error; see the log"):
        call_command("run_poller", verbosity=0)
    [record] = [one for one in caplog.records if one.getMessage() == "The poller failed; stopping."]
    assert record.exc_info
    assert record.exc_info[1] is error


@pytest.mark.parametrize("queues", [200, *(pytest.param(few, marks=pytest.mark.long) for few in (0, 1))])
@pytest.mark.timing
def test_idle_poller_sends_few_commands(
    queues: int, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although something of the last queue is due every 10 ms."""
    monkeypatch.setattr(polling_module, "MAX_RATE", 2.0)
    for number in range(queues):
        DelayQueue(f"q{number}").push("job", delay=3600)
    for number in range(600 if queues else 0):
        DelayQueue(f"q{queues - 1}").push("job", delay=1 + number / 100)
    with own_server.client() as client:
        before = sent(client)
        with polling():
            until(lambda: sent(client) >= before + queues + 3)  # the first round over each queue
            count, seconds = sent_in(client, 2.0)
    # two a second, and one for the busy queue, with a margin for their random intervals
    assert count <= 3 * seconds + 8
