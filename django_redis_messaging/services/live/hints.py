"""Hints of changes: the scripts publish what has changed, and each process with streams subscribes to them.

A lost hint costs time, never data: see `Polling` in hub.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote

from redis.exceptions import RedisError

from ...core.connection import ASYNCIO, Address, AsyncConnection
from ...core.encoding import FORMAT, encoded
from ...core.operations import Command
from ...core.outcome import backoff
from ...core.topology import Endpoint, dial, refresh_topology

logger = logging.getLogger(__name__)

#: seconds to connect and to subscribe
CONNECT_TIMEOUT = 2.0
#: seconds without a message after which a PING is sent; after two of them without a reply, the connection
#: counts as dead
PING_INTERVAL = 2.0
#: seconds: the first, and the longest, pause between two attempts to connect
FIRST_PAUSE = 0.1
MAX_PAUSE = 5.0
#: kinds of hints about a chat: see common/_hints.lua
EVERYTHING, POSITION, TYPING = "m", "a", "t"
#: kinds of hints about a user: the index of their chats, their mailbox, and that they signed out somewhere
INDEX, MAILBOX, SIGNED_OUT = "u", "b", "x"


class ChangeHint(NamedTuple):
    """What has changed, never how."""

    kind: str
    #: chat id, or name of a user
    name: str
    #: the user whose position has moved
    user: str = ""


def channel(prefix: str) -> str:
    """The channel of the hints about all resources with this prefix."""
    return f"{prefix}:{FORMAT}:live"


def signing_out(prefix: str, user: str) -> Command:
    """The command that lets all streams of a user check at once whether they may go on."""
    return Command("PUBLISH", channel(prefix), f"{SIGNED_OUT}user:{encoded(user)}")


def parse(payload: bytes) -> ChangeHint | None:
    """Parse a hint; None if it is not one of this version.

    >>> parse(b"achat:caf%20e\\0ann")
    ChangeHint(kind='a', name='caf e', user='ann')
    """
    try:
        resource, _, user = payload.decode().partition("\0")
    except UnicodeDecodeError:
        return None
    kind, (_, colon, name) = resource[:1], resource.partition(":")
    return ChangeHint(kind, unquote(name) if "%" in name else name, user) if colon else None


class HintSubscription:
    """Subscribes to the hints with one prefix, and stays subscribed: on a Cluster, one node delivers those of
    all nodes."""

    def __init__(
        self, endpoint: Endpoint, prefix: str, receive: Callable[[ChangeHint], None], lost: Callable[[], None]
    ) -> None:
        self._endpoint = endpoint
        self._channel = channel(prefix)
        self._receive = receive
        #: called when hints may have been lost
        self._lost = lost
        #: set after the first attempt to subscribe, whether it succeeded or not
        self.attempted = asyncio.Event()

    async def run(self) -> None:
        """Receive hints until cancelled."""
        failures = 0
        while True:
            connection = AsyncConnection(self._node())
            try:
                await self._subscribe(connection)
                failures = 0
                await self._listen(connection)
            except (RedisError, OSError) as error:
                failures += 1
                logger.warning("Hints of changes are lost, reconnecting: %s", error)
                await self._refresh(error)
            finally:
                connection.close()
            self.attempted.set()
            await asyncio.sleep(backoff(failures, first=FIRST_PAUSE, longest=MAX_PAUSE))

    def _node(self) -> Address | None:
        """Any node of a Cluster, for each delivers all hints; None: the server that the alias names."""
        nodes = list(self._endpoint.router.addresses)
        return random.choice(nodes) if nodes else None  # noqa: S311

    async def _subscribe(self, connection: AsyncConnection) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await dial(ASYNCIO, self._endpoint, connection, CONNECT_TIMEOUT)
            [reply] = await connection.exchange([("SUBSCRIBE", self._channel)], CONNECT_TIMEOUT)
        if isinstance(reply, Exception):
            raise reply
        if self.attempted.is_set():  # streams have begun without hints
            self._lost()
        self.attempted.set()

    async def _listen(self, connection: AsyncConnection) -> None:
        unanswered = 0
        while unanswered < 2:
            if not await connection.readable(PING_INTERVAL):
                await connection.send([("PING",)], PING_INTERVAL)
                unanswered += 1
                continue
            message = await connection.receive(PING_INTERVAL)
            unanswered = 0
            if isinstance(message, Exception):
                raise message
            if message[0] == b"message" and (hint := parse(message[2])) is not None:
                self._receive(hint)
        raise TimeoutError("the server does not answer")

    async def _refresh(self, error: Exception) -> None:
        """On a Cluster, the node may be gone: learn the others."""
        if self._endpoint.router.splits:
            await refresh_topology(ASYNCIO, self._endpoint, error, self._endpoint.router)
