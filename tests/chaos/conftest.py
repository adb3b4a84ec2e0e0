"""Servers that may be broken, and several processes that talk to one."""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
import pytest_asyncio
from django.test import override_settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from tests.core.proxy import LossyProxy

from . import actors

#: seconds: what should happen has happened by then, also on a busy machine
PATIENCE = 30.0
#: of the replies, that a lossy proxy loses
SHARE = 0.3
#: seconds that an operation is tried there
GENEROUS = 60
Call = Callable[..., Any]
_numbers = itertools.count()
#: forks of a small process: this one has threads, which don't survive a fork
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["__main__", "tests.chaos.actors"])


class Connect(Protocol):
    """Makes the alias of the app lead to a server."""

    def __call__(self, where: EmbeddedServer | LossyProxy, **messaging: Any) -> actors.Stage: ...


class Cast(Protocol):
    """Has several processes act at once; what each returned."""

    def __call__(
        self, stage: actors.Stage, acts: list[tuple[Callable[..., Any], tuple[Any, ...]]]
    ) -> Any: ...


@pytest.fixture(scope="session")
def lasting() -> Iterator[EmbeddedServer]:
    """A server that every test leaves as it found it, but for keys of its own prefix."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def fragile() -> Iterator[EmbeddedServer]:
    """A server that the test may break; it forgets nothing that it has acknowledged."""
    with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def proxy(lasting: EmbeddedServer) -> Iterator[LossyProxy]:
    """A proxy that loses nothing yet."""
    with LossyProxy(lasting.socket) as started:
        yield started


@pytest.fixture
def connect(own_prefix: str) -> Iterator[Connect]:
    with ExitStack() as stack:

        def to(where: EmbeddedServer | LossyProxy, **messaging: Any) -> actors.Stage:
            # django-redis keeps its pools by URL: a name makes this one another
            url = f"{where.url}&client_name=chaos-{next(_numbers)}"
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
            settings = {"PREFIX": own_prefix, **messaging}
            clients.close()
            stack.enter_context(
                override_settings(CACHES={"default": entry, "messaging": entry}, REDIS_MESSAGING=settings)
            )
            return actors.Stage(url=url, messaging=settings)

        yield to
        clients.close()


@contextmanager
def cast(stage: actors.Stage, size: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that begin together, each with one act."""
    barrier = processes.Barrier(size)
    with ProcessPoolExecutor(size, processes, actors.enter, (stage, barrier)) as pool:
        yield pool


@pytest.fixture
def all_at_once() -> Cast:
    def run(stage: actors.Stage, acts: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
        with cast(stage, len(acts)) as pool:
            futures = [pool.submit(actors.begin, act, *arguments) for act, arguments in acts]
            return [future.result(timeout=2 * PATIENCE) for future in futures]

    return run


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Waits for a condition."""

    def wait(condition: Callable[[], object]) -> None:
        ends = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < ends, "it did not happen in time"
            time.sleep(0.002)

    return wait


@pytest_asyncio.fixture
async def closing() -> AsyncIterator[None]:
    """Closes the connections of the test's event loop while it still runs."""
    yield
    await clients.aclose()


@pytest.fixture
def lossy(connect: Connect, proxy: LossyProxy) -> LossyProxy:
    """A proxy that loses some of the replies."""
    connect(proxy, COMMAND_DEADLINE=GENEROUS)
    proxy.lose_some(SHARE)
    return proxy


@pytest.fixture(params=["blocking", "awaiting"])
def call(request: pytest.FixtureRequest, closing: None) -> Call:
    """Either form of an operation, awaited by the test."""

    async def do(subject: object, name: str, *arguments: object, **options: object) -> object:
        form = getattr(subject, name if request.param == "blocking" else f"a{name}")
        result = form(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    return do
