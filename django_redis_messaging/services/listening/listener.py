"""The listener: runs the handlers of timers and of keyspace events, until it is stopped.

Timers don't depend on events: their lanes claim what is due from the lease engine, and time it themselves.
So no event of a timer's own key is waited for, and a server that sends none is as good.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

from redis.exceptions import RedisError

from ... import conf
from ...core.endpoints import Endpoint
from ...core.primaries import Primaries, Primary
from ...handlers import KeyHandler, TimerHandler
from ..expiries.firing import Firing
from ..expiries.store import TimerStore
from ..jobs.lanes import Worker
from ..jobs.limits import USUAL, Limits
from ..jobs.loops import Loop
from .channel import Channel
from .dispatch import Dispatcher

logger = logging.getLogger(__name__)

#: seconds after which the primaries are looked for again
LOOK = 1.0
#: seconds that connections get to end, when the listener does
CLOSING = 5.0


class Listener:
    """Serves the namespaces and key events that have handlers."""

    def __init__(
        self,
        timers: Mapping[str, TimerHandler],
        key_events: Sequence[KeyHandler],
        limits: Limits = USUAL,
        *,
        configure: bool = False,
    ) -> None:
        store = TimerStore()
        self._worker = Worker(store, list(timers), Firing(store, timers), limits) if timers else None
        self._events = Events(key_events, configure=configure, drain=limits.drain) if key_events else None

    @property
    def done(self) -> int:
        """Attempts at timers that were made."""
        return self._worker.done if self._worker else 0

    @property
    def failed(self) -> bool:
        """Whether it ended by an error that nobody expected."""
        return self._worker is not None and self._worker.failed

    @property
    def events(self) -> Events | None:
        """What listens to events, where there are handlers of such."""
        return self._events

    def stop(self) -> None:
        """Begin nothing more; a second time: give back at once what runs. Safe in a signal handler."""
        if self._worker is not None:
            self._worker.stop()
        if self._events is not None:
            self._events.stop()

    def run(self) -> None:
        """Listen until stopped."""
        if self._events is not None:
            self._events.start()
        try:
            if self._worker is not None:
                self._worker.run()
            elif self._events is not None:
                self._events.wait()
        finally:
            if self._events is not None:
                self._events.close()


class Events:
    """Listens to all primaries there are, whichever these are at the time."""

    def __init__(
        self, handlers: Sequence[KeyHandler], *, configure: bool = False, drain: float = USUAL.drain
    ) -> None:
        #: primary → what listens to it
        self.channels: dict[Primary, Channel] = {}
        self._handlers = handlers
        self._configure = configure
        self._endpoint = Endpoint(conf.alias())
        self._primaries = Primaries(self._endpoint)
        self._token = os.urandom(9).hex()
        self._loop = Loop()
        self._dispatchers: dict[Primary, Dispatcher] = {}
        self._drain = drain
        self._drained_by = math.inf
        # not an Event, whose set() in a signal handler could wait for itself
        self._stopped = False
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="topology", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def wait(self) -> None:
        """Until it is stopped. Signals come in between."""
        while not self._stopped:
            self._thread.join(1.0)

    def stop(self) -> None:
        """Receive nothing more; a second time: don't wait for handlers. Safe in a signal handler."""
        self._drained_by = monotonic() + (0.0 if self._stopped else self._drain)
        self._stopped = True
        self._woken.put(None)

    def close(self) -> None:
        """Stop, where that wasn't said, and let handlers end."""
        if not self._stopped:
            self.stop()
        ends = monotonic() + CLOSING
        self._thread.join(CLOSING)
        self._end_channels()
        for channel in list(self.channels.values()):
            channel.join(max(ends - monotonic(), 0.0))
        dispatchers = list(self._dispatchers.values())
        for dispatcher in dispatchers:
            dispatcher.end()
        for dispatcher in dispatchers:
            while not dispatcher.ended(0.1) and monotonic() < self._drained_by:
                pass  # a second signal comes in between
            dispatcher.abandon()
        self._loop.close()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._follow(self._primaries.look())
            except Exception as error:  # also one that nobody expected: nobody would ask any more
                told = None if isinstance(error, RedisError | OSError) else error
                logger.warning(
                    "Looking for the primaries failed, retrying in %g s: %s", LOOK, error, exc_info=told
                )
            with suppress(Empty):
                self._woken.get(timeout=LOOK)
        self._primaries.close()
        self._end_channels()

    def _follow(self, primaries: Sequence[Primary]) -> None:
        """Listen to these. First to those that are new: one that is gone may be slow to notice its end."""
        for one in primaries:
            if one not in self.channels and not self._stopped:
                self._dispatchers[one] = dispatcher = Dispatcher(self._loop)
                self.channels[one] = Channel(
                    self._endpoint, one, self._handlers, dispatcher, self._token, configure=self._configure
                )
        for gone in set(self.channels) - set(primaries):
            logger.info("Primary %s is gone.", gone.id)
            self.channels.pop(gone).end()
            self._dispatchers.pop(gone).end()

    def _end_channels(self) -> None:
        for channel in list(self.channels.values()):
            channel.end()
