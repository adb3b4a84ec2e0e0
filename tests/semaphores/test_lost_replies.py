"""A semaphore behind a proxy that drops replies, and on a server that is out of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from django_redis_messaging import OutcomeUnknown, Semaphore, SemaphoreError
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import Connect

pytestmark = pytest.mark.one_server


LONG = 1000
Fill = Callable[[], None]


async def test_no_permit_is_acquired_twice_or_lost(call: Call, lossy: LossyProxy) -> None:
    """A repeated release that finds nothing to release does not raise either."""
    semaphore = Semaphore("room", 5, timeout=LONG)
    for _ in range(12):
        for _ in range(5):
            assert await call(semaphore, "acquire")
        assert not await call(semaphore, "acquire")
        assert (await call(semaphore, "info")).held == 5
        assert await call(semaphore, "refresh")
        for _ in range(5):
            await call(semaphore, "release")
        assert (await call(semaphore, "info")).held == 0
    assert lossy.lost > 20


def test_waiting_client_has_one_place_and_is_woken(lossy: LossyProxy, until: Callable[..., None]) -> None:
    semaphore, got = Semaphore("room", 1, timeout=LONG), list[int]()
    assert semaphore.acquire()

    def wait(number: int) -> None:
        with Semaphore("room", 1, timeout=LONG, blocking=True):
            got.append(number)

    threads = [threading.Thread(target=wait, args=[number], daemon=True) for number in range(4)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        until(lambda: semaphore.info().waiting == count)  # noqa: B023
    semaphore.release()
    for thread in threads:
        thread.join()
    # a client without a reply for long may lose its place
    assert sorted(got) == [0, 1, 2, 3]
    assert semaphore.info().held == 0


async def test_permit_whose_grant_was_not_received_expires(
    call: Call, connect: Connect, proxy: LossyProxy
) -> None:
    connect(proxy, COMMAND_DEADLINE=0.2)
    semaphore = Semaphore("room", 1, timeout=0.5)
    proxy.lose_next(1000)
    with pytest.raises(OutcomeUnknown):
        await call(semaphore, "acquire")
    proxy.lose_next(0)
    with pytest.raises(SemaphoreError):
        await call(semaphore, "release")
    assert await call(semaphore, "acquire", True, 10)


async def test_all_operations_work_when_memory_is_full(call: Call, fill: Fill) -> None:
    semaphore, other = Semaphore("room", 2, timeout=LONG), Semaphore("room", 2, timeout=LONG)
    assert await call(semaphore, "acquire")
    fill()
    assert await call(semaphore, "refresh")
    assert await call(other, "acquire")
    assert not await call(Semaphore("room", 2), "acquire", True, 0.01)
    await call(semaphore, "set_limit", 1)
    await call(semaphore, "release")
    await call(other, "release")
    assert (await call(semaphore, "info")).held == 0
    assert await call(Semaphore("another", 1), "acquire")


def test_waiting_client_is_woken_when_memory_is_full(fill: Fill, until: Callable[..., None]) -> None:
    semaphore, got = Semaphore("room", 1, timeout=LONG), threading.Event()
    assert semaphore.acquire()
    fill()

    def wait() -> None:
        with Semaphore("room", 1, timeout=LONG, blocking=True):
            got.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: semaphore.info().waiting == 1)
    semaphore.release()
    thread.join()
    assert got.is_set()
