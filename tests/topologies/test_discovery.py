"""What a process asks its servers besides the calls themselves."""

from __future__ import annotations

from typing import Any

import pytest

from django_redis_messaging import RecentContacts
from tests.conftest import Call

from ..support.topologies import Topology

pytestmark = pytest.mark.topologies


async def test_the_topology_is_read_once(call: Call, topology: Topology) -> None:
    """One command at the first connection, and none in 200 calls to all nodes. Sentinels are asked for the
    primary instead."""
    before = discoveries(topology)
    await call(RecentContacts("first"), "touch", "bob")
    nodes, sentinels = (new - old for new, old in zip(discoveries(topology), before, strict=True))
    assert (nodes, sentinels) == ((0, 1) if topology.sentinels else (1, 0))
    learnt = discoveries(topology)
    for number in range(200):
        await call(RecentContacts(f"user{number}"), "touch", "bob")
    assert discoveries(topology) == learnt


async def test_a_script_is_sent_in_full_once_to_each_node(call: Call, topology: Topology) -> None:
    await call(RecentContacts("first"), "touch", "bob")
    for client in topology.primaries:
        client.script_flush()
    before = [(missing(client), full(client)) for client in topology.primaries]
    for number in range(60):
        await call(RecentContacts(f"user{number}"), "touch", "bob")
    after = [(missing(client), full(client)) for client in topology.primaries]
    assert [(new[0] - old[0], new[1] - old[1]) for old, new in zip(before, after, strict=True)] == [
        (1, 1) for _ in topology.primaries
    ]


def discoveries(topology: Topology) -> tuple[int, int]:
    """How often the servers were asked for the topology, also in vain, and the Sentinels for the primary."""
    asked = (
        int(stat["calls"]) + int(stat["rejected_calls"])
        for client in topology.clients
        for name, stat in client.info("commandstats").items()
        if name.startswith(("cmdstat_cluster|", "cmdstat_role"))
    )
    return sum(asked), sum(len(network.lines) for network in topology.sentinels)


def missing(client: Any) -> int:
    """How many scripts a server did not know."""
    return int(client.info("errorstats").get("errorstat_NOSCRIPT", {"count": 0})["count"])


def full(client: Any) -> int:
    """How many scripts were sent to a server in full."""
    return int(client.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"])
