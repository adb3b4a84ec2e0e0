"""Waiting for the end of tasks: what ends a wait, what it costs, and what happens when a wake-up is lost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from pytest_django import Settings

from django_redis_messaging.errors import InvalidArgument
from django_redis_messaging.tasks import await_for_result, wait_for_result
from django_redis_messaging.tasks import backend as waiting
from django_redis_messaging.tasks.compat import TaskResult, TaskResultDoesNotExist, TaskResultStatus

from ..support.workers import backend, burst, engine, keys, server, state, until
from . import jobs
from .test_worker import reset_jobs

__all__ = ["reset_jobs"]

READY, SUCCESSFUL, FAILED = TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
#: seconds to wait for an end; waits for results last longer, so that they don't end by themselves
PATIENCE = 30.0
#: waits for a result in one of the two forms
Wait = Callable[..., Awaitable[TaskResult]]


@pytest.fixture
def wait(call_style: str, closing: None) -> Wait:
    """wait_for_result, in the form of `call_style`."""

    async def do(result: TaskResult, *args: Any) -> TaskResult:
        if call_style == "awaiting":
            return await await_for_result(result, *args)
        return await asyncio.to_thread(wait_for_result, result, *args)

    return do


def copy_of(result: TaskResult) -> TaskResult:
    """The same result as another process reads it."""
    return backend().get_result(result.id)


@contextmanager
def waiters(*results: TaskResult) -> Iterator[list[Future[TaskResult]]]:
    """Wait for results in threads; the block begins when all of them are awaited."""
    with ThreadPoolExecutor(len(results)) as pool:
        futures = [pool.submit(wait_for_result, result, 2 * PATIENCE) for result in results]
        until(lambda: all(state(result).awaited for result in results))
        yield futures


class TestEnd:
    @pytest.fixture(autouse=True)
    def without_polls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only a wake-up ends a wait."""
        monkeypatch.setattr(waiting, "POLL_INTERVAL", 10 * PATIENCE)

    async def test_returns_the_refreshed_result_of_a_task_that_ends(
        self, server_kind: str, wait: Wait
    ) -> None:
        result = jobs.echo.enqueue(1)
        waiting = asyncio.ensure_future(wait(result, 2 * PATIENCE))
        await asyncio.to_thread(until, lambda: state(result).awaited)
        assert result.status == READY
        await asyncio.to_thread(burst)
        assert await waiting is result
        assert (result.status, result.return_value) == (SUCCESSFUL, [[1], {}])

    async def test_returns_at_once_if_the_task_has_ended(self, wait: Wait) -> None:
        done, failed, cancelled = jobs.echo.enqueue(), jobs.fail.enqueue(), jobs.echo.enqueue()
        assert cancelled.cancel()  # type: ignore[attr-defined]
        await asyncio.to_thread(burst)
        assert [(await wait(one, 0)).status for one in (done, failed, cancelled)] == [
            SUCCESSFUL,
            FAILED,
            FAILED,
        ]
        assert [one.exception_class.__name__ for one in (*failed.errors, *cancelled.errors)] == [
            "ValueError",
            "TaskCancelled",
        ]
        assert not list(server().scan_iter(match=f"{keys().tag}:ended:*"))

    @pytest.mark.parametrize("seconds", [0, 0.02, timedelta(milliseconds=20)])
    async def test_timeout_refreshes_the_result_and_raises(self, seconds: Any, wait: Wait) -> None:
        result = jobs.echo.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
        later = timezone.now() + timedelta(hours=2)
        assert copy_of(result).reschedule(later)  # type: ignore[attr-defined]
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=f"Task {result.id} has not ended within 0.*READY"):
            await wait(result, seconds)
        assert time.monotonic() - began >= (0.02 if seconds else 0)
        assert result.task.run_after == later

    @pytest.mark.parametrize("end", ["fail", "cancel", "lose"])
    def test_each_end_wakes(self, end: str, settings: Settings) -> None:
        result = (jobs.fail if end == "fail" else jobs.echo).using(max_attempts=1).enqueue()
        with waiters(result) as [future]:
            if end == "fail":
                burst()
            elif end == "cancel":
                assert copy_of(result).cancel()  # type: ignore[attr-defined]
            else:
                engine().claim(["default"], 1, 1)
                until(lambda: engine().sweep(["default"]) is None)
            assert future.result(PATIENCE).status == FAILED
        assert not state(result).awaited
        assert 0 < server().pttl(keys().ended(result.id)) <= 10_000

    @pytest.mark.parametrize("end", ["purge", "no result"])
    def test_result_that_disappears_raises(self, end: str, settings: Settings) -> None:
        if end == "no result":
            settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"RESULT_TTL": 0}}}
        result = jobs.echo.enqueue()
        with waiters(result) as [future]:
            if end == "purge":
                engine().purge("default")
            else:
                burst()
            with pytest.raises(TaskResultDoesNotExist, match=result.id):
                future.result(PATIENCE)

    def test_wait_goes_on_through_retries(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "JOB_BACKOFF": 0.002}
        result = jobs.succeed_on_third_attempt.enqueue()
        with waiters(result) as [future]:
            until(lambda: burst() and future.done())
            assert future.result().return_value == 3

    def test_redriven_task_is_awaited_anew(self) -> None:
        result = jobs.fail.enqueue()
        with waiters(result) as [future]:
            burst()
            assert future.result(PATIENCE).status == FAILED
        engine().redrive("default", None)
        assert not state(result).awaited
        with waiters(result) as [future]:
            before = waits_sent(server())
            with pytest.raises(TimeoutError):
                wait_for_result(result, 0.05)
            assert waits_sent(server()) - before < 10, "the first end wakes nobody"
            burst()
            assert len(future.result(PATIENCE).errors) == 2

    @pytest.mark.django_db
    def test_alias_waits_for_the_task_with_its_unique_key(
        self, django_capture_on_commit_callbacks: Callable[..., Any]
    ) -> None:
        winner = jobs.unique_echo.enqueue("same")
        with django_capture_on_commit_callbacks(execute=True):
            sent = jobs.unique_echo.using(on_commit=True).enqueue("same")
            loser = replace(sent)
        assert winner.id == sent.id != loser.id
        with waiters(winner, loser) as futures:
            burst()
            assert [one.result(PATIENCE).return_value for one in futures] == [[["same"], {}]] * 2

    @pytest.mark.django_db
    def test_unknown_results_and_invalid_arguments_raise(self) -> None:
        result = jobs.echo.enqueue()
        with transaction.atomic():
            unsent = jobs.echo.using(on_commit=True).enqueue()
            with pytest.raises(TaskResultDoesNotExist, match=unsent.id):
                wait_for_result(unsent, 1)
        with pytest.raises(InvalidArgument, match="timeout must be 0 s or more, not -1 s"):
            wait_for_result(result, -1)
        with pytest.raises(TypeError, match="timeout must be seconds or a timedelta, not str"):
            wait_for_result(result, "1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="result must be the result of a task of a RedisBackend, not str"):
            wait_for_result(result.id)  # type: ignore[arg-type]


@pytest.mark.timing
class TestCost:
    def test_wake_up_takes_about_a_millisecond(self) -> None:
        delays = []
        for _ in range(20):
            result = jobs.echo.enqueue()
            with waiters(result) as [future]:
                until(lambda: server().info("clients")["blocked_clients"])
                cancelled = copy_of(result)
                woken: list[float] = []
                future.add_done_callback(lambda _, woken=woken: woken.append(time.perf_counter()))
                began = time.perf_counter()
                assert cancelled.cancel()  # type: ignore[attr-defined]
                future.result(PATIENCE)
                until(lambda woken=woken: woken)
                delays.append(woken[0] - began)
        assert statistics.median(delays) < 0.01


def waits_sent(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval", "xread"))


@pytest.mark.promise
class TestLostWakeUps:
    def test_cut_connections_are_replaced(self) -> None:
        result = jobs.echo.enqueue()
        with waiters(result) as [future]:
            until(lambda: server().info("clients")["blocked_clients"])
            server().client_kill_filter(_type="normal", skipme=True)
            burst()
            assert future.result(PATIENCE).status == SUCCESSFUL

    def test_waiting_client_polls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As after a failover to a replica that does not know yet that a client waits."""
        monkeypatch.setattr(waiting, "POLL_INTERVAL", 0.2)
        result = jobs.echo.enqueue()
        with waiters(result) as [future]:
            text = server().hget(keys().states, result.id)
            *fields, _, unique = text.split(b" ")
            server().hset(keys().states, result.id, b" ".join([*fields, b"0", unique]))
            until(lambda: state(result).awaited)
            server().hset(keys().states, result.id, b" ".join([*fields, b"0", unique]))
            burst()
            assert future.result(PATIENCE).status == SUCCESSFUL
