"""Registries of queues: the poller and the statistics find in them which queues exist.

A push registers its queue until the moment at which its job is due, but not at every push: a process
remembers what it has registered. A registration that is older than MAX_AGE is removed by the poller, after
it has found the queue empty; so no queue with jobs is forgotten, however long they are delayed. Nothing else
removes registrations: workers don't read them, and the statistics don't write, so that users of Redis who may
only read can run them. Without a poller, names that are no longer used stay: some bytes each in Redis, and a
script each for the statistics.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from ...core.operations import Script, Steps
from ...errors import OutcomeUnknown, Unavailable
from .engine import Engine

logger = logging.getLogger(__name__)

#: seconds after which a process that goes on pushing to a queue registers it again
REGISTER_INTERVAL = 3600.0
#: ms after which a registration is old, counted from its moment
MAX_AGE = 30 * 86_400_000
#: ms by which a job may be due after the registered moment without a new registration: less than MAX_AGE
MAX_LATER = 15 * 86_400_000


class _Registered(NamedTuple):
    """What this process has registered."""

    #: monotonic
    at: float
    #: ms by this process's clock: the registered moment
    until: float


#: by (using, key of the registry, queue)
_registered: dict[tuple[str, str, str], _Registered] = {}


def register_queue(using: str, registry: str, queue: str, delay: int | str = 0) -> Steps[None]:
    """Add a queue to a registry (a key) until a job is due, unless this process has done so recently. `delay`
    is that of the job: ms, or "@" and a moment in ms. The push before it has succeeded, so a failure is
    logged and not raised."""
    which, until = (using, registry, queue), _due(delay)
    known = _registered.get(which)
    if (
        known is not None
        and time.monotonic() - known.at < REGISTER_INTERVAL
        and until <= known.until + MAX_LATER
    ):
        return
    try:
        yield Script("queues_keep", [registry], [queue, delay])
    except (Unavailable, OutcomeUnknown) as error:
        logger.warning(
            "Registering queue %r for the poller failed, retrying at the next push: %s", queue, error
        )
    else:
        _registered[which] = _Registered(time.monotonic(), until)


def registered_queues(registry: str) -> Steps[list[str]]:
    """The names in a registry, the oldest registration first."""
    names, _ = yield from registrations(registry)
    return names


def registrations(registry: str) -> Steps[tuple[list[str], set[str]]]:
    """The names in a registry, the oldest registration first; and those whose registration is old."""
    old, found = yield Script("queues_list", [registry], [MAX_AGE])
    names = [one.decode() for one in found]
    return names, set(names[:old])


def check_registration(engine: Engine, queue: str, registry: str, name: str) -> Steps[None]:
    """Remove an old registration if the queue is empty; else renew it."""
    if (yield from engine.is_empty(queue)):
        yield Script("queues_forget", [registry], [name, MAX_AGE])
    else:
        yield Script("queues_keep", [registry], [name, 0])


def _due(delay: int | str) -> float:
    """When a job is due, in ms by this process's clock. That need not be exact: see MAX_LATER."""
    return float(delay[1:]) if isinstance(delay, str) else time.time() * 1000 + delay
