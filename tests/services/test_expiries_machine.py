"""Timers against a model, by random histories: what is started, extended, cancelled, claimed, begun and
ended, and what others do to the real keys. Time is in the test's hands: what is due is made so."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_redis_messaging import Expiry, conf
from django_redis_messaging.services.expiries.keys import timer_name
from django_redis_messaging.services.jobs.leases import Outcome
from tests.engines import timers

from .asking import server, server_ms, until
from .listening import jobs, real_key
from .planting import PROFILE, Plant, PlantedBugs

NAMED = ["a", "b:{c} ☃%"]
NAMES = st.sampled_from(NAMED)
#: seconds: longer than a history takes
LONG = 3600
_runs = itertools.count()


@dataclass
class Timer:
    """One start, as the model has it."""

    id: str
    payload: int
    #: ms that the real key lives on, by somebody's hand, when the timer is due; -1 for ever
    outlives: int = 0


@dataclass
class Model:
    """What there is, by name; and what has begun, by id."""

    waiting: dict[str, Timer] = field(default_factory=dict)
    begun: dict[str, Timer] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    """Does everything twice, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.namespace = f"n{next(_runs)}"
        self.orders, self.store = Expiry(self.namespace), timers()
        self.model = Model()
        self.numbers = itertools.count()
        #: what a listener claimed and has not ended, with the name
        self.held: list[tuple[str, Any]] = []
        self.requests: dict[str, str] = {}

    def key(self, name: str) -> str:
        return real_key(self.namespace, name)

    def due_now(self, name: str) -> None:
        """What waits is due: as if its time had gone."""
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
        number, known = next(self.numbers), self.requests.get(f"{name} {request}")
        id_ = self.orders.start(name, LONG, number, request_id=request)
        if known is None:
            self.requests[f"{name} {request}"] = id_
            self.model.waiting[name] = Timer(id_, number)
        else:
            assert id_ == known

    @rule(name=NAMES)
    def extend(self, name: str) -> None:
        there = name in self.model.waiting
        assert self.orders.extend(name, 2 * LONG) is there
        if there:
            self.model.waiting[name].outlives = 0

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        assert self.orders.cancel(name) is (self.model.waiting.pop(name, None) is not None)

    @rule(name=NAMES, how=st.sampled_from(["delete", "persist", "expire"]))
    def others_meddle(self, name: str, how: str) -> None:
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
        """One that waits is due, and a listener claims it; its real key goes with its time."""
        name = data.draw(st.sampled_from(sorted(self.model.waiting)))
        timer = self.model.waiting[name]
        if any(held.lease.id == timer.id for _, held in self.held):
            return
        self.due_now(name)
        if timer.outlives == 0:
            server().delete(self.key(name))
        found = self.store.claim([self.namespace], 500, 600_000).jobs
        for held in found:
            self.held.append((json.loads(held.payload.split(b"\n")[0]), held))
        assert timer.id in [held.lease.id for held in found]

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), how=st.sampled_from(["delete", "persist", "expire"]))
    def others_meddle_and_it_is_due(self, data: st.DataObject, how: str) -> None:
        """And its listener is quick."""
        self.others_meddle(data.draw(st.sampled_from(sorted(self.model.waiting))), how)
        before = list(self.held)
        self.claim(data)
        for name, held in [one for one in self.held if one not in before]:
            self.begin(name, held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        self.begin(*data.draw(st.sampled_from(self.held)))

    def begin(self, name: str, held: Any) -> None:
        timer = self.model.waiting.get(name)
        said = self.store.confirm(held, name)
        if held.lease.id in self.model.begun:
            assert said == 0
        elif timer is None or timer.id != held.lease.id or not self.current(held):
            assert said == -1
            self.held.remove((name, held))
        elif timer.outlives == 1:
            assert said > LONG * 1000
            assert self.store.settle(held.lease.settled(Outcome.RELEASE, said))
            self.held.remove((name, held))
        else:
            assert said == 0
            assert held.state.attempts == 1
            assert not server().exists(self.key(name))
            self.model.begun[held.lease.id] = self.model.waiting.pop(name)

    def current(self, held: Any) -> bool:
        """Whether the lease is the one that counts: extend takes it away."""
        known = server().hget(jobs().states, held.lease.id)
        return known is not None and f" {held.lease.fence} {held.lease.token} ".encode() in known

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.DONE, Outcome.RETRY, Outcome.RELEASE]))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        """A handler has returned, or raised; or its listener has to go."""
        name, held = data.draw(st.sampled_from(self.held))
        if held.lease.id not in self.model.begun:
            return
        self.held.remove((name, held))
        timer = self.model.begun[held.lease.id]
        assert held.payload.endswith(f"\n{timer.payload}".encode())
        assert self.store.settle(held.lease.settled(outcome))
        if outcome is Outcome.DONE:
            self.model.done.append(held.lease.id)
            del self.model.begun[held.lease.id]
        else:
            [again] = [one for one in self.claim_all() if one.lease.id == held.lease.id]
            assert again.state.fence > held.state.fence

    def claim_all(self) -> list[Any]:
        found = self.store.claim([self.namespace], 500, 600_000).jobs
        self.held += [(json.loads(one.payload.split(b"\n")[0]), one) for one in found]
        return found

    @invariant()
    def as_the_model_has_it(self) -> None:
        for name in NAMED:
            left, there = self.orders.remaining(name), self.model.waiting.get(name)
            assert (left is None) is (there is None)
            unique = timer_name(self.namespace, name)
            current = server().hget(jobs().uniques, unique)
            assert (current and current.decode()) == (there and there.id)
        ids = {one.id for one in self.model.waiting.values()} | set(self.model.begun)
        queue = jobs().queue(self.namespace)
        places = [set(server().zrange(key, 0, -1)) for key in (queue.ready, queue.delayed, queue.leased)]
        assert {id_.decode() for id_ in set.union(*places)} == ids
        assert sum(map(len, places)) == len(ids)
        assert not set(self.model.done) & ids

    def teardown(self) -> None:
        for key in list(server().scan_iter(match=f"{conf.prefix()}:*", count=1000)):
            server().delete(key)


