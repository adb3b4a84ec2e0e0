"""The task backend: Django's contract, on the lease engine."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

from django.conf import settings
from django.core.checks import CheckMessage

from .. import conf
from ..core.encoding import checked_prefix
from ..core.encoding import name as checked
from ..core.operations import Listen, Steps, aperform, perform
from ..errors import InvalidArgument
from ..services.common.arguments import (
    Duration,
    integer,
    milliseconds,
    request,
    sequence,
    timestamp,
    window,
)
from ..services.jobs.engine import (
    Engine,
    FollowUp,
    JobRecord,
    Paused,
    Push,
    check_attempts,
    check_pause,
    pages,
    register_queue,
    registered_queues,
)
from ..services.jobs.listing import MAX_ROWS, JobFilter, JobPage
from ..services.jobs.load import QueueLoad, read_loads
from ..services.jobs.sources import Queue, Source, register_sources
from ..services.jobs.workers import WorkerInfo, read_workers
from ..services.semaphores.semaphore import MAX_PERMITS
from . import records, tracing
from .call_arguments import accepted_by, check_call
from .call_fields import (
    call_fields,
    check_call_fields,
    check_expiry,
    find_weights,
    has_call_fields,
    stored_tag,
)
from .commits import COMMIT_DEADLINE, Calls, Prepared, Sender, send_on_commit
from .compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
)
from .listing import TaskJobs
from .options import OPTIONS, problems
from .retries import Backoff
from .schedules import Schedules
from .task import (
    Call,
    Default,
    Due,
    RedisTask,
    RedisTaskResult,
    as_follow_up,
    check_fields,
    follow_up_id,
    moment_of,
)

Result = TypeVar("Result", bound=TaskResult)

#: the first character of every id: results may be in several slots one day
SHARD = "0"
#: RESULT_MAX from which on no result is removed while its push may still be repeated
MIN_RESULTS = 100_000
#: ids, given out before a commit, that may stand for one call that has their unique key
MAX_ALIASES = 30
#: seconds after which a waiting client polls: its wake-up may have been lost in a failover, or no connection
#: is left for waiting
POLL_INTERVAL = 3.0


class Plan(NamedTuple):
    """What is the same for all calls of a task."""

    #: the settings of the backend and of the app from which it was made
    params: Mapping[str, Any]
    settings: conf.Settings
    #: the numbers of arguments of a call that has no keyword arguments
    counts: range
    #: see records.payload_frame
    frame: tuple[str, str]
    #: ms, or "@" and a moment in ms
    delay: int | str
    priority: int
    max_attempts: int
    #: whether the record of a call is kept for as long as its push may be repeated, however it ends
    outlives_repeats: bool
    #: the fields of a job that never change and are the same for all calls; and as results have them
    more: str
    stored_fields: str
    #: whether each call has others of its own
    has_call_fields: bool
    #: whether it has those, a unique key, or needs
    is_individual: bool


class RedisBackend(BaseTaskBackend):
    """Runs each task at least once and records one result: a worker whose lease is lost can't settle it."""

    task_class = RedisTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._params = params
        #: in the order in which workers serve them; empty: any queue is allowed
        self.queue_names = list(params.get("QUEUES", ["default"]))
        self.chosen = {**OPTIONS, **self.options}
        #: when enqueueing after a commit failed last; monotonic
        self.failed_at = -COMMIT_DEADLINE

    @property
    def using(self) -> str:
        """The CACHES alias of its jobs."""
        return self.chosen["USING"] or conf.alias()

    @property
    def engine(self) -> Engine:
        """The lease engine of its jobs. Looked up anew each time: PREFIX may be a callable (tenants)."""
        return _engine(self.alias, conf.prefix(), self.chosen["RESULT_MAX"], self.result_ttl)

    def stats(self) -> list[QueueLoad]:
        """The load of each of its queues, in one round trip: what waits, and how fast it is worked off. With
        an empty QUEUES, one more."""
        return perform(self.using, self._stats())

    async def astats(self) -> list[QueueLoad]:
        """The async version of stats()."""
        return await aperform(self.using, self._stats())

    @property
    def schedules(self) -> Schedules:
        """Its schedules: those declared by `@periodic`, and those added at run time."""
        return Schedules(self.alias)

    def serving(self) -> list[str]:
        """The names of its queues: QUEUES, or if that is empty, those that something was enqueued to."""
        return self.queue_names or perform(self.using, registered_queues(self.engine.keys.queues))

    @functools.cached_property
    def result_ttl(self) -> int:
        """How long a result is kept, unless its task has a result_ttl of its own: ms."""
        return milliseconds(self.chosen["RESULT_TTL"], "RESULT_TTL")

    @functools.cached_property
    def _weight_of(self) -> Callable[[str], int] | None:
        """The function that returns the weight of a group; None if all have the same."""
        return find_weights(self.chosen["GROUP_WEIGHT"])

    def result_ttl_of(self, task: Task) -> int:
        """How long the result of a task is kept after it succeeded or was cancelled: ms."""
        seconds: float | None = getattr(task, "result_ttl", None)
        return self.result_ttl if seconds is None else milliseconds(seconds, "result_ttl")

    def timeout(self, task: Task) -> float | None:
        """The seconds that an attempt at a task may take; None: no timeout."""
        seconds: float | Default | None = getattr(task, "timeout", Default.TIMEOUT)
        if not isinstance(seconds, Default):
            return seconds
        default: float | timedelta | None = self.chosen["TIMEOUT"]
        return default.total_seconds() if isinstance(default, timedelta) else default

    def backoff(self, task: Task) -> Backoff | None:
        """What decides how long a task waits for its next attempt; None: JOB_BACKOFF."""
        own: Backoff | None = getattr(task, "backoff", None)
        return self.chosen["BACKOFF"] if own is None else own

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask if the task can't be enqueued. Called when a task is made, and for its first call
        under the current settings."""
        if task.run_after is not None:
            try:
                _at(task.run_after)
            except (TypeError, InvalidArgument) as error:
                raise InvalidTask(str(error)) from error
        super().validate_task(task)
        if isinstance(task, RedisTask):
            try:
                check_fields(task)
                check_call_fields(task)
            except (TypeError, ValueError) as error:
                raise InvalidTask(str(error)) from error

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Store a call of the task. It is stored when this returns, unless it waits for a commit."""
        prepared = [self._prepared(task, args, kwargs)]
        self._send_or_wait(task, prepared)
        return prepared[0][0]

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """The async version of enqueue(). It sends the call at once, also with ENQUEUE_ON_COMMIT: a coroutine
        has database connections of its own, and Django has no transactions for these."""
        prepared = [self._prepared(task, args, kwargs)]
        await self._asend_or_wait(task, prepared)
        return prepared[0][0]

    def enqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """Store calls, in their order. After an error, the ones before it may be stored."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in _pairs(calls)]
        self._send_or_wait(task, prepared)
        return [result for result, _ in prepared]

    async def aenqueue_many(self, task: Task, calls: Sequence[Call]) -> list[TaskResult]:
        """The async version of enqueue_many()."""
        prepared = [self._prepared(task, args, kwargs) for args, kwargs in _pairs(calls)]
        await self._asend_or_wait(task, prepared)
        return [result for result, _ in prepared]

    def get_result(self, result_id: str) -> TaskResult:
        """The current result of a task; raises TaskResultDoesNotExist."""
        return self._result(result_id, perform(self.using, self.engine.get(str(result_id))))

    async def aget_result(self, result_id: str) -> TaskResult:
        """The async version of get_result()."""
        return self._result(result_id, await aperform(self.using, self.engine.get(str(result_id))))

    def cancel(self, task: Task, result_id: str) -> bool:
        """Cancel a task that waits or runs: its result is FAILED then. A running one is interrupted by its
        worker, within about a second; if it ends before, its result stands. False if it has ended."""
        return perform(self.using, self._cancel(task, result_id))

    async def acancel(self, task: Task, result_id: str) -> bool:
        """The async version of cancel()."""
        return await aperform(self.using, self._cancel(task, result_id))

    def cancel_many(self, result_ids: Sequence[str]) -> Steps[int]:
        """Cancel those of these tasks that have not ended; returns how many. For a page of a batch."""
        likely = self.queue_names[0] if self.queue_names else "default"
        return self.engine.cancel_many(likely, result_ids, ttl=self.result_ttl, line=records.CANCELLED)

    def reschedule(self, task: Task, result_id: str, run_after: Due) -> bool:
        """Change when a task that has not started runs: a moment, or a timedelta from now on."""
        return perform(self.using, self._reschedule(task, result_id, run_after))

    async def areschedule(self, task: Task, result_id: str, run_after: Due) -> bool:
        """The async version of reschedule()."""
        return await aperform(self.using, self._reschedule(task, result_id, run_after))

    def pause(
        self, queue: str = "", reason: str = "", by: str = "", *, task: Task | str | None = None
    ) -> bool:
        """Have workers start no calls of a queue, or of a task in all queues, until it is resumed. Calls can
        be enqueued, and those that run go on. A task may be given by its dotted name.

            backend.pause("emails", "the provider is down", by="ann")
            backend.pause(task=send_mail)

        False if it was paused already: then only `reason` and `by`, texts for operators, are replaced. Raises
        InvalidArgument for an unknown queue or task; LimitExceeded for a text of more than 1,000 bytes, or if
        1,000 queues and tasks are paused.
        """
        return perform(self.using, self._pause(queue, reason, by, task))

    async def apause(
        self, queue: str = "", reason: str = "", by: str = "", *, task: Task | str | None = None
    ) -> bool:
        """The async version of pause()."""
        return await aperform(self.using, self._pause(queue, reason, by, task))

    def resume(self, queue: str = "", *, task: Task | str | None = None) -> bool:
        """End a pause. False if there was none."""
        return perform(self.using, self._resume(queue, task))

    async def aresume(self, queue: str = "", *, task: Task | str | None = None) -> bool:
        """The async version of resume()."""
        return await aperform(self.using, self._resume(queue, task))

    def paused(self) -> list[Paused]:
        """The queues and tasks that are paused, the earliest first."""
        return perform(self.using, self.engine.paused())

    async def apaused(self) -> list[Paused]:
        """The async version of paused()."""
        return await aperform(self.using, self.engine.paused())

    def set_concurrency(self, key: str, limit: int | None) -> None:
        """Set how many calls with this `concurrency_key` (by default the dotted name of their task) run at a
        time, instead of their `concurrency`. A higher limit applies at once, a lower one as calls end. 0:
        none start; None: their `concurrency` applies again.

        Raises InvalidArgument.
        """
        perform(self.using, self._set_concurrency(key, limit))

    async def aset_concurrency(self, key: str, limit: int | None) -> None:
        """The async version of set_concurrency()."""
        await aperform(self.using, self._set_concurrency(key, limit))

    def set_priority(self, task: Task, result_id: str, priority: int) -> bool:
        """Change the priority (-100 to 100) of a task that has not started."""
        return perform(self.using, self._set_priority(task, result_id, priority))

    async def aset_priority(self, task: Task, result_id: str, priority: int) -> bool:
        """The async version of set_priority()."""
        return await aperform(self.using, self._set_priority(task, result_id, priority))

    def cancel_tagged(self, tag: str) -> int:
        """Cancel all tasks with this tag that wait or run, in all queues, as cancel() does: up to 200 in two
        round trips. Returns how many. Tasks that are enqueued meanwhile may be left out.

            backend.cancel_tagged("customer:7")
        """
        return perform(self.using, self._cancel_tagged(tag))

    async def acancel_tagged(self, tag: str) -> int:
        """The async version of cancel_tagged()."""
        return await aperform(self.using, self._cancel_tagged(tag))

    def jobs(self, queue: str = "default") -> TaskJobs:
        """The tasks of a queue, for operators: pages of them, and changes of many at once."""
        engine = self.engine
        registry = None if self.queue_names else engine.keys.queues
        return TaskJobs(engine, queue, registry=registry, using=self.using, result_ttl=self.result_ttl)

    def dead(
        self, queue: str = "default", *, cursor: str | None = None, limit: int = MAX_ROWS, task: str = ""
    ) -> JobPage:
        """Calls in a queue that have failed for good, the latest first (1 to 50); of all tasks, or of the one
        with this dotted name. A page may be short though more follow.

            page = backend.dead("emails")
            for one in page.rows:
                print(one.id, one.task, one.reason, one.ended_at)
            older = page.cursor and backend.dead("emails", cursor=page.cursor)

        Raises InvalidArgument for a cursor of another queue.
        """
        return self.jobs(queue).page("dead", cursor=cursor, limit=limit, which=JobFilter(task=task))

    async def adead(
        self, queue: str = "default", *, cursor: str | None = None, limit: int = MAX_ROWS, task: str = ""
    ) -> JobPage:
        """The async version of dead()."""
        jobs = self.jobs(queue)
        return await jobs.apage("dead", cursor=cursor, limit=limit, which=JobFilter(task=task))

    def redrive(
        self, queue: str = "default", ids: Sequence[str] | None = None, *, run_after: Due = timedelta(0)
    ) -> int:
        """Enqueue calls again that have failed for good, with all their attempts: those with the given ids,
        or all of a queue. They run after a moment, or a timedelta from now on. Returns how many."""
        return perform(self.using, self._redrive(queue, ids, run_after))

    async def aredrive(
        self, queue: str = "default", ids: Sequence[str] | None = None, *, run_after: Due = timedelta(0)
    ) -> int:
        """The async version of redrive()."""
        return await aperform(self.using, self._redrive(queue, ids, run_after))

    def workers(self) -> list[WorkerInfo]:
        """Its live workers by their ids, with the calls that each of them runs: up to 50 of each of the first
        100 queues."""
        return perform(self.using, self._workers())

    async def aworkers(self) -> list[WorkerInfo]:
        """The async version of workers()."""
        return await aperform(self.using, self._workers())

    def enqueue_now(
        self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], request_id: str | None = None
    ) -> Steps[TaskResult]:
        """Store a call that doesn't wait for a commit; a repeat with the same `request_id` stores nothing. A
        receiver of the signal that fails is logged."""
        prepared = self._prepared(task, args, kwargs)
        yield from self._push([prepared], request_id=request_id)
        task_enqueued.send_robust(type(self), task_result=prepared[0])
        return prepared[0]

    def prepared(
        self,
        task: Task,
        result_id: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Prepared:
        """The result and the job of a call with this id. That the arguments fit the task is not checked: if
        the code has changed since they were stored, the call fails in the worker, as a dead letter."""
        return self._prepared(task, args, kwargs, result_id)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Problems of its settings."""
        return list(problems(self.alias, self.options))

    def _on_commit(self, task: Task) -> bool | str:
        chosen = getattr(task, "on_commit", None)
        setting: bool | str = self.chosen["ENQUEUE_ON_COMMIT"]
        return setting if chosen is None else chosen

    def _prepared(
        self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], result_id: str | None = None
    ) -> Prepared:
        """The result and the job of a call; raises before anything is sent. Without `result_id` it is a new
        call, whose arguments are checked."""
        plan = self._plan(task)
        if result_id is None:
            result_id = SHARD + os.urandom(16).hex()[1:]
            if kwargs or len(args) not in plan.counts:
                check_call(task, args, kwargs)
        result = RedisTaskResult(
            task=task,
            id=result_id,
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=normalize_json(args) if args else [],
            kwargs=normalize_json(kwargs) if kwargs else {},
            backend=self.alias,
            errors=[],
            worker_ids=[],
            stored_fields=plan.stored_fields,
        )
        key, more = self._key_and_fields(plan, result) if plan.is_individual else ("", plan.more)
        if tracing.tracer is not None:
            more += tracing.tracer.create(task, result_id)
        return result, Push(
            id=result_id,
            payload=records.payload(plan.frame, result.args, result.kwargs),
            delay=plan.delay,
            priority=plan.priority,
            max_attempts=plan.max_attempts,
            unique=key,
            more=more,
        )

    def _key_and_fields(self, plan: Plan, result: RedisTaskResult) -> tuple[str, str]:
        """The unique key of a call, and the fields of its job that never change."""
        task: Any = result.task  # a RedisTask
        call = (result.args, result.kwargs)
        key, more = task.unique_key(*call), plan.more
        if needs := task.needs(*call):
            more += f" needs={needs}"
        if plan.has_call_fields:
            more += call_fields(task, *call, self._weight_of)
            object.__setattr__(result, "stored_fields", " " + more)
        return key, more

    def _plan(self, task: Task) -> Plan:
        """The plan of a task. It is kept with the task, and made anew after a change of the settings."""
        plan: Plan | None = getattr(task, "_plan", None)
        settings = conf.current()
        if plan is not None and plan.params is self._params and plan.settings is settings:
            return plan
        self.validate_task(task)
        if isinstance(task, RedisTask):
            _check_expiry(task, task.run_after)
        attempts = getattr(task, "max_attempts", None) or self.chosen["MAX_ATTEMPTS"]
        more = f"task={quote(task.module_path)}" + (" replace=1" if _replaces(task) else "")
        has_fields = isinstance(task, RedisTask) and has_call_fields(task)
        plan = Plan(
            params=self._params,
            settings=settings,
            counts=accepted_by(task.func, task.takes_context).counts,
            frame=records.payload_frame(task),
            delay=_delay(task),
            priority=int(task.priority),
            max_attempts=check_attempts(attempts or settings.JOB_MAX_ATTEMPTS, "MAX_ATTEMPTS"),
            outlives_repeats=self._outlives_repeats(task),
            more=more,
            stored_fields=" " + more,
            has_call_fields=has_fields,
            is_individual=has_fields or _is_guarded(task),
        )
        if isinstance(task, RedisTask):
            object.__setattr__(task, "_plan", plan)
        return plan

    def _send_or_wait(self, task: Task, prepared: Sequence[Prepared]) -> None:
        when = self._on_commit(task)
        if when is False or not send_on_commit(when, Calls(self, prepared)):
            for page in pages(prepared, call_payload):
                perform(self.using, self._push(page))
                for result, _ in page:
                    task_enqueued.send(type(self), task_result=result)

    async def _asend_or_wait(self, task: Task, prepared: Sequence[Prepared]) -> None:
        if send_on_commit(self._on_commit(task), Calls(self, prepared)):
            return
        for page in pages(prepared, call_payload):
            await aperform(self.using, self._push(page))
            for result, _ in page:
                await task_enqueued.asend(type(self), task_result=result)

    def send_committed(
        self, prepared: Sequence[Prepared], limited: Callable[[Sender], AbstractContextManager[None]]
    ) -> None:
        """Send calls of one queue after a commit. `limited` limits the time of each round trip."""
        for page in pages(prepared, call_payload):
            with limited(self):
                perform(self.using, self._push(page, MAX_ALIASES))
            for result, _ in page:
                task_enqueued.send_robust(type(self), task_result=result)

    def _push(
        self, page: Sequence[Prepared], max_aliases: int = 0, request_id: str | None = None
    ) -> Steps[None]:
        """Push the jobs of one page, complete their results, and register their queue."""
        queue = page[0][0].task.queue_name
        mixed = page if max_aliases else page[:1]  # else all are calls of one task
        # the ids are new: if their records outlive all repeats, no request id is needed
        outlive = [self._plan(one.task).outlives_repeats for one, _ in mixed]
        which = request(request_id) if request_id or False in outlive else ""
        jobs = [job for _, job in page]
        pushed, ids = yield from self.engine.push(queue, which, jobs, max_aliases=max_aliases)
        _complete(page, pushed, ids)
        if not self.queue_names:
            yield from self.register(queue, latest_delay(mixed))

    def _stats(self) -> Steps[list[QueueLoad]]:
        engine = self.engine
        names = self.queue_names or (yield from registered_queues(engine.keys.queues))
        return (yield from read_loads([(engine, name) for name in names])) if names else []

    def _outlives_repeats(self, task: Task) -> bool:
        """Whether the record of a call is kept for as long as its push may be repeated, however it ends. A
        call that replaces another one has none."""
        if _replaces(task):
            return False
        kept = min(self.result_ttl, self.result_ttl_of(task), int(conf.current().JOB_DEAD_TTL * 1000))
        return kept >= window() and self.chosen["RESULT_MAX"] >= MIN_RESULTS

    def _pause(self, queue: str, reason: str, by: str, task: Task | str | None) -> Steps[bool]:
        texts, name = check_pause(reason, by), _one_of(queue, task)
        if isinstance(task, str):
            _check_task(task)
        if queue and self.queue_names and queue not in self.queue_names:
            known = ", ".join(self.queue_names)
            raise InvalidArgument(f"queue must be in QUEUES of {self.alias!r}: {known}; not {queue!r}.")
        return self.engine.pause(*texts, queue=queue, task=name)

    def _resume(self, queue: str, task: Task | str | None) -> Steps[bool]:
        return self.engine.resume(queue=queue, task=_one_of(queue, task))

    def _set_concurrency(self, key: str, limit: int | None) -> Steps[None]:
        if limit is not None:
            integer(limit, "limit", minimum=0, maximum=MAX_PERMITS)
        return self.engine.set_limit(checked(key, "key"), limit)

    def _cancel(self, task: Task, result_id: str) -> Steps[bool]:
        ttl = self.result_ttl_of(task)
        queue = yield from self.engine.cancel(
            task.queue_name, result_id, ttl=ttl, line=records.CANCELLED, running=True
        )
        return queue is not None

    def _reschedule(self, task: Task, result_id: str, run_after: Due) -> Steps[bool]:
        due = moment_of(run_after)
        moment = _at(due)
        if isinstance(task, RedisTask) and isinstance(task.expires, datetime):
            check_expiry(task, due)
        line = records.rescheduled(due)
        queue = yield from self.engine.reschedule(task.queue_name, result_id, moment, line)
        if queue is None:
            return False
        if not self.queue_names:
            yield from self.register(queue, moment)
        return True

    def _set_priority(self, task: Task, result_id: str, priority: int) -> Steps[bool]:
        chosen = integer(priority, "priority", minimum=-100, maximum=100)
        queue = yield from self.engine.set_priority(task.queue_name, result_id, chosen)
        return queue is not None

    def _cancel_tagged(self, tag: str) -> Steps[int]:
        stored = stored_tag(tag)
        return (yield from self.engine.cancel_tagged(stored, ttl=self.result_ttl, line=records.CANCELLED))

    def _redrive(self, queue: str, ids: Sequence[str] | None, run_after: Due) -> Steps[int]:
        delay = _at(moment_of(run_after)) if run_after else 0
        chosen = None if ids is None else [checked(one, "ids") for one in sequence(ids, "ids")]
        count = yield from self.engine.redrive(checked(queue, "queue"), chosen, delay)
        if count and not self.queue_names:
            yield from self.register(queue, delay)
        return count

    def _workers(self) -> Steps[list[WorkerInfo]]:
        engine = self.engine
        names = self.queue_names or (yield from registered_queues(engine.keys.queues))
        return (yield from read_workers(engine, names))

    def register(self, queue: str, delay: int | str) -> Steps[None]:
        """Register a queue until a job is due; for QUEUES that allow any."""
        return register_queue(self.using, self.engine.keys.queues, queue, delay)

    def _result(self, result_id: str, record: JobRecord | None) -> TaskResult:
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        return records.parse_result(self.alias, record)


