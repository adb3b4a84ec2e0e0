"""Which listener dispatches, and servers that leave and return."""

from __future__ import annotations

import threading
import time

import pytest
from pytest_django import Settings

from django_redis_messaging import Expiry, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.connection import BlockingConnection
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.expiries.timers import Firing
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.services.jobs.running import RunningJob
from django_redis_messaging.services.jobs.threads import EventLoop
from django_redis_messaging.services.listening import Listener
from django_redis_messaging.services.listening import listener as listener_module
from django_redis_messaging.services.listening.listener import DispatchLock, Events
from tests.support.engines import timers
from tests.support.workers import running

from ..support.listeners import ALL, NOTIFY, Received, is_dispatcher, key_handler, listening
from ..support.server import change, is_cluster, server, server_ms, until

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("keyspace_events", "short_lease")]


class TestOneListenerOfSeveral:
    def test_one_listener_dispatches_and_another_takes_over_when_it_ends(self, site: str) -> None:
        one, two = Received(), Received()
        with listening(key_events=[key_handler(f"{site}*", one, "set")]) as first:
            until(lambda: is_dispatcher(first))
            with listening(key_events=[key_handler(f"{site}*", two, "set")]) as second:
                for number in range(10):
                    server().set(f"{site}{number}", 1)
                until(lambda: len(one) == 10)
                assert two == []
                first.stop()
                until(lambda: is_dispatcher(second))
                server().set(f"{site}late", 1)
                until(lambda: two)
        assert len(one) == 10
        assert two.keys == [(f"{site}late", "set")]
        assert two[0].fence > one[0].fence

    def test_expired_lease_is_taken_over(self, site: str) -> None:
        received = Received()
        node = node_id()
        lost = DispatchLock(node)
        assert lost.acquire()
        with listening(key_events=[key_handler(f"{site}*", received, "set")]) as listener:
            server().set(f"{site}a", 1)
            assert not is_dispatcher(listener)
            until(lambda: is_dispatcher(listener))
            server().set(f"{site}b", 1)
            until(lambda: received)
            assert not lost.acquire(blocking=False)
        assert received.keys == [(f"{site}b", "set")]
        assert lost.acquire(blocking=False)

    def test_lease_with_the_longest_names(self, settings: Settings) -> None:
        change(settings, PREFIX=conf.prefix().ljust(255, "p"))
        lock = DispatchLock("n" * 253 + ":6379")
        assert lock.acquire(blocking=False)
        lock.release()

    def test_lease_is_kept_and_released(self, site: str) -> None:
        other = DispatchLock(node_id())
        with listening(key_events=[key_handler(f"{site}*", Received(), "set")]) as listener:
            until(lambda: is_dispatcher(listener))
            [subscription] = listener.events.subscriptions.values()
            fence, ends = subscription.fence, time.monotonic() + 1.5  # several leases
            while time.monotonic() < ends:
                assert not other.acquire(blocking=False)
            assert subscription.fence == fence > 0
        assert other.acquire(blocking=False)
        assert other.fence > fence

    def test_own_lease_is_acquired_again(self, site: str) -> None:
        """The listener could not extend it for a moment."""
        with listening(key_events=[key_handler(f"{site}*", Received(), "set")]) as listener:
            until(lambda: is_dispatcher(listener))
            [subscription] = listener.events.subscriptions.values()
            fence, subscription.fence = subscription.fence, 0
            until(lambda: subscription.fence)
            assert subscription.fence == fence

    def test_lost_lease_is_noticed(self, site: str) -> None:
        received, other = Received(), DispatchLock(node_id())
        with listening(key_events=[key_handler(f"{site}*", received, "set")]) as listener:
            until(lambda: is_dispatcher(listener))
            server().set(other.key, "another listener", px=5000)
            until(lambda: not is_dispatcher(listener))
            server().set(f"{site}a", 1)
            server().delete(other.key)
            until(lambda: is_dispatcher(listener))
            server().set(f"{site}b", 1)
            until(lambda: received)
        assert received.keys == [(f"{site}b", "set")]


