"""Where a CACHES alias leads: to one server, to the primary that Sentinels name, or into a Cluster.

What is on the wire is RESP2 and bytes, whatever the alias says. The driver's own retries are off.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import redis.asyncio.connection
from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django_redis import get_redis_connection
from redis.asyncio.retry import Retry as AwaitingRetry
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import MovedError, RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool, SentinelManagedConnection

from .. import conf
from ..errors import ConfigurationError, Unavailable
from .cluster import QUESTION, Address, Topology, is_alone, parsed
from .connections import PATIENCE, afirst_told, first_told
from .retry import deadline, may_have_changed
from .steps import Command, Script, Words

#: parameters of a blocking connection that an awaiting one has no use for
_BLOCKING_ONLY = {"parser_class", "retry", "retry_on_error", "event_dispatcher", "maint_notifications_config"}
#: those of the driver's own clients for Sentinel and Cluster
_THEIRS = {"connection_pool", "redis_connect_func", "cache"}
#: seconds, by the names of parameters of a connection
Limits = dict[str, float | None]
#: makes a connection that is not yet open: as a pool says, or to another server
Make = Callable[[Any, Address | None, Limits], Any]


class Endpoint:
    """How to connect as one alias says, and what is known of the Cluster there. It sends nothing."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        #: True once the server has shown that it is one of a Cluster
        self.apart = False
        #: whether the server has been asked which kind it is
        self.asked = False
        #: True once it has answered that it is none of a Cluster: scripts need no guard
        self.alone = False
        #: which server has which keys; None: all are where the alias leads, as far as is known
        self.topology: Topology | None = None
        try:
            client = cast(Any, get_redis_connection(alias))
        # NotImplementedError is how django-redis says that a cache is not one of its own.
        except (InvalidCacheBackendError, NotImplementedError) as error:
            raise ConfigurationError(
                f"CACHES has no django-redis entry {alias!r}: add one, or set ALIAS in {conf.NAME}."
            ) from error
        except RedisError as error:  # the driver's RedisCluster looks around when it is made
            raise Unavailable(f"The Cluster of CACHES[{alias!r}] can't be reached: {error}") from error
        theirs = hasattr(client, "get_default_node")
        self._pool = (
            client.get_default_node().redis_connection.connection_pool if theirs else client.connection_pool
        )
        #: of what else LOCATION names: other nodes of the Cluster
        self._others = [] if theirs or self.service else _other_pools(alias)

    @property
    def db(self) -> int:
        """The number of its database."""
        return int(self._pool.connection_kwargs.get("db") or 0)

    @property
    def patience(self) -> float:
        """Seconds to wait for a reply before asking again: as the alias says, within the deadline."""
        longest = deadline()
        return min(self._pool.connection_kwargs.get("socket_timeout") or longest / 2, longest)

    @property
    def _patience_to_connect(self) -> float:
        limit = self._pool.connection_kwargs.get("socket_connect_timeout")
        return min(limit or self.patience, self.patience)

    @property
    def _briefly(self) -> Limits:
        """The limits of who is asked for the way: there are others."""
        seconds = min(PATIENCE, self._patience_to_connect)
        return {"socket_timeout": seconds, "socket_connect_timeout": seconds}

    def route(self, call: Command | Script) -> Address | None:
        """Where to send a call; None: where the alias leads. Guards scripts that may go into a Cluster."""
        if isinstance(call, Script) and not self.alone:
            call.guard()
        return None if self.topology is None else self.topology.address(call.key)

    def learn_kind(self, reply: Any) -> None:
        """Learn which kind of server this is from its reply to QUESTION; an ACL may refuse it."""
        self.asked = True
        self.alone = is_alone(reply)

    def connection(self, address: Address | None = None) -> Any:
        """A new blocking connection, not yet open."""
        limits: Limits = {
            "socket_timeout": self.patience,
            "socket_connect_timeout": self._patience_to_connect,
        }
        return _blocking(self._pool, address, limits)

    def awaiting_connection(self, address: Address | None = None) -> Any:
        """A new awaiting connection, not yet open; deadlines are the caller's."""
        limits: Limits = {"socket_timeout": None, "socket_connect_timeout": self._patience_to_connect}
        return _awaiting(self._pool, address, limits)

    @property
    def service(self) -> str | None:
        """What Sentinels call the servers of which they name the primary."""
        pool = self._pool
        return str(pool.service_name) if isinstance(pool, SentinelConnectionPool) else None

    def sentinels(self, make: Make) -> Iterator[Any]:
        """New connections to the Sentinels, not yet open."""
        sentinels = self._pool.sentinel_manager.sentinels
        return (make(one.connection_pool, None, self._briefly) for one in sentinels)

    def nodes(self, error: Exception, make: Make) -> Iterator[Any]:
        """New connections, not yet open, to who may know the Cluster, after an error: who was said to have
        the slot, any that is known, and where the alias leads."""
        known: list[Address | None] = []
        if self.topology is not None:
            known += self.topology.addresses
            random.shuffle(known)
        if isinstance(error, MovedError):
            known.insert(0, error.node_addr)
        for address in (*known, None):
            yield make(self._pool, address, self._briefly)
        for pool in self._others:
            yield make(pool, None, self._briefly)

    def outdated(self, error: Exception) -> bool:
        """Whether what is known of the Cluster may be no longer true, after an error."""
        known = self.topology is not None or bool(self._others)
        return isinstance(error, MovedError) or (known and may_have_changed(error))

    def gone(self, addresses: Iterable[Address | None]) -> list[Address]:
        """Those of these that are of no primary any more."""
        there = set() if self.topology is None else self.topology.addresses
        return [address for address in list(addresses) if address is not None and address not in there]

    def learn(self, told: Topology | None, error: Exception) -> None:
        """What a node has told; where none has, what the error itself tells of one slot."""
        if told is None and isinstance(error, MovedError):
            told = (self.topology or Topology()).but(error.slot_id, error.node_addr)
        if told is not None:
            self.topology, self.apart = told, True


