"""Renewal of leases, by a thread or by a task."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from django_redis_messaging import Unavailable
from django_redis_messaging.services.common.leases import AsyncRenewal, Renewal

from ..support.server import DEADLINE

pytestmark = pytest.mark.timing

#: seconds between two renewals
EVERY = 0.01


class Server:
    """Gives the prepared replies, the last one repeatedly."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    def renew(self) -> bool:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def arenew(self) -> bool:
        return self.renew()


class Both:
    """Both renewals behind one interface."""

    def __init__(self, awaits: bool) -> None:
        self._awaits = awaits

    async def keep(self, server: Server, holds: Callable[[Renewal | AsyncRenewal], bool]) -> bool:
        """Renew until a condition is true; returns whether the lease was lost."""
        if self._awaits:
            async with AsyncRenewal(server.arenew, EVERY, "door") as awaiting:
                await until_async(lambda: holds(awaiting))
            return awaiting.lost
        with Renewal(server.renew, EVERY, "door") as blocking:
            await until_async(lambda: holds(blocking))
        return blocking.lost


async def until_async(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not holds():  # noqa: ASYNC110 (a thread sets it)
            await asyncio.sleep(0.002)


@pytest.fixture(params=["thread", "task"])
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param == "task")


async def test_a_lease_is_renewed_until_stop(both: Both) -> None:
    server = Server(True)
    assert not await both.keep(server, lambda _: server.asked >= 3)
    asked = server.asked
    await asyncio.sleep(3 * EVERY)
    assert server.asked == asked
    assert not [thread for thread in threading.enumerate() if thread.name == "lease of door"]


async def test_a_loss_is_logged_and_ends_the_renewal(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(True, False)
    assert await both.keep(server, lambda renewal: renewal.lost)
    assert server.asked == 2
    await until_async(lambda: "'door' was lost" in caplog.text)


async def test_an_outage_is_not_a_loss(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(Unavailable("away"), Unavailable("away"), True)
    assert not await both.keep(server, lambda _: server.asked >= 4)
    message = r"Renewing the lease of 'door' failed, retrying in \d+\.\d s: away"
    assert len(re.findall(message, caplog.text)) == 2


async def test_stop_does_not_wait_for_a_dead_server() -> None:
    begun, over = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return over.wait(DEADLINE)

    async def ahang() -> bool:
        begun.set()
        await asyncio.sleep(DEADLINE)
        return True

    blocking, awaiting = Renewal(hang, EVERY, "door"), AsyncRenewal(ahang, EVERY, "door")
    for start, stop in ((blocking.start, blocking.stop), (awaiting.start, awaiting.stop)):
        begun.clear()
        start()
        await until_async(begun.is_set)
        began = time.monotonic()
        stopped: Awaitable[None] | None = stop()
        if stopped is not None:
            await stopped
        assert time.monotonic() - began < DEADLINE / 2
    over.set()


def test_the_renewed_object_may_stop_it() -> None:
    done = threading.Event()

    def renew() -> bool:
        renewal.stop()
        done.set()
        return True

    renewal = Renewal(renew, EVERY, "door")
    renewal.start()
    assert done.wait(DEADLINE)
