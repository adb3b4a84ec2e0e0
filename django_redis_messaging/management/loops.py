"""What the commands share that run loops: their options, how loops are made of them, signals."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

from .. import handlers
from ..services.expiries import polling as _expiries  # noqa: F401  (registers its round)
from ..services.jobs.limits import Limits
from ..services.listening import Listener
from ..services.polling import Poller

if TYPE_CHECKING:
    from ..tasks.backend import RedisBackend

#: seconds: more is a mistake
LONGEST = 86_400

NO_HANDLERS = "There are no handlers: write some in expiries.py of an installed app."


class Stopping:
    """Set by the first signal; the second one ends the process."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Whether to end."""
        return self._is_set

    def listen(self) -> None:
        """Be set by a signal from now on."""
        at_signals(self._stop)

    def _stop(self) -> None:
        self._is_set = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


class LoopCommand(BaseCommand, ABC):
    """A command that runs a loop until a signal ends it; with --reload, until its code changes."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it, again and again where that is wanted."""
        if options.get("reload"):
            autoreload.run_with_reloader(self.run, **options)
        else:
            self.run(**options)

    @abstractmethod
    def run(self, **options: Any) -> None:
        """Make the loop of its options, and run it."""

    def say(self, options: dict[str, Any], text: str) -> None:
        """A line for whoever watches."""
        if options["verbosity"]:
            self.stdout.write(text)
            self.stdout.flush()


def add_reload(parser: ArgumentParser) -> None:
    """Add the option to begin anew."""
    parser.add_argument("--reload", action="store_true", help="begin anew when code changes (development)")


def add_queues(parser: ArgumentParser) -> None:
    """Add the option that names queues of tasks."""
    parser.add_argument(
        "--queue", action="append", help="a queue to serve, again for more: the first one first (all)"
    )


def at_signals(stop: Callable[[], None]) -> None:
    """Have SIGINT and SIGTERM, each time, call this."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop())


def add_limits(parser: ArgumentParser, what: str) -> None:
    """Add the options of whatever executes things under leases."""
    parser.add_argument("--concurrency", type=int, default=4, help=f"{what}s at a time (4)")
    parser.add_argument(
        "--lease",
        type=float,
        default=30.0,
        help=f"seconds until a {what} that was lost with its process is given to another (30)",
    )
    parser.add_argument(
        "--drain", type=float, default=30.0, help=f"seconds that each running {what} gets to end (30)"
    )


def limits(options: dict[str, Any], **more: Any) -> Limits:
    """What these options say; raises CommandError where that can't be."""
    if options["concurrency"] < 1 or not 1 <= options["lease"] <= LONGEST:
        raise CommandError(f"--concurrency is at least 1, --lease is 1 to {LONGEST} seconds.")
    if not 0 <= options["drain"] <= LONGEST:
        raise CommandError(f"--drain is 0 to {LONGEST} seconds.")
    for name in more.keys() & {"max_tasks", "max_memory", "max_time"}:
        if more[name] is not None and not more[name] >= 1:
            raise CommandError(f"--{name.replace('_', '-')} is at least 1.")
    return Limits(concurrency=options["concurrency"], lease=options["lease"], drain=options["drain"], **more)


def backends() -> dict[str, RedisBackend]:
    """The backends of TASKS that are this app's, by alias; ImportError without Django's Tasks."""
    from ..tasks.polling import our_backends

    return {backend.alias: backend for backend in our_backends()}


def chosen_backend(alias: str) -> RedisBackend:
    """The backend of this alias, or a CommandError that says which there are."""
    try:
        found = backends()
    except ImportError as error:
        raise CommandError(str(error)) from error
    if alias not in found:
        raise CommandError(
            f"TASKS has no entry {alias!r} whose BACKEND is "
            f"django_redis_messaging.tasks.RedisBackend (there is: {', '.join(found) or 'none'})."
        )
    return found[alias]


def chosen_queues(backend: RedisBackend, named: Sequence[str] | None) -> list[str]:
    """The queues that a worker serves: those named, or all."""
    queues = list(named or backend.queue_names)
    if not queues:
        raise CommandError("QUEUES of this backend is empty, so name the queues to serve: --queue.")
    unknown = set(queues) - backend.queues if backend.queues else set()
    if unknown:
        raise CommandError(f"This backend has no queue {sorted(unknown)[0]!r}: add it to QUEUES.")
    return queues


def poller() -> Poller:
    """A poller that does all that is due by time."""
    with suppress(ImportError):  # without Django's Tasks there are only delay queues and timers
        from ..tasks import polling  # noqa: F401  (registers its rounds)
    return Poller()


def listener(bounds: Limits, *, configure: bool) -> Listener | None:
    """A listener for the handlers of all apps; None where there are none."""
    handlers.discover()
    if not handlers.timers and not handlers.key_events:
        return None
    return Listener(handlers.timers, handlers.key_events, bounds, configure=configure)


def heard() -> str:
    """What a listener listens for, in words."""
    parts = [f"timers of {namespace}" for namespace in handlers.timers]
    parts += [f"keys {one.pattern}" for one in handlers.key_events]
    return ", ".join(parts)
