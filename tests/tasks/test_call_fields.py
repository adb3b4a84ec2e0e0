"""Groups, expiry, tags and priorities of calls."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_redis_messaging.errors import InvalidArgument, TaskCancelled, TaskExpired
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.tasks import TaskBatch, wait_for_result
from django_redis_messaging.tasks.compat import InvalidTask
from tests.conftest import Call

from ..support.server import server, server_ms, until
from ..support.workers import (
    FAILED,
    READY,
    RUNNING,
    SUCCESSFUL,
    at_work,
    backend,
    burst,
    counts,
    engine,
    errors_of,
    keys,
    later,
    run_to_end,
    state,
)
from . import jobs
from .conftest import Configure

pytestmark = pytest.mark.usefixtures("short_backoff")

LEASE = 60_000


def weights(group: str) -> int:
    return 3 if group == "gold" else 1


def claimed() -> str:
    """The id of the next job, which is leased."""
    [one] = engine().claim(["default"], 1, LEASE).jobs
    return str(one.lease.id)


class TestGroups:
    async def test_a_call_waits_for_one_of_a_busy_tenant(self, call: Call) -> None:
        for_tenant = jobs.echo.using(group="{kwargs[tenant]}")
        busy = for_tenant.enqueue_many([([], {"tenant": "busy"})] * 20)
        small = for_tenant.enqueue(tenant="small tenant, 7")
        assert [claimed() for _ in range(2)] == [busy[0].id, small.id]
        stored = await call(backend(), "get_result", small.id)
        assert (small.group, stored.group, jobs.noop.enqueue().group) == (*["small tenant, 7"] * 2, None)
        assert state(small).more == " task=tests.tasks.jobs.echo group=small%20tenant%2C%207"

    @pytest.mark.parametrize("option", [weights, f"{__name__}.weights"])
    def test_weights(self, option: object, configure: Configure) -> None:
        configure(GROUP_WEIGHT=option)
        for group in ("gold", "tin"):
            jobs.noop.using(group=group).enqueue_many([([], {})] * 12)
        taken = Counter(backend().get_result(claimed()).group for _ in range(12))
        assert taken == {"gold": 9, "tin": 3}

    @pytest.mark.parametrize("weight", [0, 101, 1.5, None])
    def test_invalid_weights_are_rejected(self, weight: Any, configure: Configure) -> None:
        configure(GROUP_WEIGHT=lambda group: weight)
        with pytest.raises((TypeError, InvalidArgument), match="GROUP_WEIGHT must be"):
            jobs.noop.using(group="a").enqueue()
        assert not server().exists(keys().states)

    @pytest.mark.parametrize("option", ["nowhere.weights", f"{__name__}.LEASE", 3])
    def test_other_options_are_errors(self, option: object, configure: Configure) -> None:
        configure(GROUP_WEIGHT=option)
        [message] = backend().check()
        assert (message.id, "GROUP_WEIGHT" in message.msg) == ("messaging.E102", True)

    def test_follow_up_with_a_group(self) -> None:
        first = jobs.echo.using(then=jobs.echo.using(group="a", tags=("b",), expires=timedelta(hours=1)))
        result = first.enqueue()
        burst(max_tasks=1)
        result.refresh()
        follow_up = backend().get_result(result.then_id)
        assert (follow_up.group, follow_up.tags) == ("a", ("b",))
        assert follow_up.expires_at == follow_up.enqueued_at + timedelta(hours=1)


class TestExpiry:
    @pytest.mark.parametrize("expires", [0.001, timedelta(milliseconds=1), datetime(2020, 1, 1).astimezone()])
    def test_expired_calls_are_not_started(self, expires: Any) -> None:
        result, other = jobs.echo.using(expires=expires).enqueue(), jobs.noop.enqueue()
        until(lambda: server_ms() > result.expires_at.timestamp() * 1000)
        assert run_to_end(other) == [SUCCESSFUL]
        assert server().hget(keys().states, result.id).startswith(b"expired ")
        assert (errors_of(result), result.status, result.worker_ids) == (["TaskExpired"], FAILED, [])
        assert [error.exception_class for error in result.errors] == [TaskExpired]
        assert result.finished_at == result.expires_at
        assert counts() == [0, 0, 0, 0]

    def test_expired_calls_have_ended_before_a_worker_finds_them(self) -> None:
        expiring = jobs.noop.using(expires=0.001, unique=True)
        result = wait_for_result(expiring.enqueue(), timeout=60)
        assert (result.status, errors_of(result)) == (FAILED, ["TaskExpired"])
        assert server().hget(keys().states, result.id).startswith(b"waiting ")
        assert not result.cancel()
        assert not result.reschedule(later())
        assert not result.set_priority(1)
        assert expiring.using(expires=None).enqueue().id != result.id

    def test_calls_that_have_been_started_do_not_expire(self) -> None:
        result = jobs.noop.using(expires=later(), max_attempts=3).enqueue()
        [one] = engine().claim(["default"], 1, LEASE).jobs
        server().hset(keys().states, result.id, _expired(result))
        engine().settle(one.lease.settlement(Outcome.RETRY))
        assert run_to_end(result) == [SUCCESSFUL]

    def test_a_parked_call_that_has_expired_ends_when_it_is_cancelled(self) -> None:
        backend().pause(task=jobs.noop)
        result = jobs.noop.using(expires=later()).enqueue()
        burst()
        server().hset(keys().states, result.id, _expired(result))
        assert not result.cancel()
        assert server().hget(keys().states, result.id).startswith(b"expired ")
        assert server().zcard(keys().queue("default").parked) == 0

    def test_a_callback_counts_from_the_moment_at_which_it_is_enqueued(self) -> None:
        batch = TaskBatch(on_done=jobs.note.using(expires=60))
        batch.add(jobs.noop.using(expires=later()))
        batch.enqueue()
        [call] = batch.results()
        assert call is not None
        server().hset(keys().states, call.id, _expired(call))
        began = server_ms()
        burst()
        callback = backend().get_result(batch.callback_id("on_done"))
        assert callback.status == SUCCESSFUL
        assert callback.expires_at.timestamp() * 1000 >= began + 60_000

    def test_released_calls_expire(self) -> None:
        result = jobs.noop.using(expires=later()).enqueue()
        [one] = engine().claim(["default"], 1, LEASE).jobs
        server().hset(keys().states, result.id, _expired(result))
        engine().settle(one.lease.settlement(Outcome.RELEASE))
        assert run_to_end(result) == [FAILED]

    def test_redriven_calls_do_not_expire(self) -> None:
        result = jobs.fail.using(expires=later()).enqueue()
        assert run_to_end(result) == [FAILED]
        server().hset(keys().states, result.id, _expired(result))
        assert engine().redrive("default", None) == 1
        assert run_to_end(result) == [FAILED]
        assert errors_of(result) == ["ValueError", "ValueError"]

    def test_a_claim_ends_many(self) -> None:
        expiring = jobs.noop.using(expires=0.001).enqueue_many([([], {})] * 350)
        last = jobs.noop.enqueue()
        until(lambda: server_ms() > expiring[-1].expires_at.timestamp() * 1000)
        first = engine().claim(["default"], 1, LEASE)
        assert (first.jobs, first.due_in, server().zcard(keys().finished)) == ([], 0, 100)
        assert server().exists(keys().queue("default").bell)
        found = [one.lease.id for _ in range(3) for one in engine().claim(["default"], 1, LEASE).jobs]
        assert found == [last.id]
        assert server().zcard(keys().finished) == 350

    @pytest.mark.parametrize("expires", [0, -1, "1", datetime(2030, 1, 1), timedelta(0)])
    def test_invalid_values_are_rejected(self, expires: Any) -> None:
        with pytest.raises(InvalidTask, match="expires must be"):
            jobs.noop.using(expires=expires)

    def test_calls_that_could_never_run_are_rejected(self) -> None:
        with pytest.raises(InvalidTask, match="expires must be later than run_after"):
            jobs.noop.using(run_after=later(60), expires=later(50)).enqueue()
        with pytest.raises(InvalidTask, match="later than the call is due: not 60 s from now"):
            jobs.noop.using(delay=300, expires=60).enqueue()
        with pytest.raises(InvalidTask, match="later than the call is due"):
            jobs.noop.using(run_after=later(300), expires=60).enqueue()

    def test_a_call_is_not_rescheduled_beyond_its_expiry(self) -> None:
        result = jobs.noop.using(expires=later(60)).enqueue()
        with pytest.raises(InvalidArgument, match="expires must be later than run_after"):
            result.reschedule(later(70))
        assert result.reschedule(later(50))
        assert jobs.noop.get_result(result.id).task.run_after == result.task.run_after
        with pytest.raises(InvalidTask, match="in then must be seconds"):
            jobs.echo.using(then=jobs.echo.using(expires=later())).enqueue()

    def test_moments(self) -> None:
        moment = timezone.now().replace(microsecond=0) + timedelta(hours=1)
        result = jobs.noop.using(expires=moment).enqueue()
        assert result.expires_at == backend().get_result(result.id).expires_at == moment
        relative = jobs.noop.using(expires=90).enqueue()
        assert relative.expires_at == backend().get_result(relative.id).expires_at
        assert relative.expires_at == relative.enqueued_at + timedelta(seconds=90)
        assert jobs.noop.enqueue().expires_at is None


def _expired(result: Any) -> bytes:
    """The state of a call, as if its moment had passed."""
    text: bytes = server().hget(keys().states, result.id)
    before, _, after = text.partition(b" expires=")
    return before + b" expires=1" + after.lstrip(b"0123456789")


class TestTags:
    async def test_cancel_all_with_a_tag(self, call: Call, any_queue: None) -> None:
        tagged = jobs.echo.using(tags=("import", "customer:{args[0]}"))
        runs = tagged.enqueue(7)
        assert claimed() == runs.id
        waits = [
            tagged.enqueue(7),
            tagged.using(queue_name="other queue", priority=3).enqueue(7),
            tagged.using(run_after=later()).enqueue(7),
        ]
        others = [tagged.enqueue(77), jobs.noop.using(tags=("customer",)).enqueue(), jobs.noop.enqueue()]
        assert await call(backend(), "cancel_tagged", "customer:7") == 4
        for result in waits:
            await result.arefresh()
            assert [error.exception_class for error in result.errors] == [TaskCancelled]
        for result in (runs, *others):
            await result.arefresh()
        assert [result.status for result in (runs, *others)] == [RUNNING, READY, READY, READY]
        assert state(runs).cancel
        assert await call(backend(), "cancel_tagged", "customer:7") == 0
        assert (runs.tags, others[1].tags, others[2].tags) == (("import", "customer:7"), ("customer",), ())

    def test_many_pages(self) -> None:
        jobs.noop.using(tags=("a",)).enqueue_many([([], {})] * 450)
        jobs.noop.using(tags=("b",)).enqueue()
        assert backend().cancel_tagged("a") == 450
        assert counts() == [1, 0, 0, 0]

    @pytest.mark.parametrize("end", ["success", "death", "cancellation", "expiry", "purge"])
    def test_the_end_of_a_call_removes_its_tags(self, end: str) -> None:
        called = jobs.fail if end == "death" else jobs.noop
        expires = 0.001 if end == "expiry" else None
        result = called.using(tags=("a", "b,c d"), expires=expires).enqueue()
        assert server().zrange(keys().tags, 0, -1) == [
            b"a default " + result.id.encode(), b"b%2Cc%20d default " + result.id.encode(),
        ]  # fmt: skip
        if end == "cancellation":
            assert result.cancel()
        elif end == "purge":
            engine().purge("default")
        elif end == "expiry":
            wait_for_result(result)
            burst()
        else:
            run_to_end(result)
        assert not server().exists(keys().tags)

    def test_expired_calls_are_not_cancelled(self) -> None:
        result = jobs.noop.using(tags=("a",), expires=0.001).enqueue()
        wait_for_result(result)
        assert backend().cancel_tagged("a") == 0
        result.refresh()
        assert errors_of(result) == ["TaskExpired"]

    def test_equal_tags_are_one(self) -> None:
        assert jobs.echo.using(tags=("7", "{args[0]}")).enqueue(7).tags == ("7",)

    def test_redriven_calls_have_their_tags(self) -> None:
        result = jobs.fail.using(tags=("a",)).enqueue()
        assert run_to_end(result) == [FAILED]
        assert engine().redrive("default", None) == 1
        assert backend().cancel_tagged("a") == 1

    def test_invalid_tags_are_rejected(self) -> None:
        for tags in (("a",) * 11, ["a"], "a", ("",), (7,), ("{other}",)):
            with pytest.raises(InvalidTask):
                jobs.noop.using(tags=tags)
        for tag in ("", "x" * 256):
            with pytest.raises(InvalidArgument):
                backend().cancel_tagged(tag)


class TestPriority:
    async def test_change(self, call: Call) -> None:
        first, second, third = (jobs.noop.enqueue() for _ in range(3))
        assert await call(third, "set_priority", 5)
        assert await call(jobs.noop, "set_priority", second.id, 7)
        assert (third.task.priority, backend().get_result(second.id).task.priority) == (5, 7)
        assert [claimed() for _ in range(3)] == [second.id, third.id, first.id]
        assert not await call(first, "set_priority", 1)
        assert first.task.priority == 0

    def test_the_same_priority_changes_nothing(self) -> None:
        results = [jobs.noop.using(priority=2).enqueue() for _ in range(2)]
        assert results[0].set_priority(2)
        assert [claimed() for _ in range(2)] == [result.id for result in results]

    def test_delayed_calls_are_due_as_before(self) -> None:
        result = jobs.noop.using(run_after=later(), queue_name="other").enqueue()
        before = state(result).moment
        assert jobs.noop.set_priority(result.id, -3)
        assert (state(result).moment, state(result).priority, counts("other")) == (before, -3, [0, 1, 0, 0])

    @pytest.mark.parametrize("priority", [101, -101, 1.5, None])
    def test_invalid_priorities_are_rejected(self, priority: Any) -> None:
        with pytest.raises((TypeError, InvalidArgument), match="priority must be"):
            jobs.noop.enqueue().set_priority(priority)


class TestRunning:
    @pytest.mark.timing
    def test_a_worker_serves_tenants_by_turns(self) -> None:
        tenants = jobs.echo.using(group="{args[0]}")
        busy = tenants.enqueue_many([(["busy"], {})] * 50)
        small = tenants.enqueue("small")
        with at_work():
            for one in (small, *busy):
                wait_for_result(one, timeout=60)
        done = [one.group for one in sorted([small, *busy], key=lambda one: one.started_at)]
        assert done.index("small") <= 1
