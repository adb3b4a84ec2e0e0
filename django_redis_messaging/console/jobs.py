"""The page of a job, whether a task or of a delay queue; and changes of one job, of some, or of all in a
place of a queue that match a filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from .. import conf
from ..core.encoding import printable
from ..core.operations import perform
from ..errors import InvalidArgument
from ..services.common.things import Thing
from ..services.jobs.listing import Attempt, Changed, JobDetail, JobFilter, JobRow, Which
from ..web import problems
from ..web.problems import Answer, Problem
from .base import ChangePage, ConsolePage, Field, Question, ThingPage
from .contents import Contents, block
from .job_queues import Queue, backend_of, by_queue, count, queue_of, task_queue
from .tables import Action, Cell, Tone, to_cell
from .why import explained

#: places in which jobs are, as they are shown
PLACES = {
    "ready": gettext_lazy("Ready"),
    "delayed": gettext_lazy("Delayed"),
    "parked": gettext_lazy("Parked"),
    "leased": gettext_lazy("Running"),
    "dead": gettext_lazy("Dead"),
    "finished": gettext_lazy("Finished"),
}
#: states of jobs, as they are shown
STATUSES: dict[str, tuple[str | Promise, Tone]] = {
    "waiting": (gettext_lazy("Waiting"), ""),
    "running": (gettext_lazy("Running"), "good"),
    "succeeded": (gettext_lazy("Succeeded"), "good"),
    "dead": (gettext_lazy("Dead"), "bad"),
    "cancelled": (gettext_lazy("Cancelled"), "warn"),
    "expired": (gettext_lazy("Expired"), "warn"),
}
#: parameters of a filter
FILTERS = ("task", "text", "since", "until")
NO_JOB = Answer(404, "not_found", gettext_lazy("This job doesn't exist, or it has been deleted."))
CHANGED = Answer(
    409, "changed", gettext_lazy("The jobs have left their state meanwhile. Nothing was changed.")
)
NOT_HERE = Answer(409, "changed", gettext_lazy("This job has left its state meanwhile. Nothing was changed."))


def job_filter(page: ConsolePage, given: Mapping[str, str], queue: Queue) -> JobFilter:
    """Which jobs are meant by these parameters. Raises the Problem if the user searches what they may not
    read, and InvalidArgument."""
    text = given.get("text", "").strip()
    if text and not page.may_read(queue.thing):
        raise Problem(problems.NOT_PERMITTED)
    return JobFilter(
        task=given.get("task", "").strip(),
        text=text,
        since=moment_in(given, "since"),
        until=moment_in(given, "until"),
    )


def moment_in(given: Mapping[str, str], name: str) -> datetime | None:
    """A moment in the parameters, by default in the time zone of the user; None: there is none."""
    text = given.get(name, "").strip()
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        if text:
            raise InvalidArgument(
                f"{name} must be a date and a time, such as 2026-01-31T12:00, not {text!r:.50}."
            )
        return None
    return found if timezone.is_aware(found) else timezone.make_aware(found)


def shown_contents(page: ConsolePage, queue: Queue, row: JobRow) -> Contents | None:
    """What a job contains; None if the user may not read that."""
    if not page.may_read(queue.job(row.id)):
        return None
    return Contents(page.console, row.arguments, task=row.task if queue.backend else "")


class JobPage(ThingPage):
    """All that is known of a job."""

    section = "queues"
    kinds = ("task", "job")
    template_name = "django_redis_messaging/console/job.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        queue, detail = find(self.thing)
        may_read = self.may_read(self.thing)
        contents = shown_contents(self, queue, detail.job)
        context = {
            "page_title": printable(detail.job.task or detail.job.name or detail.job.id),
            "crumbs": [(_("Queues"), self.url("queues")), (queue.thing.label, self.url_of(queue.thing))],
            "state": STATUSES.get(detail.job.status, (detail.job.status, "")),
            "facts": [(name, to_cell(value)) for name, value in self.facts(queue, detail) if value],
            "actions": self.actions(queue, detail.job),
            "may_read": may_read,
            "contents": contents,
            "is_cut": detail.is_cut,
            "attempts": [self.attempt(one, may_read=may_read) for one in reversed(detail.attempts)],
            "result": result_of(self, detail) if may_read else None,
        }
        if detail.job.place not in ("dead", "finished"):
            context |= explained(self, self.thing)
        return self.page(context)

    def facts(self, queue: Queue, detail: JobDetail) -> list[tuple[str, Any]]:
        """What is known of the job, by name."""
        job, may_read = detail.job, self.may_read(self.thing)
        follow_up = detail.follow_up
        # these are often made of the arguments
        made = [
            (_("Waits for"), job.waits_for),
            (_("Needs"), ", ".join(job.needs)),
            (_("Unique key"), job.unique),
            (_("Fairness group"), job.group),
            (_("Tags"), ", ".join(job.tags)),
            (_("Batch"), job.batch),
        ]
        return [
            (_("Queue"), Cell(queue.thing.label, url=self.url_of(queue.thing))),
            (_("State"), str(PLACES[job.place])),
            (_("Id"), job.id),
            (_("Reason"), self.console.mask("reason", job.reason) if may_read else None),
            (_("Is being cancelled"), _("yes") if job.is_cancelling else None),
            (_("Enqueued"), job.pushed_at),
            (_("Due"), job.due_at),
            (_("First started"), detail.first_started_at),
            (_("Last started"), job.started_at),
            (_("Ended"), job.ended_at),
            (_("Expires"), job.expires_at),
            (_("Attempts"), attempts_text(job, detail.lost)),
            (_("Worker"), job.worker and self.worker_cell(queue, job.worker)),
            (_("Priority"), to_cell(job.priority)),
            *(made if may_read else ()),
            (
                _("Then"),
                follow_up
                and Cell(
                    printable(follow_up.task),
                    follow_up.id,
                    url=self.url_of(Thing("task", follow_up.id, self.thing.where)),
                ),
            ),
        ]

    def worker_cell(self, queue: Queue, worker: str) -> Cell:
        """A worker, with a link to its page."""
        url = "" if queue.backend is None else self.url_of(Thing("worker", worker, queue.backend.alias))
        return Cell(printable(worker), url=url)

    def actions(self, queue: Queue, job: JobRow) -> list[Action]:
        """The buttons for what can be done with the job."""
        found: list[Action] = []
        for change in CHANGES:
            if job.place in change.places_of(queue) and not job.is_cancelling:
                found += self.button(change.action, str(change.label), self.thing, is_danger=change.is_danger)
        return found

    def attempt(self, attempt: Attempt, *, may_read: bool) -> dict[str, Any]:
        """An attempt, for the template."""
        return {
            "number": attempt.number,
            "facts": [
                (_("Worker"), to_cell(attempt.worker)),
                (_("Started"), to_cell(attempt.started_at)),
                (_("Ended"), to_cell(attempt.ended_at)),
                (_("Error"), to_cell(attempt.error)),
            ],
            "traceback": block(self.console.mask("traceback", attempt.traceback)) if may_read else "",
        }


def find(thing: Thing) -> tuple[Queue, JobDetail]:
    """A job, and its queue. Raises the Problem if it doesn't exist."""
    if thing.kind == "job":
        queue = queue_of(thing)
        detail = queue.jobs.get(thing.name)
        if detail is None:
            raise Problem(NO_JOB)
        return queue, detail
    backend = backend_of(thing.where)
    # the tasks of all queues are stored together
    detail = backend.jobs().get(thing.name)
    if detail is None:
        raise Problem(NO_JOB)
    return task_queue(backend, detail.job.queue), detail


