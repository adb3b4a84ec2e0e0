"""Tasks with a lock or a limited concurrency: what a call holds while it runs, what happens if it is not
free, and the names."""

from __future__ import annotations

import asyncio
import json
import operator
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import transaction
from pytest import LogCaptureFixture, MonkeyPatch

from django_redis_messaging import InvalidArgument, Lock, Semaphore, conf
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks import RedisTask, task, worker
from django_redis_messaging.tasks.compat import InvalidTask, TaskResult
from django_redis_messaging.tasks.task import Needs
from django_redis_messaging.tasks.worker import ConcurrencyKeys

from ..support.server import server, server_ms, until
from ..support.workers import (
    FAILED,
    PATIENCE,
    READY,
    SUCCESSFUL,
    assert_released,
    at_work,
    backend,
    burst,
    counts,
    ended,
    errors_of,
    keys,
    later,
    recording_signals,
    state,
    stored_keys,
)
from . import jobs

pytestmark = pytest.mark.usefixtures("short_polls")


@pytest.fixture
def order_lock() -> Iterator[Lock]:
    """The lock "order:7", held by this test."""
    with Lock("order:7", timeout=60) as lock:
        yield lock


def run_now(*results: TaskResult) -> None:
    """Run deferred calls without their delay."""
    for result in results:
        assert result.task.reschedule(result.id, later(-1))
    burst()


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
            result, without = task.enqueue(7), jobs.locked_state.using(lock=None).enqueue(9)
            burst()
            acquired, fence = ended(result).return_value
            assert (result.status, acquired) == (SUCCESSFUL, False)
            assert fence > other.fence
        assert not is_held("order:7")
        assert ended(without).return_value == [True, 0]

    def test_call_waits_for_a_lock_that_is_held(self, order_lock: Lock) -> None:
        before = server_ms()
        result = jobs.locked_note.enqueue(7, "seven")
        with recording_signals() as signals:
            assert burst().done == 0
        assert (jobs.notes, signals) == ([], [])
        assert_unstarted(result)
        assert before + 1000 <= state(result).moment <= server_ms() + 1002
        order_lock.release()
        run_now(result)
        result.refresh()
        assert (result.status, result.attempts, jobs.notes) == (SUCCESSFUL, 1, ["seven"])
        order_lock.acquire()

    def test_other_calls_run_meanwhile(self, order_lock: Lock) -> None:
        deferred, *_ = [jobs.locked_note.enqueue(order, order) for order in (7, 8, 9)]
        jobs.note.enqueue("free")
        assert burst(concurrency=1).done == 3
        assert jobs.notes == [8, 9, "free"]
        assert deferred.task.cancel(deferred.id)
        deferred.refresh()
        assert (deferred.status, counts()) == (FAILED, [0, 0, 0, 0])

    @pytest.mark.parametrize(
        ("task", "args", "error"),
        [(jobs.fail, [], "ValueError"), (jobs.async_sleep, [20], "TaskTimeout")],
    )
    def test_both_are_released_after_errors(self, task: RedisTask, args: list[Any], error: str) -> None:
        result = task.using(lock="order:7", concurrency=2, timeout=0.2).enqueue(*args)
        burst()
        assert errors_of(result) == [error]
        assert not is_held("order:7")
        assert Semaphore(f"task:{task.module_path}", 2).info().held == 0

    def test_earlier_attempts_stay_charged(self, order_lock: Lock) -> None:
        order_lock.release()
        result = jobs.fail.using(lock="order:7", max_attempts=3).enqueue()
        burst()
        order_lock.acquire()
        run_now(result)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)

    @pytest.mark.django_db(transaction=True)
    def test_all_enqueue_methods_store_the_lock(self, order_lock: Lock) -> None:
        async def enqueue() -> None:
            await jobs.locked_note.aenqueue(7)
            await jobs.locked_note.aenqueue_many([([7], {}), ([], {"order_id": 7})])
            await clients.aclose()

        asyncio.run(enqueue())
        jobs.locked_note.enqueue_many([([7], {})])
        with transaction.atomic():
            jobs.locked_note.enqueue_on_commit().enqueue(7)
        assert burst().done == 0
        assert counts() == [0, 5, 0, 0]

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
            assert ended(result).status == SUCCESSFUL
            lock.acquire()

    def test_stored_calls_without_a_lock_run_and_invalid_ones_are_dead(self, order_lock: Lock) -> None:
        """Those of earlier versions store none."""
        old, invalid = jobs.locked_note.enqueue(7, "old"), jobs.locked_note.enqueue(7, "invalid")
        for result, stored in ((old, []), (invalid, [["x" * 256, ""]])):
            fields = json.loads(server().hget(keys().jobs, result.id))
            assert fields[6:] == [["order:7", ""]]
            server().hset(keys().jobs, result.id, json.dumps([*fields[:6], *stored]))
        assert not burst().failed
        assert (jobs.notes, counts()) == (["old"], [0, 0, 0, 1])


