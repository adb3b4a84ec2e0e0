"""What `@task` returns for a RedisBackend: a task with more fields than Django's, and its results."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from inspect import isclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    Protocol,
    Self,
    cast,
    overload,
)
from urllib.parse import unquote

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone

from ..core import encoding
from ..errors import InvalidArgument
from ..services.common.arguments import count, milliseconds
from ..services.jobs.engine import check_attempts, lock_need, permit_need, rate_need
from ..services.rates.rate_limit import Rate, parse_rates
from ..services.semaphores.semaphore import MAX_PERMITS
from .call_arguments import NameSource, as_bound, call_name, check_source, misfit
from .compat import InvalidTask, Task, TaskResult, normalize_json, task_backends
from .other_queues import NOT_DELAYED, RESULT_NAMES, TASK_NAMES, NotDelayed, error_of
from .retries import Backoff, check_backoff

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:  # without defaults: those of typing are new in Python 3.13
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")
#: parameters without the first one
Q = ParamSpec("Q")
T = TypeVar("T", bound="RedisTask")

#: arguments of one call: positional ones, and keyword arguments
Call = tuple[Sequence[Any], Mapping[str, Any]]
#: when a call is due: a moment, or a time from now on
Due = datetime | timedelta
#: copies of a task, for other queues and priorities than its own, that are kept
MAX_COPIES = 100
#: fields that a refresh updates; `task` is among them since its run_after may change
_REFRESHED = (
    "task",
    "status",
    "enqueued_at",
    "started_at",
    "finished_at",
    "last_attempted_at",
    "errors",
    "worker_ids",
    "stored_fields",
    "_return_value",
)


class Default(Enum):
    """The value of a field that was not given, where None has another meaning."""

    TIMEOUT = "the backend's TIMEOUT"


class _Decorator(Protocol):
    """What `@task(…)` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> RedisTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> RedisTask[P, R]: ...


