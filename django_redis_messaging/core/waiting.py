"""Blocking commands that outlive the call that sent them.

A server checks the timeout of a blocking command only when its own timer ticks, up to 100 ms late. So the
caller keeps the time, and leaves the command pending for the next call with the same words. A command that no
call takes over ends by itself, after `Wait.LINGER` seconds at most.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import Any, NamedTuple

from .sockets import Address
from .steps import Wait, Words

#: seconds after which the server has surely ended a pending command; without a reply by then, its connection
#: is broken
ENDED = Wait.LINGER + 0.5


class Pending(NamedTuple):
    """A blocking command that was sent and has no reply yet."""

    words: Words
    connection: Any
    #: monotonic
    sent_at: float

    @property
    def ends(self) -> float:
        """When the server must have replied."""
        return self.sent_at + ENDED

    @property
    def has_ended(self) -> bool:
        """Whether the server must have replied by now."""
        return monotonic() > self.ends


class PendingWaits:
    """Pending commands for which no caller waits now. Safe to share between threads and with a signal
    handler: the lock is never held during an operation that could block."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: by their words; in both, the oldest come first
        self._by_words: dict[Words, deque[Pending]] = {}
        self._in_order: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._in_order)

    def number_at(self, address: Address | None) -> int:
        """How many are pending at a server."""
        with self._lock:
            return sum(one.connection.address == address for one in self._in_order.values())

    def keep(self, pending: Pending) -> None:
        """Add a pending command."""
        with self._lock:
            self._in_order[id(pending)] = pending
            self._by_words.setdefault(pending.words, deque()).append(pending)

    def take(self, words: Words) -> Pending | None:
        """Remove and return one with these words."""
        with self._lock:
            same = self._by_words.get(words)
            return self._remove(same[0]) if same else None

    def take_ended(self) -> Pending | None:
        """Remove and return one that the server has ended, so that its connection can be reused."""
        with self._lock:
            oldest = next(iter(self._in_order.values()), None)
            return self._remove(oldest) if oldest is not None and oldest.has_ended else None

    def take_any(self, address: Address | None) -> Pending | None:
        """Remove and return the oldest one at a server."""
        with self._lock:
            there = (one for one in self._in_order.values() if one.connection.address == address)
            oldest = next(there, None)
            return None if oldest is None else self._remove(oldest)

    def take_all(self) -> list[Pending]:
        """Remove and return all of them."""
        with self._lock:
            return [self._remove(one) for one in list(self._in_order.values())]

    def _remove(self, pending: Pending) -> Pending:
        del self._in_order[id(pending)]
        same = self._by_words[pending.words]
        same.remove(pending)
        if not same:
            del self._by_words[pending.words]
        return pending
