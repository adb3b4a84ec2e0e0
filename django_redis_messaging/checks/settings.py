"""Checks of what the site has configured: CACHES, handlers, TASKS. They send nothing."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from redis.connection import SSLConnection

from .. import conf, handlers
from ..core import encoding, testruns
from ..core.connection import Target
from ..core.testruns import BACKEND, Entry, connections, databases, is_kind_of, mapping, urls_of
from ..core.topology import endpoint
from ..errors import ConfigurationError, MessagingError

#: seconds; an attempt that exceeds the alias's socket timeout is repeated
MIN_SOCKET_TIMEOUT = 1.0
#: number of databases of a Redis server by default
DATABASES = 16
#: BACKEND in TASKS
TASK_BACKEND = "django_redis_messaging.tasks.RedisBackend"


def check_alias(**_: object) -> list[CheckMessage]:
    """Check that the alias exists, uses django-redis without sharding, and has its own database."""
    alias = _chosen_alias()
    if alias is None:
        return []
    caches: Mapping[str, object] = settings.CACHES
    if alias not in caches:
        return [_missing_entry(alias)]
    entry = mapping(caches[alias])
    unusable = _check_backend(alias, entry) or _check_client(alias, entry)
    if unusable:
        return [unusable]
    found = (_check_default(alias), _check_sharing(alias), _check_timeout(alias, entry))
    return [message for message in found if message is not None]


def usable_alias() -> str | None:
    """The alias in use; None if the app can't use it, which check_alias or check_settings reports."""
    found = check_alias()
    return None if any(message.is_serious() for message in found) else _chosen_alias()


def _chosen_alias() -> str | None:
    """The alias in use; None if the settings are invalid, which check_settings reports."""
    try:
        alias = conf.alias()
    except ConfigurationError:
        return None
    return alias if isinstance(alias, str) else None


def _missing_entry(alias: str) -> CheckMessage:
    near = difflib.get_close_matches(alias, map(str, settings.CACHES), n=1)
    remedy = f"Correct ALIAS ({near[0]!r} exists), or add to CACHES" if near else "Add it to CACHES"
    return Error(
        f"CACHES has no entry {alias!r}, which {conf.NAME} names as its ALIAS.",
        hint=f"{remedy}:\n{entry_to_paste(alias)}",
        id="messaging.E004",
    )


def _check_backend(alias: str, entry: Entry) -> CheckMessage | None:
    backend = entry.get("BACKEND", "")
    if is_kind_of(backend, BACKEND):
        return None
    if alias == "messaging":  # another entry of this name would replace it
        hint = f'Change its BACKEND to "{BACKEND}".'
    else:
        hint = f"Keep that cache, and add to CACHES:\n{entry_to_paste('messaging')}"
    return Error(
        f"CACHES[{alias!r}] has the backend {backend!r}; this app needs django-redis.",
        hint=hint,
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
    caches: Mapping[str, object] = settings.CACHES
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
    caches: Mapping[str, object] = settings.CACHES
    used = {number for entry in caches.values() for _, _, number in databases(entry)} | {0}
    number = next((free for free in range(DATABASES) if free not in used), DATABASES)
    urls = [url for entry in caches.values() for url, _ in urls_of(entry)]
    parts = urlsplit(urls[0] if urls else "redis://127.0.0.1:6379")
    if parts.scheme == "unix":
        return f"unix://{parts.path}?db={number}"
    # The password must not be printed.
    user, at, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0] + ':...@' if at else ''}{host}/{number}"


def check_handlers(**_: object) -> list[CheckMessage]:
    """Import `expiries.py` of all apps and check their handlers."""
    try:
        handlers.discover()
    except ConfigurationError as error:
        hint = "Change the namespace of one @on_expiry."
        return [Error(str(error), hint=hint, id="messaging.E009")]
    return [message for one in handlers.key_events for message in _check_handler(one)]


