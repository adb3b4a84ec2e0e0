"""The lease engine: the steps that delay queues and tasks are made of.

A job is in one place at a time: it waits in a queue (ready, or delayed until it is due), is leased, is
dead, or has ended and is kept as a result. Whoever claims a job gets a lease with a fence and a token;
whatever is said of it later carries both and is refused when they are stale. A lease that ran out is put
back by the next claim of anybody.

The design is that of visibility timeouts (Amazon SQS) with counted attempts, on sorted sets as in "Redis in
Action", chapter 6; one script does what a claim needs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import conf
from ...core.batches import batched
from ...core.keys import JobKeys, QueueKeys
from ...core.operations import Script, Steps
from ...core.steps import Argument
from ...errors import LimitExceeded
from ..requests import request, settled, window
from .values import State, state

#: what a queue that has its slot to itself is called there
ONLY = "jobs"
#: jobs that one script pushes, puts back or removes at most
PAGE = 200


class Push(NamedTuple):
    """A job to be pushed."""

    id: str
    payload: str
    #: ms to wait, or "@" and a moment in ms
    wait: int | str
    priority: int
    most: int
    unique: str = ""


class Verdict(NamedTuple):
    """What a holder says of its job."""

    queue: str
    id: str
    fence: int
    token: str
    #: done, again, dead or back
    what: str
    #: ms to keep the result, or to wait before the next attempt
    value: int = 0
    #: what the attempt led to: a line, opaque to the engine
    line: str = ""


class Held(NamedTuple):
    """A job that was claimed."""

    queue: str
    id: str
    payload: bytes
    state: State

    @property
    def lease(self) -> tuple[str, str, int, str]:
        """As `Engine.extend` takes it."""
        return self.queue, self.id, self.state.fence, self.state.token

    def verdict(self, what: str, value: int = 0, line: str = "") -> Verdict:
        """What its holder says of it."""
        return Verdict(*self.lease, what, value, line)


class Claimed(NamedTuple):
    """What a claim brought."""

    #: the server's clock: ms
    now: int
    #: ms until something will be due; None where nothing is
    due_in: int | None
    #: of each settled job, whether the lease was still the caller's
    settled: list[bool]
    jobs: list[Held]


class Known(NamedTuple):
    """What is known of a job."""

    id: str
    payload: bytes
    state: State
    outcomes: bytes


class Engine:
    """The jobs of one slot: one queue, or several that share their records."""

    def __init__(self, prefix: str, kind: str, value: str) -> None:
        self.keys = JobKeys(prefix, kind, value)

    def push(self, queue: str, request: str, jobs: Sequence[Push]) -> Steps[tuple[int, list[str]]]:
        """Add jobs. Returns when (ms), and of each with a unique key, or of one alone, the id that counts.
        `request` may be empty where the ids are new, and their records outlive all repeats."""
        settings, keys, place = conf.current(), self.keys, self.keys.queue(queue)
        reply = yield Script(
            "jobs_push",
            (keys.jobs, keys.states, keys.outcomes, keys.uniques, keys.aliases, *keys.requests, *place.all),
            (
                request,
                settings.REQUEST_WINDOW * 1000,
                settings.JOB_MAX_WAITING,
                *(word for job in jobs for word in job),
            ),
        )
        if isinstance(reply, int):
            limit = settings.JOB_MAX_WAITING
            raise LimitExceeded("jobs waiting in a queue (JOB_MAX_WAITING)", limit=limit, actual=reply)
        pushed, *ids = reply.decode().split("\0")
        return int(pushed), ids

    def claim(
        self,
        queues: Sequence[str],
        count: int,
        lease: int,
        *,
        worker: str = "-",
        age: int = 0,
        verdicts: Sequence[Verdict] = (),
    ) -> Steps[Claimed]:
        """Settle `verdicts`, do what is due by time, and lease up to `count` jobs for `lease` ms (0: they
        are given away at once). A lost reply is not asked for again: what it held comes back by its lease."""
        numbers = {queue: number for number, queue in enumerate(queues, 1)}
        said: list[Argument] = []
        for one in verdicts:
            said += [numbers[one.queue], one.id, one.fence, one.token, one.what, one.value, one.line]
        reply = yield Script(
            "jobs_claim",
            (*self.keys.records, *(key for queue in queues for key in self.keys.queue(queue).all)),
            (os.urandom(6).hex(), worker, lease, count, age, *_grave(), *said),
            once=True,
        )
        now, due_in = reply[:2]
        found: list[Any] = reply[2 + len(verdicts) :]
        jobs = [
            Held(str(queues[found[at] - 1]), found[at + 1].decode(), found[at + 2], state(found[at + 3]))
            for at in range(0, len(found), 4)
        ]
        return Claimed(
            now, None if due_in < 0 else due_in, [bool(flag) for flag in reply[2 : 2 + len(verdicts)]], jobs
        )

    def settle(self, verdict: Verdict) -> Steps[bool | None]:
        """Say what became of a job; False where the lease is not the caller's any more, None where a lost
        reply leaves that open."""
        place = self.keys.queue(verdict.queue)
        keys, words = (*self.keys.records, *place.all), (*_grave(), *verdict[1:])
        return settled((yield Script("jobs_settle", keys, words, settles=True)))

    def extend(self, leases: Sequence[tuple[str, str, int, str]], lease: int) -> Steps[list[bool]]:
        """Let leases (queue, id, fence, token) end `lease` ms from now, if that is later; of each, whether
        it is still the caller's."""
        places = [self.keys.queue(queue).leased for queue, *_ in leases]
        words: list[Argument] = []
        for _, job_id, fence, token in leases:
            words += [job_id, fence, token]
        reply = yield Script("jobs_extend", (self.keys.states, *places), (lease, *words))
        return [bool(flag) for flag in reply]

    def cancel(self, queue: str, job_id: str, *, ttl: int = 0, line: str = "") -> Steps[bool]:
        """Take out a job that has not begun; with a `ttl` (ms), that is its result."""
        place = self.keys.queue(queue)
        keys = (*self.keys.records, *place.all, *self.keys.requests)
        reply = yield Script("jobs_cancel", keys, (job_id, ttl, line, request(None), window()))
        return bool(reply)

    def reschedule(self, queue: str, job_id: str, wait: int | str, line: str = "") -> Steps[bool]:
        """Give a job that waits another moment."""
        place = self.keys.queue(queue)
        reply = yield Script("jobs_reschedule", (*self.keys.records, *place.all), (job_id, wait, line))
        return bool(reply)

    def look(self, job_id: str) -> Steps[Known | None]:
        """What is known of a job."""
        keys = self.keys
        reply = yield Script(
            "jobs_look",
            (keys.jobs, keys.states, keys.outcomes, keys.finished, keys.aliases),
            (job_id, _grave()[1]),
        )
        return _known(reply)[0] if reply else None

    def stats(self, queue: str) -> Steps[list[int]]:
        """Ready, delayed, leased, dead, and the ms that the oldest ready one has been due for, or -1."""
        keys = (self.keys.states, *self.keys.queue(queue).all)
        reply: list[int] = yield Script("jobs_stats", keys, (_grave()[1],))
        return reply

    def dead(self, queue: str, limit: int) -> Steps[list[Known]]:
        """Dead jobs, the latest first."""
        keys = self.keys
        reply = yield Script(
            "jobs_dead",
            (keys.jobs, keys.states, keys.outcomes, keys.queue(queue).dead),
            (limit, _grave()[1]),
        )
        return _known(reply)

    def redrive(self, queue: str, job_ids: Sequence[str] | None) -> Steps[int]:
        """Put dead jobs back, these or all that are dead by now; returns how many."""
        keys = (self.keys.states, self.keys.uniques, *self.keys.queue(queue).all, *self.keys.requests)
        age: int = _grave()[1]
        total: int = 0
        if job_ids is not None:
            for page in batched(job_ids, PAGE):
                done, _ = yield Script("jobs_redrive", keys, (age, 0, "", request(None), window(), *page))
                total += done
            return total
        rest: Argument = ""
        while True:
            done, rest = yield Script("jobs_redrive", keys, (age, PAGE, rest, request(None), window()))
            total += done
            if not rest:
                return total

    def purge(self, queue: str) -> Steps[int]:
        """Remove all jobs of a queue; returns how many."""
        total = 0
        keys = (*self.keys.records, *self.keys.queue(queue).all, *self.keys.requests)
        while done := (yield Script("jobs_purge", keys, (PAGE, request(None), window()))):
            total += done
        return total

    def place(self, queue: str) -> QueueKeys:
        """The keys of one queue."""
        return self.keys.queue(queue)


def _grave() -> tuple[int, int]:
    settings = conf.current()
    return settings.JOB_MAX_DEAD, int(settings.JOB_DEAD_TTL * 1000)


def _known(reply: list[Any]) -> list[Known]:
    return [
        Known(reply[at].decode(), reply[at + 1], state(reply[at + 2]), reply[at + 3])
        for at in range(0, len(reply), 4)
    ]
