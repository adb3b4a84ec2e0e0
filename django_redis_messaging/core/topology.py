"""Which servers an alias leads to: one server, the primary named by Sentinels, or those of a Cluster.

An `Endpoint` knows how to connect to an alias, and has a `Router`, which says which server gets a call.
Neither sends anything. A router never changes: what is learnt makes a new one. `Unknown` is the first one of
an alias, unless it names Sentinels. The protocol is RESP2 with bytes, whatever the alias configures; the
driver's own retries are off.

`dial` opens a connection to the server of its address, `refresh_topology` reads which server owns which
slots, and `Primaries` lists the servers that own keys: each of them publishes the keyspace events of its own
keys only, and lists only those.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from threading import get_ident
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from redis import Redis
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.credentials import StreamingCredentialProvider
from redis.exceptions import AskError, AuthenticationError, MovedError, RedisError, ResponseError
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool, SentinelManagedConnection

from .. import conf
from ..errors import ConfigurationError, Unavailable
from . import outcome, testruns
from .commands import Argument, Command, Script, Words
from .connection import (
    BLOCKING,
    Address,
    BlockingConnection,
    BlockingSignal,
    LoopSignal,
    Style,
    Target,
    run_blocking,
    unusable_alias,
)
from .encoding import FORMAT
from .outcome import MIN_READING_TIME, is_temporary, seconds_allowed, time_left, topology_may_have_changed

T = TypeVar("T")
#: the command that returns the topology
SLOTS_COMMAND: Words = ("CLUSTER", "SLOTS")
#: sent before a call to a node that is importing the slot
ASKING: Words = ("ASKING",)
#: seconds to wait for the reply of one server where several can be queried
QUERY_TIMEOUT = 1.0
#: number of keys that one SCAN examines
SCAN_COUNT = 1000
#: seconds to wait for a reply to SCAN
SCAN_TIMEOUT = 10.0
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


class Router:
    """The server that the alias names gets all calls."""

    #: whether the kind of the server is known
    is_known = True
    #: whether keys have different servers, see `address`, so that a call for several resources must be split
    #: into one for each
    splits = False
    #: whether the server may belong to a Cluster, so that scripts need `Script.add_nonexistent_key`
    may_be_cluster = True
    #: the addresses of all servers that `address` returns
    addresses: frozenset[Address] = frozenset()
    #: the command that discovers where the keys are
    discovery: Words = SLOTS_COMMAND

    def address(self, call: Command | Script) -> Address | None:
        """The server for a call; None: the one that the alias names."""
        return None

    def is_outdated(self, error: Exception) -> bool:
        """Whether an error may mean that other servers have the keys now."""
        return isinstance(error, MovedError)

    def learn(self, slots: Any, node: Address | None) -> Router | None:
        """The router to use after `node` has replied to `discovery`; None: this one."""
        topology = parse_slots(slots, node=node)
        return None if topology is None else Cluster(topology)

    def redirected(self, error: MovedError) -> Router:
        """The router to use after an error that names the owner of a slot."""
        return Cluster(Topology().with_owner(error.slot_id, error.node_addr))


class Unknown(Router):
    """Nothing has been sent yet: the alias may name any node of a Cluster."""

    is_known = False

    def is_outdated(self, error: Exception) -> bool:
        return isinstance(error, MovedError) or topology_may_have_changed(error)

    def detect(self, reply: Any, node: Address | None) -> Router:
        """The router to use after the alias's server has replied to `discovery`; raises an error reply after
        which a later one may be another."""
        if is_standalone(reply):
            return SingleServer()
        if not isinstance(reply, Exception):
            return self.learn(reply, node) or Cluster(Topology())
        if is_refused(reply):
            return Router()
        raise reply


class SingleServer(Router):
    """A server that is not part of a Cluster."""

    may_be_cluster = False


class Sentinel(Router):
    """The primary of a service. The Sentinels are queried before each new connection, because they close the
    connections to a former primary."""

    may_be_cluster = False

    def __init__(self, service: str) -> None:
        self.service = service
        self.discovery = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)


class Cluster(Router):
    """Primaries that share the slots."""

    splits = True

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.addresses = frozenset(topology.addresses)

    def address(self, call: Command | Script) -> Address | None:
        return self._topology.address(call.key)

    def is_outdated(self, error: Exception) -> bool:
        return isinstance(error, MovedError) or topology_may_have_changed(error)

    def redirected(self, error: MovedError) -> Router:
        return Cluster(self._topology.with_owner(error.slot_id, error.node_addr))


class Topology:
    """Which primary owns which slots. Immutable: a change makes a new one."""

    __slots__ = ("_owners",)

    def __init__(self, owners: Iterable[Address | None] = (None,) * REDIS_CLUSTER_HASH_SLOTS) -> None:
        self._owners = list(owners)

    @property
    def addresses(self) -> set[Address]:
        """The addresses of all primaries."""
        return {owner for owner in self._owners if owner is not None}

    def address(self, key: Argument | None) -> Address | None:
        """The primary that owns a key; None: any server will do, or the owner is not known, so use the one
        that the alias names."""
        if key is None:
            return None
        return self._owners[key_slot(key if isinstance(key, bytes) else str(key).encode())]

    def with_owner(self, slot: int, owner: Address) -> Topology:
        """A copy with another owner of one slot."""
        owners = self._owners.copy()
        owners[slot] = owner
        return Topology(owners)


def parse_slots(slots: Any, *, node: Address | None) -> Topology | None:
    """Parse the reply of `node` to SLOTS_COMMAND; None if no slot has an owner.

    >>> slots = [[0, 16383, [b"10.0.0.1", 7000, b"id"], [b"10.0.0.2", 7000, b"replica"]]]
    >>> topology = parse_slots(slots, node=None)
    >>> topology.address("any"), topology.addresses
    (('10.0.0.1', 7000), {('10.0.0.1', 7000)})
    """
    owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (host, port, *_), *_ in slots:
        owner = resolve(host, port, node=node)
        owners[first : last + 1] = [owner] * (last + 1 - first)
    return Topology(owners) if slots else None


def resolve(host: bytes | str | None, port: int, *, node: Address | None) -> Address | None:
    """The address that a reply of `node` names; an unknown host means the node's own.

    >>> resolve(b"10.0.0.2", 7000, node=None), resolve(b"", 7001, node=("10.0.0.1", 7000))
    (('10.0.0.2', 7000), ('10.0.0.1', 7001))
    """
    host = host.decode() if isinstance(host, bytes) else host
    if host and host != "?":
        return host, int(port)
    return None if node is None else (node[0], int(port))


def is_standalone(reply: object) -> bool:
    """Whether a reply to SLOTS_COMMAND means that the server is not part of a Cluster."""
    return isinstance(reply, ResponseError) and "cluster support disabled" in str(reply)


def is_refused(reply: object) -> bool:
    """Whether the user may not send `discovery`, or a proxy doesn't know it."""
    if not isinstance(reply, ResponseError) or isinstance(reply, AuthenticationError):
        return False
    return not is_temporary(reply)


