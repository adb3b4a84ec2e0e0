"""The contract that Django documents for task backends: for our backend, and for Django's own as a check of
the tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging.tasks import task as as_task
from django_redis_messaging.tasks.compat import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    task_backends,
)

from ..support.workers import FAILED, READY, RUNNING, SUCCESSFUL, burst, later, recording_signals
from . import jobs

pytestmark = pytest.mark.versions

TaskResultMismatch = import_module(TaskResultDoesNotExist.__module__).TaskResultMismatch


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

    @pytest.mark.parametrize("form", ["enqueue", "aenqueue"])
    @pytest.mark.parametrize("task", [jobs.echo, jobs.aecho])
    async def test_enqueued_task_runs_once_and_stores_its_result(self, task: Any, form: str) -> None:
        enqueue = getattr(self.of(task), form)
        with recording_signals() as signals:
            if form == "aenqueue":
                result = await enqueue(1, two=[2])
            else:
                result = await asyncio.to_thread(enqueue, 1, two=[2])
        assert signals[0][:3] == ("enqueued", type(self.backend), result.id)
        await asyncio.to_thread(self.refreshed, result)
        assert (result.status, result.is_finished, result.errors) == (SUCCESSFUL, True, [])
        assert result.return_value == [[1], {"two": [2]}]
        assert (result.args, result.kwargs, result.backend) == ([1], {"two": [2]}, self.alias)
        assert result.task.func is task.func
        [worker] = result.worker_ids
        assert isinstance(worker, str) and 0 < len(worker) <= 64
        assert result.attempts == 1
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
        assert abs(timezone.now() - result.finished_at) < timedelta(minutes=1)

    @pytest.mark.parametrize(
        ("task", "args", "kind", "text"),
        [
            (jobs.fail, [], ValueError, "ValueError: no\n"),
            (jobs.fail_twofold, [], ValueError, 'ValueError(ValueError("inside"))'),
            (jobs.raise_by_name, ["SystemExit"], SystemExit, "SystemExit: SystemExit\n"),
            (jobs.async_raise, ["SystemExit"], SystemExit, "SystemExit: SystemExit\n"),
            (jobs.return_object, [], TypeError, "Unsupported type"),
        ],
    )
    def test_exception_is_stored_as_error(self, task: Any, args: list[str], kind: type, text: str) -> None:
        result = self.run(task, *args)
        assert (result.status, result.is_finished) == (FAILED, True)
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
        [error] = result.errors
        assert error.exception_class is kind
        assert error.traceback.startswith("Traceback") and text in error.traceback
        assert not text.endswith("\n") or error.traceback.endswith(text)
        assert task is jobs.return_object or f"in {task.func.__name__}" in error.traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value

    def test_values_are_normalized_by_json(self) -> None:
        assert self.run(jobs.return_tuple).return_value == [1, {"inner": ["bytes", []]}]
        assert self.run(jobs.noop).return_value is None
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

    @pytest.mark.parametrize(
        ("task", "status", "error"),
        [(jobs.noop, SUCCESSFUL, "None"), (jobs.fail, FAILED, "ValueError('no')")],
    )
    def test_signals_are_sent(self, task: Any, status: str, error: str) -> None:
        """The last one while the error is handled."""
        with recording_signals() as signals:
            result = self.run(task)
        sender = type(self.backend)
        assert signals[0][:3] == ("enqueued", sender, result.id)
        assert [each[:5] for each in signals[1:]] == [
            ("started", sender, result.id, RUNNING, 1),
            ("finished", sender, result.id, status, 1),
        ]
        assert [repr(each.error) for each in signals] == ["None", "None", error]

    def test_context_is_passed_to_task(self) -> None:
        result = self.run(jobs.describe_context, "hello", to="you")
        assert result.return_value == [result.id, 1, RUNNING, result.worker_ids, "hello", "you"]
        with pytest.raises(InvalidTask, match="first argument of 'context'"):
            as_task(backend=self.alias, takes_context=True)(jobs.take_no_context)

    def test_only_module_level_functions_can_be_tasks(self) -> None:
        def nested() -> None: ...

        for function in (nested, any, self.of):
            with pytest.raises(InvalidTask, match="module level"):
                as_task(backend=self.alias)(function)

    def test_options_are_accepted_if_supported(self) -> None:
        with supported_only_if(self.backend.supports_async_task):
            as_task(backend=self.alias)(jobs.aecho.func)
        for priority in (-100, -1, 1, 100):
            with supported_only_if(self.backend.supports_priority):
                assert self.of(jobs.noop, priority=priority).enqueue().task.priority == priority
        due = later()
        with supported_only_if(self.backend.supports_defer):
            assert self.of(jobs.noop, run_after=due).enqueue().task.run_after == due

    def test_invalid_options_are_rejected(self) -> None:
        for priority in (-101, 101, 3.5):
            with pytest.raises(InvalidTask):
                self.of(jobs.noop, priority=priority)
        with pytest.raises(InvalidTask):
            self.of(jobs.noop, run_after=datetime(2100, 1, 1))
        with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
            self.of(jobs.noop, queue_name="nowhere")

    async def test_results_are_returned_if_supported(self) -> None:
        result = await self.of(jobs.noop).aenqueue()
        with supported_only_if(self.backend.supports_get_result, NotImplementedError):
            assert (await self.backend.aget_result(result.id)).id == result.id
        with supported_only_if(self.backend.supports_get_result, NotImplementedError):
            assert (await asyncio.to_thread(self.backend.get_result, result.id)).id == result.id

    async def test_tasks_are_validated_when_enqueued(self) -> None:
        replaced = replace(self.of(jobs.noop))
        object.__setattr__(replaced, "queue_name", "nowhere")
        with recording_signals() as signals:
            with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
                await replaced.aenqueue()
            with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
                await asyncio.to_thread(replaced.enqueue)
        assert signals == []

    def test_settings_pass_the_checks(self) -> None:
        assert list(self.backend.check()) == []


class TestOurs(Conformance):
    """It also stores tasks, runs them later, by priority, and returns their results."""

    work = staticmethod(burst)

    def test_all_features_are_supported(self) -> None:
        backend = self.backend
        flags = backend.supports_defer, backend.supports_priority, backend.supports_get_result
        assert (*flags, backend.supports_async_task) == (True, True, True, True)

    @pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit"])
    @pytest.mark.parametrize("task", [jobs.raise_by_name, jobs.async_raise, jobs.raise_in_child])
    def test_worker_continues_after_any_exception(self, task: Any, name: str) -> None:
        """KeyboardInterrupt is an error like others: it was raised by the task, not by Ctrl+C."""
        result = self.of(task).enqueue(name)
        others = [self.of(other).enqueue() for other in (jobs.echo, jobs.aecho)]
        with recording_signals() as signals:
            runner = burst()
        assert (runner.failed, runner.done) == (False, 3)
        result.refresh()
        assert [error.exception_class.__name__ for error in result.errors] == [name]
        assert result.status == FAILED
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
        task = self.of(jobs.echo, priority=7, queue_name="other", run_after=due)
        result = task.enqueue("x")
        assert self.backend.get_result(result.id) == result
        assert self.refreshed(result).status == SUCCESSFUL
        assert self.backend.get_result(result.id).task == task

    async def test_unknown_ids_and_those_of_other_tasks_have_no_result(self) -> None:
        other = await self.of(jobs.noop).aenqueue()
        unknown = dict.fromkeys(["123", "", "{}", "0" * 500, "ä\0"], TaskResultDoesNotExist)
        for result_id, error in {**unknown, other.id: TaskResultMismatch}.items():
            with pytest.raises(error):
                await self.of(jobs.echo).aget_result(result_id)
            with pytest.raises(error):
                await asyncio.to_thread(self.of(jobs.echo).get_result, result_id)

    def test_higher_priorities_run_first(self) -> None:
        ids = {each: self.of(jobs.noop, priority=each).enqueue().id for each in (0, -100, 3, 100, -1)}
        with recording_signals() as signals:
            self.work()
        started = [each.id for each in signals if each.name == "started"]
        assert started == [ids[each] for each in (100, 3, 0, -1, -100)]

    def test_deferred_task_runs_when_due(self) -> None:
        due = later(0.1)
        hour, past = (self.of(jobs.noop, run_after=later(seconds)).enqueue() for seconds in (3600, -3600))
        result = self.of(jobs.noop, run_after=due).enqueue()
        pause, deadline = threading.Event(), later(30)
        while not self.refreshed(result).is_finished:
            assert timezone.now() < deadline, "the task did not run in time"
            pause.wait(0.01)
        assert result.started_at >= due
        assert self.refreshed(past).status == SUCCESSFUL
        assert self.refreshed(hour).status == READY


class TestDjangos(Conformance):
    alias = "immediate"
    work = staticmethod(lambda: None)

    @pytest.fixture(autouse=True)
    def backends(self, settings: Settings) -> None:
        path = BaseTaskBackend.__module__.replace(".base", ".immediate.ImmediateBackend")
        settings.TASKS = {**settings.TASKS, "immediate": {"BACKEND": path}}

    @pytest.fixture
    def messaging_alias(self) -> str:
        """Django's backend does not use Redis."""
        return "messaging"

    @pytest.mark.parametrize("task", [jobs.raise_by_name, jobs.async_raise])
    def test_interrupt_is_raised_in_the_caller(self, task: Any) -> None:
        with recording_signals() as signals, pytest.raises(KeyboardInterrupt):
            self.of(task).enqueue("KeyboardInterrupt")
        assert [each.name for each in signals] == ["enqueued", "started"]
