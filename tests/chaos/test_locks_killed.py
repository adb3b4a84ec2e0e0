"""Locks between processes: one at a time, fences that tell who is late, and lines that outlive who waits."""

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
from django_redis_messaging.core import clients, scripts
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.core.keys import LockKeys
from tests.gate import LONG
from tests.services.planting import Plant, planted

from . import actors, locking
from .conftest import PATIENCE, Cast, Connect, cast, processes

pytestmark = pytest.mark.promise

PROCESSES = 8
EACH = 500 if LONG else 40
#: holders that come late, since they were stopped beyond their lease
LATE = 60 if LONG else 3
#: seconds that a busy machine may be late
SLACK = 2.0


@pytest.fixture
def stage(lasting: EmbeddedServer, connect: Connect) -> actors.Stage:
    return connect(lasting)


@pytest.fixture
def client(lasting: EmbeddedServer) -> Iterator[redis.Redis]:
    with lasting.client() as client:
        yield client


def test_one_at_a_time(stage: actors.Stage, all_at_once: Cast, client: redis.Redis) -> None:
    acts = [(locking.count_up, (stage.url, "door", EACH))] * PROCESSES
    found = all_at_once(stage, acts)
    assert int(client.get(f"{conf.prefix()}:1:number") or 0) == PROCESSES * EACH
    assert all(fences == sorted(fences) for fences in found)
    assert len({fence for fences in found for fence in fences}) == PROCESSES * EACH


def test_a_resource_that_checks_fences_never_goes_back(stage: actors.Stage, client: redis.Redis) -> None:
    """Holders are stopped until others have had the lock; then they write, late."""
    prefix, chance = conf.prefix(), random.Random(1)
    with cast(stage, PROCESSES) as pool:
        begin = [pool.submit(actors.begin, locking.write_late, stage.url, prefix) for _ in range(PROCESSES)]
        _until(lambda: client.scard(f"{prefix}:1:pids") == PROCESSES)
        pids = {int(pid) for pid in client.smembers(f"{prefix}:1:pids")}
        try:
            _until(lambda: _late_after_another_stop(client, prefix, chance) >= LATE)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        client.set(f"{prefix}:1:over", 1)
        total = sum(one.result(PATIENCE) for one in begin)
    came, taken = (
        [line.decode().split() for line in lines(client, f"{prefix}:1:{part}")] for part in ("came", "taken")
    )
    assert total == len(taken)
    assert len(came) >= len(taken) + LATE, "nobody came late: it says nothing"
    fences = [int(fence) for fence, _ in taken]
    assert fences == sorted(fences)
    assert len({fence for fence, _ in taken}) == len({(fence, who) for fence, who in taken})
    assert len({fence for fence, _ in came}) == len(came), "two holders had the same fence"


def lines(client: Any, key: str) -> list[bytes]:
    found: list[bytes] = client.lrange(key, 0, -1)
    return found


def _late_after_another_stop(client: redis.Redis, prefix: str, chance: random.Random) -> int:
    """Stop who holds it in the midst of its work, for as long as it takes others to have it; how many came
    late by now. Where the machine is busy, somebody who has just released it may be stopped."""
    while True:
        pid = int(client.get(f"{prefix}:1:holder") or 0)
        if pid:
            os.kill(pid, signal.SIGSTOP)
            break
    time.sleep(locking.LEASE * chance.uniform(1.3, 2))  # its lease ends meanwhile: nothing else tells so
    os.kill(pid, signal.SIGCONT)
    return int(client.llen(f"{prefix}:1:came")) - int(client.llen(f"{prefix}:1:taken"))


def _until(holds: Any) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.002)


@pytest.mark.parametrize("killed", [1, 2])
def test_a_waiter_that_is_killed_costs_a_second(
    killed: int, stage: actors.Stage, client: redis.Redis
) -> None:
    lock, waiters = Lock("door", timeout=1000), []
    lock.acquire()
    line = LockKeys(conf.prefix(), lock.key).line
    try:
        for number in range(killed):
            waiters.append(_waiter(stage))
            _until(lambda number=number: client.zcard(line) == number + 1)
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


def _waiter(stage: actors.Stage) -> BaseProcess:
    process = processes.Process(target=locking.wait_for, args=(stage, "door"), daemon=True)
    process.start()
    return process


def test_a_holder_that_is_killed_costs_its_lease(stage: actors.Stage, client: redis.Redis) -> None:
    waiter, lock = _waiter(stage), Lock("door")
    try:
        _until(lock.locked)
    finally:
        waiter.kill()
        waiter.join(PATIENCE)
    client.pexpire(lock.key, 300)
    began = time.monotonic()
    assert lock.acquire(blocking_timeout=PATIENCE)
    assert time.monotonic() - began < 0.3 + SLACK


def test_fences_grow_over_restarts_that_lose_all(connect: Connect) -> None:
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


#: mistakes, each of which one of these tests must find
MISTAKES: dict[str, Plant] = {
    "a fence that does not grow": (
        "lock_acquire",
        "math.max((tonumber(before) or 0) + 1, us)",
        "tonumber(before) or us",
    ),
    "a release of whatever is there": (
        "lock_release",
        "if redis.call('GET', lock) ~= token then",
        "if not redis.call('GET', lock) then",
    ),
    "newcomers that overtake": (
        "lock_acquire",
        "redis.call('EXISTS', line) == 0 and leased()",
        "leased()",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("stage")
def test_mistakes_are_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests look at is not right where a script has one of these."""
    assert _is_right()
    planted(MISTAKES[mistake], monkeypatch)
    try:
        assert not _is_right()
    finally:
        monkeypatch.undo()
        scripts.load.cache_clear()


def _is_right() -> bool:
    """Fences grow, only the owner releases, nobody overtakes."""
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
    with redis.Redis.from_url(_url()) as client:
        client.zadd(keys.line, {"first": 1})
        client.zadd(keys.seen, {"first": 2**45})
        client.delete(keys.lock)
    return grows and owner and not Lock(name).acquire(blocking=False)


def _url() -> str:
    return str(settings.CACHES["messaging"]["LOCATION"])
