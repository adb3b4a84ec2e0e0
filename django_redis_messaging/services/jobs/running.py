"""What a worker runs: jobs, with their timeouts; and the event loop on which their coroutines run."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ...core import clients
from ...errors import TaskTimeout
from .leases import LeasedJob, Outcome, Settlement

logger = logging.getLogger(__name__)

#: seconds between two checks for timeouts while no job runs
IDLE_INTERVAL = 1.0
#: seconds between two checks while jobs run, at most: a job that has just started may have a shorter timeout
#: than those checked
TIMEOUT_INTERVAL = 0.5
#: seconds between two checks, at least
MIN_INTERVAL = 0.01
#: seconds that coroutines get to end when they are cancelled
CLOSING_TIMEOUT = 5.0


@dataclass(eq=False)
class RunningJob:
    """A job that a worker runs."""

    leased: LeasedJob
    #: runs a coroutine on the worker's event loop and returns its result
    run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any]
    thread: int = field(default_factory=threading.get_ident)
    started: float = field(default_factory=monotonic)
    #: seconds it may take; None: any time
    timeout: float | None = None
    #: whether another worker may have the job now
    lease_lost: bool = False
    #: whether the worker released the job because the worker ends
    released: bool = False
    #: whether the attempt ended before the call: the job doesn't count as done
    deferred: bool = False
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
        return -1.0 if self.timeout is None else monotonic() - self.started - self.timeout

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function; a timeout raises TaskTimeout in it."""
        with self._guard:
            self._is_calling = True
        try:
            return function()
        finally:
            with self._guard:
                self._is_calling = False

    def interrupt(self) -> None:
        """Raise TaskTimeout in the thread that calls, once. A call that waits inside the system notices when
        it returns from there."""
        with self._guard:
            if self._is_calling and not self._timed_out:
                self._timed_out = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread), ctypes.py_object(TaskTimeout)
                )


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


class EventLoop:
    """One event loop, in a thread that starts with the first coroutine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine there, and return its result."""
        with self._lock:
            if self._running is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run_forever, args=(loop,), name="event loop", daemon=True)
                thread.start()
                self._running = loop, thread
            loop, _ = self._running
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def close(self) -> None:
        """Stop the loop, after cancelling what still runs there."""
        if self._running is None:
            return
        loop, thread = self._running
        try:
            asyncio.run_coroutine_threadsafe(_end(loop), loop).result(CLOSING_TIMEOUT)
        except TimeoutError:
            logger.warning(
                "A coroutine did not end within %g s after it was cancelled; its thread keeps running.",
                CLOSING_TIMEOUT,
            )
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await clients.aclose()
    await loop.shutdown_asyncgens()
