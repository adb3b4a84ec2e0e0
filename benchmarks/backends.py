"""Redis backends of Django's Tasks framework, each in a process with settings of its own.

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

from django_redis_messaging.core.embedded import EmbeddedServer

from .harness import table

#: tasks that are enqueued, and then executed, in a round
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
    from django_redis_messaging.tasks.polling import our_backends
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
    # the one of its workers that doesn't fork for each task
    queue = django_rq.get_queue("default", job_class=Job)
    worker = SimpleWorker([queue], connection=queue.connection, job_class=Job)
    return globals()["idle"].enqueue, lambda: worker.work(burst=True, logging_level="WARNING")


def idle() -> None:
    """What the others execute."""


BACKENDS = {OURS: _ours, STREAMS: _streams, RQ: _rq}
MODULES = {
    OURS: "django_redis_messaging",
    STREAMS: "django_tasks_redis",
    RQ: "django_tasks_rq",
}


def contend(name: str, url: str) -> None:
    """One contender's turn, in a process of its own: tasks a second, enqueued and executed."""
    if name == PING:
        _set_up(url, "django_redis_messaging.tasks.RedisBackend")
        from .tasks import pings

        print(json.dumps([pings(), 0]))
        return
    enqueue, work = BACKENDS[name](url)
    enqueue()  # what is imported and connected by the first call is not timed
    began = time.perf_counter()
    for _ in range(STOCK - 1):
        enqueue()
    enqueued = time.perf_counter()
    work()
    print(json.dumps([(STOCK - 1) / (enqueued - began), STOCK / (time.perf_counter() - enqueued)]))


def _turn(name: str) -> tuple[float, float]:
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
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            turns[name].append(_turn(name))
    lines = [["", "enqueued/s", "executed/s"]]
    for name, rates in turns.items():
        lines.append([name, *(_median(column) for column in zip(*rates, strict=True))])
    print(table(lines))
    for name in names[2:]:
        pairs = list(zip(turns[OURS], turns[name], strict=True))
        times = [statistics.median(ours[at] / theirs[at] for ours, theirs in pairs) for at in (0, 1)]
        print(f"{OURS} is {times[0]:.1f} times as fast to enqueue as {name}, {times[1]:.1f} to execute.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "URL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    contend(*chosen.one) if chosen.one else main(chosen.rounds)
