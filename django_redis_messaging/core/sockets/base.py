"""The common part of both kinds of connections."""

from __future__ import annotations

import functools
import math
import select
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, cast

from hiredis import Reader
from redis import exceptions as driver
from redis.connection import DefaultParser

from ...errors import ConfigurationError
from ..steps import Words

#: host and port
Address = tuple[str, int]
#: one reply for each call; an error reply is an exception in the list
Replies = list[Any]

#: seconds; the minimum time to connect
MIN_TIMEOUT = 0.001
#: returned by the reader while a reply is incomplete
INCOMPLETE = object()
#: what a redirect says for the host of the node itself
UNKNOWN_HOSTS = ("", "?")


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
        self._reader = Reader(
            protocolError=driver.InvalidResponse,
            replyError=functools.partial(_reply_error, weakref.ref(self)),
            notEnoughData=INCOMPLETE,
        )

    def _dialer(self, target: Target, kind: Any, retry: Any, timeout: float | None, seconds: float) -> Any:
        """The driver's connection, which opens the socket and sends nothing. This module sends the handshake
        itself, so that it takes one round trip and respects the time limit."""
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


def unusable_alias(alias: str, reason: object) -> ConfigurationError:
    """The error for a CACHES entry with which no connection can be made."""
    return ConfigurationError(f"CACHES[{alias!r}] can't be used: {str(reason).rstrip('.')}.")


def _no_handshake(_: object) -> None:
    """Replaces the driver's own handshake."""


def _reply_error(connection: Callable[[], Connection | None], text: str) -> Exception:
    """Convert an error reply to an exception; a redirect without a host means the server's own host."""
    error: Exception = cast(Any, DefaultParser).parse_error(text)
    if isinstance(error, driver.AskError) and error.host in UNKNOWN_HOSTS:
        error.host = getattr(connection(), "host", "")
        error.node_addr = error.host, error.port
    return error


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
