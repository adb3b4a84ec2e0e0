"""`manage.py messaging_tasks`: shows a task or a batch, cancels tasks, changes when one runs, and sets how
many run at a time."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ...core import encoding
from ...core.commands import batched
from ...core.operations import perform
from ...errors import MessagingError
from ...services.common.arguments import milliseconds
from ...services.jobs.engine import PAGE, JobRecord
from .. import loops
from ..output import format_count, printable, table

if TYPE_CHECKING:
    from ...tasks import TaskBatch
    from ...tasks.backend import RedisBackend
    from ...tasks.compat import TaskError
    from ...tasks.task import RedisTaskResult

Row = dict[str, Any]
Options = dict[str, Any]
#: errors, and workers, of a task that are shown: the latest
MAX_LISTED = 20
#: characters of a line of an error that are shown
MAX_LINE = 300
#: characters of the arguments, and of the return value, that are shown
MAX_VALUE = 1000


class Command(BaseCommand):
    """Shows a task or a batch, or changes tasks."""

    help = (
        "Show a task or a batch, cancel tasks, change the priority or the due time of a task, or set how "
        "many calls with a key run at a time."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the actions with their options."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        show = actions.add_parser("show", help="show a task")
        show.add_argument("id", help="id of the task")
        show.add_argument("--arguments", action="store_true", help="also show arguments and return value")
        show.add_argument("--json", action="store_true", help="as JSON, for programs")
        cancel = actions.add_parser("cancel", help="cancel tasks that wait or run")
        cancel.add_argument("ids", nargs="*", help="ids of tasks")
        cancel.add_argument("--tag", help="all tasks with this tag, instead of ids")
        cancel.add_argument(
            "--noinput", "--no-input", action="store_false", dest="interactive", help="don't ask, with --tag"
        )
        priority = actions.add_parser("priority", help="change the priority of a task that has not started")
        priority.add_argument("id", help="id of the task")
        priority.add_argument("priority", type=int, help="from -100 to 100")
        reschedule = actions.add_parser("reschedule", help="change when a task is due that has not started")
        reschedule.add_argument("id", help="id of the task")
        reschedule.add_argument("due", help="seconds from now on, or a moment such as 2026-11-30T18:00")
        concurrency = actions.add_parser("concurrency", help="set how many calls with a key run at a time")
        concurrency.add_argument("key", help="concurrency_key of the calls; default: the name of their task")
        concurrency.add_argument("limit", nargs="?", type=int, help="at most so many; 0: none start")
        concurrency.add_argument("--reset", action="store_true", help="the limit of the tasks applies again")
        batch = actions.add_parser("batch", help="show or cancel a batch")
        batch.add_argument("id", help="id of the batch")
        batch.add_argument("--json", action="store_true", help="as JSON, for programs")
        batch.add_argument("--cancel", action="store_true", help="cancel its tasks that have not ended")
        for one in actions.choices.values():
            one.add_argument(
                "--backend", default="default", metavar="ALIAS", help="in TASKS (default: default)"
            )

    def handle(self, *args: Any, **options: Any) -> None:
        """Do the action."""
        backend = loops.chosen_backend(options["backend"])
        from ...tasks.compat import InvalidTask

        try:
            text = ACTIONS[options["action"]](backend, options)
        except (MessagingError, InvalidTask) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)


def _show(backend: RedisBackend, options: Options) -> str:
    row = _task_row(_stored(backend, options["id"]), with_values=options["arguments"])
    if options["json"]:
        return _json(row)
    errors = [": ".join(filter(None, error.values())) for error in row.pop("errors")]
    return "\n".join([_lines(row), *map(printable, errors)])


def _task_row(record: JobRecord, *, with_values: bool) -> Row:
    """A task as JSON. Its code is not needed, so that a task can be shown that the code doesn't define."""
    from ...tasks import records

    try:
        path, queue, _, args, kwargs, _ = encoding.loads_all([record.payload])[0]
    except (TypeError, ValueError):
        raise CommandError(f"What is stored as {printable(record.id)} is not a call of a task.") from None
    state = record.state
    has_ended = state.status not in ("waiting", "running")
    row = {
        "id": record.id,
        "status": str(records.STATUS[state.status]),
        "cancelling": state.cancel and not has_ended,
        "task": str(path),
        "queue": str(queue),
        "priority": state.priority,
        "enqueued_at": records.moment(state.pushed),
        "due_at": None if has_ended else records.moment(state.moment),
        "started_at": records.moment(state.first) if state.first else None,
        "finished_at": records.moment(state.moment) if has_ended else None,
        "attempts": state.attempts,
        "max_attempts": state.max_attempts,
        "workers": state.workers[-MAX_LISTED:],
        "tags": _names(state.field("tags")),
        "needs": _names(state.field("needs")),
        "waits_for": unquote(state.blocked) or None,
        "batch": unquote(state.field("batch")) or None,
        "errors": list(map(_error, records.errors_of(record)[-MAX_LISTED:])),
    }
    if with_values:
        values = {"args": args, "kwargs": kwargs, "return_value": records.return_value(record)}
        row |= {key: _cut(json.dumps(value, ensure_ascii=False), MAX_VALUE) for key, value in values.items()}
    return row


