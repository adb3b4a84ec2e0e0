"""docs/publisher.mjs, the publisher for Node.js: its events equal those of Broadcast.publish."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from pytest_django import Settings

from django_redis_messaging import Broadcast, conf

from ..support.programs import program
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
    location = configured.CACHES[conf.alias()]["LOCATION"]
    options = {
        "connect": {"path": location.removeprefix("unix://").partition("?")[0]},
        "package": str(ROOT / "django_redis_messaging"),
        "prefix": conf.prefix(),
        **options,
    }
    code = PROGRAM % {"module": (ROOT / "docs/publisher.mjs").as_uri()}
    done = subprocess.run(
        [program("node"), "--input-type=module", "-e", code],
        input=json.dumps({"options": options, "calls": calls}),
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def payloads(channel: str) -> list[Any]:
    return [event.payload for event in Broadcast(channel).fetch().events]


def test_events_are_in_order_with_those_of_python() -> None:
    """Also after repeats, refusals, and a broken connection."""
    channel = Broadcast("news {of}: ü%\u3000x")
    first = channel.publish("python")
    server().hset(Broadcast("broken")._keys.head, "a", "b")
    payload = {"ü": [1, None, "\U0001f600"], "empty": []}
    [result, *repeats, refused, one, cut, last] = node([
        [channel.channel, payload], ["news", "x", {"requestId": "r"}], ["news", "x", {"requestId": "r"}],
        ["broken", "x"], ["cut", 1], ["cut", 2, {"cut": True}], ["cut", 3],
    ])  # fmt: skip
    events = [first, channel.fetch().events[1], channel.publish("python again")]
    assert channel.fetch().events == events
    assert [(event.id, event.payload) for event in events][1] == (result["id"], payload) == (2, payload)
    assert result["publishedAt"][:22] == events[1].published_at.isoformat()[:22]
    assert repeats[0] == repeats[1]
    assert Broadcast("news").publish("x", request_id="r").id == 1
    assert payloads("news") == ["x"]
    assert refused.startswith("WRONGTYPE")
    assert (one["id"], last["id"], isinstance(cut, str)) == (1, 2, True)
    assert payloads("cut") == [1, 3]


def test_invalid_names() -> None:
    bad = ["", "x" * 256, "a\0b", "\ud800", 5]
    calls = [*([name, "x"] for name in bad), *(["news", "x", {"requestId": name}] for name in bad)]
    results = node(calls)
    assert [text.split(" must be ")[0] for text in results] == ["channel"] * 5 + ["requestId"] * 5
    assert all_keys() == []


def test_other_settings(settings: Settings) -> None:
    change(settings, BROADCAST_BUCKET=1, BROADCAST_RETENTION=250, BROADCAST_MAX_LENGTH=3)
    untrimmed = Broadcast("untrimmed")
    for number in range(4):
        untrimmed.publish(number)
    oldest = next(key for key in untrimmed._keys.buckets if not server().exists(key))
    server().set(oldest, "another type", px=60_000)
    calls = [*(["news", number] for number in range(10)), ["news", "x" * 9], ["untrimmed", 4]]
    *_, large, last = node(calls, bucket=1000, retention=250_000, maxLength=3, maxBytes=8)
    assert large == "The payload has more than 8 bytes."
    assert last["id"] == 5, "published, although trimming fails"
    assert payloads("news") == [7, 8, 9]
    lists = [key for key in Broadcast("news")._keys.buckets if server().exists(key)]
    assert {server().type(key) for key in lists} == {b"list"}
    assert sum(map(server().llen, lists)) == 3
    assert all(server().pttl(key) > 0 for key in all_keys())
