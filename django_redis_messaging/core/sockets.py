"""One connection to a server, blocking or asyncio: calls go out, replies come in, each within its time.

The driver (redis-py) dials: TCP, TLS, unix sockets, as the CACHES entry says. From then on the socket is
ours: one call of `send`, one of `recv`, hiredis in between. Whatever interrupts a conversation closes the
connection, so that no reply ever reaches another caller. Redis speaks RESP2 here, in bytes.

The two classes have the same methods: worlds.py has what code needs to use either.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import select
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple, NoReturn, cast

import redis.asyncio.connection
from hiredis import Reader, pack_command
from redis import exceptions as driver
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import DefaultParser
from redis.retry import Retry

from ..errors import ConfigurationError
from .steps import Words

#: host and port
Address = tuple[str, int]
#: one reply for each call; a refusal is an exception in its place
Replies = list[Any]

#: bytes read at once
CHUNK = 65536
#: what the reader returns while a reply is incomplete
_INCOMPLETE = object()


class Target(NamedTuple):
    """What to dial: the driver's class of connection, and its parameters."""

    #: of the CACHES entry, for errors
    alias: str
    kind: type[Any]
    parameters: dict[str, Any]


class _Connection(ABC):
    """What both kinds of connections have."""

    def __init__(self, address: Address | None = None) -> None:
        #: under which it is lent, see `Endpoint.route`
        self.address = address
        #: of the server; None: a unix socket
        self.host: str | None = None
        self.port = 0
        #: when it was last given back; monotonic
        self.idle_since = 0.0
        #: the version of the alias's credentials that it was opened with
        self.credentials = 0
        self._alias = ""
        self._reader = Reader(
            protocolError=driver.InvalidResponse,
            replyError=functools.partial(_refusal, weakref.ref(self)),
            notEnoughData=_INCOMPLETE,
        )

    def _dialer(self, target: Target, kind: Any, retry: Any, timeout: float | None, seconds: float) -> Any:
        """The driver's connection, which opens the socket and sends nothing: the greeting is ours, so that it
        is one round trip, within the time that is left."""
        self._alias, _, parameters = target
        self.host = None if "path" in parameters else parameters.get("host", "localhost")
        self.port = int(parameters.get("port", 6379))
        seconds = max(seconds, 0.001)
        limits = {
            "socket_timeout": timeout,
            "socket_connect_timeout": min(parameters.get("socket_connect_timeout") or seconds, seconds),
        }
        if kind is None:
            raise unusable(target.alias, f"{target.kind.__name__} has no asyncio form: use the blocking API")
        try:
            return kind(**{**parameters, **limits, "redis_connect_func": _greet_later, "retry": retry})
        except (TypeError, ValueError, driver.RedisError) as error:
            raise unusable(self._alias, error) from error

    def _fail(self, error: BaseException) -> NoReturn:
        """Close it, for an error amid a conversation; one of the network is raised as the driver's."""
        self.close()
        if isinstance(error, TimeoutError):
            raise driver.TimeoutError("no reply in time") from error
        if isinstance(error, OSError):
            raise driver.ConnectionError(str(error)) from error
        if type(error) is driver.RedisError:  # the root itself is raised for options that can't be honoured
            raise unusable(self._alias, error) from error
        raise error

    @abstractmethod
    def close(self) -> None:
        """Close it at once, without waiting for the server."""


def unusable(alias: str, why: object) -> ConfigurationError:
    """What is raised for an entry of CACHES that no connection can be made from."""
    return ConfigurationError(f"CACHES[{alias!r}] can't be used as it is: {str(why).rstrip('.')}.")


def _greet_later(_: object) -> None:
    """In the place of the driver's own greeting."""


def _refusal(connection: Callable[[], _Connection | None], text: str) -> Exception:
    """An error reply as an exception; where it names no host, it means the server's own."""
    error: Exception = cast(Any, DefaultParser).parse_error(text)
    if isinstance(error, driver.AskError) and not error.host:
        error.host = getattr(connection(), "host", "")
    return error


def _greeting(dialed: Any, credentials: Sequence[str] | None) -> list[Words]:
    """What is sent first; `credentials`: those of a provider."""
    own = [word for word in (dialed.username, dialed.password) if word]
    greeting: list[Words] = [("AUTH", *(credentials or own))] if credentials or own else []
    if dialed.client_name:
        greeting.append(("CLIENT", "SETNAME", dialed.client_name))
    if dialed.db:
        greeting.append(("SELECT", str(dialed.db)))
    return greeting


def _accept(replies: Replies) -> None:
    """Raise the first refusal of a greeting."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def _has_news(source: Any, seconds: float) -> bool:
    """Whether a socket has something to read within `seconds`, or has ended."""
    poll = select.poll()
    try:
        poll.register(source, select.POLLIN)
    except (ValueError, TypeError):  # it is closed, or was never open
        return True
    return bool(poll.poll(math.ceil(seconds * 1000)))


def packed(calls: Sequence[Words]) -> bytes:
    """The calls as they go over the wire: by the packer below the driver's, which looks at each word."""
    if len(calls) == 1:
        return cast(bytes, pack_command(cast(Any, calls[0])))
    return b"".join([pack_command(cast(Any, words)) for words in calls])


