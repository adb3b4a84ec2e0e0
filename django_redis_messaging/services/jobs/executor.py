"""The executor: runs jobs in threads of this process, its lanes, and coroutines on one event loop.

A supervisor (worker.py) hands over batches of jobs that it has claimed, and gets reports of what has become
of each. It may be in another process: batches and reports are plain values. A lane runs its batch in order.
The outcomes of a batch are reported together when it ends; but a slow job never holds back others: outcomes
that wait for 2 ms are reported, and jobs that have not started behind a slow one are handed back.

A job whose attempt is a coroutine goes on on the event loop and leaves its lane to others.

One thread watches: it interrupts calls whose time is up, or that are cancelled, and does for slow batches
what their lanes can't do. It never waits for Redis.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from time import monotonic
from types import CoroutineType
from typing import Any, NamedTuple

from ...core.operations import LoopGuard, log_exception
from ...errors import TaskCancelled, TaskTimeout
from . import threads
from .engine import LeasedJob, Outcome, Settlement
from .threads import (
    INTERRUPT_INTERVAL,
    AttemptInterrupted,
    EventLoop,
    EventLoopEnded,
    InterruptibleCall,
    create_backends,
    end_process,
    find_held_locks,
)

logger = logging.getLogger(__name__)

#: seconds between two checks for timeouts while no job runs
IDLE_INTERVAL = 1.0
#: seconds between two checks while jobs run, at most: a job that has just started may have a shorter timeout
#: than those checked
TIMEOUT_INTERVAL = 0.5
#: seconds between two checks of a call that is to be interrupted, at least
MIN_INTERVAL = 0.01
#: seconds between two checks of batches, and for which an outcome waits for others, at most
BATCH_INTERVAL = 0.002
#: seconds after which a job is slow: those behind it in its batch are handed back. It may be a quick one that
#: waited for other threads: Python lets each run for 5 ms
SLOW = 0.005
#: seconds for which a batch waits for a lane, while all are busy, before it is handed back
MAX_WAIT = 0.02

#: what has become of a job, besides the outcomes: it has not started, and won't
NOT_STARTED = "not started"
#: it ended without a settlement: another worker may have it, or its lease has to end
UNSETTLED = "unsettled"
#: it goes on on the event loop, and has left its lane
GOES_ON = "goes on"

#: what a job does: it runs without a timeout. With one, it is the moment (monotonic) at which that ends
RUNS = math.inf
#: its attempt has ended
ENDED = -1.0

#: makes an attempt at a job; returns its settlement, None if it was not started or its lease was lost, or a
#: coroutine that returns one of these
Attempt = Callable[["RunningJob"], "Settlement | Coroutine[Any, Any, Settlement | None] | None"]


class Report(NamedTuple):
    """What has become of one job. All values are plain: it may be sent to another process."""

    #: the number with which the job was handed over
    number: int
    #: the value of an Outcome, or NOT_STARTED, UNSETTLED or GOES_ON
    ended: str
    #: see Settlement
    ms: int = 0
    line: str = ""
    #: queue, fields of the job, max_aliases: see FollowUp
    follow_up: tuple[str, tuple[str | int, ...], int] | None = None
    #: whether the call of the job has begun
    started: bool = False
    #: seconds for which the job occupied its lane, or ran on the event loop
    seconds: float = 0.0
    #: whether it ran, or runs, on the event loop
    is_async: bool = False


def released(leased: LeasedJob, has_started: bool) -> Outcome:
    """The outcome of a job that its worker gives up: one with a single attempt is not started twice."""
    return Outcome.LOST if has_started and leased.state.max_attempts == 1 else Outcome.RELEASE


#: takes reports, in any thread
Reporter = Callable[[list[Report]], object]
#: takes the number of a job and what it does now, in any thread
Note = Callable[[int, float], object]


class RunningJob:
    """A job in this process: a job that waits for its lane, or an attempt at it."""

    __slots__ = (
        "_call", "_executor", "_interrupts", "_task", "_timer", "cancelled_at", "failure", "lease_lost",
        "leased", "number", "released", "started", "timeout",
    )  # fmt: skip

    def __init__(self, leased: LeasedJob, executor: Executor, number: int = 0) -> None:
        self.leased = leased
        self.number = number
        #: when the call began: monotonic; None before
        self.started: float | None = None
        #: seconds the call may take; None: any time
        self.timeout: float | None = None
        #: whether another worker may have the job now
        self.lease_lost = False
        #: whether the worker has released the job because it ends
        self.released = False
        #: when it was cancelled: monotonic; None: it was not
        self.cancelled_at: float | None = None
        #: how the attempt ended, if its process was killed because of it
        self.failure: TaskTimeout | TaskCancelled | None = None
        self._executor = executor
        self._call: InterruptibleCall | None = None
        #: the asyncio task, while a coroutine of the job runs there
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: how often the coroutine was cancelled
        self._interrupts = 0

    def settlement(self, outcome: Outcome, ms: int = 0, line: str = "") -> Settlement:
        """The job's lease with its outcome."""
        return Settlement(self.leased.lease, outcome, ms, line)

    @property
    def may_start(self) -> bool:
        """Whether the worker still has the job, and it shall run."""
        return not (self.lease_lost or self.released or self.cancelled_at is not None)

    @property
    def refusal(self) -> Settlement | None:
        """The settlement of a job that may not start: of a cancelled one, which ends when it is released."""
        if self.cancelled_at is None or self.lease_lost or self.released:
            return None
        return self.settlement(Outcome.RELEASE)

    @property
    def was_interrupted(self) -> bool:
        """Whether a call was interrupted in its thread: anything may be half done there."""
        return self._call is not None and self._call.interrupts > 0

    @property
    def overdue(self) -> float:
        """Seconds since the timeout, or since it was cancelled; negative before."""
        now, overdue = monotonic(), -1.0
        if self.timeout is not None and self.started is not None:
            overdue = now - self.started - self.timeout
        return overdue if self.cancelled_at is None else max(overdue, now - self.cancelled_at)

    @property
    def seconds_to_interrupt(self) -> float | None:
        """Seconds until the call in a lane has to be interrupted; None: never."""
        if self.cancelled_at is None and self.timeout is None:
            return None
        seconds = None if self._call is None else self._call.seconds_to_interrupt
        if seconds is None:
            return None if self.cancelled_at is None else 0.0
        return max(-self.overdue, seconds)

    def call(self, function: Callable[[], Any], timeout: float | None = None) -> Any:
        """Call a function in this lane. After `timeout` seconds, or when the job is cancelled, it is
        interrupted, by an exception that `except Exception` does not catch, and again each second until it
        ends; then this raises TaskTimeout or TaskCancelled. Raises TransactionManagementError if the function
        left a transaction open."""
        self._begin(timeout)
        call = self._call = InterruptibleCall()
        if timeout is not None and timeout < IDLE_INTERVAL:
            self._executor.check_soon()
        try:
            value, error = call.run(function)
        finally:
            self._note_end()
            left_open = threads.discard_open_transactions()
            if call.interrupts:
                threads.discard_connections()
        try:
            if error is not None or left_open:
                self._raise(error, left_open, interrupted=call.interrupts > 0)
            return value
        finally:
            del error  # its traceback refers to this frame

    def call_async(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine on the event loop while this lane waits for it; raises what `acall` raises."""
        return self._executor.event_loop.run(self.acall(coroutine, timeout))

    async def acall(
        self,
        coroutine: Coroutine[Any, Any, Any],
        timeout: float | None = None,  # noqa: ASYNC109 (as in call)
    ) -> Any:
        """Run a coroutine here, on the event loop. After `timeout` seconds, or when the job is cancelled, it
        is cancelled, and again each second until it ends; then this raises TaskTimeout or TaskCancelled.
        Raises TransactionManagementError if it left a transaction open."""
        try:
            self._begin(timeout)
        except BaseException:
            coroutine.close()
            raise
        self._set_timer(timeout)
        value, error = await threads.run_to_end(coroutine)
        try:
            await self._end_coroutine()
            self._note_end()
            left_open = await threads.end_calls(interrupted=self._interrupts > 0)
            if error is not None or left_open:
                self._raise(error, left_open, interrupted=self._interrupts > 0)
            return value
        finally:
            del error  # its traceback refers to this frame

    def _begin(self, timeout: float | None) -> None:
        self.started, self.timeout = monotonic(), timeout
        if timeout is not None and self._executor.note is not None:
            self._executor.note(self.number, self.started + timeout)
        if self.cancelled_at is not None:
            raise TaskCancelled("The task was cancelled before its call.")

    def _note_end(self) -> None:
        if self.timeout is not None and self._executor.note is not None:
            self._executor.note(self.number, RUNS)

    def _set_timer(self, timeout: float | None) -> None:
        self._task = asyncio.current_task()
        if timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._cancel_task)
        if self.cancelled_at is not None:  # meanwhile, by another thread
            asyncio.get_running_loop().call_soon(self._cancel_task)

    async def _end_coroutine(self) -> None:
        """Cancel the coroutine no more; discard a cancellation that was not raised yet."""
        task, timer, self._task, self._timer = self._task, self._timer, None, None
        if timer is not None:
            timer.cancel()
        if task is not None and task.cancelling():
            while task.cancelling():
                task.uncancel()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    def interrupt(self) -> None:
        """Interrupt the call in its thread, unless that was done within the last second."""
        call = self._call
        if call is not None and call.interrupt():
            self._log_interrupt(call.interrupts)

    def cancel(self) -> None:
        """Interrupt the call as its timeout would; if it has not started, it won't. In any thread."""
        self.cancelled_at = monotonic()
        if self._task is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._task.get_loop().call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        """Cancel the coroutine, and again after a pause, until it has ended. In the thread of the loop."""
        task = self._task
        if task is None:
            return
        task.cancel()
        self._interrupts += 1
        self._log_interrupt(self._interrupts)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = task.get_loop().call_later(INTERRUPT_INTERVAL, self._cancel_task)

    def _log_interrupt(self, number: int) -> None:
        if number > 1 and number & (number - 1) == 0:  # less and less often
            logger.warning(
                "Job id=%s still runs %.1f s after its timeout or cancellation; interrupted %d times.",
                self.leased.lease.id,
                self.overdue,
                number,
            )

    def _raise(self, error: BaseException | None, left_open: list[str], *, interrupted: bool) -> None:
        """Raise what is recorded of a call that raised `error`, or left these databases in a transaction."""
        try:
            if error is None:
                raise threads.open_transaction_error(left_open)
            if not interrupted:
                raise error
            if issubclass(type(error), AttemptInterrupted):
                raise self._interruption().with_traceback(error.__traceback__)
            raise self._interruption() from error
        finally:
            del error  # its traceback refers to this frame

    def _interruption(self) -> TaskTimeout | TaskCancelled:
        if self.cancelled_at is not None:
            return TaskCancelled("The task was cancelled while it ran.")
        return TaskTimeout(f"The call took longer than {self.timeout:g} s.")


class Batch:
    """Jobs that one lane runs in order. Its lane, the watching thread and the supervisor's take from both
    ends at any time; operations of a deque are atomic."""

    __slots__ = ("began", "current", "is_async", "outcomes", "pending", "waits_since")

    def __init__(self, jobs: Iterable[RunningJob], *, is_async: bool = False) -> None:
        self.pending = deque(jobs)
        #: not reported yet
        self.outcomes: deque[Report] = deque()
        self.is_async = is_async
        self.current: RunningJob | None = None
        #: when the current job began, monotonic; 0 before a lane has taken the batch
        self.began = 0.0
        #: since when the batch waits for a lane, or its first outcome for its report
        self.waits_since = monotonic()


class _Started(NamedTuple):
    """An attempt that goes on on the event loop."""

    running: RunningJob
    coroutine: Coroutine[Any, Any, None]
    #: what the coroutine awaits
    rest: Coroutine[Any, Any, Any]
    context: Context


class Executor:
    """Runs jobs of one worker in this process. `report` gets what has become of them, in any thread.
    `on_failure` is called after an unexpected error, which is logged; `before_exit` before this process ends
    because an interrupted thread holds locks: after that, nothing is reported any more. `note` gets what each
    job does."""

    def __init__(
        self,
        attempt: Attempt,
        lanes: int,
        report: Reporter,
        on_failure: Callable[[], object],
        *,
        name: str = "",
        before_exit: Callable[[], object] = lambda: None,
        note: Note | None = None,
    ) -> None:
        self.name = name or "worker"
        self.note = note
        self.event_loop = EventLoop(on_failure, self._release_coroutines)
        self._attempt = attempt
        self._lanes = lanes
        self._report = report
        self._on_failure = on_failure
        self._before_exit = before_exit
        #: jobs that were handed over and have not ended
        self._jobs: dict[int, RunningJob] = {}
        #: batches that have not ended
        self._batches: set[Batch] = set()
        #: for the lanes; None: end
        self._work: SimpleQueue[Batch | None] = SimpleQueue()
        #: for the thread that starts coroutines and announces follow-ups
        self._side_work: SimpleQueue[Batch | Callable[[], object] | None] = SimpleQueue()
        #: outcomes of coroutines that are not reported yet
        self._async_outcomes: list[Report] = []
        #: called after the push of the follow-up of a job, with its moment
        self._announcements: dict[int, Callable[[int], object]] = {}
        self._pokes: SimpleQueue[None] = SimpleQueue()
        self._checks_soon = False
        self._closing = False
        #: threads that have not ended
        self._threads: set[threading.Thread] = set()
        self._side_thread: threading.Thread | None = None
        for number in range(lanes):
            self._start_thread(f"lane {number}", self._run_lane)
        self._start_thread("watch", self._watch)

    def run(self, jobs: Sequence[tuple[int, LeasedJob]], *, is_async: bool = False) -> None:
        """Run jobs in order, in the next free lane; each with a number that identifies it from now on.
        `is_async`: their attempts are coroutines, as far as is known; they need no lane. Never blocks."""
        running = [RunningJob(leased, self, number) for number, leased in jobs]
        for one in running:
            self._jobs[one.number] = one
        batch = Batch(running, is_async=is_async)
        self._batches.add(batch)
        if is_async:
            self._do_aside(batch)
        else:
            self._work.put(batch)
        if len(jobs) > 1 and not self._checks_soon:
            self.check_soon()

    def conclude(self, number: int, leased: LeasedJob, failure: TaskTimeout | TaskCancelled) -> None:
        """Report a job whose process was killed because of it, as if its call had raised this."""
        running = self._jobs[number] = RunningJob(leased, self, number)
        running.failure = failure
        if isinstance(failure, TaskCancelled):
            running.cancelled_at = monotonic()
        batch = Batch([running], is_async=True)
        self._batches.add(batch)
        self._do_aside(batch)

    def cancel(self, number: int) -> None:
        """Interrupt a call, as its timeout would; if it has not started, it won't."""
        running = self._jobs.get(number)
        if running is not None and running.cancelled_at is None:
            running.cancel()
            self.check_soon()

    def mark_lost(self, numbers: Iterable[int]) -> None:
        """Mark jobs that another worker may have: those that have not started won't."""
        for number in numbers:
            running = self._jobs.get(number)
            if running is not None and not running.lease_lost:
                running.lease_lost = True
                if running.started is not None:
                    logger.warning("Job id=%s lost its lease while it ran.", running.leased.lease.id)

    def give_back(self, *, running: bool = False) -> None:
        """Report the jobs that have not started as such; with `running`, the others as released, whatever
        becomes of them."""
        for batch in list(self._batches):
            self._hand_back(batch)
        if not running:
            return
        reports = []
        for number, one in list(self._jobs.items()):
            one.released = True
            if self._jobs.pop(number, None) is not None:
                started = one.started is not None
                reports.append(Report(number, released(one.leased, started).value, started=started))
        if reports:
            self._report(reports)

    def announce(self, number: int, moment: int) -> None:
        """The follow-up of a job was pushed at this moment (ms); 0: it was not, and won't be."""
        pushed = self._announcements.pop(number, None)
        if pushed is not None and moment:
            self._do_aside(lambda: pushed(moment))

    def close(self, seconds: float) -> None:
        """End the threads, and wait for those that run nothing, for so long. Coroutines are cancelled."""
        self._closing = True
        self.check_soon()
        threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        self._side_work.put(None)
        ends = monotonic() + seconds
        for thread in threads if not self._batches else ():
            thread.join(max(ends - monotonic(), 0))
        self.event_loop.close()

    def check_soon(self) -> None:
        """Let the watching thread plan its next check anew."""
        self._checks_soon = True
        self._pokes.put(None)

    def _start_thread(self, name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=self._run_thread, args=(target, *args), name=name, daemon=True)
        self._threads.add(thread)
        thread.start()
        return thread

    def _run_thread(self, target: Callable[..., object], *args: Any) -> None:
        """Run a loop. An unexpected error ends the whole worker, so that its supervisor notices."""
        thread = threading.current_thread()
        try:
            message = "%s of %s failed; stopping."
            with LoopGuard(logger, message, thread.name, self.name, on_failure=self._on_failure):
                target(*args)
        finally:
            self._threads.discard(thread)

    def _do_aside(self, work: Batch | Callable[[], object]) -> None:
        if self._side_thread is None:
            self._side_thread = self._start_thread("side lane", self._run_side_lane)
        self._side_work.put(work)

    def _run_lane(self, batch: Batch | None = None) -> None:
        """Run batches until closed; first this one, which the thread before this one has begun."""
        create_backends()
        if batch is not None and not self._run_batch(batch):
            return
        while (batch := self._work.get()) is not None:
            if not self._run_batch(batch):
                return
        threads.discard_connections()

    def _run_side_lane(self) -> None:
        create_backends()
        while (work := self._side_work.get()) is not None:
            if not isinstance(work, Batch):
                with LoopGuard(logger, "Announcing a task failed."):
                    work()
            elif not self._run_batch(work):
                self._side_thread = None
                return
        threads.discard_connections()

    def _run_batch(self, batch: Batch) -> bool:
        """Run a batch; returns False if another thread goes on in place of this one."""
        pending, outcomes = batch.pending, batch.outcomes
        coroutines: list[_Started] = []
        batch.began = now = monotonic()
        try:
            while pending:
                try:
                    running = batch.current = pending.popleft()
                except IndexError:  # handed back meanwhile
                    break
                report = self._run_job(running, batch, coroutines)
                now = batch.began = monotonic()
                if report is not None:
                    if not outcomes:
                        batch.waits_since = now
                    outcomes.append(report)
                if running.was_interrupted:
                    return self._replace_lane(batch)
                if outcomes and now - batch.waits_since > BATCH_INTERVAL:
                    self._flush(batch)
        except BaseException:
            self._abandon(batch)
            raise
        if coroutines:
            self._start_coroutines(coroutines)
        batch.current = None
        self._batches.discard(batch)
        self._flush(batch)
        return True

    def _run_job(self, running: RunningJob, batch: Batch, coroutines: list[_Started]) -> Report | None:
        """Make an attempt; returns what to report of it now."""
        if not running.may_start and running.failure is None:
            return self._ended(running, None, NOT_STARTED if running.cancelled_at is not None else UNSETTLED)
        if self.note is not None:
            self.note(running.number, RUNS)
        # what it changes in its context, such as the language, ends with it
        context = copy_context()
        settlement = context.run(self._attempt, running)
        if type(settlement) is not CoroutineType:
            return self._ended(running, settlement, seconds=monotonic() - batch.began)  # type: ignore[arg-type]
        coroutine, rest = self._attend(running, settlement), settlement
        if batch.is_async:
            coroutines.append(_Started(running, coroutine, rest, context))
            return None
        self._start_coroutines([_Started(running, coroutine, rest, context)])
        return Report(running.number, GOES_ON, is_async=True)

    def _ended(
        self,
        running: RunningJob,
        settlement: Settlement | None,
        otherwise: str = UNSETTLED,
        *,
        seconds: float = 0.0,
        is_async: bool = False,
    ) -> Report | None:
        """The report of a job that has ended; None if it was reported before."""
        number = running.number
        if self._jobs.pop(number, None) is None:
            if settlement is not None:
                log_lost_lease(settlement)
            return None
        if self.note is not None and otherwise != NOT_STARTED:
            self.note(number, ENDED)
        started = running.started is not None
        if settlement is None:
            return Report(number, otherwise, 0, "", None, started, seconds, is_async)
        _, outcome, ms, line, follow_up = settlement
        fields = None
        if follow_up is not None:
            self._announcements[number] = follow_up.pushed
            fields = follow_up.queue, tuple(follow_up.job), follow_up.max_aliases
        return Report(number, outcome._value_, ms, line, fields, started, seconds, is_async)

    def _flush(self, batch: Batch) -> None:
        """Report the outcomes of a batch so far."""
        if reports := _drained(batch.outcomes):
            self._report(reports)

    def _hand_back(self, batch: Batch) -> None:
        """Report the jobs of a batch that have not started."""
        reports = []
        for running in _drained(batch.pending):
            if (report := self._ended(running, None, NOT_STARTED)) is not None:
                reports.append(report)
        if not batch.began:  # nothing is left that a lane would do
            self._batches.discard(batch)
        if reports:
            self._report(reports)

    def _abandon(self, batch: Batch) -> None:
        """Report what is left of a batch whose lane fails."""
        if batch.current is not None and (report := self._ended(batch.current, None)) is not None:
            batch.outcomes.append(report)
        self._batches.discard(batch)
        self._hand_back(batch)
        self._flush(batch)

    def _replace_lane(self, batch: Batch) -> bool:
        """Go on in a new thread: a job of this one was interrupted, so that anything may be half done in it.
        If it holds locks, for which other threads would wait forever, end the process."""
        self._flush(batch)
        batch.current = None
        if locks := find_held_locks():
            end_process(self.name, locks, self._before_exit)
        name = threading.current_thread().name
        if batch.is_async:
            self._hand_back(batch)
            self._batches.discard(batch)
            self._side_thread = self._start_thread(name, self._run_side_lane)
        else:
            self._start_thread(name, self._run_lane, batch)
        return False

    def _start_coroutines(self, started: list[_Started]) -> None:
        try:
            self.event_loop.start([(one.coroutine, one.rest, one.context) for one in started])
        except EventLoopEnded:
            self._release([one.running for one in started])

    def _release(self, jobs: Iterable[RunningJob]) -> None:
        """Report jobs as released that ended with their event loop."""
        reports = [self._ended(one, one.settlement(Outcome.RELEASE), is_async=True) for one in jobs]
        if found := [one for one in reports if one is not None]:
            self._report(found)

    async def _attend(self, running: RunningJob, coroutine: Coroutine[Any, Any, Settlement | None]) -> None:
        """Wait for the rest of an attempt, and report its outcome."""
        settlement, error = await self.event_loop.attend(coroutine)
        if error is not None:
            log_exception(logger, error, "A coroutine of %s failed; stopping.", self.name)
            self._on_failure()
        seconds = 0.0 if running.started is None else monotonic() - running.started
        report = self._ended(running, settlement, seconds=seconds, is_async=True)
        if report is None:
            return
        self._async_outcomes.append(report)
        if len(self._async_outcomes) == 1:  # with those that end in the same turn of the loop
            asyncio.get_running_loop().call_soon(self._flush_coroutines)

    def _flush_coroutines(self) -> None:
        reports, self._async_outcomes = self._async_outcomes, []
        if reports:
            self._report(reports)

    def _release_coroutines(self) -> None:
        """Release the jobs of the coroutines that ended with their event loop."""
        self._flush_coroutines()
        batches = list(self._batches)
        in_lanes = {id(one.current) for one in batches} | {
            id(job) for one in batches for job in list(one.pending)
        }
        self._release([one for one in list(self._jobs.values()) if id(one) not in in_lanes])

    def _watch(self) -> None:
        while not self._closing:
            self._checks_soon = False  # first: a batch that is added after it pokes this thread
            seconds = self._seconds_to_check()
            if seconds <= BATCH_INTERVAL:
                self._checks_soon = True
            with suppress(Empty):
                self._pokes.get(timeout=seconds)
                while True:
                    self._pokes.get_nowait()
            now = monotonic()
            for batch in list(self._batches):
                self._check(batch, now)

    def _check(self, batch: Batch, now: float) -> None:
        """Do what a batch can't do while its job runs, or while it waits for a lane."""
        current = batch.current
        if current is not None and current.overdue >= 0:
            current.interrupt()
        if batch.pending and not batch.is_async:
            if batch.began:
                is_slow = now - batch.began > SLOW
            else:
                is_slow = now - batch.waits_since > MAX_WAIT and self._is_busy
            if is_slow:
                self._hand_back(batch)
        if batch.outcomes and now - batch.waits_since > BATCH_INTERVAL:
            self._flush(batch)

    @property
    def _is_busy(self) -> bool:
        """Whether each lane runs a batch."""
        taken = [one for one in list(self._batches) if one.began and not one.is_async]
        return len(taken) >= self._lanes

    def _seconds_to_check(self) -> float:
        """Seconds until the next check: of slow batches, and of calls to interrupt."""
        batches = list(self._batches)
        if not batches:
            return IDLE_INTERVAL
        seconds = TIMEOUT_INTERVAL
        for batch in batches:
            if batch.pending or batch.outcomes:
                return BATCH_INTERVAL
            if (current := batch.current) is not None and (due := current.seconds_to_interrupt) is not None:
                seconds = min(seconds, max(due, MIN_INTERVAL))
        return seconds


def _drained(items: deque[Any]) -> list[Any]:
    """Take all items; each is taken once, though others take some at the same time."""
    taken = []
    with suppress(IndexError):
        while items:
            taken.append(items.popleft())
    return taken


def log_lost_lease(settlement: Settlement) -> None:
    """Log that a settlement was refused."""
    job_id, outcome = settlement.lease.id, settlement.outcome.value
    logger.warning("Job id=%s ended (%s), but its lease was lost; refused.", job_id, outcome)
