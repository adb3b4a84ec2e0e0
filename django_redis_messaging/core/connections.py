"""The connections of one client: it opens them, lends them, and closes those that are no use any more."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Any
from weakref import WeakSet

from redis.exceptions import MaxConnectionsError, RedisError

from .endpoints import PATIENCE, Endpoint, dial
from .retry import NotSent
from .sockets import Address
from .waiting import Pending, PendingWaits
from .worlds import World

#: seconds for which a connection may be idle: one that was for longer is closed, not used
IDLE_AGE = 60.0
#: seconds after which an idle connection is looked at before it is used: whether the server has hung up
UNSEEN = 0.1


class Connections:
    """Those of one alias: blocking ones, shared by all threads, or those of one event loop.

    At most `max_connections` (of the CACHES entry) are open to a server; who needs another one waits in line
    until its deadline. The hot path takes no lock: `list.pop` and `list.append` are atomic.
    """

    def __init__(self, endpoint: Endpoint, world: World) -> None:
        #: waits for whose replies nobody waits now, each on a connection of its own
        self.waits = PendingWaits()
        self._endpoint = endpoint
        self._world = world
        #: by the server's address
        self._idle: defaultdict[Address | None, list[Any]] = defaultdict(list)
        self._open: defaultdict[Address | None, WeakSet[Any]] = defaultdict(WeakSet)
        self._opening = threading.RLock()
        #: those in line, each with an event that is set when it is worth looking again
        self._line: deque[Any] = deque()
        self._retired = False
        #: a health check that costs no round trip: what would be asked whether it is alive is opened anew
        self._longest = min(endpoint.health_check_interval or IDLE_AGE, IDLE_AGE)

    def idle(self, address: Address | None, *, fresh: bool = False) -> Any:
        """An idle connection, or None. `fresh`: surely alive, so that what fails on it was sent."""
        idle, credentials = self._idle[address], self._endpoint.credentials
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                return None
            age = monotonic() - connection.idle_since
            if age < UNSEEN and not fresh and connection.credentials == credentials:
                return connection
            if age < self._longest and connection.credentials == credentials and not connection.is_broken:
                return connection
            self.close_one(connection)
        return None

    async def take(self, address: Address | None, seconds: float, *, fresh: bool = False) -> Any:
        """An idle connection, or a new one, within `seconds`; raises NotSent."""
        ends = monotonic() + seconds
        try:
            while True:
                connection = self.idle(address, fresh=fresh)
                if connection is not None:
                    return connection
                if await self.reclaim():
                    continue
                connection = self._reserved(address)
                if connection is not None:
                    return await self._opened(connection, ends)
                await self._vacancy(address, ends)
        except RedisError as error:
            raise NotSent from error

    def give(self, connection: Any) -> None:
        """Take one back after use."""
        if self._retired:
            return self.close_one(connection)
        now = connection.idle_since = monotonic()
        idle = self._idle[connection.address]
        idle.append(connection)
        if self._line:
            self._next_in_line()
        try:
            if now - idle[0].idle_since > self._longest:
                self.close_one(idle.pop(0))
        except IndexError:  # another thread has taken it
            pass
        return None

    async def keep(self, pending: Pending) -> None:
        """Keep a wait that nobody waits for now, for the next call of the same words."""
        if self._retired:
            self.close_one(pending.connection)
            return
        self.waits.keep(pending)
        await self.reclaim()

    async def reclaim(self) -> bool:
        """Take back the connections of waits that the server has ended; whether there were any."""
        found = False
        while (ended := self.waits.take_ended()) is not None:
            found = True
            try:
                await self._world.done(ended.connection.receive(PATIENCE))
            except BaseException as error:
                self.lose(ended.connection, ended.sent_at, error)
                if not isinstance(error, RedisError):  # of such a wait, nobody needs to know
                    raise
            else:
                self.give(ended.connection)
        return found

    def lose(self, connection: Any, began: float, error: BaseException) -> None:
        """Close one on which an exchange failed that began then."""
        if isinstance(error, RedisError):
            self.drop(connection, began)
        else:  # it was interrupted: that is no fault of the network
            self.close_one(connection)

    def drop(self, connection: Any, since: float) -> None:
        """Close one that failed, and those to the same server that were idle since before: what has happened
        to this one has happened to them too."""
        self.close_one(connection)
        idle = self._idle[connection.address]
        for other in [one for one in list(idle) if one.idle_since <= since]:
            with suppress(ValueError):  # another thread has taken it
                idle.remove(other)
                self.close_one(other)

    def close_one(self, connection: Any) -> None:
        """Close one; who is in line may open another."""
        connection.close()
        with self._opening:
            self._open[connection.address].discard(connection)
        if self._line:
            self._next_in_line()

    def close(self, addresses: Iterable[Address | None] | None = None, *, retire: bool = False) -> None:
        """Close the idle ones to these servers; or all of them, and those of pending waits. `retire`: also
        those that are given back later."""
        self._retired = self._retired or retire
        if addresses is None:
            for pending in self.waits.take_all():
                self.close_one(pending.connection)
        for address in list(self._idle) if addresses is None else addresses:
            idle = self._idle[address]
            with suppress(IndexError):
                while True:
                    self.close_one(idle.pop())

    @property
    def addresses(self) -> list[Address | None]:
        """The servers to which some have been idle."""
        return list(self._idle)

    def may_wait(self, address: Address | None) -> bool:
        """Whether a wait may keep a connection: a quarter of them, or one, is left to calls."""
        limit = self._endpoint.max_connections
        in_use = len(self._open[address]) - len(self._idle[address]) - len(self.waits)
        return in_use < limit - max(1, limit // 4)

    def _reserved(self, address: Address | None) -> Any:
        """One that is not yet open, if there may be one more."""
        with self._opening:
            if self._is_full(address):
                return None
            connection = self._world.connection(address)
            self._open[address].add(connection)
        return connection

    async def _opened(self, connection: Any, ends: float) -> Any:
        try:
            connection.credentials = self._endpoint.credentials
            await dial(self._world, self._endpoint, connection, ends - monotonic())
        except BaseException:
            self.close_one(connection)
            raise
        return connection

    async def _vacancy(self, address: Address | None, ends: float) -> None:
        """Stand in line until something is given back or closed."""
        event = self._world.event()
        self._line.append(event)
        try:
            # looked at again, now that a change would set the event
            if not self._idle[address] and self._is_full(address) and not self._close_wait(address):
                await self._world.wait(event, ends - monotonic())
            if monotonic() >= ends:
                raise MaxConnectionsError(
                    f"all {self._endpoint.max_connections} connections are in use (max_connections)"
                )
        except BaseException:
            self._leave_line(event)
            self._next_in_line()  # it may have been its turn
            raise
        self._leave_line(event)

    def _close_wait(self, address: Address | None) -> bool:
        """Close a connection on which nobody waits now; whether there was one."""
        pending = self.waits.take_any(address)
        if pending is not None:
            self.close_one(pending.connection)
        return pending is not None

    def _is_full(self, address: Address | None) -> bool:
        return len(self._open[address]) >= self._endpoint.max_connections

    def _leave_line(self, event: Any) -> None:
        with suppress(ValueError):
            self._line.remove(event)

    def _next_in_line(self) -> None:
        with suppress(IndexError):
            self._line.popleft().set()
