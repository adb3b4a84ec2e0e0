"""The keys of broadcasts."""

from __future__ import annotations

import functools

from ...core.keys import encoded, tag


class BroadcastKeys:
    """The keys of one channel, in one slot.

    Time is divided into buckets of `bucket` ms, each kept for `retention` ms after its end, so a ring of a
    few keys is enough: when a key is used again, its former content has expired.
    """

    def __init__(self, prefix: str, channel: str, bucket: int = 10_000, retention: int = 300_000) -> None:
        self.tag = tag(prefix, "broadcast", channel)
        self._bucket = bucket
        self._count = -(-retention // bucket) + 2

    @property
    def head(self) -> str:
        """STRING "last-us-epoch-first": id and time (µs) of the newest event, the channel's epoch (µs), and
        the first id that the length limit has left. Expires when the channel was idle for a week."""
        return self.tag + ":head"

    @property
    def requests(self) -> list[str]:
        """Two HASHes request id → first reply, used in turn for one window each; each expires when its turn
        comes again."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @property
    def bell(self) -> str:
        """STREAM of one entry, whose id is that of an event: wakes the readers that wait for this event or an
        earlier one. Written while readers wait; expires a minute later."""
        return self.tag + ":bell"

    @property
    def waiting(self) -> str:
        """STRING, empty: readers wait, so publishers must wake them. Expires some seconds later."""
        return self.tag + ":waiting"

    @property
    def buckets(self) -> list[str]:
        """LISTs of events in order, as JSON arrays [id, µs, µs of the previous event, payload]. Each expires
        `retention` after the end of its bucket. Other settings use other keys."""
        return list(_ring(self.tag, self._bucket, self._count))

    @functools.cached_property
    def fixed(self) -> tuple[str, ...]:
        """The keys before the buckets, in the order of broadcast_at() in _broadcast.lua."""
        return (self.head, *self.requests, self.bell, self.waiting)

    def position(self, name: str) -> str:
        """STRING: the cursor of a named consumer. Expires when it was not updated for a week."""
        return f"{self.tag}:position:{encoded(name)}"

    def buckets_from(self, number: int, count: int) -> list[str]:
        """The keys of `count` consecutive buckets, beginning with this number."""
        ring = _ring(self.tag, self._bucket, self._count)
        return [ring[at % self._count] for at in range(number, number + count)]


@functools.lru_cache(maxsize=1024)
def _ring(slot: str, bucket: int, count: int) -> tuple[str, ...]:
    return tuple(f"{slot}:{bucket}x{count}:{number}" for number in range(count))
