"""Tables of the console: what is in a row and a cell, and how values are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from django.utils.formats import date_format, number_format
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from ..core.encoding import printable
from ..services.common.things import Thing

#: maximum number of rows of a table
MAX_ROWS = 200
#: characters of a text that is not broken into lines
MAX_SHORT = 22
#: characters of a text in two columns of the page of a thing
MAX_WIDE = 60

Tone = Literal["", "good", "warn", "bad"]


@dataclass(frozen=True)
class Cell:
    """What is in a cell of a table."""

    text: str
    #: a second line
    detail: str = ""
    #: a word that marks the row, before the text
    mark: str = ""
    #: how the mark is coloured
    tone: Tone = "bad"
    #: the page to which the text links
    url: str = ""
    is_number: bool = False
    #: whether a number may be on two lines, where there is little room
    wraps: bool = False
    #: a chart, beside the text
    chart: SafeString = SafeString("")  # noqa: RUF009 (immutable)

    @property
    def classes(self) -> str:
        """The classes of the element in a table, for console.css."""
        if not (self.text or self.mark or self.detail or self.chart):
            return "drm-blank"
        if self.is_number:
            name = "drm-number" if self.wraps else "drm-number drm-short"
            return f"{name} drm-zero" if self.text == "0" else name
        return "drm-short" if len(self.text) <= MAX_SHORT else "drm-long"

    @property
    def is_wide(self) -> bool:
        """Whether it needs two columns of the page of a thing."""
        return max(len(self.text), len(self.detail)) > MAX_SHORT

    @property
    def is_line(self) -> bool:
        """Whether it needs a line of its own there."""
        return max(len(self.text), len(self.detail)) > MAX_WIDE


#: what a row may contain: a text, a number, a moment, a duration, nothing, or a Cell
Value = str | int | float | datetime | timedelta | Cell | None


@dataclass(frozen=True)
class Action:
    """A button that asks before it changes something."""

    label: str
    url: str
    #: what it is about
    thing: Thing | None = None
    #: further parameters; without line breaks, which browsers would change
    data: Mapping[str, str] = field(default_factory=dict)
    is_danger: bool = False


@dataclass(frozen=True)
class Row:
    """The values of a row, in the order of the columns."""

    values: Sequence[Value]
    actions: Sequence[Action] = ()
    #: what can be selected in this row
    thing: Thing | None = None


@dataclass
class Table:
    """A table of a page. Of many items, the first are shown."""

    title: str
    columns: Sequence[str]
    items: Sequence[Any]
    #: makes the row of an item
    row: Callable[[Any], Row]
    #: the text that is shown instead of a table without rows
    empty: str
    #: the URL of the next page; empty: this is the last one
    next_url: str = ""
    #: buttons for the rows that are selected
    bulk: Sequence[Action] = ()
    #: buttons for all that match, whether they are shown or not
    overall: Sequence[Action] = ()
    #: a line below the title
    note: str = ""

    @cached_property
    def rows(self) -> list[tuple[Row, list[tuple[str, Cell]]]]:
        """The rows that are shown, with their cells, each with its column."""
        rows = [self.row(item) for item in self.items[:MAX_ROWS]]
        return [(row, list(zip(self.columns, map(to_cell, row.values), strict=True))) for row in rows]

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """The titles of the columns, and whether numbers are in them."""
        numbers = {column for _row, cells in self.rows for column, cell in cells if cell.is_number}
        return [(column, column in numbers) for column in self.columns]

    @property
    def left_out(self) -> int:
        """The number of items that are not shown."""
        return len(self.items) - len(self.rows)

    @property
    def has_actions(self) -> bool:
        """Whether a row has a button."""
        return any(row.actions for row, _cells in self.rows)


def to_cell(value: Any) -> Cell:
    """What a table shows for a value."""
    match value:
        case Cell():
            return value
        case None:
            return Cell("")
        case datetime():
            return Cell(date_format(localtime(value), "SHORT_DATETIME_FORMAT"))
        case timedelta():
            return Cell(duration(value.total_seconds()), is_number=True)
        case int():
            return Cell(number_format(value, use_l10n=True), is_number=True)
        case float():
            return Cell(number_format(value, decimal_pos=1 if value < 100 else 0), is_number=True)
    return Cell(printable(value))


def duration(seconds: float) -> str:
    """A time to wait as text: its two largest units.

    >>> duration(4.25), duration(75), duration(3600), duration(90_000)
    ('4.2 s', '1 min 15 s', '1 h', '1 d 1 h')
    """
    if round(seconds, 1) < 60:
        exact = number_format(seconds, 0 if seconds == round(seconds) else 1)
        return _("%(number)s s") % {"number": exact}
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [
        (days, _("%(number)s d")), (hour, _("%(number)s h")), (minute, _("%(number)s min")),
        (second, _("%(number)s s")),
    ]  # fmt: skip
    first = next(at for at, (number, _text) in enumerate(parts) if number)
    return " ".join(text % {"number": number} for number, text in parts[first : first + 2] if number)
