"""A primary, its replicas, and Sentinels that fail over to one of them."""

from __future__ import annotations

from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from django_redis_messaging.devserver.server import EmbeddedServer, find_program, free_port
from tests.support.clusters import Servers, is_live, until

#: ms after which a silent server counts as dead
DOWN_AFTER = 500
#: ms; timeout of a failover; it is retried after twice as long
FAILOVER = 1500
#: ms between the periodic actions of a Sentinel, by default up to 10 s. While the primary is down, a Sentinel
#: reads INFO once a second, and it promotes no replica whose INFO is older than five PING-PERIOD
PERIODS = {"INFO-PERIOD": 100, "PING-PERIOD": 300, "ASK-PERIOD": 100, "PUBLISH-PERIOD": 100}


def service_name(port: int) -> str:
    """By the port of the first primary: django-redis keeps one pool for each name in a process, also if other
    Sentinels monitor other servers of this name later."""
    return f"messaging-{port}"


class Sentinel(EmbeddedServer):
    """The server's program as a Sentinel, which needs a writable configuration file."""

    def __init__(self, primary: int, *, quorum: int = 1, down_after: int = DOWN_AFTER) -> None:
        super().__init__()
        self.port = free_port()
        self._name = service_name(primary)
        self._primary = primary
        self._quorum = quorum
        self._down_after = down_after
        self._path = find_program()

    def start(self) -> None:
        super().start()
        with self.client() as client:
            for period, milliseconds in PERIODS.items():
                client.execute_command("SENTINEL", "DEBUG", period, milliseconds)

    def _command(self) -> list[str]:
        file = self.directory / "sentinel.conf"
        if not file.exists():  # after a restart, the Sentinel reads the primary and the epoch from it
            file.write_text("\n".join(self._lines()) + "\n")
        return [self._path, str(file), "--sentinel"]

    def _lines(self) -> list[str]:
        return [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"unixsocket {self.socket}",
            f"dir {self.directory}",
            f"sentinel monitor {self._name} 127.0.0.1 {self._primary} {self._quorum}",
            f"sentinel down-after-milliseconds {self._name} {self._down_after}",
            f"sentinel failover-timeout {self._name} {FAILOVER}",
        ]


class Pair(Servers):
    """Two servers, 0 and 1, or more: 0 is the first primary, and the others are its replicas."""

    #: where these reach it
    address = "127.0.0.1"

    def __init__(self, *, replicas: int = 1, program: str | None = None) -> None:
        super().__init__()
        self._replicas = replicas
        self._program = program

    def follows(self, at: int) -> bool:
        """Whether this server is a replica in sync with its primary."""
        mine = self.clients[at].info("replication")
        if mine.get("master_link_status") != "up" or mine["master_port"] not in self._ports:
            return False
        theirs = self.clients[self._ports.index(mine["master_port"])].info("replication")
        return bool(mine["slave_repl_offset"] >= theirs["master_repl_offset"])

    def swap(self) -> None:
        """Make 1 the primary and 0 its replica, as an operator would."""
        until(lambda: self.follows(1))
        self.clients[1].replicaof("NO", "ONE")
        self.clients[0].replicaof("127.0.0.1", self._ports[1])

    def _begin(self) -> None:
        self._ports = [free_port() for _ in range(1 + self._replicas)]
        self.servers = [self._stack.enter_context(self._server(port)) for port in self._ports]
        # a Sentinel that demotes a server closes all its connections
        again: Any = {"retry": Retry(NoBackoff(), 3)}
        self.clients: list[Any] = [self._stack.enter_context(one.client(**again)) for one in self.servers]
        replicas = range(1, 1 + self._replicas)
        for at in replicas:
            self.clients[at].replicaof(self.address, self._ports[0])
        until(lambda: all(self.follows(at) for at in replicas))

    def _server(self, port: int) -> EmbeddedServer:
        options: dict[str, str | int] = {"bind": "127.0.0.1", "port": port, "repl-diskless-sync-delay": 0}
        return EmbeddedServer(options=options, program=self._program)


