"""The worker of tasks: each attempt is a call with its timeout and signals, and an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from ..errors import TaskTimeout
from ..services.jobs import worker as jobs_worker
from ..services.jobs.consuming import retry_delay
from ..services.jobs.leases import JobRecord, Outcome, Settlement
from ..services.jobs.limits import DEFAULT_LIMITS, Limits
from ..services.jobs.running import RunningJob
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
from .guards import Guards
from .task import RedisTask

__all__ = ["Limits", "Worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):
    """Django's context, with the lease."""

    running: RunningJob
    #: the fence of the call's lock, for fenced writes; 0 without a lock
    lock_fence: int = 0

    @property
    def fence(self) -> int:
        """Grows with each attempt: a resource that refuses lower ones is safe from late workers."""
        return self.running.leased.lease.fence

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: another worker may have started the task, and the result of this
        attempt is refused."""
        return self.running.lease_lost


class Runner:
    """Makes attempts at the tasks of one backend."""

    def __init__(self, backend: RedisBackend, lease: float) -> None:
        self._backend = backend
        self._guards = Guards(backend.using, lease)

    def __call__(self, running: RunningJob) -> Settlement | None:
        """Call the task of a job, unless its lock or permit is not free; returns the settlement of its lease,
        or None if the worker has released it."""
        leased = running.leased
        try:
            record = JobRecord(leased.lease.id, leased.payload, leased.state, b"")
            result, needs = records.call(self._backend.alias, record)
            guard = None if needs is None else self._guards.guard(needs, result.task)
        except Exception as error:  # whatever was stored: an unreadable task must not stop the others
            return running.settled(Outcome.DEAD, line=records.failed(error))
        if guard is None:
            return self._run(result, running)
        return self._guards.run(guard, running, partial(self._run, result, running))

    def _run(self, result: TaskResult, running: RunningJob, lock_fence: int = 0) -> Settlement:
        close_old_connections()
        try:
            return self._attempt(result, running, lock_fence)
        finally:
            close_old_connections()

    def _attempt(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Settlement:
        task = result.task
        running.timeout = self._backend.timeout(task)
        task_started.send_robust(type(self._backend), task_result=result)
        try:
            value = normalize_json(self._call(result, running, lock_fence))
            line = records.returned(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(result, running, error)
        object.__setattr__(result, "_return_value", value)
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        task_finished.send_robust(type(self._backend), task_result=result)
        return running.settled(Outcome.DONE, self._backend.result_ttl, line)

    def _call(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Any:
        task = result.task
        args: list[Any] = []
        if task.takes_context:
            args = [Context(task_result=result, running=running, lock_fence=lock_fence)]
        args += result.args
        if iscoroutinefunction(task.func):
            return running.run_coroutine(_within(task.func(*args, **result.kwargs), running.timeout))
        return running.call(lambda: task.func(*args, **result.kwargs))

    def _failed(self, result: TaskResult, running: RunningJob, error: BaseException) -> Settlement:
        """Called while `error` is handled, so that receivers of the signal can log it."""
        state, line = running.leased.state, records.failed(error)
        if running.released:
            return running.settled(Outcome.RELEASE)
        if isinstance(error, _retries(result.task)) and state.attempts < state.max_attempts:
            return running.settled(Outcome.RETRY, round(retry_delay(state.attempts) * 1000), line)
        result.errors.append(records.task_error(error))
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.FAILED)
        task_finished.send_robust(type(self._backend), task_result=result)
        return running.settled(Outcome.DEAD, line=line)


def _retries(task: Task) -> tuple[type[BaseException], ...]:
    return task.retries if isinstance(task, RedisTask) else ()


async def _within(coroutine: Any, seconds: float | None) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise TaskTimeout(f"The task took longer than {seconds:g} s.") from error
        raise


class Worker(jobs_worker.Worker):
    """Runs the tasks of one backend until it is stopped."""

    def __init__(self, backend: RedisBackend, queues: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(backend.engine, backend.using, queues, Runner(backend, limits.lease), limits)
