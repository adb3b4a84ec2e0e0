"""`explain` agrees with a simple model of jobs with needs, pauses, workers, and locks that tasks hold."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import Lock, explain

from ..support.state_machines import Machine, MachineTests, Plants, one
from .site import LONG, TASK, Site, inside

#: needs of a job: of which the lock may also be held by other code than tasks
NEEDS = ((), ("lock:a",), ("lock:b",), ("permit:p/1",), ("lock:a", "permit:p/1"))
#: seconds: longer than any run
LEASE = 3600
numbers = st.integers(0, 9)


@dataclasses.dataclass
class ModelJob:
    """A job of the model."""

    id: str
    needs: tuple[str, ...]
    is_delayed: bool
    is_running: bool = False


class ExplainMachine(Machine):
    """One queue. Time passes only by rules."""

    @initialize()
    def begin(self) -> None:
        self.site = Site()
        self.site.engine.purge("default")
        self.jobs: dict[str, ModelJob] = {}
        self.numbers = itertools.count()
        self.paused: set[str] = set()
        self.has_worker = False
        #: locks that tasks have acquired themselves
        self.locks: dict[str, tuple[Lock, str]] = {}

    def teardown(self) -> None:
        for lock, _ in self.locks.values():
            lock.release()
        for name in self.paused:
            self.site.engine.resume(**{name: TASK if name == "task" else "default"})
        self.site.engine.purge("default")
        self.site.engine.remove_worker("w1")
        super().teardown()

    # What the model knows

    def holder(self, need: str) -> ModelJob | None:
        return next((job for job in self.jobs.values() if job.is_running and need in job.needs), None)

    def chain(self, job_id: str, before: tuple[str, ...] = ()) -> list[str]:
        """The codes that are expected."""
        if job_id in before:
            return ["deadlock"]
        job, before = self.jobs.get(job_id), (*before, job_id)
        if job is None:
            return ["unknown"]
        if job.is_running:
            return ["running" if self.has_worker else "worker_lost"]
        own = ["not_due"] if job.is_delayed else []
        own += [f"{name}_paused" for name in ("queue", "task") if name in self.paused]
        if job.is_delayed:
            return own
        own += [] if self.has_worker else ["no_worker"]
        for need in job.needs:
            if (other := self.holder(need)) is not None:
                code = "lock_held" if need.startswith("lock:") else "permits_held"
                return [*own, code, *self.chain(other.id, before)]
        for name, (_, task) in self.locks.items():
            if f"lock:{name}" in job.needs:
                return [*own, "lock_held", *self.chain(task, before)]
        return own or ["in line"]

    # Rules

    @rule(needs=st.sampled_from(NEEDS), is_delayed=st.sampled_from([False, False, True]))
    def push(self, needs: tuple[str, ...], is_delayed: bool) -> None:
        job = ModelJob(f"job {next(self.numbers)} {self.name}", needs, is_delayed)
        self.site.push(job.id, *needs, delay=LONG if is_delayed else 0)
        self.jobs[job.id] = job

    @rule(count=st.sampled_from([1, 50]))
    def claim(self, count: int) -> None:
        self.site.claim(count=count)
        for job_id in self.site.leases:
            self.jobs[job_id].is_running = True

    @precondition(lambda self: self.site.leases)
    @rule(number=numbers)
    def end(self, number: int) -> None:
        job_id = one(self.site.leases, number)
        self.site.end(job_id, ms=0)
        del self.jobs[job_id]

    @rule(name=st.sampled_from(["queue", "task"]))
    def pause_or_resume(self, name: str) -> None:
        which = {name: TASK if name == "task" else "default"}
        if name in self.paused:
            self.site.engine.resume(**which)
        else:
            self.site.engine.pause("", "", **which)
        self.paused ^= {name}

    @rule()
    def start_or_end_worker(self) -> None:
        if self.has_worker:
            self.site.engine.remove_worker("w1")
        else:
            self.site.beat("w1")
        self.has_worker = not self.has_worker

    @precondition(lambda self: self.jobs)
    @rule(name=st.sampled_from(["a", "b"]), number=numbers)
    def acquire_or_release(self, name: str, number: int) -> None:
        if name in self.locks:
            self.locks.pop(name)[0].release()
            return
        task, lock = one(self.jobs, number), Lock(name, timeout=LEASE)
        assert inside(task, lambda: lock.acquire(blocking=False))
        self.locks[name] = lock, task

    @invariant()
    def explanations_are_those_of_the_model(self) -> None:
        for job_id in [*self.jobs][-2:]:
            causes = explain(job_id).causes
            in_line = {"next": "in line", "behind": "in line"}
            assert [in_line.get(cause.code, cause.code) for cause in causes] == self.chain(job_id)


PLANTS: Plants = {
    "explaining/job": {
        "the pause of the task is not read": ("pauses[1] or '', pauses[2] or '',", "pauses[1] or '', '',"),
        "needs are always free": ("local name = find_blocked(records, state, us)", "local name = nil"),
        "workers are always lost": ("string.match(state.by, '[^,]*$')", "''"),
        "leases have always ended": ("(redis.call('ZSCORE', queue.leased, id) or '-1')", "'1'"),
        "holders are not listed": ("unpack(name ~= '' and list_holders(name) or {})", "nil"),
    },
}


class TestMachine(MachineTests):
    machine = ExplainMachine
    plants = PLANTS
    quick = ("the pause of the task is not read", "needs are always free")
