"""Locks: acquire and release, compared with a bare PING, redis-py's Lock and the original algorithm.

Measured with one process alone, and with eight processes that compete for one lock.

uv run python -m benchmarks.locks
uv run python -m benchmarks.locks --rounds 5
uv run python -m benchmarks.locks --work 1          # ms that the eight processes work under the lock
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import statistics
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext

from redis.exceptions import WatchError

from .harness import Contest, awake, driver, processes, server, table

PING, OURS, DRIVER, ORIGINAL, OTHER = (
    "PING",
    "Lock",
    "redis-py's Lock",
    "original algorithm",
    "python-redis-lock",
)
CONTENDERS = 8
#: seconds in which the processes start; their pairs don't count yet
WARM_UP = 0.5

#: acquires and releases the lock once
Pair = Callable[[], object]


def do(work: float) -> None:
    """Work for some seconds under the lock."""
    if work:
        time.sleep(work)


def app_lock(name: str, work: float = 0) -> Pair:
    from django_redis_messaging import Lock

    lock = Lock(name)

    def pair() -> None:
        lock.acquire()
        do(work)
        lock.release()

    return pair


def driver_lock(name: str, work: float = 0) -> Pair:
    """redis-py's Lock with its defaults: it sleeps 100 ms between attempts."""
    lock = driver().lock(f"driver:{name}", timeout=10)

    def pair() -> None:
        lock.acquire()
        do(work)
        lock.release()

    return pair


def original_lock(name: str, work: float = 0) -> Pair:
    """SETNX every ms and EXPIRE; release in a transaction that watches the key."""
    client, key = driver(), f"lock:{name}"

    def pair() -> None:
        token = str(uuid.uuid4()).encode()
        while not client.setnx(key, token):
            if client.ttl(key) < 0:
                client.expire(key, 10)
            time.sleep(0.001)
        client.expire(key, 10)
        do(work)
        with client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(key)
                    if pipe.get(key) != token:
                        raise RuntimeError("another client holds the lock")
                    pipe.multi()
                    pipe.delete(key)
                    pipe.execute()
                    return
                except WatchError:
                    continue

    return pair


def other_lock(name: str, work: float = 0) -> Pair:
    redis_lock, client = importlib.import_module("redis_lock"), driver()

    def pair() -> None:
        lock = redis_lock.Lock(client, f"other:{name}", expire=10)
        lock.acquire()
        do(work)
        lock.release()

    return pair


def kinds() -> dict[str, Callable[..., Pair]]:
    """Return the contenders that are installed."""
    found = {OURS: app_lock, DRIVER: driver_lock, ORIGINAL: original_lock}
    return found | ({OTHER: other_lock} if importlib.util.find_spec("redis_lock") else {})


def alone(rounds: int) -> list[list[str]]:
    """Measure one process alone. Returns rows of the summary."""
    contest = Contest("acquire and release", rounds)
    contest.add(PING, driver().ping)
    for name, kind in kinds().items():
        contest.add(name, kind("alone"))
    results = contest.run()
    print(results)
    return [
        [name, f"{results[name].ratio:.2f} of PING", f"{results.speedup(OURS, name):.2f} times"]
        for name in kinds()
    ]


def contended(rounds: int, work: float, seconds: float = 1.0) -> list[list[str]]:
    """Measure eight processes that acquire, work for `work` seconds, and release, as fast as possible.

    Returns rows with the pairs per second of all processes together and the longest wait.
    """
    rates: dict[str, list[float]] = {name: [] for name in kinds()}
    worst: dict[str, list[float]] = {name: [] for name in kinds()}
    for turn, (name, kind) in itertools.product(range(rounds), kinds().items()):
        begins = time.monotonic() + WARM_UP  # one clock for all processes
        found = processes(
            CONTENDERS,
            lambda _, kind=kind, turn=turn, begins=begins: _repeat(
                kind(f"all:{turn}", work), begins, seconds
            ),
        )
        rates[name].append(sum(done for done, _ in found) / seconds)
        worst[name].append(max(longest for _, longest in found))
    lines = []
    for name in kinds():
        times = statistics.median(mine / its for mine, its in zip(rates[OURS], rates[name], strict=True))
        rate, wait = statistics.median(rates[name]), statistics.median(worst[name])
        lines.append([name, f"{rate:,.0f} pairs/s", f"{wait * 1000:.0f} ms", f"{times:.2f} times"])
    return lines


def _repeat(pair: Pair, begins: float, seconds: float) -> tuple[int, float]:
    """Return how many pairs ended within `seconds` after `begins`, and the longest time that one took."""
    done, longest, ends = 0, 0.0, begins + seconds
    while (began := time.monotonic()) < ends:
        pair()
        ended = time.monotonic()
        if ended > begins:
            longest = max(longest, ended - began)
            done += ended < ends
    return done, longest


def main(rounds: int, work: float) -> None:
    with server():
        summary = [["", "alone", "Lock is"], *alone(rounds)]
        rivals = [
            ["", f"{CONTENDERS} processes", "longest wait", "Lock is"],
            *contended(max(rounds // 3, 3), work),
        ]
    print(f"\n{table(summary)}\n\n{table(rivals)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work", type=float, default=0, help="ms of work under the contended lock")
    parser.add_argument("--awake", action="store_true", help="keep the processors awake: a fast machine")
    options = parser.parse_args()
    with awake() if options.awake else nullcontext():
        main(options.rounds, options.work / 1000)
