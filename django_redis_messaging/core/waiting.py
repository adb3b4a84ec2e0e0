"""Blocking pops that outlive the call that sent them.

A server keeps a blocking pop's timeout on the grid of its own timer, so the caller keeps the time instead
and leaves the pop where it is, for the next call of the same words. What nobody asks for any more ends by
itself, after `Wait.LIFE` seconds at most.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from .cluster import Address
from .steps import Wait, Words

#: seconds after which a pop that was not answered is taken for lost: its connection is broken
OVERDUE = Wait.LIFE + 2.0


class Pop(NamedTuple):
    """A pop that was sent, and not yet answered."""

    words: Words
    connection: Any
    #: of the server, see `Endpoint.route`
    address: Address | None
    sent_at: float

    @property
    def overdue(self) -> bool:
        return monotonic() > self.sent_at + OVERDUE


class Outstanding:
    """Pops that were sent and that nobody waits for now. Safe to share between threads."""

    def __init__(self) -> None:
        self._kept: list[Pop] = []

    def take(self, words: Words) -> Pop | None:
        """One with these words."""
        return next((pop for pop in list(self._kept) if pop.words == words and self._removed(pop)), None)

    def keep(self, pop: Pop, answered: Callable[[Any], bool]) -> list[Pop]:
        """Keep one more. Returns those that ended meanwhile: there is a reply to read. `answered` reads
        nothing, for another thread may have taken that pop just now."""
        others = [one for one in list(self._kept) if answered(one.connection) and self._removed(one)]
        self._kept.append(pop)
        return others

    def take_all(self) -> list[Any]:
        """The connections of all."""
        kept, self._kept = self._kept, []
        return [pop.connection for pop in kept]

    def _removed(self, pop: Pop) -> bool:
        try:
            self._kept.remove(pop)
        except ValueError:  # another thread was faster
            return False
        return True
