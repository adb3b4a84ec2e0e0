"""Locks: holders, leases, fences, the queue, and keys that redis-py's Lock uses, too.

What they have in common with semaphores: test_leases.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import exceptions
from redis.crc import key_slot
from redis.lock import Lock as DriversLock

from django_redis_messaging import (
    LimitExceeded,
    Lock,
    LockError,
    LockNotOwnedError,
    MessagingError,
    Unavailable,
    conf,
)
from django_redis_messaging.services.common import waiters as queues
from django_redis_messaging.services.locks import lock as locks
from django_redis_messaging.services.locks.lock import LockKeys, lock_key

from ..conftest import Call
from ..support.leases import join, lose, until_async, waiters
from ..support.server import DEADLINE, reply_to, server, server_ms, snapshot, until

#: seconds: longer than any test
LONG = 1000
#: seconds of tolerance for a busy machine
SLACK = 2.0
pytestmark = pytest.mark.usefixtures("closing")


def keys(lock: Lock) -> LockKeys:
    return LockKeys(conf.prefix(), lock.key)


def waiting(lock: Lock) -> int:
    """The length of the queue."""
    return int(server().zcard(keys(lock).line))


def ttl(lock: Lock) -> int:
    """ms"""
    return int(server().pttl(lock.key))


class TestOne:
    async def test_it_is_held_once_until_its_release(self, call: Call) -> None:
        one, other = Lock("door", timeout=timedelta(seconds=7)), Lock("door")
        assert await call(one, "acquire", token="mine")
        assert one.key == lock_key(conf.prefix(), "door")
        assert server().get(one.key) == b"mine"
        assert 6000 < ttl(one) <= 7000
        assert not await call(other, "acquire", blocking=False)
        assert (await call(one, "locked"), await call(other, "locked")) == (True, True)
        assert (await call(one, "owned"), await call(other, "owned")) == (True, False)
        await call(one, "release")
        assert (await call(one, "locked"), await call(one, "owned")) == (False, False)
        assert await call(other, "acquire", blocking=False)

    async def test_without_a_timeout_there_is_no_lease(self, call: Call) -> None:
        lock = Lock("door", timeout=None)
        assert await call(lock, "acquire")
        assert (ttl(lock), lock.timeout) == (-1, None)
        for verb, words in {"extend": (1,), "reacquire": ()}.items():
            with pytest.raises(LockError, match="timeout is None"):
                await call(lock, verb, *words)
        await call(lock, "release")
        assert not await call(lock, "locked")

    async def test_extend_adds_or_replaces(self, call: Call) -> None:
        lock = Lock("door", timeout=10)
        await call(lock, "acquire")
        server().pexpire(keys(lock).fence, 5000)
        assert await call(lock, "extend", 10) is True
        assert 18_000 < ttl(lock) <= 20_000
        assert await call(lock, "extend", 5, replace_ttl=True) is True
        assert 4000 < ttl(lock) <= 5000
        assert await call(lock, "reacquire") is True
        assert 8000 < ttl(lock) <= 10_000
        assert server().pttl(keys(lock).fence) > 86_000_000, "it is kept as long as the lock is extended"

    async def test_the_errors_of_a_block(self, caplog: pytest.LogCaptureFixture) -> None:
        """They have the name of the lock, and are those of the driver, too."""
        with pytest.raises(LockError) as found, Lock("door"), Lock("door", blocking=False):
            pytest.fail("it has been acquired")
        assert found.value.lock_name == "door"
        assert isinstance(found.value, exceptions.LockError)
        assert isinstance(found.value, MessagingError)
        with pytest.raises(LockNotOwnedError) as lost, Lock("door") as lock:
            lose(lock)
        assert isinstance(lost.value, exceptions.LockNotOwnedError)
        with Lock("door", raise_on_release_error=False) as lock:
            lose(lock)
        async with Lock("door", raise_on_release_error=False) as lock:
            lose(lock)
        assert caplog.text.count("its lease had expired") == 2

    async def test_a_release_that_failed_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(lock: Lock, token: bytes) -> Any:
            raise Unavailable("away")

        monkeypatch.setattr(Lock, "_release", fail)
        with pytest.raises(ZeroDivisionError), Lock("door"):
            raise ZeroDivisionError
        with pytest.raises(Unavailable), Lock("gate", raise_on_release_error=False):
            pass


class TestOwners:
    async def test_a_lock_belongs_to_its_thread_or_task(self) -> None:
        lock = Lock("door")

        async def state() -> tuple[bool, bool]:
            return await lock.aowned(), lock.fence > 0

        assert await lock.aacquire()
        assert await state() == (True, True)
        assert await asyncio.create_task(state()) == (False, False)
        assert await asyncio.to_thread(lambda: (lock.owned(), lock.fence)) == (False, 0)

    def test_without_thread_local_another_thread_may_release_it_and_end_the_wait(self) -> None:
        lock = Lock("door", thread_local=False)
        with ThreadPoolExecutor(1) as pool:
            assert lock.acquire()
            pool.submit(lock.release).result(DEADLINE)
            assert not lock.locked()
            assert lock.acquire()
            second = pool.submit(lock.acquire, blocking_timeout=DEADLINE)
            until(lambda: waiting(lock) == 1)
            lock.release()
            assert second.result(DEADLINE)


class TestNotReentrant:
    async def test_waiting_for_a_lock_of_ones_own_raises_at_once(self, call: Call) -> None:
        lock = Lock("door", timeout=LONG)
        assert await call(lock, "acquire")
        for options in ({}, {"blocking_timeout": LONG}):
            with pytest.raises(LockError, match="not reentrant") as found:
                await call(lock, "acquire", **options)
            assert found.value.lock_name == "door"
        assert not await call(lock, "acquire", blocking=False)
        assert await call(lock, "owned")
        assert waiting(lock) == 0

    @pytest.mark.parametrize("endless", [{"renew": True}, {"timeout": None}])
    async def test_another_object_for_an_endless_lock(self, endless: dict[str, Any], call: Call) -> None:
        lock, other = Lock("door", **endless), Lock("door")
        assert await call(lock, "acquire")
        with pytest.raises(LockError, match="not reentrant"):
            await call(other, "acquire")
        assert not await call(other, "acquire", blocking_timeout=0.01)
        await call(lock, "release")
        assert await call(other, "acquire", blocking_timeout=DEADLINE)

    async def test_a_lock_of_another_owner_is_waited_for(self) -> None:
        lock = Lock("door", renew=True)
        assert await lock.aacquire()

        async def another_task() -> None:
            async with lock:
                pass

        def another_thread() -> None:
            with lock:
                pass

        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            group.create_task(another_task())
            group.create_task(asyncio.to_thread(another_thread))
            await until_async(lambda: waiting(lock) == 2)
            await lock.arelease()

    def test_an_own_lease_that_has_ended_is_no_obstacle(self) -> None:
        lock = Lock("door", renew=True)
        lock.acquire()
        server().set(lock.key, "another client")
        assert not lock.acquire(blocking_timeout=0.01)  # it is waited for
        fence = lock.fence
        lose(lock)
        assert lock.acquire(blocking_timeout=DEADLINE)
        assert lock.fence > fence


class TestFences:
    def test_a_fence_is_greater_than_all_before_and_than_the_time_of_the_server(self) -> None:
        """Also if the clock goes back, for example after a failover to a server with a slow clock."""
        lock = Lock("door")
        assert lock.fence == 0
        seconds, us = server().time()
        with lock:
            assert lock.fence > seconds * 1_000_000 + us
        server().set(keys(lock).fence, "none")  # not written by this app
        with lock:
            assert lock.fence > seconds * 1_000_000 + us
        ahead = 2 * int(time.time() * 1_000_000)
        server().set(keys(lock).fence, f"{ahead} - x", px=LONG * 1000)
        for number in (1, 2, 3):
            with lock:
                assert lock.fence == ahead + number


@pytest.mark.timing
class TestQueue:
    def test_the_end_of_a_lease_is_noticed_at_once(self) -> None:
        late = []
        for _ in range(3):
            began = time.monotonic()
            Lock("door", timeout=0.05).acquire()
            assert Lock("door", timeout=LONG).acquire(blocking_timeout=DEADLINE)
            late.append(time.monotonic() - began)
            lose(Lock("door"))
        assert 0.05 <= min(late) < 0.08

    def test_two_clients_at_the_same_place_of_the_ring(self) -> None:
        lock = Lock("door", timeout=LONG)
        lock.acquire()
        with waiters(lock) as [first]:
            between = {f"gone {at}": at for at in range(2, 9)}
            server().zadd(keys(lock).line, between)
            with waiters(lock) as [second]:
                tickets = dict(server().zrange(keys(lock).line, 0, -1, withscores=True))
                assert sorted(tickets.values()) == list(range(1, 10))
                lock.release()
                first.leave()
                second.leave()

    def test_expired_tickets_neither_delay_anybody_nor_let_others_overtake(self) -> None:
        lock = Lock("door", timeout=LONG)

        def add_dead(count: int, polled: int) -> None:
            dead = {f"dead {at}": at for at in range(-count, 0)}
            server().zadd(keys(lock).line, dead)
            server().zadd(keys(lock).seen, dict.fromkeys(dead, polled))

        lock.acquire()
        add_dead(150, server_ms() - 2000)
        lock.release()
        assert lock.acquire(blocking=False)
        add_dead(2500, 1)
        with waiters(Lock("door")) as [thread]:
            lock.release()
            assert not lock.acquire(blocking=False)
            thread.leave()

    def test_the_queue_has_a_maximum_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(locks, "MAX_WAITING", 1)
        Lock("door", timeout=LONG).acquire()
        first, _ = join(Lock("door"), "first")
        with pytest.raises(LimitExceeded) as found:
            Lock("door").acquire(blocking_timeout=DEADLINE)
        assert (found.value.limit, found.value.actual) == (1, 2)
        first.send(reply_to(first.send(None)))  # it waits on

    def test_polls_read_the_same_stream_from_the_same_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that the read that is pending on the server is taken over, with its connection."""
        Lock("door", timeout=LONG).acquire()
        later = 0.0
        monkeypatch.setattr(queues, "monotonic", lambda: time.monotonic() + later)
        body, listen = join(Lock("door", timeout=LONG), "mine")
        words = {listen.words}
        for _ in range(2):
            later += 1
            words.add(body.send(reply_to(body.send(None))).words)
        assert len(words) == 1


