"""What tasks and results need of their backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, cast

from .compat import Task, TaskResult, task_backends

#: arguments of one call: positional ones, and keyword arguments
Call = tuple[Sequence[Any], Mapping[str, Any]]


class Control(Protocol):
    """RedisBackend, as its tasks and results see it."""

    def enqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]: ...
    async def aenqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]: ...
    def get_result(self, result_id: str) -> TaskResult: ...
    async def aget_result(self, result_id: str) -> TaskResult: ...
    def cancel(self, task: Task, result_id: str) -> bool: ...
    async def acancel(self, task: Task, result_id: str) -> bool: ...
    def reschedule(self, task: Task, result_id: str, run_after: datetime) -> bool: ...
    async def areschedule(self, task: Task, result_id: str, run_after: datetime) -> bool: ...


def control_of(backend: str) -> Control:
    """The backend of an alias of TASKS."""
    return cast(Control, task_backends[backend])
