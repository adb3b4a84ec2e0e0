"""The admission of a worker's lanes, without a worker."""

from __future__ import annotations

import time

from django_redis_messaging.services.jobs.engine import Engine
from django_redis_messaging.services.jobs.worker import Admission, LoneStarts, _Tries

from ..support.server import until


def may_start_alone(admission: Admission) -> bool:
    """Whether a job may run alone at once, in a lane of its own."""
    assert admission.enter(wait=False)
    with admission.alone(0) as is_alone:
        admission.leave(started=is_alone)
        return is_alone


class TestAlone:
    def test_waits_for_jobs_that_run(self) -> None:
        admission = Admission()
        assert admission.enter(wait=False)
        assert not may_start_alone(admission)
        admission.leave(started=True)
        assert may_start_alone(admission)

    def test_waits_until_jobs_that_have_ended_are_settled(self) -> None:
        """If the job ended this process, their ends would be lost, too."""
        admission = Admission()
        assert admission.enter(wait=False)
        admission.leave(started=True, unsettled=True)
        assert not may_start_alone(admission)
        admission.count_settled()
        assert may_start_alone(admission)


class TestBeside:
    def test_runs_beside_others_but_not_beside_one_of_its_kind(self) -> None:
        admission = Admission()
        assert admission.enter(wait=False)
        with admission.beside() as first, admission.beside() as second:
            assert (first, second) == (True, False)
            assert not may_start_alone(admission)
        admission.leave(started=True)
        with admission.beside() as again:
            assert again
        assert may_start_alone(admission)

    def test_does_not_run_beside_one_that_runs_alone(self) -> None:
        admission = Admission()
        assert admission.enter(wait=False)
        with admission.alone(0) as is_alone:
            assert is_alone
            with admission.beside() as may_start:
                assert not may_start


class TestLoneStarts:
    def test_after_a_wait_no_other_job_waits_for_as_long(self) -> None:
        """Else jobs that take turns to wait would keep all lanes from claiming."""
        admission = Admission()
        starts = LoneStarts(Engine("prefix", "queue", "name"), "default", "worker", admission)
        for _ in range(2):  # one job that runs, and the lane of those that must run alone
            assert admission.enter(wait=False)
        first, second = _Tries(pause=0.2), _Tries(pause=3.0)
        with starts._alone(first) as is_alone:
            assert not is_alone
        over = time.monotonic()
        with starts._alone(second) as is_alone:
            assert not is_alone
        assert (first.pause, second.pause > 1.0) == (0.0, True)
        until(lambda: time.monotonic() > over + 0.3)
        third = _Tries(pause=0.01)
        with starts._alone(third) as is_alone:
            assert not is_alone
        assert third.pause == 0.0
