"""Broadcasts when replies are lost, servers are killed, or memory is full: no duplicates, and no unreported
loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_redis_messaging import Batch, Broadcast, OutcomeUnknown, Unavailable
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import Connect
from ..support.scripts import Planting
from ..support.server import snapshot, until

pytestmark = pytest.mark.one_server


@pytest.fixture
def channel() -> Broadcast:
    return Broadcast("news")


def payloads(batch: Batch) -> list[Any]:
    return [event.payload for event in batch.events]


def seen(batch: Batch) -> tuple[list[Any], bool]:
    return payloads(batch), batch.missed


class TestLostReplies:
    async def test_each_event_is_published_and_read_once(
        self, call: Call, lossy: LossyProxy, channel: Broadcast
    ) -> None:
        cursor, events, found = await call(channel, "cursor"), [], []
        for number in range(50):
            events.append(await call(channel, "publish", number))
            batch = await call(channel, "fetch", cursor)
            cursor = batch.cursor
            found += payloads(batch)
        assert lossy.lost > 20
        lossy.lose_next(0)
        assert channel.fetch().events == events
        assert found == payloads(channel.fetch()) == list(range(50))

    async def test_a_repeat_by_the_caller_makes_sure(
        self, call: Call, connect: Connect, proxy: LossyProxy
    ) -> None:
        connect(proxy, COMMAND_DEADLINE=0.3)
        channel = Broadcast("news")
        proxy.lose_next(1000)
        with pytest.raises(OutcomeUnknown):
            await call(channel, "publish", "x", request_id="r")
        proxy.lose_next(0)
        event = await call(channel, "publish", "x", request_id="r")
        assert channel.fetch().events == [event]

    async def test_without_request_ids_they_would_be_doubled(
        self, call: Call, lossy: LossyProxy, plant: Planting, channel: Broadcast
    ) -> None:
        plant(("broadcasts/publish", "if before then", "if false then"))
        for number in range(50):
            await call(channel, "publish", number)
        lossy.lose_next(0)
        assert len(channel.fetch().events) > 55


def restart(server: EmbeddedServer) -> None:
    server.kill()
    server.start()


class TestKilled:
    @pytest.fixture
    def forgetful(self, connect: Connect) -> Iterator[EmbeddedServer]:
        """A server that saves only on request."""
        with EmbeddedServer(options={"save": "3600 1"}) as server:
            connect(server)
            yield server

    async def test_nothing_is_missed_if_nothing_is_lost(
        self, call: Call, fragile: EmbeddedServer, connect: Connect
    ) -> None:
        """Neither by a reader that waits while the server is killed."""
        connect(fragile)
        channel, idle = Broadcast("news"), Broadcast("idle")
        cursor, start = channel.publish("read").cursor, idle.cursor()
        await call(channel, "publish", "unread")

        def read() -> Batch:
            try:
                return idle.fetch(start, wait=20)
            finally:
                clients.close()

        with ThreadPoolExecutor(1) as pool, fragile.client() as raw:
            waiting = pool.submit(read)
            until(lambda: raw.info("clients")["blocked_clients"])
            restart(fragile)
            for one in (channel, idle):
                await call(one, "publish", "after")
            assert seen(waiting.result(30)) == (["after"], False)
        assert seen(await call(channel, "fetch", cursor)) == (["unread", "after"], False)

    async def test_all_is_lost(self, call: Call, forgetful: EmbeddedServer, channel: Broadcast) -> None:
        idle, cursor = channel.cursor(), channel.publish("lost").cursor
        restart(forgetful)
        assert (await call(channel, "fetch", cursor)).missed
        await call(channel, "publish", "after")
        for lost in (idle, cursor):
            assert seen(await call(channel, "fetch", lost)) == (["after"], True)

    async def test_the_latest_events_are_lost(self, call: Call, forgetful: EmbeddedServer) -> None:
        """Others are published then: fewer, as many, or more."""
        channels = [Broadcast(f"{others} others") for others in range(4)]
        for channel in channels:
            channel.publish("saved")
        behind = [channel.cursor() for channel in channels]
        with forgetful.client() as raw:
            raw.save()
        ahead = [[channel.publish(payload) for payload in ("lost", "lost too")] for channel in channels]
        restart(forgetful)
        for others, channel in enumerate(channels):
            for number in range(others):
                await call(channel, "publish", number)
            batch = await call(channel, "fetch", ahead[others][1].cursor)
            assert seen(batch) == (["saved", *range(others)], True)
            # this reader had not read them: another one has detected the loss
            assert (await call(channel, "fetch", behind[others])).missed


async def test_full_memory(
    call: Call, raw: redis.Redis, fill: Callable[[], None], channel: Broadcast
) -> None:
    """Publishing is rejected, and reading continues."""
    other = Broadcast("new")
    other.cursor()  # creates the channel
    first, second = channel.publish(1), channel.publish(2, request_id="known")
    fill()
    before = snapshot()
    for one in (channel, other):
        with pytest.raises(Unavailable, match="out of memory"):
            await call(one, "publish", "more", request_id="r")
    assert snapshot() == before
    assert await call(channel, "publish", "more", request_id="known") == second
    batch = await call(channel, "fetch", first.cursor, wait=0.05)
    assert payloads(batch) == [2]
    assert (await call(channel, "fetch", batch.cursor, wait=0.05)).events == []
    assert (await call(other, "fetch", wait=0.05)) == Batch([], other.cursor(), missed=False)
    await call(channel, "keep", "me", batch.cursor)
    assert channel.position("me") == batch.cursor
    raw.config_set("maxmemory", 0)
    assert (await call(channel, "publish", "more", request_id="r")).id == 3
