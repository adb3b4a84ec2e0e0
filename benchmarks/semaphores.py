"""Semaphores: acquire and release, compared with a bare PING and the original fair semaphore.

Measured with one process alone, with eight processes that compete for three permits, and with one process
that is denied a permit because all are held.

uv run python -m benchmarks.semaphores
uv run python -m benchmarks.semaphores --rounds 5
"""

from __future__ import annotations

import argparse
import time
import uuid
from typing import Any

from .harness import Contest, driver, server, table

PING, OURS, FAIR, LOCKED = "PING", "Semaphore", "original", "original with its lock"
#: competing processes; permits
CALLERS, LIMIT = 8, 3
#: seconds: lease; pause between two attempts of the original
TIMEOUT, POLL_INTERVAL = 10, 0.001
#: seconds: longer than the benchmark
LONG = 3600


class Original:
    """The original fair semaphore: holders by the client's clock, order by a counter.

    One transaction increments the counter, the next one stores its value. `locked` adds a lock, which
    prevents the race between the two.
    """

    def __init__(self, client: Any, name: str, limit: int, *, locked: bool) -> None:
        self.client = client
        self.limit = limit
        self.locked = locked
        self.times, self.owners, self.counter, self.lock = (
            f"{{{name}}}:{part}" for part in ("times", "owners", "counter", "lock")
        )
        self.token = ""

    def acquire(self) -> bool:
        """Try once."""
        if not self.locked:
            return self._acquire()
        holder = self._lock()
        if holder is None:
            return False
        try:
            return self._acquire()
        finally:
            self._unlock(holder)

    def release(self) -> None:
        """Release the permit."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.zrem(self.times, self.token).zrem(self.owners, self.token).execute()

    def pair(self) -> None:
        """Acquire, with polling as in the original, and release."""
        while not self.acquire():
            time.sleep(POLL_INTERVAL)
        self.release()

    def _acquire(self) -> bool:
        token, now = uuid.uuid4().hex, time.time()
        pipeline = self.client.pipeline(transaction=True)
        pipeline.zremrangebyscore(self.times, "-inf", now - TIMEOUT)
        pipeline.zinterstore(self.owners, {self.owners: 1, self.times: 0})
        pipeline.incr(self.counter)
        ticket = pipeline.execute()[-1]
        pipeline.zadd(self.times, {token: now}).zadd(self.owners, {token: ticket})
        pipeline.zrank(self.owners, token)
        if pipeline.execute()[-1] < self.limit:
            self.token = token
            return True
        pipeline.zrem(self.times, token).zrem(self.owners, token).execute()
        return False

    def _lock(self) -> str | None:
        holder, ends = uuid.uuid4().hex, time.time() + 0.01
        while time.time() < ends:
            if self.client.setnx(self.lock, holder):
                self.client.expire(self.lock, TIMEOUT)
                return holder
            time.sleep(POLL_INTERVAL)
        return None

    def _unlock(self, holder: str) -> None:
        with self.client.pipeline(transaction=True) as pipeline:
            pipeline.watch(self.lock)
            if pipeline.get(self.lock) == holder.encode():
                pipeline.multi()
                pipeline.delete(self.lock)
                pipeline.execute()
            pipeline.unwatch()


def contended(title: str, rounds: int, *, callers: int, limit: int) -> list[list[str]]:
    """Measure pairs of acquire and release by `callers` processes. Returns a row of the summary."""
    from django_redis_messaging import Semaphore

    client, name = driver(), f"{callers} of {limit}"
    semaphore = Semaphore(name, limit, timeout=TIMEOUT)

    def pair() -> None:
        semaphore.acquire(blocking=True)
        semaphore.release()

    contest = Contest(title, rounds, callers=callers)
    contest.add(PING, client.ping)
    contest.add(OURS, pair)
    for other, locked in ((FAIR, False), (LOCKED, True)):
        contest.add(other, Original(client, f"{name} {other}", limit, locked=locked).pair)
    return run(contest)


def denied(rounds: int) -> list[list[str]]:
    """Measure one process that asks for a permit while all are held. Returns a row of the summary."""
    from django_redis_messaging import Semaphore

    client, holder = driver(), Semaphore("full", LIMIT, timeout=LONG)
    semaphore = Semaphore("full", LIMIT, timeout=TIMEOUT)
    contest = Contest("denied", rounds)
    contest.add(PING, client.ping)
    contest.add(OURS, lambda: refused(semaphore.acquire()))
    originals = {
        name: Original(client, f"full {name}", LIMIT, locked=locked)
        for name, locked in ((FAIR, False), (LOCKED, True))
    }
    for name, original in originals.items():
        contest.add(name, lambda original=original: refused(original.acquire()))
    for _ in range(LIMIT):
        holder.acquire()
        for original in originals.values():
            original.acquire()
            client.zadd(original.times, {original.token: time.time() + LONG})
    return run(contest)


def refused(granted: bool) -> None:
    if granted:
        raise RuntimeError("a permit was granted although all were held")


def run(contest: Contest) -> list[list[str]]:
    """Run a contest and print its results. Returns a row of the summary."""
    results = contest.run()
    print(results)
    return [
        [
            contest.title,
            f"{results[OURS].ratio:.2f}",
            f"{results.speedup(OURS, FAIR):.1f}",
            f"{results.speedup(OURS, LOCKED):.1f}",
        ]
    ]


def main(rounds: int) -> None:
    with server():
        summary = [
            ["Semaphore", "of PING", f"times the {FAIR}", f"times the {LOCKED}"],
            *contended("acquire and release", rounds, callers=1, limit=LIMIT),
            *contended(
                f"the same, {CALLERS} processes, {LIMIT} permits", rounds, callers=CALLERS, limit=LIMIT
            ),
            *denied(rounds),
        ]
    print(f"\n{table(summary)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