class BlockingConnection(_Connection):
    """Blocks its thread; one thread at a time may use it."""

    _socket: Any = None
    #: seconds, as the socket has been told
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
            finally:  # also what an interrupt leaves half done
                self._socket, dialed._sock = dialed._sock, None
            provider = dialed.credential_provider
            greeting = _greeting(dialed, provider and provider.get_credentials())
            if greeting:
                _accept(self.exchange(greeting, ends - monotonic()))
        except BaseException as error:
            self._fail(error)

    def exchange(self, calls: Sequence[Words], seconds: float) -> Replies:
        """Send calls and read their replies, within `seconds` in all; raises RedisError."""
        ends = monotonic() + seconds
        self.send(calls, seconds)
        return self._replies(len(calls), ends)

    def send(self, calls: Sequence[Words], seconds: float) -> None:
        """Send calls whose replies are received later."""
        try:
            if seconds != self._timeout:
                self._limit(seconds)
            self._socket.sendall(packed(calls))
        except BaseException as error:
            self._fail(error)

    def receive(self, seconds: float) -> Any:
        """The next reply."""
        reply = self._reader.gets()
        if reply is not _INCOMPLETE:
            return reply
        try:
            self._limit(seconds)
        except BaseException as error:
            self._fail(error)
        return self._replies(1, monotonic() + seconds)[0]

    def readable(self, seconds: float = 0) -> bool:
        """Whether something can be read within `seconds`, be it that the connection has ended. Reads nothing,
        so another thread may use the connection meanwhile."""
        if self._reader.has_data() or (hasattr(self._socket, "pending") and self._socket.pending()):
            return True
        return _has_news(self._socket, seconds)

    @property
    def is_broken(self) -> bool:
        """Whether it can't be used any more: it has ended, or has sent what nobody asked for."""
        return self.readable()

    def close(self) -> None:
        """Close it at once, without waiting for the server."""
        if self._socket is not None:
            self._socket.close()

    __del__ = close

    def _replies(self, count: int, ends: float) -> Replies:
        reader, buffer = cast(Any, self._reader), self._buffer
        replies: Replies = []
        try:
            while True:
                received = self._socket.recv_into(buffer)
                if not received:
                    raise driver.ConnectionError("the server closed the connection")
                reader.feed(buffer, 0, received)
                while (reply := reader.gets()) is not _INCOMPLETE:
                    replies.append(reply)
                    if len(replies) == count:
                        return replies
                self._limit(ends - monotonic())
        except BaseException as error:
            self._fail(error)

    def _limit(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError("no reply in time")
        self._socket.settimeout(seconds)
        self._timeout = seconds


class AsyncConnection(_Connection, asyncio.Protocol):
    """Belongs to one event loop; one task at a time may use it."""

    def __init__(self, address: Address | None = None) -> None:
        super().__init__(address)
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        #: kept, since it closes the transport when it is destroyed
        self._writer: Any = None
        self._ended: BaseException | None = None
        self._arrival: asyncio.Future[None] | None = None

    async def open(self, target: Target, seconds: float) -> None:
        """Connect and authenticate within `seconds`; raises RedisError."""
        kind = getattr(redis.asyncio.connection, target.kind.__name__, None)
        dialed = self._dialer(target, kind, AsyncRetry(NoBackoff(), 0), None, seconds)
        try:
            async with asyncio.timeout(seconds):
                try:
                    await dialed.connect()
                finally:  # also what a cancellation leaves half done
                    self._take_over(dialed)
                provider = dialed.credential_provider
                greeting = _greeting(dialed, provider and await provider.get_credentials_async())
                if greeting:
                    _accept(await self.exchange(greeting, seconds))
        except BaseException as error:
            self._fail(error)

    def _take_over(self, dialed: Any) -> None:
        self._writer, dialed._writer, dialed._reader = dialed._writer, None, None
        if self._writer is not None:
            self._transport = self._writer.transport
            self._transport.set_protocol(self)

    async def exchange(self, calls: Sequence[Words], seconds: float) -> Replies:
        """Send calls and read their replies, within `seconds` in all; raises RedisError."""
        self._write(calls)
        return await self._replies(len(calls), seconds)

    async def send(self, calls: Sequence[Words], _: float) -> None:
        """Send calls whose replies are received later."""
        self._write(calls)

    async def receive(self, seconds: float) -> Any:
        """The next reply."""
        return (await self._replies(1, seconds))[0]

    async def readable(self, seconds: float = 0) -> bool:
        """Whether something can be read within `seconds`, be it that the connection has ended. Cut short, it
        loses nothing."""
        if not self.is_broken:
            with contextlib.suppress(TimeoutError):
                await self._arrives(self._loop.time() + seconds)
        return self.is_broken

    @property
    def is_broken(self) -> bool:
        """Whether it can't be used any more: it has ended, or has sent what nobody asked for."""
        if self._ended is not None or self._reader.has_data():
            return True
        # the loop may not have looked yet
        return _has_news(self._transport.get_extra_info("socket"), 0)

    def close(self) -> None:
        """Close it at once, without waiting for the server."""
        self._ended = self._ended or ConnectionError("it was closed")
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    async def _replies(self, count: int, seconds: float) -> Replies:
        reader, ends = self._reader, self._loop.time() + seconds
        replies: Replies = []
        try:
            while True:
                while len(replies) < count and (reply := reader.gets()) is not _INCOMPLETE:
                    replies.append(reply)
                if len(replies) == count:
                    return replies
                if self._ended is not None:
                    raise driver.ConnectionError(str(self._ended))
                await self._arrives(ends)
        except BaseException as error:
            self._fail(error)

    async def _arrives(self, ends: float) -> None:
        """Wait until more has arrived, or the connection has ended; raises TimeoutError."""
        self._arrival = arrival = self._loop.create_future()
        timer = self._loop.call_at(ends, _expire, arrival)
        try:
            await arrival
        finally:
            timer.cancel()
            self._arrival = None

    def _write(self, calls: Sequence[Words]) -> None:
        if self._ended is not None:
            raise driver.ConnectionError(str(self._ended))
        self._transport.write(packed(calls))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._ended or exc or ConnectionError("the server closed the connection")
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


def _expire(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_exception(TimeoutError("no reply in time"))
