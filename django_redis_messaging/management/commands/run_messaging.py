"""`manage.py run_messaging`: worker, poller and listener in one process."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from ...errors import MessagingError
from ...services.jobs.worker import Limits
from .. import loops
from ..loops import Loop, LoopGroup

if TYPE_CHECKING:
    from ...tasks.backend import RedisBackend


class Command(loops.LoopCommand):
    """Runs worker, poller and listener until a signal ends them."""

    help = (
        "Run worker, poller and listener in one process, for small sites and development. The first signal "
        "lets running tasks finish, the second one releases them. Exit code 0: stopped by a signal or by "
        "--max-time; 1: one of the loops failed, so all were stopped."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", help="alias in TASKS (default: all of this app)")
        loops.add_queues(parser)
        loops.add_limits(parser, "task or timer")
        parser.add_argument("--max-time", type=float, help="end after this many seconds")
        parser.add_argument(
            "--configure",
            action="store_true",
            help="add the flags that handlers need to the server's notify-keyspace-events",
        )
        loops.add_reload(parser)

    def run(self, **options: Any) -> None:
        """Run them."""
        max_time = loops.limits(options, max_time=options["max_time"]).max_time
        limits = loops.limits(options)  # --max-time applies to all loops together
        try:
            running, described = self._loops(options, limits)
        except MessagingError as error:
            raise CommandError(str(error)) from error
        together = LoopGroup(running, max_time=max_time)
        if not options["reload"]:
            loops.at_signals(together.stop)
        self.say(options, f"Running {'; '.join(described)}. Ctrl-C ends it.")
        together.run()
        self.say(options, f"Ended after {_done(running)}.")
        if together.failed:
            failed = " and ".join(together.failed)
            raise CommandError(f"Ended by an error of the {failed}; see the log.")

    def _loops(self, options: dict[str, Any], limits: Limits) -> tuple[dict[str, Loop], list[str]]:
        """The loops by name, and a description of each."""
        running, described = self._workers(options, limits)
        running["poller"] = loops.poller()
        described.append("poller")
        listener = loops.listener(limits, configure=options["configure"])
        if listener is None:
            described.append("no listener (no app has handlers in expiries.py)")
        else:
            running["listener"] = listener
            described.append(f"listener of {loops.describe_handlers()}")
        return running, described

    def _workers(self, options: dict[str, Any], limits: Limits) -> tuple[dict[str, Loop], list[str]]:
        running: dict[str, Loop] = {}
        backends = _chosen(options)
        if not backends:
            return running, ["no worker (TASKS has no backend of this app)"]
        from ...tasks.worker import Worker

        described = []
        for backend in backends:
            queues = loops.chosen_queues(backend, options["queue"])
            running[f"worker of {backend.alias}"] = worker = Worker(backend, queues, limits)
            described.append(f"worker {worker.id} of {', '.join(queues)}")
        return running, described


def _chosen(options: dict[str, Any]) -> list[RedisBackend]:
    """The backends whose tasks are run."""
    if options["backend"] is not None:
        return [loops.chosen_backend(options["backend"])]
    found = list(loops.backends().values())
    if options["queue"] and len(found) != 1:
        aliases = ", ".join(backend.alias for backend in found) or "none"
        raise CommandError(f"--queue needs one backend: name it with --backend (found: {aliases}).")
    return found


def _done(running: dict[str, Loop]) -> str:
    tasks = sum(getattr(loop, "done", 0) for name, loop in running.items() if name != "listener")
    timers = getattr(running.get("listener"), "done", 0)
    return f"{tasks} tasks and {timers} timers"
