"""A primary, its replica, and a Sentinel that fails over to the replica."""

from __future__ import annotations

from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redis_messaging.core.embedded import EmbeddedServer, _free_port
from django_redis_messaging.core.programs import find_program
from tests.core.clusters import Servers, until

#: the service name of the two servers
NAME = "messaging-primary"
#: ms after which a silent server counts as dead
DOWN_AFTER = 500
#: ms; timeout of a failover; it is retried after twice as long
FAILOVER = 1500
#: ms between the periodic actions of a Sentinel, by default up to 10 s
PERIODS = {"INFO-PERIOD": 100, "PING-PERIOD": 100, "ASK-PERIOD": 100, "PUBLISH-PERIOD": 100}


class Sentinel(EmbeddedServer):
    """The server's program as a Sentinel, which needs a writable configuration file."""

    def __init__(self, primary: int) -> None:
        super().__init__()
        self.port = _free_port()
        self._primary = primary

    def _command(self) -> list[str]:
        file = self.directory / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"unixsocket {self.socket}",
            f"dir {self.directory}",
            f"sentinel monitor {NAME} 127.0.0.1 {self._primary} 1",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER}",
            f"sentinel failover-timeout {NAME} {FAILOVER}",
        ]
        file.write_text("\n".join(lines) + "\n")
        return [find_program(), str(file), "--sentinel"]


class Pair(Servers):
    """Two servers, 0 and 1: 0 is the first primary, and 1 its replica."""

    def follows(self, at: int) -> bool:
        """Whether this server is a replica in sync with its primary."""
        mine, theirs = (self.clients[one].info("replication") for one in (at, 1 - at))
        up = mine.get("master_link_status") == "up"
        return up and bool(mine["slave_repl_offset"] >= theirs["master_repl_offset"])

    def swap(self) -> None:
        """Make 1 the primary and 0 its replica, as an operator would."""
        until(lambda: self.follows(1))
        self.clients[1].replicaof("NO", "ONE")
        self.clients[0].replicaof("127.0.0.1", self._ports[1])

    def _begin(self) -> None:
        self._ports = [_free_port(), _free_port()]
        self.servers = [self._stack.enter_context(_server(port)) for port in self._ports]
        # a Sentinel that demotes a server closes all its connections
        again: Any = {"retry": Retry(NoBackoff(), 3)}
        self.clients: list[Any] = [self._stack.enter_context(one.client(**again)) for one in self.servers]
        self.clients[1].replicaof("127.0.0.1", self._ports[0])
        until(lambda: self.follows(1))


class Sentinels(Pair):
    """The pair, and the Sentinel that monitors it."""

    @property
    def options(self) -> dict[str, Any]:
        """OPTIONS of a CACHES entry. At the first address there is no Sentinel: the alias must not depend
        on a single one."""
        return {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
            "SENTINELS": [("127.0.0.1", _free_port()), ("127.0.0.1", self.sentinel.port)],
        }

    def kill(self) -> None:
        """Kill the primary, 0, once the replica is in sync."""
        until(lambda: self.follows(1))
        self.clients[0].connection_pool.disconnect()
        self.servers[0].kill()

    def order(self) -> None:
        """Start a failover to the replica, 1; returns before it is complete."""
        until(lambda: self.follows(1))
        self.orders.execute_command("SENTINEL", "FAILOVER", NAME)

    def took_over(self) -> bool:
        """Whether 1 is the primary, also according to the Sentinel."""
        _, port = self.orders.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(port) == self._ports[1] and self.clients[1].info("replication")["role"] == "master"

    def _begin(self) -> None:
        super()._begin()
        self.sentinel = self._stack.enter_context(Sentinel(self._ports[0]))
        self.orders: Any = self._stack.enter_context(self.sentinel.client())
        for period, milliseconds in PERIODS.items():
            self.orders.execute_command("SENTINEL", "DEBUG", period, milliseconds)
        until(self._watched)

    def _watched(self) -> bool:
        """Whether the Sentinel knows the replica well enough to choose it."""
        found = map(_pairs, self.orders.execute_command("SENTINEL", "REPLICAS", NAME))
        return any(one[b"flags"] == b"slave" and one[b"master-link-status"] == b"ok" for one in found)


def _server(port: int) -> EmbeddedServer:
    return EmbeddedServer(options={"bind": "127.0.0.1", "port": port, "repl-diskless-sync-delay": 0})


def _pairs(words: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(words[::2], words[1::2], strict=True))
