"""Leaders: one candidate leads at a time; terms, their ends, and the hand-over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_messaging import (
    DelayQueue,
    InvalidArgument,
    Leader,
    LeaseLost,
    Lock,
    LockError,
    Term,
    Unavailable,
    deadline,
)
from django_redis_messaging.services.locks import leader as leaders

from ..conftest import Call
from ..support.leaders import Candidate
from ..support.leases import lose, renewed, until_async
from ..support.server import DEADLINE, until

pytestmark = pytest.mark.usefixtures("closing")
#: seconds: longer than any test
LONG = 1000


def importer(**options: Any) -> Leader:
    """Another object for the same leadership."""
    return Leader("importer", **{"timeout": LONG, **options})


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


class TestRun:
    async def test_the_function_leads_until_it_returns(self, call: Call) -> None:
        leader, seen = importer(), list[Any]()

        def lead(term: Term) -> str:
            seen.extend((term.fence, term.is_set(), term.lost, leader.info()))
            return "done"

        assert await call(leader, "run", lead) == "done"
        fence, *ended, info = seen
        assert ended == [False, False]
        assert info.holder is not None
        assert (info.fence, info.waiting) == (fence, 0)
        assert (await call(leader, "info")).holder is None

    @pytest.mark.parametrize("error", [Unavailable("a test"), KeyError("a test"), KeyboardInterrupt()])
    async def test_an_error_hands_over_and_is_raised(self, call: Call, error: BaseException) -> None:
        def fail(term: Term) -> None:
            raise error

        with pytest.raises(type(error)):
            await call(importer(), "run", fail)
        assert await call(importer(), "run", lambda term: 1) == 1

    async def test_an_interrupt_before_the_call_hands_over(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupts = [KeyboardInterrupt()]

        class Interrupted(Term):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                if interrupts:
                    raise interrupts.pop()

        monkeypatch.setattr(leaders, "Term", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            await call(importer(), "run", lambda term: 1)
        assert (await call(importer(), "info")).holder is None

    @pytest.mark.parametrize("leads", [True, False])
    async def test_a_coroutine_can_be_closed(self, leads: bool) -> None:
        """As when it is collected: from another context. Its lease ends, or its place in the queue does."""
        assert leads or await Lock("leader:importer").aacquire()
        terms = list[Term]()

        async def lead(term: Term) -> None:
            terms.append(term)
            await asyncio.Event().wait()

        coroutine = (leader := importer()).arun(lead)
        task = asyncio.ensure_future(coroutine)
        await until_async(lambda: terms if leads else leader.info().waiting)
        coroutine.close()
        assert renewed("leader:importer") == []
        task.cancel()
        with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
            await task

    async def test_a_deadline_limits_the_wait(self, call: Call) -> None:
        assert Lock("leader:importer").acquire()
        with deadline(0.3), pytest.raises(Unavailable):
            await call(importer(), "run", lambda term: 1)

    async def test_a_coroutine_function_needs_arun(self) -> None:
        async def lead(term: Term) -> int:
            return term.fence

        fence = await importer().arun(lead)
        assert fence == (await importer().ainfo()).fence
        for function in (lead, lambda term: lead(term)):
            with pytest.raises(TypeError, match=r"pass it to arun\(\)"):
                importer().run(function)

    def test_a_leader_can_not_wait_for_itself(self) -> None:
        with pytest.raises(LockError, match="not reentrant"):
            importer().run(lambda term: importer().run(lambda inner: 1))

    async def test_nothing_is_called_once_stop_is_set(self, call: Call) -> None:
        stop, called = threading.Event(), list[Term]()
        stop.set()
        assert await call(importer(), "run", called.append, stop=stop) is None
        assert called == []

    def test_arguments_are_checked(self) -> None:
        with pytest.raises(InvalidArgument):
            Leader("")
        with pytest.raises(InvalidArgument):
            importer(timeout=0)
        with pytest.raises(TypeError):
            importer(on_lost=1)
        with pytest.raises(TypeError, match="function must be callable"):
            importer().run("lead")  # type: ignore[arg-type]


@pytest.mark.timing
class TestCandidates:
    def test_they_lead_in_order(self, pool: ThreadPoolExecutor, call_style: str) -> None:
        leader = Candidate(pool, call_style, importer())
        leader.leads()
        candidates = [leader]
        for place in range(1, 4):
            candidates.append(Candidate(pool, call_style, importer()))
            candidates[-1].waits(place)
        for candidate in candidates:
            candidate.leads()
            assert candidate.ends() == "done"
        fences = [term.fence for one in candidates for term in one.terms]
        assert len(fences) == 4
        assert fences == sorted(set(fences))
        assert importer().info().holder is None

    def test_a_stopped_candidate_leaves_the_queue_at_once(
        self, pool: ThreadPoolExecutor, call_style: str
    ) -> None:
        """The others keep their places."""
        first = Candidate(pool, call_style, importer())
        first.leads()
        second = Candidate(pool, call_style, importer())
        second.waits()
        third = Candidate(pool, call_style, importer())
        third.waits(2)
        began = time.monotonic()
        second.stop.set()
        assert second.result.result(DEADLINE) is None
        assert time.monotonic() - began < 2.0
        assert (second.terms, importer().info().waiting) == ([], 1)
        first.ends()
        third.leads()
        third.ends()

    def test_stop_sets_the_term_of_the_leader(self, pool: ThreadPoolExecutor, call_style: str) -> None:
        leader = Candidate(pool, call_style, importer())
        term = leader.leads()
        leader.stop.set()
        assert leader.result.result(DEADLINE) == "done"
        assert importer().info().holder is None
        assert term.is_set()

    def test_a_leader_whose_lease_was_lost_runs_again(
        self, pool: ThreadPoolExecutor, call_style: str
    ) -> None:
        lost = list[LeaseLost]()
        leader = Candidate(pool, call_style, importer(timeout=0.6, on_lost=lost.append))
        term = leader.leads()
        lose(Lock("leader:importer"))
        assert leader.leads(2).fence > term.fence
        assert term.lost
        until(lambda: lost)
        assert leader.ends() == "done"

    def test_a_deposed_leader_waits_behind_the_others(
        self, pool: ThreadPoolExecutor, call_style: str
    ) -> None:
        leader = Candidate(pool, call_style, importer(timeout=0.6))
        term = leader.leads()
        other = Candidate(pool, call_style, importer())
        other.waits()
        assert importer().step_down()
        assert other.leads().fence > term.fence
        leader.waits()
        assert term.lost
        assert other.ends() == "done"
        leader.leads(2)
        assert leader.ends() == "done"


class TestTerm:
    async def test_step_down_without_a_leader(self, call: Call) -> None:
        assert not await call(importer(), "step_down")

    def test_a_term_ends_by_the_clock_of_its_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a pause, before any thread has noticed the end of the lease."""

        def lead(term: Term) -> list[bool]:
            before, now = term.is_set(), time.monotonic()
            monkeypatch.setattr(leaders, "monotonic", lambda: now + LONG)
            found = [before, term.is_set(), term.lost]
            stop.set()
            return found

        stop = threading.Event()
        assert importer().run(lead, stop=stop) == [False, True, True]

    def test_a_term_stops_other_loops(self) -> None:
        """It has the method of their `stop`."""
        queue, stop, done = DelayQueue("mail"), threading.Event(), list[Any]()
        queue.execute_later("add", [1])

        def add(number: int) -> None:
            done.append(number)
            stop.set()

        importer().run(lambda term: queue.work({"add": add}, stop=term), stop=stop)
        assert done == [1]
