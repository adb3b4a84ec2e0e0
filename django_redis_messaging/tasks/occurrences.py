"""Enqueues the occurrences of periodic tasks.

A HASH in the slot of the backend's jobs has a field for each task: up to which moment its occurrences have
been handled. The script that enqueues an occurrence moves that moment forward, and refuses occurrences that
are not after it. So each is enqueued once, by whichever poller is first, whether or not the job or its result
still exists; and a poller that was suspended can't enqueue what others have handled.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

from .. import conf
from ..core.failures import log_exception
from ..core.operations import Script, Steps
from ..errors import InvalidArgument, MessagingError
from ..services.jobs.registry import register_queue
from . import records
from .backend import SHARD, RedisBackend
from .commits import Prepared
from .compat import task_enqueued
from .periodic import PeriodicTask, periodic_tasks

logger = logging.getLogger(__name__)

#: ms after which an occurrence that was not enqueued is a missed one
MISSED_AFTER = 60_000
#: seconds until the next attempt, if Redis or a task fails
RETRY_INTERVAL = 2.0
#: seconds between two looks at most, which show that a poller lives
MAX_INTERVAL = 20.0

#: key of the HASH → server's clock (ms) when this process read it first: a changed schedule applies from then
_began: dict[str, int] = {}


class Seen(NamedTuple):
    """What Redis knows about a periodic task, in ms; 0 for never."""

    handled: int
    enqueued: int


def occurrence_id(name: str, moment: int) -> str:
    """The id of the job of an occurrence.

    >>> len(occurrence_id("site.tasks.tidy_up", 1_790_000_000_000))
    32
    """
    return SHARD + hashlib.sha256(f"{name} {moment}".encode()).hexdigest()[:31]


def tasks_of(backend: RedisBackend) -> list[PeriodicTask]:
    """The periodic tasks of a backend."""
    return [one for one in periodic_tasks() if one.task.backend == backend.alias]


def enqueue_due(backend: RedisBackend, tasks: Sequence[PeriodicTask]) -> Steps[float]:
    """Enqueue what is due; returns the seconds until the next occurrence, at most MAX_INTERVAL."""
    key, soonest = backend.engine.keys.periodic, None
    words = [word for one in tasks for word in (one.name, one.fingerprint)]
    try:
        now, *handled = yield Script("periodic_look", [key], [_began.get(key, 0), *words])
        _began[key] = min(_began.get(key, now), now)  # the clock may have been set back since
        for one, since in zip(tasks, handled, strict=True):
            moment = one.schedule.latest(since, now)
            if moment is not None:
                yield from _enqueue(backend, one, moment)
            upcoming = one.schedule.next(now)
            if upcoming is not None:
                soonest = min(upcoming, soonest or upcoming)
    except InvalidArgument:  # such as PREFIX: no retry helps
        raise
    except MessagingError as error:
        logger.warning(
            "Enqueueing periodic tasks of the backend %r failed, retrying in %.1f s: %s",
            backend.alias, RETRY_INTERVAL, error,
        )  # fmt: skip
        return RETRY_INTERVAL
    return MAX_INTERVAL if soonest is None else min((soonest - now) / 1000, MAX_INTERVAL)


def silence(backend: RedisBackend) -> Steps[float]:
    """Seconds since a poller looked at the periodic tasks of a backend; if none has, since the first call of
    this function."""
    ms: int = yield Script("periodic_silence", [backend.engine.keys.periodic])
    return ms / 1000


def read(backend: RedisBackend, tasks: Sequence[PeriodicTask]) -> Steps[tuple[int, list[Seen]]]:
    """The server's clock (ms), and what Redis knows about these tasks."""
    names = [one.name for one in tasks]
    now, *found = yield Script("periodic_list", [backend.engine.keys.periodic], names)
    return now, [Seen(*one) for one in found]


def _enqueue(backend: RedisBackend, one: PeriodicTask, moment: int) -> Steps[None]:
    """Enqueue an occurrence, unless that has been done."""
    try:
        result, job = _prepared(backend, one, moment)
    except Exception as error:  # such as one of a function of the task that returns its unique key
        message = "Enqueueing the periodic task %s failed, retrying at the next poll."
        log_exception(logger, error, message, one.name)
        return
    queue, limit = one.task.queue_name, conf.current().JOB_MAX_WAITING
    keys = [*backend.engine.keys.queue(queue).with_records, backend.engine.keys.periodic]
    max_age = MISSED_AFTER if one.missed == "none" else 0
    words = (one.name, one.fingerprint, moment, max_age, limit)
    fields = (job.id, job.payload, job.priority, job.max_attempts, job.unique)
    pushed = yield Script("periodic_push", keys, (*words, *fields))
    if pushed < 0:
        logger.warning(
            "Enqueueing the periodic task %s failed, retrying at the next poll: the queue %r is full "
            "(JOB_MAX_WAITING: %d).", one.name, queue, limit,
        )  # fmt: skip
    elif pushed > 0:
        if not backend.queue_names:
            yield from register_queue(backend.using, backend.engine.keys.queues, queue)
        object.__setattr__(result, "enqueued_at", records.moment(pushed))
        task_enqueued.send_robust(type(backend), task_result=result)


def _prepared(backend: RedisBackend, one: PeriodicTask, moment: int) -> Prepared:
    """The result and the job of an occurrence, which is their run_after."""
    task = one.task.using(run_after=records.moment(moment))
    return backend.prepared(task, occurrence_id(one.name, moment))
