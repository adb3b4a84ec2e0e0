"""Ids and payloads of a delay queue, and its jobs as they are stored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from ... import conf
from ...core import payloads
from ...errors import LimitExceeded
from ..moments import to_datetime
from .leases import JobRecord, LeasedJob
from .values import DeadJob, Job

#: bytes of the reason with which a job fails
MAX_REASON_BYTES = 8192


def new_ids(request_id: str | None, count: int) -> list[str]:
    """New ids; the same ones for a repeat of a request. Ascending: jobs that become due in the same ms are
    delivered in the order of their ids."""
    digest = os.urandom(9) if request_id is None else hashlib.sha256(request_id.encode()).digest()[:9]
    base = digest.hex()
    return [f"{base}{number:06x}" for number in range(count)]


def encode(data: Any) -> str:
    """A payload as it is stored; LimitExceeded if it is too large."""
    encoded = payloads.dumps(data, "data")
    limit = conf.current().JOB_MAX_BYTES
    if len(encoded) > limit or len(encoded.encode()) > limit:
        raise LimitExceeded(
            "a job's payload (bytes)", limit=limit, actual=len(encoded.encode()), setting="JOB_MAX_BYTES"
        )
    return encoded


def failure_line(reason: str) -> str:
    """The line of the log for a job that failed with this reason."""
    return "F" + payloads.string(payloads.text(reason, "reason", limit=MAX_REASON_BYTES))


def decode_jobs(found: Sequence[LeasedJob], queue: str) -> list[Job]:
    """The jobs of a claim."""
    data = payloads.loads_all([one.payload for one in found])
    return [
        Job(
            id=one.lease.id,
            data=value,
            attempts=one.state.attempts,
            fence=one.lease.fence,
            due_at=to_datetime(one.state.moment),
            queue=queue,
            token=one.lease.token,
        )
        for one, value in zip(found, data, strict=True)
    ]


def decode_dead(found: Sequence[JobRecord]) -> list[DeadJob]:
    """Dead jobs, from their records."""
    data = payloads.loads_all([one.payload for one in found])
    return [
        DeadJob(one.id, value, one.state.attempts, _reason(one.log), to_datetime(one.state.moment))
        for one, value in zip(found, data, strict=True)
    ]


def _reason(log: bytes) -> str:
    """Why a job is dead: the last line of its log, in words."""
    line = log.rpartition(b"\n")[2].decode()
    if line.startswith("L"):
        return f"The lease expired in attempt {line[1:]}."
    return str(payloads.loads_all([line[1:].encode()])[0]) if line.startswith("F") else ""
