"""The primaries of a Cluster, and servers that leave and return."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pytest_django import Settings
from redis.crc import key_slot
from redis.exceptions import RedisError

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.core.topology import STANDALONE, Endpoint, Primaries, Primary, parse_primaries
from django_redis_messaging.devserver.server import EmbeddedServer, free_port
from django_redis_messaging.services.listening import listener as listener_module
from django_redis_messaging.services.listening.listener import dispatch_key

from ..support.listeners import ALL, NOTIFY, Received, is_dispatcher, key_handler, listening
from ..support.server import server, until

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("keyspace_events", "short_lease")]


class TestPrimaries:
    @pytest.fixture
    def messaging_alias(self, messaging_settings: Prefix) -> str:
        """These tests start their own servers."""
        return conf.alias()

    @pytest.fixture
    def second(self, keyspace_events: None) -> Iterator[EmbeddedServer]:
        with EmbeddedServer(cluster=True, options={"port": free_port()}) as started:
            yield started

    @pytest.mark.long
    def test_listener_subscribes_to_every_primary(
        self, second: EmbeddedServer, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Including one that joins later and one that was down."""
        caplog.set_level(logging.INFO, "django_redis_messaging")
        received, name = Received(), in_slots(site, 100)
        with EmbeddedServer(cluster=True, options={"port": free_port()}) as first:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": first.url}
            settings.CACHES = {**settings.CACHES, "two": entry}
            settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "two"}
            with first.client() as here, second.client() as there:
                for one in (here, there):
                    one.config_set(NOTIFY, ALL)
                with listening(key_events=[key_handler(f"{site}*", received, "set")]) as listener:
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

    def test_listener_leaves_a_departed_primary(
        self, second: EmbeddedServer, settings: Settings, site: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = [Primary("alone")]
        monkeypatch.setattr(Primaries, "discover", lambda self: list(found))
        monkeypatch.setattr(listener_module, "TOPOLOGY_INTERVAL", 0.05)
        with listening(key_events=[key_handler(f"{site}*", Received(), "set")]) as listener:
            assert listener.events is not None
            with second.client() as there:
                port = int(there.config_get("port")["port"])
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
            settings.CACHES = {
                **settings.CACHES,
                "two": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": first.url},
            }
            split(first, second)
            primaries = Primaries(Endpoint("two"))
            both = primaries.discover()
            assert len(both) == 2
            first.kill()
            remaining = primaries.discover()
            assert {one.id for one in remaining} == {one.id for one in both}
            second.kill()
            with pytest.raises(RedisError):
                primaries.discover()

    def test_error_does_not_turn_a_cluster_into_a_single_server(
        self, second: EmbeddedServer, settings: Settings
    ) -> None:
        """For example, a node that is busy with a script: the error is raised."""
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": second.url}
        settings.CACHES = {**settings.CACHES, "one": entry}
        primaries = Primaries(Endpoint("one"))
        before = primaries.discover()
        assert before != [Primary("alone")]
        with second.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-cluster")
            with pytest.raises(RedisError):
                primaries.discover()
            client.execute_command("ACL", "SETUSER", "default", "+cluster")
        assert primaries.discover() == before

    def test_connection_is_reused(self, second: EmbeddedServer, settings: Settings) -> None:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": second.url}
        settings.CACHES = {**settings.CACHES, "one": entry}
        with closing(Primaries(Endpoint("one"))) as primaries, second.client() as client:
            before = primaries.discover()
            connected = connections(client)
            assert [primaries.discover() for _ in range(5)] == [before] * 5
            assert connections(client) == connected
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert primaries.discover() == before
            assert connections(client) == connected + 1

    def test_single_server_is_queried_once(self, settings: Settings) -> None:
        with EmbeddedServer() as single, single.client() as client:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": single.url}
            settings.CACHES = {**settings.CACHES, "alone": entry}
            primaries = Primaries(Endpoint("alone"))
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
    answer: dict[str, str] = client.execute_command("CLUSTER INFO")
    return answer
