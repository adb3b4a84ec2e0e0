"""Periodic tasks: `@periodic` above `@task`, in `tasks.py` of any app.

    @periodic(cron="0 3 * * *", tz="Europe/Berlin")
    @task
    def tidy_up(): ...

The poller enqueues them; `manage.py periodic_tasks` lists them.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from django.utils.module_loading import autodiscover_modules

from ..errors import InvalidArgument
from ..services.arguments import Duration
from .compat import Task
from .schedules import Cron, Every

T = TypeVar("T", bound=Task)

#: what becomes of occurrences that no poller enqueued in time
Missed = Literal["once", "none"]


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A task with its schedule."""

    task: Task
    schedule: Cron | Every
    missed: Missed

    @property
    def name(self) -> str:
        """The dotted name of the task."""
        return str(self.task.module_path)

    @property
    def fingerprint(self) -> str:
        """Changes with the schedule, and with the time zone of the site if it uses that."""
        text = f"{self.schedule} {self.schedule.zone if isinstance(self.schedule, Cron) else ''}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]


#: by the dotted name of the task
_registered: dict[str, PeriodicTask] = {}


def periodic(
    *,
    cron: str | None = None,
    every: Duration | None = None,
    tz: str | None = None,
    missed: Missed = "once",
) -> Callable[[T], T]:
    """Have the poller enqueue a task by a schedule, without arguments. The task itself stays as it is.

    `cron` is an expression of five fields, in the time zone `tz` (None: the site's TIME_ZONE); it needs the
    extra `periodic`. Or `every` is an interval of 1 s or more: seconds, or a timedelta. It counts from
    1970-01-01 00:00 UTC, so that a restart doesn't shift it.

    Each occurrence is enqueued once, however many pollers run. If no poller ran when the task was due,
    `missed="once"` enqueues it when a poller runs again, once for all occurrences that were missed, and
    `missed="none"` waits for the next occurrence. Before a poller has seen the task for the first time,
    nothing was missed.

    Raises InvalidArgument for an invalid schedule, for a task that requires arguments, and for a second
    schedule of one task; ConfigurationError if `cron` is given and the package cronsim is missing.
    """
    if (cron is None) == (every is None):
        raise InvalidArgument("periodic needs either cron or every.")
    if every is not None and tz is not None:
        raise InvalidArgument("tz needs cron: an interval (every) is the same in all time zones.")
    if missed not in ("once", "none"):
        raise InvalidArgument(f"missed must be 'once' or 'none', not {missed!r}.")
    schedule = Every(every) if every is not None else Cron(cron or "", tz)

    def register(task: T) -> T:
        _check(task)
        _registered[task.module_path] = PeriodicTask(task, schedule, missed)
        return task

    return register


def periodic_tasks() -> list[PeriodicTask]:
    """The periodic tasks of all imported modules, by name."""
    return sorted(_registered.values(), key=lambda one: one.name)


def discover() -> None:
    """Import `tasks` of each installed app that has one."""
    autodiscover_modules("tasks")


def _check(task: Task) -> None:
    if not isinstance(task, Task):
        raise TypeError(f"periodic must be placed above @task: {task!r} is not a task.")
    known = _registered.get(task.module_path)
    if known is not None and known.task.func is task.func:  # a reloaded module has a new function
        raise InvalidArgument(f"{known.name} has a schedule already: define a second task.")
    try:
        inspect.signature(task.func).bind(*([None] if task.takes_context else []))
    except TypeError as error:
        raise InvalidArgument(
            f"A periodic task is called without arguments, but {task.module_path} has parameters without "
            f"defaults: {error}."
        ) from error
