"""Rounds of a poller over the schedules of the default backend, and what they have enqueued."""

from __future__ import annotations

from django_redis_messaging.core.operations import perform
from django_redis_messaging.tasks.occurrences import enqueue_due
from django_redis_messaging.tasks.schedules import Position, parse_position, tasks_of

from .server import server
from .workers import backend, keys


def poll() -> float | None:
    """Do a poller's round."""
    return perform(backend().using, enqueue_due(backend(), tasks_of("default")))


def position(name: str) -> Position:
    """How far a schedule is."""
    return parse_position(server().hget(keys().periodic, name))


def enqueued() -> list[str]:
    """The ids of the jobs."""
    return sorted(id_.decode() for id_ in server().hkeys(keys().states))
