"""The worker: lanes that claim and run tasks, and a heartbeat that keeps their leases.

Each lane is a thread that settles its last job and claims the next in one round trip. When nothing is ready,
one lane at a time waits at the bell (leader and followers), so that an idle worker asks Redis once a second.
Coroutine functions run on one event loop, while their lane waits for them.
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from ..core.operations import Service, Steps, Wait, operation
from ..errors import MessagingError
from ..services.jobs.engine import Held, Verdict
from .backend import RedisBackend
from .loops import Loop
from .running import Runner, Running

logger = logging.getLogger(__name__)

#: seconds after which an idle worker looks again, though nothing woke it
LOOK = 1.0
#: seconds: the longest pause between two attempts to reach Redis
LONGEST_PAUSE = 10.0


@dataclass(frozen=True)
class Limits:
    """How a worker works, and when it ends by itself."""

    #: tasks at a time
    concurrency: int = 4
    #: seconds a lease lasts; it is extended at each third
    lease: float = 30.0
    #: end when nothing is ready
    burst: bool = False
    #: end after so many tasks
    max_tasks: int | None = None
    #: end when the process holds so much memory (MiB)
    max_memory: int | None = None
    #: seconds that running tasks get to end, once the worker is to stop
    drain: float = 30.0


class Bell(Service):
    """Where an idle worker waits."""

    def __init__(self, keys: Sequence[str], *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._keys = keys

    @operation
    def wait(self, seconds: float) -> Steps[bool]:
        """Whether it rang, within that time."""
        return (yield Wait("BZPOPMIN", *self._keys, seconds=seconds)) is not None


class Worker:
    """Runs the tasks of one backend until it is stopped."""

    def __init__(self, backend: RedisBackend, queues: Sequence[str], limits: Limits = Limits()) -> None:
        self.id = f"{socket.gethostname()[:40]}-{os.getpid()}-{os.urandom(3).hex()}"
        #: tasks it has begun and ended
        self.done = 0
        #: whether a lane ended by an error that nobody expected
        self.failed = False
        self._queues = list(queues)
        self._limits = limits
        self._store = backend.store
        self._bell = Bell(self._store.bells(self._queues), using=backend.chosen["USING"])
        self._leader = threading.Lock()
        #: when an idle lane last looked whether something is ready
        self._looked = 0.0
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._running: set[Running] = set()
        #: tasks that may still be begun
        self._left = threading.Semaphore(limits.max_tasks) if limits.max_tasks else None
        self._consumed = False
        self._loop = Loop()
        self._runner = Runner(backend, self._loop.run)
        self._lanes: list[threading.Thread] = []

    def stop(self) -> None:
        """Begin nothing more. Safe to call from a signal handler, a second time too: then what runs is
        given back at once."""
        if self._stopping.is_set():
            self._ended.set()
        self._stopping.set()

    def run(self) -> None:
        """Work until stopped, or until a limit says so; let what runs end, and give back what doesn't."""
        beat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        beat.start()
        self._lanes = [self._lane(number) for number in range(self._limits.concurrency)]
        self._join(None)
        if any(lane.is_alive() for lane in self._lanes):
            self._join(monotonic() + self._limits.drain)
        self._give_back()
        self._ended.set()
        beat.join()
        self._loop.close()
        with suppress(MessagingError):  # it is silent from now on, which tells the same
            self._store.leave(self.id)

    def _join(self, ends: float | None) -> None:
        """Wait for the lanes: until one is to stop, or (`ends`) until then. Signals come in between."""
        for lane in self._lanes:
            while lane.is_alive() and not self._ended.is_set():
                if ends is None and self._stopping.is_set():
                    return
                if ends is not None and monotonic() > ends:
                    return
                lane.join(0.1 if self._stopping.is_set() else 1.0)

    def _lane(self, number: int) -> threading.Thread:
        lane = threading.Thread(target=self._work, name=f"lane {number}", daemon=True)
        lane.start()
        return lane

    def _work(self) -> None:
        """A lane. An error that nobody expected ends the whole worker, for whoever supervises it to see."""
        try:
            self._take_turns()
        except Exception:
            logger.exception("A lane of worker %s failed: the worker ends.", self.id)
            self.failed = True
            self._stopping.set()

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
                held, due_in = self._claim(verdict)
                verdict, failures = None, 0
            except MessagingError as error:
                failures += 1
                verdict = self._settled_at_last(verdict)
                logger.warning("Redis can't be asked for tasks, trying again: %s", error)
                self._stopping.wait(min(0.1 * 2.0**failures, LONGEST_PAUSE) * random.uniform(0.5, 1))  # noqa: S311
                continue
            if held is not None and self._stopping.is_set():
                verdict = _back(held)
            elif held is not None:
                verdict = self._run(held)
            elif self._limits.burst:
                return  # the others go on while they find something
            else:
                self._wait(due_in)

    def _claim(self, verdict: Verdict | None) -> tuple[Held | None, float | None]:
        """The next job; or the seconds until something is due."""
        verdicts = [] if verdict is None else [verdict]
        count = 1 if self._left is None or self._left.acquire(blocking=False) else 0
        taken = 0
        try:
            claimed = self._store.claim(
                self._queues, count, round(self._limits.lease * 1000), worker=self.id, verdicts=verdicts
            )
            taken = len(claimed.jobs)
        finally:
            if self._left is not None and taken < count:
                self._left.release()
        self._consumed = True
        if verdict is not None and not claimed.settled[0]:
            _warn(verdict)
        due_in = None if claimed.due_in is None else claimed.due_in / 1000
        return (claimed.jobs[0] if claimed.jobs else None), due_in

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
                self._bell.wait(left)
            # this lane looks next: whoever leads now may wait
            self._looked = monotonic()
        except MessagingError as error:
            logger.warning("Nobody can be waited for: %s", error)
            self._stopping.wait(LOOK)
        finally:
            self._leader.release()

    def _run(self, held: Held) -> Verdict:
        running = Running(held)
        self._running.add(running)
        try:
            return self._runner.run(running)
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
        if not self._store.settle(verdict):
            _warn(verdict)

    def _settled_at_last(self, verdict: Verdict | None) -> Verdict | None:
        """Nothing, if the verdict could be told; else itself, to be told by the next claim."""
        if verdict is None:
            return None
        try:
            self._store.settle(verdict)
        except MessagingError:
            return verdict
        return None

    def _give_back(self) -> None:
        for running in list(self._running):
            running.given_back = True
            try:
                self._store.settle(_back(running.held))
            except MessagingError as error:
                logger.warning("Task id=%s comes back when its lease ends: %s", running.held.id, error)

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
            answers = self._store.extend([one.lease for one in kept], round(self._limits.lease * 1000))
            for running, ours in zip(kept, answers, strict=True):
                if not ours and running in self._running and not running.lost:
                    running.lost = True
                    logger.warning("Task id=%s: the lease was lost while it ran.", running.held.id)
        now = self._store.beat(
            self.id, consumed=self._consumed, began=began, running=len(self._running), done=self.done
        )
        self._consumed = False
        return began or now


def _back(held: Held) -> Verdict:
    return Verdict(held.queue, held.id, held.state.fence, held.state.token, "back")


def _warn(verdict: Verdict) -> None:
    logger.warning("Task id=%s ended (%s), but its lease was lost: refused.", verdict.id, verdict.what)


def resident_memory() -> int:
    """MiB that this process holds; 0 where the system doesn't tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except OSError:
        return 0
