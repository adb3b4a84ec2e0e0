"""What commands that run loops share: the command itself, signals, options, and the loops."""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import itertools
import logging
import math
import os
import re
import signal
import sys
import threading
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Protocol

from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload
from django.utils.module_loading import import_string

from .. import handlers
from ..core import encoding
from ..core.operations import LoopGuard
from ..errors import InvalidArgument, MessagingError
from ..services.expiries import timers as _expiries  # noqa: F401  (registers its round)
from ..services.history import gauges as _gauges  # noqa: F401  (the same)
from ..services.jobs.poller import Poller
from ..services.jobs.worker import MAX_WEIGHT, Limits
from ..services.listening import Listener
from ..surveys import backends as backends
from ..surveys import tasks_installed as tasks_installed

if TYPE_CHECKING:
    from ..tasks.backend import RedisBackend

logger = logging.getLogger(__name__)

#: seconds that the process gets to end after its loop has ended
EXIT_TIMEOUT = 2.0
#: the last signal that lets a loop end by itself
LAST_SIGNAL = 2
#: seconds that an option may be at most
MAX_SECONDS = 86_400
#: greatest numbers of child processes, of jobs that one process runs in threads, and on its event loop
MAX_PROCESSES, MAX_LANES, MAX_COROUTINES = 64, 1000, 10_000
#: child processes by default, at most
DEFAULT_PROCESSES = 4
NO_HANDLERS = "No handlers found: define some in expiries.py of an installed app."
NO_TASKS = "Tasks need Django 6.0 or the backport: pip install 'django-redis-messaging[tasks]'."
#: seconds; limits each wait: a signal that arrives just before a thread begins to wait doesn't end the wait
GROUP_POLL_INTERVAL = 1.0
#: seconds to wait for loops to end after the second stop(): one may be waiting for an unreachable Redis
GROUP_STOP_TIMEOUT = 10.0
#: a weight as it is written in --queue
_WEIGHT = re.compile(r"[0-9]{1,4}")


class LoopCommand(BaseCommand, ABC):
    """A command that runs a loop until a signal ends it; with --reload, until its code changes."""

    #: whether this process runs nothing but this command
    is_main = False

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command, then end the process, even if threads of tasks or handlers still run."""
        self.is_main = True
        code: Any = 1  # of an unexpected error
        try:
            super().run_from_argv(argv)
            code = 0
        except SystemExit as exiting:
            code = exiting.code
            raise
        finally:
            exit_within(EXIT_TIMEOUT, code if isinstance(code, int) else int(code is not None))

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


def exit_within(seconds: float, code: int) -> None:
    """End the process after this time if it still waits for threads. At its end, Python joins all threads of
    executors, such as those of `asyncio.to_thread`; they can't be interrupted."""
    joined: list[bool] = []
    atexit.register(joined.append, True)  # called after the threads were joined

    def leave() -> None:
        sleep(seconds)
        if joined:
            return
        names = [one.name for one in threading.enumerate() if _is_joined(one)]
        logger.warning("Exiting though these threads have not ended: %s.", ", ".join(names))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    threading.Thread(target=leave, name="exit", daemon=True).start()


def _is_joined(thread: threading.Thread) -> bool:
    """Whether Python waits for this thread before it ends: not for daemons, unless they are of executors."""
    if thread is threading.main_thread():
        return False
    return not thread.daemon or thread in concurrent.futures.thread._threads_queues


