"""The heartbeat of a worker, which also keeps the leases of its running jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from ...core.failures import log_exception
from ...core.operations import perform_renewal
from ...core.retry import time_left
from ...errors import MessagingError
from ..renewing import Renewal
from .engine import Engine
from .running import RunningJobs

logger = logging.getLogger(__name__)


class Heartbeat:
    """Extends the leases of the running jobs in one call, and stores the state of the worker: after each
    third of a lease, in a thread."""

    def __init__(
        self,
        engine: Engine,
        using: str,
        worker: str,
        running: RunningJobs,
        lease: float,
        done: Callable[[], int],
        on_failure: Callable[[], object],
    ) -> None:
        #: whether a claim was answered since the last heartbeat
        self.consumed = False
        self._engine = engine
        self._using = using
        self._worker = worker
        self._running = running
        self._lease = lease
        self._done = done
        self._on_failure = on_failure
        self._failed = False
        #: start of the worker by the server's clock: ms; 0 before the first heartbeat
        self._started = 0
        self._ending = False
        self._renewal = Renewal(self._beat, lease / 3, f"worker {worker}")

    def start(self) -> None:
        """Send the first heartbeat, and go on."""
        self._renewal.start(at_once=True)

    def stop(self) -> None:
        """Stop, and wait for a heartbeat in progress, until the deadline."""
        self._ending = True
        left = time_left()
        self._renewal.stop(None if math.isinf(left) else max(left, 0))

    def _beat(self) -> bool:
        """For the renewal: always True. An unexpected error ends the worker; leases are kept until then."""
        try:
            self.keep_leases()
            self.report()
        except MessagingError as error:
            if not self._ending:
                logger.warning("Heartbeat failed, retrying in %.1f s: %s", self._lease / 3, error)
        except BaseException as error:  # SystemExit too: the thread must not end
            if not self._failed:
                self._failed = True
                self._on_failure()
                log_exception(logger, error, "The heartbeat of worker %s failed; stopping.", self._worker)
        return True

    def keep_leases(self) -> None:
        """Extend the leases of running jobs."""
        kept = self._running.with_leases()
        if not kept:
            return
        leases = [running.leased.lease for running in kept]
        in_force = perform_renewal(self._using, self._engine.extend(leases, round(self._lease * 1000)))
        self._running.mark_lost([one for one, kept_on in zip(kept, in_force, strict=True) if not kept_on])

    def report(self) -> None:
        """Store the state of the worker, unless it is ending."""
        if self._ending:
            return
        beat = self._engine.beat(
            self._worker,
            consumed=self.consumed,
            started=self._started,
            running=len(self._running),
            done=self._done(),
        )
        now = perform_renewal(self._using, beat)
        self._started = self._started or now
        self.consumed = False
