"""Timers whose handlers fail, that change while they begin, and whose listeners or server are killed."""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from pytest_django import Settings

from django_redis_messaging import Expired, Expiry, Unavailable, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.expiries.timers import Firing, TimerEngine, namespaces_key
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.services.jobs.keys import request_shard
from django_redis_messaging.services.listening.listener import DispatchLock
from tests.support.engines import timers
from tests.support.proxy import LossyProxy
from tests.support.pytest_hooks import LONG

from ..conftest import Call
from ..support import workers
from ..support.faults import Connect, Prepared, results_around_a_loss
from ..support.listener_processes import EFFECTS, RUNS, ListenerPool, listener_pool
from ..support.listeners import (
    LATER,
    PATIENCE,
    SOON,
    Received,
    claim_due,
    jobs,
    listening,
    real_key,
    remaining_keys,
)
from ..support.server import change, check_types, server, server_ms, snapshot, until

Fill = Callable[[], None]


@pytest.fixture
def orders() -> Expiry:
    return Expiry("order")


def counts() -> list[int]:
    """How many timers are ready, delayed, leased and dead."""
    found: list[int] = timers().stats("order")
    return found[:4]


def failing(received: Received, times: int, error: type[BaseException] = OSError) -> Callable[..., None]:
    """A handler that raises an error at its first calls."""

    def handler(expired: Expired) -> None:
        received.append(expired)
        if len(received) <= times:
            raise error("of a handler")

    return handler


class Waiting(Received):
    """A handler that waits until it may finish."""

    def __init__(self) -> None:
        super().__init__()
        self.finish = threading.Event()

    def __call__(self, received: Any) -> None:
        super().__call__(received)
        self.finish.wait(PATIENCE)


