"""The backend beyond Django's contract: options, retries, unique keys, bulk enqueueing, results, cancelling,
payloads, time zones and checks."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from django.utils import timezone
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging.core.commands import batched
from django_redis_messaging.errors import InvalidArgument, LimitExceeded, TaskCancelled
from django_redis_messaging.services.common import arguments
from django_redis_messaging.services.jobs.engine import Engine, Outcome, Push
from django_redis_messaging.tasks import RedisTask, records, task
from django_redis_messaging.tasks.compat import (
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    task_finished,
)
from tests.conftest import Call

from ..support.scripts import server_clock
from ..support.server import change, server, until
from ..support.workers import (
    FAILED,
    READY,
    SUCCESSFUL,
    backend,
    burst,
    count_waiting,
    counts,
    ended,
    engine,
    errors_of,
    keys,
    later,
    receiving,
    recording_signals,
    run_to_end,
    state,
    stored_keys,
)
from . import jobs
from .conftest import Configure

pytestmark = pytest.mark.usefixtures("short_backoff")

#: ms
DAY = 86_400_000


class TestOptions:
    def test_changed_settings_apply_to_the_next_call(self, configure: Configure, settings: Settings) -> None:
        def max_attempts() -> int:
            return state(jobs.noop.enqueue()).max_attempts

        assert max_attempts() == 5
        change(settings, JOB_MAX_ATTEMPTS=4)
        assert max_attempts() == 4
        configure(MAX_ATTEMPTS=3)
        assert max_attempts() == 3

    def test_some_copies_are_kept(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(sys.modules[RedisTask.__module__], "MAX_COPIES", 1)
        own = jobs.noop.using(priority=1)
        kept = own.copied_to("default", "other", 2)
        assert (kept.backend, kept.queue_name, kept.priority, kept.func) == ("default", "other", 2, own.func)
        assert own.copied_to("default", "other", 2) is kept
        first, second = (own.copied_to("default", "other", 3) for _ in range(2))
        assert first == second == own.using(queue_name="other", priority=3)
        assert first is not second

    def test_using_none_restores_the_defaults(self, configure: Configure) -> None:
        configure(TIMEOUT=0.1)
        changed = jobs.async_sleep_with_timeout.using(timeout=None, max_attempts=None, retry_on=None)
        result = changed.enqueue(0.3)
        assert run_to_end(result) == [SUCCESSFUL]
        stored = backend().get_result(result.id).task
        assert (stored.timeout, stored.max_attempts, stored.retry_on) == (None, None, None)
        own = backend().get_result(jobs.async_sleep_with_timeout.enqueue(0).id).task
        assert own == jobs.async_sleep_with_timeout
        assert [backend().timeout(one) for one in (stored, own, jobs.noop)] == [None, 0.2, 0.1]

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("max_attempts", (0, -1, "3", 1.5)),
            ("timeout", (0, -1, float("nan"), timedelta(seconds=1))),
            ("result_ttl", (-1, "1 day", timedelta(days=1))),
            ("retry_on", ([KeyError], KeyError, ("KeyError",))),
        ],
    )
    def test_invalid_options_are_rejected(self, name: str, values: Sequence[Any]) -> None:
        for value in values:
            with pytest.raises(InvalidTask):
                jobs.noop.using(**{name: value})
            with pytest.raises(InvalidTask):
                task(**{name: value})(jobs.noop.func)
        with pytest.raises(TypeError):
            jobs.noop.using(colour="red")
        with pytest.raises(TypeError):
            task(colour="red")(jobs.noop.func)
        with pytest.raises(TypeError, match="run_after"):
            task(run_after=timezone.now())(jobs.noop.func)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"ENQUEUE_ON_COMMIT": True},
            {"RESULT_MAX": 1, "RESULT_TTL": 0},
            {"ENQUEUE_ON_COMMIT": "second", "RESULT_TTL": 60, "TIMEOUT": 5, "MAX_ATTEMPTS": 1, "USING": None},
        ],
    )
    def test_valid_settings_pass_the_checks(self, options: dict[str, Any], configure: Configure) -> None:
        configure(**options)
        assert list(backend().check()) == []

    @pytest.mark.parametrize(
        ("name", "values", "problem"),
        [
            ("ENQUEUE_ON_COMMIT", ("third", None, 5), "messaging.E101"),
            ("RESULT_TTL", (-1, "a day", None), "messaging.E102"),
            ("RESULT_MAX", (0, 1.5), "messaging.E102"),
            ("MAX_ATTEMPTS", (0, "3"), "messaging.E102"),
            ("TIMEOUT", (0, "1 min"), "messaging.E102"),
            ("TASK_MODULES", ("mysite", ["mysite", ""]), "messaging.E102"),
            ("USING", ("nowhere",), "messaging.E102"),
            ("RESULTS_TTL", (5,), "messaging.W101"),
        ],
    )
    def test_invalid_settings_are_reported(
        self, name: str, values: Sequence[Any], problem: str, configure: Configure
    ) -> None:
        for value in values:
            configure(**{name: value})
            [message] = backend().check()
            assert message.id == problem
            assert problem == "messaging.E101" or name in message.msg
            assert problem != "messaging.W101" or "RESULT_TTL" in message.hint

    @pytest.mark.parametrize(("option", "count"), [(True, 1), ("second", 1), ("default", 0), (False, 0)])
    def test_databases_without_autocommit_are_errors(
        self, option: bool | str, count: int, configure: Configure, monkeypatch: MonkeyPatch
    ) -> None:
        monkeypatch.setitem(transaction.get_connection("second").settings_dict, "AUTOCOMMIT", False)
        configure(ENQUEUE_ON_COMMIT=option)
        assert [message.id for message in backend().check()] == ["messaging.E101"] * count


class TestRetries:
    @pytest.mark.parametrize(
        ("called", "args", "attempts"),
        [
            (jobs.fail, ["again"], 1),
            (jobs.fail.using(max_attempts=2), ["again"], 2),
            (jobs.fail.using(max_attempts=3, retry_on=()), ["again"], 1),
            (jobs.retry_lookups, ["KeyError"], 3),
            (jobs.retry_lookups.using(max_attempts=1), ["KeyError"], 1),
            (jobs.retry_lookups.using(retry_on=()), ["KeyError"], 1),
            (jobs.retry_lookups, ["ValueError"], 1),
            (jobs.retry_lookups, ["SystemExit"], 1),
            (jobs.raise_by_name.using(max_attempts=4, retry_on=(LookupError,)), ["KeyError"], 4),
            (jobs.raise_by_name.using(max_attempts=4, retry_on=(LookupError,)), ["ValueError"], 1),
            (jobs.raise_by_name.using(max_attempts=3), ["SystemExit"], 1),
            (jobs.raise_nested_error.using(max_attempts=2, retry_on=(jobs.Order.DoesNotExist,)), [], 2),
        ],
    )
    def test_attempts_until_the_task_fails(self, called: RedisTask, args: list[str], attempts: int) -> None:
        result = called.enqueue(*args)
        assert (run_to_end(result), result.attempts) == ([FAILED], attempts)
        last_lines = {error.traceback.splitlines()[-1] for error in result.errors}
        assert len(result.errors) == attempts
        if args == ["again"]:
            assert last_lines == {"ValueError: again"}
        assert result.task == called

    def test_retries_stop_after_success(self) -> None:
        result = jobs.succeed_on_third_attempt.enqueue()
        assert (run_to_end(result), result.return_value, result.attempts) == ([SUCCESSFUL], 3, 3)
        last_lines = [error.traceback.splitlines()[-1] for error in result.errors]
        assert last_lines == ["ValueError: attempt 1", "ValueError: attempt 2"]
        assert result.started_at < result.last_attempted_at <= result.finished_at

    def test_task_is_ready_between_attempts(self, settings: Settings) -> None:
        change(settings, JOB_BACKOFF=600)
        result = jobs.retry_lookups.enqueue("KeyError")
        with recording_signals() as signals:
            burst()
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)
        assert result.finished_at is None
        assert [each.name for each in signals] == ["started"]
        assert counts() == [0, 1, 0, 0]

    def test_backoff_doubles(self, settings: Settings) -> None:
        change(settings, JOB_BACKOFF=0.06)
        result = jobs.retry_lookups.enqueue("KeyError")
        assert run_to_end(result) == [FAILED]
        assert result.last_attempted_at - result.started_at >= timedelta(seconds=0.03 + 0.06)

    @pytest.mark.parametrize(
        ("stored", "kept"),
        [
            (["builtins.KeyError", "tests.tasks.jobs.Renamed"], (KeyError,)),
            (["tests.gone.Error", "tests.tasks.jobs.make.<locals>.Error", "os.getcwd"], (LookupError,)),
            ([], ()),
        ],
    )
    def test_exceptions_that_the_code_does_not_define_are_ignored(
        self, stored: list[str], kept: tuple[type[Exception]], caplog: LogCaptureFixture
    ) -> None:
        """A deploy may rename exceptions of waiting calls. If none is left, those of the decorator apply."""
        path = jobs.retry_lookups.module_path
        call = [path, "default", None, ["KeyError"], {}, {"max_attempts": 3, "retry_on": stored}]
        engine().push("default", "", [Push("0f", json.dumps(call), 0, 0, 3)])
        result = backend().get_result("0f")
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

    def test_redriven_task_keeps_its_errors_and_starts_attempts_anew(self) -> None:
        result = jobs.succeed_on_third_attempt.using(max_attempts=1).enqueue()
        burst()
        assert engine().redrive("default", None) == 1
        result.refresh()
        assert (result.status, len(result.errors)) == (READY, 1)
        burst()
        result.refresh()
        last_lines = [error.traceback.splitlines()[-1] for error in result.errors]
        assert (result.status, last_lines) == (FAILED, ["ValueError: attempt 1"] * 2)


class TestUnique:
    def test_duplicate_returns_the_first_result(self) -> None:
        first, second, other = (jobs.unique_echo.enqueue(number) for number in (1, 1, 2))
        jobs.echo.using(unique=True).enqueue(1)  # another task has keys of its own
        assert count_waiting() == 3
        assert second.id == first.id != other.id
        run_to_end(first, second, other)
        assert first.return_value == second.return_value == [[1], {}]
        assert (first.attempts, first.worker_ids) == (1, second.worker_ids)

    @pytest.mark.parametrize(
        ("called", "calls", "waiting"),
        [
            # the order of positional arguments matters, that of keywords does not
            (jobs.unique_echo, [((1, 2), {"a": 1, "b": 2}), ((1, 2), {"b": 2, "a": 1}), ((2, 1), {})], 2),
            (
                jobs.unique_report,
                [
                    ((2026, {"where": [{"a": 1, "b": 2}], "limit": 5}), {}),
                    ((2026, {"limit": 5, "where": [{"b": 2, "a": 1}]}), {}),
                    ((2026,), {"options": {"limit": 5, "where": [{"b": 2, "a": 1}]}}),
                    ((), {"options": {"where": [{"a": 1, "b": 2}], "limit": 5}, "year": 2026}),
                ],
                1,
            ),
            (
                jobs.unique_report,
                [
                    ((2026, {"limit": 5, "where": [{"b": 1, "a": 2}]}), {}),
                    ((2026, {"limit": 5, "where": [{"b": 2, "a": 1}]}), {}),
                    ((2026, [5, 6]), {}),
                    ((2026, [6, 5]), {}),
                    ((2026,), {"options": []}),
                ],
                5,
            ),
        ],
    )
    def test_equal_arguments_have_one_key(
        self, called: RedisTask, calls: list[tuple[Any, Any]], waiting: int
    ) -> None:
        for args, kwargs in calls:
            called.enqueue(*args, **kwargs)
        assert count_waiting() == waiting

    def test_key_can_be_a_name_or_a_function(self) -> None:
        by_name = jobs.echo.using(unique="shared")
        by_order = jobs.echo.using(unique=lambda order, **_: f"order {order}")
        results = [by_name.enqueue(number) for number in range(3)]
        results += [by_order.enqueue(order, note=n) for n, order in enumerate([1, 1, 2])]
        run_to_end(*results)
        found = [each.return_value for each in results]
        assert found == [[[0], {}]] * 3 + [[[1], {"note": 0}]] * 2 + [[[2], {"note": 2}]]

    def test_key_can_be_a_template(self) -> None:
        by_value = jobs.multiply.using(unique="product:{number}")
        results = [by_value.enqueue(number, by) for number, by in ((1, 2), (1, 3), (2, 2))]
        assert [one.id == results[0].id for one in results] == [True, True, False]
        with pytest.raises(InvalidTask, match="refers to 'nothing'"):
            jobs.echo.using(unique="{nothing}")

    async def test_all_enqueue_methods_respect_unique_keys(self) -> None:
        first = await jobs.unique_echo.aenqueue("x")
        others = [
            await jobs.unique_echo.aenqueue("x"),
            *await jobs.unique_echo.aenqueue_many([(["x"], {}), (["x"], {})]),
            *await asyncio.to_thread(jobs.unique_echo.enqueue_many, [(["x"], {})] * 300),
        ]
        assert {(await backend().aget_result(each.id)).id for each in others} == {first.id}
        assert counts() == [1, 0, 0, 0]

    @pytest.mark.parametrize("end", ["done", "failed", "cancelled", "lost"])
    def test_key_is_released_when_the_task_ends(self, end: str) -> None:
        called = jobs.fail.using(unique=True) if end == "failed" else jobs.unique_echo.using(max_attempts=1)
        first = called.enqueue()
        if end == "cancelled":
            assert first.cancel()
        elif end == "lost":
            engine().claim(["default"], 1, 1)
            until(lambda: engine().sweep(["default"]) is None)
        run_to_end(first)
        second = called.enqueue()
        assert backend().get_result(second.id).id == second.id != first.id
        assert backend().get_result(second.id).status == READY
        assert backend().get_result(first.id).id == first.id

    def test_key_stays_reserved_during_retries(self, settings: Settings) -> None:
        change(settings, JOB_BACKOFF=600)
        unique = jobs.fail.using(unique=True, max_attempts=2)
        first = unique.enqueue()
        burst()
        assert backend().get_result(unique.enqueue().id).id == first.id

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

    def test_duplicate_in_another_queue_cancels_and_reschedules_the_original(self) -> None:
        first = jobs.unique_echo.enqueue()
        second = jobs.unique_echo.using(queue_name="other").enqueue()
        assert second.id == first.id
        assert second.reschedule(later())
        assert counts() == [0, 1, 0, 0]
        assert second.cancel()
        assert counts() == counts("other") == [0, 0, 0, 0]
        assert backend().get_result(first.id).status == backend().get_result(second.id).status == FAILED

    def test_duplicate_after_a_commit_leads_to_the_original(self) -> None:
        first = jobs.unique_echo.enqueue()
        payload = records.payload(records.payload_frame(jobs.unique_echo), [], {})
        job = Push("0late", payload, 0, 0, 3, jobs.unique_echo.unique_key([], {}))
        engine().push("other", "", [job], max_aliases=1)
        assert jobs.unique_echo.using(queue_name="other").cancel("0late")
        first.refresh()
        assert first.status == FAILED


class TestMany:
    async def test_results_are_in_call_order(self, call: Call) -> None:
        calls = [([number], {"n": number}) for number in range(450)]
        with recording_signals() as signals:
            results = await call(jobs.aecho, "enqueue_many", iter(calls))
        assert [(each.args, each.kwargs) for each in results] == calls
        assert [each.id for each in signals] == [each.id for each in results]
        assert all(each.enqueued_at is not None for each in results)
        assert count_waiting() == 450
        with recording_signals() as signals:
            await asyncio.to_thread(burst, max_tasks=5)
        assert [each.id for each in signals if each.name == "started"] == [each.id for each in results[:5]]
        assert (await backend().aget_result(results[4].id)).return_value == [[4], {"n": 4}]
        assert await call(jobs.echo, "enqueue_many", []) == []

    async def test_pages_are_limited_by_bytes(self, monkeypatch: MonkeyPatch, settings: Settings) -> None:
        change(settings, JOB_MAX_BYTES=2**21)
        sizes: list[int] = []
        push = Engine.push

        def push_page(self: Engine, queue: str, request_id: str, page: Sequence[Push], **more: Any) -> Any:
            sizes.append(sum(len(one.payload.encode()) for one in page))
            return push(self, queue, request_id, page, **more)

        monkeypatch.setattr(Engine, "push", push_page)
        texts = ["x" * 2**18] * 6 + ["ä" * 2**17, "small", "x" * (2**19 - 1000), "small"]
        results = await jobs.echo.aenqueue_many([([text], {}) for text in texts])
        results += await asyncio.to_thread(jobs.echo.enqueue_many, [([text], {}) for text in texts])
        assert len(sizes) == 6 and max(sizes) <= 2**20
        assert [backend().get_result(each.id).args for each in results] == [[text] for text in texts] * 2
        await jobs.echo.aenqueue_many([(["x" * 2**20], {}), ([1], {})])  # a page has at least one call
        assert len(sizes) == 8

    def test_one_invalid_call_rejects_all(self) -> None:
        with recording_signals() as signals, pytest.raises(TypeError):
            jobs.echo.enqueue_many([([1], {}), ([object()], {})])
        assert (signals, stored_keys()) == ([], set())


class TestResults:
    def test_ids_begin_with_the_shard_and_are_unique(self) -> None:
        ids = {each.id for each in (jobs.noop.enqueue(), *jobs.noop.enqueue_many([([], {})] * 19))}
        assert len(ids) == 20
        assert all(re.fullmatch("0[0-9a-f]{31}", one) for one in ids)

    def test_backends_are_separate(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "more": {**settings.TASKS["default"], "QUEUES": ["default"]}}
        result = jobs.noop.using(backend="more").enqueue()
        burst()
        assert result.backend == "more"
        result.refresh()
        assert result.status == READY
        with pytest.raises(TaskResultDoesNotExist):
            backend().get_result(result.id)

    def test_result_is_kept_for_its_time_after_completion(self) -> None:
        """For a day, unless its task says how long."""
        longer = jobs.noop.using(result_ttl=3 * 86_400)
        default, three_days = jobs.noop.enqueue(), longer.using(run_after=later(0.05)).enqueue()
        dead, cancelled = jobs.fail.using(result_ttl=0).enqueue(), longer.using(queue_name="other").enqueue()
        assert cancelled.cancel()
        assert run_to_end(default, three_days, dead) == [SUCCESSFUL, SUCCESSFUL, FAILED]
        assert three_days.task.result_ttl == 3 * 86_400
        for result, days in ((default, 1), (three_days, 3), (cancelled, 3)):
            result.refresh()
            expires = server().zscore(keys().finished, result.id)
            assert abs(expires - days * DAY - result.finished_at.timestamp() * 1000) < 2  # from its end
            with server_clock(f"NOW + {days * DAY - 60_000}"):
                result.refresh()
            with server_clock(f"NOW + {days * DAY}"):
                assert engine().get(result.id) is None
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

    def test_zero_result_ttl_stores_no_result(self, configure: Configure) -> None:
        of_task, cancelled = (jobs.noop.using(result_ttl=0).enqueue() for _ in range(2))
        assert cancelled.cancel()
        burst()
        configure(RESULT_TTL=0)
        result = jobs.noop.enqueue()
        jobs.unique_echo.enqueue_many([([1], {}), ([1], {}), ([2], {})])
        burst()
        for each in (of_task, cancelled, result):
            with pytest.raises(TaskResultDoesNotExist):
                each.refresh()
        assert stored_keys() == set()


class TestCancelAndReschedule:
    async def test_waiting_tasks_can_be_cancelled(self, call: Call) -> None:
        kept, *cancelled = [
            await jobs.noop.using(**options).aenqueue()
            for options in ({}, {}, {"run_after": later()}, {"queue_name": "other"})
        ]
        for result in cancelled[:2]:
            assert await call(jobs.noop, "cancel", result.id)
        assert await call(cancelled[2], "cancel")
        with recording_signals() as signals:
            await asyncio.to_thread(burst)
        assert {each.id for each in signals} == {kept.id}
        for result in cancelled:
            await call(result, "refresh")
            assert (result.status, result.attempts) == (FAILED, 0)
            assert result.finished_at is not None and result.started_at is None
            assert [error.exception_class for error in result.errors] == [TaskCancelled]
            assert not await call(jobs.noop, "cancel", result.id)
            assert not await call(jobs.noop, "reschedule", result.id, later())
        assert counts() == counts("other") == [0, 0, 0, 0]

    async def test_running_and_unknown_tasks_cannot_be_rescheduled(self, call: Call) -> None:
        """A running one can be cancelled: its worker does that, or it ends when its worker is lost."""
        result = await jobs.noop.aenqueue()
        [leased] = engine().claim(["default"], 1, 60_000).jobs
        for job_id in (result.id, "0" * 32):
            assert not await call(jobs.noop, "reschedule", job_id, timezone.now())
            assert await call(jobs.noop, "cancel", job_id) == (job_id == result.id)
        assert engine().settle(leased.lease.settlement(Outcome.RELEASE))
        await call(result, "refresh")
        assert (result.status, [error.exception_class.__name__ for error in result.errors]) == (
            FAILED,
            ["TaskCancelled"],
        )

    async def test_waiting_tasks_can_be_rescheduled(self, call: Call) -> None:
        """The rescheduling result is updated immediately, others by a refresh, including after the task has
        ended. The id leads to the queue in which the task waits."""
        moments = [later(seconds) for seconds in (3600, 7200, -3600)]
        result = await call(jobs.noop.using(queue_name="other", run_after=moments[0]), "enqueue")
        other = await backend().aget_result(result.id)
        assert await call(result, "reschedule", moments[1])
        assert (result.task.run_after, other.task.run_after) == (moments[1], moments[0])
        await call(other, "refresh")
        assert other.task.run_after == moments[1]
        assert counts("other") == [0, 1, 0, 0]
        assert await call(jobs.noop, "reschedule", other.id, moments[2])
        await asyncio.to_thread(burst)
        for changed in (result, other):
            await call(changed, "refresh")
            assert (changed.status, changed.task.run_after) == (SUCCESSFUL, moments[2])
        assert not await call(result, "reschedule", moments[0])
        assert not await call(result, "cancel")
        assert result.task.run_after == moments[2]

    @pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo", None])
    @pytest.mark.parametrize("extreme", [datetime.max, datetime.min])
    async def test_moments_that_cannot_be_read_back_are_rejected(
        self, extreme: datetime, zone: str | None, settings: Settings
    ) -> None:
        settings.USE_TZ = zone is not None
        moment = extreme if zone is None else extreme.replace(tzinfo=ZoneInfo(zone))
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

    @pytest.mark.parametrize(
        ("moment", "error"),
        [
            (datetime(2100, 1, 1), ValueError),
            *((value, TypeError) for value in (5, None, "now")),
        ],
    )
    async def test_moments_must_be_aware_datetimes(self, moment: Any, error: type[Exception]) -> None:
        result = await jobs.noop.aenqueue()
        with pytest.raises(error):
            jobs.noop.reschedule(result.id, moment)
        with pytest.raises(error):
            await jobs.noop.areschedule(result.id, moment)
        if error is TypeError and moment is not None:
            with pytest.raises(InvalidTask, match="run_after must be a datetime or a timedelta, not"):
                jobs.noop.using(run_after=moment)

    def test_cancel_does_not_touch_a_dead_letter(self) -> None:
        result = jobs.fail.using(result_ttl=0).enqueue()
        assert run_to_end(result) == [FAILED]
        assert not result.cancel()
        assert engine().redrive("default", None) == 1


@pytest.mark.usefixtures("any_queue")
class TestAnyQueue:
    """A backend without a list of queues accepts every queue."""

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
        assert counts() == [2, 0, 0, 0]

    def test_rescheduling_registers_the_queue_in_which_the_task_waits(self) -> None:
        """Until the new moment: the poller must not forget the queue before."""
        result = jobs.noop.using(queue_name="other").enqueue()
        moment = timezone.now() + timedelta(days=100)
        assert jobs.noop.reschedule(result.id, moment)
        assert server().zscore(keys().queues, "other") >= moment.timestamp() * 1000


class TestDeadLetters:
    def test_redrive_skips_jobs_with_reserved_keys(self) -> None:
        reserved, queues = [f"k{number}" for number in range(450)], engine()
        for page in batched(enumerate((*reserved, "free", "", "")), 200):
            queues.push("default", "", [Push(f"{n:05}", '["x"]', 0, 0, 1, key) for n, key in page])
        settlements = [
            job.lease.settlement(Outcome.DEAD) for job in queues.claim(["default"], 500, 9999).jobs
        ]
        assert queues.claim(["default"], 0, 1, settlements=settlements).applied == [True] * 453
        queues.push("default", "", [Push(f"other {key}", '["x"]', 0, 0, 1, key) for key in reserved])
        assert queues.redrive("default", None) == 3
        assert queues.redrive("default", None) == 0
        assert counts() == [453, 0, 0, 450]

    def test_expired_ones_are_not_redriven_and_their_results_are_kept(self, settings: Settings) -> None:
        result = jobs.fail.enqueue()
        assert run_to_end(result) == [FAILED]
        change(settings, JOB_DEAD_TTL=0.02)
        until(lambda: counts()[3] == 0)
        assert engine().redrive("default", None) == engine().redrive("default", [result.id]) == 0
        engine().sweep(["default"])
        result.refresh()
        assert result.status == FAILED


class TestPayloads:
    def test_round_trip(self) -> None:
        numbers = [2**53 + 1, -(10**30), 0.1, -0.0, 1e308]
        texts = ["", '\0\n\r\x1f"\\', "👩‍👩‍👧‍👦 ÄÖÜ \u2028", "x" * 100_000]
        nested = [[], {}, [[], {}, [[]], {"": []}, {"a": {"b": {}}}], [1, True, False, None, "1"]]
        values: list[Any] = [None, *numbers, *texts, *nested]
        results = [jobs.echo.enqueue(value, name=value) for value in values]
        stored = [backend().get_result(one.id) for one in results]
        burst()
        for value, before, result in zip(values, stored, results, strict=True):
            assert (before.args, before.kwargs) == ([value], {"name": value})
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
        burst()
        assert errors_of(result) == ["LimitExceeded"]

    def test_unserializable_values_are_rejected(self) -> None:
        wrong = {TypeError: [object(), {1: "one"}, {"a", "b"}]}
        for error, values in {**wrong, ValueError: [float("nan"), float("inf"), "\ud800", b"\xff"]}.items():
            for value in values:
                with pytest.raises(error):
                    jobs.echo.enqueue(value)
                with pytest.raises(error):
                    jobs.echo.enqueue(key=value)
        assert stored_keys() == set()

    def test_full_queue_rejects_tasks(self, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=2)
        jobs.noop.enqueue_many([([], {})] * 2)
        with recording_signals() as signals, pytest.raises(LimitExceeded, match="JOB_MAX_WAITING"):
            jobs.noop.enqueue()
        assert (signals, count_waiting()) == ([], 2)


def test_request_id_is_stored_if_the_result_expires_before_a_repeat(configure: Configure) -> None:
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

        with receiving(task_finished, receive):
            result = jobs.noop.enqueue()
            assert result.enqueued_at >= before
            assert run_to_end(result, jobs.fail.enqueue()) == [SUCCESSFUL, FAILED]
        for each in (*finished, result):
            moments = before, each.enqueued_at, each.started_at, each.last_attempted_at, each.finished_at
            assert list(moments) == sorted(moments)
            assert all(timezone.is_aware(moment) is use_tz for moment in moments)

    def test_stored_and_enqueued_results_are_equal(self, use_tz: bool) -> None:
        moment = timezone.now() + timedelta(hours=1, microseconds=1)
        for result in (jobs.echo.enqueue(1, a=2), jobs.echo.using(run_after=moment).enqueue()):
            assert backend().get_result(result.id) == result
        assert result.reschedule(moment + timedelta(days=200))
        assert backend().get_result(result.id).task == result.task
        assert result.reschedule(timezone.now() - timedelta(seconds=1))
        assert run_to_end(result) == [SUCCESSFUL]
