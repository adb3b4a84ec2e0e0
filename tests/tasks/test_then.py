"""Follow-ups: the task `then` is enqueued once, with its options, together with the end of the task before
it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging import Lock
from django_redis_messaging.services.jobs.engine import FollowUp, LeasedJob, Outcome
from django_redis_messaging.tasks import RedisTask
from django_redis_messaging.tasks.backend import prepare_follow_up
from django_redis_messaging.tasks.compat import (
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)

from ..support.workers import backend, burst, ended, engine, state, until
from . import jobs
from .conformance import recording_signals
from .test_worker import counts, reset_jobs

__all__ = ["reset_jobs"]

READY, SUCCESSFUL, FAILED = TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
#: ms: longer than any test
LONG = 1_000_000


@pytest.fixture(autouse=True)
def short_backoff(messaging_alias: str, settings: Settings) -> None:
    """Retry after a short pause."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 0.002}


def follow_up(result: TaskResult) -> TaskResult:
    """The result of the task `then`."""
    return backend().get_result(result.then_id)  # type: ignore[attr-defined]


def has_follow_up(result: TaskResult) -> bool:
    """Whether the task `then` was enqueued, to the same queue or to the other one."""
    try:
        follow_up(result)
    except TaskResultDoesNotExist:
        assert counts()[0] == counts("other")[0] == 0
        return False
    return True


