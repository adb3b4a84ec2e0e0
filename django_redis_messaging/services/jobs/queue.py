"""Delay queues: jobs for later, leased to the consumers that pop them."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic
from typing import Any

from ... import conf
from ...core import encoding
from ...core.encoding import name as checked
from ...core.operations import (
    Service,
    Steps,
    asynchronous,
    log_exception,
    operation,
)
from ...core.outcome import backoff
from ...errors import (
    InvalidArgument,
    LimitExceeded,
    OutcomeUnknown,
    Unavailable,
)
from ..common.arguments import Duration, Stop, count, integer, milliseconds, request, sequence, to_datetime
from ..common.consuming import FETCH_WAIT, Consumer
from ..common.leases import RenewedLease
from .engine import (
    POLL_INTERVAL,
    Engine,
    Extended,
    JobRecord,
    Lease,
    LeasedJob,
    Outcome,
    Paused,
    Push,
    check_attempts,
    check_pause,
    pages,
    register_queue,
)
from .keys import queues_key

logger = logging.getLogger(__name__)

#: callables by the names that jobs give
Callables = Mapping[str, Callable[..., Any]]

#: name of a queue that has its slot to itself, in the keys and in leases
ONLY_QUEUE = "jobs"
#: jobs that one call pops or lists at most
MAX_JOBS = 500
#: bytes of the reason with which a job fails
MAX_REASON_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was popped. If it has a lease, ack, retry, release or fail it before the lease ends."""

    id: str
    #: what was pushed
    data: Any
    #: attempts started, this one included
    attempts: int
    #: grows with every lease of this job: a resource that refuses lower ones is safe from late holders
    fence: int
    #: when it became due
    due_at: datetime
    #: name of its queue
    queue: str
    #: identifies the lease, together with the fence
    token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A dead job: it failed permanently, or had all its attempts."""

    id: str
    data: Any
    attempts: int
    #: why it died; empty if no reason was given
    reason: str
    buried_at: datetime
    #: name of its queue
    queue: str = ""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many jobs are in each state, as if everything due by time had been done."""

    ready: int
    delayed: int
    leased: int
    dead: int
    #: seconds since the oldest ready job became due; None if no job is ready
    oldest_age: float | None
    #: jobs that are due and wait for what they need: a lock, a permit, a rate, or the end of a pause of
    #: their task
    parked: int = 0


