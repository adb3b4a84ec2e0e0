"""Claims of a worker's lanes that arrive together share a round trip, and none is left waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from django_redis_messaging.services.jobs.engine import (
    Claimed,
    Lease,
    LeasedJob,
    Outcome,
    Settlement,
    parse_state,
)
from django_redis_messaging.services.jobs.worker import Claim, Combiner

#: seconds to wait for an expected condition
PATIENCE = 10.0


def job(name: str) -> LeasedJob:
    return LeasedJob(Lease("default", name, 7, "t"), b"[]", parse_state(b"r 0 1 0 5 7 t 1 1 1 1 - 0 "))


class Counter:
    """Replaces the round trip: hands out jobs in order, with a gate that blocks it."""

    def __init__(self, stock: int = 0) -> None:
        self.trips: list[tuple[list[str], int]] = []
        self.stock = [f"j{number}" for number in range(stock)]
        self.open = threading.Event()
        self.inside = threading.Event()
        self.stale: set[str] = set()
        self.breaks = 0

    def __call__(self, settlements: Sequence[Settlement], wanted: int) -> Claimed:
        self.trips.append(([one.lease.id for one in settlements], wanted))
        self.inside.set()
        assert self.open.wait(PATIENCE)
        if self.breaks:
            self.breaks -= 1
            raise ConnectionError("cut")
        taken, self.stock = self.stock[:wanted], self.stock[wanted:]
        return Claimed(
            0, 1.5, [one.lease.id not in self.stale for one in settlements], [job(one) for one in taken]
        )


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def claim_together(
    combiner: Combiner, counter: Counter, claims: Sequence[tuple[Settlement | None, bool]]
) -> list[Future[Claim]]:
    """Start the first claim, add the others while it is blocked, one after another, then open the gate."""
    pool = ThreadPoolExecutor(len(claims))
    futures = []
    for number, (settlement, wants_job) in enumerate(claims):
        futures.append(pool.submit(combiner.claim, settlement, wants_job))
        if number:
            until(lambda number=number: len(combiner._waiting) == number)  # type: ignore[misc]
        else:
            assert counter.inside.wait(PATIENCE)
    counter.open.set()
    pool.shutdown(wait=False)
    return futures


class TestCombiner:
    def test_single_claims_are_sent_separately(self) -> None:
        counter = Counter(stock=2)
        counter.open.set()
        combiner = Combiner(counter)
        first, second = (
            combiner.claim(None, wants_job=True),
            combiner.claim(job("j0").lease.settlement(Outcome.DONE), wants_job=True),
        )
        assert [claim.job and claim.job.lease.id for claim in (first, second)] == ["j0", "j1"]
        assert first.due_in == 1.5
        assert counter.trips == [([], 1), (["j0"], 1)]

    def test_claims_during_a_trip_share_the_next_one(self) -> None:
        counter = Counter(stock=10)
        done = [job(f"d{number}").lease.settlement(Outcome.DONE) for number in range(4)]
        futures = claim_together(Combiner(counter), counter, [(one, True) for one in done])
        leased = [future.result(PATIENCE).job for future in futures]
        assert [one and one.lease.id for one in leased] == ["j0", "j1", "j2", "j3"]
        assert counter.trips == [(["d0"], 1), (["d1", "d2", "d3"], 3)]

    def test_each_claim_gets_its_own_job_and_settlement(self) -> None:
        counter = Counter(stock=10)
        counter.stale = {"d1"}
        claims = [
            (job("d0").lease.settlement(Outcome.DONE), True),
            (None, True),
            (job("d1").lease.settlement(Outcome.DONE), False),
            (None, True),
        ]
        first, second, third, fourth = [
            one.result(PATIENCE) for one in claim_together(Combiner(counter), counter, claims)
        ]
        assert (first.applied, second.applied, third.applied, fourth.applied) == (True, True, False, True)
        assert third.job is None
        assert [one.job and one.job.lease.id for one in (first, second, fourth)] == ["j0", "j1", "j2"]

    def test_last_claims_get_none_if_there_are_too_few_jobs(self) -> None:
        counter = Counter(stock=2)
        futures = claim_together(Combiner(counter), counter, [(None, True)] * 4)
        assert [bool(one.result(PATIENCE).job) for one in futures] == [True, True, False, False]

    def test_failed_trip_fails_for_its_claims_only(self) -> None:
        counter = Counter(stock=10)
        counter.breaks = 2
        combiner = Combiner(counter)
        for one in claim_together(combiner, counter, [(None, True)] * 4):
            with pytest.raises(ConnectionError, match="cut"):
                one.result(PATIENCE)
        assert combiner.claim(None, wants_job=True).job

    def test_many_lanes_lose_no_job_and_get_none_twice(self) -> None:
        counter = Counter(stock=5000)
        counter.open.set()
        combiner = Combiner(counter)

        def lane(_: int) -> list[str]:
            got: list[str] = []
            while leased := combiner.claim(None, wants_job=True).job:
                got.append(leased.lease.id)
            return got

        with ThreadPoolExecutor(16) as pool:
            got = [one for lane_of in pool.map(lane, range(16)) for one in lane_of]
        assert sorted(got) == sorted(f"j{number}" for number in range(5000))
        assert sum(wanted for _, wanted in counter.trips) == 5000 + 16
