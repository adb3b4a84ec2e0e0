"""The worker: claims jobs, keeps their leases and settles them, while executors run them.

One loop does all of it, in the thread that calls `run`. It waits for events in its inbox: reports of
executors, wake-ups, lost leases and cancellations, stops. In each turn it makes at most one claim, which also
settles all jobs that have ended meanwhile (claims.py), for as many jobs as fit (placement.py). What does not
fit after all is released, uncharged.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any

from ... import conf
from ...core.operations import log_exception, perform
from ...core.outcome import deadline, no_retries_when, time_left
from ...errors import MessagingError
from ..history.ended import COUNTED
from ..history.recording import Recorder
from .child import ChildMain
from .children import Children
from .claims import Claims, Keeper, Wakeups
from .engine import POLL_INTERVAL, Claimed, Engine, Extended
from .executor import GOES_ON, NOT_STARTED, Attempt, Executor, Note, Report, Reporter
from .forkserver import ForkServer, Spawner, make_starter, resident_memory
from .placement import Host, Job, Placement
from .threads import END_TIMEOUT

logger = logging.getLogger(__name__)

#: weight of a queue, at most
MAX_WEIGHT = 1000
#: seconds for the calls to Redis at the end of a worker on which no job depends
LAST_DEADLINE = 0.8
#: seconds in which a worker that ends tries to release the jobs of claims whose replies were lost
RELEASE_DEADLINE = 5.0
#: seconds for a claim of an idle worker, since a stop waits for its end. Doubled after each failure: a slow
#: server may need more; doublings, at most
IDLE_DEADLINE, MAX_IDLE_DOUBLINGS = 2.0, 3


@dataclass(frozen=True)
class Limits:
    """Options of a worker, and the limits at which it ends."""

    #: sync jobs that run at a time: lanes, in each process
    concurrency: int = 4
    #: processes that run jobs; 0: this one does
    processes: int = 0
    #: coroutines that run at a time, in each process
    async_concurrency: int = 200
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
    #: jobs after which a child process is replaced
    max_tasks_per_child: int | None = None
    #: MiB; a child process that uses more is replaced when its jobs have ended
    max_memory_per_child: int | None = None
    #: how child processes start: "fork" or "spawn"; None: see make_starter
    start_method: str | None = None

    def reached(self, done: int, memory: Callable[[], int]) -> bool:
        """Whether the worker must start no more jobs, after so many; `memory` returns what it uses: MiB."""
        if self.max_memory is not None and (used := memory()) > self.max_memory:
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
        load: Callable[[], object] = lambda: None,
    ) -> None:
        """`load` imports what attempts need, in the process from which children are forked."""
        self.id = f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(3).hex()}"
        #: whether a part of it ended by an unexpected error
        self.failed = False
        self._attempt = attempt
        self._load = load
        self._limits = limits
        #: what the loop handles: a function and its argument. Reentrant: a signal handler adds to it
        self._inbox: SimpleQueue[tuple[Callable[[Any], object], Any]] = SimpleQueue()
        #: calls of `stop`
        self._stops = 0
        self._stopping = False
        #: whether running jobs are released now
        self._ended = False
        self._children: Children | None = None
        self._numbers = itertools.count(1)
        #: when to claim though nothing has changed: monotonic
        self._next_claim = 0.0
        self._claims = Claims(engine, using, self.id, queues, limits.lease)
        self._leases = self._claims.leases
        self._placement = Placement(self._leases.jobs, self._leases.release)
        self._wakeups = Wakeups(engine, using, self._claims.order.queues, self._on_wakeup)
        self._recorder = Recorder(using, engine)
        self._keeper = Keeper(self._claims, self._take_extended, self._fail_soon)

    @property
    def done(self) -> int:
        """Jobs that were started and ended."""
        return self._leases.done

    def stop(self) -> None:
        """Start no more jobs; at the second call, release the running ones. Safe in a signal handler."""
        self._stops += 1
        self._inbox.put((self._on_stop, None))

    def run(self) -> None:
        """Work until stopped, or until a limit is reached; then wait for running jobs, and release those that
        don't finish in time."""
        closes = monotonic() + (self._limits.max_time or math.inf)
        starter = self._starter()  # first: it must not copy threads
        self._keeper.start()
        self._recorder.start()
        self._take_events(0)
        try:
            if not self._stopping:
                self._start_host(starter)
            with no_retries_when(lambda: self._stopping or self._stops > 0):
                while not self._stopping and monotonic() < closes:
                    self._take_events(min(self._seconds_to_claim(), closes - monotonic()))
                    self._turn()
                self._begin_stop()
                self._drain(monotonic() + self._limits.drain)
        except Exception as error:
            self._fail(None)
            log_exception(logger, error, "The loop of worker %s failed; stopping.", self.id)
        self._end()

    def run_as_child(self, files: tuple[int, int]) -> None:
        """Run jobs for the worker that has started this process."""
        ChildMain(files, self._executor).run()

    def _starter(self) -> ForkServer | Spawner | None:
        if not self._limits.processes:
            return None
        return make_starter(self._limits.start_method, self._load, lambda *files: self.run_as_child(files))

    def _executor(
        self, report: Reporter, on_failure: Callable[[], object], note: Note | None = None
    ) -> Executor:
        return Executor(
            self._attempt,
            self._limits.concurrency,
            report,
            on_failure,
            name=f"Worker {self.id}",
            before_exit=self._release_before_exit if note is None else lambda: None,
            note=note,
        )

    def _start_host(self, starter: ForkServer | Spawner | None) -> None:
        limits = self._limits
        executor: Executor | Children
        if starter is None:
            executor = self._executor(self._take_reports, self._fail_soon)
        else:
            executor = self._children = Children(
                starter,
                limits.processes,
                limits.concurrency,
                self._take_reports,
                self._fail_soon,
                max_tasks=limits.max_tasks_per_child,
                max_memory=limits.max_memory_per_child,
            )
        self._placement.host = Host(executor, limits.concurrency, limits.async_concurrency, limits.processes)

    def _memory(self) -> int:
        return resident_memory() + (0 if self._children is None else self._children.memory())

    # Events. They are handled in the loop; other threads put them into its inbox.

    def _take_events(self, seconds: float) -> None:
        """Wait for an event, and handle all that have arrived."""
        inbox = self._inbox
        with suppress(Empty):
            handle, argument = inbox.get(timeout=seconds) if seconds > 0 else inbox.get_nowait()
            while True:
                handle(argument)
                handle, argument = inbox.get_nowait()

    def _take_reports(self, reports: Sequence[Report]) -> None:
        self._inbox.put((self._on_reports, reports))

    def _take_extended(self, extended: Sequence[tuple[int, Extended]]) -> None:
        self._inbox.put((self._on_extended, extended))

    def _on_wakeup(self) -> None:
        self._inbox.put((self._claim_soon, None))

    def _fail_soon(self) -> None:
        """End because of an unexpected error, which was logged."""
        self.failed = True  # at once: the loop may be about to end
        self._inbox.put((self._fail, None))

    def _fail(self, _: object) -> None:
        self.failed = True
        self._begin_stop()

    def _on_stop(self, _: object) -> None:
        self._ended = self._stopping
        self._begin_stop()

    def _claim_soon(self, _: object) -> None:
        self._wakeups.is_waiting = False
        self._next_claim = 0.0

    def _on_reports(self, reports: Sequence[Report]) -> None:
        leases, placement, runs = self._leases, self._placement, self._recorder.runs
        started, returned = 0, []
        for report in reports:
            job = leases.jobs.get(report.number)
            if job is None:  # it was released
                continue
            if report.ended == GOES_ON:
                placement.leave_lane(job)
                placement.speeds.note(job.task, 0.0, is_async=True)
                continue
            del leases.jobs[report.number]
            job.leave()
            if report.ended == NOT_STARTED:
                returned.append(job)
                continue
            if report.started:
                started += 1
                seconds = 0.0 if report.is_async else report.seconds
                placement.speeds.note(job.task, seconds, is_async=report.is_async)
                if runs is not None and report.ended in COUNTED:
                    lease, _, state = job.leased
                    wait = state.last - state.moment  # both by the server's clock
                    runs += ((lease.queue, job.task, report.ended, wait, report.seconds),)
            leases.end(job, report)
        leases.done += started
        placement.is_full = False
        if returned:
            placement.place_again(returned)
        if started and self._limits.reached(leases.done, self._memory):
            self._begin_stop()

    def _on_extended(self, extended: Sequence[tuple[int, Extended]]) -> None:
        """Handle lost leases and cancellations, unless the jobs have ended meanwhile."""
        for number, what in extended:
            job = self._leases.jobs.get(number)
            if job is None:
                continue
            host = job.place and job.place.host
            if what is Extended.STALE:
                job.is_lost = True
                if host:
                    host.executor.mark_lost([number])
            elif what is Extended.CANCEL:
                job.is_cancelled = True
                if host:
                    host.executor.cancel(number)

    def _begin_stop(self) -> None:
        """Claim no more jobs, and give back those that have not started."""
        if not self._stopping:
            self._stopping = True
            self._wakeups.end()
            self._placement.stop()

    # Claims

    def _seconds_to_claim(self) -> float:
        now = monotonic()
        if self._claims.outage is not None and (seconds := self._claims.seconds_to_retry()):
            return seconds
        if self._leases.settlements:
            return 0.0
        seconds = self._next_claim - now if self._room() > 0 else POLL_INTERVAL
        if self._leases.follow_ups:
            seconds = min(seconds, self._claims.next_follow_up - now)
        return min(seconds, self._placement.apart.seconds(now))

    def _turn(self) -> None:
        """Settle what has ended, and claim what fits, if there is a reason for it."""
        now, claims, leases = monotonic(), self._claims, self._leases
        if self._stopping or (claims.outage is not None and claims.seconds_to_retry()):
            return
        if leases.follow_ups:  # nearly always none: a call less for each turn
            self._settle_follow_ups()
        if self._placement.apart.waiting is not None:
            self._placement.start_apart(now, is_settled=leases.is_settled)
        count = self._room()
        if leases.settlements or (count > 0 and now >= self._next_claim):
            self._claim(max(count, 0))
        if self._next_claim > now and claims.outage is None and self._room() > 0:
            self._wakeups.wait(self._next_claim - now)

    def _room(self) -> int:
        """How many jobs to claim."""
        room = self._placement.room()
        if self._limits.max_tasks is not None:
            room = min(room, self._limits.max_tasks - self.done - len(self._leases.jobs))
        return room

    def _claim(self, count: int) -> None:
        try:
            is_idle = not self._limits.burst and not self._leases
            claimed = self._claim_when_idle(count) if is_idle else self._claims.claim(count)
        except MessagingError as error:
            self._on_outage(error)
            return
        if not count:
            return
        found = len(claimed.jobs)
        if found < count:
            due_in = POLL_INTERVAL if claimed.due_in is None else claimed.due_in
            self._next_claim = monotonic() + min(due_in, POLL_INTERVAL)
        else:
            self._next_claim = 0.0
        if found:
            jobs = [Job(next(self._numbers), leased) for leased in claimed.jobs]
            if self._stops or self._stopping:
                for job in jobs:
                    self._leases.release(job)
            else:
                self._placement.place(jobs, is_full=found == count)
        elif self._limits.burst and not self._leases and claimed.due_in != 0:
            self._begin_stop()

    def _claim_when_idle(self, count: int) -> Claimed:
        """Claim jobs, in so short a time that a stop may wait for it; raises MessagingError."""
        outage = self._claims.outage
        doublings = 0 if outage is None else min(outage.failures, MAX_IDLE_DOUBLINGS)
        with deadline(IDLE_DEADLINE * 2**doublings):
            return self._claims.claim(count)

    def _settle_follow_ups(self) -> None:
        try:
            self._claims.settle_follow_ups()
        except MessagingError as error:
            self._on_outage(error)

    def _on_outage(self, error: MessagingError) -> None:
        """Plan the next attempt to reach Redis. A burst ends instead: its caller expects that."""
        outage = self._claims.outage
        if outage is None:
            return
        if self._limits.burst and outage.is_long and not self._stopping:
            logger.error("Claiming jobs failed; stopping: %s", error)
            self._fail(None)
            return
        seconds = outage.plan()
        logger.warning("Claiming jobs failed, retrying in %.1f s: %s", seconds, error)

    # The end

    def _drain(self, ends: float) -> None:
        """Settle what ends until then, or until a second stop."""
        claims, leases = self._claims, self._leases
        self._placement.give_up_apart()
        while leases and not self._ended and (left := ends - monotonic()) > 0:
            self._take_events(min(left, self._seconds_to_settle()))
            if not claims.seconds_to_retry():
                self._settle_follow_ups()
            if leases.settlements and not claims.seconds_to_retry():
                self._claim(0)

    def _seconds_to_settle(self) -> float:
        claims, leases = self._claims, self._leases
        if (seconds := claims.seconds_to_retry()) or leases.settlements:
            return seconds
        return claims.next_follow_up - monotonic() if leases.follow_ups else math.inf

    def _end(self) -> None:
        """Release what still runs, end all threads, and remove the heartbeat."""
        self._begin_stop()
        claims = self._claims
        with deadline(conf.current().COMMAND_DEADLINE):  # for all that follows, should Redis not reply
            self._release_all()
        if claims.lost:
            self._release_lost_claims()
        with deadline(LAST_DEADLINE):
            self._keeper.stop()  # before remove_worker(): a later heartbeat would add the worker again
            self._placement.close(max(time_left(), 0))
            self._recorder.close()
        # without a heartbeat it counts as ended, too
        with deadline(LAST_DEADLINE / 2), suppress(MessagingError):
            perform(claims.using, claims.engine.remove_worker(self.id))

    def _release_all(self) -> None:
        """Release the jobs that still run: other workers get them at once. Settle those that have ended."""
        self._placement.stop(running=True)
        self._placement.give_up_apart()
        self._take_events(0)
        self._claims.settle_all()

    def _release_lost_claims(self) -> None:
        """Redis may reply again after a short outage. A claim that was executed would cost its jobs an
        attempt."""
        try:
            with deadline(RELEASE_DEADLINE):
                self._claims.lost.release()
        except MessagingError as error:
            logger.warning(
                "Releasing the jobs of lost claims failed; they return when their leases end: %s", error
            )

    def _release_before_exit(self) -> None:
        """Release all jobs, since this process is about to end. In an interrupted lane, so that the loop does
        it."""
        released: SimpleQueue[None] = SimpleQueue()
        self._inbox.put((self._release_for, released))
        with suppress(Empty):
            released.get(timeout=time_left())

    def _release_for(self, released: SimpleQueue[None]) -> None:
        self.failed = self._stopping = self._ended = True
        self._release_all()
        released.put(None)
        sleep(END_TIMEOUT)  # the process ends meanwhile
