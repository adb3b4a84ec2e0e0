"""The child processes of a worker, as one executor.

The supervisor claims, keeps leases and settles; its children run the code of tasks. Whatever that code does,
the supervisor goes on: it never waits for a child. What a child has not reported when it ends is known from
the notes in shared memory. A job that had not started is released. If one job had started, its attempt is
lost, as if its lease had expired. If several had, any of them may have ended the process: each is requeued
uncharged, for a child of its own.

A job whose timeout has ended, or that is cancelled, is interrupted in its child. If it still runs after
GRACE, the child is killed, and another child concludes the job: the code of the task says whether TaskTimeout
is retried.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from ...core.operations import LoopGuard
from .child import WAITS, Channel, Notes
from .engine import LeasedJob, Outcome
from .executor import GOES_ON, NOT_STARTED, Report, Reporter, released
from .forkserver import ForkServer, Spawner, resident_memory

logger = logging.getLogger(__name__)

#: seconds that a call gets to end after its timeout or cancellation; then its process is killed
GRACE = 5.0
#: seconds between two checks of the children
CHECK_INTERVAL = 0.5
#: seconds for which a job that runs apart is released if another one does so now, at least
APART_DELAY = 1.0
#: seconds between the moments for which two of these are released: about what a short one takes
APART_INTERVAL = 0.05
#: seconds that the children get to report their jobs at the end of the worker
ANSWER_TIMEOUT = 0.3
#: seconds that a child gets to end by itself
EXIT_TIMEOUT = 5.0
#: jobs that a log line lists at most
MAX_LOGGED = 3
#: children that may end before they have loaded the site, one after the other; then the worker ends
MAX_FAILED_STARTS = 5


#: a job with the number that identifies it
Numbered = tuple[int, LeasedJob]


class Children:
    """An executor whose jobs run in child processes: see Executor. `processes` of them take jobs;
    others finish theirs, or run one apart."""

    def __init__(
        self,
        starter: ForkServer | Spawner,
        processes: int,
        lanes: int,
        report: Reporter,
        on_failure: Callable[[], object],
        *,
        max_tasks: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        """`lanes` of each process; `max_tasks`, `max_memory` (MiB): of each, after which it is replaced."""
        self.report = report
        self.max_memory = max_memory
        self._lanes = lanes
        self._max_tasks = max_tasks
        self._starter = starter
        self._on_failure = on_failure
        self._numbers = count(1)
        #: those that take jobs
        self._active: list[Child] = []
        #: all that have not ended
        self._all: set[Child] = set()
        #: the one that runs a job apart
        self._apart: Child | None = None
        #: when the last of those that wait for that is due: monotonic
        self._apart_due = 0.0
        self._failed_starts = 0
        self._lock = threading.RLock()
        #: None: close
        self._pokes: SimpleQueue[None] = SimpleQueue()
        self._closing = False
        for _ in range(processes):
            self._active.append(self._start(max_tasks))
        threading.Thread(target=self._watch, name="watch children", daemon=True).start()

    def run(self, jobs: Sequence[Numbered], *, is_async: bool = False) -> None:
        """Run jobs in order in one child; those that must run apart each in one of its own."""
        left = []
        for number, leased in jobs:
            if leased.state.apart:
                self._run_apart(number, leased)
            else:
                left.append((number, leased))
        while left and (child := self._least_busy(is_async)) is not None:
            if len(rest := child.run(left, is_async)) == len(left):
                self.replace(child)
            left = rest
        if left:
            self.report([Report(number, NOT_STARTED) for number, _ in left])

    def cancel(self, number: int) -> None:
        """Interrupt a call; if it has not started, it won't."""
        for child in list(self._all):
            child.cancel(number)

    def mark_lost(self, numbers: Iterable[int]) -> None:
        """Mark jobs that another worker may have."""
        wanted = set(numbers)
        for child in list(self._all):
            if found := wanted & child.jobs.keys():
                child.send("lost", list(found))

    def give_back(self, *, running: bool = False) -> None:
        """Report the jobs that have not started as such; with `running`, the others as released, at once."""
        children = list(self._all)
        for child in children:
            child.give_back(running)
        ends = monotonic() + ANSWER_TIMEOUT
        for child in children if running else ():
            child.release_after(ends - monotonic())

    def announce(self, number: int, moment: int) -> None:
        """The follow-up of a job was pushed at this moment (ms); 0: it was not, and won't be."""
        for child in list(self._all):
            child.announce(number, moment)

    def close(self, seconds: float) -> None:
        """End the children; kill those that still run after so many seconds."""
        self._closing = True
        ends, children = monotonic() + seconds, list(self._all)
        for child in children:
            child.close(seconds)
        for child in children:
            child.wait(ends - monotonic())
        self.kill()
        self._pokes.put(None)
        self._starter.close()

    def kill(self) -> None:
        """Kill the children."""
        self._closing = True
        for child in list(self._all):
            child.kill()

    def memory(self) -> int:
        """What the children use: MiB. Memory that they share is counted for each."""
        return sum(child.memory() for child in list(self._all))

    def conclude(self, number: int, leased: LeasedJob, was_cancelled: bool) -> None:
        """Let a child report a job whose process was killed as timed out, or cancelled."""
        while (child := self._least_busy(is_async=True)) is not None:
            if child.conclude(number, leased, was_cancelled):
                return
            self.replace(child)
        self.report([Report(number, Outcome.LOST.value, started=True)])

    def replace(self, child: Child) -> None:
        """Let another child take jobs instead of one that takes no more."""
        with self._lock:
            if child in self._active:
                self._active.remove(child)
                if not self._closing:
                    self._active.append(self._start(self._max_tasks))

    def remove(self, child: Child) -> None:
        """Forget a child that has ended."""
        with self._lock:
            self._all.discard(child)
            if self._apart is child:
                self._apart = None
            self._failed_starts = 0 if child.is_ready else self._failed_starts + 1
            if self._failed_starts > MAX_FAILED_STARTS and not self._closing:
                logger.error(
                    "%d child processes ended before they had started; stopping.", self._failed_starts
                )
                self.fail()
            self.replace(child)

    def fail(self) -> None:
        """End the worker."""
        self._closing = True
        self._on_failure()

    def _start(self, max_tasks: int | None) -> Child:
        child = Child(self, self._starter, next(self._numbers), max_tasks)
        self._all.add(child)
        return child

    def _run_apart(self, number: int, leased: LeasedJob) -> None:
        with self._lock:
            is_free = self._apart is None and not self._closing
            if is_free:
                self._apart = self._start(1)
        if self._apart is None or not is_free or self._apart.run([(number, leased)], False):
            self.report([Report(number, Outcome.RELEASE.value, self._apart_delay())])

    def _apart_delay(self) -> int:
        """For how long to release a job because another one runs apart: ms. Many jobs return one by one: if
        all of them did at once, one would start, and the others would be released again."""
        now = monotonic()
        with self._lock:
            self._apart_due = max(now + APART_DELAY, self._apart_due + APART_INTERVAL)
            return round(1000 * (self._apart_due - now))

    def _least_busy(self, is_async: bool) -> Child | None:
        """The child to take the next jobs: one that has started, and has a free lane, if possible."""
        lanes = self._lanes

        def load(child: Child) -> tuple[bool, bool, int, int]:
            batches = 0 if is_async else child.batches
            return batches >= lanes, not child.is_ready, batches, len(child.jobs)

        with self._lock:
            return min(self._active, key=load, default=None)

    def _watch(self) -> None:
        with LoopGuard(logger, "Watching the child processes failed; stopping.", on_failure=self._on_failure):
            while not (self._closing and not self._all):
                with suppress(Empty):
                    return self._pokes.get(timeout=CHECK_INTERVAL)
                now = monotonic()
                for child in list(self._all):
                    child.check(now)


