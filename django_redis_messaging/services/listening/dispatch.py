"""Who may dispatch the events of a primary, and the calling of handlers."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from inspect import iscoroutine
from queue import Full, Queue
from time import monotonic

from django.db import close_old_connections

from ...core import keys
from ...core.operations import Script, Service, Steps, asynchronous, operation
from ...handlers import KeyEvent, KeyHandler, title
from ..jobs.loops import Loop

logger = logging.getLogger(__name__)

#: ms that a listener may dispatch, unless it says that it goes on: it does twice in that time
LEASE = 4000
#: events that wait for a handler at most: what comes then is lost, as it would be in the server's own buffer
WAITING = 10_000
#: seconds after which a handler that does not return lets another listener take over
HANGING = 60.0


class DispatchLease(Service):
    """The right to dispatch the events of one primary."""

    def __init__(self, node: str, token: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._key = keys.dispatch(self._prefix, node)
        self._token = token

    @operation
    def take(self) -> Steps[int]:
        """Take it, or keep it: its fence, or 0 where another listener has it."""
        return int((yield Script("listener_lease", [self._key], [self._token, LEASE])))

    atake = asynchronous(take)

    @operation
    def leave(self) -> Steps[None]:
        """Give it up, so that another takes it at once."""
        yield Script("listener_leave", [self._key], [self._token])

    aleave = asynchronous(leave)


class Dispatcher:
    """Calls handlers with events, one at a time, in a thread of its own."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        #: None: only to look whether it is to end
        self._events: Queue[tuple[KeyHandler, KeyEvent] | None] = Queue(WAITING)
        self._ended = threading.Event()
        self._abandoned = False
        self._began: float | None = None
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    @property
    def hangs(self) -> bool:
        """Whether a handler has not returned for very long."""
        began = self._began
        return began is not None and monotonic() - began > HANGING

    def put(self, handler: KeyHandler, event: KeyEvent) -> None:
        """Have a handler called."""
        try:
            self._events.put_nowait((handler, event))
        except Full:
            self._lost += 1
            if self._lost & (self._lost - 1) == 0:  # the 1st, 2nd, 4th, 8th …
                logger.error("Handlers are too slow: %d key events were dropped.", self._lost)

    def end(self) -> None:
        """Let it call what waits, and end."""
        self._ended.set()
        with suppress(Full):  # then it looks as soon as it has called what waits
            self._events.put_nowait(None)

    def ended(self, seconds: float) -> bool:
        """Whether it ends within this time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Let it call nothing more; what it calls now is left alone."""
        self._abandoned = True

    def _run(self) -> None:
        while not self._abandoned and not (self._ended.is_set() and self._events.empty()):
            next_one = self._events.get()
            if next_one is not None:
                self._began = monotonic()
                self._call(*next_one)
                self._began = None

    def _call(self, handler: KeyHandler, event: KeyEvent) -> None:
        close_old_connections()
        try:
            result = handler.function(event)
            if iscoroutine(result):
                self._loop.run(result)
        except BaseException:  # SystemExit too: the next event has its own call
            logger.exception("%s failed at %r of a key.", title(handler.function), event.event)
        finally:
            close_old_connections()