class TaskEngine(Engine):
    """The lease engine of one backend."""

    counts_lost = True

    def queue_of(self, payload: bytes) -> str:
        """The queue of a call."""
        return records.queue_name(payload)


@functools.lru_cache(maxsize=256)
def _engine(alias: str, prefix: str, max_results: int, result_ttl: int) -> TaskEngine:
    return TaskEngine(checked_prefix(prefix), "tasks", alias, max_results=max_results, result_ttl=result_ttl)


def our_backends() -> list[RedisBackend]:
    """The backends of TASKS that are RedisBackends."""
    return [one for one in map(task_backends.__getitem__, task_backends) if isinstance(one, RedisBackend)]


def aliases() -> list[str]:
    """The CACHES aliases of the backends."""
    return [backend.using for backend in our_backends()]


@register_sources
def queues_of_tasks() -> Iterator[Source]:
    """The queues of the backends."""
    for one in our_backends():
        queue = partial(_queue, one)
        yield Source(one.using, "tasks", one.engine.keys.queues, queue, one.queue_names)


def _queue(backend: RedisBackend, name: str) -> Queue:
    return Queue(backend.using, "tasks", backend.alias, name, backend.engine, name)


def _check_task(path: str) -> None:
    """Raise InvalidArgument if the code defines no such task."""
    try:
        records.find_task(path)
    except InvalidTask as error:
        raise InvalidArgument(str(error)) from None


