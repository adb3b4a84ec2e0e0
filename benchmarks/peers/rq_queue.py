"""RQ: a fork for each task, or SimpleWorker, which runs them itself. Both import the tasks before."""

from __future__ import annotations

from collections.abc import Iterable

import redis
import rq

from . import work

queue = rq.Queue("default", connection=redis.Redis.from_url(work.url))


class ForkWorker(rq.Worker):
    """Of this module, so that it has imported the tasks."""


class InProcessWorker(rq.SimpleWorker):
    """The same, without a fork."""


def push(kind: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        queue.enqueue(work.TASKS[kind], number)


def command(processes: int) -> list[list[str]]:
    kind = InProcessWorker if work.form == "simple" else ForkWorker
    options = ["-u", work.url, "-q", "-w", f"{__name__}.{kind.__name__}", "default"]
    if processes == 1:
        return [["-m", "rq.cli", "worker", *options]]
    return [["-m", "rq.cli", "worker-pool", "-n", str(processes), *options]]
