"""What a CACHES alias connects to: one server, the primary that Sentinels name, or a Cluster.

The protocol is RESP2 with bytes, whatever the alias configures. The driver's own retries are off.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from time import monotonic
from typing import Any, TypeVar, cast

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from redis import Redis
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.credentials import StreamingCredentialProvider
from redis.exceptions import MovedError, RedisError
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool, SentinelManagedConnection

from .. import conf
from ..errors import ConfigurationError, Unavailable
from . import durability, runs
from .keys import FORMAT
from .retry import MIN_READING_TIME, seconds_allowed
from .routing import Router, Sentinel, Unknown
from .sockets import Address, BlockingConnection, Target, unusable_alias
from .steps import Command, Script, Words
from .worlds import BLOCKING, BlockingSignal, LoopSignal, World, run

#: connection parameters that are ignored: this app sets the protocol, decoding and retries itself
_IGNORED = {
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
#: prefixes of the parameters of maintenance notifications, which need RESP3; the driver's pools add them
_NOTIFICATIONS = ("maint", "oss_cluster_maint", "orig_")
#: seconds to wait for the reply of one server where several can be queried
QUERY_TIMEOUT = 1.0
T = TypeVar("T")


class Reading:
    """A reading of the topology by one caller, for which others of the process wait."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self._waiting: list[BlockingSignal | LoopSignal] = []
        self.has_ended = False

    async def wait(self, signal: BlockingSignal | LoopSignal, seconds: float) -> None:
        """Wait until it has ended, for this many seconds at most."""
        self._waiting.append(signal)
        if not self.has_ended:
            await signal.wait(seconds)

    def end(self) -> None:
        """Wake those that wait."""
        self.has_ended = True
        for signal in self._waiting:
            signal.set_from_any_thread()


