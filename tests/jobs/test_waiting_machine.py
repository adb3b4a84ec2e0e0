"""Jobs with needs behave like a simple model: nothing runs that must wait, and after a claim that takes all
that it can get, no job of its queues waits for what is free."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import conf
from django_redis_messaging.core.operations import Command, Steps, perform
from django_redis_messaging.services.jobs.engine import Engine, Lease, Outcome, Push, Settlement
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.engines import Performed

from ..support.server import server_ms
from ..support.state_machines import Machine, MachineTests, Plants, one

#: ms: longer than any run; jobs become due, leases expire and tokens come only by rules
LONG = 3_600_000
QUEUES = ("q", "r r")
TASKS = ("t", "u")
LIMITS = {"lock:a": 1, "lock:b": 1, "permit:p%20p": 2}
RATE = "rate:a/2/7200000"
NEEDS = ("", "", "lock:a", "lock:b", "lock:a,lock:b", "lock:b,permit:p%20p/2", "permit:p%20p/2", RATE)
NEEDS += (f"lock:a,{RATE}", f"permit:p%20p/2,{RATE}")


@dataclasses.dataclass
class ModelJob:
    """A job of the model."""

    id: str
    queue: str
    task: str
    needs: str
    priority: int
    #: order in which jobs became ready
    order: int
    lease: Lease | None = None
    delayed: bool = False
    expired: bool = False

    @property
    def waits(self) -> bool:
        return self.lease is None and not self.delayed

    @property
    def names(self) -> list[str]:
        """The names of its needs."""
        return [need.partition("/")[0] if need[0] == "p" else need for need in self.needs.split(",") if need]


class TaskEngine(Engine):
    """As the engine of tasks."""

    counts_lost = True


numbers = st.integers(0, 9)


class WaitingMachine(Machine):
    """Two queues with jobs of two tasks. Time passes only by rules."""

    @initialize()
    def begin(self) -> None:
        self.engine = Performed(TaskEngine(conf.prefix(), "tasks", self.name), conf.alias())
        self.keys = JobKeys(conf.prefix(), "tasks", self.name)
        self.jobs: dict[str, ModelJob] = {}
        self.orders = itertools.count()
        self.paused: set[str] = set()
        self.limit: int | None = None
        self.tokens = 2

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            super().teardown()

    # What the model knows

    def next_order(self) -> int:
        """The order of a job that becomes ready now; in one ms it would not be defined."""
        before = server_ms()
        while server_ms() == before:
            pass
        return next(self.orders)

    def held(self) -> Counter[str]:
        leased = [job for job in self.jobs.values() if job.lease is not None]
        return Counter(name for job in leased for name in job.names if name != RATE)

    def is_free(self, name: str) -> bool:
        if name == RATE:
            return self.tokens > 0
        limit = self.limit if name[0] == "p" and self.limit is not None else LIMITS[name]
        return self.held()[name] < limit

    def may_run(self, job: ModelJob) -> bool:
        is_paused = bool({job.queue, job.task} & self.paused)
        return job.waits and not is_paused and all(map(self.is_free, job.names))

    # Rules

    @rule(
        queue=st.sampled_from(QUEUES), task=st.sampled_from(TASKS), needs=st.sampled_from(NEEDS),
        priority=st.sampled_from([0, 0, 0, 5]), count=st.sampled_from([1, 1, 2, 3]),
    )  # fmt: skip
    def push(self, queue: str, task: str, needs: str, priority: int, count: int) -> None:
        more = f"task={task}" + (f" needs={needs}" if needs else "")
        for _ in range(count):
            order = self.next_order()
            job_id = f"job {order}"
            self.engine.push(queue, "", [Push(job_id, '"x"', 0, priority, 99, "", more)])
            self.jobs[job_id] = ModelJob(job_id, queue, task, needs, priority, order)

    @rule(
        queues=st.sampled_from([QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]]),
        count=st.sampled_from([1, 2, 50, 50]),
    )
    def claim(self, queues: tuple[str, ...], count: int) -> None:
        self.take(queues, count)

    def take(self, queues: tuple[str, ...], count: int, settlements: list[Settlement] | None = None) -> None:
        """Claim jobs; each one may run. If fewer are claimed than wanted, no other one may."""
        claimed = self.engine.claim(list(queues), count, LONG, settlements=settlements or [])
        self.requeue_expired(queues, [leased.lease.queue for leased in claimed.jobs], count)
        for leased in claimed.jobs:
            job = self.jobs[leased.lease.id]
            assert self.may_run(job)
            assert (leased.lease.queue, leased.state.blocked) == (job.queue, "")
            self.tokens -= RATE in job.names
            job.lease = leased.lease
            assert not [other.id for other in self.jobs.values() if self.is_alike_and_before(other, job)]
        if len(claimed.jobs) < count and claimed.due_in != 0:
            waiting = [job.id for job in self.jobs.values() if job.queue in queues and self.may_run(job)]
            assert waiting == [], "they wait for what is free"

    def requeue_expired(self, queues: tuple[str, ...], found: list[str], count: int) -> None:
        """The leases that have expired end in the queues that a claim has reached."""
        for number, queue in enumerate(queues):
            if sum(map(found.count, queues[:number])) < count:
                # they expired in the same ms and are requeued by ID
                for job in sorted(self.jobs.values(), key=lambda job: job.id):
                    if job.expired and job.queue == queue:
                        job.expired, job.lease, job.order = False, None, next(self.orders)

    def is_alike_and_before(self, other: ModelJob, job: ModelJob) -> bool:
        """Whether another job should have been leased before this one. With several needs, one that waits for
        the second one lets others pass."""
        if len(job.names) > 1 or not other.waits:
            return False
        alike = (other.queue, other.task, other.needs) == (job.queue, job.task, job.needs)
        return alike and (-other.priority, other.order) < (-job.priority, job.order)

    @precondition(lambda self: any(job.lease for job in self.jobs.values()))
    @rule(
        at=numbers,
        outcome=st.sampled_from(list(Outcome)),
        delay=st.sampled_from([0, LONG]),
        claims=st.booleans(),
    )
    def settle(self, at: int, outcome: Outcome, delay: int, claims: bool) -> None:
        job = one([job for job in self.jobs.values() if job.lease], at)
        assert job.lease is not None
        settlement = job.lease.settlement(
            outcome, 0 if outcome in (Outcome.DONE, Outcome.CANCELLED) else delay
        )
        job.lease, job.expired = None, False
        if outcome is not Outcome.RELEASE or delay > 0:  # else it keeps its place
            job.order = self.next_order()
        if outcome in (Outcome.DONE, Outcome.DEAD, Outcome.CANCELLED):
            del self.jobs[job.id]
        job.delayed = delay > 0
        if claims:
            self.take((job.queue,), 50, [settlement])
        else:
            assert self.engine.settle(settlement)

    @precondition(lambda self: any(job.lease and not job.expired for job in self.jobs.values()))
    @rule(at=numbers)
    def expire(self, at: int) -> None:
        job = one([job for job in self.jobs.values() if job.lease and not job.expired], at)
        self.client.zadd(self.keys.queue(job.queue).leased, {job.id: 1})
        job.expired = True

    @precondition(lambda self: any(job.lease is None for job in self.jobs.values()))
    @rule(at=numbers)
    def cancel(self, at: int) -> None:
        job = one([job for job in self.jobs.values() if job.lease is None], at)
        assert self.engine.cancel(job.queue, job.id) == job.queue
        del self.jobs[job.id]

    @precondition(lambda self: any(job.lease is None for job in self.jobs.values()))
    @rule(at=numbers, delay=st.sampled_from([0, LONG]))
    def reschedule(self, at: int, delay: int) -> None:
        job = one([job for job in self.jobs.values() if job.lease is None], at)
        assert self.engine.reschedule(job.queue, job.id, delay) == job.queue
        job.delayed, job.order = delay > 0, self.next_order()

    @rule(queue=st.sampled_from(QUEUES), sure=st.integers(0, 5))
    def purge(self, queue: str, sure: int) -> None:
        if sure == 0:
            self.engine.purge(queue)
            self.jobs = {job.id: job for job in self.jobs.values() if job.queue != queue}

    @rule(which=st.sampled_from(QUEUES + TASKS), ends=st.booleans())
    def pause(self, which: str, ends: bool) -> None:
        kind = {"queue": which} if which in QUEUES else {"task": which}
        if ends:
            assert self.engine.resume(**kind) == (which in self.paused)
            self.paused.discard(which)
        else:
            assert self.engine.pause("why", "me", **kind) == (which not in self.paused)
            self.paused.add(which)

    @rule(limit=st.sampled_from([None, None, 0, 1, 3]))
    def set_limit(self, limit: int | None) -> None:
        self.engine.set_limit("p p", limit)
        self.limit = limit

    @rule()
    def token(self) -> None:
        """Pass the time until the next token."""
        full = self.client.zscore(self.keys.rates, RATE)
        if full is None or self.tokens == 2:
            return
        self.client.zadd(self.keys.rates, {RATE: full - LONG * 1000})
        self.tokens += 1
        if self.client.zadd(self.keys.tokens, {RATE: server_ms()}, xx=True, ch=True):
            for queue in QUEUES:
                self.client.zadd(self.keys.queue(queue).delayed, {"\0tokens": server_ms()}, xx=True)

    # Invariants

    @invariant()
    def stored_matches(self) -> None:
        held, *stats = perform(conf.alias(), self.read())
        leased = [job for job in self.jobs.values() if job.lease is not None]
        expected = {f"{name} {job.id}" for job in leased for name in job.names if name != RATE}
        assert {member.decode() for member in held} == expected
        for queue, (ready, delayed, running, _, _, parked) in zip(QUEUES, stats, strict=True):
            jobs = [job for job in self.jobs.values() if job.queue == queue]
            assert ready + parked == sum(job.waits or job.expired for job in jobs)
            assert delayed == sum(job.delayed for job in jobs)
            assert running == sum(job.lease is not None and not job.expired for job in jobs)

    def read(self) -> Steps[list[Any]]:
        calls = [self.engine.engine.stats_call(queue) for queue in QUEUES]
        replies: list[Any] = yield [Command("ZRANGE", self.keys.held, 0, -1, reads=True), *calls]
        return replies

    def finish(self) -> None:
        """Finally, all jobs run, and nothing is left."""
        for which in QUEUES + TASKS:
            self.pause(which, ends=True)
        self.set_limit(None)
        for job in [job for job in self.jobs.values() if job.delayed]:
            assert self.engine.cancel(job.queue, job.id)
            del self.jobs[job.id]
        while self.jobs:
            self.token()
            before = len(self.jobs)
            self.take(QUEUES, 50)
            for job in [job for job in self.jobs.values() if job.lease]:
                assert job.lease is not None
                assert self.engine.settle(job.lease.settlement(Outcome.DONE))
                del self.jobs[job.id]
            assert len(self.jobs) < before
        assert not self.client.exists(self.keys.held, *(self.keys.queue(queue).parked for queue in QUEUES))


PLANTS: Plants = {
    "jobs/_waiting": {
        "nothing is promoted": ("'LIMIT', '0', MAX_LINES", "'LIMIT', '0', '0'"),
        "only the first queue is promoted": ("'LIMIT', '0', MAX_LINES", "'LIMIT', '0', '1'"),
        "promoted jobs also stay parked": ("redis.call('ZREM', queue.parked, unpack(parked))", ""),
        "promoted jobs go to the end": (
            "BAND + turn % HALF",
            "BAND + BAND - 2 - turn % HALF / 8",
        ),
        "lines end too early": ("if #parked < count then", "if #parked <= count then"),
        "ends of leases free nothing": ("redis.call('ZREM', records.held, name .. ' ' .. id) == 1", "false"),
        "what is freed in a claim is not known": ("      known[name] = nil\n", ""),
        "cancelled jobs stay parked": (
            "removed = redis.call('ZREM', queue.parked,",
            "removed = redis.call('EXISTS', queue.parked,",
        ),
        "a promoted job that is taken out promotes no other": (
            "    promote(records, queue, state.blocked, 1)\n",
            "",
        ),
        "rescheduled jobs stay blocked": (
            "  if removed > 0 then\n    state.blocked",
            "  if false then\n    state.blocked",
        ),
        "permits have no limit": ("or tonumber(limit or 1)) - found.held", "or tonumber(limit or 1))"),
        "set limits are ignored": ("found.free or (found.limit or", "found.free or (nil or"),
        "set limits are for locks, too": (
            "local is_permit = string.sub(name, 1, 7) == 'permit:'",
            "local is_permit = string.sub(name, 1, 7) == 'lock:a'",
        ),
        "paused tasks run": ("if task and paused['task:' .. task] then", "if false then"),
        "one token too many": ("if free < 1 then", "if free < 0 then"),
        "tokens are not taken": ("rate.full, rate.free = rate.full + rate.interval, rate.free - 1", ""),
        "nothing is held": ("found.held = found.held + 1", ""),
        "marker is not set": ("redis.call('ZADD', queue.delayed, 'LT', digits(moment), MARKER)", ""),
        "tokens promote nothing": ("promote_all(records, name, math.max(", "nil and (math.max("),
        "no token is awaited after a lease": (
            "elseif rate and redis.call('EXISTS', queue.parked) == 1 then",
            "elseif false then",
        ),
        "a job that is parked elsewhere promotes no other": ("    promote(records, queue, before, 1)\n", ""),
        "no token is awaited after parking": ("if known[name] and known[name].full then", "if false then"),
        "the place in the line is lost": (
            "return us + 2 * turns",
            "return 10 ^ 16 - us + 2 * turns",
        ),
    },
    "jobs/_queue": {
        "the marker is removed with due jobs": ("if due[at] == MARKER then", "if false then"),
    },
    "jobs/_leases": {
        "expired leases free nothing": (
            "      release_needs(records, id, state)\n      requeue",
            "      requeue",
        ),
        "settled leases free nothing": (
            "  release_needs(records, id, state)\n  if outcome == 'done'",
            "  if outcome == 'done'",
        ),
    },
    "jobs/claim": {
        "a claim does not look for further jobs": ("or not may_be_more or", "or true or"),
        "paused queues are served": ("if wanted > 0 and not is_paused then", "if wanted > 0 then"),
    },
    "jobs/limit": {
        "a higher limit promotes nothing": ("promote_all(records, permit, PROMOTED)", ""),
    },
    "jobs/resume": {
        "a resumed task stays parked": (
            "promote_all(records, name, PAGE)",
            "nil",
        ),
    },
    "jobs/purge": {
        "purge frees nothing": ("    release_needs(records, id, state)\n", ""),
        "purge keeps parked jobs": ("ipairs({queue.parked, queue.ready", "ipairs({queue.ready"),
    },
    "jobs/stats": {
        "the marker is counted": ("(marker and 1 or 0)", "0"),
    },
}


class TestWaitingMachine(MachineTests):
    machine = WaitingMachine
    plants = PLANTS
    quick = ("nothing is promoted",)
