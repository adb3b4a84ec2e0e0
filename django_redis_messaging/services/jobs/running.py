"""What a worker runs: jobs with their timeouts, whose leases are kept and settled."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ... import conf
from ...core.operations import log_exception, perform, perform_renewal
from ...core.outcome import time_left
from ...errors import MessagingError, OutcomeUnknown, TaskTimeout
from ..common.leases import RenewedByCall
from . import threads
from .engine import LONE, Engine, LeasedJob, Outcome, Settlement
from .threads import INTERRUPT_INTERVAL, AttemptInterrupted, InterruptibleCall

logger = logging.getLogger(__name__)

#: seconds between two checks for timeouts while no job runs
IDLE_INTERVAL = 1.0
#: seconds between two checks while jobs run, at most: a job that has just started may have a shorter timeout
#: than those checked
TIMEOUT_INTERVAL = 0.5
#: seconds between two checks, at least
MIN_INTERVAL = 0.01


class NotStarted(Exception):
    """An attempt can't be started, now or at all."""

    def __init__(self, settlement: Settlement | None) -> None:
        #: of the lease; None if another worker may have it
        self.settlement = settlement
        super().__init__(settlement)


@dataclass(eq=False)
class RunningJob:
    """A job that a worker runs."""

    leased: LeasedJob
    #: runs a coroutine on the worker's event loop and returns its result
    run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any]
    #: the block in which an attempt at a lone job runs; raises NotStarted
    start_lone: Callable[[RunningJob], AbstractContextManager[object]] = nullcontext
    #: called when a call with a short timeout has begun
    on_short_timeout: Callable[[], object] = lambda: None
    thread: int = field(default_factory=threading.get_ident)
    #: when the call began: monotonic; None before
    started: float | None = None
    #: seconds the call may take; None: any time
    timeout: float | None = None
    #: whether another worker may have the job now
    lease_lost: bool = False
    #: whether the worker released the job because the worker ends
    released: bool = False
    #: the call, if it has a timeout
    _interruptible: InterruptibleCall | None = None

    def settlement(self, outcome: Outcome, ms: int = 0, line: str = "") -> Settlement:
        """The job's lease with its outcome."""
        return self.leased.lease.settlement(outcome, ms, line)

    @property
    def overdue(self) -> float:
        """Seconds since the timeout; negative before, and without a timeout."""
        if self.timeout is None or self.started is None:
            return -1.0
        return monotonic() - self.started - self.timeout

    def start(self) -> AbstractContextManager[object]:
        """Make the attempt in this block; raises NotStarted. Nothing that the job calls runs before it."""
        if self.leased.state.status == LONE:
            return self._start_lone()
        self._check_lease()  # the claim has started it
        return nullcontext()

    @contextmanager
    def _start_lone(self) -> Iterator[None]:
        with self.start_lone(self):
            self._check_lease()
            yield

    def _check_lease(self) -> None:
        if self.released or self.lease_lost:  # another worker may have the job by now
            raise NotStarted(None)

    @property
    def was_interrupted(self) -> bool:
        """Whether a call was interrupted in this thread: anything may be half done there."""
        return self._interruptible is not None and self._interruptible.interrupts > 0

    @property
    def seconds_to_interrupt(self) -> float | None:
        """Seconds until a call has to be interrupted; None: never."""
        call = self._interruptible
        seconds = None if call is None else call.seconds_to_interrupt
        return None if seconds is None else max(-self.overdue, seconds)

    def call(self, function: Callable[[], Any], timeout: float | None = None) -> Any:
        """Call a function. After `timeout` seconds it is interrupted, by an exception that `except Exception`
        does not catch, and again each second until it ends; then this raises TaskTimeout. Raises
        TransactionManagementError if the function left a transaction open."""
        self._count_from_now(timeout)
        call = None if timeout is None else InterruptibleCall(timeout)
        try:
            value = function() if call is None else self._call_within(call, function)
        finally:
            left_open = threads.discard_open_transactions()
            if call is not None and call.interrupts:
                threads.discard_connections()
        if left_open:
            raise threads.open_transaction_error(left_open)
        return value

    def _call_within(self, call: InterruptibleCall, function: Callable[[], Any]) -> Any:
        self._interruptible = call
        if call.seconds < IDLE_INTERVAL:
            self.on_short_timeout()
        value, error = call.run(function)
        if error is None:
            return value
        try:
            if call.interrupts:
                raise _timed_out(error, call.seconds)
            raise error
        finally:
            del error  # its traceback refers to this frame

    def call_async(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine. After `timeout` seconds it is cancelled, and again each second until it ends; then
        this raises TaskTimeout."""
        self._count_from_now(timeout)
        if timeout is not None:
            coroutine = _within(coroutine, timeout, self._log_interrupt)
        return self.run_coroutine(coroutine)

    def _count_from_now(self, timeout: float | None) -> None:
        self.started, self.timeout = monotonic(), timeout

    def interrupt(self) -> None:
        """Interrupt the call in its thread, unless that was done within the last second."""
        call = self._interruptible
        if call is not None and call.interrupt():
            self._log_interrupt(call.interrupts)

    def _log_interrupt(self, number: int) -> None:
        if number > 1 and number & (number - 1) == 0:  # less and less often
            logger.warning(
                "Job id=%s still runs %.1f s after its timeout; interrupted %d times.",
                self.leased.lease.id,
                self.overdue,
                number,
            )


def _timed_out(error: BaseException, seconds: float) -> TaskTimeout:
    """What is recorded of an interrupted call that raised `error`."""
    timeout = TaskTimeout(f"The call took longer than {seconds:g} s.")
    if issubclass(type(error), AttemptInterrupted):
        return timeout.with_traceback(error.__traceback__)
    timeout.__cause__ = error
    return timeout


async def _within(
    coroutine: Coroutine[Any, Any, Any], seconds: float, on_interrupt: Callable[[int], object]
) -> Any:
    # a task of its own: a cancellation that the coroutine doesn't notice ends with it
    call = asyncio.ensure_future(_outcome(coroutine))
    interrupts, pause = 0, seconds
    while not (await asyncio.wait([call], timeout=pause))[0]:
        interrupts, pause = interrupts + 1, INTERRUPT_INTERVAL
        call.cancel()
        on_interrupt(interrupts)
    if call.cancelled():  # before it began
        coroutine.close()
        raise TaskTimeout(f"The call took longer than {seconds:g} s.")
    value, error = call.result()
    try:
        if error is None:
            return value
        if interrupts:
            raise TaskTimeout(f"The call took longer than {seconds:g} s.") from error
        raise error
    finally:
        del error  # its traceback refers to this frame


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """The result of a coroutine, and what it raised. As the exception of an asyncio task, SystemExit would
    end the event loop."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


class RunningJobs:
    """The jobs that the lanes of a worker run now."""

    def __init__(self) -> None:
        self._jobs: set[RunningJob] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(list(self._jobs))  # a copy: lanes add and remove jobs at any time

    def add(self, job: RunningJob) -> None:
        """Add a job that starts."""
        self._jobs.add(job)

    def discard(self, job: RunningJob) -> None:
        """Remove a job that has ended."""
        self._jobs.discard(job)

    def interrupt_overdue(self) -> None:
        """Interrupt the jobs whose time is up."""
        for job in self:
            if job.overdue >= 0:
                job.interrupt()

    def seconds_to_check(self) -> float:
        """Seconds until a timeout may have to be handled."""
        if not self._jobs:
            return IDLE_INTERVAL
        due = [seconds for job in self if (seconds := job.seconds_to_interrupt) is not None]
        return max(min([TIMEOUT_INTERVAL, *due]), MIN_INTERVAL)

    def with_leases(self) -> list[RunningJob]:
        """The jobs whose leases must be extended: as long as they run, even after their timeouts. Released
        ones are left out."""
        return [job for job in self if not job.released]

    def mark_lost(self, jobs: Iterable[RunningJob]) -> None:
        """Mark jobs whose leases were lost, unless they have ended by now."""
        for job in jobs:
            if job in self._jobs and not job.lease_lost:
                job.lease_lost = True
                logger.warning("Job id=%s lost its lease while it ran.", job.leased.lease.id)


class Heartbeat:
    """Extends the leases of the running jobs in one call, and stores the state of the worker: after each
    third of a lease."""

    def __init__(
        self,
        engine: Engine,
        using: str,
        worker: str,
        running: RunningJobs,
        lease: float,
        done: Callable[[], int],
        on_failure: Callable[[], object],
    ) -> None:
        #: whether a claim was answered since the last heartbeat
        self.consumed = False
        self._engine = engine
        self._using = using
        self._worker = worker
        self._running = running
        self._lease = lease
        self._done = done
        self._on_failure = on_failure
        self._failed = False
        #: start of the worker by the server's clock: ms; 0 before the first heartbeat
        self._started = 0
        self._ending = False
        self._renewal = RenewedByCall(using, f"worker {worker}", lease / 3, self._beat)

    def start(self) -> None:
        """Send the first heartbeat, and go on."""
        self._renewal.start()

    def stop(self) -> None:
        """Stop, and wait for a heartbeat in progress, until the deadline."""
        self._ending = True
        self._renewal.end_and_wait(max(time_left(), 0))

    def _beat(self) -> None:
        """An unexpected error ends the worker; leases are kept until then."""
        try:
            self.keep_leases()
            self.report()
        except MessagingError:
            raise  # it is repeated
        except BaseException as error:  # SystemExit too: the thread must not end
            if not self._failed:
                self._failed = True
                self._on_failure()
                log_exception(logger, error, "The heartbeat of worker %s failed; stopping.", self._worker)

    def keep_leases(self) -> None:
        """Extend the leases of running jobs."""
        kept = self._running.with_leases()
        if not kept:
            return
        leases = [running.leased.lease for running in kept]
        extended = perform_renewal(self._using, self._engine.extend(leases, round(self._lease * 1000)))
        self._running.mark_lost([one for one, kept_on in zip(kept, extended, strict=True) if not kept_on])

    def report(self) -> None:
        """Store the state of the worker, unless it is ending."""
        if self._ending:
            return
        done = self._done()  # read first: what has run was claimed before
        consumed, self.consumed = self.consumed, False  # a claim may be answered during the call
        beat = self._engine.beat(
            self._worker, consumed=consumed, started=self._started, running=len(self._running), done=done
        )
        try:
            now = perform_renewal(self._using, beat)
        except BaseException:
            self.consumed |= consumed
            raise
        self._started = self._started or now


@dataclass(slots=True)
class Outage:
    """Failures of a lane to reach Redis, in a row."""

    failures: int = 0
    #: whether a request was sent without a reply: it may have been applied
    unanswered: bool = False
    #: whether it has lasted for COMMAND_DEADLINE
    is_long: bool = False
    _began: float = field(default_factory=monotonic)

    def add(self, error: MessagingError) -> None:
        """Add a failure."""
        self.failures += 1
        is_unknown = isinstance(error, OutcomeUnknown)
        self.unanswered = self.unanswered or is_unknown
        # other errors are raised after retries for so long, or no retry helps
        self.is_long = not is_unknown or monotonic() - self._began >= conf.current().COMMAND_DEADLINE


class Settler:
    """Settles leases one at a time."""

    def __init__(self, engine: Engine, using: str) -> None:
        self._engine = engine
        self._using = using

    def settle(self, settlement: Settlement, *, is_repeat: bool = False) -> None:
        """Settle a lease; raises MessagingError. `is_repeat`: it may have been settled before."""
        follow_up = settlement.follow_up
        if follow_up is None:
            applied: int | None = perform(self._using, self._engine.settle(settlement))
        else:
            applied = perform(self._using, self._engine.settle_and_push(settlement, follow_up))
            if applied:
                follow_up.pushed(applied)
        if applied is not None and not applied and not is_repeat:
            log_lost_lease(settlement)

    def try_settle(self, settlement: Settlement, outage: Outage) -> bool:
        """Settle a lease in an outage; returns False if that has to be repeated."""
        try:
            self.settle(settlement, is_repeat=outage.unanswered)
        except OutcomeUnknown:
            outage.unanswered = True
            return False
        except MessagingError:
            return False
        return True


def log_lost_lease(settlement: Settlement) -> None:
    """Log that a settlement was refused."""
    job_id, outcome = settlement.lease.id, settlement.outcome.value
    logger.warning("Job id=%s ended (%s), but its lease was lost; refused.", job_id, outcome)


def log_unsettled(settlements: Sequence[Settlement], error: MessagingError) -> None:
    """Log that leases could not be settled before the worker ended."""
    ids = ", ".join(one.lease.id for one in settlements)
    logger.warning("Settling failed; delivered again when the leases end: jobs id=%s: %s", ids, error)
