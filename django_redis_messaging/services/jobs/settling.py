"""How a worker settles a lease without a claim, and what it logs about leases that can't be settled."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...core.operations import perform
from ...errors import MessagingError
from .engine import Engine
from .leases import Settlement

logger = logging.getLogger(__name__)


class Settler:
    """Settles leases one at a time."""

    def __init__(self, engine: Engine, using: str) -> None:
        self._engine = engine
        self._using = using

    def settle(self, settlement: Settlement) -> None:
        """Settle a lease; raises MessagingError."""
        follow_up = settlement.follow_up
        if follow_up is None:
            applied: int | None = perform(self._using, self._engine.settle(settlement))
        else:
            applied = perform(self._using, self._engine.settle_and_push(settlement, follow_up))
            if applied:
                follow_up.pushed(applied)
        if applied is not None and not applied:
            log_lost_lease(settlement)

    def try_settle(self, settlement: Settlement) -> bool:
        """Settle a lease; returns False if that has to be repeated."""
        try:
            self.settle(settlement)
        except MessagingError:
            return False
        return True


def log_lost_lease(settlement: Settlement) -> None:
    """Log that a settlement was refused."""
    job_id, outcome = settlement.lease.id, settlement.outcome.value
    logger.warning("Job id=%s ended (%s), but its lease was lost; refused.", job_id, outcome)


def log_unsettled(settlements: Sequence[Settlement], error: MessagingError) -> None:
    """Log that leases could not be settled before the worker ended."""
    ids = ", ".join(one.lease.id for one in settlements)
    logger.warning("Settling failed; delivered again when the leases end: jobs id=%s: %s", ids, error)