@pytest.mark.versions
class TestConcurrency:
    def test_no_more_calls_run_than_allowed(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "GUARD_DELAY", 0.1)
        semaphore = Semaphore(f"task:{jobs.wait.module_path}", 2)
        results = [jobs.wait.using(concurrency=2).enqueue() for _ in range(3)]
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

    def test_nothing_is_held_if_the_lock_or_the_permit_is_not_free(self, operations: Counter[str]) -> None:
        result = jobs.limited_note.using(lock="customer").enqueue("ann")
        with Lock("customer", timeout=60):
            burst()
        assert operations["Semaphore.acquire"] == 0
        assert Semaphore("task:customer:ann", 1).info().held == 0
        assert_unstarted(result)
        with permit_of("ann"):
            run_now(result)
        assert not is_held("customer")
        assert_unstarted(result)

    def test_changed_limit_applies_to_waiting_calls_after_a_deploy(self, monkeypatch: MonkeyPatch) -> None:
        semaphore, declared = Semaphore("task:customer:ann", 7), jobs.limited_note
        jobs.limited_note.enqueue("ann")
        burst()
        stored = ConcurrencyKeys(conf.prefix(), semaphore.name)
        assert all(server().pttl(key) > 86_400_000 for key in (stored.limit, stored.declared))
        assert semaphore.info().limit == 1
        for limit in (3, 2):
            result = declared.enqueue("ann")
            with monkeypatch.context() as deploy:
                deploy.setattr(jobs, "limited_note", declared.using(concurrency=limit))
                burst()
                assert backend().get_result(result.id).task.concurrency == limit
            assert semaphore.info().limit == limit
            assert ended(result).status == SUCCESSFUL

    def test_set_limit_stays_until_the_declared_limit_changes(
        self, operations: Counter[str], monkeypatch: MonkeyPatch
    ) -> None:
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
        monkeypatch.setattr(worker, "DECLARE_INTERVAL", 0)
        before = operations["declare_limit"]
        jobs.limited_note.enqueue_many([(["ann"], {})] * 3)
        burst()
        assert operations["declare_limit"] == before + 3, "once in each interval"

    def test_limit_of_using_is_kept_with_the_call(self) -> None:
        result = jobs.limited_note.using(concurrency=5).enqueue("ann")
        assert backend().get_result(result.id).task.concurrency == 5
        own = backend().get_result(jobs.limited_note.enqueue("ann").id)
        assert own.task == jobs.limited_note


