"""Tasks that this code doesn't define: during a rolling deploy, newer code may have enqueued them."""

from __future__ import annotations

import logging

from ..core.operations import perform
from ..errors import MessagingError
from ..services.jobs.leases import JobRecord, Outcome, Settlement
from ..services.jobs.running import RunningJob
from .backend import RedisBackend
from .records import UNKNOWN, UnknownTask, failed

logger = logging.getLogger(__name__)

#: seconds for which an unknown task is retried after a worker has found it unknown first; then it is moved to
#: dead letters
UNKNOWN_TASK_WINDOW = 3600.0
#: seconds before the first retry
FIRST_DELAY = 1.0
#: seconds between two retries, at most
MAX_DELAY = 60.0


def settle_unknown(backend: RedisBackend, running: RunningJob, error: UnknownTask) -> Settlement:
    """Release a job whose task is unknown, uncounted; it is ready again after a delay. Once the window is
    over, it is dead. The first release adds a line to the log of the job, from which the window counts."""
    lease = running.leased.lease
    try:
        record = perform(backend.using, backend.engine.get(lease.id))
    except MessagingError as failure:
        logger.warning("Reading job id=%s failed; released: %s", lease.id, failure)
        return running.settled(Outcome.RELEASE, round(FIRST_DELAY * 1000))
    now = lease.fence // 1000  # of this claim, by the server's clock
    since = _found_unknown_at(record)
    age = 0.0 if since is None else (now - since) / 1000
    if age >= UNKNOWN_TASK_WINDOW:
        return running.settled(Outcome.DEAD, line=failed(error))
    # as long as it has been retried already: this doubles the delay with each retry
    delay = min(max(age, FIRST_DELAY), MAX_DELAY)
    logger.warning("Job id=%s was not started, retrying in %.1f s: %s", lease.id, delay, error)
    return running.settled(Outcome.RELEASE, round(delay * 1000), f"{UNKNOWN}{now}" if since is None else "")


def _found_unknown_at(record: JobRecord | None) -> int | None:
    """When the task was found unknown first (ms); None if that is new, or something else has happened to the
    job since: it was rescheduled, redriven, or run by newer code."""
    last = "" if record is None else record.log.decode().rpartition("\n")[2]
    return int(last[1:]) if last.startswith(UNKNOWN) else None