def _one_of(queue: str, task: Task | str | None) -> str:
    """The name of the task to pause or to resume; empty if it is the queue. Exactly one must be given."""
    if (task is None) == (queue == ""):
        raise InvalidArgument("Pass either queue or task=: what is paused or resumed.")
    if task is None:
        checked(queue, "queue")
        return ""
    return checked(task if isinstance(task, str) else task.module_path, "task")


def _due(delay: int | str) -> int:
    """When a job is due, as `_at` writes it: ms; 0: at once."""
    return int(delay[1:]) if isinstance(delay, str) else delay


def _check_expiry(task: RedisTask, run_after: datetime | None) -> None:
    try:
        check_expiry(task, run_after)
    except InvalidArgument as error:
        raise InvalidTask(str(error)) from error


def _delay(task: Task) -> int | str:
    """How long a call waits, as the engine takes it."""
    if task.run_after is not None:
        return _at(task.run_after)
    return milliseconds(getattr(task, "delay", None) or 0, "delay")


def _is_guarded(task: Task) -> bool:
    """Whether each call has a unique key, or needs something to start."""
    if not isinstance(task, RedisTask):
        return False
    return task.unique is not False or any(
        one is not None for one in (task.lock, task.concurrency, task.rate)
    )


def _replaces(task: Task) -> bool:
    return isinstance(task, RedisTask) and task.replaces


