"""Compares the history with sums by brute force; and checks that the machine finds planted bugs."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from django_redis_messaging import MessagingError, conf
from django_redis_messaging.services.history.history import PERIODS, History, Period
from django_redis_messaging.services.history.keys import Series, level_of
from django_redis_messaging.services.history.recording import Counts, record

from ..support.scripts import server_clock
from ..support.server import reply_to
from ..support.state_machines import Machine, MachineTests, Plants, one

pytestmark = pytest.mark.one_server

#: beginning of a slot at each resolution: s
BEGIN = 1_800_000_000
SERIES = [Series("queue", "a"), Series("queue", "b", "x"), Series("task", "shop.pack", "x")]
LEVELS = {"wait": ("wait50", "wait95"), "run": ("run50", "run95")}
durations = st.lists(st.floats(0, 20_000), min_size=1, max_size=12)
#: seconds; within a slot, to the next ones, and beyond each horizon
pauses = st.sampled_from([0, 1, 7, 10, 25, 61, 300, 899, 900, 3700, 7200, 90_000, 1_300_000])
_ids = itertools.count()


class Entry(NamedTuple):
    """What was recorded of a series at a moment."""

    moment: int
    ran: int
    failed: int
    waits: list[float]
    runs: list[float]
    ready: int


class HistoryMachine(Machine):
    """The points of each period are sums, peaks, and percentiles of what was recorded in their slots."""

    @initialize()
    def begin(self) -> None:
        self.moment, self.periods = BEGIN, itertools.cycle(PERIODS)
        self.entries: defaultdict[Series, list[Entry]] = defaultdict(list)
        self.clock = f"{conf.prefix()}:clock {self.name}"
        self.patches.enter_context(server_clock(f"tonumber(redis.call('GET', '{self.clock}'))"))
        self.change_settings(HISTORY_MAX_SERIES=500, PREFIX=conf.prefix())
        self.prefix = f"{conf.prefix()}:{next(_ids)}"
        self.patch(conf, "prefix", lambda: self.prefix)
        self.move(0)

    @rule(seconds=pauses)
    def move(self, seconds: int) -> None:
        self.moment += seconds
        self.client.set(self.clock, self.moment * 1000, ex=600)

    @rule(at=st.integers(0, 2), waits=durations, failed=st.integers(0, 3), times=st.sampled_from([1, 1, 2]))
    def flush(self, at: int, waits: list[float], failed: int, times: int) -> None:
        runs = [seconds / 3 for seconds in waits]
        counts: defaultdict[str, int] = defaultdict(int, ran=len(waits), failed=failed)
        for name, found in (("wait", waits), ("run", runs)):
            for seconds in found:
                counts[f"{name}:{level_of(seconds)}"] += 1
        self.record(at, Counts(counts, {}), times)
        self.entries[one(SERIES, at)].append(Entry(self.moment, len(waits), failed, waits, runs, 0))

    @rule(at=st.integers(0, 1), ready=st.integers(0, 10**6), times=st.sampled_from([1, 2]))
    def gauge(self, at: int, ready: int, times: int) -> None:
        self.record(at, Counts({}, {"ready": ready}), times)
        self.entries[one(SERIES, at)].append(Entry(self.moment, 0, 0, [], [], ready))

    def record(self, at: int, counts: Counts, times: int) -> None:
        body = record(self.prefix, {one(SERIES, at): counts}, f"r{next(_ids)}")
        step = next(body)
        for _ in range(times):  # as after lost replies
            reply_to(step)
        body.close()

    @invariant()
    def points_are_those_of_the_model(self) -> None:
        if not hasattr(self, "moment"):
            return
        name = next(self.periods)
        for line in History().lines(SERIES, name):
            found = {int(point.moment.timestamp()): point.values for point in line.points}
            expected = self.expected(line.series, PERIODS[name])
            assert found.keys() == expected.keys()
            for moment, entries in expected.items():
                self.check(line.series, found[moment], entries)

    def expected(self, series: Series, period: Period) -> dict[int, list[list[Entry]]]:
        """The entries of each slot of each point."""
        last = self.moment // period.step * period.step
        slots: defaultdict[int, list[Entry]] = defaultdict(list)
        for entry in self.entries[series]:
            slots[entry.moment // period.resolution.seconds * period.resolution.seconds].append(entry)
        points: defaultdict[int, list[list[Entry]]] = defaultdict(list)
        for slot, entries in slots.items():
            if (moment := slot // period.step * period.step) > last - period.seconds:
                points[moment].append(entries)
        return points

    def check(self, series: Series, values: Any, slots: list[list[Entry]]) -> None:
        entries = list(itertools.chain.from_iterable(slots))
        assert values["ran"] == sum(one.ran for one in entries)
        assert values["failed"] == sum(one.failed for one in entries)
        if series.kind == "queue":
            assert values["ready"] == max(one.ready for one in entries)
        for name, columns in LEVELS.items():
            for column in columns:
                exact = [percentile(slot, name, int(column[-2:])) for slot in slots]
                highest = max((seconds for seconds in exact if seconds is not None), default=None)
                check_level(values[column], highest)


def percentile(slot: list[Entry], name: str, percent: int) -> float | None:
    """The nearest rank."""
    found = sorted(seconds for one in slot for seconds in (one.waits if name == "wait" else one.runs))
    return found[math.ceil(len(found) * percent / 100) - 1] if found else None


def check_level(found: float | None, exact: float | None) -> None:
    """It is the exact duration, or up to 19 % more."""
    if found is None or exact is None:
        assert found is exact
    else:
        assert exact <= found * 1.000001
        assert found <= max(exact * 1.19, 0.0001)


PLANTS: Plants = {
    "history/record": {
        "a repeat is recorded": (
            "if record_answer_once(request, '1', requests, window, now) then",
            "if false then",
        ),
        "a slot is not closed": ("if before and before < slot then", "if false then"),
        "the open slot goes on": ("if before and (before == slot or", "if before and (before <= slot or"),
        "a row is lost": ("digits(-resolution.slots * (width + 1)), -1", "digits(-width - 1), -1"),
        "a gauge is the latest": ("or tonumber(ARGV[pair + 1]) > highest", "or true"),
        "coarse rows are too wide": ("number == 1 and all or coarse", "all"),
    },
    "history/_slots": {
        "ranks are rounded": (
            "math.ceil(levels.total * percent / 100)",
            "math.floor(levels.total * percent / 100)",
        ),
        "levels are in any order": ("return a[1] < b[1]", "return a[1] > b[1]"),
    },
    "history/read": {
        "the open slot is not read": ("if open.slot then", "if false then"),
        "old rows are read": ("if slot < first or slot > now / 1000 then", "if false then"),
        "counts are not added": ("offset <= counts and", "false and"),
    },
}


class TestMachine(MachineTests):
    machine = HistoryMachine
    plants = PLANTS
    quick = ("a repeat is recorded", "a slot is not closed", "ranks are rounded")
    errors = (MessagingError, LookupError, TypeError, ValueError)
