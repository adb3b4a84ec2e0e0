"""The poller's rounds over tasks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..services.polling import Round, register, sweep, sweep_registered
from .backend import RedisBackend
from .compat import task_backends


def our_backends() -> list[RedisBackend]:
    """The backends of TASKS that are RedisBackends."""
    return [one for one in map(task_backends.__getitem__, task_backends) if isinstance(one, RedisBackend)]


@register
def tasks() -> Iterable[Round]:
    """One round for each backend over all of its queues; for each queue, if a backend allows any."""
    return [one for backend in our_backends() for one in _rounds(backend)]


def _rounds(backend: RedisBackend) -> list[Round]:
    using, engine = backend.using, backend.engine
    if backend.queue_names:
        return [partial(sweep, using, partial(engine.sweep, backend.queue_names))]
    registry = engine.keys.queues
    return [
        partial(sweep, using, partial(sweep_registered, engine, name, using, registry, name))
        for name in backend.serving()
    ]
