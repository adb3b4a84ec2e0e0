"""Loads the Lua scripts of ../lua, once a process.

A script is one file, `<noun>_<verb>.lua`. A header line `-- uses _chat.lua` puts that file's functions
in front of it; a header line `-- reads only` says that it changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files
from typing import NamedTuple

_USES = re.compile(r"^-- uses (_\w+\.lua)$", re.MULTILINE)
_READS_ONLY = re.compile(r"^-- reads only$", re.MULTILINE)


#: takes away the last key, see `Script.guard`
_GUARDED = "local KEYS = {unpack(KEYS, 1, #KEYS - 1)} "


class Source(NamedTuple):
    """A script as it is sent."""

    name: str
    text: str
    sha: str
    reads_only: bool


def read(filename: str) -> str:
    """The text of one file of ../lua."""
    return (files("django_redis_messaging") / "lua" / filename).read_text(encoding="utf-8")


@functools.cache
def load(name: str, *, guarded: bool = False) -> Source:
    """The script `name`, with the files it uses in front. `guarded`: it gets one more key, see `Script`."""
    body = read(f"{name}.lua")
    text = (_GUARDED if guarded else "") + "\n".join([*map(read, _USES.findall(body)), body])
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Source(name, text, sha, bool(_READS_ONLY.search(body)))
