"""Keyspace events: which ones handlers receive, and handlers that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_messaging import Expiry, conf, handlers, on_key_event
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.listening import Listener, listener
from django_redis_messaging.services.listening.listener import Dispatcher, dispatch_key
from tests.core.test_failures import UNUSUAL
from tests.tasks.jobs import break_event_loop

from ..support.listeners import NOTIFY, PATIENCE, Received, is_dispatcher, key_handler, listening, ready
from ..support.server import is_cluster, server, until

pytestmark = [
    pytest.mark.worlds,
    pytest.mark.timing,
    pytest.mark.usefixtures("keyspace_events", "short_lease"),
]


class TestTheOriginal:
    def test_original_session(self, site: str) -> None:
        """psubscribe '__keyspace@0__:order*', then SETEX order:1: with a handler and with a raw client."""
        received = Received()
        with listening(key_events=[key_handler(f"__keyspace@0__:{site}order*", received, "expired")]):
            with server().pubsub(ignore_subscribe_messages=True) as plain:
                plain.psubscribe(f"__keyspace@0__:{site}order*")
                server().psetex(f"{site}order:1", 50, "unpaid")
                until(lambda: not server().exists(f"{site}order:1"))
                seen: list[Any] = []
                until(lambda: seen.append(plain.get_message(timeout=1)) or b"expired" in map(data, seen))
            until(lambda: received)
        assert received.keys == [(f"{site}order:1", "expired")]
        assert [message["data"] for message in seen if message] == [b"set", b"expire", b"expired"]

    def test_original_flags_deliver_no_expiry(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        """`K$e` selects string commands and evictions."""
        server().config_set(NOTIFY, "K$e")
        expirations, sets = Received(), Received()
        wanted = [
            key_handler(f"{site}order:*", expirations, "expired"),
            key_handler(f"{site}order:*", sets, "set"),
        ]
        with listening(key_events=wanted):
            server().psetex(f"{site}order:1", 1, "unpaid")
            until(lambda: not server().exists(f"{site}order:1"))
            server().set(f"{site}order:2", "unpaid")
            until(lambda: len(sets) == 2)
        assert expirations == []
        assert f"{site}order:*) also needs x" in caplog.text
        assert caplog.text.count("also needs x. Add it, or run with --configure.") == 1


def data(message: Any) -> Any:
    return message and message["data"]


class TestEvents:
    def test_all_events_by_default(self, site: str) -> None:
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received)]):
            server().set(f"{site}a", 1)
            server().incr(f"{site}a")
            server().rpush(f"{site}l", 1)
            server().delete(f"{site}a")
            until(lambda: len(received) == 4)
        assert received.keys == [
            (f"{site}a", "set"), (f"{site}a", "incrby"), (f"{site}l", "rpush"), (f"{site}a", "del"),
        ]  # fmt: skip
        assert {one.db for one in received} == {0}

    def test_only_the_named_events(self, site: str) -> None:
        received = Received()
        with listening(key_events=[key_handler(f"{site}a", received, "del", "set")]):
            server().set(f"{site}a", 1)
            server().set(f"{site}ab", 1)
            server().expire(f"{site}a", 100)
            server().delete(f"{site}a")
            until(lambda: len(received) == 2)
        assert received.keys == [(f"{site}a", "set"), (f"{site}a", "del")]

    def test_keyevent_channels(self, site: str) -> None:
        received = Received()
        with listening(key_events=[key_handler("__keyevent@*__:lpush", received)]):
            server().set(f"{site}a", 1)
            server().lpush(f"{site}l:☃", 1)
            until(lambda: received)
        assert received.keys == [(f"{site}l:☃", "lpush")]

    def test_every_matching_handler_is_called(self, site: str) -> None:
        one, two, three = Received(), Received(), Received()
        wanted = [
            key_handler(f"{site}*", one, "set"),
            key_handler(f"{site}*", two),
            key_handler("*", three, "set"),
        ]
        with listening(key_events=wanted):
            server().set(f"{site}a", 1)
            until(lambda: one and two and [key for key, _ in three.keys if key == f"{site}a"])

    def test_own_keys_cause_no_events(self, site: str) -> None:
        received, fired = Received(), Received()
        everything = [key_handler("*", received), key_handler("*", received, "set", "del", "expired", "zadd")]
        with listening({"order": fired}, everything):
            Expiry("order").start("17", 0.02)
            until(lambda: fired)
            server().set(f"{site}a", 1)
            until(lambda: (f"{site}a", "set") in received.keys)
        assert not [key for key, _ in received.keys if key.startswith(f"{conf.prefix()}:")]

    def test_keys_that_are_not_utf8(self, site: str) -> None:
        received = Received()
        with listening(key_events=[key_handler(f"{site}*", received, "set")]):
            server().set(site.encode() + b"\xff\x00\n", 1)
            until(lambda: received)
        assert received[0].key.encode("utf-8", "surrogateescape") == site.encode() + b"\xff\x00\n"

    def test_another_database(self, site: str, messaging_alias: str) -> None:
        if is_cluster():
            pytest.skip("a Cluster has one database")
        received, default = Received(), Received()
        wanted = [key_handler(f"{site}*", received, "set", db=3), key_handler(f"{site}*", default, "set")]
        with listening(key_events=wanted):
            with server().client() as other:
                other.select(3)
                other.set(f"{site}a", 1)
                until(lambda: received)
                other.delete(f"{site}a")
                other.select(0)
                other.set(f"{site}b", 1)
            until(lambda: default)
        assert [(one.key, one.db) for one in received] == [(f"{site}a", 3)]
        assert [(one.key, one.db) for one in default] == [(f"{site}b", 0)]


class TestHandlers:
    @pytest.mark.parametrize("error", [OSError, SystemExit])
    def test_failing_handler_stops_no_other(
        self, error: type[BaseException], site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        received = Received()

        def handler(event: Any) -> None:
            received.append(event)
            raise error("of a handler")

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]):
            server().set(f"{site}a", 1)
            server().set(f"{site}b", 1)
            until(lambda: len(received) == 2)
        assert "handler failed for the event 'set' of a key" in caplog.text
        assert site not in "".join(record.getMessage() for record in caplog.records)

    @pytest.mark.parametrize("make", UNUSUAL)
    def test_exception_that_cannot_be_formatted_stops_no_other(
        self, make: Callable[[], BaseException], site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        received = Received()

        def handler(event: Any) -> None:
            received.append(event)
            raise make()

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]):
            server().set(f"{site}a", 1)
            server().set(f"{site}b", 1)
            until(lambda: len(received) == 2)
        assert "handler failed for the event 'set' of a key" in caplog.text

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (listener.Dispatcher, "_call"),
            (listener.Subscription, "_listen_until_closed"),
            (listener.Events, "_follow_topology"),
        ],
    )
    def test_a_thread_that_fails_ends_the_listener(
        self,
        owner: type,
        name: str,
        site: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Otherwise it would seem to work, and call no handler any more."""
        began = Received()
        original = getattr(owner, name)

        def fail(self: Any, *args: Any) -> None:
            if server().exists(f"{site}fail"):
                began.append(args)
                raise SyntaxError("planted", ("file", 1, 1, 12345))  # type: ignore[arg-type]
            original(self, *args)

        if name == "_listen_until_closed":
            server().set(f"{site}fail", 1)
        monkeypatch.setattr(owner, name, fail)
        timer = TimerHandler("order", Received(), None)
        made = Listener({"order": timer}, [key_handler(f"{site}*", Received())])
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        until(lambda: server().set(f"{site}fail", 1) and began)
        thread.join(PATIENCE)
        assert (thread.is_alive(), made.failed) == (False, True)
        assert "planted" in caplog.text

    def test_coroutine_functions(self, site: str) -> None:
        received = Received()

        async def handler(event: Any) -> None:
            await asyncio.sleep(0)
            received.append(event)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]):
            server().set(f"{site}a", 1)
            until(lambda: received)

    def test_failed_event_loop_ends_the_listener(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        timer = TimerHandler("order", Received(), None)
        listener = Listener({"order": timer}, [key_handler(f"{site}*", break_event_loop.func)])
        thread = threading.Thread(target=listener.run, daemon=True)
        thread.start()
        events = listener.events
        assert events is not None
        until(lambda: events.subscriptions and all(map(ready, events.subscriptions.values())))
        server().set(f"{site}a", 1)
        thread.join(PATIENCE)
        assert (thread.is_alive(), listener.failed) == (False, True)
        assert "the selector failed" in caplog.text

    def test_functions_that_return_a_coroutine(self, site: str) -> None:
        received = Received()

        async def later(event: Any) -> None:
            await asyncio.sleep(0)
            received.append(event)

        with listening(key_events=[key_handler(f"{site}*", lambda event: later(event), "set")]):
            server().set(f"{site}a", 1)
            until(lambda: received)

    def test_second_stop_waits_for_no_handler(self, site: str) -> None:
        received, finish = Received(), threading.Event()

        def handler(event: Any) -> None:
            received.append(event)
            finish.wait(20)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")], drain=60.0) as listener:
            server().set(f"{site}a", 1)
            server().set(f"{site}b", 1)
            until(lambda: received)
            listener.stop()
            listener.stop()
        finish.set()
        assert received.keys == [(f"{site}a", "set")]

    def test_slow_handlers_lose_events_above_the_limit(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "MAX_WAITING", 2)
        received, finish = Received(), threading.Event()

        def handler(event: Any) -> None:
            finish.wait(10)
            received.append(event)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]):
            for number in range(20):
                server().set(f"{site}{number}", 1)
            until(lambda: "16 events were dropped" in caplog.text)
            finish.set()
            until(lambda: "have caught up" in caplog.text)
        assert 2 <= len(received) <= 4  # one in the handler, two waiting, one that arrived last
        assert f"caught up; {20 - len(received)} events were dropped in between" in caplog.text

    def test_hanging_handler_lets_another_listener_take_over(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listener, "HANGING_AFTER", 0.2)
        hung, finish, received = Received(), threading.Event(), Received()

        def handler(event: Any) -> None:
            hung.append(event)
            finish.wait(10)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]) as first:
            until(lambda: is_dispatcher(first))
            with listening(key_events=[key_handler(f"{site}*", received, "set")]) as second:
                server().set(f"{site}a", 1)
                until(lambda: hung)
                until(lambda: is_dispatcher(second))
                server().set(f"{site}b", 1)
                until(lambda: received)
            finish.set()
        assert hung.keys == [(f"{site}a", "set")]
        assert received.keys == [(f"{site}b", "set")]
        assert "hangs; another listener may take over" in caplog.text


