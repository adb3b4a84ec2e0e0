"""The poller: does what is due by time in queues that no client claims from.

Every claim does what is due in its queues, so a queue with a running consumer needs no poller. A queue
without one does: for expired leases, due jobs and expired results. Other capabilities register their own
rounds here.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

from .. import conf
from ..core.keys import current_prefix
from ..core.operations import Steps, perform
from ..core.retry import no_retries_when
from ..core.steps import batched
from ..errors import InvalidArgument, MessagingError
from .jobs.base import ONLY_QUEUE
from .jobs.engine import POLL_INTERVAL, Engine
from .jobs.keys import queues_key
from .jobs.registry import check_registration, registrations

logger = logging.getLogger(__name__)

#: commands per second that an idle poller sends at most: with many queues its interval is longer
MAX_RATE = 2.0
#: seconds between two scripts for a queue in which more is due than one script does
BACKLOG_INTERVAL = 0.05
#: seconds added to a due time: the clocks of server and client run at slightly different speeds
CLOCK_MARGIN = 0.002
#: seconds that a running script gets to finish after stop()
STOP_TIMEOUT = 0.5
#: queues of one slot that one script sweeps
PAGE = 100


class Round(NamedTuple):
    """What a poller repeats."""

    #: identifies the round when rounds are listed again
    key: Hashable
    #: alias in CACHES
    using: str
    #: does what is due; returns the seconds until something is due, or None
    steps: Callable[[], Steps[float | None]]
    #: seconds between two times at least; 0: it is done whenever something is due
    min_interval: float = POLL_INTERVAL


Listing = Callable[[], Iterable[Round]]

_registered: list[Listing] = []


def register(listing: Listing) -> Listing:
    """Make every poller do the rounds that a function lists; the function is called again and again. Usable
    as a decorator."""
    if listing not in _registered:
        _registered.append(listing)
    return listing


@register
def delay_queues() -> Iterable[Round]:
    """One round for each registered delay queue."""
    using, prefix = conf.alias(), current_prefix()
    registry = queues_key(prefix)
    names, old = perform(using, registrations(registry))
    for name in names:
        engine = Engine(prefix, "queue", name)
        check = [(ONLY_QUEUE, name)] if name in old else []
        yield Round(engine.keys.tag, using, partial(sweep_registered, engine, [ONLY_QUEUE], registry, check))


def rounds_of_slot(using: str, engine: Engine, registry: str) -> Iterable[Round]:
    """One round for each page of the registered queues of an engine."""
    names, old = perform(using, registrations(registry))
    for page in batched(sorted(names), PAGE):
        check = [(name, name) for name in page if name in old]
        steps = partial(sweep_registered, engine, page, registry, check)
        yield Round((engine.keys.tag, page), using, steps)


def sweep_registered(
    engine: Engine, queues: Sequence[str], registry: str, check: Sequence[tuple[str, str]]
) -> Steps[float | None]:
    """Do what is due in these queues; then check old registrations: `(queue, registered name)`."""
    due_in = yield from engine.sweep(queues)
    for queue, name in check:
        yield from check_registration(engine, queue, registry, name)
    return due_in


@dataclass(eq=False, slots=True)
class _Scheduled:
    """A round, or a listing of rounds, in a poller's schedule."""

    do: Callable[[], float | None]
    #: see Round
    min_interval: float = POLL_INTERVAL
    #: whether the last listing has named it
    is_listed: bool = True


class Poller:
    """Does all rounds, again and again. Any number of pollers may run: each round is one script.

    A round is done when something of it is due, but not before its `min_interval` (1 s) is over; and from
    time to time, for what clients have added since. A backlog that is too large for one script is worked off
    faster.
    """

    def __init__(self) -> None:
        #: whether it ended because of an error
        self.failed = False
        self._is_stopped = False
        # not an Event, whose set() in a signal handler could deadlock with its own wait()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._schedule: list[tuple[float, int, _Scheduled]] = []
        self._numbers = itertools.count()
        self._rounds: dict[Listing, dict[Hashable, _Scheduled]] = {}

    def stop(self) -> None:
        """End, without waiting for Redis. Safe in a signal handler."""
        self._is_stopped = True
        self._wake.put(None)
        self._ended.put(None)

    def run(self) -> None:
        """Poll until stopped. A round for which Redis fails is logged, and repeated later. Any other error is
        logged and ends the poller: then `failed` is true."""
        # A thread that can be abandoned: a call to a Redis that does not reply lasts for many seconds.
        thread = threading.Thread(target=copy_context().run, args=(self._poll,), name="poller", daemon=True)
        thread.start()
        while True:
            # bounded, since a signal that arrives just before the wait doesn't end it
            with suppress(Empty):
                self._ended.get(timeout=POLL_INTERVAL)
                break
        thread.join(STOP_TIMEOUT)

    def _poll(self) -> None:
        try:
            with no_retries_when(lambda: self._is_stopped):
                self._do_all()
        except BaseException:  # SystemExit too: its thread would end without an error
            logger.exception("The poller failed; stopping.")
            self.failed = True
        finally:
            self._ended.put(None)

    def _do_all(self) -> None:
        """Do each round when it is due."""
        for listing in _registered:
            self._rounds[listing] = {}
            self._add(_Scheduled(partial(self._list, listing)), 0)
        while not self._is_stopped:
            pause = self._schedule[0][0] - monotonic()
            if pause > 0:
                with suppress(Empty):
                    self._wake.get(timeout=pause)
                continue
            _, _, item = heapq.heappop(self._schedule)
            if item.is_listed:
                interval = self._interval(item.do(), item.min_interval)
                self._add(item, monotonic() + interval)

    def _add(self, item: _Scheduled, due: float) -> None:
        heapq.heappush(self._schedule, (due, next(self._numbers), item))

    def _interval(self, due_in: float | None, min_interval: float) -> float:
        """Seconds until a round is done again."""
        if due_in == 0:
            return BACKLOG_INTERVAL
        count = len(self._rounds) + sum(map(len, self._rounds.values()))
        idle = max(POLL_INTERVAL, count / MAX_RATE * random.uniform(0.8, 1.4))  # noqa: S311
        return idle if due_in is None else min(idle, max(min_interval, due_in + CLOCK_MARGIN))

    def _list(self, listing: Listing) -> None:
        """Add new rounds to the schedule, and remove those that are not listed any more."""
        try:
            found = {one.key: one for one in itertools.takewhile(lambda _: not self._is_stopped, listing())}
        except MessagingError as error:
            self._failed("Listing queues failed, retrying at the next poll: %s", error)
            return
        known = self._rounds[listing]
        for key in known.keys() - found.keys():
            known.pop(key).is_listed = False
        for key, one in found.items():
            if key not in known:
                known[key] = _Scheduled(partial(self._do, one), one.min_interval)
                self._add(known[key], 0)
            known[key].do = partial(self._do, one)

    def _do(self, one: Round) -> float | None:
        try:
            return perform(one.using, one.steps())
        except MessagingError as error:
            self._failed("Polling a queue failed, retrying at the next poll: %s", error)
            return None

    def _failed(self, text: str, error: MessagingError) -> None:
        if isinstance(error, InvalidArgument):  # such as PREFIX: no retry helps
            raise error
        if not self._is_stopped:
            logger.warning(text, error)
