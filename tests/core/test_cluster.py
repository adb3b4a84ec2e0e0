"""A Redis Cluster of several primaries: routing, while slots move and primaries die."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from django_redis_messaging import Chat, DelayQueue, Inbox, deadline, forget
from django_redis_messaging.core import clients, pool
from django_redis_messaging.core.connection import Address, AsyncConnection, BlockingConnection
from django_redis_messaging.core.topology import Reading, endpoint, parse_slots, resolve
from django_redis_messaging.devserver.server import free_port
from django_redis_messaging.errors import OutcomeUnknown, Unavailable
from django_redis_messaging.management.commands import messaging_stats
from tests.conftest import Call
from tests.core.conftest import Connect
from tests.core.test_retry import frozen, takes
from tests.support.clusters import Cluster, mates, slot, until
from tests.support.example_service import Things

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

#: of things of all primaries, several of each
NAMES = [f"{at}" for at in range(30)]


@pytest.fixture(scope="session")
def sturdy() -> Iterator[Cluster]:
    """Three primaries, each with a replica; tests kill nodes and restart them."""
    with Cluster(replicas=True) as started:
        yield started


@pytest.fixture(params=[0, 1, 2])
def named(request: pytest.FixtureRequest) -> int:
    """The node that LOCATION names."""
    return int(request.param)


@pytest.fixture
def things(connect: Connect, cluster: Cluster) -> Things:
    return connect(cluster.url(0))


def stored(cluster: Cluster, things: Things, names: list[str] = NAMES) -> list[int]:
    """The values at the nodes, each read from its owner."""
    return [int(cluster.clients[cluster.owner(slot(name))].get(things.key(name)) or 0) for name in names]


def asked(cluster: Cluster) -> int:
    """How often the nodes were called with a script that they have."""
    return cluster.total("commandstats", "cmdstat_evalsha", "calls")


def flush_scripts(cluster: Cluster) -> None:
    for at in cluster.primaries():
        cluster.clients[at].script_flush()


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Runs a function in a thread; its error is raised at the end."""
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        yield
        working.result()


