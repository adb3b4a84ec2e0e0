"""The tasks of a queue as operators see them. Their code is not needed: a task can be shown, cancelled or
redriven that the code doesn't define any more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from ..core import encoding
from ..core.operations import Steps
from ..services.common.arguments import milliseconds
from ..services.jobs.engine import Engine, JobRecord
from ..services.jobs.listing import DueAt, JobDetail, JobRow, Jobs, NextJob, text_of
from . import records
from .task import follow_up_id, moment_of

#: the beginning of a stored call: the path of its task, its queue, its run_after
_HEAD = re.compile(r'\["[^"]*",("(?:[^"\\]|\\.)*"),[^,]*,')
#: the end of a line of the text in JSON, before the last one that is not cut
_NEWLINE = re.compile(r"(?<!\\)(?:\\\\)*\\n")


class TaskJobs(Jobs):
    """The tasks of a queue. As `finished`, those of it whose results are kept.

    Cancelled tasks have results as with RedisBackend.cancel(), and running ones are interrupted.
    """

    _cancellable = ("ready", "delayed", "parked", "leased")

    def __init__(
        self, engine: Engine, queue: str, *, registry: str | None, using: str, result_ttl: int
    ) -> None:
        """`result_ttl`: how long the results of cancelled tasks are kept: ms."""
        super().__init__(engine, encoding.name(queue, "queue"), name=queue, registry=registry, using=using)
        self._result_ttl = result_ttl

    def _cancel(self, ids: Sequence[str]) -> Steps[int]:
        ttl, line = self._result_ttl, records.CANCELLED
        return self._engine.cancel_many(self._queue, ids, ttl=ttl, line=line)

    def _mark(self, place: str) -> str:
        return encoding.string(self._queue) + "," if place == "finished" else ""

    def _completed(self, row: JobRow, payload: str) -> JobRow:
        head = _HEAD.match(payload)
        if head is None:
            return row
        return replace(row, queue=text_of(head[1]) or row.queue, arguments=_arguments(payload, head.end()))

    def _reason(self, line: str, end: str) -> str:
        kind = line[:1]
        if kind == "E":
            path, trace = _parsed(line)
            trace = _text_of_end(end) if end else trace
            return ": ".join(filter(None, (path, records.first_line(path, trace))))
        if kind == "L":
            return super()._reason(line, end)
        return {"C": "The task was cancelled.", "S": "A newer call has replaced it."}.get(kind, "")

    def _errors(self, line: str) -> Iterable[tuple[str, str]]:
        if line[:1] == "L":
            yield "django_redis_messaging.errors.LeaseLost", self._reason(line, "")
        elif line[:1] == "E":
            yield _parsed(line)

    def _rescheduled(self, due: DueAt) -> str:
        later = due if isinstance(due, datetime) else timedelta(milliseconds=milliseconds(due, "due"))
        return records.rescheduled(moment_of(later))

    def _detail(self, record: JobRecord, size: int, now: int) -> JobDetail:
        found = super()._detail(record, size, now)
        value = record.log.rpartition(b"\n")[2].decode(errors="ignore")
        return replace(
            found,
            return_value=value[1:] if record.state.status == "succeeded" and value[:1] == "R" else None,
            follow_up=None if found.is_cut else _follow_up(record),
        )


def _arguments(payload: str, start: int) -> str:
    """The arguments in a stored call, from this position on: `[args], {kwargs}`; of a cut call, what is left
    of them."""
    with suppress(ValueError):
        _, _, _, args, kwargs, _ = encoding.loads_all([payload.encode()])[0]
        return f"{encoding.dumps(args)}, {encoding.dumps(kwargs)}"
    return payload[start:]


def _parsed(line: str) -> tuple[str, str]:
    """The path and the traceback in the line of an error, which may be cut."""
    with suppress(ValueError):
        path, trace = encoding.loads_all([line[1:].encode()])[0]
        return path, trace
    path = text_of(line[2:])
    return path, text_of(line[2 + len(encoding.string(path)) + 1 :])


def _text_of_end(end: str) -> str:
    """The whole lines at the end of a traceback, from the end of its line in the log."""
    newline = _NEWLINE.search(end)
    return text_of('"' + (end[newline.end() :] if newline else end.lstrip("\\"))).rstrip()


def _follow_up(record: JobRecord) -> NextJob | None:
    """The call that follows a task, by its stored form."""
    with suppress(ValueError, TypeError):
        then = encoding.loads_all([record.payload])[0][5].get("then")
        if then:
            return NextJob(id=follow_up_id(record.id), task=then[0], queue=then[2])
    return None
