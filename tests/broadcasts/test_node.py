"""docs/publisher.mjs, the publisher for Node.js: its events equal those of Broadcast.publish."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from pytest_django import Settings

from django_redis_messaging import Broadcast, conf

from ..support.server import all_keys, change, server

ROOT = Path(__file__).parents[2]
#: publishes the calls from stdin and prints their results; `cut` breaks the connection first
PROGRAM = """
import { readFileSync } from "node:fs";
import { Publisher } from "%(module)s";
const { options, calls } = JSON.parse(readFileSync(0, "utf8"));
const publisher = new Publisher(options);
const results = [];
for (const [channel, payload, more] of calls) {
  if (more?.cut) publisher.connection.socket.destroy();
  try {
    results.push(await publisher.publish(channel, payload, more ?? {}));
  } catch (error) {
    results.push(error.message);
  }
}
publisher.close();
console.log(JSON.stringify(results));
"""


@pytest.fixture(autouse=True)
def alias(messaging_alias: str) -> None:
    """On a standalone server and on a Cluster."""


def node(calls: list[Any], **options: Any) -> list[Any]:
    """Make these calls (channel, payload, options) and return the results or error messages."""
    program = shutil.which("node")
    assert program, "node is missing: install nodejs"
    location = configured.CACHES[conf.alias()]["LOCATION"]
    options = {
        "connect": {"path": location.removeprefix("unix://").partition("?")[0]},
        "package": str(ROOT / "django_redis_messaging"),
        "prefix": conf.prefix(),
        **options,
    }
    done = subprocess.run(
        [program, "--input-type=module", "-e", PROGRAM % {"module": (ROOT / "docs/publisher.mjs").as_uri()}],
        input=json.dumps({"options": options, "calls": calls}),
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_events_are_in_order_with_those_of_python() -> None:
    channel = Broadcast("news {of}: ü%\u3000x")
    start = channel.cursor()
    first = channel.publish("python")
    payload = {"ü": [1, None, "\U0001f600"], "empty": []}
    [result] = node([[channel.channel, payload]])
    last = channel.publish("python again")
    events = channel.fetch(start).events
    assert [event.payload for event in events] == ["python", payload, "python again"]
    assert [event.id for event in events] == [first.id, result["id"], last.id] == [1, 2, 3]
    assert result["publishedAt"][:22] == events[1].published_at.isoformat()[:22]


def test_a_repeat_publishes_nothing() -> None:
    calls = [["news", "x", {"requestId": "r"}]] * 2
    first, second = node(calls)
    assert first == second
    assert Broadcast("news").publish("x", request_id="r").id == 1
    assert len(Broadcast("news").fetch().events) == 1


def test_other_settings(settings: Settings) -> None:
    change(settings, BROADCAST_BUCKET=1, BROADCAST_RETENTION=250, BROADCAST_MAX_LENGTH=3)
    node([["news", number] for number in range(10)], bucket=1000, retention=250_000, maxLength=3)
    channel = Broadcast("news")
    assert [event.payload for event in channel.fetch().events] == [7, 8, 9]
    lists = [key for key in all_keys() if server().type(key) == b"list"]
    assert set(lists) <= set(channel._keys.buckets)
    assert sum(map(server().llen, lists)) == 3
    assert all(server().pttl(key) > 0 for key in all_keys())


def test_payload_too_large() -> None:
    results = node([["news", "x" * 9], ["news", "ok"]], maxBytes=8)
    assert results[0] == "The payload has more than 8 bytes."
    assert [event.payload for event in Broadcast("news").fetch().events] == ["ok"]


def test_invalid_names() -> None:
    bad = ["", "x" * 256, "a\0b", "\ud800", 5]
    calls = [*([name, "x"] for name in bad), *(["news", "x", {"requestId": name}] for name in bad)]
    results = node(calls)
    assert [text.split(" must be ")[0] for text in results] == ["channel"] * 5 + ["requestId"] * 5
    assert all_keys() == []


def test_reconnects_after_a_broken_connection() -> None:
    first, cut, last = node([["news", 1], ["news", 2, {"cut": True}], ["news", 3]])
    assert (first["id"], last["id"]) == (1, 2)
    assert isinstance(cut, str)
    assert [event.payload for event in Broadcast("news").fetch().events] == [1, 3]


def test_an_event_is_published_even_if_trimming_fails(settings: Settings) -> None:
    change(settings, BROADCAST_BUCKET=1, BROADCAST_RETENTION=250)
    channel = Broadcast("news")
    for number in range(4):
        channel.publish(number)
    oldest = next(key for key in channel._keys.buckets if not server().exists(key))
    server().set(oldest, "another type")
    [result] = node([["news", 4]], bucket=1000, retention=250_000, maxLength=3)
    assert result["id"] == 5


def test_refusals_are_errors() -> None:
    channel = Broadcast("news")
    server().hset(channel._keys.head, "a", "b")
    [result] = node([["news", "x"]])
    assert result.startswith("WRONGTYPE")
