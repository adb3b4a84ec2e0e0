"""The table of docs/round-trips.md: each public operation that has an async version, and its round trips."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, cycle
from pathlib import Path
from typing import Any

from django_redis_messaging import (
    Aggregator,
    Blocks,
    Broadcast,
    Chat,
    Choices,
    DelayQueue,
    Directory,
    Expiry,
    File,
    FileChannel,
    Inbox,
    Latch,
    Leader,
    Lock,
    Mailbox,
    MultiLock,
    RateLimit,
    ReadWriteLock,
    RecentContacts,
    Semaphore,
    explain,
    forget,
    live,
    notify,
    notify_many,
)
from django_redis_messaging.services.chats.values import Role
from django_redis_messaging.tasks import RedisBackend, TaskBatch, task, wait_for_result
from django_redis_messaging.tasks.compat import task_backends

from .budgets import Call
from .support.round_trips import round_trips
from .test_public import FILE

TABLE = Path(__file__).parent.parent / "docs" / "round-trips.md"
ROW = re.compile(r"^\| `([\w.]+)` \| (\d+|-) \| *(.*)\|$", re.MULTILINE)
#: lines of public.txt: both names of an operation, or that of an async version with other parameters
PAIR = re.compile(r"^(?:classmethod )?((?:\w+\.)?[a-z]\w*), a\w+\(", re.MULTILINE)
ASYNC = re.compile(r"^async ((?:\w+\.)?)a?([a-z]\w*)\(", re.MULTILINE)
#: runs of an operation before the one that is counted: scripts are loaded, and readers know what they read
RUNS = 2

#: an operation, its call, and what must be done before each call
Case = tuple[str, Call, Call] | tuple[str, Call]


def chats() -> Iterator[Case]:
    chat = Chat.create("ann", ["bob"], "Hello", chat_id="room", open=True)
    cursor = chat.history("ann").cursor
    roles: Iterator[Role] = cycle(["owner", "member"])
    created: list[Chat] = []
    sent = [chat.send("ann", "Hi").id]
    yield "Chat.create", lambda: Chat.create("ann", ["bob"], "Hello")
    yield "Chat.direct", lambda: Chat.direct("ann", "bob")
    yield "Chat.send", lambda: sent.append(chat.send("ann", "Hi").id)
    yield "Chat.edit", lambda: chat.edit("ann", 1, "Hello!")
    yield "Chat.delete_message", lambda: chat.delete_message("ann", 1)
    yield "Chat.history", lambda: chat.history("bob")
    yield "Chat.get_messages", lambda: chat.get_messages("bob", [1, 2])
    yield "Chat.search", lambda: chat.search("bob", "hi")
    yield "Chat.ack", lambda: chat.ack("bob", sent[-1]), lambda: sent.append(chat.send("ann", "Hi").id)
    yield "Chat.seen_by", lambda: chat.seen_by(2)
    yield "Chat.changes", lambda: chat.changes("bob", after=cursor)
    yield "Chat.changes_for", lambda: chat.changes_for(["ann", "bob"], after=cursor)
    yield "Chat.summaries_for", lambda: chat.summaries_for(["ann", "bob"])
    yield "Chat.typing", lambda: chat.typing("bob")
    yield "Chat.typists", chat.typists
    yield "Chat.add", lambda: chat.add(["cat"], by="ann"), lambda: chat.leave("cat")
    yield "Chat.join", lambda: chat.join("cat"), lambda: chat.leave("cat")
    yield "Chat.leave", lambda: chat.leave("cat"), lambda: chat.join("cat")
    yield "Chat.members", chat.members
    yield "Chat.role", lambda: chat.role("bob")
    yield "Chat.set_role", lambda: chat.set_role("ann", "bob", next(roles))
    yield "Chat.rename", lambda: chat.rename("ann", "Room")
    yield "Chat.mute", lambda: chat.mute("bob", None)
    yield "Chat.info", chat.info
    yield "Chat.delete", lambda: created.pop().delete("ann"), lambda: created.append(Chat.create("ann", []))


def inboxes() -> Iterator[Case]:
    # as in a page, each call has an Inbox of its own
    chat = Chat.create("ann", ["dan"], "Hello")
    yield "Inbox.unread", lambda: Inbox("dan").unread(), lambda: chat.send("ann", "Hi")
    yield "Inbox.chats", lambda: Inbox("dan").chats()
    Inbox("dan").pending(ack=True)
    Inbox("dan").pending()
    yield "Inbox.pending", lambda: Inbox("dan").pending()


def privacy() -> Iterator[Case]:
    blocks, choices, presence = Blocks("ann"), Choices(), live.Presence()
    yield "Blocks.block", lambda: blocks.block("mallory"), lambda: blocks.unblock("mallory")
    yield "Blocks.unblock", lambda: blocks.unblock("mallory"), lambda: blocks.block("mallory")
    yield "Blocks.list", blocks.list
    yield "Choices.choose", lambda: choices.choose("ann", online=False)
    yield "Choices.get", lambda: choices.get("ann")
    yield "Presence.enter", lambda: presence.enter("ann", "tab")
    yield "Presence.renew", lambda: presence.renew({"ann": "tab"})
    yield "Presence.online", lambda: presence.online(["ann", "bob"])
    yield "Presence.leave", lambda: presence.leave("ann", "tab"), lambda: presence.enter("ann", "tab")
    yield "forget", lambda: forget("nobody")


def mailboxes() -> Iterator[Case]:
    box, ids = Mailbox("ann"), list[int]()

    def send() -> None:
        ids.append(box.send("Hello").id)

    yield "Mailbox.send", send
    yield "Mailbox.fetch", box.fetch
    yield "Mailbox.unread", box.unread
    yield "Mailbox.status", box.status
    yield "Mailbox.mark_read", lambda: box.mark_read(ids[-1:]), send
    yield "Mailbox.discard", lambda: box.discard(ids[-1]), send
    yield "Mailbox.ack", lambda: box.ack(ids[-1]), send
    yield "Mailbox.clear", box.clear, send
    yield "notify", lambda: notify("ann", "Hello")
    yield "notify_many", lambda: notify_many(["ann", "bob"], "Hello")


def broadcasts() -> Iterator[Case]:
    news = Broadcast("news")
    yield "Broadcast.publish", lambda: news.publish("Hello")
    yield "Broadcast.cursor", news.cursor
    cursor = news.cursor()
    yield "Broadcast.fetch", lambda: news.fetch(cursor)
    yield "Broadcast.keep", lambda: news.keep("reader", cursor)
    yield "Broadcast.position", lambda: news.position("reader")


def contacts() -> Iterator[Case]:
    staff, recent = Directory("staff"), RecentContacts("ann")
    yield "Directory.add", lambda: staff.add("bob", "Bob Ray")
    yield "Directory.add_many", lambda: staff.add_many([("bob", "Bob Ray"), ("cat", "Cat Lee")])
    yield "Directory.suggest", lambda: staff.suggest("b")
    yield "Directory.labels", lambda: staff.labels(["bob", "cat"])
    yield "Directory.size", staff.size
    yield "Directory.remove", lambda: staff.remove("bob"), lambda: staff.add("bob", "Bob Ray")
    yield "Directory.remove_many", lambda: staff.remove_many(["bob"]), lambda: staff.add("bob", "Bob Ray")
    yield "RecentContacts.touch", lambda: recent.touch("bob")
    yield "RecentContacts.list", recent.list
    yield "RecentContacts.suggest", lambda: recent.suggest("b")
    yield "RecentContacts.remove", lambda: recent.remove("bob"), lambda: recent.touch("bob")


def timers() -> Iterator[Case]:
    orders = Expiry("orders")
    yield "Expiry.start", lambda: orders.start("17", 60)
    yield "Expiry.extend", lambda: orders.extend("17", 60)
    yield "Expiry.remaining", lambda: orders.remaining("17")
    yield "Expiry.cancel", lambda: orders.cancel("17"), lambda: orders.start("17", 60)


def jobs() -> Iterator[Case]:
    queue, done = DelayQueue("mail"), list[Any]()

    def push() -> None:
        queue.push("a job", job_id="job", delay=60)

    def pop() -> None:
        queue.purge()
        queue.push("a job")
        done[:] = queue.pop(1)

    def bury() -> None:
        pop()
        queue.fail(done[0], "a test")

    yield "DelayQueue.push", lambda: queue.push("a job")
    yield "DelayQueue.push_many", lambda: queue.push_many(["a job", "another"])
    yield "DelayQueue.execute_later", lambda: queue.execute_later("call", [1])
    yield "DelayQueue.pop", lambda: queue.pop(1), lambda: queue.push("a job")
    yield "DelayQueue.ack", lambda: queue.ack(done[0]), pop
    yield "DelayQueue.retry", lambda: queue.retry(done[0]), pop
    yield "DelayQueue.release", lambda: queue.release(done[0]), pop
    yield "DelayQueue.fail", lambda: queue.fail(done[0], "a test"), pop
    yield "DelayQueue.extend", lambda: queue.extend(done[0], 60), pop
    yield "DelayQueue.reschedule", lambda: queue.reschedule("job", 60), push
    yield "DelayQueue.cancel", lambda: queue.cancel("job"), push
    yield "DelayQueue.stats", queue.stats
    yield "DelayQueue.dead", queue.dead, bury
    yield "DelayQueue.pause", queue.pause
    yield "DelayQueue.paused", queue.paused
    yield "DelayQueue.resume", queue.resume
    yield "DelayQueue.redrive", queue.redrive, bury
    yield "DelayQueue.purge", queue.purge, push


@task
def nothing() -> None: ...


def tasks() -> Iterator[Case]:
    backend, results = task_backends["default"], list[Any]()
    assert isinstance(backend, RedisBackend)
    later = datetime.now(UTC) + timedelta(hours=1)
    delayed = nothing.using(run_after=later)

    def enqueue() -> None:
        results.append(delayed.enqueue())

    def cancel() -> None:
        enqueue()
        nothing.cancel(results[-1].id)

    yield "RedisBackend.enqueue", lambda: backend.enqueue(nothing, [], {})
    yield "RedisBackend.enqueue_many", lambda: backend.enqueue_many(nothing, [((), {})] * 2)
    yield "RedisTask.enqueue_many", lambda: nothing.enqueue_many([((), {})] * 2)
    yield "RedisBackend.get_result", lambda: backend.get_result(results[-1].id), enqueue
    yield "RedisBackend.reschedule", lambda: backend.reschedule(nothing, results[-1].id, later), enqueue
    yield "RedisTask.reschedule", lambda: nothing.reschedule(results[-1].id, later), enqueue
    yield "RedisBackend.cancel", lambda: backend.cancel(nothing, results[-1].id), enqueue
    yield "RedisBackend.pause", lambda: backend.pause("default")
    yield "RedisBackend.paused", backend.paused
    yield "RedisBackend.resume", lambda: backend.resume("default")
    yield "RedisBackend.set_concurrency", lambda: backend.set_concurrency("x", 1)
    yield "RedisTask.cancel", lambda: nothing.cancel(results[-1].id), enqueue
    yield "RedisBackend.stats", backend.stats
    yield "RedisBackend.dead", backend.dead
    yield "RedisBackend.redrive", lambda: backend.redrive("default", ["none"])
    yield "RedisBackend.workers", backend.workers
    own, intervals = backend.schedules, count(2)
    yield "Schedules.add", lambda: own.add("x", nothing, every=next(intervals), replace=True)
    yield "Schedules.change", lambda: own.change("x", every=next(intervals))
    yield "Schedules.pause", lambda: own.pause("x"), lambda: own.resume("x")
    yield "Schedules.resume", lambda: own.resume("x"), lambda: own.pause("x")
    yield "Schedules.run_now", lambda: own.run_now("x")
    yield "Schedules.all", own.all
    yield "Schedules.remove", lambda: own.remove("x"), lambda: own.add("x", nothing, every=5, replace=True)
    yield "RedisBackend.set_priority", lambda: backend.set_priority(nothing, results[-1].id, 5), enqueue
    yield "RedisTask.set_priority", lambda: nothing.set_priority(results[-1].id, 5), enqueue
    yield "RedisBackend.cancel_tagged", lambda: backend.cancel_tagged("none")
    yield "wait_for_result", lambda: wait_for_result(results[-1]), cancel
    yield from task_batches()


def task_batches() -> Iterator[Case]:
    batch = TaskBatch()

    def prepare() -> None:
        nonlocal batch
        batch = TaskBatch()
        batch.add(nothing)

    def enqueue() -> None:
        prepare()
        batch.enqueue()

    def done() -> None:
        enqueue()
        batch.cancel()

    yield "TaskBatch.enqueue", lambda: batch.enqueue(), prepare
    yield "TaskBatch.get", lambda: TaskBatch.get(batch.id), enqueue
    yield "TaskBatch.refresh", lambda: batch.refresh()
    yield "TaskBatch.results", lambda: list(batch.results())
    yield "TaskBatch.values", lambda: list(batch.values())
    yield "TaskBatch.wait_until_done", lambda: batch.wait_until_done(), done
    yield "TaskBatch.cancel", lambda: batch.cancel(), enqueue


def locks() -> Iterator[Case]:
    lock, pool, holders = Lock("door"), Semaphore("pool", 2), list[str]()

    def give_back() -> None:
        if pool.info().held:
            pool.release()

    def hold() -> None:
        other = Lock("door")
        other.acquire()
        holders.append(str(other.info().holder))

    yield "Lock.acquire", lock.acquire, lambda: lock.locked() and lock.release()
    yield "Lock.extend", lambda: lock.extend(10)
    yield "Lock.reacquire", lock.reacquire
    yield "Lock.owned", lock.owned
    yield "Lock.locked", lock.locked
    yield "Lock.info", lock.info
    yield "Lock.release", lock.release, lambda: lock.owned() or lock.acquire()
    yield "Lock.release_holder", lambda: lock.release_holder(holders[-1]), hold
    several = MultiLock(["a", "b", "c"])
    yield "MultiLock.acquire", several.acquire, lambda: several.owned() and several.release()
    yield "MultiLock.extend", lambda: several.extend(10)
    yield "MultiLock.reacquire", several.reacquire
    yield "MultiLock.owned", several.owned
    yield "MultiLock.release", several.release, lambda: several.owned() or several.acquire()
    yield "Semaphore.acquire", pool.acquire, give_back
    yield "Semaphore.refresh", pool.refresh
    yield "Semaphore.holders", pool.holders
    yield "Semaphore.waiting", pool.waiting
    yield "Semaphore.info", pool.info
    yield "Semaphore.set_limit", lambda: pool.set_limit(2)
    yield "Semaphore.release", pool.release, lambda: pool.info().held or pool.acquire()
    yield "Semaphore.release_holder", lambda: pool.release_holder("host:1:0")
    shelf = ReadWriteLock("shelf")
    for name, side in (("ReadLock", shelf.read), ("WriteLock", shelf.write)):
        yield f"{name}.acquire", side.acquire, lambda side=side: side.owned() and side.release()
        yield f"{name}.extend", side.extend
        yield f"{name}.owned", side.owned
        yield f"{name}.release", side.release, lambda side=side: side.owned() or side.acquire()
    yield "ReadWriteLock.info", shelf.info
    yield "ReadWriteLock.waiting", shelf.waiting
    yield "ReadWriteLock.release_holder", lambda: shelf.release_holder("host:1:0")


def rates() -> Iterator[Case]:
    limit = RateLimit("search", "100/m, 1000/h")
    yield "RateLimit.take", lambda: limit.take("ann")
    yield "RateLimit.peek", lambda: limit.peek("ann")
    yield "RateLimit.refund", lambda: limit.refund("ann")
    yield "RateLimit.reset", lambda: limit.reset("ann")


def coordination() -> Iterator[Case]:
    latch, leader = Latch("parts", 1), Leader("importer")
    yield "Latch.count_down", latch.count_down
    yield "Latch.wait_until_open", latch.wait_until_open
    yield "Latch.count", latch.count
    yield "Latch.info", latch.info
    yield "Latch.reset", latch.reset
    yield "Latch.delete", latch.delete, latch.count_down
    yield "Leader.run", lambda: leader.run(lambda term: None)
    yield "Leader.info", leader.info
    yield "Leader.step_down", leader.step_down, lambda: Lock("leader:importer").acquire(blocking=False)


def files(path: Path) -> Iterator[Case]:
    logs, visits, numbers = FileChannel("logs"), Aggregator("visits"), count()
    opened: list[tuple[Generator[File, None, None], File]] = []

    def write() -> None:
        path.write_bytes(b"one\ntwo\n")
        os.utime(path, (0, next(numbers)))  # it has changed, and is published again

    def publish(channel: FileChannel = logs) -> None:
        channel.publish(path, consumers=["reader"])

    def receive() -> None:
        for files, _ in opened:
            files.close()
        write()
        channel = FileChannel(f"logs {next(numbers)}")
        publish(channel)
        files = channel.consume("reader")
        opened[:] = [(files, next(files))]

    def parse(line: bytes) -> tuple[str, str]:
        return "2026", line.decode()

    yield "FileChannel.publish", publish, write
    yield "FileChannel.stats", logs.stats
    yield "FileChannel.release", lambda: logs.release("reader"), publish
    yield "File.blocks", lambda: list(opened[0][1].blocks()), receive
    yield "File.lines", lambda: list(opened[0][1].lines()), receive
    yield "File.batches", lambda: list(opened[0][1].batches(10)), receive
    yield "File.ack", lambda: opened[0][1].ack(), receive
    yield "Aggregator.add_file", lambda: visits.add_file(opened[0][1], parse), receive
    opened[0][0].close()
    yield "Aggregator.count", lambda: visits.count("2026", "one")
    yield "Aggregator.total", lambda: visits.total("2026")
    yield "Aggregator.top", lambda: visits.top("2026")
    yield "Aggregator.periods", visits.periods
    yield "Aggregator.malformed", visits.malformed
    yield "Aggregator.delete", visits.delete


def explanations() -> Iterator[Case]:
    Lock("nightly").acquire()
    yield "explain", lambda: explain("lock:nightly")


GROUPS = (
    chats, inboxes, privacy, mailboxes, broadcasts, contacts, timers, jobs, tasks, locks, rates, coordination,
    explanations,
)  # fmt: skip


def measure(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The operations, and what they take after some runs."""
    for cases in (*(group() for group in GROUPS), files(tmp_path / "log")):
        for name, call, *before in cases:
            for _ in range(RUNS + 1):
                for prepare in before:
                    prepare()
                trips = round_trips(call)
            yield name, str(trips)


def test_each_operation_takes_the_round_trips_of_the_table(tmp_path: Path) -> None:
    listed = ROW.findall(TABLE.read_text(encoding="utf-8"))
    assert dict(measure(tmp_path)) == {name: trips for name, trips, _ in listed if trips != "-"}


def test_the_table_has_each_public_operation_once() -> None:
    public = FILE.read_text(encoding="utf-8")
    operations = PAIR.findall(public) + ["".join(parts) for parts in ASYNC.findall(public)]
    listed = ROW.findall(TABLE.read_text(encoding="utf-8"))
    assert sorted(name for name, *_ in listed) == sorted(operations)
    assert all(reason for _, trips, reason in listed if trips == "-")
