"""A server for tests of tasks that break it, or count what it is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.testing import Prefix


@pytest.fixture
def alone(messaging_settings: Prefix, settings: Settings) -> Iterator[EmbeddedServer]:
    """A server that only this test talks to, and may stop."""
    with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as started:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": started.url}
        settings.CACHES = {**settings.CACHES, "messaging": entry}
        yield started
        clients.close()
