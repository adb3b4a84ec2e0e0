"""The backend beyond Django's contract: retries, unique keys, many at a time, commits, what is kept and for
how long, what is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist
from pytest_django import Settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.core.steps import batched
from django_redis_messaging.errors import LimitExceeded, TaskCancelled, Unavailable
from django_redis_messaging.services.jobs.engine import Push
from django_redis_messaging.services.jobs.leases import Outcome
from django_redis_messaging.tasks import RedisTask, task
from django_redis_messaging.tasks.compat import (
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from tests.services.conftest import messaging_alias

from . import jobs
from .conformance import listening
from .working import burst, ended, engine, keys, ours, server, server_ms, until

__all__ = ["messaging_alias"]
READY, SUCCESSFUL, FAILED = TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
Configure = Callable[..., None]


@pytest.fixture(autouse=True)
def soon(messaging_alias: str, settings: Settings) -> None:
    """Next attempts come soon."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 0.002}


@pytest.fixture
def configure(settings: Settings) -> Configure:
    """Sets OPTIONS of the backend under test."""

    def set_options(**options: Any) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}

    return set_options


def worked_off(*results: TaskResult) -> list[str]:
    """What becomes of them once they have had all their attempts."""

    def over() -> bool:
        burst()
        for result in results:
            result.refresh()
        return all(result.is_finished for result in results)

    until(over)
    return [str(result.status) for result in results]


def waiting() -> int:
    """Jobs in all queues, ready or delayed."""
    return sum(sum(engine().stats(queue)[:2]) for queue in ours().queue_names)


def stored() -> set[str]:
    """Which keys of the backend are there; that it was asked leaves no trace that counts."""
    found = {key.decode().removeprefix(keys().tag) for key in server().scan_iter(match=f"{keys().tag}*")}
    return {key for key in found if not key.startswith((":requests", ":workers")) and key != ":bell"}


class TestRetries:
    def test_none_where_nothing_is_said(self) -> None:
        result = jobs.fail.enqueue()
        assert (worked_off(result), result.attempts, len(result.errors)) == ([FAILED], 1, 1)

    def test_as_many_attempts_as_allowed_and_each_error_is_kept(self) -> None:
        result = jobs.fail_again.enqueue("again")
        assert (worked_off(result), result.attempts) == ([FAILED], 3)
        assert [error.exception_class for error in result.errors] == [ValueError] * 3
        assert all(error.traceback.endswith("ValueError: again\n") for error in result.errors)

    def test_until_it_succeeds(self) -> None:
        result = jobs.third_time.enqueue()
        assert (worked_off(result), result.return_value, result.attempts) == ([SUCCESSFUL], 3, 3)
        assert [error.traceback.splitlines()[-1] for error in result.errors] == [
            "ValueError: attempt 1",
            "ValueError: attempt 2",
        ]
        assert result.started_at < result.last_attempted_at <= result.finished_at

    def test_between_attempts_it_is_ready(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 600}
        result = jobs.fail_again.enqueue()
        with listening() as heard:
            burst()
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)
        assert result.finished_at is None
        assert [each.name for each in heard] == ["started"]
        assert engine().stats("default")[:3] == [0, 1, 0]

    def test_the_pause_doubles(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 0.2}
        result = jobs.fail_again.enqueue()
        assert worked_off(result) == [FAILED]
        assert result.last_attempted_at - result.started_at >= timedelta(seconds=0.1 + 0.2)

    @pytest.mark.parametrize(("name", "attempts"), [("KeyError", 3), ("ValueError", 1), ("SystemExit", 1)])
    def test_only_after_errors_that_were_named(self, name: str, attempts: int) -> None:
        result = jobs.retry_lookups.enqueue(name)
        assert (worked_off(result), result.attempts) == ([FAILED], attempts)

    def test_an_exit_is_not_tried_again_where_no_error_is_named(self) -> None:
        result = jobs.raise_by_name.using(max_attempts=3).enqueue("SystemExit")
        assert (worked_off(result), result.attempts) == ([FAILED], 1)

    def test_using_counts_as_much_as_the_decorator(self) -> None:
        more = jobs.fail.using(max_attempts=2).enqueue()
        fewer = jobs.fail_again.using(max_attempts=1).enqueue()
        named = jobs.raise_by_name.using(max_attempts=4, retry_on=(LookupError,))
        ours_, other = named.enqueue("KeyError"), named.enqueue("ValueError")
        none = jobs.fail_again.using(retry_on=()).enqueue()
        worked_off(more, fewer, ours_, other, none)
        assert [each.attempts for each in (more, fewer, ours_, other, none)] == [2, 1, 4, 1, 1]

    def test_where_only_errors_are_named_the_backend_says_how_often(self, configure: Configure) -> None:
        configure(MAX_ATTEMPTS=2)
        result = jobs.raise_by_name.using(retry_on=(KeyError,)).enqueue("KeyError")
        assert (worked_off(result), result.attempts) == ([FAILED], 2)

    def test_using_may_take_back_what_the_decorator_said(self, configure: Configure) -> None:
        configure(TIMEOUT=0.1)
        changed = jobs.asleep_briefly.using(timeout=None, max_attempts=None, retry_on=None)
        result = changed.enqueue(0.3)
        assert worked_off(result) == [SUCCESSFUL]
        told = ours().get_result(result.id).task
        assert (told.timeout, told.max_attempts, told.retry_on) == (None, None, None)
        assert ours().get_result(jobs.asleep_briefly.enqueue(0).id).task == jobs.asleep_briefly
        assert ours().timeout(told) is None
        assert ours().timeout(jobs.asleep_briefly) == 0.2
        assert ours().timeout(jobs.noop) == 0.1

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
            {"retry_on": [KeyError]},
            {"retry_on": KeyError},
            {"retry_on": ("KeyError",)},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidTask):
            jobs.noop.using(**fields)
        with pytest.raises(InvalidTask):
            task(**fields)(jobs.noop.func)

    def test_fields_that_nobody_knows_are_refused(self) -> None:
        with pytest.raises(TypeError):
            jobs.noop.using(colour="red")
        with pytest.raises(TypeError):
            task(colour="red")(jobs.noop.func)
        with pytest.raises(TypeError, match="run_after"):
            task(run_after=timezone.now())(jobs.noop.func)


