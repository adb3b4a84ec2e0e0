"""How a worker works, and when it ends by itself."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How a worker works, and when it ends by itself."""

    #: tasks at a time
    concurrency: int = 4
    #: seconds a lease lasts; it is extended at each third
    lease: float = 30.0
    #: end when nothing is ready
    burst: bool = False
    #: end after so many tasks
    max_tasks: int | None = None
    #: end when the process holds so much memory (MiB)
    max_memory: int | None = None
    #: end after so many seconds
    max_time: float | None = None
    #: seconds that running tasks get to end, once the worker is to stop
    drain: float = 30.0


#: what is usual, where nothing else is said
USUAL = Limits()


def resident_memory() -> int:
    """MiB that this process holds; 0 where the system doesn't tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20
    except OSError:
        return 0
