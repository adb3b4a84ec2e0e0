"""Tasks as jobs: the stored form of a call, and the result that is read back.

A job's payload is a JSON list: the dotted path of the task, its queue, its run_after, the arguments, the
keyword arguments, and the options of the task.
A job's log has a line for each event: R and the return value, E and the fields of an error, L and the number
of an attempt whose lease expired, A and a new run_after, C for a cancellation, S for a call that a newer one
with its unique key has replaced while it ran, U and the time (ms) at which a
worker found the task unknown.

A job is data: whoever can write to Redis chooses the path of its task. Importing a module runs its code, so
only modules of the site are imported by such a path. A module that this process has imported already is used
whatever it is, since that runs no code.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NamedTuple, cast

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string, module_has_submodule

from .. import conf
from ..core import encoding
from ..core.operations import format_traceback, name_of
from ..errors import LimitExceeded
from ..services.jobs.engine import JobRecord, State
from .compat import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from .task import BoundTask, Default, RedisTask, RedisTaskResult, as_follow_up, is_exception

logger = logging.getLogger(__name__)

#: option of a backend in TASKS: modules and packages beyond the installed apps
TASK_MODULES = "TASK_MODULES"
#: tasks that are remembered by their paths
MAX_FOUND = 10_000
#: characters of a traceback that are kept: the end names the error
MAX_TRACEBACK = 8000
#: the log line of a cancellation
CANCELLED = "C"
#: the log line of a call that a newer one with its unique key has replaced while it ran
SUPERSEDED = "S"
#: the first character of the log line of a task that a worker found unknown
UNKNOWN = "U"
#: options that are stored with a call, and their values where nothing is stored: a deploy doesn't change them
STORED: dict[str, Any] = {
    "timeout": Default.TIMEOUT,
    "max_attempts": None,
    "retry_on": None,
    "give_up_on": (),
    "backoff": None,
    "result_ttl": None,
    "then": None,
}
#: those of them that are exceptions
EXCEPTIONS = {"retry_on", "give_up_on"}
#: stored in place of a `backoff` that is a function
OF_DECORATOR = "of the decorator"
#: options that are stored only if using() changed them: a deploy changes those of the code. With a follow-up
#: all of them; a call has its unique key and its needs instead
CHANGEABLE = (
    "unique", "on_duplicate", "delay", "lock", "concurrency", "concurrency_key", "rate", "rate_key", "group",
    "expires", "tags",
)  # fmt: skip

#: the status of a result by that of its job
STATUS = {
    "waiting": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
    "expired": TaskResultStatus.FAILED,
}


class UnknownTask(InvalidTask):
    """This code doesn't define the task of a job, or an option of its call; newer code may define it."""


def payload_frame(task: Task) -> tuple[str, str]:
    """The stored form of a call before and after its arguments, which is the same for all calls of a task."""
    after = None if task.run_after is None else task.run_after.timestamp()
    head = encoding.dumps([task.module_path, task.queue_name, after], "task")
    return head[:-1] + ",", "," + encoding.dumps(_options(task), "options")


