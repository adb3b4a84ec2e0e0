"""The backend beyond Django's contract: retries, unique keys, bulk enqueueing, commits, result retention and
validation."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.core.checks import CheckMessage
from django.db import transaction
from django.test import TestCase, override_settings
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist
from pytest_django import Settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.commands import batched
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import InvalidArgument, LimitExceeded, TaskCancelled, Unavailable
from django_redis_messaging.services.common import arguments
from django_redis_messaging.services.jobs.engine import Engine, Outcome, Push, Settlement
from django_redis_messaging.services.jobs.running import RunningJob
from django_redis_messaging.tasks import RedisTask, commits, records, task, worker
from django_redis_messaging.tasks import records as modules
from django_redis_messaging.tasks.backend import TaskEngine
from django_redis_messaging.tasks.compat import (
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
)
from tests.conftest import Call

from ..support.workers import backend, burst, ended, engine, keys, server, server_ms, state, until
from . import jobs
from .conformance import recording_signals

READY, SUCCESSFUL, FAILED = TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
Configure = Callable[..., None]


@pytest.fixture(autouse=True)
def short_backoff(messaging_alias: str, settings: Settings) -> None:
    """Retry after a short pause."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 0.002}


@pytest.fixture
def configure(settings: Settings) -> Configure:
    """Set OPTIONS of the backend under test."""

    def set_options(**options: Any) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}

    return set_options


def run_to_end(*results: TaskResult) -> list[str]:
    """Run the tasks until all have finished; their statuses."""

    def all_finished() -> bool:
        burst()
        for result in results:
            result.refresh()
        return all(result.is_finished for result in results)

    until(all_finished)
    return [str(result.status) for result in results]


def count_waiting() -> int:
    """Number of ready or delayed jobs in all queues."""
    return sum(sum(engine().stats(queue)[:2]) for queue in backend().queue_names)


def counts(queue: str = "default") -> list[int]:
    """Number of ready, delayed, leased and dead jobs."""
    return engine().stats(queue)[:4]


def stored_keys() -> set[str]:
    """Names of the backend's stored keys, except request IDs, worker records and the wake-up marker."""
    messages = {key.decode().removeprefix(keys().tag) for key in server().scan_iter(match=f"{keys().tag}*")}
    return {key for key in messages if not key.startswith((":requests", ":workers")) and key != ":bell"}


class TestKept:
    """What is worked out once for all calls of a task."""

    def test_plan_follows_the_settings(self, configure: Configure, settings: Settings) -> None:
        def max_attempts() -> int:
            return state(jobs.noop.enqueue()).max_attempts

        assert max_attempts() == 5
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_ATTEMPTS": 4}
        assert max_attempts() == 4
        configure(MAX_ATTEMPTS=3)
        assert max_attempts() == 3

    def test_some_copies_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules[RedisTask.__module__], "MAX_COPIES", 1)
        own = jobs.noop.using(priority=1)
        kept = own.copied_to("default", "other", 2)
        assert (kept.backend, kept.queue_name, kept.priority, kept.func) == ("default", "other", 2, own.func)
        assert own.copied_to("default", "other", 2) is kept
        further = [own.copied_to("default", "other", 3) for _ in range(2)]
        assert further[0] == further[1] == own.using(queue_name="other", priority=3)
        assert further[0] is not further[1]


class TestRetries:
    def test_default_is_one_attempt(self) -> None:
        result = jobs.fail.enqueue()
        assert (run_to_end(result), result.attempts, len(result.errors)) == ([FAILED], 1, 1)

    def test_task_fails_after_max_attempts_and_keeps_each_error(self) -> None:
        result = jobs.fail_three_times.enqueue("again")
        assert (run_to_end(result), result.attempts) == ([FAILED], 3)
        assert [error.exception_class for error in result.errors] == [ValueError] * 3
        assert all(error.traceback.endswith("ValueError: again\n") for error in result.errors)

    def test_retries_stop_after_success(self) -> None:
        result = jobs.succeed_on_third_attempt.enqueue()
        assert (run_to_end(result), result.return_value, result.attempts) == ([SUCCESSFUL], 3, 3)
        assert [error.traceback.splitlines()[-1] for error in result.errors] == [
            "ValueError: attempt 1",
            "ValueError: attempt 2",
        ]
        assert result.started_at < result.last_attempted_at <= result.finished_at

    def test_task_is_ready_between_attempts(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 600}
        result = jobs.fail_three_times.enqueue()
        with recording_signals() as signals:
            burst()
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)
        assert result.finished_at is None
        assert [each.name for each in signals] == ["started"]
        assert engine().stats("default")[:3] == [0, 1, 0]

    def test_backoff_doubles(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 0.2}
        result = jobs.fail_three_times.enqueue()
        assert run_to_end(result) == [FAILED]
        assert result.last_attempted_at - result.started_at >= timedelta(seconds=0.1 + 0.2)

    @pytest.mark.parametrize(("name", "attempts"), [("KeyError", 3), ("ValueError", 1), ("SystemExit", 1)])
    def test_only_listed_errors_are_retried(self, name: str, attempts: int) -> None:
        result = jobs.retry_lookups.enqueue(name)
        assert (run_to_end(result), result.attempts) == ([FAILED], attempts)

    def test_system_exit_is_not_retried_by_default(self) -> None:
        result = jobs.raise_by_name.using(max_attempts=3).enqueue("SystemExit")
        assert (run_to_end(result), result.attempts) == ([FAILED], 1)

    def test_using_overrides_the_decorator(self) -> None:
        more = jobs.fail.using(max_attempts=2).enqueue()
        fewer = jobs.fail_three_times.using(max_attempts=1).enqueue()
        named = jobs.raise_by_name.using(max_attempts=4, retry_on=(LookupError,))
        listed, other = named.enqueue("KeyError"), named.enqueue("ValueError")
        none = jobs.fail_three_times.using(retry_on=()).enqueue()
        run_to_end(more, fewer, listed, other, none)
        assert [each.attempts for each in (more, fewer, listed, other, none)] == [2, 1, 4, 1, 1]

    def test_nested_exceptions_are_retried(self) -> None:
        result = jobs.raise_nested_error.using(max_attempts=2, retry_on=(jobs.Order.DoesNotExist,)).enqueue()
        assert (run_to_end(result), result.attempts) == ([FAILED], 2)
        assert result.task.retry_on == (jobs.Order.DoesNotExist,)

    @pytest.mark.parametrize(
        ("stored", "kept"),
        [
            (["builtins.KeyError", "tests.tasks.jobs.Renamed"], (KeyError,)),
            (["tests.gone.Error", "tests.tasks.jobs.make.<locals>.Error", "os.getcwd"], (LookupError,)),
            ([], ()),
        ],
    )
    def test_exceptions_that_the_code_does_not_define_are_ignored(
        self, stored: list[str], kept: tuple[type[Exception]], caplog: pytest.LogCaptureFixture
    ) -> None:
        """A deploy may rename exceptions of waiting calls. If none is left, those of the decorator apply."""
        options = json.dumps({"max_attempts": 3, "retry_on": stored})
        path = jobs.retry_lookups.module_path
        job_id = push_raw(f'["{path}","default",null,["KeyError"],{{}},{options}]', max_attempts=3)
        result = backend().get_result(job_id)
        assert result.task.retry_on == kept
        assert (run_to_end(result), result.attempts) == ([FAILED], 3 if kept else 1)
        assert all(path in caplog.text for path in stored if path != "builtins.KeyError")

    def test_default_max_attempts_applies_if_only_errors_are_listed(self, configure: Configure) -> None:
        configure(MAX_ATTEMPTS=2)

        class Local(Exception):
            """Can't be found by its name."""

        with pytest.raises(InvalidTask, match="can't be imported by its name"):
            jobs.raise_by_name.using(retry_on=(Local,)).enqueue("KeyError")
        result = jobs.raise_by_name.using(retry_on=(KeyError,)).enqueue("KeyError")
        assert (run_to_end(result), result.attempts) == ([FAILED], 2)

    def test_using_none_restores_the_defaults(self, configure: Configure) -> None:
        configure(TIMEOUT=0.1)
        changed = jobs.async_sleep_with_timeout.using(timeout=None, max_attempts=None, retry_on=None)
        result = changed.enqueue(0.3)
        assert run_to_end(result) == [SUCCESSFUL]
        stored_task = backend().get_result(result.id).task
        assert (stored_task.timeout, stored_task.max_attempts, stored_task.retry_on) == (None, None, None)
        assert (
            backend().get_result(jobs.async_sleep_with_timeout.enqueue(0).id).task
            == jobs.async_sleep_with_timeout
        )
        assert backend().timeout(stored_task) is None
        assert backend().timeout(jobs.async_sleep_with_timeout) == 0.2
        assert backend().timeout(jobs.noop) == 0.1

    @pytest.mark.parametrize(
        "fields",
        [
            {"max_attempts": 0},
            {"max_attempts": -1},
            {"max_attempts": "3"},
            {"max_attempts": 1.5},
            {"timeout": 0},
            {"timeout": -1},
            {"timeout": float("nan")},
            {"timeout": timedelta(seconds=1)},
            {"result_ttl": -1},
            {"result_ttl": "1 day"},
            {"result_ttl": timedelta(days=1)},
            {"retry_on": [KeyError]},
            {"retry_on": KeyError},
            {"retry_on": ("KeyError",)},
        ],
    )
    def test_invalid_options_are_rejected(self, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidTask):
            jobs.noop.using(**fields)
        with pytest.raises(InvalidTask):
            task(**fields)(jobs.noop.func)

    def test_unknown_options_are_rejected(self) -> None:
        with pytest.raises(TypeError):
            jobs.noop.using(colour="red")
        with pytest.raises(TypeError):
            task(colour="red")(jobs.noop.func)
        with pytest.raises(TypeError, match="run_after"):
            task(run_after=timezone.now())(jobs.noop.func)


