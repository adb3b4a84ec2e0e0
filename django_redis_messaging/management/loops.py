"""Shared by the commands that run loops: their options, the loops made of them, signals."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload
from django.utils.module_loading import import_string

from .. import handlers
from ..services.expiries import polling as _expiries  # noqa: F401  (registers its round)
from ..services.jobs.limits import Limits
from ..services.listening import Listener
from ..services.polling import Poller

if TYPE_CHECKING:
    from ..tasks.backend import RedisBackend

#: seconds that an option may be at most
MAX_SECONDS = 86_400

NO_HANDLERS = "No handlers found: define some in expiries.py of an installed app."
NO_TASKS = "Tasks need Django 6.0 or the backport: pip install 'django-redis-messaging[tasks]'."


class Stopping:
    """Set by the first signal, which also calls `on_stop`; the second signal ends the process."""

    def __init__(self, on_stop: Callable[[], None] | None = None) -> None:
        self._is_set = False
        self._on_stop = on_stop

    def is_set(self) -> bool:
        """Whether the loop has to end."""
        return self._is_set

    def listen(self) -> None:
        """From now on, be set by a signal."""
        at_signals(self._stop)

    def _stop(self) -> None:
        self._is_set = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if self._on_stop is not None:
            self._on_stop()


class LoopCommand(BaseCommand, ABC):
    """A command that runs a loop until a signal ends it; with --reload, until its code changes."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the loop; with --reload, restart it when code changes."""
        if options.get("reload"):
            autoreload.run_with_reloader(self.run, **options)
        else:
            self.run(**options)

    @abstractmethod
    def run(self, **options: Any) -> None:
        """Make the loop from the options, and run it."""

    def say(self, options: dict[str, Any], text: str) -> None:
        """Write a line to standard output."""
        if options["verbosity"]:
            self.stdout.write(text)
            self.stdout.flush()


def add_reload(parser: ArgumentParser) -> None:
    """Add --reload."""
    parser.add_argument("--reload", action="store_true", help="restart when code changes (development)")


def add_queues(parser: ArgumentParser) -> None:
    """Add --queue."""
    parser.add_argument(
        "--queue",
        action="append",
        help="a queue to serve; repeat for more, the first is served first (default: all)",
    )


def at_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at every SIGINT and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop())


def imported_function(path: str, what: str) -> Callable[..., Any]:
    """The function at a dotted path, or a CommandError that names the option."""
    try:
        found = import_string(path)
    except ImportError as error:
        raise CommandError(f"{what} {path!r} can't be imported: {error}") from error
    if not callable(found):
        raise CommandError(f"{what} {path!r} is not a function.")
    return found  # type: ignore[no-any-return]


def add_limits(parser: ArgumentParser, what: str) -> None:
    """Add the options of a worker or listener."""
    parser.add_argument("--concurrency", type=int, default=4, help=f"{what}s that run at a time (default: 4)")
    parser.add_argument(
        "--lease",
        type=float,
        default=30.0,
        help=f"seconds after which a {what} whose process was lost is run by another (default: 30)",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=30.0,
        help=f"seconds that each running {what} gets to finish (default: 30)",
    )


def limits(options: dict[str, Any], **more: Any) -> Limits:
    """The limits of these options; raises CommandError for values out of range."""
    if options["concurrency"] < 1 or not 1 <= options["lease"] <= MAX_SECONDS:
        raise CommandError(f"--concurrency must be at least 1, --lease between 1 and {MAX_SECONDS} seconds.")
    if not 0 <= options["drain"] <= MAX_SECONDS:
        raise CommandError(f"--drain must be between 0 and {MAX_SECONDS} seconds.")
    for name in more.keys() & {"max_tasks", "max_memory", "max_time"}:
        if more[name] is not None and not more[name] >= 1:
            raise CommandError(f"--{name.replace('_', '-')} must be at least 1.")
    return Limits(concurrency=options["concurrency"], lease=options["lease"], drain=options["drain"], **more)


def tasks_installed() -> bool:
    """Whether Django's Tasks framework, or its backport, is installed."""
    return any(find_spec(name) is not None for name in ("django.tasks", "django_tasks"))


def backends() -> dict[str, RedisBackend]:
    """The backends of TASKS that are this app's, by alias; none where Django's Tasks are not installed."""
    if not tasks_installed():
        return {}
    from ..tasks.polling import our_backends

    return {backend.alias: backend for backend in our_backends()}


def chosen_backend(alias: str) -> RedisBackend:
    """The backend of this alias, or a CommandError that lists the backends."""
    if not tasks_installed():
        raise CommandError(NO_TASKS)
    found = backends()
    if alias not in found:
        raise CommandError(
            f"TASKS has no entry {alias!r} whose BACKEND is "
            f"django_redis_messaging.tasks.RedisBackend (found: {', '.join(found) or 'none'})."
        )
    return found[alias]


def chosen_queues(backend: RedisBackend, named: Sequence[str] | None) -> list[str]:
    """The queues that a worker serves: the named ones, or all."""
    queues = list(named or backend.queue_names)
    if not queues:
        raise CommandError("QUEUES of this backend is empty: name the queues to serve with --queue.")
    unknown = set(queues) - backend.queues if backend.queues else set()
    if unknown:
        raise CommandError(f"This backend has no queue {sorted(unknown)[0]!r}: add it to QUEUES.")
    return queues


def poller() -> Poller:
    """A poller with the rounds of all capabilities."""
    if tasks_installed():
        from ..tasks import polling  # noqa: F401  (registers its rounds)
    return Poller()


def listener(bounds: Limits, *, configure: bool) -> Listener | None:
    """A listener for the handlers of all apps; None if there are none."""
    handlers.discover()
    if not handlers.timers and not handlers.key_events:
        return None
    return Listener(handlers.timers, handlers.key_events, bounds, configure=configure)


def describe_handlers() -> str:
    """What a listener listens for, as text."""
    parts = [f"timers of {namespace}" for namespace in handlers.timers]
    parts += [f"keys {one.pattern}" for one in handlers.key_events]
    return ", ".join(parts)
