"""`manage.py messaging_tasks`: shows tasks and batches, cancels tasks, changes when and how many run."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, load_command_class
from django.utils import timezone
from pytest import CaptureFixture, MonkeyPatch
from pytest_django import DjangoDbBlocker, Settings

from django_redis_messaging.management import loops
from django_redis_messaging.services.jobs.engine import Outcome, Push
from django_redis_messaging.tasks import TaskBatch, records

from ..support.server import no_server, server, until
from ..support.terminal import output_of as output_and_errors
from ..support.workers import (
    FAILED,
    READY,
    at_work,
    backend,
    burst,
    ended,
    engine,
    keys,
    later,
    run_to_end,
    state,
)
from . import jobs

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("short_polls")]

#: clears the screen of a terminal
HOSTILE = "\x1b[2J"


def output_of(*arguments: object) -> str:
    return output_and_errors("messaging_tasks", *map(str, arguments))[0]


def shown(*arguments: object) -> dict[str, Any]:
    """What an action prints as JSON."""
    found: dict[str, Any] = json.loads(output_of(*arguments, "--json"))
    return found


def error_of(*arguments: object) -> str:
    """The error of an action, which is one line."""
    with pytest.raises(CommandError) as raised:
        output_of(*arguments)
    [line] = str(raised.value).splitlines()
    return line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail(error: Exception) -> None:
    """Claim a task and let its last attempt end with this error."""
    [leased] = engine().claim(["default"], 1, 60_000).jobs
    assert engine().settle(leased.lease.settlement(Outcome.DEAD, 0, records.failed(error)))


def with_note(error: Exception) -> Exception:
    error.add_note("a note")
    return error


class TestShow:
    def test_waiting_task(self) -> None:
        moment = datetime(2100, 1, 1, tzinfo=UTC)
        guarded = jobs.enter.using(queue_name="other", priority=5, run_after=moment, tags=("a,b", "c"))
        result = guarded.enqueue(7, 1)
        row = {
            "id": result.id,
            "status": "READY",
            "cancelling": False,
            "task": "tests.tasks.jobs.enter",
            "queue": "other",
            "priority": 5,
            "enqueued_at": result.enqueued_at.isoformat(),
            "due_at": "2100-01-01T00:00:00+00:00",
            "started_at": None,
            "finished_at": None,
            "attempts": 0,
            "max_attempts": 5,
            "workers": [],
            "tags": ["a,b", "c"],
            "needs": ["lock:order:7", "permit:orders/2"],
            "waits_for": None,
            "batch": None,
            "errors": [],
        }
        assert shown("show", result.id) == row
        lines = output_of("show", result.id).splitlines()
        assert [line.split()[0] for line in lines] == [key for key in row if key != "errors"]
        found = dict(line.split(maxsplit=1) for line in lines)
        assert (found["due_at"], found["tags"]) == ("2100-01-01T00:00:00+00:00", "a,b, c")
        assert (found["cancelling"], found["workers"]) == ("no", "-")

    def test_failed_task(self) -> None:
        result = jobs.fail.using(max_attempts=2, backoff=0).enqueue("two\nlines")
        run_to_end(result)
        row = shown("show", result.id)
        assert (row["status"], row["attempts"], row["max_attempts"]) == ("FAILED", 2, 2)
        assert row["errors"] == 2 * [{"class": "builtins.ValueError", "message": "two"}]
        assert (row["due_at"], row["workers"]) == (None, result.worker_ids)
        assert row["started_at"] == result.started_at.isoformat()
        assert row["finished_at"] == result.finished_at.isoformat()
        assert output_of("show", result.id).endswith("\n" + 2 * "builtins.ValueError: two\n")

    def test_what_a_task_waits_for(self) -> None:
        backend().set_concurrency("customer:a/b", 0)
        result = jobs.limited_note.enqueue("a/b")
        burst()
        row = shown("show", result.id)
        assert (row["needs"], row["waits_for"]) == (["permit:customer:a/b/1"], "permit:customer:a/b")

    def test_running_task_that_is_cancelled(self) -> None:
        """It is cancelled once its worker has noticed."""
        result = jobs.noop.enqueue()
        engine().claim(["default"], 1, 60_000)
        assert (shown("show", result.id)["status"], shown("show", result.id)["cancelling"]) == (
            "RUNNING",
            False,
        )
        assert output_of("cancel", result.id) == "Cancelled 1 task.\n"
        assert (shown("show", result.id)["status"], shown("show", result.id)["cancelling"]) == (
            "RUNNING",
            True,
        )

    @pytest.mark.parametrize("end", ["cancelled", "expired", "lost"])
    def test_errors_of_the_app(self, end: str) -> None:
        result = jobs.noop.using(expires=0.001 if end == "expired" else None).enqueue()
        if end == "cancelled":
            result.cancel()
        elif end == "lost":
            engine().claim(["default"], 1, 1)
            until(lambda: engine().sweep(["default"]) is None and state(result).status == "waiting")
        until(lambda: shown("show", result.id)["errors"])
        [error] = shown("show", result.id)["errors"]
        name, text = {
            "cancelled": ("TaskCancelled", "The task was cancelled before it started."),
            "expired": ("TaskExpired", "The task had not been started at "),
            "lost": ("LeaseLost", "The lease expired in attempt 1: "),
        }[end]
        assert error["class"] == f"django_redis_messaging.errors.{name}"
        assert error["message"].startswith(text)

    def test_task_that_the_code_does_not_define(self) -> None:
        result = jobs.noop.enqueue()
        jobs.move(result, "gone")
        assert shown("show", result.id)["task"] == "gone.noop"
        assert "gone.noop" in error_of("priority", result.id, 1)
        assert output_of("cancel", result.id) == "Cancelled 1 task.\n"

    def test_job_that_is_not_a_task(self) -> None:
        engine().push("default", "", [Push("0f", '["a"]', 0, 0, 1)])
        assert error_of("show", "0f") == "What is stored as 0f is not a call of a task."

    def test_task_of_a_batch(self) -> None:
        with TaskBatch(batch_id="import 7") as batch:
            batch.add(jobs.noop)
        [result] = batch.results()
        assert result is not None
        assert shown("show", result.id)["batch"] == "import 7"

    def test_values_are_shown_only_on_demand(self) -> None:
        result = jobs.echo.enqueue("secret", key=HOSTILE)
        assert "secret" not in output_of("show", result.id) + output_of("show", result.id, "--json")
        row = shown("show", result.id, "--arguments")
        assert [row[key] for key in ("args", "kwargs", "return_value")] == [
            '["secret"]', '{"key": "\\u001b[2J"}', "null",
        ]  # fmt: skip
        run_to_end(result)
        assert "secret" not in output_of("show", result.id) + output_of("show", result.id, "--json")
        row = shown("show", result.id, "--arguments")
        assert row["return_value"] == '[["secret"], {"key": "\\u001b[2J"}]'
        text = output_of("show", result.id, "--arguments")
        assert text.endswith('\nreturn_value  [["secret"], {"key": "\\u001b[2J"}]\n')

    def test_long_values_are_cut(self) -> None:
        result = jobs.fail.using(max_attempts=25, backoff=0).enqueue(2000 * "x")
        run_to_end(result)
        row = shown("show", result.id, "--arguments")
        assert row["args"] == '["' + 998 * "x" + "…"
        assert (len(row["errors"]), len(row["workers"])) == (20, 20)
        assert row["errors"][0]["message"] == 300 * "x" + "…"

    def test_control_characters_are_escaped(self) -> None:
        error = type(f"Bad{HOSTILE}", (Exception,), {})(f"text{HOSTILE}\u202e\x85more")
        result = jobs.echo.using(tags=(f"tag{HOSTILE}",)).enqueue("\u202e\x7f")
        fail(error)
        text = output_of("show", result.id, "--arguments")
        assert r"tests.tasks.test_tasks_command.Bad\x1b[2J: text\x1b[2J\u202e" in text.splitlines()
        assert r"tag\x1b[2J" in text and r'["\u202e\x7f"]' in text
        assert all(one.isprintable() for one in text.replace("\n", ""))

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (KeyError(), "builtins.KeyError"),
            (
                ExceptionGroup("several", [ValueError("x")]),
                "builtins.ExceptionGroup: several (1 sub-exception)",
            ),
            (with_note(ValueError("first\nValueErrors")), "builtins.ValueError: first"),
            (ValueError(9000 * "x" + "end"), f"builtins.ValueError: {300 * 'x'}…"),
        ],
    )
    def test_first_line_of_an_error(self, error: Exception, line: str) -> None:
        result = jobs.noop.enqueue()
        fail(error)
        assert output_of("show", result.id).splitlines()[-1] == line


class TestCancel:
    def test_by_id(self) -> None:
        one, other, done = (
            jobs.noop.enqueue(),
            jobs.noop.using(queue_name="other").enqueue(),
            jobs.noop.enqueue(),
        )
        one_batch = [one.id, other.id, one.id]
        assert output_of("cancel", *one_batch) == "Cancelled 2 tasks.\n"
        assert [ended(one).status, ended(other).status] == [FAILED, FAILED]
        burst()
        assert output_of("cancel", done.id, one.id) == "Cancelled 0 tasks. 2 tasks had ended before.\n"

    def test_running_task_is_interrupted(self) -> None:
        result = jobs.wait.enqueue()
        with at_work():
            until(lambda: jobs.notes)
            output_of("cancel", result.id)
            jobs.go.set()
            assert ended(result).is_finished

    def test_unknown_ids_are_an_error_and_the_others_are_cancelled(self) -> None:
        result = jobs.noop.enqueue()
        unknown = [f"{HOSTILE}{number}" for number in range(21)]
        text = error_of("cancel", unknown[0], result.id, *unknown[1:])
        assert text.startswith(r"Cancelled 1 task. The backend 'default' has no task \x1b[2J0, \x1b[2J1, ")
        assert r"\x1b[2J19, …: it was never enqueued" in text
        assert ended(result).status == FAILED

    def test_more_ids_than_one_page(self) -> None:
        results = jobs.noop.enqueue_many([([], {})] * 250)
        assert output_of("cancel", *(result.id for result in results)) == "Cancelled 250 tasks.\n"

    def test_by_tag(self) -> None:
        tagged, other = jobs.noop.using(tags=(f"a{HOSTILE}",)), jobs.noop.using(tags=("ab",)).enqueue()
        results = [tagged.enqueue(), tagged.using(queue_name="other").enqueue()]
        arguments = ("cancel", "--tag", f"a{HOSTILE}")
        assert output_of(*arguments) == "Cancelled 2 tasks with the tag a\\x1b[2J.\n"
        assert [ended(result).status for result in results] == [FAILED, FAILED]
        assert state(other).status == "waiting"
        assert error_of(*arguments) == (
            r"There are no tasks with the tag a\x1b[2J that wait or run in the backend 'default'."
        )

    @pytest.mark.parametrize(
        ("answer", "options", "status"),
        [
            ("yes\n", [], FAILED),
            ("y\n", [], READY),
            ("", [], READY),
            ("", ["--no-input"], FAILED),
            ("", ["--noinput"], FAILED),
        ],
    )
    def test_a_tag_is_confirmed_on_a_terminal(
        self,
        answer: str,
        options: list[str],
        status: str,
        monkeypatch: MonkeyPatch,
        capsys: CaptureFixture[str],
    ) -> None:
        """Not confirmed by the end of the input."""
        jobs.noop.using(tags=("ab",)).enqueue()
        result = jobs.noop.using(tags=("a",)).enqueue()
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        if status == READY:
            assert error_of("cancel", "--tag", "a", *options) == "Nothing was cancelled."
        else:
            assert output_of("cancel", "--tag", "a", *options) == "Cancelled 1 task with the tag a.\n"
        result.refresh()
        assert result.status == status
        question = "" if options else "Cancel 1 task with the tag a? Type 'yes' to do so: "
        assert capsys.readouterr().out == question

    def test_ids_are_not_confirmed(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", Terminal())
        assert output_of("cancel", jobs.noop.enqueue().id) == "Cancelled 1 task.\n"

    def test_question_is_interrupted(self, monkeypatch: MonkeyPatch) -> None:
        def interrupt(_: str) -> str:
            raise KeyboardInterrupt

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("builtins.input", interrupt)
        jobs.noop.using(tags=("a",)).enqueue()
        assert error_of("cancel", "--tag", "a") == "Nothing was cancelled."

    def test_without_standard_input(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", None)
        jobs.noop.using(tags=("a",)).enqueue()
        assert output_of("cancel", "--tag", "a") == "Cancelled 1 task with the tag a.\n"


class TestChanges:
    def test_priority(self) -> None:
        result = jobs.noop.enqueue()
        assert output_of("priority", result.id, -7) == f"The task {result.id} has the priority -7.\n"
        assert state(result).priority == -7

    def test_reschedule_to_seconds_from_now_on(self) -> None:
        result, before = jobs.noop.using(run_after=later()).enqueue(), timezone.now()
        assert output_of("reschedule", result.id, "90.5").startswith(f"The task {result.id} is due at ")
        due = datetime.fromisoformat(shown("show", result.id)["due_at"])
        assert before + timedelta(seconds=90.5) <= due <= timezone.now() + timedelta(seconds=90.6)
        output_of("reschedule", result.id, "0")
        burst()
        assert ended(result).status != READY

    @pytest.mark.parametrize("use_tz", [True, False])
    @pytest.mark.parametrize(
        ("given", "due"),
        [
            ("2100-01-01T12:00", "2100-01-01T12:00+09:00"),
            ("2100-01-01 12:00:30", "2100-01-01T12:00:30+09:00"),
            ("2100-01-01", "2100-01-01T00:00+09:00"),
            ("2100-01-01T12:00Z", "2100-01-01T12:00+00:00"),
        ],
    )
    def test_reschedule_to_a_moment(self, given: str, due: str, use_tz: bool, settings: Settings) -> None:
        settings.TIME_ZONE, settings.USE_TZ = "Asia/Tokyo", use_tz
        result = jobs.noop.enqueue()
        output_of("reschedule", result.id, given)
        assert state(result).moment == datetime.fromisoformat(due).timestamp() * 1000
        shown_due = datetime.fromisoformat(shown("show", result.id)["due_at"])
        assert shown_due.timestamp() == datetime.fromisoformat(due).timestamp()

    def test_moment_that_is_none_in_local_time(self, settings: Settings) -> None:
        settings.USE_TZ = False
        assert "0001-01-01T00:00+14:00 is neither" in error_of("reschedule", "0a", "0001-01-01T00:00+14:00")

    def test_tasks_that_have_ended(self) -> None:
        result = jobs.noop.enqueue()
        burst()
        begin = f"The task {result.id} has started, or has ended: "
        assert error_of("priority", result.id, 1) == begin + "its priority can't be changed."
        assert error_of("reschedule", result.id, 1) == begin + "it can't be rescheduled."

    def test_concurrency(self) -> None:
        jobs.limited_note.enqueue("7")
        engine().claim(["default"], 1, 60_000)
        assert output_of("concurrency", "customer:7", 5) == (
            "At most 5 calls with the key customer:7 run at a time (before: as their tasks say; 1 run now).\n"
        )
        assert server().hgetall(keys().limits) == {b"permit:customer%3A7": b"5"}
        assert output_of("concurrency", "customer:7", 0) == (
            "At most 0 calls with the key customer:7 run at a time (before: 5; 1 run now).\n"
        )
        assert output_of("concurrency", "customer:7", "--reset") == (
            "As many calls with the key customer:7 run at a time as their tasks say (before: 0; 1 run now).\n"
        )
        assert not server().exists(keys().limits)
        assert error_of("concurrency", "customer:7", "--reset") == (
            "No limit is set for the key customer:7 in the backend 'default'."
        )


class TestBatch:
    def test_counts_and_callbacks(self) -> None:
        ok = jobs.echo.using(queue_name="other")
        batch = TaskBatch(f"import{HOSTILE}", on_done=ok, on_failed=ok, on_first_failure=ok)
        for function in (jobs.noop, jobs.fail, jobs.noop):
            batch.add(function.using(max_attempts=1))
        batch.enqueue()
        burst("default", max_tasks=2)
        batch.refresh()
        row = {
            "id": batch.id,
            "name": f"import{HOSTILE}",
            "total": 3,
            "pending": 1,
            "succeeded": 1,
            "failed": 1,
            "cancelled": 0,
            "is_cancelled": False,
            "created_at": batch.created_at and batch.created_at.isoformat(),
            "ended_at": None,
            "callbacks": {
                "on_done": {"id": batch.callback_id("on_done"), "status": None},
                "on_failed": {"id": batch.callback_id("on_failed"), "status": None},
                "on_first_failure": {"id": batch.callback_id("on_first_failure"), "status": "READY"},
            },
        }
        assert shown("batch", batch.id) == row
        text = output_of("batch", batch.id).splitlines()
        assert r"import\x1b[2J" in text[1]
        assert text[-1].split() == ["on_first_failure", batch.callback_id("on_first_failure"), "READY"]
        assert text[-2].split() == ["on_failed", batch.callback_id("on_failed"), "-"]
        burst("default", "other")
        row = shown("batch", batch.id)
        assert [one["status"] for one in row["callbacks"].values()] == 3 * ["SUCCESSFUL"]
        assert row["ended_at"] is not None

    def test_cancel(self) -> None:
        with TaskBatch() as batch:
            for _ in range(3):
                batch.add(jobs.noop)
        engine().claim(["default"], 1, 60_000)
        assert output_of("batch", batch.id, "--cancel") == (
            f"Cancelled 3 tasks of the batch {batch.id}; 1 has not ended yet.\n"
        )
        row = shown("batch", batch.id)
        assert (row["cancelled"], row["pending"], row["is_cancelled"]) == (2, 1, True)

    def test_cancel_a_batch_that_has_ended(self) -> None:
        batch = TaskBatch().enqueue()
        assert output_of("batch", batch.id, "--cancel") == f"Cancelled 0 tasks of the batch {batch.id}.\n"


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (
                ["show", "0a"],
                "The backend 'default' has no task 0a: it was never enqueued, or its result is not",
            ),
            (["priority", f"0a{HOSTILE}", "1"], r"has no task 0a\x1b[2J: it was never enqueued"),
            (["reschedule", "0a", "1"], "has no task 0a"),
            (["cancel", "0a"], "has no task 0a"),
            (["show", ""], "ID is empty"),
            (["show", 300 * "x"], "ID has 300 bytes"),
            (["show", "\udcff"], "lone surrogate"),
            (["show", "0a", "--backend", "nowhere"], "TASKS has no entry 'nowhere'"),
            (["cancel"], "Name tasks by their ids, or a tag with --tag."),
            (["cancel", "0a", "--tag", "a"], "Name tasks by their ids, or a tag with --tag."),
            (["cancel", "--tag", ""], "tag is empty"),
            (["cancel", "--tag", f"a{HOSTILE}"], r"There are no tasks with the tag a\x1b[2J"),
            (
                ["reschedule", "0a", f"soon{HOSTILE}"],
                r"soon\x1b[2J is neither a number of seconds nor a moment",
            ),
            (["reschedule", "0a", "2100-02-30T12:00"], "2100-02-30T12:00 is neither"),
            (["reschedule", "0a", "nan"], "SECONDS must be 0 s or more, not nan s."),
            (["reschedule", "0a", "-5"], "SECONDS must be 0 s or more, not -5.0 s."),
            (["reschedule", "0a", "1e99"], "SECONDS must be between 0 s and 100 years"),
            (["concurrency", "k"], "Give a number, or --reset."),
            (["concurrency", "k", "1", "--reset"], "Give a number, or --reset."),
            (["concurrency", "k", "-1"], "limit must be between 0 and"),
            (["concurrency", "", "1"], "KEY is empty"),
            (["concurrency", f"k{HOSTILE}", "--reset"], r"No limit is set for the key k\x1b[2J"),
            (["batch", f"b{HOSTILE}"], r"No batch 'b\x1b[2J' is stored"),
            (["batch", "b", "--cancel"], "No batch 'b' is stored"),
            ([], "the following arguments are required: ACTION"),
            (["delete"], "invalid choice: 'delete'"),
            (["priority", "0a", "high"], "invalid int value: 'high'"),
            (["concurrency", "k", "many"], "invalid int value: 'many'"),
        ],
    )
    def test_names_and_numbers(self, arguments: list[str], text: str) -> None:
        assert text in error_of(*arguments)

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ("show 0a", 1),
            ("cancel", 1),
            ("concurrency k", 1),
            ("priority 0a high", 2),
            ("delete 0a", 2),
            ("", 2),
        ],
    )
    def test_exit_codes(self, arguments: str, code: int, django_db_blocker: DjangoDbBlocker) -> None:
        command = load_command_class("django_redis_messaging", "messaging_tasks")
        with pytest.raises(SystemExit) as exited, django_db_blocker.unblock():
            command.run_from_argv(["manage.py", "messaging_tasks", *arguments.split()])
        assert exited.value.code == code

    def test_values_out_of_range(self) -> None:
        result, batch = jobs.noop.enqueue(), TaskBatch().enqueue()
        assert error_of("priority", result.id, 101) == "priority must be between -100 and 100, not 101."
        assert "run_after must be between" in error_of("reschedule", result.id, "9999-12-31T23:59:59Z")
        assert error_of("batch", batch.id, "--cancel", "--json") == "--json can't be used with --cancel."
        assert state(result).priority == 0

    def test_other_backend(self, settings: Settings) -> None:
        entry = settings.TASKS["default"]
        settings.TASKS = {"default": entry, "mail": {**entry, "QUEUES": ["letters"]}}
        result = jobs.noop.using(backend="mail", queue_name="letters").enqueue()
        assert "The backend 'default' has no task" in error_of("show", result.id)
        assert shown("show", result.id, "--backend", "mail")["queue"] == "letters"
        batch = TaskBatch(backend="mail").enqueue()
        assert shown("batch", batch.id, "--backend", "mail")["total"] == 0
        assert output_of("cancel", result.id, "--backend", "mail") == "Cancelled 1 task.\n"

    def test_without_django_tasks(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(loops, "tasks_installed", lambda: False)
        assert "pip install" in error_of("show", "0a")

    def test_redis_is_unavailable(self) -> None:
        with no_server():
            assert "Redis was not available" in error_of("show", "0a")
