"""Promises of the worker about its limits, timeouts, stops and lost lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redis_messaging.services.jobs.engine import Engine
from django_redis_messaging.services.jobs.worker import Worker as JobsWorker
from django_redis_messaging.tasks import task
from django_redis_messaging.tasks.compat import TaskResultStatus
from django_redis_messaging.tasks.worker import Limits

from ..support.workers import (
    PATIENCE,
    at_work,
    backend,
    burst,
    engine,
    liveness,
    running,
    state,
    until,
    worker,
)
from . import jobs

pytestmark = pytest.mark.one_server


@pytest.fixture(autouse=True)
def reset_jobs() -> Iterator[None]:
    jobs.notes.clear()
    jobs.go.clear()
    yield
    jobs.go.set()


@task(takes_context=True)
def fail_with_attempt(context: Any) -> None:
    raise ValueError(f"attempt {context.attempt}")


def test_redriven_task_keeps_its_errors_and_starts_attempts_anew() -> None:
    result = fail_with_attempt.enqueue()
    burst()
    assert engine().redrive("default", None) == 1
    result.refresh()
    assert (result.status, len(result.errors)) == (TaskResultStatus.READY, 1)
    burst()
    result.refresh()
    last_lines = [error.traceback.splitlines()[-1] for error in result.errors]
    assert (result.status, last_lines) == (TaskResultStatus.FAILED, ["ValueError: attempt 1"] * 2)


def test_worker_with_max_tasks_still_takes_tasks_after_it_was_idle() -> None:
    with at_work(concurrency=2, max_tasks=2, lease=0.3) as runner:
        until(lambda: liveness(runner) and liveness(runner)[1])  # it has asked for tasks
        for number in range(3):
            jobs.note.enqueue(number)
        until(lambda: len(jobs.notes) == 2)
    assert runner.done == 2
    assert engine().stats("default")[0] == 1


class Unprintable(Exception):
    """An exception that can't be formatted."""

    def __str__(self) -> str:
        raise SystemExit(0)


@pytest.mark.parametrize("error", [RuntimeError, Unprintable])
def test_failed_lane_ends_the_worker_while_other_lanes_wait(error: type[Exception]) -> None:
    def fail_unexpectedly(_: object) -> None:
        raise error("unexpected error")

    runner = JobsWorker(
        backend().engine, backend().using, ["default"], fail_unexpectedly, Limits(concurrency=2)
    )
    jobs.noop.enqueue()
    with running(runner.run, runner.stop) as thread:
        thread.join(PATIENCE / 4)
        assert not thread.is_alive()
    assert runner.failed


def test_nothing_is_run_that_was_claimed_during_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Engine.claim

    def stop_before_reply(self: Engine, *args: Any, **options: Any) -> Any:
        claimed = yield from claim(self, *args, **options)
        if claimed.jobs:
            runner.stop()
            until(runner._stopping.is_set)
        return claimed

    monkeypatch.setattr(Engine, "claim", stop_before_reply)
    result = jobs.note.enqueue("never")
    runner = worker()
    runner.run()
    assert jobs.notes == []
    assert (state(result).status, state(result).attempts) == ("w", 0)
