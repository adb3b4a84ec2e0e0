"""`manage.py periodic_tasks`: lists the schedules of tasks with their next times; adds, changes, pauses,
resumes and removes schedules."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from ...errors import MessagingError
from .. import loops
from ..output import printable, table

if TYPE_CHECKING:
    from ...tasks import ScheduleInfo, Schedules
    from ...tasks.compat import Task


Row = dict[str, Any]
COLUMNS = (
    "name", "task", "schedule", "time_zone", "args", "kwargs", "missed", "backend", "queue", "priority",
    "paused", "next", "enqueued",
)  # fmt: skip
NEVER = "never enqueued: its backend {!r} is not a RedisBackend"
#: next times that are listed at most
MAX_COUNT = 100
#: what an action does, in the past tense
ACTIONS = {"add": "Added", "change": "Changed", "pause": "Paused", "resume": "Resumed", "remove": "Removed"}
#: options that only `add` and `change` take
VALUES = ("task", "cron", "every", "tz", "args_", "kwargs", "missed", "queue", "priority")


class Command(BaseCommand):
    """Prints a table, or JSON; or changes a schedule."""

    help = (
        "List the schedules of tasks: next times, and the time enqueued last. Or add, change, pause, resume "
        "or remove one. Those declared by @periodic can only be paused and resumed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "action", nargs="?", default="list", choices=["list", *ACTIONS], help="default: list"
        )
        parser.add_argument("name", nargs="?", help="name of the schedule")
        parser.add_argument("--backend", default="default", help="alias in TASKS (default: default)")
        parser.add_argument("--task", help="dotted name of the task to enqueue")
        parser.add_argument("--cron", help="cron expression of five fields")
        parser.add_argument("--every", type=float, help="interval: seconds")
        parser.add_argument("--tz", help="time zone of --cron (default: that of the site)")
        parser.add_argument("--args", dest="args_", metavar="JSON", help="list of positional arguments")
        parser.add_argument("--kwargs", metavar="JSON", help="dict of keyword arguments")
        parser.add_argument("--missed", choices=["once", "none"], help="what becomes of missed occurrences")
        parser.add_argument("--queue", help="queue (default: that of the task)")
        parser.add_argument("--priority", type=int, help="priority (default: that of the task)")
        parser.add_argument("--replace", action="store_true", help="add: replace a schedule of this name")
        parser.add_argument("--count", type=int, default=1, help="next times of each task (default: 1)")
        parser.add_argument("--json", action="store_true", help="as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print them, or change one."""
        if not loops.tasks_installed():
            raise CommandError(loops.NO_TASKS)
        if not 1 <= options["count"] <= MAX_COUNT:
            raise CommandError(f"--count must be between 1 and {MAX_COUNT}.")
        _check_options(options)
        from ...tasks.compat import InvalidTask
        from ...tasks.occurrences import discover

        try:
            discover()
            text = self._list(options) if options["action"] == "list" else _change(options)
        except (MessagingError, InvalidTask, TypeError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)

    def _list(self, options: dict[str, Any]) -> str:
        rows = sorted((_row(one, options["count"]) for one in _all()), key=lambda row: row["name"])
        if options["json"]:
            return json.dumps(rows, indent=2, default=datetime.isoformat)
        return _text(rows, get_terminal_size().columns if self.stdout.isatty() else None)


def _check_options(options: dict[str, Any]) -> None:
    """Raise CommandError for options that the action doesn't take, or lacks."""
    action, name = options["action"], options["name"]
    given = [one for one in VALUES if options[one] is not None]
    if action == "list" and name is not None:
        raise CommandError("list takes no name: it lists all schedules.")
    if action != "list" and name is None:
        raise CommandError(f"{action} needs the name of a schedule: periodic_tasks {action} NAME.")
    if action not in ("add", "change") and given:
        raise CommandError(f"--{given[0].strip('_')} can't be used with {action}: only with add and change.")
    if options["replace"] and action != "add":
        raise CommandError(f"--replace can't be used with {action}: only with add.")
    if action == "add" and options["task"] is None:
        raise CommandError("add needs --task: the dotted name of the task to enqueue.")
    if action == "change" and not given:
        raise CommandError("change needs a value to change, such as --cron.")


