"""Whether a server tells of what handlers wait for, and how it is made to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redis.exceptions import ResponseError

from ...core import keyspace
from ...core.sockets import BlockingConnection
from ...handlers import KeyHandler, title

logger = logging.getLogger(__name__)

#: the setting of the server
SETTING = "notify-keyspace-events"
#: seconds that the server has to answer
PATIENCE = 5.0


def looked_at(connection: BlockingConnection, handlers: Sequence[KeyHandler], *, configure: bool) -> None:
    """Log which handlers the server tells nothing; with `configure`, add the flags that are missing to those
    that are set. A server that does not let this user see is taken as it is, with a warning."""
    there = _set(connection)
    if there is None:
        return
    wanted = "".join(one.flags for one in handlers)
    if configure and keyspace.missing(there, wanted):
        call = ("CONFIG", "SET", SETTING, keyspace.merged(there, wanted))
        [reply] = connection.exchange([call], PATIENCE)
        if not isinstance(reply, ResponseError):
            logger.info("%s is now %s; it was %r.", SETTING, keyspace.merged(there, wanted), there)
            return
        logger.warning("%s could not be set (%s).", SETTING, reply)
    for one in handlers:
        lacking = keyspace.missing(there, one.flags)
        if lacking:
            logger.warning(
                "%s of the server is %r: %s (%s) needs %s too. Add that, or run with --configure.",
                SETTING,
                there,
                title(one.function),
                one.pattern,
                lacking,
            )


def _set(connection: BlockingConnection) -> str | None:
    [reply] = connection.exchange([("CONFIG", "GET", SETTING)], PATIENCE)
    if isinstance(reply, list) and len(reply) == 2:
        return str(reply[1].decode())
    logger.warning(
        "The server does not let this user see %s: whether handlers of key events are told is up to whoever "
        "runs it. Timers do not depend on it.",
        SETTING,
    )
    return None
