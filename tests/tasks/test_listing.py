"""Tasks, workers and schedules as operators see and change them."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_redis_messaging import InvalidArgument
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.services.jobs.listing import JobFilter, JobRow
from django_redis_messaging.tasks import Schedules, chain, periodic, task
from django_redis_messaging.tasks.compat import TaskResultDoesNotExist

from ..conftest import Call
from ..support.server import server, until
from ..support.workers import FAILED, SUCCESSFUL, at_work, backend, burst, engine, keys
from . import jobs


@task(tags=("customer:7",), group="tenant 1", expires=3600, lock="nightly")
def described(text: str) -> str:
    return text.upper()


@task
def fail_at_length() -> None:
    raise ValueError("first line\n" + 'a "quoted" \\n line\n' * 100)


def rows(place: str, queue: str = "default", **values: Any) -> list[JobRow]:
    return backend().jobs(queue).page(place, which=JobFilter(**values)).rows


def ids(found: list[JobRow]) -> list[str]:
    return [row.id for row in found]


async def test_dead_tasks_are_listed_and_redriven(call: Call) -> None:
    failed = [jobs.fail.enqueue(f"no {number}").id for number in range(3)]
    long, kept = fail_at_length.enqueue().id, jobs.fail.using(queue_name="other").enqueue("x").id
    burst("default", "other")
    page = await call(backend(), "dead", limit=3)
    assert ids(page.rows) == [long, *failed[:0:-1]]
    assert page.rows[0].reason == r'builtins.ValueError: a "quoted" \n line', "the last line of a long text"
    row = page.rows[1]
    assert (row.task, row.queue) == (jobs.fail.module_path, "default")
    assert row.reason == "builtins.ValueError: no 2"
    assert (row.arguments, row.attempts, row.place) == ('["no 2"], {}', 1, "dead")
    assert ids((await call(backend(), "dead", cursor=page.cursor)).rows) == failed[:1]
    assert ids((await call(backend(), "dead", task=fail_at_length.module_path)).rows) == [long]
    with pytest.raises(InvalidArgument, match="cursor"):
        backend().dead("other", cursor=page.cursor)
    later = timezone.now() + timedelta(hours=1)
    assert await call(backend(), "redrive", "default", [failed[0], kept, "unknown"], run_after=later) == 1
    [delayed] = rows("delayed")
    assert (delayed.id, delayed.attempts) == (failed[0], 0)
    assert delayed.due_at is not None and abs(delayed.due_at - later) < timedelta(seconds=0.01)
    assert await call(backend(), "redrive", "default") == 3
    assert [one.id for one in rows("dead", "other")] == [kept]
    with pytest.raises(TypeError, match="list"):
        backend().redrive("default", "id")


def test_finished_tasks_of_one_queue() -> None:
    done = jobs.echo.enqueue("ü" * 2000).id
    other = jobs.noop.using(queue_name="other").enqueue().id
    cancelled = jobs.noop.enqueue()
    cancelled.cancel()
    burst("default", "other")
    assert set(ids(rows("finished"))) == {done, cancelled.id}
    assert ids(rows("finished", "other")) == [other]
    [row] = rows("finished", task=jobs.echo.module_path, text="üü")
    assert (row.id, row.status, row.queue) == (done, "succeeded", "default")
    assert row.arguments.startswith('["üüü') and len(row.arguments) < 300
    assert row.ended_at is not None and row.due_at is None
    assert [one.reason for one in rows("finished", task=jobs.noop.module_path)] == ["The task was cancelled."]
    assert backend().jobs().discard(JobFilter(task=jobs.noop.module_path), place="finished").count == 1
    with pytest.raises(TaskResultDoesNotExist):
        cancelled.refresh()
    assert ids(rows("finished")) == [done]
    assert ids(rows("finished", "other")) == [other]


@pytest.mark.usefixtures("short_backoff")
def test_a_task_with_all_that_is_known() -> None:
    result = chain(described.using(run_after=timedelta(0)), jobs.echo).enqueue("a")
    found = backend().jobs().get(result.id)
    assert found is not None
    row = found.job
    assert (row.tags, row.group, row.needs) == (("customer:7",), "tenant 1", ("lock:nightly",))
    assert row.expires_at is not None and row.expires_at > row.pushed_at
    assert found.follow_up is not None
    assert (found.follow_up.task, found.follow_up.queue) == (jobs.echo.module_path, "default")
    burst()
    found = backend().jobs().get(result.id)
    assert found is not None and found.follow_up is not None
    assert (found.return_value, found.job.status, found.job.arguments) == ('"A"', "succeeded", '["a"], {}')
    [attempt] = found.attempts
    assert (attempt.number, attempt.error, attempt.worker) == (1, "", found.job.worker)
    assert attempt.started_at is not None and attempt.ended_at is not None
    assert backend().get_result(found.follow_up.id).return_value == [["A"], {}]
    failing = jobs.fail.using(max_attempts=3, retry_on=(ValueError,)).enqueue("no")
    burst()

    def has_failed() -> bool:
        burst()
        failing.refresh()
        return failing.status == FAILED

    until(has_failed)
    found = backend().jobs().get(failing.id)
    assert found is not None
    assert [(one.number, one.error) for one in found.attempts] == [
        (number, "builtins.ValueError") for number in (1, 2, 3)
    ]
    assert all("ValueError: no" in one.traceback and one.worker for one in found.attempts)
    assert [one.ended_at is not None for one in found.attempts] == [False, False, True]
    assert backend().jobs().get("unknown") is None


async def test_cancel_and_run_now(call: Call) -> None:
    tasks = backend().jobs()
    later = [jobs.noop.using(run_after=timedelta(hours=1)).enqueue() for _ in range(3)]
    assert (await call(tasks, "reschedule", [later[0].id])).count == 1
    burst()
    later[0].refresh()
    assert later[0].status == SUCCESSFUL
    assert (await call(tasks, "cancel", JobFilter(task=jobs.noop.module_path), place="delayed")).count == 2
    later[1].refresh()
    assert (later[1].status, later[1].errors[0].exception_class_path.rpartition(".")[2]) == (
        FAILED,
        "TaskCancelled",
    )
    assert (await call(tasks, "cancel", [one.id for one in later])).count == 0


async def test_workers_and_what_they_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "go", threading.Event())
    assert await call(backend(), "workers") == []
    with at_work("default", "other", concurrency=2) as worker:
        result = jobs.wait.enqueue()
        until(lambda: engine().stats("default")[2] == 1)
        until(lambda: server().hlen(keys().workers) == 1)
        [found] = await call(backend(), "workers")
        [page] = [await call(backend().jobs(), "page", "leased")]
        try:
            [job] = found.jobs
            assert (found.id, found.is_consuming) == (worker.id, True)
            assert worker.id.startswith(f"{found.host}-{found.pid}-")
            assert found.started_at <= found.beat_at
            assert (job.id, job.queue, job.task) == (result.id, "default", jobs.wait.module_path)
            assert job.since < job.lease_ends_at and not job.is_cancelling
            assert (page.rows[0].worker, page.rows[0].started_at) == (worker.id, job.since)
            assert (await call(backend().jobs(), "cancel", JobFilter(), place="leased")).count == 1
        finally:
            jobs.go.set()
    assert backend().workers() == []


def test_a_call_that_left_its_place_is_not_changed() -> None:
    """Though its id was chosen while it was there."""
    result = jobs.fail.enqueue()
    burst()
    tasks = backend().jobs()
    assert tasks.redrive([result.id]).count == 1
    assert tasks.redrive([result.id]).count == tasks.discard([result.id]).count == 0
    assert tasks.discard([result.id], place="finished").count == 0
    [leased] = engine().claim(["default"], 1, 60_000).jobs
    assert tasks.redrive(JobFilter()).count == tasks.reschedule([result.id]).count == 0
    assert engine().settle(leased.lease.settlement(Outcome.DONE, 60_000, "R1"))
    assert tasks.cancel([result.id]).count == 0
    result.refresh()
    assert result.status == SUCCESSFUL


async def test_schedules_run_now(call: Call) -> None:
    periodic(every=86_400)(jobs.noop)
    own = Schedules()
    own.add("x", jobs.echo.using(queue_name="other", priority=3), every=86_400, args=[7])
    own.pause("x")
    result = await call(own, "run_now", "x")
    assert (result.args, result.task.queue_name, result.task.priority) == ([7], "other", 3)
    declared = await call(own, "run_now", jobs.noop.module_path)
    burst("default", "other")
    assert backend().get_result(result.id).return_value == [[7], {}]
    assert backend().get_result(declared.id).status == SUCCESSFUL
    assert await call(own, "run_now", "unknown") is None
    assert [one.enqueued for one in own.all()] == [None, None]
