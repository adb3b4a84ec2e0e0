"""`manage.py run_messaging`: worker, poller and listener in one process."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import autoreload
from pytest import LogCaptureFixture, MonkeyPatch
from pytest_django import Settings

from django_redis_messaging import ConfigurationError, DelayQueue, Expired, Expiry, handlers, on_expiry
from django_redis_messaging.management import loops
from django_redis_messaging.management.loops import LoopGroup
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.poller import Poller

from ..support.engines import timers
from ..support.processes import Start
from ..support.workers import (
    DUMMY,
    PATIENCE,
    SUCCESSFUL,
    assert_released,
    ended,
    keys,
    server,
    state,
    until,
)
from . import jobs
from .conftest import SendWhen

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("short_polls")]

EXPIRIES = """
import time
from pathlib import Path
from django_redis_messaging import on_expiry

@on_expiry("order")
def unpaid(expired):
    Path(expired.payload["marker"]).write_text(expired.name)
    time.sleep(expired.payload["seconds"])
"""


def output_of(*arguments: str) -> str:
    """Run the command in this process and return its output."""
    out = io.StringIO()
    call_command("run_messaging", *arguments, stdout=out)
    return out.getvalue()


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
    mail = JobKeys(keys().tag.partition(":1:")[0], "queue", "mail").queue("jobs")
    until(lambda: server().zcard(mail.ready) == 1)
    Expiry("order").start("17", 0.01, {"marker": str(fired), "seconds": 0.5})
    result = jobs.pid_after.enqueue(str(begun), 0.5)
    until(lambda: fired.exists() and begun.exists())
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE) == ("Ended after 1 tasks and 1 timers.\n", "")
    assert process.returncode == 0
    assert ended(result).return_value == process.pid
    assert timers().stats("order")[:4] == [0, 0, 0, 0]


@pytest.fixture
def stop_immediately(monkeypatch: MonkeyPatch) -> None:
    """Simulate a signal before the start: the loops end at once."""
    monkeypatch.setattr(loops, "at_signals", lambda stop: stop())


@pytest.mark.usefixtures("send_when")
class TestLoops:
    @pytest.mark.timing
    def test_second_signal_releases_running_jobs(self, send_when: SendWhen) -> None:
        @on_expiry("order")
        def unpaid(expired: Expired) -> None:
            jobs.note.func("fired")
            jobs.go.wait(PATIENCE)

        Expiry("order").start("17", 0.01)
        result = jobs.wait.enqueue()
        send_when(lambda: len(jobs.notes) == 2, signal.SIGTERM, signal.SIGINT)
        assert output_of("--verbosity", "0", "--drain", "600") == ""
        assert_released(result)
        assert timers().stats("order")[:4] == [1, 0, 0, 0]

    def test_failed_loop_drains_the_others_and_is_an_error_of_the_command(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        def fail(_: Poller) -> None:
            until(lambda: state(result).status == "r")
            raise RuntimeError("a mistake of the site")

        monkeypatch.setattr(Poller, "run", fail)
        result, out = jobs.sleep.enqueue(0.2), io.StringIO()
        with pytest.raises(CommandError, match=r"Ended by an error of the poller; see the log\."):
            call_command("run_messaging", stdout=out)
        assert ended(result).status == SUCCESSFUL
        assert out.getvalue().endswith("Ended after 1 tasks and 0 timers.\n")
        assert "RuntimeError: a mistake of the site" in caplog.text

    @pytest.mark.usefixtures("stop_immediately")
    def test_no_worker_and_no_listener_is_no_error(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        assert output_of() == (
            "Running no worker (TASKS has no backend of this app); poller; no listener (no app has handlers "
            "in expiries.py). Ctrl-C ends it.\nEnded after 0 tasks and 0 timers.\n"
        )

    def test_one_worker_for_each_backend_of_this_app(self, settings: Settings) -> None:
        entry = settings.TASKS["default"]
        settings.TASKS = {
            "default": entry,
            "mail": {**entry, "QUEUES": ["letters"]},
            "no": {"BACKEND": DUMMY},
        }
        jobs.noop.enqueue()
        jobs.noop.using(backend="mail", queue_name="letters").enqueue()
        on_expiry("order")(print)
        lines = output_of("--max-time", "1")
        assert " of default, other; worker " in lines
        assert " of letters; poller; listener of timers of order. Ctrl-C" in lines
        assert "Ended after 2 tasks and 0 timers." in lines

    @pytest.mark.usefixtures("stop_immediately")
    def test_without_django_tasks(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(loops, "tasks_installed", lambda: False)
        assert output_of("--max-time", "1").startswith(
            "Running no worker (TASKS has no backend of this app); poller;"
        )
        with pytest.raises(CommandError, match="pip install"):
            output_of("--backend", "default")
        with pytest.raises(CommandError, match=r"found: none"):
            output_of("--queue", "default")

    def test_reload_leaves_signals_to_the_reloader(
        self, settings: Settings, monkeypatch: MonkeyPatch
    ) -> None:
        """The reloader runs the command in a thread, where signal handlers cannot be set."""
        settings.TASKS = {"default": {"BACKEND": DUMMY}}

        def run_with_reloader(run: Callable[..., None], **options: Any) -> None:
            with ThreadPoolExecutor() as pool:
                pool.submit(run, **options).result()

        monkeypatch.setattr(autoreload, "run_with_reloader", run_with_reloader)
        assert "Ended after 0 tasks" in output_of("--reload", "--max-time", "1")

    @pytest.mark.usefixtures("stop_immediately")
    def test_backend_and_queue_options(self, settings: Settings) -> None:
        entry = settings.TASKS["default"]
        settings.TASKS = {"default": entry, "mail": {**entry, "QUEUES": ["letters"]}}
        [line, _] = output_of("--backend", "default", "--queue", "other").splitlines()
        assert " of other; poller; no listener" in line
        assert "letters" not in line
        with pytest.raises(CommandError, match=r"name it with --backend \(found: default, mail\)"):
            output_of("--queue", "other")

    @pytest.mark.parametrize(
        ("option", "value", "text"),
        [
            ("--backend", "nowhere", "TASKS has no entry 'nowhere'"),
            ("--queue", "nope", "no queue 'nope': add it to QUEUES"),
            ("--concurrency", "0", "--concurrency must be at least 1"),
            ("--lease", "nan", "--lease between 1 and"),
            ("--drain", "-1", "--drain must be between 0 and"),
            ("--max-time", "0", "--max-time must be at least 1"),
        ],
    )
    def test_invalid_options(self, option: str, value: str, text: str) -> None:
        with pytest.raises(CommandError) as error:
            output_of(option, value)
        assert text in str(error.value)
        assert "\n" not in str(error.value)

    def test_conflicting_handlers(self, monkeypatch: MonkeyPatch) -> None:
        def discover() -> None:
            raise ConfigurationError("The namespace 'order' has a handler already.")

        monkeypatch.setattr(handlers, "discover", discover)
        with pytest.raises(CommandError, match="has a handler already"):
            output_of()


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


class TestTogether:
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
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        with ThreadPoolExecutor() as pool:
            sent = pool.submit(send)
            together.run()
            sent.result()
        assert waiting.stop_calls == 1