def latest_delay(calls: Sequence[Prepared]) -> int | str:
    """The delay of the call that is due last; 0 without calls."""
    return max((job.delay for _, job in calls), key=_due, default=0)


def _pairs(calls: Sequence[Call]) -> Sequence[Call]:
    """The calls of enqueue_many(); raises TypeError for one that is not `(args, kwargs)`."""
    for call in calls:
        match call:
            case [Sequence() as args, Mapping()] if not isinstance(args, str | bytes):
                continue
        raise TypeError(f"calls must be pairs of args and kwargs, such as ((7,), {{}}), not {call!r:.100}.")
    return calls


def call_payload(prepared: Prepared) -> str:
    """The stored form of a call."""
    return prepared[1].payload


def _complete(page: Sequence[Prepared], pushed: int, ids: Sequence[str]) -> None:
    """Set when results were enqueued (ms), and the ids in force of those with a unique key."""
    in_force = iter(ids)
    for result, job in page:
        object.__setattr__(result, "enqueued_at", records.moment(pushed))
        if job.unique:
            object.__setattr__(result, "id", next(in_force))


def _at(run_after: datetime) -> str:
    """A moment as the engine takes it: in ms, rounded up, so that the task is never early."""
    if isinstance(run_after, timedelta):
        raise TypeError("run_after of a task must be a datetime. Pass a timedelta to using(run_after=...).")
    if not isinstance(run_after, datetime):
        raise TypeError(f"run_after must be a datetime or a timedelta, not {type(run_after).__name__}.")
    if settings.USE_TZ and run_after.tzinfo is None:
        raise InvalidArgument("run_after must be an aware datetime. Use django.utils.timezone.now().")
    return f"@{max(math.ceil(timestamp(run_after, 'run_after') * 1000), 0)}"


