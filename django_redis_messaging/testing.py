"""A pytest plugin for the tests of sites that use this app. It is active once the app is installed, and
does nothing until a test, or another fixture, asks for one of its fixtures:

    @pytest.fixture(autouse=True)
    def own_prefix(messaging_prefix):
        "Each test has keys of its own, on a server of the test run's own."

    def test_hello():
        chat = Chat.create("ann", ["bob"], "Hello!")
        assert Inbox("bob").unread() == 1

With pytest-xdist each worker has its own server. `messaging_server = configured` in pytest's ini file
(or `-o messaging_server=configured`) uses the server of CACHES instead of a private one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .core.embedded import EmbeddedServer

#: values of the ini option
PRIVATE, CONFIGURED = "private", "configured"
#: keys looked at, and removed, at once
BATCH = 1000
#: seconds that the server has to answer
PATIENCE = 10.0


class Prefix:
    """The PREFIX of the settings while tests run: the site's own, or that of the running test.

    A callable in the settings rather than settings changed for each test: connections stay open, and a
    test may override settings without undoing this.
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
        """Use `prefix` for the time being."""
        before, self._inside = self._inside, prefix
        try:
            yield
        finally:
            self._inside = before


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option."""
    parser.addini(
        "messaging_server",
        "Redis for tests of django-redis-messaging: private (started for the run), or configured (CACHES)",
        default=PRIVATE,
    )


@pytest.fixture(scope="session")
def messaging_server(pytestconfig: pytest.Config) -> Iterator[EmbeddedServer | None]:
    """The private server of this test run, or None where the configured one is used."""
    from .core.embedded import EmbeddedServer

    choice = pytestconfig.getini("messaging_server")
    if choice == CONFIGURED:
        yield None
    elif choice == PRIVATE:
        with EmbeddedServer() as server:
            yield server
    else:
        raise pytest.UsageError(f"messaging_server is {PRIVATE} or {CONFIGURED}, not {choice!r}.")


@pytest.fixture(scope="session")
def messaging_settings(messaging_server: EmbeddedServer | None) -> Iterator[Prefix]:
    """CACHES and REDIS_MESSAGING for this test run: the alias points at the server of the tests."""
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
    """A PREFIX for this test alone; its keys are removed afterwards."""
    prefix = f"test:{uuid.uuid4().hex[:12]}"
    with messaging_settings.instead(prefix):
        yield prefix
    remove_keys(messaging_alias, prefix)


def remove_keys(alias: str, prefix: str) -> int:
    """Remove all keys that begin with `prefix`, and nothing else; returns how many there were.

    By SCAN and UNLINK, a key a command, on each primary of a Cluster: it holds nobody up, and needs no
    right that the app doesn't need itself.
    """
    from .core.endpoints import endpoint
    from .core.primaries import Primaries

    removed, where = 0, endpoint(alias)
    with closing(Primaries(where)) as primaries:
        found = primaries.look()
    for primary in found:
        with primary.connected(where) as connection:
            removed += _removed(connection, f"{_literal(prefix)}:*")
    return removed


def _removed(connection: Any, pattern: str) -> int:
    removed, cursor, count = 0, b"0", str(BATCH)
    while True:
        scan = ("SCAN", cursor, "MATCH", pattern, "COUNT", count)
        [(cursor, keys)] = connection.exchange([scan], PATIENCE)
        removed += sum(connection.exchange([("UNLINK", key) for key in keys], PATIENCE)) if keys else 0
        if cursor == b"0":
            return removed


def close_connections(alias: str) -> None:
    """Close the blocking connections, the app's and django-redis's."""
    from django_redis import get_redis_connection

    from .core import clients

    clients.close()
    client: Any = get_redis_connection(alias)
    pool = getattr(client, "connection_pool", None)  # the driver's RedisCluster has none
    (client.close if pool is None else pool.disconnect)()


def _literal(text: str) -> str:
    """`text` as a pattern that matches nothing else."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
