"""Locks and faults: defects of the original design, lost replies, full memory, killed clients, outages."""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import signal
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from multiprocessing.process import BaseProcess

import pytest
import redis
from django.test import override_settings
from django_redis import get_redis_connection
from redis.crc import key_slot

from django_redis_messaging import (
    LeaseLost,
    Lock,
    LockNotOwnedError,
    PermitLost,
    Semaphore,
    SemaphoreInfo,
    Unavailable,
    conf,
)
from django_redis_messaging.core import clients
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.locks.lock import LockKeys

from ..conftest import Call
from ..support import lock_processes
from ..support.child_processes import Stage, begin
from ..support.clusters import Cluster
from ..support.faults import PATIENCE, SHARE, Cast, Connect, cast, processes
from ..support.leases import acquiring, join, lose, pause, waiters
from ..support.proxy import LossyProxy
from ..support.pytest_hooks import LONG
from ..support.scripts import Plant, Planting
from ..support.server import reply_to, server, steps

logger = logging.getLogger(__name__)
#: seconds of tolerance for a busy machine
SLACK = 2.0
Until = Callable[[Callable[[], object]], None]


class Original:
    """SETNX with the holder's token, then EXPIRE; a waiting client tries again after a pause, and gives a
    TTL to a lock that has none. The release compares the token in a transaction that watches the key."""

    #: seconds
    TIMEOUT = 10

    def __init__(self) -> None:
        self.key = f"{conf.prefix()}:lock:original"
        self.token = uuid.uuid4().hex.encode()

    def acquire(self) -> Generator[None, None, None]:
        """Yields between SETNX and EXPIRE, and where it pauses."""
        while not server().setnx(self.key, self.token):
            if server().ttl(self.key) == -1:
                server().expire(self.key, self.TIMEOUT)
            yield
        yield
        server().expire(self.key, self.TIMEOUT)

    def finish(self, unfinished: Generator[None, None, None] | None = None) -> None:
        """Acquire it, or complete an acquire."""
        for _ in unfinished or self.acquire():
            pass

    def release(self) -> bool:
        with server().pipeline() as transaction:
            transaction.watch(self.key)
            if transaction.get(self.key) != self.token:
                return False
            transaction.multi()
            transaction.delete(self.key)
            return bool(transaction.execute()[0])

    @property
    def owned(self) -> bool:
        return bool(server().get(self.key) == self.token)


class Resource:
    """What the lock protects. It rejects a smaller fence than it has seen, if its clients have fences."""

    def __init__(self) -> None:
        self.writers: list[str] = []
        self._newest = 0

    def write(self, writer: str, *, fence: int = 0) -> bool:
        accepted = fence >= self._newest
        if accepted:
            self._newest = fence
            self.writers.append(writer)
        return accepted


