"""The numbers of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from django.utils.translation import gettext as _

from django_redis_messaging import Aggregator

from .origins import origin_name

#: days on the page, the latest ones
MAX_DAYS = 31
#: countries of a day; the others are summed up
MAX_ROWS = 10


@dataclass(frozen=True)
class Bar:
    """A row of a table: a number, and the length of its bar."""

    name: str
    count: int
    #: % of the longest bar, for an attribute of an SVG element: with a point in every language
    width: str
    day: date | None = None


@dataclass(frozen=True)
class Day:
    """The requests of a day, by country."""

    day: date
    total: int
    rows: list[Bar]


def read_days(visits: Aggregator) -> list[Day]:
    """The latest days, in order."""
    counts = {}
    for period in visits.periods()[-MAX_DAYS:]:
        rows = [(origin_name(one.key), one.count) for one in visits.top(period, MAX_ROWS)]
        total = visits.total(period)
        others = total - sum(count for _, count in rows)
        if others:
            rows.append((_("Others"), others))
        counts[date.fromisoformat(period)] = (total, rows)
    longest = max((count for _, rows in counts.values() for _, count in rows), default=1)
    return [
        Day(day, total, [Bar(name, count, _width(count, longest)) for name, count in rows])
        for day, (total, rows) in counts.items()
    ]


def by_day(days: Sequence[Day]) -> list[Bar]:
    """The totals of the days."""
    longest = max((one.total for one in days), default=1)
    return [Bar("", one.total, _width(one.total, longest), one.day) for one in days]


def _width(count: int, longest: int) -> str:
    return f"{100 * count / longest:.2f}"
