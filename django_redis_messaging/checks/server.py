"""Checks that the server has the required version, keeps its data, and frees expired keys in the background.
Only in `check --deploy`, since it queries the server."""

from __future__ import annotations

import re

from django.core.checks import CheckMessage, Error, Warning

from ..core import clients
from ..core.steps import Command
from ..errors import MessagingError, Unavailable
from .caches import check_alias, chosen_alias

#: the oldest versions with all commands that the scripts use
MIN_VERSIONS = {"redis": (6, 2), "valkey": (7, 2)}

Info = dict[str, str]


def check_server(**_: object) -> list[CheckMessage]:
    """Check the server's version, eviction policy, persistence and lazy expiry."""
    alias = chosen_alias()
    if alias is None or any(message.is_serious() for message in check_alias()):
        return []
    try:
        return _check_info(alias)
    except Unavailable as error:
        return [_unreachable(alias, error, "Start it, or correct LOCATION; then repeat the check.")]
    except MessagingError as error:
        hint = "Check the entry, its user and password, and the ACL: this check needs INFO."
        return [_unreachable(alias, error, hint)]


def _unreachable(alias: str, error: MessagingError, hint: str) -> CheckMessage:
    return Warning(
        f"The Redis of CACHES[{alias!r}] could not be queried. {error}", hint=hint, id="messaging.W005"
    )


def _check_info(alias: str) -> list[CheckMessage]:
    info = _parse_info(clients.execute(alias, Command("INFO", reads=True)))
    found = (
        _check_version(alias, info),
        _check_eviction(alias, info),
        _check_disk(alias, info),
        _check_lazy_expiry(alias),
    )
    return [message for message in found if message is not None]


def _parse_info(reply: bytes) -> Info:
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _check_version(alias: str, info: Info) -> CheckMessage | None:
    kind = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{kind}_version", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return _unknown(alias, "its version", "Make sure that it is Redis 6.2 or newer.")
    if tuple(map(int, numbers.groups())) >= MIN_VERSIONS[kind]:
        return None
    return Error(
        f"CACHES[{alias!r}] is {kind.title()} {version}, which lacks commands that this app uses.",
        hint="Update the server to Redis 6.2 or Valkey 7.2, or newer.",
        id="messaging.E007",
    )


def _check_eviction(alias: str, info: Info) -> CheckMessage | None:
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        return Error(
            f"The Redis of CACHES[{alias!r}] evicts any key when its memory is full ({policy}): chats would "
            "be lost.",
            hint="Set its maxmemory-policy to noeviction, or use a separate server for messaging.",
            id="messaging.E008",
        )
    if policy.startswith("volatile-"):
        return Warning(
            f"The Redis of CACHES[{alias!r}] evicts keys with a TTL when its memory is full ({policy}): it "
            "would lose request ids, and a repeated request could be applied twice.",
            hint="Set its maxmemory-policy to noeviction, or use a separate server for messaging.",
            id="messaging.W006",
        )
    if not policy:
        return _unknown(alias, "its eviction policy", "Make sure that its maxmemory-policy is noeviction.")
    return None


def _check_disk(alias: str, info: Info) -> CheckMessage | None:
    if info.get("aof_enabled") == "1":
        return None
    snapshots = _read_setting(alias, "save")
    if snapshots is None:
        hint = "The user may not call CONFIG. Make sure that appendonly or snapshots (save) are enabled."
        return _unknown(alias, "whether it persists data on disk", hint)
    if snapshots:
        return None
    return Warning(
        f"The Redis of CACHES[{alias!r}] doesn't persist data on disk: a restart deletes all chats.",
        hint="Set its appendonly to yes.",
        id="messaging.W007",
    )


def _check_lazy_expiry(alias: str) -> CheckMessage | None:
    """No message if the setting can't be read: most managed servers refuse CONFIG."""
    if _read_setting(alias, "lazyfree-lazy-expire") != "no":
        return None
    return Warning(
        f"The Redis of CACHES[{alias!r}] frees expired keys in the foreground: it doesn't reply while it "
        "frees a large one, such as the request ids of many pushes.",
        hint="Set its lazyfree-lazy-expire to yes.",
        id="messaging.W012",
    )


def _read_setting(alias: str, name: str) -> str | None:
    """A setting of the server; empty if it has no such setting, None if it can't be read."""
    try:
        found = clients.execute(alias, Command("CONFIG", "GET", name, reads=True))
    except MessagingError:
        return None
    return found[1].decode() if len(found) == 2 else ""


def _unknown(alias: str, what: str, hint: str) -> CheckMessage:
    return Warning(
        f"CACHES[{alias!r}]: the check could not read {what}.",
        hint=hint,
        id="messaging.W008",
    )
