"""Child processes of workers that are killed, crash or hang: no task is lost, each is recorded once, and the
others are not affected."""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from django_redis_messaging.core.operations import perform
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks.compat import TaskResult

from ..support.faults import Connect
from ..support.processes import Start, children_of, is_running, task_processes
from ..support.pytest_hooks import LONG
from ..support.server import until
from ..support.worker_processes import worker_pool
from ..support.workers import FAILED, SUCCESSFUL, backend, counts, ended, engine, errors_of, keys, state
from . import jobs
from .conftest import Configure
from .test_faults import count_recorded
from .test_processes import finish, lines

pytestmark = [pytest.mark.one_server, pytest.mark.timing]

#: number of tasks, and of killed children
SIZE, KILLS = (20_000, 100) if LONG else (400, 6)
#: seconds that a test may take
PATIENCE = 600.0 if LONG else 90.0
#: seconds
LEASE = 1.0
#: seconds that C code keeps the GIL; and for which a child is frozen
HELD = 10 if LONG else 3
OPTIONS = ["--lease", f"{LEASE:g}", "--verbosity", "0"]
TWO = ["--processes", "2", "--concurrency", "2", *OPTIONS]
ONE = ["--processes", "1", "--concurrency", "2", *OPTIONS]

assert HELD >= 3 * LEASE


def kill_child(worker: int, chance: random.Random) -> None:
    """Kill one of the processes that run tasks."""
    with suppress(ProcessLookupError, IndexError):
        os.kill(chance.choice(task_processes(worker)), signal.SIGKILL)


def assert_unaffected(*results: TaskResult) -> None:
    """These tasks have succeeded in their first attempts, as far as attempts are charged."""
    for result in results:
        assert ended(result).status == SUCCESSFUL, errors_of(result)
        found = state(result)
        assert (found.attempts, found.lost) == (1, 0)


