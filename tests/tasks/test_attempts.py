"""An attempt at a task: its timeout, what it may raise and return, what it leaves in its thread, and its
connections to databases."""

from __future__ import annotations

import asyncio
import decimal
import io
import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from asgiref.local import Local
from django.core.cache import caches
from django.db import connections
from django.urls import get_script_prefix, get_urlconf, set_script_prefix, set_urlconf
from django.utils import timezone, translation
from pytest import LogCaptureFixture, MonkeyPatch

from django_redis_messaging.core.operations import format_traceback
from django_redis_messaging.services.jobs import executor, threads
from django_redis_messaging.services.jobs.threads import EventLoop, EventLoopEnded
from django_redis_messaging.tasks import records, task
from django_redis_messaging.tasks.compat import task_backends, task_started

from ..support.server import until
from ..support.unusual_errors import AttributesExit, Nameless, TextExits, deep_group, with_notes
from ..support.workers import (
    FAILED,
    PATIENCE,
    SUCCESSFUL,
    at_work,
    burst,
    counts,
    ended,
    errors_of,
    receiving,
    running,
    worker,
)
from . import jobs
from .conftest import AddModule, Configure

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("short_polls")]


@pytest.mark.timing
class TestTimeouts:
    @pytest.mark.parametrize("task", [jobs.sleep, jobs.async_sleep])
    def test_task_fails_after_its_timeout(self, task: Any, configure: Configure) -> None:
        """Or that of the backend."""
        configure(TIMEOUT=0.1)
        results = [task.using(timeout=0.1).enqueue(20), task.enqueue(20)]
        within, after = task.using(timeout=10).enqueue(0.15), jobs.note.enqueue("after")
        burst(lease=30)
        assert ended(within).status == ended(after).status == SUCCESSFUL
        for result in results:
            assert errors_of(result) == ["TaskTimeout"]
            assert result.finished_at - result.started_at < timedelta(seconds=10)

    def test_a_long_timeout_does_not_delay_a_shorter_one(self, monkeypatch: MonkeyPatch) -> None:
        waits: list[float] = []
        with at_work(concurrency=2) as runner:
            until(lambda: runner._placement.host)
            running = runner._placement.host.executor
            seconds_to_check = running._seconds_to_check

            def record_wait() -> float:
                waits.append(seconds_to_check())
                return waits[-1]

            monkeypatch.setattr(running, "_seconds_to_check", record_wait)
            jobs.wait.using(timeout=60).enqueue()
            until(lambda: jobs.notes)
            before = len(waits)
            until(lambda: len(waits) > before)  # the next check for timeouts is planned
            result = jobs.sleep.using(timeout=0.1).enqueue(20)
            assert ended(result).status == FAILED
            jobs.go.set()
        assert result.finished_at - result.started_at < timedelta(seconds=5)

    def test_short_timeout_does_not_wait_for_the_next_check(self, monkeypatch: MonkeyPatch) -> None:
        monkeypatch.setattr(executor, "TIMEOUT_INTERVAL", 10.0)
        monkeypatch.setattr(executor, "IDLE_INTERVAL", 10.0)
        with at_work():
            jobs.note_timeout.using(timeout=0.1).enqueue(20)
            until(lambda: jobs.notes)
        assert jobs.notes[0] < 5

    @pytest.mark.parametrize("part", ["import", "receiver"])
    def test_it_is_that_of_the_call(self, part: str, add_module: AddModule, monkeypatch: MonkeyPatch) -> None:
        def receive(**_: object) -> None:
            if part == "receiver":
                time.sleep(0.3)

        for interval in ("TIMEOUT_INTERVAL", "IDLE_INTERVAL"):
            monkeypatch.setattr(executor, interval, 0.01)
        imports = f"import time\nfrom {jobs.__name__} import task\n\ntime.sleep(0.3)\n\n"
        add_module(f"slow_{part}", f"{imports}@task\ndef noop():\n    time.sleep(0.05)\n")
        result = jobs.noop.using(timeout=0.2).enqueue()
        jobs.move(result, f"slow_{part}")
        with receiving(task_started, receive):
            burst()
        assert counts() == [0, 0, 0, 0]  # a task that failed would be dead