class Sentinels(Pair):
    """A primary with `replicas`, and `number` Sentinels that monitor it: most of them must agree that it is
    dead. `down_after` is the time in ms after which a silent server counts as dead.

    The first Sentinel must run. Others, and replicas, may be frozen or killed through their EmbeddedServer.
    """

    def __init__(self, number: int = 1, *, replicas: int = 1, down_after: int = DOWN_AFTER) -> None:
        super().__init__(replicas=replicas)
        self._number = number
        self._down_after = down_after
        self.sentinels: list[Sentinel] = []
        #: clients to inspect and control the Sentinels
        self.controls: list[Any] = []

    @property
    def name(self) -> str:
        """The service name of the servers."""
        return service_name(self._ports[0])

    @property
    def url(self) -> str:
        """LOCATION of a CACHES entry."""
        return f"redis://{self.name}/0?db=0"

    @property
    def options(self) -> dict[str, Any]:
        """OPTIONS of a CACHES entry. At the first address there is no Sentinel: the alias must not depend
        on a single one."""
        ports = [free_port(), *(sentinel.port for sentinel in self.sentinels)]
        return {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "CONNECTION_POOL_CLASS": "redis.sentinel.SentinelConnectionPool",
            "SENTINELS": [("127.0.0.1", port) for port in ports],
        }

    @property
    def orders(self) -> Any:
        """The client of the first Sentinel."""
        return self.controls[0]

    def primary(self) -> int:
        """The number of the primary, according to the first Sentinel."""
        _, port = self.orders.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return self._ports.index(int(port))

    def kill(self) -> int:
        """Kill the primary once all live replicas are in sync; returns its number."""
        at = self._settled()
        self.clients[at].connection_pool.disconnect()
        self.servers[at].kill()
        return at

    def order(self) -> None:
        """Start a failover to a replica; returns before it is complete."""
        self._settled()
        self.orders.execute_command("SENTINEL", "FAILOVER", self.name)

    def took_over(self, former: int = 0) -> bool:
        """Whether another server than `former` is the primary, also according to the first Sentinel."""
        at = self.primary()
        return at != former and bool(self.clients[at].info("replication")["role"] == "master")

    def _begin(self) -> None:
        super()._begin()
        for _ in range(self._number):
            self._start_sentinel()
        self._settled()

    def _start_sentinel(self) -> None:
        quorum = self._number // 2 + 1
        sentinel = Sentinel(self._ports[0], quorum=quorum, down_after=self._down_after)
        self.sentinels.append(self._stack.enter_context(sentinel))
        self.controls.append(self._stack.enter_context(sentinel.client()))

    def _settled(self) -> int:
        """The number of the primary, once all live replicas are in sync and all live Sentinels have completed
        the last failover: before that, another one may not start."""
        primary = self.primary()
        live = [at for at, one in enumerate(self.servers) if is_live(one) and at != primary]
        until(lambda: all(map(self.follows, live)))
        watching = [self.controls[at] for at, one in enumerate(self.sentinels) if is_live(one)]
        until(lambda: all(self._ready(one, primary, len(live), len(watching)) for one in watching))
        return primary

    def _ready(self, sentinel: Any, primary: int, replicas: int, sentinels: int) -> bool:
        """Whether a Sentinel is connected to so many others, and could promote so many replicas."""
        kinds = ("SENTINELS", "REPLICAS")
        of = {kind: sentinel.execute_command("SENTINEL", kind, self.name) for kind in kinds}
        others = _fields(of["SENTINELS"], b"flags")
        known = _fields(of["REPLICAS"], b"flags", b"master-link-status")
        [state] = _fields([sentinel.execute_command("SENTINEL", "MASTER", self.name)], b"flags", b"port")
        return (
            state == (b"master", b"%d" % self._ports[primary])
            and others.count((b"sentinel",)) == sentinels - 1
            and known.count((b"slave", b"ok")) == replicas
            and len([flags for flags, _ in known if b"s_down" not in flags]) == replicas
        )


def _fields(found: list[Any], *names: bytes) -> list[tuple[bytes, ...]]:
    """Fields of each instance that a Sentinel describes."""
    instances = (dict(zip(one[::2], one[1::2], strict=True)) for one in found)
    return [tuple(one[name] for name in names) for one in instances]
