"""What each service does, from its first call to its last: results that a site relies on.

`call` calls an operation in its sync or async form. Several resources of a kind have keys on several nodes.
"""

from __future__ import annotations

import asyncio
import gzip
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import django_redis_messaging as messaging
from django_redis_messaging import (
    Aggregator,
    Blocks,
    Broadcast,
    Chat,
    DelayQueue,
    Directory,
    Expiry,
    FileChannel,
    Inbox,
    Lock,
    Mailbox,
    NotAMember,
    NotPermitted,
    RateExceeded,
    RecentContacts,
    Semaphore,
    live,
)
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.common.rates import Rate
from django_redis_messaging.services.jobs.worker import Limits
from django_redis_messaging.services.listening import Listener
from tests.conftest import Call
from tests.live.test_streams import following
from tests.support.listeners import PATIENCE, Received
from tests.support.memory_file import Lines, parse
from tests.support.server import bodies, ids, until
from tests.support.workers import burst
from tests.tasks import jobs

Scenario = Callable[[Call], Awaitable[None]]
#: names of resources that are spread over all nodes
SEVERAL = [f"name-{number}" for number in range(8)]


async def chats_and_inboxes(call: Call) -> None:
    """Eight chats: sent, read by many at once, acked, left."""
    chats = [await call(Chat, "create", "ann", ["bob"], "one", chat_id=name) for name in SEVERAL]
    sent = [await call(chat, "send", "ann", "two", request_id="r") for chat in chats]
    assert [message.id for message in sent] == [2] * 8
    assert (await call(chats[0], "send", "ann", "two", request_id="r")).cursor == sent[0].cursor
    assert await call(Inbox("bob"), "unread") == 16
    pending = await call(Inbox("bob"), "pending")
    assert {one.chat_id: bodies(one) for one in pending} == {name: ["one", "two"] for name in SEVERAL}
    for one in pending[1:]:
        assert await call(Chat(one.chat_id), "ack", "bob", one.cursor) == 2
    [left] = await call(Inbox("bob"), "pending", ack=True)
    assert left.chat_id == pending[0].chat_id
    assert await call(Inbox("bob"), "pending") == []
    [newest, *_] = await call(Inbox("ann"), "chats")
    assert (newest.last_message.body, newest.unread, newest.member_count) == ("two", 0, 2)
    chat = chats[3]
    edited = await call(chat, "edit", "ann", 2, "three")
    assert (edited.body, edited.edited_at is None) == ("three", False)
    assert (await call(chat, "delete_message", "ann", 1)).deleted
    assert bodies(await call(chat, "history", "bob")) == ["", "three"]
    assert await call(chat, "leave", "bob")
    with pytest.raises(NotAMember):
        await call(chat, "send", "bob", "late")
    assert [member.user for member in await call(chat, "members")] == ["ann"]


async def live_events(call: Call) -> None:
    """Two streams follow eight chats, the lists and the mailboxes of their users, and who is online."""
    chats = [await call(Chat, "create", "ann", ["bob"], "one", chat_id=name) for name in SEVERAL]
    async with following("ann", rooms=SEVERAL) as ann, following("bob", rooms=SEVERAL) as bob:
        for chat in chats:
            at_begin = await bob.until(live.RoomChanged, lambda event, chat=chat: event.chat_id == chat.id)
            assert at_begin.changes.last_id == 1
        for chat in chats:
            await call(chat, "send", "ann", "two")
            for reader in (ann, bob):
                await reader.until(live.RoomChanged, lambda event, chat=chat: is_news(event, chat, "two"))
        await bob.until(live.ChatsChanged, lambda event: [one.unread for one in event.chats] == [2])
        await call(messaging, "notify", "bob", "Read this.")
        await bob.until(live.MailChanged, lambda event: event.status.unread == 1)
        await call(chats[5], "leave", "bob")
        await call(chats[5], "send", "ann", "three")
        await ann.until(live.RoomChanged, lambda event: is_news(event, chats[5], "three"))
        closed = await bob.until(live.RoomClosed)
        assert closed.chat_id == chats[5].id
        assert not any(is_news(event, chats[5], "three") for event in bob.events)


