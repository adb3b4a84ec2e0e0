"""Faults of networks and servers: errors, outcomes and durations."""

from __future__ import annotations

import asyncio
import gc
import math
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_messaging import deadline
from django_redis_messaging.core import clients
from django_redis_messaging.core.connection import AsyncConnection, BlockingConnection
from django_redis_messaging.core.outcome import MIN_READING_TIME, time_left, without_deadline
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import OutcomeUnknown, Unavailable
from tests.conftest import Call
from tests.core.conftest import Connect
from tests.core.test_retry import frozen, takes
from tests.support.example_service import Things
from tests.support.network import Network
from tests.support.proxy import LossyProxy

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

Until = Callable[[Callable[[], object]], None]
#: number of idle connections before each fault
IDLE = 6


@pytest.fixture
def network(private: EmbeddedServer) -> Iterator[Network]:
    with Network(private.socket) as started:
        yield started


async def make_idle(things: Things, number: int = IDLE) -> None:
    """Leave this many idle connections in both styles."""
    await asyncio.gather(*(things.aget("a") for _ in range(number)))
    meeting = threading.Barrier(number)

    def get(_: int) -> None:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(10)
        for _ in range(20):
            things.get("a")

    with ThreadPoolExecutor(number) as threads:
        await asyncio.to_thread(lambda: list(threads.map(get, range(number))))


async def warm(call: Call, things: Things) -> None:
    """Load the scripts into the server."""
    for _ in range(2):  # with the missing key, then, once the kind of server is detected, without it
        for name in ("add", "clear", "get"):
            await call(things, name, "a")
        await call(things, "clear", "a")


def fill(server: EmbeddedServer) -> None:
    """Let the server run out of memory."""
    with server.client() as admin:
        admin.config_set("maxmemory", 1)


