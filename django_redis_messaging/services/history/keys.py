"""What the history consists of: series, their columns, resolutions, and keys."""

from __future__ import annotations

import functools
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...core.encoding import FORMAT


class Columns(NamedTuple):
    """The numbers that are recorded of one kind of series."""

    #: counts of a slot, which add up
    counts: tuple[str, ...]
    #: percentiles of durations, as levels (see `level_of`): "wait95" is the level that 95 % don't exceed
    percentiles: tuple[str, ...]
    #: gauges, of which a slot has the highest
    gauges: tuple[str, ...]
    #: gauges of the finest resolution only
    fine: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order in which they are stored."""
        return (*self.counts, *self.percentiles, *self.gauges, *self.fine)

    @property
    def coarse(self) -> int:
        """How many of them, from the first one on, the coarser resolutions have."""
        return len(self.names) - len(self.fine)


_COUNTS, _LATENCIES = ("ran", "failed"), ("wait50", "wait95", "run50", "run95")
_QUEUE = Columns(_COUNTS, _LATENCIES, ("ready", "dead", "oldest"), ("delayed", "leased", "parked"))
#: the kinds of things that are counted: those of MARKERS in services/common/catalogue.py
_THINGS = ("lock", "rwlock", "semaphore", "latch", "chat", "mailbox", "broadcast", "files", "directory")
#: kind of a series → its columns. What is stored depends on their order: if they change, so must the keys
KINDS = {
    "queue": _QUEUE,
    "timers": _QUEUE,
    "task": Columns(_COUNTS, _LATENCIES, ()),
    "operation": Columns(_COUNTS, ("run50", "run95"), ()),
    "server": Columns((), (), ("memory", "maxmemory", "clients", "ops", "evicted", "round_trip")),
    "backend": Columns((), (), ("workers", "running", "periodic")),
    "things": Columns((), (), ("listeners", *_THINGS)),
}


@dataclass(frozen=True, slots=True)
class Series:
    """What a history is kept of: a queue, a namespace of timers, a task, an operation, a server, a backend of
    tasks, or the app's things.

    >>> str(Series("task", "shop.tasks.pack", "default"))
    'task:default/shop.tasks.pack'
    >>> Series.parse("queue:mail")
    Series(kind='queue', name='mail', where='')
    """

    #: one of KINDS
    kind: str
    #: of the queue, the namespace, the task (dotted), the operation (such as "Chat.send"), the server, or the
    #: backend; "all": of the things
    name: str
    #: alias of the backend; empty: a delay queue, timers, an operation, a server or things
    where: str = ""

    def __str__(self) -> str:
        parts = [self.where, self.name] if self.where else [self.name]
        return f"{self.kind}:" + "/".join(quote(part, safe="@") for part in parts)

    @classmethod
    def parse(cls, text: str) -> Series:
        """The series of such a text."""
        kind, _, rest = text.partition(":")
        where, _, name = rest.rpartition("/")
        return cls(kind, unquote(name), unquote(where))

    @property
    def columns(self) -> Columns:
        """What is recorded of it."""
        return KINDS[self.kind]


class Resolution(NamedTuple):
    """How finely, and for how long, slots are kept."""

    #: of a slot
    seconds: int
    #: slots that are kept
    slots: int

    @property
    def horizon(self) -> int:
        """Seconds for which slots are kept."""
        return self.seconds * self.slots


#: 10 s for an hour, a minute for a day, a quarter of an hour for two weeks
RESOLUTIONS = (Resolution(10, 360), Resolution(60, 1440), Resolution(900, 1344))

#: seconds up to which a duration is of level 1; levels in which the bound doubles
FIRST_BOUND, PER_DOUBLING = 100e-6, 4
#: a level is at most this, which Redis stores in two bytes: about three days
MAX_LEVEL = 127


#: the longest duration of each level but the last one: seconds
_BOUNDS = [FIRST_BOUND * 2 ** (number / PER_DOUBLING) for number in range(MAX_LEVEL - 1)]


def level_of(seconds: float) -> int:
    """The level of a duration, on a logarithmic scale: 1 is up to 0.1 ms, and each further level 19 % more.

    >>> [level_of(seconds) for seconds in (0, 0.0001, 0.0002, 0.001, 1, 10**9)]
    [1, 1, 5, 15, 55, 127]
    """
    return bisect_left(_BOUNDS, seconds) + 1


def seconds_of(level: int) -> float | None:
    """The longest duration of a level; None for 0, which stands for none.

    >>> seconds_of(5)
    0.0002
    """
    return FIRST_BOUND * 2 ** ((level - 1) / PER_DOUBLING) if level else None


class HistoryKeys:
    """The keys of the history, in one slot."""

    def __init__(self, prefix: str) -> None:
        self.tag = f"{prefix}:{FORMAT}:{{history}}"

    @functools.cached_property
    def now(self) -> str:
        """HASH series → its latest gauges, for example "ready=3 delayed=0 leased=1 dead=0 parked=0 oldest=120
        rate=2.5 in=2.1": oldest is ms, or - for none; rate and in are jobs that ended, and were added, per
        second. "at" → ms of the snapshot; "polled" → ms of the latest one that a poller has made. A snapshot
        replaces the one before; the key expires a day after the last one."""
        return self.tag + ":now"

    @functools.cached_property
    def series(self) -> str:
        """ZSET series → ms at which it was recorded last; at most HISTORY_MAX_SERIES. Members that have not
        been recorded for two weeks are removed; the key expires as late."""
        return self.tag + ":series"

    @functools.cached_property
    def refused(self) -> str:
        """STRING number of records of series above HISTORY_MAX_SERIES, which were not stored. Expires two
        weeks after the first one."""
        return self.tag + ":refused"

    @functools.cached_property
    def requests(self) -> list[str]:
        """HASH request id → 1: two keys, used in turn, one window each. Each expires when its next turn
        begins."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    def slots(self, series: str, seconds: int) -> str:
        """LIST of the closed slots of a series, the oldest first: for each slot its beginning (s), then the
        numbers of the columns of its kind in the order of KINDS in services/history/keys.py. Capped; expires
        when the last slot is too old."""
        return f"{self.tag}:{seconds}:{series}:slots"

    def open(self, series: str, seconds: int) -> str:
        """HASH of the slot in which a series was recorded last: "slot" → its beginning (s); a count or gauge
        → number; wait:LEVEL or run:LEVEL → how many durations were of this level. Closed by the first record
        of a later slot; expires when the slot is too old."""
        return f"{self.tag}:{seconds}:{series}:open"

    def of(self, series: str) -> list[str]:
        """The open slot and the closed slots of a series, for each resolution."""
        return [build(series, one.seconds) for one in RESOLUTIONS for build in (self.open, self.slots)]
