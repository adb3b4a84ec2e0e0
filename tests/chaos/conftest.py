"""Servers that may be broken, and several processes that talk to one."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
import redis
from django.test import override_settings
from redis.exceptions import OutOfMemoryError

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from tests.core.proxy import LossyProxy

from . import actors

#: seconds: what should happen has happened by then, also on a busy machine
PATIENCE = 60.0
#: of the replies, that a lossy proxy loses
SHARE = 0.3
#: bytes that a server may use beyond what it needs, before it is full
SPARE = 2_000_000
#: seconds that an operation is tried there
GENEROUS = 60
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


@pytest.fixture
def lossy(connect: Connect, proxy: LossyProxy) -> LossyProxy:
    """A proxy that loses some of the replies."""
    connect(proxy, COMMAND_DEADLINE=GENEROUS)
    proxy.lose_some(SHARE)
    return proxy


@pytest.fixture
def client(fragile: EmbeddedServer) -> Iterator[redis.Redis]:
    """A raw client of the server that may be broken."""
    with fragile.client() as client:
        yield client


@pytest.fixture
def messaging() -> dict[str, Any]:
    """Settings of the app on a server that `fill` fills."""
    return {}


@pytest.fixture
def fill(
    client: redis.Redis, connect: Connect, fragile: EmbeddedServer, messaging: dict[str, Any]
) -> Callable[[], None]:
    """Fills what memory is left, by keys under the test's own prefix."""
    connect(fragile, **messaging)
    limit = client.info("memory")["used_memory"] + SPARE
    client.config_set("maxmemory", limit)

    def until_it_is_full() -> None:
        size = 100_000
        while size:
            try:
                client.set(f"{conf.prefix()}:filler:{os.urandom(6).hex()}", b"x" * size)
            except OutOfMemoryError:
                size //= 10

    return until_it_is_full
