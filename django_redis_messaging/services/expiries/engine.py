"""The lease engine of timers: all in one slot, one queue for each namespace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ...core.operations import Script, Steps
from ..jobs.engine import Engine
from ..jobs.leases import Claimed, LeasedJob
from ..jobs.registry import registered_queues
from .keys import TIMERS, namespaces_key, timer_key


class TimerEngine(Engine):
    """The timers of a prefix."""

    counts_lost = True

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix, *TIMERS)
        self._prefix = prefix

    def claim(self, queues: Sequence[str], count: int, lease: int, **options: Any) -> Steps[Claimed]:
        """As Engine.claim, with the namespaces in random order: none is always served first."""
        return (yield from super().claim(random.sample(queues, len(queues)), count, lease, **options))

    def confirm(self, leased: LeasedJob, name: str) -> Steps[int]:
        """Start a timer that was claimed. 0 if it has started; the ms by which to delay it; or -1 if the
        lease is stale: the timer was cancelled, replaced, extended, or claimed by another listener."""
        _, job_id, fence, token = leased.lease
        keys = [*self.keys.records, timer_key(self._prefix, leased.lease.queue, name)]
        return int((yield Script("expiry_confirm", keys, (job_id, fence, token))))

    def namespaces(self) -> Steps[list[str]]:
        """The namespaces that have or had timers."""
        return registered_queues(namespaces_key(self._prefix))
