"""Groups of jobs: those of one priority take turns, and the jobs of one group stay in their order."""

from __future__ import annotations

import itertools
import math
import random
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from django_redis_messaging import conf
from django_redis_messaging.services.jobs.engine import Engine, LeasedJob, Outcome, Push
from django_redis_messaging.services.jobs.keys import JobKeys, QueueKeys
from tests.support.engines import Performed

from ..support.server import server
from ..support.state_machines import Machine, MachineTests, Plants

LEASE = 60_000
HOUR = 3_600_000
#: group → weight; empty: jobs without a group
WEIGHTS = {"": 1, "a": 1, "b": 1, "c": 3, "d": 5}


def engine(name: str = "groups") -> Any:
    return Performed(Engine(conf.prefix(), "tasks", name), conf.alias())


def keys(name: str = "groups") -> QueueKeys:
    return JobKeys(conf.prefix(), "tasks", name).queue("q")


def job(job_id: str, group: str = "", *, priority: int = 0, delay: int = 0, weight: int = 1) -> Push:
    more = f"group={group}" if group else ""
    return Push(job_id, "{}", delay, priority, 5, more=more + (f" weight={weight}" if weight > 1 else ""))


def push(*jobs: Push) -> None:
    for at in range(0, len(jobs), 200):
        engine().push("q", jobs[at].id, jobs[at : at + 200])


def pop(count: int) -> list[str]:
    return [one.lease.id for one in claim(count)]


def claim(count: int) -> list[LeasedJob]:
    jobs: list[LeasedJob] = engine().claim(["q"], count, LEASE).jobs
    return jobs


class TestTurns:
    @pytest.mark.parametrize("many", [1000, pytest.param(100_000, marks=pytest.mark.long)])
    def test_a_single_job_waits_for_one_of_a_group_with_many(self, many: int) -> None:
        push(*(job(f"many-{number:06}", "big") for number in range(many)))
        assert pop(300)[-1] == "many-000299"
        push(job("single", "small"))
        assert pop(2) == ["many-000300", "single"]

    def test_groups_take_turns_and_keep_their_order(self) -> None:
        push(*(job(f"{group}{number}", group) for group in "abc" for number in range(3)))
        taken = pop(9)
        assert [sorted(one[0] for one in taken[at : at + 3]) for at in (0, 3, 6)] == [["a", "b", "c"]] * 3
        for group in "abc":
            assert [one for one in taken if one[0] == group] == [f"{group}{number}" for number in range(3)]

    def test_a_weight_is_the_number_of_turns_in_a_round(self) -> None:
        push(*(job(f"a{number:02}", "a", weight=3) for number in range(30)))
        push(*(job(f"b{number:02}", "b") for number in range(10)))
        assert Counter(one[0] for one in pop(20)) == {"a": 15, "b": 5}

    def test_one_job_at_a_time_gets_no_more_than_its_turn(self) -> None:
        push(*(job(f"many-{number:02}", "big") for number in range(20)))
        taken = []
        for number in range(5):
            push(job(f"next-{number}", "small"))
            taken += pop(2)
        assert [one[0] for one in taken] == ["m", "n"] * 5

    def test_higher_priorities_come_first(self) -> None:
        push(*(job(f"low-{number}", "a") for number in range(3)), job("high", "a", priority=1))
        assert pop(2) == ["high", "low-0"]

    def test_jobs_without_a_group_are_a_group(self) -> None:
        push(*(job(f"none-{number}") for number in range(3)))
        push(*(job(f"a-{number}", "a") for number in range(3)))
        assert [one[0] for one in pop(6)] == ["n", "a"] * 3

    def test_retried_and_delayed_jobs_come_behind_their_group(self) -> None:
        push(job("retried", "a"), *(job(f"a{number}", "a") for number in range(2)))
        [claimed] = claim(1)
        engine().settle(claimed.lease.settlement(Outcome.RETRY))
        push(job("delayed", "a", delay=HOUR), *(job(f"b{number}", "b") for number in range(4)))
        server().zadd(keys().delayed, {"delayed": 1})
        engine().sweep(["q"])
        assert [one for one in pop(8) if one[0] != "b"] == ["a0", "a1", "retried", "delayed"]

    def test_released_jobs_have_had_their_turns(self) -> None:
        push(*(job(f"{group}{number}", group) for group in "ab" for number in range(3)))
        taken = claim(2)
        for one in reversed(taken):
            engine().settle(one.lease.settlement(Outcome.RELEASE))
        push(job("c0", "c"))
        assert pop(2) == [one.lease.id for one in taken]
        assert sorted(pop(3)) == ["a1", "b1", "c0"]
        assert sorted(pop(3)) == ["a2", "b2"]
        assert not server().exists(keys().groups)

    def test_a_group_whose_jobs_are_cancelled_has_its_turn(self) -> None:
        push(*(job(f"a{number:02}", "a") for number in range(20)))
        push(*(job(f"b{number:02}", "b") for number in range(20)))
        for number in range(20):
            assert engine().cancel("q", f"a{number:02}") == "q"
        push(job("anew", "a"))
        assert pop(2) == ["b00", "anew"]

    def test_a_key_that_looks_like_a_group_is_none(self) -> None:
        for number in range(2):
            unique = f"x{number} group=a"
            engine().push("q", f"{number}", [Push(f"{number}", "{}", HOUR, 0, 5, unique)])
            server().zadd(keys().delayed, {f"{number}": 1})
        assert pop(2) == ["0", "1"]
        assert not server().exists(keys().groups)

    @pytest.mark.parametrize("end", ["claim", "cancel", "purge"])
    def test_nothing_is_kept_of_groups_without_jobs(self, end: str) -> None:
        push(job("a1", "a"), job("none"), job("b1", "b", priority=5), job("a2", "a", priority=-5))
        if end == "claim":
            assert len(pop(4)) == 4
        elif end == "cancel":
            for job_id in ("none", "a1", "b1", "a2"):
                assert engine().cancel("q", job_id)
        else:
            assert engine().purge("q") == 4
        assert not server().exists(keys().groups)


