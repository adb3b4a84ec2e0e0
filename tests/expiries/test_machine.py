"""Timers against a model, with random sequences of start, extend, cancel, claim, confirm and settle, and
foreign changes to the real keys. The test makes timers due by itself."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from django_redis_messaging import Expiry, conf
from django_redis_messaging.services.expiries.timers import timer_name
from django_redis_messaging.services.jobs.engine import Outcome
from tests.support.engines import timers

from ..support.listeners import jobs, real_key
from ..support.server import server, server_ms
from ..support.state_machines import Machine, MachineTests, Plants

NAMED = ["a", "b:{c} ☃%"]
NAMES = st.sampled_from(NAMED)
#: seconds: longer than a run takes
LONG = 3600


@dataclass
class Timer:
    """A started timer of the model."""

    id: str
    payload: int
    #: ms left of the real key's TTL when the timer is due, after a foreign change; -1 if it was persisted
    outlives: int = 0


@dataclass
class Model:
    """Waiting timers by name and begun timers by ID."""

    waiting: dict[str, Timer] = field(default_factory=dict)
    begun: dict[str, Timer] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)


class TimerMachine(Machine):
    """Runs each operation on the app and on the model, and compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.namespace = self.name
        self.orders, self.store = Expiry(self.namespace), timers()
        self.model = Model()
        self.numbers = itertools.count()
        #: name and claimed job of each timer that a listener has leased
        self.leased: list[tuple[str, Any]] = []
        self.requests: dict[str, str] = {}

    def key(self, name: str) -> str:
        return real_key(self.namespace, name)

    def due_now(self, name: str) -> None:
        """Make a waiting timer due now."""
        id_ = self.model.waiting[name].id
        queue = jobs().queue(self.namespace)
        if server().zscore(queue.delayed, id_) is not None:
            server().zadd(queue.delayed, {id_: server_ms()})

    @rule(name=NAMES)
    def start(self, name: str) -> None:
        number = next(self.numbers)
        id_ = self.orders.start(name, LONG, number)
        self.model.waiting[name] = Timer(id_, number)

    @rule(name=NAMES, request=st.sampled_from("rs"))
    def start_with_a_request(self, name: str, request: str) -> None:
        number, first_id = next(self.numbers), self.requests.get(f"{name} {request}")
        id_ = self.orders.start(name, LONG, number, request_id=request)
        if first_id is None:
            self.requests[f"{name} {request}"] = id_
            self.model.waiting[name] = Timer(id_, number)
        else:
            assert id_ == first_id

    @rule(name=NAMES)
    def extend(self, name: str) -> None:
        exists = name in self.model.waiting
        assert self.orders.extend(name, 2 * LONG) is exists
        if exists:
            self.model.waiting[name].outlives = 0

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        assert self.orders.cancel(name) is (self.model.waiting.pop(name, None) is not None)

    @rule(name=NAMES, how=st.sampled_from(["delete", "persist", "expire"]))
    def change_key(self, name: str, how: str) -> None:
        if name not in self.model.waiting or not server().exists(self.key(name)):
            return
        if how == "delete":
            server().delete(self.key(name))
            self.model.waiting[name].outlives = 0
        elif how == "persist":
            server().persist(self.key(name))
            self.model.waiting[name].outlives = -1
        else:
            server().expire(self.key(name), 4 * LONG)
            self.model.waiting[name].outlives = 1

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        """Make a waiting timer due and claim it. Its real key expires unless it was changed."""
        name = data.draw(st.sampled_from(sorted(self.model.waiting)))
        timer = self.model.waiting[name]
        if any(job.lease.id == timer.id for _, job in self.leased):
            return
        self.due_now(name)
        if timer.outlives == 0:
            server().delete(self.key(name))
        found = self.store.claim([self.namespace], 500, 600_000).jobs
        for job in found:
            self.leased.append((json.loads(job.payload.split(b"\n")[0]), job))
        assert timer.id in [job.lease.id for job in found]

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), how=st.sampled_from(["delete", "persist", "expire"]))
    def change_key_and_confirm(self, data: st.DataObject, how: str) -> None:
        """Change the real key, then claim and confirm at once."""
        self.change_key(data.draw(st.sampled_from(sorted(self.model.waiting))), how)
        before = list(self.leased)
        self.claim(data)
        for name, job in [one for one in self.leased if one not in before]:
            self.confirm_timer(name, job)

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        self.confirm_timer(*data.draw(st.sampled_from(self.leased)))

    def confirm_timer(self, name: str, job: Any) -> None:
        timer = self.model.waiting.get(name)
        result = self.store.confirm(job, name)
        if job.lease.id in self.model.begun:
            assert result == 0
        elif timer is None or timer.id != job.lease.id or not self.is_current(job):
            assert result == -1
            self.leased.remove((name, job))
        elif timer.outlives == 1:
            assert result > LONG * 1000
            assert self.store.settle(job.lease.settlement(Outcome.RELEASE, result))
            self.leased.remove((name, job))
        else:
            assert result == 0
            assert job.state.attempts == 1
            assert not server().exists(self.key(name))
            self.model.begun[job.lease.id] = self.model.waiting.pop(name)

    def is_current(self, job: Any) -> bool:
        """Whether this is the timer's latest lease, which extend revokes."""
        state = server().hget(jobs().states, job.lease.id)
        return state is not None and f" fence={job.lease.fence} token={job.lease.token} ".encode() in state

    @precondition(lambda self: self.leased)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.DONE, Outcome.RETRY, Outcome.RELEASE]))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        """The handler has returned or raised, or its listener stops."""
        name, job = data.draw(st.sampled_from(self.leased))
        if job.lease.id not in self.model.begun:
            return
        self.leased.remove((name, job))
        timer = self.model.begun[job.lease.id]
        assert job.payload.endswith(f"\n{timer.payload}".encode())
        assert self.store.settle(job.lease.settlement(outcome))
        if outcome is Outcome.DONE:
            self.model.done.append(job.lease.id)
            del self.model.begun[job.lease.id]
            return
        retried = [one for one in self.claim_all() if one.lease.id == job.lease.id]
        if outcome is Outcome.RETRY and job.state.attempts == job.state.max_attempts:
            assert retried == []  # it is dead
            del self.model.begun[job.lease.id]
        else:
            assert [one.state.fence > job.state.fence for one in retried] == [True]

    def claim_all(self) -> list[Any]:
        found = self.store.claim([self.namespace], 500, 600_000).jobs
        self.leased += [(json.loads(one.payload.split(b"\n")[0]), one) for one in found]
        return found

    @invariant()
    def matches_the_model(self) -> None:
        for name in NAMED:
            left, timer = self.orders.remaining(name), self.model.waiting.get(name)
            assert (left is None) is (timer is None)
            unique = timer_name(self.namespace, name)
            is_current = server().hget(jobs().uniques, unique)
            assert (is_current and is_current.decode()) == (timer and timer.id)
        ids = {one.id for one in self.model.waiting.values()} | set(self.model.begun)
        queue = jobs().queue(self.namespace)
        places = [set(server().zrange(key, 0, -1)) for key in (queue.ready, queue.delayed, queue.leased)]
        assert {id_.decode() for id_ in set.union(*places)} == ids
        assert sum(map(len, places)) == len(ids)
        assert not set(self.model.done) & ids

    def teardown(self) -> None:
        for key in list(server().scan_iter(match=f"{conf.prefix()}:*", count=1000)):
            server().delete(key)
        super().teardown()


#: bugs that the machine must find
PLANTS: Plants = {
    "expiries/start": {
        "replaced timers are kept": ("if replaced then", "if false then"),
        "request IDs are ignored": ("if before then", "if false then"),
    },
    "expiries/cancel": {
        "cancel does not release the name": ("release_unique(records, id, unique)", ""),
    },
    "expiries/_timers": {
        "claimed timers stay leased": (" + redis.call('ZREM', queue.leased, id)", ""),
    },
    "expiries/extend": {
        "extended timers are not delayed": (
            "enqueue(queue, records, id, state.priority, due, ",
            "math.max(due, ",
        ),
    },
    "expiries/confirm": {
        "begun timers are not marked": ("state.unique = ''", ""),
        "a remaining TTL is ignored": ("if left > 0 then", "if false then"),
        "persisted keys are not deleted": ("redis.call('DEL', timer)", ""),
        "begin does not release the name": ("release_unique(records, id, state.unique)", ""),
    },
}


class TestMachine(MachineTests):
    machine = TimerMachine
    plants = PLANTS
    quick = ("replaced timers are kept", "claimed timers stay leased")
