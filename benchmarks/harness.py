"""Compares the rates of calls, on a machine that may also be busy with other work.

    with server():
        contest = Contest("suggest", callers=8)
        contest.add("PING", driver().ping)              # the first one is the baseline
        contest.add("Directory.suggest", search)
        print(contest.run())

Rounds are interleaved: in each round, every contender is called for a fraction of a second, one after the
other. A ratio is computed within a round, because the load of the machine is then similar for all contenders.
The result is the median of the ratios of all rounds, with quartiles. Absolute rates drift, ratios are stable.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")
Call = Callable[[], object]

#: fork: callers share the prepared objects without pickling
_fork = multiprocessing.get_context("fork")


@contextmanager
def server(**options: Any) -> Iterator[Any]:
    """Set up Django with a private, empty server."""
    import django
    from django.conf import settings

    from django_redis_messaging.devserver.server import EmbeddedServer

    with EmbeddedServer(**options) as running:
        settings.configure(
            USE_TZ=True,
            INSTALLED_APPS=["django_redis_messaging"],
            CACHES={"messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": running.url}},
            # the other libraries log nothing either
            LOGGING={"version": 1, "loggers": {"django.tasks": {"level": "WARNING"}}},
        )
        django.setup()
        yield running


@contextmanager
def awake() -> Iterator[None]:
    """Keep all processors awake, by processes of the lowest priority, as on a fast machine."""
    spinning = []
    try:
        for processor in range(os.cpu_count() or 1):
            process = _fork.Process(target=_spin, args=(processor,))
            process.start()
            spinning.append(process)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def _spin(processor: int) -> None:
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


def driver() -> Any:
    """Return redis-py's client with the connection pool of django-redis, as a site would use it by itself."""
    from django_redis import get_redis_connection

    return get_redis_connection("messaging")


def processes(callers: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)`, `work(1)` … in one process each, at the same time, and return their results."""
    pairs = [_fork.Pipe(duplex=False) for _ in range(callers)]
    started = [
        _fork.Process(target=_report, args=(work, number, sending))
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
class Turn:
    """The calls of one contender in one round by one caller."""

    seconds: float
    """Total time of the calls."""
    times: list[float]
    """Seconds per call."""

    @property
    def rate(self) -> float:
        """Calls per second."""
        return len(self.times) / self.seconds


@dataclass(frozen=True)
class Result:
    """The result of a contender over all rounds."""

    name: str
    ratios: list[float]
    """Rate divided by the rate of the baseline, one item per round."""
    rates: list[float]
    """Calls per second of all callers together, one item per round."""
    times: list[float]
    """Seconds per call, sorted."""

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    def percentile(self, share: float) -> float:
        """Return the seconds that this share of the calls did not exceed."""
        return self.times[min(int(len(self.times) * share), len(self.times) - 1)]

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        low, _, high = statistics.quantiles(self.ratios, n=4)
        ms = [f"{1000 * self.percentile(share):.3f}" for share in (0.5, 0.99, 1.0)]
        rate = f"{statistics.median(self.rates):,.0f}"
        return [self.name, f"{self.ratio:.2f}", f"{low:.2f}-{high:.2f}", rate, *ms]


@dataclass(frozen=True)
class Results:
    """The results of a contest; str() is a table."""

    title: str
    rows: list[Result]

    def __getitem__(self, name: str) -> Result:
        return next(row for row in self.rows if row.name == name)

    def speedup(self, name: str, other: str) -> float:
        """Return the rate of `name` divided by the rate of `other`: the median of the rounds."""
        pairs = zip(self[name].rates, self[other].rates, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def __str__(self) -> str:
        head = ["", f"of {self.rows[0].name}", "quartiles", "calls/s", "p50 ms", "p99 ms", "max ms"]
        return f"\n{self.title}\n{table([head, *(row.cells for row in self.rows)])}"


@dataclass
class Contest:
    """A comparison of calls. The first contender added is the baseline.

    In each round, `callers` processes call each contender for `seconds` at the same time.
    """

    title: str
    rounds: int = 15
    seconds: float = 0.2
    callers: int = 1
    _contenders: dict[str, tuple[Call, Call]] = field(default_factory=dict)

    def add(self, name: str, call: Call, *, prepare: Call = lambda: None) -> None:
        """Add `call` under a unique name. `prepare` runs before each call and is not timed."""
        if name in self._contenders:
            raise ValueError(f"{name!r} is already a contender: choose another name.")
        self._contenders[name] = (call, prepare)

    def run(self) -> Results:
        """Run all rounds."""
        if self.callers == 1:
            turns = [self._run_rounds(lambda: None)]
        else:
            barrier = _fork.Barrier(self.callers)
            turns = processes(self.callers, lambda _: self._run_rounds(lambda: barrier.wait()))
        baseline = self._rates(turns, next(iter(self._contenders)))
        rows = []
        for name in self._contenders:
            rates = self._rates(turns, name)
            ratios = [mine / theirs for mine, theirs in zip(rates, baseline, strict=True)]
            times = sorted(time for caller in turns for turn in caller[name] for time in turn.times)
            rows.append(Result(name, ratios, rates, times))
        return Results(self.title, rows)

    def _run_rounds(self, wait_for_others: Callable[[], object]) -> dict[str, list[Turn]]:
        """Run all rounds of one caller. `wait_for_others` returns when all callers have reached it."""
        turns: dict[str, list[Turn]] = {name: [] for name in self._contenders}
        for call, prepare in self._contenders.values():
            prepare()
            call()  # not timed: opens connections and loads scripts
        names = list(self._contenders)
        for _ in range(self.rounds):
            for name in names:
                wait_for_others()
                turns[name].append(_measure_turn(*self._contenders[name], self.seconds))
            names = [*names[1:], names[0]]  # so that no contender is always first
        return turns

    @staticmethod
    def _rates(turns: Sequence[dict[str, list[Turn]]], name: str) -> list[float]:
        """Return the rates of all callers together, one item per round."""
        rounds = zip(*(caller[name] for caller in turns), strict=True)
        return [sum(turn.rate for turn in one_round) for one_round in rounds]


def _measure_turn(call: Call, prepare: Call, seconds: float) -> Turn:
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
    return Turn(spent, times)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as aligned text. The first row and the first column are titles."""
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
