"""Listeners and pollers in processes of their own, that may be killed."""

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

from tests.services.listening import jobs
from tests.tasks.working import server, until

from . import actors
from .conftest import PATIENCE, processes

#: HASHes of a test: id → "fence ms" of the effect; id → how many times the handler ran
EFFECTS, RUNS = "effects", "runs"
WORDS = ("--lease", "1", "--concurrency", "2", "--verbosity", "0")


def poll(stage: actors.Stage, log: str) -> None:
    """What `manage.py run_poller` does, in a process of its own."""
    actors.serve(stage, log)
    call_command("run_poller")


def listen(stage: actors.Stage, log: str) -> None:
    """What `manage.py run_listener` does, in a process of its own; each timer leaves one effect."""
    actors.serve(stage, log)
    from django_redis_messaging import Expired, on_expiry

    client: Any = server()
    prefix = stage.messaging["PREFIX"]

    @on_expiry("order")
    def effect(expired: Expired) -> None:
        """The effect is done once: by the id, whoever runs again sees that it was."""
        with client.pipeline() as together:
            together.time()
            together.hincrby(f"{prefix}:{RUNS}", expired.id, 1)
            (seconds, micros), _ = together.execute()
        done = f"{expired.fence} {seconds * 1000 + micros // 1000}"
        client.hsetnx(f"{prefix}:{EFFECTS}", expired.id, done)

    call_command("run_listener", *WORDS)


class Crew:
    """Some listeners, and two pollers; who dies is replaced, unless all listeners are to be away."""

    def __init__(self, stage: actors.Stage, directory: Path, size: int) -> None:
        self._stage = stage
        self.log = directory / "listeners.log"
        self.log.touch()
        self._size = size
        self.listeners: list[BaseProcess] = []
        self.pollers: list[BaseProcess] = []
        #: listeners killed so far
        self.killed = 0
        #: pollers started so far
        self._polling = 0

    def fill(self) -> None:
        """As many as there shall be, all of them at work."""
        self._fill(self.listeners, self._size, listen)
        self._polling += self._fill(self.pollers, 2, poll)
        wanted = {str(one.pid) for one in self.listeners}
        until(lambda: wanted <= {name.decode().split("-")[-2] for name in server().hkeys(jobs().workers)})
        until(lambda: self.log.read_text().count("Polling.") == self._polling)

    def _fill(self, there: list[BaseProcess], size: int, target: Callable[..., None]) -> int:
        missing = size - len(there)
        for _ in range(missing):
            process = processes.Process(target=target, args=(self._stage, str(self.log)), daemon=True)
            process.start()
            there.append(process)
        return missing

    def kill_one(self, chance: random.Random) -> None:
        """A listener and a poller are gone at once."""
        self._kill(self.listeners, chance.choice(self.listeners))
        self._kill(self.pollers, chance.choice(self.pollers))
        self.killed += 1

    def kill_listeners(self) -> None:
        """All of them."""
        self.killed += len(self.listeners)
        for one in list(self.listeners):
            self._kill(self.listeners, one)

    def _kill(self, there: list[BaseProcess], one: BaseProcess) -> None:
        one.kill()
        one.join(PATIENCE)
        there.remove(one)

    def dismiss(self) -> set[int | None]:
        """Have all drain; their exit codes."""
        for one in self.listeners + self.pollers:
            os.kill(one.pid or 0, signal.SIGTERM)
        for one in self.listeners + self.pollers:
            one.join(PATIENCE)
        return {one.exitcode for one in self.listeners + self.pollers}


@contextmanager
def crew(stage: actors.Stage, directory: Path, size: int) -> Iterator[Crew]:
    """So many listeners; those that are left at the end are killed."""
    made = Crew(stage, directory, size)
    try:
        made.fill()
        yield made
    finally:
        for one in made.listeners + made.pollers:
            one.kill()
            one.join(PATIENCE)
