"""Results: Django's, and methods to cancel or reschedule a task that has not started."""

from __future__ import annotations

import hashlib
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


def follow_up_id(result_id: str) -> str:
    """The id of the call that follows a call: the same one whenever it is computed."""
    return result_id[0] + hashlib.sha256(result_id.encode()).hexdigest()[:31]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTaskResult(TaskResult):
    """What enqueue() and get_result() return."""

    @property
    def then_id(self) -> str | None:
        """The id of the call of the task `then`, which may not be enqueued yet; None if there is no such
        task."""
        return None if getattr(self.task, "then", None) is None else follow_up_id(self.id)

    def refresh(self) -> None:
        """Read the current state."""
        self._update(self._backend.get_result(self.id))

    async def arefresh(self) -> None:
        """See refresh()."""
        self._update(await self._backend.aget_result(self.id))

    def cancel(self) -> bool:
        """Cancel the task if it has not started: its result is FAILED then."""
        return self._backend.cancel(self.task, self.id)

    async def acancel(self) -> bool:
        """See cancel()."""
        return await self._backend.acancel(self.task, self.id)

    def reschedule(self, run_after: datetime) -> bool:
        """Change when the task runs, if it has not started."""
        return self._rescheduled(run_after, self._backend.reschedule(self.task, self.id, run_after))

    async def areschedule(self, run_after: datetime) -> bool:
        """See reschedule()."""
        return self._rescheduled(run_after, await self._backend.areschedule(self.task, self.id, run_after))

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
