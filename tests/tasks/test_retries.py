"""When a task that failed is attempted again: its backoff, exceptions that are not retried, and retry()."""

from __future__ import annotations

from typing import Any

import pytest
from pytest import LogCaptureFixture

from django_redis_messaging.tasks import Retry, retry, task
from django_redis_messaging.tasks.compat import InvalidTask, TaskResult, task_finished

from ..support.server import until
from ..support.workers import (
    FAILED,
    SUCCESSFUL,
    backend,
    burst,
    counts,
    ended,
    errors_of,
    receiving,
    run_to_end,
    state,
)
from . import jobs
from .conftest import Configure

pytestmark = [pytest.mark.one_server, pytest.mark.versions]

#: what functions of the tests were called with
asked: list[Any] = []


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    asked.clear()


def by_attempt(attempt: int, factor: int = 600) -> int:
    asked.append(attempt)
    return attempt * factor


def by_result(error: BaseException, result: TaskResult) -> int | None:
    asked.append((repr(error), result.id, result.attempts, result.status, len(result.errors)))
    return None if "give up" in str(error) else 900


def failing(attempt: int) -> float:
    raise LookupError("no table of delays")


def raise_error(text: str) -> None:
    raise ValueError(text)


@task(max_attempts=4)
def fail(text: str = "no") -> None:
    raise ValueError(text)


@task(max_attempts=4, backoff=by_attempt)
def fail_by_attempt() -> None:
    raise ValueError("no")


@task(max_attempts=4, backoff=by_result)
def fail_by_result(text: str) -> None:
    raise ValueError(text)


@task(max_attempts=4, backoff=failing)
def fail_by_failing_backoff() -> None:
    raise ValueError("no")


@task
def retry_after(delay: float | None, times: int = 100) -> str:
    """Retry a number of times; with handlers of exceptions around."""
    jobs.notes.append(delay)
    if len(jobs.notes) > times:
        return "done"
    try:
        try:
            raise_error("first")
        except ValueError:
            retry(delay)
    except Exception:
        return "swallowed"


@task
async def async_retry_after(delay: float | None, times: int = 100) -> str:
    return retry_after.func(delay, times)


@task(takes_context=True)
def retry_by_context(context: Any) -> int:
    if context.attempt < 3:
        context.retry(delay=0)
    return int(context.attempt)


def delay_of(result: TaskResult) -> int:
    """Run an attempt that is retried. The seconds from its start to the next, rounded down to hundreds."""
    burst()
    found = state(result)
    assert found.status == "waiting"
    return (found.moment - found.last) // 100_000 * 100


def delays(result: TaskResult, count: int) -> list[int]:
    """The delays after the first attempts."""
    found = []
    for _ in range(count):
        found.append(delay_of(result))
        assert result.reschedule(result.enqueued_at)
    assert result.cancel()
    return found


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "expected"),
        [(300, [300] * 3), (0.5, [0] * 3), ([100, 200], [100, 200, 200]), ((700,), [700] * 3)],
    )
    def test_numbers(self, backoff: Any, expected: list[int]) -> None:
        assert delays(fail.using(backoff=backoff).enqueue(), 3) == expected

    def test_function_of_the_attempt(self) -> None:
        assert delays(fail_by_attempt.enqueue(), 3) == [600, 1200, 1800]
        assert asked == [1, 2, 3]

    def test_function_of_the_exception_and_the_result(self) -> None:
        """The result is that of the attempt that failed."""
        result = fail_by_result.enqueue("no")
        assert delays(result, 1) == [900]
        assert asked == [("ValueError('no')", result.id, 1, FAILED, 1)]

    def test_none_gives_up(self) -> None:
        result = fail_by_result.enqueue("give up")
        burst()
        assert errors_of(result) == ["ValueError"]
        assert counts() == [0, 0, 0, 1]

    def test_a_function_that_fails_is_replaced_by_the_setting(self, caplog: LogCaptureFixture) -> None:
        assert delay_of(fail_by_failing_backoff.enqueue()) == 0
        assert "The backoff of tests.tasks.test_retries" in caplog.text

    def test_function_that_returns_no_seconds(self, caplog: LogCaptureFixture, configure: Configure) -> None:
        configure(BACKOFF=lambda attempt: -1)
        assert delay_of(fail.enqueue()) == 0
        assert "backoff must be" in caplog.text

    def test_default_of_the_backend(self, configure: Configure) -> None:
        configure(BACKOFF=[400, 500])
        assert delays(fail.enqueue(), 2) == [400, 500]
        assert delays(fail.using(backoff=600).enqueue(), 1) == [600]

    def test_it_is_stored_with_the_call(self) -> None:
        by_using, changed = fail.using(backoff=(1, 2)).enqueue(), fail_by_attempt.using(backoff=5).enqueue()
        own, unset = fail_by_attempt.enqueue(), fail_by_attempt.using(backoff=None).enqueue()
        found = [backend().get_result(one.id).task.backoff for one in (by_using, changed, own, unset)]
        assert found == [[1, 2], 5, by_attempt, None]

    def test_a_deploy_does_not_change_the_numbers_of_waiting_calls(self, monkeypatch: Any) -> None:
        old, function = fail.using(backoff=5).enqueue(), fail_by_attempt.enqueue()
        monkeypatch.setattr(f"{__name__}.fail", fail.using(backoff=7))
        monkeypatch.setattr(f"{__name__}.fail_by_attempt", fail_by_attempt.using(backoff=by_result))
        found = [backend().get_result(one.id).task.backoff for one in (old, function)]
        assert found == [5, by_result]
        monkeypatch.setattr(f"{__name__}.fail_by_attempt", fail_by_attempt.using(backoff=9))
        assert backend().get_result(function.id).task.backoff == 9

    def test_function_of_using_cannot_be_stored(self) -> None:
        with pytest.raises(InvalidTask, match=r"backoff of '.*fail' is a function given to using\(\)"):
            fail.using(backoff=by_attempt).enqueue()

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([], "backoff must be seconds, a sequence of them, or a function"),
            ("5", "backoff must be"),
            (-1, "backoff must be 0 s or more, not -1 s"),
            ([1, None], "backoff must be"),
            (lambda: 1, "backoff must take the number of the attempt, or the exception and the result"),
        ],
    )
    def test_invalid_values(self, value: Any, message: str) -> None:
        with pytest.raises(InvalidTask, match=message):
            fail.using(backoff=value)


