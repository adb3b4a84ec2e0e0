"""Semaphore is what a plain model is; and the machine that says so finds the bugs that are planted."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

from django_redis import get_redis_connection
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_redis_messaging import MessagingError, Semaphore, SemaphoreInfo, conf
from django_redis_messaging.core.keys import SemaphoreKeys
from django_redis_messaging.services import semaphores

from .asking import reply_to, steps
from .planting import PROFILE, Plant, PlantedBugs

#: seconds: longer than any run; no lease ends but by the rule that says so
LONG = 36_000
#: µs: a moment that has been
PAST = 1
_runs = itertools.count()
callers = st.integers(0, 7)


class Model:
    """What a semaphore is: those who hold a permit, those who wait, by their order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.holders: list[str] = []
        self.line: list[str] = []

    @property
    def free(self) -> int:
        return self.limit - len(self.holders)

    @property
    def next(self) -> list[str]:
        """Those in the line who may go."""
        return self.line[: max(self.free, 0)]

    def look(self, token: str, *, stays: bool) -> bool:
        if token in self.holders:
            return True
        place = self.line.index(token) if token in self.line else len(self.line)
        granted = place < self.free
        if granted:
            self.holders.append(token)
        if token in self.line and (granted or not stays):
            self.line.remove(token)
        if stays and not granted and token not in self.line:
            self.line.append(token)
        return granted


class SemaphoreMachine(RuleBasedStateMachine):
    """Callers by their tokens, each with an object of its own; leases that end, and callers that die."""

    @initialize(limit=st.integers(1, 4))
    def begin(self, limit: int) -> None:
        self.model = Model(limit)
        self.patience = mock.patch.object(semaphores, "ALIVE", 1000 * LONG)
        self.patience.start()
        self.name = f"s {next(_runs)}"
        self.client: Any = get_redis_connection(conf.alias())
        self.keys = SemaphoreKeys(conf.prefix(), self.name)
        #: by token, the body of a call that waits
        self.asleep: dict[str, Any] = {}
        self.released: set[str] = set()
        self.tokens = (f"t{number}" for number in itertools.count())
        #: whether those who may go have been told since somebody vanished
        self.told = True
        self.first = self.object()

    def teardown(self) -> None:
        self.patience.stop()

    def object(self, limit: int | None = None) -> Semaphore:
        return Semaphore(self.name, limit or max(self.model.limit, 1), timeout=LONG)

    # What callers do

    @rule(limit=st.integers(1, 4))
    def come_and_wait(self, limit: int) -> None:
        """The limit of a later object doesn't count."""
        later = limit if self.stored() else None
        token = next(self.tokens)
        body = steps(self.object(later)._acquire, token, float("inf"))
        self.go_on(token, body, next(body))

    @rule(limit=st.integers(1, 4))
    def come_and_try(self, limit: int) -> None:
        self.try_once(next(self.tokens), limit if self.stored() else None)

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def look_again(self, at: int) -> None:
        token = self.one(self.asleep, at)
        body = self.asleep.pop(token)
        self.go_on(token, body, body.send(None))

    @precondition(lambda self: self.model.next)
    @rule()
    def who_is_next_looks(self) -> None:
        token = self.model.next[0]
        body = self.asleep.pop(token)
        self.go_on(token, body, body.send(None))

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def give_up(self, at: int) -> None:
        token = self.one(self.asleep, at)
        del self.asleep[token]
        self.try_once(token, None)

    @precondition(lambda self: self.model.holders or self.asleep)
    @rule(at=callers)
    def leave(self, at: int) -> None:
        """Interrupted while it waits, or when it has been granted one and doesn't know."""
        token = self.one([*self.model.holders, *self.asleep], at)
        self.run(self.first._leave, token)
        self.vanish(token)
        self.told = True

    @precondition(lambda self: self.model.holders)
    @rule(at=callers)
    def ask_again(self, at: int) -> None:
        """The reply was lost."""
        token = self.one(self.model.holders, at)
        assert self.run(self.first._acquire, token, 0) is True

    @precondition(lambda self: self.model.holders)
    @rule(at=callers, times=st.integers(1, 2))
    def release(self, at: int, times: int) -> None:
        token = self.one(self.model.holders, at)
        for _ in range(times):
            assert self.run(self.first._release, token) is True
        self.model.holders.remove(token)
        self.released.add(token)
        self.told = True

    @precondition(lambda self: self.released)
    @rule(at=callers)
    def refresh_what_is_released(self, at: int) -> None:
        assert self.run(self.first._refresh, [self.one(sorted(self.released), at)]) is False

    @precondition(lambda self: self.model.holders)
    @rule(at=callers)
    def refresh(self, at: int) -> None:
        assert self.run(self.first._refresh, [self.one(self.model.holders, at)]) is True

    @rule(limit=st.integers(0, 4))
    def set_limit(self, limit: int) -> None:
        self.first.set_limit(limit)
        self.model.limit = limit
        self.told = True

    @rule(limit=st.integers(0, 4))
    def set_limit_for_a_moment(self, limit: int) -> None:
        before = self.model.limit
        self.set_limit(limit)
        self.set_limit(before)

    # What happens to them

    @precondition(lambda self: self.model.holders)
    @rule(at=callers, verb=st.sampled_from(["release", "refresh", "nothing"]))
    def lose_a_lease(self, at: int, verb: str) -> None:
        token = self.one(self.model.holders, at)
        self.client.zadd(self.keys.holders, {token: PAST})
        self.vanish(token)
        if verb == "release":
            assert self.run(self.first._release, token) is False
            self.told = True
        elif verb == "refresh":
            assert self.run(self.first._refresh, [token]) is False

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def die_waiting(self, at: int) -> None:
        token = self.one(self.asleep, at)
        self.client.zadd(self.keys.waiting, {token: PAST})
        self.vanish(token)

    # What always holds

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        assert self.first.info() == SemaphoreInfo(
            limit=self.model.limit, held=len(self.model.holders), waiting=len(self.model.line)
        )
        held = self.client.zrangebyscore(self.keys.holders, 2, "+inf")
        assert {token.decode() for token in held} == set(self.model.holders)
        line = [token.decode() for token in self.client.zrange(self.keys.line, 0, -1)]
        assert [token for token in line if token in self.asleep] == self.model.line

    @invariant()
    def who_may_go_is_awake(self) -> None:
        for token in self.model.next if self.told else ():
            assert self.ticket(token) <= self.gate(), "it would not be woken"

    # How it is asked

    def run(self, operation: Any, *args: Any) -> Any:
        """An operation of one step."""
        body = steps(operation, *args)
        try:
            body.send(reply_to(next(body)))
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it waits")

    def try_once(self, token: str, limit: int | None) -> None:
        expected = self.model.look(token, stays=False)
        assert self.run(self.object(limit)._acquire, token, 0) is expected
        self.told = True

    def go_on(self, token: str, body: Any, step: Any) -> None:
        """Take the next step; it is granted a permit, or sleeps."""
        expected = self.model.look(token, stays=True)
        try:
            body.send(reply_to(step))
        except StopIteration as stop:
            assert stop.value is expected is True
        else:
            assert not expected
            self.asleep[token] = body
            assert self.gate() < self.ticket(token), "it would look all the time"
        self.told = True

    def vanish(self, token: str) -> None:
        for place in (self.model.holders, self.model.line):
            if token in place:
                place.remove(token)
        self.asleep.pop(token, None)
        self.told = False

    def one(self, some: Any, at: int) -> str:
        known = list(some)
        return str(known[at % len(known)])

    def stored(self) -> bool:
        return bool(self.client.exists(self.keys.limit))

    def ticket(self, token: str) -> int:
        return int(self.client.zscore(self.keys.line, token))

    def gate(self) -> int:
        entries = self.client.xrange(self.keys.gate)
        return int(entries[-1][0].partition(b"-")[0]) if entries else 0


