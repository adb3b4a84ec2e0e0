"""The loops that consume a delay queue: pop, call, ack."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import monotonic, sleep
from typing import Any

from ... import conf
from ...core.backoff import backoff
from ...core.failures import log_exception
from ...core.operations import aperform_renewal, perform_renewal
from ...core.retry import no_retries_when
from ...errors import ConfigurationError, InvalidArgument, MessagingError
from ..arguments import Stop
from ..renewing import AsyncRenewal, Renewal
from .base import LeaseQueue
from .values import Job

logger = logging.getLogger(__name__)

#: seconds between two checks of `stop`
STOP_INTERVAL = 1.0


def retry_delay(attempts: int) -> float:
    """Seconds before the next attempt at a job: JOB_BACKOFF, doubled with each attempt, with jitter."""
    settings = conf.current()
    return backoff(attempts, first=settings.JOB_BACKOFF, longest=settings.JOB_BACKOFF_MAX)


def check(callables: Mapping[str, Callable[..., Any]]) -> None:
    """Raise TypeError for callables that only `awork` can call."""
    for name, function in callables.items():
        if _is_coroutine_function(function):
            raise TypeError(f"{name!r} is a coroutine function: use awork, which awaits it.")


def work(queue: LeaseQueue, callables: Mapping[str, Callable[..., Any]], stop: Stop, lease: float) -> None:
    """See DelayQueue.work."""
    failures = 0
    while not stop.is_set():
        try:
            with no_retries_when(stop.is_set):
                jobs = queue.pop(1, lease=lease, wait=STOP_INTERVAL)
            for job in jobs:
                _run(queue, job, callables, lease)
            failures = 0
        except (ConfigurationError, InvalidArgument):
            raise
        except MessagingError as error:
            failures += 1
            for seconds in _outage(queue, error, failures, stop):
                sleep(seconds)


async def awork(
    queue: LeaseQueue, callables: Mapping[str, Callable[..., Any]], stop: Stop, lease: float
) -> None:
    """See DelayQueue.awork."""
    failures = 0
    while not stop.is_set():
        try:
            with no_retries_when(stop.is_set):
                jobs = await queue.apop(1, lease=lease, wait=STOP_INTERVAL)
            for job in jobs:
                await _arun(queue, job, callables, lease)
            failures = 0
        except (ConfigurationError, InvalidArgument):
            raise
        except MessagingError as error:
            failures += 1
            for seconds in _outage(queue, error, failures, stop):
                await asyncio.sleep(seconds)


def _run(queue: LeaseQueue, job: Job, callables: Mapping[str, Callable[..., Any]], lease: float) -> None:
    """Call the callable of a job and settle the lease. If that fails, the job is delivered again."""
    call = _call_of(job, callables)
    if call is None:
        queue.fail(job, _no_call_reason(job))
        return
    function, args = call
    try:
        with Renewal(partial(_renew, queue, job, lease), lease / 3, job.id):
            result = function(*args)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(f"{function!r} returned a coroutine: use awork, which awaits it.")
    except Exception as error:
        try:
            queue.retry(job, retry_delay(job.attempts))
        finally:
            _log_failure(job, error)
    else:
        _log_lost_lease(job, queue.ack(job))


async def _arun(
    queue: LeaseQueue, job: Job, callables: Mapping[str, Callable[..., Any]], lease: float
) -> None:
    """The async version of `_run`."""
    call = _call_of(job, callables)
    if call is None:
        await queue.afail(job, _no_call_reason(job))
        return
    function, args = call
    try:
        async with AsyncRenewal(partial(_arenew, queue, job, lease), lease / 3, job.id):
            if _is_coroutine_function(function):
                result = function(*args)
            else:  # in a thread: it may block, and the lease must be extended meanwhile
                result = await asyncio.to_thread(function, *args)
            if inspect.isawaitable(result):
                await result
    except Exception as error:
        try:
            await queue.aretry(job, retry_delay(job.attempts))
        finally:
            _log_failure(job, error)
    else:
        _log_lost_lease(job, await queue.aack(job))


def _renew(queue: LeaseQueue, job: Job, lease: float) -> bool:
    return perform_renewal(queue._using, queue._extend(job, lease))


async def _arenew(queue: LeaseQueue, job: Job, lease: float) -> bool:
    return await aperform_renewal(queue._using, queue._extend(job, lease))


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _call_of(
    job: Job, callables: Mapping[str, Callable[..., Any]]
) -> tuple[Callable[..., Any], list[Any]] | None:
    """The callable of a job and its arguments; None if no callable has the name."""
    match job.data:
        case [str(name), list(args)] if name in callables:
            return callables[name], args
    logger.error("Job %r of queue %r: no callable is registered; moved to dead letters.", job.id, job.queue)
    return None


def _no_call_reason(job: Job) -> str:
    match job.data:
        case [str(name), list()]:
            return f"No callable is registered as {name[:100]!r}."
    return "The payload is not [name, args]."


def _outage(queue: LeaseQueue, error: MessagingError, failures: int, stop: Stop) -> Iterator[float]:
    """Log a failure of Redis; then the pause before the retry, in pieces, to check `stop` between them."""
    pause = backoff(failures)
    logger.warning("Consuming queue %r failed, retrying in %.1f s: %s", queue.name, pause, error)
    ends = monotonic() + pause
    while (left := ends - monotonic()) > 0 and not stop.is_set():
        yield min(left, STOP_INTERVAL)


def _log_failure(job: Job, error: Exception) -> None:
    message = "Job %r of queue %r failed in attempt %d."
    log_exception(logger, error, message, job.id, job.queue, job.attempts)


def _log_lost_lease(job: Job, acked: bool | None) -> None:
    if acked is False:
        logger.warning("Job %r of queue %r was done, but its lease was lost.", job.id, job.queue)
