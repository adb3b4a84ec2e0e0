"""A Redis Cluster of several primaries, with replicas where wanted, whose slots can be moved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self

import redis
from redis.crc import key_slot

from django_redis_messaging.devserver.server import EmbeddedServer, free_port

#: seconds; the timeout of conditions, also on a busy machine
PATIENCE = 60.0
#: number of polls after which a failover command is repeated: nodes forget it after five seconds
ONCE_MORE = 1200
SLOTS = 16384
#: ms after which a silent node counts as dead
NODE_TIMEOUT = 2000
#: the same while nodes find each other, which takes a fraction of it
JOINING_TIMEOUT = 500
#: number of keys that are moved at once
PAGE = 100


def until(holds: Callable[[], object]) -> None:
    """Wait until a condition is true and no node is loading data from another."""
    ends = time.monotonic() + PATIENCE
    while True:
        with suppress(redis.BusyLoadingError):
            if holds():
                return
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {PATIENCE} s")
        time.sleep(0.005)


def is_live(server: EmbeddedServer) -> bool:
    """Whether a server runs and is not frozen."""
    return (
        server.running and Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    )


def slot(name: str) -> int:
    """The slot of the keys of a counter."""
    return key_slot(f"thing:{name}".encode())


@cache
def mates(name: str, number: int = 1) -> list[str]:
    """Names of other counters in the same slot."""
    others = (other for other in map(f"{name}-{{}}".format, count()) if slot(other) == slot(name))
    return [next(others) for _ in range(number)]


class Servers:
    """Several servers that start and end together."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        raise NotImplementedError


