"""MultiLock and faults: lost replies, full memory, killed clients, many processes with overlapping names."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from django_redis_messaging import Lock, MultiLock, Unavailable, conf
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.locks.lock import LockKeys

from ..conftest import Call
from ..support import lock_processes
from ..support.child_processes import Stage
from ..support.faults import PATIENCE, SHARE, Cast, Connect, kill_process, start_process
from ..support.leases import waiters
from ..support.proxy import LossyProxy
from ..support.pytest_hooks import LONG

pytestmark = pytest.mark.one_server
#: number of competing processes, and the names of which each wants some
PROCESSES, NAMES = 8 if LONG else 4, [*"abcde"]
#: seconds for which clients are killed at random, and of tolerance for a busy machine
DURATION, SLACK = 60.0 if LONG else 2.5, 2.0
Until = Callable[[Callable[[], object]], None]


def line(name: str) -> str:
    return LockKeys(conf.prefix(), Lock(name).key).line


async def test_each_operation_is_applied_once_although_replies_are_lost(
    call: Call, lossy: LossyProxy
) -> None:
    several, fences = MultiLock(NAMES, timeout=1000), list[int]()
    for _ in range(15):
        assert await call(several, "acquire", blocking=False)
        fences.append(several.fences["a"])
        assert await call(several, "extend", 1000)
        await call(several, "release")
    assert lossy.lost > 8
    assert fences == sorted(set(fences))
    lossy.lose_next(0)
    busy = Lock("c", timeout=0.2)
    assert await call(busy, "acquire")
    lossy.lose_some(SHARE)
    assert await call(several, "acquire")
    assert several.fences["c"] > busy.fence
    await call(several, "release")


def test_full_memory_rejects_new_ones_but_no_operation_of_held_ones(
    fill: Callable[[], None], raw: redis.Redis
) -> None:
    both, busy = MultiLock(["a", "b"], timeout=100), Lock("y", timeout=100)
    assert both.acquire()
    assert busy.acquire()
    with waiters(Lock("y")) as [thread]:
        fill()
        with pytest.raises(Unavailable):
            MultiLock(["m", "n"]).acquire()
        assert raw.exists(Lock("m").key, Lock("n").key) == 0
        assert both.extend(100)
        assert both.owned()
        both.release()
        assert raw.exists(Lock("a").key, Lock("b").key) == 0
        busy.release()
        thread.leave()


@pytest.mark.promise
class TestProcesses:
    @pytest.fixture
    def stage(self, lasting: EmbeddedServer, connect: Connect) -> Stage:
        return connect(lasting)

    @pytest.fixture
    def raw(self, lasting: EmbeddedServer) -> Iterator[redis.Redis]:
        with lasting.client() as raw:
            yield raw

    def test_overlapping_names_exclude_each_other_without_a_deadlock(
        self, stage: Stage, all_at_once: Cast, raw: redis.Redis
    ) -> None:
        each = 400 if LONG else 60
        calls = [(stage.url, NAMES, each, seed) for seed in range(PROCESSES)]
        found = all_at_once(stage, [(lock_processes.count_up_several, arguments) for arguments in calls])
        grants = [grant for grants in found for grant in grants]
        assert len(set(grants)) == len(grants)
        for name in NAMES:
            fences = [[fence for other, fence in grants if other == name] for grants in found]
            assert all(one == sorted(one) for one in fences)
            assert int(raw.get(f"{conf.prefix()}:{FORMAT}:{name}") or 0) == sum(map(len, fences))

    def test_a_client_killed_while_it_waits_delays_others_by_its_lease_and_a_grant(
        self, stage: Stage, raw: redis.Redis, until: Until
    ) -> None:
        """It holds the first lock, and waits for the second one."""
        busy = Lock("b", timeout=1000)
        assert busy.acquire()
        process = start_process(lock_processes.wait_for_several, stage, ["a", "b"])
        try:
            until(lambda: raw.zcard(line("b")) == 1)
            assert Lock("a").locked()
        finally:
            kill_process(process)
        began = time.monotonic()
        assert Lock("a").acquire(blocking_timeout=PATIENCE)
        assert time.monotonic() - began < lock_processes.SHORT_LEASE + SLACK
        busy.release()
        began = time.monotonic()
        assert Lock("b").acquire(blocking_timeout=PATIENCE)
        assert time.monotonic() - began < 1 + SLACK

    def test_clients_killed_at_random_block_nobody_for_long(
        self, stage: Stage, raw: redis.Redis, until: Until
    ) -> None:
        chance, prefix = random.Random(1), f"{conf.prefix()}:{FORMAT}"
        work = lock_processes.hold_several_until_killed
        running = [start_process(work, stage, NAMES) for _ in range(PROCESSES)]
        lists = [f"{prefix}:fences:{name}" for name in NAMES]
        while_waiting, ends = 0, time.monotonic() + DURATION
        try:
            until(lambda: all(map(raw.llen, lists)))
            while time.monotonic() < ends or not while_waiting:
                assert time.monotonic() < ends + PATIENCE, "none held some while it waited: inconclusive"
                process = chance.choice(running)
                until(lambda process=process: any(self.held_and_awaited(raw, process.pid)))  # it has started
                time.sleep(chance.uniform(0.05, 0.2))
                running.remove(process)
                kill_process(process)
                while_waiting += all(self.held_and_awaited(raw, process.pid))
                running.append(start_process(work, stage, NAMES))
            before = [raw.llen(each) for each in lists]
            until(lambda: all(raw.llen(each) > count for each, count in zip(lists, before, strict=True)))
        finally:
            for process in running:
                kill_process(process)
        for each in lists:
            fences = [int(fence) for fence in raw.lrange(each, 0, -1)]
            assert fences == sorted(set(fences)), "two clients held it at once"

    @staticmethod
    def held_and_awaited(raw: redis.Redis, pid: int | None) -> tuple[bool, bool]:
        """Whether a process holds locks, and whether it waits for others."""
        part = f":{pid}:".encode()
        tokens = [token for name in NAMES for token in raw.zrange(line(name), 0, -1)]
        held = [raw.get(Lock(name).key) or b"" for name in NAMES]
        return any(part in token for token in held), any(part in token for token in tokens)
