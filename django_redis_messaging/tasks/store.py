"""What a backend says to Redis."""

from __future__ import annotations

from collections.abc import Sequence

from .. import conf
from ..core.operations import Steps, asynchronous, operation
from ..services.jobs.engine import Known, Push
from ..services.jobs.store import LeaseStore
from ..services.requests import request, window


class TaskStore(LeaseStore):
    """The jobs of one backend: its queues share a slot, so that results and unique keys are one with them."""

    def __init__(self, alias: str, *, using: str | None = None) -> None:
        super().__init__("tasks", alias, using=using)

    @operation
    def push(self, queue: str, jobs: Sequence[Push], ttl: int = 0) -> Steps[tuple[int, list[str]]]:
        """Add jobs of new ids, whose results are kept for `ttl` ms; when (ms), and of each with a unique
        key, or of one alone, the id that counts."""
        kept = min(ttl, int(conf.current().JOB_DEAD_TTL * 1000))
        return (yield from self._engine.push(queue, "" if kept >= window() else request(None), jobs))

    apush = asynchronous(push)

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
    def reschedule(self, queue: str, result_id: str, wait: int | str, line: str) -> Steps[bool]:
        """Give a job that waits another moment."""
        return (yield from self._engine.reschedule(queue, result_id, wait, line))

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
