"""Checks that the CACHES alias names a Redis database of the app's own. Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning

from .. import conf
from ..core.entries import BACKEND, Entry, connections, databases, is_kind_of, mapping, urls_of
from ..errors import ConfigurationError

#: seconds; an attempt that exceeds the alias's socket timeout is repeated
MIN_SOCKET_TIMEOUT = 1.0
#: number of databases of a Redis server by default
DATABASES = 16


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
    entry = mapping(caches[alias])
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
    client = mapping(entry.get("OPTIONS")).get("CLIENT_CLASS", "")
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


def entry_to_paste(alias: str) -> str:
    """A CACHES entry for the server of the default cache, with a database that no cache uses."""
    return f'    "{alias}": {{"BACKEND": "{BACKEND}", "LOCATION": "{_free_location()}"}},'


def _free_location() -> str:
    caches: Mapping[str, object] = django_settings.CACHES
    used = {number for entry in caches.values() for _, _, number in databases(entry)} | {0}
    number = next((free for free in range(DATABASES) if free not in used), DATABASES)
    urls = [url for entry in caches.values() for url, _ in urls_of(entry)]
    parts = urlsplit(urls[0] if urls else "redis://127.0.0.1:6379")
    if parts.scheme == "unix":
        return f"unix://{parts.path}?db={number}"
    # The password must not be printed.
    user, at, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0] + ':...@' if at else ''}{host}/{number}"
