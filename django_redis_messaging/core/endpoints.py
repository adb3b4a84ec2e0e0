"""Where a CACHES alias leads: to one server, to the primary that Sentinels name, or into a Cluster.

What is on the wire is RESP2 and bytes, whatever the alias says. The driver's own retries are off.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, TypeVar, cast

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.credentials import StreamingCredentialProvider
from redis.exceptions import MovedError, RedisError
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool, SentinelManagedConnection

from .. import conf
from ..errors import ConfigurationError, Unavailable
from .cluster import QUESTION, Topology, is_alone, parsed
from .retry import SHORTEST_READING_TIME, may_have_changed, seconds_allowed
from .sockets import Address, BlockingConnection, Target, unusable
from .steps import Command, Script, Words
from .worlds import BLOCKING, World, run

#: parameters that are no concern of a connection here: what it speaks, decodes and repeats is ours
_OURS = {
    "cache",
    "connection_pool",
    "decode_responses",
    "event_dispatcher",
    "parser_class",
    "protocol",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
}
#: those of maintenance notifications, which come by RESP3 only; the driver's pools add them
_NOTIFICATIONS = ("maint", "oss_cluster_maint", "orig_")
#: seconds that one has to answer who is asked together with others
PATIENCE = 1.0
T = TypeVar("T")


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
        #: counts the changes of user and password: what was opened before one is not used again
        self.credentials = 0
        client = _client(alias)
        theirs = hasattr(client, "get_default_node")
        self._pool = (
            client.get_default_node().redis_connection.connection_pool if theirs else client.connection_pool
        )
        if self._options.get("redis_connect_func") and not theirs:
            raise ConfigurationError(
                f"CACHES[{alias!r}] has a redis_connect_func, which would run in the place of this app's own "
                "greeting: use a credential_provider instead."
            )
        provider = self._options.get("credential_provider")
        if isinstance(provider, StreamingCredentialProvider):
            provider.on_next(self._renew_credentials)
        #: of what else LOCATION names: other nodes of the Cluster
        self._others = [] if theirs or self.service else _other_pools(alias)
        self._timeout: float | None = self._options.get("socket_timeout")
        #: connections that may be open to a server at once
        self.max_connections = int(self._pool.max_connections)
        #: seconds after which an idle connection is asked whether it is there; 0: never
        self.health_check_interval = float(self._options.get("health_check_interval") or 0)

    @property
    def _options(self) -> dict[str, Any]:
        return cast(dict[str, Any], self._pool.connection_kwargs)

    @property
    def db(self) -> int:
        """The number of its database."""
        return int(self._options.get("db") or 0)

    def patience(self, seconds: float) -> float:
        """Of the seconds that a step may take, those to wait for a reply before asking again: as the alias
        says, or half of them."""
        return max(min(self._timeout or seconds / 2, seconds), SHORTEST_READING_TIME)

    @property
    def patience_now(self) -> float:
        """That of a step that begins now."""
        return self.patience(seconds_allowed(monotonic()))

    def _renew_credentials(self, _: object) -> None:
        self.credentials += 1

    def route(self, call: Command | Script) -> Address | None:
        """Where to send a call; None: where the alias leads. Guards scripts that may go into a Cluster."""
        if isinstance(call, Script) and not self.alone:
            call.guard()
        return None if self.topology is None else self.topology.address(call.key)

    def learn_kind(self, reply: Any) -> None:
        """Learn which kind of server this is from its reply to QUESTION; an ACL may refuse it."""
        self.asked = True
        self.alone = is_alone(reply)

    def target(self, address: Address | None = None) -> Target:
        """What to dial: where the alias leads, or another server."""
        return self._target(self._pool, address)

    @property
    def service(self) -> str | None:
        """What Sentinels call the servers of which they name the primary."""
        pool = self._pool
        return str(pool.service_name) if isinstance(pool, SentinelConnectionPool) else None

    def sentinels(self) -> Iterator[Target]:
        """The Sentinels."""
        return (self._target(one.connection_pool) for one in self._pool.sentinel_manager.sentinels)

    def nodes(self, error: Exception) -> Iterator[Target]:
        """Who may know the Cluster, after an error: who was said to have the slot, any that is known, and
        where the alias leads."""
        known: list[Address | None] = []
        if self.topology is not None:
            known += self.topology.addresses
            random.shuffle(known)
        if isinstance(error, MovedError):
            known.insert(0, error.node_addr)
        for address in (*known, None):
            yield self.target(address)
        for pool in self._others:
            yield self._target(pool)

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

    def _target(self, pool: Any, address: Address | None = None) -> Target:
        parameters = {
            key: value
            for key, value in pool.connection_kwargs.items()
            if key not in _OURS and not key.startswith(_NOTIFICATIONS)
        }
        kind = pool.connection_class
        if issubclass(kind, SentinelManagedConnection):
            kind = SSLConnection if issubclass(kind, SSLConnection) else Connection
        if address is not None:
            parameters.pop("path", None)
            kind = Connection if issubclass(kind, UnixDomainSocketConnection) else kind
            parameters |= {"host": address[0], "port": address[1]}
        return Target(self.alias, kind, {**parameters, "protocol": 2})


@functools.cache
def endpoint(alias: str) -> Endpoint:
    """The endpoint of an alias: all clients learn from each other."""
    return Endpoint(alias)


def _client(alias: str) -> Any:
    """The driver's client of an alias, as django-redis makes it from the CACHES entry."""
    try:
        return get_redis_connection(alias)
    # NotImplementedError is how django-redis says that a cache is not one of its own.
    except (InvalidCacheBackendError, NotImplementedError) as error:
        raise ConfigurationError(
            f"CACHES has no django-redis entry {alias!r}: add one, or set ALIAS in {conf.NAME}."
        ) from error
    except RedisError as error:  # the driver's RedisCluster looks around when it is made
        raise Unavailable(f"The Cluster of CACHES[{alias!r}] can't be reached: {error}") from error
    except (ImproperlyConfigured, ImportError, AttributeError, TypeError, ValueError) as error:
        raise unusable(alias, error) from error


