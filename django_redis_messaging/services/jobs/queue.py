"""Delay queues: jobs for later, leased to the consumers that pop them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.keys import name as checked
from ...core.operations import Steps, asynchronous, operation
from ..arguments import Duration, Stop, count, integer, milliseconds, request, sequence
from . import consuming
from .base import MAX_JOBS, ONLY_QUEUE, LeaseQueue
from .encoding import decode_dead, encode, new_ids
from .engine import Push
from .keys import queues_key
from .pages import pages
from .registry import register_queue
from .values import DeadJob, QueueStats


class DelayQueue(LeaseQueue):
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
        request_key = request(request_id)
        chosen = new_ids(request_id, 1)[0] if job_id is None else checked(job_id, "job_id")
        return (yield from self._push_one(chosen, request_key, data, delay, priority))

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
        QueueStats(ready=0, delayed=0, leased=0, dead=0, oldest_age=None)
        """
        ready, delayed, leased, dead, oldest = yield from self._engine.stats(ONLY_QUEUE)
        return QueueStats(ready, delayed, leased, dead, None if oldest < 0 else oldest / 1000)

    astats = asynchronous(stats)

    @operation
    def dead(self, limit: int = 100) -> Steps[list[DeadJob]]:
        """Dead jobs, the latest first (1 to 500)."""
        return decode_dead(
            (yield from self._engine.dead(ONLY_QUEUE, count(limit, "limit", maximum=MAX_JOBS)))
        )

    adead = asynchronous(dead)

    @operation
    def redrive(self, job_ids: Sequence[str] | None = None) -> Steps[int]:
        """Requeue dead jobs, with all their attempts: the given ones, or all. Returns how many."""
        chosen = None if job_ids is None else [checked(one, "job_id") for one in sequence(job_ids, "job_ids")]
        return (yield from self._engine.redrive(ONLY_QUEUE, chosen))

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
        seconds = milliseconds(lease, "lease", minimum=1) / 1000
        consuming.check(callables)
        consuming.work(self, callables, stop or threading.Event(), seconds)

    async def awork(
        self,
        callables: Mapping[str, Callable[..., Any]],
        *,
        stop: Stop | None = None,
        lease: Duration = 30,
    ) -> None:
        """As `work`, with coroutine functions too: those are awaited, others run in a thread. `stop` is an
        asyncio.Event, or anything with is_set."""
        seconds = milliseconds(lease, "lease", minimum=1) / 1000
        await consuming.awork(self, callables, stop or threading.Event(), seconds)

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
        return register_queue(self._using, queues_key(self._prefix), self.name, delay)
