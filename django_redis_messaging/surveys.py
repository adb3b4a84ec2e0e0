"""What waits at a Redis, and what takes it: queues with their loads, workers and listeners.

For metrics and health checks: two round trips, and one more for each 100 queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING

from . import conf
from .core.commands import batched
from .core.encoding import current_prefix
from .core.operations import Steps, perform
from .services.expiries.timers import TimerEngine
from .services.jobs.engine import Engine
from .services.jobs.heartbeats import Heartbeat, alive, heartbeat_calls, parse_heartbeats
from .services.jobs.load import Counted, QueueLoad, count_queues
from .services.jobs.sources import Queue, read_queues, read_queues_and

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


def all_queues(limit: int) -> list[Queue]:
    """The queues at all aliases, up to `limit` at each, in one round trip for each; raises MessagingError."""
    return [queue for using in aliases() for queue in perform(using, read_queues(using, limit))]


def count(queues: Iterable[tuple[str, Engine, str]]) -> list[Counted]:
    """The loads of queues, and what is paused; of each: its alias, its engine, and its name in the keys. One
    round trip for each PAGE, and at least for each alias; raises MessagingError."""
    found: list[Counted] = []
    for using, group in groupby(queues, key=itemgetter(0)):
        for page in batched(group, PAGE):
            found += perform(using, count_queues([one[1:] for one in page]))
    return found


def survey(using: str) -> Survey:
    """Survey the Redis of an alias; raises MessagingError."""
    began = perf_counter()
    queues, workers, listeners = perform(using, _find(using))
    round_trip = perf_counter() - began
    some = queues[:MAX_QUEUES]
    counted = count((using, one.engine, one.stored) for one in some)
    surveyed = [
        SurveyedQueue(one.kind, one.name, found.load, one.where, found.pause is not None)
        for one, found in zip(some, counted, strict=True)
    ]
    return Survey(surveyed, len(queues) > MAX_QUEUES, workers, listeners, round_trip)


def _find(using: str) -> Steps[tuple[list[Queue], dict[str, list[Heartbeat]], list[Heartbeat] | None]]:
    """The queues, at most one more than are counted, with workers and listeners."""
    here = [backend for backend in backends().values() if backend.using == using]
    slots = [backend.engine.keys for backend in here]
    is_main = using == conf.alias()
    if is_main:
        slots.append(TimerEngine(current_prefix()).keys)
    calls = [call for keys in slots for call in heartbeat_calls(keys)]
    queues, replies = yield from read_queues_and(using, MAX_QUEUES + 1, calls)
    beats = [parse_heartbeats(*pair) for pair in batched(replies, 2)]
    workers = {backend.alias: found for backend, found in zip(here, beats, strict=False)}
    return queues, workers, beats[-1] if is_main else None


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
