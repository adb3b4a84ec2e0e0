"""Fills directories from the user model, as the site's Identity says: for `manage.py index_contacts`."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError

from .. import conf
from ..errors import LimitExceeded
from ..services.directories import Directory
from ..services.indexing import Progress, Run
from .identity import current

logger = logging.getLogger(__name__)


@dataclass
class Counts:
    """What was done; a run that goes on counts what it does itself."""

    #: members put into a directory; who is in several counts in each
    stored: int = 0
    removed: int = 0
    #: members that a directory could not take
    refused: int = 0


class Indexing:
    """Goes through all users once, and then removes those whom it has not found any more."""

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
        #: a run that goes on begins with so many users done
        self.begins_with = self._run.done

    def total(self) -> int:
        """How many users there are."""
        return int(self._users.count())

    def run(self) -> bool:
        """Do it; False where it was stopped before the end: the next run goes on there."""
        while not self._stopped():
            page = self._page(self._run.after)
            if not page:
                return self._clean_up()
            self._index(page)
            done = self._run.done + len(page)
            self._run = Run(self._run.number, str(page[-1].pk), done)
            self._progress.save(self._run)
            self._report(done)
        return False

    def _page(self, after: str | None) -> list[Any]:
        if after is None:
            return list(self._users[: self._batch])
        try:
            return list(self._users.filter(pk__gt=after)[: self._batch])
        except (ValidationError, ValueError, TypeError) as error:
            raise ValueError(f"The user model has other keys than {after!r} now: begin anew.") from error

    def _index(self, page: Sequence[Any]) -> None:
        """Put the users of a page where they belong, and take those out who may not use the pages."""
        names = {self._identity.member_id(user): user for user in page}
        allowed = [member for member, user in names.items() if self._identity.may_use(user)]
        labels = self._identity.labels(allowed)
        kept = set(allowed)
        wanted: dict[str, list[str]] = defaultdict(list)
        unwanted: dict[str, list[str]] = defaultdict(list)
        for member, user in names.items():
            for guild in self._served(user):
                (wanted if member in kept else unwanted)[guild].append(member)
        for guild, members in unwanted.items():
            self._remove(guild, list(Directory(guild).labels(members)))
        for guild, members in wanted.items():
            self._progress.mark(self._run, guild, members)
            self._add(guild, [(member, labels[member]) for member in members])

    def _served(self, user: Any) -> list[str]:
        every = dict.fromkeys(self._identity.directories(user))
        return [guild for guild in every if not self._only or guild in self._only]

    def _add(self, guild: str, pairs: Sequence[tuple[str, str]]) -> None:
        directory = Directory(guild)
        try:
            self.counts.stored += directory.add_many(pairs)
        except (LimitExceeded, ValueError) as error:
            _unless_full(error)
        else:
            return
        for member, label in pairs:
            try:
                directory.add(member, label)
            except (LimitExceeded, ValueError) as error:
                _unless_full(error)
                self.counts.refused += 1
                logger.warning("Member %r can't be in directory %r: %s", member, guild, error)
                if not directory.labels([member]):  # then the mark is no longer of anybody
                    directory.remove(member)
            else:
                self.counts.stored += 1

    def _remove(self, guild: str, members: Sequence[str]) -> None:
        Directory(guild).remove_many(members)
        self.counts.removed += len(members)

    def _clean_up(self) -> bool:
        """Remove those whom this run has not found; False where it was stopped before."""
        for guild in sorted(self._only) or self._progress.guilds():
            while members := self._progress.left_over(self._run, guild):
                if self._stopped():
                    return False
                self._remove(guild, members)
            if self._strict and not self._remove_strangers(guild):
                return False
        self._progress.end(self._run)
        return True

    def _remove_strangers(self, guild: str) -> bool:
        cursor = "0"
        while not self._stopped():
            cursor, members = self._progress.strangers(self._run, guild, cursor)
            self._remove(guild, members)
            if cursor == "0":
                return True
        return False


def _unless_full(error: Exception) -> None:
    """Raise what would be said of each of its members: that the directory is full."""
    if isinstance(error, LimitExceeded) and error.limit == conf.current().DIRECTORY_MAX_ENTRIES:
        raise error
