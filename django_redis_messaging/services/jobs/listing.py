"""The jobs of a queue as operators see them: pages of them, one with all that is known, and changes of some,
or of all that match a filter.

Pages are read where the jobs are stored: without a poller, delayed jobs that are due are still among the
delayed ones, and a job whose lease has expired among the leased ones, until a client pops from the queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any
from urllib.parse import quote, unquote

from ... import conf
from ...core import encoding
from ...core.commands import Argument, batched
from ...core.encoding import current_prefix
from ...core.encoding import name as checked
from ...core.operations import Service, Steps, asynchronous, operation
from ...errors import InvalidArgument
from ..common.arguments import (
    Duration,
    count,
    integer,
    milliseconds,
    sequence,
    timestamp_ms,
    to_datetime,
)
from .engine import PAGE, Engine, JobRecord, State, parse_state, register_queue
from .keys import queues_key
from .queue import ONLY_QUEUE

#: where jobs are: the first four wait or run, `finished` are the results of tasks that are kept
PLACES = ("ready", "delayed", "parked", "leased", "dead", "finished")
#: those in which jobs wait
WAITING = ("ready", "delayed", "parked")
#: jobs of a page
MAX_ROWS = 50
#: bytes of a payload on a page, by default and at most
EXCERPT, MAX_EXCERPT = 300, 2000
#: bytes of the payload, and of the log, of a single job
MAX_DETAIL = 65_536
#: characters of a reason
MAX_REASON = 300
#: bytes of the text that a filter searches for
MAX_TEXT = 1000
#: jobs that one call changes by a filter, and its seconds, by default
MAX_CHANGES, MAX_SECONDS = 10_000, 10.0
#: characters of a cursor: the names in it are percent-encoded
MAX_CURSOR = 4096
_CURSOR = re.compile(r"([a-z]+):([^:\s]+):([0-9]{1,17}):(\S+)")
#: a JSON string whose end may be missing
_STRING = re.compile(r'"((?:[^"\\]|\\(?:[^u]|u[0-9a-fA-F]{4}))*)')


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs of a place are meant: all that match each of the given values."""

    #: dotted name of a task
    task: str = ""
    #: a part of the payload as it is stored: JSON, in which a quote in a text has a backslash before it
    text: str = ""
    #: the job became due at this moment or later; a leased one was started, a dead or finished one has ended
    since: datetime | None = None
    #: it did so before this moment
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job."""

    id: str
    queue: str
    #: one of PLACES
    place: str
    #: waiting, running, succeeded, dead, cancelled or expired
    status: str
    #: dotted name of its task; empty: it is not the call of a task
    task: str
    #: of a timer
    name: str
    priority: int
    attempts: int
    max_attempts: int
    pushed_at: datetime
    #: when it is, or was, due; None: it has ended
    due_at: datetime | None
    #: start of the latest attempt
    started_at: datetime | None
    ended_at: datetime | None
    #: when its lease ends, unless it is extended
    lease_ends_at: datetime | None
    #: id of the latest worker
    worker: str
    #: beginning of the payload of the job, of a task its arguments: JSON that may be cut
    arguments: str
    #: bytes of the whole payload
    size: int
    #: why the latest attempt failed, or the job has ended
    reason: str
    #: the need that it waits for, such as lock:nightly, or pause:TASK
    waits_for: str
    #: all that it needs, such as permit:exports/2
    needs: tuple[str, ...]
    #: whether it runs and shall be cancelled
    is_cancelling: bool
    unique: str
    group: str
    tags: tuple[str, ...]
    #: id of its batch
    batch: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs of a place. A page may be short, or empty, though more follow."""

    rows: list[JobRow]
    #: where the next page begins; None: this is the last one
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Changed:
    """What a call has changed that may change many jobs."""

    count: int
    #: where a further call goes on with the same filter; None: all were changed
    cursor: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all were changed that matched."""
        return self.cursor is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt at a job. Moments are stored of the first attempt and of the latest one only."""

    #: from 1; 0: before the job was redriven
    number: int
    worker: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    #: dotted path of the exception; empty if there was none
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextJob:
    """The call that follows a task when it has succeeded."""

    id: str
    task: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """All that is known of a job. `job.arguments` has up to MAX_DETAIL bytes."""

    job: JobRow
    #: whether `job.arguments` is not all
    is_cut: bool
    #: start of the first attempt
    first_started_at: datetime | None
    #: attempts whose lease expired
    lost: int
    #: the oldest first; those of a long log are missing
    attempts: list[Attempt]
    #: JSON of at most MAX_DETAIL bytes; None: there is none
    return_value: str | None
    follow_up: NextJob | None


#: ids of jobs, or which ones
Which = Sequence[str] | JobFilter
#: a moment, or how long from now on
DueAt = datetime | Duration


