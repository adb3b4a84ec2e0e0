"""What `benchmarks.kills` checks: what is stored of tasks, compared with what they wrote to a file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: seconds that a lease lasts
LEASE = 2
#: seconds by which a lock may be late: a task that finds the lock of a killed child is retried after a second
SLACK = 2.0
#: calls of a batch
CALLS = 25
#: tasks that need not succeed: those with one attempt, and those that end their process
MAY_FAIL = {"once", "deadly"}
#: what must not happen, with the titles of the columns
COUNTED = {
    "lost": "lost",
    "twice": "recorded twice",
    "restarted": "at most once, started twice",
    "charged": "others charged",
    "held": "locks late",
    "batches": "batches wrong",
}


class Line(NamedTuple):
    """What a task wrote to the file."""

    #: begin or end
    what: str
    #: of the task
    id: str
    pid: int
    #: monotonic
    moment: float
    #: lock or permit that it holds, or -
    need: str = "-"


class Task(NamedTuple):
    """What is stored of a task at the end of a round."""

    sort: str
    #: empty: nothing is stored
    status: str = ""
    #: number of return values that were recorded
    recorded: int = 0
    #: process ids of the workers of its lost attempts
    lost_by: Sequence[int] = ()


class Batch(NamedTuple):
    """What is stored of a batch: its counts, and the ids of its calls and of its callback."""

    total: int
    pending: int
    failed: int
    calls: Sequence[str]
    callback: str


class Round(NamedTuple):
    """What is known at the end of a round."""

    #: by id
    tasks: Mapping[str, Task]
    batches: Sequence[Batch]
    lines: Sequence[Line]
    #: process ids of the workers that lost their leases by the fault, and of the children that were killed
    workers: Sequence[int] = ()
    children: Sequence[int] = ()
    #: when the leases that the fault ends began to end: monotonic
    since: float = 0.0
    #: from the fault until no task was left
    seconds: float = 0.0
    #: locks and permits that were held when all tasks and their leases had ended
    held: int = 0


def violations(seen: Round) -> Counter[str]:
    """Count what must not happen, by the keys of COUNTED."""
    begins = Counter(line.id for line in seen.lines if line.what == "begin")
    ends = Counter(line.id for line in seen.lines if line.what == "end")
    found: Counter[str] = Counter()
    for job_id, one in seen.tasks.items():
        has_ended = one.status == "succeeded" and ends[job_id] > 0
        found["lost"] += not (has_ended or (one.sort in MAY_FAIL and one.status == "dead"))
        found["twice"] += one.recorded > 1
        found["restarted"] += one.sort == "once" and begins[job_id] > 1
    found["charged"] = count_charged(seen)
    found["held"] = seen.held + count_late(seen)
    found["batches"] = sum(not is_right(batch, seen.tasks) for batch in seen.batches)
    return found


def count_started_again(seen: Round) -> int:
    """Tasks that were started more than once, as far as they noted that: what a fault may cost."""
    begins = Counter(line.id for line in seen.lines if line.what == "begin")
    return sum(begins[job_id] > 1 for job_id in seen.tasks)


def count_charged(seen: Round) -> int:
    """Lost attempts that the fault does not explain. A worker that is lost may lose all its tasks, a killed
    child the only one that ran there."""
    lost = sum(
        pid not in seen.workers
        for one in seen.tasks.values()
        if one.sort not in MAY_FAIL
        for pid in one.lost_by
    )
    running: dict[int, set[str]] = defaultdict(set)
    for line in seen.lines:
        (running[line.pid].add if line.what == "begin" else running[line.pid].discard)(line.id)
    return max(lost - sum(len(running[pid]) <= 1 for pid in seen.children), 0)


def count_late(seen: Round) -> int:
    """Locks and permits that nobody got for longer than a lease, though a task waited for them. One that
    starts again may have waited for something else: to run in a process of its own."""
    latest: dict[str, float] = {}
    known: set[str] = set()
    late = 0
    for line in sorted(seen.lines, key=lambda line: line.moment):
        if line.what == "begin" and line.need != "-":
            before = max(latest.get(line.need, 0.0), seen.since)
            late += line.id not in known and line.moment - before > LEASE + SLACK
            latest[line.need] = line.moment
            known.add(line.id)
    return late


def is_right(batch: Batch, tasks: Mapping[str, Task]) -> bool:
    """Whether its counts are those of its calls, and its callback was called."""
    failed = sum(tasks[one].status == "dead" for one in batch.calls)
    counts = batch.total, batch.pending, batch.failed
    return counts == (CALLS, 0, failed) and tasks[batch.callback].status == "succeeded"
