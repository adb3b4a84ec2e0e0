"""The worker: order, limits, leases, timeouts, stopping, outages, and late settlements."""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging import Lock
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import OutcomeUnknown, Unavailable
from django_redis_messaging.management.loops import LoopGroup
from django_redis_messaging.services.jobs import running as jobs_running
from django_redis_messaging.services.jobs import threads
from django_redis_messaging.services.jobs import worker as jobs_worker
from django_redis_messaging.services.jobs.engine import Claimed, Lease, LeasedJob, Outcome, Settlement
from django_redis_messaging.tasks import worker as tasks_worker
from django_redis_messaging.tasks.compat import TaskResultStatus, task_finished, task_started
from django_redis_messaging.tasks.worker import Limits, Worker
from tests.support.processes import forked

from ..support.workers import (
    PATIENCE,
    at_work,
    backend,
    burst,
    ended,
    engine,
    keys,
    liveness,
    running,
    sent_in,
    server,
    server_ms,
    state,
    until,
    worker,
)
from . import jobs

pytestmark = pytest.mark.one_server

SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


@pytest.fixture(autouse=True)
def reset_jobs() -> Iterator[None]:
    """Clear the recorded values before the test and let waiting tasks end after it."""
    jobs.notes.clear()
    jobs.go.clear()
    jobs.meeting.reset()
    yield
    jobs.go.set()


def counts(queue: str = "default") -> list[int]:
    """Number of ready, delayed, leased and dead jobs."""
    return engine().stats(queue)[:4]


class TestOrder:
    def test_first_queue_is_served_first(self) -> None:
        for value in ("a", "b"):
            jobs.note.using(queue_name="other").enqueue(value)
        for value in ("c", "d"):
            jobs.note.enqueue(value)
        burst("default", "other")
        assert jobs.notes == ["c", "d", "a", "b"]

    def test_queues_are_served_in_the_given_order(self) -> None:
        jobs.note.enqueue("default")
        jobs.note.using(queue_name="other").enqueue("other")
        burst("other", "default")
        assert jobs.notes == ["other", "default"]

    def test_new_tasks_of_the_first_queue_run_before_the_rest_of_the_second(self) -> None:
        other = jobs.note_and_enqueue.using(queue_name="other")
        other.enqueue("a", "default")
        other.enqueue("b", "default")
        burst("default", "other")
        assert jobs.notes == ["a", "by a", "b", "by b"]

    def test_weights_share_the_worker(self) -> None:
        for _ in range(8):
            for queue in ("default", "other"):
                jobs.note.using(queue_name=queue).enqueue(queue)
        Worker(backend(), {"default": 1, "other": 3}, Limits(concurrency=1, burst=True)).run()
        assert [jobs.notes[:8].count(queue) for queue in ("default", "other")] == [2, 6]
        assert len(jobs.notes) == 16  # the last ones of `default` did not wait for `other`

    def test_other_queues_are_not_served(self) -> None:
        jobs.note.using(queue_name="other").enqueue("other")
        assert burst("default").done == 0
        assert counts("other") == [1, 0, 0, 0]


class TestLimits:
    def test_one_task_runs_in_each_lane(self) -> None:
        results = [jobs.meet.enqueue() for _ in range(6)]
        with at_work(concurrency=3):
            assert {ended(result).status for result in results} == {SUCCESSFUL}

    def test_no_more_tasks_than_lanes_run_at_once(self) -> None:
        for _ in range(4):
            jobs.wait.enqueue()
        with at_work(concurrency=3):
            until(lambda: len(jobs.notes) == 3)
            assert counts() == [1, 0, 3, 0]
            jobs.go.set()
            until(lambda: counts() == [0, 0, 0, 0])
        assert len(jobs.notes) == 4

    @pytest.mark.timing
    def test_burst_ends_when_nothing_is_ready(self) -> None:
        jobs.note.using(run_after=timezone.now() + timedelta(seconds=60)).enqueue("later")
        for number in range(5):
            jobs.note.enqueue(number)
        began = time.monotonic()
        assert burst(concurrency=2).done == 5
        assert time.monotonic() - began < 5
        assert sorted(jobs.notes) == [0, 1, 2, 3, 4]
        assert counts() == [0, 1, 0, 0]

    @pytest.mark.parametrize("server_is", ["stopped", "frozen"])
    @pytest.mark.timing
    def test_burst_fails_when_redis_does_not_reply(
        self, server_is: str, own_server: EmbeddedServer, settings: Settings
    ) -> None:
        """After COMMAND_DEADLINE, however it fails. Whoever started it waits for its end."""
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 0.5}
        runner = worker(burst=True, concurrency=2)
        if server_is == "stopped":
            own_server.stop()
        else:
            own_server.freeze()
        try:
            with running(runner.run, runner.stop) as thread:
                thread.join(PATIENCE / 4)
                assert not thread.is_alive()
        finally:
            if server_is == "frozen":
                own_server.thaw()
        assert runner.failed

    def test_worker_ends_after_max_tasks(self) -> None:
        for number in range(5):
            jobs.note.enqueue(number)
        runner = worker(max_tasks=2)
        runner.run()
        assert runner.done == 2
        assert jobs.notes == [0, 1]
        assert counts() == [3, 0, 0, 0]

    @pytest.mark.timing
    def test_idle_lanes_send_nothing_while_the_last_task_runs(self, own_server: EmbeddedServer) -> None:
        for _ in range(3):
            jobs.wait.enqueue()
        with at_work(concurrency=4, max_tasks=1) as runner, own_server.client() as client:
            until(lambda: jobs.notes)
            commands, _ = sent_in(client, 1.0)
            jobs.go.set()
            until(lambda: not runner._lanes)
        assert commands <= 2  # a wait that had begun, and the first heartbeat
        assert (runner.done, counts()) == (1, [2, 0, 0, 0])

    def test_worker_ends_above_max_memory(self) -> None:
        for number in range(3):
            jobs.note.enqueue(number)
        worker(max_memory=1).run()
        assert jobs.notes == [0]
        assert counts() == [2, 0, 0, 0]

    @pytest.mark.parametrize("busy", [False, True])
    @pytest.mark.timing
    def test_worker_ends_after_max_time(self, busy: bool) -> None:
        stock = [jobs.sleep.enqueue(0.05) for _ in range(100 if busy else 0)]
        began = time.monotonic()
        runner = worker(max_time=1.0)
        runner.run()
        assert 1.0 <= time.monotonic() - began < 4.0
        assert runner.done < 100
        assert counts() == [len(stock) - runner.done, 0, 0, 0]

    def test_worker_continues_below_max_memory(self) -> None:
        for number in range(3):
            jobs.note.enqueue(number)
        assert burst(max_memory=100_000).done == 3


