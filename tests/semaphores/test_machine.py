"""Compares Semaphore with a model; and checks that the machine finds planted bugs."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import MessagingError, Semaphore, SemaphoreInfo, conf
from django_redis_messaging.services.semaphores import semaphore as semaphores
from django_redis_messaging.services.semaphores.semaphore import Permit, SemaphoreKeys

from ..support.server import reply_to, steps
from ..support.state_machines import Machine, MachineTests, Plants, one, run

#: seconds; longer than any run: leases end only by a rule
LONG = 36_000
#: µs; a time in the past
PAST = 1
callers = st.integers(0, 7)


class Model:
    """A semaphore: its holders, and its waiting clients in order."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.holders: list[str] = []
        self.queue: list[str] = []

    @property
    def free(self) -> int:
        return self.limit - len(self.holders)

    @property
    def next(self) -> list[str]:
        """The waiting clients that may take a permit."""
        return self.queue[: max(self.free, 0)]

    def look(self, token: str, *, stays: bool) -> bool:
        if token in self.holders:
            return True
        place = self.queue.index(token) if token in self.queue else len(self.queue)
        granted = place < self.free
        if granted:
            self.holders.append(token)
        if token in self.queue and (granted or not stays):
            self.queue.remove(token)
        if stays and not granted and token not in self.queue:
            self.queue.append(token)
        return granted


class SemaphoreMachine(Machine):
    """Callers by token, each with its own object; leases that end, and callers that die."""

    @initialize(limit=st.integers(1, 4))
    def begin(self, limit: int) -> None:
        self.model = Model(limit)
        self.patch(semaphores, "WAITER_TTL", 1000 * LONG)
        self.keys = SemaphoreKeys(conf.prefix(), self.name)
        #: token → the steps of a waiting call
        self.asleep: dict[str, Any] = {}
        self.released: set[str] = set()
        self.tokens = (f"t{number}" for number in itertools.count())
        #: whether the clients that may take a permit were woken since a client died
        self.told = True
        self.first = self.object()

    def object(self, limit: int | None = None) -> Semaphore:
        return Semaphore(self.name, limit or max(self.model.limit, 1), timeout=LONG)

    # Actions of callers

    @rule(limit=st.integers(1, 4), times=st.integers(1, 2))
    def come_and_wait(self, limit: int, times: int) -> None:
        """The limit of a later object has no effect, nor has a repeat after a lost reply."""
        later = limit if self.stored() else None
        token = next(self.tokens)
        body = steps(self.object(later)._acquire, Permit(token), float("inf"))
        self.go_on(token, body, next(body), times)

    @rule(limit=st.integers(1, 4))
    def come_and_try(self, limit: int) -> None:
        self.try_once(next(self.tokens), limit if self.stored() else None)

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def look_again(self, at: int) -> None:
        token = one(self.asleep, at)
        body = self.asleep.pop(token)
        self.go_on(token, body, body.send([]))

    @precondition(lambda self: self.model.next)
    @rule()
    def who_is_next_looks(self) -> None:
        token = self.model.next[0]
        body = self.asleep.pop(token)
        self.go_on(token, body, body.send([]))

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def give_up(self, at: int) -> None:
        token = one(self.asleep, at)
        del self.asleep[token]
        self.try_once(token, None)

    @precondition(lambda self: self.model.holders or self.asleep)
    @rule(at=callers)
    def leave(self, at: int) -> None:
        """Interrupt a caller while it waits, or after a grant whose reply it has not received."""
        token = one([*self.model.holders, *self.asleep], at)
        run(self.first._release, token)
        self.vanish(token)
        self.told = True

    @precondition(lambda self: self.model.holders)
    @rule(at=callers)
    def ask_again(self, at: int) -> None:
        """Repeat a call whose reply was lost."""
        token = one(self.model.holders, at)
        assert run(self.first._acquire, Permit(token), 0) is True

    @precondition(lambda self: self.model.holders)
    @rule(at=callers, times=st.integers(1, 2))
    def release(self, at: int, times: int) -> None:
        token = one(self.model.holders, at)
        for _ in range(times):
            assert run(self.first._release, token) is True
        self.model.holders.remove(token)
        self.released.add(token)
        self.told = True

    @precondition(lambda self: self.released)
    @rule(at=callers)
    def refresh_what_is_released(self, at: int) -> None:
        assert run(self.first._refresh, [one(sorted(self.released), at)]) is False

    @precondition(lambda self: self.model.holders)
    @rule(at=callers)
    def refresh(self, at: int) -> None:
        assert run(self.first._refresh, [one(self.model.holders, at)]) is True

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

    # Events

    @precondition(lambda self: self.model.holders)
    @rule(at=callers, verb=st.sampled_from(["release", "refresh", "nothing"]))
    def lose_a_lease(self, at: int, verb: str) -> None:
        token = one(self.model.holders, at)
        self.client.zadd(self.keys.holders, {token: PAST})
        self.vanish(token)
        if verb == "release":
            assert run(self.first._release, token) is False
            self.told = True
        elif verb == "refresh":
            assert run(self.first._refresh, [token]) is False

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def die_waiting(self, at: int) -> None:
        token = one(self.asleep, at)
        self.client.zadd(self.keys.waiting, {token: PAST})
        self.vanish(token)

    # Invariants

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        assert self.first.info() == SemaphoreInfo(
            limit=self.model.limit, held=len(self.model.holders), waiting=len(self.model.queue)
        )
        held = self.client.zrangebyscore(self.keys.holders, 2, "+inf")
        assert {token.decode() for token in held} == set(self.model.holders)
        line = [token.decode() for token in self.client.zrange(self.keys.line, 0, -1)]
        assert [token for token in line if token in self.asleep] == self.model.queue

    @invariant()
    def who_may_go_is_awake(self) -> None:
        for token in self.model.next if self.told else ():
            assert self.ticket(token) <= self.gate(), "it would not be woken"

    # Helpers

    def try_once(self, token: str, limit: int | None) -> None:
        expected = self.model.look(token, stays=False)
        assert run(self.object(limit)._acquire, Permit(token), 0) is expected
        self.told = True

    def go_on(self, token: str, body: Any, step: Any, times: int = 1) -> None:
        """Take the next step: it gets a permit, or sleeps."""
        expected = self.model.look(token, stays=True)
        try:
            body.send([reply_to(step) for _ in range(times)][-1])
        except StopIteration as stop:
            assert stop.value is expected is True
        else:
            assert not expected
            self.asleep[token] = body
            assert self.gate() < self.ticket(token), "it would look all the time"
        self.told = True

    def vanish(self, token: str) -> None:
        for place in (self.model.holders, self.model.queue):
            if token in place:
                place.remove(token)
        self.asleep.pop(token, None)
        self.told = False

    def stored(self) -> bool:
        return bool(self.client.exists(self.keys.limit))

    def ticket(self, token: str) -> int:
        return int(self.client.zscore(self.keys.line, token))

    def gate(self) -> int:
        entries = self.client.xrange(self.keys.gate)
        return int(entries[-1][0].partition(b"-")[0]) if entries else 0


