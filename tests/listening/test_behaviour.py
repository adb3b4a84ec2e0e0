"""Keyspace events: which ones handlers receive, and which listener of several dispatches them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Expiry, conf, handlers, on_key_event
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.services.jobs.threads import EventLoop
from django_redis_messaging.services.listening.listener import Dispatcher, DispatchLock, dispatch_key

from ..support.listeners import NOTIFY, Received, following, is_dispatcher, key_handler, listening
from ..support.server import change, is_cluster, server, until

pytestmark = [
    pytest.mark.timing,
    pytest.mark.usefixtures("keyspace_events", "short_lease"),
]


@pytest.mark.worlds
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


@pytest.mark.worlds
class TestEvents:
    def test_each_handler_receives_its_events(self, site: str) -> None:
        """Handlers can be coroutine functions; a decorated one may be a function that returns a coroutine."""
        received = defaultdict[str, Received](Received)

        async def receive(event: Any) -> None:
            await asyncio.sleep(0)
            received["coroutine function"](event)

        async def receive_later(event: Any) -> None:
            received["returns a coroutine"](event)

        wanted = [
            key_handler(f"{site}*", received["all events"]),
            key_handler(f"{site}*", received["of a type"], "set"),
            key_handler(f"{site}a", received["of a key"], "del", "set"),
            key_handler("__keyevent@*__:lpush", received["of a channel"]),
            key_handler("*", received["of all keys"], "set"),
            key_handler(f"{site}a", receive, "incrby"),
            key_handler(f"{site}b", lambda event: receive_later(event)),
        ]
        a, b, other, queue = (f"{site}{name}" for name in ("a", "b", "ab", "l:☃"))
        sets = [(a, "set"), (b, "set"), (other, "set")]
        expected = {
            "all events": [sets[0], (a, "incrby"), (queue, "lpush"), *sets[1:], (a, "del")],
            "of a type": sets,
            "of a key": [(a, "set"), (a, "del")],
            "of a channel": [(queue, "lpush")],
            "of all keys": sets,
            "coroutine function": [(a, "incrby")],
            "returns a coroutine": [(b, "set")],
        }
        with listening(key_events=wanted):
            server().set(a, 1)
            server().incr(a)
            server().lpush(queue, 1)
            server().set(b, 1)
            server().set(other, 1)
            server().delete(a)
            until(lambda: all(set(expected[name]) <= set(received[name].keys) for name in expected))
        found = {
            name: [one for one in each.keys if one[0].startswith(site)] for name, each in received.items()
        }
        assert found == expected
        assert {one.db for one in received["all events"]} == {0}

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
        with following(site, received):
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


class TestOneListenerOfSeveral:
    def test_one_listener_dispatches_and_another_takes_over_when_it_ends(self, site: str) -> None:
        one, two = Received(), Received()
        with following(site, one) as first:
            until(lambda: is_dispatcher(first))
            with following(site, two) as second:
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
        with following(site, received) as listener:
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
        with following(site, Received()) as listener:
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
        with following(site, Received()) as listener:
            until(lambda: is_dispatcher(listener))
            [subscription] = listener.events.subscriptions.values()
            fence, subscription.fence = subscription.fence, 0
            until(lambda: subscription.fence)
            assert subscription.fence == fence

    def test_lost_lease_is_noticed(self, site: str) -> None:
        received, other = Received(), DispatchLock(node_id())
        with following(site, received) as listener:
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
    received = Received()
    handler = key_handler("a", received)
    made = Dispatcher(EventLoop())
    for number in range(5):
        made.put(handler, handlers.KeyEvent(str(number), "set", 0, 1))
    made.end()
    assert made.ended(5)
    assert len(received) == 5
    assert dispatch_key("p", "n:1") == f"p:{FORMAT}:{{listener:nodes}}:n%3A1"
