"""The connection pool of one client: opens connections, lends them to calls, and closes stale ones."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection
from contextlib import suppress
from time import monotonic
from typing import Any
from weakref import WeakSet

from redis.exceptions import MaxConnectionsError, RedisError

from .endpoints import QUERY_TIMEOUT, Endpoint, dial
from .retry import NotSent
from .sockets import Address
from .waiting import Pending, PendingWaits
from .worlds import World

#: seconds; a connection that was idle for longer is closed instead of used
MAX_IDLE = 60.0
#: seconds; a connection that was idle for longer is checked before use: the server may have closed it
UNCHECKED_IDLE = 0.1


class Connections:
    """The connections of one alias: blocking ones, shared by all threads, or those of one event loop.

    At most `max_connections` (from the CACHES entry) are open to a server; a caller that needs another one is
    queued until its deadline. The hot path takes no lock: `list.pop` and `list.append` are atomic.
    """

    def __init__(self, endpoint: Endpoint, world: World) -> None:
        #: blocking commands for which no caller waits now, each on a connection of its own
        self.waits = PendingWaits()
        self._endpoint = endpoint
        self._world = world
        #: by the server's address
        self._idle: defaultdict[Address | None, list[Any]] = defaultdict(list)
        self._open: defaultdict[Address | None, WeakSet[Any]] = defaultdict(WeakSet)
        self._opening = threading.RLock()
        #: queued callers by server: an event each, set when a connection may be free
        self._queues: defaultdict[Address | None, deque[Any]] = defaultdict(deque)
        self._retired = False
        #: seconds; replaces the driver's health check, and needs no round trip: a connection that is due
        #: for a check is replaced by a new one
        self._max_idle = min(endpoint.health_check_interval or MAX_IDLE, MAX_IDLE)

    def take_idle(self, address: Address | None, *, fresh: bool = False) -> Any:
        """An idle connection, or None. `fresh`: check it first, so that a failure means that the call was
        sent."""
        idle, credentials = self._idle[address], self._endpoint.credentials
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread took the last one
                return None
            age = monotonic() - connection.idle_since
            if age < UNCHECKED_IDLE and not fresh and connection.credentials == credentials:
                return connection
            if age < self._max_idle and connection.credentials == credentials and not connection.is_broken:
                return connection
            self.close_one(connection)
        return None

    async def take(self, address: Address | None, seconds: float, *, fresh: bool = False) -> Any:
        """An idle connection or a new one, within `seconds`; raises NotSent."""
        ends = monotonic() + seconds
        try:
            while True:
                connection = self.take_idle(address, fresh=fresh)
                if connection is not None:
                    return connection
                if await self.reclaim():
                    continue
                connection = self._reserve(address)
                if connection is not None:
                    return await self._open_new(connection, ends)
                await self._wait_for_vacancy(address, ends)
        except RedisError as error:
            raise NotSent from error

    def give_back(self, connection: Any) -> None:
        """Make a connection available again after use."""
        if self._retired:
            return self.close_one(connection)
        now = connection.idle_since = monotonic()
        idle = self._idle[connection.address]
        idle.append(connection)
        if self._queues:
            self._wake_next(connection.address)
        try:
            if now - idle[0].idle_since > self._max_idle:
                self.close_one(idle.pop(0))
        except IndexError:  # another thread took it
            pass
        return None

    async def keep(self, pending: Pending) -> None:
        """Keep a pending wait for the next call with the same words."""
        if self._retired:
            self.close_one(pending.connection)
            return
        self.waits.keep(pending)
        await self.reclaim()

    async def reclaim(self) -> bool:
        """Reuse the connections of waits that the server has ended; returns whether any were found."""
        found = False
        while (ended := self.waits.take_ended()) is not None:
            found = True
            if not ended.connection.is_broken:  # no reply in time: its server is gone
                self.drop(ended.connection, ended.sent_at)
                continue
            try:
                await self._world.done(ended.connection.receive(QUERY_TIMEOUT))
            except BaseException as error:
                self.close_failed(ended.connection, ended.sent_at, error)
                if not isinstance(error, RedisError):  # no caller waits for this reply: ignore driver errors
                    raise
            else:
                self.give_back(ended.connection)
        return found

    def close_failed(self, connection: Any, began: float, error: BaseException) -> None:
        """Close a connection after an exchange, begun at `began`, that raised `error`."""
        if isinstance(error, RedisError):
            self.drop(connection, began)
        else:  # interrupted: other connections are not affected
            self.close_one(connection)

    def drop(self, connection: Any, since: float) -> None:
        """Close a failed connection, and those to the same server that were idle before `since`: the cause
        probably affects them too."""
        self.close_one(connection)
        idle = self._idle[connection.address]
        for other in [one for one in list(idle) if one.idle_since <= since]:
            with suppress(ValueError):  # another thread took it
                idle.remove(other)
                self.close_one(other)

    def close_one(self, connection: Any) -> None:
        """Close a connection; a queued caller may open another one."""
        connection.close()
        with self._opening:
            self._open[connection.address].discard(connection)
        self._wake_next(connection.address)

    def close(self, *, retire: bool = False) -> None:
        """Close the idle connections and those of pending waits. `retire`: also close those in use when they
        are given back."""
        self._retired = self._retired or retire
        for pending in self.waits.take_all():
            self.close_one(pending.connection)
        for address in list(self._idle):
            self._close_idle(address)

    def close_stale(self, current: Collection[Address]) -> None:
        """Close the connections to servers that are not among the `current` ones, unless a call uses them."""
        for address in list(self._open):
            if address is not None and address not in current:
                while self._close_wait(address):
                    pass
                self._close_idle(address)

    def _close_idle(self, address: Address | None) -> None:
        idle = self._idle[address]
        with suppress(IndexError):
            while True:
                self.close_one(idle.pop())

    def may_wait(self, address: Address | None) -> bool:
        """Whether a wait may occupy a connection: a quarter of them, at least one, is reserved for calls."""
        limit = self._endpoint.max_connections
        in_use = len(self._open[address]) - len(self._idle[address]) - self.waits.number_at(address)
        return in_use < limit - max(1, limit // 4)

    def _reserve(self, address: Address | None) -> Any:
        """A connection that is not open yet; None if the maximum is reached."""
        with self._opening:
            if self._is_full(address):
                return None
            connection = self._world.connection(address)
            self._open[address].add(connection)
        return connection

    async def _open_new(self, connection: Any, ends: float) -> Any:
        try:
            connection.credentials = self._endpoint.credentials
            await dial(self._world, self._endpoint, connection, ends - monotonic())
        except BaseException:
            self.close_one(connection)
            raise
        return connection

    async def _wait_for_vacancy(self, address: Address | None, ends: float) -> None:
        """Wait until a connection is given back or closed; raises MaxConnectionsError."""
        event, queue = self._world.event(), self._queues[address]
        queue.append(event)
        try:
            # Check again: a change before the event was queued did not set it.
            if not self._idle[address] and self._is_full(address) and not self._close_wait(address):
                await self._world.wait(event, ends - monotonic())
            if monotonic() >= ends:
                raise MaxConnectionsError(
                    f"all {self._endpoint.max_connections} connections are in use (max_connections)"
                )
        except BaseException:
            _leave(queue, event)
            self._wake_next(address)  # this caller may have consumed a wake-up
            raise
        _leave(queue, event)

    def _close_wait(self, address: Address | None) -> bool:
        """Close the connection of a wait that no caller needs now; returns whether one was found."""
        pending = self.waits.take_any(address)
        if pending is not None:
            self.close_one(pending.connection)
        return pending is not None

    def _is_full(self, address: Address | None) -> bool:
        return len(self._open[address]) >= self._endpoint.max_connections

    def _wake_next(self, address: Address | None) -> None:
        queue = self._queues.get(address)
        if queue:
            with suppress(IndexError):  # another thread took the last one
                queue.popleft().set()


def _leave(queue: deque[Any], event: Any) -> None:
    with suppress(ValueError):
        queue.remove(event)
