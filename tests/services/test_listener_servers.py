"""Which listener dispatches, and servers that come and go."""

from __future__ import annotations

import threading
import time

import pytest
from pytest_django import Settings

from django_redis_messaging import Expiry, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.core.sockets import BlockingConnection
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.expiries.firing import Firing
from django_redis_messaging.services.jobs.leases import Outcome
from django_redis_messaging.services.jobs.running import EventLoop, RunningJob
from django_redis_messaging.services.listening import Listener
from django_redis_messaging.services.listening import channel as channels
from django_redis_messaging.services.listening.dispatch import DispatchLease
from django_redis_messaging.services.listening.listener import Events
from django_redis_messaging.testing import Prefix
from tests.engines import timers
from tests.tasks.working import running

from .asking import all_keys, change, server, server_ms, until
from .listening import ALL, NOTIFY, Heard, key_handler, listening, told

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("telling", "short_lease")]


class TestOneListenerOfSeveral:
    def test_one_dispatches_and_another_takes_over_at_its_end(self, site: str) -> None:
        one, two = Heard(), Heard()
        with listening(key_events=[key_handler(f"{site}*", one, "set")]) as first:
            until(lambda: told(first))
            with listening(key_events=[key_handler(f"{site}*", two, "set")]) as second:
                for number in range(10):
                    server().set(f"{site}{number}", 1)
                until(lambda: len(one) == 10)
                assert two == []
                first.stop()
                until(lambda: told(second))
                server().set(f"{site}late", 1)
                until(lambda: two)
        assert len(one) == 10
        assert two.keys == [(f"{site}late", "set")]
        assert two[0].fence > one[0].fence

    def test_a_lease_that_ends_is_taken(self, site: str) -> None:
        heard = Heard()
        node = node_id()
        lost = DispatchLease(node, "killed")
        assert lost.acquire()
        with listening(key_events=[key_handler(f"{site}*", heard, "set")]) as listener:
            server().set(f"{site}a", 1)
            assert not told(listener)
            until(lambda: told(listener))
            server().set(f"{site}b", 1)
            until(lambda: heard)
            assert not lost.acquire()
        assert heard.keys == [(f"{site}b", "set")]
        assert lost.acquire()

    def test_the_lease_is_kept_and_given_up(self) -> None:
        one, other = DispatchLease("n", "one"), DispatchLease("n", "other")
        fence = one.acquire()
        assert one.acquire() == fence > 0
        assert other.acquire() == 0
        other.release()
        assert one.acquire() == fence
        one.release()
        assert other.acquire() > fence
        other.release()

    async def test_the_lease_in_the_awaiting_world(self) -> None:
        one = DispatchLease("n", "one")
        assert await one.aacquire() > 0
        await one.arelease()
        assert all_keys() == []


def node_id() -> str:
    """What the server under test is called among the primaries."""
    if conf.alias() != "cluster":
        return "alone"
    return str(server().execute_command("CLUSTER", "MYID").decode())


