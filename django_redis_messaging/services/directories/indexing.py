"""Progress of filling directories, and the members that were added: for `manage.py sync_directory`.

Each run has a number greater than those of earlier runs. A run marks every member that it adds to a directory
with its number. After all users have been processed, members whose mark has a lower number are removed. So a
run only removes members that an earlier run has added, and it needs no list of members in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...core.commands import batched
from ...core.keys import name
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import MessagingError
from .keys import DirectoryKeys, directories_key, indexing_key

#: members that are marked or listed by one command
PAGE_SIZE = 250
#: ms after which an interrupted run is replaced instead of resumed: its results are too old
MAX_AGE = 86_400_000


class Run(NamedTuple):
    """A run and its progress."""

    number: int
    #: the last primary key that is done, as text; None at first
    after: str | None
    #: number of users that are done
    done: int


class Progress(Service):
    """The state of `sync_directory`."""

    @operation
    def begin(self, only: Iterable[str] = (), *, fresh: bool = False) -> Steps[Run]:
        """Resume the interrupted run for these directories (none: all), or begin a new one."""
        requested = "\0".join(sorted(only))
        args = (requested, int(fresh), MAX_AGE)
        number, after, done = yield Script("directories/indexing_begin", [indexing_key(self._prefix)], args)
        return Run(number, after[1:].decode() if after else None, done)

    abegin = asynchronous(begin)

    @operation
    def latest(self) -> Steps[Run]:
        """The latest run, whether or not it has ended; number 0 before the first one."""
        number = yield Command("HGET", indexing_key(self._prefix), "run", reads=True)
        return Run(int(number or 0), None, 0)

    alatest = asynchronous(latest)

    @operation
    def save(self, run: Run) -> Steps[None]:
        """Save the progress of a run."""
        after = "" if run.after is None else f"={run.after}"
        args = (run.number, after, run.done)
        if not (yield Script("directories/indexing_save", [indexing_key(self._prefix)], args)):
            raise MessagingError(
                "Another sync_directory has ended or replaced this run: do not run two at the same time."
            )

    asave = asynchronous(save)

    @operation
    def end(self, run: Run) -> Steps[None]:
        """End a run."""
        yield Script("directories/indexing_end", [indexing_key(self._prefix)], [run.number])

    aend = asynchronous(end)

    @operation
    def mark(self, run: Run, guild: str, members: Iterable[str]) -> Steps[None]:
        """Mark members before the run adds them to a directory. A mark of a later run stays."""
        # Registering first ensures that forget() finds every directory with marks.
        register = Script("directories/register", [directories_key(self._prefix)], [name(guild, "guild")])
        for page in batched([name(member, "member") for member in members], PAGE_SIZE):
            scores = [part for member in page for part in (run.number, member)]
            yield [register, Command("ZADD", DirectoryKeys(self._prefix, guild).indexed, "GT", *scores)]

    amark = asynchronous(mark)

    @operation
    def guilds(self) -> Steps[list[str]]:
        """List all directories."""
        found: dict[str, None] = {}
        cursor = b"0"
        while True:
            args = (directories_key(self._prefix), cursor, "COUNT", 100)
            cursor, flat = yield Command("ZSCAN", *args, reads=True)
            found.update((guild.decode(), None) for guild in flat[::2])
            if cursor == b"0":
                return list(found)

    aguilds = asynchronous(guilds)

    @operation
    def guilds_with(self, member: str) -> Steps[list[str]]:
        """List the directories that contain `member` and are filled from the user model."""
        found: list[str] = []
        cursor = b"0"
        while True:
            args = (directories_key(self._prefix), cursor, "COUNT", 100)
            cursor, flat = yield Command("ZSCAN", *args, reads=True)
            guilds = [guild.decode() for guild in flat[::2]]
            keys = [DirectoryKeys(self._prefix, guild) for guild in guilds]
            replies = yield [Command("HEXISTS", each.records, member, reads=True) for each in keys] + [
                Command("EXISTS", each.indexed, reads=True) for each in keys
            ]
            contains, filled = replies[: len(keys)], replies[len(keys) :]
            found += [guild for guild, *both in zip(guilds, contains, filled, strict=True) if all(both)]
            if cursor == b"0":
                return list(dict.fromkeys(found))

    aguilds_with = asynchronous(guilds_with)

    @operation
    def stale_members(self, run: Run, guild: str) -> Steps[list[str]]:
        """List some members that an earlier run has added and this run has not; empty if there are no
        more."""
        marks = DirectoryKeys(self._prefix, guild).indexed
        args = ("ZRANGE", marks, "-inf", f"({run.number}", "BYSCORE", "LIMIT", 0, PAGE_SIZE)
        return [member.decode() for member in (yield Command(*args, reads=True))]

    astale_members = asynchronous(stale_members)

    @operation
    def other_members(self, run: Run, guild: str, cursor: str = "0") -> Steps[tuple[str, list[str]]]:
        """Scan a directory for members that this run has not added, whether or not any run has.

        Returns the cursor to continue with ("0" at the end) and the members found. Finds none if this run has
        not added anyone to the directory.
        """
        keys = DirectoryKeys(self._prefix, guild)
        scan = Command("HSCAN", keys.records, cursor, "COUNT", PAGE_SIZE, reads=True)
        (following, flat), added = yield [
            scan,
            Command("ZCOUNT", keys.indexed, run.number, run.number, reads=True),
        ]
        members = flat[::2]
        if not added or not members:
            return following.decode() if added else "0", []
        marks = yield Command("ZMSCORE", keys.indexed, *members, reads=True)
        others = [
            member.decode()
            for member, mark in zip(members, marks, strict=True)
            if mark is None or float(mark) != run.number
        ]
        return following.decode(), others

    aother_members = asynchronous(other_members)
