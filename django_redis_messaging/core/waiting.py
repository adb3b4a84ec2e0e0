"""Waits that outlive the call that sent them.

A server keeps a blocking command's timeout on the grid of its own timer, so the caller keeps the time instead
and leaves the command where it is, for the next call of the same words. What nobody goes on with ends by
itself, after `Wait.LIFE` seconds at most.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import Any, NamedTuple

from .sockets import Address
from .steps import Wait, Words

#: seconds after which the server has ended a wait, wherever its timer stands; later, its connection is broken
ENDED = Wait.LIFE + 0.5


class Pending(NamedTuple):
    """A wait that was sent, and not yet answered."""

    words: Words
    connection: Any
    #: monotonic
    sent_at: float

    @property
    def has_ended(self) -> bool:
        """Whether the server must have answered by now."""
        return monotonic() > self.sent_at + ENDED


class PendingWaits:
    """Waits that were sent and that nobody waits for now. Safe to share between threads, and with a signal
    handler: the lock is held for nothing that could wait."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: by their words; the oldest ones first, in both
        self._by_words: dict[Words, deque[Pending]] = {}
        self._in_order: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._in_order)

    def keep(self, pending: Pending) -> None:
        """Keep one more."""
        with self._lock:
            self._in_order[id(pending)] = pending
            self._by_words.setdefault(pending.words, deque()).append(pending)

    def take(self, words: Words) -> Pending | None:
        """One with these words."""
        with self._lock:
            same = self._by_words.get(words)
            return self._removed(same[0]) if same else None

    def take_ended(self) -> Pending | None:
        """One that the server has ended, so that its connection can be used again."""
        with self._lock:
            oldest = next(iter(self._in_order.values()), None)
            return self._removed(oldest) if oldest is not None and oldest.has_ended else None

    def take_any(self, address: Address | None) -> Pending | None:
        """The oldest one at a server."""
        with self._lock:
            there = (one for one in self._in_order.values() if one.connection.address == address)
            oldest = next(there, None)
            return None if oldest is None else self._removed(oldest)

    def take_all(self) -> list[Pending]:
        """All of them."""
        with self._lock:
            return [self._removed(one) for one in list(self._in_order.values())]

    def _removed(self, pending: Pending) -> Pending:
        del self._in_order[id(pending)]
        same = self._by_words[pending.words]
        same.remove(pending)
        if not same:
            del self._by_words[pending.words]
        return pending
