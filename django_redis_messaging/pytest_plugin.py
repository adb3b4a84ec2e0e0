"""A pytest plugin for the tests of sites that use this app. It is active once the app is installed.

The whole session is a run of tests (core/testruns.py). Fixtures isolate tests from each other:

    @pytest.fixture(autouse=True)
    def own_prefix(messaging_prefix):
        "Each test has its own keys."

    def test_hello():
        chat = Chat.create("ann", ["bob"], "Hello!")
        assert Inbox("bob").unread() == 1

pytest imports this module at each start, in other projects too. So it imports nothing else of the package;
the fixtures do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .core.testruns import Prefix
    from .devserver.server import EmbeddedServer
    from .testing import Redirection


#: the ini option: private, configured, or empty: what the setting TEST says
chosen = ""
#: whether a session runs in this process
is_running = False
#: the options of the sessions that run in this process: one may run another one
_sessions: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the ini option."""
    parser.addini(
        "messaging_server",
        "Redis for tests of django-redis-messaging: private (started for the run) or configured (CACHES); "
        "default: what the setting TEST says",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the ini option. From now on, no call reaches the server of the site."""
    option = config.getini("messaging_server")
    if option not in {"", "private", "configured"}:
        raise pytest.UsageError(f"messaging_server must be private or configured, not {option!r}.")
    _sessions.append(option)
    _update()


def pytest_unconfigure() -> None:
    """End the run of tests with the outermost session."""
    if not _sessions:  # its option was not valid
        return
    testruns = sys.modules.get("django_redis_messaging.core.testruns")
    if len(_sessions) == 1 and testruns is not None:
        testruns.end()
    _sessions.pop()
    _update()


def _update() -> None:
    global chosen, is_running
    chosen, is_running = (_sessions[-1], True) if _sessions else ("", False)


@pytest.fixture(scope="session", autouse=True)
def messaging_run(request: pytest.FixtureRequest) -> None:
    """Begin the run before the first test, so that processes that a test starts take part in it."""
    if request.config.pluginmanager.has_plugin("django"):
        request.getfixturevalue("django_test_environment")
    registry = getattr(sys.modules.get("django.apps"), "apps", None)
    if registry is None or not registry.ready or not registry.is_installed("django_redis_messaging"):
        return
    from .core import testruns

    testruns.current()


@pytest.fixture(scope="session")
def messaging_server(messaging_run: None) -> EmbeddedServer | None:
    """The private server of this test run, or None if the configured one is used."""
    from .testing import current_run

    return current_run().server


@pytest.fixture(scope="session")
def messaging_redirection(messaging_server: EmbeddedServer | None) -> Iterator[Redirection | None]:
    """The redirection of CACHES to the private server, or None if the configured one is used."""
    from .testing import redirected

    with redirected() as redirection:
        yield redirection


@pytest.fixture(scope="session")
def messaging_settings(messaging_redirection: Redirection | None) -> Prefix:
    """Let CACHES and the prefix be those of this test run, whatever a test changes in the settings."""
    from .testing import current_run

    return current_run().prefix


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
    from .testing import current_run, remove_all

    prefix = current_run().new_prefix()
    with messaging_settings.instead(prefix):
        _check(messaging_settings, messaging_redirection)
        yield prefix
        _check(messaging_settings, messaging_redirection)
    remove_all(prefix, [messaging_alias], messaging_redirection)


def _check(prefix: Prefix, redirection: Redirection | None) -> None:
    """Fail if the isolation of tests has been lost."""
    from .testing import problems

    if lost := problems(prefix, redirection):
        pytest.fail(lost, pytrace=False)