class TestDefects:
    """Each defect of the original design is shown, and that this implementation avoids it."""

    def test_the_original_is_held_for_ever_by_a_client_that_died_while_it_acquired(self) -> None:
        """Until another client comes, which makes it wait for a whole lease."""
        dead, other = Original(), Original()
        next(dead.acquire())
        assert server().ttl(dead.key) == -1
        next(other.acquire())
        assert 8 < server().ttl(dead.key) <= 10

    def test_ours_has_its_lease_from_the_beginning(self) -> None:
        """Each acquire is one script. A waiting client that dies has the lock for a moment only."""
        lock, other = Lock("door", timeout=10), Lock("other", timeout=1000)
        _, body = acquiring(lock, "dead")
        assert reply_to(next(body)) > 0
        body.close()
        assert 8000 < server().pttl(lock.key) <= 10_000
        assert other.acquire()
        join(Lock("other", timeout=1000), "dead")[0].close()
        other.release()
        assert server().get(other.key) == b"dead"
        assert 0 < server().pttl(other.key) <= 1000

    def test_in_the_original_a_slow_acquire_changes_the_lease_of_another_client(self) -> None:
        slow, other = Original(), Original()
        unfinished = slow.acquire()
        next(unfinished)
        trying = other.acquire()
        next(trying)  # it gives the lock a TTL
        server().delete(slow.key)  # which ends
        other.finish(trying)
        server().pexpire(other.key, 1_000_000)  # it needs more time
        slow.finish(unfinished)
        assert not slow.owned, "it has acquired it, according to its own view"
        assert server().ttl(other.key) <= 10

    def test_in_ours_a_slow_acquire_changes_nothing(self) -> None:
        slow, other = Lock("door", timeout=10), Lock("door", timeout=1000)
        assert other.acquire()
        step = next(steps(slow._acquire, slow._attempt(False, None, "slow")))
        for _ in range(2):  # also if the reply is lost
            assert reply_to(step) == 0
        assert server().pttl(slow.key) > 900_000
        assert other.owned()

    def test_the_original_cannot_reject_a_late_write(self) -> None:
        """The late holder is noticed when it releases the lock: after its write."""
        late, other, resource = Original(), Original(), Resource()
        late.finish()
        server().delete(late.key)  # its lease ends
        other.finish()
        assert resource.write("other")
        assert resource.write("late")
        assert not late.release()
        assert other.owned

    @pytest.mark.parametrize(("verb", "words"), [("release", ()), ("extend", (10,)), ("reacquire", ())])
    def test_ours_rejects_a_late_holder_and_its_write(self, verb: str, words: tuple[int, ...]) -> None:
        late, other, resource = Lock("door"), Lock("door", timeout=1000), Resource()
        assert late.acquire()
        lose(late)
        assert other.acquire()
        assert resource.write("other", fence=other.fence)
        assert not resource.write("late", fence=late.fence)
        assert resource.writers == ["other"]
        with pytest.raises(LockNotOwnedError):
            getattr(late, verb)(*words)
        assert (late.owned(), other.owned()) == (False, True)
        assert server().pttl(other.key) > 900_000

    def test_in_the_original_a_newcomer_overtakes(self) -> None:
        holder, waiting, newcomer = Original(), Original(), Original()
        holder.finish()
        trying = waiting.acquire()
        for _ in range(3):
            next(trying)
        holder.release()
        newcomer.finish()
        next(trying)
        assert newcomer.owned, "the other one may wait for ever"

    @pytest.mark.parametrize("end", [Lock.release, lose])
    def test_in_ours_it_does_not(self, end: Callable[[Lock], object]) -> None:
        holder, newcomer = Lock("door"), Lock("door")
        assert holder.acquire()
        body, listen = join(Lock("door"), "first")
        end(holder)
        assert not newcomer.acquire(blocking=False)
        woken = server().execute_command(*listen.words)
        assert woken, "it is woken: it doesn't poll"
        with pytest.raises(StopIteration) as ended:
            body.send(reply_to(body.send(woken)))
        assert ended.value.value > holder.fence

    def test_a_release_is_repeated_after_releases_of_other_clients(self) -> None:
        """Its first reply was lost. Only the latest release was remembered once."""
        lock, other = Lock("door"), Lock("door")
        assert lock.acquire()
        body = steps(lock.release)
        step = next(body)
        assert reply_to(step) == 1
        for _ in range(5):
            with other:
                pass
        with pytest.raises(StopIteration):
            body.send(reply_to(step))


@pytest.mark.one_server
class TestLostReplies:
    """A third of all replies is lost."""

    async def test_each_operation_is_applied_once(self, call: Call, lossy: LossyProxy) -> None:
        lock, fences = Lock("door", timeout=1000), []
        for _ in range(15):
            assert await call(lock, "acquire", blocking=False)
            fences.append(lock.fence)
            assert await call(lock, "extend", 1000)
            assert 1_990_000 < get_redis_connection("messaging").pttl(lock.key) <= 2_000_000
            await call(lock, "release")
        assert lossy.lost > 8
        assert fences == sorted(set(fences))
        lossy.lose_next(0)
        assert not lock.locked()

    async def test_a_waiting_client_acquires_it(self, call: Call, lossy: LossyProxy) -> None:
        """It is handed over while replies are lost, including wake-ups."""
        lossy.lose_next(0)
        holder, waiter = Lock("door", timeout=0.2), Lock("door", timeout=1000)
        assert await call(holder, "acquire")
        lossy.lose_some(SHARE)
        assert await call(waiter, "acquire")
        assert waiter.fence > holder.fence
        await call(waiter, "release")


@pytest.mark.one_server
async def test_full_memory_rejects_new_locks_but_no_operation_of_known_ones(
    fill: Callable[[], None], raw: redis.Redis, until: Until
) -> None:
    """Held ones are extended and released; a waiting client keeps its place and acquires."""
    lock, other, busy = Lock("door", timeout=100), Lock("other", timeout=100), Lock("busy", timeout=100)
    assert lock.acquire()
    assert await other.aacquire()
    assert busy.acquire()
    seen = LockKeys(conf.prefix(), busy.key).seen
    with waiters(busy) as [thread]:
        fill()
        polled = raw.zrange(seen, 0, -1, withscores=True)
        until(lambda: raw.zrange(seen, 0, -1, withscores=True) != polled)
        new = Lock("new")
        with pytest.raises(Unavailable):
            new.acquire()
        assert raw.exists(new.key, LockKeys(conf.prefix(), new.key).fence) == 0
        assert lock.extend(100)
        assert raw.pttl(lock.key) > 150_000
        assert lock.reacquire()
        assert lock.owned()
        lock.release()
        assert not lock.locked()
        assert await other.aextend(100)
        await other.arelease()
        busy.release()
        thread.leave()
    assert not busy.locked()
    assert busy.info().fence > busy.fence
    await clients.aclose()


