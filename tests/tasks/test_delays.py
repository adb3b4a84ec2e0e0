"""Calls that wait: `delay`, and unique calls that replace a waiting one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from pytest_django import Settings

from django_redis_messaging import LimitExceeded
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.tasks import task
from django_redis_messaging.tasks.compat import InvalidTask, TaskResult

from ..conftest import Call
from ..support.server import change, reply_to, until
from ..support.workers import (
    FAILED,
    READY,
    SUCCESSFUL,
    at_work,
    backend,
    burst,
    counts,
    ended,
    engine,
    later,
    state,
)
from . import jobs


@task(delay=1000)
def later_note(value: Any) -> None:
    jobs.notes.append(value)


@task(unique=lambda document, *_: document, on_duplicate="replace", delay=1000)
def index(document: str, version: int = 0) -> int:
    jobs.notes.append(version)
    return version


@task(unique="now", on_duplicate="replace")
def index_now(version: int) -> None:
    jobs.notes.append(version)


@task(unique="one", on_duplicate="replace", max_attempts=3, backoff=1000)
def index_or_fail(text: str) -> str:
    jobs.notes.append(text)
    if text.startswith("wait"):
        jobs.go.wait(30)
    if text.endswith("fail"):
        raise ValueError(text)
    return text


@task(then=index)
def render(name: str) -> str:
    return name


def delay_of(result: TaskResult) -> int:
    """The seconds between the enqueue and the moment at which the call is due, rounded down to hundreds."""
    found = state(result)
    return (found.moment - found.pushed) // 100_000 * 100


def fresh(result: TaskResult) -> TaskResult:
    return backend().get_result(result.id)


class TestDelay:
    def test_each_call_waits(self) -> None:
        results = [later_note.enqueue(1), *later_note.enqueue_many([([2], {}), ([3], {})])]
        assert counts() == [0, 3, 0, 0]
        assert {delay_of(one) for one in results} == {1000}

    def test_run_after_wins(self) -> None:
        result = later_note.using(run_after=later(5000)).enqueue(1)
        assert delay_of(result) in (4900, 5000)
        assert delay_of(jobs.note.using(delay=2000).enqueue(1)) == 2000
        assert delay_of(later_note.using(delay=None).enqueue(1)) == 0

    def test_follow_up_waits_after_the_task_before_it(self) -> None:
        own = jobs.double.using(then=later_note).enqueue(1)
        by_using = jobs.double.using(then=jobs.note.using(delay=2000)).enqueue(1)
        burst()
        found = [backend().get_result(one.then_id) for one in (own, by_using)]
        assert [delay_of(one) for one in found] == [1000, 2000]

    @pytest.mark.parametrize("value", [-1, "1", timedelta(seconds=1)])
    def test_invalid_values(self, value: Any) -> None:
        with pytest.raises(InvalidTask, match="delay must be"):
            jobs.note.using(delay=value).enqueue(1)


@pytest.mark.versions
class TestReplace:
    async def test_it_replaces_the_arguments_and_restarts_the_delay(self, call: Call) -> None:
        first = await call(index, "enqueue", "a", 1)
        before = state(first)
        until(lambda: backend().engine and state(later_note.enqueue(0)).pushed > before.pushed)
        second = await call(index, "enqueue", "a", 2)
        assert second.id == first.id
        assert (fresh(first).args, fresh(first).enqueued_at) == (["a", 2], second.enqueued_at)
        assert state(first).moment - before.moment == state(first).pushed - before.pushed > 0
        assert await call(index, "reschedule", first.id, later(-1))
        burst()
        assert jobs.notes == [2]
        assert fresh(first).return_value == 2

    def test_other_keys_stay(self) -> None:
        first, other = index.enqueue("a", 1), index.enqueue("b", 2)
        assert first.id != other.id
        index.enqueue("a", 3)
        assert [fresh(one).args for one in (first, other)] == [["a", 3], ["b", 2]]
        assert counts() == [0, 2, 0, 0]

    def test_without_a_delay_it_goes_to_the_end(self) -> None:
        first = index_now.enqueue(1)
        jobs.note.enqueue("between")
        assert index_now.enqueue(2).id == first.id
        assert counts() == [2, 0, 0, 0]
        burst()
        assert jobs.notes == ["between", 2]

    def test_priority_and_delay_are_those_of_the_last_call(self) -> None:
        first = index.enqueue("a", 1)
        index.using(priority=7, delay=0, max_attempts=2).enqueue("a", 2)
        found = state(first)
        assert (found.priority, found.max_attempts, counts()) == (7, 2, [1, 0, 0, 0])
        index.enqueue("a", 3)
        assert (state(first).priority, delay_of(first), counts()) == (0, 1000, [0, 1, 0, 0])

    def test_queues_have_keys_of_their_own(self) -> None:
        first, other = index.enqueue("a", 1), index.using(queue_name="other").enqueue("a", 2)
        assert first.id != other.id
        assert (fresh(first).args, fresh(other).args) == (["a", 1], ["a", 2])

    def test_calls_of_one_enqueue_many(self) -> None:
        results = index.enqueue_many([(["a", version], {}) for version in range(250)])
        results += index_now.enqueue_many([([version], {}) for version in range(250)])
        assert len({one.id for one in results}) == 2
        assert counts() == [1, 1, 0, 0]
        assert [fresh(results[at]).args for at in (0, -1)] == [["a", 249], [249]]

    @pytest.mark.django_db(transaction=True)
    def test_calls_that_wait_for_a_commit(self) -> None:
        waiting = index.enqueue("a", 0)
        with transaction.atomic():
            unsent = [index.using(on_commit=True).enqueue("a", version) for version in (1, 2)]
            ids = [one.id for one in unsent]
        assert fresh(waiting).args == ["a", 2]
        assert {backend().get_result(one).id for one in ids} == {waiting.id}

    def test_a_full_queue_takes_what_replaces(self, settings: Settings) -> None:
        first = index.enqueue("a", 1)
        change(settings, JOB_MAX_WAITING=1)
        assert index.enqueue("a", 2).id == first.id
        with pytest.raises(LimitExceeded):
            index.enqueue("b", 1)
        engine().reschedule("default", first.id, 0, "")
        engine().claim(["default"], 1, 60_000)
        index.enqueue("a", 3)
        with pytest.raises(LimitExceeded):
            index.enqueue("b", 1)

    def test_attempts_begin_anew(self) -> None:
        first = index_or_fail.enqueue("fail")
        burst()
        assert (fresh(first).attempts, len(fresh(first).errors)) == (1, 1)
        assert index_or_fail.enqueue("works").id == first.id
        assert (fresh(first).attempts, fresh(first).errors, fresh(first).status) == (0, [], READY)
        burst()
        assert (fresh(first).return_value, fresh(first).attempts) == ("works", 1)

    def test_clients_that_wait_stay(self) -> None:
        first = index.enqueue("a", 1)
        engine().await_end(first.id)
        index.enqueue("a", 2)
        assert state(first).awaited

    def test_a_call_that_runs_is_left_alone(self) -> None:
        first = index_or_fail.enqueue("wait")
        with at_work(concurrency=2):
            until(lambda: jobs.notes)
            second = index_or_fail.enqueue("second")
            assert second.id != first.id
            assert ended(second).return_value == "second"
            jobs.go.set()
            assert ended(first).return_value == "wait"

    def test_calls_after_the_running_one_replace_each_other(self) -> None:
        first = index.using(delay=0).enqueue("a", 1)
        [leased] = engine().claim(["default"], 1, 60_000).jobs
        second = index.enqueue("a", 2)
        assert index.enqueue("a", 3).id == second.id != first.id
        assert engine().settle(leased.lease.settlement(Outcome.DONE, 60_000, "R1"))
        assert index.enqueue("a", 4).id == second.id
        assert (fresh(first).args, fresh(second).args) == (["a", 1], ["a", 4])

    @pytest.mark.parametrize("newer", ["waits", "has ended"])
    @pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.RELEASE])
    def test_an_older_call_never_runs_after_a_newer_one(self, newer: str, outcome: Outcome) -> None:
        first = index_or_fail.enqueue("first")
        [leased] = engine().claim(["default"], 1, 60_000).jobs
        second = index_or_fail.enqueue("second")
        if newer == "has ended":
            burst()
            assert fresh(second).status == SUCCESSFUL
        assert engine().settle(leased.lease.settlement(outcome, 0, ""))
        burst()
        assert jobs.notes == ["second"]
        found = fresh(first)
        assert found.status == FAILED
        assert found.errors[-1].exception_class_path == "django_redis_messaging.errors.TaskCancelled"
        assert "A newer call with the same unique key" in found.errors[-1].traceback
        assert fresh(second).status == SUCCESSFUL

    def test_follow_ups_replace_each_other(self) -> None:
        results = render.enqueue_many([(["a"], {}), (["a"], {}), (["b"], {})])
        burst()
        ids = [backend().get_result(one.then_id).id for one in results]
        assert ids[0] == ids[1] != ids[2]
        assert counts() == [0, 2, 0, 0]

    @pytest.mark.one_server
    def test_lost_replies_replace_once(self) -> None:
        """A repeat after a newer call would bring back the older arguments."""
        first = index.enqueue("a", 1)
        pushing = backend()._push([backend()._prepared(index, ["a", 2], {})])
        step = next(pushing)
        reply = reply_to(step)
        index.enqueue("a", 3)
        assert reply_to(step) == reply
        assert fresh(first).args == ["a", 3]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"on_duplicate": "drop"}, "on_duplicate must be 'keep' or 'replace', not 'drop'"),
            ({"on_duplicate": "replace"}, "on_duplicate='replace' needs unique"),
        ],
    )
    def test_invalid_values(self, options: Any, message: str) -> None:
        with pytest.raises(InvalidTask, match=message):
            jobs.note.using(**options)

    @pytest.mark.timing
    def test_concurrent_calls_leave_one(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda version: index.enqueue("a", version), range(100)))
        assert len({one.id for one in results}) == 1
        assert counts() == [0, 1, 0, 0]
