"""Kills: what becomes of tasks while workers, their children and the server are killed, frozen or full.

Two workers with two child processes each serve one queue, while a producer enqueues tasks of several sorts.
In each round one fault happens at a random moment; the round ends when no task is left. kill_checks.py then
compares what is stored with what the tasks of killed.py wrote to a file. Prints a table of
docs/reliability.md.

uv run python -m benchmarks.kills
uv run python -m benchmarks.kills --only frozen --seconds 60
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks import wait_for_result

from . import peers
from .faults import print_table
from .kill_checks import COUNTED, LEASE, Round, count_started_again, violations

if TYPE_CHECKING:
    from .killed import Site

#: seconds for which a process is frozen, holds the GIL, or has no memory; for which the server is away
FROZEN, AWAY = 5, 0.5
#: children that are killed in a round; tasks that end their process; jobs whose worker is lost
KILLED, DEADLY, ABANDONED = 3, 2, 10_000
#: seconds of the leases of these: none ends before all jobs are leased, so none is leased twice
LONG_LEASE = 15


# Faults: each returns the moment from which on the leases that it ends count


def nothing(site: Site) -> float:
    return time.monotonic()


def kill_children(site: Site) -> float:
    for _ in range(KILLED):
        pid = site.chance.choice([one for one in site.children() if one not in site.killed_children])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            site.killed_children.append(pid)
        time.sleep(site.chance.uniform(0, 0.5))
    return time.monotonic()


def freeze_child(site: Site) -> float:
    freeze(site.chance.choice(site.children()))
    return time.monotonic()


def run_deadly(site: Site, how: str) -> float:
    from .killed import deadly

    for _ in range(DEADLY):
        site.enqueue(deadly, how)
    return time.monotonic()


def hold(site: Site) -> float:
    from .killed import PATIENCE, hold_gil

    for result in [site.enqueue(hold_gil, FROZEN) for _ in range(2)]:
        with suppress(TimeoutError):
            wait_for_result(result, PATIENCE)
    return time.monotonic()


def kill_worker(site: Site) -> float:
    worker = site.chance.choice(site.workers)
    site.lost_workers.append(worker.pids()[0])
    os.kill(worker.pids()[0], signal.SIGKILL)
    began = time.monotonic()
    site.workers.remove(worker)
    site.start_worker()
    worker.end()
    return began


def freeze_worker(site: Site) -> float:
    began, pid = time.monotonic(), site.chance.choice(site.workers).pids()[0]
    site.lost_workers.append(pid)
    freeze(pid)
    return began


def kill_server(site: Site) -> float:
    site.server.kill()
    time.sleep(AWAY)
    site.server.start()
    return time.monotonic()


def fill_memory(site: Site) -> float:
    """Have the server refuse all writes that take memory."""
    with site.server.client() as client:
        client.config_set("maxmemory", 1)
        time.sleep(FROZEN)
        client.config_set("maxmemory", 0)
    return time.monotonic()


def abandon(site: Site) -> float:
    """Lease jobs for a worker that does nothing with them."""
    from .killed import quick

    claimed, worker = 0, f"lost-{os.getpid()}-0"
    site.lost_workers.append(os.getpid())
    while claimed < ABANDONED:
        site.sorts |= {one.id: "quick" for one in quick.enqueue_many([((), {})] * 200)}
        steps = site.backend.engine.claim(["default"], 200, 1000 * LONG_LEASE, worker=worker)
        claimed += len(site.perform(steps).jobs)
    return time.monotonic() + LONG_LEASE - LEASE


def freeze(pid: int) -> None:
    """Suspend a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(FROZEN)
    finally:
        os.kill(pid, signal.SIGCONT)


FAULTS: dict[str, Callable[[Site], float]] = {
    "none": nothing,
    "children killed": kill_children,
    "children killed, spawned": kill_children,
    "child frozen": freeze_child,
    "tasks call `os._exit`": partial(run_deadly, how="exit"),
    "tasks crash": partial(run_deadly, how="crash"),
    "tasks hold the GIL": hold,
    "worker killed": kill_worker,
    "worker frozen": freeze_worker,
    "server killed": kill_server,
    "memory full": fill_memory,
    f"{ABANDONED:,} leases abandoned": abandon,
}


def run_round(site: Site, fault: Callable[[Site], float]) -> Round:
    """Let a fault happen while tasks are enqueued, and wait until none is left."""
    from .killed import PRODUCING, wait_until

    site.begin()
    with ThreadPoolExecutor(1) as threads:
        producing = threads.submit(site.produce)
        time.sleep(site.chance.uniform(0, PRODUCING))
        began = time.monotonic()
        since = fault(site)
        producing.result()
    wait_until(site.is_done)
    return site.collect(since, time.monotonic() - began)


def measure(name: str, server: EmbeddedServer, directory: Path, seconds: float) -> list[str]:
    """Let one fault happen for so many seconds. Returns a row of the table."""
    from .killed import THREADS, Site

    spawns = name.endswith("spawned")
    os.environ[THREADS] = "1" if spawns else ""
    rounds: list[Round] = []
    found, ends = Counter[str](), time.monotonic() + seconds
    site = Site(server, directory, random.Random(name), spawns)
    try:
        while not rounds or time.monotonic() < ends:
            rounds.append(one := run_round(site, FAULTS[name]))
            if wrong := +violations(one):
                print(f"{name}, round {len(rounds)}: {dict(wrong)}", file=sys.stderr, flush=True)
                found += wrong
    finally:
        for worker in site.workers:
            worker.end()
    times = sorted(one.seconds for one in rounds)
    again = sum(map(count_started_again, rounds))
    sizes = [len(rounds), sum(len(one.tasks) for one in rounds), again, *(found[key] for key in COUNTED)]
    return [name, *(f"{size:,}" for size in sizes), f"{statistics.median(times):.1f}", f"{times[-1]:.1f}"]


def main(only: str, seconds: float) -> None:
    import logging

    import django

    options = {"appendfsync": "always"}
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(append_only=True, options=options) as server:
        file = Path(folder) / "lines"
        file.touch()
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "benchmarks.peers.django_settings",
            peers.URL: server.url,
            peers.MODULE: "benchmarks.killed",
            "KILLS_FILE": str(file),
        }
        django.setup()
        logging.disable(logging.WARNING)  # of the producer, while the server is away
        titles = ["fault", "rounds", "tasks", "started again", *COUNTED.values(), "seconds, median", "worst"]
        chosen = (name for name in FAULTS if only in name)
        print_table(titles, (measure(name, server, Path(folder), seconds) for name in chosen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help=f"part of the name of a fault: {', '.join(FAULTS)}")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each fault; it ends with a round")
    arguments = parser.parse_args()
    main(arguments.only, arguments.seconds)
