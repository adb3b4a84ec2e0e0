"""`manage.py periodic_tasks`: lists the periodic tasks with their next times."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from ...core.operations import perform
from ...errors import MessagingError
from ...services.common.arguments import to_datetime
from .. import loops
from ..output import printable, table

if TYPE_CHECKING:
    from ...tasks.backend import RedisBackend
    from ...tasks.schedules import PeriodicTask


Row = dict[str, Any]
COLUMNS = ("task", "schedule", "time_zone", "missed", "backend", "queue", "next", "enqueued")
NEVER = "never enqueued: its backend {!r} is not a RedisBackend"
#: next times that are listed at most
MAX_COUNT = 100


class Command(BaseCommand):
    """Prints a table, or JSON."""

    help = "List the periodic tasks: schedule, time zone, next times, and the time enqueued last."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--count", type=int, default=1, help="next times of each task (default: 1)")
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them."""
        if not loops.tasks_installed():
            raise CommandError(loops.NO_TASKS)
        if not 1 <= options["count"] <= MAX_COUNT:
            raise CommandError(f"--count must be between 1 and {MAX_COUNT}.")
        from ...tasks.schedules import discover, never_enqueued

        try:
            discover()
            rows = [row for one in loops.backends().values() for row in _rows(one, options["count"])]
            rows += [_row(one, [], 0, NEVER.format(one.task.backend)) for one in never_enqueued()]
        except MessagingError as error:
            raise CommandError(str(error)) from error
        rows.sort(key=lambda row: row["task"])
        if options["json"]:
            text = json.dumps(rows, indent=2, default=datetime.isoformat)
        else:
            text = _text(rows, get_terminal_size().columns if self.stdout.isatty() else None)
        self.stdout.write(text)


def _rows(backend: RedisBackend, count: int) -> list[Row]:
    """One row for each periodic task of a backend."""
    from ...tasks.schedules import read, tasks_of

    found = tasks_of(backend)
    if not found:
        return []
    now, seen = perform(backend.using, read(backend, found))
    return [_row(one, _next(one, now, count), what.enqueued) for one, what in zip(found, seen, strict=True)]


def _next(one: PeriodicTask, now: int, count: int) -> list[int]:
    """The next `count` occurrences."""
    moments: list[int] = []
    while len(moments) < count and (moment := one.schedule.next(moments[-1] if moments else now)) is not None:
        moments.append(moment)
    return moments


def _row(one: PeriodicTask, upcoming: Sequence[int], enqueued: int, problem: str | None = None) -> Row:
    zone = one.schedule.zone
    times = [to_datetime(moment).astimezone(zone) for moment in (*upcoming, enqueued)]
    return {
        "task": one.name,
        "schedule": str(one.schedule),
        "time_zone": str(zone),
        "missed": one.missed,
        "backend": one.task.backend,
        "queue": one.task.queue_name,
        "next": times[:-1],
        "enqueued": times[-1] if enqueued else None,
        "problem": problem,
    }


def _text(rows: list[Row], width: int | None) -> str:
    """A table, or if that is wider than the terminal, a block of lines for each task."""
    if not rows:
        return "No periodic tasks found: define some with @periodic in tasks.py of an installed app."
    columns = [column for column in COLUMNS if _is_shown(column, rows)]
    lines = [[printable(_cell(row[column])) for column in columns] for row in rows]
    problems = [f"{printable(row['task'])} is {row['problem']}." for row in rows if row["problem"]]
    text = table([columns, *lines], left=len(columns))
    if width is not None and max(map(len, text.splitlines())) > width:
        text = "\n\n".join(table([*zip(columns, line, strict=True)], left=2) for line in lines)
    return "\n".join([text, *problems])


def _is_shown(column: str, rows: list[Row]) -> bool:
    """Whether a column is in the table: not if all of its values are the default."""
    defaults = {
        "time_zone": str(timezone.get_default_timezone()),
        "missed": "once",
        "backend": "default",
        "queue": "default",
    }
    return column not in defaults or any(row[column] != defaults[column] for row in rows)


def _cell(value: str | datetime | Sequence[datetime] | None) -> str:
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, str):
        return value
    return ", ".join(map(_time, value or ())) or "-"


def _time(moment: datetime) -> str:
    """Without the year, if that is the current one; without seconds, if they are 0."""
    year = "" if moment.year == datetime.now(moment.tzinfo).year else " %Y"
    return moment.strftime(f"%d %b{year} %H:%M{':%S' if moment.second else ''}")
