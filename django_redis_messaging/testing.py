"""A pytest plugin for the tests of sites that use this app. It is active once the app is installed, and has
no effect until a test or another fixture uses one of its fixtures:

    @pytest.fixture(autouse=True)
    def own_prefix(messaging_prefix):
        "Each test has its own keys, on a private server of the test run."

    def test_hello():
        chat = Chat.create("ann", ["bob"], "Hello!")
        assert Inbox("bob").unread() == 1

With pytest-xdist, each worker has its own server. `messaging_server = configured` in pytest's ini file
(or `-o messaging_server=configured`) uses the server of CACHES instead of a private one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .core.embedded import EmbeddedServer

#: values of the ini option
PRIVATE, CONFIGURED = "private", "configured"
#: seconds to wait for a reply
REPLY_TIMEOUT = 10.0


class Prefix:
    """The PREFIX of the settings during tests: the site's own, or that of the running test.

    The settings contain this callable instead of being changed for each test: connections stay open, and a
    test may override settings without losing its prefix.
    """

    def __init__(self, outside: str | Callable[[], str]) -> None:
        self._outside = outside
        self._inside: str | None = None

    def __call__(self) -> str:
        if self._inside is not None:
            return self._inside
        return self._outside() if callable(self._outside) else self._outside

    @contextmanager
    def instead(self, prefix: str) -> Iterator[None]:
        """Use `prefix` within the block."""
        before, self._inside = self._inside, prefix
        try:
            yield
        finally:
            self._inside = before


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the ini option."""
    parser.addini(
        "messaging_server",
        "Redis for tests of django-redis-messaging: private (started for the run) or configured (CACHES)",
        default=PRIVATE,
    )


@pytest.fixture(scope="session")
def messaging_server(pytestconfig: pytest.Config) -> Iterator[EmbeddedServer | None]:
    """The private server of this test run, or None if the configured one is used."""
    from .core.embedded import EmbeddedServer

    choice = pytestconfig.getini("messaging_server")
    if choice == CONFIGURED:
        yield None
    elif choice == PRIVATE:
        with EmbeddedServer() as server:
            yield server
    else:
        raise pytest.UsageError(f"messaging_server must be {PRIVATE} or {CONFIGURED}, not {choice!r}.")


@pytest.fixture(scope="session")
def messaging_settings(messaging_server: EmbeddedServer | None) -> Iterator[Prefix]:
    """Override CACHES and REDIS_MESSAGING for this test run: the alias uses the tests' server."""
    from django.conf import settings
    from django.test import override_settings

    from . import conf

    prefix = Prefix(conf.current().PREFIX)
    alias, caches = conf.alias(), dict(settings.CACHES)
    if messaging_server is not None:
        caches[alias] = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": messaging_server.url}
    with override_settings(CACHES=caches, REDIS_MESSAGING={**conf.configured(), "PREFIX": prefix}):
        yield prefix
        close_connections(alias)


@pytest.fixture
def messaging_alias(messaging_settings: Prefix) -> str:
    """The CACHES alias that the test uses. Override it to run tests on several servers."""
    from . import conf

    return conf.alias()


@pytest.fixture
def messaging_prefix(
    request: pytest.FixtureRequest, messaging_settings: Prefix, messaging_alias: str
) -> Iterator[str]:
    """A PREFIX of this test's own; its keys are removed afterwards."""
    prefix = f"test:{uuid.uuid4().hex[:12]}"
    with messaging_settings.instead(prefix):
        yield prefix
    remove_keys(messaging_alias, prefix)


def remove_keys(alias: str, prefix: str) -> int:
    """Remove all keys that begin with `prefix`; returns their number. It doesn't block the server."""
    from .core.endpoints import endpoint
    from .core.primaries import scan

    removed = 0
    for connection, keys in scan(endpoint(alias), f"{_literal(prefix)}:*"):
        if keys:
            removed += sum(connection.exchange([("UNLINK", key) for key in keys], REPLY_TIMEOUT))
    return removed


def close_connections(alias: str) -> None:
    """Close the blocking connections of the app and of django-redis."""
    from django_redis import get_redis_connection

    from .core import clients

    clients.close()
    client: Any = get_redis_connection(alias)
    pool = getattr(client, "connection_pool", None)  # the driver's RedisCluster has none
    (client.close if pool is None else pool.disconnect)()


def _literal(text: str) -> str:
    """Escape `text` for use in a pattern."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
