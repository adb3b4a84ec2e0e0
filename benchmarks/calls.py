"""What one call costs, on a slow and on a fast machine: `python -m benchmarks.calls [--raw FILE]`.

A round trip costs more where the processors sleep between two messages: waking them takes longer than most
scripts. There, all calls look alike. The slow case is an idle machine with two processors. In the fast case,
a process of the lowest priority keeps each processor awake. The server and the client have one processor
each in both.

For each call: the time that the caller waits, the processor time of the client in it, and the time of the
server's commands; µs, medians of the rounds. The first rows are limits: a PING of redis-py's client, an
EVALSHA of the writes of a send by that client, and the same over a connection that is open. `--raw` writes
the figures of all rounds as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .harness import awake, driver, server, table

#: the writes of a send, and nothing else
WRITES = """
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
redis.call('ZADD', KEYS[3], 1, 'ann')
redis.call('HSETNX', KEYS[4], ARGV[3], ARGV[2])
return ARGV[2]
"""
ENTRY = '[1790000000000,3141592653,0,5,7,"ann","hello",1024,47]'
VALUE = "12-1790000000000-3141592653-1790000000000000-1000-1071"

Call = Callable[[], object]


class Cost(NamedTuple):
    """What a call took in one round: µs."""

    waited: float
    client: float
    server: float


class Measured(NamedTuple):
    """A call, and what prepares a number of calls."""

    call: Call
    prepare: Callable[[int], object] = lambda count: None


def limits() -> Iterator[tuple[str, Measured]]:
    """The least that a call costs."""
    client = driver()
    connection = client.connection_pool.get_connection()
    sha, keys = client.script_load(WRITES), [f"{{bare}}:{number}" for number in range(4)]
    number = iter(range(10**9))

    def words() -> list[str]:
        return ["EVALSHA", sha, "4", *keys, ENTRY, VALUE, f"{next(number):x}"]

    def exchange() -> None:
        connection.send_command(*words())
        connection.read_response()

    def clear(_: int) -> None:
        client.delete(*keys)

    yield "PING", Measured(client.ping)
    yield "bare script", Measured(lambda: client.execute_command(*words()), clear)
    yield "bare script, no client", Measured(exchange, clear)


def calls() -> Iterator[tuple[str, Measured]]:
    """The hot calls of this app."""
    from django.conf import settings

    from django_redis_messaging import (
        Broadcast,
        Chat,
        DelayQueue,
        Directory,
        Inbox,
        Lock,
        Mailbox,
        RateLimit,
        Semaphore,
    )

    settings.TASKS = {"default": {"BACKEND": "django_redis_messaging.tasks.RedisBackend"}}
    from .tasks import nothing

    chat = Chat.create("ann", ["bob"], chat_id="room")
    yield "Chat.send", Measured(lambda: chat.send("ann", "hello"))
    others = [Chat.create("eve", ["idle"], "hello") for _ in range(100)]
    inbox = Inbox("idle")
    inbox.pending(ack=True)
    yield f"Inbox.pending, {len(others)} idle chats", Measured(lambda: inbox.pending())
    for size in (2, 100):
        large = Chat.create("ann", [f"u{one}" for one in range(1, size)], "hello")
        first = large.changes("ann", after=1)
        known = {"edits": first.edits, "moved": first.moved, "events": first.event}
        yield f"Chat.changes, idle, {size} members", Measured(_idle(large, first.cursor, known))
    directory = Directory("guild")
    directory.add_many([(f"u{one}", f"Name {one}") for one in range(200)])
    yield "Directory.suggest", Measured(lambda: directory.suggest("nam"))
    queue, popped = DelayQueue("pushed"), DelayQueue("popped")
    yield "DelayQueue.push", Measured(lambda: queue.push("x"), lambda _: queue.purge())
    yield (
        "DelayQueue.pop and ack",
        Measured(
            lambda: [popped.ack(job) for job in popped.pop(1)], lambda count: popped.push_many(["x"] * count)
        ),
    )
    yield "task.enqueue", Measured(lambda: nothing.enqueue())
    channel, mailbox = Broadcast("news"), Mailbox("ann")
    yield "Broadcast.publish", Measured(lambda: channel.publish("hello"))
    yield "Mailbox.send", Measured(lambda: mailbox.send("hello"))
    lock, semaphore = Lock("door"), Semaphore("printers", 3, timeout=60)
    yield "Lock, acquire and release", Measured(lambda: (lock.acquire(), lock.release()))
    peer = driver().lock("theirs", timeout=10)
    yield "Lock of redis-py", Measured(lambda: (peer.acquire(), peer.release()))
    yield "Semaphore, acquire and release", Measured(lambda: (semaphore.acquire(), semaphore.release()))
    keys = itertools.cycle([f"user-{number}" for number in range(1000)])
    for algorithm in ("gcra", "window"):
        limit = RateLimit("search", 1000, per=3600, algorithm=algorithm)
        yield f"RateLimit.take, {algorithm}", Measured(lambda limit=limit: limit.take(next(keys)))


def _idle(chat: Any, cursor: str, known: dict[str, int]) -> Call:
    return lambda: chat.changes("ann", after=cursor, **known)


def measure(one: Measured, count: int, client: Any) -> Cost:
    """Make calls, one after another."""
    one.prepare(count)
    client.config_resetstat()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        one.call()
    waited, used = time.perf_counter() - began, time.process_time() - used
    stats = client.info("commandstats")
    # what runs in a script is part of its time
    scripts = [stat["usec"] for name, stat in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval")]
    others = [stat["usec"] for name, stat in stats.items() if "config" not in name and "info" not in name]
    return Cost(*(1e6 * one / count for one in (waited, used, 1e-6 * sum(scripts or others))))


def run(contenders: dict[str, Measured], rounds: int, count: int) -> dict[str, list[Cost]]:
    """Measure all calls in turns."""
    client = driver()
    found: dict[str, list[Cost]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, one in contenders.items():
            cost = measure(one, count, client)
            if number:  # the first round opens connections and loads scripts
                found[name].append(cost)
    return found


def rows(found: dict[str, list[Cost]]) -> list[list[str]]:
    """The medians."""
    shown = [["", "µs", "client", "server", "of PING"]]
    for name, costs in found.items():
        middle = Cost(*map(statistics.median, zip(*costs, strict=True)))
        ratios = [ping.waited / own.waited for ping, own in zip(found["PING"], costs, strict=True)]
        shown.append([name, *(f"{value:.0f}" for value in middle), f"{statistics.median(ratios):.2f}"])
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--calls", type=int, default=500, help="calls in a round")
    parser.add_argument("--raw", type=Path, help="write the figures of all rounds to this file")
    options = parser.parse_args()
    raw: dict[str, Any] = {}
    with server() as running:
        with running.client() as client:
            os.sched_setaffinity(client.info("server")["process_id"], {0})
        os.sched_setaffinity(0, {1})
        contenders = dict([*limits(), *calls()])
        raw["slow"] = run(contenders, options.rounds, options.calls)
        with awake():
            raw["fast"] = run(contenders, options.rounds, options.calls)
    for case, found in raw.items():
        print(f"\n{case} machine\n{table(rows(found))}", flush=True)
    if options.raw:
        rounded = {
            case: {name: [[round(us, 1) for us in cost] for cost in costs] for name, costs in found.items()}
            for case, found in raw.items()
        }
        options.raw.write_text(json.dumps(rounded, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
