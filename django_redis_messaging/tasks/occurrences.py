"""What the poller does for schedules: it enqueues each of their occurrences once.

The script that enqueues an occurrence moves the position of its schedule forward, and refuses occurrences
that are not after it. So each is enqueued once, by whichever poller is first, whether or not the job or its
result still exists; and a poller that was suspended can't enqueue what others have handled.

A poller keeps the stored schedules in memory. If they have changed since, its next look returns all of them.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import autodiscover_modules

from .. import conf
from ..core.commands import Argument, batched
from ..core.encoding import encoded
from ..core.operations import Clock, Command, Script, Steps, log_exception, perform
from ..errors import InvalidArgument, MessagingError
from ..services.common.arguments import to_datetime
from ..services.history.keys import Series
from ..services.history.things import Numbers, register_reader
from ..services.jobs.engine import HEARTBEAT_TIMEOUT, register_queue
from ..services.jobs.heartbeats import heartbeat_calls, parse_heartbeats
from ..services.jobs.poller import SWEEP_PAGE, Round, register, rounds_of_slot
from . import records
from .backend import SHARD, RedisBackend, aliases, our_backends
from .commits import Prepared
from .compat import task_enqueued
from .schedules import (
    STORED,
    PeriodicTask,
    ScheduleInfo,
    info,
    parse_fingerprint,
    parse_position,
    parse_stored,
    periodic_tasks,
    stored_info,
    tasks_of,
)
from .timing import Cron, Every

logger = logging.getLogger(__name__)

#: ms after which an occurrence that was not enqueued is a missed one
MISSED_AFTER = 60_000
#: seconds until the next attempt, if Redis or a task fails
RETRY_INTERVAL = 2.0
#: seconds between two looks at most, which show that a poller lives
MAX_INTERVAL = 20.0
#: the same for a backend that has, or had, stored schedules: they may change
CHANGE_INTERVAL = 1.0


class Stored(NamedTuple):
    """The stored schedules of a backend, as this process has read them."""

    #: "changed" in the HASH of positions, at that moment
    changed: str
    schedules: list[PeriodicTask]


#: key of the HASH of positions → server's clock (ms) when this process read it first: a changed schedule
#: applies from then
_began: dict[str, int] = {}
#: by the same key
_stored: dict[str, Stored] = {}


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


@register(aliases)
def enqueue_periodic_tasks(using: str) -> Iterable[Round]:
    """One round for each backend."""
    for backend in _backends_at(using):
        key, steps = backend.engine.keys.periodic, partial(enqueue_due, backend, tasks_of(backend.alias))
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


@register_reader(aliases)
def processes(using: str) -> Steps[Mapping[Series, Numbers]]:
    """The workers of each backend, the tasks that they run, and its periodic tasks."""
    found = _backends_at(using)
    replies = yield [
        call
        for one in found
        for call in (
            *heartbeat_calls(one.engine.keys), Command("HLEN", one.engine.keys.schedules, reads=True)
        )
    ]  # fmt: skip
    return {
        Series("backend", one.alias, one.alias): _numbers(one, *some)
        for one, some in zip(found, batched(replies, 3), strict=True)
    }


def _numbers(backend: RedisBackend, clock: Sequence[bytes], beats: Sequence[bytes], stored: int) -> Numbers:
    workers = [one for one in parse_heartbeats(clock, beats) if one.alive]
    return {
        "workers": len(workers),
        "running": sum(one.running for one in workers),
        "periodic": stored + len(tasks_of(backend.alias)),
    }


def _backends_at(using: str) -> list[RedisBackend]:
    return [backend for backend in our_backends() if backend.using == using]


def enqueue_due(backend: RedisBackend, declared: Sequence[PeriodicTask]) -> Steps[float]:
    """Enqueue what is due of the declared tasks and of the stored schedules.

    Returns the seconds until the next occurrence, at most MAX_INTERVAL; 0 after the stored schedules were
    read, with nothing enqueued.
    """
    keys = backend.engine.keys
    stored = _stored.get(keys.periodic, Stored("0", []))
    found = [*declared, *stored.schedules]
    words: list[Argument] = [_began.get(keys.periodic, 0), stored.changed]
    for one in found:
        words += (one.name, one.fingerprint)
    try:
        now, changed, reply = yield Script("tasks/periodic_look", [keys.periodic, keys.schedules], words)
        _began[keys.periodic] = min(_began.get(keys.periodic, now), now)  # the clock may have been set back
        if changed.decode() != stored.changed:
            _stored[keys.periodic] = Stored(changed.decode(), _readable(backend, reply))
            return 0.0
        soonest = yield from _enqueue_all(backend, found, reply, now)
    except InvalidArgument:  # such as PREFIX: no retry helps
        raise
    except MessagingError as error:
        logger.warning(
            "Enqueueing periodic tasks of the backend %r failed, retrying in %.1f s: %s",
            backend.alias, RETRY_INTERVAL, error,
        )  # fmt: skip
        return RETRY_INTERVAL
    longest = MAX_INTERVAL if stored.changed == "0" else CHANGE_INTERVAL
    return longest if soonest is None else min((soonest - now) / 1000, longest)


def _readable(backend: RedisBackend, flat: Sequence[bytes]) -> list[PeriodicTask]:
    """The stored schedules that this code can enqueue. The others are logged, and stay stored: newer code may
    know their tasks."""
    found = []
    for name, record in batched(flat, 2):
        try:
            found.append(parse_stored(backend.alias, STORED + name.decode(), record))
        except Exception as error:  # a module may raise anything while it is imported
            logger.warning(
                "This poller doesn't enqueue the schedule %s of the backend %r: %s",
                name.decode(), backend.alias, error,
            )  # fmt: skip
    return found


def _enqueue_all(
    backend: RedisBackend, found: Sequence[PeriodicTask], moments: Sequence[int], now: int
) -> Steps[int | None]:
    """Enqueue what is due after these moments (ms; -1: the schedule is paused). Returns when the next
    occurrence is due."""
    soonest = None
    for one, since in zip(found, moments, strict=True):
        if since < 0:
            continue
        upcoming = _first_after(one.schedule, since)
        if upcoming is not None and upcoming <= now:
            yield from _enqueue(backend, one, one.schedule.latest(since, now) or upcoming)
            upcoming = one.schedule.next(now)
        if upcoming is not None:
            soonest = min(upcoming, soonest or upcoming)
    return soonest


@functools.lru_cache(maxsize=2048)
def _first_after(schedule: Cron | Every, since: int) -> int | None:
    """The first occurrence after a moment. It is kept until that occurrence is handled: computing it takes
    longer than all else in a look."""
    return schedule.next(since)


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
    return backend.prepared(task, occurrence_id(one.name, moment), one.args, one.kwargs)


def occurrence_id(name: str, moment: int) -> str:
    """The id of the job of an occurrence.

    >>> len(occurrence_id("site.tasks.tidy_up", 1_790_000_000_000))
    32
    """
    return SHARD + hashlib.sha256(f"{name} {moment}".encode()).hexdigest()[:31]


class Unpolled(NamedTuple):
    """A backend whose periodic tasks no poller enqueues."""

    alias: str
    #: the name of one of its schedules
    schedule: str
    #: seconds since a poller looked at them; None: none ever has
    silent: float | None

    @property
    def since(self) -> str:
        """For how long it has had no poller, as the end of a sentence."""
        return "yet" if self.silent is None else f"for {self.silent:.0f} s"


def unpolled() -> Iterator[Unpolled]:
    """The backends with schedules that no poller has looked at for two minutes, or ever. Imports the tasks of
    all apps; reads only."""
    discover()
    for backend in our_backends():
        if found := [one for one in backend.schedules.all() if one.paused_at is None]:
            silent = perform(backend.using, silence(backend, found))
            if silent is None or silent * 1000 > HEARTBEAT_TIMEOUT:
                yield Unpolled(backend.alias, found[0].name, silent)


def silence(backend: RedisBackend, schedules: Sequence[ScheduleInfo]) -> Steps[float | None]:
    """Seconds since a poller looked at these schedules of a backend; None if none ever has.

    Stored schedules count as looked at when they were stored: a poller that knows of none looks for new ones
    every 20 s only. Declared ones don't need that, since a poller looks at them when it starts. A moment in
    the future was written before the clock was set back, and counts as one in the past: a poller replaces it
    within 20 s.
    """
    key, are_stored = backend.engine.keys.periodic, not any(one.declared for one in schedules)
    names = [STORED + encoded(one.name) for one in schedules] if are_stored else []
    clock, (polled, *found) = yield [Clock(key), Command("HMGET", key, "polled", *names, reads=True)]
    stored = [parse_position(one).handled for one in found if one]
    looked = max(int(polled or 0), min(stored, default=0))
    return abs(Clock.milliseconds(clock) - looked) / 1000 if looked else None


def seconds_since_poll(backend: RedisBackend) -> Steps[float | None]:
    """Seconds since a poller looked at the periodic tasks of a backend; None if none has since the clock was
    set back."""
    key = backend.engine.keys.periodic
    clock, polled = yield [Clock(key), Command("HGET", key, "polled", reads=True)]
    age = Clock.milliseconds(clock) - int(polled or 0)
    return age / 1000 if polled and age >= 0 else None


class Outlook(NamedTuple):
    """What becomes of a schedule next."""

    schedule: ScheduleInfo
    #: the first occurrence that was neither enqueued nor left out; None: none can be enqueued
    due_at: datetime | None
    #: when a poller looked at the schedules of the backend; None: none has
    polled_at: datetime | None
    #: id of the call that was enqueued last; empty: none was
    latest: str


def read_outlook(backend: RedisBackend, name: str) -> Steps[Outlook | None]:
    """What becomes of a schedule next; None if it doesn't exist. Imports the tasks of all apps."""
    discover()
    keys, field = backend.engine.keys, encoded(name)
    declared = next((one for one in tasks_of(backend.alias) if one.name == name), None)
    position_name = STORED + field if declared is None else name
    clock, record, (polled, value) = yield [
        Clock(keys.periodic),
        Command("HGET", keys.schedules, field, reads=True),
        Command("HMGET", keys.periodic, "polled", position_name, reads=True),
    ]
    if declared is None and record is None:
        return None
    now, position = Clock.milliseconds(clock), parse_position(value)
    if declared is not None:
        schedule = info(declared, position, now)
    else:
        schedule = stored_info(backend.alias, position_name, record, position, now)
    due = None
    if schedule.problem is None:
        one = declared or parse_stored(backend.alias, position_name, record)
        # as tasks/periodic_look.lua: a changed schedule applies from now on
        is_unchanged = parse_fingerprint(value) == one.fingerprint
        due = one.schedule.next(min(position.handled, now) if is_unchanged else now)
    return Outlook(
        schedule,
        None if due is None else to_datetime(due),
        to_datetime(min(int(polled), now)) if polled else None,
        occurrence_id(position_name, position.enqueued) if position.enqueued else "",
    )
