"""`manage.py run_worker`: executes tasks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

from .. import loops


class Command(BaseCommand):
    """Runs a worker until a signal, or a limit, ends it."""

    help = "Execute tasks: sync ones in threads, async ones on an event loop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="alias in TASKS (default)")
        parser.add_argument(
            "--queue", action="append", help="a queue to serve, again for more: the first one first (all)"
        )
        loops.add_limits(parser, "task")
        parser.add_argument("--burst", action="store_true", help="end when nothing is ready")
        parser.add_argument("--max-tasks", type=int, help="end after so many tasks")
        parser.add_argument("--max-memory", type=int, help="end when the process holds so much memory (MiB)")
        parser.add_argument("--max-time", type=float, help="end after so many seconds")
        parser.add_argument(
            "--reload", action="store_true", help="begin anew when code changes (development)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        if options["reload"]:
            autoreload.run_with_reloader(self._run, **options)
        else:
            self._run(**options)

    def _run(self, **options: Any) -> None:
        backend = loops.chosen_backend(options["backend"])
        queues = loops.chosen_queues(backend, options["queue"])
        more = {name: options[name] for name in ("burst", "max_tasks", "max_memory", "max_time")}
        limits = loops.limits(options, **more)
        from ...tasks.worker import Worker  # there may be no Tasks, which has been said by now

        worker = Worker(backend, queues, limits)
        if not options["reload"]:
            loops.at_signals(worker.stop)
        if options["verbosity"]:
            self.stdout.write(f"Worker {worker.id} serves {', '.join(queues)}. Ctrl-C ends it.")
            self.stdout.flush()
        worker.run()
        if options["verbosity"]:
            self.stdout.write(f"Worker {worker.id} ended after {worker.done} tasks.")
        if worker.failed:
            raise CommandError("The worker ended by an error: see the log.")
