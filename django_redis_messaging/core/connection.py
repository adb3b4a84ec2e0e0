"""Connections to one server: those that block a thread, and those of an event loop.

The driver opens a socket, with TLS and everything else that CACHES configures, and sends nothing. From then
on this app reads and writes the socket, with hiredis: the handshake takes one round trip, each call has a
time limit of its own, and large values are not copied. docs/benchmarks.md says what else it saves.

Code that both kinds share is written once, as coroutines, and gets what differs from a `Style`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import re
import select
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from io import BytesIO
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import redis.asyncio.connection
from hiredis import Reader, pack_command
from redis import exceptions as driver
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import DefaultParser
from redis.retry import Retry

from ..errors import ConfigurationError
from .commands import BulkWords, Words

A = TypeVar("A")
T = TypeVar("T")
#: host and port
Address = tuple[str, int]
#: one reply for each call; an error reply is an exception in the list
Replies = list[Any]
#: seconds; the minimum time to connect
MIN_TIMEOUT = 0.001
#: returned by the reader while a reply is incomplete
INCOMPLETE = object()
#: the text of the error after the server has closed the connection
CLOSED = "the server closed the connection"
#: what a redirect says for the host of the node itself
UNKNOWN_HOSTS = ("", "?")
#: bytes; the size of the receive buffer
CHUNK = 65536
#: bytes; a shorter beginning of a large reply is left to the reader
MIN_BULK_START = 1024
#: matches the beginning of a reply that is one string of 10 kB or more; the group is its size
_BULK_START = re.compile(rb"\$(\d{5,9})\r\n")


class Target(NamedTuple):
    """How to dial a server: the driver's connection class and its parameters."""

    #: the CACHES alias, for error messages
    alias: str
    kind: type[Any]
    parameters: dict[str, Any]

    @property
    def address(self) -> Address | None:
        """Host and port; None: a unix socket."""
        if "path" in self.parameters:
            return None
        return self.parameters.get("host", "localhost"), int(self.parameters.get("port", 6379))


class Connection(ABC):
    """The common part of both kinds of connections."""

    def __init__(self, address: Address | None = None) -> None:
        #: the address that it was taken for, see `Endpoint.route`
        self.address = address
        #: the server's host; None: a unix socket
        self.host: str | None = None
        self.port = 0
        #: when it was last given back (monotonic)
        self.idle_since = 0.0
        #: version of the alias's credentials at the time of opening, see `Endpoint.credentials`
        self.credentials = 0
        self._alias = ""
        # hiredis's type doesn't know that it takes a buffer
        self._reader: Any = Reader(
            protocolError=driver.InvalidResponse,
            replyError=functools.partial(_reply_error, weakref.ref(self)),
            notEnoughData=INCOMPLETE,
        )

    def _dialer(self, target: Target, kind: Any, retry: Any, timeout: float | None, seconds: float) -> Any:
        """The driver's connection, which opens the socket and sends nothing: the handshake is sent later, in
        one round trip and within the time limit."""
        self._alias, _, parameters = target
        self.host, self.port = target.address or (None, 0)
        # the deadline may have passed a moment ago; sockets refuse negative timeouts
        seconds = max(seconds, MIN_TIMEOUT)
        limits = {
            "socket_timeout": timeout if timeout is None else max(timeout, MIN_TIMEOUT),
            "socket_connect_timeout": min(parameters.get("socket_connect_timeout") or seconds, seconds),
        }
        if kind is None:
            raise unusable_alias(
                target.alias, f"{target.kind.__name__} has no async version: use the blocking API"
            )
        try:
            return kind(**{**parameters, **limits, "redis_connect_func": _no_handshake, "retry": retry})
        except (TypeError, ValueError, driver.RedisError) as error:
            raise unusable_alias(self._alias, error) from error

    def _fail(self, error: BaseException) -> NoReturn:
        """Close the connection and raise `error`; a network error becomes one of the driver's."""
        self.close()
        if isinstance(error, TimeoutError):
            raise driver.TimeoutError("no reply in time") from error
        if isinstance(error, OSError):
            raise driver.ConnectionError(str(error)) from error
        if type(error) is driver.RedisError:  # the base class itself is raised for unsupported options
            raise unusable_alias(self._alias, error) from error
        raise error

    @abstractmethod
    def close(self) -> None:
        """Close the connection at once, without waiting for the server."""


