"""Gauges of what is not a queue or a server: how many locks, chats and channels there are, and processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from ...core.encoding import current_prefix
from ...core.operations import Steps
from ...errors import MessagingError
from ..common.catalogue import count_things
from ..expiries.timers import TimerEngine
from ..jobs.heartbeats import heartbeat_calls, parse_heartbeats
from ..jobs.poller import default_alias
from .keys import Series

logger = logging.getLogger(__name__)

#: the series of the app's things
THINGS = Series("things", "all")

Numbers = Mapping[str, int]
#: reads such gauges at a CACHES alias, by series
Reader = Callable[[str], Steps[Mapping[Series, Numbers]]]

#: for each reader, what names the aliases at which it reads
_registered: dict[Reader, Callable[[], Iterable[str]]] = {}


def register_reader(aliases: Callable[[], Iterable[str]]) -> Callable[[Reader], Reader]:
    """Record the gauges that the decorated function reads, at each of these aliases."""

    def decorate(reader: Reader) -> Reader:
        _registered[reader] = aliases
        return reader

    return decorate


def read_things(using: str) -> Steps[dict[Series, Numbers]]:
    """The gauges at an alias. Those that can't be read, such as without the permission for SCAN, are left
    out."""
    found: dict[Series, Numbers] = {}
    for reader, listed in _registered.items():
        if using in listed():
            try:
                found |= yield from reader(using)
            except MessagingError as error:
                logger.debug("Gauges of %r are not recorded (%s): %s", using, reader.__name__, error)
    return found


@register_reader(default_alias)
def things(using: str) -> Steps[Mapping[Series, Numbers]]:
    """The listeners, and the things of each kind."""
    prefix = current_prefix()
    listeners = parse_heartbeats(*(yield heartbeat_calls(TimerEngine(prefix).keys)))
    counts = yield from count_things(using, prefix)
    return {THINGS: {"listeners": sum(one.alive for one in listeners), **counts.by_kind}}
