"""Periodic tasks and timers: when they are due, whether a process runs that starts them, and changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from .. import conf, handlers, surveys
from ..core.encoding import current_prefix, printable
from ..core.encoding import name as checked
from ..core.operations import Command, Steps, perform
from ..services.common.operators import Health
from ..services.common.things import Thing
from ..services.expiries.listing import Timers
from ..services.expiries.timers import TimerEngine, namespaces_key, timer_name
from ..services.jobs.engine import HEARTBEAT_TIMEOUT
from ..services.jobs.listing import JobDetail, JobRow
from ..services.jobs.load import QueueLoad, read_loads
from ..web.problems import Answer, Problem
from .base import ChangePage, ConsolePage, Question, ThingPage
from .contents import Contents
from .job_queues import backend_of
from .jobs import PLACES
from .tables import Action, Cell, Row, Table, Value, duration, to_cell
from .why import explained

if TYPE_CHECKING:
    from ..tasks.backend import RedisBackend
    from ..tasks.schedules import ScheduleInfo

#: schedules, or namespaces, of a page
PAGE = 50
#: namespaces that are read
MAX_NAMESPACES = 1000
#: next times on the page of a schedule
NEXT_TIMES = 5
#: places in which timers are, as they are shown
TIMER_PLACES = {**PLACES, "delayed": gettext_lazy("Not due"), "ready": gettext_lazy("Overdue")}
NO_SCHEDULE = Answer(
    404, "not_found", gettext_lazy("This schedule doesn't exist any more. Nothing was changed.")
)
NO_TIMER = Answer(404, "not_found", gettext_lazy("This timer has started, was cancelled, or never existed."))
DECLARED = Answer(
    409, "declared", gettext_lazy("The code declares this schedule: only stored ones can be removed.")
)


class SchedulePage(ConsolePage):
    """The periodic tasks of all backends, by name; `?page=` pages."""

    section = "schedule"

    def get(self, request: HttpRequest) -> HttpResponse:
        number = self.number
        found = [one for backend in surveys.backends().values() for one in schedules_of(backend)]
        some = found[(number - 1) * PAGE : number * PAGE]
        more = len(found) > number * PAGE
        table = Table(
            _("Periodic tasks"),
            [_("Name"), _("Task"), _("Schedule"), _("Next time"), _("Last enqueued")],
            some,
            self.row,
            _("There are no periodic tasks."),
            next_url=self.url("schedule", page=str(number + 1)) if more else "",
        )
        return self.page({"page_title": _("Schedule"), "tables": [table, self.pollers()]})

    def row(self, one: ScheduleInfo) -> Row:
        """A schedule."""
        thing = periodic(one)
        values: list[Value] = [
            Cell(printable(one.name), mark=mark_of(one), tone="warn" if one.problem is None else "bad",
                 url=self.url_of(thing)),
            one.task,
            schedule_cell(one),
            next(iter(one.next_times()), None),
            one.enqueued,
        ]  # fmt: skip
        return Row(values, schedule_actions(self, one))

    def pollers(self) -> Table:
        """The backends, and whether a poller looks at their schedules."""
        return Table(
            _("Pollers"),
            [_("Backend"), _("Last poll")],
            list(surveys.backends().values()),
            lambda backend: Row([backend.alias, poll_cell(backend)]),
            _("TASKS has no backend that uses Redis."),
        )


def schedules_of(backend: RedisBackend) -> list[ScheduleInfo]:
    """The schedules of a backend, those included that this process has not imported yet."""
    from ..tasks.occurrences import discover

    discover()
    return backend.schedules.all()


def periodic(one: ScheduleInfo) -> Thing:
    """A schedule as a thing."""
    return Thing("periodic", one.name, one.backend)


def mark_of(one: ScheduleInfo) -> str:
    """What is to be noted about a schedule."""
    if one.problem is not None:
        return _("Can't be enqueued")
    return "" if one.paused_at is None else _("Paused")


def schedule_cell(one: ScheduleInfo) -> Cell:
    """When a task is due, in words."""
    if one.cron is not None:
        return Cell(printable(one.cron), printable(one.tz or ""))
    return Cell(
        "" if one.every is None else _("every %(time)s") % {"time": duration(one.every.total_seconds())}
    )


def schedule_actions(page: ConsolePage, one: ScheduleInfo) -> list[Action]:
    """The buttons for a schedule."""
    thing, found = periodic(one), list[Action]()
    if one.problem is None:
        found += page.button("run_periodic", _("Run now"), thing)
    if one.paused_at is None:
        found += page.button("pause_periodic", _("Pause"), thing)
    else:
        found += page.button("resume_periodic", _("Resume"), thing)
    if not one.declared:
        found += page.button("remove_periodic", pgettext("console", "Remove"), thing, is_danger=True)
    return found


def poll_cell(backend: RedisBackend) -> Cell:
    """When a poller looked at the schedules of a backend."""
    from ..tasks.occurrences import seconds_since_poll

    seconds = perform(backend.using, seconds_since_poll(backend))
    if seconds is None:
        return Cell(_("never"), mark=_("No poller"))
    is_silent = seconds * 1000 > HEARTBEAT_TIMEOUT
    return Cell(_("%(time)s ago") % {"time": duration(seconds)}, mark=_("No poller") if is_silent else "")


def find_schedule(thing: Thing) -> ScheduleInfo:
    """A schedule. Raises the Problem if it doesn't exist."""
    for one in schedules_of(backend_of(thing.where)):
        if one.name == thing.name:
            return one
    raise Problem(NO_SCHEDULE)


