"""Workers in separate processes, which a test may kill or stop."""

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

from tests.support.server import server, until
from tests.support.workers import keys

from . import child_processes
from .faults import PATIENCE, processes

# modules that are slow to import and need no settings
processes.set_forkserver_preload(
    [
        "__main__",
        "tests.support.child_processes",
        "tests.support.worker_processes",
        "django_redis_messaging.tasks.worker",
    ]
)
#: points where a task may kill its worker
POINTS = ("after the claim", "in the callback", "before the ack")


def serve(
    stage: child_processes.Stage, tasks: dict[str, Any], log: str, options: list[str], grace: float | None
) -> None:
    """Run `manage.py run_worker` in this process; `grace`: see services/jobs/children.py."""
    child_processes.serve(stage, log, TASKS=tasks)
    _connect_crash_points()
    from django.core.management import call_command

    from django_redis_messaging.services.jobs import children

    if grace is not None:
        children.GRACE = grace

    call_command("run_worker", *options)


def _connect_crash_points() -> None:
    """Let `crash` tasks kill their worker before and after they run."""
    from django_redis_messaging.tasks.compat import task_finished, task_started
    from tests.tasks import jobs

    task_started.connect(
        lambda task_result, **_: jobs.die_at("after the claim", task_result), weak=False, dispatch_uid="a"
    )
    task_finished.connect(
        lambda task_result, **_: jobs.die_at("before the ack", task_result), weak=False, dispatch_uid="b"
    )


class WorkerPool:
    """Several workers. Killed workers are replaced."""

    def __init__(
        self, stage: child_processes.Stage, directory: Path, options: list[str], grace: float | None
    ) -> None:
        self._stage = stage
        self._options = options
        self._grace = grace
        self.log = directory / "workers.log"
        self.log.touch()
        self.workers: list[BaseProcess] = []
        #: number of dead workers replaced so far
        self.killed = 0

    def start(self) -> BaseProcess:
        """Start one more worker."""
        process = processes.Process(
            target=serve,
            args=(self._stage, settings.TASKS, str(self.log), self._options, self._grace),
            daemon=True,
        )
        process.start()
        self.workers.append(process)
        return process

    def replace(self) -> int:
        """Replace the dead workers; how many there were."""
        dead = [worker for worker in self.workers if not worker.is_alive()]
        for worker in dead:
            worker.join()
            self.workers.remove(worker)
            self.start()
        self.killed += len(dead)
        return len(dead)

    def wait(self) -> None:
        """Wait until all workers are ready."""
        wanted = {str(worker.pid) for worker in self.workers}
        until(lambda: wanted <= {name.decode().split("-")[-2] for name in server().hkeys(keys().workers)})

    def kill_one(self, chance: random.Random) -> None:
        """Kill one worker and wait until it is gone."""
        worker = chance.choice(self.workers)
        worker.kill()
        worker.join(PATIENCE)

    def drain(self) -> list[int | None]:
        """Send SIGTERM to all and wait for them; their exit codes."""
        self.wait()
        for worker in self.workers:
            os.kill(worker.pid or 0, signal.SIGTERM)
        for worker in self.workers:
            worker.join(PATIENCE)
        return [worker.exitcode for worker in self.workers]


@contextmanager
def worker_pool(
    stage: child_processes.Stage, directory: Path, size: int, *options: str, grace: float | None = None
) -> Iterator[WorkerPool]:
    """Start workers for the block and kill those left at the end."""
    pool = WorkerPool(stage, directory, list(options), grace)
    for _ in range(size):
        pool.start()
    try:
        pool.wait()
        yield pool
    finally:
        for worker in pool.workers:
            worker.kill()
            worker.join(PATIENCE)
