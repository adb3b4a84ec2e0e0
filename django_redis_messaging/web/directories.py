"""Keeps directories and chats in step with changes of users, if FOLLOW_USERS is set.

After each write, the users are read again, and written again if they have changed meanwhile. So the last
process to write has seen the latest change, in whatever order several processes read and write.

Changes that send no signal of the user model, such as QuerySet.update() or those of groups, aren't seen:
`manage.py sync_directory` makes the directories equal to the user model.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import transaction

from .. import conf
from ..errors import InvalidArgument, LimitExceeded, MessagingError
from ..services.directories import Directory
from ..services.directories.directory import Run, SyncProgress
from .identity import current

logger = logging.getLogger(__name__)

#: maximum number of times that the same users are read; each change is followed by a receiver of its own, too
MAX_READS = 10


def user_saved(instance: Any, using: str, raw: bool, **_: Any) -> None:
    """Update the directories of a user, if FOLLOW_USERS is set. A receiver: apps.py connects it."""
    if conf.current().FOLLOW_USERS and not raw:  # no fixture
        pk, member = instance.pk, current().member_id(instance)
        _after_commit(lambda: update_user(pk, member), pk, using)


def user_deleted(instance: Any, using: str, **_: Any) -> None:
    """Delete the data of a user, if FOLLOW_USERS is set. Another receiver."""
    if conf.current().FOLLOW_USERS:
        # not at the top: it loads all services, which a process that saves users doesn't need
        from ..services.users.forgetting import forget

        pk, member = instance.pk, current().member_id(instance)
        _after_commit(lambda: forget(member), pk, using)


def _after_commit(change: Callable[[], None], pk: Any, using: str) -> None:
    """Call `change` after the transaction. Its failure must not reach whoever saved the user."""

    def attempt() -> None:
        try:
            change()
        except (MessagingError, ValueError) as error:
            logger.warning("Following a change of user %r failed; sync_directory repairs it: %s", pk, error)

    transaction.on_commit(attempt, using=using, robust=True)


def update_user(pk: Any, member: str) -> None:
    """Put a user into their directories under their present label, and remove them from the others that are
    filled from the user model.

    Reads the user from the database, so that several calls in any order have the same result.
    """
    FollowedUser(member).place([pk])


class Indexing:
    """Indexes all users, then removes the members that no longer belong to a user."""

    def __init__(
        self,
        *,
        only: Collection[str] = (),
        batch: int = 500,
        fresh: bool = False,
        strict: bool = False,
        stopped: Callable[[], bool] = lambda: False,
        report: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._only = {Directory(guild).guild for guild in only}
        self._batch = batch
        self._strict = strict
        self._stopped = stopped
        self._report = report
        self._users = current().users().order_by("pk")
        self._progress = SyncProgress()
        self._run = self._progress.begin(self._only, fresh=fresh)
        self._placing = Placing(self._run, only=self._only)
        self.counts = self._placing.counts
        #: users that were indexed before this run was resumed
        self.begins_with = self._run.done

    def total(self) -> int:
        """The number of users."""
        return int(self._users.count())

    def run(self) -> bool:
        """Index all users. Returns False if it was stopped before the end: the next run resumes there."""
        while not self._stopped():
            page = self._read_page(self._run.after)
            if not page:
                return self._remove_stale_members()
            self._placing.place([user.pk for user in page], page)
            done = self._run.done + len(page)
            self._run = Run(self._run.number, str(page[-1].pk), done)
            self._progress.save(self._run)
            self._report(done)
        return False

    def _read_page(self, after: str | None) -> list[Any]:
        if after is None:
            return list(self._users[: self._batch])
        try:
            return list(self._users.filter(pk__gt=after)[: self._batch])
        except (ValidationError, ValueError, TypeError) as error:
            raise ValueError(
                f"Can't resume after {after!r}, which is no longer a key of the user model: use --fresh."
            ) from error

    def _remove_stale_members(self) -> bool:
        """Remove the members that this run has not indexed. Returns False if it was stopped."""
        for guild in sorted(self._only) or self._progress.guilds():
            while members := self._progress.stale_members(self._run, guild):
                if self._stopped():
                    return False
                self._remove(guild, members)
            if self._strict and not self._remove_other_members(guild):
                return False
        self._progress.end(self._run)
        return True

    def _remove(self, guild: str, members: list[str]) -> None:
        Directory(guild).remove_many(members)
        self.counts.removed += len(members)

    def _remove_other_members(self, guild: str) -> bool:
        """Remove the members that no run has added. Returns False if it was stopped."""
        cursor = "0"
        while not self._stopped():
            cursor, members = self._progress.other_members(self._run, guild, cursor)
            self._remove(guild, members)
            if cursor == "0":
                return True
        return False


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
        self._progress = SyncProgress()
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
        super().__init__(SyncProgress().latest())
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