def is_news(event: object, chat: Chat, body: str) -> bool:
    """Whether an event has this message of a chat."""
    return (
        isinstance(event, live.RoomChanged)
        and event.chat_id == chat.id
        and body in [message.body for message in event.changes.messages]
    )


async def mailboxes(call: Call) -> None:
    """Notifications that are merged, read and discarded."""
    box = Mailbox("ann")
    await call(messaging, "notify", "ann", "Read this.", url="/orders/1/")
    assert [(await call(box, "send", {"n": n}, group="orders")).count for n in (1, 2)] == [1, 2]
    assert await call(box, "unread") == 2
    page = await call(box, "fetch")
    assert ([mail.payload.get("n") for mail in page.messages], page.gap, page.reset) == ([None, 2], 0, False)
    assert await call(box, "mark_read", [page.messages[0].id]) == 1
    assert await call(box, "unread") == 1
    assert await call(box, "ack", page.cursor) == page.messages[-1].id
    assert await call(box, "discard", page.messages[0].id)
    assert len((await call(box, "fetch")).messages) == 1
    assert await call(box, "clear") == 1
    assert (await call(box, "status")).unread == 0


async def broadcasts(call: Call) -> None:
    """Events in one order, also for a reader that waits."""
    channel = Broadcast("news")
    start = await call(channel, "cursor")
    published = [(await call(channel, "publish", n)).id for n in range(5)]
    assert published == list(range(published[0], published[0] + 5))
    first = await call(channel, "fetch", start, limit=3)
    rest = await call(channel, "fetch", first.cursor)
    assert [event.payload for event in (*first.events, *rest.events)] == [0, 1, 2, 3, 4]
    assert not first.missed
    assert not rest.missed
    with after(0.02, lambda: channel.publish("late")):
        late = await call(channel, "fetch", rest.cursor, wait=PATIENCE)
    assert [event.payload for event in late.events] == ["late"]
    await call(channel, "keep", "worker", late.cursor)
    assert await call(channel, "position", "worker") == late.cursor


async def queues(call: Call) -> None:
    """Jobs by priority, delayed, retried, buried, redriven."""
    queue: DelayQueue[Any] = DelayQueue("mail")
    await call(queue, "push_many", ["a", "b"])
    await call(queue, "push", "first", priority=5)
    await call(queue, "push", "never", delay=3600, job_id="never")
    taken = await call(queue, "pop", 2)
    assert [job.data for job in taken] == ["first", "a"]
    assert [await call(queue, "ack", job) for job in (taken[0], taken[0])] == [True, False]
    assert await call(queue, "extend", taken[1], 60)
    assert await call(queue, "fail", taken[1], "broken")
    stats = await call(queue, "stats")
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (1, 1, 0, 1)
    [dead] = await call(queue, "dead")
    assert (dead.data, dead.reason) == ("a", "broken")
    assert await call(queue, "redrive") == 1
    again = await call(queue, "pop", 5)
    assert sorted(job.data for job in again) == ["a", "b"]
    assert await call(queue, "cancel", "never")
    await call(queue, "push", "soon", delay=0.02)
    [soon] = await call(queue, "pop", 5, wait=PATIENCE)
    assert soon.data == "soon"
    assert all([await call(queue, "ack", job) for job in (*again, soon)])


async def tasks(call: Call) -> None:
    """Tasks of Django that a worker runs: results, errors, names."""
    done = await call(jobs.echo, "enqueue", 1, b="2")
    failed = await call(jobs.fail, "enqueue", "broken")
    several = await call(jobs.echo, "enqueue_many", [((n,), {}) for n in range(3)])
    cancelled = await call(jobs.echo, "enqueue", 9)
    assert await call(cancelled, "cancel")
    await asyncio.to_thread(burst)
    for result in (done, failed, *several):
        await call(result, "refresh")
    assert (done.status.name, done.return_value) == ("SUCCESSFUL", [[1], {"b": "2"}])
    assert (failed.status.name, failed.errors[0].exception_class) == ("FAILED", ValueError)
    assert [result.return_value for result in several] == [[[n], {}] for n in range(3)]


