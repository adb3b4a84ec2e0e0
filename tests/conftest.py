"""What all tests share: a server of their own, a prefix for each test, browsers last."""

import os
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings
from playwright.sync_api import Playwright

from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.testing import Prefix, close_connections


@pytest.fixture(autouse=True)
def own_prefix(messaging_prefix: str) -> str:
    """Each test has keys of its own."""
    return messaging_prefix


@pytest.fixture(scope="session")
def cluster_server(messaging_settings: Prefix) -> Iterator[EmbeddedServer]:
    """A Redis Cluster of one node, as the alias "cluster": undeclared keys and cross-slot calls fail."""
    with EmbeddedServer(cluster=True) as server:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        with override_settings(CACHES={**settings.CACHES, "cluster": entry}):
            yield server
            close_connections("cluster")


@pytest.fixture(scope="session")
def playwright(playwright: Playwright) -> Playwright:
    """Playwright's blocking API keeps an event loop in the main thread: Django must bear it."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    return playwright


@pytest.fixture(scope="session")
def base_url() -> None:
    """In place of pytest-playwright's, whose form is deprecated by pytest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: that event loop stays to the end of the session, and no async test runs
    beside it."""
    items.sort(key=lambda item: "playwright" in getattr(item, "fixturenames", ()))
