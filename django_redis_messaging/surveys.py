"""What waits at a Redis, and what takes it: queues with their loads, workers and listeners.

For metrics and health checks: two round trips, and one more for each 100 queues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from . import conf
from .core.commands import Command, batched
from .core.encoding import current_prefix
from .core.operations import Steps, perform
from .services.expiries.timers import TimerEngine, namespaces_key
from .services.jobs.engine import Engine
from .services.jobs.heartbeats import Heartbeat, heartbeat_calls, parse_heartbeats
from .services.jobs.keys import queues_key
from .services.jobs.load import QueueLoad, count_queues
from .services.jobs.queue import ONLY_QUEUE

if TYPE_CHECKING:
    from .tasks.backend import RedisBackend

#: queues that are counted at most: those of tasks first, then the namespaces of timers
MAX_QUEUES = 500
#: queues that are counted in one round trip
PAGE = 100


@dataclass(frozen=True, slots=True)
class SurveyedQueue:
    """A queue and its jobs."""

    #: "tasks", "timers" or "delay"
    kind: str
    name: str
    load: QueueLoad
    #: alias in TASKS; empty for other queues
    backend: str = ""
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found at the Redis of an alias."""

    queues: list[SurveyedQueue]
    #: whether there are more than MAX_QUEUES
    is_truncated: bool
    #: by alias in TASKS, the workers that take tasks
    workers: dict[str, list[Heartbeat]]
    #: the listeners that fire timers; None: another alias has those
    listeners: list[Heartbeat] | None
    #: duration of the first round trip: seconds
    round_trip: float


class _Found(NamedTuple):
    """A queue that is to be counted."""

    kind: str
    name: str
    engine: Engine
    queue: str
    backend: str = ""


class _Slots(NamedTuple):
    """What a Redis has: the backends of tasks; and if it is that of ALIAS, delay queues and timers."""

    prefix: str
    backends: Sequence[RedisBackend]
    is_main: bool


def backends() -> dict[str, RedisBackend]:
    """The backends of TASKS that are this app's, by alias; none where Django's Tasks are not installed."""
    if not tasks_installed():
        return {}
    from .tasks.backend import our_backends

    return {backend.alias: backend for backend in our_backends()}


def tasks_installed() -> bool:
    """Whether Django's Tasks framework, or its backport, is installed."""
    return any(find_spec(name) is not None for name in ("django.tasks", "django_tasks"))


def aliases() -> list[str]:
    """The CACHES aliases that this app uses: that of the setting ALIAS, and those of the task backends."""
    return list(dict.fromkeys([conf.alias(), *(backend.using for backend in backends().values())]))


def survey(using: str) -> Survey:
    """Survey the Redis of an alias; raises MessagingError."""
    here = [backend for backend in backends().values() if backend.using == using]
    slots = _Slots(current_prefix(), here, is_main=using == conf.alias())
    began = perf_counter()
    queues, workers, listeners = perform(using, _find(slots))
    round_trip = perf_counter() - began
    counted = [queue for page in batched(queues[:MAX_QUEUES], PAGE) for queue in perform(using, _count(page))]
    return Survey(counted, len(queues) > MAX_QUEUES, workers, listeners, round_trip)


def _find(slots: _Slots) -> Steps[tuple[list[_Found], dict[str, list[Heartbeat]], list[Heartbeat] | None]]:
    """The queues, at most one more than are counted, with workers and listeners."""
    timers, unlisted = TimerEngine(slots.prefix), [one for one in slots.backends if not one.queue_names]
    calls = [call for one in slots.backends for call in heartbeat_calls(one.engine.keys)]
    calls += [_names_call(one.engine.keys.queues) for one in unlisted]
    if slots.is_main:
        calls += [*heartbeat_calls(timers.keys), _names_call(namespaces_key(slots.prefix))]
        calls.append(_names_call(queues_key(slots.prefix)))
    replies = iter((yield calls) if calls else ())
    workers = {one.alias: parse_heartbeats(*islice(replies, 2)) for one in slots.backends}
    names = {one.alias: _names(next(replies)) for one in unlisted}
    found = [
        _Found("tasks", name, one.engine, name, one.alias)
        for one in slots.backends
        for name in names.get(one.alias, one.queue_names)
    ]
    if not slots.is_main:
        return found, workers, None
    listeners = parse_heartbeats(*islice(replies, 2))
    found += [_Found("timers", name, timers, name) for name in _names(next(replies))]
    found += [
        _Found("delay", name, Engine(slots.prefix, "queue", name), ONLY_QUEUE)
        for name in _names(next(replies))
    ]
    return found[: MAX_QUEUES + 1], workers, listeners


def _names_call(registry: str) -> Command:
    """The names in a registry of queues, the latest registration first."""
    return Command("ZRANGE", registry, 0, MAX_QUEUES, "REV", reads=True)


def _names(reply: Sequence[bytes]) -> list[str]:
    return sorted(name.decode(errors="backslashreplace") for name in reply)


def _count(page: Sequence[_Found]) -> Steps[list[SurveyedQueue]]:
    """The loads of queues, and whether they are paused."""
    counted = yield from count_queues([(one.engine, one.queue) for one in page])
    return [
        SurveyedQueue(one.kind, one.name, found.load, one.backend, found.pause is not None)
        for one, found in zip(page, counted, strict=True)
    ]


def alive(consumers: Sequence[Heartbeat]) -> int:
    """How many of these workers or listeners take jobs."""
    return sum(one.alive for one in consumers)


def problems(found: Survey, max_age: float) -> Iterator[str]:
    """What keeps ready jobs from being taken. The names of delay queues and timers, which may be about users,
    are left out. `max_age`: seconds that a job may be ready without a consumer."""
    overdue = [one for one in found.queues if (one.load.oldest_age or 0) > max_age and not one.is_paused]
    for alias, workers in found.workers.items():
        waiting = [one.name for one in overdue if one.backend == alias]
        if waiting and not alive(workers):
            yield f"No worker takes the tasks of {alias!r}{_overdue(waiting, max_age)}"
    waiting = [one.name for one in overdue if one.kind == "timers"]
    if waiting and not alive(found.listeners or ()):
        yield f"No listener fires timers{_overdue(waiting, max_age)}"
    waiting = [one.name for one in overdue if one.kind == "delay" and not one.load.leased]
    if waiting:
        yield f"No client pops from delay queues{_overdue(waiting, max_age)}"


def _overdue(queues: Sequence[str], max_age: float) -> str:
    return f": jobs have been ready for more than {max_age:g} s (queues: {len(queues)})."