class Jobs(Service):
    """The jobs of a queue, for operators. `jobs_of` makes those of a delay queue.

    >>> queue = jobs_of("mail-outbox")
    >>> queue.page("dead").rows
    []
    >>> queue.redrive(JobFilter(text="ann@example.com")).count
    0
    """

    def __init__(self, engine: Engine, queue: str, *, name: str, registry: str | None, using: str) -> None:
        """`name`: that of the queue for its users; `registry`: the key of the queues known to the poller, if
        this one has to be registered."""
        self._using = using
        self._engine, self._queue, self._name, self._registry = engine, queue, name, registry

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @operation
    def page(
        self,
        place: str,
        *,
        cursor: str | None = None,
        limit: int = MAX_ROWS,
        which: JobFilter | None = None,
        excerpt: int = EXCERPT,
    ) -> Steps[JobPage]:
        """Some jobs of a place (1 to 50): from the next one to run; dead and finished ones from the latest.

        A call looks at up to 250 jobs. `cursor`: that of the page before. Raises InvalidArgument, also for a
        cursor of another place or queue.
        """
        size = integer(excerpt, "excerpt", minimum=1, maximum=MAX_EXCERPT)
        rows = count(limit, "limit", maximum=MAX_ROWS)
        found, following = yield from self._read(place, cursor, rows, which or JobFilter(), size)
        return JobPage([self._row(place, one) for one in found], following)

    apage = asynchronous(page)

    @operation
    def get(self, job_id: str) -> Steps[JobDetail | None]:
        """All that is known of a job; None if it doesn't exist, or its result has expired."""
        found = yield from self._engine.get_part(checked(job_id, "job_id"), MAX_DETAIL)
        return None if found is None else self._detail(*found)

    aget = asynchronous(get)

    @operation
    def redrive(
        self,
        which: Which,
        *,
        due: DueAt = 0,
        cursor: str | None = None,
        most: int = MAX_CHANGES,
        seconds: float = MAX_SECONDS,
    ) -> Steps[Changed]:
        """Requeue dead jobs with all their attempts, due at a moment, or as long from now on. With a filter,
        the call changes about `most` jobs, and ends after about `seconds`; `cursor` is that of the call
        before."""
        delay = self._delay(due)

        def redrive(ids: Sequence[str]) -> Steps[int]:
            return self._engine.redrive(self._queue, ids, delay)

        changed = yield from self._change(which, "dead", redrive, cursor, most, seconds)
        yield from self._register(changed, delay)
        return changed

    aredrive = asynchronous(redrive)

    @operation
    def discard(
        self,
        which: Which,
        *,
        place: str = "dead",
        cursor: str | None = None,
        most: int = MAX_CHANGES,
        seconds: float = MAX_SECONDS,
    ) -> Steps[Changed]:
        """Delete dead jobs, or finished ones. See `redrive`."""
        self._check_place(place, ("dead", "finished"))

        def discard(ids: Sequence[str]) -> Steps[int]:
            return self._engine.discard(self._queue, place, ids)

        return (yield from self._change(which, place, discard, cursor, most, seconds))

    adiscard = asynchronous(discard)

    @operation
    def cancel(
        self,
        which: Which,
        *,
        place: str = "ready",
        cursor: str | None = None,
        most: int = MAX_CHANGES,
        seconds: float = MAX_SECONDS,
    ) -> Steps[Changed]:
        """Cancel jobs that wait; tasks also while they run. `place` is where a filter looks for them. See
        `redrive`."""
        self._check_place(place, self._cancellable)
        return (yield from self._change(which, place, self._cancel, cursor, most, seconds))

    acancel = asynchronous(cancel)

    @operation
    def reschedule(
        self,
        which: Which,
        due: DueAt = 0,
        *,
        place: str = "delayed",
        cursor: str | None = None,
        most: int = MAX_CHANGES,
        seconds: float = MAX_SECONDS,
    ) -> Steps[Changed]:
        """Change when waiting jobs are due; by default they run now. `place` is where a filter looks for
        them. See `redrive`."""
        self._check_place(place, self._waiting)
        delay, line = self._delay(due), self._rescheduled(due)

        def reschedule(ids: Sequence[str]) -> Steps[int]:
            return self._reschedule(ids, delay, line)

        changed = yield from self._change(which, place, reschedule, cursor, most, seconds)
        yield from self._register(changed, delay)
        return changed

    areschedule = asynchronous(reschedule)

    #: places whose jobs can be rescheduled, and cancelled
    _waiting: Sequence[str] = WAITING
    _cancellable: Sequence[str] = WAITING

    def _cancel(self, ids: Sequence[str]) -> Steps[int]:
        return self._engine.cancel_many(self._queue, ids, ttl=0, line="", running=False)

    def _reschedule(self, ids: Sequence[str], delay: int | str, line: str) -> Steps[int]:
        return self._engine.reschedule_many(self._queue, ids, delay, line)

    def _change(
        self,
        which: Which,
        place: str,
        action: Callable[[Sequence[str]], Steps[int]],
        cursor: str | None,
        most: int,
        seconds: float,
    ) -> Steps[Changed]:
        """Call the action for the ids, or for all that match, up to PAGE at a time."""
        if not isinstance(which, JobFilter):
            ids, total = [checked(one, "which") for one in sequence(which, "which")], 0
            for page in batched(dict.fromkeys(ids), PAGE):
                total += yield from action(page)
            return Changed(total)
        integer(most, "most", minimum=1, maximum=MAX_CHANGES)
        ends, total = monotonic() + milliseconds(seconds, "seconds") / 1000, 0
        done: set[str] = set()  # a job that gets a later due time is met again
        while True:
            found, cursor = yield from self._read(place, cursor, min(PAGE, most - total), which, 0)
            if ids := [one for one in map(_id_of, found) if one not in done]:
                done.update(ids)
                total += yield from action(ids)
            if cursor is None or total >= most or monotonic() >= ends:
                return Changed(total, cursor)

    def _read(
        self, place: str, cursor: str | None, limit: int, which: JobFilter, excerpt: int
    ) -> Steps[tuple[list[list[Any]], str | None]]:
        """Some jobs as the script replies them, and the cursor of the next ones."""
        self._check_place(place, PLACES)
        position = self._position(place, cursor)
        filters = self._filters(place, which)
        call = self._engine.list_call(self._queue, place, position, limit, excerpt=excerpt, filters=filters)
        score, member, found = yield call
        if not member:
            return found, None
        return found, ":".join((place, quote(self._name, safe=""), score.decode(), quote(member, safe="")))

    def _position(self, place: str, cursor: str | None) -> tuple[str, str]:
        """The score and the member of a cursor."""
        if cursor is None:
            return "", ""
        if not isinstance(cursor, str):
            raise TypeError(f"cursor must be a str or None, not {type(cursor).__name__}.")
        found = _CURSOR.fullmatch(cursor) if len(cursor) <= MAX_CURSOR else None
        if found is None or (found[1], unquote(found[2])) != (place, self._name):
            raise InvalidArgument(
                f"cursor is not one of the {place} jobs of {self._name!r}: use that of the page before, or "
                "None."
            )
        try:
            return found[3], unquote(found[4], errors="strict")
        except UnicodeDecodeError:
            raise InvalidArgument("cursor is not valid: use that of the page before, or None.") from None

    def _filters(self, place: str, which: JobFilter) -> list[Argument]:
        """A filter as the script takes it."""
        for value, what in ((which.task, "task"), (which.text, "text")):
            encoding.text(value, what, limit=MAX_TEXT)
        since, until = timestamp_ms(which.since, "since"), timestamp_ms(which.until, "until")
        return [quote(which.task), which.text, self._mark(place), since, until]

    def _check_place(self, place: str, allowed: Sequence[str]) -> None:
        if place not in allowed:
            raise InvalidArgument(f"place must be one of {', '.join(allowed)}, not {place!r}.")

    def _delay(self, due: DueAt) -> int | str:
        """When jobs are due, as the engine takes it."""
        return (
            f"@{max(timestamp_ms(due, 'due'), 0)}" if isinstance(due, datetime) else milliseconds(due, "due")
        )

    def _register(self, changed: Changed, delay: int | str) -> Steps[None]:
        if changed.count and delay and self._registry is not None:
            yield from register_queue(self._using, self._registry, self._name, delay)

    def _row(self, place: str, found: Sequence[Any]) -> JobRow:
        job_id, score, state, payload, size, line, end = found
        text = payload.decode(errors="ignore")
        row = make_row(job_id.decode(), self._name, place, parse_state(state), text, size)
        reason = self._reason(line.decode(errors="ignore"), end.decode(errors="ignore"))
        lease = to_datetime(score) if place == "leased" else None
        return self._completed(replace(row, lease_ends_at=lease, reason=reason[:MAX_REASON]), text)

    def _detail(self, record: JobRecord, size: int, now: int) -> JobDetail:
        state, text = record.state, record.payload.decode(errors="ignore")
        lines = record.log.decode(errors="ignore").split("\n")
        row = make_row(record.id, self._name, place_of(state, now), state, text, size)
        return JobDetail(
            job=self._completed(replace(row, reason=self._reason(lines[-1], "")[:MAX_REASON]), text),
            is_cut=size > len(record.payload),
            first_started_at=to_datetime(state.first) if state.first else None,
            lost=state.lost,
            attempts=attempts_of(state, [error for line in lines for error in self._errors(line)]),
            return_value=None,
            follow_up=None,
        )

    # What a subclass knows of its payloads and logs.

    def _mark(self, place: str) -> str:
        """What payloads of this queue have behind their first item, where a place has jobs of all queues."""
        return ""

    def _completed(self, row: JobRow, payload: str) -> JobRow:
        """The row with what the payload says, which may be cut."""
        return row

    def _reason(self, line: str, end: str) -> str:
        """What the last line of a log says, as text. `end`: that of a line that is cut."""
        return f"The lease expired in attempt {line[1:]}." if line[:1] == "L" else text_of(line[1:])

    def _errors(self, line: str) -> Iterable[tuple[str, str]]:
        """The errors that a line of the log says: path of the exception, traceback."""
        if line[:1] in ("F", "L"):
            yield "", self._reason(line, "")

    def _rescheduled(self, due: DueAt) -> str:
        """The line of the log of a new due time."""
        return ""


