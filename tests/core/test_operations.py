"""Blocking and async operations, their replies, and observers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_messaging import conf
from django_redis_messaging.core import clients, operations
from django_redis_messaging.core.connection import run_blocking
from django_redis_messaging.core.operations import Command, Service, Steps, asynchronous, operation
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.errors import ConfigurationError, MessagingError
from tests.core.conftest import Connect
from tests.support.example_service import Things

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("closing")]


def test_the_blocking_version_returns_the_result_of_the_body(things: Things) -> None:
    assert [things.add("a"), things.add("a", 4)] == [1, 5]


async def test_both_versions_do_the_same(things: Things) -> None:
    assert await things.aadd("a", 2) == things.add("b", 2) == 2
    assert await things.aget("a") == things.get("a") == b"2"
    assert await things.aget("nothing") is things.get("nothing") is None


async def test_the_replies_of_a_pipeline_are_in_order(things: Things) -> None:
    things.add("b", 10)
    assert things.add_each(["a", "b", "c"]) == [1, 11, 1]
    assert await things.aadd_each(["a", "b", "c"]) == [2, 12, 2]


async def test_an_empty_pipeline_sends_nothing(connect: Connect) -> None:
    nowhere = connect("unix:///nowhere/at-all.sock?db=0", COMMAND_DEADLINE=0.2)
    assert nowhere.add_each([]) == await nowhere.aadd_each([]) == []
    assert nowhere.add_all([]) == await nowhere.aadd_all([]) == []


async def test_a_pipeline_raises_its_first_error_and_applies_the_rest(things: Things) -> None:
    things.do("ZADD", things.key("b"), 0, "x")
    with pytest.raises(ConfigurationError, match="another type"):
        things.add_each(["a", "b", "c"])
    with pytest.raises(ConfigurationError, match="another type"):
        await things.aadd_each(["a", "b", "c"])
    assert things.get("a") == things.get("c") == b"2"


async def test_a_body_can_catch_the_error_of_a_step(things: Things) -> None:
    class Careful(Service):
        @operation
        def look(self) -> Steps[str]:
            try:
                yield Command("NOSUCHCOMMAND")
            except MessagingError:
                reply = yield Command("PING")
                return f"caught, {reply.decode()}"
            return "nothing raised"

        alook = asynchronous(look)

    assert Careful().look() == await Careful().alook() == "caught, PONG"


def test_a_body_without_steps_needs_no_server(connect: Connect) -> None:
    class Idle(Service):
        @operation
        def nothing(self) -> Steps[int]:
            """Yield no steps."""
            yield from ()
            return 3

    connect("unix:///nowhere/at-all.sock?db=0")
    assert Idle().nothing() == 3


def test_the_async_version_has_its_own_name_and_the_same_parameters() -> None:
    assert Things.aadd.__name__ == "aadd"
    assert Things.aadd.__qualname__ == "Things.aadd"
    assert Things.aadd.__doc__ == Things.add.__doc__
    assert inspect.signature(Things.aadd) == inspect.signature(Things.add)


def test_arguments_are_checked_before_anything_is_sent(connect: Connect) -> None:
    nowhere = connect("unix:///nowhere/at-all.sock?db=0")
    with pytest.raises(TypeError, match="unexpected"):
        nowhere.add("a", nonsense=1)  # type: ignore[call-arg]


def test_a_prefix_may_be_a_callable(connect: Connect, server: EmbeddedServer, own_prefix: str) -> None:
    tenants = iter(["site-a", "site-b"])
    connect(server, PREFIX=lambda: "start")
    with override_settings(REDIS_MESSAGING={"PREFIX": lambda: next(tenants)}):
        first, second = Things(), Things()
    assert first.key("x").startswith(f"{own_prefix}:site-a:1:")
    assert second.key("x").startswith(f"{own_prefix}:site-b:1:")


@pytest.mark.parametrize("bad", ["", "a{b", "a b", "a*", "a\n"])
def test_an_invalid_prefix_is_rejected(bad: str) -> None:
    with (
        override_settings(REDIS_MESSAGING={"PREFIX": lambda: bad}),
        pytest.raises(ValueError, match="PREFIX"),
    ):
        Things()


class TestObservers:
    @pytest.fixture
    def seen(self) -> Iterator[list[tuple[str, float, str]]]:
        events: list[tuple[str, float, str]] = []

        def note(operation: str, seconds: float, outcome: str) -> None:
            events.append((operation, seconds, outcome))

        operations.observe(note)
        yield events
        operations.unobserve(note)

    async def test_observers_get_operation_seconds_and_outcome(self, things: Things, seen: list[Any]) -> None:
        things.add("a")
        await things.aadd("a")
        things.do("ZADD", things.key("b"), 0, "x")
        with pytest.raises(ConfigurationError):
            things.add("b")
        assert [(name, outcome) for name, _, outcome in seen] == [
            ("Things.add", "ok"),
            ("Things.add", "ok"),
            ("Things.do", "ok"),
            ("Things.add", "ConfigurationError"),
        ]
        assert all(0 < seconds < 10 for _, seconds, _ in seen)

    async def test_a_cancellation_is_an_outcome(self, things: Things, seen: list[Any]) -> None:
        waiting = asyncio.ensure_future(things.await_("nothing", 30))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [outcome for _, _, outcome in seen] == ["CancelledError"]

    def test_a_failing_observer_does_not_change_the_result(
        self, things: Things, caplog: pytest.LogCaptureFixture
    ) -> None:
        @operations.observe
        def broken(operation: str, seconds: float, outcome: str) -> None:
            raise RuntimeError("metrics are down")

        try:
            with caplog.at_level(logging.ERROR):
                assert things.add("a") == 1
        finally:
            operations.unobserve(broken)
        assert "observer" in caplog.text

    def test_an_observer_can_be_named_in_the_settings(self, things: Things) -> None:
        noted.clear()
        given = {**conf.configured(), "OBSERVE": "tests.core.test_operations.note"}
        with override_settings(REDIS_MESSAGING=given):
            things.add("a")
        things.add("a")
        assert [name for name, _, _ in noted] == ["Things.add"]

    def test_without_observers_nothing_is_timed(self) -> None:
        assert not operations.are_observed()


noted: list[tuple[str, float, str]] = []


def note(operation: str, seconds: float, outcome: str) -> None:
    noted.append((operation, seconds, outcome))


class TestAsyncObservers:
    def test_an_async_observer_is_rejected(self) -> None:
        async def late(operation: str, seconds: float, outcome: str) -> None: ...

        class Late:
            async def __call__(self, operation: str, seconds: float, outcome: str) -> None: ...

        for observer in (late, Late()):
            with pytest.raises(TypeError, match="async"):
                operations.observe(observer)

    async def test_an_async_observer_in_the_settings_is_rejected(self, things: Things) -> None:
        with override_settings(REDIS_MESSAGING={**settings.REDIS_MESSAGING, "OBSERVE": "asyncio.sleep"}):
            with pytest.raises(ConfigurationError, match="OBSERVE"):
                things.add("a")
            with pytest.raises(ConfigurationError, match="OBSERVE"):
                await things.aadd("a")

    async def test_operations_of_an_observer_are_not_observed(self, things: Things) -> None:
        seen: list[str] = []

        @operations.observe
        def counting(operation: str, seconds: float, outcome: str) -> None:
            seen.append(operation)
            things.add("calls")

        try:
            things.add("a")
            await things.aadd("a")
        finally:
            operations.unobserve(counting)
        assert seen == ["Things.add", "Things.add"]
        assert things.get("calls") == b"2"


async def test_steps_can_be_performed_without_a_service(things: Things) -> None:
    def body() -> Steps[int]:
        reply = yield Command("INCR", things.key("a"))
        return int(reply)

    assert clients.perform("messaging", body()) == 1
    assert await clients.aperform("messaging", body()) == 2
    assert clients.execute("messaging", Command("INCR", things.key("a"))) == 3


def test_code_of_the_blocking_style_is_never_suspended() -> None:
    async def suspended(seconds: float) -> None:
        await asyncio.sleep(seconds)

    with pytest.raises(RuntimeError, match="suspended"):
        run_blocking(suspended, 0)
