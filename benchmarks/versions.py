"""Compares two checkouts of this app: `python -m benchmarks.versions OLD NEW [ROUNDS]`.

Each checkout runs in its own process; both use one server. They take turns, so the load of the machine
affects both. Both processes are pinned to one processor and the server to another, so the scheduler favours
neither. The output is the rate of NEW divided by the rate of OLD: the median of the rounds, and quartiles.
Operations that one of them doesn't have are left out, with a line that says so.
The last line compares async calls of NEW with a bare PING of redis.asyncio, both with 50 concurrent tasks.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

#: code of each process, with the checkout first on its path
CHILD = """
import asyncio, json, os, sys, time, uuid
os.sched_setaffinity(0, {1})
sys.path.insert(0, sys.argv[1])
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_redis_messaging"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[2]}},
    REDIS_MESSAGING={"ALIAS": "default", "PREFIX": uuid.uuid4().hex},
    TASKS={
        "default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default", "run"]}
    },
)
django.setup()
from django_redis_messaging import Chat, DelayQueue, Directory, Inbox
from django_redis_messaging.tasks.worker import Limits, Worker
from django.tasks import task, task_backends
import redis.asyncio

chat = Chat.create("ann", ["bob"], chat_id="room", keep_last=10)
for number in range(20):
    Chat.create("idle", [f"u{number}"], "hello", chat_id=f"idle-{number}")
Inbox("idle").pending()
followed = Chat.create("ann", ["bob", "cat"], "hello", chat_id="followed")
followed.ack("bob", 1)
directory = Directory("guild")
directory.add_many([(f"u{number}", f"Name {number}") for number in range(200)])
queue = DelayQueue("work")

@task
def nothing():
    pass
nothing.func.__module__ = "__main__"

def push(): queue.push("x")
def pop(): [queue.ack(job) for job in queue.pop(1)]
def run_all(): Worker(task_backends["default"], ["run"], Limits(concurrency=1, burst=True)).run()
CALLS = {
    "send": lambda: chat.send("ann", "hello"),
    "pending, idle": lambda: Inbox("idle").pending(),
    "suggest": lambda: directory.suggest("nam"),
    "push": push,
    "pop and ack": pop,
    "enqueue": lambda: nothing.enqueue(),
}
if hasattr(Chat, "changes"):  # not in earlier versions
    first = followed.changes("bob", after=0)
    known = {"after": first.cursor, "edits": first.edits, "moved": first.moved}
    if hasattr(first, "event"):  # not in earlier versions
        known["events"] = first.event
    CALLS["changes, idle"] = lambda: followed.changes("bob", **known)
loop = asyncio.new_event_loop()
client = redis.asyncio.Redis.from_url(sys.argv[2])

async def run_concurrently(call, count):
    async def run_some():
        for _ in range(count // 50):
            await call()
    await asyncio.gather(*(run_some() for _ in range(50)))

print(json.dumps([*CALLS, "run no-op", "async send"]), flush=True)
for line in sys.stdin:
    name, count = line.rstrip().rsplit(" ", 1)
    count = int(count)
    if name == "pop and ack":
        queue.push_many(["x"] * count)
    elif name in ("push", "enqueue"):
        queue.purge()
    elif name == "run no-op":
        nothing.using(queue_name="run").enqueue_many([([], {})] * count)
    began = time.perf_counter()
    if name == "async send":
        loop.run_until_complete(run_concurrently(lambda: chat.asend("ann", "hello"), count))
    elif name == "run no-op":
        run_all()
    elif name == "async PING":
        loop.run_until_complete(run_concurrently(client.ping, count))
    else:
        call = CALLS[name]
        for _ in range(count):
            call()
    print(time.perf_counter() - began, flush=True)
"""
#: name of the call → calls per turn
TURNS = {
    "send": 100,
    "pending, idle": 100,
    "changes, idle": 100,
    "suggest": 100,
    "push": 100,
    "pop and ack": 100,
    "enqueue": 100,
    "run no-op": 200,
    "async send": 500,
}


class Checkout:
    """One checkout in its own process."""

    def __init__(self, path: str, url: str) -> None:
        child = [sys.executable, "-c", CHILD, str(Path(path).resolve()), url]
        process = subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process = cast(Any, process)
        ready = self._process.stdout.readline()
        if not ready:
            raise RuntimeError(f"The code of {path} can't run the operations: see the error above.")
        #: the operations that it has
        self.names: list[str] = json.loads(ready)

    def seconds(self, name: str, count: int) -> float:
        """Return how long `count` calls take."""
        self._process.stdin.write(f"{name} {count}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)


def main(old: str, new: str, rounds: int) -> None:
    from django_redis_messaging.devserver.server import EmbeddedServer

    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        with server.client() as client:
            os.sched_setaffinity(client.info("server")["process_id"], {0})
        url = server.url
        before, after = (Checkout(path, url) for path in (old, new))
        stack.callback(before.close)
        stack.callback(after.close)
        for name, count in TURNS.items():
            lacking = [path for path, one in ((old, before), (new, after)) if name not in one.names]
            if lacking:
                print(f"{name}: left out, {' and '.join(lacking)} doesn't have it", flush=True)
                continue
            show(f"{name}, new / old", [ratio(before, after, (name, name), count) for _ in range(rounds)])
        both = ("async PING", "async send")
        show("async send / redis.asyncio PING", [ratio(after, after, both, 1000) for _ in range(rounds)])


def ratio(first: Checkout, second: Checkout, names: tuple[str, str], count: int) -> float:
    """Return the rate of the second divided by the rate of the first, in turns ABBA."""
    a = first.seconds(names[0], count)
    b = second.seconds(names[1], count) + second.seconds(names[1], count)
    return (a + first.seconds(names[0], count)) / b


def show(title: str, ratios: list[float]) -> None:
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{title:36} {middle:5.2f}   ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 15)