class _ContextDecorator(Protocol):
    """What `@task(takes_context=True)` returns: calls are enqueued without the context."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> RedisTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> RedisTask[P, R]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> RedisTask[P, R]: ...


@overload
def task(function: Callable[P, R], /) -> RedisTask[P, R]: ...


@overload
def task(*, takes_context: Literal[True], backend: str = "default", **fields: Any) -> _ContextDecorator: ...


@overload
def task(*, takes_context: Literal[False] = False, backend: str = "default", **fields: Any) -> _Decorator: ...


def task(function: Callable[..., Any] | None = None, *, backend: str = "default", **fields: Any) -> Any:
    """Django's `@task`, with the fields of RedisTask on every version of Django.

    Django 6.1's own decorator accepts them too; that of 6.0 raises TypeError.
    """
    if "run_after" in fields:
        raise TypeError("run_after can't be the same for all calls: set it by .using(run_after=...).")

    def wrap(wrapped: Callable[..., Any]) -> Any:
        # the Task of Django 6.0 has no defaults for these
        chosen = {"priority": 0, "queue_name": "default", "run_after": None, **fields}
        return task_backends[backend].task_class(func=wrapped, backend=backend, **chosen)

    return wrap if function is None else wrap(function)


class RememberingTask(Task):
    """A task with what takes long to work out. No fields: it is not a part of the task's value."""

    __slots__ = ("_copies", "_plan", "_stored")
    #: what its backend has worked out for its calls
    _plan: Any
    #: the options that are stored with its calls
    _stored: dict[str, Any]
    #: (backend, queue, priority) → copy
    _copies: dict[tuple[str, str, int], Self]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTask(RememberingTask, Generic[P, R]):
    """What `@task` returns for a function whose backend is a RedisBackend. P are its parameters without the
    context, R is what it returns; both are for type checkers only."""

    #: maximum number of attempts; None: the backend's MAX_ATTEMPTS, and an exception ends the task: only
    #: attempts whose worker was lost are repeated
    max_attempts: int | None = None
    #: exceptions after which the task is retried; None: any if max_attempts is given, else none
    retry_on: tuple[type[BaseException], ...] | None = None
    #: exceptions after which the task is not retried, among those of `retry_on`
    give_up_on: tuple[type[BaseException], ...] = ()
    #: seconds before the next attempt: a number; a sequence, whose last one repeats; or a function of the
    #: number of the attempt that failed, or of the exception and the TaskResult, which may return None to
    #: give up. None: the backend's BACKOFF
    backoff: Backoff | None = None
    #: seconds an attempt may take; None: no timeout; not given: the backend's TIMEOUT
    timeout: float | Default | None = Default.TIMEOUT
    #: seconds that the result is kept after the task succeeded or was cancelled; 0: it is not stored; None:
    #: the backend's RESULT_TTL
    result_ttl: float | None = None
    #: key that only one waiting or running call may have: True: the arguments; a str; or a function of the
    #: arguments that returns the key
    unique: bool | str | Callable[..., str] = False
    #: with `unique`: what a call does that finds another one with its key. "keep": it leaves that one as it
    #: is. "replace": it replaces the arguments of one that waits in the same queue, which begins anew, and is
    #: enqueued beside one that runs
    on_duplicate: Literal["keep", "replace"] = "keep"
    #: seconds that each call waits before it runs, unless it has a run_after; None: it does not wait. Write
    #: `delay == None` or `not delay`: the default is equal to None, but `delay is None` is False
    delay: float | None = cast(None, NOT_DELAYED)  # which is callable: see NotDelayed
    #: when the call is sent: False: at once; True: when all open transactions are committed; a database
    #: alias: when the transaction of that database is committed
    on_commit: bool | str | None = None
    #: task that is enqueued when a call succeeds, with the return value as its first argument
    then: Task | BoundTask | None = None
    #: name of the Lock that a call holds while it runs: a str with parameters in braces, or a function of the
    #: arguments
    lock: NameSource | None = None
    #: number of calls with the same `concurrency_key` that may run at a time; None: any number
    concurrency: int | None = None
    #: like `lock`; None: the dotted name of the task
    concurrency_key: NameSource | None = None
    #: how many calls with the same `rate_key` may start in a period, such as "100/m" or "10/s, 1000/h"; None:
    #: any number
    rate: str | None = None
    #: like `lock`; None: the dotted name of the task
    rate_key: NameSource | None = None
    #: like `lock`: calls of one priority are shared by turns between the groups that wait; None: a group of
    #: all calls without one
    group: NameSource | None = None
    #: when a call that has not been started fails instead: seconds after it is enqueued, or a datetime; None:
    #: never
    expires: float | timedelta | datetime | None = None
    #: like `lock`: names by which calls can be cancelled together, up to 10
    tags: tuple[NameSource, ...] = ()

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: Due | None = None,
        backend: str | None = None,
        **more: Any,
    ) -> Self:
        """A copy with other values: Django's fields, and the fields of this class. For the latter None is a
        value, too. A timedelta as `run_after` is a `delay`: it counts from each enqueue()."""
        changes: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
        }
        changes = {key: value for key, value in changes.items() if value is not None}
        if isinstance(run_after, timedelta):
            changes.update(run_after=None, delay=_seconds_until(run_after))
        return replace(self, **{**more, **changes})

    if not TYPE_CHECKING:  # else type checkers accept any name

        def __getattr__(self, name: str) -> Any:
            if name in TASK_NAMES:
                raise error_of("task", name, TASK_NAMES[name])
            return object.__getattribute__(self, name)  # raises the error that has led here

    if TYPE_CHECKING:  # Django's methods

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> RedisTaskResult[R]: ...
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> RedisTaskResult[R]: ...
        def get_result(self, result_id: str) -> RedisTaskResult[R]: ...
        async def aget_result(self, result_id: str) -> RedisTaskResult[R]: ...
        def call(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def with_args(self: RedisTask[Concatenate[Any, Q], Any], *args: Q.args, **kwargs: Q.kwargs) -> BoundTask:
        """The task as a follow-up with further arguments, behind the return value of the task before it.

        Raises TypeError if the task can't be called with them."""
        _check_follow_up_call(self, args, kwargs, self.module_path)
        return BoundTask(self, normalize_json(args), normalize_json(kwargs))

    def copied_to(self, backend: str, queue_name: str, priority: int) -> Self:
        """A copy with these values, the same one each time. At most MAX_COPIES are kept."""
        try:
            copies = self._copies
        except AttributeError:
            copies = {}
            object.__setattr__(self, "_copies", copies)
        key = (backend, queue_name, priority)
        copy = copies.get(key)
        if copy is None:
            copy = self.using(backend=backend, queue_name=queue_name, priority=priority)
            if len(copies) < MAX_COPIES:
                copies[key] = copy
        return copy

    def enqueue_on_commit(self, using: str = DEFAULT_DB_ALIAS) -> Self:
        """A copy whose calls are sent when the transaction of that database is committed."""
        return replace(self, on_commit=using)

    def enqueue_many(self, calls: Iterable[Call]) -> list[RedisTaskResult[R]]:
        """Enqueue a call for each `(args, kwargs)`: up to 200 calls or 1 MiB in a round trip."""
        return self._backend.enqueue_many(self, list(calls))

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[RedisTaskResult[R]]:
        """See enqueue_many()."""
        return await self._backend.aenqueue_many(self, list(calls))

    def cancel(self, result_id: str) -> bool:
        """Cancel a call, in whichever queue it waits, also while it runs: its result is FAILED then."""
        return self._backend.cancel(self, result_id)

    async def acancel(self, result_id: str) -> bool:
        """See cancel()."""
        return await self._backend.acancel(self, result_id)

    def reschedule(self, result_id: str, run_after: Due) -> bool:
        """Change when a call that has not started runs: a moment, or a timedelta from now on."""
        return self._backend.reschedule(self, result_id, run_after)

    async def areschedule(self, result_id: str, run_after: Due) -> bool:
        """See reschedule()."""
        return await self._backend.areschedule(self, result_id, run_after)

    def set_priority(self, result_id: str, priority: int) -> bool:
        """Change the priority (-100 to 100) of a call that has not started. If it is ready, it comes behind
        those of its new priority."""
        return self._backend.set_priority(self, result_id, priority)

    async def aset_priority(self, result_id: str, priority: int) -> bool:
        """See set_priority()."""
        return await self._backend.aset_priority(self, result_id, priority)

    def get_backend(self) -> Any:
        """The backend of the task."""
        return task_backends[self.backend]

    @property
    def retries(self) -> tuple[type[BaseException], ...]:
        """The exceptions after which the task is retried."""
        if self.retry_on is not None:
            return self.retry_on
        return () if self.max_attempts is None else (Exception,)

    def unique_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The unique key of a call; empty if the task is not unique."""
        if self.unique is False:
            return ""
        if self.unique is True:
            # arguments that the function can't distinguish have one key, however they were passed
            positional, named = as_bound(self.func, self.takes_context, args, kwargs)
            chosen: Any = [list(positional), sorted(named.items())]
        else:
            chosen = call_name(self.unique, "unique", self.func, self.takes_context, args, kwargs)
        if self.replaces:
            chosen = [chosen, self.queue_name]  # a script that replaces a call has the keys of one queue
        key = encoding.dumps([self.module_path, chosen], "unique key", sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:32]

    @property
    def replaces(self) -> bool:
        """Whether a call replaces a waiting one that has its unique key."""
        return self.on_duplicate == "replace"

    def needs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """What a call needs to start, as it is stored with the job; empty for nothing."""
        found: list[str] = []
        if self.lock is not None:
            found.append(lock_need(self._name(self.lock, "lock", args, kwargs)))
        if self.concurrency is not None:
            key = self._name(self.concurrency_key, "concurrency_key", args, kwargs)
            found.append(permit_need(key, self.concurrency))
        if self.rate is not None:
            key = self._name(self.rate_key, "rate_key", args, kwargs)
            found += [rate_need(key, one.limit, round(one.period * 1000)) for one in _rates(self.rate)]
        return ",".join(found)

    def _name(
        self, source: NameSource | None, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str:
        if source is None:
            return self.module_path
        return call_name(source, what, self.func, self.takes_context, args, kwargs)

    @property
    def _backend(self) -> Control:
        return control_of(self.backend)


@dataclass(frozen=True, slots=True)
class BoundTask:
    """A follow-up: a task with the arguments behind the return value, as JSON values."""

    task: RedisTask
    args: list[Any]
    kwargs: dict[str, Any]

    def using(self, **changes: Any) -> Self:
        """See RedisTask.using()."""
        return replace(self, task=self.task.using(**changes))


def chain(first: T, *rest: RedisTask | BoundTask) -> T:
    """A copy of the task `first` that is followed by the others, one after the other: see `then`.

        chain(load, resize.with_args(640), publish).enqueue(7)

    Each gets the return value of the one before it, and the arguments that it was given by with_args(). A
    failure ends the chain. Raises InvalidTask for a task that can't be a follow-up.
    """
    then: RedisTask | BoundTask | None = None
    for one in reversed(rest):
        then = one if then is None else one.using(then=then)
    return first if then is None else first.using(then=then)


def as_follow_up(then: Task | BoundTask) -> BoundTask:
    """A follow-up, with no further arguments if it was given none."""
    return then if isinstance(then, BoundTask) else BoundTask(cast(RedisTask, then), [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTaskResult(TaskResult, Generic[R]):
    """What enqueue() and get_result() return."""

    #: the fields of its job that never change, as they are stored
    stored_fields: str = field(default="", repr=False, compare=False)
    if TYPE_CHECKING:

        @property
        def return_value(self) -> R: ...

    else:

        def __getattr__(self, name: str) -> Any:
            if name in RESULT_NAMES:
                raise error_of("result", name, RESULT_NAMES[name])
            return object.__getattribute__(self, name)  # raises the error that has led here

    def __post_init__(self) -> None:
        """Leave the arguments as they are: their maker has normalized them, or has read them from JSON."""

    @property
    def then_id(self) -> str | None:
        """The id of the call of the task `then`, which may not be enqueued yet; None if there is no such
        task."""
        return None if getattr(self.task, "then", None) is None else follow_up_id(self.id)

    @property
    def group(self) -> str | None:
        """The group with which the call takes turns; None if it has none."""
        return unquote(self._stored("group")) or None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the call."""
        return tuple(unquote(tag) for tag in self._stored("tags").split(",") if tag)

    @property
    def expires_at(self) -> datetime | None:
        """When the call fails unless it has been started; None: never, or not known before it is sent."""
        expires = self._stored("expires")
        if not expires.startswith("+"):
            zone = UTC if settings.USE_TZ else None
            return datetime.fromtimestamp(int(expires) / 1000, zone) if expires else None
        return self.enqueued_at and self.enqueued_at + timedelta(milliseconds=int(expires))

    @property
    def then_ids(self) -> list[str]:
        """The ids of all calls that follow, one after the other: the last one is the end of a chain."""
        ids: list[str] = []
        task, result_id = self.task, self.id
        while (then := getattr(task, "then", None)) is not None:
            task, result_id = as_follow_up(then).task, follow_up_id(result_id)
            ids.append(result_id)
        return ids

    def refresh(self) -> None:
        """Read the current state."""
        self._update(self._backend.get_result(self.id))

    async def arefresh(self) -> None:
        """See refresh()."""
        self._update(await self._backend.aget_result(self.id))

    def cancel(self) -> bool:
        """Cancel the task: its result is FAILED then. One that runs is interrupted by its worker within about
        a second; if it ends before, its result stands. False if it has ended."""
        return self._backend.cancel(self.task, self.id)

    async def acancel(self) -> bool:
        """See cancel()."""
        return await self._backend.acancel(self.task, self.id)

    def reschedule(self, run_after: Due) -> bool:
        """Change when the task runs, if it has not started: a moment, or a timedelta from now on."""
        moment = moment_of(run_after)
        return self._rescheduled(moment, self._backend.reschedule(self.task, self.id, moment))

    async def areschedule(self, run_after: Due) -> bool:
        """See reschedule()."""
        moment = moment_of(run_after)
        return self._rescheduled(moment, await self._backend.areschedule(self.task, self.id, moment))

    def set_priority(self, priority: int) -> bool:
        """Change the priority (-100 to 100) of the task, if it has not started. If it is ready, it comes
        behind those of its new priority."""
        return self._prioritized(priority, self._backend.set_priority(self.task, self.id, priority))

    async def aset_priority(self, priority: int) -> bool:
        """See set_priority()."""
        return self._prioritized(priority, await self._backend.aset_priority(self.task, self.id, priority))

    @property
    def _backend(self) -> Control:
        return control_of(self.backend)

    def _update(self, fresh: TaskResult) -> None:
        for name in _REFRESHED:
            object.__setattr__(self, name, getattr(fresh, name))

    def _rescheduled(self, run_after: datetime, done: bool) -> bool:
        if done:
            object.__setattr__(self, "task", replace(self.task, run_after=run_after))
        return done

    def _prioritized(self, priority: int, done: bool) -> bool:
        if done:
            object.__setattr__(self, "task", replace(self.task, priority=priority))
        return done

    def _stored(self, name: str) -> str:
        found = re.search(rf" {name}=(\S*)", self.stored_fields)
        return found[1] if found else ""


def moment_of(run_after: Due) -> datetime:
    """When a call is due."""
    if not isinstance(run_after, timedelta):
        return run_after
    try:
        return timezone.now() + run_after
    except OverflowError:
        raise InvalidArgument(f"run_after is too long or too short: {run_after}.") from None


def _seconds_until(run_after: timedelta) -> float:
    """The `delay` of calls that run after this time; 0 for a negative one. Raises InvalidTask if it is too
    long."""
    delay = max(run_after, timedelta())
    try:
        milliseconds(delay, "run_after")
    except InvalidArgument as error:
        raise InvalidTask(str(error)) from error
    return delay.total_seconds()


def follow_up_id(result_id: str) -> str:
    """The id of the call that follows a call: the same one whenever it is computed."""
    return result_id[0] + hashlib.sha256(result_id.encode()).hexdigest()[:31]


class Control(Protocol):
    """RedisBackend, as its tasks and results see it."""

    def enqueue_many(self, task: Task, calls: Sequence[Call]) -> list[Any]: ...
    async def aenqueue_many(self, task: Task, calls: Sequence[Call]) -> list[Any]: ...
    def get_result(self, result_id: str) -> TaskResult: ...
    async def aget_result(self, result_id: str) -> TaskResult: ...
    def cancel(self, task: Task, result_id: str) -> bool: ...
    async def acancel(self, task: Task, result_id: str) -> bool: ...
    def reschedule(self, task: Task, result_id: str, run_after: Due) -> bool: ...
    async def areschedule(self, task: Task, result_id: str, run_after: Due) -> bool: ...
    def set_priority(self, task: Task, result_id: str, priority: int) -> bool: ...
    async def aset_priority(self, task: Task, result_id: str, priority: int) -> bool: ...


def control_of(backend: str) -> Control:
    """The backend of an alias of TASKS."""
    return cast(Control, task_backends[backend])


def check_fields(task: RedisTask) -> None:
    """Raise TypeError or InvalidArgument for a value that is not allowed."""
    if task.max_attempts is not None:
        check_attempts(task.max_attempts, "max_attempts")
    if not isinstance(task.timeout, Default):
        _check_seconds(task.timeout, "timeout", minimum=1)
    _check_seconds(task.result_ttl, "result_ttl")
    if task.backoff is not None:
        check_backoff(task.backoff)
    for what, kinds in (("retry_on", task.retry_on or ()), ("give_up_on", task.give_up_on)):
        if not isinstance(kinds, tuple) or not all(is_exception(kind) for kind in kinds):
            raise TypeError(f"{what} must be a tuple of exceptions.")
    if not isinstance(task.delay, NotDelayed):
        _check_seconds(task.delay, "delay")
    if task.on_duplicate not in ("keep", "replace"):
        raise InvalidArgument(f"on_duplicate must be 'keep' or 'replace', not {task.on_duplicate!r}.")
    if task.on_commit not in (None, False, True, *connections):
        raise InvalidArgument(
            f"on_commit must be True, False or an alias of DATABASES, not {task.on_commit!r}."
        )
    if task.replaces and task.unique is False:
        raise InvalidArgument("on_duplicate='replace' needs unique: the key of the calls that are replaced.")
    _check_names(task)
    if task.then is not None:
        _check_follow_up(task, task.then)


def is_exception(value: Any) -> bool:
    """Whether the value is a class of exceptions."""
    return isclass(value) and issubclass(value, BaseException)


def _check_seconds(value: Any, what: str, minimum: int = 0) -> None:
    """Check a duration, at least `minimum` ms, that is stored with the call in seconds."""
    if isinstance(value, timedelta):
        raise TypeError(f"{what} must be seconds, not a timedelta: pass its .total_seconds().")
    if value is not None:
        milliseconds(value, what, minimum=minimum)


def _check_names(task: RedisTask) -> None:
    if not isinstance(task.unique, bool):
        check_source(task.unique, "unique", task.func, task.takes_context)
    if task.lock is not None:
        check_source(task.lock, "lock", task.func, task.takes_context)
    if task.concurrency is not None:
        count(task.concurrency, "concurrency", maximum=MAX_PERMITS)
    if task.rate is not None:
        _check_rate(task.rate)
    _check_key(task, "concurrency", "the number of calls that may run")
    _check_key(task, "rate", 'how many calls may start in a period, such as "100/m"')


def _check_rate(rate: Any) -> None:
    if not isinstance(rate, str):
        raise TypeError(f'rate must be a str such as "100/m", not {type(rate).__name__}.')
    try:
        _rates(rate)
    except InvalidArgument as error:
        raise InvalidArgument(f"rate: {error}") from None


def _check_key(task: RedisTask, what: str, meaning: str) -> None:
    """Check the key of a limit that a task may have."""
    key = getattr(task, f"{what}_key")
    if key is not None:
        if getattr(task, what) is None:
            raise InvalidArgument(f"{what}_key needs {what}: {meaning}.")
        check_source(key, f"{what}_key", task.func, task.takes_context)


@functools.lru_cache(maxsize=1024)
def _rates(text: str) -> tuple[Rate, ...]:
    return parse_rates(text)


def _check_follow_up(task: RedisTask, then: Any) -> None:
    args, kwargs = ([], {})
    if isinstance(then, BoundTask):
        then, args, kwargs = then.task, then.args, then.kwargs
    if not isinstance(then, RedisTask):
        raise TypeError(f"then must be a task of a RedisBackend, not {type(then).__name__}.")
    if then.backend != task.backend:
        raise InvalidArgument(
            f"then must be a task of the same backend, {task.backend!r}, not of {then.backend!r}."
        )
    if then.run_after is not None:
        raise InvalidArgument("then must have no run_after: it is enqueued when the task before it succeeds.")
    _check_follow_up_call(then, args, kwargs, "then")


def _check_follow_up_call(task: RedisTask, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> None:
    if (problem := misfit(task, (None, *args), kwargs)) is not None:
        raise TypeError(
            f"{what} must take the return value as its first argument, and those of with_args(): {problem}."
        )
