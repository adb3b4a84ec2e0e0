"""The faults that are tested and measured: which servers, what happens to them, and what may be lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.support.clusters import NODE_TIMEOUT, Cluster
from tests.support.sentinels import Sentinels

from .failover import (
    Fault,
    Report,
    cut_off_primary,
    freeze_primary,
    kill_primary,
    kill_primary_all_behind,
    kill_primary_one_behind,
    move_slots,
    run,
)
from .partitions import Network, PartitionedCluster, PartitionedSentinels
from .replicated_primary import ClusterShard, SentinelShard, Shard, connected, entry


@contextmanager
def cluster() -> Iterator[Shard]:
    with Cluster(replicas=True) as servers:
        yield ClusterShard(servers)


@contextmanager
def sentinel() -> Iterator[Shard]:
    with Sentinels(3, replicas=2) as servers:
        yield SentinelShard(servers)


@contextmanager
def worse_sentinel() -> Iterator[Shard]:
    """Sentinels that prefer one replica, which can be behind the other."""
    with Sentinels(3, replicas=2) as servers:
        shard = SentinelShard(servers)
        shard.title = "Sentinel, one replica preferred"
        shard.clients[shard.replicas[0]].config_set("replica-priority", 1)
        yield shard


@contextmanager
def divided_cluster() -> Iterator[Shard]:
    primary = ClusterShard.PRIMARY
    with Network() as network, PartitionedCluster(network, primary, node_timeout=NODE_TIMEOUT) as servers:
        shard = ClusterShard(servers)
        shard.network, shard.far_entry = network, entry(servers.url(shard.replicas[0]))
        yield shard


@contextmanager
def divided_sentinel() -> Iterator[Shard]:
    with Network() as network, PartitionedSentinels(network) as servers:
        shard = SentinelShard(servers)
        shard.network, shard.far_entry = network, entry(servers.url, **servers.far_options)
        yield shard


@dataclass(frozen=True)
class Scenario:
    """A fault of the servers of one kind."""

    name: str
    start: Callable[[], AbstractContextManager[Shard]]
    fault: Fault
    #: DURABILITY: how many replicas confirm each write; 0: it is not set
    confirmed_by: int = 0
    #: whether acknowledged writes are lost; None: those that no replica had received at that moment
    loses: bool | None = None
    #: COMMAND_DEADLINE
    deadline: float = 1.0
    #: whether each test run includes it
    is_short: bool = False

    def run(self) -> tuple[Shard, Report]:
        durability = {"replicas": self.confirmed_by, "timeout": 1.0} if self.confirmed_by else None
        settings = {"DURABILITY": durability, "COMMAND_DEADLINE": self.deadline}
        with self.start() as shard, connected(shard, **settings):
            return shard, run(self.fault, shard)


SCENARIOS = [
    Scenario("slots moved", cluster, move_slots, loses=False, deadline=10.0, is_short=True),
    Scenario("primary killed", cluster, kill_primary),
    Scenario("primary killed", sentinel, kill_primary, is_short=True),
    Scenario("primary frozen", cluster, freeze_primary),
    Scenario("primary frozen", sentinel, freeze_primary, is_short=True),
    Scenario("killed, all replicas behind", cluster, kill_primary_all_behind, loses=True),
    Scenario("killed, all replicas behind", sentinel, kill_primary_all_behind, loses=True),
    Scenario("killed, one replica behind", cluster, kill_primary_one_behind, confirmed_by=1, loses=False),
    Scenario("killed, one replica behind", worse_sentinel, kill_primary_one_behind, loses=True),
    Scenario("killed, one replica behind", sentinel, kill_primary_one_behind, confirmed_by=1, loses=False),
    Scenario(
        "killed, one replica behind", worse_sentinel, kill_primary_one_behind, confirmed_by=2, loses=False
    ),
    Scenario("network cut", divided_cluster, cut_off_primary, loses=True),
    Scenario("network cut", divided_sentinel, cut_off_primary, loses=True),
    Scenario("network cut", divided_sentinel, cut_off_primary, confirmed_by=1, loses=False),
]
