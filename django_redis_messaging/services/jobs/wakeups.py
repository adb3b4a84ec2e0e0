"""How the idle lanes of a worker wait for a job: one at a time waits for a wake-up (leader and followers), so
that an idle worker calls Redis once a second."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from time import monotonic

from ...core.operations import perform
from ...errors import MessagingError
from .engine import POLL_INTERVAL, Engine

logger = logging.getLogger(__name__)


class Wakeups:
    """Waits for wake-ups of some queues, for all lanes of a worker, until `stopping` is set."""

    def __init__(self, engine: Engine, using: str, queues: Sequence[str], stopping: threading.Event) -> None:
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._stopping = stopping
        self._leader = threading.Lock()
        #: when an idle lane polled last; monotonic
        self._polled_at = 0.0

    def wait(self, due_in: float | None) -> None:
        """Wait for a wake-up as the leader, or for the leader as a follower; no longer than `due_in`."""
        ends = monotonic() + (due_in if due_in is not None and due_in < POLL_INTERVAL else math.inf)
        while not self._leader.acquire(timeout=min(POLL_INTERVAL, max(ends - monotonic(), 0))):
            if self._stopping.is_set() or monotonic() >= ends:
                return
        try:
            left = min(ends, self._polled_at + POLL_INTERVAL) - monotonic()
            if left > 0 and not self._stopping.is_set():
                perform(self._using, self._engine.wait(self._queues, left))
            # this lane polls next: the lane that leads now may wait
            self._polled_at = monotonic()
        except MessagingError as error:
            logger.warning("Waiting for jobs failed, polling instead: %s", error)
            self._stopping.wait(POLL_INTERVAL)
        finally:
            self._leader.release()