@pytest.mark.promise
class TestLostChildren:
    def test_no_task_is_lost_and_each_is_recorded_once(
        self, fragile: EmbeddedServer, connect: Connect, tmp_path: Path, configure: Configure
    ) -> None:
        configure(MAX_ATTEMPTS=3 * KILLS)
        stage, chance = connect(fragile, JOB_MAX_LOST=3 * KILLS), random.Random(2)
        with worker_pool(stage, tmp_path, 1, *TWO) as pool, ThreadPoolExecutor(1) as threads:
            kinds = jobs.echo, jobs.aecho, jobs.sleep_a_moment
            enqueuing = threads.submit(lambda: [kinds[number % 3].enqueue(number) for number in range(SIZE)])
            [worker] = pool.workers
            with fragile.client() as client:
                for kill in range(1, KILLS + 1):
                    wanted = kill * SIZE // (KILLS + 2)
                    until(lambda: client.zcard(keys().finished) >= wanted, PATIENCE)  # noqa: B023
                    kill_child(worker.pid or 0, chance)
                    if kill == KILLS // 2:
                        fragile.kill()
                        fragile.start()
            results = enqueuing.result()
            until(lambda: not any(counts("default")[:3]), PATIENCE)
            records = [engine().get(result.id) for result in results]
            assert {count_recorded(record) for record in records} == {1}
            assert pool.drain() == [0]

    @pytest.mark.parametrize("how", ["exit", "kill", "crash"])
    def test_task_that_ends_its_process_is_lost_and_the_others_are_not(
        self, how: str, start: Start, tmp_path: Path
    ) -> None:
        marker = tmp_path / "begun"
        deadly = jobs.end_process.enqueue(str(marker), how)
        neighbour = jobs.pid_after.enqueue(str(marker), 2.0)
        process = start("run_worker", *ONE)
        assert_unaffected(neighbour)
        assert errors_of(deadly)[-1] == "LeaseLost"
        assert state(deadly).lost > 1
        _, errors = finish(process)
        assert process.returncode == 0
        assert f"id={deadly.id}" in errors

    def test_task_with_one_attempt_is_never_started_twice(self, start: Start, tmp_path: Path) -> None:
        markers = [tmp_path / f"begun{number}" for number in range(10)]
        results = [jobs.end_process_once.enqueue(str(marker)) for marker in markers]
        process = start("run_worker", *TWO)
        for result, marker in zip(results, markers, strict=True):
            assert ended(result).status == FAILED
            assert len(lines(marker)) <= 1  # none: another one has ended the process just then
            assert state(result).attempts == 1
        finish(process)

    def test_tasks_behind_a_lost_one_are_not_charged(self, start: Start) -> None:
        """They were in its batch, or waited in the pipe."""
        before = jobs.noop.enqueue_many([((), {})] * 200)
        deadly = [jobs.end_process_at_once.enqueue("exit") for _ in range(2)]
        after = jobs.noop.enqueue_many([((), {})] * 200)
        process = start("run_worker", *TWO)
        assert [ended(result).status for result in deadly] == [FAILED] * 2
        assert_unaffected(*before, *after)
        finish(process)

    def test_children_end_with_their_supervisor(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        results = [jobs.attempt_number.enqueue(str(marker), 1.0) for _ in range(2)]
        process = start("run_worker", *TWO)
        until(lambda: len(lines(marker)) == 2)
        children = [*task_processes(process.pid), *children_of(process.pid)]
        assert len(children) == 3
        os.kill(children[0], signal.SIGSTOP)
        process.kill()
        until(lambda: not any(map(is_running, children)), 10)
        second = start("run_worker", *TWO)
        assert [ended(result).return_value for result in results] == [2, 2]
        finish(second)

    def test_worker_ends_with_its_fork_server(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        result = jobs.attempt_number.enqueue(str(marker), 1.0)
        process = start("run_worker", *ONE)
        until(lambda: lines(marker))
        for server_process in children_of(process.pid):
            os.kill(server_process, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        second = start("run_worker", *ONE)
        assert ended(result).return_value == 2
        finish(second)


@pytest.mark.promise
class TestHangingChildren:
    def test_frozen_child_keeps_its_task(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        frozen = jobs.attempt_number.enqueue(str(marker), 0.2)
        process = start("run_worker", "--processes", "2", "--concurrency", "1", *OPTIONS)
        until(lambda: lines(marker))
        child = int(lines(marker)[0])
        os.kill(child, signal.SIGSTOP)
        others = [jobs.sleep.enqueue(HELD / 20) for _ in range(20)]
        assert_unaffected(*others)
        assert state(frozen).status == "running"
        os.kill(child, signal.SIGCONT)
        assert ended(frozen).return_value == 1
        assert len(lines(marker)) == 1
        finish(process)

    def test_full_pipe_delays_no_other_child(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        jobs.pid_after.enqueue(str(marker), 0.1)
        process = start("run_worker", "--processes", "2", "--concurrency", "4", *OPTIONS)
        until(lambda: lines(marker))
        child = int(lines(marker)[0])
        os.kill(child, signal.SIGSTOP)
        text = "x" * 200_000
        large = [jobs.echo.enqueue(number, text) for number in range(30)]
        small = [jobs.noop.enqueue() for _ in range(100)]
        until(lambda: sum(ended_already(small + large)) >= 100)
        os.kill(child, signal.SIGCONT)
        assert_unaffected(*small, *large)
        finish(process)

    def test_task_that_holds_the_gil_keeps_its_lease(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        holder = jobs.hold_gil.enqueue(str(marker), HELD)
        process = start("run_worker", *TWO)
        others = [jobs.sleep.enqueue(HELD / 20) for _ in range(20)]
        assert_unaffected(holder, *others)
        assert len(lines(marker)) == 1
        finish(process)

    def test_task_that_goes_on_after_its_timeout_is_killed(
        self, fragile: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        marker = tmp_path / "begun"
        with worker_pool(connect(fragile), tmp_path, 1, *TWO, grace=0.5) as pool:
            failed = jobs.hold_gil_with_timeout.enqueue(str(tmp_path / "other"), 600)
            assert errors_of(failed) == ["TaskTimeout"]
            retried = jobs.hold_gil_in_first_attempt.enqueue(str(marker), 600)
            until(lambda: lines(marker))
            others = [jobs.sleep.enqueue(0.2) for _ in range(20)]
            assert ended(retried).status == SUCCESSFUL
            assert state(retried).failures == 2
            assert_unaffected(*others)
            assert pool.drain() == [0]

    def test_cancelled_task_that_goes_on_is_killed(
        self, fragile: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        marker = tmp_path / "begun"
        with worker_pool(connect(fragile), tmp_path, 1, *TWO, grace=0.5) as pool:
            result = jobs.hold_gil.enqueue(str(marker), 600)
            until(lambda: lines(marker))
            perform(backend().using, backend().engine.cancel("default", result.id, ttl=60_000, running=True))
            until(lambda: state(result).status == "cancelled")
            assert pool.drain() == [0]


def ended_already(results: list[TaskResult]) -> list[bool]:
    """Whether each of these tasks has ended."""
    for result in results:
        if not result.is_finished:
            result.refresh()
    return [result.is_finished for result in results]
