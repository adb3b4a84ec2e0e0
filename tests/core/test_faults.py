"""Errors, outcomes and durations when servers stop, freeze or refuse, and networks lose or delay."""

from __future__ import annotations

import asyncio
import gc
import math
import shutil
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from redis import exceptions as driver

from django_redis_messaging import ConfigurationError, MessagingError, OutcomeUnknown, Unavailable, deadline
from django_redis_messaging.core import clients
from django_redis_messaging.core.connection import AsyncConnection, BlockingConnection
from django_redis_messaging.core.operations import Script, Service, Steps, asynchronous, operation
from django_redis_messaging.core.outcome import (
    MIN_READING_TIME,
    Attempts,
    NotSent,
    no_retries_when,
    time_left,
    translate_error,
    without_deadline,
)
from django_redis_messaging.devserver.server import EmbeddedServer as Server
from tests.conftest import Call
from tests.core.conftest import Connect, at_once, close_all, frozen, make_idle, meanwhile, takes, warm
from tests.support.aliases import leading_to
from tests.support.clusters import until
from tests.support.example_service import Things
from tests.support.proxy import LossyProxy, Network

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

#: seconds; the deadline in tests of failing operations
SHORT = 0.4
#: seconds; the maximum duration of a failing operation, with its last attempt, on a busy machine
SHORT_AT_MOST = SHORT + 2.0
NOWHERE = "unix:///nowhere/at-all.sock?db=0"


@pytest.fixture
def things(connect: Connect, private: Server) -> Things:
    """The service, on a server that the test may break."""
    return connect(private)


class TestOutages:
    @pytest.mark.parametrize(
        ("is_connected", "fault", "operation", "once", "error", "text"),
        [
            (False, "stopped", "add", False, Unavailable, "was not applied"),
            (True, "stopped", "add", True, Unavailable, "was not applied"),  # the connection was idle
            (False, "unreachable", "get", False, Unavailable, "CACHES"),
            (True, "frozen", "add", False, OutcomeUnknown, "request_id"),
            (True, "frozen", "get", False, Unavailable, None),
            # a new connection begins with a handshake, which gets no reply
            (False, "frozen", "add", False, Unavailable, None),
        ],
    )
    async def test_errors(
        self,
        is_connected: bool,
        fault: str,
        operation: str,
        once: bool,
        error: type[MessagingError],
        text: str | None,
        call: Call,
        connect: Connect,
        private: Server,
    ) -> None:
        things = connect(NOWHERE if fault == "unreachable" else private, COMMAND_DEADLINE=SHORT)
        if is_connected:
            await call(things, operation, "a")
        if fault == "stopped":
            private.stop()
        breaking = frozen(private) if fault == "frozen" else nullcontext()
        with breaking, takes(SHORT * 0.9, SHORT_AT_MOST), pytest.raises(error, match=text):
            await call(things, operation, "a", **({"once": True} if once else {}))
        if fault == "frozen":  # the late reply is that of no other call
            assert await call(things, "add", "b", 5) == 5

    async def test_a_server_that_restarts_in_time(self, call: Call, things: Things, private: Server) -> None:
        await call(things, "add", "a")
        private.stop()
        with meanwhile(private.start, after=0.2):
            assert await call(things, "add", "a") == 2
        private.restart()  # this one is not noticed
        with at_once():
            assert await call(things, "add", "a") == 3

    @pytest.mark.parametrize("number", [12, 30])
    async def test_many_dead_connections_cost_one_attempt(
        self, number: int, call: Call, connect: Connect, private: Server
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=3)
        await make_idle(things, number)
        private.restart()
        with takes(0, 2.5):
            assert await call(things, "add", "a") == 1


