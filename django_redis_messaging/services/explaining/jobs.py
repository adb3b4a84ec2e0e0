"""Why a job waits: a task, a job of a delay queue, or a timer; and what a queue or a permit waits for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ...core.encoding import current_prefix, encoded
from ...core.operations import Command, Script, Steps
from ..common.arguments import to_datetime
from ..common.things import Thing
from ..expiries.timers import TimerEngine, timer_name
from ..jobs.engine import HEARTBEAT_TIMEOUT, Engine, Paused, State, lock_of, parse_paused, parse_state
from ..jobs.queue import ONLY_QUEUE
from .explanation import Cause, make
from .locks import held, lock_info
from .sights import Backend, Sight, Subject, task_backend

#: holders of a need that an explanation names
MAX_HOLDERS = 10
_PATH_AND_QUEUE = re.compile(r'\["(?:[^"\\]|\\.)*",\s*("(?:[^"\\\x00-\x1f]|\\.)*")')


class Slot(NamedTuple):
    """The jobs of one slot."""

    engine: Engine
    using: str
    #: alias of the task backend; empty: they are no tasks
    alias: str = ""
    #: code of a queue without a live worker; empty: its consumers send no heartbeats
    without_worker: str = ""


class Serving(NamedTuple):
    """The live workers that serve a queue."""

    workers: int
    #: those that run nothing
    idle: int
    #: jobs that all of them run
    running: int
    #: jobs that end in a second
    rate: float

    def seconds(self, jobs: int) -> float | None:
        """How long so many jobs take, or None if none ends."""
        return round(jobs / self.rate, 1) if self.rate else None


class Stored(NamedTuple):
    """The reply of job.lua."""

    now: int
    id: str
    state: State
    #: beginning of the payload
    head: str
    failure: str
    #: ms; -1: none
    lease_end: int
    #: jobs before it; -1: it is not ready in this queue
    before: int
    queue_pause: bytes
    task_pause: bytes
    #: the first need that is not free; empty: all are
    need: str
    held: int
    #: how many may hold it; of a rate, how many may start in its period; -1: unknown
    limit: int
    #: when the next token is free: ms; -1: it is no rate
    token: int
    serving: Serving
    is_alive: bool
    holders: list[str]


def task_subject(thing: Thing, queue: str = "") -> Subject:
    """A task; `queue`: the one in which it most likely is. Raises InvalidArgument."""
    backend = task_backend(thing.where)
    slot = _tasks(backend)
    likely = queue or (backend.queue_names[0] if backend.queue_names else "default")
    return Subject(thing, slot.using, partial(_read_job, slot, thing, likely))


def job_subject(thing: Thing, using: str) -> Subject:
    """A job of a delay queue."""
    slot = Slot(Engine(current_prefix(), "queue", thing.where), using)
    return Subject(thing, using, partial(_read_job, slot, thing, ONLY_QUEUE))


def timer_subject(thing: Thing, using: str) -> Subject:
    """A timer that has not started."""
    slot = Slot(TimerEngine(current_prefix()), using, without_worker="no_listener")
    unique = timer_name(thing.where, thing.name)
    return Subject(thing, using, partial(_read_job, slot, thing, thing.where, unique))


def queue_subject(thing: Thing, using: str) -> Subject:
    """A queue of a task backend, or a delay queue. Raises InvalidArgument."""
    if thing.where:
        slot, queue = _tasks(task_backend(thing.where)), thing.name
    else:
        slot, queue = Slot(Engine(current_prefix(), "queue", thing.name), using), ONLY_QUEUE
    return Subject(thing, slot.using, partial(_read_queue, slot, thing, queue))


def permit_subject(thing: Thing) -> Subject:
    """A concurrency key of tasks. Raises InvalidArgument."""
    slot = _tasks(task_backend(thing.where))
    return Subject(thing, slot.using, partial(_read_permit, slot, thing))


def explain_pause(pause: Paused, thing: Thing) -> Cause:
    """The cause of a pause of a queue, the thing, or of a task."""
    code, more = ("task_paused", {"task": pause.task}) if pause.task else ("queue_paused", {})
    return make(code, thing, **more, by=pause.by, reason=pause.reason, since=pause.since)


def _tasks(backend: Backend) -> Slot:
    return Slot(backend.engine, backend.using, backend.alias, "no_worker")


def _read_job(slot: Slot, thing: Thing, queue: str, unique: str = "") -> Steps[Sight]:
    stored = yield from _fetch(slot, "" if unique else thing.name, queue, unique)
    if stored is None:
        return Sight([make("unknown", thing)], exists=False)
    actual = _queue_of(stored.head, queue) if slot.alias else queue
    if actual != queue:
        stored, queue = (yield from _fetch(slot, stored.id, actual, "")) or stored, actual
    state = stored.state
    if state.status == "waiting":
        return (yield from _waiting(slot, thing, queue, stored))
    if state.status == "running":
        return Sight(_running(slot, thing, queue, stored))
    since, reason = to_datetime(state.moment), _reason(stored.failure)
    more = {"attempts": state.attempts, "reason": reason} if state.status == "dead" else {}
    return Sight([make(state.status, thing, since=since, **more)])


def _fetch(slot: Slot, job_id: str, queue: str, unique: str) -> Steps[Stored | None]:
    reply = yield job_script(slot.engine, job_id, queue, unique)
    return parse_job(reply) if reply else None


def job_script(engine: Engine, job_id: str, queue: str, unique: str = "") -> Script:
    """The step that reads a job, which most likely is in this queue."""
    keys = [*engine.keys.queue(queue).with_records, engine.keys.workers]
    words = (job_id, unique, engine.result_age(), HEARTBEAT_TIMEOUT, MAX_HOLDERS)
    return Script("explaining/job", keys, words)


def parse_job(reply: Sequence[Any]) -> Stored:
    now, job_id, state, head, failure, lease_end, before, queue_pause, task_pause = reply[:9]
    need, held, limit, token, workers, idle, running, rate, is_alive, *holders = reply[9:]
    return Stored(
        now, job_id.decode(), parse_state(state), head.decode(errors="replace"),
        failure.decode(errors="replace"), int(float(lease_end)), before, queue_pause, task_pause,
        need.decode(), held, limit, token, Serving(workers, idle, running, float(rate)), bool(is_alive),
        [one.decode() for one in holders],
    )  # fmt: skip


def _queue_of(head: str, likely: str) -> str:
    """The queue in the beginning of the payload of a task, which is a list: its path, its queue, …"""
    found = _PATH_AND_QUEUE.match(head)
    return str(json.loads(found[1])) if found else likely


def _waiting(slot: Slot, thing: Thing, queue: str, stored: Stored) -> Steps[Sight]:
    """Why a job waits: its own reasons, and then that of the need for which it waits."""
    own, state = _queue_thing(slot, thing, queue), stored.state
    causes = [*_not_due(thing, stored), *_pauses(thing, own, state, stored)]
    is_due = state.moment <= stored.now
    if is_due and slot.without_worker and not stored.serving.workers:
        causes.append(make(slot.without_worker, own))
    if is_due and stored.need:
        return _needing(slot, thing, stored, causes)
    # other code than tasks may hold it: then a worker that gets the job puts it back for a moment
    was_put_back = state.fence > 0 and state.attempts == 0
    if slot.alias and (is_due or was_put_back) and (lock := lock_of(state)):
        info = yield from lock_info(lock)
        if info.holder is not None:
            others = [one for one in causes if one.code != "not_due"]
            return held(Thing("lock", lock), info, others)
    if not causes:
        causes.append(_in_line(thing, stored))
    return Sight(causes)


def _not_due(thing: Thing, stored: Stored) -> list[Cause]:
    state = stored.state
    if state.moment <= stored.now:
        return []
    until = to_datetime(state.moment)
    if not state.attempts:
        return [make("not_due", thing, until=until)]
    error = _reason(stored.failure)
    return [make("retrying", thing, attempt=state.attempts, error=error, until=until)]


def _pauses(thing: Thing, queue: Thing, state: State, stored: Stored) -> list[Cause]:
    return pauses(thing, queue, state.field("task"), stored.queue_pause, stored.task_pause)


def pauses(
    thing: Thing, queue: Thing, task: str, queue_pause: bytes | None, task_pause: bytes | None
) -> list[Cause]:
    """The causes of the pauses of a queue, and of a task, whose name is encoded."""
    causes = []
    if queue_pause:
        causes.append(explain_pause(_parse_pause(b"queue:x", queue_pause), queue))
    if task_pause:
        causes.append(explain_pause(_parse_pause(b"task:" + task.encode(), task_pause), thing))
    return causes


def _parse_pause(which: bytes, fields: bytes) -> Paused:
    return parse_paused([which, fields])[0]


def _needing(slot: Slot, thing: Thing, stored: Stored, causes: list[Cause]) -> Sight:
    """What a job needs that is not free, and the first job that has it."""
    kind, _, name = stored.need.partition(":")
    if kind == "rate":
        return Sight([*causes, _rate_used_up(thing, stored, name)])
    holders = [Thing("task", one, slot.alias) for one in stored.holders]
    holder = str(holders[0]) if holders else None
    if kind == "lock":
        cause = make("lock_held", Thing("lock", unquote(name)), holder=holder, since=None, lease_until=None)
    else:
        permit = Thing("permit", unquote(name), slot.alias)
        names = tuple(map(str, holders))
        limit = stored.limit if stored.limit >= 0 else None
        cause = make("permits_held", permit, holder=holder, holders=names, held=stored.held, limit=limit)
    return Sight([*causes, cause], holders[0] if holders else None)


def _rate_used_up(thing: Thing, stored: Stored, name: str) -> Cause:
    rate, count, period = name.rsplit("/", 2)
    until = to_datetime(stored.token)
    return make(
        "rate_used_up", thing, rate=unquote(rate), count=int(count), period=int(period) / 1000, until=until
    )


def _in_line(thing: Thing, stored: Stored) -> Cause:
    """The jobs before one that only waits for its turn; of one that is about to be ready, none are known."""
    workers, jobs = stored.serving.workers, max(stored.before, 0)
    if not jobs:
        return make("next", thing, workers=workers, running=stored.serving.running)
    seconds = stored.serving.seconds(jobs)
    return make("behind", thing, jobs=jobs, seconds=seconds, workers=workers, running=stored.serving.running)


def _running(slot: Slot, thing: Thing, queue: str, stored: Stored) -> list[Cause]:
    state = stored.state
    worker = state.workers[-1] if state.workers else None
    until = to_datetime(stored.lease_end) if stored.lease_end > 0 else None
    since = to_datetime(state.last)
    if 0 <= stored.lease_end <= stored.now:
        causes = [make("lease_expired", thing, worker=worker, since=since, lease_until=until)]
        if slot.without_worker and not stored.serving.workers:
            causes.append(make(slot.without_worker, _queue_thing(slot, thing, queue)))
        return causes
    if worker is not None and not stored.is_alive:
        return [make("worker_lost", thing, worker=worker, since=since, lease_until=until)]
    attempt, most = state.attempts, state.max_attempts
    causes = [
        make(
            "running", thing, worker=worker, since=since, attempt=attempt, max_attempts=most,
            lease_until=until,
        )
    ]  # fmt: skip
    return [*causes, make("cancelling", thing)] if state.cancel else causes


def _reason(failure: str) -> str:
    """How an attempt failed, without what an exception says: that may contain arguments."""
    kind, rest = failure[:1], failure[1:]
    if kind == "L":
        return "LeaseLost"
    try:
        found, _ = json.JSONDecoder().raw_decode(rest, 1 if kind == "E" else 0)
    except ValueError:
        return ""
    return str(found) if kind in "EF" else ""


def _queue_thing(slot: Slot, thing: Thing, queue: str) -> Thing:
    if slot.alias:
        return Thing("queue", queue, slot.alias)
    # a namespace of timers is no queue of its own
    return thing if thing.kind == "timer" else Thing("queue", thing.where or thing.name)


def _read_queue(slot: Slot, thing: Thing, queue: str) -> Steps[Sight]:
    keys = slot.engine.keys
    pause, stats, serving = yield [
        Command("HGET", keys.paused, f"queue:{encoded(queue)}", reads=True),
        slot.engine.stats_call(queue),
        Script("explaining/serving", [keys.workers], (encoded(queue), HEARTBEAT_TIMEOUT)),
    ]
    ready, delayed, leased, _, _, parked = stats
    workers, idle, running, rate = serving
    live = Serving(int(workers), int(idle), int(running), float(rate))
    causes = [] if pause is None else [explain_pause(_parse_pause(b"queue:x", pause), thing)]
    if slot.without_worker and not live.workers:
        causes.append(make(slot.without_worker, thing))
    elif ready and live.workers and not live.idle:
        causes.append(make("workers_busy", thing, workers=live.workers, running=live.running))
    if ready:
        causes.append(make("backlog", thing, ready=ready, running=leased, seconds=live.seconds(ready)))
    if parked:
        causes.append(make("parked", thing, parked=parked))
    if not ready and not parked:
        causes.append(make("nothing_ready", thing, delayed=delayed, running=leased))
    return Sight(causes)


def _read_permit(slot: Slot, thing: Thing) -> Steps[Sight]:
    """The permits of a concurrency key. Each call has its own limit, unless set_concurrency has set one."""
    keys, name = slot.engine.keys, f"permit:{quote(thing.name, safe='')}"
    limit, held, members = yield [
        Command("HGET", keys.limits, name, reads=True),
        Command("ZLEXCOUNT", keys.held, f"[{name} ", f"({name}!", reads=True),
        Command("ZRANGEBYLEX", keys.held, f"[{name} ", f"({name}!", "LIMIT", 0, MAX_HOLDERS, reads=True),
    ]
    most = None if limit is None else int(limit)
    if held < most if most is not None else not held:
        return Sight([make("permits_free", thing, held=held, limit=most)])
    holders = [Thing("task", one.decode().partition(" ")[2], slot.alias) for one in members]
    names = tuple(map(str, holders))
    holder = names[0] if names else None
    cause = make("permits_held", thing, holder=holder, holders=names, held=held, limit=most)
    return Sight([cause], holders[0] if holders else None)
