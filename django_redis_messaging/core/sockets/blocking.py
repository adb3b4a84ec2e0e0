"""Connections that block their thread."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from io import BytesIO
from time import monotonic
from typing import Any, cast

from redis import exceptions as driver
from redis.backoff import NoBackoff
from redis.retry import Retry

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

#: bytes; the size of the receive buffer
CHUNK = 65536
#: bytes; a shorter beginning of a large reply is left to the reader
MIN_BULK_START = 1024
#: matches the beginning of a reply that is one string of 10 kB or more; the group is its size
_BULK_START = re.compile(rb"\$(\d{5,9})\r\n")


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
        ends = monotonic() + seconds
        try:
            if seconds != self._timeout:
                self._limit(seconds)
            first, *others = pack(calls)
            self._socket.sendall(first)
            for piece in others:
                self._limit(ends - monotonic())
                self._socket.sendall(piece)
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
        reader, buffer = cast(Any, self._reader), self._buffer
        replies: Replies = []
        try:
            while True:
                received = self._receive_into(buffer)
                if at_start and received >= MIN_BULK_START and (bulk := self._read_bulk(received, ends)):
                    replies.append(bulk)
                else:
                    at_start = False
                    reader.feed(buffer, 0, received)
                    while len(replies) < count and (reply := reader.gets()) is not INCOMPLETE:
                        replies.append(reply)
                if len(replies) == count:
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
                    done += self._receive_into(rest)
        reply.truncate(size - 2)
        return reply.getvalue()  # doesn't copy

    def _receive_into(self, buffer: bytearray | memoryview) -> int:
        received: int = self._socket.recv_into(buffer)
        if not received:
            raise driver.ConnectionError("the server closed the connection")
        return received

    def _limit(self, seconds: float) -> None:
        if seconds <= 0:
            raise TimeoutError("no reply in time")
        self._socket.settimeout(seconds)
        self._timeout = seconds
