"""Slots move to other nodes and back while services use them: no errors, nothing lost or half-written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis.crc import key_slot

from tests.support.clusters import Cluster
from tests.support.pytest_hooks import LONG

from ..support.faults import PATIENCE, leading_to
from ..support.services_in_use import RESIDENTS, Resident

pytestmark = [pytest.mark.promise, pytest.mark.usefixtures("closing")]
#: how often each slot moves
MOVES = 40 if LONG else 2


@pytest.fixture
def cluster(own_prefix: str) -> Iterator[Cluster]:
    """Three primaries, and the alias that leads to them."""
    with Cluster() as cluster, leading_to(cluster.url(0), own_prefix):
        yield cluster


def test_services_are_used_while_their_slots_move(cluster: Cluster, tmp_path: Path) -> None:
    """All services at once, so that slots move while others are used. Any error of an operation ends its
    thread and fails the test."""
    residents = [resident(tmp_path) for resident in RESIDENTS]
    stop, loops = threading.Event(), [loop for one in residents for loop in one.loops]
    with ThreadPoolExecutor(len(loops)) as pool:
        futures = [pool.submit(loop, stop) for loop in loops]
        try:
            move(cluster, residents, lambda: not any(future.done() for future in futures))
        finally:
            stop.set()
        for future in futures:
            future.result(2 * PATIENCE)
    for resident in residents:
        resident.check()


def move(cluster: Cluster, residents: list[Resident], may_continue: Callable[[], bool]) -> None:
    """Move the slot of each key, several times."""
    slots = sorted({key_slot(key.encode()) for resident in residents for key in resident.keys})
    for _ in range(MOVES):
        for slot in slots:
            if not may_continue():
                return
            cluster.migrate(slot, cluster.another(slot))
