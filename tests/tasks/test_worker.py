"""The worker: order, limits, leases, timeouts, stopping, outages, and late settlements."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.services.jobs.leases import Claimed, LeasedJob, Outcome, Settlement
from django_redis_messaging.tasks import worker as running_module
from django_redis_messaging.tasks.compat import TaskResultStatus, task_finished, task_started
from django_redis_messaging.tasks.worker import Worker

from . import jobs
from .working import (
    PATIENCE,
    at_work,
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

    def test_worker_ends_after_max_tasks(self) -> None:
        for number in range(5):
            jobs.note.enqueue(number)
        runner = worker(max_tasks=2)
        runner.run()
        assert runner.done == 2
        assert jobs.notes == [0, 1]
        assert counts() == [3, 0, 0, 0]

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
            until(lambda: len(jobs.notes) == 2)
            until(lambda: "refused" in caplog.text)
            result.refresh()
            assert result.status == TaskResultStatus.RUNNING
        assert jobs.notes == [False, True]
        assert engine().settle(other.lease.settled(Outcome.DONE, 60_000, "R1"))
        result.refresh()
        assert result.return_value == 1
        assert result.errors[0].exception_class.__name__ == "LeaseLost"

    def test_old_database_connections_are_closed_around_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(running_module, "close_old_connections", lambda: jobs.notes.append("closed"))
        jobs.note.enqueue("task")
        jobs.fail.enqueue()
        burst()
        assert jobs.notes == ["closed", "task", "closed", "closed", "closed"]


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
    def test_idle_worker_stops_quickly(self) -> None:
        with at_work(concurrency=4) as runner:
            until(lambda: liveness(runner))
            began = time.monotonic()
        assert time.monotonic() - began < 5


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
        begins = timezone.now() + timedelta(seconds=0.2)
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

    @pytest.mark.parametrize("part", ["_claim", "_keep_leases"])
    def test_unexpected_error_in_a_thread_ends_the_worker(
        self, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        runner = worker(concurrency=2)

        def fail_unexpectedly(*_: object) -> None:
            raise RuntimeError("unexpected error")

        monkeypatch.setattr(runner, part, fail_unexpectedly)
        runner.run()
        assert runner.failed
        assert "unexpected error" in caplog.text

    def test_interrupted_task_ends_the_worker_and_stays_leased(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = jobs.interrupt.enqueue()
        runner = worker(concurrency=2)
        runner.run()
        assert not runner.failed
        assert "was interrupted" in caplog.text
        assert (state(result).status, counts()) == ("r", [0, 0, 1, 0])

    def test_worker_stopped_before_start_runs_nothing(self) -> None:
        jobs.note.enqueue("never")
        runner = worker()
        runner.stop()
        runner.run()
        assert (runner.done, jobs.notes, counts()) == (0, [], [1, 0, 0, 0])

    def test_failing_signal_receivers_are_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        def refuse(**_: object) -> None:
            raise RuntimeError("a receiver failed")

        for signal in (task_started, task_finished):
            signal.connect(refuse, dispatch_uid="refuse")
        try:
            results = [jobs.noop.enqueue(), jobs.fail.enqueue()]
            runner = burst()
        finally:
            for signal in (task_started, task_finished):
                signal.disconnect(dispatch_uid="refuse")
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

    def test_released_task_sends_no_finished_signal(self) -> None:
        signals: list[object] = []
        task_finished.connect(signals.append, weak=False, dispatch_uid="signals")
        try:
            result = jobs.async_sleep.enqueue(60)
            with at_work(drain=0) as runner:
                until(lambda: state(result).status == "r")
            assert runner.done <= 1
        finally:
            task_finished.disconnect(dispatch_uid="signals")
        result.refresh()
        assert (result.status, result.attempts, signals) == (TaskResultStatus.READY, 0, [])


def run_worker(concurrency: int, **limits: int) -> Worker:
    """Run a worker until it ends by itself."""
    runner = worker(concurrency=concurrency, **limits)
    runner.run()
    return runner
