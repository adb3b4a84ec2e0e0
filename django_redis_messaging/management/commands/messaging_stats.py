"""`manage.py messaging_stats`: how many jobs are where."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import DelayQueue, MessagingError
from ...services.expiries.store import TimerStore
from ...services.jobs.registry import Queues

COLUMNS = ("ready", "delayed", "leased", "dead", "oldest_age")


class Command(BaseCommand):
    """Prints a table, or JSON."""

    help = "Show the queues of jobs, timers and tasks: ready, delayed, leased, dead, age of the oldest."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them."""
        try:
            rows = [*delay_queues(), *timers(), *tasks()]
        except MessagingError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(rows, indent=2) if options["json"] else _table(rows))


def delay_queues() -> list[dict[str, Any]]:
    """One row for each delay queue."""
    found = []
    for name in sorted(Queues().names()):
        stats = DelayQueue(name).stats()
        found.append({"queue": name, **{column: getattr(stats, column) for column in COLUMNS}})
    return found


def timers() -> list[dict[str, Any]]:
    """One row for each namespace of timers."""
    store, found = TimerStore(), []
    for namespace in sorted(store.namespaces()):
        *counts, oldest = store.stats(namespace)
        values = [*counts, None if oldest < 0 else oldest / 1000]
        found.append({"queue": f"timers {namespace}", **dict(zip(COLUMNS, values, strict=True))})
    return found


def tasks() -> list[dict[str, Any]]:
    """One row for each queue of tasks."""
    found: list[dict[str, Any]] = []
    with suppress(ImportError):  # without Django's Tasks there are only delay queues
        from ...tasks.polling import our_backends

        for backend in our_backends():
            for queue in backend.serving():
                *counts, oldest = backend.store.stats(queue)
                values = [*counts, None if oldest < 0 else oldest / 1000]
                name = f"tasks {backend.alias}/{queue}"
                found.append({"queue": name, **dict(zip(COLUMNS, values, strict=True))})
    return found


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "There are no queues yet."
    head = ("queue", *COLUMNS)
    lines = [head, *([_cell(row[column]) for column in head] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} s" if isinstance(value, float) else str(value)
