"""Handlers of key events that fail, and listeners whose server fails, leaves or returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
from django_redis_messaging.services.listening import Listener, listener
from django_redis_messaging.services.listening.listener import Events
from tests.support.engines import timers
from tests.support.unusual_errors import UNUSUAL
from tests.support.workers import running, running_job
from tests.tasks.jobs import break_event_loop

from ..support.aliases import lead_to, limited_user
from ..support.listeners import (
    ALL,
    NOTIFY,
    PATIENCE,
    Received,
    following,
    is_dispatcher,
    is_subscribed,
    key_handler,
    listening,
    set_until_received,
)
from ..support.server import change, server, server_ms, until

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("keyspace_events", "short_lease")]


class Hanging(Received):
    """A handler that hangs until it may finish."""

    def __init__(self) -> None:
        super().__init__()
        self.finish = threading.Event()

    def __call__(self, received: Any) -> None:
        self.append(received)
        self.finish.wait(PATIENCE)


class TestHandlers:
    def test_failing_handler_stops_no_other(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        """Nor does an exception that cannot be formatted."""
        received, makers = Received(), [OSError, SystemExit, *UNUSUAL]

        def handler(event: Any) -> None:
            received.append(event)
            raise makers[len(received) - 1]()

        with following(site, handler):
            for number in range(len(makers)):
                server().set(f"{site}{number}", 1)
            until(lambda: len(received) == len(makers))
        assert caplog.text.count("handler failed for the event 'set' of a key") == len(makers)
        assert site not in "".join(record.getMessage() for record in caplog.records[:2])

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (listener.Dispatcher, "_call"),
            (listener.Subscription, "_listen_until_closed"),
            (listener.Events, "_follow_topology"),
            (None, "event loop"),
        ],
    )
    def test_a_thread_that_fails_ends_the_listener(
        self,
        owner: Any,
        name: str,
        site: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Otherwise it would seem to work, and call no handler any more."""
        failed = threading.Event()
        if owner is not None:
            original = getattr(owner, name)

            def fail(self: Any, *args: Any) -> None:
                if name == "_listen_until_closed" or failed.is_set():
                    raise SyntaxError("planted", ("file", 1, 1, 12345))  # type: ignore[arg-type]
                original(self, *args)

            monkeypatch.setattr(owner, name, fail)
        handler = key_handler(f"{site}*", Received() if owner else break_event_loop.func)
        made = Listener({"order": TimerHandler("order", Received(), None)}, [handler])
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        until(lambda: is_subscribed(made) or made.failed)
        failed.set()
        server().set(f"{site}a", 1)
        thread.join(PATIENCE)
        assert (thread.is_alive(), made.failed) == (False, True)
        assert ("planted" if owner else "the selector failed") in caplog.text

    def test_second_stop_waits_for_no_handler(self, site: str) -> None:
        handler = Hanging()
        with following(site, handler, drain=60.0) as made:
            server().set(f"{site}a", 1)
            server().set(f"{site}b", 1)
            until(lambda: handler)
            made.stop()
            made.stop()
        handler.finish.set()
        assert handler.keys == [(f"{site}a", "set")]

    def test_slow_handlers_lose_events_above_the_limit(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "MAX_WAITING", 2)
        handler = Hanging()
        with following(site, handler):
            for number in range(20):
                server().set(f"{site}{number}", 1)
            until(lambda: "16 events were dropped" in caplog.text)
            handler.finish.set()
            until(lambda: "have caught up" in caplog.text)
            handled = len(handler)
            server().set(f"{site}later", 1)
            until(lambda: len(handler) > handled)
        assert 2 <= handled <= 4  # one in the handler, two waiting, one that arrived last
        assert f"caught up; {20 - handled} events were dropped in between" in caplog.text
        assert caplog.text.count("have caught up") == 1

    def test_hanging_handler_lets_another_listener_take_over(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "HANGING_AFTER", 0.2)
        hung, received = Hanging(), Received()
        with following(site, hung) as first:
            until(lambda: is_dispatcher(first))
            with following(site, received) as second:
                server().set(f"{site}a", 1)
                until(lambda: hung)
                until(lambda: is_dispatcher(second))
                server().set(f"{site}b", 1)
                until(lambda: received)
                [subscription] = first.events.subscriptions.values()  # type: ignore[union-attr]
                renewed = subscription._renewed
                until(lambda: subscription._renewed > renewed)
                assert not is_dispatcher(first)
            hung.finish.set()
        assert hung.keys == [(f"{site}a", "set")]
        assert received.keys == [(f"{site}b", "set")]
        assert "hangs; another listener may take over" in caplog.text


