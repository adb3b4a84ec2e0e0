"""The poller: does what is due by time, where nobody else looks.

Whoever claims a job does what is due in its queues, so a queue that is worked on needs no poller. One that
nobody looks at does: for its leases that ran out, its jobs that are due, its results that are over. Whatever
else is due by time registers its rounds here.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from ..core.retry import given_up_when
from ..errors import MessagingError
from .jobs.registry import Queues

logger = logging.getLogger(__name__)

#: seconds after which the poller looks again, though nothing was due
LOOK = 1.0

#: commands that an idle poller sends a second, at most: with many queues it looks less often
RATE = 2.0

#: does what is due; returns the seconds until something will be, or None
Round = Callable[[], float | None]

_registered: list[Callable[[], Iterable[Round]]] = []


def register(rounds: Callable[[], Iterable[Round]]) -> Callable[[], Iterable[Round]]:
    """Have each poller do the rounds that this names, asked anew each time; usable as a decorator."""
    if rounds not in _registered:
        _registered.append(rounds)
    return rounds


@register
def delay_queues() -> Iterable[Round]:
    """One round for each delay queue there is."""
    queues = Queues()
    return [partial(queues.sweep, name) for name in queues.names()]


class Poller:
    """Does all rounds, again and again. Any number of pollers may run: each round is one script."""

    def __init__(self) -> None:
        # not an Event, whose set() in a signal handler could wait for its own wait() to let go of it
        self._told: SimpleQueue[None] = SimpleQueue()

    def stop(self) -> None:
        """Let it end, giving up what waits for Redis; safe to call from a signal handler."""
        self._told.put(None)

    def run(self) -> None:
        """Poll until stopped. What fails is logged, and done again later."""
        with given_up_when(self._is_told):
            while not self._is_told():
                pause = self._look()
                with suppress(Empty):
                    return self._told.get(timeout=pause)

    def _is_told(self) -> bool:
        return not self._told.empty()

    def _look(self) -> float:
        """Do all rounds; returns the seconds until the next look."""
        asked = [one for rounds in _registered for one in self._asked(rounds)]
        due = [self._done(one) for one in asked]
        soonest = min((seconds for seconds in due if seconds is not None), default=math.inf)
        longest = max(LOOK, (len(_registered) + len(asked)) / RATE) * random.uniform(1, 1.2)  # noqa: S311
        return max(min(soonest, longest), 0.001)

    def _asked(self, rounds: Callable[[], Iterable[Round]]) -> Iterable[Round]:
        if self._is_told():
            return []
        try:
            return rounds()
        except MessagingError as error:
            logger.warning("The poller could not see what there is to do, and goes on: %s", error)
            return []

    def _done(self, one: Round) -> float | None:
        if self._is_told():
            return None
        try:
            return one()
        except MessagingError as error:
            logger.warning("The poller could not do a round, and goes on: %s", error)
            return None
