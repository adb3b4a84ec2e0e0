"""Deletes stale values from the in-memory cache (LocMemCache) of all processes."""

from __future__ import annotations

from django.core.cache import cache

from django_redis_messaging import Broadcast

CHANNEL = "stale"


def invalidate(key: str) -> None:
    """Delete a cached value in all processes. Call it after the change has been committed."""
    cache.delete(key)
    Broadcast(CHANNEL).publish(key)
