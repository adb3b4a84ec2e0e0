"""Errors and outcomes when servers stop, freeze and lose replies."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from redis import exceptions as driver

from django_redis_messaging.core import pool
from django_redis_messaging.core.operations import Script, Service, Steps, asynchronous, operation
from django_redis_messaging.core.outcome import (
    MIN_READING_TIME,
    Attempts,
    NotSent,
    no_retries_when,
    translate_error,
)
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import ConfigurationError, MessagingError, OutcomeUnknown, Unavailable
from tests.core.conftest import Connect
from tests.support.example_service import Things
from tests.support.proxy import LossyProxy

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

#: seconds; the deadline in tests of failing operations
SHORT = 0.6
#: seconds; the maximum duration of a failing operation, with its last attempt, on a busy machine
SHORT_AT_MOST = SHORT + 2.0

Outcome = object


async def result(call: object) -> Outcome:
    """The result or error of a blocking or async call."""
    return await call if inspect.isawaitable(call) else call


@contextmanager
def takes(at_least: float, at_most: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert at_least <= time.monotonic() - began <= at_most


def at_once() -> AbstractContextManager[None]:
    """Raised at once, not after the deadline of 10 s."""
    return takes(0, 5)


@contextmanager
def frozen(server: EmbeddedServer) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@pytest.fixture(params=["blocking", "awaiting"])
def form(request: pytest.FixtureRequest) -> Callable[[Things, str], Callable[..., Awaitable[Outcome]]]:
    """Both versions of an operation, awaited by the test."""

    def of(things: Things, name: str) -> Callable[..., Awaitable[Outcome]]:
        names = {"blocking": name, "awaiting": {"wait": "await_"}.get(name, f"a{name}")}

        async def call(*args: object, **options: object) -> Outcome:
            return await result(getattr(things, names[request.param])(*args, **options))

        return call

    return of


Form = Callable[[Things, str], Callable[..., Awaitable[Outcome]]]


class TestServerDown:
    async def test_unavailable_within_the_deadline(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=SHORT)
        private.stop()
        with takes(SHORT * 0.9, SHORT_AT_MOST), pytest.raises(Unavailable, match="was not applied"):
            await form(things, "add")("a")

    async def test_a_dead_idle_connection_does_not_make_a_once_write_unknown(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=SHORT)
        await form(things, "add")("a")
        private.stop()
        with pytest.raises(Unavailable):
            await form(things, "add")("a", once=True)

    async def test_an_unreachable_server_is_unavailable(self, form: Form, connect: Connect) -> None:
        things = connect("unix:///nowhere/at-all.sock?db=0", COMMAND_DEADLINE=SHORT)
        with takes(SHORT * 0.9, SHORT_AT_MOST), pytest.raises(Unavailable, match="CACHES"):
            await form(things, "get")("a")

    async def test_a_server_that_restarts_in_time_is_waited_for(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await form(things, "add")("a")
        private.stop()
        starting = threading.Timer(0.3, private.start)
        starting.start()
        try:
            assert await form(things, "add")("a") == 2
        finally:
            starting.join()

    async def test_a_restart_in_between_is_not_noticed(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await form(things, "add")("a")
        private.restart()
        with at_once():
            assert await form(things, "add")("a") == 2

    async def test_many_dead_connections_cost_one_attempt(
        self, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=3)
        await asyncio.gather(*(things.aadd("a") for _ in range(30)))
        private.restart()
        with takes(0, 2.5):
            assert await things.aadd("a") == 31


class TestServerFrozen:
    async def test_a_sent_write_without_a_reply_is_unknown(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=SHORT)
        await form(things, "add")("a")
        with (
            frozen(private),
            takes(SHORT * 0.9, SHORT_AT_MOST),
            pytest.raises(OutcomeUnknown, match="request_id"),
        ):
            await form(things, "add")("a")

    async def test_a_sent_read_without_a_reply_is_unavailable(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=SHORT)
        await form(things, "get")("a")
        with frozen(private), takes(SHORT * 0.9, SHORT_AT_MOST), pytest.raises(Unavailable):
            await form(things, "get")("a")

    async def test_a_write_that_could_not_be_sent_is_unavailable(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        # a new connection begins with a handshake, which gets no reply
        things = connect(private, COMMAND_DEADLINE=SHORT)
        with frozen(private), takes(SHORT * 0.9, SHORT_AT_MOST), pytest.raises(Unavailable):
            await form(things, "add")("a")

    async def test_the_next_call_gets_its_own_reply(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=SHORT)
        await form(things, "add")("a", 100)
        with frozen(private), pytest.raises(OutcomeUnknown):
            await form(things, "add")("a", 100)
        assert await form(things, "add")("b") == 1


class TestLostReplies:
    @pytest.fixture(autouse=True)
    def known(self, connect: Connect, server: EmbeddedServer) -> None:
        """Load the scripts, so that the lost reply is that of a script that ran."""
        things = connect(server)
        for _ in range(2):  # with the missing key, then, once the kind of server is detected, without it
            things.add("known")
            things.get("known")

    async def test_a_call_whose_reply_was_lost_is_repeated(
        self, form: Form, connect: Connect, proxy: LossyProxy
    ) -> None:
        things = connect(proxy)
        await form(things, "add")("a")
        proxy.lose_next(2)
        assert await form(things, "add")("a") == 4  # INCR is not idempotent: each attempt is visible
        assert proxy.lost == 2

    async def test_a_call_without_a_reply_is_repeated(
        self, form: Form, connect: Connect, proxy: LossyProxy
    ) -> None:
        things = connect(proxy, {"socket_timeout": 0.2})
        await form(things, "add")("a")
        proxy.lose_next(1, hang_up=False)
        with takes(0.2, 2):
            assert await form(things, "add")("a") == 3

    async def test_half_the_deadline_is_reserved_for_a_repeat(
        self, form: Form, connect: Connect, proxy: LossyProxy
    ) -> None:
        things = connect(proxy, COMMAND_DEADLINE=2.0)
        await form(things, "add")("a")
        proxy.lose_next(1, hang_up=False)
        assert await form(things, "add")("a") == 3

    async def test_a_script_stores_when_the_attempt_was_sent_that_was_answered(
        self, form: Form, connect: Connect, proxy: LossyProxy
    ) -> None:
        """Else a lease would seem to end too early, by the time of the failed attempts."""

        class Timed(Service):
            @operation
            def add(self, key: str) -> Steps[float]:
                began, script = time.monotonic(), Script("thing_add", [key], [1])
                yield script
                return script.sent_since(began) - began

            aadd = asynchronous(add)

        things, timed = connect(proxy, COMMAND_DEADLINE=2.0), Timed()
        await form(things, "add")("a")
        assert await form(timed, "add")(things.key("a")) == 0  # type: ignore[arg-type]
        proxy.lose_next(1, hang_up=False)
        assert await form(timed, "add")(things.key("a")) >= 0.5  # type: ignore[arg-type]

    async def test_a_once_step_is_not_repeated(self, form: Form, connect: Connect, proxy: LossyProxy) -> None:
        things = connect(proxy)
        await form(things, "add")("a")
        proxy.lose_next(1)
        with at_once(), pytest.raises(OutcomeUnknown):
            await form(things, "add")("a", once=True)
        assert await form(things, "get")("a") == b"2"

    async def test_a_pipeline_with_a_once_step_is_not_repeated(
        self, form: Form, connect: Connect, proxy: LossyProxy
    ) -> None:
        class Mixed(Service):
            @operation
            def add(self, key: str) -> Steps[list[int]]:
                repeated, once = Script("thing_add", [key], [1]), Script("thing_add", [key], [10], once=True)
                replies: list[int] = yield [repeated, once]
                return replies

            aadd = asynchronous(add)

        things = connect(proxy)
        await form(things, "add")("a")
        proxy.lose_next(1)
        with pytest.raises(OutcomeUnknown):
            await form(Mixed(), "add")(things.key("a"))  # type: ignore[arg-type]
        assert await form(things, "get")("a") == b"12"

    async def test_losing_a_third_of_all_replies(
        self, form: Form, connect: Connect, proxy: LossyProxy
    ) -> None:
        things = connect(proxy)
        proxy.lose_some(0.3)
        for at in range(40):
            await form(things, "add")(f"{at}")
            assert await form(things, "get")(f"{at}") is not None
        assert proxy.lost > 10


class TestRefusals:
    async def test_a_wait_that_the_server_refuses_for_now_ends_in_time(
        self, form: Form, connect: Connect, private: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A replica refuses to pop; the pause before the next attempt would be longer than the wait."""
        things = connect(private)
        await form(things, "add")("a")
        monkeypatch.setattr("django_redis_messaging.core.outcome.backoff", lambda *_, **__: 5.0)
        with private.client() as admin:
            admin.execute_command("REPLICAOF", "127.0.0.1", "1")
            try:
                with takes(0, 4):
                    assert await form(things, "take")("list", 0.3) is None
            finally:
                admin.execute_command("REPLICAOF", "NO", "ONE")

    async def test_a_key_of_another_type(self, form: Form, things: Things) -> None:
        things.do("ZADD", things.key("a"), 0, "x")
        with at_once(), pytest.raises(ConfigurationError, match="another type"):
            await form(things, "add")("a")

    async def test_a_command_that_the_acl_denies(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        with private.client() as admin:
            admin.execute_command("ACL SETUSER limited on >secret ~*test-* +@all -set")
        things = connect(private, {"username": "limited", "password": "secret"})
        assert await form(things, "add")("a") == 1
        with at_once(), pytest.raises(ConfigurationError, match="ACL"):
            await form(things, "do")("SET", things.key("a"), "1")

    async def test_a_key_that_the_acl_denies_inside_a_script(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        with private.client() as admin:
            admin.execute_command("ACL SETUSER limited on >secret ~*test-* +@all -incrby")
        things = connect(private, {"username": "limited", "password": "secret"})
        with at_once(), pytest.raises(ConfigurationError, match="ACL"):
            await form(things, "add")("a")

    async def test_a_wrong_password(self, form: Form, connect: Connect, server: EmbeddedServer) -> None:
        things = connect(server, {"username": "nobody", "password": "wrong"})
        with at_once(), pytest.raises(ConfigurationError, match="password"):
            await form(things, "add")("a")

    async def test_a_missing_password(self, form: Form, connect: Connect, private: EmbeddedServer) -> None:
        with private.client() as admin:
            admin.config_set("requirepass", "secret")
        things = connect(private)
        with at_once(), pytest.raises(ConfigurationError, match="password"):
            await form(things, "add")("a")

    async def test_a_write_without_memory(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        await form(things, "add")("a")
        with private.client() as admin:
            admin.config_set("maxmemory", 1)
        with at_once(), pytest.raises(Unavailable, match="out of memory"):
            await form(things, "add")("a")
        assert await form(things, "get")("a") == b"1"

    async def test_a_replica_until_it_is_promoted(
        self, form: Form, connect: Connect, private: EmbeddedServer
    ) -> None:
        things = connect(private)
        with private.client() as admin:
            admin.config_set("replica-serve-stale-data", "yes")
            admin.replicaof("127.0.0.1", "1")
        promoting = threading.Timer(0.2, promote, [private])
        promoting.start()
        try:
            assert await form(things, "add")("a") == 1
        finally:
            promoting.join()

    async def test_a_busy_server(
        self, form: Form, connect: Connect, private: EmbeddedServer, until: Callable[..., None]
    ) -> None:
        things = connect(private)
        await form(things, "add")("a")
        with private.client() as admin:
            admin.config_set("busy-reply-threshold", 50)
        endless = threading.Thread(target=run_for_ever, args=[private], daemon=True)
        endless.start()
        until(lambda: is_busy(private))
        killing = threading.Timer(0.4, kill_script, [private])
        killing.start()
        try:
            assert await form(things, "add")("a") == 2
        finally:
            killing.join()
            endless.join()


def promote(server: EmbeddedServer) -> None:
    with server.client() as admin:
        admin.replicaof("NO", "ONE")


def run_for_ever(server: EmbeddedServer) -> None:
    with server.client(socket_timeout=None) as other, pytest.raises(driver.ResponseError):
        other.eval("while true do end", 0)


def is_busy(server: EmbeddedServer) -> bool:
    """Whether it rejects other calls because of a script."""
    with server.client() as other:
        try:
            other.ping()
        except driver.ResponseError as error:
            return str(error).startswith("BUSY") or "busy" in str(error)
    return False


def kill_script(server: EmbeddedServer) -> None:
    with server.client() as admin:
        admin.script_kill()


class TestWait:
    async def test_a_wait_returns_none_after_its_time(self, form: Form, things: Things) -> None:
        with takes(0.3, 5):
            assert await form(things, "wait")("empty", 0.3) is None

    async def test_a_wait_outlives_the_socket_timeout(
        self, form: Form, connect: Connect, server: EmbeddedServer
    ) -> None:
        things = connect(server, {"socket_timeout": 0.1}, COMMAND_DEADLINE=0.5)
        with takes(0.8, 5):
            assert await form(things, "wait")("empty", 0.8) is None

    async def test_a_wait_is_woken_at_once(
        self, form: Form, things: Things, server: EmbeddedServer, until: Callable[..., None]
    ) -> None:
        def push() -> None:
            with server.client() as other:
                until(lambda: other.info("clients")["blocked_clients"] == 1)
                other.zadd(things.key("list"), {"x": 0})

        pushing = threading.Thread(target=push, daemon=True)
        pushing.start()
        with takes(0, 5):
            assert await form(things, "wait")("list", 10) == b"x"
        pushing.join()

    async def test_a_pending_wait_is_taken_over(
        self, form: Form, things: Things, server: EmbeddedServer
    ) -> None:
        wait = form(things, "wait")
        with server.client() as other:
            before = other.info("commandstats").get("cmdstat_bzpopmin", {"calls": 0})["calls"]
            for _ in range(20):
                assert await wait("again", 0.01) is None
            other.zadd(things.key("again"), {"x": 0})
            assert await wait("again", 5) == b"x"
            assert other.info("commandstats")["cmdstat_bzpopmin"]["calls"] == before + 1

    async def test_an_overdue_wait_is_replaced(
        self, form: Form, things: Things, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await form(things, "wait")("again", 0.01) is None
        monkeypatch.setattr(pool, "ENDED", 0.03)
        await asyncio.sleep(0.03)  # the time of an overdue wait
        with server.client() as other:
            before = other.info("commandstats")["cmdstat_bzpopmin"]["calls"]
            assert await form(things, "wait")("again", 0.01) is None
            assert other.info("commandstats")["cmdstat_bzpopmin"]["calls"] == before + 1

    async def test_a_lost_topology_is_asked_for_again(
        self, form: Form, connect: Connect, server: EmbeddedServer
    ) -> None:
        """Nothing of the first call has been sent by then."""
        with LossyProxy(server.socket, asking=b"CLUSTER") as proxy:
            things = connect(proxy)
            proxy.lose_next()
            assert await form(things, "add")("a", once=True) == 1
            assert proxy.lost == 1

    async def test_a_wait_on_a_stopped_server_is_unavailable(
        self, form: Form, connect: Connect, private: EmbeddedServer, until: Callable[..., None]
    ) -> None:
        things = connect(private, COMMAND_DEADLINE=0.3)

        def end() -> None:
            with private.client() as other:
                until(lambda: other.info("clients")["blocked_clients"] == 1)
            private.kill()

        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        with pytest.raises(Unavailable, match=r"for \d+\.\d s"):
            await form(things, "wait")("list", 10)
        ending.join()

    async def test_a_wait_that_is_sent_too_late(
        self, form: Form, connect: Connect, private: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        things = connect(private)
        await form(things, "do")("PING")
        monkeypatch.setattr(pool, "ENDED", -1)
        with takes(0, 1):
            assert await form(things, "wait")("list", 0.2) is None

    @pytest.mark.parametrize("seconds", [5, 0.001])
    async def test_a_connection_that_is_reset_is_not_noticed(
        self, seconds: float, form: Form, connect: Connect, server: EmbeddedServer
    ) -> None:
        """For example by a server that is killed before it read; with 0.001 s, between two waits."""
        with LossyProxy(server.socket, asking=b"BZPOPMIN") as proxy:
            things = connect(proxy)
            await form(things, "do")("ZADD", things.key("list"), 0, "x")
            proxy.reset_next()
            found = None
            while found is None:
                found = await form(things, "wait")("list", seconds)
            assert found == b"x"

    async def test_calls_proceed_during_a_wait(self, things: Things) -> None:
        going = asyncio.ensure_future(things.await_("empty", 0.5))
        assert await things.aadd("a") == 1
        assert not going.done()
        assert await going is None


class TestAttempts:
    """The rules of retries, without a server."""

    def attempts(self, deadline: float = 10, *, writes: bool = True, once: bool = False) -> Attempts:
        return Attempts(deadline, began=time.monotonic(), reply_timeout=5, writes=writes, once=once)

    def test_pauses_grow_and_have_a_limit(self) -> None:
        attempts = self.attempts(1000)
        pauses = [attempts.pause_after(NotSent()) for _ in range(12)]
        assert pauses[0] <= 0.02
        assert all(0.5 <= pause <= 1 for pause in pauses[-3:])

    def test_pauses_differ(self) -> None:
        assert len({self.attempts().pause_after(NotSent()) for _ in range(20)}) > 10

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

    def test_no_pause_passes_the_deadline(self) -> None:
        attempts = self.attempts(0.05)
        assert all(attempts.pause_after(NotSent()) <= 0.05 for _ in range(8))

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
        with pytest.raises(Unavailable):
            attempts.pause_after(refusal)

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
