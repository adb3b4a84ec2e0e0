"""The worker: what it runs, in which order, for how long; and what becomes of it when it is stopped, when
Redis is away, and when others were faster."""

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
def fresh() -> Iterator[None]:
    """Nothing is noted yet, and whoever waits at the end may go."""
    jobs.notes.clear()
    jobs.go.clear()
    jobs.meeting.reset()
    yield
    jobs.go.set()


def counts(queue: str = "default") -> list[int]:
    """Ready, delayed, leased, dead."""
    return engine().stats(queue)[:4]


class TestOrder:
    def test_the_first_queue_is_served_first(self) -> None:
        for value in ("a", "b"):
            jobs.note.using(queue_name="other").enqueue(value)
        for value in ("c", "d"):
            jobs.note.enqueue(value)
        burst("default", "other")
        assert jobs.notes == ["c", "d", "a", "b"]

    def test_whatever_order_is_asked_for(self) -> None:
        jobs.note.enqueue("default")
        jobs.note.using(queue_name="other").enqueue("other")
        burst("other", "default")
        assert jobs.notes == ["other", "default"]

    def test_what_comes_into_the_first_queue_goes_before_the_rest_of_the_second(self) -> None:
        other = jobs.note_and_enqueue.using(queue_name="other")
        other.enqueue("a", "default")
        other.enqueue("b", "default")
        burst("default", "other")
        assert jobs.notes == ["a", "by a", "b", "by b"]

    def test_a_queue_that_is_not_served_is_left_alone(self) -> None:
        jobs.note.using(queue_name="other").enqueue("other")
        assert burst("default").done == 0
        assert counts("other") == [1, 0, 0, 0]


class TestLimits:
    def test_as_many_at_a_time_as_there_are_lanes(self) -> None:
        results = [jobs.meet.enqueue() for _ in range(6)]
        with at_work(concurrency=3):
            assert {ended(result).status for result in results} == {SUCCESSFUL}

    def test_never_more_than_there_are_lanes(self) -> None:
        for _ in range(4):
            jobs.wait.enqueue()
        with at_work(concurrency=3):
            until(lambda: len(jobs.notes) == 3)
            assert counts() == [1, 0, 3, 0]
            jobs.go.set()
            until(lambda: counts() == [0, 0, 0, 0])
        assert len(jobs.notes) == 4

    @pytest.mark.timing
    def test_a_burst_ends_when_nothing_is_ready(self) -> None:
        jobs.note.using(run_after=timezone.now() + timedelta(seconds=60)).enqueue("later")
        for number in range(5):
            jobs.note.enqueue(number)
        began = time.monotonic()
        assert burst(concurrency=2).done == 5
        assert time.monotonic() - began < 5
        assert sorted(jobs.notes) == [0, 1, 2, 3, 4]
        assert counts() == [0, 1, 0, 0]

    def test_it_ends_after_so_many_tasks(self) -> None:
        for number in range(5):
            jobs.note.enqueue(number)
        made = worker(max_tasks=2)
        made.run()
        assert made.done == 2
        assert jobs.notes == [0, 1]
        assert counts() == [3, 0, 0, 0]

    def test_it_ends_when_it_holds_too_much_memory(self) -> None:
        for number in range(3):
            jobs.note.enqueue(number)
        worker(max_memory=1).run()
        assert jobs.notes == [0]
        assert counts() == [2, 0, 0, 0]

    @pytest.mark.parametrize("busy", [False, True])
    @pytest.mark.timing
    def test_it_ends_after_so_long(self, busy: bool) -> None:
        stock = [jobs.sleep.enqueue(0.05) for _ in range(100 if busy else 0)]
        began = time.monotonic()
        made = worker(max_time=1.0)
        made.run()
        assert 1.0 <= time.monotonic() - began < 4.0
        assert made.done < 100
        assert counts() == [len(stock) - made.done, 0, 0, 0]

    def test_it_goes_on_while_it_holds_less(self) -> None:
        for number in range(3):
            jobs.note.enqueue(number)
        assert burst(max_memory=100_000).done == 3


