"""`manage.py redrive`: puts dead jobs back."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import DelayQueue, MessagingError
from ...core import keys
from ...services.expiries.store import TimerStore


class Command(BaseCommand):
    """Puts jobs that are dead back into their queue."""

    help = (
        "Put dead jobs back, with all their attempts before them: of a delay queue, of timers, or of tasks."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("queue", help="name of the queue")
        parser.add_argument("ids", nargs="*", help="ids of jobs (all)")
        parser.add_argument("--timers", action="store_true", help="the queue is a namespace of timers")
        parser.add_argument("--backend", help="the queue is one of this backend of TASKS")

    def handle(self, *args: Any, **options: Any) -> None:
        """Put them back."""
        queue, ids = options["queue"], options["ids"] or None
        try:
            if options["timers"]:
                done = TimerStore().redrive(keys.name(queue, "namespace"), ids)
            elif options["backend"] is None:
                done = DelayQueue(queue).redrive(ids)
            else:
                done = self._tasks(options["backend"], queue, ids)
        except (ImportError, MessagingError, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{done} put back into {queue}.")

    def _tasks(self, alias: str, queue: str, ids: list[str] | None) -> int:
        from ...tasks.polling import our_backends

        for backend in our_backends():
            if backend.alias == alias:
                return backend.store.redrive(queue, ids)
        raise CommandError(f"TASKS has no entry {alias!r} of this app's backend.")
