"""Charts, drawn as SVG on the server: pure functions from points to markup.

There is no script and no inline style, so that any `'self'` Content-Security-Policy holds; charts.css has the
colours, and patterns of dashes for those who can't tell the colours apart. A chart fills the width of its
column: lines are stretched, text is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Literal, NamedTuple

from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

#: moments and numbers, evenly spaced; None is a gap
Points = Sequence[tuple[datetime, float | None]]
#: how the points of a chart are drawn: as lines, or as bars on top of each other
Kind = Literal["lines", "bars"]
Unit = Literal["", "s", "B", "/s"]

#: curves of a chart, at most: charts.css has as many colours
MAX_CURVES = 6
#: units of the plot across; its height and that of the line of times below it: px
WIDTH, HEIGHT, TIMES_HEIGHT = 1000, 160, 20
#: px above the highest line of the grid, for its label
TOP = 8
#: units of a sparkline
SPARK_WIDTH, SPARK_HEIGHT = 100, 24
#: intervals between the lines of the grid; labels of times, at most
MAX_INTERVALS, MAX_TIMES = 4, 6
#: regions with numbers that appear when the pointer is over them, at most: more would be too narrow to hit
MAX_REGIONS = 120
#: seconds between two labels of times
TIME_STEPS = (60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 259_200, 604_800)
DAY = 86_400
#: between two times, and in place of a number
DASH = "\N{EN DASH}"
#: names of the powers of 1000 and of 1024
_THOUSANDS, _BINARY = ("", "k", "M", "G", "T"), ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart, with the name that its legend has."""

    title: str
    points: Points


class Table(NamedTuple):
    """The numbers of a chart as text."""

    head: list[str]
    #: one for each moment at which a curve has a number, the latest first
    rows: list[list[str]]


def sparkline(points: Points, title: str, *, unit: Unit = "") -> SafeString:
    """A small line without axes. Its title, for a pointer and for screen readers, is `title` with the latest
    and the highest number."""
    text = _described(title, points, unit)
    top = max((number for _moment, number in points if number is not None), default=0) or 1
    place = _Place(len(points), top, SPARK_WIDTH, SPARK_HEIGHT - 2, above=1)
    numbers = [number for _moment, number in points]
    return format_html(
        '<svg class="drm-spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<title>{}</title><path class="drm-spark-area" d="{}"/><path class="drm-spark-line" d="{}"/></svg>',
        SPARK_WIDTH, SPARK_HEIGHT, text, text, place.area(numbers), place.line(numbers) + place.dots(numbers),
    )  # fmt: skip


def chart(curves: Sequence[Curve], title: str, *, kind: Kind = "lines", unit: Unit = "") -> SafeString:
    """A chart with a legend. All curves have numbers for the same moments.

    Raises ValueError for more than six curves, or if their moments differ.
    """
    _check(curves)
    moments = [moment for moment, _number in curves[0].points] if curves else []
    numbers = [[number for _moment, number in curve.points] for curve in curves]
    bases = _stacked(numbers) if kind != "lines" else [(None, tops) for tops in numbers]
    ticks = _ticks(max((top for _base, tops in bases for top in tops if top is not None), default=0), unit)
    place = _Place(len(moments), ticks[-1], WIDTH, HEIGHT, above=TOP)
    label = "; ".join([title, *(_described(one.title, one.points, unit) for one in curves)])
    return format_html(
        '<figure class="drm-chart"><figcaption><span class="drm-chart-title">{}</span>{}</figcaption>'
        '<div class="drm-chart-body">{}<svg class="drm-chart-plot" height="{}" role="img" aria-label="{}">'
        '{}<svg y="0" width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}{}</svg>{}'
        "</svg></div></figure>",
        title, _legend(curves), _numbers_axis(place, ticks, unit), TOP + HEIGHT + TIMES_HEIGHT, label,
        _grid(place, ticks), TOP + HEIGHT, WIDTH, TOP + HEIGHT,
        _drawn(place, bases, kind), _regions(place, curves, moments, unit),
        _times_axis(place, moments) if any(map(_known, numbers)) else _no_data(),
    )  # fmt: skip


