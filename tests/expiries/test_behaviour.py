"""Timers: start, extend, cancel, firing, foreign changes to their keys, and invalid input."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import translation
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
from django_redis_messaging.errors import InvalidArgument
from django_redis_messaging.services.expiries.timers import TimerEngine
from django_redis_messaging.services.expiries.timers import timers as timers_round
from django_redis_messaging.testing import fire
from tests.support.engines import timers

from ..support.listeners import LATER, SOON, Received, jobs, listening, real_key, remaining_keys
from ..support.server import all_keys, change, let_pass, server, server_ms, snapshot, until


@pytest.fixture
def orders() -> Expiry:
    return Expiry("order")


def receive(namespace: str = "order", count: int = 1, **limits: Any) -> Received:
    """Run a listener until its handler was called with so many timers."""
    received = Received()
    with listening({namespace: received}, **limits):
        until(lambda: len(received) >= count)
    return received


def remaining(orders: Expiry, name: str = "17") -> float:
    left = orders.remaining(name)
    assert left is not None
    return left


def is_gone(orders: Expiry, name: str = "17") -> bool:
    """Whether no operation finds the timer."""
    found = (orders.cancel(name), orders.extend(name, 30), orders.remaining(name))
    return found == (False, False, None)


class TestStart:
    @pytest.mark.parametrize("after", [timedelta(seconds=30), 30, 30.0])
    def test_start_stores_a_real_key_with_payload_and_ttl(self, after: Any, orders: Expiry) -> None:
        orders.start("17", after, {"total": 9.5})
        key = real_key("order", "17")
        assert json.loads(server().get(key)) == {"total": 9.5}
        assert 29_000 < server().pttl(key) <= 30_000
        assert 29 < remaining(orders) <= 30

    @pytest.mark.timing
    def test_real_key_expires_when_the_timer_is_due(self, orders: Expiry) -> None:
        orders.start("17", 30)
        due = int(server().zscore(jobs().queue("order").delayed, server().hget(jobs().uniques, "order:17")))
        expires = server().pexpiretime(real_key("order", "17"))
        assert 0 <= due - expires <= 2

    def test_after_of_decades(self, orders: Expiry) -> None:
        orders.start("17", timedelta(days=36_000))
        assert remaining(orders) > 35_999 * 86_400

    def test_namespaces_are_independent(self, orders: Expiry) -> None:
        carts = Expiry("cart")
        orders.start("17", 30)
        carts.start("17", 60)
        assert remaining(orders) <= 30 < remaining(carts)
        assert orders.cancel("17")
        assert remaining(carts)

    @pytest.mark.parametrize(("namespace", "name"), [("a:b", "c"), ("a", "b:c"), ("{x}", "%"), ("é ", "\n☃")])
    def test_any_characters_in_names(self, namespace: str, name: str) -> None:
        Expiry(namespace).start(name, SOON, name)
        Expiry("a").start("b", LATER)
        [expired] = receive(namespace)
        assert (expired.namespace, expired.name, expired.payload) == (namespace, name, name)
        assert server().exists(real_key("a", "b"))

    def test_repeat_changes_nothing_and_returns_the_first_id(self, orders: Expiry) -> None:
        """Of a cancelled timer, too."""
        first = orders.start("17", 30, "first", request_id="r")
        before = snapshot()
        assert orders.start("17", 60, "second", request_id="r") == first
        assert snapshot() == before
        orders.cancel("17")
        assert orders.start("17", 30, request_id="r") == first
        assert orders.remaining("17") is None

    def test_one_request_id_may_start_timers_of_several_names(self) -> None:
        ids = {Expiry(space).start(name, 30, request_id="r") for space in "ab" for name in "xy"}
        assert len(ids) == 4


class TestExtendAndCancel:
    @pytest.mark.parametrize("after", [60, 10])
    def test_extend_counts_from_now_and_restores_a_deleted_key(self, after: int, orders: Expiry) -> None:
        orders.start("17", 30, ["payload\n"])
        if after == 60:
            server().delete(real_key("order", "17"))
        assert orders.extend("17", after)
        assert after - 1 < remaining(orders) <= after
        assert after * 1000 - 1000 < server().pttl(real_key("order", "17")) <= after * 1000
        assert json.loads(server().get(real_key("order", "17"))) == ["payload\n"]

    def test_shortened_timer_fires_earlier_and_is_gone(self, orders: Expiry) -> None:
        received = Received()
        orders.start("17", LATER)
        with listening({"order": received}):
            orders.extend("17", SOON)
            until(lambda: received)
        assert is_gone(orders)
        assert remaining_keys() == []

    def test_cancel_removes_all_keys(self, orders: Expiry) -> None:
        before = all_keys()
        assert is_gone(orders)
        assert all_keys() == before
        orders.start("17", 30)
        assert orders.cancel("17")
        assert remaining_keys() == []
        assert is_gone(orders)

    async def test_async_operations(self, orders: Expiry) -> None:
        received = Received()
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
        assert await aperform(using, engine.stats("order")) == [0, 0, 0, 0, -1, 0]
        assert await aperform(using, engine.sweep(["order"])) is None
        assert await aperform(using, engine.redrive("order", None)) == 0


@pytest.mark.timing
class TestFiring:
    def test_handler_receives_the_timer(self, orders: Expiry) -> None:
        before, payload = server_ms(), {"n": 2**53 + 1, "none": []}
        id_ = orders.start("17", SOON, payload)
        after = server_ms()
        [expired] = receive()
        due_at = expired.due_at.timestamp() * 1000
        assert expired == Expired("17", "order", payload, id_, expired.fence, expired.due_at)
        assert before <= due_at - SOON * 1000 <= after + 1
        assert expired.fence > due_at * 1000
        assert remaining_keys() == []

    def test_timers_fire_on_time_and_never_early(self, orders: Expiry) -> None:
        late: list[float] = []

        def handler(expired: Expired) -> None:
            late.append(server_ms() - expired.due_at.timestamp() * 1000)

        with listening({"order": handler}):
            for number in range(50):
                orders.start(str(number), 0.1 + number / 200)
            until(lambda: len(late) == 50)
        assert min(late) >= 0
        assert sorted(late)[25] < 500  # a listener that only polls each second would be later

    def test_coroutine_functions(self, orders: Expiry) -> None:
        """A decorated one may be a function that returns a coroutine."""
        received = Received()

        async def handler(expired: Expired) -> None:
            await asyncio.sleep(0)
            received.append(expired)

        for function in (handler, lambda expired: handler(expired)):
            received.clear()
            orders.start("17", SOON)
            with listening({"order": function}):
                until(lambda: received)

    def test_state_that_a_handler_leaves_is_not_seen_by_the_next(self, orders: Expiry) -> None:
        languages: list[str] = []

        class Unprintable:
            """Its representation ends the process."""

            def __repr__(self) -> str:
                raise SystemExit(3)

        def handler(expired: Expired) -> None:
            languages.append(translation.get_language())
            translation.activate("de")
            raise ValueError("its exception can't be formatted", Unprintable())

        for name in ("1", "2"):
            orders.start(name, SOON)
        with listening({"order": handler}, concurrency=1):
            until(lambda: len(languages) == 2)
        assert languages == ["en-us", "en-us"]

    def test_large_namespace_does_not_starve_others(self, orders: Expiry) -> None:
        fired = Received()
        for number in range(60):
            orders.start(str(number), 0.001)
        Expiry("cart").start("1", 0.001)
        let_pass(5)
        with listening({"order": fired, "cart": fired}, concurrency=1):
            until(lambda: len(fired) == 61)
        assert [one.namespace for one in fired].index("cart") <= 50

    def test_timer_without_a_handler_waits_for_one(self, orders: Expiry) -> None:
        Expiry("stray").start("1", 0.001)
        orders.start("1", 2 * SOON)
        receive()
        assert remaining(Expiry("stray"), "1") == 0
        receive("stray")

    def test_overdue_timers_fire_in_order(self, orders: Expiry) -> None:
        for number in range(20):
            orders.start(str(number), 0.001 + number / 500)
        let_pass(50)
        assert receive(count=20, concurrency=1).names == [str(number) for number in range(20)]

    def test_handler_may_restart_its_timer(self) -> None:
        received, ticks = Received(), Expiry("tick")

        def handler(expired: Expired) -> None:
            received.append(expired)
            if len(received) < 3:
                ticks.start(expired.name, 0.01, expired.payload + 1)

        ticks.start("clock", 0.01, 0)
        with listening({"tick": handler}):
            until(lambda: len(received) == 3)
        assert [one.payload for one in received] == [0, 1, 2]
        assert remaining_keys() == []

    def test_several_listeners_fire_each_timer_once(self, orders: Expiry) -> None:
        received = Received()
        with listening({"order": received}), listening({"order": received}), listening({"order": received}):
            for number in range(60):
                orders.start(str(number), SOON)
            until(lambda: remaining_keys() == [])
        assert sorted(received.names, key=int) == list(map(str, range(60)))


@pytest.mark.timing
class TestForeignChanges:
    """Changes to the real key by other clients."""

    @pytest.fixture
    def key(self) -> str:
        return real_key("order", "17")

    @pytest.mark.parametrize("how", ["delete", "shorten", "persist", "another type"])
    def test_timer_fires_when_it_is_due(self, how: str, key: str, orders: Expiry) -> None:
        due = server_ms() + 200
        orders.start("17", 0.2, "payload")
        match how:
            case "shorten":
                server().pexpire(key, 20)
            case "persist":
                server().persist(key)
            case _:
                server().delete(key)
        if how == "another type":
            server().rpush(key, "not ours")
        [expired] = receive()
        assert expired.payload == "payload"
        assert server_ms() >= expired.due_at.timestamp() * 1000 >= due
        assert remaining_keys() == []

    def test_timer_with_a_longer_ttl_fires_when_the_key_expires(self, key: str, orders: Expiry) -> None:
        orders.start("17", SOON)
        server().pexpire(key, 60_000)
        assert 50 < remaining(orders) <= 60.001
        earliest = server_ms() + 400
        server().pexpire(key, 400)
        latest = server_ms() + 400
        [expired] = receive()
        assert earliest - 20 <= expired.due_at.timestamp() * 1000 <= latest + 200
        assert server_ms() >= earliest
        assert expired.name == "17"

    def test_postponement_charges_no_attempt(self, key: str, orders: Expiry, settings: Settings) -> None:
        change(settings, JOB_MAX_ATTEMPTS=1)
        received = Received()
        orders.start("17", SOON)
        server().pexpire(key, 200)
        with listening({"order": received}):
            until(lambda: received or server().zcard(jobs().queue("order").delayed) == 1)
            server().pexpire(key, 300)
            until(lambda: received)
        assert remaining_keys() == []


class TestRegistration:
    def test_function_is_returned_and_can_be_registered_twice(self) -> None:
        received = Received()
        assert on_expiry("order")(received) is received
        on_expiry("order")(received)
        assert list(handlers.timers) == ["order"]
        assert handlers.timers["order"].function is received

    def test_second_handler_of_a_namespace_is_rejected(self) -> None:
        def one(expired: Expired) -> None: ...
        def other(expired: Expired) -> None: ...

        on_expiry("order")(one)
        with pytest.raises(ConfigurationError, match=r"'order' has a handler already, .*one: call both"):
            on_expiry("order")(other)
        assert handlers.timers["order"].function is one
        on_expiry("cart")(lambda expired: None)
        with pytest.raises(ConfigurationError, match="a handler already"):
            on_expiry("cart")(lambda expired: 1)

    def test_reloaded_module_registers_its_functions_again(self) -> None:
        for _ in range(2):

            @on_expiry("order")
            def handler(expired: Expired) -> None: ...

        assert list(handlers.timers) == ["order"]


#: invalid names, also of namespaces
NAMES = ["", "a\0b", "x" * 256, "\ud800"]


class TestInvalidInput:
    @pytest.mark.parametrize("operation", ["start", "extend"])
    @pytest.mark.parametrize("after", [0, -1, 0.0, timedelta(0), timedelta(seconds=-1), float("nan"), 1e12])
    def test_invalid_after(self, operation: str, after: Any, orders: Expiry) -> None:
        with pytest.raises(ValueError, match="after must be"):
            getattr(orders, operation)("17", after)
        assert all_keys() == []

    @pytest.mark.parametrize("after", ["30", None, True])
    def test_after_of_another_type(self, after: Any, orders: Expiry) -> None:
        with pytest.raises(TypeError, match="after must be seconds"):
            orders.start("17", after)

    @pytest.mark.parametrize("name", NAMES)
    def test_invalid_names(self, name: str, orders: Expiry) -> None:
        for of_namespace in (Expiry, on_expiry):
            with pytest.raises(ValueError, match="namespace"):
                of_namespace(name)
        for operation, *after in (["start", 1], ["extend", 1], ["cancel"], ["remaining"]):
            with pytest.raises(ValueError, match="name"):
                getattr(orders, operation)(name, *after)
        assert all_keys() == []

    @pytest.mark.parametrize("payload", [{1: 2}, object(), {"x": b"bytes"}])
    def test_unserializable_payloads(self, payload: Any, orders: Expiry) -> None:
        with pytest.raises(TypeError, match="payload"):
            orders.start("17", 1, payload)

    @pytest.mark.parametrize("timeout", [0, -1, float("nan")])
    def test_invalid_timeouts(self, timeout: float) -> None:
        with pytest.raises(ValueError, match="timeout"):
            on_expiry("order", timeout=timeout)

    def test_payload_above_max_bytes(self, orders: Expiry, settings: Settings) -> None:
        change(settings, JOB_MAX_BYTES=100)
        orders.start("17", LATER, "é" * 49)
        with pytest.raises(LimitExceeded, match="JOB_MAX_BYTES") as caught:
            orders.start("18", LATER, "é" * 50)
        assert (caught.value.limit, caught.value.actual) == (100, 102)
        assert not server().exists(real_key("order", "18"))

    def test_too_many_timers(self, orders: Expiry, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=2)
        orders.start("1", LATER)
        orders.start("2", LATER)
        before = snapshot()
        with pytest.raises(LimitExceeded, match="JOB_MAX_WAITING"):
            orders.start("3", LATER)
        assert snapshot() == before
        orders.start("2", 60)
        Expiry("other").start("3", LATER)

    def test_repr_has_the_namespace(self, orders: Expiry) -> None:
        assert repr(orders) == "Expiry('order')"


def poll() -> float | None:
    """Do the poller's only round over timers."""
    [one] = timers_round(conf.alias())
    return perform(one.using, one.steps())