class TestExceptions:
    def test_stopped_event_loop_continues(self, caplog: LogCaptureFixture) -> None:
        results = [jobs.stop_event_loop.enqueue(), jobs.aecho.enqueue()]
        burst()
        assert {ended(result).status for result in results} == {SUCCESSFUL}
        assert "stopped the event loop" in caplog.text

    def test_a_failure_is_formatted_once(self, monkeypatch: MonkeyPatch) -> None:
        formatted: list[BaseException] = []

        def format_and_note(error: BaseException) -> str:
            formatted.append(error)
            return format_traceback(error)

        monkeypatch.setattr(records, "format_traceback", format_and_note)
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.formatter = logging.Formatter()
        monkeypatch.setattr(handler.formatter, "formatException", lambda _: "formatted again")
        logging.getLogger("django.tasks").addHandler(handler)
        result = jobs.fail.enqueue()
        try:
            burst()
        finally:
            logging.getLogger("django.tasks").removeHandler(handler)
        assert len(formatted) == 1
        [error] = ended(result).errors
        assert error.traceback in stream.getvalue()
        assert "formatted again" not in stream.getvalue()
        assert "in fail" in error.traceback and "services/jobs" not in error.traceback

    def test_an_event_loop_that_fails_before_it_gets_a_coroutine(self, monkeypatch: MonkeyPatch) -> None:
        """It is closed when the thread of the coroutine, which saw it running, goes on."""
        event_loop = EventLoop()
        event_loop.run(asyncio.sleep(0))

        def fail() -> asyncio.AbstractEventLoop:
            assert event_loop._started is not None
            loop, thread = event_loop._started
            monkeypatch.setattr(event_loop, "_run_until_stopped", broken)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE)
            return loop

        def broken(loop: asyncio.AbstractEventLoop) -> None:
            raise OSError("the selector is broken")

        monkeypatch.setattr(event_loop, "_started_loop", fail)
        with pytest.raises(EventLoopEnded):
            event_loop.run(asyncio.sleep(0))
        monkeypatch.setattr(event_loop, "_failed", False)
        with pytest.raises(EventLoopEnded):
            event_loop.start([(asyncio.sleep(0), asyncio.sleep(0), copy_context())])


@dataclass(frozen=True)
class Frozen(Exception):
    """Its attributes can't be set."""

    code: int = 7


class SettingExits(Exception):
    """Setting an attribute ends the process."""

    def __setattr__(self, name: str, value: object) -> None:
        raise SystemExit(6)


