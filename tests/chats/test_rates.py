"""Limits on how often a user may perform an action."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django import Settings

from django_redis_messaging import Chat, ChatNotFound, LimitExceeded, NotAMember, RateExceeded, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.operations import Script
from django_redis_messaging.services.common.rates import Rate, rate_key

from ..support.scripts import server_clock
from ..support.server import server

#: seconds: longer than any test
LONG = 36_000
numbers = itertools.count()


def take_at(rate: Rate, ms: int) -> float:
    with server_clock(ms):
        return rate.take()


@pytest.mark.parametrize("limit", [1, 7, 600])
def test_allowance_can_be_used_at_once_but_not_exceeded(limit: int) -> None:
    rate = Rate("ann", "send", limit=limit, period=LONG)
    with server_clock(10**12):
        assert [rate.take() for _ in range(limit + 2)] == [0.0] * limit + [LONG, LONG]


@given(st.integers(1, 4), st.lists(st.integers(0, 12), max_size=16))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_period_has_more_uses_than_the_limit(limit: int, pauses: list[int]) -> None:
    """Whenever the period begins; and no use is refused needlessly."""
    rate = Rate(f"user-{next(numbers)}", "send", limit=limit, period=LONG)
    now, uses, period = 10**12, list[int](), LONG * 1000
    for pause in pauses:
        now += pause * period // 12
        wait = round(take_at(rate, now) * 1000)
        counted = [use for use in uses if use > now - period]
        assert len(counted) <= limit
        assert wait == (counted[0] + period - now if len(counted) == limit else 0)
        if not wait:
            uses.append(now)


def test_clock_that_was_set_back_locks_nobody_out_for_longer_than_a_period() -> None:
    rate = Rate("ann", "send", limit=2, period=LONG)
    now, period = 10**12, LONG * 1000
    assert [take_at(rate, now), take_at(rate, now + 1), take_at(rate, now + 2)] == [0, 0, LONG - 0.002]
    # not before the oldest use that counts
    assert take_at(rate, now) == LONG
    # before it: the limit begins anew
    assert [take_at(rate, now - 5 * period) for _ in range(3)] == [0, 0, LONG]
    # before the latest use, after the other one
    assert [take_at(rate, now), take_at(rate, now - period)] == [0, 0]


def test_uses_after_the_clock_was_set_back_count() -> None:
    rate = Rate("ann", "send", limit=3, period=LONG)
    assert take_at(rate, 10**12 + 5) == 0
    assert [take_at(rate, 10**12) for _ in range(5)] == [0, 0, 0, LONG, LONG]


def test_lowered_limit_counts_earlier_uses() -> None:
    many, few = (Rate("ann", "send", limit=limit, period=LONG) for limit in (5, 2))
    for at in range(5):
        assert take_at(many, 10**12 + at) == 0
    assert take_at(few, 10**12 + 5) == LONG - 0.002
    assert take_at(few, 10**12 + 3 + LONG * 1000) == 0
    assert server().llen(rate_key(conf.prefix(), "ann", "send")) == 2 * 2  # time and token


def test_key_expires_a_period_after_the_latest_use() -> None:
    rate = Rate("ann", "send", limit=1, period=60)
    rate.take()
    assert rate.take() > 0
    assert 0 < server().pttl(rate_key(conf.prefix(), "ann", "send")) <= 60_000


@pytest.mark.timing
def test_use_is_allowed_again_after_the_wait() -> None:
    rate = Rate("ann", "send", limit=10, period=0.5)
    assert not any(rate.take() for _ in range(10))
    wait = rate.take()
    assert 0 < wait <= 0.5
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


@pytest.mark.timing
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


def test_several_uses_are_taken_together_or_not_at_all() -> None:
    rate = Rate("ann", "invite", limit=5, period=LONG)

    def take(times: int, ms: int) -> float:
        with server_clock(ms):
            return rate.take(times)

    assert (take(3, 10**12), take(2, 10**12 + 10), take(1, 10**12 + 20)) == (0, 0, LONG - 0.02)
    # the first three are over, the other two not yet
    later = 10**12 + LONG * 1000
    assert (take(4, later), take(3, later), take(1, later)) == (0.01, 0, 0.01)


def test_more_uses_than_the_limit_are_no_question_of_waiting() -> None:
    with pytest.raises(LimitExceeded, match="5 is over the limit of 4") as refused:
        Rate("ann", "invite", limit=4, period=60).take(5)
    assert not isinstance(refused.value, RateExceeded)
    assert Rate("ann", "invite", limit=2500, period=60).take(2500) == 0.0
    assert Rate("ann", "invite", limit=2500, period=60).take() > 0
    with pytest.raises(ValueError, match="times"):
        Rate("ann", "invite", limit=4, period=60).take(0)


def test_uses_can_be_taken_back_until_the_rate_is_used_again() -> None:
    rate = Rate("ann", "send", limit=3, period=60)

    def execute(step: Script) -> int:
        return int(clients.execute(conf.alias(), step) or 0)

    first, second = rate.use(), rate.use(2)
    assert (execute(first), execute(second)) == (0, 0)
    execute(rate.undo(first))
    assert rate.take() > 0
    for _ in range(2):  # as after a lost reply
        execute(rate.undo(second))
    assert (rate.take(2), rate.take() > 0) == (0.0, True)


def test_services_count_uses_if_configured(settings: Settings) -> None:
    rates = ("SEND_RATE", "EDIT_RATE", "CREATE_RATE", "RENAME_RATE")
    chat = Chat.create("ann", ["bob"], "One")
    settings.REDIS_MESSAGING = {
        **settings.REDIS_MESSAGING, "RATES_IN_SERVICES": True, "INVITE_RATE": 3, **dict.fromkeys(rates, 1)
    }  # fmt: skip
    # neither invalid arguments nor calls by others use anything up
    with pytest.raises(NotAMember):
        chat.send("mallory", "x")
    with pytest.raises(ChatNotFound):
        Chat("there-is-none").send("ann", "x")
    with pytest.raises(NotAMember):  # though they are more than the rate
        chat.add(["a", "b", "c", "d"], by="mallory")
    with pytest.raises(LimitExceeded):
        chat.send("ann", "x" * 10**6)
    chat.send("ann", "Two")
    for refused in (
        lambda: chat.send("ann", "Three"),
        lambda: [chat.edit("ann", 1, "x"), chat.delete_message("ann", 1)],
        lambda: [chat.rename("ann", "x"), chat.rename("ann", "y")],
        lambda: [chat.add(["cat"], by="ann"), chat.join("dan", by="ann"), chat.add(["eve", "fay"], by="ann")],
        lambda: [Chat.create("ann", ["gil"]), Chat.create("ann", [])],
    ):
        with pytest.raises(RateExceeded) as error:
            refused()
        assert 0 < error.value.retry_after <= 3600
        assert error.value.setting.endswith("_RATE")
    assert [member.user for member in chat.members()] == ["ann", "bob", "cat", "dan"]
    assert (chat.info().title, chat.info().last_id) == ("x", 2)