class TestPolling:
    @pytest.mark.timing
    def test_poller_moves_due_timers_without_a_listener(self, orders: Expiry) -> None:
        assert list(timers_round(conf.alias())) == []
        orders.start("1", 0.001)
        Expiry("cart").start("1", LATER)
        let_pass(5)
        left = poll()
        assert left is not None
        assert 3599 < left <= 3600
        assert server().zcard(jobs().queue("order").ready) == 1

    def test_empty_namespaces_are_removed_long_after_their_last_timer(self, orders: Expiry) -> None:
        carts = Expiry("cart")
        orders.start("1", 0.001)
        carts.start("1", LATER)
        carts.start("2", 1)
        key = f"{jobs().tag}:namespaces"
        assert server().zscore(key, "cart") > server_ms() + 3_590_000
        carts.extend("1", 2 * LATER)
        assert server().zscore(key, "cart") > server_ms() + 7_190_000
        server().zadd(key, dict.fromkeys(("order", "cart"), server_ms() - 31 * 86_400_000))
        orders.cancel("1")
        poll()
        assert timers().namespaces() == ["cart"]
        assert server().zscore(key, "cart") > server_ms() - 10_000


class TestFire:
    """fire(): one timer and its handler, in the tests of a site."""

    def test_the_timer_is_called_though_another_one_is_due_before(self, orders: Expiry) -> None:
        received = Received()
        on_expiry("order")(received)
        orders.start("16", 0.001)
        orders.start("17", 1800)
        orders.start("18", 1800)
        assert fire(orders, "17")
        assert received.names == ["16", "17"]
        assert not fire(orders, "17")

    @pytest.mark.parametrize("is_coroutine", [False, True])
    def test_what_the_handler_raises_is_raised(self, is_coroutine: bool, orders: Expiry) -> None:
        def fail(expired: Expired) -> None:
            raise LookupError(f"no order {expired.name}")

        async def fail_later(expired: Expired) -> None:
            fail(expired)

        on_expiry("order")(fail_later if is_coroutine else fail)
        orders.start("17", 1800)
        with pytest.raises(LookupError, match="no order 17"):
            fire(orders, "17")

    def test_there_must_be_a_handler(self, orders: Expiry) -> None:
        with pytest.raises(ConfigurationError, match="have no handler"):
            fire(orders, "17")
        on_expiry("order")(Received())
        assert not fire(orders, "17")
        with pytest.raises(InvalidArgument, match="alias"):
            fire(Expiry("order", using="default"), "17")
