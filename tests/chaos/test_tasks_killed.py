"""Tasks whose workers are killed and stopped, and whose server is killed: none is lost, and each is
recorded once."""

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
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.tasks.compat import Task, TaskResult, TaskResultStatus
from tests.gate import LONG
from tests.tasks import jobs
from tests.tasks.working import ended, engine, keys, server_ms, state, until

from .conftest import Connect
from .workers import POINTS, crew

pytestmark = pytest.mark.promise

#: jobs; workers to be killed, half of these by the test, half by themselves; how many are at least, for two
#: deeds may mean the same one
SIZE, KILLS, LEAST = (20_000, 72, 60) if LONG else (600, 8, 5)
#: seconds that it may take altogether
PATIENCE = 600.0 if LONG else 60.0
#: seconds; the shortest there is
LEASE = 1.0
QUEUES = ["default", "other"]
#: what workers are told
BOTH = ["--concurrency", "2", "--lease", f"{LEASE:g}", "--verbosity", "0"]
ALONE = ["--concurrency", "1", *BOTH[2:]]


@pytest.fixture(autouse=True)
def patient(settings: Settings) -> None:
    """Tasks have more attempts than there are kills: none may be buried."""
    entry = {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": QUEUES}
    settings.TASKS = {"default": {**entry, "OPTIONS": {"MAX_ATTEMPTS": 3 * KILLS}}}


def plan() -> list[tuple[Task, object]]:
    """What is enqueued, in which order: here and there a task that kills its worker."""
    chance = random.Random(1)
    calls: list[tuple[Task, object]] = [
        (chance.choice([jobs.echo, jobs.aecho]).using(queue_name=chance.choice(QUEUES)), number)
        for number in range(SIZE)
    ]
    deadly = KILLS // 2
    for number in range(deadly):
        calls[(number + 1) * SIZE // (deadly + 1)] = (jobs.crash, POINTS[number % len(POINTS)])
    return calls


def enqueued() -> list[TaskResult]:
    """Enqueue all; what was acknowledged."""
    results = []
    for task, argument in plan():
        with suppress(MessagingError):  # then it may be there, or not
            results.append(task.enqueue(argument))
    return results


def recorded(result: TaskResult) -> int:
    """How many times a return value was recorded; -1 where the task is lost."""
    known = engine().get(result.id)
    if known is None or known.state.status != "s":
        return -1
    return sum(line.startswith(b"R") for line in known.log.split(b"\n"))


def test_none_is_lost_and_each_is_recorded_once(
    fragile: EmbeddedServer, connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = connect(fragile)
    chance, began = random.Random(2), time.monotonic()
    with crew(stage, tmp_path, 3, *BOTH) as workers, ThreadPoolExecutor(1) as pool:

        def reached(share: float) -> bool:
            workers.replace()
            return int(look.zcard(keys().finished)) >= share * SIZE

        def over() -> bool:
            workers.replace()
            return enqueuing.done() and not any(sum(engine().stats(one)[:3]) for one in QUEUES)

        enqueuing = pool.submit(enqueued)
        for share, victim in deeds():
            with fragile.client() as look:
                until(lambda: reached(share), PATIENCE)  # noqa: B023
            if victim == "server":
                fragile.kill()
                fragile.start()
            else:
                workers.kill_one(chance)
        until(over, PATIENCE)
        seconds = time.monotonic() - began
        results = enqueuing.result()
        times = [recorded(result) for result in results]
        assert workers.dismiss() == [0, 0, 0]
    if LONG:
        with capsys.disabled():
            sys.stdout.write(
                f"\n{len(results)} jobs, {workers.killed} workers and 2 servers killed, {seconds:.0f} s: "
                f"{times.count(-1)} lost, {sum(one > 1 for one in times)} doubled\n"
            )
    assert set(times) == {1}
    assert len(results) >= 0.95 * SIZE
    assert workers.killed >= LEAST


def deeds() -> list[tuple[float, str]]:
    """After which share of the jobs somebody is killed, and who."""
    half = KILLS // 2
    return sorted(
        [*(((at + 1) / (half + 1), "worker") for at in range(half)), (0.3, "server"), (0.7, "server")]
    )


class TestRedelivery:
    @pytest.mark.parametrize("point", POINTS)
    def test_a_task_whose_worker_dies_is_begun_again_within_a_second_of_its_lease(
        self, point: str, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        with crew(connect(lasting), tmp_path, 2, *ALONE):
            result = ended(jobs.crash.enqueue(point))
        assert result.status == TaskResultStatus.SUCCESSFUL
        first, second = result.worker_ids
        assert first != second
        assert LEASE * 1000 <= state(result).last - state(result).first <= (LEASE + 1) * 1000
        assert [error.exception_class.__name__ for error in result.errors] == ["LeaseLost"]

    def test_a_long_task_too(self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path) -> None:
        marker = tmp_path / "began"
        with crew(connect(lasting), tmp_path, 2, *ALONE) as workers:
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

    def test_a_worker_that_was_stopped_beyond_its_lease_is_refused(
        self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        marker = tmp_path / "began"
        with crew(connect(lasting), tmp_path, 2, *ALONE) as workers:
            result = jobs.pid_after.enqueue(str(marker), 0.5)
            until(lambda: marker.exists() and pids(marker))
            [first] = pids(marker)
            os.kill(first, signal.SIGSTOP)
            [second] = {worker.pid for worker in workers.workers} - {first}
            assert ended(result).return_value == second
            os.kill(first, signal.SIGCONT)
            until(lambda: "its lease was lost; refused" in workers.log.read_text())
            assert ended(result).return_value == second
            assert recorded(result) == 1
            assert pids(marker) == [first, second]
            # and both go on
            assert {ended(jobs.pid_after.enqueue(str(marker), 0.2)).return_value for _ in range(2)}
            assert workers.dismiss() == [0, 0]


def pids(marker: Path) -> list[int]:
    """Who has begun."""
    return [int(line) for line in marker.read_text(encoding="ascii").split()]
