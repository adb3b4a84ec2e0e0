"""The values of aggregates: what they return, and the files that they count."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

#: a period and a key
Pair = tuple[str, str]
#: what a line counts for: a pair, several pairs, or nothing
Parsed = Pair | Iterable[Pair] | None
#: raises ValueError for a malformed line
Parse = Callable[[bytes], Parsed]


class CountableFile(Protocol):
    """A file as a consumer of a channel gets it."""

    @property
    def id(self) -> int:
        """Greater than the ids of all files that the consumer got before."""
        ...

    @property
    def channel(self) -> str: ...

    @property
    def consumer(self) -> str: ...

    def batches(self, n: int, /) -> Iterator[list[bytes]]:
        """The lines, in lists of `n`."""
        ...

    def abatches(self, n: int, /) -> AsyncIterator[list[bytes]]:
        """Async version of `batches`."""
        ...


@dataclass(frozen=True, slots=True)
class Count:
    """How often a key was counted in a period."""

    key: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What one call of `add_file` has added."""

    lines: int
    """Lines that this call has counted, malformed ones included. Lines that were counted before are not."""
    malformed: int
    """Lines among them that were skipped because they are malformed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flush:
    """The counts of consecutive lines of a file."""

    start: int
    """Number of lines before the first one."""
    end: int
    """Number of lines up to the last one."""
    counts: dict[Pair, int]
    malformed: int
    is_last: bool
    """Whether the file ends with these lines."""
