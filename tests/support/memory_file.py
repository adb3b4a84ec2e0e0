"""A stand-in for the files of a channel: lines in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice


class Lines:
    """A file of a consumer. Counts the lines that were read."""

    def __init__(
        self, lines: Iterable[bytes], id: int = 1, *, channel: str = "logs", consumer: str = "c"
    ) -> None:
        self.lines = list(lines)
        self.id, self.channel, self.consumer = id, channel, consumer
        self.read = 0

    def batches(self, n: int, /) -> Iterator[list[bytes]]:
        rest = iter(self.lines)
        while batch := list(islice(rest, n)):
            self.read += len(batch)
            yield batch

    async def abatches(self, n: int, /) -> AsyncIterator[list[bytes]]:
        for batch in self.batches(n):
            yield batch


def parse(line: bytes) -> list[tuple[str, str]]:
    """`day key`, several separated by semicolons; `?` is malformed."""
    if line == b"?":
        raise ValueError
    return [(day, key) for day, key in (pair.split(" ") for pair in line.decode().split(";") if pair)]


def counted(lines: Iterable[bytes]) -> Counter[tuple[str, str]]:
    """The counts of well-formed lines, by brute force."""
    return Counter(pair for line in lines if line != b"?" for pair in parse(line))
