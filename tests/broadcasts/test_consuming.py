"""Broadcast.consume, and `manage.py consume_broadcast`: the loops of a consumer."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import CommandError

from django_redis_messaging import Broadcast, Event, MessagingError, OutcomeUnknown, Unavailable
from django_redis_messaging.core import clients
from django_redis_messaging.management.commands import consume_broadcast
from django_redis_messaging.services.broadcasts import broadcast
from django_redis_messaging.services.common import consuming

from ..support.processes import PATIENCE, commands
from ..support.server import all_keys, server, until
from ..support.terminal import output_of

Consume = Callable[..., None]


@pytest.fixture(autouse=True)
def quick(messaging_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses short."""
    monkeypatch.setattr(consuming, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(broadcast, "FETCH_WAIT", 0.05)


@pytest.fixture
def channel() -> Broadcast:
    return Broadcast("news")


def published(channel: Broadcast, *items: Any) -> list[Event]:
    return [channel.publish(item) for item in items]


class Stopping:
    """Is set once a condition is true; raises if a test hangs."""

    def __init__(self, holds: Callable[[], object]) -> None:
        self._holds = holds
        self._ends = time.monotonic() + 60

    def is_set(self) -> bool:
        if time.monotonic() > self._ends:
            raise TimeoutError("it did not happen in time")
        return bool(self._holds())


@pytest.fixture(params=["blocking", "awaiting", "awaiting a coroutine function"])
def consume(request: pytest.FixtureRequest) -> Consume:
    """Either version of consume; the async one also with coroutine functions."""

    def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*args: Any) -> None:
            await asyncio.sleep(0)
            function(*args)

        return called

    async def run(channel: Broadcast, *args: Any, **options: Any) -> None:
        await channel.aconsume(*args, **options)
        await clients.aclose()

    def do(channel: Broadcast, handler: Callable[..., Any], **options: Any) -> None:
        if request.param == "blocking":
            channel.consume(handler, **options)
        elif request.param == "awaiting":
            asyncio.run(run(channel, handler, **options))
        else:
            if "on_missed" in options:
                options["on_missed"] = awaited(options["on_missed"])
            asyncio.run(run(channel, awaited(handler), **options))

    return do


