"""What a queue hands out, and the forms in which it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...core import payloads


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was popped. With a lease, ack, retry, release or fail it before that ends."""

    id: str
    #: what was pushed
    data: Any
    #: attempts begun, this one included
    attempts: int
    #: grows with every lease of this job: a resource that refuses lower ones is safe from late holders
    fence: int
    #: when it became due
    due_at: datetime
    #: name of its queue
    queue: str
    #: together with the fence, this says whose the lease is
    token: str = field(repr=False, default="")


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that was buried: it failed for good, or had all its attempts."""

    id: str
    data: Any
    attempts: int
    #: why, as far as anybody said
    reason: str
    buried_at: datetime


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many jobs are where. What is due by time counts as done, whether or not anybody did it yet."""

    ready: int
    delayed: int
    leased: int
    dead: int
    #: seconds that the oldest ready job has been due for; None where none is ready
    oldest_age: float | None


class State(NamedTuple):
    """A job's state, as lua/_states.lua writes it. Moments are ms, 0 where there was none."""

    status: str
    priority: int
    attempts: int
    most: int
    fence: int
    token: str
    pushed: int
    first: int
    last: int
    moment: int
    workers: list[str]
    unique: str


def state(raw: bytes) -> State:
    """The state in a reply."""
    parts = raw.decode().split(" ", 11)
    status, priority, attempts, most, fence, token, *moments, workers, unique = parts
    pushed, first, last, moment = map(int, moments)
    names = [] if workers == "-" else workers.split(",")
    numbers = int(priority), int(attempts), int(most), int(fence)
    return State(status, *numbers, token, pushed, first, last, moment, names, unique)


def moment(ms: int) -> datetime:
    """A moment of the server's clock."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def reason(outcomes: bytes) -> str:
    """Why a job is dead: the latest line of its outcomes, in words."""
    line = outcomes.rpartition(b"\n")[2].decode()
    if line.startswith("L"):
        return f"The lease ran out in attempt {line[1:]}."
    return str(payloads.loads_all([line[1:].encode()])[0]) if line.startswith("F") else ""