#: number of competing processes
PROCESSES = 8 if LONG else 4
#: number of holders that are suspended for longer than their lease
LATE = 60 if LONG else 3


@pytest.mark.one_server
@pytest.mark.promise
class TestKilled:
    """Locks between processes, some of which are suspended or killed."""

    @pytest.fixture
    def stage(self, lasting: EmbeddedServer, connect: Connect) -> Stage:
        return connect(lasting)

    @pytest.fixture
    def raw(self, lasting: EmbeddedServer) -> Iterator[redis.Redis]:
        with lasting.client() as raw:
            yield raw

    def test_one_holder_at_a_time(self, stage: Stage, all_at_once: Cast, raw: redis.Redis) -> None:
        each = 500 if LONG else 80
        found = all_at_once(stage, [(lock_processes.count_up, (stage.url, "door", each))] * PROCESSES)
        assert int(raw.get(f"{conf.prefix()}:{FORMAT}:number") or 0) == PROCESSES * each
        assert all(fences == sorted(fences) for fences in found)
        assert len({fence for fences in found for fence in fences}) == PROCESSES * each

    def test_fences_reject_late_writes(self, stage: Stage, raw: redis.Redis, until: Until) -> None:
        """Suspend holders until others have held the lock; then they write late."""
        prefix, chance = f"{conf.prefix()}:{FORMAT}", random.Random(1)

        def suspend_a_holder() -> bool:
            """Stop the holder in the midst of its work, for as long as it takes others to have the lock;
            whether enough came late by now. If the machine is busy, one that has just released it may be
            stopped."""
            until(lambda: int(raw.get(f"{prefix}:holder") or 0))
            pid = int(raw.get(f"{prefix}:holder") or 0)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(lock_processes.LEASE * chance.uniform(1.3, 2))  # its lease ends meanwhile
            os.kill(pid, signal.SIGCONT)
            return raw.llen(f"{prefix}:came") - raw.llen(f"{prefix}:taken") >= LATE

        with cast(stage, PROCESSES) as pool:
            results = [
                pool.submit(begin, lock_processes.write_late, stage.url, conf.prefix())
                for _ in range(PROCESSES)
            ]
            until(lambda: raw.scard(f"{prefix}:pids") == PROCESSES)
            try:
                until(suspend_a_holder)
            finally:
                for pid in raw.smembers(f"{prefix}:pids"):
                    os.kill(int(pid), signal.SIGCONT)
            raw.set(f"{prefix}:over", 1)
            total = sum(one.result(PATIENCE) for one in results)
        came, taken = (
            [line.decode().split() for line in raw.lrange(f"{prefix}:{part}", 0, -1)]
            for part in ("came", "taken")
        )
        assert total == len(taken)
        assert len(came) >= len(taken) + LATE, "no holder was late: the test is inconclusive"
        fences = [int(fence) for fence, _ in taken]
        assert fences == sorted(fences)
        assert len({fence for fence, _ in taken}) == len({(fence, who) for fence, who in taken})
        assert len({fence for fence, _ in came}) == len(came), "two holders had the same fence"

    def test_a_killed_holder_delays_others_by_its_lease_and_a_killed_waiter_by_a_grant(
        self, stage: Stage, raw: redis.Redis, until: Until, plant: Planting
    ) -> None:
        grant = 0.3  # seconds; 1 without this
        plant(("locks/_locks", "GRANT = 1000 ", "GRANT = 300 "))
        lock = Lock("door", timeout=1000)
        line = LockKeys(conf.prefix(), lock.key).line

        def kill_clients(number: int, ready: Callable[[], object]) -> None:
            """Start processes that acquire the lock or wait for it, and kill them when they do."""
            started = [
                processes.Process(target=lock_processes.wait_for, args=(stage, "door"), daemon=True)
                for _ in range(number)
            ]
            for process in started:
                process.start()
            try:
                until(ready)
            finally:
                for process in started:
                    process.kill()
                    process.join(PATIENCE)

        kill_clients(1, ready=lock.locked)
        raw.pexpire(lock.key, 300)
        began = time.monotonic()
        assert lock.acquire(blocking_timeout=PATIENCE)
        assert time.monotonic() - began < 0.3 + SLACK
        kill_clients(2, ready=lambda: raw.zcard(line) == 2)
        lock.release()
        began = time.monotonic()
        assert Lock("door").acquire(blocking_timeout=PATIENCE)
        assert 0.9 * grant < time.monotonic() - began < 2 * grant + SLACK

    def test_fences_grow_after_restarts_that_lose_all_data(self, connect: Connect) -> None:
        with EmbeddedServer() as server:
            connect(server)
            lock, fences = Lock("door"), []
            for _ in range(3):
                assert lock.acquire(blocking=False)
                fences.append(lock.fence)
                server.kill()
                server.restart()
            assert fences == sorted(set(fences))
            clients.close()

    @pytest.mark.parametrize("recovers", [False, pytest.param(True, marks=pytest.mark.long)])
    def test_clients_killed_at_random(self, recovers: bool, stage: Stage, raw: redis.Redis) -> None:
        """None blocks the lock for longer than its lease and a grant."""
        contest = Contest(stage, raw)
        fences = contest.run(recovers=recovers)
        # a fence is the time of the acquire in µs
        longest_gap = max(after - before for before, after in itertools.pairwise(sorted(fences))) / 1e6
        logger.info("%d killed; blocked for %.2f s", len(contest.killed), contest.longest)
        assert len(set(fences)) == len(fences), "two clients had the same fence"
        assert len(contest.killed) > DURATION / 2 + PROCESSES
        assert longest_gap < PATIENCE / 2
        assert contest.longest > 0.2, "no holder was killed: the test is inconclusive"

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("script", "line", "mistake"),
        [
            ("locks/_locks", "token, 'PX', GRANT)", "token)"),  # a grant without an end
            # a renewal that outlives its holder
            ("locks/extend", "ms = math.max(ms, remaining)", "ms = math.max(ms, remaining) + 30000"),
        ],
    )
    def test_mistakes_are_detected(
        self, script: str, line: str, mistake: str, stage: Stage, raw: redis.Redis
    ) -> None:
        with pytest.raises(Blocked):
            Contest(stage, raw, (script, line, mistake)).run(seconds=PATIENCE)