def ask_target(error: object) -> Address | None:
    """The node that an ASK redirect names for one call: it is importing the slot. None for other replies."""
    if isinstance(error, AskError) and not isinstance(error, MovedError):
        return error.host, error.port
    return None


@functools.cache
def endpoint(alias: str) -> Endpoint:
    """The endpoint of an alias, shared by all its clients."""
    run = testruns.current()
    shares = run is not None and run.root and run.is_of_site(settings.CACHES.get(alias))
    return (SharedEndpoint if shares else Endpoint)(alias)


class Endpoint:
    """How to connect to the Redis of one alias, and what is known about its servers. It sends nothing."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        #: counts the changes of user and password: connections opened before a change are not reused
        self.credentials = 0
        #: the run of tests in which this endpoint may be used; None: outside of tests
        self.run = testruns.current()
        private = None if self.run is None else self.run.location(alias)
        client: Any = _client(alias) if private is None else Redis.from_url(private)
        is_driver_cluster = hasattr(client, "get_default_node")
        node = client.get_default_node().redis_connection if is_driver_cluster else client
        self._pool = node.connection_pool
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
        #: the private server of tests has no replicas, so nothing waits for them
        self.has_replicas = not is_private
        #: how many replicas must confirm each write
        self.durability = outcome.configured_durability() if self.has_replicas else None
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
        timeout = self._timeout or seconds / 2
        if timeout > seconds:  # not min() and max(): every call of the client comes here
            timeout = seconds
        return timeout if timeout > MIN_READING_TIME else MIN_READING_TIME

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
        if router.may_be_cluster and isinstance(call, Script):
            call.add_nonexistent_key()
        return router.address(call) if router.splits else None

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
        # the handshake doesn't send the driver's version, which takes a millisecond to find
        return Target(self.alias, kind, {**parameters, "protocol": 2, "driver_info": None})


class SharedEndpoint(Endpoint):
    """An endpoint of a run of tests on a server of the site: only keys of the run may be used."""

    def route(self, call: Command | Script) -> Address | None:
        """The server for a call; raises ConfigurationError for a key of the site."""
        if isinstance(call, Script):
            used = call.words[3 : 3 + int(call.words[2])]
        else:  # some commands have no key, such as CONFIG GET
            used = tuple(key for key in (call.key,) if key is not None and f":{FORMAT}:{{" in str(key))
        cast(testruns.Run, self.run).refuse_foreign(map(str, used))
        return super().route(call)


def _client(alias: str) -> Any:
    """The driver's client of an alias, as django-redis creates it from the CACHES entry."""
    try:
        return get_redis_connection(alias)
    # django-redis raises NotImplementedError for a cache with another backend.
    except (InvalidCacheBackendError, NotImplementedError) as error:
        backend = testruns.mapping(settings.CACHES.get(alias)).get("BACKEND")
        problem = f" (its BACKEND is {backend})" if backend else ""
        raise ConfigurationError(
            f"CACHES has no django-redis entry {alias!r}{problem}: add one, or set ALIAS in {conf.NAME}. "
            "`manage.py check` prints an entry to paste."
        ) from error
    except RedisError as error:  # the driver's RedisCluster connects in its constructor
        raise Unavailable(
            f"The Cluster of CACHES[{alias!r}] can't be reached ({error}). Start it, or correct its LOCATION."
        ) from error
    except (ImproperlyConfigured, ImportError, AttributeError, TypeError, ValueError) as error:
        raise unusable_alias(alias, error) from error