def at_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first and second SIGINT or SIGTERM; the third ends the process at once."""
    received = itertools.count(1)

    def handle(*_: object) -> None:
        if next(received) > LAST_SIGNAL:
            os._exit(1)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


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


class Loop(Protocol):
    """Runs until it is stopped: a worker, a poller, a listener. A loop that ended because of an error that it
    has logged has a true attribute `failed`."""

    def run(self) -> None:
        """Run until stopped."""

    def stop(self) -> None:
        """Finish what is running and begin nothing more; a second call ends the loop at once. Safe in a
        signal handler."""


class LoopGroup:
    """Runs loops as if they were one, each in its own thread. When one of them ends, for whatever reason, the
    others are stopped: they finish what is running."""

    def __init__(self, loops: Mapping[str, Loop], *, max_time: float | None = None) -> None:
        #: names of the loops that ended because of an error
        self.failed: list[str] = []
        self._loops = dict(loops)
        self._max_time = max_time
        #: the name of a loop that has ended, or None for a stop. Not an Event: its set() in a signal handler
        #: could deadlock
        self._events: SimpleQueue[str | None] = SimpleQueue()

    def stop(self) -> None:
        """Let all loops finish what is running; a second call ends them at once. Safe in a signal handler."""
        self._events.put(None)

    def run(self) -> None:
        """Run the loops until they are stopped, for `max_time` seconds at most, or until one of them ends."""
        ends = None if self._max_time is None else monotonic() + self._max_time
        for name in self._loops:
            threading.Thread(target=self._run_loop, args=(name,), name=name, daemon=True).start()
        running, stops = set(self._loops), 0
        while running:
            ended = self._next_event(ends)
            if ended is not None:
                running.discard(ended)
                if stops:
                    continue
            elif stops > 1 and ends is not None and monotonic() >= ends:
                logger.warning("Exiting though these loops have not ended: %s.", ", ".join(sorted(running)))
                return
            stops += 1
            ends = None if stops == 1 else monotonic() + GROUP_STOP_TIMEOUT
            for name in running:
                self._loops[name].stop()

    def _next_event(self, ends: float | None) -> str | None:
        """The name of a loop that has ended; None if the loops must stop: on request, or at `ends`."""
        while ends is None or monotonic() < ends:
            timeout = (
                GROUP_POLL_INTERVAL if ends is None else min(GROUP_POLL_INTERVAL, max(ends - monotonic(), 0))
            )
            with suppress(Empty):
                return self._events.get(timeout=timeout)
        return None

    def _run_loop(self, name: str) -> None:
        loop = self._loops[name]
        message, fail = "The %s failed; stopping the other loops.", partial(self.failed.append, name)
        try:
            with LoopGuard(logger, message, name, on_failure=fail):
                loop.run()
                if getattr(loop, "failed", False):
                    fail()
        finally:
            self._events.put(name)


def add_queues(parser: ArgumentParser) -> None:
    """Add --queue."""
    parser.add_argument(
        "--queue",
        action="append",
        help="a queue to serve, or NAME=WEIGHT; repeat for more. Without weights, the first is served first; "
        "with weights, each has its share (default: all)",
    )


def add_limits(parser: ArgumentParser, what: str) -> None:
    """Add the options of a worker or listener: how many run at a time, lease, drain."""
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


def add_processes(parser: ArgumentParser) -> None:
    """Add the options of child processes."""
    parser.add_argument(
        "--processes",
        type=int,
        help="child processes that run tasks; 0: tasks run in the process of the worker (default: as many as "
        f"there are processors, {DEFAULT_PROCESSES} at most)",
    )
    parser.add_argument(
        "--async-concurrency",
        type=int,
        default=200,
        help="async tasks that one process runs at a time (default: 200)",
    )
    parser.add_argument(
        "--max-tasks-per-child", type=int, help="replace a child process after this many tasks"
    )
    parser.add_argument(
        "--max-memory-per-child",
        type=int,
        help="replace a child process that uses more MiB, when its tasks have ended",
    )
    parser.add_argument(
        "--start-method",
        choices=("fork", "spawn"),
        help="fork child processes from one that has loaded the site, or let each load it (default: fork on "
        "Linux, unless the site has started threads)",
    )


def processes(asked: int | None, *, is_main: bool, reload: bool) -> int:
    """The number of child processes; raises CommandError. A command that Python code has called starts none
    unless it is asked to: the process may have threads, and does other things."""
    if asked is None:
        return usable_processors(DEFAULT_PROCESSES) if is_main and not reload and hasattr(os, "fork") else 0
    if not 0 <= asked <= MAX_PROCESSES:
        raise CommandError(f"--processes must be between 0 and {MAX_PROCESSES}.")
    if asked and reload:
        raise CommandError("--reload runs tasks in its own process: use --processes 0 with it.")
    if asked and not hasattr(os, "fork"):
        raise CommandError("This system has no fork(): use --processes 0.")
    return asked


def usable_processors(most: int, root: Path = Path("/")) -> int:
    """How many processors this process may use, up to `most`: by its affinity and its cgroup's quota."""
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(affine, most, math.ceil(min(_cpu_quotas(root), default=most))), 1)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """The quotas, in processors, of the cgroups of this process, and of those above them. In a container, the
    path may be that of the host: then only the topmost one is found."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
            for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
                with suppress(OSError, ValueError, ZeroDivisionError):
                    yield _cpu_quota(top / str(folder).lstrip("/"))


def _cpu_quota(cgroup: Path) -> float:
    """The quota of one cgroup, of version 2 or 1; raises OSError or ValueError if it has none."""
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
    except FileNotFoundError:
        quota = (cgroup / "cpu.cfs_quota_us").read_text(encoding="ascii")
        period = (cgroup / "cpu.cfs_period_us").read_text(encoding="ascii")
    if int(quota) < 0:
        raise ValueError("no quota")
    return int(quota) / int(period)


def limits(options: dict[str, Any], **more: Any) -> Limits:
    """The limits that the options set; raises CommandError for values out of range."""
    if not 1 <= options["concurrency"] <= MAX_LANES:
        raise CommandError(f"--concurrency must be between 1 and {MAX_LANES}.")
    if not 1 <= options["lease"] <= MAX_SECONDS:
        raise CommandError(f"--lease must be between 1 and {MAX_SECONDS} seconds.")
    if not 0 <= options["drain"] <= MAX_SECONDS:
        raise CommandError(f"--drain must be between 0 and {MAX_SECONDS} seconds.")
    if not 1 <= more.get("async_concurrency", 1) <= MAX_COROUTINES:
        raise CommandError(f"--async-concurrency must be between 1 and {MAX_COROUTINES}.")
    for name, value in more.items():
        if name.startswith("max_") and value is not None and not value >= 1:
            raise CommandError(f"--{name.replace('_', '-')} must be at least 1.")
    return Limits(concurrency=options["concurrency"], lease=options["lease"], drain=options["drain"], **more)


def add_reload(parser: ArgumentParser) -> None:
    """Add --reload."""
    parser.add_argument("--reload", action="store_true", help="restart when code changes (development)")


def imported_function(path: str, what: str) -> Callable[..., Any]:
    """The function at a dotted path, or a CommandError that names the option."""
    try:
        found = import_string(path)
    except ImportError as error:
        raise CommandError(f"{what} {path!r} can't be imported: {error}") from error
    if not callable(found):
        raise CommandError(f"{what} {path!r} is not a function.")
    return found  # type: ignore[no-any-return]


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


def chosen_queues(backend: RedisBackend, named: Sequence[str] | None) -> list[str] | dict[str, int]:
    """The queues that a worker serves: the named ones, with their weights if there are any, or all."""
    pairs = [_weighted(backend, one) for one in named or backend.queue_names]
    weights = dict(pairs)
    if named and len(weights) < len(pairs):
        raise CommandError("--queue must name each queue once.")
    if not weights:
        raise CommandError("QUEUES of this backend is empty: name the queues to serve with --queue.")
    unknown = weights.keys() - backend.queues if backend.queues else set()
    if unknown:
        raise CommandError(f"This backend has no queue {sorted(unknown)[0]!r}: add it to QUEUES.")
    if not any(weights.values()):
        return list(weights)
    return {queue: weight or 1 for queue, weight in weights.items()}


def _weighted(backend: RedisBackend, text: str) -> tuple[str, int]:
    """A queue and its weight; 0 if none was given. The name of a queue may itself contain a "="."""
    queue, sign, weight = text.rpartition("=")
    if not sign or text in backend.queues:
        queue, weight = text, ""
    elif not _WEIGHT.fullmatch(weight) or not 1 <= int(weight) <= MAX_WEIGHT:
        raise CommandError(f"--queue {text[:300]}: the weight must be a number between 1 and {MAX_WEIGHT}.")
    try:
        encoding.name(queue, "--queue: the name of a queue")
    except InvalidArgument as error:
        raise CommandError(str(error)) from error
    return queue, int(weight or 0)


def poller() -> Poller:
    """A poller with the rounds of all capabilities; raises CommandError for invalid periodic tasks."""
    if tasks_installed():
        from ..tasks.occurrences import discover  # the module registers its rounds

        try:
            discover()
        except MessagingError as error:
            raise CommandError(str(error)) from error
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
