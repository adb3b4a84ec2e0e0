"""The desk of a worker: who comes together is served together, and nobody is left standing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from django_redis_messaging.services.jobs.desk import Asking, Desk
from django_redis_messaging.services.jobs.engine import Claimed, Held, Verdict
from django_redis_messaging.services.jobs.values import state

#: seconds: what should happen has happened by then
PATIENCE = 10.0


def job(name: str) -> Held:
    return Held("default", name, b"[]", state(b"r 0 1 5 7 t 1 1 1 1 - "))


class Counter:
    """Stands for the round trip: jobs in their order, and a gate that holds the trip up."""

    def __init__(self, stock: int = 0) -> None:
        self.trips: list[tuple[list[str], int]] = []
        self.stock = [f"j{number}" for number in range(stock)]
        self.open = threading.Event()
        self.inside = threading.Event()
        self.stale: set[str] = set()
        self.breaks = 0

    def __call__(self, verdicts: Sequence[Verdict], wanted: int) -> Claimed:
        self.trips.append(([one.id for one in verdicts], wanted))
        self.inside.set()
        assert self.open.wait(PATIENCE)
        if self.breaks:
            self.breaks -= 1
            raise ConnectionError("cut")
        taken, self.stock = self.stock[:wanted], self.stock[wanted:]
        return Claimed(0, 1500, [one.id not in self.stale for one in verdicts], [job(one) for one in taken])


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.001)


def together(
    desk: Desk, counter: Counter, asks: Sequence[tuple[Verdict | None, bool]]
) -> list[Future[Asking]]:
    """The first asks, and while it is under way the others come, one after another; then all goes on."""
    pool = ThreadPoolExecutor(len(asks))
    futures = []
    for number, (verdict, wants) in enumerate(asks):
        futures.append(pool.submit(desk.ask, verdict, wants))
        if number:
            until(lambda number=number: len(desk._waiting) == number)  # type: ignore[misc]
        else:
            assert counter.inside.wait(PATIENCE)
    counter.open.set()
    pool.shutdown(wait=False)
    return futures


class TestDesk:
    def test_who_comes_alone_is_served_alone(self) -> None:
        counter = Counter(stock=2)
        counter.open.set()
        desk = Desk(counter)
        first, second = desk.ask(None, wants=True), desk.ask(job("j0").verdict("done"), wants=True)
        assert [asked.held and asked.held.id for asked in (first, second)] == ["j0", "j1"]
        assert first.due_in == 1.5
        assert counter.trips == [([], 1), (["j0"], 1)]

    def test_who_comes_meanwhile_shares_the_next_trip(self) -> None:
        counter = Counter(stock=10)
        done = [job(f"d{number}").verdict("done") for number in range(4)]
        futures = together(Desk(counter), counter, [(one, True) for one in done])
        held = [one.result(PATIENCE).held for one in futures]
        assert [one and one.id for one in held] == ["j0", "j1", "j2", "j3"]
        assert counter.trips == [(["d0"], 1), (["d1", "d2", "d3"], 3)]

    def test_each_learns_of_its_own_job(self) -> None:
        counter = Counter(stock=10)
        counter.stale = {"d1"}
        asks = [
            (job("d0").verdict("done"), True),
            (None, True),
            (job("d1").verdict("done"), False),
            (None, True),
        ]
        first, second, third, fourth = [
            one.result(PATIENCE) for one in together(Desk(counter), counter, asks)
        ]
        assert (first.ours, second.ours, third.ours, fourth.ours) == (True, True, False, True)
        assert third.held is None
        assert [one.held and one.held.id for one in (first, second, fourth)] == ["j0", "j1", "j2"]

    def test_where_there_are_too_few_jobs_the_last_ones_go_without(self) -> None:
        counter = Counter(stock=2)
        futures = together(Desk(counter), counter, [(None, True)] * 4)
        assert [bool(one.result(PATIENCE).held) for one in futures] == [True, True, False, False]

    def test_a_trip_that_fails_fails_for_all_who_shared_it_and_for_no_others(self) -> None:
        counter = Counter(stock=10)
        counter.breaks = 2
        desk = Desk(counter)
        for one in together(desk, counter, [(None, True)] * 4):
            with pytest.raises(ConnectionError, match="cut"):
                one.result(PATIENCE)
        assert desk.ask(None, wants=True).held

    def test_many_lanes_for_a_while_lose_no_job_and_get_none_twice(self) -> None:
        counter = Counter(stock=5000)
        counter.open.set()
        desk = Desk(counter)

        def lane(_: int) -> list[str]:
            got: list[str] = []
            while held := desk.ask(None, wants=True).held:
                got.append(held.id)
            return got

        with ThreadPoolExecutor(16) as pool:
            got = [one for lane_of in pool.map(lane, range(16)) for one in lane_of]
        assert sorted(got) == sorted(f"j{number}" for number in range(5000))
        assert sum(wanted for _, wanted in counter.trips) == 5000 + 16