@pytest.mark.timing
class TestLeases:
    def test_long_task_keeps_its_lease_with_a_second_worker_waiting(self) -> None:
        result = jobs.sleep.enqueue(2.5)
        with at_work(lease=1.0) as first:
            until(lambda: state(result).status == "r")
            with at_work(lease=1.0):
                assert ended(result).status == SUCCESSFUL
        assert result.worker_ids == [first.id]
        assert not result.errors

    def test_leases_are_extended_every_third_of_their_duration(self) -> None:
        result = jobs.wait.enqueue()
        ends: list[float] = []
        left: list[float] = []
        with at_work(lease=1.5):
            until(lambda: state(result).status == "r")
            deadline = time.monotonic() + 2.5
            while time.monotonic() < deadline:
                end = server().zscore(keys().queue("default").leased, result.id)
                left.append(end - server_ms())
                ends += [end] if not ends or ends[-1] != end else []
                time.sleep(0.005)
            jobs.go.set()
        gaps = [after - before for before, after in itertools.pairwise(ends)]
        assert 3 <= len(gaps) <= 6, gaps
        # the first extension happens at the next heartbeat, regardless of the age of the lease
        assert all(450 <= gap < 1200 for gap in gaps[1:]), gaps
        assert min(left) > 300

    def test_lost_lease_is_reported_and_its_settlement_refused(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = jobs.wait_for_loss.enqueue()
        with at_work(lease=1.0):
            until(lambda: jobs.notes)
            claimed: list[LeasedJob] = []
            while not claimed:  # the heartbeat may extend the lease in between
                server().zadd(keys().queue("default").leased, {result.id: 1})
                claimed += engine().claim(["default"], 1, 60_000, worker="other").jobs
            [other] = claimed
            assert engine().start_lone(other.lease, "other")
            until(lambda: len(jobs.notes) == 2)
            until(lambda: "refused" in caplog.text)
            result.refresh()
            assert result.status == TaskResultStatus.RUNNING
        assert jobs.notes == [False, True]
        assert engine().settle(other.lease.settlement(Outcome.DONE, 60_000, "R1"))
        result.refresh()
        assert result.return_value == 1
        assert result.errors[0].exception_class.__name__ == "LeaseLost"

    def test_old_database_connections_are_closed_around_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name in ((threads, "prepare_connections"), (tasks_worker, "close_old_connections")):
            monkeypatch.setattr(module, name, lambda: jobs.notes.append("closed"))
        jobs.note.enqueue("task")
        jobs.fail.enqueue()
        burst()
        assert jobs.notes == ["closed", "task", "closed", "closed", "closed"]


class TestLostWorkers:
    """A task that has lost two workers runs alone in its process."""

    def lose(self, result: jobs.Any, times: int = 2) -> None:
        """Start the task, as workers that are lost then."""
        for _ in range(times):
            [leased] = engine().claim(["default"], 1, 1, worker="lost").jobs
            assert leased.lease.id == result.id
            until(lambda: counts() == [1, 0, 0, 0])

    def test_after_its_first_loss_it_runs_beside_others(self) -> None:
        lost = jobs.note.enqueue("lost")
        self.lose(lost, times=1)
        busy = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=2):
            until(lambda: "waits" in jobs.notes)
            assert ended(lost).status == ended(jobs.note.enqueue("after")).status == SUCCESSFUL
            jobs.go.set()
            assert ended(busy).status == SUCCESSFUL
        assert jobs.notes == ["waits", "lost", "after"]

    def test_it_waits_for_the_others_which_start_no_more(self) -> None:
        lost = jobs.note.enqueue("lost")
        self.lose(lost)
        first = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=3, lease=1.0) as runner:
            until(lambda: state(lost).status == "h" and runner._admission._lone and jobs.notes)
            until(lambda: runner._admission._inside == 1)  # the claim of the third lane may be under way
            after = [jobs.note.enqueue("after") for _ in range(3)]
            lease_ends = server().zscore(keys().queue("default").leased, lost.id)
            # its lease is extended while it waits
            until(lambda: server().zscore(keys().queue("default").leased, lost.id) > lease_ends)
            assert (jobs.notes, counts()) == (["waits"], [3, 0, 2, 0])
            jobs.go.set()
            assert {ended(one).status for one in (first, lost, *after)} == {SUCCESSFUL}
        assert jobs.notes == ["waits", "lost", "after", "after", "after"]
        assert (lost.attempts, lost.worker_ids) == (3, ["lost", "lost", runner.id])
        assert [error.exception_class.__name__ for error in lost.errors] == ["LeaseLost"] * 2

    def test_its_wait_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a wait in vain, an idle worker gets it, and the lanes of the busy one claim others."""
        monkeypatch.setattr(jobs_worker, "LONE_PAUSE", 0.2)
        monkeypatch.setattr(jobs_worker, "LONE_FIRST_DELAY", 0.05)
        lost = jobs.note.enqueue("lost")
        self.lose(lost)
        busy = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=2) as runner:
            until(lambda: state(lost).status == "h")
            until(lambda: counts()[1] == 1)  # released with a delay
            assert (state(lost).attempts, state(lost).lost) == (2, 2)
            assert ended(jobs.note.enqueue("other")).status == SUCCESSFUL
            tries = runner._starts._tries[lost.id]
            until(lambda: tries.failed_tries >= 3)
            assert tries.pause == 0  # only the first try kept the other lanes waiting
            with at_work() as idle:
                assert ended(lost).worker_ids == ["lost", "lost", idle.id]
            jobs.go.set()
            assert ended(busy).status == SUCCESSFUL
        assert jobs.notes == ["waits", "other", "lost"]

    def test_it_acquires_its_lock_before_it_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks_worker, "GUARD_DELAY", 600.0)
        lost = jobs.locked_note.enqueue(7, "lost")
        self.lose(lost)
        jobs.wait.using(priority=10).enqueue()
        with Lock("order:7", timeout=60), at_work(concurrency=2):
            until(lambda: counts()[1] == 1)
            assert (state(lost).attempts, jobs.notes) == (2, ["waits"])
            jobs.go.set()

    def test_its_module_is_imported_in_the_attempt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise, a module that ends the process would do so again and again, uncounted."""
        (tmp_path / "exits_in_attempt.py").write_text("import sys\n\nsys.exit(3)\n")
        monkeypatch.setitem(settings.TASKS["default"]["OPTIONS"], "TASK_MODULES", ["exits_in_attempt"])
        monkeypatch.syspath_prepend(str(tmp_path))
        lost = jobs.noop.enqueue()
        stored = server().hget(keys().jobs, lost.id)
        server().hset(keys().jobs, lost.id, stored.replace(b"tests.tasks.jobs", b"exits_in_attempt"))
        self.lose(lost)
        burst()
        assert (state(lost).status, state(lost).attempts) == ("d", 3)

    def test_several_run_one_after_the_other(self, caplog: pytest.LogCaptureFixture) -> None:
        results = [jobs.sleep.enqueue(0.05) for _ in range(3)]
        for _ in range(2):
            engine().claim(["default"], 3, 1)
            until(lambda: counts() == [3, 0, 0, 0])
        with caplog.at_level("INFO"):  # Django logs each start and end of a task
            burst(concurrency=3)
        assert [ended(one).status for one in results] == [SUCCESSFUL] * 3
        states = [text.rpartition("state=")[2] for text in caplog.messages if "state=" in text]
        assert states == ["RUNNING", "SUCCESSFUL"] * 3

    def test_stop_ends_its_wait(self) -> None:
        lost = jobs.note.enqueue("lost")
        self.lose(lost)
        first = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=2) as runner:
            until(lambda: state(lost).status == "h")
            runner.stop()
            until(lambda: state(lost).status == "w")
            jobs.go.set()
            assert ended(first).status == SUCCESSFUL  # a second stop would release it
        assert (jobs.notes, runner.done, counts()) == (["waits"], 1, [1, 0, 0, 0])
        assert (state(lost).attempts, state(lost).lost) == (2, 2)

    def test_lost_attempts_are_not_failures(self) -> None:
        lost = jobs.fail_three_times.using(max_attempts=2).enqueue()
        self.lose(lost)
        burst()
        assert (state(lost).status, state(lost).attempts, state(lost).failures) == ("w", 3, 1)

    @pytest.mark.timing
    @pytest.mark.parametrize(("max_lost", "shared"), [(2, 1), (3, 2)])
    def test_task_that_kills_its_worker_takes_others_with_it_twice_at_most(
        self, max_lost: int, shared: int, settings: Settings, tmp_path: Path
    ) -> None:
        """Never so often that they are dead: once, if JOB_MAX_LOST is 2."""
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_LOST": max_lost}
        marker = tmp_path / "begun"
        marker.touch()
        others = [jobs.pid_after.enqueue(str(marker), 0.3) for _ in range(3)]
        killer = jobs.kill_worker_after.using(max_attempts=10).enqueue(str(marker), 3)
        for kills in range(max_lost):
            with forked(lambda: burst(concurrency=4, lease=1.0).done == 4) as ended_well:
                assert not ended_well()
            until(lambda: counts()[2] == 0)
            if kills + 1 < shared:  # let it kill this worker when the others run again
                killer.refresh()
                marker.write_text("")
        burst(concurrency=4)
        assert [ended(one).status for one in (*others, killer)] == [SUCCESSFUL] * 3 + [FAILED]
        assert [len(one.errors) for one in (*others, killer)] == [*[shared] * 3, max_lost]

    def test_it_starts_beside_others_if_no_worker_is_idle_for_long(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """But one at a time: it can't take another with it that has lost two workers, too."""
        monkeypatch.setattr(jobs_worker, "LONE_TRIES", 0)
        monkeypatch.setattr(jobs_worker, "LONE_FIRST_DELAY", 0.05)
        lost = [jobs.wait.enqueue() for _ in range(2)]
        for _ in range(2):
            engine().claim(["default"], 2, 1)
            until(lambda: counts() == [2, 0, 0, 0])
        busy = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=3):
            until(lambda: len(jobs.notes) == 2 and counts()[1] == 1)
            assert sorted(state(one).status for one in lost) == ["r", "w"]
            jobs.go.set()
            assert [ended(one).status for one in (busy, *lost)] == [SUCCESSFUL] * 3


