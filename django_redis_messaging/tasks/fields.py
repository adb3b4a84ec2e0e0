"""The check of the fields that a RedisTask has beyond Django's."""

from __future__ import annotations

from datetime import timedelta
from inspect import isclass
from typing import Any

from ..errors import InvalidArgument
from ..services.arguments import count, milliseconds
from ..services.jobs.engine import check_attempts
from ..services.semaphores.steps import MAX_PERMITS
from .names import check_argument, check_source
from .task import Default, RedisTask


def check_fields(task: RedisTask) -> None:
    """Raise TypeError or InvalidArgument for a value that is not allowed."""
    if task.max_attempts is not None:
        check_attempts(task.max_attempts, "max_attempts")
    if not isinstance(task.timeout, Default):
        _check_seconds(task.timeout, "timeout", minimum=1)
    _check_seconds(task.result_ttl, "result_ttl")
    kinds = task.retry_on or ()
    if not isinstance(kinds, tuple) or not all(is_exception(kind) for kind in kinds):
        raise TypeError("retry_on must be a tuple of exceptions.")
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
    if task.lock is not None:
        check_source(task.lock, "lock", task.func, task.takes_context)
    if task.concurrency is not None:
        count(task.concurrency, "concurrency", maximum=MAX_PERMITS)
    if task.concurrency_key is not None:
        if task.concurrency is None:
            raise InvalidArgument("concurrency_key needs concurrency: the number of calls that may run.")
        check_source(task.concurrency_key, "concurrency_key", task.func, task.takes_context)


def _check_follow_up(task: RedisTask, then: Any) -> None:
    if not isinstance(then, RedisTask):
        raise TypeError(f"then must be a task of a RedisBackend, not {type(then).__name__}.")
    if then.backend != task.backend:
        raise InvalidArgument(
            f"then must be a task of the same backend, {task.backend!r}, not of {then.backend!r}."
        )
    if then.run_after is not None:
        raise InvalidArgument("then must have no run_after: it is enqueued when the task before it succeeds.")
    try:
        check_argument(then.func, then.takes_context)
    except TypeError as error:
        raise TypeError(f"then must take one argument, the return value: {error}.") from None
