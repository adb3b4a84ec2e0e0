"""Fixtures for all tests: a private server, a prefix for each test, and the test variants."""

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from django.conf import settings
from django.test import override_settings
from playwright.sync_api import Browser, Playwright, expect
from pytest_django.live_server_helper import LiveServer

from django_redis_messaging import handlers
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks import schedules
from django_redis_messaging.testing import close_connections

from .support import postgresql, pytest_hooks
from .support.faults import (
    all_at_once,
    connect,
    fill,
    fragile,
    lasting,
    lossy,
    messaging,
    proxy,
    raw,
    until,
)
from .support.programs import program
from .support.topologies import Servers
from .support.worlds import keyspace_events, limited_user, messaging_alias, plant, short_lease, site

__all__ = [
    "all_at_once",
    "connect",
    "fill",
    "fragile",
    "keyspace_events",
    "lasting",
    "limited_user",
    "lossy",
    "messaging",
    "messaging_alias",
    "plant",
    "proxy",
    "raw",
    "short_lease",
    "site",
    "until",
]  # fixtures

#: calls an operation of an object by name
Call = Callable[..., Awaitable[Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    pytest_hooks.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    pytest_hooks.configure(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    pytest_hooks.choose_worlds(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    pytest_hooks.arrange(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    pytest_hooks.move_browser_tests(session.items)  # pytest has grouped tests by their fixtures since


@pytest.fixture(autouse=True)
def own_prefix(messaging_prefix: str) -> str:
    """Each test has its own key prefix."""
    return messaging_prefix


@pytest.fixture(autouse=True)
def own_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts without handlers for timers and key events, and without periodic tasks."""
    monkeypatch.setattr(handlers, "timers", {})
    monkeypatch.setattr(handlers, "key_events", [])
    monkeypatch.setattr(schedules, "_registered", {})


@pytest_asyncio.fixture
async def closing() -> AsyncIterator[None]:
    """Close the connections of the test's event loop while it is still running."""
    yield
    await clients.aclose()


@pytest.fixture
def server_kind(request: pytest.FixtureRequest) -> str:
    """The server of this test variant: see WORLDS."""
    return str(getattr(request, "param", "standalone"))


@pytest.fixture
def call_style(request: pytest.FixtureRequest) -> str:
    """The form of an operation that `call` calls: blocking or awaiting."""
    return str(request.param)


@pytest.fixture
def call(call_style: str, closing: None) -> Call:
    """Call an operation in the form of `call_style`; the test awaits it."""

    async def do(subject: object, name: str, *arguments: object, **options: object) -> object:
        form = getattr(subject, name if call_style == "blocking" else f"a{name}")
        result = form(*arguments, **options)
        return await result if inspect.isawaitable(result) else result

    return do


@pytest.fixture(scope="session")
def cluster_server(messaging_settings: Prefix) -> Iterator[EmbeddedServer]:
    """A Redis Cluster of one node as the alias "cluster". Undeclared keys and cross-slot calls fail."""
    with EmbeddedServer(cluster=True) as server:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        with override_settings(CACHES={**settings.CACHES, "cluster": entry}):
            yield server
            close_connections("cluster")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers of the topologies; each starts when it is needed first."""
    directory = tmp_path_factory.mktemp("certificates")
    started = Servers(directory)
    with pytest.MonkeyPatch.context() as monkeypatch:
        # the driver loads the system's authorities for each TLS connection, which takes 20 ms: let there be
        # none
        monkeypatch.setenv("SSL_CERT_FILE", str(directory / "none.pem"))
        yield started
    started.close()


@pytest.fixture(scope="session")
def playwright(playwright: Playwright) -> Playwright:
    """Playwright's sync API keeps an event loop in the main thread, which Django must allow."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    expect.set_options(timeout=30_000)  # ms: also on a busy machine
    return playwright


@pytest.fixture(scope="session")
def base_url() -> None:
    """Replace pytest-playwright's fixture, which uses a form that pytest has deprecated."""


@pytest.fixture(scope="session")
def postgresql_host() -> Iterator[str]:
    """A PostgreSQL server, started for the first test that needs it."""
    with postgresql.running_server(Path(program("initdb")).resolve().parent) as host:
        yield host


@pytest.fixture(scope="session")
def contexts(browser: Browser, live_server: LiveServer) -> Iterator[Any]:
    """Pages of the live server, for all tests in a browser: at the end, none keeps a connection open."""
    from .support.browser import serving_pages  # it imports models, which are not loaded before

    with serving_pages(browser, live_server.url) as found:
        yield found
