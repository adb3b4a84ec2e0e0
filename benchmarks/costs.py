"""Measures the constants of the capacity model: processor time and bytes of a single server.

uv run python -m benchmarks.costs
uv run python -m benchmarks.costs --rounds 5

The processor time is that of a busy server: one process sends the operations of 20 concurrent tasks. The
rates of one chat need redis-benchmark (Debian: redis-tools). Bytes are the growth of `used_memory`, without
remembered request ids, which expire after some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from .clusters import Topology, pin, topologies
from .harness import table
from .scaling import Measurement, Run, call
from .workload import LENGTH, Operation

BODY = "x" * LENGTH
#: calls of an operation in a round
CALLS = 500
#: messages of the chat whose messages are acked one by one: enough for 18 rounds
MAX_ACKS = 9500
#: numbers of members of the chats that messages are sent to
SIZES = (2, 10, 100, 1000)
#: chats, and messages, mails, jobs or connections, whose bytes are measured
CHATS, ITEMS, CONNECTIONS = 2000, 50_000, 500
#: calls of redis-benchmark
BENCHMARK_CALLS = 200_000
#: chats of each user
CHATS_OF_USER = 20


class Costs:
    """The operations that are measured, on one server."""

    def __init__(self, server: Topology) -> None:
        self._server = server
        self._client = server.clients[0]

    def operations(self) -> Iterator[tuple[str, Operation]]:
        from django_redis_messaging import Chat

        for size in SIZES:
            members = [f"m{number}" for number in range(1, size)]
            chat = Chat.create("ann", members, chat_id=f"read-{size}")
            yield (
                f"poll of a chat of {size:,} members, nothing new",
                _poll(chat, chat.changes("ann", after=0)),
            )
        for size in SIZES:
            members = [f"m{number}" for number in range(1, size)]
            chat = Chat.create("ann", members, chat_id=f"written-{size}")
            yield f"send to a chat of {size:,} members", _send(chat)
        for count in (1, 10, 50):
            chat = Chat.create("ann", ["bob"], chat_id=f"news-{count}")
            known = chat.changes("ann", after=0)
            for _ in range(count):
                chat.send("ann", BODY)
            yield f"poll of a chat of 2 members, {count} new messages", _poll(chat, known)
        yield "ack a message", self._ack()

    def _ack(self) -> Operation:
        """Ack the next message of a chat."""
        from django_redis_messaging import Chat

        chat = Chat.create("ann", ["bob"], chat_id="acked")
        for _ in range(MAX_ACKS):
            chat.send("ann", BODY)
        acked = itertools.count(1)

        async def ack(_: int) -> None:
            await chat.aack("bob", next(acked))

        return ack

    def bytes(self) -> Iterator[tuple[str, float]]:
        """The bytes of one item of each kind."""
        small = self._grown(lambda: _create_chats("small", 2)) / CHATS
        large = self._grown(lambda: _create_chats("large", 12)) / CHATS
        yield "member of a chat, with the entry in the user's list of chats", (large - small) / 10
        yield "chat without members and messages", small - (large - small) / 5
        yield f"message of {LENGTH} characters", self._grown(_send_messages) / ITEMS
        yield f"notification of {LENGTH} characters", self._grown(_send_mails) / ITEMS
        yield f"delayed job of {LENGTH} characters", self._grown(_push_jobs) / ITEMS
        with ExitStack() as stack:
            yield "connection", self._grown(lambda: self._connect(stack)) / CONNECTIONS

    def _grown(self, fill: Callable[[], object]) -> float:
        before = self._memory()
        fill()
        return self._memory() - before

    def _memory(self) -> int:
        for key in self._client.scan_iter(match="*requests*", count=1000):
            self._client.delete(key)
        return self._server.usage()[0].memory

    def _connect(self, stack: ExitStack) -> None:
        address = self._client.connection_pool.connection_kwargs["path"]
        for _ in range(CONNECTIONS):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(address)
            one.sendall(b"PING\r\n")
            one.recv(7)


def tasks(server: Topology, rounds: int) -> Iterator[list[str]]:
    """Enqueue tasks, and execute them, four at a time; `work` enqueues every second one, in bulk."""
    # not before Django is set up
    from .tasks import STOCK, nothing, work

    results = {name: Measurement() for name in ("enqueue a task", "execute a task")}
    for _ in range(rounds):
        start = server.usage()
        for _ in range(STOCK):
            nothing.enqueue()
        middle = server.usage()
        work(concurrency=4)
        results["enqueue a task"].add(start, middle, STOCK)
        results["execute a task"].add(middle, server.usage(), 2 * STOCK)
    for name, found in results.items():
        yield [name, found.cost()]


def hot_chat(server: Topology) -> Iterator[list[str]]:
    """Rates at which one chat is limited by the server alone: redis-benchmark with 50 connections."""
    from django_redis_messaging import Chat

    chat = Chat.create("ann", [f"m{number}" for number in range(1, 100)], chat_id="hot")
    known = chat.changes("m1", after=0)
    poll = {"after": known.cursor, "edits": known.edits, "moved": known.moved}
    yield ["polls, nothing new", _rate(server, chat, Chat.changes, "m1", **poll)]
    yield ["messages", _rate(server, chat, Chat.send, "ann", BODY, request_id="__rand_int__")]


def _rate(server: Topology, chat: Any, operation: Any, *args: str, **named: Any) -> str:
    """Calls per second of the script that an operation sends first."""
    script = next(operation.__wrapped__(chat, *args, **named))
    command = ["redis-benchmark", "-p", str(server.port), "-q", "-c", "50", "-n", str(BENCHMARK_CALLS)]
    command += ["-r", str(10**9), *map(str, script.words)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rates = re.findall(r"([\d.]+) requests per second", output)
    return f"{float(rates[-1]):,.0f}"


def _send(chat: Any) -> Operation:
    def send(_: int) -> Any:
        return chat.asend("ann", BODY)

    return send


def _poll(chat: Any, known: Any) -> Operation:
    def poll(_: int) -> Any:
        return chat.achanges("ann", after=known.cursor, edits=known.edits, moved=known.moved)

    return poll


def _create_chats(kind: str, members: int) -> None:
    """Create chats whose members are in CHATS_OF_USER chats each."""
    from django_redis_messaging import Chat

    users = CHATS * members // CHATS_OF_USER
    for at in range(CHATS):
        named = [f"{kind}-user-{(at * members + step) % users}" for step in range(members)]
        Chat.create(named[0], named[1:], chat_id=f"{kind}-{at}")


def _send_messages() -> None:
    from django_redis_messaging import Chat

    for at in range(ITEMS):
        Chat(f"small-{at % 500}").send(f"small-user-{at % 500 * 2 % 200}", BODY)


def _send_mails() -> None:
    from django_redis_messaging import Mailbox

    for at in range(ITEMS):
        Mailbox(f"user-{at % 500}").send({"text": BODY})


def _push_jobs() -> None:
    from django_redis_messaging import DelayQueue

    for at in range(ITEMS // 100):
        DelayQueue(f"queue-{at % 10}").push_many([BODY] * 100, delay=86_400)


def measure(server: Topology, costs: Costs, rounds: int, run: Run) -> Iterator[list[str]]:
    """Measure the processor time of each operation."""
    operations = dict(costs.operations())
    results = {name: Measurement() for name in operations}
    for turn in range(-1, rounds):
        for name, operation in operations.items():
            before = server.usage()
            run(call(operation, CALLS))
            if turn >= 0:
                results[name].add(before, server.usage(), CALLS)
    for name, found in results.items():
        yield [name, found.cost()]


def main(rounds: int) -> None:
    server = Topology("single server", 1, cluster=False)
    backend = {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default"]}
    logging = {"version": 1, "loggers": {"django.tasks": {"level": "WARNING"}}}
    with topologies(server, TASKS={"default": backend}, LOGGING=logging), asyncio.Runner() as runner:
        pin([server])
        costs = Costs(server)
        print(table([["operation", "µs"], *measure(server, costs, rounds, runner.run)]), "\n", flush=True)
        print(table([["operation", "µs"], *tasks(server, rounds)]), "\n", flush=True)
        if shutil.which("redis-benchmark"):
            print(table([["one chat of 100 members", "per second"], *hot_chat(server)]), "\n", flush=True)
        print(table([["item", "bytes"], *([name, f"{found:.0f}"] for name, found in costs.bytes())]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
