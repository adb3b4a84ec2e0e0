"""The private names of the driver that are used: those of the socket it has opened."""

from __future__ import annotations

import asyncio
import socket

import pytest
import redis
import redis.asyncio.connection
from redis.connection import UnixDomainSocketConnection

from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.core.sockets import AsyncConnection, BlockingConnection, Target
from tests.core.test_retry import frozen

#: versions of redis-py with which all tests of this folder have passed
TRIED = ("8.0", "8.1")


@pytest.mark.versions
def test_this_version_is_tested() -> None:
    assert redis.__version__.startswith(TRIED), (
        f"Run tests/core with redis-py {redis.__version__}, then add it."
    )


@pytest.mark.versions
def test_a_blocking_connection_has_its_socket(server: EmbeddedServer) -> None:
    dialed = UnixDomainSocketConnection(path=str(server.socket), redis_connect_func=lambda _: None)
    assert dialed._sock is None
    dialed.connect()
    with dialed._sock as taken:
        dialed._sock = None
        assert isinstance(taken, socket.socket)
        taken.sendall(b"PING\r\n")
        assert taken.recv(100) == b"+PONG\r\n", "something was sent before"


@pytest.mark.versions
async def test_an_async_connection_has_its_streams(server: EmbeddedServer) -> None:
    kind = redis.asyncio.connection.UnixDomainSocketConnection
    dialed = kind(path=str(server.socket), redis_connect_func=lambda _: None)
    assert dialed._writer is None
    await dialed.connect()
    reader, writer, dialed._reader, dialed._writer = dialed._reader, dialed._writer, None, None
    assert isinstance(writer, asyncio.StreamWriter)
    writer.write(b"PING\r\n")
    assert await reader.read(100) == b"+PONG\r\n", "something was sent before"
    writer.close()
    await writer.wait_closed()


@pytest.mark.timing
async def test_a_connection_after_the_deadline(server: EmbeddedServer) -> None:
    target = Target("any", UnixDomainSocketConnection, {"path": str(server.socket), "db": 1})
    for connection in (BlockingConnection(), AsyncConnection()):
        with pytest.raises(redis.TimeoutError):
            opening = connection.open(target, -0.1)
            if opening is not None:
                await opening


@pytest.mark.timing
async def test_an_interrupted_exchange_closes_the_connection(private: EmbeddedServer) -> None:
    """So that no later exchange gets its reply."""
    target = Target("any", UnixDomainSocketConnection, {"path": str(private.socket)})
    blocking, running = BlockingConnection(), AsyncConnection()
    blocking.open(target, 10)
    await running.open(target, 10)
    assert blocking.exchange([("PING",)], 10) == await running.exchange([("PING",)], 10) == [b"PONG"]
    with frozen(private):
        with pytest.raises(redis.exceptions.TimeoutError):
            blocking.exchange([("PING",)], 0.1)
        with pytest.raises(redis.exceptions.TimeoutError):
            await running.exchange([("PING",)], 0.1)
    assert blocking.is_broken
    assert running.is_broken
    with pytest.raises(redis.exceptions.ConnectionError):
        blocking.exchange([("PING",)], 10)
    with pytest.raises(redis.exceptions.ConnectionError):
        await running.exchange([("PING",)], 10)
