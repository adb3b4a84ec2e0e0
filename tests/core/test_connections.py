"""The limit of connections: queued callers get one in the order of their arrival, and none is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from redis.exceptions import MaxConnectionsError

from django_redis_messaging import DelayQueue, Lock, Semaphore, conf, deadline
from django_redis_messaging.core import clients
from django_redis_messaging.core.connection import Address, run_blocking
from django_redis_messaging.core.outcome import NotSent
from django_redis_messaging.core.pool import Connections
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.jobs.engine import Engine
from django_redis_messaging.services.jobs.running import Heartbeat, RunningJobs
from tests.core.conftest import Connect
from tests.support.example_service import Things

pytestmark = pytest.mark.usefixtures("closing")

#: seconds; longer than anything takes here
LONG = 20.0


@pytest.fixture
def limited(connect: Connect, server: EmbeddedServer) -> Callable[..., Things]:
    """The service with this number of connections."""
    return lambda limit, **messaging: connect(server, {"max_connections": limit}, **messaging)


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


async def queue_up(connections: Connections, seconds: float = LONG) -> asyncio.Task[object]:
    """A task that is queued for a connection."""
    task = asyncio.ensure_future(connections.take(None, seconds))
    await asyncio.sleep(0)
    assert not task.done()
    return task


class TestOrder:
    async def test_a_running_task_does_not_overtake(self, limited: Callable[..., Things]) -> None:
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
    async def test_a_thousand_tasks(self, limited: Callable[..., Things]) -> None:
        things, longest, ends = limited(100), 0.0, time.monotonic() + 2

        async def run_on() -> None:
            nonlocal longest
            while (began := time.monotonic()) < ends:
                await things.aadd("a")
                longest = max(longest, time.monotonic() - began)

        await asyncio.gather(*(run_on() for _ in range(1000)))
        assert longest < 5  # before, some waited for as long as they were overtaken: to the deadline

    @pytest.mark.timing
    def test_more_threads_than_connections(self, limited: Callable[..., Things]) -> None:
        things, ends = limited(20), time.monotonic() + 2

        def run_on(_: int) -> float:
            longest = 0.0
            while (began := time.monotonic()) < ends:
                things.add("a")
                longest = max(longest, time.monotonic() - began)
            return longest

        with ThreadPoolExecutor(40) as threads:
            assert max(threads.map(run_on, range(40))) < 5

    async def test_the_first_in_line_gets_what_is_given_back(self, limited: Callable[..., Things]) -> None:
        limited(1)
        connections = clients.async_client("messaging").connections
        held = await connections.take(None, LONG)
        tasks = [await queue_up(connections) for _ in range(3)]
        for task in tasks:
            connections.give_back(held)
            assert connections.take_idle(None) is None  # a newcomer finds none
            assert await task is held
        connections.give_back(held)
        assert connections.take_idle(None) is held
        connections.give_back(held)

    async def test_the_first_in_line_opens_one_after_another_was_closed(
        self, limited: Callable[..., Things]
    ) -> None:
        limited(1)
        connections = clients.async_client("messaging").connections
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

    async def test_a_broken_connection_is_replaced_for_the_same_caller(
        self, limited: Callable[..., Things]
    ) -> None:
        limited(1)
        connections = clients.async_client("messaging").connections
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

    async def test_after_a_change_of_credentials_the_first_in_line_opens_one(
        self, limited: Callable[..., Things]
    ) -> None:
        limited(1)
        client = clients.async_client("messaging")
        held = await client.connections.take(None, LONG)
        first = await queue_up(client.connections)
        client.endpoint.credentials += 1
        client.connections.give_back(held)
        opened = await first
        assert opened.credentials == client.endpoint.credentials  # type: ignore[attr-defined]
        client.connections.give_back(opened)

    async def test_a_call_gets_the_connection_of_a_wait_that_nobody_needs_any_more(
        self, limited: Callable[..., Things]
    ) -> None:
        things = limited(2, COMMAND_DEADLINE=LONG)
        waiting = asyncio.ensure_future(things.await_("list", 0.2))
        connections = clients.async_client("messaging").connections
        while not waiting.done() and len(connections._open[None]) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        held = await connections.take(None, LONG)
        began = time.monotonic()
        assert await things.aadd("a") == 1
        assert time.monotonic() - began < LONG / 2
        assert await waiting is None
        connections.give_back(held)


class TestNothingIsLost:
    @pytest.mark.parametrize("closed", [False, True], ids=["given back", "closed"])
    async def test_a_task_cancelled_at_the_moment_of_the_hand_over(
        self, closed: bool, limited: Callable[..., Things]
    ) -> None:
        limited(1)
        connections = clients.async_client("messaging").connections
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

    async def test_a_task_that_leaves_the_queue_gets_none(self, limited: Callable[..., Things]) -> None:
        limited(1)
        connections = clients.async_client("messaging").connections
        held = await connections.take(None, LONG)
        first, second = await queue_up(connections, 0.01), await queue_up(connections)
        with pytest.raises(NotSent) as raised:
            await first
        assert isinstance(raised.value.__cause__, MaxConnectionsError)
        connections.give_back(held)
        assert await second is held
        connections.give_back(held)

    @pytest.mark.timing
    def test_threads_whose_deadline_ends_at_any_time(self, limited: Callable[..., Things]) -> None:
        things = limited(2)
        done: list[int] = []

        def take_and_give_back(number: int) -> None:
            connections = clients.blocking_client("messaging").connections
            for at in range(150):
                with suppress(NotSent):
                    taken = run_blocking(partial(connections.take, None), 0.0001 * ((number + at) % 10))
                    done.append(at)
                    time.sleep(0.0002)
                    connections.give_back(taken)

        connections = clients.blocking_client("messaging").connections
        for opened in [run_blocking(partial(connections.take, None), 10.0) for _ in range(2)]:
            connections.give_back(opened)
        with ThreadPoolExecutor(12) as threads:
            list(threads.map(take_and_give_back, range(12)))
        connections = clients.blocking_client("messaging").connections
        assert done
        assert not connections._queues
        with all_in_use(2), pytest.raises(NotSent):
            take_blocking(0.01)
        assert things.add("a") == 1

    def test_waits_that_begin_at_the_same_moment_leave_connections_to_calls(
        self, limited: Callable[..., Things], monkeypatch: pytest.MonkeyPatch
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
        with ThreadPoolExecutor(2) as threads:
            waiting = [
                threads.submit(run_blocking, partial(connections.take_for_wait, None), LONG) for _ in range(2)
            ]
            taken = [one.result() for one in waiting]
        assert sum(one is not None for one in taken) == 1
        for one in filter(None, taken):
            connections.give_back(one)


class TestRenewals:
    """What keeps a lease has a connection of its own."""

    @pytest.mark.timing
    @pytest.mark.parametrize("kind", ["lock", "semaphore"])
    def test_a_lease_is_kept_while_all_connections_are_in_use(
        self, kind: str, limited: Callable[..., Things]
    ) -> None:
        limited(1)
        lost = threading.Event()
        options = {"timeout": 0.4, "renew": True, "on_lost": lambda _: lost.set()}
        resource = Lock("door", **options) if kind == "lock" else Semaphore("door", 1, **options)  # type: ignore[arg-type]
        resource.acquire()
        with all_in_use(1):
            assert not lost.wait(1)
        resource.release()

    @pytest.mark.timing
    @pytest.mark.parametrize("style", ["work", "awork"])
    async def test_the_lease_of_a_job_is_kept_while_all_connections_are_in_use(
        self, style: str, limited: Callable[..., Things], caplog: pytest.LogCaptureFixture
    ) -> None:
        limited(1, COMMAND_DEADLINE=0.3)
        queue, stop = DelayQueue("calls"), threading.Event()

        def occupy() -> None:
            with all_in_use(1):
                threading.Event().wait(1)
            stop.set()

        async def aoccupy() -> None:
            connections = clients.async_client("messaging").connections
            taken = await connections.take(None, LONG)
            await asyncio.sleep(1)
            connections.give_back(taken)
            stop.set()

        await queue.apush(["occupy", []])
        if style == "work":
            await asyncio.to_thread(queue.work, {"occupy": occupy}, stop=stop, lease=0.4)
        else:
            await queue.awork({"occupy": aoccupy}, stop=stop, lease=0.4)
        assert "lease" not in caplog.text

    def test_the_heartbeat_of_a_worker(self, limited: Callable[..., Things]) -> None:
        limited(1)
        engine = Engine(conf.prefix(), "queue", "calls")
        heartbeat = Heartbeat(engine, "messaging", "w", RunningJobs(), 30, lambda: 0, lambda: None)
        with all_in_use(1), deadline(LONG / 2):
            heartbeat.report()
