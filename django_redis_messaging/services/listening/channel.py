"""One primary's events: subscribed to, received, given to a dispatcher while the lease is ours."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from ... import conf
from ...core import keys, keyspace
from ...core.endpoints import Endpoint
from ...core.primaries import Primary
from ...core.retry import given_up_when
from ...core.sockets import BlockingConnection
from ...errors import MessagingError
from ...handlers import KeyEvent, KeyHandler
from .dispatch import LEASE, Dispatcher, DispatchLease
from .flags import looked_at

logger = logging.getLogger(__name__)

#: seconds between two signs of life from the server; after three that don't come, the connection is dead
ALIVE = 5.0
#: seconds until it notices that it is to end, or that its lease is to be renewed
NOTICE = 0.5
#: seconds: the longest pause between two attempts to reach a primary
LONGEST_PAUSE = 5.0


class Channel:
    """Listens to one primary, in a thread of its own, until it is closed."""

    def __init__(
        self,
        endpoint: Endpoint,
        primary: Primary,
        handlers: Sequence[KeyHandler],
        dispatcher: Dispatcher,
        token: str,
        *,
        configure: bool = False,
    ) -> None:
        self.primary = primary
        #: whether it is subscribed now
        self.subscribed = threading.Event()
        #: of the lease, 0 while another has it
        self.fence = 0
        self._endpoint = endpoint
        self._handlers = handlers
        self._dispatcher = dispatcher
        self._configure = configure
        self._lease = DispatchLease(primary.id, token, using=endpoint.alias)
        self._renewed = 0.0
        self._ours = f"{keys.checked_prefix(conf.prefix())}:{keys.FORMAT}:{{".encode()
        self._subscriptions = self._by_pattern()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"primary {primary.id[:8]}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Receive nothing more, and let another listener take over."""
        self._closing.set()

    def join(self, seconds: float) -> None:
        """Wait for its end, so long at most."""
        self._thread.join(seconds)

    def _by_pattern(self) -> dict[bytes, list[KeyHandler]]:
        found: dict[bytes, list[KeyHandler]] = {}
        for one in self._handlers:
            db = self._endpoint.db if one.db is None else one.db
            for channel in keyspace.channels(one.pattern, db, one.events):
                found.setdefault(channel.encode(), []).append(one)
        return found

    def _run(self) -> None:
        with given_up_when(self._closing.is_set):
            failures = 0
            while not self._closing.is_set():
                failures = 0 if self._served() else failures + 1
                longest = min(0.1 * 2.0 ** min(failures, 10), LONGEST_PAUSE)
                self._closing.wait(longest * random.uniform(0.5, 1))  # noqa: S311
            self._leave()

    def _served(self) -> bool:
        """Connect, subscribe and listen until that breaks; whether it was subscribed."""
        subscribed = False
        try:
            with self.primary.connected(self._endpoint) as connection:
                self._subscribe(connection)
                subscribed = True
                self._listen(connection)
        except Exception as error:  # also one that nobody expected: a thread that ends would listen no more
            told = None if isinstance(error, RedisError | OSError) else error
            logger.warning(
                "Events of primary %s are lost, reconnecting: %s", self.primary.id, error, exc_info=told
            )
        finally:
            self.subscribed.clear()
        return subscribed

    def _subscribe(self, connection: BlockingConnection) -> None:
        looked_at(connection, self._handlers, configure=self._configure)
        [first] = connection.exchange([("PSUBSCRIBE", *self._subscriptions)], ALIVE)
        if isinstance(first, RedisError):
            raise first
        for _ in range(len(self._subscriptions) - 1):
            connection.receive(ALIVE)
        self._keep_lease()
        self.subscribed.set()

    def _listen(self, connection: BlockingConnection) -> None:
        heard = asked = alone = monotonic()
        while not self._closing.is_set():
            if connection.readable(NOTICE):
                heard = monotonic()
                self._received(connection.receive(ALIVE))
            elif asked > heard and monotonic() > alone + 2 * ALIVE:
                raise TimeoutError("the server does not answer")
            if monotonic() > self._renewed + LEASE / 1000 / 2:
                self._keep_lease()
            if monotonic() > asked + ALIVE:
                # what wasn't answered counts, not what wasn't asked because this process was held
                alone = monotonic() if asked <= heard else alone
                asked = monotonic()
                connection.send([("PING",)], ALIVE)

    def _received(self, message: Any) -> None:
        if isinstance(message, RedisError):
            raise message
        if not self.fence or message[0] != b"pmessage":
            return
        _, pattern, channel, data = message
        told = keyspace.parsed(channel, data)
        if told is None or told[1].startswith(self._ours):
            return
        db, key, name = told
        event = KeyEvent(key.decode("utf-8", "surrogateescape"), name, db, self.fence)
        for one in self._subscriptions.get(pattern, ()):
            if not one.events or name in one.events:
                self._dispatcher.put(one, event)

    def _keep_lease(self) -> None:
        """Take the lease, or keep it; while a handler hangs, leave it to others."""
        self._renewed = monotonic()
        if self._dispatcher.hangs:
            if self.fence:
                logger.error("A handler of key events hangs: another listener may take over.")
                self._leave()
            return
        before, self.fence = self.fence, 0
        try:
            self.fence = self._lease.take()
        except MessagingError as error:
            logger.warning("The lease of primary %s can't be kept: %s", self.primary.id, error)
        if self.fence and self.fence != before:
            logger.info("Dispatching the events of primary %s.", self.primary.id)

    def _leave(self) -> None:
        held, self.fence = self.fence, 0
        if not held:
            return
        try:
            self._lease.leave()
        except MessagingError as error:
            logger.warning("The lease of primary %s ends by itself: %s", self.primary.id, error)
