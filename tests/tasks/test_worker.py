"""The worker: order, limits, leases, tasks that have lost their workers, stopping, waking and ending."""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from pytest import LogCaptureFixture, MonkeyPatch

from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import Unavailable
from django_redis_messaging.management.loops import LoopGroup
from django_redis_messaging.services.jobs import claims, placement, threads
from django_redis_messaging.services.jobs.engine import Claimed, Lease, LeasedJob, Outcome, Settlement
from django_redis_messaging.services.jobs.worker import Worker as JobsWorker
from django_redis_messaging.tasks import worker as tasks_worker
from django_redis_messaging.tasks.compat import TaskResult, task_finished, task_started
from django_redis_messaging.tasks.worker import Limits, Worker

from ..support.server import server, server_ms, until
from ..support.unusual_errors import TextExits
from ..support.workers import (
    FAILED,
    PATIENCE,
    RUNNING,
    SUCCESSFUL,
    assert_released,
    at_work,
    backend,
    burst,
    counts,
    ended,
    engine,
    errors_of,
    keys,
    later,
    liveness,
    receiving,
    running,
    sent_in,
    state,
    worker,
)
from . import jobs

pytestmark = pytest.mark.one_server


class TestOrder:
    @pytest.mark.parametrize(
        ("queues", "order"),
        [
            (["default", "other"], ["c", "d", "a", "b"]),
            (["other", "default"], ["a", "b", "c", "d"]),
            (["default"], ["c", "d"]),
        ],
    )
    def test_queues_are_served_in_the_given_order(self, queues: list[str], order: list[str]) -> None:
        for value, queue in {"a": "other", "b": "other", "c": "default", "d": "default"}.items():
            jobs.note.using(queue_name=queue).enqueue(value)
        assert burst(*queues).done == len(order)
        assert jobs.notes == order

    def test_new_tasks_of_the_first_queue_run_before_the_rest_of_the_second(self) -> None:
        other = jobs.note_and_enqueue.using(queue_name="other")
        other.enqueue("a", "default")
        other.enqueue("b", "default")
        burst("default", "other")
        assert jobs.notes == ["a", "by a", "b", "by b"]

    def test_weights_share_the_worker(self) -> None:
        for _ in range(8):
            for queue in ("default", "other"):
                # with a single attempt, each is claimed alone
                jobs.note.using(queue_name=queue, max_attempts=1).enqueue(queue)
        Worker(backend(), {"default": 1, "other": 3}, Limits(concurrency=1, burst=True)).run()
        assert [jobs.notes[:8].count(queue) for queue in ("default", "other")] == [2, 6]
        assert len(jobs.notes) == 16  # the last ones of `default` did not wait for `other`


@pytest.mark.usefixtures("short_polls")
class TestLimits:
    def test_no_more_tasks_than_lanes_run_at_once(self) -> None:
        for _ in range(4):
            jobs.wait.enqueue()
        with at_work(concurrency=3):
            until(lambda: len(jobs.notes) == 3)
            assert counts() == [1, 0, 3, 0]
            jobs.go.set()
            until(lambda: counts() == [0, 0, 0, 0])
        assert len(jobs.notes) == 4

    def test_worker_ends_after_max_tasks(self) -> None:
        for number in range(40):
            jobs.note.enqueue(number)
        for lanes, done in ((1, 2), (8, 5)):
            runner = worker(concurrency=lanes, max_tasks=done)
            runner.run()
            assert runner.done == done
        assert jobs.notes[:2] == [0, 1]
        assert counts() == [33, 0, 0, 0]

    def test_worker_with_max_tasks_still_takes_tasks_after_it_was_idle(self) -> None:
        with at_work(concurrency=2, max_tasks=2, lease=0.3) as runner:
            until(lambda: liveness(runner) and liveness(runner)[1])  # it has asked for tasks
            for number in range(3):
                jobs.note.enqueue(number)
            until(lambda: len(jobs.notes) == 2)
        assert runner.done == 2
        assert counts() == [1, 0, 0, 0]

    @pytest.mark.timing
    def test_idle_lanes_send_nothing_while_the_last_task_runs(self, own_server: EmbeddedServer) -> None:
        for _ in range(3):
            jobs.wait.enqueue()
        with at_work(concurrency=4, max_tasks=1) as runner, own_server.client() as client:
            until(lambda: jobs.notes)
            commands, _ = sent_in(client, 0.4)
            jobs.go.set()
            until(lambda: runner.done)
        assert commands <= 2  # a wait that had begun, and the first heartbeat
        assert (runner.done, counts()) == (1, [2, 0, 0, 0])

    def test_worker_ends_above_max_memory(self) -> None:
        for number in range(3):
            jobs.note.enqueue(number)
        worker(max_memory=1).run()
        assert (jobs.notes, counts()) == ([0], [2, 0, 0, 0])
        assert burst(max_memory=100_000).done == 2

    @pytest.mark.parametrize("busy", [False, True])
    @pytest.mark.timing
    def test_worker_ends_after_max_time(self, busy: bool) -> None:
        stock = [jobs.sleep.enqueue(0.05) for _ in range(100 if busy else 0)]
        began = time.monotonic()
        runner = worker(max_time=0.3)
        runner.run()
        assert 0.3 <= time.monotonic() - began < 3.0
        assert runner.done < 100
        assert counts() == [len(stock) - runner.done, 0, 0, 0]


