"""Two checkouts of this app against each other: `python -m benchmarks.versions OLD NEW [ROUNDS]`.

Each runs in a process of its own, against one server. They take turns, so that whatever slows the machine
slows both, and are pinned to one processor, the server to another, so that no turn is lucky with the
scheduler. Printed is the speed of NEW as a share of OLD's: the median over the rounds, and the middle half of
them. The last line compares NEW's async calls with redis.asyncio's bare PING, both with 50 tasks at once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

#: runs in either process, with the checkout first on its path
CHILD = """
import asyncio, os, sys, time, uuid
os.sched_setaffinity(0, {1})
sys.path.insert(0, sys.argv[1])
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_redis_messaging"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[2]}},
    REDIS_MESSAGING={"ALIAS": "default", "PREFIX": uuid.uuid4().hex},
    TASKS={"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend"}},
)
django.setup()
from django_redis_messaging import Chat, DelayQueue, Directory, Inbox
from django.tasks import task
import redis.asyncio

chat = Chat.create("ann", ["bob"], chat_id="room", keep_last=10)
for number in range(20):
    Chat.create("idle", [f"u{number}"], "hello", chat_id=f"idle-{number}")
Inbox("idle").pending()
directory = Directory("guild")
directory.add_many([(f"u{number}", f"Name {number}") for number in range(200)])
queue = DelayQueue("work")

@task
def nothing():
    pass
nothing.func.__module__ = "__main__"

def push(): queue.push("x")
def pop(): [queue.ack(job) for job in queue.pop(1)]
CALLS = {
    "send": lambda: chat.send("ann", "hello"),
    "pending, idle": lambda: Inbox("idle").pending(),
    "suggest": lambda: directory.suggest("nam"),
    "push": push,
    "pop and ack": pop,
    "enqueue": lambda: nothing.enqueue(),
}
loop = asyncio.new_event_loop()
client = redis.asyncio.Redis.from_url(sys.argv[2])

async def together(call, count):
    async def some():
        for _ in range(count // 50):
            await call()
    await asyncio.gather(*(some() for _ in range(50)))

print("ready", flush=True)
for line in sys.stdin:
    name, count = line.rstrip().rsplit(" ", 1)
    count = int(count)
    if name == "pop and ack":
        queue.push_many(["x"] * count)
    elif name in ("push", "enqueue"):
        queue.purge()
    began = time.perf_counter()
    if name == "async send":
        loop.run_until_complete(together(lambda: chat.asend("ann", "hello"), count))
    elif name == "async PING":
        loop.run_until_complete(together(client.ping, count))
    else:
        call = CALLS[name]
        for _ in range(count):
            call()
    print(time.perf_counter() - began, flush=True)
"""
#: what is measured, and how many calls make a turn
TURNS = {
    "send": 100,
    "pending, idle": 100,
    "suggest": 100,
    "push": 100,
    "pop and ack": 100,
    "enqueue": 100,
    "async send": 500,
}


class Checkout:
    """One checkout, in a process of its own."""

    def __init__(self, path: str, url: str) -> None:
        child = [sys.executable, "-c", CHILD, str(Path(path).resolve()), url]
        self._process: Any = subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process.stdout.readline()

    def seconds(self, name: str, count: int) -> float:
        """How long so many calls take."""
        self._process.stdin.write(f"{name} {count}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(10)


def main(old: str, new: str, rounds: int) -> None:
    from django_redis_messaging.core.embedded import EmbeddedServer

    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        with server.client() as client:
            os.sched_setaffinity(client.info("server")["process_id"], {0})
        url = server.url
        before, after = (Checkout(path, url) for path in (old, new))
        stack.callback(before.close)
        stack.callback(after.close)
        for name, count in TURNS.items():
            show(f"{name}, new / old", [ratio(before, after, (name, name), count) for _ in range(rounds)])
        both = ("async PING", "async send")
        show("async send / redis.asyncio PING", [ratio(after, after, both, 1000) for _ in range(rounds)])


def ratio(first: Checkout, second: Checkout, names: tuple[str, str], count: int) -> float:
    """The speed of the second as a share of the first's, in turns ABBA."""
    a = first.seconds(names[0], count)
    b = second.seconds(names[1], count) + second.seconds(names[1], count)
    return (a + first.seconds(names[0], count)) / b


def show(title: str, ratios: list[float]) -> None:
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{title:36} {middle:5.2f}   ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 15)
