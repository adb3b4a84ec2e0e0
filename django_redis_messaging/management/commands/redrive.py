"""`manage.py redrive`: requeues dead jobs."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import DelayQueue, MessagingError, conf
from ...core import encoding
from ...core.operations import perform
from ...services.common.arguments import milliseconds
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
        parser.add_argument(
            "--delay", type=float, default=0.0, help="seconds until the jobs are due (default: 0)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Requeue them."""
        queue, ids, delay = options["queue"], options["ids"] or None, options["delay"]
        try:
            if options["timers"]:
                count = _timers(queue, ids, delay)
            elif options["backend"] is None:
                count = DelayQueue(queue).redrive(ids, delay=delay)
            else:
                count = _tasks(options["backend"], queue, ids, delay)
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{count} requeued in {queue}.")


def _timers(namespace: str, ids: list[str] | None, delay: float) -> int:
    engine = TimerEngine(encoding.current_prefix())
    wait = milliseconds(delay, "--delay")
    return perform(conf.alias(), engine.redrive(encoding.name(namespace, "namespace"), ids, wait))


def _tasks(alias: str, queue: str, ids: list[str] | None, delay: float) -> int:
    wait = timedelta(milliseconds=milliseconds(delay, "--delay"))
    return loops.chosen_backend(alias).redrive(queue, ids, run_after=wait)
