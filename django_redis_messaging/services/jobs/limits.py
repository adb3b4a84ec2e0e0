"""Options of a worker, and the limits at which it ends."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Options of a worker, and the limits at which it ends."""

    #: jobs that run at a time
    concurrency: int = 4
    #: seconds that a lease lasts; it is extended after each third
    lease: float = 30.0
    #: end when no job is ready
    burst: bool = False
    #: end after this many jobs
    max_tasks: int | None = None
    #: end when the process uses more memory than this: MiB
    max_memory: int | None = None
    #: end after this many seconds
    max_time: float | None = None
    #: seconds that running jobs get to finish when the worker is stopped
    drain: float = 30.0

    def reached(self, done: int) -> bool:
        """Whether the worker must start no more jobs, after so many."""
        if self.max_memory is not None and (used := resident_memory()) > self.max_memory:
            logger.info("Using %d MiB, more than %d MiB; stopping.", used, self.max_memory)
            return True
        return self.max_tasks is not None and done >= self.max_tasks


DEFAULT_LIMITS = Limits()


def resident_memory() -> int:
    """Memory of this process in MiB; 0 where the system has no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except OSError:
        return 0
