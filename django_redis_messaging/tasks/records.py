"""Tasks as jobs: what is stored of a call, and the result that is read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any

from django.utils.module_loading import import_string

from .. import conf
from ..core import payloads
from ..errors import LimitExceeded
from ..services.jobs.engine import Known
from ..services.jobs.values import State, moment
from .compat import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from .results import RedisTaskResult
from .task import RedisTask, Usual

#: characters of a traceback that are kept: its end says what happened
TRACEBACK = 8000
_STATUS = {
    "w": TaskResultStatus.READY,
    "r": TaskResultStatus.RUNNING,
    "s": TaskResultStatus.SUCCESSFUL,
    "d": TaskResultStatus.FAILED,
    "c": TaskResultStatus.FAILED,
}
#: the line of a task that was cancelled
CANCELLED = "C"
#: what Django's fields don't tell of a task, and its value where nothing was given
_USUAL = {"timeout": Usual.TIMEOUT, "max_attempts": None, "retry_on": None}


def payload(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call as it is stored."""
    after = None if task.run_after is None else task.run_after.timestamp()
    value = [task.module_path, task.queue_name, after, list(args), dict(kwargs), _options(task)]
    return limited(payloads.dumps(value, "arguments"), "a task's arguments (JOB_MAX_BYTES)")


def moved(run_after: datetime) -> str:
    """The line of a task that was given another moment."""
    return "A" + payloads.dumps(run_after.timestamp())


def _options(task: Task) -> dict[str, Any]:
    """What the worker has to know of it beyond Django's fields, where it isn't what is usual: using() may
    have changed it."""
    if not isinstance(task, RedisTask):
        return {}
    options = {key: getattr(task, key) for key, usual in _USUAL.items() if getattr(task, key) != usual}
    if "retry_on" in options:
        options["retry_on"] = _paths(options["retry_on"])
    return options


def _paths(kinds: Sequence[type[BaseException]]) -> list[str]:
    return [_path(kind) for kind in kinds]


def _path(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def returned(value: Any) -> str:
    """The line of what a task returned."""
    return "R" + limited(payloads.dumps(value, "return value"), "a task's return value (JOB_MAX_BYTES)")


def failed(error: BaseException) -> str:
    """The line of what a task raised."""
    return "E" + payloads.dumps(list(_error_fields(error)))


def task_error(error: BaseException) -> TaskError:
    """What a task raised, as its result tells."""
    path, trace = _error_fields(error)
    return TaskError(exception_class_path=path, traceback=trace)


def _error_fields(error: BaseException) -> tuple[str, str]:
    trace = "".join(format_exception(error))
    # what UTF-8 can't carry must not keep an error from being told
    trace = trace[-TRACEBACK:].encode(errors="backslashreplace").decode()
    return _path(type(error)), trace


def limited(encoded: str, what: str) -> str:
    """`encoded` if it is not too large to be stored."""
    limit = conf.current().JOB_MAX_BYTES
    size = len(encoded) if encoded.isascii() else len(encoded.encode())
    if size > limit:
        raise LimitExceeded(what, limit=limit, actual=size)
    return encoded


def found_task(path: str) -> Task:
    """The task that code defines under this path; nothing else is ever called."""
    found = _imported(path, "task")
    if not isinstance(found, Task) or found.module_path != path:
        raise InvalidTask(f"{path!r} is not a task: only what @task made is called.")
    return found


def _imported(path: str, what: str) -> Any:
    try:
        return import_string(path)
    except Exception as error:
        # a module may raise anything while it is imported
        raise InvalidTask(f"There is no {what} {path!r}: was it renamed? ({error})") from error


def result(backend: str, known: Known) -> TaskResult:
    """The result of a job, as far as it has come."""
    path, queue, after, args, kwargs, options = payloads.loads_all([known.payload])[0]
    state, lines = known.state, known.outcomes.decode().split("\n")
    for line in lines:
        if line.startswith("A"):
            [after] = payloads.loads_all([line[1:].encode()])
    task = _as_enqueued(found_task(path), state.priority, queue, backend, after, options)
    ended = state.status in "sdc"
    told = RedisTaskResult(
        task=task,
        id=known.id,
        status=_STATUS[state.status],
        enqueued_at=moment(state.pushed),
        started_at=_moment(state.first),
        finished_at=moment(state.moment) if ended else None,
        last_attempted_at=_moment(state.last),
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=list(state.workers),
    )
    for line in lines:
        _tell(told, line, state)
    return told


def _as_enqueued(
    task: Task, priority: int, queue: str, backend: str, after: float | None, options: dict[str, Any]
) -> Task:
    """The task with what it was enqueued with; itself, where that is what it has anyway."""
    changed = _changes(_options(task), options)
    if after is None and (task.priority, task.queue_name, task.backend) == (priority, queue, backend):
        return task.using(**changed) if changed else task
    run_after = None if after is None else datetime.fromtimestamp(after, UTC)
    return task.using(priority=priority, queue_name=queue, backend=backend, run_after=run_after, **changed)


def _changes(own: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What the task was enqueued with, where that isn't its own."""
    both = own.keys() | options.keys()
    changed: dict[str, Any] = {
        key: options.get(key, _USUAL[key]) for key in both if own.get(key, ...) != options.get(key, ...)
    }
    if changed.get("retry_on") is not None:
        changed["retry_on"] = tuple(_imported(path, "exception") for path in changed["retry_on"])
    return changed


def _moment(ms: int) -> datetime | None:
    return moment(ms) if ms else None


def _tell(told: TaskResult, line: str, state: State) -> None:
    kind, rest = line[:1], line[1:]
    if kind == "R" and state.status == "s":
        object.__setattr__(told, "_return_value", payloads.loads_all([rest.encode()])[0])
    elif kind == "E":
        path, trace = payloads.loads_all([rest.encode()])[0]
        told.errors.append(TaskError(exception_class_path=path, traceback=trace))
    elif kind == "L":
        text = f"The worker was lost, or slower than its lease, in attempt {rest}."
        told.errors.append(_ours("LeaseLost", text))
    elif kind == CANCELLED:
        told.errors.append(_ours("TaskCancelled", "It was cancelled before it began."))


def _ours(name: str, text: str) -> TaskError:
    return TaskError(exception_class_path=f"django_redis_messaging.errors.{name}", traceback=text)
