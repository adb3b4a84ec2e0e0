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
from inspect import iscoroutine
from queue import Empty, Full, Queue, SimpleQueue
from time import monotonic
from typing import Any

from django.db import close_old_connections
from redis.exceptions import RedisError, ResponseError

from ... import conf, handlers
from ...core import encoding
from ...core.connection import BlockingConnection
from ...core.encoding import FORMAT, MAX_NAME_BYTES, current_prefix, encoded
from ...core.operations import LoopGuard, log_exception
from ...core.outcome import backoff, is_temporary, no_retries_when
from ...core.topology import Endpoint, Primaries, Primary, connect
from ...errors import LeaseLost, MessagingError
from ...handlers import KeyEvent, KeyHandler, TimerHandler, title
from ..expiries.timers import Firing, TimerEngine
from ..jobs.threads import EventLoop
from ..jobs.worker import DEFAULT_LIMITS, Limits, Worker
from ..locks.lock import Lock, LockKeys

logger = logging.getLogger(__name__)

#: name of the server's setting
SETTING = "notify-keyspace-events"
#: seconds between two checks: anybody may change the setting at any time
FLAGS_INTERVAL = 5.0
#: seconds within which the server has to answer
TIMEOUT = 1.0
#: ms that a listener may dispatch before it has to renew; it renews after half of them
LEASE = 4000
#: events that wait for a handler at most, about 50 MB; further ones are dropped, as they would be in the
#: server's buffer
MAX_WAITING = 100_000
#: seconds after which a handler counts as hanging: then another listener may take over
HANGING_AFTER = 60.0
#: seconds between two look-ups of the primaries
TOPOLOGY_INTERVAL = 1.0
#: seconds within which connections have to close when the listener ends
CLOSING_TIMEOUT = 5.0
#: seconds without a message after which a PING is sent; after two more such intervals without a reply, the
#: connection counts as dead. Short: while a primary is frozen, its events are those of its replica already
PING_INTERVAL = 1.0
#: seconds to wait for a reply, and for the rest of a message
REPLY_TIMEOUT = 5.0
#: seconds between two checks whether to close, or to renew the lease
CHECK_INTERVAL = 0.5
#: seconds: the first, and the longest, pause between two attempts to connect
FIRST_PAUSE = 0.1
MAX_PAUSE = 5.0


def dispatch_key(prefix: str, node: str) -> str:
    """STRING token of the listener that dispatches the keyspace events of a primary: the key of a Lock.
    Expires with the lease."""
    return f"{prefix}:{FORMAT}:{{listener:nodes}}:{encoded(node)}"


class Flags:
    """Checks the setting of one primary, over a connection of its own: one that is subscribed can't."""

    def __init__(
        self, endpoint: Endpoint, primary: Primary, handlers: Sequence[KeyHandler], *, configure: bool
    ) -> None:
        self._endpoint = endpoint
        self._primary = primary
        self._handlers = handlers
        self._configure = configure
        self._connection: BlockingConnection | None = None
        #: the setting as it was found, or set, last; None before
        self._known: str | None = None
        self._may_read = True

    def check(self) -> None:
        """Log which handlers the server publishes no events for, once for each value of the setting; with
        `configure`, add the missing flags to those that are set. If the setting can't be read, log a warning
        and check no more before `close()`."""
        if not self._may_read:
            return
        try:
            if self._connection is None:
                self._connection = connect(self._endpoint, self._primary.address)
            self._check(self._connection)
        except ResponseError as error:
            if is_temporary(error):
                logger.warning("Checking %s failed, retrying in %g s: %s", SETTING, FLAGS_INTERVAL, error)
                return
            self._may_read = False
            logger.warning(
                "The server does not allow CONFIG GET %s, so it can't be checked. Handlers of key events "
                "need it, timers don't. (%s)",
                SETTING,
                error,
            )
        except RedisError as error:
            logger.warning("Checking %s failed, retrying in %g s: %s", SETTING, FLAGS_INTERVAL, error)
            self.close()

    def close(self) -> None:
        """Close the connection; the next check opens another one."""
        self._may_read = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _check(self, connection: BlockingConnection) -> None:
        current, before = _read(connection), self._known
        if current == before:
            return
        wanted = "".join(one.flags for one in self._handlers)
        if before is not None and handlers.missing(current, wanted):
            logger.warning(
                "%s was changed from %r to %r: events may have been lost.", SETTING, before, current
            )
        if self._configure and handlers.missing(current, wanted) and self._set(connection, current, wanted):
            return
        self._known = current
        self._log_missing(current)

    def _set(self, connection: BlockingConnection, current: str, wanted: str) -> bool:
        """Add the wanted flags; returns whether the server has accepted them."""
        try:
            _call(connection, "CONFIG", "SET", SETTING, handlers.merged(current, wanted))
        except ResponseError as error:
            logger.warning("Setting %s failed: %s", SETTING, error)
            return False
        self._known = _read(connection)  # the server writes it in an order of its own
        logger.info("%s is now %s; it was %r.", SETTING, self._known, current)
        return True

    def _log_missing(self, current: str) -> None:
        for one in self._handlers:
            lacking = handlers.missing(current, one.flags)
            if lacking:
                logger.warning(
                    "%s of the server is %r: %s (%s) also needs %s. Add it, or run with --configure.",
                    SETTING,
                    current,
                    title(one.function),
                    one.pattern,
                    lacking,
                )