class PeriodicPage(ThingPage):
    """A schedule: the next times, and the arguments of its calls."""

    section = "schedule"
    kinds = ("periodic",)
    template_name = "django_redis_messaging/console/contents.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        one = find_schedule(self.thing)
        contents = None
        if self.may_read(self.thing):
            contents = Contents.of_call(self.console, one.args, one.kwargs, task=one.task)
        context = {
            "page_title": printable(one.name),
            "crumbs": [(_("Schedule"), self.url("schedule"))],
            "facts": [(name, to_cell(value)) for name, value in self.facts(one) if value],
            "actions": schedule_actions(self, one),
            "may_read": self.may_read(self.thing),
            "contents": contents,
            **explained(self, self.thing),
        }
        return self.page(context)

    def facts(self, one: ScheduleInfo) -> list[tuple[str, Any]]:
        """What is known of it, by name."""
        queue = Thing("queue", one.queue_name, one.backend)
        times = [to_cell(moment).text for moment in one.next_times(NEXT_TIMES)]
        return [
            (_("Problem"), one.problem and Cell(printable(one.problem), mark=_("Can't be enqueued"))),
            (_("Paused since"), one.paused_at),
            (_("Task"), one.task),
            (_("Schedule"), schedule_cell(one)),
            (_("Next times"), ", ".join(times)),
            (_("Last enqueued"), one.enqueued),
            (_("Missed times"), _("enqueued once") if one.missed == "once" else _("left out")),
            (_("Defined by"), _("the code") if one.declared else _("an entry in Redis")),
            (_("Queue"), Cell(printable(one.queue_name), url=self.url_of(queue))),
            (_("Priority"), to_cell(one.priority)),
            (_("Last poll"), poll_cell(backend_of(one.backend))),
        ]


class PeriodicChange(ChangePage):
    """A change of a schedule."""

    section = "schedule"
    kinds = ("periodic",)
    limit = 1
    title: str | Promise
    effect: str | Promise
    done: str | Promise
    is_danger = False

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        one = find_schedule(thing)
        self.check(one)
        facts = [
            (_("Name"), to_cell(one.name)),
            (_("Task"), to_cell(one.task)),
            (_("Schedule"), schedule_cell(one)),
            (_("Paused since"), to_cell(one.paused_at)),
        ]
        return Question(
            str(self.title), self.effect, str(self.label), facts, is_danger=self.is_danger, things=things
        )

    def check(self, one: ScheduleInfo) -> None:
        """Raise the Problem if the schedule can't be changed so."""

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        one = find_schedule(thing)
        self.check(one)
        if not self.make(backend_of(thing.where), one):
            raise Problem(NO_SCHEDULE)
        return 1

    def make(self, backend: RedisBackend, one: ScheduleInfo) -> bool:
        """Make the change. Returns whether the schedule still exists."""
        raise NotImplementedError

    def said(self, number: int) -> str:
        return str(self.done)


