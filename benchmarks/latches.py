"""Latches: how long after the last count_down the waiting processes go on, compared with polling a counter.

Each waiting process gets the name of a round, waits, and reports when it went on. Measured are the first
and the last process of each round, and the commands that a process sends while it waits.

uv run python -m benchmarks.latches
uv run python -m benchmarks.latches --processes 16 --rounds 50
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from .harness import driver, server, table

_fork = multiprocessing.get_context("fork")
#: seconds between two polls of the loops that the latch is compared with
POLL_INTERVALS = (0.001, 0.01, 0.1)
#: seconds of waiting before each opening; the commands sent meanwhile are counted
WAITING = 0.3


def wait_for_latch(name: str) -> None:
    from django_redis_messaging import Latch

    Latch(name, 1).wait_until_open()


def count_latch(name: str) -> None:
    from django_redis_messaging import Latch

    Latch(name, 1).count_down()


def poll_counter(interval: float) -> Callable[[str], None]:
    """A function that waits by polling a counter."""

    def wait(name: str) -> None:
        client = driver()
        while client.get(name) != b"0":
            time.sleep(interval)

    return wait


def count_counter(name: str) -> None:
    driver().decr(name)


def work(wait: Callable[[str], None], connection: Connection) -> None:
    """Wait in each round; report when it is over."""
    while name := connection.recv():
        wait(name)
        connection.send(time.perf_counter())


@contextmanager
def waiting(wait: Callable[[str], None], count: int) -> Iterator[list[Connection]]:
    """Processes that wait; the ends of their connections."""
    pairs = [_fork.Pipe() for _ in range(count)]
    started = [_fork.Process(target=work, args=(wait, child)) for _, child in pairs]
    for process in started:
        process.start()
    yield [parent for parent, _ in pairs]
    for (parent, _), process in zip(pairs, started, strict=True):
        parent.send("")
        process.join()


def commands() -> int:
    return int(driver().info("stats")["total_commands_processed"])


def measure(
    title: str, wait: Callable[[str], None], count_down: Callable[[str], None], count: int, rounds: int
) -> list[str]:
    """A row of the table."""
    first, last, sent = [], [], []
    client = driver()
    with waiting(wait, count) as connections:
        for number in range(-1, rounds):
            client.set(name := f"{title} {number}", 1)
            for one in connections:
                one.send(name)
            time.sleep(1 if number < 0 else 0.1)  # until all wait
            before, since = commands(), time.perf_counter()
            time.sleep(WAITING + random.uniform(0, max(POLL_INTERVALS)))  # polls are at any moment
            seconds = time.perf_counter() - since
            sent.append((commands() - before - 1) / count / seconds)
            began = time.perf_counter()
            count_down(name)
            moments = sorted(one.recv() - began for one in connections)
            if number < 0:  # the processes open connections and import modules
                sent.clear()
            else:
                first.append(moments[0])
                last.append(moments[-1])
    times = [f"{1000 * statistics.median(some):.1f}" for some in (first, last)]
    return [title, *times, f"{1000 * max(last):.1f}", f"{statistics.median(sent):.1f}"]


def main(count: int, rounds: int) -> None:
    with server():
        rows: list[Any] = [["", "first, ms", "last, ms", "last, maximum", "commands per second"]]
        rows.append(measure("Latch", wait_for_latch, count_latch, count, rounds))
        for interval in POLL_INTERVALS:
            title = f"GET every {1000 * interval:g} ms"
            rows.append(measure(title, poll_counter(interval), count_counter, count, rounds))
    print(f"{count} waiting processes, {rounds} rounds; medians\n\n{table(rows)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    main(options.processes, options.rounds)
