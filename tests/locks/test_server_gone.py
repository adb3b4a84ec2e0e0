"""Leases of locks and permits that are renewed while the server is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from django.test import override_settings
from redis.crc import key_slot

from django_redis_messaging import (
    LeaseLost,
    Lock,
    LockNotOwnedError,
    PermitLost,
    Semaphore,
    SemaphoreInfo,
)
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer

from ..conftest import Call
from ..support.clusters import Cluster
from ..support.faults import Connect

pytestmark = [pytest.mark.one_server, pytest.mark.timing]

#: seconds: leases that are longer and shorter than the outage
LONG_LEASE, SHORT_LEASE = 3.0, 0.5
#: seconds of COMMAND_DEADLINE
DEADLINE = 0.5
Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def server(fragile: EmbeddedServer, connect: Connect) -> EmbeddedServer:
    """A server that keeps the keys, with their time of expiry, when it is killed."""
    connect(fragile, COMMAND_DEADLINE=DEADLINE)
    return fragile


#: how a server goes away, and comes back
OUTAGES = {"kill": "start", "freeze": "thaw"}
outages = pytest.mark.parametrize("outage", ["kill", pytest.param("freeze", marks=pytest.mark.long)])


def failed(caplog: pytest.LogCaptureFixture, *names: str) -> bool:
    """Whether the failed renewals of all these were logged."""
    lines = [line for line in caplog.messages if line.startswith("Renewing the lease of ")]
    return all(any(f"'{name}'" in line for line in lines) for name in names)


@outages
def test_renewal_resumes_after_a_short_outage(
    outage: str, server: EmbeddedServer, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[LeaseLost] = []
    lock = Lock("door", timeout=LONG_LEASE, renew=True, on_lost=lost.append)
    semaphore = Semaphore("room", 1, timeout=LONG_LEASE, renew=True, on_lost=lost.append)
    assert lock.acquire()
    assert semaphore.acquire()
    began = time.monotonic()
    getattr(server, outage)()
    until(lambda: failed(caplog, "door", "room"))
    getattr(server, OUTAGES[outage])()
    with server.client() as client:
        until(lambda: client.pttl(lock.key) > 1000 * (began + LONG_LEASE + 0.5 - time.monotonic()))
    until(lambda: time.monotonic() > began + LONG_LEASE + 0.2)
    assert lock.owned()
    assert semaphore.refresh()
    assert semaphore.info() == SemaphoreInfo(limit=1, held=1, waiting=0)
    assert lost == []
    assert "was lost" not in caplog.text
    lock.release()
    semaphore.release()


@outages
async def test_a_lease_that_ends_during_an_outage_is_reported_once(
    outage: str, server: EmbeddedServer, until: Until, caplog: pytest.LogCaptureFixture, call: Call
) -> None:
    lost: list[LeaseLost] = []
    lock = Lock("door", timeout=SHORT_LEASE, renew=True, on_lost=lost.append)
    semaphore = Semaphore("room", 1, timeout=SHORT_LEASE, renew=True, on_lost=lost.append)
    assert await call(lock, "acquire")
    assert await call(semaphore, "acquire")
    getattr(server, outage)()
    until(lambda: len(lost) == 2)
    assert {type(error) for error in lost} == {LockNotOwnedError, PermitLost}
    assert failed(caplog, "door", "room")
    getattr(server, OUTAGES[outage])()
    with pytest.raises(LockNotOwnedError):
        await call(lock, "release")
    with pytest.raises(PermitLost):
        await call(semaphore, "release")
    # the thread that renews survives
    again = Lock("door", timeout=SHORT_LEASE, renew=True, on_lost=lost.append)
    assert await call(again, "acquire")
    ends = time.monotonic() + 2 * SHORT_LEASE
    until(lambda: time.monotonic() > ends)
    assert await call(again, "owned")
    await call(again, "release")
    assert len(lost) == 2
    await clients.aclose()


def test_a_frozen_node_of_a_cluster_does_not_affect_the_leases_on_other_nodes(
    own_prefix: str, until: Until
) -> None:
    lost: list[LeaseLost] = []
    # the other node does not notice within the test, so the Cluster stays up
    with Cluster(2, node_timeout=60_000) as cluster:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": cluster.url(0)}
        with override_settings(CACHES={"messaging": entry}, REDIS_MESSAGING={"PREFIX": own_prefix}):
            locks = [Lock(f"door {n}", timeout=1.5, renew=True, on_lost=lost.append) for n in range(8)]
            for lock in locks:
                assert lock.acquire()
            frozen = [lock for lock in locks if cluster.owner(key_slot(lock.key.encode())) == 1]
            assert 0 < len(frozen) < len(locks)
            cluster.servers[1].freeze()
            try:
                until(lambda: len(lost) == len(frozen))
                ends = time.monotonic() + 1.5
                until(lambda: time.monotonic() > ends)
                assert all(lock.owned() for lock in locks if lock not in frozen)
            finally:
                cluster.servers[1].thaw()
            assert len(lost) == len(frozen)
            for lock in locks:
                with suppress(LockNotOwnedError):
                    lock.release()
            clients.close()
