"""The poller: does what is due by time in queues without a running consumer.

Every claim does what is due in its queues, so a queue with a running consumer needs no poller. A queue
without one does: for expired leases, due jobs and expired results. Other capabilities register their own
rounds here. Each CACHES alias has a thread, so that a server that is down delays nothing at others.
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

from ... import conf
from ...core.commands import batched
from ...core.encoding import current_prefix
from ...core.operations import LoopGuard, Steps, perform
from ...core.outcome import deadline, no_retries_when
from ...errors import InvalidArgument, MessagingError
from .engine import POLL_INTERVAL, Engine, check_registration, registrations
from .keys import queues_key
from .queue import ONLY_QUEUE

logger = logging.getLogger(__name__)

#: commands per second that an idle poller sends to an alias at most: with many queues its interval is longer
MAX_RATE = 2.0
#: seconds between two scripts for a queue in which more is due than one script does
BACKLOG_INTERVAL = 0.05
#: seconds added to a due time: the clocks of server and client run at slightly different speeds
CLOCK_MARGIN = 0.002
#: seconds that a round or a listing may take: a part of a Cluster that is down delays the others at most so
ROUND_DEADLINE = 2.0
#: queues of one slot that one script sweeps
SWEEP_PAGE = 100
#: seconds that a running script gets to finish after stop()
STOP_TIMEOUT = 0.5


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


#: lists the rounds at an alias
Listing = Callable[[str], Iterable[Round]]
Aliases = Callable[[], Iterable[str]]

#: for each listing, what names the aliases to call it with
_registered: dict[Listing, Aliases] = {}


def register(aliases: Aliases) -> Callable[[Listing], Listing]:
    """Make every poller do the rounds that the decorated function lists for each of these aliases; it is
    called again and again, in the thread of the alias."""

    def decorate(listing: Listing) -> Listing:
        _registered[listing] = aliases
        return listing

    return decorate


def default_alias() -> list[str]:
    """The alias of capabilities that don't choose one."""
    return [conf.alias()]


@register(default_alias)
def delay_queues(using: str) -> Iterable[Round]:
    """One round for each registered delay queue."""
    prefix = current_prefix()
    registry = queues_key(prefix)
    names, old = perform(using, registrations(registry))
    for name in names:
        engine = Engine(prefix, "queue", name)
        check = [(ONLY_QUEUE, name)] if name in old else []
        yield Round(engine.keys.tag, using, partial(sweep_registered, engine, [ONLY_QUEUE], registry, check))


def rounds_of_slot(using: str, engine: Engine, registry: str) -> Iterable[Round]:
    """One round for each page of the registered queues of an engine."""
    names, old = perform(using, registrations(registry))
    for page in batched(sorted(names), SWEEP_PAGE):
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
        self._parts: list[AliasPoller] = []

    def stop(self) -> None:
        """End, without waiting for Redis. Safe in a signal handler."""
        self._is_stopped = True
        for part in self._parts:
            part.wake()
        self._ended.put(None)

    def run(self) -> None:
        """Poll until stopped. A round for which Redis fails is logged, and repeated later. Any other error is
        logged and ends the poller: then `failed` is true."""
        threads: list[threading.Thread] = []
        with self._loop_guard():
            by_alias, stopped = _listings_by_alias(), lambda: self._is_stopped
            self._parts = [AliasPoller(using, by_alias[using], stopped) for using in by_alias]
            # Threads that can be abandoned: a call to a Redis that doesn't reply lasts for seconds.
            for part in self._parts:
                target, name = partial(copy_context().run, self._poll, part), f"poller of {part.using}"
                threads.append(threading.Thread(target=target, name=name, daemon=True))
                threads[-1].start()
        while True:
            # bounded, since a signal that arrives just before the wait doesn't end it
            with suppress(Empty):
                self._ended.get(timeout=POLL_INTERVAL)
                break
        ends = monotonic() + STOP_TIMEOUT
        for thread in threads:
            thread.join(max(ends - monotonic(), 0))

    def _poll(self, part: AliasPoller) -> None:
        with self._loop_guard():
            part.run()

    def _loop_guard(self) -> LoopGuard:
        return LoopGuard(logger, "The poller failed; stopping.", on_failure=self._fail)

    def _fail(self) -> None:
        self.failed = True
        self.stop()


def _listings_by_alias() -> dict[str, list[Listing]]:
    found: dict[str, list[Listing]] = {}
    for listing, aliases in _registered.items():
        for using in dict.fromkeys(aliases()):
            found.setdefault(using, []).append(listing)
    return found


class AliasPoller:
    """Does the rounds at one alias, in the thread that calls `run`."""

    def __init__(self, using: str, listings: Iterable[Listing], is_stopped: Callable[[], bool]) -> None:
        self.using = using
        self._is_stopped = is_stopped
        #: has an item once the poller is stopped
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._schedule: list[tuple[float, int, _Scheduled]] = []
        self._numbers = itertools.count()
        self._rounds: dict[Listing, dict[Hashable, _Scheduled]] = {one: {} for one in listings}

    def wake(self) -> None:
        """End a pause. Safe in a signal handler."""
        self._wake.put(None)

    def run(self) -> None:
        """Do each round when it is due, until the poller is stopped."""
        for listing in self._rounds:
            self._add(_Scheduled(partial(self._list, listing)), 0)
        with no_retries_when(self._is_stopped):
            while not self._is_stopped():
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
            with deadline(ROUND_DEADLINE):
                listed = itertools.takewhile(lambda _: not self._is_stopped(), listing(self.using))
                found = {one.key: one for one in listed}
        except MessagingError as error:
            self._failed("Listing queues of %r failed, retrying at the next poll: %s", error)
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
            with deadline(ROUND_DEADLINE):
                return perform(one.using, one.steps())
        except MessagingError as error:
            self._failed("Polling a queue of %r failed, retrying at the next poll: %s", error)
            return None

    def _failed(self, text: str, error: MessagingError) -> None:
        if isinstance(error, InvalidArgument):  # such as PREFIX: no retry helps
            raise error
        if not self._is_stopped():
            logger.warning(text, self.using, error)


@dataclass(eq=False, slots=True)
class _Scheduled:
    """A round, or a listing of rounds, in a poller's schedule."""

    do: Callable[[], float | None]
    #: see Round
    min_interval: float = POLL_INTERVAL
    #: whether the last listing has named it
    is_listed: bool = True
