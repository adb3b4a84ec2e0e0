"""The history: charts of what was recorded of queues, tasks, timers, operations, processes, things and
servers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from .. import conf, surveys
from ..core.encoding import printable
from ..services.history.history import MAX_POINTS, PERIODS, History, Line
from ..services.history.keys import KINDS, Series
from ..web import problems
from ..web.problems import Problem
from .base import ConsolePage
from .charts import Curve, Kind, Points, Table, Unit, chart, number_text, sparkline, table_view
from .tables import Cell, Row
from .tables import Table as List

#: series on a page: they are read in one round trip
PAGE = 20
#: points of a small chart, at most
SMALL = 120
#: rows of the table of a chart
MAX_ROWS = 60


class Drawing(NamedTuple):
    """A chart of some columns of a series."""

    title: str | Promise
    #: column → name in the legend
    columns: dict[str, str | Promise]
    unit: Unit = ""
    kind: Kind = "lines"


_HIGHEST, _P95, _P50 = gettext_lazy("highest"), gettext_lazy("95 %"), gettext_lazy("50 %")
RAN = Drawing(
    gettext_lazy("Runs"), {"ran": gettext_lazy("not failed"), "failed": gettext_lazy("failed")}, kind="bars"
)
WAIT = Drawing(gettext_lazy("Waited until they started"), {"wait95": _P95, "wait50": _P50}, "s")
RUN = Drawing(gettext_lazy("Ran for"), {"run95": _P95, "run50": _P50}, "s")
WAITING = Drawing(
    gettext_lazy("In the queue"), {"ready": gettext_lazy("ready"), "dead": gettext_lazy("dead")}
)
OLDEST = Drawing(gettext_lazy("Age of the oldest ready job"), {"oldest": _HIGHEST}, "s")
#: by kind of series
DRAWINGS: dict[str, tuple[Drawing, ...]] = {
    "queue": (RAN, WAITING, WAIT, RUN, OLDEST),
    "timers": (RAN, WAITING, WAIT, RUN),
    "task": (RAN, WAIT, RUN),
    "operation": (RAN, RUN),
    "server": (
        Drawing(
            gettext_lazy("Memory"),
            {"memory": gettext_lazy("used"), "maxmemory": gettext_lazy("limit")},
            "B",
        ),
        Drawing(gettext_lazy("Commands per second"), {"ops": _HIGHEST}),
        Drawing(gettext_lazy("Clients"), {"clients": _HIGHEST}),
        Drawing(gettext_lazy("Round trip of the poller"), {"round_trip": _HIGHEST}, "s"),
    ),
    "backend": (
        Drawing(gettext_lazy("Workers"), {"workers": gettext_lazy("alive")}),
        Drawing(gettext_lazy("Running tasks"), {"running": _HIGHEST}),
        Drawing(gettext_lazy("Periodic tasks"), {"periodic": _HIGHEST}),
    ),
    "things": (
        Drawing(
            gettext_lazy("Locks"),
            {
                "lock": gettext_lazy("Locks"),
                "rwlock": gettext_lazy("Read-write locks"),
                "semaphore": gettext_lazy("Semaphores"),
                "latch": gettext_lazy("Latches"),
            },
        ),
        Drawing(
            gettext_lazy("Chats and mailboxes"),
            {"chat": gettext_lazy("Chats"), "mailbox": gettext_lazy("Mailboxes")},
        ),
        Drawing(
            gettext_lazy("Channels and directories"),
            {
                "broadcast": gettext_lazy("Broadcast channels"),
                "files": gettext_lazy("File channels"),
                "directory": gettext_lazy("Directories"),
            },
        ),
        Drawing(gettext_lazy("Listeners"), {"listeners": gettext_lazy("alive")}),
    ),
}
#: columns that are not stored in the unit of their chart → what makes it of them
SCALES = {"round_trip": 1e-6}
TITLES = {
    "queue": gettext_lazy("Queues"),
    "task": gettext_lazy("Tasks"),
    "timers": gettext_lazy("Timers"),
    "operation": gettext_lazy("Operations"),
    "backend": gettext_lazy("Workers"),
    "things": gettext_lazy("Locks, chats and channels"),
    "server": gettext_lazy("Servers"),
}
NAMES = {
    "hour": gettext_lazy("Hour"),
    "day": pgettext_lazy("console", "Day"),
    "fortnight": gettext_lazy("Two weeks"),
}
#: the column of the small charts, by kind
OF_SPARKLINE = {
    "queue": "ran",
    "task": "ran",
    "timers": "ran",
    "operation": "ran",
    "server": "memory",
    "backend": "workers",
    "things": "chat",
}
#: the columns of the list
LISTED = ("failed", "run95", *OF_SPARKLINE.values())


class HistoryPage(ConsolePage):
    """Lists what there is a history of, by `?kind=`; with `?series=`, the charts of one, for a `?period=`."""

    section = "history"
    template_name = "django_redis_messaging/console/history.html"
    refresh = 30

    def get(self, request: HttpRequest) -> HttpResponse:
        period = request.GET.get("period", "hour")
        if period not in PERIODS:
            raise Problem(problems.INVALID)
        name = request.GET.get("series", "")
        kind = request.GET.get("kind", "queue")
        context = self.one(name, period) if name else self.all(kind, period)
        chosen = {"series": name} if name else {"kind": kind}
        periods = [(NAMES[one], self.url("history", period=one, **chosen), one == period) for one in PERIODS]
        return self.page({"periods": periods, **context})

    def one(self, name: str, period: str) -> dict[str, object]:
        """The charts of a series."""
        series = Series.parse(name)
        if series.kind not in DRAWINGS:
            raise Problem(problems.INVALID)
        [line] = read_lines([series], period)
        drawn = [draw(one, line) for one in DRAWINGS[series.kind]]
        title = f"{TITLES[series.kind]}: {printable(series.name)}"
        crumbs = [(pgettext("console", "History"), self.url("history", kind=series.kind))]
        return {"page_title": title, "charts": drawn, "crumbs": crumbs, "tables": []}

    def all(self, kind: str, period: str) -> dict[str, object]:
        """A page of the series of a kind, with small charts."""
        after = self.request.GET.get("after", "")
        if kind not in KINDS:
            raise Problem(problems.INVALID)
        names = [one for one in recorded(kind) if str(one) > after]
        lines = read_lines(names[:PAGE], period, columns=LISTED, points=SMALL)
        following = str(names[PAGE - 1]) if len(names) > PAGE else ""
        table = List(
            str(TITLES[kind]),
            [_("Name"), _("Shows"), _("Runs"), _("Failed"), _("Ran for (95 %)")],
            lines,
            lambda line: self.row(line, period),
            _("Nothing was recorded yet: a poller, a worker or a listener records it."),
            next_url=self.url("history", kind=kind, after=following, period=period) if following else "",
        )
        kinds = [(TITLES[one], self.url("history", kind=one, period=period), one == kind) for one in TITLES]
        return {"page_title": pgettext("console", "History"), "kinds": kinds, "tables": [table]}

    def row(self, line: Line, period: str) -> Row:
        """A series."""
        series = line.series
        url = self.url("history", series=str(series), period=period)
        drawing = next(one for one in DRAWINGS[series.kind] if OF_SPARKLINE[series.kind] in one.columns)
        column = OF_SPARKLINE[series.kind]
        small = sparkline(list(line.column(column)), str(drawing.title), unit=drawing.unit)
        slowest = [one for point in line.points if (one := point.values.get("run95")) is not None]
        return Row([
            Cell(printable(series.name), series.where, url=url),
            Cell("", chart=small),
            total(line, "ran"),
            total(line, "failed"),
            Cell(number_text(max(slowest), "s"), is_number=True) if slowest else None,
        ])  # fmt: skip


def using_of(series: Series) -> str:
    """The CACHES alias at which a series is recorded: that of its backend, else that of the app."""
    backend = surveys.backends().get(series.where)
    return conf.alias() if backend is None else backend.using


def recorded(kind: str) -> list[Series]:
    """The series of a kind at all aliases, in the order of their names. One round trip for each alias."""
    names = [(using, one) for using in surveys.aliases() for one in History(using=using).series(kind)]
    return sorted((one for using, one in names if using_of(one) == using), key=str)


def read_lines(
    series: Sequence[Series],
    period: str = "hour",
    *,
    columns: Collection[str] | None = None,
    points: int = MAX_POINTS,
) -> list[Line]:
    """What was recorded of up to 20 series in a period, in their order. One round trip for each alias."""
    found: dict[Series, Line] = {}
    for using in dict.fromkeys(map(using_of, series)):
        some = [one for one in series if using_of(one) == using]
        lines = History(using=using).lines(some, period, columns=columns, points=points)
        found |= zip(some, lines, strict=True)
    return [found[one] for one in series]


def draw(drawing: Drawing, line: Line) -> tuple[SafeString, Table]:
    """A chart with the table of its numbers."""
    title = str(drawing.title)
    curves = [
        Curve(str(text), without_failed(line) if name == "ran" else scaled(line, name))
        for name, text in drawing.columns.items()
        if name != "maxmemory" or any(value for _moment, value in line.column(name))
    ]
    table = table_view(curves, unit=drawing.unit)
    drawn = chart(curves, title, kind=drawing.kind, unit=drawing.unit)
    return drawn, Table(table.head, table.rows[:MAX_ROWS])


def without_failed(line: Line) -> Points:
    """The runs that have not failed: the bar of those that have is on top of theirs."""
    both = zip(line.column("ran"), line.column("failed"), strict=True)
    return [(moment, None if ran is None else ran - (failed or 0)) for (moment, ran), (_, failed) in both]


def total(line: Line, column: str) -> int | None:
    """The sum of a column of counts; None if the series has no such column."""
    if column not in line.series.columns.counts:
        return None
    return sum(int(point.values.get(column) or 0) for point in line.points)


def scaled(line: Line, name: str) -> Points:
    """The points of a column, in the unit of its chart."""
    scale = SCALES.get(name, 1)
    return [(moment, None if value is None else value * scale) for moment, value in line.column(name)]
