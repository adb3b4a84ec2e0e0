"""Compares RateLimit with a model of each algorithm, while the clock jumps; and checks that the machines find
planted bugs."""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from django_redis_messaging import Decision, MessagingError, RateLimit

from ..support.scripts import server_clock
from ..support.state_machines import Machine, MachineTests, Plants, run

#: s; so long that no key expires meanwhile. A sixth is a whole number of ms, a seventh is not
PERIOD = 36_003
#: ms; the clock advances in steps of about this length
STEP = PERIOD * 1000 // 6
#: ms: when a run begins
START = 10**12
#: numbers of uses, each in a number of periods
rates = st.lists(
    st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=3, unique_by=lambda rate: rate[1]
)


class Rate(NamedTuple):
    """A limit of the model."""

    limit: int
    #: ms
    period: int


class Answer(NamedTuple):
    """A decision of the model, in ms."""

    allowed: bool
    remaining: int
    wait: int
    reset: int
    rate: Rate


class Model:
    """What a key has used. The shortest period comes first in `rates`."""

    def __init__(self, rates: list[Rate]) -> None:
        self.rates = rates

    def answer(self, now: int, cost: int) -> Answer:
        """What is decided before anything changes."""
        waits, rooms = self.waits(now, cost), self.rooms(now)
        longest, least = max(waits), min(rooms)
        tightest = waits.index(longest) if longest else rooms.index(least)
        return Answer(not longest, max(least, 0), longest, self.reset_after(now), self.rates[tightest])

    def take(self, now: int, cost: int) -> Answer:
        found = self.answer(now, cost)
        self.adjust(now)
        if found.allowed:
            self.use(now, cost)
            found = found._replace(remaining=found.remaining - cost, reset=self.reset_after(now))
        return found

    def refund(self, now: int, number: int) -> bool:
        found = self.reset_after(now) > 0
        if found:
            self.take_back(now, number)
        return found

    @abstractmethod
    def waits(self, now: int, cost: int) -> list[int]:
        """The ms until each limit has room."""

    @abstractmethod
    def rooms(self, now: int) -> list[int]:
        """The uses for which each limit has room."""

    @abstractmethod
    def reset_after(self, now: int) -> int:
        """The ms until nothing counts any more."""

    @abstractmethod
    def adjust(self, now: int) -> None:
        """Handle a clock that was set back."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all uses."""

    @abstractmethod
    def use(self, now: int, cost: int) -> None:
        """Count uses."""

    @abstractmethod
    def take_back(self, now: int, number: int) -> None:
        """Don't count the latest uses any more."""


class Levels(Model):
    """GCRA: the uses that have not leaked away, as exact fractions."""

    def __init__(self, rates: list[Rate]) -> None:
        super().__init__(rates)
        #: period → uses, and the time up to which they have leaked away
        self.used: dict[int, Fraction] = {}
        self.at: dict[int, int] = {}

    def reset(self) -> None:
        self.used.clear()
        self.at.clear()

    def levels(self, now: int) -> list[Fraction]:
        found = []
        for limit, period in self.rates:
            elapsed = max(now - self.at.get(period, now), 0)
            used = min(self.used.get(period, Fraction(0)), Fraction(limit))
            found.append(max(used - Fraction(elapsed * limit, period), Fraction(0)))
        return found

    def waits(self, now: int, cost: int) -> list[int]:
        pairs = zip(self.levels(now), self.rates, strict=True)
        return [max(ceil((used + cost - rate.limit) * rate.period / rate.limit), 0) for used, rate in pairs]

    def rooms(self, now: int) -> list[int]:
        return [floor(rate.limit - used) for used, rate in zip(self.levels(now), self.rates, strict=True)]

    def reset_after(self, now: int) -> int:
        pairs = zip(self.levels(now), self.rates, strict=True)
        return max(ceil(used * rate.period / rate.limit) for used, rate in pairs)

    def adjust(self, now: int) -> None:
        if any(self.at.get(rate.period, now) > now for rate in self.rates):
            self.store(now, self.levels(now))

    def use(self, now: int, cost: int) -> None:
        self.store(now, [used + cost for used in self.levels(now)])

    def take_back(self, now: int, number: int) -> None:
        self.store(now, [max(used - number, Fraction(0)) for used in self.levels(now)])

    def store(self, now: int, levels: list[Fraction]) -> None:
        for rate, used in zip(self.rates, levels, strict=True):
            self.used[rate.period], self.at[rate.period] = used, now


