"""The publisher for Node.js that docs/publisher.mjs is: what it publishes is as if Broadcast had."""

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

from .asking import all_keys, change, server

ROOT = Path(__file__).parents[2]
#: publishes what stdin lists, and says what came of each; `cut` breaks the connection before
PROGRAM = """
import { readFileSync } from "node:fs";
import { Publisher } from "%(module)s";
const { options, calls } = JSON.parse(readFileSync(0, "utf8"));
const publisher = new Publisher(options);
const said = [];
for (const [channel, payload, more] of calls) {
  if (more?.cut) publisher.connection.socket.destroy();
  try {
    said.push(await publisher.publish(channel, payload, more ?? {}));
  } catch (error) {
    said.push(error.message);
  }
}
publisher.close();
console.log(JSON.stringify(said));
"""


@pytest.fixture(autouse=True)
def alias(messaging_alias: str) -> None:
    """On a standalone server and on a Cluster."""


def node(calls: list[Any], **options: Any) -> list[Any]:
    """What the publisher says to these calls: channel, payload, and more."""
    program = shutil.which("node")
    assert program, "node is not here: install nodejs"
    location = configured.CACHES[conf.alias()]["LOCATION"]
    options = {
        "connect": {"path": location.removeprefix("unix://").partition("?")[0]},
        "scripts": str(ROOT / "django_redis_messaging" / "lua"),
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


def test_its_events_are_among_the_others() -> None:
    channel = Broadcast("news {of}: ü%\u3000x")
    start = channel.cursor()
    first = channel.publish("python")
    payload = {"ü": [1, None, "\U0001f600"], "empty": []}
    [said] = node([[channel.channel, payload]])
    last = channel.publish("python again")
    events = channel.fetch(start).events
    assert [event.payload for event in events] == ["python", payload, "python again"]
    assert [event.id for event in events] == [first.id, said["id"], last.id] == [1, 2, 3]
    assert said["publishedAt"][:22] == events[1].published_at.isoformat()[:22]


def test_a_repeat_publishes_nothing() -> None:
    calls = [["news", "x", {"requestId": "r"}]] * 2
    first, second = node(calls)
    assert first == second
    assert Broadcast("news").publish("x", request_id="r").id == 1
    assert len(Broadcast("news").fetch().events) == 1


def test_it_fits_other_settings(settings: Settings) -> None:
    change(settings, BROADCAST_BUCKET=1, BROADCAST_RETENTION=250, BROADCAST_MAX_LENGTH=3)
    node([["news", number] for number in range(10)], bucket=1000, retention=250_000, maxLength=3)
    channel = Broadcast("news")
    assert [event.payload for event in channel.fetch().events] == [7, 8, 9]
    lists = [key for key in all_keys() if server().type(key) == b"list"]
    assert set(lists) <= set(channel._keys.buckets)
    assert sum(map(server().llen, lists)) == 3
    assert all(server().pttl(key) > 0 for key in all_keys())


def test_bad_input() -> None:
    said = node([["news", "x" * 9], ["news", "ok"]], maxBytes=8)
    assert said[0] == "The payload has more than 8 bytes."
    assert [event.payload for event in Broadcast("news").fetch().events] == ["ok"]


def test_names() -> None:
    bad = ["", "x" * 256, "a\0b", "\ud800", 5]
    calls = [*([name, "x"] for name in bad), *(["news", "x", {"requestId": name}] for name in bad)]
    said = node(calls)
    assert [text.split(" must be ")[0] for text in said] == ["channel"] * 5 + ["requestId"] * 5
    assert all_keys() == []


def test_a_connection_that_broke_is_made_again() -> None:
    first, cut, last = node([["news", 1], ["news", 2, {"cut": True}], ["news", 3]])
    assert (first["id"], last["id"]) == (1, 2)
    assert isinstance(cut, str)
    assert [event.payload for event in Broadcast("news").fetch().events] == [1, 3]


def test_what_can_not_be_trimmed_is_published_all_the_same(settings: Settings) -> None:
    change(settings, BROADCAST_BUCKET=1, BROADCAST_RETENTION=250)
    channel = Broadcast("news")
    for number in range(4):
        channel.publish(number)
    oldest = next(key for key in channel._keys.buckets if not server().exists(key))
    server().set(oldest, "not ours")
    [said] = node([["news", 4]], bucket=1000, retention=250_000, maxLength=3)
    assert said["id"] == 5


def test_refusals_are_errors() -> None:
    channel = Broadcast("news")
    server().hset(channel._keys.head, "a", "b")
    [said] = node([["news", "x"]])
    assert said.startswith("WRONGTYPE")
