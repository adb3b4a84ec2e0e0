"""How far the filling of directories has come, and whom it has put there: for `manage.py index_contacts`.

A run has a number, larger than those before it. Whoever it puts into a directory gets a mark with that
number; when all users have been looked at, those whose mark is of an earlier run are no longer to be there.
So only those are removed who were put there by a run, and nobody has to be kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..core.batches import batched
from ..core.keys import DirectoryKeys, directories, indexing, name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..errors import MessagingError

#: members that are marked, or looked for, at once
PAGE = 250
#: ms after which a run that was stopped is begun anew: what it has found is too old by then
STALE = 86_400_000


class Run(NamedTuple):
    """A run, as far as it has come."""

    number: int
    #: the text of the last primary key that is done; None at first
    after: str | None
    #: users that are done
    done: int


class Progress(Service):
    """The state of `index_contacts`."""

    @operation
    def begin(self, only: Iterable[str] = (), *, fresh: bool = False) -> Steps[Run]:
        """Go on with the run for these directories (none: for all) that was stopped; or begin one."""
        asked = "\0".join(sorted(only))
        words = (asked, int(fresh), STALE)
        number, after, done = yield Script("indexing_begin", [indexing(self._prefix)], words)
        return Run(number, after[1:].decode() if after else None, done)

    abegin = asynchronous(begin)

    @operation
    def save(self, run: Run) -> Steps[None]:
        """Note how far it has come."""
        after = "" if run.after is None else f"={run.after}"
        words = (run.number, after, run.done)
        if not (yield Script("indexing_save", [indexing(self._prefix)], words)):
            raise MessagingError(
                "Another index_contacts has ended this run, or begun a new one: one is enough."
            )

    asave = asynchronous(save)

    @operation
    def end(self, run: Run) -> Steps[None]:
        """It has come to its end."""
        yield Script("indexing_end", [indexing(self._prefix)], [run.number])

    aend = asynchronous(end)

    @operation
    def mark(self, run: Run, guild: str, members: Iterable[str]) -> Steps[None]:
        """The run is about to put these into a directory. A mark of a later run stays."""
        # Registered first: at no moment is there a mark in a directory that forget() doesn't know.
        register = Script("directory_register", [directories(self._prefix)], [name(guild, "guild")])
        for page in batched([name(member, "member") for member in members], PAGE):
            words = [word for member in page for word in (run.number, member)]
            yield [register, Command("ZADD", DirectoryKeys(self._prefix, guild).indexed, "GT", *words)]

    amark = asynchronous(mark)

    @operation
    def guilds(self) -> Steps[list[str]]:
        """All directories there are."""
        found: dict[str, None] = {}
        cursor = b"0"
        while True:
            words = (directories(self._prefix), cursor, "COUNT", 100)
            cursor, flat = yield Command("ZSCAN", *words, reads=True)
            found.update((guild.decode(), None) for guild in flat[::2])
            if cursor == b"0":
                return list(found)

    aguilds = asynchronous(guilds)

    @operation
    def left_over(self, run: Run, guild: str) -> Steps[list[str]]:
        """Some of those that an earlier run put there and this one has not found; none: there are no more."""
        marks = DirectoryKeys(self._prefix, guild).indexed
        words = ("ZRANGE", marks, "-inf", f"({run.number}", "BYSCORE", "LIMIT", 0, PAGE)
        return [member.decode() for member in (yield Command(*words, reads=True))]

    aleft_over = asynchronous(left_over)

    @operation
    def strangers(self, run: Run, guild: str, cursor: str = "0") -> Steps[tuple[str, list[str]]]:
        """From some of the members, those that this run has not put there, whoever did; and the cursor
        to go on with, "0" at the end. Of a directory that this run has put nobody in, none."""
        keys = DirectoryKeys(self._prefix, guild)
        scan = Command("HSCAN", keys.records, cursor, "COUNT", PAGE, reads=True)
        (following, flat), ours = yield [
            scan,
            Command("ZCOUNT", keys.indexed, run.number, run.number, reads=True),
        ]
        members = flat[::2]
        if not ours or not members:
            return following.decode() if ours else "0", []
        marks = yield Command("ZMSCORE", keys.indexed, *members, reads=True)
        found = [
            member.decode()
            for member, mark in zip(members, marks, strict=True)
            if mark is None or float(mark) != run.number
        ]
        return following.decode(), found

    astrangers = asynchronous(strangers)
