"""`manage.py index_contacts`: fills directories from the user model."""

from __future__ import annotations

from argparse import ArgumentParser
from time import monotonic
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ...errors import MessagingError
from ...web.indexing import Indexing
from ..loops import Stopping

#: users that are looked at, and stored, at once
MOST = 1000
#: seconds between two lines of progress where the output is no terminal
REPORT = 10.0
#: exit code of a run that was stopped
STOPPED = 3


class Command(BaseCommand):
    """Indexes all users, page by page."""

    help = (
        "Put all users into the directories that they are in by IDENTITY, under their label; remove those "
        "who may not use the pages any more, and those whom an earlier run had put there and who are gone. "
        "A run that was stopped goes on where it was. Exit code 0: done; 1: an error, or members that a "
        "directory could not take (see the log); 3: stopped by a signal, run it again to go on."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--directory", action="append", default=[], help="only this one, again for more (all)"
        )
        parser.add_argument("--batch", type=int, default=500, help="users at a time (500)")
        parser.add_argument("--fresh", action="store_true", help="begin anew, also where a run was stopped")
        parser.add_argument(
            "--strict",
            action="store_true",
            help="remove also whom no run has put there: in these directories nobody but users is left",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it."""
        if not 1 <= options["batch"] <= MOST:
            raise CommandError(f"--batch is 1 to {MOST} users.")
        self._verbosity = options["verbosity"]
        stop = Stopping()
        try:
            indexing = Indexing(
                only=options["directory"],
                batch=options["batch"],
                fresh=options["fresh"],
                strict=options["strict"],
                stopped=stop.is_set,
                report=self._progress,
            )
            stop.listen()
            self._begin(indexing)
            finished = indexing.run()
        except (MessagingError, ValueError) as error:
            raise CommandError(str(error)) from error
        self._end(indexing, finished)

    def _begin(self, indexing: Indexing) -> None:
        self._total, self._reported = indexing.total(), monotonic()
        going_on = f", going on after {indexing.begins_with}" if indexing.begins_with else ""
        self._say(f"Indexing {self._total} users{going_on}. Ctrl-C stops it; run again, it goes on.")

    def _progress(self, done: int) -> None:
        if not self._verbosity:
            return
        text = f"{done} of {self._total} users"
        if self.stdout.isatty():
            self.stdout.write(f"\r{text}", ending="\n" if done >= self._total else "")
            self.stdout.flush()
        elif monotonic() >= self._reported + REPORT:
            self._reported = monotonic()
            self._say(text)

    def _end(self, indexing: Indexing, finished: bool) -> None:
        counts = indexing.counts
        told = f"{counts.stored} stored, {counts.removed} removed, {counts.refused} refused."
        if not finished:
            raise CommandError(f"Stopped: {told} Run it again to go on.", returncode=STOPPED)
        self._say(f"Done: {told}")
        if counts.refused:
            raise CommandError(f"{counts.refused} could not be stored: see the log.")

    def _say(self, text: str) -> None:
        if self._verbosity:
            self.stdout.write(text)
            self.stdout.flush()
