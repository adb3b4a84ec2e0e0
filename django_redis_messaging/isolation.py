"""How the pytest plugin isolates tests: a prefix for each test, and a private server for all aliases.

The fixtures are in testing.py, which imports this module as soon as a test uses them. Nothing here overrides
a setting, so no override of a test or a class can undo it: the prefix is mapped when it is read, and the
entries of CACHES are replaced where they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from django.conf import settings
from django.core.cache import caches
from django.test.signals import setting_changed
from django_redis import get_redis_connection

from . import conf
from .checks.caches import BACKEND, databases, is_kind_of
from .core import clients
from .core.endpoints import endpoint
from .core.primaries import scan

#: databases of the private server, of which each alias uses one
DATABASES = 256
#: seconds to wait for a reply
REPLY_TIMEOUT = 10.0

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
#: host and port, or path and 0
Server = tuple[str, int]


class Prefix:
    """The beginning of all keys during tests: the site's own outside of tests, else that of the running test.

    Within a test, the site's PREFIX and the default are replaced by the test's prefix. Any other PREFIX, such
    as that of a tenant, is appended to it, so that tenants stay distinct.
    """

    def __init__(self) -> None:
        self._inside: str | None = None

    def __enter__(self) -> Self:
        of_site = list(_layers(conf.NAME))[-1:]  # below the overrides of a class
        self._replaced = [conf.Settings().PREFIX, *(layer.get("PREFIX") for layer in of_site)]
        conf.prefix_hook = self
        return self

    def __exit__(self, *_: object) -> None:
        conf.prefix_hook = None

    def __call__(self, configured: str) -> str:
        """The prefix in use if the settings say `configured`."""
        inside = self._inside
        # an empty or otherwise invalid one is rejected as it is without tests
        if inside is None or not isinstance(configured, str) or not configured:
            return configured
        if configured in self._replaced:
            return inside
        return configured if configured.startswith(inside) else f"{inside}:{configured}"

    @contextmanager
    def instead(self, prefix: str) -> Iterator[None]:
        """Use `prefix` within the block."""
        before, self._inside = self._inside, prefix
        try:
            yield
        finally:
            self._inside = before

    def problems(self) -> list[str]:
        """A message if this prefix isn't in use."""
        if conf.prefix_hook is self and self._inside is not None:
            return []
        return ["The test runs without its prefix, since conf.prefix_hook was replaced."]


class Redirection:
    """Lets all django-redis entries of CACHES lead to the server at `url`, each to a database of its own.

    Entries that a test adds with override_settings are redirected, too, if they name a server that the site
    uses, such as copies of the site's entries. Entries with other servers are left as they are: a test may
    start a server of its own.
    """

    def __init__(self, url: str) -> None:
        self._url = url.partition("?")[0]
        self._databases: dict[str, int] = {}
        self._originals: list[dict[str, Any]] = []
        self._servers: set[Server] = set()
        self._replaced: list[tuple[Caches, str, dict[str, Any]]] = []

    def __enter__(self) -> Self:
        self._databases[conf.alias()] = 0
        layers = list(_layers("CACHES"))
        self._originals = [entry for layer in layers for entry in layer.values() if _is_django_redis(entry)]
        self._servers = {server for entry in self._originals for server in _servers(entry)}
        for layer in layers:
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
        return [
            alias
            for alias, number in self._databases.items()
            if current.get(alias, {}).get("LOCATION") == self._location(number)
        ]

    def problems(self) -> list[str]:
        """A message for each alias that leads to the server of the site."""
        return [
            f"CACHES[{alias!r}] leads to the server of the site, since a test or a fixture has changed "
            "CACHES in place: use override_settings, or the settings fixture of pytest-django."
            for layer in (settings.CACHES, caches.settings)
            for alias, entry in layer.items()
            if self._is_of_site(entry)
        ]

    def _follow(self, *, setting: str, value: object = None, **_: object) -> None:
        if setting == "CACHES" and isinstance(value, dict):
            self._apply(value)

    def _apply(self, layer: Caches) -> None:
        for alias, entry in list(layer.items()):
            if self._is_of_site(entry):
                self._replaced.append((layer, alias, entry))
                number = self._databases.setdefault(alias, len(self._databases))
                layer[alias] = _redirected(entry, self._location(number))

    def _is_of_site(self, entry: Any) -> bool:
        if not _is_django_redis(entry):
            return False
        return entry in self._originals or not self._servers.isdisjoint(_servers(entry))

    def _location(self, number: int) -> str:
        return f"{self._url}?db={number}"


def _is_django_redis(entry: Any) -> bool:
    return isinstance(entry, dict) and is_kind_of(entry.get("BACKEND"), BACKEND)


def _servers(entry: dict[str, Any]) -> set[Server]:
    return {(host, port) for host, port, _ in databases(entry)}


def _layers(name: str) -> Iterator[dict[str, Any]]:
    """A setting in each override in effect, the latest first, and at last in the settings of the site."""
    found: Any = settings.CACHES  # this loads the settings
    holder: Any = vars(settings)["_wrapped"]
    while holder is not None:
        found = vars(holder).get(name)
        if isinstance(found, dict):
            yield found
        holder = vars(holder).get("default_settings")


def _redirected(entry: Mapping[str, Any], location: str) -> dict[str, Any]:
    options = entry.get("OPTIONS") or {}
    kept = {name: value for name, value in options.items() if name not in _CONNECTING}
    return {**entry, "LOCATION": location, "OPTIONS": kept}


def _announce(*, enter: bool) -> None:
    """Let Django and this app make their clients anew."""
    setting_changed.send(type(settings), setting="CACHES", value=settings.CACHES, enter=enter)


def new_prefix() -> str:
    """A prefix that no other test has."""
    return f"test:{uuid.uuid4().hex[:12]}"


def remove_keys(alias: str, prefix: str) -> int:
    """Remove all keys that begin with `prefix`; returns their number. It doesn't block the server."""
    removed = 0
    for connection, keys in scan(endpoint(alias), f"{_literal(prefix)}:*"):
        if keys:
            removed += sum(connection.exchange([("UNLINK", key) for key in keys], REPLY_TIMEOUT))
    return removed


def close_connections(alias: str) -> None:
    """Close the blocking connections of the app and of django-redis."""
    clients.close()
    client: Any = get_redis_connection(alias)
    pool = getattr(client, "connection_pool", None)  # the driver's RedisCluster has none
    (client.close if pool is None else pool.disconnect)()


def _literal(text: str) -> str:
    """Escape `text` for use in a pattern."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
