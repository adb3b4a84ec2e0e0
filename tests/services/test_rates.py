"""Limits on how often a user may perform an action."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redis_messaging.services.rates import Rate

pytestmark = pytest.mark.timing


@pytest.mark.parametrize("limit", [1, 7, 600, 999])
def test_allowance_can_be_used_at_once_but_not_exceeded(limit: int) -> None:
    rate = Rate("ann", "send", limit=limit, period=36_000)
    waits = [rate.take() for _ in range(limit + 1)]
    assert waits[:limit] == [0.0] * limit
    # in whole ms, rounded up
    assert 0 < waits[limit] <= 36_000 / limit + 0.001


def test_allowance_is_refilled_evenly() -> None:
    rate = Rate("ann", "send", limit=10, period=8)
    assert not any(rate.take() for _ in range(10))
    wait = rate.take()
    assert 0 < wait <= 0.8
    deadline = time.monotonic() + 30
    while wait and time.monotonic() < deadline:
        time.sleep(wait)
        wait = rate.take()
    assert wait == 0.0


def test_users_and_actions_are_independent() -> None:
    assert Rate("ann", "send", limit=1, period=60).take() == 0.0
    assert Rate("bob", "send", limit=1, period=60).take() == 0.0
    assert Rate("ann", "create", limit=1, period=60).take() == 0.0
    assert Rate("ann", "send", limit=1, period=60).take() > 0


def test_concurrent_takes_do_not_exceed_the_limit() -> None:
    rate = Rate("ann", "send", limit=20, period=60)
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda _: rate.take(), range(60)))
    assert waits.count(0.0) == 20


async def test_async_take() -> None:
    rate = Rate("ann", "send", limit=1, period=60)
    assert await rate.atake() == 0.0
    assert await rate.atake() > 0


@pytest.mark.parametrize(("limit", "period"), [(0, 60), (1, 0), (1, -1)])
def test_invalid_rates_are_rejected(limit: int, period: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        Rate("ann", "send", limit=limit, period=period)
