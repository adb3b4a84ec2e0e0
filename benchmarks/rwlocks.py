"""Read-write locks: acquire and release, compared with a bare PING, exclusive locks, and one hash with the
mode and the holders.

Measured with one process alone, and with eight processes that read, and write a tenth of the time.

uv run python -m benchmarks.rwlocks
uv run python -m benchmarks.rwlocks --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
import uuid
from collections.abc import Callable

from .harness import Contest, driver, processes, server, table

PING, READ, WRITE = "PING", "ReadWriteLock, read", "ReadWriteLock, write"
OURS, LOCK, DRIVER, HASH = "ReadWriteLock", "Lock", "redis-py's Lock", "hash"
CONTENDERS = 8
#: part of the uses that write
WRITES = 0.1
#: seconds: the work under the lock; in which the processes start, so their uses don't count yet; the lease
WORK, WARM_UP, TIMEOUT = 0.001, 0.5, 10
#: seconds between two attempts with the hash
POLL_INTERVAL = 0.001

ACQUIRE = """
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode and (mode == 'write' or ARGV[1] == 'write') then
  return 0
end
redis.call('HSET', KEYS[1], 'mode', ARGV[1], ARGV[2], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
RELEASE = """
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HLEN', KEYS[1]) == 1 then
  redis.call('DEL', KEYS[1])
end
"""

#: acquires the lock to write or to read, works for some seconds, and releases it
Use = Callable[[bool, float], object]


def do(work: float) -> None:
    if work:
        time.sleep(work)


def read_write_lock(name: str) -> Use:
    from django_redis_messaging import ReadWriteLock

    lock = ReadWriteLock(name, timeout=TIMEOUT)

    def use(writes: bool, work: float) -> None:
        side = lock.write if writes else lock.read
        side.acquire()
        do(work)
        side.release()

    return use


def app_lock(name: str) -> Use:
    from django_redis_messaging import Lock

    return exclusive(Lock(name, timeout=TIMEOUT))


def driver_lock(name: str) -> Use:
    """redis-py's Lock with its defaults: it sleeps 100 ms between attempts."""
    return exclusive(driver().lock(f"driver:{name}", timeout=TIMEOUT))


def exclusive(lock: object) -> Use:
    def use(writes: bool, work: float) -> None:
        lock.acquire()  # type: ignore[attr-defined]
        do(work)
        lock.release()  # type: ignore[attr-defined]

    return use


def hash_lock(name: str) -> Use:
    """One hash with the mode and the tokens of the holders, and one lease for all; no queue, no fences."""
    client, key = driver(), f"hash:{name}"
    acquire, release = client.register_script(ACQUIRE), client.register_script(RELEASE)

    def use(writes: bool, work: float) -> None:
        token, mode = uuid.uuid4().hex, "write" if writes else "read"
        while not acquire([key], [mode, token, 1000 * TIMEOUT]):
            time.sleep(POLL_INTERVAL)
        do(work)
        release([key], [token])

    return use


KINDS = {OURS: read_write_lock, LOCK: app_lock, DRIVER: driver_lock, HASH: hash_lock}


def alone(rounds: int) -> list[list[str]]:
    """Measure one process alone. Returns rows of the summary."""
    contest = Contest("acquire and release", rounds)
    contest.add(PING, driver().ping)
    ours, others = read_write_lock("alone"), {name: KINDS[name]("alone") for name in (LOCK, DRIVER, HASH)}
    contest.add(READ, lambda: ours(False, 0))
    contest.add(WRITE, lambda: ours(True, 0))
    for name, use in others.items():
        contest.add(name, lambda use=use: use(True, 0))
    results = contest.run()
    print(results)
    return [[name, f"{results[name].ratio:.2f} of PING"] for name in (READ, WRITE, *others)]


def contended(rounds: int, seconds: float = 1.0) -> list[list[str]]:
    """Measure eight processes that read or write.

    Returns rows with the uses per second of all processes together and the longest waits of a reader and of a
    writer.
    """
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in KINDS}
    for turn, (name, kind) in itertools.product(range(rounds), KINDS.items()):
        begins = time.monotonic() + WARM_UP  # one clock for all processes
        reports = processes(
            CONTENDERS,
            lambda number, kind=kind, turn=turn, begins=begins: _repeat(
                kind(f"all:{turn}"), random.Random(number), begins, seconds
            ),
        )
        uses, reading, writing = zip(*reports, strict=True)
        found[name].append((sum(uses) / seconds, max(reading), max(writing)))
    lines = []
    for name, rows in found.items():
        rate, reader, writer = (statistics.median(column) for column in zip(*rows, strict=True))
        lines.append([name, f"{rate:,.0f} uses/s", f"{reader * 1000:.0f} ms", f"{writer * 1000:.0f} ms"])
    return lines


def _repeat(use: Use, chance: random.Random, begins: float, seconds: float) -> tuple[int, float, float]:
    """Return how many uses ended within `seconds` after `begins`, and the longest waits of a reader and of a
    writer."""
    done, longest, ends = 0, {False: 0.0, True: 0.0}, begins + seconds
    while (began := time.monotonic()) < ends:
        writes = chance.random() < WRITES
        use(writes, WORK)
        ended = time.monotonic()
        if ended > begins:
            longest[writes] = max(longest[writes], ended - began - WORK)
            done += ended < ends
    return done, longest[False], longest[True]


def main(rounds: int) -> None:
    with server():
        summary = [["", "alone"], *alone(rounds)]
        rivals = [
            ["", f"{CONTENDERS} processes", "longest wait of a reader", "of a writer"],
            *contended(max(rounds // 3, 3)),
        ]
    print(f"\n{table(summary)}\n\n{table(rivals)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
