"""`manage.py run_messaging`: worker, poller and listener in one process."""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import autoreload
from pytest_django import Settings

from django_redis_messaging import ConfigurationError, DelayQueue, Expiry, handlers, on_expiry
from django_redis_messaging.management import loops
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.loop_group import LoopGroup
from django_redis_messaging.services.polling import Poller
from django_redis_messaging.tasks.compat import BaseTaskBackend
from tests.engines import timers
from tests.processes import PATIENCE, Start, commands
from tests.tasks import jobs
from tests.tasks.working import ended, keys, server, state, until

#: a backend that is not ours: of Django, or of the backport
DUMMY = BaseTaskBackend.__module__.replace(".base", ".dummy.DummyBackend")
EXPIRIES = """
import time
from pathlib import Path
from django_redis_messaging import on_expiry
from django_redis_messaging.services.polling import register

@on_expiry("order")
def unpaid(expired):
    Path(expired.payload["marker"]).write_text(expired.name)
    time.sleep(expired.payload["seconds"])

@register
def rounds():
    return [broken]

def broken():
    if Path({switch!r}).exists():
        raise RuntimeError("a mistake of the site's own")
    return 0.05
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command for a site that has tasks, and handlers in an app `shop`."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "expiries.py").write_text(EXPIRIES.format(switch=str(tmp_path / "switch")))
    with commands() as run:
        yield lambda *words: run("run_messaging", *words, apps="shop", path=tmp_path)


@pytest.fixture
def signals() -> Iterator[None]:
    """Signals do afterwards what they did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def said(*words: str) -> str:
    """What it prints, in this process."""
    out = io.StringIO()
    call_command("run_messaging", *words, stdout=out)
    return out.getvalue()


class TestAsAProcess:
    def test_it_does_the_work_of_all_three_and_drains_at_the_first_signal(
        self, start: Start, tmp_path: Path
    ) -> None:
        """The timer's handler and the task are in their midst when the signal comes."""
        fired, begun = tmp_path / "fired", tmp_path / "begun"
        DelayQueue("mail").push("hello", delay=0.1)
        process = start("--concurrency", "2")
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

    @pytest.mark.timing
    def test_the_second_signal_gives_back_what_runs(self, start: Start, tmp_path: Path) -> None:
        fired, begun = tmp_path / "fired", tmp_path / "begun"
        Expiry("order").start("17", 0.01, {"marker": str(fired), "seconds": 600})
        result = jobs.pid_after.enqueue(str(begun), 600.0)
        process = start("--verbosity", "0", "--drain", "600")
        until(lambda: fired.exists() and begun.exists())
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE)[0] == ""
        assert process.returncode == 0
        assert (state(result).status, state(result).attempts) == ("w", 0)
        assert timers().stats("order")[:4] == [1, 0, 0, 0]

    def test_when_one_dies_the_others_drain_and_the_exit_code_says_so(
        self, start: Start, tmp_path: Path
    ) -> None:
        begun = tmp_path / "begun"
        result = jobs.pid_after.enqueue(str(begun), 1.0)
        process = start()
        until(begun.exists)
        (tmp_path / "switch").touch()
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert "RuntimeError: a mistake of the site's own" in errors
        assert errors.endswith("CommandError: Ended by an error of the poller; see the log.\n")
        assert out.endswith("Ended after 1 tasks and 0 timers.\n")
        assert ended(result).return_value == process.pid


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal has come before it runs: it ends when it has begun."""
    monkeypatch.setattr(loops, "at_signals", lambda stop: stop())


@pytest.mark.usefixtures("signals")
class TestWhatThereIsToRun:
    @pytest.mark.usefixtures("at_once")
    def test_nothing_is_said_and_is_no_error(self, settings: Settings) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        assert said() == (
            "Running no worker (TASKS has no backend of this app); poller; no listener (no app has handlers "
            "in expiries.py). Ctrl-C ends it.\nEnded after 0 tasks and 0 timers.\n"
        )

    def test_a_worker_for_each_backend_of_this_app(self, settings: Settings) -> None:
        entry = settings.TASKS["default"]
        settings.TASKS = {
            "default": entry,
            "mail": {**entry, "QUEUES": ["letters"]},
            "no": {"BACKEND": DUMMY},
        }
        jobs.noop.enqueue()
        jobs.noop.using(backend="mail", queue_name="letters").enqueue()
        on_expiry("order")(print)
        lines = said("--max-time", "1.5")
        assert " of default, other; worker " in lines
        assert " of letters; poller; listener of timers of order. Ctrl-C" in lines
        assert "Ended after 2 tasks and 0 timers." in lines

    @pytest.mark.usefixtures("at_once")
    def test_without_djangos_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loops, "tasks_installed", lambda: False)
        assert said("--max-time", "1").startswith(
            "Running no worker (TASKS has no backend of this app); poller;"
        )
        with pytest.raises(CommandError, match="pip install"):
            said("--backend", "default")
        with pytest.raises(CommandError, match=r"found: none"):
            said("--queue", "default")

    def test_an_error_of_one_is_an_error(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.TASKS = {"default": {"BACKEND": DUMMY}}
        monkeypatch.setattr(Poller, "run", lambda self: 1 / 0)
        with pytest.raises(CommandError, match="Ended by an error of the poller; see the log"):
            said()

    def test_with_reload_it_leaves_signals_to_the_reloader(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which runs it in a thread, where nobody may ask for signals."""
        settings.TASKS = {"default": {"BACKEND": DUMMY}}

        def run_with_reloader(run: Callable[..., None], **options: Any) -> None:
            with ThreadPoolExecutor() as pool:
                pool.submit(run, **options).result()

        monkeypatch.setattr(autoreload, "run_with_reloader", run_with_reloader)
        assert "Ended after 0 tasks" in said("--reload", "--max-time", "1")

    @pytest.mark.usefixtures("at_once")
    def test_one_backend_and_one_queue_where_they_are_named(self, settings: Settings) -> None:
        entry = settings.TASKS["default"]
        settings.TASKS = {"default": entry, "mail": {**entry, "QUEUES": ["letters"]}}
        [line, _] = said("--backend", "default", "--queue", "other").splitlines()
        assert " of other; poller; no listener" in line
        assert "letters" not in line
        with pytest.raises(CommandError, match=r"name it with --backend \(found: default, mail\)"):
            said("--queue", "other")

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (["--backend", "nowhere"], "TASKS has no entry 'nowhere'"),
            (["--queue", "nope"], "no queue 'nope': add it to QUEUES"),
            (["--concurrency", "0"], "--concurrency must be at least 1"),
            (["--lease", "nan"], "--lease between 1 and"),
            (["--drain", "-1"], "--drain must be between 0 and"),
            (["--max-time", "0"], "--max-time must be at least 1"),
        ],
    )
    def test_bad_options(self, words: list[str], text: str) -> None:
        with pytest.raises(CommandError) as error:
            said(*words)
        assert text in str(error.value)
        assert "\n" not in str(error.value)

    def test_handlers_that_contradict_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def discover() -> None:
            raise ConfigurationError("The namespace 'order' has a handler already.")

        monkeypatch.setattr(handlers, "discover", discover)
        with pytest.raises(CommandError, match="has a handler already"):
            said()


