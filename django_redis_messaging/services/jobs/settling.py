"""How a worker settles a lease without a claim, and what it logs about leases that can't be settled."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from ... import conf
from ...core.operations import perform
from ...errors import MessagingError, OutcomeUnknown
from .engine import Engine
from .leases import Settlement

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Outage:
    """Failures of a lane to reach Redis, in a row."""

    failures: int = 0
    #: whether a request was sent without a reply: it may have been applied
    unanswered: bool = False
    #: whether it has lasted for COMMAND_DEADLINE
    is_long: bool = False
    _began: float = field(default_factory=monotonic)

    def add(self, error: MessagingError) -> None:
        """Add a failure."""
        self.failures += 1
        is_unknown = isinstance(error, OutcomeUnknown)
        self.unanswered = self.unanswered or is_unknown
        # other errors are raised after retries for so long, or no retry helps
        self.is_long = not is_unknown or monotonic() - self._began >= conf.current().COMMAND_DEADLINE


class Settler:
    """Settles leases one at a time."""

    def __init__(self, engine: Engine, using: str) -> None:
        self._engine = engine
        self._using = using

    def settle(self, settlement: Settlement, *, is_repeat: bool = False) -> None:
        """Settle a lease; raises MessagingError. `is_repeat`: it may have been settled before."""
        follow_up = settlement.follow_up
        if follow_up is None:
            applied: int | None = perform(self._using, self._engine.settle(settlement))
        else:
            applied = perform(self._using, self._engine.settle_and_push(settlement, follow_up))
            if applied:
                follow_up.pushed(applied)
        if applied is not None and not applied and not is_repeat:
            log_lost_lease(settlement)

    def try_settle(self, settlement: Settlement, outage: Outage) -> bool:
        """Settle a lease in an outage; returns False if that has to be repeated."""
        try:
            self.settle(settlement, is_repeat=outage.unanswered)
        except OutcomeUnknown:
            outage.unanswered = True
            return False
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
