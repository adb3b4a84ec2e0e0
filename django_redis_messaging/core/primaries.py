"""The servers on which keyspace events happen: each primary tells of its own keys only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from .cluster import QUESTION, is_alone, named
from .endpoints import Endpoint, connected, location
from .sockets import Address, BlockingConnection


class Primary(NamedTuple):
    """A server that has keys."""

    id: str
    #: None: as the alias says
    address: Address | None = None

    @contextmanager
    def connected(self, endpoint: Endpoint) -> Iterator[BlockingConnection]:
        """A new connection to it, which is closed at the end; raises RedisError."""
        connection = connected(endpoint, self.address)
        try:
            yield connection
        finally:
            connection.close()


#: a server that is no part of a Cluster, or whose user may not ask for the others
ALONE = Primary("alone")


class Primaries:
    """Asks which primaries there are, over a connection that it keeps. One thread may use it at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._known: list[Primary] = []
        self._asked: BlockingConnection | None = None

    def look(self) -> list[Primary]:
        """The primaries there are; raises RedisError where none that is known answers.

        A server that is no part of a Cluster, or that refuses this user the question, is not asked again.
        """
        if self._known != [ALONE]:
            self._known = self._kept() or self._first_told()
        return self._known

    def close(self) -> None:
        """Close the connection."""
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def _kept(self) -> list[Primary]:
        """What the server tells that was asked last; nothing where it does not answer any more."""
        if self._asked is None:
            return []
        try:
            return self._ask(self._asked)
        except RedisError:
            return []

    def _first_told(self) -> list[Primary]:
        """What the first one tells that answers: where the alias leads, or any that was known."""
        troubles: list[Exception] = []
        for address in (None, *(one.address for one in self._known if one.address)):
            self.close()
            try:
                self._asked = connected(self._endpoint, address)
                return self._ask(self._asked)
            except RedisError as trouble:
                troubles.append(trouble)
        self.close()
        raise troubles[0]

    def _ask(self, asked: BlockingConnection) -> list[Primary]:
        [reply] = asked.exchange([QUESTION], self._endpoint.patience_now)
        if is_alone(reply) or (isinstance(reply, NoPermissionError) and not self._known):
            self.close()
            return [ALONE]
        if isinstance(reply, ResponseError):
            raise reply  # a script keeps it busy, say: it is the Cluster that it was
        return parsed(reply, asked=location(asked))


def parsed(slots: Any, *, asked: Address | None) -> list[Primary]:
    """The primaries that a reply to QUESTION names, of the node at `asked`; raises RedisError where it
    names none.

    >>> parsed([[0, 16383, [b"10.0.0.1", 7000, b"a1"], [b"10.0.0.2", 7000, b"b2"]]], asked=None)
    [Primary(id='a1', address=('10.0.0.1', 7000))]
    """
    found = {
        Primary(node.decode(), named(host, port, asked=asked)): None
        for _, _, (host, port, node, *_), *_ in slots
    }
    if not found:
        raise RedisError("no slot of the Cluster has an owner")
    return list(found)
