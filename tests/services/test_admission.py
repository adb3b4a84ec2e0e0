"""The admission of a worker's lanes, without a worker."""

from __future__ import annotations

from django_redis_messaging.services.jobs.admission import Admission


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
        admission.settled()
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
