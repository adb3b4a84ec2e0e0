"""SAQ: ten coroutines in each process, its default; sync tasks run in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from saq import Queue

from . import work
from .client_loop import ClientLoop


def with_context(function: Callable[[int], int]) -> Callable[..., int]:
    """A task as SAQ calls it."""
    return lambda _context, *, number: function(number)


async def anoop(_context: Any, *, number: int) -> int:
    return work.note(number)


queue = Queue.from_url(work.url)
settings = {
    "queue": queue,
    "functions": [*((kind, with_context(function)) for kind, function in work.SYNC.items()), anoop],
}
_client: list[ClientLoop] = []


async def _push(kind: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        await queue.enqueue(kind, number=number)


def push(kind: str, numbers: Iterable[int]) -> None:
    if not _client:
        _client.append(ClientLoop())
    _client[0].run(_push(kind, numbers))


def command(processes: int) -> list[list[str]]:
    return [["-m", "saq", f"{__name__}.settings", "--workers", str(processes)]]