def _other_pools(alias: str) -> list[Any]:
    location: str | list[str] = settings.CACHES[alias].get("LOCATION", "")
    named = len(location.split(",") if isinstance(location, str) else location)
    client = cast(Any, caches[alias]).client
    return [client.connect(at).connection_pool for at in range(1, named)]


async def dial(style: Style, endpoint: Endpoint, connection: Any, seconds: float) -> None:
    """Open a connection to the server of its address, or to the alias's server; raises RedisError."""
    if endpoint.run is not testruns.current():
        raise ConfigurationError(
            f"A client of CACHES[{endpoint.alias!r}] can't be used any more, since the test environment was "
            "set up after it was created: create it again."
        )
    if endpoint.run is not None:
        endpoint.run.check()
    ends = monotonic() + seconds
    address, sentinel = connection.address, None
    if address is None and isinstance(endpoint.router, Sentinel):
        address, sentinel = await _find_primary(style, endpoint, endpoint.router, seconds)
    try:
        await style.done(connection.open(endpoint.target(address), ends - monotonic()))
    except RedisError:
        if sentinel is not None:  # it may not know the present primary
            endpoint.ask_last(sentinel)
        raise


async def _find_primary(
    style: Style, endpoint: Endpoint, router: Sentinel, seconds: float
) -> tuple[Address, Address | None]:
    """The primary, and the Sentinel that names it."""

    def parse(reply: Any, node: Address | None) -> tuple[Address, Address | None] | None:
        return None if reply is None else ((reply[0].decode(), int(reply[1])), node)

    found = await first_reply(style, endpoint.sentinels, router.discovery, parse, seconds)
    if found is None:
        raise MasterNotFoundError(f"no Sentinel names a primary of {router.service!r}")
    endpoint.ask_first(found[1])
    return found


def connect(endpoint: Endpoint, address: Address | None = None) -> BlockingConnection:
    """Open a blocking connection, which the caller closes; raises RedisError."""
    connection = BlockingConnection(address)
    run_blocking(functools.partial(dial, BLOCKING, endpoint, connection), endpoint.default_reply_timeout)
    return connection


async def refresh_topology(style: Style, endpoint: Endpoint, error: Exception, known: Router) -> None:
    """Read the topology after an error that may mean that it is no longer the `known` one; while another
    caller of this process is reading it, wait for that one."""
    process, own = os.getpid(), Reading()
    reading = endpoint.readings.setdefault(process, own)
    if reading is own:
        try:
            if endpoint.router is known:
                await _read_topology(style, endpoint, error)
        finally:
            endpoint.forget_reading(process, own)
            own.end()
    elif style is BLOCKING and reading.thread == own.thread:  # this call has interrupted it
        await _read_topology(style, endpoint, error)
    else:
        await reading.wait(style.signal(), endpoint.default_reply_timeout)
        if not reading.has_ended:  # slow, or interrupted before it began: the next caller reads
            endpoint.forget_reading(process, reading)


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


async def _read_topology(style: Style, endpoint: Endpoint, error: Exception) -> None:
    """If no node replies, apply what a MOVED error names."""
    known, seconds = endpoint.router, endpoint.default_reply_timeout
    found = await first_reply(style, endpoint.nodes(error), known.discovery, known.learn, seconds)
    if found is not None:
        endpoint.router = found
    elif isinstance(error, MovedError):
        endpoint.router = known.redirected(error)


