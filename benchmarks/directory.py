"""Contact autocomplete: Directory.suggest, compared with a bare PING and the original algorithm.

    uv run python -m benchmarks.directory            # 10^4, 10^5 and 10^6 names, 1 and 8 callers
    uv run python -m benchmarks.directory --names 10000 --rounds 5

With MESSAGING_DATA=<folder>, names are combined from first_names.txt.gz and last_names.txt.gz in that folder.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from redis import WatchError

from .harness import Call, Contest, Results, driver, server, table

VOWELS = ["a", "e", "i", "o", "u", "ee", "io", "ou"]
CONSONANTS = ["b", "c", "d", "f", "g", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w"]
PING, ORIGINAL, OURS = "PING", "original algorithm", "Directory.suggest"


# Names


def name_parts() -> tuple[list[str], list[str]]:
    """Return first and last names in lower case."""
    folder = os.environ.get("MESSAGING_DATA")
    if folder:
        return _listed(Path(folder, "first_names.txt.gz")), _listed(Path(folder, "last_names.txt.gz"))
    syllables = ["".join(pair) for pair in itertools.product(CONSONANTS, VOWELS)]
    generated = ["".join(pair) for pair in itertools.product(syllables, repeat=2)]
    return [name + "n" for name in generated[::4]], generated


def _listed(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [word for word in (line.strip().lower() for line in lines) if word.isalpha()]


def people(count: int, first: Sequence[str], last: Sequence[str]) -> Iterator[str]:
    """Return `count` full names, with some duplicates, the same in each run."""
    draw = random.Random(7)
    return (f"{draw.choice(first)} {draw.choice(last)}" for _ in range(count))


def typed(first: Sequence[str], last: Sequence[str]) -> list[str]:
    """Return typical search prefixes: two to five letters."""
    draw = random.Random(11)
    return [draw.choice(draw.choice([first, last]))[: draw.randint(2, 5)] for _ in range(5000)]


# The original algorithm, from its description: two inserted members mark the range


def original_fill(client: Any, key: str, names: Iterator[str]) -> None:
    for page in iter(lambda: list(itertools.islice(names, 1000)), []):
        client.zadd(key, dict.fromkeys(page, 0))


def original_suggest(client: Any, key: str, prefix: str) -> list[bytes]:
    mark = "{" + uuid.uuid4().hex
    start, end = prefix[:-1] + chr(ord(prefix[-1]) - 1) + mark, prefix + mark
    client.zadd(key, {start: 0, end: 0})
    with client.pipeline() as transaction:
        while True:
            try:
                transaction.watch(key)
                low, high = transaction.zrank(key, start), transaction.zrank(key, end)
                transaction.multi()
                transaction.zrem(key, start, end)
                transaction.zrange(key, low, min(low + 9, high - 2))
                found = transaction.execute()[-1]
            except WatchError:
                continue
            return [name for name in found if b"{" not in name]


# The contest


def contenders(guild: str, prefixes: Sequence[str]) -> dict[str, Call]:
    from django_redis_messaging.services.directories import Directory

    client, directory = driver(), Directory(guild)
    original_prefixes, app_prefixes = (itertools.cycle(prefixes) for _ in range(2))
    return {
        PING: client.ping,
        OURS: lambda: directory.suggest(next(app_prefixes)),
        ORIGINAL: lambda: original_suggest(client, f"original:{guild}", next(original_prefixes)),
    }


def fill(count: int, guild: str, first: Sequence[str], last: Sequence[str]) -> float:
    """Fill both directories with the same names. Returns names per second of Directory.add_many."""
    from django_redis_messaging.services.directories import Directory

    original_fill(driver(), f"original:{guild}", people(count, first, last))
    began = time.perf_counter()
    Directory(guild).add_many(
        (f"u{number}", name.title()) for number, name in enumerate(people(count, first, last))
    )
    return count / (time.perf_counter() - began)


def flatness(guilds: dict[int, str], prefixes: Sequence[str], rounds: int) -> Results:
    """Run the same searches in directories of each size, in the same rounds. Prefixes of two letters find ten
    names in each directory, so only the size of the directory differs, not the length of the result."""
    from django_redis_messaging.services.directories import Directory

    contest = Contest("suggest by size, 1 caller", rounds=rounds)
    for count, guild in guilds.items():
        directory, turns = Directory(guild), itertools.cycle(prefix[:2] for prefix in prefixes)
        contest.add(
            f"{count:,} names", lambda directory=directory, turns=turns: directory.suggest(next(turns))
        )
    return contest.run()


def main(sizes: Sequence[int], rounds: int, callers: Sequence[int]) -> None:
    first, last = name_parts()
    prefixes = typed(first, last)
    summary = [["names", "callers", "of PING", "times the original"]]
    guilds: dict[int, str] = {}
    with server():
        for count in sizes:
            guilds[count] = f"guild-{count}"
            print(f"\n{count:,} names: added {fill(count, guilds[count], first, last):,.0f} per second")
            for number in callers:
                seconds = 0.2 if number == 1 else 0.5  # long enough for conflicts of the original to occur
                contest = Contest(f"{count:,} names, callers: {number}", rounds, seconds, number)
                for name, call in contenders(guilds[count], prefixes).items():
                    contest.add(name, call)
                results = contest.run()
                print(results)
                times = results.speedup(OURS, ORIGINAL)
                summary.append([f"{count:,}", str(number), f"{results[OURS].ratio:.2f}", f"{times:.1f}"])
        print(flatness(guilds, prefixes, rounds))
        print(f"\n{table(summary)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    main(options.names, options.rounds, options.callers)