def table_view(curves: Sequence[Curve], *, unit: Unit = "") -> Table:
    """The numbers of a chart, for a table: the same ones, exact to what the chart shows as text."""
    _check(curves)
    rows = []
    for index, (moment, _number) in enumerate(curves[0].points if curves else ()):
        numbers = [curve.points[index][1] for curve in curves]
        if any(number is not None for number in numbers):
            cells = [DASH if number is None else number_text(number, unit) for number in numbers]
            rows.append([_full_time(moment), *cells])
    return Table([_("Time"), *(curve.title for curve in curves)], rows[::-1])


def number_text(number: float, unit: Unit = "") -> str:
    """A number with its unit, short enough for a label: "1.2k", "35 ms", "1.5 GiB".

    >>> [number_text(0), number_text(1234), number_text(0.0351, "s"), number_text(90, "s")]
    ['0', '1.2k', '35 ms', '1.5 min']
    """
    if unit == "s":
        return _duration(number)
    base, names = (1024, _BINARY) if unit == "B" else (1000, _THOUSANDS)
    power = 0
    while abs(number) >= base and power < len(names) - 1:
        number, power = number / base, power + 1
    if unit == "B":
        return f"{_digits(number)} {names[power]}"
    return f"{_digits(number)}{names[power]}{unit}"


