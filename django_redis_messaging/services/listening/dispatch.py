"""The right to dispatch the events of a primary, and the thread that calls handlers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutine
from queue import Full, Queue
from time import monotonic

from django.db import close_old_connections

from ...core.failures import LoopGuard
from ...core.operations import Script, Service, Steps, asynchronous, operation
from ...handlers import KeyEvent, KeyHandler, title
from ..jobs.event_loop import EventLoop
from .keys import dispatch_key

logger = logging.getLogger(__name__)

#: ms that a listener may dispatch before it has to renew; it renews after half of them
LEASE = 4000
#: events that wait for a handler at most, about 50 MB; further ones are dropped, as they would be in the
#: server's buffer
MAX_WAITING = 100_000
#: seconds after which a handler counts as hanging: then another listener may take over
HANGING_AFTER = 60.0


class DispatchLease(Service):
    """The right to dispatch the events of one primary."""

    def __init__(self, node: str, token: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._key = dispatch_key(self._prefix, node)
        self._token = token

    @operation
    def acquire(self) -> Steps[int]:
        """Acquire or renew it; returns the fence, or 0 if another listener has it."""
        return int((yield Script("listener_lease", [self._key], [self._token, LEASE])))

    aacquire = asynchronous(acquire)

    @operation
    def release(self) -> Steps[None]:
        """Release it, so that another listener can acquire it at once."""
        yield Script("listener_leave", [self._key], [self._token])

    arelease = asynchronous(release)


class Dispatcher:
    """Calls handlers with events, one at a time, in a thread of its own. `on_failure` is called if it ends by
    an unexpected error, which is logged."""

    def __init__(self, loop: EventLoop, on_failure: Callable[[], object] = lambda: None) -> None:
        self._loop = loop
        self._on_failure = on_failure
        #: None: only wakes the thread
        self._events: Queue[tuple[KeyHandler, KeyEvent] | None] = Queue(MAX_WAITING)
        self._ended = threading.Event()
        self._abandoned = False
        self._started: float | None = None
        #: events dropped since the last time that the handlers kept up
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    @property
    def hangs(self) -> bool:
        """Whether the running handler has taken longer than HANGING_AFTER."""
        started = self._started
        return started is not None and monotonic() - started > HANGING_AFTER

    def put(self, handler: KeyHandler, event: KeyEvent) -> None:
        """Queue a call of a handler."""
        try:
            self._events.put_nowait((handler, event))
        except Full:
            self._dropped += 1
            if self._dropped & (self._dropped - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                logger.error("Handlers of key events are too slow; %d events were dropped.", self._dropped)

    def end(self) -> None:
        """End after the queued calls."""
        self._ended.set()
        with suppress(Full):  # a full queue keeps the thread awake
            self._events.put_nowait(None)

    def ended(self, seconds: float) -> bool:
        """Wait for the end, for this many seconds at most; returns whether it ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Call no more handlers; the running one is not interrupted."""
        self._abandoned = True

    def _run(self) -> None:
        with LoopGuard(
            logger, "Calling handlers of key events failed; stopping.", on_failure=self._on_failure
        ):
            while not self._abandoned and not (self._ended.is_set() and self._events.empty()):
                call = self._events.get()
                if call is not None:
                    self._started = monotonic()
                    self._call(*call)
                    self._started = None
                if self._dropped and self._events.empty():
                    self._log_dropped()

    def _call(self, handler: KeyHandler, event: KeyEvent) -> None:
        failed = "%s failed for the event %r of a key."
        with LoopGuard(logger, failed, title(handler.function), event.event):
            close_old_connections()
            try:
                result = handler.function(event)
                if iscoroutine(result):
                    self._loop.run(result)
            finally:
                close_old_connections()

    def _log_dropped(self) -> None:
        """Log how many events were dropped until the handlers have caught up."""
        dropped, self._dropped = self._dropped, 0
        logger.error("Handlers of key events have caught up; %d events were dropped in between.", dropped)
