"""Compares MultiLock, beside Lock, with a model; and checks that the machine finds planted bugs."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from django_redis_messaging import Lock, LockNotOwnedError, MessagingError, MultiLock, conf
from django_redis_messaging.core.operations import Listen
from django_redis_messaging.services.common import waiters
from django_redis_messaging.services.locks import lock as locks
from django_redis_messaging.services.locks import multilock
from django_redis_messaging.services.locks.lock import LockKeys

from ..support.scripts import Planting
from ..support.server import reply_to, steps
from ..support.state_machines import PROFILE, Machine, MachineTests, Plants, one

#: seconds; each is longer than any run, so that only a rule ends a lease, a grant or a place in the queue
LEASE, GRANT, TICKET, MORE, LESS = 10_000, 1000, 72_000, 200_000, 5000
#: seconds that a waiting client waits at most
PATIENCE = 10_000_000
#: seconds by which a TTL may differ from the model's: a slow machine
TOLERANCE = 300
#: ms; a time in the past
PAST = 1
clients = st.integers(0, 7)
times = st.integers(1, 2)


@dataclass
class ModelLock:
    """One lock: its holder, and its waiting clients in order."""

    holder: str = ""
    lease: float = 0
    queue: list[str] = field(default_factory=list)
    #: waiting clients that have not polled in time
    dead: set[str] = field(default_factory=set)

    def pass_on(self) -> None:
        """Free the lock, or give it to the first waiting client."""
        self.holder = ""
        while self.queue and not self.holder:
            first = self.queue.pop(0)
            if first in self.dead:
                self.dead.remove(first)
            else:
                self.holder, self.lease = first, GRANT

    def give_up(self, token: str) -> None:
        if self.holder == token:
            self.pass_on()
        elif token in self.queue:
            self.queue.remove(token)
            self.dead.discard(token)


@dataclass
class Client:
    """A client that wants one lock, or several."""

    lock: Any
    token: str
    names: list[str]
    attempt: Any
    body: Any
    listen: Any = None


if_asleep = precondition(lambda self: self.asleep)
if_held = precondition(lambda self: self.holders)


class MultiLockMachine(Machine):
    """Each call of a client runs until it waits or ends; its steps may be repeated, as after lost replies."""

    @initialize()
    def begin(self) -> None:
        self.names = [f"{self.name} {part}" for part in "abc"]
        self.keys = {name: LockKeys(conf.prefix(), Lock(name).key) for name in self.names}
        self.model = {name: ModelLock() for name in self.names}
        self.asleep: dict[str, Client] = {}
        #: clients that acquired all of theirs, also those that lost some since
        self.holders: dict[str, Client] = {}
        self.highest = dict.fromkeys(self.names, 0)
        self.now = time.monotonic()
        for module in (locks, multilock, waiters):
            self.patch(module, "monotonic", lambda: self.now)
        self.patch(waiters, "MAX_OTHERS", 0)  # clients of different processes

    @rule(wanted=st.sets(st.integers(0, 2), min_size=1), blocking=st.booleans(), times=times)
    def arrive(self, wanted: set[int], blocking: bool, times: int) -> None:
        names = [self.names[at] for at in sorted(wanted)]
        lock: Any
        if len(names) == 1:
            lock = Lock(names[0], timeout=LEASE, blocking_timeout=PATIENCE)
            attempt = lock._attempt(blocking, None, None)
            token = attempt.token
        else:
            lock = MultiLock(names, timeout=LEASE, blocking_timeout=PATIENCE)
            attempt = lock._attempts(blocking, None)
            token = attempt[0].token
        client = Client(lock, token.decode(), names, attempt, steps(lock._acquire, attempt))
        self.go_on(client, next(client.body), times, stays=blocking)

    @if_asleep
    @rule(at=clients, times=times)
    def poll(self, at: int, times: int) -> None:
        self.wake(one(self.asleep.values(), at), times)

    @if_asleep
    @rule(at=clients, times=times)
    def give_up(self, at: int, times: int) -> None:
        """The last poll, when blocking_timeout ends."""
        self.now += PATIENCE
        self.wake(one(self.asleep.values(), at), times, stays=False)
        self.now -= PATIENCE

    @if_asleep
    @rule(at=clients, times=times)
    def interrupt(self, at: int, times: int) -> None:
        client = one(self.asleep.values(), at)
        del self.asleep[client.token]
        client.body.close()
        self.finish(steps(client.lock._leave, client.token.encode()), times)
        for name in client.names:
            self.model[name].give_up(client.token)

    @if_asleep
    @rule(at=clients, returns=st.booleans())
    def stop_polling(self, at: int, returns: bool) -> None:
        """It is paused until its ticket and its leases have ended, or dies."""
        client = one(self.asleep.values(), at)
        for name in client.names:
            lock = self.model[name]
            if client.token in lock.queue:
                self.client.zadd(self.keys[name].seen, {client.token: PAST})
                lock.dead.add(client.token)
            elif lock.holder == client.token:
                self.end_the_lease(name)
        if returns:
            self.wake(client, 1)
        else:
            del self.asleep[client.token]

    @if_held
    @rule(at=clients, times=times)
    def release(self, at: int, times: int) -> None:
        client = one(self.holders.values(), at)
        lost = self.lost(client)
        with self.refused(lost):
            self.finish(steps(client.lock.release), times)
        del self.holders[client.token]
        for name in client.names:
            self.model[name].give_up(client.token)

    @if_held
    @rule(at=clients, times=times, verb=st.sampled_from(["add", "replace", "reacquire"]))
    def extend(self, at: int, times: int, verb: str) -> None:
        client = one(self.holders.values(), at)
        words = {"add": (MORE,), "replace": (LESS, True), "reacquire": ()}[verb]
        operation = client.lock.reacquire if verb == "reacquire" else client.lock.extend
        lost = self.lost(client)
        with self.refused(lost):
            self.finish(steps(operation, *words), times)
        for name in set(client.names) - set(lost):
            lock = self.model[name]
            lock.lease = {"add": lock.lease + MORE, "replace": LESS, "reacquire": LEASE}[verb]

    @rule(at=clients)
    def lose_a_lease(self, at: int) -> None:
        self.end_the_lease(one(self.names, at))

    @rule(at=clients)
    def use_by_another_program(self, at: int) -> None:
        """A client that neither queues nor waits. Its lease is ended by a rule."""
        name = one(self.names, at)
        if self.client.set(self.keys[name].key, "theirs", nx=True, px=1000 * LEASE):
            assert not self.model[name].holder
            self.model[name].holder, self.model[name].lease = "theirs", LEASE

    @rule()
    def all_who_wait_acquire_at_last(self) -> None:
        """No two wait for each other."""
        for _ in range(len(self.asleep) + 1):
            for name in self.names:
                if self.model[name].holder not in self.asleep:
                    self.end_the_lease(name)
            self.holders.clear()
            for client in list(self.asleep.values()):
                self.wake(client, 1)
        assert not self.asleep

    @invariant()
    def the_locks_are_as_in_the_model(self) -> None:
        for name, lock in self.model.items():
            keys = self.keys[name]
            asked = self.client.pipeline(transaction=False).get(keys.key).pttl(keys.key)
            holder, ttl, queue, seen = asked.zrange(keys.line, 0, -1).zrange(keys.seen, 0, -1).execute()
            assert (holder or b"").decode() == lock.holder
            assert [token.decode() for token in queue] == lock.queue
            assert set(seen) == set(queue)
            assert not holder or abs(lock.lease - ttl / 1000) < TOLERANCE

    @invariant()
    def who_waits_holds_none_after_the_busy_one(self) -> None:
        for client in self.asleep.values():
            queued = [name for name in client.names if client.token in self.model[name].queue]
            assert len(queued) <= 1
            held = [name for name in client.names if self.model[name].holder == client.token]
            assert not queued or all(name < queued[0] for name in held)

    @invariant()
    def the_next_holder_is_woken(self) -> None:
        for lock in self.model.values():
            client = self.asleep.get(lock.holder)
            assert client is None or lock.lease != GRANT or self.arrived(client), "it would not be woken"

    # Helpers

    def wake(self, client: Client, times: int, *, stays: bool = True) -> None:
        woken = self.arrived(client)
        if not woken:
            self.now += 1  # so that it polls
        del self.asleep[client.token]
        self.go_on(client, client.body.send(woken), times, stays=stays)

    def go_on(self, client: Client, step: Any, times: int, *, stays: bool) -> None:
        """Run it until it waits or ends."""
        drew = {name for name in client.names if self.model[name].holder == client.token}
        expected = self.expect(client, stays)
        try:
            while not isinstance(step, Listen):
                step = client.body.send([reply_to(step) for _ in range(times)][-1])
        except StopIteration as stop:
            assert bool(stop.value) is expected
            if expected:
                self.acquired(client, stop.value, drew)
        else:
            assert expected is None
            assert step.match == client.token.encode()
            assert self.busy(client) == [
                name for name in client.names if step.stream.startswith(self.keys[name].all[0] + ":wake")
            ]
            client.listen = step
            self.asleep[client.token] = client

    def expect(self, client: Client, stays: bool) -> bool | None:
        """What the model does: True if all are acquired, False if none, None if it waits."""
        for at, name in enumerate(client.names):
            lock = self.model[name]
            if not lock.holder:
                lock.pass_on()
                lock.holder = lock.holder or client.token
            if lock.holder == client.token:
                lock.lease = LEASE
                continue
            if stays and client.token not in lock.queue:
                lock.queue.append(client.token)
            lock.dead.discard(client.token)
            for other in client.names[at + 1 if stays else 0 :]:
                self.model[other].give_up(client.token)
            return None if stays else False
        return True

    def acquired(self, client: Client, found: Any, drew: set[str]) -> None:
        fences = [found] if isinstance(found, int) else found
        client.lock._store(client.attempt, found)
        for name, fence in zip(client.names, fences, strict=True):
            assert fence > self.highest[name] or name in drew
            self.highest[name] = fence
        self.holders[client.token] = client

    def busy(self, client: Client) -> list[str]:
        return [name for name in client.names if client.token in self.model[name].queue]

    def arrived(self, client: Client) -> Any:
        """The wake-up that has arrived, if any."""
        reply = self.client.execute_command(*client.listen.words)
        return (
            reply
            if reply and any(client.listen.match in entry.values() for _, entry in reply[0][1])
            else None
        )

    def lost(self, client: Client) -> list[str]:
        return [name for name in client.names if self.model[name].holder != client.token]

    def refused(self, lost: list[str]) -> Any:
        return pytest.raises(LockNotOwnedError, match=lost[0]) if lost else nullcontext()

    def finish(self, body: Any, times: int) -> None:
        step = next(body)
        with suppress(StopIteration):
            while True:
                step = body.send([reply_to(step) for _ in range(times)][-1])

    def end_the_lease(self, name: str) -> None:
        self.client.delete(self.keys[name].key)
        self.model[name].holder = ""


@pytest.fixture(autouse=True)
def slow_clocks(plant: Planting) -> None:
    """Grants and places in the queue end only by a rule."""
    plant(("locks/_locks", "GRANT = 1000 ", f"GRANT = {1000 * GRANT} "))
    plant(("locks/_locks", "TICKET = 2000 ", f"TICKET = {1000 * TICKET} "))


PLANTS: Plants = {
    "locks/acquire_all": {
        "it waits for several": ("and at or nil\n", "and nil or nil\n"),
        "later ones are kept": ("    if caller.has_waited then", "    if false then"),
        "none is released": ("redis.call('GET', keys[1]) == caller.token", "false"),
        "a queue is not left": ("    leave_queue(keys[3], keys[4], caller.token)\n", ""),
        "nobody is handed what it gives up": ("    free(keys)\n", "    redis.call('DEL', keys[1])\n"),
        "the keys of the first": ("(at - 1) * length + 1, at * length", "1, length"),
    },
}


@pytest.mark.timeout(600)  # the large form
class TestMachine(MachineTests):
    machine = MultiLockMachine
    plants = PLANTS
    quick = ("later ones are kept", "none is released")
    errors = (MessagingError,)  # an error of a script is a find, too

    @pytest.mark.one_server
    def test_one_server_behaves_as_the_model_too(self) -> None:
        """It gets all locks in one call; a Cluster gets a call for each."""
        run_state_machine_as_test(self.machine, settings=PROFILE)
