"""What comes after a task: its follow-up, enqueued once, together with the end of the task; and clients
that wait for the end."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging import Lock
from django_redis_messaging.errors import InvalidArgument
from django_redis_messaging.services.jobs.engine import FollowUp, LeasedJob, Outcome
from django_redis_messaging.tasks import RedisTask, await_for_result, chain, wait_for_result
from django_redis_messaging.tasks import backend as waiting
from django_redis_messaging.tasks.backend import prepare_follow_up
from django_redis_messaging.tasks.compat import InvalidTask, TaskResult, TaskResultDoesNotExist

from ..support.server import change, server, until
from ..support.workers import (
    FAILED,
    READY,
    SUCCESSFUL,
    backend,
    burst,
    counts,
    ended,
    engine,
    errors_of,
    keys,
    later,
    recording_signals,
    sent,
    state,
)
from . import jobs
from .conftest import Configure

pytestmark = pytest.mark.usefixtures("short_backoff")

#: ms: longer than any test
LONG = 1_000_000
#: seconds to wait for an end; waits for results last longer, so that they don't end by themselves
PATIENCE = 30.0
#: waits for a result in one of the two forms
Wait = Callable[..., Awaitable[TaskResult]]


def follow_up(result: TaskResult) -> TaskResult:
    """The result of the task `then`."""
    return backend().get_result(result.then_id)


def has_follow_up(result: TaskResult) -> bool:
    """Whether the task `then` was enqueued, to the same queue or to the other one."""
    try:
        follow_up(result)
    except TaskResultDoesNotExist:
        assert counts()[0] == counts("other")[0] == 0
        return False
    return True


@pytest.mark.versions
class TestFollowUp:
    def test_it_gets_the_return_value(self) -> None:
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
            ("started", result.id),
            ("finished", result.id),
            ("enqueued", following.id),
        ]
        burst()
        assert (jobs.notes, ended(following).status) == ([8], SUCCESSFUL)

    def test_chains_nest(self, caplog: LogCaptureFixture) -> None:
        last = jobs.aecho.using(then=jobs.note, queue_name="other")
        result = jobs.echo.using(then=jobs.double.using(then=last)).using(then=last).enqueue(1)
        burst()
        assert jobs.notes == [[[[[1], {}]], {}]]
        assert "refused" not in caplog.text
        second = follow_up(result)
        assert (second.task.queue_name, second.task.then) == ("other", jobs.note)
        assert follow_up(second).status == SUCCESSFUL
        assert follow_up(second).then_id is None

    def test_using_replaces_and_removes_it(self) -> None:
        options = {"queue_name": "other", "priority": 7, "max_attempts": 2, "timeout": 5, "result_ttl": 1000}
        then = jobs.echo.using(retry_on=(LookupError,), **options)
        none, other = jobs.double.using(then=None).enqueue(1), jobs.double.using(then=then).enqueue(2)
        assert none.then_id is None
        assert backend().get_result(none.id).task.then is None
        assert backend().get_result(other.id).task.then == then
        burst("default")
        assert follow_up(other).task == then
        assert state(follow_up(other)).max_attempts == 2
        assert counts("other") == [1, 0, 0, 0]
        burst()
        assert (jobs.notes, follow_up(other).return_value) == ([], [[4], {}])

    def test_it_waits_for_its_lock(self) -> None:
        with Lock("order:8", timeout=60):
            by_decorator = jobs.double.using(then=jobs.locked_note).enqueue(4)
            by_using = jobs.echo.using(then=jobs.note.using(lock="order:8")).enqueue()
            burst()
            assert jobs.notes == []
            assert [follow_up(one).status for one in (by_decorator, by_using)] == [READY, READY]

    def test_it_takes_the_context(self) -> None:
        result = jobs.double.using(then=jobs.describe_context, result_ttl=0).enqueue(4)
        burst()  # its result is not kept, but that of its follow-up
        assert follow_up(result).return_value[:2] == [result.then_id, 1]
        assert follow_up(result).return_value[4:] == [8, "all"]

    def test_unique_keys(self) -> None:
        """The id of the follow-up stands for the call that has the key."""
        holder = jobs.unique_note.using(queue_name="other").enqueue(8)
        same, other = (jobs.double.using(then=jobs.unique_note).enqueue(number) for number in (4, 5))
        by_using = jobs.double.using(then=jobs.note.using(unique="all", queue_name="other"))
        first, second = by_using.enqueue(1), by_using.enqueue(2)
        alone = jobs.double.using(unique="one at a time", max_attempts=3, then=None)
        released = alone.using(then=alone).enqueue(1)  # for the next one
        burst("default")
        assert follow_up(same).id == holder.id
        assert follow_up(other).id == other.then_id
        assert follow_up(second).id == follow_up(first).id
        assert (jobs.notes, counts("other")) == ([10], [2, 0, 0, 0])
        assert (follow_up(released).id, follow_up(released).return_value) == (released.then_id, 4)

    def test_full_queue_loses_none(self, settings: Settings) -> None:
        result = jobs.double.enqueue(4)
        jobs.note.using(queue_name="other").enqueue("waits")
        change(settings, JOB_MAX_WAITING=1)
        burst("default", max_tasks=1)
        assert follow_up(result).status == READY

    @pytest.mark.usefixtures("any_queue")
    def test_its_queue_is_registered(self) -> None:
        jobs.double.using(then=jobs.note.using(queue_name="any")).enqueue(4)
        burst("default")
        assert "any" in backend().serving()

    def test_it_comes_after_what_became_due_before(self) -> None:
        result = jobs.double.using(then=jobs.note.using(queue_name="other")).enqueue(4)
        soon = later(0.001)
        delayed = jobs.note.using(queue_name="other", run_after=soon).enqueue("due")
        until(lambda: timezone.now() > soon)
        burst("default")
        burst("other")
        assert jobs.notes == ["due", 8]
        assert ended(delayed).status == ended(result).status == SUCCESSFUL

    def test_nothing_follows_a_failure_or_a_cancellation(self) -> None:
        """But the attempt that succeeds."""
        failed = jobs.fail.using(then=jobs.note).enqueue()
        cancelled = jobs.echo.using(then=jobs.note).enqueue()
        assert cancelled.cancel()
        burst()
        assert ended(failed).status == ended(cancelled).status == FAILED
        assert not has_follow_up(failed)
        assert not has_follow_up(cancelled)
        retried = jobs.succeed_on_third_attempt.using(then=jobs.note).enqueue()
        until(lambda: burst() and jobs.notes)
        assert (jobs.notes, ended(retried).attempts) == ([3], 3)

    @pytest.mark.parametrize(
        ("first", "then", "error"),
        [
            # no attribute of an int
            (jobs.double, jobs.note.using(lock="{value.name}"), "InvalidArgument"),
            # the arguments are larger than the return value
            (jobs.return_large, jobs.note, "LimitExceeded"),
        ],
    )
    def test_return_value_that_does_not_fit_it_fails_the_task(
        self, first: RedisTask, then: RedisTask, error: str, settings: Settings
    ) -> None:
        change(settings, JOB_MAX_BYTES=200)
        result = first.using(then=then).enqueue(190)
        burst()
        assert errors_of(result) == [error]
        assert result.status == FAILED
        assert not has_follow_up(result)

    def test_task_with_an_unknown_one_is_not_started(self, monkeypatch: MonkeyPatch) -> None:
        """As during a rolling deploy, by a worker with the earlier code."""
        result = jobs.echo.using(then=jobs.double).enqueue(4)
        with monkeypatch.context() as earlier:
            earlier.delattr(jobs, "double")
            assert burst().done == 0
        assert (state(result).attempts, counts()) == (0, [0, 1, 0, 0])

    def settle(self, leased: LeasedJob) -> int | None:
        """Settle as a worker with this lease does."""
        prepared = prepare_follow_up(backend(), backend().get_result(leased.lease.id), "value")
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
        assert self.settle(first) == 0
        assert not has_follow_up(result)
        moment = self.settle(second)
        assert moment == state(result).moment
        assert counts("other") == [1, 0, 0, 0]
        assert self.settle(first) == 0
        assert self.settle(second) == moment, "a repeat gets the first answer"
        assert counts("other") == [1, 0, 0, 0]

    def test_worker_that_was_too_slow_enqueues_nothing(self, caplog: LogCaptureFixture) -> None:
        result = jobs.purge_queue.using(then=jobs.note).enqueue()
        with recording_signals() as signals:
            burst()
        assert not has_follow_up(result)
        assert "its lease was lost; refused" in caplog.text
        assert [one.name for one in signals] == ["started", "finished"]

    def test_tasks_that_can_not_follow(self) -> None:
        takes_one = r"then must take the return value as its first argument, and those of with_args\(\): "
        invalid: list[tuple[Any, str]] = [
            ("note", "then must be a task of a RedisBackend, not str"),
            (jobs.note.using(run_after=timezone.now()), "then must have no run_after"),
            (jobs.noop, takes_one + "too many positional arguments"),
            (jobs.enter, takes_one + "missing a required argument: 'number'"),
        ]
        for then, message in invalid:
            with pytest.raises(InvalidTask, match=message):
                jobs.echo.using(then=then)
        named: dict[str, Any] = {"unique": lambda value: value}
        with pytest.raises(InvalidTask, match=r"unique of 'tests\.tasks\.jobs\.note' in then is a function"):
            jobs.echo.using(then=jobs.note.using(**named)).enqueue()

    def test_it_has_the_same_backend(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "second": settings.TASKS["default"]}
        with pytest.raises(InvalidTask, match="same backend, 'second', not of 'default'"):
            jobs.double.using(backend="second")
        then = jobs.note.using(backend="second")
        result = jobs.double.using(backend="second", then=then).enqueue(4)
        assert result.task.get_backend().get_result(result.id).task.then == then


@pytest.mark.versions
class TestChains:
    def test_further_arguments_are_behind_the_return_value(self) -> None:
        then = jobs.echo.with_args(2, (3,), key={"a": 1})
        result = jobs.double.using(then=then).enqueue(4)
        stored = backend().get_result(result.id).task.then
        assert (stored.args, stored.kwargs, stored.task) == ([2, [3]], {"key": {"a": 1}}, jobs.echo)
        burst()
        assert follow_up(result).return_value == [[8, 2, [3]], {"key": {"a": 1}}]

    def test_chain(self) -> None:
        last = jobs.echo.using(queue_name="other").with_args("last", to="end")
        result = chain(jobs.double, jobs.multiply.with_args(10), jobs.double, last).enqueue(1)
        burst()
        assert len(result.then_ids) == 3
        found = [backend().get_result(one) for one in result.then_ids]
        assert [one.return_value for one in found] == [20, 40, [[40, "last"], {"to": "end"}]]
        assert result.then_ids[0] == result.then_id
        assert found[0].then_ids == result.then_ids[1:]
        assert found[-1].task.queue_name == "other"
        assert found[-1].then_ids == []

    def test_the_tasks_of_a_chain_keep_their_options(self) -> None:
        """Its last one keeps its own follow-up."""
        step = jobs.multiply.using(priority=7, delay=1000, max_attempts=2).with_args(3)
        result = chain(jobs.echo.using(timeout=5), step, jobs.double).enqueue()
        assert chain(jobs.double) is jobs.double
        task = backend().get_result(result.id).task
        assert (task.timeout, task.then.task.priority, task.then.task.max_attempts) == (5, 7, 2)
        assert task.then.task.then == jobs.double
        assert task.then.task.then.then == jobs.note

    def test_a_failure_ends_it(self) -> None:
        result = chain(jobs.echo, jobs.fail.using(then=None), jobs.note).enqueue()
        burst()
        assert (follow_up(result).status, jobs.notes) == (FAILED, [])
        assert not has_follow_up(follow_up(result))

    def test_locks_and_keys_of_all_arguments(self) -> None:
        locked = jobs.multiply.using(lock="product:{by}", unique=True).with_args(by=10)
        results = [jobs.double.using(then=locked).enqueue(number) for number in (1, 1, 2)]
        with Lock("product:10", timeout=60):
            burst()
            assert [follow_up(one).status for one in results] == [READY] * 3
        assert len({follow_up(one).id for one in results}) == 2

    def test_arguments_that_are_not_json(self) -> None:
        with pytest.raises(TypeError):
            jobs.echo.with_args(object())
        with pytest.raises(InvalidTask, match="then must take the return value"):
            chain(jobs.double, jobs.noop)


@contextmanager
def waiters(*results: TaskResult) -> Iterator[list[Future[TaskResult]]]:
    """Wait for results in threads; the block begins when all of them are awaited."""
    with ThreadPoolExecutor(len(results)) as pool:
        futures = [pool.submit(wait_for_result, result, 2 * PATIENCE) for result in results]
        until(lambda: all(state(result).awaited for result in results))
        yield futures


class TestWaiting:
    @pytest.fixture(autouse=True)
    def without_polls(self, monkeypatch: MonkeyPatch) -> None:
        """Only a wake-up ends a wait."""
        monkeypatch.setattr(waiting, "POLL_INTERVAL", 10 * PATIENCE)

    @pytest.fixture
    def wait(self, call_style: str, closing: None) -> Wait:
        """wait_for_result, in the form of `call_style`."""

        async def do(result: TaskResult, *args: Any) -> TaskResult:
            if call_style == "awaiting":
                return await await_for_result(result, *args)
            return await asyncio.to_thread(wait_for_result, result, *args)

        return do

    async def test_returns_the_refreshed_result_of_a_task_that_ends(
        self, server_kind: str, wait: Wait
    ) -> None:
        result = jobs.echo.enqueue(1)
        waiting = asyncio.ensure_future(wait(result, 2 * PATIENCE))
        await asyncio.to_thread(until, lambda: state(result).awaited)
        assert result.status == READY
        await asyncio.to_thread(burst)
        assert await waiting is result
        assert (result.status, result.return_value) == (SUCCESSFUL, [[1], {}])

    async def test_returns_at_once_if_the_task_has_ended(self, wait: Wait) -> None:
        done, failed, cancelled = jobs.echo.enqueue(), jobs.fail.enqueue(), jobs.echo.enqueue()
        assert cancelled.cancel()
        await asyncio.to_thread(burst)
        found = [(await wait(one, 0)).status for one in (done, failed, cancelled)]
        assert found == [SUCCESSFUL, FAILED, FAILED]
        assert errors_of(failed) + errors_of(cancelled) == ["ValueError", "TaskCancelled"]
        assert not list(server().scan_iter(match=f"{keys().tag}:ended:*"))

    @pytest.mark.parametrize("seconds", [0, 0.02, timedelta(milliseconds=20)])
    async def test_timeout_refreshes_the_result_and_raises(self, seconds: Any, wait: Wait) -> None:
        result = jobs.echo.using(run_after=later()).enqueue()
        moment = later(7200)
        assert backend().get_result(result.id).reschedule(moment)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"Task {result.id} has not ended within 0.*READY"):
            await wait(result, seconds)
        assert time.monotonic() - began >= (0.02 if seconds else 0)
        assert result.task.run_after == moment

    @pytest.mark.parametrize("end", ["fail", "cancel", "lose"])
    def test_each_end_wakes(self, end: str) -> None:
        """But no retry."""
        called = jobs.fail.using(max_attempts=3) if end == "fail" else jobs.echo.using(max_attempts=1)
        result = called.enqueue()
        with waiters(result) as [future]:
            if end == "fail":
                until(lambda: burst() and future.done())
                assert result.attempts == 3
            elif end == "cancel":
                assert backend().get_result(result.id).cancel()
            else:
                engine().claim(["default"], 1, 1)
                until(lambda: engine().sweep(["default"]) is None)
            assert future.result(PATIENCE).status == FAILED
        assert not state(result).awaited
        assert 0 < server().pttl(keys().ended(result.id)) <= 10_000

    @pytest.mark.parametrize("end", ["purge", "no result"])
    def test_result_that_disappears_raises(self, end: str, configure: Configure) -> None:
        if end == "no result":
            configure(RESULT_TTL=0)
        result = jobs.echo.enqueue()
        with waiters(result) as [future]:
            if end == "purge":
                engine().purge("default")
            else:
                burst()
            with pytest.raises(TaskResultDoesNotExist, match=result.id):
                future.result(PATIENCE)

    def test_redriven_task_is_awaited_anew(self) -> None:
        result = jobs.fail.enqueue()
        with waiters(result) as [future]:
            burst()
            assert future.result(PATIENCE).status == FAILED
        engine().redrive("default", None)
        assert not state(result).awaited
        with waiters(result) as [future]:
            before = sent(server())
            with pytest.raises(TimeoutError):
                wait_for_result(result, 0.05)
            assert sent(server()) - before < 10, "the first end wakes nobody"
            burst()
            assert len(future.result(PATIENCE).errors) == 2

    @pytest.mark.django_db
    def test_alias_waits_for_the_task_with_its_unique_key(
        self, django_capture_on_commit_callbacks: Callable[..., Any]
    ) -> None:
        winner = jobs.unique_echo.enqueue("same")
        with django_capture_on_commit_callbacks(execute=True):
            unsent = jobs.unique_echo.using(on_commit=True).enqueue("same")
            loser = replace(unsent)
        assert winner.id == unsent.id != loser.id
        with waiters(winner, loser) as futures:
            burst()
            assert [one.result(PATIENCE).return_value for one in futures] == [[["same"], {}]] * 2

    @pytest.mark.django_db
    def test_unknown_results_and_invalid_arguments_raise(self) -> None:
        result = jobs.echo.enqueue()
        with transaction.atomic():
            unsent = jobs.echo.using(on_commit=True).enqueue()
            with pytest.raises(TaskResultDoesNotExist, match=unsent.id):
                wait_for_result(unsent, 1)
        with pytest.raises(InvalidArgument, match="timeout must be 0 s or more, not -1 s"):
            wait_for_result(result, -1)
        with pytest.raises(TypeError, match="timeout must be seconds or a timedelta, not str"):
            wait_for_result(result, "1")
        with pytest.raises(TypeError, match="result must be the result of a task of a RedisBackend, not str"):
            wait_for_result(result.id)

    @pytest.mark.timing
    def test_wake_up_takes_about_a_millisecond(self) -> None:
        delays = []
        for _ in range(20):
            result = jobs.echo.enqueue()
            with waiters(result) as [future]:
                until(lambda: server().info("clients")["blocked_clients"])
                cancelled = backend().get_result(result.id)
                woken: list[float] = []
                future.add_done_callback(lambda _, woken=woken: woken.append(time.perf_counter()))
                began = time.perf_counter()
                assert cancelled.cancel()
                future.result(PATIENCE)
                until(lambda woken=woken: woken)
                delays.append(woken[0] - began)
        assert statistics.median(delays) < 0.01

    @pytest.mark.promise
    def test_cut_connections_are_replaced(self) -> None:
        result = jobs.echo.enqueue()
        with waiters(result) as [future]:
            until(lambda: server().info("clients")["blocked_clients"])
            server().client_kill_filter(_type="normal", skipme=True)
            burst()
            assert future.result(PATIENCE).status == SUCCESSFUL

    @pytest.mark.promise
    def test_waiting_client_polls(self, monkeypatch: MonkeyPatch) -> None:
        """As after a failover to a replica that does not know yet that a client waits."""
        monkeypatch.setattr(waiting, "POLL_INTERVAL", 0.05)
        result = jobs.echo.enqueue()
        with waiters(result) as [future]:
            unawaited = server().hget(keys().states, result.id).replace(b" awaited=1", b"")
            server().hset(keys().states, result.id, unawaited)
            until(lambda: state(result).awaited)
            server().hset(keys().states, result.id, unawaited)
            burst()
            assert future.result(PATIENCE).status == SUCCESSFUL