class TestInfo:
    async def test_the_state_of_a_lock(self, call: Call) -> None:
        lock = Lock("door", timeout=6000)
        free = await call(lock, "info")
        assert (free.holder, free.acquired_at, free.expires_at, free.fence) == (None, None, None, 0)
        before = datetime.now(UTC)
        assert await call(lock, "acquire")
        with waiters(Lock("door"), 2) as threads:
            info = await call(lock, "info")
            host, pid, _ = info.holder.rsplit(":", 2)
            assert (host, int(pid)) == (socket.gethostname()[:40], os.getpid())
            assert server().get(lock.key).decode() == info.holder
            assert info.fence == lock.fence
            assert abs(info.acquired_at - before) < timedelta(seconds=DEADLINE)
            assert abs(info.expires_at - before - timedelta(seconds=6000)) < timedelta(seconds=DEADLINE)
            assert (info.waiting, len(info.waiters)) == (2, 2)
            await call(lock, "release")
            for thread, token in zip(threads, info.waiters, strict=True):
                assert thread.acquired.result(DEADLINE)
                assert lock.info().holder == token
                thread.leave()
        assert (await call(lock, "info")).holder is None

    def test_locks_without_a_lease_and_of_other_programs(self) -> None:
        endless, theirs = Lock("door", timeout=None), Lock("door", key="{door}:theirs")
        with endless:
            assert endless.info().holder is not None
            assert endless.info().expires_at is None
        with theirs:
            pass
        server().set(theirs.key, b"\xfftheirs", px=5000)
        info = theirs.info()
        assert (info.holder, info.acquired_at, info.fence) == ("\\xfftheirs", None, theirs.fence)

    def test_the_list_of_waiting_clients_is_bounded_and_without_the_dead(self) -> None:
        lock = Lock("door")
        lock.acquire()
        tokens = [f"client {number:03}" for number in range(300)]
        server().zadd(keys(lock).line, {token: at for at, token in enumerate(tokens)})
        server().zadd(keys(lock).seen, {**dict.fromkeys(tokens, 2**45), tokens[0]: 1})
        info = lock.info()
        assert info.waiting == 299
        assert list(info.waiters) == tokens[1:100]