class TestUnique:
    def test_duplicate_returns_the_first_result(self) -> None:
        first, second, other = (
            jobs.unique_echo.enqueue(1),
            jobs.unique_echo.enqueue(1),
            jobs.unique_echo.enqueue(2),
        )
        assert count_waiting() == 2
        assert second.id == first.id != other.id
        run_to_end(first, second, other)
        assert first.return_value == second.return_value == [[1], {}]
        assert (first.attempts, first.worker_ids) == (1, second.worker_ids)

    def test_keyword_order_is_ignored_but_positional_order_matters(self) -> None:
        for args, kwargs in [((1, 2), {"a": 1, "b": 2}), ((1, 2), {"b": 2, "a": 1}), ((2, 1), {})]:
            jobs.unique_echo.enqueue(*args, **kwargs)
        assert count_waiting() == 2

    def test_equal_arguments_have_one_key(self) -> None:
        nested = {"where": [{"a": 1, "b": 2}], "limit": 5}
        other = {"limit": 5, "where": [{"b": 2, "a": 1}]}
        for args, kwargs in [
            ((2026, nested), {}),
            ((2026, other), {}),
            ((2026,), {"options": other}),
            ((), {"options": nested, "year": 2026}),
        ]:
            jobs.unique_report.enqueue(*args, **kwargs)
        assert count_waiting() == 1
        jobs.unique_report.enqueue(2026, {"limit": 5, "where": [{"b": 1, "a": 2}]})
        jobs.unique_report.enqueue(2026, [5, 6])
        jobs.unique_report.enqueue(2026, [6, 5])
        jobs.unique_report.enqueue(2026, options=nested, unknown=1)  # arguments that don't fit the function
        assert count_waiting() == 5

    def test_keys_of_different_tasks_do_not_collide(self) -> None:
        jobs.unique_echo.enqueue(1)
        jobs.unique_other.enqueue(1)
        assert count_waiting() == 2

    def test_key_can_be_a_name_or_a_function(self) -> None:
        numbers = [jobs.unique_by_name.enqueue(number) for number in range(3)]
        orders = [jobs.unique_by_order.enqueue(order, note=f"{n}") for n, order in enumerate([1, 1, 2])]
        run_to_end(*numbers, *orders)
        assert [each.return_value for each in numbers] == [0, 0, 0]
        assert [each.return_value for each in orders] == ["0", "0", "2"]

    async def test_all_enqueue_methods_respect_unique_keys(self) -> None:
        first = await jobs.unique_echo.aenqueue("x")
        others = [
            await jobs.unique_echo.aenqueue("x"),
            *await jobs.unique_echo.aenqueue_many([(["x"], {}), (["x"], {})]),
            *await asyncio.to_thread(jobs.unique_echo.enqueue_many, [(["x"], {})]),
        ]
        assert {(await backend().aget_result(each.id)).id for each in others} == {first.id}

    def test_duplicates_in_one_push_are_merged(self) -> None:
        results = jobs.unique_echo.enqueue_many([(["x"], {})] * 300)
        assert count_waiting() == 1
        assert {backend().get_result(each.id).id for each in results} == {results[0].id}

    def test_unique_keys_span_queues(self) -> None:
        jobs.unique_echo.enqueue()
        jobs.unique_echo.using(queue_name="other").enqueue()
        assert count_waiting() == 1

    @pytest.mark.parametrize("made", [jobs.unique_echo, jobs.unique_fail])
    def test_key_is_released_when_the_task_ends(self, made: RedisTask) -> None:
        first = made.enqueue()
        run_to_end(first)
        second = made.enqueue()
        assert backend().get_result(second.id).id == second.id
        assert run_to_end(second) == [first.status]
        assert backend().get_result(first.id).id == first.id

    def test_key_is_released_when_the_task_is_cancelled(self) -> None:
        first = jobs.unique_echo.enqueue()
        assert jobs.unique_echo.cancel(first.id)
        assert backend().get_result(jobs.unique_echo.enqueue().id).status == READY

    def test_key_is_released_when_the_last_lease_expires(self, configure: Configure) -> None:
        configure(MAX_ATTEMPTS=1)
        first = jobs.unique_echo.enqueue()
        engine().claim(["default"], 1, 1)

        def is_dead() -> bool:
            engine().claim(["default"], 1, 1)
            first.refresh()
            return first.status == FAILED

        until(is_dead)
        assert backend().get_result(jobs.unique_echo.enqueue().id).status == READY

    def test_key_stays_reserved_during_retries(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 600}
        first = jobs.unique_fail.using(max_attempts=2).enqueue()
        burst()
        assert backend().get_result(jobs.unique_fail.enqueue().id).id == first.id

    def test_expired_lease_cannot_release_the_key(self) -> None:
        result, queues = jobs.unique_echo.enqueue(), engine()
        [late] = queues.claim(["default"], 1, 1).jobs
        leased: list[Any] = []
        until(lambda: leased.extend(queues.claim(["default"], 1, 60_000).jobs) or leased)
        for outcome in Outcome:
            assert not queues.settle(late.lease.settlement(outcome, 1000, "R1"))
            assert backend().get_result(jobs.unique_echo.enqueue().id).id == result.id
        assert queues.settle(leased[0].lease.settlement(Outcome.DONE, 1000, "R2"))
        assert backend().get_result(result.id).return_value == 2
        assert backend().get_result(jobs.unique_echo.enqueue().id).id != result.id

    def test_duplicate_can_cancel_and_reschedule_the_original(self) -> None:
        first, second = jobs.unique_echo.enqueue(), jobs.unique_echo.enqueue()
        assert jobs.unique_echo.reschedule(second.id, timezone.now() + timedelta(hours=1))
        burst()
        assert backend().get_result(first.id).status == READY
        assert jobs.unique_echo.cancel(second.id)
        assert backend().get_result(first.id).status == backend().get_result(second.id).status == FAILED

    def test_no_keys_remain_without_result_ttl(self, configure: Configure) -> None:
        configure(RESULT_TTL=0)
        jobs.unique_echo.enqueue_many([([1], {}), ([1], {}), ([2], {})])
        burst()
        assert stored_keys() == set()


