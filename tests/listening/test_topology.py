"""The primaries of a Cluster, which join, leave and fail, and a primary watched by Sentinels."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from pytest_django import Settings
from redis.crc import key_slot
from redis.exceptions import RedisError

from django_redis_messaging import Expiry, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.core.topology import STANDALONE, Endpoint, Primaries, Primary, parse_primaries
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from django_redis_messaging.services.listening import listener as listener_module
from django_redis_messaging.services.listening.listener import dispatch_key

from ..support.listeners import (
    ALL,
    NOTIFY,
    Received,
    following,
    is_dispatcher,
    key_handler,
    listening,
    set_until_received,
)
from ..support.sentinels import NAME, Sentinels
from ..support.server import change, server, until

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("keyspace_events", "short_lease")]


@pytest.fixture
def messaging_alias(messaging_settings: Prefix) -> str:
    """These tests start their own servers."""
    return conf.alias()


@pytest.fixture
def second() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(cluster=True, options={"port": free_port()}) as started:
        yield started


def use(settings: Settings, server: EmbeddedServer) -> Endpoint:
    """Let the app's alias lead to this server."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    settings.CACHES = {**settings.CACHES, "own": entry}
    return Endpoint("own")


class TestPrimaries:
    @pytest.mark.long
    def test_listener_subscribes_to_every_primary(
        self, second: EmbeddedServer, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Including one that joins later and one that was down."""
        caplog.set_level(logging.INFO, "django_redis_messaging")
        received, name = Received(), in_slots(site, 100)
        with EmbeddedServer(cluster=True, options={"port": free_port()}) as first:
            change(settings, ALIAS=use(settings, first).alias)
            with first.client() as here, second.client() as there:
                for one in (here, there):
                    one.config_set(NOTIFY, ALL)
                with following(site, received) as listener:
                    assert listener.events is not None
                    split(first, second)
                    until(lambda: len(listener.events.subscriptions) == 2)
                    until(lambda: is_dispatcher(listener))
                    there.set(name, 1)
                    here.set(in_slots(site, 16383, above=100), 1)
                    until(lambda: len(received) == 2)
                    there.connection_pool.disconnect()
                    second.kill()
                    until(lambda: "reconnecting" in caplog.text)
                    second.start()
                    there.config_set(NOTIFY, ALL)

                    def received_more() -> bool:
                        there.set(name, 2)
                        return len(received) > 2

                    until(received_more)
            clients.close()
        assert received[-1].key == name

    def test_listener_leaves_a_departed_primary(self, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
        found, port = [Primary("alone")], free_port()
        monkeypatch.setattr(Primaries, "discover", lambda self: list(found))
        monkeypatch.setattr(listener_module, "TOPOLOGY_INTERVAL", 0.05)
        with (
            EmbeddedServer(options={"bind": "127.0.0.1", "port": port}),
            following(site, Received()) as listener,
        ):
            assert listener.events is not None
            found.append(Primary("other", ("127.0.0.1", port)))
            until(lambda: len(listener.events.subscriptions) == 2)
            until(lambda: is_dispatcher(listener))
            assert server().exists(dispatch_key(conf.prefix(), "other"))
            del found[1]
            until(lambda: len(listener.events.subscriptions) == 1)
            until(lambda: not server().exists(dispatch_key(conf.prefix(), "other")))

    @pytest.mark.long
    def test_primaries_are_found_through_any_known_node(
        self, second: EmbeddedServer, settings: Settings
    ) -> None:
        """The node of the alias is down."""
        with EmbeddedServer(cluster=True, options={"port": free_port()}) as first:
            split(first, second)
            primaries = Primaries(use(settings, first))
            both = primaries.discover()
            assert len(both) == 2
            first.kill()
            remaining = primaries.discover()
            assert {one.id for one in remaining} == {one.id for one in both}
            second.kill()
            with pytest.raises(RedisError):
                primaries.discover()

    def test_connection_is_reused_and_an_error_turns_no_cluster_into_a_single_server(
        self, second: EmbeddedServer, settings: Settings
    ) -> None:
        """For example, an error of a node that is busy with a script is raised."""
        with closing(Primaries(use(settings, second))) as primaries, second.client() as client:
            before = primaries.discover()
            assert before != [Primary("alone")]
            connected = connections(client)
            assert [primaries.discover() for _ in range(5)] == [before] * 5
            assert connections(client) == connected
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert primaries.discover() == before
            assert connections(client) == connected + 1
            client.execute_command("ACL", "SETUSER", "default", "-cluster")
            with pytest.raises(RedisError):
                primaries.discover()
            client.execute_command("ACL", "SETUSER", "default", "+cluster")
            assert primaries.discover() == before

    def test_single_server_is_queried_once(self, settings: Settings) -> None:
        with EmbeddedServer() as single, single.client() as client:
            primaries = Primaries(use(settings, single))
            assert primaries.discover() == [STANDALONE]
            before = connections(client)
            assert primaries.discover() == [STANDALONE]
            assert connections(client) == before

    def test_parse_cluster_slots(self) -> None:
        replica = [b"10.0.0.9", 7009, b"ii"]
        slots = [
            [0, 100, [b"10.0.0.1", 7000, b"aa", []], replica],
            [101, 200, [b"", 7001, b"bb", []]],
            [201, 16383, [b"10.0.0.1", 7000, b"aa", []], replica],
        ]
        aa, bb = Primary("aa", ("10.0.0.1", 7000)), Primary("bb", ("here", 7001))
        assert parse_primaries(slots, node=("here", 7001)) == [aa, bb]
        with pytest.raises(RedisError, match="no slot"):
            parse_primaries([], node=None)


def connections(client: Any) -> int:
    """Number of connections accepted by the server so far."""
    return int(client.info("stats")["total_connections_received"])


def in_slots(start: str, up_to: int, *, above: int = -1) -> str:
    return next(
        name for number in range(10**6) if above < key_slot((name := f"{start}{number}").encode()) <= up_to
    )


def split(first: EmbeddedServer, second: EmbeddedServer) -> None:
    """Join two clusters of one node: the second gets the first slots, none of which the app uses."""
    with first.client() as here, second.client() as there:
        there.execute_command("CLUSTER", "RESET", "HARD")
        here.execute_command("CLUSTER", "DELSLOTS", *range(101))
        there.execute_command("CLUSTER", "ADDSLOTS", *range(101))
        port = there.config_get("port")["port"]
        bus = there.config_get("cluster-port")["cluster-port"]
        there.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 7)
        here.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        for one in (here, there):
            until(lambda: state(one)["cluster_state"] == "ok" and state(one)["cluster_size"] == "2")  # noqa: B023


def state(client: Any) -> dict[str, str]:
    found: dict[str, str] = client.execute_command("CLUSTER INFO")
    return found


#: slots of each primary; the last one has all slots of the app
SLOTS = [range(101), range(101, 201), range(201, 16384)]


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
        until(lambda: all(state(one)["cluster_known_nodes"] == "4" for one in self.clients))
        first = self.clients[0].execute_command("CLUSTER MYID")
        self.clients[3].execute_command("CLUSTER", "REPLICATE", first)
        until(lambda: all(state(one)["cluster_state"] == "ok" for one in self.clients))
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


@pytest.fixture
def cluster(settings: Settings) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made = Cluster(stack)
        change(settings, ALIAS=use(settings, made.servers[2]).alias)
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
        change(settings, ALIAS="watched")
        with listening({"order": fired}, [key_handler("k*", received, "set")]):
            Expiry("order").start("17", 1)
            getattr(pair, cause)()
            until(pair.took_over)

            set_until_received(pair.clients[1], "k", received)
            until(lambda: fired.names == ["17"])
        clients.close()
