"""What a worker runs: jobs, with their timeouts."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ...errors import TaskTimeout
from .leases import HELD, LeasedJob, Outcome, Settlement

logger = logging.getLogger(__name__)

#: seconds between two checks for timeouts while no job runs
IDLE_INTERVAL = 1.0
#: seconds between two checks while jobs run, at most: a job that has just started may have a shorter timeout
#: than those checked
TIMEOUT_INTERVAL = 0.5
#: seconds between two checks, at least
MIN_INTERVAL = 0.01


class NotStarted(Exception):
    """An attempt can't be started, now or at all."""

    def __init__(self, settlement: Settlement | None) -> None:
        #: of the lease; None if another worker may have it
        self.settlement = settlement
        super().__init__(settlement)


@dataclass(eq=False)
class RunningJob:
    """A job that a worker runs."""

    leased: LeasedJob
    #: runs a coroutine on the worker's event loop and returns its result
    run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any]
    #: the block in which an attempt at a held job runs; raises NotStarted
    starting: Callable[[RunningJob], AbstractContextManager[object]] = nullcontext
    #: called when a call with a short timeout has begun
    on_short_timeout: Callable[[], object] = lambda: None
    thread: int = field(default_factory=threading.get_ident)
    #: when the call began: monotonic; None before
    started: float | None = None
    #: seconds the call may take; None: any time
    timeout: float | None = None
    #: whether another worker may have the job now
    lease_lost: bool = False
    #: whether the worker released the job because the worker ends
    released: bool = False
    #: prevents a timeout from being raised after the call
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _is_calling: bool = False
    _timed_out: bool = False

    def settled(self, outcome: Outcome, ms: int = 0, line: str = "") -> Settlement:
        """The job's lease with its outcome."""
        return self.leased.lease.settled(outcome, ms, line)

    @property
    def overdue(self) -> float:
        """Seconds since the timeout; negative before, and without a timeout."""
        if self.timeout is None or self.started is None:
            return -1.0
        return monotonic() - self.started - self.timeout

    def start(self) -> AbstractContextManager[object]:
        """Make the attempt in this block; raises NotStarted. Nothing that the job calls runs before it."""
        if self.leased.state.status == HELD:
            return self._start_held()
        self._check_lease()  # the claim has started it
        return nullcontext()

    @contextmanager
    def _start_held(self) -> Iterator[None]:
        with self.starting(self):
            self._check_lease()
            yield

    def _check_lease(self) -> None:
        if self.released or self.lease_lost:  # another worker may have the job by now
            raise NotStarted(None)

    def call(self, function: Callable[[], Any], timeout: float | None = None) -> Any:
        """Call a function; after `timeout` seconds, TaskTimeout is raised in it."""
        with self._guard:
            self._count_from_now(timeout)
            self._is_calling = True
        if timeout is not None and timeout < IDLE_INTERVAL:
            self.on_short_timeout()
        try:
            return function()
        finally:
            with self._guard:
                self._is_calling = False

    def call_async(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine; after `timeout` seconds it is cancelled, and this raises TaskTimeout."""
        self._count_from_now(timeout)
        return self.run_coroutine(_within(coroutine, timeout))

    def _count_from_now(self, timeout: float | None) -> None:
        self.started, self.timeout = monotonic(), timeout

    def interrupt(self) -> None:
        """Raise TaskTimeout in the thread that calls, once. A call that waits inside the system notices when
        it returns from there."""
        with self._guard:
            if self._is_calling and not self._timed_out:
                self._timed_out = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread), ctypes.py_object(TaskTimeout)
                )


async def _within(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as error:
        if limit.expired():
            raise TaskTimeout(f"The call took longer than {seconds:g} s.") from error
        raise


class RunningJobs:
    """The jobs that the lanes of a worker run now."""

    def __init__(self) -> None:
        self._jobs: set[RunningJob] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(list(self._jobs))  # a copy: lanes add and remove jobs at any time

    def add(self, job: RunningJob) -> None:
        """Add a job that starts."""
        self._jobs.add(job)

    def discard(self, job: RunningJob) -> None:
        """Remove a job that has ended."""
        self._jobs.discard(job)

    def interrupt_overdue(self) -> None:
        """Interrupt the jobs whose time is up."""
        for job in self:
            if job.overdue >= 0:
                job.interrupt()

    def seconds_to_check(self) -> float:
        """Seconds until a timeout may have to be handled."""
        if not self._jobs:
            return IDLE_INTERVAL
        due = [-job.overdue for job in self if job.timeout is not None and job.overdue < 0]
        return max(min([TIMEOUT_INTERVAL, *due]), MIN_INTERVAL)

    def with_leases(self, length: float) -> list[RunningJob]:
        """The jobs whose leases must be extended by `length` seconds. Left out: released ones, and those that
        should have timed out long ago."""
        return [job for job in self if job.overdue < length and not job.released]

    def mark_lost(self, jobs: Iterable[RunningJob]) -> None:
        """Mark jobs whose leases were lost, unless they have ended by now."""
        for job in jobs:
            if job in self._jobs and not job.lease_lost:
                job.lease_lost = True
                logger.warning("Job id=%s lost its lease while it ran.", job.leased.lease.id)