async def first_reply(
    style: Style,
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
        connection = style.connection()
        try:
            await style.done(connection.open(target, left))
            [reply] = await style.done(connection.exchange([command], left))
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


class Primary(NamedTuple):
    """A server that owns keys."""

    id: str
    #: None: the server that the alias names
    address: Address | None = None

    @contextmanager
    def connected(self, endpoint: Endpoint) -> Iterator[BlockingConnection]:
        """A new connection to this server, closed at the end of the block; raises RedisError."""
        connection = connect(endpoint, self.address)
        try:
            yield connection
        finally:
            connection.close()


#: a server that is not part of a Cluster, or whose user may not list the Cluster's nodes
STANDALONE = Primary("alone")


class Primaries:
    """Lists the primaries, over a connection that it keeps open. Use it in one thread at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._known: list[Primary] = []
        self._connection: BlockingConnection | None = None

    def discover(self) -> list[Primary]:
        """List the primaries; raises RedisError if no known server replies.

        A server that is not part of a Cluster, or that denies this user the command, is queried only once.
        """
        if self._known != [STANDALONE]:
            self._known = self._query_last() or self._query_any()
        return self._known

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _query_last(self) -> list[Primary]:
        """The reply of the server that replied last; nothing if it doesn't reply any more."""
        if self._connection is None:
            return []
        try:
            return self._query(self._connection)
        except RedisError:
            return []

    def _query_any(self) -> list[Primary]:
        """The first reply of the alias's server, or of any other node that is known."""
        errors: list[Exception] = []
        known = [one.address for one in self._known if one.address]
        for address in (None, *known, *self._endpoint.other_addresses):
            self.close()
            try:
                self._connection = connect(self._endpoint, address)
                return self._query(self._connection)
            except RedisError as error:
                errors.append(error)
        self.close()
        raise errors[0]

    def _query(self, connection: BlockingConnection) -> list[Primary]:
        [reply] = connection.exchange([SLOTS_COMMAND], self._endpoint.default_reply_timeout)
        if is_standalone(reply) or (is_refused(reply) and not self._known):
            self.close()
            return [STANDALONE]
        if isinstance(reply, ResponseError):
            raise reply  # a temporary error, such as BUSY: the topology has not changed
        return parse_primaries(reply, node=location(connection))


def parse_primaries(slots: Any, *, node: Address | None) -> list[Primary]:
    """Parse the reply of `node` to SLOTS_COMMAND; raises RedisError if it names no primary.

    >>> parse_primaries([[0, 16383, [b"10.0.0.1", 7000, b"a1"], [b"10.0.0.2", 7000, b"b2"]]], node=None)
    [Primary(id='a1', address=('10.0.0.1', 7000))]
    """
    found = {
        Primary(node_id.decode(), resolve(host, port, node=node)): None
        for _, _, (host, port, node_id, *_), *_ in slots
    }
    if not found:
        raise RedisError("no slot of the Cluster has an owner")
    return list(found)


def scan(
    endpoint: Endpoint, pattern: str, *, pages: int | None = None
) -> Iterator[tuple[BlockingConnection, list[bytes]]]:
    """The keys of all primaries that match a pattern, in pages, each with a connection to the server that
    owns them. A key that exists all the time is listed at least once, unless `pages` limits the pages of each
    primary. Raises RedisError.

    It uses SCAN, which doesn't block the server and needs no permission that the app doesn't need.
    """
    with closing(Primaries(endpoint)) as primaries:
        found = primaries.discover()
    for primary in found:
        with primary.connected(endpoint) as connection:
            cursor = b"0"
            for page in itertools.count(1):
                command = ("SCAN", cursor, "MATCH", pattern, "COUNT", str(SCAN_COUNT))
                timeout = max(min(SCAN_TIMEOUT, time_left()), MIN_READING_TIME)
                [reply] = connection.exchange([command], timeout)
                if isinstance(reply, Exception):
                    raise reply
                cursor, keys = reply
                yield connection, keys
                if cursor == b"0" or page == pages:
                    break


def remove_keys(endpoint: Endpoint, prefix: str) -> int:
    """Remove all keys that begin with `prefix` and a colon; returns their number. Raises RedisError.

    It doesn't block the server.
    """
    removed = 0
    for connection, keys in scan(endpoint, key_pattern(prefix)):
        if keys:
            removed += sum(connection.exchange([("UNLINK", key) for key in keys], SCAN_TIMEOUT))
    return removed


def key_pattern(prefix: str) -> str:
    """A pattern that matches the keys which begin with `prefix` and a colon."""
    return literal_pattern(prefix) + ":*"


def literal_pattern(text: str) -> str:
    """A pattern that matches this text only."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
