"""Leaders and faults: killed and suspended leaders, lost replies, outages, full memory."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess

import pytest

from django_redis_messaging import Leader, Lock, Term, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.locks.lock import LEAVE_DEADLINE

from ..conftest import Call
from ..support.child_processes import Stage
from ..support.faults import PATIENCE, Connect, processes, unavailable
from ..support.leaders import LEASE, Candidate, work
from ..support.leases import pause
from ..support.proxy import LossyProxy

Until = Callable[[Callable[[], object]], None]
pytestmark = pytest.mark.one_server
#: seconds of tolerance for a busy machine
SLACK = 2.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def importer(timeout: float = 1000) -> Leader:
    """Another object for the same leadership."""
    return Leader("importer", timeout=timeout)


@pytest.mark.promise
class TestProcesses:
    @pytest.fixture
    def stage(self, lasting: EmbeddedServer, connect: Connect) -> Stage:
        return connect(lasting)

    @pytest.fixture
    def written(self, stage: Stage, lasting: EmbeddedServer) -> Iterator[Callable[[str], list[int]]]:
        """The fences in a list that the leaders write."""
        with lasting.client() as client:
            yield lambda what: [int(one) for one in client.lrange(f"{conf.prefix()}:{what}", 0, -1)]

    def start(self, stage: Stage) -> BaseProcess:
        process = processes.Process(target=work, args=(stage,), daemon=True)
        process.start()
        return process

    def test_the_next_one_leads_when_the_lease_of_a_killed_leader_ends(
        self, stage: Stage, written: Callable[[str], list[int]], until: Until
    ) -> None:
        first = self.start(stage)
        until(lambda: written("written"))
        second = self.start(stage)
        until(lambda: importer().info().waiting == 1)
        killed_at = time.monotonic()
        first.kill()
        until(lambda: len(set(written("written"))) == 2)
        assert time.monotonic() - killed_at < LEASE + SLACK
        fences = written("written")
        assert fences == sorted(fences), "both have written at a time"
        second.kill()
        first.join(PATIENCE)
        second.join(PATIENCE)

    def test_a_suspended_leader_ends_its_term_at_once(
        self, stage: Stage, written: Callable[[str], list[int]], until: Until
    ) -> None:
        """It may write once more, with its smaller fence, if it was suspended just before a write."""
        first = self.start(stage)
        until(lambda: written("written"))
        second = self.start(stage)
        until(lambda: importer().info().waiting == 1)
        assert first.pid
        os.kill(first.pid, signal.SIGSTOP)
        until(lambda: len(set(written("written"))) == 2)
        [earlier, later] = sorted(set(written("written")))
        before = written("written").count(earlier)
        os.kill(first.pid, signal.SIGCONT)
        until(lambda: written("over") == [earlier])
        assert written("written").count(earlier) <= before + 1
        until(lambda: importer().info().waiting == 1)  # it is a candidate again
        assert importer().info().fence == later
        for process in (first, second):
            process.kill()
            process.join(PATIENCE)


async def test_each_call_leads_once_although_replies_are_lost(call: Call, lossy: LossyProxy) -> None:
    fences: list[int] = []
    for _ in range(12):
        await call(importer(), "run", lambda term: fences.append(term.fence))
    assert lossy.lost
    assert len(fences) == 12
    assert fences == sorted(set(fences))
    lossy.lose_next(0)
    assert importer().info().holder is None


@pytest.mark.timing
class TestOutages:
    @pytest.fixture
    def seconds(self) -> float:
        """COMMAND_DEADLINE."""
        return 0.3

    @pytest.fixture
    def candidate(
        self,
        seconds: float,
        fragile: EmbeddedServer,
        connect: Connect,
        pool: ThreadPoolExecutor,
        call_style: str,
        until: Until,
    ) -> Iterator[Candidate]:
        """It waits behind a lock of this thread."""
        connect(fragile, COMMAND_DEADLINE=seconds)
        self.lock = Lock("leader:importer", timeout=2)
        assert self.lock.acquire()
        candidate = Candidate(pool, call_style, importer())
        candidate.waits()
        yield candidate
        candidate.stop.set()

    @pytest.mark.parametrize("how", ["frozen", "stopped"])
    def test_a_candidate_waits_through_an_outage(
        self,
        how: str,
        candidate: Candidate,
        fragile: EmbeddedServer,
        caplog: pytest.LogCaptureFixture,
        until: Until,
    ) -> None:
        with unavailable(fragile, how):
            until(lambda: "Waiting for the lock 'leader:importer' failed, retrying in" in caplog.text)
        candidate.leads()
        assert candidate.ends() == "done"

    @pytest.mark.parametrize(("how", "seconds", "allowed"), [("stopped", PATIENCE, 0), ("frozen", 8.0, 4.0)])
    def test_a_candidate_stops_during_an_outage(
        self, how: str, allowed: float, candidate: Candidate, fragile: EmbeddedServer
    ) -> None:
        """At once, or after the reply timeout of the request that is pending."""
        with unavailable(fragile, how):
            pause(1.0)  # it sends, or retries a step meanwhile
            began = time.monotonic()
            candidate.stop.set()
            assert candidate.result.result(PATIENCE) is None
            assert time.monotonic() - began < allowed + SLACK

    def test_a_leader_that_can_not_reach_redis_ends_before_its_lease_does(
        self, fragile: EmbeddedServer, connect: Connect
    ) -> None:
        """Its result is returned soon, although the leadership could not be handed over."""
        connect(fragile, COMMAND_DEADLINE=PATIENCE)
        stop, led, outage = threading.Event(), list[float](), unavailable(fragile, "stopped")

        def lead(term: Term) -> str:
            outage.__enter__()
            led.append(time.monotonic())
            while not term.is_set():
                time.sleep(0.01)
                led.append(time.monotonic())
            stop.set()
            return "done"

        try:
            assert importer(timeout=1.0).run(lead, stop=stop) == "done"
            assert time.monotonic() - led[-1] < LEAVE_DEADLINE + SLACK
        finally:
            outage.__exit__(None, None, None)
        began, *_, last, _ = led  # at the last but one check, the term was not set
        assert last < began + 1.0
        assert importer().run(lambda term: "again") == "again"

    def test_a_leader_whose_lease_ends_during_an_outage_leads_again(
        self,
        fragile: EmbeddedServer,
        connect: Connect,
        pool: ThreadPoolExecutor,
        call_style: str,
        caplog: pytest.LogCaptureFixture,
        until: Until,
    ) -> None:
        connect(fragile, COMMAND_DEADLINE=0.3)
        leader = Candidate(pool, call_style, importer(timeout=1.0))
        fence = leader.leads().fence
        with unavailable(fragile):
            until(lambda: "'leader:importer' was not released" in caplog.text)
        assert leader.leads(2).fence > fence
        assert leader.ends() == "done"


async def test_a_leader_is_elected_when_memory_is_full(call: Call, fill: Callable[[], None]) -> None:
    fill()
    assert await call(importer(), "run", lambda term: term.is_set()) is False
