"""Connections made as a CACHES alias says, and one exchange over one of them.

What is on the wire is RESP2 and bytes, whatever the alias says. The driver's own retries are off.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import redis.asyncio.connection
import redis.asyncio.sentinel
from django.core.cache import InvalidCacheBackendError
from django_redis import get_redis_connection
from hiredis import pack_command
from redis.asyncio.retry import Retry as AwaitingRetry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from .. import conf
from ..errors import ConfigurationError
from .steps import Words

#: parameters of a blocking connection that an awaiting one has no use for
_BLOCKING_ONLY = {"parser_class", "retry", "retry_on_error", "event_dispatcher", "maint_notifications_config"}

#: one reply for each call; a refusal is an exception in its place
Replies = list[Any]


class Endpoint:
    """How to connect as one alias says."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        #: True once the server has refused keys of several slots: it is a Cluster
        self.apart = False
        try:
            self._pool = cast(Any, get_redis_connection(alias)).connection_pool
        # NotImplementedError is how django-redis says that a cache is not one of its own.
        except (InvalidCacheBackendError, NotImplementedError) as error:
            raise ConfigurationError(
                f"CACHES has no django-redis entry {alias!r}: add one, or set ALIAS in {conf.NAME}."
            ) from error

    @property
    def _parameters(self) -> dict[str, Any]:
        return {**self._pool.connection_kwargs, "decode_responses": False, "protocol": 2}

    @property
    def patience(self) -> float:
        """Seconds to wait for a reply before asking again: as the alias says, within the deadline."""
        deadline = conf.current().COMMAND_DEADLINE
        return min(self._pool.connection_kwargs.get("socket_timeout") or deadline / 2, deadline)

    @property
    def _patience_to_connect(self) -> float:
        limit = self._pool.connection_kwargs.get("socket_connect_timeout")
        return min(limit or self.patience, self.patience)

    def connection(self) -> Any:
        """A new blocking connection, not yet open."""
        limits = {"socket_timeout": self.patience, "socket_connect_timeout": self._patience_to_connect}
        return self._pool.connection_class(**{**self._parameters, **limits, "retry": Retry(NoBackoff(), 0)})

    def awaiting_connection(self) -> Any:
        """A new awaiting connection, not yet open; deadlines are the caller's."""
        parameters = {key: value for key, value in self._parameters.items() if key not in _BLOCKING_ONLY}
        limits = {"socket_timeout": None, "socket_connect_timeout": self._patience_to_connect}
        kind = _awaiting_kind(self._pool.connection_class)
        return kind(**{**parameters, **limits, "retry": AwaitingRetry(NoBackoff(), 0)})


def _awaiting_kind(blocking_kind: type) -> Any:
    for module in (redis.asyncio.connection, redis.asyncio.sentinel):
        kind = getattr(module, blocking_kind.__name__, None)
        if kind is not None:
            return kind
    raise ConfigurationError(f"{blocking_kind.__name__} has no asyncio form: use the blocking API.")


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
        return refusal
    except BaseException:
        connection.disconnect()
        raise


def packed(calls: list[Words]) -> list[bytes]:
    """The calls as they go over the wire: by the packer below the driver's, which looks at each word."""
    return [b"".join([pack_command(cast(Any, words)) for words in calls])]


def converse(connection: Any, calls: list[Words], timeout: float | None) -> Replies:
    """Send all calls, read all replies; whatever breaks the conversation closes the connection."""
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
        return refusal


def send(connection: Any, call: Words) -> None:
    """Send one call, whose reply is read later."""
    connection.send_packed_command(packed([call]), check_health=False)


def arrives(connection: Any, seconds: float = 0) -> bool:
    """Whether something can be read within `seconds`."""
    return bool(connection.can_read(seconds))


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
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            # waits for bytes, and takes none of them
            await reader._wait_for_data("aarrives")
    return answered_already(connection)


def answered_already(connection: Any) -> bool:
    """Whether something can be read now from an awaiting connection, be it that it has ended."""
    reader = connection._reader
    return bool(reader._buffer) or reader.at_eof() or not connection.is_connected


async def areceive(connection: Any) -> Any:
    """The reply to what was sent; a refusal is returned, whatever else breaks it closes the connection."""
    try:
        return await _areply(connection)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


async def aalive(connection: Any) -> bool:
    """Whether an idle connection is still open, with nothing left to read on it."""
    # the loop looks at its sockets between two turns: let it see that the server has hung up
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        return connection.is_connected and not await connection.can_read()
    except (RedisError, OSError):
        return False


async def aconverse(connection: Any, calls: list[Words]) -> Replies:
    """Send all calls, read all replies; whatever breaks the conversation closes the connection."""
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
        return refusal
