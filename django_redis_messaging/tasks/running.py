"""One attempt at a task: called, timed, told of by signals; and what is to be said of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from ..errors import TaskTimeout
from ..services.jobs.engine import Known, Verdict
from ..services.jobs.running import Running
from ..services.jobs.work import pause
from . import records
from .backend import RedisBackend
from .compat import (
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from .task import RedisTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):
    """What a task that takes a context gets: Django's, and the lease."""

    running: Running

    @property
    def fence(self) -> int:
        """Grows with each attempt: a resource that refuses lower ones is safe from late workers."""
        return self.running.held.state.fence

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: somebody else may have begun, and what this attempt returns is
        refused."""
        return self.running.lost


class Runner:
    """Makes attempts for one backend."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend

    def __call__(self, running: Running) -> Verdict:
        """Call the task of a job; what is to be said of it."""
        held = running.held
        try:
            result = records.result(self._backend.alias, Known(held.id, held.payload, held.state, b""))
        except Exception as error:  # whatever was stored: what nobody can read must not stop the others
            return held.verdict("dead", line=records.failed(error))
        close_old_connections()
        try:
            return self._attempt(result, running)
        finally:
            close_old_connections()

    def _attempt(self, result: TaskResult, running: Running) -> Verdict:
        task = result.task
        running.timeout = self._backend.timeout(task)
        task_started.send_robust(type(self._backend), task_result=result)
        try:
            value = normalize_json(self._call(result, running))
            line = records.returned(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(result, running, error)
        object.__setattr__(result, "_return_value", value)
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        task_finished.send_robust(type(self._backend), task_result=result)
        return running.held.verdict("done", self._backend.result_ttl, line)

    def _call(self, result: TaskResult, running: Running) -> Any:
        task = result.task
        args = [Context(task_result=result, running=running)] if task.takes_context else []
        args += result.args
        if iscoroutinefunction(task.func):
            return running.awaits(_timed(task.func(*args, **result.kwargs), running.timeout))
        return running.call(lambda: task.func(*args, **result.kwargs))

    def _failed(self, result: TaskResult, running: Running, error: BaseException) -> Verdict:
        """Called while `error` is handled, so that those who are told by the signal see it."""
        held, line = running.held, records.failed(error)
        if running.given_back:
            return held.verdict("back")
        if isinstance(error, _retries(result.task)) and held.state.attempts < held.state.most:
            return held.verdict("again", round(pause(held.state.attempts) * 1000), line)
        result.errors.append(records.task_error(error))
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.FAILED)
        task_finished.send_robust(type(self._backend), task_result=result)
        return held.verdict("dead", line=line)


def _retries(task: Task) -> tuple[type[BaseException], ...]:
    return task.retries if isinstance(task, RedisTask) else ()


async def _timed(coroutine: Any, seconds: float | None) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise TaskTimeout(f"It took longer than {seconds:g} s.") from error
        raise