class Cluster(Servers):
    """`primaries` nodes that share the slots, and behind them as many replicas, if wanted: with three, the
    node 3 is the replica of the node 0. Others, as many as `later`, run already and join when they are told
    to. What a method calls `at` is the number of a node. `tls` are the server's options for certificates: the
    nodes then listen on TLS ports, too. Several databases need Valkey 9: the last one is used."""

    def __init__(
        self,
        primaries: int = 3,
        *,
        replicas: bool = False,
        later: int = 0,
        node_timeout: int = NODE_TIMEOUT,
        tls: Mapping[str, str] | None = None,
        program: str | None = None,
        databases: int = 1,
    ) -> None:
        super().__init__()
        self._primaries = primaries
        self._databases = databases
        self._replicas = replicas
        self._later = later
        #: ms after which a silent node counts as dead, unless a test changes it
        self.node_timeout = node_timeout
        self._tls = tls
        self._program = program
        self.servers: list[EmbeddedServer] = []
        #: clients to inspect and control the nodes
        self.clients: list[Any] = []
        self._ports: list[int] = []
        self._addresses: list[str] = []
        #: the TLS ports of the nodes
        self.tls_ports: list[int] = []

    def _begin(self) -> None:
        members = self._primaries * (1 + self._replicas)
        for _ in range(members + self._later):
            self._start()
        self._share_slots()
        for other in range(1, members):
            self._meet(0, other)
        until(lambda: all(len(_view(client)) == members for client in self.clients[:members]))
        if self._replicas:
            self._change_roles()
        until(self._whole)
        self.replicated()
        self.set_timeout(self.node_timeout)

    def set_timeout(self, milliseconds: int) -> None:
        """Change the time after which a silent node counts as dead."""
        for client in self.clients:
            client.config_set("cluster-node-timeout", milliseconds)

    def repair(self) -> None:
        """Undo what a test has done: the first nodes are the primaries again, and the timeout is the original
        one. Moved slots stay where they are."""
        self.set_timeout(JOINING_TIMEOUT)
        for at in range(self._primaries):
            if at not in self.primaries():
                self.fail_over(self._primary_of(at))
        self.set_timeout(self.node_timeout)

    def url(self, at: int) -> str:
        """The LOCATION of a CACHES entry that names this node."""
        return f"redis://{self._addresses[at]}:{self._ports[at]}?db={self._databases - 1}"

    def id(self, at: int) -> str:
        return str(self.clients[at].execute_command("CLUSTER MYID").decode())

    def owner(self, slot: int) -> int:
        """The owner of a slot, according to the first running node."""
        return self._owner(slot, self._running()[0])

    def owners(self, names: Iterable[str]) -> set[int]:
        """The nodes that own these counters."""
        return {self.owner(slot(name)) for name in names}

    def another(self, slot: int) -> int:
        """A primary that doesn't own this slot."""
        return next(at for at in self.primaries() if at != self.owner(slot))

    def primaries(self) -> list[int]:
        """The current primaries."""
        return [at for at in self._running() if self.clients[at].info("replication")["role"] == "master"]

    def replica_of(self, at: int) -> int:
        """The replica of a node."""
        port = self._replication_ports[at]
        found = {other: self.clients[other].info("replication") for other in self._running()}
        return next(other for other, info in found.items() if info.get("master_port") == port)

    def total(self, section: str, field: str, item: str) -> int:
        """A count of INFO, of all nodes: total("errorstats", "errorstat_MOVED", "count")."""
        found = (self.clients[at].info(section).get(field, {item: 0}) for at in self._running())
        return sum(int(one[item]) for one in found)

    @property
    def redirects(self) -> int:
        """The number of MOVED and ASK errors of the nodes."""
        return self.total("errorstats", "errorstat_MOVED", "count")

    @property
    def refusals(self) -> int:
        """The number of calls that were refused because a slot is on its way."""
        return self.total("errorstats", "errorstat_TRYAGAIN", "count")

    def migrate(self, slot: int, to: int) -> None:
        """Move a slot and its keys: as `redis-cli --cluster reshard` does, or with all databases at once."""
        if self._databases > 1:
            self._migrate_atomically(slot, to)
        elif self.owner(slot) != to:
            self._open(slot, to)
            self._finish(slot, to)

    @contextmanager
    def half_migrated(self, slot: int, to: int, keys: Sequence[str] = ()) -> Iterator[None]:
        """Migrate a slot with these keys moved already; the migration is completed at the end of the
        block."""
        source = self.owner(slot)
        self._open(slot, to)
        self._move(source, to, keys)
        try:
            yield
        finally:
            self._finish(slot, to, source)

    def kill(self, at: int) -> int:
        """End a node as a crash would, once its replica has all that it has, and wait until that one has
        taken over; its number."""
        replica = self._end(at)
        self.took_over(replica)
        return replica

    @contextmanager
    def killed(self, at: int) -> Iterator[int]:
        """As `kill`, but before the replica takes over; at the end of the block the node restarts as a
        replica."""
        replica = self._end(at)
        try:
            yield replica
        finally:
            self.took_over(replica)
            self.servers[at].start()
            until(lambda: self.clients[at].info("replication")["role"] == "slave")
            until(self._whole)
            self.replicated()

    def fail_over(self, at: int) -> int:
        """Fail over to the replica of a node gracefully; returns the number of the replica."""
        replica, orders = self.replica_of(at), count()

        def took_over() -> bool:
            if replica in self.primaries():
                return True
            if next(orders) % ONCE_MORE == 0:
                try:
                    self.clients[replica].execute_command("CLUSTER", "FAILOVER")
                except redis.ResponseError as error:
                    if "Master is down" not in str(error):  # it takes over without being told
                        raise
            return False

        until(took_over)
        until(self._whole)
        self.replicated()
        return replica

    def took_over(self, replica: int) -> None:
        """Wait until a replica is a primary for every node."""
        until(lambda: replica in self.primaries())
        until(lambda: all(_info(self.clients[at])["cluster_state"] == "ok" for at in self._running()))

    def join(self) -> int:
        """Add a node without slots; returns its number."""
        at = len(self.servers) - self._later
        self._later -= 1
        for other in range(at):
            self._meet(at, other)
        until(self._whole)
        return at

    def replicated(self) -> None:
        """Wait until every replica is in sync with its primary."""
        until(lambda: all(self._up_to_date(at) for at in self._running() if at not in self.primaries()))

    @property
    def _replication_ports(self) -> list[int]:
        return self.tls_ports or self._ports

    def _start(self, address: str = "127.0.0.1") -> None:
        self._addresses.append(address)
        self._ports.append(free_port())
        options: dict[str, str | int] = {
            "bind": address,
            "port": self._ports[-1],
            "cluster-enabled": "yes",
            "cluster-port": free_port(),
            "cluster-node-timeout": JOINING_TIMEOUT,
            "cluster-allow-replica-migration": "no",
            "repl-diskless-sync-delay": 0,
        }
        if self._databases > 1:
            options["cluster-databases"] = self._databases
        if self._tls is not None:
            self.tls_ports.append(free_port())
            # Redis 7.0 replicates from the port that it uses for the cluster bus
            options |= {
                **self._tls,
                "tls-port": self.tls_ports[-1],
                "tls-cluster": "yes",
                "tls-replication": "yes",
            }
        server = self._server(options)
        self.servers.append(self._stack.enter_context(server))
        self.clients.append(self._stack.enter_context(server.client(db=self._databases - 1)))

    def _server(self, options: dict[str, str | int]) -> EmbeddedServer:
        return EmbeddedServer(options=options, program=self._program)

    def _end(self, at: int) -> int:
        self.replicated()
        replica = self.replica_of(at)
        self.clients[at].connection_pool.disconnect()
        self.servers[at].kill()
        return replica

    def _share_slots(self) -> None:
        for at, client in enumerate(self.clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        bounds = [SLOTS * at // self._primaries for at in range(self._primaries + 1)]
        for client, first, beyond in zip(self.clients, bounds, bounds[1:], strict=False):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, beyond - 1)

    def _change_roles(self) -> None:
        """A primary accepts nothing in its first two seconds, but a replica that takes over does at once: so
        each primary gets a replica, which takes over, and they change their numbers."""
        replicas = range(self._primaries, 2 * self._primaries)
        for at in replicas:
            self.clients[at].execute_command("CLUSTER", "REPLICATE", self.id(at - self._primaries))
        until(lambda: all(_info(self.clients[at])["cluster_state"] == "ok" for at in replicas))
        for at in replicas:
            self.clients[at].execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
        for known in (self.servers, self.clients, self._addresses, self._ports, self.tls_ports):
            former, rest = known[: self._primaries], known[self._primaries :]
            known[:] = [*rest[: self._primaries], *former, *rest[self._primaries :]]

    def _meet(self, one: int, other: int) -> None:
        bus = self.clients[other].config_get("cluster-port")["cluster-port"]
        self.clients[one].execute_command("CLUSTER", "MEET", self._addresses[other], self._ports[other], bus)

    def _running(self) -> list[int]:
        members = self.servers[: len(self.servers) - self._later]
        return [at for at, server in enumerate(members) if server.running]

    def _whole(self) -> bool:
        """Whether all members agree on the members, their roles and their slots."""
        members = self._running()
        views = [_view(self.clients[at]) for at in members]
        states = [_info(self.clients[at]) for at in members]
        known = all(len(view) == len(members) for view in views)
        return (
            known
            and views.count(views[0]) == len(views)
            and all(state["cluster_state"] == "ok" for state in states)
            and all(state["cluster_slots_ok"] == str(SLOTS) for state in states)
        )

    def _owner(self, slot: int, seen_by: int) -> int:
        for port, (_, ranges) in _view(self.clients[seen_by]).items():
            if any(int(one[0]) <= slot <= int(one[-1]) for one in ranges):
                return self._ports.index(port)
        raise LookupError(f"nobody has the slot {slot}")

    def _primary_of(self, at: int) -> int:
        return self._replication_ports.index(self.clients[at].info("replication")["master_port"])

    def _up_to_date(self, at: int) -> bool:
        # read first: while the primary is used, no replica ever has all that it has at that moment
        theirs = self.clients[self._primary_of(at)].info("replication")
        mine = self.clients[at].info("replication")
        return mine["master_link_status"] == "up" and bool(
            mine["slave_repl_offset"] >= theirs["master_repl_offset"]
        )

    def _migrate_atomically(self, slot: int, to: int) -> None:
        words = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id(to))
        self.clients[self.owner(slot)].execute_command(*words)
        until(lambda: self._agreed(slot, to))

    def _open(self, slot: int, to: int) -> None:
        source = self.owner(slot)
        self.clients[to].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        self.clients[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(to))

    def _finish(self, slot: int, to: int, source: int | None = None) -> None:
        source = self.owner(slot) if source is None else source
        while keys := self.clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, PAGE):
            self._move(source, to, keys)
        for at in (to, source):  # the new owner first: the slot always has an owner
            self.clients[at].execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id(to))
        until(lambda: self._agreed(slot, to))

    def _agreed(self, slot: int, owner: int) -> bool:
        """Whether all know that it has the slot, and since which epoch: who doesn't may believe the former
        owner, and one that takes the same epoch, for another slot, would be believed by some."""
        members = self._running()
        epochs = [_epochs(self.clients[at]) for at in members]
        return all(self._owner(slot, at) == owner for at in members) and epochs.count(epochs[0]) == len(
            epochs
        )

    def _move(self, source: int, to: int, keys: Sequence[str | bytes]) -> None:
        if keys:
            where = (self._addresses[to], self._replication_ports[to], "", 0, int(1000 * PATIENCE))
            self.clients[source].execute_command("MIGRATE", *where, "KEYS", *keys)


def _info(client: Any) -> dict[str, str]:
    found: dict[str, str] = client.execute_command("CLUSTER INFO")
    return found


def _view(client: Any) -> dict[int, tuple[str, list[list[str]]]]:
    """Port → who it is a replica of, and ranges of slots, as one node sees it; without what it took for
    dead or has not shaken hands with."""
    return {
        int(address.rpartition(":")[2]): (node["master_id"], node["slots"])
        for address, node in client.execute_command("CLUSTER NODES").items()
        if not {"handshake", "noaddr", "fail"} & set(node["flags"].split(","))
    }


def _epochs(client: Any) -> dict[str, str]:
    """Address → epoch of each primary, as one node sees it."""
    nodes = client.execute_command("CLUSTER NODES")
    return {address: node["epoch"] for address, node in nodes.items() if "master" in node["flags"]}