def test_everything_is_as_in_the_model() -> None:
    run_state_machine_as_test(SemaphoreMachine, settings=PROFILE)


#: a file of ../lua, some words of it, and what a mistake would have made of them
PLANTS: dict[str, Plant] = {
    "one too many": ("semaphore_acquire", "if before < free then", "if before <= free then"),
    "newcomers overtake": ("semaphore_acquire", "before or redis.call('ZCARD', line),", "before or 0,"),
    "any limit counts": ("semaphore_acquire", "tonumber(stored or ARGV[3])", "tonumber(ARGV[3])"),
    "the dead hold permits": ("_semaphores", "'(' .. digits(now), '+inf'", "'(0', '+inf'"),
    "the released hold permits": ("_semaphores", "'(' .. digits(now), '+inf'", "'-inf', '+inf'"),
    "holders are forgotten": ("semaphore_acquire", "-count - 1001", "-count"),
    "the dead stay in line": ("_semaphores", "if #dead > 0 then", "if false then"),
    "a granted one stays in line": ("semaphore_acquire", "  redis.call('ZREM', line, token)\n", ""),
    "a repeat is refused": ("semaphore_acquire", "token) or 0) > now", "token) or 0) > now + 1e15"),
    "who gives up stays": ("semaphore_acquire", "if ARGV[5] == '0' then", "if ARGV[5] == '-' then"),
    "the last comes first": ("semaphore_acquire", "digits(math.max(now,", "digits(1e16 - math.max(now,"),
    "the gate stays open": ("semaphore_acquire", "if shown >= tonumber(ticket) then", "if false then"),
    "only the first is woken": ("_semaphores", "line, free - 1, free - 1,", "line, 0, 0,"),
    "few are not woken": ("_semaphores", "redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')", "{}"),
    "a release wakes nobody": ("semaphore_release", "limit - held(KEYS[1], now)", "0"),
    "a release gives nothing back": ("semaphore_release", "now + RELEASED", "now - RELEASED"),
    "a late release succeeds": ("semaphore_release", "return ends > now and 1 or 0", "return 1"),
    "a repeated release fails": (
        "semaphore_release",
        "if ends < 0 then\n  return 1",
        "if ends < 0 then\n  return 0",
    ),
    "a refresh revives": ("semaphore_refresh", "if ends and tonumber(ends) > now then", "if ends then"),
    "a limit is not stored": (
        "semaphore_limit",
        "redis.call('SET', KEYS[2], ARGV[1],",
        "redis.call('SET', KEYS[2], 1,",
    ),
    "a higher limit wakes nobody": ("semaphore_limit", "ARGV[1] - count", "0"),
    "who leaves keeps the permit": ("semaphore_leave", "redis.call('ZREM', KEYS[1], ARGV[1])", ""),
    "who leaves wakes nobody": ("semaphore_leave", "limit - held(KEYS[1], now)", "0"),
}


class TestPlantedBugs(PlantedBugs):
    machine = SemaphoreMachine
    plants = PLANTS
    errors = (MessagingError,)  # a script that fails is found too
