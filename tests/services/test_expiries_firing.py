"""Timers that fire, and what others do to their keys."""

from __future__ import annotations

import asyncio

import pytest
from pytest_django import Settings

from django_redis_messaging import Expired, Expiry

from .asking import change, server, server_ms, until
from .listening import SOON, Heard, jobs, left_over, listening, real_key, unused

pytestmark = pytest.mark.timing


class TestFiring:
    def test_what_a_handler_gets(self) -> None:
        heard, before = Heard(), server_ms()
        id_ = Expiry("order").start("17", SOON, {"n": 2**53 + 1, "none": []})
        after = server_ms()
        with listening({"order": heard}):
            until(lambda: heard)
        [told] = heard
        assert (told.name, told.namespace, told.payload) == ("17", "order", {"n": 2**53 + 1, "none": []})
        assert told.id == id_
        assert before <= told.due_at.timestamp() * 1000 - SOON * 1000 <= after + 1
        assert told.fence > told.due_at.timestamp() * 1_000_000
        assert left_over() == []

    def test_never_early_and_soon(self) -> None:
        late: list[float] = []

        def handler(expired: Expired) -> None:
            late.append(server_ms() - expired.due_at.timestamp() * 1000)

        with listening({"order": handler}):
            for number in range(50):
                Expiry("order").start(str(number), 0.1 + number / 200)
            until(lambda: len(late) == 50)
        assert min(late) >= 0
        assert sorted(late)[25] < 500  # who looks each second is later

    def test_coroutine_functions(self) -> None:
        heard = Heard()

        async def handler(expired: Expired) -> None:
            await asyncio.sleep(0)
            heard.append(expired)

        Expiry("order").start("17", SOON)
        with listening({"order": handler}):
            until(lambda: heard)

    def test_functions_that_return_a_coroutine(self) -> None:
        """A decorator's, say: it is awaited, and not only made."""
        heard = Heard()

        async def later(expired: Expired) -> None:
            await asyncio.sleep(0)
            heard.append(expired)

        Expiry("order").start("17", SOON)
        with listening({"order": lambda expired: later(expired)}):
            until(lambda: heard)

    def test_many_of_one_namespace_leave_others_their_turn(self) -> None:
        orders, carts = Heard(), Heard()
        for number in range(60):
            Expiry("order").start(str(number), 0.001)
        Expiry("cart").start("1", 0.001)
        unused(server_ms() + 5)

        def slow(expired: Expired) -> None:
            orders(expired)
            if len(orders) > 50:
                until(lambda: carts)

        with listening({"order": slow, "cart": carts}, concurrency=1):
            until(lambda: carts)
        assert len(orders) <= 50

    def test_several_namespaces_each_with_its_handler(self) -> None:
        orders, carts = Heard(), Heard()
        for number in range(10):
            Expiry("order").start(f"o{number}", SOON)
            Expiry("cart").start(f"c{number}", SOON)
        with listening({"order": orders, "cart": carts}):
            until(lambda: len(orders) + len(carts) == 20)
        assert {one[0] for one in orders.names} == {"o"}
        assert {one[0] for one in carts.names} == {"c"}

    def test_what_nobody_has_a_handler_for_waits_for_one(self) -> None:
        heard, stray = Heard(), Heard()
        Expiry("stray").start("1", 0.001)
        Expiry("order").start("1", 2 * SOON)
        with listening({"order": heard}):
            until(lambda: heard)
        assert Expiry("stray").remaining("1") == 0
        with listening({"stray": stray}):
            until(lambda: stray)

    def test_due_while_nobody_listened(self) -> None:
        heard = Heard()
        for number in range(20):
            Expiry("order").start(str(number), 0.001 + number / 500)
        unused(server_ms() + 50)
        with listening({"order": heard}, concurrency=1):
            until(lambda: len(heard) == 20)
        assert heard.names == [str(number) for number in range(20)]

    def test_a_handler_may_start_its_timer_again(self) -> None:
        heard, ticks = Heard(), Expiry("tick")

        def handler(expired: Expired) -> None:
            heard.append(expired)
            if len(heard) < 3:
                ticks.start(expired.name, 0.01, expired.payload + 1)

        ticks.start("clock", 0.01, 0)
        with listening({"tick": handler}):
            until(lambda: len(heard) == 3)
        assert [one.payload for one in heard] == [0, 1, 2]
        assert left_over() == []

    def test_several_listeners_complete_each_once(self) -> None:
        heard = Heard()
        with listening({"order": heard}), listening({"order": heard}), listening({"order": heard}):
            for number in range(60):
                Expiry("order").start(str(number), SOON)
            until(lambda: left_over() == [])
        assert sorted(heard.names, key=int) == list(map(str, range(60)))


class TestForeignHands:
    """What others do to the real key."""

    def test_a_deleted_key_fires_at_its_due_time(self) -> None:
        heard = Heard()
        Expiry("order").start("17", 0.2, "payload")
        server().delete(real_key("order", "17"))
        with listening({"order": heard}):
            until(lambda: heard)
        assert heard[0].payload == "payload"
        assert server_ms() >= heard[0].due_at.timestamp() * 1000

    def test_one_that_lives_longer_fires_when_it_dies(self) -> None:
        heard = Heard()
        Expiry("order").start("17", SOON)
        server().pexpire(real_key("order", "17"), 60_000)
        assert 50 < (Expiry("order").remaining("17") or 0) <= 60.001
        earliest = server_ms() + 400
        server().pexpire(real_key("order", "17"), 400)
        latest = server_ms() + 400
        with listening({"order": heard}):
            until(lambda: heard)
        assert earliest - 20 <= heard[0].due_at.timestamp() * 1000 <= latest + 200
        assert server_ms() >= earliest
        [told] = heard
        assert told.name == "17"

    def test_putting_it_back_charges_no_attempt(self, settings: Settings) -> None:
        change(settings, JOB_MAX_ATTEMPTS=1)
        heard = Heard()
        Expiry("order").start("17", SOON)
        server().pexpire(real_key("order", "17"), 200)
        with listening({"order": heard}):
            until(lambda: heard or server().zcard(jobs().queue("order").delayed) == 1)
            server().pexpire(real_key("order", "17"), 300)
            until(lambda: heard)
        assert left_over() == []

    def test_one_that_lives_shorter_changes_nothing(self) -> None:
        heard = Heard()
        due = server_ms() + 300
        Expiry("order").start("17", 0.3)
        server().pexpire(real_key("order", "17"), 20)
        with listening({"order": heard}):
            until(lambda: heard)
        assert server_ms() >= due

    def test_one_made_to_stay_fires_and_is_deleted(self) -> None:
        heard = Heard()
        Expiry("order").start("17", SOON)
        server().persist(real_key("order", "17"))
        with listening({"order": heard}):
            until(lambda: heard)
        assert not server().exists(real_key("order", "17"))

    def test_one_that_became_another_type(self) -> None:
        heard = Heard()
        Expiry("order").start("17", SOON, "payload")
        server().delete(real_key("order", "17"))
        server().rpush(real_key("order", "17"), "not ours")
        with listening({"order": heard}):
            until(lambda: heard)
        assert heard[0].payload == "payload"
        assert left_over() == []
