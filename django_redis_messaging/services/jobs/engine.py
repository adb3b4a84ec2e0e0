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
from .keys import JobKeys, request_offset, request_shard
from .leases import (
    Claimed,
    FollowUp,
    JobRecord,
    Lease,
    Settlement,
    State,
    parse_claim,
    parse_record,
    parse_state,
)
from .pages import PAGE

#: seconds after which a waiting client polls, though no wake-up came
POLL_INTERVAL = 1.0
#: attempts that a job may have at most
MAX_ATTEMPTS = 10_000
#: ms without a heartbeat after which a worker no longer counts
HEARTBEAT_TIMEOUT = 120_000


def check_attempts(value: int, what: str) -> int:
    """`value`, if a job may have so many attempts."""
    return integer(value, what, minimum=1, maximum=MAX_ATTEMPTS)


def new_token() -> str:
    """A token of new leases."""
    return os.urandom(6).hex()


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

    #: whether expired leases are counted apart from failures, with JOB_MAX_LOST as their limit
    counts_lost = False

    def __init__(
        self, prefix: str, kind: str, value: str, *, max_results: int = 0, result_ttl: int = 0
    ) -> None:
        """`max_results`: results that are kept at most; `result_ttl`: how long the result of a dead job is
        kept at least, in ms."""
        self.keys = JobKeys(prefix, kind, value)
        self._result_limits = max_results, result_ttl

    def queue_of(self, payload: bytes) -> str:
        """The queue of a job, if its payload says so; empty for an engine of one queue."""
        return ""

    def push(
        self, queue: str, request_id: str, jobs: Sequence[Push], *, max_aliases: int = 0
    ) -> Steps[tuple[int, list[str]]]:
        """Add jobs.

        Returns when (ms), and the id in force of each job with a unique key, and of a single job.
        `request_id` may be empty if the ids are new and their records outlive all repeats. `max_aliases`: if
        the ids were given out, how many may stand for one job, that has their unique key.
        """
        limit = conf.current().JOB_MAX_WAITING
        shard, length = request_shard(request_id), window()
        offset = request_offset(shard, length)
        words: list[Argument] = [request_id, length, offset, limit, max_aliases]
        for job in jobs:
            words += job
        reply = yield Script("jobs_push", self.keys.for_request(shard, queue), words)
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
        token: str = "",
        min_age: int = 0,
        settlements: Sequence[Settlement] = (),
    ) -> Steps[Claimed]:
        """Settle leases, do what is due by time, and lease up to `count` jobs for `lease` ms (0: the jobs are
        deleted at once). A lost reply is not requested again: its jobs come back when their leases end, or
        with `return_claims`. `token` identifies the claim; empty: a new one."""
        numbers = {queue: number for number, queue in enumerate(queues, 1)}
        words: list[Argument] = [token or new_token(), worker, lease, count, min_age, self._limits()]
        for one in settlements:
            words += (numbers[one.lease.queue], *one.words)
        keys = [*self.keys.records, *(key for queue in queues for key in self.keys.queue(queue).all)]
        reply = yield Script("jobs_claim", keys, words, once=True)
        return parse_claim(reply, queues)

    def return_claims(self, queues: Sequence[str], tokens: Sequence[str]) -> Steps[int]:
        """Release the jobs of claims whose replies were lost, uncounted. Returns how many."""
        keys = [*self.keys.records, *(key for queue in queues for key in self.keys.queue(queue).all)]
        released: int = yield Script("jobs_return", keys, (self._limits(), *tokens))
        return released

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
        reply = yield Script("jobs_settle", keys, (self._limits(), *settlement.words), settles=True)
        return settled(reply)

    def settle_and_push(self, settlement: Settlement, follow_up: FollowUp) -> Steps[int | None]:
        """Settle one lease as DONE and push another job, together. JOB_MAX_WAITING doesn't apply to it.

        Returns when (ms), also to a repeat; 0, with nothing pushed, where the lease is stale; None where a
        lost reply leaves that open, since no result is kept.
        """
        keys = [*self.keys.queue(settlement.lease.queue).with_records, *self.keys.queue(follow_up.queue).all]
        words = (self._limits(), *settlement.words, follow_up.max_aliases, *follow_up.job)
        moment: int | None = yield Script("jobs_settle_push", keys, words, settles=True)
        return moment

    def begin(self, lease: Lease, worker: str) -> Steps[State | None]:
        """Start an attempt at a job that was held when it was claimed. Returns its state; None if the lease
        is stale."""
        reply = yield Script("jobs_begin", self.keys.records, (*lease[1:], worker))
        return parse_state(reply) if reply else None

    def extend(self, leases: Sequence[Lease], ms: int) -> Steps[list[bool]]:
        """Make leases end `ms` from now, if that is later. For each, whether it is in force."""
        keys = [*self.keys.records, *(self.keys.queue(lease.queue).leased for lease in leases)]
        words: list[Argument] = [ms]
        for _, job_id, fence, token in leases:
            words += (job_id, fence, token)
        reply = yield Script("jobs_extend", keys, words)
        return [bool(flag) for flag in reply]

    def cancel(
        self, queue: str, job_id: str, *, ttl: int = 0, line: str = "", dead: bool = False
    ) -> Steps[str | None]:
        """Take out a job that has not started; with `dead`, a dead one, too. With a `ttl` (ms), the
        cancellation is its result. Returns its queue: `queue`, or another one in which it waits; None if it
        has started, has ended, or doesn't exist."""
        words = (job_id, ttl, line, request(None), window(), self._limits(), int(dead))
        return (yield from self._change_waiting("jobs_cancel", queue, words))

    def reschedule(self, queue: str, job_id: str, delay: int | str, line: str = "") -> Steps[str | None]:
        """Change when a waiting job is due. Returns its queue, as `cancel`."""
        return (yield from self._change_waiting("jobs_reschedule", queue, (job_id, delay, line)))

    def _change_waiting(self, script: str, queue: str, words: Sequence[Argument]) -> Steps[str | None]:
        """Call a script about a job that waits, most likely in `queue`; if it waits in another one, call it
        for that. Returns the queue, or None."""
        reply = yield Script(script, self.keys.queue(queue).with_records, words)
        if isinstance(reply, bytes):
            queue = self.queue_of(reply) or queue
            reply = yield Script(script, self.keys.queue(queue).with_records, words)
        return queue if reply == 1 else None

    def get(self, job_id: str) -> Steps[JobRecord | None]:
        """The record of a job, or None."""
        reply = yield Script("jobs_get", self.keys.records, (job_id, self._result_age()))
        return parse_record(reply) if reply else None

    def await_end(self, job_id: str) -> Steps[JobRecord | str | None]:
        """Have the end of a job add an entry to its stream `ended`. Returns the id of the job, to which an
        alias is resolved; its record, if the job has ended; None if it doesn't exist."""
        reply = yield Script("tasks_await", self.keys.records, (job_id, self._result_age()))
        if len(reply) == 1:
            in_force: str = reply[0].decode()
            return in_force
        return parse_record(reply) if reply else None

    def stats(self, queue: str) -> Steps[list[int]]:
        """Ready, delayed, leased, dead, and how long the oldest ready job has been due (ms), or -1."""
        reply: list[int] = yield self.stats_call(queue)
        return reply

    def stats_call(self, queue: str) -> Script:
        """The call of `stats`, to be sent with those of other queues."""
        return Script("jobs_stats", self.keys.queue(queue).with_records, (_dead_ttl(), self._max_lost()))

    def is_empty(self, queue: str) -> Steps[bool]:
        """Whether nothing is stored of a queue, and no results of its slot."""
        ready, delayed, leased, dead, _ = self.keys.queue(queue).all
        zsets = (ready, delayed, leased, dead, self.keys.finished)
        return not any((yield [Command("ZCARD", zset) for zset in zsets]))

    def dead(self, queue: str, limit: int) -> Steps[list[JobRecord]]:
        """Dead jobs, the latest first."""
        reply = yield Script("jobs_dead", self.keys.queue(queue).with_records, (limit, _dead_ttl()))
        return [parse_record(one) for one in reply]

    def redrive(self, queue: str, job_ids: Sequence[str] | None) -> Steps[int]:
        """Requeue dead jobs: the given ones, or all that are dead by now. Returns how many."""
        keys, max_age = self.keys.queue(queue).with_records, _dead_ttl()
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

    def _limits(self) -> str:
        """The limits of the slot, as lua/_leases.lua parses them."""
        max_results, result_ttl = self._result_limits
        max_dead = conf.current().JOB_MAX_DEAD
        return f"{max_dead} {_dead_ttl()} {self._max_lost()} {max_results} {result_ttl}"

    def _result_age(self) -> int:
        """How long the result of a dead job is kept: ms."""
        return max(_dead_ttl(), self._result_limits[1])

    def _max_lost(self) -> int:
        return conf.current().JOB_MAX_LOST if self.counts_lost else 0


def _dead_ttl() -> int:
    """How long a dead job is kept: ms."""
    return int(conf.current().JOB_DEAD_TTL * 1000)
