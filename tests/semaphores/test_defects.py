"""Defects of the original design of the fair semaphore that this implementation avoids."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator
from typing import cast

import pytest

from django_redis_messaging import Semaphore, conf
from django_redis_messaging.services.semaphores.semaphore import Permit

from ..support.server import reply_to, server, steps

#: seconds
TIMEOUT = 10


class Original:
    """Holders by the caller's clock, and by a counter that is drawn in one transaction and inserted in the
    next."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        start = f"{conf.prefix()}:{{original}}"
        self.times, self.owners, self.counter = start, f"{start}:owners", f"{start}:counter"

    def acquire(self, now: Callable[[], float] = time.time) -> Generator[None, None, str | None]:
        """Yields between its two transactions."""
        token = uuid.uuid4().hex
        moment = now()
        pipeline = server().pipeline(transaction=True)
        pipeline.zremrangebyscore(self.times, "-inf", moment - TIMEOUT)
        pipeline.zinterstore(self.owners, {self.owners: 1, self.times: 0})
        pipeline.incr(self.counter)
        drawn = pipeline.execute()[-1]
        yield
        pipeline.zadd(self.times, {token: moment})
        pipeline.zadd(self.owners, {token: drawn})
        pipeline.zrank(self.owners, token)
        if pipeline.execute()[-1] < self.limit:
            return token
        server().zrem(self.times, token)
        server().zrem(self.owners, token)
        return None


def finish(acquiring: Generator[None, None, str | None]) -> str | None:
    """Complete it; returns the token if it got a permit."""
    try:
        while True:
            next(acquiring)
    except StopIteration as stop:
        return cast("str | None", stop.value)


def test_the_original_grants_the_last_permit_twice() -> None:
    original = Original(1)
    slow, quick = original.acquire(), original.acquire()
    next(slow)
    assert finish(quick)
    assert finish(slow), "who drew first inserts later, and comes before the one that has it"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_our_acquire_is_atomic(order: tuple[int, int]) -> None:
    """Each is one script: the first script gets the permit."""
    bodies = [steps(Semaphore("s", 1)._acquire, Permit(token), 0) for token in ("one", "other")]
    asked, granted = [next(body) for body in bodies], []
    for which in order:
        with pytest.raises(StopIteration) as ended:
            bodies[which].send(reply_to(asked[which]))
        granted.append(ended.value.value)
    assert granted == [True, False]


def test_in_the_original_a_fast_clock_takes_permits_of_others() -> None:
    original = Original(1)
    assert finish(original.acquire())
    assert finish(original.acquire(lambda: time.time() + TIMEOUT + 1))


def test_our_semaphore_does_not_depend_on_client_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Semaphore("s", 1, timeout=TIMEOUT)
    assert holder.acquire()
    now = time.time() + 1e6
    monkeypatch.setattr(time, "time", lambda: now)
    assert not Semaphore("s", 1, timeout=TIMEOUT).acquire()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert not Semaphore("s", 1, timeout=TIMEOUT).acquire()
    assert holder.refresh()
    holder.release()
    assert Semaphore("s", 1, timeout=TIMEOUT).acquire()


def test_a_rejected_client_does_not_delay_others() -> None:
    """In the original each attempt took a rank briefly, so that two could reject each other."""
    original = Original(2)
    assert finish(original.acquire())
    one, other = original.acquire(), original.acquire()
    next(one)
    next(other)
    outcomes = [finish(other), finish(one)]
    assert all(outcomes), "three have two permits"
    ours = [Semaphore("s", 2).acquire() for _ in range(3)]
    assert ours == [True, True, False]