class TestDeferred:
    """Calls whose lock or permit is not free cost others nothing."""

    def test_they_do_not_count_for_the_limits_of_a_worker(self, order_lock: Lock) -> None:
        for value in range(5):
            jobs.locked_note.enqueue(7, "never")
            jobs.note.enqueue(value)
        burst(max_memory=1)
        assert jobs.notes == [0]
        assert burst(max_tasks=3).done == 3
        assert jobs.notes == [0, 1, 2, 3]
        assert burst(max_tasks=3, concurrency=4).done == 1
        assert counts() == [0, 5, 0, 0]

    def test_tasks_without_options_call_redis_as_before(self, operations: Counter[str]) -> None:
        result = jobs.note.enqueue(1)
        assert len(json.loads(server().hget(keys().jobs, result.id))) == 6
        burst()
        known = {"RedisBackend.push", "Engine.claim", "Engine.beat", "Engine.remove_worker"}
        assert operations.keys() <= known

    def test_many_calls_of_one_lock_do_not_block_others(
        self, order_lock: Lock, operations: Counter[str], monkeypatch: MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "GUARD_DELAY", 600.0)  # no call is retried during the test
        waiting, began = 100, server_ms()
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

    def test_retries_of_a_process_have_an_interval(self, monkeypatch: MonkeyPatch) -> None:
        moments = worker.Moments()
        assert [moments.advance("a", 100.0, 0.5) for _ in range(3)] == [100, 100.5, 101]
        assert moments.advance("b", 100.0, 0.5) == 100
        assert moments.advance("a", 200, 0.5) == 200
        monkeypatch.setattr(worker, "MAX_MOMENTS", 3)
        moments = worker.Moments()
        for key in ("a", "b", "c", "a", "d"):
            moments.advance(key, 1.0, 0.5)
        assert {key: moments.get(key) for key in "abcd"} == {"a": 1.5, "b": None, "c": 1.0, "d": 1.0}


