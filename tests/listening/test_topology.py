"""The primaries of a Cluster, which join, leave and fail, and a primary watched by Sentinels."""

from __future__ import annotations

import logging
from contextlib import closing
from itertools import count
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

from ..support.aliases import lead_to
from ..support.clusters import SLOTS, Cluster
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
from ..support.sentinels import Sentinels
from ..support.server import server, until

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("keyspace_events", "short_lease")]


@pytest.fixture
def messaging_alias(messaging_settings: Prefix) -> str:
    """These tests start their own servers."""
    return conf.alias()


class TestPrimaries:
    @pytest.mark.long
    def test_listener_subscribes_to_every_primary(
        self, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Including one that joins later and one that was down."""
        caplog.set_level(logging.INFO, "django_redis_messaging")
        received, name = Received(), f"{site}moved"
        with Cluster(1, later=1) as cluster:
            lead_to(settings, cluster.url(0))
            here, there = cluster.clients
            for client in (here, there):
                client.config_set(NOTIFY, ALL)
            with following(site, received) as listener:
                assert listener.events is not None
                at = cluster.join()
                cluster.migrate(key_slot(name.encode()), at)
                until(lambda: len(listener.events.subscriptions) == 2)
                until(lambda: is_dispatcher(listener))
                there.set(name, 1)
                here.set(f"{site}kept", 1)
                until(lambda: len(received) == 2)
                there.connection_pool.disconnect()
                cluster.servers[at].kill()
                until(lambda: "reconnecting" in caplog.text)
                cluster.servers[at].start()
                there.config_set(NOTIFY, ALL)
                cluster.took_over(at)
                received.clear()
                set_until_received(there, name, received)
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
    def test_primaries_are_found_through_any_known_node(self, settings: Settings) -> None:
        """The node of the alias is down."""
        with Cluster(2) as cluster:
            primaries = Primaries(Endpoint(lead_to(settings, cluster.url(0))))
            both = primaries.discover()
            assert len(both) == 2
            cluster.servers[0].kill()
            assert {one.id for one in primaries.discover()} == {one.id for one in both}
            cluster.servers[1].kill()
            with pytest.raises(RedisError):
                primaries.discover()

    def test_connection_is_reused_and_an_error_turns_no_cluster_into_a_single_server(
        self, settings: Settings
    ) -> None:
        """For example, an error of a node that is busy with a script is raised."""
        with (
            EmbeddedServer(cluster=True, options={"port": free_port()}) as node,
            closing(Primaries(Endpoint(lead_to(settings, node.url)))) as primaries,
            node.client() as client,
        ):
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
            primaries = Primaries(Endpoint(lead_to(settings, single.url)))
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


@pytest.mark.long
def test_listener_follows_a_cluster_failover(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """The primary is killed, then returns as a replica and takes over by command."""
    caplog.set_level(logging.INFO, "django_redis_messaging")
    received, leases = Received(), key_slot(dispatch_key(conf.prefix(), "any").encode())
    with Cluster(replicas=True) as cluster:
        lead_to(settings, cluster.url(cluster.owner(leases)))
        victim = cluster.another(leases)
        names = (
            name for name in map("k{}".format, count()) if key_slot(name.encode()) * 3 // SLOTS == victim
        )

        def check_delivery(number: int, *, gone: int) -> None:
            """Each event of this server is received once from now on; `gone` primaries have been dropped."""
            # until then, the replica may publish events of writes that it gets from the primary
            until(lambda: len(departures(caplog)) == gone)
            received.clear()
            set_until_received(cluster.clients[number], next(names), received)
            until(lambda: len(subscriptions) == 3 and is_dispatcher(listener))
            last = [next(names) for _ in range(20)]
            for name in last:
                cluster.clients[number].set(name, 1)
            until(lambda: (last[-1], "set") in received.keys)
            assert [key for key, _ in received.keys if key in last] == last

        for client in cluster.clients:
            client.config_set(NOTIFY, ALL)
        with listening(key_events=[key_handler("k*", received, "set")]) as listener:
            assert listener.events is not None
            subscriptions = listener.events.subscriptions
            check_delivery(victim, gone=0)
            with cluster.killed(victim) as replica:
                cluster.took_over(replica)
                check_delivery(replica, gone=1)
            cluster.clients[victim].config_set(NOTIFY, ALL)
            assert cluster.fail_over(replica) == victim
            check_delivery(victim, gone=2)
        clients.close()


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
        lead_to(settings, pair.url, options=pair.options)
        with listening({"order": fired}, [key_handler("k*", received, "set")]):
            Expiry("order").start("17", 1)
            getattr(pair, cause)()
            until(pair.took_over)

            set_until_received(pair.clients[1], "k", received)
            until(lambda: fired.names == ["17"])
        clients.close()
