"""Batches whose workers, creators and server are killed, whose replies are lost, and whose server is full:
each call counts once, and each callback is enqueued once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from django_redis_messaging import errors
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import BatchNotFound, Unavailable
from django_redis_messaging.services.jobs.engine import Outcome
from django_redis_messaging.tasks import TaskBatch
from django_redis_messaging.tasks.compat import Task, TaskResult

from ..support.batch_processes import enqueue_batch
from ..support.faults import Connect, kill_process, start_process
from ..support.proxy import LossyProxy
from ..support.pytest_hooks import LONG
from ..support.server import server, until
from ..support.worker_processes import POINTS, worker_pool
from ..support.workers import SUCCESSFUL, backend, burst, count_waiting, counts, engine, keys
from . import jobs
from .conftest import Configure
from .test_batches import called, found, ids, made, settle, with_callbacks

pytestmark = [pytest.mark.one_server, pytest.mark.promise, pytest.mark.usefixtures("short_backoff")]

#: calls of a batch; workers killed by the test, and by calls; creators killed
SIZE, KILLS, CREATORS = (20_000, 60, 100) if LONG else (600, 6, 8)
#: seconds that a test may take; and the shortest lease that the command allows
PATIENCE, LEASE = 600.0 if LONG else 60.0, 1.0
OPTIONS = ["--concurrency", "2", "--lease", f"{LEASE:g}", "--verbosity", "0"]


def results_of(batch: TaskBatch) -> list[TaskResult]:
    """The results of its calls, all of which are stored."""
    results = list(batch.results())
    assert None not in results
    return [result for result in results if result is not None]


def end_of(result: TaskResult) -> str:
    """How a call has ended, according to its result."""
    last = [error.exception_class_path for error in result.errors][-1:]
    return "CANCELLED" if last == [f"{errors.__name__}.TaskCancelled"] else str(result.status)


class TestKilledWorkers:
    def test_counts_are_exact(
        self, fragile: EmbeddedServer, connect: Connect, tmp_path: Path, configure: Configure
    ) -> None:
        """Some calls fail, kill their worker, or add calls; some are cancelled. The server is killed, too."""
        configure(MAX_ATTEMPTS=3 * KILLS)
        stage, chance = connect(fragile), random.Random(1)
        batch = TaskBatch("killed", **with_callbacks())
        for number in range(SIZE):
            task, argument = self.call(number)
            batch.add(task, argument)
        batch.enqueue()
        with worker_pool(stage, tmp_path, 3, *OPTIONS) as workers:

            def have_ended(count: float) -> bool:
                workers.replace()
                batch.refresh()
                return batch.total - batch.pending >= count

            def is_idle() -> bool:
                workers.replace()
                return not sum(counts()[:3]) + sum(counts("other")[:3])

            for turn in range(1, KILLS + 1):
                until(lambda: have_ended(turn * SIZE / (KILLS + 2)), PATIENCE)  # noqa: B023
                workers.kill_one(chance)
                for result in chance.sample(results_of(batch), 3):
                    result.cancel()
                if turn == KILLS // 2:
                    fragile.kill()
                    fragile.start()
            until(is_idle, PATIENCE)
        assert workers.killed >= KILLS // 2
        self.assert_is_exact(batch)

    @staticmethod
    def call(number: int) -> tuple[Task, Any]:
        if number % 20 == 3:
            return jobs.fail, str(number)
        if number % 30 == 7:
            return jobs.add_to_batch, number
        if number % (SIZE // 3) == 11:
            return jobs.crash, POINTS[number * 3 // SIZE]
        return (jobs.aecho if number % 2 else jobs.echo), number

    @staticmethod
    def assert_is_exact(batch: TaskBatch) -> None:
        results = results_of(batch)
        statuses = Counter(map(end_of, results))
        assert found(batch) == [
            len(results), 0, statuses["SUCCESSFUL"], statuses["FAILED"], statuses["CANCELLED"],
        ]  # fmt: skip
        assert batch.is_done
        assert called(batch) == {"done", "failed", "first_failure"}
        for name in ("on_done", "on_failed", "on_first_failure"):
            assert backend().get_result(batch.callback_id(name)).status == SUCCESSFUL
        # each call that added one has added it once
        adding = {one.args[0] for one in results if one.task == jobs.add_to_batch}
        ended_well = {
            one.args[0] for one in results if one.task == jobs.add_to_batch and one.status == SUCCESSFUL
        }
        added = Counter(one.args[0] for one in results if one.task == jobs.note)
        assert ended_well <= added.keys() <= adding
        assert set(added.values()) == {1}
        # and nothing else is stored
        assert server().zcard(keys().finished) + counts()[3] == len(results) + 3


class TestKilledCreators:
    def test_each_call_is_enqueued_once(
        self, lasting: EmbeddedServer, connect: Connect, tmp_path: Path
    ) -> None:
        """A process that is killed is replaced by one that begins anew, with the same id."""
        stage, chance = connect(lasting), random.Random(1)
        arguments = (stage, django_settings.TASKS, str(tmp_path / "log"), "import", SIZE)

        def stored() -> int:
            return int(server().hget(keys().batch("import"), "total") or 0)

        killed_midway = 0
        for _ in range(CREATORS):
            process, before = start_process(enqueue_batch, *arguments), stored()
            wanted = before + chance.randrange(SIZE // CREATORS)
            until(lambda: stored() >= wanted or not process.is_alive(), PATIENCE)  # noqa: B023
            kill_process(process)
            killed_midway += 0 < stored() < SIZE
        last = start_process(enqueue_batch, *arguments)
        last.join(PATIENCE)
        assert last.exitcode == 0
        assert killed_midway
        batch = TaskBatch.get("import")
        assert found(batch) == [SIZE, SIZE, 0, 0, 0]
        burst(concurrency=4)
        assert list(batch.values()) == [[[number], {}] for number in range(SIZE)]
        assert called(batch) == {"done", "succeeded"}
        assert server().zcard(keys().finished) == SIZE + 2


class TestLostReplies:
    def test_nothing_is_enqueued_or_counted_twice(self, lossy: LossyProxy) -> None:
        batch = TaskBatch(**with_callbacks())
        for number in range(1000):
            batch.add(jobs.echo, number)
        batch.enqueue()
        assert found(batch) == [1000, 1000, 0, 0, 0]
        assert [result.args for result in results_of(batch)] == [[one] for one in range(1000)]
        other = TaskBatch.get(batch.id)
        for _ in range(1000):
            other.add(jobs.noop)
        other.enqueue()
        assert found(batch) == [2000, 2000, 0, 0, 0]
        settle(Outcome.DONE, 1000)
        batch.cancel()
        assert found(batch) == [2000, 0, 1, 0, 1999]
        assert called(batch) == {"done"}
        assert lossy.lost > 5


class TestFullServer:
    @pytest.fixture(autouse=True)
    def on_a_server_of_its_own(self, fill: Callable[[], None]) -> None:
        """Before anything is stored."""

    def test_nothing_is_enqueued(self, fill: Callable[[], None], raw: redis.Redis) -> None:
        batch = TaskBatch(**with_callbacks())
        for _ in range(10):
            batch.add(jobs.noop)
        fill()
        with pytest.raises(Unavailable, match="out of memory"):
            batch.enqueue()
        with pytest.raises(BatchNotFound):
            batch.refresh()
        assert count_waiting() == 0
        raw.config_set("maxmemory", 0)
        assert batch.enqueue().total == 10

    @pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.DEAD, Outcome.CANCELLED])
    def test_ends_count_and_callbacks_are_enqueued(self, outcome: Outcome, fill: Callable[[], None]) -> None:
        batch = made(jobs.noop, jobs.noop, **with_callbacks())
        fill()
        for _ in range(2):
            settle(outcome, 1_000_000)
        assert found(batch)[:2] == [2, 0]
        assert "done" in called(batch)

    def test_cancelling_works(self, fill: Callable[[], None]) -> None:
        batch = made(jobs.noop, jobs.noop, **with_callbacks())
        fill()
        assert batch.cancel() == 2
        assert (found(batch), called(batch)) == ([2, 0, 0, 0, 2], {"done"})

    def test_a_redrive_that_is_refused_does_not_count(self, fill: Callable[[], None]) -> None:
        batch = made(jobs.noop)
        settle(Outcome.DEAD)
        [job_id] = ids(batch)
        fill()
        with pytest.raises(Unavailable, match="out of memory"):
            engine().redrive("default", [job_id])
        assert found(batch) == [1, 0, 0, 1, 0]
