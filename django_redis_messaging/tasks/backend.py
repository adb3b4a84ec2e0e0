"""The task backend: Django's contract, on the lease engine."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from inspect import isclass
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage
from django.db import connections, transaction

from .. import conf
from ..core.keys import checked_prefix
from ..core.operations import Steps, aperform, perform
from ..core.steps import batched
from ..errors import InvalidArgument
from ..services.arguments import count, milliseconds, request, window
from ..services.jobs.engine import PAGE, Engine, Push, check_attempts
from ..services.jobs.leases import JobRecord
from ..services.jobs.registry import register_queue, registered_queues
from ..services.moments import to_datetime
from ..services.semaphores.steps import MAX_PERMITS
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
from .control import Call
from .names import check_source
from .options import OPTIONS, problems
from .results import RedisTaskResult
from .task import Default, RedisTask

#: the first character of every id: results may be in several slots one day
SHARD = "0"

#: a call that is about to be enqueued
Prepared = tuple[TaskResult, Push]


@functools.lru_cache(maxsize=256)
def _engine(alias: str, prefix: str) -> Engine:
    return Engine(checked_prefix(prefix), "tasks", alias)


class RedisBackend(BaseTaskBackend):
    """Runs each task at least once and records one result: a worker whose lease is lost can't settle it."""

    task_class = RedisTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        #: in the order in which workers serve them; empty: any queue is allowed
        self.queue_names = list(params.get("QUEUES", ["default"]))
        self.chosen = {**OPTIONS, **self.options}

    @property
    def using(self) -> str:
        """The CACHES alias of its jobs."""
        return self.chosen["USING"] or conf.alias()

    @property
    def engine(self) -> Engine:
        """The lease engine of its jobs. Looked up anew each time: PREFIX may be a callable (tenants)."""
        return _engine(self.alias, conf.prefix())

    def serving(self) -> list[str]:
        """The names of its queues: QUEUES, or if that is empty, those that something was enqueued to."""
        return self.queue_names or perform(self.using, registered_queues(self.engine.keys.queues))

    @property
    def result_ttl(self) -> int:
        """How long a result is kept: ms."""
        return milliseconds(self.chosen["RESULT_TTL"], "RESULT_TTL")

    def timeout(self, task: Task) -> float | None:
        """The seconds that an attempt at a task may take; None: no timeout."""
        seconds: float | Default | None = getattr(task, "timeout", Default.TIMEOUT)
        default: float | None = self.chosen["TIMEOUT"]
        return default if isinstance(seconds, Default) else seconds

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask if the task can't be enqueued."""
        super().validate_task(task)
        if isinstance(task, RedisTask):
            try:
                _check_fields(task)
            except (TypeError, ValueError) as error:
                raise InvalidTask(str(error)) from error

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Store a call of the task. It is stored when this returns, unless it waits for a commit."""
        prepared = [self._prepared(task, args, kwargs)]
        self._send_or_wait(task, prepared)
        return prepared[0][0]

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """The async version of enqueue(). It waits only for transactions of its own thread: not for one in
        which async_to_sync() was called."""
        prepared = [self._prepared(task, args, kwargs)]
        await self._asend_or_wait(task, prepared)
        return prepared[0][0]

    def enqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """Store calls, in their order. After an error, the ones before it may be stored."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in calls]
        self._send_or_wait(task, prepared)
        return [result for result, _ in prepared]

    async def aenqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """The async version of enqueue_many()."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in calls]
        await self._asend_or_wait(task, prepared)
        return [result for result, _ in prepared]

    def get_result(self, result_id: str) -> TaskResult:
        """The current result of a task; raises TaskResultDoesNotExist."""
        return self._result(result_id, perform(self.using, self.engine.get(str(result_id))))

    async def aget_result(self, result_id: str) -> TaskResult:
        """The async version of get_result()."""
        return self._result(result_id, await aperform(self.using, self.engine.get(str(result_id))))

    def cancel(self, queue_name: str, result_id: str) -> bool:
        """Cancel a task that has not started: its result is FAILED then."""
        return perform(self.using, self._cancel(queue_name, result_id))

    async def acancel(self, queue_name: str, result_id: str) -> bool:
        """The async version of cancel()."""
        return await aperform(self.using, self._cancel(queue_name, result_id))

    def reschedule(self, queue_name: str, result_id: str, run_after: datetime) -> bool:
        """Change when a task that has not started runs."""
        return perform(self.using, self._reschedule(queue_name, result_id, run_after))

    async def areschedule(self, queue_name: str, result_id: str, run_after: datetime) -> bool:
        """The async version of reschedule()."""
        return await aperform(self.using, self._reschedule(queue_name, result_id, run_after))

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Problems of its settings."""
        return list(problems(self.alias, self.options))

    def _on_commit(self, task: Task) -> bool | str:
        chosen = getattr(task, "on_commit", None)
        setting: bool | str = self.chosen["ENQUEUE_ON_COMMIT"]
        return setting if chosen is None else chosen

    def _prepared(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Prepared:
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
        chosen = getattr(task, "max_attempts", None) or self.chosen["MAX_ATTEMPTS"]
        key, needs = "", None
        if isinstance(task, RedisTask):
            key = task.unique_key(result.args, result.kwargs)
            needs = task.needs(result.args, result.kwargs)
        return result, Push(
            id=result.id,
            payload=records.payload(task, result.args, result.kwargs, needs),
            delay=0 if task.run_after is None else _at(task.run_after),
            priority=int(task.priority),
            max_attempts=check_attempts(chosen or conf.current().JOB_MAX_ATTEMPTS, "MAX_ATTEMPTS"),
            unique=key,
        )

    def _send_or_wait(self, task: Task, prepared: Sequence[Prepared]) -> None:
        send = partial(self._send, prepared)
        if not _send_on_commit(self._on_commit(task), send):
            send()

    async def _asend_or_wait(self, task: Task, prepared: Sequence[Prepared]) -> None:
        if _send_on_commit(self._on_commit(task), partial(self._send, prepared)):
            return
        for page in batched(prepared, PAGE):
            _set_enqueued_at(page, await aperform(self.using, self._push(page)))
            for result, _ in page:
                await task_enqueued.asend(type(self), task_result=result)

    def _send(self, prepared: Sequence[Prepared]) -> None:
        for page in batched(prepared, PAGE):
            _set_enqueued_at(page, perform(self.using, self._push(page)))
            for result, _ in page:
                task_enqueued.send(type(self), task_result=result)

    def _push(self, page: Sequence[Prepared]) -> Steps[int]:
        """Push the jobs of one page, and register their queue if any is allowed. Returns when (ms)."""
        queue = page[0][0].task.queue_name
        # the ids are new: if their records outlive all repeats, no request id is needed
        kept = min(self.result_ttl, int(conf.current().JOB_DEAD_TTL * 1000))
        request_id = "" if kept >= window() else request(None)
        pushed, _ = yield from self.engine.push(queue, request_id, [job for _, job in page])
        if not self.queue_names:
            yield from register_queue(self.using, self.engine.keys.queues, queue)
        return pushed

    def _cancel(self, queue: str, result_id: str) -> Steps[bool]:
        return self.engine.cancel(queue, result_id, ttl=self.result_ttl, line=records.CANCELLED)

    def _reschedule(self, queue: str, result_id: str, run_after: datetime) -> Steps[bool]:
        return self.engine.reschedule(queue, result_id, _at(run_after), records.rescheduled(run_after))

    def _result(self, result_id: str, record: JobRecord | None) -> TaskResult:
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        return records.result(self.alias, record)


def _check_fields(task: RedisTask) -> None:
    if task.max_attempts is not None:
        check_attempts(task.max_attempts, "max_attempts")
    if task.timeout is not None and not isinstance(task.timeout, Default):
        milliseconds(task.timeout, "timeout", minimum=1)
    kinds = task.retry_on or ()
    if not isinstance(kinds, tuple) or not all(
        isclass(kind) and issubclass(kind, BaseException) for kind in kinds
    ):
        raise TypeError("retry_on must be a tuple of exceptions.")
    if task.lock is not None:
        check_source(task.lock, "lock", task.func, task.takes_context)
    if task.concurrency is not None:
        count(task.concurrency, "concurrency", maximum=MAX_PERMITS)
    if task.concurrency_key is not None:
        if task.concurrency is None:
            raise InvalidArgument("concurrency_key needs concurrency: the number of calls that may run.")
        check_source(task.concurrency_key, "concurrency_key", task.func, task.takes_context)


def _set_enqueued_at(page: Sequence[Prepared], pushed: int) -> None:
    for result, _ in page:
        object.__setattr__(result, "enqueued_at", to_datetime(pushed))


def _at(run_after: datetime) -> str:
    """A moment as the engine takes it: in ms, rounded up, so that the task is never early."""
    if not isinstance(run_after, datetime):
        raise TypeError(f"run_after must be a datetime, not {type(run_after).__name__}.")
    if settings.USE_TZ and run_after.tzinfo is None:
        raise InvalidArgument("run_after must be aware, as django.utils.timezone.now() is.")
    return f"@{max(math.ceil(run_after.timestamp() * 1000), 0)}"


def _send_on_commit(when: bool | str, send: Callable[[], None]) -> bool:
    """Have `send` called when the open transactions it has to wait for are committed. False, with nothing
    done, if there are none."""
    if when is False:
        return False
    aliases = list(connections) if when is True else [when]
    awaited = {alias for alias in aliases if connections[alias].in_atomic_block}

    def committed(alias: str) -> None:
        awaited.discard(alias)
        if not awaited:
            send()

    # one hook for each transaction: after a rollback, its hook is never called, and nothing is sent
    for alias in sorted(awaited):
        transaction.on_commit(partial(committed, alias), using=alias)
    return bool(awaited)
