"""Tasks that do nothing, for this app and for huey, and the rate at which one process executes them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from django_redis_messaging.tasks import task

from .harness import driver

#: tasks executed in each round
STOCK = 2000


@task
def nothing() -> None: ...


def pings(count: int = STOCK) -> float:
    """Return PINGs per second."""
    ping = driver().ping
    began = time.perf_counter()
    for _ in range(count):
        ping()
    return count / (time.perf_counter() - began)


def our_worker(concurrency: int) -> Any:
    """Return a worker that executes tasks until the queue is empty."""
    from django_redis_messaging.tasks.backend import our_backends
    from django_redis_messaging.tasks.worker import Limits, Worker

    [backend] = our_backends()
    return Worker(backend, backend.queue_names, Limits(concurrency=concurrency, burst=True))


def work(concurrency: int) -> float:
    """Return the tasks per second that a worker executes until the queue is empty."""
    nothing.enqueue_many([((), {})] * STOCK)
    worker = our_worker(concurrency)
    began = time.perf_counter()
    worker.run()
    return float(worker.done / (time.perf_counter() - began))


@functools.cache
def _huey() -> tuple[Any, Any]:
    from huey import RedisHuey

    huey = RedisHuey("peer", connection_pool=driver().connection_pool, results=True, store_none=True)

    @huey.task()  # type: ignore[untyped-decorator]
    def idle() -> None: ...

    return huey, idle


def huey_task() -> Callable[[], object]:
    """Return the call that enqueues huey's task."""
    return _huey()[1]  # type: ignore[no-any-return]


def huey_work(concurrency: int) -> float:
    """Return the tasks per second that huey's consumer executes until the queue is empty."""
    huey, idle = _huey()
    for _ in range(STOCK):
        idle()
    consumer = huey.create_consumer(workers=concurrency, periodic=False)
    began = time.perf_counter()
    consumer.start()
    while huey.pending_count():
        time.sleep(0.001)
    seconds = time.perf_counter() - began
    consumer.stop()
    return STOCK / seconds
