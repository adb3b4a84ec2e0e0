"""Timers that change while a listener is about to begin them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_redis_messaging import Expiry
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.expiries.timers import Firing
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.services.jobs.running import RunningJob
from django_redis_messaging.services.jobs.threads import EventLoop
from tests.support.engines import timers

from ..support.listeners import LATER, SOON, Received, claim_due, jobs, listening, remaining_keys
from ..support.server import server, until

pytestmark = pytest.mark.timing


def confirm(leased: Any) -> int:
    name = json.loads(leased.payload.split(b"\n")[0])
    return timers().confirm(leased, name)


class TestRacesWithFiring:
    """A listener has claimed a timer but has not begun it."""

    def test_cancel_prevents_firing(self) -> None:
        Expiry("order").start("17", SOON)
        leased = claim_due()
        assert Expiry("order").remaining("17") == 0
        assert Expiry("order").cancel("17")
        assert confirm(leased) == -1
        assert not timers().settle(leased.lease.settlement(Outcome.DONE))
        assert remaining_keys() == []

    def test_handler_of_a_cancelled_timer_is_not_called(self) -> None:
        received, engine = Received(), timers()
        Expiry("order").start("17", SOON)
        leased = claim_due()
        Expiry("order").cancel("17")
        firing = Firing(engine.engine, engine.using, {"order": TimerHandler("order", received, None)})
        assert firing(RunningJob(leased, EventLoop().run)) is None
        assert received == []

    def test_extend_prevents_firing_and_charges_no_attempt(self) -> None:
        Expiry("order").start("17", SOON, "payload")
        leased = claim_due()
        assert Expiry("order").extend("17", 2 * SOON)
        assert confirm(leased) == -1
        reclaimed = claim_due()
        assert (reclaimed.lease.id, reclaimed.payload, reclaimed.state.attempts) == (
            leased.lease.id,
            leased.payload,
            1,
        )
        assert reclaimed.state.fence > leased.state.fence
        assert confirm(reclaimed) == 0

    def test_start_replaces_a_claimed_timer(self) -> None:
        Expiry("order").start("17", SOON, "first")
        leased = claim_due()
        Expiry("order").start("17", SOON, "second")
        assert confirm(leased) == -1
        reclaimed = claim_due()
        assert reclaimed.payload == b'"17"\n"second"'
        assert confirm(reclaimed) == 0

    def test_begun_timer_continues_when_its_name_is_reused(self) -> None:
        orders = Expiry("order")
        orders.start("17", SOON, "first")
        leased = claim_due()
        assert (confirm(leased), confirm(leased)) == (0, 0)
        assert (orders.cancel("17"), orders.extend("17", 30), orders.remaining("17")) == (False, False, None)
        orders.start("17", LATER, "second")
        assert timers().settle(leased.lease.settlement(Outcome.RETRY))
        reclaimed = claim_due()
        assert (reclaimed.lease.id, confirm(reclaimed)) == (leased.lease.id, 0)
        assert timers().settle(reclaimed.lease.settlement(Outcome.DONE))
        assert (orders.remaining("17") or 0) > 3000
        assert server().hlen(jobs().jobs) == 1

    def test_unbegun_timer_of_a_dead_listener_can_be_cancelled(self) -> None:
        Expiry("order").start("17", 0.001)
        claim_due(lease=1)
        assert Expiry("order").cancel("17")
        assert timers().claim(["order"], 1, 1000).jobs == []

    def test_begun_timer_of_a_dead_listener_is_retried(self) -> None:
        Expiry("order").start("17", 0.001)
        first = claim_due(lease=100)
        assert confirm(first) == 0
        assert not Expiry("order").cancel("17")
        second = claim_due()
        assert (second.lease.id, confirm(second), confirm(first)) == (first.lease.id, 0, -1)

    def test_each_timer_is_either_cancelled_or_fired(self) -> None:
        """Never both and never neither."""
        received, orders = Received(), Expiry("order")
        with listening({"order": received}, concurrency=4):
            for number in range(100):
                orders.start(str(number), 0.02 + number / 2000)
            cancelled = {str(number) for number in range(100) if orders.cancel(str(number))}
            until(lambda: len(cancelled) + len(received) >= 100)
            until(lambda: remaining_keys() == [])
        assert sorted([*cancelled, *received.names]) == sorted(map(str, range(100)))
