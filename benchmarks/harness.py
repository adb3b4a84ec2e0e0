"""Measures calls against each other, fairly, on a machine that does other things too.

    with server():
        contest = Contest("suggest", callers=8)
        contest.add("PING", driver().ping)              # the first one is the baseline
        contest.add("Directory.suggest", look_up)
        print(contest.run())

Rounds are interleaved: in each, every contender is called for a fraction of a second, in turn. A ratio is
formed inside a round, where the machine was the same for all; what is reported is the median of the ratios
of all rounds, with their quartiles. Absolute figures drift, ratios hold.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")
Call = Callable[[], object]

#: fork: callers share what was prepared, without pickling it
_forking = multiprocessing.get_context("fork")


@contextmanager
def server(**options: Any) -> Iterator[Any]:
    """Django, set up on a private server that holds nothing yet."""
    import django
    from django.conf import settings

    from django_redis_messaging.core.embedded import EmbeddedServer

    with EmbeddedServer(**options) as running:
        settings.configure(
            USE_TZ=True,
            INSTALLED_APPS=["django_redis_messaging"],
            CACHES={"messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": running.url}},
            # peers log nothing here either
            LOGGING={"version": 1, "loggers": {"django.tasks": {"level": "WARNING"}}},
        )
        django.setup()
        yield running


def driver() -> Any:
    """redis-py's client, got from django-redis and with its pool: what a site would use by itself."""
    from django_redis import get_redis_connection

    return get_redis_connection("messaging")


def processes(callers: int, work: Callable[[int], T]) -> list[T]:
    """What `work(0)`, `work(1)` … return, each in a process of its own, all at the same time."""
    pairs = [_forking.Pipe(duplex=False) for _ in range(callers)]
    started = [
        _forking.Process(target=_report, args=(work, number, sending))
        for number, (_, sending) in enumerate(pairs)
    ]
    for process in started:
        process.start()
    for _, sending in pairs:
        sending.close()
    try:
        return [receiving.recv() for receiving, _ in pairs]
    finally:
        for process in started:
            process.join()


def _report(work: Callable[[int], T], number: int, sending: Connection) -> None:
    sending.send(work(number))


@dataclass(frozen=True)
class Play:
    """A contender in one round, called by one caller."""

    seconds: float
    """How long it took."""
    times: list[float]
    """Seconds of each call."""

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.times) / self.seconds


@dataclass(frozen=True)
class Standing:
    """How a contender did over all rounds."""

    name: str
    ratios: list[float]
    """Its rate over that of the baseline, a round each."""
    rates: list[float]
    """Calls a second, of all callers together, a round each."""
    times: list[float]
    """Seconds of each call, in order of size."""

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    def percentile(self, share: float) -> float:
        """Seconds that this share of the calls stayed within."""
        return self.times[min(int(len(self.times) * share), len(self.times) - 1)]

    @property
    def cells(self) -> list[str]:
        """A line of the table."""
        low, _, high = statistics.quantiles(self.ratios, n=4)
        ms = [f"{1000 * self.percentile(share):.3f}" for share in (0.5, 0.99, 1.0)]
        rate = f"{statistics.median(self.rates):,.0f}"
        return [self.name, f"{self.ratio:.2f}", f"{low:.2f}-{high:.2f}", rate, *ms]


@dataclass(frozen=True)
class Standings:
    """The outcome of a contest; as text, a table."""

    title: str
    lines: list[Standing]

    def __getitem__(self, name: str) -> Standing:
        return next(line for line in self.lines if line.name == name)

    def times(self, name: str, other: str) -> float:
        """How many times the rate of `other` that of `name` is: the median over the rounds."""
        pairs = zip(self[name].rates, self[other].rates, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def __str__(self) -> str:
        head = ["", f"of {self.lines[0].name}", "quartiles", "calls/s", "p50 ms", "p99 ms", "max ms"]
        return f"\n{self.title}\n{table([head, *(line.cells for line in self.lines)])}"


@dataclass
class Contest:
    """Calls that are measured against each other; the first one added is the baseline.

    `seconds` is how long each is called in a round, `callers` how many processes call it at once.
    """

    title: str
    rounds: int = 15
    seconds: float = 0.2
    callers: int = 1
    _contenders: dict[str, tuple[Call, Call]] = field(default_factory=dict)

    def add(self, name: str, call: Call, *, prepare: Call = lambda: None) -> None:
        """Enter `call`, under a name of its own; `prepare` goes before each call and isn't timed."""
        if name in self._contenders:
            raise ValueError(f"{name} takes part already.")
        self._contenders[name] = (call, prepare)

    def run(self) -> Standings:
        """Play all rounds."""
        if self.callers == 1:
            plays = [self._play_all(lambda: None)]
        else:
            together = _forking.Barrier(self.callers)
            plays = processes(self.callers, lambda _: self._play_all(lambda: together.wait()))
        baseline = self._rates(plays, next(iter(self._contenders)))
        lines = []
        for name in self._contenders:
            rates = self._rates(plays, name)
            ratios = [mine / theirs for mine, theirs in zip(rates, baseline, strict=True)]
            times = sorted(time for caller in plays for play in caller[name] for time in play.times)
            lines.append(Standing(name, ratios, rates, times))
        return Standings(self.title, lines)

    def _play_all(self, ready: Callable[[], object]) -> dict[str, list[Play]]:
        """All rounds of one caller; `ready` returns once all callers are."""
        plays: dict[str, list[Play]] = {name: [] for name in self._contenders}
        for call, prepare in self._contenders.values():
            prepare()
            call()  # opens connections, loads scripts
        names = list(self._contenders)
        for _ in range(self.rounds):
            for name in names:
                ready()
                plays[name].append(_play(*self._contenders[name], self.seconds))
            names = [*names[1:], names[0]]  # nobody always comes first, or always after the same one
        return plays

    @staticmethod
    def _rates(plays: Sequence[dict[str, list[Play]]], name: str) -> list[float]:
        """Of all callers together, round by round."""
        return [sum(play.rate for play in turn) for turn in zip(*(each[name] for each in plays), strict=True)]


def _play(call: Call, prepare: Call, seconds: float) -> Play:
    clock = time.perf_counter
    times: list[float] = []
    spent = 0.0
    while spent < seconds:
        prepare()
        began = clock()
        call()
        took = clock() - began
        times.append(took)
        spent += took
    return Play(spent, times)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as aligned text, the first row and the first column being names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]])
