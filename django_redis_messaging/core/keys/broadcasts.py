"""The keys of broadcasts."""

from __future__ import annotations

import functools

from .names import encoded, tag


class BroadcastKeys:
    """The keys of one channel, in one slot.

    The time of events is cut into buckets of `bucket` ms, each kept for `retention` ms after its end, so a
    ring of some keys is enough: when the turn of a key comes again, what it held has expired.
    """

    def __init__(self, prefix: str, channel: str, bucket: int = 10_000, retention: int = 300_000) -> None:
        self.tag = tag(prefix, "broadcast", channel)
        self._bucket = bucket
        self._count = -(-retention // bucket) + 2

    @property
    def head(self) -> str:
        """STRING "last-us-epoch-first": id and time (µs) of the newest event, the channel's epoch (µs), and
        the first id that the limit of length has left. Expires when nobody published or read for a week."""
        return self.tag + ":head"

    @property
    def requests(self) -> list[str]:
        """Two HASHes request id → first answer, used in turn, a window each; each expires when its turn
        comes again."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @property
    def bell(self) -> str:
        """STREAM of one entry, whose id is that of an event: wakes all who wait for what is behind the one
        before. Rung while somebody waits; expires a minute later."""
        return self.tag + ":bell"

    @property
    def waiting(self) -> str:
        """STRING, empty: somebody waits, so events ring the bell. Expires some seconds later."""
        return self.tag + ":waiting"

    @property
    def buckets(self) -> list[str]:
        """LISTs of events in their order, JSON arrays [id, µs, µs of the one before, payload]. Each expires
        `retention` after the end of its bucket. Other settings have other keys."""
        return list(_ring(self.tag, self._bucket, self._count))

    @property
    def publishing(self) -> list[str]:
        """What the script that publishes takes, before the buckets."""
        return [self.head, *self.requests, self.bell, self.waiting]

    def position(self, name: str) -> str:
        """STRING cursor: how far a named consumer is. Expires when it isn't moved for a week."""
        return f"{self.tag}:position:{encoded(name)}"

    def some_buckets(self, number: int, count: int) -> list[str]:
        """Those of the buckets `number`, `number` + 1 …"""
        ring = _ring(self.tag, self._bucket, self._count)
        return [ring[at % self._count] for at in range(number, number + count)]


@functools.lru_cache(maxsize=1024)
def _ring(slot: str, bucket: int, count: int) -> tuple[str, ...]:
    return tuple(f"{slot}:{bucket}x{count}:{number}" for number in range(count))
