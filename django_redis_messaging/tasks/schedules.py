"""Periodic tasks: `@periodic` above `@task`, in `tasks.py` of any app; their schedules and occurrences.

    @periodic(cron="0 3 * * *", tz="Europe/Berlin")
    @task
    def tidy_up(): ...

The poller enqueues them; `manage.py periodic_tasks` lists them. The moments at which a task occurs depend on
its schedule alone, so all pollers agree on them.

A HASH in the slot of the backend's jobs has a field for each task: up to which moment its occurrences have
been handled. The script that enqueues an occurrence moves that moment forward, and refuses occurrences that
are not after it. So each is enqueued once, by whichever poller is first, whether or not the job or its result
still exists; and a poller that was suspended can't enqueue what others have handled.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo

from django.core.checks import CheckMessage, Error, Warning
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from .. import conf
from ..core.commands import batched
from ..core.operations import Clock, Command, Script, Steps, log_exception
from ..errors import ConfigurationError, InvalidArgument, MessagingError
from ..services.common.arguments import Duration, milliseconds
from ..services.jobs.engine import register_queue
from ..services.jobs.poller import SWEEP_PAGE, Round, register, rounds_of_slot
from . import records
from .backend import SHARD, RedisBackend, our_backends
from .commits import Prepared
from .compat import Task, task_enqueued

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Task)

#: what becomes of occurrences that no poller enqueued in time
Missed = Literal["once", "none"]

#: ms; the shortest interval
MIN_INTERVAL = 1000
#: ms; the parts of a long time that are searched for its last occurrence, one after the other
SPANS = (3_600_000, 86_400_000, 32 * 86_400_000)
#: ms; no zone changes its offset twice within this time (Morocco does so within five weeks)
MAX_STEP = 7 * 86_400_000
#: ms after which an occurrence that was not enqueued is a missed one
MISSED_AFTER = 60_000
#: seconds until the next attempt, if Redis or a task fails
RETRY_INTERVAL = 2.0
#: seconds between two looks at most, which show that a poller lives
MAX_INTERVAL = 20.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
#: key of the HASH → server's clock (ms) when this process read it first: a changed schedule applies from then
_began: dict[str, int] = {}


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


def periodic_tasks() -> list[PeriodicTask]:
    """The periodic tasks of all imported modules, by name."""
    return sorted(_registered.values(), key=lambda one: one.name)


def tasks_of(backend: RedisBackend) -> list[PeriodicTask]:
    """The periodic tasks of a backend."""
    return [one for one in periodic_tasks() if one.task.backend == backend.alias]


def never_enqueued() -> list[PeriodicTask]:
    """The periodic tasks that no poller enqueues, since their backend is not a RedisBackend."""
    ours = {backend.alias for backend in our_backends()}
    return [one for one in periodic_tasks() if one.task.backend not in ours]


def discover() -> None:
    """Import `tasks` of each installed app that has one."""
    autodiscover_modules("tasks")


def check_periodic_tasks() -> list[CheckMessage]:
    """Check the periodic tasks. If TASKS has a backend of this app, import `tasks.py` of all apps first."""
    try:
        if our_backends():
            discover()
    except MessagingError as error:
        return [
            Error(
                f"tasks.py of an installed app can't be imported: {error}",
                hint="Correct the schedule that @periodic is given, or install what it needs.",
                id="messaging.E010",
            )
        ]
    return [
        Warning(
            f"The periodic task {one.name} is never enqueued: its backend {one.task.backend!r} is not a "
            "RedisBackend.",
            hint=f"Define it with @task(backend=…) of a RedisBackend, or change TASKS[{one.task.backend!r}].",
            id="messaging.W013",
        )
        for one in never_enqueued()
    ]


def aliases() -> list[str]:
    """The CACHES aliases of the backends."""
    return [backend.using for backend in our_backends()]


@register(aliases)
def enqueue_periodic_tasks(using: str) -> Iterable[Round]:
    """One round for each backend that has periodic tasks."""
    for backend in _backends_at(using):
        if found := tasks_of(backend):
            key, steps = backend.engine.keys.periodic, partial(enqueue_due, backend, found)
            # not once a second: with its own duration added, that skips an occurrence of every=1 at times
            yield Round(key, using, steps, min_interval=0)


@register(aliases)
def tasks(using: str) -> Iterable[Round]:
    """One round for each page of a backend's queues: QUEUES, or if that is empty, those that something was
    enqueued to."""
    for backend in _backends_at(using):
        engine = backend.engine
        if not backend.queue_names:
            yield from rounds_of_slot(using, engine, engine.keys.queues)
        for page in batched(backend.queue_names, SWEEP_PAGE):
            yield Round((engine.keys.tag, page), using, partial(engine.sweep, page))


def _backends_at(using: str) -> list[RedisBackend]:
    return [backend for backend in our_backends() if backend.using == using]


def enqueue_due(backend: RedisBackend, tasks: Sequence[PeriodicTask]) -> Steps[float]:
    """Enqueue what is due; returns the seconds until the next occurrence, at most MAX_INTERVAL."""
    key, soonest = backend.engine.keys.periodic, None
    words = [word for one in tasks for word in (one.name, one.fingerprint)]
    try:
        now, *handled = yield Script("tasks/periodic_look", [key], [_began.get(key, 0), *words])
        _began[key] = min(_began.get(key, now), now)  # the clock may have been set back since
        for one, since in zip(tasks, handled, strict=True):
            moment = one.schedule.latest(since, now)
            if moment is not None:
                yield from _enqueue(backend, one, moment)
            upcoming = one.schedule.next(now)
            if upcoming is not None:
                soonest = min(upcoming, soonest or upcoming)
    except InvalidArgument:  # such as PREFIX: no retry helps
        raise
    except MessagingError as error:
        logger.warning(
            "Enqueueing periodic tasks of the backend %r failed, retrying in %.1f s: %s",
            backend.alias, RETRY_INTERVAL, error,
        )  # fmt: skip
        return RETRY_INTERVAL
    return MAX_INTERVAL if soonest is None else min((soonest - now) / 1000, MAX_INTERVAL)


def _enqueue(backend: RedisBackend, one: PeriodicTask, moment: int) -> Steps[None]:
    """Enqueue an occurrence, unless that has been done."""
    try:
        result, job = _prepared(backend, one, moment)
    except Exception as error:  # such as one of a function of the task that returns its unique key
        message = "Enqueueing the periodic task %s failed, retrying at the next poll."
        log_exception(logger, error, message, one.name)
        return
    queue, limit = one.task.queue_name, conf.current().JOB_MAX_WAITING
    keys = [*backend.engine.keys.queue(queue).with_records, backend.engine.keys.periodic]
    max_age = MISSED_AFTER if one.missed == "none" else 0
    words = (one.name, one.fingerprint, moment, max_age, limit)
    fields = (job.id, job.payload, job.priority, job.max_attempts, job.unique, job.more)
    pushed = yield Script("tasks/periodic_push", keys, (*words, *fields))
    if pushed < 0:
        logger.warning(
            "Enqueueing the periodic task %s failed, retrying at the next poll: the queue %r is full "
            "(JOB_MAX_WAITING: %d).", one.name, queue, limit,
        )  # fmt: skip
    elif pushed > 0:
        if not backend.queue_names:
            yield from register_queue(backend.using, backend.engine.keys.queues, queue)
        object.__setattr__(result, "enqueued_at", records.moment(pushed))
        task_enqueued.send_robust(type(backend), task_result=result)


def _prepared(backend: RedisBackend, one: PeriodicTask, moment: int) -> Prepared:
    """The result and the job of an occurrence, which is their run_after."""
    task = one.task.using(run_after=records.moment(moment))
    return backend.prepared(task, occurrence_id(one.name, moment))


def occurrence_id(name: str, moment: int) -> str:
    """The id of the job of an occurrence.

    >>> len(occurrence_id("site.tasks.tidy_up", 1_790_000_000_000))
    32
    """
    return SHARD + hashlib.sha256(f"{name} {moment}".encode()).hexdigest()[:31]


class Seen(NamedTuple):
    """What Redis knows about a periodic task, in ms; 0 for never."""

    handled: int
    enqueued: int


def read(backend: RedisBackend, tasks: Sequence[PeriodicTask]) -> Steps[tuple[int, list[Seen]]]:
    """The server's clock (ms), and what Redis knows about these tasks."""
    key, names = backend.engine.keys.periodic, [one.name for one in tasks]
    clock, found = yield [Clock(key), Command("HMGET", key, *names, reads=True)]
    return Clock.milliseconds(clock), [_seen(value) for value in found]


