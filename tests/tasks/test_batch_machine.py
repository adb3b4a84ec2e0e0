"""Batches behave like a simple model, however their calls end, and the state machine that compares them finds
planted bugs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from django_redis_messaging.core.operations import perform
from django_redis_messaging.errors import BatchClosed, BatchNotFound
from django_redis_messaging.services.jobs.engine import LeasedJob, Outcome
from django_redis_messaging.tasks import TaskBatch, batches
from tests.tasks import jobs

from ..support.server import reply_to
from ..support.state_machines import Machine, MachineTests, Plants, one
from ..support.workers import backend, engine
from .test_batches import LONG, called, found, with_callbacks

#: what settles a lease, and how the call ends then; not at all, unless it was to be cancelled
OUTCOMES = {
    Outcome.DONE: "succeeded",
    Outcome.DEAD: "failed",
    Outcome.RETRY: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.RELEASE: "",
}
#: calls of a page
PAGE = 3
times = st.integers(1, 2)
numbers = st.integers(0, 9)


@dataclasses.dataclass
class ModelBatch:
    """A batch of the model: for each of its calls, where it is or how it has ended."""

    batch: TaskBatch
    calls: list[str] = dataclasses.field(default_factory=list)
    #: positions of failed calls that are no longer dead letters
    removed: set[int] = dataclasses.field(default_factory=set)
    #: positions of running calls that are to be cancelled
    to_cancel: set[int] = dataclasses.field(default_factory=set)
    is_open: bool = True
    is_cancelled: bool = False
    fired: set[str] = dataclasses.field(default_factory=set)

    @property
    def counts(self) -> list[int]:
        ends = [self.calls.count(end) for end in ("succeeded", "failed", "cancelled")]
        return [len(self.calls), len(self.calls) - sum(ends), *ends]

    @property
    def is_done(self) -> bool:
        return not self.is_open and self.counts[1] == 0

    def end(self, position: int, how: str) -> None:
        self.calls[position] = how
        self.to_cancel.discard(position)
        self.fire()

    def fire(self) -> None:
        """Enqueue the callbacks that are due."""
        _, _, _, failed, cancelled = self.counts
        if failed:
            self.fired.add("first_failure")
        if self.is_done:
            self.fired |= {"done"} | ({"failed"} if failed else set() if cancelled else {"succeeded"})


class BatchMachine(Machine):
    """Two batches and calls of none."""

    @initialize()
    def begin(self) -> None:
        self.patch(batches, "PAGE", PAGE)
        for queue in ("default", "other"):
            engine().purge(queue)
        self.models = [ModelBatch(TaskBatch(**with_callbacks())) for _ in range(2)]
        self.leased: list[LeasedJob] = []
        #: ids of the callbacks that were enqueued
        self.executed: list[str] = []

    @rule(at=numbers, count=st.integers(0, 7), pages=numbers, times=times)
    def enqueue(self, at: int, count: int, pages: int, times: int) -> None:
        """Enqueue some pages by the creator, or all; some replies are lost."""
        model = one(self.models, at)
        for _ in range(count):
            model.batch.add(jobs.noop.using(max_attempts=1))
        for page in model.batch._pages():
            if model.is_cancelled or model.is_done:
                return self.assert_closed(model, page)
            self.send(model.batch, page, times)
            model.calls += ["waiting"] * len(page)
            model.is_open = model.is_open and not model.batch._is_closed
            model.fire()
            pages -= 1
            if pages < 0:
                return None

    def send(self, batch: TaskBatch, page: Any, times: int) -> None:
        """Send a page, as often as after lost replies."""
        body = batch._add_page(page)
        step = next(body)
        try:
            body.send([reply_to(step) for _ in range(times)][-1])
        except StopIteration:
            return
        raise AssertionError("it takes another step")

    def assert_closed(self, model: ModelBatch, page: Any) -> None:
        try:
            perform(backend().using, model.batch._add_page(page))
        except BatchClosed:
            pass
        else:
            assert not page, "calls were added to a batch that has ended"
        fresh = TaskBatch(batch_id=model.batch.id)  # drop the calls that can't be added
        fresh._enqueued = fresh._first = model.batch._enqueued
        fresh._is_closed, fresh._stored = True, model.batch._stored
        model.batch = fresh

    @rule(at=numbers, count=st.integers(1, 4), times=times)
    def add_from_elsewhere(self, at: int, count: int, times: int) -> None:
        model = one(self.models, at)
        if not model.batch._stored.base:
            return
        other = TaskBatch.get(model.batch.id)
        for _ in range(count):
            other.add(jobs.noop.using(max_attempts=1))
        for page in other._pages():
            if model.is_cancelled or model.is_done:
                return self.assert_refused(other, page)
            self.send(other, page, times)
            model.calls += ["waiting"] * len(page)
        return None

    def assert_refused(self, other: TaskBatch, page: Any) -> None:
        try:
            perform(backend().using, other._add_page(page))
        except BatchClosed:
            return
        raise AssertionError("calls were added to a batch that has ended")

    @rule()
    def enqueue_another(self) -> None:
        jobs.noop.using(max_attempts=1).enqueue()

    @rule(count=st.integers(1, 4))
    def claim(self, count: int) -> None:
        found = engine().claim(["default"], count, LONG).jobs
        self.leased += found
        for leased in found:
            self.each(leased.lease.id, lambda model, position: model.calls.__setitem__(position, "leased"))

    @rule(at=numbers, outcome=st.sampled_from(list(OUTCOMES)), ms=st.sampled_from([0, LONG]), times=times)
    def settle(self, at: int, outcome: Outcome, ms: int, times: int) -> None:
        if not self.leased:
            return
        leased = one(self.leased, at)
        self.leased.remove(leased)
        ms = ms if outcome in (Outcome.DONE, Outcome.CANCELLED) else 0
        line = "R1" if outcome is Outcome.DONE else ""
        for _ in range(times):
            engine().settle(leased.lease.settlement(outcome, ms, line))

        def end(model: ModelBatch, position: int) -> None:
            how = OUTCOMES[outcome]
            if position in model.to_cancel and outcome in (Outcome.RELEASE, Outcome.RETRY):
                how = "cancelled"
            if how:
                model.end(position, how)
            else:
                model.calls[position] = "waiting"

        self.each(leased.lease.id, end)

    @rule(at=numbers, position=numbers)
    def cancel_call(self, at: int, position: int) -> None:
        model = one(self.models, at)
        if model.calls:
            position %= len(model.calls)
            job_id = f"{model.batch._stored.base}{position:06x}"
            assert backend().cancel(jobs.noop, job_id) == (model.calls[position] in ("waiting", "leased"))
            self.cancelled(model, position)

    def cancelled(self, model: ModelBatch, position: int) -> None:
        if model.calls[position] == "waiting":
            model.end(position, "cancelled")
        elif model.calls[position] == "leased":
            model.to_cancel.add(position)

    @rule(at=numbers)
    def cancel(self, at: int) -> None:
        model = one(self.models, at)
        if not model.batch._stored.base:
            return
        before = [position for position, call in enumerate(model.calls) if call in ("waiting", "leased")]
        if not model.is_done:
            model.is_cancelled, model.is_open = True, False
        assert TaskBatch.get(model.batch.id).cancel() == len(before)
        for position in before:
            self.cancelled(model, position)
        model.fire()

    @rule()
    def purge(self) -> None:
        engine().purge("default")
        self.leased.clear()
        for model in self.models:
            for position, call in enumerate(model.calls):
                if call in ("waiting", "leased"):
                    model.end(position, "cancelled")
                elif call == "failed":
                    model.removed.add(position)

    @rule()
    def redrive(self) -> None:
        engine().redrive("default", None)
        for model in self.models:
            for position, call in enumerate(model.calls):
                if call == "failed" and position not in model.removed:
                    model.calls[position] = "waiting"

    def each(self, job_id: str, change: Callable[[ModelBatch, int], object]) -> None:
        """Change the call with this id, if it belongs to a batch."""
        for model in self.models:
            if model.batch._stored.base == job_id[:-6] and job_id[:-6]:
                change(model, int(job_id[-6:], 16))

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        for model in getattr(self, "models", ()):
            if model.batch._stored.base:
                stored = TaskBatch.get(model.batch.id)
                assert found(stored) == model.counts
                assert (stored.is_done, stored.is_cancelled) == (model.is_done, model.is_cancelled)
                assert called(stored) == model.fired

    @invariant()
    def each_callback_is_enqueued_once(self) -> None:
        if not hasattr(self, "models"):
            return
        for leased in engine().claim(["other"], 20, LONG).jobs:
            assert engine().settle(leased.lease.settlement(Outcome.DONE, LONG, "R1"))
            self.executed.append(leased.lease.id)
        expected = [model.batch.callback_id(f"on_{name}") for model in self.models for name in model.fired]
        assert sorted(self.executed) == sorted(expected)


PLANTS: Plants = {
    "jobs/_batches": {
        "successes don't count": (
            "redis.call('HINCRBY', batch, 'pending', '-1')",
            "redis.call('HINCRBY', batch, 'pending', status == 'succeeded' and '0' or '-1')",
        ),
        "cancelled calls count as failed": ("status == 'dead' and 'failed' or 'cancelled'", "'failed'"),
        "an open batch ends": ("  if open then\n    return\n  end\n", ""),
        "callbacks are enqueued again": ("redis.call('HDEL', batch, unpack(fields))", ""),
        "failures are forgotten": ("if failed ~= '0' then", "if false then"),
        "a cancelled batch succeeds": ("elseif cancelled == '0' then", "else"),
        "the first failure is not reported": ("if status == 'dead' then", "if false then"),
        "purged dead letters count again": (" and state.status ~= 'dead'", ""),
        "a redriven call stays failed": ("redis.call('HINCRBY', batch, 'failed', '-1')", ""),
        "a redriven call is not pending": ("redis.call('HINCRBY', batch, 'pending', '1')", ""),
        "a batch stays done after a redrive": ("redis.call('HDEL', batch, 'ended') == 1", "false"),
    },
    "jobs/_results": {
        "ends are not counted": ("  count_end(records, state, status, now)\n", ""),
    },
    "jobs/_leases": {
        "deaths are not counted": ("  count_end(records, state, 'dead', now)\n", ""),
    },
    "jobs/purge": {
        "purged calls are not counted": ("    count_end(records, state, 'cancelled', now)\n", ""),
    },
    "jobs/redrive": {
        "redriven calls are not counted": ("  count_redrive(records, state)\n", ""),
    },
    "tasks/batch_add": {
        "pages are added twice": ("tonumber(added or 0) ~= offset or", ""),
        "calls are added after the end": ("if cancel or ended or", "if cancel or"),
        "calls are added to a cancelled batch": ("if cancel or ended or", "if ended or"),
        "the batch stays open": ("redis.call('HDEL', batch, 'open')", ""),
        "calls are not pending": ("'pending', digits(count - skipped)", "'pending', '0'"),
    },
    "tasks/batch_cancel": {
        "a cancelled batch stays open": ("redis.call('HDEL', batch, 'open') --", "--"),
        "a cancelled batch without calls doesn't end": ("if pending == '0' then", "if false then"),
    },
}


class TestMachine(MachineTests):
    machine = BatchMachine
    plants = PLANTS
    quick = ("ends are not counted", "callbacks are enqueued again")
    errors = (ValueError, LookupError, BatchNotFound)
