"""Leases, their outcomes, and the records of jobs, as the lease engine's scripts write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ...core.steps import batched

#: status of a job that was claimed after two leases of it had expired, before its attempt is started
HELD = "h"


class Outcome(Enum):
    """What becomes of a leased job. The values are those of lua/_leases.lua."""

    #: the job has ended; its result may be kept for a while
    DONE = "done"
    #: the attempt failed: the job is requeued, or dead after its last attempt
    RETRY = "retry"
    #: the job is requeued, and the attempt doesn't count
    RELEASE = "release"
    #: the job is moved to the dead jobs
    DEAD = "dead"


class Lease(NamedTuple):
    """The right to work on a job until the lease ends. Fence and token identify it: a later lease of the same
    job has a greater fence and another token."""

    queue: str
    id: str
    fence: int
    token: str

    def settled(self, outcome: Outcome, ms: int = 0, line: str = "") -> Settlement:
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
    """A job's state: see lua/_records.lua. Moments are ms, 0 for never."""

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
    unique: str

    @property
    def failures(self) -> int:
        """The attempts that count towards `max_attempts`, the current one included."""
        return self.attempts - self.lost


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
    #: seconds until something is due; None where nothing is
    due_in: float | None
    #: for each settlement, whether it was applied; False where the lease was stale
    settled: list[bool]
    jobs: list[LeasedJob]


def parse_state(raw: bytes) -> State:
    """The state in a reply."""
    parts = raw.decode().split(" ", 13)
    if len(parts) < 14:  # as before `lost` and `awaited` were added
        parts[3:3], parts[-1:-1] = ["0"], ["0"]
    status, priority, attempts, lost, max_attempts, fence, token, *moments, workers, awaited, unique = parts
    pushed, first, last, moment = map(int, moments)
    names = [] if workers == "-" else workers.split(",")
    numbers = int(priority), int(attempts), int(lost), int(max_attempts), int(fence)
    return State(status, *numbers, token, pushed, first, last, moment, names, awaited == "1", unique)


def parse_record(raw: list[bytes]) -> JobRecord:
    """One job of a reply: id, payload, state, log."""
    job_id, payload, state, log = raw
    return JobRecord(job_id.decode(), payload, parse_state(state), log)


def parse_claim(reply: list[Any], queues: Sequence[str]) -> Claimed:
    """The reply of jobs_claim.lua."""
    now, due_in, settled, found = reply
    jobs = []
    for number, job_id, payload, raw in batched(found, 4):
        state, at = parse_state(raw), int(number) - 1
        lease = Lease(queues[at], job_id.decode(), state.fence, state.token)
        jobs.append(LeasedJob(lease, payload, state))
    return Claimed(now, None if due_in < 0 else due_in / 1000, [bool(flag) for flag in settled], jobs)
