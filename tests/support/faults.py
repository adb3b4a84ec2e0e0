"""Servers that may fail, and several processes that use one server."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import pytest
import redis
from django.test import override_settings
from redis.exceptions import OutOfMemoryError

from django_redis_messaging import MessagingError
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from tests.support.proxy import LossyProxy

from . import child_processes

#: seconds to wait for an expected condition, also on a busy machine
PATIENCE = 60.0
#: share of the replies that a lossy proxy drops
SHARE = 0.3
#: bytes of memory left before the server is full
SPARE = 3_000_000
#: bytes that the server may free by shrinking the buffers of its clients
BUFFERS = 1_000_000
#: seconds of COMMAND_DEADLINE with a lossy proxy
GENEROUS = 60
_numbers = itertools.count()
#: the forkserver forks from a small process: the threads of this one would not survive a fork
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["__main__", "tests.support.child_processes"])
#: an object, the name of an operation of it, and its arguments
Prepared = tuple[Any, ...]


async def results_around_a_loss(
    call: Callable[..., Awaitable[Any]], lossy: LossyProxy, prepare: Callable[[], Prepared]
) -> list[Any]:
    """The results of a prepared operation, of one whose reply is lost, so that the app repeats it, and of the
    same one once more; an error is represented by its type."""
    results: list[Any] = []
    for losses in (0, 0, 1):  # the server has the script after the first call
        lossy.lose_next(0)
        prepared = prepare()
        lossy.lose_next(losses)
        lost = lossy.lost
        results.append(await call(*prepared))
        assert lossy.lost == lost + losses
    try:
        results.append(await call(*prepared))
    except MessagingError as error:
        results.append(type(error))
    return results[1:]


class Connect(Protocol):
    """Point the app's alias to a server."""

    def __call__(self, where: EmbeddedServer | LossyProxy, **messaging: Any) -> child_processes.Stage: ...


class Cast(Protocol):
    """Run functions in several processes at once and return their results."""

    def __call__(
        self, stage: child_processes.Stage, calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]
    ) -> Any: ...


@pytest.fixture(scope="session")
def lasting() -> Iterator[EmbeddedServer]:
    """A server shared by the tests, each of which removes only keys with its own prefix."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def fragile() -> Iterator[EmbeddedServer]:
    """A server that the test may break. It keeps every acknowledged write."""
    with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def proxy(lasting: EmbeddedServer) -> Iterator[LossyProxy]:
    """A proxy that drops no replies until configured."""
    with LossyProxy(lasting.socket) as started:
        yield started


@pytest.fixture
def connect(own_prefix: str) -> Iterator[Connect]:
    with ExitStack() as stack:

        def to(where: EmbeddedServer | LossyProxy, **messaging: Any) -> child_processes.Stage:
            # django-redis caches its pools by URL: the client name makes this URL unique
            url = f"{where.url}&client_name=chaos-{next(_numbers)}"
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
            settings = {"PREFIX": own_prefix, **messaging}
            clients.close()
            stack.enter_context(
                override_settings(CACHES={"default": entry, "messaging": entry}, REDIS_MESSAGING=settings)
            )
            return child_processes.Stage(url=url, messaging=settings)

        yield to
        clients.close()


@contextmanager
def unavailable(server: EmbeddedServer, how: str = "frozen") -> Iterator[None]:
    """Let a server give no replies in the block: it is frozen, or stopped."""
    if how == "stopped":
        server.stop()
    else:
        server.freeze()
    try:
        yield
    finally:
        if how == "stopped":
            server.start()
        else:
            server.thaw()


@contextmanager
def cast(stage: child_processes.Stage, size: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that start together, each for one function."""
    barrier = processes.Barrier(size)
    with ProcessPoolExecutor(size, processes, child_processes.enter, (stage, barrier)) as pool:
        yield pool


@pytest.fixture
def all_at_once() -> Cast:
    def run(
        stage: child_processes.Stage, calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]
    ) -> list[Any]:
        with cast(stage, len(calls)) as pool:
            futures = [
                pool.submit(child_processes.begin, function, *arguments) for function, arguments in calls
            ]
            return [future.result(timeout=2 * PATIENCE) for future in futures]

    return run


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Call a function in another process."""
    process = processes.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def kill_process(process: BaseProcess) -> None:
    """Kill it, and wait for its end."""
    process.kill()
    process.join(PATIENCE)


def kill_at_random(
    start: Callable[[int], BaseProcess],
    done: Callable[[], int],
    until: Callable[[Callable[[], object]], None],
    *,
    size: int,
    kills: int,
    between: int,
) -> None:
    """Run `size` processes, each started with another seed. Whenever they have done `between` more things,
    one of them is killed and replaced, `kills` times; finally all are killed."""
    chance, seeds = random.Random(1), itertools.count()
    running = [start(next(seeds)) for _ in range(size)]
    try:
        for turn in range(1, kills + 1):
            until(lambda: done() >= turn * between)  # noqa: B023
            victim = chance.choice(running)
            running.remove(victim)
            kill_process(victim)
            running.append(start(next(seeds)))
        until(lambda: done() >= (kills + 1) * between)
    finally:
        for process in running:
            kill_process(process)


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait for a condition."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not become true in time"
            time.sleep(0.002)

    return wait


@pytest.fixture
def lossy(connect: Connect, proxy: LossyProxy) -> LossyProxy:
    """A proxy that drops some of the replies."""
    connect(proxy, COMMAND_DEADLINE=GENEROUS)
    proxy.lose_some(SHARE)
    return proxy


@pytest.fixture
def raw(fragile: EmbeddedServer) -> Iterator[redis.Redis]:
    """A raw client of the server that may be broken."""
    with fragile.client() as client:
        yield client


@pytest.fixture
def messaging() -> dict[str, Any]:
    """Settings of the app on the server that `fill` fills."""
    return {}


@pytest.fixture
def fill(
    raw: redis.Redis, connect: Connect, fragile: EmbeddedServer, messaging: dict[str, Any]
) -> Callable[[], None]:
    """Fill the remaining memory with keys of another program. It stays full when buffers are freed."""
    connect(fragile, **messaging)
    limit = raw.info("memory")["used_memory"] + SPARE
    raw.config_set("maxmemory", limit)

    def fill_memory() -> None:
        raw.config_set("maxmemory", limit)
        size = 100_000
        while size:
            try:
                raw.set(f"filler:{os.urandom(6).hex()}", b"x" * size)
            except OutOfMemoryError:
                size //= 10
        raw.config_set("maxmemory", limit - BUFFERS)

    return fill_memory