class RunPeriodic(PeriodicChange):
    """Enqueues a call of a schedule now."""

    action = "run_periodic"
    label = gettext_lazy("Run now")
    title = gettext_lazy("Run this periodic task now?")
    effect = gettext_lazy(
        "A call is enqueued now, with the arguments of the schedule. Its next times stay as they are."
    )
    done = gettext_lazy("A call was enqueued.")
    result_id = ""

    def make(self, backend: RedisBackend, one: ScheduleInfo) -> bool:
        result = backend.schedules.run_now(one.name, request_id=self.asked)
        self.result_id = "" if result is None else result.id
        return result is not None

    def check(self, one: ScheduleInfo) -> None:
        if one.problem is not None:
            raise Problem(Answer(409, "problem", printable(one.problem)))

    def detail(self) -> str:
        return f"task:{self.result_id}"


class PausePeriodic(PeriodicChange):
    """Pauses a schedule."""

    action = "pause_periodic"
    label = gettext_lazy("Pause")
    title = gettext_lazy("Pause this schedule?")
    effect = gettext_lazy("No calls are enqueued until it is resumed. Those that are enqueued stay.")
    done = gettext_lazy("The schedule is paused.")

    def make(self, backend: RedisBackend, one: ScheduleInfo) -> bool:
        return backend.schedules.pause(one.name)


class ResumePeriodic(PeriodicChange):
    """Resumes a schedule."""

    action = "resume_periodic"
    label = gettext_lazy("Resume")
    title = gettext_lazy("Resume this schedule?")
    effect = gettext_lazy(
        "Its calls are enqueued again from now on. Those missed in the meantime are left out."
    )
    done = gettext_lazy("The schedule is resumed.")

    def make(self, backend: RedisBackend, one: ScheduleInfo) -> bool:
        return backend.schedules.resume(one.name)


class RemovePeriodic(PeriodicChange):
    """Removes a stored schedule."""

    action = "remove_periodic"
    label = pgettext_lazy("console", "Remove")
    title = gettext_lazy("Remove this schedule?")
    effect = gettext_lazy("It is deleted, with its arguments. Calls that are enqueued stay.")
    done = gettext_lazy("The schedule was removed.")
    is_danger = True

    def check(self, one: ScheduleInfo) -> None:
        if one.declared:
            raise Problem(DECLARED)

    def make(self, backend: RedisBackend, one: ScheduleInfo) -> bool:
        return backend.schedules.remove(one.name)


PERIODIC_CHANGES: tuple[type[PeriodicChange], ...] = (
    RunPeriodic, PausePeriodic, ResumePeriodic, RemovePeriodic,
)  # fmt: skip


