"""DelayQueue is what a plain model is; and the machine that says so finds the bugs that are planted."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any
from unittest import mock

from django_redis import get_redis_connection
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_redis_messaging import LimitExceeded, conf
from django_redis_messaging.services.jobs import DelayQueue, Job
from django_redis_messaging.services.jobs.keys import JobKeys

from .planting import PROFILE, Plant, PlantedBugs

#: seconds: longer than any run; nothing ends, or is due, but by the rules that say so
LONG = 3600
MAX_ATTEMPTS, MAX_WAITING, MAX_DEAD = 2, 7, 3
IDS = ("x", "y:{z}", "ü")
_runs = itertools.count()


@dataclasses.dataclass
class Ideal:
    """A job, as the model knows it."""

    id: str
    data: Any
    priority: int
    attempts: int = 0
    #: ready for longer than LONG
    old: bool = False
    #: the last lease that was given
    lease: int = 0
    reason: str = ""


class Model:
    """What a queue is: jobs, each in one place."""

    def __init__(self) -> None:
        self.ready: list[Ideal] = []
        self.delayed: list[Ideal] = []
        #: delayed ones that are due, and leases that ran out: nobody looked yet
        self.due: list[Ideal] = []
        self.lost: list[Ideal] = []
        self.leased: list[Ideal] = []
        #: the oldest first
        self.dead: list[Ideal] = []
        self.requests: set[str] = set()

    @property
    def waiting(self) -> int:
        return len(self.ready) + len(self.delayed) + len(self.due)

    def find(self, job_id: str, *places: list[Ideal]) -> Ideal | None:
        return next((job for place in places for job in place if job.id == job_id), None)

    def push(self, jobs: list[Ideal], request: str | None, *, delayed: bool) -> None:
        if request is not None and request in self.requests:
            return
        places = (self.ready, self.delayed, self.due, self.lost, self.leased)
        # what stays as it is takes no more room
        waiting = self.waiting + sum(self.find(job.id, *places) is None for job in jobs)
        if waiting > MAX_WAITING:
            raise LimitExceeded("jobs", limit=MAX_WAITING, actual=waiting)
        for job in jobs:
            if not self.find(job.id, *places):
                self.dead = [other for other in self.dead if other.id != job.id]
                (self.delayed if delayed else self.ready).append(job)
        if request is not None:
            self.requests.add(request)

    def sweep(self) -> None:
        """Do what is due: leases that ran out first."""
        lost, self.lost = self.lost, []
        dying = sorted(job.id for job in lost if job.attempts >= MAX_ATTEMPTS)
        for job in lost:
            job.reason = f"The lease expired in attempt {job.attempts}."
            if job.attempts < MAX_ATTEMPTS:
                self.wait(job, delayed=False)
        # they die in one ms, in which they are sorted by their ids
        for job_id in dying:
            self.bury(next(job for job in lost if job.id == job_id))
        self.ready += self.due
        self.due = []

    def pop(self, count: int, *, old: bool, give: bool) -> list[Ideal]:
        self.sweep()
        taken: list[Ideal] = []
        for priority in sorted({job.priority for job in self.ready}, reverse=True):
            for job in [job for job in self.ready if job.priority == priority]:
                if len(taken) == count or (old and not job.old):
                    break
                taken.append(job)
        for job in taken:
            self.ready.remove(job)
            job.attempts += 1
            if not give:
                self.leased.append(job)
        return taken

    def wait(self, job: Ideal, *, delayed: bool) -> None:
        job.old = False
        (self.delayed if delayed else self.ready).append(job)

    def bury(self, job: Ideal) -> None:
        self.dead.append(job)
        del self.dead[:-MAX_DEAD]

    def held(self, job_id: str, lease: int) -> Ideal | None:
        """The job, out of its place, where the lease is the last one and nobody noticed that it ended."""
        for place in (self.leased, self.lost):
            for job in place:
                if (job.id, job.lease) == (job_id, lease):
                    place.remove(job)
                    return job
        return None

    def cancel(self, job_id: str) -> bool:
        for place in (self.ready, self.delayed, self.due, self.dead):
            if job := self.find(job_id, place):
                place.remove(job)
                return True
        return False

    def reschedule(self, job_id: str, *, delayed: bool) -> bool:
        for place in (self.ready, self.delayed, self.due):
            if job := self.find(job_id, place):
                place.remove(job)
                self.wait(job, delayed=delayed)
                return True
        return False

    def redrive(self, job_ids: list[str]) -> int:
        found = [job for job_id in dict.fromkeys(job_ids) if (job := self.find(job_id, self.dead))]
        for job in found:
            self.dead.remove(job)
            job.attempts = 0
            self.wait(job, delayed=False)
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


class QueueMachine(RuleBasedStateMachine):
    """One queue, what its producers, its consumers and its owner do, and time that passes when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        changed = dataclasses.replace(conf.current(), JOB_MAX_WAITING=MAX_WAITING, JOB_MAX_DEAD=MAX_DEAD)
        self.limits = mock.patch.object(conf, "current", return_value=changed)
        self.limits.start()
        self.queue = DelayQueue(f"q {next(_runs)}", max_attempts=MAX_ATTEMPTS)
        self.client: Any = get_redis_connection(conf.alias())
        self.keys = JobKeys(conf.prefix(), "queue", self.queue.name)
        #: every lease that was given, with the job that has it
        self.leases: list[Job] = []
        self.pushed = itertools.count(1)
        self.moments = itertools.count(1)

    def teardown(self) -> None:
        try:
            self.everything_is_delivered()
        finally:
            self.limits.stop()

    # What producers do

    @rule(job_id=st.sampled_from(IDS) | st.none(), delay=delays, priority=priorities, request=requests)
    def push(self, job_id: str | None, delay: int, priority: int, request: str | None) -> None:
        data = [next(self.pushed), job_id]
        expected = mock.sentinel.id if job_id is None else job_id
        try:
            found = self.queue.push(data, delay=delay, priority=priority, job_id=job_id, request_id=request)
        except LimitExceeded:
            found = None
        self.pushed_too([Ideal(found or expected, data, priority)], found is None, delay, request)

    @rule(count=st.integers(0, 3), delay=delays, priority=priorities)
    def push_many(self, count: int, delay: int, priority: int) -> None:
        items = [next(self.pushed) for _ in range(count)]
        try:
            ids: list[str] | None = self.queue.push_many(items, delay=delay, priority=priority)
        except LimitExceeded:
            ids = None
        jobs = [Ideal(ids[at] if ids else str(at), item, priority) for at, item in enumerate(items)]
        if jobs:
            self.pushed_too(jobs, ids is None, delay, None)

    def pushed_too(self, jobs: list[Ideal], refused: bool, delay: int, request: str | None) -> None:
        try:
            self.model.push(jobs, request, delayed=delay > 0)
        except LimitExceeded:
            assert refused
        else:
            assert not refused

    # What consumers do

    @rule(
        count=st.sampled_from([1, 1, 2, 3, 500]), give=st.sampled_from([False] * 3 + [True]),
        old=st.sampled_from([False] * 3 + [True]),
    )  # fmt: skip
    def pop(self, count: int, give: bool, old: bool) -> None:
        self.take(count, give=give, old=old)

    def take(self, count: int, *, give: bool = False, old: bool = False) -> int:
        self.next_ms()
        jobs = self.queue.pop(count, lease=None if give else LONG, min_age=LONG if old else 0)
        ideals = self.model.pop(count, old=old, give=give)
        assert [(job.id, job.data, job.attempts) for job in jobs] == [
            (ideal.id, ideal.data, ideal.attempts) for ideal in ideals
        ]
        for job, ideal in zip(jobs, ideals, strict=True):
            if not give:
                assert job.fence > max((one.fence for one in self.leases if one.id == job.id), default=0)
                ideal.lease = job.fence
                self.leases.append(job)
        return len(jobs)

    @precondition(lambda self: self.leases)
    @rule(at=numbers, verb=st.sampled_from(["ack", "retry", "release", "fail", "extend"]), delay=delays)
    def say(self, at: int, verb: str, delay: int) -> None:
        """By whoever has the lease, or had one once."""
        job = self.leases[-1 - at % len(self.leases)]
        self.next_ms()
        ideal = self.model.held(job.id, job.fence)
        words: list[Any] = {"ack": [], "fail": [f"reason {at}"], "extend": [LONG]}.get(verb, [delay])
        assert getattr(self.queue, verb)(job, *words) is (ideal is not None)
        if ideal is None or verb == "ack":
            return
        if verb == "extend":
            self.model.leased.append(ideal)
        elif verb == "fail":
            ideal.reason = f"reason {at}"
            self.model.bury(ideal)
        elif verb == "retry" and ideal.attempts >= MAX_ATTEMPTS:
            self.model.bury(ideal)
        else:
            ideal.attempts -= verb == "release"
            self.model.wait(ideal, delayed=delay > 0)

    @rule(count=st.integers(1, 4), verb=st.sampled_from(["fail", "retry", "release", "run out"]))
    def serve(self, count: int, verb: str) -> None:
        for at in range(self.take(count)):
            if verb == "run out":
                self.lease_runs_out(len(self.model.leased) - 1)
            else:
                self.say(at, verb, 0)

    @rule(count=st.integers(1, 4), verb=st.sampled_from(["ack", "retry"]))
    def serve_too_late(self, count: int, verb: str) -> None:
        """The leases run out, others are given, and then it is said."""
        first = self.take(count)
        for _ in range(first):
            self.lease_runs_out(len(self.model.leased) - 1)
        second = self.take(count)
        for at in reversed(range(first + second)):
            self.say(at, verb, 0)

    # What owners do

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

    # What time does

    @precondition(lambda self: self.model.delayed)
    @rule(at=numbers)
    def becomes_due(self, at: int) -> None:
        job = self.model.delayed.pop(at % len(self.model.delayed))
        self.model.due.append(job)
        self.client.zadd(self.keys.queue("jobs").delayed, {job.id: next(self.moments)})
        seconds, micros = self.client.time()
        self.set_moment(job.id, seconds * 1000 + micros // 1000)

    @precondition(lambda self: self.model.leased)
    @rule(at=numbers)
    def lease_runs_out(self, at: int) -> None:
        job = self.model.leased.pop(at % len(self.model.leased))
        self.model.lost.append(job)
        self.client.zadd(self.keys.queue("jobs").leased, {job.id: next(self.moments)})

    @precondition(lambda self: self.model.ready)
    @rule(at=numbers)
    def grow_old(self, at: int) -> None:
        """All that are ready, or those of one priority."""
        chosen = self.model.ready[at % len(self.model.ready)].priority
        for job in self.model.ready:
            if at > 7 or job.priority == chosen:
                job.old = True
                self.set_moment(job.id, 1)
        self.take(2, old=True)

    def set_moment(self, job_id: str, ms: int) -> None:
        """Let a job have become due then."""
        words = self.client.hget(self.keys.states, job_id).split(b" ")
        words[9] = b"%d" % ms
        self.client.hset(self.keys.states, job_id, b" ".join(words))

    # What always holds

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        stats, model = self.queue.stats(), self.model
        over = sum(job.attempts >= MAX_ATTEMPTS for job in model.lost)
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (
            len(model.ready) + len(model.due) + len(model.lost) - over, len(model.delayed), len(model.leased),
            len(model.dead) + over,
        )  # fmt: skip
        assert (stats.oldest_age is None) == (stats.ready == 0)

    @invariant()
    def the_dead_are_known(self) -> None:
        assert [(job.id, job.data, job.attempts, job.reason) for job in reversed(self.queue.dead())] == [
            (job.id, job.data, job.attempts, job.reason) for job in self.model.dead
        ]

    def everything_is_delivered(self) -> None:
        """At the end, what is left comes in its order; and nothing of it is left behind."""
        self.take(500)
        for job in self.leases:
            self.queue.ack(job)
        self.queue.redrive()
        for job_id in [job.id for job in self.model.delayed + self.model.dead]:
            assert self.queue.cancel(job_id)
        left = [key.decode() for key in self.client.scan_iter(match=self.keys.tag + ":*")]
        assert all(key.endswith((":bell", ":requests:0", ":requests:1")) for key in left)

    def any_id(self, at: int) -> str:
        model = self.model
        places = (model.ready, model.delayed, model.due, model.lost, model.leased, model.dead)
        known = [job.id for place in places for job in place]
        return known[at % len(known)] if known and at < 9 else "nobody"

    def next_ms(self) -> None:
        """What dies now, dies later than what died before."""
        before = self.client.time()
        while (self.client.time()[0], self.client.time()[1] // 1000) <= (before[0], before[1] // 1000):
            pass


def test_everything_is_as_in_the_model() -> None:
    run_state_machine_as_test(QueueMachine, settings=PROFILE)


PLANTS: dict[str, Plant] = {
    "a stale fence counts": ("_records", "and state.fence == fence and state.token == token", ""),
    "attempts have no end": ("_leases", "if state.attempts >= state.max_attempts then", "if false then"),
    "an attempt too few": (
        "_leases",
        "state.attempts >= state.max_attempts",
        "state.attempts + 1 >= state.max_attempts",
    ),
    "releasing charges the attempt": ("_records", "state.attempts = state.attempts - 1", ""),
    "what ran out is forgotten": ("_leases", "requeue(queue, records, id, state, now, now, dead_limits)", ""),
    "the dead are never too many": ("_leases", "if over > 0 then", "if false then"),
    "due jobs forget their priority": ("_leases", "string.match(text, '^%a (%S+)')", "0"),
    "due jobs stay delayed too": ("_leases", "redis.call('ZREM', queue.delayed, unpack(due))", ""),
    "priorities are upside down": ("_queue", "(100 - priority) * BAND", "(100 + priority) * BAND"),
    "the last is first": ("_queue", "ends[priority] + 1", "ends[priority] - 1"),
    "nothing is delayed": ("_queue", "if due > now then", "if false then"),
    "no request ids": ("jobs_push", "if before then", "if false then"),
    "no limit": ("jobs_push", "if waiting > max_waiting then", "if false then"),
    "an id is taken twice": ("jobs_push", "elseif not known or is_dead(known) then", "else"),
    "the dead are not replaced": (
        "jobs_push",
        "elseif not known or is_dead(known) then",
        "elseif not known then",
    ),
    "given away and still there": ("jobs_claim", "delete_job(records, id, state.unique)", ""),
    "nothing is too young": ("jobs_claim", "if due < before then", "if true then"),
    "age counts in one line only": (
        "jobs_claim",
        "from = next_band(head[2])",
        "break",
    ),
    "cancelling leaves it dead": (
        "jobs_cancel",
        "removed = redis.call('ZREM', queue.dead, id)",
        "removed = 1",
    ),
    "redriven has had its attempts": ("jobs_redrive", "= 'w', 0, digits(now)", "= 'w', state.attempts, 1"),
    "rescheduled stays in the line": ("_queue", "redis.call('ZREM', queue.ready, id) +", "1 +"),
    "purging leaves what runs": ("jobs_purge", "queue.leased, queue.dead}", "queue.dead}"),
    "who died by time is ready": ("jobs_stats", "dying = dying + 1", ""),
}


class TestPlantedBugs(PlantedBugs):
    machine = QueueMachine
    plants = PLANTS
