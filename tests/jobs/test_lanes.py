"""The executor without a worker: its reports, slow jobs, jobs that are taken back, coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_redis_messaging.services.jobs import executor as executing
from django_redis_messaging.services.jobs.engine import (
    FollowUp,
    Lease,
    LeasedJob,
    Outcome,
    Settlement,
    parse_state,
)
from django_redis_messaging.services.jobs.executor import (
    GOES_ON,
    NOT_STARTED,
    UNSETTLED,
    Executor,
    Report,
    RunningJob,
)
from django_redis_messaging.services.jobs.placement import MAX_TASKS, MIN_SEEN, Speeds

from ..support.server import DEADLINE, until

pytestmark = pytest.mark.one_server

DONE = Outcome.DONE.value


def job(number: int) -> tuple[int, LeasedJob]:
    state = parse_state(b"running attempts=1/5 pushed=1 due=1 fence=7 token=t first=1")
    return number, LeasedJob(Lease("default", f"j{number}", 7, "t"), b"[]", state)


class Calls:
    """Attempts: what each job does, and what was reported."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began: list[int] = []
        self.reports: list[list[Report]] = []
        #: number → what it does
        self.does: dict[int, Callable[[RunningJob], Any]] = {}
        self.failures: list[bool] = []

    def attempt(self, running: RunningJob) -> Any:
        self.began.append(running.number)
        found = self.does.get(running.number, lambda _: None)(running)
        if asyncio.iscoroutine(found):
            return self.rest(running, found)
        return running.settlement(Outcome.DONE) if found is None else found

    async def rest(self, running: RunningJob, coroutine: Coroutine[Any, Any, Any]) -> Settlement:
        try:
            await running.acall(coroutine)
        except BaseException:
            return running.settlement(Outcome.DEAD)
        return running.settlement(Outcome.DONE)

    def wait(self, running: RunningJob) -> None:
        running.call(lambda: self.go.wait(DEADLINE))

    def ended(self) -> dict[int, str]:
        """What was reported last of each job."""
        return {one.number: one.ended for reports in list(self.reports) for one in reports}


