"""Timers whose listeners and pollers are killed, whose server is killed, and to whom nobody listens for a
while: each fires, its effect once, and soon where a listener is up."""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from django_redis_messaging import Expiry, conf
from django_redis_messaging.core.embedded import EmbeddedServer
from tests.engines import timers
from tests.gate import LONG
from tests.tasks.working import server, server_ms, until

from .conftest import Connect
from .listeners import EFFECTS, RUNS, Crew, crew

pytestmark = pytest.mark.promise

#: timers, seconds over which they are due, listeners killed one by one, keys of others with a time to live
TIMERS, SECONDS, KILLS, OTHERS = (5000, 60.0, 20, 300_000) if LONG else (200, 3.0, 2, 3000)
#: seconds for which nobody listens
AWAY = 5.0 if LONG else 0.5
#: seconds that it may take altogether
PATIENCE = 300.0 if LONG else 60.0
#: ms after the server is back, or a listener: what was due meanwhile is being caught up on
CATCHING_UP = 1500


def others() -> None:
    """Keys of others that expire by and by, which Redis looks through for those that are over."""
    client = server()
    for at in range(0, OTHERS, 10_000):
        with client.pipeline(transaction=False) as together:
            for number in range(at, min(at + 10_000, OTHERS)):
                together.set(f"{conf.prefix()}:other:{number}", 1, ex=60 + number % 3600)
            together.execute()


def started(begin: threading.Event) -> tuple[dict[str, float], dict[str, float]]:
    """Start all; the ms at which each is due, by the clock that the server has too: at the earliest, and at
    the latest."""
    orders, earliest, latest, chance = Expiry("order"), {}, {}, random.Random(3)
    moments = sorted(chance.uniform(0.5, SECONDS) for _ in range(TIMERS))
    began = time.monotonic()
    begin.set()
    for number, moment in enumerate(moments):
        after = max(began + moment - time.monotonic(), 0.001)
        asked = time.time()
        id_ = orders.start(str(number), after, {"n": number}, request_id=f"start {number}")
        earliest[id_], latest[id_] = (asked + after) * 1000, (time.time() + after) * 1000
    return earliest, latest


def forbid_config(where: EmbeddedServer) -> None:
    """Nobody may ask or change how the server is configured; it sends no events."""
    with where.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-config")


def harm(where: EmbeddedServer, workers: Crew) -> list[tuple[int, int]]:
    """Kill listeners and pollers, the server, all listeners; when nobody could listen (ms of the server)."""
    chance, away = random.Random(4), []
    pause = SECONDS / (KILLS + 3)
    for number in range(KILLS + 2):
        time.sleep(pause * chance.uniform(0.5, 1.0))  # the pace of the harm, not a wait for anything
        if number == KILLS // 3:
            began = server_ms()
            where.kill()
            where.start()
            forbid_config(where)
            away.append((began, server_ms()))
        elif number == 2 * KILLS // 3 + 1:
            began = server_ms()
            workers.kill_listeners()
            time.sleep(AWAY)
            workers.fill()
            away.append((began, server_ms()))
        else:
            workers.kill_one(chance)
            workers.fill()
    return away


def test_each_fires_its_effect_once(
    fragile: EmbeddedServer, connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = connect(fragile, JOB_MAX_ATTEMPTS=1000, JOB_BACKOFF=0.1, JOB_BACKOFF_MAX=1)
    forbid_config(fragile)
    others()
    begin = threading.Event()
    with crew(stage, tmp_path, 3) as workers, ThreadPoolExecutor(1) as pool:
        starting = pool.submit(started, begin)
        begin.wait()
        away = harm(fragile, workers)
        earliest, due = starting.result(PATIENCE)
        until(lambda: sum(timers().stats("order")[:3]) == 0, PATIENCE)
        effects = seen(EFFECTS)
        runs = seen(RUNS)
        assert workers.dismiss() == {0}
    late, meanwhile = lateness(due, effects, away)
    if LONG:
        with capsys.disabled():
            report(due, runs, workers.killed, late, meanwhile)
    assert set(effects) == set(due)
    assert sum(int(times) - 1 for times in runs.values()) <= 4 * workers.killed
    assert min(int(told.split()[1]) - earliest[id_] for id_, told in effects.items()) >= -5
    if LONG:  # the small size shares machine and disk with other tests: it is no measure of lateness
        assert statistics.median(late) <= 10
        assert sorted(late)[int(len(late) * 0.99)] <= 500


def seen(name: str) -> dict[str, str]:
    return {
        key.decode(): value.decode() for key, value in server().hgetall(f"{conf.prefix()}:{name}").items()
    }


def lateness(
    due: dict[str, float], effects: dict[str, str], away: list[tuple[int, int]]
) -> tuple[list[float], list[float]]:
    """Of each effect the ms that it was late: those due while somebody listened, and the others."""
    up: list[float] = []
    down: list[float] = []
    for id_, told in effects.items():
        meanwhile = any(began - 100 <= due[id_] <= ended + CATCHING_UP for began, ended in away)
        (down if meanwhile else up).append(int(told.split()[1]) - due[id_])
    return up, down


def report(ids: Any, runs: Any, killed: int, late: list[float], meanwhile: list[float]) -> None:
    again = sum(int(times) - 1 for times in runs.values())
    figures = [
        round(sorted(late)[min(int(len(late) * share), len(late) - 1)], 1) for share in (0.5, 0.95, 0.99, 1.0)
    ]
    sys.stdout.write(
        f"\n{len(ids)} timers beside {OTHERS} keys that expire, {killed} listeners and the server killed: "
        f"{len(ids) - len(runs)} lost, {again} handlers ran again. "
        f"ms late while a listener was up ({len(late)}): median, p95, p99, max {figures}; "
        f"due while none was ({len(meanwhile)}): max {max(meanwhile):.0f}\n"
    )
