"""Results: Django's, and what can still be done about a task that has not begun."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from .compat import TaskResult, task_backends

if TYPE_CHECKING:
    from .backend import RedisBackend

#: what a refresh brings: all that may change, a task's moment among it
_CHANGING = (
    "task",
    "status",
    "enqueued_at",
    "started_at",
    "finished_at",
    "last_attempted_at",
    "errors",
    "worker_ids",
    "_return_value",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTaskResult(TaskResult):
    """What enqueueing returns, and whoever asks for a result by its id."""

    def refresh(self) -> None:
        """Bring it up to date."""
        self._take(self._backend.get_result(self.id))

    async def arefresh(self) -> None:
        """See refresh()."""
        self._take(await self._backend.aget_result(self.id))

    def cancel(self) -> bool:
        """Take the task back, if it has not begun: its result is FAILED then."""
        return self._backend.cancel(self.task.queue_name, self.id)

    async def acancel(self) -> bool:
        """See cancel()."""
        return await self._backend.acancel(self.task.queue_name, self.id)

    def reschedule(self, run_after: datetime) -> bool:
        """Let the task run at another moment, if it has not begun."""
        return self._moved(run_after, self._backend.reschedule(self.task.queue_name, self.id, run_after))

    async def areschedule(self, run_after: datetime) -> bool:
        """See reschedule()."""
        return self._moved(
            run_after, await self._backend.areschedule(self.task.queue_name, self.id, run_after)
        )

    @property
    def _backend(self) -> RedisBackend:
        backend: RedisBackend = task_backends[self.backend]
        return backend

    def _take(self, fresh: TaskResult) -> None:
        for name in _CHANGING:
            object.__setattr__(self, name, getattr(fresh, name))

    def _moved(self, run_after: datetime, done: bool) -> bool:
        if done:
            object.__setattr__(self, "task", replace(self.task, run_after=run_after))
        return done
