"""The worker of tasks: each attempt is a call with its timeout and signals, and an outcome.

A lane acquires the lock and the permit that a call needs without waiting. If one of them is not free, the job
is released with a delay, and the lane claims another job.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, NamedTuple

from django.db import close_old_connections
from django.dispatch import Signal
from django.utils import timezone

from ..core import encoding
from ..core.encoding import current_prefix
from ..core.operations import Script, Steps, log_exception, perform
from ..errors import LeaseLost, MessagingError
from ..services.jobs import running as jobs_running
from ..services.jobs import threads
from ..services.jobs import worker as jobs_worker
from ..services.jobs.engine import LONE, JobRecord, LeasedJob, Outcome, Settlement
from ..services.jobs.queue import retry_delay
from ..services.jobs.running import RunningJob
from ..services.jobs.threads import EventLoopEnded
from ..services.jobs.worker import DEFAULT_LIMITS, Limits
from ..services.locks import Lock
from ..services.semaphores import Semaphore
from ..services.semaphores.semaphore import LIMIT_TTL, SemaphoreKeys
from . import records
from .backend import RedisBackend, prepare_follow_up
from .compat import (
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from .records import UNKNOWN, UnknownTask, failed
from .task import Needs, RedisTask

__all__ = ["Limits", "Worker"]

logger = logging.getLogger(__name__)

#: seconds before a call whose lock or permit was not free is tried again
GUARD_DELAY = 1.0
#: seconds between two retries that one process schedules for the same lock or semaphore
GUARD_INTERVAL = 0.01
#: seconds between two declarations of the same limit by one process
DECLARE_INTERVAL = 60.0
#: locks and semaphores for which a process remembers moments
MAX_MOMENTS = 10_000
#: seconds for which an unknown task is retried after a worker has found it unknown first; then it is moved to
#: dead letters
UNKNOWN_TASK_WINDOW = 3600.0
#: seconds before the first retry
UNKNOWN_FIRST_DELAY = 1.0
#: seconds between two retries, at most
UNKNOWN_MAX_DELAY = 60.0

#: makes an attempt with the fence of the lock, 0 without one
GuardedAttempt = Callable[[int], Settlement | None]

#: modules whose frames stand between the worker and a task
_OWN_MODULES = (__name__, jobs_running.__name__, threads.__name__)

_is_async = functools.lru_cache(maxsize=1024)(iscoroutinefunction)


class ConcurrencyKeys(SemaphoreKeys):
    """The keys of the semaphore of a `concurrency_key`, in one slot."""

    @functools.cached_property
    def declared(self) -> str:
        """STRING: the limit that the code of a worker declared last. Expires when the semaphore has not been
        used for a month."""
        return self.tag + ":declared"


class Worker(jobs_worker.Worker):
    """Runs the tasks of one backend until it is stopped."""

    def __init__(
        self,
        backend: RedisBackend,
        queues: Sequence[str] | Mapping[str, int],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(backend.engine, backend.using, queues, Runner(backend, limits.lease), limits)


class Runner:
    """Makes attempts at the tasks of one backend. Outermost first: the start of a lone task if its import may
    end the process, the lock and the permit (`_attempt_guarded`), the start (`_start`), the connections of
    databases (`_attempt_with_databases`), signals and the outcome (`_attempt`), the call (`_call`)."""

    def __init__(self, backend: RedisBackend, lease: float) -> None:
        self._backend = backend
        self._guards = Guards(backend.using, lease)

    def __call__(self, running: RunningJob) -> Settlement | None:
        """Call the task of a job, unless its lock or permit is not free; returns the settlement of its lease,
        or None if the worker has released it."""
        if running.leased.state.status == LONE and not _is_imported(running.leased.payload):
            with running.start():  # the import may be what ended the other worker
                return self._attempt_guarded(running)
        return self._attempt_guarded(running)

    def _attempt_guarded(self, running: RunningJob) -> Settlement | None:
        try:
            result, needs = self._read(running.leased)
            guard = None if needs is None else self._guards.guard(needs, result.task)
        except records.UnknownTask as error:
            return settle_unknown(self._backend, running, error)
        except BaseException as error:  # of an unreadable task, or of a module that exits when it is imported
            return running.settlement(Outcome.DEAD, line=records.failed(error))
        if guard is None:
            return self._start(result, running)
        return self._guards.run(guard, running, partial(self._start, result, running))

    def _read(self, leased: LeasedJob) -> tuple[TaskResult, Needs | None]:
        record = JobRecord(leased.lease.id, leased.payload, leased.state, b"")
        return records.parse_call(self._backend.alias, record)

    def _start(self, result: TaskResult, running: RunningJob, lock_fence: int = 0) -> Settlement:
        claimed = running.leased
        with running.start():
            if running.leased is not claimed:  # a lone job: now the attempt counts
                result, _ = self._read(running.leased)
            return self._attempt_with_databases(result, running, lock_fence)

    def _attempt_with_databases(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Settlement:
        threads.prepare_connections()
        try:
            return self._attempt(result, running, lock_fence)
        finally:
            close_old_connections()

    def _attempt(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Settlement:
        task = result.task
        _send(task_started, result, self._backend)
        try:
            value = normalize_json(self._call(result, running, lock_fence))
            line = records.returned(value)
            follow_up = prepare_follow_up(self._backend, result, value)
        except BaseException as error:  # SystemExit and KeyboardInterrupt end the attempt, not the lane
            _remove_own_frames(error)
            return self._failed(result, running, error)
        object.__setattr__(result, "_return_value", value)
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        _send(task_finished, result, self._backend)
        settlement = running.settlement(Outcome.DONE, self._backend.result_ttl_of(task), line)
        return settlement if follow_up is None else settlement._replace(follow_up=follow_up)

    def _call(self, result: TaskResult, running: RunningJob, lock_fence: int) -> Any:
        task, timeout = result.task, self._backend.timeout(result.task)
        args: list[Any] = []
        if task.takes_context:
            args = [Context(task_result=result, running=running, lock_fence=lock_fence)]
        args += result.args
        if _is_async(task.func):
            return running.call_async(task.func(*args, **result.kwargs), timeout)
        return running.call(lambda: task.func(*args, **result.kwargs), timeout)

    def _failed(self, result: TaskResult, running: RunningJob, error: BaseException) -> Settlement:
        """Called while `error` is handled, so that receivers of the signal can log it."""
        if running.released or issubclass(type(error), EventLoopEnded):
            return running.settlement(Outcome.RELEASE)
        state = running.leased.state
        described = records.task_error(error)
        line = records.failure_line(described)
        if issubclass(type(error), _retries(result.task)) and state.failures < state.max_attempts:
            return running.settlement(Outcome.RETRY, round(retry_delay(state.failures) * 1000), line)
        result.errors.append(described)
        object.__setattr__(result, "finished_at", timezone.now())
        object.__setattr__(result, "status", TaskResultStatus.FAILED)
        _send(task_finished, result, self._backend)
        return running.settlement(Outcome.DEAD, line=line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):
    """Django's context, with the lease."""

    running: RunningJob
    #: the fence of the call's lock, for fenced writes; 0 without a lock
    lock_fence: int = 0

    @property
    def fence(self) -> int:
        """Grows with each attempt: a resource that refuses lower ones is safe from late workers."""
        return self.running.leased.lease.fence

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: another worker may have started the task, and the result of this
        attempt is refused."""
        return self.running.lease_lost


def _is_imported(payload: bytes) -> bool:
    """Whether the module of a job's task is imported; True for an unreadable payload."""
    try:
        path: str = encoding.loads_all([payload])[0][0]
        return path.rpartition(".")[0] in sys.modules
    except Exception:
        return True


