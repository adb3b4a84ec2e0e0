"""The overview: what is wrong right now, the number of each capability that matters, and the servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..checks.servers import ServerInfo, version
from ..services.history.gauges import QueueGauges
from ..services.history.history import MAX_READ, Line
from ..services.history.keys import KINDS, Series
from ..services.history.things import THINGS
from ..services.jobs.heartbeats import alive
from .base import ConsolePage
from .charts import Points, sparkline
from .history import SMALL, read_lines
from .problems import find_troubles
from .state import State, read_state
from .tables import Cell, Row, Table, duration, to_cell

#: points of an hour whose mean is compared with that of as many before: ten minutes
TREND = SMALL // 6
#: servers whose round trips are shown
MAX_SERVERS = 6
#: backends whose workers are drawn
MAX_BACKENDS = 4
#: the columns that are drawn
COLUMNS = ("ran", "round_trip", "workers", "periodic", *KINDS["things"].gauges)
#: numbers that a small chart has at least
MIN_POINTS = 2
#: share by which the mean must differ
MIN_CHANGE = 0.05


@dataclass(frozen=True)
class Tile:
    """The number of a capability that matters."""

    title: str
    number: str
    #: what the number is
    unit: str
    detail: str = ""
    url: str = ""
    #: the last hour
    chart: SafeString = SafeString("")  # noqa: RUF009 (immutable)
    trend: str = ""


class OverviewPage(ConsolePage):
    """The first page of the console."""

    section = "overview"
    template_name = "django_redis_messaging/console/overview.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        state = read_state()
        lines = read_lines(chosen_series(state), columns=COLUMNS, points=SMALL)
        context = {
            "page_title": _("Overview"),
            "troubles": [(one, self.link(one)) for one in find_troubles(state)],
            "tiles": [*self.tiles_of_jobs(state, lines), *self.tiles_of_things(state, lines)],
            "tables": [self.servers(state, lines)],
        }
        return self.page(context)

    def link(self, trouble: Any) -> str:
        """The page about a trouble; empty: there is none."""
        if trouble.thing is not None:
            return self.url_of(trouble.thing)
        return self.url(trouble.page) if trouble.page else ""

    def tiles_of_jobs(self, state: State, lines: Sequence[Line]) -> Iterator[Tile]:
        """Tasks, delay queues, workers, timers and the schedule."""
        tasks = [one for one in state.queues if one.series.where]
        delayed = [one for one in state.queues if one.series.kind == "queue" and not one.series.where]
        timers = [one for one in state.queues if one.series.kind == "timers"]
        queues = self.url("queues")
        yield job_tile(_("Tasks"), tasks, lines, queues)
        if delayed:
            yield job_tile(_("Delay queues"), delayed, lines, queues)
        workers = alive([one for found in state.attendance.workers.values() for one in found])
        running = sum(one.running for one in workers)
        detail = ngettext("%(number)s job running", "%(number)s jobs running", running)
        detail %= {"number": number_format(running)}
        backends = [line.series for line in lines if line.series.kind == "backend"]
        chart, trend = summed(lines, backends, "workers", _("Workers"))
        yield Tile(_("Workers"), number_format(len(workers)), _("alive"), detail, queues, chart, trend)
        listeners = len(alive(state.attendance.listeners))
        detail = ngettext("%(number)s listener", "%(number)s listeners", listeners) % {"number": listeners}
        waiting = sum(one.delayed + one.ready for one in timers)
        chart, trend = summed(lines, [one.series for one in timers], "ran", _("Timers that fired"))
        yield Tile(
            _("Timers"), number_format(waiting), _("waiting"), detail, self.url("timers"), chart, trend
        )
        silences = [one for one in state.attendance.silences.values() if one is not None]
        poller = _("Poller: %(time)s ago") % {"time": duration(min(silences))} if silences else _("no poller")
        number = number_format(sum(state.attendance.periodic.values()))
        chart, trend = summed(lines, backends, "periodic", _("Periodic tasks"))
        yield Tile(_("Schedule"), number, _("periodic tasks"), poller, self.url("schedule"), chart, trend)

    def tiles_of_things(self, state: State, lines: Sequence[Line]) -> Iterator[Tile]:
        """What has a name: locks, chats and channels."""
        locks, chats, channels = self.url("locks"), self.url("chats"), self.url("channels")
        for kind, title, unit, url in (
            ("lock", _("Locks"), _("used today"), locks),
            ("semaphore", _("Semaphores"), _("in use"), locks),
            ("rwlock", _("Read-write locks"), _("in use"), locks),
            ("latch", _("Latches"), _("in use"), locks),
            ("chat", _("Chats"), _("chats"), chats),
            ("mailbox", _("Mailboxes"), pgettext("console", "users"), channels),
            ("broadcast", _("Broadcast"), _("channels"), channels),
            ("files", _("Files"), _("channels"), channels),
            ("directory", _("Directories"), _("directories"), channels),
        ):
            if number := state.counts.by_kind[kind]:
                shown = number_format(number)
                chart, trend = summed(lines, [THINGS], kind, title)
                if not state.counts.is_complete:  # the share that is counted depends on the other keys
                    shown, trend = _("%(number)s or more") % {"number": shown}, ""
                yield Tile(title, shown, unit, url=url, chart=chart, trend=trend)

    def servers(self, state: State, lines: Sequence[Line]) -> Table:
        """The servers that own keys."""
        trips = {line.series.name: round_trips(line) for line in lines if line.series.kind == "server"}
        if len(state.servers) == len(trips) == 1:  # without a Cluster, servers are not told apart by address
            trips = dict.fromkeys([address for _alias, address in state.servers], *trips.values())
        columns = [
            _("Server"), _("Version"), _("Memory"), _("Round trip"), _("Stores data"), _("Replicas"),
            _("Clients"), _("Evicted keys"),
        ]  # fmt: skip
        return Table(
            _("Servers"),
            columns,
            list(state.servers.items()),
            lambda item: server_row(item[0], item[1], trips),
            _("The state of the servers can't be read."),
        )


def chosen_series(state: State) -> list[Series]:
    """The series that are drawn: those of the busiest queues, of processes and things, and of the servers of
    the app's alias."""
    queues = sorted(state.queues, key=lambda one: one.throughput, reverse=True)
    others = [Series("backend", alias, alias) for alias in state.attendance.workers][:MAX_BACKENDS]
    others += [THINGS, *(one.series for one in state.gauges[:MAX_SERVERS])]
    return [one.series for one in queues[: MAX_READ - len(others)]] + others


