"""What a call holds while it runs: its lock, and a permit of its semaphore.

A lane of the worker acquires both without waiting. If one of them is not free, the job is released with a
delay, and the lane claims another job.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import NamedTuple

from ..core.keys import current_prefix
from ..core.operations import Script, Steps, perform
from ..errors import LeaseLost, MessagingError
from ..services.jobs.leases import Outcome, Settlement
from ..services.jobs.running import RunningJob
from ..services.locks import Lock
from ..services.semaphores import Semaphore
from ..services.semaphores.steps import LIMIT_TTL
from .compat import Task
from .keys import ConcurrencyKeys
from .names import Needs
from .task import RedisTask

logger = logging.getLogger(__name__)

#: seconds before a call whose lock or permit was not free is tried again
RETRY_DELAY = 1.0
#: seconds between two retries that one process schedules for the same lock or semaphore
RETRY_INTERVAL = 0.01
#: seconds between two declarations of the same limit by one process
DECLARE_INTERVAL = 60.0
#: locks and semaphores for which a process remembers moments
MAX_REMEMBERED = 10_000

#: makes an attempt with the fence of the lock, 0 without one
Attempt = Callable[[int], Settlement | None]


class Guard(NamedTuple):
    """The lock and the semaphore of one attempt, in the order in which they are acquired."""

    #: the lock first: other calls need the semaphore more often than the same lock, so that it should not be
    #: acquired in vain
    parts: Sequence[Lock | Semaphore]
    #: limit of the semaphore
    limit: int


class Moments:
    """Moments (monotonic) for the keys that were used last."""

    def __init__(self) -> None:
        self._moments: dict[Hashable, float] = {}
        self._guard = threading.Lock()

    def advance(self, key: Hashable, earliest: float, step: float) -> float:
        """Set the moment of a key to `earliest`, or to `step` seconds after its last one if that is later;
        returns it."""
        with self._guard:
            last = self._moments.pop(key, None)
            moment = earliest if last is None else max(earliest, last + step)
            self._moments[key] = moment  # as the newest one
            if len(self._moments) > MAX_REMEMBERED:
                del self._moments[next(iter(self._moments))]
        return moment

    def get(self, key: Hashable) -> float | None:
        """The moment of a key, or None."""
        return self._moments.get(key)


class Guards:
    """Acquires and releases what the calls of one worker need."""

    def __init__(self, using: str, lease: float) -> None:
        self._using = using
        self._lease = lease
        self._retries = Moments()
        self._declared = Moments()

    def guard(self, needs: Needs, task: Task) -> Guard:
        """What an attempt at a call has to acquire; raises InvalidArgument for an invalid name."""
        limit = needs.limit
        if limit is None and isinstance(task, RedisTask):
            limit = task.concurrency
        parts: list[Lock | Semaphore] = []
        if needs.lock:
            lock = Lock(needs.lock, timeout=self._lease, blocking=False, renew=True, using=self._using)
            parts.append(lock)
        if needs.semaphore and limit is not None:
            parts.append(
                Semaphore(needs.semaphore, limit, timeout=self._lease, renew=True, using=self._using)
            )
        return Guard(parts, limit or 0)

    def run(self, guard: Guard, running: RunningJob, attempt: Attempt) -> Settlement | None:
        """Make an attempt that holds the lock and the permit; if one is not free, release the job."""
        held: list[Lock | Semaphore] = []
        try:
            for part in guard.parts:
                try:
                    acquired = self._acquire(part, guard.limit)
                except MessagingError as error:
                    return self._defer(part, running, error)
                if not acquired:
                    return self._defer(part, running)
                held.append(part)
            return attempt(next((part.fence for part in held if isinstance(part, Lock)), 0))
        finally:
            for part in reversed(held):
                _release(part, running)

    def _acquire(self, part: Lock | Semaphore, limit: int) -> bool:
        if isinstance(part, Semaphore):
            self._declare(part.name, limit)
        return part.acquire()

    def _defer(
        self, part: Lock | Semaphore, running: RunningJob, error: MessagingError | None = None
    ) -> Settlement:
        """Release the job, uncounted; it is ready again after a delay."""
        now = monotonic()
        retry_at = self._retries.advance((type(part), part.name), now + RETRY_DELAY, RETRY_INTERVAL)
        seconds = retry_at - now
        if error is not None:
            job_id = running.leased.lease.id
            logger.warning(
                "Acquiring %r for job id=%s failed, retrying in %.1f s: %s", part, job_id, seconds, error
            )
        return running.settled(Outcome.RELEASE, math.ceil(seconds * 1000))

    def _declare(self, name: str, limit: int) -> None:
        """Put the limit that the code declares into force, unless this process has done so recently."""
        now, prefix = monotonic(), current_prefix()
        declared = self._declared.get((prefix, name, limit))
        if declared is None or now - declared >= DECLARE_INTERVAL:
            perform(self._using, _declare_limit(ConcurrencyKeys(prefix, name), limit))
            self._declared.advance((prefix, name, limit), now, 0)


def _declare_limit(keys: ConcurrencyKeys, limit: int) -> Steps[None]:
    yield Script("tasks_limit", [keys.limit, keys.declared], [limit, LIMIT_TTL])


def _release(part: Lock | Semaphore, running: RunningJob) -> None:
    """Release what an attempt held. The attempt has ended, so a failure is logged and not raised."""
    job_id = running.leased.lease.id
    try:
        part.release()
    except LeaseLost:
        logger.warning("The lease of %r ended before job id=%s: others may have held it.", part, job_id)
    except MessagingError as error:
        logger.warning(
            "Releasing %r after job id=%s failed; it is free when its lease ends: %s", part, job_id, error
        )
