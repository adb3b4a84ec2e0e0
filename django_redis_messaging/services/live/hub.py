"""The hub: one for all live streams of an event loop.

A hint, or a look every few seconds, marks a chat, an index or a mailbox; what is marked is read once for all
streams (reading.py). A stream registers first and reads the state afterwards, as in Zulip, so that nothing is
missed in between.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from ... import conf
from ...core import clients, keys
from ...errors import MessagingError
from .hints import Hint, Hints
from .looking import Looking
from .marks import BEHIND, EVERYTHING, JOINED, POSITION, Resource
from .presence import Presence, renew_while_open
from .reading import Reading
from .registry import Registry
from .stream import Stream
from .values import Known

logger = logging.getLogger(__name__)

#: seconds for which the hub keeps its connection after the last stream has ended
LINGER = 5.0


class Hub:
    """The live streams of one event loop, for one alias and prefix."""

    def __init__(self, alias: str) -> None:
        prefix = keys.current_prefix()
        self._registry = Registry()
        self._reading = Reading(alias, self._registry)
        self._marks = self._reading.marks
        self._presence = Presence(using=alias)
        self._looking = Looking(alias, prefix, self._registry, self._marks, self._presence)
        endpoint = clients.running(alias).endpoint
        self._hints = Hints(endpoint, prefix, self.receive, self._looking.hints_lost)
        #: token of each stream that counts as one of its user → the user
        self._tokens: dict[str, str] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._ending: asyncio.TimerHandle | None = None

    @property
    def number_of_streams(self) -> int:
        """How many streams are open."""
        return self._registry.size

    def count_streams(self, user: str) -> int:
        """How many of them are the user's."""
        return len(self._registry.streams_of(user))

    async def admit(self, user: str) -> str:
        """The token of a new stream, with which the user is online; empty if there are too many."""
        token = secrets.token_urlsafe(9)
        is_full = self.number_of_streams >= conf.current().LIVE_MAX_PER_PROCESS
        return token if not is_full and await self._presence.aenter(user, token) else ""

    @asynccontextmanager
    async def stream(
        self, user: str, rooms: Mapping[str, Known], *, token: str = ""
    ) -> AsyncGenerator[Stream, None]:
        """A stream of what changes for a user; `rooms`: the chats to follow, and what the reader knows of
        them; `token`: of a stream that was admitted, others don't count."""
        stream = Stream(self._marks, user, rooms, token)
        self._begin()
        self._registry.add(stream)
        if token:
            self._tokens[token] = user
        try:
            await self._hints.attempted.wait()
            for chat_id in rooms:
                self._marks.chat(chat_id, BEHIND)
            self._marks.user(user)
            yield stream
        finally:
            self.drop(stream)

    def drop(self, stream: Stream) -> None:
        """Forget a stream, whatever its reader does."""
        if stream not in self._registry.streams_of(stream.user):
            return
        stream.end()
        self._registry.remove(stream)
        if self._tokens.pop(stream.token, None):
            self._marks.start(self._leave(stream.user, stream.token))
        if not self._registry.users:
            self._ending = asyncio.get_running_loop().call_later(LINGER, self.close)

    def end_streams(self) -> None:
        """Ask all readers to end their streams."""
        for user in self._registry.users.values():
            for stream in user.streams:
                stream.end()

    def receive(self, hint: Hint) -> None:
        """Mark what has changed."""
        kind, name, user = hint
        if kind == "x":
            for stream in self._registry.streams_of(name):
                stream.request_check()
        elif kind not in "ub":
            self._reading.note(name, POSITION + user if kind == POSITION else kind)
        elif name in self._registry.users:
            if kind == "u":
                self._marks.add(Resource("index", name), JOINED)
            else:
                self._marks.add(Resource("mailbox", name), EVERYTHING)

    def close(self) -> None:
        """Close the connection, and stop reading."""
        for task in self._loops:
            task.cancel()
        self._loops.clear()
        self._marks.clear()

    def _begin(self) -> None:
        """Receive hints, and look, if that is not being done."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if not self._loops:
            self._hints.attempted.clear()
            renewing = renew_while_open(self._presence, self._tokens)
            self._loops = [*map(self._marks.start, (self._hints.run(), self._looking.run(), renewing))]

    async def _leave(self, user: str, token: str) -> None:
        try:
            await self._presence.aleave(user, token)
        except MessagingError as error:
            logger.warning("A stream of %r counts for some seconds after its end: %s", user, error)


_hubs: dict[tuple[str, str, int], tuple[asyncio.AbstractEventLoop, Hub]] = {}


def hub_of(using: str | None = None) -> Hub:
    """The hub of the running event loop for an alias and the current prefix."""
    loop, alias = asyncio.get_running_loop(), using if using is not None else conf.alias()
    key = (alias, keys.current_prefix(), id(loop))
    found = _hubs.get(key)
    if found is not None and found[0] is loop:
        return found[1]
    for other, (owner, _) in list(_hubs.items()):
        if owner.is_closed():
            del _hubs[other]
    hub = Hub(alias)
    _hubs[key] = (loop, hub)
    return hub


def open_hubs() -> list[tuple[asyncio.AbstractEventLoop, Hub]]:
    """The hubs of this process, with their event loops."""
    return [(loop, hub) for loop, hub in _hubs.values() if not loop.is_closed()]
