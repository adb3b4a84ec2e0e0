"""Live streams go on after what happens to servers: a restart, a freeze, a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, MessagingError, conf, live
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.live import hints
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinels

from ..support.faults import unavailable
from ..support.server import until
from .test_streams import Reader, following

pytestmark = [pytest.mark.timing, pytest.mark.promise]

#: seconds in which the streams must go on
LIMIT = 30.0


@pytest.fixture
def messaging_alias(messaging_settings: Prefix) -> str:
    """These tests start their own servers."""
    return conf.alias()


@asynccontextmanager
async def using(settings: Settings, **entry: Any) -> AsyncIterator[None]:
    """Use another server."""
    settings.CACHES = {**settings.CACHES, "own": {"BACKEND": "django_redis.cache.RedisCache", **entry}}
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "ALIAS": "own"}
    yield
    await clients.aclose()


async def send(chat: Chat, body: str) -> None:
    """Send until it succeeds: a repeat with the same request id changes nothing."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await chat.asend("ann", body, request_id=body)
                return
            except MessagingError:
                await asyncio.sleep(0.1)


async def survives(disturb: Callable[[], object]) -> None:
    """What is sent before, while and after it happens arrives once, in order."""
    chat = await Chat.acreate("ann", ["bob"])
    async with following("bob", rooms=[chat.id]) as reader, following("bob") as list_reader:
        await send(chat, "Before")
        await reader.until(live.RoomChanged, lambda event: event.changes.messages)
        disturbing = asyncio.create_task(asyncio.to_thread(disturb))
        await send(chat, "While")
        await disturbing
        await send(chat, "After")
        await reader.until(live.RoomChanged, lambda event: is_last(event, "After"), LIMIT)
        await list_reader.until(live.ChatsChanged, lambda event: is_listed(event, "After"), LIMIT)
        assert bodies(reader) == ["Before", "While", "After"]


def is_last(event: live.RoomChanged, body: str) -> bool:
    return any(message.body == body for message in event.changes.messages)


def is_listed(event: live.ChatsChanged, body: str) -> bool:
    return any(chat.last_message and chat.last_message.body == body for chat in event.chats)


def bodies(reader: Reader) -> list[str]:
    rooms = [event for event in reader.events if isinstance(event, live.RoomChanged)]
    return [message.body for event in rooms for message in event.changes.messages]


async def test_a_server_that_restarts(settings: Settings) -> None:
    # By default, a server that is killed loses what it has not yet written while its disk is busy.
    with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as server:
        async with using(settings, LOCATION=server.url):

            def restart() -> None:
                server.kill()
                server.start()

            await survives(restart)


async def test_a_server_that_freezes(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "PING_INTERVAL", 0.5)
    with EmbeddedServer() as server:
        async with using(settings, LOCATION=server.url):

            def freeze() -> None:
                with unavailable(server):
                    until(lambda: "Hints of changes are lost" in caplog.text)

            await survives(freeze)


async def test_a_failover(settings: Settings) -> None:
    with Sentinels() as pair:
        async with using(settings, LOCATION=pair.url, OPTIONS=pair.options):
            await survives(pair.kill)


async def test_a_failover_of_a_cluster(settings: Settings) -> None:
    """Of the node that all hints come from, and of the one that has the chat."""
    with Cluster(replicas=True) as cluster:
        async with using(settings, LOCATION=cluster.url(0)):
            for at in (0, 1, 2):
                await survives(partial(cluster.kill, at))
