"""Recording: what a process has counted since its last flush, and the flushes.

A worker adds a tuple for each attempt that ended to a list; `ended` notes operations. A thread of its own
counts these each second, and flushes the counts once in each slot of ten seconds, so that a Redis that
doesn't reply delays no lease. All count; of very many, the durations of some stand for all, so that no-op
tasks stay as fast.
Scripts choose the slot by the server's clock.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, repeat
from operator import itemgetter
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

from ... import conf
from ...core.commands import Argument, Script
from ...core.encoding import current_prefix
from ...core.operations import LoopGuard, Steps, perform
from ...core.outcome import deadline, time_left
from ...errors import MessagingError, Unavailable
from ..common.arguments import request, window
from ..jobs.engine import Engine
from .ended import SUCCESSFUL, Run, end_noting, note_operations, take_operations
from .keys import RESOLUTIONS, HistoryKeys, Series, level_of

logger = logging.getLogger(__name__)

#: series, and their counts, that one script records, at most: some 2 ms
PAGE, MAX_PAIRS = 10, 150
#: seconds between two turns of the thread
COUNT_INTERVAL = 1.0
#: seconds between two flushes, as long as no flush has told the server's clock; then one in each slot
FLUSH_INTERVAL = 10.0
#: seconds before the end of a slot in which its flush begins
BEFORE_END = (0.5, 2.5)
#: seconds that a flush may take; that of a worker which ends
FLUSH_DEADLINE, LAST_DEADLINE = 2.0, 0.3
#: attempts whose durations are counted in one turn; further ones are represented by them
SAMPLE = 500
#: different attempts that are counted between two flushes; further ones are dropped. About 2 MB
MAX_COUNTED = 10_000

#: the queue, task and outcome of a run
_kind = itemgetter(0, 1, 2)
#: runs that count together: queue, task or operation, levels of their wait and run, whether they failed
Counted = tuple[str, str, int, int, bool]


class Counts(NamedTuple):
    """What is added to the open slots of a series."""

    #: field → number to add
    counts: Mapping[str, int]
    #: gauge → number; a slot keeps the highest
    gauges: Mapping[str, int]


def record(prefix: str, counts: Mapping[Series, Counts], request_id: str) -> Steps[int]:
    """Add counts and gauges of up to PAGE series to their open slots, once for each request id. Returns the
    server's clock: ms."""
    keys = HistoryKeys(prefix)
    used = [keys.series, keys.refused, *keys.requests]
    words: list[Argument] = [request_id, window(), conf.current().HISTORY_MAX_SERIES, len(RESOLUTIONS)]
    for resolution in RESOLUTIONS:
        words += resolution
    for series, one in counts.items():
        used += keys.of(name := str(series))
        columns = series.columns
        words += (name, " ".join(columns.names), columns.coarse, len(one.counts), len(one.gauges))
        for pairs in (one.counts, one.gauges):
            words += [word for pair in pairs.items() for word in pair]
    return int((yield Script("history/record", used, words)))


