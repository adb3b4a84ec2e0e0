"""Failover to another primary, with and without Sentinels."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from django_redis_messaging.core import clients, pool
from django_redis_messaging.devserver.server import free_port
from tests.conftest import Call
from tests.core.conftest import Connect
from tests.core.test_cluster import meanwhile
from tests.core.test_retry import takes
from tests.support.clusters import until
from tests.support.example_service import Things
from tests.support.sentinels import NAME, Pair, Sentinel, Sentinels

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with Sentinels() as started:
        yield started


@pytest.fixture
def watched(connect: Connect, sentinels: Sentinels) -> Things:
    """The service, on the primary that the Sentinel names."""
    return connect(
        f"redis://{NAME}/0?db=0",
        more=sentinels.options,
    )


def blocked(pair: Pair, at: int) -> bool:
    return bool(pair.clients[at].info("clients")["blocked_clients"])


def refused(pair: Pair, at: int) -> int:
    """How many writes it has rejected as a replica."""
    return int(pair.clients[at].info("errorstats").get("errorstat_READONLY", {"count": 0})["count"])


class TestSentinel:
    async def test_calls_go_to_the_primary(self, call: Call, watched: Things, sentinels: Sentinels) -> None:
        assert [await call(watched, "add", "a") for _ in range(5)] == [1, 2, 3, 4, 5]
        assert await call(watched, "get", "a") == b"5"
        assert await call(watched, "add_each", ["a", "b"]) == [6, 1]
        assert await call(watched, "add_all", ["a", "b"]) == [7, 3]
        assert await call(watched, "take", "list", 0.05) is None
        await call(watched, "do", "ZADD", watched.key("list"), 0, "x")
        assert await call(watched, "take", "list", 10) == b"x"
        assert sentinels.clients[0].get(watched.key("a")) == b"7"
        assert refused(sentinels, 1) == 0

    async def test_a_silent_sentinel_is_asked_once(
        self, call: Call, connect: Connect, sentinels: Sentinels
    ) -> None:
        """It has its share of the time; later connections begin with the Sentinel that replied."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            options = {
                **sentinels.options,
                "SENTINELS": [silent.getsockname(), *sentinels.options["SENTINELS"]],
            }
            things = connect(f"redis://{NAME}/0?db=0", more=options, COMMAND_DEADLINE=2)
            with takes(0.2, 2):
                await call(things, "add", "a")
            clients.close()
            await clients.aclose()
            with takes(0, 0.2):
                assert await call(things, "add", "a") == 2

    async def test_a_sentinel_that_names_a_dead_primary_is_asked_last(
        self, call: Call, connect: Connect, sentinels: Sentinels
    ) -> None:
        with Sentinel(free_port()) as isolated:
            named = [("127.0.0.1", isolated.port), *sentinels.options["SENTINELS"]]
            things = connect(f"redis://{NAME}/0?db=0", more={**sentinels.options, "SENTINELS": named})
            with takes(0, 5):
                assert [await call(things, "add", "a") for _ in range(2)] == [1, 2]

    async def test_a_killed_primary(self, call: Call, watched: Things, sentinels: Sentinels) -> None:
        await call(watched, "add", "a")
        sentinels.kill()
        with takes(0, 10):
            assert await call(watched, "add", "a", once=True) == 2
        with takes(0, 2):
            assert await call(watched, "get", "a") == b"2"
            assert await call(watched, "add_each", ["a", "b"]) == [3, 1]
        assert sentinels.clients[1].get(watched.key("a")) == b"3"

    async def test_a_graceful_failover(self, call: Call, watched: Things, sentinels: Sentinels) -> None:
        """No call fails meanwhile, and writes to the former primary are not lost."""
        await call(watched, "add", "a")
        sentinels.order()
        with takes(0, 20):
            while not (sentinels.took_over() and sentinels.follows(0)):
                await call(watched, "add", "a")
        first = await call(watched, "add", "a")
        before = refused(sentinels, 0)
        assert [await call(watched, "add", "a") for _ in range(20)] == [first + n for n in range(1, 21)]
        assert refused(sentinels, 0) == before
        assert sentinels.clients[1].get(watched.key("a")) == b"%d" % (first + 20)

    @pytest.mark.long
    async def test_connections_that_were_idle_during_a_failover(
        self, call: Call, watched: Things, sentinels: Sentinels
    ) -> None:
        await asyncio.gather(*(watched.aadd("a") for _ in range(8)))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(watched.add, ["a"] * 8))
        sentinels.order()
        until(lambda: sentinels.took_over() and sentinels.follows(0))
        with takes(0, 2):
            assert [await call(watched, "add", "a", once=True) for _ in range(8)] == list(range(17, 25))
        assert sentinels.clients[1].get(watched.key("a")) == b"24"

    @pytest.mark.long
    async def test_a_wait_in_progress(self, call: Call, watched: Things, sentinels: Sentinels) -> None:
        """The Sentinel closes all connections; the wait continues with the new primary."""

        def order() -> None:
            until(lambda: blocked(sentinels, 0))
            sentinels.order()
            until(sentinels.took_over)
            sentinels.clients[1].zadd(watched.key("list"), {"x": 0})

        with meanwhile(order), takes(0, 20):
            assert await call(watched, "take", "list", 30) == b"x"


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as started:
        yield started


