"""The worker: lanes that claim and run jobs, while their leases are kept.

Each lane is a thread that settles its last job and claims the next in one round trip, shared with the lanes
that arrive at the same time: one lane at a time talks to Redis, the others wait, and the first of them serves
them all as soon as that lane is back ("flat combining", Hendler, Incze, Shavit and Tzafrir 2010). A lane that
arrives alone is served at once. Of the idle lanes, too, one at a time waits for a wake-up (leader and
followers), so that an idle worker calls Redis once a second. Coroutines run on one event loop, while their
lane waits for them. The thread that calls `run` supervises and never waits for Redis: stop signals, timeouts,
the drain. Timeouts, heartbeats and settling are in running.py, interrupts and the event loop in threads.py.

A lone job (see jobs/claim.lua) is started alone in its process. If it ends this process, too, it takes no
others with it.

If the reply to a claim is lost, its jobs would come back at the end of their leases as jobs that have lost
their worker, and one with a single attempt would be dead. So the worker releases them, by the token of the
claim.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic

from ... import conf
from ...core.commands import batched
from ...core.operations import LoopGuard, perform
from ...core.outcome import backoff, deadline, time_left
from ...errors import MessagingError, OutcomeUnknown
from . import threads
from .engine import (
    PAGE,
    POLL_INTERVAL,
    Claimed,
    Engine,
    LeasedJob,
    Outcome,
    Settlement,
    State,
    new_token,
)
from .running import (
    Heartbeat,
    NotStarted,
    Outage,
    RunningJob,
    RunningJobs,
    Settler,
    log_lost_lease,
    log_unsettled,
)
from .threads import EventLoop, create_backends, end_process, find_held_locks

logger = logging.getLogger(__name__)

#: weight of a queue, at most
MAX_WEIGHT = 1000
#: seconds that lanes without a job get to end: an idle one notices a stop within POLL_INTERVAL
IDLE_DRAIN = 1.2
#: seconds for the calls to Redis at the end of a worker on which no job depends
LAST_DEADLINE = 0.8
#: claims whose lost replies are remembered, the latest ones
MAX_LOST_CLAIMS = 1000
#: seconds for which one lone job may keep the other lanes from claiming, in all its waits together
LONE_PAUSE = 5.0
#: seconds for which a lone job that could not be started is released, so that other workers can claim it;
#: doubled with each failed try, up to the maximum
LONE_FIRST_DELAY, LONE_MAX_DELAY = 1.0, 60.0
#: failed tries, in about 10 minutes, after which a lone job is started beside others
LONE_TRIES = 15
#: lone jobs that a worker remembers
MAX_LONE_JOBS = 1000

#: makes an attempt at a job, within `RunningJob.start`; returns the settlement, or None if the lease is lost
Attempt = Callable[[RunningJob], Settlement | None]
#: makes the round trip: settlements, number of jobs to claim
Exchange = Callable[[Sequence[Settlement], int], Claimed]


@dataclass(frozen=True)
class Limits:
    """Options of a worker, and the limits at which it ends."""

    #: jobs that run at a time
    concurrency: int = 4
    #: seconds that a lease lasts; it is extended after each third
    lease: float = 30.0
    #: end when no job is ready
    burst: bool = False
    #: end after this many jobs
    max_tasks: int | None = None
    #: end when the process uses more memory than this: MiB
    max_memory: int | None = None
    #: end after this many seconds
    max_time: float | None = None
    #: seconds that running jobs get to finish when the worker is stopped
    drain: float = 30.0

    def reached(self, done: int) -> bool:
        """Whether the worker must start no more jobs, after so many."""
        if self.max_memory is not None and (used := resident_memory()) > self.max_memory:
            logger.info("Using %d MiB, more than %d MiB; stopping.", used, self.max_memory)
            return True
        return self.max_tasks is not None and done >= self.max_tasks


DEFAULT_LIMITS = Limits()


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
        lane = threading.Thread(target=self._run_thread, args=(settlement,), name=name, daemon=True)
        self._lanes.add(lane)
        if settlement is not None:
            self._busy.add(lane)
        return lane

    def _run_thread(self, settlement: Settlement | None) -> None:
        """Run a lane. An unexpected error ends the whole worker, so that its supervisor notices."""
        lane = threading.current_thread()
        try:
            with LoopGuard(
                logger, "%s of worker %s failed; stopping.", lane.name, self.id, on_failure=self._fail
            ):
                create_backends()
                self._run_lane(settlement)
                threads.discard_connections()
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
                    self._admission.count_settled()
                settlement = outage = None
                if claim is None or claim.job is None:
                    self._busy.discard(threading.current_thread())
            except MessagingError as error:
                outage = outage or Outage()
                outage.add(error)
                if settlement and self._settler.try_settle(settlement, outage):
                    self._admission.count_settled()
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
        if settlement is not None and not claim.applied and not is_repeat:
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
            return leased.lease.settlement(Outcome.RELEASE)
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
            self._release([running.settlement(Outcome.RELEASE) for running in page])

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


def resident_memory() -> int:
    """Memory of this process in MiB; 0 where the system has no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except OSError:
        return 0


