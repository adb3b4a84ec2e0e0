"""One attempt at a task: called, timed, told of by signals; and what is to be said of it."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from ..errors import TaskTimeout
from ..services.jobs.engine import Held, Known, Verdict
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

#: runs a coroutine on the worker's event loop and waits for what it returns
Awaits = Callable[[Any], Any]


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


@dataclass(eq=False)
class Running:
    """A job under way, as its worker knows it."""

    held: Held
    thread: int = field(default_factory=threading.get_ident)
    began: float = field(default_factory=monotonic)
    #: seconds it may take
    timeout: float | None = None
    lost: bool = False
    #: whether the worker gave it back, since it had to end
    given_back: bool = False
    #: guards against a timeout that comes when the call is over
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _calling: bool = False
    _timed_out: bool = False

    @property
    def lease(self) -> tuple[str, str, int, str]:
        """As the engine takes it."""
        return self.held.queue, self.held.id, self.held.state.fence, self.held.state.token

    @property
    def overdue(self) -> float:
        """Seconds since its time was up; negative before, and where it may take any time."""
        return -1.0 if self.timeout is None else monotonic() - self.began - self.timeout

    def call(self, function: Callable[[], Any]) -> Any:
        """Call it; raises TaskTimeout in it when its time is up."""
        with self._guard:
            self._calling = True
        try:
            return function()
        finally:
            with self._guard:
                self._calling = False

    def interrupt(self) -> None:
        """Raise TaskTimeout in the thread that calls, once. What waits inside the system notices when it
        comes back from there."""
        with self._guard:
            if self._calling and not self._timed_out:
                self._timed_out = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread), ctypes.py_object(TaskTimeout)
                )


class Runner:
    """Makes attempts for one backend."""

    def __init__(self, backend: RedisBackend, awaits: Awaits) -> None:
        self._backend = backend
        self._awaits = awaits

    def run(self, running: Running) -> Verdict:
        """Call the task of a job; what is to be said of it."""
        held = running.held
        try:
            result = records.result(self._backend.alias, Known(held.id, held.payload, held.state, b""))
        except Exception as error:  # whatever was stored: what nobody can read must not stop the others
            return self._verdict(held, "dead", line=records.failed(error))
        close_old_connections()
        try:
            return self._attempt(result, running)
        finally:
            close_old_connections()

    def _attempt(self, result: TaskResult, running: Running) -> Verdict:
        task = result.task
        running.timeout = getattr(task, "timeout", None) or self._backend.chosen["TIMEOUT"]
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
        return self._verdict(running.held, "done", self._backend.result_ttl, line)

    def _call(self, result: TaskResult, running: Running) -> Any:
        task = result.task
        args = [Context(task_result=result, running=running)] if task.takes_context else []
        args += result.args
        if iscoroutinefunction(task.func):
            return self._awaits(_timed(task.func(*args, **result.kwargs), running.timeout))
        return running.call(lambda: task.func(*args, **result.kwargs))

    def _failed(self, result: TaskResult, running: Running, error: BaseException) -> Verdict:
        """Called while `error` is handled, so that those who are told by the signal see it."""
        held, line = running.held, records.failed(error)
        if running.given_back:
            return self._verdict(held, "back")
        if isinstance(error, _retries(result.task)) and held.state.attempts < held.state.most:
            return self._verdict(held, "again", round(pause(held.state.attempts) * 1000), line)
        result.errors.append(records.task_error(error))
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.FAILED)
        task_finished.send_robust(type(self._backend), task_result=result)
        return self._verdict(held, "dead", line=line)

    def _verdict(self, held: Held, what: str, value: int = 0, line: str = "") -> Verdict:
        return Verdict(held.queue, held.id, held.state.fence, held.state.token, what, value, line)


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
