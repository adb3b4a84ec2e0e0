"""Django's Tasks framework as it is at run time, on each version: django-stubs makes its classes generic and
thawed, the backport some of them."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from django.core.checks import CheckMessage
from django.db.models import TextChoices
from django.dispatch import Signal

class InvalidTask(Exception): ...
class TaskResultDoesNotExist(Exception): ...

class TaskResultStatus(TextChoices):
    READY = "READY"
    RUNNING = "RUNNING"
    FAILED = "FAILED"
    SUCCESSFUL = "SUCCESSFUL"

@dataclass(frozen=True, kw_only=True)
class Task:
    func: Callable[..., Any]
    priority: int = ...
    backend: str = ...
    queue_name: str = ...
    run_after: datetime | None = ...
    takes_context: bool = ...
    @property
    def module_path(self) -> str: ...
    @property
    def name(self) -> str: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> TaskResult: ...
    async def aenqueue(self, *args: Any, **kwargs: Any) -> TaskResult: ...
    def get_result(self, result_id: str) -> TaskResult: ...
    async def aget_result(self, result_id: str) -> TaskResult: ...
    def call(self, *args: Any, **kwargs: Any) -> Any: ...
    async def acall(self, *args: Any, **kwargs: Any) -> Any: ...
    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
    ) -> Task: ...

@dataclass(frozen=True, kw_only=True)
class TaskError:
    exception_class_path: str
    traceback: str

@dataclass(frozen=True, kw_only=True)
class TaskResult:
    task: Task
    id: str
    status: TaskResultStatus
    enqueued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    last_attempted_at: datetime | None
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    errors: list[TaskError]
    worker_ids: list[str]
    @property
    def return_value(self) -> Any: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def attempts(self) -> int: ...
    def refresh(self) -> None: ...
    async def arefresh(self) -> None: ...

@dataclass(frozen=True, kw_only=True)
class TaskContext:
    task_result: TaskResult
    @property
    def attempt(self) -> int: ...

class BaseTaskBackend:
    task_class: type[Task]
    supports_defer: bool
    supports_async_task: bool
    supports_get_result: bool
    supports_priority: bool
    alias: str
    queues: set[str]
    options: dict[str, Any]
    def __init__(self, alias: str, params: dict[str, Any]) -> None: ...
    def validate_task(self, task: Task) -> None: ...
    def enqueue(self, task: Task, args: Any, kwargs: Mapping[str, Any]) -> TaskResult: ...
    async def aenqueue(self, task: Task, args: Any, kwargs: Mapping[str, Any]) -> TaskResult: ...
    def get_result(self, result_id: str) -> TaskResult: ...
    async def aget_result(self, result_id: str) -> TaskResult: ...
    def check(self, **kwargs: Any) -> Iterable[CheckMessage]: ...

class _Backends(Protocol):
    def __getitem__(self, alias: str) -> Any: ...
    def __iter__(self) -> Any: ...

task_backends: _Backends
task_enqueued: Signal
task_started: Signal
task_finished: Signal
tasks_logger: logging.Logger

def normalize_json(obj: Any) -> Any: ...
