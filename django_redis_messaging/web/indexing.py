"""Fills directories with the users of the site: the work of `manage.py index_contacts`."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError

from ..errors import InvalidArgument, LimitExceeded
from ..services.directories import Directory
from ..services.directories.indexing import Progress, Run
from .identity import current

logger = logging.getLogger(__name__)


@dataclass
class Counts:
    """What a run has done. A resumed run counts only its own changes."""

    #: members put into a directory; a member of several directories counts once for each
    stored: int = 0
    removed: int = 0
    #: members that a directory refused
    refused: int = 0


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
        self.counts = Counts()
        self._only = {Directory(guild).guild for guild in only}
        self._batch = batch
        self._strict = strict
        self._stopped = stopped
        self._report = report
        self._identity = current()
        self._users = self._identity.users().order_by("pk")
        self._progress = Progress()
        self._run = self._progress.begin(self._only, fresh=fresh)
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
            self._index_page(page)
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

    def _index_page(self, page: Sequence[Any]) -> None:
        """Add the users of a page to their directories, and remove those who may not use the pages."""
        users = {self._identity.member_id(user): user for user in page}
        allowed = {member: None for member, user in users.items() if self._identity.may_use(user)}
        labels = self._identity.labels(allowed)
        to_add: dict[str, list[str]] = defaultdict(list)
        to_remove: dict[str, list[str]] = defaultdict(list)
        for member, user in users.items():
            for guild in self._directories(user):
                (to_add if member in allowed else to_remove)[guild].append(member)
        for guild, members in to_remove.items():
            self._remove(guild, list(Directory(guild).labels(members)))
        for guild, members in to_add.items():
            self._progress.mark(self._run, guild, members)
            self._add(guild, [(member, labels[member]) for member in members])

    def _directories(self, user: Any) -> list[str]:
        """The directories of a user that this run fills."""
        guilds = dict.fromkeys(self._identity.directories(user))
        return [guild for guild in guilds if not self._only or guild in self._only]

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

    def _remove_other_members(self, guild: str) -> bool:
        """Remove the members that no run has added. Returns False if it was stopped."""
        cursor = "0"
        while not self._stopped():
            cursor, members = self._progress.other_members(self._run, guild, cursor)
            self._remove(guild, members)
            if cursor == "0":
                return True
        return False


def _raise_if_full(error: Exception) -> None:
    """Raise `error` if the directory is full: each of the other members would be refused as well."""
    if isinstance(error, LimitExceeded) and error.setting == "DIRECTORY_MAX_ENTRIES":
        raise error