@contextmanager
def executing_with(calls: Calls, lanes: int = 1) -> Iterator[Executor]:
    made = Executor(calls.attempt, lanes, calls.reports.append, lambda: calls.failures.append(True))
    try:
        yield made
    finally:
        calls.go.set()
        made.close(DEADLINE)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job is slow."""
    for name in ("SLOW", "MAX_WAIT", "BATCH_INTERVAL"):
        monkeypatch.setattr(executing, name, DEADLINE)


class TestBatches:
    @pytest.mark.usefixtures("patient")
    def test_one_lane_runs_a_batch_in_order_and_reports_it_at_once(self, calls: Calls) -> None:
        with executing_with(calls, lanes=3) as executor:
            executor.run([job(number) for number in range(20)])
            until(lambda: calls.reports)
        assert calls.began == list(range(20))
        assert [[one.number for one in reports] for reports in calls.reports] == [list(range(20))]

    def test_jobs_behind_a_slow_one_are_handed_back_and_outcomes_before_it_reported(
        self, calls: Calls
    ) -> None:
        calls.does[1] = calls.wait
        with executing_with(calls) as executor:
            executor.run([job(number) for number in range(4)])
            until(lambda: len(calls.ended()) == 3)
            assert calls.ended() == {0: DONE, 2: NOT_STARTED, 3: NOT_STARTED}
        until(lambda: calls.ended().get(1) == DONE)
        assert calls.began == [0, 1]

    def test_a_batch_that_waits_for_a_busy_lane_is_handed_back(self, calls: Calls) -> None:
        calls.does[1] = calls.wait
        with executing_with(calls) as executor:
            executor.run([job(1)])
            until(lambda: calls.began)
            executor.run([job(2), job(3)])
            until(lambda: calls.ended() == {2: NOT_STARTED, 3: NOT_STARTED})

    def test_an_unexpected_error_ends_the_worker_and_leaves_no_job_open(self, calls: Calls) -> None:
        """The lease of the job whose attempt failed has to end: that counts as a lost attempt."""

        def fail(_: RunningJob) -> None:
            raise SystemExit("unexpected")

        calls.does[0] = fail
        with executing_with(calls) as executor:
            executor.run([job(0), job(1)])
            until(lambda: calls.failures and len(calls.ended()) == 2)
        assert calls.ended() == {0: UNSETTLED, 1: NOT_STARTED}

    def test_a_follow_up_is_announced_once(self, calls: Calls) -> None:
        announced: list[int] = []
        follow_up = FollowUp("default", ["id", "payload"], 30, announced.append)
        calls.does[1] = calls.does[2] = lambda running: running.settlement(Outcome.DONE)._replace(
            follow_up=follow_up
        )
        with executing_with(calls) as executor:
            executor.run([job(1), job(2)])
            until(lambda: len(calls.ended()) == 2)
            assert calls.reports[0][0].follow_up == ("default", ("id", "payload"), 30)
            executor.announce(1, 0)
            for moment in (17, 18):
                executor.announce(1, moment)
                executor.announce(2, moment)
            until(lambda: announced)
        assert announced == [17]


class TestTakenBack:
    @pytest.mark.usefixtures("patient")
    def test_only_jobs_that_have_not_started(self, calls: Calls) -> None:
        calls.does[0] = calls.wait
        with executing_with(calls) as executor:
            executor.run([job(0), job(1)])
            until(lambda: calls.began)
            executor.give_back()
            assert calls.ended() == {1: NOT_STARTED}
        until(lambda: calls.ended().get(0) == DONE)

    @pytest.mark.usefixtures("patient")
    def test_running_ones_are_released_whatever_becomes_of_them(
        self, calls: Calls, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls.does[0] = calls.wait
        with executing_with(calls) as executor:
            executor.run([job(0), job(1)])
            until(lambda: calls.began)
            executor.give_back(running=True)
            assert calls.ended() == {0: Outcome.RELEASE.value, 1: NOT_STARTED}
            calls.go.set()
            until(lambda: "refused" in caplog.text)
        assert calls.ended()[0] == Outcome.RELEASE.value

    @pytest.mark.usefixtures("patient")
    def test_lost_and_cancelled_jobs_do_not_start(self, calls: Calls) -> None:
        calls.does[0] = calls.wait
        with executing_with(calls) as executor:
            executor.run([job(0), job(1), job(2)])
            until(lambda: calls.began)
            executor.mark_lost([1])
            executor.cancel(2)
            calls.go.set()
            until(lambda: len(calls.ended()) == 3)
        assert (calls.began, calls.ended()) == ([0], {0: DONE, 1: UNSETTLED, 2: NOT_STARTED})

    def test_a_job_that_was_lost_and_claimed_again_is_another_one(self, calls: Calls) -> None:
        calls.does[0] = calls.wait
        with executing_with(calls, lanes=2) as executor:
            executor.run([job(0)])
            until(lambda: calls.began)
            executor.mark_lost([0])
            _, leased = job(0)
            executor.run([(1, leased)])
            until(lambda: calls.ended() == {1: DONE})


class TestCoroutines:
    async def wait(self) -> None:
        await asyncio.Event().wait()

    def test_they_hold_no_lane(self, calls: Calls) -> None:
        calls.does[0] = lambda _: self.wait()
        with executing_with(calls) as executor:
            executor.run([job(0)])
            executor.run([job(1)])
            until(lambda: calls.ended() == {0: GOES_ON, 1: DONE})
            executor.cancel(0)
            until(lambda: calls.ended()[0] == Outcome.DEAD.value)

    def test_known_ones_start_while_all_lanes_are_busy(self, calls: Calls) -> None:
        calls.does[0] = calls.wait
        calls.does[1] = calls.does[2] = lambda _: asyncio.sleep(0)
        with executing_with(calls) as executor:
            executor.run([job(0)])
            executor.run([job(1), job(2)], is_async=True)
            until(lambda: calls.ended() == {1: DONE, 2: DONE})
            assert all(one.is_async for reports in calls.reports for one in reports)


class TestSpeeds:
    def test_a_task_is_quick_after_some_quick_jobs(self) -> None:
        speeds = Speeds()
        for number in range(MIN_SEEN):
            found = speeds._tasks.get("a")
            assert found is None or not found.is_quick, number
            speeds.note("a", 0.0001, is_async=False)
        speed = speeds._tasks.get("a")
        assert speed and speed.is_quick
        for _ in range(5):
            speeds.note("a", 0.0001, is_async=False)
        speeds.note("a", 60, is_async=False)  # it may have waited for a processor
        assert speed.is_quick
        for _ in range(3):
            speeds.note("a", 0.1, is_async=False)
        assert not speed.is_quick

    def test_a_limited_number_of_tasks_is_remembered(self) -> None:
        speeds = Speeds()
        for number in range(MAX_TASKS + 1):
            speeds.note(str(number), 1, is_async=False)
        assert len(speeds._tasks) == 1
