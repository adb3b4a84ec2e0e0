"""`manage.py sync_directory`: makes the directories equal to the user model."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ...errors import MessagingError
from ...web.directories import Indexing
from ..loops import Stopping
from ..output import Display, State

#: users in a batch at most
MAX_BATCH = 1000
#: exit code of a run that was stopped by a signal
EXIT_STOPPED = 3


class Command(BaseCommand):
    """Indexes all users in batches, and removes everybody else."""

    help = (
        "Make the directories equal to the user model (see IDENTITY): add users and update their labels, "
        "move them between directories, and remove who is gone, inactive or not allowed to use the pages, "
        "whoever added them. A run that was stopped is continued by the next one. Exit code 0: complete; 1: "
        "an error, or members that could not be stored (see the log); 3: stopped by a signal, run it again "
        "to continue."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--directory",
            action="append",
            default=[],
            help="a directory to fill; repeat for more (all)",
        )
        parser.add_argument("--batch", type=int, default=500, help="users in a batch (default: 500)")
        parser.add_argument("--fresh", action="store_true", help="start anew even if a run was stopped")
        parser.add_argument(
            "--keep",
            action="store_true",
            help="keep members that no run has added: those that other code has added",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the indexing."""
        if not 1 <= options["batch"] <= MAX_BATCH:
            raise CommandError(f"--batch must be between 1 and {MAX_BATCH}.")
        self._verbosity = options["verbosity"]
        display = IndexingDisplay(
            options.get("stderr") or sys.stderr, "Indexing users", silent=not self._verbosity
        )
        stop = Stopping(display.interrupt)
        try:
            indexing = Indexing(
                only=options["directory"],
                batch=options["batch"],
                fresh=options["fresh"],
                strict=not options["keep"],
                stopped=stop.is_set,
                report=display.update,
            )
            stop.listen()
            display.begin(indexing)
            resumed = f", continuing after {indexing.begins_with}" if indexing.begins_with else ""
            self._write(f"Indexing {display.total} users{resumed}. Ctrl-C stops it; the next run continues.")
            with display:
                finished = indexing.run()
        except (MessagingError, ValueError) as error:
            raise CommandError(str(error)) from error
        self._end(indexing, finished)

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


class IndexingDisplay(Display):
    """Users done and in total, and the members that were stored and removed."""

    unit = "user"
    step = "page"

    def begin(self, indexing: Indexing) -> None:
        """Show the progress of this run."""
        self._counts, self._done = indexing.counts, indexing.begins_with
        #: number of users
        self.total = indexing.total()

    def update(self, done: int) -> None:
        """So many users are done."""
        self._done = done

    def state(self) -> State:
        """How far the run is."""
        text = f"{self._counts.stored:,} stored, {self._counts.removed:,} removed"
        return State(text, self._done, self.total)
