"""`manage.py messaging_stats`: how many jobs are in each state, and how fast they end."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import MessagingError, surveys
from ...services.jobs.engine import Paused
from ...services.jobs.load import Counted
from ...services.jobs.sources import Queue
from ..loops import GROUP_POLL_INTERVAL, MAX_SECONDS, Stopping
from ..output import printable, table

Row = dict[str, Any]
#: queues that are listed of each Redis
MAX_QUEUES = 10_000
#: kind of a queue → what the first column says, in the order of the rows
TITLES = {"delay": "{0.name}", "timers": "timers {0.name}", "tasks": "tasks {0.where}/{0.name}"}
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
    return [row for _, row in all_rows()]


def all_rows() -> list[tuple[Queue, Row]]:
    """The queues, each with its row."""
    queues = sorted(surveys.all_queues(MAX_QUEUES), key=lambda one: list(TITLES).index(one.kind))
    counted = surveys.count((one.using, one.engine, one.stored) for one in queues)
    return [
        (one, _row(TITLES[one.kind].format(one), found)) for one, found in zip(queues, counted, strict=True)
    ]


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
