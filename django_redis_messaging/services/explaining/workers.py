"""What a worker runs, and whether it is alive."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from ...core.operations import Steps
from ..common.things import Thing
from ..jobs.engine import HEARTBEAT_TIMEOUT
from ..jobs.workers import LeasedTo, WorkerInfo, read_worker
from .explanation import Cause, make
from .sights import Backend, Sight, Subject, task_backend

#: running jobs that an explanation names
MAX_JOBS = 10


def worker_subject(thing: Thing) -> Subject:
    """A worker of a task backend. Raises InvalidArgument."""
    backend = task_backend(thing.where)
    return Subject(thing, backend.using, partial(_read_worker, backend, thing))


def _read_worker(backend: Backend, thing: Thing) -> Steps[Sight]:
    worker = yield from read_worker(backend.engine, thing.name)
    if worker is None:
        return Sight([make("unknown", thing)], exists=False)
    is_alive = worker.silent * 1000 <= HEARTBEAT_TIMEOUT
    now = worker.beat_at + timedelta(seconds=worker.silent)
    jobs = sorted(worker.jobs, key=lambda job: (job.since, job.id))[:MAX_JOBS]
    leased = [_leased(thing, job, now, is_alive=is_alive) for job in jobs]
    return Sight([*_state(thing, worker, is_alive=is_alive), *leased])


def _state(thing: Thing, worker: WorkerInfo, *, is_alive: bool) -> list[Cause]:
    """What is to say of the worker itself; nothing if jobs that it runs are known."""
    if not is_alive:
        return [make("worker_silent", thing, since=worker.beat_at, running=worker.running)]
    if not worker.is_consuming:
        return [make("not_consuming", thing)]
    if worker.jobs:
        return []
    if worker.running:
        return [make("worker_busy", thing, running=worker.running)]
    return [make("worker_idle", thing, queues=worker.queues)]


def _leased(thing: Thing, job: LeasedTo, now: datetime, *, is_alive: bool) -> Cause:
    """A job that the worker has started."""
    call = Thing("task", job.id, thing.where)
    params = {"worker": thing.name, "since": job.since, "lease_until": job.lease_ends_at}
    if job.lease_ends_at <= now:
        return make("lease_expired", call, **params)
    if not is_alive:
        return make("worker_lost", call, **params)
    return make("running", call, **params, attempt=job.attempt, max_attempts=job.max_attempts)
