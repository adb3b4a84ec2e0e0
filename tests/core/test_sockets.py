"""The private names of the driver that are used: those of the socket it has opened."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import redis
import redis.asyncio.connection
from redis.connection import UnixDomainSocketConnection

from django_redis_messaging.core.connection import CHUNK, AsyncConnection, BlockingConnection, Target
from django_redis_messaging.devserver.server import EmbeddedServer
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


@pytest.mark.parametrize("size", [0, 1, 9_999, 10_000, CHUNK - 10, CHUNK - 9, CHUNK, 3 * CHUNK, 2**20 + 1])
async def test_values_of_any_size(private: EmbeddedServer, size: int) -> None:
    target = Target("any", UnixDomainSocketConnection, {"path": str(private.socket)})
    blocking, running = BlockingConnection(), AsyncConnection()
    blocking.open(target, 10)
    await running.open(target, 10)
    value = (bytes(range(256)) * (size // 256 + 1))[:size]
    blocking.exchange([("SET", "value", value), ("DEL", "list"), ("RPUSH", "list", value, value)], 10)
    get, get_all = ("GET", "value"), ("LRANGE", "list", "0", "9")
    for calls, replies in (
        ([get], [value]),
        ([get_all], [[value, value]]),
        ([get, get, ("PING",), get_all, get], [value, value, b"PONG", [value, value], value]),
        ([("PING",), get, get_all, get], [b"PONG", value, [value, value], value]),
    ):
        assert blocking.exchange(calls, 10) == replies
        assert await running.exchange(calls, 10) == replies
    assert not blocking.is_broken
    blocking.close()
    running.close()
    await asyncio.sleep(0)  # the loop closes the socket in its next iteration


@pytest.fixture
def pair() -> Iterator[tuple[BlockingConnection, socket.socket]]:
    """A connection, and the server's end of its socket."""
    connection = BlockingConnection()
    connection._socket, there = socket.socketpair()
    with there:
        yield connection, there
    connection.close()


def test_an_array_whose_second_item_begins_a_chunk(pair: tuple[BlockingConnection, socket.socket]) -> None:
    connection, there = pair
    first, second = bytes(CHUNK - len(b"*2\r\n$65522\r\n\r\n")), bytes(70_000)
    there.sendall(b"*2\r\n$65522\r\n" + first + b"\r\n$70000\r\n" + second + b"\r\n")
    assert connection.exchange([("PING",)], 10) == [[first, second]]


@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
def test_a_redirect_without_a_host_names_the_host_that_replied(
    kind: str, pair: tuple[BlockingConnection, socket.socket]
) -> None:
    connection, there = pair
    connection.host = "10.0.0.1"
    there.sendall(f"-{kind} 5 :7001\r\n-{kind} 5 10.0.0.2:7001\r\n".encode())
    own, other = connection.exchange([("PING",), ("PING",)], 10)
    assert (own.host, own.node_addr) == ("10.0.0.1", ("10.0.0.1", 7001))
    assert (other.host, other.node_addr) == ("10.0.0.2", ("10.0.0.2", 7001))


@pytest.mark.parametrize("sent", [b"$20000\r\n" + bytes(2000), b"$20000\r\n" + bytes(20_001), b"$20000"])
def test_a_large_reply_that_ends_too_early(
    pair: tuple[BlockingConnection, socket.socket], sent: bytes
) -> None:
    connection, there = pair
    there.sendall(sent)
    there.shutdown(socket.SHUT_WR)
    with pytest.raises(redis.exceptions.ConnectionError):
        connection.exchange([("PING",)], 10)
    assert connection.is_broken


@pytest.mark.timing
def test_a_large_reply_that_does_not_end_in_time(pair: tuple[BlockingConnection, socket.socket]) -> None:
    connection, there = pair
    there.sendall(b"$20000\r\n" + bytes(2000))
    ended = threading.Event()

    def send_slowly() -> bool:
        """Whether all was sent."""
        with suppress(OSError):  # closed
            for _ in range(500):
                if ended.wait(0.02):
                    return False
                there.send(b"x")
            return True
        return False

    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send_slowly)
        with pytest.raises(redis.exceptions.TimeoutError):
            connection.exchange([("PING",)], 0.1)
        ended.set()
        assert not sending.result()
    assert connection.is_broken


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
