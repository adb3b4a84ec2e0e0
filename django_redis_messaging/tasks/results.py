"""Results: Django's, and methods to cancel or reschedule a task that has not started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from .compat import TaskResult
from .control import Control, control_of

#: fields that a refresh updates; `task` is among them since its run_after may change
_REFRESHED = (
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
    """What enqueue() and get_result() return."""

    def refresh(self) -> None:
        """Read the current state."""
        self._update(self._backend.get_result(self.id))

    async def arefresh(self) -> None:
        """See refresh()."""
        self._update(await self._backend.aget_result(self.id))

    def cancel(self) -> bool:
        """Cancel the task if it has not started: its result is FAILED then."""
        return self._backend.cancel(self.task.queue_name, self.id)

    async def acancel(self) -> bool:
        """See cancel()."""
        return await self._backend.acancel(self.task.queue_name, self.id)

    def reschedule(self, run_after: datetime) -> bool:
        """Change when the task runs, if it has not started."""
        return self._rescheduled(
            run_after, self._backend.reschedule(self.task.queue_name, self.id, run_after)
        )

    async def areschedule(self, run_after: datetime) -> bool:
        """See reschedule()."""
        return self._rescheduled(
            run_after, await self._backend.areschedule(self.task.queue_name, self.id, run_after)
        )

    @property
    def _backend(self) -> Control:
        return control_of(self.backend)

    def _update(self, fresh: TaskResult) -> None:
        for name in _REFRESHED:
            object.__setattr__(self, name, getattr(fresh, name))

    def _rescheduled(self, run_after: datetime, done: bool) -> bool:
        if done:
            object.__setattr__(self, "task", replace(self.task, run_after=run_after))
        return done
