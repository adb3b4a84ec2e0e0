"""Waits for streams without a connection of their own: they share one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from redis.crc import key_slot

from django_redis_messaging.core import clients
from django_redis_messaging.core.operations import Listen, Service, Steps, asynchronous, operation
from django_redis_messaging.core.topology import Router
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import MessagingError
from tests.core.conftest import Connect
from tests.support.clusters import Cluster

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("closing")]

#: seconds; longer than anything takes here
LONG = 20.0
#: calls that wait, with three connections that waits may occupy
CALLS = 30


class Streams(Service):
    """Waits for streams in one slot."""

    def key(self, number: int) -> str:
        return f"{self._prefix}:1:{{streams}}:{number}"

    @operation
    def listen(self, number: int, seconds: float = LONG, match: bytes | None = None) -> Steps[bool]:
        """Whether the stream has an entry in time. Listen may return early."""
        ends = monotonic() + seconds
        while (left := ends - monotonic()) > 0:
            if (yield Listen(self.key(number), 0, seconds=left, match=match)) is not None:
                return True
        return False

    alisten = asynchronous(listen)


@pytest.fixture
def streams(connect: Connect, private: EmbeddedServer) -> Streams:
    """With four connections."""
    connect(private, {"max_connections": 4})
    return Streams()


@pytest.fixture
def admin(private: EmbeddedServer) -> Any:
    with private.client() as client:
        yield client


def listeners(client: clients.Client) -> int:
    """The calls that share a connection."""
    groups = client._shared._groups.values()
    return sum(len(some) for group in groups for some in group.streams.values())


async def shared(count: int) -> None:
    """Wait until this number of calls of the event loop share a connection."""
    client = clients.async_client("messaging")
    await until(lambda: listeners(client) >= count)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():  # noqa: ASYNC110 (the calls set no asyncio.Event)
            await asyncio.sleep(0.002)


def refused(admin: Any) -> int:
    """The commands that the server has refused because of the type of their key."""
    return int(admin.info("errorstats").get("errorstat_WRONGTYPE", {"count": 0})["count"])


def own() -> int:
    """The waits that have connections of their own: the last one is shared."""
    return 2


async def test_tasks_share_a_connection_and_each_is_woken(streams: Streams, admin: Any) -> None:
    tasks = [asyncio.create_task(streams.alisten(number)) for number in range(CALLS)]
    await shared(CALLS - own())
    assert admin.info("clients")["connected_clients"] <= 1 + 4
    for number in reversed(range(CALLS)):
        assert not tasks[number].done()
        admin.xadd(streams.key(number), {"a": 1}, id="1-0")
        assert await asyncio.wait_for(tasks[number], LONG)
    assert not clients.async_client("messaging")._shared._groups


async def test_idle_waits_send_ten_commands_a_second_together(streams: Streams, admin: Any) -> None:
    tasks = [asyncio.create_task(streams.alisten(0, 1.5)) for _ in range(CALLS)]
    await shared(CALLS - own())
    before = admin.info("stats")["total_commands_processed"]
    assert not any(await asyncio.gather(*tasks))
    assert admin.info("stats")["total_commands_processed"] - before <= 40


async def test_an_entry_wakes_only_the_call_that_it_is_for(streams: Streams, admin: Any) -> None:
    tasks = [asyncio.create_task(streams.alisten(0, match=b"%d" % number)) for number in range(CALLS)]
    await shared(CALLS - own())
    for at, number in enumerate([CALLS - 1, 0, 10], 1):  # those with a connection of their own, too
        admin.delete(streams.key(0))
        admin.xadd(streams.key(0), {"for": number}, id=f"{at}-0")
        assert await asyncio.wait_for(tasks[number], LONG)
        assert sum(task.done() for task in tasks) == at
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not clients.async_client("messaging")._shared._groups


async def test_the_others_are_woken_after_the_leader_was_cancelled(streams: Streams, admin: Any) -> None:
    tasks = [asyncio.create_task(streams.alisten(number)) for number in range(CALLS)]
    await shared(CALLS - own())
    for _ in range(5):
        [group] = clients.async_client("messaging")._shared._groups.values()
        assert group.leader is not None
        number = int(group.leader.step.stream.rpartition(":")[2])
        tasks[number].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[number]
    left = [number for number, task in enumerate(tasks) if not task.done()]
    assert len(left) == CALLS - 5
    for number in left:
        admin.xadd(streams.key(number), {"a": 1}, id="1-0")
    async with asyncio.timeout(LONG):
        assert all([await tasks[number] for number in left])


async def test_more_streams_than_one_read_has(
    streams: Streams, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_redis_messaging.core.clients.MAX_STREAMS", 3)
    tasks = [asyncio.create_task(streams.alisten(number)) for number in range(10)]
    await shared(10 - own())
    for number in range(10):
        admin.xadd(streams.key(number), {"a": 1}, id="1-0")
    async with asyncio.timeout(LONG):
        assert all(await asyncio.gather(*tasks))


async def test_streams_of_several_slots_of_a_cluster_that_may_not_be_asked_for_them(
    connect: Connect, cluster: Cluster
) -> None:
    connect(cluster.url(0), {"max_connections": 4})
    streams = Streams()
    names = [name for name in map(str, range(1000)) if cluster.owner(key_slot(name.encode())) == 0][:6]
    client = clients.async_client("messaging")
    client.endpoint.router = Router()

    async def listen(name: str) -> object:
        step = Listen(f"{streams._prefix}:1:{{{name}}}", 0, seconds=LONG)
        while (found := await client.execute(step)) is None:  # there is one connection for three slots
            pass
        return found

    tasks = [asyncio.create_task(listen(name)) for name in names]
    await shared(len(names) - own())
    for name in names:
        cluster.clients[0].xadd(f"{streams._prefix}:1:{{{name}}}", {"a": 1}, id="1-0")
    async with asyncio.timeout(LONG):
        await asyncio.gather(*tasks)
    assert type(client.endpoint.router) is Router


async def test_a_key_of_another_type_does_not_fail_the_waits_for_other_streams(
    streams: Streams, admin: Any
) -> None:
    tasks = [asyncio.create_task(streams.alisten(number)) for number in range(6)]
    await shared(6 - own())
    admin.set(streams.key(7), "no stream")
    tasks.append(asyncio.create_task(streams.alisten(7)))
    await until(lambda: refused(admin) >= 3)
    for number in range(6):
        admin.xadd(streams.key(number), {"a": 1}, id="1-0")
    async with asyncio.timeout(LONG):
        assert all(await asyncio.gather(*tasks[:6]))
        with pytest.raises(MessagingError, match="another type"):
            await tasks[6]


async def test_a_restarted_server(streams: Streams, private: EmbeddedServer) -> None:
    tasks = [asyncio.create_task(streams.alisten(number)) for number in range(CALLS)]
    await shared(CALLS - own())
    await asyncio.to_thread(private.stop)
    await asyncio.to_thread(private.start)
    with private.client() as admin:
        for number in range(CALLS):
            admin.xadd(streams.key(number), {"a": 1}, id="1-0")
    async with asyncio.timeout(LONG):
        assert all(await asyncio.gather(*tasks))
