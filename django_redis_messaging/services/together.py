"""Several loops in one process: worker, poller and listener, for small sites and development."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

logger = logging.getLogger(__name__)

#: seconds: a signal that comes just before a thread begins to wait does not end its waiting
LOOK = 1.0
#: seconds that loops get to end at once: one may be waiting for a Redis that does not answer
CLOSING = 10.0


class Loop(Protocol):
    """Runs until it is stopped: a worker, a poller, a listener. One that ends by an error that it has
    logged says so by an attribute `failed`."""

    def run(self) -> None:
        """Run until stopped."""

    def stop(self) -> None:
        """Begin nothing more; a second time: end at once. Safe in a signal handler."""


class Together:
    """Runs loops, each in a thread of its own, as if they were one. Whichever ends, by an error or by
    itself, takes the others along: they let what runs come to its end."""

    def __init__(self, loops: Mapping[str, Loop], *, max_time: float | None = None) -> None:
        #: names of the loops that ended by an error
        self.failed: list[str] = []
        self._loops = dict(loops)
        self._max_time = max_time
        #: a name: that loop has ended; None: stop. No Event, whose set() in a signal handler could wait
        #: for itself
        self._told: SimpleQueue[str | None] = SimpleQueue()

    def stop(self) -> None:
        """Let all of them drain; a second time, end at once. Safe to call from a signal handler."""
        self._told.put(None)

    def run(self) -> None:
        """Run them until they are stopped, for `max_time` seconds at most, or until one of them ends."""
        ends = None if self._max_time is None else monotonic() + self._max_time
        for name in self._loops:
            threading.Thread(target=self._guarded, args=(name,), name=name, daemon=True).start()
        left, stops = set(self._loops), 0
        while left:
            told = self._next(ends)
            if told is not None:
                left.discard(told)
                if stops:
                    continue
            elif stops > 1 and ends is not None and monotonic() >= ends:
                logger.warning("Left behind, for it does not end: %s.", ", ".join(sorted(left)))
                return
            stops += 1
            ends = None if stops == 1 else monotonic() + CLOSING
            for name in left:
                self._loops[name].stop()

    def _next(self, ends: float | None) -> str | None:
        """Which loop has ended; None where they are to stop: somebody says so, or it is time."""
        while ends is None or monotonic() < ends:
            left = LOOK if ends is None else min(LOOK, max(ends - monotonic(), 0))
            with suppress(Empty):
                return self._told.get(timeout=left)
        return None

    def _guarded(self, name: str) -> None:
        loop = self._loops[name]
        try:
            loop.run()
        except Exception:
            logger.exception("The %s failed: all that runs beside it ends, too.", name)
            self.failed.append(name)
        else:
            if getattr(loop, "failed", False):
                self.failed.append(name)
        finally:
            self._told.put(name)
