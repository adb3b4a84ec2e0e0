"""`manage.py messaging_dead`: lists dead jobs, for `redrive`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError

from ... import MessagingError, conf
from ...core.encoding import current_prefix
from ...core.operations import perform
from ...services.expiries.listing import Timers
from ...services.expiries.timers import TimerEngine
from ...services.jobs.engine import registered_queues
from ...services.jobs.keys import queues_key
from ...services.jobs.listing import MAX_ROWS, JobFilter, JobRow, Jobs, jobs_of
from .. import loops
from ..output import printable, table

#: jobs that are listed at most
MAX_LISTED = 1000
COLUMNS = ("id", "queue", "task", "attempts", "ended", "reason")


class Command(BaseCommand):
    """Prints a table, or JSON."""

    help = "List dead jobs, the latest first: of delay queues, timers and tasks. redrive requeues them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("queue", nargs="?", help="name of the queue (default: all)")
        parser.add_argument("--timers", action="store_true", help="only timers; the queue is their namespace")
        parser.add_argument("--backend", help="only queues of this backend of TASKS")
        parser.add_argument("--task", default="", help="only calls of the task with this dotted name")
        parser.add_argument(
            "--limit", type=int, default=100, help=f"jobs to list, up to {MAX_LISTED:,} (default: 100)"
        )
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them."""
        limit = options["limit"]
        if not 1 <= limit <= MAX_LISTED:
            raise CommandError(f"--limit must be between 1 and {MAX_LISTED}.")
        try:
            found = [
                Dead(title, more, row)
                for title, more, jobs in _chosen(options)
                for row in _dead(jobs, options["task"], limit)
            ]
        except MessagingError as error:
            raise CommandError(str(error)) from error
        found.sort(key=lambda one: one.ended_at, reverse=True)
        rows = [one.as_json() for one in found[:limit]]
        self.stdout.write(json.dumps(rows, indent=2) if options["json"] else _text(found[:limit]))


class Dead(NamedTuple):
    """A dead job, with the queue in which it is."""

    #: the queue as messaging_stats calls it
    title: str
    #: what `redrive` needs beside the name of the queue
    options: str
    row: JobRow

    @property
    def ended_at(self) -> datetime:
        """When it died."""
        return self.row.ended_at or self.row.pushed_at

    def as_json(self) -> dict[str, Any]:
        """As JSON."""
        row = self.row
        return {
            "id": row.id,
            "queue": self.title,
            "task": row.task or None,
            "timer": row.name or None,
            "attempts": row.attempts,
            "ended": self.ended_at.isoformat(timespec="seconds"),
            "reason": row.reason,
            "arguments": row.arguments,
            "redrive": f"{row.queue} {self.options}".strip(),
        }


def _chosen(options: dict[str, Any]) -> Iterator[tuple[str, str, Jobs]]:
    """The queues to look at: title, options of redrive, and their jobs."""
    name, alias, timers = options["queue"], options["backend"], options["timers"]
    if timers and alias is not None:
        raise CommandError("--timers can't be used with --backend: timers are in no backend of TASKS.")
    chosen = [] if alias is None else [loops.chosen_backend(alias)]
    if not timers and alias is None and not options["task"]:
        for queue in _named(name, _delay_queues):
            yield queue, "", jobs_of(queue)
    if alias is None and not options["task"]:
        for namespace in _named(name, _namespaces):
            yield f"timers {namespace}", "--timers", Timers(namespace)
    if not timers:
        for backend in chosen or loops.backends().values():
            for queue in _named(name, backend.serving):
                title = f"tasks {backend.alias}/{queue}"
                yield title, f"--backend {backend.alias}", backend.jobs(queue)


def _named(name: str | None, names: Any) -> list[str]:
    """The queue of this name, or all."""
    return [one for one in sorted(names()) if name is None or one == name]


def _delay_queues() -> list[str]:
    return perform(conf.alias(), registered_queues(queues_key(current_prefix())))


def _namespaces() -> list[str]:
    return perform(conf.alias(), TimerEngine(current_prefix()).namespaces())


def _dead(jobs: Jobs, task: str, limit: int) -> list[JobRow]:
    """The latest dead jobs of a queue."""
    found, cursor = list[JobRow](), None
    while len(found) < limit:
        page = jobs.page(
            "dead", cursor=cursor, limit=min(limit - len(found), MAX_ROWS), which=JobFilter(task=task)
        )
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            break
    return found


def _text(found: list[Dead]) -> str:
    if not found:
        return "There are no dead jobs."
    lines = [_cells(one) for one in found]
    queues = dict.fromkeys((one.row.queue, one.options) for one in found)
    remedies = [
        f"To requeue them: manage.py redrive {printable(queue)} [ID …] {more}".rstrip()
        for queue, more in queues
    ]
    return "\n".join([table([COLUMNS, *lines], left=len(COLUMNS)), "", *remedies])


def _cells(one: Dead) -> list[str]:
    row = one.row
    ended = one.ended_at.isoformat(timespec="seconds")
    cells = (row.id, one.title, row.task or row.name or "-", str(row.attempts), ended, row.reason or "-")
    return list(map(printable, cells))
