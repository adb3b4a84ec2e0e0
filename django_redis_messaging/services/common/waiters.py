"""The clients of this process that wait in the same queue in Redis poll for each other.

A waiting client polls for two reasons: it counts as dead if it doesn't, and some events wake no client, such
as the end of a lease. One poll serves all clients of an event loop, or all threads: it keeps the others in
the queue, too, and the script wakes the next one.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Iterable
from time import monotonic

from ...core import after_fork
from ...core.operations import Listen, Steps

#: clients that one poll keeps in the queue besides its own
MAX_OTHERS = 499
#: seconds between two polls of the clients together at least, except those for which a script gave the moment
MIN_INTERVAL = 0.1
#: seconds by which a timer may be early
TIMER_SLACK = 0.02


class Waiters:
    """The clients of one event loop, or of all threads, that wait in one queue."""

    def __init__(self, interval: float) -> None:
        #: seconds between two polls that keep a client in the queue
        self._interval = interval
        #: when the latest poll was sent; monotonic
        self._polled_at = -math.inf
        #: token → when a poll that keeps it in the queue was sent; the oldest one comes first
        self._kept: dict[bytes, float] = {}
        #: whose poll, for others too, has no reply yet
        self._polling: bytes | None = None
        #: reentrant: an abandoned wait may be destroyed, and leave, at any time
        self._lock = threading.RLock()

    def polled(
        self, token: bytes, sent_at: float, gone: Iterable[bytes], others: Iterable[bytes] = ()
    ) -> None:
        """Report that a client has polled, and waits. `others`: those that its poll was to keep in the queue;
        `gone`: those of them that are not in the queue."""
        with self._lock:
            self._polled_at = max(self._polled_at, sent_at)
            self._end_poll(token)
            self._kept.pop(token, None)
            for one in (token, *(one for one in others if self._kept.pop(one, None) is not None)):
                self._kept[one] = sent_at
            for one in gone:
                if one in self._kept:  # it has the lock, or must enter the queue again
                    self._kept[one] = -math.inf

    def leave(self, token: bytes) -> None:
        """Report that a client doesn't wait any more."""
        with self._lock:
            self._end_poll(token)
            self._kept.pop(token, None)

    def choose_others(self, token: bytes) -> list[bytes]:
        """The clients that the poll which this one sends now is to keep in the queue. It keeps none if it
        acquires, or fails, so they are marked by `polled`."""
        with self._lock:
            self._polled_at = now = monotonic()
            self._polling = token
            oldest = list(self._kept.items())[: MAX_OTHERS + 1]
            latest = now - self._interval / 2
            found = [one for one, at in oldest if -math.inf < at < latest and one != token]
            return found[:MAX_OTHERS]

    def _end_poll(self, token: bytes) -> None:
        if self._polling == token:
            self._polling = None

    def wait(self, listen: Listen, token: bytes, ends: float) -> Steps[bool]:
        """Wait for an entry, until this client must poll, or until `ends`. `listen.seconds` is the time after
        which it would poll if it were alone. Returns whether there is an entry."""
        pause, due = listen.seconds, monotonic() + listen.seconds
        latest = self._polled_at  # until another client polls, the script's moment holds
        while True:
            if (left := min(due, ends) - monotonic()) > 0:
                listen = Listen(listen.stream, listen.last, seconds=left, match=listen.match)
                if (yield listen) is not None:
                    return True
                if min(due, ends) - monotonic() > TIMER_SLACK:  # no connection was left for waiting
                    pause, due, latest = min(pause, MIN_INTERVAL), 0.0, -math.inf
                continue
            due = self._next_poll(token, pause if self._polled_at == latest else max(pause, MIN_INTERVAL))
            if min(due, ends) <= monotonic():
                return False

    def _next_poll(self, token: bytes, pause: float) -> float:
        """When this client must poll, after the polls of others; monotonic."""
        with self._lock:
            kept_at = self._kept.get(token, -math.inf)
            due = min(self._polled_at + pause, kept_at + self._interval)
            if self._polling is None:
                return due
            # All that the latest poll kept are due at the same moment: the present poll may keep them again.
            return max(due, min(self._polled_at + MIN_INTERVAL, kept_at + self._interval * 1.5))


#: (id of the event loop, or 0 for all threads; alias; key)
_waiters: weakref.WeakValueDictionary[tuple[int, str, str], Waiters] = weakref.WeakValueDictionary()
after_fork(_waiters.clear)


def waiters(using: str, key: str, interval: float) -> Waiters:
    """The clients of the running event loop, or of all threads, that wait in the queue of this key."""
    try:
        loop = id(asyncio.get_running_loop())
    except RuntimeError:
        loop = 0
    found = _waiters.get((loop, using, key))
    return found or _waiters.setdefault((loop, using, key), Waiters(interval))
