"""Tasks with a lock, a limited concurrency or a rate, and paused ones: what a call needs to start, what
happens if that is not free, and the names."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Any
from urllib.parse import unquote

import pytest
from django.db import transaction
from pytest import LogCaptureFixture, MonkeyPatch

from django_redis_messaging import InvalidArgument, LimitExceeded, Lock, conf
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks import RedisTask, task, worker
from django_redis_messaging.tasks.compat import InvalidTask, TaskResult

from ..conftest import Call
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
    engine,
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


def held() -> list[str]:
    """The locks and permits that calls hold."""
    return [member.decode().partition(" ")[0] for member in server().zrange(keys().held, 0, -1)]


def parked(queue: str = "default") -> int:
    """The number of parked calls."""
    return int(engine().stats(queue)[5])


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
        assert held() == []

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

    def test_calls_of_one_lock_wait_for_each_other_without_a_lease(self, operations: Counter[str]) -> None:
        """Also in several workers: each is claimed once, when the one before has ended."""
        results = jobs.locked_state.enqueue_many([([7], {})] * 20)
        with at_work(), at_work():
            assert all(ended(result).return_value[0] is False for result in results)
        fences = [result.return_value[1] for result in results]
        assert fences == sorted(set(fences))
        assert operations["Lock.acquire"] == 2 * 20, "once by the worker, once by the call itself"
        assert {result.attempts for result in results} == {1}

    def test_call_with_an_invalid_name_is_dead(self) -> None:
        result = jobs.locked_note.enqueue(7)
        stored = server().hget(keys().states, result.id)
        server().hset(keys().states, result.id, stored.replace(b"order%3A7", b"x" * 256))
        assert not burst().failed
        assert counts() == [0, 0, 0, 1]


@pytest.mark.versions
class TestConcurrency:
    def test_no_more_calls_run_than_allowed(self) -> None:
        results = [jobs.wait.using(concurrency=2).enqueue() for _ in range(3)]
        with at_work(concurrency=4):
            until(lambda: counts() == [0, 0, 2, 0] and parked() == 1)
            jobs.note.enqueue("other")
            until(lambda: jobs.notes == ["waits", "waits", "other"])
            results[2].refresh()
            assert (results[2].status, results[2].attempts) == (READY, 0)
            jobs.go.set()
            assert {ended(result).attempts for result in results} == {1}
        assert (held(), parked()) == ([], 0)

    def test_key_is_made_of_the_arguments(self) -> None:
        backend().set_concurrency("customer:ann", 0)
        for customer in ("ann", "bob"):
            jobs.limited_note.enqueue(customer)
        burst()
        assert (jobs.notes, parked()) == (["bob"], 1)
        backend().set_concurrency("customer:ann", None)
        burst()
        assert jobs.notes == ["bob", "ann"]

    async def test_set_concurrency_replaces_that_of_the_calls(self, call: Call) -> None:
        key = jobs.wait.module_path
        await call(backend(), "set_concurrency", key, 3)
        jobs.wait.using(concurrency=1).enqueue_many([([], {})] * 5)
        with at_work(concurrency=5):
            until(lambda: counts()[2] == 3 and parked() == 2)
            await call(backend(), "set_concurrency", key, 5)
            until(lambda: counts()[2] == 5)
            jobs.go.set()
        assert server().hgetall(keys().limits) == {f"permit:{key}".encode(): b"5"}
        await call(backend(), "set_concurrency", key, None)
        assert not server().exists(keys().limits)

    @pytest.mark.parametrize(
        ("key", "limit", "problem"),
        [
            ("x", -1, "limit must be between 0 and 10000, not -1"),
            ("x", 10_001, "10000"),
            ("", 1, "key is empty"),
        ],
    )
    def test_invalid_limits_are_rejected(self, key: str, limit: int, problem: str) -> None:
        with pytest.raises(InvalidArgument, match=problem):
            backend().set_concurrency(key, limit)

    @pytest.mark.timing
    def test_promotion_needs_no_polling(self, operations: Counter[str]) -> None:
        """400 calls of which 2 run at a time: each is claimed together with the settlement of an earlier one.
        With polls, they would take 200 seconds."""
        number = 400
        results = jobs.short_sleep.using(concurrency=2).enqueue_many([([], {})] * number)
        with at_work(concurrency=4):
            until(lambda: parked() == 0 and counts() == [0, 0, 0, 0], PATIENCE)
        assert {ended(result).attempts for result in results} == {1}
        assert operations["Engine.claim"] < 1.3 * number

    @pytest.mark.timing
    @pytest.mark.promise
    def test_permits_of_a_lost_worker_are_free_when_its_leases_end(self) -> None:
        lost, following = (jobs.limited_note.enqueue("ann") for _ in range(2))
        [leased] = engine().claim(["default"], 2, 1000, worker="lost").jobs
        assert (leased.lease.id, held()) == (lost.id, ["permit:customer%3Aann"])
        began = monotonic()
        with at_work():
            assert ended(following).status == ended(lost).status == SUCCESSFUL
        assert 0.9 < monotonic() - began < 5
        assert (lost.attempts, following.attempts, held()) == (2, 1, [])


@pytest.mark.versions
class TestRates:
    def test_no_more_calls_start_than_allowed(self) -> None:
        jobs.rated_note.enqueue_many([([customer, number], {}) for number in range(3) for customer in "ab"])
        burst()
        assert (sorted(jobs.notes), parked()) == ([("a", 0), ("a", 1), ("b", 0), ("b", 1)], 2)

    def test_needs_are_stored(self) -> None:
        def stored(task: RedisTask) -> str:
            return state(task.enqueue("x")).field("needs")

        assert stored(jobs.rated_note) == "rate:c%20x/2/3600000"
        assert stored(jobs.note.using(rate="10/s, 100/m")) == (
            "rate:tests.tasks.jobs.note/10/1000,rate:tests.tasks.jobs.note/100/60000"
        )
        assert stored(jobs.note) == ""

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"rate": "100"}, "rate: limit must have a form such as"),
            ({"rate": 100}, "rate must be a str such as"),
            ({"rate": "5/m, 6/m"}, "rate: limit contains two limits of the same period"),
            ({"rate_key": "x"}, "rate_key needs rate"),
            ({"rate": "1/s", "rate_key": "{x}"}, "rate_key '{x}' refers to 'x'"),
        ],
    )
    def test_invalid_options_are_rejected(self, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidTask, match=re.escape(problem)):
            made(**options)


@pytest.mark.versions
class TestPaused:
    async def test_queue(self, call: Call) -> None:
        assert await call(backend(), "pause", "default", "deploy", by="ann") is True
        assert await call(backend(), "pause", "default", "deploy of v2") is False
        jobs.note.enqueue("later")
        assert burst().done == 0
        [paused] = await call(backend(), "paused")
        assert (paused.queue, paused.task, paused.reason, paused.by) == ("default", "", "deploy of v2", "")
        assert await call(backend(), "resume", "default") is True
        assert await call(backend(), "resume", "default") is False
        burst()
        assert jobs.notes == ["later"]

    @pytest.mark.parametrize("task", [jobs.note, "tests.tasks.jobs.note"])
    def test_task(self, task: RedisTask | str) -> None:
        assert backend().pause(task=task) is True
        jobs.note.enqueue("later")
        jobs.noop.enqueue()
        assert (burst().done, parked()) == (1, 1)
        [paused] = backend().paused()
        assert (paused.queue, paused.task) == ("", "tests.tasks.jobs.note")
        assert backend().resume(task=task) is True
        burst()
        assert (jobs.notes, parked()) == (["later"], 0)

    def test_running_worker(self) -> None:
        with at_work():
            backend().pause("default")
            jobs.note.enqueue("later")
            until(lambda: counts() == [1, 0, 0, 0])
            backend().resume("default")
            until(lambda: jobs.notes == ["later"])

    @pytest.mark.parametrize(
        ("arguments", "kind", "problem"),
        [
            ({}, InvalidArgument, "either queue or task"),
            ({"queue": "default", "task": jobs.note}, InvalidArgument, "either queue or task"),
            ({"queue": "nothing"}, InvalidArgument, "must be in QUEUES of 'default'"),
            ({"task": "tests.tasks.jobs.nothing"}, InvalidArgument, "can't be imported"),
            ({"queue": "default", "reason": "x" * 1001}, LimitExceeded, "1001"),
        ],
    )
    def test_invalid_arguments(self, arguments: Any, kind: type[Exception], problem: str) -> None:
        with pytest.raises(kind, match=problem):
            backend().pause(**arguments)


class TestDeferred:
    """Calls whose lock other code holds cost others nothing."""

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
        known = {"RedisBackend.push", "Engine.claim", "Engine.beat", "Engine.remove_worker", "record"}
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
        monkeypatch.setattr(worker, "MAX_MOMENTS", 3)
        moments = worker.Moments()
        assert [moments.advance("a", 100.0, 0.5) for _ in range(3)] == [100, 100.5, 101]
        assert [moments.advance(key, 100.0, 0.5) for key in "bca"] == [100, 100, 101.5]
        assert moments.advance("d", 100.0, 0.5) == 100
        assert moments.advance("b", 100.0, 0.5) == 100, "forgotten"
        assert moments.advance("a", 200, 0.5) == 200


@pytest.mark.one_server
class TestFailures:
    def test_call_is_deferred_if_redis_fails(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        result = jobs.note.using(lock="free").enqueue("later")
        with monkeypatch.context() as outage:
            outage.setattr(Lock, "acquire", jobs.raise_unavailable)
            assert burst().done == 0
        assert_unstarted(result)
        assert (held(), is_held("free")) == ([], False)
        assert "Acquiring Lock('" in caplog.text
        assert f"for job id={result.id} failed, retrying in 1.0 s: no Redis" in caplog.text
        run_now(result)
        assert jobs.notes == ["later"]

    def test_failed_release_is_logged(self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture) -> None:
        result = jobs.note.using(lock="order:7").enqueue("done")
        with monkeypatch.context() as outage:
            outage.setattr(Lock, "release", jobs.raise_unavailable)
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
        until(lambda: not runner._placement.host.executor._batches)
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
    def test_lock_is_renewed_while_the_call_runs(self) -> None:
        lock = Lock("order:7")
        result = jobs.wait.using(lock="order:7").enqueue()
        with at_work(lease=1.0):
            until(lambda: jobs.notes)
            ends = server().pexpiretime(lock.key)
            until(lambda: server().pexpiretime(lock.key) > ends + 500)
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
    def test_lock_and_limit_hold_across_workers(self) -> None:
        """Four workers, 40 calls, 3 locks, at most 2 calls at a time."""
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
        assert (held(), parked()) == ([], 0)


def with_parameters(order: Any, *rest: int, site: str = "main", **more: Any) -> None: ...


def with_context(context: Any, order: Any) -> None: ...


def made(**options: Any) -> RedisTask:
    return task(**options)(with_parameters)


def lock_of(lock: Any, *args: Any, **kwargs: Any) -> str:
    needs = made(lock=lock).needs(args, kwargs)
    assert re.fullmatch(r"lock:[^ ,/:]+", needs)
    return unquote(needs.removeprefix("lock:"))


@pytest.mark.one_server
@pytest.mark.versions
class TestNames:
    """The names of the locks and permits of calls."""

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
        assert taking.needs([7], {}) == "lock:order%3A7"
        with pytest.raises(InvalidTask, match="'context', but the parameters of the task are order"):
            taking.using(lock="{context}")

    def test_function_gets_the_arguments(self) -> None:
        assert lock_of(lambda order, *rest, site="x", **_: f"{order} {rest} {site}", 7, 8) == "7 (8,) x"
        assert lock_of(lambda order: "{order}", "x") == "{order}"

    def test_permits_are_named_after_the_task_or_the_key(self) -> None:
        assert made(concurrency=3).needs([7], {}) == f"permit:{__name__}.with_parameters/3"
        keyed = made(concurrency=3, concurrency_key="site:{site}", lock="{order}")
        assert keyed.needs([7], {}) == "lock:7,permit:site%3Amain/3"
        called = made(concurrency=3, concurrency_key=lambda order, **_: f"o{order}")
        assert called.needs([7], {}) == "permit:o7/3"
        assert made().needs([7], {}) == ""
        assert made(lock="x", concurrency=1).using(lock=None, concurrency=None).needs([7], {}) == ""

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
            (None, ["x" * 256], InvalidArgument, "256 bytes"),
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
