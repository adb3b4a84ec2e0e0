"""Skewed traffic: how much more the busiest primary of a Cluster does than the others.

uv run python -m benchmarks.skew                    # the simulation
uv run python -m benchmarks.skew --run              # also a run on three primaries, predicted and measured

The popularity of chats follows Zipf's law: chat number n gets 1/n^s of the messages of the first one. This
also applies to users and their requests. The simulation assigns the slots of a million chats to 3 to 100
primaries, as Redis does, and compares the busiest primary with a formula. The capacity model uses the
formula, because it needs no list of chats.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from .clusters import bounds
from .harness import table

#: chats, Zipf exponents, numbers of primaries, and repetitions with other slots
CHATS = 1_000_000
EXPONENTS = (0.0, 0.8, 1.0, 1.2)
PRIMARIES = (3, 6, 10, 30, 100)
SEEDS = 10
#: terms of a sum that are added one by one; an integral replaces the others
EXACT_TERMS = 1000


@dataclass(frozen=True)
class Popularity:
    """Shares of the messages that chats get."""

    chats: float
    exponent: float

    def share(self, rank: int) -> float:
        """The share of the chat with this rank, from 1."""
        return math.pow(rank, -self.exponent) / zipf_sum(self.chats, self.exponent)

    def squares(self, most: float = 1.0) -> float:
        """The sum of the squares of the shares; those above `most` count as `most`."""
        total = zipf_sum(self.chats, self.exponent)
        capped = min(self.chats, math.pow(most * total, -1 / self.exponent) if self.exponent else 0.0)
        if capped < 1:
            return zipf_sum(self.chats, 2 * self.exponent) / total**2
        tail = zipf_sum(self.chats, 2 * self.exponent) - zipf_sum(capped, 2 * self.exponent)
        return capped * most**2 + tail / total**2


def zipf_sum(count: float, exponent: float) -> float:
    """The sum of 1/n^exponent for n from 1 to `count`.

    >>> round(zipf_sum(3, 1), 4), round(zipf_sum(1_000_000, 1), 3)
    (1.8333, 14.393)
    """
    exact = min(int(count), EXACT_TERMS)
    total = math.fsum(math.pow(number, -exponent) for number in range(1, exact + 1))
    if count <= exact:
        return total
    first, last = exact + 0.5, count + 0.5
    if exponent == 1:
        return total + math.log(last / first)
    return total + (math.pow(last, 1 - exponent) - math.pow(first, 1 - exponent)) / (1 - exponent)


def hottest_share(primaries: int, chats: Popularity, *, most: float = 1.0) -> float:
    """Predict the share of the messages that the busiest primary gets; no chat gets more than `most`.

    Either a primary happens to own more of the popular chats than the others, or the most popular chat alone
    makes its primary the busiest. The prediction is the larger of the two.

    >>> even = Popularity(1_000_000, 0)
    >>> round(3 * hottest_share(3, even), 3), round(100 * hottest_share(100, even), 3)
    (1.001, 1.025)
    >>> round(100 * hottest_share(100, Popularity(1_000_000, 1)), 1)
    7.9
    """
    mean = 1 / primaries
    if primaries == 1:
        return 1.0
    spread = math.sqrt(chats.squares(most) * mean * (1 - mean))
    # the expected maximum of as many normally distributed values (Blom)
    extremes = NormalDist().inv_cdf((primaries - 0.375) / (primaries + 0.25))
    first = min(chats.share(1), most)
    return max(mean + extremes * spread, first + (1 - first) * mean)


def loads_by_slot(weights: Sequence[float], seed: int) -> list[float]:
    """The sum of the weights of the chats in each slot."""
    loads = [0.0] * REDIS_CLUSTER_HASH_SLOTS
    for number, weight in enumerate(weights):
        loads[key_slot(b"chat:%d-%d" % (seed, number))] += weight
    return loads


def busiest(loads: Sequence[float], primaries: int) -> float:
    """The load of the busiest primary, as a share of all.

    >>> busiest([1.0] * 16384, 4)
    0.25
    """
    ranges = (bounds(at, primaries) for at in range(primaries))
    return max(sum(loads[first:beyond]) for first, beyond in ranges) / sum(loads)


def simulate(exponent: float) -> list[list[str]]:
    """Compare the simulated busiest primary with the predicted one: rows of a table."""
    weights = [number**-exponent for number in range(1, CHATS + 1)]
    slots = [loads_by_slot(weights, seed) for seed in range(SEEDS)]
    rows = []
    for primaries in PRIMARIES:
        found = sorted(primaries * busiest(loads, primaries) for loads in slots)
        predicted = primaries * hottest_share(primaries, Popularity(CHATS, exponent))
        mean = statistics.mean(found)
        rows.append(
            [
                f"exponent {exponent}, {primaries} primaries",
                f"{mean:.2f} ({found[0]:.2f}-{found[-1]:.2f})",
                f"{predicted:.2f}",
                f"{100 * (predicted / mean - 1):+.0f} %",
            ]
        )
    return rows


def main(run: bool) -> None:
    rows = [row for exponent in EXPONENTS for row in simulate(exponent)]
    title = "busiest primary, of the average"
    print(table([[title, f"simulated ({SEEDS} times)", "predicted", "error"], *rows]))
    if run:
        from .hot import compare

        print("\n" + compare())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="also measure three primaries")
    main(parser.parse_args().run)
