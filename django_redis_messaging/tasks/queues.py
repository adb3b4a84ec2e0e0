"""The queues of a backend that has no list of them, since any is allowed."""

from __future__ import annotations

from ..core.operations import Steps
from ..services.jobs.engine import Claimed, Engine
from ..services.jobs.registry import Queues


class TaskQueues(Queues):
    """Those that something was enqueued to."""

    def __init__(self, alias: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._engine = Engine(self._prefix, "tasks", alias)

    @property
    def _key(self) -> str:
        return self._engine.keys.queues

    def _swept(self, name: str) -> Steps[Claimed]:
        return self._engine.claim([name], 0, 0)
