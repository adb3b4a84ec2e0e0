"""Broadcasts when replies are lost and servers are killed: no duplicates, and no unreported loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_redis_messaging import Batch, Broadcast, OutcomeUnknown, Unavailable, conf
from django_redis_messaging.core import clients, commands
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import Connect

pytestmark = pytest.mark.one_server


def payloads(batch: Batch) -> list[Any]:
    return [event.payload for event in batch.events]


class TestLostReplies:
    async def test_each_event_is_published_once(self, call: Call, lossy: LossyProxy) -> None:
        channel = Broadcast("news")
        events = [await call(channel, "publish", number) for number in range(50)]
        assert lossy.lost > 10
        lossy.lose_next(0)
        assert channel.fetch().events == events
        assert payloads(channel.fetch()) == list(range(50))

    async def test_a_reader_gets_each_event_once(self, call: Call, lossy: LossyProxy) -> None:
        channel = Broadcast("news")
        cursor, seen = await call(channel, "cursor"), []
        for number in range(30):
            await call(channel, "publish", number)
            batch = await call(channel, "fetch", cursor)
            cursor = batch.cursor
            seen += payloads(batch)
        assert lossy.lost > 10
        assert seen == list(range(30))

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
        self, call: Call, lossy: LossyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = commands.read
        broken = read("broadcasts/publish.lua").replace("if before then", "if false then")
        monkeypatch.setattr(
            commands, "read", lambda name: broken if name == "broadcasts/publish.lua" else read(name)
        )
        commands.load.cache_clear()
        try:
            channel = Broadcast("news")
            for number in range(50):
                await call(channel, "publish", number)
            lossy.lose_next(0)
            assert len(channel.fetch().events) > 55
        finally:
            commands.load.cache_clear()


class TestKilled:
    @pytest.fixture
    def forgetful(self) -> Iterator[EmbeddedServer]:
        """A server that saves only on request."""
        with EmbeddedServer(options={"save": "3600 1"}) as server:
            yield server

    async def test_nothing_is_missed_if_nothing_is_lost(
        self, call: Call, fragile: EmbeddedServer, connect: Connect
    ) -> None:
        connect(fragile)
        channel = Broadcast("news")
        cursor = channel.publish("read").cursor
        await call(channel, "publish", "unread")
        fragile.kill()
        fragile.start()
        await call(channel, "publish", "after")
        batch = await call(channel, "fetch", cursor)
        assert (payloads(batch), batch.missed) == (["unread", "after"], False)

    async def test_all_is_lost(self, call: Call, forgetful: EmbeddedServer, connect: Connect) -> None:
        connect(forgetful)
        channel = Broadcast("news")
        idle, cursor = channel.cursor(), channel.publish("lost").cursor
        forgetful.kill()
        forgetful.start()
        assert (await call(channel, "fetch", cursor)).missed
        await call(channel, "publish", "after")
        for lost in (idle, cursor):
            batch = await call(channel, "fetch", lost)
            assert (payloads(batch), batch.missed) == (["after"], True)

    @pytest.mark.parametrize("others", [0, 1, 2, 3])
    async def test_the_latest_events_are_lost(
        self, others: int, call: Call, forgetful: EmbeddedServer, connect: Connect
    ) -> None:
        connect(forgetful)
        channel = Broadcast("news")
        channel.publish("saved")
        behind = channel.cursor()
        with forgetful.client() as raw:
            raw.save()
        channel.publish("lost")
        cursor = channel.publish("lost too").cursor
        forgetful.kill()
        forgetful.start()
        for number in range(others):
            await call(channel, "publish", number)
        batch = await call(channel, "fetch", cursor)
        assert (payloads(batch), batch.missed) == (["saved", *range(others)], True)
        # this reader had not read them: another one has detected the loss
        assert (await call(channel, "fetch", behind)).missed

    async def test_a_waiting_reader_continues(
        self, call: Call, fragile: EmbeddedServer, connect: Connect
    ) -> None:
        connect(fragile)
        channel = Broadcast("news")
        start = channel.cursor()

        def read() -> Batch:
            try:
                return channel.fetch(start, wait=20)
            finally:
                clients.close()

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(read)
            with fragile.client() as raw:
                while not raw.info("clients")["blocked_clients"]:
                    threading.Event().wait(0.002)
            fragile.kill()
            fragile.start()
            await call(channel, "publish", "after")
            batch = waiting.result(30)
        assert (payloads(batch), batch.missed) == (["after"], False)


class TestFullMemory:
    async def test_publishing_is_rejected_and_reading_continues(
        self, call: Call, raw: redis.Redis, fill: Callable[[], None]
    ) -> None:
        channel, other = Broadcast("news"), Broadcast("new")
        other.cursor()  # creates the channel
        first = channel.publish(1)
        channel.publish(2)
        fill()
        keys = set(raw.scan_iter(match=f"{conf.prefix()}:1:*", count=1000))
        for one in (channel, other):
            with pytest.raises(Unavailable, match="out of memory"):
                await call(one, "publish", "more", request_id="r")
        assert set(raw.scan_iter(match=f"{conf.prefix()}:1:*", count=1000)) == keys
        batch = await call(channel, "fetch", first.cursor, wait=0.05)
        assert payloads(batch) == [2]
        assert (await call(channel, "fetch", batch.cursor, wait=0.05)).events == []
        assert (await call(other, "fetch", wait=0.05)) == Batch([], other.cursor(), missed=False)
        await call(channel, "keep", "me", batch.cursor)
        assert channel.position("me") == batch.cursor
        raw.config_set("maxmemory", 0)
        assert (await call(channel, "publish", "more", request_id="r")).id == 3
