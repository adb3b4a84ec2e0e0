"""The poller: due jobs become ready although no client claims any."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from queue import Empty

import pytest
from django.core.management import CommandError, call_command
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

import django_redis_messaging.tasks.occurrences  # noqa: F401  (registers the rounds of tasks)
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

from ..support.engines import Performed
from ..support.faults import Connect, unavailable
from ..support.server import change, server, server_ms, until
from ..support.workers import PATIENCE, backend, burst, engine, keys, later, running, sent, sent_in
from . import jobs
from .conftest import Configure

pytestmark = pytest.mark.one_server

#: ms
DAY = 86_400_000
#: ms: longest time between two polls, plus a margin
SOON = 5000


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
@pytest.mark.usefixtures("short_polls")
class TestDueJobs:
    def test_delayed_jobs_become_ready_when_due(self) -> None:
        """And nothing moves without a poller. Clients that wait are woken."""
        queue, names = DelayQueue("q"), [f"q{number}" for number in range(20)]
        queue.push("job", delay=0.05)
        due = server().zrange(of("q").delayed, 0, 0, withscores=True)[0][1]
        until(lambda: server_ms() > due + 50)
        assert stored(of("q")) == (0, 1, 0)
        for name in names:
            DelayQueue(name).push("job", delay=0.3)
        with polling():
            due = server().zrange(of(names[0]).delayed, 0, 0, withscores=True)[0][1]
            until(lambda: {stored(of(name)) for name in ("q", *names)} == {(1, 0, 0)})
            assert due <= server_ms() <= due + SOON
            assert queue.pop()
            queue.push("later", delay=0.3)
            [job] = queue.pop(wait=PATIENCE)
        assert job.data == "later"

    def test_expired_leases_are_requeued(self) -> None:
        """Or dead-lettered, if no attempts are left."""
        queue, last = DelayQueue("q"), DelayQueue("last", max_attempts=1)
        queue.push("job")
        last.push("job")
        with polling():
            ends = server_ms() + 200
            assert queue.pop(lease=0.2) and last.pop(lease=0.01)
            until(lambda: stored(of("q")) == (1, 0, 0))
            assert ends - 20 <= server_ms() <= ends + SOON
            until(lambda: server().zcard(of("last").dead) == 1)
        assert queue.pop()[0].attempts == 2
        assert [job.data for job in last.dead()] == ["job"]

    def test_tasks_and_their_results(self, configure: Configure) -> None:
        configure(RESULT_TTL=0.1)
        ended = jobs.noop.enqueue()
        burst()
        assert server().hexists(keys().states, ended.id)
        jobs.noop.using(queue_name="other").enqueue()
        jobs.noop.using(run_after=later(0.2)).enqueue()
        assert engine().claim(["other"], 1, 200).jobs
        default, other = keys().queue("default"), keys().queue("other")
        assert (stored(default), stored(other)) == ((0, 1, 0), (0, 0, 1))
        with polling():
            until(lambda: (stored(default), stored(other)) == ((1, 0, 0), (1, 0, 0)))
            until(lambda: not server().hexists(keys().states, ended.id))
        assert not server().exists(keys().finished)

    @pytest.mark.usefixtures("any_queue")
    def test_queues_of_a_backend_without_a_list(self) -> None:
        for name in ("one", "two"):
            jobs.noop.using(queue_name=name, run_after=later(0.1)).enqueue()
        with polling():
            until(lambda: {stored(keys().queue(name)) for name in ("one", "two")} == {(1, 0, 0)})

    def test_several_pollers_move_each_job_once(self) -> None:
        queue, leases, count, charged = DelayQueue("q"), DelayQueue("leases"), 1200, 250
        leases.push_many(list(range(charged)))
        assert len(leases.pop(500, lease=0.3)) == charged
        queue.push_many(list(range(count)), delay=0.3)
        popped: list[object] = []
        with polling(4):
            while len(popped) < count:
                found = queue.pop(100, lease=60, wait=5)
                assert found
                popped += [job.data for job in found]
            until(lambda: stored(of("leases")) == (charged, 0, 0))
        assert sorted(popped) == list(range(count))
        assert queue.pop() == []
        assert {job.attempts for job in leases.pop(500)} == {2}


def names_in(registry: str) -> list[str]:
    """The queues that the poller and the statistics know."""
    return list(perform(conf.alias(), registered_queues(registry)))


class TestRegistry:
    """31 days after a queue was registered."""

    @pytest.mark.parametrize("kind", ["queue", "tasks"])
    @pytest.mark.usefixtures("any_queue", "short_polls")
    def test_queue_with_a_delayed_job_is_kept_and_an_empty_one_removed(self, kind: str) -> None:
        for name in ("delayed", "empty"):
            if kind == "queue":
                DelayQueue(name).push("job", delay=40 * 86_400)
            else:
                jobs.noop.using(queue_name=name, run_after=later(40 * 86_400)).enqueue()
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

    @pytest.mark.usefixtures("any_queue")
    def test_later_jobs_and_moved_ones_register_again(self, monkeypatch: MonkeyPatch) -> None:
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
        assert jobs.noop.enqueue().reschedule(later(40 * 86_400))
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


class Clock:
    """A clock that only the waits of a poller and its rounds move forward."""

    def __init__(self, poller: AliasPoller, monkeypatch: MonkeyPatch) -> None:
        self.now = 1000.5
        monkeypatch.setattr(polling_module, "monotonic", lambda: self.now)
        monkeypatch.setattr(poller, "_wake", self)

    def get(self, timeout: float) -> None:
        """As the poller's queue, to which nothing is added."""
        self.now += timeout
        raise Empty

    def put(self, item: None) -> None: ...


