"""The broadcast examples of the demo site in two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django_redis import get_redis_connection

from django_redis_messaging import Broadcast, conf

from ..support.processes import ROOT
from ..support.server import until

#: a process of the site that runs commands from stdin, one per line
PROGRAM = """
import json, os, sys
from django.conf import settings
settings.configure(
    DATA_DIR=os.environ["DATA_DIR"],
    CACHES={
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["URL"]},
    },
    REDIS_MESSAGING={"PREFIX": os.environ["PREFIX"]},
)
from django.core.cache import cache
from shop import caching, options, subscriptions
end = subscriptions.start()
verbs = {
    "option": options.get, "change": options.change,
    "get": cache.get, "set": cache.set, "drop": caching.invalidate,
}
for line in sys.stdin:
    verb, *words = json.loads(line)
    print(json.dumps(verbs[verb](*words)), flush=True)
end()
"""


class Process:
    """A process of the site."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={
                **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "testproject")]),
                "DATA_DIR": str(directory), "PREFIX": conf.prefix(),
                "URL": settings.CACHES["messaging"]["LOCATION"],
            },
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def do(self, *words: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Process]]:
    """Two processes, both subscribed."""
    started = [Process(tmp_path) for _ in range(2)]
    client = get_redis_connection("messaging")
    until(lambda: client.info("clients")["blocked_clients"] >= 4)
    yield started
    for one in started:
        one.close()
    for one in started:
        one.end()


def test_changes_apply_in_all_processes_even_after_missed_events(
    processes: list[Process], tmp_path: Path
) -> None:
    one, other = processes
    assert [each.do("option", "discount") for each in processes] == [0, 0]
    one.do("change", "discount", 10)
    assert one.do("option", "discount") == 10
    until(lambda: other.do("option", "discount") == 10)
    other.do("change", "open", False)
    until(lambda: one.do("option", "open") is False)
    assert one.do("option", "discount") == 10

    for each in processes:
        each.do("set", "price", 3)
        each.do("set", "stock", 7)
    one.do("drop", "price")
    until(lambda: other.do("get", "price") is None)
    assert [each.do("get", "price") for each in processes] == [None, None]
    assert [each.do("get", "stock") for each in processes] == [7, 7], "other values are kept"

    (tmp_path / "options.json").write_text('{"discount": 20}')  # a change without a broadcast
    client = get_redis_connection("messaging")
    for channel in ("options", "stale"):
        client.delete(Broadcast(channel)._keys.head)
    until(lambda: [each.do("get", "stock") for each in processes] == [None, None])
    until(lambda: [each.do("option", "discount") for each in processes] == [20, 20])
