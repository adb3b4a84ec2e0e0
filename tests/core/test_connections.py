"""Connections: their owners, their limit, their sockets; and that no event of one call affects another."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio
import redis.asyncio.connection
import redis.cluster
import redis.connection
import redis.crc
import redis.exceptions
import redis.sentinel
from django.conf import settings
from django.test import override_settings
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import MaxConnectionsError

from django_redis_messaging import DelayQueue, Lock, Semaphore, conf, deadline
from django_redis_messaging.core import clients, connection, topology
from django_redis_messaging.core.connection import (
    CHUNK,
    Address,
    AsyncConnection,
    BlockingConnection,
    Target,
    run_blocking,
)
from django_redis_messaging.core.outcome import NotSent
from django_redis_messaging.core.pool import Connections
from django_redis_messaging.devserver.server import EmbeddedServer as Server
from django_redis_messaging.services.jobs.claims import Claims, Keeper
from django_redis_messaging.services.jobs.engine import Engine
from tests.core.conftest import Connect, frozen, takes
from tests.support.clusters import until
from tests.support.example_service import Things
from tests.support.processes import forked
from tests.support.pytest_hooks import LONG as LONG_RUN

pytestmark = pytest.mark.usefixtures("closing")

#: seconds; longer than anything takes here
LONG = 20.0
#: versions of redis-py with which all tests of this folder have passed
TRIED = ("8.0", "8.1")


def connected(server: Server) -> int:
    """The number of connections of the running test at the server."""
    name = settings.CACHES["messaging"]["LOCATION"].rpartition("client_name=")[2]
    with server.client() as admin:
        return sum(client["name"] == name for client in admin.client_list())


def added(things: Things, name: str, times: int) -> list[int]:
    return [things.add(name) for _ in range(times)]


async def async_added(things: Things, name: str, times: int) -> list[int]:
    return [await things.aadd(name) for _ in range(times)]


@pytest.mark.timing
class TestThreads:
    def test_they_share_a_client_and_get_their_own_replies(self, things: Things) -> None:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda name: added(things, name, 200), map(str, range(8))))
        assert found == [list(range(1, 201))] * 8

    def test_there_are_as_many_connections_as_concurrent_calls(self, things: Things, server: Server) -> None:
        added(things, "a", 20)
        assert connected(server) == 1
        meeting = threading.Barrier(4)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: (meeting.wait(10), added(things, "a", 50)), range(4)))
        assert 1 <= connected(server) <= 4

    def test_the_call_after_close_reconnects(self, things: Things, server: Server) -> None:
        things.add("a")
        things.wait("nothing", 0.01)
        clients.close()
        until(lambda: connected(server) == 0)
        assert things.add("a") == 2


class TestForks:
    def test_a_child_has_its_own_connections(self, things: Things) -> None:
        things.add("a")
        with forked(lambda: added(things, "child", 100) == list(range(1, 101))) as finished:
            mine = added(things, "parent", 100)
            assert finished()
        assert mine == list(range(1, 101))
        assert things.add("a") == 2

    def test_a_child_that_ends_does_not_close_those_of_its_parent(
        self, things: Things, server: Server
    ) -> None:
        things.add("a")
        before = connected(server)
        with forked(lambda: gc.collect() >= 0) as finished:
            assert finished()
        assert connected(server) == before == 1

    @pytest.mark.timing
    async def test_a_child_of_a_running_loop_may_run_its_own_loop(self, things: Things) -> None:
        await things.aadd("a")

        def child() -> bool:
            async def work() -> int:
                added = await things.aadd("child")
                await clients.aclose()
                return added

            gc.collect()  # what the child inherits must not leave the epoll it shares
            return asyncio.run(work()) == 1

        with forked(child) as finished:
            assert await asyncio.to_thread(finished)
        with takes(0, 5):
            assert await things.aadd("a") == 2


class TestEventLoops:
    async def test_tasks_share_a_client_and_get_their_own_replies(self, things: Things) -> None:
        found = await asyncio.gather(*(async_added(things, f"{at}", 50) for at in range(20)))
        assert found == [list(range(1, 51))] * 20

    def test_each_loop_has_its_own_client(self, things: Things) -> None:
        async def add() -> int:
            added = await things.aadd("a")
            client = clients.async_client(things._using)
            assert clients.async_client(things._using) is client
            await clients.aclose()
            return added

        assert [asyncio.run(add()) for _ in range(3)] == [1, 2, 3]

    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_clients_of_closed_loops_are_removed(self, things: Things) -> None:
        before = len(clients._running)
        for _ in range(5):
            asyncio.run(things.aadd("a"))
        assert len(clients._running) <= before + 1
        clients._running.clear()
        gc.collect()

    def test_many_threads_may_remove_clients_of_closed_loops(self, things: Things) -> None:
        async def careless() -> int:
            added = await things.aadd("a")
            clients.async_client("messaging").connections.close()
            return added

        def run(_: int) -> int:
            loop = asyncio.new_event_loop()
            try:
                return loop.run_until_complete(careless())
            finally:
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()

        with ThreadPoolExecutor(8) as threads:
            assert sorted(threads.map(run, range(100))) == list(range(1, 101))

    async def test_aclose_closes_the_connections_of_the_running_loop(
        self, things: Things, server: Server
    ) -> None:
        await things.aadd("a")
        await clients.aclose()
        until(lambda: connected(server) == 0)
        assert await things.aadd("a") == 2

    async def test_a_change_of_the_settings_closes_its_connections(
        self, things: Things, server: Server
    ) -> None:
        await things.aadd("a")
        await things.await_("list", 0.01)
        waiting = asyncio.ensure_future(things.await_("another", 0.3))
        under_way = asyncio.ensure_future(things.ado("BLPOP", things.key("none"), "0.2"))
        await asyncio.sleep(0.05)
        name = settings.CACHES["messaging"]["LOCATION"].rpartition("client_name=")[2]
        with server.client() as admin:
            ours = [one for one in admin.client_list() if one["name"] == name]
            assert len(ours) == 3  # the second wait uses the connection of the call
            with override_settings(REDIS_MESSAGING={**settings.REDIS_MESSAGING}):
                await asyncio.gather(waiting, under_way)
                for _ in range(3):
                    await asyncio.sleep(0)
                until(lambda: not [one for one in admin.client_list() if one["name"] == name])


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raises KeyboardInterrupt from a signal handler, as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def untraced() -> Iterator[None]:
    """An interrupt inside the measurement of coverage would leave its lock locked."""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)


@pytest.mark.timing
@pytest.mark.timeout(method="thread")  # the other method uses the timer of `interrupted_after`
class TestInterruptions:
    """The reply of an interrupted call or wait does not reach the next one."""

    @pytest.fixture
    def things(self, connect: Connect, private: Server) -> Things:
        return connect(private)

    async def test_a_call(self, things: Things, private: Server) -> None:
        things.add("a", 1000)
        await things.aadd("a", 1000)
        with frozen(private):
            with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
                things.add("a", 1000)
            call = asyncio.ensure_future(things.aadd("a", 1000))
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert [things.add("b"), things.add("b"), *await async_added(things, "b", 2)] == [1, 2, 3, 4]

    async def test_a_wait(self, things: Things) -> None:
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
            things.wait("list", 30)
        things.do("ZADD", things.key("list"), 0, "x")
        assert things.wait("list", 5) == b"x"
        call = asyncio.ensure_future(things.await_("list", 30))
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await things.ado("ZADD", things.key("list"), 0, "x")
        assert await things.await_("list", 5) == b"x"

    def test_a_pending_wait(self, things: Things, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("one", "two"):
            assert things.wait(name, 0.01) is None
        client = clients.blocking_client("messaging")
        assert len(client.connections.waits) == 2
        added: list[int] = []
        close = BlockingConnection.close

        def while_it_closes(connection: BlockingConnection) -> None:
            close(connection)
            if len(added) < 2:
                added.append(things.add("meanwhile"))

        monkeypatch.setattr(BlockingConnection, "close", while_it_closes)
        client.connections.close()
        assert added == [1, 2]

    async def test_a_cancellation_at_any_time(self, things: Things) -> None:
        """Calls of many tasks are cancelled: each of the others gets its own reply."""

        async def count(name: str) -> None:
            for number in range(1, 61 if LONG_RUN else 11):
                cancelled = [asyncio.ensure_future(things.aadd(f"not {name}", 1000)) for _ in range(3)]
                for _ in range(number % 6):
                    await asyncio.sleep(0)
                for one in cancelled:
                    one.cancel()
                assert await things.aadd(name) == number
                await asyncio.gather(*cancelled, return_exceptions=True)

        await asyncio.gather(*(count(f"{at}") for at in range(17)))

    @pytest.mark.usefixtures("untraced")
    def test_an_interrupt_at_any_time(self, things: Things) -> None:
        number, interrupts, chance = 0, 0, random.Random(0)
        while interrupts < (3600 if LONG_RUN else 100):
            try:
                with interrupted_after(chance.uniform(0.00001, 0.0005)):
                    added(things, "other", 20)
            except KeyboardInterrupt:
                interrupts += 1
            number += 1
            assert things.add("a") == number


Limited = Callable[..., Things]


@pytest.fixture
def limited(connect: Connect, server: Server) -> Limited:
    """The service with this number of connections."""
    return lambda limit, **messaging: connect(server, {"max_connections": limit}, **messaging)


@pytest_asyncio.fixture
async def connections(limited: Limited, closing: None) -> Connections:
    """Those of the event loop; there may be one."""
    limited(1)
    return clients.async_client("messaging").connections


def take_blocking(seconds: float = LONG) -> object:
    """Take a connection as a call does that blocks its thread."""
    return run_blocking(partial(clients.blocking_client("messaging").connections.take, None), seconds)


@contextmanager
def all_in_use(number: int) -> Iterator[None]:
    """Other callers use this number of blocking connections."""
    taken = [take_blocking() for _ in range(number)]
    yield
    for one in taken:
        clients.blocking_client("messaging").connections.give_back(one)


async def queue_up(connections: Connections, seconds: float = LONG) -> asyncio.Task[Any]:
    """A task that is queued for a connection."""
    task = asyncio.ensure_future(connections.take(None, seconds))
    await asyncio.sleep(0)
    assert not task.done()
    return task


class TestQueue:
    """Queued callers get a connection in the order of their arrival."""

    async def test_a_running_task_does_not_overtake(self, limited: Limited) -> None:
        things, calls, is_over = limited(1, COMMAND_DEADLINE=1), 0, False

        async def run_on() -> None:
            nonlocal calls
            while not is_over:
                await things.aadd("busy")
                calls += 1

        running = asyncio.ensure_future(run_on())
        while calls < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        before = calls
        assert await things.aadd("other") == 1
        assert calls - before <= 2
        is_over = True
        await running

    @pytest.mark.timing
    async def test_more_tasks_and_threads_than_connections(self, limited: Limited) -> None:
        """None waits for as long as it is overtaken, until its deadline."""
        things = limited(100)

        async def run_on(longest: float = 0.0) -> float:
            while (began := time.monotonic()) < ends:
                await things.aadd("a")
                longest = max(longest, time.monotonic() - began)
            return longest

        ends = time.monotonic() + 0.5
        assert max(await asyncio.gather(*(run_on() for _ in range(1000)))) < 5
        things = limited(20)

        def run_in_thread(_: int, longest: float = 0.0) -> float:
            while (began := time.monotonic()) < ends:
                things.add("a")
                longest = max(longest, time.monotonic() - began)
            return longest

        ends = time.monotonic() + 0.5
        with ThreadPoolExecutor(40) as threads:
            assert max(threads.map(run_in_thread, range(40))) < 5

    async def test_the_first_gets_what_is_given_back(self, connections: Connections) -> None:
        held = await connections.take(None, LONG)
        for task in [await queue_up(connections) for _ in range(3)]:
            connections.give_back(held)
            assert connections.take_idle(None) is None  # a newcomer finds none
            assert await task is held
        connections.give_back(held)
        assert connections.take_idle(None) is held
        connections.give_back(held)

    async def test_the_first_opens_one_after_another_was_closed(self, connections: Connections) -> None:
        held = await connections.take(None, LONG)
        first, second = await queue_up(connections), await queue_up(connections)
        connections.close_one(held)
        newcomer = await queue_up(connections)
        opened = await first
        assert opened is not held
        for task in (second, newcomer):
            assert not task.done()
            connections.give_back(opened)
            assert await task is opened
        connections.give_back(opened)

    async def test_a_broken_one_is_replaced_for_the_same_caller(self, connections: Connections) -> None:
        held = await connections.take(None, LONG)
        first = asyncio.ensure_future(connections.take(None, LONG, fresh=True))
        await asyncio.sleep(0)
        second = await queue_up(connections)
        held.close()
        connections.give_back(held)
        opened = await first
        assert opened is not held
        assert not second.done()
        connections.give_back(opened)
        assert await second is opened
        connections.give_back(opened)

    async def test_after_a_change_of_credentials_the_first_opens_one(self, connections: Connections) -> None:
        endpoint = clients.async_client("messaging").endpoint
        held = await connections.take(None, LONG)
        first = await queue_up(connections)
        endpoint.credentials += 1
        connections.give_back(held)
        opened = await first
        assert opened.credentials == endpoint.credentials
        connections.give_back(opened)

    async def test_a_call_gets_that_of_a_wait_that_nobody_needs_any_more(self, limited: Limited) -> None:
        things = limited(2, COMMAND_DEADLINE=LONG)
        waiting = asyncio.ensure_future(things.await_("list", 0.2))
        connections = clients.async_client("messaging").connections
        while not waiting.done() and len(connections._open[None]) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        held = await connections.take(None, LONG)
        with takes(0, LONG / 2):
            assert await things.aadd("a") == 1
        assert await waiting is None
        connections.give_back(held)

    @pytest.mark.parametrize("closed", [False, True], ids=["given back", "closed"])
    async def test_a_task_cancelled_at_the_moment_of_the_hand_over(
        self, closed: bool, connections: Connections
    ) -> None:
        held = await connections.take(None, LONG)
        first, second = await queue_up(connections), await queue_up(connections)
        connections.close_one(held) if closed else connections.give_back(held)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        assert first.cancelled()
        async with asyncio.timeout(LONG / 2):
            connections.give_back(await second)
        assert not connections._queues

    async def test_a_task_that_leaves_gets_none(self, connections: Connections) -> None:
        held = await connections.take(None, LONG)
        first, second = await queue_up(connections, 0.01), await queue_up(connections)
        with pytest.raises(NotSent) as raised:
            await first
        assert isinstance(raised.value.__cause__, MaxConnectionsError)
        connections.give_back(held)
        assert await second is held
        connections.give_back(held)

    @pytest.mark.timing
    def test_threads_whose_deadline_ends_at_any_time(self, limited: Limited) -> None:
        things, done = limited(2), list[int]()
        connections = clients.blocking_client("messaging").connections
        with all_in_use(2):
            pass

        def take_and_give_back(number: int) -> None:
            for at in range(150):
                with suppress(NotSent):
                    taken = take_blocking(0.0001 * ((number + at) % 10))
                    done.append(at)
                    time.sleep(0.0002)
                    connections.give_back(taken)

        with ThreadPoolExecutor(12) as threads:
            list(threads.map(take_and_give_back, range(12)))
        assert done
        assert not connections._queues
        with all_in_use(2), pytest.raises(NotSent):
            take_blocking(0.01)
        assert things.add("a") == 1

    def test_waits_that_begin_at_the_same_moment_leave_connections_to_calls(
        self, limited: Limited, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limited(2)
        connections = clients.blocking_client("messaging").connections
        meeting, find_free = threading.Barrier(2), connections._find_free

        def find_free_together(address: Address | None) -> object:
            """Give the other wait the time to find that it may have a connection, too."""
            with suppress(threading.BrokenBarrierError):
                meeting.wait(0.3)
            return find_free(address)

        monkeypatch.setattr(connections, "_find_free", find_free_together)
        take = partial(connections.take_for_wait, None)
        with ThreadPoolExecutor(2) as threads:
            taken = list(threads.map(lambda _: run_blocking(take, LONG), range(2)))
        assert sum(one is not None for one in taken) == 1
        for one in filter(None, taken):
            connections.give_back(one)


class TestRenewals:
    """What keeps a lease has a connection of its own."""

    @pytest.mark.timing
    @pytest.mark.parametrize("kind", [Lock, partial(Semaphore, limit=1)], ids=["lock", "semaphore"])
    def test_a_lease_is_kept_while_all_connections_are_in_use(self, kind: Any, limited: Limited) -> None:
        limited(1)
        lost = threading.Event()
        resource = kind("door", timeout=0.3, renew=True, on_lost=lambda _: lost.set())
        resource.acquire()
        with all_in_use(1):
            assert not lost.wait(0.6)
        resource.release()

    @pytest.mark.timing
    @pytest.mark.parametrize("style", ["work", "awork"])
    async def test_the_lease_of_a_job_is_kept_while_all_connections_are_in_use(
        self, style: str, limited: Limited, caplog: pytest.LogCaptureFixture
    ) -> None:
        limited(1, COMMAND_DEADLINE=0.3)
        queue, stop = DelayQueue("calls"), threading.Event()

        def occupy() -> None:
            with all_in_use(1):
                time.sleep(0.6)
            stop.set()

        async def aoccupy() -> None:
            connections = clients.async_client("messaging").connections
            taken = await connections.take(None, LONG)
            await asyncio.sleep(0.6)
            connections.give_back(taken)
            stop.set()

        await queue.apush(["occupy", []])
        if style == "work":
            await asyncio.to_thread(queue.work, {"occupy": occupy}, stop=stop, lease=0.3)
        else:
            await queue.awork({"occupy": aoccupy}, stop=stop, lease=0.3)
        assert "lease" not in caplog.text

    def test_the_heartbeat_of_a_worker(self, limited: Limited) -> None:
        limited(1)
        engine = Engine(conf.prefix(), "queue", "calls")
        keeper = Keeper(Claims(engine, "messaging", "worker", ["calls"], lease=30))
        with all_in_use(1), deadline(LONG / 2):
            keeper.report()


class TestSockets:
    """Connections read replies from the sockets that the driver has opened."""

    @asynccontextmanager
    async def both(self, server: Server) -> AsyncIterator[tuple[BlockingConnection, AsyncConnection]]:
        """Open connections of both kinds."""
        target = Target("any", UnixDomainSocketConnection, {"path": str(server.socket)})
        blocking, running = BlockingConnection(), AsyncConnection()
        blocking.open(target, 10)
        await running.open(target, 10)
        yield blocking, running
        blocking.close()
        running.close()
        await asyncio.sleep(0)  # the loop closes the socket in its next iteration

    @pytest.fixture
    def pair(self) -> Iterator[tuple[BlockingConnection, socket.socket]]:
        """A connection, and the server's end of its socket."""
        connection = BlockingConnection()
        connection._socket, there = socket.socketpair()
        with there:
            yield connection, there
        connection.close()

    @pytest.mark.timing
    async def test_a_connection_after_the_deadline(self, server: Server) -> None:
        target = Target("any", UnixDomainSocketConnection, {"path": str(server.socket), "db": 1})
        for late in (BlockingConnection(), AsyncConnection()):
            with pytest.raises(redis.TimeoutError):
                opening = late.open(target, -0.1)
                if opening is not None:
                    await opening

    async def test_values_of_any_size(self, private: Server) -> None:
        async with self.both(private) as (blocking, running):
            for size in (0, 1, 9_999, 10_000, CHUNK - 10, CHUNK - 9, CHUNK, 3 * CHUNK, 2**20 + 1):
                value = (bytes(range(256)) * (size // 256 + 1))[:size]
                store = [("SET", "value", value), ("DEL", "list"), ("RPUSH", "list", value, value)]
                blocking.exchange(store, 10)
                get, get_all = ("GET", "value"), ("LRANGE", "list", "0", "9")
                for calls, replies in (
                    ([get], [value]),
                    ([get_all], [[value, value]]),
                    ([get, get, ("PING",), get_all, get], [value, value, b"PONG", [value, value], value]),
                    ([("PING",), get, get_all, get], [b"PONG", value, [value, value], value]),
                ):
                    assert blocking.exchange(calls, 10) == replies, size
                    assert await running.exchange(calls, 10) == replies, size
                assert not blocking.is_broken

    def test_an_array_whose_second_item_begins_a_chunk(
        self, pair: tuple[BlockingConnection, socket.socket]
    ) -> None:
        connection, there = pair
        first, second = bytes(CHUNK - len(b"*2\r\n$65522\r\n\r\n")), bytes(70_000)
        there.sendall(b"*2\r\n$65522\r\n" + first + b"\r\n$70000\r\n" + second + b"\r\n")
        assert connection.exchange([("PING",)], 10) == [[first, second]]

    @pytest.mark.parametrize("kind", ["MOVED", "ASK"])
    def test_a_redirect_without_a_host_names_the_host_that_replied(
        self, kind: str, pair: tuple[BlockingConnection, socket.socket]
    ) -> None:
        connection, there = pair
        connection.host = "10.0.0.1"
        there.sendall(f"-{kind} 5 :7001\r\n-{kind} 5 10.0.0.2:7001\r\n".encode())
        own, other = connection.exchange([("PING",), ("PING",)], 10)
        assert (own.host, own.node_addr) == ("10.0.0.1", ("10.0.0.1", 7001))
        assert (other.host, other.node_addr) == ("10.0.0.2", ("10.0.0.2", 7001))

    @pytest.mark.parametrize("sent", [b"$20000\r\n" + bytes(2000), b"$20000\r\n" + bytes(20_001), b"$20000"])
    def test_a_large_reply_that_ends_too_early(
        self, pair: tuple[BlockingConnection, socket.socket], sent: bytes
    ) -> None:
        connection, there = pair
        there.sendall(sent)
        there.shutdown(socket.SHUT_WR)
        with pytest.raises(redis.exceptions.ConnectionError):
            connection.exchange([("PING",)], 10)
        assert connection.is_broken

    @pytest.mark.timing
    def test_a_large_reply_that_does_not_end_in_time(
        self, pair: tuple[BlockingConnection, socket.socket]
    ) -> None:
        connection, there = pair
        there.sendall(b"$20000\r\n" + bytes(2000))
        ended = threading.Event()

        def send_slowly() -> bool:
            """Whether all was sent."""
            with suppress(OSError):  # closed
                for _ in range(500):
                    if ended.wait(0.02):
                        return False
                    there.send(b"x")
                return True
            return False

        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(send_slowly)
            with pytest.raises(redis.exceptions.TimeoutError):
                connection.exchange([("PING",)], 0.1)
            ended.set()
            assert not sending.result()
        assert connection.is_broken

    @pytest.mark.timing
    async def test_an_interrupted_exchange_closes_the_connection(self, private: Server) -> None:
        """So that no later exchange gets its reply."""
        ping = [("PING",)]
        async with self.both(private) as (blocking, running):
            assert blocking.exchange(ping, 10) == await running.exchange(ping, 10) == [b"PONG"]
            with frozen(private):
                with pytest.raises(redis.exceptions.TimeoutError):
                    blocking.exchange(ping, 0.1)
                with pytest.raises(redis.exceptions.TimeoutError):
                    await running.exchange(ping, 0.1)
            assert blocking.is_broken
            assert running.is_broken
            with pytest.raises(redis.exceptions.ConnectionError):
                blocking.exchange(ping, 10)
            with pytest.raises(redis.exceptions.ConnectionError):
                await running.exchange(ping, 10)


#: what the constructors of the driver's connections take, besides host, port or path
LIMITS: dict[str, Any] = {
    "socket_timeout": 1.0,
    "socket_connect_timeout": 1.0,
    "redis_connect_func": lambda _: None,
    "retry": None,
    "protocol": 2,
}
#: what the handshake reads of each connection
SETTINGS = ("username", "password", "client_name", "db", "credential_provider", "connect")
KINDS = ("Connection", "SSLConnection", "UnixDomainSocketConnection")


def sentinels() -> Any:
    return redis.sentinel.Sentinel([("localhost", 1)])


#: how to make an object, and the attributes of it that are used
USED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    **{
        f"redis.connection.{kind}": (
            lambda kind=kind: getattr(redis.connection, kind)(**LIMITS),
            ("_sock", *SETTINGS),
        )
        for kind in KINDS
    },
    **{
        f"redis.asyncio.connection.{kind}": (
            lambda kind=kind: getattr(redis.asyncio.connection, kind)(**LIMITS),
            ("_reader", "_writer", *SETTINGS),
        )
        for kind in KINDS
    },
    "redis.connection.DefaultParser": (lambda: redis.connection.DefaultParser, ("parse_error",)),
    "redis.connection": (lambda: redis.connection, ("parse_url",)),
    "redis.crc": (lambda: redis.crc, ("key_slot", "REDIS_CLUSTER_HASH_SLOTS")),
    "redis.ConnectionPool": (
        redis.ConnectionPool,
        ("connection_kwargs", "connection_class", "max_connections"),
    ),
    "redis.sentinel.SentinelConnectionPool": (
        lambda: redis.sentinel.SentinelConnectionPool("service", sentinels()),
        ("service_name", "sentinel_manager"),
    ),
    "redis.sentinel.Sentinel": (sentinels, ("sentinels",)),
    "redis.RedisCluster": (
        lambda: redis.RedisCluster,
        ("get_default_node", "mget_nonatomic", "disconnect_connection_pools", "_execute_pipeline_by_slot"),
    ),
    "redis.cluster.ClusterNode": (lambda: redis.cluster.ClusterNode("localhost", 1), ("redis_connection",)),
    "redis.exceptions.MovedError": (
        lambda: redis.exceptions.MovedError("1 localhost:7000"),
        ("host", "port", "node_addr", "slot_id"),
    ),
    "redis.credentials.StreamingCredentialProvider": (
        lambda: topology.StreamingCredentialProvider,
        ("on_next",),
    ),
}


def missing(owner: Any, attributes: tuple[str, ...]) -> list[str]:
    """The attributes that an object doesn't have."""
    return [name for name in attributes if not hasattr(owner, name)]


@pytest.mark.versions
class TestDriver:
    """What this app uses of redis-py beyond its documentation. Each failure names what has gone."""

    def test_this_version_is_tested(self) -> None:
        version = redis.__version__
        assert version.startswith(TRIED), f"Run tests/core with redis-py {version}, then add it."

    @pytest.mark.parametrize("name", USED)
    def test_it_has_what_this_app_uses(self, name: str) -> None:
        make, attributes = USED[name]
        gone = missing(make(), attributes)
        assert not gone, (
            f"{name} of redis-py {redis.__version__} has no {', '.join(gone)}: see core/connection.py, "
            "core/topology.py and cluster.py, which use it."
        )

    def test_the_check_finds_what_has_gone(self) -> None:
        assert missing(redis.connection.Connection(), ("_sock", "_socket")) == ["_socket"]

    def test_the_list_is_complete(self) -> None:
        """What core reads of the driver's connections, which it calls `dialed`."""
        assert connection.__file__ is not None
        with open(connection.__file__, encoding="utf-8") as file:
            read = set(re.findall(r"\bdialed\.(\w+)", file.read()))
        assert read == {"_sock", "_reader", "_writer", *SETTINGS}

    def test_a_blocking_connection_has_its_socket(self, server: Server) -> None:
        dialed = UnixDomainSocketConnection(path=str(server.socket), redis_connect_func=lambda _: None)
        assert dialed._sock is None
        dialed.connect()
        with dialed._sock as taken:
            dialed._sock = None
            assert isinstance(taken, socket.socket)
            taken.sendall(b"PING\r\n")
            assert taken.recv(100) == b"+PONG\r\n", "something was sent before"

    async def test_an_async_connection_has_its_streams(self, server: Server) -> None:
        kind = redis.asyncio.connection.UnixDomainSocketConnection
        dialed = kind(path=str(server.socket), redis_connect_func=lambda _: None)
        assert dialed._writer is None
        await dialed.connect()
        reader, writer, dialed._reader, dialed._writer = dialed._reader, dialed._writer, None, None
        assert isinstance(writer, asyncio.StreamWriter)
        writer.write(b"PING\r\n")
        assert await reader.read(100) == b"+PONG\r\n", "something was sent before"
        writer.close()
        await writer.wait_closed()