@pytest.mark.one_server
class TestFailures:
    @pytest.mark.parametrize(
        ("kind", "options"),
        [(Lock, {"lock": "order:7"}), (Semaphore, {"concurrency": 1, "lock": "free"})],
    )
    def test_call_is_deferred_if_redis_fails(
        self,
        kind: type,
        options: dict[str, Any],
        monkeypatch: MonkeyPatch,
        caplog: LogCaptureFixture,
    ) -> None:
        result = jobs.note.using(**options).enqueue("later")
        with monkeypatch.context() as outage:
            outage.setattr(kind, "acquire", jobs.raise_unavailable)
            assert burst().done == 0
        assert_unstarted(result)
        assert not is_held("free")
        assert f"Acquiring {kind.__name__}('" in caplog.text
        assert f"for job id={result.id} failed, retrying in 1.0 s: no Redis" in caplog.text
        run_now(result)
        assert jobs.notes == ["later"]

    @pytest.mark.parametrize("kind", [Lock, Semaphore])
    def test_failed_release_is_logged(
        self, kind: type, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        result = jobs.note.using(lock="order:7", concurrency=1).enqueue("done")
        with monkeypatch.context() as outage:
            outage.setattr(kind, "release", jobs.raise_unavailable)
            assert burst().done == 1
        assert ended(result).status == SUCCESSFUL
        assert f"after job id={result.id} failed; it is free when its lease ends: no Redis" in caplog.text

    def test_lost_lock_is_logged(self, caplog: LogCaptureFixture) -> None:
        result = jobs.locked_loss.enqueue()
        burst()
        assert ended(result).return_value == "done"
        assert f"The lease of Lock('order:7') ended before job id={result.id}" in caplog.text

    def test_call_that_is_released_while_it_acquires_does_not_run(self, monkeypatch: MonkeyPatch) -> None:
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
        until(lambda: not runner._hosts[0].executor._batches)
        assert (runner.done, jobs.notes, is_held("order:7")) == (0, [], False)
        assert_released(result)

    def test_released_call_keeps_its_lock_while_it_runs(self) -> None:
        result = jobs.wait.using(lock="order:7").enqueue()
        with at_work() as runner:
            until(lambda: jobs.notes)
            runner.stop()
            runner.stop()
        assert_released(result)
        burst()
        assert_released(result)
        assert jobs.notes == ["waits"]
        jobs.go.set()
        until(lambda: not is_held("order:7"))
        run_now(result)
        assert ended(result).return_value == "went"

    @pytest.mark.timing
    def test_leases_are_renewed_while_the_call_runs(self) -> None:
        lock, holders = Lock("order:7"), ConcurrencyKeys(conf.prefix(), "task:orders").holders

        def lease_ends() -> tuple[float, float]:
            [(_, permit)] = server().zrange(holders, 0, -1, withscores=True)
            return server().pexpiretime(lock.key), permit

        result = jobs.wait.using(lock="order:7", concurrency=1, concurrency_key="orders").enqueue()
        with at_work(lease=1.0):
            until(lambda: jobs.notes)
            lock_end, permit_end = lease_ends()
            until(lambda: all(map(operator.gt, lease_ends(), (lock_end + 500, permit_end + 500_000))))
            jobs.go.set()
            assert ended(result).return_value == "went"

    def test_full_memory_defers_locks_but_not_permits(
        self, own_server: EmbeddedServer, caplog: LogCaptureFixture
    ) -> None:
        result = jobs.locked_note.enqueue(7, "later")
        jobs.limited_note.enqueue("ann")
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            assert burst().done == 1
            assert "out of memory" in caplog.text
            client.config_set("maxmemory", 0)
        assert_released(result)
        assert counts() == [0, 1, 0, 0]
        run_now(result)
        assert jobs.notes == ["ann", "later"]

    @pytest.mark.promise
    @pytest.mark.versions
    def test_lock_and_limit_hold_across_workers(self, monkeypatch: MonkeyPatch) -> None:
        """Four workers, 40 calls, 3 locks, at most 2 calls at a time."""
        monkeypatch.setattr(worker, "GUARD_DELAY", 0.05)
        results = jobs.enter.enqueue_many([([number % 3, number], {}) for number in range(40)])
        with ExitStack() as workers:
            for _ in range(4):
                workers.enter_context(at_work())
            assert {ended(result).status for result in results} == {SUCCESSFUL}
        largest = dict(sorted(jobs.notes))
        assert largest == {"order 0": 1, "order 1": 1, "order 2": 1, "orders": 2}
        assert {result.attempts for result in results} == {1}
        entered = sorted(int(number) for number in server().lrange(f"{conf.prefix()}:entered", 0, -1))
        assert entered == list(range(40))
        assert counts() == [0, 0, 0, 0]
        assert Semaphore("task:orders", 2).info().held == 0


def with_parameters(order: Any, *rest: int, site: str = "main", **more: Any) -> None: ...


def with_context(context: Any, order: Any) -> None: ...


def made(**options: Any) -> RedisTask:
    return task(**options)(with_parameters)


def lock_of(lock: Any, *args: Any, **kwargs: Any) -> str:
    needs = made(lock=lock).needs(args, kwargs)
    assert needs is not None
    return needs.lock


@pytest.mark.one_server
@pytest.mark.versions
class TestNames:
    """The names of the locks and semaphores of calls."""

    @pytest.mark.parametrize(
        ("template", "name"),
        [
            ("order:{order}", "order:7"),
            ("{site}/{order}", "main/7"),
            ("{order:05d}", "00007"),
            ("{site!r}", "'main'"),
            ("{rest[0]} {more[group]}", "3 a"),
            ("all", "all"),
            ("{{{order}}}", "{7}"),
        ],
    )
    def test_parameters_are_filled_in(self, template: str, name: str) -> None:
        assert lock_of(template, 7, 3, group="a") == name

    def test_how_they_are_given_does_not_matter(self) -> None:
        assert lock_of("{order} {site}", 7) == lock_of("{order} {site}", site="main", order=7) == "7 main"
        assert lock_of("order:{order}", "{site}{0}{{") == "order:{site}{0}{{", "braces in arguments are data"

    def test_context_is_no_parameter(self) -> None:
        taking = task(lock="order:{order}", takes_context=True)(with_context)
        assert taking.needs([7], {}) == Needs("order:7", "")
        with pytest.raises(InvalidTask, match="'context', but the parameters of the task are order"):
            taking.using(lock="{context}")

    def test_function_gets_the_arguments(self) -> None:
        assert lock_of(lambda order, *rest, site="x", **_: f"{order} {rest} {site}", 7, 8) == "7 (8,) x"
        assert lock_of(lambda order: "{order}", "x") == "{order}"

    def test_semaphores_are_named_after_the_task_or_the_key(self) -> None:
        path = f"task:{__name__}.with_parameters"
        assert made(concurrency=3).needs([7], {}) == Needs("", path)
        keyed = made(concurrency=3, concurrency_key="site:{site}", lock="{order}")
        assert keyed.needs([7], {}) == Needs("7", "task:site:main")
        called = made(concurrency=3, concurrency_key=lambda order, **_: f"o{order}")
        assert called.needs([7], {}) == Needs("", "task:o7")
        assert made().needs([7], {}) is None
        assert made(lock="x", concurrency=1).using(lock=None, concurrency=None).needs([7], {}) is None

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"lock": ""}, "lock is empty"),
            ({"lock": "x" * 256}, "lock has 256 bytes"),
            ({"lock": "a\0"}, "NUL"),
            ({"lock": 7}, "lock must be a str or a function of the arguments, not int"),
            ({"lock": True}, "not bool"),
            ({"lock": b"order"}, "not bytes"),
            (
                {"lock": "{item}"},
                "refers to 'item', but the parameters of the task are order, rest, site, more",
            ),
            ({"lock": "{order:>{rest}}"}, "has a field inside a format specification"),
            ({"lock": "{}"}, "refers to ''"),
            ({"lock": "{0}"}, "refers to '0'"),
            ({"lock": "{order"}, "not a valid template"),
            ({"lock": "order}"}, "not a valid template"),
            ({"concurrency": 0}, "concurrency must be between 1 and 10000, not 0"),
            ({"concurrency": 10_001}, "between 1 and 10000"),
            ({"concurrency": "3"}, "concurrency must be an int, not str"),
            ({"concurrency": True}, "not bool"),
            ({"concurrency": 1.5}, "not float"),
            ({"concurrency_key": "x"}, "concurrency_key needs concurrency"),
            ({"concurrency": 1, "concurrency_key": ""}, "concurrency_key is empty"),
            ({"concurrency": 1, "concurrency_key": "{x}"}, "concurrency_key '{x}' refers to 'x'"),
            ({"concurrency": 1, "concurrency_key": 7}, "concurrency_key must be a str"),
        ],
    )
    def test_invalid_options_are_rejected(self, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidTask, match=re.escape(problem)):
            made(**options)
        with pytest.raises(InvalidTask, match=re.escape(problem)):
            made().using(**options)

    @pytest.mark.parametrize(
        ("lock", "args", "kind", "problem"),
        [
            ("{order}", [""], InvalidArgument, "lock is empty"),
            ("{order}", ["x" * 256], InvalidArgument, "lock has 256 bytes"),
            ("{order}", ["\0"], InvalidArgument, "NUL"),
            ("{order}", ["\ud800"], InvalidArgument, "surrogate"),
            ("{order}", [], TypeError, "missing a required argument: 'order'"),
            ("{order:d}", ["x"], InvalidArgument, "can't be filled in with these arguments"),
            ("{order[id]}", [{}], InvalidArgument, "can't be filled in"),
            ("{order.id}", [7], InvalidArgument, "can't be filled in"),
            ("{order:9}", [None], InvalidArgument, "can't be filled in"),
            ("{order:c}", [10**10], InvalidArgument, "can't be filled in"),
            (lambda order: None, [7], TypeError, "lock must be a str, not NoneType"),
            (lambda order: "", [7], InvalidArgument, "lock is empty"),
            (None, ["x" * 251], InvalidArgument, "256 bytes"),
            (None, [""], InvalidArgument, "concurrency_key is empty"),
        ],
    )
    async def test_invalid_names_are_rejected_before_anything_is_sent(
        self, lock: Any, args: list[Any], kind: type[Exception], problem: str
    ) -> None:
        limited = {"concurrency": 1, "concurrency_key": "{order}"}
        invalid = made(**({"lock": lock} if lock else limited))
        with pytest.raises(kind, match=problem):
            await invalid.aenqueue(*args)
        with pytest.raises(kind, match=problem):
            await invalid.aenqueue_many([([7], {}), (args, {})])
        assert stored_keys() == set()
