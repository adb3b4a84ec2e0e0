"""The backend: Django's contract, on the lease engine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from inspect import isclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections, transaction

from .. import conf
from ..core.batches import batched
from ..services.arguments import milliseconds, whole
from ..services.jobs.engine import PAGE, Push
from ..services.jobs.values import moment
from . import records
from .compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from .store import TaskStore
from .task import Call, RedisTask

#: the first character of every id: results may live in several slots one day
SHARD = "0"
#: attempts a task may be given at most
MOST_ATTEMPTS = 10_000
#: what OPTIONS may hold, with the defaults
OPTIONS: dict[str, Any] = {
    # CACHES alias; None: that of REDIS_MESSAGING
    "USING": None,
    # attempts a task may have; None: JOB_MAX_ATTEMPTS
    "MAX_ATTEMPTS": None,
    # seconds an attempt may take; None: any time
    "TIMEOUT": None,
    # seconds a result is kept after its task has ended
    "RESULT_TTL": 86_400,
    # True: when all open transactions are committed; a database: when its is; False: at once
    "ENQUEUE_ON_COMMIT": False,
}


def _attempts(value: int, what: str) -> int:
    return whole(value, what, least=1, most=MOST_ATTEMPTS)


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
        """Where its jobs are: made anew, for the prefix may be a tenant's."""
        return TaskStore(self.alias, using=self.chosen["USING"])

    @property
    def result_ttl(self) -> int:
        """How long a result is kept: ms."""
        return milliseconds(self.chosen["RESULT_TTL"], "RESULT_TTL")

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
        if not _left_to_commit(self._on_commit(task), send):
            send()
        return result

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """See enqueue(). It waits for transactions of its own thread only: not for one in which
        async_to_sync() was called."""
        result, job = self._prepared(task, args, kwargs)
        if not _left_to_commit(self._on_commit(task), partial(self._send, [(result, job)])):
            _told(result, *await self.store.apush(task.queue_name, [job]))
            await task_enqueued.asend(type(self), task_result=result)
        return result

    def enqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """Store calls, in their order. After an error, those before it may be there."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in calls]
        send = partial(self._send, prepared)
        if not _left_to_commit(self._on_commit(task), send):
            send()
        return [result for result, _ in prepared]

    async def aenqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """See enqueue_many()."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in calls]
        if not _left_to_commit(self._on_commit(task), partial(self._send, prepared)):
            for page in batched(prepared, PAGE):
                pushed, _ = await self.store.apush(task.queue_name, [job for _, job in page])
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
        return self.store.reschedule(queue_name, result_id, _at(run_after))

    async def areschedule(self, queue_name: str, result_id: str, run_after: datetime) -> bool:
        """See reschedule()."""
        return await self.store.areschedule(queue_name, result_id, _at(run_after))

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """What is wrong with its settings."""
        found: list[CheckMessage] = [
            Warning(
                f"TASKS[{self.alias!r}] has the unknown option {key!r}: it does nothing.",
                hint=f"OPTIONS may have {', '.join(OPTIONS)}.",
                id="messaging.W101",
            )
            for key in self.options
            if key not in OPTIONS
        ]
        databases = self.chosen["ENQUEUE_ON_COMMIT"]
        if not isinstance(databases, bool) and databases not in connections:
            found.append(
                Error(
                    f"TASKS[{self.alias!r}] waits for commits of {databases!r}, which is no database.",
                    hint="ENQUEUE_ON_COMMIT is False, True or an alias of DATABASES.",
                    id="messaging.E101",
                )
            )
        return [*found, *self._bad_values()]

    def _bad_values(self) -> Iterator[CheckMessage]:
        using = self.chosen["USING"]
        if using is not None and using not in settings.CACHES:
            yield Error(
                f"TASKS[{self.alias!r}] has USING={using!r}, which is no alias of CACHES.",
                id="messaging.E102",
            )
        for name, check in _CHECKED.items():
            try:
                if self.chosen[name] is not None:
                    check(self.chosen[name])
            except (TypeError, ValueError) as error:
                yield Error(f"TASKS[{self.alias!r}]: {error}", id="messaging.E102")

    def _on_commit(self, task: Task) -> bool | str:
        chosen = getattr(task, "on_commit", None)
        setting: bool | str = self.chosen["ENQUEUE_ON_COMMIT"]
        return setting if chosen is None else chosen

    def _prepared(
        self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[TaskResult, Push]:
        """The result and the job of a call; raises before anything is sent."""
        self.validate_task(task)
        result = TaskResult(
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
            most=_attempts(most or conf.current().JOB_MAX_ATTEMPTS, "MAX_ATTEMPTS"),
            unique=key,
        )

    def _send(self, prepared: Sequence[tuple[TaskResult, Push]]) -> None:
        for page in batched(prepared, PAGE):
            pushed, _ = self.store.push(page[0][0].task.queue_name, [job for _, job in page])
            for result, _ in page:
                _told(result, pushed)
                task_enqueued.send(type(self), task_result=result)


#: options whose values can be wrong, and what raises then
_CHECKED: dict[str, Callable[[Any], object]] = {
    "MAX_ATTEMPTS": partial(_attempts, what="MAX_ATTEMPTS"),
    "TIMEOUT": partial(milliseconds, what="TIMEOUT", least=1),
    "RESULT_TTL": partial(milliseconds, what="RESULT_TTL"),
}


def _check_fields(task: RedisTask) -> None:
    if task.max_attempts is not None:
        _attempts(task.max_attempts, "max_attempts")
    if task.timeout is not None:
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


def _left_to_commit(when: bool | str, send: Callable[[], None]) -> bool:
    """Whether `send` will be called by the commits it has to wait for."""
    if when is False:
        return False
    aliases = list(connections) if when is True else [when]
    awaited = {alias for alias in aliases if connections[alias].in_atomic_block}

    def committed(alias: str) -> None:
        awaited.discard(alias)
        if not awaited:
            send()

    # each is asked at once: a transaction that is rolled back says nothing, then or later
    for alias in sorted(awaited):
        transaction.on_commit(partial(committed, alias), using=alias)
    return bool(awaited)
