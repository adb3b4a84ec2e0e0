"""Loads the Lua scripts of ../lua, once in each process.

A script is one file, `<noun>_<verb>.lua`. A header line `-- uses _log.lua` inserts that file before the
script, and before it the files that `_log.lua` uses in turn; each file once, whatever the order of the
lines. A header line `-- reads only` declares that the script changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files
from typing import NamedTuple

_USES = re.compile(r"^-- uses (_\w+\.lua)$", re.MULTILINE)
_READS_ONLY = re.compile(r"^-- reads only$", re.MULTILINE)
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


@functools.cache
def load(name: str, *, guarded: bool = False) -> Source:
    """Load the script `name` with the files it uses. `guarded`: it takes one more key, see `Script.guard`."""
    body = read(f"{name}.lua")
    text = (_GUARDED if guarded else "") + "\n".join([*map(read, pieces(body)), body])
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Source(name, text, sha, bool(_READS_ONLY.search(body)))
