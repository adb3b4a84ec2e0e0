"""The live workers of a slot, and what each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from ...core.commands import Script
from ...core.operations import Command, Steps
from ..common.arguments import to_datetime
from .engine import Engine, parse_state
from .heartbeats import Heartbeat, heartbeat_calls, parse_heartbeats

#: queues whose running jobs are read, and jobs of each
MAX_QUEUES, MAX_RUNNING = 100, 50
#: running jobs in all queues of one worker that are read
MAX_OF_ONE = 400
_NO_FILTERS = ("", "", "", 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTo:
    """A job that a worker runs."""

    id: str
    queue: str
    #: dotted name of its task; empty: it is not the call of a task
    task: str
    #: the number of this attempt, and how many there may be
    attempt: int
    max_attempts: int
    #: start of this attempt
    since: datetime
    #: when its lease ends, unless the worker extends it
    lease_ends_at: datetime
    #: whether it shall be cancelled
    is_cancelling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker or a listener, as of its latest heartbeat."""

    id: str
    host: str
    #: process id
    pid: str
    started_at: datetime
    #: the latest heartbeat
    beat_at: datetime
    #: seconds since then
    silent: float
    #: whether it claimed jobs since the heartbeat before, is running some, or has just started
    is_consuming: bool
    #: jobs that it was running, and that it has run
    running: int
    done: int
    #: queues that it serves
    queues: tuple[str, ...]
    #: what it runs, the earliest first; fewer than `running` if there is more than can be read
    jobs: list[LeasedTo]


def read_workers(engine: Engine, queues: Sequence[str]) -> Steps[list[WorkerInfo]]:
    """The live workers by their ids, in one round trip."""
    names = queues[:MAX_QUEUES]
    clock, flat, *pages = yield [*heartbeat_calls(engine.keys), *_running_calls(engine, names, MAX_RUNNING)]
    running = _by_worker(names, pages)
    found = (one for one in parse_heartbeats(clock, flat) if one.is_recent)
    return [_worker(one, running.get(one.id, [])) for one in sorted(found, key=lambda one: one.id)]


def read_worker(engine: Engine, worker: str) -> Steps[WorkerInfo | None]:
    """A worker, with jobs that it runs: of the first MAX_OF_ONE in its queues. None if it has ended, or if it
    has been silent and another one has sent a heartbeat since. Two round trips."""
    clock, flat = yield heartbeat_calls(engine.keys)
    found = next((one for one in parse_heartbeats(clock, flat) if one.id == worker), None)
    if found is None:
        return None
    names = list(found.rates)[:MAX_QUEUES]
    pages = yield _running_calls(engine, names, min(MAX_RUNNING, MAX_OF_ONE // max(len(names), 1)))
    return _worker(found, _by_worker(names, pages).get(worker, []))


def _running_calls(engine: Engine, queues: Sequence[str], limit: int) -> list[Command | Script]:
    """The calls that list running jobs of queues, up to a limit of each."""
    return [
        engine.list_call(name, "leased", ("", ""), limit, excerpt=0, filters=_NO_FILTERS) for name in queues
    ]


def _by_worker(queues: Sequence[str], pages: Sequence[Any]) -> dict[str, list[LeasedTo]]:
    """The jobs in the replies to these calls, by the id of their worker."""
    running: dict[str, list[LeasedTo]] = {}
    for name, (_, _, jobs) in zip(queues, pages, strict=True):
        for job in jobs:
            _add(running, name, job)
    return running


def _add(running: dict[str, list[LeasedTo]], queue: str, job: Sequence[Any]) -> None:
    """Add a job, as jobs/list.lua replies it, to those of its worker."""
    job_id, lease_ends, raw, *_ = job
    state = parse_state(raw)
    leased = LeasedTo(
        id=job_id.decode(),
        queue=queue,
        task=unquote(state.field("task")),
        attempt=state.attempts,
        max_attempts=state.max_attempts,
        since=to_datetime(state.last),
        lease_ends_at=to_datetime(lease_ends),
        is_cancelling=state.cancel,
    )
    running.setdefault(state.workers[-1] if state.workers else "", []).append(leased)


def _worker(heartbeat: Heartbeat, jobs: Sequence[LeasedTo]) -> WorkerInfo:
    """A worker with what it runs. Its id is host, process id, random."""
    worker = heartbeat.id
    host, pid, _ = worker.rsplit("-", 2) if worker.count("-") >= 2 else (worker, "", "")
    return WorkerInfo(
        id=worker,
        host=host,
        pid=pid,
        started_at=to_datetime(heartbeat.started),
        beat_at=to_datetime(heartbeat.beat),
        silent=heartbeat.silent,
        is_consuming=heartbeat.consumes,
        running=heartbeat.running,
        done=heartbeat.done,
        queues=tuple(heartbeat.rates),
        jobs=sorted(jobs, key=lambda one: one.since),
    )