async def expiries(call: Call) -> None:
    """Timers that are extended and cancelled, and one that fires."""
    timers, received = Expiry("order"), Received()
    for name in ("kept", "cancelled"):
        await call(timers, "start", name, 3600, {"n": 1})
    assert await call(timers, "extend", "kept", 7200)
    assert 3600 < await call(timers, "remaining", "kept") <= 7200
    assert await call(timers, "cancel", "cancelled")
    assert await call(timers, "remaining", "cancelled") is None
    assert not await call(timers, "cancel", "cancelled")
    listener = Listener(
        {"order": TimerHandler("order", received, None)}, [], Limits(concurrency=1, drain=5.0)
    )
    thread = threading.Thread(target=listener.run, daemon=True)
    thread.start()
    await call(timers, "start", "due", 0.02, {"n": 2**53 + 1})
    await asyncio.to_thread(until, lambda: received)
    listener.stop()
    await call(timers, "start", "last", 0.001)  # wakes the listener, which stops then
    await asyncio.to_thread(thread.join, PATIENCE)
    assert not thread.is_alive()
    assert (received.names[0], received[0].payload) == ("due", {"n": 2**53 + 1})


async def locks(call: Call) -> None:
    """One holder at a time, growing fences, and a waiter that gets the released lock."""
    for name in SEVERAL[:4]:
        lock, other = (Lock(name, timeout=30, thread_local=False) for _ in range(2))
        assert await call(lock, "acquire")
        assert not await call(other, "acquire", blocking=False)
        assert await call(lock, "owned")
        assert await call(lock, "extend", 30)
        fence = lock.fence
        with after(0.01, lock.release):
            assert await call(other, "acquire", blocking_timeout=PATIENCE)
        assert other.fence > fence
        assert (await call(other, "info")).fence == other.fence
        await call(other, "release")
        assert not await call(other, "locked")


async def semaphores(call: Call) -> None:
    """Never more permits than the limit."""
    for name in SEVERAL[:4]:
        pool = Semaphore(name, 2, timeout=30)
        assert [await call(pool, "acquire") for _ in range(3)] == [True, True, False]
        assert await call(pool, "refresh")
        await call(pool, "set_limit", 3)
        assert await call(pool, "acquire")
        info = await call(pool, "info")
        assert (info.limit, info.held, info.waiting) == (3, 3, 0)
        assert len(await call(pool, "holders")) == 3
        for _ in range(3):
            await call(pool, "release")
        assert (await call(pool, "info")).held == 0


async def recent_contacts(call: Call) -> None:
    """The latest first, each once, found by any prefix."""
    contacts = RecentContacts("ann", size=3)
    for name in ("Zoë", "bob", "Bert", "carl", "bob"):
        await call(contacts, "touch", name)
    assert await call(contacts, "list") == ["bob", "carl", "Bert"]
    assert await call(contacts, "suggest", "B") == ["bob", "Bert"]
    await call(contacts, "remove", "bob")
    assert await call(contacts, "list") == ["carl", "Bert"]


async def directories(call: Call) -> None:
    """Names in any script, found by each word."""
    staff = Directory("staff")
    await call(staff, "add", "1", "John Smith Jones", aliases=["Jack"])
    assert await call(staff, "add_many", [("2", "Ärger"), ("3", "smith"), ("4", "Anna")]) == 3
    assert [contact.id for contact in await call(staff, "suggest", "SMITH")] == ["3", "1"]
    assert [contact.label for contact in await call(staff, "suggest", "ärg")] == ["Ärger"]
    assert [contact.id for contact in await call(staff, "suggest", "jac")] == ["1"]
    assert await call(staff, "labels", ["4", "9"]) == {"4": "Anna"}
    await call(staff, "remove", "1")
    assert await call(staff, "size") == 3
    assert await call(staff, "suggest", "jones") == []


async def blocks(call: Call) -> None:
    """Blocked people can't create chats with the user."""
    blocked = Blocks("ann")
    assert [await call(blocked, "block", "mallory") for _ in range(2)] == [True, False]
    assert await call(blocked, "list") == ["mallory"]
    with pytest.raises(NotPermitted):
        await call(Chat, "create", "mallory", ["ann"])
    assert await call(blocked, "unblock", "mallory")
    assert (await call(Chat, "create", "mallory", ["ann"])).id


