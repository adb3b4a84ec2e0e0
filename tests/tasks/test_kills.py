"""The checker of the benchmark that kills workers finds each planted error."""

from __future__ import annotations

import pytest

from benchmarks.kill_checks import CALLS, COUNTED, LEASE, SLACK, Batch, Line, Round, Task, violations

pytestmark = pytest.mark.one_server

#: process ids of a worker, and of its children
WORKER, CHILD, OTHER = 1, 2, 3
MEMBERS = [f"call{number}" for number in range(CALLS)]


def lines_of(job_id: str, at: float = 1.0, need: str = "-") -> list[Line]:
    """What a task writes that runs to its end."""
    return [Line(what, job_id, OTHER, at, need) for what in ("begin", "end")]


def seen(
    tasks: dict[str, Task] | None = None,
    lines: list[Line] | None = None,
    batch: tuple[int, int, int] = (CALLS, 0, 0),
    **more: object,
) -> Round:
    """A round without errors, with these tasks and lines in place of its own."""
    stored = {name: Task("quick", "succeeded", 1) for name in ("job", "callback", *MEMBERS)} | (tasks or {})
    replaced = {line.id for line in lines or ()} | {name for name, one in stored.items() if not one.status}
    written = [line for name in stored if name not in replaced for line in lines_of(name)] + (lines or [])
    batches = [Batch(*batch, calls=MEMBERS, callback="callback")]
    return Round(stored, batches, written, **more)  # type: ignore[arg-type]


def lost_by(*workers: int, sort: str = "quick") -> dict[str, Task]:
    return {"job": Task(sort, "succeeded", 1, workers)}


BEGUN = [Line("begin", name, CHILD, 1.0) for name in ("job", "other")]
RUN_AGAIN = [*BEGUN, *lines_of("job")]
LATE = LEASE + SLACK + 1
CALLED = {MEMBERS[0]: Task("once", "dead")}

PLANTED = {
    "nothing stored": ("lost", seen({"job": Task("quick")})),
    "not ended": ("lost", seen({"job": Task("quick", "waiting")})),
    "dead": ("lost", seen({"job": Task("quick", "dead")})),
    "recorded, but did not run": ("lost", seen(lines=[Line("begin", "job", CHILD, 1.0)])),
    "recorded twice": ("twice", seen({"job": Task("quick", "succeeded", 2)})),
    "started twice": ("restarted", seen({"job": Task("once", "dead")}, lines_of("job") * 2)),
    "charged by a worker that lives": ("charged", seen(lost_by(WORKER))),
    "charged by a second one": ("charged", seen(lost_by(WORKER, 7), workers=[7])),
    "charged beside another one": ("charged", seen(lost_by(WORKER), RUN_AGAIN, children=[CHILD])),
    "lock is not released": ("held", seen(held=1)),
    "lock is late": ("held", seen(lines=lines_of("job", LATE, "lock0"))),
    "next one is late": ("held", seen(lines=[*lines_of("job", 1, "a"), *lines_of("x", LATE + 1, "a")])),
    "batch has a call too few": ("batches", seen(batch=(CALLS - 1, 0, 0))),
    "batch is not done": ("batches", seen(batch=(CALLS, 1, 0))),
    "batch has not counted a failure": ("batches", seen(CALLED)),
}


@pytest.mark.parametrize(("kind", "found"), PLANTED.values(), ids=PLANTED)
def test_planted_error_is_found(kind: str, found: Round) -> None:
    assert +violations(found) == {kind: 1}
    assert kind in COUNTED


def test_callback_that_was_not_called_is_found() -> None:
    assert +violations(seen({"callback": Task("callback")})) == {"lost": 1, "batches": 1}


EXPLAINED = {
    "no fault": seen(),
    "one attempt": seen({"job": Task("once", "dead", 0, [WORKER])}),
    "ended its process": seen({"job": Task("deadly", "dead", 0, [WORKER] * 5)}),
    "its worker was lost": seen(lost_by(7), workers=[7]),
    "its child was killed": seen(lost_by(WORKER), [BEGUN[0], *lines_of("job")], children=[CHILD]),
    "lock in time": seen(lines=lines_of("job", LATE, "lock0"), since=2.0),
    "started again": seen(lines=[*lines_of("job", 1, "lock0"), *lines_of("job", LATE + 1, "lock0")]),
    "failed call": seen(CALLED, batch=(CALLS, 0, 1)),
}


@pytest.mark.parametrize("found", EXPLAINED.values(), ids=EXPLAINED)
def test_what_a_fault_explains_is_no_error(found: Round) -> None:
    assert +violations(found) == {}
