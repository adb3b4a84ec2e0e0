"""taskiq: the broker with streams of taskiq-redis, which acknowledges. Results are optional."""

from __future__ import annotations

from collections.abc import Iterable

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from . import work
from .client_loop import ClientLoop

broker = RedisStreamBroker(work.url)
if work.stores_results:
    broker = broker.with_result_backend(RedisAsyncResultBackend(work.url))
TASKS = {kind: broker.task(kind)(function) for kind, function in work.TASKS.items()}
_client: list[ClientLoop] = []


async def _push(kind: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        await TASKS[kind].kiq(number)


def push(kind: str, numbers: Iterable[int]) -> None:
    if not _client:
        _client.append(ClientLoop())
        _client[0].run(broker.startup())
    _client[0].run(_push(kind, numbers))


def command(processes: int) -> list[list[str]]:
    options = ["--workers", str(processes), "--log-level", "WARNING"]
    return [["-m", "taskiq", "worker", f"{__name__}:broker", *options]]
