"""A primary, its replica, and a Sentinel that makes the replica take over."""

from __future__ import annotations

from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redis_messaging.core.embedded import EmbeddedServer, _free_port, find_program
from tests.core.clusters import Servers, until

#: what the Sentinel calls the two
NAME = "messaging-primary"
#: milliseconds after which a server that gives no sign is taken for dead
DOWN_AFTER = 500
#: milliseconds that making the replica take over may take; after twice as long it is tried again
FAILOVER = 1500
#: milliseconds between what a Sentinel does again and again; they would be up to 10 s
PERIODS = {"INFO-PERIOD": 100, "PING-PERIOD": 100, "ASK-PERIOD": 100, "PUBLISH-PERIOD": 100}


class Sentinel(EmbeddedServer):
    """The server's program as a Sentinel: it wants a file that it can write to."""

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
    """Two servers, 0 and 1, of which 0 is the primary first, and 1 its replica."""

    def follows(self, at: int) -> bool:
        """Whether this one is a replica that has all that its primary has."""
        mine, theirs = (self.clients[one].info("replication") for one in (at, 1 - at))
        up = mine.get("master_link_status") == "up"
        return up and bool(mine["slave_repl_offset"] >= theirs["master_repl_offset"])

    def swap(self) -> None:
        """1 becomes the primary, and 0 its replica, which is what an operator does."""
        until(lambda: self.follows(1))
        self.clients[1].replicaof("NO", "ONE")
        self.clients[0].replicaof("127.0.0.1", self._ports[1])

    def _begin(self) -> None:
        self._ports = [_free_port(), _free_port()]
        self.servers = [self._stack.enter_context(_server(port)) for port in self._ports]
        # a Sentinel that makes a replica of one cuts all its connections
        again: Any = {"retry": Retry(NoBackoff(), 3)}
        self.clients: list[Any] = [self._stack.enter_context(one.client(**again)) for one in self.servers]
        self.clients[1].replicaof("127.0.0.1", self._ports[0])
        until(lambda: self.follows(1))


class Sentinels(Pair):
    """The pair, and the Sentinel that watches it."""

    @property
    def options(self) -> dict[str, Any]:
        """OPTIONS of a CACHES entry. At the first address is no Sentinel: nobody depends on a single one."""
        return {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
            "SENTINELS": [("127.0.0.1", _free_port()), ("127.0.0.1", self.sentinel.port)],
        }

    def kill(self) -> None:
        """End the primary, 0, as a crash would, once the replica has all that it has."""
        until(lambda: self.follows(1))
        self.clients[0].connection_pool.disconnect()
        self.servers[0].kill()

    def order(self) -> None:
        """Tell the Sentinel to let the replica, 1, take over; returns before that has happened."""
        until(lambda: self.follows(1))
        self.orders.execute_command("SENTINEL", "FAILOVER", NAME)

    def took_over(self) -> bool:
        """Whether 1 is the primary, and the Sentinel says so."""
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
