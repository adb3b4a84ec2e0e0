"""What `check --deploy` says of the servers: a single one, a Cluster, Sentinels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from django_redis_messaging.checks import servers as topology
from django_redis_messaging.checks.servers import Server, Watch, check_server, check_topology
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.core.conftest import Connect
from tests.support.clusters import Cluster
from tests.support.sentinels import NAME, Sentinels

pytestmark = pytest.mark.timing


@pytest.fixture
def configure() -> Iterator[Callable[..., None]]:
    """Change settings of servers during the test."""
    with ExitStack() as stack:

        def change(client: Any, setting: str, value: str) -> None:
            stack.callback(client.config_set, setting, client.config_get(setting)[setting])
            client.config_set(setting, value)

        yield change


def found() -> dict[str, str]:
    """Id → text of each message; each but the description says what to do."""
    messages = check_topology()
    assert [message.id for message in messages if not message.hint] == ["messaging.I001"]
    return {str(message.id).removeprefix("messaging."): message.msg for message in messages}


def test_a_single_server(connect: Connect, private: EmbeddedServer) -> None:
    connect(private)
    with private.client() as client:
        version = client.info("server")["redis_version"]
    [(id, text)] = found().items()
    assert id == "I001"
    assert text.splitlines()[0] == "CACHES['messaging'] leads to one server:"
    assert text.splitlines()[1].strip() == (
        f"redis {version}, 0 replicas, persistence: append-only file, eviction: noeviction"
    )


def test_a_cluster_without_replicas(
    connect: Connect, cluster: Cluster, configure: Callable[..., None]
) -> None:
    connect(cluster.url(0), COMMAND_DEADLINE=2)
    messages = found()
    assert messages.keys() == {"I001", "W018", "W019"}
    head, *lines = messages["I001"].splitlines()
    assert head == "CACHES['messaging'] leads to a Cluster of 3 primaries:"
    assert len(lines) == 3 and all("127.0.0.1:" in line and "0 replicas" in line for line in lines)
    assert messages["W018"].count("CACHES['messaging'] (127.0.0.1:") == 3
    assert "begins 2 s after" in messages["W019"]
    connect(cluster.url(0), COMMAND_DEADLINE=5)
    assert found().keys() == {"I001", "W018"}
    # the settings of each primary are checked, not only those of the one that is named
    configure(cluster.clients[2], "maxmemory-policy", "allkeys-lru")
    evicting = [message.msg for message in check_server() if message.id == "messaging.E008"]
    assert [text.count("127.0.0.1:") for text in evicting] == [1]
    assert "eviction: allkeys-lru" in found()["I001"]


def test_sentinels(connect: Connect) -> None:
    with Sentinels() as sentinels:
        connect(f"redis://{NAME}/0?db=0", more=sentinels.options, DURABILITY={"replicas": 1, "timeout": 1})
        messages = found()
        assert messages.keys() == {"I001", "W020"}
        assert "one primary, watched by 1 Sentinel (quorum 1):" in messages["I001"]
        assert "1 replica, " in messages["I001"] and "replicas: 1 with redis " in messages["I001"]
        connect(f"redis://{NAME}/0?db=0", more=sentinels.options, DURABILITY={"replicas": 2, "timeout": 1})
        assert "2 replicas to confirm each write, but CACHES['messaging'] has 1" in found()["E011"]


def test_a_server_that_does_not_reply_is_reported_once(connect: Connect) -> None:
    connect("unix:///nowhere.sock?db=0", COMMAND_DEADLINE=0.2)
    assert check_topology() == []
    assert [message.id for message in check_server()] == ["messaging.W005"]


@pytest.mark.parametrize(
    ("sentinels", "quorum", "good"), [(3, 2, 1), (5, 2, 1), (2, 2, 0), (3, 1, 0), (3, 4, 0)]
)
def test_sentinels_that_can_decide(sentinels: int, quorum: int, good: int) -> None:
    messages = list(topology._check_sentinels("it", Watch(sentinels, quorum, 1000)))
    assert [message.id for message in messages] == ["messaging.W020"] * (1 - good)


def test_servers_of_different_versions() -> None:
    servers = [Server("it", {"redis_version": "7.0.15"}, {})]
    assert list(topology._check_versions("it", servers, ["redis 7.0.15", "unknown"])) == []
    [message] = topology._check_versions("it", servers, ["redis 7.2.4"])
    assert "redis 7.0.15, redis 7.2.4" in message.msg


@contextmanager
def limited(server: EmbeddedServer, *rules: str) -> Iterator[str]:
    """The URL of a user with these permissions."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules)
        yield server.url.replace("unix://", "unix://limited:secret@")
        client.execute_command("ACL", "DELUSER", "limited")


def test_what_may_not_be_read_is_unknown(connect: Connect) -> None:
    with EmbeddedServer() as server, limited(server, "+@all", "-config") as url:
        connect(url)
        assert "persistence: unknown" in found()["I001"]
