"""Locks when a third of all replies is lost: each is acquired once, with one fence, and released."""

from __future__ import annotations

import pytest
from django_redis import get_redis_connection

from django_redis_messaging import Lock
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import SHARE

pytestmark = pytest.mark.one_server


async def test_each_is_acquired_once_and_released(call: Call, lossy: LossyProxy) -> None:
    lock, fences = Lock("door", timeout=1000), []
    for _ in range(25):
        assert await call(lock, "acquire", blocking=False)
        fences.append(lock.fence)
        await call(lock, "release")
    assert lossy.lost > 8
    assert fences == sorted(set(fences))
    lossy.lose_next(0)
    assert not lock.locked()


async def test_a_repeated_release_is_not_an_error(call: Call, lossy: LossyProxy) -> None:
    lossy.lose_next(0)
    lock = Lock("door", timeout=1000)
    assert await call(lock, "acquire")
    lossy.lose_next(2)
    before = lossy.lost
    await call(lock, "release")
    assert lossy.lost - before == 2
    assert await call(lock, "acquire", blocking=False)


async def test_each_extension_is_applied_once(call: Call, lossy: LossyProxy) -> None:
    lossy.lose_next(0)
    lock = Lock("door", timeout=100)
    assert await call(lock, "acquire")
    lossy.lose_next(2)
    before = lossy.lost
    assert await call(lock, "extend", 100)
    assert lossy.lost - before == 2
    # twice more would be 400 s
    assert await call(lock, "extend", 50)
    assert 240_000 < get_redis_connection("messaging").pttl(lock.key) <= 250_000


async def test_a_waiting_client_acquires_it(call: Call, lossy: LossyProxy) -> None:
    """It is handed over while replies are lost, including wake-ups."""
    lossy.lose_next(0)
    holder, waiter = Lock("door", timeout=0.2), Lock("door", timeout=1000)
    assert await call(holder, "acquire")
    lossy.lose_some(SHARE)
    assert await call(waiter, "acquire")
    assert waiter.fence > holder.fence
    await call(waiter, "release")
