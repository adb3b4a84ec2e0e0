"""Timers, compared with a bare PING and the original algorithm: rate of starting, lateness, losses.

uv run python -m benchmarks.expiries
uv run python -m benchmarks.expiries --rounds 5 --timers 100 --others 0 10000
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .harness import Contest, driver, server, table

PING, START, PAIR, SETEX = "PING", "Expiry.start", "Expiry.start + cancel", "SETEX"
#: seconds: period in which the timers become due; time to wait after the last one
SPREAD, TIMEOUT = 5.0, 20.0
LISTENERS = 3


class Original:
    """The original design: SETEX. Each listener gets each event; the one that gets the lock handles it."""

    def __init__(self, url: str) -> None:
        import redis

        self._new = lambda: redis.Redis.from_url(url)
        self.client = self._new()
        self.client.config_set("notify-keyspace-events", "Kx")

    def start(self, name: str, seconds: float) -> None:
        self.client.psetex(f"order:{name}", max(int(seconds * 1000), 1), "payload")

    @contextmanager
    def listening(self, fired: Callable[[str], None]) -> Iterator[None]:
        over, ready = threading.Event(), threading.Barrier(LISTENERS + 1)

        def listen() -> None:
            client: Any = self._new()
            with client.pubsub(ignore_subscribe_messages=True) as subscription:
                subscription.psubscribe("__keyspace@0__:order*")
                subscription.get_message(timeout=1)
                ready.wait()
                while not over.is_set():
                    message = subscription.get_message(timeout=0.1)
                    if message and message["data"] == b"expired":
                        name = message["channel"].decode().partition(":")[2]
                        if client.set(f"lock:{name}", uuid.uuid4().hex, nx=True, ex=60):
                            fired(name.removeprefix("order:"))

        threads = [threading.Thread(target=listen) for _ in range(LISTENERS)]
        for thread in threads:
            thread.start()
        ready.wait()
        yield
        over.set()
        for thread in threads:
            thread.join()


class AppTimers:
    """Timers of this app, with keyspace notifications off."""

    def __init__(self, url: str) -> None:
        from django_redis_messaging import Expiry

        driver().config_set("notify-keyspace-events", "")
        self._timers = Expiry("order")

    def start(self, name: str, seconds: float) -> None:
        self._timers.start(name, max(seconds, 0.001), "payload")

    @contextmanager
    def listening(self, fired: Callable[[str], None]) -> Iterator[None]:
        from django_redis_messaging.handlers import TimerHandler
        from django_redis_messaging.services.jobs.worker import Limits
        from django_redis_messaging.services.listening import Listener

        handlers = {"order": TimerHandler("order", lambda expired: fired(expired.name), None)}
        listeners = [Listener(handlers, [], Limits(concurrency=1)) for _ in range(LISTENERS)]
        threads = [threading.Thread(target=listener.run) for listener in listeners]
        for thread in threads:
            thread.start()
        yield
        for listener in listeners:
            listener.stop()
        for thread in threads:
            thread.join()


def fill(others: int) -> None:
    """Add other keys with a TTL."""
    client = driver()
    for at in range(0, others, 10_000):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(at, min(at + 10_000, others)):
                pipeline.set(f"other:{number}", 1, ex=600 + number % 3000)
            pipeline.execute()


def clear() -> None:
    """Delete all keys of the benchmark's private server."""
    client = driver()
    keys = list(client.scan_iter(count=10_000))
    for at in range(0, len(keys), 10_000):
        client.unlink(*keys[at : at + 10_000])


def fire(kind: Any, url: str, count: int, *, away: bool) -> list[str]:
    """Start `count` timers and return the number of lost ones and the lateness of the others, as text.

    `away`: no listener runs while they become due.
    """
    timers, due, fired_at = kind(url), {}, {}
    all_fired = threading.Event()

    def fired(name: str) -> None:
        fired_at.setdefault(name, time.time())
        if len(fired_at) == count:
            all_fired.set()

    def start() -> None:
        for number in range(count):
            name, seconds = str(number), 0.5 + SPREAD * number / count
            due[name] = time.time() + seconds
            timers.start(name, seconds)

    if away:
        start()
        time.sleep(SPREAD + 1)  # until all are due
        listening_since = time.time()
        with timers.listening(fired):
            all_fired.wait(TIMEOUT)
    else:
        with timers.listening(fired):
            start()
            all_fired.wait(SPREAD + TIMEOUT)
        listening_since = 0.0
    late = sorted(1000 * (fired_at[name] - max(due[name], listening_since)) for name in list(fired_at))
    return [str(count - len(late)), *(f"{figure:,.1f}" for figure in spread(late))]


def spread(late: Sequence[float]) -> tuple[float, float, float]:
    """Return median, p99 and maximum."""
    if not late:
        return float("nan"), float("nan"), float("nan")
    return statistics.median(late), late[min(int(len(late) * 0.99), len(late) - 1)], late[-1]


def starting(rounds: int) -> str:
    """Measure the rate of starting a timer."""
    from django_redis_messaging import Expiry

    timers, client = Expiry("starting"), driver()

    def pair() -> None:
        timers.start("one", 3600)
        timers.cancel("one")

    names = iter(range(10**9))
    contest = Contest("start a timer", rounds)
    contest.add(PING, client.ping)
    contest.add(SETEX, lambda: client.set(f"setex:{next(names) % 10_000}", "payload", ex=3600))
    contest.add(START, lambda: timers.start(str(next(names) % 10_000), 3600, "payload"))
    contest.add(PAIR, pair)
    return str(contest.run())


def main(rounds: int, count: int, others: Sequence[int]) -> None:
    lines = [["", "", "lost", "median ms late", "p99", "max"]]
    with server() as running:
        if rounds:
            print(starting(rounds))
            clear()
        for many in others:
            fill(many)
            for name, kind in (("original", Original), ("Expiry", AppTimers)):
                lines.append([f"with {many:,} other keys", name, *fire(kind, running.url, count, away=False)])
            clear()
        for name, kind in (("original", Original), ("Expiry", AppTimers)):
            lines.append(["due while no listener ran", name, *fire(kind, running.url, count, away=True)])
            clear()
        print(f"\n{count} timers due over {SPREAD:g} s, {LISTENERS} listeners\n{table(lines)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--timers", type=int, default=200)
    parser.add_argument("--others", type=int, nargs="*", default=[0, 10_000, 300_000])
    options = parser.parse_args()
    main(options.rounds, options.timers, options.others)
