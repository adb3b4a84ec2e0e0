"""Registries of queues: the poller and the statistics find in them which queues exist."""

from __future__ import annotations

import logging
from time import monotonic

from ...core.operations import Script, Steps
from ...errors import OutcomeUnknown, Unavailable

logger = logging.getLogger(__name__)

#: seconds after which a process that goes on pushing to a queue registers it again
REGISTER_INTERVAL = 3600.0
#: ms after which a queue that nothing was pushed to, and that has nothing due, is removed
MAX_AGE = 30 * 86_400_000

#: (using, key of the registry, queue) → when this process registered it last; monotonic
_registered_at: dict[tuple[str, str, str], float] = {}


def register_queue(using: str, registry: str, queue: str) -> Steps[None]:
    """Add a queue to a registry (a key), unless this process has done so recently. The push before it has
    succeeded, so a failure is logged and not raised."""
    which = using, registry, queue
    if monotonic() - _registered_at.get(which, -REGISTER_INTERVAL) < REGISTER_INTERVAL:
        return
    try:
        yield Script("queues_keep", [registry], [queue])
    except (Unavailable, OutcomeUnknown) as error:
        logger.warning(
            "Registering queue %r for the poller failed, retrying at the next push: %s", queue, error
        )
    else:
        _registered_at[which] = monotonic()


def registered_queues(registry: str) -> Steps[list[str]]:
    """The names in a registry, the latest registration last."""
    found = yield Script("queues_list", [registry], [MAX_AGE])
    return [one.decode() for one in found]
