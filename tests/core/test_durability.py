"""Writes that replicas must confirm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.outcome import deadline
from django_redis_messaging.devserver.server import find_bundled
from django_redis_messaging.errors import ConfigurationError, OutcomeUnknown
from tests.conftest import Call
from tests.core.conftest import Connect
from tests.core.test_cluster import meanwhile
from tests.core.test_retry import frozen, takes
from tests.support.clusters import until
from tests.support.example_service import Things
from tests.support.sentinels import Pair

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]


def blocked(client: Any) -> list[Any]:
    """The clients that wait for something."""
    return [one for one in client.client_list() if "b" in one["flags"]]


#: seconds; timeout of a confirmation by a replica that doesn't reply
SHORT = 0.2


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A primary and its replica."""
    with Pair() as started:
        yield started


@pytest.fixture(scope="module")
def server_of_valkey() -> Iterator[Pair]:
    """The same with Valkey, whose WAIT confirms only what its connection has written."""
    with Pair(program=find_bundled()) as started:
        yield started


@pytest.fixture
def confirmed(connect: Connect, pair: Pair) -> Things:
    """The service, whose writes the replica confirms."""
    return connect(pair.servers[0], DURABILITY={"replicas": 1, "timeout": 10})


@pytest.mark.parametrize("operation", ["add_each", "add_all", "add_each_once"])
async def test_a_write_is_at_the_replica_when_it_returns(
    call: Call, confirmed: Things, pair: Pair, operation: str
) -> None:
    for n in range(1, 20):
        await call(confirmed, "add", "a")
        await call(confirmed, operation, ["b", "c"])
        assert [int(pair.clients[1].get(confirmed.key(name))) for name in "ab"] == [n, n]


async def test_reads_and_waits_are_not_confirmed(call: Call, confirmed: Things, pair: Pair) -> None:
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
    call: Call, connect: Connect, pair: Pair, operation: str, subject: Any
) -> None:
    things = connect(pair.servers[0], DURABILITY={"replicas": 1, "timeout": SHORT})
    with frozen(pair.servers[1]), takes(SHORT, 5):
        with pytest.raises(OutcomeUnknown, match=r"0 of 1 replicas .* same request_id"):
            await call(things, operation, subject)
        assert pair.clients[0].get(things.key("a")) == (None if operation == "clear" else b"1")  # sent once


async def test_items_of_an_unconfirmed_call_are_errors(call: Call, connect: Connect, pair: Pair) -> None:
    things = connect(pair.servers[0], DURABILITY={"replicas": 2, "timeout": SHORT})
    with pytest.raises(OutcomeUnknown, match="1 of 2 replicas"):
        await call(things, "add_some", ["a", "b"])
    assert pair.clients[0].get(things.key("a")) == b"1"


@pytest.mark.parametrize("kind", ["TIMEOUT", "ERROR"])
async def test_a_confirmation_that_ends_early(call: Call, confirmed: Things, pair: Pair, kind: str) -> None:
    """As by a demotion: the call was applied, and is not repeated."""
    await call(confirmed, "get", "a")

    def unblock() -> None:
        until(lambda: blocked(pair.clients[0]))
        [client] = blocked(pair.clients[0])
        pair.clients[0].execute_command("CLIENT", "UNBLOCK", client["id"], kind)

    with frozen(pair.servers[1]), meanwhile(unblock), pytest.raises(OutcomeUnknown, match="was applied"):
        await call(confirmed, "add", "a", once=True)
    assert pair.clients[0].get(confirmed.key("a")) == b"1"


async def test_a_repeat_that_writes_nothing_is_confirmed_too(
    call: Call, connect: Connect, pair: Pair, server_of_valkey: Pair
) -> None:
    for servers in (pair, server_of_valkey):
        things = connect(servers.servers[0], DURABILITY={"replicas": 1, "timeout": SHORT})
        with frozen(servers.servers[1]):
            servers.clients[0].set("other", "not replicated")
            with pytest.raises(OutcomeUnknown):
                await call(things, "clear", "missing")


async def test_the_deadline_limits_the_confirmation(call: Call, confirmed: Things, pair: Pair) -> None:
    await call(confirmed, "add", "a")
    with frozen(pair.servers[0]), deadline(0.5), takes(0.4, 3), pytest.raises(OutcomeUnknown):
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
def test_a_bad_setting_is_a_clear_error(connect: Connect, pair: Pair, setting: Any) -> None:
    things = connect(pair.servers[0], DURABILITY=setting)
    with pytest.raises(ConfigurationError, match=r"DURABILITY.*\"replicas\""):
        things.get("a")


def test_without_the_setting_nothing_is_confirmed(connect: Connect, pair: Pair) -> None:
    assert conf.Settings().DURABILITY is None
    things = connect(pair.servers[0])
    before = pair.clients[0].info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"]
    things.add("a")
    things.add_each(["a", "b"])
    assert clients.blocking_client("messaging").endpoint.durability is None
    assert pair.clients[0].info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"] == before
