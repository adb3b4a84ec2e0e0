"""Calls that are enqueued when a transaction is committed."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging.errors import LimitExceeded
from django_redis_messaging.tasks import commits
from django_redis_messaging.tasks.backend import TaskEngine
from django_redis_messaging.tasks.compat import InvalidTask, TaskResultDoesNotExist, task_enqueued

from ..support.server import change
from ..support.workers import (
    READY,
    SUCCESSFUL,
    backend,
    count_waiting,
    engine,
    later,
    receiving,
    recording_signals,
    run_to_end,
    stored_keys,
)
from . import jobs
from .conftest import Configure


@pytest.mark.django_db(transaction=True, databases=["default", "second"])
class TestWhen:
    """Which transactions a call waits for."""

    def test_default_enqueues_immediately(self) -> None:
        with transaction.atomic(), transaction.atomic("second"):
            assert jobs.noop.enqueue().enqueued_at is not None
            assert count_waiting() == 1

    @pytest.mark.parametrize("outer", ["default", "second"])
    @pytest.mark.parametrize("rolled_back", ["none", "inner", "outer"])
    def test_true_waits_for_all_open_transactions(
        self, outer: str, rolled_back: str, configure: Configure
    ) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        inner = {"default": "second", "second": "default"}[outer]
        with transaction.atomic(outer):
            with transaction.atomic(inner):
                jobs.noop.enqueue()
                transaction.set_rollback(rolled_back == "inner", using=inner)
            assert count_waiting() == 0
            transaction.set_rollback(rolled_back == "outer", using=outer)
        assert count_waiting() == (rolled_back == "none")
        with transaction.atomic(outer), transaction.atomic(inner):
            """A later transaction does not enqueue the dropped task."""
        assert count_waiting() == (rolled_back == "none")

    def test_alias_waits_for_its_database_only(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT="second")
        with transaction.atomic():
            jobs.noop.enqueue()
            assert count_waiting() == 1
            with transaction.atomic("second"):
                jobs.noop.enqueue()
                assert count_waiting() == 1
            assert count_waiting() == 2

    def test_options_of_a_task_come_before_the_setting(self, configure: Configure) -> None:
        with transaction.atomic():
            jobs.noop.enqueue_on_commit().enqueue()
            jobs.noop.enqueue_on_commit(using="second").enqueue()
            assert count_waiting() == 1
        assert count_waiting() == 2
        configure(ENQUEUE_ON_COMMIT=True)
        with transaction.atomic():
            jobs.noop.using(on_commit=False).enqueue()
            assert count_waiting() == 3

    def test_unknown_database_is_rejected(self) -> None:
        with pytest.raises(InvalidTask, match="an alias of DATABASES, not 'third'"):
            jobs.noop.enqueue_on_commit(using="third")
        assert count_waiting() == 0

    @pytest.mark.parametrize("option", [True, "second"])
    def test_databases_without_autocommit_are_rejected(
        self, option: bool | str, configure: Configure
    ) -> None:
        """Django runs no function after the commit of a transaction that was begun by hand."""
        configure(ENQUEUE_ON_COMMIT=option)
        connection = transaction.get_connection("second")
        connection.set_autocommit(False)
        try:
            for enqueue in (jobs.noop.enqueue, lambda: jobs.noop.enqueue_many([([], {})])):
                with pytest.raises(transaction.TransactionManagementError, match=r"'second'.*on_commit"):
                    enqueue()
            assert count_waiting() == 0
            jobs.noop.using(on_commit=False).enqueue()
            jobs.noop.using(on_commit="default").enqueue()
            assert count_waiting() == 2
            with transaction.atomic("second"):
                jobs.noop.enqueue()
            connection.commit()
            assert count_waiting() == 2
        finally:
            connection.set_autocommit(True)
        assert count_waiting() == 3


@pytest.mark.django_db(transaction=True, databases=["default", "second"])
class TestOnCommit:
    @pytest.fixture(autouse=True)
    def on_commit(self, messaging_alias: str, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)

    def test_task_is_enqueued_on_commit(self) -> None:
        with recording_signals() as signals:
            with transaction.atomic():
                result = jobs.noop.enqueue()
                more = jobs.noop.enqueue_many([([], {})] * 2)
                assert (result.status, result.enqueued_at, count_waiting(), signals) == (READY, None, 0, [])
                with pytest.raises(TaskResultDoesNotExist):
                    result.refresh()
            assert [each.id for each in signals] == [each.id for each in (result, *more)]
        assert result.enqueued_at is not None
        assert run_to_end(result, *more) == [SUCCESSFUL] * 3

    async def test_tasks_are_enqueued_immediately_outside_of_transactions(self) -> None:
        assert (await jobs.noop.aenqueue()).enqueued_at is not None
        assert all(each.enqueued_at for each in await jobs.noop.aenqueue_many([([], {})]))
        assert count_waiting() == 2

    def test_task_is_dropped_on_rollback(self) -> None:
        assert jobs.noop.enqueue().enqueued_at is not None  # no transaction is open
        with pytest.raises(KeyError), transaction.atomic():
            jobs.noop.enqueue()
            raise KeyError
        with transaction.atomic():
            with pytest.raises(KeyError), transaction.atomic():
                jobs.noop.enqueue_many([([], {})])
                raise KeyError
            committed = jobs.noop.enqueue()
        assert count_waiting() == 2
        assert run_to_end(committed) == [SUCCESSFUL]

    def test_what_a_savepoint_rolled_back_is_not_sent_with_others(self) -> None:
        def enqueue(number: int, *, fails: bool) -> None:
            with suppress(KeyError), transaction.atomic():
                jobs.echo.enqueue(number)
                with transaction.atomic():
                    jobs.echo.enqueue(number + 1)
                jobs.echo.enqueue(number + 2)
                if fails:
                    raise KeyError

        with recording_signals() as signals, transaction.atomic():
            jobs.echo.enqueue(1)
            enqueue(10, fails=True)
            enqueue(20, fails=False)
            jobs.echo.enqueue(2)
            enqueue(30, fails=True)
        assert [backend().get_result(one.id).args[0] for one in signals] == [1, 20, 21, 22, 2]
        assert count_waiting() == 5

    def test_unique_keys_are_reserved_on_commit(self) -> None:
        with transaction.atomic():
            first, second = jobs.unique_echo.enqueue(), jobs.unique_echo.enqueue()
            given_out = [first.id, second.id]
            assert stored_keys() == set()
            meanwhile = jobs.unique_echo.using(on_commit=False).enqueue()
        assert {first.id, second.id} == {meanwhile.id}
        assert {backend().get_result(each).id for each in given_out} == {meanwhile.id}
        assert count_waiting() == 1

    def test_failing_receiver_does_not_stop_other_functions(self) -> None:
        committed: list[str] = []

        def fail(**_: object) -> None:
            raise KeyError("receiver")

        with receiving(task_enqueued, fail), transaction.atomic():
            jobs.noop.enqueue_many([([], {})] * 201)
            transaction.on_commit(lambda: committed.append("yes"))
        assert (committed, count_waiting()) == (["yes"], 201)

    def test_full_queue_at_the_commit_is_logged(self, settings: Settings, caplog: LogCaptureFixture) -> None:
        change(settings, JOB_MAX_WAITING=250)
        with transaction.atomic():
            results = jobs.noop.enqueue_many([([], {})] * 310)
        [record] = caplog.records
        assert "110 calls of tests.tasks.jobs.noop were not enqueued" in record.getMessage()
        assert f"{results[200].id}, {results[201].id}" in record.getMessage()
        assert f"{results[299].id} and 10 more" in record.getMessage()
        assert count_waiting() == 200

    def test_a_full_queue_refuses_only_the_calls_above_its_limit(
        self, settings: Settings, caplog: LogCaptureFixture
    ) -> None:
        change(settings, JOB_MAX_WAITING=5)
        with transaction.atomic():
            first = [jobs.noop.enqueue() for _ in range(3)]
            many = jobs.noop.enqueue_many([([], {})] * 3)
            last = [jobs.noop.enqueue() for _ in range(3)]
            other = jobs.noop.using(queue_name="other").enqueue()
        enqueued = [one.enqueued_at is not None for one in (*first, *many, *last, other)]
        assert enqueued == [True] * 3 + [False] * 3 + [True] * 2 + [False, True]
        assert [one.getMessage()[:45] for one in caplog.records] == [
            "3 calls of tests.tasks.jobs.noop were not enq",
            "1 calls of tests.tasks.jobs.noop were not enq",
        ]

    def test_calls_of_a_transaction_are_sent_together(self, monkeypatch: MonkeyPatch) -> None:
        sizes: list[int] = []
        push = TaskEngine.push

        def counting(engine: TaskEngine, queue: str, request_id: str, pushed: Any, **options: Any) -> Any:
            sizes.append(len(pushed))
            return push(engine, queue, request_id, pushed, **options)

        monkeypatch.setattr(TaskEngine, "push", counting)
        with transaction.atomic():
            with transaction.atomic():
                results = [jobs.echo.enqueue(1)]
            results += [jobs.echo.enqueue(number) for number in range(2, 100)]
            others = [jobs.noop.using(queue_name="other", run_after=later()).enqueue() for _ in range(250)]
            results.append(jobs.unique_echo.enqueue(100))
        assert sizes == [100, 200, 50]
        assert all(one.enqueued_at for one in (*results, *others))
        claimed = engine().claim(["default"], 200, 60_000).jobs
        assert [one.lease.id for one in claimed] == [one.id for one in results]
        done = [backend().get_result(each.id) for each in results]
        assert [one.args[0] for one in done] == list(range(1, 101))

    def test_the_order_among_other_functions_is_kept(self) -> None:
        waiting: list[int] = []
        with transaction.atomic():
            for _ in range(2):
                jobs.noop.enqueue()
                jobs.noop.enqueue()
                transaction.on_commit(lambda: waiting.append(count_waiting()))
            transaction.on_commit(lambda: jobs.noop.enqueue())
            transaction.on_commit(lambda: waiting.append(count_waiting()))
        assert waiting == [2, 4, 5]

    def test_many_prompt_round_trips_do_not_use_up_the_time_of_a_commit(
        self, monkeypatch: MonkeyPatch
    ) -> None:
        clock = count(1000.0, 0.05)  # seconds that pass in each round trip
        monkeypatch.setattr(commits, "monotonic", lambda: next(clock))
        with transaction.atomic():
            for _ in range(60):
                jobs.noop.enqueue()
                transaction.on_commit(lambda: None)  # so that each call needs a round trip
        assert count_waiting() == 60

    def test_invalid_arguments_are_rejected_before_commit(self) -> None:
        with transaction.atomic():
            with pytest.raises(TypeError):
                jobs.echo.enqueue(object())
            with pytest.raises(LimitExceeded):
                jobs.echo.enqueue("x" * 2**20)


@pytest.mark.django_db
def test_captured_functions_send_the_calls_of_their_block_alone() -> None:
    earlier = jobs.noop.enqueue_on_commit(using="default").enqueue()
    for number in (1, 2):
        with TestCase.captureOnCommitCallbacks(execute=True) as callbacks:
            results = [jobs.noop.enqueue_on_commit(using="default").enqueue() for _ in range(3)]
        assert len(callbacks) == 3
        assert all(one.enqueued_at for one in results)
        assert count_waiting() == 3 * number
    assert earlier.enqueued_at is None
    with TestCase.captureOnCommitCallbacks() as callbacks:
        results = [jobs.noop.enqueue_on_commit(using="default").enqueue() for _ in range(3)]
    callbacks[0]()
    assert all(one.enqueued_at for one in results)
