"""A replica is promoted while a listener runs: in a Cluster, and with a primary watched by Sentinels."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pytest_django import Settings
from redis.crc import key_slot

from django_redis_messaging import Expiry, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from tests.support.sentinels import NAME, Sentinels

from ..support.listeners import ALL, NOTIFY, Received, is_dispatcher, key_handler, listening
from ..support.server import until

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("short_lease")]
#: slots of each primary; the last one has all slots of the app
SLOTS = [range(101), range(101, 201), range(201, 16384)]


@pytest.fixture
def messaging_alias(messaging_settings: Prefix) -> str:
    """These tests start their own servers."""
    return conf.alias()


class Cluster:
    """Three primaries and a replica of the first."""

    def __init__(self, stack: ExitStack) -> None:
        self.servers = [stack.enter_context(EmbeddedServer(options=options())) for _ in range(4)]
        self.clients: list[Any] = [stack.enter_context(one.client()) for one in self.servers]
        for number, one in enumerate(self.clients):
            one.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for one, slots in zip(self.clients, SLOTS, strict=False):
            one.execute_command("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])
        for one in self.clients[1:]:
            ports = [one.config_get(name)[name] for name in ("port", "cluster-port")]
            self.clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", *ports)
        until(lambda: all(info(one)["cluster_known_nodes"] == "4" for one in self.clients))
        first = self.clients[0].execute_command("CLUSTER MYID")
        self.clients[3].execute_command("CLUSTER", "REPLICATE", first)
        until(lambda: all(info(one)["cluster_state"] == "ok" for one in self.clients))
        self.wait_until_replica(3)

    def wait_until_replica(self, number: int) -> None:
        """Wait until this server is a replica in sync."""
        until(lambda: self.clients[number].info("replication").get("master_link_status") == "up")

    def wait_until_primary(self, number: int) -> None:
        """Wait until this server is a primary."""
        until(lambda: self.clients[number].info("replication")["role"] == "master")


def options() -> dict[str, str | int]:
    return {
        "bind": "127.0.0.1",
        "port": free_port(),
        "cluster-enabled": "yes",
        "cluster-port": free_port(),
        "cluster-node-timeout": 1000,
        "repl-diskless-sync-delay": 0,
        NOTIFY: ALL,
    }


def info(client: Any) -> dict[str, str]:
    found: dict[str, str] = client.execute_command("CLUSTER INFO")
    return found


@pytest.fixture
def cluster(settings: Settings) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made = Cluster(stack)
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": made.servers[2].url}
        settings.CACHES = {**settings.CACHES, "several": entry}
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "several"}
        yield made
        clients.close()


@pytest.mark.long
def test_listener_follows_a_cluster_failover(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """The primary is killed, then returns as a replica and takes over by command."""
    caplog.set_level(logging.INFO, "django_redis_messaging")
    received = Received()
    names = (name for name in map("k{}".format, range(10**6)) if key_slot(name.encode()) in SLOTS[0])
    with listening(key_events=[key_handler("k*", received, "set")]) as listener:
        assert listener.events is not None

        def check_delivery(number: int, *, gone: int) -> None:
            """Each event of this server is received once from now on; `gone` primaries have been dropped."""

            def received_any() -> bool:
                cluster.clients[number].set(next(names), 1)
                return bool(received)

            # until then, the replica may publish events of writes that it gets from the primary
            until(lambda: len(departures(caplog)) == gone)
            received.clear()
            until(received_any)
            until(lambda: len(listener.events.subscriptions) == 3 and is_dispatcher(listener))
            last = [next(names) for _ in range(20)]
            for name in last:
                cluster.clients[number].set(name, 1)
            until(lambda: (last[-1], "set") in received.keys)
            assert [key for key, _ in received.keys if key in last] == last

        check_delivery(0, gone=0)
        cluster.servers[0].kill()
        cluster.wait_until_primary(3)
        check_delivery(3, gone=1)
        cluster.clients[0].connection_pool.disconnect()
        cluster.servers[0].start()
        cluster.wait_until_replica(0)
        cluster.clients[0].execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
        cluster.wait_until_primary(0)
        check_delivery(0, gone=2)


def departures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.endswith("has left the topology.")]


@pytest.mark.long
@pytest.mark.parametrize("cause", ["kill", "order"])
def test_listener_follows_a_sentinel_failover(cause: str, settings: Settings) -> None:
    """The primary is killed, or continues as a replica."""
    received, fired = Received(), Received()
    with Sentinels() as pair:
        for client in pair.clients:
            client.config_set(NOTIFY, ALL)
        settings.CACHES = {
            **settings.CACHES,
            "watched": {
                "BACKEND": "django_redis.cache.RedisCache",
                # django-redis caches its pools by URL: the client name makes this URL unique
                "LOCATION": f"redis://{NAME}/0?client_name={cause}",
                "OPTIONS": pair.options,
            },
        }
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "watched"}
        with listening({"order": fired}, [key_handler("k*", received, "set")]):
            Expiry("order").start("17", 1)
            getattr(pair, cause)()
            until(pair.took_over)

            def received_any() -> bool:
                pair.clients[1].set("k", 1)
                return bool(received)

            until(received_any)
            until(lambda: fired.names == ["17"])
        clients.close()
