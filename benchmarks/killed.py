"""The site of `benchmarks.kills`: its tasks, its workers, and what is known of its tasks after a round.

Each task writes when it begins and ends to a file, which outlives Redis.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django_redis_messaging import Lock, MessagingError
from django_redis_messaging.core.operations import perform
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks import TaskBatch, task
from django_redis_messaging.tasks.compat import task_backends

from .kill_checks import CALLS, LEASE, Batch, Line, Round, Task
from .workers import Worker

#: environment of a worker: the file, and whether the site starts a thread while it is loaded
FILE, THREADS = "KILLS_FILE", "KILLS_THREADS"
#: seconds that tasks take
SLOW, SHORT = 0.3, 0.02
#: tasks that are enqueued in a round, beside batches; batches; seconds in which that is done
TASKS, BATCHES, PRODUCING = 600, 6, 1.5
#: seconds after which a round ends, done or not
PATIENCE = 60.0
COMMAND = ["-m", "django", "run_worker", "--processes", "2", "--concurrency", "4", "--lease", str(LEASE)]

_file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND)
if os.environ.get(THREADS):
    threading.Thread(target=threading.Event().wait, daemon=True).start()


@contextmanager
def noted(context: Any, need: str = "-") -> Iterator[None]:
    """Note when a task begins, and when it ends; `need`: the lock or permit that it holds."""
    _note("begin", context, need)
    yield
    _note("end", context, need)


def _note(what: str, context: Any, need: str) -> None:
    os.write(_file, f"{what} {context.task_result.id} {os.getpid()} {time.monotonic()} {need}\n".encode())


@task(takes_context=True)
def quick(context: Any) -> None:
    with noted(context):
        pass


@task(takes_context=True)
def slow(context: Any) -> None:
    with noted(context):
        time.sleep(SLOW)


@task(takes_context=True)
async def coroutine(context: Any) -> None:
    with noted(context):
        await asyncio.sleep(SLOW)


@task(takes_context=True, lock="lock{number}")
def locked(context: Any, number: int) -> None:
    with noted(context, f"lock{number}"):
        time.sleep(SHORT)


@task(takes_context=True, concurrency=2, concurrency_key="permit{number}")
def limited(context: Any, number: int) -> None:
    with noted(context, f"permit{number}"):
        time.sleep(SHORT)


@task(takes_context=True, max_attempts=1)
def once(context: Any) -> None:
    with noted(context):
        time.sleep(SHORT)


@task(takes_context=True)
def follow_up(context: Any, _: object) -> None:
    with noted(context):
        pass


@task(takes_context=True, then=follow_up)
def followed(context: Any) -> None:
    with noted(context):
        time.sleep(SHORT)


@task(takes_context=True)
def callback(context: Any, batch_id: str) -> None:
    with noted(context):
        pass


@task(takes_context=True)
def deadly(context: Any, how: str) -> None:
    """End this process."""
    with noted(context):
        if how == "exit":
            os._exit(3)
        ctypes.string_at(0)


@task(takes_context=True)
def hold_gil(context: Any, seconds: int) -> None:
    """Keep all other threads of the process from running, as a long call of C code does."""
    with noted(context):
        ctypes.PyDLL(None).sleep(seconds)


class Site:
    """The server, the workers, and what was enqueued in this round."""

    def __init__(self, server: EmbeddedServer, directory: Path, chance: random.Random, spawns: bool) -> None:
        self.server = server
        self.chance = chance
        self.backend: Any = task_backends["default"]
        self._directory = directory
        self._spawns = spawns
        self._numbers = itertools.count()
        self._read = os.path.getsize(os.environ[FILE])
        self.workers: list[Worker] = []
        for _ in range(2):
            self.start_worker()

    def begin(self) -> None:
        """Begin a round: wait until all workers have started."""
        self.sorts: dict[str, str] = {}
        self.batches: list[Any] = []
        self.lost_workers: list[int] = []
        self.killed_children: list[int] = []
        wanted = {worker.pids()[0] for worker in self.workers}
        key = self.backend.engine.keys.workers
        with self.server.client() as client:
            wait_until(lambda: wanted <= {pid_of(one.decode()) for one in client.hkeys(key)})
        wait_until(lambda: len(self.children()) >= 4)

    def start_worker(self) -> None:
        """Start one more worker."""
        self.workers.append(Worker([COMMAND], self._directory / f"log{next(self._numbers)}"))

    def perform(self, steps: Any) -> Any:
        """Perform steps of the engine."""
        return perform(self.backend.using, steps)

    def children(self) -> list[int]:
        """The processes that run tasks: children of the worker, or of its fork server."""
        return [pid for worker in self.workers for pid in worker.pids()[1 if self._spawns else 2 :]]

    def enqueue(self, task: Any, *args: Any) -> Any:
        """Enqueue a task, until that is acknowledged."""
        result = insist(lambda: task.enqueue(*args))
        self._add(result)
        return result

    def produce(self) -> None:
        """Enqueue tasks of all sorts, and batches."""
        sorts = [quick] * 6 + [once, locked, limited, followed] * 2 + [slow, coroutine] * 2
        for number in range(TASKS):
            task = self.chance.choice(sorts)
            self.enqueue(task, *([number % 2] if task in (locked, limited) else []))
            if number % (TASKS // BATCHES) == 0:
                batch = TaskBatch(on_done=callback)
                for _ in range(CALLS):
                    batch.add(self.chance.choice([quick, followed, once]))
                insist(batch.enqueue)
                self.batches.append(batch)
            time.sleep(PRODUCING / TASKS)

    def is_done(self) -> bool:
        """Whether no task is ready, delayed, leased or parked."""
        ready, delayed, leased, _, _, parked = self.perform(self.backend.engine.stats("default"))
        return not (ready or delayed or leased or parked)

    def count_held(self) -> int:
        """Locks and permits that are held."""
        with self.server.client() as client:
            held: int = client.zcard(self.backend.engine.keys.held)
        return held + sum(Lock(f"lock{number}").locked() for number in range(2))

    def collect(self, since: float, seconds: float) -> Round:
        """What is known at the end of the round."""
        is_free = wait_until(lambda: not self.count_held(), LEASE)
        batches = [self._batch(one) for one in self.batches]
        tasks = {job_id: self._task(job_id, sort) for job_id, sort in self.sorts.items()}
        return Round(
            tasks=tasks,
            batches=batches,
            lines=list(self._lines()),
            workers=self.lost_workers,
            children=self.killed_children,
            since=since,
            seconds=seconds,
            held=0 if is_free else self.count_held(),
        )

    def _batch(self, batch: Any) -> Batch:
        batch.refresh()
        stored = [one for one in batch.results() if one is not None]
        for one in stored:
            self._add(one)
        callback = batch.callback_id("on_done")
        self.sorts[callback] = "callback"
        return Batch(batch.total, batch.pending, batch.failed, [one.id for one in stored], callback)

    def _add(self, result: Any) -> None:
        """Remember a task, and the one that follows it."""
        self.sorts[result.id] = result.task.name
        if result.then_id:
            self.sorts[result.then_id] = "follow_up"

    def _task(self, job_id: str, sort: str) -> Task:
        record = self.perform(self.backend.engine.get(job_id))
        if record is None:
            return Task(sort)
        lines = record.log.decode().split("\n")
        lost = [record.state.workers[int(line[1:]) - 1] for line in lines if line.startswith("L")]
        recorded = sum(line.startswith("R") for line in lines)
        return Task(sort, record.state.status, recorded, [pid_of(worker) for worker in lost])

    def _lines(self) -> Iterator[Line]:
        """What tasks wrote in this round."""
        with open(os.environ[FILE], encoding="ascii") as file:
            file.seek(self._read)
            for line in file.readlines():
                what, job_id, pid, moment, need = line.split()
                yield Line(what, job_id, int(pid), float(moment), need)
            self._read = file.tell()


def pid_of(worker: str) -> int:
    """The process id in the id of a worker."""
    return int(worker.split("-")[-2])


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Wait until a condition is true; returns False if it is not in time."""
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


def insist(call: Callable[[], Any]) -> Any:
    """Repeat a call until it succeeds."""
    while True:
        with suppress(MessagingError):
            return call()
        time.sleep(0.05)
