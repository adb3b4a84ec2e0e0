"""Semaphores and faults: defects of the original design, lost replies, full memory, and killed clients."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

from django_redis_messaging import OutcomeUnknown, Semaphore, SemaphoreError, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.semaphores.semaphore import Permit

from ..conftest import Call
from ..support.child_processes import Stage
from ..support.faults import PATIENCE, Connect, kill_at_random, kill_process, processes, start_process
from ..support.leases import waiters
from ..support.proxy import LossyProxy
from ..support.pytest_hooks import LONG
from ..support.semaphore_processes import LEASE, LIMIT, hold, wait, work
from ..support.server import reply_to, server, steps

Until = Callable[[Callable[[], object]], None]


class Original:
    """Holders by the caller's clock, and by a counter that is drawn in one transaction and inserted in the
    next."""

    #: seconds
    TIMEOUT = 10

    def __init__(self, limit: int) -> None:
        self.limit = limit
        start = f"{conf.prefix()}:{{original}}"
        self.times, self.owners, self.counter = start, f"{start}:owners", f"{start}:counter"

    def acquire(self, now: Callable[[], float] = time.time) -> Generator[None, None, str | None]:
        """Yields between its two transactions."""
        token = uuid.uuid4().hex
        moment = now()
        pipeline = server().pipeline(transaction=True)
        pipeline.zremrangebyscore(self.times, "-inf", moment - self.TIMEOUT)
        pipeline.zinterstore(self.owners, {self.owners: 1, self.times: 0})
        pipeline.incr(self.counter)
        drawn = pipeline.execute()[-1]
        yield
        pipeline.zadd(self.times, {token: moment})
        pipeline.zadd(self.owners, {token: drawn})
        pipeline.zrank(self.owners, token)
        if pipeline.execute()[-1] < self.limit:
            return token
        server().zrem(self.times, token)
        server().zrem(self.owners, token)
        return None


def finish(acquiring: Generator[None, None, str | None]) -> str | None:
    """Complete it; returns the token if it got a permit."""
    try:
        while True:
            next(acquiring)
    except StopIteration as stop:
        return cast("str | None", stop.value)


class TestDefects:
    """Each defect of the original design is shown, and that this implementation avoids it."""

    def test_the_original_grants_the_last_permit_twice(self) -> None:
        original = Original(1)
        slow, quick = original.acquire(), original.acquire()
        next(slow)
        assert finish(quick)
        assert finish(slow), "who drew first inserts later, and comes before the one that has it"

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_our_acquire_is_atomic(self, order: tuple[int, int]) -> None:
        """Each is one script: the first script gets the permit."""
        bodies = [steps(Semaphore("s", 1)._acquire, Permit(token), 0) for token in ("one", "other")]
        asked, granted = [next(body) for body in bodies], []
        for which in order:
            with pytest.raises(StopIteration) as ended:
                bodies[which].send(reply_to(asked[which]))
            granted.append(ended.value.value)
        assert granted == [True, False]

    def test_a_fast_clock_takes_permits_only_in_the_original(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original, ours = Original(1), Semaphore("s", 1, timeout=Original.TIMEOUT)
        assert finish(original.acquire())
        assert finish(original.acquire(lambda: time.time() + Original.TIMEOUT + 1))
        assert ours.acquire()
        for now in (time.time() + 1e6, 0.0):
            monkeypatch.setattr(time, "time", lambda: now)  # noqa: B023
            assert not Semaphore("s", 1).acquire()
        assert ours.refresh()
        ours.release()
        assert Semaphore("s", 1).acquire()

    def test_a_rejected_client_does_not_delay_others(self) -> None:
        """In the original each attempt took a rank briefly, so that two could reject each other."""
        original = Original(2)
        assert finish(original.acquire())
        one, other = original.acquire(), original.acquire()
        next(one)
        next(other)
        outcomes = [finish(other), finish(one)]
        assert all(outcomes), "three have two permits"
        assert [Semaphore("s", 2).acquire() for _ in range(3)] == [True, True, False]


def room(limit: int = 1, **options: Any) -> Semaphore:
    """Another object for a semaphore whose leases are longer than any test."""
    return Semaphore("room", limit, **{"timeout": 1000, **options})


@pytest.mark.one_server
class TestLostReplies:
    async def test_no_permit_is_acquired_twice_or_lost(self, call: Call, lossy: LossyProxy) -> None:
        """A repeated release that finds nothing to release does not raise either."""
        semaphore, permits = room(5), range(5)
        for _ in range(6):
            for _ in permits:
                assert await call(semaphore, "acquire")
            assert not await call(semaphore, "acquire")
            assert (await call(semaphore, "info")).held == 5
            assert await call(semaphore, "refresh")
            for _ in permits:
                await call(semaphore, "release")
            assert (await call(semaphore, "info")).held == 0
        assert lossy.lost > 15

    def test_each_waiting_client_has_one_place_and_is_woken(self, lossy: LossyProxy) -> None:
        """A client without a reply for long may lose its place."""
        semaphore = room()
        assert semaphore.acquire()
        with waiters(semaphore, 4) as threads:
            for thread in threads:
                thread.go_on.set()
            semaphore.release()
            for thread in threads:
                thread.leave()
        assert semaphore.info().held == 0

    async def test_an_unknown_grant_expires(self, call: Call, connect: Connect, proxy: LossyProxy) -> None:
        connect(proxy, COMMAND_DEADLINE=0.2)
        semaphore = room(timeout=0.5)
        proxy.lose_next(1000)
        with pytest.raises(OutcomeUnknown):
            await call(semaphore, "acquire")
        proxy.lose_next(0)
        with pytest.raises(SemaphoreError):
            await call(semaphore, "release")
        assert await call(semaphore, "acquire", True, 10)


@pytest.mark.one_server
async def test_all_operations_work_when_memory_is_full(call: Call, fill: Callable[[], None]) -> None:
    semaphore, other = room(2), room(2)
    assert await call(semaphore, "acquire")
    fill()
    assert await call(semaphore, "refresh")
    assert await call(other, "acquire")
    assert not await call(room(), "acquire", True, 0.01)
    await call(semaphore, "set_limit", 1)
    await call(semaphore, "release")
    with waiters(room()) as [thread]:
        await call(other, "release")
        thread.leave()
    assert (await call(semaphore, "info")).held == 0
    assert await call(Semaphore("another", 1), "acquire")


@pytest.mark.one_server
@pytest.mark.promise
class TestKilled:
    """The limit holds while holders and waiting clients are killed, and their permits are released."""

    #: seconds of delay allowed on a busy machine
    SLACK = 2.0

    @pytest.fixture
    def stage(self, lasting: EmbeddedServer, connect: Connect) -> Stage:
        return connect(lasting)

    def test_the_limit_holds_while_processes_are_killed(
        self, stage: Stage, lasting: EmbeddedServer, tmp_path: Path, until: Until
    ) -> None:
        size, kills, between = (8, 60, 300) if LONG else (5, 5, 50)

        def count(what: str) -> int:
            return int(client.get(f"{conf.prefix()}:{what}") or 0)

        with lasting.client() as client:
            kill_at_random(
                lambda seed: start_process(work, stage, str(tmp_path), seed),
                lambda: count("passed"),
                until,
                size=size,
                kills=kills,
                between=between,
            )
            assert count("crowded") == 0
        semaphore = Semaphore("room", LIMIT)
        for _ in range(LIMIT):  # the permits of killed processes are released
            assert semaphore.acquire(blocking=True, blocking_timeout=2 * LEASE)
        assert semaphore.info().held == LIMIT

    def test_a_killed_holders_permit_comes_back_after_its_lease(self, stage: Stage) -> None:
        parent_end, child_end = processes.Pipe()
        holder = start_process(hold, stage, 1.0, child_end)
        assert parent_end.poll(PATIENCE)
        assert parent_end.recv() is True
        began = time.monotonic()
        kill_process(holder)
        assert not room().acquire()
        assert room().acquire(blocking=True, blocking_timeout=PATIENCE)
        # the lease began slightly earlier, and waiting clients check when it ends
        assert time.monotonic() - began < 1.0 + self.SLACK

    def test_a_killed_waiter_is_skipped_within_a_second(self, stage: Stage, until: Until) -> None:
        semaphore = room()
        assert semaphore.acquire()
        waiter = start_process(wait, stage)
        until(lambda: semaphore.info().waiting == 1)
        kill_process(waiter)
        semaphore.release()
        began = time.monotonic()
        assert semaphore.acquire(blocking=True, blocking_timeout=PATIENCE)
        assert time.monotonic() - began < 1.0 + self.SLACK
