"""Timers whose handlers raise, hang, or are interrupted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Expired, Expiry
from tests.support.engines import timers

from ..support.listeners import (
    LATER,
    PATIENCE,
    SOON,
    Received,
    claim_due,
    jobs,
    listening,
    remaining_keys,
    wait_until_past,
)
from ..support.server import change, server, server_ms, until

pytestmark = pytest.mark.timing


class TestFailures:
    @pytest.fixture(autouse=True)
    def short_backoff(self, settings: Settings) -> None:
        change(settings, JOB_BACKOFF=0.01, JOB_MAX_ATTEMPTS=3)

    def failing(
        self, received: Received, times: int, error: type[BaseException] = OSError
    ) -> Callable[..., None]:
        def handler(expired: Expired) -> None:
            received.append(expired)
            if len(received) <= times:
                raise error("of a handler")

        return handler

    @pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
    def test_failing_handler_is_called_again(self, error: type[BaseException], caplog: Any) -> None:
        received = Received()
        Expiry("order").start("17", SOON, "secret")
        with listening({"order": self.failing(received, 2, error)}):
            until(lambda: remaining_keys() == [])
        assert len(received) == 3
        assert len({one.id for one in received}) == 1
        assert [one.fence for one in received] == sorted({one.fence for one in received})
        assert "failed in attempt 2" in caplog.text
        assert "secret" not in caplog.text

    def test_dead_timer_can_be_redriven(self) -> None:
        received, engine = Received(), timers()
        Expiry("order").start("17", SOON, "payload")
        with listening({"order": self.failing(received, 3)}):
            until(lambda: engine.stats("order")[:4] == [0, 0, 0, 1])
            assert len(received) == 3
            assert b"OSError" in server().hvals(jobs().outcomes)[0]
            assert engine.redrive("order", None) == 1
            until(lambda: remaining_keys() == [])
        assert [one.payload for one in received] == ["payload"] * 4

    def test_several_dead_timers_of_one_name_are_redriven(self) -> None:
        received, engine = Received(), timers()
        with listening({"order": self.failing(received, 6)}):
            for number in range(2):
                Expiry("order").start("17", 0.001, number)
                until(lambda: engine.stats("order")[:4] == [0, 0, 0, number + 1])  # noqa: B023
            Expiry("order").start("17", LATER)
            assert engine.redrive("order", None) == 2
            until(lambda: len(received) == 8)
            until(lambda: server().hlen(jobs().jobs) == 1)
        assert sorted(one.payload for one in received[6:]) == [0, 1]

    def test_hanging_handler_is_interrupted(self, caplog: pytest.LogCaptureFixture) -> None:
        received = Received()

        def handler(expired: Expired) -> None:
            received.append(expired)
            while len(received) == 1:
                time.sleep(0.01)

        Expiry("order").start("17", SOON)
        with listening({"order": handler}, timeout=0.2):
            until(lambda: remaining_keys() == [])
        assert len(received) == 2
        assert "failed in attempt 1" in caplog.text

    @pytest.mark.parametrize("timeout", [None, 60])
    def test_timeout_error_is_not_reported_as_the_time_limit(self, timeout: float | None) -> None:
        engine = timers()
        Expiry("order").start("17", 0.001)
        with listening({"order": self.failing(Received(), 3, TimeoutError)}, timeout=timeout):
            until(lambda: engine.stats("order")[:4] == [0, 0, 0, 1])
        [lines] = server().hvals(jobs().outcomes)
        assert b"handler: TimeoutError" in lines
        assert b"took longer" not in lines

    def test_hanging_coroutine_is_cancelled(self) -> None:
        received = Received()

        async def handler(expired: Expired) -> None:
            received.append(expired)
            if len(received) == 1:
                await asyncio.sleep(60)

        Expiry("order").start("17", SOON)
        with listening({"order": handler}, timeout=0.1):
            until(lambda: remaining_keys() == [])
        assert len(received) == 2

    def test_lease_is_extended_while_the_handler_runs(self) -> None:
        received, finish = Received(), threading.Event()

        def handler(expired: Expired) -> None:
            received.append(expired)
            finish.wait(PATIENCE)

        Expiry("order").start("17", 0.001)
        with listening({"order": handler}, lease=1.0), listening({"order": handler}, lease=1.0):
            until(lambda: received)
            wait_until_past(server_ms() + 1500)
            finish.set()
            until(lambda: remaining_keys() == [])
        assert len(received) == 1

    def test_unreadable_timer_is_dead_lettered_and_others_fire(self) -> None:
        received = Received()
        Expiry("order").start("1", 0.001)
        Expiry("order").start("2", 0.001)
        Expiry("order").start("3", SOON)
        for name, stored in (("1", "no JSON"), ("2", "17\nnull")):
            server().hset(jobs().jobs, server().hget(jobs().uniques, f"order:{name}"), stored)
        with listening({"order": received}):
            until(lambda: received)
            until(lambda: timers().stats("order")[:4] == [0, 0, 0, 2])
        assert received.names == ["3"]

    def test_running_timer_is_released_when_the_listener_stops(self) -> None:
        received, finish = Received(), threading.Event()

        def handler(expired: Expired) -> None:
            received.append(expired)
            finish.wait(PATIENCE)

        Expiry("order").start("17", 0.001)
        with listening({"order": handler}, drain=0.05) as listener:
            until(lambda: received)
            listener.stop()
            until(lambda: timers().stats("order")[:3] == [1, 0, 0])
            finish.set()
        assert claim_due().state.attempts == 1
