"""A site whose jobs, workers and locks are in any state that a test wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from django_redis_messaging import Lock, RateLimit, Thing
from django_redis_messaging.services.common.leases import running_task
from django_redis_messaging.services.jobs.engine import Lease, Outcome, Push
from tests.support.engines import Performed, tasks_of
from tests.support.workers import backend

#: ms: longer than any test
LONG = 3_600_000
#: in the arguments of each call, and in no explanation
SECRET = "swordfish"
TASK = "shop.tasks.pack"


class Site:
    """The default task backend."""

    def __init__(self) -> None:
        self.engine: Performed = tasks_of(backend())
        self.leases: dict[str, Lease] = {}
        self.limits: list[RateLimit] = []

    def declare(self, name: str, limit: str) -> RateLimit:
        """A rate limit that the process knows as long as the site."""
        self.limits.append(RateLimit(name, limit))
        return self.limits[-1]

    def push(
        self,
        job_id: str,
        *needs: str,
        queue: str = "default",
        delay: int = 0,
        attempts: int = 3,
        more: str = "",
    ) -> Thing:
        """Enqueue a call."""
        more = f"task={TASK}" + (f" needs={','.join(needs)}" if needs else "") + more
        payload = json.dumps([TASK, queue, None, [SECRET], {"password": SECRET}, {}], separators=(",", ":"))
        self.engine.push(queue, "", [Push(job_id, payload, delay, 0, attempts, "", more)])
        return task(job_id)

    def claim(
        self, queue: str = "default", *, worker: str = "w1", count: int = 100, lease: int = LONG
    ) -> None:
        """Lease what can be leased."""
        claimed = self.engine.claim([queue], count, lease, worker=worker)
        self.leases |= {job.lease.id: job.lease for job in claimed.jobs}

    def run(self, job_id: str, *needs: str, **options: Any) -> Thing:
        """Enqueue a call and start it."""
        started = self.push(job_id, *needs)
        self.claim(**options)
        return started

    def end(self, job_id: str, outcome: Outcome = Outcome.DONE, ms: int = LONG, line: str = "") -> None:
        """Settle a lease."""
        assert self.engine.settle(self.leases.pop(job_id).settlement(outcome, ms, line))

    def beat(self, worker: str = "w1", *queues: str, running: int = 0, ended: int = 0) -> None:
        """Store the heartbeat of a worker."""
        served = dict.fromkeys(queues or ("default", "other"), ended)
        self.engine.beat(worker, consumed=True, started=0, running=running, done=0, ended=served)


def task(job_id: str) -> Thing:
    return Thing("task", job_id, "default")


def inside(job_id: str, function: Callable[[], Any]) -> Any:
    """Call a function as a task does."""

    def call() -> Any:
        running_task.set(("default", job_id))
        return function()

    return copy_context().run(call)


def build_chain(site: Site) -> None:
    """Ten tasks, each of which waits for a lock that the next one holds."""
    for number in range(9):
        lock_inside(f"t{number + 1}", f"l{number}")
        site.push(f"t{number}", f"lock:l{number}")


def lock_inside(job_id: str, name: str, **options: Any) -> None:
    """A task acquires a lock and keeps it."""
    lock = Lock(name, **{"timeout": 3600, **options})
    assert inside(job_id, lambda: lock.acquire(blocking=False))
