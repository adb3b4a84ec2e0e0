"""Waiting for the end of tasks on a server of its own: what it costs, and a restart of the server."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks import await_for_result
from django_redis_messaging.tasks.compat import TaskResultStatus

from ..support.workers import burst, until
from . import jobs
from .test_waiting import PATIENCE, copy_of, waiters, waits_sent

pytestmark = pytest.mark.one_server

SUCCESSFUL = TaskResultStatus.SUCCESSFUL


@pytest.mark.timing
class TestCost:
    def test_waiting_sends_a_command_a_second(self, own_server: EmbeddedServer) -> None:
        results = [jobs.echo.enqueue() for _ in range(3)]
        with waiters(*results) as futures, own_server.client() as client:
            commands, seconds = commands_in(client, 1)
            burst()
            assert [one.result(PATIENCE).status for one in futures] == [SUCCESSFUL] * 3
        assert commands / len(results) <= 1.5 * seconds

    async def test_any_number_of_clients_wait(self, own_server: EmbeddedServer, settings: Settings) -> None:
        """More than there are connections: those that get none listen later, and send nothing meanwhile."""
        entry = settings.CACHES["messaging"]
        options = {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"max_connections": 8}}}
        settings.CACHES = {**settings.CACHES, "messaging": {**entry, **options}}
        result = jobs.echo.enqueue()
        copies = [copy_of(result) for _ in range(40)]
        waits = [asyncio.ensure_future(await_for_result(one, PATIENCE)) for one in copies]
        await asyncio.to_thread(until, lambda: count_blocked(own_server) >= 6)
        with own_server.client() as client:
            commands, seconds = await asyncio.to_thread(commands_in, client, 1)
        await asyncio.to_thread(burst)
        assert {one.status for one in await asyncio.gather(*waits)} == {SUCCESSFUL}
        assert commands / len(waits) <= 1.5 * seconds
        await clients.aclose()


@pytest.mark.promise
def test_wait_survives_a_restart_of_the_server(own_server: EmbeddedServer) -> None:
    result = jobs.echo.enqueue()
    with waiters(result) as [future]:
        own_server.kill()
        own_server.start()
        burst()
        assert future.result(PATIENCE).status == SUCCESSFUL


def count_blocked(of: EmbeddedServer) -> int:
    with of.client() as client:
        return int(client.info("clients")["blocked_clients"])


def commands_in(client: Any, seconds: float) -> tuple[int, float]:
    """Number of commands for the wait in a period of at least `seconds`, and its exact length."""
    before, began = waits_sent(client), time.monotonic()
    threading.Event().wait(seconds)
    return waits_sent(client) - before, time.monotonic() - began
