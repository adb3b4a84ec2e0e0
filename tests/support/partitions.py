"""A network of two sides, near and far, that can be cut. The near side is that of this process.

The far side is a network namespace. While the network is cut, each side sends to a wrong hardware address, so
packets disappear without an error, as behind a broken switch. Needs root.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from types import TracebackType
from typing import Any, Self

from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinel, Sentinels

CLONE_NEWNET = 0x40000000
#: a hardware address that no interface has
NOBODY = "02:00:00:00:00:01"
#: options of a server that other addresses than 127.0.0.1 may connect to
REACHABLE: dict[str, str | int] = {"protected-mode": "no", "repl-diskless-sync-delay": 0}
_numbers = itertools.count()


class Network:
    """Two sides with an address each."""

    def __init__(self) -> None:
        number = next(_numbers)
        self._name = f"far{os.getpid()}-{number}"
        subnet = f"10.{200 + number % 50}.{os.getpid() % 250}"
        self.near, self.far = f"{subnet}.1", f"{subnet}.2"
        #: before a command: runs it on the far side
        self.on_far_side = ["ip", "netns", "exec", self._name]

    def __enter__(self) -> Self:
        near, far = self._links
        ip("netns", "add", self._name)
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._name)
        for side, address, link in (([], self.near, near), (["-n", self._name], self.far, far)):
            ip(*side, "address", "add", f"{address}/24", "dev", link)
            ip(*side, "link", "set", link, "up")
        ip("-n", self._name, "link", "set", "lo", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ip("netns", "delete", self._name)  # and its interface, and that interface's peer

    def cut(self) -> None:
        near, far = self._links
        self._lead(self.far, near)
        self._lead(self.near, far, "-n", self._name)

    def heal(self) -> None:
        near, far = self._links
        ip("neighbour", "delete", self.far, "dev", near)
        ip("-n", self._name, "neighbour", "delete", self.near, "dev", far)

    def enter_far_side(self) -> None:
        """Let the sockets that this thread opens be on the far side, from now on."""
        with open(f"/run/netns/{self._name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    @property
    def _links(self) -> tuple[str, str]:
        return f"n{self._name[3:]}", f"f{self._name[3:]}"

    def _lead(self, address: str, link: str, *side: str) -> None:
        ip(*side, "neighbour", "replace", address, "lladdr", NOBODY, "dev", link, "nud", "permanent")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class FarServer(EmbeddedServer):
    """A server on the far side."""

    def __init__(self, network: Network, options: dict[str, str | int]) -> None:
        super().__init__(options=options)
        self._network = network

    def _command(self) -> list[str]:
        return [*self._network.on_far_side, *super()._command()]


class PartitionedCluster(Cluster):
    """A Cluster of three primaries with a replica each; one primary, `near`, is on the near side."""

    def __init__(self, network: Network, near: int) -> None:
        super().__init__(replicas=True)
        self._network = network
        self._near = near

    def _start(self, address: str = "") -> None:
        """The nodes that start as replicas become the primaries."""
        near = len(self.servers) == self._near + self._primaries
        super()._start(self._network.near if near else self._network.far)

    def _server(self, options: dict[str, str | int]) -> EmbeddedServer:
        if options["bind"] == self._network.near:
            return EmbeddedServer(options=options | REACHABLE)
        return FarServer(self._network, options | REACHABLE)


class SideSentinel(Sentinel):
    """A Sentinel on one of the sides."""

    def __init__(self, network: Network, primary: int, *, near: bool) -> None:
        super().__init__(primary, quorum=2)
        self._network = network
        self._near = near
        #: its address
        self.address = network.near if near else network.far

    def _command(self) -> list[str]:
        command = super()._command()
        return command if self._near else [*self._network.on_far_side, *command]

    def _lines(self) -> list[str]:
        monitored = (" 127.0.0.1 ", f" {self._network.near} ")
        lines = [line.replace(*monitored) for line in super()._lines() if not line.startswith("bind")]
        return [f"bind {self.address}", "protected-mode no", *lines]


class PartitionedSentinels(Sentinels):
    """A primary and a Sentinel on the near side, two replicas and two Sentinels on the far side. A primary
    without replicas accepts no writes."""

    def __init__(self, network: Network) -> None:
        super().__init__(3, replicas=2)
        self._network = network
        self.address = network.near

    @property
    def options(self) -> dict[str, Any]:
        addresses = [(sentinel.address, sentinel.port) for sentinel in self.sentinels]
        return {**super().options, "SENTINELS": addresses}

    @property
    def far_options(self) -> dict[str, Any]:
        """As `options`, for clients on the far side."""
        return {**self.options, "SENTINELS": self.options["SENTINELS"][1:]}

    def _server(self, port: int) -> EmbeddedServer:
        at = self._ports.index(port)
        options = REACHABLE | {"port": port, "min-replicas-to-write": 1, "min-replicas-max-lag": 2}
        if at == 0:
            return EmbeddedServer(options=options | {"bind": self._network.near})
        return FarServer(self._network, options | {"bind": self._network.far})

    def _start_sentinel(self) -> None:
        sentinel = SideSentinel(self._network, self._ports[0], near=not self.sentinels)
        self.sentinels.append(self._stack.enter_context(sentinel))
        self.controls.append(self._stack.enter_context(sentinel.client()))
