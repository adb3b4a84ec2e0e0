"""Workers in processes of their own, that may be killed and stopped."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from django.conf import settings

from tests.tasks.working import keys, server, until

from . import actors
from .conftest import PATIENCE, processes

# what takes long to import, and needs no settings
processes.set_forkserver_preload(
    ["__main__", "tests.chaos.actors", "tests.chaos.workers", "django_redis_messaging.tasks.worker"]
)
#: where a worker may kill itself
POINTS = ("after the claim", "in the callback", "before the ack")


def serve(stage: actors.Stage, tasks: dict[str, Any], log: str, words: list[str]) -> None:
    """What `manage.py run_worker` does, in a process of its own."""
    actors.serve(stage, log, TASKS=tasks)
    _arm()
    from django.core.management import call_command

    call_command("run_worker", *words)


def _arm() -> None:
    """Have tasks that ask for it kill their worker."""
    from django_redis_messaging.tasks.compat import task_finished, task_started
    from tests.tasks import jobs

    task_started.connect(
        lambda task_result, **_: jobs.die_at("after the claim", task_result), weak=False, dispatch_uid="a"
    )
    task_finished.connect(
        lambda task_result, **_: jobs.die_at("before the ack", task_result), weak=False, dispatch_uid="b"
    )


class Crew:
    """Some workers; who dies is replaced."""

    def __init__(self, stage: actors.Stage, directory: Path, words: list[str]) -> None:
        self._stage = stage
        self._words = words
        self.log = directory / "workers.log"
        self.log.touch()
        self.workers: list[BaseProcess] = []
        #: how many died, and were replaced
        self.killed = 0

    def hire(self) -> BaseProcess:
        """One more."""
        process = processes.Process(
            target=serve, args=(self._stage, settings.TASKS, str(self.log), self._words), daemon=True
        )
        process.start()
        self.workers.append(process)
        return process

    def replace(self) -> int:
        """Replace the dead; how many there were."""
        dead = [worker for worker in self.workers if not worker.is_alive()]
        for worker in dead:
            worker.join()
            self.workers.remove(worker)
            self.hire()
        self.killed += len(dead)
        return len(dead)

    def wait(self) -> None:
        """Wait until all work."""
        wanted = {str(worker.pid) for worker in self.workers}
        until(lambda: wanted <= {name.decode().split("-")[-2] for name in server().hkeys(keys().workers)})

    def kill_one(self, chance: random.Random) -> None:
        """Kill one, and wait until it is gone."""
        worker = chance.choice(self.workers)
        worker.kill()
        worker.join(PATIENCE)

    def dismiss(self) -> list[int | None]:
        """Have all drain; their exit codes."""
        self.wait()
        for worker in self.workers:
            os.kill(worker.pid or 0, signal.SIGTERM)
        for worker in self.workers:
            worker.join(PATIENCE)
        return [worker.exitcode for worker in self.workers]


@contextmanager
def crew(stage: actors.Stage, directory: Path, size: int, *words: str) -> Iterator[Crew]:
    """So many workers; those that are left at the end are killed."""
    made = Crew(stage, directory, list(words))
    for _ in range(size):
        made.hire()
    try:
        made.wait()
        yield made
    finally:
        for worker in made.workers:
            worker.kill()
            worker.join(PATIENCE)
