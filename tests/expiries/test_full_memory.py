"""Timers on a server that is out of memory: new timers are refused, existing ones continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_redis_messaging import Expiry, Unavailable, conf
from django_redis_messaging.services.expiries.timers import timer_key
from django_redis_messaging.services.listening.listener import DispatchLock
from tests.support.engines import timers
from tests.support.listeners import Received, jobs, listening
from tests.support.server import until

pytestmark = pytest.mark.one_server


#: seconds: longer than any test
LONG = 1000
Fill = Callable[[], None]


@pytest.fixture
def messaging() -> dict[str, Any]:
    return {"JOB_MAX_ATTEMPTS": 2, "JOB_BACKOFF": 0.01}


def content(raw: redis.Redis) -> dict[bytes, Any]:
    """All timer keys with their content."""
    return {key: raw.dump(key) for key in raw.scan_iter(match=f"{jobs().tag}:*", count=1000)}


@pytest.mark.parametrize("name", ["new", "there"])
def test_start_is_refused_and_changes_nothing(name: str, fill: Fill, raw: redis.Redis) -> None:
    orders = Expiry("order")
    orders.start("there", LONG, "first")
    before = content(raw)
    fill()
    with pytest.raises(Unavailable, match="out of memory"):
        orders.start(name, LONG, "second")
    assert content(raw) == before
    assert (orders.remaining("there") or 0) > LONG - 60


def test_extend_recreates_the_missing_key(fill: Fill, raw: redis.Redis) -> None:
    orders = Expiry("order")
    for name in ("one", "two"):
        orders.start(name, LONG, name)
    key = timer_key(conf.prefix(), "order", "two")
    raw.delete(key)
    fill()
    assert orders.extend("one", 2 * LONG)
    assert orders.extend("two", 2 * LONG)
    assert raw.get(key) == b'"two"'
    assert (orders.remaining("one") or 0) > LONG


def test_cancel_works(fill: Fill) -> None:
    Expiry("order").start("one", LONG)
    fill()
    assert Expiry("order").cancel("one")
    assert Expiry("order").remaining("one") is None


def test_due_timers_fire_fail_and_are_dead_lettered(fill: Fill) -> None:
    received = Received()

    def handler(expired: Any) -> None:
        received.append(expired)
        if expired.name == "bad":
            raise OSError("of a handler")

    for name in ("good", "bad"):
        Expiry("order").start(name, 0.001, "payload")
    fill()
    with listening({"order": handler}):
        until(lambda: timers().stats("order")[:4] == [0, 0, 0, 1])
    assert sorted(received.names) == ["bad", "bad", "good"]


def test_listener_takes_over(fill: Fill) -> None:
    fill()
    lock = DispatchLock("node")
    assert lock.acquire(blocking=False)
    assert lock.reacquire()
    lock.release()
    assert lock.acquire(blocking=False)
