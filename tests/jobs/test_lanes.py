"""The lanes of a worker, without a worker: claims that share a round trip, and jobs that run alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from django_redis_messaging.services.jobs.engine import (
    Claimed,
    Engine,
    Lease,
    LeasedJob,
    Outcome,
    Settlement,
    parse_state,
)
from django_redis_messaging.services.jobs.worker import Admission, Claim, Combiner, LoneStarts, _Tries

from ..support.server import DEADLINE, until


def job(name: str) -> LeasedJob:
    state = parse_state(b"running attempts=1/5 pushed=1 due=1 fence=7 token=t first=1")
    return LeasedJob(Lease("default", name, 7, "t"), b"[]", state)


def done(name: str) -> Settlement:
    return job(name).lease.settlement(Outcome.DONE)


def ids(claims: Sequence[Claim]) -> list[str | None]:
    """The jobs that claims got."""
    return [claim.job.lease.id if claim.job else None for claim in claims]


class Counter:
    """Replaces the round trip: hands out jobs in order, with a gate that blocks it."""

    def __init__(self, stock: int = 10) -> None:
        self.trips: list[tuple[list[str], int]] = []
        self.stock = [f"j{number}" for number in range(stock)]
        self.open = threading.Event()
        self.inside = threading.Event()
        self.stale: set[str] = set()
        self.breaks = 0
        self.combiner = Combiner(self)

    def __call__(self, settlements: Sequence[Settlement], wanted: int) -> Claimed:
        self.trips.append(([one.lease.id for one in settlements], wanted))
        self.inside.set()
        assert self.open.wait(DEADLINE)
        if self.breaks:
            self.breaks -= 1
            raise ConnectionError("cut")
        taken, self.stock = self.stock[:wanted], self.stock[wanted:]
        applied = [one.lease.id not in self.stale for one in settlements]
        return Claimed(0, 1.5, applied, [job(one) for one in taken])

    def start(self, claims: Sequence[tuple[Settlement | None, bool]]) -> list[Future[Claim]]:
        """Start the first claim, add the others while it is blocked, then open the gate."""
        pool = ThreadPoolExecutor(len(claims))
        futures = []
        for number, (settlement, wants_job) in enumerate(claims):
            futures.append(pool.submit(self.combiner.claim, settlement, wants_job))
            if number:
                until(lambda number=number: len(self.combiner._waiting) == number)  # type: ignore[misc]
            else:
                assert self.inside.wait(DEADLINE)
        self.open.set()
        pool.shutdown(wait=False)
        return futures

    def claim_together(self, claims: Sequence[tuple[Settlement | None, bool]]) -> list[Claim]:
        return [future.result(DEADLINE) for future in self.start(claims)]


class TestCombiner:
    def test_single_claims_are_sent_separately(self) -> None:
        counter = Counter()
        counter.open.set()
        claims = [counter.combiner.claim(one, wants_job=True) for one in (None, done("j0"))]
        assert ids(claims) == ["j0", "j1"]
        assert claims[0].due_in == 1.5
        assert counter.trips == [([], 1), (["j0"], 1)]

    def test_claims_during_a_trip_share_the_next_one(self) -> None:
        counter = Counter()
        claims = counter.claim_together([(done(f"d{number}"), True) for number in range(4)])
        assert ids(claims) == ["j0", "j1", "j2", "j3"]
        assert counter.trips == [(["d0"], 1), (["d1", "d2", "d3"], 3)]

    def test_each_claim_gets_its_own_job_and_settlement(self) -> None:
        counter = Counter()
        counter.stale = {"d1"}
        claims = counter.claim_together([(done("d0"), True), (None, True), (done("d1"), False), (None, True)])
        assert [claim.applied for claim in claims] == [True, True, False, True]
        assert ids(claims) == ["j0", "j1", None, "j2"]

    def test_last_claims_get_none_if_there_are_too_few_jobs(self) -> None:
        claims = Counter(stock=2).claim_together([(None, True)] * 4)
        assert ids(claims) == ["j0", "j1", None, None]

    def test_failed_trip_fails_for_its_claims_only(self) -> None:
        counter = Counter()
        counter.breaks = 2
        for one in counter.start([(None, True)] * 4):
            with pytest.raises(ConnectionError, match="cut"):
                one.result(DEADLINE)
        assert counter.combiner.claim(None, wants_job=True).job

    def test_many_lanes_lose_no_job_and_get_none_twice(self) -> None:
        counter = Counter(stock=2000)
        counter.open.set()

        def lane(_: int) -> list[str]:
            got: list[str] = []
            while leased := counter.combiner.claim(None, wants_job=True).job:
                got.append(leased.lease.id)
            return got

        with ThreadPoolExecutor(16) as pool:
            got = [one for lane_of in pool.map(lane, range(16)) for one in lane_of]
        assert sorted(got) == sorted(f"j{number}" for number in range(2000))
        assert sum(wanted for _, wanted in counter.trips) == 2000 + 16


@pytest.fixture
def admission() -> Admission:
    """With a lane that runs a job."""
    made = Admission()
    assert made.enter(wait=False)
    return made


def may_start_alone(admission: Admission) -> bool:
    """Whether a job may run alone at once, in a lane of its own."""
    assert admission.enter(wait=False)
    with admission.alone(0) as is_alone:
        admission.leave(started=is_alone)
        return is_alone


class TestLoneJobs:
    def test_a_job_that_runs_alone_waits_until_others_have_ended_and_are_settled(
        self, admission: Admission
    ) -> None:
        """If it ended this process, their ends would be lost, too."""
        assert not may_start_alone(admission)
        admission.leave(started=True, unsettled=True)
        assert not may_start_alone(admission)
        admission.count_settled()
        assert may_start_alone(admission)

    def test_a_lone_job_runs_beside_others_but_not_beside_one_of_its_kind(self, admission: Admission) -> None:
        with admission.beside() as first, admission.beside() as second:
            assert (first, second) == (True, False)
            assert not may_start_alone(admission)
        admission.leave(started=True)
        with admission.beside() as again:
            assert again
        assert may_start_alone(admission)

    def test_a_lone_job_does_not_run_beside_one_that_runs_alone(self, admission: Admission) -> None:
        with admission.alone(0) as is_alone:
            assert is_alone
            with admission.beside() as may_start:
                assert not may_start

    def test_a_lane_that_waits_is_woken_each_time(self) -> None:
        admission = Admission(1)
        assert admission.enter(wait=False)
        with ThreadPoolExecutor(1) as pool:
            for _ in range(2):
                entered = pool.submit(admission.enter, wait=True)
                until(lambda: admission._waiting == 1)
                admission.leave(started=False)
                assert entered.result(DEADLINE)
                assert admission._waiting == 0

    def test_after_a_wait_no_other_job_waits_for_as_long(self, admission: Admission) -> None:
        """Else jobs that take turns to wait would keep all lanes from claiming."""

        def wait(pause: float) -> float:
            """Wait in vain to run alone; what is left of the pause."""
            tries = _Tries(pause=pause)
            with starts._alone(tries) as is_alone:
                assert not is_alone
            return tries.pause

        starts = LoneStarts(Engine("prefix", "queue", "name"), "default", "worker", admission)
        assert admission.enter(wait=False)  # the lane of those that must run alone
        assert wait(0.2) == 0.0
        over = time.monotonic()
        assert wait(3.0) > 1.0
        until(lambda: time.monotonic() > over + 0.3)
        assert wait(0.01) == 0.0
