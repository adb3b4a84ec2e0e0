"""Workers in threads of the test's own process, and what tests ask about them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django_redis import get_redis_connection

from django_redis_messaging import conf
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.leases import State
from django_redis_messaging.tasks.backend import RedisBackend
from django_redis_messaging.tasks.compat import TaskResult, task_backends
from django_redis_messaging.tasks.worker import Limits, Worker
from tests.engines import Performed, tasks_of

#: seconds: what should happen has happened by then, also on a busy machine
PATIENCE = 60.0
#: commands that only clients send, here: what a script does is counted by the server, too
SENT = ("eval", "evalsha", "bzpopmin")


def ours() -> RedisBackend:
    """The backend under test."""
    backend: RedisBackend = task_backends["default"]
    return backend


def worker(*queues: str, **limits: Any) -> Worker:
    """A worker with one lane, where nothing else is said."""
    return Worker(ours(), queues or ours().queue_names, Limits(**{"concurrency": 1, **limits}))


def burst(*queues: str, **limits: Any) -> Worker:
    """A worker that has done all that was ready."""
    made = worker(*queues, burst=True, **limits)
    made.run()
    return made


@contextmanager
def at_work(*queues: str, **limits: Any) -> Iterator[Worker]:
    """A worker while it works; at the end it drains."""
    made = worker(*queues, **limits)
    with running(made.run, made.stop):
        yield made


@contextmanager
def running(run: Callable[[], None], stop: Callable[[], None]) -> Iterator[threading.Thread]:
    """Something runs in a thread; it is told to stop, and does. A thread that doesn't keeps nobody alive."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop()
        thread.join(PATIENCE)
    assert not thread.is_alive(), "it does not stop"


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until something holds."""
    ends = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < ends, f"not within {patience:g} s"
        time.sleep(0.002)


def ended(result: TaskResult) -> TaskResult:
    """The result of a task, once it has ended."""

    def there() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until(there)
    return result


def engine() -> Performed:
    """The engine of the default backend."""
    return tasks_of(ours())


def state(result: TaskResult) -> State:
    """What is stored of a task's state."""
    known = engine().get(result.id)
    assert known is not None
    return known.state


def keys() -> JobKeys:
    return JobKeys(conf.prefix(), "tasks", "default")


def server() -> Any:
    """A raw client of the server under test, past all our code."""
    return get_redis_connection(conf.alias())


def server_ms() -> int:
    seconds, micros = server().time()
    return int(seconds * 1000 + micros // 1000)


def liveness(of: Worker) -> list[int]:
    """What a worker's line says: beat, consumed, started (ms), running, done; nothing before its first."""
    line = server().hget(keys().workers, of.id)
    return [int(word) for word in line.split()] if line else []


def sent(client: Any) -> int:
    """Commands that clients have sent to a server."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SENT)


def sent_in(client: Any, seconds: float) -> tuple[int, float]:
    """Commands that clients send to a server in this time, at least; and the time that it took."""
    before, began = sent(client), time.monotonic()
    threading.Event().wait(seconds)
    return sent(client) - before, time.monotonic() - began
