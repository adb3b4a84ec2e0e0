"""Scripts that the server doesn't have, and scripts for many resources, on one server and on a Cluster."""

from __future__ import annotations

import pytest

from django_redis_messaging.core import clients
from django_redis_messaging.core.commands import Gather
from django_redis_messaging.core.operations import Command, Fan, Script, Service, Steps, operation
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import ConfigurationError
from tests.core.conftest import Connect
from tests.support.example_service import Things

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("closing")]


def flush_scripts(server: EmbeddedServer) -> None:
    with server.client() as admin:
        admin.script_flush()


def calls(server: EmbeddedServer, command: str) -> int:
    """How often the server was sent a command."""
    with server.client() as admin:
        stats = admin.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


class TestUnknownScripts:
    async def test_a_single_call(self, connect: Connect, private: EmbeddedServer) -> None:
        things = connect(private)
        for n in (1, 3):
            flush_scripts(private)
            assert things.add("a") == n
            flush_scripts(private)
            assert await things.aadd("a") == n + 1

    async def test_some_calls_of_a_pipeline(self, connect: Connect, private: EmbeddedServer) -> None:
        class Mixed(Service):
            @operation
            def both(self, key: str) -> Steps[list[object]]:
                known, unknown = Script("thing_get", [key]), Script("thing_add", [key], [1])
                replies: list[object] = yield [known, unknown, Command("STRLEN", key), known]
                return replies

        things = connect(private)
        things.do("PING")  # the first call detects the kind of server
        assert things.get("a") is None
        assert Mixed().both(things.key("a")) == [None, 1, 0, None]
        assert Mixed().both(things.key("a")) == [b"1", 2, 1, b"2"]
        flush_scripts(private)
        assert await things.aadd_each(["a", "b"]) == [3, 1]

    async def test_a_script_is_sent_in_full_only_if_it_is_missing(
        self, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        things.do("PING")  # the first call detects the kind of server
        for _ in range(5):
            things.add("a")
            await things.aadd("a")
        assert calls(private, "eval") == 1
        assert calls(private, "evalsha") == 10

    async def test_a_fan_with_a_missing_script(self, connect: Connect, private: EmbeddedServer) -> None:
        things = connect(private)
        assert things.add_all(["a", "b"]) == [1, 2]
        flush_scripts(private)
        assert await things.aadd_all(["a", "b"]) == [2, 4]


class TestManyResources:
    async def test_a_single_server_gets_one_call(self, connect: Connect, private: EmbeddedServer) -> None:
        things = connect(private)
        names = [f"{at}" for at in range(Fan.SIZE * 2 + 1)]
        wanted = [at + 1 for at in range(len(names))]
        assert things.add_all(names) == wanted
        assert await things.aadd_all(names) == [2 * n for n in wanted]
        # three calls each; the scripts of the first were not loaded yet
        assert calls(private, "evalsha") == 6

    async def test_a_cluster_gets_one_call_for_each_resource(
        self, connect: Connect, cluster_server: EmbeddedServer
    ) -> None:
        things = connect(cluster_server)
        assert things.add_all(["a", "b", "c"]) == [1, 2, 3]
        assert await things.aadd_all(["a", "b", "c"]) == [2, 4, 6]

    def test_a_cluster_is_detected_once(self, connect: Connect, cluster_server: EmbeddedServer) -> None:
        things = connect(cluster_server)
        things.add_all(["a", "b", "c"])
        assert clients.blocking_client("messaging").endpoint.router.splits
        before = calls(cluster_server, "evalsha")
        things.add_all(["a", "b", "c"])
        assert calls(cluster_server, "evalsha") == before + 3

    def test_a_single_server_is_not_taken_for_a_cluster(self, things: Things) -> None:
        things.add_all(["a", "b", "c"])
        assert not clients.blocking_client("messaging").endpoint.router.splits

    @pytest.mark.parametrize("kind", ["server", "cluster_server"])
    async def test_gathering_strings(
        self, connect: Connect, kind: str, request: pytest.FixtureRequest
    ) -> None:
        class Gatherer(Service):
            @operation
            def all(self, keys: list[str]) -> Steps[list[bytes | None]]:
                replies: list[bytes | None] = yield Gather(keys)
                return replies

        things = connect(request.getfixturevalue(kind))
        things.add("a", 5)
        things.add("c", 7)
        assert Gatherer().all([things.key(name) for name in "abc"]) == [b"5", None, b"7"]
        assert Gatherer().all([]) == []

    async def test_a_script_with_keys_of_two_slots_is_a_clear_error(
        self, connect: Connect, cluster_server: EmbeddedServer
    ) -> None:
        class Careless(Service):
            @operation
            def add(self, keys: list[str]) -> Steps[object]:
                return (yield Script("thing_add_all", keys, [1, 1, 1]))

        things = connect(cluster_server)
        with pytest.raises(ConfigurationError, match="Cluster"):
            Careless().add([things.key("a"), things.key("b")])
        assert things.get("a") is None
