"""Counts the lines of one file in memory, in portions that a script can add."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...core.keys import name
from ...errors import InvalidArgument
from .values import Counted, Flush, Pair, Parse

#: pairs of one line; a line with more is malformed
MAX_PAIRS = 100
#: different pairs that are flushed; with those of one more line they are fewer than 500
FLUSH_PAIRS = 400
#: lines that are flushed even if they have few different pairs: what a killed process has to parse again
FLUSH_LINES = 100_000
#: pairs that are not checked again
CHECKED_PAIRS = 10_000


class Counting:
    """The lines of a file that are not yet flushed. `start`: number of lines that were counted before."""

    def __init__(self, parse: Parse, start: int) -> None:
        self._parse = parse
        self._check = functools.lru_cache(CHECKED_PAIRS)(check_pair)
        self._skip = start
        #: number of the last line that was flushed, and of the last line that was read
        self._flushed, self._read = start, start
        self._counts: dict[Pair, int] = {}
        self._malformed = 0
        self._lines, self._all_malformed = 0, 0

    def count(self, lines: list[bytes]) -> Iterator[Flush]:
        """Count the next lines, and yield what has to be flushed."""
        if self._skip:
            skipped = min(self._skip, len(lines))
            self._skip -= skipped
            lines = lines[skipped:]
        # This loop determines the rate, so it handles the most frequent case, a pair that is in the buffer,
        # by itself.
        parse, counts, first = self._parse, self._counts, self._read + 1
        for number, line in enumerate(lines, first):
            try:
                parsed: Any = parse(line)
                if parsed is None:
                    continue
                if parsed.__class__ is tuple:
                    try:
                        counts[parsed] += 1
                        continue
                    except (KeyError, TypeError):  # a new pair, several pairs, or something else
                        pass
                self._add(parsed)
            except ValueError:
                self._malformed += 1
            except Exception as error:
                error.add_note(f"Raised for line {number} of the file.")
                raise
            else:
                if len(counts) >= FLUSH_PAIRS:
                    self._read = number
                    yield self._flush()
                    counts = self._counts
        self._read = first - 1 + len(lines)
        if self._read - self._flushed >= FLUSH_LINES:
            yield self._flush()

    def finish(self) -> Flush:
        """The last flush of the file."""
        return self._flush(is_last=True)

    @property
    def counted(self) -> Counted:
        """What was flushed so far."""
        return Counted(lines=self._lines, malformed=self._all_malformed)

    def _flush(self, *, is_last: bool = False) -> Flush:
        flush = Flush(
            start=self._flushed,
            end=self._read,
            counts=self._counts,
            malformed=self._malformed,
            is_last=is_last,
        )
        self._lines += self._read - self._flushed
        self._all_malformed += self._malformed
        self._flushed, self._counts, self._malformed = self._read, {}, 0
        return flush

    def _add(self, parsed: Any) -> None:
        """Add the pairs of a line, all or none. Raises ValueError for a malformed line."""
        counts = self._counts
        if _is_pair(parsed):
            self._check(*parsed)
            counts[parsed] = counts.get(parsed, 0) + 1
            return
        pairs: list[Pair] = list(islice(parsed, MAX_PAIRS + 1))
        if len(pairs) > MAX_PAIRS:
            raise InvalidArgument(f"A line has more than {MAX_PAIRS} pairs.")
        for pair in pairs:
            if not _is_pair(pair):
                raise TypeError(
                    "parse must return a pair (period, key) of two str, an iterable of such pairs, or None;"
                    f" it returned {pair!r:.100}."
                )
            self._check(*pair)
        for pair in pairs:
            counts[pair] = counts.get(pair, 0) + 1


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], str)
    )


def check_pair(period: str, key: str) -> None:
    """Check the names of a period and of a key, which may be empty."""
    name(period, "period")
    if key != "":
        name(key, "key")
