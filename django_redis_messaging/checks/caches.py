"""Checks that the CACHES alias names a Redis database of the app's own. Sends nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string
from redis.connection import parse_url

from .. import conf
from ..errors import ConfigurationError

BACKEND = "django_redis.cache.RedisCache"
#: seconds; an attempt that exceeds the alias's socket timeout is repeated
MIN_SOCKET_TIMEOUT = 1.0
#: number of databases of a Redis server by default
DATABASES = 16

Entry = dict[str, Any]
#: host or path, port, number of the database
Database = tuple[str, int, int]


def chosen_alias() -> str | None:
    """The alias in use; None if the settings are invalid, which another check reports."""
    try:
        alias = conf.alias()
    except ConfigurationError:
        return None
    return alias if isinstance(alias, str) else None


def check_alias(**_: object) -> list[CheckMessage]:
    """Check that the alias exists, uses django-redis without sharding, and has its own database."""
    alias = chosen_alias()
    if alias is None:
        return []
    caches: Mapping[str, object] = django_settings.CACHES
    if alias not in caches:
        return [_missing(alias)]
    entry = _mapping(caches[alias])
    unusable = _check_backend(alias, entry) or _check_client(alias, entry)
    if unusable:
        return [unusable]
    found = (_check_default(alias), _check_sharing(alias), _check_timeout(alias, entry))
    return [message for message in found if message is not None]


def _missing(alias: str) -> CheckMessage:
    return Error(
        f"CACHES has no entry {alias!r}, which {conf.NAME} names as its ALIAS.",
        hint=f"Add it to CACHES:\n{entry_to_paste(alias)}",
        id="messaging.E004",
    )


def _check_backend(alias: str, entry: Entry) -> CheckMessage | None:
    backend = entry.get("BACKEND", "")
    if is_kind_of(backend, BACKEND):
        return None
    return Error(
        f"CACHES[{alias!r}] has the backend {backend!r}; this app needs django-redis.",
        hint=f"Keep that cache, and add to CACHES:\n{entry_to_paste('messaging')}",
        id="messaging.E005",
    )


def _check_client(alias: str, entry: Entry) -> CheckMessage | None:
    client = _mapping(entry.get("OPTIONS")).get("CLIENT_CLASS", "")
    if not is_kind_of(client, "django_redis.client.sharded.ShardClient"):
        return None
    return Error(
        f"CACHES[{alias!r}] distributes its keys over several servers ({client}); "
        "all keys of a chat must be on one server.",
        hint=f"Use one server, Sentinel or a Redis Cluster. Add to CACHES:\n{entry_to_paste('messaging')}",
        id="messaging.E006",
    )


def _check_default(alias: str) -> CheckMessage | None:
    if alias != "default" or conf.current().ALIAS is not None:
        return None
    return Warning(
        "Chats are stored in the database of the default cache: cache.clear() empties that database, "
        "and would delete them.",
        hint=f"Use a separate database; add to CACHES:\n{entry_to_paste('messaging')}",
        id="messaging.W002",
    )


def _check_sharing(alias: str) -> CheckMessage | None:
    caches: Mapping[str, object] = django_settings.CACHES
    ours = set(databases(caches[alias]))
    others = [other for other in caches if other != alias and ours & set(databases(caches[other]))]
    if not others:
        return None
    return Warning(
        f"CACHES[{alias!r}] uses the same Redis database as {', '.join(map(repr, others))}: "
        "clear() of either cache would delete the chats.",
        hint=f"Use a separate database:\n{entry_to_paste(alias)}",
        id="messaging.W003",
    )


def _check_timeout(alias: str, entry: Entry) -> CheckMessage | None:
    limits = [options.get("socket_timeout") for options in connections(entry)]
    short = [limit for limit in limits if isinstance(limit, int | float) and limit < MIN_SOCKET_TIMEOUT]
    if not short:
        return None
    return Warning(
        f"CACHES[{alias!r}] has a socket timeout of {min(short):g} s: on a busy server, every slow reply "
        "causes a repeated request.",
        hint="Set its SOCKET_TIMEOUT to a few seconds, such as 5, or remove it.",
        id="messaging.W004",
    )


def databases(entry: object) -> list[Database]:
    """The Redis databases that a CACHES entry of any backend uses; such an entry may contain anything."""
    found = [_database(options) for options in connections(entry)]
    return [database for database in found if database is not None]


def connections(entry: object) -> list[dict[str, Any]]:
    """The connection options of an entry of any backend, for each of its locations that is a Redis URL."""
    return [options for _, options in _urls(entry)]


def _urls(entry: object) -> Iterator[tuple[str, dict[str, Any]]]:
    options = _mapping(_mapping(entry).get("OPTIONS"))
    common = {**options, **_mapping(options.get("CONNECTION_POOL_KWARGS"))}
    common.setdefault("socket_timeout", options.get("SOCKET_TIMEOUT"))
    for url in _locations(_mapping(entry).get("LOCATION")):
        own = _parse(url)
        if own is not None:
            yield url, {**common, **own}


def _mapping(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _locations(given: object) -> list[str]:
    """The URLs in a LOCATION, separated by commas or semicolons, or in a collection."""
    if isinstance(given, str):
        given = given.replace(";", ",").split(",")
    if not isinstance(given, list | tuple | set | frozenset):
        return []  # such as a Path, of a file-based cache
    return [url.strip() for url in given if isinstance(url, str)]


def _parse(url: str) -> dict[str, Any] | None:
    """The options in a URL; None if it is no Redis URL: of locmem, a file, memcached."""
    try:
        return cast("dict[str, Any]", cast("Any", parse_url)(url))
    except Exception:
        return None


def _database(options: dict[str, Any]) -> Database | None:
    """The database of a connection; None if the options are not valid."""
    path, host = options.get("path"), options.get("host") or "localhost"
    try:
        number = int(options.get("db") or 0)
        if path:
            return str(path), 0, number
        host = "localhost" if host in {"127.0.0.1", "::1"} else str(host).lower()
        return host, int(options.get("port") or 6379), number
    except Exception:
        return None


def entry_to_paste(alias: str) -> str:
    """A CACHES entry for the server of the default cache, with a database that no cache uses."""
    return f'    "{alias}": {{"BACKEND": "{BACKEND}", "LOCATION": "{_free_location()}"}},'


def _free_location() -> str:
    caches: Mapping[str, object] = django_settings.CACHES
    used = {number for entry in caches.values() for _, _, number in databases(entry)} | {0}
    number = next((free for free in range(DATABASES) if free not in used), DATABASES)
    urls = [url for entry in caches.values() for url, _ in _urls(entry)]
    parts = urlsplit(urls[0] if urls else "redis://127.0.0.1:6379")
    if parts.scheme == "unix":
        return f"unix://{parts.path}?db={number}"
    # The password must not be printed.
    user, at, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0] + ':...@' if at else ''}{host}/{number}"


def is_kind_of(path: object, base: str) -> bool:
    """Whether a dotted path names `base` or a subclass of it."""
    if not path:
        return False
    try:
        kind = import_string(path) if isinstance(path, str) else path
        return isinstance(kind, type) and issubclass(kind, import_string(base))
    except Exception:  # whatever another module raises
        return False