def test_any_history() -> None:
    run_state_machine_as_test(Machine, settings=PROFILE)


#: what the machine must find
PLANTS: dict[str, Plant] = {
    "begun, and not marked": ("expiry_confirm", "state.unique = ''", ""),
    "a real key that lives is not looked at": ("expiry_confirm", "if left > 0 then", "if false then"),
    "one made to stay stays": ("expiry_confirm", "redis.call('DEL', timer)", ""),
    "begun, and its name is not free": ("expiry_confirm", "release_unique(records, id, state.unique)", ""),
    "replaced, and the old one stays": ("expiry_start", "if replaced then", "if false then"),
    "a repeat starts again": ("expiry_start", "if before then", "if false then"),
    "cancelled, and its name is not free": ("expiry_cancel", "release_unique(records, id, unique)", ""),
    "a claimed one is left to who has it": ("_timers", " + redis.call('ZREM', queue.leased, id)", ""),
    "extended, and not put aside": (
        "expiry_extend",
        "enqueue(queue, id, state.priority, due, ",
        "math.max(due, ",
    ),
}


class TestPlantedBugs(PlantedBugs):
    machine = Machine
    plants = PLANTS


def test_the_machine_reaches_what_it_is_for() -> None:
    """A timer that outlives its due time, begun at last: the way the rules go, by hand."""
    machine = Machine()
    machine.start("a")
    machine.others_meddle("a", "expire")
    machine.due_now("a")
    [held] = machine.store.claim([machine.namespace], 1, 60_000).jobs
    assert machine.store.confirm(held, "a") > LONG * 1000
    assert machine.store.settle(held.lease.settled(Outcome.RELEASE, 1))
    server().delete(machine.key("a"))
    until(lambda: machine.claim_all())
    [(name, again)] = machine.held
    assert machine.store.confirm(again, name) == 0
