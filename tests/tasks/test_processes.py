"""Workers whose tasks run in child processes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_redis_messaging.management import loops
from django_redis_messaging.services.history.history import History
from django_redis_messaging.services.history.keys import Series
from django_redis_messaging.services.jobs import children
from django_redis_messaging.services.jobs.engine import Lease, LeasedJob, parse_state
from django_redis_messaging.services.jobs.executor import Report

from ..support.processes import (
    Process,
    Start,
    children_of,
    is_running,
    proportional_memory,
    task_processes,
)
from ..support.server import until
from ..support.workers import PATIENCE, SUCCESSFUL, assert_released, ended
from . import jobs

pytestmark = pytest.mark.one_server

SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM
#: seconds for which a task runs that a test ends
LONG = 600.0


def lines(marker: Path) -> list[str]:
    """Lines that tasks have written."""
    return marker.read_text(encoding="ascii").split() if marker.exists() else []


def finish(process: Process) -> tuple[str, str]:
    """Stop a worker; its output."""
    process.send_signal(SIGTERM)
    return process.communicate(timeout=PATIENCE)


class TestProcesses:
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_tasks_run_in_child_processes(self, method: str, start: Start) -> None:
        process = start("run_worker", "--processes", "1", "--start-method", method)
        results = [one.enqueue() for one in (jobs.process_id, jobs.async_process_id)]
        [child] = {ended(result).return_value for result in results}
        expected = task_processes(process.pid) if method == "fork" else children_of(process.pid)
        assert [child] == expected
        finish(process)
        assert process.returncode == 0
        assert not is_running(child)

    def test_each_child_runs_tasks(self, start: Start, tmp_path: Path) -> None:
        process = start("run_worker", "--processes", "2", "--concurrency", "1")
        results = [jobs.pid_after.enqueue(str(tmp_path / "begun"), 0.5) for _ in range(4)]
        pids = {ended(result).return_value for result in results}
        assert pids == set(task_processes(process.pid))
        assert len(pids) == 2
        finish(process)

    def test_a_command_called_by_python_code_starts_none(self) -> None:
        result = jobs.process_id.enqueue()
        call_command("run_worker", burst=True, verbosity=0)
        assert ended(result).return_value == os.getpid()

    def test_follow_ups_and_their_signal(self, start: Start) -> None:
        process = start("run_worker", "--processes", "1", "--burst")
        result = jobs.double.enqueue(4)
        assert ended(result).return_value == 8
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0

    def test_operations_of_tasks_are_in_the_history(self, start: Start) -> None:
        process = start("run_worker", "--processes", "1", "--burst")
        ended(jobs.note_and_enqueue.enqueue("a", "other"))
        process.communicate(timeout=PATIENCE)
        assert Series("operation", "RedisBackend.push") in History().series("operation")

    def test_burst_ends_with_all_results(self, start: Start) -> None:
        results = jobs.echo.enqueue_many([((number,), {}) for number in range(300)])
        process = start("run_worker", "--burst", "--processes", "2")
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        assert "ended after 300 tasks." in out
        assert {ended(result).status for result in results} == {SUCCESSFUL}

    @pytest.mark.parametrize("option", [(), ("--start-method", "fork")])
    def test_site_that_starts_threads(self, option: tuple[str, ...], start: Start, tmp_path: Path) -> None:
        """Its children are not forked, unless that is asked for."""
        (tmp_path / "threaded").mkdir()
        (tmp_path / "threaded" / "__init__.py").write_text(
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        )
        process = start("run_worker", "--processes", "1", *option, apps="threaded", path=tmp_path)
        child = ended(jobs.process_id.enqueue()).return_value
        assert child in (task_processes(process.pid) if option else children_of(process.pid))
        _, errors = finish(process)
        assert ("forked from a process with 2 threads" in errors) == bool(option)

    @pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux")
    def test_memory_of_an_idle_child(self, start: Start) -> None:
        process = start("run_worker", "--processes", "2")
        ended(jobs.process_id.enqueue())
        children = task_processes(process.pid)
        assert len(children) == 2
        assert max(map(proportional_memory, children)) < 45
        finish(process)


@pytest.mark.timing
class TestStop:
    def test_signals_to_all_processes_drain(self, start: Start, tmp_path: Path) -> None:
        """As a terminal or a service manager sends them."""
        marker = tmp_path / "begun"
        first = jobs.pid_after.enqueue(str(marker), 1.0)
        process = start("run_worker", "--processes", "1", "--concurrency", "1")
        until(lambda: lines(marker))
        second = jobs.noop.enqueue()
        for pid in (*task_processes(process.pid), *children_of(process.pid), process.pid):
            os.kill(pid, SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        assert "ended after 1 tasks." in out
        assert ended(first).status == SUCCESSFUL
        assert_released(second)

    def test_second_signal_releases(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        result = jobs.pid_after.enqueue(str(marker), LONG)
        process = start("run_worker", "--processes", "1")
        until(lambda: lines(marker))
        [child] = task_processes(process.pid)
        process.send_signal(SIGTERM)
        process.send_signal(SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert_released(result)
        until(lambda: not is_running(child))

    def test_third_signal_kills(self, start: Start, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        jobs.pid_after.enqueue(str(marker), LONG)
        process = start("run_worker", "--processes", "1")
        until(lambda: lines(marker))
        processes = [*task_processes(process.pid), *children_of(process.pid)]
        assert len(processes) == 2
        for child in processes:
            os.kill(child, signal.SIGSTOP)  # nothing but a kill ends them

        def has_ended() -> bool:
            process.send_signal(SIGTERM)  # two that arrive at the same time are one
            return process.poll() is not None

        until(has_ended)
        assert process.returncode == 1
        until(lambda: not any(map(is_running, processes)))

    def test_programs_of_tasks_do_not_ignore_signals(self, start: Start, tmp_path: Path) -> None:
        process = start("run_worker", "--processes", "1")
        assert ended(jobs.end_program.enqueue()).return_value == -SIGTERM
        finish(process)


class SilentStarter:
    """Starts no processes: its children never report anything."""

    def __init__(self) -> None:
        self._files: list[int] = []

    def start(self, files: tuple[int, int], on_exit: Any) -> Any:
        self._files.append(os.dup(files[0]))  # as long as it is open, the child counts as running
        return SimpleNamespace(pid=None, kill=lambda: on_exit(-SIGTERM))

    def close(self) -> None:
        for file in self._files:
            os.close(file)


class TestApart:
    def test_jobs_that_wait_for_another_one_return_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(children, "monotonic", lambda: 1000.0)
        reports: list[Report] = []
        starter: Any = SilentStarter()
        pool = children.Children(starter, 1, 1, reports.extend, lambda: None)
        state = parse_state(b"running attempts=3/5 pushed=1 due=1 fence=1 token=a first=1 lost=2 apart=1")
        leased = LeasedJob(Lease("default", "job", 1, "a"), b"", state)
        pool.run([(number, leased) for number in range(4)])
        assert [(one.number, one.ended, one.ms) for one in reports] == [
            (1, "release", 1000),
            (2, "release", 1050),
            (3, "release", 1100),
        ]
        pool.close(0)


class TestReplacement:
    def test_child_is_replaced_after_some_tasks(self, start: Start) -> None:
        process = start("run_worker", "--processes", "1", "--concurrency", "2", "--max-tasks-per-child", "2")
        results = [jobs.process_id.enqueue() for _ in range(8)]
        counted = Counter(ended(result).return_value for result in results)
        assert max(counted.values()) == 2
        _, errors = finish(process)
        assert (process.returncode, errors) == (0, "")

    def test_child_is_replaced_if_it_uses_much_memory(self, start: Start) -> None:
        process = start("run_worker", "--processes", "1", "--max-memory-per-child", "250")
        first = ended(jobs.grow.enqueue(300)).return_value
        until(lambda: not is_running(first))
        assert ended(jobs.process_id.enqueue()).return_value in task_processes(process.pid)
        finish(process)
        assert process.returncode == 0

    def test_memory_of_all_processes_counts(self, start: Start) -> None:
        process = start("run_worker", "--processes", "1", "--max-memory", "300")
        ended(jobs.grow.enqueue(300))
        out, _ = process.communicate(timeout=PATIENCE)
        assert "ended after 1 tasks." in out


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["--processes", "-1"], "--processes must be between 0 and 64."),
            (["--processes", "1000"], "--processes must be between 0 and 64."),
            (["--concurrency", "0"], "--concurrency must be between 1 and 1000."),
            (["--async-concurrency", "0"], "--async-concurrency must be between 1 and 10000."),
            (["--max-tasks-per-child", "0"], "--max-tasks-per-child must be at least 1."),
            (["--max-memory-per-child", "0"], "--max-memory-per-child must be at least 1."),
            (["--processes", "1", "--start-method", "spawn"], "from the command line"),
            (["--queue", "nowhere"], "This backend has no queue 'nowhere': add it to QUEUES."),
        ],
    )
    def test_values_out_of_range(self, options: list[str], sentence: str) -> None:
        with pytest.raises(CommandError, match=sentence):
            call_command("run_worker", *options)

    def test_reload_runs_in_one_process(self) -> None:
        with pytest.raises(CommandError, match="use --processes 0 with it"):
            loops.processes(1, is_main=True, reload=True)

    def test_default_number_of_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loops, "usable_processors", lambda most: 3)
        assert loops.processes(None, is_main=True, reload=False) == 3
        assert loops.processes(None, is_main=True, reload=True) == 0
        assert loops.processes(None, is_main=False, reload=False) == 0

    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            ({}, 4),
            ({"sys/fs/cgroup/cpu.max": "max 100000"}, 4),
            ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
            ({"sys/fs/cgroup/site/cpu.max": "300000 100000", "sys/fs/cgroup/cpu.max": "max 100000"}, 3),
            ({"sys/fs/cgroup/site/web/cpu.max": "50000 100000", "sys/fs/cgroup/cpu.max": "200000 100000"}, 1),
            (
                {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
                4,
            ),
            (
                {
                    "sys/fs/cgroup/cpu/site/web/cpu.cfs_quota_us": "200000",
                    "sys/fs/cgroup/cpu/site/web/cpu.cfs_period_us": "100000",
                },
                2,
            ),
        ],
    )
    def test_usable_processors(
        self, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
        groups = "7:memory:/other\n2:cpu,cpuacct:/site/web\n0::/site/web\n"
        for name, text in {"proc/self/cgroup": groups, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert loops.usable_processors(4, tmp_path) == expected

    def test_affinity_limits_the_processes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
        assert loops.usable_processors(4, tmp_path) == 1
