"""The lease engine: what is stored of jobs, and the scripts that change it.

A job is in one place at a time: it waits in a queue (ready, delayed until it is due, or parked until what it
needs is free), is leased, is dead, or has ended and is kept as a result. A claim gives its caller a lease
with a fence and a token; later writes about the job carry both, and are refused when they are stale. Every
claim requeues the leases that expired.

The design is that of visibility timeouts (Amazon SQS) with counted attempts, on sorted sets as in "Redis in
Action", chapter 6; one script does all that a claim needs.

A job that may have ended its process, with others that ran there, runs *apart*: see State.apart.

A registry lists which queues exist, for the poller and the statistics. A push registers its queue until the
moment at which its job is due, but not at every push: a process remembers what it has registered. The poller
removes a registration that is older than MAX_AGE, after it has found the queue empty; so no queue with jobs
is forgotten, however long they are delayed. Nothing else removes registrations: workers don't read them, and
the statistics don't write, so that users of Redis who may only read can run them. Without a poller, names
that are no longer used stay: some bytes each in Redis, and some commands for the statistics.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from ... import conf
from ...core.commands import Argument, Wait, batched
from ...core.encoding import encoded, text
from ...core.operations import Clock, Command, PopHint, Script, Steps
from ...errors import LimitExceeded, OutcomeUnknown, Unavailable
from ..common.arguments import integer, request, settled, to_datetime, window
from .keys import JobKeys, request_offset, request_shard

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: seconds after which a waiting client polls, though no wake-up came
POLL_INTERVAL = 1.0
#: attempts that a job may have at most
MAX_ATTEMPTS = 10_000
#: ms without a heartbeat after which a worker no longer counts
HEARTBEAT_TIMEOUT = 120_000
#: jobs that one script pushes, redrives or deletes at most
PAGE = 200
#: bytes of payloads that one script pushes at most, unless a single job has more
PAGE_BYTES = 2**20
#: seconds after which a process that goes on pushing to a queue registers it again
REGISTER_INTERVAL = 3600.0
#: ms after which a registration is old, counted from its moment
MAX_AGE = 30 * 86_400_000
#: ms by which a job may be due after the registered moment without a new registration: less than MAX_AGE
MAX_LATER = 15 * 86_400_000
#: queues and tasks of a slot that may be paused at a time: each claim reads them
MAX_PAUSED = 1000
#: bytes of each text that is stored with a pause
MAX_PAUSE_BYTES = 1000
#: a state as _records.lua describes it
_STATE = re.compile(
    r"\A(\w+)(?: priority=(-?\d+))? attempts=(\d+)/(\d+) pushed=(\d+) (?:due|ended)=(\d+)"
    r"(?: fence=(\d+))?(?: token=(\S+))?(?: first=(\d+))?(?: last=(\d+))?(?: by=(\S+))?"
    r"(?: lost=(\d+))?(?: awaited=(1))?(?: cancel=(\d+))?(?: apart=(1))?"
    r"(?: blocked=(\S+))?(?: place=\d+)?( .*?)??(?: unique=(.*))?\Z"
)


class Outcome(Enum):
    """What becomes of a leased job. The values are those of _leases.lua."""

    #: the job has ended; its result may be kept for a while
    DONE = "done"
    #: the attempt failed: the job is requeued, or dead after its last attempt
    RETRY = "retry"
    #: the job is requeued, and the attempt doesn't count
    RELEASE = "release"
    #: the job is moved to the dead jobs
    DEAD = "dead"
    #: the job has ended, cancelled while it ran
    CANCELLED = "cancelled"
    #: its process died while other jobs ran there: the job is requeued, the attempt doesn't count, and the
    #: next one runs in a process of its own
    APART = "apart"
    #: its process died while no other job ran there: as if the lease had expired
    LOST = "lost"


class Extended(IntEnum):
    """What became of the extension of a lease."""

    #: another client may have the job
    STALE = 0
    IN_FORCE = 1
    #: in force, and the job shall be cancelled
    CANCEL = 2


class Lease(NamedTuple):
    """The right to work on a job until the lease ends. Fence and token identify it: a later lease of the same
    job has a greater fence and another token."""

    queue: str
    id: str
    fence: int
    token: str

    def settlement(self, outcome: Outcome, ms: int = 0, line: str = "") -> Settlement:
        """The lease with its outcome."""
        return Settlement(self, outcome, ms, line)


class FollowUp(NamedTuple):
    """A job that the script that settles another one pushes."""

    queue: str
    #: the fields of a Push
    job: Sequence[str | int]
    #: see Engine.push
    max_aliases: int
    #: called after the push, with its moment (ms); after a failure it may be called again
    pushed: Callable[[int], None]


class Settlement(NamedTuple):
    """A lease with its outcome, which the engine applies unless the lease is stale."""

    lease: Lease
    outcome: Outcome
    #: ms to keep the result (DONE), or to delay the next attempt (RETRY, RELEASE)
    ms: int = 0
    #: line for the log of attempts, opaque to the engine
    line: str = ""
    #: with DONE
    follow_up: FollowUp | None = None

    @property
    def words(self) -> tuple[str, int, str, str, int, str]:
        """As the scripts take it: id, fence, token, outcome, ms, line."""
        _, job_id, fence, token = self.lease
        return job_id, fence, token, self.outcome.value, self.ms, self.line


class State(NamedTuple):
    """A job's state: see _records.lua. Moments are ms, 0 for never."""

    status: str
    priority: int
    attempts: int
    #: attempts whose lease expired, where these are counted apart from failures
    lost: int
    max_attempts: int
    fence: int
    token: str
    pushed: int
    first: int
    last: int
    moment: int
    workers: list[str]
    #: whether a client may wait for the end of the job
    awaited: bool
    #: whether it shall be cancelled
    cancel: bool
    #: whether it runs in a process of its own
    apart: bool
    #: which of its needs a waiting job waits for, or "pause:TASK"; until it is leased, also when that has
    #: become free; empty: none
    blocked: str
    #: the other fields, which never change, as text
    more: str
    unique: str

    def field(self, name: str) -> str:
        """The value of a field that never changes, as it is stored; empty if the job has none."""
        found = re.search(rf" {name}=(\S*)", self.more)
        return found[1] if found else ""

    @property
    def failures(self) -> int:
        """The attempts that count towards `max_attempts`, the current one included."""
        return self.attempts - self.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """A queue or a task that is paused. The name of the other one is empty."""

    queue: str
    #: dotted name
    task: str
    reason: str
    #: who paused it
    by: str
    since: datetime


