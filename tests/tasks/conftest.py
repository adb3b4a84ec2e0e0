"""A separate server for task tests that stop it or count its commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.devserver.server import EmbeddedServer


@pytest.fixture
def own_server(messaging_settings: Prefix, settings: Settings) -> Iterator[EmbeddedServer]:
    """A server used only by this test, which may stop it."""
    with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as started:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": started.url}
        settings.CACHES = {**settings.CACHES, "messaging": entry}
        yield started
        clients.close()