def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time limits of the exchanges of both kinds of connections from now on, other than handshakes."""
    found: list[float] = []
    for kind in (BlockingConnection, AsyncConnection):

        def exchange(self: Any, calls: Any, seconds: float, *, send: Any = kind.exchange) -> Any:
            if calls[0][0] in ("EVALSHA", "EVAL"):
                found.append(seconds)
            return send(self, calls, seconds)

        def receive_all(self: Any, count: int, seconds: float, *, receive: Any = kind.receive_all) -> Any:
            found.append(seconds)
            return receive(self, count, seconds)

        monkeypatch.setattr(kind, "exchange", exchange)
        monkeypatch.setattr(kind, "receive_all", receive_all)
    return found


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(30)


class TestLostReplyThenRefusal:
    @pytest.fixture
    def lossy(self, private: EmbeddedServer) -> Iterator[LossyProxy]:
        with LossyProxy(private.socket) as started:
            yield started

    async def test_a_refusal_after_a_lost_reply_is_unknown(
        self, call: Call, connect: Connect, private: EmbeddedServer, lossy: LossyProxy
    ) -> None:
        things = connect(lossy)
        await warm(call, things)
        lossy.lose_next(then=lambda: fill(private))
        with pytest.raises(OutcomeUnknown, match=r"memory"):
            await call(things, "add", "a")
        assert await call(things, "get", "a") == b"1"

    async def test_a_wrong_type_after_a_lost_reply_is_unknown(
        self, call: Call, connect: Connect, private: EmbeddedServer, lossy: LossyProxy
    ) -> None:
        things = connect(lossy)
        await warm(call, things)

        def spoil() -> None:
            with private.client() as admin:
                admin.delete(things.key("a"))
                admin.rpush(things.key("a"), "x")

        lossy.lose_next(then=spoil)
        with pytest.raises(OutcomeUnknown):
            await call(things, "add", "a")

    async def test_a_read_raises_the_refusal(
        self, call: Call, connect: Connect, private: EmbeddedServer, lossy: LossyProxy
    ) -> None:
        things = connect(lossy, COMMAND_DEADLINE=1)
        await call(things, "get", "a")
        lossy.lose_next(100)
        with pytest.raises(Unavailable, match="was not applied"):
            await call(things, "get", "a")

    async def test_a_pipeline_that_was_partly_applied_is_unknown(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await call(things, "add", "a")
        fill(private)
        with pytest.raises(OutcomeUnknown, match="refused a part"):
            await call(things, "clear_and_add", "a", "b")
        assert await call(things, "get", "a") is None

    async def test_a_pipeline_that_only_read_is_unavailable(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await call(things, "add", "a")
        fill(private)
        with pytest.raises(Unavailable, match="nothing was written"):
            await call(things, "get_and_add", "a", "b")

    async def test_a_state_change_is_unknown_rather_than_false(
        self, call: Call, connect: Connect, lossy: LossyProxy
    ) -> None:
        things = connect(lossy)
        await warm(call, things)
        await call(things, "add", "a")
        lossy.lose_next()
        assert await call(things, "clear", "a") is None
        assert await call(things, "get", "a") is None
        await call(things, "add", "a")
        lossy.reset_next()
        assert await call(things, "clear", "a") == 1
        assert await call(things, "clear", "a") == 0
        await call(things, "add", "a")
        assert await call(things, "clear", "a") == 1


class TestRefusedConnection:
    """A server accepts a connection before it refuses it."""

    @pytest.fixture(params=["socket", "TCP"])
    def full(
        self, request: pytest.FixtureRequest, connect: Connect, private: EmbeddedServer, network: Network
    ) -> Iterator[Any]:
        """A client to change the server, which has no place for other clients. A name or password in LOCATION
        would be sent first, so there is none."""
        connect(private)
        url = (private if request.param == "socket" else network).url
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
        caches = {"default": entry, "messaging": entry}
        prefix = settings.REDIS_MESSAGING["PREFIX"]
        with (
            private.client() as admin,
            override_settings(CACHES=caches, REDIS_MESSAGING={"PREFIX": prefix, "COMMAND_DEADLINE": 0.3}),
        ):
            admin.ping()
            admin.config_set("maxclients", 1)
            yield admin

    @pytest.mark.parametrize("once", [False, True])
    async def test_nothing_was_applied(self, once: bool, call: Call, full: Any) -> None:
        things = Things()
        for _ in range(2):  # the kind of the server is not known, then it is
            with takes(0.25, 2), pytest.raises(Unavailable, match="was not applied"):
                await call(things, "add", "a", once=once)
            full.config_set("maxclients", 100)
            before = await call(things, "add", "a", once=once)
            clients.close()
            await clients.aclose()
            full.config_set("maxclients", 1)
        assert before == 2

    async def test_calls_succeed_as_soon_as_there_is_place(self, call: Call, full: Any) -> None:
        room = threading.Timer(0.1, lambda: full.config_set("maxclients", 100))
        with override_settings(REDIS_MESSAGING={**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 20}):
            room.start()
            assert await call(Things(), "add", "a", once=True) == 1
        room.join()


class TestReset:
    async def test_idle_connections_that_were_reset_are_not_noticed(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network)
        await make_idle(things)
        for _ in range(3):
            network.reset()
            assert await call(things, "add", "a", once=True) > 0
        assert await call(things, "get", "a") == b"3"

    async def test_reset_connections_of_waits_are_not_noticed(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network)
        for name in ("one", "two", "three"):
            assert await call(things, "take", name, 0.01) is None
        network.reset()
        for name in ("one", "four", "two"):
            assert await call(things, "take", name, 0.01) is None
        await call(things, "do", "ZADD", things.key("one"), 0, "x")
        assert await call(things, "take", "one", 5) == b"x"

    async def test_a_reset_during_a_call_that_is_sent_once_is_unknown(
        self, call: Call, connect: Connect, private: EmbeddedServer, network: Network
    ) -> None:
        things = connect(network)
        await call(things, "add", "a")
        reset = threading.Timer(0.2, network.reset)
        with frozen(private):
            reset.start()
            with takes(0.1, 3), pytest.raises(OutcomeUnknown):
                await call(things, "add", "a", once=True)
        reset.join()


class TestSilence:
    @pytest.mark.parametrize("once", [False, True])
    async def test_silently_dropped_connections_cost_one_timeout(
        self, once: bool, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network, COMMAND_DEADLINE=2)
        await make_idle(things)
        network.blackhole()
        with takes(0.9, 1.9):
            if once:
                with pytest.raises(OutcomeUnknown):
                    await call(things, "add", "a", once=True)
            else:
                assert await call(things, "add", "a") == 1
        with takes(0, 0.8):
            for _ in range(IDLE):
                await call(things, "add", "a", once=True)

    async def test_a_health_check_saves_the_timeout(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network, {"health_check_interval": 0.05})
        await make_idle(things)
        network.blackhole()
        await asyncio.sleep(0.06)
        with takes(0, 0.9):
            assert await call(things, "add", "a", once=True) == 1

    async def test_half_a_reply_does_not_block_a_wait(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network)
        network.halve_next(b"list")
        await call(things, "do", "ZADD", things.key("list"), 0, "x")
        with takes(0, 4):
            assert await call(things, "take", "list", 1.2) is None  # the hint is lost with its reply
        await call(things, "do", "ZADD", things.key("list"), 0, "y")
        assert await call(things, "take", "list", 5) == b"y"

    async def test_half_a_reply_does_not_block_a_call(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network, COMMAND_DEADLINE=2)
        await call(things, "do", "SET", things.key("a"), "x" * 100)
        network.halve_next(b"xxx")
        with takes(0.9, 2):
            assert await call(things, "get", "a") == b"x" * 100


class TestDeadline:
    async def test_a_long_socket_timeout_does_not_exceed_the_deadline(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, {"socket_timeout": 0.9}, COMMAND_DEADLINE=1)
        await call(things, "get", "a")
        with frozen(private), takes(0.9, 1.5), pytest.raises(Unavailable):
            await call(things, "get", "a")

    async def test_a_slow_reply_does_not_exceed_the_deadline(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network, COMMAND_DEADLINE=1)
        await call(things, "do", "SET", things.key("a"), "x" * 100)
        network.trickle = 0.05
        with takes(0.9, 1.6), pytest.raises(Unavailable):
            await call(things, "get", "a")

    async def test_a_slow_handshake_does_not_exceed_the_deadline(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network, COMMAND_DEADLINE=0.6)
        network.trickle = 0.2
        with takes(0.5, 1.3), pytest.raises(Unavailable):
            await call(things, "add", "a")

    async def test_a_slow_handshake_and_reply_do_not_exceed_the_deadline(
        self, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network, {"socket_timeout": 0.9}, COMMAND_DEADLINE=1)
        await warm(call, things)
        clients.close()
        await clients.aclose()
        network.trickle = 0.15  # 0.75 s for the reply to the handshake, 0.6 s for that to the call
        with takes(0.9, 1.25), pytest.raises(OutcomeUnknown):
            await call(things, "add", "a")

    async def test_a_block_has_a_shorter_deadline(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await call(things, "get", "a")
        with frozen(private), takes(0.4, 1.2), deadline(0.5), pytest.raises(Unavailable):
            await call(things, "get", "a")
        with deadline(0.5):
            assert await call(things, "add", "a") == 1

    async def test_a_deadline_limits_all_calls_of_the_block(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await call(things, "get", "a")
        with frozen(private), takes(0.4, 1.6), deadline(0.5):
            for _ in range(4):
                with pytest.raises(Unavailable):
                    await call(things, "get", "a")

    async def test_a_nested_block_can_only_shorten_it(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=2)
        await call(things, "get", "a")
        with frozen(private):
            with takes(0.2, 1), deadline(0.3), deadline(60), pytest.raises(Unavailable):
                await call(things, "get", "a")
            with takes(0.2, 1), deadline(60), deadline(0.3), pytest.raises(Unavailable):
                await call(things, "get", "a")
            with takes(1.9, 2.8), deadline(60), pytest.raises(Unavailable):
                await call(things, "get", "a")

    async def test_a_wait_in_a_block_ends_with_it(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        with takes(0.2, 1), deadline(0.3), pytest.raises(Unavailable, match="deadline"):
            await call(things, "take", "list", 20)
        with deadline(20):
            assert await call(things, "take", "list", 0.1) is None

    @pytest.mark.parametrize("kind", ["idle", "new", "pipeline"])
    async def test_an_attempt_after_the_deadline_waits_a_moment_for_its_reply(
        self,
        kind: str,
        call: Call,
        connect: Connect,
        private: EmbeddedServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        things = connect(private)
        await warm(call, things)
        if kind == "new":
            clients.close()
            await clients.aclose()
        limits = exchanges(monkeypatch)
        with deadline(0.001):
            while time_left() > 0:
                pass
            if kind == "pipeline":
                assert await call(things, "add_each", ["a", "b"]) == [1, 1]
            else:
                assert await call(things, "get", "a") is None
        assert limits and set(limits) == {MIN_READING_TIME}

    @pytest.mark.parametrize("seconds", [0, -1, float("nan")])
    def test_a_deadline_must_be_positive(self, seconds: float) -> None:
        with pytest.raises(ValueError, match="greater than 0"), deadline(seconds):
            pass


class TestRefusedForNow:
    async def test_a_server_that_could_not_save_is_retried(
        self, call: Call, connect: Connect, until: Until
    ) -> None:
        with EmbeddedServer() as server, server.client() as admin:
            things = connect(server)
            await call(things, "add", "a")
            admin.config_set("save", "3600 1")
            shutil.rmtree(admin.config_get("dir")["dir"], ignore_errors=True)
            admin.bgsave()
            until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
            cured = threading.Timer(0.4, admin.config_set, ["stop-writes-on-bgsave-error", "no"])
            cured.start()
            with takes(0.3, 5):
                assert await call(things, "add", "a") == 2
            cured.join()
            # otherwise the server refuses to stop
            admin.config_set("save", "")

    async def test_only_rejected_calls_are_repeated(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        pages = [[f"{page}-{at}" for at in range(50)] for page in range(3)]
        await call(things, "do", "SET", things.key("later 1-49"), "1")
        assert await call(things, "add_pages_once", pages) == [[1] * 50] * 3
        assert await call(things, "get", "0-0") == await call(things, "get", "1-0") == b"1"

    @pytest.mark.parametrize("reply", ["READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN"])
    async def test_a_new_connection_may_reach_another_server(
        self, reply: str, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        """Servers behind one address: a connection stays with the server it was opened to."""
        with EmbeddedServer() as other, Network(other.socket) as network:
            things = connect(network)
            await make_idle(things)
            script = f"return redis.error_reply('{reply} for this test')"
            refusing = clients.blocking_client("messaging"), clients.async_client("messaging")
            assert all(client.connections._idle[None] for client in refusing)
            network.target = str(private.socket)
            if reply == "READONLY":
                with other.client() as admin:
                    admin.replicaof("127.0.0.1", "1")
                assert await call(things, "add", "a") == 1
                with private.client() as there:
                    assert there.get(things.key("a")) == b"1"
            else:
                with deadline(0.3), pytest.raises(Unavailable):
                    await call(things, "do", "EVAL", script, 1, things.key("a"))
                assert network.lines[-1].connected_to == str(private.socket)


class TestWaits:
    async def test_a_restart_costs_at_most_a_hint(
        self, call: Call, connect: Connect, private: EmbeddedServer, until: Until
    ) -> None:
        things = connect(private)

        def restart_and_push() -> None:
            with private.client() as admin:
                until(lambda: admin.info("clients")["blocked_clients"] == 1)
            private.stop()
            time.sleep(0.5)  # the outage itself
            private.start()
            with private.client() as admin:
                admin.zadd(things.key("list"), {"x": 0})

        with meanwhile(restart_and_push), takes(0.5, 10):
            assert await call(things, "take", "list", 20) == b"x"

    async def test_a_wait_whose_server_died_does_not_affect_calls(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        for name in ("one", "two", "three"):
            assert await call(things, "take", name, 0.01) is None
        private.kill()
        private.start()
        for name in ("four", "one", "five"):
            assert await call(things, "take", name, 0.01) is None

    async def test_a_server_that_stays_down_is_unavailable(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=0.5)
        assert await call(things, "take", "list", 0.01) is None
        private.kill()
        with takes(0.4, 3), pytest.raises(Unavailable):
            await call(things, "take", "list", 30)

    async def test_connections_of_ended_waits_are_reused(
        self, call: Call, connect: Connect, private: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        things = connect(private)
        monkeypatch.setattr("django_redis_messaging.core.pool.ENDED", 0.0)
        monkeypatch.setattr("django_redis_messaging.core.commands.Wait.LINGER", 0.01)
        for at in range(20):
            assert await call(things, "take", f"{at}", 0.15) is None
        with private.client() as admin:
            assert admin.info("clients")["connected_clients"] <= 4


class TestLimits:
    async def test_no_more_than_max_connections(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, {"max_connections": 3})
        assert sorted(await asyncio.gather(*(things.aadd("a") for _ in range(30)))) == list(range(1, 31))
        with ThreadPoolExecutor(12) as threads:
            found = await asyncio.to_thread(lambda: list(threads.map(things.add, ["b"] * 60)))
        assert sorted(found) == list(range(1, 61))
        with private.client() as admin:
            ours = [one for one in admin.client_list() if one["name"].startswith("test-")]
        assert len(ours) <= 6  # three in each style

    async def test_waiting_for_a_connection_has_a_deadline(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, {"max_connections": 1}, COMMAND_DEADLINE=0.5)
        await things.aadd("a")
        things.add("a")
        with frozen(private), ThreadPoolExecutor(2) as threads, takes(0.3, 3):
            blocking = [threads.submit(things.add, "a") for _ in range(2)]
            awaiting = await asyncio.gather(things.aadd("a"), things.aadd("a"), return_exceptions=True)
            errors = [await asyncio.to_thread(one.exception, 10) for one in blocking] + awaiting
        assert {type(error) for error in errors} <= {OutcomeUnknown, Unavailable}
        assert any("max_connections" in str(error) for error in errors)

    async def test_waits_leave_connections_to_calls(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, {"max_connections": 2}, COMMAND_DEADLINE=2)
        waits = [asyncio.ensure_future(things.await_(f"{at}", 1.0)) for at in range(6)]
        await asyncio.sleep(0.1)
        with takes(0, 0.8):
            for _ in range(5):
                await things.aadd("a")
        assert await asyncio.gather(*waits) == [None] * 6

    async def test_a_pending_wait_gives_up_its_connection(
        self, call: Call, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, {"max_connections": 2})
        for name in ("one", "two", "three"):
            assert await call(things, "take", name, 0.01) is None
        with takes(0, 1):
            assert await call(things, "add", "a") == 1

    async def test_connections_that_were_idle_for_long_are_closed(
        self, call: Call, connect: Connect, network: Network, monkeypatch: pytest.MonkeyPatch, until: Until
    ) -> None:
        monkeypatch.setattr("django_redis_messaging.core.pool.MAX_IDLE", 0.3)
        things = connect(network)
        await make_idle(things)
        began = time.monotonic()
        while time.monotonic() < began + 0.5:
            await things.aadd("a")
            things.add("a")

        until(lambda: sum(line.thread.is_alive() for line in network.lines) <= 3)


class TestCancelledConnects:
    async def test_no_connection_stays_open(
        self, connect: Connect, private: EmbeddedServer, network: Network, until: Until
    ) -> None:
        things = connect(network, {"db": 1})
        network.trickle = 0.05
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            for at in range(10):
                connecting = asyncio.ensure_future(things.aadd("a"))
                await asyncio.sleep(at * 0.02)
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)
            await clients.aclose()
            gc.collect()
        network.trickle = 0
        until(lambda: not any(line.thread.is_alive() for line in network.lines))


async def test_a_background_task_does_not_inherit_the_deadline(things: Things) -> None:
    async def left() -> float:
        return time_left()

    with deadline(0.2):
        task = asyncio.get_running_loop().create_task(left(), context=without_deadline())
        assert time_left() <= 0.2
    assert await task == math.inf