def _change(options: dict[str, Any]) -> str:
    """Do the action; returns what was done."""
    action, name = options["action"], options["name"]
    schedules = loops.chosen_backend(options["backend"]).schedules
    values: dict[str, Any] = {
        key: options[key] for key in ("cron", "every", "tz", "missed") if options[key] is not None
    }
    if options["args_"] is not None:
        values["args"] = _parsed(
            options["args_"], list, """--args must be a JSON list, such as '[7, "a"]'."""
        )
    if options["kwargs"] is not None:
        message = """--kwargs must be a JSON object, such as '{"customer": 7}'."""
        values["kwargs"] = _parsed(options["kwargs"], dict, message)
    if action == "add":
        schedules.add(name, _chosen_task(options["task"], options), replace=options["replace"], **values)
        return f"Added {printable(name)}."
    done = _changed(schedules, options, values) if action == "change" else getattr(schedules, action)(name)
    if not done:
        raise CommandError(_missing(schedules, name, action))
    return f"{ACTIONS[action]} {printable(name)}."


def _changed(schedules: Schedules, options: dict[str, Any], values: dict[str, Any]) -> bool:
    """Change a schedule. A new queue or priority needs its task."""
    if options["task"] is not None or options["queue"] is not None or options["priority"] is not None:
        known = next((one for one in _stored(schedules) if one.name == options["name"]), None)
        if known is None:
            return False
        own = {"queue": known.queue_name, "priority": known.priority} if options["task"] is None else {}
        chosen = {
            key: own.get(key) if options[key] is None else options[key] for key in ("queue", "priority")
        }
        values["task"] = _chosen_task(options["task"] or known.task, {**options, **chosen})
    return schedules.change(options["name"], **values)


def _chosen_task(path: str, options: dict[str, Any]) -> Task:
    from ...tasks.records import find_task

    task, fields = find_task(path), {"backend": "backend", "queue": "queue_name", "priority": "priority"}
    return task.using(**{field: options[key] for key, field in fields.items() if options[key] is not None})


def _parsed(text: str, kind: type, message: str) -> Any:
    """A JSON value of an option."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise CommandError(message)
    return value


def _stored(schedules: Schedules) -> list[ScheduleInfo]:
    return [one for one in schedules.all() if not one.declared]


def _missing(schedules: Schedules, name: str, action: str) -> str:
    if any(one.name == name for one in schedules.all()):
        return f"{printable(name)} is declared by @periodic: {action} it in the code."
    return f"There is no schedule {printable(name)}."


def _all() -> list[ScheduleInfo]:
    """The schedules of all backends."""
    from ...tasks.occurrences import never_enqueued
    from ...tasks.schedules import Position, info

    found = [one for backend in loops.backends().values() for one in backend.schedules.all()]
    return found + [info(one, Position(), 0, NEVER.format(one.task.backend)) for one in never_enqueued()]


def _row(one: ScheduleInfo, count: int) -> Row:
    return {
        "name": one.name,
        "task": one.task,
        "declared": one.declared,
        "schedule": one.cron or f"every {one.every}",
        "time_zone": one.tz or str(timezone.get_default_timezone()),
        "args": list(one.args),
        "kwargs": dict(one.kwargs),
        "missed": one.missed,
        "backend": one.backend,
        "queue": one.queue_name,
        "priority": one.priority,
        "paused": one.paused_at,
        "next": one.next_times(count),
        "enqueued": one.enqueued,
        "problem": one.problem,
    }


def _text(rows: list[Row], width: int | None) -> str:
    """A table, or if that is wider than the terminal, a block of lines for each task."""
    if not rows:
        return "No schedules found: declare some with @periodic in tasks.py of an installed app, or add some."
    columns = [column for column in COLUMNS if _is_shown(column, rows)]
    lines = [[printable(_cell(row[column])) for column in columns] for row in rows]
    problems = [f"{printable(row['name'])}: {printable(row['problem'])}" for row in rows if row["problem"]]
    text = table([columns, *lines], left=len(columns))
    if width is not None and max(map(len, text.splitlines())) > width:
        text = "\n\n".join(table([*zip(columns, line, strict=True)], left=2) for line in lines)
    return "\n".join([text, *problems])


def _is_shown(column: str, rows: list[Row]) -> bool:
    """Whether a column is in the table: not if all of its values are the default."""
    if column == "name":
        return any(row["name"] != row["task"] for row in rows)
    defaults = {
        "args": [],
        "kwargs": {},
        "time_zone": str(timezone.get_default_timezone()),
        "missed": "once",
        "backend": "default",
        "queue": "default",
        "priority": 0,
        "paused": None,
    }
    return column not in defaults or any(row[column] != defaults[column] for row in rows)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return _time(value)
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list) and value and isinstance(value[0], datetime):
        return ", ".join(map(_time, value))
    return json.dumps(value) if value else "-"


def _time(moment: datetime) -> str:
    """Without the year, if that is the current one; without seconds, if they are 0."""
    year = "" if moment.year == datetime.now(moment.tzinfo).year else " %Y"
    return moment.strftime(f"%d %b{year} %H:%M{':%S' if moment.second else ''}")
