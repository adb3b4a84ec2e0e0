"""What a queue returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


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


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many jobs are in each state, as if everything due by time had been done."""

    ready: int
    delayed: int
    leased: int
    dead: int
    #: seconds since the oldest ready job became due; None if no job is ready
    oldest_age: float | None
