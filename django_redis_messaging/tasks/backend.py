"""The backend: Django's contract, on the lease engine."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from inspect import isclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage

from .. import conf
from ..core.batches import batched
from ..services.arguments import milliseconds
from ..services.jobs.engine import PAGE, Push
from ..services.jobs.values import moment
from . import records
from .commits import left_to_commit
from .compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from .options import OPTIONS, attempts, problems
from .queues import TaskQueues
from .results import RedisTaskResult
from .store import TaskStore
from .task import Call, RedisTask, Usual

#: the first character of every id: results may live in several slots one day
SHARD = "0"


@functools.lru_cache(maxsize=256)
def _store(alias: str, using: str, prefix: str) -> TaskStore:
    """The store of a backend while this is the prefix, which the store asks for itself."""
    return TaskStore(alias, using=using)


class RedisBackend(BaseTaskBackend):
    """Runs each task at least once and records it as done once: late workers have lost their lease."""

    task_class = RedisTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        #: in the order in which workers serve them
        self.queue_names = list(params.get("QUEUES", ["default"]))
        self.chosen = {**OPTIONS, **self.options}

    @property
    def store(self) -> TaskStore:
        """Where its jobs are. It is asked for anew each time, for the prefix may be a tenant's."""
        return _store(self.alias, self.chosen["USING"] or conf.alias(), conf.prefix())

    @property
    def found_queues(self) -> TaskQueues:
        """Its queues, where QUEUES is empty: any is allowed then."""
        return TaskQueues(self.alias, using=self.chosen["USING"])

    def serving(self) -> list[str]:
        """The queues there are."""
        return self.queue_names or self.found_queues.names()

    @property
    def result_ttl(self) -> int:
        """How long a result is kept: ms."""
        return milliseconds(self.chosen["RESULT_TTL"], "RESULT_TTL")

    def timeout(self, task: Task) -> float | None:
        """The seconds that an attempt at this task may take; None: any time."""
        seconds: float | Usual | None = getattr(task, "timeout", Usual.TIMEOUT)
        usual: float | None = self.chosen["TIMEOUT"]
        return usual if isinstance(seconds, Usual) else seconds

    def validate_task(self, task: Task) -> None:
        """Raises InvalidTask where it can't be run as it is."""
        super().validate_task(task)
        if isinstance(task, RedisTask):
            try:
                _check_fields(task)
            except (TypeError, ValueError) as error:
                raise InvalidTask(str(error)) from error

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Store a call of the task. It is there when this returns, unless it waits for a commit."""
        result, job = self._prepared(task, args, kwargs)
        send = partial(self._send, [(result, job)])
        if not left_to_commit(self._on_commit(task), send):
            send()
        return result

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """See enqueue(). It waits for transactions of its own thread only: not for one in which
        async_to_sync() was called."""
        result, job = self._prepared(task, args, kwargs)
        if not left_to_commit(self._on_commit(task), partial(self._send, [(result, job)])):
            _told(result, *await self.store.apush(task.queue_name, [job], self.result_ttl))
            await self._anote(task.queue_name)
            await task_enqueued.asend(type(self), task_result=result)
        return result

    def enqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """Store calls, in their order. After an error, those before it may be there."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in calls]
        send = partial(self._send, prepared)
        if not left_to_commit(self._on_commit(task), send):
            send()
        return [result for result, _ in prepared]

    async def aenqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """See enqueue_many()."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in calls]
        if not left_to_commit(self._on_commit(task), partial(self._send, prepared)):
            for page in batched(prepared, PAGE):
                pushed, _ = await self.store.apush(task.queue_name, [job for _, job in page], self.result_ttl)
                await self._anote(task.queue_name)
                for result, _ in page:
                    _told(result, pushed)
                    await task_enqueued.asend(type(self), task_result=result)
        return [result for result, _ in prepared]

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a task, as far as it has come; raises TaskResultDoesNotExist."""
        known = self.store.look(str(result_id))
        if known is None:
            raise TaskResultDoesNotExist(result_id)
        return records.result(self.alias, known)

    async def aget_result(self, result_id: str) -> TaskResult:
        """See get_result()."""
        known = await self.store.alook(str(result_id))
        if known is None:
            raise TaskResultDoesNotExist(result_id)
        return records.result(self.alias, known)

    def cancel(self, queue_name: str, result_id: str) -> bool:
        """Take a task back that has not begun: its result is FAILED then."""
        return self.store.cancel(queue_name, result_id, self.result_ttl, records.CANCELLED)

    async def acancel(self, queue_name: str, result_id: str) -> bool:
        """See cancel()."""
        return await self.store.acancel(queue_name, result_id, self.result_ttl, records.CANCELLED)

    def reschedule(self, queue_name: str, result_id: str, run_after: datetime) -> bool:
        """Let a task that has not begun run at another moment."""
        when = _at(run_after)
        return self.store.reschedule(queue_name, result_id, when, records.moved(run_after))

    async def areschedule(self, queue_name: str, result_id: str, run_after: datetime) -> bool:
        """See reschedule()."""
        when = _at(run_after)
        return await self.store.areschedule(queue_name, result_id, when, records.moved(run_after))

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """What is wrong with its settings."""
        return list(problems(self.alias, self.options))

    def _on_commit(self, task: Task) -> bool | str:
        chosen = getattr(task, "on_commit", None)
        setting: bool | str = self.chosen["ENQUEUE_ON_COMMIT"]
        return setting if chosen is None else chosen

    def _prepared(
        self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[TaskResult, Push]:
        """The result and the job of a call; raises before anything is sent."""
        self.validate_task(task)
        result = RedisTaskResult(
            task=task,
            id=SHARD + os.urandom(16).hex()[1:],
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        most = getattr(task, "max_attempts", None) or self.chosen["MAX_ATTEMPTS"]
        key = task.unique_key(result.args, result.kwargs) if isinstance(task, RedisTask) else ""
        return result, Push(
            id=result.id,
            payload=records.payload(task, result.args, result.kwargs),
            wait=0 if task.run_after is None else _at(task.run_after),
            priority=int(task.priority),
            most=attempts(most or conf.current().JOB_MAX_ATTEMPTS, "MAX_ATTEMPTS"),
            unique=key,
        )

    async def _anote(self, queue: str) -> None:
        if not self.queue_names:
            await self.found_queues.anote(queue)

    def _send(self, prepared: Sequence[tuple[TaskResult, Push]]) -> None:
        for page in batched(prepared, PAGE):
            queue = page[0][0].task.queue_name
            pushed, _ = self.store.push(queue, [job for _, job in page], self.result_ttl)
            if not self.queue_names:
                self.found_queues.note(queue)
            for result, _ in page:
                _told(result, pushed)
                task_enqueued.send(type(self), task_result=result)


def _check_fields(task: RedisTask) -> None:
    if task.max_attempts is not None:
        attempts(task.max_attempts, "max_attempts")
    if task.timeout is not None and not isinstance(task.timeout, Usual):
        milliseconds(task.timeout, "timeout", least=1)
    kinds = task.retry_on or ()
    if not isinstance(kinds, tuple) or not all(
        isclass(kind) and issubclass(kind, BaseException) for kind in kinds
    ):
        raise TypeError("retry_on must be a tuple of exceptions.")


def _told(result: TaskResult, pushed: int, _: object = None) -> None:
    object.__setattr__(result, "enqueued_at", moment(pushed))


def _at(run_after: datetime) -> str:
    """A moment as the engine takes it: in ms, rounded up, so never early."""
    if not isinstance(run_after, datetime):
        raise TypeError(f"run_after must be a datetime, not {type(run_after).__name__}.")
    if settings.USE_TZ and run_after.tzinfo is None:
        raise ValueError("run_after is naive: give it a time zone, as django.utils.timezone.now() has.")
    return f"@{max(math.ceil(run_after.timestamp() * 1000), 0)}"
