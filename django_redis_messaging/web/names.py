"""Names that follow an @: one search for those who are notified and for what is highlighted."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from ..services.directories.folding import fold

#: places with an @ in a message that are looked at
MAX_PLACES = 100
#: characters after an @ that a name can have
MAX_NAME = 200
_AT = re.compile(r"(?<!\w)@(?=\S)")


class Place(NamedTuple):
    """Where a text has an @ and a name."""

    start: int
    end: int
    name: str
    """Folded, as names are compared."""


class NameSearch:
    """The search for names in the texts of a message, compared as in searches.

    >>> [place.name for place in NameSearch(["Bob", "Bob Straße"]).find("@BOB, @bob strasse, @Bobby")]
    ['bob', 'bob strasse']
    """

    def __init__(self, labels: Iterable[str]) -> None:
        #: "Ann" must not be found in "@Ann Lee" if that is a name, too
        self._longest_first = sorted({*map(fold, labels)} - {""}, key=len, reverse=True)
        self._places_left = MAX_PLACES

    def find(self, text: str) -> Iterator[Place]:
        """The places with one of the names as a whole word, which don't overlap."""
        end = 0
        for match in islice(_AT.finditer(text), self._places_left):
            self._places_left -= 1
            rest = text[match.end() : match.end() + MAX_NAME]
            name = self._beginning(fold(rest)) if match.start() >= end else ""
            if name:
                end = match.end() + _length(rest, name)
                yield Place(match.start(), end, name)

    def _beginning(self, rest: str) -> str:
        """The longest name with which a folded text begins, or ""."""
        return next((name for name in self._longest_first if _begins_with(rest, name)), "")


def has_place(text: str) -> bool:
    """Whether a name can follow an @ anywhere."""
    return _AT.search(text) is not None


def _begins_with(rest: str, name: str) -> bool:
    return rest.startswith(name) and not re.match(r"\w", rest[len(name) :])


def _length(rest: str, name: str) -> int:
    """How many characters of `rest` are the name: folding changes their number."""
    return bisect_right(range(len(rest) + 1), len(name), key=lambda end: len(fold(rest[:end]))) - 1
