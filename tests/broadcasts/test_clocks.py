"""Publishers and readers in processes whose clocks are wrong by an hour: each reader gets what was published,
in one order, also while the server is killed repeatedly; a reader that was away too long missed events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_redis_messaging import Broadcast, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.pytest_hooks import LONG

from ..support.broadcast_processes import PATIENCE, TICK
from ..support.faults import Connect
from ..support.programs import program
from ..support.server import server, until

#: events of each of the publishers
EACH = 5000 if LONG else 150
PUBLISHERS, READERS = (8, 4) if LONG else (4, 2)
SHIFTS = [-3600, 3600, 0, 1800]
#: seconds between two kills of the server; for which events are kept
PAUSE, RETENTION = 1.5, 5

pytestmark = [
    pytest.mark.one_server,
    pytest.mark.promise,
]
Process = subprocess.Popen[str]


@contextmanager
def actors(url: str, cursor: str, roles: list[tuple[str, int, int]]) -> Iterator[list[Process]]:
    """Publishers and readers (role, number, events), each with its own clock."""
    started = []
    for role, number, count in roles:
        shifted = {
            "LD_PRELOAD": program("libfaketimeMT.so.1"),
            "FAKETIME": f"{SHIFTS[number % len(SHIFTS)]:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        words = [role, url, conf.prefix(), str(number), str(count), cursor]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.broadcast_processes", *words],
            env={**os.environ, **shifted}, cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def clock_of(process: Process) -> float:
    """What time it is there; it has begun then."""
    assert process.stdout is not None
    return float(json.loads(process.stdout.readline())["clock"])


def results(processes: list[Process]) -> list[Any]:
    """Let them start together; what each of them has done."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=2 * PATIENCE)[0]) for process in processes]


@contextmanager
def killed_again_and_again(where: EmbeddedServer) -> Iterator[list[float]]:
    """A server that logs all that it acknowledges; and the times at which it was killed."""
    kills: list[float] = []
    over = threading.Event()

    def harm() -> None:
        while not over.wait(PAUSE):
            kills.append(time.monotonic())
            where.kill()
            where.start()

    with ThreadPoolExecutor(1) as pool:
        harming = pool.submit(harm)
        try:
            yield kills
        finally:
            over.set()
            harming.result(PATIENCE)


def test_each_reader_gets_exactly_what_was_published(lasting: EmbeddedServer, connect: Connect) -> None:
    stage = connect(lasting, BROADCAST_BUCKET=0.05, BROADCAST_RETENTION=RETENTION)
    each_gets_everything(stage.url, Broadcast("chaos").cursor())


@pytest.mark.long
@pytest.mark.timeout(4 * PATIENCE)
def test_also_while_the_server_is_killed(fragile: EmbeddedServer, connect: Connect) -> None:
    stage = connect(fragile, BROADCAST_BUCKET=0.05, BROADCAST_RETENTION=RETENTION)
    cursor = Broadcast("chaos").cursor()
    with killed_again_and_again(fragile) as kills:
        each_gets_everything(stage.url, cursor)
    assert len(kills) >= 3
    until(lambda: not any(server().exists(key) for key in Broadcast("chaos")._keys.buckets))
    Broadcast("chaos").publish("late")
    with actors(stage.url, cursor, [("read", number, 1) for number in range(READERS)]) as started:
        for process in started:
            clock_of(process)
        for said in results(started):
            assert said["missed"]
            assert [payload for _, payload in said["seen"]] == ["late"]


def each_gets_everything(url: str, cursor: str) -> None:
    roles = [("publish", number, EACH) for number in range(PUBLISHERS)]
    roles += [("read", number, EACH * PUBLISHERS) for number in range(READERS)]
    with actors(url, cursor, roles) as started:
        shifts = [round((clock_of(process) - time.time()) / 600) * 600 for process in started]
        assert shifts == [SHIFTS[number % 4] for _, number, _ in roles]
        done = results(started)
    check(done[PUBLISHERS:], [found for ids in done[:PUBLISHERS] for found in ids])


def check(readers: list[Any], ids: list[int]) -> None:
    """Each reader has every event, once, in the order of the ids; equal payloads are all there."""
    assert sorted(ids) == list(range(1, PUBLISHERS * EACH + 1))
    for said in readers:
        assert not said["missed"]
        assert [number for number, _ in said["seen"]] == sorted(ids)
        assert said["seen"] == readers[0]["seen"]
    payloads = Counter(json.dumps(payload) for _, payload in readers[0]["seen"])
    assert payloads.pop(json.dumps(TICK)) == PUBLISHERS * EACH // 5
    assert payloads == Counter(
        json.dumps([who, number]) for who in range(PUBLISHERS) for number in range(EACH) if number % 5
    )
