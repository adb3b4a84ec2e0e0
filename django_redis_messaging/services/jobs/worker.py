"""The worker: lanes that claim and run jobs, while their leases are kept.

Each lane is a thread that settles its last job and claims the next in one round trip, shared with the lanes
that arrive at the same time. If no job is ready, one lane at a time waits for a wake-up (leader and
followers), so that an idle worker calls Redis once a second. Coroutines run on one event loop, while their
lane waits for them. The thread that calls `run` supervises: stop signals, timeouts, the drain.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from ...core.backoff import backoff
from ...core.operations import Steps, perform
from ...errors import MessagingError
from ..renewing import Renewal
from .combining import Claim, Combiner
from .engine import POLL_INTERVAL, Engine
from .leases import Claimed, LeasedJob, Outcome, Settlement
from .limits import DEFAULT_LIMITS, Limits, resident_memory
from .running import EventLoop, RunningJob, RunningJobs

logger = logging.getLogger(__name__)

T = TypeVar("T")
#: makes an attempt at a job; returns the settlement, or None if the lease is lost
Attempt = Callable[[RunningJob], Settlement | None]


class Worker:
    """Runs the jobs of some queues of one slot until it is stopped."""

    def __init__(
        self,
        engine: Engine,
        using: str,
        queues: Sequence[str],
        attempt: Attempt,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.id = f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(3).hex()}"
        #: jobs that were started and ended
        self.done = 0
        #: whether a lane ended by an unexpected error
        self.failed = False
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._attempt = attempt
        self._limits = limits
        self._combiner = Combiner(self._exchange)
        self._leader = threading.Lock()
        #: when an idle lane polled last; monotonic
        self._polled_at = 0.0
        #: True: stop; False: a lane ended. Not an Event, whose set() in a signal handler could deadlock.
        self._signals: SimpleQueue[bool] = SimpleQueue()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._running = RunningJobs()
        #: jobs that may still be started
        self._remaining = threading.Semaphore(limits.max_tasks) if limits.max_tasks else None
        #: start of the worker by the server's clock: ms; 0 before the first heartbeat
        self._started = 0
        self._consumed = False
        self._event_loop = EventLoop()
        #: threads of lanes that have not ended
        self._lanes: set[threading.Thread] = set()

    def stop(self) -> None:
        """Start no more jobs; at the second call, release the running ones. Safe in a signal handler."""
        self._signals.put(True)

    def run(self) -> None:
        """Work until stopped, or until a limit is reached; then wait for running jobs, and release those that
        don't finish in time."""
        keeper = Renewal(self._keep_leases_or_stop, self._limits.lease / 3, f"worker {self.id}")
        keeper.start(at_once=True)
        self._read_signal(0)
        closes = monotonic() + (self._limits.max_time or math.inf)
        for number in range(self._limits.concurrency):
            lane = threading.Thread(target=self._guard, args=(self._run_lane,), name=f"lane {number}")
            lane.daemon = True
            self._lanes.add(lane)
        for lane in list(self._lanes):
            lane.start()
        self._supervise(closes, until_stopped=True)
        self._stopping.set()
        self._supervise(monotonic() + self._limits.drain)
        self._release_running()
        self._ended.set()
        keeper.stop(None)  # before remove_worker(): a later heartbeat would add the worker again
        self._join_idle_lanes()
        self._event_loop.close()
        with suppress(MessagingError):  # without a heartbeat it counts as ended, too
            self._perform(self._engine.remove_worker(self.id))

    def _perform(self, steps: Steps[T]) -> T:
        return perform(self._using, steps)

    def _supervise(self, ends: float, *, until_stopped: bool = False) -> None:
        """Until then, or until a stop, or the end of all lanes: read signals, and interrupt jobs whose time
        is up."""
        while self._lanes and not self._ended.is_set():
            if until_stopped and self._stopping.is_set():
                return
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
            self._stopping.set()

    def _guard(self, body: Callable[[], None]) -> None:
        """Run a lane. An unexpected error ends the whole worker, so that its supervisor notices."""
        try:
            body()
        except KeyboardInterrupt:
            logger.warning("%s of worker %s was interrupted; stopping.", _thread_name(), self.id)
            self._stopping.set()
        except Exception:
            self._fail(_thread_name())
        finally:
            self._lanes.discard(threading.current_thread())
            self._signals.put(False)

    def _fail(self, part: str) -> None:
        logger.exception("%s of worker %s failed; stopping.", part, self.id)
        self.failed = True
        self._stopping.set()
        self._signals.put(False)

    def _run_lane(self) -> None:
        """Settle, claim, run, until stopped."""
        settlement: Settlement | None = None
        failures = 0
        while True:
            try:
                if self._stopping.is_set():
                    if settlement is not None:
                        self._settle(settlement)
                    return
                claim = self._claim(settlement)
                settlement, failures = None, 0
            except MessagingError as error:
                failures += 1
                settlement = self._settle_alone(settlement)
                self._pause(failures, error)
                continue
            if claim.job is not None and self._stopping.is_set():
                settlement = claim.job.lease.settled(Outcome.RELEASE)
            elif claim.job is not None:
                settlement = self._run_job(claim.job)
            elif self._limits.burst:
                return  # other lanes go on while they find jobs
            else:
                self._wait(claim.due_in)

    def _pause(self, failures: int, error: MessagingError) -> None:
        """Wait before the next attempt to reach Redis."""
        seconds = backoff(failures)
        logger.warning("Claiming jobs failed, retrying in %.1f s: %s", seconds, error)
        until = self._ended if self._stopping.is_set() else self._stopping
        until.wait(seconds)

    def _claim(self, settlement: Settlement | None) -> Claim:
        """Settle the last job and claim the next."""
        wants_job = self._remaining is None or self._remaining.acquire(blocking=False)
        has_job = False
        try:
            claim = self._combiner.claim(settlement, wants_job)
            has_job = claim.job is not None
        finally:
            if self._remaining is not None and wants_job and not has_job:
                self._remaining.release()
        if settlement is not None and not claim.settled:
            _log_lost_lease(settlement)
        return claim

    def _exchange(self, settlements: Sequence[Settlement], count: int) -> Claimed:
        lease = round(self._limits.lease * 1000)
        claimed = self._perform(
            self._engine.claim(self._queues, count, lease, worker=self.id, settlements=settlements)
        )
        self._consumed = True
        return claimed

    def _wait(self, due_in: float | None) -> None:
        """Wait for a wake-up as the leader, or for the leader as a follower; no longer than `due_in`."""
        ends = monotonic() + (due_in if due_in is not None and due_in < POLL_INTERVAL else math.inf)
        while not self._leader.acquire(timeout=min(POLL_INTERVAL, max(ends - monotonic(), 0))):
            if self._stopping.is_set() or monotonic() >= ends:
                return
        try:
            left = min(ends, self._polled_at + POLL_INTERVAL) - monotonic()
            if left > 0 and not self._stopping.is_set():
                self._perform(self._engine.wait(self._queues, left))
            # this lane polls next: the lane that leads now may wait
            self._polled_at = monotonic()
        except MessagingError as error:
            logger.warning("Waiting for jobs failed, polling instead: %s", error)
            self._stopping.wait(POLL_INTERVAL)
        finally:
            self._leader.release()

    def _run_job(self, leased: LeasedJob) -> Settlement | None:
        running = RunningJob(leased, self._event_loop.run)
        self._running.add(running)
        try:
            return self._attempt(running)
        finally:
            self._running.discard(running)
            if not running.deferred:
                self.done += 1
                self._stop_at_limits()
            elif self._remaining is not None:
                self._remaining.release()

    def _stop_at_limits(self) -> None:
        limits = self._limits
        if limits.max_tasks is not None and self.done >= limits.max_tasks:
            self._stopping.set()
        if limits.max_memory is not None and resident_memory() > limits.max_memory:
            logger.info("Worker %s uses more than %d MiB; stopping.", self.id, limits.max_memory)
            self._stopping.set()

    def _settle(self, settlement: Settlement) -> None:
        if self._perform(self._engine.settle(settlement)) is False:
            _log_lost_lease(settlement)

    def _settle_alone(self, settlement: Settlement | None) -> Settlement | None:
        """Settle without a claim, after a claim failed; returns what the next claim has to settle."""
        if settlement is None:
            return None
        try:
            self._settle(settlement)
        except MessagingError:
            return settlement
        return None

    def _release_running(self) -> None:
        """Release the jobs that still run: other workers get them at once."""
        for running in self._running:
            running.released = True
            try:
                self._perform(self._engine.settle(running.settled(Outcome.RELEASE)))
            except MessagingError as error:
                lease = running.leased.lease
                logger.warning(
                    "Releasing job id=%s failed; it is delivered again when its lease ends: %s",
                    lease.id,
                    error,
                )

    def _join_idle_lanes(self) -> None:
        """Wait a moment for lanes that run nothing: a lane that has just claimed a job releases it."""
        ends = monotonic() + POLL_INTERVAL
        busy = {running.thread for running in self._running}
        for lane in list(self._lanes):
            if lane.ident not in busy:
                lane.join(max(ends - monotonic(), 0))

    def _keep_leases_or_stop(self) -> bool:
        """For the renewal: always True. An unexpected error ends the worker; leases are kept until then."""
        try:
            self._keep_leases()
        except MessagingError as error:
            if not self._ended.is_set():
                interval = self._limits.lease / 3
                logger.warning("Heartbeat failed, retrying in %.1f s: %s", interval, error)
        except Exception:
            if not self.failed:
                self._fail("The heartbeat")
        return True

    def _keep_leases(self) -> None:
        """Extend the leases of running jobs, and send a heartbeat."""
        length = self._limits.lease
        if kept := self._running.with_leases(length):
            leases = [running.leased.lease for running in kept]
            in_force = self._perform(self._engine.extend(leases, round(length * 1000)))
            self._running.mark_lost([one for one, kept_on in zip(kept, in_force, strict=True) if not kept_on])
        if self._ended.is_set():
            return
        now = self._perform(
            self._engine.beat(
                self.id,
                consumed=self._consumed,
                started=self._started,
                running=len(self._running),
                done=self.done,
            )
        )
        self._started = self._started or now
        self._consumed = False


def _thread_name() -> str:
    return threading.current_thread().name


def _log_lost_lease(settlement: Settlement) -> None:
    job_id, outcome = settlement.lease.id, settlement.outcome.value
    logger.warning("Job id=%s ended (%s), but its lease was lost; refused.", job_id, outcome)
