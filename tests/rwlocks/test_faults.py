"""Read-write locks and faults: lost replies, full memory, and killed clients."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_messaging import OutcomeUnknown, ReadWriteLock, Unavailable, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.rwlocks.rwlock import ReadWriteLockKeys

from ..conftest import Call
from ..support.child_processes import Stage
from ..support.faults import PATIENCE, Connect, kill_at_random, kill_process, processes, start_process
from ..support.leases import waiters, write_lock
from ..support.proxy import LossyProxy
from ..support.pytest_hooks import LONG
from ..support.rwlock_processes import LEASE, hold, wait, work

Until = Callable[[Callable[[], object]], None]


def shelf(**options: Any) -> ReadWriteLock:
    """Another object for a lock whose leases are longer than any test."""
    return ReadWriteLock("shelf", **{"timeout": 1000, **options})


@pytest.mark.one_server
class TestLostReplies:
    async def test_each_operation_is_applied_once(self, call: Call, lossy: LossyProxy) -> None:
        fences = []
        for _ in range(6):
            readers, writer = [shelf().read for _ in range(3)], shelf().write
            for reader in readers:
                assert await call(reader, "acquire")
            assert not await call(writer, "acquire", blocking=False)
            assert (await call(shelf(), "info")).readers == 3
            for reader in readers:
                await call(reader, "extend")
                await call(reader, "release")
            assert await call(writer, "acquire", blocking=False)
            info = await call(shelf(), "info")
            assert (info.fence, len(info.holders)) == (writer.fence, 1)
            await call(writer, "release")
            fences += [one.fence for one in (*readers, writer)]
        assert lossy.lost > 15
        assert fences == sorted(set(fences))
        assert (await call(shelf(), "info")).holders == ()

    def test_each_waiting_client_has_one_place_and_is_woken(self, lossy: LossyProxy) -> None:
        lock = write_lock("shelf", timeout=1000)
        assert lock.acquire()
        with waiters(lock, 4) as threads:
            for thread in threads:
                thread.go_on.set()
            lock.release()
            for thread in threads:
                thread.leave()
        assert shelf().info().holders == ()

    async def test_an_unknown_grant_expires(self, call: Call, connect: Connect, proxy: LossyProxy) -> None:
        connect(proxy, COMMAND_DEADLINE=0.2)
        assert (await call(shelf(), "info")).readers == 0  # there is a connection
        proxy.lose_next(1000)
        with pytest.raises(OutcomeUnknown):
            await call(shelf(timeout=0.5).write, "acquire")
        proxy.lose_next(0)
        assert await call(shelf().read, "acquire", blocking_timeout=PATIENCE)


@pytest.mark.one_server
async def test_full_memory_rejects_new_locks_but_no_operation_of_known_ones(
    fill: Callable[[], None], raw: redis.Redis, until: Until, call: Call
) -> None:
    """Held ones are extended and released; waiting clients keep their places and acquire."""
    lock, other = shelf(), write_lock("other", timeout=1000)
    assert await call(lock.read, "acquire")
    assert other.acquire()
    alive = ReadWriteLockKeys(conf.prefix(), "other").alive
    with waiters(other) as [thread]:
        fill()
        before = raw.zrange(alive, 0, -1, withscores=True)
        until(lambda: raw.zrange(alive, 0, -1, withscores=True) != before)  # it polls
        new = ReadWriteLock("new")
        with pytest.raises(Unavailable):
            await call(new.write, "acquire")
        assert not raw.exists(*new._keys.all)
        await call(lock.read, "extend")
        assert not await call(shelf().write, "acquire", blocking_timeout=0.01)
        await call(lock.read, "release")
        other.release()
        thread.leave()
    assert (await call(lock, "info")).holders == ()


@pytest.mark.one_server
@pytest.mark.promise
class TestKilled:
    """Nobody is beside a writer while holders and waiting clients are killed, and their leases end."""

    #: seconds of delay allowed on a busy machine
    SLACK = 2.0

    @pytest.fixture
    def stage(self, lasting: EmbeddedServer, connect: Connect) -> Stage:
        return connect(lasting)

    def test_nobody_is_beside_a_writer_while_processes_are_killed(
        self, stage: Stage, lasting: EmbeddedServer, tmp_path: Path, until: Until
    ) -> None:
        size, kills, between = (8, 60, 300) if LONG else (5, 3, 50)

        def count(*what: str) -> int:
            return sum(int(client.get(f"{conf.prefix()}:{one}") or 0) for one in what)

        with lasting.client() as client:
            kill_at_random(
                lambda seed: start_process(work, stage, str(tmp_path / "shelf"), seed),
                lambda: count("reads", "writes"),
                until,
                size=size,
                kills=kills,
                between=between,
            )
            assert count("conflicts", "stale") == 0
            assert count("writes") > between / 2
            assert count("shared") > between / 2, "readers were not together: the test is inconclusive"
        assert shelf().write.acquire(blocking_timeout=2 * LEASE + self.SLACK)

    @pytest.mark.parametrize(("held", "wanted"), [("read", "write"), ("write", "read")])
    def test_the_lease_of_a_killed_holder_ends(self, held: str, wanted: str, stage: Stage) -> None:
        parent_end, child_end = processes.Pipe()
        holder = start_process(hold, stage, held, 1.0, child_end)
        assert parent_end.poll(PATIENCE)
        assert parent_end.recv() is True
        began = time.monotonic()
        kill_process(holder)
        side = getattr(shelf(), wanted)
        assert not side.acquire(blocking=False)
        assert side.acquire(blocking_timeout=PATIENCE)
        # the lease began slightly earlier, and waiting clients check when it ends
        assert time.monotonic() - began < 1.0 + self.SLACK

    @pytest.mark.parametrize("waiting", ["read", "write"])
    def test_a_killed_waiter_is_skipped_within_a_second(
        self, waiting: str, stage: Stage, until: Until
    ) -> None:
        lock = shelf()
        assert lock.write.acquire()
        waiter = start_process(wait, stage, waiting)
        until(lambda: lock.info().waiting == 1)
        kill_process(waiter)
        lock.write.release()
        began = time.monotonic()
        assert lock.write.acquire(blocking_timeout=PATIENCE)
        assert time.monotonic() - began < 1.0 + self.SLACK
