"""What lists the queues whose gauges are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...core.operations import Steps
from ..jobs.engine import Engine
from .keys import Series


class Queue(NamedTuple):
    """A queue of an engine, and its series."""

    series: Series
    engine: Engine
    name: str


#: lists the queues at a CACHES alias
Source = Callable[[str], Steps[list[Queue]]]

#: for each source, what names the aliases at which it may list queues
_registered: dict[Source, Callable[[], Iterable[str]]] = {}


def register_source(aliases: Callable[[], Iterable[str]]) -> Callable[[Source], Source]:
    """Record the gauges of the queues that the decorated function lists, at each of these aliases."""

    def decorate(source: Source) -> Source:
        _registered[source] = aliases
        return source

    return decorate


def aliases() -> list[str]:
    """The aliases at which there may be queues."""
    return list(dict.fromkeys(alias for listed in _registered.values() for alias in listed()))


def queues_at(using: str, limit: int) -> Steps[list[Queue]]:
    """The queues at an alias, at most `limit`."""
    found: list[Queue] = []
    for source, listed in _registered.items():
        if using in listed():
            found += yield from source(using)
    return found[:limit]
