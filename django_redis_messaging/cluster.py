"""The site's own cache on a Redis Cluster, through django-redis.

    CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": ["redis://node1:6379", "redis://node2:6379", "redis://node3:6379"],
            "KEY_PREFIX": "site",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis_messaging.cluster.ClusterClient",
                "CONNECTION_FACTORY": "django_redis_messaging.cluster.ClusterConnectionFactory",
            },
        },
    }

Chats, jobs and locks don't need these classes: the alias of this app may name the nodes without OPTIONS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

from django.core.exceptions import ImproperlyConfigured
from django_redis.client import DefaultClient  # first, as errors.py does
from django_redis.client.default import glob_escape
from django_redis.exceptions import ConnectionInterrupted
from django_redis.pool import ConnectionFactory
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.exceptions import (
    ConnectionError,
    RedisClusterException,
    ResponseError,
    SlotNotCoveredError,
    TimeoutError,
)

#: number of keys that one SCAN examines, and that are removed at once
PAGE = 1000
#: how the driver's errors begin if no node is reachable, or some slots have no owner
_OUTAGES = ("Redis Cluster cannot be connected", "All slots are not covered")
#: the driver's clients, with the process id: a forked child may not use the locks of its parent's
_shared: dict[tuple[int, str], DriverClient] = {}


class ClusterUnavailable(ConnectionInterrupted, ConnectionError):  # type: ignore[misc]
    """No node of the Cluster is reachable, or some slots have no owner. The driver's own error for it is
    not a RedisError, so neither django-redis nor IGNORE_EXCEPTIONS would handle it."""


@contextmanager
def _outages_translated() -> Iterator[None]:
    try:
        yield
    except RedisClusterException as error:
        if isinstance(error, SlotNotCoveredError) or str(error).startswith(_OUTAGES):
            raise ClusterUnavailable(None) from ConnectionError(str(error))
        raise


class DriverClient(RedisCluster):
    """The driver's client, whose commands of several keys send one command for each slot."""

    def __init__(self, **options: Any) -> None:
        with _outages_translated():
            super().__init__(**options)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the owner of its key."""
        with _outages_translated():
            return cast(Any, super()).execute_command(*args, **options)

    def mget(self, keys: Any, *args: Any) -> Any:
        """The values of keys of any slots, in their order. Not atomic."""
        with _outages_translated():
            return self.mget_nonatomic(keys, *args)

    def _execute_pipeline_by_slot(self, command: str, slots_to_args: Any) -> Any:
        with _outages_translated():
            return super()._execute_pipeline_by_slot(command, slots_to_args)


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]
    """A CONNECTION_FACTORY of django-redis that returns the driver's client of a Cluster.

    All caches of a process with the same nodes and options share one client, and so its connections. Users,
    passwords, timeouts and TLS options are given as for a single server. Use it with `ClusterClient`, which
    passes all nodes of LOCATION; the default client of django-redis passes one.
    """

    def connect(self, url: str) -> Any:
        """The client of a Cluster; `url` is one of its nodes, or several separated by commas."""
        return self.get_connection(self.make_connection_params(url))

    def get_connection(self, params: dict[str, Any]) -> Any:
        """The shared client; raises ImproperlyConfigured if an URL can't be a node of a Cluster."""
        options = {name: value for name, value in params.items() if name != "parser_class"}
        options |= self.pool_cls_kwargs
        key = os.getpid(), repr(sorted(options.items(), key=lambda item: item[0]))
        found = _shared.get(key)
        return found if found is not None else _shared.setdefault(key, _open(**options))

    def disconnect(self, connection: Any) -> None:
        """Close the connections of a client; it remains usable, and connects again."""
        connection.disconnect_connection_pools()


class ClusterClient(DefaultClient):  # type: ignore[misc]
    """A CLIENT_CLASS of django-redis for a Cluster.

    All nodes of LOCATION may be down but one. `get_many`, `set_many` and `delete_many` send commands to all
    owners; they are not atomic. `clear` removes the keys of this cache only, found by SCAN: a Cluster usually
    has one database, so FLUSHDB would delete the chats too. Commands of several keys that can't be split,
    such as `sinter`, need keys of one slot, else they raise the driver's RedisClusterException.
    """

    def __init__(self, server: Any, params: dict[str, Any], backend: Any) -> None:
        factory = f"{__name__}.{ClusterConnectionFactory.__name__}"
        options = {"CONNECTION_FACTORY": factory, **params.get("OPTIONS", {})}
        super().__init__(server, {**params, "OPTIONS": options}, backend)
        self._pid = os.getpid()

    def get_next_client_index(self, write: bool = True, tried: list[int] | None = None) -> int:
        """Always 0: one client knows all nodes."""
        if self._pid != os.getpid():
            self._clients[0], self._pid = None, os.getpid()
        return 0

    def connect(self, index: int = 0) -> Any:
        """The client that all caches with these nodes share."""
        return self.connection_factory.connect(",".join(map(str.strip, self._server)))

    def set_many(self, *args: Any, **kwargs: Any) -> None:
        """Set several keys, in one pipeline to each node."""
        with _outages_translated():
            super().set_many(*args, **kwargs)

    def keys(self, search: str, version: int | None = None, client: Any = None) -> list[Any]:
        """The keys that match a pattern on all nodes."""
        return list(self.iter_keys(search, itersize=PAGE, client=client, version=version))

    def delete_pattern(
        self,
        pattern: str,
        version: int | None = None,
        prefix: str | None = None,
        client: Any = None,
        itersize: int | None = None,
    ) -> int:
        """Remove the keys that match a pattern on all nodes; returns their number."""
        return self._remove(self.make_pattern(pattern, version=version, prefix=prefix), itersize, client)

    def clear(self, client: Any = None) -> None:
        """Remove the keys of this cache with any version."""
        prefix = glob_escape(self._backend.key_prefix)
        self._remove(self._backend.key_func("*", prefix, "*"), PAGE, client)

    def _remove(self, pattern: str, count: int | None, client: Any) -> int:
        client = self.get_client(write=True) if client is None else client
        removed = 0
        try:
            keys = client.scan_iter(match=pattern, count=count)
            while page := list(islice(keys, PAGE)):
                removed += client.unlink(*page)
        except (ConnectionError, TimeoutError, ResponseError) as error:
            raise ConnectionInterrupted(connection=client) from error
        return removed


def _open(url: str, **options: Any) -> DriverClient:
    first, *others = url.split(",")
    make_node: Any = ClusterNode
    nodes = [make_node(node["host"], node.get("port", 6379)) for node in map(_parse, others)]
    _parse(first)
    return DriverClient(url=first, startup_nodes=nodes, **options)


def _parse(url: str) -> dict[str, Any]:
    """The options in the URL of a node."""
    try:
        options: dict[str, Any] = cast(Any, parse_url)(url)
    except ValueError as error:
        raise ImproperlyConfigured(f"LOCATION must name nodes of a Cluster: {error}") from error
    if "host" not in options or options.get("db"):
        raise ImproperlyConfigured(
            "LOCATION must name nodes of a Cluster as redis://host:port or rediss://host:port: a Cluster is "
            "not reached by a unix socket, and redis-py's client of a Cluster uses the database 0 only."
        )
    return options
