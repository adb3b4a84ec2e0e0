"""The faults that are tested and measured: which servers, what happens to them, and what may be lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from redis.crc import key_slot

from .aliases import entry
from .clusters import NODE_TIMEOUT, PATIENCE, SLOTS, Cluster
from .partitions import Network, PartitionedCluster, PartitionedSentinels
from .programs import bundled_valkey
from .replicated_primary import ClusterShard, NumberedShard, SentinelShard, Shard, connected
from .sentinels import Sentinels
from .services import FAILING, SHARED, STORIES, Chats, Timers, blocking
from .topologies import Servers
from .traffic import ENOUGH, Report, Traffic


class Callers(Protocol):
    """Those who use a shard while it breaks."""

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""

    def each_has(self, number: int, since: float) -> bool:
        """Whether each of them has succeeded so often since a moment (monotonic)."""


#: starts servers, or uses those of this process; the shard that breaks
Start = Callable[[Servers | None], AbstractContextManager[Shard]]
#: breaks a shard; returns the moment from which the time without service counts
Break = Callable[[Shard, Callers], float]


@contextmanager
def cluster(servers: Servers | None = None) -> Iterator[Shard]:
    with Cluster(replicas=True) if servers is None else servers.cluster() as found:
        found.set_timeout(NODE_TIMEOUT)
        yield ClusterShard(found)


@contextmanager
def steady_cluster(servers: Servers | None = None) -> Iterator[Shard]:
    """On a busy machine no node may count as dead, and no write that was not yet replicated be lost."""
    with Cluster(replicas=True, node_timeout=60_000) if servers is None else servers.cluster() as found:
        yield ClusterShard(found)


@contextmanager
def numbered_cluster(servers: Servers | None = None) -> Iterator[Shard]:
    """The database 1 of a Cluster of Valkey 9."""
    program = bundled_valkey()
    with Cluster(replicas=True, node_timeout=60_000, program=program, databases=2) as found:
        shard = NumberedShard(found)
        shard.title = "Cluster, database 1"
        yield shard


@contextmanager
def sentinel(servers: Servers | None = None) -> Iterator[Shard]:
    with Sentinels(3, replicas=2) as started:
        yield SentinelShard(started)


@contextmanager
def one_sentinel(servers: Servers | None = None) -> Iterator[Shard]:
    with Sentinels() as started:
        yield SentinelShard(started)


@contextmanager
def worse_sentinel(servers: Servers | None = None) -> Iterator[Shard]:
    """Sentinels that prefer one replica, which can be behind the other."""
    with sentinel() as shard:
        shard.title = "Sentinel, one replica preferred"
        shard.clients[shard.replicas[0]].config_set("replica-priority", 1)
        yield shard


@contextmanager
def divided_cluster(servers: Servers | None = None) -> Iterator[Shard]:
    primary = key_slot(Timers.key("").encode()) * 3 // SLOTS
    with Network() as network, PartitionedCluster(network, primary) as started:
        shard = ClusterShard(started)
        shard.network, shard.far_entry = network, entry(started.url(shard.replicas[0]))
        yield shard


@contextmanager
def divided_sentinel(servers: Servers | None = None) -> Iterator[Shard]:
    with Network() as network, PartitionedSentinels(network) as started:
        shard = SentinelShard(started)
        shard.network, shard.far_entry = network, entry(started.url, **started.far_options)
        yield shard


def kill_primary(shard: Shard, callers: Callers) -> float:
    """Kill the primary (SIGKILL), and restart it when the service is back."""
    since = time.monotonic()
    shard.kill()
    killed = time.monotonic()
    callers.until(lambda: callers.each_has(1, killed))
    shard.restart()
    return since


def freeze_primary(shard: Shard, callers: Callers) -> float:
    """Freeze the primary (SIGSTOP), and resume it once a replica has taken over."""
    since = time.monotonic()
    shard.servers[shard.primary].freeze()
    try:
        callers.until(shard.has_failed_over)
    finally:
        shard.thaw([shard.primary])
    return since


def kill_primary_all_behind(shard: Shard, traffic: Traffic) -> float:
    """Kill the primary while no replica has its last writes."""
    return _kill_primary(shard, traffic, behind=shard.replicas)


def kill_primary_one_behind(shard: Shard, traffic: Traffic) -> float:
    """Kill the primary while one replica does not have its last writes."""
    return _kill_primary(shard, traffic, behind=shard.replicas[:1])


def _kill_primary(shard: Shard, traffic: Traffic, behind: list[int]) -> float:
    """Freeze replicas until some writes have been acknowledged, or refused for lack of confirmations. Then
    kill the primary, and resume these replicas."""
    errors, began = traffic.errors, time.monotonic()
    shard.freeze(behind)
    traffic.until(lambda: traffic.each_has(ENOUGH, began) or traffic.errors >= errors + ENOUGH)
    since = time.monotonic()
    shard.kill()
    shard.thaw(behind)
    traffic.until(shard.has_failed_over)
    shard.restart()
    return since


def fail_over(shard: Shard, callers: Callers) -> float:
    """Let the primary and a replica change roles, as before maintenance."""
    since = time.monotonic()
    shard.fail_over()
    return since


def move_slots(shard: Shard, callers: Callers) -> float:
    """Move the slots that are used to other primaries and back."""
    since = time.monotonic()
    assert isinstance(shard, ClusterShard)
    shard.move_slots()
    return since


def cut_off_primary(shard: Shard, traffic: Traffic) -> float:
    """Cut the network between the primary, with this process, and the other servers, until these have a
    primary of their own, which is used too, and the former one accepts no more writes."""
    assert shard.network is not None
    chats = next(service for service in traffic.services if isinstance(service, Chats))
    far = Chats(lambda key: chats.names[:1], using="far")

    async def send() -> None:
        for number in range(ENOUGH):
            await far.produce(blocking, far.names[0], f"far {number}")

    with ThreadPoolExecutor(1, initializer=shard.network.enter_far_side) as pool:
        shard.network.cut()
        try:
            traffic.until(shard.has_failed_over)
            pool.submit(lambda: asyncio.run(send())).result(PATIENCE)
            traffic.until(lambda: not shard.accepts_writes())
        finally:
            shard.network.heal()
            healed = time.monotonic()
    chats.sent |= far.sent
    return healed


@dataclass(frozen=True)
class Fault:
    """What happens to servers of one kind."""

    name: str
    start: Start
    happens: Break
    #: DURABILITY: how many replicas confirm each write; 0: it is not set
    confirmed_by: int = 0
    #: whether acknowledged writes are lost; None: those that no replica had received at that moment
    loses: bool | None = None
    #: whether callers notice nothing: all services are in use
    is_unnoticed: bool = False
    #: whether each test run includes it
    is_short: bool = False

    def run(self, servers: Servers | None = None) -> tuple[Shard, Report]:
        """Run traffic, break the shard, and wait until each resource has acknowledged operations again and
        all servers are in sync."""
        settings = {
            "DURABILITY": {"replicas": self.confirmed_by, "timeout": 1.0} if self.confirmed_by else None,
            # callers get errors soon, or none
            "COMMAND_DEADLINE": PATIENCE if self.is_unnoticed else 1.0,
        }
        with self.start(servers) as shard, connected(shard, **settings):
            traffic = (
                Traffic(shard.spread, SHARED, STORIES, lease=2 * PATIENCE)
                if self.is_unnoticed
                else Traffic(shard.spread, FAILING)
            )
            with traffic.running():
                traffic.keep()
                shard.replicate()
                since = self.happens(shard, traffic)
                over = time.monotonic()
                traffic.until(lambda: traffic.each_has(ENOUGH, over))
                traffic.until(shard.is_whole)
            return shard, traffic.report(since)


FAULTS = [
    Fault("slots moved", steady_cluster, move_slots, loses=False, is_unnoticed=True, is_short=True),
    Fault("slots moved", numbered_cluster, move_slots, loses=False, is_unnoticed=True, is_short=True),
    Fault("failed over", steady_cluster, fail_over, loses=False, is_unnoticed=True),
    Fault("primary killed", cluster, kill_primary, is_short=True),
    Fault("primary killed", sentinel, kill_primary),
    Fault("primary frozen", cluster, freeze_primary),
    Fault("primary frozen", sentinel, freeze_primary, is_short=True),
    Fault("killed, all replicas behind", cluster, kill_primary_all_behind, loses=True),
    Fault("killed, all replicas behind", sentinel, kill_primary_all_behind, loses=True),
    Fault("killed, one replica behind", cluster, kill_primary_one_behind, confirmed_by=1, loses=False),
    Fault("killed, one replica behind", worse_sentinel, kill_primary_one_behind, loses=True),
    Fault("killed, one replica behind", sentinel, kill_primary_one_behind, confirmed_by=1, loses=False),
    Fault("killed, one replica behind", worse_sentinel, kill_primary_one_behind, confirmed_by=2, loses=False),
    Fault("network cut", divided_cluster, cut_off_primary, loses=True),
    Fault("network cut", divided_sentinel, cut_off_primary, loses=True),
    Fault("network cut", divided_sentinel, cut_off_primary, confirmed_by=1, loses=False),
]
