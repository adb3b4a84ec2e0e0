"""The topology of a Redis Cluster, as one of its nodes reports it: which primary owns which slots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, ResponseError

from .sockets import Address
from .steps import Argument, Words

#: the command that returns the topology
SLOTS_COMMAND: Words = ("CLUSTER", "SLOTS")
#: sent before a call to a node that is importing the slot
ASKING: Words = ("ASKING",)


class Topology:
    """Which primary owns which slots. Immutable: a change makes a new one."""

    __slots__ = ("_owners",)

    def __init__(self, owners: Iterable[Address | None] = (None,) * REDIS_CLUSTER_HASH_SLOTS) -> None:
        self._owners = list(owners)

    @property
    def addresses(self) -> set[Address]:
        """The addresses of all primaries."""
        return {owner for owner in self._owners if owner is not None}

    def address(self, key: Argument | None) -> Address | None:
        """The primary that owns a key; None: any server will do, or the owner is not known, so use the one
        that the alias names."""
        if key is None:
            return None
        return self._owners[key_slot(key if isinstance(key, bytes) else str(key).encode())]

    def with_owner(self, slot: int, owner: Address) -> Topology:
        """A copy with another owner of one slot."""
        owners = self._owners.copy()
        owners[slot] = owner
        return Topology(owners)


def parse_slots(slots: Any, *, node: Address | None) -> Topology | None:
    """Parse the reply of `node` to SLOTS_COMMAND; None if no slot has an owner.

    >>> slots = [[0, 16383, [b"10.0.0.1", 7000, b"id"], [b"10.0.0.2", 7000, b"replica"]]]
    >>> topology = parse_slots(slots, node=None)
    >>> topology.address("any"), topology.addresses
    (('10.0.0.1', 7000), {('10.0.0.1', 7000)})
    """
    owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (host, port, *_), *_ in slots:
        owner = resolve(host, port, node=node)
        owners[first : last + 1] = [owner] * (last + 1 - first)
    return Topology(owners) if slots else None


def is_standalone(reply: object) -> bool:
    """Whether a reply to SLOTS_COMMAND means that the server is not part of a Cluster."""
    return isinstance(reply, ResponseError) and "cluster support disabled" in str(reply)


def ask_target(error: object) -> Address | None:
    """The node that an ASK redirect names for one call: it is importing the slot. None for other replies."""
    if isinstance(error, AskError) and not isinstance(error, MovedError):
        return error.host, error.port
    return None


def resolve(host: bytes | str | None, port: int, *, node: Address | None) -> Address | None:
    """The address that a reply of `node` names; an unknown host means the node's own.

    >>> resolve(b"10.0.0.2", 7000, node=None), resolve(b"", 7001, node=("10.0.0.1", 7000))
    (('10.0.0.2', 7000), ('10.0.0.1', 7001))
    """
    host = host.decode() if isinstance(host, bytes) else host
    if host and host != "?":
        return host, int(port)
    return None if node is None else (node[0], int(port))