def _read(connection: BlockingConnection) -> str:
    reply = _call(connection, "CONFIG", "GET", SETTING)
    if not reply:
        raise ResponseError("its reply is empty")
    return str(reply[1].decode())


def _call(connection: BlockingConnection, *words: str) -> Any:
    """The reply of the server; raises RedisError, also for an error reply."""
    [reply] = connection.exchange([words], TIMEOUT)
    if isinstance(reply, RedisError):
        raise reply
    return reply


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
        #: the subscription to each primary
        self.subscriptions: dict[Primary, Subscription] = {}
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
        self._end_subscriptions()
        for subscription in list(self.subscriptions.values()):
            subscription.join(max(ends - monotonic(), 0.0))
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
        self._end_subscriptions()

    def _follow_topology(self) -> None:
        failed = f"Looking up the primaries failed, retrying in {TOPOLOGY_INTERVAL:g} s"
        try:
            self._follow(self._primaries.discover())
        except (RedisError, OSError) as error:
            logger.warning("%s: %s", failed, error)
        except Exception as error:  # unexpected ones too: the thread must not end
            log_exception(logger, error, "%s.", failed)

    def _follow(self, primaries: Sequence[Primary]) -> None:
        """Listen to these. The new ones first: ending the subscription to a lost primary may take long."""
        for one in primaries:
            if one not in self.subscriptions and not self._stopped:
                self._dispatchers[one] = dispatcher = Dispatcher(self._loop, self._fail)
                self.subscriptions[one] = Subscription(
                    self._endpoint,
                    one,
                    self._handlers,
                    dispatcher,
                    self._token,
                    configure=self._configure,
                    on_failure=self._fail,
                )
        for gone in set(self.subscriptions) - set(primaries):
            logger.info("Primary %s has left the topology.", gone.id)
            self.subscriptions.pop(gone).end()
            self._dispatchers.pop(gone).end()

    def _end_subscriptions(self) -> None:
        for subscription in list(self.subscriptions.values()):
            subscription.end()


