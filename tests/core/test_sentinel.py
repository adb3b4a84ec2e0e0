"""A primary and its replicas: failover, with and without Sentinels, and writes that replicas must confirm."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from django_redis_messaging import ConfigurationError, OutcomeUnknown, Unavailable, conf, deadline
from django_redis_messaging.core import clients, pool
from django_redis_messaging.devserver.server import find_bundled, free_port
from tests.conftest import Call
from tests.core.conftest import Connect, blocked, close_all, count, frozen, make_idle, meanwhile, takes
from tests.support.clusters import until
from tests.support.example_service import Things
from tests.support.sentinels import Pair, Sentinel, Sentinels

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]
#: seconds; timeout of a confirmation by a replica that doesn't reply
SHORT = 0.2


class TestSentinel:
    @pytest.fixture
    def sentinels(self) -> Iterator[Sentinels]:
        with Sentinels() as started:
            yield started

    @pytest.fixture
    def watched(self, connect: Connect, sentinels: Sentinels) -> Things:
        """The service, on the primary that the Sentinel names."""
        return connect(sentinels.url, more=sentinels.options)

    async def test_calls_go_to_the_primary(self, call: Call, watched: Things, sentinels: Sentinels) -> None:
        assert [await call(watched, "add", "a") for _ in range(5)] == [1, 2, 3, 4, 5]
        assert await call(watched, "get", "a") == b"5"
        assert await call(watched, "add_each", ["a", "b"]) == [6, 1]
        assert await call(watched, "add_all", ["a", "b"]) == [7, 3]
        assert await call(watched, "take", "list", 0.05) is None
        await call(watched, "do", "ZADD", watched.key("list"), 0, "x")
        assert await call(watched, "take", "list", 10) == b"x"
        assert sentinels.clients[0].get(watched.key("a")) == b"7"
        assert count(sentinels.clients[1], "errorstats", "READONLY") == 0

    async def test_a_silent_sentinel_is_asked_once(
        self, call: Call, connect: Connect, sentinels: Sentinels
    ) -> None:
        """It has its share of the time; later connections begin with the Sentinel that replied."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            named = [silent.getsockname(), *sentinels.options["SENTINELS"]]
            options = {**sentinels.options, "SENTINELS": named}
            things = connect(sentinels.url, more=options, COMMAND_DEADLINE=2)
            with takes(0.2, 2):
                await call(things, "add", "a")
            await close_all()
            with takes(0, 0.2):
                assert await call(things, "add", "a") == 2

    async def test_a_sentinel_that_names_a_dead_primary_is_asked_last(
        self, call: Call, connect: Connect, sentinels: Sentinels
    ) -> None:
        with Sentinel(free_port()) as isolated:
            named = [("127.0.0.1", isolated.port), *sentinels.options["SENTINELS"]]
            things = connect(sentinels.url, more={**sentinels.options, "SENTINELS": named})
            with takes(0, 5):
                assert [await call(things, "add", "a") for _ in range(2)] == [1, 2]

    async def test_a_primary_that_no_sentinel_knows(
        self, call: Call, connect: Connect, sentinels: Sentinels
    ) -> None:
        things = connect("redis://unknown/0?db=0", more=sentinels.options, COMMAND_DEADLINE=0.3)
        with pytest.raises(Unavailable, match="no Sentinel names a primary of 'unknown'"):
            await call(things, "add", "a")

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
        """No call fails meanwhile, not even with idle connections; a wait in progress continues with the
        new primary; and writes to the former one are not lost."""
        former, present = sentinels.clients
        await make_idle(watched)
        assert await call(watched, "add", "a") == 1

        def order() -> None:
            until(lambda: blocked(former))
            sentinels.order()
            until(lambda: sentinels.took_over() and sentinels.follows(0))
            present.zadd(watched.key("list"), {"x": 0})

        with meanwhile(order), takes(0, 20):
            assert await call(watched, "take", "list", 30) == b"x"
        before = count(former, "errorstats", "READONLY")
        with takes(0, 2):
            assert [await call(watched, "add", "a", once=True) for _ in range(20)] == list(range(2, 22))
        assert count(former, "errorstats", "READONLY") == before
        sentinels.order()
        with takes(0, 20):
            while not (sentinels.took_over(1) and sentinels.follows(1)):
                await call(watched, "add", "a")
        last = await call(watched, "add", "a")
        assert former.get(watched.key("a")) == b"%d" % last