@pytest.mark.timing
@pytest.mark.usefixtures("short_polls")
class TestLeases:
    def test_leases_are_extended_every_third_of_their_duration(self) -> None:
        """So a task that takes longer is not claimed by another worker."""
        result = jobs.wait.enqueue()
        ends: list[float] = []
        left: list[float] = []
        with at_work(lease=0.9) as first, at_work(lease=0.9) as second:
            until(lambda: state(result).status == "running")
            while len(ends) < 5:
                end = server().zscore(keys().queue("default").leased, result.id)
                left.append(end - server_ms())
                ends += [end] if not ends or ends[-1] != end else []
                time.sleep(0.005)
            jobs.go.set()
            assert ended(result).worker_ids in ([first.id], [second.id])
        gaps = [after - before for before, after in itertools.pairwise(ends)]
        # the first extension happens at the next heartbeat, regardless of the age of the lease
        assert all(270 <= gap < 720 for gap in gaps[1:]), gaps
        assert min(left) > 180
        assert not result.errors

    def test_lost_lease_is_reported_and_its_settlement_refused(self, caplog: LogCaptureFixture) -> None:
        result = jobs.wait_for_loss.enqueue()
        with at_work(lease=0.6):
            until(lambda: jobs.notes)
            claimed: list[LeasedJob] = []
            while not claimed:  # the heartbeat may extend the lease in between
                server().zadd(keys().queue("default").leased, {result.id: 1})
                claimed += engine().claim(["default"], 1, 60_000, worker="other").jobs
            [other] = claimed
            until(lambda: len(jobs.notes) == 2)
            until(lambda: "refused" in caplog.text)
            result.refresh()
            assert result.status == RUNNING
        assert jobs.notes == [False, True]
        assert engine().settle(other.lease.settlement(Outcome.DONE, 60_000, "R1"))
        assert errors_of(result) == ["LeaseLost"]
        assert result.return_value == 1

    def test_worker_has_a_record_while_it_runs(self) -> None:
        """Heartbeat and last claim, start, and how many tasks run and have ended."""
        began = server_ms()
        jobs.note.enqueue("one")
        with at_work(lease=0.3) as runner:
            until(lambda: liveness(runner)[3:] == [0, 1])
            _, consumed, started, *_ = liveness(runner)
            assert began <= started <= consumed
            until(lambda: liveness(runner)[1] > consumed)
            assert liveness(runner)[2] == started
            jobs.wait.enqueue()
            until(lambda: liveness(runner)[3:] == [1, 1])
            beat = liveness(runner)[0]
            until(lambda: liveness(runner)[0] > beat)
            beat, consumed, *_ = liveness(runner)
            until(lambda: liveness(runner)[0] > beat + 200)
            assert liveness(runner)[1] == consumed, "a busy worker sends heartbeats, but does not claim"
            jobs.go.set()
            until(lambda: liveness(runner)[1] > consumed)
        assert liveness(runner) == []