def wait_for_result(result: Result, timeout: Duration | None = None) -> Result:
    """Wait until a task has ended; refreshes and returns its result.

    Its status is SUCCESSFUL then, or FAILED if the task failed for good or was cancelled. `timeout`: seconds;
    None: no limit.

        result = wait_for_result(render.enqueue(7), timeout=5)

    Raises TimeoutError when the time is up, with the result refreshed; TaskResultDoesNotExist if the result
    does not exist, or disappears during the wait: it expired or was purged; Unavailable if Redis can't be
    reached for COMMAND_DEADLINE.
    """
    backend, seconds = _backend_of(result), seconds_to_wait(timeout)
    record = perform(backend.using, _wait_for_result(backend.engine, result.id, seconds))
    return _refreshed(result, record, seconds)


async def await_for_result(
    result: Result,
    timeout: Duration | None = None,  # noqa: ASYNC109 (as in wait_for_result)
) -> Result:
    """The async version of wait_for_result()."""
    backend, seconds = _backend_of(result), seconds_to_wait(timeout)
    record = await aperform(backend.using, _wait_for_result(backend.engine, result.id, seconds))
    return _refreshed(result, record, seconds)


def _backend_of(result: TaskResult) -> RedisBackend:
    if not isinstance(result, RedisTaskResult):
        raise TypeError(
            f"result must be the result of a task of a RedisBackend, not {type(result).__name__}."
        )
    return cast(RedisBackend, task_backends[result.backend])


