"""The worker of tasks: the lease engine's, for the jobs of a backend."""

from __future__ import annotations

from collections.abc import Sequence

from ..services.jobs import lanes
from ..services.jobs.limits import USUAL, Limits
from .backend import RedisBackend
from .running import Runner

__all__ = ["Limits", "Worker"]


class Worker(lanes.Worker):
    """Runs the tasks of one backend until it is stopped."""

    def __init__(self, backend: RedisBackend, queues: Sequence[str], limits: Limits = USUAL) -> None:
        super().__init__(backend.store, queues, Runner(backend), limits)
