"""The worker of tasks: each attempt is a call with its timeout and signals, and an outcome.

Claims lease only calls whose needs are free (jobs/_waiting.lua). Other code than tasks may hold the lock of a
call, too: so a lane acquires it, without waiting. If it is not free, the job is released with a delay, and
the lane claims another job.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import threading
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, NoReturn, cast
from weakref import ReferenceType

from django.db import close_old_connections
from django.dispatch import Signal
from django.utils import timezone

from ..core.operations import log_exception, perform
from ..errors import LeaseLost, MessagingError, OutcomeUnknown, Unavailable
from ..services.common.arguments import Duration
from ..services.common.leases import running_task
from ..services.jobs import executor, threads
from ..services.jobs import worker as jobs_worker
from ..services.jobs.engine import JobRecord, Outcome, Settlement, State, lock_of
from ..services.jobs.executor import RunningJob, released
from ..services.jobs.threads import EventLoopEnded
from ..services.jobs.worker import DEFAULT_LIMITS, Limits
from ..services.locks import Lock
from . import records, tracing
from .backend import RedisBackend, prepare_follow_up
from .batches import TaskBatch, add_values, batch_of
from .compat import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
    tasks_logger,
)
from .records import UNKNOWN, StoredCall, UnknownTask, failed
from .retries import final_error, next_attempt, retry

__all__ = ["Limits", "Worker"]

logger = logging.getLogger(__name__)

#: seconds before a call whose lock other code held is tried again
GUARD_DELAY = 1.0
#: seconds between two retries that one process schedules for the same lock
GUARD_INTERVAL = 0.01
#: locks for which a process remembers moments
MAX_MOMENTS = 10_000
#: seconds for which an unknown task is retried after a worker has found it unknown first; then it is moved to
#: dead letters
UNKNOWN_TASK_WINDOW = 3600.0
#: seconds before the first retry
UNKNOWN_FIRST_DELAY = 1.0
#: seconds between two retries, at most
UNKNOWN_MAX_DELAY = 60.0

#: modules of Django, and of the backport, with receivers of the signals that log them
_OWN_RECEIVERS = ("django.tasks.signals", "django_tasks.signals", "django_tasks.signal_handlers")
#: the log line of a task that returns nothing, as most do
RETURNED_NONE = "Rnull"
#: outcomes after which a call has ended
_FINAL = (Outcome.DEAD, Outcome.CANCELLED)
#: makes an attempt with the fence of the lock
GuardedAttempt = Callable[[int], Settlement | None]

#: modules whose frames stand between the worker and a task
_OWN_MODULES = (__name__, executor.__name__, threads.__name__)

_is_async = functools.lru_cache(maxsize=1024)(iscoroutinefunction)


class Worker(jobs_worker.Worker):
    """Runs the tasks of one backend until it is stopped."""

    def __init__(
        self,
        backend: RedisBackend,
        queues: Sequence[str] | Mapping[str, int],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        attempt = Runner(backend, limits.lease)
        super().__init__(backend.engine, backend.using, queues, attempt, limits, load_tasks)


def load_tasks() -> None:
    """Import the modules that may have tasks: `tasks` of each installed app, and TASK_MODULES. If that fails,
    the attempts at their tasks report why."""
    for name in records.task_modules():
        try:
            import_module(name)
        except BaseException as error:  # SystemExit, too
            log_exception(logger, error, "Importing %s failed.", name)


class Runner:
    """Makes attempts at the tasks of one backend: reads a call, acquires its lock, makes the attempt."""

    def __init__(self, backend: RedisBackend, lease: float) -> None:
        self._backend = backend
        self._guards = Guards(backend.using, lease)

    def __call__(self, running: RunningJob) -> Settlement | Coroutine[Any, Any, Settlement] | None:
        """Call the task of a job, unless its lock is not free; returns the settlement of its lease, None if
        another worker may have it, or the rest of the attempt if the task is async."""
        leased = running.leased
        running_task.set((self._backend.alias, leased.lease.id))  # the context is this attempt's own
        try:
            call = records.parse_call(self._backend.alias, leased.payload, leased.state)
            if " values=" in leased.state.more:
                add_values(call.kwargs, self._backend.alias, leased.state)
            lock = self._guards.lock_of(leased.state)
        except records.UnknownTask as error:
            return settle_unknown(self._backend, running, error)
        except (Unavailable, OutcomeUnknown) as error:  # of reading the values of a batch
            logger.warning("Job id=%s was not started, retrying: %s", running.leased.lease.id, error)
            return running.settlement(Outcome.RELEASE, round(GUARD_DELAY * 1000))
        except BaseException as error:  # of an unreadable task, or of a module that exits when it is imported
            return running.settlement(Outcome.DEAD, line=records.failed(error))
        if running.failure is not None:
            kind = Attempt if tracing.tracer is None else TracedAttempt
            return kind(self._backend, call, running).conclude(running.failure)
        if lock is None:
            return self._start(call, running)
        return self._guards.run(lock, running, partial(self._start_in_lane, call, running))

    def _start(
        self, call: StoredCall, running: RunningJob
    ) -> Settlement | Coroutine[Any, Any, Settlement] | None:
        kind = Attempt if tracing.tracer is None else TracedAttempt
        attempt = kind(self._backend, call, running)
        return attempt.begin_async() if _is_async(call.task.func) else attempt.run()

    def _start_in_lane(self, call: StoredCall, running: RunningJob, lock_fence: int) -> Settlement | None:
        """Make an attempt that holds a lock, which is held by the thread."""
        if not running.may_start:
            return running.refusal
        kind = Attempt if tracing.tracer is None else TracedAttempt
        return kind(self._backend, call, running, lock_fence).run()


class Attempt:
    """One attempt at a call. The sync path is `run`; the async path `begin_async` in a lane, then a coroutine
    on the event loop."""

    __slots__ = ("_backend", "_call", "_lock_fence", "_result", "_running")

    def __init__(
        self, backend: RedisBackend, call: StoredCall, running: RunningJob, lock_fence: int = 0
    ) -> None:
        self._backend = backend
        self._call = call
        self._running = running
        self._lock_fence = lock_fence
        self._result: TaskResult | None = None

    @property
    def result(self) -> TaskResult:
        """The result, which is made when something needs it."""
        if self._result is None:
            lease, _, state = self._running.leased
            self._result = records.result_of(self._backend.alias, lease.id, state, self._call)
        return self._result

    def run(self) -> Settlement:
        """Call the task in this lane; returns the settlement."""
        threads.prepare_connections()
        try:
            self._send(task_started, logging.INFO)
            try:
                value = self._value()
                settlement = self._success(value)
            except BaseException as error:  # SystemExit and KeyboardInterrupt end the attempt, not the lane
                return self._failed(error)
            self._finish(settlement, None, value)
            return settlement
        finally:
            close_old_connections()

    def conclude(self, failure: Exception) -> Settlement:
        """The settlement of an attempt that has ended with its process: it was killed because of this."""
        try:
            raise failure
        except Exception as error:
            return self._failed(error)

    def begin_async(self) -> Settlement | Coroutine[Any, Any, Settlement]:
        """Make the coroutine of an async task; returns the rest of the attempt. It may fail before that."""
        task = self._call.task
        try:
            if is_listened(task_started):
                threads.prepare_connections()
                try:
                    self._send(task_started, logging.INFO)
                finally:
                    close_old_connections()
            else:
                self._send(task_started, logging.INFO)
            coroutine = task.func(*self._args(), **self._call.kwargs)
        except BaseException as error:
            return self._failed(error)
        return self._arun(coroutine)

    async def _arun(self, coroutine: Coroutine[Any, Any, Any]) -> Settlement:
        try:
            value = await self._running.acall(coroutine, self._backend.timeout(self._call.task))
            settlement = self._success(value)
        except GeneratorExit:  # its event loop has ended before it
            raise
        except BaseException as error:
            settlement = self._failure(error)
            if settlement.outcome in _FINAL:
                await self._afinish(settlement, error)
            return settlement
        await self._afinish(settlement, None, value)
        return settlement

    def _value(self) -> Any:
        call, running = self._call, self._running
        func, timeout = call.task.func, self._backend.timeout(call.task)
        args, kwargs = self._args(), call.kwargs
        if _is_async(func):
            return running.call_async(func(*args, **kwargs), timeout)
        return running.call(lambda: func(*args, **kwargs), timeout)

    def _args(self) -> list[Any]:
        call = self._call
        if not call.task.takes_context:
            return call.args
        batch = batch_of(self._backend.alias, self._running.leased)
        context = Context(
            task_result=self.result, running=self._running, lock_fence=self._lock_fence, batch=batch
        )
        return [context, *call.args]

    def _success(self, value: Any) -> Settlement:
        line = RETURNED_NONE
        if value is not None:
            value = normalize_json(value)
            line = records.returned(value)
        task = self._call.task
        follow_up = None
        if getattr(task, "then", None) is not None:
            follow_up = prepare_follow_up(self._backend, self.result, value)
        lease = self._running.leased.lease
        return Settlement(lease, Outcome.DONE, self._backend.result_ttl_of(task), line, follow_up)

    def _failed(self, error: BaseException) -> Settlement:
        """The settlement after an exception, with the signal of the end. Called while `error` is handled."""
        settlement = self._failure(error)
        if settlement.outcome in _FINAL:
            self._finish(settlement, error)
        return settlement

    def _failure(self, error: BaseException) -> Settlement:
        """The settlement after an exception."""
        running, task = self._running, self._call.task
        if running.released or issubclass(type(error), EventLoopEnded):
            return running.settlement(released(running.leased, has_started=True))
        if running.cancelled_at is not None:
            ttl = self._backend.result_ttl_of(task)
            return running.settlement(Outcome.CANCELLED, ttl, records.CANCELLED)
        _remove_own_frames(error)
        state = running.leased.state
        error = final_error(error, state)
        line = records.failed(error)
        backoff, failed_result = self._backend.backoff(task), partial(self._failed_result, line, error)
        ms = next_attempt(task, backoff, failed_result, error, state)
        if ms is not None:
            return running.settlement(Outcome.RETRY, ms, line)
        return running.settlement(Outcome.DEAD, line=line)

    def _failed_result(self, line: str, error: BaseException) -> TaskResult:
        """The result as if the task had failed for good, with this error."""
        self._complete(self._running.settlement(Outcome.DEAD, line=line), error, None)
        return self.result

    def _finish(self, settlement: Settlement, error: BaseException | None, value: Any = None) -> None:
        """Send the signal of the end. Called while `error` is handled, so that receivers can log it."""
        level = logging.INFO if error is None else logging.ERROR
        if not is_listened(task_finished) and not tasks_logger.isEnabledFor(level):
            return
        self._complete(settlement, error, value)
        if error is not None:
            _formatted.failure = error, self.result.errors[-1].traceback
        self._send(task_finished, level)
        _formatted.failure = None

    async def _afinish(self, settlement: Settlement, error: BaseException | None, value: Any = None) -> None:
        """As `_finish`, for a coroutine: receivers of the site are called where they may use databases."""
        if is_listened(task_finished):
            await threads.call_in_thread(partial(self._finish, settlement, error, value))
        else:
            self._finish(settlement, error, value)

    def _complete(self, settlement: Settlement, error: BaseException | None, value: Any) -> None:
        """Complete the result for the signal."""
        result = self.result
        if result.is_finished:
            return
        status = TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", timezone.now())
        if error is None:
            object.__setattr__(result, "_return_value", value)
        else:
            records.add_error(result, settlement.line, self._running.leased.state)

    def _send(self, signal: Signal, level: int) -> None:
        """Send a signal, unless nobody would notice. Whatever a receiver raises is logged: the attempt
        doesn't depend on it."""
        if not tasks_logger.isEnabledFor(level) and not is_listened(signal):
            return
        try:
            signal.send_robust(type(self._backend), task_result=self.result)  # lets SystemExit pass
        except BaseException as error:
            message = "A receiver of a signal of task id=%s failed; further ones were not called."
            log_exception(logger, error, message, self._running.leased.lease.id)


