"""The servers that own keys: each primary publishes the keyspace events of its own keys only, and lists only
those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from redis.exceptions import RedisError, ResponseError

from .cluster import SLOTS_COMMAND, is_standalone, resolve
from .endpoints import Endpoint, connect, location
from .routing import is_refused
from .sockets import Address, BlockingConnection


class Primary(NamedTuple):
    """A server that owns keys."""

    id: str
    #: None: the server that the alias names
    address: Address | None = None

    @contextmanager
    def connected(self, endpoint: Endpoint) -> Iterator[BlockingConnection]:
        """A new connection to this server, closed at the end of the block; raises RedisError."""
        connection = connect(endpoint, self.address)
        try:
            yield connection
        finally:
            connection.close()


#: number of keys that one SCAN examines
SCAN_COUNT = 1000
#: seconds to wait for a reply to SCAN
SCAN_TIMEOUT = 10.0
#: a server that is not part of a Cluster, or whose user may not list the Cluster's nodes
STANDALONE = Primary("alone")


class Primaries:
    """Lists the primaries, over a connection that it keeps open. Use it in one thread at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._known: list[Primary] = []
        self._connection: BlockingConnection | None = None

    def discover(self) -> list[Primary]:
        """List the primaries; raises RedisError if no known server replies.

        A server that is not part of a Cluster, or that denies this user the command, is queried only once.
        """
        if self._known != [STANDALONE]:
            self._known = self._query_last() or self._query_any()
        return self._known

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _query_last(self) -> list[Primary]:
        """The reply of the server that replied last; nothing if it doesn't reply any more."""
        if self._connection is None:
            return []
        try:
            return self._query(self._connection)
        except RedisError:
            return []

    def _query_any(self) -> list[Primary]:
        """The first reply of the alias's server, or of any other node that is known."""
        errors: list[Exception] = []
        known = [one.address for one in self._known if one.address]
        for address in (None, *known, *self._endpoint.other_addresses):
            self.close()
            try:
                self._connection = connect(self._endpoint, address)
                return self._query(self._connection)
            except RedisError as error:
                errors.append(error)
        self.close()
        raise errors[0]

    def _query(self, connection: BlockingConnection) -> list[Primary]:
        [reply] = connection.exchange([SLOTS_COMMAND], self._endpoint.default_reply_timeout)
        if is_standalone(reply) or (is_refused(reply) and not self._known):
            self.close()
            return [STANDALONE]
        if isinstance(reply, ResponseError):
            raise reply  # a temporary error, such as BUSY: the topology has not changed
        return parse_primaries(reply, node=location(connection))


def parse_primaries(slots: Any, *, node: Address | None) -> list[Primary]:
    """Parse the reply of `node` to SLOTS_COMMAND; raises RedisError if it names no primary.

    >>> parse_primaries([[0, 16383, [b"10.0.0.1", 7000, b"a1"], [b"10.0.0.2", 7000, b"b2"]]], node=None)
    [Primary(id='a1', address=('10.0.0.1', 7000))]
    """
    found = {
        Primary(node_id.decode(), resolve(host, port, node=node)): None
        for _, _, (host, port, node_id, *_), *_ in slots
    }
    if not found:
        raise RedisError("no slot of the Cluster has an owner")
    return list(found)


def scan(endpoint: Endpoint, pattern: str) -> Iterator[tuple[BlockingConnection, list[bytes]]]:
    """The keys of all primaries that match a pattern, in pages, each with a connection to the server that
    owns them. A key that exists all the time is listed at least once. Raises RedisError.

    It uses SCAN, which doesn't block the server and needs no permission that the app doesn't need.
    """
    with closing(Primaries(endpoint)) as primaries:
        found = primaries.discover()
    for primary in found:
        with primary.connected(endpoint) as connection:
            cursor = b"0"
            while True:
                command = ("SCAN", cursor, "MATCH", pattern, "COUNT", str(SCAN_COUNT))
                [reply] = connection.exchange([command], SCAN_TIMEOUT)
                if isinstance(reply, Exception):
                    raise reply
                cursor, keys = reply
                yield connection, keys
                if cursor == b"0":
                    break


def remove_keys(endpoint: Endpoint, prefix: str) -> int:
    """Remove all keys that begin with `prefix` and a colon; returns their number. Raises RedisError.

    It doesn't block the server.
    """
    removed = 0
    for connection, keys in scan(endpoint, f"{_literal(prefix)}:*"):
        if keys:
            removed += sum(connection.exchange([("UNLINK", key) for key in keys], SCAN_TIMEOUT))
    return removed


def _literal(text: str) -> str:
    """Escape `text` for use in a pattern."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