#: a script, a part of it, and a mistake to replace it with
PLANTS: Plants = {
    "semaphores/acquire": {
        "one too many": ("if ahead < free then", "if ahead <= free then"),
        "newcomers overtake": ("ahead or redis.call('ZCARD', line),", "ahead or 0,"),
        "any limit counts": ("tonumber(stored or default_limit)", "tonumber(default_limit)"),
        "holders are forgotten": ("-count - 1001", "-count"),
        "a granted one stays in line": ("  redis.call('ZREM', line, token)\n", ""),
        "a repeat is refused": ("token) or 0) > now", "token) or 0) > now + 1e15"),
        "who gives up stays": ("elseif admitted then", "elseif false then"),
        "the last comes first": ("digits(math.max(now,", "digits(1e16 - math.max(now,"),
        "the gate stays open": ("if admitted >= tonumber(ticket) then", "if false then"),
    },
    "common/_polls": {
        "the dead hold permits": ("set, now + 1, '+inf'", "set, 1, '+inf'"),
        "the released hold permits": ("set, now + 1, '+inf'", "set, '-inf', '+inf'"),
    },
    "semaphores/_semaphores": {
        "the dead stay in line": ("if #dead > 0 then", "if false then"),
        "only the first is woken": ("line, free - 1, free - 1,", "line, 0, 0,"),
        "few are not woken": ("redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')", "{}"),
    },
    "semaphores/release": {
        "a release wakes nobody": ("permits - count_active(holders, now)", "0"),
        "a release gives nothing back": (
            "redis.pcall('ZADD', holders, now + RELEASED, token)",
            "redis.pcall('ZADD', holders, now - RELEASED, token)",
        ),
        "a late release succeeds": ("return expires > now and 1 or 0", "return 1"),
        "a repeated release fails": (
            "if expires < 0 then -- a repeat: it has been released\n  return 1",
            "if expires < 0 then\n  return 0",
        ),
        "who leaves stays in line": ("  redis.call('ZREM', line, token)\n", ""),
        "who leaves still waits": ("  redis.call('ZREM', waiting, token)\n", ""),
    },
    "semaphores/refresh": {
        "a refresh revives": ("if ends[at] and tonumber(ends[at]) > now then", "if ends[at] then"),
    },
    "semaphores/limit": {
        "a limit is not stored": (
            "redis.call('SET', semaphore.limit, permits,",
            "redis.call('SET', semaphore.limit, 1,",
        ),
        "a higher limit wakes nobody": ("permits - count", "0"),
    },
}


class TestMachine(MachineTests):
    machine = SemaphoreMachine
    plants = PLANTS
    quick = ("the dead hold permits", "a late release succeeds")
    errors = (MessagingError,)  # an error of a script is a find, too
