"""Timers that are changed while a listener is about to begin them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_redis_messaging import Expiry
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.expiries.firing import Firing
from django_redis_messaging.services.jobs.leases import Outcome
from django_redis_messaging.services.jobs.running import EventLoop, RunningJob
from tests.engines import timers

from .asking import server, until
from .listening import LATER, SOON, Heard, claimed, jobs, left_over, listening

pytestmark = pytest.mark.timing


def confirm(held: Any) -> int:
    name = json.loads(held.payload.split(b"\n")[0])
    return timers().confirm(held, name)


class TestRacesWithTheFiring:
    """A listener has claimed a timer, and is about to begin it."""

    def test_cancel_holds(self) -> None:
        Expiry("order").start("17", SOON)
        held = claimed()
        assert Expiry("order").remaining("17") == 0
        assert Expiry("order").cancel("17")
        assert confirm(held) == -1
        assert not timers().settle(held.lease.settled(Outcome.DONE))
        assert left_over() == []

    def test_the_handler_of_one_that_was_cancelled_is_not_called(self) -> None:
        heard, store = Heard(), timers()
        Expiry("order").start("17", SOON)
        held = claimed()
        Expiry("order").cancel("17")
        firing = Firing(store.engine, store.using, {"order": TimerHandler("order", heard, None)})
        assert firing(RunningJob(held, EventLoop().run)) is None
        assert heard == []

    def test_extend_holds_and_charges_no_attempt(self) -> None:
        Expiry("order").start("17", SOON, "payload")
        held = claimed()
        assert Expiry("order").extend("17", 2 * SOON)
        assert confirm(held) == -1
        again = claimed()
        assert (again.lease.id, again.payload, again.state.attempts) == (held.lease.id, held.payload, 1)
        assert again.state.fence > held.state.fence
        assert confirm(again) == 0

    def test_start_replaces(self) -> None:
        Expiry("order").start("17", SOON, "first")
        held = claimed()
        Expiry("order").start("17", SOON, "second")
        assert confirm(held) == -1
        again = claimed()
        assert again.payload == b'"17"\n"second"'
        assert confirm(again) == 0

    def test_once_begun_it_goes_on_whatever_is_started_under_its_name(self) -> None:
        orders = Expiry("order")
        orders.start("17", SOON, "first")
        held = claimed()
        assert (confirm(held), confirm(held)) == (0, 0)
        assert (orders.cancel("17"), orders.extend("17", 30), orders.remaining("17")) == (False, False, None)
        orders.start("17", LATER, "second")
        assert timers().settle(held.lease.settled(Outcome.RETRY))
        again = claimed()
        assert (again.lease.id, confirm(again)) == (held.lease.id, 0)
        assert timers().settle(again.lease.settled(Outcome.DONE))
        assert (orders.remaining("17") or 0) > 3000
        assert server().hlen(jobs().jobs) == 1

    def test_one_whose_listener_died_before_it_began_can_be_cancelled(self) -> None:
        Expiry("order").start("17", 0.001)
        claimed(lease=1)
        assert Expiry("order").cancel("17")
        assert timers().claim(["order"], 1, 1000).jobs == []

    def test_one_whose_listener_died_after_it_began_is_begun_again(self) -> None:
        Expiry("order").start("17", 0.001)
        first = claimed(lease=100)
        assert confirm(first) == 0
        assert not Expiry("order").cancel("17")
        second = claimed()
        assert (second.lease.id, confirm(second), confirm(first)) == (first.lease.id, 0, -1)

    def test_many_at_once_have_one_outcome_each(self) -> None:
        """Cancelled or fired, never both and never neither."""
        heard, orders = Heard(), Expiry("order")
        with listening({"order": heard}, concurrency=4):
            for number in range(100):
                orders.start(str(number), 0.02 + number / 2000)
            cancelled = {str(number) for number in range(100) if orders.cancel(str(number))}
            until(lambda: len(cancelled) + len(heard) >= 100)
            until(lambda: left_over() == [])
        assert sorted([*cancelled, *heard.names]) == sorted(map(str, range(100)))