@dataclass(slots=True)
class _Sent:
    """A job that a child has."""

    leased: LeasedJob
    #: of its note
    slot: int
    #: jobs of its batch that occupy a lane together; empty if it occupies none
    batch: set[int]
    #: whether it has started in another child, which was killed
    is_concluding: bool = False
    #: when the child is killed because the job still runs: monotonic
    killed_at: float = math.inf


class Child:
    """One child process."""

    def __init__(
        self, pool: Children, starter: ForkServer | Spawner, number: int, max_tasks: int | None
    ) -> None:
        #: number of a job → what was sent
        self.jobs: dict[int, _Sent] = {}
        #: batches that occupy lanes
        self.batches = 0
        #: whether it has loaded the site
        self.is_ready = False
        self._name = f"child {number}"
        self._pool = pool
        #: jobs that it may still get
        self._left = math.inf if max_tasks is None else max_tasks
        #: whether it gets no more jobs, and ends when it has none
        self._is_retiring = False
        #: jobs whose follow-ups have to be announced
        self._announcing: set[int] = set()
        self._lock = threading.Lock()
        self._has_ended = False
        self._exited = threading.Event()
        self._reported = threading.Event()
        #: whether it has no jobs, after `give_back`
        self._answered = threading.Event()
        self._code: int | None = None
        #: when it is killed, after it was told to end: monotonic
        self._closes_at = math.inf
        #: the job because of which it was killed
        self._killed_for: int | None = None
        #: slots of jobs that have ended, and the next one that was never used
        self._free: list[int] = []
        self._next_slot = 0
        ours, theirs = socket.socketpair()
        file = Notes.new_file()
        self._notes = Notes(file)
        self._channel = Channel(ours)
        self._process = starter.start((theirs.fileno(), file), self._on_exit)
        theirs.close()
        os.close(file)
        threading.Thread(target=self._read, name=self._name, daemon=True).start()

    def run(self, jobs: list[Numbered], is_async: bool) -> list[Numbered]:
        """Take jobs; returns those that it doesn't take."""
        with self._lock:
            if self._has_ended or self._is_retiring:
                return jobs
            taken = jobs if len(jobs) <= self._left else jobs[: int(self._left)]
            batch = set() if is_async else {number for number, _ in taken}
            self.batches += not is_async
            self._channel.send_later("run", [self._add(*one, batch) for one in taken], is_async)
            self._left -= len(taken)
        if self._left < 1:
            self._retire()
        return jobs[len(taken) :]

    def conclude(self, number: int, leased: LeasedJob, was_cancelled: bool) -> bool:
        """Take a job that has started in another child; returns False if this one takes no more."""
        with self._lock:
            if self._has_ended or self._is_retiring:
                return False
            words = self._add(number, leased, set())
            self.jobs[number].is_concluding = True
            self._channel.send_later("conclude", words, was_cancelled)
        return True

    def send(self, *message: Any) -> None:
        """Send a message."""
        self._channel.send_later(*message)

    def cancel(self, number: int) -> None:
        """Interrupt this job, if it is here."""
        sent = self.jobs.get(number)
        if sent is not None:
            sent.killed_at = min(sent.killed_at, monotonic() + GRACE)
            self.send("cancel", number)

    def announce(self, number: int, moment: int) -> None:
        """Report the push of the follow-up of a job that ended here."""
        if number in self._announcing:
            self.send("announce", number, moment)
            self._announcing.discard(number)
            self._end_if_done()

    def give_back(self, running: bool) -> None:
        """Have it report the jobs that have not started; with `running`, all."""
        self._answered.clear()
        self.send("give back", running)

    def release_after(self, seconds: float) -> None:
        """Report the jobs as released that it has not reported by then, whatever becomes of them."""
        if self.jobs:
            self._answered.wait(max(seconds, 0))
        with self._lock:
            if self._has_ended:
                return
            left, self.jobs = self.jobs, {}
            started = {number: self._has_started(sent) for number, sent in left.items()}
        self._pool.report(
            [
                Report(number, released(sent.leased, started[number]).value, started=started[number])
                for number, sent in left.items()
            ]
        )

    def close(self, seconds: float) -> None:
        """Tell it to end, within so many seconds."""
        self._is_retiring = True
        self._closes_at = monotonic() + seconds
        self.send("close", seconds)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, and its jobs are reported."""
        self._reported.wait(max(seconds, 0))

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def memory(self) -> int:
        """MiB that it uses; 0 if that is unknown."""
        return 0 if self._process.pid is None else resident_memory(self._process.pid)

    def check(self, now: float) -> None:
        """Kill it if a job is overdue for too long, or it doesn't end; replace it if it uses much memory."""
        if (number := self._overdue(now)) is not None:
            logger.error(
                "Job id=%s still runs %.0f s after its timeout or cancellation; killing its process %s.",
                self.jobs[number].leased.lease.id, GRACE, self._process.pid,
            )  # fmt: skip
            self._killed_for = number
            self.kill()
            return
        if now > self._closes_at:
            self.kill()
        limit = self._pool.max_memory
        if limit is not None and not self._is_retiring and (used := self.memory()) > limit:
            logger.info("Process %s uses %d MiB, more than %d; replacing it.", self._process.pid, used, limit)
            self._retire()

    def _overdue(self, now: float) -> int | None:
        """A job that still runs though it was interrupted long ago."""
        with self._lock:
            for number, sent in () if self._has_ended else self.jobs.items():
                note = self._notes.slots[sent.slot]
                if note > 0 and now > min(note + GRACE, sent.killed_at):
                    return number
        return None

    def _add(self, number: int, leased: LeasedJob, batch: set[int]) -> tuple[Any, ...]:
        """Note a job; returns it as plain values."""
        if not self._free:
            self._free.append(self._next_slot)
            self._next_slot += 1
        slot = self._free.pop()
        self._notes.slots[slot] = WAITS
        self.jobs[number] = _Sent(leased, slot, batch)
        return number, slot, tuple(leased.lease), leased.payload, tuple(leased.state)

    def _retire(self) -> None:
        """Take no more jobs, and end when none is left."""
        self._is_retiring = True
        self._pool.replace(self)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_retiring and not self.jobs and not self._announcing and self._closes_at == math.inf:
            self.close(EXIT_TIMEOUT)

    def _read(self) -> None:
        """Handle its messages until it ends."""
        with LoopGuard(logger, "Reading from %s failed; killing it.", self._name, on_failure=self.kill):
            for message in self._channel:
                self._handle(*message)
        if not self._exited.wait(EXIT_TIMEOUT):
            self.kill()
            self._exited.wait()
        with self._lock:
            self._has_ended = True
        with LoopGuard(logger, "Replacing %s failed; stopping.", self._name, on_failure=self._pool.fail):
            self._pool.remove(self)  # first: another child may have to take a job
        with LoopGuard(logger, "Reporting the jobs of %s failed.", self._name):
            self._report_left()
        self._channel.close()
        self._notes.close()
        self._reported.set()

    def _handle(self, kind: str, *values: Any) -> None:
        if kind == "reports":
            self._take_reports([Report(*one) for one in values[0]])
        elif kind == "ready":
            self.is_ready = True
        else:  # a part of it has failed, which it has logged: there may be no lane for what waits
            self._retire()
            self.send("give back", False)

    def _take_reports(self, reports: list[Report]) -> None:
        with self._lock:
            known = [one for one in reports if self._note_report(one)]
        self._pool.report(known)
        if not self.jobs:
            self._answered.set()
        if self._is_retiring:
            self._end_if_done()

    def _note_report(self, report: Report) -> bool:
        """Note what has become of a job; returns False if it was reported before."""
        sent = self.jobs.get(report.number)
        if sent is None:
            return False
        if report.number in sent.batch:
            sent.batch.discard(report.number)
            self.batches -= not sent.batch
        if report.ended == GOES_ON:
            return True
        del self.jobs[report.number]
        self._free.append(sent.slot)
        if report.follow_up is not None:
            self._announcing.add(report.number)
        return True

    def _on_exit(self, code: int | None) -> None:
        self._code = code
        self._exited.set()
        # a process that a task has started may have its end of the socket, so that no end is seen there
        self._channel.stop_reading()

    def _has_started(self, sent: _Sent) -> bool:
        return sent.is_concluding or self._notes.slots[sent.slot] != WAITS

    def _report_left(self) -> None:
        """Report the jobs that it had when it ended."""
        left, self.jobs = self.jobs, {}
        running = {number for number, sent in left.items() if self._notes.slots[sent.slot] > 0}
        if self._closes_at == math.inf:
            self._log_end([left[one].leased.lease.id for one in running])
        number = self._killed_for
        if number is not None and number in running:
            killed = left.pop(number)
            self._pool.conclude(number, killed.leased, killed.killed_at < math.inf)
        # none is to blame for the end of a process that was killed because of another job
        is_lost = len(running) == 1 and self._killed_for is None
        outcome = Outcome.LOST if is_lost else Outcome.APART
        self._pool.report(
            [self._left_behind(one, sent, one in running, outcome) for one, sent in left.items()]
        )

    def _left_behind(self, number: int, sent: _Sent, was_running: bool, outcome: Outcome) -> Report:
        """The report of a job of a process that has ended."""
        has_started = self._has_started(sent)
        if has_started and sent.leased.state.max_attempts == 1:  # it is not started a second time
            outcome = Outcome.LOST
        elif not was_running:
            outcome = Outcome.RELEASE
        return Report(number, outcome.value, started=has_started)

    def _log_end(self, running: list[str]) -> None:
        how = "ended" if self._code is None else f"ended with exit code {self._code}"
        if self._code is not None and self._code < 0:
            how = f"was ended by signal {-self._code}"
        jobs = ", ".join(f"id={one}" for one in running[:MAX_LOGGED]) or "none"
        logger.error("Process %s of the worker %s; jobs that ran there: %s.", self._process.pid, how, jobs)
