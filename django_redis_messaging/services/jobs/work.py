"""The loops that work a queue off: pop, call, ack."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol

from ... import conf
from ...core.retry import given_up_when
from ...errors import ConfigurationError, MessagingError
from ..renewing import AwaitingRenewal, Renewal
from .values import Job

if TYPE_CHECKING:
    from .queue import DelayQueue

logger = logging.getLogger(__name__)

#: seconds for which a loop waits at the queue before it looks whether it is to stop
PATIENCE = 1.0


class Stop(Protocol):
    """Says whether a loop is to end."""

    def is_set(self) -> bool: ...


def pause(attempts: int) -> float:
    """Seconds to wait before the next attempt: doubled each time, and not the same for all that failed
    together."""
    settings = conf.current()
    longest: float = min(settings.JOB_BACKOFF * 2.0 ** min(attempts - 1, 40), settings.JOB_BACKOFF_MAX)
    return longest * random.uniform(0.5, 1)  # noqa: S311


def check(callables: Mapping[str, Callable[..., Any]]) -> None:
    """Raises TypeError for what only `awork` can call."""
    for name, function in callables.items():
        if _is_coroutine_function(function):
            raise TypeError(f"{name!r} is a coroutine function: use awork, which awaits it.")


def work(queue: DelayQueue, callables: Mapping[str, Callable[..., Any]], stop: Stop, lease: float) -> None:
    """See DelayQueue.work."""
    failures = 0
    while not stop.is_set():
        try:
            with given_up_when(stop.is_set):
                jobs = queue.pop(1, lease=lease, wait=PATIENCE)
            for job in jobs:
                _do(queue, job, callables, lease)
            failures = 0
        except ConfigurationError:
            raise
        except MessagingError as error:
            failures += 1
            _log_outage(queue, error)
            for seconds in _pieces(_after(failures), stop):
                sleep(seconds)


async def awork(
    queue: DelayQueue, callables: Mapping[str, Callable[..., Any]], stop: Stop, lease: float
) -> None:
    """See DelayQueue.awork."""
    failures = 0
    while not stop.is_set():
        try:
            with given_up_when(stop.is_set):
                jobs = await queue.apop(1, lease=lease, wait=PATIENCE)
            for job in jobs:
                await _ado(queue, job, callables, lease)
            failures = 0
        except ConfigurationError:
            raise
        except MessagingError as error:
            failures += 1
            _log_outage(queue, error)
            for seconds in _pieces(_after(failures), stop):
                await asyncio.sleep(seconds)


def _pieces(seconds: float, stop: Stop) -> Iterator[float]:
    """A pause in pieces, between which it is looked whether to stop."""
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0 and not stop.is_set():
        yield min(left, PATIENCE)


def _do(queue: DelayQueue, job: Job, callables: Mapping[str, Callable[..., Any]], lease: float) -> None:
    """Call what a job names, and say what became of it; where that isn't heard, the job comes again."""
    called = _called(job, callables)
    if called is None:
        queue.fail(job, _unknown(job))
        return
    function, args = called
    try:
        with Renewal(lambda: queue.extend(job, lease), lease / 3, job.id):
            result = function(*args)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(f"{function!r} returned a coroutine: use awork, which awaits it.")
    except Exception:
        _log_failure(job)
        queue.retry(job, pause(job.attempts))
    else:
        _log_end(job, queue.ack(job))


async def _ado(
    queue: DelayQueue, job: Job, callables: Mapping[str, Callable[..., Any]], lease: float
) -> None:
    """As `_do`."""
    called = _called(job, callables)
    if called is None:
        await queue.afail(job, _unknown(job))
        return
    function, args = called
    try:
        async with AwaitingRenewal(lambda: queue.aextend(job, lease), lease / 3, job.id):
            if _is_coroutine_function(function):
                result = function(*args)
            else:  # in a thread: it may block, and the lease is to be kept meanwhile
                result = await asyncio.to_thread(function, *args)
            if inspect.isawaitable(result):
                await result
    except Exception:
        _log_failure(job)
        await queue.aretry(job, pause(job.attempts))
    else:
        _log_end(job, await queue.aack(job))


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _after(failures: int) -> float:
    longest: float = min(0.1 * 2.0 ** min(failures, 7), 10.0)
    return longest * random.uniform(0.5, 1)  # noqa: S311


def _called(
    job: Job, callables: Mapping[str, Callable[..., Any]]
) -> tuple[Callable[..., Any], list[Any]] | None:
    """What a job calls, and with what; None where it names nothing that is known."""
    match job.data:
        case [str(name), list(args)] if name in callables:
            return callables[name], args
    logger.error("Job %r of queue %r names nothing that is known here: it is buried.", job.id, job.queue)
    return None


def _unknown(job: Job) -> str:
    match job.data:
        case [str(name), list()]:
            return f"Nothing is known here by the name {name[:100]!r}."
    return "The payload is not [name, args]."


def _log_outage(queue: DelayQueue, error: MessagingError) -> None:
    logger.warning("Queue %r can't be reached, trying again: %s", queue.name, error)


def _log_failure(job: Job) -> None:
    logger.exception("Job %r of queue %r failed in attempt %d.", job.id, job.queue, job.attempts)


def _log_end(job: Job, ours: bool | None) -> None:
    if ours is False:
        logger.warning("Job %r of queue %r was done, but its lease was lost.", job.id, job.queue)
