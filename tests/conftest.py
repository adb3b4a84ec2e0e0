"""What all tests share: a server of their own, a prefix for each test, browsers last."""

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from django.conf import settings
from django.test import override_settings
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis
from playwright.sync_api import Playwright, expect

from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.testing import Prefix, close_connections

#: does an operation of an object, by its name
Call = Callable[..., Awaitable[Any]]
#: how long an example takes says something of the machine, and nothing of what is tested
hypothesis.register_profile(
    "any machine", parent=hypothesis(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis.load_profile("any machine")


@pytest.fixture(autouse=True)
def own_prefix(messaging_prefix: str) -> str:
    """Each test has keys of its own."""
    return messaging_prefix


@pytest_asyncio.fixture
async def closing() -> AsyncIterator[None]:
    """Closes the connections of the test's event loop while it still runs."""
    yield
    await clients.aclose()


@pytest.fixture(params=["blocking", "awaiting"])
def call(request: pytest.FixtureRequest, closing: None) -> Call:
    """Either form of an operation, awaited by the test."""

    async def do(subject: object, name: str, *arguments: object, **options: object) -> object:
        form = getattr(subject, name if request.param == "blocking" else f"a{name}")
        result = form(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    return do


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
    expect.set_options(timeout=30_000)  # ms: also on a busy machine
    return playwright


@pytest.fixture(scope="session")
def base_url() -> None:
    """In place of pytest-playwright's, whose form is deprecated by pytest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: that event loop stays to the end of the session, and no async test runs
    beside it."""
    items.sort(key=lambda item: "playwright" in getattr(item, "fixturenames", ()))