class LeasedJob(NamedTuple):
    """A job that was claimed."""

    lease: Lease
    payload: bytes
    state: State


class JobRecord(NamedTuple):
    """What is stored of a job."""

    id: str
    payload: bytes
    state: State
    #: lines: one for each attempt that ended, and for other events
    log: bytes


class Claimed(NamedTuple):
    """The reply to a claim."""

    #: the server's clock: ms
    now: int
    #: if there are fewer jobs than were wanted, or none were: seconds until something is due, or None
    due_in: float | None
    #: for each settlement, whether it was applied; False where the lease was stale
    applied: list[bool]
    jobs: list[LeasedJob]


class Push(NamedTuple):
    """A job to be pushed, in the order in which jobs/push.lua takes it."""

    id: str
    payload: str
    #: ms, or "@" and a moment in ms
    delay: int | str
    priority: int
    max_attempts: int
    #: key that no other unfinished job may have; empty for none
    unique: str = ""
    #: the other fields that never change, as text: see _records.lua
    more: str = ""


class Engine:
    """The jobs of one slot: one queue, or several that share their records."""

    #: whether expired leases are counted apart from failures, with JOB_MAX_LOST as their limit
    counts_lost = False

    def __init__(
        self, prefix: str, kind: str, value: str, *, max_results: int = 0, result_ttl: int = 0
    ) -> None:
        """`max_results`: results that are kept at most; `result_ttl`: how long the result of a dead job is
        kept at least, in ms."""
        #: prefix, kind and name of the slot
        self.slot = prefix, kind, value
        self.keys = JobKeys(prefix, kind, value)
        self._result_limits = max_results, result_ttl
        #: the settings from which the limits were made, and these
        self._known_limits: tuple[conf.Settings | None, tuple[str, ...]] = None, ()

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
        settings, shard = conf.current(), request_shard(request_id)
        limit, length = settings.JOB_MAX_WAITING, settings.REQUEST_WINDOW * 1000
        words: list[Argument] = [request_id, length, request_offset(shard, length), limit, max_aliases]
        for job in jobs:
            words += job
        reply = yield Script("jobs/push", self.keys.for_request(shard, queue), words)
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
        words: list[Argument] = [token or new_token(), worker, lease, count, min_age, *self._limits()]
        for one in settlements:
            words += (queues.index(one.lease.queue) + 1, *one.words)
        reply = yield Script("jobs/claim", self.keys.with_queues(queues), words, once=True)
        return parse_claim(reply, queues)

    def return_claims(self, queues: Sequence[str], tokens: Sequence[str]) -> Steps[int]:
        """Release the jobs of claims whose replies were lost, uncounted. Returns how many."""
        keys = self.keys.with_queues(queues)
        released: int = yield Script("jobs/return", keys, (*self._limits(), *tokens))
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
        reply = yield Script("jobs/settle", keys, (*self._limits(), *settlement.words), settles=True)
        return settled(reply)

    def settle_and_push(self, settlement: Settlement, follow_up: FollowUp) -> Steps[int | None]:
        """Settle one lease as DONE and push another job, together. JOB_MAX_WAITING doesn't apply to it.

        Returns when (ms), also to a repeat; 0, with nothing pushed, where the lease is stale; None where a
        lost reply leaves that open, since no result is kept.
        """
        keys = self.keys.with_queues((settlement.lease.queue, follow_up.queue))
        words = (*self._limits(), *settlement.words, follow_up.max_aliases, *follow_up.job)
        moment: int | None = yield Script("jobs/settle", keys, words, settles=True)
        return moment

    def extend(self, leases: Sequence[Lease], ms: int) -> Steps[list[Extended]]:
        """Make leases end `ms` from now, if that is later."""
        reply = yield self.extension(leases, ms)
        return [Extended(flag) for flag in reply]

    def extension(self, leases: Sequence[Lease], ms: int) -> Script:
        """The script of `extend`; it replies a number of Extended for each lease."""
        queues = list({lease.queue for lease in leases})
        words: list[Argument] = [ms]
        for queue, job_id, fence, token in leases:
            words += (queues.index(queue) + 1, job_id, fence, token)
        return Script("jobs/extend", self.keys.with_queues(queues), words)

    def cancel(
        self,
        queue: str,
        job_id: str,
        *,
        ttl: int = 0,
        line: str = "",
        dead: bool = False,
        running: bool = False,
    ) -> Steps[str | None]:
        """Take out a job that has not started; with `dead`, a dead one, too; with `running`, have a running
        one cancelled by the holder of its lease (see `extend`). With a `ttl` (ms), the cancellation is its
        result. Returns its queue: `queue`, or another one in which it waits; None if it has started, has
        ended, or doesn't exist."""
        flags = int(dead), int(running)
        words: list[Argument] = [job_id, ttl, line, request(None), window(), *flags, *self._limits()]
        return (yield from self._change_waiting("jobs/cancel", queue, words))

    def cancel_many(
        self, queue: str, job_ids: Sequence[str], *, ttl: int, line: str, running: bool = True
    ) -> Steps[int]:
        """Cancel those of up to PAGE jobs that wait, most likely in `queue`, or run; see `cancel`. Returns
        how many. One round trip, and one for each other queue in which some wait."""
        keys = self.keys.queue(queue).with_records
        words: list[Argument] = [window(), 0, int(running), *self._limits()]
        replies = yield [
            Script("jobs/cancel", keys, (one, ttl, line, request(None), *words)) for one in job_ids
        ]
        count = sum(reply in (1, 2) for reply in replies)
        elsewhere: dict[str, list[str]] = {}
        for job_id, reply in zip(job_ids, replies, strict=True):
            if isinstance(reply, bytes) and (other := self.queue_of(reply)) != queue:
                elsewhere.setdefault(other, []).append(job_id)
        for other, some in elsewhere.items():
            count += yield from self.cancel_many(other, some, ttl=ttl, line=line, running=running)
        return count

    def reschedule(self, queue: str, job_id: str, delay: int | str, line: str = "") -> Steps[str | None]:
        """Change when a waiting job is due. Returns its queue, as `cancel`."""
        return (yield from self._change_waiting("jobs/reschedule", queue, (job_id, delay, line, "")))

    def reschedule_many(
        self, queue: str, job_ids: Sequence[str], delay: int | str, line: str = ""
    ) -> Steps[int]:
        """Change when those of up to PAGE jobs are due that wait in this queue. Returns how many."""
        keys = self.keys.queue(queue).with_records
        replies = yield [Script("jobs/reschedule", keys, (one, delay, line, "")) for one in job_ids]
        return sum(reply == 1 for reply in replies)

    def set_priority(self, queue: str, job_id: str, priority: int) -> Steps[str | None]:
        """Change the priority of a waiting job. A ready one comes behind those of its new priority. Returns
        its queue, as `cancel`."""
        return (yield from self._change_waiting("jobs/reschedule", queue, (job_id, "", "", priority)))

    def cancel_tagged(self, tag: str, *, ttl: int, line: str) -> Steps[int]:
        """Cancel the jobs that have a tag, in its stored form: those that wait, and the running ones, as
        `cancel`. Returns how many."""
        total, position = 0, f"[{tag} "
        while True:
            page: list[bytes] = yield Command(
                "ZRANGEBYLEX", self.keys.tags, position, f"({tag}!", "LIMIT", 0, PAGE, reads=True
            )
            if not page:
                return total
            position = "(" + page[-1].decode()
            by_queue: dict[str, list[str]] = {}
            for _, queue, job_id in (member.decode().split(" ", 2) for member in page):
                by_queue.setdefault(unquote(queue), []).append(job_id)
            counts: list[int] = yield [
                Script(
                    "jobs/cancel_many",
                    self.keys.queue(queue).with_records,
                    (ttl, line, request(None), window(), *self._limits(), *ids),
                )
                for queue, ids in by_queue.items()
            ]
            total += sum(counts)
            if len(page) < PAGE:
                return total

    def count_tagged(self, tag: str) -> Steps[int]:
        """How many jobs that wait or run have a tag, in its stored form."""
        count: int = yield Command("ZLEXCOUNT", self.keys.tags, f"[{tag} ", f"({tag}!", reads=True)
        return count

    def _change_waiting(self, script: str, queue: str, words: Sequence[Argument]) -> Steps[str | None]:
        """Call a script about a job that waits, most likely in `queue`; if it waits in another one, call it
        for that. Returns the queue, or None."""
        reply = yield Script(script, self.keys.queue(queue).with_records, words)
        if isinstance(reply, bytes):
            queue = self.queue_of(reply) or queue
            reply = yield Script(script, self.keys.queue(queue).with_records, words)
        return queue if reply in (1, 2) else None

    def get(self, job_id: str) -> Steps[JobRecord | None]:
        """The record of a job, or None."""
        reply = yield Script("jobs/get", self.keys.records, (job_id, self.result_age(), 0))
        return parse_record(reply) if reply else None

    def get_part(self, job_id: str, limit: int) -> Steps[tuple[JobRecord, int, int] | None]:
        """The record of a job with up to `limit` bytes of its payload, and of its log; the bytes of the whole
        payload; and the server's clock (ms). None if there is no such job."""
        reply = yield Script("jobs/get", self.keys.records, (job_id, self.result_age(), limit))
        return (parse_record(reply[:4]), *reply[4:]) if reply else None

    def await_end(self, job_id: str) -> Steps[JobRecord | str | None]:
        """Have the end of a job add an entry to its stream `ended`. Returns the id of the job, to which an
        alias is resolved; its record, if the job has ended; None if it doesn't exist."""
        reply = yield Script("jobs/await", self.keys.records, (job_id, self.result_age()))
        if len(reply) == 1:
            in_force: str = reply[0].decode()
            return in_force
        return parse_record(reply) if reply else None

    def stats(self, queue: str) -> Steps[list[int]]:
        """Ready, delayed, leased, dead, how long the oldest ready job has been due (ms) or -1, parked."""
        reply: list[int] = yield self.stats_call(queue)
        return reply

    def stats_call(self, *queues: str) -> Script:
        """The call of `stats` for some queues. Its reply has the numbers of the first ones, at least of one,
        in one list."""
        return Script("jobs/stats", self.keys.with_queues(queues), (_dead_ttl(), self._max_lost()))

    def is_empty(self, queue: str) -> Steps[bool]:
        """Whether nothing is stored of a queue, and no results of its slot."""
        keys = self.keys.queue(queue)
        zsets = (keys.ready, keys.delayed, keys.parked, keys.leased, keys.dead, self.keys.finished)
        return not any((yield [Command("ZCARD", zset) for zset in zsets]))

    def dead(self, queue: str, limit: int) -> Steps[list[JobRecord]]:
        """Dead jobs, the latest first."""
        reply = yield Script("jobs/dead", self.keys.queue(queue).with_records, (limit, _dead_ttl()))
        return [parse_record(one) for one in reply]

    def list_call(
        self,
        queue: str,
        place: str,
        position: tuple[str, str],
        count: int,
        *,
        excerpt: int,
        filters: Sequence[Argument],
    ) -> Script:
        """The call of jobs/list.lua, which describes its arguments and its reply."""
        words: list[Argument] = [place, *position, count, excerpt, _dead_ttl(), *filters]
        return Script("jobs/list", self.keys.queue(queue).with_records, words)

    def redrive(self, queue: str, job_ids: Sequence[str] | None, delay: int | str = 0) -> Steps[int]:
        """Requeue dead jobs: the given ones, or all that are dead by now. `delay`: ms, or "@" and a moment in
        ms. Returns how many."""
        keys, max_age = self.keys.queue(queue).with_records, _dead_ttl()
        total: int = 0
        if job_ids is not None:
            for page in batched(job_ids, PAGE):
                words: tuple[Argument, ...] = (max_age, 0, "", request(None), window(), delay, *page)
                count, _ = yield Script("jobs/redrive", keys, words)
                total += count
            return total
        position: str = ""
        while True:
            options = (max_age, PAGE, position, request(None), window(), delay)
            count, position = yield Script("jobs/redrive", keys, options)
            total += count
            if not position:
                return total

    def discard(self, queue: str, place: str, job_ids: Sequence[str]) -> Steps[int]:
        """Delete those of up to PAGE jobs that are in this place: dead, or finished. Returns how many."""
        words: list[Argument] = [place, request(None), window(), *job_ids]
        count: int = yield Script("jobs/discard", self.keys.queue(queue).with_records, words)
        return count

    def purge(self, queue: str, *, seconds: float = math.inf) -> Steps[int]:
        """Delete all jobs of a queue; after about `seconds`, the rest stays. Returns how many."""
        keys, total = self.keys.queue(queue).with_records, 0
        ends = time.monotonic() + seconds
        while count := (yield Script("jobs/purge", keys, (PAGE, request(None), window()))):
            total += count
            if time.monotonic() > ends:
                break
        return total

    def pause(self, reason: str, by: str, *, queue: str = "", task: str = "") -> Steps[bool]:
        """Have claims lease no jobs of a queue or a task. Returns whether it was not paused."""
        more = "".join(f" {key}={quote(value, safe='')}" for key, value in (("by", by), ("reason", reason)))
        words = (_pausable(queue, task), more, MAX_PAUSED, request(None), window())
        reply = yield Script("jobs/pause", self.keys.records, words)
        if reply < 0:
            raise LimitExceeded("paused queues and tasks", limit=MAX_PAUSED, actual=MAX_PAUSED + 1)
        return bool(reply)

    def resume(self, *, queue: str = "", task: str = "") -> Steps[bool]:
        """End a pause. Returns whether there was one."""
        bells = [self.keys.queue(queue).bell] if queue else []
        was_paused, more = False, True
        while more:
            words = (_pausable(queue, task), request(None), window())
            reply: int = yield Script("jobs/resume", [*self.keys.records, *bells], words)
            was_paused, more = was_paused or bool(reply & 1), bool(reply & 2)
        return was_paused

    def paused(self) -> Steps[list[Paused]]:
        """What is paused, the earliest first."""
        return parse_paused((yield self.paused_call()))

    def paused_call(self) -> Command:
        """The call of `paused`, to be sent with others."""
        return Command("HGETALL", self.keys.paused, reads=True)

    def set_limit(self, permit: str, limit: int | None) -> Steps[None]:
        """Set how many jobs may hold a permit, whatever they say themselves; None ends that."""
        words = (_permit(permit), "" if limit is None else limit)
        yield Script("jobs/limit", self.keys.records, words)

    def permit(self, permit: str) -> Steps[tuple[int | None, int]]:
        """The limit of a permit that `set_limit` has set, or None; and how many jobs hold the permit."""
        name = _permit(permit)
        limit, held = yield [
            Command("HGET", self.keys.limits, name, reads=True),
            Command("ZLEXCOUNT", self.keys.held, f"[{name} ", f"({name}!", reads=True),
        ]
        return None if limit is None else int(limit), held

    def permits(self, count: int) -> Steps[list[tuple[str, int, int]]]:
        """Some of the permits whose limit `set_limit` has set, `count` at most: the name of each, its limit,
        and how many jobs hold it."""
        _, flat = yield Command("HSCAN", self.keys.limits, 0, "COUNT", count, reads=True)
        found = [(name.decode(), int(limit)) for name, limit in batched(flat[: 2 * count], 2)]
        held = (
            []
            if not found
            else (
                yield [
                    Command("ZLEXCOUNT", self.keys.held, f"[{name} ", f"({name}!", reads=True)
                    for name, _ in found
                ]
            )
        )
        return [
            (unquote(name.removeprefix("permit:")), limit, number)
            for (name, limit), number in zip(found, held, strict=True)
        ]

    def beat(
        self, worker: str, *, consumed: bool, started: int, running: int, done: int, ended: Mapping[str, int]
    ) -> Steps[int]:
        """Store the heartbeat of a worker; `ended`: by queue that it serves, the jobs that ended there for
        good. Returns the server's clock (ms)."""
        words: list[Argument] = [worker, int(consumed), started, running, done, HEARTBEAT_TIMEOUT]
        for queue, number in ended.items():
            words += (encoded(queue), number)
        return int((yield Script("jobs/workers_beat", [self.keys.workers], words)))

    def remove_worker(self, worker: str) -> Steps[None]:
        """Remove the heartbeat of a worker that ends."""
        yield Command("HDEL", self.keys.workers, worker)

    def _limits(self) -> tuple[str, ...]:
        """The limits of the slot, as the arguments of a script: see limits_at in _leases.lua."""
        settings = conf.current()
        if self._known_limits[0] is not settings:
            limits = settings.JOB_MAX_DEAD, _dead_ttl(), self._max_lost(), *self._result_limits
            self._known_limits = settings, tuple(map(str, limits))
        return self._known_limits[1]

    def result_age(self) -> int:
        """How long the result of a dead job is kept: ms."""
        return max(_dead_ttl(), self._result_limits[1])

    def _max_lost(self) -> int:
        return conf.current().JOB_MAX_LOST if self.counts_lost else 0