class Subscription:
    """Listens to one primary, in a thread of its own, until it is closed. `on_failure` is called if it ends
    by an unexpected error, which is logged."""

    def __init__(
        self,
        endpoint: Endpoint,
        primary: Primary,
        handlers: Sequence[KeyHandler],
        dispatcher: Dispatcher,
        token: str,
        *,
        configure: bool = False,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        self.primary = primary
        #: set while it is subscribed
        self.subscribed = threading.Event()
        #: fence of the lease; 0 while another listener has it
        self.fence = 0
        self._endpoint = endpoint
        self._handlers = handlers
        self._dispatcher = dispatcher
        self._on_failure = on_failure
        self._flags = Flags(endpoint, primary, handlers, configure=configure)
        self._checked = 0.0
        self._lock = DispatchLock(primary.id, using=endpoint.alias)
        self._token = token
        self._renewed = 0.0
        self._own_keys = f"{encoding.current_prefix()}:{encoding.FORMAT}:{{".encode()
        self._patterns = self._by_pattern()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"primary {primary.id[:8]}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop receiving, and release the lease."""
        self._closing.set()

    def join(self, seconds: float) -> None:
        """Wait for the end, for this many seconds at most."""
        self._thread.join(seconds)

    def _by_pattern(self) -> dict[bytes, list[KeyHandler]]:
        found: dict[bytes, list[KeyHandler]] = {}
        for one in self._handlers:
            db = self._endpoint.db if one.db is None else one.db
            for channel in handlers.channels(one.pattern, db, one.events):
                found.setdefault(channel.encode(), []).append(one)
        return found

    def _run(self) -> None:
        failed = "Listening to the events of primary %s failed; stopping."
        with LoopGuard(logger, failed, self.primary.id, on_failure=self._on_failure):
            self._listen_until_closed()

    def _listen_until_closed(self) -> None:
        with no_retries_when(self._closing.is_set):
            failures = 0
            while not self._closing.is_set():
                failures = 0 if self._connect_and_listen() else failures + 1
                self._closing.wait(backoff(failures + 1, first=FIRST_PAUSE, longest=MAX_PAUSE))
            self._release()

    def _connect_and_listen(self) -> bool:
        """Connect, subscribe and listen until the connection breaks; returns whether it was subscribed."""
        subscribed = False
        try:
            with self.primary.connected(self._endpoint) as connection:
                self._subscribe(connection)
                subscribed = True
                self._listen(connection)
        except (RedisError, OSError) as error:
            logger.warning("Events of primary %s are lost, reconnecting: %s", self.primary.id, error)
        except Exception as error:  # unexpected ones too: the thread must not end
            log_exception(logger, error, "Events of primary %s are lost, reconnecting.", self.primary.id)
        finally:
            self.subscribed.clear()
            self._flags.close()
        return subscribed

    def _subscribe(self, connection: BlockingConnection) -> None:
        self._check_flags()
        [first] = connection.exchange([("PSUBSCRIBE", *self._patterns)], REPLY_TIMEOUT)
        if isinstance(first, RedisError):
            raise first
        for _ in range(len(self._patterns) - 1):
            connection.receive(REPLY_TIMEOUT)
        self._keep_lease()
        self.subscribed.set()

    def _listen(self, connection: BlockingConnection) -> None:
        received = pinged = unanswered_since = monotonic()
        while not self._closing.is_set():
            if connection.readable(CHECK_INTERVAL):
                received = monotonic()
                self._dispatch(connection.receive(REPLY_TIMEOUT))
                if received > self._checked + FLAGS_INTERVAL:  # the server is alive: it replies at once
                    self._check_flags()
            elif pinged > received and monotonic() > unanswered_since + 2 * PING_INTERVAL:
                raise TimeoutError("the server does not answer")
            if monotonic() > self._renewed + LEASE / 1000 / 2:
                self._keep_lease()
            if monotonic() > pinged + PING_INTERVAL:
                # only unanswered PINGs count, not time during which this process was stopped
                unanswered_since = monotonic() if pinged <= received else unanswered_since
                pinged = monotonic()
                connection.send([("PING",)], PING_INTERVAL)

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, RedisError):
            raise message
        if not self.fence or message[0] != b"pmessage":
            return
        _, pattern, channel, data = message
        parsed = handlers.parse_message(channel, data)
        if parsed is None or parsed[1].startswith(self._own_keys):
            return
        db, key, name = parsed
        event = KeyEvent(key.decode("utf-8", "surrogateescape"), name, db, self.fence)
        for one in self._patterns.get(pattern, ()):
            if not one.events or name in one.events:
                self._dispatcher.put(one, event)

    def _check_flags(self) -> None:
        self._flags.check()
        self._checked = monotonic()

    def _keep_lease(self) -> None:
        """Acquire or extend the lease; while a handler hangs, release it."""
        self._renewed = monotonic()
        if self._dispatcher.hangs:
            if self.fence:
                logger.error("A handler of key events hangs; another listener may take over.")
                self._release()
            return
        before = self.fence
        try:
            self.fence = self._extend_or_acquire(before)
        except MessagingError as error:
            self.fence = 0
            logger.warning("Renewing the lease of primary %s failed, retrying: %s", self.primary.id, error)
        if self.fence and self.fence != before:
            logger.info("Dispatching the events of primary %s.", self.primary.id)

    def _extend_or_acquire(self, fence: int) -> int:
        """The fence of the lease; 0 if another listener has it. `fence`: as before.

        The lease is not renewed in the background: it has to end if this thread receives no more events.
        """
        with suppress(LeaseLost):
            if fence:
                self._lock.reacquire()
                return fence
        # the same token each time, so that it gets a lease of its own that it couldn't extend for a moment
        return self._lock.fence if self._lock.acquire(blocking=False, token=self._token) else 0

    def _release(self) -> None:
        held, self.fence = self.fence, 0
        if not held:
            return
        try:
            with suppress(LeaseLost):
                self._lock.release()
        except MessagingError as error:
            logger.warning(
                "Releasing the lease of primary %s failed; it expires within %g s: %s",
                self.primary.id,
                LEASE / 1000,
                error,
            )


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


class DispatchLock(Lock):
    """The right to dispatch the events of one primary. Taking over needs no free memory: a handler may wait
    for events of a server that has none left."""

    _when_full = 1

    def __init__(self, node: str, *, using: str | None = None) -> None:
        super().__init__(f"events of primary {node}"[:MAX_NAME_BYTES], timeout=LEASE / 1000, using=using)
        self.key = dispatch_key(self._prefix, node)  # it may be longer than a key that users choose
        self._keys = LockKeys(self._prefix, self.key)