class TestPace:
    @pytest.mark.parametrize(("expires", "kept"), [(1, 0), (9_000_000_000_000, 1000)])
    def test_backlog_is_worked_off_faster(
        self, expires: int, kept: int, monkeypatch: MonkeyPatch, configure: Configure
    ) -> None:
        """2,000 results have expired, or are over the limit, which was lowered; a script removes 100."""
        monkeypatch.setattr(polling_module, "MAX_RATE", 1000.0)
        configure(RESULT_MAX=1000)
        results = {f"r{number}": expires for number in range(2000 + kept)}
        state = "succeeded attempts=1/1 pushed=1 ended=1"
        server().hset(keys().states, mapping=dict.fromkeys(results, state))
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

    @pytest.mark.parametrize("queues", [200, *(pytest.param(few, marks=pytest.mark.long) for few in (0, 1))])
    @pytest.mark.timing
    def test_idle_poller_sends_few_commands(
        self, queues: int, lasting: EmbeddedServer, connect: Connect
    ) -> None:
        """Although something of the last queue is due every 10 ms. Without a history, for which a poller
        counts each delay queue by a command once in ten seconds."""
        connect(lasting, HISTORY_MAX_SERIES=0)
        for number in range(queues):
            DelayQueue(f"q{number}").push("job", delay=3600)
        if queues:
            busy = DelayQueue(f"q{queues - 1}")
            for number in range(500):
                busy.push("job", delay=1 + number / 100)
        with lasting.client() as client:
            before = sent(client)
            with polling():
                until(lambda: sent(client) >= before + queues + 3)  # the first round over each queue
                count, seconds = sent_in(client, 2.0)
        # two a second, and one for the busy queue, with a margin for their random intervals
        assert count <= 3 * seconds + 8


class TestFailures:
    @pytest.mark.timing
    @pytest.mark.usefixtures("short_polls")
    def test_poller_survives_an_outage(
        self, own_server: EmbeddedServer, settings: Settings, caplog: LogCaptureFixture
    ) -> None:
        with polling():
            DelayQueue("q").push("job", delay=0.1)
            until(lambda: stored(of("q")) == (1, 0, 0))
            change(settings, COMMAND_DEADLINE=0.2)
            own_server.kill()
            until(lambda: "Listing queues of" in caplog.text and "Polling a queue of" in caplog.text)
            own_server.start()
            change(settings, COMMAND_DEADLINE=30)
            DelayQueue("q").push("job", delay=0.1)
            until(lambda: stored(of("q")) == (2, 0, 0))

    @pytest.mark.parametrize("state", ["frozen", "stopped"])
    def test_stopped_poller_abandons_its_round_and_starts_no_other(
        self, state: str, own_server: EmbeddedServer, settings: Settings, monkeypatch: MonkeyPatch
    ) -> None:
        """Each call would take COMMAND_DEADLINE, which is longer here than `running` waits."""
        change(settings, COMMAND_DEADLINE=4 * PATIENCE)
        begun = []

        def sweep(number: int) -> Steps[float | None]:
            begun.append(number)
            return (yield from engine().engine.sweep(["default"]))

        def rounds(using: str) -> list[Round]:
            return [Round(number, using, partial(sweep, number)) for number in range(2)]

        monkeypatch.setattr(polling_module, "_registered", {rounds: default_alias})
        DelayQueue("q").stats()  # opens a connection
        with unavailable(own_server, state):
            with polling():
                until(lambda: begun)
                stopped = time.monotonic()
            assert time.monotonic() - stopped < 5
        until(lambda: not [one for one in threading.enumerate() if one.name.startswith("poller")])
        assert begun == [0]

    @pytest.mark.timing
    @pytest.mark.parametrize("dead", ["listing", "round"])
    @pytest.mark.usefixtures("short_polls")
    def test_a_server_that_does_not_reply_delays_no_other_alias(
        self, dead: str, settings: Settings, monkeypatch: MonkeyPatch
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
                until(lambda: len(done) > 9)
        assert max(after - before for before, after in pairwise(done)) < 1.5

    @pytest.mark.parametrize("error", [SystemExit(0), RuntimeError("a mistake of the site")])
    def test_poller_that_fails_logs_it_and_sets_the_exit_code(
        self, error: BaseException, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
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
