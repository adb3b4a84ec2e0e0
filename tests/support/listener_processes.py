"""Listeners and pollers in separate processes, which a test may kill."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from django.core.management import call_command

from tests.support.listeners import jobs
from tests.support.server import server, until

from . import child_processes
from .faults import PATIENCE, processes

#: hashes of a test: ID → "fence ms" of the effect; ID → number of handler runs
EFFECTS, RUNS = "effects", "runs"
OPTIONS = ("--lease", "1", "--concurrency", "2", "--verbosity", "0")


def poll(stage: child_processes.Stage, log: str) -> None:
    """Run `manage.py run_poller` in this process."""
    child_processes.serve(stage, log)
    call_command("run_poller")


def listen(stage: child_processes.Stage, log: str) -> None:
    """Run `manage.py run_listener` in this process. Each timer has one effect."""
    child_processes.serve(stage, log)
    from django_redis_messaging import Expired, on_expiry

    client: Any = server()
    prefix = stage.messaging["PREFIX"]

    @on_expiry("order")
    def effect(expired: Expired) -> None:
        """Apply the effect once per ID, even if the handler runs again."""
        with client.pipeline() as pipeline:
            pipeline.time()
            pipeline.hincrby(f"{prefix}:{RUNS}", expired.id, 1)
            (seconds, micros), _ = pipeline.execute()
        done = f"{expired.fence} {seconds * 1000 + micros // 1000}"
        client.hsetnx(f"{prefix}:{EFFECTS}", expired.id, done)

    call_command("run_listener", *OPTIONS)


class ListenerPool:
    """Several listeners and two pollers. Killed processes are replaced by `fill`."""

    def __init__(self, stage: child_processes.Stage, directory: Path, size: int) -> None:
        self._stage = stage
        self.log = directory / "listeners.log"
        self.log.touch()
        self._size = size
        self.listeners: list[BaseProcess] = []
        self.pollers: list[BaseProcess] = []
        #: number of listeners killed so far
        self.killed = 0
        #: number of pollers started so far
        self._polling = 0

    def fill(self) -> None:
        """Start the missing processes and wait until all are ready."""
        self._fill(self.listeners, self._size, listen)
        self._polling += self._fill(self.pollers, 2, poll)
        wanted = {str(process.pid) for process in self.listeners}
        until(lambda: wanted <= {name.decode().split("-")[-2] for name in server().hkeys(jobs().workers)})
        until(lambda: self.log.read_text().count("Polling.") == self._polling)

    def _fill(self, running: list[BaseProcess], size: int, target: Callable[..., None]) -> int:
        missing = size - len(running)
        for _ in range(missing):
            process = processes.Process(target=target, args=(self._stage, str(self.log)), daemon=True)
            process.start()
            running.append(process)
        return missing

    def kill_one(self, chance: random.Random) -> None:
        """Kill a listener and a poller at once."""
        self._kill(self.listeners, chance.choice(self.listeners))
        self._kill(self.pollers, chance.choice(self.pollers))
        self.killed += 1

    def kill_listeners(self) -> None:
        """Kill all listeners."""
        self.killed += len(self.listeners)
        for process in list(self.listeners):
            self._kill(self.listeners, process)

    def _kill(self, running: list[BaseProcess], process: BaseProcess) -> None:
        process.kill()
        process.join(PATIENCE)
        running.remove(process)

    def drain(self) -> set[int | None]:
        """Send SIGTERM to all and wait for them; their exit codes."""
        for process in self.listeners + self.pollers:
            os.kill(process.pid or 0, signal.SIGTERM)
        for process in self.listeners + self.pollers:
            process.join(PATIENCE)
        return {process.exitcode for process in self.listeners + self.pollers}


@contextmanager
def listener_pool(stage: child_processes.Stage, directory: Path, size: int) -> Iterator[ListenerPool]:
    """Start listeners for the block and kill those left at the end."""
    pool = ListenerPool(stage, directory, size)
    try:
        pool.fill()
        yield pool
    finally:
        for process in pool.listeners + pool.pollers:
            process.kill()
            process.join(PATIENCE)
