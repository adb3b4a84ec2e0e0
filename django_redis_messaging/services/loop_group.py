"""Runs several loops in one process: worker, poller and listener, for small sites and development."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol

from ..core.failures import LoopGuard

logger = logging.getLogger(__name__)

#: seconds; bounds each wait, since a signal that arrives just before a thread begins to wait doesn't end
#: the wait
POLL_INTERVAL = 1.0
#: seconds to wait for loops to end after the second stop(): one may be waiting for an unreachable Redis
STOP_TIMEOUT = 10.0


class Loop(Protocol):
    """Runs until it is stopped: a worker, a poller, a listener. A loop that ended because of an error that it
    has logged has a true attribute `failed`."""

    def run(self) -> None:
        """Run until stopped."""

    def stop(self) -> None:
        """Finish what is running and begin nothing more; a second call ends the loop at once. Safe in a
        signal handler."""


class LoopGroup:
    """Runs loops as if they were one, each in its own thread. When one of them ends, for whatever reason, the
    others are stopped: they finish what is running."""

    def __init__(self, loops: Mapping[str, Loop], *, max_time: float | None = None) -> None:
        #: names of the loops that ended because of an error
        self.failed: list[str] = []
        self._loops = dict(loops)
        self._max_time = max_time
        #: the name of a loop that has ended, or None for a stop. Not an Event: its set() in a signal handler
        #: could deadlock
        self._events: SimpleQueue[str | None] = SimpleQueue()

    def stop(self) -> None:
        """Let all loops finish what is running; a second call ends them at once. Safe in a signal handler."""
        self._events.put(None)

    def run(self) -> None:
        """Run the loops until they are stopped, for `max_time` seconds at most, or until one of them ends."""
        ends = None if self._max_time is None else monotonic() + self._max_time
        for name in self._loops:
            threading.Thread(target=self._run_loop, args=(name,), name=name, daemon=True).start()
        running, stops = set(self._loops), 0
        while running:
            ended = self._next_event(ends)
            if ended is not None:
                running.discard(ended)
                if stops:
                    continue
            elif stops > 1 and ends is not None and monotonic() >= ends:
                logger.warning("Exiting though these loops have not ended: %s.", ", ".join(sorted(running)))
                return
            stops += 1
            ends = None if stops == 1 else monotonic() + STOP_TIMEOUT
            for name in running:
                self._loops[name].stop()

    def _next_event(self, ends: float | None) -> str | None:
        """The name of a loop that has ended; None if the loops must stop: on request, or at `ends`."""
        while ends is None or monotonic() < ends:
            timeout = POLL_INTERVAL if ends is None else min(POLL_INTERVAL, max(ends - monotonic(), 0))
            with suppress(Empty):
                return self._events.get(timeout=timeout)
        return None

    def _run_loop(self, name: str) -> None:
        loop = self._loops[name]
        message, fail = "The %s failed; stopping the other loops.", partial(self.failed.append, name)
        try:
            with LoopGuard(logger, message, name, on_failure=fail):
                loop.run()
                if getattr(loop, "failed", False):
                    fail()
        finally:
            self._events.put(name)
