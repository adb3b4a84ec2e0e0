"""streaQ: 16 coroutines in each process, its default; sync tasks run in threads."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from streaq import Worker

from . import work
from .client_loop import ClientLoop

# it logs two lines for each task, and has no option against it
logging.disable(logging.INFO)
worker = Worker(redis_url=work.url)
TASKS = {kind: worker.task(max_tries=1)(function) for kind, function in work.TASKS.items()}
_client: list[ClientLoop] = []


async def _push(kind: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        await TASKS[kind].enqueue(number)


def push(kind: str, numbers: Iterable[int]) -> None:
    if not _client:
        _client.append(ClientLoop(worker))
    _client[0].run(_push(kind, numbers))


def command(processes: int) -> list[list[str]]:
    return [["-m", "streaq", "run", f"{__name__}:worker", "--workers", str(processes)]]