def _seen(value: bytes | None) -> Seen:
    """A field in the format of _periodic.lua."""
    if value is None:
        return Seen(0, 0)
    handled, _, enqueued = value.split()
    return Seen(int(handled), int(enqueued))


def silence(backend: RedisBackend) -> Steps[float]:
    """Seconds since a poller looked at the periodic tasks of a backend; if none has, since the first call of
    this function."""
    key = backend.engine.keys.periodic
    clock, found = yield [Clock(key), Command("HGET", key, "polled", reads=True)]
    now, polled = Clock.milliseconds(clock), int(found or 0)
    if 0 < polled <= now:
        return (now - polled) / 1000
    yield Command("HSET", key, "polled", now)  # nor does a look count from before the clock was set back
    return 0.0


class Schedule(Protocol):
    """When a periodic task occurs."""

    @property
    def zone(self) -> tzinfo:
        """The time zone in which its times are shown."""
        ...

    def next(self, after: int) -> int | None:
        """The first occurrence after a moment; None if there is none."""

    def latest(self, since: int, until: int) -> int | None:
        """The last occurrence after `since` that is not after `until`, or None."""


@dataclass(frozen=True)
class Every:
    """At the multiples of an interval since 1970-01-01 00:00 UTC: clock changes don't affect it.

    >>> schedule = Every(timedelta(minutes=10))
    >>> str(schedule), schedule.next(600_000), schedule.latest(0, 1_799_999)
    ('every 0:10:00', 1200000, 1200000)
    """

    interval: Duration
    _ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ms = milliseconds(self.interval, "every", minimum=MIN_INTERVAL)
        object.__setattr__(self, "_ms", ms)

    def __str__(self) -> str:
        return f"every {timedelta(milliseconds=self._ms)}"

    @property
    def zone(self) -> tzinfo:
        """The site's time zone."""
        return timezone.get_default_timezone()

    def next(self, after: int) -> int:
        """The first occurrence after a moment."""
        return (after // self._ms + 1) * self._ms

    def latest(self, since: int, until: int) -> int | None:
        """The last occurrence after `since` that is not after `until`, or None."""
        found = until - until % self._ms
        return found if found > since else None


@dataclass(frozen=True)
class Cron:
    """At the times of a cron expression, in a time zone; None: the site's.

    Clock changes are handled as by Debian's cron. If the expression has a fixed hour and minute, an
    occurrence in the hour that is skipped in spring takes place right after it, and one in the hour that is
    repeated in autumn takes place once, the first time. If its minute or hour begins with `*`, it follows the
    clock: it occurs in both passes of the repeated hour, and not in the skipped one.

    >>> schedule = Cron("30 2 * * *", "Europe/Berlin")
    >>> (_EPOCH + timedelta(milliseconds=schedule.next(0))).isoformat()
    '1970-01-01T01:30:00+00:00'
    """

    expression: str
    zone_name: str | None = None
    _zone: ZoneInfo | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone(self.zone_name))
        if not isinstance(self.expression, str):
            raise TypeError(f"cron must be a str, not {type(self.expression).__name__}.")
        if len(self.expression.split()) != 5:
            raise InvalidArgument(
                f"cron must have 5 fields, minute, hour, day of the month, month and day of the week, not "
                f"{self.expression!r}."
            )
        simulator, error_class = _cronsim()
        try:
            found = next(simulator(self.expression, datetime.fromtimestamp(time.time(), UTC)), None)
        except error_class as error:
            raise InvalidArgument(f"cron has an invalid value, {self.expression!r}: {error}.") from error
        if found is None:
            raise InvalidArgument(f"cron never occurs within 50 years: {self.expression!r}.")

    def __str__(self) -> str:
        return self.expression

    @property
    def zone(self) -> tzinfo:
        """Its time zone."""
        return self._zone or timezone.get_default_timezone()

    def next(self, after: int) -> int | None:
        """The first occurrence after a moment; None if there is none within 50 years."""
        if self._follows_clock:
            return self._next_by_clock(after)
        simulator, _ = _cronsim()
        local = (_EPOCH + timedelta(milliseconds=after)).astimezone(self.zone)
        for found in simulator(self.expression, local):
            ms: int = (found - _EPOCH) // timedelta(milliseconds=1)
            if ms > after:  # in a repeated hour, the simulator may begin with the first pass
                return ms
        return None

    @property
    def _follows_clock(self) -> bool:
        minute, hour, *_ = self.expression.split()
        return minute.startswith("*") or hour.startswith("*")

    def _next_by_clock(self, after: int) -> int | None:
        """Search the times between two clock changes, which have one offset from UTC, one after the other:
        the simulator leaves out occurrences after a change by half an hour."""
        simulator, _ = _cronsim()
        while True:
            offset = self._offset(after + 1)
            local = (_EPOCH + timedelta(milliseconds=after + offset)).replace(tzinfo=None)
            found = next(simulator(self.expression, local), None)
            if found is None:
                return None
            ms: int = (found.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1) - offset
            change = self._clock_change(after + 1, ms)
            if change is None:
                return ms
            after = change - 1

    def _clock_change(self, since: int, until: int) -> int | None:
        """The first moment after `since`, and not after `until`, at which the offset changes, or None."""
        offset = self._offset(since)
        while since < until:
            end = min(since + MAX_STEP, until)
            if self._offset(end) == offset:
                since = end
                continue
            while end - since > 1:
                middle = (since + end) // 2
                since, end = (middle, end) if self._offset(middle) == offset else (since, middle)
            return end
        return None

    def _offset(self, moment: int) -> int:
        """The offset from UTC at a moment: ms."""
        offset = (_EPOCH + timedelta(milliseconds=moment)).astimezone(self.zone).utcoffset()
        return 0 if offset is None else offset // timedelta(milliseconds=1)

    def latest(self, since: int, until: int) -> int | None:
        """The last occurrence after `since` that is not after `until`, or None."""
        for span in (*SPANS, until - since):
            begin = max(since, until - span)
            found, following = None, self.next(begin)
            while following is not None and following <= until:
                found, following = following, self.next(following)
            if found is not None or begin == since:
                return found
        return None


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"tz must be the name of a time zone, or None, not {type(name).__name__}.")
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise InvalidArgument(
            f"tz must be the name of a time zone, such as 'Europe/Berlin', not {name!r}."
        ) from error


def _cronsim() -> tuple[Callable[[str, datetime], Any], type[Exception]]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ConfigurationError(
            "cron needs the package cronsim: pip install 'django-redis-messaging[periodic]'. "
            "Schedules with every= work without it."
        ) from error
    return CronSim, CronSimError
