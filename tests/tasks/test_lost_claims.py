"""A worker whose claims lose their replies: the jobs that they have leased come back, uncounted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_redis_messaging import conf
from django_redis_messaging.core import commands
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.jobs import worker as lost_claims
from django_redis_messaging.services.jobs.worker import LostClaims
from django_redis_messaging.tasks.compat import TaskResultStatus
from tests.support.proxy import LossyProxy
from tests.support.workers import at_work, backend, burst, ended, engine, state, until, worker
from tests.tasks import jobs

from ..support.faults import GENEROUS, SHARE, Connect

pytestmark = [pytest.mark.one_server, pytest.mark.promise]

#: seconds: longer than any test, so that no lease ends
LONG = 1000.0


@pytest.fixture
def lossy(lasting: EmbeddedServer, connect: Connect) -> Iterator[LossyProxy]:
    """A proxy that loses replies to claims on demand."""
    connect(lasting)
    jobs.noop.enqueue()
    burst()  # the server has the scripts now
    with LossyProxy(lasting.socket, asking=commands.load("jobs/claim").sha.encode()) as proxy:
        connect(proxy, COMMAND_DEADLINE=GENEROUS)
        yield proxy


@pytest.fixture(autouse=True)
def reset_jobs() -> None:
    jobs.notes.clear()


@pytest.mark.parametrize("ends", [True, False])
def test_task_with_a_single_attempt_runs_once(
    ends: bool, lossy: LossyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """It was claimed, but never started: its attempt is not charged."""
    result = jobs.note.using(max_attempts=1).enqueue("once")
    lossy.lose_next()
    if ends:
        burst(lease=LONG)
    else:
        with at_work(lease=LONG):
            ended(result)
    result.refresh()
    assert (lossy.lost, jobs.notes) == (1, ["once"])
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.SUCCESSFUL, 1, [])
    assert "jobs that it had leased were released: 1." in caplog.text


def test_settlement_sent_with_the_claim_is_not_reported_as_refused(
    lossy: LossyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    results = [jobs.note.enqueue(number) for number in range(3)]
    lossy.lose_one_after(1)
    burst(lease=LONG)
    assert lossy.lost == 1
    assert [ended(one).status for one in results] == [TaskResultStatus.SUCCESSFUL] * 3
    assert (sorted(jobs.notes), [one.attempts for one in results]) == ([0, 1, 2], [1, 1, 1])
    assert "refused" not in caplog.text


def test_worker_that_stops_releases_them(lossy: LossyProxy) -> None:
    result = jobs.note.using(max_attempts=1).enqueue("once")
    runner = worker(lease=LONG)

    def stop() -> None:
        runner.stop()
        until(runner._stopping.is_set)

    lossy.lose_next(then=stop)
    runner.run()
    assert (lossy.lost, state(result).status, state(result).attempts) == (1, "w", 0)


def test_claim_that_is_lost_during_a_release_is_released_next(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []
    claims = LostClaims(backend().engine, conf.alias(), ["default"], LONG)

    def lose_another(*_: object) -> int:
        released.append(1)
        claims.add("another")
        return 0

    monkeypatch.setattr(lost_claims, "perform", lose_another)
    claims.add("first")
    claims.release()
    claims.release()
    assert len(released) == 2


def test_claim_that_is_executed_late_is_released(lossy: LossyProxy) -> None:
    """Its request was on its way while the next ones were answered."""
    result = jobs.noop.using(max_attempts=1).enqueue()
    claims = LostClaims(backend().engine, conf.alias(), ["default"], 0.5)
    claims.add("late")
    claims.release()
    engine().claim(["default"], 1, round(LONG * 1000), worker="w", token="late")
    assert state(result).status == "r"

    def is_forgotten() -> bool:
        claims.release()
        return not claims

    until(is_forgotten)
    assert (state(result).status, state(result).attempts) == ("w", 0)


def test_no_attempt_is_charged_when_many_replies_are_lost(lossy: LossyProxy) -> None:
    results = [jobs.note.using(max_attempts=1).enqueue(number) for number in range(60)]
    lossy.lose_some(SHARE)
    with at_work(concurrency=3, lease=LONG):
        for one in results:
            ended(one)
        lossy.lose_next(0)
    assert lossy.lost > 10
    assert {(one.status, one.attempts) for one in results} == {(TaskResultStatus.SUCCESSFUL, 1)}
    assert sorted(jobs.notes) == list(range(60))
