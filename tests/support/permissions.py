"""The permissions that docs/security.md lists, and a user of Redis who has these and no others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import django_redis_messaging
from django_redis_messaging.core import clients
from django_redis_messaging.core.connection import Address, Target
from django_redis_messaging.core.topology import Endpoint

from .server import server

PACKAGE = Path(str(django_redis_messaging.__file__)).parent
DOCUMENT = PACKAGE.parent / "docs" / "security.md"
USER, PASSWORD = "limited", "secret"
#: sent by core/commands.py and the handshake, in other forms than the calls that `_CALLS` finds
OTHERS = {"EVAL", "EVALSHA", "SELECT"}
#: found by `_CALLS`, but an argument of XREAD, and a command for Sentinels
NOT_SENT = {"STREAMS", "SENTINEL"}

#: the first word of a command in a script, and in Python
_CALLS = {
    "*.lua": re.compile(r"(?:redis\.p?call|check_types)\(\s*'([A-Z]+)'|write\('\w+', '([A-Z]+)'"),
    "*.py": re.compile(
        r"(?:Command\(|Words = \(|args = \(|exchange\(\[\(|send\(\[\(|[a-z]+ = \()\s*\"([A-Z]{3,})\""
    ),
}


def line() -> list[str]:
    """The rules of the ACL line, without name and password."""
    [found] = re.findall(r"^user messaging on >\S+ (.+)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return str(found).split()


def additions() -> dict[str, list[str]]:
    """The rules that further features need, by feature."""
    items = re.findall(r"^- \*\*(.+):\*\* (`[+&].+)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return {feature: re.findall(r"`([^`]+)`", rules) for feature, rules in items}


def commands(rules: Iterable[str]) -> set[str]:
    """The commands that rules allow, without subcommands."""
    return {rule[1:].partition("|")[0].upper() for rule in rules if rule.startswith("+")}


def sent() -> set[str]:
    """The commands that the package sends, according to its source."""
    found = {
        word
        for pattern, calls in _CALLS.items()
        for path in PACKAGE.rglob(pattern)
        for words in calls.findall(path.read_text(encoding="utf-8"))
        for word in ([words] if isinstance(words, str) else words)
        if word
    }
    return (found | OTHERS) - NOT_SENT


@contextmanager
def limited(alias: str, prefix: str, *more: str) -> Iterator[Any]:
    """Connect the app, but not raw clients, as a user with the rules of the document for this prefix; yields
    a raw client."""
    admin = server()
    path = admin.connection_pool.connection_kwargs["path"]
    rules = [rule.replace("PREFIX", prefix) for rule in (*line(), *more)]
    admin.execute_command("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *rules)
    original = Endpoint._target

    def target(self: Endpoint, pool: Any, address: Address | None = None) -> Target:
        found = original(self, pool, address)
        if self.alias == alias and (address or found.parameters.get("path") == path):
            found.parameters.update(username=USER, password=PASSWORD)
        return found

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Endpoint, "_target", target)
        clients.close()  # idle connections of the default user
        yield admin
        clients.close()
    admin.execute_command("ACL", "DELUSER", USER)
