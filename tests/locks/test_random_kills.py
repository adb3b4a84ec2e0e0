"""Holders and waiters that are killed at random: none of them blocks the lock for longer than its lease and a
grant, and other clients acquire it all the time."""

from __future__ import annotations

import itertools
import logging
import random
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

import pytest
import redis

from django_redis_messaging import Lock, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.locks.lock import LockKeys
from tests.support.pytest_hooks import LONG
from tests.support.scripts import Plant

from ..support import child_processes, lock_processes
from ..support.faults import PATIENCE, Connect, processes

logger = logging.getLogger(__name__)
pytestmark = [pytest.mark.one_server, pytest.mark.promise]

PROCESSES = 8
#: seconds of the test
DURATION = 60.0 if LONG else 4.0
#: seconds between two kills
PAUSES = 0.1, 0.3
#: seconds: a client that was handed the lock must confirm it within this time
GRANT = 1.0
#: seconds by which the server may be late
SLACK = 0.2


@pytest.fixture
def stage(lasting: EmbeddedServer, connect: Connect) -> child_processes.Stage:
    return connect(lasting)


class Blocked(AssertionError):
    """A client that was killed holds the lock for too long."""


@dataclass
class Watch:
    """Observes the lock, and which of its holders were killed. All times are the server's, in seconds."""

    raw: redis.Redis
    lock: str
    fence: str
    #: pid → when it was killed
    killed: dict[int, float] = field(default_factory=dict)
    #: the longest time for which a killed client held the lock
    longest: float = 0.0
    _holder: str = ""
    _since: float = 0.0
    _fence: int = 0

    def check(self) -> int | None:
        """Check the lock; returns the pid of its holder."""
        asked = self.client.pipeline().time().get(self.lock).get(self.fence)
        (seconds, us), token, fence = asked.execute()
        now, holder = seconds + us / 1e6, (token or b"").decode()
        if holder != self._holder:
            self._holder, self._since = holder, now
        self._check_fence(int((fence or b"0").split()[0]))
        pid = int(holder.partition(" ")[0] or 0)
        if pid in self.killed:
            blocked = now - max(self._since, self.killed[pid])
            self.longest = max(self.longest, blocked)
            if blocked > lock_processes.SHORT_LEASE + GRANT + SLACK:
                raise Blocked(f"{pid} was killed, and has blocked the lock for {blocked:.2f} s")
        return pid or None

    def kill(self, process: BaseProcess) -> None:
        """Kill a process. The time is taken when it is dead."""
        assert process.pid is not None
        process.kill()
        process.join(PATIENCE)
        seconds, us = self.client.time()
        self.killed[process.pid] = seconds + us / 1e6

    def _check_fence(self, fence: int) -> None:
        assert fence >= self._fence, "a fence was smaller than the one before"
        self._fence = fence


class Contenders:
    """Processes that compete for the lock; each second one renews its lease."""

    def __init__(self, stage: child_processes.Stage, watch: Watch, mistake: Plant | None) -> None:
        self._stage = stage
        self._watch = watch
        self._mistake = mistake
        self._started = 0
        self._processes: list[BaseProcess] = []
        for _ in range(PROCESSES):
            self.start()

    def start(self) -> None:
        self._started += 1
        arguments = (self._stage, self._started % 2 == 0, self._mistake)
        process = processes.Process(target=lock_processes.work_until_killed, args=arguments, daemon=True)
        process.start()
        self._watch.killed.pop(process.pid or 0, None)
        self._processes.append(process)

    def replace(self, chance: random.Random, holder: int | None) -> None:
        """Kill the holder or any process, each half of the times, and start another."""
        known = [process for process in self._processes if process.pid == holder]
        choice = chance.choice(known if known and chance.random() < 0.5 else self._processes)
        self._processes.remove(choice)
        self._watch.kill(choice)
        self.start()

    def kill_all(self) -> None:
        for process in self._processes:
            self._watch.kill(process)


def kill_at_random(
    stage: child_processes.Stage,
    raw: redis.Redis,
    *,
    seconds: float = DURATION,
    recovers: bool = False,
    mistake: Plant | None = None,
) -> tuple[Watch, list[int]]:
    """Let processes compete for the lock, while some are killed; returns the fences that they drew.

    `recovers`: after a kill, none follows before a client has acquired the lock.
    """
    keys = LockKeys(conf.prefix(), Lock("door").key)
    watch, lines = Watch(raw, keys.key, keys.fence), f"{conf.prefix()}:1:fences"
    contenders, chance = Contenders(stage, watch, mistake), random.Random(1)
    try:
        _wait_for_an_acquire(watch, raw, lines)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            pause_ends = time.monotonic() + chance.uniform(*PAUSES)
            while time.monotonic() < pause_ends:
                holder = watch.check()
                time.sleep(0.002)
            contenders.replace(chance, holder)
            if recovers:
                _wait_for_an_acquire(watch, raw, lines)
        _wait_for_an_acquire(watch, raw, lines)
    finally:
        contenders.kill_all()
    return watch, [int(line) for line in raw.lrange(lines, 0, -1)]


def _wait_for_an_acquire(watch: Watch, raw: redis.Redis, lines: str) -> None:
    before, ends = raw.llen(lines), time.monotonic() + PATIENCE
    while raw.llen(lines) == before:
        watch.check()
        assert time.monotonic() < ends, "no process acquires the lock any more"
        time.sleep(0.002)


@pytest.mark.parametrize("recovers", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_killed_client_blocks_the_lock_for_a_lease_and_a_grant_at_most(
    recovers: bool, stage: child_processes.Stage, lasting: EmbeddedServer
) -> None:
    with lasting.client() as raw:
        watch, fences = kill_at_random(stage, raw, recovers=recovers)
    # a fence is the time of the acquire in µs
    longest_gap = max(after - before for before, after in itertools.pairwise(sorted(fences))) / 1e6
    logger.info(
        "%d killed; acquired %d times; longest time blocked by a killed client: %.2f s, not acquired: %.2f s",
        len(watch.killed), len(fences), watch.longest, longest_gap,
    )  # fmt: skip
    assert len(set(fences)) == len(fences), "two clients had the same fence"
    assert len(watch.killed) > DURATION / 2 + PROCESSES
    assert longest_gap < PATIENCE / 2
    assert watch.longest > 0.2, "no holder was killed: the test is inconclusive"


#: mistakes that this test must detect
MISTAKES: dict[str, Plant] = {
    "a grant without an end": ("locks/_locks", "token, 'PX', GRANT)", "token)"),
    "a renewal that outlives its holder": (
        "locks/extend",
        "ms = math.max(ms, remaining)",
        "ms = math.max(ms, remaining) + 30000",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_detected(mistake: str, stage: child_processes.Stage, lasting: EmbeddedServer) -> None:
    with lasting.client() as raw, pytest.raises(Blocked):
        kill_at_random(stage, raw, seconds=PATIENCE, mistake=MISTAKES[mistake])
