"""The contract that Django documents for task backends, as tests that any backend can inherit.

class TestOurs(Queued):
    alias = "default"
    work = staticmethod(run_enqueued_tasks)
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, NamedTuple

import pytest
from django.utils import timezone

from django_redis_messaging.tasks import task as as_task
from django_redis_messaging.tasks.compat import (
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)

from . import jobs

TaskResultMismatch = import_module(TaskResultDoesNotExist.__module__).TaskResultMismatch
READY, RUNNING, SUCCESSFUL, FAILED = (
    TaskResultStatus.READY,
    TaskResultStatus.RUNNING,
    TaskResultStatus.SUCCESSFUL,
    TaskResultStatus.FAILED,
)
SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


class ReceivedSignal(NamedTuple):
    """A signal, with the state of its result at the time it was sent."""

    name: str
    sender: type
    id: str
    status: str
    attempts: int
    #: the exception being handled at the time
    error: BaseException | None
    #: the result that the backend stored at the time, if the backend stores results
    stored: TaskResult | None


@contextmanager
def recording_signals(store: Any = None) -> Iterator[list[ReceivedSignal]]:
    """Record all signals that are sent in the block."""
    signals: list[ReceivedSignal] = []

    def receiver_of(name: str) -> Callable[..., None]:
        def receive(sender: type, task_result: TaskResult, **_: object) -> None:
            stored = store.get_result(task_result.id) if store is not None else None
            fields = task_result.id, str(task_result.status), task_result.attempts
            signals.append(ReceivedSignal(name, sender, *fields, sys.exc_info()[1], stored))

        return receive

    receivers = {name: receiver_of(name) for name in SIGNALS}
    for name, receiver in receivers.items():
        SIGNALS[name].connect(receiver)
    try:
        yield signals
    finally:
        for name, receiver in receivers.items():
            SIGNALS[name].disconnect(receiver)


@contextmanager
def supported_only_if(supported: bool, error: type[Exception] = InvalidTask) -> Iterator[None]:
    """Expect success if the feature is supported and `error` otherwise."""
    if supported:
        yield
    else:
        with pytest.raises(error):
            yield


class Conformance:
    """For backends that may run tasks at any time, for example immediately."""

    alias = "default"
    #: runs the tasks that are enqueued and due
    work: Callable[[], object]

    @property
    def backend(self) -> Any:
        return task_backends[self.alias]

    def of(self, task: Any, **changes: Any) -> Any:
        """The task bound to the backend under test."""
        return task.using(backend=self.alias, **changes)

    def refreshed(self, result: TaskResult) -> TaskResult:
        """Run the worker and return the refreshed result."""
        self.work()
        if self.backend.supports_get_result:
            result.refresh()
        return result

    def run(self, task: Any, *args: Any, **kwargs: Any) -> TaskResult:
        return self.refreshed(self.of(task).enqueue(*args, **kwargs))

    @pytest.mark.parametrize("task", [jobs.echo, jobs.aecho])
    def test_enqueued_task_runs_once_and_stores_its_result(self, task: Any) -> None:
        result = self.run(task, 1, two=[2])
        assert (result.status, result.is_finished, result.errors) == (SUCCESSFUL, True, [])
        assert result.return_value == [[1], {"two": [2]}]
        assert (result.args, result.kwargs, result.backend) == ([1], {"two": [2]}, self.alias)
        assert result.task.func is task.func
        [worker] = result.worker_ids
        assert isinstance(worker, str) and 0 < len(worker) <= 64
        assert result.attempts == 1

    @pytest.mark.parametrize("task", [jobs.echo, jobs.aecho])
    async def test_task_enqueued_asynchronously_runs(self, task: Any) -> None:
        result = await self.of(task).aenqueue(1, two=[2])
        await asyncio.to_thread(self.work)
        if self.backend.supports_get_result:
            await result.arefresh()
        assert (result.status, result.return_value) == (SUCCESSFUL, [[1], {"two": [2]}])

    @pytest.mark.parametrize("task", [jobs.noop, jobs.fail])
    def test_timestamps_are_in_order(self, task: Any) -> None:
        result = self.run(task)
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
        assert abs(timezone.now() - result.finished_at) < timedelta(minutes=1)

    def test_ids_are_unique_and_short(self) -> None:
        ids = [self.of(jobs.noop).enqueue().id for _ in range(20)]
        assert len(set(ids)) == 20
        assert all(isinstance(each, str) and len(each) <= 64 for each in ids)

    @pytest.mark.parametrize(
        ("task", "kind", "end"),
        [
            (jobs.fail, ValueError, "ValueError: no\n"),
            (jobs.raise_system_exit, SystemExit, "SystemExit: bye\n"),
            (jobs.async_raise_system_exit, SystemExit, "SystemExit: bye\n"),
        ],
    )
    def test_exception_is_stored_as_error(self, task: Any, kind: type, end: str) -> None:
        result = self.run(task)
        assert (result.status, result.is_finished) == (FAILED, True)
        [error] = result.errors
        assert error.exception_class is kind
        assert error.traceback.startswith("Traceback") and error.traceback.endswith(end)
        assert f"in {task.func.__name__}" in error.traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value

    def test_error_with_nested_exception_is_stored(self) -> None:
        [error] = self.run(jobs.fail_twofold).errors
        assert 'ValueError(ValueError("inside"))' in error.traceback

    def test_unserializable_return_value_fails_the_task(self) -> None:
        result = self.run(jobs.return_object)
        assert result.status == FAILED
        [error] = result.errors
        assert error.exception_class is TypeError
        assert "Unsupported type" in error.traceback

    def test_return_value_is_normalized_by_json(self) -> None:
        assert self.run(jobs.return_tuple).return_value == [1, {"inner": ["bytes", []]}]

    def test_missing_return_value_is_none(self) -> None:
        assert self.run(jobs.noop).return_value is None

    def test_arguments_are_normalized_by_json(self) -> None:
        result = self.of(jobs.echo).enqueue((1, b"b"), key=("x",))
        assert (result.args, result.kwargs) == ([[1, "b"]], {"key": ["x"]})
        assert self.refreshed(result).return_value == [[[1, "b"]], {"key": ["x"]}]

    async def test_unserializable_arguments_are_rejected(self) -> None:
        with recording_signals() as signals:
            with pytest.raises(TypeError, match="Unsupported type"):
                await self.of(jobs.echo).aenqueue(datetime.now(UTC))
            with pytest.raises(TypeError, match="Unsupported type"):
                await asyncio.to_thread(self.of(jobs.echo).enqueue, key=object())
        assert signals == []

    def test_signals_are_sent_on_success(self) -> None:
        with recording_signals() as signals:
            result = self.run(jobs.noop)
        assert [each[:5] for each in signals if each.name != "enqueued"] == [
            ("started", type(self.backend), result.id, RUNNING, 1),
            ("finished", type(self.backend), result.id, SUCCESSFUL, 1),
        ]
        assert [each[:3] for each in signals][:1] == [("enqueued", type(self.backend), result.id)]
        assert [each.error for each in signals] == [None, None, None]

    def test_finished_signal_is_sent_while_the_error_is_handled(self) -> None:
        with recording_signals() as signals:
            self.run(jobs.fail, "loud")
        assert [each.name for each in signals] == ["enqueued", "started", "finished"]
        assert [each.error for each in signals][:2] == [None, None]
        last = signals[-1]
        assert (last.sender, last.status) == (type(self.backend), FAILED)
        assert isinstance(last.error, ValueError) and str(last.error) == "loud"

    async def test_signals_are_sent_when_enqueueing_asynchronously(self) -> None:
        with recording_signals() as signals:
            result = await self.of(jobs.noop).aenqueue()
        assert signals[0][:3] == ("enqueued", type(self.backend), result.id)

    def test_context_is_passed_to_task(self) -> None:
        result = self.run(jobs.describe_context, "hello", to="you")
        assert result.return_value == [result.id, 1, RUNNING, result.worker_ids, "hello", "you"]

    def test_context_parameter_must_be_named_context(self) -> None:
        with pytest.raises(InvalidTask, match="first argument of 'context'"):
            as_task(backend=self.alias, takes_context=True)(jobs.take_no_context)

    def test_only_module_level_functions_can_be_tasks(self) -> None:
        def nested() -> None: ...

        for function in (nested, any, self.of):
            with pytest.raises(InvalidTask, match="module level"):
                as_task(backend=self.alias)(function)

    def test_coroutine_functions_are_accepted_if_supported(self) -> None:
        with supported_only_if(self.backend.supports_async_task):
            as_task(backend=self.alias)(jobs.aecho.func)

    @pytest.mark.parametrize("priority", [-100, -1, 1, 100])
    def test_priorities_are_accepted_if_supported(self, priority: int) -> None:
        with supported_only_if(self.backend.supports_priority):
            assert self.of(jobs.noop, priority=priority).enqueue().task.priority == priority

    @pytest.mark.parametrize("priority", [-101, 101, 3.5])
    def test_out_of_range_priorities_are_rejected(self, priority: float) -> None:
        with pytest.raises(InvalidTask):
            self.of(jobs.noop, priority=priority)

    def test_run_after_is_accepted_if_supported(self) -> None:
        due = timezone.now() + timedelta(hours=1)
        with supported_only_if(self.backend.supports_defer):
            assert self.of(jobs.noop, run_after=due).enqueue().task.run_after == due

    def test_naive_run_after_is_rejected(self) -> None:
        with pytest.raises(InvalidTask):
            self.of(jobs.noop, run_after=datetime(2100, 1, 1))

    async def test_results_are_returned_if_supported(self) -> None:
        result = await self.of(jobs.noop).aenqueue()
        with supported_only_if(self.backend.supports_get_result, NotImplementedError):
            assert (await self.backend.aget_result(result.id)).id == result.id
        with supported_only_if(self.backend.supports_get_result, NotImplementedError):
            assert (await asyncio.to_thread(self.backend.get_result, result.id)).id == result.id

    async def test_tasks_are_validated_when_enqueued(self) -> None:
        task = self.of(jobs.noop)
        replaced = replace(task)
        object.__setattr__(replaced, "queue_name", "nowhere")
        with recording_signals() as signals:
            with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
                await replaced.aenqueue()
            with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
                await asyncio.to_thread(replaced.enqueue)
        assert signals == []

    def test_unknown_queues_are_rejected(self) -> None:
        with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
            self.of(jobs.noop, queue_name="nowhere")

    def test_settings_pass_the_checks(self) -> None:
        assert list(self.backend.check()) == []


class Queued(Conformance):
    """For backends that store tasks, run them later (by priority, or at a given time) and return their
    results."""

    #: a queue other than "default"
    other = "other"

    def test_all_features_are_supported(self) -> None:
        backend = self.backend
        flags = backend.supports_defer, backend.supports_priority, backend.supports_get_result
        assert (*flags, backend.supports_async_task) == (True, True, True, True)

    @pytest.mark.parametrize(
        ("task", "kind"),
        [
            (jobs.interrupt, KeyboardInterrupt),
            (jobs.async_interrupt, KeyboardInterrupt),
            (jobs.raise_system_exit, SystemExit),
            (jobs.async_raise_system_exit, SystemExit),
        ],
    )
    def test_worker_continues_after_any_exception(self, task: Any, kind: type) -> None:
        """KeyboardInterrupt is an error like others: it was raised by the task, not by Ctrl+C."""
        result = self.of(task).enqueue()
        others = [self.of(other).enqueue() for other in (jobs.echo, jobs.aecho)]
        with recording_signals() as signals:
            assert self.refreshed(result).status == FAILED
        assert [error.exception_class for error in result.errors] == [kind]
        assert [each.name for each in signals if each.id == result.id] == ["started", "finished"]
        assert [self.refreshed(other).status for other in others] == [SUCCESSFUL, SUCCESSFUL]

    def test_enqueued_task_is_ready(self) -> None:
        result = self.of(jobs.echo).enqueue(1, two=2)
        for found in (result, self.backend.get_result(result.id)):
            assert (found.status, found.is_finished, found.attempts) == (READY, False, 0)
            assert (found.args, found.kwargs, found.errors, found.worker_ids) == ([1], {"two": 2}, [], [])
            assert found.enqueued_at is not None
            assert found.started_at is found.last_attempted_at is found.finished_at is None
            with pytest.raises(ValueError, match="Task has not finished yet"):
                _ = found.return_value

    def test_status_is_running_during_execution(self) -> None:
        with recording_signals(self.backend) as signals:
            result = self.of(jobs.echo).enqueue()
            self.refreshed(result)
        enqueued, started, _ = (each.stored for each in signals)
        assert (enqueued.status, started.status) == (READY, RUNNING)
        assert (started.worker_ids, started.attempts) == (result.worker_ids, 1)
        assert started.started_at == started.last_attempted_at == result.started_at
        assert started.finished_at is None
        with pytest.raises(ValueError, match="Task has not finished yet"):
            _ = started.return_value

    @pytest.mark.parametrize("task", [jobs.echo, jobs.aecho, jobs.fail])
    async def test_results_are_equal_for_all_readers(self, task: Any) -> None:
        result = await self.of(task).aenqueue()
        for _ in ("before", "after"):
            assert await self.backend.aget_result(result.id) == result
            assert await asyncio.to_thread(self.backend.get_result, result.id) == result
            assert await self.of(task).aget_result(result.id) == result
            assert await asyncio.to_thread(self.of(task).get_result, result.id) == result
            await asyncio.to_thread(self.work)
            await result.arefresh()
        assert result.is_finished

    def test_result_contains_the_enqueued_task(self) -> None:
        due = timezone.now().replace(microsecond=123_457) - timedelta(days=1)
        task = self.of(jobs.echo, priority=7, queue_name=self.other, run_after=due)
        result = task.enqueue("x")
        assert self.backend.get_result(result.id) == result
        assert self.refreshed(result).status == SUCCESSFUL
        assert self.backend.get_result(result.id).task == task

    def test_refresh_loads_the_current_state(self) -> None:
        good, bad = self.of(jobs.echo).enqueue(), self.of(jobs.fail).enqueue()
        self.work()
        assert (good.status, bad.status) == (READY, READY)
        good.refresh()
        bad.refresh()
        assert (good.status, good.attempts, good.return_value) == (SUCCESSFUL, 1, [[], {}])
        assert (bad.status, bad.attempts, len(bad.errors)) == (FAILED, 1, 1)

    @pytest.mark.parametrize("result_id", ["123", "", "{}", "0" * 500, "ä\0"])
    async def test_unknown_ids_have_no_result(self, result_id: str) -> None:
        with pytest.raises(TaskResultDoesNotExist):
            await self.of(jobs.noop).aget_result(result_id)
        with pytest.raises(TaskResultDoesNotExist):
            await asyncio.to_thread(self.of(jobs.noop).get_result, result_id)

    async def test_result_of_another_task_is_rejected(self) -> None:
        result = await self.of(jobs.noop).aenqueue()
        with pytest.raises(TaskResultMismatch):
            await self.of(jobs.echo).aget_result(result.id)
        with pytest.raises(TaskResultMismatch):
            await asyncio.to_thread(self.of(jobs.echo).get_result, result.id)

    def test_higher_priorities_run_first(self) -> None:
        ids = {each: self.of(jobs.noop, priority=each).enqueue().id for each in (0, -100, 3, 100, -1)}
        with recording_signals() as signals:
            self.work()
        started = [each.id for each in signals if each.name == "started"]
        assert started == [ids[each] for each in (100, 3, 0, -1, -100)]

    def test_deferred_task_does_not_run_early(self) -> None:
        later = self.of(jobs.noop, run_after=timezone.now() + timedelta(hours=1)).enqueue()
        past = self.of(jobs.noop, run_after=timezone.now() - timedelta(hours=1)).enqueue()
        assert self.refreshed(past).status == SUCCESSFUL
        assert self.refreshed(later).status == READY

    def test_deferred_task_runs_when_due(self) -> None:
        due = timezone.now() + timedelta(seconds=0.2)
        result = self.of(jobs.noop, run_after=due).enqueue()
        pause, deadline = threading.Event(), timezone.now() + timedelta(seconds=20)
        while not self.refreshed(result).is_finished:
            assert timezone.now() < deadline, "the task did not run in time"
            pause.wait(0.01)
        assert result.started_at >= due

    def test_queues_are_independent(self) -> None:
        results = [self.of(jobs.noop, queue_name=name).enqueue() for name in ("default", self.other)]
        assert [self.backend.get_result(each.id).task.queue_name for each in results] == [
            "default",
            self.other,
        ]
        assert [self.refreshed(each).status for each in results] == [SUCCESSFUL, SUCCESSFUL]

    def test_each_task_runs_once(self) -> None:
        results = [self.of(jobs.echo).enqueue(number) for number in range(50)]
        with recording_signals() as signals:
            self.work()
        finished = [each.id for each in signals if each.name == "finished"]
        assert sorted(finished) == sorted(each.id for each in results)
        for number, result in enumerate(results):
            assert self.refreshed(result).return_value == [[number], {}]
