"""The open connections to the servers of an alias, and the callers that wait for one.

Most connections are idle or used by one call. The others have a blocking command pending for which no caller
waits now: a server checks the timeout of such a command only when its own timer ticks, up to 100 ms late. So
the caller keeps the time, and leaves the command pending for the next call with the same words. A command
that no call takes over ends by itself, after `Wait.LINGER` seconds at most.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakSet

from redis.exceptions import MaxConnectionsError, RedisError

from .commands import Wait, Words
from .connection import Address, BlockingSignal, LoopSignal, Style
from .outcome import NotSent
from .topology import QUERY_TIMEOUT, Endpoint, dial

#: seconds; a connection that was idle for longer is closed instead of used
MAX_IDLE = 60.0
#: seconds; a connection that was idle for longer is checked before use: the server may have closed it
UNCHECKED_IDLE = 0.1
#: seconds after which a queued caller looks for a connection itself: the thread that gave one back may have
#: been interrupted before it handed it over
QUEUE_INTERVAL = 1.0
#: seconds after which the server has surely ended a pending command; without a reply by then, its connection
#: is broken
ENDED = Wait.LINGER + 0.5


class Connections:
    """The connections of one alias: blocking ones, shared by all threads, or those of one event loop.

    At most `max_connections` (from the CACHES entry) are open to a server. A caller that needs another one is
    queued until its deadline; the first in line gets the next connection that is given back, or opens a new
    one after one was closed. While no caller is queued, the hot path takes no lock: `list.pop` and
    `list.append` are atomic.
    """

    def __init__(self, endpoint: Endpoint, style: Style) -> None:
        #: blocking commands for which no caller waits now, each on a connection of its own
        self.waits = PendingWaits()
        self._endpoint = endpoint
        self._style = style
        #: by the server's address
        self._idle: defaultdict[Address | None, list[Any]] = defaultdict(list)
        self._open: defaultdict[Address | None, WeakSet[Any]] = defaultdict(WeakSet)
        #: the queued callers, first come first served; has only servers for which callers are queued
        self._queues: dict[Address | None, deque[_Queued]] = {}
        #: held while connections are counted or handed over, never while waiting; signal handlers re-enter
        self._lock = threading.RLock()
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
            connection = self.take_idle(address, fresh=fresh)
            if connection is None and await self.reclaim():
                connection = self.take_idle(address, fresh=fresh)
            if connection is None:
                connection = await self._prepare(await self._queue_up(address, ends), ends, fresh=fresh)
            return connection
        except RedisError as error:
            raise NotSent from error

    async def take_for_wait(self, address: Address | None, seconds: float, *, spare: int = 0) -> Any:
        """A connection that a wait may occupy, or None: a quarter of them, at least one, is reserved for
        calls, and `spare` more for other waits. Raises NotSent."""
        ends = monotonic() + seconds
        await self.reclaim()
        with self._lock:  # many threads may begin to wait at the same time
            if address in self._queues or not self._may_wait(address, spare):
                return None
            connection = self.take_idle(address, fresh=True) or self._find_free(address)
        try:
            return connection and await self._prepare(connection, ends, fresh=True)
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
            self._serve(connection.address)
        try:
            if now - idle[0].idle_since > self._max_idle:
                self.close_one(idle.pop(0))
        except IndexError:  # another thread took it
            pass
        return None

    async def keep(self, pending: PendingWait) -> None:
        """Keep a pending wait for the next call with the same words."""
        self.park(pending)
        await self.reclaim()

    def park(self, pending: PendingWait) -> None:
        """The same, without reusing the connections of waits that have ended."""
        if self._retired:
            self.close_one(pending.connection)
            return
        self.waits.keep(pending)
        self._serve(pending.connection.address)

    async def reclaim(self) -> bool:
        """Reuse the connections of waits that the server has ended; returns whether any were found."""
        found = False
        while (ended := self.waits.take_ended()) is not None:
            found = True
            if not ended.connection.is_broken:  # no reply in time: its server is gone
                self.drop(ended.connection, ended.sent_at)
                continue
            try:
                await self._style.done(ended.connection.receive(QUERY_TIMEOUT))
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
        """Close a connection; the first queued caller may open another one."""
        connection.close()
        with self._lock:
            self._open[connection.address].discard(connection)
            self._serve(connection.address)

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
                while (pending := self.waits.take_any(address)) is not None:
                    self.close_one(pending.connection)
                self._close_idle(address)

    def _close_idle(self, address: Address | None) -> None:
        idle = self._idle[address]
        with suppress(IndexError):
            while True:
                self.close_one(idle.pop())

    def _may_wait(self, address: Address | None, spare: int) -> bool:
        limit = self._endpoint.max_connections
        allowed = limit - max(1, limit // 4)
        if allowed > spare:  # else the first wait of all gets it
            allowed -= spare
        in_use = len(self._open[address]) - len(self._idle[address]) - self.waits.number_at(address)
        return in_use < allowed

    async def _queue_up(self, address: Address | None, ends: float) -> Any:
        """Wait in line for a connection, which may be one to open; raises MaxConnectionsError."""
        queued, is_new = _Queued(self._style.signal()), True
        try:
            while queued.given is None and (is_new or monotonic() < ends):
                with self._lock:
                    queue = self._queues.setdefault(address, deque())
                    if is_new or queued not in queue:
                        queue.append(queued)
                    self._serve(address)
                is_new = False
                if queued.given is None:
                    await queued.signal.wait(min(ends - monotonic(), QUEUE_INTERVAL))
            self._leave(address, queued)
        except BaseException:  # interrupted, maybe after a connection was handed over
            self._leave(address, queued)
            if queued.given is not None:
                self._pass_on(queued.given)
            raise
        if queued.given is None:
            raise MaxConnectionsError(
                f"all {self._endpoint.max_connections} connections are in use (max_connections)"
            )
        return queued.given

    def _leave(self, address: Address | None, queued: _Queued) -> None:
        """Leave the queue; from now on, nothing is handed over to this caller."""
        with self._lock:
            queue = self._queues.get(address)
            if queued.given is None and queue is not None:
                with suppress(ValueError):
                    queue.remove(queued)
                if not queue:
                    del self._queues[address]

    def _serve(self, address: Address | None) -> None:
        """Hand the connections that are free to the queued callers, in the order of their arrival."""
        with self._lock:
            queue = self._queues.get(address)
            while queue:
                first = queue[0]
                # One that has a connection already: an interrupt ended the previous call at this point.
                first.given = first.given or self._find_free(address)
                if first.given is None:
                    return
                first.signal.set()
                with suppress(ValueError):  # a signal handler has done it
                    queue.remove(first)
            self._queues.pop(address, None)

    def _find_free(self, address: Address | None) -> Any:
        """An idle connection, or one to open; closes that of a wait that no caller needs now if there are too
        many. None if all are in use."""
        with suppress(IndexError):  # a running caller took the last one
            if self._idle[address]:
                return self._idle[address].pop()
        if len(self._open[address]) < self._endpoint.max_connections:
            return self._reserve(address)
        pending = self.waits.take_any(address) if self.waits else None
        return None if pending is None else self._replace(pending.connection)

    def _reserve(self, address: Address | None) -> Any:
        """A connection that is not open yet, but counts."""
        with self._lock:
            connection = self._style.connection(address)
            self._open[address].add(connection)
        return connection

    def _replace(self, connection: Any) -> Any:
        """Close a connection and reserve another one for the same caller."""
        connection.close()
        with self._lock:
            self._open[connection.address].discard(connection)
            return self._reserve(connection.address)

    def _pass_on(self, connection: Any) -> None:
        """Make a connection that was handed over available to the next caller."""
        if self._retired or _is_unopened(connection):
            self.close_one(connection)
        else:
            self._idle[connection.address].append(connection)
            self._serve(connection.address)

    async def _prepare(self, connection: Any, ends: float, *, fresh: bool) -> Any:
        """Open a connection that is not open yet, and replace one that can't be used."""
        if not _is_unopened(connection):
            is_current = connection.credentials == self._endpoint.credentials
            if is_current and not (fresh and connection.is_broken):
                return connection
            connection = self._replace(connection)
        try:
            connection.credentials = self._endpoint.credentials
            await dial(self._style, self._endpoint, connection, ends - monotonic())
        except BaseException:
            self.close_one(connection)
            raise
        return connection