class Windows(Model):
    """The moments of all uses."""

    def __init__(self, rates: list[Rate]) -> None:
        super().__init__(rates)
        #: longest period → uses
        self.all: dict[int, list[int]] = {}

    @property
    def uses(self) -> list[int]:
        return self.all.setdefault(self.rates[-1].period, [])

    def reset(self) -> None:
        self.uses.clear()

    def counted(self, now: int) -> list[list[int]]:
        """The uses that each limit counts. Those of another longest period are stored apart."""
        return [[use for use in self.uses if use > now - rate.period] for rate in self.rates]

    def waits(self, now: int, cost: int) -> list[int]:
        found = []
        for rate, uses in zip(self.rates, self.counted(now), strict=True):
            over = len(uses) + cost - rate.limit
            found.append(min(uses[over - 1] + rate.period - now, rate.period) if over > 0 else 0)
        return found

    def rooms(self, now: int) -> list[int]:
        return [rate.limit - len(uses) for rate, uses in zip(self.rates, self.counted(now), strict=True)]

    def reset_after(self, now: int) -> int:
        period = self.rates[-1].period
        return min(max(self.uses[-1] + period - now, 0), period) if self.uses else 0

    def adjust(self, now: int) -> None:
        self.uses[:] = [min(use, now) for use in self.uses]

    def use(self, now: int, cost: int) -> None:
        self.uses[:] = [*self.counted(now)[-1], *[now] * cost]

    def take_back(self, now: int, number: int) -> None:
        del self.uses[-number:]


class RateMachine(Machine):
    """Calls for one key, with replies that are lost, limits that change, and a clock that is set back."""

    algorithm: Any
    model_class: type[Model]

    @initialize(rates=rates)
    def begin(self, rates: list[tuple[int, int]]) -> None:
        #: the server's clock, and how much time has really passed: ms
        self.now, self.passed = START, 0
        #: when uses were allowed, in the time that has passed
        self.admitted: list[int] = []
        self.model = self.model_class([])
        self.change_limits(rates)

    # Calls

    @rule(cost=st.integers(1, 3), times=st.integers(1, 2))
    def take(self, cost: int, times: int) -> None:
        cost = min(cost, self.limit.capacity)
        with server_clock(self.now):
            found = run(self.limit._take, self.limit._taking("ann", cost, None), times=times)
        assert as_answer(found) == self.model.take(self.now, cost)
        self.admitted += [self.passed] * (cost if found else 0)

    @rule(cost=st.integers(1, 3))
    def peek(self, cost: int) -> None:
        cost = min(cost, self.limit.capacity)
        with server_clock(self.now):
            found = self.limit.peek("ann", cost)
        assert as_answer(found) == self.model.answer(self.now, cost)

    @rule(number=st.integers(1, 4), times=st.integers(1, 2))
    def refund(self, number: int, times: int) -> None:
        with server_clock(self.now):
            found = run(self.limit.refund, "ann", number, times=times)
        assert found is self.model.refund(self.now, number)
        if found:
            del self.admitted[-number:]

    @rule()
    def reset(self) -> None:
        self.limit.reset("ann")
        self.model.reset()
        self.admitted.clear()

    @rule(rates=rates)
    def change_limits(self, rates: list[tuple[int, int]]) -> None:
        texts = [f"{limit}/{periods * PERIOD}s" for limit, periods in rates]
        self.limit = RateLimit(self.name, texts, algorithm=self.algorithm)
        self.model.rates = [Rate(rate.limit, round(rate.period * 1000)) for rate in self.limit.rates]
        self.admitted.clear()  # the promise is for limits that don't change

    # Events

    @rule(steps=st.integers(1, 8), ms=st.integers(-1, 1))
    def advance(self, steps: int, ms: int) -> None:
        self.now += steps * STEP + ms
        self.passed += steps * STEP + ms

    @rule(steps=st.integers(1, 30))
    def set_clock_back(self, steps: int) -> None:
        self.now -= steps * STEP

    # Promises

    @invariant()
    def no_period_has_more_uses_than_promised(self) -> None:
        bursts = 0 if self.algorithm == "window" else 1
        for limit, period in self.model.rates if hasattr(self, "model") else ():
            for end in self.admitted:
                uses = [use for use in self.admitted if end - period < use <= end]
                assert len(uses) <= limit * (1 + bursts), (uses, limit, period)


def as_answer(found: Decision) -> Answer:
    wait, reset, period = (
        round(seconds * 1000) for seconds in (found.retry_after, found.reset_after, found.rate.period)
    )
    return Answer(found.allowed, found.remaining, wait, reset, Rate(found.rate.limit, period))


class LevelMachine(RateMachine):
    algorithm = "gcra"
    model_class = Levels


class WindowMachine(RateMachine):
    algorithm = "window"
    model_class = Windows


