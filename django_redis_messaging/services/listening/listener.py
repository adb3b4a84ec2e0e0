"""The listener: runs the handlers of timers and of keyspace events, until it is stopped.

Timers don't depend on keyspace events: a worker claims due timers from the lease engine. So they fire on time
even if the server publishes no events.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

from redis.exceptions import RedisError

from ... import conf
from ...core.endpoints import Endpoint
from ...core.failures import LoopGuard, log_exception
from ...core.keys import current_prefix
from ...core.primaries import Primaries, Primary
from ...handlers import KeyHandler, TimerHandler
from ..expiries.engine import TimerEngine
from ..expiries.firing import Firing
from ..jobs.event_loop import EventLoop
from ..jobs.limits import DEFAULT_LIMITS, Limits
from ..jobs.worker import Worker
from .channel import Channel
from .dispatch import Dispatcher

logger = logging.getLogger(__name__)

#: seconds between two look-ups of the primaries
TOPOLOGY_INTERVAL = 1.0
#: seconds within which connections have to close when the listener ends
CLOSING_TIMEOUT = 5.0


class Listener:
    """Runs the handlers of timers and key events."""

    def __init__(
        self,
        timers: Mapping[str, TimerHandler],
        key_events: Sequence[KeyHandler],
        limits: Limits = DEFAULT_LIMITS,
        *,
        configure: bool = False,
    ) -> None:
        self._worker = _timer_worker(timers, limits) if timers else None
        self._events = None
        if key_events:
            self._events = Events(
                key_events, configure=configure, drain=limits.drain, on_failure=self._stop_worker
            )

    @property
    def done(self) -> int:
        """Attempts at timers so far."""
        return self._worker.done if self._worker else 0

    @property
    def failed(self) -> bool:
        """Whether it ended by an unexpected error."""
        return any(part is not None and part.failed for part in (self._worker, self._events))

    @property
    def events(self) -> Events | None:
        """The listener to key events; None without handlers of them."""
        return self._events

    def stop(self) -> None:
        """Start no more handlers; at the second call, release running timers. Safe in a signal handler."""
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

    def _stop_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop()


def _timer_worker(timers: Mapping[str, TimerHandler], limits: Limits) -> Worker:
    using, engine = conf.alias(), TimerEngine(current_prefix())
    return Worker(engine, using, list(timers), Firing(engine, using, timers), limits)


class Events:
    """Listens to all primaries, and follows changes of the topology."""

    def __init__(
        self,
        handlers: Sequence[KeyHandler],
        *,
        configure: bool = False,
        drain: float = DEFAULT_LIMITS.drain,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        #: whether it ended by an unexpected error
        self.failed = False
        #: the channel of each primary
        self.channels: dict[Primary, Channel] = {}
        self._handlers = handlers
        self._configure = configure
        self._endpoint = Endpoint(conf.alias())
        self._primaries = Primaries(self._endpoint)
        self._token = os.urandom(9).hex()
        self._loop = EventLoop(self._fail)
        self._on_failure = on_failure
        self._failing = threading.Lock()
        self._dispatchers: dict[Primary, Dispatcher] = {}
        self._drain = drain
        self._drained_by = math.inf
        self._stopped = False
        # not an Event, whose set() in a signal handler could deadlock
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="topology", daemon=True)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is stopped. Signal handlers run in between."""
        while not self._stopped:
            self._thread.join(1.0)

    def stop(self) -> None:
        """Stop receiving; at the second call, don't wait for handlers. Safe in a signal handler."""
        self._drained_by = monotonic() + (0.0 if self._stopped else self._drain)
        self._stopped = True
        self._woken.put(None)

    def close(self) -> None:
        """Stop, and let handlers finish."""
        if not self._stopped:
            self.stop()
        ends = monotonic() + CLOSING_TIMEOUT
        self._thread.join(CLOSING_TIMEOUT)
        self._end_channels()
        for channel in list(self.channels.values()):
            channel.join(max(ends - monotonic(), 0.0))
        dispatchers = list(self._dispatchers.values())
        for dispatcher in dispatchers:
            dispatcher.end()
        for dispatcher in dispatchers:
            while not dispatcher.ended(0.1) and monotonic() < self._drained_by:
                pass  # a second signal may come in between
            dispatcher.abandon()
        self._loop.close()

    def _fail(self) -> None:
        """Stop, once, because a part of it ended by an unexpected error, which is logged."""
        with self._failing:
            is_first, self.failed = not self.failed, True
        if is_first and not self._stopped:  # a second stop would end the drain
            self.stop()
            self._on_failure()

    def _run(self) -> None:
        with LoopGuard(logger, "Following the primaries failed; stopping.", on_failure=self._fail):
            while not self._stopped:
                self._follow_topology()
                with suppress(Empty):
                    self._woken.get(timeout=TOPOLOGY_INTERVAL)
        self._primaries.close()
        self._end_channels()

    def _follow_topology(self) -> None:
        failed = f"Looking up the primaries failed, retrying in {TOPOLOGY_INTERVAL:g} s"
        try:
            self._follow(self._primaries.discover())
        except (RedisError, OSError) as error:
            logger.warning("%s: %s", failed, error)
        except Exception as error:  # unexpected ones too: the thread must not end
            log_exception(logger, error, "%s.", failed)

    def _follow(self, primaries: Sequence[Primary]) -> None:
        """Listen to these. The new ones first: closing the channel of a lost primary may take long."""
        for one in primaries:
            if one not in self.channels and not self._stopped:
                self._dispatchers[one] = dispatcher = Dispatcher(self._loop, self._fail)
                self.channels[one] = Channel(
                    self._endpoint,
                    one,
                    self._handlers,
                    dispatcher,
                    self._token,
                    configure=self._configure,
                    on_failure=self._fail,
                )
        for gone in set(self.channels) - set(primaries):
            logger.info("Primary %s has left the topology.", gone.id)
            self.channels.pop(gone).end()
            self._dispatchers.pop(gone).end()

    def _end_channels(self) -> None:
        for channel in list(self.channels.values()):
            channel.end()
