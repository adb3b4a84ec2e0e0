"""The server's notify-keyspace-events: whether it publishes the events that handlers need."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from ...core import keyspace
from ...core.connection import BlockingConnection
from ...core.outcome import is_temporary
from ...core.topology import Endpoint, Primary, connect
from ...handlers import KeyHandler, title

logger = logging.getLogger(__name__)

#: name of the server's setting
SETTING = "notify-keyspace-events"
#: seconds between two checks: anybody may change the setting at any time
CHECK_INTERVAL = 5.0
#: seconds within which the server has to answer
TIMEOUT = 1.0


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
                logger.warning("Checking %s failed, retrying in %g s: %s", SETTING, CHECK_INTERVAL, error)
                return
            self._may_read = False
            logger.warning(
                "The server does not allow CONFIG GET %s, so it can't be checked. Handlers of key events "
                "need it, timers don't. (%s)",
                SETTING,
                error,
            )
        except RedisError as error:
            logger.warning("Checking %s failed, retrying in %g s: %s", SETTING, CHECK_INTERVAL, error)
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
        if before is not None and keyspace.missing(current, wanted):
            logger.warning(
                "%s was changed from %r to %r: events may have been lost.", SETTING, before, current
            )
        if self._configure and keyspace.missing(current, wanted) and self._set(connection, current, wanted):
            return
        self._known = current
        self._log_missing(current)

    def _set(self, connection: BlockingConnection, current: str, wanted: str) -> bool:
        """Add the wanted flags; returns whether the server has accepted them."""
        try:
            _call(connection, "CONFIG", "SET", SETTING, keyspace.merged(current, wanted))
        except ResponseError as error:
            logger.warning("Setting %s failed: %s", SETTING, error)
            return False
        self._known = _read(connection)  # the server writes it in an order of its own
        logger.info("%s is now %s; it was %r.", SETTING, self._known, current)
        return True

    def _log_missing(self, current: str) -> None:
        for one in self._handlers:
            lacking = keyspace.missing(current, one.flags)
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