@pytest.mark.timing
class TestLeases:
    def test_a_long_task_keeps_its_lease_though_another_worker_stands_by(self) -> None:
        result = jobs.sleep.enqueue(2.5)
        with at_work(lease=1.0) as first:
            until(lambda: state(result).status == "r")
            with at_work(lease=1.0):
                assert ended(result).status == SUCCESSFUL
        assert result.worker_ids == [first.id]
        assert not result.errors

    def test_leases_are_extended_at_each_third(self) -> None:
        result = jobs.wait.enqueue()
        ends: list[float] = []
        left: list[float] = []
        with at_work(lease=1.5):
            until(lambda: state(result).status == "r")
            stops = time.monotonic() + 2.5
            while time.monotonic() < stops:
                end = server().zscore(keys().queue("default").leased, result.id)
                left.append(end - server_ms())
                ends += [end] if not ends or ends[-1] != end else []
                time.sleep(0.005)
            jobs.go.set()
        apart = [after - before for before, after in itertools.pairwise(ends)]
        assert 3 <= len(apart) <= 6, apart
        # the first extension comes as soon as the heartbeat is due, however young the lease is
        assert all(450 <= gap < 1200 for gap in apart[1:]), apart
        assert min(left) > 300

    def test_whose_lease_is_lost_is_told_and_what_it_returns_is_refused(
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

    def test_tasks_have_their_connections_looked_at_before_and_after(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(running_module, "close_old_connections", lambda: jobs.notes.append("closed"))
        jobs.note.enqueue("task")
        jobs.fail.enqueue()
        burst()
        assert jobs.notes == ["closed", "task", "closed", "closed", "closed"]


@pytest.mark.timing
class TestTimeouts:
    @pytest.mark.parametrize("task", [jobs.sleep, jobs.asleep])
    def test_a_task_that_takes_too_long_fails(self, task: jobs.Any) -> None:
        result = task.using(timeout=0.3).enqueue(20)
        after = jobs.note.enqueue("after")
        with at_work(lease=30):
            assert ended(result).status == FAILED
            assert ended(after).status == SUCCESSFUL
        assert [error.exception_class.__name__ for error in result.errors] == ["TaskTimeout"]
        assert result.finished_at - result.started_at < timedelta(seconds=3)

    @pytest.mark.parametrize("task", [jobs.sleep, jobs.asleep])
    def test_a_task_that_is_faster_is_left_alone(self, task: jobs.Any) -> None:
        result = task.using(timeout=10).enqueue(0.05)
        burst()
        assert ended(result).status == SUCCESSFUL

    def test_the_backend_may_say_how_long(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"TIMEOUT": 0.2}}}
        result = jobs.asleep.enqueue(20)
        burst()
        assert ended(result).errors[0].exception_class.__name__ == "TaskTimeout"


