"""Keyspace events: what handlers are told, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from django_redis_messaging import Expiry, conf, handlers, on_key_event
from django_redis_messaging.services.listening import dispatch
from django_redis_messaging.services.listening.dispatch import Dispatcher
from django_redis_messaging.services.listening.keys import dispatch_key

from .asking import server, until
from .listening import NOTIFY, Heard, key_handler, listening, told

pytestmark = [pytest.mark.worlds, pytest.mark.timing, pytest.mark.usefixtures("telling", "short_lease")]


class TestTheOriginal:
    def test_its_transcript(self, site: str) -> None:
        """psubscribe '__keyspace@0__:order*', then SETEX order:1: here, and with a client of its own."""
        heard = Heard()
        with listening(key_events=[key_handler(f"__keyspace@0__:{site}order*", heard, "expired")]):
            with server().pubsub(ignore_subscribe_messages=True) as plain:
                plain.psubscribe(f"__keyspace@0__:{site}order*")
                server().psetex(f"{site}order:1", 50, "unpaid")
                until(lambda: not server().exists(f"{site}order:1"))
                seen: list[Any] = []
                until(lambda: seen.append(plain.get_message(timeout=1)) or b"expired" in map(data, seen))
            until(lambda: heard)
        assert heard.keys == [(f"{site}order:1", "expired")]
        assert [message["data"] for message in seen if message] == [b"set", b"expire", b"expired"]

    def test_its_flags_deliver_no_expiry(self, site: str, caplog: pytest.LogCaptureFixture) -> None:
        """`K$e` is sets and evictions."""
        server().config_set(NOTIFY, "K$e")
        gone, there = Heard(), Heard()
        wanted = [
            key_handler(f"{site}order:*", gone, "expired"),
            key_handler(f"{site}order:*", there, "set"),
        ]
        with listening(key_events=wanted):
            server().psetex(f"{site}order:1", 1, "unpaid")
            until(lambda: not server().exists(f"{site}order:1"))
            server().set(f"{site}order:2", "unpaid")
            until(lambda: len(there) == 2)
        assert gone == []
        assert f"{site}order:*) also needs x" in caplog.text
        assert caplog.text.count("Add it, or run") == 1


def data(message: Any) -> Any:
    return message and message["data"]


class TestEvents:
    def test_all_of_a_key_where_none_are_named(self, site: str) -> None:
        heard = Heard()
        with listening(key_events=[key_handler(f"{site}*", heard)]):
            server().set(f"{site}a", 1)
            server().incr(f"{site}a")
            server().rpush(f"{site}l", 1)
            server().delete(f"{site}a")
            until(lambda: len(heard) == 4)
        assert heard.keys == [
            (f"{site}a", "set"), (f"{site}a", "incrby"), (f"{site}l", "rpush"), (f"{site}a", "del"),
        ]  # fmt: skip
        assert {one.db for one in heard} == {0}

    def test_only_those_that_are_named(self, site: str) -> None:
        heard = Heard()
        with listening(key_events=[key_handler(f"{site}a", heard, "del", "set")]):
            server().set(f"{site}a", 1)
            server().set(f"{site}ab", 1)
            server().expire(f"{site}a", 100)
            server().delete(f"{site}a")
            until(lambda: len(heard) == 2)
        assert heard.keys == [(f"{site}a", "set"), (f"{site}a", "del")]

    def test_the_channels_of_events(self, site: str) -> None:
        heard = Heard()
        with listening(key_events=[key_handler("__keyevent@*__:lpush", heard)]):
            server().set(f"{site}a", 1)
            server().lpush(f"{site}l:☃", 1)
            until(lambda: heard)
        assert heard.keys == [(f"{site}l:☃", "lpush")]

    def test_each_handler_that_waits_for_it(self, site: str) -> None:
        one, two, three = Heard(), Heard(), Heard()
        wanted = [
            key_handler(f"{site}*", one, "set"),
            key_handler(f"{site}*", two),
            key_handler("*", three, "set"),
        ]
        with listening(key_events=wanted):
            server().set(f"{site}a", 1)
            until(lambda: one and two and [key for key, _ in three.keys if key == f"{site}a"])

    def test_keys_of_ours_are_never_told_of(self, site: str) -> None:
        heard, fired = Heard(), Heard()
        everything = [key_handler("*", heard), key_handler("*", heard, "set", "del", "expired", "zadd")]
        with listening({"order": fired}, everything):
            Expiry("order").start("17", 0.02)
            until(lambda: fired)
            server().set(f"{site}a", 1)
            until(lambda: (f"{site}a", "set") in heard.keys)
        assert not [key for key, _ in heard.keys if key.startswith(f"{conf.prefix()}:")]

    def test_keys_that_are_no_text(self, site: str) -> None:
        heard = Heard()
        with listening(key_events=[key_handler(f"{site}*", heard, "set")]):
            server().set(site.encode() + b"\xff\x00\n", 1)
            until(lambda: heard)
        assert heard[0].key.encode("utf-8", "surrogateescape") == site.encode() + b"\xff\x00\n"

    def test_another_database(self, site: str, messaging_alias: str) -> None:
        if messaging_alias == "cluster":
            pytest.skip("a Cluster has one database")
        heard, default = Heard(), Heard()
        wanted = [key_handler(f"{site}*", heard, "set", db=3), key_handler(f"{site}*", default, "set")]
        with listening(key_events=wanted):
            with server().client() as other:
                other.select(3)
                other.set(f"{site}a", 1)
                until(lambda: heard)
                other.delete(f"{site}a")
                other.select(0)
                other.set(f"{site}b", 1)
            until(lambda: default)
        assert [(one.key, one.db) for one in heard] == [(f"{site}a", 3)]
        assert [(one.key, one.db) for one in default] == [(f"{site}b", 0)]


class TestHandlers:
    @pytest.mark.parametrize("error", [OSError, SystemExit])
    def test_one_that_raises_stops_nobody(
        self, error: type[BaseException], site: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard = Heard()

        def handler(event: Any) -> None:
            heard.append(event)
            raise error("of a handler")

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]):
            server().set(f"{site}a", 1)
            server().set(f"{site}b", 1)
            until(lambda: len(heard) == 2)
        assert "handler failed for the event 'set' of a key" in caplog.text
        assert site not in "".join(record.getMessage() for record in caplog.records)

    def test_coroutine_functions(self, site: str) -> None:
        heard = Heard()

        async def handler(event: Any) -> None:
            await asyncio.sleep(0)
            heard.append(event)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]):
            server().set(f"{site}a", 1)
            until(lambda: heard)

    def test_functions_that_return_a_coroutine(self, site: str) -> None:
        heard = Heard()

        async def later(event: Any) -> None:
            await asyncio.sleep(0)
            heard.append(event)

        with listening(key_events=[key_handler(f"{site}*", lambda event: later(event), "set")]):
            server().set(f"{site}a", 1)
            until(lambda: heard)

    def test_a_second_signal_waits_for_none(self, site: str) -> None:
        heard, over = Heard(), threading.Event()

        def handler(event: Any) -> None:
            heard.append(event)
            over.wait(20)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")], drain=60.0) as listener:
            server().set(f"{site}a", 1)
            server().set(f"{site}b", 1)
            until(lambda: heard)
            listener.stop()
            listener.stop()
        over.set()
        assert heard.keys == [(f"{site}a", "set")]

    def test_slow_ones_lose_what_is_too_much(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(dispatch, "MAX_WAITING", 2)
        heard, over = Heard(), threading.Event()

        def handler(event: Any) -> None:
            over.wait(10)
            heard.append(event)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]):
            for number in range(20):
                server().set(f"{site}{number}", 1)
            until(lambda: "too slow; 16 events were dropped" in caplog.text)
            over.set()
        assert 2 <= len(heard) <= 4  # one in the handler, two that wait, one that came at last

    def test_one_that_hangs_lets_another_listener_take_over(
        self, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(dispatch, "HANGING_AFTER", 0.2)
        hung, over, heard = Heard(), threading.Event(), Heard()

        def handler(event: Any) -> None:
            hung.append(event)
            over.wait(10)

        with listening(key_events=[key_handler(f"{site}*", handler, "set")]) as first:
            until(lambda: told(first))
            with listening(key_events=[key_handler(f"{site}*", heard, "set")]) as second:
                server().set(f"{site}a", 1)
                until(lambda: hung)
                until(lambda: told(second))
                server().set(f"{site}b", 1)
                until(lambda: heard)
            over.set()
        assert hung.keys == [(f"{site}a", "set")]
        assert heard.keys == [(f"{site}b", "set")]
        assert "hangs; another listener may take over" in caplog.text


class TestRegistration:
    def test_what_is_said_in_either_way(self) -> None:
        heard = Heard()
        on_key_event("order:*", events={"expired"})(heard)
        on_key_event("__keyspace@5__:order:*", events={"set", "del"})(heard)
        on_key_event("__keyevent@*__:expired")(heard)
        on_key_event("__keyevent@0__:*", events=["evicted"], db=2)(heard)
        assert [(one.pattern, set(one.events), one.db, one.flags) for one in handlers.key_events] == [
            ("order:*", {"expired"}, None, "Kx"),
            ("order:*", {"set", "del"}, 5, "K$g"),
            ("*", {"expired"}, "*", "Ex"),
            ("*", {"evicted"}, 2, "Ee"),
        ]

    def test_the_same_twice_is_the_same(self) -> None:
        heard = Heard.__call__
        on_key_event("a")(heard)
        on_key_event("a")(heard)
        assert len(handlers.key_events) == 1

    @pytest.mark.parametrize(
        ("words", "options", "error"),
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
    def test_bad_input(self, words: Any, options: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            on_key_event(*words, **options)
        assert handlers.key_events == []


def test_a_dispatcher_that_is_closed_calls_what_waits() -> None:
    from django_redis_messaging.services.jobs.running import EventLoop

    heard = Heard()
    handler = key_handler("a", heard)
    made = Dispatcher(EventLoop())
    for number in range(5):
        made.put(handler, handlers.KeyEvent(str(number), "set", 0, 1))
    made.end()
    assert made.ended(5)
    assert len(heard) == 5
    assert dispatch_key("p", "n:1") == "p:1:{listener:nodes}:n%3A1"
