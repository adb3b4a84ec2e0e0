"""Checks that the server has the required version, keeps its data, and frees expired keys in the background.
Only in `check --deploy`, since it queries the server."""

from __future__ import annotations

import re

from django.core.checks import CheckMessage, Error, Warning

from ..errors import MessagingError, Unavailable
from .caches import check_alias, chosen_alias
from .servers import Server, read_servers

#: the oldest versions with all commands that the scripts use
MIN_VERSIONS = {"redis": (6, 2), "valkey": (7, 2)}


def check_server(**_: object) -> list[CheckMessage]:
    """Check the server's version, eviction policy, persistence and lazy expiry."""
    alias = chosen_alias()
    if alias is None or any(message.is_serious() for message in check_alias()):
        return []
    try:
        return [message for server in read_servers(alias) for message in _check(server)]
    except Unavailable as error:
        return [_unreachable(alias, error, "Start it, or correct LOCATION; then repeat the check.")]
    except MessagingError as error:
        hint = "Check the entry, its user and password, and the ACL: this check needs INFO."
        return [_unreachable(alias, error, hint)]


def _unreachable(alias: str, error: MessagingError, hint: str) -> CheckMessage:
    return Warning(
        f"The Redis of CACHES[{alias!r}] could not be queried. {error}", hint=hint, id="messaging.W005"
    )


def _check(server: Server) -> list[CheckMessage]:
    found = (_check_version(server), _check_eviction(server), _check_disk(server), _check_lazy_expiry(server))
    return [message for message in found if message is not None]


def _check_version(server: Server) -> CheckMessage | None:
    kind, _, version = server.version.partition(" ")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return _unknown(server, "its version", "Make sure that it is Redis 6.2 or newer.")
    if tuple(map(int, numbers.groups())) >= MIN_VERSIONS[kind]:
        return None
    return Error(
        f"{server.name} is {kind.title()} {version}, which lacks commands that this app uses.",
        hint="Update the server to Redis 6.2 or Valkey 7.2, or newer.",
        id="messaging.E007",
    )


def _check_eviction(server: Server) -> CheckMessage | None:
    policy = server.info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        return Error(
            f"The Redis of {server.name} evicts any key when its memory is full ({policy}): chats would "
            "be lost.",
            hint="Set its maxmemory-policy to noeviction, or use a separate server for messaging.",
            id="messaging.E008",
        )
    if policy.startswith("volatile-"):
        return Warning(
            f"The Redis of {server.name} evicts keys with a TTL when its memory is full ({policy}): it "
            "would lose request ids, and a repeated request could be applied twice.",
            hint="Set its maxmemory-policy to noeviction, or use a separate server for messaging.",
            id="messaging.W006",
        )
    if not policy:
        return _unknown(server, "its eviction policy", "Make sure that its maxmemory-policy is noeviction.")
    return None


def _check_disk(server: Server) -> CheckMessage | None:
    if server.info.get("aof_enabled") == "1":
        return None
    snapshots = server.settings["save"]
    if snapshots is None:
        hint = "The user may not call CONFIG. Make sure that appendonly or snapshots (save) are enabled."
        return _unknown(server, "whether it persists data on disk", hint)
    if snapshots:
        return None
    return Warning(
        f"The Redis of {server.name} doesn't persist data on disk: a restart deletes all chats.",
        hint="Set its appendonly to yes.",
        id="messaging.W007",
    )


def _check_lazy_expiry(server: Server) -> CheckMessage | None:
    """No message if the setting can't be read: most managed servers refuse CONFIG."""
    if server.settings["lazyfree-lazy-expire"] != "no":
        return None
    return Warning(
        f"The Redis of {server.name} frees expired keys in the foreground: it doesn't reply while it "
        "frees a large one, such as the request ids of many pushes.",
        hint="Set its lazyfree-lazy-expire to yes.",
        id="messaging.W012",
    )


def _unknown(server: Server, what: str, hint: str) -> CheckMessage:
    return Warning(
        f"{server.name}: the check could not read {what}.",
        hint=hint,
        id="messaging.W008",
    )
