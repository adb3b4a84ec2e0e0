"""Whose a lock or a permit is, and that nothing is kept for who has gone: the same for both."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_messaging import Lock, Semaphore

from .asking import DEADLINE

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]
#: seconds: some renewals fit in
LEASE = 0.3
Make = Callable[..., Any]


@pytest.fixture(params=["lock", "semaphore"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes one more object for the same resource, which one may have at a time."""
    return Lock if request.param == "lock" else lambda name, **options: Semaphore(name, 1, **options)


def test_what_nobody_can_release_any_more_is_not_renewed(make: Make) -> None:
    make("door", timeout=LEASE, renew=True).acquire()
    gc.collect()
    assert make("door").acquire(blocking=True, blocking_timeout=DEADLINE)


async def test_nor_what_a_task_had_that_has_ended_though_it_is_remembered(make: Make) -> None:
    owner = make("door", timeout=LEASE, renew=True)
    task = asyncio.create_task(owner.aacquire())
    assert await task
    assert await make("door").aacquire(blocking=True, blocking_timeout=DEADLINE)
    assert task.done()


async def test_a_task_that_has_ended_is_forgotten(make: Make) -> None:
    owner = make("door", timeout=LEASE, renew=True)
    task = asyncio.create_task(owner.aacquire())
    await task
    ended = weakref.ref(task)
    del task
    async with asyncio.timeout(DEADLINE):
        while ended() is not None:
            gc.collect()
            await asyncio.sleep(0.01)


async def test_that_it_ended_is_no_loss_to_be_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    owner = make("door", timeout=LEASE, renew=True)
    await asyncio.create_task(owner.aacquire())
    assert await make("door").aacquire(blocking=True, blocking_timeout=DEADLINE)
    assert "lost" not in caplog.text


async def test_both_forms_are_of_the_same_task(make: Make) -> None:
    owner = make("door", renew=True)
    assert owner.acquire()
    await owner.arelease()
    assert await owner.aacquire()
    owner.release()


async def test_a_renewal_of_a_loop_may_be_ended_by_another_thread() -> None:
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
async def test_one_that_is_closed_while_it_waits_says_nothing(make: Make, suspended: bool) -> None:
    """Such as by an event loop that is closed, or the garbage collection of a frame that nobody awaits."""
    holder = make("door")
    assert await holder.aacquire()
    waits = make("door").aacquire(blocking=True)
    if suspended:
        waits.send(None)
    waits.close()


class TestDecorators:
    def test_a_generator_is_refused(self, make: Make) -> None:
        def numbers() -> Any:
            yield 1

        async def anumbers() -> Any:
            yield 1

        for function in (numbers, anumbers):
            with pytest.raises(TypeError, match=r"numbers.*generator"):
                make("door")(function)

    async def test_a_method_holds_it_while_it_runs(self, make: Make) -> None:
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
