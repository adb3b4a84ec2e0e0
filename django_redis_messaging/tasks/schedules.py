"""Which tasks are enqueued by a schedule: those declared by `@periodic`, and those that `Schedules` stores.

    @periodic(cron="0 3 * * *", tz="Europe/Berlin")
    @task
    def tidy_up(): ...

    Schedules().add("report-acme", report, cron="0 6 * * mon", kwargs={"customer": 7})

The poller enqueues them: see occurrences.py. `manage.py periodic_tasks` lists and changes them.

A HASH in the slot of the backend's jobs has the stored schedules, as JSON. Another one has a field for each
schedule, declared or stored: up to which moment its occurrences have been handled, and whether it is paused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import unquote

from django.utils import timezone

from ..core import encoding
from ..core.commands import batched
from ..core.encoding import encoded
from ..core.encoding import name as checked
from ..core.operations import Clock, Command, Script, Steps, asynchronous, operation
from ..errors import InvalidArgument, LimitExceeded, ScheduleExists
from ..services.common.arguments import Duration, request, sequence, timestamp_ms, to_datetime, window
from ..services.jobs.keys import JobKeys
from . import records
from .call_arguments import misfit
from .compat import Task, TaskResult, normalize_json, task_backends
from .timing import Cron, Every, timing

T = TypeVar("T", bound=Task)

#: what becomes of occurrences that no poller enqueued in time
Missed = Literal["once", "none"]

#: stored schedules of a backend: a poller reads all of them when one has changed
MAX_SCHEDULES = 500
#: bytes of a stored schedule
MAX_BYTES = 8192
#: beginning of the names of stored schedules among the positions; no declared task has a name with a colon
STORED = "schedule:"


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
    schedule = timing(cron=cron, every=every, tz=tz)
    _check_missed(missed)

    def register(task: T) -> T:
        _check_declared(task)
        _registered[task.module_path] = PeriodicTask(task, schedule, missed)
        return task

    return register


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A task with its schedule."""

    task: Task
    schedule: Cron | Every
    missed: Missed
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: of a stored schedule: STORED and its encoded name, and its JSON
    stored_as: str = ""
    record: str = ""

    @property
    def name(self) -> str:
        """The name of its position: the dotted name of a declared task."""
        return self.stored_as or str(self.task.module_path)

    @property
    def fingerprint(self) -> str:
        """Changes with the schedule, and with the time zone of the site if it uses that. Of a stored
        schedule, a second part changes with anything else."""
        zone = self.schedule.zone if isinstance(self.schedule, Cron) else ""
        timing = _digest(f"{self.schedule} {zone}")
        return f"{timing}-{_digest(self.record)}" if self.record else timing


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


#: by the dotted name of the task
_registered: dict[str, PeriodicTask] = {}


def _check_missed(missed: str) -> None:
    if missed not in ("once", "none"):
        raise InvalidArgument(f"missed must be 'once' or 'none', not {missed!r}.")


def _check_declared(task: Task) -> None:
    if not isinstance(task, Task):
        raise TypeError(f"periodic must be placed above @task: {task!r} is not a task.")
    known = _registered.get(task.module_path)
    if known is not None and known.task.func is task.func:  # a reloaded module has a new function
        raise InvalidArgument(f"{known.name} has a schedule already: define a second task.")
    _check_expires(task)
    if (problem := misfit(task, (), {})) is not None:
        raise InvalidArgument(
            f"A periodic task is called without arguments, but {task.module_path} has parameters without "
            f"defaults: {problem}."
        )


def periodic_tasks() -> list[PeriodicTask]:
    """The declared tasks of all imported modules, by name."""
    return sorted(_registered.values(), key=lambda one: one.name)


def tasks_of(alias: str) -> list[PeriodicTask]:
    """The declared tasks of a backend."""
    return [one for one in periodic_tasks() if one.task.backend == alias]


class Position(NamedTuple):
    """How far a schedule is, in ms; 0 for never."""

    handled: int = 0
    enqueued: int = 0
    #: when it was paused
    paused: int = 0


def parse_position(value: bytes | None) -> Position:
    """A field in the format of _periodic.lua."""
    if value is None:
        return Position()
    handled, _, enqueued, *paused = value.split()
    return Position(int(handled), int(enqueued), int(paused[0].removeprefix(b"paused=")) if paused else 0)


def parse_fingerprint(value: bytes | None) -> str:
    """The fingerprint of the schedule for which a field in that format was written; empty for None."""
    return "" if value is None else value.split()[1].decode()