class QueueOrder:
    """Strict: the first queue is served first, always. With weights: each queue comes first in a share of the
    claims that is proportional to its weight; the others follow, so that no claim is in vain.

    The shares are even ("smooth weighted round-robin", nginx): with weights of 3 and 1, the first four claims
    serve a, a, b and a first.

    >>> order = QueueOrder({"a": 3, "b": 1})
    >>> [order.next()[0] for _ in range(4)]
    ['a', 'a', 'b', 'a']
    >>> QueueOrder(["b", "a"]).next()
    ['b', 'a']
    """

    def __init__(self, queues: Sequence[str] | Mapping[str, int]) -> None:
        #: in the order in which they were given
        self.queues = list(queues)
        self._weights = dict(queues) if isinstance(queues, Mapping) else {}
        self._total = sum(self._weights.values())
        #: how far each queue is behind its share
        self._behind = dict.fromkeys(self._weights, 0)

    def next(self) -> list[str]:
        """The queues in the order of the next claim. Not for several threads at once."""
        if not self._weights:
            return self.queues
        for queue, weight in self._weights.items():
            self._behind[queue] += weight
        order = sorted(self.queues, key=self._behind.__getitem__, reverse=True)
        self._behind[order[0]] -= self._total
        return order


class Combiner:
    """Combines the claims of the lanes of one worker."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lock = threading.Lock()
        self._has_leader = False
        self._waiting: list[Claim] = []

    def claim(self, settlement: Settlement | None, wants_job: bool) -> Claim:
        """Settle a job and claim another; raises what the round trip raises."""
        claim = Claim(settlement, wants_job)
        with self._lock:
            self._waiting.append(claim)
            claim.is_leader, self._has_leader = not self._has_leader, True
        if not claim.is_leader:
            claim.wait()
        if claim.is_leader:
            self._serve(claim)
        if claim.error is not None:
            raise claim.error
        return claim

    def _serve(self, leader: Claim) -> None:
        with self._lock:
            claims, self._waiting = self._waiting, []
        try:
            self._share(claims)
        except BaseException as error:  # raised in the lane of each claim
            for one in claims:
                one.error = error
        finally:
            self._choose_leader()
            for one in claims:
                if one is not leader:
                    one.is_leader = False
                    one.wake()

    def _share(self, claims: Sequence[Claim]) -> None:
        """Make the round trip, and give each claim its part of the reply."""
        settling = [one for one in claims if one.settlement is not None]
        claiming = [one for one in claims if one.wants_job]
        reply = self._exchange([one.settlement for one in settling if one.settlement], len(claiming))
        for one, applied in zip(settling, reply.applied, strict=True):
            one.applied = applied
        for one, job in zip(claiming, reply.jobs, strict=False):
            one.job = job
        for one in claims:
            one.due_in = reply.due_in

    def _choose_leader(self) -> None:
        with self._lock:
            self._has_leader = bool(self._waiting)
            if self._waiting:
                self._waiting[0].is_leader = True
                self._waiting[0].wake()


class Claim:
    """What one lane settles and claims, and the result."""

    __slots__ = ("_served", "applied", "due_in", "error", "is_leader", "job", "settlement", "wants_job")

    def __init__(self, settlement: Settlement | None, wants_job: bool) -> None:
        self.settlement = settlement
        self.wants_job = wants_job
        #: whether the settlement was applied; False where its lease was stale
        self.applied = True
        self.job: LeasedJob | None = None
        #: seconds until something is due
        self.due_in: float | None = None
        self.error: BaseException | None = None
        #: whether this lane serves all that wait, itself included
        self.is_leader = False
        self._served = threading.Lock()
        self._served.acquire()

    def wait(self) -> None:
        """Wait until another lane has served this one, or made it the leader."""
        self._served.acquire()

    def wake(self) -> None:
        """End the wait."""
        self._served.release()


class LostClaims:
    """The claims of one worker whose replies were lost.

    Their jobs are released before the next claim, and again after each third of a lease, until a lease has
    passed since Redis replied first: a request that was delayed on its way may be executed later.
    """

    def __init__(self, engine: Engine, using: str, queues: Sequence[str], lease: float) -> None:
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._lease = lease
        #: token → when it is forgotten: monotonic; infinite until Redis has replied
        self._tokens: dict[str, float] = {}
        #: monotonic
        self._next_release = 0.0

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, token: str) -> None:
        """Remember a claim."""
        self._tokens[token] = math.inf
        self._next_release = 0.0
        if len(self._tokens) > MAX_LOST_CLAIMS:
            del self._tokens[next(iter(self._tokens))]

    def release(self) -> None:
        """Release the jobs of these claims, if that is due; raises MessagingError."""
        if monotonic() < self._next_release:
            return
        tokens = list(self._tokens)
        # before the request: add() resets it for a claim that is lost meanwhile, in another lane
        self._next_release = monotonic() + self._lease / 3
        try:
            released = perform(self._using, self._engine.return_claims(self._queues, tokens))
        except BaseException:
            self._next_release = 0.0
            raise
        now = monotonic()
        for token in tokens:
            ends = min(self._tokens.get(token, now), now + self._lease)
            if ends > now:
                self._tokens[token] = ends
            else:
                self._tokens.pop(token, None)
        if released:
            logger.warning(
                "The reply to a claim was lost; jobs that it had leased were released: %d.", released
            )


class Wakeups:
    """Waits for wake-ups of some queues, for all lanes of a worker, until `stopping` is set."""

    def __init__(self, engine: Engine, using: str, queues: Sequence[str], stopping: threading.Event) -> None:
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._stopping = stopping
        self._leader = threading.Lock()
        #: when an idle lane polled last; monotonic
        self._polled_at = 0.0

    def wait(self, due_in: float | None) -> None:
        """Wait for a wake-up as the leader, or for the leader as a follower; no longer than `due_in`."""
        ends = monotonic() + (due_in if due_in is not None and due_in < POLL_INTERVAL else math.inf)
        while not self._leader.acquire(timeout=min(POLL_INTERVAL, max(ends - monotonic(), 0))):
            if self._stopping.is_set() or monotonic() >= ends:
                return
        try:
            left = min(ends, self._polled_at + POLL_INTERVAL) - monotonic()
            if left > 0 and not self._stopping.is_set():
                perform(self._using, self._engine.wait(self._queues, left))
            # this lane polls next: the lane that leads now may wait
            self._polled_at = monotonic()
        except MessagingError as error:
            logger.warning("Waiting for jobs failed, polling instead: %s", error)
            self._stopping.wait(POLL_INTERVAL)
        finally:
            self._leader.release()


class Admission:
    """Admits lanes that want to claim a job.

    A lone job comes first: while it waits for the running ones to end, and while it runs, no lane is
    admitted.
    """

    def __init__(self, max_tasks: int | None = None) -> None:
        #: jobs that were started and ended
        self.done = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: lanes that wait for a change
        self._waiting = 0
        #: jobs that may still be started
        self._left = math.inf if max_tasks is None else max_tasks
        #: lanes that claim or run a job
        self._inside = 0
        #: jobs that have ended, but are not settled yet: a process that ends now would lose their ends
        self._unsettled = 0
        #: lanes that run a lone job alone, or wait for that
        self._lone = 0
        #: whether a lane runs a lone job, alone or beside others
        self._runs_lone_job = False
        self._closed = False

    def enter(self, *, wait: bool) -> bool:
        """Whether a lane may claim a job; with `wait`, wait until it may. False once this is closed."""
        with self._lock:
            while self._closed or self._lone or self._left < 1:
                if self._closed or not wait:
                    return False
                self._wait()
            self._inside += 1
            self._left -= 1
            return True

    def leave(self, *, started: bool, unsettled: bool = False) -> None:
        """Report that an admitted lane has ended its job, or started none; `unsettled`: `count_settled` will
        follow."""
        with self._lock:
            self._inside -= 1
            self._unsettled += unsettled
            if started:
                self.done += 1
            else:
                self._left += 1
            if self._waiting:
                self._changed.notify_all()

    def count_settled(self) -> None:
        """Report that a job is settled."""
        with self._lock:
            self._unsettled -= 1
            if self._waiting:
                self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether no lane will be admitted any more."""
        return self._closed

    @contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """The block in which an admitted lane runs a lone job: wait until all other jobs have ended and are
        settled, `seconds` at most, and admit no lane meanwhile.

        Yields False if this was closed, or other jobs still run: the job must not be started.
        """
        ends = monotonic() + seconds
        with self._lock:
            self._lone += 1
            self._inside -= 1  # two lanes that wait must not wait for each other
            self._changed.notify_all()
            while self._is_busy and not self._closed and (left := ends - monotonic()) > 0:
                self._wait(left)
            may_start = not self._is_busy and not self._closed
            self._inside += 1
            self._runs_lone_job = self._runs_lone_job or may_start
        try:
            yield may_start
        finally:
            with self._lock:
                self._lone -= 1
                self._runs_lone_job = self._runs_lone_job and not may_start
                self._changed.notify_all()

    @contextmanager
    def beside(self) -> Iterator[bool]:
        """As `alone`, but other jobs may run in this block, except lone ones."""
        with self._lock:
            may_start = not self._runs_lone_job and not self._closed
            self._runs_lone_job = self._runs_lone_job or may_start
        try:
            yield may_start
        finally:
            with self._lock:
                self._runs_lone_job = self._runs_lone_job and not may_start

    @property
    def _is_busy(self) -> bool:
        return self._inside > 0 or self._unsettled > 0

    def close(self) -> None:
        """Admit no more lanes, and end all waits."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, seconds: float | None = None) -> None:
        self._waiting += 1
        self._changed.wait(seconds)
        self._waiting -= 1


class LoneStarts:
    """Starts lone jobs for the lanes of one worker.

    A lone job waits until no other one runs, and the other lanes claim none meanwhile: for LONE_PAUSE in all.
    Then it is released, so that an idle worker gets it. If none is idle for long, it is started beside
    others, but not beside a second lone one.
    """

    def __init__(self, engine: Engine, using: str, worker: str, admission: Admission) -> None:
        self._engine = engine
        self._using = using
        self._worker = worker
        self._admission = admission
        self._lock = threading.Lock()
        self._tries: dict[str, _Tries] = {}
        #: no job waits before this moment: monotonic
        self._no_wait_until = 0.0

    @contextmanager
    def start(self, running: RunningJob) -> Iterator[None]:
        """Start an attempt at a lone job in this block. Raises NotStarted."""
        leased = running.leased
        tries = self._tries_of(leased.lease.id)
        with self._admitted(tries) as may_start:
            if not may_start:
                raise NotStarted(running.settlement(Outcome.RELEASE, self._delay(leased.lease.id, tries)))
            running.leased = leased._replace(state=self._begin(running))
            tries.failed_tries = 0
            yield

    def _tries_of(self, job_id: str) -> _Tries:
        with self._lock:
            tries = self._tries.setdefault(job_id, _Tries())
            if len(self._tries) > MAX_LONE_JOBS:
                del self._tries[next(iter(self._tries))]
            return tries

    def _admitted(self, tries: _Tries) -> AbstractContextManager[bool]:
        if tries.failed_tries >= LONE_TRIES:
            return self._admission.beside()
        return self._alone(tries)

    @contextmanager
    def _alone(self, tries: _Tries) -> Iterator[bool]:
        """Wait until the job may be started alone. For as long as that lasted, no other job waits then."""
        began = monotonic()
        with self._admission.alone(0.0 if began < self._no_wait_until else tries.pause) as is_alone:
            now = monotonic()
            tries.pause = max(tries.pause - (now - began), 0.0)
            if not is_alone:
                with self._lock:
                    self._no_wait_until = max(self._no_wait_until, now + (now - began))
            yield is_alone

    def _begin(self, running: RunningJob) -> State:
        lease = running.leased.lease
        try:
            state = perform(self._using, self._engine.start_lone(lease, self._worker))
        except MessagingError as error:
            logger.warning("Starting job id=%s failed; released: %s", lease.id, error)
            raise NotStarted(running.settlement(Outcome.RELEASE)) from error
        if state is None:
            raise NotStarted(None)
        return state

    def _delay(self, job_id: str, tries: _Tries) -> int:
        """The delay (ms) of a job that could not be started."""
        if self._admission.is_closed:
            return 0
        tries.failed_tries += 1
        logger.info(
            "Job id=%s was not started, since other jobs run in this process; released for %.0f s.",
            job_id, tries.delay,
        )  # fmt: skip
        return round(tries.delay * 1000)


@dataclass(slots=True)
class _Tries:
    """The tries to start one lone job."""

    #: seconds for which it may still keep the other lanes waiting
    pause: float = field(default_factory=lambda: LONE_PAUSE)
    #: since it was started last
    failed_tries: int = 0

    @property
    def delay(self) -> float:
        """Seconds until the next try."""
        return float(min(LONE_FIRST_DELAY * 2 ** min(self.failed_tries - 1, LONE_TRIES), LONE_MAX_DELAY))
