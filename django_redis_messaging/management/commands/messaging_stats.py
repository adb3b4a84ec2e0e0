"""`manage.py messaging_stats`: how many jobs are in each state, and how fast they end."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from contextlib import suppress
from itertools import groupby
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError

from ... import MessagingError, conf
from ...core.commands import batched
from ...core.encoding import current_prefix
from ...core.operations import perform
from ...services.expiries.timers import TimerEngine
from ...services.jobs.engine import Engine, Paused, registered_queues
from ...services.jobs.keys import queues_key
from ...services.jobs.load import Counted, count_queues
from ...services.jobs.queue import ONLY_QUEUE
from .. import loops
from ..loops import GROUP_POLL_INTERVAL, MAX_SECONDS, Stopping
from ..output import printable, table

if TYPE_CHECKING:
    from ...tasks.backend import RedisBackend


Row = dict[str, Any]
#: queues that are counted in one round trip
PIPELINE_SIZE = 100
#: seconds between two tables, at least
MIN_INTERVAL = 0.1
#: moves the cursor of a terminal to its first line, and clears what is below
CLEAR = "\x1b[H\x1b[J"
COLUMNS = ("ready", "delayed", "leased", "dead", "parked", "oldest_age", "throughput", "time_to_drain")


class Command(BaseCommand):
    """Prints a table, or JSON."""

    help = (
        "Show queues of jobs, timers and tasks: how many jobs are in each state, and the age of the oldest "
        "ready one; how many end per second, and when no job will be ready at this rate; and what is paused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")
        parser.add_argument(
            "--watch",
            type=float,
            nargs="?",
            const=2.0,
            metavar="SECONDS",
            help="repeat until a signal ends it (default: every 2 s); JSON has a line for each time",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them."""
        interval, as_json = options["watch"], options["json"]
        if interval is not None:
            if not MIN_INTERVAL <= interval <= MAX_SECONDS:
                raise CommandError(f"--watch must be between {MIN_INTERVAL} and {MAX_SECONDS} seconds.")
            self._watch(interval, as_json)
            return
        try:
            rows = _all()
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(rows, indent=2) if as_json else _table(rows))

    def _watch(self, interval: float, as_json: bool) -> None:
        """Print them until a signal ends it; while Redis fails, the error."""
        stopped: SimpleQueue[None] = SimpleQueue()
        Stopping(lambda: stopped.put(None)).listen()
        while True:
            began = monotonic()
            try:
                rows = _all()
                self._show(json.dumps(rows) if as_json else _table(rows))
            except MessagingError as error:
                self.stderr.write(str(error))
            while (left := interval - (monotonic() - began)) > 0:
                with suppress(Empty):
                    return stopped.get(timeout=min(left, GROUP_POLL_INTERVAL))
            with suppress(Empty):
                return stopped.get_nowait()

    def _show(self, text: str) -> None:
        """Print a text in place of the one before, where that is possible."""
        try:
            if self.stdout.isatty():
                self.stdout.write(CLEAR, ending="")
            self.stdout.write(text)
            self.stdout.flush()
        except BrokenPipeError:  # as with `| head`: the rest must not be flushed at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit()


def _all() -> list[Row]:
    return count([*delay_queues(), *timers(), *tasks()])


class Queue(NamedTuple):
    """A queue whose jobs are counted."""

    title: str
    using: str
    engine: Engine
    name: str


def delay_queues() -> list[Queue]:
    """The delay queues."""
    using, prefix = conf.alias(), current_prefix()
    names = perform(using, registered_queues(queues_key(prefix)))
    return [Queue(name, using, Engine(prefix, "queue", name), ONLY_QUEUE) for name in sorted(names)]


def timers() -> list[Queue]:
    """The namespaces of timers."""
    using, engine = conf.alias(), TimerEngine(current_prefix())
    namespaces = perform(using, engine.namespaces())
    return [Queue(f"timers {name}", using, engine, name) for name in sorted(namespaces)]


def tasks() -> list[Queue]:
    """The queues of tasks."""
    return [queue for backend in loops.backends().values() for queue in tasks_of(backend)]


def tasks_of(backend: RedisBackend) -> list[Queue]:
    """The queues of a backend."""
    return [
        Queue(f"tasks {backend.alias}/{queue}", backend.using, backend.engine, queue)
        for queue in backend.serving()
    ]


def count(queues: list[Queue]) -> list[Row]:
    """One row for each queue."""
    rows: list[Row] = []
    for using, group in groupby(queues, key=lambda queue: queue.using):
        for page in batched(group, PIPELINE_SIZE):
            counted = perform(using, count_queues([(one.engine, one.name) for one in page]))
            rows += [_row(one.title, found) for one, found in zip(page, counted, strict=True)]
    return rows


def _row(title: str, counted: Counted) -> Row:
    return {
        "queue": title,
        **{column: getattr(counted.load, column) for column in COLUMNS},
        "paused": None if counted.pause is None else _pause(counted.pause),
        "paused_tasks": {one.task: _pause(one) for one in counted.paused_tasks},
    }


def _pause(paused: Paused) -> Row:
    return {"since": paused.since.isoformat(timespec="seconds"), "by": paused.by, "reason": paused.reason}


def _table(rows: list[Row]) -> str:
    if not rows:
        return "There are no queues yet."
    head = ("queue", *COLUMNS)
    lines = table([head, *([_cell(column, row[column]) for column in head] for row in rows)])
    pauses = {row["queue"]: row["paused"] for row in rows if row["paused"]}
    for row in rows:
        pauses |= row["paused_tasks"]
    return "\n".join([lines, *map(_pause_line, pauses, pauses.values())])


def _pause_line(what: str, pause: Row) -> str:
    by, reason = (
        f" by {pause['by']}" if pause["by"] else "",
        f": {pause['reason']}" if pause["reason"] else "",
    )
    return printable(f"{what} is paused since {pause['since']}{by}{reason}")


def _cell(column: str, value: Any) -> str:
    if value is None:
        return "-"
    unit = "/s" if column == "throughput" else " s"
    return f"{value:.1f}{unit}" if isinstance(value, float) else str(value)
