"""The poller's rounds over tasks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..core.steps import batched
from ..services.polling import PAGE, Round, register, rounds_of_slot
from .backend import RedisBackend
from .compat import task_backends
from .occurrences import enqueue_due, tasks_of
from .periodic import PeriodicTask
from .periodic import periodic_tasks as all_periodic_tasks


def our_backends() -> list[RedisBackend]:
    """The backends of TASKS that are RedisBackends."""
    return [one for one in map(task_backends.__getitem__, task_backends) if isinstance(one, RedisBackend)]


def never_enqueued() -> list[PeriodicTask]:
    """The periodic tasks that no poller enqueues, since their backend is not a RedisBackend."""
    ours = {backend.alias for backend in our_backends()}
    return [one for one in all_periodic_tasks() if one.task.backend not in ours]


def aliases() -> list[str]:
    """The CACHES aliases of the backends."""
    return [backend.using for backend in our_backends()]


def _backends_at(using: str) -> list[RedisBackend]:
    return [backend for backend in our_backends() if backend.using == using]


@register(aliases)
def periodic_tasks(using: str) -> Iterable[Round]:
    """One round for each backend that has periodic tasks."""
    for backend in _backends_at(using):
        if found := tasks_of(backend):
            key, steps = backend.engine.keys.periodic, partial(enqueue_due, backend, found)
            # not once a second: with its own duration added, that skips an occurrence of every=1 at times
            yield Round(key, using, steps, min_interval=0)


@register(aliases)
def tasks(using: str) -> Iterable[Round]:
    """One round for each page of a backend's queues: QUEUES, or if that is empty, those that something was
    enqueued to."""
    for backend in _backends_at(using):
        engine = backend.engine
        if not backend.queue_names:
            yield from rounds_of_slot(using, engine, engine.keys.queues)
        for page in batched(backend.queue_names, PAGE):
            yield Round((engine.keys.tag, page), using, partial(engine.sweep, page))