class TestAlone:
    """A single server for the alias; its address is a symbolic link, which is changed to another server."""

    @pytest.fixture
    def pair(self) -> Iterator[Pair]:
        with Pair() as started:
            yield started

    @pytest.fixture
    def link(self, pair: Pair, tmp_path: Path) -> Path:
        path = tmp_path / "it"
        path.symlink_to(pair.servers[0].socket)
        return path

    @pytest.fixture
    def things(self, connect: Connect, link: Path) -> Things:
        return connect(f"unix://{quote(str(link))}?db=0")

    def lead(self, link: Path, pair: Pair) -> None:
        """Let the address lead to the new primary."""
        link.unlink()
        link.symlink_to(pair.servers[1].socket)

    def swap(self, pair: Pair, link: Path) -> None:
        """Swap the roles, too."""
        self.lead(link, pair)
        pair.swap()

    @pytest.mark.parametrize("once", [True, False])
    async def test_a_server_that_rejects_writes_is_left(
        self, call: Call, things: Things, pair: Pair, link: Path, *, once: bool
    ) -> None:
        """All connections to it are closed after one refusal, also of a pipeline."""
        await make_idle(things)
        assert await call(things, "add", "a") == 1
        self.swap(pair, link)
        operation = "add_each_once" if once else "add_each"
        with takes(0, 2):
            assert await call(things, operation, ["a"]) == [2]
            assert [await call(things, "add", "a", once=once) for _ in range(8)] == list(range(3, 11))
        assert pair.clients[1].get(things.key("a")) == b"10"
        assert count(pair.clients[0], "errorstats", "READONLY") == 1

    async def test_a_wait_in_progress(self, call: Call, things: Things, pair: Pair, link: Path) -> None:
        def push() -> None:
            until(lambda: blocked(pair.clients[0]))
            self.swap(pair, link)
            until(lambda: blocked(pair.clients[1]))
            pair.clients[1].zadd(things.key("list"), {"x": 0})

        with meanwhile(push), takes(0, 10):
            assert await call(things, "take", "list", 20) == b"x"

    async def test_a_wait_at_a_frozen_server(
        self, call: Call, things: Things, pair: Pair, link: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is begun again, so that it finds the server that has taken over."""
        monkeypatch.setattr(pool, "ENDED", 0.2)

        def freeze_and_lead() -> None:
            until(lambda: blocked(pair.clients[0]))
            pair.servers[0].freeze()
            self.lead(link, pair)
            pair.clients[1].replicaof("NO", "ONE")
            pair.clients[1].zadd(things.key("list"), {"x": 0})

        with meanwhile(freeze_and_lead), takes(0, 10):
            assert await call(things, "take", "list", 20) == b"x"
        pair.servers[0].thaw()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and its replica."""
    with Pair() as started:
        yield started


@pytest.fixture(scope="module")
def pair_of_valkey() -> Iterator[Pair]:
    """The same with Valkey, whose WAIT confirms only what its connection has written."""
    with Pair(program=find_bundled()) as started:
        yield started


class TestDurability:
    """Writes that replicas must confirm."""

    @pytest.fixture
    def confirmed(self, connect: Connect, pair: Pair) -> Things:
        """The service, whose writes the replica confirms."""
        return connect(pair.servers[0], DURABILITY={"replicas": 1, "timeout": 10})

    @pytest.mark.parametrize("operation", ["add_each", "add_all", "add_each_once"])
    async def test_a_write_is_at_the_replica_when_it_returns(
        self, call: Call, confirmed: Things, pair: Pair, operation: str
    ) -> None:
        for n in range(1, 20):
            await call(confirmed, "add", "a")
            await call(confirmed, operation, ["b", "c"])
            assert [int(pair.clients[1].get(confirmed.key(name))) for name in "ab"] == [n, n]

    async def test_reads_and_waits_are_not_confirmed(self, call: Call, confirmed: Things, pair: Pair) -> None:
        await call(confirmed, "add", "a")
        with frozen(pair.servers[1]), takes(0, 5):
            assert await call(confirmed, "get", "a") == b"1"
            assert await call(confirmed, "take", "empty", 0.01) is None
            assert await call(confirmed, "add_each", []) == []

    @pytest.mark.parametrize(
        ("operation", "subject"),
        [("add", "a"), ("add_each", ["a", "b"]), ("add_each_once", ["a"]), ("clear", "x")],
    )
    async def test_an_unconfirmed_write_has_an_unknown_outcome(
        self, call: Call, connect: Connect, pair: Pair, operation: str, subject: Any
    ) -> None:
        things = connect(pair.servers[0], DURABILITY={"replicas": 1, "timeout": SHORT})
        with frozen(pair.servers[1]), takes(SHORT, 5):
            with pytest.raises(OutcomeUnknown, match=r"0 of 1 replicas .* same request_id"):
                await call(things, operation, subject)
            expected = None if operation == "clear" else b"1"
            assert pair.clients[0].get(things.key("a")) == expected  # sent once

    async def test_items_of_an_unconfirmed_call_are_errors(
        self, call: Call, connect: Connect, pair: Pair
    ) -> None:
        things = connect(pair.servers[0], DURABILITY={"replicas": 2, "timeout": SHORT})
        with pytest.raises(OutcomeUnknown, match="1 of 2 replicas"):
            await call(things, "add_some", ["a", "b"])
        assert pair.clients[0].get(things.key("a")) == b"1"

    @pytest.mark.parametrize("kind", ["TIMEOUT", "ERROR"])
    async def test_a_confirmation_that_ends_early(
        self, call: Call, confirmed: Things, pair: Pair, kind: str
    ) -> None:
        """As by a demotion: the call was applied, and is not repeated."""
        await call(confirmed, "get", "a")

        def waiting() -> list[Any]:
            return [one for one in pair.clients[0].client_list() if "b" in one["flags"]]

        def unblock() -> None:
            until(waiting)
            pair.clients[0].execute_command("CLIENT", "UNBLOCK", waiting()[0]["id"], kind)

        with frozen(pair.servers[1]), meanwhile(unblock), pytest.raises(OutcomeUnknown, match="was applied"):
            await call(confirmed, "add", "a", once=True)
        assert pair.clients[0].get(confirmed.key("a")) == b"1"

    async def test_a_repeat_that_writes_nothing_is_confirmed_too(
        self, call: Call, connect: Connect, pair: Pair, pair_of_valkey: Pair
    ) -> None:
        for servers in (pair, pair_of_valkey):
            things = connect(servers.servers[0], DURABILITY={"replicas": 1, "timeout": SHORT})
            with frozen(servers.servers[1]):
                servers.clients[0].set("other", "not replicated")
                with pytest.raises(OutcomeUnknown):
                    await call(things, "clear", "missing")

    async def test_the_deadline_limits_the_confirmation(
        self, call: Call, confirmed: Things, pair: Pair
    ) -> None:
        await call(confirmed, "add", "a")
        with frozen(pair.servers[0]), deadline(SHORT), takes(SHORT, 3), pytest.raises(OutcomeUnknown):
            await call(confirmed, "add", "a")

    @pytest.mark.parametrize(
        "setting",
        [
            {"replicas": 0, "timeout": 1},
            {"replicas": 1},
            {"replicas": 1, "timeout": 0},
            {"replicas": 1.5, "timeout": 1},
        ],
    )
    def test_a_bad_setting_is_a_clear_error(self, connect: Connect, pair: Pair, setting: Any) -> None:
        things = connect(pair.servers[0], DURABILITY=setting)
        with pytest.raises(ConfigurationError, match=r"DURABILITY.*\"replicas\""):
            things.get("a")

    def test_without_the_setting_nothing_is_confirmed(self, connect: Connect, pair: Pair) -> None:
        assert conf.Settings().DURABILITY is None
        things = connect(pair.servers[0])
        before = count(pair.clients[0], "commandstats", "wait")
        things.add("a")
        things.add_each(["a", "b"])
        assert clients.blocking_client("messaging").endpoint.durability is None
        assert count(pair.clients[0], "commandstats", "wait") == before