class TestReconnecting:
    def test_broken_subscription_is_renewed(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        """After an unexpected error too: an event published by hand, with an impossible database number."""
        received = Received()
        with listening(key_events=[key_handler(f"__keyspace@*__:{site}*", received, "set")]) as made:
            until(lambda: is_dispatcher(made))
            server().client_kill_filter(_type="pubsub")
            until(lambda: "reconnecting" in caplog.text)
            set_until_received(server(), f"{site}a", received)
            caplog.clear()
            received.clear()
            server().publish(f"__keyspace@{'9' * 5000}__:{site}a", "set")
            until(lambda: "reconnecting" in caplog.text)
            set_until_received(server(), f"{site}a", received)

    def test_unresponsive_server_is_disconnected(
        self,
        site: str,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Pings are answered; without an answer, the connection counts as dead."""
        change(settings, COMMAND_DEADLINE=0.2)
        monkeypatch.setattr(listener, "PING_INTERVAL", 0.2)
        with following(site, Received()) as made:
            [subscription] = made.events.subscriptions.values()  # type: ignore[union-attr]
            ends = time.monotonic() + 0.8  # more than the allowed silence
            until(lambda: time.monotonic() > ends)
            assert subscription.subscribed.is_set()
            assert "reconnecting" not in caplog.text

            def disconnected() -> bool:
                """Pause the server, and repeat the pause in case this process was stalled meanwhile."""
                server().execute_command("CLIENT", "PAUSE", 1000, "ALL")
                deadline = time.monotonic() + 0.9
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

        monkeypatch.setattr(listener, "PING_INTERVAL", 0.2)
        monkeypatch.setattr(BlockingConnection, "readable", delayed_readable)
        received = Received()
        with following(site, received):
            until(stalled.is_set)
            ends = time.monotonic() + 0.8  # longer than three ping intervals
            until(lambda: time.monotonic() > ends)
            finish.set()
            set_until_received(server(), f"{site}a", received)
        assert "reconnecting" not in caplog.text


@contextmanager
def own_server(settings: Settings, **options: Any) -> Iterator[EmbeddedServer]:
    """A server for the block, to which the app's alias leads."""
    with EmbeddedServer(options={NOTIFY: ALL, "appendfsync": "always"}, **options) as single:
        lead_to(settings, single.url, COMMAND_DEADLINE=0.2)
        yield single
        clients.close()


class TestServerOutages:
    @pytest.fixture
    def messaging_alias(self, messaging_settings: Prefix) -> str:
        """These tests start their own servers."""
        return conf.alias()

    def test_listener_resubscribes_after_an_outage(
        self, settings: Settings, site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        received, fired = Received(), Received()
        wanted = [key_handler(f"{site}*", received, "set")]
        with (
            own_server(settings, append_only=True) as single,
            listening({"order": fired}, wanted) as made,
            single.client() as client,
        ):
            Expiry("order").start("17", 0.5)
            single.kill()
            for text in ("reconnecting", "Claiming jobs failed"):
                until(lambda: text in caplog.text)  # noqa: B023
            single.start()
            until(lambda: fired)
            until(lambda: is_dispatcher(made))
            set_until_received(client, f"{site}a", received)
        assert fired.names == ["17"]

    def test_listener_can_start_before_its_server(
        self, settings: Settings, site: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "TOPOLOGY_INTERVAL", 0.1)
        received = Received()
        with own_server(settings) as late:
            late.kill()
            made = Listener({}, [key_handler(f"{site}*", received, "set")])
            with running(made.run, made.stop), late.client() as client:
                until(lambda: "Looking up the primaries failed" in caplog.text)
                late.start()
                until(lambda: is_subscribed(made) and is_dispatcher(made))
                client.set(f"{site}a", 1)
                until(lambda: received)

    def test_listener_reconnects_after_many_attempts(
        self,
        settings: Settings,
        site: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(listener, "MAX_PAUSE", 0.0)
        received = Received()
        with own_server(settings) as single, following(site, received), single.client() as client:
            single.kill()
            # a float overflows at 2 to the power of 1024
            until(lambda: sum("reconnecting" in text for text in list(caplog.messages)) > 1100)
            single.start()
            set_until_received(client, f"{site}a", received)

    def test_listener_stops_during_an_outage(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A timer that it could not begin is released without charging an attempt."""
        received = Received()
        with own_server(settings) as single:
            engine = timers()
            Expiry("order").start("17", 0.001)
            due = server_ms() + 2
            until(lambda: server_ms() > due)
            [leased] = engine.claim(["order"], 1, 60_000).jobs
            events = Events([key_handler(f"{site}*", Received(), "set")])
            events.start()
            until(lambda: events.subscriptions and all(one.fence for one in events.subscriptions.values()))
            single.kill()
            firing = Firing(engine.engine, engine.using, {"order": TimerHandler("order", received, None)})
            settlement = firing(running_job(leased))
            assert settlement is not None
            assert (settlement.outcome, received) == (Outcome.RELEASE, [])
            events.close()
        assert "it expires within" in caplog.text

    def test_refused_subscription_is_retried(
        self, site: str, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The user has no channel permissions at first."""
        received = Received()
        with limited_user(settings, "resetchannels") as plain:
            events = Events([key_handler(f"{site}*", received, "set")])
            events.start()
            until(lambda: "NOPERM" in caplog.text or "permissions" in caplog.text)
            # the permission must be this literal pattern: a wider one would not do
            plain.execute_command("ACL", "SETUSER", "limited", f"&__keyspace@0__:{site}*")
            set_until_received(plain, f"{site}a", received)
            events.close()