def _names(stored: str) -> list[str]:
    return list(map(unquote, filter(None, stored.split(","))))


def _error(error: TaskError) -> dict[str, str]:
    from ...tasks import records

    path = error.exception_class_path
    message = records.first_line(path, error.traceback)
    return {"class": _cut(path, MAX_LINE), "message": _cut(message, MAX_LINE)}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


def _cancel(backend: RedisBackend, options: Options) -> str:
    ids, tag = options["ids"], options["tag"]
    if bool(ids) == (tag is not None):
        raise CommandError("Name tasks by their ids, or a tag with --tag.")
    if tag is None:
        return _cancel_tasks(backend, ids)
    return _cancel_tagged(backend, tag, ask=options["interactive"] and _is_interactive())


def _cancel_tasks(backend: RedisBackend, ids: Sequence[str]) -> str:
    """Cancel those of the tasks that are stored; raises CommandError if some are not."""
    found = {one: _record(backend, one) for one in ids}
    stored = list(dict.fromkeys(record.id for record in found.values() if record is not None))
    count = sum(perform(backend.using, backend.cancel_many(page)) for page in batched(stored, PAGE))
    text = f"Cancelled {format_count(count, 'task')}."
    if len(stored) > count:
        text += f" {format_count(len(stored) - count, 'task')} had ended before."
    unknown = [one for one, record in found.items() if record is None]
    if unknown:
        raise CommandError(f"{text} {_unknown(backend, unknown)}")
    return text


def _cancel_tagged(backend: RedisBackend, tag: str, *, ask: bool) -> str:
    from ...tasks.call_fields import stored_tag

    count = perform(backend.using, backend.engine.count_tagged(stored_tag(tag)))
    what = f"with the tag {printable(tag)}"
    if not count:
        raise CommandError(f"There are no tasks {what} that wait or run in the backend {backend.alias!r}.")
    if ask and not _confirms(f"Cancel {format_count(count, 'task')} {what}? Type 'yes' to do so: "):
        raise CommandError("Nothing was cancelled.")
    return f"Cancelled {format_count(backend.cancel_tagged(tag), 'task')} {what}."


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _confirms(question: str) -> bool:
    """Whether the user answers yes; not if the user ends the input or interrupts it."""
    with suppress(EOFError, KeyboardInterrupt):
        return input(question) == "yes"
    return False


def _set_priority(backend: RedisBackend, options: Options) -> str:
    result, priority = _result(backend, options["id"]), options["priority"]
    if not result.set_priority(priority):
        raise CommandError(f"{_started(result)} its priority can't be changed.")
    return f"The task {printable(result.id)} has the priority {priority}."


def _reschedule(backend: RedisBackend, options: Options) -> str:
    due, result = _due(options["due"]), _result(backend, options["id"])
    if not result.reschedule(due):
        raise CommandError(f"{_started(result)} it can't be rescheduled.")
    return f"The task {printable(result.id)} is due at {_cell(result.task.run_after)}."


def _due(text: str) -> datetime | timedelta:
    """When a task is due: a number is seconds from now on, a moment without an offset is in TIME_ZONE."""
    try:
        seconds = float(text)
    except ValueError:
        return _moment(text)
    return timedelta(milliseconds=milliseconds(seconds, "SECONDS"))


def _moment(text: str) -> datetime:
    with suppress(ValueError, OverflowError):
        moment = parse_datetime(text)
        if moment is not None:
            return _as_stored(moment)
    raise CommandError(
        f"{printable(text)} is neither a number of seconds nor a moment such as 2026-11-30T18:00."
    )


