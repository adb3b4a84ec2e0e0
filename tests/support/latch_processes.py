"""Functions that other processes run with a latch."""

from __future__ import annotations

import redis

from django_redis_messaging import Latch, conf

from .child_processes import Stage, enter

#: parts of the work, which each process does from the beginning
PARTS = 200


def count_parts(stage: Stage, count: int) -> None:
    """Do each part, also if a process that was killed has done it, and count it once."""
    enter(stage)
    latch, client = Latch("parts", count), redis.Redis.from_url(stage.url)
    for part in range(PARTS):
        client.sadd(f"{conf.prefix()}:begun", part)
        latch.count_down(request_id=f"part-{part}")
        client.sadd(f"{conf.prefix()}:done", part)
