"""Locks on a server that is out of memory: new ones are rejected; held ones are extended and released."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

from django_redis_messaging import Lock, Unavailable, conf
from django_redis_messaging.services.locks.lock import LockKeys

pytestmark = pytest.mark.one_server


Fill = Callable[[], None]


async def test_held_locks_are_extended_and_released(fill: Fill, raw: redis.Redis) -> None:
    lock, other = Lock("door", timeout=100), Lock("other", timeout=100)
    assert lock.acquire()
    assert await other.aacquire()
    fill()
    with pytest.raises(Unavailable):
        Lock("new").acquire()
    assert raw.exists(Lock("new").key, LockKeys(conf.prefix(), Lock("new").key).fence) == 0
    assert lock.extend(100)
    assert raw.pttl(lock.key) > 150_000
    assert lock.reacquire()
    assert lock.owned()
    lock.release()
    assert not lock.locked()
    assert await other.aextend(100)
    await other.arelease()


def test_a_waiting_client_keeps_its_place_and_acquires(
    fill: Fill, raw: redis.Redis, until: Callable[[Callable[[], object]], None]
) -> None:
    lock, fences = Lock("door", timeout=100), []
    line = LockKeys(conf.prefix(), lock.key).seen
    lock.acquire()

    def wait() -> None:
        with lock:
            fences.append(lock.fence)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: raw.zcard(line) == 1)
    fill()
    looked = raw.zrange(line, 0, -1, withscores=True)
    until(lambda: raw.zrange(line, 0, -1, withscores=True) != looked)
    lock.release()
    thread.join(10)
    assert fences
    assert fences[0] > lock.fence
    assert not lock.locked()
