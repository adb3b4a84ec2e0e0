"""Waits for hints and streams: woken at once, taken over, shared; and what faults do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep
from typing import Any

import pytest
from redis.crc import key_slot

from django_redis_messaging import MessagingError, Unavailable, deadline
from django_redis_messaging.core import clients, pool
from django_redis_messaging.core.commands import Hint
from django_redis_messaging.core.connection import Address, BlockingConnection
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.core.operations import Listen, PopHint, Service, Steps, asynchronous, operation
from django_redis_messaging.core.pool import ENDED, PendingWait, PendingWaits
from django_redis_messaging.core.topology import Router
from django_redis_messaging.devserver.server import EmbeddedServer as Server
from tests.conftest import Call
from tests.core.conftest import Connect, blocked, count, meanwhile, takes
from tests.support.clusters import Cluster, until
from tests.support.example_service import Things
from tests.support.proxy import LossyProxy, Network

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

#: seconds; longer than anything takes here
LONG = 20.0


@pytest.fixture
def things(connect: Connect, private: Server) -> Things:
    """The service, on a server that the test may break."""
    return connect(private)


class TestHints:
    async def test_a_wait_ends_after_its_time(self, call: Call, connect: Connect, server: Server) -> None:
        """It may be longer than the timeout of the socket and the deadline."""
        things = connect(server, {"socket_timeout": 0.1}, COMMAND_DEADLINE=0.2)
        with takes(0.4, 5):
            assert await call(things, "take", "empty", 0.4) is None

    async def test_a_wait_is_woken_at_once(self, call: Call, things: Things, admin: Any) -> None:

        def push() -> None:
            until(lambda: blocked(admin) == 1)
            admin.zadd(things.key("list"), {"x": 0})

        with meanwhile(push), takes(0, 5):
            assert await call(things, "take", "list", 10) == b"x"

    async def test_a_pending_wait_is_taken_over(
        self, call: Call, things: Things, admin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unless it is overdue."""
        for _ in range(20):
            assert await call(things, "take", "again", 0.01) is None
        admin.zadd(things.key("again"), {"x": 0})
        assert await call(things, "take", "again", 5) == b"x"
        assert count(admin, "commandstats", "bzpopmin") == 1
        assert await call(things, "take", "again", 0.01) is None
        monkeypatch.setattr(pool, "ENDED", 0.03)
        await asyncio.sleep(0.03)
        assert await call(things, "take", "again", 0.01) is None
        assert count(admin, "commandstats", "bzpopmin") == 3

    async def test_a_wait_that_is_sent_too_late(
        self, call: Call, things: Things, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await call(things, "do", "PING")
        monkeypatch.setattr(pool, "ENDED", -1)
        with takes(0, 1):
            assert await call(things, "take", "list", 0.2) is None

    async def test_calls_proceed_during_a_wait(self, things: Things) -> None:
        going = asyncio.ensure_future(things.await_("empty", 0.3))
        assert await things.aadd("a") == 1
        assert not going.done()
        assert await going is None

    async def test_a_wait_in_a_block_ends_with_it(self, call: Call, things: Things) -> None:
        with takes(0.2, 1), deadline(0.3), pytest.raises(Unavailable, match="deadline"):
            await call(things, "take", "list", 20)
        with deadline(20):
            assert await call(things, "take", "list", 0.1) is None

    async def test_connections_of_ended_waits_are_reused(
        self, call: Call, things: Things, admin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_redis_messaging.core.pool.ENDED", 0.0)
        monkeypatch.setattr("django_redis_messaging.core.commands.Wait.LINGER", 0.01)
        for at in range(8):
            assert await call(things, "take", f"{at}", 0.15) is None
        assert admin.info("clients")["connected_clients"] <= 4

    @pytest.mark.parametrize("key", ["a", b"a", 1], ids=repr)
    def test_only_hints_can_be_popped(self, key: Any) -> None:
        assert PopHint(Hint("a"), seconds=1).words == ("BZPOPMIN", "a")
        with pytest.raises(TypeError, match="not a Hint"):
            PopHint(key, seconds=1)


class TestFaults:
    @pytest.mark.parametrize("seconds", [5, 0.001])
    async def test_a_reset_is_not_noticed(
        self, seconds: float, call: Call, connect: Connect, server: Server
    ) -> None:
        """For example by a server that is killed before it read; with 0.001 s, between two waits."""
        with LossyProxy(server.socket, asking=b"BZPOPMIN") as proxy:
            things = connect(proxy)
            await call(things, "do", "ZADD", things.key("list"), 0, "x")
            proxy.reset_next()
            found = None
            while found is None:
                found = await call(things, "take", "list", seconds)
            assert found == b"x"

    @pytest.mark.parametrize("fault", ["reset", "killed"])
    async def test_a_fault_between_waits_is_not_noticed(
        self, fault: str, call: Call, connect: Connect, private: Server, network: Network
    ) -> None:
        things = connect(network if fault == "reset" else private)
        for name in ("one", "two", "three"):
            assert await call(things, "take", name, 0.01) is None
        if fault == "reset":
            network.reset()
        else:
            private.kill()
            private.start()
        for name in ("four", "one", "five", "two"):
            assert await call(things, "take", name, 0.01) is None
        await call(things, "do", "ZADD", things.key("one"), 0, "x")
        assert await call(things, "take", "one", 5) == b"x"

    async def test_half_a_reply(self, call: Call, connect: Connect, network: Network) -> None:
        things = connect(network, {"socket_timeout": 0.3})
        network.halve_next(b"list")
        await call(things, "do", "ZADD", things.key("list"), 0, "x")
        with takes(0, 4):
            assert await call(things, "take", "list", 0.5) is None  # the hint is lost with its reply
        await call(things, "do", "ZADD", things.key("list"), 0, "y")
        assert await call(things, "take", "list", 5) == b"y"

    async def test_a_restart_costs_at_most_a_hint(
        self, call: Call, things: Things, private: Server, admin: Any
    ) -> None:

        def restart_and_push() -> None:
            until(lambda: blocked(admin) == 1)
            private.stop()
            sleep(0.3)  # the outage itself
            private.start()
            admin.zadd(things.key("list"), {"x": 0})

        with meanwhile(restart_and_push), takes(0.3, 10):
            assert await call(things, "take", "list", 20) == b"x"

    @pytest.mark.parametrize("is_waiting", [True, False])
    async def test_a_server_that_stays_down_is_unavailable(
        self, is_waiting: bool, call: Call, connect: Connect, private: Server, admin: Any
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=0.3)
        assert await call(things, "take", "list", 0.01) is None

        def kill() -> None:
            until(lambda: not is_waiting or blocked(admin) == 1)
            private.kill()

        if not is_waiting:
            kill()
        with meanwhile(kill), takes(0.2, 3), pytest.raises(Unavailable, match=r"for \d+\.\d s"):
            await call(things, "take", "list", 30)


class TestPendingWaits:
    """They are found by their words, and removed once they have ended."""

    def pending(self, name: str, *, age: float = 0, address: Address | None = None) -> PendingWait:
        return PendingWait(("BZPOPMIN", name), BlockingConnection(address), monotonic() - age)

    def test_a_wait_is_found_by_its_words_and_taken_once(self) -> None:
        waits, kept = PendingWaits(), [self.pending(name) for name in "aba"]
        for one in kept:
            waits.keep(one)
        assert [waits.take(("BZPOPMIN", "a")) for _ in range(3)] == [kept[0], kept[2], None]
        assert waits.take_all() == [kept[1]]
        assert waits.take(("BZPOPMIN", "b")) is None

    def test_ended_waits_are_returned_oldest_first(self) -> None:
        waits, young = PendingWaits(), self.pending("a")
        old = [self.pending(name, age=ENDED) for name in "ab"]
        for one in (*old, young):
            waits.keep(one)
        assert [waits.take_ended() for _ in range(3)] == [*old, None]
        assert waits.take(("BZPOPMIN", "a")) == young
        assert len(waits) == 0

    def test_take_any_returns_one_of_that_server(self) -> None:
        waits, here, there = PendingWaits(), self.pending("a"), self.pending("b", address=("there", 1))
        waits.keep(here)
        waits.keep(there)
        assert [waits.take_any(("there", 1)) for _ in range(2)] == [there, None]
        assert waits.take_any(None) is here

    def test_nothing_is_kept_for_removed_names(self) -> None:
        waits = PendingWaits()
        for number in range(1000):
            waits.keep(self.pending(str(number)))
            assert waits.take(("BZPOPMIN", str(number)))
        assert not waits._by_words
        assert not waits._in_order

    def test_a_wait_kept_during_take_all_is_not_lost(self) -> None:
        waits, taken = PendingWaits(), []

        def keep(thread: int) -> None:
            for number in range(500):
                waits.keep(self.pending(f"{thread}-{number % 7}"))

        def take(_: int) -> list[PendingWait]:
            return [one for _ in range(500) for one in waits.take_all()]

        with ThreadPoolExecutor(4) as threads:
            keeping = threads.map(keep, range(2))
            for some in threads.map(take, range(2)):
                taken += some
            list(keeping)
        taken += waits.take_all()
        assert len({id(one) for one in taken}) == len(taken) == 1000

    def test_the_cost_is_independent_of_the_number_of_names(self) -> None:
        waits = PendingWaits()
        for number in range(1000):
            waits.keep(PendingWait(Counted(("BZPOPMIN", str(number))), None, monotonic()))
        Counted.compared = 0
        for _ in range(10):
            waits.keep(PendingWait(Counted(("BZPOPMIN", "mine")), None, monotonic()))
            assert waits.take(Counted(("BZPOPMIN", "mine")))
            assert waits.take_ended() is None
        assert Counted.compared <= 50


class Counted(tuple[str, ...]):
    """Words that count how often any are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = tuple.__hash__


class Streams(Service):
    """Waits for streams in one slot."""

    def key(self, number: int) -> str:
        return f"{self._prefix}:{FORMAT}:{{streams}}:{number}"

    @operation
    def listen(self, number: int, seconds: float = LONG, match: bytes | None = None) -> Steps[bool]:
        """Whether the stream has an entry in time. Listen may return early."""
        ends = monotonic() + seconds
        while (left := ends - monotonic()) > 0:
            if (yield Listen(self.key(number), 0, seconds=left, match=match)) is not None:
                return True
        return False

    alisten = asynchronous(listen)


class TestStreams:
    """Waits for streams without a connection of their own: they share one."""

    #: calls that wait, with three connections that waits may occupy
    CALLS = 30
    #: the waits that have connections of their own: the last one is shared
    OWN = 2

    @pytest.fixture
    def streams(self, connect: Connect, private: Server) -> Streams:
        """With four connections."""
        connect(private, {"max_connections": 4})
        return Streams()

    async def listening(
        self, streams: Streams, number: int = CALLS, **options: Any
    ) -> list[asyncio.Task[bool]]:
        """Calls that wait, each for a stream."""
        return await self.waiting([streams.alisten(at, **options) for at in range(number)])

    async def waiting(self, calls: list[Any]) -> list[asyncio.Task[Any]]:
        """Calls that wait, until they share a connection."""
        tasks = [asyncio.create_task(call) for call in calls]
        client = clients.async_client("messaging")

        def listeners() -> int:
            groups = client._shared._groups.values()
            return sum(len(some) for group in groups for some in group.streams.values())

        await wait_until(lambda: listeners() >= len(tasks) - self.OWN)
        return tasks

    async def woken(self, tasks: list[asyncio.Task[bool]], streams: Streams, client: Any) -> None:
        """Each is woken by an entry of its own stream."""
        for number, task in enumerate(tasks):
            if not task.done():
                client.xadd(streams.key(number), {"a": 1}, id="1-0")
        async with asyncio.timeout(LONG):
            assert all([await task for task in tasks if not task.cancelled()])

    async def test_tasks_share_a_connection_and_each_is_woken(self, streams: Streams, admin: Any) -> None:
        tasks = await self.listening(streams)
        assert admin.info("clients")["connected_clients"] <= 1 + 4
        for number in reversed(range(self.CALLS)):
            assert not tasks[number].done()
            admin.xadd(streams.key(number), {"a": 1}, id="1-0")
            assert await asyncio.wait_for(tasks[number], LONG)
        assert not clients.async_client("messaging")._shared._groups

    async def test_idle_waits_send_ten_commands_a_second_together(self, streams: Streams, admin: Any) -> None:
        tasks = await self.waiting([streams.alisten(0, 0.8) for _ in range(self.CALLS)])
        before = admin.info("stats")["total_commands_processed"]
        assert not any(await asyncio.gather(*tasks))
        assert admin.info("stats")["total_commands_processed"] - before <= 25

    async def test_an_entry_wakes_only_the_call_that_it_is_for(self, streams: Streams, admin: Any) -> None:
        tasks = await self.waiting([streams.alisten(0, match=b"%d" % number) for number in range(self.CALLS)])
        for at, number in enumerate([self.CALLS - 1, 0, 10], 1):  # those with an own connection, too
            admin.delete(streams.key(0))
            admin.xadd(streams.key(0), {"for": number}, id=f"{at}-0")
            assert await asyncio.wait_for(tasks[number], LONG)
            assert sum(task.done() for task in tasks) == at
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not clients.async_client("messaging")._shared._groups

    async def test_the_others_are_woken_after_the_leader_was_cancelled(
        self, streams: Streams, admin: Any
    ) -> None:
        tasks = await self.listening(streams)
        for _ in range(5):
            [group] = clients.async_client("messaging")._shared._groups.values()
            assert group.leader is not None
            number = int(group.leader.step.stream.rpartition(":")[2])
            tasks[number].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[number]
        assert sum(not task.done() for task in tasks) == self.CALLS - 5
        await self.woken(tasks, streams, admin)

    async def test_more_streams_than_one_read_has(
        self, streams: Streams, admin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_redis_messaging.core.clients.MAX_STREAMS", 3)
        await self.woken(await self.listening(streams, 10), streams, admin)

    async def test_several_slots_of_a_cluster_that_may_not_be_asked_for_them(
        self, connect: Connect, cluster: Cluster
    ) -> None:
        connect(cluster.url(0), {"max_connections": 4})
        prefix = Streams()._prefix
        names = [name for name in map(str, range(1000)) if cluster.owner(key_slot(name.encode())) == 0][:6]
        client = clients.async_client("messaging")
        client.endpoint.router = Router()

        async def listen(name: str) -> object:
            step = Listen(f"{prefix}:{FORMAT}:{{{name}}}", 0, seconds=LONG)
            while (found := await client.execute(step)) is None:  # there is one connection for three slots
                pass
            return found

        tasks = await self.waiting([listen(name) for name in names])
        for name in names:
            cluster.clients[0].xadd(f"{prefix}:{FORMAT}:{{{name}}}", {"a": 1}, id="1-0")
        async with asyncio.timeout(LONG):
            await asyncio.gather(*tasks)
        assert type(client.endpoint.router) is Router

    async def test_a_key_of_another_type_does_not_fail_other_waits(
        self, streams: Streams, admin: Any
    ) -> None:
        tasks = await self.listening(streams, 6)
        admin.set(streams.key(7), "no stream")
        failing = asyncio.create_task(streams.alisten(7))
        await wait_until(lambda: count(admin, "errorstats", "WRONGTYPE") >= 3)
        await self.woken(tasks, streams, admin)
        with pytest.raises(MessagingError, match="another type"):
            await asyncio.wait_for(failing, LONG)

    async def test_a_restarted_server(self, streams: Streams, private: Server, admin: Any) -> None:
        tasks = await self.listening(streams)
        await asyncio.to_thread(private.restart)
        await self.woken(tasks, streams, admin)


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():  # noqa: ASYNC110 (the calls set no asyncio.Event)
            await asyncio.sleep(0.002)
