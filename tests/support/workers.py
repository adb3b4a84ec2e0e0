"""Workers in threads of the test process, and helpers to inspect their state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django_redis import get_redis_connection

from django_redis_messaging import conf
from django_redis_messaging.services.jobs.engine import State
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.tasks.backend import RedisBackend
from django_redis_messaging.tasks.compat import TaskResult, task_backends
from django_redis_messaging.tasks.worker import Limits, Worker
from tests.support.engines import Performed, tasks_of

#: seconds to wait for an expected condition, also on a busy machine
PATIENCE = 60.0
#: commands that only clients send here: the server also counts the commands of scripts
SENT = ("eval", "evalsha", "bzpopmin")


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


def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience:g} s"
        time.sleep(0.002)


def ended(result: TaskResult) -> TaskResult:
    """Wait until the task has ended and return its refreshed result."""

    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until(is_finished)
    return result


def engine() -> Performed:
    """The engine of the default backend."""
    return tasks_of(backend())


def state(result: TaskResult) -> State:
    """The stored state of a task."""
    record = engine().get(result.id)
    assert record is not None
    return record.state


def keys() -> JobKeys:
    return JobKeys(conf.prefix(), "tasks", "default")


def server() -> Any:
    """A raw client of the server under test that bypasses this package."""
    return get_redis_connection(conf.alias())


def server_ms() -> int:
    seconds, micros = server().time()
    return int(seconds * 1000 + micros // 1000)


def liveness(of: Worker) -> list[int]:
    """A worker's stored record: heartbeat, last poll, start (ms), running, done; empty if none exists."""
    record = server().hget(keys().workers, of.id)
    return [int(word) for word in record.split()] if record else []


def sent(client: Any) -> int:
    """Number of commands that clients have sent to the server."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SENT)


def sent_in(client: Any, seconds: float) -> tuple[int, float]:
    """Number of commands that clients send in a period of at least `seconds`, and its exact length."""
    before, began = sent(client), time.monotonic()
    threading.Event().wait(seconds)
    return sent(client) - before, time.monotonic() - began