class Endpoint:
    """How to connect to the Redis of one alias, and what is known about its servers. It sends nothing."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        #: counts the changes of user and password: connections opened before a change are not reused
        self.credentials = 0
        #: the run of tests in which this endpoint may be used; None: outside of tests
        self.run = runs.current()
        private = None if self.run is None else self.run.location(alias)
        client: Any = _client(alias) if private is None else Redis.from_url(private)
        is_driver_cluster = hasattr(client, "get_default_node")
        self._pool = (
            client.get_default_node().redis_connection.connection_pool
            if is_driver_cluster
            else client.connection_pool
        )
        if self._options.get("redis_connect_func") and not is_driver_cluster:
            raise ConfigurationError(
                f"CACHES[{alias!r}] has a redis_connect_func, which would replace this app's handshake: use "
                "a credential_provider instead."
            )
        provider = self._options.get("credential_provider")
        if isinstance(provider, StreamingCredentialProvider):
            provider.on_next(self._renew_credentials)
        #: which server gets a call; replaced whenever more is known
        self.router: Router = Unknown() if self.service is None else Sentinel(self.service)
        #: how to dial the Sentinels, in the order in which they are asked
        self.sentinels: list[Target] = []
        if self.service is not None:
            managed = self._pool.sentinel_manager.sentinels
            self.sentinels = [self._target(one.connection_pool) for one in managed]
        is_private = self.run is not None and (private or self.run.serves(settings.CACHES[alias]))
        #: the present reading of the topology by id of the process: a forked child takes part in none
        self.readings: dict[int, Reading] = {}
        #: how many replicas must confirm each write; the private server of tests has none
        self.durability = None if is_private else durability.configured()
        #: pools of the other nodes of the Cluster that LOCATION names
        self._others = [] if private or is_driver_cluster or self.service else _other_pools(alias)
        self._timeout: float | None = self._options.get("socket_timeout")
        #: maximum number of connections to a server
        self.max_connections = int(self._pool.max_connections)
        #: seconds after which the driver would check an idle connection; 0: never
        self.health_check_interval = float(self._options.get("health_check_interval") or 0)

    @property
    def _options(self) -> dict[str, Any]:
        return cast(dict[str, Any], self._pool.connection_kwargs)

    @property
    def db(self) -> int:
        """The number of the database."""
        return int(self._options.get("db") or 0)

    def reply_timeout(self, seconds: float) -> float:
        """Seconds to wait for a reply before the next attempt, of the `seconds` that a step may take: the
        alias's socket timeout, else half of them."""
        return max(min(self._timeout or seconds / 2, seconds), MIN_READING_TIME)

    @property
    def default_reply_timeout(self) -> float:
        """The reply timeout of a step that begins now."""
        return self.reply_timeout(seconds_allowed(monotonic()))

    def forget_reading(self, process: int, reading: Reading) -> None:
        """Let the next caller read the topology, unless a later reading has begun."""
        if self.readings.get(process) is reading:
            self.readings.pop(process, None)

    def _renew_credentials(self, _: object) -> None:
        self.credentials += 1

    def route(self, call: Command | Script) -> Address | None:
        """The server for a call; None: the alias's server. Guards scripts that may be sent to a Cluster."""
        router = self.router
        if router.guards and isinstance(call, Script):
            call.guard()
        return router.address(call)

    def target(self, address: Address | None = None) -> Target:
        """How to dial the alias's server, or the one at `address`."""
        return self._target(self._pool, address)

    @property
    def service(self) -> str | None:
        """The service name that the Sentinels know; None without Sentinels."""
        pool = self._pool
        return str(pool.service_name) if isinstance(pool, SentinelConnectionPool) else None

    def ask_first(self, sentinel: Address | None) -> None:
        """Ask this Sentinel before the others from now on."""
        self.sentinels = sorted(self.sentinels, key=lambda target: target.address != sentinel)

    def ask_last(self, sentinel: Address | None) -> None:
        """Ask this Sentinel after the others from now on."""
        self.sentinels = sorted(self.sentinels, key=lambda target: target.address == sentinel)

    def nodes(self, error: Exception) -> Iterator[Target]:
        """The nodes to query for the topology after an error: the one that a MOVED error names, the known
        ones, and the alias's servers."""
        if isinstance(error, MovedError):
            yield self.target(error.node_addr)
        known = list(self.router.addresses)
        random.shuffle(known)
        for address in (*known, None):
            yield self.target(address)
        for pool in self._others:
            yield self._target(pool)

    @property
    def other_addresses(self) -> list[Address]:
        """The addresses of Cluster nodes besides the alias's first one, as far as they are known."""
        named = (self._target(pool).address for pool in self._others)
        return [*self.router.addresses, *(address for address in named if address is not None)]

    def configured(self) -> Iterator[Target]:
        """How to dial each server that the alias names: one, the nodes of a Cluster, or the Sentinels."""
        yield self.target()
        for pool in self._others:
            yield self._target(pool)
        yield from self.sentinels

    def _target(self, pool: Any, address: Address | None = None) -> Target:
        parameters = {
            key: value
            for key, value in pool.connection_kwargs.items()
            if key not in _IGNORED and not key.startswith(_NOTIFICATIONS)
        }
        kind = pool.connection_class
        if issubclass(kind, SentinelManagedConnection):
            kind = SSLConnection if issubclass(kind, SSLConnection) else Connection
        if address is not None:
            parameters.pop("path", None)
            kind = Connection if issubclass(kind, UnixDomainSocketConnection) else kind
            parameters |= {"host": address[0], "port": address[1]}
        return Target(self.alias, kind, {**parameters, "protocol": 2})


class SharedEndpoint(Endpoint):
    """An endpoint of a run of tests on a server of the site: only keys of the run may be used."""

    def route(self, call: Command | Script) -> Address | None:
        """The server for a call; raises ConfigurationError for a key of the site."""
        if isinstance(call, Script):
            used = call.words[3 : 3 + int(call.words[2])]
        else:  # some commands have no key, such as CONFIG GET
            used = tuple(key for key in (call.key,) if key is not None and f":{FORMAT}:{{" in str(key))
        cast(runs.Run, self.run).refuse_foreign(map(str, used))
        return super().route(call)


@functools.cache
def endpoint(alias: str) -> Endpoint:
    """The endpoint of an alias, shared by all its clients."""
    run = runs.current()
    shares = run is not None and run.root and run.is_of_site(settings.CACHES.get(alias))
    return (SharedEndpoint if shares else Endpoint)(alias)


def _client(alias: str) -> Any:
    """The driver's client of an alias, as django-redis creates it from the CACHES entry."""
    try:
        return get_redis_connection(alias)
    # django-redis raises NotImplementedError for a cache with another backend.
    except (InvalidCacheBackendError, NotImplementedError) as error:
        raise ConfigurationError(
            f"CACHES has no django-redis entry {alias!r}: add one, or set ALIAS in {conf.NAME}."
        ) from error
    except RedisError as error:  # the driver's RedisCluster connects in its constructor
        raise Unavailable(f"The Cluster of CACHES[{alias!r}] can't be reached: {error}") from error
    except (ImproperlyConfigured, ImportError, AttributeError, TypeError, ValueError) as error:
        raise unusable_alias(alias, error) from error