@pytest.mark.usefixtures("short_polls")
class TestApart:
    """A task that has lost two workers runs alone in its process."""

    def lose(self, *results: TaskResult) -> None:
        """Start the tasks, as two workers that are lost then."""
        for _ in range(2):
            leased = engine().claim(["default"], len(results), 1, worker="lost").jobs
            assert {one.lease.id for one in leased} == {one.id for one in results}
            until(lambda: counts() == [len(results), 0, 0, 0])

    def test_it_waits_for_the_others_which_start_no_more(self) -> None:
        lost = jobs.note.enqueue("lost")
        self.lose(lost)
        first = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=3, lease=1.0) as runner:
            until(lambda: runner._placement.apart.waiting and jobs.notes)
            after = [jobs.note.enqueue("after") for _ in range(3)]
            lease_ends = server().zscore(keys().queue("default").leased, lost.id)
            # its lease is extended while it waits
            until(lambda: server().zscore(keys().queue("default").leased, lost.id) > lease_ends)
            assert (jobs.notes, counts()) == (["waits"], [3, 0, 2, 0])
            jobs.go.set()
            assert {ended(one).status for one in (first, lost, *after)} == {SUCCESSFUL}
        assert jobs.notes == ["waits", "lost", "after", "after", "after"]
        assert (lost.attempts, lost.worker_ids) == (3, ["lost", "lost", runner.id])
        assert errors_of(lost) == ["LeaseLost"] * 2

    def test_no_other_task_starts_while_it_runs(self) -> None:
        lost = jobs.wait.enqueue()
        self.lose(lost)
        with at_work(concurrency=3):
            until(lambda: jobs.notes)
            other = jobs.note.enqueue("other")
            with at_work() as second:
                assert ended(other).worker_ids == [second.id]
            jobs.go.set()
            assert ended(lost).status == SUCCESSFUL

    def test_its_wait_is_limited(self, monkeypatch: MonkeyPatch) -> None:
        """After a wait in vain, an idle worker gets it, and the lanes of the busy one claim others."""
        monkeypatch.setattr(placement, "APART_FIRST_WAIT", 0.2)
        # after each wait, both workers have the same chance; with longer waits, the idle one could have none
        monkeypatch.setattr(placement, "APART_MAX_WAIT", 0.4)
        lost = jobs.note.enqueue("lost")
        self.lose(lost)
        busy = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=2) as runner:
            until(lambda: runner._placement.apart._wait == 0.4)  # each wait is longer
            until(lambda: state(lost)[:4] == ("waiting", 0, 2, 2))  # no attempt counts
            assert ended(jobs.note.enqueue("other")).status == SUCCESSFUL
            with at_work() as idle:
                assert ended(lost).worker_ids[-1] == idle.id
            jobs.go.set()
            assert ended(busy).status == SUCCESSFUL
        assert jobs.notes == ["waits", "other", "lost"]

    def test_several_run_one_after_the_other(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(placement, "APART_DELAY", 0.01)
        results = [jobs.sleep.enqueue(0.05) for _ in range(3)]
        self.lose(*results)
        with caplog.at_level("INFO"), at_work(concurrency=3):  # Django logs each start and end of a task
            assert [ended(one).status for one in results] == [SUCCESSFUL] * 3
        states = [text.rpartition("state=")[2] for text in caplog.messages if "state=" in text]
        assert states == ["RUNNING", "SUCCESSFUL"] * 3

    def test_stop_ends_its_wait(self) -> None:
        lost = jobs.note.enqueue("lost")
        self.lose(lost)
        first = jobs.wait.using(priority=10).enqueue()
        with at_work(concurrency=2) as runner:
            until(lambda: runner._placement.apart.waiting and jobs.notes == ["waits"])
            runner.stop()
            until(lambda: state(lost).status == "waiting")
            jobs.go.set()
            assert ended(first).status == SUCCESSFUL  # a second stop would release it
        assert (jobs.notes, runner.done, counts()) == (["waits"], 1, [1, 0, 0, 0])
        assert (state(lost).attempts, state(lost).lost) == (2, 2)

    def test_lost_attempts_are_not_failures(self) -> None:
        lost = jobs.fail.using(max_attempts=2).enqueue()
        self.lose(lost)
        burst()
        assert (state(lost).status, state(lost).attempts, state(lost).failures) == ("waiting", 3, 1)


@pytest.mark.usefixtures("short_polls")
class TestStopping:
    @pytest.mark.parametrize(
        ("task", "stops"),
        [
            (jobs.wait, 2),
            (jobs.wait, 1),
            (jobs.wait_and_fail, 2),
            (jobs.wait_forever, 2),
            (jobs.wait_forever, 1),
        ],
    )
    def test_running_tasks_are_released_uncharged(
        self, task: Any, stops: int, caplog: LogCaptureFixture
    ) -> None:
        """At the second stop, or after the drain time. Whatever they do then is ignored."""
        finished: list[str] = []
        result = task.enqueue()
        runner = worker(drain=0.05 if stops == 1 else 30)
        with receiving(task_finished, lambda task_result, **_: finished.append(task_result.status)):
            with running(runner.run, lambda: None):
                until(lambda: jobs.notes)
                for _ in range(stops):
                    runner.stop()
            assert_released(result)
            assert counts() == [1, 0, 0, 0]
            jobs.go.set()
            until(lambda: "refused" in caplog.text)  # the lane has settled the released task
        assert finished == ([SUCCESSFUL] if task is jobs.wait else [])
        if task is jobs.wait:
            burst()
            assert ended(result).attempts == 1

    @pytest.mark.parametrize("task", [jobs.wait, jobs.wait_forever])
    def test_a_single_attempt_is_not_given_to_another_worker(self, task: Any) -> None:
        """It has started, so another one would be a second start."""
        result = task.using(max_attempts=1).enqueue()
        runner = worker()
        with running(runner.run, lambda: None):
            until(lambda: jobs.notes)
            runner.stop()
            runner.stop()
            assert errors_of(result) == ["LeaseLost"]
        jobs.go.set()

    def test_a_follow_up_that_cannot_be_pushed_is_tried_again(self, monkeypatch: MonkeyPatch) -> None:
        """No claim settles its job meanwhile."""
        runner, failures = worker(), iter([Unavailable("no connection")])
        settle_and_push = runner._claims._settle_and_push

        def fail_once(settlement: Settlement) -> None:
            for error in failures:
                raise error
            settle_and_push(settlement)

        monkeypatch.setattr(runner._claims, "_settle_and_push", fail_once)
        monkeypatch.setattr(claims, "FOLLOW_UP_INTERVAL", 0.01)
        result = jobs.noop.using(then=jobs.note).enqueue()
        jobs.noop.enqueue_many([([], {})] * 3)
        with running(runner.run, runner.stop):
            until(lambda: jobs.notes == [None])
        assert ended(result).status == SUCCESSFUL

    def test_a_follow_up_that_always_fails_holds_up_no_others(self, monkeypatch: MonkeyPatch) -> None:
        runner = worker()
        settle_and_push = runner._claims._settle_and_push
        failing = jobs.noop.using(then=jobs.note).enqueue()

        def fail_for_one(settlement: Settlement) -> None:
            if settlement.lease.id == failing.id:
                raise Unavailable("no connection")
            settle_and_push(settlement)

        monkeypatch.setattr(runner._claims, "_settle_and_push", fail_for_one)
        monkeypatch.setattr(claims, "FOLLOW_UP_INTERVAL", 0.01)
        others = [jobs.noop.using(then=jobs.note).enqueue() for _ in range(2)]
        with running(runner.run, runner.stop):
            assert [ended(one).status for one in others] == [SUCCESSFUL] * 2
            until(lambda: jobs.notes == [None, None])
            assert state(failing).status == "running"
            monkeypatch.setattr(runner._claims, "_settle_and_push", settle_and_push)
            assert ended(failing).status == SUCCESSFUL

    def test_leases_of_follow_ups_are_extended(self) -> None:
        """Also without an outage: each may fail for a reason of its own."""
        result, runner = jobs.noop.enqueue(), worker(lease=1000.0)
        [leased] = engine().claim(["default"], 1, 60_000, worker=runner.id).jobs
        runner._leases.follow_ups.append(leased.lease.settlement(Outcome.DONE))
        runner._keeper.keep_leases()
        assert server().zscore(keys().queue("default").leased, result.id) > server_ms() + 900_000

    def test_loop_waits_for_events_after_an_outage(self, monkeypatch: MonkeyPatch) -> None:
        """Though nothing is claimed that could end it."""
        runner = worker()
        turns: list[float] = []
        take_events = runner._take_events

        def count_turn(seconds: float) -> None:
            turns.append(seconds)
            take_events(seconds)

        monkeypatch.setattr(runner, "_take_events", count_turn)
        runner._claims.outage = claims.Outage(retry_at=time.monotonic())
        assert runner._seconds_to_claim() > 0
        jobs.noop.enqueue()
        [leased] = engine().claim(["default"], 1, 60_000, worker=runner.id).jobs
        runner._leases.jobs[1] = placement.Job(1, leased)
        runner._drain(time.monotonic() + 0.05)
        assert len(turns) <= 2

    @pytest.mark.parametrize("is_settled", [True, False])
    def test_a_follow_up_ends_an_outage(self, is_settled: bool) -> None:
        """Unless settlements may have been applied: the next claim asks for them."""
        runner, settlement = worker(), Lease("default", "id", 1, "token").settlement(Outcome.DONE)
        runner._claims.outage = claims.Outage()
        runner._leases.follow_ups.append(settlement)
        if not is_settled:
            runner._leases.settlements.append(settlement)
        runner._claims.settle_follow_ups()
        assert (runner._claims.outage is None) == is_settled

    def test_nothing_is_run_that_was_claimed_during_a_stop(self, monkeypatch: MonkeyPatch) -> None:
        result = jobs.note.enqueue("never")
        runner = worker()
        exchange = runner._claims._exchange

        def stop_before_reply(settlements: Sequence[Settlement], count: int) -> Claimed:
            claimed = exchange(settlements, count)
            if claimed.jobs:
                runner.stop()
            return claimed

        monkeypatch.setattr(runner._claims, "_exchange", stop_before_reply)
        runner.run()
        assert jobs.notes == []
        assert_released(result)

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

    def test_worker_stopped_before_start_runs_nothing(self) -> None:
        jobs.note.enqueue("never")
        runner = worker()
        runner.stop()
        runner.run()
        assert (runner.done, jobs.notes, counts()) == (0, [], [1, 0, 0, 0])


@pytest.mark.timing
class TestWaking:
    """With the real intervals: an idle worker is woken, and does not poll for jobs."""

    def test_idle_worker_starts_immediately_and_stops_quickly(self) -> None:
        late = []
        with at_work(concurrency=4) as runner:
            until(lambda: liveness(runner))
            for _ in range(7):
                result = ended(jobs.noop.enqueue())
                late.append((result.started_at - result.enqueued_at).total_seconds())
            began = time.monotonic()
        assert time.monotonic() - began < 5
        assert statistics.median(late) < 0.05, late

    def test_delayed_tasks_wake_the_worker_on_time(self) -> None:
        late = []
        with at_work(concurrency=2):
            jobs.noop.using(run_after=later(60)).enqueue()
            for number in range(7):
                due = later(0.08 + number * 0.01)
                result = ended(jobs.noop.using(run_after=due).enqueue())
                late.append((result.started_at - due).total_seconds())
        assert min(late) >= 0, late
        assert statistics.median(late) < 0.1, late

    def test_idle_worker_sends_few_commands(self, own_server: EmbeddedServer) -> None:
        with at_work(concurrency=4), own_server.client() as client:
            until(lambda: "cmdstat_bzpopmin" in client.info("commandstats"))
            sent, seconds = sent_in(client, 2.2)
        assert 1 <= sent <= 2 * seconds + 2  # plus a poll that had already begun


@pytest.mark.usefixtures("short_polls")
class TestFailures:
    """Unexpected errors end the worker, so that its supervisor notices; those of receivers don't."""

    @pytest.mark.parametrize("part", ["_claim", "_keeper.keep_leases"])
    def test_unexpected_error_in_a_thread(
        self, part: str, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        runner = worker(concurrency=2)

        def fail_unexpectedly(*_: object) -> None:
            raise RuntimeError("unexpected error")

        *path, name = part.split(".")
        monkeypatch.setattr(functools.reduce(getattr, path, runner), name, fail_unexpectedly)
        runner.run()
        assert runner.failed
        assert "unexpected error" in caplog.text

    @pytest.mark.parametrize("error", [RuntimeError, TextExits])
    def test_failed_lane_while_other_lanes_wait(self, error: type[Exception]) -> None:
        def fail_unexpectedly(_: object) -> None:
            raise error("unexpected error")

        limits = Limits(concurrency=2)
        runner = JobsWorker(backend().engine, backend().using, ["default"], fail_unexpectedly, limits)
        jobs.noop.enqueue()
        with running(runner.run, runner.stop) as thread:
            thread.join(PATIENCE / 4)
            assert not thread.is_alive()
        assert runner.failed

    def test_failed_event_loop(self, caplog: LogCaptureFixture) -> None:
        results = jobs.wait_forever.enqueue(), jobs.break_event_loop.enqueue()
        runner = worker(concurrency=2)
        runner.run()
        assert (runner.failed, counts()) == (True, [2, 0, 0, 0])
        assert [state(one).attempts for one in results] == [0, 0]
        assert "the selector failed" in caplog.text

    @pytest.mark.parametrize("error", [RuntimeError, SystemExit])
    def test_failing_signal_receivers_are_ignored(
        self, error: type[BaseException], caplog: LogCaptureFixture
    ) -> None:
        def refuse(**_: object) -> None:
            raise error("a receiver failed")

        with receiving(task_started, refuse), receiving(task_finished, refuse):
            results = [jobs.noop.enqueue(), jobs.fail.enqueue()]
            runner = burst()
        assert [ended(result).status for result in results] == [SUCCESSFUL, FAILED]
        assert not runner.failed
        assert "a receiver failed" in caplog.text

    def test_old_database_connections_are_closed_around_tasks(self, monkeypatch: MonkeyPatch) -> None:
        for module, name in ((threads, "prepare_connections"), (tasks_worker, "close_old_connections")):
            monkeypatch.setattr(module, name, lambda: jobs.notes.append("closed"))
        jobs.note.enqueue("task")
        jobs.fail.enqueue()
        burst()
        assert jobs.notes == ["closed", "task", "closed", "closed", "closed"]
