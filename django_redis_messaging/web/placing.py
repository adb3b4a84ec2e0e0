"""Puts users into their directories as the database says, also if they change at the same time.

After each write, the users are read again, and written again if they have changed meanwhile. So the last
process to write has seen the latest change, in whatever order several processes read and write.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import InvalidArgument, LimitExceeded
from ..services.directories import Directory
from ..services.directories.indexing import Progress, Run
from .identity import current

logger = logging.getLogger(__name__)

#: maximum number of times that the same users are read; each change is followed by a receiver of its own, too
MAX_READS = 10


@dataclass
class Counts:
    """What was done. A resumed run counts only its own changes."""

    #: members put into a directory; a member of several directories counts once for each
    stored: int = 0
    removed: int = 0
    #: members that a directory refused
    refused: int = 0


class State(NamedTuple):
    """What decides where a user belongs, as of one reading."""

    #: the values of the fields, which may change the label
    values: tuple[Any, ...]
    #: whether the user may use the pages
    allowed: bool
    guilds: tuple[str, ...]


#: of a user who has not been read, or who is gone
ABSENT = State((), False, ())


class Placing:
    """Puts users into their directories, marked with a run."""

    def __init__(self, run: Run, *, only: Collection[str] = ()) -> None:
        self.counts = Counts()
        self._identity = current()
        self._progress = Progress()
        self._run = run
        self._only = only

    def place(self, keys: Sequence[Any], users: Sequence[Any] | None = None) -> None:
        """Put the users with these primary keys into their directories, and remove those who may not use the
        pages. `users`: those that have been read already."""
        before: dict[str, State] | None = None
        for _ in range(MAX_READS):
            if users is None:
                users = list(self._identity.users().filter(pk__in=keys))
            after = {self._identity.member_id(user): self._state(user) for user in users}
            if after == before:
                return
            self._write(before or {}, after)
            before, users = after, None

    def _state(self, user: Any) -> State:
        values = tuple(user.__dict__.get(field.attname) for field in user._meta.concrete_fields)
        return State(values, self._identity.may_use(user), self._guilds(user))

    def _guilds(self, user: Any) -> tuple[str, ...]:
        guilds = dict.fromkeys(self._identity.directories(user))
        return tuple(guild for guild in guilds if not self._only or guild in self._only)

    def _write(self, before: Mapping[str, State], after: Mapping[str, State]) -> None:
        """Change the directories of the members whose states differ."""
        members = dict.fromkeys((*before, *after))
        changed = [member for member in members if before.get(member) != after.get(member)]
        to_add: dict[str, list[str]] = defaultdict(list)
        to_remove: dict[str, list[str]] = defaultdict(list)
        for member in changed:
            old, new = before.get(member, ABSENT), after.get(member, ABSENT)
            for guild in dict.fromkeys((*old.guilds, *new.guilds)):
                (to_add if new.allowed and guild in new.guilds else to_remove)[guild].append(member)
        labels = self._identity.labels([each for each in changed if after.get(each, ABSENT).allowed])
        for guild, leaving in to_remove.items():
            self._remove(guild, list(Directory(guild).labels(leaving)))
        for guild, joining in to_add.items():
            self._progress.mark(self._run, guild, joining)
            self._add(guild, [(member, labels[member]) for member in joining])

    def _add(self, guild: str, pairs: Sequence[tuple[str, str]]) -> None:
        directory = Directory(guild)
        try:
            self.counts.stored += directory.add_many(pairs)
        except (LimitExceeded, InvalidArgument) as error:
            _raise_if_full(error)  # else one member was refused: add them one by one
        else:
            return
        for member, label in pairs:
            try:
                directory.add(member, label)
            except (LimitExceeded, InvalidArgument) as error:
                _raise_if_full(error)
                self.counts.refused += 1
                logger.warning(
                    "Adding member %r to directory %r failed, skipping it: %s", member, guild, error
                )
                if not directory.labels([member]):  # then remove the mark as well
                    directory.remove(member)
            else:
                self.counts.stored += 1

    def _remove(self, guild: str, members: Sequence[str]) -> None:
        Directory(guild).remove_many(members)
        self.counts.removed += len(members)


class FollowedUser(Placing):
    """Puts one user into their directories, and removes them from the others that are filled from the user
    model. The marks are those of the latest run, so that a run in progress doesn't remove the user."""

    def __init__(self, member: str) -> None:
        super().__init__(Progress().latest())
        self._member = member

    def _write(self, before: Mapping[str, State], after: Mapping[str, State]) -> None:
        super()._write(before, after)
        state = after.get(self._member, ABSENT)
        for guild in self._progress.guilds_with(self._member):
            if not state.allowed or guild not in state.guilds:
                self._remove(guild, [self._member])


def _raise_if_full(error: Exception) -> None:
    """Raise `error` if the directory is full: each of the other members would be refused as well."""
    if isinstance(error, LimitExceeded) and error.setting == "DIRECTORY_MAX_ENTRIES":
        raise error
