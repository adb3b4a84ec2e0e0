"""The rate at which tasks end, and when none will be ready at this rate."""

from __future__ import annotations

import math

import pytest

from django_redis_messaging.tasks import QueueLoad

from ..conftest import Call
from ..support.round_trips import round_trips
from ..support.server import server, server_ms, until
from ..support.workers import at_work, backend, engine, keys, sent
from . import jobs

pytestmark = pytest.mark.one_server


def write_heartbeat(worker: str, text: str, *, ago: float, age: float | None = None) -> None:
    """A heartbeat some seconds ago, of a worker of this age (seconds)."""
    beat = server_ms() - round(ago * 1000)
    started = beat if age is None else server_ms() - round(age * 1000)
    server().hset(keys().workers, worker, f"{beat} {beat} {started} 0 0 {text}".strip())


def beat(worker: str, **ended: int) -> None:
    started = int(server().hget(keys().workers, worker).split()[2])
    engine().beat(worker, consumed=True, started=started, running=0, done=0, ended=ended)


def throughput(queue: str = "default") -> float:
    return next(one.throughput for one in backend().stats() if one.queue == queue)


def about(rate: float) -> object:
    """The time of a test counts, too."""
    return pytest.approx(rate, rel=0.05)


async def test_loads_of_all_queues(call: Call) -> None:
    for _ in range(30):
        jobs.noop.enqueue()
    write_heartbeat("one", "default=100/2.000 other=1/0.500", ago=1)
    write_heartbeat("two", "default=100/0.500", ago=1)
    default, other = await call(backend(), "stats")
    assert default.oldest_age is not None
    assert default == QueueLoad("default", 30, 0, 0, 0, default.oldest_age, 2.5, 0)
    assert default.time_to_drain == 12.0
    assert other == QueueLoad("other", 0, 0, 0, 0, None, 0.5, 0)
    assert other.time_to_drain == 0.0


def test_nothing_drains_without_a_live_worker() -> None:
    jobs.noop.enqueue()
    write_heartbeat("dead", "default=100/2.000", ago=121)
    write_heartbeat("new", "", ago=0)
    assert backend().stats()[0].time_to_drain is None
    assert throughput() == 0


@pytest.mark.usefixtures("any_queue")
def test_names_of_queues_are_encoded() -> None:
    assert backend().stats() == []
    name = "a=1/2 b:é"
    jobs.noop.using(queue_name=name).enqueue()
    write_heartbeat("w", "", ago=10)
    beat("w", **{name: 20})
    [load] = backend().stats()
    assert (load.queue, load.throughput) == (name, about(2))


@pytest.mark.usefixtures("any_queue")
@pytest.mark.parametrize(
    ("queues", "priorities", "scripts", "trips"),
    [
        pytest.param(200, 0, 4, 2, id="idle"),
        pytest.param(60, 5, 32, 3, id="with so many states to read that a script leaves some out"),
    ],
)
def test_a_script_counts_many_queues(queues: int, priorities: int, scripts: int, trips: int) -> None:
    names = [f"q{number:03}" for number in range(queues)]
    server().zadd(keys().queues, dict.fromkeys(names, server_ms()))
    for name in names:
        for priority in range(priorities):
            jobs.noop.using(queue_name=name, priority=priority).enqueue()
    jobs.noop.using(queue_name=names[-1]).enqueue()
    backend().stats()  # the server has the script
    before = sent(server())
    loads = backend().stats()
    assert sent(server()) == before + scripts
    assert round_trips(backend().stats) == trips
    assert [load.queue for load in loads] == names
    assert [load.ready for load in loads] == [*[priorities] * (queues - 1), priorities + 1]
    assert all((load.oldest_age is None) == (load.ready == 0) for load in loads)


def test_young_worker_has_its_mean_rate() -> None:
    write_heartbeat("w", "", ago=10)
    beat("w", default=50)
    assert throughput() == about(5)
    write_heartbeat("w", "default=50/5.000", ago=10, age=20)
    beat("w", default=50)
    assert throughput() == about(2.5)


@pytest.mark.parametrize(("ago", "ended"), [(60, 0), (60, 600), (10, 100)])
def test_rate_forgets_within_minutes(ago: float, ended: int) -> None:
    """A minute without an ended task leaves the e-th part of the rate."""
    write_heartbeat("w", "default=1000/5.000", ago=ago, age=100_000)
    beat("w", default=1000 + ended)
    old = math.exp(-ago / 60)
    assert throughput() == about(5 * old + ended / ago * (1 - old))


def test_heartbeats_of_one_millisecond_keep_the_rate() -> None:
    write_heartbeat("w", "default=10/5.000", ago=-3600)
    beat("w", default=12)
    assert throughput() == 5


@pytest.mark.timing
@pytest.mark.usefixtures("short_backoff")
def test_worker_reports_what_has_ended() -> None:
    """Attempts that will be repeated don't count."""
    with at_work(lease=1):
        until(lambda: server().hlen(keys().workers))
        jobs.succeed_on_third_attempt.enqueue()
        for _ in range(19):
            jobs.noop.enqueue()
        jobs.fail.enqueue()
        jobs.noop.using(queue_name="other").enqueue()
        until(lambda: throughput("other") > 0 and throughput() > 0)
        until(lambda: b" default=21/" in (line := server().hvals(keys().workers)[0]) and b" other=1/" in line)
    assert backend().stats()[0].throughput == 0, "the worker has ended"
