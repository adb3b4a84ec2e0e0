"""A Redis Cluster of several primaries: routing, while slots move and primaries die."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from redis import exceptions as driver

from django_redis_messaging import Chat, DelayQueue, Inbox, OutcomeUnknown, Unavailable, deadline, forget
from django_redis_messaging.core import pool
from django_redis_messaging.core.commands import Clock, Command
from django_redis_messaging.core.connection import Address, AsyncConnection, BlockingConnection
from django_redis_messaging.core.outcome import NotSent
from django_redis_messaging.core.topology import Cluster as ClusterRouter
from django_redis_messaging.core.topology import (
    Reading,
    Router,
    Sentinel,
    SingleServer,
    Unknown,
    endpoint,
    parse_slots,
    resolve,
)
from django_redis_messaging.devserver.server import free_port
from django_redis_messaging.management.commands import messaging_stats
from tests.conftest import Call
from tests.core.conftest import Connect, blocked, frozen, meanwhile, takes
from tests.support.clusters import Cluster, mates, slot, until
from tests.support.example_service import Things
from tests.support.services import Shared, Spread
from tests.support.traffic import Traffic

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

#: of things of all primaries, several of each
NAMES = [f"{at}" for at in range(30)]
#: ms; a killed node counts as dead after this time
DEAD = 1000


@pytest.fixture
def things(connect: Connect, cluster: Cluster) -> Things:
    return connect(cluster.url(0))


def stored(cluster: Cluster, things: Things, names: list[str] = NAMES) -> list[int]:
    """The values at the nodes, each read from its owner."""
    return [int(cluster.clients[cluster.owner(slot(name))].get(things.key(name)) or 0) for name in names]


def calls(cluster: Cluster, command: str) -> int:
    """How often the nodes were sent a command."""
    return cluster.total("commandstats", f"cmdstat_{command}", "calls")


def flush_scripts(cluster: Cluster) -> None:
    for at in cluster.primaries():
        cluster.clients[at].script_flush()


def move(cluster: Cluster, *names: str) -> None:
    """Move the slots of things to other nodes."""
    for name in names:
        cluster.migrate(slot(name), cluster.another(slot(name)))


class TestRouting:
    @pytest.mark.parametrize("named", [0, 1, 2])
    async def test_any_node_may_be_named(
        self, call: Call, connect: Connect, cluster: Cluster, named: int
    ) -> None:
        """The first call reads the topology, once, and goes to the owner, as all others."""
        things = connect(cluster.url(named))
        reads, redirects = calls(cluster, "cluster|slots"), cluster.redirects
        assert await call(things, "add_each", NAMES) == [1] * 30
        assert cluster.owners(NAMES) == {0, 1, 2}
        assert [await call(things, "add", name, at) for at, name in enumerate(NAMES)] == list(range(1, 31))
        assert [await call(things, "get", name) for name in NAMES] == [b"%d" % at for at in range(1, 31)]
        assert await call(things, "add_all", NAMES, 0) == list(range(1, 60, 2))
        assert stored(cluster, things) == list(range(1, 60, 2))
        await call(things, "do", "EXISTS", things.key("a"))
        assert await call(things, "take", "empty", 0.01) is None
        assert (calls(cluster, "cluster|slots"), cluster.redirects) == (reads + 1, redirects)

    async def test_a_step_with_several_slots_may_come_first(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        assert await call(things, "add_all", NAMES) == [1 + at for at in range(30)]
        assert stored(cluster, things) == [1 + at for at in range(30)]

    async def test_an_unreachable_node_may_be_named_first(
        self, call: Call, connect: Connect, cluster: Cluster
    ) -> None:
        things = connect(f"redis://127.0.0.1:{free_port()}?db=0,{cluster.url(1)}")
        assert [await call(things, "add", name) for name in NAMES] == [1] * 30

    async def test_the_drivers_own_client_may_be_the_alias(
        self, call: Call, connect: Connect, cluster: Cluster
    ) -> None:
        own = {"CONNECTION_FACTORY": "django_redis_messaging.cluster.ClusterConnectionFactory"}
        things = connect(cluster.url(1), more=own)
        assert [await call(things, "add", name) for name in NAMES] == [1] * 30
        assert [await call(things, "get", name) for name in NAMES] == [b"1"] * 30
        assert await call(things, "add_each", NAMES) == [2] * 30
        assert stored(cluster, things) == [2] * 30


ONE, OTHER = ("10.0.0.1", 7000), ("10.0.0.2", 7000)
#: the slots of two primaries
HALVES = [[0, 8191, [b"10.0.0.1", 7000, b"a"]], [8192, 16383, [b"10.0.0.2", 7000, b"b"]]]
#: in the upper half of the slots
CALL = Command("GET", "a")


def router() -> ClusterRouter:
    topology = parse_slots(HALVES, node=None)
    assert topology is not None
    return ClusterRouter(topology)


def moved(to: Address) -> driver.MovedError:
    return driver.MovedError(f"15495 {to[0]}:{to[1]}")


class TestRouters:
    """What routers learn from replies, and which errors make them ask again. Nothing is sent."""

    @pytest.mark.parametrize(
        ("reply", "kind", "may_be_cluster"),
        [
            (driver.ResponseError("This instance has cluster support disabled"), SingleServer, False),
            (HALVES, ClusterRouter, True),
            ([], ClusterRouter, True),  # a node without a slot
            (driver.NoPermissionError("this user has no permissions"), Router, True),
            (driver.ResponseError("unknown command 'CLUSTER'"), Router, True),  # a proxy
        ],
    )
    def test_the_first_reply_tells_the_kind_of_the_server(
        self, reply: Any, kind: type[Router], may_be_cluster: bool
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
    def test_a_reply_that_tells_nothing_is_raised(self, reply: Exception) -> None:
        with pytest.raises(type(reply)):
            Unknown().detect(reply, ONE)

    def test_calls_and_clocks_go_to_the_owner_of_a_key(self) -> None:
        assert router().address(CALL) == OTHER
        assert router().addresses == {ONE, OTHER}
        assert router().address(Command("PING")) is None
        assert [router().address(Clock(key)) for key in ("a", "b")] == [OTHER, ONE]
        assert Clock("a").words == ("TIME",)
        assert Clock.milliseconds([b"1790000000", b"001999"]) == 1_790_000_000_001

    @pytest.mark.parametrize("router", [Unknown(), Router(), SingleServer(), router()])
    def test_a_redirect_names_the_owner_of_a_slot(self, router: Router) -> None:
        assert router.is_outdated(moved(ONE))
        found = router.redirected(moved(ONE))
        assert (found.address(CALL), found.splits) == (ONE, True)

    @pytest.mark.parametrize(
        "error", [NotSent(), driver.TimeoutError(), driver.ReadOnlyError("READONLY replica")]
    )
    def test_only_a_cluster_may_have_changed_after_an_outage(self, error: Exception) -> None:
        assert router().is_outdated(error)
        assert Unknown().is_outdated(error)  # another node that the alias names may reply
        assert not SingleServer().is_outdated(error)
        assert not Sentinel("primary").is_outdated(error)  # asked before each new connection
        assert not router().is_outdated(driver.ResponseError("WRONGTYPE"))

    def test_a_reply_without_an_owner_changes_nothing(self) -> None:
        assert router().learn([], ONE) is None
        found = router().learn(HALVES[:1], ONE)
        assert found is not None and found.addresses == {ONE}

    @pytest.mark.parametrize("host", [None, b"", "", b"?", "?"])
    def test_a_node_without_a_known_host_is_the_one_that_replied(self, host: bytes | str | None) -> None:
        assert resolve(host, 7001, node=("10.0.0.1", 7000)) == ("10.0.0.1", 7001)
        assert resolve(host, 7001, node=None) is None

    def test_a_new_owner_makes_a_new_topology(self) -> None:
        """Calls that are in progress compare the topology that they have used with the present one."""
        known = parse_slots([[0, 16383, [b"10.0.0.1", 7000]]], node=None)
        assert known is not None
        changed = known.with_owner(slot("a"), OTHER)
        assert (known.address("{thing:a}"), changed.address("{thing:a}")) == (ONE, OTHER)
        assert (known.addresses, len(changed.addresses)) == ({ONE}, 2)


class TestPipelines:
    async def test_replies_are_in_order_and_each_call_is_applied_once(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        for at, name in enumerate(NAMES):
            await call(things, "add", name, at)
        assert await call(things, "add_each", NAMES) == list(range(1, 31))
        assert await call(things, "add_each_once", NAMES) == list(range(2, 32))
        flush_scripts(cluster)
        assert await call(things, "add_all", NAMES, 10) == [12 + 2 * at for at in range(30)]
        assert stored(cluster, things) == [12 + 2 * at for at in range(30)]
        names = ["A", "B", "C", "A", "B", "A"]
        assert await call(things, "add_each", names) == [1, 1, 1, 2, 2, 3]
        assert await call(things, "add_each", []) == await call(things, "add_all", []) == []

    @pytest.mark.parametrize("at", [0, 1, 2])
    async def test_a_server_that_does_not_reply_holds_up_no_other(
        self, call: Call, connect: Connect, cluster: Cluster, at: int
    ) -> None:
        """Nor are the calls to the others repeated."""
        things = connect(cluster.url(0), {"socket_timeout": 0.2}, COMMAND_DEADLINE=0.6)
        await call(things, "add_each", NAMES)
        owners = {name: cluster.owner(slot(name)) for name in NAMES}
        with frozen(cluster.servers[at]):
            with pytest.raises(OutcomeUnknown):
                await call(things, "add_each", NAMES)
            others = {name: cluster.clients[owner] for name, owner in owners.items() if owner != at}
            assert {int(client.get(things.key(name))) for name, client in others.items()} == {2}
        until(lambda: cluster.clients[at].ping())

    def test_a_few_connections_are_enough(self, connect: Connect, cluster: Cluster) -> None:
        """Operations don't wait for connections that they hold themselves, and a free one wakes a caller that
        waits for its server."""
        things = connect(cluster.url(0), {"max_connections": 1})
        with takes(0, 10), ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(things.add_each, [NAMES] * 100))
        assert sorted(reply[0] for reply in replies) == list(range(1, 101))

    async def test_waits_at_a_silent_server_hold_up_no_call_to_another(
        self, call: Call, things: Things, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await call(things, "add_each", NAMES)
        owners = {name: cluster.owner(slot(name)) for name in NAMES}
        silent = [name for name, owner in owners.items() if owner == 0][:4]
        [other, *_] = [name for name, owner in owners.items() if owner == 1]
        for name in silent:
            await call(things, "take", *mates(name), 0.01)
        with frozen(cluster.servers[0]):
            monkeypatch.setattr(pool, "ENDED", 0.1)
            await asyncio.sleep(0.1)  # now the server should have ended these waits
            with takes(0, 0.8):
                assert await call(things, "take", *mates(other), 0.01) is None
                assert await call(things, "add", other) == 2
        until(lambda: cluster.clients[0].ping())


class TestMoved:
    async def test_calls_go_to_the_new_owner(self, call: Call, things: Things, cluster: Cluster) -> None:
        assert await call(things, "add", "a") == 1
        move(cluster, "a")
        before = cluster.redirects
        for n in range(2, 6):
            assert await call(things, "add", "a", once=True) == n
            assert await call(things, "get", "a") == b"%d" % n
        assert cluster.redirects - before == 1
        assert stored(cluster, things, ["a"]) == [5]

    @pytest.mark.parametrize("operation", ["add_each", "add_each_once"])
    async def test_only_the_rejected_calls_of_a_pipeline_are_repeated(
        self, call: Call, things: Things, cluster: Cluster, operation: str
    ) -> None:
        """Also at nodes without the script."""
        assert await call(things, operation, NAMES) == [1] * 30
        move(cluster, *NAMES[::3])
        before = cluster.redirects
        assert await call(things, operation, NAMES) == [2] * 30
        assert cluster.redirects - before == len(NAMES[::3])
        move(cluster, *NAMES[::6])
        flush_scripts(cluster)
        assert await call(things, operation, NAMES) == [3] * 30
        assert stored(cluster, things) == [3] * 30

    async def test_calls_in_flight_share_one_reading_of_the_topology(
        self, call_style: str, things: Things, cluster: Cluster
    ) -> None:
        number = 30

        async def call_all() -> None:
            if call_style == "awaiting":
                await asyncio.gather(*(things.aadd("a") for _ in range(number)))
                return
            meeting = threading.Barrier(number)
            with ThreadPoolExecutor(number) as threads:
                list(threads.map(lambda _: (meeting.wait(30), things.add("a")), range(number)))

        await call_all()
        move(cluster, "a")
        before = calls(cluster, "cluster|slots")
        await call_all()
        # a thread may begin its call after the first ones have read the topology; then it needs none
        assert calls(cluster, "cluster|slots") - before == 1
        assert things.get("a") == b"%d" % (2 * number)

    async def test_the_next_caller_reads_after_an_interrupted_reading(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        await call(things, "add", "a")
        reads = endpoint("messaging").readings
        interrupted = reads.setdefault(os.getpid(), Reading())
        interrupted.thread = 0  # another one
        move(cluster, "a")
        with deadline(0.3), suppress(Unavailable):
            await call(things, "add", "a")
        before = cluster.redirects
        await call(things, "add", "a")
        await call(things, "add", "a")
        assert not reads
        assert cluster.redirects - before <= 1

    def test_a_signal_handler_does_not_wait_for_the_reading_that_it_interrupts(
        self, things: Things, cluster: Cluster
    ) -> None:
        things.add("a")
        endpoint("messaging").readings[os.getpid()] = Reading()  # of this thread
        move(cluster, "a")
        with takes(0, 3):
            assert things.add("a") == 2

    @pytest.mark.long
    async def test_moved_to_a_node_that_joined_later(self, call: Call, connect: Connect) -> None:
        with Cluster(2, later=1) as growing:
            things = connect(growing.url(0))
            assert await call(things, "add_each", NAMES) == [1] * 30
            newcomer = growing.join()
            for name in NAMES[::2]:
                growing.migrate(slot(name), newcomer)
            assert await call(things, "add_each", NAMES) == [2] * 30
            before = growing.redirects
            assert [await call(things, "add", name) for name in NAMES] == [3] * 30
            assert growing.redirects == before
            assert growing.owners(NAMES[::2]) == {newcomer}
            assert stored(growing, things) == [3] * 30


class TestWaits:
    async def test_waits_on_all_nodes(self, call: Call, things: Things, cluster: Cluster) -> None:
        for name in NAMES:
            cluster.clients[cluster.owner(slot(name))].zadd(things.key(name), {name: 0})
        assert [await call(things, "take", name, 10) for name in NAMES] == [name.encode() for name in NAMES]
        for name in NAMES[:5]:
            with takes(0.05, 5):
                assert await call(things, "take", name, 0.05) is None

    async def test_a_wait_whose_slot_moves(self, call: Call, things: Things, cluster: Cluster) -> None:
        source, target = cluster.owner(slot("a")), cluster.another(slot("a"))
        former, owner = cluster.clients[source], cluster.clients[target]

        def move_and_push() -> None:
            until(lambda: blocked(former))
            cluster.migrate(slot("a"), target)
            until(lambda: blocked(owner))
            owner.zadd(things.key("a"), {"x": 0})

        until(lambda: not blocked(former) and not blocked(owner))
        with meanwhile(move_and_push), takes(0, 10):
            assert await call(things, "take", "a", 20) == b"x"
        assert await call(things, "take", "a", 0.01) is None
        cluster.migrate(slot("a"), source)  # while the wait is pending
        former.zadd(things.key("a"), {"y": 0})
        with takes(0, 10):
            assert await call(things, "take", "a", 20) == b"y"

    async def test_a_wait_whose_slot_is_migrating(self, call: Call, things: Things, cluster: Cluster) -> None:
        """It waits at the importing node: a hint that is pushed meanwhile arrives there."""
        target = cluster.another(slot("a"))

        def push() -> None:
            until(lambda: blocked(cluster.clients[target]) > before)
            things.do("ZADD", things.key("a"), 0, "x")

        with cluster.half_migrated(slot("a"), target):
            with takes(0.2, 2):
                assert await call(things, "take", *mates("a"), 0.2) is None
            before = blocked(cluster.clients[target])
            with meanwhile(push), takes(0, 10):
                assert await call(things, "take", "a", 20) == b"x"


class TestHalfMoved:
    """While a slot migrates, the old owner has some of its keys, and the new owner the others."""

    async def test_missing_keys_are_read_at_the_importing_node(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        (name,) = mates("a")
        key, other = things.key("a"), things.key(name)
        await call(things, "add_each", NAMES)
        await call(things, "do", "SET", other, 5)
        target = cluster.another(slot("a"))
        with cluster.half_migrated(slot("a"), target, [other]):
            assert await call(things, "do", "GET", key, reads=True) is None
            assert await call(things, "do", "INCR", key) == 1
            assert await call(things, "do", "GET", other, reads=True) == b"5"
            assert await call(things, "do", "INCRBY", other, 2) == 7
            assert on_its_way(cluster, target, key) == b"1"
        assert stored(cluster, things, ["a", name]) == [1, 7]

    async def test_keys_not_yet_migrated_are_used_at_their_node(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        """The importing node would reject a call without ASKING."""
        await call(things, "add_each", [*NAMES, "a"])
        source, target = cluster.owner(slot("a")), cluster.another(slot("a"))
        before = cluster.redirects
        with cluster.half_migrated(slot("a"), target):
            for n in range(2, 6):
                assert await call(things, "do", "INCR", things.key("a")) == n
            assert cluster.clients[source].get(things.key("a")) == b"5"
        assert cluster.redirects == before

    @pytest.mark.parametrize("is_detected", [True, False])
    async def test_a_script_is_not_aborted_halfway(
        self, call: Call, connect: Connect, cluster: Cluster, *, is_detected: bool
    ) -> None:
        """It waits until the slot has moved: all of its keys exist, but it removes them."""
        things = connect(cluster.url(cluster.owner(slot("a"))))
        await call(things, "add_each", [*NAMES, "a"] if is_detected else ["a"])
        with refused_until_moved(cluster, "a"):
            assert await call(things, "renew", "a", 5) == 1
        assert stored(cluster, things, ["a"]) == [5]

    @pytest.mark.parametrize("operation", ["add_each", "add_each_once"])
    @pytest.mark.parametrize("knows_scripts", [True, False])
    async def test_a_pipeline(
        self, call: Call, things: Things, cluster: Cluster, operation: str, *, knows_scripts: bool
    ) -> None:
        """Its calls to the other nodes are applied once."""
        names = [*NAMES, *mates(NAMES[0], 3)]
        await call(things, operation, names[:-1])
        with refused_until_moved(cluster, NAMES[0], things.key(names[0]), things.key(names[-2])):
            if not knows_scripts:
                flush_scripts(cluster)
            assert await call(things, operation, names) == [2] * (len(names) - 1) + [1]
        assert stored(cluster, things, names) == [2] * (len(names) - 1) + [1]

    async def test_keys_on_both_nodes_are_retried_until_they_are_on_one(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        keys = [things.key(name) for name in ("a", *mates("a"))]
        await call(things, "do", "MSET", keys[0], 1, keys[1], 2)
        with refused_until_moved(cluster, "a", keys[0]):
            assert await call(things, "do", "MGET", *keys, reads=True) == [b"1", b"2"]


@contextmanager
def refused_until_moved(cluster: Cluster, name: str, *keys: str) -> Iterator[None]:
    """The slot of a thing is on its way to another node, where these keys are already, until somebody has
    been refused by TRYAGAIN."""
    moving = cluster.half_migrated(slot(name), cluster.another(slot(name)), keys)
    moving.__enter__()
    before = cluster.refusals

    def finish() -> None:
        try:
            until(lambda: cluster.refusals > before)
        finally:
            moving.__exit__(None, None, None)

    with meanwhile(finish):
        yield


def on_its_way(cluster: Cluster, at: int, key: str) -> Any:
    """The keys of a migrating slot that the importing node has."""
    with cluster.clients[at].pipeline(transaction=False) as pipeline:
        pipeline.execute_command("ASKING")
        pipeline.get(key)
        return pipeline.execute()[1]


class Counters(Shared):
    """Additions by every kind of step; each of them to several counters."""

    def __init__(self, spread: Spread) -> None:
        super().__init__(spread)
        self.chance = random.Random(0)
        self.added: Counter[str] = Counter()
        self._lock = threading.Lock()

    @staticmethod
    def key(name: str) -> str:
        return Things().key(name)

    async def produce(self, call: Call, name: str, item: str) -> None:
        operation = self.chance.choice(["add", "add_each", "add_each_once", "add_all"])
        some = self.chance.sample(self.names, len(self.names))
        await self.insist(name, lambda: call(Things(), operation, name if operation == "add" else some))
        added = dict.fromkeys([name] if operation == "add" else some, 1)
        if operation == "add_all":
            added = {one: at for at, one in enumerate(some, 1)}
        with self._lock:
            self.added.update(added)


class TestUnderLoad:
    """No addition is lost or doubled."""

    @pytest.mark.parametrize("happens", ["moves", pytest.param("failovers", marks=pytest.mark.long)])
    def test_additions(self, things: Things, cluster: Cluster, happens: str) -> None:
        traffic = Traffic(lambda key: NAMES[:8], [Counters])
        [counters] = traffic.services
        redirects = cluster.redirects
        with traffic.running():
            for name in NAMES[:8] if happens == "moves" else ():
                for _ in range(3):
                    with cluster.half_migrated(slot(name), cluster.another(slot(name)), [things.key(name)]):
                        pass
            for at in cluster.primaries()[:2] if happens == "failovers" else ():
                cluster.fail_over(at)
            since = time.monotonic()
            traffic.until(lambda: traffic.each_has(5, since))
        assert not counters.errors
        assert stored(cluster, things, counters.names) == [counters.added[name] for name in counters.names]
        assert cluster.redirects > redirects


class TestKilled:
    """Calls continue with the promoted replica."""

    @pytest.fixture(autouse=True)
    def timeout(self, cluster: Cluster) -> None:
        cluster.set_timeout(DEAD)

    @pytest.mark.parametrize("itself", [True, pytest.param(False, marks=pytest.mark.long)])
    async def test_calls(self, call: Call, connect: Connect, cluster: Cluster, *, itself: bool) -> None:
        """Also if LOCATION names the killed node."""
        victim, other = cluster.primaries()[:2]
        things = connect(cluster.url(victim if itself else other))
        assert await call(things, "add_each", NAMES) == [1] * 30
        assert await call(things, "get", NAMES[0]) == b"1"
        names = [name for name in NAMES if cluster.owner(slot(name)) == victim]
        with cluster.killed(victim) as replica:
            with takes(0, 10):
                assert await call(things, "add", names[0], once=True) == 2
            with takes(0, 2):
                assert await call(things, "add_each", NAMES) == [2 + (one == names[0]) for one in NAMES]
                assert await call(things, "add_each_once", names[1:]) == [3] * len(names[1:])
                assert [await call(things, "get", name) for name in names] == [b"3"] * len(names)
            assert cluster.owners(names) == {replica}
            before = cluster.redirects
            await call(things, "add_each", NAMES)
            assert cluster.redirects == before

    @pytest.mark.long
    async def test_a_pipeline(self, call: Call, things: Things, cluster: Cluster) -> None:
        """Calls that the other nodes answered are not repeated."""
        assert await call(things, "add_each_once", NAMES) == [1] * 30
        with cluster.killed(0), takes(0, 10):
            assert await call(things, "add_each_once", NAMES) == [2] * 30

    @pytest.mark.long
    async def test_a_wait(self, call: Call, things: Things, cluster: Cluster) -> None:
        await call(things, "add_each", NAMES)
        name = next(name for name in map("list-{}".format, range(100)) if cluster.owner(slot(name)) == 0)
        with cluster.killed(0) as replica:
            cluster.took_over(replica)
            cluster.clients[replica].zadd(things.key(name), {"x": 0})
            with takes(0, 10):
                assert await call(things, "take", name, 20) == b"x"


class TestServices:
    """Operations on resources of all primaries: one pipeline for each of them in a round trip."""

    @pytest.fixture
    def sent(self, things: Things, monkeypatch: pytest.MonkeyPatch) -> list[Address | None]:
        """The server of each exchange from now on."""
        found: list[Address | None] = []
        for kind in (BlockingConnection, AsyncConnection):
            for method in ("exchange", "send"):
                original = getattr(kind, method)

                def record(self: Any, *arguments: Any, original: Any = original) -> Any:
                    if sys._getframe(1).f_code.co_name != "exchange":  # it calls `send`
                        found.append(self.address)
                    return original(self, *arguments)

                monkeypatch.setattr(kind, method, record)
        return found

    async def test_round_trips(self, call: Call, sent: list[Address | None], cluster: Cluster) -> None:
        inbox, primaries = Inbox("bob"), len(cluster.primaries())
        for name in NAMES:
            Chat.create("ann", ["bob"], "Hello!", chat_id=name)
        [page] = {len(await call(inbox, form)) for form in ("pending", "chats")}
        assert (page, await call(inbox, "unread")) == (len(NAMES), len(NAMES))

        async def exchanges(subject: Any, name: str, *arguments: Any) -> int:
            sent.clear()
            await call(subject, name, *arguments)
            return len(sent)

        # the index with the newest keys of all chats, and those that have news, which unread reads ahead
        for form, steps in (("chats", 2), ("pending", 2), ("unread", 1)):
            assert await exchanges(Inbox("bob"), form) == steps * primaries

    def test_forgetting(self, sent: list[Address | None], cluster: Cluster) -> None:
        chats = [Chat.create("ann", [], chat_id=name) for name in NAMES]
        for _ in range(2):  # after the first time, every server has the scripts
            for chat in chats:
                chat.add(["bob"], by="ann")
            sent.clear()
            forget("bob")
        assert len(sent) == 8 + len(cluster.primaries())
        assert Inbox("bob").chats() == []

    def test_statistics(self, sent: list[Address | None], cluster: Cluster) -> None:
        for name in NAMES:
            DelayQueue(name).push("job")
        messaging_stats.all_rows()  # every server has the scripts
        sent.clear()
        rows = messaging_stats.all_rows()
        assert [row["ready"] for queue, row in rows if queue.kind == "delay"] == [1] * len(NAMES)
        assert len(sent) == 1 + len(cluster.primaries())