@functools.cache
def endpoint(alias: str) -> Endpoint:
    """The endpoint of an alias: all clients learn from each other."""
    return Endpoint(alias)


def _other_pools(alias: str) -> list[Any]:
    location: str | list[str] = settings.CACHES[alias].get("LOCATION", "")
    named = len(location.split(",") if isinstance(location, str) else location)
    client = cast(Any, caches[alias]).client
    return [client.connect(at).connection_pool for at in range(1, named)]


def connected(endpoint: Endpoint, address: Address | None = None) -> Any:
    """A new blocking connection; raises RedisError."""
    if address is None and endpoint.service is not None:
        told = first_told(endpoint.sentinels(_blocking), _who_is_primary(endpoint), _primary)
        address = _found(told, endpoint)
    connection = endpoint.connection(address)
    connection.connect()
    return connection


async def aconnected(endpoint: Endpoint, address: Address | None = None) -> Any:
    """As `connected`."""
    if address is None and endpoint.service is not None:
        told = await afirst_told(endpoint.sentinels(_awaiting), _who_is_primary(endpoint), _primary)
        address = _found(told, endpoint)
    connection = endpoint.awaiting_connection(address)
    try:
        await connection.connect()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return connection


def location(connection: Any) -> Address | None:
    """Where a connection leads; a unix socket has no address."""
    host = getattr(connection, "host", None)
    return None if host is None else (host, connection.port)


def look(endpoint: Endpoint, error: Exception) -> None:
    """Ask who has which slots, after an error that may come of a change."""
    endpoint.learn(first_told(endpoint.nodes(error, _blocking), QUESTION, _slots), error)


async def alook(endpoint: Endpoint, error: Exception) -> None:
    """As `look`."""
    endpoint.learn(await afirst_told(endpoint.nodes(error, _awaiting), QUESTION, _slots), error)


def _blocking(pool: Any, address: Address | None, limits: Limits) -> Any:
    kind, parameters = _how(pool, address)
    return kind(**{**parameters, **limits, "retry": Retry(NoBackoff(), 0)})


def _awaiting(pool: Any, address: Address | None, limits: Limits) -> Any:
    kind, parameters = _how(pool, address)
    parameters = {key: value for key, value in parameters.items() if key not in _BLOCKING_ONLY}
    awaiting = getattr(redis.asyncio.connection, kind.__name__, None)
    if awaiting is None:
        raise ConfigurationError(f"{kind.__name__} has no asyncio form: use the blocking API.")
    return awaiting(**{**parameters, **limits, "retry": AwaitingRetry(NoBackoff(), 0)})


def _how(pool: Any, address: Address | None) -> tuple[Any, dict[str, Any]]:
    """What a connection is made of: as the pool says, or to another server."""
    parameters = {key: value for key, value in pool.connection_kwargs.items() if key not in _THEIRS}
    parameters |= {"decode_responses": False, "protocol": 2}
    kind = pool.connection_class
    if issubclass(kind, SentinelManagedConnection):
        kind = SSLConnection if issubclass(kind, SSLConnection) else Connection
    if address is None:
        return kind, parameters
    parameters.pop("path", None)
    if issubclass(kind, UnixDomainSocketConnection):
        kind = Connection
    return kind, {**parameters, "host": address[0], "port": address[1]}


def _who_is_primary(endpoint: Endpoint) -> Words:
    return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", endpoint.service or "")


def _primary(reply: Any, _: Any) -> Address | None:
    return None if reply is None else (reply[0].decode(), int(reply[1]))


def _found(address: Address | None, endpoint: Endpoint) -> Address:
    if address is None:
        raise MasterNotFoundError(f"no Sentinel names a primary of {endpoint.service!r}")
    return address


def _slots(reply: Any, connection: Any) -> Topology | None:
    return parsed(reply, asked=location(connection))