def _retries(task: Task) -> tuple[type[BaseException], ...]:
    return task.retries if isinstance(task, RedisTask) else ()


def _send(signal: Signal, result: TaskResult, backend: RedisBackend) -> None:
    """Send a signal. Whatever a receiver raises is logged: the attempt doesn't depend on it."""
    try:
        signal.send_robust(type(backend), task_result=result)  # logs exceptions, but lets SystemExit pass
    except BaseException as error:
        message = "A receiver of a signal of task id=%s failed; further ones were not called."
        log_exception(logger, error, message, result.id)


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
    """Acquires and releases what the calls of one worker need."""

    def __init__(self, using: str, lease: float) -> None:
        self._using = using
        self._lease = lease
        self._retries = Moments()
        self._declared = Moments()

    def guard(self, needs: Needs, task: Task) -> Guard:
        """What an attempt at a call has to acquire; raises InvalidArgument for an invalid name."""
        limit = task.concurrency if isinstance(task, RedisTask) else None
        parts: list[Lock | Semaphore] = []
        if needs.lock:
            lock = Lock(needs.lock, timeout=self._lease, blocking=False, renew=True, using=self._using)
            parts.append(lock)
        if needs.semaphore and limit is not None:
            parts.append(
                Semaphore(needs.semaphore, limit, timeout=self._lease, renew=True, using=self._using)
            )
        return Guard(parts, limit or 0)

    def run(self, guard: Guard, running: RunningJob, attempt: GuardedAttempt) -> Settlement | None:
        """Make an attempt that holds the lock and the permit; if one is not free, release the job."""
        held: list[Lock | Semaphore] = []
        try:
            for part in guard.parts:
                try:
                    acquired = self._acquire(part, guard.limit)
                except MessagingError as error:
                    return self._defer(part, running, error)
                if not acquired:
                    return self._defer(part, running)
                held.append(part)
            return attempt(next((part.fence for part in held if isinstance(part, Lock)), 0))
        finally:
            for part in reversed(held):
                _release(part, running)

    def _acquire(self, part: Lock | Semaphore, limit: int) -> bool:
        if isinstance(part, Semaphore):
            self._declare(part.name, limit)
        return part.acquire()

    def _defer(
        self, part: Lock | Semaphore, running: RunningJob, error: MessagingError | None = None
    ) -> Settlement:
        """Release the job, uncounted; it is ready again after a delay."""
        now = monotonic()
        retry_at = self._retries.advance((type(part), part.name), now + GUARD_DELAY, GUARD_INTERVAL)
        seconds = retry_at - now
        if error is not None:
            job_id = running.leased.lease.id
            logger.warning(
                "Acquiring %r for job id=%s failed, retrying in %.1f s: %s", part, job_id, seconds, error
            )
        return running.settlement(Outcome.RELEASE, math.ceil(seconds * 1000))

    def _declare(self, name: str, limit: int) -> None:
        """Put the limit that the code declares into force, unless this process has done so recently."""
        now, prefix = monotonic(), current_prefix()
        declared = self._declared.get((prefix, name, limit))
        if declared is None or now - declared >= DECLARE_INTERVAL:
            perform(self._using, _declare_limit(ConcurrencyKeys(prefix, name), limit))
            self._declared.advance((prefix, name, limit), now, 0)


class Guard(NamedTuple):
    """The lock and the semaphore of one attempt, in the order in which they are acquired."""

    #: the lock first: other calls need the semaphore more often than the same lock, so that it should not be
    #: acquired in vain
    parts: Sequence[Lock | Semaphore]
    #: limit of the semaphore
    limit: int


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

    def get(self, key: Hashable) -> float | None:
        """The moment of a key, or None."""
        return self._moments.get(key)


def _declare_limit(keys: ConcurrencyKeys, limit: int) -> Steps[None]:
    yield Script("tasks/limit", [keys.limit, keys.declared], [limit, LIMIT_TTL])


def _release(part: Lock | Semaphore, running: RunningJob) -> None:
    """Release what an attempt held. The attempt has ended, so a failure is logged and not raised."""
    job_id = running.leased.lease.id
    try:
        part.release()
    except LeaseLost:
        logger.warning("The lease of %r ended before job id=%s: others may have held it.", part, job_id)
    except MessagingError as error:
        logger.warning(
            "Releasing %r after job id=%s failed; it is free when its lease ends: %s", part, job_id, error
        )
