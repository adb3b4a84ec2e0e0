"""Compares this app's connections with redis-py's: `python -m benchmarks.sockets [--rounds N] [--calls N]`.

Every contender makes the same call, the EVALSHA of a `Chat.send`, and only the processor time of the client
counts, so what the server does with the call makes no difference. It has the same request id each time: the
script finds it and sends nothing. The contenders take turns; a ratio is computed within a round. Client and
server are pinned to a processor each: whether they share one doubles the time of a call.

- this app: `clients.execute`, or its async version: pool, deadline, repeats
- redis-py's client: `execute_command`, with the connection pool of django-redis
- redis-py's connection: `send_command` and `read_response` of one that is open, without pool and repeats
- this app's connection: `exchange` of one that is open
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from .harness import driver, server, table

#: makes this many calls and returns the processor seconds that they took
Work = Callable[[int], float]


def script() -> Any:
    """The step of a `Chat.send`, for a server that has the script."""
    from django_redis_messaging import Chat

    chat = Chat.create("ann", ["bob"], chat_id="room")
    chat.send("ann", "hello", request_id="once")
    body: Any = Chat.send
    return next(body.__wrapped__(chat, "ann", "hello", request_id="once"))


def blocking(step: Any) -> Iterator[tuple[str, Work]]:
    """The contenders that block."""
    from django_redis_messaging.core import clients
    from django_redis_messaging.core.topology import connect

    client = driver()
    theirs, ours = (
        client.connection_pool.get_connection(),
        connect(clients.blocking_client("messaging").endpoint),
    )
    words, calls = step.words, [step.words]

    def exchange() -> None:
        theirs.send_command(*words)
        theirs.read_response()

    yield "this app", _repeat(lambda: clients.execute("messaging", step))
    yield "redis-py's client", _repeat(lambda: client.execute_command(*words))
    yield "redis-py's connection", _repeat(exchange)
    yield "this app's connection", _repeat(lambda: ours.exchange(calls, 1.0))


def running(step: Any, url: str, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[str, Work]]:
    """The contenders of an event loop."""
    import redis.asyncio

    from django_redis_messaging.core import clients
    from django_redis_messaging.core.connection import AsyncConnection

    client = redis.asyncio.Redis.from_url(url)
    theirs = loop.run_until_complete(client.connection_pool.get_connection())
    ours, words, calls = loop.run_until_complete(_open(AsyncConnection)), step.words, [step.words]

    async def execute() -> None:
        await clients.async_client("messaging").execute(step)

    async def exchange() -> None:
        await theirs.send_command(*words)
        await theirs.read_response()

    yield "this app", _repeat_in(loop, execute)
    yield "redis-py's client", _repeat_in(loop, lambda: client.execute_command(*words))
    yield "redis-py's connection", _repeat_in(loop, exchange)
    yield "this app's connection", _repeat_in(loop, lambda: ours.exchange(calls, 1.0))


async def _open(kind: Any) -> Any:
    from django_redis_messaging.core.topology import endpoint

    connection = kind()
    await connection.open(endpoint("messaging").target(), 10.0)
    return connection


def _repeat(call: Callable[[], object]) -> Work:
    def work(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            call()
        return time.process_time() - began

    return work


def _repeat_in(loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[object]]) -> Work:
    async def work(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            await call()
        return time.process_time() - began

    return lambda count: loop.run_until_complete(work(count))


def compare(contenders: list[tuple[str, Work]], rounds: int, calls: int) -> list[list[str]]:
    """A row for each contender: processor time of a call, relative to the first one and in µs."""
    for _, work in contenders:
        work(calls)
    times: dict[str, list[float]] = {name: [] for name, _ in contenders}
    for number in range(rounds):
        at = number % len(contenders)
        for name, work in contenders[at:] + contenders[:at]:
            times[name].append(work(calls) / calls)
    first = times[contenders[0][0]]
    return [
        _row(name, [one / base for one, base in zip(times[name], first, strict=True)], times[name])
        for name in times
    ]


def _row(name: str, ratios: list[float], times: list[float]) -> list[str]:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return [name, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", f"{1e6 * statistics.median(times):.0f}"]


def ping(count: int = 5000) -> float:
    """The median time of a PING of redis-py's client, in µs."""
    client, times = driver(), []
    for _ in range(count):
        began = time.perf_counter()
        client.ping()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def main() -> None:
    """Print a table for blocking calls, and one for those of an event loop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=2000, help="calls of a contender in a round")
    chosen = parser.parse_args()
    with server() as running_server:
        os.sched_setaffinity(0, {1})
        os.sched_setaffinity(running_server.pid, {0})
        step = script()
        print(f"A PING takes {ping():.0f} µs; load {os.getloadavg()[0]:.1f}.\n")
        loop = asyncio.new_event_loop()
        for style, contenders in (
            ("blocking", [*blocking(step)]),
            ("asyncio", [*running(step, running_server.url, loop)]),
        ):
            rows = compare(contenders, chosen.rounds, chosen.calls)
            print(table([[f"processor time, {style}", "this app = 1", "quartiles", "µs"], *rows]), "\n")


if __name__ == "__main__":
    main()
