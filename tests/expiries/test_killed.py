"""Timers whose listeners, pollers and server are killed, and that have no listener for a while: each fires,
has its effect once, and fires promptly while a listener is running."""

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
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.engines import timers
from tests.support.pytest_hooks import LONG
from tests.support.workers import server, server_ms, until

from ..support.faults import Connect
from ..support.listener_processes import EFFECTS, RUNS, ListenerPool, listener_pool

pytestmark = [pytest.mark.one_server, pytest.mark.promise]

#: number of timers; seconds over which they are due; listeners killed one by one; foreign keys with a TTL
TIMERS, SECONDS, KILLS, FOREIGN_KEYS = (5000, 60.0, 20, 300_000) if LONG else (200, 3.0, 2, 3000)
#: seconds without any listener
AWAY = 5.0 if LONG else 0.5
#: seconds that the test may take
PATIENCE = 300.0 if LONG else 60.0
#: ms after the server or a listener returns in which overdue timers are still being processed
CATCHING_UP = 1500


def add_foreign_keys() -> None:
    """Add foreign keys with a TTL, which Redis samples for expired ones."""
    client = server()
    for at in range(0, FOREIGN_KEYS, 10_000):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(at, min(at + 10_000, FOREIGN_KEYS)):
                pipeline.set(f"{conf.prefix()}:other:{number}", 1, ex=60 + number % 3600)
            pipeline.execute()


def start_timers(begin: threading.Event) -> tuple[dict[str, float], dict[str, float]]:
    """Start all timers. For each, the earliest and the latest time it is due, in ms of the clock shared with
    the server."""
    orders, earliest, latest, chance = Expiry("order"), {}, {}, random.Random(3)
    moments = sorted(chance.uniform(0.5, SECONDS) for _ in range(TIMERS))
    began = time.monotonic()
    begin.set()
    for number, moment in enumerate(moments):
        after = max(began + moment - time.monotonic(), 0.001)
        called = time.time()
        id_ = orders.start(str(number), after, {"n": number}, request_id=f"start {number}")
        earliest[id_], latest[id_] = (called + after) * 1000, (time.time() + after) * 1000
    return earliest, latest


def forbid_config(where: EmbeddedServer) -> None:
    """Forbid CONFIG: the server then publishes no keyspace events."""
    with where.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-config")


def kill_processes(where: EmbeddedServer, workers: ListenerPool) -> list[tuple[int, int]]:
    """Kill listeners, pollers and the server. The periods without a listener, in ms of the server."""
    chance, away = random.Random(4), []
    pause = SECONDS / (KILLS + 3)
    for number in range(KILLS + 2):
        time.sleep(pause * chance.uniform(0.5, 1.0))  # the pace of the kills, not a wait for a condition
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


def test_each_timer_has_its_effect_once(
    fragile: EmbeddedServer, connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = connect(fragile, JOB_MAX_ATTEMPTS=1000, JOB_BACKOFF=0.1, JOB_BACKOFF_MAX=1)
    forbid_config(fragile)
    add_foreign_keys()
    begin = threading.Event()
    with listener_pool(stage, tmp_path, 3) as workers, ThreadPoolExecutor(1) as pool:
        starting = pool.submit(start_timers, begin)
        begin.wait()
        away = kill_processes(fragile, workers)
        earliest, due = starting.result(PATIENCE)
        until(lambda: sum(timers().stats("order")[:3]) == 0, PATIENCE)
        effects = recorded(EFFECTS)
        runs = recorded(RUNS)
        assert workers.drain() == {0}
    late, meanwhile = lateness(due, effects, away)
    if LONG:
        with capsys.disabled():
            report(due, runs, workers.killed, late, meanwhile)
    assert set(effects) == set(due)
    assert sum(int(times) - 1 for times in runs.values()) <= 4 * workers.killed
    assert min(int(effect.split()[1]) - earliest[id_] for id_, effect in effects.items()) >= -5
    if LONG:  # the small run shares machine and disk with other tests, so its lateness means nothing
        assert statistics.median(late) <= 10
        assert sorted(late)[int(len(late) * 0.99)] <= 500


def recorded(name: str) -> dict[str, str]:
    return {
        key.decode(): value.decode() for key, value in server().hgetall(f"{conf.prefix()}:{name}").items()
    }


def lateness(
    due: dict[str, float], effects: dict[str, str], away: list[tuple[int, int]]
) -> tuple[list[float], list[float]]:
    """Lateness in ms of each effect: of timers due while a listener was running, and of the others."""
    up: list[float] = []
    down: list[float] = []
    for id_, effect in effects.items():
        meanwhile = any(began - 100 <= due[id_] <= ended + CATCHING_UP for began, ended in away)
        (down if meanwhile else up).append(int(effect.split()[1]) - due[id_])
    return up, down


def report(ids: Any, runs: Any, killed: int, late: list[float], meanwhile: list[float]) -> None:
    repeated = sum(int(times) - 1 for times in runs.values())
    figures = [
        round(sorted(late)[min(int(len(late) * share), len(late) - 1)], 1) for share in (0.5, 0.95, 0.99, 1.0)
    ]
    sys.stdout.write(
        f"\n{len(ids)} timers and {FOREIGN_KEYS} foreign keys, {killed} listeners and the server killed: "
        f"{len(ids) - len(runs)} lost, {repeated} handlers ran more than once. "
        f"ms late while a listener was up ({len(late)}): median, p95, p99, max {figures}; "
        f"due while none was ({len(meanwhile)}): max {max(meanwhile):.0f}\n"
    )
