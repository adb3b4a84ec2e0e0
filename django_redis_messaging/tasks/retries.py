"""Whether and when a task is attempted again after a failure: its `backoff`, and `retry()`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import Parameter
from typing import Any, NoReturn

from ..core.operations import log_exception
from ..errors import RetriesExhausted
from ..services.common.arguments import Duration, milliseconds
from ..services.jobs.engine import State
from ..services.jobs.queue import retry_delay
from .compat import Task, TaskResult

logger = logging.getLogger(__name__)

#: seconds; a sequence of them, whose last one repeats; or a function that returns them, or None to give up:
#: of the number of the attempt that failed (from 1), or of the exception and the TaskResult
Backoff = (
    float
    | Sequence[float]
    | Callable[[int], float | None]
    | Callable[[BaseException, TaskResult], float | None]
)


class Retry(BaseException):
    """What retry() raises. Not an Exception: `except Exception` in a task must not turn the retry into a
    success, as with the interrupt of a timeout and the cancellation of a coroutine."""

    def __init__(self, delay: int | None = None) -> None:
        super().__init__("The task called retry().")
        #: ms; None: by the backoff
        self.delay = delay


def retry(delay: Duration | None = None) -> NoReturn:
    """End this attempt at a task, and make another one after `delay` seconds; None: after the task's backoff.

    The attempt counts. In the last one, the task fails with RetriesExhausted. Only `max_attempts` limits
    these retries, or without it MAX_ATTEMPTS of the backend: `retry_on` and `give_up_on` don't apply.

        @task(max_attempts=10)
        def fetch(url):
            response = httpx.get(url)
            if response.status_code == 429:
                retry(delay=int(response.headers["Retry-After"]))

    Raises Retry, which is no Exception; InvalidArgument for an invalid delay.
    """
    raise Retry(None if delay is None else milliseconds(delay, "delay"))


def final_error(error: BaseException, state: State) -> BaseException:
    """What an attempt that ended with `error` failed with: in the last one, retry() is an error."""
    if not _is_retry(error) or state.failures < state.max_attempts:
        return error
    exhausted = RetriesExhausted(f"The task called retry() in the last of {state.max_attempts} attempts.")
    exhausted.__cause__ = error
    return exhausted


def next_attempt(
    task: Task,
    backoff: Backoff | None,
    failed_result: Callable[[], TaskResult],
    error: BaseException,
    state: State,
) -> int | None:
    """The ms after which a task that failed with `error` is attempted again; None: it is not."""
    if state.failures >= state.max_attempts or not _is_retried(task, error):
        return None
    if isinstance(error, Retry) and error.delay is not None:
        return error.delay
    try:
        return _after_backoff(backoff, failed_result, error, state.failures)
    except Exception as own_error:
        message = "The backoff of %s failed; JOB_BACKOFF applies."
        log_exception(logger, own_error, message, task.module_path)
        return round(retry_delay(state.failures) * 1000)


def _after_backoff(
    backoff: Any, failed_result: Callable[[], TaskResult], error: BaseException, attempt: int
) -> int | None:
    if backoff is None:
        return round(retry_delay(attempt) * 1000)
    if callable(backoff):
        seconds: Any = backoff(error, failed_result()) if _takes_result(backoff) else backoff(attempt)
        return None if seconds is None else milliseconds(seconds, "backoff")
    is_single = not isinstance(backoff, list | tuple)
    chosen: Any = backoff if is_single else backoff[min(attempt, len(backoff)) - 1]
    return milliseconds(chosen, "backoff")


def _is_retried(task: Task, error: BaseException) -> bool:
    if _is_retry(error):
        return True
    kind, given_up = type(error), getattr(task, "give_up_on", ())
    return issubclass(kind, getattr(task, "retries", ())) and not issubclass(kind, given_up)


def _is_retry(error: BaseException) -> bool:
    return issubclass(type(error), Retry)  # not isinstance: a class may say that it is another one


def check_backoff(backoff: Any, what: str = "backoff") -> None:
    """Raise TypeError or InvalidArgument for a value that is not allowed."""
    if callable(backoff):
        try:
            inspect.signature(backoff).bind(*([None] * (1 + _takes_result(backoff))))
        except TypeError as error:
            raise TypeError(
                f"{what} must take the number of the attempt, or the exception and the result: {error}."
            ) from None
        return
    each: list[Any] = list(backoff) if isinstance(backoff, list | tuple) else [backoff]
    if not each or any(isinstance(one, timedelta) for one in each):
        raise TypeError(f"{what} must be seconds, a sequence of them, or a function, not {backoff!r}.")
    for one in each:
        milliseconds(one, what)


def _takes_result(backoff: Callable[..., Any]) -> bool:
    """Whether a function takes the exception and the result, and not the number of the attempt."""
    required = [
        one
        for one in inspect.signature(backoff).parameters.values()
        if one.default is Parameter.empty
        and one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) > 1