@pytest.mark.timing
class TestTimeouts:
    @pytest.mark.parametrize("task", [jobs.sleep, jobs.async_sleep])
    def test_task_fails_after_its_timeout(self, task: jobs.Any) -> None:
        result = task.using(timeout=0.3).enqueue(20)
        after = jobs.note.enqueue("after")
        with at_work(lease=30):
            assert ended(result).status == FAILED
            assert ended(after).status == SUCCESSFUL
        assert [error.exception_class.__name__ for error in result.errors] == ["TaskTimeout"]
        assert result.finished_at - result.started_at < timedelta(seconds=3)

    def test_a_long_timeout_does_not_delay_a_shorter_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waits: list[float] = []
        with at_work(concurrency=2) as runner:
            read_signal = runner._read_signal

            def record_wait(seconds: float) -> None:
                waits.append(seconds)
                read_signal(seconds)

            monkeypatch.setattr(runner, "_read_signal", record_wait)
            jobs.wait.using(timeout=60).enqueue()
            until(lambda: jobs.notes)
            before = len(waits)
            until(lambda: len(waits) > before)  # the next check for timeouts is planned
            result = jobs.sleep.using(timeout=0.3).enqueue(20)
            assert ended(result).status == FAILED
            jobs.go.set()
        assert result.finished_at - result.started_at < timedelta(seconds=5)

    @pytest.mark.parametrize("task", [jobs.sleep, jobs.async_sleep])
    def test_task_within_its_timeout_succeeds(self, task: jobs.Any) -> None:
        result = task.using(timeout=10).enqueue(0.05)
        burst()
        assert ended(result).status == SUCCESSFUL

    def test_timeouts_do_not_wait_for_redis(self, own_server: EmbeddedServer) -> None:
        tasks = jobs.note_timeout.using(timeout=0.5), jobs.async_note_timeout.using(timeout=0.5)
        with at_work(concurrency=2, lease=1.0):
            results = [task.enqueue(20) for task in tasks]
            until(lambda: {state(result).status for result in results} == {"r"})
            own_server.freeze()  # heartbeats wait
            try:
                until(lambda: len(jobs.notes) == 2)
            finally:
                own_server.thaw()
        assert max(jobs.notes) < 3

    @pytest.mark.parametrize("part", ["import", "receiver"])
    def test_timeout_is_that_of_the_call(
        self, part: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def receive(**_: object) -> None:
            if part == "receiver":
                time.sleep(0.5)

        for interval in ("TIMEOUT_INTERVAL", "IDLE_INTERVAL"):
            monkeypatch.setattr(jobs_running, interval, 0.01)
        imports = "import time\nfrom tests.tasks.jobs import task\n\ntime.sleep(0.5)\n\n"
        function = "@task\ndef noop():\n    time.sleep(0.1)\n"
        (tmp_path / f"slow_{part}.py").write_text(imports + function)
        monkeypatch.setitem(settings.TASKS["default"]["OPTIONS"], "TASK_MODULES", ["tests", f"slow_{part}"])
        monkeypatch.syspath_prepend(str(tmp_path))
        result = jobs.noop.using(timeout=0.4).enqueue()
        stored = server().hget(keys().jobs, result.id)
        server().hset(keys().jobs, result.id, stored.replace(b"tests.tasks.jobs", f"slow_{part}".encode()))
        task_started.connect(receive)
        try:
            burst()
        finally:
            task_started.disconnect(receive)
        assert counts() == [0, 0, 0, 0]  # a task that failed would be dead

    def test_short_timeout_does_not_wait_for_the_next_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs_running, "TIMEOUT_INTERVAL", 10.0)
        monkeypatch.setattr(jobs_running, "IDLE_INTERVAL", 10.0)
        with at_work():
            jobs.note_timeout.using(timeout=0.1).enqueue(20)
            until(lambda: jobs.notes)
        assert jobs.notes[0] < 5

    def test_default_timeout_comes_from_the_backend(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"TIMEOUT": 0.2}}}
        result = jobs.async_sleep.enqueue(20)
        burst()
        assert ended(result).errors[0].exception_class.__name__ == "TaskTimeout"