class Recorder:
    """Records the operations of a process and, with an engine, the attempts of its worker, in a thread of its
    own. What can't be recorded is logged and dropped: nothing depends on it."""

    def __init__(self, using: str, engine: Engine | None = None) -> None:
        #: attempts that ended since the thread has counted; None: nothing is recorded
        self.runs: list[Run] | None = [] if conf.current().HISTORY_MAX_SERIES else None
        self._prefix, self._kind, self._name = (current_prefix(), "", "") if engine is None else engine.slot
        self._using = using
        #: their series are at the app's alias
        self._notes_operations = using == conf.alias()
        self._is_noting = False
        self._counted: dict[Counted, int] = {}
        #: attempts that were not counted: see MAX_COUNTED
        self._dropped = 0
        #: what the next flush adds to each series
        self._waiting: defaultdict[Series, Counter[str]] = defaultdict(Counter)
        self._next_flush = monotonic() + random.uniform(0.5, 1) * FLUSH_INTERVAL  # noqa: S311
        #: has an item once the recorder is closed
        self._closed: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Start the thread, unless nothing is recorded."""
        if self.runs is None:
            return
        if self._notes_operations:
            note_operations()
            self._is_noting = True
        self._thread.start()

    def close(self) -> None:
        """Flush for the last time, until the deadline."""
        if self._thread.ident is None:
            return
        self._end_noting()
        self._closed.put(None)
        self._thread.join(max(time_left(), 0))

    def _end_noting(self) -> None:
        if self._is_noting:
            self._is_noting = False
            end_noting()

    def _give_up(self) -> None:
        self.runs = None
        self._end_noting()

    def _run(self) -> None:
        text = "Recording the history failed; the worker goes on without."
        with LoopGuard(logger, text, on_failure=self._give_up):
            while not self._is_closed():
                self.count()
                if monotonic() >= self._next_flush:
                    self.flush(FLUSH_DEADLINE)
            self.count()
            self.flush(LAST_DEADLINE)

    def _is_closed(self) -> bool:
        with suppress(Empty):
            self._closed.get(timeout=COUNT_INTERVAL)
            return True
        return False

    def count(self) -> None:
        """Count the attempts and operations that ended."""
        runs, counted = self.runs or [], self._counted
        taken = runs[:]
        del runs[: len(taken)]  # not all: the loop of the worker adds to them meanwhile
        if self._notes_operations:
            taken += take_operations()
        for (queue, task, outcome, ms, seconds), number in _sampled(taken):
            wait = 0 if ms is None else level_of(ms / 1000)
            one = queue, task, wait, level_of(seconds), outcome not in SUCCESSFUL
            before = counted.get(one, 0)
            if before or len(counted) < MAX_COUNTED:
                counted[one] = before + number
            else:
                self._dropped += number

    def flush(self, seconds: float) -> None:
        """Record what was counted, within this time. What Redis has not got is recorded later; what it may
        have got is not sent again."""
        self._next_flush = monotonic() + FLUSH_INTERVAL
        self._add_counted()
        try:
            with deadline(seconds):
                while self._waiting:
                    self._flush(self._take_page())
        except MessagingError as error:
            logger.warning("Recording the history failed, going on in %.0f s: %s", FLUSH_INTERVAL, error)

    def _add_counted(self) -> None:
        """Add what was counted to what waits for each series."""
        for (queue, task, wait, run, is_failed), number in self._counted.items():
            for series in self._series_of(queue, task):
                counts = self._waiting[series]
                counts["ran"] += number
                counts["failed"] += number * is_failed
                if wait:
                    counts[f"wait:{wait}"] += number
                counts[f"run:{run}"] += number
        self._counted.clear()
        if self._dropped:
            logger.warning(
                "%d runs are not in the history: there are too many different ones.", self._dropped
            )
            self._dropped = 0

    def _take_page(self) -> dict[Series, Counter[str]]:
        """Remove some of what waits: as much as one script records."""
        page: dict[Series, Counter[str]] = {}
        room = MAX_PAIRS
        for series in list(islice(self._waiting, PAGE)):
            counts = self._waiting[series]
            page[series] = taken = Counter(dict(islice(counts.items(), room)))
            room -= len(taken)
            for field in taken:
                del counts[field]
            if counts:
                break
            del self._waiting[series]
        return page

    def _flush(self, page: Mapping[Series, Counter[str]]) -> None:
        counts = {series: Counts(found, {}) for series, found in page.items()}
        try:
            now = perform(self._using, record(self._prefix, counts, request(None)))
        except Unavailable:
            for series, found in page.items():
                self._waiting[series].update(found)
            raise
        self._next_flush = monotonic() + _seconds_to_flush(now)

    def _series_of(self, queue: str, task: str) -> Iterable[Series]:
        if not queue:
            yield Series("operation", task)
        elif self._kind == "tasks":
            yield Series("queue", queue, self._name)
            yield Series("task", task, self._name)
        else:
            yield Series("timers", queue)


def _sampled(runs: Sequence[Run]) -> Iterator[tuple[Run, int]]:
    """Some of the runs, at least one of each queue, task and outcome, and how many each stands for."""
    if len(runs) <= SAMPLE:
        yield from zip(runs, repeat(1))
        return
    numbers = Counter(map(_kind, runs))
    chosen: dict[tuple[str, str, str], list[Run]] = {kind: [] for kind in numbers}
    for run in random.sample(runs, SAMPLE):
        chosen[_kind(run)].append(run)
    if not all(chosen.values()):
        latest = dict(zip(map(_kind, runs), runs, strict=True))
        chosen = {kind: found or [latest[kind]] for kind, found in chosen.items()}
    for kind, found in chosen.items():
        each, more = divmod(numbers[kind], len(found))
        for at, run in enumerate(found):
            yield run, each + (at < more)


def _seconds_to_flush(now: int) -> float:
    """The seconds until the next slot nearly ends, at this time of the server: ms. So each process flushes
    once in each slot."""
    slot = RESOLUTIONS[0].seconds
    seconds = slot - now / 1000 % slot - random.uniform(*BEFORE_END)  # noqa: S311
    return seconds if seconds > slot / 4 else seconds + slot
