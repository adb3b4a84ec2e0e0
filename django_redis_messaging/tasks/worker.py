"""The worker of tasks: each attempt is a call with its timeout and signals, and an outcome."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from django.db import close_old_connections
from django.dispatch import Signal
from django.utils import timezone

from ..core import payloads
from ..core.failures import log_exception
from ..services.jobs import databases, event_loop, interrupts
from ..services.jobs import running as jobs_running
from ..services.jobs import worker as jobs_worker
from ..services.jobs.consuming import retry_delay
from ..services.jobs.event_loop import EventLoopEnded
from ..services.jobs.leases import HELD, JobRecord, LeasedJob, Outcome, Settlement
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
from .follow_ups import prepare_follow_up
from .guards import Guards
from .names import Needs
from .task import RedisTask
from .unknown import settle_unknown

__all__ = ["Limits", "Worker"]

logger = logging.getLogger(__name__)

#: modules whose frames stand between the worker and a task
_OWN_MODULES = (__name__, jobs_running.__name__, interrupts.__name__, event_loop.__name__)


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
        if running.leased.state.status == HELD and not _is_imported(running.leased.payload):
            with running.start():  # the import may be what ended the other worker
                return self._run_job(running)
        return self._run_job(running)

    def _run_job(self, running: RunningJob) -> Settlement | None:
        try:
            result, needs = self._read(running.leased)
            guard = None if needs is None else self._guards.guard(needs, result.task)
        except records.UnknownTask as error:
            return settle_unknown(self._backend, running, error)
        except BaseException as error:  # of an unreadable task, or of a module that exits when it is imported
            return running.settled(Outcome.DEAD, line=records.failed(error))
        if guard is None:
            return self._start(result, running)
        return self._guards.run(guard, running, partial(self._start, result, running))

    def _read(self, leased: LeasedJob) -> tuple[TaskResult, Needs | None]:
        record = JobRecord(leased.lease.id, leased.payload, leased.state, b"")
        return records.call(self._backend.alias, record)

    def _start(self, result: TaskResult, running: RunningJob, lock_fence: int = 0) -> Settlement:
        claimed = running.leased
        with running.start():
            if running.leased is not claimed:  # it was held: now the attempt counts
                result, _ = self._read(running.leased)
            return self._run(result, running, lock_fence)

    def _run(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Settlement:
        databases.prepare()
        try:
            return self._attempt(result, running, lock_fence)
        finally:
            close_old_connections()

    def _attempt(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Settlement:
        task = result.task
        _send(task_started, result, self._backend)
        try:
            value = normalize_json(self._call(result, running, lock_fence))
            line = records.returned(value)
            follow_up = prepare_follow_up(self._backend, result, value)
        except BaseException as error:  # SystemExit and KeyboardInterrupt end the attempt, not the lane
            _remove_own_frames(error)
            return self._failed(result, running, error)
        object.__setattr__(result, "_return_value", value)
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        _send(task_finished, result, self._backend)
        settlement = running.settled(Outcome.DONE, self._backend.result_ttl_of(task), line)
        return settlement if follow_up is None else settlement._replace(follow_up=follow_up)

    def _call(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Any:
        task, timeout = result.task, self._backend.timeout(result.task)
        args: list[Any] = []
        if task.takes_context:
            args = [Context(task_result=result, running=running, lock_fence=lock_fence)]
        args += result.args
        if iscoroutinefunction(task.func):
            return running.call_async(task.func(*args, **result.kwargs), timeout)
        return running.call(lambda: task.func(*args, **result.kwargs), timeout)

    def _failed(self, result: TaskResult, running: RunningJob, error: BaseException) -> Settlement:
        """Called while `error` is handled, so that receivers of the signal can log it."""
        if running.released or issubclass(type(error), EventLoopEnded):
            return running.settled(Outcome.RELEASE)
        state = running.leased.state
        described = records.task_error(error)
        line = records.failure_line(described)
        if issubclass(type(error), _retries(result.task)) and state.failures < state.max_attempts:
            return running.settled(Outcome.RETRY, round(retry_delay(state.failures) * 1000), line)
        result.errors.append(described)
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.FAILED)
        _send(task_finished, result, self._backend)
        return running.settled(Outcome.DEAD, line=line)


def _remove_own_frames(error: BaseException) -> None:
    """Remove from a traceback the frames between the worker and the task: formatting takes long, and it is
    done here and again by each handler of the log."""
    trace = sys.exc_info()[2]  # not by an attribute, which the class of the exception may override
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        trace = trace.tb_next
    if trace is not None:
        BaseException.with_traceback(error, trace)


def _send(signal: Signal, result: TaskResult, backend: RedisBackend) -> None:
    """Send a signal. Whatever a receiver raises is logged: the attempt doesn't depend on it."""
    try:
        signal.send_robust(type(backend), task_result=result)  # logs exceptions, but lets SystemExit pass
    except BaseException as error:
        message = "A receiver of a signal of task id=%s failed; further ones were not called."
        log_exception(logger, error, message, result.id)


def _retries(task: Task) -> tuple[type[BaseException], ...]:
    return task.retries if isinstance(task, RedisTask) else ()


def _is_imported(payload: bytes) -> bool:
    """Whether the module of a job's task is imported; True for an unreadable payload."""
    try:
        path: str = payloads.loads_all([payload])[0][0]
        return path.rpartition(".")[0] in sys.modules
    except Exception:
        return True


class Worker(jobs_worker.Worker):
    """Runs the tasks of one backend until it is stopped."""

    def __init__(
        self,
        backend: RedisBackend,
        queues: Sequence[str] | Mapping[str, int],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(backend.engine, backend.using, queues, Runner(backend, limits.lease), limits)
