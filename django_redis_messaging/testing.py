"""A pytest plugin for the tests of sites that use this app. It is active once the app is installed, and has
no effect until a test or another fixture uses one of its fixtures:

    @pytest.fixture(autouse=True)
    def own_prefix(messaging_prefix):
        "Each test has its own keys, on a private server of the test run."

    def test_hello():
        chat = Chat.create("ann", ["bob"], "Hello!")
        assert Inbox("bob").unread() == 1

Every django-redis entry of CACHES leads to the private server, each to a database of its own. With
pytest-xdist, each worker has its own server. `messaging_server = configured` in pytest's ini file (or
`-o messaging_server=configured`) uses the servers of CACHES instead.

pytest imports this module at each start, in other projects too. So it imports nothing else of the package;
the fixtures do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .core.embedded import EmbeddedServer
    from .isolation import Prefix, Redirection

#: values of the ini option
PRIVATE, CONFIGURED = "private", "configured"


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
    from .isolation import DATABASES

    choice = pytestconfig.getini("messaging_server")
    if choice == CONFIGURED:
        yield None
    elif choice == PRIVATE:
        with EmbeddedServer(options={"databases": DATABASES}) as server:
            yield server
    else:
        raise pytest.UsageError(f"messaging_server must be {PRIVATE} or {CONFIGURED}, not {choice!r}.")


@pytest.fixture(scope="session")
def messaging_redirection(messaging_server: EmbeddedServer | None) -> Iterator[Redirection | None]:
    """The redirection of CACHES to the private server, or None if the configured one is used."""
    from .isolation import Redirection

    if messaging_server is None:
        yield None
    else:
        with Redirection(messaging_server.url) as redirection:
            yield redirection


@pytest.fixture(scope="session")
def messaging_settings(messaging_redirection: Redirection | None) -> Iterator[Prefix]:
    """Let CACHES and the prefix be those of this test run, whatever a test changes in the settings."""
    from .isolation import Prefix

    with Prefix() as prefix:
        yield prefix


@pytest.fixture
def messaging_alias(messaging_settings: Prefix) -> str:
    """The CACHES alias that the test uses. Override it to run tests on several servers."""
    from . import conf

    return conf.alias()


@pytest.fixture
def messaging_prefix(
    messaging_redirection: Redirection | None, messaging_settings: Prefix, messaging_alias: str
) -> Iterator[str]:
    """The beginning of all keys of this test, which are removed afterwards. The test fails if it ends without
    this prefix or if an alias leads to the server of the site."""
    from .isolation import new_prefix, remove_keys

    prefix = new_prefix()
    with messaging_settings.instead(prefix):
        _check(messaging_settings, messaging_redirection)
        yield prefix
        _check(messaging_settings, messaging_redirection)
    aliases = {messaging_alias}.union(messaging_redirection.aliases() if messaging_redirection else ())
    for alias in aliases:
        remove_keys(alias, prefix)


def _check(prefix: Prefix, redirection: Redirection | None) -> None:
    """Fail if the isolation of tests has been lost."""
    problems = prefix.problems() + (redirection.problems() if redirection else [])
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
