"""Jobs whose worker was lost before: each is started alone in its process. If it ends this process, too, it
takes no others with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from ...core.operations import perform
from ...errors import MessagingError
from .admission import Admission
from .engine import Engine
from .leases import Outcome, State
from .running import NotStarted, RunningJob

logger = logging.getLogger(__name__)

#: seconds for which a job waits until no other one runs, at first; doubled with each wait in vain
FIRST_WAIT = 5.0
#: seconds for which a job waits, at most
MAX_WAIT = 3600.0
#: delay of a job that waited in vain, as a part of its wait: other workers can claim it before this one waits
#: again
DELAY = 0.2
#: jobs whose waits in vain a worker remembers
MAX_REMEMBERED = 1000


class LoneStarts:
    """Starts jobs for the lanes of one worker.

    A wait is limited: then the job is released, so that an idle worker gets it. For as long as it lasted, the
    lanes claim other jobs, and no job waits.
    """

    def __init__(self, engine: Engine, using: str, worker: str, admission: Admission) -> None:
        self._engine = engine
        self._using = using
        self._worker = worker
        self._admission = admission
        self._lock = threading.Lock()
        #: the next wait of jobs that have waited in vain: seconds
        self._waits: dict[str, float] = {}
        #: no job waits before this moment: monotonic
        self._no_wait_until = 0.0

    @contextmanager
    def start(self, running: RunningJob) -> Iterator[None]:
        """Start an attempt at a held job in this block: when no other job runs; and none is started in the
        block. Raises NotStarted."""
        leased = running.leased
        seconds = 0.0 if monotonic() < self._no_wait_until else self._wait_of(leased.lease.id)
        with self._admission.alone(seconds) as is_alone:
            if not is_alone:
                raise NotStarted(running.settled(Outcome.RELEASE, self._delay(leased.lease.id, seconds)))
            running.leased = leased._replace(state=self._begin(running))
            yield

    def _begin(self, running: RunningJob) -> State:
        lease = running.leased.lease
        try:
            state = perform(self._using, self._engine.begin(lease, self._worker))
        except MessagingError as error:
            logger.warning("Starting job id=%s failed; released: %s", lease.id, error)
            raise NotStarted(running.settled(Outcome.RELEASE)) from error
        if state is None:
            raise NotStarted(None)
        with self._lock:
            self._waits.pop(lease.id, None)
        return state

    def _wait_of(self, job_id: str) -> float:
        return self._waits.get(job_id, FIRST_WAIT)

    def _delay(self, job_id: str, waited: float) -> int:
        """The delay (ms) of a job that could not be started, after a wait of so many seconds."""
        if self._admission.is_closed:
            return 0
        wait = self._wait_of(job_id)
        if waited:
            with self._lock:
                self._waits[job_id] = min(2 * waited, MAX_WAIT)
                if len(self._waits) > MAX_REMEMBERED:
                    del self._waits[next(iter(self._waits))]
                self._no_wait_until = max(self._no_wait_until, monotonic() + waited)
        logger.info("Job id=%s was not started, since other jobs run in this process; released.", job_id)
        return round(wait * DELAY * 1000)
