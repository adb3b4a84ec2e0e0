"""Timers: start, extend, cancel, invalid input, and due timers without a listener."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import (
    ConfigurationError,
    Expired,
    Expiry,
    LimitExceeded,
    conf,
    handlers,
    on_expiry,
)
from django_redis_messaging.core.operations import aperform, perform
from django_redis_messaging.services.expiries.timers import TimerEngine, namespaces_key
from django_redis_messaging.services.expiries.timers import timers as timers_round
from django_redis_messaging.services.jobs.keys import request_shard
from tests.support.engines import timers

from ..support.listeners import (
    LATER,
    SOON,
    Received,
    jobs,
    listening,
    real_key,
    remaining_keys,
    wait_until_past,
)
from ..support.server import all_keys, change, crash_after, server, server_ms, snapshot, until


class TestStart:
    def test_start_stores_a_real_key_with_payload_and_ttl(self) -> None:
        Expiry("order").start("17", 30, {"total": 9.5})
        key = real_key("order", "17")
        assert json.loads(server().get(key)) == {"total": 9.5}
        assert 29_000 < server().pttl(key) <= 30_000
        assert 29 < (Expiry("order").remaining("17") or 0) <= 30

    @pytest.mark.timing
    def test_real_key_expires_when_the_timer_is_due(self) -> None:
        Expiry("order").start("17", 30)
        due = int(server().zscore(jobs().queue("order").delayed, server().hget(jobs().uniques, "order:17")))
        assert 0 <= due - (server_ms() + server().pttl(real_key("order", "17"))) <= 2

    def test_each_start_has_a_new_id(self) -> None:
        orders = Expiry("order")
        assert orders.start("17", 30) != orders.start("17", 30)

    @pytest.mark.timing
    def test_timer_of_the_same_name_is_replaced(self) -> None:
        orders, received = Expiry("order"), Received()
        orders.start("17", SOON, "first")
        second = orders.start("17", 2 * SOON, "second")
        with listening({"order": received}):
            until(lambda: received)
            wait_until_past(server_ms() + 150)
        assert [(one.payload, one.id) for one in received] == [("second", second)]
        assert remaining_keys() == []

    def test_namespaces_are_independent(self) -> None:
        Expiry("order").start("17", 30)
        Expiry("cart").start("17", 60)
        assert (Expiry("order").remaining("17") or 0) <= 30 < (Expiry("cart").remaining("17") or 0)
        assert Expiry("order").cancel("17")
        assert Expiry("cart").remaining("17") is not None

    @pytest.mark.parametrize(("namespace", "name"), [("a:b", "c"), ("a", "b:c"), ("{x}", "%"), ("é ", "\n☃")])
    def test_any_characters_in_names(self, namespace: str, name: str) -> None:
        received = Received()
        Expiry(namespace).start(name, SOON, name)
        Expiry("a").start("b", LATER)
        with listening({namespace: received}):
            until(lambda: received)
        [expired] = received
        assert (expired.namespace, expired.name, expired.payload) == (namespace, name, name)
        assert server().exists(real_key("a", "b"))

    def test_repeat_changes_nothing_and_returns_the_first_id(self) -> None:
        orders = Expiry("order")
        first = orders.start("17", 30, "first", request_id="r")
        before = snapshot()
        assert orders.start("17", 60, "second", request_id="r") == first
        assert snapshot() == before

    def test_repeat_of_a_cancelled_start_starts_nothing(self) -> None:
        orders = Expiry("order")
        orders.start("17", 30, request_id="r")
        orders.cancel("17")
        orders.start("17", 30, request_id="r")
        assert orders.remaining("17") is None

    def test_one_request_id_may_start_timers_of_several_names(self) -> None:
        ids = {Expiry(space).start(name, 30, request_id="r") for space in "ab" for name in "xy"}
        assert len(ids) == 4

    @pytest.mark.parametrize("after", [timedelta(seconds=30), 30, 30.0])
    def test_after_is_seconds_or_a_timedelta(self, after: Any) -> None:
        Expiry("order").start("17", after)
        assert 29 < (Expiry("order").remaining("17") or 0) <= 30

    def test_after_of_decades(self) -> None:
        Expiry("order").start("17", timedelta(days=36_000))
        assert (Expiry("order").remaining("17") or 0) > 35_999 * 86_400


class TestExtendAndCancel:
    @pytest.mark.parametrize("after", [60, 10])
    def test_extend_counts_from_now(self, after: int) -> None:
        orders = Expiry("order")
        orders.start("17", 30)
        assert orders.extend("17", after)
        assert after - 1 < (orders.remaining("17") or 0) <= after
        assert after * 1000 - 1000 < server().pttl(real_key("order", "17")) <= after * 1000

    def test_extend_restores_a_deleted_real_key(self) -> None:
        Expiry("order").start("17", 30, ["payload\n"])
        server().delete(real_key("order", "17"))
        assert Expiry("order").extend("17", 60)
        assert json.loads(server().get(real_key("order", "17"))) == ["payload\n"]
        assert server().pttl(real_key("order", "17")) > 50_000

    def test_shortened_timer_fires_earlier(self) -> None:
        received = Received()
        Expiry("order").start("17", LATER)
        with listening({"order": received}):
            Expiry("order").extend("17", SOON)
            until(lambda: received)

    def test_cancel_removes_all_keys(self) -> None:
        orders = Expiry("order")
        orders.start("17", 30)
        assert orders.cancel("17")
        assert remaining_keys() == []
        assert (orders.cancel("17"), orders.extend("17", 30), orders.remaining("17")) == (False, False, None)

    def test_unknown_name(self) -> None:
        before = all_keys()
        orders = Expiry("order")
        assert (orders.cancel("x"), orders.extend("x", 1), orders.remaining("x")) == (False, False, None)
        assert all_keys() == before

    def test_fired_timer_is_gone(self) -> None:
        orders, received = Expiry("order"), Received()
        with listening({"order": received}):
            orders.start("17", SOON)
            until(lambda: received)
        assert (orders.cancel("17"), orders.extend("17", 30), orders.remaining("17")) == (False, False, None)
        assert remaining_keys() == []


class TestRegistration:
    def test_decorator_returns_the_function(self) -> None:
        received = Received()
        assert on_expiry("order")(received) is received
        assert handlers.timers["order"].function is received

    def test_function_can_be_registered_twice(self) -> None:
        def handler(expired: Expired) -> None: ...

        on_expiry("order")(handler)
        on_expiry("order")(handler)
        assert list(handlers.timers) == ["order"]

    def test_second_handler_of_a_namespace_is_rejected(self) -> None:
        def one(expired: Expired) -> None: ...
        def other(expired: Expired) -> None: ...

        on_expiry("order")(one)
        with pytest.raises(ConfigurationError, match=r"'order' has a handler already, .*one: call both"):
            on_expiry("order")(other)
        assert handlers.timers["order"].function is one

    def test_unnamed_functions_are_distinct(self) -> None:
        on_expiry("order")(lambda expired: None)
        with pytest.raises(ConfigurationError, match="a handler already"):
            on_expiry("order")(lambda expired: 1)

    @pytest.mark.parametrize("namespace", ["", "a\0b", "x" * 256, "\ud800"])
    def test_invalid_namespaces(self, namespace: str) -> None:
        with pytest.raises(ValueError, match="namespace"):
            on_expiry(namespace)

    @pytest.mark.parametrize("timeout", [0, -1, float("nan")])
    def test_invalid_timeouts(self, timeout: float) -> None:
        with pytest.raises(ValueError, match="timeout"):
            on_expiry("order", timeout=timeout)


class TestInvalidInput:
    @pytest.mark.parametrize("operation", ["start", "extend"])
    @pytest.mark.parametrize("after", [0, -1, 0.0, timedelta(0), timedelta(seconds=-1), float("nan"), 1e12])
    def test_invalid_after(self, operation: str, after: Any) -> None:
        with pytest.raises(ValueError, match="after must be"):
            getattr(Expiry("order"), operation)("17", after)
        assert all_keys() == []

    @pytest.mark.parametrize("after", ["30", None, True])
    def test_after_of_another_type(self, after: Any) -> None:
        with pytest.raises(TypeError, match="after must be seconds"):
            Expiry("order").start("17", after)

    @pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "\ud800"])
    def test_invalid_names(self, name: str) -> None:
        with pytest.raises(ValueError, match="namespace"):
            Expiry(name)
        for operation in (
            lambda: Expiry("order").start(name, 1),
            lambda: Expiry("order").extend(name, 1),
            lambda: Expiry("order").cancel(name),
            lambda: Expiry("order").remaining(name),
        ):
            with pytest.raises(ValueError, match="name"):
                operation()
        assert all_keys() == []

    @pytest.mark.parametrize("payload", [{1: 2}, object(), {"x": b"bytes"}])
    def test_unserializable_payloads(self, payload: Any) -> None:
        with pytest.raises(TypeError, match="payload"):
            Expiry("order").start("17", 1, payload)

    def test_payload_above_max_bytes(self, settings: Settings) -> None:
        change(settings, JOB_MAX_BYTES=100)
        Expiry("order").start("17", LATER, "é" * 49)
        with pytest.raises(LimitExceeded, match="JOB_MAX_BYTES") as caught:
            Expiry("order").start("18", LATER, "é" * 50)
        assert (caught.value.limit, caught.value.actual) == (100, 102)
        assert not server().exists(real_key("order", "18"))

    def test_too_many_timers(self, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=2)
        orders = Expiry("order")
        orders.start("1", LATER)
        orders.start("2", LATER)
        before = snapshot()
        with pytest.raises(LimitExceeded, match="JOB_MAX_WAITING"):
            orders.start("3", LATER)
        assert snapshot() == before
        orders.start("2", 60)
        Expiry("other").start("3", LATER)


def poll() -> float | None:
    """Do the poller's only round over timers."""
    [one] = timers_round(conf.alias())
    return perform(one.using, one.steps())


