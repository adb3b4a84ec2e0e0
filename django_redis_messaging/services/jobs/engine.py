"""The lease engine: the steps that delay queues, tasks and timers are made of.

A job is in one place at a time: it waits in a queue (ready, or delayed until it is due), is leased, is dead,
or has ended and is kept as a result. A claim gives its caller a lease with a fence and a token; later writes
about the job carry both, and are refused when they are stale. Every claim requeues the leases that expired.

The design is that of visibility timeouts (Amazon SQS) with counted attempts, on sorted sets as in "Redis in
Action", chapter 6; one script does all that a claim needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ... import conf
from ...core.operations import Command, PopHint, Script, Steps
from ...core.steps import Argument, Wait, batched
from ...errors import LimitExceeded
from ..arguments import integer, request, settled, window
from .keys import JobKeys
from .leases import Claimed, JobRecord, Lease, Settlement, parse_claim, parse_record

#: jobs that one script pushes, redrives or deletes at most
PAGE = 200
#: seconds after which a waiting client polls, though no wake-up came
POLL_INTERVAL = 1.0
#: attempts that a job may have at most
MAX_ATTEMPTS = 10_000
#: ms without a heartbeat after which a worker no longer counts
HEARTBEAT_TIMEOUT = 120_000


def check_attempts(value: int, what: str) -> int:
    """`value`, if a job may have so many attempts."""
    return integer(value, what, minimum=1, maximum=MAX_ATTEMPTS)


class Push(NamedTuple):
    """A job to be pushed, in the order in which jobs_push.lua takes it."""

    id: str
    payload: str
    #: ms, or "@" and a moment in ms
    delay: int | str
    priority: int
    max_attempts: int
    #: key that no other unfinished job may have; empty for none
    unique: str = ""


class Engine:
    """The jobs of one slot: one queue, or several that share their records."""

    def __init__(self, prefix: str, kind: str, value: str) -> None:
        self.keys = JobKeys(prefix, kind, value)

    def push(self, queue: str, request_id: str, jobs: Sequence[Push]) -> Steps[tuple[int, list[str]]]:
        """Add jobs.

        Returns when (ms), and the id in force of each job with a unique key, and of a single job.
        `request_id` may be empty if the ids are new and their records outlive all repeats.
        """
        limit = conf.current().JOB_MAX_WAITING
        words: list[Argument] = [request_id, window(), limit]
        for job in jobs:
            words += job
        reply = yield Script("jobs_push", self.keys.queue(queue).with_records, words)
        if isinstance(reply, int):
            raise LimitExceeded(
                "jobs waiting in a queue", limit=limit, actual=reply, setting="JOB_MAX_WAITING"
            )
        pushed, *ids = reply.decode().split("\0")
        return int(pushed), ids

    def claim(
        self,
        queues: Sequence[str],
        count: int,
        lease: int,
        *,
        worker: str = "-",
        min_age: int = 0,
        settlements: Sequence[Settlement] = (),
    ) -> Steps[Claimed]:
        """Settle leases, do what is due by time, and lease up to `count` jobs for `lease` ms (0: the jobs are
        deleted at once). A lost reply is not requested again: its jobs come back when their leases end."""
        numbers = {queue: number for number, queue in enumerate(queues, 1)}
        words: list[Argument] = [os.urandom(6).hex(), worker, lease, count, min_age, *_dead_limits()]
        for one in settlements:
            words += (numbers[one.lease.queue], *one.words)
        keys = [*self.keys.records, *(key for queue in queues for key in self.keys.queue(queue).all)]
        reply = yield Script("jobs_claim", keys, words, once=True)
        return parse_claim(reply, queues)

    def sweep(self, queues: Sequence[str]) -> Steps[float | None]:
        """Do what is due by time; returns the seconds until something is due, or None."""
        return (yield from self.claim(queues, 0, 0)).due_in

    def wait(self, queues: Iterable[str], seconds: float, *, linger: float = Wait.LINGER) -> Steps[None]:
        """Wait until one of the queues may have a job, for `seconds` at most. `linger`: see PopHint."""
        bells = [self.keys.queue(queue).bell for queue in queues]
        yield PopHint(*bells, seconds=min(seconds, POLL_INTERVAL), linger=linger)

    def settle(self, settlement: Settlement) -> Steps[bool | None]:
        """Settle one lease. False where it is stale, None where a lost reply leaves that open."""
        keys = self.keys.queue(settlement.lease.queue).with_records
        reply = yield Script("jobs_settle", keys, (*_dead_limits(), *settlement.words), settles=True)
        return settled(reply)

    def extend(self, leases: Sequence[Lease], ms: int) -> Steps[list[bool]]:
        """Make leases end `ms` from now, if that is later. For each, whether it is in force."""
        keys = [*self.keys.records, *(self.keys.queue(lease.queue).leased for lease in leases)]
        words: list[Argument] = [ms]
        for _, job_id, fence, token in leases:
            words += (job_id, fence, token)
        reply = yield Script("jobs_extend", keys, words)
        return [bool(flag) for flag in reply]

    def cancel(self, queue: str, job_id: str, *, ttl: int = 0, line: str = "") -> Steps[bool]:
        """Take out a job that has not started. With a `ttl` (ms), the cancellation is its result."""
        words = (job_id, ttl, line, request(None), window())
        return bool((yield Script("jobs_cancel", self.keys.queue(queue).with_records, words)))

    def reschedule(self, queue: str, job_id: str, delay: int | str, line: str = "") -> Steps[bool]:
        """Change when a waiting job is due."""
        keys = self.keys.queue(queue).with_records
        return bool((yield Script("jobs_reschedule", keys, (job_id, delay, line))))

    def get(self, job_id: str) -> Steps[JobRecord | None]:
        """The record of a job, or None."""
        _, max_age = _dead_limits()
        reply = yield Script("jobs_get", self.keys.records, (job_id, max_age))
        return parse_record(reply) if reply else None

    def stats(self, queue: str) -> Steps[list[int]]:
        """Ready, delayed, leased, dead, and how long the oldest ready job has been due (ms), or -1."""
        _, max_age = _dead_limits()
        reply: list[int] = yield Script("jobs_stats", self.keys.queue(queue).with_records, (max_age,))
        return reply

    def dead(self, queue: str, limit: int) -> Steps[list[JobRecord]]:
        """Dead jobs, the latest first."""
        _, max_age = _dead_limits()
        reply = yield Script("jobs_dead", self.keys.queue(queue).with_records, (limit, max_age))
        return [parse_record(one) for one in reply]

    def redrive(self, queue: str, job_ids: Sequence[str] | None) -> Steps[int]:
        """Requeue dead jobs: the given ones, or all that are dead by now. Returns how many."""
        keys, (_, max_age) = self.keys.queue(queue).with_records, _dead_limits()
        total: int = 0
        if job_ids is not None:
            for page in batched(job_ids, PAGE):
                words: tuple[Argument, ...] = (max_age, 0, "", request(None), window(), *page)
                count, _ = yield Script("jobs_redrive", keys, words)
                total += count
            return total
        position: str = ""
        while True:
            options = (max_age, PAGE, position, request(None), window())
            count, position = yield Script("jobs_redrive", keys, options)
            total += count
            if not position:
                return total

    def purge(self, queue: str) -> Steps[int]:
        """Delete all jobs of a queue. Returns how many."""
        keys, total = self.keys.queue(queue).with_records, 0
        while count := (yield Script("jobs_purge", keys, (PAGE, request(None), window()))):
            total += count
        return total

    def beat(self, worker: str, *, consumed: bool, started: int, running: int, done: int) -> Steps[int]:
        """Store the heartbeat of a worker. Returns the server's clock (ms)."""
        words = (worker, int(consumed), started, running, done, HEARTBEAT_TIMEOUT)
        return int((yield Script("workers_beat", [self.keys.workers], words)))

    def remove_worker(self, worker: str) -> Steps[None]:
        """Remove the heartbeat of a worker that ends."""
        yield Command("HDEL", self.keys.workers, worker)


def _dead_limits() -> tuple[int, int]:
    """How many dead jobs a queue keeps, and for how long (ms)."""
    settings = conf.current()
    return settings.JOB_MAX_DEAD, int(settings.JOB_DEAD_TTL * 1000)