class TracedAttempt(Attempt):
    """An attempt that the tracer follows."""

    __slots__ = ("_span",)

    def __init__(
        self, backend: RedisBackend, call: StoredCall, running: RunningJob, lock_fence: int = 0
    ) -> None:
        super().__init__(backend, call, running, lock_fence)
        self._span = cast(tracing.Tracer, tracing.tracer).begin(call.task, running.leased)

    def run(self) -> Settlement:
        return self._end(super().run())

    def conclude(self, failure: Exception) -> Settlement:
        return self._end(super().conclude(failure))

    def begin_async(self) -> Settlement | Coroutine[Any, Any, Settlement]:
        begun = super().begin_async()
        return self._end(begun) if isinstance(begun, Settlement) else begun

    async def _arun(self, coroutine: Coroutine[Any, Any, Any]) -> Settlement:
        return self._end(await super()._arun(coroutine))

    def _failure(self, error: BaseException) -> Settlement:
        settlement = super()._failure(error)
        self._span.fail(error)
        return settlement

    def _end(self, settlement: Settlement) -> Settlement:
        self._span.end(settlement.outcome.value)
        return settlement


class _Formatted(threading.local):
    """The failure about which this thread sends a signal, with its traceback as the result has it."""

    failure: tuple[BaseException, str] | None = None


