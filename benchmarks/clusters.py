"""Redis Clusters of one or several primaries on this machine, without replicas.

with topologies(Topology("single server", 1, cluster=False), Topology("3 primaries", 3)) as found:
    Chat("room", using=found[1].alias)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from django_redis_messaging.devserver.server import EmbeddedServer, free_port

#: requests that reading the usage of a server costs
USAGE_REQUESTS = 3
#: seconds to wait until all nodes agree on the slots
TIMEOUT = 30.0
#: ms of silence after which a node counts as failed: longer than any pause of a busy machine
NODE_TIMEOUT = 15_000


@dataclass(frozen=True)
class Usage:
    """What one server has consumed since its start."""

    cpu: float
    """Seconds of processor time, of user and system together."""
    requests: int
    """Requests that it received: a pipeline is one."""
    memory: int
    """Bytes in use now."""


class Topology:
    """Servers that one CACHES alias connects to, over TCP on loopback."""

    def __init__(self, name: str, primaries: int, *, cluster: bool = True) -> None:
        self.name = name
        self.alias = name.replace(" ", "-")
        self.cluster = cluster
        self._size = primaries
        self._ports: list[int] = []
        #: clients to inspect the servers
        self.clients: list[Any] = []

    @property
    def urls(self) -> list[str]:
        """The LOCATION of the CACHES entry."""
        return [f"redis://127.0.0.1:{port}?db=0" for port in self._ports]

    @property
    def port(self) -> int:
        """The port of the first server."""
        return self._ports[0]

    def start(self, stack: ExitStack) -> None:
        """Start the servers; the stack stops them."""
        for _ in range(self._size):
            self._ports.append(free_port())
            server = EmbeddedServer(options=self._options(self._ports[-1]))
            self.clients.append(stack.enter_context(stack.enter_context(server).client()))
        if self.cluster:
            self._share_slots()

    def usage(self) -> list[Usage]:
        """The usage of each server."""
        return [_usage(client) for client in self.clients]

    def owner(self, tag: str) -> int:
        """The number of the primary that owns the keys with this hash tag."""
        return owner(key_slot(tag.encode()), self._size)

    def _options(self, port: int) -> dict[str, str | int]:
        options: dict[str, str | int] = {"bind": "127.0.0.1", "port": port}
        if self.cluster:
            options |= {
                "cluster-enabled": "yes",
                "cluster-port": free_port(),
                "cluster-node-timeout": NODE_TIMEOUT,
            }
        return options

    def _share_slots(self) -> None:
        for at, client in enumerate(self.clients):
            first, beyond = bounds(at, self._size)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, beyond - 1)
            bus = client.config_get("cluster-port")["cluster-port"]
            for other in self.clients[:at]:
                other.execute_command("CLUSTER", "MEET", "127.0.0.1", self._ports[at], bus)
        _wait_until(lambda: all(_is_complete(client, self._size) for client in self.clients))


def bounds(at: int, primaries: int) -> tuple[int, int]:
    """The first slot of a primary, and the slot after its last one.

    >>> [bounds(at, 3) for at in range(3)]
    [(0, 5461), (5461, 10922), (10922, 16384)]
    """
    slots = REDIS_CLUSTER_HASH_SLOTS
    return slots * at // primaries, slots * (at + 1) // primaries


def owner(slot: int, primaries: int) -> int:
    """The primary that owns a slot, where each has an equal, contiguous range.

    >>> [owner(slot, 3) for slot in (0, 5460, 5461, 10922, 16383)]
    [0, 0, 1, 2, 2]
    """
    return ((slot + 1) * primaries - 1) // REDIS_CLUSTER_HASH_SLOTS


@contextmanager
def topologies(*wanted: Topology, **options: Any) -> Iterator[Sequence[Topology]]:
    """Start the servers and set up Django with one alias for each topology, and with these settings."""
    import django
    from django.conf import settings

    with ExitStack() as stack:
        for one in wanted:
            one.start(stack)
        backend = "django_redis.cache.RedisCache"
        settings.configure(
            USE_TZ=True,
            INSTALLED_APPS=["django_redis_messaging"],
            CACHES={one.alias: {"BACKEND": backend, "LOCATION": one.urls} for one in wanted},
            REDIS_MESSAGING={"ALIAS": wanted[0].alias},
            **options,
        )
        django.setup()
        yield wanted


def _usage(client: Any) -> Usage:
    found = {**client.info("memory"), **client.info("stats"), **client.info("cpu")}
    cpu = float(found["used_cpu_user"]) + float(found["used_cpu_sys"])
    return Usage(cpu, int(found["total_reads_processed"]), int(found["used_memory"]))


def pin(found: Sequence[Topology]) -> None:
    """Run the servers on one processor and this process on another, as far as the machine has two."""
    first, *rest = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, rest or {first})
    for client in (client for one in found for client in one.clients):
        os.sched_setaffinity(client.info("server")["process_id"], {first})


def _is_complete(client: Any, members: int) -> bool:
    info: dict[str, str] = client.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(members)


def _wait_until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"The nodes have not formed a Cluster within {TIMEOUT} s.")
        time.sleep(0.01)