class _Queued:
    """A caller that waits for a connection."""

    __slots__ = ("given", "signal")

    def __init__(self, signal: BlockingSignal | LoopSignal) -> None:
        self.signal = signal
        #: the connection that was handed over
        self.given: Any = None


def _is_unopened(connection: Any) -> bool:
    """Whether a connection that is not in use was never opened."""
    return not connection.idle_since


class PendingWaits:
    """Pending commands for which no caller waits now. Safe to share between threads and with a signal
    handler: the lock is never held during an operation that could block."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: by their words; in both, the oldest come first
        self._by_words: dict[Words, deque[PendingWait]] = {}
        self._in_order: dict[int, PendingWait] = {}

    def __len__(self) -> int:
        return len(self._in_order)

    def number_at(self, address: Address | None) -> int:
        """How many are pending at a server."""
        with self._lock:
            return sum(one.connection.address == address for one in self._in_order.values())

    def keep(self, pending: PendingWait) -> None:
        """Add a pending command."""
        with self._lock:
            self._in_order[id(pending)] = pending
            self._by_words.setdefault(pending.words, deque()).append(pending)

    def take(self, words: Words) -> PendingWait | None:
        """Remove and return one with these words."""
        with self._lock:
            same = self._by_words.get(words)
            return self._remove(same[0]) if same else None

    def take_ended(self) -> PendingWait | None:
        """Remove and return one that the server has ended, so that its connection can be reused."""
        with self._lock:
            oldest = next(iter(self._in_order.values()), None)
            return self._remove(oldest) if oldest is not None and oldest.has_ended else None

    def take_any(self, address: Address | None) -> PendingWait | None:
        """Remove and return the oldest one at a server."""
        with self._lock:
            there = (one for one in self._in_order.values() if one.connection.address == address)
            oldest = next(there, None)
            return None if oldest is None else self._remove(oldest)

    def take_all(self) -> list[PendingWait]:
        """Remove and return all of them."""
        with self._lock:
            return [self._remove(one) for one in list(self._in_order.values())]

    def _remove(self, pending: PendingWait) -> PendingWait:
        del self._in_order[id(pending)]
        same = self._by_words[pending.words]
        same.remove(pending)
        if not same:
            del self._by_words[pending.words]
        return pending


class PendingWait(NamedTuple):
    """A blocking command that was sent and has no reply yet."""

    words: Words
    connection: Any
    #: monotonic
    sent_at: float

    @property
    def ends(self) -> float:
        """When the server must have replied."""
        return self.sent_at + ENDED

    @property
    def has_ended(self) -> bool:
        """Whether the server must have replied by now."""
        return monotonic() > self.ends
