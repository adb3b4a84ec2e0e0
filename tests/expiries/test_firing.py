"""Timers that fire, and foreign changes to their keys."""

from __future__ import annotations

import asyncio

import pytest
from django.utils import translation
from pytest_django import Settings

from django_redis_messaging import Expired, Expiry

from ..support.listeners import SOON, Received, jobs, listening, real_key, remaining_keys, wait_until_past
from ..support.server import change, server, server_ms, until

pytestmark = pytest.mark.timing


class Unprintable:
    """Its representation ends the process."""

    def __repr__(self) -> str:
        raise SystemExit(3)


class TestFiring:
    def test_handler_receives_the_timer(self) -> None:
        received, before = Received(), server_ms()
        id_ = Expiry("order").start("17", SOON, {"n": 2**53 + 1, "none": []})
        after = server_ms()
        with listening({"order": received}):
            until(lambda: received)
        [expired] = received
        assert (expired.name, expired.namespace, expired.payload) == (
            "17",
            "order",
            {"n": 2**53 + 1, "none": []},
        )
        assert expired.id == id_
        assert before <= expired.due_at.timestamp() * 1000 - SOON * 1000 <= after + 1
        assert expired.fence > expired.due_at.timestamp() * 1_000_000
        assert remaining_keys() == []

    def test_timers_fire_on_time_and_never_early(self) -> None:
        late: list[float] = []

        def handler(expired: Expired) -> None:
            late.append(server_ms() - expired.due_at.timestamp() * 1000)

        with listening({"order": handler}):
            for number in range(50):
                Expiry("order").start(str(number), 0.1 + number / 200)
            until(lambda: len(late) == 50)
        assert min(late) >= 0
        assert sorted(late)[25] < 500  # a listener that only polls each second would be later

    def test_coroutine_functions(self) -> None:
        received = Received()

        async def handler(expired: Expired) -> None:
            await asyncio.sleep(0)
            received.append(expired)

        Expiry("order").start("17", SOON)
        with listening({"order": handler}):
            until(lambda: received)

    def test_state_that_a_handler_leaves_is_not_seen_by_the_next(self) -> None:
        languages: list[str] = []

        def handler(expired: Expired) -> None:
            languages.append(translation.get_language())
            translation.activate("de")
            raise ValueError("its exception can't be formatted", Unprintable())

        for name in ("1", "2"):
            Expiry("order").start(name, SOON)
        with listening({"order": handler}, concurrency=1):
            until(lambda: len(languages) == 2)
        assert languages == ["en-us", "en-us"]

    def test_functions_that_return_a_coroutine(self) -> None:
        """For example, decorated coroutine functions: the coroutine is awaited."""
        received = Received()

        async def later(expired: Expired) -> None:
            await asyncio.sleep(0)
            received.append(expired)

        Expiry("order").start("17", SOON)
        with listening({"order": lambda expired: later(expired)}):
            until(lambda: received)

    def test_large_namespace_does_not_starve_others(self) -> None:
        orders, carts = Received(), Received()
        for number in range(60):
            Expiry("order").start(str(number), 0.001)
        Expiry("cart").start("1", 0.001)
        wait_until_past(server_ms() + 5)

        def slow(expired: Expired) -> None:
            orders(expired)
            if len(orders) > 50:
                until(lambda: carts)

        with listening({"order": slow, "cart": carts}, concurrency=1):
            until(lambda: carts)
        assert len(orders) <= 50

    def test_each_namespace_has_its_handler(self) -> None:
        orders, carts = Received(), Received()
        for number in range(10):
            Expiry("order").start(f"o{number}", SOON)
            Expiry("cart").start(f"c{number}", SOON)
        with listening({"order": orders, "cart": carts}):
            until(lambda: len(orders) + len(carts) == 20)
        assert {one[0] for one in orders.names} == {"o"}
        assert {one[0] for one in carts.names} == {"c"}

    def test_timer_without_a_handler_waits_for_one(self) -> None:
        received, stray = Received(), Received()
        Expiry("stray").start("1", 0.001)
        Expiry("order").start("1", 2 * SOON)
        with listening({"order": received}):
            until(lambda: received)
        assert Expiry("stray").remaining("1") == 0
        with listening({"stray": stray}):
            until(lambda: stray)

    def test_overdue_timers_fire_in_order(self) -> None:
        received = Received()
        for number in range(20):
            Expiry("order").start(str(number), 0.001 + number / 500)
        wait_until_past(server_ms() + 50)
        with listening({"order": received}, concurrency=1):
            until(lambda: len(received) == 20)
        assert received.names == [str(number) for number in range(20)]

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

    def test_several_listeners_fire_each_timer_once(self) -> None:
        received = Received()
        with listening({"order": received}), listening({"order": received}), listening({"order": received}):
            for number in range(60):
                Expiry("order").start(str(number), SOON)
            until(lambda: remaining_keys() == [])
        assert sorted(received.names, key=int) == list(map(str, range(60)))


class TestForeignChanges:
    """Changes to the real key by other clients."""

    def test_timer_with_a_deleted_key_fires_when_due(self) -> None:
        received = Received()
        Expiry("order").start("17", 0.2, "payload")
        server().delete(real_key("order", "17"))
        with listening({"order": received}):
            until(lambda: received)
        assert received[0].payload == "payload"
        assert server_ms() >= received[0].due_at.timestamp() * 1000

    def test_timer_with_a_longer_ttl_fires_when_the_key_expires(self) -> None:
        received = Received()
        Expiry("order").start("17", SOON)
        server().pexpire(real_key("order", "17"), 60_000)
        assert 50 < (Expiry("order").remaining("17") or 0) <= 60.001
        earliest = server_ms() + 400
        server().pexpire(real_key("order", "17"), 400)
        latest = server_ms() + 400
        with listening({"order": received}):
            until(lambda: received)
        assert earliest - 20 <= received[0].due_at.timestamp() * 1000 <= latest + 200
        assert server_ms() >= earliest
        [expired] = received
        assert expired.name == "17"

    def test_postponement_charges_no_attempt(self, settings: Settings) -> None:
        change(settings, JOB_MAX_ATTEMPTS=1)
        received = Received()
        Expiry("order").start("17", SOON)
        server().pexpire(real_key("order", "17"), 200)
        with listening({"order": received}):
            until(lambda: received or server().zcard(jobs().queue("order").delayed) == 1)
            server().pexpire(real_key("order", "17"), 300)
            until(lambda: received)
        assert remaining_keys() == []

    def test_shorter_ttl_changes_nothing(self) -> None:
        received = Received()
        due = server_ms() + 300
        Expiry("order").start("17", 0.3)
        server().pexpire(real_key("order", "17"), 20)
        with listening({"order": received}):
            until(lambda: received)
        assert server_ms() >= due

    def test_timer_with_a_persisted_key_fires_and_deletes_it(self) -> None:
        received = Received()
        Expiry("order").start("17", SOON)
        server().persist(real_key("order", "17"))
        with listening({"order": received}):
            until(lambda: received)
        assert not server().exists(real_key("order", "17"))

    def test_timer_with_a_key_of_another_type_fires(self) -> None:
        received = Received()
        Expiry("order").start("17", SOON, "payload")
        server().delete(real_key("order", "17"))
        server().rpush(real_key("order", "17"), "not ours")
        with listening({"order": received}):
            until(lambda: received)
        assert received[0].payload == "payload"
        assert remaining_keys() == []
