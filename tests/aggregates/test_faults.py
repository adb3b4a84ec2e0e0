"""Two processes of a consumer, and a server that is out of memory: no line is lost or counted twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from django_redis_messaging import Aggregator, LeaseLost, Unavailable

from ..support.memory_file import Lines, counted, parse


@pytest.mark.promise
def test_two_threads_count_the_same_files(messaging_alias: str) -> None:
    """Both processes of a consumer go on after each other's work; some calls are refused."""
    lines = [b"d%d k%d" % (number % 3, number) for number in range(1000)] + [b"?"]

    def consume(visits: Aggregator) -> None:
        for id in range(1, 16):
            is_counted = False
            while not is_counted:
                try:
                    visits.add_file(Lines(lines, id), parse)
                    is_counted = True
                except LeaseLost:
                    pass

    visits = Aggregator("visits")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(consume, [visits, Aggregator("visits")]))
    found = {(day, one.key): one.count for day in visits.periods() for one in visits.top(day, 1000)}
    assert found == {pair: 15 * count for pair, count in counted(lines).items()}
    assert (visits.total("d0"), visits.malformed()) == (15 * 334, 15)


@pytest.mark.one_server
async def test_full_memory(fill: Callable[[], None], raw: redis.Redis) -> None:
    """Counting is refused and continues later; reading and deleting work."""
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