_formatted = _Formatted()


class KnownTracebacks(logging.Filter):
    """Gives the log records of failed attempts the traceback that was formatted for the result: formatting it
    again takes longer than all else that a worker does about a task."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let all records pass."""
        failure = _formatted.failure
        if failure is None or not record.exc_info or record.exc_info[1] is not failure[0]:
            return True
        if len(failure[1]) < records.MAX_TRACEBACK:  # else its beginning is cut off
            record.exc_text = record.exc_text or failure[1].rstrip("\n")
        return True


tasks_logger.addFilter(KnownTracebacks())


def is_listened(signal: Signal) -> bool:
    """Whether a signal has receivers besides Django's own, which only log."""
    for entry in signal.receivers:
        receiver = entry[1]
        if isinstance(receiver, ReferenceType):
            receiver = receiver()
        if receiver is not None and getattr(receiver, "__module__", None) not in _OWN_RECEIVERS:
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):
    """Django's context, with the lease."""

    running: RunningJob
    #: the fence of the call's lock, for fenced writes; 0 without a lock
    lock_fence: int = 0
    #: the batch of the call, to which it may add calls; None without one
    batch: TaskBatch | None = None

    @property
    def fence(self) -> int:
        """Grows with each attempt: a resource that refuses lower ones is safe from late workers."""
        return self.running.leased.lease.fence

    def retry(self, delay: Duration | None = None) -> NoReturn:
        """See retry() of this package."""
        retry(delay)

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: another worker may have started the task, and the result of this
        attempt is refused."""
        return self.running.lease_lost


def _remove_own_frames(error: BaseException) -> None:
    """Remove from a traceback the frames between the worker and the task: formatting takes long, and it is
    done here and again by each handler of the log."""
    trace = sys.exc_info()[2]  # not by an attribute, which the class of the exception may override
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        trace = trace.tb_next
    if trace is not None:
        BaseException.with_traceback(error, trace)


def settle_unknown(backend: RedisBackend, running: RunningJob, error: UnknownTask) -> Settlement:
    """Release a job whose task is unknown, uncounted; it is ready again after a delay. Once the window is
    over, it is dead. The first release adds a line to the log of the job, from which the window counts."""
    lease = running.leased.lease
    try:
        record = perform(backend.using, backend.engine.get(lease.id))
    except MessagingError as failure:
        logger.warning("Reading job id=%s failed; released: %s", lease.id, failure)
        return running.settlement(Outcome.RELEASE, round(UNKNOWN_FIRST_DELAY * 1000))
    now = lease.fence // 1000  # of this claim, by the server's clock
    since = _found_unknown_at(record)
    age = 0.0 if since is None else (now - since) / 1000
    if age >= UNKNOWN_TASK_WINDOW:
        return running.settlement(Outcome.DEAD, line=failed(error))
    # as long as it has been retried already: this doubles the delay with each retry
    delay = min(max(age, UNKNOWN_FIRST_DELAY), UNKNOWN_MAX_DELAY)
    logger.warning("Job id=%s was not started, retrying in %.1f s: %s", lease.id, delay, error)
    return running.settlement(
        Outcome.RELEASE, round(delay * 1000), f"{UNKNOWN}{now}" if since is None else ""
    )


def _found_unknown_at(record: JobRecord | None) -> int | None:
    """When the task was found unknown first (ms); None if that is new, or something else has happened to the
    job since: it was rescheduled, redriven, or run by newer code."""
    last = "" if record is None else record.log.decode().rpartition("\n")[2]
    return int(last[1:]) if last.startswith(UNKNOWN) else None


class Guards:
    """Acquires and releases the locks of the calls of one worker. Of calls, the need for the lock lets only
    one run at a time; other code may hold it."""

    def __init__(self, using: str, lease: float) -> None:
        self._using = using
        self._lease = lease
        self._retries = Moments()

    def lock_of(self, state: State) -> Lock | None:
        """The lock of a call, if it has one; raises InvalidArgument for an invalid name."""
        name = "lock:" in state.more and lock_of(state)
        if not name:
            return None
        return Lock(name, timeout=self._lease, blocking=False, renew=True, using=self._using)

    def run(self, lock: Lock, running: RunningJob, attempt: GuardedAttempt) -> Settlement | None:
        """Make an attempt that holds the lock; if it is not free, release the job."""
        try:
            acquired = lock.acquire()
        except MessagingError as error:
            return self._defer(lock, running, error)
        if not acquired:
            return self._defer(lock, running)
        try:
            return attempt(lock.fence)
        finally:
            _release(lock, running)

    def _defer(self, lock: Lock, running: RunningJob, error: MessagingError | None = None) -> Settlement:
        """Release the job, uncounted; it is ready again after a delay."""
        now = monotonic()
        seconds = self._retries.advance(lock.name, now + GUARD_DELAY, GUARD_INTERVAL) - now
        if error is not None:
            job_id = running.leased.lease.id
            logger.warning(
                "Acquiring %r for job id=%s failed, retrying in %.1f s: %s", lock, job_id, seconds, error
            )
        return running.settlement(Outcome.RELEASE, math.ceil(seconds * 1000))


class Moments:
    """Moments (monotonic) for the keys that were used last."""

    def __init__(self) -> None:
        self._moments: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def advance(self, key: Hashable, earliest: float, step: float) -> float:
        """Set the moment of a key to `earliest`, or to `step` seconds after its last one if that is later;
        returns it."""
        with self._lock:
            last = self._moments.pop(key, None)
            moment = earliest if last is None else max(earliest, last + step)
            self._moments[key] = moment  # as the newest one
            if len(self._moments) > MAX_MOMENTS:
                del self._moments[next(iter(self._moments))]
        return moment


def _release(lock: Lock, running: RunningJob) -> None:
    """Release the lock of an attempt. The attempt has ended, so a failure is logged and not raised."""
    job_id = running.leased.lease.id
    try:
        lock.release()
    except LeaseLost:
        logger.warning("The lease of %r ended before job id=%s: others may have held it.", lock, job_id)
    except MessagingError as error:
        logger.warning(
            "Releasing %r after job id=%s failed; it is free when its lease ends: %s", lock, job_id, error
        )