class DelayQueue(Service):
    """A queue by its name.

    >>> queue = DelayQueue("mail")
    >>> job_id = queue.push({"to": "ann@example.com"}, job_id="welcome-ann")
    >>> [job] = queue.pop(lease=30)
    >>> job.data, job.attempts
    ({'to': 'ann@example.com'}, 1)
    >>> queue.ack(job)
    True

    A pushed job is delivered at least once, until it is acked, failed or has had its attempts
    (`max_attempts`, JOB_MAX_ATTEMPTS by default): then it is dead, and can be redriven. It is never delivered
    before it is due by the server's clock, nor to two consumers at a time while leases last.
    """

    def __init__(self, name: str, *, max_attempts: int | None = None, using: str | None = None) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        attempts = conf.current().JOB_MAX_ATTEMPTS if max_attempts is None else max_attempts
        self._max_attempts = check_attempts(attempts, "max_attempts")
        self._engine = Engine(self._prefix, "queue", name)
        self._registry = queues_key(self._prefix)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @operation
    def push(
        self,
        data: Any,
        *,
        delay: Duration = 0,
        priority: int = 0,
        job_id: str | None = None,
        request_id: str | None = None,
    ) -> Steps[str]:
        """Add a job; returns its id.

        It becomes ready after `delay` (no upper limit in practice), behind the jobs of its `priority` (-100
        to 100, the highest first) that are ready already. A job with the same id that waits or runs stays as
        it is; a dead one is replaced. A repeat with the same `request_id` adds nothing and returns the first
        id. Request ids belong to the queue: put the user into an id that a user has chosen, or users can
        suppress each other's jobs (`f"{user.pk}:{id}"`).

        >>> DelayQueue("mail").push("hello", delay=3600, job_id="later")
        'later'

        Raises LimitExceeded (JOB_MAX_BYTES, JOB_MAX_WAITING).
        """
        request_key = "" if request_id is None and job_id is None else request(request_id)
        chosen = new_ids(request_id, 1)[0] if job_id is None else checked(job_id, "job_id")
        # a new id identifies the request, too
        return (yield from self._push_one(chosen, request_key or chosen, data, delay, priority))

    apush = asynchronous(push)

    @operation
    def push_many(
        self,
        items: Sequence[Any],
        *,
        delay: Duration = 0,
        priority: int = 0,
        request_id: str | None = None,
    ) -> Steps[list[str]]:
        """Add a job for each of `items`, in their order; returns their ids.

        One script adds up to 200, or 1 MiB; after an error, the ones before it have been added, and a
        repeat with the same `request_id` adds the rest. Request ids belong to the queue, as in `push`.

        >>> len(DelayQueue("mail").push_many(["one", "two"]))
        2
        """
        wait = milliseconds(delay, "delay")
        checked_priority = integer(priority, "priority", minimum=-100, maximum=100)
        request_key = request(request_id)
        payloads = [encode(item) for item in items]
        ids = new_ids(request_id, len(payloads))
        jobs = [
            Push(job_id, payload, wait, checked_priority, self._max_attempts)
            for job_id, payload in zip(ids, payloads, strict=True)
        ]
        for number, page in enumerate(pages(jobs, lambda job: job.payload)):
            # no other request has this id: a caller's id has no NUL
            yield from self._engine.push(ONLY_QUEUE, f"{request_key}\0{number}", page)
        yield from self._register(wait)
        return ids

    apush_many = asynchronous(push_many)

    @operation
    def pop(
        self, num: int = 5, *, lease: Duration | None = 30, min_age: Duration = 0, wait: Duration = 0
    ) -> Steps[list[Job]]:
        """Lease up to `num` ready jobs (1 to 500) for `lease` seconds.

        A job that is not acked, retried, released, failed or extended by then is delivered again.
        `lease=None` deletes the jobs at once: each is delivered at most once, and lost if its consumer
        crashes. `min_age` pops only jobs that became due at least so long ago. With `wait`, the call returns
        as soon as a job is ready, or with an empty list after that time.

        >>> DelayQueue("nothing").pop(wait=0.01)
        []
        """
        wanted = count(num, "num", maximum=MAX_JOBS)
        length = 0 if lease is None else milliseconds(lease, "lease", minimum=1)
        age = milliseconds(min_age, "min_age")
        ends = monotonic() + milliseconds(wait, "wait") / 1000
        while True:
            claimed = yield from self._engine.claim([ONLY_QUEUE], wanted, length, min_age=age)
            left = ends - monotonic()
            if claimed.jobs or left <= 0:
                return decode_jobs(claimed.jobs, self.name)
            due_in = POLL_INTERVAL if claimed.due_in is None else claimed.due_in
            try:
                yield from self._engine.wait([ONLY_QUEUE], min(left, due_in), linger=left)
            except (Unavailable, OutcomeUnknown):
                continue  # only a wake-up was lost; the next claim tells whether Redis is reachable

    apop = asynchronous(pop)

    @operation
    def ack(self, job: Job) -> Steps[bool | None]:
        """Report that the job is done. False, with nothing changed, if the lease is lost: the job was
        delivered to another consumer meanwhile.

        None if a reply was lost and the repeat found nothing to do: either the job was acked, or the lease
        was lost at that moment. The same holds for `retry`, `release` and `fail`.
        """
        return (yield from self._settle(job, Outcome.DONE))

    aack = asynchronous(ack)

    @operation
    def retry(self, job: Job, delay: Duration = 0) -> Steps[bool | None]:
        """Requeue the job after `delay`; after its last attempt it is dead. False if the lease is lost."""
        return (yield from self._settle(job, Outcome.RETRY, milliseconds(delay, "delay")))

    aretry = asynchronous(retry)

    @operation
    def release(self, job: Job, delay: Duration = 0) -> Steps[bool | None]:
        """Requeue the job after `delay`; the attempt doesn't count. Without a delay, the job keeps its place:
        it is popped before those that were behind it. False if the lease is lost."""
        return (yield from self._settle(job, Outcome.RELEASE, milliseconds(delay, "delay")))

    arelease = asynchronous(release)

    @operation
    def fail(self, job: Job, reason: str) -> Steps[bool | None]:
        """Move the job to the dead jobs, with a reason, until it is redriven. False if the lease is lost."""
        return (yield from self._settle(job, Outcome.DEAD, 0, failure_line(reason)))

    afail = asynchronous(fail)

    @operation
    def extend(self, job: Job, lease: Duration) -> Steps[bool]:
        """Make the lease end `lease` seconds from now, if that is later. False if it is lost."""
        return (yield from self._extend(job, lease))

    aextend = asynchronous(extend)

    @operation
    def cancel(self, job_id: str) -> Steps[bool]:
        """Delete a job that waits or is dead. False if it runs or doesn't exist."""
        found = yield from self._engine.cancel(ONLY_QUEUE, checked(job_id, "job_id"), dead=True)
        return found is not None

    acancel = asynchronous(cancel)

    @operation
    def reschedule(self, job_id: str, delay: Duration) -> Steps[bool]:
        """Make a waiting job ready after `delay`. False if it doesn't wait."""
        wait = milliseconds(delay, "delay")
        done = yield from self._engine.reschedule(ONLY_QUEUE, checked(job_id, "job_id"), wait)
        if done is None:
            return False
        yield from self._register(wait)
        return True

    areschedule = asynchronous(reschedule)

    @operation
    def stats(self) -> Steps[QueueStats]:
        """How many jobs are in each state.

        >>> DelayQueue("nothing").stats()
        QueueStats(ready=0, delayed=0, leased=0, dead=0, oldest_age=None, parked=0)
        """
        return parse_stats((yield from self._engine.stats(ONLY_QUEUE)))

    astats = asynchronous(stats)

    @operation
    def dead(self, limit: int = 100) -> Steps[list[DeadJob]]:
        """Dead jobs, the latest first (1 to 500)."""
        wanted = count(limit, "limit", maximum=MAX_JOBS)
        return decode_dead((yield from self._engine.dead(ONLY_QUEUE, wanted)), self.name)

    adead = asynchronous(dead)

    @operation
    def redrive(self, job_ids: Sequence[str] | None = None, *, delay: Duration = 0) -> Steps[int]:
        """Requeue dead jobs, with all their attempts: the given ones, or all. They are ready after `delay`.
        Returns how many."""
        chosen = None if job_ids is None else [checked(one, "job_id") for one in sequence(job_ids, "job_ids")]
        wait = milliseconds(delay, "delay")
        count = yield from self._engine.redrive(ONLY_QUEUE, chosen, wait)
        if wait:
            yield from self._register(wait)
        return count

    aredrive = asynchronous(redrive)

    @operation
    def purge(self) -> Steps[int]:
        """Delete all jobs, whatever their state; returns how many. Acks of running jobs are refused then."""
        return (yield from self._engine.purge(ONLY_QUEUE))

    apurge = asynchronous(purge)

    @operation
    def execute_later(
        self, callable_name: str, args: Sequence[Any] = (), *, delay: Duration = 0, priority: int = 0
    ) -> Steps[str]:
        """Push `[callable_name, args]`, which `work` calls by that name; returns the job's id."""
        data = [checked(callable_name, "callable_name"), list(sequence(args, "args"))]
        [chosen] = new_ids(None, 1)
        return (yield from self._push_one(chosen, chosen, data, delay, priority))

    aexecute_later = asynchronous(execute_later)

    @operation
    def pause(self, reason: str = "", by: str = "") -> Steps[bool]:
        """Have `pop` return no jobs until `resume`; jobs can be pushed. False if it was paused already: then
        only `reason` and `by`, texts for operators, are replaced.

        Raises LimitExceeded for a text of more than 1,000 bytes.
        """
        return (yield from self._engine.pause(*check_pause(reason, by), queue=ONLY_QUEUE))

    apause = asynchronous(pause)

    @operation
    def resume(self) -> Steps[bool]:
        """End the pause of the queue; False if it was not paused."""
        return (yield from self._engine.resume(queue=ONLY_QUEUE))

    aresume = asynchronous(resume)

    @operation
    def paused(self) -> Steps[Paused | None]:
        """The pause of the queue, or None.

        >>> queue = DelayQueue("mail-outbox")
        >>> queue.pause("the provider is down", by="ann")
        True
        >>> queue.paused().by, queue.resume()
        ('ann', True)
        """
        found = yield from self._engine.paused()
        return replace(found[0], queue=self.name) if found else None

    apaused = asynchronous(paused)

    def work(
        self,
        callables: Mapping[str, Callable[..., Any]],
        *,
        stop: Stop | None = None,
        lease: Duration = 30,
    ) -> None:
        """Pop jobs `[name, args]` and call the callable of that name, until `stop` is set.

        The lease is extended while a callable runs. If a callable raises, that is logged and the job is
        retried, after a longer delay each time; a job without a matching callable is logged and moved to the
        dead jobs. While Redis fails, the loop retries for as long as it takes; only ConfigurationError and
        InvalidArgument end it. Coroutine functions raise TypeError: they are for `awork`.
        """
        JobConsumer(self, callables, stop=stop, lease=lease, blocking=True).consume()

    async def awork(
        self,
        callables: Mapping[str, Callable[..., Any]],
        *,
        stop: Stop | None = None,
        lease: Duration = 30,
    ) -> None:
        """As `work`, with coroutine functions too: those are awaited, others run in a thread. `stop` is an
        asyncio.Event, or anything with is_set."""
        await JobConsumer(self, callables, stop=stop, lease=lease, blocking=False).aconsume()

    def _push_one(
        self, job_id: str, request_key: str, data: Any, delay: Duration, priority: int
    ) -> Steps[str]:
        wait = milliseconds(delay, "delay")
        place = integer(priority, "priority", minimum=-100, maximum=100)
        job = Push(job_id, encode(data), wait, place, self._max_attempts)
        _, [in_force] = yield from self._engine.push(ONLY_QUEUE, request_key, [job])
        yield from self._register(wait)
        return in_force

    def _register(self, delay: int) -> Steps[None]:
        return register_queue(self._using, self._registry, self.name, delay)

    def _extend(self, job: Job, lease: Duration) -> Steps[bool]:
        length = milliseconds(lease, "lease", minimum=1)
        [extended] = yield from self._engine.extend([self._lease(job)], length)
        return extended is not Extended.STALE

    def _settle(self, job: Job, outcome: Outcome, ms: int = 0, line: str = "") -> Steps[bool | None]:
        return self._engine.settle(self._lease(job).settlement(outcome, ms, line))

    def _lease(self, job: Job) -> Lease:
        if job.queue != self.name:
            raise InvalidArgument(f"job must be of the queue {self.name!r}, not of {job.queue!r}.")
        return Lease(ONLY_QUEUE, job.id, job.fence, job.token)