class TestLostReplies:
    @pytest.fixture(autouse=True)
    def known(self, connect: Connect, server: Server) -> None:
        """Load the scripts, so that the lost reply is that of a script that ran."""
        things = connect(server)
        for _ in range(2):  # with the missing key, then, once the kind of server is detected, without it
            things.add("known")
            things.get("known")

    async def test_a_call_is_repeated(self, call: Call, connect: Connect, proxy: LossyProxy) -> None:
        things = connect(proxy)
        await call(things, "add", "a")
        proxy.lose_next(2)
        assert await call(things, "add", "a") == 4  # INCR is not idempotent: each attempt is visible
        assert proxy.lost == 2

    @pytest.mark.parametrize(
        ("options", "limit"),
        [({"socket_timeout": 0.2}, 10), ({}, 1.0)],
        ids=["its timeout", "half the deadline"],
    )
    async def test_a_call_without_a_reply_is_repeated(
        self, options: dict[str, Any], limit: float, call: Call, connect: Connect, proxy: LossyProxy
    ) -> None:
        things = connect(proxy, options, COMMAND_DEADLINE=limit)
        await call(things, "add", "a")
        proxy.lose_next(1, hang_up=False)
        with takes(0.2, 2):
            assert await call(things, "add", "a") == 3

    async def test_a_script_knows_when_the_answered_attempt_was_sent(
        self, call: Call, connect: Connect, proxy: LossyProxy
    ) -> None:
        """Else a lease would seem to end too early, by the time of the failed attempts."""

        class Timed(Service):
            @operation
            def add(self, key: str) -> Steps[float]:
                began, script = time.monotonic(), Script("thing_add", [key], [1])
                yield script
                return script.sent_since(began) - began

            aadd = asynchronous(add)

        things, timed = connect(proxy, COMMAND_DEADLINE=1.0), Timed()
        await call(things, "add", "a")
        assert await call(timed, "add", things.key("a")) == 0
        proxy.lose_next(1, hang_up=False)
        assert await call(timed, "add", things.key("a")) >= 0.25

    async def test_a_once_step_is_not_repeated(self, call: Call, connect: Connect, proxy: LossyProxy) -> None:
        class Mixed(Service):
            @operation
            def add(self, key: str) -> Steps[list[int]]:
                repeated, once = Script("thing_add", [key], [1]), Script("thing_add", [key], [10], once=True)
                replies: list[int] = yield [repeated, once]
                return replies

            aadd = asynchronous(add)

        things = connect(proxy)
        await call(things, "add", "a")
        proxy.lose_next(1)
        with at_once(), pytest.raises(OutcomeUnknown):
            await call(things, "add", "a", once=True)
        assert await call(things, "get", "a") == b"2"
        proxy.lose_next(1)
        with at_once(), pytest.raises(OutcomeUnknown):
            await call(Mixed(), "add", things.key("a"))
        assert await call(things, "get", "a") == b"13"

    async def test_a_third_of_all_replies(self, call: Call, connect: Connect, proxy: LossyProxy) -> None:
        things = connect(proxy)
        proxy.lose_some(0.3)
        for at in range(40):
            await call(things, "add", f"{at}")
            assert await call(things, "get", f"{at}") is not None
        assert proxy.lost > 10

    async def test_a_lost_topology_is_asked_for_again(
        self, call: Call, connect: Connect, server: Server
    ) -> None:
        """Nothing of the first call has been sent by then."""
        with LossyProxy(server.socket, asking=b"CLUSTER") as proxy:
            things = connect(proxy)
            proxy.lose_next()
            assert await call(things, "add", "a", once=True) == 1
            assert proxy.lost == 1


