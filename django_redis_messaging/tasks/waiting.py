"""Waiting for the end of a task, in any process: the script that ends the task wakes all that wait for it."""

from __future__ import annotations

import math
from time import monotonic
from typing import cast

from ..core.operations import Listen, Steps, aperform, perform
from ..services.arguments import Duration, milliseconds
from ..services.jobs.engine import Engine
from ..services.jobs.leases import JobRecord
from . import records
from .backend import RedisBackend
from .compat import TaskResult, TaskResultDoesNotExist, task_backends
from .results import RedisTaskResult

#: seconds after which a waiting client polls: its wake-up may have been lost in a failover, or no connection
#: is left for waiting
POLL_INTERVAL = 3.0


def wait_for_result(result: TaskResult, timeout: Duration | None = None) -> TaskResult:
    """Wait until a task has ended; refreshes and returns its result.

    Its status is SUCCESSFUL then, or FAILED if the task failed for good or was cancelled. `timeout`: seconds;
    None: no limit.

        result = wait_for_result(render.enqueue(7), timeout=5)

    Raises TimeoutError when the time is up, with the result refreshed; TaskResultDoesNotExist if the result
    does not exist, or disappears during the wait: it expired or was purged; Unavailable if Redis can't be
    reached for COMMAND_DEADLINE.
    """
    backend, seconds = _backend_of(result), _seconds(timeout)
    record = perform(backend.using, _wait_for_result(backend.engine, result.id, seconds))
    return _refreshed(result, record, seconds)


async def await_for_result(
    result: TaskResult,
    timeout: Duration | None = None,  # noqa: ASYNC109 (as in wait_for_result)
) -> TaskResult:
    """The async version of wait_for_result()."""
    backend, seconds = _backend_of(result), _seconds(timeout)
    record = await aperform(backend.using, _wait_for_result(backend.engine, result.id, seconds))
    return _refreshed(result, record, seconds)


def _backend_of(result: TaskResult) -> RedisBackend:
    if not isinstance(result, RedisTaskResult):
        raise TypeError(
            f"result must be the result of a task of a RedisBackend, not {type(result).__name__}."
        )
    return cast(RedisBackend, task_backends[result.backend])


def _seconds(timeout: Duration | None) -> float:
    return math.inf if timeout is None else milliseconds(timeout, "timeout") / 1000


def _wait_for_result(engine: Engine, result_id: str, seconds: float) -> Steps[JobRecord | None]:
    """The record of a job when it has ended, or after `seconds`; None if it doesn't exist."""
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0:
        found = yield from engine.await_end(result_id)
        if not isinstance(found, str):
            return found
        yield from _listen(engine.keys.ended(found), min(left, POLL_INTERVAL))
    return (yield from engine.get(result_id))


def _listen(stream: str, seconds: float) -> Steps[None]:
    """Wait until the stream has an entry, for `seconds` at most. Listen returns early, and has sent nothing,
    if no connection is left for waiting."""
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0:
        if (yield Listen(stream, 0, seconds=left)) is not None:
            return


def _refreshed(result: TaskResult, record: JobRecord | None, seconds: float) -> TaskResult:
    if record is None:
        raise TaskResultDoesNotExist(result.id)
    cast(RedisTaskResult, result)._update(records.result(result.backend, record))
    if not result.is_finished:
        raise TimeoutError(
            f"Task {result.id} has not ended within {seconds:g} s; its status is {result.status}."
        )
    return result
