"""Private servers, since most tests break them, and aliases that name them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import pytest
import pytest_asyncio
from django.test import override_settings

from django_redis_messaging.core import clients, commands
from django_redis_messaging.devserver.server import EmbeddedServer as Server
from tests.support.clusters import Cluster
from tests.support.example_service import SCRIPTS, Things
from tests.support.proxy import LossyProxy, Network
from tests.support.topologies import Servers

_numbers = itertools.count()


class Connect(Protocol):
    """Lets the alias "messaging" name a server."""

    def __call__(
        self,
        where: Server | LossyProxy | Network | str,
        options: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        **messaging: Any,
    ) -> Things: ...


@contextmanager
def takes(at_least: float, at_most: float) -> Iterator[None]:
    """The block takes so many seconds."""
    began = time.monotonic()
    yield
    assert at_least <= time.monotonic() - began <= at_most


def at_once() -> AbstractContextManager[None]:
    """The block does not take until the deadline of 10 s."""
    return takes(0, 5)


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@contextmanager
def meanwhile(work: Callable[[], object], *, after: float = 0) -> Iterator[None]:
    """Run a function in a thread, so many seconds after the begin of the block. Its error is raised at the
    end."""
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(lambda: (time.sleep(after), work()))
        yield
        working.result()


def blocked(client: Any) -> int:
    """The number of clients of a server that wait for something."""
    return int(client.info("clients")["blocked_clients"])


def count(client: Any, section: str, field: str) -> int:
    """A count of INFO: count(client, "commandstats", "eval")."""
    prefix, item = {"commandstats": ("cmdstat_", "calls"), "errorstats": ("errorstat_", "count")}[section]
    return int(client.info(section).get(prefix + field, {item: 0})[item])


@pytest.fixture(scope="session")
def server(servers: Servers) -> Server:
    """A server that no test changes."""
    return servers.single


@pytest.fixture
def cluster(servers: Servers) -> Iterator[Cluster]:
    """Three primaries with a replica each; tests move slots, and complete each migration."""
    with servers.cluster() as started:
        yield started


@pytest.fixture
def private() -> Iterator[Server]:
    """A server that the test may break."""
    with Server(append_only=True) as started:
        yield started


@pytest.fixture
def admin(private: Server) -> Iterator[Any]:
    """A raw client of `private`."""
    with private.client() as client:
        yield client


@pytest.fixture
def proxy(server: Server) -> Iterator[LossyProxy]:
    """A proxy in front of `server` that loses nothing yet."""
    with LossyProxy(server.socket) as started:
        yield started


@pytest.fixture
def network(private: Server) -> Iterator[Network]:
    """A network in front of `private` without faults yet."""
    with Network(private.socket) as started:
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
            where: Server | LossyProxy | Network | str,
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
def things(connect: Connect, server: Server) -> Things:
    """The service, on the shared server."""
    return connect(server)


@pytest_asyncio.fixture
async def closing(connect: Connect) -> AsyncIterator[None]:
    """Close the connections of the test's event loop while it is running."""
    yield
    await clients.aclose()
