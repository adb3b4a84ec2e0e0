"""Compares ReadWriteLock with a model; and checks that the machine finds planted bugs."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import MessagingError, ReadLock, ReadWriteLock, WriteLock, conf
from django_redis_messaging.services.locks.lock import Attempt, Holding
from django_redis_messaging.services.rwlocks import rwlock
from django_redis_messaging.services.rwlocks.rwlock import ReadWriteLockKeys

from ..support.server import reply_to, steps
from ..support.state_machines import Machine, MachineTests, Plants, one, run

#: seconds; longer than any run: leases end only by a rule
LONG = 36_000
#: µs; a time in the past
PAST = 1
callers = st.integers(0, 7)


class Model:
    """A read-write lock: its holders, and its waiting clients in order. Both by token, with whether they
    write."""

    def __init__(self) -> None:
        self.holders: dict[str, bool] = {}
        self.queue: dict[str, bool] = {}

    def may_proceed(self, token: str, writes: bool) -> bool:
        ahead = list(itertools.takewhile(lambda one: one != token, self.queue))
        if writes:
            return not self.holders and not ahead
        return not any(self.holders.values()) and not any(self.queue[one] for one in ahead)

    @property
    def next(self) -> list[str]:
        """The waiting clients that may proceed."""
        return [token for token, writes in self.queue.items() if self.may_proceed(token, writes)]

    def look(self, token: str, writes: bool, *, stays: bool) -> bool:
        granted = self.may_proceed(token, writes)
        if granted:
            self.holders[token] = writes
        if granted or not stays:
            self.queue.pop(token, None)
        else:
            self.queue.setdefault(token, writes)
        return granted


class ReadWriteLockMachine(Machine):
    """Callers by token, each with its own object; leases that end, callers that die, and the clock."""

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.patch(rwlock, "WAITER_TTL", 1000 * LONG)
        self.keys = ReadWriteLockKeys(conf.prefix(), self.name)
        #: token → the steps of a waiting call
        self.asleep: dict[str, Any] = {}
        #: token → its fence
        self.fences: dict[str, int] = {}
        #: tokens whose leases have ended → whether they write
        self.lost: dict[str, bool] = {}
        self.released: set[str] = set()
        self.latest = 0
        self.tokens = (f"t{number}" for number in itertools.count())
        #: whether the clients that may proceed were woken since a client died
        self.told = True

    def side(self, writes: bool) -> ReadLock | WriteLock:
        lock = ReadWriteLock(self.name, timeout=LONG)
        return lock.write if writes else lock.read

    def attempt(self, token: str, wait: float | None) -> Attempt:
        return Attempt(token.encode(), Holding(), wait, b"")

    # Actions of callers

    @rule(writes=st.booleans(), times=st.integers(1, 2))
    def come_and_wait(self, writes: bool, times: int) -> None:
        """A repeat after a lost reply changes nothing."""
        token = next(self.tokens)
        body = steps(self.side(writes)._acquire, self.attempt(token, None))
        self.go_on(token, writes, body, next(body), times)

    @rule(writes=st.booleans(), times=st.integers(1, 2))
    def come_and_try(self, writes: bool, times: int) -> None:
        self.try_once(next(self.tokens), writes, times)

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def look_again(self, at: int) -> None:
        self.poll(one(self.asleep, at))

    @precondition(lambda self: self.model.next)
    @rule(at=callers)
    def who_is_next_looks(self, at: int) -> None:
        self.poll(one(self.model.next, at))

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def give_up(self, at: int) -> None:
        token = one(self.asleep, at)
        del self.asleep[token]
        self.try_once(token, self.model.queue[token])

    @precondition(lambda self: self.model.holders or self.asleep)
    @rule(at=callers)
    def leave(self, at: int) -> None:
        """Interrupt a caller while it waits, or after a grant whose reply it has not received."""
        token = one([*self.model.holders, *self.asleep], at)
        assert run(self.side(False)._leave, token.encode()) is (token in self.model.holders)
        self.vanish(token)
        self.told = True

    @precondition(lambda self: self.model.holders)
    @rule(at=callers)
    def ask_again(self, at: int) -> None:
        """Repeat a call whose reply was lost."""
        token = one(self.model.holders, at)
        side = self.side(self.model.holders[token])
        assert run(side._acquire, self.attempt(token, 0)) == self.fences[token]

    @precondition(lambda self: self.model.holders)
    @rule(at=callers, times=st.integers(1, 2))
    def release(self, at: int, times: int) -> None:
        token = one(self.model.holders, at)
        for _ in range(times):
            assert run(self.side(False)._leave, token.encode()) is True
        del self.model.holders[token]
        self.released.add(token)
        self.told = True

    @precondition(lambda self: self.released)
    @rule(at=callers)
    def extend_what_is_released(self, at: int) -> None:
        assert not self.extend(one(sorted(self.released), at))

    @precondition(lambda self: self.model.holders)
    @rule(at=callers)
    def extend_the_lease(self, at: int) -> None:
        token = one(self.model.holders, at)
        self.client.zadd(self.keys.holders, {token: self.now() + 60_000_000})
        assert self.extend(token)
        assert self.client.zscore(self.keys.holders, token) > self.now() + 60_000_000

    # Events

    @precondition(lambda self: self.model.holders)
    @rule(at=callers, verb=st.sampled_from(["release", "extend", "nothing"]))
    def lose_a_lease(self, at: int, verb: str) -> None:
        token = one(self.model.holders, at)
        self.client.zadd(self.keys.holders, {token: PAST})
        self.lost[token] = self.model.holders[token]
        self.vanish(token)
        if verb == "release":
            del self.lost[token]
            assert run(self.side(False)._leave, token.encode()) is False
            self.told = True
        elif verb == "extend":
            assert not self.extend(token)

    @precondition(lambda self: self.asleep)
    @rule(at=callers)
    def die_waiting(self, at: int) -> None:
        token = one(self.asleep, at)
        self.client.zadd(self.keys.alive, {token: PAST})
        self.vanish(token)

    @precondition(lambda self: self.fences)
    @rule()
    def set_the_clock_back(self) -> None:
        """Leases that had ended are valid again, unless another client was served since. The latest fence and
        the tickets are in the future, and so can be the gate of an empty queue."""
        hour = 3_600_000_000
        for found, score in self.client.zrange(self.keys.holders, 0, -1, withscores=True):
            if score == PAST:
                token = found.decode()
                assert token in self.lost, "its loss was reported"
                self.client.zadd(self.keys.holders, {token: self.now() + LONG * 1_000_000})
                self.model.holders[token] = self.lost.pop(token)
        self.latest = max(self.latest, self.now()) + hour
        self.client.hset(self.keys.grants, "latest", self.latest)
        if not self.client.exists(self.keys.alive):
            self.client.xadd(self.keys.gate, {"": ""}, id=f"{max(self.now(), self.gate()) + hour}-0")
        for key in (self.keys.readers, self.keys.writers):
            for token in self.client.zrange(key, 0, -1):
                self.client.zincrby(key, hour, token)
        self.told = False  # by their tickets of before

    # Invariants

    @invariant()
    def nobody_is_beside_a_writer(self) -> None:
        assert not any(self.model.holders.values()) or len(self.model.holders) == 1

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        info = ReadWriteLock(self.name).info()
        readers = [token for token, writes in self.model.holders.items() if not writes]
        [writer] = self.model.holders.keys() - set(readers) or [None]
        assert (info.writer, info.readers) == (writer, len(readers))
        assert {holder.token for holder in info.holders} == set(self.model.holders)
        assert info.waiting == len(self.model.queue)
        waiting = {
            token.decode(): score
            for key in (self.keys.readers, self.keys.writers)
            for token, score in self.client.zrange(key, 0, -1, withscores=True)
        }
        line = sorted(waiting, key=lambda token: waiting[token])
        assert [token for token in line if token in self.asleep] == list(self.model.queue)

    @invariant()
    def who_may_go_is_awake(self) -> None:
        for token in self.model.next if self.told else ():
            assert self.ticket(token) <= self.gate(), "it would not be woken"

    # Helpers

    def poll(self, token: str) -> None:
        body = self.asleep.pop(token)
        self.go_on(token, self.model.queue[token], body, body.send([]))

    def try_once(self, token: str, writes: bool, times: int = 1) -> None:
        expected = self.model.look(token, writes, stays=False)
        fence = run(self.side(writes)._acquire, self.attempt(token, 0), times=times)
        assert bool(fence) is expected
        self.granted(token, fence)
        self.told = True

    def go_on(self, token: str, writes: bool, body: Any, step: Any, times: int = 1) -> None:
        """Take the next step: it acquires the lock, or sleeps."""
        expected = self.model.look(token, writes, stays=True)
        replies = [reply_to(step) for _ in range(times)]
        try:
            body.send(replies[-1])
        except StopIteration as stop:
            assert bool(stop.value) is expected is True
            assert len(set(replies)) == 1, "a repeat got another fence"
            self.granted(token, stop.value)
        else:
            assert not expected
            self.asleep[token] = body
            assert self.gate() < self.ticket(token), "it would look all the time"
        self.told = True

    def granted(self, token: str, fence: int) -> None:
        if fence:
            assert fence > self.latest, "a fence was not greater than all before"
            self.fences[token] = self.latest = fence

    def extend(self, token: str) -> bool:
        return bool(reply_to(self.side(False)._extension(token.encode())))

    def vanish(self, token: str) -> None:
        for place in (self.model.holders, self.model.queue, self.asleep):
            place.pop(token, None)
        self.told = False

    def now(self) -> int:
        seconds, us = self.client.time()
        return int(seconds * 1_000_000 + us)

    def ticket(self, token: str) -> int:
        scores = (self.client.zscore(key, token) for key in (self.keys.readers, self.keys.writers))
        return int(next(score for score in scores if score is not None))

    def gate(self) -> int:
        entries = self.client.xrange(self.keys.gate)
        return int(entries[-1][0].partition(b"-")[0]) if entries else 0


#: a script, a part of it, and a mistake to replace it with
PLANTS: Plants = {
    "rwlocks/acquire": {
        "readers read beside a writer": ("if must_wait or is_written or", "if must_wait or"),
        "a writer comes to readers": ("or writes and is_held then", "or writes and is_written then"),
        "newcomers overtake": ("first < (ticket or math.huge), admitted", "first < (ticket or 0), admitted"),
        "writers overtake readers": ("  if writes then\n    first =", "  if false then\n    first ="),
        "readers overtake writers": (
            "local first = tonumber(redis.call('ZRANGE', writers, 0, 0, 'WITHSCORES')[2] or math.huge)",
            "local first = math.huge",
        ),
        "readers wait for readers": ("  if writes then\n    first =", "  if true then\n    first ="),
        "a repeat is refused": ("if fence and holds(token) then", "if false then"),
        "a repeat draws a fence": ("  return tonumber(fence)", "  return grant and grant() or now"),
        "fences of readers are not recorded": (
            "redis.call('HSET', grants, 'latest', text, token, text)\n  end",
            "redis.call('HSET', grants, token, text)\n  end",
        ),
        "fences are times": ("math.max(now, (latest or 0) + 1)", "now"),
        "a writer is not recorded": ("token, text, 'writer', token)", "token, text)"),
        "ended leases are valid again": ("if ends > 0 and not is_held then", "if false then"),
        "a granted one stays in the queue": ("  redis.call('ZREM', queue, token)\n", ""),
        "who is granted still waits": ("  redis.call('ZREM', alive, token)\n", ""),
        "who gives up stays": ("elseif has_queue then\n", "elseif false then\n"),
        "the last comes first": ("digits(ticket), token)", "digits(1e16 - ticket), token)"),
        "the gate stays open": ("if admitted >= ticket then", "if false then"),
        "one arrival for both": ("ipairs({readers, writers})", "ipairs({queue})"),
        "readers behind a granted one sleep": (
            "alive, token)\n  if not is_written then",
            "alive, token)\n  if false then",
        ),
    },
    "rwlocks/_rwlocks": {
        "the dead stay in the queue": ("if #dead > 0 then", "if false then"),
        "dead writers stay in the queue": ("    redis.call('ZREM', writers, unpack(dead))\n", ""),
        "all readers are woken": ("writer and '(' .. writer or '+inf'", "'+inf'"),
        "only one reader is woken": (
            "redis.call('ZREVRANGEBYSCORE', readers, before, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)",
            "redis.call('ZRANGEBYSCORE', readers, '-inf', before, 'WITHSCORES', 'LIMIT', 0, 1)",
        ),
        "no writer is woken": ("reader or is_free and writer", "reader"),
        "writers are woken early": ("reader or is_free and writer", "reader or writer"),
    },
    "rwlocks/release": {
        "a release wakes nobody": ("if admitted then", "if false then"),
        "a release wakes only readers": ("gate, not is_held, admitted)", "gate, false, admitted)"),
        "a release gives nothing back": ("now + RELEASED", "now - RELEASED"),
        "a late release succeeds": ("return ends > now and 1 or 0", "return 1"),
        "a repeated release fails": ("been released\n  return 1", "been released\n  return 0"),
        "who leaves still waits": ("  redis.call('ZREM', alive, token)\n", ""),
        "a late release is valid again": ("RELEASED or 0, token", "RELEASED or ends, token"),
    },
    "rwlocks/extend": {
        "an extension revives": (" or 0) <= now then", " or 0) <= -now then"),
        "an extension does nothing": (
            "redis.call('ZADD', rwlock.holders, now + lease * 1000, token)\n",
            "",
        ),
    },
}


class TestMachine(MachineTests):
    machine = ReadWriteLockMachine
    plants = PLANTS
    quick = ("readers overtake writers", "a late release succeeds")
    errors = (MessagingError,)  # an error of a script is a find, too