def parse_stored(alias: str, stored_as: str, record: bytes) -> PeriodicTask:
    """A stored schedule. Raises any exception if this code doesn't know its task or can't read it."""
    [values] = encoding.loads_all([record])
    task = records.find_task(values["task"])
    return PeriodicTask(
        task.using(backend=alias, queue_name=values["queue_name"], priority=values["priority"]),
        timing(cron=values.get("cron"), every=values.get("every"), tz=values.get("tz")),
        values["missed"],
        values["args"],
        values["kwargs"],
        stored_as,
        record.decode(),
    )


def _record(task: Task, when: Cron | Every, missed: str, args: Any, kwargs: Any) -> str:
    """The JSON of a schedule; raises LimitExceeded if it is too long."""
    timing: dict[str, Any] = (
        {"every": when.seconds}
        if isinstance(when, Every)
        else {"cron": when.expression, "tz": when.zone_name or timezone.get_default_timezone_name()}
    )
    more = {"missed": missed, "queue_name": task.queue_name, "priority": task.priority}
    record = encoding.dumps(
        {"task": task.module_path, **timing, **more, "args": args, "kwargs": kwargs}, "arguments"
    )
    if (size := len(record.encode())) > MAX_BYTES:
        raise LimitExceeded("a stored schedule with its arguments (bytes)", limit=MAX_BYTES, actual=size)
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule, and how far it is."""

    name: str
    #: dotted name of the task
    task: str
    #: whether the code declares it, by @periodic; else it is stored
    declared: bool
    #: the cron expression, or else the interval
    cron: str | None = None
    every: timedelta | None = None
    #: time zone of the cron expression
    tz: str | None = None
    missed: Missed = "once"
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "default"
    queue_name: str = "default"
    priority: int = 0
    #: when it was paused; None: it is not paused
    paused_at: datetime | None = None
    #: the occurrence that was enqueued last
    enqueued: datetime | None = None
    #: why this code can't enqueue it, such as an unknown task
    problem: str | None = None
    #: when this was read, by the server's clock
    read_at: datetime

    def next_times(self, count: int = 1) -> list[datetime]:
        """The next occurrences, in the time zone of the schedule; none while it is paused or has a
        problem."""
        if self.paused_at is not None or self.problem is not None:
            return []
        when, moments = timing(cron=self.cron, every=self.every, tz=self.tz), list[int]()
        while len(moments) < count:
            moment = when.next(moments[-1] if moments else timestamp_ms(self.read_at, "read_at"))
            if moment is None:
                break
            moments.append(moment)
        return [to_datetime(moment).astimezone(when.zone) for moment in moments]


def info(one: PeriodicTask, position: Position, now: int, problem: str | None = None) -> ScheduleInfo:
    """What is known about a schedule at a moment (ms)."""
    when = one.schedule
    return ScheduleInfo(
        name=_name_of(one.stored_as) or one.name,
        task=one.task.module_path,
        declared=not one.stored_as,
        cron=when.expression if isinstance(when, Cron) else None,
        every=timedelta(seconds=when.seconds) if isinstance(when, Every) else None,
        tz=str(when.zone) if isinstance(when, Cron) else None,
        missed=one.missed,
        args=one.args,
        kwargs=one.kwargs,
        backend=one.task.backend,
        queue_name=one.task.queue_name,
        priority=one.task.priority,
        paused_at=_shown(position.paused, when.zone),
        enqueued=_shown(position.enqueued, when.zone),
        problem=problem,
        read_at=to_datetime(now),
    )


def stored_info(alias: str, stored_as: str, record: bytes, position: Position, now: int) -> ScheduleInfo:
    """As `info`, of a stored schedule that this code may not be able to enqueue."""
    try:
        return info(parse_stored(alias, stored_as, record), position, now)
    except Exception as error:  # a module may raise anything while it is imported
        problem = str(error)
    try:
        [values] = encoding.loads_all([record])
    except ValueError:
        values = {}
    known = {
        key: values[key]
        for key in ("cron", "tz", "missed", "args", "kwargs", "queue_name", "priority")
        if key in values
    }
    return ScheduleInfo(
        name=_name_of(stored_as),
        task=values.get("task", ""),
        declared=False,
        every=timedelta(seconds=values["every"]) if "every" in values else None,
        backend=alias,
        paused_at=_shown(position.paused, timezone.get_default_timezone()),
        enqueued=_shown(position.enqueued, timezone.get_default_timezone()),
        problem=problem,
        read_at=to_datetime(now),
        **known,
    )


def _shown(ms: int, zone: tzinfo) -> datetime | None:
    return to_datetime(ms).astimezone(zone) if ms else None


def _name_of(stored_as: str) -> str:
    return unquote(stored_as.removeprefix(STORED))


class Schedules:
    """The schedules of a backend of TASKS. Those declared by `@periodic` can be paused, and those that are
    stored here also added, changed and removed, at run time.

        schedules = Schedules()
        schedules.add("report-acme", report, cron="0 6 * * mon", tz="Europe/Berlin", kwargs={"customer": 7})
        schedules.change("report-acme", cron="30 6 * * mon")
        schedules.pause("report-acme")

    Pollers notice a change at their next look. Once a change, a pause or a removal has returned, no
    occurrence is enqueued by the old values.
    """

    def __init__(self, backend: str = "default") -> None:
        found = task_backends[backend]
        if not isinstance(getattr(type(found), "schedules", None), property):
            raise InvalidArgument(f"TASKS[{backend!r}] is not a RedisBackend: only those have schedules.")
        self._backend = found
        self._using: str = found.using

    @operation
    def add(
        self,
        name: str,
        task: Task,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        missed: Missed = "once",
        replace: bool = False,
    ) -> Steps[None]:
        """Store a schedule by which the poller enqueues a task with these arguments, from now on.

        `cron`, `every`, `tz` and `missed` are those of `periodic`; a time zone of None is stored as the
        site's current one. The queue and the priority are those of the task: pass
        `task.using(queue_name=..., priority=...)` for others. With `replace`, the values of an existing
        schedule of this name are replaced; whether it is paused stays as it is. A repeat with the same values
        changes nothing.

        Raises InvalidArgument or TypeError for invalid values, InvalidTask for a task that a poller could not
        find, ScheduleExists, and LimitExceeded for more than 500 schedules, or 8 KiB for one.
        """
        stored_as = STORED + encoded(checked(name, "name"))
        if any(one.name == name for one in tasks_of(self._backend.alias)):
            raise InvalidArgument(f"{name} is the name of a task that has @periodic: choose another name.")
        self._check_task(task)
        when = timing(cron=cron, every=every, tz=tz)
        record = _checked_record(task, when, missed, args, kwargs or {})
        if not (yield from self._put(stored_as, record, "*" if replace else "")):
            raise ScheduleExists(
                f"A schedule {name!r} exists already, with other values: choose another name, or call "
                "change() or add(..., replace=True)."
            )

    aadd = asynchronous(add)

    @operation
    def change(
        self,
        name: str,
        *,
        task: Task | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        missed: Missed | None = None,
    ) -> Steps[bool]:
        """Change the given values of a stored schedule; None leaves a value as it is. Returns False if no
        schedule of this name is stored.

        A new `cron`, `every` or `tz` applies from now on: no earlier time is made up for. Raises what `add`
        raises.
        """
        if task is not None:
            self._check_task(task)
        stored_as = STORED + encoded(checked(name, "name"))
        while True:  # repeated if another client changes it in between
            known = yield Command("HGET", self._keys.schedules, _name_in(stored_as), reads=True)
            if known is None:
                return False
            old = parse_stored(self._backend.alias, stored_as, known)
            record = _checked_record(
                old.task if task is None else task,
                _changed_timing(old.schedule, cron, every, tz),
                old.missed if missed is None else missed,
                old.args if args is None else args,
                old.kwargs if kwargs is None else kwargs,
            )
            if (yield from self._put(stored_as, record, old.record)):
                return True

    achange = asynchronous(change)

    @operation
    def pause(self, name: str) -> Steps[bool]:
        """Enqueue no occurrences of a schedule, stored or declared, until it is resumed. Returns False if
        there is no such schedule."""
        return (yield from self._set_paused(name, 1))

    apause = asynchronous(pause)

    @operation
    def resume(self, name: str) -> Steps[bool]:
        """Enqueue the occurrences of a paused schedule from now on; those before are left out. Returns False
        if there is no such schedule."""
        return (yield from self._set_paused(name, 0))

    aresume = asynchronous(resume)

    @operation
    def run_now(self, name: str, *, request_id: str | None = None) -> Steps[TaskResult | None]:
        """Enqueue a call of a schedule now, stored or declared, even if it is paused. Its occurrences stay as
        they are. Returns the result; None if there is no such schedule. A repeat with the same `request_id`
        enqueues nothing.

            schedules.run_now("report-acme")

        Raises what enqueue() raises; InvalidTask if this code doesn't know the task.
        """
        one = yield from self._find(name)
        if one is None:
            return None
        # request ids belong to the queue
        which = None if request_id is None else f"run {name} {request(request_id)}"
        result: TaskResult = yield from self._backend.enqueue_now(one.task, one.args, one.kwargs, which)
        return result

    arun_now = asynchronous(run_now)

    @operation
    def remove(self, name: str) -> Steps[bool]:
        """Delete a stored schedule. Calls that were enqueued stay. Returns False if it is not stored."""
        field, keys = encoded(checked(name, "name")), self._keys
        words = (field, STORED + field, request(None), window())
        found = yield Script("tasks/schedules_remove", [keys.schedules, keys.periodic, *keys.requests], words)
        return bool(found)

    aremove = asynchronous(remove)

    @operation
    def all(self) -> Steps[list[ScheduleInfo]]:
        """All schedules by name: the stored ones, and those declared in modules that this process has
        imported."""
        keys, alias = self._keys, self._backend.alias
        clock, stored, positions = yield [
            Clock(keys.periodic),
            Command("HGETALL", keys.schedules, reads=True),
            Command("HGETALL", keys.periodic, reads=True),
        ]
        now, values = Clock.milliseconds(clock), {name.decode(): text for name, text in batched(positions, 2)}
        found = [info(one, parse_position(values.get(one.name)), now) for one in tasks_of(alias)]
        for name, record in batched(stored, 2):
            stored_as = STORED + name.decode()
            position = parse_position(values.get(stored_as))
            found.append(stored_info(alias, stored_as, record, position, now))
        return sorted(found, key=lambda one: one.name)

    aall = asynchronous(all)

    @property
    def _keys(self) -> JobKeys:
        """Looked up anew each time: PREFIX may be a callable (tenants)."""
        keys: JobKeys = self._backend.engine.keys
        return keys

    def _check_task(self, task: Task) -> None:
        """Raise if a poller could not find the task by its name, or find another one."""
        if not isinstance(task, Task):
            raise TypeError(f"task must be a task, which @task returns, not {type(task).__name__}.")
        alias = self._backend.alias
        if task.backend != alias:
            raise InvalidArgument(f"task must be a task of the backend {alias!r}, not of {task.backend!r}.")
        own = records.find_task(task.module_path)
        if task != own.using(backend=alias, queue_name=task.queue_name, priority=task.priority):
            raise InvalidArgument(
                "Of the values given to using(), a schedule stores queue_name and priority only: give the "
                "others to @task."
            )

    def _put(self, stored_as: str, record: str, replaced: str) -> Steps[bool]:
        """Store a schedule in place of a record; "": of none; "*": of any. False if there is another one."""
        one = parse_stored(self._backend.alias, stored_as, record.encode())
        words = (_name_in(stored_as), stored_as, record, one.fingerprint, replaced, MAX_SCHEDULES)
        stored: int = yield Script("tasks/schedules_put", [self._keys.schedules, self._keys.periodic], words)
        if stored < 0:
            raise LimitExceeded("stored schedules of a backend", limit=MAX_SCHEDULES, actual=-stored)
        return bool(stored)

    def _find(self, name: str) -> Steps[PeriodicTask | None]:
        """The schedule of this name."""
        alias, field = self._backend.alias, encoded(checked(name, "name"))
        for declared in tasks_of(alias):
            if declared.name == name:
                return declared
        known = yield Command("HGET", self._keys.schedules, field, reads=True)
        return None if known is None else parse_stored(alias, STORED + field, known)

    def _set_paused(self, name: str, paused: int) -> Steps[bool]:
        field, keys = encoded(checked(name, "name")), self._keys
        declared = [one for one in tasks_of(self._backend.alias) if one.name == name]
        words = (field, STORED + field, paused, len(declared))
        return bool((yield Script("tasks/schedules_pause", [keys.schedules, keys.periodic], words)))


def _name_in(stored_as: str) -> str:
    """The name of a schedule in the HASH of stored ones."""
    return stored_as.removeprefix(STORED)


def _check_expires(task: Task) -> None:
    if isinstance(getattr(task, "expires", None), datetime):
        raise InvalidArgument("expires of a task with a schedule must be seconds or a timedelta.")


def _checked_record(
    task: Task, when: Cron | Every, missed: Missed, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """The JSON of a schedule; raises for arguments that don't fit the task."""
    _check_missed(missed)
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, not {type(kwargs).__name__}.")
    positional, named = normalize_json(list(sequence(args, "args"))), normalize_json(dict(kwargs))
    _check_expires(task)
    if (problem := misfit(task, positional, named)) is not None:
        raise InvalidArgument(f"{task.module_path} can't be called with these arguments: {problem}.")
    return _record(task, when, missed, positional, named)


def _changed_timing(
    old: Cron | Every, cron: str | None, every: Duration | None, tz: str | None
) -> Cron | Every:
    if cron is None and every is None and tz is None:
        return old
    if every is None and isinstance(old, Cron):
        return Cron(old.expression if cron is None else cron, old.zone_name if tz is None else tz)
    return timing(cron=cron, every=every, tz=tz)