class Waiting:
    """A loop that runs until it was stopped `stops` times."""

    def __init__(self, stops: int = 1) -> None:
        self.stops = stops
        self.told = 0
        self._woken = threading.Semaphore(0)

    def run(self) -> None:
        for _ in range(self.stops):
            assert self._woken.acquire(timeout=PATIENCE)

    def stop(self) -> None:
        self.told += 1
        self._woken.release()


class Ending:
    """A loop that ends at once, by an error or as one that has logged it."""

    def __init__(self, error: Exception | None = None, *, failed: bool = False) -> None:
        self.error, self.failed = error, failed

    def run(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None: ...


class TestTogether:
    def test_a_stop_is_for_all_and_the_second_too(self) -> None:
        one, other = Waiting(1), Waiting(2)
        together = LoopGroup({"one": one, "other": other})
        together.stop()
        together.stop()
        together.run()
        assert (one.told, other.told) in {(1, 2), (2, 2)}
        assert together.failed == []

    @pytest.mark.parametrize(
        ("ending", "failed"),
        [(Ending(), []), (Ending(ValueError("x")), ["ending"]), (Ending(failed=True), ["ending"])],
    )
    def test_one_that_ends_takes_the_others_along_gently(
        self, ending: Ending, failed: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """They are stopped once: they drain. That one of them ends then stops nobody again."""
        others = Waiting(), Waiting(), Waiting()
        together = LoopGroup({"ending": ending, "a": others[0], "b": others[1], "c": others[2]})
        together.run()
        assert [other.told for other in others] == [1, 1, 1]
        assert together.failed == failed
        assert ("The ending failed" in caplog.text) == (ending.error is not None)

    @pytest.mark.timing
    def test_after_its_time_it_stops(self) -> None:
        waiting, began = Waiting(), time.monotonic()
        together = LoopGroup({"waiting": waiting}, max_time=0.2)
        together.run()
        assert waiting.told == 1
        assert 0.2 <= time.monotonic() - began < PATIENCE

    @pytest.mark.timing
    def test_who_does_not_end_at_the_second_stop_is_left_behind(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Such as one that waits for a Redis that does not answer."""
        monkeypatch.setattr("django_redis_messaging.services.loop_group.STOP_TIMEOUT", 0.1)
        one, other = Waiting(3), Waiting(2)
        together = LoopGroup({"one": one, "other": other})
        together.stop()
        together.stop()
        together.run()
        assert (one.told, other.told) == (2, 2)
        assert "Exiting though these loops have not ended: one." in caplog.text
        one.stop()

    @pytest.mark.usefixtures("signals")
    @pytest.mark.timing
    def test_a_signal_that_interrupts_nothing_is_seen_all_the_same(self) -> None:
        """Such as one that comes just before it begins to wait; here it comes to another thread."""
        loops.at_signals((together := LoopGroup({"waiting": (waiting := Waiting())})).stop)

        def send() -> None:
            until(lambda: any(thread.name == "waiting" for thread in threading.enumerate()))
            time.sleep(
                0.1
            )  # whether it waits by now can't be seen: the test may be too kind, never too strict
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

        with ThreadPoolExecutor() as pool:
            sent = pool.submit(send)
            together.run()
            sent.result()
        assert waiting.told == 1

    def test_of_nothing_it_ends_at_once(self) -> None:
        LoopGroup({}).run()