#: seconds for which clients are killed at random, and between two kills
DURATION, PAUSES = 60.0 if LONG else 2.5, (0.1, 0.3)
#: seconds: a client that was handed the lock must confirm it within this time
GRANT = 1.0
#: seconds by which the server may be late
LATENESS = 0.2


class Blocked(AssertionError):
    """A client that was killed holds the lock for too long."""


class Contest:
    """Processes that compete for the lock, each second one with renewal, while some of them are killed. All
    times are the server's, in seconds."""

    def __init__(self, stage: Stage, raw: redis.Redis, mistake: Plant | None = None) -> None:
        self._stage, self._raw, self._mistake = stage, raw, mistake
        self._keys = LockKeys(conf.prefix(), Lock("door").key)
        self._drawn = f"{conf.prefix()}:{FORMAT}:fences"
        self._renewing = itertools.cycle([False, True])
        self._running: list[BaseProcess] = []
        self._holder, self._since, self._fence = "", 0.0, 0
        #: pid → when it was killed
        self.killed: dict[int, float] = {}
        #: the longest time for which a killed client held the lock
        self.longest = 0.0

    def run(self, *, seconds: float = DURATION, recovers: bool = False) -> list[int]:
        """Kill processes for so long; returns the fences that were drawn.

        `recovers`: after a kill, none follows before a client has acquired the lock.
        """
        chance = random.Random(1)
        for _ in range(PROCESSES):
            self._start()
        try:
            self._wait_for_an_acquire()
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                pause_ends = time.monotonic() + chance.uniform(*PAUSES)
                while time.monotonic() < pause_ends:
                    holder = self._check()
                    time.sleep(0.002)
                # the holder or any process, each half of the times
                known = [process for process in self._running if process.pid == holder]
                self._kill(chance.choice(known if known and chance.random() < 0.5 else self._running))
                self._start()
                if recovers:
                    self._wait_for_an_acquire()
            self._wait_for_an_acquire()
        finally:
            for process in list(self._running):
                self._kill(process)
        return [int(fence) for fence in self._raw.lrange(self._drawn, 0, -1)]

    def _start(self) -> None:
        arguments = (self._stage, next(self._renewing), self._mistake)
        process = processes.Process(target=lock_processes.work_until_killed, args=arguments, daemon=True)
        process.start()
        self.killed.pop(process.pid or 0, None)
        self._running.append(process)

    def _kill(self, process: BaseProcess) -> None:
        """The time is taken when it is dead."""
        self._running.remove(process)
        process.kill()
        process.join(PATIENCE)
        seconds, us = self._raw.time()
        self.killed[process.pid or 0] = seconds + us / 1e6

    def _check(self) -> int:
        """Check the lock; returns the pid of its holder, or 0."""
        asked = self._raw.pipeline().time().get(self._keys.key).get(self._keys.fence)
        (seconds, us), token, stored = asked.execute()
        now, holder, fence = seconds + us / 1e6, (token or b"").decode(), int((stored or b"0").split()[0])
        assert fence >= self._fence, "a fence was smaller than the one before"
        if holder != self._holder:
            self._holder, self._since = holder, now
        self._fence, pid = fence, int(holder.partition(" ")[0] or 0)
        if pid in self.killed:
            blocked = now - max(self._since, self.killed[pid])
            self.longest = max(self.longest, blocked)
            if blocked > lock_processes.SHORT_LEASE + GRANT + LATENESS:
                raise Blocked(f"{pid} was killed, and has blocked the lock for {blocked:.2f} s")
        return pid

    def _wait_for_an_acquire(self) -> None:
        before, ends = self._raw.llen(self._drawn), time.monotonic() + PATIENCE
        while self._raw.llen(self._drawn) == before:
            self._check()
            assert time.monotonic() < ends, "no process acquires the lock any more"
            time.sleep(0.002)


