"""What listeners, the poller and statistics say to Redis about timers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ...core import keys
from ...core.batches import batched
from ...core.operations import Script, Steps, asynchronous, operation
from ..jobs.engine import Claimed, Engine, Held
from ..jobs.store import LeaseStore

#: ms after which a namespace is forgotten: all its timers have been due for so long
IDLE = 30 * 86_400_000
#: namespaces that one script looks through
PAGE = 100


class Fair(Engine):
    """Serves none of its queues always first."""

    def claim(self, queues: Sequence[str], count: int, lease: int, **options: Any) -> Steps[Claimed]:
        """As that of each engine, with the queues in another order each time."""
        return super().claim(random.sample(queues, len(queues)), count, lease, **options)


class TimerStore(LeaseStore):
    """All timers: one slot, a queue a namespace."""

    def __init__(self, *, using: str | None = None) -> None:
        super().__init__(*keys.TIMERS, using=using)
        self._engine = Fair(self._prefix, *keys.TIMERS)

    @operation
    def confirm(self, held: Held, name: str) -> Steps[int]:
        """Begin a timer that was claimed: 0 where it has begun; the ms for which it is to go back; or -1
        where it was cancelled, replaced or extended meanwhile, or claimed by another."""
        jobs, timer = self._engine.keys, keys.timer(self._prefix, held.queue, name)
        _, job_id, fence, token = held.lease
        return int(
            (yield Script("expiry_confirm", (jobs.states, jobs.uniques, timer), (job_id, fence, token)))
        )

    aconfirm = asynchronous(confirm)

    @operation
    def namespaces(self) -> Steps[list[str]]:
        """The namespaces there are, those that were used last at the end."""
        found = yield Script("queues_list", [keys.namespaces(self._prefix)], [IDLE])
        return [one.decode() for one in found]

    anamespaces = asynchronous(namespaces)

    @operation
    def sweep(self) -> Steps[float | None]:
        """Do what is due in all namespaces; the seconds until something will be, or None."""
        found = yield Script("queues_list", [keys.namespaces(self._prefix)], [IDLE])
        soonest: float | None = None
        for page in batched([one.decode() for one in found], PAGE):
            claimed = yield from self._engine.claim(page, 0, 0)
            if claimed.due_in is not None:
                soonest = min(claimed.due_in, soonest if soonest is not None else claimed.due_in)
        return None if soonest is None else soonest / 1000

    asweep = asynchronous(sweep)

    @operation
    def stats(self, namespace: str) -> Steps[list[int]]:
        """Ready, delayed, leased, dead, and the ms that the oldest ready one has been due for, or -1."""
        return (yield from self._engine.stats(namespace))

    astats = asynchronous(stats)

    @operation
    def redrive(self, namespace: str, ids: list[str] | None = None) -> Steps[int]:
        """Put dead timers back, these or all; returns how many."""
        return (yield from self._engine.redrive(namespace, ids))

    aredrive = asynchronous(redrive)
