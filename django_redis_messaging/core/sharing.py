"""Waits of an event loop without a connection of their own: those for streams of one server share one.

One of the callers, the leader, reads the streams of all of them, and wakes those that have an entry. When it
leaves, the next one leads. In a Cluster, only the streams of one slot can be read together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from time import monotonic
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError, TimeoutError

from .connections import Connections
from .endpoints import QUERY_TIMEOUT
from .retry import is_temporary
from .sending import Sender
from .sockets import Address
from .steps import Entries, Listen, Words, entry_number
from .waiting import Pending
from .worlds import LoopSignal

#: ms after which the server ends a shared read, so that the next one includes what is waited for since
BLOCK = 100
#: streams that are read together; with more, they take turns
MAX_STREAMS = 500


class _Listener:
    """A call that waits."""

    __slots__ = ("ends", "last", "reply", "signal", "step")

    def __init__(self, step: Listen, ends: float) -> None:
        self.step = step
        self.ends = ends
        #: entries up to this id have been examined
        self.last = step.last
        self.signal = LoopSignal()
        self.reply: Any = None


class _Group:
    """The calls that share a connection."""

    def __init__(self, address: Address | None) -> None:
        self.address = address
        self.streams: dict[str, dict[_Listener, None]] = {}
        self.leader: _Listener | None = None
        #: the connection between two reads
        self.connection: Any = None
        self.pending: Pending | None = None

    def add(self, one: _Listener) -> None:
        self.streams.setdefault(one.step.stream, {})[one] = None

    def remove(self, one: _Listener) -> None:
        listeners = self.streams.get(one.step.stream, {})
        listeners.pop(one, None)
        if not listeners:
            self.streams.pop(one.step.stream, None)

    def listeners(self) -> list[_Listener]:
        """All calls, copied, as below: one that is destroyed unfinished leaves at any time."""
        return [one for some in list(self.streams.values()) for one in list(some)]

    def words(self) -> Words:
        """The words of the next read."""
        names = list(self.streams)[:MAX_STREAMS]
        if len(self.streams) > MAX_STREAMS:
            for name in names:
                self.streams[name] = self.streams.pop(name, {})
        ids = [
            f"{min((one.last for one in list(self.streams.get(name, ()))), default=0)}-0" for name in names
        ]
        return ("XREAD", "BLOCK", str(BLOCK), "STREAMS", *names, *ids)

    def deliver(self, name: str, entries: Entries) -> None:
        """Wake the calls for which a stream has an entry."""
        newest = max(entry_number(entry)[0] for entry in entries)
        for one in list(self.streams.get(name, ())):
            if one.step.finds(entries):
                one.reply = entries
                self.remove(one)
                one.signal.set()
            one.last = max(one.last, newest)


class SharedWaits:
    """The shared waits of an event loop's client."""

    def __init__(self, connections: Connections, sender: Sender) -> None:
        self._connections = connections
        self._sender = sender
        self._groups: dict[Hashable, _Group] = {}

    async def wait(self, step: Listen, address: Address | None, slot: int | None, ends: float) -> Any:
        """The entries, or None when the time is over; earlier if no connection is left, or one of several
        streams can't be read."""
        one, key = _Listener(step, ends), (address, slot)
        group = self._groups.setdefault(key, _Group(address))
        group.add(one)
        try:
            while one.reply is None and (left := one.ends - monotonic()) > 0:
                group.leader = group.leader or one
                if group.leader is not one:
                    await one.signal.wait(left)
                elif not await self._receive(group, ends):
                    self._end_others(group, one)
                    await asyncio.sleep(min(left, BLOCK / 1000))
                    break
        finally:
            self._leave(key, group, one)
        return one.reply

    def _end_others(self, group: _Group, leader: _Listener) -> None:
        """End the waits of the others early. What they do next, such as to poll, needs no shared read."""
        for one in group.listeners():
            if one is not leader:
                group.remove(one)
                one.ends = 0.0
                one.signal.set()

    def _leave(self, key: Hashable, group: _Group, one: _Listener) -> None:
        group.remove(one)
        if group.leader is one:
            group.leader = next(iter(group.listeners()), None)
            if group.leader is not None:
                group.leader.signal.set()
        if group.streams:
            return
        if self._groups.get(key) is group:
            del self._groups[key]
        pending, connection = group.pending, group.connection
        group.pending = group.connection = None
        if pending is not None:
            self._connections.park(pending)
        if connection is not None:
            self._connections.give_back(connection)

    async def _receive(self, group: _Group, ends: float) -> bool:
        """Wait for the reply to a read, as the leader. False: there is no connection for it, or an error
        whose stream is unknown."""
        pending = group.pending or await self._send(group)
        if pending is None:
            return False
        connection = pending.connection
        # not by `use`: a cancellation must not close the connection
        if not await connection.readable(min(ends, pending.ends) - monotonic()):
            if pending.has_ended:
                group.pending = None
                self._connections.drop(connection, pending.sent_at)
                raise TimeoutError("no reply in time")
            return True
        group.pending = None
        reply = await self._sender.use(connection, connection.receive, QUERY_TIMEOUT)
        if isinstance(reply, Exception):
            self._sender.give_back(connection, [reply])
            if pending.words.index("STREAMS") < len(pending.words) - 3 and _is_of_one_stream(reply):
                return False
            raise reply
        group.connection = connection
        for stream, entries in reply or ():
            group.deliver(stream.decode(), entries)
        return True

    async def _send(self, group: _Group) -> Pending | None:
        connection, group.connection = group.connection, None
        if connection is None:
            connection = await self._connections.take_for_wait(group.address, QUERY_TIMEOUT)
        if connection is None:
            return None
        words = group.words()
        await self._sender.use(connection, connection.send, [words], QUERY_TIMEOUT)
        group.pending = Pending(words, connection, monotonic())
        return group.pending


def _is_of_one_stream(error: Exception) -> bool:
    """Whether an error may be about one of the streams only, such as a key of another type."""
    if not isinstance(error, ResponseError) or type(error) not in (ResponseError, NoPermissionError):
        return False
    return not is_temporary(error)
