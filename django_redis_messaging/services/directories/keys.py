"""The keys of directories."""

from __future__ import annotations

from ...core.keys import FORMAT, tag


class DirectoryKeys:
    """The keys of one directory, in one slot. They are deleted with the last member."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, guild: str) -> None:
        self.tag = tag(prefix, "directory", guild)

    @property
    def entries(self) -> str:
        """ZSET of "suffix NUL id NUL label", all with score 0: one entry for each word start of a member's
        label and aliases, and for each of their spellings in pinyin. Capped on write."""
        return self.tag + ":entries"

    @property
    def records(self) -> str:
        """HASH id → "label NUL suffix NUL suffix …": the source of a member's entries, for removing them."""
        return self.tag + ":records"

    @property
    def indexed(self) -> str:
        """ZSET id → number of the latest run of sync_directory that added it. An id is removed together with
        its record."""
        return self.tag + ":indexed"

    @property
    def all_keys(self) -> tuple[str, ...]:
        """All keys of the directory, in the order of directory_at() in _directory.lua."""
        return (self.entries, self.records, self.indexed)


def directories_key(prefix: str) -> str:
    """ZSET guild → ms of its latest add: the registry of directories, for forget(). A guild is removed if its
    directory is found empty when no add can be in progress. If that is too soon after the latest add, the ms
    become negative, and a later removal that empties a directory checks this one again."""
    return f"{prefix}:{FORMAT}:{{directories}}"


def indexing_key(prefix: str) -> str:
    """HASH with the progress of sync_directory: "run" (its number), and during a run "only" (the requested
    directories), "after" ("=" plus the last primary key that is done), "done" (users), "at" (ms). Never
    expires; of constant size between runs."""
    return f"{directories_key(prefix)}:indexing"
