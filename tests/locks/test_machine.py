"""Compares Lock with a model; and checks that the machine finds planted bugs."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import LimitExceeded, Lock, LockError, LockNotOwnedError, MessagingError, conf
from django_redis_messaging.core.operations import Listen, Script
from django_redis_messaging.services.common import waiters
from django_redis_messaging.services.locks import lock as locks
from django_redis_messaging.services.locks.lock import LockKeys

from ..support.scripts import Planting
from ..support.server import reply_to, steps
from ..support.state_machines import Machine, MachineTests, Plants, one, run

#: seconds; each is longer than any run, so that only a rule ends a lease, a grant or a place in the queue
LEASE, GRANT, TICKET, MORE, LESS = 10_000, 1000, 72_000, 200_000, 5000
#: seconds that a waiting client waits at most
PATIENCE = 10_000_000
#: seconds by which a TTL may differ from the model's: a slow machine
TOLERANCE = 300
#: ms; a time in the past
PAST = 1
#: maximum length of the queue
MAX_WAITING = 5
callers = st.integers(0, 7)
times = st.integers(1, 2)
extensions = st.sampled_from(["add", "replace", "reacquire"])
leases = st.sampled_from([LEASE, LEASE, None])


class Model:
    """A lock: its holder, and its waiting clients in order."""

    def __init__(self) -> None:
        self.holder = ""
        #: the holder's lease in seconds; None for none
        self.lease: float | None = None
        #: the client that drew the latest fence
        self.latest = ""
        self.queue: list[str] = []
        #: waiting clients that have not polled in time
        self.dead: set[str] = set()

    def poll(self, token: str, lease: float | None, *, stays: bool) -> bool | None:
        """Whether the client has the lock; None if the queue is full."""
        if not self.holder:
            self.pass_on(token)
        if self.holder == token:
            self.lease, self.latest = lease, token
            return True
        if not stays:
            self.remove(token)
            return False
        if token not in self.queue:
            if len(self.queue) == MAX_WAITING:
                return None
            self.queue.append(token)
        self.dead.discard(token)
        return False

    def pass_on(self, token: str = "") -> None:
        """Give the lock to the first waiting client, else to this one."""
        self.holder, self.lease = token, GRANT
        while self.queue:
            first = self.queue.pop(0)
            if first not in self.dead:
                self.holder = first
                return
            self.dead.remove(first)

    def remove(self, token: str) -> None:
        if token in self.queue:
            self.queue.remove(token)
            self.dead.discard(token)


@dataclass
class Client:
    """A client, its lock object, and the steps of its call."""

    token: str
    lock: Lock
    lease: float | None
    body: Any
    #: the latest poll, whose repeat after a lost reply has no other effect
    poll: Any = None
    #: what it waits for
    listen: Any = None
    #: a release that had no reply yet
    releasing: Any = None


if_held = precondition(lambda self: self.model.holder in self.holders)
if_asleep = precondition(lambda self: self.asleep)


class LockMachine(Machine):
    """Clients by token, each with its own object; leases that end, and clients that die."""

    @initialize(ahead=st.booleans())
    def begin(self, ahead: bool) -> None:
        self.model = Model()
        self.key = Lock(self.name).key
        self.keys = LockKeys(conf.prefix(), self.key)
        self.others = sorted({*self.keys.with_ring} - {self.key})
        self.tokens = (f"t {number}" for number in itertools.count())
        self.asleep: dict[str, Client] = {}
        #: clients that acquired it, also those whose lease ended since
        self.holders: dict[str, Client] = {}
        #: clients whose release had no reply yet
        self.unanswered: dict[str, Client] = {}
        self.now = time.monotonic()
        self.patch(locks, "monotonic", lambda: self.now)
        self.patch(locks, "MAX_WAITING", MAX_WAITING)
        self.patch(waiters, "monotonic", lambda: self.now)
        self.patch(waiters, "MAX_OTHERS", 0)  # clients of different processes
        self.highest = 0
        self.ahead = ahead
        if ahead:  # the clock was ahead of today's: after a failover, for example
            self.highest = 2 * int(time.time() * 1_000_000)
            self.client.set(self.keys.fence, f"{self.highest} - x", px=1_000_000_000)

    # Actions of callers

    @rule(lease=leases, times=times, clients=st.integers(1, 3))
    def come_and_wait(self, lease: float | None, times: int, clients: int) -> None:
        for _ in range(clients):
            self.go_on(self.arrive(lease, blocking=True), times)

    @rule(lease=leases, times=times)
    def come_and_try(self, lease: float | None, times: int) -> None:
        self.go_on(self.arrive(lease, blocking=False), times, stays=False)

    @if_asleep
    @rule(at=callers, times=times)
    def poll(self, at: int, times: int) -> None:
        """Also a client that did not poll for so long that it lost its place."""
        self.wake(one(self.asleep.values(), at), times)

    @precondition(lambda self: self.model.holder in self.asleep)
    @rule(times=times)
    def confirm(self, times: int) -> None:
        self.wake(self.asleep[self.model.holder], times)

    @if_asleep
    @rule(at=callers, times=times)
    def give_up(self, at: int, times: int) -> None:
        """The last poll, when blocking_timeout ends."""
        self.now += PATIENCE
        self.wake(one(self.asleep.values(), at), times, stays=False)
        self.now -= PATIENCE

    @if_asleep
    @rule(at=callers, times=times)
    def interrupt(self, at: int, times: int) -> None:
        """It leaves the queue, or releases what it was handed."""
        client = self.asleep.pop(one(self.asleep.values(), at).token)
        held = self.model.holder == client.token
        for _ in range(times):
            assert run(client.lock._leave, client.token.encode()) is held
        self.released(client.token)

    @if_held
    @rule()
    def repeat_acquire(self) -> None:
        """Repeat a call whose reply was lost."""
        client = self.holders[self.model.holder]
        self.model.lease = client.lease
        assert reply_to(client.poll) == client.lock.fence

    @if_held
    @rule()
    def wait_for_itself(self) -> None:
        """It gets an error instead of waiting for ever."""
        lock = self.holders[self.model.holder].lock
        self.refusal(lock._acquire, lock._attempt(True, None, "again"))

    @if_held
    @rule(times=times)
    def release(self, times: int) -> None:
        client = self.holders.pop(self.model.holder)
        run(client.lock.release, times=times)
        self.released(client.token)
        self.refusal(client.lock.release)

    @if_held
    @rule()
    def release_without_a_reply(self) -> None:
        client = self.holders.pop(self.model.holder)
        client.releasing = steps(client.lock.release)
        client.poll = next(client.releasing)
        reply_to(client.poll)
        self.released(client.token)
        self.unanswered[client.token] = client

    @precondition(lambda self: self.unanswered)
    @rule(at=callers)
    def repeat_release(self, at: int) -> None:
        """Repeat it after others may have acquired and released the lock."""
        client = self.unanswered.pop(one(self.unanswered.values(), at).token)
        with suppress(StopIteration):
            client.releasing.send(reply_to(client.poll))

    @if_held
    @rule(times=times, verb=extensions)
    def extend(self, times: int, verb: str) -> None:
        client, lease = self.holders[self.model.holder], self.model.lease
        if lease is None:
            self.refusal(*self.extension(client.lock, verb), times=times)
            return
        assert run(*self.extension(client.lock, verb), times=times) is True
        self.model.lease = {"add": lease + MORE, "replace": LESS, "reacquire": LEASE}[verb]

    @if_held
    @rule(times=times, extended=st.booleans())
    def renew(self, times: int, extended: bool) -> None:
        """As in the background; it ends if the lock has no lease, and never shortens an extended one."""
        if extended:
            self.extend(1, "add")
        renewed = self.renewal(self.model.holder, times)
        assert bool(renewed) is (self.model.lease is not None)
        if self.model.lease is not None:
            self.model.lease = max(self.model.lease, LEASE)

    @precondition(lambda self: self.late)
    @rule(at=callers, times=times, verb=extensions)
    def act_after_the_lease(self, at: int, times: int, verb: str) -> None:
        client = one(self.late.values(), at)
        assert not self.renewal(client.token, times)
        error = self.refusal(*self.extension(client.lock, verb), times=times)
        assert isinstance(error, LockNotOwnedError) is (client.lease is not None)
        assert isinstance(self.refusal(client.lock.release, times=times), LockNotOwnedError)
        self.refusal(client.lock.release)
        del self.holders[client.token]

    # Events

    @precondition(lambda self: self.model.holder)
    @rule()
    def end_the_lease(self) -> None:
        self.client.delete(self.key)
        self.model.holder = ""

    @if_asleep
    @rule(at=callers, returns=st.sampled_from(["now", "later", "never"]))
    def stop_polling(self, at: int, returns: str) -> None:
        """It is paused for longer than its ticket is valid, or dies."""
        client = one(self.asleep.values(), at)
        if client.token in self.model.queue:
            self.client.zadd(self.keys.seen, {client.token: PAST})
            self.model.dead.add(client.token)
        if returns == "now":
            self.wake(client, 1)
        elif returns == "never":
            del self.asleep[client.token]

    @rule(release=st.booleans())
    def use_by_another_program(self, release: bool) -> None:
        """redis-py's Lock, which doesn't queue."""
        taken = self.client.set(self.key, "theirs", nx=True, px=1000 * LEASE)
        assert bool(taken) is not bool(self.model.holder)
        if taken:
            self.model.holder, self.model.lease = "theirs", LEASE
        if release and self.model.holder == "theirs":
            self.end_the_lease()

    @precondition(lambda self: not self.ahead)
    @rule()
    def lose_all_data(self) -> None:
        """As in a failover."""
        self.client.delete(self.key, *self.others)
        self.model = Model()
        self.unanswered.clear()

    # Invariants

    @invariant()
    def the_lock_is_as_in_the_model(self) -> None:
        asked = self.client.pipeline(transaction=False).get(self.key).zrange(self.keys.line, 0, -1)
        asked.zrange(self.keys.seen, 0, -1, withscores=True)
        for key in (self.key, *self.others):
            asked.pttl(key)
        holder, queue, seen, ttl, *ttls = asked.execute()
        assert (holder or b"").decode() == self.model.holder
        assert [token.decode() for token in queue] == self.model.queue
        assert {token for token, _ in seen} == set(queue)
        assert {token.decode() for token, polled in seen if polled == PAST} == self.model.dead
        self.check_ttls(ttl, {key: left for key, left in zip(self.others, ttls, strict=True) if left != -2})

    @invariant()
    def the_next_holder_is_woken(self) -> None:
        if client := self.asleep.get(self.model.holder):
            assert self.arrived(client), "it would not be woken"

    # Helpers

    def refusal(self, operation: Any, *args: Any, times: int = 1) -> LockError:
        """The error of an operation that fails."""
        try:
            run(operation, *args, times=times)
        except LockError as error:
            return error
        raise AssertionError("it was not refused")

    def renewal(self, token: str, times: int) -> Any:
        step = Script("locks/extend", self.keys.all, (token, 1000 * LEASE, "keep", "-"))
        return [reply_to(step) for _ in range(times)][-1]

    def extension(self, lock: Lock, verb: str) -> tuple[Any, ...]:
        words = {"add": (MORE,), "replace": (LESS, True), "reacquire": ()}[verb]
        return (lock.reacquire if verb == "reacquire" else lock.extend, *words)

    def arrive(self, lease: float | None, *, blocking: bool) -> Client:
        token = next(self.tokens)
        lock = Lock(self.name, timeout=lease, blocking_timeout=PATIENCE)
        body = steps(lock._acquire, lock._attempt(blocking, None, token))
        return Client(token, lock, lease, body, next(body))

    def wake(self, client: Client, times: int, *, stays: bool = True) -> None:
        woken = self.arrived(client)
        if not woken:
            self.now += 1  # so that it polls
        client.poll = client.body.send(woken)
        self.go_on(client, times, stays=stays)

    def go_on(self, client: Client, times: int, *, stays: bool = True) -> None:
        """Poll: it gets the lock, waits, or leaves."""
        self.asleep.pop(client.token, None)
        drew = self.model.latest == client.token
        expected = [self.model.poll(client.token, client.lease, stays=stays) for _ in range(times)][-1]
        replies = [reply_to(client.poll) for _ in range(times)]
        try:
            client.listen = client.body.send(replies[-1])
        except StopIteration as stop:
            assert (stop.value > 0) is expected
            if expected:
                assert stop.value == replies[0]
                assert stop.value > self.highest or drew
                self.highest = stop.value
                holding = client.lock._holding
                holding.token, holding.fence = client.token.encode(), stop.value
                self.holders[client.token] = client
        except LimitExceeded as error:
            assert expected is None
            assert (error.limit, error.actual) == (MAX_WAITING, MAX_WAITING + 1)
        else:
            assert expected is False
            self.asleep[client.token] = client
            self.check_the_wait(client)

    def check_ttls(self, ttl: int, others: dict[str, int]) -> None:
        """The lock has its lease, and nothing else stays for ever."""
        if self.model.holder:
            lease = self.model.lease
            assert ttl == -1 if lease is None else abs(lease - ttl / 1000) < TOLERANCE
        assert all(left > 0 for left in others.values()), others
        assert others.get(self.keys.releases, 0) <= 60_000
        if self.model.holder in self.holders:
            assert others[self.keys.fence] >= ttl

    def check_the_wait(self, client: Client) -> None:
        assert isinstance(client.listen, Listen)
        first = self.model.queue[0] == client.token
        longest = TICKET / 20 if first and self.model.holder != self.model.latest else TICKET / 4
        if self.model.lease is not None:
            longest = min(longest, self.model.lease)
        assert abs(client.listen.seconds - longest) < TOLERANCE

    def arrived(self, client: Client) -> Any:
        """The wake-up that has arrived, if any."""
        assert client.listen.match == client.token.encode()
        reply = self.client.execute_command(*client.listen.words)
        for_it = reply and any(client.listen.match in fields.values() for _, fields in reply[0][1])
        return reply if for_it else None

    def released(self, token: str) -> None:
        """It released the lock or left the queue."""
        if self.model.holder == token:
            self.model.pass_on()
        else:
            self.model.remove(token)

    @property
    def late(self) -> dict[str, Client]:
        """The clients whose lease has ended."""
        return {token: client for token, client in self.holders.items() if token != self.model.holder}


@pytest.fixture(autouse=True)
def slow_clocks(plant: Planting) -> None:
    """Grants and places in the queue end only by a rule."""
    plant(("locks/_locks", "GRANT = 1000 ", f"GRANT = {1000 * GRANT} "))
    plant(("locks/_locks", "TICKET = 2000 ", f"TICKET = {1000 * TICKET} "))


#: a script, a part of it, and a mistake to replace it with
PLANTS: Plants = {
    "locks/release": {
        "anybody releases": ("redis.call('GET', key) ~= token", "not redis.call('GET', key)"),
        "a release is not remembered": ("'LPUSH', releases, token", "'LLEN', releases"),
        "only the latest release is remembered": (
            "redis.call('LPUSH', releases, token)",
            "redis.call('LPUSH', releases, redis.call('DEL', releases), token)",
        ),
        "a release is remembered for ever": ("redis.call('PEXPIRE', releases, memory)\n", ""),
        "an interrupted client stays in the queue": ("  leave_queue(line, seen, token)\n", ""),
    },
    "locks/extend": {
        "anybody extends": ("redis.call('GET', lock.key) ~= token", "not redis.call('GET', lock.key)"),
        "an extension is added twice": ("if previous == request then", "if false then"),
        "an extension replaces": ("ms = ms + remaining", "ms = ms + 0"),
        "an extension is not bounded": ("if remaining < 0 then", "if false then"),
        "a renewal shortens": ("ms = math.max(ms, remaining)", "ms = ms + 0"),
        "a renewal lengthens": ("ms = math.max(ms, remaining)", "ms = ms + remaining"),
    },
    "locks/_locks": {
        "fences without the clock": (
            "draw_fence(keys, caller, microseconds())",
            "draw_fence(keys, caller, 1)",
        ),
        "fences without the counter": ("latest < us and us", "us"),
        "fences do not grow": (
            "return latest < us and us or draw_fence(keys, caller, latest + 1)",
            "return 1",
        ),
        "a repeat draws a fence": ("owner == token and tonumber(latest) or", ""),
        "a handed lock draws no fence": ("owner == token and tonumber(latest)", "tonumber(latest)"),
        "newcomers overtake": (
            "redis.call('EXISTS', line) == 0 and set_lock(key, caller)",
            "set_lock(key, caller)",
        ),
        "a holder waits for itself": ("caller.other_token ~= '' and holder == caller.other_token", "false"),
        "the last poll overtakes": (
            "and redis.call('EXISTS', line) == 0 then",
            "or caller.max_waiting == 0 then",
        ),
        "a grant is not extended": ("redis.call('PEXPIRE', key, lease)", "redis.call('PTTL', key)"),
        "a lock without a lease expires": ("redis.call('PERSIST', key)", "redis.call('PTTL', key)"),
        "who gives up stays": ("    leave_queue(line, seen, token)\n    return 0", "    return 0"),
        "each poll draws a ticket": ("if not ticket then", "if true then"),
        "the newest is first": ("'WITHSCORES')[2] or 0) + 1", "'WITHSCORES')[2] or 0) - 1"),
        "the queue has no maximum": ("if waiting >= caller.max_waiting then", "if false then"),
        "a full queue ends no wait": ("waiting >= caller.max_waiting", "waiting > caller.max_waiting"),
        "a poll is not noticed": ("'ZADD', seen, now, token", "'ZADD', seen, 'NX', now, token"),
        "the queue does not expire": ("if updated == 0 then -- the queue did not exist", "if false then"),
        "polls do not expire": ("  redis.call('PEXPIRE', seen, 2 * TICKET)\n", ""),
        "waiting for longer than the lease": ("if remaining >= 0 then", "if false then"),
        "other programs are not polled": ("    wait = wait / 5\n", ""),
        "a release hands nothing over": ("not hand_over(keys)", "true"),
        "a fence expires before the lock": ("math.max(DAY, 2 * lease)", "DAY"),
        "the dead are handed the lock": ("tonumber(polled) > now - TICKET", "true"),
        "the last comes first": ("redis.call('ZPOPMIN', line)", "redis.call('ZPOPMAX', line)"),
        "polls of former holders stay": ("    redis.call('ZREM', seen, first[1])\n", ""),
        "a grant does not expire": ("token, 'PX', GRANT)", "token)"),
        "nobody is woken": ("digits(us) .. '-0', 't', token)", "'1-0', 't', token)"),
        "another client is woken": ("keys[RING + place_of(keys, ticket)]", "keys[RING]"),
        "wake-ups do not expire": ("    redis.call('PEXPIRE', wake, 2 * TICKET)\n", ""),
    },
}


class TestMachine(MachineTests):
    machine = LockMachine
    plants = PLANTS
    quick = ("fences do not grow", "polls do not expire")
    errors = (MessagingError,)  # an error of a script is a find, too
