"""`manage.py consume_broadcast`."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django_redis import get_redis_connection

from django_redis_messaging import Broadcast, Event
from django_redis_messaging.management.commands import consume_broadcast
from tests.support.processes import Process, Start, commands

pytestmark = pytest.mark.one_server

PATIENCE = 60.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)


@pytest.fixture
def start(own_prefix: str) -> Iterator[Start]:
    """Start the command as `manage.py` does and wait until it is waiting for events."""
    with commands() as run:

        def start(*arguments: str) -> Process:
            process = run("consume_broadcast", *arguments)
            client = get_redis_connection("messaging")
            until(lambda: client.exists(Broadcast(arguments[0])._keys.waiting))
            return process

        yield start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_events_are_printed_until_a_signal(number: signal.Signals, start: Start) -> None:
    process = start("news")
    event = Broadcast("news").publish({"a": "ü"})
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {
        "id": 1, "published_at": event.published_at.isoformat(), "payload": {"a": "ü"},
    }  # fmt: skip
    process.send_signal(number)
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, errors) == (0, "", "Consuming 'news'. Ctrl-C ends it.\n")


def test_named_consumer_resumes_at_its_position(start: Start) -> None:
    process = start("news", "--name", "printer", "--verbosity", "0")
    channel = Broadcast("news")
    for run in range(2):
        channel.publish(run)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == run
        process.terminate()
        assert process.communicate(timeout=PATIENCE) == ("", "")
        if run == 0:
            process = start("news", "--name", "printer", "--verbosity", "0")
    assert channel.position("printer") == channel.cursor()


def test_command_ends_when_its_output_is_closed(start: Start) -> None:
    process = start("news", "--verbosity", "0")
    assert process.stdout is not None
    process.stdout.close()
    Broadcast("news").publish("unread")
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("path", ["record", "arecord"])
def test_handler_function_is_called(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in this process and ends when the handler has received both events."""
    channel = Broadcast("news")
    lost = channel.publish("lost").cursor
    channel.keep("me", lost)
    get_redis_connection("messaging").delete(channel._keys.head, *channel._keys.buckets)
    channel.publish("x")
    seen.clear()
    monkeypatch.setattr(consume_broadcast.Stopping, "is_set", lambda self: len(seen) == 2)
    old = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        call_command(
            "consume_broadcast", "news", "--handler", f"{__name__}.{path}", "--name", "me",
            "--on-missed", f"{__name__}.miss", "--verbosity", "0",
        )  # fmt: skip
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), old, strict=True):
            signal.signal(number, handler)
    assert seen == ["missed", "x"]


seen: list[Any] = []


def record(event: Event) -> None:
    seen.append(event.payload)


async def arecord(event: Event) -> None:
    seen.append(event.payload)


def miss() -> None:
    seen.append("missed")


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
def test_invalid_options(arguments: list[str], text: str) -> None:
    old = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with pytest.raises(CommandError, match=text) as error:
            call_command("consume_broadcast", *arguments, "--verbosity", "0")
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), old, strict=True):
            signal.signal(number, handler)
    assert "\n" not in str(error.value)
