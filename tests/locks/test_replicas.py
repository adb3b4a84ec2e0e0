"""Locks whose acquire replicas must confirm: they survive a failover."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_redis_messaging import LeaseLost, Lock, LockNotOwnedError, OutcomeUnknown, Unavailable
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer, find_bundled
from django_redis_messaging.services.locks import lock as locks

from ..conftest import Call
from ..support.aliases import entry, leading_to
from ..support.clusters import until
from ..support.faults import Connect, unavailable
from ..support.leases import waiters
from ..support.replicated_primary import SentinelShard, Shard, connected
from ..support.round_trips import round_trips
from ..support.sentinels import Pair, Sentinels

pytestmark = pytest.mark.one_server
#: seconds; longer than any test
LONG = 1000


@pytest.fixture(scope="module", params=[None, "valkey"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and its replica."""
    with Pair(program=request.param and find_bundled()) as started:
        yield started


@pytest.fixture(autouse=True)
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas have time to confirm, also on a busy machine: half of the lease."""
    monkeypatch.setattr(locks, "CONFIRM_TIMEOUT", LONG)


@pytest.fixture
def short(generous: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "CONFIRM_TIMEOUT", 0.2)


class TestConfirmation:
    async def test_the_replica_has_the_lock_when_it_is_acquired(
        self, call: Call, connect: Connect, pair: Pair
    ) -> None:
        connect(pair.servers[0])
        lock = Lock("door", timeout=LONG, replicas=1)
        for _ in range(20):
            assert await call(lock, "acquire")
            assert pair.clients[1].get(lock.key) == pair.clients[0].get(lock.key)
            assert int(pair.clients[1].get(lock._keys.fence).split()[0]) == lock.fence
            assert await call(lock, "extend", 10)
            await call(lock, "release")

    def test_a_confirmation_takes_no_further_round_trip(self, connect: Connect, pair: Pair) -> None:
        connect(pair.servers[0])
        lock = Lock("door", timeout=LONG, replicas=1)
        with lock:  # the server knows the script now
            pass
        assert round_trips(lock.acquire) == 1

    async def test_a_lock_that_is_not_confirmed_is_released_again(
        self, call: Call, connect: Connect, pair: Pair, short: None
    ) -> None:
        """In time, and whether or not it would wait; also if there are fewer replicas."""
        connect(pair.servers[0])
        with unavailable(pair.servers[1]):
            for blocking in (True, False):
                began = time.monotonic()
                with pytest.raises(Unavailable, match="'door' was released again: only 0 of 1 replicas"):
                    await call(Lock("door", replicas=1), "acquire", blocking=blocking)
                assert 0.2 <= time.monotonic() - began < 5
                assert not pair.clients[0].exists(Lock("door").key)
            assert await call(Lock("door"), "acquire")
        with pytest.raises(Unavailable, match=r"1 of 2 replicas .* as many replicas as"):
            await call(Lock("gate", replicas=2), "acquire")

    def test_half_of_the_lease_is_left_at_least(self, connect: Connect, pair: Pair) -> None:
        connect(pair.servers[0])
        began = time.monotonic()
        with pytest.raises(Unavailable), Lock("gate", replicas=2, timeout=0.2):
            pytest.fail("it was acquired")
        assert time.monotonic() - began < 5

    async def test_a_client_waits_although_no_replica_confirms_that(
        self, call: Call, connect: Connect, pair: Pair, short: None
    ) -> None:
        """Until it is granted the lock, there is nothing to confirm."""
        connect(pair.servers[0])
        holder = Lock("door", timeout=LONG)
        assert holder.acquire()
        with unavailable(pair.servers[1]):
            assert not await call(Lock("door", replicas=1), "acquire", blocking_timeout=0.1)
            assert not await call(Lock("door", replicas=1), "acquire", blocking=False)
            with waiters(Lock("door", replicas=1)) as [waiter]:
                until(lambda: holder.info().waiting == 1)
                pair.servers[1].thaw()
                holder.release()
                waiter.leave()

    async def test_an_extension_that_is_not_confirmed(self, call: Call, connect: Connect, pair: Pair) -> None:
        """A renewal is repeated, then the lease is lost. Leases without replicas are not affected."""
        connect(pair.servers[0])
        lost: list[LeaseLost] = []
        options = {"timeout": 0.6, "renew": True, "on_lost": lost.append}
        lock, other = Lock("door", replicas=1, **options), Lock("gate", **options)
        began = time.monotonic()
        assert await call(lock, "acquire")
        assert await call(other, "acquire")
        until(lambda: time.monotonic() > began + 0.8)
        assert not lost
        with unavailable(pair.servers[1]):
            with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
                await call(lock, "extend", 0.1)
            until(lambda: lost)
            until(lambda: time.monotonic() > began + 2)
        assert [error.lock_name for error in lost if isinstance(error, LockNotOwnedError)] == ["door"]
        assert await call(other, "owned")
        await call(other, "release")

    async def test_what_is_neither_confirmed_nor_released_is_unknown(
        self, call: Call, connect: Connect, pair: Pair, monkeypatch: pytest.MonkeyPatch, short: None
    ) -> None:
        connect(pair.servers[0], COMMAND_DEADLINE=0.5, DURABILITY={"replicas": 1, "timeout": 0.1})
        lock = Lock("door", replicas=2)
        with unavailable(pair.servers[1]), pytest.raises(OutcomeUnknown, match="of 2 replicas"):
            await call(lock, "acquire", blocking=False)

    def test_a_server_whose_user_may_not_wait_for_replicas(
        self, connect: Connect, pair: Pair, short: None
    ) -> None:
        pair.clients[0].execute_command(
            "ACL", "SETUSER", "nowait", "on", ">word", "~*", "&*", "+@all", "-wait"
        )
        where = entry(pair.servers[0].url.replace("unix://", "unix://nowait:word@"))
        with leading_to(where), pytest.raises(Unavailable, match=r"confirmation failed .*wait"):
            Lock("door", replicas=1).acquire()

    @pytest.mark.parametrize(("replicas", "error"), [(-1, ValueError), (101, ValueError), (True, TypeError)])
    def test_bad_numbers(self, replicas: int, error: type[Exception]) -> None:
        with pytest.raises(error, match="replicas"):
            Lock("door", replicas=replicas)


@contextmanager
def sentinels() -> Iterator[Shard]:
    with Sentinels() as started:
        yield SentinelShard(started)


def lose_the_primary(shard: Shard) -> None:
    """Kill it, and wait until the replica has taken over."""
    shard.kill()
    for at in shard.replicas:
        if shard.servers[at].running:
            shard.thaw([at])
    until(shard.has_failed_over)


@pytest.mark.promise
class TestFailover:
    async def test_a_confirmed_lock_survives_it(self, call: Call) -> None:
        with sentinels() as shard, connected(shard):
            lock = Lock("door", timeout=LONG, replicas=1)
            assert await call(lock, "acquire")
            lose_the_primary(shard)
            assert not await call(Lock("door"), "acquire", blocking=False)
            assert await call(lock, "owned")
            shard.restart()  # a replica that confirms the extension
            until(shard.is_whole)
            assert await call(lock, "extend", LONG)
            fence = lock.fence
            await call(lock, "release")
            assert await call(Lock("door"), "acquire")
            assert (await call(lock, "info")).fence > fence

    @pytest.mark.parametrize("replicas", [0, 1])
    async def test_with_a_replica_that_lags(self, call: Call, replicas: int, short: None) -> None:
        """Without confirmation, two clients hold the lock; with it, the first one never does."""
        with sentinels() as shard, connected(shard, COMMAND_DEADLINE=5.0):
            lock = Lock("door", timeout=LONG, replicas=replicas)
            assert await call(lock, "locked") is False
            shard.replicate()
            shard.freeze(shard.replicas)
            if replicas:
                with pytest.raises(Unavailable, match="was released again"):
                    await call(lock, "acquire")
            else:
                assert await call(lock, "acquire")
            lose_the_primary(shard)
            assert await call(Lock("door", timeout=LONG), "acquire", blocking=False)
            if not replicas:
                with pytest.raises(LockNotOwnedError):
                    await call(lock, "release")


def test_the_private_server_of_tests_has_no_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the argument has no effect there, as the setting."""
    with EmbeddedServer() as server, leading_to(entry(server.url)):
        endpoint = clients.blocking_client("messaging").endpoint
        monkeypatch.setattr(endpoint, "has_replicas", False)
        assert Lock("door", replicas=1).acquire()