def jobs_of(queue: str, *, using: str | None = None) -> Jobs:
    """The jobs of a delay queue."""
    prefix, name = current_prefix(), checked(queue, "queue")
    alias = conf.alias() if using is None else using
    return Jobs(
        Engine(prefix, "queue", name), ONLY_QUEUE, name=name, registry=queues_key(prefix), using=alias
    )


def make_row(job_id: str, queue: str, place: str, state: State, payload: str, size: int) -> JobRow:
    """A job without what its payload, its log and its lease say."""
    has_ended, expires = state.status not in ("waiting", "running"), state.field("expires")
    return JobRow(
        id=job_id,
        queue=queue,
        place=place,
        status=state.status,
        task=unquote(state.field("task")),
        name="",
        priority=state.priority,
        attempts=state.attempts,
        max_attempts=state.max_attempts,
        pushed_at=to_datetime(state.pushed),
        due_at=None if has_ended else to_datetime(state.moment),
        started_at=to_datetime(state.last) if state.last else None,
        ended_at=to_datetime(state.moment) if has_ended else None,
        lease_ends_at=None,
        worker=state.workers[-1] if state.workers else "",
        arguments=payload,
        size=size,
        reason="",
        waits_for=unquote(state.blocked),
        needs=_names(state.field("needs")),
        is_cancelling=state.cancel and not has_ended,
        unique=state.unique,
        group=unquote(state.field("group")),
        tags=_names(state.field("tags")),
        batch=unquote(state.field("batch")),
        expires_at=to_datetime(int(expires)) if expires else None,
    )