class TestUnique:
    def test_a_second_one_stands_for_the_first(self) -> None:
        first, second, other = jobs.alone.enqueue(1), jobs.alone.enqueue(1), jobs.alone.enqueue(2)
        assert waiting() == 2
        assert len({first.id, second.id, other.id}) == 3
        assert ours().get_result(second.id).id == first.id
        worked_off(first, second, other)
        assert first.return_value == second.return_value == [[1], {}]
        assert (first.attempts, first.worker_ids) == (1, second.worker_ids)

    def test_the_order_of_names_does_not_matter_that_of_positions_does(self) -> None:
        for args, kwargs in [((1, 2), {"a": 1, "b": 2}), ((1, 2), {"b": 2, "a": 1}), ((2, 1), {})]:
            jobs.alone.enqueue(*args, **kwargs)
        assert waiting() == 2

    def test_tasks_are_told_apart(self) -> None:
        jobs.alone.enqueue(1)
        jobs.alone_elsewhere.enqueue(1)
        assert waiting() == 2

    def test_by_a_name_or_by_what_a_function_says(self) -> None:
        numbers = [jobs.one_for_all.enqueue(number) for number in range(3)]
        orders = [jobs.one_an_order.enqueue(order, note=f"{n}") for n, order in enumerate([1, 1, 2])]
        worked_off(*numbers, *orders)
        assert [each.return_value for each in numbers] == [0, 0, 0]
        assert [each.return_value for each in orders] == ["0", "0", "2"]

    async def test_in_every_way_of_enqueueing(self) -> None:
        first = await jobs.alone.aenqueue("x")
        others = [
            await jobs.alone.aenqueue("x"),
            *await jobs.alone.aenqueue_many([(["x"], {}), (["x"], {})]),
            *await asyncio.to_thread(jobs.alone.enqueue_many, [(["x"], {})]),
        ]
        assert {(await ours().aget_result(each.id)).id for each in others} == {first.id}

    def test_in_the_same_push(self) -> None:
        results = jobs.alone.enqueue_many([(["x"], {})] * 300)
        assert waiting() == 1
        assert {ours().get_result(each.id).id for each in results} == {results[0].id}

    def test_in_other_queues_too(self) -> None:
        jobs.alone.enqueue()
        jobs.alone.using(queue_name="other").enqueue()
        assert waiting() == 1

    @pytest.mark.parametrize("made", [jobs.alone, jobs.fail_alone])
    def test_when_it_has_ended_the_next_may_run(self, made: RedisTask) -> None:
        first = made.enqueue()
        worked_off(first)
        second = made.enqueue()
        assert ours().get_result(second.id).id == second.id
        assert worked_off(second) == [first.status]
        assert ours().get_result(first.id).id == first.id

    def test_when_it_was_cancelled_too(self) -> None:
        first = jobs.alone.enqueue()
        assert jobs.alone.cancel(first.id)
        assert ours().get_result(jobs.alone.enqueue().id).status == READY

    def test_and_when_all_its_workers_were_lost(self, configure: Configure) -> None:
        configure(MAX_ATTEMPTS=1)
        first = jobs.alone.enqueue()
        engine().claim(["default"], 1, 1)

        def buried() -> bool:
            engine().claim(["default"], 1, 1)
            first.refresh()
            return first.status == FAILED

        until(buried)
        assert ours().get_result(jobs.alone.enqueue().id).status == READY

    def test_while_it_is_tried_again_others_wait(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 600}
        first = jobs.fail_alone.using(max_attempts=2).enqueue()
        burst()
        assert ours().get_result(jobs.fail_alone.enqueue().id).id == first.id

    def test_a_late_worker_does_not_release_what_another_holds(self) -> None:
        result, store = jobs.alone.enqueue(), engine()
        [late] = store.claim(["default"], 1, 1).jobs
        held: list[Any] = []
        until(lambda: held.extend(store.claim(["default"], 1, 60_000).jobs) or held)
        for outcome in Outcome:
            assert not store.settle(late.lease.settled(outcome, 1000, "R1"))
            assert ours().get_result(jobs.alone.enqueue().id).id == result.id
        assert store.settle(held[0].lease.settled(Outcome.DONE, 1000, "R2"))
        assert ours().get_result(result.id).return_value == 2
        assert ours().get_result(jobs.alone.enqueue().id).id != result.id

    def test_a_loser_may_cancel_and_reschedule_the_winner(self) -> None:
        first, second = jobs.alone.enqueue(), jobs.alone.enqueue()
        assert jobs.alone.reschedule(second.id, timezone.now() + timedelta(hours=1))
        burst()
        assert ours().get_result(first.id).status == READY
        assert jobs.alone.cancel(second.id)
        assert ours().get_result(first.id).status == ours().get_result(second.id).status == FAILED

    def test_nothing_is_left_behind(self, configure: Configure) -> None:
        configure(RESULT_TTL=0)
        jobs.alone.enqueue_many([([1], {}), ([1], {}), ([2], {})])
        burst()
        assert stored() == set()