@pytest.mark.versions
class TestSuccess:
    def test_follow_up_gets_the_return_value(self) -> None:
        result = jobs.double.enqueue(4)
        with recording_signals() as signals:
            burst(max_tasks=1)
        result.refresh()
        following = follow_up(result)
        assert (result.status, result.return_value) == (SUCCESSFUL, 8)
        assert (following.status, following.args, following.kwargs) == (READY, [8], {})
        assert following.task == jobs.note
        assert following.enqueued_at == result.finished_at
        assert [(one.name, one.id) for one in signals] == [
            ("started", result.id), ("finished", result.id), ("enqueued", following.id),
        ]  # fmt: skip
        burst()
        assert (jobs.notes, ended(following).status) == ([8], SUCCESSFUL)

    def test_chains_nest(self, caplog: pytest.LogCaptureFixture) -> None:
        last = jobs.aecho.using(then=jobs.note, queue_name="other")
        result = jobs.echo.using(then=jobs.double.using(then=last)).using(then=last).enqueue(1)
        burst()
        assert jobs.notes == [[[[[1], {}]], {}]]
        assert "refused" not in caplog.text
        second = follow_up(result)
        assert (second.task.queue_name, second.task.then) == ("other", jobs.note)
        assert follow_up(second).status == SUCCESSFUL
        assert follow_up(second).then_id is None  # type: ignore[attr-defined]

    def test_using_replaces_and_removes_the_follow_up(self) -> None:
        none, other = jobs.double.using(then=None).enqueue(1), jobs.double.using(then=jobs.echo).enqueue(2)
        assert none.then_id is None  # type: ignore[attr-defined]
        assert backend().get_result(none.id).task.then is None
        assert backend().get_result(other.id).task.then == jobs.echo
        burst()
        assert (jobs.notes, follow_up(other).return_value) == ([], [[4], {}])

    def test_follow_up_keeps_its_options(self) -> None:
        options = {"queue_name": "other", "priority": 7, "max_attempts": 2, "timeout": 5, "result_ttl": 1000}
        then = jobs.echo.using(retry_on=(LookupError,), **options)
        result = jobs.echo.using(then=then).enqueue()
        assert backend().get_result(result.id).task.then == then
        burst("default")
        assert follow_up(result).task == then
        assert state(follow_up(result)).max_attempts == 2
        assert counts("other") == [1, 0, 0, 0]

    def test_follow_up_waits_for_its_lock(self) -> None:
        with Lock("order:8", timeout=60):
            by_decorator = jobs.double.using(then=jobs.locked_note).enqueue(4)
            by_using = jobs.echo.using(then=jobs.note.using(lock="order:8")).enqueue()
            burst()
            assert jobs.notes == []
            assert [follow_up(one).status for one in (by_decorator, by_using)] == [READY, READY]

    def test_follow_up_takes_the_context(self) -> None:
        result = jobs.double.using(then=jobs.describe_context).enqueue(4)
        burst()
        assert follow_up(result).return_value[:2] == [result.then_id, 1]  # type: ignore[attr-defined]
        assert follow_up(result).return_value[4:] == [8, "all"]

    def test_unique_key_in_use(self) -> None:
        """The id of the follow-up stands for the call that has the key."""
        holder = jobs.unique_note.using(queue_name="other").enqueue(8)
        same, other = (jobs.double.using(then=jobs.unique_note).enqueue(number) for number in (4, 5))
        burst("default")
        assert follow_up(same).id == holder.id
        assert follow_up(other).id == other.then_id  # type: ignore[attr-defined]
        assert jobs.notes == [10]

    def test_unique_key_given_by_using(self) -> None:
        first, second = (
            jobs.double.using(then=jobs.note.using(unique="all", queue_name="other")).enqueue(number)
            for number in (1, 2)
        )
        burst("default")
        assert follow_up(second).id == follow_up(first).id
        assert counts("other") == [1, 0, 0, 0]

    def test_first_task_releases_its_unique_key_for_the_next(self) -> None:
        result = jobs.unique_double.using(then=jobs.unique_double).enqueue(1)
        burst()
        assert (follow_up(result).id, follow_up(result).return_value) == (result.then_id, 4)  # type: ignore[attr-defined]

    def test_full_queue_loses_no_follow_up(self, settings: Settings) -> None:
        result = jobs.double.enqueue(4)
        jobs.note.using(queue_name="other").enqueue("waits")
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_WAITING": 1}
        burst("default", max_tasks=1)
        assert follow_up(result).status == READY

    def test_follow_up_comes_after_what_became_due_before(self) -> None:
        result = jobs.double.using(then=jobs.note.using(queue_name="other")).enqueue(4)
        soon = timezone.now() + timedelta(milliseconds=1)
        delayed = jobs.note.using(queue_name="other", run_after=soon).enqueue("due")
        until(lambda: timezone.now() > soon)
        burst("default")
        burst("other")
        assert (jobs.notes, ended(delayed).status, ended(result).status) == (
            ["due", 8],
            SUCCESSFUL,
            SUCCESSFUL,
        )

    def test_queue_of_the_follow_up_is_registered(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
        jobs.double.using(then=jobs.note.using(queue_name="any")).enqueue(4)
        burst("default")
        assert "any" in backend().serving()

    def test_result_that_is_not_kept_has_a_follow_up(self) -> None:
        result = jobs.double.using(result_ttl=0).enqueue(4)
        burst()
        assert (jobs.notes, follow_up(result).args) == ([8], [8])


class TestFailure:
    def test_nothing_follows_a_failure_or_a_cancellation(self) -> None:
        failed = jobs.fail.using(then=jobs.note).enqueue()
        cancelled = jobs.echo.using(then=jobs.note).enqueue()
        assert cancelled.cancel()  # type: ignore[attr-defined]
        burst()
        assert ended(failed).status == ended(cancelled).status == FAILED
        assert not has_follow_up(failed)
        assert not has_follow_up(cancelled)

    def test_follow_up_is_enqueued_after_the_attempt_that_succeeds(self) -> None:
        result = jobs.succeed_on_third_attempt.using(then=jobs.note).enqueue()
        until(lambda: burst() and jobs.notes)
        assert (jobs.notes, ended(result).attempts) == ([3], 3)

    @pytest.mark.parametrize(
        ("first", "then", "error"),
        [
            # no attribute of an int
            (jobs.double, jobs.note.using(lock="{value.name}"), "InvalidArgument"),
            # the arguments are larger than the return value
            (jobs.return_large, jobs.note, "LimitExceeded"),
        ],
    )
    def test_return_value_that_does_not_fit_the_follow_up_fails_the_task(
        self, first: RedisTask, then: RedisTask, error: str, settings: Settings
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_BYTES": 200}
        result = first.using(then=then).enqueue(190)
        burst()
        assert ended(result).status == FAILED
        assert [one.exception_class.__name__ for one in result.errors] == [error]
        assert not has_follow_up(result)

    def test_task_with_an_unknown_follow_up_is_not_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As during a rolling deploy, by a worker with the earlier code."""
        result = jobs.echo.using(then=jobs.double).enqueue(4)
        with monkeypatch.context() as earlier:
            earlier.delattr(jobs, "double")
            assert burst().done == 0
        assert (state(result).attempts, counts()) == (0, [0, 1, 0, 0])


class TestOnce:
    def settle(self, leased: LeasedJob) -> int | None:
        """Settle as a worker with this lease does."""
        result = backend().get_result(leased.lease.id)
        prepared = prepare_follow_up(backend(), result, "value")
        assert isinstance(prepared, FollowUp)
        settlement = leased.lease.settlement(Outcome.DONE, 60_000, 'R"value"')
        moment: int | None = engine().settle_and_push(settlement, prepared)
        return moment

    def test_stale_lease_enqueues_nothing(self) -> None:
        result = jobs.echo.using(then=jobs.note.using(queue_name="other")).enqueue()
        [first] = engine().claim(["default"], 1, 1).jobs
        until(lambda: engine().sweep(["default"]) is None)
        assert self.settle(first) == 0
        [second] = engine().claim(["default"], 1, LONG).jobs
        assert engine().start_lone(second.lease, "worker")
        assert self.settle(first) == 0
        assert not has_follow_up(result)
        moment = self.settle(second)
        assert moment == state(result).moment
        assert counts("other") == [1, 0, 0, 0]
        assert self.settle(first) == 0
        assert self.settle(second) == moment, "a repeat gets the first answer"
        assert counts("other") == [1, 0, 0, 0]

    def test_worker_that_was_too_slow_enqueues_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        result = jobs.purge_queue.using(then=jobs.note).enqueue()
        with recording_signals() as signals:
            burst()
        assert not has_follow_up(result)
        assert "its lease was lost; refused" in caplog.text
        assert [one.name for one in signals] == ["started", "finished"]


@pytest.mark.versions
class TestValidation:
    def test_tasks_that_can_not_follow(self) -> None:
        later = jobs.note.using(run_after=timezone.now())
        takes_one = "then must take one argument, the return value: "
        for then, message in {
            "note": "then must be a task of a RedisBackend, not str",
            later: "then must have no run_after",
            jobs.noop: takes_one + "too many positional arguments",
            jobs.enter: takes_one + "missing a required argument: 'number'",
        }.items():
            with pytest.raises(InvalidTask, match=message):
                jobs.echo.using(then=then)

    def test_follow_up_has_the_same_backend(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "second": settings.TASKS["default"]}
        with pytest.raises(InvalidTask, match="same backend, 'second', not of 'default'"):
            jobs.double.using(backend="second")
        then = jobs.note.using(backend="second")
        result = jobs.double.using(backend="second", then=then).enqueue(4)
        assert result.task.get_backend().get_result(result.id).task.then == then

    def test_function_of_using_can_not_be_stored(self) -> None:
        named: dict[str, Any] = {"unique": lambda value: value}
        with pytest.raises(InvalidTask, match=r"unique of 'tests\.tasks\.jobs\.note' in then is a function"):
            jobs.echo.using(then=jobs.note.using(**named)).enqueue()
