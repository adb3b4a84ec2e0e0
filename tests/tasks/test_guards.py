"""Tasks with a lock or a limited concurrency: what a call holds while it runs, and what happens if it is not
free."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_redis_messaging import Lock, Semaphore, Unavailable, conf, observe, unobserve
from django_redis_messaging.tasks import RedisTask, worker
from django_redis_messaging.tasks.compat import TaskResult, TaskResultStatus
from django_redis_messaging.tasks.worker import ConcurrencyKeys

from ..support.workers import PATIENCE, at_work, backend, burst, ended, keys, server, server_ms, state, until
from . import jobs
from .conformance import recording_signals
from .test_worker import counts, reset_jobs

__all__ = ["reset_jobs"]

READY, SUCCESSFUL, FAILED = TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


@pytest.fixture
def order_lock() -> Iterator[Lock]:
    """The lock "order:7", held by this test."""
    with Lock("order:7", timeout=60) as lock:
        yield lock


@pytest.fixture
def operations() -> Iterator[Counter[str]]:
    """The number of operations by name."""
    counted: Counter[str] = Counter()
    observer = observe(lambda operation, seconds, outcome: counted.update([operation]))
    yield counted
    unobserve(observer)


def run_now(*results: TaskResult) -> None:
    """Run deferred calls without their delay."""
    for result in results:
        assert result.task.reschedule(result.id, timezone.now() - timedelta(seconds=1))  # type: ignore[attr-defined]
    burst()


def delays() -> list[float]:
    """The ms until each delayed job is due."""
    now = server_ms()
    return [due - now for _, due in server().zrange(keys().queue("default").delayed, 0, -1, withscores=True)]


def assert_unstarted(result: TaskResult) -> None:
    """The call looks as if no worker had claimed it."""
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids, result.errors) == (READY, 0, [], [])
    assert result.started_at is result.last_attempted_at is result.finished_at is None
    assert counts() == [0, 1, 0, 0]


@contextmanager
def permit_of(customer: str) -> Iterator[None]:
    """Hold the only permit of the calls of this customer."""
    semaphore = Semaphore(f"task:customer:{customer}", 1, timeout=60)
    assert semaphore.acquire()
    yield
    semaphore.release()


def is_held(name: str) -> bool:
    return Lock(name).locked()


@pytest.mark.versions
class TestLock:
    @pytest.mark.parametrize("task", [jobs.locked_state, jobs.async_locked_state])
    def test_call_holds_the_lock_of_its_arguments(self, task: RedisTask) -> None:
        with Lock("order:8", timeout=60) as other:
            result = task.enqueue(7)
            burst()
            result.refresh()
            acquired, fence = result.return_value
            assert (result.status, acquired) == (SUCCESSFUL, False)
            assert fence > other.fence
        assert not is_held("order:7")

    def test_context_has_no_lock_fence_without_a_lock(self) -> None:
        result = jobs.locked_state.using(lock=None).enqueue(7)
        burst()
        result.refresh()
        assert result.return_value == [True, 0]

    def test_call_waits_for_a_lock_that_is_held(self, order_lock: Lock) -> None:
        result = jobs.locked_note.enqueue(7, "seven")
        with recording_signals() as signals:
            assert burst().done == 0
        assert (jobs.notes, signals) == ([], [])
        assert_unstarted(result)
        order_lock.release()
        run_now(result)
        result.refresh()
        assert (result.status, result.attempts, jobs.notes) == (SUCCESSFUL, 1, ["seven"])
        order_lock.acquire()

    def test_call_is_retried_after_a_second(self, order_lock: Lock) -> None:
        before = server_ms()
        result = jobs.locked_note.enqueue(7)
        burst()
        assert state(result).moment >= before + 1000
        assert all(delay <= 1002 for delay in delays())

    def test_deferred_call_can_be_cancelled(self, order_lock: Lock) -> None:
        result = jobs.locked_note.enqueue(7)
        burst()
        assert result.task.cancel(result.id)  # type: ignore[attr-defined]
        result.refresh()
        assert (result.status, counts()) == (FAILED, [0, 0, 0, 0])

    def test_other_calls_run_meanwhile(self, order_lock: Lock) -> None:
        for order in (7, 8, 9):
            jobs.locked_note.enqueue(order, order)
        jobs.note.enqueue("free")
        assert burst(concurrency=1).done == 3
        assert jobs.notes == [8, 9, "free"]

    @pytest.mark.parametrize(
        ("task", "args", "error"),
        [(jobs.locked_fail, [], "ValueError"), (jobs.locked_sleep, [20], "TaskTimeout")],
    )
    def test_lock_is_released_after_errors(self, task: RedisTask, args: list[Any], error: str) -> None:
        result = task.enqueue(*args)
        burst()
        result.refresh()
        assert [one.exception_class.__name__ for one in result.errors] == [error]
        assert not is_held("order:7")
        assert Semaphore(f"task:{task.module_path}", 2).info().held == 0

    def test_earlier_attempts_stay_charged(self, order_lock: Lock) -> None:
        order_lock.release()
        result = jobs.locked_fail.using(max_attempts=3).enqueue()
        burst()
        order_lock.acquire()
        run_now(result)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)

    async def test_all_enqueue_methods_store_the_lock(self) -> None:
        await jobs.locked_note.aenqueue(7)
        await jobs.locked_note.aenqueue_many([([7], {}), ([], {"order_id": 7})])
        await asyncio.to_thread(jobs.locked_note.enqueue_many, [([7], {})])
        async with Lock("order:7"):
            assert (await asyncio.to_thread(burst)).done == 0
        assert await asyncio.to_thread(counts) == [0, 4, 0, 0]

    @pytest.mark.django_db(transaction=True)
    def test_lock_is_stored_on_commit(self, order_lock: Lock) -> None:
        with transaction.atomic():
            jobs.locked_note.enqueue_on_commit().enqueue(7)
        assert burst().done == 0
        assert counts() == [0, 1, 0, 0]

    def test_using_overrides_the_decorator(self, order_lock: Lock) -> None:
        jobs.locked_note.using(lock=None).enqueue(7, "no lock")
        jobs.locked_note.using(lock="invoice:{order_id}").enqueue(7, "other lock")
        jobs.locked_note.using(lock=lambda order_id, value: f"order:{order_id - 1}").enqueue(8, "same lock")
        jobs.note.using(lock="order:7").enqueue("lock of an undecorated task")
        burst()
        assert jobs.notes == ["no lock", "other lock"]

    def test_stored_name_is_not_formatted_again(self) -> None:
        with Lock("order:{value}{{", timeout=60) as lock:
            result = jobs.locked_note.enqueue("{value}{{", 1)
            assert burst().done == 0
            lock.release()
            run_now(result)
            result.refresh()
            assert result.status == SUCCESSFUL
            lock.acquire()

    def test_jobs_of_earlier_versions_run(self, order_lock: Lock) -> None:
        result = jobs.locked_note.enqueue(7, "old")
        fields = json.loads(server().hget(keys().jobs, result.id))
        assert fields[6:] == [["order:7", ""]]
        server().hset(keys().jobs, result.id, json.dumps(fields[:6]))
        burst()
        assert jobs.notes == ["old"]

    def test_invalid_stored_name_is_dead_lettered(self) -> None:
        result = jobs.locked_note.enqueue(7)
        fields = json.loads(server().hget(keys().jobs, result.id))
        server().hset(keys().jobs, result.id, json.dumps([*fields[:6], ["x" * 256, ""]]))
        assert not burst().failed
        assert counts() == [0, 0, 0, 1]


@pytest.mark.versions
class TestConcurrency:
    def test_no_more_calls_run_than_allowed(self) -> None:
        semaphore = Semaphore(f"task:{jobs.limited_wait.module_path}", 2)
        results = [jobs.limited_wait.enqueue() for _ in range(3)]
        with at_work(concurrency=4):
            until(lambda: counts() == [0, 1, 2, 0])
            assert semaphore.info().held == 2
            jobs.note.enqueue("other")
            until(lambda: jobs.notes == ["waits", "waits", "other"])
            jobs.go.set()
            assert {ended(result).attempts for result in results} == {1}
        assert semaphore.info().held == 0

    def test_key_is_made_of_the_arguments(self) -> None:
        with permit_of("ann"):
            results = [jobs.limited_note.enqueue(customer) for customer in ("ann", "bob")]
            burst()
            assert jobs.notes == ["bob"]
        assert_unstarted(results[0])
        run_now(results[0])
        assert jobs.notes == ["bob", "ann"]

    def test_lock_is_given_back_if_no_permit_is_free(self) -> None:
        task = jobs.limited_note.using(lock="customer")
        with permit_of("ann"):
            result = task.enqueue("ann")
            burst()
        assert not is_held("customer")
        assert_unstarted(result)

    def test_no_permit_is_taken_if_the_lock_is_held(self, operations: Counter[str]) -> None:
        with Lock("customer", timeout=60):
            result = jobs.limited_note.using(lock="customer").enqueue("ann")
            burst()
        assert operations["Semaphore.acquire"] == 0
        assert Semaphore("task:customer:ann", 1).info().held == 0
        assert_unstarted(result)

    def test_changed_limit_applies_to_waiting_calls_after_a_deploy(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        semaphore, results = Semaphore("task:customer:ann", 7), []
        jobs.limited_note.enqueue("ann")
        burst()
        stored = ConcurrencyKeys(conf.prefix(), semaphore.name)
        assert all(server().pttl(key) > 86_400_000 for key in (stored.limit, stored.declared))
        assert semaphore.info().limit == 1
        for limit in (3, 2):
            results.append(jobs.limited_note.enqueue("ann"))
            with monkeypatch.context() as deploy:
                deploy.setattr(jobs, "limited_note", _declared_with(jobs.limited_note, limit))
                burst()
                assert backend().get_result(results[-1].id).task.concurrency == limit
            assert semaphore.info().limit == limit
        assert [ended(result).status for result in results] == [SUCCESSFUL] * 2

    def test_set_limit_stays_until_the_declared_limit_changes(self, operations: Counter[str]) -> None:
        semaphore = Semaphore("task:customer:ann", 7)
        for _ in range(3):
            jobs.limited_note.enqueue("ann")
        burst()
        assert operations["declare_limit"] == 1
        semaphore.set_limit(0)
        result = jobs.limited_note.enqueue("ann")
        burst()  # another worker, with the same code
        assert_unstarted(result)
        assert semaphore.info().limit == 0
        jobs.limited_note.using(concurrency=2).enqueue("ann")
        burst()
        assert (semaphore.info().limit, jobs.notes) == (2, ["ann"] * 4)

    def test_limit_is_declared_again_after_a_while(
        self, operations: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "DECLARE_INTERVAL", 0)
        for _ in range(3):
            jobs.limited_note.enqueue("ann")
        burst()
        assert operations["declare_limit"] == 3

    def test_limit_of_using_is_kept_with_the_call(self) -> None:
        result = jobs.limited_wait.using(concurrency=5).enqueue()
        assert backend().get_result(result.id).task.concurrency == 5
        own = backend().get_result(jobs.limited_wait.enqueue().id)
        assert own.task == jobs.limited_wait


class TestCounters:
    def test_deferred_calls_do_not_count_for_max_tasks(self, order_lock: Lock) -> None:
        for value in range(5):
            jobs.locked_note.enqueue(7, "never")
            jobs.note.enqueue(value)
        assert burst(max_tasks=3).done == 3
        assert jobs.notes == [0, 1, 2]
        assert burst(max_tasks=3, concurrency=4).done == 2
        assert counts() == [0, 5, 0, 0]

    def test_deferred_calls_do_not_end_a_worker_above_max_memory(self, order_lock: Lock) -> None:
        jobs.locked_note.enqueue(7)
        jobs.note.enqueue("first")
        jobs.note.enqueue("second")
        burst(max_memory=1)
        assert jobs.notes == ["first"]

    def test_tasks_without_options_call_redis_as_before(self, operations: Counter[str]) -> None:
        result = jobs.note.enqueue(1)
        assert len(json.loads(server().hget(keys().jobs, result.id))) == 6
        burst()
        assert operations.keys() <= {
            "RedisBackend.push",
            "Engine.claim",
            "Engine.beat",
            "Engine.remove_worker",
        }


class TestFlood:
    def test_many_calls_of_one_lock_do_not_block_others(
        self, order_lock: Lock, operations: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "GUARD_DELAY", 600.0)  # no call is retried during the test
        waiting, began = 300, server_ms()
        results = jobs.locked_note.enqueue_many([([7, number], {}) for number in range(waiting)])
        jobs.note.enqueue("other")
        assert burst().done == 1
        assert jobs.notes == ["other"]
        assert operations["Lock.acquire"] == waiting
        due = sorted(state(result).moment for result in results)
        # each 10 ms after the one before
        assert due[-1] >= began + 600_000 + (waiting - 1) * 10
        assert {state(result).attempts for result in results} == {0}
        operations.clear()
        jobs.note.enqueue("next")
        assert burst().done == 1
        assert operations["Lock.acquire"] == 0
        order_lock.release()
        run_now(*results)
        assert sorted(jobs.notes[2:]) == list(range(waiting))
        assert {state(result).attempts for result in results} == {1}
        order_lock.acquire()

    def test_retries_of_a_process_have_an_interval(self) -> None:
        moments = worker.Moments()
        now = 100.0
        assert [moments.advance("a", now, 0.5) for _ in range(3)] == [100, 100.5, 101]
        assert moments.advance("b", now, 0.5) == 100
        assert moments.advance("a", 200, 0.5) == 200

    def test_remembered_names_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "MAX_MOMENTS", 3)
        moments = worker.Moments()
        for key in ("a", "b", "c", "a", "d"):
            moments.advance(key, 1.0, 0.5)
        assert {key: moments.get(key) for key in "abcd"} == {"a": 1.5, "b": None, "c": 1.0, "d": 1.0}


class TestFailures:
    @pytest.mark.parametrize(
        ("kind", "options"),
        [(Lock, {"lock": "order:7"}), (Semaphore, {"concurrency": 1, "lock": "free"})],
    )
    def test_call_is_deferred_if_redis_fails(
        self,
        kind: type,
        options: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        result = jobs.note.using(**options).enqueue("later")
        with monkeypatch.context() as outage:
            outage.setattr(kind, "acquire", _fail)
            assert burst().done == 0
        assert_unstarted(result)
        assert not is_held("free")
        assert f"Acquiring {kind.__name__}('" in caplog.text
        assert f"for job id={result.id} failed, retrying in 1.0 s: no Redis" in caplog.text
        run_now(result)
        assert jobs.notes == ["later"]

    @pytest.mark.parametrize("kind", [Lock, Semaphore])
    def test_failed_release_is_logged(
        self, kind: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = jobs.note.using(lock="order:7", concurrency=1).enqueue("done")
        with monkeypatch.context() as outage:
            outage.setattr(kind, "release", _fail)
            assert burst().done == 1
        assert ended(result).status == SUCCESSFUL
        assert f"after job id={result.id} failed; it is free when its lease ends: no Redis" in caplog.text

    def test_lost_lock_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        result = jobs.locked_loss.enqueue()
        burst()
        assert ended(result).return_value == "done"
        assert f"The lease of Lock('order:7') ended before job id={result.id}" in caplog.text

    def test_call_that_is_released_while_it_acquires_does_not_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acquire: Callable[[Lock], bool] = Lock.acquire
        acquiring, released = threading.Event(), threading.Event()

        def acquire_late(lock: Lock) -> bool:
            acquiring.set()
            assert released.wait(PATIENCE)
            return acquire(lock)

        monkeypatch.setattr(Lock, "acquire", acquire_late)
        with at_work() as runner:
            result = jobs.locked_note.enqueue(7, "never")
            until(acquiring.is_set)
            runner.stop()
            runner.stop()
        released.set()
        until(lambda: not runner._lanes)
        assert (runner.done, jobs.notes, is_held("order:7")) == (0, [], False)
        assert (state(result).status, state(result).attempts) == ("w", 0)

    def test_released_call_keeps_its_lock_while_it_runs(self) -> None:
        result = jobs.locked_wait.enqueue()
        with at_work() as runner:
            until(lambda: jobs.notes)
            runner.stop()
            runner.stop()
        assert (state(result).status, state(result).attempts) == ("w", 0)
        burst()
        assert (state(result).status, state(result).attempts, jobs.notes) == ("w", 0, ["waits"])
        jobs.go.set()
        until(lambda: not is_held("order:7"))
        run_now(result)
        assert ended(result).return_value == "went"


def _fail(*_: object, **__: object) -> None:
    raise Unavailable("no Redis")


def _declared_with(task: RedisTask, limit: int) -> RedisTask:
    """The task as code with another limit defines it."""
    return task.using(concurrency=limit)