@pytest.mark.one_server
@pytest.mark.timing
class TestOutage:
    """Leases of locks and permits that are renewed while the server is gone."""

    @pytest.mark.parametrize(
        ("goes", "comes"), [("kill", "start"), pytest.param("freeze", "thaw", marks=pytest.mark.long)]
    )
    def test_renewal_resumes_after_an_outage_and_a_lease_that_ended_meanwhile_is_reported_once(
        self,
        goes: str,
        comes: str,
        fragile: EmbeddedServer,
        connect: Connect,
        until: Until,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The server keeps the keys, with their time of expiry, when it is killed."""
        connect(fragile, COMMAND_DEADLINE=0.5)
        lost, lease, short = list[LeaseLost](), 2.5, 0.5  # seconds
        options = {"renew": True, "on_lost": lost.append}
        kept = Lock("door", timeout=lease, **options), Semaphore("room", 1, timeout=lease, **options)
        ending = Lock("gate", timeout=short, **options), Semaphore("hall", 1, timeout=short, **options)
        began = time.monotonic()
        for one in (*kept, *ending):
            assert one.acquire()
        getattr(fragile, goes)()

        def failed(lease: Lock | Semaphore) -> bool:
            return any(re.match(rf"Renewing .*'{lease.name}'.* failed", line) for line in caplog.messages)

        until(lambda: len(lost) == 2 and all(map(failed, (*kept, *ending))))
        assert {type(error) for error in lost} == {LockNotOwnedError, PermitLost}
        getattr(fragile, comes)()
        for one, error in zip(ending, (LockNotOwnedError, PermitLost), strict=True):
            with pytest.raises(error):
                one.release()
        again = Lock("again", timeout=short, **options)
        assert again.acquire()  # the thread that renews survives
        until(lambda: time.monotonic() > began + lease + 0.2)
        lock, semaphore = kept
        assert lock.owned()
        assert semaphore.refresh()
        assert semaphore.info() == SemaphoreInfo(limit=1, held=1, waiting=0)
        assert again.owned()
        assert len(lost) == 2
        assert caplog.text.count("was lost") == 2
        for one in (*kept, again):
            one.release()

    def test_a_frozen_node_ends_no_lease_on_other_nodes(self, own_prefix: str, until: Until) -> None:
        lost: list[LeaseLost] = []
        # the other node does not notice within the test, so the Cluster stays up
        with Cluster(2, node_timeout=60_000) as cluster:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": cluster.url(0)}
            with override_settings(CACHES={"messaging": entry}, REDIS_MESSAGING={"PREFIX": own_prefix}):
                locks = [Lock(f"door {n}", timeout=1.2, renew=True, on_lost=lost.append) for n in range(8)]
                for lock in locks:
                    assert lock.acquire()
                frozen = [lock for lock in locks if cluster.owner(key_slot(lock.key.encode())) == 1]
                assert 0 < len(frozen) < len(locks)
                cluster.servers[1].freeze()
                try:
                    until(lambda: len(lost) == len(frozen))
                    pause(0.5)
                    assert all(lock.owned() for lock in locks if lock not in frozen)
                finally:
                    cluster.servers[1].thaw()
                assert len(lost) == len(frozen)
                for lock in locks:
                    with suppress(LockNotOwnedError):
                        lock.release()
                clients.close()
