"""Tasks with a lock or a limited concurrency: several workers, killed workers, a server without memory."""

from __future__ import annotations

import operator
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from django_redis_messaging import Lock, Semaphore, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.tasks import worker
from django_redis_messaging.tasks.compat import TaskResultStatus
from django_redis_messaging.tasks.worker import ConcurrencyKeys
from tests.support.processes import Start, commands

from ..support.workers import at_work, burst, ended, server, state, until
from . import jobs
from .test_worker import counts, reset_jobs

pytestmark = pytest.mark.one_server

__all__ = ["reset_jobs"]

SUCCESSFUL = TaskResultStatus.SUCCESSFUL


@pytest.fixture
def start(own_prefix: str) -> Iterator[Start]:
    """Start commands as `manage.py` does and kill the processes that the test leaves running."""
    with commands() as start:
        yield start


@pytest.mark.promise
@pytest.mark.versions
def test_lock_and_limit_hold_across_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers, 40 calls, 3 locks, at most 2 calls at a time."""
    monkeypatch.setattr(worker, "GUARD_DELAY", 0.05)
    results = jobs.enter.enqueue_many([([number % 3, number], {}) for number in range(40)])
    with ExitStack() as workers:
        for _ in range(4):
            workers.enter_context(at_work())
        assert {ended(result).status for result in results} == {SUCCESSFUL}
    assert_exclusive()
    assert {result.attempts for result in results} == {1}
    entered = sorted(int(number) for number in server().lrange(f"{conf.prefix()}:entered", 0, -1))
    assert entered == list(range(40))
    assert counts() == [0, 0, 0, 0]
    assert Semaphore("task:orders", 2).info().held == 0


def assert_exclusive() -> None:
    """No lock was ever held twice; at most two calls ran at a time, and two did."""
    largest = dict(sorted(jobs.notes))
    assert largest == {"order 0": 1, "order 1": 1, "order 2": 1, "orders": 2}


@pytest.mark.promise
def test_call_of_a_killed_worker_runs_when_its_leases_have_ended(start: Start, tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    result = jobs.sleep_in_first_attempt.using(concurrency=1).enqueue(str(marker), 60.0)
    process = start("run_worker", "--lease", "1", "--concurrency", "1")
    until(lambda: marker.exists() and marker.read_text())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with at_work(lease=10.0):
        assert ended(result).status == SUCCESSFUL
    assert result.attempts >= 2
    assert not Lock("order:7").locked()
    assert marker.read_text().split() == [str(process.pid), str(os.getpid())]


@pytest.mark.timing
def test_leases_are_renewed_while_the_call_runs() -> None:
    lock, holders = Lock("order:7"), ConcurrencyKeys(conf.prefix(), "task:orders").holders

    def lease_ends() -> tuple[float, float]:
        [(_, permit)] = server().zrange(holders, 0, -1, withscores=True)
        return server().pexpiretime(lock.key), permit

    result = jobs.locked_wait.using(concurrency=1, concurrency_key="orders").enqueue()
    with at_work(lease=1.0):
        until(lambda: jobs.notes)
        lock_end, permit_end = lease_ends()
        until(lambda: all(map(operator.gt, lease_ends(), (lock_end + 1000, permit_end + 1_000_000))))
        jobs.go.set()
        assert ended(result).return_value == "went"


def test_full_memory_defers_locks_but_not_permits(
    own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    result = jobs.locked_note.enqueue(7, "later")
    jobs.limited_note.enqueue("ann")
    with own_server.client() as client:
        client.config_set("maxmemory", 1)
        assert burst().done == 1
        assert "out of memory" in caplog.text
        client.config_set("maxmemory", 0)
    assert (state(result).status, state(result).attempts, counts()) == ("w", 0, [0, 1, 0, 0])
    assert jobs.locked_note.reschedule(result.id, timezone.now() - timedelta(seconds=1))
    burst()
    assert jobs.notes == ["ann", "later"]