class TestRouting:
    async def test_any_node_may_be_named(
        self, call: Call, connect: Connect, cluster: Cluster, named: int
    ) -> None:
        things = connect(cluster.url(named))
        assert cluster.owners(NAMES) == {0, 1, 2}
        assert [await call(things, "add", name, at) for at, name in enumerate(NAMES)] == list(range(30))
        assert [await call(things, "get", name) for name in NAMES] == [b"%d" % at for at in range(30)]
        assert stored(cluster, things) == list(range(30))

    async def test_calls_go_to_the_owner_of_the_slot(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        before = cluster.redirects
        for name in NAMES:
            await call(things, "add", name)
            await call(things, "get", name)
        assert cluster.redirects - before <= 1  # that node returned the topology
        before = cluster.redirects
        were_asked = asked(cluster)
        for name in NAMES:
            await call(things, "add", name)
            await call(things, "get", name)
        await call(things, "add_each", NAMES)
        assert asked(cluster) - were_asked == 3 * len(NAMES)
        await call(things, "add_all", NAMES)
        await call(things, "do", "EXISTS", things.key("a"))
        await call(things, "take", "empty", 0.01)
        assert cluster.redirects == before

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

    async def test_the_topology_is_read_once(
        self, call: Call, connect: Connect, cluster: Cluster, named: int
    ) -> None:
        things = connect(cluster.url(named))
        await call(things, "add", "a")  # opens the first connection
        before, redirects = cluster.total("commandstats", "cmdstat_cluster|slots", "calls"), cluster.redirects
        for name in NAMES:
            await call(things, "add", name)
        await call(things, "add_each", NAMES)
        assert cluster.total("commandstats", "cmdstat_cluster|slots", "calls") == before
        assert cluster.redirects == redirects

    async def test_the_first_call_goes_to_the_owner(
        self, call: Call, connect: Connect, cluster: Cluster, named: int
    ) -> None:
        things = connect(cluster.url(named))
        before, redirects = cluster.total("commandstats", "cmdstat_cluster|slots", "calls"), cluster.redirects
        await call(things, "add_each", NAMES)
        assert cluster.total("commandstats", "cmdstat_cluster|slots", "calls") == before + 1
        assert cluster.redirects == redirects

    async def test_the_drivers_own_client_may_be_the_alias(
        self, call: Call, connect: Connect, cluster: Cluster
    ) -> None:
        own = {"CONNECTION_FACTORY": "django_redis_messaging.cluster.ClusterConnectionFactory"}
        things = connect(cluster.url(1), more=own)
        assert [await call(things, "add", name) for name in NAMES] == [1] * 30
        assert [await call(things, "get", name) for name in NAMES] == [b"1"] * 30
        assert await call(things, "add_each", NAMES) == [2] * 30
        assert stored(cluster, things) == [2] * 30


@pytest.mark.parametrize("host", [None, b"", "", b"?", "?"])
def test_a_node_without_a_known_host_is_the_one_that_replied(host: bytes | str | None) -> None:
    assert resolve(host, 7001, node=("10.0.0.1", 7000)) == ("10.0.0.1", 7001)
    assert resolve(host, 7001, node=None) is None


def test_a_new_owner_makes_a_new_topology() -> None:
    """Calls that are in progress compare the topology that they have used with the present one."""
    known = parse_slots([[0, 16383, [b"10.0.0.1", 7000]]], node=None)
    assert known is not None
    changed = known.with_owner(slot("a"), ("10.0.0.2", 7000))
    assert (known.address("{thing:a}"), changed.address("{thing:a}")) == (
        ("10.0.0.1", 7000),
        ("10.0.0.2", 7000),
    )
    assert (known.addresses, len(changed.addresses)) == ({("10.0.0.1", 7000)}, 2)


class TestPipelines:
    async def test_replies_are_in_order_and_each_call_is_applied_once(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        for at, name in enumerate(NAMES):
            await call(things, "add", name, at)
        assert await call(things, "add_each", NAMES) == list(range(1, 31))
        assert await call(things, "add_each_once", NAMES) == list(range(2, 32))
        assert stored(cluster, things) == list(range(2, 32))

    async def test_one_script_over_all(self, call: Call, things: Things, cluster: Cluster) -> None:
        await call(things, "add_each", NAMES)
        assert await call(things, "add_all", NAMES, 10) == [11 + at for at in range(30)]
        assert stored(cluster, things) == [11 + at for at in range(30)]

    async def test_calls_for_one_resource_are_applied_in_order(self, call: Call, things: Things) -> None:
        names = ["a", "b", "c", "a", "b", "a"]
        assert await call(things, "add_each", names) == [1, 1, 1, 2, 2, 3]

    async def test_an_empty_one(self, call: Call, things: Things) -> None:
        assert await call(things, "add_each", []) == []
        assert await call(things, "add_all", []) == []

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
            replies = list(threads.map(things.add_each, [NAMES] * 200))
        assert sorted(reply[0] for reply in replies) == list(range(1, 201))

    async def test_waits_at_a_silent_server_hold_up_no_call_to_another(
        self, call: Call, connect: Connect, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        things = connect(cluster.url(0))
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

    @pytest.mark.parametrize("operation", ["add_each", "add_each_once", "add_all"])
    async def test_nodes_without_the_script(
        self, call: Call, things: Things, cluster: Cluster, operation: str
    ) -> None:
        await call(things, operation, NAMES)
        before = stored(cluster, things)
        flush_scripts(cluster)
        await call(things, operation, NAMES)
        assert stored(cluster, things) == [2 * n for n in before]


class TestMoved:
    async def test_calls_go_to_the_new_owner(self, call: Call, things: Things, cluster: Cluster) -> None:
        assert await call(things, "add", "a") == 1
        cluster.migrate(slot("a"), cluster.another(slot("a")))
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
        assert await call(things, operation, NAMES) == [1] * 30
        for name in NAMES[::3]:
            cluster.migrate(slot(name), cluster.another(slot(name)))
        before = cluster.redirects
        assert await call(things, operation, NAMES) == [2] * 30
        assert cluster.redirects - before == len(NAMES[::3])
        assert stored(cluster, things) == [2] * 30

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
        cluster.migrate(slot("a"), cluster.another(slot("a")))
        before = cluster.total("commandstats", "cmdstat_cluster|slots", "calls")
        await call_all()
        # a thread may begin its call after the first ones have read the topology; then it needs none
        assert cluster.total("commandstats", "cmdstat_cluster|slots", "calls") - before == 1
        assert things.get("a") == b"%d" % (2 * number)

    async def test_the_next_caller_reads_after_an_interrupted_reading(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        await call(things, "add", "a")
        reads = endpoint("messaging").readings
        interrupted = reads.setdefault(os.getpid(), Reading())
        interrupted.thread = 0  # another one
        cluster.migrate(slot("a"), cluster.another(slot("a")))
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
        cluster.migrate(slot("a"), cluster.another(slot("a")))
        with takes(0, 3):
            assert things.add("a") == 2

    async def test_moved_to_a_node_without_the_script(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        await call(things, "add_each_once", NAMES)
        for name in NAMES[::3]:
            cluster.migrate(slot(name), cluster.another(slot(name)))
        flush_scripts(cluster)
        assert await call(things, "add_each_once", NAMES) == [2] * 30

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

    async def test_a_wait_without_a_hint(self, call: Call, things: Things) -> None:
        for name in NAMES[:5]:
            with takes(0.1, 5):
                assert await call(things, "take", name, 0.1) is None

    async def test_a_wait_whose_slot_moves(self, call: Call, things: Things, cluster: Cluster) -> None:
        source, target = cluster.owner(slot("a")), cluster.another(slot("a"))

        def move_and_push() -> None:
            until(lambda: blocked(cluster, source))
            cluster.migrate(slot("a"), target)
            until(lambda: blocked(cluster, target))
            cluster.clients[target].zadd(things.key("a"), {"x": 0})

        until(lambda: not blocked(cluster, source) and not blocked(cluster, target))
        with meanwhile(move_and_push), takes(0, 10):
            assert await call(things, "take", "a", 20) == b"x"

    async def test_a_pending_wait_whose_slot_moves(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        target = cluster.another(slot("a"))
        assert await call(things, "take", "a", 0.01) is None
        cluster.migrate(slot("a"), target)
        cluster.clients[target].zadd(things.key("a"), {"x": 0})
        with takes(0, 10):
            assert await call(things, "take", "a", 20) == b"x"

    async def test_a_wait_whose_slot_is_migrating(self, call: Call, things: Things, cluster: Cluster) -> None:
        """It waits at the importing node: a hint that is pushed meanwhile arrives there."""
        target = cluster.another(slot("a"))

        def push() -> None:
            until(lambda: blocked(cluster, target))
            things.do("ZADD", things.key("a"), 0, "x")

        until(lambda: not blocked(cluster, target))
        with cluster.half_migrated(slot("a"), target), meanwhile(push), takes(0, 10):
            assert await call(things, "take", "a", 20) == b"x"

    async def test_a_wait_without_a_hint_whose_slot_is_migrating(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        with cluster.half_migrated(slot("a"), cluster.another(slot("a"))), takes(0.3, 2):
            assert await call(things, "take", "a", 0.3) is None


def blocked(cluster: Cluster, at: int) -> int:
    """The number of blocked clients of a node."""
    return int(cluster.clients[at].info("clients")["blocked_clients"])


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

    async def test_a_script_is_not_aborted_halfway(
        self, call: Call, things: Things, cluster: Cluster
    ) -> None:
        """It waits until the slot has moved: all of its keys exist, but it removes them."""
        await call(things, "add_each", [*NAMES, "a"])
        with refused_until_moved(cluster, "a"):
            assert await call(things, "renew", "a", 5) == 1
        assert stored(cluster, things, ["a"]) == [5]

    async def test_a_script_is_not_aborted_before_the_cluster_is_detected(
        self, call: Call, connect: Connect, cluster: Cluster
    ) -> None:
        things = connect(cluster.url(cluster.owner(slot("a"))))
        assert await call(things, "add", "a") == 1
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
        (mate,) = mates("a")
        keys = [things.key("a"), things.key(mate)]
        await call(things, "do", "MSET", keys[0], 1, keys[1], 2)
        with refused_until_moved(cluster, "a", keys[0]):
            assert await call(things, "do", "MGET", *keys, reads=True) == [b"1", b"2"]


@contextmanager
def refused_until_moved(cluster: Cluster, name: str, *keys: str) -> Iterator[None]:
    """The slot of a thing is on its way to another node, where these keys are already, until somebody has
    been refused by TRYAGAIN."""

    def refused() -> int:
        return cluster.total("errorstats", "errorstat_TRYAGAIN", "count")

    moving = cluster.half_migrated(slot(name), cluster.another(slot(name)), keys)
    moving.__enter__()
    before = refused()

    def finish() -> None:
        try:
            until(lambda: refused() > before)
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


class Adding:
    """Threads and tasks that add to counters until they are stopped, and record what they have added."""

    def __init__(self, things: Things, names: list[str]) -> None:
        self.added: Counter[str] = Counter()
        self.calls = 0
        self._things = things
        self._names = names
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def going_on(self, threads: int, tasks: int) -> Iterator[None]:
        """Add during the block; errors are raised at its end."""
        with ThreadPoolExecutor(threads + 1) as pool:
            working = [pool.submit(self._block, seed) for seed in range(threads)]
            working.append(pool.submit(asyncio.run, self._await(range(threads, threads + tasks))))
            try:
                yield
            finally:
                self._stop.set()
            for one in working:
                one.result()

    def more(self, calls: int) -> None:
        """Wait until they have made this many further additions."""
        enough = self.calls + calls
        until(lambda: self.calls >= enough or self._stop.is_set())

    def _block(self, seed: int) -> None:
        for name, names in self._choices(seed):
            getattr(self._things, name)(names)
            self._count(name, names)

    async def _await(self, seeds: range) -> None:
        try:
            await asyncio.gather(*map(self._await_one, seeds))
        finally:
            await clients.aclose()

    async def _await_one(self, seed: int) -> None:
        for name, names in self._choices(seed):
            await getattr(self._things, f"a{name}")(names)
            self._count(name, names)

    def _choices(self, seed: int) -> Iterator[tuple[str, Any]]:
        chance = random.Random(seed)
        while not self._stop.is_set():
            name = chance.choice(["add", "add_each", "add_each_once", "add_all"])
            some = chance.sample(self._names, 4)
            yield name, some[0] if name == "add" else some

    def _count(self, name: str, names: Any) -> None:
        of_each = [1, 2, 3, 4] if name == "add_all" else [1] * 4
        with self._lock:
            self.calls += 1
            self.added.update(dict(zip([names] if name == "add" else names, of_each, strict=False)))


class TestUnderLoad:
    def test_no_add_is_lost_or_doubled_while_slots_move(self, things: Things, cluster: Cluster) -> None:
        names = NAMES[:8]
        redirects = cluster.redirects
        adding = Adding(things, names)
        with adding.going_on(threads=3, tasks=3):
            for name in itertools.islice(itertools.cycle(names), 60):
                adding.more(10)
                with cluster.half_migrated(slot(name), cluster.another(slot(name)), [things.key(name)]):
                    pass
        assert stored(cluster, things, names) == [adding.added[name] for name in names]
        assert cluster.redirects > redirects

    @pytest.mark.long
    def test_no_add_is_lost_or_doubled_during_manual_failovers(
        self, connect: Connect, sturdy: Cluster
    ) -> None:
        things = connect(sturdy.url(sturdy.primaries()[0]))
        adding = Adding(things, NAMES)
        with adding.going_on(threads=2, tasks=2):
            for at in sturdy.primaries()[:2]:
                adding.more(50)
                sturdy.fail_over(at)
            adding.more(50)
        assert stored(sturdy, things) == [adding.added[name] for name in NAMES]


class TestKilled:
    @pytest.mark.parametrize("itself", [True, pytest.param(False, marks=pytest.mark.long)])
    async def test_calls_continue_with_the_promoted_replica(
        self, call: Call, connect: Connect, sturdy: Cluster, *, itself: bool
    ) -> None:
        """Also if LOCATION names the killed node."""
        victim, other = sturdy.primaries()[:2]
        things = connect(sturdy.url(victim if itself else other))
        assert await call(things, "add_each", NAMES) == [1] * 30
        assert await call(things, "get", NAMES[0]) == b"1"
        names = [name for name in NAMES if sturdy.owner(slot(name)) == victim]
        with sturdy.killed(victim) as replica:
            with takes(0, 10):
                assert await call(things, "add", names[0], once=True) == 2
            with takes(0, 2):
                assert await call(things, "add_each", NAMES) == [2 + (one == names[0]) for one in NAMES]
                assert await call(things, "add_each_once", names[1:]) == [3] * len(names[1:])
                assert [await call(things, "get", name) for name in names] == [b"3"] * len(names)
            assert sturdy.owners(names) == {replica}
            before = sturdy.redirects
            await call(things, "add_each", NAMES)
            assert sturdy.redirects == before

    @pytest.mark.long
    async def test_a_pipeline_continues_with_the_promoted_replica(
        self, call: Call, connect: Connect, sturdy: Cluster
    ) -> None:
        """Calls that the other nodes answered are not repeated."""
        victim = sturdy.primaries()[0]
        things = connect(sturdy.url(victim))
        assert await call(things, "add_each_once", NAMES) == [1] * 30
        with sturdy.killed(victim), takes(0, 10):
            assert await call(things, "add_each_once", NAMES) == [2] * 30

    @pytest.mark.long
    async def test_waits_continue_with_the_promoted_replica(
        self, call: Call, connect: Connect, sturdy: Cluster
    ) -> None:
        victim = sturdy.primaries()[0]
        things = connect(sturdy.url(victim))
        await call(things, "add_each", NAMES)
        name = next(name for name in map("list-{}".format, range(100)) if sturdy.owner(slot(name)) == victim)
        with sturdy.killed(victim) as replica:
            sturdy.took_over(replica)
            sturdy.clients[replica].zadd(things.key(name), {"x": 0})
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
                    if inspect.stack()[1].function != "exchange":  # it calls `send`
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
        messaging_stats.count(messaging_stats.delay_queues())  # every server has the scripts
        sent.clear()
        rows = messaging_stats.count(messaging_stats.delay_queues())
        assert [row["ready"] for row in rows] == [1] * len(NAMES)
        assert len(sent) == 1 + len(cluster.primaries())
