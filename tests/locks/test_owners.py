"""The owners of locks and permits, and that nothing is renewed after an owner has ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_messaging import Lock, Semaphore

from ..support.server import DEADLINE

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]
#: seconds; long enough for some renewals
LEASE = 0.3
Make = Callable[..., Any]


@pytest.fixture(params=["lock", "semaphore"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes another object for the same exclusive resource."""
    return Lock if request.param == "lock" else lambda name, **options: Semaphore(name, 1, **options)


def test_a_lease_that_nothing_can_release_is_not_renewed(make: Make) -> None:
    make("door", timeout=LEASE, renew=True).acquire()
    gc.collect()
    assert make("door").acquire(blocking=True, blocking_timeout=DEADLINE)


async def test_the_lease_of_an_ended_task_is_not_renewed(make: Make) -> None:
    owner = make("door", timeout=LEASE, renew=True)
    task = asyncio.create_task(owner.aacquire())
    assert await task
    assert await make("door").aacquire(blocking=True, blocking_timeout=DEADLINE)
    assert task.done()


async def test_the_state_of_an_ended_task_is_removed(make: Make) -> None:
    owner = make("door", timeout=LEASE, renew=True)
    task = asyncio.create_task(owner.aacquire())
    await task
    ended = weakref.ref(task)
    del task
    async with asyncio.timeout(DEADLINE):
        while ended() is not None:
            gc.collect()
            await asyncio.sleep(0.01)


async def test_the_end_of_a_renewal_is_not_logged_as_a_loss(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    owner = make("door", timeout=LEASE, renew=True)
    await asyncio.create_task(owner.aacquire())
    assert await make("door").aacquire(blocking=True, blocking_timeout=DEADLINE)
    assert "lost" not in caplog.text


async def test_blocking_and_async_calls_of_a_task_share_its_state(make: Make) -> None:
    owner = make("door", renew=True)
    assert owner.acquire()
    await owner.arelease()
    assert await owner.aacquire()
    owner.release()


async def test_another_thread_may_end_the_renewal_of_a_loop() -> None:
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_debug(True)
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    lock = Lock("door", renew=True, thread_local=False)
    assert await lock.aacquire()
    await asyncio.sleep(0)  # it has begun
    await asyncio.to_thread(lock.release)
    assert not await lock.alocked()
    assert not complaints


@pytest.mark.parametrize("suspended", [True, False])
async def test_a_coroutine_closed_while_it_waits_logs_nothing(make: Make, suspended: bool) -> None:
    """By the end of an event loop, or by garbage collection."""
    holder = make("door")
    assert await holder.aacquire()
    waits = make("door").aacquire(blocking=True)
    if suspended:
        waits.send(None)
    waits.close()


class TestDecorators:
    def test_a_generator_is_rejected(self, make: Make) -> None:
        def numbers() -> Any:
            yield 1

        async def anumbers() -> Any:
            yield 1

        for function in (numbers, anumbers):
            with pytest.raises(TypeError, match=r"numbers.*generator"):
                make("door")(function)

    async def test_a_decorated_method_holds_it(self, make: Make) -> None:
        class Shop:
            @make("door")
            def open(self, hours: int) -> tuple[int, bool]:
                return hours, make("door").acquire(blocking=False)

            @make("door")
            async def aopen(self, hours: int) -> tuple[int, bool]:
                return hours, await make("door").aacquire(blocking=False)

        assert Shop().open(3) == (3, False)
        assert await Shop().aopen(hours=4) == (4, False)
        assert make("door").acquire()
