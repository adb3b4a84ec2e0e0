"""Fills directories with the users of the site: the work of `manage.py index_contacts`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from django.core.exceptions import ValidationError

from ..services.directories import Directory
from ..services.directories.indexing import Progress, Run
from .identity import current
from .placing import Placing


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
        self._progress = Progress()
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
