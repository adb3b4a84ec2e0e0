"""The poller: does what is due by time in queues that no client claims from.

Every claim does what is due in its queues, so a queue with a running consumer needs no poller. A queue
without one does: for expired leases, due jobs and expired results. Other capabilities register their own
rounds here.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from .. import conf
from ..core.keys import current_prefix
from ..core.operations import Steps, perform
from ..core.retry import no_retries_when
from ..errors import InvalidArgument, MessagingError
from .jobs.base import ONLY_QUEUE
from .jobs.engine import POLL_INTERVAL, Engine
from .jobs.keys import queues_key
from .jobs.registry import register_queue, registered_queues

logger = logging.getLogger(__name__)

#: commands per second that an idle poller sends at most: with many queues its interval is longer
MAX_RATE = 2.0
#: seconds between two polls, at least
MIN_INTERVAL = 0.001

#: does what is due; returns the seconds until something is due, or None
Round = Callable[[], float | None]

_registered: list[Callable[[], Iterable[Round]]] = []


def register(rounds: Callable[[], Iterable[Round]]) -> Callable[[], Iterable[Round]]:
    """Make every poller do the rounds that a function returns; the function is called anew each time. Usable
    as a decorator."""
    if rounds not in _registered:
        _registered.append(rounds)
    return rounds


def sweep(using: str, steps: Callable[[], Steps[float | None]]) -> float | None:
    """A round that runs these steps."""
    return perform(using, steps())


@register
def delay_queues() -> Iterable[Round]:
    """One round for each registered delay queue."""
    using, prefix = conf.alias(), current_prefix()
    registry = queues_key(prefix)
    return [
        partial(
            sweep,
            using,
            partial(sweep_registered, Engine(prefix, "queue", name), ONLY_QUEUE, using, registry, name),
        )
        for name in perform(using, registered_queues(registry))
    ]


def sweep_registered(engine: Engine, queue: str, using: str, registry: str, name: str) -> Steps[float | None]:
    """Do what is due in a queue that is registered as `name`, and keep it registered while something will be
    due."""
    due_in = yield from engine.sweep([queue])
    if due_in is not None:
        yield from register_queue(using, registry, name)
    return due_in


class Poller:
    """Does all rounds, again and again. Any number of pollers may run: each round is one script."""

    def __init__(self) -> None:
        # not an Event, whose set() in a signal handler could deadlock with its own wait()
        self._stop: SimpleQueue[None] = SimpleQueue()

    def stop(self) -> None:
        """End, without waiting for Redis. Safe in a signal handler."""
        self._stop.put(None)

    def run(self) -> None:
        """Poll until stopped. A round that fails is logged, and repeated later."""
        with no_retries_when(self._is_stopped):
            while not self._is_stopped():
                pause = self._poll()
                with suppress(Empty):
                    return self._stop.get(timeout=pause)

    def _is_stopped(self) -> bool:
        return not self._stop.empty()

    def _poll(self) -> float:
        """Do all rounds; returns the seconds until the next time."""
        rounds = [one for find in _registered for one in self._find(find)]
        due = [self._do(one) for one in rounds]
        soonest = min((seconds for seconds in due if seconds is not None), default=math.inf)
        interval = max(POLL_INTERVAL, (len(_registered) + len(rounds)) / MAX_RATE)
        jitter = random.uniform(1, 1.2)  # noqa: S311
        return max(min(soonest, interval * jitter), MIN_INTERVAL)

    def _find(self, find: Callable[[], Iterable[Round]]) -> Iterable[Round]:
        if self._is_stopped():
            return []
        try:
            return find()
        except InvalidArgument:  # such as PREFIX: no retry helps
            raise
        except MessagingError as error:
            logger.warning("Listing queues failed, retrying at the next poll: %s", error)
            return []

    def _do(self, one: Round) -> float | None:
        if self._is_stopped():
            return None
        try:
            return one()
        except InvalidArgument:
            raise
        except MessagingError as error:
            logger.warning("Polling a queue failed, retrying at the next poll: %s", error)
            return None
