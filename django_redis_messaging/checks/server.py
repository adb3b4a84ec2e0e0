"""Whether the server keeps what it is given: looked at by `check --deploy` only, since it takes asking."""

from __future__ import annotations

import re

from django.core.checks import CheckMessage, Error, Warning

from ..core import clients
from ..core.steps import Command
from ..errors import MessagingError, Unavailable
from .caches import check_alias, chosen_alias

#: the oldest versions that have the commands the scripts use
OLDEST = {"redis": (6, 2), "valkey": (7, 2)}

Info = dict[str, str]


def check_server(**_: object) -> list[CheckMessage]:
    """The server: its version, what it evicts, what it keeps on disk."""
    alias = chosen_alias()
    if alias is None or any(message.is_serious() for message in check_alias()):
        return []
    try:
        return _looked_at(alias)
    except Unavailable as error:
        return [_not_asked(alias, error, "Start it, or correct LOCATION; then check again.")]
    except MessagingError as error:
        hint = "Check the entry, its user and password, and the ACL (INFO is what the check needs)."
        return [_not_asked(alias, error, hint)]


def _not_asked(alias: str, error: MessagingError, hint: str) -> CheckMessage:
    return Warning(
        f"The Redis of CACHES[{alias!r}] could not be looked at. {error}", hint=hint, id="messaging.W005"
    )


def _looked_at(alias: str) -> list[CheckMessage]:
    info = _parsed(clients.ask(alias, Command("INFO", reads=True)))
    found = (_about_version(alias, info), _about_eviction(alias, info), _about_disk(alias, info))
    return [message for message in found if message is not None]


def _parsed(reply: bytes) -> Info:
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def _about_version(alias: str, info: Info) -> CheckMessage | None:
    kind = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{kind}_version", "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return _not_seen(
            alias, "its version", "INFO doesn't say it: make sure that it is Redis 6.2 or newer."
        )
    if tuple(map(int, numbers.groups())) >= OLDEST[kind]:
        return None
    return Error(
        f"CACHES[{alias!r}] is {kind.title()} {version}, which lacks commands this app uses.",
        hint="Update the server to Redis 6.2 or Valkey 7.2, or newer.",
        id="messaging.E007",
    )


def _about_eviction(alias: str, info: Info) -> CheckMessage | None:
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys-"):
        return Error(
            f"The Redis of CACHES[{alias!r}] evicts any key when memory is short ({policy}): chats would "
            "vanish.",
            hint="Set maxmemory-policy to noeviction there, or use a server of its own for messaging.",
            id="messaging.E008",
        )
    if policy.startswith("volatile-"):
        return Warning(
            f"The Redis of CACHES[{alias!r}] evicts keys that expire when memory is short ({policy}): it "
            "would forget which requests it has answered, and a repeated one might be done twice.",
            hint="Set maxmemory-policy to noeviction there, or use a server of its own for messaging.",
            id="messaging.W006",
        )
    if not policy:
        return _not_seen(alias, "what it evicts", "Make sure that its maxmemory-policy is noeviction.")
    return None


def _about_disk(alias: str, info: Info) -> CheckMessage | None:
    if info.get("aof_enabled") == "1":
        return None
    try:
        setting = clients.ask(alias, Command("CONFIG", "GET", "save", reads=True))
    except MessagingError:
        hint = "CONFIG is not for this user. Make sure that appendonly or snapshots (save) are on."
        return _not_seen(alias, "whether it keeps data on disk", hint)
    if len(setting) == 2 and setting[1]:
        return None
    return Warning(
        f"The Redis of CACHES[{alias!r}] keeps nothing on disk: a restart deletes all chats.",
        hint="Set appendonly to yes there.",
        id="messaging.W007",
    )


def _not_seen(alias: str, what: str, hint: str) -> CheckMessage:
    return Warning(
        f"CACHES[{alias!r}]: the server does not tell {what}.",
        hint=hint,
        id="messaging.W008",
    )