def _other_pools(alias: str) -> list[Any]:
    location: str | list[str] = settings.CACHES[alias].get("LOCATION", "")
    named = len(location.split(",") if isinstance(location, str) else location)
    client = cast(Any, caches[alias]).client
    return [client.connect(at).connection_pool for at in range(1, named)]


async def dial(world: World, endpoint: Endpoint, connection: Any, seconds: float) -> None:
    """Open a connection to the server of its address, or to the alias's server; raises RedisError."""
    if endpoint.run is not runs.current():
        raise ConfigurationError(
            f"A client of CACHES[{endpoint.alias!r}] can't be used any more, since the test environment was "
            "set up after it was created: create it again."
        )
    if endpoint.run is not None:
        endpoint.run.check()
    ends = monotonic() + seconds
    address, sentinel = connection.address, None
    if address is None and isinstance(endpoint.router, Sentinel):
        address, sentinel = await _find_primary(world, endpoint, endpoint.router, seconds)
    try:
        await world.done(connection.open(endpoint.target(address), ends - monotonic()))
    except RedisError:
        if sentinel is not None:  # it may not know the present primary
            endpoint.ask_last(sentinel)
        raise


async def _find_primary(
    world: World, endpoint: Endpoint, router: Sentinel, seconds: float
) -> tuple[Address, Address | None]:
    """The primary, and the Sentinel that names it."""

    def parse(reply: Any, node: Address | None) -> tuple[Address, Address | None] | None:
        return None if reply is None else ((reply[0].decode(), int(reply[1])), node)

    found = await first_reply(world, endpoint.sentinels, router.discovery, parse, seconds)
    if found is None:
        raise MasterNotFoundError(f"no Sentinel names a primary of {router.service!r}")
    endpoint.ask_first(found[1])
    return found


def connect(endpoint: Endpoint, address: Address | None = None) -> BlockingConnection:
    """Open a blocking connection, which the caller closes; raises RedisError."""
    connection = BlockingConnection(address)
    run(functools.partial(dial, BLOCKING, endpoint, connection), endpoint.default_reply_timeout)
    return connection


async def refresh_topology(world: World, endpoint: Endpoint, error: Exception, known: Router) -> None:
    """Read the topology after an error that may mean that it is no longer the `known` one; while another
    caller of this process is reading it, wait for that one."""
    process, own = os.getpid(), Reading()
    reading = endpoint.readings.setdefault(process, own)
    if reading is own:
        try:
            if endpoint.router is known:
                await _read_topology(world, endpoint, error)
        finally:
            endpoint.forget_reading(process, own)
            own.end()
    elif world is BLOCKING and reading.thread == own.thread:  # this call has interrupted it
        await _read_topology(world, endpoint, error)
    else:
        await reading.wait(world.signal(), endpoint.default_reply_timeout)
        if not reading.has_ended:  # slow, or interrupted before it began: the next caller reads
            endpoint.forget_reading(process, reading)


async def _read_topology(world: World, endpoint: Endpoint, error: Exception) -> None:
    """If no node replies, apply what a MOVED error names."""
    known, seconds = endpoint.router, endpoint.default_reply_timeout
    found = await first_reply(world, endpoint.nodes(error), known.discovery, known.learn, seconds)
    if found is not None:
        endpoint.router = found
    elif isinstance(error, MovedError):
        endpoint.router = known.redirected(error)


async def first_reply(
    world: World,
    targets: Iterable[Target],
    command: Words,
    parse: Callable[[Any, Address | None], T | None],
    seconds: float,
) -> T | None:
    """Send a command to one target after the other, and return the first reply that is not an error, as
    `parse` converts it with the address of its server. All targets have `seconds`, of which none gets more
    than QUERY_TIMEOUT, or its share of what is left."""
    ends, waiting = monotonic() + seconds, list(targets)
    for number, target in enumerate(waiting):
        left = min(QUERY_TIMEOUT, (ends - monotonic()) / (len(waiting) - number))
        connection = world.connection()
        try:
            await world.done(connection.open(target, left))
            [reply] = await world.done(connection.exchange([command], left))
        except RedisError:
            continue
        finally:
            connection.close()
        found = None if isinstance(reply, RedisError) else parse(reply, location(connection))
        if found is not None:
            return found
    return None


def location(connection: Any) -> Address | None:
    """The address of the server of a connection; a unix socket has none."""
    return None if connection.host is None else (connection.host, connection.port)
