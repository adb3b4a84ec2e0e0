"""Broadcast channels, compared with a bare PING and the original algorithm.

uv run python -m benchmarks.broadcast
uv run python -m benchmarks.broadcast --rounds 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from typing import Any

from .harness import Contest, driver, server, table

PING, ORIGINAL = "PING", "original algorithm"
PUBLISH, FETCH = "Broadcast.publish", "Broadcast.fetch"
PAYLOAD = {"setting": "theme", "value": "dark", "by": "ann@example.com"}


class Original:
    """The original broadcast, from its description: payloads by the client's clock, one key per 10 s."""

    def __init__(self) -> None:
        self.client = driver()
        self.last = time.time() * 1000

    def _key(self, back: int = 0) -> str:
        return f"original:broadcast:{int(time.time() // 10) - back}"

    def publish(self) -> None:
        with self.client.pipeline() as pipeline:
            pipeline.zadd(self._key(), {json.dumps(PAYLOAD): time.time() * 1000})
            pipeline.expire(self._key(), 300)
            pipeline.execute()

    def fetch(self) -> list[Any]:
        now = time.time() * 1000
        with self.client.pipeline() as pipeline:
            for back in (2, 1, 0):
                pipeline.zrangebyscore(self._key(back), self.last, now)
            found = [json.loads(raw) for raws in pipeline.execute() for raw in raws]
        self.last = now
        return found

    def fetch_all(self) -> list[Any]:
        self.last = 0
        return self.fetch()


def run(what: str, contender: str, contest: Contest) -> list[str]:
    """Run a contest, print it, and return a row of the summary."""
    results = contest.run()
    print(results)
    times = f"{results.speedup(contender, ORIGINAL):.1f} times the original"
    return [what, f"{results[contender].ratio:.2f}", times]


def publishing(rounds: int) -> list[str]:
    """Publish one event. Returns a row of the summary."""
    from django_redis_messaging import Broadcast

    channel, original = Broadcast("publishing"), Original()
    contest = Contest("publish an event", rounds)
    contest.add(PING, driver().ping)
    contest.add(PUBLISH, lambda: channel.publish(PAYLOAD))
    contest.add(ORIGINAL, original.publish)
    return run("publish", PUBLISH, contest)


def idle(rounds: int) -> list[str]:
    """Fetch when nothing is new. Returns a row of the summary."""
    from django_redis_messaging import Broadcast

    channel, original = Broadcast("idle"), Original()
    channel.publish(PAYLOAD)
    cursor = channel.cursor()
    contest = Contest("fetch, nothing new", rounds)
    contest.add(PING, driver().ping)
    contest.add(FETCH, lambda: channel.fetch(cursor))
    contest.add(ORIGINAL, original.fetch)
    return run("fetch, nothing new", FETCH, contest)


def reading(rounds: int, many: int = 100) -> list[str]:
    """Fetch a hundred events. Returns a row of the summary."""
    from django_redis_messaging import Broadcast

    channel, client, original = Broadcast("reading"), driver(), Original()
    start = channel.cursor()
    for number in range(many):
        channel.publish({**PAYLOAD, "number": number})

    def published() -> None:
        members = {json.dumps({**PAYLOAD, "number": number}): time.time() * 1000 for number in range(many)}
        client.zadd(original._key(), members)

    contest = Contest(f"fetch {many} events", rounds)
    contest.add(PING, client.ping)
    contest.add(FETCH, lambda: channel.fetch(start))
    contest.add(ORIGINAL, original.fetch_all, prepare=published)
    return run(f"fetch of {many}", FETCH, contest)


def waking(count: int = 200) -> str:
    """Measure how long after a publish a waiting reader receives the event."""
    from django_redis_messaging import Broadcast

    channel = Broadcast("waking")
    start, received = channel.cursor(), threading.Semaphore(0)
    seen: list[float] = []

    def read(cursor: str) -> None:
        while len(seen) < count:
            batch = channel.fetch(cursor, wait=5)
            seen.extend(time.perf_counter() - event.payload for event in batch.events)
            cursor = batch.cursor
            received.release()

    reader = threading.Thread(target=read, args=(start,))
    reader.start()
    for _ in range(count):
        time.sleep(0.01)  # not timed: until the reader waits
        channel.publish(time.perf_counter())
        received.acquire(timeout=5)
    reader.join()
    middle, high = statistics.median(seen), sorted(seen)[int(count * 0.99)]
    figures = f"{1000 * middle:.1f} ms (median), {1000 * high:.1f} ms (p99)"
    return f"{count} events, latency to a waiting reader: {figures}"


def main(rounds: int) -> None:
    with server():
        summary = [["", "of PING", ""], publishing(rounds), idle(rounds), reading(rounds)]
        print(f"\n{table(summary)}\n\n{waking()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