def seconds_to_wait(timeout: Duration | None) -> float:
    """A timeout in seconds; infinite for None."""
    return math.inf if timeout is None else milliseconds(timeout, "timeout") / 1000


def _wait_for_result(engine: Engine, result_id: str, seconds: float) -> Steps[JobRecord | None]:
    """The record of a job when it has ended, or after `seconds`; None if it doesn't exist."""
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0:
        found = yield from engine.await_end(result_id)
        if not isinstance(found, str):
            return found
        yield from listen(engine.keys.ended(found), min(left, POLL_INTERVAL))
    return (yield from engine.get(result_id))


def listen(stream: str, seconds: float) -> Steps[None]:
    """Wait until the stream has an entry, for `seconds` at most. Listen returns early, and has sent nothing,
    if no connection is left for waiting."""
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0:
        if (yield Listen(stream, 0, seconds=left)) is not None:
            return


def _refreshed(result: Result, record: JobRecord | None, seconds: float) -> Result:
    if record is None:
        raise TaskResultDoesNotExist(result.id)
    cast(RedisTaskResult, result)._update(records.parse_result(result.backend, record))
    if not result.is_finished:
        raise TimeoutError(
            f"Task {result.id} has not ended within {seconds:g} s; its status is {result.status}."
        )
    return result


def prepare_follow_up(backend: RedisBackend, result: TaskResult, value: Any) -> FollowUp | None:
    """The call that follows one that has returned `value`, if any. Raises what enqueue() raises."""
    task = result.task
    if not isinstance(task, RedisTask) or task.then is None:
        return None
    then = as_follow_up(task.then)
    following, job = backend.prepared(then.task, follow_up_id(result.id), [value, *then.args], then.kwargs)
    queue = str.__str__(then.task.queue_name)  # not the member of an enumeration
    return FollowUp(queue, job, MAX_ALIASES, partial(_announce, backend, following))


def _announce(backend: RedisBackend, result: TaskResult, pushed: int) -> None:
    """Complete the result of a call that was pushed at the ms `pushed`, and send the signal; once. A receiver
    that fails is logged: the call is stored."""
    if result.enqueued_at is not None:
        return
    object.__setattr__(result, "enqueued_at", records.moment(pushed))
    if not backend.queue_names:
        registry = backend.engine.keys.queues
        perform(backend.using, register_queue(backend.using, registry, result.task.queue_name))
    task_enqueued.send_robust(type(backend), task_result=result)
