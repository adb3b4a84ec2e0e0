"""Lease engines whose steps are executed immediately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django_redis_messaging import conf
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.expiries.timers import TimerEngine
from django_redis_messaging.services.jobs.engine import Engine


class Performed:
    """The methods of an engine as functions that return the result."""

    def __init__(self, engine: Engine, using: str) -> None:
        self.engine = engine
        self.using = using

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: perform(self.using, getattr(self.engine, name)(*args, **kwargs))


def tasks_of(backend: Any) -> Performed:
    """The task engine of a backend."""
    return Performed(backend.engine, backend.using)


def timers() -> Performed:
    """The timer engine for the prefix in the settings."""
    return Performed(TimerEngine(conf.prefix()), conf.alias())
