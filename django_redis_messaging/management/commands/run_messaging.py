"""`manage.py run_messaging`: worker, poller and listener in one process."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from ...errors import MessagingError
from ...services.jobs.limits import Limits
from ...services.together import Loop, Together
from .. import loops

if TYPE_CHECKING:
    from ...tasks.backend import RedisBackend


class Command(loops.LoopCommand):
    """Runs all that there is to run until a signal ends it."""

    help = (
        "Worker, poller and listener in one process, for small sites and development. The first signal lets "
        "what runs end, the second one gives it back. Exit code 0: it was told to end, or --max-time is "
        "over; 1: one of them ended by an error, so all did."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", help="alias in TASKS (all that are of this app)")
        loops.add_queues(parser)
        loops.add_limits(parser, "task or timer")
        parser.add_argument("--max-time", type=float, help="end after so many seconds")
        parser.add_argument(
            "--configure",
            action="store_true",
            help="add the flags that handlers need to the server's notify-keyspace-events",
        )
        loops.add_reload(parser)

    def run(self, **options: Any) -> None:
        """Run them."""
        max_time = loops.limits(options, max_time=options["max_time"]).max_time
        limits = loops.limits(options)  # it is for all together to end in time
        try:
            running, told = self._loops(options, limits)
        except MessagingError as error:
            raise CommandError(str(error)) from error
        together = Together(running, max_time=max_time)
        if not options["reload"]:
            loops.at_signals(together.stop)
        self.say(options, f"Running {'; '.join(told)}. Ctrl-C ends it.")
        together.run()
        self.say(options, f"Ended after {_done(running)}.")
        if together.failed:
            names = " and ".join(together.failed)
            raise CommandError(f"Ended by an error of the {names}: see the log.")

    def _loops(self, options: dict[str, Any], limits: Limits) -> tuple[dict[str, Loop], list[str]]:
        """What there is to run, by name, and what is to be said of it."""
        running, told = self._workers(options, limits)
        running["poller"] = loops.poller()
        told.append("poller")
        listener = loops.listener(limits, configure=options["configure"])
        if listener is None:
            told.append("no listener (no app has handlers in expiries.py)")
        else:
            running["listener"] = listener
            told.append(f"listener of {loops.heard()}")
        return running, told

    def _workers(self, options: dict[str, Any], limits: Limits) -> tuple[dict[str, Loop], list[str]]:
        running: dict[str, Loop] = {}
        backends = _chosen(options)
        if not backends:
            return running, ["no worker (TASKS has no backend of this app)"]
        from ...tasks.worker import Worker

        told = []
        for backend in backends:
            queues = loops.chosen_queues(backend, options["queue"])
            running[f"worker of {backend.alias}"] = worker = Worker(backend, queues, limits)
            told.append(f"worker {worker.id} of {', '.join(queues)}")
        return running, told


def _chosen(options: dict[str, Any]) -> list[RedisBackend]:
    """The backends to work for; none, where there are none."""
    if options["backend"] is not None:
        return [loops.chosen_backend(options["backend"])]
    try:
        found = list(loops.backends().values())
    except ImportError:
        found = []
    if options["queue"] and len(found) != 1:
        there = ", ".join(backend.alias for backend in found) or "none"
        raise CommandError(f"--queue is of one backend: name it by --backend (there is: {there}).")
    return found


def _done(running: dict[str, Loop]) -> str:
    tasks = sum(getattr(loop, "done", 0) for name, loop in running.items() if name != "listener")
    timers = getattr(running.get("listener"), "done", 0)
    return f"{tasks} tasks and {timers} timers"
