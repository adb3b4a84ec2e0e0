"""How a single test is isolated: its own prefix, and all django-redis aliases on the private server.

The mixin for unittest (testing.py) and the fixtures for pytest (pytest_plugin.py) use it. Nothing here
overrides a setting, so no override of a test or a class can undo it: the prefix is mapped when it is read,
and the entries of CACHES are replaced where they are. Without it, only the calls of this app go to the server
of the run, for all tests together: see core/runs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from django.conf import settings
from django.core.cache import caches
from django.core.signals import setting_changed
from django_redis import get_redis_connection

from .core import clients, runs
from .core.runs import Prefix, Run
from .core.topology import endpoint, remove_keys
from .errors import ConfigurationError

__all__ = ["Prefix", "Redirection", "Run", "close_connections", "current_run", "problems", "redirected"]

#: options of a django-redis entry that say where and how to connect
_CONNECTING = {
    "CLIENT_CLASS",
    "CONNECTION_FACTORY",
    "CONNECTION_POOL_CLASS",
    "CONNECTION_POOL_KWARGS",
    "PARSER_CLASS",
    "PASSWORD",
    "REDIS_CLIENT_CLASS",
    "REDIS_CLIENT_KWARGS",
    "SENTINELS",
    "SENTINEL_KWARGS",
    "SOCKET_CONNECT_TIMEOUT",
    "SOCKET_TIMEOUT",
    "USERNAME",
}

Caches = dict[str, dict[str, Any]]


class Redirection:
    """Lets all django-redis entries of CACHES that lead to the site lead to the private server of a run.

    Each gets a database of its own: those of the settings, and those that a test adds with override_settings.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._replaced: list[tuple[Caches, str, dict[str, Any]]] = []

    def __enter__(self) -> Self:
        for layer in list(runs.layers("CACHES")):
            self._apply(layer)
        _announce(enter=True)
        setting_changed.connect(self._follow)
        return self

    def __exit__(self, *_: object) -> None:
        setting_changed.disconnect(self._follow)
        for alias in self.aliases():
            close_connections(alias)
        for layer, alias, entry in reversed(self._replaced):
            layer[alias] = entry
        _announce(enter=False)

    def aliases(self) -> list[str]:
        """The aliases that lead to the private server now."""
        current: Caches = caches.settings
        return [alias for alias, entry in current.items() if self._run.is_private(alias, entry)]

    def problems(self) -> list[str]:
        """A message for each alias that leads to the server of the site."""
        return [
            f"CACHES[{alias!r}] leads to the server of the site, since a test or a fixture has changed "
            "CACHES in place: use override_settings, or the settings fixture of pytest-django."
            for layer in (settings.CACHES, caches.settings)
            for alias, entry in layer.items()
            if self._run.is_of_site(entry)
        ]

    def _follow(self, *, setting: str, value: object = None, **_: object) -> None:
        if setting == "CACHES" and isinstance(value, dict):
            self._apply(value)

    def _apply(self, layer: Caches) -> None:
        for alias, entry in list(layer.items()):
            if self._run.is_of_site(entry):
                self._replaced.append((layer, alias, entry))
                layer[alias] = _redirected(entry, self._run.database(alias))


def _redirected(entry: Mapping[str, Any], location: str) -> dict[str, Any]:
    options = entry.get("OPTIONS") or {}
    kept = {name: value for name, value in options.items() if name not in _CONNECTING}
    return {**entry, "LOCATION": location, "OPTIONS": kept}


def _announce(*, enter: bool) -> None:
    """Let Django and this app make their clients anew."""
    setting_changed.send(type(settings), setting="CACHES", value=settings.CACHES, enter=enter)


def current_run() -> Run:
    """The run of tests of this process. Raises ConfigurationError if there is none or it has no server."""
    run = runs.current()
    if run is None:
        raise ConfigurationError(
            "Django's test environment is not set up: run the tests with manage.py test or pytest-django, or "
            "call django.test.utils.setup_test_environment() before them."
        )
    if run.error:
        raise ConfigurationError(run.error)
    return run


@contextmanager
def redirected() -> Iterator[Redirection | None]:
    """Redirect CACHES within the block; None: the run uses the servers of CACHES."""
    run = current_run()
    if run.server is None:
        yield None
    else:
        with Redirection(run) as redirection:
            yield redirection


def problems(prefix: Prefix, redirection: Redirection | None) -> str:
    """Why a test is not isolated any more; empty if it is."""
    return "\n".join(prefix.problems() + (redirection.problems() if redirection else []))


def remove_all(prefix: str, aliases: Iterable[str], redirection: Redirection | None) -> None:
    """Remove the keys of a test, in these aliases and in all that are redirected."""
    for alias in {*aliases, *(redirection.aliases() if redirection else ())}:
        remove_keys(endpoint(alias), prefix)


def close_connections(alias: str) -> None:
    """Close the blocking connections of the app and of django-redis."""
    clients.close()
    client: Any = get_redis_connection(alias)
    pool = getattr(client, "connection_pool", None)  # the driver's RedisCluster has none
    (client.close if pool is None else pool.disconnect)()