def payload(frame: tuple[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The stored form of a call."""
    before, after = frame
    # in one list: the depth to which arguments may be nested counts from the payload
    given = encoding.dumps([args, kwargs], "arguments")[1:-1]
    return _limited(f"{before}{given}{after}]", "a task's arguments (bytes)")


def _options(task: Task) -> dict[str, Any]:
    """The options STORED of a task that differ from their values there, as they are stored."""
    if not isinstance(task, RedisTask):
        return {}
    try:
        return task._stored
    except AttributeError:
        options = _stored_options(task)
        object.__setattr__(task, "_stored", options)
        return options


def _stored_options(task: RedisTask) -> dict[str, Any]:
    options = {key: value for key, default in STORED.items() if (value := getattr(task, key)) != default}
    for key in EXCEPTIONS & options.keys():
        options[key] = _stored_exceptions(task, key, options[key])
    if "backoff" in options:
        options["backoff"] = _stored_backoff(task, options["backoff"])
    if "then" in options:
        given, then = options["then"], as_follow_up(options["then"]).task
        more = {**_options(then), **_changed(then, CHANGEABLE)}
        options["then"] = [then.module_path, then.backend, then.queue_name, then.priority, more]
        if isinstance(given, BoundTask):
            options["then"] += [given.args, given.kwargs]
    return options


def _changed(task: Task, keys: Sequence[str]) -> dict[str, Any]:
    """Those of these options that using() has changed."""
    own = find_task(task.module_path)
    changed = {key: value for key in keys if (value := getattr(task, key)) != getattr(own, key, None)}
    if isinstance(changed.get("expires"), timedelta):
        changed["expires"] = changed["expires"].total_seconds()
    for key, value in changed.items():
        if isinstance(value, datetime):
            raise InvalidTask(f"{key} of {task.module_path!r} in then must be seconds, not a datetime.")
        if callable(value) or (isinstance(value, tuple) and any(map(callable, value))):
            raise InvalidTask(
                f"{key} of {task.module_path!r} in then is a function given to using(), which can't be "
                "stored: use a str, or give the function to @task."
            )
    return changed


def _stored_exceptions(task: Task, key: str, kinds: Sequence[type[BaseException]]) -> list[str]:
    """The exceptions of this option as they are stored with a call. Only those of the decorator may have no
    path that leads to them: a call for which none is found has those of its decorator."""
    unfound = [kind for kind in kinds if not can_be_found(kind)]
    if unfound and kinds != getattr(find_task(task.module_path), key, None):
        raise InvalidTask(
            f"{unfound[0].__qualname__!r} in {key} can't be imported by its name, so it can't be stored "
            "with a call: define it at the top level of a module, or give it to @task."
        )
    return [path(kind) for kind in kinds]


def _stored_backoff(task: Task, backoff: Any) -> Any:
    """A `backoff` as it is stored with a call. A function is that of the decorator, then and now."""
    if not callable(backoff):
        return list(backoff) if isinstance(backoff, tuple) else backoff
    if backoff is not getattr(find_task(task.module_path), "backoff", None):
        raise InvalidTask(
            f"backoff of {task.module_path!r} is a function given to using(), which can't be stored with a "
            "call: use numbers, or give the function to @task."
        )
    return OF_DECORATOR


def _limited(encoded: str, what: str) -> str:
    """`encoded`, or LimitExceeded if it is too large."""
    limit = conf.current().JOB_MAX_BYTES
    size = len(encoded) if encoded.isascii() else len(encoded.encode())
    if size > limit:
        raise LimitExceeded(what, limit=limit, actual=size, setting="JOB_MAX_BYTES")
    return encoded


def queue_name(payload: bytes) -> str:
    """The queue of a stored call."""
    return str(encoding.loads_all([payload])[0][1])


class StoredCall(NamedTuple):
    """A call as it is stored."""

    task: Task
    args: list[Any]
    kwargs: dict[str, Any]


def parse_result(backend: str, record: JobRecord) -> TaskResult:
    """The current result of a job."""
    lines = _lines(record)
    rescheduled_to = [line for line in lines if line.startswith("A")]
    call = parse_call(backend, record.payload, record.state, rescheduled_to)
    found = result_of(backend, record.id, record.state, call)
    found.errors.extend(errors_of(record))
    if record.state.status == "succeeded":
        for line in lines:
            if line.startswith("R"):
                object.__setattr__(found, "_return_value", encoding.loads_all([line[1:].encode()])[0])
    return found


def errors_of(record: JobRecord) -> list[TaskError]:
    """The errors of a job in their order: those of its attempts, and what else ended it."""
    found = [error for line in _lines(record) if (error := error_of(line, record.state)) is not None]
    if record.state.status == "expired":
        when = moment(record.state.moment).isoformat()
        found.append(_own_error("TaskExpired", f"The task had not been started at {when}."))
    return found


def _lines(record: JobRecord) -> list[str]:
    return record.log.decode().split("\n") if record.log else []


def parse_call(backend: str, payload: bytes, state: State, rescheduled_to: Sequence[str] = ()) -> StoredCall:
    """The call of a job. `rescheduled_to`: lines of its log, see `rescheduled`."""
    path, queue, after, args, kwargs, options = encoding.loads_all([payload])[0]
    if rescheduled_to:
        [after] = encoding.loads_all([rescheduled_to[-1][1:].encode()])
    task = _as_enqueued(find_task(path), options, backend, queue, state.priority, after)
    return StoredCall(task, args, kwargs)


def result_of(backend: str, job_id: str, state: State, call: StoredCall) -> TaskResult:
    """The result of a call in this state, without what its log says."""
    status, first = STATUS[state.status], _moment(state.first)
    ended = status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
    return RedisTaskResult(
        task=call.task,
        id=job_id,
        status=status,
        enqueued_at=moment(state.pushed),
        started_at=first,
        finished_at=moment(state.moment) if ended else None,
        last_attempted_at=first if state.last == state.first else _moment(state.last),
        args=call.args,
        kwargs=call.kwargs,
        backend=backend,
        errors=[],
        worker_ids=list(state.workers),
        stored_fields=state.more,
    )


def _as_enqueued(
    task: Task, options: dict[str, Any], backend: str, queue: str, priority: int, after: float | None = None
) -> Task:
    """The task with the values it was enqueued with; unchanged if those are its own."""
    changed = _restored(task, options)
    if after is None and not changed:
        if (task.backend, task.queue_name, task.priority) == (backend, queue, priority):
            return task
        if isinstance(task, RedisTask):
            return task.copied_to(backend, queue, priority)
    run_after = None if after is None else _from_timestamp(after)
    return task.using(backend=backend, queue_name=queue, priority=priority, run_after=run_after, **changed)


def _restored(task: Task, options: dict[str, Any]) -> dict[str, Any]:
    """The options it was enqueued with that differ from the task's own."""
    own = _options(task)
    if options == own:
        return {}
    if unknown := options.keys() - STORED.keys() - set(CHANGEABLE):
        raise UnknownTask(f"A call of {task.module_path!r} has unknown options: {sorted(unknown)}.")
    changed = {
        key: value
        for key, value in {**STORED, **options}.items()
        if value != own.get(key, STORED.get(key, ...))
    }
    if "tags" in changed:
        changed["tags"] = tuple(changed["tags"])
    for key in EXCEPTIONS & changed.keys():
        paths = changed.pop(key)
        kinds = find_exceptions(paths or (), key, task.module_path)
        if kinds or not paths:
            changed[key] = None if paths is None else kinds
    if changed.get("backoff") == OF_DECORATOR:
        del changed["backoff"]
    if changed.get("then") is not None:
        path, backend, queue, priority, more, *given = changed["then"]
        then = _as_enqueued(find_task(path), more, backend, queue, priority)
        changed["then"] = BoundTask(cast(RedisTask, then), *given) if given else then
    return changed


def moment(ms: float) -> datetime:
    """Milliseconds of the server's clock as `timezone.now()` would return them."""
    return _from_timestamp(ms / 1000)


def _moment(ms: int) -> datetime | None:
    return moment(ms) if ms else None


def _from_timestamp(seconds: float) -> datetime:
    """An aware datetime, or with USE_TZ=False a naive one in local time."""
    return datetime.fromtimestamp(seconds, UTC if settings.USE_TZ else None)


def returned(value: Any) -> str:
    """The log line of a return value."""
    return "R" + _limited(encoding.dumps(value, "return value"), "a task's return value (bytes)")


def return_value(record: JobRecord) -> Any:
    """The return value of a job; None if it has not succeeded."""
    if record.state.status != "succeeded":
        return None
    return encoding.loads_all([record.log.rpartition(b"\n")[2][1:]])[0]


def failed(error: BaseException) -> str:
    """The log line of an exception."""
    # a lone surrogate, which UTF-8 can't encode, must not keep an error from being stored
    trace = format_traceback(error)[-MAX_TRACEBACK:].encode(errors="backslashreplace").decode()
    return "E" + encoding.dumps([path(type(error)), trace])


def rescheduled(run_after: datetime) -> str:
    """The log line of a new run_after."""
    return "A" + encoding.dumps(run_after.timestamp())


def add_error(result: TaskResult, line: str, state: State) -> None:
    """Add the error of a log line to a result."""
    error = error_of(line, state)
    if error is not None:
        result.errors.append(error)


def error_of(line: str, state: State) -> TaskError | None:
    """The error that a line of the log says; None if it says none."""
    kind, rest = line[:1], line[1:]
    if kind == "E":
        path, trace = encoding.loads_all([rest.encode()])[0]
        return TaskError(exception_class_path=path, traceback=trace)
    if kind == "L":
        text = f"The lease expired in attempt {rest}: the worker was lost, or could not extend it."
        return _own_error("LeaseLost", text)
    if kind == CANCELLED:
        when = "while it ran" if state.attempts else "before it started"
        return _own_error("TaskCancelled", f"The task was cancelled {when}.")
    if kind == SUPERSEDED:
        text = "A newer call with the same unique key was enqueued while this one ran, so it is not retried."
        return _own_error("TaskCancelled", text)
    return None


def first_line(path: str, traceback: str) -> str:
    """The first line of the text of an exception, with which its traceback ends. The app's own errors have
    no traceback, only the text."""
    name = path.removeprefix("builtins.").removeprefix("__main__.")
    lines = [line.lstrip(" |") for line in traceback.splitlines()]  # those of groups are indented
    for line in reversed(lines):  # further lines of the text, and notes, may follow
        if line == name or line.startswith(f"{name}: "):
            return line.removeprefix(name).removeprefix(": ")
    return lines[-1] if lines else ""


def _own_error(name: str, text: str) -> TaskError:
    return TaskError(exception_class_path=f"django_redis_messaging.errors.{name}", traceback=text)


def find_task(path: str) -> Task:
    """The task that the code defines under this path. Nothing but a task is ever called, and no module is
    imported that belongs neither to an installed app nor to TASK_MODULES. Raises UnknownTask if there is no
    such task, InvalidTask if its module can't be imported for another reason."""
    known = _found.get(path)
    if known is not None and sys.modules.get(known.module) is known.of:
        current: object = vars(known.of).get(known.name)
        if current is known.task:  # else it was replaced
            return known.task
    module, _, name = path.rpartition(".")
    if not may_be_used(module):
        raise UnknownTask(
            f"The task {path!r} is in no module of an installed app, so it was not imported: add the app to "
            f"INSTALLED_APPS, or {module!r} to {TASK_MODULES} in OPTIONS of TASKS."
        )
    try:
        found = import_string(path)
    except ImportError as error:
        raise UnknownTask(f"The task {path!r} can't be imported: was it renamed? ({error!r})") from error
    except Exception as error:
        # a module may raise anything while it is imported
        raise InvalidTask(f"The task {path!r} can't be imported: {error!r}") from error
    if not isinstance(found, Task) or found.module_path != path:
        raise UnknownTask(f"{path!r} is not a task: decorate it with @task.")
    if len(_found) < MAX_FOUND:
        _found[path] = _Found(module, sys.modules[module], name, found)
    return found


class _Found(NamedTuple):
    """A task that was found by its path."""

    #: name of its module, and this
    module: str
    of: ModuleType
    #: its name there
    name: str
    task: Task


#: by path
_found: dict[str, _Found] = {}


def may_be_used(module: str) -> bool:
    """Whether a module is imported already, or may be imported since a job names it."""
    return module in sys.modules or may_be_imported(module)


def may_be_imported(path: str) -> bool:
    """Whether a dotted path is, or is below, an installed app or an entry of TASK_MODULES."""
    return any(path == base or path.startswith(f"{base}.") for base in _bases())


def task_modules() -> Iterator[str]:
    """`tasks` of each installed app that has one, and TASK_MODULES."""
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, "tasks"):
            yield f"{app.name}.tasks"
    yield from _more_modules()


def _bases() -> Iterator[str]:
    for app in apps.get_app_configs():
        yield app.name
    yield from _more_modules()


def _more_modules() -> Iterator[str]:
    # of all backends: a task is the same task, whichever backend runs it
    backends: Mapping[str, dict[str, Any]] = getattr(settings, "TASKS", {})
    for backend in backends.values():
        yield from backend.get("OPTIONS", {}).get(TASK_MODULES, ())


def path(kind: type[BaseException]) -> str:
    """Module and qualified name, which has dots for a nested class. Both can be anything, so that the path
    may lead nowhere."""
    try:
        module = f"{kind.__module__}"
    except BaseException:
        module = "unknown"
    # a lone surrogate can't be stored
    return f"{module}.{name_of(kind)}".encode(errors="backslashreplace").decode()


def can_be_found(kind: type[BaseException]) -> bool:
    """Whether the path of an exception leads to it."""
    return _find_exception(path(kind)) is kind


def find_exceptions(paths: Sequence[str], key: str, task: str) -> tuple[type[BaseException], ...]:
    """The exceptions that the code defines under these paths. Others are left out, with a warning: the code
    may have changed since the call was enqueued."""
    kinds = [_find_exception(one) for one in paths]
    for one, kind in zip(paths, kinds, strict=True):
        if kind is None:
            logger.warning("%r, in the %s of a call of %s, is no exception; ignored.", one, key, task)
    return tuple(kind for kind in kinds if kind is not None)


def _find_exception(name: str) -> type[BaseException] | None:
    try:
        value = find_in_modules(name)
    except Exception:
        # a module may raise anything while it is imported
        return None
    return value if is_exception(value) else None


def find_in_modules(path: str) -> Any:
    """What a dotted path leads to, such as a nested class; raises any exception if it leads to nothing. No
    module is imported that may not be."""
    if may_be_imported(path):
        return resolve_name(path)
    words = path.split(".")
    for end in range(len(words) - 1, 0, -1):
        module = sys.modules.get(".".join(words[:end]))
        if module is not None:
            return reduce(getattr, words[end:], module)
    raise ImportError(f"{path!r} is in no imported module.")
