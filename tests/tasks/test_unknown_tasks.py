"""Jobs that name what a worker doesn't know: code of a later or an earlier deploy, or what another client has
pushed."""

from __future__ import annotations

import json
import re
import sys

import pytest
from pytest import LogCaptureFixture, MonkeyPatch

from django_redis_messaging.services.jobs.engine import Engine, Outcome, Push, Settlement
from django_redis_messaging.tasks import records, worker
from django_redis_messaging.tasks.compat import InvalidTask

from ..support.server import server, server_ms, until
from ..support.workers import (
    SUCCESSFUL,
    backend,
    burst,
    counts,
    engine,
    keys,
    recording_signals,
    run_to_end,
    running_job,
)
from . import jobs
from .conftest import AddModule

another_name = jobs.noop


def push_call(
    path: str, queue: str = "default", *, digit: str = "f", max_attempts: int = 1, **options: object
) -> str:
    """Push a call as a foreign client could have pushed it; its ID."""
    job_id = "0" + digit * 31
    payload = json.dumps([path, queue, None, [], {}, options])
    engine().push("default", "", [Push(job_id, payload, 0, 0, max_attempts)])
    return job_id


class TestUnknown:
    @pytest.mark.parametrize(
        "path",
        [
            "tests.tasks.jobs.renamed",
            "tests.tasks.gone.noop",
            "tests.tasks.jobs.no_task",
            "tests.tasks.jobs.go",
            "os.abort",
            "django_redis_messaging.tasks.task.RedisTask",
            f"{__name__}.another_name",
            "noop",
            "",
        ],
    )
    def test_only_tasks_run_and_only_by_their_own_path(self, path: str, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "UNKNOWN_TASK_WINDOW", 0)
        job_id = push_call(path)
        with recording_signals() as signals:
            burst()
        assert signals == []
        [dead] = engine().dead("default", 10)
        assert dead.id == job_id
        assert b"UnknownTask" in dead.log
        with pytest.raises(InvalidTask):
            backend().get_result(job_id)

    @pytest.mark.parametrize("newer", ["task", "option"])
    def test_tasks_of_newer_code_are_retried(
        self, newer: str, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        """In a rolling deploy, workers with the old code may claim them. No attempt counts."""
        result = jobs.noop.using(result_ttl=60).enqueue()
        with monkeypatch.context() as old_code:
            if newer == "task":
                old_code.delattr(jobs, "noop")
            else:
                old_code.delitem(records.STORED, "result_ttl")
            for _ in range(3):
                assert burst(max_tasks=1).done == 0
                assert engine().reschedule("default", result.id, 0)
        assert caplog.text.count(result.id) == 3 and "retrying in 1.0 s" in caplog.text
        assert run_to_end(result) == [SUCCESSFUL]
        assert (result.attempts, result.errors) == (1, [])

    def claim(self) -> Settlement:
        """Claim a job of an unknown task; the settlement of its lease."""
        [leased] = engine().claim(["default"], 1, 60_000).jobs
        return worker.settle_unknown(backend(), running_job(leased), records.UnknownTask("renamed"))

    def test_they_are_retried_less_and_less(self) -> None:
        job_id = push_call("tests.tasks.jobs.renamed")
        found: list[tuple[Outcome, int]] = []
        for age in (0, 1, 2, 40, 1000, 3599, 3600):
            if age:
                assert engine().reschedule("default", job_id, 0)
                server().hset(keys().outcomes, job_id, f"U{server_ms() - age * 1000}")
            settlement = self.claim()
            found.append((settlement.outcome, round(settlement.ms / 1000)))
            assert engine().settle(settlement)
        assert found == [
            *[(Outcome.RELEASE, seconds) for seconds in (1, 1, 2, 40, 60, 60)],
            (Outcome.DEAD, 0),
        ]
        assert [dead.id for dead in engine().dead("default", 10)] == [job_id]

    @pytest.mark.parametrize("before", ["backlog", "rescheduled", "lost", "redriven"])
    def test_they_are_retried_for_an_hour_whatever_happened_before(
        self, before: str, monkeypatch: MonkeyPatch
    ) -> None:
        """It counts from the claim that found the task unknown, not from the moment at which it was due."""
        job_id = push_call("tests.tasks.jobs.renamed", max_attempts=3)
        hours_ago = server_ms() - 7_200_000
        if before == "backlog":
            state = server().hget(keys().states, job_id).decode()
            server().hset(keys().states, job_id, re.sub("(pushed|due)=[0-9]+", rf"\g<1>={hours_ago}", state))
        elif before == "rescheduled":
            # the records of the push and of the new moment are both old
            assert engine().reschedule("default", job_id, f"@{hours_ago}", "A1")
        elif before == "lost":
            engine().claim(["default"], 1, 1, worker="lost")
            until(lambda: counts() == [1, 0, 0, 0])
        else:
            with monkeypatch.context() as after:
                after.setattr(worker, "UNKNOWN_TASK_WINDOW", 0)
                burst()
            assert engine().redrive("default", None) == 1
        burst()
        assert counts() == [0, 1, 0, 0], "released"
        assert engine().reschedule("default", job_id, 0)
        server().hset(keys().outcomes, job_id, f"U{server_ms() - 3_600_000}")
        burst()
        assert counts() == [0, 0, 0, 1]

    def test_it_is_released_if_its_log_cannot_be_read(self, monkeypatch: MonkeyPatch) -> None:
        push_call("tests.tasks.jobs.renamed")
        monkeypatch.setattr(Engine, "get", jobs.raise_unavailable)
        assert not burst().failed
        assert counts() == [0, 1, 0, 0]


class TestModules:
    @pytest.mark.parametrize("stored", ["task", "retry_on"])
    def test_only_modules_of_the_site_are_imported(
        self, stored: str, add_module: AddModule, caplog: LogCaptureFixture
    ) -> None:
        listed = add_module("listed_by_the_site", "class Failed(Exception): ...\n")
        for name in ("outside_of_the_site", "listed_by_the_site_too"):
            (listed.parent / f"{name}.py").write_text("class Failed(Exception): ...\n")
        digits = iter("123")

        def imported_by_a_job(name: str) -> bool:
            if stored == "task":
                push_call(f"{name}.noop", digit=next(digits))
            else:
                push_call("tests.tasks.jobs.noop", digit=next(digits), retry_on=[f"{name}.Failed"])
            burst()
            return sys.modules.pop(name, None) is not None

        assert not imported_by_a_job("outside_of_the_site")
        assert not imported_by_a_job("listed_by_the_site_too"), "the name only begins like a listed one"
        assert imported_by_a_job("listed_by_the_site")
        if stored == "task":
            assert "'outside_of_the_site.noop' is in no module of an installed app" in caplog.text
            assert "retrying in 1.0 s" in caplog.text and "TASK_MODULES" in caplog.text

    def test_modules_of_installed_apps_may_be_imported(self) -> None:
        allowed = (
            "django.contrib.admin.tasks",
            "django.contrib.admin",
            "tests.web.accounts.tasks",
            "tests.jobs",
        )
        refused = ("django.contrib.gis.tasks", "django", "django.contrib.admindocs", "testsuite", "", "os")
        assert all(map(records.may_be_imported, allowed))
        assert not any(map(records.may_be_imported, refused))
        assert records.may_be_used("os"), "imported already"

    @pytest.mark.parametrize(("code", "error"), [("1 / 0", b"ZeroDivisionError"), ("exit(3)", b"SystemExit")])
    def test_failing_import_is_dead_lettered(self, code: str, error: bytes, add_module: AddModule) -> None:
        add_module("failing_module_of_tasks", code)
        push_call("failing_module_of_tasks.noop")
        result = jobs.noop.enqueue()
        runner = burst()
        assert run_to_end(result) == [SUCCESSFUL]
        assert (runner.failed, counts()) == (False, [0, 0, 0, 1])
        assert error in engine().dead("default", 1)[0].log

    def test_task_of_an_unserved_queue_is_dead_lettered(self) -> None:
        push_call("tests.tasks.jobs.noop", "former")
        burst()
        assert b"Queue 'former' is not valid" in engine().dead("default", 1)[0].log

    def test_unreadable_payload_is_dead_lettered(self) -> None:
        bad, good = jobs.noop.enqueue(), jobs.noop.enqueue()
        server().hset(keys().jobs, bad.id, "[7,null]")
        assert not burst().failed
        assert run_to_end(good) == [SUCCESSFUL]
        assert counts() == [0, 0, 0, 1]
