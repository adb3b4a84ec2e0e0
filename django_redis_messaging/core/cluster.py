"""A Redis Cluster, as one of its nodes tells of it: which primary has which slots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, MovedError, ResponseError

from .sockets import Address
from .steps import Argument, Words

#: what a node is asked
QUESTION: Words = ("CLUSTER", "SLOTS")
#: comes before what is asked of who gets a slot
ASKING: Words = ("ASKING",)


class Topology:
    """Which primary has which slots. It is never changed: another one takes its place."""

    __slots__ = ("_owners",)

    def __init__(self, owners: Iterable[Address | None] = (None,) * REDIS_CLUSTER_HASH_SLOTS) -> None:
        self._owners = list(owners)

    @property
    def addresses(self) -> set[Address]:
        """Those of all primaries."""
        return {owner for owner in self._owners if owner is not None}

    def address(self, key: Argument | None) -> Address | None:
        """Who has a key; None: where the alias leads, which may as well be any."""
        if key is None:
            return None
        return self._owners[key_slot(key if isinstance(key, bytes) else str(key).encode())]

    def but(self, slot: int, owner: Address) -> Topology:
        """This one, but for the owner of one slot."""
        owners = self._owners.copy()
        owners[slot] = owner
        return Topology(owners)


def parsed(slots: Any, *, asked: Address | None) -> Topology | None:
    """What a reply to QUESTION tells, of the node at `asked`; None where no slot has an owner.

    >>> told = parsed([[0, 16383, [b"10.0.0.1", 7000, b"id"], [b"10.0.0.2", 7000, b"replica"]]], asked=None)
    >>> told.address("any"), told.addresses
    (('10.0.0.1', 7000), {('10.0.0.1', 7000)})
    """
    owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, (host, port, *_), *_ in slots:
        owner = named(host, port, asked=asked)
        owners[first : last + 1] = [owner] * (last + 1 - first)
    return Topology(owners) if slots else None


def is_alone(reply: object) -> bool:
    """Whether a reply to QUESTION says that the server is no part of a Cluster."""
    return isinstance(reply, ResponseError) and "cluster support disabled" in str(reply)


def asked_instead(refusal: object) -> Address | None:
    """Whom to ask just this time: the slot is on its way there."""
    if isinstance(refusal, AskError) and not isinstance(refusal, MovedError):
        return refusal.host, refusal.port
    return None


def named(host: bytes | str | None, port: int, *, asked: Address | None) -> Address | None:
    """The address that the node at `asked` names; it names no host that it doesn't know to be another one.

    >>> named(b"10.0.0.2", 7000, asked=None), named(b"", 7001, asked=("10.0.0.1", 7000))
    (('10.0.0.2', 7000), ('10.0.0.1', 7001))
    """
    host = host.decode() if isinstance(host, bytes) else host
    if host and host != "?":
        return host, int(port)
    return None if asked is None else (asked[0], int(port))
