"""Compares Redis backends of Django's Tasks framework, each in a separate process with its own settings.

uv run --with django-tasks-redis --with django-tasks-rq python -m benchmarks.backends
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from django_redis_messaging.devserver.server import EmbeddedServer

from .harness import table

#: tasks that are enqueued and then executed in each round
STOCK = 2000
PING, OURS, STREAMS, RQ = "PING", "django-redis-messaging", "django-tasks-redis", "django-tasks-rq"


def _set_up(url: str, backend: str, *apps: str, **settings: Any) -> None:
    import django
    from django.conf import settings as site

    caches = {"messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
    options = settings.pop("OPTIONS", {})
    tasks = {"default": {"BACKEND": backend, "QUEUES": ["default"], "OPTIONS": options}}
    site.configure(USE_TZ=True, INSTALLED_APPS=apps, CACHES=caches, TASKS=tasks, **settings)
    django.setup()


def _ours(url: str) -> tuple[Callable[[], object], Callable[[], object]]:
    _set_up(url, "django_redis_messaging.tasks.RedisBackend", "django_redis_messaging")
    from django_redis_messaging.tasks.backend import our_backends
    from django_redis_messaging.tasks.worker import Limits, Worker

    from .tasks import nothing

    [backend] = our_backends()
    return nothing.enqueue, Worker(backend, ["default"], Limits(concurrency=8, burst=True)).run


def _streams(url: str) -> tuple[Callable[[], object], Callable[[], object]]:
    options = {"REDIS_URL": url}
    _set_up(url, "django_tasks_redis.RedisTaskBackend", "django_tasks_redis", OPTIONS=options)
    from django.core.management import call_command
    from django.tasks import task

    globals()["idle"] = task(idle)
    return globals()["idle"].enqueue, lambda: call_command("run_redis_tasks", max_tasks=STOCK, verbosity=0)


def _rq(url: str) -> tuple[Callable[[], object], Callable[[], object]]:
    queues = {"default": {"URL": url}}
    _set_up(url, "django_tasks_rq.RQBackend", "django_rq", "django_tasks_rq", RQ_QUEUES=queues)
    import django_rq
    from django_tasks import task
    from django_tasks_rq import Job
    from rq import SimpleWorker

    globals()["idle"] = task(idle)
    # its worker that does not fork for each task
    queue = django_rq.get_queue("default", job_class=Job)
    worker = SimpleWorker([queue], connection=queue.connection, job_class=Job)
    return globals()["idle"].enqueue, lambda: worker.work(burst=True, logging_level="WARNING")


def idle() -> None:
    """The task of the other backends."""


BACKENDS = {OURS: _ours, STREAMS: _streams, RQ: _rq}
MODULES = {
    OURS: "django_redis_messaging",
    STREAMS: "django_tasks_redis",
    RQ: "django_tasks_rq",
}


def measure(name: str, url: str) -> None:
    """Print the tasks per second that a backend enqueues and executes. Runs in a separate process."""
    if name == PING:
        _set_up(url, "django_redis_messaging.tasks.RedisBackend")
        from .tasks import pings

        print(json.dumps([pings(), 0]))
        return
    enqueue, work = BACKENDS[name](url)
    enqueue()  # not timed: the first call imports modules and connects
    began = time.perf_counter()
    for _ in range(STOCK - 1):
        enqueue()
    enqueued = time.perf_counter()
    work()
    print(json.dumps([(STOCK - 1) / (enqueued - began), STOCK / (time.perf_counter() - enqueued)]))


def _measured(name: str) -> tuple[float, float]:
    with EmbeddedServer() as server:
        line = subprocess.run(
            [sys.executable, "-m", "benchmarks.backends", "--one", name, server.url],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.splitlines()[-1]
    enqueued, executed = json.loads(line)
    return enqueued, executed


def _median(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):,.0f}" if any(rates) else ""


def main(rounds: int) -> None:
    names = [PING, *(name for name in BACKENDS if importlib.util.find_spec(MODULES[name]))]
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            rates[name].append(_measured(name))
    lines = [["", "enqueued/s", "executed/s"]]
    for name, measured in rates.items():
        lines.append([name, *(_median(column) for column in zip(*measured, strict=True))])
    print(table(lines))
    for name in names[2:]:
        pairs = list(zip(rates[OURS], rates[name], strict=True))
        enqueue, execute = (
            statistics.median(ours[at] / theirs[at] for ours, theirs in pairs) for at in (0, 1)
        )
        print(
            f"{OURS} enqueues {enqueue:.1f} times as fast as {name} and executes {execute:.1f} times as fast."
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "URL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    measure(*chosen.one) if chosen.one else main(chosen.rounds)
