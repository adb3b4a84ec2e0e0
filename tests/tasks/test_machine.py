"""Jobs with unique keys behave like a simple model, also those that replace others, and the state machine
that compares them finds planted bugs."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import MessagingError, conf
from django_redis_messaging.services.jobs.engine import Engine, LeasedJob, Outcome, Push
from tests.support.engines import Performed

from ..support.state_machines import Machine, MachineTests, Plants, one

#: ms: longer than any run; jobs become due and leases expire only by rules
LONG = 3_600_000
KEYS = ("k", "ü k")
QUEUE = "jobs"
MAX_ATTEMPTS = 2


@dataclasses.dataclass
class Job:
    """A job of the model."""

    id: str
    key: str
    payload: str
    replaces: bool
    #: ready, delayed, running or a status in which it has ended
    place: str = "new"
    attempts: int = 0
    lease: LeasedJob | None = None


class UniqueMachine(Machine):
    """Pushes with unique keys, of which some replace waiting jobs, and workers."""

    @initialize()
    def choose_engine(self) -> None:
        engine = Engine(conf.prefix(), "queue", self.name, max_results=1000, result_ttl=LONG)
        self.engine: Any = Performed(engine, conf.alias())
        self.keys = engine.keys
        #: all jobs that were added, the ready ones in their order
        self.jobs: list[Job] = []
        #: unique key → the job that has it
        self.holders: dict[str, Job] = {}
        self.numbers = itertools.count(1)

    def move(self, job: Job, place: str) -> None:
        """Move a job to a place, behind those that are there."""
        self.jobs.remove(job)
        self.jobs.append(job)
        job.place = place

    def at(self, place: str) -> list[Job]:
        return [job for job in self.jobs if job.place == place]

    def end(self, job: Job, status: str) -> None:
        self.move(job, status)
        if self.holders.get(job.key) is job:
            del self.holders[job.key]

    @rule(
        key=st.sampled_from(KEYS), replaces=st.booleans(), delay=st.sampled_from([0, LONG]),
        given_out=st.booleans(), repeats=st.booleans(),
    )  # fmt: skip
    def push(self, key: str, replaces: bool, delay: int, given_out: bool, repeats: bool) -> None:
        """A push, which may be repeated as after a lost reply."""
        number = next(self.numbers)
        new = Job(f"{number}", key, f"payload {number}", replaces)
        more = "task=a.b" + (" replace=1" if replaces else "")
        job = Push(new.id, new.payload, delay, 0, MAX_ATTEMPTS, key, more)
        for _ in range(2 if repeats else 1):
            _, [found] = self.engine.push(QUEUE, f"request {number}", [job], max_aliases=999 * given_out)
        holder = self.holders.get(key)
        if holder is None or (replaces and holder.place == "running"):
            self.jobs.append(new)
            self.holders[key] = holder = new
        elif replaces:
            holder.payload, holder.attempts, holder.replaces = new.payload, 0, True
        if replaces or holder is new:
            self.move(holder, "delayed" if delay else "ready")
        assert found == holder.id
        if given_out:
            assert self.engine.get(new.id).payload.decode() == holder.payload

    @rule()
    def claim(self) -> None:
        jobs = self.engine.claim([QUEUE], 1, LONG).jobs
        expected = self.at("ready")[:1]
        for job in expected:
            job.attempts += 1
            self.move(job, "running")
        assert [(job.lease.id, job.payload.decode(), job.state.attempts) for job in jobs] == [
            (job.id, job.payload, job.attempts) for job in expected
        ]
        for job, leased in zip(expected, jobs, strict=True):
            job.lease = leased

    @precondition(lambda self: self.at("running"))
    @rule(
        at=st.integers(0, 9), expires=st.booleans(),
        outcome=st.sampled_from([Outcome.DONE, Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD]),
    )  # fmt: skip
    def settle(self, at: int, outcome: Outcome, expires: bool) -> None:
        """Settle a lease, or let it expire."""
        job = one(self.at("running"), at)
        if expires:
            self.client.zadd(self.keys.queue(QUEUE).leased, {job.id: 1})
            self.engine.sweep([QUEUE])
            outcome = Outcome.RETRY
        else:
            assert self.engine.settle(
                job.lease.lease.settlement(outcome, LONG if outcome is Outcome.DONE else 0)
            )
        if outcome is Outcome.RELEASE:
            job.attempts -= 1
        if outcome is Outcome.DONE:
            self.end(job, "succeeded")
        elif outcome is Outcome.DEAD or job.attempts == MAX_ATTEMPTS:
            self.end(job, "dead")
        elif job.replaces and self.holders.get(job.key) is not job:
            self.end(job, "cancelled")
        else:
            self.move(job, "ready")

    @precondition(lambda self: self.at("delayed"))
    @rule(at=st.integers(0, 9))
    def becomes_due(self, at: int) -> None:
        job = one(self.at("delayed"), at)
        self.client.zadd(self.keys.queue(QUEUE).delayed, {job.id: 1})
        self.engine.sweep([QUEUE])
        self.move(job, "ready")

    @invariant()
    def places_match(self) -> None:
        places = ("ready", "delayed", "running", "dead")
        assert self.engine.stats(QUEUE)[:4] == [len(self.at(place)) for place in places]

    @invariant()
    def statuses_match(self) -> None:
        expected = {"ready": "waiting", "delayed": "waiting"}
        for job in self.jobs:
            record = self.engine.get(job.id)
            assert record.state.status == expected.get(job.place, job.place)
            assert record.payload.decode() == job.payload


PLANTS: Plants = {
    "jobs/_records": {
        "the arguments of a running job are replaced": (
            "(status_of(text) == 'waiting' or not replaces(more))",
            "true",
        ),
        "a job that runs gives up its key to any other": (
            "(status_of(text) == 'waiting' or not replaces(more))",
            "status_of(text) == 'waiting'",
        ),
    },
    "jobs/push": {
        "all duplicates replace": ("elseif holder and replaces(more) then", "elseif holder then"),
        "no duplicate replaces": ("elseif holder and replaces(more) then", "elseif false then"),
    },
    "jobs/_waiting": {
        "the old arguments stay": ("redis.call('HSET', records.jobs, id, payload)", ""),
        "the delay is not restarted": (
            "state.priority, state.moment = digits(now), max_attempts, priority, digits(due)",
            "state.priority = digits(now), max_attempts, priority; due = tonumber(state.moment)",
        ),
        "the old attempts count": (
            "state.attempts, state.lost, state.first",
            "state.lost, state.lost, state.first",
        ),
    },
    "jobs/_leases": {
        "a superseded job is retried": ("elseif is_superseded(records, id, state) then", "elseif false then"),
        "a superseded job that failed for good is cancelled": (
            "  if state.cancel ~= '-' then",
            "  if state.cancel ~= '-' or is_superseded(records, id, state) then",
        ),
    },
}


@pytest.mark.one_server
class TestMachine(MachineTests):
    machine = UniqueMachine
    plants = PLANTS
    errors = (MessagingError,)
    quick = ("a superseded job is retried", "the delay is not restarted")
