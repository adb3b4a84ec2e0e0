"""Blocking pops that outlive the call that sent them.

A server keeps a blocking pop's timeout on the grid of its own timer, so the caller keeps the time instead
and leaves the pop where it is, for the next call of the same words. What nobody asks for any more ends by
itself, after `Wait.LIFE` seconds at most.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from .steps import Wait, Words

#: seconds after which a pop that was not answered is taken for lost: its connection is broken
OVERDUE = Wait.LIFE + 2.0


class Pop(NamedTuple):
    """A pop that was sent, and not yet answered."""

    connection: Any
    sent_at: float

    @property
    def overdue(self) -> bool:
        return monotonic() > self.sent_at + OVERDUE


class Outstanding:
    """Pops that were sent and that nobody waits for now, by their words. Safe to share between threads."""

    def __init__(self) -> None:
        self._kept: dict[Words, list[Pop]] = {}

    def take(self, words: Words) -> Pop | None:
        """One with these words."""
        try:
            return self._kept[words].pop()
        except LookupError:
            return None

    def keep(self, words: Words, pop: Pop, answered: Callable[[Any], bool]) -> list[Any]:
        """Keep one more. Returns connections to read a reply from: their pops ended meanwhile."""
        self._kept.setdefault(words, []).append(pop)
        others = [(kept, one) for kept in list(self._kept.values()) for one in list(kept) if one is not pop]
        return [one.connection for kept, one in others if answered(one.connection) and _removed(kept, one)]

    def take_all(self) -> list[Any]:
        """The connections of all."""
        kept, self._kept = self._kept, {}
        return [pop.connection for pops in kept.values() for pop in pops]


def _removed(pops: list[Pop], pop: Pop) -> bool:
    try:
        pops.remove(pop)
    except ValueError:  # another thread was faster
        return False
    return True
