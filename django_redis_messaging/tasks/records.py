"""Tasks as jobs: the stored form of a call, and the result that is read back.

A job's log has a line for each event: R and the return value, E and the fields of an error, L and the number
of an attempt whose lease expired, A and a new run_after, C for a cancellation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any

from django.utils.module_loading import import_string

from .. import conf
from ..core import payloads
from ..errors import LimitExceeded
from ..services.jobs.leases import JobRecord, State
from ..services.moments import to_datetime
from .compat import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from .names import Needs
from .results import RedisTaskResult
from .task import Default, RedisTask

#: characters of a traceback that are kept: the end names the error
MAX_TRACEBACK = 8000
_STATUS = {
    "w": TaskResultStatus.READY,
    "r": TaskResultStatus.RUNNING,
    "s": TaskResultStatus.SUCCESSFUL,
    "d": TaskResultStatus.FAILED,
    "c": TaskResultStatus.FAILED,
}
#: the log line of a cancellation
CANCELLED = "C"
#: fields beyond Django's that the worker needs, with their defaults
_DEFAULTS = {"timeout": Default.TIMEOUT, "max_attempts": None, "retry_on": None}


def payload(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], needs: Needs | None = None) -> str:
    """The stored form of a call."""
    after = None if task.run_after is None else task.run_after.timestamp()
    value = [task.module_path, task.queue_name, after, list(args), dict(kwargs), _options(task)]
    if needs is not None:
        value.append(list(needs._replace(limit=_changed_limit(task))))
    return _limited(payloads.dumps(value, "arguments"), "a task's arguments (bytes)")


def rescheduled(run_after: datetime) -> str:
    """The log line of a new run_after."""
    return "A" + payloads.dumps(run_after.timestamp())


def _options(task: Task) -> dict[str, Any]:
    """The fields beyond Django's that differ from their defaults: using() may have changed them."""
    if not isinstance(task, RedisTask):
        return {}
    options = {key: getattr(task, key) for key, default in _DEFAULTS.items() if getattr(task, key) != default}
    if "retry_on" in options:
        options["retry_on"] = _paths(options["retry_on"])
    return options


def _changed_limit(task: Task) -> int | None:
    """The `concurrency` of a task, if using() has changed it; None if it is that of the decorator."""
    limit: int | None = getattr(task, "concurrency", None)
    try:
        own = find_task(task.module_path)
    except InvalidTask:
        return limit
    return None if limit == getattr(own, "concurrency", None) else limit


def _paths(kinds: Sequence[type[BaseException]]) -> list[str]:
    return [_path(kind) for kind in kinds]


def _path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def returned(value: Any) -> str:
    """The log line of a return value."""
    return "R" + _limited(payloads.dumps(value, "return value"), "a task's return value (bytes)")


def failed(error: BaseException) -> str:
    """The log line of an exception."""
    return "E" + payloads.dumps(list(_error_fields(error)))


def task_error(error: BaseException) -> TaskError:
    """An exception as results show it."""
    path, trace = _error_fields(error)
    return TaskError(exception_class_path=path, traceback=trace)


def _error_fields(error: BaseException) -> tuple[str, str]:
    trace = "".join(format_exception(error))
    # a lone surrogate, which UTF-8 can't encode, must not keep an error from being stored
    trace = trace[-MAX_TRACEBACK:].encode(errors="backslashreplace").decode()
    return _path(type(error)), trace


def _limited(encoded: str, what: str) -> str:
    """`encoded`, or LimitExceeded if it is too large."""
    limit = conf.current().JOB_MAX_BYTES
    size = len(encoded) if encoded.isascii() else len(encoded.encode())
    if size > limit:
        raise LimitExceeded(what, limit=limit, actual=size, setting="JOB_MAX_BYTES")
    return encoded


def find_task(path: str) -> Task:
    """The task that the code defines under this path. Nothing but a task is ever called."""
    found = _imported(path, "task")
    if not isinstance(found, Task) or found.module_path != path:
        raise InvalidTask(f"{path!r} is not a task: decorate it with @task.")
    return found


def _imported(path: str, what: str) -> Any:
    try:
        return import_string(path)
    except Exception as error:
        # a module may raise anything while it is imported
        raise InvalidTask(f"The {what} {path!r} can't be imported: was it renamed? ({error})") from error


def result(backend: str, record: JobRecord) -> TaskResult:
    """The current result of a job."""
    return call(backend, record)[0]


def call(backend: str, record: JobRecord) -> tuple[TaskResult, Needs | None]:
    """The current result of a job, and what its call has to acquire before it runs."""
    path, queue, after, args, kwargs, options, *more = payloads.loads_all([record.payload])[0]
    needs = Needs(*more[0]) if more else None
    state, lines = record.state, record.log.decode().split("\n")
    for line in lines:
        if line.startswith("A"):
            [after] = payloads.loads_all([line[1:].encode()])
    task = _as_enqueued(find_task(path), state.priority, queue, backend, after, options, needs)
    ended = state.status in "sdc"
    found = RedisTaskResult(
        task=task,
        id=record.id,
        status=_STATUS[state.status],
        enqueued_at=to_datetime(state.pushed),
        started_at=_moment(state.first),
        finished_at=to_datetime(state.moment) if ended else None,
        last_attempted_at=_moment(state.last),
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=list(state.workers),
    )
    for line in lines:
        _apply(line, found, state)
    return found, needs


def _as_enqueued(
    task: Task,
    priority: int,
    queue: str,
    backend: str,
    after: float | None,
    options: dict[str, Any],
    needs: Needs | None,
) -> Task:
    """The task with the values it was enqueued with; unchanged if those are its own."""
    changed = _changes(_options(task), options)
    if needs is not None and needs.limit is not None:
        changed["concurrency"] = needs.limit
    if after is None and (task.priority, task.queue_name, task.backend) == (priority, queue, backend):
        return task.using(**changed) if changed else task
    run_after = None if after is None else datetime.fromtimestamp(after, UTC)
    return task.using(priority=priority, queue_name=queue, backend=backend, run_after=run_after, **changed)


def _changes(own: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The values it was enqueued with that differ from the task's own."""
    both = own.keys() | options.keys()
    changed: dict[str, Any] = {
        key: options.get(key, _DEFAULTS[key]) for key in both if own.get(key, ...) != options.get(key, ...)
    }
    if changed.get("retry_on") is not None:
        changed["retry_on"] = tuple(_imported(path, "exception") for path in changed["retry_on"])
    return changed


def _moment(ms: int) -> datetime | None:
    return to_datetime(ms) if ms else None


def _apply(line: str, found: TaskResult, state: State) -> None:
    """Add a line of the log to a result."""
    kind, rest = line[:1], line[1:]
    if kind == "R" and state.status == "s":
        object.__setattr__(found, "_return_value", payloads.loads_all([rest.encode()])[0])
    elif kind == "E":
        path, trace = payloads.loads_all([rest.encode()])[0]
        found.errors.append(TaskError(exception_class_path=path, traceback=trace))
    elif kind == "L":
        text = f"The lease expired in attempt {rest}: the worker was lost, or could not extend it."
        found.errors.append(_own_error("LeaseLost", text))
    elif kind == CANCELLED:
        found.errors.append(_own_error("TaskCancelled", "The task was cancelled before it started."))


def _own_error(name: str, text: str) -> TaskError:
    return TaskError(exception_class_path=f"django_redis_messaging.errors.{name}", traceback=text)
