"""What the history costs a worker.

uv run python -m benchmarks.history

A worker executes tasks that do nothing until its queue is empty, with the history and without, by turns. The
processor time of its process is compared, and that of Redis: rates depend on other work on the machine, and
the lowest time of all turns depends on it least. A real worker flushes once in ten seconds; here each turn
ends with a flush, so there are as many tasks as a worker executes in some tenths of a second. How much memory
the history takes is tested: see `tests/history`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from .harness import server, table

#: tasks of a turn
TASKS = 10_000
#: pairs of turns
ROUNDS = 9


def turn(client: Any, count: int, *, recorded: bool) -> tuple[float, float]:
    """Execute tasks; returns µs of a processor for each: of the worker, of Redis."""
    from .tasks import nothing, our_worker

    change(HISTORY_MAX_SERIES=500 if recorded else 0)
    for _ in range(count // 1000):
        nothing.enqueue_many([((), {})] * 1000)
    worker = our_worker(1)
    before = time.process_time(), redis_time(client)
    worker.run()
    used = time.process_time() - before[0], redis_time(client) - before[1]
    if worker.done != count:
        raise RuntimeError(f"{worker.done} of {count} tasks ran.")
    return used[0] / count * 1e6, used[1] / count * 1e6


def redis_time(client: Any) -> float:
    """Seconds of a processor that the server has used."""
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def change(**values: Any) -> None:
    """Change settings of the app."""
    from django.conf import settings
    from django.core.signals import setting_changed

    settings.REDIS_MESSAGING = values
    setting_changed.send(sender=None, setting="REDIS_MESSAGING", value=values, enter=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tasks", type=int, default=TASKS)
    options = parser.parse_args()
    with server() as running, running.client() as client:
        from django.conf import settings

        settings.TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend"}}
        turn(client, options.tasks, recorded=True)  # loads modules and scripts
        pairs = []
        for number in range(options.rounds):
            order = (True, False) if number % 2 else (False, True)
            by = {recorded: turn(client, options.tasks, recorded=recorded) for recorded in order}
            pairs.append((*by[False], *by[True]))
    rows = [["", "without, µs", "with, µs", "difference, %", "lowest: without, with, µs", "difference, %"]]
    for title, at in (("worker", 0), ("Redis", 1)):
        without, recorded = ([pair[at + shift] for pair in pairs] for shift in (0, 2))
        shares = [100 * (one / other - 1) for one, other in zip(recorded, without, strict=True)]
        quartiles = statistics.quantiles(shares, n=4)
        rows.append(
            [
                title,
                f"{statistics.median(without):.1f}",
                f"{statistics.median(recorded):.1f}",
                f"{statistics.median(shares):+.1f} ({quartiles[0]:+.1f} to {quartiles[2]:+.1f})",
                f"{min(without):.1f}, {min(recorded):.1f}",
                f"{100 * (min(recorded) / min(without) - 1):+.1f}",
            ]
        )
    print(table(rows))


if __name__ == "__main__":
    main()
