"""Private servers, since most tests break them, and aliases that name them."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Protocol

import pytest
import pytest_asyncio

from django_redis_messaging.core import clients, commands
from django_redis_messaging.devserver.server import EmbeddedServer as Server
from tests.conftest import Call
from tests.support.aliases import entry, leading_to
from tests.support.clusters import Cluster
from tests.support.example_service import SCRIPTS, Things
from tests.support.proxy import LossyProxy, Network
from tests.support.topologies import Servers


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


async def make_idle(things: Things, number: int = 6) -> None:
    """Leave this many idle connections in both styles."""
    await asyncio.gather(*(things.aget("a") for _ in range(number)))
    meeting = threading.Barrier(number)

    def get(_: int) -> None:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(10)
        for _ in range(20):
            things.get("a")

    with ThreadPoolExecutor(number) as threads:
        await asyncio.to_thread(lambda: list(threads.map(get, range(number))))


async def warm(call: Call, things: Things) -> None:
    """Load the scripts into the server."""
    for _ in range(2):  # with the missing key, then, once the kind of server is detected, without it
        for name in ("add", "clear", "get"):
            await call(things, name, "a")
        await call(things, "clear", "a")


async def close_all() -> None:
    clients.close()
    await clients.aclose()


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
    with Server(append_only=True, options={"appendfsync": "always"}) as started:
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
            found = entry(url, CONNECTION_POOL_KWARGS=options or {}, **(more or {}))
            settings = {"PREFIX": f"test-{uuid.uuid4().hex}", **messaging}
            stack.enter_context(leading_to(found, **settings))
            return Things()

        yield to


@pytest.fixture
def things(connect: Connect, server: Server) -> Things:
    """The service, on the shared server."""
    return connect(server)


@pytest_asyncio.fixture
async def closing(connect: Connect) -> AsyncIterator[None]:
    """Close the connections of the test's event loop while it is running."""
    yield
    await clients.aclose()
