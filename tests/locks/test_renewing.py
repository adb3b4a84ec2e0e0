"""Renewal, by a script or by a call."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_messaging import Unavailable, conf, deadline
from django_redis_messaging.core.commands import Script
from django_redis_messaging.core.outcome import time_left
from django_redis_messaging.services.common import leases
from django_redis_messaging.services.common.leases import RenewedByCall, RenewedLease

from ..support.server import DEADLINE, until

pytestmark = pytest.mark.timing

#: seconds between two renewals
EVERY = 0.01


class Server:
    """Gives the prepared replies, the last one repeatedly."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    def renew(self, *_: object) -> bool:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


#: starts to renew at a server; returns the renewal
Start = Callable[[Callable[..., bool]], RenewedLease | RenewedByCall]


@pytest.fixture(autouse=True)
def own_renewers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewers that renew nothing else."""
    monkeypatch.setattr(leases, "_renewers", {})


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> Start:
    """A lease that is extended by a script."""

    def start(renew: Callable[..., bool]) -> RenewedLease:
        def perform(_using: str, steps: Any) -> list[bool]:
            [_] = next(steps)
            return [renew()]

        monkeypatch.setattr(leases, "perform_renewal", perform)
        script = Script("locks/extend", ["key"])
        found = RenewedLease(conf.alias(), "door", 3 * EVERY, script, until_refused=True)
        found.start(time.monotonic())
        return found

    return start


@pytest.fixture
def call() -> Start:
    """What is renewed by a call of its own."""

    def start(renew: Callable[..., bool]) -> RenewedByCall:
        found = RenewedByCall(conf.alias(), "door", EVERY, renew)
        found.start()
        return found

    return start


@pytest.fixture(params=["lease", "call"])
def both(request: pytest.FixtureRequest) -> Start:
    found: Start = request.getfixturevalue(request.param)
    return found


def pause(seconds: float) -> None:
    ends = time.monotonic() + seconds
    until(lambda: time.monotonic() > ends)


def test_it_is_renewed_until_its_end(both: Start) -> None:
    server = Server(True)
    renewal = both(server.renew)
    until(lambda: server.asked >= 3)
    renewal.end()
    pause(3 * EVERY)  # one may be in progress
    asked = server.asked
    pause(3 * EVERY)
    assert server.asked == asked
    assert not leases._renewers[conf.alias(), type(renewal)]._leases


def test_a_loss_is_logged_and_ends_the_renewal(lease: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(True, False)
    renewal = lease(server.renew)
    until(lambda: not renewal.is_active)
    until(lambda: "'door' was lost" in caplog.text)
    pause(3 * EVERY)
    assert server.asked == 2


def test_an_outage_is_not_a_loss(both: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A job's lease is its worker's until another worker claims the job."""
    server = Server(*[Unavailable("away")] * 8, True)
    renewal = both(server.renew)
    until(lambda: server.asked >= 10)
    assert renewal.is_active
    renewal.end()
    message = r"Renewing the lease of 'door' failed, retrying in \d+\.\d s: away"
    assert len(re.findall(message, caplog.text)) == 8


def test_the_end_does_not_wait_for_a_dead_server(both: Start) -> None:
    begun, over = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return over.wait(DEADLINE)

    renewal = both(hang)
    assert begun.wait(DEADLINE)
    began = time.monotonic()
    if isinstance(renewal, RenewedByCall):
        renewal.end_and_wait(0.1)
    renewal.end()
    assert time.monotonic() - began < DEADLINE / 2
    over.set()


def test_no_call_follows_the_end(call: Start) -> None:
    begun, proceed, done = threading.Event(), threading.Event(), threading.Event()

    def renew() -> bool:
        begun.set()
        proceed.wait(DEADLINE)
        assert not done.is_set()
        done.set()
        return True

    renewal = call(renew)
    assert isinstance(renewal, RenewedByCall)
    assert begun.wait(DEADLINE)
    threading.Timer(3 * EVERY, proceed.set).start()
    renewal.end_and_wait(math.inf)
    assert done.is_set()
    begun.clear()
    renewal.call()
    pause(3 * EVERY)
    assert not begun.is_set()


def test_a_renewal_does_not_inherit_the_deadline() -> None:
    left: list[float] = []
    with deadline(0.2):
        renewal = RenewedByCall(conf.alias(), "door", 60.0, lambda: left.append(time_left()))
        renewal.start()
        until(lambda: left)
    renewal.end()
    assert left[0] > 0.2


def test_a_call_may_end_its_renewal() -> None:
    done = threading.Event()

    def renew() -> None:
        renewal.end_and_wait(DEADLINE)
        done.set()

    renewal = RenewedByCall(conf.alias(), "door", EVERY, renew)
    renewal.start()
    assert done.wait(DEADLINE)


def test_a_block_is_renewed() -> None:
    with RenewedLease(conf.alias(), "door", DEADLINE, Script("locks/extend", ["key"])) as renewal:
        assert leases._renewers[conf.alias(), RenewedLease]._leases == {renewal}
    assert not leases._renewers[conf.alias(), RenewedLease]._leases


def test_a_call_that_hangs_delays_no_lease(call: Start, lease: Start) -> None:
    begun, over = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return over.wait(DEADLINE)

    hanging = call(hang)
    assert begun.wait(DEADLINE)
    server = Server(True)
    renewal = lease(server.renew)
    until(lambda: server.asked >= 3)
    assert not over.is_set()
    renewal.end()
    hanging.end()
    over.set()


def test_a_node_that_hangs_delays_the_leases_on_others_by_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def perform(_using: str, steps: Any) -> list[bool]:
        [script] = next(steps)
        if script.key == "hangs":
            begun.set()
            pause(time_left())
            raise Unavailable("no reply")
        return [True]

    monkeypatch.setattr(leases, "perform_renewal", perform)
    monkeypatch.setattr(leases, "server_of", lambda _, script: (script.key, 6379))
    hanging, other = (
        RenewedLease(conf.alias(), key, seconds, Script("locks/extend", [key]))
        for key, seconds in (("hangs", 60.0), ("replies", 3.0))
    )
    hanging.start(time.monotonic() - hanging.interval)
    assert begun.wait(DEADLINE)
    other.start(time.monotonic())
    granted = other.valid_until
    until(lambda: other.valid_until > granted or not other.is_active)
    assert other.is_active
    hanging.end()
    other.end()


def test_a_call_that_failed_is_repeated_within_a_second() -> None:
    server = Server(Unavailable("away"), True)
    renewal = RenewedByCall(conf.alias(), "door", 600.0, server.renew)
    renewal.start()
    until(lambda: server.asked == 2)
    renewal.end()


def test_nothing_is_kept_of_a_call_that_failed(call: Start) -> None:
    server = Server(Unavailable("away"))
    renewal = call(server.renew)
    renewer = leases._renewers[conf.alias(), RenewedByCall]
    until(lambda: renewal in renewer._failing)
    renewal.end()
    pause(3 * EVERY)  # one may be in progress
    assert not renewer._failing
