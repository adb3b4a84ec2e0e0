"""What is due by time in the queues of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..services.polling import Round, register
from .backend import RedisBackend
from .compat import task_backends


def our_backends() -> list[RedisBackend]:
    """The backends of TASKS that are ours."""
    return [one for one in map(task_backends.__getitem__, task_backends) if isinstance(one, RedisBackend)]


@register
def tasks() -> Iterable[Round]:
    """One round for each backend over all of its queues; for each queue, where any is allowed."""
    return [one for backend in our_backends() for one in _rounds(backend)]


def _rounds(backend: RedisBackend) -> list[Round]:
    if backend.queue_names:
        return [partial(_sweep, backend)]
    return [partial(backend.found_queues.sweep, name) for name in backend.serving()]


def _sweep(backend: RedisBackend) -> float | None:
    claimed = backend.store.claim(backend.queue_names, 0, 0)
    return None if claimed.due_in is None else claimed.due_in / 1000
