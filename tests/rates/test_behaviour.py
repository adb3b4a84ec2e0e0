"""Rate limits: the forms of a limit, decisions, request ids, refunds, outages, and their keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_redis_messaging import Decision, InvalidArgument, Rate, RateLimit, Unavailable, conf
from django_redis_messaging.services.rates.rate_limit import Algorithm, RateKeys, declared_limits, parse_rates

from ..conftest import Call
from ..support.scripts import server_clock
from ..support.server import all_keys, check_types, no_server, server

#: ms: when the uses begin
START = 10**12
ALGORITHMS: tuple[Algorithm, ...] = ("gcra", "window")


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    name: Algorithm = request.param
    return name


def searches(limit: Any = 10, **options: Any) -> RateLimit:
    """Another object for the same limit, of 10 uses in 1000 s."""
    return RateLimit("search", limit, per=1000 if isinstance(limit, int) else None, **options)


def at(seconds: float, take: Callable[[], Decision]) -> tuple[bool, int, float, float]:
    """What is decided so many seconds after START."""
    with server_clock(START + round(seconds * 1000)):
        found = take()
    return found.allowed, found.remaining, found.retry_after, found.reset_after


class TestForms:
    @pytest.mark.parametrize(
        ("limit", "per", "rates"),
        [
            (5, 60, [(5, 60.0)]),
            (5, timedelta(minutes=1), [(5, 60.0)]),
            ("5/m", None, [(5, 60.0)]),
            (" 5 / 2 Hours ", None, [(5, 7200.0)]),
            ("10/30s", None, [(10, 30.0)]),
            ("10/400d", None, [(10, 34_560_000.0)]),
            ("100/day,5/m", None, [(5, 60.0), (100, 86_400.0)]),
            (["100/d", "5/min"], None, [(5, 60.0), (100, 86_400.0)]),
        ],
    )
    def test_a_limit_has_several_forms(self, limit: Any, per: Any, rates: list[tuple[int, float]]) -> None:
        assert RateLimit("name", limit, per=per).rates == parse_rates(limit, per)
        assert parse_rates(limit, per) == tuple(Rate(*rate) for rate in rates)
        assert parse_rates([str(rate) for rate in parse_rates(limit, per)]) == parse_rates(limit, per)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"limit": 5}, "needs per="),
            ({"limit": "5/m", "per": 60}, "contains its period"),
            ({"limit": 0, "per": 60}, "between 1 and 1000000"),
            ({"limit": "1000001/m"}, "between 1 and 1000000"),
            ({"limit": 5, "per": 0}, "per must be between 0.001 s"),
            ({"limit": "5/0s"}, "period must be between 0.001 s"),
            ({"limit": ""}, "must have a form such as"),
            ({"limit": "5"}, "must have a form such as"),
            ({"limit": "5/fortnight"}, "must have a form such as"),
            ({"limit": "-5/m"}, "must have a form such as"),
            ({"limit": "\u0665/m"}, "must have a form such as"),
            ({"limit": []}, "between 1 and 10 limits"),
            ({"limit": ["5/m", "6/60s"]}, "two limits of the same period"),
            ({"limit": "1000000/d", "per": None, "burst": 1_000_000}, None),
            ({"limit": "1000000/36500d"}, "more than can be counted"),
            ({"limit": "5/m", "burst": 0}, "burst must be between"),
            ({"limit": "5/m, 6/h", "burst": 2}, "burst= needs a single limit"),
            ({"limit": "5/m", "burst": 2, "algorithm": "window"}, "needs algorithm"),
            ({"limit": "10001/m", "algorithm": "window"}, "must be at most 10000"),
            ({"limit": "5/m", "algorithm": "fixed"}, "algorithm must be"),
            ({"limit": "5/m", "on_outage": "ignore"}, "on_outage must be"),
            ({"limit": "5/m", "deadline": 0}, "deadline must be"),
            ({"limit": "5/m", "name": ""}, "name is empty"),
        ],
    )
    def test_other_values_are_refused(self, arguments: dict[str, Any], message: str | None) -> None:
        arguments = {"name": "name", **arguments}
        if message is None:
            assert RateLimit(**arguments)
        else:
            with pytest.raises(InvalidArgument, match=message):
                RateLimit(**arguments)

    def test_other_types_are_refused(self) -> None:
        for limit in (True, 5.0, None, [5]):
            with pytest.raises(TypeError):
                RateLimit("name", limit, per=None if isinstance(limit, list) else 60)  # type: ignore[arg-type]

    async def test_a_call_is_checked_before_anything_is_sent(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches("10/m, 20/h", algorithm=algorithm)
        for verb in ("take", "peek"):
            for key, cost, error in (("", 1, ValueError), ("a", 11, ValueError), ("a", 0, ValueError)):
                with pytest.raises(error):
                    await call(limit, verb, key, cost)
        for arguments, error in ((("a", 0), ValueError), (("a", "1"), TypeError), ((b"a",), TypeError)):
            with pytest.raises(error):
                await call(limit, "refund", *arguments)
        with pytest.raises(ValueError, match="NUL"):
            await call(limit, "reset", "a\0")
        assert all_keys() == []


class TestDecisions:
    def test_gcra_allows_a_burst_then_evenly(self) -> None:
        limit = searches(burst=3)
        taken = [at(0, lambda: limit.take("ann")) for _ in range(4)]
        assert taken == [(True, 2, 0, 100), (True, 1, 0, 200), (True, 0, 0, 300), (False, 0, 100, 300)]
        assert at(99.999, lambda: limit.take("ann")) == (False, 0, 0.001, 200.001)
        assert at(100, lambda: limit.take("ann")) == (True, 0, 0, 300)
        assert at(10_000, lambda: limit.take("ann", 2)) == (True, 1, 0, 200)

    def test_a_window_is_not_shorter_than_its_period_by_a_part_of_a_ms(self) -> None:
        limit = RateLimit("exact", 1, per=60, algorithm="window")
        found = []
        for ms in (0.9, 60_000, 60_001):
            with server_clock(f"{START + ms}"):
                found.append(limit.take("ann"))
        assert [(one.allowed, one.retry_after) for one in found] == [(True, 0), (False, 0.001), (True, 0)]

    def test_a_window_is_exact(self) -> None:
        limit = searches(2, algorithm="window")
        assert at(0, lambda: limit.take("ann")) == (True, 1, 0, 1000)
        assert at(10, lambda: limit.take("ann")) == (True, 0, 0, 1000)
        assert at(999.999, lambda: limit.take("ann")) == (False, 0, 0.001, 10.001)
        assert at(1000, lambda: limit.take("ann")) == (True, 0, 0, 1000)

    async def test_several_limits_allow_all_or_nothing(self, call: Call, algorithm: Algorithm) -> None:
        limit = RateLimit("search", "2/1000s, 3/5000s", algorithm=algorithm)
        assert [(await call(limit, "take", "ann")).allowed for _ in range(3)] == [True, True, False]
        # the refused use was not counted by the longer one
        assert (
            await call(RateLimit("search", 3, per=5000, algorithm=algorithm), "peek", "ann")
        ).remaining == 1
        refused = await call(limit, "take", "ann")
        assert refused.rate == Rate(2, 1000.0)
        assert await call(limit, "refund", "ann", 2)
        assert [bool(await call(limit, "take", "ann", 2)), bool(await call(limit, "take", "ann", 2))] == [
            True,
            False,
        ]

    async def test_keys_and_names_are_independent(self, call: Call, algorithm: Algorithm) -> None:
        limits = [RateLimit(name, 1, per=1000, algorithm=algorithm) for name in ("a", "a:b")]
        assert all([await call(limit, "take", key) for limit in limits for key in ("b:c", "c", "é {x}%")])
        assert not any([await call(limit, "peek", key) for limit in limits for key in ("b:c", "c", "é {x}%")])
        assert await call(limits[0], "reset", "c")
        assert not await call(limits[0], "reset", "c")
        assert await call(limits[0], "take", "c")
        assert not await call(limits[1], "take", "c")

    async def test_a_decision_is_true_if_the_use_was_allowed(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches(1, algorithm=algorithm)
        assert await call(limit, "take", "ann")
        decision = await call(limit, "take", "ann")
        assert not decision
        assert decision == Decision(
            allowed=False,
            remaining=0,
            retry_after=decision.retry_after,
            reset_after=decision.reset_after,
            rate=Rate(1, 1000.0),
            known=True,
        )

    async def test_peek_uses_nothing(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches(3, algorithm=algorithm)
        assert await call(limit, "take", "ann", 2)
        for _ in range(2):
            assert (await call(limit, "peek", "ann")).remaining == 1
            assert not await call(limit, "peek", "ann", 2)

    def test_a_changed_limit_applies_to_earlier_uses(self, algorithm: Algorithm) -> None:
        assert at(0, lambda: searches(10, algorithm=algorithm).take("ann", 10))[0]
        few, many = searches(5, algorithm=algorithm), searches(20, algorithm=algorithm)
        assert at(0, lambda: few.take("ann"))[:3] == (False, 0, 200 if algorithm == "gcra" else 1000)
        assert at(0, lambda: many.take("ann"))[:2] == (True, 9)
        # what was used with a larger limit counts for a period at most
        assert at(0, lambda: many.take("ann", 9))[0]
        assert at(999, lambda: few.take("ann"))[0] is (algorithm == "gcra")
        assert at(1000, lambda: few.take("ann"))[0]


class TestLimitsOfOneName:
    """Limits with other periods that use the same key, as in two views or during a deployment."""

    def test_a_shorter_one_does_not_forget_a_longer_one(self, algorithm: Algorithm) -> None:
        long, short = searches("10/d", algorithm=algorithm), searches("100/s", algorithm=algorithm)
        assert long.take("ann", 10)
        before = max(map(server().pttl, all_keys()))
        assert short.take("ann")
        assert max(map(server().pttl, all_keys())) > before - 60_000
        assert long.peek("ann").remaining == 0

    def test_each_one_counts_with_its_own_period(self, algorithm: Algorithm) -> None:
        limits = [searches(text, algorithm=algorithm) for text in ("100/1000s", "20/10s")]
        taken = [
            at(0.6 * number, lambda limit=limit: limit.take("ann"))[0]
            for number in range(60)
            for limit in limits
        ]
        assert all(taken)


class TestRequests:
    async def test_a_repeat_uses_nothing(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches(20, algorithm=algorithm)
        for request_id in ("1", "19", "1"):  # numbers that the state could contain, too
            assert await call(limit, "take", "ann", request_id=request_id)
        assert (await call(limit, "peek", "ann")).remaining == 18
        assert await call(limit, "take", "bob", request_id="1")
        assert (await call(limit, "peek", "bob")).remaining == 19
        for _ in range(2):
            assert await call(limit, "refund", "ann", request_id="again")
        assert (await call(limit, "peek", "ann")).remaining == 19

    async def test_a_repeat_is_recognized_among_many(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches(100, algorithm=algorithm)
        assert await call(limit, "take", "ann", request_id="first")
        for _ in range(7):
            assert await call(limit, "take", "ann")
        assert (await call(limit, "take", "ann", request_id="first")).remaining == 92

    async def test_a_request_id_is_one_for_each_verb(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches(3, algorithm=algorithm)
        assert await call(limit, "take", "ann", 2, request_id="order 1")
        assert await call(limit, "refund", "ann", 2, request_id="order 1")
        assert (await call(limit, "peek", "ann")).remaining == 3
        assert await call(limit, "take", "bob")
        assert await call(limit, "refund", "bob", request_id="order 2")
        assert (await call(limit, "take", "bob", request_id="order 2")).remaining == 2

    async def test_a_refused_request_can_be_allowed_later(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches(1, algorithm=algorithm)
        assert await call(limit, "take", "ann")
        assert not await call(limit, "take", "ann", request_id="later")
        await call(limit, "reset", "ann")
        assert await call(limit, "take", "ann", request_id="later")

    async def test_a_refund_never_gives_more_than_was_used(self, call: Call, algorithm: Algorithm) -> None:
        limit = searches(3, algorithm=algorithm)
        assert not await call(limit, "refund", "ann")
        assert await call(limit, "take", "ann")
        assert await call(limit, "refund", "ann", 1000)
        assert not await call(limit, "refund", "ann")
        assert (await call(limit, "peek", "ann")).remaining == 3


def test_limits_that_stay_are_declared_whatever_is_made_for_one_call() -> None:
    """Under their names, for lists of keys."""
    kept = RateLimit("declared", "5/m")  # no other test has this name
    RateLimit("declared", "5/m").peek("ann")
    assert declared_limits()["declared"] is kept
    del kept
    assert "declared" not in declared_limits()


class TestOutages:
    """`known` is false: nothing is admitted by mistake, unless that was chosen."""

    @pytest.mark.one_server
    async def test_the_limit_says_what_happens(self, call: Call, caplog: pytest.LogCaptureFixture) -> None:
        with no_server(), caplog.at_level(logging.WARNING):
            for verb in ("take", "peek"):
                allowed = await call(searches(on_outage="allow", deadline=0.1), verb, "ann")
                denied = await call(searches(on_outage="deny", deadline=0.1), verb, "ann")
                assert (allowed.allowed, allowed.known, allowed.retry_after) == (True, False, 0.0)
                assert (denied.allowed, denied.known, denied.retry_after) == (False, False, 1.0)
                with pytest.raises(Unavailable):
                    await call(searches(), verb, "ann")
            limit = searches(on_outage="allow")
            caplog.clear()
            assert [(await call(limit, "take", "ann")).known for _ in range(2)] == [False] * 2
        assert [record.message[:44] for record in caplog.records] == [
            "Rate limit 'search': all uses are allowed un"
        ]
        assert (await call(limit, "take", "ann")).known


class TestKeys:
    async def test_they_expire_when_nothing_counts_any_more(self, call: Call, algorithm: Algorithm) -> None:
        keys = RateKeys(conf.prefix(), "search", "ann", 1_000_000)
        assert await call(searches(10, algorithm=algorithm), "take", "ann", 2)
        key, ms = (keys.level, 200_000) if algorithm == "gcra" else (keys.uses, 1_000_000)
        assert all_keys() == [key]
        assert ms - 10_000 < server().pttl(key) <= ms
        # a repeat of a short limit must be recognized, too
        assert await call(RateLimit("search", "5/s", algorithm=algorithm), "take", "bob", request_id="x")
        assert all(server().pttl(key) > 100_000 for key in all_keys())

    @pytest.mark.one_server
    def test_a_key_of_another_type_is_reported_and_unchanged(self, algorithm: Algorithm) -> None:
        limit, keys = searches(algorithm=algorithm), RateKeys(conf.prefix(), "search", "ann", 1_000_000)
        parts = {"level": keys.level, "uses": keys.uses, "refunds": keys.refunds}
        used = "level" if algorithm == "gcra" else "uses"
        for act, parts_used in (
            (lambda: limit.take("ann"), used),
            (lambda: limit.peek("ann"), used),
            (lambda: limit.refund("ann"), used if algorithm == "gcra" else "uses refunds"),
        ):
            check_types(act, parts, parts_used, lambda: limit.take("ann"))
