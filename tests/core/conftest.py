"""Private servers, since most tests break them, and aliases that name them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
import pytest_asyncio
from django.test import override_settings

from django_redis_messaging.core import clients, commands
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.clusters import Cluster
from tests.support.example_service import SCRIPTS, Things
from tests.support.proxy import LossyProxy

#: seconds; the timeout of conditions, also on a busy machine
PATIENCE = 30.0
_numbers = itertools.count()


class Connect(Protocol):
    """Lets the alias "messaging" name a server."""

    def __call__(
        self,
        where: EmbeddedServer | LossyProxy | str,
        options: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        **messaging: Any,
    ) -> Things: ...


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """A server that no test changes."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three primaries; tests move slots, and complete each migration."""
    with Cluster() as started:
        yield started


@pytest.fixture
def private() -> Iterator[EmbeddedServer]:
    """A server that the test may break."""
    with EmbeddedServer(append_only=True) as started:
        yield started


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[LossyProxy]:
    """A proxy in front of `server` that loses nothing yet."""
    with LossyProxy(server.socket) as started:
        yield started


@pytest.fixture(autouse=True)
def scripts_of_things(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the scripts of example_service.py loadable, besides the app's own."""
    read = commands.read
    monkeypatch.setattr(
        commands, "read", lambda filename: SCRIPTS.get(filename.removesuffix(".lua")) or read(filename)
    )
    commands.load.cache_clear()
    yield
    commands.load.cache_clear()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Let the alias name a server, with a prefix of the test's own; the last call counts."""
    with ExitStack() as stack:

        def to(
            where: EmbeddedServer | LossyProxy | str,
            options: dict[str, Any] | None = None,
            more: dict[str, Any] | None = None,
            **messaging: Any,
        ) -> Things:
            url = where if isinstance(where, str) else where.url
            # django-redis keeps its pools by URL: a client name makes a separate pool
            entry = {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": f"{url}&client_name=test-{next(_numbers)}",
                "OPTIONS": {"CONNECTION_POOL_KWARGS": options or {}, **(more or {})},
            }
            settings = {"PREFIX": f"test-{uuid.uuid4().hex}", **messaging}
            clients.close()
            stack.enter_context(
                override_settings(CACHES={"default": entry, "messaging": entry}, REDIS_MESSAGING=settings)
            )
            return Things()

        yield to
        clients.close()


@pytest.fixture
def things(connect: Connect, server: EmbeddedServer) -> Things:
    """The service, on the shared server."""
    return connect(server)


@pytest_asyncio.fixture
async def closing(connect: Connect) -> AsyncIterator[None]:
    """Close the connections of the test's event loop while it is running."""
    yield
    await clients.aclose()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait for a condition."""

    def wait(condition: Callable[[], object]) -> None:
        ends = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < ends, "it did not happen in time"
            time.sleep(0.002)

    return wait
