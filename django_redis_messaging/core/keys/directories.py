"""The keys of directories."""

from __future__ import annotations

from .names import FORMAT, tag


class DirectoryKeys:
    """The keys of one directory, in one slot. All are gone with the last member."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, guild: str) -> None:
        self.tag = tag(prefix, "directory", guild)

    @property
    def entries(self) -> str:
        """ZSET of "rest NUL id NUL label", all with score 0: each rest, from a word start on, of what a
        member is found under. Capped on write."""
        return self.tag + ":entries"

    @property
    def records(self) -> str:
        """HASH id → "label NUL rest NUL rest …": what a member's entries are made of, for their removal."""
        return self.tag + ":records"

    @property
    def indexed(self) -> str:
        """ZSET id → number of the run of index_contacts that put it there last. An id goes with its
        record, so nobody else's are here."""
        return self.tag + ":indexed"


def directories(prefix: str) -> str:
    """ZSET guild → ms of its latest add: the registry of directories, for forget(). A guild is pruned
    once its directory is found empty by a removal and nobody can be adding to it any more."""
    return f"{prefix}:{FORMAT}:{{directories}}"


def indexing(prefix: str) -> str:
    """HASH of how far index_contacts has come: "run" (its number), and while that is under way "only" (the
    directories asked for), "after" ("=" and the last primary key that is done), "done" (users), "at" (ms).
    One for good; of fixed size between runs."""
    return f"{directories(prefix)}:indexing"
