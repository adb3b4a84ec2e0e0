"""The worker: lanes that claim and run jobs, and a heartbeat that keeps their leases.

Each lane is a thread that settles its last job and claims the next in one round trip, shared with the lanes
that come at the same time. When nothing is ready, one lane at a time waits at the bell (leader and
followers), so that an idle worker asks Redis once a second. Coroutines run on one event loop, while their
lane waits for them.
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

from ...errors import MessagingError
from .desk import Asking, Desk
from .engine import Claimed, Held, Verdict
from .limits import USUAL, Limits, resident_memory
from .loops import Loop
from .running import Running
from .store import LeaseStore

logger = logging.getLogger(__name__)

#: makes an attempt at a job; what is to be said of it, None where it is not the worker's any more
Attempt = Callable[[Running], Verdict | None]

#: seconds after which an idle worker looks again, though nothing woke it
LOOK = 1.0
#: seconds: the longest pause between two attempts to reach Redis
LONGEST_PAUSE = 10.0


class Worker:
    """Does the jobs of some queues of one slot until it is stopped."""

    def __init__(
        self, store: LeaseStore, queues: Sequence[str], attempt: Attempt, limits: Limits = USUAL
    ) -> None:
        self.id = f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(3).hex()}"
        #: jobs it has begun and ended
        self.done = 0
        #: whether a lane ended by an error that nobody expected
        self.failed = False
        self._queues = list(queues)
        self._limits = limits
        self._store = store
        self._attempt = attempt
        self._desk = Desk(self._exchange)
        self._leader = threading.Lock()
        #: when an idle lane last looked whether something is ready
        self._looked = 0.0
        #: to stop, or just to look: no Event, whose set() in a signal handler could wait for itself
        self._told: SimpleQueue[bool] = SimpleQueue()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._running: set[Running] = set()
        #: jobs that may still be begun
        self._left = threading.Semaphore(limits.max_tasks) if limits.max_tasks else None
        self._consumed = False
        self._loop = Loop()
        #: threads that have not come to their end
        self._lanes: set[threading.Thread] = set()

    def stop(self) -> None:
        """Begin nothing more. Safe to call from a signal handler, a second time too: then what runs is
        given back at once."""
        self._told.put(True)

    def run(self) -> None:
        """Work until stopped, or until a limit says so; let what runs end, and give back what doesn't."""
        beat = self._thread(self._beat, "heartbeat")
        beat.start()
        self._heed(0)
        closes = monotonic() + (self._limits.max_time or math.inf)
        for number in range(self._limits.concurrency):
            self._lanes.add(self._thread(self._take_turns, f"lane {number}"))
        for lane in list(self._lanes):
            lane.start()
        self._attend(closes, until_stopped=True)
        self._stopping.set()
        self._attend(monotonic() + self._limits.drain)
        self._give_back()
        self._ended.set()
        self._see_out()
        beat.join()
        self._loop.close()
        with suppress(MessagingError):  # it is silent from now on, which tells the same
            self._store.leave(self.id)

    def _attend(self, ends: float, *, until_stopped: bool = False) -> None:
        """Wait for the lanes until then, or until they are to stop."""
        while self._lanes and not self._ended.is_set():
            if until_stopped and self._stopping.is_set():
                return
            left = ends - monotonic()
            if left <= 0:
                return
            self._heed(min(left, LOOK))

    def _heed(self, seconds: float) -> None:
        """Do as we are told within that time."""
        with suppress(Empty):
            if not self._told.get(timeout=seconds):
                return
            if self._stopping.is_set():
                self._ended.set()
            self._stopping.set()

    def _thread(self, body: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(body,), name=name, daemon=True)

    def _guarded(self, body: Callable[[], None]) -> None:
        """Run it. An error that nobody expected ends the whole worker, for whoever supervises it to see."""
        try:
            body()
        except KeyboardInterrupt:
            logger.warning(
                "%s of worker %s was interrupted: it ends.", threading.current_thread().name, self.id
            )
            self._stopping.set()
        except Exception:
            logger.exception("%s of worker %s failed: it ends.", threading.current_thread().name, self.id)
            self.failed = True
            self._stopping.set()
        finally:
            self._lanes.discard(threading.current_thread())
            self._told.put(False)

    def _take_turns(self) -> None:
        """Settle, claim, run, until told to stop."""
        verdict: Verdict | None = None
        failures = 0
        while True:
            try:
                if self._stopping.is_set():
                    if verdict is not None:
                        self._settle(verdict)
                    return
                asked = self._ask(verdict)
                verdict, failures = None, 0
            except MessagingError as error:
                failures += 1
                verdict = self._settled_at_last(verdict)
                logger.warning("Redis can't be asked for jobs, trying again: %s", error)
                self._rest(failures)
                continue
            if asked.held is not None and self._stopping.is_set():
                verdict = asked.held.verdict("back")
            elif asked.held is not None:
                verdict = self._run(asked.held)
            elif self._limits.burst:
                return  # the others go on while they find something
            else:
                self._wait(asked.due_in)

    def _rest(self, failures: int) -> None:
        """Pause before the next attempt to reach Redis, the longer the more have failed."""
        longest = min(0.1 * 2.0 ** min(failures, 10), LONGEST_PAUSE)
        until = self._ended if self._stopping.is_set() else self._stopping
        until.wait(longest * random.uniform(0.5, 1))  # noqa: S311

    def _ask(self, verdict: Verdict | None) -> Asking:
        """Settle the last job and take the next."""
        wants = self._left is None or self._left.acquire(blocking=False)
        taken = False
        try:
            asked = self._desk.ask(verdict, wants)
            taken = asked.held is not None
        finally:
            if self._left is not None and wants and not taken:
                self._left.release()
        if verdict is not None and not asked.ours:
            _warn(verdict)
        return asked

    def _exchange(self, verdicts: Sequence[Verdict], wanted: int) -> Claimed:
        lease = round(self._limits.lease * 1000)
        claimed = self._store.claim(self._queues, wanted, lease, worker=self.id, verdicts=verdicts)
        self._consumed = True
        return claimed

    def _wait(self, due_in: float | None) -> None:
        """Wait as the leader for the bell, or until something is due; followers wait for the leader, or
        until something is due."""
        ends = monotonic() + (due_in if due_in is not None and due_in < LOOK else math.inf)
        while not self._leader.acquire(timeout=min(LOOK, max(ends - monotonic(), 0))):
            if self._stopping.is_set() or monotonic() >= ends:
                return
        try:
            left = min(ends, self._looked + LOOK) - monotonic()
            if left > 0 and not self._stopping.is_set():
                self._store.rings(self._queues, left)
            # this lane looks next: whoever leads now may wait
            self._looked = monotonic()
        except MessagingError as error:
            logger.warning("Nobody can be waited for: %s", error)
            self._stopping.wait(LOOK)
        finally:
            self._leader.release()

    def _run(self, held: Held) -> Verdict | None:
        running = Running(held, self._loop.run)
        self._running.add(running)
        try:
            return self._attempt(running)
        finally:
            self._running.discard(running)
            self.done += 1
            self._end_at_limits()

    def _end_at_limits(self) -> None:
        limits = self._limits
        if limits.max_tasks is not None and self.done >= limits.max_tasks:
            self._stopping.set()
        if limits.max_memory is not None and resident_memory() > limits.max_memory:
            logger.info("Worker %s holds more than %d MiB: it ends.", self.id, limits.max_memory)
            self._stopping.set()

    def _settle(self, verdict: Verdict) -> None:
        if self._store.settle(verdict) is False:
            _warn(verdict)

    def _settled_at_last(self, verdict: Verdict | None) -> Verdict | None:
        """Nothing, if the verdict could be told; else itself, to be told by the next claim."""
        if verdict is None:
            return None
        try:
            self._settle(verdict)
        except MessagingError:
            return verdict
        return None

    def _give_back(self) -> None:
        for running in list(self._running):
            running.given_back = True
            try:
                self._store.settle(running.held.verdict("back"))
            except MessagingError as error:
                logger.warning("Job id=%s comes back when its lease ends: %s", running.held.id, error)

    def _see_out(self) -> None:
        """Wait a moment for lanes that run nothing: what one of them has just claimed, it gives back."""
        ends = monotonic() + LOOK
        busy = {one.thread for one in list(self._running)}
        for lane in list(self._lanes):
            if lane.ident not in busy:
                lane.join(max(ends - monotonic(), 0))

    def _beat(self) -> None:
        """Keep the leases, interrupt what takes too long, and say that we live."""
        began, extended = 0, 0.0
        while not self._ended.wait(self._pause(extended)):
            for running in list(self._running):
                if running.overdue >= 0:
                    running.interrupt()
            if monotonic() < extended + self._limits.lease / 3:
                continue
            extended = monotonic()
            try:
                began = self._keep_leases(began)
            except MessagingError as error:
                logger.warning("The heartbeat did not get through: %s", error)

    def _pause(self, extended: float) -> float:
        """Seconds until the next lease, or the next limit, is to be looked at."""
        due = [extended + self._limits.lease / 3 - monotonic()]
        due += [-one.overdue for one in list(self._running) if one.timeout is not None and one.overdue < 0]
        # a task that has just begun may have a shorter limit than any that we know of
        return min(max(min(due), 0.01), 0.5 if self._running else LOOK)

    def _keep_leases(self, began: int) -> int:
        kept = [one for one in list(self._running) if one.overdue < self._limits.lease]
        if kept:
            answers = self._store.extend([one.held.lease for one in kept], round(self._limits.lease * 1000))
            for running, ours in zip(kept, answers, strict=True):
                if not ours and running in self._running and not running.lost:
                    running.lost = True
                    logger.warning("Job id=%s: the lease was lost while it ran.", running.held.id)
        now = self._store.beat(
            self.id, consumed=self._consumed, began=began, running=len(self._running), done=self.done
        )
        self._consumed = False
        return began or now


def _warn(verdict: Verdict) -> None:
    logger.warning("Job id=%s ended (%s), but its lease was lost: refused.", verdict.id, verdict.what)
