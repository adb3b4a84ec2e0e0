"""Semaphores whose holders and waiters are killed: the limit holds, and their permits are released."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from django_redis_messaging import Semaphore, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.pytest_hooks import LONG

from ..support.child_processes import Stage
from ..support.faults import PATIENCE, Connect, processes
from ..support.semaphore_processes import LEASE, LIMIT, hold, wait, work

pytestmark = [pytest.mark.one_server, pytest.mark.promise]

PROCESSES = 8
#: number of processes killed; permits granted between two kills
KILLS, BETWEEN = (60, 300) if LONG else (6, 60)
#: seconds of delay allowed on a busy machine
SLACK = 2.0
Until = Callable[[Callable[[], object]], None]


class Workers:
    """Several processes. Killed ones are replaced by the test."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self._stage = stage
        self._directory = directory
        self._started = 0
        self.all: list[BaseProcess] = []

    def start(self) -> None:
        """Start one more process."""
        self._started += 1
        arguments = (self._stage, str(self._directory), self._started)
        process = processes.Process(target=work, args=arguments, daemon=True)
        process.start()
        self.all.append(process)

    def kill(self, process: BaseProcess) -> None:
        """Kill a process with SIGKILL."""
        process.kill()
        process.join(PATIENCE)
        self.all.remove(process)


@pytest.fixture
def stage(lasting: EmbeddedServer, connect: Connect) -> Stage:
    return connect(lasting)


def test_limit_holds_while_processes_are_killed(
    stage: Stage, lasting: EmbeddedServer, tmp_path: Path, until: Until
) -> None:
    chance, workers = random.Random(1), Workers(stage, tmp_path)
    semaphore = Semaphore("room", LIMIT)

    def count(what: str) -> int:
        return int(client.get(f"{conf.prefix()}:{what}") or 0)

    with lasting.client() as client:
        for _ in range(PROCESSES):
            workers.start()
        try:
            for turn in range(1, KILLS + 1):
                until(lambda: count("passed") >= turn * BETWEEN)  # noqa: B023
                workers.kill(chance.choice(workers.all))
                workers.start()
            until(lambda: count("passed") >= (KILLS + 1) * BETWEEN)
        finally:
            for process in list(workers.all):
                workers.kill(process)
        assert count("crowded") == 0
        # the permits of killed processes are released
        for _ in range(LIMIT):
            assert semaphore.acquire(blocking=True, blocking_timeout=2 * LEASE)
        assert semaphore.info().held == LIMIT


def test_permit_of_a_killed_holder_is_released_after_its_lease(stage: Stage) -> None:
    parent_end, child_end = processes.Pipe()
    holder = processes.Process(target=hold, args=(stage, 1.0, child_end), daemon=True)
    holder.start()
    assert parent_end.poll(PATIENCE)
    assert parent_end.recv() is True
    began = time.monotonic()
    holder.kill()
    holder.join(PATIENCE)
    assert not Semaphore("room", 1).acquire()
    assert Semaphore("room", 1).acquire(blocking=True, blocking_timeout=PATIENCE)
    # the lease began slightly earlier, and waiting clients check when it ends
    assert time.monotonic() - began < 1.0 + SLACK


def test_killed_waiter_is_skipped_within_a_second(stage: Stage, until: Until) -> None:
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
