"""Promises of the lease engine: unique keys of other jobs, the size of a log, limits lowered later, silent
workers, and few commands while a client waits."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_redis_messaging import conf
from django_redis_messaging.services.jobs import DelayQueue
from django_redis_messaging.services.jobs import engine as engine_module
from django_redis_messaging.services.jobs.engine import Engine, LeasedJob, Outcome, Push
from tests.support.engines import Performed

from ..support.server import DEADLINE, change, server, server_ms, until

#: ms: longer than any test
LONG = 1_000_000
#: bytes above which only the newest lines of a log are kept
MAX_LOG_BYTES = 65536


@pytest.fixture
def engine(messaging_alias: str) -> Performed:
    """An engine whose queues share their records."""
    return Performed(Engine(conf.prefix(), "tasks", "promises"), messaging_alias)


def push(engine: Performed, queue: str, job_id: str, unique: str = "") -> str:
    """Push a job; the id of the job in force."""
    _, [in_force] = engine.push(queue, "", [Push(job_id, "null", 0, 0, 3, unique)])
    return str(in_force)


def claim(engine: Performed, queue: str) -> LeasedJob:
    [job] = engine.claim([queue], 1, LONG).jobs
    return job  # type: ignore[no-any-return]


class TestUniqueKeys:
    """A dead job has lost its unique key, and another job has it now."""

    @pytest.fixture(autouse=True)
    def key_with_two_jobs(self, engine: Performed) -> None:
        push(engine, "one", "dead", "key")
        engine.settle(claim(engine, "one").lease.settlement(Outcome.DEAD))
        assert push(engine, "two", "holder", "key") == "holder"

    def test_purge_leaves_the_key_of_another_job(self, engine: Performed) -> None:
        assert engine.purge("one") == 1
        assert push(engine, "one", "third", "key") == "holder"

    def test_redrive_leaves_the_key_of_another_job(self, engine: Performed) -> None:
        assert engine.redrive("one", None) == engine.redrive("one", ["dead"]) == 0
        assert push(engine, "one", "third", "key") == "holder"

    def test_cancel_of_a_dead_job_leaves_the_key_of_another_job(self, engine: Performed) -> None:
        assert engine.cancel("one", "dead", dead=True)
        assert push(engine, "one", "third", "key") == "holder"


def test_long_log_keeps_its_newest_lines(engine: Performed) -> None:
    push(engine, "one", "x")
    written = []
    for size in [10] * 40 + [9990] * 20:
        written.append(f"R{len(written):0{size}}")
        engine.settle(claim(engine, "one").lease.settlement(Outcome.RELEASE, line=written[-1]))
    log = engine.get("x").log.decode()
    kept = log.split("\n")
    assert len(log) <= MAX_LOG_BYTES + len(written[-1]) + 1
    assert len(kept) >= MAX_LOG_BYTES // len(written[-1])
    assert kept == written[-len(kept) :]


def test_dead_jobs_shrink_to_a_limit_that_is_lowered(settings: Settings) -> None:
    queue = DelayQueue("mail", max_attempts=1)

    def fail(number: int) -> None:
        queue.push(number)
        [job] = queue.pop()
        queue.fail(job, "why")
        died = server_ms()
        until(lambda: server_ms() > died)

    for number in range(8):
        fail(number)
    change(settings, JOB_MAX_DEAD=3)
    counts = []
    for number in range(8, 14):
        fail(number)
        counts.append(queue.stats().dead)
    assert counts == [7, 6, 5, 4, 3, 3]  # each burial removes one job more than it adds
    assert [job.data for job in queue.dead()] == [13, 12, 11]


@pytest.mark.timing
def test_waiting_client_sends_no_commands_until_a_job_is_due() -> None:
    queue = DelayQueue("mail")
    queue.push("x", delay=0.8)
    before = scripts_sent()
    [job] = queue.pop(wait=DEADLINE)
    assert job.data == "x"
    assert scripts_sent() - before <= 3  # one that finds nothing, one at the due time, a spare one


def scripts_sent() -> int:
    """Number of scripts that clients have called."""
    found = server().info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@pytest.mark.timing
def test_silent_workers_are_removed_by_the_heartbeats_of_others(
    engine: Performed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beat(worker: str) -> set[bytes]:
        engine.beat(worker, consumed=True, started=0, running=0, done=0)
        return set(server().hkeys(engine.engine.keys.workers))

    monkeypatch.setattr(engine_module, "HEARTBEAT_TIMEOUT", 200)
    began = server_ms()
    beat("silent")
    assert beat("other") == {b"silent", b"other"} or server_ms() > began + 150
    until(lambda: beat("other") == {b"other"})
    assert server_ms() >= began + 200


def test_released_job_has_not_started(engine: Performed) -> None:
    push(engine, "one", "x")
    engine.settle(claim(engine, "one").lease.settlement(Outcome.RELEASE))
    state = engine.get("x").state
    assert (state.status, state.attempts, state.first, state.last) == ("w", 0, 0, 0)
    first = claim(engine, "one")
    engine.settle(first.lease.settlement(Outcome.RETRY))
    engine.settle(claim(engine, "one").lease.settlement(Outcome.RELEASE))
    state = engine.get("x").state
    assert (state.status, state.attempts, state.first) == ("w", 1, first.state.first)


def test_dead_job_with_a_result_cannot_be_cancelled(engine: Performed) -> None:
    push(engine, "one", "x")
    engine.settle(claim(engine, "one").lease.settlement(Outcome.DEAD))
    assert not engine.cancel("one", "x", ttl=LONG, line="C")
    assert engine.get("x").state.status == "d"