class TestPosition:
    def test_without_a_position_it_begins_with_the_next_event(self, channel: Broadcast) -> None:
        channel.publish("before")
        seen: list[Any] = []
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            loop = pool.submit(channel.consume, seen.append, stop=stop)
            until(lambda: server().exists(channel._keys.waiting))
            event = channel.publish("after")
            until(lambda: seen)
            stop.set()
            loop.result()
        assert seen == [event]

    def test_a_named_consumer_continues_after_what_it_has_handled(
        self, consume: Consume, channel: Broadcast
    ) -> None:
        """Even if it was stopped within a batch. The position of a new name is kept at once."""
        channel.publish("before")
        consume(channel, print, name="me", stop=Stopping(lambda: channel.position("me")))
        assert channel.position("me") == channel.cursor()
        seen: list[int] = []
        published(channel, *range(5))
        for many in (2, 5, 6):
            if many == 6:
                channel.publish(5)
            stop = Stopping(lambda many=many: len(seen) >= many)  # type: ignore[misc]
            consume(channel, lambda event: seen.append(event.payload), name="me", stop=stop)
        assert seen == list(range(6))
        assert channel.position("me") == channel.cursor()

    def test_a_crash_repeats_what_was_handled_since_the_position_was_kept(
        self, consume: Consume, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That of a long batch is kept from time to time."""
        channel.keep("me", channel.cursor())
        published(channel, 1, 2, 3)
        seen: list[int] = []

        def crash(event: Event) -> None:
            seen.append(event.payload)
            if len(seen) % 2 == 0:
                raise SystemExit

        for _ in range(2):
            with pytest.raises(SystemExit):
                consume(channel, crash, name="me")
            monkeypatch.setattr(broadcast, "KEEP_INTERVAL", 0)
        consume(channel, crash, name="me", stop=Stopping(lambda: len(seen) == 5))
        assert seen == [1, 2, 1, 2, 2]

    def test_keeping_a_position_is_not_retried_at_once(
        self, consume: Consume, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each attempt may last until the deadline, which delays the events of the batch."""
        seen: list[int] = []
        tried: list[int] = []
        monkeypatch.setattr(broadcast, "KEEP_INTERVAL", 3600)
        monkeypatch.setattr(broadcast, "monotonic", lambda: time.monotonic() + (3600 if seen else 0))
        channel.keep("me", channel.cursor())
        published(channel, *range(4))

        def fail(*_: object) -> None:
            tried.append(len(seen))
            raise Unavailable("away")

        async def afail(*_: object) -> None:
            fail()

        monkeypatch.setattr(channel, "keep", fail)
        monkeypatch.setattr(channel, "akeep", afail)
        stop = Stopping(lambda: len(seen) == 4)
        consume(channel, lambda event: seen.append(event.payload), name="me", stop=stop)
        assert tried == [1, 4]


class TestFailures:
    def test_a_handler_that_raises_is_retried_and_then_skipped(
        self, consume: Consume, channel: Broadcast, caplog: pytest.LogCaptureFixture
    ) -> None:
        start = channel.cursor()
        published(channel, "not yet", "bad", "fine")
        tried: list[str] = []

        def handler(event: Event) -> None:
            tried.append(event.payload)
            if event.payload == "bad" or len(tried) == 1:
                raise RuntimeError("secret")

        consume(channel, handler, cursor=start, attempts=2, stop=Stopping(lambda: "fine" in tried))
        assert tried == ["not yet", "not yet", "bad", "bad", "fine"]
        failed = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        assert failed == [
            "Handling event 1 of channel 'news' failed, attempt 1 of 2: retrying in 0.0 s.",
            "Handling event 2 of channel 'news' failed, attempt 1 of 2: retrying in 0.0 s.",
            "Handling event 2 of channel 'news' failed, attempt 2 of 2: giving up.",
        ]

    def test_it_can_be_stopped_between_two_attempts(self, consume: Consume, channel: Broadcast) -> None:
        channel.keep("me", channel.cursor())
        events = published(channel, "bad", "other")
        tried: list[str] = []

        def handler(event: Event) -> None:
            tried.append(event.payload)
            raise RuntimeError

        consume(channel, handler, name="me", attempts=1000, stop=Stopping(lambda: tried))
        assert tried == ["bad"]
        assert channel.fetch(channel.position("me")).events == events

    def test_on_missed_is_called_before_the_events(
        self, consume: Consume, channel: Broadcast, caplog: pytest.LogCaptureFixture
    ) -> None:
        cursor = channel.publish(1).cursor
        server().delete(*all_keys())
        channel.publish(2)
        told: list[Any] = []

        def missed() -> None:
            told.append("missed")
            if len(told) == 1:
                raise RuntimeError  # it is retried, too

        stop = Stopping(lambda: 2 in told)
        consume(channel, lambda event: told.append(event.payload), cursor=cursor, on_missed=missed, stop=stop)
        assert told == ["missed", "missed", 2]
        told.clear()
        consume(channel, lambda event: told.append(event.payload), cursor=cursor, stop=stop)
        assert caplog.text.count("Events of channel 'news' may be missing.") == 2

    @pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown, MessagingError])
    def test_it_continues_after_an_outage(
        self, error: type[MessagingError], consume: Consume, channel: Broadcast,
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        channel.keep("me", channel.cursor())
        published(channel, 1)
        monkeypatch.setattr(broadcast, "KEEP_INTERVAL", 0)
        script, failures, seen = broadcast.Script, ["broadcasts/fetch", "broadcasts/keep"], []

        def failing(name: str, *rest: Any) -> Any:
            if name in failures:
                failures.remove(name)
                raise error("away")
            return script(name, *rest)

        monkeypatch.setattr(broadcast, "Script", failing)
        consume(channel, lambda event: seen.append(event.payload), name="me", stop=Stopping(lambda: seen))
        assert (seen, failures) == ([1], [])
        retries = re.findall(r"Consuming channel 'news' failed, retrying in \d\.\d s: away", caplog.text)
        assert len(retries) == 1
        assert caplog.text.count("Keeping the position in channel 'news' failed, retrying later: away") == 1
        assert channel.position("me") == channel.cursor()


received: list[Any] = []


def record(event: Event) -> None:
    received.append(event.payload)


async def arecord(event: Event) -> None:
    received.append(event.payload)


def miss() -> None:
    received.append("missed")


@pytest.mark.one_server
class TestCommand:
    def test_events_are_printed_until_a_signal_or_the_end_of_the_output(
        self, channel: Broadcast, own_prefix: str
    ) -> None:
        with commands() as start:
            process, closed = start("consume_broadcast", "news"), start("consume_broadcast", "other", "-v0")
            other = Broadcast("other")
            for one in (channel, other):
                until(lambda one=one: server().exists(one._keys.waiting))  # type: ignore[misc]
            event = channel.publish({"a": "ü"})
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {
                "id": 1, "published_at": event.published_at.isoformat(), "payload": {"a": "ü"},
            }  # fmt: skip
            process.terminate()
            out, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, out, errors) == (0, "", "Consuming 'news'. Ctrl-C ends it.\n")
            assert closed.stdout is not None
            closed.stdout.close()
            other.publish("unread")
            assert closed.wait(PATIENCE) == 0
            assert closed.stderr is not None
            with closed.stderr as errors_of_closed:
                assert errors_of_closed.read() == ""

    @pytest.mark.parametrize("handler", ["record", "arecord"])
    def test_a_handler_is_called(
        self, handler: str, channel: Broadcast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From the position of its name. The command ends when both were called."""
        channel.keep("me", channel.publish("lost").cursor)
        server().delete(channel._keys.head, *channel._keys.buckets)
        channel.publish("x")
        received.clear()
        monkeypatch.setattr(consume_broadcast.Stopping, "is_set", lambda self: len(received) == 2)
        output = output_of(
            "consume_broadcast", "news", "--handler", f"{__name__}.{handler}", "--name", "me",
            "--on-missed", f"{__name__}.miss", "--verbosity", "0",
        )  # fmt: skip
        assert (received, output) == (["missed", "x"], ("", ""))
        assert channel.position("me") == channel.cursor()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ([""], "channel is empty"),
            (["news", "--handler", "nowhere.at.all"], "--handler 'nowhere.at.all' can't be imported"),
            (["news", "--handler", "json.__name__"], "--handler 'json.__name__' is not a function"),
            (["news", "--on-missed", "nothing"], "--on-missed 'nothing' can't be imported"),
            (["news", "--name", ""], "name is empty"),
            (["news", "--attempts", "0"], "attempts must be between 1 and 1000, not 0"),
        ],
    )
    def test_invalid_options(self, arguments: list[str], text: str) -> None:
        with pytest.raises(CommandError, match=text) as error:
            output_of("consume_broadcast", *arguments, "--verbosity", "0")
        assert "\n" not in str(error.value)
