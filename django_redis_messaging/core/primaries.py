"""The servers on which keyspace events happen: each primary tells of its own keys only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.exceptions import RedisError, ResponseError

from .cluster import Address
from .connections import exchange
from .endpoints import Endpoint, connected

#: what a server is called that is no part of a Cluster
ALONE = "alone"


class Primary(NamedTuple):
    """A server that has keys."""

    id: str
    #: None: as the alias says
    address: Address | None = None

    @contextmanager
    def connected(self, endpoint: Endpoint) -> Iterator[Any]:
        """A new connection to it, which is closed at the end; raises RedisError."""
        connection = connected(endpoint, self.address)
        try:
            yield connection
        finally:
            connection.disconnect()


class Primaries:
    """Asks which primaries there are."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._known: list[Primary] = []

    def look(self) -> list[Primary]:
        """The primaries there are; raises RedisError where nobody that was known can tell."""
        troubles: list[Exception] = []
        for one in (Primary(ALONE), *(known for known in self._known if known.address)):
            try:
                self._known = self._told_by(one)
                return self._known
            except (RedisError, OSError) as trouble:
                troubles.append(trouble)
        raise troubles[0]

    def _told_by(self, one: Primary) -> list[Primary]:
        with one.connected(self._endpoint) as connection:
            reply = exchange(connection, ("CLUSTER", "NODES"))
        if not isinstance(reply, ResponseError):
            return parsed(reply, asked=one)
        if self._known and self._known != [Primary(ALONE)]:
            raise reply  # a script keeps it busy, say: it is the Cluster that it was
        return [Primary(ALONE)]  # it is no Cluster, or this user may not ask


def parsed(nodes: bytes, *, asked: Primary) -> list[Primary]:
    """The primaries with slots, of a reply to CLUSTER NODES.

    >>> parsed(b"a1 10.0.0.1:7000@17000 master - 0 0 1 connected 0-16383", asked=Primary("alone"))
    [Primary(id='a1', address=('10.0.0.1', 7000))]
    """
    found = []
    for line in nodes.decode().splitlines():
        name, address, flags, *rest = line.split(" ")
        kinds = set(flags.split(","))
        if "master" not in kinds or kinds & {"fail", "noaddr", "handshake"} or len(rest) < 6:
            continue
        if "myself" in kinds:
            found.append(Primary(name, asked.address))
            continue
        host, _, port = address.partition("@")[0].rpartition(":")
        found.append(Primary(name, (host, int(port))))
    return found
