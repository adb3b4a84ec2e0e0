"""A private Redis Cluster, for development and tests.

    with EmbeddedCluster() as cluster:
        CACHES = {"messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": cluster.url}}

Nodes of a Cluster need TCP ports. They listen on the loopback interface only, and require a password that
only their owner can read. The bus between the nodes has no password. All nodes end with the process that
started them.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from ..core.topology import parse_slots
from ..errors import ConfigurationError
from .server import POLL_INTERVAL, EmbeddedServer, free_port, make_private, open_private

HOST = "127.0.0.1"
#: ms after which a silent node counts as failed
NODE_TIMEOUT = 5000


class EmbeddedNode(EmbeddedServer):
    """A primary of the Cluster, with its data in its own directory."""

    def __init__(self, directory: Path, password: str, *, append_only: bool) -> None:
        self.port, self.bus = free_port(), free_port()
        self._password = password
        self._access = directory / "server.access"
        options: dict[str, str | int] = {
            "include": str(self._access),
            "bind": HOST,
            "port": self.port,
            "cluster-enabled": "yes",
            "cluster-port": self.bus,
            "cluster-announce-ip": HOST,
            "cluster-node-timeout": NODE_TIMEOUT,
        }
        super().__init__(directory, append_only=append_only, options=options)

    def start(self) -> None:
        """Start the node. The password is in a file: all users can read the arguments of a process."""
        make_private(self.directory)
        self._access.unlink(missing_ok=True)
        with open_private(self._access, "wb") as file:
            file.write(f"requirepass {self._password}\n".encode())
        super().start()

    def client(self, **options: Any) -> redis.Redis:
        """A plain redis-py client of this node. The caller closes it."""
        return super().client(password=self._password, **options)

    @property
    def url(self) -> str:
        """The URL of this node."""
        return f"redis://:{self._password}@{HOST}:{self.port}"


class EmbeddedCluster:
    """Several primaries without replicas, in subdirectories of `directory`: node1, node2 and so on.

    `append_only` keeps the data over restarts; each instance has other ports and another password. `start`
    raises ConfigurationError if the Cluster isn't ready within `deadline` seconds.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        primaries: int = 3,
        append_only: bool = False,
        deadline: float = 30.0,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.deadline = deadline
        password = secrets.token_urlsafe(24)
        self.nodes = [
            EmbeddedNode(self.directory / f"node{number}", password, append_only=append_only)
            for number in range(1, primaries + 1)
        ]

    @property
    def url(self) -> str:
        """The LOCATION of a django-redis CACHES entry: the URLs of all nodes."""
        return ",".join(node.url for node in self.nodes)

    def start(self) -> None:
        """Start the nodes, and wait until they form a Cluster that accepts writes."""
        ends = time.monotonic() + self.deadline
        make_private(self.directory)
        for node in self.nodes:
            node.start()
        with ExitStack() as stack:
            clients: list[Any] = [stack.enter_context(node.client()) for node in self.nodes]
            self._share_slots(clients)
            self._introduce(clients)
            while not all(map(self._is_ready, clients)):
                if time.monotonic() > ends:
                    raise ConfigurationError(
                        f"The nodes in {self.directory} formed no Cluster within {self.deadline:g} s."
                    )
                time.sleep(POLL_INTERVAL)

    def close(self) -> None:
        """Stop the nodes."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _share_slots(self, clients: list[Any]) -> None:
        """Assign the slots of nodes that have none: those that are started for the first time."""
        bounds = [REDIS_CLUSTER_HASH_SLOTS * at // len(clients) for at in range(len(clients) + 1)]
        for number, client in enumerate(clients):
            [mine] = [
                node for node in client.execute_command("CLUSTER NODES").values() if "myself" in node["flags"]
            ]
            if not mine["slots"]:
                client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)

    def _introduce(self, clients: list[Any]) -> None:
        """Make the nodes known to each other, or their new ports."""
        for client, node in permutations(zip(clients, self.nodes, strict=True), 2):
            other = node[1]
            client[0].execute_command("CLUSTER MEET", HOST, other.port, other.bus)

    def _is_ready(self, client: Any) -> bool:
        """Whether a node accepts writes, and knows the present port of the owner of each slot."""
        state = client.execute_command("CLUSTER INFO")
        topology = parse_slots(client.execute_command("CLUSTER SLOTS"), node=None)
        return bool(
            state["cluster_state"] == "ok"
            and int(state["cluster_slots_ok"]) == REDIS_CLUSTER_HASH_SLOTS
            and topology is not None
            and topology.addresses == {(HOST, node.port) for node in self.nodes}
        )
