"""The queues of the task backends, and the delay queues: what pages of queues and jobs show and change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django.utils.translation import gettext_lazy

from .. import conf, surveys
from ..core.commands import batched
from ..core.encoding import current_prefix
from ..core.encoding import name as checked
from ..core.operations import Script, Steps, perform
from ..services.common.things import Thing
from ..services.history.keys import Series
from ..services.jobs.engine import Engine, Paused, check_pause
from ..services.jobs.listing import Jobs, jobs_of
from ..services.jobs.load import QueueLoad
from ..services.jobs.queue import ONLY_QUEUE
from ..web.problems import Answer, Problem

if TYPE_CHECKING:
    from ..tasks.backend import RedisBackend

#: queues that are listed of each alias
MAX_QUEUES = 1000
#: bytes of a job from which its queue is read: its beginning has the task and the queue
HEAD_BYTES = 4096
#: the beginning of a stored call: the path of its task, and its queue
_HEAD = re.compile(rb'\["[^"]*",("(?:[^"\\]|\\.)*"),')
NO_BACKEND = Answer(
    404, "not_found", gettext_lazy("TASKS has no backend of this name, or it doesn't use Redis.")
)


@dataclass(frozen=True)
class Queue:
    """A queue of a task backend, or a delay queue."""

    thing: Thing
    using: str
    engine: Engine
    #: its name in the keys
    stored: str
    #: None: a delay queue
    backend: RedisBackend | None

    @property
    def jobs(self) -> Jobs:
        """Its jobs."""
        if self.backend is None:
            return jobs_of(self.thing.name, using=self.using)
        return self.backend.jobs(self.thing.name)

    @property
    def series(self) -> Series:
        """Its history."""
        return Series("queue", self.thing.name, self.thing.where)

    def job(self, job_id: str) -> Thing:
        """A job of this queue."""
        if self.backend is None:
            return Thing("job", job_id, self.thing.name)
        return Thing("task", job_id, self.backend.alias)

    def pause(self, reason: str, by: str) -> bool:
        """Pause it. Returns whether it was not paused."""
        return perform(self.using, self.engine.pause(*check_pause(reason, by), queue=self.stored))

    def resume(self) -> bool:
        """Resume it. Returns whether it was paused."""
        return perform(self.using, self.engine.resume(queue=self.stored))


def delay_queue(name: str) -> Queue:
    """A delay queue."""
    engine = Engine(current_prefix(), "queue", checked(name, "queue"))
    return Queue(Thing("queue", name), conf.alias(), engine, ONLY_QUEUE, None)


def task_queue(backend: RedisBackend, name: str) -> Queue:
    """A queue of a backend."""
    thing = Thing("queue", checked(name, "queue"), backend.alias)
    return Queue(thing, backend.using, backend.engine, name, backend)


def queue_of(thing: Thing) -> Queue:
    """The queue that a thing is, or a delay queue in which a job is. Raises the Problem."""
    if thing.kind == "job":
        return delay_queue(thing.where)
    return task_queue(backend_of(thing.where), thing.name) if thing.where else delay_queue(thing.name)


def backend_of(alias: str) -> RedisBackend:
    """The backend of an alias. Raises the Problem."""
    found = surveys.backends().get(alias)
    if found is None:
        raise Problem(NO_BACKEND)
    return found


def all_queues() -> list[Queue]:
    """The queues of the backends, and the delay queues, by name; up to MAX_QUEUES at each alias. One round
    trip for each alias."""
    backends = surveys.backends()
    found = [
        task_queue(backends[one.where], one.name) if one.where else delay_queue(one.name)
        for one in surveys.all_queues(MAX_QUEUES)
        if one.kind != "timers"
    ]
    return sorted(found, key=lambda one: (one.backend is None, one.thing.where, one.thing.name))


class Counted(NamedTuple):
    """A queue with its numbers, and what is paused."""

    queue: Queue
    load: QueueLoad
    #: None: the queue is not paused
    pause: Paused | None
    #: tasks of its backend that are paused
    paused_tasks: Sequence[Paused]


def count(queues: Iterable[Queue]) -> list[Counted]:
    """The queues with their numbers, in one round trip for each alias."""
    some = sorted(queues, key=lambda one: one.using)
    counted = surveys.count((one.using, one.engine, one.stored) for one in some)
    return [Counted(one, *numbers) for one, numbers in zip(some, counted, strict=True)]


def by_queue(things: Sequence[Thing]) -> list[tuple[Queue, list[str]]]:
    """The queues of jobs, each with the ids of its own. Jobs that don't exist are left out."""
    found: dict[Thing, tuple[Queue, list[str]]] = {}
    for thing in (one for one in things if one.kind == "job"):
        queue = queue_of(thing)
        found.setdefault(queue.thing, (queue, []))[1].append(checked(thing.name, "id"))
    for alias in dict.fromkeys(one.where for one in things if one.kind == "task"):
        backend = backend_of(alias)
        ids = [checked(one.name, "id") for one in things if (one.kind, one.where) == ("task", alias)]
        for job_id, name in zip(ids, perform(backend.using, _read_queues(backend, ids)), strict=True):
            if name:
                queue = task_queue(backend, name)
                found.setdefault(queue.thing, (queue, []))[1].append(job_id)
    return list(found.values())


def _read_queues(backend: RedisBackend, ids: Sequence[str]) -> Steps[list[str]]:
    """The queues of tasks, empty for those that don't exist."""
    engine, names = backend.engine, list[str]()
    for page in batched(ids, 100):
        replies = yield [
            Script("jobs/get", engine.keys.records, (one, engine.result_age(), HEAD_BYTES)) for one in page
        ]
        names += [_queue_in(reply[1]) if reply else "" for reply in replies]
    return names


def _queue_in(payload: bytes) -> str:
    """The queue of a stored call that may be cut."""
    head = _HEAD.match(payload)
    return str(json.loads(head[1])) if head else ""