class TestRegistration:
    def test_patterns_and_channels(self) -> None:
        received = Received()
        on_key_event("order:*", events={"expired"})(received)
        on_key_event("__keyspace@5__:order:*", events={"set", "del"})(received)
        on_key_event("__keyevent@*__:expired")(received)
        on_key_event("__keyevent@0__:*", events=["evicted"], db=2)(received)
        assert [(one.pattern, set(one.events), one.db, one.flags) for one in handlers.key_events] == [
            ("order:*", {"expired"}, None, "Kx"),
            ("order:*", {"set", "del"}, 5, "K$g"),
            ("*", {"expired"}, "*", "Ex"),
            ("*", {"evicted"}, 2, "Ee"),
        ]

    def test_function_can_be_registered_twice(self) -> None:
        received = Received.__call__
        on_key_event("a")(received)
        on_key_event("a")(received)
        assert len(handlers.key_events) == 1

    @pytest.mark.parametrize(
        ("arguments", "options", "error"),
        [
            (("",), {}, ValueError),
            (("a\0",), {}, ValueError),
            (("a",), {"events": "expired"}, TypeError),
            (("a",), {"events": [""]}, ValueError),
            (("a",), {"db": -1}, ValueError),
            (("a",), {"db": True}, ValueError),
            (("a",), {"db": "0"}, ValueError),
            (("__keyevent@0__:expired",), {"events": ["set"]}, ValueError),
            (("__keyevent@0__:exp*",), {}, ValueError),
            (("a",), {"events": ["*"]}, ValueError),
        ],
    )
    def test_invalid_input(self, arguments: Any, options: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            on_key_event(*arguments, **options)
        assert handlers.key_events == []


def test_closed_dispatcher_calls_waiting_handlers() -> None:
    from django_redis_messaging.services.jobs.threads import EventLoop

    received = Received()
    handler = key_handler("a", received)
    made = Dispatcher(EventLoop())
    for number in range(5):
        made.put(handler, handlers.KeyEvent(str(number), "set", 0, 1))
    made.end()
    assert made.ended(5)
    assert len(received) == 5
    assert dispatch_key("p", "n:1") == "p:1:{listener:nodes}:n%3A1"
