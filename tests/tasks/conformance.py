"""What Django promises of every backend of its Tasks, as tests that any backend can be given.

class TestOurs(Queued):
    alias = "default"
    work = staticmethod(run_what_is_enqueued)
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


class Heard(NamedTuple):
    """A signal, as it was when it was sent."""

    name: str
    sender: type
    id: str
    status: str
    attempts: int
    #: what was being handled
    error: BaseException | None
    #: what the backend said of it then, where it can say
    stored: TaskResult | None


@contextmanager
def listening(store: Any = None) -> Iterator[list[Heard]]:
    """All signals that are sent meanwhile."""
    heard: list[Heard] = []

    def receiver_of(name: str) -> Callable[..., None]:
        def receive(sender: type, task_result: TaskResult, **_: object) -> None:
            stored = store.get_result(task_result.id) if store is not None else None
            said = task_result.id, str(task_result.status), task_result.attempts
            heard.append(Heard(name, sender, *said, sys.exc_info()[1], stored))

        return receive

    receivers = {name: receiver_of(name) for name in SIGNALS}
    for name, receiver in receivers.items():
        SIGNALS[name].connect(receiver)
    try:
        yield heard
    finally:
        for name, receiver in receivers.items():
            SIGNALS[name].disconnect(receiver)


@contextmanager
def only_if(supported: bool, error: type[Exception] = InvalidTask) -> Iterator[None]:
    """What passes where it is supported, and is refused elsewhere."""
    if supported:
        yield
    else:
        with pytest.raises(error):
            yield


class Conformance:
    """For backends that run tasks at any time, at once for instance."""

    alias = "default"
    #: runs what is enqueued and due
    work: Callable[[], object]

    @property
    def backend(self) -> Any:
        return task_backends[self.alias]

    def of(self, task: Any, **changes: Any) -> Any:
        """The task, on the backend under test."""
        return task.using(backend=self.alias, **changes)

    def ended(self, result: TaskResult) -> TaskResult:
        """The result after work."""
        self.work()
        if self.backend.supports_get_result:
            result.refresh()
        return result

    def run(self, task: Any, *args: Any, **kwargs: Any) -> TaskResult:
        return self.ended(self.of(task).enqueue(*args, **kwargs))

    @pytest.mark.parametrize("task", [jobs.echo, jobs.aecho])
    def test_what_is_enqueued_runs_once_and_its_result_says_so(self, task: Any) -> None:
        result = self.run(task, 1, two=[2])
        assert (result.status, result.is_finished, result.errors) == (SUCCESSFUL, True, [])
        assert result.return_value == [[1], {"two": [2]}]
        assert (result.args, result.kwargs, result.backend) == ([1], {"two": [2]}, self.alias)
        assert result.task.func is task.func
        [worker] = result.worker_ids
        assert isinstance(worker, str) and 0 < len(worker) <= 64
        assert result.attempts == 1

    @pytest.mark.parametrize("task", [jobs.echo, jobs.aecho])
    async def test_or_is_enqueued_asynchronously(self, task: Any) -> None:
        result = await self.of(task).aenqueue(1, two=[2])
        await asyncio.to_thread(self.work)
        if self.backend.supports_get_result:
            await result.arefresh()
        assert (result.status, result.return_value) == (SUCCESSFUL, [[1], {"two": [2]}])

    @pytest.mark.parametrize("task", [jobs.noop, jobs.fail])
    def test_its_moments_are_in_order(self, task: Any) -> None:
        result = self.run(task)
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
        assert abs(timezone.now() - result.finished_at) < timedelta(minutes=1)

    def test_ids_differ_and_are_short(self) -> None:
        ids = [self.of(jobs.noop).enqueue().id for _ in range(20)]
        assert len(set(ids)) == 20
        assert all(isinstance(each, str) and len(each) <= 64 for each in ids)

    @pytest.mark.parametrize(
        ("task", "kind", "end"),
        [(jobs.fail, ValueError, "ValueError: no\n"), (jobs.leave, SystemExit, "SystemExit: bye\n")],
    )
    def test_what_a_task_raises_is_its_error(self, task: Any, kind: type, end: str) -> None:
        result = self.run(task)
        assert (result.status, result.is_finished) == (FAILED, True)
        [error] = result.errors
        assert error.exception_class is kind
        assert error.traceback.startswith("Traceback") and error.traceback.endswith(end)
        assert f"in {task.func.__name__}" in error.traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value

    def test_an_error_may_hold_anything(self) -> None:
        [error] = self.run(jobs.fail_twofold).errors
        assert 'ValueError(ValueError("inside"))' in error.traceback

    def test_what_json_cannot_say_is_no_return_value(self) -> None:
        result = self.run(jobs.return_object)
        assert result.status == FAILED
        [error] = result.errors
        assert error.exception_class is TypeError
        assert "Unsupported type" in error.traceback

    def test_a_return_value_is_what_json_would_make_of_it(self) -> None:
        assert self.run(jobs.return_tuple).return_value == [1, {"inner": ["bytes", []]}]

    def test_nothing_returned_is_none(self) -> None:
        assert self.run(jobs.noop).return_value is None

    def test_arguments_are_what_json_would_make_of_them(self) -> None:
        result = self.of(jobs.echo).enqueue((1, b"b"), key=("x",))
        assert (result.args, result.kwargs) == ([[1, "b"]], {"key": ["x"]})
        assert self.ended(result).return_value == [[[1, "b"]], {"key": ["x"]}]

    async def test_what_json_cannot_say_is_no_argument(self) -> None:
        with listening() as heard:
            with pytest.raises(TypeError, match="Unsupported type"):
                await self.of(jobs.echo).aenqueue(datetime.now(UTC))
            with pytest.raises(TypeError, match="Unsupported type"):
                await asyncio.to_thread(self.of(jobs.echo).enqueue, key=object())
        assert heard == []

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_an_interrupted_task_is_not_a_failed_one(self) -> None:
        with listening() as heard, suppress(KeyboardInterrupt):
            self.of(jobs.interrupt).enqueue()
            self.work()
        assert [each.name for each in heard] == ["enqueued", "started"]

    def test_signals_tell_of_success(self) -> None:
        with listening() as heard:
            result = self.run(jobs.noop)
        assert [each[:5] for each in heard if each.name != "enqueued"] == [
            ("started", type(self.backend), result.id, RUNNING, 1),
            ("finished", type(self.backend), result.id, SUCCESSFUL, 1),
        ]
        assert [each[:3] for each in heard][:1] == [("enqueued", type(self.backend), result.id)]
        assert [each.error for each in heard] == [None, None, None]

    def test_signals_tell_of_failure_while_its_error_is_handled(self) -> None:
        with listening() as heard:
            self.run(jobs.fail, "loud")
        assert [each.name for each in heard] == ["enqueued", "started", "finished"]
        assert [each.error for each in heard][:2] == [None, None]
        last = heard[-1]
        assert (last.sender, last.status) == (type(self.backend), FAILED)
        assert isinstance(last.error, ValueError) and str(last.error) == "loud"

    async def test_enqueueing_asynchronously_signals_too(self) -> None:
        with listening() as heard:
            result = await self.of(jobs.noop).aenqueue()
        assert heard[0][:3] == ("enqueued", type(self.backend), result.id)

    def test_a_task_gets_the_context_it_takes(self) -> None:
        result = self.run(jobs.introduce, "hello", to="you")
        assert result.return_value == [result.id, 1, RUNNING, result.worker_ids, "hello", "you"]

    def test_context_is_taken_by_name(self) -> None:
        with pytest.raises(InvalidTask, match="first argument of 'context'"):
            as_task(backend=self.alias, takes_context=True)(jobs.take_no_context)

    def test_only_functions_of_modules_are_tasks(self) -> None:
        def inside() -> None: ...

        for function in (inside, any, self.of):
            with pytest.raises(InvalidTask, match="module level"):
                as_task(backend=self.alias)(function)

    def test_coroutine_functions_where_supported(self) -> None:
        with only_if(self.backend.supports_async_task):
            as_task(backend=self.alias)(jobs.aecho.func)

    @pytest.mark.parametrize("priority", [-100, -1, 1, 100])
    def test_priorities_where_supported(self, priority: int) -> None:
        with only_if(self.backend.supports_priority):
            assert self.of(jobs.noop, priority=priority).enqueue().task.priority == priority

    @pytest.mark.parametrize("priority", [-101, 101, 3.5])
    def test_priorities_have_bounds(self, priority: float) -> None:
        with pytest.raises(InvalidTask):
            self.of(jobs.noop, priority=priority)

    def test_run_after_where_supported(self) -> None:
        moment = timezone.now() + timedelta(hours=1)
        with only_if(self.backend.supports_defer):
            assert self.of(jobs.noop, run_after=moment).enqueue().task.run_after == moment

    def test_run_after_has_a_time_zone(self) -> None:
        with pytest.raises(InvalidTask):
            self.of(jobs.noop, run_after=datetime(2100, 1, 1))

    async def test_results_where_supported(self) -> None:
        result = await self.of(jobs.noop).aenqueue()
        with only_if(self.backend.supports_get_result, NotImplementedError):
            assert (await self.backend.aget_result(result.id)).id == result.id
        with only_if(self.backend.supports_get_result, NotImplementedError):
            assert (await asyncio.to_thread(self.backend.get_result, result.id)).id == result.id

    async def test_tasks_are_validated_when_they_are_enqueued_too(self) -> None:
        task = self.of(jobs.noop)
        replaced = replace(task)
        object.__setattr__(replaced, "queue_name", "nowhere")
        with listening() as heard:
            with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
                await replaced.aenqueue()
            with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
                await asyncio.to_thread(replaced.enqueue)
        assert heard == []

    def test_unknown_queues_are_refused(self) -> None:
        with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid"):
            self.of(jobs.noop, queue_name="nowhere")

    def test_its_settings_are_in_order(self) -> None:
        assert list(self.backend.check()) == []


class Queued(Conformance):
    """For backends that keep tasks, run them later, by priority or at a moment, and tell of them."""

    #: another queue than "default"
    other = "other"

    def test_it_can_all_that(self) -> None:
        backend = self.backend
        flags = backend.supports_defer, backend.supports_priority, backend.supports_get_result
        assert (*flags, backend.supports_async_task) == (True, True, True, True)

    def test_before_it_runs_a_task_is_ready(self) -> None:
        result = self.of(jobs.echo).enqueue(1, two=2)
        for told in (result, self.backend.get_result(result.id)):
            assert (told.status, told.is_finished, told.attempts) == (READY, False, 0)
            assert (told.args, told.kwargs, told.errors, told.worker_ids) == ([1], {"two": 2}, [], [])
            assert told.enqueued_at is not None
            assert told.started_at is told.last_attempted_at is told.finished_at is None
            with pytest.raises(ValueError, match="Task has not finished yet"):
                _ = told.return_value

    def test_while_it_runs_it_is_running(self) -> None:
        with listening(self.backend) as heard:
            result = self.of(jobs.echo).enqueue()
            self.ended(result)
        enqueued, started, _ = (each.stored for each in heard)
        assert (enqueued.status, started.status) == (READY, RUNNING)
        assert (started.worker_ids, started.attempts) == (result.worker_ids, 1)
        assert started.started_at == started.last_attempted_at == result.started_at
        assert started.finished_at is None
        with pytest.raises(ValueError, match="Task has not finished yet"):
            _ = started.return_value

    @pytest.mark.parametrize("task", [jobs.echo, jobs.aecho, jobs.fail])
    async def test_results_are_the_same_to_everybody(self, task: Any) -> None:
        result = await self.of(task).aenqueue()
        for _ in ("before", "after"):
            assert await self.backend.aget_result(result.id) == result
            assert await asyncio.to_thread(self.backend.get_result, result.id) == result
            assert await self.of(task).aget_result(result.id) == result
            assert await asyncio.to_thread(self.of(task).get_result, result.id) == result
            await asyncio.to_thread(self.work)
            await result.arefresh()
        assert result.is_finished

    def test_and_say_with_what_the_task_was_enqueued(self) -> None:
        moment = timezone.now().replace(microsecond=123_457) - timedelta(days=1)
        task = self.of(jobs.echo, priority=7, queue_name=self.other, run_after=moment)
        result = task.enqueue("x")
        assert self.backend.get_result(result.id) == result
        assert self.ended(result).status == SUCCESSFUL
        assert self.backend.get_result(result.id).task == task

    def test_refreshing_tells_what_happened_meanwhile(self) -> None:
        good, bad = self.of(jobs.echo).enqueue(), self.of(jobs.fail).enqueue()
        self.work()
        assert (good.status, bad.status) == (READY, READY)
        good.refresh()
        bad.refresh()
        assert (good.status, good.attempts, good.return_value) == (SUCCESSFUL, 1, [[], {}])
        assert (bad.status, bad.attempts, len(bad.errors)) == (FAILED, 1, 1)

    @pytest.mark.parametrize("result_id", ["123", "", "{}", "0" * 500, "ä\0"])
    async def test_what_was_never_enqueued_has_no_result(self, result_id: str) -> None:
        with pytest.raises(TaskResultDoesNotExist):
            await self.of(jobs.noop).aget_result(result_id)
        with pytest.raises(TaskResultDoesNotExist):
            await asyncio.to_thread(self.of(jobs.noop).get_result, result_id)

    async def test_a_result_belongs_to_its_task(self) -> None:
        result = await self.of(jobs.noop).aenqueue()
        with pytest.raises(TaskResultMismatch):
            await self.of(jobs.echo).aget_result(result.id)
        with pytest.raises(TaskResultMismatch):
            await asyncio.to_thread(self.of(jobs.echo).get_result, result.id)

    def test_higher_priorities_go_first(self) -> None:
        ids = {each: self.of(jobs.noop, priority=each).enqueue().id for each in (0, -100, 3, 100, -1)}
        with listening() as heard:
            self.work()
        started = [each.id for each in heard if each.name == "started"]
        assert started == [ids[each] for each in (100, 3, 0, -1, -100)]

    def test_nothing_runs_before_its_moment(self) -> None:
        later = self.of(jobs.noop, run_after=timezone.now() + timedelta(hours=1)).enqueue()
        past = self.of(jobs.noop, run_after=timezone.now() - timedelta(hours=1)).enqueue()
        assert self.ended(past).status == SUCCESSFUL
        assert self.ended(later).status == READY

    def test_what_was_deferred_runs_then(self) -> None:
        moment = timezone.now() + timedelta(seconds=0.2)
        result = self.of(jobs.noop, run_after=moment).enqueue()
        pause, ends = threading.Event(), timezone.now() + timedelta(seconds=20)
        while not self.ended(result).is_finished:
            assert timezone.now() < ends, "it did not run in time"
            pause.wait(0.01)
        assert result.started_at >= moment

    def test_queues_are_apart(self) -> None:
        results = [self.of(jobs.noop, queue_name=name).enqueue() for name in ("default", self.other)]
        assert [self.backend.get_result(each.id).task.queue_name for each in results] == [
            "default",
            self.other,
        ]
        assert [self.ended(each).status for each in results] == [SUCCESSFUL, SUCCESSFUL]

    def test_each_runs_once(self) -> None:
        results = [self.of(jobs.echo).enqueue(number) for number in range(50)]
        with listening() as heard:
            self.work()
        finished = [each.id for each in heard if each.name == "finished"]
        assert sorted(finished) == sorted(each.id for each in results)
        for number, result in enumerate(results):
            assert self.ended(result).return_value == [[number], {}]