def job_tile(title: str, queues: Sequence[QueueGauges], lines: Sequence[Line], url: str) -> Tile:
    """The jobs of some queues."""
    ready, running, dead = (sum(getattr(one, name) for one in queues) for name in ("ready", "leased", "dead"))
    parts = [_("%(number)s running") % {"number": number_format(running)}]
    if dead:
        parts.append(_("%(number)s dead") % {"number": number_format(dead)})
    rates = {"added": sum(one.added for one in queues), "ended": sum(one.throughput for one in queues)}
    shown = {name: number_format(rate, 1) for name, rate in rates.items()}
    parts.append(_("%(added)s/s in, %(ended)s/s out") % shown)
    chart, trend = summed(lines, [one.series for one in queues], "ran", _("Jobs that ran"))
    return Tile(title, number_format(ready), _("ready"), ", ".join(parts), url, chart, trend)


def summed(
    lines: Sequence[Line], series: Sequence[Series], column: str, title: str
) -> tuple[SafeString, str]:
    """The chart of the sum of some series in the last hour, and its trend."""
    columns = [list(line.column(column)) for line in lines if line.series in series]
    if not columns:
        return SafeString(""), ""
    gap = 0 if column in series[0].columns.counts else None  # without a poller, a gauge is unknown
    points = [(steps[0][0], total(steps, gap)) for steps in zip(*columns, strict=True)]
    if sum(value is not None for _moment, value in points) < MIN_POINTS:
        return SafeString(""), ""
    return sparkline(points, title), trend_of([value for _moment, value in points])


def total(steps: Points, gap: float | None) -> float | None:
    """The sum of the numbers of one step; `gap` if there are none."""
    known = [value for _moment, value in steps if value is not None]
    return sum(known) if known else gap


def trend_of(values: Sequence[float | None]) -> str:
    """How the last ten minutes differ from the ten before; empty if nothing was recorded then.

    The latest value doesn't count: its step has not ended.

    >>> trend_of([1.0] * 20 + [2.0] * 20 + [0.0]), trend_of([2.0] * 20 + [1.0] * 21), trend_of([1.0] * 41)
    ('↑ 100 %', '↓ 50 %', '→')
    """
    ended = values[:-1]
    before, now = mean(ended[-2 * TREND : -TREND]), mean(ended[-TREND:])
    if not before or now is None:
        return ""
    change = now / before - 1
    if abs(change) < MIN_CHANGE:
        return "→"
    arrow = "↑" if change > 0 else "↓"
    return f"{arrow} {number_format(100 * abs(change), 0)} %"


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def round_trips(line: Line) -> tuple[float, float] | None:
    """The latest round trip of the poller, and the one that 99 % of the longest ones of each half minute of
    the last hour don't exceed: ms."""
    found = [value / 1000 for _moment, value in line.column("round_trip") if value is not None]
    return (found[-1], sorted(found)[int(0.99 * (len(found) - 1))]) if found else None


def server_row(
    which: tuple[str, str], info: ServerInfo, trips: Mapping[str, tuple[float, float] | None]
) -> Row:
    """A server."""
    alias, address = which
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    memory = _("of %(limit)s") % {"limit": filesizeformat(limit)} if limit else _("no limit")
    trip = trips.get(address)
    p99 = "" if trip is None else _("p99 %(ms)s ms") % {"ms": number_format(trip[1], 2)}
    stores = [name for name, on in (("AOF", info.get("aof_enabled") == "1"), ("RDB", True)) if on]
    mode = info.get("redis_mode") or info.get("server_mode", "")
    return Row([
        Cell(address or alias, alias if address else ""),
        Cell(version(info), mode),
        Cell(filesizeformat(used), memory, is_number=True),
        Cell("" if trip is None else f"{number_format(trip[0], 2)} ms", p99, is_number=True),
        persistence(info, stores),
        to_cell(int(info.get("connected_slaves", 0))),
        to_cell(int(info.get("connected_clients", 0))),
        to_cell(int(info.get("evicted_keys", 0))),
    ])  # fmt: skip


def persistence(info: ServerInfo, stores: Sequence[str]) -> Cell:
    """How the server stores its data, and whether that has failed."""
    names = ("rdb_last_bgsave_status", "aof_last_write_status")
    failed = any(info.get(name, "ok") != "ok" for name in names)
    return Cell(", ".join(stores), mark=_("failed") if failed else "")