#: a script, a part of it, and a mistake to replace it with
LEVEL_PLANTS: Plants = {
    "rates/_levels": {
        "levels don't fall": ("math.max(now - one.at, 0) * one.limit", "0"),
        "levels fall by one use a period": (
            "math.max(now - one.at, 0) * one.limit",
            "math.max(now - one.at, 0)",
        ),
        "a clock that is set back raises levels": (
            "math.max(now - one.at, 0) * one.limit",
            "(now - one.at) * one.limit",
        ),
        "a level stays above a lowered limit": (
            "math.min(tonumber(level or 0), one.full)",
            "tonumber(level or 0)",
        ),
        "all levels have the time of one": (
            "stored['at:' .. period] or now",
            "stored['at:' .. ARGV[first + 1]] or now",
        ),
        "the last limit decides": ("if wait > longest then", "if true then"),
        "one use too many": (
            "cost * one.period - one.full) / one.limit",
            "(cost - 1) * one.period - one.full) / one.limit",
        ),
        "a wait is too short by a ms": (
            "local wait = math.ceil((one.level",
            "local wait = math.floor((one.level",
        ),
        "the number of uses left is rounded up": ("local left = math.floor(", "local left = math.ceil("),
        "the levels of other limits are lost": (
            "values[#values + 1], values[#values + 2] = 'level:'",
            "values[1], values[2] = 'level:'",
        ),
        "the time is not stored": ("'at:' .. period, digits(now)", "'at:' .. period, digits(one.at)"),
        "repeats are not recognized": ("fields[field + 1] == token", "false"),
        "only the first limit counts": ("for arg = first, #ARGV, 3 do", "for arg = first, first, 3 do"),
    },
    "rates/level_take": {
        "a refused use counts": ("if wait == 0 then", "if true then"),
        "a cost is one": ("one.level + cost * one.period", "one.level + one.period"),
        "nobody is let in after the clock was set back": (
            "elseif was_set_back(limits, now) then",
            "elseif false then",
        ),
    },
    "rates/level_refund": {
        "a refund repays all": ("math.max(one.level - uses * one.period, 0)", "0"),
        "a repeated refund repays twice": ("if is_repeat then", "if false then"),
    },
    "rates/level_peek": {
        "a peek asks for one use": ("ms_to_wait(limits, cost)", "ms_to_wait(limits, 1)"),
    },
}
WINDOW_PLANTS: Plants = {
    "rates/_windows": {
        "a use counts for a ms too long": ("2 * high - 2)) <= moment do", "2 * high - 2)) < moment do"),
        "the search skips one": ("low, high = high, 2 * high", "low, high = high + 1, 2 * high"),
        "the search goes the wrong way": (
            "2 * middle - 2)) <= moment then",
            "2 * middle - 2)) > moment then",
        ),
        "uses in the future stay there": ("values[place] = digits(now)", "values[place] = values[place]"),
        "uses in the future are lost": ("  append_uses(uses, values)\nend", "end"),
        "uses of before are kept twice": ("number > 0 and 0 or 1,", "0,"),
        "one use too many": ("if room < cost then", "if room < cost - 1 then"),
        "the wrong use must be over": ("2 * (total - limit + cost - 1)", "2 * (total - limit + cost)"),
        "the first limit that refuses decides": ("if needed > wait then", "if wait == 0 then"),
        "a wait is longer than a period": (
            "math.min(oldest + period - now, period)\n      if",
            "oldest + period - now\n      if",
        ),
        "the first limit is the tightest": ("if room < left then", "if left == math.huge then"),
        "uses left are negative": ("math.max(left, 0)", "left"),
    },
    "rates/window_take": {
        "a repeat counts": ("if redis.call('LPOS'", "if redis.call('EXISTS', '') == 1 and redis.call('LPOS'"),
        "a refused use counts": ("if wait > 0 then", "if false then"),
        "a clock that is set back is ignored": (
            "if tonumber(redis.call('LINDEX', uses, -2)) > now then",
            "if false then",
        ),
        "what counts is removed": (
            "redis.call('LTRIM', uses, 2 * over, -1)",
            "redis.call('LTRIM', uses, 2 * over + 2, -1)",
        ),
        "a cost is one": ("for place = 1, 2 * cost, 2 do", "for place = 1, 2, 2 do"),
    },
    "rates/window_refund": {
        "a refund repays one more": ("- 2 * number)", "- 2 * number - 2)"),
        "a repeated refund repays twice": ("if redis.call('LPOS', refunds, request) then", "if false then"),
    },
}


class TestLevels(MachineTests):
    machine = LevelMachine
    plants = LEVEL_PLANTS
    quick = ("levels don't fall", "a refused use counts")
    errors = (MessagingError,)


class TestWindows(MachineTests):
    machine = WindowMachine
    plants = WINDOW_PLANTS
    quick = ("one use too many", "a repeat counts")
    errors = (MessagingError,)