def _dead_ttl() -> int:
    """How long a dead job is kept: ms."""
    return int(conf.current().JOB_DEAD_TTL * 1000)


def check_attempts(value: int, what: str) -> int:
    """`value`, if a job may have so many attempts."""
    return integer(value, what, minimum=1, maximum=MAX_ATTEMPTS)


def check_pause(reason: str, by: str) -> tuple[str, str]:
    """Both texts, if they may be stored with a pause."""
    return text(reason, "reason", limit=MAX_PAUSE_BYTES), text(by, "by", limit=MAX_PAUSE_BYTES)


def new_token() -> str:
    """A token of new leases."""
    return os.urandom(6).hex()


def pages(jobs: Sequence[T], payload: Callable[[T], str]) -> Iterator[Sequence[T]]:
    """Group jobs into pages, in their order. `payload` returns the payload of a job.

    >>> large = "x" * 600_000
    >>> [len(page) for page in pages([large, large], str)]
    [1, 1]
    >>> [len(page) for page in pages([large, large, "x"], str)]
    [1, 2]
    """
    if len(jobs) == 1:
        yield jobs
        return
    page: list[T] = []
    size = 0
    for job in jobs:
        text = payload(job)
        added = len(text) if text.isascii() else len(text.encode())
        if page and (len(page) == PAGE or size + added > PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(job)
        size += added
    if page:
        yield page


def parse_state(raw: bytes) -> State:
    """The state in a reply."""
    found = _STATE.findall(raw.decode())
    if not found:
        raise ValueError(f"The state of a job has another format: {raw!r}")
    (
        status, priority, attempts, max_attempts, pushed, moment,
        fence, token, first, last, workers, lost, awaited, cancel, apart, blocked, more, unique,
    ) = found[0]  # fmt: skip
    started = int(first) if first else 0
    return State(
        status,
        int(priority) if priority else 0,
        int(attempts),
        int(lost) if lost else 0,
        int(max_attempts),
        int(fence) if fence else 0,
        token or "-",
        int(pushed),
        started,
        int(last) if last else started,
        int(moment),
        workers.split(",") if workers else [],
        awaited == "1",
        bool(cancel),
        apart == "1",
        blocked,
        more,
        unique,
    )


def parse_record(raw: list[bytes]) -> JobRecord:
    """One job of a reply: id, payload, state, log."""
    job_id, payload, state, log = raw
    return JobRecord(job_id.decode(), payload, parse_state(state), log)


def lock_need(name: str) -> str:
    """A need, see _waiting.lua: one job at a time."""
    return f"lock:{quote(name, safe='')}"


def permit_need(name: str, limit: int) -> str:
    """A need: up to `limit` jobs at a time."""
    return f"{_permit(name)}/{limit}"


def _permit(name: str) -> str:
    """The name of a permit as it is stored."""
    return f"permit:{quote(name, safe='')}"


def rate_need(name: str, limit: int, period: int) -> str:
    """A need: up to `limit` leases in a period (ms)."""
    return f"rate:{quote(name, safe='')}/{limit}/{period}"


def lock_of(state: State) -> str:
    """The name of the lock that a job needs; empty: none."""
    found = re.search(r" needs=(?:\S*,)?lock:([^\s,]*)", state.more)
    return unquote(found[1]) if found else ""


def _pausable(queue: str, task: str) -> str:
    """A queue or a task, as the HASH `paused` has it."""
    return f"queue:{encoded(queue)}" if queue else f"task:{quote(task)}"


def parse_paused(flat: Sequence[bytes]) -> list[Paused]:
    """The HASH `paused`, the earliest first."""
    found = [_paused(which.decode(), fields.decode()) for which, fields in batched(flat, 2)]
    return sorted(found, key=lambda one: one.since)


def _paused(which: str, fields: str) -> Paused:
    kind, _, name = which.partition(":")
    found: Mapping[str, str] = dict(word.split("=", 1) for word in fields.split(" "))
    return Paused(
        queue=unquote(name) if kind == "queue" else "",
        task=unquote(name) if kind == "task" else "",
        reason=unquote(found["reason"]),
        by=unquote(found["by"]),
        since=to_datetime(int(found["since"])),
    )


def parse_claim(reply: list[Any], queues: Sequence[str]) -> Claimed:
    """The reply of jobs/claim.lua."""
    now, due_in, applied, found = reply
    jobs = []
    for at in range(0, len(found), 4):
        number, job_id, payload, raw = found[at : at + 4]
        state = parse_state(raw)
        lease = Lease(queues[int(number) - 1], job_id.decode(), state.fence, state.token)
        jobs.append(LeasedJob(lease, payload, state))
    return Claimed(now, None if due_in < 0 else due_in / 1000, [bool(flag) for flag in applied], jobs)


class _Registered(NamedTuple):
    """What this process has registered."""

    #: monotonic
    at: float
    #: ms by this process's clock: the registered moment
    until: float


#: by (using, key of the registry, queue)
_registered: dict[tuple[str, str, str], _Registered] = {}


def register_queue(using: str, registry: str, queue: str, delay: int | str = 0) -> Steps[None]:
    """Add a queue to a registry (a key) until a job is due, unless this process has done so recently. `delay`
    is that of the job: ms, or "@" and a moment in ms. The push before it has succeeded, so a failure is
    logged and not raised."""
    which, until = (using, registry, queue), _due(delay)
    known = _registered.get(which)
    if (
        known is not None
        and time.monotonic() - known.at < REGISTER_INTERVAL
        and until <= known.until + MAX_LATER
    ):
        return
    try:
        yield Script("common/register", [registry], [queue, delay])
    except (Unavailable, OutcomeUnknown) as error:
        logger.warning(
            "Registering queue %r for the poller failed, retrying at the next push: %s", queue, error
        )
    else:
        _registered[which] = _Registered(time.monotonic(), until)


def _due(delay: int | str) -> float:
    """When a job is due, in ms by this process's clock. That need not be exact: see MAX_LATER."""
    return float(delay[1:]) if isinstance(delay, str) else time.time() * 1000 + delay


def registered_queues(registry: str) -> Steps[list[str]]:
    """The names in a registry, the oldest registration first."""
    names, _ = yield from registrations(registry)
    return names


def registrations(registry: str) -> Steps[tuple[list[str], set[str]]]:
    """The names in a registry, the oldest registration first; and those whose registration is old."""
    clock, flat = yield [Clock(registry), Command("ZRANGE", registry, 0, -1, "WITHSCORES", reads=True)]
    latest = Clock.milliseconds(clock) - MAX_AGE
    moments = {name.decode(): float(moment) for name, moment in batched(flat, 2)}
    return list(moments), {name for name, moment in moments.items() if moment <= latest}


def check_registration(engine: Engine, queue: str, registry: str, name: str) -> Steps[None]:
    """Remove an old registration if the queue is empty; else renew it."""
    if (yield from engine.is_empty(queue)):
        yield Script("jobs/queues_forget", [registry], [name, MAX_AGE])
    else:
        yield Script("common/register", [registry], [name, 0])