def new_ids(request_id: str | None, count: int) -> list[str]:
    """New ids; the same ones for a repeat of a request. Ascending: jobs that become due in the same ms are
    delivered in the order of their ids."""
    digest = os.urandom(9) if request_id is None else hashlib.sha256(request_id.encode()).digest()[:9]
    base = digest.hex()
    return [f"{base}{number:06x}" for number in range(count)]


def encode(data: Any) -> str:
    """A payload as it is stored; LimitExceeded if it is too large."""
    encoded = encoding.dumps(data, "data")
    limit = conf.current().JOB_MAX_BYTES
    if len(encoded) > limit or len(encoded.encode()) > limit:
        raise LimitExceeded(
            "a job's payload (bytes)", limit=limit, actual=len(encoded.encode()), setting="JOB_MAX_BYTES"
        )
    return encoded


def decode_jobs(found: Sequence[LeasedJob], queue: str) -> list[Job]:
    """The jobs of a claim."""
    data = encoding.loads_all([one.payload for one in found])
    return [
        Job(
            id=one.lease.id,
            data=value,
            attempts=one.state.attempts,
            fence=one.lease.fence,
            due_at=to_datetime(one.state.moment),
            queue=queue,
            token=one.lease.token,
        )
        for one, value in zip(found, data, strict=True)
    ]


