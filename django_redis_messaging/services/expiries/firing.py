"""What a listener does with a timer that it has claimed: starts it, and calls its handler."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from inspect import iscoroutine
from typing import Any

from django.db import close_old_connections

from ...core import keys, payloads
from ...core.failures import log_exception, name_of
from ...core.operations import perform
from ...errors import MessagingError, TaskTimeout
from ...handlers import Expired, TimerHandler, title
from ..jobs import databases
from ..jobs.consuming import retry_delay
from ..jobs.event_loop import EventLoopEnded
from ..jobs.leases import LeasedJob, Outcome, Settlement
from ..jobs.running import RunningJob
from ..moments import to_datetime
from .engine import TimerEngine

logger = logging.getLogger(__name__)


class Firing:
    """Makes attempts at timers, for the lanes of a worker."""

    def __init__(self, engine: TimerEngine, using: str, handlers: Mapping[str, TimerHandler]) -> None:
        self._engine = engine
        self._using = using
        self._handlers = handlers

    def __call__(self, running: RunningJob) -> Settlement | None:
        """Start a timer and call its handler; None if the lease is stale."""
        leased = running.leased
        namespace, job_id = leased.lease.queue, leased.lease.id
        try:
            name, payload = _decode(leased)
        except (TypeError, ValueError) as error:  # an unreadable timer must not stop the others
            logger.error("Timer id=%s of %r can't be decoded; moved to dead letters.", job_id, namespace)
            return running.settled(Outcome.DEAD, line=_failure(f"The timer can't be decoded: {error}"))
        with running.start():
            return self._fire(running, name, payload)

    def _fire(self, running: RunningJob, name: str, payload: Any) -> Settlement | None:
        leased = running.leased
        namespace, job_id = leased.lease.queue, leased.lease.id
        try:
            delay = perform(self._using, self._engine.confirm(leased, name))
        except MessagingError as error:
            logger.warning("Starting timer id=%s failed; released: %s", job_id, error)
            return running.settled(Outcome.RELEASE)
        if delay < 0:
            return None
        if delay > 0:
            return running.settled(Outcome.RELEASE, delay)
        due_at = to_datetime(leased.state.moment)
        expired = Expired(name, namespace, payload, job_id, leased.lease.fence, due_at)
        databases.prepare()
        try:
            _call(self._handlers[namespace], expired, running)
        except BaseException as error:  # SystemExit too: a lane that ended would start no more timers
            return _failed(self._handlers[namespace], running, error)
        finally:
            close_old_connections()
        return running.settled(Outcome.DONE)


def _decode(leased: LeasedJob) -> tuple[str, Any]:
    name, payload = payloads.loads_all(leased.payload.split(b"\n", 1))
    return keys.name(name, "name"), payload


def _call(handler: TimerHandler, expired: Expired, running: RunningJob) -> None:
    result = running.call(lambda: handler.function(expired), handler.timeout)
    if iscoroutine(result):
        running.call_async(result, handler.timeout)


def _failed(handler: TimerHandler, running: RunningJob, error: BaseException) -> Settlement:
    if running.released or issubclass(type(error), EventLoopEnded):
        return running.settled(Outcome.RELEASE)
    leased = running.leased
    reason = name_of(type(error))
    if issubclass(type(error), TaskTimeout) and running.overdue >= 0:
        reason = f"{reason}: took longer than {handler.timeout} s"
    log_exception(
        logger,
        error,
        "Timer id=%s of %r: %s failed in attempt %d.",
        leased.lease.id,
        leased.lease.queue,
        title(handler.function),
        leased.state.attempts,
        level=logging.WARNING,
    )
    line = _failure(f"{title(handler.function)}: {reason}")
    return running.settled(Outcome.RETRY, round(retry_delay(leased.state.failures) * 1000), line)


def _failure(reason: str) -> str:
    """The line of the log for a failed attempt."""
    return "F" + payloads.string(reason)
