"""Dramatiq: eight threads in each process, its default. Results are optional."""

from __future__ import annotations

from collections.abc import Iterable

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.asyncio import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from . import work

broker = RedisBroker(url=work.url)
broker.add_middleware(AsyncIO())
if work.stores_results:
    broker.add_middleware(Results(backend=RedisBackend(url=work.url), store_results=True))
dramatiq.set_broker(broker)
TASKS = {kind: dramatiq.actor(function, max_retries=0) for kind, function in work.TASKS.items()}


def push(kind: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        TASKS[kind].send(number)


def command(processes: int) -> list[list[str]]:
    return [["-m", "dramatiq", f"{__name__}:broker", "--processes", str(processes)]]