class TestPolling:
    @pytest.mark.timing
    def test_poller_moves_due_timers_without_a_listener(self) -> None:
        Expiry("order").start("1", 0.001)
        Expiry("cart").start("1", LATER)
        wait_until_past(server_ms() + 5)
        left = poll()
        assert left is not None
        assert 3599 < left <= 3600
        assert server().zcard(jobs().queue("order").ready) == 1

    def test_empty_namespaces_are_removed_long_after_their_last_timer(self) -> None:
        Expiry("order").start("1", 0.001)
        Expiry("cart").start("1", LATER)
        Expiry("cart").start("2", 1)
        key = f"{jobs().tag}:namespaces"
        assert server().zscore(key, "cart") > server_ms() + 3_590_000
        Expiry("cart").extend("1", 2 * LATER)
        assert server().zscore(key, "cart") > server_ms() + 7_190_000
        server().zadd(key, dict.fromkeys(("order", "cart"), server_ms() - 31 * 86_400_000))
        Expiry("order").cancel("1")
        poll()
        assert timers().namespaces() == ["cart"]
        assert server().zscore(key, "cart") > server_ms() - 10_000

    def test_without_timers_there_is_no_round(self) -> None:
        assert list(timers_round(conf.alias())) == []


class TestCrashes:
    @pytest.mark.parametrize("operation", ["start", "extend", "cancel"])
    def test_each_operation_is_one_step(self, operation: str) -> None:
        Expiry("order").start("17", 30)
        arguments: tuple[Any, ...] = () if operation == "cancel" else (60,)
        crash_after(getattr(Expiry("order"), operation), 1, "17", *arguments)
        left = Expiry("order").remaining("17")
        assert left is None if operation == "cancel" else (left or 0) > 59