class TimersPage(ConsolePage):
    """The namespaces of timers, by name; `?page=` pages. Or the timers of one, `?namespace=`, in the place
    `?place=`, the next ones first; `?cursor=` pages."""

    section = "timers"

    def get(self, request: HttpRequest) -> HttpResponse:
        if (namespace := request.GET.get("namespace")) is not None:
            crumbs = [(_("Timers"), self.url("timers"))]
            tables = [self.timers(checked(namespace, "namespace"))]
            return self.page({"page_title": printable(namespace), "crumbs": crumbs, "tables": tables})
        return self.page({"page_title": _("Timers"), "tables": [self.namespaces(), self.listeners()]})

    def namespaces(self) -> Table:
        """The namespaces with their numbers."""
        number = self.number
        names = known_namespaces()
        some = names[(number - 1) * PAGE : number * PAGE]
        engine = TimerEngine(current_prefix())
        loads = perform(conf.alias(), read_loads([(engine, name) for name in some])) if some else []
        return Table(
            _("Namespaces"),
            [
                _("Namespace"),
                _("Not due"),
                _("Overdue"),
                _("Overdue for"),
                _("Running"),
                _("Dead"),
                _("Handler"),
            ],
            loads,
            self.row,
            _("There are no timers, and no handlers."),
            next_url=self.url("timers", page=str(number + 1)) if len(names) > number * PAGE else "",
        )

    def row(self, load: QueueLoad) -> Row:
        """A namespace with its numbers."""
        handler = handlers.timers.get(load.queue)
        values: list[Value] = [
            Cell(printable(load.queue), url=self.url("timers", namespace=load.queue)),
            *(self.place_cell(load, place) for place in ("delayed", "ready")),
            None if load.oldest_age is None else Cell(duration(load.oldest_age), is_number=True),
            *(self.place_cell(load, place) for place in ("leased", "dead")),
            Cell("", mark=_("No handler"), tone="warn")
            if handler is None
            else handlers.title(handler.function),
        ]
        return Row(values)

    def place_cell(self, load: QueueLoad, place: str) -> Cell:
        """How many timers are in a place, with a link to them."""
        number = getattr(load, place)
        url = self.url("timers", namespace=load.queue, place=place) if number else ""
        return Cell(number_format(number, use_l10n=True), url=url, is_number=True)

    def timers(self, namespace: str) -> Table:
        """The timers of a namespace in a place."""
        place = self.request.GET.get("place", "delayed")
        page = Timers(namespace).page(place, cursor=self.request.GET.get("cursor") or None)
        more = self.url("timers", namespace=namespace, place=place, cursor=page.cursor or "")
        return Table(
            str(TIMER_PLACES[place]),
            [_("Timer"), _("Due"), _("Attempts"), _("Reason"), _("Payload")],
            page.rows,
            partial(self.timer_row, namespace),
            _("There are no timers here."),
            next_url=more if page.cursor else "",
        )

    def timer_row(self, namespace: str, row: JobRow) -> Row:
        """A timer."""
        thing = Thing("timer", row.name, namespace)
        payload = payload_of(self, thing, row)
        has_started = row.place not in ("delayed", "ready")
        values: list[Value] = [
            Cell(thing.label, url="" if has_started else self.url_of(thing)),
            row.due_at,
            Cell(f"{row.attempts}/{row.max_attempts}", is_number=True),
            row.reason,
            payload.line if payload else None,
        ]
        return Row(values, [] if has_started else timer_actions(self, thing, row.id))

    def listeners(self) -> Table:
        """The listeners."""
        return Table(
            _("Listeners"),
            [_("Listener"), _("Last heartbeat"), _("Running")],
            Health().listeners(),
            lambda one: Row(
                [
                    Cell(printable(one.id), mark="" if one.alive else _("Not alive")),
                    _("%(time)s ago") % {"time": duration(one.silent)},
                    one.running,
                ]
            ),
            _("No listener is alive: timers are not started. Run manage.py run_listener."),
        )


def known_namespaces() -> list[str]:
    """The namespaces that have timers, or handlers in this code."""
    handlers.discover()
    names = perform(conf.alias(), _read_namespaces(namespaces_key(current_prefix())))
    return sorted({*names, *handlers.timers})


def _read_namespaces(registry: str) -> Steps[list[str]]:
    return [name.decode() for name in (yield Command("ZRANGE", registry, 0, MAX_NAMESPACES - 1, reads=True))]


def payload_of(page: ConsolePage, thing: Thing, row: JobRow) -> Contents | None:
    """The payload of a timer; None if the user may not read it."""
    return Contents(page.console, row.arguments) if page.may_read(thing) else None


def timer_actions(page: ConsolePage, thing: Thing, timer_id: str) -> list[Action]:
    """The buttons for a timer that has not started. `timer_id`: of this start, not of a later one."""
    cancel = page.button("cancel_timer", _("Cancel"), thing, is_danger=True, id=timer_id)
    return [*page.button("fire", _("Fire now"), thing, id=timer_id), *cancel]


