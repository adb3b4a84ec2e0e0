"""Reads entries of CACHES, of any backend: which Redis servers and databases they name. Sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from django.utils.module_loading import import_string
from redis.connection import parse_url

BACKEND = "django_redis.cache.RedisCache"

Entry = dict[str, Any]
#: host or path, port, number of the database
Database = tuple[str, int, int]
#: host or path, port
Server = tuple[str, int]


def is_django_redis(entry: object) -> bool:
    """Whether an entry has the backend of django-redis."""
    return is_kind_of(mapping(entry).get("BACKEND"), BACKEND)


def servers_of(entry: object) -> set[Server]:
    """The servers that an entry names: its Sentinels, if there are any, since its LOCATION is then the name
    of a service. A LOCATION that only the entry's own factory understands counts as the name of a server."""
    sentinels = mapping(mapping(entry).get("OPTIONS")).get("SENTINELS")
    if not sentinels or not isinstance(sentinels, list | tuple):
        named = {(host, port) for host, port, _ in databases(entry)}
        return named or {(str(mapping(entry).get("LOCATION", "")), 0)}
    pairs = [one for one in sentinels if isinstance(one, list | tuple) and len(one) == 2]
    found = [_database({"host": host, "port": port}) for host, port in pairs]
    return {database[:2] for database in found if database is not None}


def databases(entry: object) -> list[Database]:
    """The Redis databases that a CACHES entry of any backend uses; such an entry may contain anything."""
    found = [_database(options) for options in connections(entry)]
    return [database for database in found if database is not None]


def connections(entry: object) -> list[dict[str, Any]]:
    """The connection options of an entry of any backend, for each of its locations that is a Redis URL."""
    return [options for _, options in urls_of(entry)]


def urls_of(entry: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each location of an entry that is a Redis URL, with its connection options."""
    options = mapping(mapping(entry).get("OPTIONS"))
    common = {**options, **mapping(options.get("CONNECTION_POOL_KWARGS"))}
    common.setdefault("socket_timeout", options.get("SOCKET_TIMEOUT"))
    for url in _locations(mapping(entry).get("LOCATION")):
        own = _parse(url)
        if own is not None:
            yield url, {**common, **own}


def mapping(value: object) -> dict[Any, Any]:
    """`value` if it is a dict, else an empty one."""
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


def is_kind_of(path: object, base: str) -> bool:
    """Whether a dotted path names `base` or a subclass of it."""
    if not path:
        return False
    try:
        kind = import_string(path) if isinstance(path, str) else path
        return isinstance(kind, type) and issubclass(kind, import_string(base))
    except Exception:  # whatever another module raises
        return False
