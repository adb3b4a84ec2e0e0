"""What this app uses of redis-py beyond its documentation. Each failure names what has gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.connection
import redis.cluster
import redis.connection
import redis.crc
import redis.exceptions
import redis.sentinel

from django_redis_messaging.core import connection, topology

#: what the constructors of connections take, besides host, port or path
LIMITS: dict[str, Any] = {
    "socket_timeout": 1.0,
    "socket_connect_timeout": 1.0,
    "redis_connect_func": lambda _: None,
    "retry": None,
    "protocol": 2,
}
#: what the handshake reads of each connection
SETTINGS = ("username", "password", "client_name", "db", "credential_provider", "connect")
KINDS = ("Connection", "SSLConnection", "UnixDomainSocketConnection")


def sentinels() -> Any:
    return redis.sentinel.Sentinel([("localhost", 1)])


def moved() -> Any:
    return redis.exceptions.MovedError("1 localhost:7000")


#: how to make an object, and the attributes of it that are used
USED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    **{
        f"redis.connection.{kind}": (
            lambda kind=kind: getattr(redis.connection, kind)(**LIMITS),
            ("_sock", *SETTINGS),
        )
        for kind in KINDS
    },
    **{
        f"redis.asyncio.connection.{kind}": (
            lambda kind=kind: getattr(redis.asyncio.connection, kind)(**LIMITS),
            ("_reader", "_writer", *SETTINGS),
        )
        for kind in KINDS
    },
    "redis.connection.DefaultParser": (lambda: redis.connection.DefaultParser, ("parse_error",)),
    "redis.connection": (lambda: redis.connection, ("parse_url",)),
    "redis.crc": (lambda: redis.crc, ("key_slot", "REDIS_CLUSTER_HASH_SLOTS")),
    "redis.ConnectionPool": (
        redis.ConnectionPool,
        ("connection_kwargs", "connection_class", "max_connections"),
    ),
    "redis.sentinel.SentinelConnectionPool": (
        lambda: redis.sentinel.SentinelConnectionPool("service", sentinels()),
        ("service_name", "sentinel_manager"),
    ),
    "redis.sentinel.Sentinel": (sentinels, ("sentinels",)),
    "redis.RedisCluster": (
        lambda: redis.RedisCluster,
        (
            "get_default_node",
            "mget_nonatomic",
            "disconnect_connection_pools",
            "_execute_pipeline_by_slot",
        ),
    ),
    "redis.cluster.ClusterNode": (lambda: redis.cluster.ClusterNode("localhost", 1), ("redis_connection",)),
    "redis.exceptions.MovedError": (moved, ("host", "port", "node_addr", "slot_id")),
    "redis.credentials.StreamingCredentialProvider": (
        lambda: topology.StreamingCredentialProvider,
        ("on_next",),
    ),
}


def missing(owner: Any, attributes: tuple[str, ...]) -> list[str]:
    """The attributes that an object doesn't have."""
    return [name for name in attributes if not hasattr(owner, name)]


@pytest.mark.versions
@pytest.mark.parametrize("name", USED)
def test_the_driver_has_what_this_app_uses(name: str) -> None:
    make, attributes = USED[name]
    gone = missing(make(), attributes)
    assert not gone, (
        f"{name} of redis-py {redis.__version__} has no {', '.join(gone)}: see core/connection.py, "
        "core/topology.py and cluster.py, which use it."
    )


def test_the_check_finds_what_has_gone() -> None:
    assert missing(redis.connection.Connection(), ("_sock", "_socket")) == ["_socket"]


def test_the_list_is_complete() -> None:
    """What core reads of the driver's connections, which it calls `dialed`."""
    assert connection.__file__ is not None
    with open(connection.__file__, encoding="utf-8") as file:
        read = set(re.findall(r"\bdialed\.(\w+)", file.read()))
    assert read == {"_sock", "_reader", "_writer", *SETTINGS}