class TestGiveUpOn:
    def test_these_exceptions_are_not_retried(self) -> None:
        among = jobs.retry_lookups.using(give_up_on=(KeyError,))
        results = [among.enqueue("KeyError"), jobs.retry_lookups.enqueue("KeyError")]
        burst()
        assert results[0].id != results[1].id
        assert counts() == [0, 1, 0, 1]
        assert errors_of(results[0]) == ["KeyError"]
        assert backend().get_result(results[0].id).task.give_up_on == (KeyError,)

    def test_without_retry_on(self) -> None:
        result = fail.using(give_up_on=(ValueError, KeyError)).enqueue()
        burst()
        assert errors_of(result) == ["ValueError"]

    def test_invalid_values(self) -> None:
        with pytest.raises(InvalidTask, match="give_up_on must be a tuple of exceptions"):
            fail.using(give_up_on=ValueError)


class TestRetry:
    @pytest.mark.parametrize("function", [retry_after, async_retry_after])
    def test_it_ends_the_attempt_and_makes_another(self, function: Any) -> None:
        """Though the task handles exceptions around it."""
        result = function.enqueue(0, 2)
        assert run_to_end(result) == [SUCCESSFUL]
        assert (result.attempts, result.return_value) == (3, "done")
        assert errors_of(result) == ["Retry", "Retry"]
        assert "ValueError: first" in result.errors[0].traceback

    def test_delay(self) -> None:
        assert delays(retry_after.enqueue(1000), 2) == [1000, 1000]
        assert delays(retry_after.using(backoff=(100, 200)).enqueue(None), 2) == [100, 200]

    def test_the_last_attempt_fails(self) -> None:
        finished: list[TaskResult] = []
        result = retry_after.using(max_attempts=2).enqueue(0)
        with receiving(task_finished, lambda task_result, **_: finished.append(task_result)):
            assert run_to_end(result) == [FAILED]
        assert errors_of(result) == ["Retry", "RetriesExhausted"]
        last = result.errors[-1].traceback
        assert "called retry() in the last of 2 attempts" in last and "ValueError: first" in last
        assert [one.id for one in finished] == [result.id]

    def test_without_max_attempts_that_of_the_backend_is_the_limit(self, configure: Configure) -> None:
        configure(MAX_ATTEMPTS=3)
        result = retry_after.enqueue(0)
        assert run_to_end(result) == [FAILED]
        assert result.attempts == 3

    def test_what_is_retried_does_not_matter(self) -> None:
        options = {"retry_on": (KeyError,), "give_up_on": (BaseException,)}
        result = retry_after.using(max_attempts=3, **options).enqueue(0, 1)
        assert run_to_end(result) == [SUCCESSFUL]

    def test_by_the_context(self) -> None:
        result = retry_by_context.enqueue()
        assert run_to_end(result) == [SUCCESSFUL]
        assert result.return_value == 3

    def test_outside_of_a_task_it_raises(self) -> None:
        with pytest.raises(Retry, match="called retry"):
            retry_after.call(5)
        with pytest.raises(ValueError, match="delay must be"):
            retry(-1)

    def test_its_lease_ends_at_once(self) -> None:
        """Another worker can make the next attempt."""
        result = retry_after.enqueue(0, 1)
        burst(max_tasks=1)
        until(lambda: counts() == [1, 0, 0, 0])
        burst()
        assert ended(result).status == SUCCESSFUL