class TestSharedWithTheDriver:
    """The same key, used by redis-py's own Lock."""

    @pytest.fixture(params=["{0}shop-lock", "{{{0}}}:shop lock", "{0}{{a}}:x"])
    def key(self, request: pytest.FixtureRequest, site: str) -> str:
        """A key of the site, outside our prefix."""
        return str(request.param.format(site))

    def test_each_lock_excludes_the_other(self, key: str) -> None:
        lock, theirs = Lock("door", key=key), DriversLock(server(), key, timeout=LONG)
        assert theirs.acquire()
        assert lock.locked()
        assert not lock.acquire(blocking=False)
        theirs.release()
        assert lock.acquire(blocking=False)
        assert theirs.locked()
        assert not theirs.acquire(blocking=False)
        with pytest.raises(exceptions.LockNotOwnedError):
            theirs.do_release(b"not ours")
        lock.release()
        assert theirs.acquire(blocking=False)
        theirs.release()

    @pytest.mark.timing
    def test_waiting_clients_of_both_notice_a_release(self, key: str) -> None:
        lock = Lock("door", key=key)
        theirs = DriversLock(server(), key, timeout=LONG, sleep=0.01, thread_local=False)
        theirs.acquire()
        with waiters(lock) as [thread]:
            began = time.monotonic()
            theirs.release()
            thread.leave()
            assert time.monotonic() - began < 0.1 + SLACK
        lock.acquire()
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(theirs.acquire)
            lock.release()
            assert waits.result(DEADLINE)
        theirs.release()

    def test_all_keys_share_a_slot_and_the_others_have_our_prefix(self, key: str) -> None:
        lock = Lock("door", key=key)
        assert lock.key == key
        names = keys(lock).with_ring
        assert len({key_slot(name.encode()) for name in names}) == 1
        assert all(name.startswith(conf.prefix() + ":") for name in names if name != key)

    def test_two_keys_have_different_queues(self, site: str) -> None:
        names = [f"{site}a", f"{{{site}a}}", f"{{{site}a}}:fence", f"{{{site}a}}:b"]
        assert len({Lock("door", key=name)._keys.fence for name in names}) == 4


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": ""}, ValueError, "empty"),
    ({"name": b"x"}, TypeError, "must be a str"),
    ({"blocking": 1}, TypeError, "blocking"),
    ({"renew": None}, TypeError, "renew"),
    ({"renew": True, "timeout": None}, ValueError, "needs a timeout"),
    ({"on_lost": print}, ValueError, "on_lost needs renew=True"),
    ({"renew": True, "on_lost": "print"}, TypeError, "on_lost must be callable"),
    ({"key": ""}, ValueError, "key is empty"),
    ({"key": "a}b"}, ValueError, "outside a hash tag"),
    ({"key": "{}b"}, ValueError, "outside a hash tag"),
    ({"thread_local": "no"}, TypeError, "thread_local"),
    ({"raise_on_release_error": 0}, TypeError, "raise_on_release_error"),
]
BAD_CALLS: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("acquire", {"token": ""}, ValueError),
    ("acquire", {"token": b"x" * 256}, ValueError),
    ("acquire", {"token": 7}, TypeError),
    ("acquire", {"blocking": "yes"}, TypeError),
    ("extend", {"additional_time": 1, "replace_ttl": 1}, TypeError),
]


class TestBadInput:
    @pytest.mark.one_server
    @pytest.mark.parametrize(("options", "error", "words"), BAD_OPTIONS)
    def test_of_the_constructor(self, options: dict[str, Any], error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            Lock(**{"name": "door", **options})

    async def test_of_an_operation(self, call: Call) -> None:
        for verb, words, error in BAD_CALLS:
            before = snapshot()
            with pytest.raises(error):
                await call(Lock("door"), verb, **words)
            assert snapshot() == before

    @pytest.mark.parametrize("odd", ["{}", "a:b", "%", " ", "\n", "é😀", "x" * 255, "{lock:door}"])
    def test_odd_names_are_legal(self, odd: str) -> None:
        with Lock(odd) as lock:
            assert not Lock(odd).acquire(blocking=False)
            assert lock.name == odd
            assert Lock("door").acquire(blocking=False)