def _other_pools(alias: str) -> list[Any]:
    location: str | list[str] = settings.CACHES[alias].get("LOCATION", "")
    named = len(location.split(",") if isinstance(location, str) else location)
    client = cast(Any, caches[alias]).client
    return [client.connect(at).connection_pool for at in range(1, named)]


async def dial(world: World, endpoint: Endpoint, connection: Any, seconds: float) -> None:
    """Open a connection to the server of its address, or to where the alias leads; raises RedisError."""
    ends = monotonic() + seconds
    address = connection.address
    if address is None and endpoint.service is not None:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", endpoint.service)
        address = await first_answer(world, endpoint.sentinels(), question, _primary, seconds)
        if address is None:
            raise MasterNotFoundError(f"no Sentinel names a primary of {endpoint.service!r}")
    await world.done(connection.open(endpoint.target(address), ends - monotonic()))
    if not endpoint.asked:
        endpoint.learn_kind((await world.done(connection.exchange([QUESTION], ends - monotonic())))[0])


def connected(endpoint: Endpoint, address: Address | None = None) -> BlockingConnection:
    """A new blocking connection, which is the caller's; raises RedisError."""
    connection = BlockingConnection(address)
    run(functools.partial(dial, BLOCKING, endpoint, connection), endpoint.patience_now)
    return connection


async def look(world: World, endpoint: Endpoint, error: Exception) -> None:
    """Ask who has which slots, after an error that may come of a change."""
    told = await first_answer(world, endpoint.nodes(error), QUESTION, _slots, endpoint.patience_now)
    endpoint.learn(told, error)


async def first_answer(
    world: World,
    targets: Iterable[Target],
    question: Words,
    understood: Callable[[Any, Any], T | None],
    seconds: float,
) -> T | None:
    """What the first of these answers whose reply is understood; each has PATIENCE, within `seconds`."""
    ends = monotonic() + seconds
    for target in targets:
        left = min(PATIENCE, ends - monotonic())
        connection = world.connection()
        try:
            await world.done(connection.open(target, left))
            [reply] = await world.done(connection.exchange([question], left))
        except RedisError:
            continue
        finally:
            connection.close()
        answer = None if isinstance(reply, RedisError) else understood(reply, connection)
        if answer is not None:
            return answer
    return None


def location(connection: Any) -> Address | None:
    """Where a connection leads; a unix socket has no address."""
    return None if connection.host is None else (connection.host, connection.port)


def _primary(reply: Any, _: Any) -> Address | None:
    return None if reply is None else (reply[0].decode(), int(reply[1]))


def _slots(reply: Any, connection: Any) -> Topology | None:
    return parsed(reply, asked=location(connection))
