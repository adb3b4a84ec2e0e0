"""Tasks whose workers and server are killed or stopped: no task is lost, and each is recorded once."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from pytest_django import Settings

from django_redis_messaging import MessagingError
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.jobs.engine import JobRecord
from django_redis_messaging.tasks.compat import Task, TaskResult, TaskResultStatus
from tests.support.pytest_hooks import LONG
from tests.support.workers import ended, engine, keys, server_ms, state, until
from tests.tasks import jobs

from ..support.faults import Connect
from ..support.worker_processes import POINTS, worker_pool

pytestmark = [pytest.mark.one_server, pytest.mark.promise]

#: number of jobs; workers killed, half by the test and half by tasks; minimum of distinct kills, since two
#: kills may hit the same worker
SIZE, KILLS, MIN_KILLS = (20_000, 72, 60) if LONG else (600, 8, 5)
#: seconds that the test may take
PATIENCE = 600.0 if LONG else 60.0
#: seconds: the shortest allowed lease
LEASE = 1.0
QUEUES = ["default", "other"]
#: command-line options of workers
TWO_LANES = ["--concurrency", "2", "--lease", f"{LEASE:g}", "--verbosity", "0"]
ONE_LANE = ["--concurrency", "1", *TWO_LANES[2:]]


@pytest.fixture(autouse=True)
def many_attempts(settings: Settings) -> None:
    """Allow more attempts than there are kills, so that no task is dead-lettered."""
    entry = {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": QUEUES}
    settings.TASKS = {"default": {**entry, "OPTIONS": {"MAX_ATTEMPTS": 3 * KILLS}}}


def plan() -> list[tuple[Task, object]]:
    """The tasks to enqueue in order. Some kill their worker."""
    chance = random.Random(1)
    calls: list[tuple[Task, object]] = [
        (chance.choice([jobs.echo, jobs.aecho]).using(queue_name=chance.choice(QUEUES)), number)
        for number in range(SIZE)
    ]
    deadly = KILLS // 2
    for number in range(deadly):
        calls[(number + 1) * SIZE // (deadly + 1)] = (jobs.crash, POINTS[number % len(POINTS)])
    return calls


def enqueue_all() -> list[TaskResult]:
    """Enqueue all tasks; the results of the acknowledged ones."""
    results = []
    for task, argument in plan():
        with suppress(MessagingError):  # the task may or may not be stored then
            results.append(task.enqueue(argument))
    return results


def count_recorded(record: JobRecord | None) -> int:
    """Number of recorded return values; -1 if the task is lost."""
    if record is None or record.state.status != "s":
        return -1
    return sum(line.startswith(b"R") for line in record.log.split(b"\n"))


def test_no_task_is_lost_and_each_is_recorded_once(
    fragile: EmbeddedServer, connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = connect(fragile)
    chance, began = random.Random(2), time.monotonic()
    with worker_pool(stage, tmp_path, 3, *TWO_LANES) as workers, ThreadPoolExecutor(1) as pool:

        def reached(share: float) -> bool:
            workers.replace()
            return int(client.zcard(keys().finished)) >= share * SIZE

        def all_done() -> bool:
            workers.replace()
            return enqueuing.done() and not any(sum(engine().stats(one)[:3]) for one in QUEUES)

        enqueuing = pool.submit(enqueue_all)
        for share, victim in planned_kills():
            with fragile.client() as client:
                until(lambda: reached(share), PATIENCE)  # noqa: B023
            if victim == "server":
                fragile.kill()
                fragile.start()
            else:
                workers.kill_one(chance)
        until(all_done, PATIENCE)
        seconds = time.monotonic() - began
        results = enqueuing.result()
        records = [engine().get(result.id) for result in results]
        times = [count_recorded(record) for record in records]
        assert workers.drain() == [0, 0, 0]
    if LONG:
        with capsys.disabled():
            sys.stdout.write(
                f"\n{len(results)} jobs in {seconds:.0f} s, {workers.killed} workers and 2 servers killed: "
                f"lost {times.count(-1)}, recorded twice {sum(one > 1 for one in times)}, "
                f"started again {sum(one is not None and one.state.attempts > 1 for one in records)}\n"
            )
    assert set(times) == {1}
    assert len(results) >= 0.95 * SIZE
    assert workers.killed >= MIN_KILLS


def planned_kills() -> list[tuple[float, str]]:
    """The kills: after which share of the jobs, and whether a worker or the server."""
    half = KILLS // 2
    return sorted(
        [*(((at + 1) / (half + 1), "worker") for at in range(half)), (0.3, "server"), (0.7, "server")]
    )


class TestRedelivery:
    @pytest.mark.parametrize("point", POINTS)
    def test_task_of_a_dead_worker_restarts_within_a_second_of_its_lease(
        self, point: str, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        with worker_pool(connect(lasting), tmp_path, 2, *ONE_LANE):
            result = ended(jobs.crash.enqueue(point))
        assert result.status == TaskResultStatus.SUCCESSFUL
        first, second = result.worker_ids
        assert first != second
        assert LEASE * 1000 <= state(result).last - state(result).first <= (LEASE + 1) * 1000
        assert [error.exception_class.__name__ for error in result.errors] == ["LeaseLost"]

    def test_long_task_of_a_dead_worker_restarts(
        self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        marker = tmp_path / "began"
        with worker_pool(connect(lasting), tmp_path, 2, *ONE_LANE) as workers:
            result = jobs.pid_after.enqueue(str(marker), 2.5)
            until(
                lambda: state(result).status == "r" and server_ms() > state(result).last + 1.5 * LEASE * 1000
            )
            assert state(result).attempts == 1
            [first] = pids(marker)
            killed = server_ms()
            os.kill(first, signal.SIGKILL)
            assert ended(result).return_value != first
            assert state(result).last <= killed + (LEASE + 1) * 1000
            assert len(pids(marker)) == 2
            until(workers.replace)

    def test_worker_stopped_beyond_its_lease_is_refused(
        self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        marker = tmp_path / "began"
        with worker_pool(connect(lasting), tmp_path, 2, *ONE_LANE) as workers:
            result = jobs.pid_after.enqueue(str(marker), 0.5)
            until(lambda: marker.exists() and pids(marker))
            [first] = pids(marker)
            os.kill(first, signal.SIGSTOP)
            [second] = {worker.pid for worker in workers.workers} - {first}
            assert ended(result).return_value == second
            os.kill(first, signal.SIGCONT)
            until(lambda: "its lease was lost; refused" in workers.log.read_text())
            assert ended(result).return_value == second
            assert count_recorded(engine().get(result.id)) == 1
            assert pids(marker) == [first, second]
            # both workers continue
            assert {ended(jobs.pid_after.enqueue(str(marker), 0.2)).return_value for _ in range(2)}
            assert workers.drain() == [0, 0]


def pids(marker: Path) -> list[int]:
    """Process IDs of the attempts that have begun."""
    return [int(line) for line in marker.read_text(encoding="ascii").split()]
