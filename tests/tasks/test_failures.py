"""Attempts that fail in unusual ways: with exceptions and values that can't be formatted or stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from django_redis_messaging.core.operations import format_traceback
from django_redis_messaging.services.jobs.running import NotStarted
from django_redis_messaging.services.jobs.threads import EventLoop, EventLoopEnded, SyncThread
from django_redis_messaging.tasks import records, task
from django_redis_messaging.tasks.compat import TaskResultStatus
from tests.support.unusual_errors import AttributesExit, Nameless, TextExits, deep_group, with_notes

from ..support.workers import PATIENCE, burst, ended
from . import jobs

pytestmark = pytest.mark.one_server


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

    __traceback__ = "text"  # type: ignore[assignment]


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


def nested_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def failing(name: str) -> Callable[[], BaseException]:
    """Make the exception of a builtin operation."""

    def make() -> BaseException:
        try:
            {"attribute": lambda: DirExits().missing, "memory": lambda: b"x" * (1 << 62)}[name]()  # type: ignore[attr-defined]
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
    "suggestion exits": failing("attribute"),
    "recursion": recurse,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "KeyboardInterrupt": KeyboardInterrupt,
    "memory": failing("memory"),
    "not started": lambda: NotStarted(None),
    **CLOSED,
}
#: what tasks return
RETURNED: dict[str, Callable[[], Any]] = {
    "too large": lambda: "x" * 600_000,
    "not a number": lambda: float("nan"),
    "object": object,
    "cycle": cyclic_list,
    "deep": lambda: nested_list(100_000),
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


CALLS = [
    *((raise_unusual, [name]) for name in RAISED),
    *(
        (raising, [name])
        for raising in (async_raise_unusual, raise_unusual_when_interrupted)
        for name in CLOSED
    ),
    *((return_unusual, [name]) for name in RETURNED),
    (raise_cancelled, []),
    (jobs.async_raise_system_exit, []),
    (close_event_loop, []),
]


def test_unusual_failures_end_no_lane(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "django.tasks")
    results = [called.enqueue(*args) for called, args in CALLS]
    after = jobs.noop.enqueue()
    runner = burst(concurrency=1)
    assert (runner.failed, runner.done) == (False, len(CALLS) + 1)
    assert ended(after).status == TaskResultStatus.SUCCESSFUL
    for result in results:
        [error] = ended(result).errors
        assert result.status == TaskResultStatus.FAILED
        assert error.traceback and error.exception_class_path


def test_logs_of_unusual_failures_end_no_lane() -> None:
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


def test_a_failure_is_formatted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    formatted: list[BaseException] = []
    monkeypatch.setattr(
        records, "format_traceback", lambda error: formatted.append(error) or format_traceback(error)
    )
    result = jobs.fail.enqueue()
    burst()
    assert len(formatted) == 1
    [error] = ended(result).errors
    assert "in fail" in error.traceback and "services/jobs" not in error.traceback


def test_an_event_loop_that_fails_before_it_gets_a_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed when the thread of the coroutine, which saw it running, goes on."""
    event_loop = EventLoop()
    event_loop.run(asyncio.sleep(0))
    sync_thread = event_loop._sync_thread

    def fail() -> SyncThread:
        assert event_loop._started is not None
        loop, thread = event_loop._started
        monkeypatch.setattr(event_loop, "_run_until_stopped", broken)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        return sync_thread()

    def broken(loop: asyncio.AbstractEventLoop) -> None:
        raise OSError("the selector is broken")

    monkeypatch.setattr(event_loop, "_sync_thread", fail)
    with pytest.raises(EventLoopEnded):
        event_loop.run(asyncio.sleep(0))
