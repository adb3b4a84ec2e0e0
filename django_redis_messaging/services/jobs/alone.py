"""Jobs that have lost two workers, and may have ended them: each is started alone in its process. If it ends
this process, too, it takes no others with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import monotonic

from ...core.operations import perform
from ...errors import MessagingError
from .admission import Admission
from .engine import Engine
from .leases import Outcome, State
from .running import NotStarted, RunningJob

logger = logging.getLogger(__name__)

#: seconds for which one job may keep the other lanes from claiming, in all its waits together
MAX_PAUSE = 5.0
#: seconds for which a job that could not be started is released, so that other workers can claim it; doubled
#: with each failed try, up to the maximum
FIRST_DELAY, MAX_DELAY = 1.0, 60.0
#: failed tries, in about 10 minutes, after which a job is started beside others
MAX_TRIES = 15
#: jobs that a worker remembers
MAX_REMEMBERED = 1000


@dataclass(slots=True)
class _Tries:
    """The tries to start one job."""

    #: seconds for which it may still keep the other lanes waiting
    pause: float = field(default_factory=lambda: MAX_PAUSE)
    #: since it was started last
    failed_tries: int = 0

    @property
    def delay(self) -> float:
        """Seconds until the next try."""
        return float(min(FIRST_DELAY * 2 ** min(self.failed_tries - 1, MAX_TRIES), MAX_DELAY))


class LoneStarts:
    """Starts jobs for the lanes of one worker.

    A job waits until no other one runs, and the other lanes claim none meanwhile: for MAX_PAUSE in all. Then
    it is released, so that an idle worker gets it. If none is idle for long, it is started beside others, but
    not beside a second one that may have ended its workers.
    """

    def __init__(self, engine: Engine, using: str, worker: str, admission: Admission) -> None:
        self._engine = engine
        self._using = using
        self._worker = worker
        self._admission = admission
        self._lock = threading.Lock()
        self._tries: dict[str, _Tries] = {}
        #: no job waits before this moment: monotonic
        self._no_wait_until = 0.0

    @contextmanager
    def start(self, running: RunningJob) -> Iterator[None]:
        """Start an attempt at a held job in this block. Raises NotStarted."""
        leased = running.leased
        tries = self._tries_of(leased.lease.id)
        with self._admitted(tries) as may_start:
            if not may_start:
                raise NotStarted(running.settled(Outcome.RELEASE, self._delay(leased.lease.id, tries)))
            running.leased = leased._replace(state=self._begin(running))
            tries.failed_tries = 0
            yield

    def _tries_of(self, job_id: str) -> _Tries:
        with self._lock:
            tries = self._tries.setdefault(job_id, _Tries())
            if len(self._tries) > MAX_REMEMBERED:
                del self._tries[next(iter(self._tries))]
            return tries

    def _admitted(self, tries: _Tries) -> AbstractContextManager[bool]:
        if tries.failed_tries >= MAX_TRIES:
            return self._admission.beside()
        return self._alone(tries)

    @contextmanager
    def _alone(self, tries: _Tries) -> Iterator[bool]:
        """Wait until the job may be started alone. For as long as that lasted, no other job waits then."""
        began = monotonic()
        with self._admission.alone(0.0 if began < self._no_wait_until else tries.pause) as is_alone:
            now = monotonic()
            tries.pause = max(tries.pause - (now - began), 0.0)
            if not is_alone:
                with self._lock:
                    self._no_wait_until = max(self._no_wait_until, now + (now - began))
            yield is_alone

    def _begin(self, running: RunningJob) -> State:
        lease = running.leased.lease
        try:
            state = perform(self._using, self._engine.begin(lease, self._worker))
        except MessagingError as error:
            logger.warning("Starting job id=%s failed; released: %s", lease.id, error)
            raise NotStarted(running.settled(Outcome.RELEASE)) from error
        if state is None:
            raise NotStarted(None)
        return state

    def _delay(self, job_id: str, tries: _Tries) -> int:
        """The delay (ms) of a job that could not be started."""
        if self._admission.is_closed:
            return 0
        tries.failed_tries += 1
        logger.info(
            "Job id=%s was not started, since other jobs run in this process; released for %.0f s.",
            job_id, tries.delay,
        )  # fmt: skip
        return round(tries.delay * 1000)