class TestMany:
    def test_results_are_in_call_order(self) -> None:
        calls = [([number], {"n": number}) for number in range(450)]
        with recording_signals() as signals:
            results = jobs.echo.enqueue_many(iter(calls))
        assert [(each.args, each.kwargs) for each in results] == calls
        assert [each.id for each in signals] == [each.id for each in results]
        assert all(each.enqueued_at is not None for each in results)
        assert count_waiting() == 450
        with recording_signals() as signals:
            burst(max_tasks=5)
        assert [each.id for each in signals if each.name == "started"] == [each.id for each in results[:5]]

    async def test_pages_are_limited_by_bytes(
        self, monkeypatch: pytest.MonkeyPatch, settings: Settings
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_BYTES": 2**21}
        sizes: list[int] = []
        push = Engine.push

        def push_page(self: Engine, queue: str, request_id: str, page: Sequence[Push], **more: Any) -> Any:
            sizes.append(sum(len(one.payload.encode()) for one in page))
            return push(self, queue, request_id, page, **more)

        monkeypatch.setattr(Engine, "push", push_page)
        texts = ["x" * 2**18] * 6 + ["ä" * 2**17, "small", "x" * (2**19 - 1000), "small"]
        results = await jobs.echo.aenqueue_many([([text], {}) for text in texts])
        assert len(sizes) == 3 and max(sizes) <= 2**20
        more = await asyncio.to_thread(jobs.echo.enqueue_many, [([text], {}) for text in texts])
        assert len(sizes) == 6 and max(sizes) <= 2**20
        assert [backend().get_result(each.id).args for each in results + more] == [
            [text] for text in texts
        ] * 2

        await jobs.echo.aenqueue_many([(["x" * 2**20], {}), ([1], {})])  # a page has at least one call
        assert len(sizes) == 8

    async def test_enqueue_many_asynchronously(self) -> None:
        with recording_signals() as signals:
            results = await jobs.aecho.using(queue_name="other").aenqueue_many([([1], {}), ([2], {"x": 3})])
        assert [each.id for each in signals] == [each.id for each in results]
        await asyncio.to_thread(burst)
        for result in results:
            await result.arefresh()
        assert [each.return_value for each in results] == [[[1], {}], [[2], {"x": 3}]]

    async def test_empty_call_list(self) -> None:
        assert await jobs.echo.aenqueue_many([]) == []
        assert await asyncio.to_thread(jobs.echo.enqueue_many, []) == []

    def test_one_invalid_call_rejects_all(self) -> None:
        with recording_signals() as signals, pytest.raises(TypeError):
            jobs.echo.enqueue_many([([1], {}), ([object()], {})])
        assert (signals, stored_keys()) == ([], set())


@pytest.mark.django_db(transaction=True, databases=["default", "second"])
class TestCommits:
    def test_default_enqueues_immediately(self) -> None:
        with transaction.atomic(), transaction.atomic("second"):
            result = jobs.noop.enqueue()
            assert result.enqueued_at is not None
            assert count_waiting() == 1

    def test_task_is_enqueued_on_commit(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
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

    def test_task_is_enqueued_immediately_outside_of_transactions(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        assert jobs.noop.enqueue().enqueued_at is not None
        assert count_waiting() == 1

    def test_task_is_dropped_on_rollback(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with pytest.raises(KeyError), transaction.atomic():
            jobs.noop.enqueue()
            raise KeyError
        with transaction.atomic():
            with pytest.raises(KeyError), transaction.atomic():
                jobs.noop.enqueue_many([([], {})])
                raise KeyError
            committed = jobs.noop.enqueue()
        assert count_waiting() == 1
        assert run_to_end(committed) == [SUCCESSFUL]

    @pytest.mark.parametrize("outer", ["default", "second"])
    def test_true_waits_for_all_open_transactions(self, outer: str, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        inner = {"default": "second", "second": "default"}[outer]
        with transaction.atomic(outer):
            with transaction.atomic(inner):
                jobs.noop.enqueue()
            assert count_waiting() == 0
        assert count_waiting() == 1

    @pytest.mark.parametrize("outer", ["default", "second"])
    @pytest.mark.parametrize("which", ["outer", "inner"])
    def test_rollback_of_any_transaction_drops_the_task(
        self, outer: str, which: str, configure: Configure
    ) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        inner = {"default": "second", "second": "default"}[outer]
        with transaction.atomic(outer):
            with transaction.atomic(inner):
                jobs.noop.enqueue()
                transaction.set_rollback(which == "inner", using=inner)
            transaction.set_rollback(which == "outer", using=outer)
        assert count_waiting() == 0
        with transaction.atomic(outer), transaction.atomic(inner):
            """A later transaction does not enqueue the dropped task."""
        assert count_waiting() == 0

    def test_alias_waits_for_its_database_only(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT="second")
        with transaction.atomic():
            jobs.noop.enqueue()
            assert count_waiting() == 1
            with transaction.atomic("second"):
                jobs.noop.enqueue()
                assert count_waiting() == 1
            assert count_waiting() == 2

    def test_enqueue_on_commit_of_a_task(self) -> None:
        with transaction.atomic():
            jobs.noop.enqueue_on_commit().enqueue()
            jobs.noop.enqueue_on_commit(using="second").enqueue()
            assert count_waiting() == 1
        assert count_waiting() == 2

    def test_on_commit_false_does_not_wait(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with transaction.atomic():
            jobs.noop.using(on_commit=False).enqueue()
            assert count_waiting() == 1

    @pytest.mark.parametrize("within", ["default", None])
    def test_unknown_database_is_rejected(self, within: str | None) -> None:
        with pytest.raises(ConnectionDoesNotExist):
            if within is None:
                jobs.noop.enqueue_on_commit(using="third").enqueue()
            else:
                with transaction.atomic(within):
                    jobs.noop.enqueue_on_commit(using="third").enqueue()
        assert count_waiting() == 0

    def test_unique_keys_are_reserved_on_commit(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with transaction.atomic():
            first, second = jobs.unique_echo.enqueue(), jobs.unique_echo.enqueue()
            given_out = [first.id, second.id]
            assert stored_keys() == set()
            meanwhile = jobs.unique_echo.using(on_commit=False).enqueue()
        assert {first.id, second.id} == {meanwhile.id}
        assert {backend().get_result(each).id for each in given_out} == {meanwhile.id}
        assert count_waiting() == 1

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

    def test_failing_receiver_does_not_stop_other_functions(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        committed: list[str] = []

        def fail(**_: object) -> None:
            raise KeyError("receiver")

        task_enqueued.connect(fail)
        try:
            with transaction.atomic():
                jobs.noop.enqueue_many([([], {})] * 201)
                transaction.on_commit(lambda: committed.append("yes"))
        finally:
            task_enqueued.disconnect(fail)
        assert (committed, count_waiting()) == (["yes"], 201)

    def test_full_queue_at_the_commit_is_logged(
        self, configure: Configure, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_WAITING": 250}
        with transaction.atomic():
            results = jobs.noop.enqueue_many([([], {})] * 310)
        [record] = caplog.records
        assert "110 calls of tests.tasks.jobs.noop were not enqueued" in record.getMessage()
        assert f"{results[200].id}, {results[201].id}" in record.getMessage()
        assert f"{results[299].id} and 10 more" in record.getMessage()
        assert count_waiting() == 200

    def test_calls_of_a_transaction_are_sent_together(
        self, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        sizes: list[int] = []
        push = TaskEngine.push

        def counting(engine: TaskEngine, queue: str, request_id: str, pushed: Any, **options: Any) -> Any:
            sizes.append(len(pushed))
            return push(engine, queue, request_id, pushed, **options)

        monkeypatch.setattr(TaskEngine, "push", counting)
        later = timezone.now() + timedelta(hours=1)
        with transaction.atomic():
            with transaction.atomic():
                results = [jobs.echo.enqueue(1)]
            results += [jobs.echo.enqueue(number) for number in range(2, 100)]
            others = [jobs.noop.using(queue_name="other", run_after=later).enqueue() for _ in range(250)]
            results.append(jobs.unique_echo.enqueue(100))
        assert sizes == [100, 200, 50]
        assert all(one.enqueued_at for one in (*results, *others))
        burst()
        done = [backend().get_result(each.id) for each in results]
        assert [one.args[0] for one in done] == list(range(1, 101))
        starts = [one.started_at for one in done]
        assert starts == sorted(starts)

    def test_what_a_savepoint_rolled_back_is_not_sent_with_others(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)

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

    def test_the_order_among_other_functions_is_kept(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        waiting: list[int] = []
        with transaction.atomic():
            for _ in range(2):
                jobs.noop.enqueue()
                jobs.noop.enqueue()
                transaction.on_commit(lambda: waiting.append(count_waiting()))
            transaction.on_commit(lambda: jobs.noop.enqueue())
            transaction.on_commit(lambda: waiting.append(count_waiting()))
        assert waiting == [2, 4, 5]

    def test_a_full_queue_refuses_only_the_calls_above_its_limit(
        self, configure: Configure, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_WAITING": 5}
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

    def test_many_prompt_round_trips_do_not_use_up_the_time_of_a_commit(
        self, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        clock = count(1000.0, 0.05)  # seconds that pass in each round trip
        monkeypatch.setattr(commits, "monotonic", lambda: next(clock))
        with transaction.atomic():
            for _ in range(60):
                jobs.noop.enqueue()
                transaction.on_commit(lambda: None)  # so that each call needs a round trip
        assert count_waiting() == 60

    def test_invalid_arguments_are_rejected_before_commit(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with transaction.atomic():
            with pytest.raises(TypeError):
                jobs.echo.enqueue(object())
            with pytest.raises(LimitExceeded):
                jobs.echo.enqueue("x" * 2**20)

    async def test_coroutines_enqueue_immediately_outside_of_transactions(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        assert (await jobs.noop.aenqueue()).enqueued_at is not None
        assert all(each.enqueued_at for each in await jobs.noop.aenqueue_many([([], {})]))
        assert count_waiting() == 2


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


@pytest.mark.timing
class TestRetention:
    def test_result_ttl_starts_at_completion(self, configure: Configure) -> None:
        configure(RESULT_TTL=0.8)
        result = jobs.noop.using(run_after=timezone.now() + timedelta(seconds=1.2)).enqueue()
        begun = time.monotonic()
        until(lambda: burst().done)
        assert time.monotonic() - begun > 0.8, "the task must be delayed for longer than RESULT_TTL"
        result.refresh()
        assert result.status == SUCCESSFUL
        until(lambda: engine().get(result.id) is None)
        assert timezone.now() - result.finished_at >= timedelta(seconds=0.8)
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    def test_expired_results_are_removed_with_later_results(self, configure: Configure) -> None:
        configure(RESULT_TTL=0.01)
        results = jobs.noop.enqueue_many([([], {})] * 5)
        burst()
        until(lambda: not any(engine().get(each.id) for each in results))
        jobs.noop.enqueue_many([([], {})] * 5)
        burst()
        assert server().hlen(keys().states) <= 5

    def test_a_result_takes_less_than_half_a_kib(self) -> None:
        results = jobs.echo.enqueue_many([([number, "text"], {}) for number in range(200)])
        assert run_to_end(*results) == [SUCCESSFUL] * 200
        used = sum(server().memory_usage(key, samples=0) for key in (keys().states, keys().finished))
        assert used / 200 < 512

    def test_default_result_ttl_is_one_day(self) -> None:
        result = jobs.noop.enqueue()
        burst()
        left = server().zscore(keys().finished, result.id) / 1000 - time.time()
        assert 86_390 < left <= 86_400

    def test_zero_result_ttl_stores_no_result(self, configure: Configure) -> None:
        of_task = jobs.noop.using(result_ttl=0).enqueue()
        cancelled = jobs.noop.using(result_ttl=0).enqueue()
        assert cancelled.cancel()
        burst()
        configure(RESULT_TTL=0)
        result = jobs.noop.enqueue()
        burst()
        for each in (of_task, cancelled, result):
            with pytest.raises(TaskResultDoesNotExist):
                each.refresh()
        assert stored_keys() == set()

    def test_tasks_have_their_own_result_ttl(self) -> None:
        def seconds_left(result: TaskResult) -> float:
            return float(server().zscore(keys().finished, result.id) / 1000 - time.time())

        longer, failed = jobs.noop.using(result_ttl=3 * 86_400), jobs.fail.using(result_ttl=0)
        done, dead, cancelled = longer.enqueue(), failed.enqueue(), longer.using(queue_name="other").enqueue()
        assert cancelled.cancel()
        assert run_to_end(done, dead) == [SUCCESSFUL, FAILED]
        assert done.task == longer and done.task.result_ttl == 3 * 86_400
        for result in (done, cancelled):
            assert 3 * 86_400 - 10 < seconds_left(result) <= 3 * 86_400


class TestCancelAndReschedule:
    async def test_waiting_tasks_can_be_cancelled(self) -> None:
        one, two, later = [
            await jobs.noop.using(run_after=moment).aenqueue()
            for moment in (None, None, timezone.now() + timedelta(hours=1))
        ]
        assert await asyncio.to_thread(jobs.noop.cancel, one.id)
        assert await jobs.noop.acancel(later.id)
        with recording_signals() as signals:
            await asyncio.to_thread(burst)
        assert {each.id for each in signals} == {two.id}
        for result in (one, later):
            await result.arefresh()
            assert (result.status, result.attempts) == (FAILED, 0)
            assert result.finished_at is not None and result.started_at is None
            assert [error.exception_class for error in result.errors] == [TaskCancelled]
            assert not await jobs.noop.acancel(result.id)
        await two.arefresh()
        assert two.status == SUCCESSFUL

    async def test_running_tasks_cannot_be_cancelled_or_rescheduled(self) -> None:
        result = await jobs.noop.aenqueue()
        assert engine().claim(["default"], 1, 60_000).jobs
        moment = timezone.now()
        assert not await asyncio.to_thread(jobs.noop.cancel, result.id)
        assert not await jobs.noop.acancel(result.id)
        assert not await asyncio.to_thread(jobs.noop.reschedule, result.id, moment)
        assert not await jobs.noop.areschedule(result.id, moment)
        assert not jobs.noop.cancel("0" * 32) and not jobs.noop.reschedule("0" * 32, moment)

    async def test_waiting_tasks_can_be_rescheduled(self) -> None:
        short_backoff, later = [
            await jobs.noop.using(run_after=moment).aenqueue()
            for moment in (None, timezone.now() + timedelta(hours=1))
        ]
        assert await jobs.noop.areschedule(short_backoff.id, timezone.now() + timedelta(hours=1))
        assert await asyncio.to_thread(jobs.noop.reschedule, later.id, timezone.now())
        await asyncio.to_thread(burst)
        assert (await backend().aget_result(short_backoff.id)).status == READY
        assert (await backend().aget_result(later.id)).status == SUCCESSFUL

    async def test_result_has_the_new_run_after(self) -> None:
        """The rescheduling result is updated immediately, others by a refresh, including after the task has
        ended."""
        moments = [timezone.now() + timedelta(hours=hours) for hours in (1, 2, -1)]
        result = await jobs.noop.using(run_after=moments[0]).aenqueue()
        other = await backend().aget_result(result.id)
        assert await result.areschedule(moments[1])
        assert (result.task.run_after, other.task.run_after) == (moments[1], moments[0])
        await other.arefresh()
        assert other.task.run_after == moments[1]
        assert await asyncio.to_thread(other.reschedule, moments[2])
        await asyncio.to_thread(burst)
        for changed in (result, other):
            await asyncio.to_thread(changed.refresh)
            assert (changed.status, changed.task.run_after) == (SUCCESSFUL, moments[2])
        assert not await result.areschedule(moments[0])
        assert not await asyncio.to_thread(result.cancel)
        assert result.task.run_after == moments[2]

    async def test_cancel_from_the_result(self) -> None:
        one, two = [await jobs.noop.using(queue_name="other").aenqueue() for _ in range(2)]
        assert await one.acancel() and await asyncio.to_thread(two.cancel)
        assert [(await backend().aget_result(each.id)).status for each in (one, two)] == [FAILED, FAILED]

    @pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
    @pytest.mark.parametrize("extreme", [datetime.max, datetime.min])
    async def test_moments_that_cannot_be_read_back_are_rejected(self, extreme: datetime, zone: str) -> None:
        moment = extreme.replace(tzinfo=ZoneInfo(zone))
        result = await jobs.noop.aenqueue()
        for rejected, error in (
            (lambda: jobs.noop.using(run_after=moment), InvalidTask),
            (lambda: jobs.noop.reschedule(result.id, moment), InvalidArgument),
            (lambda: result.reschedule(moment), InvalidArgument),
        ):
            with pytest.raises(error, match="run_after must be between"):
                rejected()
        with pytest.raises(InvalidArgument, match="run_after must be between"):
            await result.areschedule(moment)
        assert counts() == [1, 0, 0, 0]

    def test_extreme_moments_are_read_back(self) -> None:
        for moment in (arguments.MIN_MOMENT, arguments.MAX_MOMENT):
            result = jobs.noop.using(run_after=moment).enqueue()
            result.refresh()
            assert result.task.run_after == moment
            assert result.reschedule(moment)
            result.refresh()
            assert result.task.run_after == moment

    @pytest.mark.parametrize("value", [5, timedelta(hours=1), "tomorrow"])
    def test_run_after_must_be_a_datetime(self, value: Any) -> None:
        with pytest.raises(InvalidTask, match="run_after must be a datetime, not"):
            jobs.noop.using(run_after=value)

    @pytest.mark.parametrize(
        ("moment", "error"), [(datetime(2100, 1, 1), ValueError), (5, TypeError), (None, TypeError)]
    )
    async def test_reschedule_requires_an_aware_datetime(self, moment: Any, error: type[Exception]) -> None:
        result = await jobs.noop.aenqueue()
        with pytest.raises(error):
            jobs.noop.reschedule(result.id, moment)
        with pytest.raises(error):
            await jobs.noop.areschedule(result.id, moment)

    async def test_id_leads_to_the_queue_in_which_the_task_waits(self, call: Call) -> None:
        moment = timezone.now() + timedelta(hours=1)
        result = await call(jobs.noop.using(queue_name="other"), "enqueue")
        assert await call(jobs.noop, "reschedule", result.id, moment)
        await call(result, "refresh")
        assert result.task.run_after == moment
        assert counts("other") == [0, 1, 0, 0]
        assert await call(jobs.noop, "cancel", result.id)
        await call(result, "refresh")
        assert (result.status, counts("other")) == (FAILED, [0, 0, 0, 0])
        assert not await call(jobs.noop, "cancel", result.id)
        assert not await call(jobs.noop, "reschedule", result.id, moment)

    def test_duplicate_in_another_queue_cancels_and_reschedules_the_original(self) -> None:
        first = jobs.unique_echo.enqueue()
        second = jobs.unique_echo.using(queue_name="other").enqueue()
        assert second.id == first.id
        assert second.reschedule(timezone.now() + timedelta(hours=1))
        assert counts() == [0, 1, 0, 0]
        assert second.cancel()
        assert counts() == counts("other") == [0, 0, 0, 0]

    def test_duplicate_after_a_commit_leads_to_the_original(self) -> None:
        first = jobs.unique_echo.enqueue()
        key, payload = (
            jobs.unique_echo.unique_key([], {}),
            records.payload(records.payload_frame(jobs.unique_echo), [], {}),
        )
        job = Push("0late", payload, 0, 0, 3, key)
        engine().push("other", "", [job], max_aliases=1)
        assert jobs.unique_echo.using(queue_name="other").cancel("0late")
        first.refresh()
        assert first.status == FAILED

    def test_rescheduling_registers_the_queue_in_which_the_task_waits(self, settings: Settings) -> None:
        """Until the new moment: the poller must not forget the queue before."""
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}
        result = jobs.noop.using(queue_name="other").enqueue()
        moment = timezone.now() + timedelta(days=100)
        assert jobs.noop.reschedule(result.id, moment)
        assert server().zscore(keys().queues, "other") >= moment.timestamp() * 1000


class TestDead:
    """Dead jobs, created through the engine."""

    def add_dead(self, *uniques: str) -> None:
        queues = engine()
        for page in batched(enumerate(uniques), 200):
            queues.push("default", "", [Push(f"{n:05}", '["x"]', 0, 0, 1, key) for n, key in page])
        leased = queues.claim(["default"], 500, 60_000).jobs
        assert len(leased) == len(uniques)
        settlements = [job.lease.settlement(Outcome.DEAD) for job in leased]
        assert all(queues.claim(["default"], 0, 1, settlements=settlements).applied)

    def test_redrive_skips_jobs_with_reserved_keys(self) -> None:
        reserved = [f"k{number}" for number in range(450)]
        self.add_dead(*reserved, "free", "", "")
        engine().push("default", "", [Push(f"other {key}", '["x"]', 0, 0, 1, key) for key in reserved])
        assert engine().redrive("default", None) == 3
        assert engine().redrive("default", None) == 0
        assert engine().stats("default")[:4] == [453, 0, 0, 450]

    def test_expired_dead_jobs_are_removed(self, settings: Settings, configure: Configure) -> None:
        result = jobs.fail.enqueue()
        assert run_to_end(result) == [FAILED]
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_DEAD_TTL": 0.02}
        until(lambda: engine().stats("default")[3] == 0)
        assert engine().redrive("default", None) == engine().redrive("default", [result.id]) == 0
        engine().sweep(["default"])
        result.refresh()
        assert result.status == FAILED  # until RESULT_TTL
        configure(RESULT_TTL=0.02)
        other = jobs.fail.enqueue()
        with pytest.raises(TaskResultDoesNotExist):
            until(lambda: run_to_end(other) == [])
        assert engine().sweep(["default"]) is None
        assert other.id.encode() not in server().hkeys(keys().states)

    def test_cancel_does_not_touch_a_dead_letter(self) -> None:
        result = jobs.fail.using(result_ttl=0).enqueue()
        assert run_to_end(result) == [FAILED]
        assert not result.cancel()
        assert engine().redrive("default", None) == 1


class TestAnyQueue:
    """A backend without a list of queues accepts every queue."""

    @pytest.fixture(autouse=True)
    def any_queue(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}

    async def test_serving_lists_queues_with_tasks(self) -> None:
        assert backend().serving() == []
        await asyncio.to_thread(jobs.noop.using(queue_name="one").enqueue)
        await jobs.noop.using(queue_name="two").aenqueue()
        await jobs.noop.using(queue_name="three").aenqueue_many([([], {})])
        await asyncio.to_thread(jobs.noop.using(queue_name="four").enqueue_many, [([], {})])
        assert sorted(backend().serving()) == ["four", "one", "three", "two"]

    def test_queue_is_registered_once(self) -> None:
        jobs.noop.enqueue()
        before = server().zscore(keys().queues, "default")
        jobs.noop.enqueue()
        assert server().zscore(keys().queues, "default") == before
        assert server().zcard(keys().queue("default").ready) == 2


PAYLOADS: list[Any] = [
    None,
    2**53 + 1,
    -(10**30),
    0.1,
    -0.0,
    1e308,
    "",
    '\0\n\r\x1f"\\',
    "👩‍👩‍👧‍👦 ÄÖÜ \u2028",
    [],
    {},
    [[], {}, [[]], {"": []}, {"a": {"b": {}}}],
    [1, True, False, None, "1"],
    "x" * 100_000,
]


class TestPayloads:
    @pytest.mark.parametrize("value", PAYLOADS, ids=range(len(PAYLOADS)))
    def test_round_trip(self, value: Any) -> None:
        result = jobs.echo.enqueue(value, name=value)
        stored_keys = backend().get_result(result.id)
        assert (stored_keys.args, stored_keys.kwargs) == ([value], {"name": value})
        burst()
        assert repr(ended(result).return_value) == repr([[value], {"name": value}])

    async def test_large_arguments_are_rejected(self) -> None:
        for text in ("x" * 2**20, "ä" * 2**18):
            with pytest.raises(LimitExceeded, match="JOB_MAX_BYTES"):
                await jobs.echo.aenqueue(text)
            with pytest.raises(LimitExceeded):
                await asyncio.to_thread(jobs.echo.enqueue, text=text)
            with pytest.raises(LimitExceeded):
                jobs.echo.enqueue_many([([], {}), ([text], {})])
        assert stored_keys() == set()

    def test_large_return_value_fails_the_task(self) -> None:
        result = jobs.return_large.enqueue(2**20)
        assert run_to_end(result) == [FAILED]
        assert result.errors[0].exception_class is LimitExceeded

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            (object(), TypeError),
            ({1: "one"}, TypeError),
            (float("nan"), ValueError),
            (float("inf"), ValueError),
            ("\ud800", ValueError),
            (b"\xff", ValueError),
            ({"a", "b"}, TypeError),
        ],
    )
    def test_unserializable_values_are_rejected(self, value: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            jobs.echo.enqueue(value)
        with pytest.raises(error):
            jobs.echo.enqueue(key=value)
        assert stored_keys() == set()

    def test_full_queue_rejects_tasks(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_WAITING": 2}
        jobs.noop.enqueue_many([([], {})] * 2)
        with recording_signals() as signals, pytest.raises(LimitExceeded, match="JOB_MAX_WAITING"):
            jobs.noop.enqueue()
        assert (signals, count_waiting()) == ([], 2)


def push_raw(payload: str, max_attempts: int = 1, digit: str = "f") -> str:
    """Push a job as a foreign client could have pushed it; its ID."""
    job_id = "0" + digit * 31
    engine().push("default", "", [Push(job_id, payload, 0, 0, max_attempts)])
    return job_id


class TestRepeats:
    """A push whose reply was lost is repeated unchanged, without a request ID: the job IDs are new."""

    #: milliseconds
    RESULT_TTL = 3_600_000

    def push(self, *ids: str, unique: str = "") -> tuple[int, list[str]]:
        reply: tuple[int, list[str]] = engine().push(
            "default", "", [Push(job_id, '["x"]', 0, 0, 1, unique) for job_id in ids]
        )
        return reply

    def settle(self, outcome: str) -> str:
        [leased] = engine().claim(["default"], 1, 60_000).jobs
        assert engine().settle(leased.lease.settlement(Outcome(outcome), self.RESULT_TTL))
        return str(leased.lease.id)

    def test_repeat_adds_nothing_and_returns_the_first_reply(self) -> None:
        first = self.push("a", "b")
        until(lambda: server_ms() > first[0])
        assert self.push("a", "b") == first
        assert engine().stats("default")[0] == 2

    @pytest.mark.parametrize("outcome", ["done", "dead"])
    def test_repeat_after_completion_adds_nothing(self, outcome: str) -> None:
        self.push("a")
        assert self.settle(outcome) == "a"
        self.push("a")
        assert engine().stats("default")[0] == 0

    def test_repeat_succeeds_when_the_queue_is_full(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_WAITING": 1}
        assert self.push("a") == self.push("a")

    def test_repeat_returns_the_same_unique_winner(self) -> None:
        assert self.push("a", unique="k")[1] == self.push("a", unique="k")[1] == ["a"]
        assert self.push("b", unique="k")[1] == self.push("b", unique="k")[1] == ["a"]
        assert not server().exists(keys().aliases)

    def test_repeat_keeps_its_own_result_after_the_key_changed_owner(self) -> None:
        self.push("a", unique="k")
        self.settle("done")
        self.push("b", unique="k")
        assert self.push("a", unique="k")[1] == ["a"]
        record = engine().get("a")
        assert record is not None and record.state.status == "s"

    def test_request_id_is_stored_if_the_result_expires_before_a_repeat(self, configure: Configure) -> None:
        def count_requests() -> int:
            return sum(server().hlen(key) for key in server().scan_iter(f"{keys().tag}:requests:*"))

        jobs.noop.enqueue()
        assert count_requests() == 0
        jobs.noop.using(result_ttl=0).enqueue()
        assert count_requests() == 1
        configure(RESULT_TTL=0)
        jobs.noop.enqueue()
        assert count_requests() == 2
        jobs.noop.using(result_ttl=3600).enqueue()  # its result is not kept if it fails
        assert count_requests() == 3
        configure(RESULT_MAX=10)  # other results may displace it
        jobs.noop.enqueue()
        assert count_requests() == 4


class TestForeignJobs:
    @pytest.mark.parametrize(
        "path",
        [
            "tests.tasks.jobs.renamed",
            "tests.tasks.gone.noop",
            "tests.tasks.jobs.no_task",
            "tests.tasks.jobs.go",
            "os.abort",
            "django_redis_messaging.tasks.task.RedisTask",
            "tests.tasks.test_backend.another_name",
            "noop",
            "",
        ],
    )
    def test_only_tasks_run_and_only_by_their_own_path(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "UNKNOWN_TASK_WINDOW", 0)
        job_id = push_raw(f'["{path}","default",null,[],{{}},{{}}]')
        with recording_signals() as signals:
            burst()
        assert signals == []
        [dead] = engine().dead("default", 10)
        assert dead.id == job_id
        assert b"UnknownTask" in dead.log
        with pytest.raises(InvalidTask):
            backend().get_result(job_id)

    @pytest.mark.parametrize("newer", ["task", "option"])
    def test_tasks_of_newer_code_are_retried(
        self, newer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """In a rolling deploy, workers with the old code may claim them. No attempt counts."""
        result = jobs.noop.using(result_ttl=60).enqueue()
        with monkeypatch.context() as old_code:
            if newer == "task":
                old_code.delattr(jobs, "noop")
            else:
                old_code.delitem(records.STORED, "result_ttl")
            for _ in range(3):
                assert burst(max_tasks=1).done == 0
                assert engine().reschedule("default", result.id, 0)
        assert caplog.text.count(result.id) == 3 and "retrying in 1.0 s" in caplog.text
        assert run_to_end(result) == [SUCCESSFUL]
        assert (result.attempts, result.errors) == (1, [])

    def claim_unknown(self) -> Settlement:
        """Claim a job of an unknown task; the settlement of its lease."""
        [leased] = engine().claim(["default"], 1, 60_000).jobs
        running = RunningJob(leased, asyncio.run)
        return worker.settle_unknown(backend(), running, records.UnknownTask("renamed"))

    def test_unknown_tasks_are_retried_less_and_less(self) -> None:
        job_id = push_raw('["tests.tasks.jobs.renamed","default",null,[],{},{}]')
        found: list[tuple[Outcome, int]] = []
        for age in (0, 1, 2, 40, 1000, 3599, 3600):
            if age:
                assert engine().reschedule("default", job_id, 0)
                server().hset(keys().outcomes, job_id, f"U{server_ms() - age * 1000}")
            settlement = self.claim_unknown()
            found.append((settlement.outcome, round(settlement.ms / 1000)))
            assert engine().settle(settlement)
        assert found == [
            *[(Outcome.RELEASE, seconds) for seconds in (1, 1, 2, 40, 60, 60)],
            (Outcome.DEAD, 0),
        ]
        assert [dead.id for dead in engine().dead("default", 10)] == [job_id]

    @pytest.mark.parametrize("before", ["backlog", "rescheduled", "lost", "redriven"])
    def test_unknown_tasks_are_retried_for_an_hour_whatever_happened_before(
        self, before: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It counts from the claim that found the task unknown, not from the moment at which it was due."""
        job_id = push_raw('["tests.tasks.jobs.renamed","default",null,[],{},{}]', max_attempts=3)
        hours_ago = server_ms() - 7_200_000
        if before == "backlog":
            fields = server().hget(keys().states, job_id).split(b" ")
            fields[7] = fields[10] = b"%d" % hours_ago
            server().hset(keys().states, job_id, b" ".join(fields))
        elif before == "rescheduled":
            # the records of the push and of the new moment are both old
            assert engine().reschedule("default", job_id, f"@{hours_ago}", "A1")
        elif before == "lost":
            engine().claim(["default"], 1, 1, worker="lost")
            until(lambda: counts() == [1, 0, 0, 0])
        else:
            with monkeypatch.context() as later:
                later.setattr(worker, "UNKNOWN_TASK_WINDOW", 0)
                burst()
            assert engine().redrive("default", None) == 1
        burst()
        assert counts() == [0, 1, 0, 0], "released"
        assert engine().reschedule("default", job_id, 0)
        server().hset(keys().outcomes, job_id, f"U{server_ms() - 3_600_000}")
        burst()
        assert counts() == [0, 0, 0, 1]

    def test_unknown_task_is_released_if_its_log_cannot_be_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> Any:
            raise Unavailable("down")

        push_raw('["tests.tasks.jobs.renamed","default",null,[],{},{}]')
        monkeypatch.setattr(Engine, "get", fail)
        assert not burst().failed
        assert counts() == [0, 1, 0, 0]

    @pytest.mark.parametrize("stored", ["task", "retry_on"])
    def test_only_modules_of_the_site_are_imported(
        self, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("outside_of_the_site", "listed_by_the_site", "listed_by_the_site_too"):
            (tmp_path / f"{name}.py").write_text("class Failed(Exception): ...\n")
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(
            settings.TASKS["default"]["OPTIONS"], "TASK_MODULES", ["tests", "listed_by_the_site"]
        )

        digits = iter("123")

        def imported_by_a_job(name: str) -> bool:
            if stored == "task":
                push_raw(f'["{name}.noop","default",null,[],{{}},{{}}]', digit=next(digits))
            else:
                options = json.dumps({"retry_on": [f"{name}.Failed"]})
                push_raw(f'["tests.tasks.jobs.noop","default",null,[],{{}},{options}]', digit=next(digits))
            burst()
            return name in sys.modules

        assert not imported_by_a_job("outside_of_the_site")
        assert not imported_by_a_job("listed_by_the_site_too"), "the name only begins like a listed one"
        assert imported_by_a_job("listed_by_the_site")
        if stored == "task":
            assert "'outside_of_the_site.noop' is in no module of an installed app" in caplog.text
            assert "retrying in 1.0 s" in caplog.text and "TASK_MODULES" in caplog.text

    def test_modules_of_installed_apps_may_be_imported(self) -> None:
        allowed = (
            "django.contrib.admin.tasks",
            "django.contrib.admin",
            "tests.web.accounts.tasks",
            "tests.jobs",
        )
        refused = ("django.contrib.gis.tasks", "django", "django.contrib.admindocs", "testsuite", "", "os")
        assert all(map(modules.may_be_imported, allowed))
        assert not any(map(modules.may_be_imported, refused))
        assert modules.may_be_used("os"), "imported already"

    def test_failing_import_does_not_end_the_worker(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_module_of_tasks.py").write_text("1 / 0\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(settings.TASKS["default"]["OPTIONS"], "TASK_MODULES", ["broken_module_of_tasks"])
        push_raw('["broken_module_of_tasks.noop","default",null,[],{},{}]')
        result = jobs.noop.enqueue()
        assert run_to_end(result) == [SUCCESSFUL]
        assert b"ZeroDivisionError" in engine().dead("default", 1)[0].log

    def test_task_of_an_unserved_queue_is_dead_lettered(self) -> None:
        push_raw('["tests.tasks.jobs.noop","former",null,[],{},{}]')
        burst()
        assert b"Queue 'former' is not valid" in engine().dead("default", 1)[0].log


another_name = jobs.noop


class TestIds:
    def test_ids_begin_with_the_shard(self) -> None:
        results = [jobs.noop.enqueue(), *jobs.noop.enqueue_many([([], {})] * 3)]
        assert all(re.fullmatch("0[0-9a-f]{31}", each.id) for each in results)

    def test_backends_are_separate(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "more": {**settings.TASKS["default"], "QUEUES": ["default"]}}
        result = jobs.noop.using(backend="more").enqueue()
        burst()
        assert result.backend == "more"
        result.refresh()
        assert result.status == READY
        with pytest.raises(TaskResultDoesNotExist):
            backend().get_result(result.id)


@pytest.mark.timing
class TestUnavailable:
    @pytest.fixture
    def fragile(self, settings: Settings) -> Iterator[EmbeddedServer]:
        """A server that the test may stop."""
        with EmbeddedServer(append_only=True) as server:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
            changed = {"ALIAS": "messaging", "COMMAND_DEADLINE": 0.3}
            with override_settings(
                CACHES={**settings.CACHES, "messaging": entry},
                REDIS_MESSAGING={**settings.REDIS_MESSAGING, **changed},
            ):
                yield server
            clients.close()

    async def test_enqueue_raises_and_nothing_is_partially_written(self, fragile: EmbeddedServer) -> None:
        before = await asyncio.to_thread(jobs.noop.enqueue)
        # data sent on an open connection may already have arrived: only a new connection fails before sending
        clients.close()
        fragile.stop()
        with recording_signals() as signals:
            with pytest.raises(Unavailable):
                await jobs.noop.aenqueue()
            with pytest.raises(Unavailable):
                await jobs.unique_echo.aenqueue_many([([1], {})] * 3)
            with pytest.raises(Unavailable):
                await asyncio.to_thread(jobs.unique_echo.enqueue, 1)
            with pytest.raises(Unavailable):
                await asyncio.to_thread(before.refresh)
        assert signals == []
        fragile.start()
        assert await asyncio.to_thread(count_waiting) == 1
        assert stored_keys() == {":jobs", ":states", ":queue:default:ready", ":queue:default:bell"}
        await clients.aclose()

    @pytest.mark.django_db(transaction=True)
    def test_outage_on_commit_is_logged_and_loses_nothing_else(
        self,
        fragile: EmbeddedServer,
        settings: Settings,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 60}
        monkeypatch.setattr("django_redis_messaging.tasks.commits.COMMIT_DEADLINE", 0.5)
        fragile.stop()
        committed: list[str] = []
        with transaction.atomic():
            transaction.on_commit(lambda: committed.append("before"))
            results = [jobs.noop.enqueue_on_commit().enqueue() for _ in range(3)]
            transaction.on_commit(lambda: committed.append("after"))
            began = time.monotonic()
        assert time.monotonic() - began < 30, "a commit waits for one deadline, and a short one"
        assert committed == ["before", "after"]
        assert [result.enqueued_at for result in results] == [None] * 3
        [logged] = [record.getMessage() for record in caplog.records]
        assert "3 calls of tests.tasks.jobs.noop were not enqueued" in logged
        assert all(result.id in logged for result in results)
        fragile.start()
        assert count_waiting() == 0

    @pytest.mark.timing
    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("between", [False, True], ids=["together", "with others between"])
    def test_a_commit_waits_for_a_frozen_server_once(
        self, between: bool, fragile: EmbeddedServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 60}
        monkeypatch.setattr("django_redis_messaging.tasks.commits.COMMIT_DEADLINE", 0.5)
        count_waiting()  # opens a connection
        fragile.freeze()
        committed: list[int] = []
        try:
            with transaction.atomic():
                for number in range(100):
                    jobs.noop.enqueue_on_commit().enqueue()
                    if between:
                        transaction.on_commit(partial(committed.append, number))
                began = time.monotonic()
            assert time.monotonic() - began < 1.5
            began = time.monotonic()
            with transaction.atomic():
                jobs.noop.enqueue_on_commit().enqueue()
            assert time.monotonic() - began < 1.0, "after a failure, it waits for a short deadline"
        finally:
            fragile.thaw()
        assert committed == list(range(100 if between else 0))


@pytest.mark.parametrize("use_tz", [True, False])
class TestTimeZones:
    """With USE_TZ=False, all moments are naive, in local time, as those of Django's own backends."""

    @pytest.fixture(autouse=True)
    def in_new_york(self, use_tz: bool, messaging_alias: str, settings: Settings) -> None:
        settings.USE_TZ = use_tz
        settings.TIME_ZONE = "America/New_York"

    def test_moments_are_comparable(self, use_tz: bool) -> None:
        finished: list[TaskResult] = []
        before = timezone.now() - timedelta(milliseconds=1)  # the server's clock has ms

        def receive(task_result: TaskResult, **_: object) -> None:
            finished.append(task_result)

        task_finished.connect(receive)
        try:
            result = jobs.noop.enqueue()
            assert result.enqueued_at >= before
            assert run_to_end(result, jobs.fail.enqueue()) == [SUCCESSFUL, FAILED]
        finally:
            task_finished.disconnect(receive)
        for each in (*finished, result):
            moments = before, each.enqueued_at, each.started_at, each.last_attempted_at, each.finished_at
            assert list(moments) == sorted(moments)
            assert all(timezone.is_aware(moment) is use_tz for moment in moments)

    def test_moments_that_cannot_be_read_back_are_rejected(self, use_tz: bool) -> None:
        for moment in (datetime.max, datetime.min):
            with pytest.raises(InvalidTask, match="run_after must be"):
                jobs.noop.using(run_after=moment)
            with pytest.raises(InvalidArgument, match="run_after must be"):
                jobs.noop.reschedule("0" * 32, moment)

    def test_stored_and_enqueued_results_are_equal(self, use_tz: bool) -> None:
        moment = timezone.now() + timedelta(hours=1, microseconds=1)
        for result in (jobs.echo.enqueue(1, a=2), jobs.echo.using(run_after=moment).enqueue()):
            assert backend().get_result(result.id) == result
        assert result.reschedule(moment + timedelta(days=200))
        assert backend().get_result(result.id).task == result.task
        assert result.reschedule(timezone.now() - timedelta(seconds=1))
        assert run_to_end(result) == [SUCCESSFUL]


class TestChecks:
    def messages(self) -> list[CheckMessage]:
        return list(backend().check())

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"ENQUEUE_ON_COMMIT": True},
            {"RESULT_MAX": 1, "RESULT_TTL": 0},
            {"ENQUEUE_ON_COMMIT": "second", "RESULT_TTL": 60, "TIMEOUT": 5, "MAX_ATTEMPTS": 1, "USING": None},
        ],
    )
    def test_valid_options_pass(self, options: dict[str, Any], configure: Configure) -> None:
        configure(**options)
        assert self.messages() == []

    def test_unknown_options_are_reported(self, configure: Configure) -> None:
        configure(RESULTS_TTL=5)
        [message] = self.messages()
        assert message.id == "messaging.W101"
        assert "'RESULTS_TTL'" in message.msg and "RESULT_TTL" in message.hint

    @pytest.mark.parametrize("alias", ["third", None, 5])
    def test_unknown_databases_are_errors(self, alias: Any, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=alias)
        assert [message.id for message in self.messages()] == ["messaging.E101"]

    @pytest.mark.parametrize(("option", "count"), [(True, 1), ("second", 1), ("default", 0), (False, 0)])
    def test_databases_without_autocommit_are_errors(
        self, option: bool | str, count: int, configure: Configure, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(transaction.get_connection("second").settings_dict, "AUTOCOMMIT", False)
        configure(ENQUEUE_ON_COMMIT=option)
        assert [message.id for message in self.messages()] == ["messaging.E101"] * count

    @pytest.mark.parametrize(
        "options",
        [
            {"RESULT_TTL": -1},
            {"RESULT_TTL": "a day"},
            {"RESULT_TTL": None},
            {"RESULT_MAX": 0},
            {"RESULT_MAX": 1.5},
            {"MAX_ATTEMPTS": 0},
            {"MAX_ATTEMPTS": "3"},
            {"TIMEOUT": 0},
            {"TIMEOUT": "1 min"},
            {"USING": "nowhere"},
            {"TASK_MODULES": "mysite"},
            {"TASK_MODULES": ["mysite", ""]},
        ],
    )
    def test_invalid_values_are_errors(self, options: dict[str, Any], configure: Configure) -> None:
        configure(**options)
        [message] = self.messages()
        assert message.id == "messaging.E102"
        assert next(iter(options)) in message.msg