class TestLostReplyThenRefusal:
    @pytest.fixture
    def lossy(self, private: Server) -> Iterator[LossyProxy]:
        with LossyProxy(private.socket) as started:
            yield started

    async def test_a_write_is_unknown(
        self, call: Call, connect: Connect, admin: Any, lossy: LossyProxy
    ) -> None:
        things = connect(lossy)
        await warm(call, things)

        def spoil() -> None:
            admin.delete(things.key("b"))
            admin.rpush(things.key("b"), "x")

        lossy.lose_next(then=spoil)
        with pytest.raises(OutcomeUnknown):
            await call(things, "add", "b")
        lossy.lose_next(then=lambda: admin.config_set("maxmemory", 1))
        with pytest.raises(OutcomeUnknown, match=r"memory"):
            await call(things, "add", "a")
        assert await call(things, "get", "a") == b"1"

    async def test_a_read_is_unavailable(self, call: Call, connect: Connect, lossy: LossyProxy) -> None:
        things = connect(lossy, COMMAND_DEADLINE=SHORT)
        await call(things, "get", "a")
        lossy.lose_next(100)
        with pytest.raises(Unavailable, match="was not applied"):
            await call(things, "get", "a")

    async def test_a_pipeline(self, call: Call, things: Things, admin: Any) -> None:
        """It was partly applied, or it only read."""
        await call(things, "add", "a")
        admin.config_set("maxmemory", 1)
        with pytest.raises(Unavailable, match="nothing was written"):
            await call(things, "get_and_add", "a", "b")
        with pytest.raises(OutcomeUnknown, match="refused a part"):
            await call(things, "clear_and_add", "a", "b")
        assert await call(things, "get", "a") is None

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
        assert [await call(things, "clear", "a") for _ in range(2)] == [1, 0]
        await call(things, "add", "a")
        assert await call(things, "clear", "a") == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("preparation", "options", "operation", "error", "text"),
        [
            ("ZADD {} 0 x", {}, "add", ConfigurationError, "another type"),
            (
                "ACL SETUSER limited on >secret ~*test-* +@all -set",
                {"username": "limited", "password": "secret"},
                "do",
                ConfigurationError,
                "ACL",
            ),
            (
                "ACL SETUSER limited on >secret ~*test-* +@all -incrby",
                {"username": "limited", "password": "secret"},
                "add",
                ConfigurationError,
                "ACL",
            ),
            ("PING", {"username": "nobody", "password": "wrong"}, "add", ConfigurationError, "password"),
            ("CONFIG SET requirepass secret", {}, "add", ConfigurationError, "password"),
            ("CONFIG SET maxmemory 1", {}, "add", Unavailable, "out of memory"),
        ],
        ids=["type", "ACL, command", "ACL, in a script", "wrong password", "no password", "memory"],
    )
    async def test_errors(
        self,
        preparation: str,
        options: dict[str, Any],
        operation: str,
        error: type[MessagingError],
        text: str,
        call: Call,
        connect: Connect,
        private: Server,
        admin: Any,
    ) -> None:
        things = connect(private, options)
        admin.execute_command(*preparation.format(things.key("a")).split())
        words = ("SET", things.key("a"), "1") if operation == "do" else ("a",)
        with at_once(), pytest.raises(error, match=text):
            await call(things, operation, *words)
        if error is Unavailable:
            assert await call(things, "get", "a") is None

    async def test_a_wait_ends_in_time(
        self, call: Call, things: Things, admin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A replica refuses to pop; the pause before the next attempt would be longer than the wait."""
        await call(things, "add", "a")
        monkeypatch.setattr("django_redis_messaging.core.outcome.backoff", lambda *_, **__: 5.0)
        admin.replicaof("127.0.0.1", "1")
        with takes(0, 4):
            assert await call(things, "take", "list", 0.3) is None

    async def test_a_replica_until_it_is_promoted(self, call: Call, things: Things, admin: Any) -> None:
        admin.replicaof("127.0.0.1", "1")
        with meanwhile(lambda: admin.replicaof("NO", "ONE"), after=0.2):
            assert await call(things, "add", "a") == 1

    async def test_a_busy_server(self, call: Call, things: Things, private: Server, admin: Any) -> None:
        await call(things, "add", "a")
        admin.config_set("busy-reply-threshold", 50)

        def run_for_ever() -> None:
            with private.client(socket_timeout=None) as other, pytest.raises(driver.ResponseError):
                other.eval("while true do end", 0)

        def is_busy() -> bool:
            try:
                admin.ping()
            except driver.ResponseError as error:
                return str(error).startswith("BUSY") or "busy" in str(error)
            return False

        with meanwhile(run_for_ever):
            until(is_busy)
            with meanwhile(admin.script_kill, after=0.2):
                assert await call(things, "add", "a") == 2

    async def test_a_server_that_could_not_save(
        self, call: Call, things: Things, private: Server, admin: Any
    ) -> None:
        await call(things, "add", "a")
        admin.config_set("appendonly", "no")
        admin.config_set("save", "3600 1")
        shutil.rmtree(private.directory, ignore_errors=True)
        admin.bgsave()
        until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        with (
            meanwhile(lambda: admin.config_set("stop-writes-on-bgsave-error", "no"), after=0.3),
            takes(0.2, 5),
        ):
            assert await call(things, "add", "a") == 2
        admin.config_set("save", "")  # otherwise the server refuses to stop

    async def test_only_refused_calls_are_repeated(self, call: Call, things: Things) -> None:
        pages = [[f"{page}-{at}" for at in range(50)] for page in range(3)]
        await call(things, "do", "SET", things.key("later 1-49"), "1")
        assert await call(things, "add_pages_once", pages) == [[1] * 50] * 3
        assert await call(things, "get", "0-0") == await call(things, "get", "1-0") == b"1"

    @pytest.mark.parametrize("reply", ["READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN"])
    async def test_a_new_connection_may_reach_another_server(
        self, reply: str, call: Call, connect: Connect, private: Server
    ) -> None:
        """Servers behind one address: a connection stays with the server it was opened to."""
        with Server() as other, Network(other.socket) as network:
            things = connect(network)
            await make_idle(things)
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
                script = f"return redis.error_reply('{reply} for this test')"
                with deadline(0.3), pytest.raises(Unavailable):
                    await call(things, "do", "EVAL", script, 1, things.key("a"))
                assert network.lines[-1].connected_to == str(private.socket)


class TestRefusedConnection:
    """A server accepts a connection before it refuses it."""

    @pytest.fixture(params=["socket", "TCP"])
    def full(
        self, request: pytest.FixtureRequest, private: Server, network: Network, admin: Any
    ) -> Iterator[Any]:
        """A client to change the server, which has no place for other clients. A name or password in LOCATION
        would be sent first, so there is none."""
        url = (private if request.param == "socket" else network).url
        where = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
        with leading_to(where, PREFIX="test", COMMAND_DEADLINE=0.3):
            admin.config_set("maxclients", 1)
            yield admin

    @pytest.mark.parametrize("once", [False, True])
    async def test_nothing_was_applied(self, once: bool, call: Call, full: Any) -> None:
        things = Things()
        for number in (1, 2):  # the kind of the server is not known, then it is
            with takes(0.25, 2), pytest.raises(Unavailable, match="was not applied"):
                await call(things, "add", "a", once=once)
            full.config_set("maxclients", 100)
            assert await call(things, "add", "a", once=once) == number
            await close_all()
            full.config_set("maxclients", 1)

    async def test_calls_succeed_as_soon_as_there_is_place(self, call: Call, full: Any) -> None:
        messaging = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 20}
        make_room = meanwhile(lambda: full.config_set("maxclients", 100), after=0.1)
        with override_settings(REDIS_MESSAGING=messaging), make_room:
            assert await call(Things(), "add", "a", once=True) == 1


class TestReset:
    async def test_idle_connections(self, call: Call, connect: Connect, network: Network) -> None:
        things = connect(network)
        await make_idle(things)
        for _ in range(3):
            network.reset()
            assert await call(things, "add", "a", once=True) > 0
        assert await call(things, "get", "a") == b"3"

    async def test_a_call_that_is_sent_once_is_unknown(
        self, call: Call, connect: Connect, private: Server, network: Network
    ) -> None:
        things = connect(network)
        await call(things, "add", "a")
        resetting = meanwhile(network.reset, after=0.2)
        with frozen(private), resetting, takes(0.1, 3), pytest.raises(OutcomeUnknown):
            await call(things, "add", "a", once=True)


class TestSilence:
    @pytest.mark.parametrize("once", [False, True])
    async def test_dropped_connections_cost_one_timeout(
        self, once: bool, call: Call, connect: Connect, network: Network
    ) -> None:
        things = connect(network, {"socket_timeout": 1}, COMMAND_DEADLINE=4)
        await make_idle(things)
        network.blackhole()
        with takes(0.9, 1.9), pytest.raises(OutcomeUnknown) if once else nullcontext():
            assert await call(things, "add", "a", once=once) == 1
        with takes(0, 0.9):
            for _ in range(6):
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

    async def test_half_a_reply(self, call: Call, connect: Connect, network: Network) -> None:
        things = connect(network, COMMAND_DEADLINE=1)
        await call(things, "do", "SET", things.key("a"), "x" * 100)
        network.halve_next(b"xxx")
        with takes(0.4, 1):
            assert await call(things, "get", "a") == b"x" * 100


class TestDeadline:
    async def test_a_longer_timeout(self, call: Call, connect: Connect, private: Server) -> None:
        things = connect(private, {"socket_timeout": 0.9 * SHORT}, COMMAND_DEADLINE=SHORT)
        await call(things, "get", "a")
        with frozen(private), takes(0.9 * SHORT, SHORT + 0.3), pytest.raises(Unavailable):
            await call(things, "get", "a")

    @pytest.mark.parametrize(("trickle", "is_reply"), [(0.05, True), (0.2, False)])
    async def test_slow_bytes(
        self, trickle: float, is_reply: bool, call: Call, connect: Connect, network: Network
    ) -> None:
        """Of a reply, or of the handshake."""
        things = connect(network, COMMAND_DEADLINE=SHORT)
        if is_reply:
            await call(things, "do", "SET", things.key("a"), "x" * 100)
        network.trickle = trickle
        with takes(SHORT * 0.9, SHORT + 0.7), pytest.raises(Unavailable):
            await call(things, "get", "a")

    async def test_a_slow_handshake_and_reply(self, call: Call, connect: Connect, network: Network) -> None:
        things = connect(network, {"socket_timeout": 0.9}, COMMAND_DEADLINE=1)
        await warm(call, things)
        await close_all()
        network.trickle = 0.15  # 0.75 s for the reply to the handshake, 0.6 s for that to the call
        with takes(0.9, 1.25), pytest.raises(OutcomeUnknown):
            await call(things, "add", "a")

    async def test_a_block_limits_all_of_its_calls(self, call: Call, things: Things, private: Server) -> None:
        await call(things, "get", "a")
        with frozen(private), takes(0.9 * SHORT, SHORT + 1), deadline(SHORT):
            for _ in range(4):
                with pytest.raises(Unavailable):
                    await call(things, "get", "a")
        with deadline(SHORT):
            assert await call(things, "add", "a") == 1

    async def test_a_nested_block_can_only_shorten_it(
        self, call: Call, connect: Connect, private: Server
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=0.8)
        await call(things, "get", "a")
        with frozen(private):
            for outer, inner, seconds in ((0.2, 60, 0.2), (60, 0.2, 0.2), (60, 60, 0.8)):
                taking = takes(0.9 * seconds, seconds + 0.5)
                with taking, deadline(outer), deadline(inner), pytest.raises(Unavailable):
                    await call(things, "get", "a")

    @pytest.mark.parametrize("kind", ["idle", "new", "pipeline"])
    async def test_an_attempt_after_it_waits_a_moment_for_its_reply(
        self, kind: str, call: Call, things: Things, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await warm(call, things)
        if kind == "new":
            await close_all()
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
    def test_it_must_be_positive(self, seconds: float) -> None:
        with pytest.raises(ValueError, match="greater than 0"), deadline(seconds):
            pass

    async def test_a_background_task_does_not_inherit_it(self, things: Things) -> None:
        async def left() -> float:
            return time_left()

        with deadline(0.2):
            task = asyncio.get_running_loop().create_task(left(), context=without_deadline())
            assert time_left() <= 0.2
        assert await task == math.inf


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


class TestLimits:
    async def test_no_more_than_max_connections(self, connect: Connect, private: Server, admin: Any) -> None:
        things = connect(private, {"max_connections": 3})
        assert sorted(await asyncio.gather(*(things.aadd("a") for _ in range(30)))) == list(range(1, 31))
        with ThreadPoolExecutor(12) as threads:
            found = await asyncio.to_thread(lambda: list(threads.map(things.add, ["b"] * 60)))
        assert sorted(found) == list(range(1, 61))
        ours = [one for one in admin.client_list() if one["name"].startswith("test-")]
        assert len(ours) <= 6  # three in each style

    async def test_waiting_for_a_connection_has_a_deadline(self, connect: Connect, private: Server) -> None:
        things = connect(private, {"max_connections": 1}, COMMAND_DEADLINE=3 * SHORT)
        await things.aadd("a")
        things.add("a")

        def wait() -> None:
            with deadline(SHORT):
                things.add("a")

        async def await_() -> None:
            with deadline(SHORT):
                await things.aadd("a")

        with frozen(private), ThreadPoolExecutor(2) as threads, takes(2 * SHORT, 10):
            blocking = [threads.submit(things.add, "a"), threads.submit(wait)]
            awaiting = await asyncio.gather(things.aadd("a"), await_(), return_exceptions=True)
            errors = [await asyncio.to_thread(one.exception, 10) for one in blocking]
        for held, waited in (errors, awaiting):
            assert isinstance(held, OutcomeUnknown)
            assert isinstance(waited, Unavailable)
            assert "max_connections" in str(waited)

    async def test_waits_leave_connections_to_calls(self, connect: Connect, private: Server) -> None:
        things = connect(private, {"max_connections": 2}, COMMAND_DEADLINE=2)
        waits = [asyncio.ensure_future(things.await_(f"{at}", 1.0)) for at in range(6)]
        await asyncio.sleep(0.1)
        with takes(0, 0.8):
            for _ in range(5):
                await things.aadd("a")
        assert await asyncio.gather(*waits) == [None] * 6

    async def test_a_pending_wait_gives_up_its_connection(
        self, call: Call, connect: Connect, private: Server
    ) -> None:
        things = connect(private, {"max_connections": 2})
        for name in ("one", "two", "three"):
            assert await call(things, "take", name, 0.01) is None
        with takes(0, 1):
            assert await call(things, "add", "a") == 1

    async def test_connections_that_were_idle_for_long_are_closed(
        self, connect: Connect, network: Network, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_redis_messaging.core.pool.MAX_IDLE", 0.2)
        things = connect(network)
        await make_idle(things)
        began = time.monotonic()
        while time.monotonic() < began + 0.3:
            await things.aadd("a")
            things.add("a")
        until(lambda: sum(line.thread.is_alive() for line in network.lines) <= 3)

    async def test_a_cancelled_connect_leaves_no_connection_open(
        self, connect: Connect, network: Network
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


class TestAttempts:
    """The rules of retries, without a server."""

    def attempts(self, deadline: float = 10, *, writes: bool = True, once: bool = False) -> Attempts:
        return Attempts(deadline, began=time.monotonic(), reply_timeout=5, writes=writes, once=once)

    def test_pauses_grow_and_differ_and_have_a_limit(self) -> None:
        attempts = self.attempts(1000)
        pauses = [attempts.pause_after(NotSent()) for _ in range(12)]
        assert pauses[0] <= 0.02
        assert all(0.5 <= pause <= 1 for pause in pauses[-3:])
        assert len({self.attempts().pause_after(NotSent()) for _ in range(20)}) > 10
        attempts = self.attempts(0.05)
        assert all(attempts.pause_after(NotSent()) <= 0.05 for _ in range(8))

    def test_an_attempt_reads_until_the_deadline_but_never_shorter_than_a_moment(self) -> None:
        assert self.attempts(0).reading_time == self.attempts(-10).reading_time == MIN_READING_TIME
        assert 1.5 < self.attempts(2).reading_time <= 2
        assert self.attempts(20).reading_time == 5

    def test_no_attempt_follows_while_retries_are_stopped(self) -> None:
        stopped = False
        with no_retries_when(lambda: stopped):
            attempts = self.attempts()
            attempts.pause_after(NotSent())
            stopped = True
            with pytest.raises(Unavailable):
                attempts.pause_after(NotSent())
        self.attempts().pause_after(NotSent())

    def test_a_once_step_is_retried_while_nothing_was_sent(self) -> None:
        attempts = self.attempts(once=True)
        attempts.pause_after(NotSent())
        with pytest.raises(OutcomeUnknown):
            attempts.pause_after(driver.ConnectionError("reset"))

    def test_one_unanswered_attempt_is_remembered(self) -> None:
        attempts = self.attempts(0.01)
        attempts.pause_after(driver.TimeoutError("late"))
        attempts.ends = 0
        with pytest.raises(OutcomeUnknown):
            attempts.pause_after(NotSent())

    @pytest.mark.parametrize(
        "refusal",
        [
            driver.ReadOnlyError("You can't write against a read only replica."),
            driver.BusyLoadingError("Redis is loading the dataset in memory"),
            driver.ClusterDownError("The cluster is down"),
            driver.MasterDownError("Link with MASTER is down"),
            driver.ResponseError("BUSY Redis is busy running a script."),
            driver.ResponseError("NOREPLICAS Not enough good replicas to write."),
            driver.ResponseError("Error running script: @user_script: 5: -READONLY You can't write against"),
        ],
    )
    def test_a_temporary_error_means_nothing_was_applied(self, refusal: Exception) -> None:
        attempts = self.attempts()
        assert attempts.pause_after(refusal) > 0
        attempts.ends = 0
        with pytest.raises(Unavailable) as raised:
            attempts.pause_after(refusal)
        assert str(refusal) in str(raised.value) and "Start the server" not in str(raised.value)

    @pytest.mark.parametrize(
        ("cause", "is_unreachable"),
        [
            (driver.ConnectionError("Connection refused"), True),
            (driver.TimeoutError("Timeout connecting to server"), True),
            (driver.MaxConnectionsError("Too many connections"), False),
        ],
    )
    def test_only_a_server_that_is_not_reached_has_to_be_started(
        self, cause: Exception, is_unreachable: bool
    ) -> None:
        error = NotSent()
        error.__cause__ = cause
        with pytest.raises(Unavailable) as raised:
            self.attempts(0).pause_after(error)
        assert ("Start the server" in str(raised.value)) == is_unreachable

    @pytest.mark.parametrize(
        ("refusal", "kind", "said"),
        [
            (driver.OutOfMemoryError("command not allowed"), Unavailable, "maxmemory"),
            (
                driver.ResponseError("Error running script: -OOM command not allowed when used memory"),
                Unavailable,
                "maxmemory",
            ),
            (
                driver.ClusterCrossSlotError("Keys in request don't hash to the same slot"),
                ConfigurationError,
                "Cluster",
            ),
            (driver.ResponseError("ERR something new"), MessagingError, "something new"),
        ],
    )
    def test_translated_errors(self, refusal: driver.ResponseError, kind: type[Exception], said: str) -> None:
        error = translate_error(refusal)
        assert type(error) is kind
        assert said in str(error)
