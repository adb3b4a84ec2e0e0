"""A cache in the memory of each process (LocMemCache), whose stale values go in all of them."""

from __future__ import annotations

from django.core.cache import cache

from django_redis_messaging import Broadcast

CHANNEL = "stale"


def drop(key: str) -> None:
    """The value of this key is stale, in all processes; call it once the change is committed."""
    cache.delete(key)
    Broadcast(CHANNEL).publish(key)
