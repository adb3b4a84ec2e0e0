"""The management commands run_worker, run_poller, messaging_stats and redrive."""

from __future__ import annotations

import importlib
import io
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from pytest import CaptureFixture, MonkeyPatch
from pytest_django import DjangoDbBlocker, Settings

from django_redis_messaging import DelayQueue
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.management.loops import chosen_backend, chosen_queues

from ..support.processes import Start
from ..support.server import change
from ..support.workers import (
    DUMMY,
    PATIENCE,
    READY,
    assert_released,
    burst,
    counts,
    ended,
    keys,
    later,
    server,
    until,
)
from . import jobs
from .conftest import AddModule, SendWhen

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("short_polls")]

SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM


def output_of(command: str, *arguments: str, **options: Any) -> str:
    """Run a command and return its output."""
    out = io.StringIO()
    call_command(command, *arguments, stdout=out, **options)
    return out.getvalue()


class TestWorker:
    def test_burst_and_an_invalid_option_in_processes(self, start: Start) -> None:
        results = [jobs.echo.enqueue(1), jobs.aecho.using(queue_name="other").enqueue(2), jobs.fail.enqueue()]
        good, bad = start("run_worker", "--burst"), start("run_worker", "--backend", "nowhere")
        out, _ = good.communicate(timeout=PATIENCE)
        assert good.returncode == 0
        assert "serves default, other. Ctrl-C ends it." in out
        assert "ended after 3 tasks." in out
        statuses = [ended(result).status.value for result in results]
        assert statuses == ["SUCCESSFUL", "SUCCESSFUL", "FAILED"]
        out, errors = bad.communicate(timeout=PATIENCE)
        assert (bad.returncode, out) == (1, "")
        assert errors == (
            "CommandError: TASKS has no entry 'nowhere' whose BACKEND is "
            "django_redis_messaging.tasks.RedisBackend (found: default).\n"
        )

    def test_verbosity_zero_prints_nothing(self, capfd: CaptureFixture[str]) -> None:
        assert output_of("run_worker", "--burst", verbosity=0) == ""
        assert capfd.readouterr() == ("", "")

    def test_only_the_given_queues_are_served(self) -> None:
        jobs.note.using(queue_name="other").enqueue("other")
        assert "serves default." in output_of("run_worker", "--queue", "default", "--burst")
        assert counts("other") == [1, 0, 0, 0]

    def test_queues_with_weights(self, settings: Settings) -> None:
        weighted = ["--queue", "other=3", "--queue", "default"]
        assert "serves other, default." in output_of("run_worker", *weighted, "--burst")
        backend = chosen_backend("default")
        assert chosen_queues(backend, ["other=3", "default"]) == {"other": 3, "default": 1}
        assert chosen_queues(backend, ["other", "default"]) == ["other", "default"]
        settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "a=2"]}}
        assert chosen_queues(chosen_backend("default"), ["default", "a=2"]) == ["default", "a=2"]

    @pytest.mark.parametrize("number", [SIGINT, SIGTERM])
    def test_first_signal_drains(self, number: signal.Signals, send_when: SendWhen, tmp_path: Path) -> None:
        began = tmp_path / "began"
        first, second = jobs.pid_after.enqueue(str(began), 0.2), jobs.noop.enqueue()
        send_when(began.exists, number)
        assert "ended after 1 tasks." in output_of("run_worker", "--concurrency", "1")
        assert ended(first).status.value == "SUCCESSFUL"
        assert_released(second)

    @pytest.mark.timing
    @pytest.mark.parametrize(("drain", "numbers"), [("30", (SIGTERM, SIGINT)), ("0.1", (SIGTERM,))])
    def test_second_signal_or_the_drain_time_releases(
        self, drain: str, numbers: tuple[signal.Signals, ...], send_when: SendWhen
    ) -> None:
        result, began = jobs.wait.enqueue(), time.monotonic()
        send_when(lambda: jobs.notes, *numbers)
        assert "ended after" in output_of("run_worker", "--drain", drain)
        assert time.monotonic() - began < 20
        assert_released(result)

    @pytest.mark.timing
    def test_second_signal_ends_the_process_while_threads_of_tasks_run(
        self, start: Start, tmp_path: Path
    ) -> None:
        marker = tmp_path / "begun"
        result = jobs.sleep_in_thread.enqueue(str(marker), 600.0)
        process = start("run_worker")
        until(lambda: marker.exists() and marker.read_text())
        process.send_signal(SIGTERM)
        process.send_signal(SIGINT)
        out, errors = process.communicate(timeout=30)
        assert (process.returncode, "ended after" in out) == (0, True)
        assert "Exiting though these threads have not ended: asyncio_0." in errors
        assert_released(result)

    def test_reload_runs_the_changed_code(
        self, start: Start, add_module: AddModule, monkeypatch: MonkeyPatch
    ) -> None:
        text = "from django_redis_messaging.tasks import task\n\n\n@task\ndef version():\n    return "
        code = add_module("tasks_that_change", text + "1\n")
        monkeypatch.setenv("PYTHONPATH", str(code.parent))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        version = importlib.import_module(code.stem).version
        monkeypatch.delitem(sys.modules, code.stem)

        def new_code_runs() -> bool:
            """Repeat the change: the reloader ignores changes made before its first scan."""
            code.write_text(text + "2\n")
            return bool(ended(version.enqueue()).return_value == 2)

        process = start("run_worker", "--reload", "--lease", "1", apps=code.stem, path=code.parent)
        try:
            assert ended(version.enqueue()).return_value == 1
            until(new_code_runs)
        finally:  # the child process must not stay behind
            process.terminate()
            process.communicate(timeout=PATIENCE)
        assert process.returncode == 0

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--queue", "nope"], "no queue 'nope': add it to QUEUES"),
            (["--queue", "default", "--queue", "nope"], "no queue 'nope'"),
            (["--queue", "nope=3"], "no queue 'nope'"),
            (["--queue", "default=0"], "--queue default=0: the weight must be a number between 1 and 1000"),
            (["--queue", "default="], "the weight must be a number"),
            (["--queue", "default=1.5"], "the weight must be a number"),
            (["--queue", "default=" + 5000 * "1"], "the weight must be a number"),
            (["--queue", "=3"], "the name of a queue is empty"),
            (["--queue", "default", "--queue", "default=3"], "--queue must name each queue once."),
            (["--concurrency", "0"], "--concurrency must be at least 1"),
            (["--lease", "0.5"], "--lease between 1 and"),
            (["--lease", "nan"], "--lease between 1 and"),
            (["--lease", "inf"], "--lease between 1 and"),
            (["--drain", "-1"], "--drain must be between 0 and"),
            (["--drain", "nan"], "--drain must be between 0 and"),
            (["--max-tasks", "0"], "--max-tasks must be at least 1"),
            (["--max-memory", "-5"], "--max-memory must be at least 1"),
            (["--max-time", "nan"], "--max-time must be at least 1"),
            (["--concurrency", "many"], "invalid int value: 'many'"),
        ],
    )
    def test_invalid_options(self, arguments: list[str], text: str) -> None:
        with pytest.raises(CommandError) as error:
            call_command("run_worker", *arguments, "--burst")
        assert text in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.usefixtures("any_queue")
    def test_backend_without_queues_needs_the_queue_option(self) -> None:
        with pytest.raises(CommandError, match="name the queues to serve with --queue"):
            call_command("run_worker", "--burst")
        jobs.note.using(queue_name="anything").enqueue("any")
        assert "ended after 1 tasks." in output_of("run_worker", "--burst", "--queue", "anything")

    def test_foreign_backend_is_rejected(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        with pytest.raises(CommandError, match="found: none"):
            call_command("run_worker", "--burst")

    def test_limits_and_errors_end_the_worker(self) -> None:
        for number in range(4):
            jobs.note.enqueue(number)
        assert "after 1 tasks." in output_of("run_worker", "--concurrency", "1", "--max-tasks", "1")
        assert "after 1 tasks." in output_of("run_worker", "--concurrency", "1", "--max-memory", "1")
        jobs.break_event_loop.enqueue()
        with pytest.raises(CommandError, match=r"The worker ended by an error; see the log\."):
            call_command("run_worker", verbosity=0)


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_poller_moves_due_tasks_until_a_signal(number: signal.Signals, send_when: SendWhen) -> None:
    jobs.noop.using(run_after=later(0.1)).enqueue()
    send_when(lambda: server().zcard(keys().queue("default").ready) == 1, number)
    assert output_of("run_poller") == "Polling. Ctrl-C ends it.\n"


def expected_row(queue: str, **counts: int) -> dict[str, Any]:
    none = dict.fromkeys(("ready", "delayed", "leased", "dead"), 0)
    return {"queue": queue, **none, "oldest_age": None, **counts}


class TestStats:
    def test_task_queues_are_listed_while_empty(self) -> None:
        lines = output_of("messaging_stats").splitlines()
        assert lines[0].split() == ["queue", "ready", "delayed", "leased", "dead", "oldest_age"]
        assert [line.split() for line in lines[1:]] == [
            ["tasks", "default/default", "0", "0", "0", "0", "-"],
            ["tasks", "default/other", "0", "0", "0", "0", "-"],
        ]

    def test_no_queues(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        assert output_of("messaging_stats") == "There are no queues yet.\n"
        assert json.loads(output_of("messaging_stats", "--json")) == []

    def test_json_output(self) -> None:
        queue, began = DelayQueue("mail", max_attempts=1), time.monotonic()
        queue.push_many(["one", "two", "three"])
        queue.push("later", delay=60)
        _, failed = queue.pop(2, lease=60)
        queue.fail(failed, "no")
        jobs.fail.enqueue()
        burst("default")
        jobs.noop.using(queue_name="other", run_after=later()).enqueue()
        mail, default, other = json.loads(output_of("messaging_stats", "--json"))
        age = mail.pop("oldest_age")
        assert mail == {"queue": "mail", "ready": 1, "delayed": 1, "leased": 1, "dead": 1}
        assert 0 < age < time.monotonic() - began + 0.002  # the server counts in ms
        assert default == expected_row("tasks default/default", dead=1)
        assert other == expected_row("tasks default/other", delayed=1)

    @pytest.mark.usefixtures("any_queue")
    def test_queues_of_a_backend_without_a_list(self) -> None:
        jobs.noop.using(queue_name="anything").enqueue()
        [row] = json.loads(output_of("messaging_stats", "--json"))
        assert (row["queue"], row["ready"]) == ("tasks default/anything", 1)

    def test_table_columns_are_aligned(self) -> None:
        DelayQueue("a").push_many(list(range(1000)))
        head, first, *others = output_of("messaging_stats").splitlines()
        assert first.split()[:5] == ["a", "1000", "0", "0", "0"]
        assert first.endswith(" s")
        assert {len(line) for line in (head, first, *others)} == {len(head)}

    @pytest.mark.parametrize("arguments", [["messaging_stats"], ["redrive", "mail"]])
    def test_unreachable_redis_prints_one_line(
        self,
        arguments: list[str],
        own_server: EmbeddedServer,
        settings: Settings,
        django_db_blocker: DjangoDbBlocker,
        capsys: CaptureFixture[str],
    ) -> None:
        change(settings, COMMAND_DEADLINE=0.2)
        own_server.stop()
        command = load_command_class("django_redis_messaging", arguments[0])
        with pytest.raises(SystemExit) as exited, django_db_blocker.unblock():
            command.run_from_argv(["manage.py", *arguments])
        out, errors = capsys.readouterr()
        assert (exited.value.code, out) == (1, "")
        assert errors.startswith("CommandError: Redis was not available")
        assert errors.count("\n") == 1


class TestRedrive:
    def test_redrive_all_or_some_of_a_delay_queue(self) -> None:
        queue = DelayQueue("mail")
        for name in ("one", "two", "three"):
            queue.push(name, job_id=name)
        for job in queue.pop(3):
            queue.fail(job, "no")
        assert output_of("redrive", "mail", "two") == "1 requeued in mail.\n"
        assert output_of("redrive", "mail") == "2 requeued in mail.\n"
        assert output_of("redrive", "mail") == "0 requeued in mail.\n"
        assert [(job.data, job.attempts) for job in queue.pop(1)] == [("two", 1)]

    def test_redrive_tasks(self) -> None:
        results = [jobs.fail.enqueue(f"{number}") for number in range(3)]
        burst()
        tasks = ["--backend", "default"]
        assert output_of("redrive", "default", results[1].id, *tasks) == "1 requeued in default.\n"
        results[1].refresh()
        assert results[1].status == READY
        assert output_of("redrive", "default", *tasks) == "2 requeued in default.\n"

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["default", "--backend", "nowhere"], "TASKS has no entry 'nowhere' whose BACKEND is"),
            ([""], "name"),
            (["x" * 300], "name"),
            (["mail", ""], "job_id"),
        ],
    )
    def test_invalid_options(self, arguments: list[str], text: str) -> None:
        with pytest.raises(CommandError, match=text) as error:
            call_command("redrive", *arguments)
        assert "\n" not in str(error.value)
