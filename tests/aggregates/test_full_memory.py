"""Aggregates on a server that is out of memory: counting is refused and continues later; reading works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from django_redis_messaging import Aggregator, Unavailable
from tests.support.memory_file import Lines, parse

pytestmark = pytest.mark.one_server


async def test_nothing_is_counted_and_nothing_twice(fill: Callable[[], None], raw: redis.Redis) -> None:
    visits, short = Aggregator("visits"), Aggregator("visits", ttl=0.001)
    short.add_file(Lines([b"old a"], consumer="other"), parse)  # expired periods are not removed first
    visits.add_file(Lines([b"d a"]), parse)
    fill()
    for _ in range(2):
        with pytest.raises(Unavailable):
            visits.add_file(Lines([b"d a", b"e a", b"?"], 2), parse)
        with pytest.raises(Unavailable):
            await visits.aadd_file(Lines([b"d a", b"e a", b"?"], 2), parse)
    assert (visits.total("d"), visits.periods(), visits.malformed()) == (1, ["d"], 0)
    limit = raw.config_get("maxmemory")["maxmemory"]
    raw.config_set("maxmemory", 0)
    visits.add_file(Lines([b"d a", b"e a", b"?"], 2), parse)
    assert (visits.total("d"), visits.periods(), visits.malformed()) == (2, ["d", "e"], 1)
    raw.config_set("maxmemory", limit)
    fill()
    visits.delete()
    assert visits.periods() == []