class TestMany:
    def test_results_are_in_the_order_of_the_calls(self) -> None:
        calls = [([number], {"n": number}) for number in range(450)]
        with listening() as heard:
            results = jobs.echo.enqueue_many(iter(calls))
        assert [(each.args, each.kwargs) for each in results] == calls
        assert [each.id for each in heard] == [each.id for each in results]
        assert all(each.enqueued_at is not None for each in results)
        assert waiting() == 450
        with listening() as heard:
            burst(max_tasks=5)
        assert [each.id for each in heard if each.name == "started"] == [each.id for each in results[:5]]

    async def test_asynchronously(self) -> None:
        with listening() as heard:
            results = await jobs.aecho.using(queue_name="other").aenqueue_many([([1], {}), ([2], {"x": 3})])
        assert [each.id for each in heard] == [each.id for each in results]
        await asyncio.to_thread(burst)
        for result in results:
            await result.arefresh()
        assert [each.return_value for each in results] == [[[1], {}], [[2], {"x": 3}]]

    async def test_none_at_all(self) -> None:
        assert await jobs.echo.aenqueue_many([]) == []
        assert await asyncio.to_thread(jobs.echo.enqueue_many, []) == []

    def test_one_that_is_bad_keeps_all_from_being_sent(self) -> None:
        with listening() as heard, pytest.raises(TypeError):
            jobs.echo.enqueue_many([([1], {}), ([object()], {})])
        assert (heard, stored()) == ([], set())