async def files(call: Call) -> None:
    """Two files, one compressed, complete and in order for each of two consumers."""
    channel = FileChannel("logs")
    with tempfile.TemporaryDirectory() as folder:
        write_logs(Path(folder))
        report = await call(channel, "publish", folder, consumers=["a", "b"])
    assert (report.files, report.completed) == (2, True)
    for consumer in ("a", "b"):
        found = await consumed(call, channel, consumer)
        assert found == {"1.log": [b"line %d" % n for n in range(1000)], "2.log.gz": [b"last"]}
    assert (await call(channel, "stats")).bytes == 0


async def aggregates(call: Call) -> None:
    """Each line is counted once, also when its file is delivered again."""
    visits, lines = Aggregator("visits"), [b"mon DE", b"tue FR;tue DE", b"?", b"tue DE"]
    counted = [await call(visits, "add_file", Lines(lines), parse) for _ in range(2)]
    assert [(one.lines, one.malformed) for one in counted] == [(4, 1), (0, 0)]
    assert await call(visits, "periods") == ["mon", "tue"]
    assert [(one.key, one.count) for one in await call(visits, "top", "tue")] == [("DE", 2), ("FR", 1)]
    assert [await call(visits, "total", period) for period in ("mon", "tue")] == [1, 3]
    await call(visits, "delete")
    assert await call(visits, "periods") == []


async def rates(call: Call) -> None:
    """Two uses per minute."""
    rate = Rate("ann", "send", limit=2, period=60)
    assert [await call(rate, "take") for _ in range(2)] == [0, 0]
    assert 50 < await call(rate, "take") <= 60
    with pytest.raises(RateExceeded):
        await call(rate, "require")
    assert await call(Rate("bob", "send", limit=2, period=60), "take") == 0


async def forgetting(call: Call) -> None:
    """Nothing of a user is left, in any service and on any node."""
    chats = [await call(Chat, "create", "ann", ["bob"], "hello", chat_id=name) for name in SEVERAL]
    await call(RecentContacts("ann"), "touch", "bob")
    await call(Mailbox("ann"), "send", "mail")
    await call(Blocks("ann"), "block", "mallory")
    await call(Directory("staff"), "add", "ann", "Ann")
    await call(messaging, "forget", "ann")
    assert await call(Inbox("ann"), "chats") == []
    for chat in chats:
        assert [member.user for member in await call(chat, "members")] == ["bob"]
    assert await call(RecentContacts("ann"), "list") == []
    assert (await call(Mailbox("ann"), "fetch")).messages == []
    assert await call(Blocks("ann"), "list") == []
    assert await call(Directory("staff"), "size") == 0
    assert sum(map(len, [ids(one) for one in await call(Inbox("bob"), "pending")])) >= 8


#: one for each service
SCENARIOS = [
    chats_and_inboxes,
    live_events,
    mailboxes,
    broadcasts,
    queues,
    tasks,
    expiries,
    locks,
    semaphores,
    recent_contacts,
    directories,
    blocks,
    files,
    aggregates,
    rates,
    forgetting,
]


@contextmanager
def after(seconds: float, function: Callable[[], object]) -> Iterator[None]:
    """Call a function in a thread, so many seconds after the begin of the block."""
    timer = threading.Timer(seconds, function)
    timer.start()
    yield
    timer.join()


def write_logs(folder: Path) -> None:
    """A plain file and a compressed one."""
    folder.joinpath("1.log").write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    folder.joinpath("2.log.gz").write_bytes(gzip.compress(b"last\n"))


async def consumed(call: Call, channel: FileChannel, consumer: str) -> dict[str, list[bytes]]:
    """The lines of the files of a consumer up to the compressed one, each acked after it was read."""
    found: dict[str, list[bytes]] = {}
    async with aclosing(each(await call(channel, "consume", consumer))) as items:
        async for file in items:
            found[file.name] = [line async for line in each(await call(file, "lines"))]
            await call(file, "ack")
            if file.name.endswith(".gz"):
                break
    return found


async def each(items: Any) -> AsyncIterator[Any]:
    """The items of a sync or async iterator."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
