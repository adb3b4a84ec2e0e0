"""`manage.py index_contacts`: fills directories from the user model."""

from __future__ import annotations

from argparse import ArgumentParser
from time import monotonic
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ...errors import MessagingError
from ...web.directories import Indexing
from ..loops import Stopping

#: users in a batch at most
MAX_BATCH = 1000
#: seconds between two lines of progress if the output is not a terminal
REPORT_INTERVAL = 10.0
#: exit code of a run that was stopped by a signal
EXIT_STOPPED = 3


class Command(BaseCommand):
    """Indexes all users, in batches."""

    help = (
        "Add all users to their directories (see IDENTITY), under their labels; remove users who may not use "
        "the pages any more, and deleted users whom an earlier run had added. A run that was stopped is "
        "continued by the next one. Exit code 0: complete; 1: an error, or members that could not be stored "
        "(see the log); 3: stopped by a signal, run it again to continue."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        self.add_shared_arguments(parser)
        parser.add_argument(
            "--strict",
            action="store_true",
            help="also remove members that no run has added, so that the directories contain only users",
        )

    def add_shared_arguments(self, parser: ArgumentParser) -> None:
        """Add the options that sync_directory has, too."""
        parser.add_argument(
            "--directory",
            action="append",
            default=[],
            help="a directory to fill; repeat for more (all)",
        )
        parser.add_argument("--batch", type=int, default=500, help="users in a batch (default: 500)")
        parser.add_argument("--fresh", action="store_true", help="start anew even if a run was stopped")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the indexing."""
        if not 1 <= options["batch"] <= MAX_BATCH:
            raise CommandError(f"--batch must be between 1 and {MAX_BATCH}.")
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
        resumed = f", continuing after {indexing.begins_with}" if indexing.begins_with else ""
        self._write(f"Indexing {self._total} users{resumed}. Ctrl-C stops it; the next run continues.")

    def _progress(self, done: int) -> None:
        if not self._verbosity:
            return
        text = f"{done} of {self._total} users"
        if self.stdout.isatty():
            self.stdout.write(f"\r{text}", ending="\n" if done >= self._total else "")
            self.stdout.flush()
        elif monotonic() >= self._reported + REPORT_INTERVAL:
            self._reported = monotonic()
            self._write(text)

    def _end(self, indexing: Indexing, finished: bool) -> None:
        counts = indexing.counts
        summary = f"{counts.stored} stored, {counts.removed} removed, {counts.refused} refused."
        if not finished:
            raise CommandError(f"Stopped: {summary} Run it again to continue.", returncode=EXIT_STOPPED)
        self._write(f"Done: {summary}")
        if counts.refused:
            raise CommandError(f"{counts.refused} could not be stored; see the log.")

    def _write(self, text: str) -> None:
        if self._verbosity:
            self.stdout.write(text)
            self.stdout.flush()
