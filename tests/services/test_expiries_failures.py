"""Timers whose handlers raise, hang, or are left alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Expired, Expiry
from tests.engines import timers

from .asking import change, server, server_ms, until
from .listening import LATER, PATIENCE, SOON, Heard, claimed, jobs, left_over, listening, unused

pytestmark = pytest.mark.timing


class TestFailures:
    @pytest.fixture(autouse=True)
    def quick(self, settings: Settings) -> None:
        change(settings, JOB_BACKOFF=0.01, JOB_MAX_ATTEMPTS=3)

    def failing(self, heard: Heard, times: int, error: type[BaseException] = OSError) -> Callable[..., None]:
        def handler(expired: Expired) -> None:
            heard.append(expired)
            if len(heard) <= times:
                raise error("of a handler")

        return handler

    @pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
    def test_one_that_raises_is_called_again(self, error: type[BaseException], caplog: Any) -> None:
        heard = Heard()
        Expiry("order").start("17", SOON, "secret")
        with listening({"order": self.failing(heard, 2, error)}):
            until(lambda: left_over() == [])
        assert len(heard) == 3
        assert len({one.id for one in heard}) == 1
        assert [one.fence for one in heard] == sorted({one.fence for one in heard})
        assert "failed in attempt 2" in caplog.text
        assert "secret" not in caplog.text

    def test_after_its_attempts_it_is_dead_and_can_be_put_back(self) -> None:
        heard, store = Heard(), timers()
        Expiry("order").start("17", SOON, "payload")
        with listening({"order": self.failing(heard, 3)}):
            until(lambda: store.stats("order")[:4] == [0, 0, 0, 1])
            assert len(heard) == 3
            assert b"OSError" in server().hvals(jobs().log)[0]
            assert store.redrive("order", None) == 1
            until(lambda: left_over() == [])
        assert [one.payload for one in heard] == ["payload"] * 4

    def test_several_dead_of_one_name_are_all_put_back(self) -> None:
        heard, store = Heard(), timers()
        with listening({"order": self.failing(heard, 6)}):
            for number in range(2):
                Expiry("order").start("17", 0.001, number)
                until(lambda: store.stats("order")[:4] == [0, 0, 0, number + 1])  # noqa: B023
            Expiry("order").start("17", LATER)
            assert store.redrive("order", None) == 2
            until(lambda: len(heard) == 8)
            until(lambda: server().hlen(jobs().jobs) == 1)
        assert sorted(one.payload for one in heard[6:]) == [0, 1]

    def test_one_that_hangs_is_interrupted(self, caplog: pytest.LogCaptureFixture) -> None:
        heard = Heard()

        def handler(expired: Expired) -> None:
            heard.append(expired)
            while len(heard) == 1:
                time.sleep(0.01)

        Expiry("order").start("17", SOON)
        with listening({"order": handler}, timeout=0.2):
            until(lambda: left_over() == [])
        assert len(heard) == 2
        assert "failed in attempt 1" in caplog.text

    @pytest.mark.parametrize("timeout", [None, 60])
    def test_one_that_waited_for_others_in_vain_is_not_said_to_be_slow(self, timeout: float | None) -> None:
        store = timers()
        Expiry("order").start("17", 0.001)
        with listening({"order": self.failing(Heard(), 3, TimeoutError)}, timeout=timeout):
            until(lambda: store.stats("order")[:4] == [0, 0, 0, 1])
        [lines] = server().hvals(jobs().log)
        assert b"handler: TimeoutError" in lines
        assert b"took longer" not in lines

    def test_an_awaiting_one_that_hangs_is_cancelled(self) -> None:
        heard = Heard()

        async def handler(expired: Expired) -> None:
            heard.append(expired)
            if len(heard) == 1:
                await asyncio.sleep(60)

        Expiry("order").start("17", SOON)
        with listening({"order": handler}, timeout=0.1):
            until(lambda: left_over() == [])
        assert len(heard) == 2

    def test_one_that_takes_longer_than_the_lease_keeps_it(self) -> None:
        heard, over = Heard(), threading.Event()

        def handler(expired: Expired) -> None:
            heard.append(expired)
            over.wait(PATIENCE)

        Expiry("order").start("17", 0.001)
        with listening({"order": handler}, lease=1.0), listening({"order": handler}, lease=1.0):
            until(lambda: heard)
            unused(server_ms() + 1500)
            over.set()
            until(lambda: left_over() == [])
        assert len(heard) == 1

    def test_a_stored_timer_that_nobody_can_read_is_buried_and_stops_nobody(self) -> None:
        heard = Heard()
        Expiry("order").start("1", 0.001)
        Expiry("order").start("2", 0.001)
        Expiry("order").start("3", SOON)
        for name, stored in (("1", "no JSON"), ("2", "17\nnull")):
            server().hset(jobs().jobs, server().hget(jobs().uniques, f"order:{name}"), stored)
        with listening({"order": heard}):
            until(lambda: heard)
            until(lambda: timers().stats("order")[:4] == [0, 0, 0, 2])
        assert heard.names == ["3"]

    def test_what_runs_at_the_end_is_given_back(self) -> None:
        heard, over = Heard(), threading.Event()

        def handler(expired: Expired) -> None:
            heard.append(expired)
            over.wait(PATIENCE)

        Expiry("order").start("17", 0.001)
        with listening({"order": handler}, drain=0.05) as listener:
            until(lambda: heard)
            listener.stop()
            until(lambda: timers().stats("order")[:3] == [1, 0, 0])
            over.set()
        assert claimed().state.attempts == 1