class TestAlone:
    """A single server for the alias; its address is a symbolic link, which is changed to another server."""

    @pytest.fixture
    def link(self, pair: Pair, tmp_path: Path) -> Path:
        path = tmp_path / "it"
        path.symlink_to(pair.servers[0].socket)
        return path

    @pytest.fixture
    def things(self, connect: Connect, link: Path) -> Things:
        return connect(f"unix://{quote(str(link))}?db=0")

    @pytest.mark.parametrize("once", [True, False])
    async def test_a_server_that_rejects_writes_is_left(
        self, call: Call, things: Things, pair: Pair, link: Path, *, once: bool
    ) -> None:
        await call(things, "add", "a")
        swap(pair, link)
        with takes(0, 2):
            assert await call(things, "add", "a", once=once) == 2
        assert await call(things, "add_each", ["a", "b"]) == [3, 1]
        assert pair.clients[1].get(things.key("a")) == b"3"
        assert refused(pair, 0) == 1

    @pytest.mark.long
    async def test_all_connections_to_it_are_closed(
        self, call: Call, things: Things, pair: Pair, link: Path
    ) -> None:
        await asyncio.gather(*(things.aadd("a") for _ in range(8)))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(things.add, ["a"] * 8))
        swap(pair, link)
        with takes(0, 2):
            assert [await call(things, "add", "a") for _ in range(8)] == list(range(17, 25))
        assert refused(pair, 0) == 1

    @pytest.mark.long
    async def test_a_pipeline(self, call: Call, things: Things, pair: Pair, link: Path) -> None:
        await call(things, "add_each", ["a", "b"])
        swap(pair, link)
        with takes(0, 2):
            assert await call(things, "add_each_once", ["a", "b"]) == [2, 2]

    async def test_a_wait_in_progress(self, call: Call, things: Things, pair: Pair, link: Path) -> None:
        def push() -> None:
            until(lambda: blocked(pair, 0))
            swap(pair, link)
            until(lambda: blocked(pair, 1))
            pair.clients[1].zadd(things.key("list"), {"x": 0})

        with meanwhile(push), takes(0, 10):
            assert await call(things, "take", "list", 20) == b"x"

    async def test_a_wait_at_a_frozen_server(
        self, call: Call, things: Things, pair: Pair, link: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is begun again, so that it finds the server that has taken over."""
        monkeypatch.setattr(pool, "ENDED", 0.2)

        def freeze_and_swap() -> None:
            until(lambda: blocked(pair, 0))
            pair.servers[0].freeze()
            link.unlink()
            link.symlink_to(pair.servers[1].socket)
            pair.clients[1].replicaof("NO", "ONE")
            pair.clients[1].zadd(things.key("list"), {"x": 0})

        with meanwhile(freeze_and_swap), takes(0, 10):
            assert await call(things, "take", "list", 20) == b"x"
        pair.servers[0].thaw()


def swap(pair: Pair, link: Path) -> None:
    """Swap the roles, and let the address lead to the new primary."""
    link.unlink()
    link.symlink_to(pair.servers[1].socket)
    pair.swap()
