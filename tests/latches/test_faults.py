"""Latches and faults: lost replies, full memory, killed processes, outages, a lost wake-up."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from django_redis_messaging import Latch, OutcomeUnknown, Unavailable, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.latches import latch as latches

from ..conftest import Call
from ..support.child_processes import Stage
from ..support.faults import PATIENCE, Connect, processes, results_around_a_loss, unavailable
from ..support.latch_processes import PARTS, count_parts
from ..support.proxy import LossyProxy
from ..support.pytest_hooks import LONG
from ..support.scripts import Planting
from ..support.server import DEADLINE

Until = Callable[[Callable[[], object]], None]
pytestmark = pytest.mark.one_server


def parts(count: int = 1, **options: Any) -> Latch:
    """Another object for the same latch."""
    return Latch("parts", count, **options)


class TestLostReplies:
    async def test_each_event_is_counted_once(self, call: Call, lossy: LossyProxy) -> None:
        latch = parts(31)
        for left in range(30, 0, -1):
            assert await call(latch, "count_down") == left
        assert lossy.lost > 2
        assert await call(latch, "count_down") == 0
        assert await call(latch, "wait_until_open")

    async def test_a_repeated_reset_or_deletion_changes_nothing(self, call: Call, lossy: LossyProxy) -> None:
        latch = parts(3)
        first, second, third = await results_around_a_loss(call, lossy, lambda: (latch, "reset", 5))
        assert first < second < third == (await call(latch, "info")).round

        def prepare() -> tuple[Any, ...]:
            latch.count_down()
            return latch, "delete"

        assert await results_around_a_loss(call, lossy, prepare) == [True, True, False]

    def test_a_waiting_client_is_woken(self, lossy: LossyProxy) -> None:
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(parts().wait_until_open) for _ in range(4)]
            parts().count_down()
            assert all(one.result(PATIENCE) for one in waiting)


async def test_all_operations_work_when_memory_is_full(call: Call, fill: Callable[[], None]) -> None:
    latch = parts(3)
    assert await call(latch, "count_down") == 2
    fill()
    assert await call(latch, "count_down", request_id="a") == 1
    assert not await call(latch, "wait_until_open", 0.01)
    assert await call(latch, "count_down") == 0
    assert await call(latch, "wait_until_open")
    await call(latch, "reset", 1)
    assert await call(latch, "delete")
    assert not await call(Latch("another", 1), "wait_until_open", 0)
    assert await call(Latch("third", 1), "count_down") == 0


@pytest.mark.promise
def test_parts_are_counted_once_although_processes_are_killed(
    lasting: EmbeddedServer, connect: Connect, until: Until
) -> None:
    """Each process does all parts, from the beginning, after its predecessor was killed."""
    stage, chance = connect(lasting), random.Random(1)
    latch, kills = parts(PARTS + 1), 30 if LONG else 4
    with lasting.client() as client, ThreadPoolExecutor() as pool:

        def size(what: str) -> int:
            return int(client.scard(f"{conf.prefix()}:{what}"))

        def remaining_is_right() -> None:
            done = size("done")
            remaining = latch.count()
            assert PARTS + 1 - size("begun") <= remaining <= PARTS + 1 - done

        opened = pool.submit(parts(PARTS + 1).wait_until_open, PATIENCE)
        running = [start(stage) for _ in range(2)]
        for kill in range(1, kills + 1):
            until(lambda: size("done") >= PARTS * kill / (kills + 1))  # noqa: B023
            remaining_is_right()
            victim = running.pop(chance.randrange(2))
            victim.kill()
            victim.join(PATIENCE)
            running.append(start(stage))
        for process in running:
            process.join(PATIENCE)
            assert process.exitcode == 0
        assert latch.count() == 1
        assert not opened.done()
        assert latch.count_down() == 0
        assert opened.result(PATIENCE)


def start(stage: Stage) -> BaseProcess:
    process = processes.Process(target=count_parts, args=(stage, PARTS + 1), daemon=True)
    process.start()
    return process


@pytest.mark.timing
class TestOutages:
    @pytest.mark.parametrize("how", ["frozen", "stopped"])
    def test_a_client_waits_through_an_outage(
        self, how: str, fragile: EmbeddedServer, connect: Connect, until: Until
    ) -> None:
        connect(fragile, COMMAND_DEADLINE=DEADLINE)
        latch = parts(1)
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(parts(1).wait_until_open)
            until(lambda: latch.info().round)
            with unavailable(fragile, how):
                counting = pool.submit(latch.count_down)
                assert not waiting.done()
            assert counting.result(PATIENCE) == 0
            assert waiting.result(PATIENCE)

    async def test_a_longer_outage_is_reported(
        self, call: Call, fragile: EmbeddedServer, connect: Connect
    ) -> None:
        connect(fragile, COMMAND_DEADLINE=0.3)
        assert not await call(parts(), "wait_until_open", 0)
        with unavailable(fragile, "stopped"), pytest.raises((Unavailable, OutcomeUnknown)):
            await call(parts(), "wait_until_open")

    def test_a_lost_wake_up_is_noticed(self, monkeypatch: pytest.MonkeyPatch, plant: Planting) -> None:
        """A failover has lost the entry that wakes."""
        plant(("latches/count_down", "wake_clients(latch.opening, state.round, state.round)", ""))
        monkeypatch.setattr(latches, "POLL_INTERVAL", 0.05)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(parts().wait_until_open)
            parts().count_down()
            assert waiting.result(DEADLINE)
