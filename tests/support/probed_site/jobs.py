"""The task of the workers."""

from __future__ import annotations

from django_redis_messaging.tasks import task

from . import record


@task(backend="site")
def probe(item: str) -> None:
    record("task", item)