def _check_handler(one: handlers.KeyHandler) -> Iterator[CheckMessage]:
    ours = f"{_prefix()}:{encoding.FORMAT}:{{"
    if handlers.literal_prefix(one.pattern).startswith(ours):
        yield Warning(
            f"{handlers.title(one.function)} is never called: its pattern {one.pattern!r} matches this app's "
            "own keys, whose events are not delivered.",
            hint="Use on_expiry for timers, or a pattern of the site's own keys.",
            id="messaging.W009",
        )
    for event in sorted(one.events - handlers.FLAGS.keys()):
        near = difflib.get_close_matches(event, handlers.FLAGS, n=1)
        yield Warning(
            f"{handlers.title(one.function)} waits for the event {event!r}, which Redis doesn't publish. "
            "A Redis module may publish it; its flags are not checked.",
            hint=f"Did you mean {near[0]!r}?" if near else "See the table of events in docs/expiry.md.",
            id="messaging.W010",
        )


def _prefix() -> object:
    try:
        return conf.prefix()
    except ConfigurationError:  # another check reports it
        return None


def check_framework() -> list[CheckMessage]:
    """Check that no entry of TASKS needs Django's Tasks framework, which is not installed."""
    entries = mapping(getattr(settings, "TASKS", None))
    return [
        Error(
            f"TASKS[{alias!r}] uses {TASK_BACKEND}, but this Django has no Tasks framework: importing a "
            "task, or starting a worker, fails.",
            hint="pip install 'django-redis-messaging[tasks]' installs the backport; Django has its own from "
            "6.0 on.",
            id="messaging.E015",
        )
        for alias, entry in entries.items()
        if mapping(entry).get("BACKEND") == TASK_BACKEND
    ]


def check_transport(**_: object) -> list[CheckMessage]:
    """Check that a Redis on another machine is reached by TLS and asks for a password."""
    alias = usable_alias()
    if alias is None:
        return []
    try:
        targets = list(endpoint(alias).configured())
    except MessagingError:
        return []  # another check reports it
    remote = [target for target in targets if _is_remote(target)]
    found = (
        _without_tls(alias, _names(remote, lambda target: not _has_tls(target))),
        _without_password(alias, _names(remote, lambda target: not _has_password(target))),
    )
    return [message for message in found if message is not None]


def _without_tls(alias: str, names: str) -> CheckMessage | None:
    if not names:
        return None
    return Warning(
        f"CACHES[{alias!r}] connects to {names} without TLS: whoever can read this network can read and "
        "change all messages.",
        hint="Write rediss:// instead of redis:// in LOCATION. With Sentinels, add to OPTIONS: "
        '"CONNECTION_POOL_KWARGS": {"ssl": True}, "SENTINEL_KWARGS": {"ssl": True}. See docs/security.md.',
        id="messaging.W015",
    )


def _without_password(alias: str, names: str) -> CheckMessage | None:
    if not names:
        return None
    return Warning(
        f"CACHES[{alias!r}] connects to {names} without a password: whoever can reach it can read and delete "
        "all messages.",
        hint="Create a user with the ACL line of docs/security.md, and write its name and password into "
        "LOCATION: rediss://messaging:…@host:6379/1. With Sentinels, give them a password too: "
        '"SENTINEL_KWARGS": {"password": "…"} in OPTIONS.',
        id="messaging.W016",
    )


def _names(targets: list[Target], is_affected: Callable[[Target], bool]) -> str:
    return ", ".join(_name(target.parameters) for target in targets if is_affected(target))


def _name(parameters: dict[str, Any]) -> str:
    return f"{parameters['host']}:{parameters.get('port', 6379)}"


def _is_remote(target: Target) -> bool:
    """Whether it is on another machine. The host of a primary behind Sentinels is the name of the service."""
    if target.parameters.get("path"):
        return False
    host = str(target.parameters.get("host", "localhost"))
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _has_tls(target: Target) -> bool:
    return issubclass(target.kind, SSLConnection)


def _has_password(target: Target) -> bool:
    return bool(target.parameters.get("password") or target.parameters.get("credential_provider"))


def begin_run(**_: object) -> list[CheckMessage]:
    """Report nothing. `manage.py test` runs the checks before the tests: begin their run, so that processes
    that they start take part in it."""
    testruns.notice()
    return []


def check_variable(**_: object) -> list[CheckMessage]:
    """Check that no run of tests has started this process."""
    run = testruns.current()
    if run is None or run.is_own:
        return []
    return [
        Warning(
            f"The environment variable {testruns.VARIABLE} is set: this process uses the server or the "
            "prefix of a run of tests, not those of the site.",
            hint="Unset it. Only runs of tests set it, for processes that they start.",
            id="messaging.W022",
        )
    ]
