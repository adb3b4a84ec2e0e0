"""Compares the candidates of a Leader with a model; and checks that the machine finds planted bugs.

Leaders have no scripts of their own. The machine of locks, tests/locks/test_machine.py, covers leases and
dead clients.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import Leader, MessagingError, conf
from django_redis_messaging.core.operations import Listen
from django_redis_messaging.services.common import waiters
from django_redis_messaging.services.locks import leader as leaders
from django_redis_messaging.services.locks import lock as locks
from django_redis_messaging.services.locks.leader import LeaderLock, Stopped
from django_redis_messaging.services.locks.lock import LockKeys

from ..support.server import reply_to, steps
from ..support.state_machines import Machine, MachineTests, Plants, one, run

#: seconds; longer than any run: leases end only by a rule
LONG = 10_000
some = st.integers(0, 7)
times = st.integers(1, 2)
if_waiting = precondition(lambda self: self.queue)
if_led = precondition(lambda self: self.leader)


@dataclass
class Candidate:
    """A candidate, by its token, and the steps of its acquire."""

    token: str
    lock: LeaderLock
    stop: threading.Event
    body: Any


class LeaderMachine(Machine):
    """Candidates, of which one leads at a time: the model is the leader's token, and the queue."""

    @initialize()
    def begin(self) -> None:
        self.keys = LockKeys(conf.prefix(), self.object()._lock.key)
        self.tokens = (f"t{number}" for number in itertools.count())
        #: the token of the leader, or of the candidate that was handed the leadership
        self.leader = ""
        self.queue: list[str] = []
        self.candidates: dict[str, Candidate] = {}
        #: former leaders that have not noticed that they were deposed
        self.deposed: list[str] = []
        self.fence, now = 0, time.monotonic()
        for module in (leaders, locks, waiters):  # no wait ends by itself
            self.patch(module, "monotonic", lambda: now)

    def object(self) -> Leader:
        return Leader(self.name, timeout=LONG)

    # Candidates

    @rule(times=times)
    def come(self, times: int) -> None:
        lock, stop = copy.copy(self.object()._lock), threading.Event()
        lock.stop = stop
        token = next(self.tokens)
        attempt = lock._attempt(True, None, token)
        body = steps(lock._acquire, attempt)
        self.candidates[token] = Candidate(token, lock, stop, body)
        self.leader or self.hand_over()
        if not self.leader:
            self.leader = token
        elif self.leader != token:
            self.queue.append(token)
        self.go_on(token, next(body), times)

    @precondition(lambda self: self.queue or self.is_handed_over)
    @rule(at=some, times=times)
    def poll(self, at: int, times: int) -> None:
        """Also the candidate that was handed the leadership."""
        token = one([*self.queue, *([self.leader] if self.is_handed_over else [])], at)
        self.leader or self.hand_over()
        self.go_on(token, self.candidates[token].body.send([]), times)

    @if_waiting
    @rule(at=some, handed=st.booleans())
    def stop(self, at: int, handed: bool) -> None:
        """It waits in short turns, and notices it at the next one. It leaves as after an interrupt."""
        token = self.leader if handed and self.is_handed_over else one(self.queue, at)
        candidate = self.candidates.pop(token)
        candidate.stop.set()
        try:
            candidate.body.send(None)
        except Stopped:
            run(candidate.lock._leave, token.encode())
        else:
            raise AssertionError("it waits on")
        if token == self.leader:
            self.hand_over()
        else:
            self.queue.remove(token)

    @precondition(lambda self: self.leader and not self.is_handed_over)
    @rule(times=times)
    def end(self, times: int) -> None:
        """The function has returned."""
        candidate = self.candidates.pop(self.leader)
        assert run(candidate.lock._leave, candidate.token.encode(), times=times) is True
        self.hand_over()

    # Events

    @rule()
    def step_down(self) -> None:
        assert self.object().step_down() is bool(self.leader)
        if self.leader:
            self.end_term()
            self.hand_over()

    @if_led
    @rule()
    def lose_the_lease(self) -> None:
        self.client.delete(self.keys.key)
        self.end_term()

    @precondition(lambda self: self.deposed)
    @rule(at=some, releases=st.booleans())
    def a_deposed_leader_notices_it(self, at: int, releases: bool) -> None:
        """By its renewal, or because its function has returned."""
        candidate = self.candidates.pop(token := one(self.deposed, at))
        self.deposed.remove(token)
        if releases:
            assert run(candidate.lock._leave, token.encode()) is False
        else:
            renewal = candidate.lock._renewal(candidate.lock._attempt(True, None, token))
            assert not renewal.is_held(reply_to(renewal.script))

    # Invariants

    @invariant()
    def it_is_as_in_the_model(self) -> None:
        self.nothing_expires()
        info = self.object().info()
        assert (info.holder or "", list(info.waiters)) == (self.leader, self.queue)

    # Helpers

    @property
    def is_handed_over(self) -> bool:
        """Whether the leader has not noticed yet that it leads."""
        return bool(self.leader) and self.candidates[self.leader].body is not None

    def go_on(self, token: str, step: Any, times: int) -> None:
        """Poll: it leads, or waits."""
        candidate = self.candidates[token]
        reply = [reply_to(step) for _ in range(times)][-1]
        self.nothing_expires()
        try:
            listen = candidate.body.send(reply)
        except StopIteration as ended:
            assert self.leader == token
            assert ended.value > self.fence, "the fences don't grow"
            self.fence, candidate.body = ended.value, None
        else:
            assert isinstance(listen, Listen)
            assert self.leader != token

    def hand_over(self) -> None:
        self.leader = self.queue.pop(0) if self.queue else ""

    def end_term(self) -> None:
        if self.leader and not self.is_handed_over:
            self.deposed.append(self.leader)
        elif self.leader:  # it never knew
            del self.candidates[self.leader]
        self.leader = ""

    def nothing_expires(self) -> None:
        """Grants and places in the queue would end on a slow machine."""
        self.client.pexpire(self.keys.key, 1000 * LONG)
        if self.queue:
            self.client.zadd(self.keys.seen, dict.fromkeys(self.queue, 2**52), xx=True)
            self.client.pexpire(self.keys.seen, 1000 * LONG)
            self.client.pexpire(self.keys.line, 1000 * LONG)


#: a script, a part of it, and a mistake to replace it with
PLANTS: Plants = {
    "locks/_locks": {
        "fences do not grow": (
            "return latest < us and us or draw_fence(keys, caller, latest + 1)",
            "return 1",
        ),
        "newcomers overtake": ("redis.call('GET', key) or hand_over(keys)", "redis.call('GET', key)"),
        "the newest is first": ("'WITHSCORES')[2] or 0) + 1", "'WITHSCORES')[2] or 0) - 1"),
        "nothing is handed over": ("not hand_over(keys)", "true"),
    },
    "locks/release": {
        "anybody releases": ("redis.call('GET', key) ~= token", "not redis.call('GET', key)"),
        "a stopped candidate stays in the queue": ("  leave_queue(line, seen, token)\n", ""),
    },
    "locks/extend": {
        "a deposed leader is not told": (
            "redis.call('GET', lock.key) ~= token",
            "not redis.call('GET', lock.key)",
        ),
    },
}


class TestMachine(MachineTests):
    machine = LeaderMachine
    plants = PLANTS
    quick = ("nothing is handed over", "a stopped candidate stays in the queue")
    errors = (MessagingError,)  # an error of a script is a find, too
