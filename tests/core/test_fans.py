"""Scripts for many resources that are sent once: replies and errors, call by call."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from django_redis_messaging import ConfigurationError, OutcomeUnknown, Unavailable
from django_redis_messaging.core.clients import Batch, Pipeline
from django_redis_messaging.core.operations import Fan
from django_redis_messaging.core.outcome import Attempts
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.conftest import Call
from tests.core.conftest import Connect
from tests.core.test_retry import SHORT, at_once
from tests.support.example_service import Things
from tests.support.proxy import LossyProxy

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

#: the resources of three calls
NAMES = [f"{at}" for at in range(2 * Fan.SIZE + 50)]
FIRST, SECOND, THIRD = NAMES[: Fan.SIZE], NAMES[Fan.SIZE : 2 * Fan.SIZE], NAMES[2 * Fan.SIZE :]
#: a resource of the second call, with half of the others before it
REFUSED = SECOND[50]


@pytest.fixture
def refuse(server: EmbeddedServer) -> Callable[..., None]:
    """Let `add_some` refuse a name with this text; for `ms`, else until the end of the test."""

    def store(things: Things, name: str, text: str, ms: int | None = None) -> None:
        with server.client() as admin:
            admin.set(things.refusal(name), text, px=ms)

    return store


Refuse = Callable[..., None]


def values(things: Things, names: list[str]) -> list[bytes | None]:
    found: list[bytes | None] = things.do("MGET", *map(things.key, names), reads=True)
    return found


async def test_calls_that_are_refused_for_now_are_repeated(
    call: Call, things: Things, refuse: Refuse
) -> None:
    refuse(things, SECOND[0], "TRYAGAIN for now", 200)
    assert await call(things, "add_some", NAMES) == [1] * len(NAMES)
    assert values(things, NAMES) == [b"1"] * len(NAMES)


async def test_calls_that_stay_refused_were_not_applied(
    call: Call, connect: Connect, server: EmbeddedServer, refuse: Refuse
) -> None:
    things = connect(server, COMMAND_DEADLINE=0.3)
    refuse(things, SECOND[0], "NOREPLICAS for ever")
    found = await call(things, "add_some", NAMES)
    assert found[: Fan.SIZE] == [1] * Fan.SIZE and found[2 * Fan.SIZE :] == [1] * len(THIRD)
    errors = found[Fan.SIZE : 2 * Fan.SIZE]
    assert {type(error) for error in errors} == {Unavailable}
    assert "for ever" in str(errors[0]) and "was not applied" in str(errors[0])
    assert values(things, SECOND) == [None] * Fan.SIZE
    assert values(things, FIRST + THIRD) == [b"1"] * (Fan.SIZE + len(THIRD))


async def test_a_call_that_failed_halfway_is_unknown(call: Call, things: Things, refuse: Refuse) -> None:
    refuse(things, REFUSED, "WRONGTYPE of this one")
    with at_once():
        found = await call(things, "add_some", NAMES)
    assert found[: Fan.SIZE] == [1] * Fan.SIZE and found[2 * Fan.SIZE :] == [1] * len(THIRD)
    assert {type(error) for error in found[Fan.SIZE : 2 * Fan.SIZE]} == {OutcomeUnknown}
    assert "refused a part (WRONGTYPE of this one)" in str(found[Fan.SIZE])
    assert values(things, SECOND) == [b"1"] * 50 + [None] * 50


async def test_memory_is_refused_before_the_first_write(call: Call, things: Things, refuse: Refuse) -> None:
    refuse(things, SECOND[0], "OOM command not allowed")
    found = await call(things, "add_some", NAMES)
    assert {type(error) for error in found[Fan.SIZE : 2 * Fan.SIZE]} == {Unavailable}


async def test_a_call_for_one_resource_was_not_applied(
    call: Call, connect: Connect, cluster_server: EmbeddedServer
) -> None:
    things = connect(cluster_server)
    things.do("SET", things.refusal("b"), "WRONGTYPE of this one")
    first, second, third = await call(things, "add_some", ["a", "b", "c"])
    assert (first, third, type(second)) == (1, 1, ConfigurationError)


async def test_a_lost_reply_leaves_the_others(
    call: Call, connect: Connect, proxy: LossyProxy, refuse: Refuse
) -> None:
    things = connect(proxy)
    for _ in range(
        2
    ):  # load the script with the missing key, then, once the kind of server is detected, without it
        await call(things, "add_some", ["known"])
    refuse(things, SECOND[0], "TRYAGAIN for now", 200)
    proxy.lose_one_after(1)  # that to the repeat of the second call
    with at_once():
        found = await call(things, "add_some", NAMES)
    assert proxy.lost == 1
    assert found[: Fan.SIZE] == [1] * Fan.SIZE and found[2 * Fan.SIZE :] == [1] * len(THIRD)
    assert {type(error) for error in found[Fan.SIZE : 2 * Fan.SIZE]} == {OutcomeUnknown}
    assert values(things, FIRST + THIRD) == [b"1"] * (Fan.SIZE + len(THIRD))


def test_calls_that_were_not_sent_were_not_applied(things: Things) -> None:
    resources = [([things.key(name)], []) for name in "abc"]
    batch = Batch(Fan("thing_add_all", resources, [1], once=True), split=True)
    attempts = Attempts(SHORT, began=time.monotonic(), reply_timeout=SHORT, writes=True, once=True)
    assert batch.partial_result(attempts.error_of) is None
    batch.record(Pipeline(None, [0]), [[1]])
    batch.mark_sent(Pipeline(None, [1]))
    first, second, third = batch.partial_result(attempts.error_of) or []
    assert (first, type(second), type(third)) == (1, OutcomeUnknown, Unavailable)
    assert "did not reply" in str(second) and "was not applied" in str(third)


async def test_a_script_that_may_be_repeated_raises(call: Call, things: Things, refuse: Refuse) -> None:
    refuse(things, SECOND[0], "OOM command not allowed")
    with pytest.raises(OutcomeUnknown, match="refused a part"):
        await call(things, "add_some", NAMES, once=False)
    assert values(things, FIRST) == [b"1"] * Fan.SIZE


@pytest.mark.parametrize("text", ["NOREPLICAS for ever", "WRONGTYPE of this one"])
async def test_an_error_of_all_calls_is_raised(
    text: str, call: Call, connect: Connect, server: EmbeddedServer, refuse: Refuse
) -> None:
    things = connect(server, COMMAND_DEADLINE=0.3)
    for page in (FIRST, SECOND, THIRD):
        refuse(things, page[0], text)
    with pytest.raises((Unavailable, ConfigurationError)):
        await call(things, "add_some", NAMES)
    assert values(things, NAMES) == [None] * len(NAMES)


async def test_the_split_for_a_cluster_repeats_no_answered_call(
    call: Call, connect: Connect, cluster_server: EmbeddedServer
) -> None:
    """The last page has one resource, so the server answers it before the first page shows the kind."""
    names = NAMES[: Fan.SIZE + 1]
    things = connect(cluster_server)
    assert await call(things, "add_some", names) == [1] * len(names)
