"""`manage.py messaging_resume`: ends a pause."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import DelayQueue, MessagingError
from .. import loops
from .messaging_pause import add_what


class Command(BaseCommand):
    """Resumes a queue or a task."""

    help = "Have workers start the jobs of a paused queue or task again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        add_what(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Resume it."""
        try:
            if options["delay_queue"]:
                was_paused = DelayQueue(options["queue"]).resume()
            else:
                backend = loops.chosen_backend(options["backend"])
                was_paused = backend.resume(options["queue"], task=options["task"])
        except MessagingError as error:
            raise CommandError(str(error)) from error
        what = options["task"] or options["queue"]
        self.stdout.write(f"{what} is resumed." if was_paused else f"{what} was not paused.")
