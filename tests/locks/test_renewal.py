"""Leases that are renewed in the background: those of locks and permits, of jobs, and of workers."""

from __future__ import annotations

import asyncio
import gc
import math
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest

from django_redis_messaging import LeaseLost, Lock, LockError, LockNotOwnedError, Unavailable, conf, deadline
from django_redis_messaging.core.commands import Script
from django_redis_messaging.core.outcome import time_left
from django_redis_messaging.services.common import leases
from django_redis_messaging.services.common.leases import LeaseRenewer, RenewedByCall, RenewedLease

from ..conftest import Call
from ..support.leases import KINDS, Kind, acquiring, lose, pause, renewed, until_async
from ..support.processes import forked
from ..support.server import DEADLINE, reply_to, server, until

#: seconds: longer than any test
LONG = 1000
#: seconds: a lease that is renewed several times
LEASE = 0.3
#: seconds of tolerance for a busy machine
SLACK = 2.0
pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]
Lost = SimpleQueue[LeaseLost]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def ttl(lock: Lock) -> int:
    """ms"""
    return int(server().pttl(lock.key))


class TestHolders:
    """Locks and permits that are renewed."""

    async def test_a_renewed_lease_lasts_until_its_release(self, kind: Kind, call: Call) -> None:
        lease = kind.new(timeout=LEASE, renew=True)
        for _ in range(2):
            assert await call(lease, "acquire")
            await call(lease, "release")
        assert await call(lease, "acquire")
        assert not await call(kind.new(), "acquire", blocking=True, blocking_timeout=2 * LEASE)
        await call(lease, "release")
        assert not renewed()
        assert await call(kind.new(), "acquire", blocking=False)

    async def test_a_loss_is_reported(self, kind: Kind, call: Call, caplog: pytest.LogCaptureFixture) -> None:
        lost: Lost = SimpleQueue()
        lease = kind.new(timeout=LEASE, renew=True, on_lost=lost.put)
        assert await call(lease, "acquire")
        await call(lease, "release")
        assert await call(lease, "acquire")
        [renewal] = renewed()
        lose(lease)
        error = await asyncio.to_thread(lost.get, timeout=DEADLINE)
        assert type(error) is kind.lost
        assert not isinstance(error, LockNotOwnedError) or error.lock_name == "door"
        assert "'door' was lost" in caplog.text
        assert not renewed()
        with pytest.raises(kind.lost):
            await call(lease, "release")
        leases._renewers[conf.alias(), RenewedLease]._lose(renewal)  # both threads may notice it
        assert lost.empty()

    def test_a_lease_lasts_from_when_its_request_was_sent(self, kind: Kind) -> None:
        lease = kind.new(timeout=LONG, renew=True)
        attempt, body = acquiring(lease, "mine")
        reply, sent_before = reply_to(next(body)), time.monotonic()
        pause(0.02)  # the reply is slow
        with pytest.raises(StopIteration) as ended:
            body.send(reply)
        assert lease._store(attempt, ended.value.value)
        [renewal] = renewed()
        assert renewal.valid_until <= sent_before + LONG
        assert renewal.due <= sent_before + LONG / 3
        lease.release()

    def test_a_renewal_counts_from_when_it_was_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lock, perform, sent_at = Lock("door", timeout=LONG, renew=True), leases.perform_renewal, list[float]()
        assert lock.acquire()
        [lease] = renewed()

        def reply_late(using: str, body: Any) -> Any:
            sent_at.append(time.monotonic())
            replies = perform(using, body)
            pause(0.1)
            return replies

        monkeypatch.setattr(leases, "perform_renewal", reply_late)
        first = lease.valid_until
        leases._renewers[conf.alias(), RenewedLease]._renew([lease], DEADLINE)
        assert first < lease.valid_until < sent_at[0] + 0.1 + LONG

    async def test_the_holder_may_change_the_end_of_a_renewed_lease(self, call: Call) -> None:
        lost: Lost = SimpleQueue()
        lock = Lock("door", timeout=LEASE, renew=True, on_lost=lost.put)
        assert await call(lock, "acquire")
        await call(lock, "extend", LONG)
        await asyncio.sleep(0.25)  # two renewals
        assert ttl(lock) > 900_000, "a renewal has shortened it"
        await call(lock, "release")
        long = Lock("door", timeout=LONG, renew=True, on_lost=lost.put)
        assert await call(long, "acquire")
        await call(long, "extend", 0.3, replace_ttl=True)
        await until_async(lambda: ttl(long) > 300)  # it is renewed in time
        assert await call(long, "owned")
        assert lost.empty()

    def test_a_loss_is_reported_while_the_server_is_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lost, over = SimpleQueue[float](), threading.Event()

        def hang(*_: object) -> None:
            over.wait(2 * DEADLINE)
            raise Unavailable("away")

        monkeypatch.setattr(leases, "perform_renewal", hang)
        lock = Lock("door", timeout=LEASE, renew=True, on_lost=lambda _: lost.put(time.monotonic()))
        began = time.monotonic()
        assert lock.acquire()
        acquired_at = time.monotonic()
        try:
            lost_at = lost.get(timeout=DEADLINE)
        finally:
            over.set()
        assert began + LEASE <= lost_at < acquired_at + LEASE + SLACK
        assert not renewed()

    def test_leases_due_at_the_same_time_share_a_round_trip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rounds: list[set[str]] = []
        extend = LeaseRenewer._extend

        def record(renewer: Any, some: Any) -> Any:
            rounds.append({lease.name for lease in some})
            return extend(renewer, some)

        monkeypatch.setattr(LeaseRenewer, "_extend", record)
        with Lock("door", timeout=LONG, renew=True), Lock("gate", timeout=LONG, renew=True):
            [first], [second] = renewed("door"), renewed("gate")
            second.due = time.monotonic() + 0.05 * LONG / 3
            first.due = time.monotonic()
            leases._renewers[conf.alias(), RenewedLease].add(first)
            until(lambda: rounds)
        assert rounds == [{"door", "gate"}]

    def test_callbacks_neither_delay_nor_end_other_renewals(self, caplog: pytest.LogCaptureFixture) -> None:
        begun, over = threading.Event(), threading.Event()

        def fail(error: LeaseLost) -> None:
            raise ZeroDivisionError

        def hang(error: LeaseLost) -> None:
            begun.set()
            over.wait(DEADLINE)

        other = Lock("other", timeout=LEASE, renew=True)
        failing = Lock("failing", timeout=0.06, renew=True, on_lost=fail)
        hanging = Lock("hanging", timeout=0.06, renew=True, on_lost=hang)
        silent = Lock("silent", timeout=0.06, renew=True)
        for lock in (other, failing, hanging, silent):
            assert lock.acquire()
        for lock in (failing, hanging, silent):
            lose(lock)
        assert begun.wait(DEADLINE)
        until(lambda: "The on_lost callback of 'failing' failed" in caplog.text)
        until(lambda: "'silent' was lost" in caplog.text)
        pause(2 * LEASE)
        over.set()
        assert other.owned()
        until(lambda: not [one for one in threading.enumerate() if one.name == "lost lease of hanging"])

    def test_two_threads_serve_all_locks(self, caplog: pytest.LogCaptureFixture) -> None:
        """Also if one of the keys has another type."""
        before, lost = set(threading.enumerate()), SimpleQueue[LeaseLost]()
        broken = Lock("broken", timeout=LEASE, renew=True, on_lost=lost.put)
        locks = [Lock(f"door {number}", timeout=LEASE, renew=True) for number in range(30)]
        for lock in (broken, *locks):
            assert lock.acquire()
        assert len(set(threading.enumerate()) - before) <= 2  # the second one reports losses
        server().delete(broken.key)
        server().rpush(broken.key, "not ours")
        assert lost.get(timeout=DEADLINE)
        assert "another type" in caplog.text
        pause(LEASE)
        assert all(lock.owned() and renewed(lock.name) for lock in locks)

    def test_an_unexpected_error_does_not_end_the_thread(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError

        lost: Lost = SimpleQueue()
        locks = [Lock(f"door {number}", timeout=LEASE, renew=True, on_lost=lost.put) for number in range(3)]
        with monkeypatch.context() as broken:
            broken.setattr(LeaseRenewer, "_extend", fail)
            for lock in locks:
                lock.acquire()
            names = sorted(str(lost.get(timeout=DEADLINE)).split("'")[1] for _ in locks)
        assert names == ["door 0", "door 1", "door 2"]
        assert "Renewing the lease of 'door 0' failed, retrying in 0." in caplog.text
        assert "ZeroDivisionError" in caplog.text
        again = Lock("door", timeout=LEASE, renew=True)
        again.acquire()
        pause(2 * LEASE)
        assert again.owned()

    def test_a_log_line_lists_some_names(self) -> None:
        some = [RenewedLease("a", name, 1, Script("locks/extend", ["key"]), print) for name in "abcde"]
        assert leases._names(some[:2]) == "'a', 'b'"
        assert leases._names(some) == "'a', 'b', 'c' and 2 others"

    async def test_neither_a_blocked_loop_nor_a_deadline_ends_a_renewal(self) -> None:
        lock = Lock("door", timeout=LEASE, renew=True)
        with deadline(0.2):
            await lock.aacquire()
        pause(2 * LEASE)
        assert await lock.aowned()

    def test_a_forked_child_holds_and_renews_its_own_locks_only(self) -> None:
        lock, shared = Lock("door", timeout=LEASE, renew=True), Lock("shared", thread_local=False)
        assert lock.acquire()
        assert shared.acquire()

        def child() -> bool:
            if renewed() or lock.owned() or shared.owned() or shared.acquire(blocking=False):
                return False
            for act in (lock.release, shared.release, lambda: shared.extend(1)):
                with suppress(LockError):
                    act()
                    return False
            own = Lock("gate", timeout=LEASE, renew=True)
            own.acquire()
            pause(2 * LEASE)
            return own.owned() and lock.acquire(blocking_timeout=DEADLINE)

        with forked(child) as finished:
            until(lambda: lock.info().waiting == 1)
            assert lock.owned()
            assert shared.owned()
            lock.release()
            assert finished()

    async def test_another_thread_may_end_the_renewal_of_a_loop(self) -> None:
        loop, complaints = asyncio.get_running_loop(), []
        loop.set_debug(True)
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        lock = Lock("door", renew=True, thread_local=False)
        assert await lock.aacquire()
        await asyncio.sleep(0)  # it has begun
        await asyncio.to_thread(lock.release)
        assert not await lock.alocked()
        assert not complaints


class TestEndedOwners:
    """Nothing is renewed that no thread or task can release any more."""

    def test_of_an_ended_thread(self, kind: Kind) -> None:
        lease = kind.new(timeout=LEASE, renew=True)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lease.acquire).result(DEADLINE)
            assert not kind.new().acquire(blocking=True, blocking_timeout=2 * LEASE)
        assert kind.new().acquire(blocking=True, blocking_timeout=DEADLINE)

    async def test_of_an_ended_task(self, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
        lease = kind.new(timeout=LEASE, renew=True)
        task = asyncio.create_task(lease.aacquire())
        assert await task
        assert await kind.new().aacquire(blocking=True, blocking_timeout=DEADLINE)
        assert task.done()
        assert "lost" not in caplog.text

    def test_of_a_destroyed_object(self, kind: Kind) -> None:
        kind.new(timeout=LEASE, renew=True).acquire()
        gc.collect()
        assert kind.new().acquire(blocking=True, blocking_timeout=DEADLINE)


#: seconds between two renewals of the renewers below
EVERY = 0.01
#: starts to renew at a server; returns the renewal
Start = Callable[[Callable[..., Any]], RenewedLease | RenewedByCall]


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


class Hang:
    """A server that doesn't reply until the end of the test."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def renew(self) -> bool:
        self.begun.set()
        return self.over.wait(DEADLINE)


@pytest.mark.one_server
class TestRenewers:
    """Renewal by a script, as of locks and jobs, and by a call, as the heartbeats of workers."""

    @pytest.fixture(autouse=True)
    def own_renewers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Renewers that renew nothing else."""
        monkeypatch.setattr(leases, "_renewers", {})

    @pytest.fixture
    def lease(self, monkeypatch: pytest.MonkeyPatch) -> Start:
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
    def call(self) -> Start:
        """What is renewed by a call of its own."""

        def start(renew: Callable[..., bool], every: float = EVERY) -> RenewedByCall:
            found = RenewedByCall(conf.alias(), "door", every, renew)
            found.start()
            return found

        return start

    @pytest.fixture(params=["lease", "call"])
    def both(self, request: pytest.FixtureRequest) -> Start:
        found: Start = request.getfixturevalue(request.param)
        return found

    def test_it_is_renewed_until_its_end(self, both: Start, caplog: pytest.LogCaptureFixture) -> None:
        """An outage is not a loss: a job's lease is its worker's until another worker claims the job."""
        server = Server(*[Unavailable("away")] * 8, True)
        renewal = both(server.renew)
        until(lambda: server.asked >= 10)
        assert renewal.is_active
        renewal.end()
        message = r"Renewing the lease of 'door' failed, retrying in \d+\.\d s: away"
        assert len(re.findall(message, caplog.text)) == 8
        pause(3 * EVERY)  # one may be in progress
        asked = server.asked
        pause(3 * EVERY)
        assert server.asked == asked
        assert not leases._renewers[conf.alias(), type(renewal)]._leases

    def test_no_call_follows_the_end(self, call: Any) -> None:
        hang = Hang()
        renewal = call(hang.renew)
        assert hang.begun.wait(DEADLINE)
        threading.Timer(3 * EVERY, hang.over.set).start()
        renewal.end_and_wait(math.inf)
        assert hang.over.is_set()
        hang.begun.clear()
        renewal.call()
        pause(3 * EVERY)
        assert not hang.begun.is_set()

    def test_a_call_may_end_its_renewal(self, call: Any) -> None:
        started, ended = SimpleQueue[RenewedByCall](), threading.Event()

        def renew() -> None:
            started.get(timeout=DEADLINE).end_and_wait(DEADLINE)
            ended.set()

        started.put(call(renew))
        assert ended.wait(DEADLINE)

    def test_a_block_is_renewed(self) -> None:
        with RenewedLease(conf.alias(), "door", DEADLINE, Script("locks/extend", ["key"])) as renewal:
            assert leases._renewers[conf.alias(), RenewedLease]._leases == {renewal}
        assert not leases._renewers[conf.alias(), RenewedLease]._leases

    def test_a_call_that_hangs_delays_neither_a_lease_nor_its_own_end(self, call: Any, lease: Start) -> None:
        hang, server = Hang(), Server(True)
        hanging = call(hang.renew)
        assert hang.begun.wait(DEADLINE)
        renewal = lease(server.renew)
        until(lambda: server.asked >= 3)
        renewal.end()
        began = time.monotonic()
        hanging.end_and_wait(0.1)
        assert time.monotonic() - began < DEADLINE / 2
        assert not hang.over.is_set()
        hang.over.set()

    def test_a_node_that_hangs_delays_others_for_a_limited_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun = threading.Event()

        def perform(_using: str, steps: Any) -> list[bool]:
            [script] = next(steps)
            if script.key == "hangs":
                begun.set()
                pause(time_left())
                raise Unavailable("no reply")
            return [True]

        monkeypatch.setattr(leases, "NODE_TIMEOUT", 0.3)
        monkeypatch.setattr(leases, "perform_renewal", perform)
        monkeypatch.setattr(leases, "server_of", lambda _, script: (script.key, 6379))
        hanging, other = (
            RenewedLease(conf.alias(), key, seconds, Script("locks/extend", [key]))
            for key, seconds in (("hangs", 60.0), ("replies", 0.9))
        )
        hanging.start(time.monotonic() - hanging.interval)
        assert begun.wait(DEADLINE)
        other.start(time.monotonic())
        granted = other.valid_until
        until(lambda: other.valid_until > granted or not other.is_active)
        assert other.is_active
        hanging.end()
        other.end()

    def test_a_failed_call_is_repeated_soon(self, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        assert leases.MAX_RETRY == 1.0  # seconds
        monkeypatch.setattr(leases, "MAX_RETRY", 0.05)
        server = Server(Unavailable("away"))
        renewal = call(server.renew, 600.0)
        renewer = leases._renewers[conf.alias(), RenewedByCall]
        until(lambda: server.asked >= 3)
        assert renewal in renewer._failing
        renewal.end()
        pause(3 * EVERY)  # one may be in progress
        assert not renewer._failing
