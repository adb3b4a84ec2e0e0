"""The keys of aggregates."""

from __future__ import annotations

import functools

from ...core.keys import encoded, tag


class AggregateKeys:
    """The keys of one aggregate, in one slot. Those that are not of a period expire together with the last
    marker or period."""

    def __init__(self, prefix: str, name: str) -> None:
        self.tag = tag(prefix, "aggregate", name)

    @functools.cached_property
    def markers(self) -> str:
        """HASH "channel␀consumer" → "file-id line" of the last counted line, followed by " end" if the file
        ends there. A marker is removed 400 days after its last change, or after the TTL if that is longer."""
        return self.tag + ":markers"

    @functools.cached_property
    def periods(self) -> str:
        """ZSET of the names of all periods, with the score 0: in the order of their bytes."""
        return self.tag + ":periods"

    @functools.cached_property
    def expiries(self) -> str:
        """ZSET "p" and the name of a period, or "m" and the field of a marker → ms at which it expires. Each
        flush removes up to 500 that have expired."""
        return self.tag + ":expiries"

    @functools.cached_property
    def malformed(self) -> str:
        """STRING: the number of malformed lines."""
        return self.tag + ":malformed"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys that are not of a period, in the order of aggregate_at() in _aggregate.lua."""
        return [self.markers, self.periods, self.expiries, self.malformed]

    def period(self, name: str) -> str:
        """ZSET key → negative count, so that the highest count comes first, and of equal ones the first key.
        The key "␀" has the total, "" has the counts of unknown keys and of those above the limit. Expires
        when the period was not changed for the TTL of the aggregate."""
        return f"{self.tag}:period:{encoded(name)}"
