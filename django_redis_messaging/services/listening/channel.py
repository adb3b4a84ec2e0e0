"""The events of one primary: subscribed to, received, and dispatched while this listener has the lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from ...core import keys, keyspace
from ...core.backoff import backoff
from ...core.endpoints import Endpoint
from ...core.failures import LoopGuard, log_exception
from ...core.primaries import Primary
from ...core.retry import no_retries_when
from ...core.sockets import BlockingConnection
from ...errors import MessagingError
from ...handlers import KeyEvent, KeyHandler
from .dispatch import LEASE, Dispatcher, DispatchLease
from .flags import CHECK_INTERVAL as FLAGS_INTERVAL
from .flags import Flags

logger = logging.getLogger(__name__)

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


class Channel:
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
        self._lease = DispatchLease(primary.id, token, using=endpoint.alias)
        self._renewed = 0.0
        self._own_keys = f"{keys.current_prefix()}:{keys.FORMAT}:{{".encode()
        self._subscriptions = self._by_pattern()
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
            for channel in keyspace.channels(one.pattern, db, one.events):
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
        [first] = connection.exchange([("PSUBSCRIBE", *self._subscriptions)], REPLY_TIMEOUT)
        if isinstance(first, RedisError):
            raise first
        for _ in range(len(self._subscriptions) - 1):
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
        parsed = keyspace.parse_message(channel, data)
        if parsed is None or parsed[1].startswith(self._own_keys):
            return
        db, key, name = parsed
        event = KeyEvent(key.decode("utf-8", "surrogateescape"), name, db, self.fence)
        for one in self._subscriptions.get(pattern, ()):
            if not one.events or name in one.events:
                self._dispatcher.put(one, event)

    def _check_flags(self) -> None:
        self._flags.check()
        self._checked = monotonic()

    def _keep_lease(self) -> None:
        """Acquire or renew the lease; while a handler hangs, release it."""
        self._renewed = monotonic()
        if self._dispatcher.hangs:
            if self.fence:
                logger.error("A handler of key events hangs; another listener may take over.")
                self._release()
            return
        before, self.fence = self.fence, 0
        try:
            self.fence = self._lease.acquire()
        except MessagingError as error:
            logger.warning("Renewing the lease of primary %s failed, retrying: %s", self.primary.id, error)
        if self.fence and self.fence != before:
            logger.info("Dispatching the events of primary %s.", self.primary.id)

    def _release(self) -> None:
        held, self.fence = self.fence, 0
        if not held:
            return
        try:
            self._lease.release()
        except MessagingError as error:
            logger.warning(
                "Releasing the lease of primary %s failed; it expires within %g s: %s",
                self.primary.id,
                LEASE / 1000,
                error,
            )