def node_id() -> str:
    """The ID of the server under test among the primaries."""
    if not is_cluster():
        return "alone"
    return str(server().execute_command("CLUSTER", "MYID").decode())


class TestReconnecting:
    def test_broken_subscription_is_renewed(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "set")]) as listener:
            until(lambda: is_dispatcher(listener))
            server().client_kill_filter(_type="pubsub")
            until(lambda: "reconnecting" in caplog.text)

            def received_any() -> bool:
                server().set(f"{site}a", 1)
                return bool(received)

            until(received_any)

    def test_unexpected_error_does_not_end_the_listener(
        self, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The event was published by hand, with an impossible database number."""
        received = Received()
        with listening(key_events=[key_handler(f"__keyspace@*__:{site}*", received, "set")]) as listener:
            until(lambda: is_dispatcher(listener))
            server().publish(f"__keyspace@{'9' * 5000}__:{site}a", "set")
            until(lambda: "reconnecting" in caplog.text)

            def received_any() -> bool:
                server().set(f"{site}a", 1)
                return bool(received)

            until(received_any)

    def test_unresponsive_server_is_disconnected(
        self,
        site: str,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Pings are answered; without an answer, the connection counts as dead."""
        change(settings, COMMAND_DEADLINE=0.2)
        monkeypatch.setattr(listener_module, "PING_INTERVAL", 0.3)
        monkeypatch.setattr(listener_module, "CHECK_INTERVAL", 0.1)
        with listening(key_events=[key_handler(f"{site}*", Received(), "set")]) as listener:
            [subscription] = listener.events.subscriptions.values()
            pause = threading.Event()
            pause.wait(1.2)  # several times the allowed silence
            assert subscription.subscribed.is_set()
            assert "reconnecting" not in caplog.text

            def disconnected() -> bool:
                """Pause the server, and repeat the pause in case this process was stalled meanwhile."""
                server().execute_command("CLIENT", "PAUSE", 1500, "ALL")
                deadline = time.monotonic() + 1.4
                while "does not answer" not in caplog.text and time.monotonic() < deadline:
                    time.sleep(0.01)
                return "does not answer" in caplog.text

            until(disconnected)

    def test_stalled_listener_pings_before_it_disconnects(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Like a stopped process or a sleeping machine: no answer was due."""
        stalled, finish, readable = threading.Event(), threading.Event(), BlockingConnection.readable

        def delayed_readable(connection: BlockingConnection, seconds: float = 0) -> bool:
            arrived = readable(connection, seconds)
            if seconds and not arrived and not finish.is_set():
                stalled.set()
                finish.wait(10)
            return arrived

        monkeypatch.setattr(listener_module, "PING_INTERVAL", 0.3)
        monkeypatch.setattr(listener_module, "CHECK_INTERVAL", 0.1)
        monkeypatch.setattr(BlockingConnection, "readable", delayed_readable)
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "set")]):
            until(stalled.is_set)
            begun = time.monotonic()
            until(lambda: time.monotonic() > begun + 1.2)  # longer than three ping intervals
            finish.set()

            def received_any() -> bool:
                server().set(f"{site}a", 1)
                return bool(received)

            until(received_any)
        assert "reconnecting" not in caplog.text


class TestServerOutages:
    @pytest.fixture
    def messaging_alias(self, messaging_settings: Prefix) -> str:
        """These tests start their own servers."""
        return conf.alias()

    def test_listener_resubscribes_after_an_outage(
        self, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        received, fired = Received(), Received()
        with EmbeddedServer(append_only=True, options={NOTIFY: ALL}) as single:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": single.url}
            settings.CACHES = {**settings.CACHES, "away": entry}
            change(settings, ALIAS="away", COMMAND_DEADLINE=0.2)
            wanted = [key_handler(f"{site}*", received, "set")]
            with listening({"order": fired}, wanted) as listener, single.client() as client:
                Expiry("order").start("17", 0.5)
                single.kill()
                for text in ("reconnecting", "Claiming jobs failed"):
                    until(lambda: text in caplog.text)  # noqa: B023
                single.start()
                until(lambda: fired)
                until(lambda: listener.events is not None and is_dispatcher(listener))

                def received_any() -> bool:
                    client.set(f"{site}a", 1)
                    return bool(received)

                until(received_any)
            clients.close()
        assert fired.names == ["17"]

    def test_listener_can_start_before_its_server(
        self, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        received = Received()
        with EmbeddedServer(options={NOTIFY: ALL}) as late:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": late.url}
            settings.CACHES = {**settings.CACHES, "late": entry}
            change(settings, ALIAS="late", COMMAND_DEADLINE=0.2)
            late.kill()
            listener = Listener({}, [key_handler(f"{site}*", received, "set")])
            with running(listener.run, listener.stop), late.client() as client:
                until(lambda: "Looking up the primaries failed" in caplog.text)
                late.start()
                until(lambda: listener.events and listener.events.subscriptions and is_dispatcher(listener))
                client.set(f"{site}a", 1)
                until(lambda: received)
            clients.close()

    def test_listener_reconnects_after_many_attempts(
        self,
        settings: Settings,
        site: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(listener_module, "MAX_PAUSE", 0.0)
        received = Received()
        with EmbeddedServer(options={NOTIFY: ALL}) as single:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": single.url}
            settings.CACHES = {**settings.CACHES, "away": entry}
            change(settings, ALIAS="away", COMMAND_DEADLINE=0.2)
            with listening(key_events=[key_handler(f"{site}*", received, "set")]), single.client() as client:
                single.kill()
                # a float overflows at 2 to the power of 1024
                until(lambda: sum("reconnecting" in text for text in list(caplog.messages)) > 1100)
                single.start()

                def received_any() -> bool:
                    client.set(f"{site}a", 1)
                    return bool(received)

                until(received_any)
            clients.close()

    def test_listener_stops_during_an_outage(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A timer that it could not begin is released without charging an attempt."""
        with EmbeddedServer(options={NOTIFY: ALL}) as single:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": single.url}
            settings.CACHES = {**settings.CACHES, "gone": entry}
            change(settings, ALIAS="gone", COMMAND_DEADLINE=0.2)
            engine, received = timers(), Received()
            Expiry("order").start("17", 0.001)
            due = server_ms() + 2
            until(lambda: server_ms() > due)
            [leased] = engine.claim(["order"], 1, 60_000).jobs
            events = Events([key_handler(f"{site}*", Received(), "set")])
            events.start()
            until(lambda: events.subscriptions and all(one.fence for one in events.subscriptions.values()))
            single.kill()
            firing = Firing(engine.engine, engine.using, {"order": TimerHandler("order", received, None)})
            settlement = firing(RunningJob(leased, EventLoop().run))
            assert settlement is not None
            assert (settlement.outcome, received) == (Outcome.RELEASE, [])
            events.close()
            clients.close()
        assert "it expires within" in caplog.text

    def test_refused_subscription_is_retried(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The user has no channel permissions at first."""
        plain, received = server(), Received()
        plain.execute_command("ACL", "SETUSER", "limited", "on", ">word", "~*", "resetchannels", "+@all")
        location = settings.CACHES[conf.alias()]["LOCATION"].replace("unix://", "unix://limited:word@")
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
        settings.CACHES = {**settings.CACHES, "limited": entry}
        alias = conf.alias()
        change(settings, ALIAS="limited")
        events = Events([key_handler(f"{site}*", received, "set")])
        events.start()
        until(lambda: "NOPERM" in caplog.text or "permissions" in caplog.text)
        # the permission must be this literal pattern: a wider one would not do
        plain.execute_command("ACL", "SETUSER", "limited", f"&__keyspace@0__:{site}*")

        def received_any() -> bool:
            plain.set(f"{site}a", 1)
            return bool(received)

        until(received_any)
        events.close()
        clients.close()
        change(settings, ALIAS=alias)
        plain.execute_command("ACL", "DELUSER", "limited")
