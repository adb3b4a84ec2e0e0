"""Claims of a worker's lanes that arrive together share a round trip, and none is left waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from django_redis_messaging.services.jobs.combining import Claim, Combiner
from django_redis_messaging.services.jobs.leases import (
    Claimed,
    Lease,
    LeasedJob,
    Outcome,
    Settlement,
    parse_state,
)

#: seconds: what should happen has happened by then
PATIENCE = 10.0


def job(name: str) -> LeasedJob:
    return LeasedJob(Lease("default", name, 7, "t"), b"[]", parse_state(b"r 0 1 5 7 t 1 1 1 1 - "))


class Counter:
    """Stands for the round trip: jobs in their order, and a gate that holds the trip up."""

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


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.001)


def together(
    combiner: Combiner, counter: Counter, asks: Sequence[tuple[Settlement | None, bool]]
) -> list[Future[Claim]]:
    """The first asks, and while it is under way the others come, one after another; then all goes on."""
    pool = ThreadPoolExecutor(len(asks))
    futures = []
    for number, (settlement, wants_job) in enumerate(asks):
        futures.append(pool.submit(combiner.claim, settlement, wants_job))
        if number:
            until(lambda number=number: len(combiner._waiting) == number)  # type: ignore[misc]
        else:
            assert counter.inside.wait(PATIENCE)
    counter.open.set()
    pool.shutdown(wait=False)
    return futures


class TestCombiner:
    def test_who_comes_alone_is_served_alone(self) -> None:
        counter = Counter(stock=2)
        counter.open.set()
        combiner = Combiner(counter)
        first, second = (
            combiner.claim(None, wants_job=True),
            combiner.claim(job("j0").lease.settled(Outcome.DONE), wants_job=True),
        )
        assert [claim.job and claim.job.lease.id for claim in (first, second)] == ["j0", "j1"]
        assert first.due_in == 1.5
        assert counter.trips == [([], 1), (["j0"], 1)]

    def test_who_comes_meanwhile_shares_the_next_trip(self) -> None:
        counter = Counter(stock=10)
        done = [job(f"d{number}").lease.settled(Outcome.DONE) for number in range(4)]
        futures = together(Combiner(counter), counter, [(one, True) for one in done])
        held = [one.result(PATIENCE).job for one in futures]
        assert [one and one.lease.id for one in held] == ["j0", "j1", "j2", "j3"]
        assert counter.trips == [(["d0"], 1), (["d1", "d2", "d3"], 3)]

    def test_each_learns_of_its_own_job(self) -> None:
        counter = Counter(stock=10)
        counter.stale = {"d1"}
        asks = [
            (job("d0").lease.settled(Outcome.DONE), True),
            (None, True),
            (job("d1").lease.settled(Outcome.DONE), False),
            (None, True),
        ]
        first, second, third, fourth = [
            one.result(PATIENCE) for one in together(Combiner(counter), counter, asks)
        ]
        assert (first.settled, second.settled, third.settled, fourth.settled) == (True, True, False, True)
        assert third.job is None
        assert [one.job and one.job.lease.id for one in (first, second, fourth)] == ["j0", "j1", "j2"]

    def test_where_there_are_too_few_jobs_the_last_ones_go_without(self) -> None:
        counter = Counter(stock=2)
        futures = together(Combiner(counter), counter, [(None, True)] * 4)
        assert [bool(one.result(PATIENCE).job) for one in futures] == [True, True, False, False]

    def test_a_trip_that_fails_fails_for_all_who_shared_it_and_for_no_others(self) -> None:
        counter = Counter(stock=10)
        counter.breaks = 2
        combiner = Combiner(counter)
        for one in together(combiner, counter, [(None, True)] * 4):
            with pytest.raises(ConnectionError, match="cut"):
                one.result(PATIENCE)
        assert combiner.claim(None, wants_job=True).job

    def test_many_lanes_for_a_while_lose_no_job_and_get_none_twice(self) -> None:
        counter = Counter(stock=5000)
        counter.open.set()
        combiner = Combiner(counter)

        def lane(_: int) -> list[str]:
            got: list[str] = []
            while held := combiner.claim(None, wants_job=True).job:
                got.append(held.lease.id)
            return got

        with ThreadPoolExecutor(16) as pool:
            got = [one for lane_of in pool.map(lane, range(16)) for one in lane_of]
        assert sorted(got) == sorted(f"j{number}" for number in range(5000))
        assert sum(wanted for _, wanted in counter.trips) == 5000 + 16
