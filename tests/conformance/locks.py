"""Our lock with the interface that redis-py's tests expect."""

from __future__ import annotations

from typing import Any

import redis

from django_redis_messaging import Lock as OurLock
from django_redis_messaging import conf


class Lock(OurLock):
    """A lock with the key that those tests read."""

    def __init__(
        self, client: Any, name: str, *, timeout: Any = None, sleep: float = 0.1, **options: Any
    ) -> None:
        super().__init__(name, key=name, timeout=timeout, **options)

    @property
    def local(self) -> Any:
        """The local storage of the token."""
        return self._holding


class AsyncLock(Lock):
    """A lock with the asynchronous operations."""

    acquire: Any = OurLock.aacquire
    release: Any = OurLock.arelease
    extend: Any = OurLock.aextend
    reacquire: Any = OurLock.areacquire
    locked: Any = OurLock.alocked
    owned: Any = OurLock.aowned


def server_url() -> str:
    """The server that our lock uses."""
    from django.conf import settings

    return str(settings.CACHES[conf.alias()]["LOCATION"])


def _get_client(kind: type[redis.Redis], request: Any, **options: Any) -> redis.Redis:
    """The function that redis-py's tests call for a client."""
    client = kind.from_url(server_url(), **options)
    request.addfinalizer(client.close)
    return client