def _as_stored(moment: datetime) -> datetime:
    """Aware with USE_TZ, else naive."""
    if timezone.is_aware(moment) == settings.USE_TZ:
        return moment
    return timezone.make_aware(moment) if settings.USE_TZ else timezone.make_naive(moment)


def _set_concurrency(backend: RedisBackend, options: Options) -> str:
    key, limit = encoding.name(options["key"], "KEY"), options["limit"]
    if options["reset"] == (limit is not None):
        raise CommandError("Give a number, or --reset.")
    before, running = perform(backend.using, backend.engine.permit(key))
    if options["reset"] and before is None:
        raise CommandError(f"No limit is set for the key {printable(key)} in the backend {backend.alias!r}.")
    backend.set_concurrency(key, limit)
    then = f"(before: {'as their tasks say' if before is None else before}; {running} run now)."
    if limit is None:
        return f"As many calls with the key {printable(key)} run at a time as their tasks say {then}"
    return f"At most {format_count(limit, 'call')} with the key {printable(key)} run at a time {then}"


def _batch(backend: RedisBackend, options: Options) -> str:
    from ...tasks import TaskBatch

    batch = TaskBatch.get(options["id"], backend.alias)
    if options["cancel"] and options["json"]:
        raise CommandError("--json can't be used with --cancel.")
    if options["cancel"]:
        return _cancel_batch(batch)
    row = _batch_row(backend, batch)
    if options["json"]:
        return _json(row)
    callbacks = {key: f"{one['id']} {one['status'] or '-'}" for key, one in row.pop("callbacks").items()}
    return _lines({**row, **callbacks})


def _batch_row(backend: RedisBackend, batch: TaskBatch) -> Row:
    from ...tasks.batches import read_callbacks

    names = ("id", "name", "total", "pending", "succeeded", "failed", "cancelled")
    callbacks = perform(backend.using, read_callbacks(batch)).items()
    return {
        **{name: getattr(batch, name) for name in (*names, "is_cancelled", "created_at", "ended_at")},
        "callbacks": {key: {"id": one, "status": status and str(status)} for key, (one, status) in callbacks},
    }


def _cancel_batch(batch: TaskBatch) -> str:
    text = f"Cancelled {format_count(batch.cancel(), 'task')} of the batch {printable(batch.id)}"
    if not batch.pending:
        return f"{text}."
    return f"{text}; {batch.pending} {'has' if batch.pending == 1 else 'have'} not ended yet."


#: by the name of the action: a function of the backend and the options that returns what to print
ACTIONS: dict[str, Callable[[RedisBackend, Options], str]] = {
    "show": _show,
    "cancel": _cancel,
    "priority": _set_priority,
    "reschedule": _reschedule,
    "concurrency": _set_concurrency,
    "batch": _batch,
}


def _record(backend: RedisBackend, task_id: str) -> JobRecord | None:
    return perform(backend.using, backend.engine.get(encoding.name(task_id, "ID")))


def _stored(backend: RedisBackend, task_id: str) -> JobRecord:
    record = _record(backend, task_id)
    if record is None:
        raise CommandError(_unknown(backend, [task_id]))
    return record


def _result(backend: RedisBackend, task_id: str) -> RedisTaskResult[Any]:
    """The result of a task; raises InvalidTask if the code doesn't define the task."""
    from ...tasks import records

    return cast("RedisTaskResult[Any]", records.parse_result(backend.alias, _stored(backend, task_id)))


def _unknown(backend: RedisBackend, ids: Sequence[str]) -> str:
    listed = ", ".join(map(printable, ids[:MAX_LISTED])) + (", …" if len(ids) > MAX_LISTED else "")
    return (
        f"The backend {backend.alias!r} has no task {listed}: it was never enqueued, or its result is not "
        "stored any more."
    )


def _started(result: RedisTaskResult[Any]) -> str:
    return f"The task {printable(result.id)} has started, or has ended:"


def _json(row: Row) -> str:
    return json.dumps(row, indent=2, default=datetime.isoformat)


def _lines(row: Row) -> str:
    """A line for each value."""
    return table([(key, printable(_cell(value))) for key, value in row.items()], left=2)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, list):
        value = ", ".join(value)
    return "-" if value is None or value == "" else str(value)
