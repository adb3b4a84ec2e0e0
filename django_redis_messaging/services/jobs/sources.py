"""The queues that exist: delay queues, and those that other capabilities register here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ... import conf
from ...core.commands import Command
from ...core.encoding import current_prefix
from ...core.operations import Steps
from .engine import Engine
from .keys import queues_key
from .queue import ONLY_QUEUE

#: the kinds of queues, in the order in which they are listed
KINDS = ("tasks", "timers", "delay")


class Queue(NamedTuple):
    """A queue that exists."""

    #: alias in CACHES
    using: str
    #: one of KINDS
    kind: str
    #: alias in TASKS; empty for other kinds
    where: str
    name: str
    engine: Engine
    #: its name in the keys
    stored: str


class Source(NamedTuple):
    """Where the names of queues of one kind are."""

    #: alias in CACHES
    using: str
    #: one of KINDS
    kind: str
    #: key of a registry of names; unless they are known
    registry: str
    #: makes the queue of a name
    queue: Callable[[str], Queue]
    names: Sequence[str] = ()


_registered: list[Callable[[], Iterable[Source]]] = []


def register_sources(sources: Callable[[], Iterable[Source]]) -> Callable[[], Iterable[Source]]:
    """Have the queues of the sources listed that the decorated function returns."""
    _registered.append(sources)
    return sources


def _sources() -> list[Source]:
    found = (source for sources in _registered for source in sources())
    return sorted(found, key=lambda one: KINDS.index(one.kind))


def aliases() -> list[str]:
    """The CACHES aliases at which there may be queues."""
    return list(dict.fromkeys(source.using for source in _sources()))


def read_queues(using: str, limit: int) -> Steps[list[Queue]]:
    """The queues at an alias, in one round trip, at most `limit`: see `read_queues_and`."""
    queues, _ = yield from read_queues_and(using, limit, ())
    return queues


def read_queues_and(using: str, limit: int, more: Sequence[Command]) -> Steps[tuple[list[Queue], list[Any]]]:
    """As `read_queues`, with the replies to further commands, in the same round trip.

    Of more than `limit` queues of a registry, those are listed that were registered last.
    """
    sources = [one for one in _sources() if one.using == using]
    calls = [
        Command("ZRANGE", one.registry, 0, limit - 1, "REV", reads=True) for one in sources if not one.names
    ]
    replies = (yield [*calls, *more]) if calls or more else []
    registered = iter(replies)
    found: list[Queue] = []
    for one in sources:
        found += map(one.queue, one.names or _names(next(registered)))
    return found[:limit], replies[len(calls) :]


def _names(reply: Sequence[bytes]) -> list[str]:
    return sorted(name.decode(errors="backslashreplace") for name in reply)


@register_sources
def delay_queues() -> list[Source]:
    """The delay queues."""
    using, prefix = conf.alias(), current_prefix()
    return [Source(using, "delay", queues_key(prefix), partial(_delay_queue, using, prefix))]


def _delay_queue(using: str, prefix: str, name: str) -> Queue:
    return Queue(using, "delay", "", name, Engine(prefix, "queue", name), ONLY_QUEUE)