class TestStopping:
    def test_the_first_stop_lets_what_runs_end_and_begins_nothing(self) -> None:
        results = [jobs.wait.enqueue() for _ in range(3)]
        with at_work() as made:
            until(lambda: jobs.notes)
            made.stop()
            until(made._stopping.is_set)
            jobs.go.set()
            assert ended(results[0]).return_value == "went"
        assert [state(result).attempts for result in results] == [1, 0, 0]
        assert counts() == [2, 0, 0, 0]

    def test_the_second_gives_back_what_runs_without_charging_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = jobs.wait.enqueue()
        with at_work() as made:
            until(lambda: jobs.notes)
            made.stop()
            made.stop()
        assert (state(result).status, state(result).attempts, state(result).workers) == ("w", 0, [])
        assert counts() == [1, 0, 0, 0]
        jobs.go.set()
        until(lambda: "refused" in caplog.text)
        burst()
        assert ended(result).attempts == 1

    def test_a_lane_that_was_asking_gives_back_what_it_got(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may get the very job that another lane had to give back; its thread dies with the process."""
        result = jobs.wait.enqueue()
        asking, given_back, returned, seen = (threading.Event() for _ in range(4))
        made = worker(concurrency=2)
        exchange, give_back = made._exchange, made._release_running

        def ask(settlements: Sequence[Settlement], wanted: int) -> Claimed:
            if not jobs.notes or asking.is_set():
                return exchange(settlements, wanted)
            asking.set()
            assert given_back.wait(PATIENCE)
            claimed = exchange(settlements, wanted)
            if returned.wait(0.3):
                seen.wait(PATIENCE)
            return claimed

        def give_back_and_tell() -> None:
            give_back()
            given_back.set()

        monkeypatch.setattr(made._combiner, "_exchange", ask)
        monkeypatch.setattr(made, "_release_running", give_back_and_tell)
        with running(made.run, made.stop) as thread:
            until(asking.is_set)
            made.stop()
            made.stop()
            thread.join(PATIENCE)
        returned.set()
        try:
            assert (state(result).status, state(result).attempts) == ("w", 0)
        finally:
            seen.set()

    def test_what_runs_has_so_long_to_end(self, caplog: pytest.LogCaptureFixture) -> None:
        result = jobs.wait.enqueue()
        made = worker(drain=0.2)
        with running(made.run, made.stop) as thread:
            until(lambda: jobs.notes)
            made.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert (state(result).status, state(result).attempts) == ("w", 0)
        jobs.go.set()
        until(lambda: "refused" in caplog.text)

    def test_an_async_task_is_cancelled_and_given_back(self, caplog: pytest.LogCaptureFixture) -> None:
        result = jobs.wait_for_ever.enqueue()
        with at_work() as made:
            until(lambda: jobs.notes)
            made.stop()
            made.stop()
        assert (state(result).status, state(result).attempts) == ("w", 0)
        until(lambda: "refused" in caplog.text)

    @pytest.mark.timing
    def test_an_idle_worker_stops_soon(self) -> None:
        with at_work(concurrency=4) as made:
            until(lambda: liveness(made))
            began = time.monotonic()
        assert time.monotonic() - began < 5


class TestAsync:
    def test_all_coroutines_run_on_one_loop_while_others_run(self) -> None:
        results = [jobs.where.enqueue() for _ in range(4)]
        with at_work(concurrency=4):
            places = {tuple(ended(result).return_value) for result in results}
        assert len(places) == 1
        [(_, thread)] = places
        assert thread != threading.get_ident()

    def test_they_run_at_the_same_time(self) -> None:
        results = [jobs.asleep.enqueue(1.0) for _ in range(4)]
        with at_work(concurrency=4):
            first, *_, last = sorted(ended(result).finished_at for result in results)
        assert last - first < timedelta(seconds=2)  # one after the other: 3 s


@pytest.mark.timing
class TestOutage:
    def test_it_consumes_again_afterwards(self, alone: EmbeddedServer, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 1.0}
        jobs.note.enqueue("before")
        with at_work(concurrency=2, lease=1.0) as made:
            until(lambda: jobs.notes == ["before"])
            until(lambda: liveness(made))
            alone.kill()
            threading.Event().wait(1.5)  # so long it has to bear it
            alone.start()
            consumed = server_ms()
            jobs.note.enqueue("after")
            until(lambda: jobs.notes == ["before", "after"])
            until(lambda: liveness(made)[1] >= consumed)

    def test_what_ended_meanwhile_is_recorded_when_redis_is_back(
        self, alone: EmbeddedServer, settings: Settings
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 1.0}
        result = jobs.wait.enqueue()
        with at_work(lease=30.0):
            until(lambda: jobs.notes)
            alone.kill()
            jobs.go.set()
            threading.Event().wait(1.5)
            alone.start()
            assert ended(result).return_value == "went"
        assert result.attempts == 1


@pytest.mark.timing
class TestLiveness:
    def test_it_says_when_the_worker_last_consumed_and_what_it_has_done(self) -> None:
        began = server_ms()
        jobs.note.enqueue("one")
        with at_work(lease=1.0) as made:
            until(lambda: liveness(made)[3:] == [0, 1])
            _, consumed, started, *_ = liveness(made)
            assert began <= started <= consumed
            until(lambda: liveness(made)[1] > consumed)
            assert liveness(made)[2] == started

    def test_a_worker_whose_lanes_are_busy_beats_but_consumes_nothing(self) -> None:
        with at_work(lease=1.0) as made:
            jobs.wait.enqueue()
            until(lambda: liveness(made)[3:] == [1, 0])
            beat, consumed, *_ = liveness(made)
            until(lambda: liveness(made)[0] > beat)
            beat, consumed, *_ = liveness(made)
            until(lambda: liveness(made)[0] > beat + 600)
            assert liveness(made)[1] == consumed
            jobs.go.set()
            until(lambda: liveness(made)[1] > consumed)


@pytest.mark.timing
class TestWaking:
    def test_an_idle_worker_begins_at_once(self) -> None:
        late = []
        with at_work(concurrency=2) as made:
            until(lambda: liveness(made))
            for _ in range(7):
                result = ended(jobs.noop.enqueue())
                late.append((result.started_at - result.enqueued_at).total_seconds())
        assert statistics.median(late) < 0.05, late

    def test_an_earlier_delayed_task_is_not_slept_over_and_none_begins_early(self) -> None:
        late = []
        with at_work(concurrency=2):
            jobs.noop.using(run_after=timezone.now() + timedelta(seconds=60)).enqueue()
            for number in range(7):
                due = timezone.now() + timedelta(seconds=0.15 + number * 0.01)
                result = ended(jobs.noop.using(run_after=due).enqueue())
                late.append((result.started_at - due).total_seconds())
        assert min(late) >= 0, late
        assert statistics.median(late) < 0.1, late

    def test_many_delayed_tasks_none_early(self) -> None:
        begins = timezone.now() + timedelta(seconds=0.2)
        dues = [begins + timedelta(milliseconds=number * 7, microseconds=number * 13) for number in range(60)]
        results = [jobs.noop.using(run_after=due).enqueue() for due in reversed(dues)]
        with at_work(concurrency=3):
            started = [ended(result).started_at for result in reversed(results)]
        assert all(at >= due for at, due in zip(started, dues, strict=True))
        assert started == sorted(started)

    def test_idle_it_asks_hardly_ever(self, alone: EmbeddedServer) -> None:
        with at_work(concurrency=4) as made, alone.client() as client:
            until(lambda: liveness(made))
            sent, seconds = sent_in(client, 3.0)
            assert 1 <= sent <= 2 * seconds + 2  # and a look that had begun


class TestEnding:
    def test_it_takes_its_line_off_the_list(self) -> None:
        with at_work() as made:
            until(lambda: liveness(made))
        assert liveness(made) == []

    def test_the_most_tasks_are_exact_with_many_lanes(self) -> None:
        for _ in range(40):
            jobs.noop.enqueue()
        assert worker_of(8, max_tasks=5).done == 5
        assert counts() == [35, 0, 0, 0]

    @pytest.mark.parametrize("part", ["_claim", "_keep_leases"])
    def test_an_unexpected_error_of_a_lane_or_of_the_heartbeat_ends_it(
        self, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = worker(concurrency=2)

        def break_down(*_: object) -> None:
            raise RuntimeError("nobody expected this")

        monkeypatch.setattr(made, part, break_down)
        made.run()
        assert made.failed
        assert "nobody expected this" in caplog.text

    def test_a_task_that_is_interrupted_ends_it_and_comes_back_with_its_lease(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = jobs.interrupt.enqueue()
        made = worker(concurrency=2)
        made.run()
        assert not made.failed
        assert "was interrupted" in caplog.text
        assert (state(result).status, counts()) == ("r", [0, 0, 1, 0])

    def test_stopped_before_it_began_it_begins_nothing(self) -> None:
        jobs.note.enqueue("never")
        made = worker()
        made.stop()
        made.run()
        assert (made.done, jobs.notes, counts()) == (0, [], [1, 0, 0, 0])

    def test_a_receiver_that_raises_spoils_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        def refuse(**_: object) -> None:
            raise RuntimeError("a receiver failed")

        for signal in (task_started, task_finished):
            signal.connect(refuse, dispatch_uid="refuse")
        try:
            results = [jobs.noop.enqueue(), jobs.fail.enqueue()]
            made = burst()
        finally:
            for signal in (task_started, task_finished):
                signal.disconnect(dispatch_uid="refuse")
        for result in results:
            result.refresh()
        assert [result.status for result in results] == [SUCCESSFUL, FAILED]
        assert not made.failed
        assert "a receiver failed" in caplog.text

    def test_a_payload_that_nobody_can_read_is_dead(self) -> None:
        bad, good = jobs.noop.enqueue(), jobs.noop.enqueue()
        server().hset(keys().jobs, bad.id, "[7,null]")
        assert not burst().failed
        good.refresh()
        assert good.status == SUCCESSFUL
        assert counts() == [0, 0, 0, 1]

    def test_what_was_given_back_is_not_told_as_failed(self) -> None:
        told: list[object] = []
        task_finished.connect(told.append, weak=False, dispatch_uid="told")
        try:
            result = jobs.asleep.enqueue(60)
            with at_work(drain=0) as made:
                until(lambda: state(result).status == "r")
            assert made.done <= 1
        finally:
            task_finished.disconnect(dispatch_uid="told")
        result.refresh()
        assert (result.status, result.attempts, told) == (TaskResultStatus.READY, 0, [])


def worker_of(concurrency: int, **limits: int) -> Worker:
    """A worker that has ended by itself."""
    made = worker(concurrency=concurrency, **limits)
    made.run()
    return made