class TestWithoutGroups:
    def test_the_order_is_that_of_the_pushes(self) -> None:
        ids = [f"{number * 7919 % 1000:04}" for number in range(600)]
        push(*map(job, ids))
        assert pop(250) + pop(350) == ids
        assert not server().exists(keys().groups)


@dataclass
class Turns:
    """Two groups since both have had waiting jobs: how many were served of the first one more than of the
    second, by their weights; and the limits of this number so far."""

    lead: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def serve(self, amount: float) -> None:
        self.lead += amount
        self.least, self.most = min(self.least, self.lead), max(self.most, self.lead)


@dataclass
class Band:
    """The waiting jobs of one priority."""

    #: group → its jobs
    jobs: dict[str, list[str]] = field(default_factory=lambda: {group: [] for group in WEIGHTS})
    turns: dict[tuple[str, str], Turns] = field(default_factory=dict)
    #: group → jobs of the others that were served since it has got its first job
    served: dict[str, Counter[str]] = field(default_factory=dict)
    #: groups of which jobs were cancelled: these count as served
    cancelled: set[str] = field(default_factory=set)
    #: jobs that were released, in the order in which they were served before
    released: list[tuple[int, str]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not any(self.jobs.values())

    @property
    def waits(self) -> bool:
        """Whether there is a job to serve."""
        return bool(self.released) or not self.is_empty

    def push(self, group: str, job_id: str) -> None:
        if not self.jobs[group]:
            if group or self.is_empty:
                self.cancelled.discard(group)
            self.served[group] = Counter()
            for other, jobs in self.jobs.items():
                if jobs:
                    self.turns[group, other] = Turns()
        self.jobs[group].append(job_id)

    def serve(self, job_id: str) -> None:
        """A job is served: it was released, or is the first one of its group, and the groups have their
        shares."""
        if self.released:
            assert job_id == self.released.pop(0)[1]
            return
        group = next((group for group, jobs in self.jobs.items() if jobs[:1] == [job_id]), None)
        assert group is not None
        self.check_join(group)
        for pair, turns in self.turns.items():
            if group in pair:
                turns.serve((1 if pair[0] == group else -1) / WEIGHTS[group])
                self.check_shares(pair, turns)
        for other, jobs in self.jobs.items():
            if jobs and other != group and other in self.served:
                self.served[other][group] += 1
        self.remove(group, job_id)

    def check_join(self, group: str) -> None:
        """A group gets its first turn after one of each other group."""
        before = self.served.pop(group, Counter())
        for other, count in before.items():
            if self.cancelled.isdisjoint({group, other}):
                assert count <= math.ceil(WEIGHTS[other] / WEIGHTS[group]), (group, before)

    def check_shares(self, pair: tuple[str, str], turns: Turns) -> None:
        if self.cancelled.isdisjoint(pair):
            assert turns.most - turns.least <= sum(1 / WEIGHTS[one] for one in pair) + 0.05, pair

    def cancel(self, group: str, job_id: str) -> None:
        self.cancelled.add(group)
        self.remove(group, job_id)

    def remove(self, group: str, job_id: str) -> None:
        self.jobs[group].remove(job_id)
        if not self.jobs[group]:
            self.turns = {pair: turns for pair, turns in self.turns.items() if group not in pair}


numbers = st.integers(0, 99)
priorities = st.sampled_from([0, 0, 0, 7])


class GroupMachine(Machine):
    """Pushes, claims and cancels jobs of groups."""

    @initialize()
    def begin(self) -> None:
        self.engine, self.keys = engine(self.name), keys(self.name)
        self.bands = {7: Band(), 0: Band()}
        self.pushed = itertools.count(1)
        #: id → order in which it was served first
        self.served: dict[str, int] = {}

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            super().teardown()

    @rule(
        groups=st.lists(st.sampled_from(sorted(WEIGHTS)), min_size=1, max_size=3),
        count=st.sampled_from([1, 1, 3, 6]), priority=priorities,
    )  # fmt: skip
    def push(self, groups: list[str], count: int, priority: int) -> None:
        made = []
        for group in groups * count:
            # ids in any order: that of jobs with one place
            job_id = f"{next(self.pushed) * 7919 % 10_000:04}"
            made.append(job(job_id, group, priority=priority, weight=WEIGHTS[group]))
            self.bands[priority].push(group, job_id)
        self.engine.push("q", made[0].id, made)

    @rule(count=st.sampled_from([1, 1, 2, 5]))
    def pop(self, count: int) -> None:
        self.take(count)

    def take(self, count: int) -> list[LeasedJob]:
        taken: list[LeasedJob] = self.engine.claim(["q"], count, LEASE).jobs
        for one in taken:
            next(band for band in self.bands.values() if band.waits).serve(one.lease.id)
            self.served.setdefault(one.lease.id, len(self.served))
        assert len(taken) == count or not any(band.waits for band in self.bands.values())
        return taken

    @rule(count=st.sampled_from([1, 2, 5]), order=st.randoms())
    def release(self, count: int, order: random.Random) -> None:
        """Serve jobs and release them, in any order: they have had their turns."""
        taken = self.take(count)
        order.shuffle(taken)
        for one in taken:
            assert self.engine.settle(one.lease.settlement(Outcome.RELEASE))
            insort(self.bands[one.state.priority].released, (self.served[one.lease.id], one.lease.id))

    @rule(at=numbers, verb=st.sampled_from(["cancel", "cancel last", "move"]))
    def cancel(self, at: int, verb: str) -> None:
        """Cancel a waiting job, or make it ready anew."""
        waiting = [
            (priority, group, jobs[-1] if verb == "cancel last" else jobs[at % len(jobs)])
            for priority, band in self.bands.items()
            for group, jobs in band.jobs.items()
            if jobs
        ]
        if not waiting:
            return
        priority, group, job_id = waiting[at % len(waiting)]
        self.bands[priority].cancel(group, job_id)
        if verb == "move":
            assert self.engine.reschedule("q", job_id, 0) == "q"
            self.bands[priority].push(group, job_id)
            self.bands[priority].cancelled.add(group)
        else:
            assert self.engine.cancel("q", job_id) == "q"

    @precondition(lambda self: any(band.waits for band in self.bands.values()))
    @rule()
    def empty(self) -> None:
        self.finish()

    def finish(self) -> None:
        """The remaining jobs are served, and nothing is kept of the groups."""
        while any(band.waits for band in self.bands.values()):
            self.pop(5)
        self.pop(1)
        if self.client.exists(self.keys.groups):
            # last places of jobs without a group, until the next job with a group has been served
            assert all(len(name.split()) == 2 for name in self.client.hkeys(self.keys.groups))


PLANTS: Plants = {
    "jobs/_places": {
        "weights are ignored": ("ROUND / 2 / weight + 0.5", "ROUND / 2 + 0.5"),
        "new groups come behind all": (
            "band.first = band.first or first_place(queue, band.low)",
            "band.first = band.last",
        ),
        "new groups come first": ("band.first + step - 2)", "band.first)"),
        "the last place of a group is forgotten": ("(last or -step) + step", "0"),
        "groups of all priorities are one": (
            "local name = group and band.priority .. ' ' .. group or band.priority",
            "local name = group or band.priority",
        ),
        "jobs without a group are passed": (
            "redis.call('HSET', queue.groups, 'last ' .. band.priority, digits(band.last))",
            "",
        ),
        "jobs without a group come last": ("if band.last % 2 == 0 and not", "if not"),
        "groups are never empty": ("'-1') <= 0 then", "'0') <= 0 then"),
    },
    "jobs/_waiting": {
        "released jobs are not counted": ("'jobs ' .. priority .. ' ' .. group, '1')", "'', '1')"),
        "released jobs get other places": ("BAND + turn % HALF", "BAND + HALF / 2"),
    },
    "jobs/_queue": {
        "cancelled jobs are counted": ("leave_group(queue, state)", ""),
    },
    "jobs/claim": {
        "claimed jobs are counted": ("  leave_group(queue, state)\n  local expired", "  local expired"),
    },
}


class TestMachine(MachineTests):
    machine = GroupMachine
    plants = PLANTS
    quick = ("weights are ignored", "new groups come behind all")