def find_timer(thing: Thing) -> JobDetail:
    """A timer that has not started. Raises the Problem."""
    timers = Timers(thing.where)
    name = timer_name(checked(thing.where, "namespace"), checked(thing.name, "name"))
    job_id = perform(conf.alias(), _read_timer(name))
    detail = timers.get(job_id) if job_id else None
    if detail is None:
        raise Problem(NO_TIMER)
    return detail


def _read_timer(name: str) -> Steps[str]:
    """The id of the job of a timer; empty if it has started or doesn't exist."""
    found = yield Command("HGET", TimerEngine(current_prefix()).keys.uniques, name, reads=True)
    return "" if found is None else found.decode()


class TimerPage(ThingPage):
    """A timer that has not started."""

    section = "timers"
    kinds = ("timer",)
    template_name = "django_redis_messaging/console/contents.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        thing, detail = self.thing, find_timer(self.thing)
        handlers.discover()
        context = {
            "page_title": thing.label,
            "crumbs": [
                (_("Timers"), self.url("timers")),
                (printable(thing.where), self.url("timers", namespace=thing.where)),
            ],
            "facts": [(name, to_cell(value)) for name, value in self.facts(detail) if value],
            "actions": timer_actions(self, thing, detail.job.id),
            "may_read": self.may_read(thing),
            "contents": payload_of(self, thing, detail.job),
            "is_cut": detail.is_cut,
            **explained(self, thing),
        }
        return self.page(context)

    def facts(self, detail: JobDetail) -> list[tuple[str, Any]]:
        """What is known of it, by name."""
        job, handler = detail.job, handlers.timers.get(self.thing.where)
        return [
            (_("Namespace"), self.thing.where),
            (_("Started"), job.pushed_at),
            (_("Due"), job.due_at),
            (
                _("Attempts"),
                _("%(attempts)s of %(limit)s") % {"attempts": job.attempts, "limit": job.max_attempts},
            ),
            (_("Reason"), job.reason),
            (_("Handler"), _("none") if handler is None else handlers.title(handler.function)),
        ]


class TimerChange(ChangePage):
    """A change of a timer."""

    section = "timers"
    kinds = ("timer",)
    limit = 1

    def started(self, thing: Thing) -> str:
        """The id of the start of the timer that is meant. Raises the Problem if it has ended."""
        return self.find(thing).id

    def find(self, thing: Thing) -> JobRow:
        """The timer. Raises the Problem if it has started, or is not the one that the page has shown."""
        job = find_timer(thing).job
        if self.request.POST.get("id", job.id) != job.id:
            raise Problem(NO_TIMER)
        return job

    def facts(self, thing: Thing) -> list[tuple[str, Cell]]:
        """The timer. Raises the Problem as `find`."""
        return [
            (_("Namespace"), to_cell(thing.where)),
            (_("Timer"), to_cell(thing.name)),
            (_("Due"), to_cell(self.find(thing).due_at)),
        ]


class FireTimer(TimerChange):
    """Makes a timer due now."""

    action = "fire"
    label = gettext_lazy("Fire now")

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        return Question(
            _("Fire this timer now?"),
            _("It is due at once, and its handler is called as soon as a listener is free."),
            str(self.label),
            self.facts(thing),
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        if not Timers(thing.where).reschedule([self.started(thing)]).count:
            raise Problem(NO_TIMER)
        return 1

    def said(self, number: int) -> str:
        return _("The timer is due now.")


class CancelTimer(TimerChange):
    """Cancels a timer."""

    action = "cancel_timer"
    label = gettext_lazy("Cancel timer")

    def question(self, things: Sequence[Thing]) -> Question:
        [thing] = things
        return Question(
            _("Cancel this timer?"),
            _("Its handler is not called. This can't be undone."),
            str(self.label),
            self.facts(thing),
            is_danger=True,
            things=things,
        )

    def apply(self, things: Sequence[Thing]) -> int:
        [thing] = things
        if not Timers(thing.where).cancel([self.started(thing)]).count:
            raise Problem(NO_TIMER)
        return 1

    def said(self, number: int) -> str:
        return _("The timer was cancelled.")


TIMER_CHANGES: tuple[type[TimerChange], ...] = (FireTimer, CancelTimer)
