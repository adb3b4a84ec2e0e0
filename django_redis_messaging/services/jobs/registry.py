"""The delay queues there are: for the poller, and for statistics."""

from __future__ import annotations

from time import monotonic

from ...core import keys
from ...core.operations import Script, Service, Steps, asynchronous, operation
from .engine import ONLY, Engine

#: seconds after which a process that goes on pushing says again that a queue is there
AGAIN = 3600.0
#: ms after which a queue that nobody pushed to, and that has nothing due, is forgotten
IDLE = 30 * 86_400_000

_told: dict[tuple[str, str, str], float] = {}


def noted(using: str, prefix: str, queue: str) -> Steps[None]:
    """Note that a queue is there: once a process, and now and then."""
    which = using, prefix, queue
    if monotonic() - _told.get(which, -AGAIN) >= AGAIN:
        yield Script("queues_keep", [keys.queues(prefix)], [queue])
        _told[which] = monotonic()


class Queues(Service):
    """The delay queues there are, and what is due in them."""

    @operation
    def names(self) -> Steps[list[str]]:
        """Their names, those that were used last at the end."""
        found = yield Script("queues_list", [keys.queues(self._prefix)], [IDLE])
        return [one.decode() for one in found]

    anames = asynchronous(names)

    @operation
    def sweep(self, name: str) -> Steps[float | None]:
        """Do what is due in one; the seconds until something will be, or None."""
        claimed = yield from Engine(self._prefix, "queue", name).claim([ONLY], 0, 0)
        if claimed.due_in is None:
            return None
        yield from noted(self._using, self._prefix, name)
        return claimed.due_in / 1000

    asweep = asynchronous(sweep)
