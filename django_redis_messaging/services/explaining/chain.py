"""`explain`: follows the chain of causes from one thing to the next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from ... import conf
from ...core.encoding import name as checked
from ...core.operations import Service, Steps, aperform, perform
from ...errors import InvalidArgument
from ..broadcasts import Broadcast
from ..chats import Chat
from ..common.things import KINDS, Thing
from ..files import FileChannel
from ..jobs import DeadJob, DelayQueue, Job, Paused
from ..latches import Latch
from ..locks import Lock
from ..mailboxes import Mailbox
from ..rwlocks import ReadLock, ReadWriteLock, WriteLock
from ..semaphores import Semaphore
from .explanation import Cause, Explanation, make
from .jobs import explain_pause, job_subject, permit_subject, queue_subject, task_subject, timer_subject
from .locks import latch_subject, lock_subject, rwlock_subject, semaphore_subject
from .rates import rate_subject
from .readers import broadcast_subject, chat_subject, files_subject, mailbox_subject
from .schedules import periodic_subject
from .sights import Sight, Subject, task_backends
from .workers import worker_subject

#: causes of an explanation, at most; and of one thing
MAX_CAUSES, MAX_CAUSES_OF_ONE = 16, 5
#: round trips of an explanation, at most; and of one thing
MAX_TRIPS, MAX_TRIPS_OF_ONE = 9, 3
#: task backends in which an id is looked up
MAX_BACKENDS = 7
#: kinds of things that can be explained
EXPLAINED = (
    "task", "job", "queue", "worker", "periodic", "timer", "lock", "rwlock", "semaphore", "latch", "permit",
    "rate", "chat", "mailbox", "broadcast", "files",
)  # fmt: skip


def explain(thing: object) -> Explanation:
    """Why something waits: its causes, followed across jobs, locks, permits, queues and workers.

    `thing` is a Thing or its text (`"lock:nightly"`, `"task:default/0abc"`, `"job:mail/welcome-ann"`,
    `"timer:order/17"`, `"queue:default/emails"`, `"chat:42"`, …), the id of a task, or an object: a
    TaskResult, a job of a delay queue, a Lock, ReadWriteLock, Semaphore, Latch, DelayQueue, Chat, Mailbox,
    Broadcast, FileChannel or Paused.

    >>> with Lock("nightly"):
    ...     [cause.code for cause in explain("lock:nightly").causes]
    ['lock_held']

    It only reads, at most 9 times, and lists at most 16 causes. They name holders, workers, moments and
    classes of exceptions, but no arguments, payloads or messages. What it read at different moments may not
    fit together: it is a description, nothing to base a decision of a program on.

    Raises InvalidArgument for what can't be explained, Unavailable.
    """
    looking = _look(_subjects(thing))
    try:
        using, steps = next(looking)
        while True:
            using, steps = looking.send(perform(using, steps))
    except StopIteration as end:
        found: Explanation = end.value
        return found


async def aexplain(thing: object) -> Explanation:
    """An async version of `explain`."""
    looking = _look(_subjects(thing))
    try:
        using, steps = next(looking)
        while True:
            using, steps = looking.send(await aperform(using, steps))
    except StopIteration as end:
        found: Explanation = end.value
        return found


#: yields what is to be read, with the alias of its server; receives what was seen
Looking: TypeAlias = Generator[tuple[str, Steps[Sight]], Sight, Explanation]


def _look(start: Sequence[Subject] | Cause) -> Looking:
    """Read the first of these subjects that exists, and what it waits for, one after another."""
    if isinstance(start, Cause):
        return Explanation((start,))
    trips = Trips()
    sight, subject = Sight([], exists=False), start[0]
    for subject in start:
        sight = yield subject.using, trips.count(subject.read())
        if sight.exists:
            break
    causes, path = [*sight.causes], [subject.thing]
    while (thing := sight.following) is not None and (following := _follow(thing)) is not None:
        path += [step for step in (causes[-1].thing,) if step != path[-1]]
        if thing in path:
            causes.append(_deadlock(thing, path))
            break
        if trips.are_used_up or len(causes) > MAX_CAUSES - MAX_CAUSES_OF_ONE:
            causes.append(make("more", thing))
            break
        sight = yield following.using, trips.count(following.read())
        path.append(thing)
        causes += sight.causes
    return Explanation(tuple(causes))


class Trips:
    """Counts round trips."""

    def __init__(self) -> None:
        self._number = 0

    @property
    def are_used_up(self) -> bool:
        """Whether another thing may take too many."""
        return self._number + MAX_TRIPS_OF_ONE > MAX_TRIPS

    def count(self, steps: Steps[Sight]) -> Steps[Sight]:
        """Count those of a reading."""
        reply = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                sight: Sight = end.value
                return sight
            self._number += 1
            reply = yield step


def _follow(thing: Thing) -> Subject | None:
    """A task that holds something; None if its backend is that of another site."""
    return task_subject(thing) if thing.where in task_backends() else None


def _deadlock(thing: Thing, path: Sequence[Thing]) -> Cause:
    """The circle that leads back to a thing."""
    return make("deadlock", thing, things=tuple(map(str, (*path[path.index(thing) :], thing))))


def _subjects(thing: object) -> Sequence[Subject] | Cause:
    """What to read, the likeliest first; or the cause itself, if the object says all. Raises InvalidArgument,
    before anything is sent."""
    if isinstance(thing, str):
        return _by_text(thing)
    if isinstance(thing, Thing):
        return [subject_of(thing)]
    if isinstance(thing, Paused):
        return explain_pause(thing, Thing("queue", thing.queue) if thing.queue else Thing("task", thing.task))
    if isinstance(thing, Service):
        return [_of_service(thing)]
    if isinstance(thing, Job | DeadJob):
        return [subject_of(Thing("job", thing.id, thing.queue))]
    task_id, backend = getattr(thing, "id", None), getattr(thing, "backend", None)
    if isinstance(task_id, str) and isinstance(backend, str):  # Django's TaskResult, or the backport's
        queue = getattr(getattr(thing, "task", None), "queue_name", "")
        return [task_subject(_checked(Thing("task", task_id, backend)), str(queue))]
    raise TypeError(
        "thing must be a Thing, its text, the id of a task, or an object of this app, "
        f"not {type(thing).__name__}."
    )


def _by_text(text: str) -> Sequence[Subject]:
    """The thing of a text, or the task of an id in the first backend that knows it."""
    if text.partition(":")[0] in KINDS:
        return [subject_of(Thing.parse(text))]
    name = checked(text, "thing")
    if not (backends := task_backends()):
        raise InvalidArgument(
            f"{text[:100]!r} is no kind:name, and no task: TASKS has no backend of this app."
        )
    return [task_subject(Thing("task", name, alias)) for alias in [*backends][:MAX_BACKENDS]]


def subject_of(thing: Thing, using: str | None = None) -> Subject:
    """What to read of a thing. Raises InvalidArgument."""
    using = conf.alias() if using is None else using
    _checked(thing)
    match thing.kind:
        case "task":
            return task_subject(thing)
        case "permit":
            return permit_subject(thing)
        case "periodic":
            return periodic_subject(thing)
        case "worker":
            return worker_subject(thing)
    return _SUBJECTS[thing.kind](thing, using)


#: by kind, those whose server is that of an alias
_SUBJECTS: dict[str, Callable[[Thing, str], Subject]] = {
    "job": job_subject,
    "queue": queue_subject,
    "timer": timer_subject,
    "lock": lock_subject,
    "rwlock": rwlock_subject,
    "semaphore": semaphore_subject,
    "latch": latch_subject,
    "rate": rate_subject,
    "chat": chat_subject,
    "mailbox": mailbox_subject,
    "broadcast": broadcast_subject,
    "files": files_subject,
}


def _checked(thing: Thing) -> Thing:
    """The thing, if it is of a kind that can be explained, and its names can be stored."""
    if thing.kind not in EXPLAINED:
        raise InvalidArgument(
            f"{thing.kind[:100]!r} can't be explained; the kinds that can are {', '.join(EXPLAINED)}."
        )
    checked(thing.name, "name")
    meaning, may_be_empty, _ = KINDS[thing.kind].partition("; empty")
    if meaning and (thing.where or not may_be_empty):
        checked(thing.where, meaning)
    elif thing.where:
        raise InvalidArgument(f"{thing.kind} has no further name, not {thing.where[:100]!r}.")
    return thing


def _of_service(service: Service) -> Subject:
    """What to read of an object with operations. Raises InvalidArgument."""
    using = service._using
    match service:
        case Lock():
            return lock_subject(Thing("lock", service.name), using, service.key)
        case ReadWriteLock() | ReadLock() | WriteLock():
            return rwlock_subject(Thing("rwlock", service.name), using)
        case Semaphore():
            return semaphore_subject(Thing("semaphore", service.name), using)
        case Latch():
            return latch_subject(Thing("latch", service.name), using)
        case DelayQueue():
            return queue_subject(Thing("queue", service.name), using)
        case Chat():
            return chat_subject(Thing("chat", service.id), using)
        case Mailbox():
            return mailbox_subject(Thing("mailbox", service.user), using)
        case Broadcast():
            return broadcast_subject(Thing("broadcast", service.channel), using)
        case FileChannel():
            return files_subject(Thing("files", service.channel), using)
    raise InvalidArgument(
        f"A {type(service).__name__} can't be explained: pass one of {', '.join(EXPLAINED)}."
    )
