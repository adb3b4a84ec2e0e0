"""Delay queues: jobs for later, leased to whoever pops them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from ... import conf
from ...core import keys, payloads
from ...core.batches import batched
from ...core.keys import name as checked
from ...core.operations import PopHint, Service, Steps, asynchronous, operation
from ..arguments import Duration, count, listed, milliseconds, whole
from ..requests import request
from . import registry, work
from .engine import ONLY, PAGE, Engine, Push, Verdict
from .making import new_ids, payload, popped
from .values import DeadJob, Job, QueueStats, moment, reason
from .work import Stop

#: seconds after which whoever waits looks again, though nothing woke it
LOOK = 1.0
#: jobs that one pop may take
MOST = 500


class DelayQueue(Service):
    """A queue by its name.

    >>> queue = DelayQueue("mail")
    >>> job_id = queue.push({"to": "ann@example.com"}, job_id="welcome-ann")
    >>> [job] = queue.pop(lease=30)
    >>> job.data, job.attempts
    ({'to': 'ann@example.com'}, 1)
    >>> queue.ack(job)
    True

    A job that was pushed is delivered at least once, until it is acked, failed or has had its attempts
    (`max_attempts`, JOB_MAX_ATTEMPTS by default): then it is dead, and can be put back. It is never handed
    out before it is due, by the server's clock, nor to two at a time while leases hold.
    """

    def __init__(self, name: str, *, max_attempts: int | None = None, using: str | None = None) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        most = conf.current().JOB_MAX_ATTEMPTS if max_attempts is None else max_attempts
        self._most = whole(most, "max_attempts", least=1, most=10_000)
        self._engine = Engine(self._prefix, "queue", name)

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

        It becomes ready after `delay` (any horizon), behind those of its `priority` (-100 to 100, the
        highest first) that are ready already. An id that waits or runs already is left as it is; one that
        is dead is replaced. A repeat with the same `request_id` adds nothing and returns the first id.

        >>> DelayQueue("mail").push("hello", delay=3600, job_id="later")
        'later'

        Raises LimitExceeded (JOB_MAX_BYTES, JOB_MAX_WAITING).
        """
        asked = request(request_id)
        chosen = new_ids(request_id, 1)[0] if job_id is None else checked(job_id, "job_id")
        return (yield from self._push_one(chosen, asked, data, delay, priority))

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

        Some hundreds go in one script; after an error, those before it are there, and a repeat with the
        same `request_id` adds the rest.

        >>> len(DelayQueue("mail").push_many(["one", "two"]))
        2
        """
        wait = milliseconds(delay, "delay")
        place = whole(priority, "priority", least=-100, most=100)
        asked = request(request_id)
        encoded = [payload(item) for item in items]
        ids = new_ids(request_id, len(encoded))
        for number, page in enumerate(batched(zip(ids, encoded, strict=True), PAGE)):
            jobs = [Push(chosen, text, wait, place, self._most) for chosen, text in page]
            # no other request is called so: a caller's id has no NUL
            yield from self._engine.push(ONLY, f"{asked}\0{number}", jobs)
        yield from self._noted()
        return ids

    apush_many = asynchronous(push_many)

    @operation
    def pop(
        self, num: int = 5, *, lease: Duration | None = 30, min_age: Duration = 0, wait: Duration = 0
    ) -> Steps[list[Job]]:
        """Take up to `num` jobs (1 to 500) that are ready, for `lease` seconds.

        What is not acked, retried, released, failed or extended by then is handed out again. `lease=None`
        gives jobs away at once: at most once, lost with whoever popped them. `min_age` takes only those
        that became due at least so long ago. With `wait`, it returns as soon as something is ready, or
        empty after that time.

        >>> DelayQueue("nothing").pop(wait=0.01)
        []
        """
        wanted = count(num, "num", most=MOST)
        held = 0 if lease is None else milliseconds(lease, "lease", least=1)
        age = milliseconds(min_age, "min_age")
        ends = monotonic() + milliseconds(wait, "wait") / 1000
        while True:
            claimed = yield from self._engine.claim([ONLY], wanted, held, age=age)
            left = ends - monotonic()
            if claimed.jobs or left <= 0:
                return popped(claimed.jobs, self.name)
            due_in = LOOK if claimed.due_in is None else claimed.due_in / 1000
            bell = self._engine.place(ONLY).bell
            yield PopHint(bell, seconds=min(left, due_in, LOOK), life=left)

    apop = asynchronous(pop)

    @operation
    def ack(self, job: Job) -> Steps[bool | None]:
        """The job is done. False, and nothing changes, where somebody else was given it meanwhile.

        None where a reply was lost and the repeat found nothing to do: it was acked, or the lease was lost
        just then. The same holds for `retry`, `release` and `fail`.
        """
        return (yield from self._settle(job, "done"))

    aack = asynchronous(ack)

    @operation
    def retry(self, job: Job, delay: Duration = 0) -> Steps[bool | None]:
        """Try it again after `delay`; after its last attempt it is dead. False where the lease is lost."""
        return (yield from self._settle(job, "again", milliseconds(delay, "delay")))

    aretry = asynchronous(retry)

    @operation
    def release(self, job: Job, delay: Duration = 0) -> Steps[bool | None]:
        """Give it back without charging the attempt. False where the lease is lost."""
        return (yield from self._settle(job, "back", milliseconds(delay, "delay")))

    arelease = asynchronous(release)

    @operation
    def fail(self, job: Job, reason: str) -> Steps[bool | None]:
        """Bury it: it is dead, for this reason, until redriven. False where the lease is lost."""
        line = "F" + payloads.string(payloads.text(reason, "reason", limit=8192))
        return (yield from self._settle(job, "dead", 0, line))

    afail = asynchronous(fail)

    @operation
    def extend(self, job: Job, lease: Duration) -> Steps[bool]:
        """Let the lease end `lease` seconds from now, if that is later. False where it is lost."""
        held = milliseconds(lease, "lease", least=1)
        [ours] = yield from self._engine.extend([(ONLY, job.id, job.fence, self._token(job))], held)
        return ours

    aextend = asynchronous(extend)

    @operation
    def cancel(self, job_id: str) -> Steps[bool]:
        """Remove a job that waits or is dead. False where it runs, or is not there."""
        return (yield from self._engine.cancel(ONLY, checked(job_id, "job_id")))

    acancel = asynchronous(cancel)

    @operation
    def reschedule(self, job_id: str, delay: Duration) -> Steps[bool]:
        """Let a job that waits become ready after `delay`. False where it doesn't wait."""
        wait = milliseconds(delay, "delay")
        return (yield from self._engine.reschedule(ONLY, checked(job_id, "job_id"), wait))

    areschedule = asynchronous(reschedule)

    @operation
    def stats(self) -> Steps[QueueStats]:
        """How many jobs are where.

        >>> DelayQueue("nothing").stats()
        QueueStats(ready=0, delayed=0, leased=0, dead=0, oldest_age=None)
        """
        ready, delayed, leased, dead, oldest = yield from self._engine.stats(ONLY)
        return QueueStats(ready, delayed, leased, dead, None if oldest < 0 else oldest / 1000)

    astats = asynchronous(stats)

    @operation
    def dead(self, limit: int = 100) -> Steps[list[DeadJob]]:
        """Jobs that were buried, the latest first (1 to 500)."""
        found = yield from self._engine.dead(ONLY, count(limit, "limit", most=MOST))
        data = payloads.loads_all([one.payload for one in found])
        return [
            DeadJob(one.id, value, one.state.attempts, reason(one.outcomes), moment(one.state.moment))
            for one, value in zip(found, data, strict=True)
        ]

    adead = asynchronous(dead)

    @operation
    def redrive(self, job_ids: Sequence[str] | None = None) -> Steps[int]:
        """Put dead jobs back, these or all, with all their attempts before them; returns how many."""
        chosen = None if job_ids is None else [checked(one, "job_id") for one in listed(job_ids, "job_ids")]
        return (yield from self._engine.redrive(ONLY, chosen))

    aredrive = asynchronous(redrive)

    @operation
    def purge(self) -> Steps[int]:
        """Remove all jobs, wherever they are; returns how many. Acks of those that run are refused then."""
        return (yield from self._engine.purge(ONLY))

    apurge = asynchronous(purge)

    @operation
    def execute_later(
        self, callable_name: str, args: Sequence[Any] = (), *, delay: Duration = 0, priority: int = 0
    ) -> Steps[str]:
        """Push `[callable_name, args]`, which `work` calls by that name; returns the job's id."""
        named = [checked(callable_name, "callable_name"), list(listed(args, "args"))]
        [chosen] = new_ids(None, 1)
        return (yield from self._push_one(chosen, chosen, named, delay, priority))

    aexecute_later = asynchronous(execute_later)

    def work(
        self,
        callables: Mapping[str, Callable[..., Any]],
        *,
        stop: Stop | None = None,
        lease: Duration = 30,
    ) -> None:
        """Pop jobs `[name, args]` and call what has that name, until `stop` is set.

        The lease is extended while a callable runs. One that raises is logged and tried again, later each
        time; a job that names nothing here is logged and buried. While Redis can't be reached, or refuses,
        it tries for ever; only ConfigurationError ends it. Coroutine functions are a TypeError: they are for
        `awork`.
        """
        seconds = milliseconds(lease, "lease", least=1) / 1000
        work.check(callables)
        work.work(self, callables, stop or threading.Event(), seconds)

    async def awork(
        self,
        callables: Mapping[str, Callable[..., Any]],
        *,
        stop: Stop | None = None,
        lease: Duration = 30,
    ) -> None:
        """As `work`, for coroutine functions too: they are awaited, others called in a thread. `stop` is an
        asyncio.Event, or anything with is_set."""
        seconds = milliseconds(lease, "lease", least=1) / 1000
        await work.awork(self, callables, stop or threading.Event(), seconds)

    def _push_one(self, job_id: str, asked: str, data: Any, delay: Duration, priority: int) -> Steps[str]:
        wait = milliseconds(delay, "delay")
        place = whole(priority, "priority", least=-100, most=100)
        job = Push(job_id, payload(data), wait, place, self._most)
        _, [counts] = yield from self._engine.push(ONLY, asked, [job])
        yield from self._noted()
        return counts

    def _noted(self) -> Steps[None]:
        return registry.noted(self._using, keys.queues(self._prefix), self.name)

    def _settle(self, job: Job, what: str, value: int = 0, line: str = "") -> Steps[bool | None]:
        verdict = Verdict(ONLY, job.id, job.fence, self._token(job), what, value, line)
        return (yield from self._engine.settle(verdict))

    def _token(self, job: Job) -> str:
        if job.queue != self.name:
            raise ValueError(f"This job is of the queue {job.queue!r}, not of {self.name!r}.")
        return job.token