@pytest.mark.django_db(transaction=True, databases=["default", "second"])
class TestCommits:
    def test_at_once_where_nothing_else_is_said(self) -> None:
        with transaction.atomic(), transaction.atomic("second"):
            result = jobs.noop.enqueue()
            assert result.enqueued_at is not None
            assert waiting() == 1

    def test_when_the_transaction_is_committed(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with listening() as heard:
            with transaction.atomic():
                result = jobs.noop.enqueue()
                more = jobs.noop.enqueue_many([([], {})] * 2)
                assert (result.status, result.enqueued_at, waiting(), heard) == (READY, None, 0, [])
                with pytest.raises(TaskResultDoesNotExist):
                    result.refresh()
            assert [each.id for each in heard] == [each.id for each in (result, *more)]
        assert result.enqueued_at is not None
        assert worked_off(result, *more) == [SUCCESSFUL] * 3

    def test_at_once_outside_of_transactions(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        assert jobs.noop.enqueue().enqueued_at is not None
        assert waiting() == 1

    def test_never_where_it_is_rolled_back(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with pytest.raises(KeyError), transaction.atomic():
            jobs.noop.enqueue()
            raise KeyError
        with transaction.atomic():
            with pytest.raises(KeyError), transaction.atomic():
                jobs.noop.enqueue_many([([], {})])
                raise KeyError
            kept = jobs.noop.enqueue()
        assert waiting() == 1
        assert worked_off(kept) == [SUCCESSFUL]

    @pytest.mark.parametrize("outer", ["default", "second"])
    def test_true_waits_for_all_that_are_open(self, outer: str, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        inner = {"default": "second", "second": "default"}[outer]
        with transaction.atomic(outer):
            with transaction.atomic(inner):
                jobs.noop.enqueue()
            assert waiting() == 0
        assert waiting() == 1

    @pytest.mark.parametrize("outer", ["default", "second"])
    @pytest.mark.parametrize("which", ["outer", "inner"])
    def test_and_one_that_is_rolled_back_is_enough(
        self, outer: str, which: str, configure: Configure
    ) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        inner = {"default": "second", "second": "default"}[outer]
        with transaction.atomic(outer):
            with transaction.atomic(inner):
                jobs.noop.enqueue()
                transaction.set_rollback(which == "inner", using=inner)
            transaction.set_rollback(which == "outer", using=outer)
        assert waiting() == 0
        with transaction.atomic(outer), transaction.atomic(inner):
            """What comes later has nothing to do with it."""
        assert waiting() == 0

    def test_an_alias_waits_for_that_database_only(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT="second")
        with transaction.atomic():
            jobs.noop.enqueue()
            assert waiting() == 1
            with transaction.atomic("second"):
                jobs.noop.enqueue()
                assert waiting() == 1
            assert waiting() == 2

    def test_a_task_can_say_so_itself(self) -> None:
        with transaction.atomic():
            jobs.noop.enqueue_on_commit().enqueue()
            jobs.noop.enqueue_on_commit(using="second").enqueue()
            assert waiting() == 1
        assert waiting() == 2

    def test_or_that_it_does_not_wait(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with transaction.atomic():
            jobs.noop.using(on_commit=False).enqueue()
            assert waiting() == 1

    @pytest.mark.parametrize("within", ["default", None])
    def test_a_database_that_nobody_has_is_refused(self, within: str | None) -> None:
        with pytest.raises(ConnectionDoesNotExist):
            if within is None:
                jobs.noop.enqueue_on_commit(using="third").enqueue()
            else:
                with transaction.atomic(within):
                    jobs.noop.enqueue_on_commit(using="third").enqueue()
        assert waiting() == 0

    def test_unique_keys_are_reserved_at_the_commit(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with transaction.atomic():
            first, second = jobs.alone.enqueue(), jobs.alone.enqueue()
            assert stored() == set()
            meanwhile = jobs.alone.using(on_commit=False).enqueue()
        assert {ours().get_result(each.id).id for each in (first, second)} == {meanwhile.id}
        assert waiting() == 1

    def test_bad_input_is_told_before_the_commit(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        with transaction.atomic():
            with pytest.raises(TypeError):
                jobs.echo.enqueue(object())
            with pytest.raises(LimitExceeded):
                jobs.echo.enqueue("x" * 2**20)

    async def test_coroutines_enqueue_at_once_outside_of_transactions(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)
        assert (await jobs.noop.aenqueue()).enqueued_at is not None
        assert all(each.enqueued_at for each in await jobs.noop.aenqueue_many([([], {})]))
        assert waiting() == 2


@pytest.mark.timing
class TestKept:
    def test_results_are_kept_from_completion_on(self, configure: Configure) -> None:
        configure(RESULT_TTL=0.8)
        result = jobs.noop.using(run_after=timezone.now() + timedelta(seconds=1.2)).enqueue()
        begun = time.monotonic()
        until(lambda: burst().done)
        assert time.monotonic() - begun > 0.8, "it waited longer than results are kept"
        result.refresh()
        assert result.status == SUCCESSFUL
        until(lambda: engine().get(result.id) is None)
        assert timezone.now() - result.finished_at >= timedelta(seconds=0.8)
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    def test_what_is_over_goes_with_the_next_results(self, configure: Configure) -> None:
        configure(RESULT_TTL=0.01)
        results = jobs.noop.enqueue_many([([], {})] * 5)
        burst()
        until(lambda: not any(engine().get(each.id) for each in results))
        jobs.noop.enqueue_many([([], {})] * 5)
        burst()
        assert server().hlen(keys().states) <= 5

    def test_a_day_where_nothing_is_said(self) -> None:
        result = jobs.noop.enqueue()
        burst()
        left = server().zscore(keys().finished, result.id) / 1000 - time.time()
        assert 86_390 < left <= 86_400

    def test_without_a_time_no_result_is_kept(self, configure: Configure) -> None:
        configure(RESULT_TTL=0)
        result = jobs.noop.enqueue()
        burst()
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
        assert stored() == set()


class TestSecondThoughts:
    async def test_what_has_not_begun_can_be_cancelled(self) -> None:
        one, two, later = [
            await jobs.noop.using(run_after=moment).aenqueue()
            for moment in (None, None, timezone.now() + timedelta(hours=1))
        ]
        assert await asyncio.to_thread(jobs.noop.cancel, one.id)
        assert await jobs.noop.acancel(later.id)
        with listening() as heard:
            await asyncio.to_thread(burst)
        assert {each.id for each in heard} == {two.id}
        for result in (one, later):
            await result.arefresh()
            assert (result.status, result.attempts) == (FAILED, 0)
            assert result.finished_at is not None and result.started_at is None
            assert [error.exception_class for error in result.errors] == [TaskCancelled]
            assert not await jobs.noop.acancel(result.id)
        await two.arefresh()
        assert two.status == SUCCESSFUL

    async def test_what_has_begun_can_not(self) -> None:
        result = await jobs.noop.aenqueue()
        assert engine().claim(["default"], 1, 60_000).jobs
        moment = timezone.now()
        assert not await asyncio.to_thread(jobs.noop.cancel, result.id)
        assert not await jobs.noop.acancel(result.id)
        assert not await asyncio.to_thread(jobs.noop.reschedule, result.id, moment)
        assert not await jobs.noop.areschedule(result.id, moment)
        assert not jobs.noop.cancel("0" * 32) and not jobs.noop.reschedule("0" * 32, moment)

    async def test_it_can_run_at_another_moment(self) -> None:
        soon, later = [
            await jobs.noop.using(run_after=moment).aenqueue()
            for moment in (None, timezone.now() + timedelta(hours=1))
        ]
        assert await jobs.noop.areschedule(soon.id, timezone.now() + timedelta(hours=1))
        assert await asyncio.to_thread(jobs.noop.reschedule, later.id, timezone.now())
        await asyncio.to_thread(burst)
        assert (await ours().aget_result(soon.id)).status == READY
        assert (await ours().aget_result(later.id)).status == SUCCESSFUL

    async def test_its_result_says_which(self) -> None:
        """At once for whoever moved it, after a refresh for others; and still when it has ended."""
        moments = [timezone.now() + timedelta(hours=hours) for hours in (1, 2, -1)]
        result = await jobs.noop.using(run_after=moments[0]).aenqueue()
        other = await ours().aget_result(result.id)
        assert await result.areschedule(moments[1])
        assert (result.task.run_after, other.task.run_after) == (moments[1], moments[0])
        await other.arefresh()
        assert other.task.run_after == moments[1]
        assert await asyncio.to_thread(other.reschedule, moments[2])
        await asyncio.to_thread(burst)
        for told in (result, other):
            await asyncio.to_thread(told.refresh)
            assert (told.status, told.task.run_after) == (SUCCESSFUL, moments[2])
        assert not await result.areschedule(moments[0])
        assert not await asyncio.to_thread(result.cancel)
        assert result.task.run_after == moments[2]

    async def test_also_by_its_result(self) -> None:
        one, two = [await jobs.noop.using(queue_name="other").aenqueue() for _ in range(2)]
        assert await one.acancel() and await asyncio.to_thread(two.cancel)
        assert [(await ours().aget_result(each.id)).status for each in (one, two)] == [FAILED, FAILED]

    @pytest.mark.parametrize(
        ("moment", "error"), [(datetime(2100, 1, 1), ValueError), (5, TypeError), (None, TypeError)]
    )
    async def test_a_moment_is_an_aware_datetime(self, moment: Any, error: type[Exception]) -> None:
        result = await jobs.noop.aenqueue()
        with pytest.raises(error):
            jobs.noop.reschedule(result.id, moment)
        with pytest.raises(error):
            await jobs.noop.areschedule(result.id, moment)

    def test_it_is_cancelled_in_its_queue(self) -> None:
        result = jobs.noop.using(queue_name="other").enqueue()
        assert not jobs.noop.cancel(result.id)
        assert jobs.noop.using(queue_name="other").cancel(result.id)


class TestDead:
    """Jobs that are dead, pushed as the engine takes them."""

    def killed(self, *uniques: str) -> None:
        store = engine()
        for page in batched(enumerate(uniques), 200):
            store.push("default", "", [Push(f"{at:05}", '["x"]', 0, 0, 1, unique) for at, unique in page])
        held = store.claim(["default"], 500, 60_000).jobs
        assert len(held) == len(uniques)
        settlements = [one.lease.settled(Outcome.DEAD) for one in held]
        assert all(store.claim(["default"], 0, 1, settlements=settlements).settled)

    def test_all_are_redriven_but_those_whose_keys_others_have(self) -> None:
        held_back = [f"k{number}" for number in range(450)]
        self.killed(*held_back, "free", "", "")
        engine().push("default", "", [Push(f"other {key}", '["x"]', 0, 0, 1, key) for key in held_back])
        assert engine().redrive("default", None) == 3
        assert engine().redrive("default", None) == 0
        assert engine().stats("default")[:4] == [453, 0, 0, 450]

    def test_those_that_are_over_are_not_known_any_more(self, settings: Settings) -> None:
        result = jobs.fail.enqueue()
        assert worked_off(result) == [FAILED]
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_DEAD_TTL": 0.02}
        until(lambda: engine().stats("default")[3] == 0)
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
        assert engine().redrive("default", None) == engine().redrive("default", [result.id]) == 0


class TestAnyQueue:
    """A backend without a list of queues takes tasks for any."""

    @pytest.fixture(autouse=True)
    def any_queue(self, settings: Settings) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}

    async def test_it_knows_those_that_were_enqueued_to(self) -> None:
        assert ours().serving() == []
        await asyncio.to_thread(jobs.noop.using(queue_name="one").enqueue)
        await jobs.noop.using(queue_name="two").aenqueue()
        await jobs.noop.using(queue_name="three").aenqueue_many([([], {})])
        await asyncio.to_thread(jobs.noop.using(queue_name="four").enqueue_many, [([], {})])
        assert sorted(ours().serving()) == ["four", "one", "three", "two"]

    def test_that_is_noted_once(self) -> None:
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
    def test_come_back_equal(self, value: Any) -> None:
        result = jobs.echo.enqueue(value, name=value)
        known = ours().get_result(result.id)
        assert (known.args, known.kwargs) == ([value], {"name": value})
        burst()
        assert repr(ended(result).return_value) == repr([[value], {"name": value}])

    async def test_too_large_arguments_are_refused(self) -> None:
        for text in ("x" * 2**20, "ä" * 2**18):
            with pytest.raises(LimitExceeded, match="JOB_MAX_BYTES"):
                await jobs.echo.aenqueue(text)
            with pytest.raises(LimitExceeded):
                await asyncio.to_thread(jobs.echo.enqueue, text=text)
            with pytest.raises(LimitExceeded):
                jobs.echo.enqueue_many([([], {}), ([text], {})])
        assert stored() == set()

    def test_too_large_a_return_value_fails_the_task(self) -> None:
        result = jobs.return_large.enqueue(2**20)
        assert worked_off(result) == [FAILED]
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
    def test_what_json_has_no_form_for_is_refused(self, value: Any, error: type[Exception]) -> None:
        with pytest.raises(error):
            jobs.echo.enqueue(value)
        with pytest.raises(error):
            jobs.echo.enqueue(key=value)
        assert stored() == set()

    def test_too_many_waiting_are_refused(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_WAITING": 2}
        jobs.noop.enqueue_many([([], {})] * 2)
        with listening() as heard, pytest.raises(LimitExceeded, match="JOB_MAX_WAITING"):
            jobs.noop.enqueue()
        assert (heard, waiting()) == ([], 2)


def pushed(payload: str) -> str:
    """A job as somebody else may have put it there; its id."""
    job_id = "0" + "f" * 31
    engine().push("default", "", [Push(job_id, payload, 0, 0, 1)])
    return job_id


class TestRepeats:
    """A push whose reply was lost is sent again unchanged, without a request id: the ids are new."""

    KEPT = 3_600_000

    def push(self, *ids: str, unique: str = "") -> tuple[int, list[str]]:
        pushed: tuple[int, list[str]] = engine().push(
            "default", "", [Push(one, '["x"]', 0, 0, 1, unique) for one in ids]
        )
        return pushed

    def settled(self, what: str) -> str:
        [held] = engine().claim(["default"], 1, 60_000).jobs
        assert engine().settle(held.lease.settled(Outcome(what), self.KEPT))
        return str(held.lease.id)

    def test_nothing_is_added_and_the_answer_is_the_first(self) -> None:
        first = self.push("a", "b")
        until(lambda: server_ms() > first[0])
        assert self.push("a", "b") == first
        assert engine().stats("default")[0] == 2

    @pytest.mark.parametrize("what", ["done", "dead"])
    def test_nor_where_it_has_ended(self, what: str) -> None:
        self.push("a")
        assert self.settled(what) == "a"
        self.push("a")
        assert engine().stats("default")[0] == 0

    def test_nor_where_the_queue_is_full_by_now(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_MAX_WAITING": 1}
        assert self.push("a") == self.push("a")

    def test_who_won_a_unique_key_stays_the_winner(self) -> None:
        assert self.push("a", unique="k")[1] == self.push("a", unique="k")[1] == ["a"]
        assert self.push("b", unique="k")[1] == self.push("b", unique="k")[1] == ["a"]
        assert server().hgetall(keys().aliases) == {b"ab": b"a", b"ja": b"b"}

    def test_and_has_its_own_result_though_another_has_the_key_now(self) -> None:
        self.push("a", unique="k")
        self.settled("done")
        self.push("b", unique="k")
        assert self.push("a", unique="k")[1] == ["a"]
        known = engine().get("a")
        assert known is not None and known.state.status == "s"

    def test_what_is_kept_for_less_than_a_repeat_may_take_is_remembered(self, configure: Configure) -> None:
        def requests() -> int:
            return sum(server().hlen(key) for key in keys().requests)

        jobs.noop.enqueue()
        assert requests() == 0
        configure(RESULT_TTL=0)
        jobs.noop.enqueue()
        assert requests() == 1


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
    def test_only_tasks_run_and_by_their_own_names(self, path: str) -> None:
        job_id = pushed(f'["{path}","default",null,[],{{}},{{}}]')
        with listening() as heard:
            burst()
        assert heard == []
        [dead] = engine().dead("default", 10)
        assert dead.id == job_id
        assert b"InvalidTask" in dead.log
        with pytest.raises(InvalidTask):
            ours().get_result(job_id)

    def test_a_module_that_cannot_be_imported_ends_no_worker(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "broken_module_of_tasks.py").write_text("1 / 0\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        pushed('["broken_module_of_tasks.noop","default",null,[],{},{}]')
        result = jobs.noop.enqueue()
        assert worked_off(result) == [SUCCESSFUL]
        assert b"ZeroDivisionError" in engine().dead("default", 1)[0].log

    def test_a_queue_that_is_served_no_more_is_no_place_for_a_task(self) -> None:
        pushed('["tests.tasks.jobs.noop","former",null,[],{},{}]')
        burst()
        assert b"Queue 'former' is not valid" in engine().dead("default", 1)[0].log


another_name = jobs.noop


class TestIds:
    def test_begin_with_the_shard(self) -> None:
        results = [jobs.noop.enqueue(), *jobs.noop.enqueue_many([([], {})] * 3)]
        assert all(re.fullmatch("0[0-9a-f]{31}", each.id) for each in results)

    def test_backends_are_apart(self, settings: Settings) -> None:
        settings.TASKS = {**settings.TASKS, "more": {**settings.TASKS["default"], "QUEUES": ["default"]}}
        result = jobs.noop.using(backend="more").enqueue()
        burst()
        assert result.backend == "more"
        result.refresh()
        assert result.status == READY
        with pytest.raises(TaskResultDoesNotExist):
            ours().get_result(result.id)


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

    async def test_is_told_and_nothing_is_half_written(self, fragile: EmbeddedServer) -> None:
        before = await asyncio.to_thread(jobs.noop.enqueue)
        # what a connection that is open has sent may have arrived: a new one knows better
        clients.close()
        fragile.stop()
        with listening() as heard:
            with pytest.raises(Unavailable):
                await jobs.noop.aenqueue()
            with pytest.raises(Unavailable):
                await jobs.alone.aenqueue_many([([1], {})] * 3)
            with pytest.raises(Unavailable):
                await asyncio.to_thread(jobs.alone.enqueue, 1)
            with pytest.raises(Unavailable):
                await asyncio.to_thread(before.refresh)
        assert heard == []
        fragile.start()
        assert await asyncio.to_thread(waiting) == 1
        assert stored() == {":jobs", ":states", ":queue:default:ready", ":queue:default:bell"}
        await clients.aclose()

    @pytest.mark.django_db(transaction=True)
    def test_at_a_commit_the_task_is_lost_and_the_transaction_is_not(self, fragile: EmbeddedServer) -> None:
        fragile.stop()
        committed: list[str] = []
        with pytest.raises(Unavailable), transaction.atomic():
            transaction.on_commit(lambda: committed.append("yes"))
            result = jobs.noop.enqueue_on_commit().enqueue()
        assert committed == ["yes"]
        assert result.enqueued_at is None
        fragile.start()
        assert waiting() == 0


class TestChecks:
    def found(self) -> list[CheckMessage]:
        return list(ours().check())

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"ENQUEUE_ON_COMMIT": True},
            {"ENQUEUE_ON_COMMIT": "second", "RESULT_TTL": 60, "TIMEOUT": 5, "MAX_ATTEMPTS": 1, "USING": None},
        ],
    )
    def test_nothing_to_say(self, options: dict[str, Any], configure: Configure) -> None:
        configure(**options)
        assert self.found() == []

    def test_unknown_options_are_named(self, configure: Configure) -> None:
        configure(RESULTS_TTL=5)
        [message] = self.found()
        assert message.id == "messaging.W101"
        assert "'RESULTS_TTL'" in message.msg and "RESULT_TTL" in message.hint

    @pytest.mark.parametrize("alias", ["third", None, 5])
    def test_databases_that_nobody_has_are_errors(self, alias: Any, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=alias)
        assert [message.id for message in self.found()] == ["messaging.E101"]

    @pytest.mark.parametrize(
        "options",
        [
            {"RESULT_TTL": -1},
            {"RESULT_TTL": "a day"},
            {"MAX_ATTEMPTS": 0},
            {"MAX_ATTEMPTS": "3"},
            {"TIMEOUT": 0},
            {"TIMEOUT": "1 min"},
            {"USING": "nowhere"},
        ],
    )
    def test_values_that_cannot_be_used_are_errors(
        self, options: dict[str, Any], configure: Configure
    ) -> None:
        configure(**options)
        [message] = self.found()
        assert message.id == "messaging.E102"
        assert next(iter(options)) in message.msg
