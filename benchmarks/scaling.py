"""Processor time of the servers per operation, on a single server and on Clusters of one to three primaries.

uv run python -m benchmarks.scaling
uv run python -m benchmarks.scaling --rounds 5

All servers share the processors of this machine, so more primaries can't raise the rate. The figures are
therefore the processor time that the servers report (INFO), of all primaries together, per operation, and the
requests that the servers receive for it. A request is a command or a pipeline. One process sends the
operations of 20 concurrent tasks, so that the servers are busy. Topologies take turns within a round; ratios
are computed within a round, and the result is their median.

Operations use the resources of one primary, then those of the next one. In random order, primaries that share
a processor would disturb each other's caches and often sleep and wake up, which costs up to 1.8 times the
processor time. Primaries on machines of their own don't.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from .clusters import USAGE_REQUESTS, Topology, Usage, pin, topologies
from .harness import table
from .workload import LENGTH, MEMBERS, RESOURCES, Operation, Workload

#: concurrent tasks
TASKS = 20
#: balance: chats, and messages that they get
BALANCED_CHATS, BALANCED_MESSAGES = 2000, 20_000
Run = Callable[[Coroutine[Any, Any, object]], object]


class Measurement:
    """Processor time and requests per call of one operation on one topology, one item per round."""

    def __init__(self) -> None:
        #: µs, of all servers together
        self.cpu: list[float] = []
        self.requests: list[float] = []

    def add(self, before: Sequence[Usage], after: Sequence[Usage], calls: int) -> None:
        pairs = list(zip(before, after, strict=True))
        self.cpu.append(1e6 * sum(new.cpu - old.cpu for old, new in pairs) / calls)
        requests = sum(new.requests - old.requests - USAGE_REQUESTS for old, new in pairs)
        self.requests.append(requests / calls)

    def cost(self) -> str:
        """The median of the µs, and their quartiles."""
        low, middle, high = statistics.quantiles(self.cpu, n=4)
        return f"{middle:.0f} ({low:.0f}-{high:.0f})"

    def ratio(self, base: Measurement) -> str:
        """The median of the ratios to `base`, and their quartiles."""
        ratios = [mine / theirs for mine, theirs in zip(self.cpu, base.cpu, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        return f"{middle:.2f} ({low:.2f}-{high:.2f})"


async def call(operation: Operation, calls: int) -> None:
    """Call an operation on each resource, TASKS of them at a time."""
    numbers = iter(range(calls))

    async def call_some() -> None:
        for at in numbers:
            await operation(at)

    await asyncio.gather(*(call_some() for _ in range(TASKS)))


def measure(found: Sequence[Topology], rounds: int, run: Run) -> list[list[str]]:
    """Measure all operations on all topologies."""
    operations = {one: Workload(one).operations for one in found}
    names = list(operations[found[0]])
    results = {(name, one): Measurement() for name in names for one in found}
    for turn in range(-1, rounds):
        for name, at in itertools.product(names, range(len(found))):
            one = found[(at + turn) % len(found)]  # so that none is always first
            before = one.usage()
            run(call(operations[one][name], RESOURCES))
            if turn >= 0:  # the first round opens connections and loads scripts
                results[name, one].add(before, one.usage(), RESOURCES)
    return [row(name, [results[name, one] for one in found]) for name in names]


def row(name: str, results: Sequence[Measurement]) -> list[str]:
    base, *others = results
    requests = [f"{statistics.median(one.requests):.1f}".removesuffix(".0") for one in results]
    return [name, base.cost(), *(one.ratio(base) for one in others), " / ".join(requests)]


def balance(cluster: Topology) -> list[list[str]]:
    """Send messages to many chats at random; the share of each primary."""
    from django_redis_messaging import Chat

    begin = cluster.usage()
    chats = [Chat(f"balance-{number}", using=cluster.alias) for number in range(BALANCED_CHATS)]
    for number, chat in enumerate(chats):
        members = [f"reader-{(number + step) % BALANCED_CHATS}" for step in range(MEMBERS - 1)]
        Chat.create("writer", members, chat_id=chat.id, using=cluster.alias)
    choose, before = random.Random(1), cluster.usage()
    for _ in range(BALANCED_MESSAGES):
        choose.choice(chats).send("writer", "x" * LENGTH)
    after = cluster.usage()
    during, total = list(zip(before, after, strict=True)), list(zip(begin, after, strict=True))
    return [
        ["operations", *shares([new.requests - old.requests for old, new in during])],
        ["processor time", *shares([new.cpu - old.cpu for old, new in during])],
        ["memory", *shares([new.memory - old.memory for old, new in total])],
    ]


def shares(amounts: Sequence[float]) -> list[str]:
    """Each amount as a percentage of the sum.

    >>> shares([1, 3])
    ['25.0 %', '75.0 %']
    """
    return [f"{100 * amount / sum(amounts):.1f} %" for amount in amounts]


def main(rounds: int, sizes: Sequence[int]) -> None:
    single = Topology("single server", 1, cluster=False)
    clusters = [Topology(f"{size} primar{'y' if size == 1 else 'ies'}", size) for size in sizes]
    with topologies(single, *clusters) as found, asyncio.Runner() as runner:
        pin(found)
        head = ["µs of server processor per operation", "single server", *(one.name for one in found[1:])]
        print(table([[*head, "requests"], *measure(found, rounds, runner.run)]), "\n")
        title = f"share of each primary: {BALANCED_MESSAGES:,} messages, {BALANCED_CHATS:,} chats"
        print(table([[title, *(str(at + 1) for at in range(sizes[-1]))], *balance(found[-1])]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--primaries", type=int, nargs="+", default=[1, 2, 3], help="sizes of the Clusters")
    options = parser.parse_args()
    main(options.rounds, options.primaries)