def attempts_text(job: JobRow, lost: int) -> str:
    """How many attempts there were, of how many."""
    numbers = {"attempts": job.attempts, "limit": job.max_attempts, "lost": lost}
    if lost:
        return _("%(attempts)s of %(limit)s, plus %(lost)s whose lease expired") % {
            **numbers, "attempts": job.attempts - lost,
        }  # fmt: skip
    return _("%(attempts)s of %(limit)s") % numbers


def result_of(page: ConsolePage, detail: JobDetail) -> Contents | None:
    """What a task has returned."""
    if detail.return_value is None:
        return None
    return Contents(page.console, detail.return_value)


class JobsChange(ChangePage):
    """A change of jobs: of those in the parameters `thing`, or if that is a queue, of all in its `place` that
    match the filter."""

    section = "queues"
    kinds: tuple[str, ...] = ("task", "job", "queue")
    #: the words of its buttons for all that match
    label_all: str | Promise
    #: the title of the question
    title: str | Promise
    #: what it does
    effect: str | Promise
    #: what is said after it
    done: Any
    is_danger = False
    #: where the jobs are that it changes
    places: tuple[str, ...] = ()

    @classmethod
    def places_of(cls, queue: Queue) -> tuple[str, ...]:
        """Where the jobs of this queue are that it changes."""
        return cls.places

    def things(self) -> list[Thing]:
        found = super().things()
        if len(found) > 1 and any(thing.kind == "queue" for thing in found):
            raise Problem(problems.INVALID)
        return found

    @cached_property
    def place(self) -> str:
        """The place to which a filter applies."""
        place = self.request.POST.get("place", self.places[0])
        if place not in self.places:
            raise Problem(problems.INVALID)
        return place

    def filter_of(self, queue: Queue) -> JobFilter:
        """Which jobs of a queue are meant."""
        if self.place not in self.places_of(queue):
            raise Problem(problems.INVALID)
        given = {name: self.request.POST.get(name, "") for name in FILTERS}
        # percent-encoded, since browsers change line breaks
        return job_filter(self, {**given, "text": unquote(given["text"])}, queue)

    def question(self, things: Sequence[Thing]) -> Question:
        facts = self.facts_of_all(things[0]) if things[0].kind == "queue" else self.facts_of(things)
        return Question(
            str(self.title),
            self.effect,
            str(self.label),
            facts,
            is_danger=self.is_danger,
            things=things,
            fields=self.fields(things),
        )

    def fields(self, things: Sequence[Thing]) -> Sequence[Field]:
        """What is entered."""
        return ()

    def facts_of(self, things: Sequence[Thing]) -> list[tuple[str, Cell]]:
        """What is known of jobs. Raises the Problem if none of them can be changed."""
        if len(things) > 1:
            return [(_("Jobs"), to_cell(len(things)))]
        queue, detail = find(things[0])
        if detail.job.place not in self.places_of(queue):
            raise Problem(NOT_HERE)
        return [
            (_("Task"), to_cell(detail.job.task)),
            (_("Id"), to_cell(detail.job.id)),
            (_("Queue"), to_cell(queue.thing.name)),
            (_("State"), to_cell(str(PLACES[detail.job.place]))),
        ]

    def facts_of_all(self, thing: Thing) -> list[tuple[str, Cell]]:
        """Which jobs of a queue are meant, and how many they are at most."""
        queue = queue_of(thing)
        which = self.filter_of(queue)
        [counted] = count([queue])
        number = getattr(counted.load, self.place, None)
        is_filtered = any((which.task, which.text, which.since, which.until))
        return [
            (_("Queue"), to_cell(queue.thing.name)),
            (_("State"), to_cell(str(PLACES[self.place]))),
            (_("Task"), to_cell(which.task)),
            (_("Text in arguments"), to_cell(which.text)),
            (_("Since"), to_cell(which.since)),
            (_("Until"), to_cell(which.until)),
            (_("Jobs, at most") if is_filtered else _("Jobs"), to_cell(number)),
        ]

    def apply(self, things: Sequence[Thing]) -> int:
        if things[0].kind == "queue":
            queue = queue_of(things[0])
            changed = self.make(queue, self.filter_of(queue))
            self.is_complete, number = changed.is_complete, changed.count
        else:
            self.is_complete = True
            for queue, ids in by_queue(things):
                self.changed += self.make(queue, ids).count
            number = self.changed
        if not number:
            raise Problem(CHANGED)
        return number

    def make(self, queue: Queue, which: Which) -> Changed:
        """Change these jobs of a queue."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """How long a change of all that match may take: the next one goes on."""
        return conf.current().WEB_DEADLINE / 2

    def detail(self) -> str:
        names = ("place", *FILTERS)
        return " ".join(f"{name}={self.request.POST[name]}" for name in names if self.request.POST.get(name))

    def said(self, number: int) -> str:
        text = str(self.done % {"number": number})
        things = self.things()
        left = 0 if things[0].kind == "queue" else len(set(things)) - number
        if left > 0:
            text += " " + ngettext(
                "%(number)d had left its state meanwhile and was not changed.",
                "%(number)d had left their state meanwhile and were not changed.",
                left,
            ) % {"number": left}
        if not self.is_complete:
            text += " " + _("There are more: repeat the change to go on.")
        return text


class RetryJobs(JobsChange):
    """Requeues dead jobs at once."""

    action = "retry"
    label, label_all = gettext_lazy("Retry"), gettext_lazy("Retry all")
    title = gettext_lazy("Retry these dead jobs?")
    effect = gettext_lazy(
        "They are enqueued again, with all their attempts, and run as soon as a worker is free."
    )
    done = ngettext_lazy(
        "%(number)d job was enqueued again.", "%(number)d jobs were enqueued again.", "number"
    )
    places = ("dead",)

    def make(self, queue: Queue, which: Which) -> Changed:
        return queue.jobs.redrive(which, seconds=self.seconds)


class DueField(JobsChange):
    """A change to which a new due time belongs."""

    def fields(self, things: Sequence[Thing]) -> Sequence[Field]:
        zone = timezone.get_current_timezone_name()
        hint = _("Times are in the time zone %(time_zone)s.") % {"time_zone": zone}
        now = timezone.localtime(datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M")
        return [Field("due", _("Due"), "datetime-local", now, hint, is_required=True)]

    @cached_property
    def due(self) -> datetime | timedelta:
        """The entered time; one in the past is now."""
        found = moment_in(self.request.POST, "due")
        if found is None:
            raise InvalidArgument("due is missing: enter when the jobs are to run.")
        return found if found > datetime.now(UTC) else timedelta(0)

    def detail(self) -> str:
        return " ".join(filter(None, (super().detail(), f"due={self.request.POST['due']}")))


class RedriveJobs(DueField):
    """Requeues dead jobs, due at the moment `due`."""

    action = "redrive"
    label, label_all = gettext_lazy("Retry later"), gettext_lazy("Retry all later")
    title = gettext_lazy("Retry these dead jobs later?")
    effect = gettext_lazy("They are enqueued again, with all their attempts, and run when they are due.")
    done = RetryJobs.done
    places = ("dead",)

    def make(self, queue: Queue, which: Which) -> Changed:
        return queue.jobs.redrive(which, due=self.due, seconds=self.seconds)


class RunJobsNow(JobsChange):
    """Makes delayed jobs due."""

    action = "run_now"
    label, label_all = gettext_lazy("Run now"), gettext_lazy("Run all now")
    title = gettext_lazy("Run these jobs now?")
    effect = gettext_lazy(
        "They are due at once, whatever they were delayed for, and run as soon as a worker is free."
    )
    done = ngettext_lazy("%(number)d job is due now.", "%(number)d jobs are due now.", "number")
    places = ("delayed",)

    def make(self, queue: Queue, which: Which) -> Changed:
        return queue.jobs.reschedule(which, 0, place=self.place, seconds=self.seconds)


class RescheduleJobs(DueField):
    """Changes when waiting jobs are due."""

    action = "reschedule"
    label, label_all = gettext_lazy("Reschedule"), gettext_lazy("Reschedule all")
    title = gettext_lazy("Change when these jobs are due?")
    effect = gettext_lazy("They run when they are due, and a worker is free.")
    done = ngettext_lazy("%(number)d job was rescheduled.", "%(number)d jobs were rescheduled.", "number")
    places = ("delayed", "ready", "parked")

    def make(self, queue: Queue, which: Which) -> Changed:
        return queue.jobs.reschedule(which, self.due, place=self.place, seconds=self.seconds)


class CancelJobs(JobsChange):
    """Cancels jobs that wait, and tasks that run."""

    action = "cancel"
    label, label_all = gettext_lazy("Cancel jobs"), gettext_lazy("Cancel all")
    title = gettext_lazy("Cancel these jobs?")
    effect = gettext_lazy(
        "Waiting jobs never run. Running tasks are interrupted within about a second, at any point in "
        "their code."
    )
    done = ngettext_lazy("%(number)d job was cancelled.", "%(number)d jobs were cancelled.", "number")
    is_danger = True
    places = ("ready", "delayed", "parked", "leased")

    @classmethod
    def places_of(cls, queue: Queue) -> tuple[str, ...]:
        return cls.places if queue.backend is not None else cls.places[:-1]

    def make(self, queue: Queue, which: Which) -> Changed:
        return queue.jobs.cancel(which, place=self.place, seconds=self.seconds)


class DiscardJobs(JobsChange):
    """Deletes dead jobs, or results."""

    action = "discard"
    label, label_all = gettext_lazy("Discard"), gettext_lazy("Discard all")
    title = gettext_lazy("Discard these jobs?")
    effect = gettext_lazy("They are deleted, with their results and errors. This can't be undone.")
    done = ngettext_lazy("%(number)d job was discarded.", "%(number)d jobs were discarded.", "number")
    is_danger = True
    places = ("dead", "finished")

    def make(self, queue: Queue, which: Which) -> Changed:
        if isinstance(which, JobFilter):
            return queue.jobs.discard(which, place=self.place, seconds=self.seconds)
        return Changed(sum(queue.jobs.discard(which, place=place).count for place in self.places))


class Prioritise(JobsChange):
    """Changes the priority of a waiting job."""

    action = "set_priority"
    kinds = ("task", "job")
    label = gettext_lazy("Set priority")
    title = gettext_lazy("Change the priority of this job?")
    effect = gettext_lazy("Jobs with a higher priority are started first.")
    done = ngettext_lazy(
        "The priority of %(number)d job was changed.",
        "The priorities of %(number)d jobs were changed.",
        "number",
    )
    places = ("ready", "delayed", "parked")

    def fields(self, things: Sequence[Thing]) -> Sequence[Field]:
        hint = _("From -100 to 100.")
        return [Field("priority", _("Priority"), "number", "0", hint, is_required=True)]

    @cached_property
    def priority(self) -> int:
        """The entered priority."""
        text = self.request.POST.get("priority", "").strip()
        try:
            found = int(text)
        except ValueError:
            found = -101
        if not -100 <= found <= 100:
            raise InvalidArgument(f"priority must be between -100 and 100, not {text!r:.20}.")
        return found

    def make(self, queue: Queue, which: Which) -> Changed:
        ids = [] if isinstance(which, JobFilter) else which
        steps = [queue.engine.set_priority(queue.stored, one, self.priority) for one in ids]
        return Changed(sum(perform(queue.using, one) is not None for one in steps))

    def detail(self) -> str:
        return f"priority={self.priority}"


#: the changes of jobs in the order of their buttons
CHANGES: tuple[type[JobsChange], ...] = (
    RetryJobs, RedriveJobs, RunJobsNow, RescheduleJobs, Prioritise, CancelJobs, DiscardJobs,
)  # fmt: skip
