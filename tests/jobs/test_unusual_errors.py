"""Loops go on, or end with `failed`, whatever the exception is: logging it may be impossible."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from django_redis_messaging import Broadcast, DelayQueue, Lock, Mailbox, conf
from django_redis_messaging.core import operations
from django_redis_messaging.management.loops import LoopGroup
from django_redis_messaging.services.common import leases
from django_redis_messaging.services.common.leases import RenewedByCall, RenewedLease
from django_redis_messaging.services.jobs import poller as polling
from django_redis_messaging.services.jobs import queue as jobs
from django_redis_messaging.services.jobs.claims import Keeper
from django_redis_messaging.services.jobs.engine import Engine
from django_redis_messaging.services.jobs.poller import Poller, default_alias
from django_redis_messaging.services.jobs.worker import Worker
from django_redis_messaging.services.live.reading import Reading, Registry

from ..support.server import until
from ..support.unusual_errors import TextExits

#: seconds between two renewals
EVERY = 0.01


@pytest.fixture(params=[TextExits, lambda: SyntaxError("x", ("f", 1, 1, 12345))], ids=["text", "syntax"])
def error(request: pytest.FixtureRequest) -> Exception:
    """An exception that can't be formatted."""
    found: Exception = request.param()
    return found


class FailsOnce:
    """Raises the exception at the first call."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.calls = 0

    def __call__(self, *_: object) -> bool:
        self.calls += 1
        if self.calls == 1:
            raise self._error
        return True

    async def awaited(self, *_: object) -> bool:
        return self()


def test_the_poller_ends_as_failed(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_registered", {FailsOnce(error): default_alias})
    poller = Poller()
    poller.run()
    assert poller.failed


def test_a_group_of_loops_ends_as_failed(error: Exception) -> None:
    class Other:
        def __init__(self) -> None:
            self._stopped = threading.Event()
            self.run, self.stop = self._stopped.wait, self._stopped.set

    class Failing(Other):
        def __init__(self) -> None:
            self.run, self.stop = lambda: FailsOnce(error)(), lambda: None

    group = LoopGroup({"poller": Failing(), "worker": Other()})
    group.run()
    assert group.failed == ["poller"]


def test_a_heartbeat_that_fails_ends_the_worker(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "keep_leases", FailsOnce(error))
    engine = Engine(conf.prefix(), "queue", "calls")
    worker = Worker(engine, conf.alias(), ["calls"], lambda _: None)
    worker.run()
    assert worker.failed


def test_the_thread_that_renews_locks_goes_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: SimpleQueue[object] = SimpleQueue()
    renew, failing = leases.LeaseRenewer._renew_due, FailsOnce(error)

    def renew_due(renewer: leases.LeaseRenewer) -> None:
        failing()
        renew(renewer)

    monkeypatch.setattr(leases, "_renewers", {})
    monkeypatch.setattr(leases.LeaseRenewer, "_renew_due", renew_due)
    with Lock("door", timeout=60, renew=True, on_lost=lost.put) as lock:
        renewal = lock._holding.renewal
        assert renewal is not None
        renewal.interval, renewal.due = 0.05, 0.0
        leases._renewer(conf.alias(), RenewedLease).add(renewal)
        until(lambda: failing.calls > 5)
        assert lock.owned()
    assert lost.empty()


def test_renewals_by_a_call_go_on(error: Exception) -> None:
    failing = FailsOnce(error)
    renewal = RenewedByCall(conf.alias(), "door", EVERY, failing)
    renewal.start()
    until(lambda: failing.calls > 2)
    renewal.end()


async def test_live_streams_read_other_resources(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reading = FailsOnce(error), Reading(conf.alias(), Registry())
    monkeypatch.setattr(reading, "_read", read.awaited)
    reading.mark_user("ann")
    await asyncio.to_thread(until, lambda: read.calls == 2)
    assert all(not task.cancelled() for task in reading._tasks.values())


@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize("style", ["consume", "aconsume"])
async def test_a_consumer_of_a_broadcast_repeats_the_call(style: str, error: Exception) -> None:
    channel, stop, handle = Broadcast("news"), threading.Event(), FailsOnce(error)
    cursor = await channel.acursor()
    await channel.apublish("event")

    def handler(event: object) -> None:
        handle(event)
        stop.set()

    if style == "consume":
        await asyncio.to_thread(channel.consume, handler, cursor=cursor, stop=stop)
    else:
        await channel.aconsume(handler, cursor=cursor, stop=stop)
    assert handle.calls == 2


@pytest.mark.usefixtures("closing")
@pytest.mark.parametrize("style", ["work", "awork"])
async def test_a_consumer_of_a_queue_repeats_the_job(
    style: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "retry_delay", lambda _: 0)
    queue, stop, function = DelayQueue("calls"), threading.Event(), FailsOnce(error)

    def call() -> None:
        function()
        stop.set()

    await queue.apush(["call", []])
    if style == "work":
        await asyncio.to_thread(queue.work, {"call": call}, stop=stop)
    else:
        await queue.awork({"call": call}, stop=stop)
    assert function.calls == 2


def test_an_observer_changes_no_result(error: Exception) -> None:
    failing: Callable[..., object] = FailsOnce(error)
    operations.observe(failing)
    try:
        assert Mailbox("ann").unread() == 0
    finally:
        operations.unobserve(failing)
