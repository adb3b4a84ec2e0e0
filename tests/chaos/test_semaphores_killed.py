"""Semaphores whose holders and waiters are killed: the limit holds, and permits become free."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from django_redis_messaging import Semaphore, conf
from django_redis_messaging.core.embedded import EmbeddedServer
from tests.gate import LONG

from .actors import Stage
from .conftest import PATIENCE, Connect, processes
from .rooms import LEASE, LIMIT, hold, wait, work

pytestmark = pytest.mark.promise

PROCESSES = 8
#: number of processes to kill; number of permits granted between two kills
KILLS, BETWEEN = (60, 300) if LONG else (6, 60)
#: seconds of tolerance for a busy machine
SLACK = 2.0
Until = Callable[[Callable[[], object]], None]


class Workers:
    """Some processes; a killed one is replaced."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self._stage = stage
        self._directory = directory
        self._hired = 0
        self.all: list[BaseProcess] = []

    def hire(self) -> None:
        """Start another process."""
        self._hired += 1
        words = (self._stage, str(self._directory), self._hired)
        process = processes.Process(target=work, args=words, daemon=True)
        process.start()
        self.all.append(process)

    def kill(self, process: BaseProcess) -> None:
        """Kill a process (SIGKILL)."""
        process.kill()
        process.join(PATIENCE)
        self.all.remove(process)


@pytest.fixture
def stage(lasting: EmbeddedServer, connect: Connect) -> Stage:
    return connect(lasting)


def test_never_more_than_the_limit_while_some_are_killed(
    stage: Stage, lasting: EmbeddedServer, tmp_path: Path, until: Until
) -> None:
    chance, workers = random.Random(1), Workers(stage, tmp_path)
    semaphore = Semaphore("room", LIMIT)

    def count(what: str) -> int:
        return int(client.get(f"{conf.prefix()}:{what}") or 0)

    with lasting.client() as client:
        for _ in range(PROCESSES):
            workers.hire()
        try:
            for turn in range(1, KILLS + 1):
                until(lambda: count("passed") >= turn * BETWEEN)  # noqa: B023
                workers.kill(chance.choice(workers.all))
                workers.hire()
            until(lambda: count("passed") >= (KILLS + 1) * BETWEEN)
        finally:
            for process in list(workers.all):
                workers.kill(process)
        assert count("crowded") == 0
        # the permits of killed processes become free
        for _ in range(LIMIT):
            assert semaphore.acquire(blocking=True, blocking_timeout=2 * LEASE)
        assert semaphore.info().held == LIMIT


def test_the_permit_of_a_killed_holder_is_free_after_its_lease(stage: Stage) -> None:
    ours, theirs = processes.Pipe()
    holder = processes.Process(target=hold, args=(stage, 1.0, theirs), daemon=True)
    holder.start()
    assert ours.poll(PATIENCE)
    assert ours.recv() is True
    began = time.monotonic()
    holder.kill()
    holder.join(PATIENCE)
    assert not Semaphore("room", 1).acquire()
    assert Semaphore("room", 1).acquire(blocking=True, blocking_timeout=PATIENCE)
    # the lease began a little earlier, and a waiting client polls when it ends
    assert time.monotonic() - began < 1.0 + SLACK


def test_a_killed_waiter_is_skipped_within_a_second(stage: Stage, until: Until) -> None:
    semaphore = Semaphore("room", 1, timeout=1000)
    assert semaphore.acquire()
    waiter = processes.Process(target=wait, args=(stage,), daemon=True)
    waiter.start()
    until(lambda: semaphore.info().waiting == 1)
    waiter.kill()
    waiter.join(PATIENCE)
    semaphore.release()
    began = time.monotonic()
    assert semaphore.acquire(blocking=True, blocking_timeout=PATIENCE)
    assert time.monotonic() - began < 1.0 + SLACK
