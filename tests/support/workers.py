"""Workers in threads of the test process, and helpers to inspect their state."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from django.dispatch import Signal
from django.utils import timezone

from django_redis_messaging import conf
from django_redis_messaging.services.jobs.engine import LeasedJob, State
from django_redis_messaging.services.jobs.executor import Executor, RunningJob
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.worker import Worker as JobsWorker
from django_redis_messaging.tasks.backend import RedisBackend
from django_redis_messaging.tasks.compat import (
    BaseTaskBackend,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_redis_messaging.tasks.worker import Limits, Worker
from tests.support.engines import Performed, tasks_of

from .server import server, until

#: seconds to wait for an expected condition, also on a busy machine
PATIENCE = 60.0
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
SUCCESSFUL, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
#: a backend of Django or of the backport, not of this package
DUMMY = BaseTaskBackend.__module__.replace(".base", ".dummy.DummyBackend")
SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
#: commands that only clients send here: the server also counts the commands of scripts
SENT = ("eval", "evalsha", "bzpopmin", "xread")


def backend() -> RedisBackend:
    """The backend under test."""
    backend: RedisBackend = task_backends["default"]
    return backend


def worker(*queues: str, **limits: Any) -> Worker:
    """A worker with one lane by default."""
    return Worker(backend(), queues or backend().queue_names, Limits(**{"concurrency": 1, **limits}))


def burst(*queues: str, **limits: Any) -> Worker:
    """Run a worker until nothing is ready."""
    made = worker(*queues, burst=True, **limits)
    made.run()
    return made


def running_job(leased: LeasedJob) -> RunningJob:
    """A job that was claimed, for an attempt outside a worker."""
    return RunningJob(leased, cast(Executor, None))


def jobs_of(runner: JobsWorker) -> list[RunningJob]:
    """The jobs of a worker that have not ended."""
    host = runner._placement.host
    return [] if host is None else list(host.executor._jobs.values())


@contextmanager
def at_work(*queues: str, **limits: Any) -> Iterator[Worker]:
    """Run a worker in the block and drain it at the end."""
    made = worker(*queues, **limits)
    with running(made.run, made.stop):
        yield made


@contextmanager
def running(run: Callable[[], None], stop: Callable[[], None]) -> Iterator[threading.Thread]:
    """Run a function in a thread for the block, then stop it. The thread is a daemon and cannot block the
    exit."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop()
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the thread does not stop"


def ended(result: TaskResult) -> TaskResult:
    """Wait until the task has ended and return its refreshed result."""

    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until(is_finished)
    return result


def run_to_end(*results: TaskResult) -> list[str]:
    """Run the tasks until all have finished; their statuses."""

    def all_finished() -> bool:
        burst()
        for result in results:
            result.refresh()
        return all(result.is_finished for result in results)

    until(all_finished)
    return [str(result.status) for result in results]


def errors_of(result: TaskResult) -> list[str]:
    """The names of the exceptions of the failed attempts, once the task has ended."""
    return [error.exception_class.__name__ for error in ended(result).errors]


def later(seconds: float = 3600) -> datetime:
    """A moment from now."""
    return timezone.now() + timedelta(seconds=seconds)


@contextmanager
def receiving(signal: Signal, receive: Callable[..., object]) -> Iterator[None]:
    """Connect a receiver to a signal in the block."""
    signal.connect(receive)
    try:
        yield
    finally:
        signal.disconnect(receive)


class ReceivedSignal(NamedTuple):
    """A signal, with the state of its result at the time it was sent."""

    name: str
    sender: type
    id: str
    status: str
    attempts: int
    #: the exception being handled at the time
    error: BaseException | None
    #: the result that the backend stored at the time, if the backend stores results
    stored: TaskResult | None


@contextmanager
def recording_signals(store: Any = None) -> Iterator[list[ReceivedSignal]]:
    """Record all signals that are sent in the block."""
    signals: list[ReceivedSignal] = []

    def receiver_of(name: str) -> Callable[..., None]:
        def receive(sender: type, task_result: TaskResult, **_: object) -> None:
            stored = store.get_result(task_result.id) if store is not None else None
            fields = task_result.id, str(task_result.status), task_result.attempts
            signals.append(ReceivedSignal(name, sender, *fields, sys.exc_info()[1], stored))

        return receive

    with ExitStack() as stack:
        for name, signal in SIGNALS.items():
            stack.enter_context(receiving(signal, receiver_of(name)))
        yield signals


def engine() -> Performed:
    """The engine of the default backend."""
    return tasks_of(backend())


def counts(queue: str = "default") -> list[int]:
    """Number of ready, delayed, leased and dead jobs."""
    return list(engine().stats(queue)[:4])


def count_waiting() -> int:
    """Number of ready, delayed or parked jobs in all queues."""
    found = [engine().stats(queue) for queue in backend().queue_names]
    return sum(ready + delayed + parked for ready, delayed, _, _, _, parked in found)


def state(result: TaskResult) -> State:
    """The stored state of a task."""
    record = engine().get(result.id)
    assert record is not None
    return record.state


def assert_released(result: TaskResult) -> None:
    """A worker has given the task back, and charged no attempt."""
    found = state(result)
    assert (found.status, found.attempts, found.workers) == ("waiting", 0, [])


def keys() -> JobKeys:
    return JobKeys(conf.prefix(), "tasks", "default")


def stored_keys() -> set[str]:
    """Names of the backend's stored keys, except request IDs, worker records and the wake-up marker."""
    found = {key.decode().removeprefix(keys().tag) for key in server().scan_iter(match=f"{keys().tag}*")}
    return {key for key in found if not key.startswith((":requests", ":workers")) and key != ":bell"}


def liveness(of: Worker) -> list[int]:
    """A worker's stored record: heartbeat, last poll, start (ms), running, done; empty if none exists."""
    record = server().hget(keys().workers, of.id)
    return [int(word) for word in record.split()[:5]] if record else []


def sent(client: Any) -> int:
    """Number of commands that clients have sent to the server."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SENT)


def sent_in(client: Any, seconds: float) -> tuple[int, float]:
    """Number of commands that clients send in a period of at least `seconds`, and its exact length."""
    before, began = sent(client), time.monotonic()
    threading.Event().wait(seconds)
    return sent(client) - before, time.monotonic() - began