def parse_stats(reply: Sequence[int]) -> QueueStats:
    """The reply of jobs/stats.lua."""
    ready, delayed, leased, dead, oldest, parked = reply
    return QueueStats(ready, delayed, leased, dead, None if oldest < 0 else oldest / 1000, parked)


def decode_dead(found: Sequence[JobRecord], queue: str) -> list[DeadJob]:
    """Dead jobs, from their records."""
    data = encoding.loads_all([one.payload for one in found])
    return [
        DeadJob(one.id, value, one.state.attempts, _reason(one.log), to_datetime(one.state.moment), queue)
        for one, value in zip(found, data, strict=True)
    ]


def failure_line(reason: str) -> str:
    """The line of the log for a job that failed with this reason."""
    return "F" + encoding.string(encoding.text(reason, "reason", limit=MAX_REASON_BYTES))


def _reason(log: bytes) -> str:
    """Why a job is dead: the last line of its log, in words."""
    line = log.rpartition(b"\n")[2].decode()
    if line.startswith("L"):
        return f"The lease expired in attempt {line[1:]}."
    return str(encoding.loads_all([line[1:].encode()])[0]) if line.startswith("F") else ""


def retry_delay(attempts: int) -> float:
    """Seconds before the next attempt at a job: JOB_BACKOFF, doubled with each attempt, with jitter."""
    settings = conf.current()
    return backoff(attempts, first=settings.JOB_BACKOFF, longest=settings.JOB_BACKOFF_MAX)