@pytest.mark.timing
class TestHandlers:
    @pytest.fixture(autouse=True)
    def short_backoff(self, settings: Settings) -> None:
        change(settings, JOB_BACKOFF=0.01, JOB_MAX_ATTEMPTS=3)

    @pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
    def test_failing_handler_is_called_again(
        self, error: type[BaseException], orders: Expiry, caplog: pytest.LogCaptureFixture
    ) -> None:
        received = Received()
        orders.start("17", SOON, "secret")
        with listening({"order": failing(received, 2, error)}):
            until(lambda: remaining_keys() == [])
        assert len(received) == 3
        assert len({one.id for one in received}) == 1
        assert [one.fence for one in received] == sorted({one.fence for one in received})
        assert "failed in attempt 2" in caplog.text
        assert "secret" not in caplog.text

    def test_dead_timers_are_redriven_though_their_name_is_used_again(self, orders: Expiry) -> None:
        received = Received()
        with listening({"order": failing(received, 6)}):
            for number in range(2):
                orders.start("17", 0.001, number)
                until(lambda: counts() == [0, 0, 0, number + 1])  # noqa: B023
            assert b"OSError" in server().hvals(jobs().outcomes)[0]
            orders.start("17", LATER)
            assert timers().redrive("order", None) == 2
            until(lambda: len(received) == 8)
            until(lambda: server().hlen(jobs().jobs) == 1)
        assert sorted(one.payload for one in received[6:]) == [0, 1]

    @pytest.mark.parametrize("is_coroutine", [False, True])
    def test_hanging_handler_is_interrupted(
        self, is_coroutine: bool, orders: Expiry, caplog: pytest.LogCaptureFixture
    ) -> None:
        received = Received()

        def handler(expired: Expired) -> None:
            received.append(expired)
            while len(received) == 1:
                time.sleep(0.01)

        async def coroutine(expired: Expired) -> None:
            received.append(expired)
            if len(received) == 1:
                await asyncio.sleep(60)

        orders.start("17", SOON)
        with listening({"order": coroutine if is_coroutine else handler}, timeout=0.2):
            until(lambda: remaining_keys() == [])
        assert len(received) == 2
        assert "failed in attempt 1" in caplog.text

    @pytest.mark.parametrize("timeout", [None, 60])
    def test_timeout_error_is_not_reported_as_the_time_limit(
        self, timeout: float | None, orders: Expiry
    ) -> None:
        orders.start("17", 0.001)
        with listening({"order": failing(Received(), 3, TimeoutError)}, timeout=timeout):
            until(lambda: counts() == [0, 0, 0, 1])
        [lines] = server().hvals(jobs().outcomes)
        assert b"handler: TimeoutError" in lines
        assert b"took longer" not in lines

    def test_lease_is_extended_while_the_handler_runs(self, orders: Expiry) -> None:
        handler = Waiting()
        orders.start("17", 0.001)
        with listening({"order": handler}, lease=0.6), listening({"order": handler}, lease=0.6):
            until(lambda: handler)
            ends = server_ms() + 900
            until(lambda: server_ms() > ends)
            handler.finish.set()
            until(lambda: remaining_keys() == [])
        assert len(handler) == 1

    def test_running_timer_is_released_when_the_listener_stops(self, orders: Expiry) -> None:
        handler = Waiting()
        orders.start("17", 0.001)
        with listening({"order": handler}, drain=0.05) as listener:
            until(lambda: handler)
            listener.stop()
            until(lambda: counts()[:3] == [1, 0, 0])
            handler.finish.set()
        assert claim_due().state.attempts == 1

    def test_unreadable_timers_are_dead_lettered_and_others_fire(self, orders: Expiry) -> None:
        received = Received()
        for name in ("1", "2", "3"):
            orders.start(name, 0.001 if name < "3" else SOON)
        for name, stored in (("1", "no JSON"), ("2", "17\nnull")):
            server().hset(jobs().jobs, server().hget(jobs().uniques, f"order:{name}"), stored)
        with listening({"order": received}):
            until(lambda: received)
            until(lambda: counts() == [0, 0, 0, 2])
        assert received.names == ["3"]

    def test_timers_that_cannot_be_started_hold_up_no_others(
        self, orders: Expiry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are released with a delay, so the next claim gets those behind them."""
        received, engine_confirm = Received(), TimerEngine.confirm

        def confirm_unless_broken(engine: TimerEngine, leased: Any, name: str) -> Any:
            if name.startswith("broken"):
                raise Unavailable("no connection")
            return engine_confirm(engine, leased, name)

        monkeypatch.setattr(TimerEngine, "confirm", confirm_unless_broken)
        monkeypatch.setattr("django_redis_messaging.services.expiries.timers.START_DELAY", 600_000)
        for kind in ("broken", "healthy"):
            for number in range(8):
                orders.start(f"{kind} {number}", 0.001)
        with listening({"order": received}):
            until(lambda: len(received) == 8)
            until(lambda: counts() == [0, 8, 0, 0])
        assert sorted(received.names) == [f"healthy {number}" for number in range(8)]


def confirm(leased: Any) -> int:
    return int(timers().confirm(leased, json.loads(leased.payload.split(b"\n")[0])))


@pytest.mark.timing
class TestRaces:
    """A listener has claimed a timer, and begun it or not. The machine has more of these."""

    def test_handler_of_a_cancelled_timer_is_not_called(self, orders: Expiry) -> None:
        received, engine = Received(), timers()
        orders.start("17", SOON)
        leased = claim_due()
        assert orders.remaining("17") == 0
        assert orders.cancel("17")
        firing = Firing(engine.engine, engine.using, {"order": TimerHandler("order", received, None)})
        assert firing(workers.running_job(leased)) is None
        assert received == []
        assert not engine.settle(leased.lease.settlement(Outcome.DONE))
        assert remaining_keys() == []

    def test_timer_of_a_dead_listener_is_retried_if_it_has_begun(self, orders: Expiry) -> None:
        """Else it can be cancelled."""
        orders.start("17", 0.001)
        first = claim_due(lease=100)
        assert confirm(first) == 0
        assert not orders.cancel("17")
        second = claim_due()
        assert (second.lease.id, confirm(second), confirm(first)) == (first.lease.id, 0, -1)
        orders.start("18", 0.001)
        claim_due(lease=1)
        assert orders.cancel("18")
        assert timers().claim(["order"], 1, 1000).jobs == []

    def test_each_timer_is_either_cancelled_or_fired(self, orders: Expiry) -> None:
        """Never both and never neither."""
        received = Received()
        with listening({"order": received}, concurrency=4):
            for number in range(100):
                orders.start(str(number), 0.02 + number / 2000)
            cancelled = {str(number) for number in range(100) if orders.cancel(str(number))}
            until(lambda: len(cancelled) + len(received) >= 100)
            until(lambda: remaining_keys() == [])
        assert sorted([*cancelled, *received.names]) == sorted(map(str, range(100)))


@pytest.mark.one_server
async def test_the_result_of_a_cancellation_whose_reply_was_lost_is_unknown(
    call: Call, lossy: LossyProxy, orders: Expiry
) -> None:
    names = iter("abc")

    def start() -> Prepared:
        name = next(names)
        orders.start(name, LATER)
        return orders, "cancel", name

    assert await results_around_a_loss(call, lossy, start) == [True, None, False]


#: keys that each operation uses besides the real key, and whose type it must therefore check
CHANGED = "jobs states outcomes uniques ready delayed leased bell"
STARTED = f"{CHANGED} pushes:0 pushes:1 namespaces"
USED_KEYS: dict[str, tuple[Callable[[Expiry], Any], str]] = {
    "start": (lambda orders: orders.start("new", LATER, request_id="r"), STARTED),
    "restart": (lambda orders: orders.start("17", LATER, request_id="r"), STARTED),
    "extend": (lambda orders: orders.extend("17", 60), f"{CHANGED} namespaces"),
    "cancel": (lambda orders: orders.cancel("17"), CHANGED),
    "remaining": (lambda orders: orders.remaining("17"), "states uniques"),
}


@pytest.mark.parametrize("operation", USED_KEYS)
def test_key_of_another_type(operation: str, orders: Expiry) -> None:
    """An operation that uses the key fails and changes nothing; the others ignore it."""
    function, used = USED_KEYS[operation]
    request = f"order:{'17' if operation == 'restart' else 'new'}:r"
    requests = jobs().requests_of(request_shard(request))
    names = [*jobs().records, *jobs().queue("order").all, *requests, namespaces_key(conf.prefix())]
    parts = {re.sub(r".*}:(queue:order:)?", "", name): name for name in names}
    parts = {re.sub(r"requests:\d+:", "pushes:", part): name for part, name in parts.items()}
    check_types(lambda: function(orders), parts, used, lambda: orders.start("17", LATER))


@pytest.mark.one_server
class TestFullMemory:
    """The server is out of memory: new timers are refused, existing ones continue."""

    @pytest.fixture
    def messaging(self) -> dict[str, Any]:
        return {"JOB_MAX_ATTEMPTS": 2, "JOB_BACKOFF": 0.01}

    def test_start_is_refused_and_other_operations_work(
        self, orders: Expiry, fill: Fill, raw: redis.Redis
    ) -> None:
        for name in ("one", "two", "three"):
            orders.start(name, LATER, name)
        key = real_key("order", "two")
        raw.delete(key)
        before = snapshot()
        fill()
        for name in ("new", "one"):
            with pytest.raises(Unavailable, match="out of memory"):
                orders.start(name, 2 * LATER, "again")
            assert snapshot() == before
        for name in ("one", "two"):
            assert orders.extend(name, 2 * LATER)
            assert (orders.remaining(name) or 0) > LATER
        assert raw.get(key) == b'"two"'  # it was missing
        assert orders.cancel("three")
        assert orders.remaining("three") is None

    def test_due_timers_fire_fail_and_are_dead_lettered(self, orders: Expiry, fill: Fill) -> None:
        received = Received()

        def handler(expired: Any) -> None:
            received.append(expired)
            if expired.name == "bad":
                raise OSError("of a handler")

        for name in ("good", "bad"):
            orders.start(name, 0.001, "payload")
        fill()
        with listening({"order": handler}):
            until(lambda: counts() == [0, 0, 0, 1])
        assert sorted(received.names) == ["bad", "bad", "good"]
        lock = DispatchLock("node")  # a listener takes over
        assert lock.acquire(blocking=False)
        assert lock.reacquire()
        lock.release()
        assert lock.acquire(blocking=False)


#: number of timers; seconds over which they are due; listeners killed one by one; foreign keys with a TTL
TIMERS, SECONDS, KILLS, FOREIGN_KEYS = (5000, 60.0, 20, 300_000) if LONG else (200, 2.0, 2, 3000)
#: seconds without any listener
AWAY = 5.0 if LONG else 0.5
#: seconds that the test may take
ENOUGH = 300.0 if LONG else 60.0
#: ms after the server or a listener returns in which overdue timers are still being processed
CATCHING_UP = 1500


@pytest.mark.one_server
@pytest.mark.promise
class TestKilled:
    """Listeners, pollers and the server are killed, and there is no listener for a while: each timer fires,
    has its effect once, and fires promptly while a listener is running."""

    def test_each_timer_has_its_effect_once(
        self, fragile: EmbeddedServer, connect: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        stage = connect(fragile, JOB_MAX_ATTEMPTS=1000, JOB_BACKOFF=0.1, JOB_BACKOFF_MAX=1)
        forbid_config(fragile)
        add_foreign_keys()
        begin = threading.Event()
        with listener_pool(stage, tmp_path, 3) as pool, ThreadPoolExecutor(1) as thread:
            starting = thread.submit(start_timers, begin)
            begin.wait()
            away = kill_processes(fragile, pool)
            earliest, due = starting.result(ENOUGH)
            workers.until(lambda: sum(counts()[:3]) == 0, ENOUGH)
            effects = recorded(EFFECTS)
            runs = recorded(RUNS)
            assert pool.drain() == {0}
        late, meanwhile = lateness(due, effects, away)
        if LONG:
            with capsys.disabled():
                report(due, runs, pool.killed, late, meanwhile)
        assert set(effects) == set(due)
        assert sum(int(times) - 1 for times in runs.values()) <= 4 * pool.killed
        assert min(int(effect.split()[1]) - earliest[id_] for id_, effect in effects.items()) >= -5
        if LONG:  # the small run shares machine and disk with other tests, so its lateness means nothing
            assert statistics.median(late) <= 10
            assert sorted(late)[int(len(late) * 0.99)] <= 500


@pytest.mark.one_server
@pytest.mark.promise
def test_timers_started_while_redis_restarts_fire_once(fragile: EmbeddedServer, connect: Connect) -> None:
    connect(fragile, COMMAND_DEADLINE=PATIENCE)
    orders, received = Expiry("order"), Received()
    #: when each start was called and returned, and its id
    started: list[tuple[float, float, str]] = []
    stop = threading.Event()

    def start_one_after_another() -> None:
        while not stop.is_set():
            called = time.monotonic()
            id_ = orders.start(str(len(started)), SOON)
            started.append((called, time.monotonic(), id_))

    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(start_one_after_another)
        until(lambda: len(started) > 10)
        fragile.kill()
        killed = time.monotonic()
        fragile.start()
        before = len(started)
        until(lambda: len(started) > before + 10)
        stop.set()
        starting.result(PATIENCE)
    assert [id_ for called, returned, id_ in started if called < killed and returned > killed]
    with listening({"order": received}):
        until(lambda: len(received) >= len(started))
        until(lambda: remaining_keys() == [])
    assert sorted(one.id for one in received) == sorted(id_ for *_, id_ in started)


def add_foreign_keys() -> None:
    """Add foreign keys with a TTL, which Redis samples for expired ones."""
    for at in range(0, FOREIGN_KEYS, 10_000):
        with server().pipeline(transaction=False) as pipeline:
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


def kill_processes(where: EmbeddedServer, pool: ListenerPool) -> list[tuple[int, int]]:
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
            pool.kill_listeners()
            time.sleep(AWAY)
            pool.fill()
            away.append((began, server_ms()))
        else:
            pool.kill_one(chance)
            pool.fill()
    return away


def recorded(name: str) -> dict[str, str]:
    found = server().hgetall(f"{conf.prefix()}:{name}")
    return {key.decode(): value.decode() for key, value in found.items()}


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