class AllAttributesExit(Exception):
    """Reading any attribute ends the process."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(5)


class ClassExits(Exception):
    """So isinstance() ends the process."""

    @property
    def __class__(self) -> Any:
        raise SystemExit(4)


class TracebackIsText(Exception):
    """Its traceback is hidden."""

    __traceback__ = "text"


class DirExits:
    """An object for which no similar attribute can be suggested."""

    def __dir__(self) -> list[str]:
        raise SystemExit(9)


def with_causes_in_a_cycle() -> BaseException:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


def deep_causes() -> BaseException:
    error = ValueError(1)
    for number in range(5000):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    return error


def recurse() -> BaseException:
    return recurse()


def deep_list() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def raised_by(operation: Callable[[], object]) -> Callable[[], BaseException]:
    """The exception of a builtin operation."""

    def make() -> BaseException:
        try:
            operation()
        except BaseException as error:
            return error
        raise AssertionError

    return make


#: exceptions whose attributes can't be used
CLOSED: dict[str, Callable[[], BaseException]] = {
    "frozen": Frozen,
    "setting exits": SettingExits,
    "all attributes exit": AllAttributesExit,
    "class exits": ClassExits,
    "traceback is text": TracebackIsText,
}
#: what tasks raise
RAISED: dict[str, Callable[[], BaseException]] = {
    "syntax error with a wrong line": lambda: SyntaxError("x", ("f", 1, 1, 12345)),
    "syntax error with a wrong offset": lambda: SyntaxError("x", ("f", 1, "a", "text")),
    "no module": lambda: type("X", (Exception,), {"__module__": None})("x"),
    "module is a number": lambda: type("X", (Exception,), {"__module__": 3})("x"),
    "name with a surrogate": lambda: type("\ud800", (Exception,), {})("x"),
    "text exits": TextExits,
    "text with surrogates": lambda: ValueError("\ud800 \x00 \n"),
    "nameless": Nameless,
    "notes": with_notes,
    "attributes exit": lambda: AttributesExit("x"),
    "causes in a cycle": with_causes_in_a_cycle,
    "large group": lambda: ExceptionGroup("g", [ValueError(number) for number in range(10_000)]),
    "deep group": deep_group,
    "deep causes": deep_causes,
    "suggestion exits": raised_by(lambda: DirExits().missing),
    "recursion": recurse,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "KeyboardInterrupt": KeyboardInterrupt,
    "memory": raised_by(lambda: b"x" * (1 << 62)),
    **CLOSED,
}
#: what tasks return
RETURNED: dict[str, Callable[[], Any]] = {
    "too large": lambda: "x" * 600_000,
    "not a number": lambda: float("nan"),
    "object": object,
    "cycle": cyclic_list,
    "deep": deep_list,
    "surrogate": lambda: "\ud800",
    "large number": lambda: 10**5000,
}


@task
def raise_unusual(name: str) -> None:
    raise RAISED[name]()


@task
async def async_raise_unusual(name: str) -> None:
    raise RAISED[name]()


@task(timeout=0.02)
def raise_unusual_when_interrupted(name: str) -> None:
    try:
        jobs.sleep.func(20)
    except BaseException:
        raise RAISED[name]() from None


@task
def return_unusual(name: str) -> Any:
    return RETURNED[name]()


@task
async def raise_cancelled() -> None:
    raise asyncio.CancelledError


@task
async def close_event_loop() -> None:
    asyncio.get_running_loop().close()


class TestUnusualFailures:
    """Exceptions and values that can't be formatted or stored."""

    def test_they_end_no_lane(self, caplog: LogCaptureFixture) -> None:
        caplog.set_level(logging.CRITICAL, "django.tasks")
        calls = [(raise_unusual, name) for name in RAISED]
        calls += [(async_raise_unusual, name) for name in CLOSED]
        calls += [(raise_unusual_when_interrupted, name) for name in CLOSED]
        calls += [(return_unusual, name) for name in RETURNED]
        results = [called.enqueue(name) for called, name in calls]
        results += [raise_cancelled.enqueue(), close_event_loop.enqueue()]
        after = jobs.noop.enqueue()
        runner = burst(concurrency=1)
        assert (runner.failed, runner.done) == (False, len(results) + 1)
        assert ended(after).status == SUCCESSFUL
        for result in results:
            [error] = ended(result).errors
            assert result.status == FAILED
            assert error.traceback and error.exception_class_path

    def test_their_logs_end_no_lane(self) -> None:
        """A handler that formats the exception, in the receiver of `task_finished`."""
        handler = logging.StreamHandler(open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
        log = logging.getLogger("django.tasks")
        log.addHandler(handler)
        try:
            for name in ("text exits", "nameless", "attributes exit", "syntax error with a wrong line"):
                raise_unusual.enqueue(name)
            runner = burst(concurrency=1)
        finally:
            log.removeHandler(handler)
            handler.stream.close()
        assert (runner.failed, runner.done) == (False, 4)


variable: ContextVar[str] = ContextVar("variable", default="clean")
local = Local()
CLEAN = ["en-us", "UTC", 28, None, "/", "clean", "clean"]


def change_state(**_: object) -> None:
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 3
    set_urlconf("tests.other_urls")
    set_script_prefix("/other/")
    variable.set("dirty")
    local.value = "dirty"


@task
def change(fails: bool) -> None:
    change_state()
    if fails:
        raise ValueError("after a change")


@task
async def async_change(fails: bool) -> None:
    change_state()


@task
def describe(*_: object) -> list[Any]:
    return [
        translation.get_language(),
        timezone.get_current_timezone_name(),
        decimal.getcontext().prec,
        get_urlconf(),
        get_script_prefix(),
        variable.get(),
        getattr(local, "value", "clean"),
    ]


@task
async def async_describe() -> list[Any]:
    return list(describe.func())


@task
def note_backends() -> None:
    jobs.notes.append((caches["messaging"], task_backends["default"]))


class TestContext:
    """What an attempt leaves in its thread is not seen by the next one."""

    @pytest.mark.parametrize("describing", [describe, async_describe])
    @pytest.mark.parametrize(("changing", "fails"), [(change, False), (change, True), (async_change, False)])
    def test_the_next_attempt_is_not_affected(self, changing: Any, fails: bool, describing: Any) -> None:
        changing.enqueue(fails)
        result = describing.enqueue()
        burst()
        assert ended(result).return_value == CLEAN

    def test_changes_of_receivers_affect_their_attempt_only(self) -> None:
        def receive(task_result: Any, **_: object) -> None:
            if task_result.args == [1]:
                change_state()

        with receiving(task_started, receive):
            changed, clean = (describe.enqueue(number) for number in (1, 2))
            burst()
        assert ended(changed).return_value[0] == "de"
        assert ended(clean).return_value == CLEAN

    def test_attempts_share_the_backends_of_their_thread(self) -> None:
        for _ in range(2):
            note_backends.enqueue()
        burst()
        first, second = jobs.notes
        assert [one is other for one, other in zip(first, second, strict=True)] == [True, True]


class TestCoroutines:
    def test_they_run_concurrently_on_one_loop(self) -> None:
        results = [jobs.loop_and_meet.enqueue() for _ in range(3)]
        burst(concurrency=3)
        [(_, thread)] = {tuple(ended(result).return_value) for result in results}
        assert thread != threading.get_ident()

    @pytest.mark.django_db(transaction=True)
    def test_connections_are_closed_after_their_maximum_age(self, monkeypatch: MonkeyPatch) -> None:
        for seconds in (0, 60, 0.05):
            monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", seconds)
            with at_work():
                for called in (
                    jobs.note_connection,
                    jobs.async_wait_a_moment,
                    jobs.note_connection,
                    jobs.close_connection,
                ):
                    ended(called.enqueue())
        kept = [first is second for first, second in zip(jobs.notes[::2], jobs.notes[1::2], strict=True)]
        assert kept == [False, True, False]

    @pytest.mark.django_db(transaction=True)
    def test_broken_connection_is_replaced(self) -> None:
        with at_work():
            ended(jobs.break_connection.enqueue())
            result = ended(jobs.query.enqueue())
        assert result.return_value == 7

    @pytest.mark.django_db(transaction=True)
    def test_task_that_ends_closes_no_connection_of_others(self) -> None:
        result = jobs.query_while_others_end.enqueue()
        with at_work(concurrency=2):
            until(lambda: jobs.notes)
            assert ended(jobs.query.enqueue()).return_value == 7
            jobs.go.set()
            assert ended(result).return_value == 2

    @pytest.mark.timing
    @pytest.mark.django_db(transaction=True)
    def test_abandoned_call_delays_no_other_task(self, monkeypatch: MonkeyPatch) -> None:
        """Its task timed out; the thread in which it waits is the one of the lane's next task, at first."""
        monkeypatch.setattr(threads, "ABANDONED_AFTER", 0.05)
        first = jobs.wait_in_sync_call.using(timeout=0.1).enqueue()
        second = jobs.query.enqueue()
        with at_work():
            assert ended(second).return_value == 7
            assert second.finished_at - second.enqueued_at < timedelta(seconds=10)
            assert (ended(first).status, jobs.go.is_set()) == (FAILED, False)
            jobs.go.set()

    @pytest.mark.timing
    @pytest.mark.django_db(transaction=True)
    def test_too_many_abandoned_threads_end_the_worker(
        self, monkeypatch: MonkeyPatch, caplog: LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(threads, "MAX_ABANDONED", 1)
        monkeypatch.setattr(threads, "ABANDONED_AFTER", 0.05)
        for _ in range(3):
            jobs.wait_in_sync_call.using(timeout=0.05).enqueue()
        runner = worker()
        with running(runner.run, runner.stop) as thread:
            thread.join(PATIENCE / 4)
            assert not thread.is_alive()
            jobs.go.set()
        assert (runner.failed, counts()[2]) == (True, 0)
        assert "1 such threads now" in caplog.text and "2 such threads now" in caplog.text
