"""Connections that belong to an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import redis.asyncio.connection
from redis import exceptions as driver
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from ..steps import Words
from .base import (
    INCOMPLETE,
    Address,
    Connection,
    Replies,
    Target,
    handshake,
    is_readable,
    raise_first_error,
)
from .packing import pack


class AsyncConnection(Connection, asyncio.Protocol):
    """A connection that belongs to an event loop. Use it in one task at a time."""

    def __init__(self, address: Address | None = None) -> None:
        super().__init__(address)
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        #: kept, because it closes the transport when it is destroyed
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

    async def exchange(self, calls: Sequence[Words], seconds: float) -> Replies:
        """Send calls and return their replies, within `seconds`; raises RedisError."""
        self._write(calls)
        return await self._replies(len(calls), seconds)

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
                await self._wait_for_data(self._loop.time() + seconds)
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
                await self._wait_for_data(ends)
        except BaseException as error:
            self._fail(error)

    async def _wait_for_data(self, ends: float) -> None:
        """Wait until data arrives or the connection ends; raises TimeoutError."""
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
        for piece in pack(calls):
            self._transport.write(piece)

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
