"""What a backend says to Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..services.jobs.engine import Claimed, Engine, Known, Push, Verdict

#: ms of silence after which a worker is not counted any more
SILENT = 120_000


class TaskStore(Service):
    """The jobs of one backend: its queues share a slot, so that results and unique keys are one with them."""

    def __init__(self, alias: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._engine = Engine(self._prefix, "tasks", alias)

    def bells(self, queues: Sequence[str]) -> list[str]:
        """The keys that whoever waits for these queues listens to."""
        return [self._engine.place(queue).bell for queue in queues]

    @operation
    def push(
        self, queue: str, jobs: Sequence[Push], request: str | None = None
    ) -> Steps[tuple[int, list[str]]]:
        """Add jobs; when (ms), and of each with a unique key the id that counts."""
        return (yield from self._engine.push(queue, os.urandom(8).hex(), jobs))

    apush = asynchronous(push)

    @operation
    def claim(
        self,
        queues: Sequence[str],
        count: int,
        lease: int,
        *,
        worker: str = "-",
        verdicts: Sequence[Verdict] = (),
    ) -> Steps[Claimed]:
        """Settle, do what is due, take what is next."""
        return (yield from self._engine.claim(queues, count, lease, worker=worker, verdicts=verdicts))

    aclaim = asynchronous(claim)

    @operation
    def settle(self, verdict: Verdict) -> Steps[bool]:
        """Say what became of a job."""
        return (yield from self._engine.settle(verdict))

    asettle = asynchronous(settle)

    @operation
    def extend(self, leases: Sequence[tuple[str, str, int, str]], lease: int) -> Steps[list[bool]]:
        """Let leases (queue, id, fence, token) end later; of each, whether it is still the caller's."""
        return (yield from self._engine.extend(leases, lease))

    aextend = asynchronous(extend)

    @operation
    def look(self, result_id: str) -> Steps[Known | None]:
        """What is known of a job."""
        return (yield from self._engine.look(result_id))

    alook = asynchronous(look)

    @operation
    def cancel(self, queue: str, result_id: str, ttl: int, line: str) -> Steps[bool]:
        """Take out a job that has not begun."""
        return (yield from self._engine.cancel(queue, result_id, ttl=ttl, line=line))

    acancel = asynchronous(cancel)

    @operation
    def reschedule(self, queue: str, result_id: str, wait: int | str) -> Steps[bool]:
        """Give a job that waits another moment."""
        return (yield from self._engine.reschedule(queue, result_id, wait))

    areschedule = asynchronous(reschedule)

    @operation
    def stats(self, queue: str) -> Steps[list[int]]:
        """Ready, delayed, leased, dead, and the ms that the oldest ready one has been due for, or -1."""
        return (yield from self._engine.stats(queue))

    astats = asynchronous(stats)

    @operation
    def dead(self, queue: str, limit: int) -> Steps[list[Known]]:
        """Dead jobs, the latest first."""
        return (yield from self._engine.dead(queue, limit))

    adead = asynchronous(dead)

    @operation
    def redrive(self, queue: str, ids: Sequence[str] | None = None) -> Steps[int]:
        """Put dead jobs back, these or all."""
        return (yield from self._engine.redrive(queue, ids))

    aredrive = asynchronous(redrive)

    @operation
    def purge(self, queue: str) -> Steps[int]:
        """Remove all jobs of a queue."""
        return (yield from self._engine.purge(queue))

    apurge = asynchronous(purge)

    @operation
    def beat(self, worker: str, *, consumed: bool, began: int, running: int, done: int) -> Steps[int]:
        """Note that a worker lives; the server's clock (ms)."""
        now = yield Script(
            "workers_beat", [self._engine.keys.workers], (worker, int(consumed), began, running, done, SILENT)
        )
        return int(now)

    abeat = asynchronous(beat)

    @operation
    def leave(self, worker: str) -> Steps[None]:
        """Note that a worker has ended."""
        yield Command("HDEL", self._engine.keys.workers, worker)

    aleave = asynchronous(leave)
