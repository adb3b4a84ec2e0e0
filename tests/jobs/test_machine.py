"""The lease engine behaves like a simple model, and the state machine that compares them finds planted bugs.

The machine uses a DelayQueue. In half of its runs, the engine of the queue counts expired leases apart from
failures, as those of tasks and timers do.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import LimitExceeded, conf
from django_redis_messaging.services.jobs import DelayQueue, Job
from django_redis_messaging.services.jobs.engine import Engine
from django_redis_messaging.services.jobs.keys import JobKeys

from ..support.server import server, server_ms
from ..support.state_machines import Machine, MachineTests, Plants

#: seconds: longer than any run; jobs become due and leases expire only by rules
LONG = 3600
MAX_WAITING, MAX_DEAD = 7, 3
IDS = ("x", "y:{z}", "ü")


@dataclasses.dataclass
class ModelJob:
    """A job of the model."""

    id: str
    data: Any
    priority: int
    attempts: int = 0
    #: expired leases, where they are counted apart from failures
    lost: int = 0
    #: whether it runs in a process of its own
    apart: bool = False
    #: whether it has been ready for longer than LONG
    old: bool = False
    #: fence of the latest lease
    lease: int = 0
    #: order among the jobs that were leased and then released; 0: it was not since it became ready
    place: int = 0
    reason: str = ""


class CountingEngine(Engine):
    """As the engines of tasks and timers."""

    counts_lost = True


class Model:
    """The model of a queue: jobs, each in one state."""

    def __init__(self, counts_lost: bool, max_attempts: int, max_lost: int) -> None:
        self.counts_lost = counts_lost
        self.max_attempts = max_attempts
        self.max_lost = max_lost
        self.ready: list[ModelJob] = []
        self.delayed: list[ModelJob] = []
        #: delayed jobs that are due, and expired leases, neither processed yet
        self.due: list[ModelJob] = []
        self.lost: list[ModelJob] = []
        self.leased: list[ModelJob] = []
        #: oldest first
        self.dead: list[ModelJob] = []
        self.places = itertools.count(1)
        self.requests: set[str] = set()

    @property
    def waiting(self) -> int:
        return len(self.ready) + len(self.delayed) + len(self.due)

    def find(self, job_id: str, *places: list[ModelJob]) -> ModelJob | None:
        return next((job for place in places for job in place if job.id == job_id), None)

    def remove(self, job_id: str, *places: list[ModelJob]) -> ModelJob | None:
        for place in places:
            if job := self.find(job_id, place):
                place.remove(job)
                return job
        return None

    def push(self, jobs: list[ModelJob], request: str | None, *, delayed: bool) -> None:
        if request is not None and request in self.requests:
            return
        places = (self.ready, self.delayed, self.due, self.lost, self.leased)
        # existing jobs need no room
        waiting = self.waiting + sum(self.find(job.id, *places) is None for job in jobs)
        if waiting > MAX_WAITING:
            raise LimitExceeded("jobs", limit=MAX_WAITING, actual=waiting)
        for job in jobs:
            if not self.find(job.id, *places):
                self.dead = [other for other in self.dead if other.id != job.id]
                self.enqueue(job, delayed=delayed)
        if request is not None:
            self.requests.add(request)

    def process_due(self) -> None:
        """Requeue expired leases behind the due jobs."""
        lost, self.lost = self.lost, []
        for job in lost:
            job.reason = f"The lease expired in attempt {job.attempts}."
            job.lost += self.counts_lost
            job.apart = job.apart or job.lost >= min(2, self.max_lost - 1) > 0
            if self.has_attempts_left(job):
                self.enqueue(job, delayed=False)
        # they die in the same ms and are sorted by ID
        for job in sorted(lost, key=lambda job: job.id):
            if not self.has_attempts_left(job):
                self.add_dead(job)
        self.promote_due()

    def promote_due(self) -> None:
        self.ready += self.due
        self.due = []

    def has_attempts_left(self, job: ModelJob) -> bool:
        if job.lost and (job.lost >= self.max_lost or self.max_attempts == 1):
            return False
        return job.attempts - job.lost < self.max_attempts

    def is_dying(self, job: ModelJob) -> bool:
        """Whether a job whose lease has expired is about to be dead."""
        lost = job.lost + self.counts_lost
        return not self.has_attempts_left(dataclasses.replace(job, lost=lost))

    def pop(self, count: int, *, old: bool, no_lease: bool) -> list[ModelJob]:
        self.process_due()
        taken: list[ModelJob] = []
        for priority in sorted({job.priority for job in self.ready}, reverse=True):
            for job in [job for job in self.ready if job.priority == priority]:
                if len(taken) == count or (old and not job.old):
                    break
                taken.append(job)
        for job in taken:
            self.ready.remove(job)
            job.attempts += 1
            job.place = job.place or next(self.places)
            if not no_lease:
                self.leased.append(job)
        return taken

    def enqueue(self, job: ModelJob, *, delayed: bool) -> None:
        """Delay a job, or make it ready behind those that became due before."""
        job.old, job.place = False, 0
        if not delayed:
            self.promote_due()
        (self.delayed if delayed else self.ready).append(job)

    def put_back(self, job: ModelJob) -> None:
        """Make a job ready before those behind which it was not when it was leased."""
        self.ready.insert(sum(0 < other.place < job.place for other in self.ready), job)

    def add_dead(self, job: ModelJob) -> None:
        self.dead.append(job)
        del self.dead[:-MAX_DEAD]

    def take_leased(self, job_id: str, lease: int) -> ModelJob | None:
        """Remove and return the job if this lease is its latest and was not requeued."""
        job = self.find(job_id, self.leased, self.lost)
        if job is None or job.lease != lease:
            return None
        return self.remove(job_id, self.leased, self.lost)

    def cancel(self, job_id: str) -> bool:
        return self.remove(job_id, self.ready, self.delayed, self.due, self.dead) is not None

    def reschedule(self, job_id: str, *, delayed: bool) -> bool:
        job = self.remove(job_id, self.ready, self.delayed, self.due)
        if job is not None:
            self.enqueue(job, delayed=delayed)
        return job is not None

    def redrive(self, job_ids: list[str]) -> int:
        found = [job for job_id in dict.fromkeys(job_ids) if (job := self.find(job_id, self.dead))]
        for job in found:
            self.dead.remove(job)
            job.attempts = job.lost = 0
            self.enqueue(job, delayed=False)
        return len(found)

    def purge(self) -> int:
        places = (self.ready, self.delayed, self.due, self.lost, self.leased, self.dead)
        count = sum(map(len, places))
        for place in places:
            place.clear()
        return count


numbers = st.integers(0, 9)
delays = st.sampled_from([0, 0, LONG])
priorities = st.sampled_from([0, 0, 0, -100, 100, 7])
requests = st.sampled_from([None, None, None, "r1", "r2"])


class QueueMachine(Machine):
    """A queue with the operations of producers, consumers and owners, and time that passes only by rules."""

    @initialize(
        counts_lost=st.booleans(),
        max_attempts=st.sampled_from([1, 2, 2, 2]),
        max_lost=st.sampled_from([2, 2, 2, 3]),
    )
    def choose_engine(self, counts_lost: bool, max_attempts: int, max_lost: int) -> None:
        self.change_settings(JOB_MAX_WAITING=MAX_WAITING, JOB_MAX_DEAD=MAX_DEAD, JOB_MAX_LOST=max_lost)
        self.model = Model(counts_lost, max_attempts, max_lost)
        self.queue = DelayQueue(self.name, max_attempts=max_attempts)
        if counts_lost:
            self.queue._engine = CountingEngine(conf.prefix(), "queue", self.queue.name)
        self.keys = JobKeys(conf.prefix(), "queue", self.queue.name)
        #: all leases granted so far
        self.leases: list[Job] = []
        self.pushed = itertools.count(1)
        self.moments = itertools.count(1)

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            super().teardown()

    # Operations of producers

    @rule(job_id=st.sampled_from(IDS) | st.none(), delay=delays, priority=priorities, request=requests)
    def push(self, job_id: str | None, delay: int, priority: int, request: str | None) -> None:
        data = [next(self.pushed), job_id]
        expected = mock.sentinel.id if job_id is None else job_id
        try:
            found = self.queue.push(data, delay=delay, priority=priority, job_id=job_id, request_id=request)
        except LimitExceeded:
            found = None
        self.check_push([ModelJob(found or expected, data, priority)], found is None, delay, request)

    @rule(count=st.integers(0, 3), delay=delays, priority=priorities)
    def push_many(self, count: int, delay: int, priority: int) -> None:
        items = [next(self.pushed) for _ in range(count)]
        try:
            ids: list[str] | None = self.queue.push_many(items, delay=delay, priority=priority)
        except LimitExceeded:
            ids = None
        jobs = [ModelJob(ids[at] if ids else str(at), item, priority) for at, item in enumerate(items)]
        if jobs:
            self.check_push(jobs, ids is None, delay, None)

    def check_push(self, jobs: list[ModelJob], refused: bool, delay: int, request: str | None) -> None:
        try:
            self.model.push(jobs, request, delayed=delay > 0)
        except LimitExceeded:
            assert refused
        else:
            assert not refused

    # Operations of consumers

    @rule(
        count=st.sampled_from([1, 1, 2, 3, 500]), no_lease=st.sampled_from([False] * 3 + [True]),
        old=st.sampled_from([False] * 3 + [True]),
    )  # fmt: skip
    def pop(self, count: int, no_lease: bool, old: bool) -> None:
        self.take(count, no_lease=no_lease, old=old)

    def take(self, count: int, *, no_lease: bool = False, old: bool = False) -> int:
        self.next_ms()
        jobs = self.queue.pop(count, lease=None if no_lease else LONG, min_age=LONG if old else 0)
        expected_jobs = self.model.pop(count, old=old, no_lease=no_lease)
        assert [(job.id, job.data, job.attempts) for job in jobs] == [
            (expected.id, expected.data, expected.attempts) for expected in expected_jobs
        ]
        for job, expected in zip(jobs, expected_jobs, strict=True):
            if not no_lease:
                assert job.fence > max(
                    (other.fence for other in self.leases if other.id == job.id), default=0
                )
                expected.lease = job.fence
                self.leases.append(job)
                stored = server().hget(self.queue._engine.keys.states, job.id)
                assert (b" apart=1" in stored) == expected.apart
        return len(jobs)

    @precondition(lambda self: self.leases)
    @rule(at=numbers, verb=st.sampled_from(["ack", "retry", "release", "fail", "extend"]), delay=delays)
    def settle(self, at: int, verb: str, delay: int) -> None:
        """Settle the latest or an earlier lease."""
        job = self.leases[-1 - at % len(self.leases)]
        self.next_ms()
        expected = self.model.take_leased(job.id, job.fence)
        arguments: list[Any] = {"ack": [], "fail": [f"reason {at}"], "extend": [LONG]}.get(verb, [delay])
        assert getattr(self.queue, verb)(job, *arguments) is (expected is not None)
        if expected is None or verb == "ack":
            return
        expected.apart = expected.apart and verb != "retry"
        if verb == "extend":
            self.model.leased.append(expected)
        elif verb == "fail":
            expected.reason = f"reason {at}"
            self.model.add_dead(expected)
        elif verb == "retry" and not self.model.has_attempts_left(expected):
            self.model.add_dead(expected)
        elif verb == "release" and not delay:
            expected.attempts -= 1
            self.model.put_back(expected)
        else:
            expected.attempts -= verb == "release"
            self.model.enqueue(expected, delayed=delay > 0)

    @rule(
        count=st.integers(1, 4),
        verb=st.sampled_from(["fail", "retry", "release", "expire", "expire"]),
    )  # fmt: skip
    def serve(self, count: int, verb: str) -> None:
        for at in range(self.take(count)):
            if verb == "expire":
                self.expire_lease(len(self.model.leased) - 1)
            else:
                self.settle(at, verb, 0)

    @rule(count=st.integers(1, 4), verb=st.sampled_from(["ack", "retry", "release"]))
    def serve_with_stale_leases(self, count: int, verb: str) -> None:
        """Let the leases expire, lease the jobs again, then settle both leases."""
        first = self.take(count)
        for _ in range(first):
            self.expire_lease(len(self.model.leased) - 1)
        second = self.take(count)
        for at in reversed(range(first + second)):
            self.settle(at, verb, 0)

    # Operations of owners

    @rule(at=numbers)
    def cancel(self, at: int) -> None:
        assert self.queue.cancel(self.any_id(at)) is self.model.cancel(self.any_id(at))

    @rule(at=numbers, delay=delays)
    def reschedule(self, at: int, delay: int) -> None:
        job_id = self.any_id(at)
        expected = self.model.reschedule(job_id, delayed=delay > 0)
        assert self.queue.reschedule(job_id, delay) is expected

    @rule(some=st.lists(numbers, max_size=3) | st.none())
    def redrive(self, some: list[int] | None) -> None:
        chosen = None if some is None else [self.any_id(at) for at in some]
        dead = [job.id for job in self.model.dead]
        expected = self.model.redrive(dead if chosen is None else chosen)
        assert self.queue.redrive(chosen) == expected

    @rule(sure=st.integers(0, 3))
    def purge(self, sure: int) -> None:
        if sure == 0:
            self.take(1)
            assert self.queue.purge() == self.model.purge()

    # Passing of time

    @precondition(lambda self: self.model.delayed)
    @rule(at=numbers)
    def becomes_due(self, at: int) -> None:
        job = self.model.delayed.pop(at % len(self.model.delayed))
        self.model.due.append(job)
        self.client.zadd(self.keys.queue("jobs").delayed, {job.id: next(self.moments)})
        self.set_due_at(job.id, server_ms())

    @precondition(lambda self: self.model.delayed)
    @rule(at=numbers, other=numbers)
    def becomes_due_before(self, at: int, other: int) -> None:
        """A job becomes due and another one is made ready after it."""
        self.becomes_due(at)
        self.reschedule(other, 0)

    @precondition(lambda self: self.model.leased)
    @rule(at=numbers)
    def expire_lease(self, at: int) -> None:
        job = self.model.leased.pop(at % len(self.model.leased))
        self.model.lost.append(job)
        self.client.zadd(self.keys.queue("jobs").leased, {job.id: next(self.moments)})

    @precondition(lambda self: self.model.ready)
    @rule(at=numbers)
    def make_old(self, at: int) -> None:
        """Make all ready jobs old, or those of one priority."""
        chosen = self.model.ready[at % len(self.model.ready)].priority
        for job in self.model.ready:
            if at > 7 or job.priority == chosen:
                job.old = True
                self.set_due_at(job.id, 1)
        self.take(2, old=True)

    def set_due_at(self, job_id: str, ms: int) -> None:
        """Set when a job became due."""
        state = self.client.hget(self.keys.states, job_id)
        self.client.hset(self.keys.states, job_id, re.sub(rb" due=\d+", b" due=%d" % ms, state))

    # Invariants

    @invariant()
    def counts_match(self) -> None:
        stats, model = self.queue.stats(), self.model
        expired = sum(map(model.is_dying, model.lost))
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (
            len(model.ready) + len(model.due) + len(model.lost) - expired,
            len(model.delayed), len(model.leased),
            len(model.dead) + expired,
        )  # fmt: skip
        assert (stats.oldest_age is None) == (stats.ready == 0)

    @invariant()
    def dead_jobs_match(self) -> None:
        assert [(job.id, job.data, job.attempts, job.reason) for job in reversed(self.queue.dead())] == [
            (job.id, job.data, job.attempts, job.reason) for job in self.model.dead
        ]

    def finish(self) -> None:
        """Finally, the remaining jobs are popped in order and no data remains."""
        self.take(500)
        for job in self.leases:
            self.queue.ack(job)
        self.queue.redrive()
        for job_id in [job.id for job in self.model.delayed + self.model.dead]:
            assert self.queue.cancel(job_id)
        left = [key.decode() for key in self.client.scan_iter(match=self.keys.tag + ":*", count=1000)]
        assert all(key.endswith(":bell") or ":requests:" in key for key in left)

    def any_id(self, at: int) -> str:
        model = self.model
        places = (model.ready, model.delayed, model.due, model.lost, model.leased, model.dead)
        job_ids = [job.id for place in places for job in place]
        return job_ids[at % len(job_ids)] if job_ids and at < 9 else "nobody"

    def next_ms(self) -> None:
        """Wait for the next ms, so that jobs die at different times."""
        before = server_ms()
        while server_ms() == before:
            pass


PLANTS: Plants = {
    "jobs/_records": {
        "stale fences are accepted": (" and state.fence == fence and state.token == token", ""),
        "attempts are unlimited": ("return state.attempts - lost < max_attempts", "return true"),
        "one attempt too few": (
            "state.attempts - lost < max_attempts",
            "state.attempts - lost + 1 < max_attempts",
        ),
        "lost attempts count as failures": (
            "state.attempts - lost < max_attempts",
            "state.attempts - 0 < max_attempts",
        ),
        "lost attempts are unlimited": ("lost >= max_lost or", "false or"),
        "one lost attempt too many": ("lost >= max_lost", "lost > max_lost"),
        "a lost job with a single attempt starts again": ("or max_attempts == 1", ""),
        "delay queues count lost attempts apart": (
            "if max_lost > 0 then",
            "if true then",
        ),
        "due jobs lose their priority": ("string.match(text, '^waiting priority=(%S+)') or '0'", "'0'"),
        "lost jobs don't run apart": ("state.apart = '1'", "state.apart = '0'"),
        "jobs run apart after their first loss": (
            "if state.lost ~= '1' or max_lost <= 2 then",
            "if true then",
        ),
        "the last start of a job is beside others": ("or max_lost <= 2", ""),
        "release charges the attempt": ("state.attempts = state.attempts - 1", ""),
        "a job that is released again loses its place": ("' place=' .. state.place", "''"),
    },
    "jobs/_waiting": {
        "jobs of one claim have one place": ("return us + 2 * turns", "return us"),
        "released jobs are in reverse order": ("+ turn % HALF", "+ HALF - turn % HALF"),
    },
    "jobs/claim": {
        "jobs popped without a lease are kept": ("delete_job(records, id, state.unique)", ""),
    },
    "jobs/stats": {
        "stats ignore what was lost": ("count_lost(state, max_lost)", ""),
        "expired last attempts count as ready": ("dying = dying + 1", ""),
    },
    "jobs/_places": {
        "last in, first out": ("math.min(band.last + ROUND,", "math.min(band.last - ROUND,"),
        "priorities are reversed": ("(100 - priority) * BAND", "(100 + priority) * BAND"),
    },
    "jobs/_queue": {
        "jobs made ready pass those that are due": (
            "promote_due(queue, records, now)\n    append_ready(queue, {id}",
            "append_ready(queue, {id}",
        ),
        "due jobs also stay delayed": ("redis.call('ZREM', queue.delayed, unpack(due))", ""),
        "rescheduled jobs also stay ready": (
            "if redis.call('ZREM', queue.ready, id) == 0 then",
            "if not redis.call('ZSCORE', queue.ready, id) then",
        ),
    },
    "jobs/redrive": {
        "redrive keeps what was lost": ("digits(due), '0', '0'", "digits(now), '0', state.lost"),
        "redrive keeps the attempts": ("digits(due), '0', '0'", "digits(now), state.attempts, '0'"),
    },
    "jobs/push": {
        "pushed jobs pass those that are due": (
            "promote_due(queue, records, now) -- these became due before",
            "",
        ),
        "delays are ignored": ("if due > now then", "if false then"),
        "request IDs are ignored": ("if before then", "if false then"),
        "limit is ignored": ("if waiting > max_waiting then", "if false then"),
        "existing IDs are pushed again": ("(not stored or status_of(stored) == 'dead')", "true"),
        "dead jobs are not replaced": ("(not stored or status_of(stored) == 'dead')", "not stored"),
    },
    "jobs/_leases": {
        "expired leases are not requeued": ("requeue(queue, records, id, state, now, now, limits)", ""),
        "dead jobs are not limited": ("if over > 0 then", "if false then"),
        "released jobs go to the end": ("or outcome ~= 'release' and now", "or now"),
        "retried jobs keep their place": ("or outcome ~= 'release' and now", "or false"),
        "min_age is ignored": ("if due < before then", "if true then"),
        "min_age checks one priority only": ("from = next_band(head[2])", "break"),
    },
    "jobs/cancel": {
        "cancel keeps dead jobs": ("removed = redis.call('ZREM', queue.dead, id)", "removed = 1"),
    },
    "jobs/purge": {
        "purge keeps leased jobs": ("queue.leased, queue.dead}", "queue.dead}"),
    },
}


class TestMachine(MachineTests):
    machine = QueueMachine
    plants = PLANTS
    quick = ("priorities are reversed", "delays are ignored")
