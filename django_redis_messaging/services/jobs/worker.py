"""The worker: claims jobs, keeps their leases and settles them, while executors run them.

One loop does all of it, in the thread that calls `run`. It waits for events in its inbox: reports of
executors, wake-ups, lost leases and cancellations, stops. In each turn it makes at most one claim, which also
settles all jobs that have ended meanwhile, for as many jobs as fit: one for each free lane, and more when the
recent ones were quick. What does not fit after all is released, uncharged. Two threads wait for Redis in its
place: one for wake-ups, while lanes are idle and nothing is ready; one extends the leases.

A job that may have ended its process runs apart (see State.apart): it starts when no other job runs here, and
no other one is claimed meanwhile. If it ends this process, too, it takes no others with it.

If the reply to a claim is lost, its jobs would come back at the end of their leases as jobs that have lost
their worker, and one with a single attempt would be dead. So the worker releases them, by the token of the
claim.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any

from ... import conf
from ...core.commands import batched
from ...core.operations import LoopGuard, log_exception, perform, perform_renewal
from ...core.outcome import backoff, deadline, no_retries_when, time_left
from ...errors import MessagingError, OutcomeUnknown
from ..common.leases import RenewedByCall
from .child import ChildMain
from .children import Children
from .engine import (
    PAGE,
    POLL_INTERVAL,
    Claimed,
    Engine,
    Extended,
    FollowUp,
    Lease,
    LeasedJob,
    Outcome,
    Settlement,
    new_token,
)
from .executor import (
    GOES_ON,
    NOT_STARTED,
    UNSETTLED,
    Attempt,
    Executor,
    Note,
    Report,
    Reporter,
    log_lost_lease,
)
from .forkserver import ForkServer, Spawner, make_starter, resident_memory
from .threads import END_TIMEOUT

logger = logging.getLogger(__name__)

#: weight of a queue, at most
MAX_WEIGHT = 1000
#: seconds for the calls to Redis at the end of a worker on which no job depends
LAST_DEADLINE = 0.8
#: claims whose lost replies are remembered, the latest ones
MAX_LOST_CLAIMS = 1000
#: seconds between two extensions of leases, at most: a cancellation is noticed by the next one
MAX_EXTEND_INTERVAL = 1.0
#: quick jobs that a lane gets at a time, at most
MAX_BATCH = 32
#: from this size of batches on, one waits for the next free lane
PREFETCHED = 8
#: mean seconds below which the jobs of a task are quick; how many have to be seen before
QUICK, MIN_SEEN = 0.001, 3
#: seconds that one job adds to the mean, at most: it may have waited for a processor
MAX_SAMPLE = 0.005
#: tasks whose speed is remembered
MAX_TASKS = 1000
#: seconds for which a job that runs apart waits until no other one runs here; then it is released for as
#: long, so that another worker can have it. Both are doubled with each try, up to the maximum
APART_FIRST_WAIT, APART_MAX_WAIT = 5.0, 300.0
#: seconds before a follow-up that could not be pushed is tried again
FOLLOW_UP_INTERVAL = 1.0
#: seconds for which further jobs that run apart are released
APART_DELAY = 1.0

_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
#: outcomes after which a job has ended for good
_FINAL = (Outcome.DONE, Outcome.DEAD, Outcome.CANCELLED)


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
        #: jobs that were started and ended
        self.done = 0
        #: by queue: jobs that ended for good
        self.ended: Counter[str] = Counter()
        #: whether a part of it ended by an unexpected error
        self.failed = False
        self._engine = engine
        self._using = using
        self._order = QueueOrder(queues)
        self._attempt = attempt
        self._load = load
        self._limits = limits
        self._lost_claims = LostClaims(engine, using, self._order.queues, limits.lease)
        #: what the loop handles: a function and its argument. Reentrant: a signal handler adds to it
        self._inbox: SimpleQueue[tuple[Callable[[Any], object], Any]] = SimpleQueue()
        #: calls of `stop`
        self._stops = 0
        self._stopping = False
        #: whether running jobs are released now
        self._ended = False
        self._hosts: list[Host] = []
        self._children: Children | None = None
        #: jobs that were claimed and have not ended, by number: one whose lease was lost may be claimed again
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        #: of jobs that have ended
        self._settlements: list[Settlement] = []
        #: those that another job follows: a claim has no keys for the queue of that
        self._follow_ups: list[Settlement] = []
        #: when to try these: monotonic
        self._next_follow_up = 0.0
        self._outage: Outage | None = None
        self._speeds = Speeds()
        #: quick jobs that are claimed for each free lane
        self._size = 1
        #: whether there was no place for a job; until another one has ended
        self._is_full = False
        #: whether all jobs of the last claim were coroutines
        self._claimed_coroutines = False
        #: when to claim though nothing has changed: monotonic
        self._next_claim = 0.0
        self._apart = Apart()
        self._wakeups = Wakeups(engine, using, self._order.queues, self._on_wakeup)
        self._keeper = Keeper(self)

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
        self._take_events(0)
        try:
            if not self._stopping:
                self._start_hosts(starter)
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

    def _start_hosts(self, starter: ForkServer | Spawner | None) -> None:
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
        count = max(limits.processes, 1)
        self._hosts = [Host(executor, count * limits.concurrency, count * limits.async_concurrency, count)]

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
        started, returned = 0, []
        for report in reports:
            job = self._jobs.get(report.number)
            if job is None:  # it was released
                continue
            if report.ended == GOES_ON:
                self._leave_lane(job)
                self._speeds.note(job.task, 0.0, is_async=True)
                continue
            del self._jobs[report.number]
            job.leave()
            if report.ended == NOT_STARTED:
                returned.append(job)
                continue
            if report.started:
                started += 1
                self._speeds.note(job.task, report.seconds, is_async=report.is_async)
            self._note_end(job, report)
        self.done += started
        self._is_full = False
        if returned:
            self._place_again(returned)
        if started and self._limits.reached(self.done, self._memory):
            self._begin_stop()

    def _note_end(self, job: Job, report: Report) -> None:
        lease = job.leased.lease
        if report.ended == UNSETTLED:
            return
        outcome = _OUTCOMES[report.ended]
        if outcome in _FINAL:
            self.ended[lease.queue] += 1
        follow_up = None
        if report.follow_up is not None and job.place is not None:
            announce = partial(job.place.host.executor.announce, report.number)
            follow_up = FollowUp(*report.follow_up, announce)
        settlement = Settlement(lease, outcome, report.ms, report.line, follow_up)
        (self._settlements if follow_up is None else self._follow_ups).append(settlement)

    def _leave_lane(self, job: Job) -> None:
        place = job.place
        job.leave_lane()
        if place is not None and self._apart.running is place:
            self._apart.running = job.place

    def _on_extended(self, extended: Sequence[tuple[int, Extended]]) -> None:
        """Handle lost leases and cancellations, unless the jobs have ended meanwhile."""
        for number, what in extended:
            job = self._jobs.get(number)
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
            for host in self._hosts:
                host.executor.give_back()

    # Claims

    def _seconds_to_claim(self) -> float:
        now = monotonic()
        if self._outage is not None:
            return self._outage.retry_at - now
        if self._settlements:
            return 0.0
        seconds = self._next_claim - now if self._room() > 0 else POLL_INTERVAL
        if self._follow_ups:
            seconds = min(seconds, self._next_follow_up - now)
        return min(seconds, self._apart.seconds(now))

    def _turn(self) -> None:
        """Settle what has ended, and claim what fits, if there is a reason for it."""
        now = monotonic()
        if self._stopping or (self._outage is not None and now < self._outage.retry_at):
            return
        self._settle_follow_ups()
        self._start_apart(now)
        count = max(self._room(), 0)
        if self._settlements or (count and now >= self._next_claim):
            self._claim(count)
        if self._next_claim > now and self._outage is None and self._room() > 0:
            self._wakeups.wait(self._next_claim - now)

    def _claim(self, count: int) -> None:
        settlements = self._settlements[:PAGE]
        try:
            claimed = self._exchange(settlements, count)
        except MessagingError as error:
            self._note_outage(error, settlements)
            return
        self._note_settled(settlements, claimed.applied)
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
                    self._release(job)
            else:
                self._place(jobs, is_full=found == count)
        elif self._limits.burst and not self._has_work and claimed.due_in != 0:
            self._begin_stop()

    def _exchange(self, settlements: Sequence[Settlement], count: int) -> Claimed:
        """Settle leases and claim jobs; raises MessagingError."""
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
        if count:
            self._keeper.consumed = True
        return claimed

    def _note_settled(self, settlements: Sequence[Settlement], applied: Sequence[bool]) -> None:
        del self._settlements[: len(settlements)]
        outage, self._outage = self._outage, None
        if not all(applied):
            for one, was_applied in zip(settlements, applied, strict=True):
                # one that was sent without a reply may have been applied then
                if not was_applied and not (outage is not None and one.lease in outage.sent):
                    log_lost_lease(one)

    @property
    def _has_work(self) -> bool:
        """Whether jobs have not ended, or are not settled."""
        return bool(self._jobs or self._settlements or self._follow_ups)

    def _note_outage(self, error: MessagingError, settlements: Sequence[Settlement]) -> None:
        """Plan the next attempt to reach Redis. A burst ends instead: its caller expects that."""
        outage = self._outage = self._outage or Outage()
        outage.add(error, settlements)
        if self._limits.burst and outage.is_long and not self._stopping:
            logger.error("Claiming jobs failed; stopping: %s", error)
            self._fail(None)
            return
        seconds = outage.plan()
        logger.warning("Claiming jobs failed, retrying in %.1f s: %s", seconds, error)

    def _settle_follow_ups(self) -> None:
        """Settle the jobs that another one follows, each alone."""
        if monotonic() < self._next_follow_up:
            return
        for one in list(self._follow_ups):
            try:
                self._settle_and_push(one)
            except MessagingError as error:
                self._note_outage(error, [one])
                self._next_follow_up = monotonic() + FOLLOW_UP_INTERVAL
                return
            self._follow_ups.remove(one)

    def _settle_and_push(self, settlement: Settlement) -> None:
        follow_up = settlement.follow_up
        if follow_up is None:
            return
        moment = perform(self._using, self._engine.settle_and_push(settlement, follow_up))
        follow_up.pushed(moment or 0)
        if moment == 0 and not (self._outage is not None and settlement.lease in self._outage.sent):
            log_lost_lease(settlement)

    # Jobs

    def _room(self) -> int:
        """How many jobs to claim."""
        if self._stopping or self._is_full or self._apart.is_exclusive:
            return 0
        hosts = self._hosts
        room = sum([max(host.free, 0) * self._size for host in hosts])
        if self._size >= PREFETCHED:
            room += sum([host.places_to_wait * self._size for host in hosts])
        if self._claimed_coroutines:
            room = max(room, min(sum([host.room for host in hosts]), 2 * MAX_BATCH))
        if self._limits.max_tasks is not None:
            room = min(room, self._limits.max_tasks - self.done - len(self._jobs))
        return min(room, PAGE)

    def _place(self, jobs: Sequence[Job], *, is_full: bool, may_wait: bool = True) -> None:
        """Hand over jobs, and release those for which there is no place. `is_full`: as many as wanted;
        `may_wait`: for the next free lane, too."""
        quick: list[Job] = []
        coroutines: list[Job] = []
        single: list[Job] = []
        apart: list[Job] = []
        for job in jobs:
            is_apart = job.leased.state.apart
            if is_apart and self._children is None:
                apart.append(job)
                continue
            speed = self._speeds.get(job.task)
            if speed is None or is_apart or job.is_single:
                single.append(job)
            elif speed.is_async:
                coroutines.append(job)
            else:
                (quick if speed.is_quick else single).append(job)
        if self._apart.is_exclusive:
            left = [*single, *quick, *coroutines]
        else:
            left = self._place_single(single)
            left += self._place_quick(quick, may_wait) + self._place_coroutines(coroutines)
        for job in left:
            self._release(job)
        for job in apart:
            self._hold_apart(job)
        self._is_full = bool(left)
        self._claimed_coroutines = bool(coroutines) and not (single or quick)
        if single or left:
            self._size = 1
        elif is_full:
            self._size = min(2 * self._size, MAX_BATCH)

    def _place_single(self, jobs: list[Job]) -> list[Job]:
        """Give each job a lane; returns those for which there is none."""
        for at, job in enumerate(jobs):
            host = max(self._hosts, key=_free)
            if host.free <= 0:
                return jobs[at:]
            self._run(host, [job])
        return []

    def _place_quick(self, jobs: list[Job], may_wait: bool) -> list[Job]:
        """Share quick jobs among the lanes; returns those for which there is no place."""
        waiting = sum([host.places_to_wait for host in self._hosts]) if may_wait else 0
        places = sum([max(host.free, 0) for host in self._hosts]) + waiting
        while jobs and places > 0:
            size = min(-(-len(jobs) // places), MAX_BATCH)
            batch, jobs = jobs[:size], jobs[size:]
            self._run(max(self._hosts, key=_free), batch)
            places -= 1
        return jobs

    def _place_coroutines(self, jobs: list[Job]) -> list[Job]:
        """Start coroutines; returns those for which there is no room."""
        while jobs:
            host = max(self._hosts, key=_room)
            size = min(host.room, MAX_BATCH)
            if size <= 0:
                break
            batch, jobs = jobs[:size], jobs[size:]
            self._run(host, batch, is_async=True)
        return jobs

    def _run(self, host: Host, jobs: Sequence[Job], *, is_async: bool = False) -> None:
        place = host.add(len(jobs), is_async=is_async)
        for job in jobs:
            job.place = place
            self._jobs[job.number] = job
        place.host.executor.run([(job.number, job.leased) for job in jobs], is_async=is_async)

    def _place_again(self, jobs: Sequence[Job]) -> None:
        """Hand over jobs that were given back to other lanes, or release them."""
        kept = []
        for job in jobs:
            if job.is_cancelled or self._stopping:
                self._release(job)
            elif not job.is_lost:
                kept.append(job)
        if kept:
            self._size = 1
            self._place(kept, is_full=False, may_wait=False)

    def _release(self, job: Job, delay: float = 0.0) -> None:
        """Release a job that has not started, uncharged. If it shall be cancelled, it ends with that."""
        self._settlements.append(job.leased.lease.settlement(Outcome.RELEASE, round(1000 * delay)))

    def _hold_apart(self, job: Job) -> None:
        """Let a job that runs apart wait until no other one runs here; one at a time."""
        if self._apart.is_exclusive:
            self._release(job, APART_DELAY)
        else:
            self._apart.hold(job)
            self._jobs[job.number] = job

    def _start_apart(self, now: float) -> None:
        """Start the job that waits to run apart if it may start; release it if it has waited for too long."""
        job = self._apart.waiting
        if job is None:
            return
        if job.is_lost or job.is_cancelled:
            self._give_up_apart()
        elif len(self._jobs) == 1 and not self._settlements and not self._follow_ups:
            # else its end would take theirs with it
            self._apart.waiting = None
            self._run(self._hosts[0], [job])
            self._apart.running = job.place
        elif now >= self._apart.ends:
            del self._jobs[job.number]
            delay = self._apart.give_up()
            logger.info(
                "Job id=%s was not started, since other jobs run in this process; released for %.0f s.",
                job.leased.lease.id, delay,
            )  # fmt: skip
            self._release(job, delay)

    def _give_up_apart(self) -> None:
        """Release the job that waits to run apart, unless another worker may have it."""
        job, self._apart.waiting = self._apart.waiting, None
        if job is not None:
            self._place_again([self._jobs.pop(job.number)])

    # The end

    def _drain(self, ends: float) -> None:
        """Settle what ends until then, or until a second stop."""
        self._give_up_apart()
        while self._has_work and not self._ended and (left := ends - monotonic()) > 0:
            outage = self._outage
            if outage is not None:
                left = min(left, outage.retry_at - monotonic())
            if self._follow_ups:
                left = min(left, self._next_follow_up - monotonic())
            self._take_events(0 if self._settlements and outage is None else left)
            if outage is None or monotonic() >= outage.retry_at:
                self._settle_follow_ups()
                if self._settlements:
                    self._claim(0)

    def _end(self) -> None:
        """Release what still runs, end all threads, and remove the heartbeat."""
        self._begin_stop()
        with deadline(conf.current().COMMAND_DEADLINE):  # for all that follows, should Redis not reply
            self._release_all()
            with suppress(MessagingError):  # without a release, they come back when their leases end
                if self._lost_claims:
                    self._lost_claims.release()
        with deadline(LAST_DEADLINE):
            self._keeper.stop()  # before remove_worker(): a later heartbeat would add the worker again
            for host in self._hosts:
                host.executor.close(max(time_left(), 0))
        # without a heartbeat it counts as ended, too
        with deadline(LAST_DEADLINE / 2), suppress(MessagingError):
            perform(self._using, self._engine.remove_worker(self.id))

    def _release_all(self) -> None:
        """Release the jobs that still run: other workers get them at once. Settle those that have ended."""
        self._give_up_apart()
        for host in self._hosts:
            host.executor.give_back(running=True)
        self._take_events(0)
        while self._settlements or self._follow_ups:
            page, follow_up = self._settlements[:PAGE], self._follow_ups[:1]
            try:
                if follow_up:
                    self._settle_and_push(follow_up[0])
                    self._follow_ups.remove(follow_up[0])
                else:
                    self._note_settled(page, self._exchange(page, 0).applied)
            except MessagingError as error:
                # without a reply, a repeat is harmless: leases that were settled are stale
                if not isinstance(error, OutcomeUnknown) or time_left() <= 0:
                    _log_unsettled(follow_up or page, error)
                    del (self._follow_ups if follow_up else self._settlements)[: len(follow_up or page)]

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


class Job:
    """A job that a worker has claimed."""

    __slots__ = ("is_cancelled", "is_lost", "leased", "number", "place", "task")

    def __init__(self, number: int, leased: LeasedJob) -> None:
        self.number = number
        self.leased = leased
        #: name of the task, or the queue of a job without one
        self.task = task_of(leased.state.more) or leased.lease.queue
        self.place: Place | None = None
        #: whether another worker may have it
        self.is_lost = False
        #: whether it shall be cancelled
        self.is_cancelled = False

    @property
    def is_single(self) -> bool:
        """Whether it gets a lane for itself: handing it back would be risky, or change the order of timers,
        or it may have to wait."""
        more = self.leased.state.more
        return self.leased.state.max_attempts == 1 or not more or " needs=" in more

    def leave(self) -> None:
        """It has ended."""
        if self.place is not None:
            self.place.remove()

    def leave_lane(self) -> None:
        """It goes on as a coroutine."""
        if self.place is not None:
            self.place.remove()
            self.place = self.place.host.add(1, is_async=True)


def task_of(more: str) -> str:
    """The name of the task in the fields of a state that never change; empty if there is none.

    >>> task_of(" task=shop.tasks.pack group=acme")
    'shop.tasks.pack'
    """
    if more.startswith(" task="):  # the first one, if there is one
        end = more.find(" ", 6)
        return more[6:] if end < 0 else more[6:end]
    return ""


class Host:
    """An executor, with the number of jobs that it runs."""

    __slots__ = ("executor", "free", "room", "spare")

    def __init__(self, executor: Executor | Children, lanes: int, room: int, spare: int = 1) -> None:
        self.executor = executor
        #: lanes without a batch; negative: so many batches wait for the next free lanes
        self.free = lanes
        #: batches that may wait: one for each process
        self.spare = spare
        #: coroutines that may still be started
        self.room = room

    @property
    def places_to_wait(self) -> int:
        """Further batches that may wait for the next free lanes."""
        return self.spare + min(self.free, 0)

    def add(self, count: int, *, is_async: bool) -> Place:
        """Make a place for jobs: a lane, or room for coroutines."""
        if is_async:
            self.room -= count
        else:
            self.free -= 1
        return Place(self, count, is_async)


class Place:
    """Where the jobs of one batch run."""

    __slots__ = ("count", "host", "is_async")

    def __init__(self, host: Host, count: int, is_async: bool) -> None:
        self.host = host
        #: jobs that have not ended
        self.count = count
        self.is_async = is_async

    def remove(self) -> None:
        """Remove a job that has ended."""
        self.count -= 1
        if self.is_async:
            self.host.room += 1
        elif self.count == 0:
            self.host.free += 1


def _free(host: Host) -> int:
    return host.free


def _room(host: Host) -> int:
    return host.room


class Speed:
    """How long the jobs of one task occupy a lane."""

    __slots__ = ("is_async", "mean", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.mean = 0.0
        self.is_async = False

    @property
    def is_quick(self) -> bool:
        """Whether several of its jobs may share a lane."""
        return self.seen >= MIN_SEEN and self.mean < QUICK


class Speeds:
    """The speeds of the tasks that a worker has run."""

    def __init__(self) -> None:
        self._tasks: dict[str, Speed] = {}

    def get(self, task: str) -> Speed | None:
        """The speed of a task; None if it is unknown."""
        return self._tasks.get(task)

    def note(self, task: str, seconds: float, *, is_async: bool) -> None:
        """Add a job that has ended to the running mean."""
        speed = self._tasks.get(task)
        if speed is None:
            if len(self._tasks) >= MAX_TASKS:
                self._tasks.clear()
            speed = self._tasks[task] = Speed()
        speed.is_async = is_async
        speed.seen += 1
        sample = seconds if seconds < MAX_SAMPLE else MAX_SAMPLE
        speed.mean += (sample - speed.mean) / (speed.seen if speed.seen < 8 else 8)


class Apart:
    """The job of a worker that runs apart, or waits for that."""

    def __init__(self) -> None:
        self.waiting: Job | None = None
        #: where it runs, and has run
        self.running: Place | None = None
        #: until when it waits: monotonic
        self.ends = 0.0
        self._wait = APART_FIRST_WAIT

    @property
    def is_exclusive(self) -> bool:
        """Whether no other job may start."""
        return self.waiting is not None or (self.running is not None and self.running.count > 0)

    def hold(self, job: Job) -> None:
        """Let a job wait."""
        self.waiting, self.ends = job, monotonic() + self._wait

    def give_up(self) -> float:
        """Let it wait no more. Returns the seconds for which it is released; the next one waits longer."""
        seconds, self.waiting = self._wait, None
        self._wait = min(2 * seconds, APART_MAX_WAIT)
        return seconds

    def seconds(self, now: float) -> float:
        """Seconds until the wait ends."""
        return math.inf if self.waiting is None else self.ends - now


@dataclass(slots=True)
class Outage:
    """Failures to reach Redis, in a row."""

    failures: int = 0
    #: when to try again: monotonic
    retry_at: float = 0.0
    #: whether it has lasted for COMMAND_DEADLINE
    is_long: bool = False
    #: leases whose settlements were sent without a reply: they may have been applied
    sent: set[Lease] = field(default_factory=set)
    _began: float = field(default_factory=monotonic)

    def add(self, error: MessagingError, settlements: Sequence[Settlement]) -> None:
        """Add a failure of a call with these settlements."""
        self.failures += 1
        is_unknown = isinstance(error, OutcomeUnknown)
        if is_unknown:
            self.sent.update(one.lease for one in settlements)
        # other errors are raised after retries for so long, or no retry helps
        self.is_long = not is_unknown or monotonic() - self._began >= conf.current().COMMAND_DEADLINE

    def plan(self) -> float:
        """Plan the next try; returns the seconds until then."""
        seconds = backoff(self.failures)
        self.retry_at = monotonic() + seconds
        return seconds


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
        #: in the order in which they were given; members of enumerations become plain strings
        self.queues = [str.__str__(queue) for queue in queues]
        weights = queues.values() if isinstance(queues, Mapping) else ()
        self._weights = dict(zip(self.queues, weights, strict=False))
        self._total = sum(self._weights.values())
        #: how far each queue is behind its share
        self._behind = dict.fromkeys(self._weights, 0)

    def next(self) -> list[str]:
        """The queues in the order of the next claim."""
        if not self._weights:
            return self.queues
        for queue, weight in self._weights.items():
            self._behind[queue] += weight
        order = sorted(self.queues, key=self._behind.__getitem__, reverse=True)
        self._behind[order[0]] -= self._total
        return order


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
        released = perform(self._using, self._engine.return_claims(self._queues, tokens))
        now = monotonic()
        self._next_release = now + self._lease / 3
        for token in tokens:
            ends = min(self._tokens.pop(token), now + self._lease)
            if ends > now:
                self._tokens[token] = ends
        if released:
            logger.warning(
                "The reply to a claim was lost; jobs that it had leased were released: %d.", released
            )


class Wakeups:
    """Waits for wake-ups of some queues, in a thread of its own, when the loop asks for it."""

    def __init__(
        self, engine: Engine, using: str, queues: Sequence[str], on_wakeup: Callable[[], object]
    ) -> None:
        #: whether it waits; the loop sets this to False when `on_wakeup` was called
        self.is_waiting = False
        self._engine = engine
        self._using = using
        self._queues = list(queues)
        self._on_wakeup = on_wakeup
        self._ended = threading.Event()
        #: seconds of the next wait; None: end
        self._asked: SimpleQueue[float | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def wait(self, seconds: float) -> None:
        """Begin to wait, unless it does; at the end, woken or not, it calls `on_wakeup` in its thread."""
        if self.is_waiting or seconds <= 0:
            return
        self.is_waiting = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wake-ups", daemon=True)
            self._thread.start()
        self._asked.put(seconds)

    def end(self) -> None:
        """Wait no more after the wait that goes on."""
        self._ended.set()
        self._asked.put(None)

    def _run(self) -> None:
        with LoopGuard(logger, "Waiting for wake-ups failed; polling instead."):
            while (seconds := self._asked.get()) is not None:
                try:
                    perform(self._using, self._engine.wait(self._queues, seconds))
                except MessagingError as error:
                    if not self._ended.is_set():
                        logger.warning("Waiting for jobs failed, polling instead: %s", error)
                    self._ended.wait(POLL_INTERVAL)
                self._on_wakeup()


class Keeper:
    """Extends the leases of the jobs of a worker in one call, and stores its heartbeat after each third of a
    lease."""

    def __init__(self, worker: Worker) -> None:
        #: whether a claim was answered since the last heartbeat
        self.consumed = False
        self._worker = worker
        self._lease = worker._limits.lease
        self._failed = False
        #: start of the worker by the server's clock: ms; 0 before the first heartbeat
        self._started = 0
        self._next_report = 0.0
        self._ending = False
        interval = min(self._lease / 3, MAX_EXTEND_INTERVAL)
        self._renewal = RenewedByCall(worker._using, f"worker {worker.id}", interval, self._beat)

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
            if monotonic() >= self._next_report:
                self.report()
        except MessagingError:
            raise  # it is repeated
        except BaseException as error:  # SystemExit too: the thread must not end
            if not self._failed:
                self._failed = True
                self._worker._fail_soon()
                log_exception(logger, error, "The heartbeat of worker %s failed; stopping.", self._worker.id)

    def keep_leases(self) -> None:
        """Extend the leases of all jobs; lets the loop handle what it learns of them."""
        worker = self._worker
        for page in batched(list(worker._jobs.values()), PAGE):
            leases = [job.leased.lease for job in page]
            extended = perform_renewal(
                worker._using, worker._engine.extend(leases, round(self._lease * 1000))
            )
            changed = [
                (job.number, what)
                for job, what in zip(page, extended, strict=True)
                if what is not Extended.IN_FORCE
            ]
            if changed:
                worker._inbox.put((worker._on_extended, changed))
        if worker._outage is not None:  # others must not get jobs that have ended
            self._keep_unsettled()

    def _keep_unsettled(self) -> None:
        worker = self._worker
        for page in batched([*worker._settlements, *worker._follow_ups], PAGE):
            leases = [one.lease for one in page]
            perform_renewal(worker._using, worker._engine.extend(leases, round(self._lease * 1000)))

    def report(self) -> None:
        """Store the state of the worker, unless it is ending."""
        if self._ending:
            return
        worker = self._worker
        done = worker.done  # read first: what has run was claimed before
        consumed, self.consumed = self.consumed, False  # a claim may be answered during the call
        running = len(worker._jobs)
        beat = worker._engine.beat(
            worker.id,
            consumed=consumed,
            started=self._started,
            running=running,
            done=done,
            ended=dict(worker.ended),
        )
        try:
            now = perform_renewal(worker._using, beat)
        except BaseException:
            self.consumed |= consumed
            raise
        self._started = self._started or now
        self._next_report = monotonic() + self._lease / 3 * 0.9


def _log_unsettled(settlements: Sequence[Settlement], error: MessagingError) -> None:
    """Log that leases could not be settled before the worker ended."""
    ids = ", ".join(one.lease.id for one in settlements)
    logger.warning("Settling failed; delivered again when the leases end: jobs id=%s: %s", ids, error)
