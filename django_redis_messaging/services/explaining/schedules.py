"""What becomes of a periodic task next, and of its latest call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from ...core.encoding import encoded
from ...core.operations import Command, Steps
from ..common.things import Thing
from ..jobs.engine import HEARTBEAT_TIMEOUT
from .explanation import Cause, make
from .jobs import job_script, parse_job, pauses
from .sights import Backend, Sight, Subject, ask, task_backend


class Schedule(Protocol):
    """What is needed of a schedule; see ScheduleInfo."""

    @property
    def task(self) -> str:
        """Dotted name of the task."""
        ...

    @property
    def queue_name(self) -> str:
        """The queue of its calls."""
        ...

    @property
    def paused_at(self) -> datetime | None:
        """When it was paused."""
        ...

    @property
    def enqueued(self) -> datetime | None:
        """The occurrence that was enqueued last."""
        ...

    @property
    def problem(self) -> str | None:
        """Why this code can't enqueue it."""
        ...

    @property
    def read_at(self) -> datetime:
        """The server's clock."""
        ...


class Outlook(Protocol):
    """What becomes of a schedule next; see tasks/occurrences.py."""

    schedule: Schedule
    due_at: datetime | None
    polled_at: datetime | None
    latest: str


def periodic_subject(thing: Thing) -> Subject:
    """A periodic task: a schedule of a task backend. Raises InvalidArgument."""
    backend = task_backend(thing.where)
    return Subject(thing, backend.using, partial(_read_periodic, backend, thing))


def _read_periodic(backend: Backend, thing: Thing) -> Steps[Sight]:
    outlook = yield from ask("outlook_hook", backend, thing.name)
    if outlook is None:
        return Sight([make("unknown", thing)], exists=False)
    causes = _next_occurrence(thing, outlook)
    found, following = yield from _calls(backend, thing, outlook)
    return Sight([*causes, *found], following)


def _next_occurrence(thing: Thing, outlook: Outlook) -> list[Cause]:
    """Why no call is enqueued now."""
    schedule = outlook.schedule
    if schedule.problem is not None:
        return [make("schedule_broken", thing, task=schedule.task)]
    if schedule.paused_at is not None:
        return [make("schedule_paused", thing, since=schedule.paused_at)]
    causes, polled, now = [], outlook.polled_at, schedule.read_at
    if polled is None or now - polled > timedelta(milliseconds=HEARTBEAT_TIMEOUT):
        causes.append(make("no_poller", thing, since=polled))
    if outlook.due_at is not None and outlook.due_at <= now:
        return [*causes, make("overdue", thing, since=outlook.due_at)]
    return [*causes, make("not_due", thing, until=outlook.due_at)]


def _calls(backend: Backend, thing: Thing, outlook: Outlook) -> Steps[tuple[Sequence[Cause], Thing | None]]:
    """The latest call, on which to go on if it is not done; else what keeps the next one from running."""
    schedule, keys = outlook.schedule, backend.engine.keys
    task = encoded(schedule.task)
    steps: list[Any] = [
        Command("HGET", keys.paused, f"{kind}:{name}", reads=True)
        for kind, name in (("queue", encoded(schedule.queue_name)), ("task", task))
    ]
    if outlook.latest:
        steps.append(job_script(backend.engine, outlook.latest, schedule.queue_name))
    queue_pause, task_pause, *replies = yield steps
    call = parse_job(replies[0]) if replies and replies[0] else None
    if call is not None and call.state.status in ("waiting", "running", "dead"):
        following = Thing("task", call.id, thing.where)
        return [make("latest_call", thing, occurrence=schedule.enqueued)], following
    queue = Thing("queue", schedule.queue_name, thing.where)
    return pauses(thing, queue, task, queue_pause, task_pause), None
