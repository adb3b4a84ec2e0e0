"""The server's notify-keyspace-events: whether it publishes the events that handlers need."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redis.exceptions import ResponseError

from ...core import keyspace
from ...core.sockets import BlockingConnection
from ...handlers import KeyHandler, title

logger = logging.getLogger(__name__)

#: name of the server's setting
SETTING = "notify-keyspace-events"
#: seconds within which the server has to answer
TIMEOUT = 5.0


def check_flags(connection: BlockingConnection, handlers: Sequence[KeyHandler], *, configure: bool) -> None:
    """Log which handlers the server publishes no events for; with `configure`, add the missing flags to those
    that are set. If the user may not read the setting, log a warning and go on."""
    current = _current_flags(connection)
    if current is None:
        return
    wanted = "".join(one.flags for one in handlers)
    if configure and keyspace.missing(current, wanted):
        call = ("CONFIG", "SET", SETTING, keyspace.merged(current, wanted))
        [reply] = connection.exchange([call], TIMEOUT)
        if not isinstance(reply, ResponseError):
            logger.info("%s is now %s; it was %r.", SETTING, keyspace.merged(current, wanted), current)
            return
        logger.warning("Setting %s failed: %s", SETTING, reply)
    for one in handlers:
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


def _current_flags(connection: BlockingConnection) -> str | None:
    [reply] = connection.exchange([("CONFIG", "GET", SETTING)], TIMEOUT)
    if isinstance(reply, list) and len(reply) == 2:
        return str(reply[1].decode())
    logger.warning(
        "The ACL of this user does not allow CONFIG GET %s, so it can't be checked. Handlers of key events "
        "need it, timers don't.",
        SETTING,
    )
    return None
