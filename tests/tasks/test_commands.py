"""The management commands run_worker, run_poller, run_messaging, messaging_stats and redrive."""

from __future__ import annotations

import getpass
import importlib
import io
import json
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class
from django.utils import autoreload
from pytest import CaptureFixture, LogCaptureFixture, MonkeyPatch
from pytest_django import DjangoDbBlocker, Settings

from django_redis_messaging import (
    ConfigurationError,
    DelayQueue,
    Expired,
    Expiry,
    conf,
    handlers,
    on_expiry,
    surveys,
)
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.management import loops
from django_redis_messaging.management.loops import LoopGroup, chosen_backend, chosen_queues
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.poller import Poller

from ..support.engines import timers
from ..support.processes import Start
from ..support.server import change, server, until
from ..support.workers import (
    DUMMY,
    FAILED,
    PATIENCE,
    READY,
    SUCCESSFUL,
    assert_released,
    burst,
    counts,
    ended,
    keys,
    later,
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
    def test_burst_in_a_process(self, start: Start) -> None:
        results = [jobs.echo.enqueue(1), jobs.aecho.using(queue_name="other").enqueue(2), jobs.fail.enqueue()]
        process = start("run_worker", "--burst")
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        assert "serves default, other. Ctrl-C ends it." in out
        assert "ended after 3 tasks." in out
        assert [ended(result).status for result in results] == [SUCCESSFUL, SUCCESSFUL, FAILED]

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
        assert ended(first).status == SUCCESSFUL
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
        process = start("run_worker", "--processes", "0")
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


EXPIRIES = """
import time
from pathlib import Path
from django_redis_messaging import on_expiry

@on_expiry("order")
def unpaid(expired):
    Path(expired.payload["marker"]).write_text(expired.name)
    time.sleep(expired.payload["seconds"])
"""


def test_all_three_loops_run_and_drain_at_the_first_signal(start: Start, tmp_path: Path) -> None:
    """The signal arrives while the timer's handler and the task are running."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "expiries.py").write_text(EXPIRIES)
    fired, begun = tmp_path / "fired", tmp_path / "begun"
    DelayQueue("mail").push("hello", delay=0.1)
    process = start("run_messaging", "--concurrency", "2", apps="shop", path=tmp_path)
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("Running worker ")
    assert line.endswith(" of default, other; poller; listener of timers of order. Ctrl-C ends it.\n")
    mail = JobKeys(conf.prefix(), "queue", "mail").queue("jobs")
    until(lambda: server().zcard(mail.ready) == 1)
    Expiry("order").start("17", 0.01, {"marker": str(fired), "seconds": 0.5})
    result = jobs.pid_after.enqueue(str(begun), 0.5)
    until(lambda: fired.exists() and begun.exists())
    process.send_signal(SIGTERM)
    assert process.communicate(timeout=PATIENCE) == ("Ended after 1 tasks and 1 timers.\n", "")
    assert process.returncode == 0
    assert ended(result).return_value == process.pid
    assert timers().stats("order")[:4] == [0, 0, 0, 0]


@pytest.fixture
def stop_immediately(monkeypatch: MonkeyPatch) -> None:
    """Simulate a signal before the start: the loops end at once."""
    monkeypatch.setattr(loops, "at_signals", lambda stop: stop())


@pytest.mark.usefixtures("send_when")
class TestTogether:
    @pytest.mark.timing
    def test_second_signal_releases_running_jobs(self, send_when: SendWhen) -> None:
        @on_expiry("order")
        def unpaid(expired: Expired) -> None:
            jobs.note.func("fired")
            jobs.go.wait(PATIENCE)

        Expiry("order").start("17", 0.01)
        result = jobs.wait.enqueue()
        send_when(lambda: len(jobs.notes) == 2, SIGTERM, SIGINT)
        assert output_of("run_messaging", "--verbosity", "0", "--drain", "600") == ""
        assert_released(result)
        assert timers().stats("order")[:4] == [1, 0, 0, 0]

    def test_failed_loop_drains_the_others_and_is_an_error_of_the_command(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        def fail(_: Poller) -> None:
            until(lambda: jobs.notes)  # it has begun: one that was only claimed would be released
            threading.Timer(0.2, jobs.go.set).start()
            raise RuntimeError("a mistake of the site")

        monkeypatch.setattr(Poller, "run", fail)
        result, out = jobs.wait.enqueue(), io.StringIO()
        with pytest.raises(CommandError, match=r"Ended by an error of the poller; see the log\."):
            call_command("run_messaging", stdout=out)
        assert ended(result).status == SUCCESSFUL
        assert out.getvalue().endswith("Ended after 1 tasks and 0 timers.\n")
        assert "RuntimeError: a mistake of the site" in caplog.text

    @pytest.mark.usefixtures("stop_immediately")
    def test_no_worker_and_no_listener_is_no_error(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        assert output_of("run_messaging") == (
            "Running no worker (TASKS has no backend of this app); poller; no listener (no app has handlers "
            "in expiries.py). Ctrl-C ends it.\nEnded after 0 tasks and 0 timers.\n"
        )

    def test_one_worker_for_each_backend_of_this_app(self, send_when: SendWhen, settings: Settings) -> None:
        entry = settings.TASKS["default"]
        settings.TASKS = {
            "default": entry,
            "mail": {**entry, "QUEUES": ["letters"]},
            "no": {"BACKEND": DUMMY},
        }
        jobs.note.enqueue(1)
        jobs.note.using(backend="mail", queue_name="letters").enqueue(2)
        on_expiry("order")(print)
        send_when(lambda: len(jobs.notes) == 2, SIGTERM)
        lines = output_of("run_messaging")
        assert " of default, other; worker " in lines
        assert " of letters; poller; listener of timers of order. Ctrl-C" in lines
        assert "Ended after 2 tasks and 0 timers." in lines

    @pytest.mark.usefixtures("stop_immediately")
    def test_without_django_tasks(self, monkeypatch: MonkeyPatch) -> None:
        for module in (loops, surveys):
            monkeypatch.setattr(module, "tasks_installed", lambda: False)
        assert output_of("run_messaging", "--max-time", "1").startswith(
            "Running no worker (TASKS has no backend of this app); poller;"
        )
        with pytest.raises(CommandError, match="pip install"):
            output_of("run_messaging", "--backend", "default")
        with pytest.raises(CommandError, match=r"found: none"):
            output_of("run_messaging", "--queue", "default")

    def test_reload_leaves_signals_to_the_reloader(
        self, settings: Settings, monkeypatch: MonkeyPatch
    ) -> None:
        """The reloader runs the command in a thread, where signal handlers cannot be set."""
        settings.TASKS = {"default": {"BACKEND": DUMMY}}

        def run_with_reloader(run: Callable[..., None], **options: Any) -> None:
            with ThreadPoolExecutor() as pool:
                pool.submit(run, **options).result()

        monkeypatch.setattr(autoreload, "run_with_reloader", run_with_reloader)
        assert "Ended after 0 tasks" in output_of("run_messaging", "--reload", "--max-time", "1")

    @pytest.mark.usefixtures("stop_immediately")
    def test_backend_and_queue_options(self, settings: Settings) -> None:
        entry = settings.TASKS["default"]
        settings.TASKS = {"default": entry, "mail": {**entry, "QUEUES": ["letters"]}}
        [line, _] = output_of("run_messaging", "--backend", "default", "--queue", "other").splitlines()
        assert " of other; poller; no listener" in line
        assert "letters" not in line
        with pytest.raises(CommandError, match=r"name it with --backend \(found: default, mail\)"):
            output_of("run_messaging", "--queue", "other")

    def test_conflicting_handlers(self, monkeypatch: MonkeyPatch) -> None:
        def discover() -> None:
            raise ConfigurationError("The namespace 'order' has a handler already.")

        monkeypatch.setattr(handlers, "discover", discover)
        with pytest.raises(CommandError, match="has a handler already"):
            output_of("run_messaging")


class WaitingLoop:
    """A loop that runs until it was stopped `stops` times."""

    def __init__(self, stops: int = 1) -> None:
        self.stops = stops
        self.stop_calls = 0
        self._woken = threading.Semaphore(0)

    def run(self) -> None:
        for _ in range(self.stops):
            assert self._woken.acquire(timeout=PATIENCE)

    def stop(self) -> None:
        self.stop_calls += 1
        self._woken.release()


class EndingLoop:
    """A loop that ends at once: normally, with an exception, or after logging a failure."""

    def __init__(self, error: BaseException | None = None, *, failed: bool = False) -> None:
        self.error, self.failed = error, failed

    def run(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None: ...


class TestLoopGroup:
    def test_both_stops_reach_all_loops(self) -> None:
        LoopGroup({}).run()  # ends at once
        one, other = WaitingLoop(1), WaitingLoop(2)
        together = LoopGroup({"one": one, "other": other})
        together.stop()
        together.stop()
        together.run()
        assert (one.stop_calls, other.stop_calls) in {(1, 2), (2, 2)}
        assert together.failed == []

    @pytest.mark.parametrize(
        ("ending", "failed"),
        [
            (EndingLoop(), []),
            (EndingLoop(ValueError("x")), ["ending"]),
            (EndingLoop(SystemExit("x")), ["ending"]),
            (EndingLoop(failed=True), ["ending"]),
        ],
    )
    def test_loop_that_ends_stops_the_others_once(
        self, ending: EndingLoop, failed: list[str], caplog: LogCaptureFixture
    ) -> None:
        """The others drain. When one of them ends, the rest are not stopped a second time."""
        others = WaitingLoop(), WaitingLoop(), WaitingLoop()
        together = LoopGroup({"ending": ending, "a": others[0], "b": others[1], "c": others[2]})
        together.run()
        assert [other.stop_calls for other in others] == [1, 1, 1]
        assert together.failed == failed
        assert ("The ending failed" in caplog.text) == (ending.error is not None)

    @pytest.mark.timing
    def test_loops_stop_after_max_time(self) -> None:
        waiting, began = WaitingLoop(), time.monotonic()
        LoopGroup({"waiting": waiting}, max_time=0.2).run()
        assert waiting.stop_calls == 1
        assert 0.2 <= time.monotonic() - began < PATIENCE

    @pytest.mark.timing
    def test_loop_that_ignores_the_second_stop_is_abandoned(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        """For example, a loop that waits for an unresponsive Redis."""
        monkeypatch.setattr(loops, "GROUP_STOP_TIMEOUT", 0.1)
        one, other = WaitingLoop(3), WaitingLoop(2)
        together = LoopGroup({"one": one, "other": other})
        together.stop()
        together.stop()
        together.run()
        assert (one.stop_calls, other.stop_calls) == (2, 2)
        assert "Exiting though these loops have not ended: one." in caplog.text
        one.stop()

    @pytest.mark.usefixtures("send_when")
    @pytest.mark.timing
    def test_signal_that_interrupts_no_wait_is_noticed(self, monkeypatch: MonkeyPatch) -> None:
        """For example, one that arrives just before the wait begins; here, another thread receives it."""
        monkeypatch.setattr(loops, "GROUP_POLL_INTERVAL", 0.3)
        waiting = WaitingLoop()
        together = LoopGroup({"waiting": waiting})
        loops.at_signals(together.stop)

        def send() -> None:
            until(lambda: any(thread.name == "waiting" for thread in threading.enumerate()))
            # the test cannot see whether the wait has begun: it may pass wrongly, but never fail wrongly
            time.sleep(0.1)
            signal.pthread_kill(threading.get_ident(), SIGTERM)

        with ThreadPoolExecutor() as pool:
            sent = pool.submit(send)
            together.run()
            sent.result()
        assert waiting.stop_calls == 1


NOT_PAUSED: dict[str, Any] = {"paused": None, "paused_tasks": {}}


def expected_row(queue: str, **counts: int) -> dict[str, Any]:
    none = dict.fromkeys(("ready", "delayed", "leased", "dead"), 0)
    rates = {"oldest_age": None, "throughput": 0.0, "time_to_drain": 0.0}
    return {"queue": queue, **none, **rates, "parked": 0, **counts, **NOT_PAUSED}


class TestStats:
    def test_task_queues_are_listed_while_empty(self) -> None:
        lines = output_of("messaging_stats").splitlines()
        counts = ["ready", "delayed", "leased", "dead", "parked"]
        assert lines[0].split() == ["queue", *counts, "oldest_age", "throughput", "time_to_drain"]
        assert [line.split() for line in lines[1:]] == [
            ["tasks", "default/default", "0", "0", "0", "0", "0", "-", "0.0/s", "0.0", "s"],
            ["tasks", "default/other", "0", "0", "0", "0", "0", "-", "0.0/s", "0.0", "s"],
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
        assert mail == {
            "queue": "mail", "ready": 1, "delayed": 1, "leased": 1, "dead": 1, "parked": 0,
            "throughput": 0.0, "time_to_drain": None, **NOT_PAUSED,
        }  # fmt: skip
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
        assert first.endswith(" s       0.0/s              -")
        assert {len(line) for line in (head, first, *others)} == {len(head)}


class TestPause:
    def test_queue_of_tasks(self) -> None:
        jobs.note.enqueue("later")
        assert (
            output_of("messaging_pause", "default", "--reason", "deploy", "--by", "ann")
            == "default is paused.\n"
        )
        again = output_of("messaging_pause", "default", "--reason", "deploy\nof v2", "--by", "ann")
        assert again == "default was paused already; the reason is new.\n"
        burst()
        assert jobs.notes == []
        [*_, line] = output_of("messaging_stats").splitlines()
        assert re.fullmatch(r"tasks default/default is paused since \S+ by ann: deploy\\nof v2", line)
        assert output_of("messaging_resume", "default") == "default is resumed.\n"
        assert output_of("messaging_resume", "default") == "default was not paused.\n"
        burst()
        assert jobs.notes == ["later"]

    def test_task(self) -> None:
        path = jobs.note.module_path
        assert output_of("messaging_pause", "--task", path) == f"{path} is paused.\n"
        jobs.note.enqueue("later")
        burst()
        row = json.loads(output_of("messaging_stats", "--json"))[0]
        assert (row["parked"], row["paused"], list(row["paused_tasks"])) == (1, None, [path])
        assert row["paused_tasks"][path]["by"] == getpass.getuser()
        assert output_of("messaging_resume", "--task", path) == f"{path} is resumed.\n"
        burst()
        assert jobs.notes == ["later"]

    def test_delay_queue(self) -> None:
        queue = DelayQueue("mail")
        queue.push("hello")
        output_of("messaging_pause", "mail", "--delay-queue")
        assert queue.pop() == []
        output_of("messaging_resume", "mail", "--delay-queue")
        assert len(queue.pop()) == 1

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (["nothing"], r"There is no queue 'nothing' \(found: default, other\)\."),
            (["nothing", "--delay-queue"], r"There is no queue 'nothing' \(found: none\)\."),
            ([], "Name a queue, or a task with --task"),
            (["q", "--task", "x", "--delay-queue"], "--task can't be used with --delay-queue"),
            (["default", "--task", "x"], "either queue or task"),
            (["--task", "tests.tasks.jobs.nothing"], "can't be imported"),
            (["default", "--backend", "other"], "TASKS has no entry 'other'"),
            (["default", "--reason", "x" * 1001], "1001 is over the limit of 1000"),
        ],
    )
    def test_unknown_names_are_errors(self, arguments: list[str], problem: str) -> None:
        with pytest.raises(CommandError, match=problem):
            output_of("messaging_pause", *arguments)


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
    ("command", "arguments", "error"),
    [
        ("messaging_stats", [], "Redis was not available"),
        ("redrive", ["mail"], "Redis was not available"),
        (
            "run_worker",
            ["--backend", "nowhere"],
            "TASKS has no entry 'nowhere' whose BACKEND is django_redis_messaging.tasks.RedisBackend "
            "(found: default).\n",
        ),
    ],
)
def test_an_error_is_one_line(
    command: str,
    arguments: list[str],
    error: str,
    own_server: EmbeddedServer,
    settings: Settings,
    monkeypatch: MonkeyPatch,
    django_db_blocker: DjangoDbBlocker,
    capsys: CaptureFixture[str],
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(loops, "exit_within", lambda seconds, code: codes.append(code))
    change(settings, COMMAND_DEADLINE=0.2)
    own_server.stop()
    loaded = load_command_class("django_redis_messaging", command)
    with pytest.raises(SystemExit) as exited, django_db_blocker.unblock():
        loaded.run_from_argv(["manage.py", command, *arguments])
    out, errors = capsys.readouterr()
    assert (exited.value.code, out) == (1, "")
    assert codes == ([1] if command == "run_worker" else [])
    assert errors.startswith(f"CommandError: {error}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [
        ("run_worker", "--queue nope", "no queue 'nope': add it to QUEUES"),
        ("run_worker", "--queue default --queue nope", "no queue 'nope'"),
        ("run_worker", "--queue nope=3", "no queue 'nope'"),
        (
            "run_worker",
            "--queue default=0",
            "--queue default=0: the weight must be a number between 1 and 1000",
        ),
        ("run_worker", "--queue default=", "the weight must be a number"),
        ("run_worker", "--queue default=1.5", "the weight must be a number"),
        ("run_worker", "--queue default=" + 5000 * "1", "the weight must be a number"),
        ("run_worker", "--queue =3", "the name of a queue is empty"),
        ("run_worker", "--queue default --queue default=3", "--queue must name each queue once."),
        ("run_worker", "--concurrency 0", "--concurrency must be between 1 and 1000"),
        ("run_worker", "--concurrency many", "invalid int value: 'many'"),
        ("run_worker", "--lease 0.5", "--lease must be between 1 and"),
        ("run_worker", "--lease nan", "--lease must be between 1 and"),
        ("run_worker", "--lease inf", "--lease must be between 1 and"),
        ("run_worker", "--drain -1", "--drain must be between 0 and"),
        ("run_worker", "--drain nan", "--drain must be between 0 and"),
        ("run_worker", "--max-tasks 0", "--max-tasks must be at least 1"),
        ("run_worker", "--max-memory -5", "--max-memory must be at least 1"),
        ("run_worker", "--max-time nan", "--max-time must be at least 1"),
        ("run_messaging", "--backend nowhere", "TASKS has no entry 'nowhere'"),
        ("run_messaging", "--queue nope", "no queue 'nope': add it to QUEUES"),
        ("run_messaging", "--concurrency 0", "--concurrency must be between 1 and 1000"),
        ("run_messaging", "--lease nan", "--lease must be between 1 and"),
        ("run_messaging", "--drain -1", "--drain must be between 0 and"),
        ("run_messaging", "--max-time 0", "--max-time must be at least 1"),
        ("redrive", "default --backend nowhere", "TASKS has no entry 'nowhere' whose BACKEND is"),
        ("redrive", "''", "name"),
        ("redrive", 300 * "x", "name"),
        ("redrive", "mail ''", "job_id"),
    ],
)
@pytest.mark.usefixtures("stop_immediately")
def test_invalid_options(command: str, arguments: str, text: str) -> None:
    with pytest.raises(CommandError) as error:
        call_command(command, *shlex.split(arguments))
    assert text in str(error.value)
    assert "\n" not in str(error.value)