def _duration(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    for bound, factor, name in ((0.001, 1e6, "µs"), (1, 1e3, "ms"), (60, 1, "s"), (3600, 1 / 60, "min")):
        if abs(seconds) < bound:
            return f"{_digits(seconds * factor)} {name}"
    return f"{_digits(seconds / 3600)} h"


def _digits(number: float) -> str:
    """Two significant digits, all of them before the decimal point."""
    places = 0 if number == 0 or abs(number) >= 9.95 else 1 if abs(number) >= 0.095 else 2
    text = number_format(round(number, places), places)
    separator = number_format(0.5, 1)[1:2]
    return text.rstrip("0").removesuffix(separator) if separator in text else text


def _check(curves: Sequence[Curve]) -> None:
    if len(curves) > MAX_CURVES:
        raise ValueError(f"curves must be at most {MAX_CURVES}, not {len(curves)}.")
    if len({tuple(moment for moment, _number in curve.points) for curve in curves}) > 1:
        raise ValueError("curves must have numbers for the same moments.")


def _described(title: str, points: Points, unit: Unit) -> str:
    known = _known(number for _moment, number in points)
    if not known:
        return _("%(title)s: no data") % {"title": title}
    numbers = {"title": title, "last": number_text(known[-1], unit), "highest": number_text(max(known), unit)}
    return _("%(title)s: latest %(last)s, highest %(highest)s") % numbers


def _known(numbers: Iterable[float | None]) -> list[float]:
    return [number for number in numbers if number is not None]


def _no_data() -> SafeString:
    text = _("No data")
    return format_html('<text class="drm-no-data" x="50%" y="{}">{}</text>', TOP + HEIGHT / 2, text)


class _Place:
    """Where the points of a plot are."""

    def __init__(self, count: int, top: float, width: int, height: int, *, above: int) -> None:
        self.count = max(count, 1)
        self.width = width
        self._top = top
        self._height = height
        self._above = above

    @property
    def bottom(self) -> float:
        return self._above + self._height

    def x(self, index: float) -> float:
        """The middle of the step of a point."""
        return (index + 0.5) * self.width / self.count

    def y(self, number: float) -> float:
        return self.bottom - number / self._top * self._height

    def line(self, numbers: Sequence[float | None]) -> str:
        """The path of a line with gaps."""
        runs = (run for run in _runs(numbers) if len(run) > 1)
        return "".join("M" + "L".join(self._at(*one) for one in run) for run in runs)

    def dots(self, numbers: Sequence[float | None]) -> str:
        """The path of single points between gaps: lines of no length, with visible round ends."""
        return "".join(f"M{self._at(*run[0])}h0" for run in _runs(numbers) if len(run) == 1)

    def area(self, tops: Sequence[float | None]) -> str:
        """The path around what is below a line with gaps."""
        paths = []
        for run in _runs(tops):
            below = [(index, 0.0) for index, _number in reversed(run)]
            paths.append("M" + "L".join(self._at(*one) for one in [*run, *below]) + "Z")
        return "".join(paths)

    def bars(self, tops: Sequence[float | None], bases: Sequence[float]) -> str:
        """The path around bars."""
        half = 0.4 * self.width / self.count
        return "".join(
            f"M{self.x(index) - half:.1f} {self.y(bases[index]):.1f}V{self.y(top):.1f}h{2 * half:.1f}"
            f"V{self.y(bases[index]):.1f}Z"
            for index, top in enumerate(tops)
            if top is not None
        )

    def _at(self, index: int, number: float) -> str:
        return f"{self.x(index):.1f} {self.y(number):.1f}"


def _runs(numbers: Iterable[float | None]) -> Iterator[list[tuple[int, float]]]:
    """The parts without gaps: index and number."""
    for is_gap, run in groupby(enumerate(numbers), key=lambda one: one[1] is None):
        if not is_gap:
            yield [(index, number) for index, number in run if number is not None]


#: where the points of a curve begin, if they don't at 0, and where they end
_Bounds = tuple[list[float] | None, list[float | None]]


def _stacked(curves: Sequence[Sequence[float | None]]) -> list[_Bounds]:
    """Each curve on top of those before; a gap adds nothing."""
    found: list[_Bounds] = []
    base = [0.0] * len(curves[0]) if curves else []
    for numbers in curves:
        tops = [None if number is None else low + number for low, number in zip(base, numbers, strict=True)]
        found.append((base, tops))
        base = [low if top is None else top for low, top in zip(base, tops, strict=True)]
    return found


def _drawn(place: _Place, bases: Sequence[_Bounds], kind: Kind) -> SafeString:
    """The curves, the first one on top where lines cross."""
    parts = []
    for index, (base, tops) in reversed(list(enumerate(bases, 1))):
        if kind == "bars":
            parts.append((index, "drm-bars", place.bars(tops, base or [0.0] * len(tops))))
            continue
        parts += [(index, "drm-line", place.line(tops)), (index, "drm-dots", place.dots(tops))]
    return format_html_join("", '<path class="drm-series-{} {}" d="{}"/>', (one for one in parts if one[2]))


def _regions(place: _Place, curves: Sequence[Curve], moments: Sequence[datetime], unit: Unit) -> SafeString:
    """Transparent rectangles, whose titles have the highest numbers of the steps that they cover."""
    size = math.ceil(len(moments) / MAX_REGIONS) or 1
    parts = []
    for first in range(0, len(moments), size):
        steps = range(first, min(first + size, len(moments)))
        lines = [
            f"{curve.title}: {number_text(max(known), unit)}"
            for curve in curves
            if (known := _known(curve.points[at][1] for at in steps))
        ]
        if lines:
            left, right = place.x(first - 0.5), place.x(steps[-1] + 0.5)
            title = "\n".join([_range(moments[first], moments[steps[-1]]), *lines])
            parts.append((f"{left:.1f}", f"{right - left:.1f}", place.bottom, title))
    rects = format_html_join("", '<rect x="{}" width="{}" height="{}"><title>{}</title></rect>', parts)
    return format_html('<g class="drm-regions">{}</g>', rects)


def _legend(curves: Sequence[Curve]) -> SafeString:
    if len(curves) < 2:
        return mark_safe("")
    items = format_html_join(
        "",
        '<li><svg class="drm-key" width="24" height="10" aria-hidden="true">'
        '<path class="drm-series-{} drm-line" d="M1 5H23"/></svg>{}</li>',
        ((index, curve.title) for index, curve in enumerate(curves, 1)),
    )
    return format_html('<ul class="drm-legend">{}</ul>', items)


def _ticks(highest: float, unit: Unit) -> list[float]:
    """The numbers at which the grid has lines: from 0 to the first one that reaches the highest."""
    if highest <= 0:
        return [0.0, 1.0]
    base = 1024.0 if unit == "B" else 60.0 if unit == "s" and highest > 120 else 1.0
    scale = base ** math.floor(math.log(highest, base)) if base > 1 else 1.0
    rough = highest / scale / MAX_INTERVALS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= rough * 0.9999) * scale
    if unit == "" and highest >= 1:
        step = max(math.ceil(step), 1)
    return [step * number for number in range(math.ceil(highest / step * 0.9999) + 1)]


