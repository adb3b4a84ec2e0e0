"""Reading the history."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from ...core.commands import Command, Script, batched
from ...core.operations import Service, Steps, asynchronous, operation
from ...errors import InvalidArgument
from .gauges import MAX_FRESH, Snapshot, count_queues, read_snapshot, store_snapshot
from .keys import RESOLUTIONS, HistoryKeys, Resolution, Series, seconds_of

#: series that are read in one round trip, at most: of a period, and of the latest minute; points of each
MAX_READ, MAX_LATEST, MAX_POINTS = 20, 50, 360


class Period(NamedTuple):
    """How a period that ends now is shown."""

    resolution: Resolution
    #: seconds of a point: those of a slot, or a multiple
    step: int
    #: points, at most
    points: int

    @property
    def seconds(self) -> int:
        """How long it is."""
        return self.step * self.points

    def with_at_most(self, points: int) -> Period:
        """The same with longer steps, if it has more points than this."""
        steps = math.ceil(self.points / points)
        return self._replace(step=self.step * steps, points=self.points // steps)


_FINE, _MINUTES, _QUARTERS = RESOLUTIONS
PERIODS = {
    "hour": Period(_FINE, 10, 360),
    "day": Period(_MINUTES, 240, 360),
    "fortnight": Period(_QUARTERS, 3600, 336),
}
#: the minute that goes on, and the two before
_LATEST = Period(_MINUTES, 60, 3)


@dataclass(frozen=True, slots=True)
class Point:
    """What was recorded in one step of a period."""

    #: its beginning
    moment: datetime
    #: column → number: the sum of counts (ran, failed), the highest of all else in the step. Percentiles of
    #: durations (wait50, wait95, run50, run95) are seconds, at most 19 % too high; None: nothing ran
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """What was recorded of a series in a period."""

    series: Series
    #: seconds of a point
    step: int
    #: beginning of the first and of the last step of the period
    first: datetime
    last: datetime
    #: the oldest first. A step without changes, or in which nothing was recorded, has none
    points: list[Point]

    def column(self, name: str) -> Iterator[tuple[datetime, float | None]]:
        """The numbers of a column at all steps of the period; None where there is none."""
        known = {point.moment.timestamp(): point.values.get(name) for point in self.points}
        first, last = int(self.first.timestamp()), int(self.last.timestamp())
        for moment in range(first, last + 1, self.step):
            yield _moment(moment), known.get(moment)


class History(Service):
    """What was recorded of queues, tasks, timers, operations, servers, backends and things at an alias.

    >>> [line] = History().lines([Series("queue", "mail")], "hour")
    >>> line.points
    []
    """

    @operation
    def lines(
        self,
        series: Sequence[Series],
        period: str = "hour",
        *,
        columns: Collection[str] | None = None,
        points: int = MAX_POINTS,
    ) -> Steps[list[Line]]:
        """What was recorded of up to 20 series in a period that ends now: "hour", "day" or "fortnight"; all
        columns of each, or those of `columns` that it has; at most so many `points`. One round trip.

        Raises InvalidArgument for another period, and for more series or points.
        """
        if period not in PERIODS:
            raise InvalidArgument(f"period must be one of {', '.join(PERIODS)}, not {period!r:.60}.")
        if len(series) > MAX_READ:
            raise InvalidArgument(f"series must be at most {MAX_READ}, not {len(series)}.")
        if not 1 <= points <= MAX_POINTS:
            raise InvalidArgument(f"points must be between 1 and {MAX_POINTS}, not {points}.")
        return (yield from self._lines(series, PERIODS[period].with_at_most(points), columns))

    alines = asynchronous(lines)

    @operation
    def latest(
        self, series: Sequence[Series], *, columns: Collection[str] | None = None
    ) -> Steps[list[Point | None]]:
        """What was recorded of up to 50 series in the latest minute that has ended; where nothing was, in the
        minute before; None: in neither. All columns of each, or those of `columns` that it has. One round
        trip.

        Raises InvalidArgument for more series.
        """
        if len(series) > MAX_LATEST:
            raise InvalidArgument(f"series must be at most {MAX_LATEST}, not {len(series)}.")
        lines = yield from self._lines(series, _LATEST, columns)
        return [next((one for one in line.points[::-1] if one.moment < line.last), None) for line in lines]

    alatest = asynchronous(latest)

    @operation
    def now(self) -> Steps[Snapshot]:
        """The latest gauges of all queues and servers, with their age, in one round trip."""
        return (yield from read_snapshot(self._prefix))

    anow = asynchronous(now)

    @operation
    def refresh(self) -> Steps[Snapshot]:
        """Count up to 200 queues and store them as the snapshot, as a poller does every ten seconds; returns
        the new snapshot, which has no servers. For readers that find no recent one."""
        before = yield from read_snapshot(self._prefix)
        queues = yield from count_queues(self._using, MAX_FRESH, before)
        yield from store_snapshot(self._prefix, queues, is_polled=False)
        return (yield from read_snapshot(self._prefix))

    arefresh = asynchronous(refresh)

    @operation
    def series(self, kind: str = "") -> Steps[list[Series]]:
        """What was recorded within two weeks, in the order of the names; all, or those of a kind of KINDS in
        services/history/keys.py, such as "queue"."""
        names = yield Command("ZRANGE", HistoryKeys(self._prefix).series, 0, -1, reads=True)
        found = sorted(name.decode() for name in names)
        return [Series.parse(name) for name in found if not kind or name.startswith(f"{kind}:")]

    aseries = asynchronous(series)

    @operation
    def refused(self) -> Steps[int]:
        """How often something was not recorded because there are HISTORY_MAX_SERIES series."""
        return int((yield Command("GET", HistoryKeys(self._prefix).refused, reads=True)) or 0)

    arefused = asynchronous(refused)

    def _lines(
        self, series: Sequence[Series], period: Period, columns: Collection[str] | None
    ) -> Steps[list[Line]]:
        if not series:
            return []
        replies = yield [self._read(one, period, columns) for one in series]
        return [
            _line(one, period, _names(one, period, columns), *reply)
            for one, reply in zip(series, replies, strict=True)
        ]

    def _read(self, series: Series, period: Period, columns: Collection[str] | None) -> Script:
        keys, seconds = HistoryKeys(self._prefix), period.resolution.seconds
        names = _names(series, period)
        places = " ".join(str(names.index(one) + 1) for one in _names(series, period, columns))
        counts = len(series.columns.counts)
        words = (" ".join(names), counts, seconds, period.step, period.points, places)
        name = str(series)
        return Script("history/read", [keys.open(name, seconds), keys.slots(name, seconds)], words)


def _names(series: Series, period: Period, chosen: Collection[str] | None = None) -> tuple[str, ...]:
    """The columns that are stored at the resolution of a period; of these, the chosen ones."""
    columns = series.columns
    names = columns.names if period.resolution is _FINE else columns.names[: columns.coarse]
    return names if chosen is None else tuple(one for one in names if one in chosen)


def _line(series: Series, period: Period, names: Sequence[str], now: int, flat: Sequence[int]) -> Line:
    last = now // 1000 // period.step * period.step
    first = last - (period.points - 1) * period.step
    points = [_point(series, names, row) for row in batched(flat, 1 + len(names))]
    return Line(series, period.step, _moment(first), _moment(last), points)


def _point(series: Series, names: Sequence[str], row: Sequence[int]) -> Point:
    values: dict[str, float | None] = dict(zip(names, row[1:], strict=True))
    for name in values.keys() & set(series.columns.percentiles):
        values[name] = seconds_of(int(values[name] or 0))
    return Point(_moment(row[0]), values)


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
