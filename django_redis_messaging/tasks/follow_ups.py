"""Follow-ups: the calls of tasks `then`, enqueued by the worker together with the end of the call before."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core.operations import perform
from ..services.jobs.leases import FollowUp
from ..services.jobs.registry import register_queue
from . import records
from .backend import MAX_ALIASES, RedisBackend
from .compat import TaskResult, task_enqueued
from .results import follow_up_id
from .task import RedisTask


def prepare_follow_up(backend: RedisBackend, result: TaskResult, value: Any) -> FollowUp | None:
    """The call that follows one that has returned `value`, if any. Raises what enqueue() raises."""
    task = result.task
    if not isinstance(task, RedisTask) or task.then is None:
        return None
    following, job = backend.prepared(task.then, follow_up_id(result.id), [value])
    return FollowUp(task.then.queue_name, job, MAX_ALIASES, partial(_announce, backend, following))


def _announce(backend: RedisBackend, result: TaskResult, pushed: int) -> None:
    """Complete the result of a call that was pushed at the ms `pushed`, and send the signal; once. A receiver
    that fails is logged: the call is stored."""
    if result.enqueued_at is not None:
        return
    object.__setattr__(result, "enqueued_at", records.moment(pushed))
    if not backend.queue_names:
        registry = backend.engine.keys.queues
        perform(backend.using, register_queue(backend.using, registry, result.task.queue_name))
    task_enqueued.send_robust(type(backend), task_result=result)
