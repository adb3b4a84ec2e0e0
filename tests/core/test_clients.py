"""Connections: their owners, and that no event of one call affects another."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.connection import BlockingConnection
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.core.conftest import Connect
from tests.support.example_service import Things
from tests.support.processes import forked
from tests.support.proxy import LossyProxy

pytestmark = pytest.mark.usefixtures("closing")


def connected(server: EmbeddedServer) -> int:
    """The number of connections of the running test at the server."""
    name = settings.CACHES["messaging"]["LOCATION"].rpartition("client_name=")[2]
    with server.client() as admin:
        return sum(client["name"] == name for client in admin.client_list())


@pytest.mark.timing
class TestThreads:
    def test_threads_share_a_client_and_get_their_own_replies(self, things: Things) -> None:
        def count(name: str) -> list[int]:
            return [things.add(name) for _ in range(200)]

        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(count, map(str, range(8))))
        assert found == [list(range(1, 201))] * 8

    def test_there_are_as_many_connections_as_concurrent_calls(
        self, things: Things, server: EmbeddedServer
    ) -> None:
        for _ in range(20):
            things.add("a")
        assert connected(server) == 1
        meeting = threading.Barrier(4)

        def add(_: int) -> None:
            meeting.wait(10)
            for _ in range(50):
                things.add("a")

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(add, range(4)))
        assert 1 <= connected(server) <= 4

    def test_the_call_after_close_reconnects(
        self, things: Things, server: EmbeddedServer, until: Callable[..., None]
    ) -> None:
        things.add("a")
        things.wait("nothing", 0.01)
        clients.close()
        until(lambda: connected(server) == 0)
        assert things.add("a") == 2


class TestForks:
    def test_a_forked_child_has_its_own_connections(self, things: Things) -> None:
        things.add("a")

        def child() -> bool:
            return all(things.add("child") == n for n in range(1, 101))

        with forked(child) as finished:
            mine = [things.add("parent") for _ in range(100)]
            assert finished()
        assert mine == list(range(1, 101))
        assert things.add("a") == 2

    def test_a_child_that_ends_does_not_close_the_parents_connections(
        self, things: Things, server: EmbeddedServer
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
        began = time.monotonic()
        assert await things.aadd("a") == 2
        assert time.monotonic() - began < 5


@pytest.mark.timing
class TestInterruptions:
    def test_the_reply_of_an_interrupted_call_does_not_reach_the_next(
        self, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        things.add("a", 1000)
        private.freeze()
        try:
            with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
                things.add("a", 1000)
        finally:
            private.thaw()
        assert [things.add("b"), things.add("b")] == [1, 2]

    def test_the_reply_of_an_interrupted_wait_does_not_reach_the_next(self, things: Things) -> None:
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
            things.wait("list", 30)
        things.do("ZADD", things.key("list"), 0, "x")
        assert things.wait("list", 5) == b"x"

    def test_the_reply_of_a_pending_wait_does_not_reach_another(
        self, things: Things, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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

    async def test_the_reply_of_a_cancelled_call_does_not_reach_the_next(
        self, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await things.aadd("a", 1000)
        private.freeze()
        try:
            call = asyncio.ensure_future(things.aadd("a", 1000))
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        finally:
            private.thaw()
        assert [await things.aadd("b"), await things.aadd("b")] == [1, 2]

    async def test_a_call_cancelled_while_it_connects(
        self, connect: Connect, private: EmbeddedServer, until: Callable[..., None]
    ) -> None:
        things = connect(private)
        private.freeze()
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await things.aadd("a")
        finally:
            private.thaw()
        gc.collect()  # a connection left open would warn here
        assert await things.aadd("b") == 1
        assert connected(private) == 1

    async def test_an_interrupt_at_any_time(self, things: Things) -> None:
        await things.aadd("a")
        for at in range(60):
            call = asyncio.ensure_future(things.aadd(f"other-{at}", 1000))
            for _ in range(at % 6):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await things.aadd(f"{at}") == 1

    @pytest.mark.long
    async def test_three_thousand_cancellations(self, things: Things) -> None:
        """Cancel calls of many tasks: each of the others gets its own reply."""

        async def count(name: str) -> None:
            for number in range(1, 61):
                cancelled = [asyncio.ensure_future(things.aadd(f"not {name}", 1000)) for _ in range(3)]
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                for one in cancelled:
                    one.cancel()
                assert await things.aadd(name) == number
                await asyncio.gather(*cancelled, return_exceptions=True)

        await asyncio.gather(*(count(f"{at}") for at in range(17)))

    @pytest.mark.long
    def test_three_thousand_six_hundred_interrupts(self, things: Things) -> None:
        number, interrupts = 0, 0
        chance = random.Random(0)
        while interrupts < 3600:
            try:
                with interrupted_after(chance.uniform(0.00001, 0.0005)):
                    for _ in range(20):
                        things.add("other", 1000)
            except KeyboardInterrupt:
                interrupts += 1
            number += 1
            assert things.add("a") == number

    async def test_a_cancelled_wait_removes_no_hint(self, things: Things) -> None:
        call = asyncio.ensure_future(things.await_("list", 30))
        await asyncio.sleep(0.1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await things.ado("ZADD", things.key("list"), 0, "x")
        assert await things.await_("list", 5) == b"x"


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


class TestEventLoops:
    async def test_tasks_share_a_client_and_get_their_own_replies(self, things: Things) -> None:
        async def count(name: str) -> list[int]:
            return [await things.aadd(name) for _ in range(50)]

        found = await asyncio.gather(*(count(f"{at}") for at in range(20)))
        assert found == [list(range(1, 51))] * 20

    def test_each_loop_has_its_own_client(self, things: Things) -> None:
        async def add() -> tuple[int, int]:
            added = await things.aadd("a")
            client = id(clients.async_client(things._using))
            assert id(clients.async_client(things._using)) == client
            await clients.aclose()
            return added, client

        found = [asyncio.run(add()) for _ in range(3)]
        assert [added for added, _ in found] == [1, 2, 3]

    def test_loops_in_two_threads_at_once(self, things: Things) -> None:
        async def count(name: str) -> list[int]:
            found = [await things.aadd(name) for _ in range(100)]
            await clients.aclose()
            return found

        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(lambda name: asyncio.run(count(name)), ["a", "b"]))
        assert found == [list(range(1, 101))] * 2

    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_clients_of_closed_loops_are_removed(self, things: Things) -> None:
        async def careless() -> int:
            return await things.aadd("a")

        before = len(clients._running)
        for _ in range(5):
            asyncio.run(careless())
        assert len(clients._running) <= before + 1
        clients._running.clear()
        gc.collect()

    async def test_a_change_of_the_settings_closes_its_connections(
        self, things: Things, server: EmbeddedServer, until: Callable[..., None]
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
            assert sorted(threads.map(run, range(200))) == list(range(1, 201))

    async def test_aclose_closes_the_connections_of_the_running_loop(
        self, things: Things, server: EmbeddedServer, until: Callable[..., None]
    ) -> None:
        await things.aadd("a")
        await clients.aclose()
        until(lambda: connected(server) == 0)
        assert await things.aadd("a") == 2


@pytest.mark.timing
def test_a_blocking_client_drops_dead_connections(connect: Connect, private: EmbeddedServer) -> None:
    things = connect(private)
    meeting = threading.Barrier(12)

    def add(_: int) -> None:
        meeting.wait(10)
        things.wait("nothing", 0.05)
        things.add("a")

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(add, range(12)))
    private.restart()
    began = time.monotonic()
    assert things.add("a") == 13
    assert time.monotonic() - began < 5


def test_a_proxy_is_not_noticed(connect: Connect, proxy: LossyProxy) -> None:
    things = connect(proxy)
    assert things.add_each([f"{at}" for at in range(50)]) == [1] * 50
    assert proxy.lost == 0
