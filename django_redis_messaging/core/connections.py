"""One exchange over one connection, or a part of one, blocking or awaiting."""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from hiredis import pack_command
from redis.exceptions import AskError, RedisError, ResponseError

from .cluster import ASKING
from .steps import Words

#: seconds that one has to answer who is asked together with others
PATIENCE = 1.0
#: one reply for each call; a refusal is an exception in its place
Replies = list[Any]
T = TypeVar("T")


def alive(connection: Any) -> bool:
    """Whether an idle connection is still open, with nothing left to read on it."""
    try:
        return connection.is_connected and not connection.can_read()
    except (RedisError, OSError):
        return False


def exchange(connection: Any, call: Words) -> Any:
    """Send one call, read its reply; whatever breaks the conversation closes the connection."""
    try:
        connection.send_packed_command([pack_command(cast(Any, call))], check_health=False)
        return connection.read_response()
    except ResponseError as refusal:
        return _said(refusal, connection)
    except BaseException:
        connection.disconnect()
        raise


def _said(refusal: ResponseError, connection: Any) -> ResponseError:
    """What this server refused; where it names no host, it means its own."""
    if isinstance(refusal, AskError) and not refusal.host:
        refusal.host = getattr(connection, "host", "")
    return refusal


def first_told(
    connections: Iterable[Any], call: Words, understood: Callable[[Any, Any], T | None]
) -> T | None:
    """What the first of these tells, which are not yet open, whose reply is understood. Each is closed."""
    for connection in connections:
        try:
            connection.connect()
            reply = exchange(connection, call)
        except RedisError:
            continue
        finally:
            connection.disconnect()
        told = None if isinstance(reply, RedisError) else understood(reply, connection)
        if told is not None:
            return told
    return None


async def afirst_told(
    connections: Iterable[Any], call: Words, understood: Callable[[Any, Any], T | None]
) -> T | None:
    """As `first_told`."""
    for connection in connections:
        try:
            async with asyncio.timeout(PATIENCE):
                await connection.connect()
                [reply] = await aconverse(connection, [call])
        except (RedisError, TimeoutError):
            continue
        finally:
            await connection.disconnect(nowait=True)
        told = None if isinstance(reply, RedisError) else understood(reply, connection)
        if told is not None:
            return told
    return None


def packed(calls: list[Words]) -> list[bytes]:
    """The calls as they go over the wire: by the packer below the driver's, which looks at each word."""
    return [b"".join([pack_command(cast(Any, words)) for words in calls])]


def _each_asking(calls: list[Words]) -> list[Words]:
    return [words for call in calls for words in (ASKING, call)]


def converse(connection: Any, calls: list[Words], timeout: float | None, *, asking: bool = False) -> Replies:
    """Send all calls, read all replies; whatever breaks the conversation closes the connection. `asking`:
    their slot is on its way to this server."""
    if asking:
        return converse(connection, _each_asking(calls), timeout)[1::2]
    limit = {} if timeout is None else {"timeout": timeout}
    try:
        connection.send_packed_command(packed(calls), check_health=False)
        return [_reply(connection, limit) for _ in calls]
    except BaseException:
        connection.disconnect()
        raise


def _reply(connection: Any, limit: dict[str, float]) -> Any:
    try:
        return connection.read_response(**limit)
    except ResponseError as refusal:
        return _said(refusal, connection)


def send(connection: Any, call: Words) -> None:
    """Send one call, whose reply is read later."""
    connection.send_packed_command(packed([call]), check_health=False)


def arrives(connection: Any, seconds: float = 0) -> bool:
    """Whether something can be read within `seconds`."""
    return bool(connection.can_read(seconds))


def readable(connection: Any) -> bool:
    """Whether something can be read now, be it that it has ended. Reads nothing and changes nothing, so
    another thread may use the connection meanwhile."""
    sock = connection._sock
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def receive(connection: Any) -> Any:
    """The reply to what was sent; a refusal is returned, whatever else breaks it closes the connection."""
    try:
        return _reply(connection, {})
    except BaseException:
        connection.disconnect()
        raise


async def asend(connection: Any, call: Words) -> None:
    """Send one call, whose reply is read later."""
    await connection.send_packed_command(packed([call]), check_health=False)


async def aarrives(connection: Any, seconds: float) -> bool:
    """Whether something can be read within `seconds`. Cut short, it loses nothing."""
    reader = connection._reader
    if answered_already(connection):
        return True
    # an error of the socket is told by reading, see `answered_already`
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(seconds):
            # waits for bytes, and takes none of them
            await reader._wait_for_data("aarrives")
    return answered_already(connection)


def answered_already(connection: Any) -> bool:
    """Whether something can be read now from an awaiting connection, be it that it has ended or broken."""
    reader = connection._reader
    broken = reader.exception() is not None or not connection.is_connected
    return broken or bool(reader._buffer) or reader.at_eof()


async def areceive(connection: Any) -> Any:
    """The reply to what was sent; a refusal is returned, whatever else breaks it closes the connection."""
    try:
        return await _areply(connection)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


async def aalive(connection: Any) -> bool:
    """Whether an idle connection is still open, with nothing left to read on it."""
    try:
        # the loop looks at its sockets between two turns: let it see that the server has hung up
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return connection.is_connected and not await connection.can_read()
    except (RedisError, OSError):
        return False
    except BaseException:  # cancelled: nobody has it any more
        await connection.disconnect(nowait=True)
        raise


async def aconverse(connection: Any, calls: list[Words], *, asking: bool = False) -> Replies:
    """As `converse`."""
    if asking:
        return (await aconverse(connection, _each_asking(calls)))[1::2]
    try:
        await connection.send_packed_command(packed(calls), check_health=False)
        return [await _areply(connection) for _ in calls]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


async def _areply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as refusal:
        return _said(refusal, connection)
