"""The delay queues there are: for the poller, and for statistics."""

from __future__ import annotations

import logging
from time import monotonic

from ...core import keys
from ...core.operations import Script, Service, Steps, asynchronous, operation
from ...errors import OutcomeUnknown, Unavailable
from .engine import ONLY, Claimed, Engine

logger = logging.getLogger(__name__)

#: seconds after which a process that goes on pushing says again that a queue is there
AGAIN = 3600.0
#: ms after which a queue that nobody pushed to, and that has nothing due, is forgotten
IDLE = 30 * 86_400_000

_told: dict[tuple[str, str, str], float] = {}


def noted(using: str, key: str, queue: str) -> Steps[None]:
    """Note in a list of queues that this one is there: once a process, and now and then. What comes before
    has happened: that the poller doesn't know of its queue yet is no failure of it."""
    which = using, key, queue
    if monotonic() - _told.get(which, -AGAIN) < AGAIN:
        return
    try:
        yield Script("queues_keep", [key], [queue])
    except (Unavailable, OutcomeUnknown) as error:
        logger.warning("The poller does not know of queue %r yet: %s", queue, error)
    else:
        _told[which] = monotonic()


class Queues(Service):
    """The delay queues there are, and what is due in them."""

    @operation
    def names(self) -> Steps[list[str]]:
        """Their names, those that were used last at the end."""
        found = yield Script("queues_list", [self._key], [IDLE])
        return [one.decode() for one in found]

    anames = asynchronous(names)

    @operation
    def note(self, name: str) -> Steps[None]:
        """One is there."""
        yield from noted(self._using, self._key, name)

    anote = asynchronous(note)

    @operation
    def sweep(self, name: str) -> Steps[float | None]:
        """Do what is due in one; the seconds until something will be, or None."""
        claimed = yield from self._swept(name)
        if claimed.due_in is None:
            return None
        yield from noted(self._using, self._key, name)
        return claimed.due_in / 1000

    asweep = asynchronous(sweep)

    @property
    def _key(self) -> str:
        return keys.queues(self._prefix)

    def _swept(self, name: str) -> Steps[Claimed]:
        return Engine(self._prefix, "queue", name).claim([ONLY], 0, 0)
