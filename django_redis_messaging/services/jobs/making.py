"""What a delay queue makes of its arguments and of replies: ids, payloads, jobs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from ... import conf
from ...core import payloads
from ...errors import LimitExceeded
from .engine import Held
from .values import Job, moment


def new_ids(request_id: str | None, count: int) -> list[str]:
    """New ids, the same ones for repeats of a request; ascending, as that is the order of jobs that become
    due in the same ms."""
    if request_id is None:
        drawn = os.urandom(9).hex()
    else:
        drawn = hashlib.sha256(request_id.encode()).hexdigest()[:18]
    return [f"{drawn}{number:06x}" for number in range(count)]


def payload(data: Any) -> str:
    """What is pushed, as it is stored."""
    encoded = payloads.dumps(data, "data")
    limit = conf.current().JOB_MAX_BYTES
    if len(encoded) > limit or len(encoded.encode()) > limit:
        raise LimitExceeded("a job's payload (JOB_MAX_BYTES)", limit=limit, actual=len(encoded.encode()))
    return encoded


def popped(held: Sequence[Held], queue: str) -> list[Job]:
    """The jobs that a claim brought."""
    data = payloads.loads_all([one.payload for one in held])
    return [
        Job(
            id=one.id,
            data=value,
            attempts=one.state.attempts,
            fence=one.state.fence,
            due_at=moment(one.state.moment),
            queue=queue,
            token=one.state.token,
        )
        for one, value in zip(held, data, strict=True)
    ]
