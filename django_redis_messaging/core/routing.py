"""Which server gets a call, and which errors mean that this has changed.

A router sends nothing and never changes: what is learnt makes a new one. `Unknown` is the first one of an
alias, unless it names Sentinels.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import AuthenticationError, MovedError, ResponseError

from .cluster import SLOTS_COMMAND, Topology, is_standalone, parse_slots
from .retry import is_temporary, topology_may_have_changed
from .sockets import Address
from .steps import Command, Script, Words


def is_refused(reply: object) -> bool:
    """Whether the user may not send `discovery`, or a proxy doesn't know it."""
    if not isinstance(reply, ResponseError) or isinstance(reply, AuthenticationError):
        return False
    return not is_temporary(reply)


class Router:
    """The server that the alias names gets all calls."""

    #: whether the kind of the server is known
    is_known = True
    #: whether a call for several resources must be split into one for each
    splits = False
    #: whether scripts need a guard: the server may belong to a Cluster
    guards = True
    #: the addresses of all servers that `address` returns
    addresses: frozenset[Address] = frozenset()
    #: the command that discovers where the keys are
    discovery: Words = SLOTS_COMMAND

    def address(self, call: Command | Script) -> Address | None:
        """The server for a call; None: the one that the alias names."""
        return None

    def is_outdated(self, error: Exception) -> bool:
        """Whether an error may mean that other servers have the keys now."""
        return isinstance(error, MovedError)

    def learn(self, slots: Any, node: Address | None) -> Router | None:
        """The router to use after `node` has replied to `discovery`; None: this one."""
        topology = parse_slots(slots, node=node)
        return None if topology is None else Cluster(topology)

    def redirected(self, error: MovedError) -> Router:
        """The router to use after an error that names the owner of a slot."""
        return Cluster(Topology().with_owner(error.slot_id, error.node_addr))


class Unknown(Router):
    """Nothing has been sent yet: the alias may name any node of a Cluster."""

    is_known = False

    def is_outdated(self, error: Exception) -> bool:
        return isinstance(error, MovedError) or topology_may_have_changed(error)

    def detect(self, reply: Any, node: Address | None) -> Router:
        """The router to use after the alias's server has replied to `discovery`; raises an error reply after
        which a later one may be another."""
        if is_standalone(reply):
            return SingleServer()
        if not isinstance(reply, Exception):
            return self.learn(reply, node) or Cluster(Topology())
        if is_refused(reply):
            return Router()
        raise reply


class SingleServer(Router):
    """A server that is not part of a Cluster."""

    guards = False


class Sentinel(Router):
    """The primary of a service. The Sentinels are queried before each new connection, because they close the
    connections to a former primary."""

    guards = False

    def __init__(self, service: str) -> None:
        self.service = service
        self.discovery = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)


class Cluster(Router):
    """Primaries that share the slots."""

    splits = True

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.addresses = frozenset(topology.addresses)

    def address(self, call: Command | Script) -> Address | None:
        return self._topology.address(call.key)

    def is_outdated(self, error: Exception) -> bool:
        return isinstance(error, MovedError) or topology_may_have_changed(error)

    def redirected(self, error: MovedError) -> Router:
        return Cluster(self._topology.with_owner(error.slot_id, error.node_addr))