class BlockingConnection(Connection):
    """A connection that blocks its thread. Use it in one thread at a time."""

    _socket: Any = None
    #: seconds; the timeout that is set on the socket
    _timeout = math.nan

    def __init__(self, address: Address | None = None) -> None:
        super().__init__(address)
        self._buffer = bytearray(CHUNK)

    def open(self, target: Target, seconds: float) -> None:
        """Connect and authenticate within `seconds`; raises RedisError."""
        ends = monotonic() + seconds
        dialed = self._dialer(target, target.kind, Retry(NoBackoff(), 0), seconds, seconds)
        try:
            try:
                dialed.connect()
            finally:  # take over the socket also after an interrupt
                self._socket, dialed._sock = dialed._sock, None
            provider = dialed.credential_provider
            calls = handshake(dialed, provider and provider.get_credentials())
            raise_first_error(self.exchange(calls, ends - monotonic()))
        except BaseException as error:
            self._fail(error)

    def exchange(self, calls: Sequence[Words], seconds: float) -> Replies:
        """Send calls and return their replies, within `seconds`; raises RedisError."""
        ends = monotonic() + seconds
        self.send(calls, seconds)
        return self._replies(len(calls), ends, at_start=True)

    def send(self, calls: Sequence[Words], seconds: float) -> None:
        """Send calls; `receive` returns their replies."""
        try:
            if seconds != self._timeout:
                self._limit(seconds)
            *earlier, last = pack(calls)
            if earlier:
                ends = monotonic() + seconds
                for piece in earlier:
                    self._socket.sendall(piece)
                    self._limit(ends - monotonic())
            self._socket.sendall(last)
        except BaseException as error:
            self._fail(error)

    def receive_all(self, count: int, seconds: float) -> Replies:
        """Return the replies to all calls that were sent."""
        ends = monotonic() + seconds
        try:
            self._limit(seconds)
        except BaseException as error:
            self._fail(error)
        return self._replies(count, ends, at_start=True)

    def receive(self, seconds: float) -> Any:
        """Return the next reply."""
        reply = self._reader.gets()
        if reply is not INCOMPLETE:
            return reply
        try:
            self._limit(seconds)
        except BaseException as error:
            self._fail(error)
        return self._replies(1, monotonic() + seconds)[0]

    def readable(self, seconds: float = 0) -> bool:
        """Whether a reply arrives within `seconds`, or the connection ends. Reads nothing, so another thread
        may use the connection meanwhile."""
        if self._reader.has_data() or (hasattr(self._socket, "pending") and self._socket.pending()):
            return True
        return is_readable(self._socket, seconds)

    @property
    def is_broken(self) -> bool:
        """Whether it can't be used any more: it has ended, or received data that was not requested."""
        return self.readable()

    def close(self) -> None:
        """Close the connection at once, without waiting for the server."""
        if self._socket is not None:
            self._socket.close()

    __del__ = close

    def _replies(self, count: int, ends: float, *, at_start: bool = False) -> Replies:
        """Receive this number of replies. `at_start`: the reader holds no part of a reply."""
        reader, buffer = self._reader, self._buffer
        replies: Replies = []
        missing = count
        try:
            while True:
                received: int = self._socket.recv_into(buffer)
                if not received:
                    raise driver.ConnectionError(CLOSED)
                if at_start and received >= MIN_BULK_START and (bulk := self._read_bulk(received, ends)):
                    replies.append(bulk)
                    missing -= 1
                else:
                    at_start = False
                    reader.feed(buffer, 0, received)
                    while missing and (reply := reader.gets()) is not INCOMPLETE:
                        replies.append(reply)
                        missing -= 1
                if not missing:
                    return replies
                self._limit(ends - monotonic())
        except BaseException as error:
            self._fail(error)

    def _read_bulk(self, received: int, ends: float) -> bytes | None:
        """The reply whose first bytes are in the buffer, if it is a large string and not complete. Receives
        the rest of it into its place, because the reader copies each byte three times."""
        start = _BULK_START.match(self._buffer)
        if start is None:
            return None
        size, done = int(start[1]) + 2, received - start.end()
        if done >= size:
            return None
        reply = BytesIO(bytes(size))
        with reply.getbuffer() as view:
            view[:done] = self._buffer[start.end() : received]
            while done < size:
                self._limit(ends - monotonic())
                with view[done:] as rest:  # released even if the traceback of an error is kept
                    received = self._socket.recv_into(rest)
                if not received:
                    raise driver.ConnectionError(CLOSED)
                done += received
        reply.truncate(size - 2)
        return reply.getvalue()  # doesn't copy

    def _limit(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError("no reply in time")
        self._socket.settimeout(seconds)
        self._timeout = seconds


class AsyncConnection(Connection, asyncio.BufferedProtocol):
    """A connection that belongs to an event loop. Use it in one task at a time."""

    def __init__(self, address: Address | None = None) -> None:
        super().__init__(address)
        self._loop = asyncio.get_running_loop()
        #: a view: asyncio's TLS slices what it gets, and a slice of a bytearray would be a copy
        self._buffer = memoryview(bytearray(CHUNK))
        self._transport: Any = None
        #: kept, because it closes the transport when it is destroyed
        self._writer: Any = None
        self._ended: BaseException | None = None
        #: the wait for data, and when it ends (time of the loop)
        self._arrival: asyncio.Future[None] | None = None
        self._ends = 0.0
        #: it stays for later waits, which end later: making one for each wait takes longer
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ends = 0.0

    async def open(self, target: Target, seconds: float) -> None:
        """Connect and authenticate within `seconds`; raises RedisError."""
        kind = getattr(redis.asyncio.connection, target.kind.__name__, None)
        dialed = self._dialer(target, kind, AsyncRetry(NoBackoff(), 0), None, seconds)
        try:
            async with asyncio.timeout(seconds):
                try:
                    await dialed.connect()
                finally:  # take over the socket also after a cancellation
                    self._take_over(dialed)
                provider = dialed.credential_provider
                calls = handshake(dialed, provider and await provider.get_credentials_async())
                raise_first_error(await self.exchange(calls, seconds))
        except BaseException as error:
            self._fail(error)

    def _take_over(self, dialed: Any) -> None:
        self._writer, dialed._writer, dialed._reader = dialed._writer, None, None
        if self._writer is not None:
            self._transport = self._writer.transport
            self._transport.set_protocol(self)

    def exchange(self, calls: Sequence[Words], seconds: float) -> Coroutine[Any, Any, Replies]:
        """Send calls and return their replies, within `seconds`; raises RedisError."""
        self._write(calls)
        return self._replies(len(calls), seconds)

    async def send(self, calls: Sequence[Words], _: float) -> None:
        """Send calls; `receive` returns their replies."""
        self._write(calls)

    async def receive_all(self, count: int, seconds: float) -> Replies:
        """Return the replies to all calls that were sent."""
        return await self._replies(count, seconds)

    async def receive(self, seconds: float) -> Any:
        """Return the next reply."""
        return (await self._replies(1, seconds))[0]

    async def readable(self, seconds: float = 0) -> bool:
        """Whether a reply arrives within `seconds`, or the connection ends. A cancellation loses nothing."""
        if not self.is_broken:
            with contextlib.suppress(TimeoutError):
                await self._arrival_by(self._loop.time() + seconds)
        return self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether it can't be used any more: it has ended, or received data that was not requested."""
        if self._ended is not None or self._reader.has_data():
            return True
        # The loop may not have polled the socket yet.
        return is_readable(self._transport.get_extra_info("socket"), 0)

    def close(self) -> None:
        """Close the connection at once, without waiting for the server."""
        self._ended = self._ended or ConnectionError("the connection was closed")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    async def _replies(self, count: int, seconds: float) -> Replies:
        reader, ends = self._reader, self._loop.time() + seconds
        replies: Replies = []
        try:
            while True:
                while len(replies) < count and (reply := reader.gets()) is not INCOMPLETE:
                    replies.append(reply)
                if len(replies) == count:
                    return replies
                if self._ended is not None:
                    raise driver.ConnectionError(str(self._ended))
                await self._arrival_by(ends)
        except BaseException as error:
            self._fail(error)

    def _arrival_by(self, ends: float) -> asyncio.Future[None]:
        """Await it until data arrives or the connection ends; raises TimeoutError."""
        self._arrival = arrival = self._loop.create_future()
        self._ends = ends
        if self._timer is None or self._timer_ends > ends:
            self._set_timer()
        return arrival

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ends = self._ends
        self._timer = self._loop.call_at(self._ends, self._check_time)

    def _check_time(self) -> None:
        """End the wait if its time is over."""
        self._timer = None
        if self._arrival is None or self._arrival.done():
            return
        if self._loop.time() < self._ends:
            self._set_timer()
        else:
            self._arrival.set_exception(TimeoutError("no reply in time"))

    def _write(self, calls: Sequence[Words]) -> None:
        if self._ended is not None:
            raise driver.ConnectionError(str(self._ended))
        for piece in pack(calls):
            self._transport.write(piece)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.feed(self._buffer, 0, nbytes)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._ended or exc or ConnectionError(CLOSED)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class BlockingSignal:
    """Wakes one thread. Unlike that of an Event, its `set` may be called in a signal handler."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the wait, now or later."""
        self._items.put(None)

    set_from_any_thread = set

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, or for this many seconds."""
        with suppress(Empty):
            self._items.get(timeout=max(seconds, 0))


class LoopSignal:
    """Wakes one task of the running event loop."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        """End the wait, now or later."""
        if not self._future.done():
            self._future.set_result(None)

    def set_from_any_thread(self) -> None:
        """`set`, also from outside of the loop."""
        with suppress(RuntimeError):  # the loop is closed
            self._future.get_loop().call_soon_threadsafe(self.set)

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, or for this many seconds."""
        await asyncio.wait([self._future], timeout=max(seconds, 0))


class Style(NamedTuple):
    """What shared code uses: what blocks a thread, or what belongs to asyncio.

    Shared code is a coroutine that awaits `done(...)` around each call that does I/O. In the blocking style
    the call has finished by then, and the coroutine is never suspended, so `run` needs no event loop.
    """

    connection: type[BlockingConnection] | type[AsyncConnection]
    done: Callable[[Any], Awaitable[Any]]
    sleep: Callable[[float], Awaitable[None]]
    signal: Callable[[], BlockingSignal | LoopSignal]


async def _done(result: T) -> T:
    return result


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251  (the blocking style: its coroutines run outside of event loops)


def _identity(awaitable: Awaitable[T]) -> Awaitable[T]:
    return awaitable


BLOCKING = Style(BlockingConnection, _done, _sleep, BlockingSignal)
ASYNCIO = Style(AsyncConnection, _identity, asyncio.sleep, LoopSignal)


def run_blocking(function: Callable[[A], Coroutine[Any, Any, T]], argument: A) -> T:
    """Run a coroutine function of the blocking style and return its result."""
    try:
        # One expression and a plain call: an interrupt between making the coroutine and its first step would
        # leave it never awaited.
        function(argument).send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    raise RuntimeError(
        "Code of the blocking style was suspended: it awaited something other than those of Style."
    )


def handshake(dialed: Any, credentials: Sequence[str] | None) -> list[Words]:
    """The calls to send on a new connection, at least one; `credentials`: those of a provider.

    A server that refuses a connection (maxclients, protected mode, a proxy without a backend) accepts it
    first. Only the reply to a call that changes nothing tells this from a lost reply to the first operation.
    """
    own = [word for word in (dialed.username, dialed.password) if word]
    calls: list[Words] = [("AUTH", *(credentials or own))] if credentials or own else []
    if dialed.client_name:
        calls.append(("CLIENT", "SETNAME", dialed.client_name))
    if dialed.db:
        calls.append(("SELECT", str(dialed.db)))
    return calls or [("PING",)]


def raise_first_error(replies: Replies) -> None:
    """Raise the first error reply."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def is_readable(source: Any, seconds: float) -> bool:
    """Whether a socket has data to read within `seconds`, or is closed."""
    poll = select.poll()
    try:
        poll.register(source, select.POLLIN)
    except (ValueError, TypeError):  # closed, or never opened
        return True
    return bool(poll.poll(math.ceil(max(seconds, 0) * 1000)))  # a negative time would mean: for ever


def unusable_alias(alias: str, reason: object) -> ConfigurationError:
    """The error for a CACHES entry with which no connection can be made."""
    return ConfigurationError(f"CACHES[{alias!r}] can't be used: {str(reason).rstrip('.')}.")


def _no_handshake(_: object) -> None:
    """Replaces the driver's own handshake."""


def _reply_error(connection: Callable[[], Connection | None], text: str) -> Exception:
    """Convert an error reply to an exception; a redirect without a host means the server's own host."""
    parser: Any = DefaultParser
    error: Exception = parser.parse_error(text)
    if isinstance(error, driver.AskError) and error.host in UNKNOWN_HOSTS:
        error.host = getattr(connection(), "host", "")
        error.node_addr = error.host, error.port
    return error


#: the packer of hiredis, whose type says that it takes one word; the driver's converts each word first
_pack: Callable[[Words], bytes] = cast(Any, pack_command)


def pack(calls: Sequence[Words]) -> Sequence[bytes]:
    """Encode calls into pieces to be sent one after the other: one piece, unless there are bulk words."""
    if len(calls) == 1 and type(calls[0]) is tuple:
        return (_pack(calls[0]),)
    pieces: list[bytes] = []
    packed: list[bytes] = []
    for words in calls:
        if isinstance(words, BulkWords):
            *others, data = words
            _, _, encoded = _pack(tuple(others)).partition(b"\r\n")
            packed.append(b"*%d\r\n%b$%d\r\n" % (len(words), encoded, len(data)))
            pieces += (b"".join(packed), cast(bytes, data))
            packed = [b"\r\n"]
        else:
            packed.append(_pack(words))
    return (*pieces, b"".join(packed))