def place_of(state: State, now: int) -> str:
    """Where a job in this state is, at the ms `now`."""
    if state.status == "waiting":
        return "parked" if state.blocked else "delayed" if state.moment > now else "ready"
    return {"running": "leased", "dead": "dead"}.get(state.status, "finished")


def attempts_of(state: State, errors: Sequence[tuple[str, str]]) -> list[Attempt]:
    """The attempts at a job, from the errors in its log: each attempt that failed has left one. Those of a
    job that was redriven are numbered anew."""
    unfailed = state.status in ("running", "succeeded") or (
        state.status == "cancelled" and len(errors) < state.attempts  # while it ran
    )
    failed = state.attempts - unfailed
    known = max(failed - len(errors), 0)  # the log doesn't have the errors before
    earlier = errors[: len(errors) - failed] if len(errors) > failed else []
    attempts = [Attempt(number=0, error=error, traceback=trace) for error, trace in earlier]
    for number in range(known + 1, state.attempts + 1):
        at = number - known - 1 + len(earlier)
        error, trace = errors[at] if at < len(errors) else ("", "")
        attempts.append(_attempt(state, number, error, trace))
    return attempts


def _attempt(state: State, number: int, error: str, trace: str) -> Attempt:
    """An attempt, with what the state says of it."""
    is_latest, back = number == state.attempts, state.attempts - number + 1
    moment = state.first if number == 1 else state.last if is_latest else 0
    ended = is_latest and state.status not in ("waiting", "running")
    return Attempt(
        number=number,
        worker=state.workers[-back] if back <= len(state.workers) else "",
        started_at=to_datetime(moment) if moment else None,
        ended_at=to_datetime(state.moment) if ended else None,
        error=error,
        traceback=trace,
    )


def text_of(string: str) -> str:
    r"""The text of a JSON string whose end may be missing; empty for anything else.

    >>> text_of('"a \\"b'), text_of('"a \\'), text_of("7")
    ('a "b', 'a ', '')
    """
    found = _STRING.match(string)
    return str(json.loads(f'"{found[1]}"')) if found else ""


def _id_of(found: Sequence[Any]) -> str:
    return str(found[0].decode())


def _names(stored: str) -> tuple[str, ...]:
    return tuple(map(unquote, filter(None, stored.split(","))))
