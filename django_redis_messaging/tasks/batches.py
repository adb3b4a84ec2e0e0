"""Batches: many calls of tasks, with callbacks for the end of all of them.

The jobs of a batch name it in their state. The script that ends a job counts that, and the one that ends the
last job enqueues the callbacks: services/jobs/_batches.lua. So a count is exact, and a callback is enqueued
once, whichever worker is killed at whichever moment.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import islice
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from .. import conf
from ..core.commands import Argument, batched
from ..core.encoding import encoded
from ..core.encoding import name as checked_name
from ..core.operations import (
    Command,
    Script,
    Steps,
    aperform,
    asynchronous,
    log_exception,
    operation,
    perform,
)
from ..errors import BatchClosed, BatchNotFound, InvalidArgument, LimitExceeded
from ..services.common.arguments import Duration, integer, window
from ..services.jobs.engine import PAGE, Engine, JobRecord, LeasedJob, State, pages, parse_record
from . import records
from .backend import (
    POLL_INTERVAL,
    SHARD,
    RedisBackend,
    call_payload,
    latest_delay,
    listen,
    seconds_to_wait,
)
from .call_arguments import check_call, takes_values
from .commits import Calls, Prepared, Sender, send_on_commit
from .compat import (
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from .task import RedisTask

__all__ = ["TaskBatch"]

logger = logging.getLogger(__name__)

#: calls that a batch may have
MAX_CALLS = 100_000
#: ms after its latest page for which a batch is kept whose creator has not added all calls
OPEN_TTL = 30 * 86_400_000
#: the callbacks, in the order of the ends of their ids
CALLBACKS = ("on_done", "on_succeeded", "on_failed", "on_first_failure")
#: number that ends the id of the first callback: greater than any position of a call
FIRST_CALLBACK = 0xF00000
#: characters of the base of the ids: 6 more follow
BASE_LENGTH = 26
#: the fields of a batch that its scripts return, in their order: see services/jobs/_batches.lua
FIELDS = ("name", "base", "total", "pending", "failed", "cancelled", "cancel", "created", "ended")


class Stored(NamedTuple):
    """What was stored of a batch when it was read last. Moments are ms, 0 for never."""

    name: str = ""
    base: str = ""
    total: int = 0
    pending: int = 0
    failed: int = 0
    cancelled: int = 0
    is_cancelled: bool = False
    created: int = 0
    ended: int = 0


class TaskBatch:
    """Up to 100,000 calls of tasks of one backend, with callbacks: tasks that are enqueued once each, with
    the id of the batch as their argument.

        with TaskBatch("import", on_done=report) as batch:
            for path in paths:
                batch.add(load, path)

    `on_done`: when all calls have ended, however; `on_succeeded`: when all have succeeded; `on_failed`: when
    all have ended, and one or more have failed for good; `on_first_failure`: as soon as one has. A callback
    with a parameter `values` gets the list of the return values as well, in the order of the calls; None for
    those that did not succeed.

    `batch_id`: identifies the batch; if it exists already, enqueue() goes on where it ended. `on_commit`: as
    that of a task, for the whole batch. `backend`: the alias in TASKS; default: that of its tasks.

    The counts are those of the latest reply from Redis: see refresh().
    """

    def __init__(
        self,
        name: str = "",
        *,
        batch_id: str | None = None,
        on_done: Task | None = None,
        on_succeeded: Task | None = None,
        on_failed: Task | None = None,
        on_first_failure: Task | None = None,
        on_commit: bool | str | None = None,
        backend: str | None = None,
    ) -> None:
        #: identifies the batch among those of its backend
        self.id = os.urandom(12).hex() if batch_id is None else checked_name(batch_id, "batch_id")
        self._name = checked_name(name, "name") if name else ""
        self._on_commit = on_commit
        self._alias = backend
        self._source: str = ""
        self._stored = Stored()
        #: calls that were added here and are not known to be enqueued, the first one at position `_first`
        self._calls: list[Prepared] = []
        self._first = self._enqueued = 0
        #: by queue, how many of them have to be enqueued
        self._left: Counter[str] = Counter()
        self._created_with: Sequence[Argument] = ()
        self._is_closed = False
        given = zip(CALLBACKS, (on_done, on_succeeded, on_failed, on_first_failure), strict=True)
        self._callbacks = {key: self._checked(task, key) for key, task in given if task is not None}
        self._with_values = {key for key, task in self._callbacks.items() if _takes_values(task, key)}

    @classmethod
    def get(cls, batch_id: str, backend: str = "default") -> Self:
        """The batch with this id. Calls that are added to it come after those that it has. Raises
        BatchNotFound."""
        batch = cls._existing(batch_id, backend)
        batch.refresh()
        return batch

    @classmethod
    async def aget(cls, batch_id: str, backend: str = "default") -> Self:
        """The async version of get()."""
        batch = cls._existing(batch_id, backend)
        await batch.arefresh()
        return batch

    @classmethod
    def _existing(cls, batch_id: str, backend: str, source: str = "") -> Self:
        batch = cls(batch_id=batch_id, backend=backend)
        batch._source = source or os.urandom(8).hex()
        batch._is_closed = True
        return batch

    def __repr__(self) -> str:
        ended = self.total - self.pending
        return f"<TaskBatch {self.name or self.id}: {ended} of {self.total} ended, {self.failed} failed>"

    @property
    def name(self) -> str:
        """What it is called in reports; may be empty."""
        return self._stored.name or self._name

    @property
    def backend(self) -> str:
        """The alias of its backend in TASKS."""
        return self._alias or "default"

    @property
    def total(self) -> int:
        """Number of calls that are enqueued or have ended."""
        return self._stored.total

    @property
    def pending(self) -> int:
        """Number of calls that have not ended."""
        return self._stored.pending

    @property
    def succeeded(self) -> int:
        """Number of calls that have succeeded."""
        return self.total - self.pending - self.failed - self.cancelled

    @property
    def failed(self) -> int:
        """Number of calls that have failed for good. One that is redriven counts as pending again."""
        return self._stored.failed

    @property
    def cancelled(self) -> int:
        """Number of calls that were cancelled or purged, or not enqueued since another call had their unique
        key."""
        return self._stored.cancelled

    @property
    def progress(self) -> float:
        """The share of its calls that have ended, from 0 to 1."""
        if self.total == 0:
            return float(self.is_done)
        return (self.total - self.pending) / self.total

    @property
    def is_done(self) -> bool:
        """Whether all calls were added and have ended."""
        return self._stored.ended > 0

    @property
    def is_cancelled(self) -> bool:
        """Whether the batch was cancelled."""
        return self._stored.is_cancelled

    @property
    def created_at(self) -> datetime | None:
        """When its first calls were enqueued."""
        return records.moment(self._stored.created) if self._stored.created else None

    @property
    def ended_at(self) -> datetime | None:
        """When its last call has ended."""
        return records.moment(self._stored.ended) if self._stored.ended else None

    def callback_id(self, callback: str) -> str:
        """The id of the call of a callback, also before that is enqueued. `callback`: "on_done", …"""
        if callback not in CALLBACKS:
            raise InvalidArgument(f"callback must be one of {', '.join(CALLBACKS)}, not {callback!r}.")
        if not self._stored.base:
            raise BatchNotFound(f"The batch {self.id} is not enqueued yet: call enqueue().")
        return _call_id(self._stored.base, FIRST_CALLBACK + CALLBACKS.index(callback))

    def add(self, task: Task, /, *args: Any, **kwargs: Any) -> None:
        """Add a call of a task. Nothing is sent before enqueue(). Raises what enqueue() of a task raises for
        such a call, and LimitExceeded for more than 100,000 calls."""
        added = self._first + len(self._calls)
        if added >= MAX_CALLS:
            raise LimitExceeded("calls of a batch", limit=MAX_CALLS, actual=added + 1)
        self._checked(task, "task")
        if getattr(task, "replaces", False):
            raise InvalidTask(
                f"{task.module_path!r} has on_duplicate='replace': calls of a batch can't replace others."
            )
        if self._with_values and getattr(task, "unique", False) is not False:
            raise InvalidTask(
                f"{task.module_path!r} is unique: a call that is left out has no value for the callback."
            )
        if self._with_values and self._backend.result_ttl_of(task) == 0:
            raise InvalidTask(
                f"{task.module_path!r} has result_ttl=0: its return value is not stored for the callback."
            )
        check_call(task, args, kwargs)
        self._calls.append(self._backend.prepared(task, "", args, kwargs))

    def enqueue(self) -> Self:
        """Enqueue the calls that were added, up to 200 or 1 MiB of arguments in a round trip. The batch is
        done when all of them have ended; one without calls at once.

        After an error, some calls may be enqueued: call it again for the rest, also by a new TaskBatch with
        the same `batch_id` and calls; or cancel the batch. Raises LimitExceeded, with nothing enqueued, if
        more calls would wait in a queue than JOB_MAX_WAITING; BatchClosed if the batch has ended or was
        cancelled.
        """
        if not send_on_commit(self._when(), Calls(_AfterCommit(self), self._calls)):
            for page in self._pages():
                perform(self._using, self._add_page(page))
                for result in _results(page):
                    task_enqueued.send(type(self._backend), task_result=result)
        return self

    async def aenqueue(self) -> Self:
        """The async version of enqueue(). It sends at once, also with ENQUEUE_ON_COMMIT: see
        RedisBackend.aenqueue()."""
        if not send_on_commit(self._when(), Calls(_AfterCommit(self), self._calls)):
            for page in self._pages():
                await aperform(self._using, self._add_page(page))
                for result in _results(page):
                    await task_enqueued.asend(type(self._backend), task_result=result)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Enqueue the batch, unless the block has raised."""
        if error is None:
            self.enqueue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Enqueue the batch, unless the block has raised."""
        if error is None:
            await self.aenqueue()

    @operation
    def refresh(self) -> Steps[None]:
        """Read the current counts. Raises BatchNotFound if it is not enqueued yet, or not stored any more."""
        yield from self._refresh()

    arefresh = asynchronous(refresh)

    @operation
    def cancel(self) -> Steps[int]:
        """Cancel the calls that have not ended, the running ones, too: a worker interrupts these within about
        a second. Nothing is added to the batch any more; it is done when the running calls have ended, and
        its callbacks are enqueued as ever. Returns the number of calls that were cancelled, or will be."""
        keys = self._engine.keys
        self._store((yield Script("tasks/batch_cancel", [*keys.records, self._key], [encoded(self.id)])))
        cancelled: int = 0
        if self.pending:
            for positions in batched(range(self.total), PAGE):
                ids = [_call_id(self._stored.base, position) for position in positions]
                cancelled += yield from self._backend.cancel_many(ids)
        yield from self._refresh()
        return cancelled

    acancel = asynchronous(cancel)

    @operation
    def wait_until_done(self, timeout: Duration | None = None) -> Steps[None]:
        """Wait until the batch is done, without polling, and refresh it. `timeout`: seconds; None: no
        limit. Raises TimeoutError when the time is up, BatchNotFound if it is not enqueued or expires."""
        seconds = seconds_to_wait(timeout)
        ends = monotonic() + seconds
        yield from self._refresh()
        while not self.is_done and (left := ends - monotonic()) > 0:
            stream = self._engine.keys.ended(f"batch:{encoded(self.id)}")
            yield from listen(stream, min(left, POLL_INTERVAL))
            yield from self._refresh()
        if not self.is_done:
            raise TimeoutError(f"{self!r} was not done within {seconds:g} s.")

    await_until_done = asynchronous(wait_until_done)

    def results(self, start: int = 0) -> Iterator[TaskResult | None]:
        """The current results of its calls in their order, from the position `start` on; None for one that is
        not stored (any more). Read in pages of 200 or about 1 MiB."""
        while page := self._read_page(start):
            yield from map(self._result, page)
            start += len(page)

    async def aresults(self, start: int = 0) -> AsyncIterator[TaskResult | None]:
        """The async version of results()."""
        while page := await self._aread_page(start):
            for record in page:
                yield self._result(record)
            start += len(page)

    def values(self) -> Iterator[Any]:
        """The return values of its calls in their order; None for one that did not succeed. Raises
        TaskResultDoesNotExist for one whose result is not stored (any more)."""
        start = 0
        while page := self._read_page(start):
            yield from self._values(start, page)
            start += len(page)

    async def avalues(self) -> AsyncIterator[Any]:
        """The async version of values()."""
        start = 0
        while page := await self._aread_page(start):
            for value in self._values(start, page):
                yield value
            start += len(page)

    @operation
    def _read_page(self, start: int) -> Steps[list[JobRecord | None]]:
        """The records of some calls from a position on; none behind the last one."""
        integer(start, "start", minimum=0, maximum=MAX_CALLS)
        if start == 0 or not self._stored.base:
            yield from self._refresh()
        count = min(self.total - start, PAGE)
        if count <= 0:
            return []
        words = (self._stored.base, start, count, self._engine.result_age())
        found = yield Script("tasks/batch_results", self._engine.keys.records, words)
        return [parse_record(one) if one else None for one in found]

    _aread_page = asynchronous(_read_page)

    def _result(self, record: JobRecord | None) -> TaskResult | None:
        return None if record is None else records.parse_result(self.backend, record)

    def _values(self, start: int, page: Sequence[JobRecord | None]) -> Iterator[Any]:
        for position, record in enumerate(page, start):
            if record is None:
                raise TaskResultDoesNotExist(_call_id(self._stored.base, position))
            yield records.return_value(record)

    def _checked(self, task: Task, what: str) -> Task:
        """The task, if its backend is that of the batch, which is the one of the first task."""
        if not isinstance(task, RedisTask):
            raise TypeError(f"{what} must be a task of a RedisBackend, not {type(task).__name__}.")
        if self._alias is None:
            self._alias = task.backend
        if task.backend != self._alias:
            raise InvalidTask(
                f"{what} must be a task of the same backend, {self._alias!r}, not of {task.backend!r}."
            )
        return task

    @property
    def _backend(self) -> RedisBackend:
        backend = task_backends[self.backend]
        if not isinstance(backend, RedisBackend):
            raise InvalidArgument(f"backend must be the alias of a RedisBackend, not {self.backend!r}.")
        return backend

    @property
    def _using(self) -> str:
        return self._backend.using

    @property
    def _engine(self) -> Engine:
        return self._backend.engine

    @property
    def _key(self) -> str:
        return self._engine.keys.batch(self.id)

    def _when(self) -> bool | str:
        setting: bool | str = self._backend.chosen["ENQUEUE_ON_COMMIT"]
        return setting if self._on_commit is None else self._on_commit

    def _pages(self) -> Iterator[Sequence[Prepared]]:
        """The pages of calls that are not enqueued yet, each after the reply to the one before; if only the
        end of the batch is to be stored, an empty one."""
        position = -1
        while True:
            at = self._enqueued - self._first
            if at >= len(self._calls) and self._is_closed:
                break
            if position != self._enqueued:
                self._left = Counter(map(_queue, islice(self._calls, at, None)))
            page = next(pages(self._calls[at : at + PAGE], call_payload), [])
            position = self._enqueued + len(page)
            yield page
            self._left.subtract(map(_queue, page))
        self._first += len(self._calls)
        self._calls.clear()

    def _add_page(self, page: Sequence[Prepared]) -> Steps[None]:
        """Enqueue a page of calls."""
        keys, offset = self._engine.keys, self._enqueued
        queues = list(dict.fromkeys(map(_queue, page)))
        reply = yield Script(
            "tasks/batch_add", [*keys.with_queues(queues), self._key], self._words(page, queues)
        )
        if isinstance(reply, int):
            raise _limit_exceeded(reply)
        if reply and reply[1] is None and self._first == 0:
            self._enqueued = 0  # a failover has lost all pages: the next one is the first
            return
        self._store(reply)
        self._enqueued = int(reply[len(FIELDS)] or 0)
        if self._enqueued < self._first:
            raise BatchNotFound(f"Redis has lost calls of the batch {self.id} that were enqueued.")
        self._is_closed = self._is_closed or self._enqueued >= self._first + len(self._calls)
        end = offset + len(page)
        if self._enqueued >= end:
            self._complete(page, int(reply[-2] or 0), int(reply[-1]))
            yield from self._register(page)
        elif self.is_cancelled or self.is_done:
            what = "was cancelled" if self.is_cancelled else "has ended"
            raise BatchClosed(f"The batch {self.id} {what}, so no calls can be added: make another batch.")

    def _words(self, page: Sequence[Prepared], queues: Sequence[str]) -> list[Argument]:
        """The arguments of tasks/batch_add.lua."""
        is_last = not self._source and self._enqueued + len(page) >= self._first + len(self._calls)
        fields = [] if self._source else self._creation_fields()
        words: list[Argument] = [encoded(self.id), self._source, self._enqueued, int(is_last)]
        words += [conf.current().JOB_MAX_WAITING, MAX_CALLS, OPEN_TTL, len(fields), *fields]
        words += [self._left[queue] for queue in queues]
        for one in page:
            words += (queues.index(_queue(one)) + 1, *one[1][1:])
        return words

    def _creation_fields(self) -> Sequence[Argument]:
        """The fields with which the batch is created: names and values."""
        if self._created_with:
            return self._created_with
        backend, base = self._backend, SHARD + os.urandom(16).hex()[: BASE_LENGTH - 1]
        ttl = max(backend.result_ttl, window())
        dead_ttl = max(ttl, int(conf.current().JOB_DEAD_TTL * 1000))
        fields: list[Argument] = ["name", self._name, "base", base]
        fields += ["result_ttl", ttl, "dead_ttl", dead_ttl]
        for key, task in self._callbacks.items():
            number = FIRST_CALLBACK + CALLBACKS.index(key)
            later: dict[str, Any] = {"values": []} if key in self._with_values else {}
            _, job = backend.prepared(task, _call_id(base, number), [self.id], later)
            if later:  # a worker reads them: they were given for the names only
                job = job._replace(payload=records.payload(records.payload_frame(task), [self.id], {}))
            more = job.more + (f" values={encoded(self.id)}" if key in self._with_values else "")
            stored = {**job._replace(more=more)._asdict(), "queue": encoded(task.queue_name)}
            fields += [word for name, value in stored.items() for word in (f"{key}:{name}", value)]
        self._created_with = fields
        return fields

    def _complete(self, page: Sequence[Prepared], position: int, moment: int) -> None:
        """Set the ids of the results of a page, and when they were enqueued (ms)."""
        for number, (result, _) in enumerate(page, position):
            object.__setattr__(result, "id", _call_id(self._stored.base, number))
            object.__setattr__(result, "enqueued_at", records.moment(moment))

    def _register(self, page: Sequence[Prepared]) -> Steps[None]:
        """Register the queues of a page, and of the callbacks, where the backend allows any."""
        if not self._backend.queue_names:
            calls: dict[str, list[Prepared]] = {task.queue_name: [] for task in self._callbacks.values()}
            for one in page:
                calls.setdefault(_queue(one), []).append(one)
            for queue, some in calls.items():
                yield from self._backend.register(queue, latest_delay(some))

    def _refresh(self) -> Steps[None]:
        self._store((yield Command("HMGET", self._key, *FIELDS, reads=True)))

    def _store(self, reply: Sequence[bytes | None]) -> None:
        """Keep the fields of a reply; raises BatchNotFound if it has none."""
        if not reply or reply[1] is None:
            raise BatchNotFound(
                f"No batch {self.id!r} is stored: it was not enqueued, or it ended and its time is over."
            )
        name, base, *counts = reply[: len(FIELDS)]
        total, pending, failed, cancelled, cancel, created, ended = (int(one or 0) for one in counts)
        texts = (name or b"").decode(), (base or b"").decode()
        self._stored = Stored(*texts, total, pending, failed, cancelled, bool(cancel), created, ended)

    def _send_committed(self, limited: Callable[[Sender], AbstractContextManager[None]]) -> None:
        """Enqueue the calls after a commit. An error is logged, not raised, as with other calls."""
        try:
            for page in self._pages():
                with limited(self._backend):
                    perform(self._using, self._add_page(page))
                for result in _results(page):
                    task_enqueued.send_robust(type(self._backend), task_result=result)
        except Exception as error:
            log_exception(
                logger,
                error,
                "The batch %s was not enqueued completely after the commit, and is not retried: %d of its %d "
                "calls are known to be enqueued: %s",
                self.id,
                self._enqueued,
                self._first + len(self._calls),
                error,
            )


class _AfterCommit:
    """A batch, as the commits see it for which it waits."""

    failed_at = 0.0

    def __init__(self, batch: TaskBatch) -> None:
        self._batch = batch
        #: its calls are not sent together with those of others
        self.alias = f"batch {batch.id}"

    @property
    def using(self) -> str:
        return self._batch._using

    def send_committed(
        self, prepared: Sequence[Prepared], limited: Callable[[Sender], AbstractContextManager[None]]
    ) -> None:
        self._batch._send_committed(limited)


def batch_of(backend: str, leased: LeasedJob) -> TaskBatch | None:
    """The batch of a running job, to which the job may add calls: if another attempt adds them again, they
    are not enqueued again."""
    batch_id = leased.state.field("batch")
    return TaskBatch._existing(unquote(batch_id), backend, leased.lease.id) if batch_id else None


def read_callbacks(batch: TaskBatch) -> Steps[dict[str, tuple[str, TaskResultStatus | None]]]:
    """The ids of the callbacks of a batch, by their names, with their statuses; None for one that is not
    enqueued. One that was enqueued is left out if its result is not stored any more."""
    ids = {callback: batch.callback_id(callback) for callback in CALLBACKS}
    left = yield Command("HMGET", batch._key, *(f"{callback}:id" for callback in ids), reads=True)
    found: dict[str, tuple[str, TaskResultStatus | None]] = {}
    for (callback, call_id), is_left in zip(ids.items(), left, strict=True):
        record = None if is_left else (yield from batch._engine.get(call_id))
        if is_left or record is not None:
            found[callback] = call_id, None if record is None else records.STATUS[record.state.status]
    return found


def add_values(kwargs: dict[str, Any], backend: str, state: State) -> None:
    """Add the return values of its batch to the arguments of a callback that takes them."""
    batch = TaskBatch._existing(unquote(state.field("values")), backend)
    kwargs["values"] = list(batch.values())


def _takes_values(task: Task, what: str) -> bool:
    """Whether a callback takes the return values."""
    try:
        return takes_values(task.func, task.takes_context)
    except TypeError as error:
        raise TypeError(
            f"{what} must take one argument, the id of the batch, and may take `values`: {error}."
        ) from None


def _call_id(base: str, number: int) -> str:
    """The id of the call at a position of a batch; tasks/batch_add.lua makes it, too."""
    return f"{base}{number:06x}"


def _queue(prepared: Prepared) -> str:
    queue: str = prepared[0].task.queue_name
    return queue


def _results(page: Sequence[Prepared]) -> Iterator[TaskResult]:
    """The results of the calls that are enqueued."""
    return (result for result, _ in page if result.enqueued_at is not None)


def _limit_exceeded(reply: int) -> LimitExceeded:
    """What a negative reply of tasks/batch_add.lua, or another number, means."""
    if reply < 0:
        return LimitExceeded("calls of a batch", limit=MAX_CALLS, actual=-reply)
    limit = conf.current().JOB_MAX_WAITING
    return LimitExceeded("jobs waiting in a queue", limit=limit, actual=reply, setting="JOB_MAX_WAITING")
