"""Batches of tasks: their counts, their callbacks and the return values, however their calls end."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging.errors import (
    BatchClosed,
    BatchNotFound,
    InvalidArgument,
    LimitExceeded,
)
from django_redis_messaging.services.jobs.engine import LeasedJob, Outcome
from django_redis_messaging.tasks import TaskBatch, batches
from django_redis_messaging.tasks.batches import CALLBACKS, MAX_CALLS
from django_redis_messaging.tasks.compat import InvalidTask, Task, TaskResultDoesNotExist

from ..support.round_trips import round_trips
from ..support.server import change, server, until
from ..support.workers import (
    FAILED,
    READY,
    SUCCESSFUL,
    backend,
    burst,
    counts,
    ended,
    engine,
    errors_of,
    keys,
    later,
    recording_signals,
    stored_keys,
)
from . import jobs
from .conftest import Configure

pytestmark = pytest.mark.usefixtures("short_backoff")

#: ms: longer than any test
LONG = 1_000_000
#: seconds to wait for an end
PATIENCE = 30.0
#: ms: that of the tests' RESULT_TTL, and of JOB_DEAD_TTL
DAY, DEAD_TTL = 86_400_000, 14 * 86_400_000


def made(*tasks: Task, **options: Any) -> TaskBatch:
    """An enqueued batch with a call of each task, which takes no arguments."""
    batch = TaskBatch(**options)
    for task in tasks:
        batch.add(task)
    return batch.enqueue()


def with_callbacks() -> dict[str, Task]:
    """All callbacks, each of which echoes the id in a queue of its own."""
    return dict.fromkeys(CALLBACKS, jobs.echo.using(queue_name="other"))


def found(batch: TaskBatch) -> list[int]:
    """The current counts: total, pending, succeeded, failed, cancelled."""
    batch.refresh()
    return [batch.total, batch.pending, batch.succeeded, batch.failed, batch.cancelled]


def called(batch: TaskBatch) -> set[str]:
    """The callbacks that are enqueued. Each is called with the id, once."""
    enqueued = set()
    for name in CALLBACKS:
        try:
            result = backend().get_result(batch.callback_id(name))
        except TaskResultDoesNotExist:
            continue
        assert result.args == [batch.id]
        enqueued.add(name.removeprefix("on_"))
    return enqueued


def ids(batch: TaskBatch) -> list[str]:
    """The ids of its calls, whose results must be stored."""
    return [result.id for result in batch.results() if result is not None]


def claim() -> LeasedJob:
    """Lease the next job."""
    [leased] = engine().claim(["default"], 1, LONG).jobs
    return leased


def settle(outcome: Outcome, ms: int = 0) -> str:
    """Lease the next job and settle it; its id."""
    leased = claim()
    assert engine().settle(leased.lease.settlement(outcome, ms, "R1" if outcome is Outcome.DONE else ""))
    return leased.lease.id


def expire_lease() -> None:
    """Let the lease of the next job expire, which is its last one."""
    leased = claim()
    server().zadd(keys().queue("default").leased, {leased.lease.id: 1})
    engine().sweep(["default"])


def cancel_running() -> None:
    leased = claim()
    assert backend().cancel(jobs.noop, leased.lease.id)
    assert engine().settle(leased.lease.settlement(Outcome.RELEASE))


def purge_running() -> None:
    claim()
    engine().purge("default")


def cancel_waiting() -> None:
    [job_id] = server().zrange(keys().queue("default").ready, 0, 0)
    assert backend().cancel(jobs.noop, job_id.decode())


#: how a job may end, and where it is counted
ENDS: dict[str, tuple[Callable[[], object], str]] = {
    "done": (partial(settle, Outcome.DONE, LONG), "succeeded"),
    "done without a result": (partial(settle, Outcome.DONE, 0), "succeeded"),
    "dead": (partial(settle, Outcome.DEAD), "failed"),
    "last attempt failed": (partial(settle, Outcome.RETRY), "failed"),
    "lost": (partial(settle, Outcome.LOST), "failed"),
    "lease expired": (expire_lease, "failed"),
    "cancelled": (partial(settle, Outcome.CANCELLED, LONG), "cancelled"),
    "cancelled while it ran": (cancel_running, "cancelled"),
    "cancelled before it started": (cancel_waiting, "cancelled"),
    "purged before it started": (lambda: engine().purge("default"), "cancelled"),
    "purged while it ran": (purge_running, "cancelled"),
}


class TestCounts:
    @pytest.mark.parametrize(("end", "field"), ENDS.values(), ids=ENDS)
    def test_each_end_counts_once(self, end: Callable[[], object], field: str) -> None:
        batch = made(jobs.noop.using(max_attempts=1), **with_callbacks())
        assert (found(batch), batch.is_done, batch.progress) == ([1, 1, 0, 0, 0], False, 0)
        assert called(batch) == set()
        end()
        ends = [int(field == each) for each in ("succeeded", "failed", "cancelled")]
        assert (found(batch), batch.is_done, batch.progress) == ([1, 0, *ends], True, 1)
        expected = {
            "succeeded": {"done", "succeeded"},
            "failed": {"done", "failed", "first_failure"},
            "cancelled": {"done"},
        }
        assert called(batch) == expected[field]
        engine().sweep(["default"])
        engine().purge("default")
        assert found(batch) == [1, 0, *ends]

    def test_what_is_no_end_does_not_count(self) -> None:
        batch = made(jobs.noop.using(max_attempts=3), **with_callbacks())
        for outcome in (Outcome.RELEASE, Outcome.APART, Outcome.RETRY):
            settle(outcome)
        backend().reschedule(jobs.noop, ids(batch)[0], later())
        claimed = engine().claim(["default"], 1, LONG, token="lost")
        engine().return_claims(["default"], ["lost"])
        assert claimed.jobs == []
        assert (found(batch), called(batch)) == ([1, 1, 0, 0, 0], set())

    def test_a_stale_settlement_does_not_count(self) -> None:
        batch = made(jobs.noop, jobs.noop)
        late = claim()
        server().zadd(keys().queue("default").leased, {late.lease.id: 1})
        engine().sweep(["default"])
        assert not engine().settle(late.lease.settlement(Outcome.DONE, LONG, "R1"))
        assert found(batch) == [2, 2, 0, 0, 0]

    def test_tasks_that_run(self) -> None:
        """A retried one counts by its last attempt."""
        calls = [jobs.noop, jobs.fail, jobs.succeed_on_third_attempt, jobs.noop.using(queue_name="other")]
        batch = made(*calls, on_done=jobs.note, on_failed=jobs.echo)

        def is_done() -> bool:
            burst()
            batch.refresh()
            return batch.is_done

        until(is_done)
        assert found(batch) == [4, 0, 3, 1, 0]
        assert jobs.notes == [batch.id]
        assert backend().get_result(batch.callback_id("on_failed")).return_value == [[batch.id], {}]
        assert [result and result.status for result in batch.results()] == [
            SUCCESSFUL, FAILED, SUCCESSFUL, SUCCESSFUL,
        ]  # fmt: skip

    def test_a_batch_without_calls_is_done_at_once(self) -> None:
        batch = made(**with_callbacks())
        assert (batch.is_done, batch.progress, found(batch)) == (True, 1, [0] * 5)
        assert called(batch) == {"done", "succeeded"}
        assert list(batch.results()) == []

    def test_jobs_without_a_batch_store_nothing_more(self) -> None:
        jobs.noop.enqueue()
        burst()
        assert stored_keys() == {":states", ":finished"}

    def test_moments(self) -> None:
        batch = TaskBatch("report")
        assert (batch.created_at, batch.ended_at) == (None, None)
        batch.add(jobs.noop)
        batch.enqueue()
        [result] = batch.results()
        assert result is not None
        assert batch.created_at == result.enqueued_at
        assert batch.ended_at is None
        burst()
        batch.refresh()
        assert batch.ended_at == ended(result).finished_at

    def test_two_batches_are_counted_apart(self) -> None:
        first, second = made(jobs.noop, jobs.fail), made(jobs.noop)
        burst()
        assert (found(first), found(second)) == ([2, 0, 1, 1, 0], [1, 0, 1, 0, 0])


class TestRedrive:
    def test_a_redriven_call_is_pending_again(self) -> None:
        batch = made(jobs.noop, jobs.noop, **with_callbacks())
        settle(Outcome.DONE, LONG)
        settle(Outcome.DEAD)
        assert called(batch) == {"done", "failed", "first_failure"}
        assert engine().redrive("default", None) == 1
        assert (found(batch), batch.is_done) == ([2, 1, 1, 0, 0], False)
        assert server().ttl(keys().batch(batch.id)) == -1
        settle(Outcome.DONE, LONG)
        assert (found(batch), batch.is_done) == ([2, 0, 2, 0, 0], True)
        assert called(batch) == {"done", "failed", "first_failure", "succeeded"}

    def test_callbacks_are_enqueued_once(self) -> None:
        batch = made(jobs.noop, **with_callbacks())
        for _ in range(3):
            settle(Outcome.DEAD)
            assert found(batch) == [1, 0, 0, 1, 0]
            engine().redrive("default", None)
        settle(Outcome.DONE, LONG)
        assert found(batch) == [1, 0, 1, 0, 0]
        assert counts("other") == [4, 0, 0, 0]
        assert called(batch) == {"done", "failed", "first_failure", "succeeded"}

    def test_a_dead_letter_that_is_removed_stays_failed(self, settings: Settings) -> None:
        change(settings, JOB_MAX_DEAD=1)
        batch = made(jobs.noop, jobs.noop)
        settle(Outcome.DEAD)
        settle(Outcome.DEAD)
        assert (counts(), found(batch)) == ([0, 0, 0, 1], [2, 0, 0, 2, 0])
        engine().purge("default")
        assert found(batch) == [2, 0, 0, 2, 0]

    def test_a_wait_goes_on_after_it(self) -> None:
        batch = made(jobs.noop)
        settle(Outcome.DEAD)
        batch.wait_until_done(timeout=PATIENCE)
        engine().redrive("default", None)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            batch.wait_until_done(timeout=0.05)
        assert time.monotonic() - began >= 0.05
        assert server().exists(keys().ended(f"batch:{batch.id}")) == 0


class TestExpiry:
    def test_it_is_kept_as_long_as_its_results(self) -> None:
        batch = made(jobs.noop)
        key = keys().batch(batch.id)
        assert server().pttl(key) == -1
        burst()
        assert DAY - LONG < server().pttl(key) <= DAY

    def test_with_dead_letters_as_long_as_these(self) -> None:
        batch = made(jobs.fail)
        burst()
        assert DEAD_TTL - LONG < server().pttl(keys().batch(batch.id)) <= DEAD_TTL

    def test_results_that_are_not_stored(self, configure: Configure) -> None:
        """Its counts are stored for a while all the same."""
        configure(RESULT_TTL=0)
        batch = made(jobs.noop)
        burst()
        assert found(batch) == [1, 0, 1, 0, 0]
        assert list(batch.results()) == [None]
        with pytest.raises(TaskResultDoesNotExist):
            list(batch.values())

    def test_a_batch_that_its_creator_left_open_expires(self, settings: Settings) -> None:
        batch = partly_enqueued(settings)
        assert 0 < server().pttl(keys().batch(batch.id)) <= 30 * DAY
        batch.enqueue()
        assert server().pttl(keys().batch(batch.id)) == -1

    @pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.DEAD, Outcome.CANCELLED])
    def test_ends_after_it_leave_nothing(self, outcome: Outcome) -> None:
        batch = made(jobs.noop, **with_callbacks())
        server().delete(keys().batch(batch.id))
        settle(outcome, LONG)
        engine().redrive("default", None)
        assert server().exists(keys().batch(batch.id)) == 0
        assert counts("other") == [0] * 4
        with pytest.raises(BatchNotFound):
            batch.refresh()


def partly_enqueued(settings: Settings, **options: Any) -> TaskBatch:
    """A batch of 450 calls, two pages of which are enqueued. The limit that stopped it is lifted."""
    batch = TaskBatch(**options)
    for _ in range(450):
        batch.add(jobs.noop)
    pages = batch._pages()
    for _ in range(2):
        batches.perform(backend().using, batch._add_page(next(pages)))
    jobs.noop.enqueue_many([((), {})] * 5)
    change(settings, JOB_MAX_WAITING=450)
    with pytest.raises(LimitExceeded, match="JOB_MAX_WAITING"):
        batch.enqueue()
    change(settings, JOB_MAX_WAITING=1000)
    return batch


class TestPages:
    def test_results_are_in_the_order_of_the_calls(self) -> None:
        batch = TaskBatch()
        for number in range(450):
            queue = ("default", "other")[number % 3 == 0]
            batch.add(jobs.echo.using(queue_name=queue, priority=number % 5), number)
        batch.enqueue()
        assert (counts()[0], counts("other")[0]) == (300, 150)
        assert [result.args for result in batch.results() if result] == [[one] for one in range(450)]
        assert [result.args for result in batch.results(start=449) if result] == [[449]]
        assert list(batch.results(start=450)) == []
        burst()
        assert list(batch.values()) == [[[number], {}] for number in range(450)]

    def test_signals(self) -> None:
        with recording_signals() as signals:
            batch = made(jobs.noop, jobs.noop)
        assert [(one.name, one.id, one.status) for one in signals] == [
            ("enqueued", one, READY) for one in ids(batch)
        ]

    @pytest.mark.one_server
    def test_large_results_are_read_in_pages(self) -> None:
        batch = TaskBatch()
        for _ in range(7):
            batch.add(jobs.return_large, 400_000)
        batch.enqueue()
        burst()
        values = list(batch.values())
        # now that the script is loaded: the counts, and 3, 3 and 1 results
        assert round_trips(lambda: list(batch.values())) == 4
        assert [len(value) for value in values] == [400_000] * 7

    def test_over_the_limit_nothing_is_enqueued(self, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=449)
        batch = TaskBatch()
        for _ in range(450):
            batch.add(jobs.noop)
        for _ in range(10):
            batch.add(jobs.noop.using(queue_name="other"))
        with pytest.raises(LimitExceeded, match="450 is over the limit of 449"):
            batch.enqueue()
        assert counts() == counts("other") == [0] * 4
        with pytest.raises(BatchNotFound):
            batch.refresh()
        change(settings, JOB_MAX_WAITING=450)
        assert batch.enqueue().total == 460

    def test_a_part_can_be_completed(self, settings: Settings) -> None:
        batch = partly_enqueued(settings, on_done=jobs.note)
        burst()
        assert (found(batch), batch.is_done, jobs.notes) == ([400, 0, 400, 0, 0], False, [])
        batch.enqueue()
        burst()
        assert (found(batch), jobs.notes) == ([450, 0, 450, 0, 0], [batch.id])

    def test_a_part_can_be_completed_by_another_process(self, settings: Settings) -> None:
        partly_enqueued(settings, batch_id="import 7:{x}")
        for _ in range(2):
            batch = TaskBatch(batch_id="import 7:{x}")
            for _ in range(450):
                batch.add(jobs.noop)
            batch.enqueue()
            assert found(batch) == [450, 450, 0, 0, 0]
        burst()
        assert found(batch) == [450, 0, 450, 0, 0]
        batch = TaskBatch(batch_id="import 7:{x}").enqueue()
        assert batch.is_done

    def test_a_part_can_be_cancelled(self, settings: Settings) -> None:
        batch = partly_enqueued(settings, on_done=jobs.note, on_succeeded=jobs.note)
        assert batch.cancel() == 400
        assert (found(batch), batch.is_done, batch.is_cancelled) == ([400, 0, 0, 0, 400], True, True)
        with pytest.raises(BatchClosed, match="was cancelled"):
            batch.enqueue()
        burst()
        assert jobs.notes == [batch.id]

    def test_calls_added_later(self) -> None:
        batch = made(jobs.noop)
        batch.add(jobs.echo, 1)
        batch.enqueue()
        other = TaskBatch.get(batch.id)
        other.add(jobs.echo, 2)
        other.enqueue()
        assert (other.enqueue().total, found(batch)) == (3, [3, 3, 0, 0, 0])
        burst()
        assert list(batch.values()) == [None, [[1], {}], [[2], {}]]
        for late in (batch, other, TaskBatch.get(batch.id)):
            late.add(jobs.noop)
            with pytest.raises(BatchClosed, match="has ended"):
                late.enqueue()

    @pytest.mark.parametrize("kept", [0, 1])
    def test_pages_lost_in_a_failover_are_sent_again(self, kept: int) -> None:
        batch = TaskBatch()
        for number in range(450):
            batch.add(jobs.echo, number)
        snapshots: list[dict[str, bytes]] = []
        for turn, page in enumerate(batch._pages()):
            stored = list(server().scan_iter(f"{keys().tag}*"))
            snapshots.append({key: server().dump(key) for key in stored})
            if turn == 2:
                server().delete(*stored)
                for key, value in snapshots[kept].items():
                    server().restore(key, 0, value)
            batches.perform(backend().using, batch._add_page(page))
        assert found(batch) == [450, 450, 0, 0, 0]
        assert [result.args for result in batch.results() if result] == [[one] for one in range(450)]

    def test_number_of_calls(self, monkeypatch: MonkeyPatch) -> None:
        assert MAX_CALLS == 100_000
        monkeypatch.setattr(batches, "MAX_CALLS", 3)
        batch = made(jobs.noop, jobs.noop, jobs.noop)
        with pytest.raises(LimitExceeded, match="4 is over the limit of 3"):
            batch.add(jobs.noop)
        other = TaskBatch.get(batch.id)
        other.add(jobs.noop)
        with pytest.raises(LimitExceeded, match="4 is over the limit of 3"):
            other.enqueue()
        assert found(batch) == [3, 3, 0, 0, 0]

    def test_a_call_whose_unique_key_is_in_use_counts_as_cancelled(self) -> None:
        before = jobs.unique_echo.enqueue(1)
        batch = TaskBatch(on_done=jobs.note)
        for value in (1, 2, 2):
            batch.add(jobs.unique_echo, value)
        batch.enqueue()
        assert found(batch) == [3, 1, 0, 0, 2]
        burst()
        assert (found(batch), jobs.notes, ended(before).status) == ([3, 0, 1, 0, 2], [batch.id], SUCCESSFUL)
        assert [result and result.args for result in batch.results()] == [None, [2], None]

    def test_delayed_calls(self) -> None:
        batch = TaskBatch()
        batch.add(jobs.echo.using(run_after=later()), 1)
        batch.add(jobs.echo, 2)
        batch.enqueue()
        assert counts() == [1, 1, 0, 0]

    @pytest.mark.usefixtures("any_queue")
    def test_queues_are_registered(self) -> None:
        made(jobs.noop.using(queue_name="a"), on_done=jobs.echo.using(queue_name="b"))
        assert set(backend().serving()) == {"a", "b"}


class TestContextManager:
    def test_nothing_is_enqueued_if_the_block_fails(self) -> None:
        with pytest.raises(LookupError), TaskBatch() as batch:
            batch.add(jobs.noop)
            raise LookupError
        assert counts() == [0] * 4

    async def test_async(self) -> None:
        async with TaskBatch(on_done=jobs.note) as batch:
            batch.add(jobs.aecho, 1)
        assert (batch.total, counts()) == (1, [1, 0, 0, 0])
        with pytest.raises(LookupError):
            async with TaskBatch() as other:
                other.add(jobs.noop)
                raise LookupError
        assert counts() == [1, 0, 0, 0]


class TestCallbacks:
    def test_they_keep_their_options(self) -> None:
        callback = jobs.echo.using(queue_name="other", priority=7, max_attempts=2, run_after=later())
        batch = made(on_done=callback)
        result = backend().get_result(batch.callback_id("on_done"))
        assert result.task == callback
        assert counts("other") == [0, 1, 0, 0]

    def test_the_limit_of_waiting_calls_does_not_apply(self, settings: Settings) -> None:
        change(settings, JOB_MAX_WAITING=1)
        batch = made(jobs.noop, on_done=jobs.echo, on_succeeded=jobs.echo)
        burst(max_tasks=1)
        assert called(batch) == {"done", "succeeded"}

    def test_one_whose_unique_key_is_in_use_is_left_out(self) -> None:
        callback = jobs.echo.using(unique="report")
        callback.enqueue()
        batch = made(on_done=callback, on_succeeded=jobs.note)
        assert called(batch) == {"succeeded"}

    def test_they_have_callbacks_of_their_own(self) -> None:
        made(on_done=jobs.echo.using(then=jobs.note))
        burst()
        assert len(jobs.notes) == 1

    def test_first_failure_is_reported_at_once(self) -> None:
        batch = made(jobs.noop, jobs.noop, jobs.noop, **with_callbacks())
        settle(Outcome.DEAD)
        settle(Outcome.DEAD)
        assert (called(batch), batch.is_done) == ({"first_failure"}, False)

    def test_a_callback_may_cancel_the_rest(self) -> None:
        first = jobs.fail.using(priority=10)
        batch = made(
            first,
            jobs.noop,
            jobs.noop,
            on_first_failure=jobs.cancel_batch.using(priority=9),
            on_done=jobs.note,
        )
        burst()
        assert found(batch) == [3, 0, 0, 1, 2]
        assert (len(jobs.notes), set(jobs.notes)) == (2, {2, batch.id})

    def test_ids_of_callbacks(self) -> None:
        batch = TaskBatch(on_done=jobs.echo)
        with pytest.raises(BatchNotFound, match="not enqueued yet"):
            batch.callback_id("on_done")
        batch.enqueue()
        with pytest.raises(InvalidArgument, match="must be one of on_done"):
            batch.callback_id("done")


class TestValues:
    @pytest.mark.parametrize("callback", [jobs.note_values, jobs.async_note_values])
    def test_the_callback_gets_the_return_values(self, callback: Task) -> None:
        batch = TaskBatch(on_succeeded=callback)
        for number in range(3):
            batch.add(jobs.double.using(then=None), number)
        batch.enqueue()
        burst()
        assert jobs.notes == [(batch.id, [0, 2, 4])]
        # they are not stored with the call
        assert backend().get_result(batch.callback_id("on_succeeded")).kwargs == {}

    def test_none_for_calls_that_did_not_succeed(self) -> None:
        batch = TaskBatch(on_done=jobs.note_values)
        calls: list[tuple[Task, Any]] = [(jobs.echo, 1), (jobs.fail, "no"), (jobs.return_large, 2)]
        for task, value in calls:
            batch.add(task, value)
        batch.enqueue()
        result = list(batch.results())[2]
        assert result is not None
        result.cancel()
        burst()
        assert jobs.notes == [(batch.id, [[[1], {}], None, None])]

    def test_the_callback_fails_if_a_result_is_gone(self) -> None:
        batch = made(jobs.noop, on_done=jobs.note_values)
        burst(max_tasks=1)
        [result] = batch.results()
        assert result is not None
        server().hdel(keys().states, result.id)
        burst()
        assert errors_of(backend().get_result(batch.callback_id("on_done"))) == ["TaskResultDoesNotExist"]

    def test_the_callback_is_retried_if_redis_is_unavailable(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        batch = made(jobs.noop, on_done=jobs.note_values)
        monkeypatch.setattr(TaskBatch, "values", jobs.raise_unavailable)
        burst()
        result = backend().get_result(batch.callback_id("on_done"))
        assert (result.status, result.attempts, result.errors) == (READY, 0, [])
        assert f"Job id={result.id} was not started, retrying" in caplog.text
        monkeypatch.undo()
        result.reschedule(later(-1))
        burst()
        assert jobs.notes == [(batch.id, [None])]

    def test_a_task_without_a_result_is_refused(self) -> None:
        batch = TaskBatch(on_done=jobs.note_values)
        with pytest.raises(InvalidTask, match="has result_ttl=0"):
            batch.add(jobs.echo.using(result_ttl=0), 1)
        with pytest.raises(InvalidTask, match="is unique: a call that is left out has no value"):
            batch.add(jobs.unique_echo, 1)

    def test_a_call_that_replaces_another_one_is_refused(self) -> None:
        with pytest.raises(InvalidTask, match="has on_duplicate='replace'"):
            TaskBatch().add(jobs.unique_echo.using(on_duplicate="replace"), 1)

    def test_a_callback_may_have_names(self) -> None:
        batch = made(jobs.noop, on_done=jobs.note_values.using(lock="batch:{batch_id}", tags=("{values}",)))
        burst()
        assert jobs.notes == [(batch.id, [None])]


class TestNested:
    def test_a_call_adds_to_its_batch(self) -> None:
        """Once, though its first attempt failed after that."""
        batch = TaskBatch(on_done=jobs.note)
        batch.add(jobs.add_to_batch, *range(3))
        batch.add(jobs.noop)
        batch.enqueue()

        def is_done() -> bool:
            burst()
            batch.refresh()
            return batch.is_done

        until(is_done)
        burst()
        assert (jobs.notes, found(batch)) == ([0, 1, 2, batch.id], [5, 0, 5, 0, 0])
        assert [result and result.task for result in batch.results()][2:] == [jobs.note] * 3

    def test_context(self) -> None:
        batch = made(jobs.note_batch, on_done=jobs.note_batch)
        jobs.note_batch.enqueue()
        burst()
        assert jobs.notes == [batch.id, None, None]


class TestCancel:
    def test_waiting_calls_in_any_queue(self) -> None:
        calls = [jobs.noop.using(queue_name=queue, run_after=when)
                 for queue in ("default", "other") for when in (None, later())]  # fmt: skip
        batch = made(*calls, **with_callbacks())
        settle(Outcome.DONE, LONG)
        assert batch.cancel() == 3
        assert [batch.total, batch.pending, batch.succeeded, batch.cancelled] == [4, 0, 1, 3]
        assert called(batch) == {"done"}
        assert batch.cancel() == 0
        assert counts() == [0] * 4

    def test_running_calls(self) -> None:
        batch = made(jobs.wait_forever, jobs.noop, on_done=jobs.echo)
        leased = claim()
        assert batch.cancel() == 2
        assert (batch.is_cancelled, batch.is_done, found(batch)) == (True, False, [2, 1, 0, 0, 1])
        assert engine().settle(leased.lease.settlement(Outcome.RELEASE))
        assert (found(batch), called(batch)) == ([2, 0, 0, 0, 2], {"done"})

    def test_nothing_is_added_any_more(self) -> None:
        batch = made(jobs.noop)
        claim()
        other = TaskBatch.get(batch.id)
        batch.cancel()
        other.add(jobs.noop)
        with pytest.raises(BatchClosed, match="was cancelled"):
            other.enqueue()

    def test_an_unknown_batch(self) -> None:
        for call in (lambda: TaskBatch.get("x"), TaskBatch().cancel, TaskBatch().wait_until_done):
            with pytest.raises(BatchNotFound):
                call()


@pytest.mark.django_db(transaction=True)
class TestOnCommit:
    @pytest.fixture(autouse=True)
    def on_commit(self, configure: Configure) -> None:
        configure(ENQUEUE_ON_COMMIT=True)

    def test_it_waits_for_the_commit(self) -> None:
        with transaction.atomic():
            jobs.echo.enqueue(0)
            batch = made(*[jobs.noop] * 250, on_done=jobs.note)
            made(on_done=jobs.note)
            jobs.echo.enqueue(1)
            assert counts() == [0] * 4
        assert counts() == [253, 0, 0, 0]
        assert found(batch) == [250, 250, 0, 0, 0]

    def test_after_a_rollback_nothing_is_enqueued(self) -> None:
        with pytest.raises(LookupError), transaction.atomic():
            made(jobs.noop, on_done=jobs.note)
            made(on_done=jobs.note)
            raise LookupError
        assert counts() == [0] * 4

    def test_option_of_the_batch(self) -> None:
        with transaction.atomic():
            made(jobs.noop, on_commit=False)
            assert counts() == [1, 0, 0, 0]

    def test_a_failure_is_logged(self, settings: Settings, caplog: LogCaptureFixture) -> None:
        change(settings, JOB_MAX_WAITING=1)
        with transaction.atomic():
            batch = made(jobs.noop, jobs.noop)
        assert counts() == [0] * 4
        assert f"The batch {batch.id} was not enqueued completely after the commit" in caplog.text
        assert "0 of its 2 calls are known to be enqueued" in caplog.text


class TestWait:
    def test_it_ends_with_the_last_call(self) -> None:
        batch = made(jobs.noop, jobs.noop)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(batch.wait_until_done, PATIENCE)
            settle(Outcome.DONE, LONG)
            assert not waiting.done()
            settle(Outcome.DEAD)
            waiting.result(PATIENCE)
        assert (batch.is_done, batch.failed) == (True, 1)
        batch.wait_until_done(timeout=0)

    @pytest.mark.timing
    def test_waiting_clients_are_woken_at_once(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "POLL_INTERVAL", PATIENCE)
        batch = made(jobs.noop)
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(TaskBatch.get(batch.id).wait_until_done, PATIENCE) for _ in range(3)]
            until(lambda: server().info("clients")["blocked_clients"] >= 3)
            began = time.monotonic()
            settle(Outcome.DONE, LONG)
            for one in waiting:
                one.result(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 10

    def test_time_is_up(self) -> None:
        batch = made(jobs.noop)
        with pytest.raises(TimeoutError, match=r"0 of 1 ended, 0 failed> was not done within 0\.01 s"):
            batch.wait_until_done(timeout=timedelta(milliseconds=10))


async def test_async_versions() -> None:
    batch = TaskBatch("numbers", on_done=jobs.note)
    batch.add(jobs.echo, 1)
    batch.add(jobs.echo, 2)
    assert await batch.aenqueue() is batch
    with pytest.raises(TimeoutError):
        await batch.await_until_done(0.01)
    other = await TaskBatch.aget(batch.id)
    assert (other.name, other.pending) == ("numbers", 2)
    for _ in range(2):
        settle(Outcome.DONE, LONG)
    await other.await_until_done(PATIENCE)
    await batch.arefresh()
    assert (batch.succeeded, other.succeeded) == (2, 2)
    assert [value async for value in batch.avalues()] == [1, 1]
    assert [result.args async for result in batch.aresults() if result] == [[1], [2]]
    waiting = TaskBatch()
    waiting.add(jobs.noop)
    await waiting.aenqueue()
    assert await waiting.acancel() == 1
    with pytest.raises(BatchNotFound):
        await TaskBatch.aget("unknown")


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"batch_id": ""}, InvalidArgument, "batch_id is empty"),
            ({"batch_id": 7}, TypeError, "batch_id must be a str"),
            ({"name": "x" * 256}, InvalidArgument, "name has 256 bytes"),
            ({"on_done": jobs.no_task}, TypeError, "on_done must be a task of a RedisBackend, not function"),
            ({"on_failed": jobs.noop}, TypeError, "on_failed must take one argument, the id of the batch"),
            ({"on_done": jobs.note, "backend": "x"}, InvalidTask, "same backend, 'x', not of 'default'"),
        ],
    )
    def test_of_a_batch(self, options: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            TaskBatch(**options)

    def test_of_calls(self) -> None:
        batch = TaskBatch()
        with pytest.raises(TypeError, match="task must be a task of a RedisBackend, not function"):
            batch.add(jobs.no_task)
        with pytest.raises(TypeError):
            batch.add(jobs.echo, object())
        with pytest.raises(LimitExceeded, match="JOB_MAX_BYTES"):
            batch.add(jobs.echo, "x" * 600_000)
        with pytest.raises(InvalidArgument, match="start must be between 0"):
            list(batch.results(start=-1))
        assert batch.enqueue().total == 0

    def test_representation(self) -> None:
        batch = made(jobs.noop, jobs.fail, name="import")
        burst()
        batch.refresh()
        assert repr(batch) == "<TaskBatch import: 2 of 2 ended, 1 failed>"
