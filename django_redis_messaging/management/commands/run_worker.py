"""`manage.py run_worker`: executes tasks."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

#: seconds: more is a mistake
LONGEST = 86_400


class Command(BaseCommand):
    """Runs a worker until a signal, or a limit, ends it."""

    help = "Execute tasks: sync ones in threads, async ones on an event loop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="alias in TASKS (default)")
        parser.add_argument(
            "--queue", action="append", help="a queue to serve, again for more: the first one first (all)"
        )
        parser.add_argument("--concurrency", type=int, default=4, help="tasks at a time (4)")
        parser.add_argument(
            "--lease",
            type=float,
            default=30.0,
            help="seconds until a lost worker's task is given to another (30)",
        )
        parser.add_argument("--burst", action="store_true", help="end when nothing is ready")
        parser.add_argument("--max-tasks", type=int, help="end after so many tasks")
        parser.add_argument("--max-memory", type=int, help="end when the process holds so much memory (MiB)")
        parser.add_argument(
            "--drain", type=float, default=30.0, help="seconds that running tasks get to end (30)"
        )
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
        try:
            from ...tasks.polling import our_backends
            from ...tasks.worker import Limits, Worker
        except ImportError as error:
            raise CommandError(str(error)) from error
        backends = {backend.alias: backend for backend in our_backends()}
        backend = backends.get(options["backend"])
        if backend is None:
            raise CommandError(
                f"TASKS has no entry {options['backend']!r} whose BACKEND is "
                f"django_redis_messaging.tasks.RedisBackend (there is: {', '.join(backends) or 'none'})."
            )
        queues = options["queue"] or backend.queue_names
        if not queues:
            raise CommandError("QUEUES of this backend is empty, so name the queues to serve: --queue.")
        unknown = set(queues) - backend.queues if backend.queues else set()
        if unknown:
            raise CommandError(f"This backend has no queue {sorted(unknown)[0]!r}: add it to QUEUES.")
        _check(options)
        limits = Limits(
            concurrency=options["concurrency"],
            lease=options["lease"],
            burst=options["burst"],
            max_tasks=options["max_tasks"],
            max_memory=options["max_memory"],
            drain=options["drain"],
        )
        worker = Worker(backend, queues, limits)
        if not options["reload"]:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: worker.stop())
        if options["verbosity"]:
            self.stdout.write(f"Worker {worker.id} serves {', '.join(queues)}. Ctrl-C ends it.")
            self.stdout.flush()
        worker.run()
        if options["verbosity"]:
            self.stdout.write(f"Worker {worker.id} ended after {worker.done} tasks.")
        if worker.failed:
            raise CommandError("The worker ended by an error: see the log.")


def _check(options: dict[str, Any]) -> None:
    if options["concurrency"] < 1 or not 1 <= options["lease"] <= LONGEST:
        raise CommandError(f"--concurrency is at least 1, --lease is 1 to {LONGEST} seconds.")
    if not 0 <= options["drain"] <= LONGEST:
        raise CommandError(f"--drain is 0 to {LONGEST} seconds.")
    for name in ("max_tasks", "max_memory"):
        if options[name] is not None and options[name] < 1:
            raise CommandError(f"--{name.replace('_', '-')} is at least 1.")
