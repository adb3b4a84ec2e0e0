"""The keys of semaphores."""

from __future__ import annotations

import functools

from .names import tag


class SemaphoreKeys:
    """The keys of one semaphore, in one slot."""

    def __init__(self, prefix: str, name: str) -> None:
        self.tag = tag(prefix, "semaphore", name)

    @functools.cached_property
    def limit(self) -> str:
        """STRING: how many permits there are. Expires when nobody has used the semaphore for a month."""
        return self.tag + ":limit"

    @functools.cached_property
    def holders(self) -> str:
        """ZSET token → µs at which the lease of its permit ends; below zero where it was released. Expires
        after the last lease, or a minute after a release; who acquires keeps a thousand at most of those that
        are over."""
        return self.tag + ":holders"

    @functools.cached_property
    def line(self) -> str:
        """ZSET token → ticket, of those who wait. Expires when none of them looks any more."""
        return self.tag + ":line"

    @functools.cached_property
    def waiting(self) -> str:
        """ZSET token → µs until which one who waits counts as alive. Expires with the line."""
        return self.tag + ":waiting"

    @functools.cached_property
    def gate(self) -> str:
        """STREAM of one entry, whose id is a ticket: wakes all who wait with that ticket or one before it.
        Expires a minute after it was opened."""
        return self.tag + ":gate"

    @functools.cached_property
    def all(self) -> list[str]:
        """In the order of the scripts."""
        return [self.holders, self.limit, self.line, self.waiting, self.gate]
