"""`manage.py run_worker`: executes tasks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...services.jobs.forkserver import inherited_files
from ...services.jobs.worker import Limits
from .. import loops


class Command(loops.LoopCommand):
    """Runs a worker until a signal, or a limit, ends it."""

    help = "Execute tasks in child processes: sync tasks in threads, async tasks on an event loop."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="alias in TASKS (default: default)")
        loops.add_queues(parser)
        loops.add_limits(parser, "task")
        loops.add_processes(parser)
        parser.add_argument("--burst", action="store_true", help="end when no task is ready")
        parser.add_argument("--max-tasks", type=int, help="end after this many tasks")
        parser.add_argument(
            "--max-memory", type=int, help="end when the worker and its child processes use more MiB"
        )
        parser.add_argument("--max-time", type=float, help="end after this many seconds")
        loops.add_reload(parser)

    def run(self, **options: Any) -> None:
        """Run the worker."""
        backend = loops.chosen_backend(options["backend"])
        queues = loops.chosen_queues(backend, options["queue"])
        limits = self._limits(options)
        from ...tasks.worker import Worker  # not at the top: Tasks may be missing

        worker = Worker(backend, queues, limits)
        if files := inherited_files():
            worker.run_as_child(files)
            return
        if not options["reload"]:
            loops.at_signals(worker.stop)
        self.say(options, f"Worker {worker.id} serves {', '.join(queues)}. Ctrl-C ends it.")
        worker.run()
        self.say(options, f"Worker {worker.id} ended after {worker.done} tasks.")
        if worker.failed:
            raise CommandError("The worker ended by an error; see the log.")

    def _limits(self, options: dict[str, Any]) -> Limits:
        names = (
            "burst", "max_tasks", "max_memory", "max_time", "async_concurrency", "max_tasks_per_child",
            "max_memory_per_child", "start_method",
        )  # fmt: skip
        if not self.is_main:  # the command line of this process is that of another program
            if options["start_method"] == "spawn":
                raise CommandError(
                    "--start-method spawn works only if the command is run from the command line."
                )
            options["start_method"] = "fork"
        count = loops.processes(options["processes"], is_main=self.is_main, reload=options["reload"])
        return loops.limits(options, processes=count, **{name: options[name] for name in names})
