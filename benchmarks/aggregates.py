"""Aggregates: counting the lines of a file, compared with a bare loop that counts them in a dict.

uv run python -m benchmarks.aggregates
uv run python -m benchmarks.aggregates --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from .harness import Contest, server, table

LINES = 50_000
#: different pairs of a day and a country → name of the contest
PAIRS = {1: "1 pair", 200: "200 pairs", 2000: "2,000 pairs"}
BARE, ADD_FILE = "a dict in memory", "Aggregator.add_file"

_ids = itertools.count(1)


@dataclass
class Lines:
    """A file in memory: a new one for each object."""

    lines: list[bytes]
    id: int = field(default_factory=lambda: next(_ids))
    channel: str = "benchmark"
    consumer: str = "benchmark"

    def batches(self, n: int, /) -> Iterator[list[bytes]]:
        for start in range(0, len(self.lines), n):
            yield self.lines[start : start + n]


def parse(line: bytes) -> tuple[str, str]:
    day, _, country = line.partition(b" ")
    return day.decode(), country.decode()


def count(lines: list[bytes]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for line in lines:
        pair = parse(line)
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def counting(pairs: int, rounds: int) -> list[str]:
    """Count lines with this many different pairs. Returns a row of the summary."""
    from django_redis_messaging import Aggregator

    lines = [b"2026-11-%02d C%03d" % (at % pairs % 10, at % pairs // 10) for at in range(LINES)]
    visits = Aggregator(f"visits-{pairs}")
    contest = Contest(f"count {LINES} lines, {PAIRS[pairs]}", rounds)
    contest.add(BARE, lambda: count(lines))
    contest.add(ADD_FILE, lambda: visits.add_file(Lines(lines), parse))
    results = contest.run()
    print(results)
    found = results[ADD_FILE]
    return [PAIRS[pairs], f"{found.ratio:.2f}", f"{LINES * statistics.median(found.rates) / 1e6:.2f} million"]


def main(rounds: int) -> None:
    with server():
        rows = [counting(pairs, rounds) for pairs in PAIRS]
    print(f"\n{table([['', 'of the loop', 'lines per second'], *rows])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
