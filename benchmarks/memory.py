"""Measures the bytes of one item of each kind in Redis, beside the smallest form that Redis could keep it in.

uv run python -m benchmarks.memory
uv run python -m benchmarks.memory --items 20000

Bytes are the growth of `used_memory`. Request ids are remembered for some minutes; while there are few in a
resource (hash-max-listpack-entries), they take much less than this.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .clusters import Topology, topologies
from .harness import table

#: of a message, a mail and an event, without the quotes of JSON
BODY, MAIL, EVENT = "x" * 100, "x" * 53, "x" * 9
#: a block of a file
BLOCK = b"x" * 20
#: when an item was made: µs and ms
US, MS = 1_790_000_000_000_000, 1_790_000_000_000

Commands = Iterable[tuple[str | int | bytes, ...]]


class Kind(NamedTuple):
    """A kind of item."""

    name: str
    #: makes the items with these numbers
    make: Callable[[range], object]
    #: the commands that store the item with this number in the smallest form
    smallest: Callable[[int], Commands]


def send_messages(numbers: range) -> None:
    from django_redis_messaging import Chat

    chat = Chat.create("ann", ["bob"])
    for _ in numbers:
        chat.send("ann", BODY)


def smallest_message(at: int) -> Commands:
    yield "RPUSH", "message", f'[{MS + at},"ann","{BODY}"]'


def send_mails(numbers: range) -> None:
    from django_redis_messaging import Mailbox

    for at in numbers:
        Mailbox(f"user-{at % 10}").send(MAIL)


def smallest_mail(at: int) -> Commands:
    yield "HSET", "mail", at, f'[{MS + at},"{MAIL}"]'


def publish_events(numbers: range) -> None:
    from django_redis_messaging import Broadcast

    channel = Broadcast("news")
    for _ in numbers:
        channel.publish(EVENT)


def smallest_event(at: int) -> Commands:
    yield "RPUSH", "event", f'[{US + at},"{EVENT}"]'


def publish_files(numbers: range) -> None:
    from django_redis_messaging import FileChannel

    with tempfile.TemporaryDirectory() as directory:
        for at in numbers:
            Path(directory, f"{at}.txt").write_bytes(BLOCK)
        FileChannel("files").publish([directory], consumers=1)


def smallest_file(at: int) -> Commands:
    yield "SET", f"file:{at}.txt", BLOCK


def add_members(numbers: range) -> None:
    from django_redis_messaging import Directory

    Directory("guild").add_many((f"{at}", f"Johannes Smithsonians{at:06d}") for at in numbers)


def smallest_member(at: int) -> Commands:
    """An entry for each word, which alone finds the member and shows the label."""
    for start in ("johannes smithsonians", "smithsonians"):
        yield "ZADD", "members", 0, f"{start}{at:06d}\0{at}\0Johannes Smithsonians{at:06d}"


def execute_jobs(numbers: range) -> None:
    from .tasks import nothing, our_worker

    nothing.enqueue_many([((), {})] * len(numbers))
    our_worker(concurrency=1).run()


def smallest_job(at: int) -> Commands:
    moments = f"{MS + at},{MS + at},{MS + at}"
    yield "HSET", "job", f"{at:016x}", f'["benchmarks.tasks.nothing",[],{{}},{moments},null]'


def create_chats(numbers: range) -> None:
    from django_redis_messaging import Chat

    for at in numbers:
        Chat.create(f"left-{at}", [f"right-{at}"], chat_id=f"{at}")


def smallest_chat(at: int) -> Commands:
    """The positions of its members, and an entry in the list of chats of each."""
    yield "ZADD", f"members:{at}", 1, f"left-{at}", 0, f"right-{at}"
    yield "SADD", f"user:left-{at}", at
    yield "SADD", f"user:right-{at}", at


KINDS = [
    Kind("chat message of 100 bytes", send_messages, smallest_message),
    Kind("mail of 55 bytes", send_mails, smallest_mail),
    Kind("event of 11 bytes", publish_events, smallest_event),
    Kind("file of one small block", publish_files, smallest_file),
    Kind("member of a directory, 27 characters", add_members, smallest_member),
    Kind("job with a result", execute_jobs, smallest_job),
    Kind("chat of two", create_chats, smallest_chat),
]


def grown(client: Any, act: Callable[[], object]) -> int:
    """The bytes by which the server's data grows."""
    before = int(client.info("memory")["used_memory"])
    act()
    return int(client.info("memory")["used_memory"]) - before


def forget_requests(client: Any) -> None:
    for key in client.scan_iter(match="*requests*", count=1000):
        client.delete(key)


def store(client: Any, smallest: Callable[[int], Commands], numbers: range) -> None:
    pipeline = client.pipeline(transaction=False)
    for at in numbers:
        for command in smallest(at):
            pipeline.execute_command(*command)
    pipeline.execute()


def measure(client: Any, items: int) -> Iterator[list[str]]:
    for name, make, smallest in KINDS:
        make(range(items, items + 1))  # what only the first item needs is no part of the others
        forget_requests(client)
        all_bytes = grown(client, partial(make, range(items))) / items
        requests = -grown(client, partial(forget_requests, client)) / items
        least = grown(client, partial(store, client, smallest, range(items))) / items
        figures = (all_bytes, requests, all_bytes - requests, least)
        yield [name, *(f"{figure:.0f}" for figure in figures), f"{(all_bytes - requests) / least:.1f}"]


def main(items: int) -> None:
    server = Topology("single server", 1, cluster=False)
    backend = {"BACKEND": "django_redis_messaging.tasks.RedisBackend", "QUEUES": ["default"]}
    logging = {"version": 1, "loggers": {"django.tasks": {"level": "WARNING"}}}
    with topologies(server, TASKS={"default": backend}, LOGGING=logging):
        titles = ["item", "bytes", "request ids", "the rest", "smallest form", "the rest is"]
        print(table([titles, *measure(server.clients[0], items)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=5000)
    main(parser.parse_args().items)
