"""A primary and its replicas, in a Cluster or behind Sentinels, as the faults break them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import redis
from django.test import override_settings
from redis.crc import key_slot

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.expiries.timers import TIMERS
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.clusters import NODE_TIMEOUT, PATIENCE, Cluster, until
from tests.support.sentinels import DOWN_AFTER, Sentinels

from .aliases import entry
from .partitions import Network
from .pytest_hooks import LONG

#: settings of the app: jobs that were lost several times are not buried
MESSAGING = {"JOB_MAX_ATTEMPTS": 1000, "JOB_MAX_LOST": 1000, "JOB_BACKOFF": 0.1}
#: fills the socket buffers between a primary and a frozen replica: parts, and bytes of each
PARTS, PART = 24, 1_000_000
#: number of the slots that are moved only because something is stored in them
SOME = 8 if LONG else 2


class Shard:
    """One primary and its replicas. `detection`: s, after this time a silent primary counts as dead."""

    def __init__(
        self,
        title: str,
        entry: dict[str, Any],
        servers: Sequence[EmbeddedServer],
        clients: Sequence[Any],
        *,
        primary: int,
        replicas: list[int],
        detection: float,
    ) -> None:
        self.title = title
        #: the CACHES entry
        self.entry = entry
        self.servers = servers
        #: clients to inspect and control the servers
        self.clients = clients
        self.primary = primary
        self.replicas = replicas
        self.detection = detection
        #: the network between the primary and the other servers, and the CACHES entry on its far side, if it
        #: can be cut
        self.network: Network | None = None
        self.far_entry = entry

    def spread(self, key: Callable[[str], str]) -> list[str]:
        """Names of resources, given the key of one: the first one is on this shard."""
        raise NotImplementedError

    def gather(self, keys: Sequence[str]) -> None:
        """Let these keys be on this shard."""

    def fail_over(self) -> None:
        """Let a replica take over without a loss."""
        raise NotImplementedError

    def accepts_writes(self) -> bool:
        """Whether the former primary accepts writes."""
        raise NotImplementedError

    @property
    def filler(self) -> str:
        """A key of this shard."""
        return JobKeys(conf.prefix(), *TIMERS).tag + ":filler"

    def role(self, at: int) -> dict[str, Any]:
        """The replication section of INFO; empty if the server is not running."""
        with suppress(redis.RedisError):
            found: dict[str, Any] = self.clients[at].info("replication")
            return found
        return {}

    def has_failed_over(self) -> bool:
        """Whether a replica is the primary."""
        return any(self.role(at).get("role") == "master" for at in self.replicas)

    def is_whole(self) -> bool:
        """Whether there is one primary, and all others are in sync with it."""
        found = [self.role(at) for at in (self.primary, *self.replicas)]
        primaries = [one for one in found if one.get("role") == "master"]
        others = [one for one in found if one.get("role") == "slave"]
        return (
            len(primaries) == 1
            and len(others) == len(self.replicas)
            and all(
                one["master_link_status"] == "up"
                and one["slave_repl_offset"] >= primaries[0]["master_repl_offset"] - PART
                for one in others
            )
        )

    def replicate(self) -> None:
        """Wait until each replica has acknowledged a write: it then has all that was there before."""
        self.clients[self.primary].set(self.filler, "")
        if self.clients[self.primary].wait(len(self.replicas), int(PATIENCE * 1000)) < len(self.replicas):
            raise TimeoutError(f"The replicas have acknowledged nothing within {PATIENCE} s.")

    def kill(self) -> None:
        """Kill the primary (SIGKILL)."""
        self.clients[self.primary].connection_pool.disconnect()
        self.servers[self.primary].kill()

    def restart(self) -> None:
        """Start the killed primary, which becomes a replica."""
        self.servers[self.primary].start()

    def freeze(self, replicas: Sequence[int]) -> None:
        """Freeze replicas. The socket buffers to them are filled with writes, so that later writes reach them
        only if the primary lives."""
        for at in replicas:
            self.servers[at].freeze()
        for _ in range(PARTS):
            self.clients[self.primary].set(self.filler, b"x" * PART)

    def thaw(self, servers: Sequence[int]) -> None:
        for at in servers:
            self.servers[at].thaw()


class ClusterShard(Shard):
    """The shard of a Cluster that has the timers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: a key of each shared resource on it
        self._keys: list[str] = []
        primary = cluster.owner(key_slot(JobKeys("", *TIMERS).jobs.encode()))
        super().__init__(
            "Cluster",
            entry(cluster.url(primary)),
            cluster.servers,
            cluster.clients,
            primary=primary,
            replicas=[cluster.replica_of(primary)],
            detection=NODE_TIMEOUT / 1000,
        )

    def accepts_writes(self) -> bool:
        info: dict[str, str] = self.clients[self.primary].execute_command("CLUSTER INFO")
        return info["cluster_state"] == "ok"

    def spread(self, key: Callable[[str], str]) -> list[str]:
        """One name for each primary."""
        found: dict[int, str] = {}
        for name in map("r{}".format, count()):
            found.setdefault(self._cluster.owner(key_slot(key(name).encode())), name)
            if len(found) == 3:
                break
        self._keys.append(key(found[self.primary]))
        return [found.pop(self.primary), *found.values()]

    def gather(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._cluster.migrate(key_slot(key.encode()), self.primary)

    def fail_over(self) -> None:
        self._cluster.fail_over(self.primary)

    def move_slots(self) -> None:
        """Move slots that are used to other primaries and back. Those of the shared resources are divided
        between two nodes until a call has been refused for that."""
        shared = {key_slot(key.encode()) for key in (*self._keys, self.filler)} if self._keys else set()
        match = f"{conf.prefix()}:*"
        stored = [self.clients[at].scan_iter(match=match, count=1000) for at in self._cluster.primaries()]
        others = sorted({key_slot(key) for keys in stored for key in keys} - shared)
        for slot in (*shared, *others[:: len(others) // SOME + 1]):
            owner = self._cluster.owner(slot)
            for target in (self._cluster.another(slot), owner):
                if slot in shared:
                    self._divide(slot, target)
                else:
                    self._cluster.migrate(slot, target)

    def _divide(self, slot: int, target: int) -> None:
        first = self.clients[self._cluster.owner(slot)].execute_command("CLUSTER GETKEYSINSLOT", slot, 1)
        before = self._cluster.refusals
        with self._cluster.half_migrated(slot, target, first):
            until(lambda: self._cluster.refusals > before)


class NumberedShard(ClusterShard):
    """The same in a Cluster with several databases, where no slot is ever divided."""

    def _divide(self, slot: int, target: int) -> None:
        self._cluster.migrate(slot, target)


class SentinelShard(Shard):
    """The servers behind Sentinels: all resources are on their primary."""

    def __init__(self, sentinels: Sentinels) -> None:
        servers = sentinels.servers
        super().__init__(
            "Sentinel",
            entry(sentinels.url, **sentinels.options),
            servers,
            sentinels.clients,
            primary=0,
            replicas=list(range(1, len(servers))),
            detection=DOWN_AFTER / 1000,
        )
        self._sentinels = sentinels
        #: the address of the primary
        self._named = sentinels.orders.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.name)

    def spread(self, key: Callable[[str], str]) -> list[str]:
        """Some names."""
        return ["r0", "r1"]

    def fail_over(self) -> None:
        self._sentinels.order()
        until(self._sentinels.took_over)

    def restart(self) -> None:
        """Restart the killed primary, which is empty, once no Sentinel names it."""
        named = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._sentinels.name)
        until(lambda: all(one.execute_command(*named) != self._named for one in self._sentinels.controls))
        super().restart()

    def accepts_writes(self) -> bool:
        """Whether it has a replica, as min-replicas-to-write demands."""
        return int(self.role(self.primary)["min_slaves_good_slaves"]) > 0


@contextmanager
def connected(shard: Shard, **messaging: Any) -> Iterator[None]:
    """Let the app use these servers during the block, with a prefix of its own; clients on the far side of a
    network use the alias "far"."""
    settings = {**MESSAGING, "PREFIX": f"faults-{uuid.uuid4().hex[:8]}", **messaging}
    caches = {"default": shard.entry, "messaging": shard.entry, "far": shard.far_entry}
    clients.close()
    with override_settings(CACHES=caches, REDIS_MESSAGING=settings):
        try:
            yield
        finally:
            clients.close()