async def test_async_operations() -> None:
    orders, received = Expiry("order"), Received()
    id_ = await orders.astart("17", LATER, {"total": 1}, request_id="r")
    assert await orders.astart("17", 1, request_id="r") == id_
    assert 3599 < (await orders.aremaining("17") or 0) <= LATER
    assert await orders.aextend("17", 60)
    assert (await orders.aremaining("17") or 0) <= 60
    assert (await orders.acancel("17"), await orders.acancel("17")) == (True, False)
    assert await orders.aremaining("17") is None
    with pytest.raises(ValueError, match="after"):
        await orders.astart("17", 0)
    await orders.astart("18", SOON)
    using, engine = timers().using, TimerEngine(conf.prefix())
    with listening({"order": received}):
        await asyncio.to_thread(until, lambda: received)
    assert await aperform(using, engine.namespaces()) == ["order"]
    assert await aperform(using, engine.stats("order")) == [0, 0, 0, 0, -1]
    assert await aperform(using, engine.sweep(["order"])) is None
    assert await aperform(using, engine.redrive("order", None)) == 0


def test_repr_has_the_namespace() -> None:
    assert repr(Expiry("order")) == "Expiry('order')"


#: keys that each operation uses besides the real key, and whose type it must therefore check
CHANGED = "jobs states outcomes uniques ready delayed leased bell"
STARTED = f"{CHANGED} pushes:0 pushes:1 namespaces"
USED_KEYS: dict[str, tuple[Callable[[Expiry], Any], str]] = {
    "start": (
        lambda orders: orders.start("new", LATER, request_id="r"),
        STARTED,
    ),
    "restart": (
        lambda orders: orders.start("17", LATER, request_id="r"),
        STARTED,
    ),
    "extend": (lambda orders: orders.extend("17", 60), f"{CHANGED} namespaces"),
    "cancel": (lambda orders: orders.cancel("17"), CHANGED),
    "remaining": (lambda orders: orders.remaining("17"), "states uniques"),
}


@pytest.mark.worlds
@pytest.mark.parametrize("operation", USED_KEYS)
def test_key_of_another_type(operation: str) -> None:
    """An operation that uses the key fails and changes nothing; the others ignore it."""
    function, used = USED_KEYS[operation]
    orders, queue = Expiry("order"), jobs().queue("order")
    request = f"order:{'17' if operation == 'restart' else 'new'}:r"
    requests = jobs().requests_of(request_shard(request))
    for key in (*jobs().records, *queue.all, *requests, namespaces_key(conf.prefix())):
        for name in all_keys():
            server().delete(name)
        orders.start("17", LATER)
        server().delete(key)
        server().sadd(key, "not ours")
        before = snapshot()
        part = key.removeprefix(jobs().tag + ":").removeprefix("queue:order:")
        part = re.sub(r"requests:\d+:", "pushes:", part)
        if part in used.split():
            with pytest.raises(ConfigurationError, match="another type"):
                function(orders)
            assert snapshot() == before, part
        else:
            function(orders)
            assert server().type(key) == b"set", part
