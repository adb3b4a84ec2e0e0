"""Tasks that this code doesn't define: during a rolling deploy, newer code may have enqueued them."""

from __future__ import annotations

import logging

from ..services.jobs.leases import Outcome, Settlement
from ..services.jobs.running import RunningJob
from .records import UnknownTask, failed, run_after

logger = logging.getLogger(__name__)

#: seconds for which an unknown task is retried after it was due first; then it is moved to dead letters
UNKNOWN_TASK_WINDOW = 3600.0
#: seconds before the first retry
FIRST_DELAY = 1.0
#: seconds between two retries, at most
MAX_DELAY = 60.0


def settle_unknown(running: RunningJob, error: UnknownTask) -> Settlement:
    """Release a job whose task is unknown, uncounted; it is ready again after a delay. Once the window is
    over, it is dead."""
    leased, job_id = running.leased, running.leased.lease.id
    # by the server's clock: the time of this claim, and that of the enqueueing or of run_after
    age = (leased.state.last - max(leased.state.pushed, run_after(leased.payload))) / 1000
    if age >= UNKNOWN_TASK_WINDOW:
        return running.settled(Outcome.DEAD, line=failed(error))
    # as long as it has waited already: this doubles the delay with each retry
    delay = min(max(age, FIRST_DELAY), MAX_DELAY)
    logger.warning("Job id=%s was not started, retrying in %.1f s: %s", job_id, delay, error)
    return running.settled(Outcome.RELEASE, round(delay * 1000))
