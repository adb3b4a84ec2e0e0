"""Which lanes of a worker may claim a job: at most so many jobs in all, and none beside a job that must run
alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class Admission:
    """Admits lanes that want to claim a job.

    A job that has to run alone comes first: while it waits for the running ones to end, and while it runs, no
    lane is admitted.
    """

    def __init__(self, max_tasks: int | None = None) -> None:
        #: jobs that were started and ended
        self.done = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        #: lanes that wait for a change
        self._waiting = 0
        #: jobs that may still be started
        self._left = math.inf if max_tasks is None else max_tasks
        #: lanes that claim or run a job
        self._inside = 0
        #: jobs that have ended, but are not settled yet: a process that ends now would lose their ends
        self._unsettled = 0
        #: lanes that run a job alone, or wait for that
        self._exclusive = 0
        #: whether a lane runs a job that must run alone, or at least beside no other of its kind
        self._runs_isolated_job = False
        self._closed = False

    def enter(self, *, wait: bool) -> bool:
        """Whether a lane may claim a job; with `wait`, wait until it may. False once this is closed."""
        with self._lock:
            while self._closed or self._exclusive or self._left < 1:
                if self._closed or not wait:
                    return False
                self._wait()
            self._inside += 1
            self._left -= 1
            return True

    def leave(self, *, started: bool, unsettled: bool = False) -> None:
        """Report that an admitted lane has ended its job, or started none; `unsettled`: `settled` follows."""
        with self._lock:
            self._inside -= 1
            self._unsettled += unsettled
            if started:
                self.done += 1
            else:
                self._left += 1
            if self._waiting:
                self._changed.notify_all()

    def settled(self) -> None:
        """Report that a job is settled."""
        with self._lock:
            self._unsettled -= 1
            if self._waiting:
                self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether no lane will be admitted any more."""
        return self._closed

    @contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """Wait until all other jobs have ended and are settled, `seconds` at most; admit no lane in this
        block, which an admitted lane enters.

        Yields False if this was closed, or other jobs still run: the job must not be started.
        """
        ends = monotonic() + seconds
        with self._lock:
            self._exclusive += 1
            self._inside -= 1  # two lanes that wait must not wait for each other
            self._changed.notify_all()
            while self._is_busy and not self._closed and (left := ends - monotonic()) > 0:
                self._wait(left)
            may_start = not self._is_busy and not self._closed
            self._inside += 1
            self._runs_isolated_job = self._runs_isolated_job or may_start
        try:
            yield may_start
        finally:
            with self._lock:
                self._exclusive -= 1
                self._runs_isolated_job = self._runs_isolated_job and not may_start
                self._changed.notify_all()

    @contextmanager
    def beside(self) -> Iterator[bool]:
        """As `alone`, but other jobs may run in this block, except those that must run alone."""
        with self._lock:
            may_start = not self._runs_isolated_job and not self._closed
            self._runs_isolated_job = self._runs_isolated_job or may_start
        try:
            yield may_start
        finally:
            with self._lock:
                self._runs_isolated_job = self._runs_isolated_job and not may_start

    @property
    def _is_busy(self) -> bool:
        return self._inside > 0 or self._unsettled > 0

    def close(self) -> None:
        """Admit no more lanes, and end all waits."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, seconds: float | None = None) -> None:
        self._waiting += 1
        self._changed.wait(seconds)
        self._waiting -= 1