class TestReconnecting:
    def test_a_broken_subscription_is_made_again(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        heard = Heard()
        with listening(key_events=[key_handler(f"{site}*", heard, "set")]) as listener:
            until(lambda: told(listener))
            server().client_kill_filter(_type="pubsub")
            until(lambda: "reconnecting" in caplog.text)

            def again() -> bool:
                server().set(f"{site}a", 1)
                return bool(heard)

            until(again)

    def test_something_that_nobody_expected_ends_nothing(
        self, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What is published by hand on such a channel: the number of a database that is none."""
        heard = Heard()
        with listening(key_events=[key_handler(f"__keyspace@*__:{site}*", heard, "set")]) as listener:
            until(lambda: told(listener))
            server().publish(f"__keyspace@{'9' * 5000}__:{site}a", "set")
            until(lambda: "reconnecting" in caplog.text)

            def again() -> bool:
                server().set(f"{site}a", 1)
                return bool(heard)

            until(again)

    def test_a_server_that_says_nothing_any_more_is_left(
        self,
        site: str,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Its signs of life are answered; when they aren't, the connection counts as dead."""
        change(settings, COMMAND_DEADLINE=0.2)
        monkeypatch.setattr(channels, "PING_INTERVAL", 0.3)
        monkeypatch.setattr(channels, "CHECK_INTERVAL", 0.1)
        with listening(key_events=[key_handler(f"{site}*", Heard(), "set")]) as listener:
            [channel] = listener.events.channels.values()
            ends = threading.Event()
            ends.wait(1.2)  # many times the silence that it bears
            assert channel.subscribed.is_set()
            assert "reconnecting" not in caplog.text

            def left() -> bool:
                """While it says nothing, which begins again where this process was held meanwhile."""
                server().execute_command("CLIENT", "PAUSE", 1500, "ALL")
                ends = time.monotonic() + 1.4
                while "does not answer" not in caplog.text and time.monotonic() < ends:
                    time.sleep(0.01)
                return "does not answer" in caplog.text

            until(left)

    def test_a_listener_that_was_held_itself_asks_before_it_leaves(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As a process that was stopped, or a machine that slept: the server had nothing to answer."""
        held, over, readable = threading.Event(), threading.Event(), BlockingConnection.readable

        def arrive(connection: BlockingConnection, seconds: float = 0) -> bool:
            arrived = readable(connection, seconds)
            if seconds and not arrived and not over.is_set():
                held.set()
                over.wait(10)
            return arrived

        monkeypatch.setattr(channels, "PING_INTERVAL", 0.3)
        monkeypatch.setattr(channels, "CHECK_INTERVAL", 0.1)
        monkeypatch.setattr(BlockingConnection, "readable", arrive)
        heard = Heard()
        with listening(key_events=[key_handler(f"{site}*", heard, "set")]):
            until(held.is_set)
            begun = time.monotonic()
            until(lambda: time.monotonic() > begun + 1.2)  # longer than three signs of life
            over.set()

            def again() -> bool:
                server().set(f"{site}a", 1)
                return bool(heard)

            until(again)
        assert "reconnecting" not in caplog.text


class TestServersThatComeAndGo:
    @pytest.fixture
    def messaging_alias(self, messaging_settings: Prefix) -> str:
        """These have servers of their own."""
        return conf.alias()

    def test_a_server_that_was_away_is_listened_to_again(
        self, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard, fired = Heard(), Heard()
        with EmbeddedServer(append_only=True, options={NOTIFY: ALL}) as alone:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": alone.url}
            settings.CACHES = {**settings.CACHES, "away": entry}
            change(settings, ALIAS="away", COMMAND_DEADLINE=0.2)
            wanted = [key_handler(f"{site}*", heard, "set")]
            with listening({"order": fired}, wanted) as listener, alone.client() as client:
                Expiry("order").start("17", 0.5)
                alone.kill()
                for words in ("reconnecting", "Claiming jobs failed"):
                    until(lambda: words in caplog.text)  # noqa: B023
                alone.start()
                until(lambda: fired)
                until(lambda: listener.events is not None and told(listener))

                def again() -> bool:
                    client.set(f"{site}a", 1)
                    return bool(heard)

                until(again)
            clients.close()
        assert fired.names == ["17"]

    def test_a_listener_may_begin_before_its_server(
        self, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard = Heard()
        with EmbeddedServer(options={NOTIFY: ALL}) as late:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": late.url}
            settings.CACHES = {**settings.CACHES, "late": entry}
            change(settings, ALIAS="late", COMMAND_DEADLINE=0.2)
            late.kill()
            listener = Listener({}, [key_handler(f"{site}*", heard, "set")])
            with running(listener.run, listener.stop), late.client() as client:
                until(lambda: "Looking up the primaries failed" in caplog.text)
                late.start()
                until(lambda: listener.events and listener.events.channels and told(listener))
                client.set(f"{site}a", 1)
                until(lambda: heard)
            clients.close()

    def test_it_comes_back_after_any_number_of_attempts(
        self,
        settings: Settings,
        site: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(channels, "MAX_PAUSE", 0.0)
        heard = Heard()
        with EmbeddedServer(options={NOTIFY: ALL}) as alone:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": alone.url}
            settings.CACHES = {**settings.CACHES, "away": entry}
            change(settings, ALIAS="away", COMMAND_DEADLINE=0.2)
            with listening(key_events=[key_handler(f"{site}*", heard, "set")]), alone.client() as client:
                alone.kill()
                # 2 to the power of 1024 is no number any more
                until(lambda: sum("reconnecting" in text for text in list(caplog.messages)) > 1100)
                alone.start()

                def again() -> bool:
                    client.set(f"{site}a", 1)
                    return bool(heard)

                until(again)
            clients.close()

    def test_a_listener_ends_also_while_its_server_is_away(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """And a timer that it could not begin goes back without an attempt charged."""
        with EmbeddedServer(options={NOTIFY: ALL}) as alone:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": alone.url}
            settings.CACHES = {**settings.CACHES, "gone": entry}
            change(settings, ALIAS="gone", COMMAND_DEADLINE=0.2)
            store, heard = timers(), Heard()
            Expiry("order").start("17", 0.001)
            due = server_ms() + 2
            until(lambda: server_ms() > due)
            [held] = store.claim(["order"], 1, 60_000).jobs
            events = Events([key_handler(f"{site}*", Heard(), "set")])
            events.start()
            until(lambda: events.channels and all(one.fence for one in events.channels.values()))
            alone.kill()
            firing = Firing(store.engine, store.using, {"order": TimerHandler("order", heard, None)})
            settlement = firing(RunningJob(held, EventLoop().run))
            assert settlement is not None
            assert (settlement.outcome, heard) == (Outcome.RELEASE, [])
            events.close()
            clients.close()
        assert "it expires within" in caplog.text

    def test_a_subscription_that_is_refused_is_tried_again(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A user without any channels: it is let in later."""
        plain, heard = server(), Heard()
        plain.execute_command("ACL", "SETUSER", "deaf", "on", ">word", "~*", "resetchannels", "+@all")
        location = settings.CACHES[conf.alias()]["LOCATION"].replace("unix://", "unix://deaf:word@")
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
        settings.CACHES = {**settings.CACHES, "deaf": entry}
        alias = conf.alias()
        change(settings, ALIAS="deaf")
        events = Events([key_handler(f"{site}*", heard, "set")])
        events.start()
        until(lambda: "NOPERM" in caplog.text or "permissions" in caplog.text)
        # as text: a wider pattern would not do
        plain.execute_command("ACL", "SETUSER", "deaf", f"&__keyspace@0__:{site}*")

        def again() -> bool:
            plain.set(f"{site}a", 1)
            return bool(heard)

        until(again)
        events.close()
        clients.close()
        change(settings, ALIAS=alias)
        plain.execute_command("ACL", "DELUSER", "deaf")
