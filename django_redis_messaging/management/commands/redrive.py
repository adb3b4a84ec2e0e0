"""`manage.py redrive`: requeues dead jobs."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import DelayQueue, MessagingError, conf
from ...core import encoding
from ...core.operations import perform
from ...services.expiries.timers import TimerEngine
from .. import loops


class Command(BaseCommand):
    """Requeues dead jobs, timers or tasks."""

    help = "Requeue dead jobs of a delay queue, dead timers, or dead tasks, with all their attempts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("queue", help="name of the queue")
        parser.add_argument("ids", nargs="*", help="ids of jobs (default: all)")
        parser.add_argument("--timers", action="store_true", help="the queue is a namespace of timers")
        parser.add_argument("--backend", help="the queue belongs to this backend of TASKS")

    def handle(self, *args: Any, **options: Any) -> None:
        """Requeue them."""
        queue, ids = options["queue"], options["ids"] or None
        try:
            if options["timers"]:
                count = _timers(queue, ids)
            elif options["backend"] is None:
                count = DelayQueue(queue).redrive(ids)
            else:
                count = _tasks(options["backend"], queue, ids)
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{count} requeued in {queue}.")


def _timers(namespace: str, ids: list[str] | None) -> int:
    engine = TimerEngine(encoding.current_prefix())
    return perform(conf.alias(), engine.redrive(encoding.name(namespace, "namespace"), ids))


def _tasks(alias: str, queue: str, ids: list[str] | None) -> int:
    backend = loops.chosen_backend(alias)
    return perform(backend.using, backend.engine.redrive(queue, ids))
