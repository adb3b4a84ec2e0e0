"""Faults: what is lost, applied twice or not available while a primary fails and all services are used.

Prints the tables of docs/reliability.md. The faults are those of
tests/failover/test_failovers_and_moving_slots.py. Those that cut the network need root.

uv run python -m benchmarks.faults
uv run python -m benchmarks.faults --rounds 1
uv run python -m benchmarks.faults --only cut
uv run python -m benchmarks.faults --only nothing      # only the cost of DURABILITY
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.server_faults import Fault
    from tests.support.traffic import Report

#: number of calls that are measured one after the other
CALLS = 1000
TITLES = [
    "fault",
    "servers",
    "`DURABILITY`",
    "running",
    "lost",
    "doubled",
    "repeated",
    "seconds without service",
]


def set_up() -> None:
    """Set up Django; each fault names its servers."""
    import django
    from django.conf import settings

    settings.configure(USE_TZ=True, INSTALLED_APPS=["django_redis_messaging"], CACHES={"default": {}})
    django.setup()
    logging.disable(logging.WARNING)  # of the listener, while its server is down


def measure(fault: Fault, rounds: int) -> list[str]:
    """Let a fault happen. Returns a row of the table."""
    shard = ""
    reports: list[Report] = []
    for _ in range(rounds):
        broken, report = fault.run()
        if report.violations:
            raise RuntimeError(f"{fault.name}, {broken.title}: {report.violations}")
        shard, reports = broken.title, [*reports, report]
    outages = sorted(report.outage for report in reports)
    return [
        fault.name,
        shard,
        str(fault.confirmed_by or ""),
        counts(report.running for report in reports),
        counts(report.lost for report in reports),
        str(sum(report.doubled for report in reports)),
        str(sum(report.repeated for report in reports)),
        f"{statistics.median(outages):.1f}, at most {outages[-1]:.1f}",
    ]


def counts(reports: Iterable[dict[str, int]]) -> str:
    """The sums of several reports."""
    total: Counter[str] = Counter()
    for one in reports:
        total.update(one)
    found = ((things if number > 1 else things[:-1], number) for things, number in total.items() if number)
    return ", ".join(f"{number:,} {things}" for things, number in found) or "0"


def cost(rounds: int) -> Iterator[list[str]]:
    """Measure Chat.send with a primary and two replicas. Yields the rows of a table."""
    from tests.support.replicated_primary import connected
    from tests.support.server_faults import sentinel

    times: dict[int, list[float]] = {0: [], 1: [], 2: []}
    with sentinel() as shard:
        for _ in range(rounds):
            for replicas, measured in times.items():
                durability = {"replicas": replicas, "timeout": 1.0} if replicas else None
                with connected(shard, DURABILITY=durability):
                    measured += sends()
    for replicas, measured in times.items():
        percentiles = statistics.quantiles(measured, n=100)
        yield [str(replicas or ""), *(f"{1000 * percentiles[at]:.2f}" for at in (49, 98))]


def sends() -> list[float]:
    """The seconds that each of some messages takes to send."""
    from django_redis_messaging import Chat

    chat, measured = Chat.create("ann", ["bob"]), []
    for _ in range(CALLS):
        began = time.perf_counter()
        chat.send("ann", "hello")
        measured.append(time.perf_counter() - began)
    return measured


def print_table(titles: list[str], rows: Iterable[list[str]]) -> None:
    for row in itertools.chain([titles, ["---"] * len(titles)], rows):
        print(f"| {' | '.join(row)} |", flush=True)


def main(rounds: int, only: str) -> None:
    set_up()
    from tests.support.server_faults import FAULTS

    chosen = (fault for fault in FAULTS if only in fault.name)
    print_table(TITLES, (measure(fault, rounds) for fault in chosen))
    print()
    print_table(["`DURABILITY`", "median, ms", "99th percentile, ms"], cost(rounds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each fault happens")
    parser.add_argument("--only", default="", help="part of the name of a fault")
    arguments = parser.parse_args()
    main(arguments.rounds, arguments.only)
