"""Publishers and readers of a channel in processes with wrong clocks.

python -m tests.support.broadcast_processes publish|read URL PREFIX NUMBER COUNT CURSOR
"""

from __future__ import annotations

import json
import select
import sys
import time
from functools import partial
from typing import Any

from django.conf import settings

#: seconds until a reader gives up
PATIENCE = 180.0
#: a payload that all publish from time to time: events with equal payloads are distinct
TICK = "tick"


def enter(url: str, prefix: str) -> None:
    """Configure Django in this process."""
    # libfaketime breaks Python's own sleep, which waits for a time of the monotonic clock
    time.sleep = partial(select.select, [], [], [])  # type: ignore[assignment]
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
    # buckets change often
    messaging = {"PREFIX": prefix, "BROADCAST_BUCKET": 0.05, "BROADCAST_RETENTION": 5}
    settings.configure(CACHES={"messaging": entry}, REDIS_MESSAGING=messaging)


def publish(who: int, count: int) -> Any:
    """Publish events; their IDs."""
    from django_redis_messaging import Broadcast

    channel = Broadcast("chaos")
    return [channel.publish(TICK if number % 5 == 0 else [who, number]).id for number in range(count)]


def read(count: int, cursor: str) -> Any:
    """Read until `count` events were received; the events, and whether any were missed."""
    from django_redis_messaging import Broadcast

    channel, seen, missed = Broadcast("chaos"), [], False
    ends = time.monotonic() + PATIENCE
    while len(seen) < count and time.monotonic() < ends:
        batch = channel.fetch(cursor, wait=1)
        cursor, missed = batch.cursor, missed or batch.missed
        seen += [[event.id, event.payload] for event in batch.events]
    return {"seen": seen, "missed": missed}


def main(role: str, url: str, prefix: str, number: str, count: str, cursor: str) -> None:
    enter(url, prefix)
    print(json.dumps({"clock": time.time()}), flush=True)  # noqa: T201
    sys.stdin.readline()  # start together
    done = publish(int(number), int(count)) if role == "publish" else read(int(count), cursor)
    print(json.dumps(done))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
