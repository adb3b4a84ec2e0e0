"""Skewed traffic on three primaries of this machine: predicted and measured.

`benchmarks.skew --run` runs it: messages to, and polls of, chats of different popularity. The prediction is
that each primary has the share of the processor time that its chats have of the popularity.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from dataclasses import dataclass
from typing import Any

from .clusters import USAGE_REQUESTS, Topology, pin, topologies
from .harness import table
from .scaling import TASKS, Run, shares
from .skew import Popularity
from .workload import LENGTH

#: chats, their members, the exponent of their popularity, and how often the choice of their slots is repeated
CHATS, MEMBERS, EXPONENT, REPEATS = 300, 10, 1.0, 4
#: operations of a run, and the share of messages among them
CALLS, SENDS = 12_000, 0.2
#: runs on each topology for one choice of slots, in turn
ROUNDS = 3


class Traffic:
    """Chats of a topology with different popularity. The names contain `seed`, so their slots differ."""

    def __init__(self, topology: Topology, seed: int) -> None:
        from django_redis_messaging import Chat

        self.topology = topology
        others = [f"member-{number}" for number in range(1, MEMBERS)]
        self._names = [f"hot-{seed}-{number}" for number in range(CHATS)]
        for name in self._names:
            Chat.create("ann", others, chat_id=name, using=topology.alias)
        popularity = Popularity(CHATS, EXPONENT)
        self.weights = [popularity.share(rank) for rank in range(1, CHATS + 1)]
        self._known: dict[str, Any] = {}

    def weight_by_primary(self, primaries: int) -> list[float]:
        """The sum of the popularity of the chats of each primary."""
        found = [0.0] * primaries
        for name, weight in zip(self._names, self.weights, strict=True):
            found[self.topology.owner(f"chat:{name}")] += weight
        return found

    async def run(self, seed: int) -> None:
        """Send messages to and poll the chats by their popularity, TASKS operations at a time."""
        choose = random.Random(seed)
        names = choose.choices(self._names, self.weights, k=CALLS)
        sends = [choose.random() < SENDS for _ in names]
        work = iter(zip(names, sends, strict=True))

        async def run_some() -> None:
            for name, is_send in work:
                await self._call(name, is_send)

        await asyncio.gather(*(run_some() for _ in range(TASKS)))

    async def _call(self, name: str, is_send: bool) -> None:
        from django_redis_messaging import Chat

        chat = Chat(name, using=self.topology.alias)
        if is_send:
            await chat.asend("ann", "x" * LENGTH)
            return
        known = self._known.get(name) or await chat.achanges("member-1", after=0)
        self._known[name] = await chat.achanges(
            "member-1", after=known.cursor, edits=known.edits, moved=known.moved
        )


@dataclass(frozen=True)
class Used:
    """What each primary did during a run."""

    cpu: list[float]
    """Seconds of processor time."""
    requests: list[int]


def measure(traffic: Traffic, run: Run, seed: int) -> Used:
    """Measure a run."""
    before = traffic.topology.usage()
    run(traffic.run(seed))
    pairs = list(zip(before, traffic.topology.usage(), strict=True))
    return Used(
        [new.cpu - old.cpu for old, new in pairs],
        [new.requests - old.requests - USAGE_REQUESTS for old, new in pairs],
    )


def compare_once(single: Topology, cluster: Topology, run: Run, seed: int) -> list[list[str]]:
    """Predict and measure the shares of each primary for one choice of slots: rows of a table."""
    base, skewed = Traffic(single, seed), Traffic(cluster, seed)
    for one in (base, skewed):
        run(one.run(seed))  # opens connections, and reads what there is
    pairs = [(measure(base, run, number), measure(skewed, run, number)) for number in range(ROUNDS)]
    cpu = [statistics.median(times) for times in zip(*(used.cpu for _, used in pairs), strict=True)]
    cost = statistics.median(used.cpu[0] for used, _ in pairs)
    requests = [sum(counts) for counts in zip(*(used.requests for _, used in pairs), strict=True)]
    predicted = skewed.weight_by_primary(len(cpu))
    return [
        [f"slots {seed + 1}: predicted", *shares(predicted), "1"],
        [
            "requests",
            *shares(requests),
            "",
        ],
        ["processor time", *shares(cpu), f"{sum(cpu) / cost:.2f}"],
    ]


def compare() -> str:
    """Compare prediction and measurement for several choices of slots: a table."""
    single, cluster = Topology("single server", 1, cluster=False), Topology("3 primaries", 3)
    with topologies(single, cluster), asyncio.Runner() as runner:
        pin([single, cluster])
        rows = itertools.chain.from_iterable(
            compare_once(single, cluster, runner.run, seed) for seed in range(REPEATS)
        )
        return table([["share of each primary", "1", "2", "3", "all, of a single server"], *rows])
