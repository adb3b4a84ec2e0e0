"""The queues of tasks and delay queues: their numbers, their jobs by place, their workers, and changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf, surveys
from ..core.encoding import printable
from ..core.operations import perform
from ..services.common.operators import Health
from ..services.common.things import Thing
from ..services.history.history import History, Point
from ..services.history.keys import Series
from ..services.jobs.engine import Paused
from ..services.jobs.listing import JobRow
from ..services.jobs.workers import WorkerInfo, read_worker, read_workers
from ..web import problems
from ..web.problems import Answer, Problem
from .base import ChangePage, ConsolePage, Field, Question, ThingPage
from .charts import Table as Numbers
from .charts import number_text
from .contents import MAX_LINE, shortened
from .history import RAN, RUN, WAIT, draw, read_lines
from .job_queues import Counted, Queue, all_queues, backend_of, count, queue_of
from .jobs import CHANGES, FILTERS, PLACES, job_filter, shown_contents
from .state import MAX_AGE
from .tables import Action, Cell, Row, Table, Value, duration, to_cell
from .why import explained

if TYPE_CHECKING:
    from ..tasks.backend import RedisBackend

#: queues of a page, which one round trip counts
PAGE = 50
NBSP = "\N{NO-BREAK SPACE}"
#: between a number and its unit
_BEFORE_UNIT = re.compile(r"(?<=\d) ")
WAS_PAUSED = Answer(409, "changed", gettext_lazy("The queue is not paused. Nothing was changed."))
NO_JOBS = Answer(409, "changed", gettext_lazy("The queue has no jobs any more. Nothing was changed."))


class QueuesPage(ConsolePage):
    """The queues, by name; `?page=` pages."""

    section = "queues"
    #: jobs that were added per second
    added: Mapping[Series, float]
    #: the latest minutes
    minutes: Mapping[Series, Point]

    def get(self, request: HttpRequest) -> HttpResponse:
        number, queues = self.number, all_queues()
        some = queues[(number - 1) * PAGE : number * PAGE]
        self.added, self.minutes = added_to(some), minutes_of(some)
        more = len(queues) > number * PAGE
        table = Table(
            _("Queues"),
            [
                _("Queue"), _("Ready"), _("Delayed"), _("Running"), _("Parked"), _("Dead"),
                _("Age of oldest"), _("In / out per second"), _("Wait p50 / p95"), _("Run p50 / p95"),
                _("Time to drain"),
            ],
            count(some),
            self.row,
            _("There are no queues yet."),
            next_url=self.url("queues", page=str(number + 1)) if more else "",
            note=_(
                "Wait and run: in the latest full minute, half of the jobs took at most p50, "
                "and 95 of 100 at most p95."
            ),
        )  # fmt: skip
        return self.page({"page_title": _("Queues"), "tables": [table, self.workers()]})

    def row(self, one: Counted) -> Row:
        """A queue with its numbers, and a button that pauses or resumes it."""
        load, series = one.load, one.queue.series
        minute = self.minutes.get(series)
        values: list[Value] = [
            name_cell(one, self.url_of(one.queue.thing)),
            *(self.place_cell(one, place) for place in ("ready", "delayed", "leased", "parked", "dead")),
            None if load.oldest_age is None else numbers_cell(duration(load.oldest_age)),
            rates_cell(self.added.get(series), load.throughput),
            latency_cell(minute, "wait50", "wait95"),
            latency_cell(minute, "run50", "run95"),
            drain_cell(one),
        ]
        return Row(values, pause_button(self, one))

    def place_cell(self, one: Counted, place: str) -> Cell:
        """How many jobs are in a place, with a link to them."""
        number = getattr(one.load, place)
        url = self.url("queue", thing=str(one.queue.thing), place=place) if number else ""
        return Cell(number_format(number, use_l10n=True), url=url, is_number=True)

    def workers(self) -> Table:
        """The backends with the numbers of their workers."""
        found = [(alias, Health(using=one.using).workers(alias)) for alias, one in surveys.backends().items()]
        return Table(
            _("Workers"),
            [_("Backend"), _("Alive"), _("Running")],
            found,
            lambda one: Row(
                [
                    Cell(printable(one[0]), url=self.url("workers", backend=one[0])),
                    sum(worker.alive for worker in one[1]),
                    sum(worker.running for worker in one[1] if worker.alive),
                ]
            ),
            _("TASKS has no backend that uses Redis."),
        )


def name_cell(one: Counted, url: str = "") -> Cell:
    """The name of a queue, and whether it is paused: since when, and the beginning of why."""
    thing = one.queue.thing
    where = _("delay queue") if one.queue.backend is None else _("tasks %(alias)s") % {"alias": thing.where}
    detail = where if one.pause is None else f"{where}, {pause_text(one.pause)}"
    mark = "" if one.pause is None else _("Paused")
    return Cell(thing.label, shortened(printable(detail), MAX_LINE), mark, "warn", url)


def pause_text(pause: Paused) -> str:
    """Since when, by whom and why a queue is paused."""
    values = {"since": to_cell(pause.since).text, "by": pause.by}
    text = (_("since %(since)s by %(by)s") if pause.by else _("since %(since)s")) % values
    return f"{text}: {pause.reason}" if pause.reason else text


def rates_cell(added: float | None, ended: float) -> Cell | None:
    """How many jobs are added and end per second; None: none, as far as is known."""
    if not (added or ended):
        return None
    came = "–" if added is None else number_text(added)  # noqa: RUF001
    return Cell(f"{came} / {number_text(ended)}", is_number=True)


def latency_cell(minute: Point | None, *columns: str) -> Cell | None:
    """Percentiles of a duration; None: no job ended in the minute."""
    found = [] if minute is None else [minute.values[name] for name in columns]
    texts = [number_text(one, "s") for one in found if one is not None]
    return numbers_cell(f"{NBSP}/ ".join(texts)) if texts else None


def numbers_cell(text: str) -> Cell:
    """Numbers with their units, each of which may be on a line of its own."""
    return Cell(_BEFORE_UNIT.sub(NBSP, text), is_number=True, wraps=True)


def drain_cell(one: Counted) -> Cell | None:
    """How long the ready jobs take at the present rate."""
    if not one.load.ready:
        return None
    seconds = one.load.time_to_drain
    return numbers_cell(_("never") if seconds is None else duration(seconds))


def pause_button(page: ConsolePage, one: Counted) -> list[Action]:
    """The button that pauses a queue, or resumes it."""
    if one.pause is None:
        return page.button("pause", _("Pause"), one.queue.thing)
    return page.button("resume", _("Resume"), one.queue.thing)


def added_to(queues: Sequence[Queue]) -> dict[Series, float]:
    """How many jobs were added to queues per second, by snapshots that are recent."""
    snapshots = [History(using=using).now() for using in dict.fromkeys(queue.using for queue in queues)]
    return {
        one.series: one.added
        for snapshot in snapshots
        if snapshot.age is not None and snapshot.age <= MAX_AGE
        for one in snapshot.queues
    }


def minutes_of(queues: Sequence[Queue]) -> dict[Series, Point]:
    """How long jobs of queues waited and ran in the latest minute. One round trip for each alias."""
    columns, found = (*WAIT.columns, *RUN.columns), dict[Series, Point]()
    for using in dict.fromkeys(queue.using for queue in queues):
        series = [one.series for one in queues if one.using == using]
        points = History(using=using).latest(series, columns=columns)
        found |= {one: point for one, point in zip(series, points, strict=True) if point}
    return found


class QueuePage(ThingPage):
    """A queue: its numbers, and its jobs in the place `?place=` that match a filter; `?cursor=` pages."""

    section = "queues"
    kinds = ("queue",)
    template_name = "django_redis_messaging/console/queue.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        queue = self.queue
        [counted] = count([queue])
        context = {
            "page_title": queue.thing.label,
            "crumbs": [(_("Queues"), self.url("queues"))],
            "facts": [(name, to_cell(value)) for name, value in self.facts(counted)],
            "actions": self.actions(counted),
            "places": [self.tab(counted, place) for place in self.places],
            "place": self.place,
            "filters": {name: request.GET.get(name, "").strip() for name in FILTERS},
            "is_filtered": any(request.GET.get(name, "").strip() for name in FILTERS),
            "may_search": self.may_read(queue.thing),
            "thing": queue.thing,
            "tables": [self.jobs()],
            "charts": self.charts(),
            "history_url": self.url("history", series=str(queue.series)),
        }
        return self.page(context)

    @cached_property
    def queue(self) -> Queue:
        """The queue."""
        return queue_of(self.thing)

    def charts(self) -> list[tuple[SafeString, Numbers]]:
        """What ended in the last hour, and how long it waited and ran."""
        [line] = read_lines([self.queue.series], columns=(*RAN.columns, *WAIT.columns, *RUN.columns))
        return [draw(drawing, line) for drawing in (RAN, WAIT, RUN)] if line.points else []

    @property
    def places(self) -> list[str]:
        """Where its jobs can be: those of delay queues leave no results."""
        return [place for place in PLACES if place != "finished" or self.queue.backend is not None]

    @property
    def place(self) -> str:
        """The place whose jobs are shown."""
        place = self.request.GET.get("place", "ready")
        if place not in self.places:
            raise Problem(problems.INVALID)
        return place

    def facts(self, counted: Counted) -> list[tuple[str, Any]]:
        """What is known of the queue, by name."""
        load, pause = counted.load, counted.pause
        paused = [f"{one.task} ({pause_text(one)})" for one in counted.paused_tasks]
        return [
            (_("Kind"), name_cell(counted).detail if pause is None else _("queue")),
            (
                _("Paused"),
                None if pause is None else Cell(printable(pause_text(pause)), mark=_("Paused"), tone="warn"),
            ),
            (_("Paused tasks"), ", ".join(paused)),
            (_("Oldest ready job"), None if load.oldest_age is None else duration(load.oldest_age)),
            (_("Ended per second"), load.throughput or None),
            (_("Time to drain"), drain_cell(counted)),
            (_("Workers"), self.workers_cell()),
        ]

    def workers_cell(self) -> Cell | None:
        """How many workers serve it."""
        backend = self.queue.backend
        if backend is None:
            return None
        found = perform(backend.using, read_workers(backend.engine, []))
        names = [one.id for one in found if one.is_consuming and self.thing.name in one.queues]
        mark, detail = "" if names else _("No worker"), shortened(", ".join(names), MAX_LINE)
        url = self.url("workers", backend=backend.alias)
        return Cell(str(len(names)), printable(detail), mark, url=url)

    def actions(self, counted: Counted) -> list[Action]:
        """The buttons for the queue itself."""
        purge = self.button("purge", _("Purge"), self.thing, is_danger=True)
        return [*pause_button(self, counted), *purge]

    def tab(self, counted: Counted, place: str) -> tuple[str, str, str, bool]:
        """A place: its title, the number of its jobs, the URL of its page, and whether it is shown."""
        number = getattr(counted.load, place, None)
        text = "" if number is None else number_format(number, use_l10n=True)
        url = self.url("queue", thing=str(self.thing), place=place)
        return str(PLACES[place]), text, url, place == self.place

    def jobs(self) -> Table:
        """The jobs of the place."""
        request, queue, place = self.request, self.queue, self.place
        given = {name: request.GET.get(name, "").strip() for name in FILTERS}
        which = job_filter(self, given, queue)
        page = queue.jobs.page(place, cursor=request.GET.get("cursor") or None, which=which)
        same = {"thing": str(self.thing), "place": place, **given}
        chosen = [one for one in CHANGES if place in one.places_of(queue) and one.action != "set_priority"]
        return Table(
            str(PLACES[place]),
            [_("Job"), *map(str, COLUMNS[place]), _("Attempts"), _("Arguments")],
            page.rows,
            partial(self.job_row, place),
            _("No jobs match here.") if page.cursor or any(given.values()) else _("There are no jobs here."),
            next_url=self.url("queue", **same, cursor=page.cursor) if page.cursor else "",
            bulk=[Action(str(one.label), self.url(one.action), is_danger=one.is_danger) for one in chosen],
            overall=self.overall(given) if page.rows or page.cursor else [],
        )

    def overall(self, given: dict[str, str]) -> list[Action]:
        """The buttons for all jobs of the place that match the filter."""
        data = {name: value for name, value in given.items() if value} | {"place": self.place}
        if "text" in data:
            data["text"] = quote(data["text"])  # browsers change line breaks
        if self.place in ("dead", "finished"):
            # those that end later are not meant, and a repeat doesn't change them
            data.setdefault("until", timezone.now().isoformat())
        found: list[Action] = []
        for one in CHANGES:
            if self.place in one.places_of(self.queue) and one.action != "set_priority":
                label = str(one.label_all)
                found += self.button(one.action, label, self.thing, is_danger=one.is_danger, **data)
        return found

    def job_row(self, place: str, job: JobRow) -> Row:
        """A job."""
        thing = self.queue.job(job.id)
        contents = shown_contents(self, self.queue, job)
        title = Cell(printable(job.task or job.id), job.id if job.task else "", url=self.url_of(thing))
        shown: dict[str, list[Value]] = {
            "ready": [job.due_at, job.priority],
            "delayed": [job.due_at, job.priority],
            "parked": [job.waits_for, job.due_at],
            "leased": [job.started_at, job.lease_ends_at, job.worker],
            "dead": [job.ended_at, job.reason if contents is not None else None],
            "finished": [job.ended_at, job.status],
        }
        attempts = Cell(f"{job.attempts}/{job.max_attempts}", is_number=True)
        return Row([title, *shown[place], attempts, contents.line if contents else None], thing=thing)


#: columns of the table of a place
COLUMNS = {
    "ready": [gettext_lazy("Due"), gettext_lazy("Priority")],
    "delayed": [gettext_lazy("Due"), gettext_lazy("Priority")],
    "parked": [gettext_lazy("Waits for"), gettext_lazy("Due")],
    "leased": [gettext_lazy("Started"), gettext_lazy("Lease ends"), gettext_lazy("Worker")],
    "dead": [gettext_lazy("Ended"), gettext_lazy("Reason")],
    "finished": [gettext_lazy("Ended"), gettext_lazy("State")],
}


class WorkersPage(ConsolePage):
    """The live workers of a backend, `?backend=`, and what each of them runs."""

    section = "queues"
    template_name = "django_redis_messaging/console/tables.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        alias = request.GET.get("backend") or next(iter(surveys.backends()), "")
        if not alias:
            return self.page({"page_title": _("Workers"), "tables": []})
        backend = backend_of(alias)
        tables = [*worker_tables(self, alias, backend.workers()), self.limits(backend)]
        title = _("Workers of %(alias)s") % {"alias": printable(alias)}
        crumbs = [(_("Queues"), self.url("queues"))]
        return self.page({"page_title": title, "crumbs": crumbs, "tables": tables})

    def limits(self, backend: RedisBackend) -> Table:
        """The limits that set_concurrency() has set."""
        found = perform(backend.using, backend.engine.permits(PAGE))
        return Table(
            _("Concurrency limits set at run time"),
            [_("Key"), _("Limit"), _("Running")],
            sorted(found),
            lambda one: Row([one[0], one[1], one[2]]),
            _("The limits are those of the tasks."),
        )


class WorkerPage(ThingPage):
    """A worker."""

    section = "queues"
    kinds = ("worker",)

    def get(self, request: HttpRequest) -> HttpResponse:
        alias = self.thing.where
        backend = backend_of(alias)
        found = perform(backend.using, read_worker(backend.engine, self.thing.name))
        crumbs = [
            (_("Queues"), self.url("queues")),
            (_("Workers of %(alias)s") % {"alias": printable(alias)}, self.url("workers", backend=alias)),
        ]
        title, tables = self.thing.label, worker_tables(self, alias, [found] if found else [])
        context = {"page_title": title, "crumbs": crumbs, "tables": tables}
        return self.page({**context, **explained(self, self.thing)})


def worker_tables(page: ConsolePage, alias: str, workers: Sequence[WorkerInfo]) -> list[Table]:
    """The workers, and the jobs that they run."""
    running = [(worker, job) for worker in workers for job in worker.jobs]
    return [
        Table(
            _("Workers"),
            [
                _("Worker"),
                _("Host"),
                _("Queues"),
                _("Started"),
                _("Last heartbeat"),
                _("Running"),
                _("Jobs run"),
            ],
            workers,
            partial(worker_row, page, alias),
            _("No worker is alive."),
        ),
        Table(
            _("Running jobs"),
            [_("Job"), _("Queue"), _("Worker"), _("Since")],
            running,
            lambda one: Row(
                [
                    Cell(printable(one[1].task), one[1].id, url=page.url_of(Thing("task", one[1].id, alias))),
                    Cell(printable(one[1].queue), url=page.url_of(Thing("queue", one[1].queue, alias))),
                    one[0].id,
                    one[1].since,
                ]
            ),
            _("No job is running."),
        ),
    ]


def worker_row(page: ConsolePage, alias: str, worker: WorkerInfo) -> Row:
    """A worker."""
    mark = "" if worker.is_consuming else _("Not consuming")
    return Row(
        [
            Cell(printable(worker.id), mark=mark, url=page.url_of(Thing("worker", worker.id, alias))),
            Cell(printable(worker.host), worker.pid),
            shortened(", ".join(worker.queues), MAX_LINE),
            worker.started_at,
            _("%(time)s ago") % {"time": duration(worker.silent)},
            worker.running,
            worker.done,
        ]
    )


class QueueChange(ChangePage):
    """A change of a queue itself."""

    section = "queues"
    kinds = ("queue",)
    limit = 1

    def facts(self, thing: Thing) -> list[tuple[str, Cell]]:
        """The queue with its numbers."""
        [one] = count([queue_of(thing)])
        load = one.load
        return [
            (_("Queue"), name_cell(one)),
            (_("Ready"), to_cell(load.ready)),
            (_("Delayed"), to_cell(load.delayed)),
            (_("Running"), to_cell(load.leased)),
            (_("Parked"), to_cell(load.parked)),
            (_("Dead"), to_cell(load.dead)),
        ]


class PauseQueue(QueueChange):
    """Pauses a queue, for the reason in the parameter `reason`."""

    action = "pause"
    label = gettext_lazy("Pause")

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        return Question(
            _("Pause this queue?"),
            _("None of its jobs is started until it is resumed. Enqueueing works, and running jobs go on."),
            str(self.label),
            self.facts(thing),
            things=things,
            fields=[Field("reason", _("Reason"), hint=_("Shown to others on this page."))],
        )

    @property
    def reason(self) -> str:
        """Why the queue is paused."""
        return self.request.POST.get("reason", "").strip()

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        queue_of(thing).pause(self.reason, self.request.user.get_username())
        return 1

    def detail(self) -> str:
        return self.reason

    def said(self, number: int) -> str:
        return _("The queue is paused.")


class ResumeQueue(QueueChange):
    """Resumes a queue."""

    action = "resume"
    label = gettext_lazy("Resume")

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        return Question(
            _("Resume this queue?"),
            _("Its jobs are started again."),
            str(self.label),
            self.facts(thing),
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        if not queue_of(thing).resume():
            raise Problem(WAS_PAUSED)
        return 1

    def said(self, number: int) -> str:
        return _("The queue is resumed.")


class PurgeQueue(QueueChange):
    """Deletes all jobs of a queue."""

    action = "purge"
    label = gettext_lazy("Purge")

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        return Question(
            _("Delete all jobs of this queue?"),
            _("All its jobs are deleted, whether they wait, run, or are dead. This can't be undone."),
            str(self.label),
            self.facts(thing),
            is_danger=True,
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        queue, seconds = queue_of(thing), conf.current().WEB_DEADLINE / 2
        if not (number := perform(queue.using, queue.engine.purge(queue.stored, seconds=seconds))):
            raise Problem(NO_JOBS)
        return number

    def said(self, number: int) -> str:
        text = _("Jobs deleted: %(number)s.") % {"number": number_format(number, use_l10n=True)}
        [one] = count([queue_of(thing) for thing in self.things()])
        left = sum(getattr(one.load, place) for place in ("ready", "delayed", "leased", "parked", "dead"))
        return f"{text} {_('There are more: repeat the change to go on.')}" if left else text
