"""Rate limits: RateLimit compared with other packages for Django and Python, each with its Redis storage.

Packages that are not installed are left out. The parts: decisions per second, relative to a PING; memory of a
key; what is allowed while eight processes use one key; how replies that are lost are counted; and what calls
return while Redis is away.

uv run --with django-ratelimit --with limits --with django-smart-ratelimit --with pyrate-limiter \
    python -m benchmarks.rates
uv run python -m benchmarks.rates --rounds 5 --parts speed memory
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from . import rate_faults
from .harness import Contest, driver, processes, table
from .rate_peers import OURS, AsyncTake, Limiter, Server, Take, installed, set_up

Limiters = Sequence[Limiter]

PING = "PING"
#: keys that the calls of a contest use in turn, so that none reaches its limit
KEYS = [f"user-{number}" for number in range(1000)]
#: a limit that is not reached, and one that is; uses and seconds
HIGH, LOW = (1000, 3600), (5, 86_400)
#: tasks of an event loop that call at the same time, and the calls of each
TASKS, CALLS = 50, 4
#: uses after which the memory of a key is measured
USES = (1, 5, 100)
LIMITS = {"5/min": (5, 60), "100/min": (100, 60), "1000/h": HIGH}


def speed(limiters: Limiters, rounds: int) -> str:
    """Decisions of one process."""
    with Server() as running:
        [rows] = processes(1, lambda _: [*compare(limiters, running.url, rounds)])
    return table([["", "allowed, of PING", "p50 µs", "denied, of PING", "p50 µs"], *rows])


def compare(limiters: Limiters, url: str, rounds: int) -> Iterator[list[str]]:
    """Rows: the rate relative to a PING, and the median of the times of a call."""
    set_up(url)
    allowed, denied = (Contest(title, 4 * rounds, seconds=0.05) for title in ("allowed", "denied"))
    for contest in (allowed, denied):
        contest.add(PING, driver().ping)
    for one in limiters:
        allowed.add(one.name, partial(expect, one.make(url, *HIGH), itertools.cycle(KEYS), True))
        take = one.make(url, *LOW)
        for _ in range(LOW[0]):
            take("full")
        denied.add(one.name, partial(expect, take, itertools.repeat("full"), False))
    results = [contest.run() for contest in (allowed, denied)]
    for result in results:
        print(result, flush=True)
    for row in results[0].rows:
        found = [result[row.name] for result in results]
        cells = ((f"{one.ratio:.2f}", f"{1e6 * one.percentile(0.5):.0f}") for one in found)
        yield [row.name, *itertools.chain.from_iterable(cells)]


def expect(take: Take, keys: Iterator[str], is_allowed: bool) -> None:
    if take(next(keys)) is not is_allowed:
        raise RuntimeError(f"a use was {'denied' if is_allowed else 'allowed'}")


def async_speed(limiters: Limiters, rounds: int) -> str:
    """Decisions of one process, in an event loop with concurrent tasks."""
    with Server() as running:
        [rows] = processes(1, lambda _: [*compare_async(limiters, running.url, rounds)])
    return table([[f"{TASKS} tasks", "of PING", "allowed/s"], *rows])


def compare_async(limiters: Limiters, url: str, rounds: int) -> Iterator[list[str]]:
    import redis.asyncio

    set_up(url)
    loop = asyncio.new_event_loop()
    contest = Contest(f"{TASKS * CALLS} decisions of {TASKS} tasks", rounds, seconds=0.4)

    def add(name: str, call: Callable[[], Any]) -> None:
        contest.add(name, lambda: loop.run_until_complete(concurrently(call)))

    add(f"{PING} of redis.asyncio", redis.asyncio.Redis.from_url(url).ping)
    for one in limiters:
        if one.amake is not None:
            add(one.name, partial(allowed_later, one.amake(url, *HIGH), itertools.cycle(KEYS)))
    for row in contest.run().rows:
        yield [row.name, f"{row.ratio:.2f}", f"{TASKS * CALLS * statistics.median(row.rates):,.0f}"]


async def concurrently(call: Callable[[], Any]) -> None:
    async def some() -> None:
        for _ in range(CALLS):
            await call()

    await asyncio.gather(*(some() for _ in range(TASKS)))


async def allowed_later(take: AsyncTake, keys: Iterator[str]) -> None:
    if not await take(next(keys)):
        raise RuntimeError("a use was denied")


def memory(limiters: Limiters, rounds: int) -> str:
    """Bytes of all keys of one user."""
    with Server() as running:
        [rows] = processes(1, lambda _: [*sizes(limiters, running.url)])
    titles = [f"{name}, {uses}" for name in LIMITS for uses in USES]
    return table([["bytes of a key after so many calls", *titles], *rows])


def sizes(limiters: Limiters, url: str) -> Iterator[list[str]]:
    set_up(url)
    client = driver()
    for one in limiters:
        found = []
        for (name, limit), uses in itertools.product(LIMITS.items(), USES):
            before, take = set(client.scan_iter(count=1000)), one.make(url, *limit)
            for _ in range(uses):
                take(f"user-{name}-{uses}")
            new = set(client.scan_iter(count=1000)) - before
            found.append(sum(client.memory_usage(key, samples=0) for key in new))
        yield [one.name, *(f"{size:,}" for size in found)]


#: the limiters and the rounds, of which only the first two parts have several → a table
PARTS: dict[str, Callable[[Limiters, int], str]] = {
    "speed": speed,
    "async": async_speed,
    "memory": memory,
    "shared": rate_faults.shared,
    "lost": rate_faults.lost,
    "away": rate_faults.away,
}


def main(limiters: Limiters, rounds: int, parts: list[str]) -> None:
    packages = {one.package for one in limiters} | {"redis", "django-redis"}
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(packages - {OURS})))
    for part in parts:
        print(f"\n{part}: {PARTS[part].__doc__}\n{PARTS[part](limiters, rounds)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--only", default="", help="part of the names of limiters")
    options = parser.parse_args()
    main([one for one in installed() if options.only in one.name], options.rounds, options.parts)
