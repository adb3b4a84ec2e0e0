"""The keys of semaphores."""

from __future__ import annotations

import functools

from ...core.keys import tag


class SemaphoreKeys:
    """The keys of one semaphore, in one slot."""

    def __init__(self, prefix: str, name: str) -> None:
        self.tag = tag(prefix, "semaphore", name)

    @functools.cached_property
    def limit(self) -> str:
        """STRING: the number of permits. Expires when the semaphore has not been used for a month."""
        return self.tag + ":limit"

    @functools.cached_property
    def holders(self) -> str:
        """ZSET token → µs at which the lease of its permit ends; negative if it was released. Expires after
        the last lease, or a minute after a release. An acquire leaves at most a thousand expired and released
        permits."""
        return self.tag + ":holders"

    @functools.cached_property
    def line(self) -> str:
        """ZSET token → ticket of the waiting clients. Expires when none of them polls any more."""
        return self.tag + ":line"

    @functools.cached_property
    def waiting(self) -> str:
        """ZSET token → µs until which a waiting client counts as alive. Expires with the queue."""
        return self.tag + ":waiting"

    @functools.cached_property
    def gate(self) -> str:
        """STREAM of one entry, whose id is a ticket: wakes the waiting clients with this ticket or a lower
        one. Expires a minute after it was opened."""
        return self.tag + ":gate"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys in the order of all scripts, see semaphore_at() in _semaphores.lua."""
        return [self.holders, self.limit, self.line, self.waiting, self.gate]
