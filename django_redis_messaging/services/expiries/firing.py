"""What a listener does with a timer that it has claimed: begins it, and calls its handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from inspect import iscoroutine
from time import monotonic
from typing import Any

from django.db import close_old_connections

from ...core import keys, payloads
from ...errors import MessagingError, TaskTimeout
from ...handlers import Expired, TimerHandler, title
from ..jobs.engine import Verdict
from ..jobs.running import Running
from ..jobs.values import moment
from ..jobs.work import pause
from .store import TimerStore

logger = logging.getLogger(__name__)


class Firing:
    """Makes attempts at timers, for a worker's lanes."""

    def __init__(self, store: TimerStore, handlers: Mapping[str, TimerHandler]) -> None:
        self._store = store
        self._handlers = handlers

    def __call__(self, running: Running) -> Verdict | None:
        """Begin a timer and call its handler; None where it is not ours any more."""
        held = running.held
        try:
            name, payload = payloads.loads_all(held.payload.split(b"\n", 1))
            keys.name(name, "name")
        except (TypeError, ValueError) as error:  # what nobody can read must not stop the others
            logger.error("Timer id=%s of %r can't be read: it is buried.", held.id, held.queue)
            return held.verdict("dead", line="F" + payloads.string(f"It can't be read: {error}"))
        try:
            wait = self._store.confirm(held, name)
        except MessagingError as error:
            logger.warning("Timer id=%s could not be begun, and goes back: %s", held.id, error)
            return held.verdict("back")
        if wait < 0:
            return None
        if wait > 0:
            return held.verdict("back", wait)
        state = held.state
        expired = Expired(name, held.queue, payload, held.id, state.fence, moment(state.moment))
        close_old_connections()
        try:
            _call(self._handlers[held.queue], expired, running)
        except BaseException as error:  # SystemExit too: a lane that ended would begin nothing more
            return _failed(self._handlers[held.queue], running, error)
        finally:
            close_old_connections()
        return held.verdict("done")


def _call(handler: TimerHandler, expired: Expired, running: Running) -> None:
    running.began, running.timeout = monotonic(), handler.timeout
    result = running.call(lambda: handler.function(expired))
    if iscoroutine(result):
        running.awaits(_timed(result, handler.timeout))


async def _timed(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> None:
    async with asyncio.timeout(seconds):
        await coroutine


def _failed(handler: TimerHandler, running: Running, error: BaseException) -> Verdict:
    held = running.held
    if running.given_back:
        return held.verdict("back")
    kind = type(error).__name__
    if isinstance(error, TaskTimeout | TimeoutError) and running.overdue >= 0:
        kind = f"{kind}: it may take {handler.timeout} s"
    logger.warning(
        "Timer id=%s of %r: %s failed in attempt %d.",
        held.id,
        held.queue,
        title(handler.function),
        held.state.attempts,
        exc_info=error,
    )
    line = "F" + payloads.string(f"{title(handler.function)}: {kind}")
    return held.verdict("again", round(pause(held.state.attempts) * 1000), line)
