"""What routers learn from replies, and which errors make them ask again. Nothing is sent."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions as driver

from django_redis_messaging.core.commands import Clock, Command
from django_redis_messaging.core.connection import Address
from django_redis_messaging.core.outcome import NotSent
from django_redis_messaging.core.topology import Cluster, Router, Sentinel, SingleServer, Unknown, parse_slots

ONE, OTHER = ("10.0.0.1", 7000), ("10.0.0.2", 7000)
#: the slots of two primaries
SLOTS = [[0, 8191, [b"10.0.0.1", 7000, b"a"]], [8192, 16383, [b"10.0.0.2", 7000, b"b"]]]
ALONE = driver.ResponseError("This instance has cluster support disabled")
#: in the upper half of the slots
CALL = Command("GET", "a")


def cluster(slots: list[list[Any]] = SLOTS) -> Cluster:
    topology = parse_slots(slots, node=None)
    assert topology is not None
    return Cluster(topology)


def moved(to: Address) -> driver.MovedError:
    return driver.MovedError(f"15495 {to[0]}:{to[1]}")


@pytest.mark.parametrize(
    ("reply", "kind", "may_be_cluster"),
    [
        (ALONE, SingleServer, False),
        (SLOTS, Cluster, True),
        ([], Cluster, True),  # a node without a slot
        (driver.NoPermissionError("this user has no permissions"), Router, True),
        (driver.ResponseError("unknown command 'CLUSTER'"), Router, True),  # a proxy
    ],
)
def test_the_first_reply_tells_the_kind_of_the_server(
    reply: Any, kind: type[Router], may_be_cluster: bool
) -> None:
    router = Unknown().detect(reply, ONE)
    assert (type(router), router.may_be_cluster, router.is_known) == (kind, may_be_cluster, True)


@pytest.mark.parametrize(
    "reply",
    [
        driver.BusyLoadingError("loading the dataset"),
        driver.AuthenticationError("no password"),
        driver.ResponseError("BUSY running a script"),
    ],
)
def test_a_reply_that_tells_nothing_is_raised(reply: Exception) -> None:
    with pytest.raises(type(reply)):
        Unknown().detect(reply, ONE)


def test_a_call_goes_to_the_owner_of_its_key() -> None:
    assert cluster().address(CALL) == OTHER
    assert cluster().addresses == {ONE, OTHER}
    assert cluster().address(Command("PING")) is None


def test_a_clock_is_that_of_the_owner_of_a_key() -> None:
    assert [cluster().address(Clock(key)) for key in ("a", "b")] == [OTHER, ONE]
    assert Clock("a").words == ("TIME",)
    assert Clock.milliseconds([b"1790000000", b"001999"]) == 1_790_000_000_001


@pytest.mark.parametrize("router", [Unknown(), Router(), SingleServer(), cluster()])
def test_a_redirect_names_the_owner_of_a_slot(router: Router) -> None:
    assert router.is_outdated(moved(ONE))
    found = router.redirected(moved(ONE))
    assert (found.address(CALL), found.splits) == (ONE, True)


@pytest.mark.parametrize(
    "error", [NotSent(), driver.TimeoutError(), driver.ReadOnlyError("READONLY replica")]
)
def test_only_a_cluster_may_have_changed_after_an_outage(error: Exception) -> None:
    assert cluster().is_outdated(error)
    assert Unknown().is_outdated(error)  # another node that the alias names may reply
    assert not SingleServer().is_outdated(error)
    assert not Sentinel("primary").is_outdated(error)  # asked before each new connection
    assert not cluster().is_outdated(driver.ResponseError("WRONGTYPE"))


def test_a_reply_without_an_owner_changes_nothing() -> None:
    assert cluster().learn([], ONE) is None
    found = cluster().learn(SLOTS[:1], ONE)
    assert found is not None and found.addresses == {ONE}