class JobConsumer(Consumer[list[Job]]):
    """Calls the callables of the jobs of a queue, and settles their leases, which it extends meanwhile."""

    def __init__(
        self, queue: DelayQueue, callables: Callables, *, stop: Stop | None, lease: Duration, blocking: bool
    ) -> None:
        super().__init__(f"queue {queue.name!r}", logger, stop, blocking=blocking)
        self._queue = queue
        self._callables = callables
        #: seconds
        self._lease = milliseconds(lease, "lease", minimum=1) / 1000
        if blocking:
            _check_plain(callables)

    async def fetch(self) -> list[Job]:
        """Pop one job."""
        return await self.do(self._queue.pop, self._queue.apop, 1, lease=self._lease, wait=FETCH_WAIT)

    async def handle(self, fetched: list[Job]) -> None:
        """Call the callable of the job and settle the lease. If that fails, the job is delivered again."""
        for job in fetched:
            call = self._call_of(job)
            if call is None:
                await self.do(self._queue.fail, self._queue.afail, job, _no_call_reason(job))
            else:
                await self._run(job, *call)

    def _call_of(self, job: Job) -> tuple[Callable[..., Any], list[Any]] | None:
        """The callable of a job and its arguments; None if no callable has the name."""
        match job.data:
            case [str(name), list(args)] if name in self._callables:
                return self._callables[name], args
        logger.error(
            "Job %r of queue %r: no callable is registered; moved to dead letters.", job.id, job.queue
        )
        return None

    async def _run(self, job: Job, function: Callable[..., Any], args: list[Any]) -> None:
        queue = self._queue
        try:
            await self.do(self._call, self._acall, job, function, args)
        except Exception as error:
            try:
                await self.do(queue.retry, queue.aretry, job, retry_delay(job.attempts))
            finally:
                message = "Job %r of queue %r failed in attempt %d."
                log_exception(logger, error, message, job.id, job.queue, job.attempts)
        else:
            if await self.do(queue.ack, queue.aack, job) is False:
                logger.warning("Job %r of queue %r was done, but its lease was lost.", job.id, job.queue)

    def _call(self, job: Job, function: Callable[..., Any], args: list[Any]) -> None:
        with self._renewed(job):
            result = function(*args)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError(f"{function!r} returned a coroutine: use awork, which awaits it.")

    async def _acall(self, job: Job, function: Callable[..., Any], args: list[Any]) -> None:
        with self._renewed(job):
            if _is_coroutine_function(function):
                result = function(*args)
            else:  # in a thread: it may block, and the lease must be extended meanwhile
                result = await asyncio.to_thread(function, *args)
            if inspect.isawaitable(result):
                await result

    def _renewed(self, job: Job) -> RenewedLease:
        """The lease of a job, renewed while its callable runs. After its end it is still the job's until a
        consumer claims it."""
        queue = self._queue
        script = queue._engine.extension([queue._lease(job)], milliseconds(self._lease, "lease", minimum=1))
        return RenewedLease(queue._using, job.id, self._lease, script, is_held=all, until_refused=True)


def _check_plain(callables: Callables) -> None:
    """Raise TypeError for callables that only `awork` can call."""
    for name, function in callables.items():
        if _is_coroutine_function(function):
            raise TypeError(f"{name!r} is a coroutine function: use awork, which awaits it.")


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def _no_call_reason(job: Job) -> str:
    match job.data:
        case [str(name), list()]:
            return f"No callable is registered as {name[:100]!r}."
    return "The payload is not [name, args]."