class TestStopping:
    def test_first_stop_finishes_running_tasks_and_starts_none(self) -> None:
        results = [jobs.wait.enqueue() for _ in range(3)]
        with at_work() as runner:
            until(lambda: jobs.notes)
            runner.stop()
            until(runner._stopping.is_set)
            jobs.go.set()
            assert ended(results[0]).return_value == "went"
        assert [state(result).attempts for result in results] == [1, 0, 0]
        assert counts() == [2, 0, 0, 0]

    def test_second_stop_releases_running_tasks_uncharged(self, caplog: pytest.LogCaptureFixture) -> None:
        result = jobs.wait.enqueue()
        with at_work() as runner:
            until(lambda: jobs.notes)
            runner.stop()
            runner.stop()
        assert (state(result).status, state(result).attempts, state(result).workers) == ("w", 0, [])
        assert counts() == [1, 0, 0, 0]
        jobs.go.set()
        until(lambda: "refused" in caplog.text)
        burst()
        assert ended(result).attempts == 1

    def test_jobs_claimed_during_a_stop_are_released(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A claim may return the job that another lane has just released; its thread is about to end."""
        result = jobs.wait.enqueue()
        claiming, released, returned, seen = (threading.Event() for _ in range(4))
        runner = worker(concurrency=2)
        exchange, release = runner._exchange, runner._release_running

        def claim_after_release(settlements: Sequence[Settlement], wanted: int) -> Claimed:
            if not jobs.notes or claiming.is_set():
                return exchange(settlements, wanted)
            claiming.set()
            assert released.wait(PATIENCE)
            claimed = exchange(settlements, wanted)
            if returned.wait(0.3):
                seen.wait(PATIENCE)
            return claimed

        def release_and_signal() -> None:
            release()
            released.set()

        monkeypatch.setattr(runner._combiner, "_exchange", claim_after_release)
        monkeypatch.setattr(runner, "_release_running", release_and_signal)
        with running(runner.run, runner.stop) as thread:
            until(claiming.is_set)
            runner.stop()
            runner.stop()
            thread.join(PATIENCE)
        returned.set()
        try:
            assert (state(result).status, state(result).attempts) == ("w", 0)
        finally:
            seen.set()

    def test_running_tasks_are_released_after_the_drain_time(self, caplog: pytest.LogCaptureFixture) -> None:
        result = jobs.wait.enqueue()
        runner = worker(drain=0.2)
        with running(runner.run, runner.stop) as thread:
            until(lambda: jobs.notes)
            runner.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert (state(result).status, state(result).attempts) == ("w", 0)
        jobs.go.set()
        until(lambda: "refused" in caplog.text)

    def test_async_task_is_cancelled_and_released(self, caplog: pytest.LogCaptureFixture) -> None:
        result = jobs.wait_forever.enqueue()
        with at_work() as runner:
            until(lambda: jobs.notes)
            runner.stop()
            runner.stop()
        assert (state(result).status, state(result).attempts) == ("w", 0)
        until(lambda: "refused" in caplog.text)

    @pytest.mark.timing
    def test_running_tasks_are_released_within_one_deadline(
        self, own_server: EmbeddedServer, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 0.5}
        for _ in range(8):
            jobs.wait.enqueue()
        with at_work(concurrency=8) as runner:
            until(lambda: len(jobs.notes) == 8)
            own_server.freeze()
            runner.stop()
            runner.stop()
            began = time.monotonic()
        seconds = time.monotonic() - began
        own_server.thaw()
        assert seconds < 3
        [record] = [one for one in caplog.records if "delivered again" in one.getMessage()]
        assert record.getMessage().partition(": Redis")[0].count(", ") == 7

    @pytest.mark.timing
    def test_refused_lane_backs_off_while_stopping(
        self, own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = jobs.wait.enqueue()
        with at_work(concurrency=2, drain=1.0) as runner, own_server.client() as client:
            until(lambda: jobs.notes)
            client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval", "-bzpopmin")
            runner.stop()
            until(runner._stopping.is_set)
            jobs.go.set()
            until(lambda: not runner._lanes)
            client.execute_command("ACL", "SETUSER", "default", "+@all")
        warnings = [one for one in caplog.records if one.name == jobs_worker.__name__]
        assert 2 <= len(warnings) < 20, [one.getMessage() for one in warnings]
        assert state(result).status == "r"

    @pytest.mark.parametrize("grouped", [False, True])
    def test_stop_is_safe_at_any_moment(self, grouped: bool) -> None:
        """A signal handler runs between two instructions of the main thread, which may have a lock."""
        runner: Any = worker(concurrency=2)
        if grouped:
            runner = LoopGroup({"worker": runner})
        called: list[str] = []

        def stop_inside_threading(frame: FrameType, *_: object) -> Any:
            if frame.f_code.co_filename == threading.__file__:
                called.append(frame.f_code.co_name)
                runner.stop()
            return stop_inside_threading

        before = sys.gettrace()
        sys.settrace(stop_inside_threading)
        try:
            runner.run()
        finally:
            sys.settrace(before)
        assert len(called) > 20

    @pytest.mark.timing
    def test_idle_worker_stops_quickly_without_redis(self, own_server: EmbeddedServer) -> None:
        with at_work(concurrency=4) as runner:
            until(lambda: liveness(runner))
            own_server.freeze()
            began = time.monotonic()
        seconds = time.monotonic() - began
        own_server.thaw()
        assert seconds < 5  # 2 s on an idle machine

    @pytest.mark.timing
    def test_idle_worker_stops_quickly(self) -> None:
        with at_work(concurrency=4) as runner:
            until(lambda: liveness(runner))
            began = time.monotonic()
        assert time.monotonic() - began < 5


class TestExits:
    """SystemExit and KeyboardInterrupt end the attempt, not its lane, the event loop or the worker."""

    @pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit"])
    @pytest.mark.parametrize("task", [jobs.raise_by_name, jobs.async_raise, jobs.raise_in_child])
    def test_task_fails_and_its_lane_continues(self, task: jobs.Any, name: str) -> None:
        results = [task.enqueue(name) for _ in range(2)]
        after = [jobs.noop.enqueue(), jobs.aecho.enqueue("after")]
        with at_work() as runner:
            errors = [ended(result).errors for result in results]
            assert {ended(result).status for result in after} == {SUCCESSFUL}
        assert [[error.exception_class.__name__ for error in one] for one in errors] == [[name], [name]]
        assert (runner.failed, runner.done) == (False, 4)

    def test_module_that_exits_at_import_fails_the_task(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "exits_at_import.py").write_text("import sys\n\nsys.exit(3)\n")
        monkeypatch.setitem(settings.TASKS["default"]["OPTIONS"], "TASK_MODULES", ["exits_at_import"])
        monkeypatch.syspath_prepend(str(tmp_path))
        result, after = jobs.noop.enqueue(), jobs.noop.enqueue()
        stored = server().hget(keys().jobs, result.id)
        server().hset(keys().jobs, result.id, stored.replace(b"tests.tasks.jobs", b"exits_at_import"))
        runner = burst()
        assert (runner.failed, ended(after).status, counts()) == (False, SUCCESSFUL, [0, 0, 0, 1])

    @pytest.mark.parametrize("sent", [task_started, task_finished])
    def test_exiting_signal_receiver_is_ignored(self, sent: jobs.Any) -> None:
        def leave(**_: object) -> None:
            raise SystemExit("a receiver exits")

        sent.connect(leave, dispatch_uid="leave")
        try:
            results = [jobs.noop.enqueue(), jobs.noop.enqueue()]
            runner = burst()
        finally:
            sent.disconnect(dispatch_uid="leave")
        assert {ended(result).status for result in results} == {SUCCESSFUL}
        assert not runner.failed

    def test_stopped_event_loop_continues(self, caplog: pytest.LogCaptureFixture) -> None:
        results = [jobs.stop_event_loop.enqueue(), jobs.aecho.enqueue()]
        burst()
        assert {ended(result).status for result in results} == {SUCCESSFUL}
        assert "stopped the event loop" in caplog.text

    def test_failed_event_loop_ends_the_worker(self, caplog: pytest.LogCaptureFixture) -> None:
        result, other = jobs.wait_forever.enqueue(), jobs.break_event_loop.enqueue()
        runner = worker(concurrency=2)
        runner.run()
        assert (runner.failed, counts()) == (True, [2, 0, 0, 0])
        assert [state(one).attempts for one in (result, other)] == [0, 0]
        assert "the selector failed" in caplog.text


@pytest.mark.django_db(transaction=True)
class TestConnections:
    """The database connections of async tasks."""

    def test_connections_are_closed_after_their_maximum_age(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for seconds in (0, 60):
            monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", seconds)
            for task in (jobs.note_connection, jobs.note_connection, jobs.close_connection):
                task.enqueue()
            burst()
        first, second, third, fourth = jobs.notes
        assert (first is second, third is fourth) == (False, True)

    def test_connection_that_became_too_old_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0.2)
        with at_work():
            ended(jobs.note_connection.enqueue())
            too_old = time.monotonic() + 0.2
            until(lambda: time.monotonic() > too_old)
            for task in (jobs.note_connection, jobs.close_connection):
                ended(task.enqueue())
        first, second = jobs.notes
        assert first is not second

    def test_broken_connection_is_replaced(self) -> None:
        jobs.break_connection.enqueue()
        result = jobs.query.enqueue()
        burst()
        assert ended(result).return_value == 7

    def test_task_that_ends_closes_no_connection_of_others(self) -> None:
        result = jobs.query_while_others_end.enqueue()
        with at_work(concurrency=2):
            until(lambda: jobs.notes)
            assert ended(jobs.query.enqueue()).return_value == 7
            jobs.go.set()
            assert ended(result).return_value == 2

    @pytest.mark.timing
    def test_abandoned_call_delays_no_other_task(self) -> None:
        """Its task timed out; the thread in which it waits is the one of the lane's next task, at first."""
        first = jobs.wait_in_sync_call.using(timeout=0.2).enqueue()
        second = jobs.query.enqueue()
        with at_work():
            assert ended(second).return_value == 7
            assert second.finished_at - second.enqueued_at < timedelta(seconds=10)
            assert (ended(first).status, jobs.go.is_set()) == (FAILED, False)
            jobs.go.set()

    @pytest.mark.timing
    def test_too_many_abandoned_threads_end_the_worker(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(threads, "MAX_ABANDONED", 1, raising=False)
        monkeypatch.setattr(threads, "ABANDONED_AFTER", 0.05)
        for _ in range(3):
            jobs.wait_in_sync_call.using(timeout=0.05).enqueue()
        runner = worker()
        with running(runner.run, runner.stop) as thread:
            thread.join(PATIENCE / 4)
            assert not thread.is_alive()
            jobs.go.set()
        assert (runner.failed, counts()) == (True, [1, 0, 0, 2])
        assert "1 such threads now" in caplog.text and "2 such threads now" in caplog.text


class TestAsync:
    def test_all_coroutines_run_on_one_loop(self) -> None:
        results = [jobs.loop_and_thread.enqueue() for _ in range(4)]
        with at_work(concurrency=4):
            places = {tuple(ended(result).return_value) for result in results}
        assert len(places) == 1
        [(_, thread)] = places
        assert thread != threading.get_ident()

    def test_coroutines_run_concurrently(self) -> None:
        results = [jobs.async_sleep.enqueue(1.0) for _ in range(4)]
        with at_work(concurrency=4):
            first, *_, last = sorted(ended(result).finished_at for result in results)
        assert last - first < timedelta(seconds=2)  # sequentially it would take 3 s


@pytest.mark.timing
class TestOutage:
    def test_settlement_that_may_have_been_applied_is_repeated_as_such(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(jobs_running, "perform", fail)
        settlement = Lease("default", "id", 1, "token").settlement(Outcome.DONE)
        settler, outage = jobs_running.Settler(backend().engine, backend().using), jobs_running.Outage()
        for error in (Unavailable(), OutcomeUnknown()):
            assert not settler.try_settle(settlement, outage)
            assert outage.unanswered == isinstance(error, OutcomeUnknown)

    def test_worker_ends_while_a_lane_is_replaced(self) -> None:
        """The thread that goes on in place of an interrupted one is not started yet."""
        runner = worker()
        runner._new_lane("lane 0")
        runner._join_idle_lanes()

    def test_worker_continues_after_an_outage(self, own_server: EmbeddedServer, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 1.0}
        jobs.note.enqueue("before")
        with at_work(concurrency=2, lease=1.0) as runner:
            until(lambda: jobs.notes == ["before"])
            until(lambda: liveness(runner))
            own_server.kill()
            threading.Event().wait(1.5)  # length of the outage
            own_server.start()
            consumed = server_ms()
            jobs.note.enqueue("after")
            until(lambda: jobs.notes == ["before", "after"])
            until(lambda: liveness(runner)[1] >= consumed)

    def test_task_that_ends_during_an_outage_is_settled_afterwards(
        self, own_server: EmbeddedServer, settings: Settings
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 1.0}
        result = jobs.wait.enqueue()
        with at_work(lease=30.0):
            until(lambda: jobs.notes)
            own_server.kill()
            jobs.go.set()
            threading.Event().wait(1.5)
            own_server.start()
            assert ended(result).return_value == "went"
        assert result.attempts == 1


@pytest.mark.timing
class TestLiveness:
    def test_liveness_has_last_poll_and_task_counts(self) -> None:
        began = server_ms()
        jobs.note.enqueue("one")
        with at_work(lease=1.0) as runner:
            until(lambda: liveness(runner)[3:] == [0, 1])
            _, consumed, started, *_ = liveness(runner)
            assert began <= started <= consumed
            until(lambda: liveness(runner)[1] > consumed)
            assert liveness(runner)[2] == started

    def test_busy_worker_sends_heartbeats_but_does_not_consume(self) -> None:
        with at_work(lease=1.0) as runner:
            jobs.wait.enqueue()
            until(lambda: liveness(runner)[3:] == [1, 0])
            beat, consumed, *_ = liveness(runner)
            until(lambda: liveness(runner)[0] > beat)
            beat, consumed, *_ = liveness(runner)
            until(lambda: liveness(runner)[0] > beat + 600)
            assert liveness(runner)[1] == consumed
            jobs.go.set()
            until(lambda: liveness(runner)[1] > consumed)


@pytest.mark.timing
class TestWaking:
    def test_idle_worker_starts_immediately(self) -> None:
        late = []
        with at_work(concurrency=2) as runner:
            until(lambda: liveness(runner))
            for _ in range(7):
                result = ended(jobs.noop.enqueue())
                late.append((result.started_at - result.enqueued_at).total_seconds())
        assert statistics.median(late) < 0.05, late

    def test_earlier_delayed_task_wakes_the_worker_on_time(self) -> None:
        late = []
        with at_work(concurrency=2):
            jobs.noop.using(run_after=timezone.now() + timedelta(seconds=60)).enqueue()
            for number in range(7):
                due = timezone.now() + timedelta(seconds=0.15 + number * 0.01)
                result = ended(jobs.noop.using(run_after=due).enqueue())
                late.append((result.started_at - due).total_seconds())
        assert min(late) >= 0, late
        assert statistics.median(late) < 0.1, late

    def test_many_delayed_tasks_never_start_early(self) -> None:
        begins = timezone.now() + timedelta(seconds=1)  # all are enqueued by then
        dues = [begins + timedelta(milliseconds=number * 7, microseconds=number * 13) for number in range(60)]
        results = [jobs.noop.using(run_after=due).enqueue() for due in reversed(dues)]
        with at_work(concurrency=3):
            started = [ended(result).started_at for result in reversed(results)]
        assert all(at >= due for at, due in zip(started, dues, strict=True))
        assert started == sorted(started)

    def test_idle_worker_sends_few_commands(self, own_server: EmbeddedServer) -> None:
        with at_work(concurrency=4) as runner, own_server.client() as client:
            until(lambda: liveness(runner))
            sent, seconds = sent_in(client, 3.0)
            assert 1 <= sent <= 2 * seconds + 2  # plus a poll that had already begun


class TestEnding:
    def test_worker_record_is_removed(self) -> None:
        with at_work() as runner:
            until(lambda: liveness(runner))
        assert liveness(runner) == []

    def test_max_tasks_is_exact_with_many_lanes(self) -> None:
        for _ in range(40):
            jobs.noop.enqueue()
        assert run_worker(8, max_tasks=5).done == 5
        assert counts() == [35, 0, 0, 0]

    @pytest.mark.parametrize("part", ["_claim", "_heartbeat.keep_leases"])
    def test_unexpected_error_in_a_thread_ends_the_worker(
        self, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        runner = worker(concurrency=2)

        def fail_unexpectedly(*_: object) -> None:
            raise RuntimeError("unexpected error")

        *path, name = part.split(".")
        monkeypatch.setattr(functools.reduce(getattr, path, runner), name, fail_unexpectedly)
        runner.run()
        assert runner.failed
        assert "unexpected error" in caplog.text

    def test_worker_stopped_before_start_runs_nothing(self) -> None:
        jobs.note.enqueue("never")
        runner = worker()
        runner.stop()
        runner.run()
        assert (runner.done, jobs.notes, counts()) == (0, [], [1, 0, 0, 0])

    def test_failing_signal_receivers_are_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        def refuse(**_: object) -> None:
            raise RuntimeError("a receiver failed")

        for sent in (task_started, task_finished):
            sent.connect(refuse, dispatch_uid="refuse")
        try:
            results = [jobs.noop.enqueue(), jobs.fail.enqueue()]
            runner = burst()
        finally:
            for sent in (task_started, task_finished):
                sent.disconnect(dispatch_uid="refuse")
        for result in results:
            result.refresh()
        assert [result.status for result in results] == [SUCCESSFUL, FAILED]
        assert not runner.failed
        assert "a receiver failed" in caplog.text

    def test_unreadable_payload_is_dead_lettered(self) -> None:
        bad, good = jobs.noop.enqueue(), jobs.noop.enqueue()
        server().hset(keys().jobs, bad.id, "[7,null]")
        assert not burst().failed
        good.refresh()
        assert good.status == SUCCESSFUL
        assert counts() == [0, 0, 0, 1]

    @pytest.mark.parametrize("task", [jobs.wait_and_fail, jobs.wait_forever])
    def test_released_task_that_raises_sends_no_finished_signal(
        self, task: jobs.Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        finished: list[str] = []

        def receive(task_result: jobs.Any, **_: object) -> None:
            finished.append(task_result.id)

        task_finished.connect(receive)
        try:
            result = task.enqueue()
            with at_work(drain=0):
                until(lambda: jobs.notes)
            jobs.go.set()
            until(lambda: "refused" in caplog.text)  # the lane has settled the released task
        finally:
            task_finished.disconnect(receive)
        result.refresh()
        assert (result.status, result.attempts, finished) == (TaskResultStatus.READY, 0, [])


def run_worker(concurrency: int, **limits: int) -> Worker:
    """Run a worker until it ends by itself."""
    runner = worker(concurrency=concurrency, **limits)
    runner.run()
    return runner