def _grid(place: _Place, ticks: Sequence[float]) -> SafeString:
    parts = ((f"{place.y(tick):.1f}", f"{place.y(tick):.1f}") for tick in ticks)
    lines = format_html_join("", '<line x1="0" x2="100%" y1="{}" y2="{}"/>', parts)
    return format_html('<g class="drm-grid">{}</g>', lines)


def _numbers_axis(place: _Place, ticks: Sequence[float], unit: Unit) -> SafeString:
    parts = ((f"{place.y(tick) + 4:.1f}", number_text(tick, unit)) for tick in ticks)
    texts = format_html_join("", '<text x="100%" y="{}">{}</text>', parts)
    return format_html(
        '<svg class="drm-chart-numbers" height="{}" aria-hidden="true">{}</svg>', TOP + HEIGHT + 6, texts
    )


def _times_axis(place: _Place, moments: Sequence[datetime]) -> SafeString:
    parts = [
        (f"{100 * share:.2f}%", f"{place.bottom + 15:.0f}", text)
        for share, text in _times(moments)
        if 0.03 <= share <= 0.97  # a label at the border would be cut off
    ]
    texts = format_html_join("", '<text x="{}" y="{}">{}</text>', parts)
    return format_html('<g class="drm-chart-times">{}</g>', texts)


def _times(moments: Sequence[datetime]) -> Iterator[tuple[float, str]]:
    """The labels of round local times, and where they are: a share of the width."""
    if len(moments) < 2:
        return
    first, step = moments[0], moments[1] - moments[0]
    whole = step * len(moments)
    seconds = next((one for one in TIME_STEPS if whole.total_seconds() / one <= MAX_TIMES), TIME_STEPS[-1])
    day = localtime(first).replace(hour=0, minute=0, second=0, microsecond=0)
    if seconds > DAY:  # the same days in each chart
        day -= timedelta(days=day.toordinal() % (seconds // DAY))
    for number in range(DAY * 14 // seconds + 2):
        # not by adding to the aware moment: local time jumps when summer begins
        naive = day.replace(tzinfo=None) + timedelta(seconds=number * seconds)
        moment = naive.replace(tzinfo=day.tzinfo)
        share = (moment.astimezone(UTC) - first) / whole
        if share > 1:
            return
        if share >= 0:
            yield share, _short_time(moment)


def _short_time(moment: datetime) -> str:
    """The time of a label; at midnight, the date."""
    is_midnight = moment.hour == moment.minute == 0
    return date_format(moment, "j M") if is_midnight else date_format(moment, "H:i")


def _full_time(moment: datetime) -> str:
    return date_format(localtime(moment), "j M H:i:s")


def _range(first: datetime, last: datetime) -> str:
    """From one step to another one, which may be the same."""
    times = [_full_time(first), date_format(localtime(last), "H:i:s")]
    return DASH.join(times if first != last else times[:1])
