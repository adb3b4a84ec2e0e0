"""Loads the Lua scripts of ../lua, once in each process.

A script is one file, `<noun>_<verb>.lua`. A header line `-- uses _log.lua` inserts that file before the
script, and before it the files that `_log.lua` uses in turn; each file once, whatever the order of the
lines. Functions of these files that the script doesn't call, directly or indirectly, are left out: Redis
would create each of them at every call of the script. A header line `-- reads only` declares that the script
changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files
from typing import NamedTuple

_USES = re.compile(r"^-- uses (_\w+\.lua)$", re.MULTILINE)
_READS_ONLY = re.compile(r"^-- reads only$", re.MULTILINE)
#: a function at the top level of a file, with the comment above it
_FUNCTION = re.compile(r"^(?:--[^\n]*\n)*local function (\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"--.*")
_CALL = re.compile(r"\b(\w+)\(")
#: removes the last key, see `Script.guard`
_GUARDED = "local KEYS = {unpack(KEYS, 1, #KEYS - 1)} "


class Source(NamedTuple):
    """The text of a script with the files that it uses."""

    name: str
    text: str
    sha: str
    reads_only: bool


def read(filename: str) -> str:
    """The text of one file of ../lua."""
    return (files("django_redis_messaging") / "lua" / filename).read_text(encoding="utf-8")


def pieces(body: str) -> list[str]:
    """The files that a script uses, directly or indirectly, each after those that it uses itself."""
    found: dict[str, None] = {}
    for used in _USES.findall(body):
        found |= dict.fromkeys([*pieces(read(used)), used])
    return list(found)


def without_unused(library: str, body: str) -> str:
    """The text of the files that a script uses, without the functions that it doesn't need."""
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(library)}
    needed: set[str] = set()
    waiting = [body, _FUNCTION.sub("", library)]
    while waiting:
        called = set(_CALL.findall(_COMMENT.sub("", waiting.pop()))) & functions.keys() - needed
        needed |= called
        waiting += [functions[name].partition("\n")[2] for name in called]
    return _FUNCTION.sub(lambda found: found[0] if found[1] in needed else "", library)


@functools.cache
def load(name: str, *, guarded: bool = False) -> Source:
    """Load the script `name` with the files it uses. `guarded`: it takes one more key, see `Script.guard`."""
    body = read(f"{name}.lua")
    library = without_unused("\n".join(map(read, pieces(body))), body)
    text = (_GUARDED if guarded else "") + library + "\n" + body
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Source(name, text, sha, bool(_READS_ONLY.search(body)))
