"""What operators see of directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.operations import Command, Steps
from .directory import DirectoryKeys, directories_key


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectoryUsage:
    """What a directory stores."""

    name: str
    members: int
    entries: int
    """One for each word of labels and aliases."""


def list_usage(prefix: str, first: int, limit: int) -> Steps[list[DirectoryUsage]]:
    """What up to `limit` directories store, from this rank on; those that were changed last at the end."""
    names = yield Command("ZRANGE", directories_key(prefix), first, first + limit - 1, reads=True)
    return (yield from read_usage(prefix, [name.decode() for name in names]))


def read_usage(prefix: str, names: Sequence[str]) -> Steps[list[DirectoryUsage]]:
    """What directories store, even if they are empty."""
    if not names:
        return []
    keys = [DirectoryKeys(prefix, name) for name in names]
    replies = yield [
        *(Command("HLEN", one.records, reads=True) for one in keys),
        *(Command("ZCARD", one.entries, reads=True) for one in keys),
    ]
    sizes = zip(names, replies[: len(names)], replies[len(names) :], strict=True)
    return [DirectoryUsage(name=name, members=members, entries=entries) for name, members, entries in sizes]
