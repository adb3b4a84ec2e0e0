"""Locks between processes: one holder at a time, fences that reveal late holders, and killed waiters."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_messaging import Lock, LockNotOwnedError, conf
from django_redis_messaging.core import clients, commands
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.locks.lock import LockKeys
from tests.support.pytest_hooks import LONG
from tests.support.scripts import Plant, planted

from ..support import child_processes, lock_processes
from ..support.faults import PATIENCE, Cast, Connect, cast, processes

pytestmark = [pytest.mark.one_server, pytest.mark.promise]

PROCESSES = 8
EACH = 500 if LONG else 40
#: number of holders that are suspended for longer than their lease
LATE = 60 if LONG else 3
#: seconds of tolerance for a busy machine
SLACK = 2.0


@pytest.fixture
def stage(lasting: EmbeddedServer, connect: Connect) -> child_processes.Stage:
    return connect(lasting)


@pytest.fixture
def raw(lasting: EmbeddedServer) -> Iterator[redis.Redis]:
    with lasting.client() as raw:
        yield raw


def test_one_holder_at_a_time(stage: child_processes.Stage, all_at_once: Cast, raw: redis.Redis) -> None:
    acts = [(lock_processes.count_up, (stage.url, "door", EACH))] * PROCESSES
    found = all_at_once(stage, acts)
    assert int(raw.get(f"{conf.prefix()}:1:number") or 0) == PROCESSES * EACH
    assert all(fences == sorted(fences) for fences in found)
    assert len({fence for fences in found for fence in fences}) == PROCESSES * EACH


def test_a_resource_that_checks_fences_rejects_late_writes(
    stage: child_processes.Stage, raw: redis.Redis
) -> None:
    """Suspend holders until others have held the lock; then they write late."""
    prefix, chance = conf.prefix(), random.Random(1)
    with cast(stage, PROCESSES) as pool:
        begin = [
            pool.submit(child_processes.begin, lock_processes.write_late, stage.url, prefix)
            for _ in range(PROCESSES)
        ]
        _until(lambda: raw.scard(f"{prefix}:1:pids") == PROCESSES)
        pids = {int(pid) for pid in raw.smembers(f"{prefix}:1:pids")}
        try:
            _until(lambda: _late_after_another_stop(raw, prefix, chance) >= LATE)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        raw.set(f"{prefix}:1:over", 1)
        total = sum(one.result(PATIENCE) for one in begin)
    came, taken = (
        [line.decode().split() for line in lines(raw, f"{prefix}:1:{part}")] for part in ("came", "taken")
    )
    assert total == len(taken)
    assert len(came) >= len(taken) + LATE, "no holder was late: the test is inconclusive"
    fences = [int(fence) for fence, _ in taken]
    assert fences == sorted(fences)
    assert len({fence for fence, _ in taken}) == len({(fence, who) for fence, who in taken})
    assert len({fence for fence, _ in came}) == len(came), "two holders had the same fence"


def lines(raw: Any, key: str) -> list[bytes]:
    found: list[bytes] = raw.lrange(key, 0, -1)
    return found


def _late_after_another_stop(raw: redis.Redis, prefix: str, chance: random.Random) -> int:
    """Stop who holds it in the midst of its work, for as long as it takes others to have it; how many came
    late by now. Where the machine is busy, somebody who has just released it may be stopped."""
    while True:
        pid = int(raw.get(f"{prefix}:1:holder") or 0)
        if pid:
            os.kill(pid, signal.SIGSTOP)
            break
    time.sleep(lock_processes.LEASE * chance.uniform(1.3, 2))  # its lease ends meanwhile
    os.kill(pid, signal.SIGCONT)
    return int(raw.llen(f"{prefix}:1:came")) - int(raw.llen(f"{prefix}:1:taken"))


def _until(holds: Any) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.002)


@pytest.mark.parametrize("killed", [1, 2])
def test_a_killed_waiter_delays_the_others_by_a_second(
    killed: int, stage: child_processes.Stage, raw: redis.Redis
) -> None:
    lock, waiters = Lock("door", timeout=1000), []
    lock.acquire()
    line = LockKeys(conf.prefix(), lock.key).line
    try:
        for number in range(killed):
            waiters.append(_waiter(stage))
            _until(lambda number=number: raw.zcard(line) == number + 1)
        for waiter in waiters:
            waiter.kill()
            waiter.join(PATIENCE)
        lock.release()
        began = time.monotonic()
        assert Lock("door").acquire(blocking_timeout=PATIENCE)
        assert time.monotonic() - began < killed * 1.0 + SLACK
    finally:
        for waiter in waiters:
            waiter.kill()


def _waiter(stage: child_processes.Stage) -> BaseProcess:
    process = processes.Process(target=lock_processes.wait_for, args=(stage, "door"), daemon=True)
    process.start()
    return process


def test_a_killed_holder_delays_the_others_by_its_lease(
    stage: child_processes.Stage, raw: redis.Redis
) -> None:
    waiter, lock = _waiter(stage), Lock("door")
    try:
        _until(lock.locked)
    finally:
        waiter.kill()
        waiter.join(PATIENCE)
    raw.pexpire(lock.key, 300)
    began = time.monotonic()
    assert lock.acquire(blocking_timeout=PATIENCE)
    assert time.monotonic() - began < 0.3 + SLACK


def test_fences_grow_after_restarts_that_lose_all_data(connect: Connect) -> None:
    with EmbeddedServer() as server:
        connect(server)
        lock, fences = Lock("door"), []
        for _ in range(3):
            assert lock.acquire(blocking=False)
            fences.append(lock.fence)
            server.kill()
            server.restart()
        assert fences == sorted(set(fences))
        clients.close()


#: mistakes that these tests must detect
MISTAKES: dict[str, Plant] = {
    "a fence that does not grow": (
        "locks/acquire",
        "return latest < us and us or draw_fence(latest + 1)",
        "return 1",
    ),
    "a release of any holder's lock": (
        "locks/release",
        "if redis.call('GET', key) ~= token then",
        "if not redis.call('GET', key) then",
    ),
    "newcomers that overtake": (
        "locks/acquire",
        "redis.call('EXISTS', line) == 0 and set_lock()",
        "set_lock()",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("stage")
def test_mistakes_are_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties that the other tests check don't hold with any of these mistakes."""
    assert _is_right()
    planted(MISTAKES[mistake], monkeypatch)
    try:
        assert not _is_right()
    finally:
        monkeypatch.undo()
        commands.load.cache_clear()


def _is_right() -> bool:
    """Fences grow, only the owner releases, and newcomers don't overtake."""
    one, late, name = Lock("small", timeout=0.03), Lock("small"), f"line {os.urandom(4).hex()}"
    one.acquire()
    fence = one.fence
    late.acquire()
    grows = late.fence > fence
    with suppress(LockNotOwnedError):
        one.release()
    owner = late.owned()
    if owner:
        late.release()
    keys, holder = LockKeys(conf.prefix(), Lock(name).key), Lock(name)
    holder.acquire()
    with redis.Redis.from_url(_url()) as raw:
        raw.zadd(keys.line, {"first": 1})
        raw.zadd(keys.seen, {"first": 2**45})
        raw.delete(keys.key)
    return grows and owner and not Lock(name).acquire(blocking=False)


def _url() -> str:
    return str(settings.CACHES["messaging"]["LOCATION"])
