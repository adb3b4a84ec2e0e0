"""The worker: lanes that claim and run jobs, while their leases are kept.

Each lane is a thread that settles its last job and claims the next in one round trip, shared with the lanes
that arrive at the same time. Coroutines run on one event loop, while their lane waits for them. The thread
that calls `run` supervises and never waits for Redis: stop signals, timeouts, the drain.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from time import monotonic

from ... import conf
from ...core.backoff import backoff
from ...core.failures import LoopGuard
from ...core.operations import perform
from ...core.retry import deadline, time_left
from ...core.steps import batched
from ...errors import MessagingError, OutcomeUnknown
from . import databases
from .admission import Admission
from .alone import LoneStarts
from .combining import Claim, Combiner
from .contexts import create_backends
from .ending import end_process
from .engine import POLL_INTERVAL, Engine, new_token
from .event_loop import EventLoop
from .heartbeat import Heartbeat
from .interrupts import find_held_locks
from .leases import Claimed, LeasedJob, Outcome, Settlement
from .limits import DEFAULT_LIMITS, Limits
from .lost_claims import LostClaims
from .order import QueueOrder
from .pages import PAGE
from .running import NotStarted, RunningJob, RunningJobs
from .settling import Outage, Settler, log_lost_lease, log_unsettled
from .wakeups import Wakeups

logger = logging.getLogger(__name__)

#: makes an attempt at a job, within `RunningJob.start`; returns the settlement, or None if the lease is lost
Attempt = Callable[[RunningJob], Settlement | None]

#: seconds that lanes without a job get to end: an idle one notices a stop within POLL_INTERVAL
IDLE_DRAIN = 1.2
#: seconds for the calls to Redis at the end of a worker on which no job depends
LAST_DEADLINE = 0.8


class Worker:
    """Runs the jobs of some queues of one slot until it is stopped. Queues with weights share it; without,
    the first queue is served first."""

    def __init__(
        self,
        engine: Engine,
        using: str,
        queues: Sequence[str] | Mapping[str, int],
        attempt: Attempt,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.id = f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(3).hex()}"
        #: whether a part of it ended by an unexpected error
        self.failed = False
        self._engine = engine
        self._using = using
        self._order = QueueOrder(queues)
        self._attempt = attempt
        self._limits = limits
        self._combiner = Combiner(self._exchange)
        self._settler = Settler(engine, using)
        self._lost_claims = LostClaims(engine, using, self._order.queues, limits.lease)
        #: True: stop; False: a lane ended. Not an Event, whose set() in a signal handler could deadlock.
        self._signals: SimpleQueue[bool] = SimpleQueue()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._running = RunningJobs()
        self._admission = Admission(limits.max_tasks)
        self._starts = LoneStarts(engine, using, self.id, self._admission)
        self._wakeups = Wakeups(engine, using, self._order.queues, self._stopping)
        self._heartbeat = Heartbeat(
            engine, using, self.id, self._running, limits.lease, lambda: self.done, self._fail
        )
        self._event_loop = EventLoop(self._fail)
        #: threads of lanes that have not ended
        self._lanes: set[threading.Thread] = set()
        #: those that run a job, or have to settle one
        self._busy: set[threading.Thread] = set()
        #: those whose job was interrupted: another thread goes on in their place
        self._interrupted: set[threading.Thread] = set()

    @property
    def done(self) -> int:
        """Jobs that were started and ended."""
        return self._admission.done

    def stop(self) -> None:
        """Start no more jobs; at the second call, release the running ones. Safe in a signal handler."""
        self._signals.put(True)

    def run(self) -> None:
        """Work until stopped, or until a limit is reached; then wait for running jobs, and release those that
        don't finish in time."""
        self._heartbeat.start()
        self._read_signal(0)
        closes = monotonic() + (self._limits.max_time or math.inf)
        for lane in [self._new_lane(f"lane {number}") for number in range(self._limits.concurrency)]:
            lane.start()
        self._supervise(closes, self._stopping.is_set)
        self._begin_stop()
        self._supervise(monotonic() + self._limits.drain, lambda: not self._busy)
        if not self._busy:
            self._supervise(monotonic() + IDLE_DRAIN, lambda: False)
        self._ended.set()
        with deadline(conf.current().COMMAND_DEADLINE):  # for all that follows, should Redis not reply
            self._release_running()
            self._release_lost_claims()
        with deadline(LAST_DEADLINE):
            self._heartbeat.stop()  # before remove_worker(): a later heartbeat would add the worker again
            self._join_idle_lanes()
        self._event_loop.close()
        # without a heartbeat it counts as ended, too
        with deadline(LAST_DEADLINE / 2), suppress(MessagingError):
            perform(self._using, self._engine.remove_worker(self.id))

    def _supervise(self, ends: float, has_ended: Callable[[], bool]) -> None:
        """Until then, or until `has_ended`, or a second stop, or the end of all lanes: read signals, and
        interrupt jobs whose time is up."""
        while self._lanes and not self._ended.is_set() and not has_ended():
            left = ends - monotonic()
            if left <= 0:
                return
            self._running.interrupt_overdue()
            self._read_signal(min(left, self._running.seconds_to_check()))

    def _read_signal(self, seconds: float) -> None:
        """Wait for a signal, and act on it."""
        with suppress(Empty):
            if not self._signals.get(timeout=seconds):
                return
            if self._stopping.is_set():
                self._ended.set()
            self._begin_stop()

    def _begin_stop(self) -> None:
        """Let no lane claim another job."""
        self._stopping.set()
        self._admission.close()

    def _new_lane(self, name: str, settlement: Settlement | None = None) -> threading.Thread:
        """A thread that has to be started: a lane, whose last job has still to be settled like this."""
        lane = threading.Thread(target=self._guard, args=(settlement,), name=name, daemon=True)
        self._lanes.add(lane)
        if settlement is not None:
            self._busy.add(lane)
        return lane

    def _guard(self, settlement: Settlement | None) -> None:
        """Run a lane. An unexpected error ends the whole worker, so that its supervisor notices."""
        lane = threading.current_thread()
        try:
            with LoopGuard(
                logger, "%s of worker %s failed; stopping.", lane.name, self.id, on_failure=self._fail
            ):
                create_backends()
                self._run_lane(settlement)
                databases.discard_all()
        finally:
            self._lanes.discard(lane)
            self._busy.discard(lane)
            self._signals.put(False)

    def _replace_lane(self, settlement: Settlement | None) -> None:
        """Go on in a new thread: the job of this one was interrupted, so that anything may be half done in
        it. If it holds locks, for which other threads would wait forever, end the process."""
        self._interrupted.discard(threading.current_thread())
        if locks := find_held_locks():
            end_process(f"Worker {self.id}", locks, lambda: self._release_all(settlement))
        lane = self._new_lane(threading.current_thread().name, settlement)
        try:
            lane.start()
        except BaseException:
            self._lanes.discard(lane)
            self._busy.discard(lane)
            raise

    def _release_all(self, settlement: Settlement | None) -> None:
        """Settle the job of this lane, and release those of the others."""
        if settlement is not None:
            self._settler.try_settle(settlement, Outage())
        self._release_running()

    def _fail(self) -> None:
        """End because of an unexpected error, which was logged."""
        self.failed = True
        self._begin_stop()
        self._signals.put(False)

    def _run_lane(self, settlement: Settlement | None) -> None:
        """Settle, claim, run, until stopped."""
        outage: Outage | None = None
        while True:
            try:
                if self._stopping.is_set():
                    if settlement is not None:
                        self._settler.settle(settlement, is_repeat=_was_sent(outage))
                    return
                claim = self._claim(settlement, outage)
                if settlement is not None:
                    self._admission.settled()
                settlement = outage = None
                if claim is None or claim.job is None:
                    self._busy.discard(threading.current_thread())
            except MessagingError as error:
                outage = outage or Outage()
                outage.add(error)
                if settlement and self._settler.try_settle(settlement, outage):
                    self._admission.settled()
                    settlement = None
                if self._ended.is_set():
                    if settlement is not None:
                        log_unsettled([settlement], error)
                    return
                self._pause(outage, error)
                continue
            if claim is None:
                continue
            if claim.job is not None:
                self._busy.add(threading.current_thread())
                settlement = self._run_job(claim.job)
                if threading.current_thread() in self._interrupted:
                    return self._replace_lane(settlement)
            elif self._limits.burst:
                return  # other lanes go on while they find jobs
            else:
                self._wakeups.wait(claim.due_in)

    def _pause(self, outage: Outage, error: MessagingError) -> None:
        """Wait before the next attempt to reach Redis. A burst ends instead: its caller expects that."""
        if self._limits.burst and outage.is_long and not self._stopping.is_set():
            logger.error("Claiming jobs failed; stopping: %s", error)
            self._fail()
            return
        seconds = backoff(outage.failures)
        logger.warning("Claiming jobs failed, retrying in %.1f s: %s", seconds, error)
        until = self._ended if self._stopping.is_set() else self._stopping
        until.wait(seconds)

    def _claim(self, settlement: Settlement | None, outage: Outage | None) -> Claim | None:
        """Settle the last job and claim the next; None if it only settled, or the worker stops. Without a job
        to settle, wait until one may be claimed."""
        is_repeat = _was_sent(outage)
        if settlement is not None and settlement.follow_up is not None:
            # alone: a claim has no keys for the queue of the other job
            self._settler.settle(settlement, is_repeat=is_repeat)
            return None
        admitted = self._admission.enter(wait=settlement is None)
        if settlement is None and not admitted:
            return None
        has_job = False
        try:
            claim = self._combiner.claim(settlement, wants_job=admitted)
            has_job = claim.job is not None
        finally:
            if admitted and not has_job:
                self._admission.leave(started=False)
        if settlement is not None and not claim.settled and not is_repeat:
            log_lost_lease(settlement)
        return claim if admitted else None

    def _exchange(self, settlements: Sequence[Settlement], count: int) -> Claimed:
        lease = round(self._limits.lease * 1000)
        queues = self._order.next() if count else self._order.queues
        if self._lost_claims:
            self._lost_claims.release()
        token = new_token()
        steps = self._engine.claim(queues, count, lease, worker=self.id, token=token, settlements=settlements)
        try:
            claimed = perform(self._using, steps)
        except OutcomeUnknown:
            if count:
                self._lost_claims.add(token)
            raise
        self._heartbeat.consumed = True
        return claimed

    def _run_job(self, leased: LeasedJob) -> Settlement | None:
        if self._stopping.is_set():
            self._admission.leave(started=False)
            return leased.lease.settled(Outcome.RELEASE)
        running = RunningJob(leased, self._event_loop.run, self._starts.start, self._wake)
        self._running.add(running)
        settlement: Settlement | None = None
        try:
            # what it changes in its context, such as the language, ends with it
            settlement = copy_context().run(self._attempt, running)
        except NotStarted as reason:
            settlement = reason.settlement
        finally:
            self._running.discard(running)
            if running.was_interrupted:
                self._interrupted.add(threading.current_thread())
            was_called = running.started is not None
            self._admission.leave(started=was_called, unsettled=settlement is not None)
            if was_called and self._limits.reached(self.done):
                self._begin_stop()
        return settlement

    def _wake(self) -> None:
        """Let the supervisor plan its next check for timeouts anew."""
        self._signals.put(False)

    def _release_running(self) -> None:
        """Release the jobs that still run: other workers get them at once."""
        for page in batched(list(self._running), PAGE):
            for running in page:
                running.released = True
            self._release([running.settled(Outcome.RELEASE) for running in page])

    def _release(self, settlements: Sequence[Settlement]) -> None:
        while True:
            try:
                self._exchange(settlements, 0)
                return
            except MessagingError as error:
                # without a reply, a repeat is harmless: leases that were released are stale
                if not isinstance(error, OutcomeUnknown) or time_left() <= 0:
                    log_unsettled(settlements, error)
                    return

    def _release_lost_claims(self) -> None:
        with suppress(MessagingError):  # without a release, they come back when their leases end
            if self._lost_claims:
                self._lost_claims.release()

    def _join_idle_lanes(self) -> None:
        """Wait a moment for lanes that run nothing: a lane that has just claimed a job releases it."""
        ends = monotonic() + min(POLL_INTERVAL, time_left())
        busy = {running.thread for running in self._running}
        for lane in list(self._lanes):
            if lane.is_alive() and lane.ident not in busy:
                lane.join(max(ends - monotonic(), 0))


def _was_sent(outage: Outage | None) -> bool:
    """Whether a settlement may have been applied before."""
    return outage is not None and outage.unanswered
