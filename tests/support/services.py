"""What each service does from its first call to its last, how callers repeat, and what is promised.

A story is the whole use of a service by one caller. It leaves nothing behind, so it can be repeated, and all
of its results are exact: nothing may be lost meanwhile. A `Shared` has resources that many callers use at
once. They repeat what a fault has let fail, and note what was acknowledged; `check` compares that with what
is there.
"""

from __future__ import annotations

import asyncio
import gzip
import inspect
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import pytest

import django_redis_messaging as messaging
from django_redis_messaging import (
    Aggregator,
    Blocks,
    Broadcast,
    Chat,
    DelayQueue,
    Directory,
    Expired,
    Expiry,
    FileChannel,
    Inbox,
    Lock,
    LockNotOwnedError,
    Mailbox,
    MultiLock,
    NotAMember,
    NotPermitted,
    OutcomeUnknown,
    RateExceeded,
    RateLimit,
    ReadWriteLock,
    RecentContacts,
    Semaphore,
    Unavailable,
    conf,
    live,
)
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.audit import AuditTrail
from django_redis_messaging.services.broadcasts.broadcast import BroadcastKeys
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.common.catalogue import Catalogue
from django_redis_messaging.services.common.things import Thing
from django_redis_messaging.services.expiries.timers import TIMERS
from django_redis_messaging.services.history.history import History
from django_redis_messaging.services.history.keys import Series
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.worker import Limits
from django_redis_messaging.services.listening import Listener
from django_redis_messaging.services.mailboxes.mailbox import MailboxKeys
from django_redis_messaging.services.rates.rate_limit import RateKeys
from django_redis_messaging.services.rates.user_rates import UserRate
from django_redis_messaging.services.semaphores.semaphore import SemaphoreKeys
from tests.support.clusters import PATIENCE, until
from tests.support.engines import timers
from tests.support.memory_file import Lines, parse

T = TypeVar("T")
#: calls an operation of an object by name, in its blocking or its async form
Call = Callable[..., Awaitable[Any]]
#: the whole use of a service; the second argument is the name of the caller
Story = Callable[[Call, str], Awaitable[None]]
#: a page, ids and contents of its items, and whether the reader was told about a loss
Read = tuple[Any, list[tuple[int, str]], bool]
#: the names of the resources of a kind, given the key of a resource: one for each primary
Spread = Callable[[Callable[[str], str]], list[str]]
#: the errors that a fault may cause
EXPECTED = (Unavailable, OutcomeUnknown)
#: seconds: lease of a job, lock or permit whose holder got no reply
LEASE = 2.0
#: seconds that a worker waits for a job
WAIT = 0.2
#: seconds: delay of the timers
DELAY = 0.2
#: maximum number of messages or events read at once, and of jobs
LIMIT, CLAIMED = 500, 10
#: the number of resources of a story that are spread over all nodes
SEVERAL = 8
_numbers = count(1)


async def blocking(subject: object, name: str, *arguments: object, **options: object) -> Any:
    """Call the blocking form of an operation."""
    return getattr(subject, name)(*arguments, **options)


async def awaiting(subject: object, name: str, *arguments: object, **options: object) -> Any:
    """Call the async form of an operation."""
    result = getattr(subject, f"a{name}")(*arguments, **options)
    return await result if inspect.isawaitable(result) else result


class Shared:
    """Resources of a service that many callers use at once."""

    #: what the operations create, in the plural
    things = ""

    def __init__(self, spread: Spread, *, using: str | None = None, lease: float = LEASE) -> None:
        self.names = spread(self.key)
        self.using = using
        self.lease = lease
        #: resource → when its operations were acknowledged (monotonic)
        self.acknowledged: dict[str, list[float]] = {name: [] for name in self.names}
        #: class of an error → how often a caller got it
        self.errors: Counter[str] = Counter()
        #: broken promises
        self.violations: list[str] = []
        #: acknowledged items without effect, and those that may not be among them: replicas had them
        self.lost: set[object] = set()
        self.kept: set[object] = set()
        #: operations with two effects; handlers called again; how often a reader or holder was told of a loss
        self.doubled = self.repeated = self.reported = 0

    @staticmethod
    def key(name: str) -> str:
        """The key whose slot is that of a resource."""
        raise NotImplementedError

    def begin(self) -> None:
        """Create the resources."""

    @contextmanager
    def processing(self) -> Iterator[None]:
        """A loop that must run while callers use the service."""
        yield

    async def produce(self, call: Call, name: str, item: str) -> None:
        """Use a resource once; nothing else has the name of this item."""
        raise NotImplementedError

    async def consume(self, call: Call, name: str) -> bool:
        """Read or process what is there; whether there was anything."""
        return False

    @property
    def items(self) -> set[object]:
        """What was acknowledged."""
        return set()

    @property
    def is_drained(self) -> bool:
        """Whether everything has been processed."""
        return True

    async def check(self, call: Call) -> None:
        """Compare what was acknowledged with what is there."""

    @property
    def total(self) -> int:
        """The number of acknowledged operations."""
        return sum(map(len, self.acknowledged.values()))

    def outage(self, since: float) -> float:
        """The longest time that a resource was without an acknowledged operation after this moment, s."""
        return max(
            max((b - a for a, b in pairwise([since, *(at for at in times if at > since)])), default=0.0)
            for times in self.acknowledged.values()
        )

    async def insist(self, name: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation on a resource until it is acknowledged."""
        while True:
            try:
                result = await operation()
            except EXPECTED as error:
                self.errors[type(error).__name__] += 1
            else:
                self.acknowledged[name].append(monotonic())
                return result

    async def attempt(self, operation: Awaitable[T], default: T) -> T:
        """The result of an operation, or `default` if it was not acknowledged."""
        try:
            return await operation
        except EXPECTED as error:
            self.errors[type(error).__name__] += 1
            return default


class Feed(Shared):
    """Resources that give each item an id: 1, 2, 3 … without holes, and a reader with a cursor of each."""

    def __init__(self, spread: Spread, **options: Any) -> None:
        super().__init__(spread, **options)
        #: (resource, content) → the acknowledged id
        self.sent: dict[tuple[str, str], int] = {}
        #: resource and content of what was not sent: Unavailable, and not repeated
        self.refused: set[tuple[str, str]] = set()
        #: resource → id → content, as its reader knows it
        self.known: dict[str, dict[int, str]] = {name: {} for name in self.names}
        self.cursors: dict[str, str | None] = dict.fromkeys(self.names)

    @property
    def items(self) -> set[object]:
        return set(self.sent)

    async def produce(self, call: Call, name: str, item: str) -> None:
        """Send an item, and repeat it only if the outcome is unknown."""
        request_id = uuid.uuid4().hex
        try:
            id_ = await self.send(call, name, item, request_id)
        except Unavailable as error:
            self.errors[type(error).__name__] += 1
            self.refused.add((name, item))
            return
        except OutcomeUnknown as error:
            self.errors[type(error).__name__] += 1
            id_ = await self.insist(name, lambda: self.send(call, name, item, request_id))
        else:
            self.acknowledged[name].append(monotonic())
        self.sent[name, item] = id_

    async def consume(self, call: Call, name: str) -> bool:
        page, items, is_reset = await self.attempt(
            self.read(call, name, self.cursors[name]), (None, [], False)
        )
        if page is None:
            return False
        self.cursors[name] = page.cursor
        known = self.known[name]
        if is_reset:  # it discards what the reader knows
            self.reported += 1
            known.clear()
        for id_, content in items:
            if known.setdefault(id_, content) != content:
                self.violations.append(f"{name}: {id_} was {known[id_]!r}, is {content!r}, without a reset")
        return bool(items)

    async def check(self, call: Call) -> None:
        for name in self.names:
            while await self.consume(call, name):
                pass
            self._compare(name, await self.stored(call, name))

    def _compare(self, name: str, stored: list[tuple[int, str]]) -> None:
        ids = dict(stored)
        if list(ids) != list(range(1, len(stored) + 1)):
            self.violations.append(f"{name}: ids have holes: {list(ids)}")
        if self.known[name] != ids:
            self.violations.append(f"{name}: the reader knows {len(self.known[name])} of {len(ids)}")
        if applied := self.refused & {(name, content) for content in ids.values()}:
            self.violations.append(f"applied although Unavailable was raised: {applied}")
        contents = Counter(content for _, content in stored)
        self.doubled += sum(times - 1 for times in contents.values())
        self.lost |= {item for item, id_ in self.sent.items() if item[0] == name and ids.get(id_) != item[1]}

    async def stored(self, call: Call, name: str) -> list[tuple[int, str]]:
        """Id and content of everything that is stored, oldest first."""
        found, cursor = list[tuple[int, str]](), None
        while True:
            page, items, _ = await self.read(call, name, cursor)
            if not items:
                return found
            found, cursor = [*found, *items], page.cursor

    async def send(self, call: Call, name: str, item: str, request_id: str) -> int:
        """Send an item; returns its id."""
        raise NotImplementedError

    async def read(self, call: Call, name: str, cursor: str | None) -> Read:
        """Read the items after a cursor."""
        raise NotImplementedError


class Chats(Feed):
    """Senders to each chat; a member who reads it with a cursor, and one who acks what is pending.

    The latter has no cursor, so a loss is not always reported to it: see docs/chat.md.
    """

    things = "messages"

    def __init__(self, spread: Spread, **options: Any) -> None:
        super().__init__(spread, **options)
        #: chat and content of the messages that were pending
        self._received: set[tuple[str, str]] = set()

    @staticmethod
    def key(name: str) -> str:
        return ChatKeys(conf.prefix(), name).log

    def begin(self) -> None:
        for name in self.names:
            Chat.create("ann", ["bob", "cat"], chat_id=name, keep_last=10_000, using=self.using)

    async def send(self, call: Call, name: str, item: str, request_id: str) -> int:
        sent = await call(Chat(name, using=self.using), "send", "ann", item, request_id=request_id)
        return int(sent.id)

    async def read(self, call: Call, name: str, cursor: str | None) -> Read:
        page = await call(Chat(name, using=self.using), "history", "cat", after=cursor or 0, limit=LIMIT)
        return page, [(message.id, message.body) for message in page.messages], page.reset

    async def consume(self, call: Call, name: str) -> bool:
        found = await super().consume(call, name)
        return (name == self.names[0] and await self.attempt(self._ack(call), False)) or found

    async def check(self, call: Call) -> None:
        await super().check(call)
        for name in self.names:
            missing = {(name, body) for _, body in await self.stored(call, name)} - self._received
            if missing:
                self.violations.append(f"never pending: {missing}")

    async def _ack(self, call: Call) -> bool:
        """Ack what is pending in all chats; whether there was anything."""
        found = await call(Inbox("bob", using=self.using), "pending", limit=LIMIT)
        for pending in found:
            self._received |= {(pending.chat_id, message.body) for message in pending.messages}
            await call(Chat(pending.chat_id, using=self.using), "ack", "bob", pending.cursor)
        return bool(found)

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """Eight chats: sent, read by many at once, acked, edited, left, deleted."""
        ann, bob = f"{me}-ann", f"{me}-bob"
        names = [f"{me}-{number}" for number in range(SEVERAL)]
        chats = [await call(Chat, "create", ann, [bob], "one", chat_id=name) for name in names]
        request_id = f"r{next(_numbers)}"
        sent = [await call(chat, "send", ann, "two", request_id=request_id) for chat in chats]
        assert [message.id for message in sent] == [2] * SEVERAL
        assert (await call(chats[0], "send", ann, "two", request_id=request_id)).cursor == sent[0].cursor
        assert await call(Inbox(bob), "unread") == 2 * SEVERAL
        pending = await call(Inbox(bob), "pending")
        assert {one.chat_id: bodies(one.messages) for one in pending} == {
            name: ["one", "two"] for name in names
        }
        for one in pending[1:]:
            assert await call(Chat(one.chat_id), "ack", bob, one.cursor) == 2
        [left] = await call(Inbox(bob), "pending", ack=True)
        assert left.chat_id == pending[0].chat_id
        assert await call(Inbox(bob), "pending") == []
        [newest, *_] = await call(Inbox(ann), "chats")
        assert (newest.last_message.body, newest.unread, newest.member_count) == ("two", 0, 2)
        chat = chats[3]
        edited = await call(chat, "edit", ann, 2, "three")
        assert (edited.body, edited.edited_at is None) == ("three", False)
        assert (await call(chat, "delete_message", ann, 1)).deleted
        assert bodies((await call(chat, "history", bob)).messages) == ["", "three"]
        assert await call(chat, "leave", bob)
        with pytest.raises(NotAMember):
            await call(chat, "send", bob, "late")
        assert await call(chat, "join", bob, by=ann)
        assert [member.user for member in await call(chat, "members")] == [ann, bob]
        assert await call(chat, "leave", bob)
        assert [member.user for member in await call(chat, "members")] == [ann]
        for chat in chats:
            await call(chat, "delete", ann)
        assert await call(Inbox(ann), "chats") == []


class Mailboxes(Feed):
    """A mailbox, and a reader who marks as read and acks."""

    things = "mails"

    @staticmethod
    def key(name: str) -> str:
        return MailboxKeys(conf.prefix(), name).newest

    async def send(self, call: Call, name: str, item: str, request_id: str) -> int:
        return int((await call(Mailbox(name, using=self.using), "send", item, request_id=request_id)).id)

    async def read(self, call: Call, name: str, cursor: str | None) -> Read:
        page = await call(Mailbox(name, using=self.using), "fetch", after=cursor, limit=LIMIT)
        if page.gap:
            self.violations.append(f"{name}: a gap of {page.gap}")
        return page, [(mail.id, mail.payload) for mail in page.messages], page.reset

    async def consume(self, call: Call, name: str) -> bool:
        if await super().consume(call, name):
            box = Mailbox(name, using=self.using)
            await self.attempt(call(box, "mark_read", [max(self.known[name])]), 0)
            await self.attempt(call(box, "ack", self.cursors[name]), 0)
            return True
        return False

    async def check(self, call: Call) -> None:
        await super().check(call)
        for name in self.names:
            if unread := await call(Mailbox(name, using=self.using), "unread"):
                self.violations.append(f"{name}: {unread} are unread, but all were acked")

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """Notifications that are merged, read and discarded."""
        box = Mailbox(me)
        await call(messaging, "notify", me, "Read this.", url="/orders/1/")
        assert [(await call(box, "send", {"n": n}, group="orders")).count for n in (1, 2)] == [1, 2]
        assert await call(box, "unread") == 2
        page = await call(box, "fetch")
        found = [mail.payload.get("n") for mail in page.messages]
        assert (found, page.gap, page.reset) == ([None, 2], 0, False)
        assert await call(box, "mark_read", [page.messages[0].id]) == 1
        assert await call(box, "unread") == 1
        assert await call(box, "ack", page.cursor) == page.messages[-1].id
        assert await call(box, "discard", page.messages[0].id)
        assert len((await call(box, "fetch")).messages) == 1
        assert await call(box, "clear") == 1
        assert (await call(box, "status")).unread == 0


class Broadcasts(Feed):
    """Publishers to each channel, and a reader."""

    things = "events"

    @staticmethod
    def key(name: str) -> str:
        return BroadcastKeys(conf.prefix(), name).head

    async def send(self, call: Call, name: str, item: str, request_id: str) -> int:
        return int((await call(Broadcast(name, using=self.using), "publish", item, request_id=request_id)).id)

    async def read(self, call: Call, name: str, cursor: str | None) -> Read:
        batch = await call(Broadcast(name, using=self.using), "fetch", cursor, limit=LIMIT)
        return batch, [(event.id, event.payload) for event in batch.events], batch.missed

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """Events in one order, also for a reader that waits."""
        channel = Broadcast(me)
        start = await call(channel, "cursor")
        published = [(await call(channel, "publish", n)).id for n in range(5)]
        assert published == list(range(published[0], published[0] + 5))
        first = await call(channel, "fetch", start, limit=3)
        rest = await call(channel, "fetch", first.cursor)
        assert [event.payload for event in (*first.events, *rest.events)] == [0, 1, 2, 3, 4]
        assert (first.missed, rest.missed) == (False, False)
        with after(0.02, lambda: channel.publish("late")):
            late = await call(channel, "fetch", rest.cursor, wait=PATIENCE)
        assert [event.payload for event in late.events] == ["late"]
        await call(channel, "keep", "worker", late.cursor)
        assert await call(channel, "position", "worker") == late.cursor


class Handled(Shared):
    """Items that must be handled. A handler may be called again if its ack was lost, with a larger fence."""

    def __init__(self, spread: Spread, **options: Any) -> None:
        super().__init__(spread, **options)
        self._created: list[str] = []
        #: item → the ids and fences with which it was handled
        self._handled: dict[str, list[tuple[int, int]]] = {}

    @property
    def items(self) -> set[object]:
        return set(self._created)

    async def create(self, call: Call, name: str, item: str, subject: object, *operation: Any) -> None:
        """Create an item, whatever it takes."""
        request_id = uuid.uuid4().hex
        await self.insist(name, lambda: call(subject, *operation, request_id=request_id))
        self._created.append(item)

    def handle(self, item: str, id_: int, fence: int) -> None:
        self._handled.setdefault(item, []).append((id_, fence))

    async def check(self, call: Call) -> None:
        self.lost = self.items - set(self._handled)
        for item, runs in self._handled.items():
            ids, fences = {id_ for id_, _ in runs}, [fence for _, fence in runs]
            self.doubled += len(ids) - 1
            self.repeated += len(runs) - len(ids)
            if fences != sorted(set(fences)):
                self.violations.append(f"{self.things}, {item}: fences {fences}")


class Jobs(Handled):
    """Queues whose workers claim several jobs at once, and ack each."""

    things = "jobs"

    def __init__(self, spread: Spread, **options: Any) -> None:
        super().__init__(spread, **options)
        #: jobs whose ack was acknowledged
        self._acked: Counter[str] = Counter()

    @staticmethod
    def key(name: str) -> str:
        return JobKeys(conf.prefix(), "queue", name).jobs

    @property
    def is_drained(self) -> bool:
        stats = [DelayQueue(name, using=self.using).stats() for name in self.names]
        return not any(one.ready + one.delayed + one.leased for one in stats)

    async def produce(self, call: Call, name: str, item: str) -> None:
        data = f"{name} {item}"
        await self.create(call, name, data, DelayQueue(name, using=self.using), "push", data)

    async def consume(self, call: Call, name: str) -> bool:
        queue: DelayQueue[str] = DelayQueue(name, using=self.using)
        jobs = await self.attempt(call(queue, "pop", CLAIMED, lease=self.lease, wait=WAIT), [])
        for job in jobs:
            self.handle(job.data, job.id, job.fence)
            self._acked[job.data] += await self.attempt(call(queue, "ack", job), None) or 0
        return bool(jobs)

    async def check(self, call: Call) -> None:
        await super().check(call)
        if twice := {data for data, times in self._acked.items() if times > 1}:
            self.lost |= twice
        if dead := [job for name in self.names for job in DelayQueue(name, using=self.using).dead()]:
            self.violations.append(f"dead jobs: {dead}")

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """Jobs by priority, delayed, failed, redriven, cancelled."""
        queue: DelayQueue[Any] = DelayQueue(me)
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


class Timers(Handled):
    """Timers that a listener in this process handles."""

    things = "timers"

    def __init__(self, spread: Spread, **options: Any) -> None:
        super().__init__(lambda key: [f"order{next(_numbers)}"], **options)

    @staticmethod
    def key(name: str) -> str:
        return JobKeys(conf.prefix(), *TIMERS).jobs

    @property
    def is_drained(self) -> bool:
        return not any(sum(timers().stats(name)[:3]) for name in self.names)

    @contextmanager
    def processing(self) -> Iterator[None]:
        handlers = {name: TimerHandler(name, self._fire, None) for name in self.names}
        listener = Listener(handlers, [], Limits(concurrency=2, drain=LEASE, lease=self.lease))
        with in_thread(listener.run):
            yield
            listener.stop()
            with suppress(*EXPECTED):
                Expiry(self.names[0], using=self.using).start("last", 0.001)  # wakes the listener
        if listener.failed:
            self.violations.append("the listener ended by an error")

    async def produce(self, call: Call, name: str, item: str) -> None:
        await self.create(call, name, item, Expiry(name, using=self.using), "start", item, DELAY)

    def _fire(self, expired: Expired) -> None:
        self.handle(expired.name, expired.id, expired.fence)

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """Timers that are extended and cancelled, and one that fires."""
        orders, received = Expiry(me), list[Expired]()
        for name in ("kept", "cancelled"):
            await call(orders, "start", name, 3600, {"n": 1})
        assert await call(orders, "extend", "kept", 7200)
        assert 3600 < await call(orders, "remaining", "kept") <= 7200
        for name in ("kept", "cancelled"):
            assert await call(orders, "cancel", name)
        assert await call(orders, "remaining", "cancelled") is None
        assert not await call(orders, "cancel", "cancelled")
        listener = Listener(
            {me: TimerHandler(me, received.append, None)}, [], Limits(concurrency=1, drain=5.0)
        )
        with in_thread(listener.run):
            await call(orders, "start", "due", 0.02, {"n": 2**53 + 1})
            await asyncio.to_thread(until, lambda: received)
            listener.stop()
            await call(orders, "start", "last", 0.001)  # wakes the listener, which stops then
        await call(orders, "cancel", "last")
        assert (received[0].name, received[0].payload) == ("due", {"n": 2**53 + 1})


class Locks(Shared):
    """Each lock is acquired and released by several callers."""

    things = "locks"
    #: number of callers that may hold a resource at the same time
    limit = 1

    def __init__(self, spread: Spread, **options: Any) -> None:
        super().__init__(spread, **options)
        #: resource → the fences of its holders, in their order
        self._fences: dict[str, list[int]] = {name: [] for name in self.names}
        self._inside: Counter[str] = Counter()
        self._counting = threading.Lock()
        #: the largest number of callers that held one resource at the same time
        self.together = 0

    @staticmethod
    def key(name: str) -> str:
        return Lock(name).key

    async def produce(self, call: Call, name: str, item: str) -> None:
        lock = Lock(name, timeout=self.lease, using=self.using, thread_local=False)
        await self.insist(name, lambda: call(lock, "acquire"))
        self._count(name, 1)
        self._fences[name].append(lock.fence)
        await self._release(call, name, lock)

    async def check(self, call: Call) -> None:
        for name, fences in self._fences.items():
            if fences != sorted(set(fences)):
                self.violations.append(f"lock {name}: the fences {fences} don't grow")

    def _count(self, name: str, by: int) -> None:
        with self._counting:
            self._inside[name] += by
            self.together = max(self.together, self._inside[name])

    async def _release(self, call: Call, name: str, holder: object) -> None:
        self._count(name, -1)
        try:
            await self.attempt(call(holder, "release"), None)
        except (LockNotOwnedError, messaging.SemaphoreError):
            self.reported += 1

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """One holder at a time, growing fences, and a waiter that gets the released lock."""
        for number in range(4):
            lock, other = (Lock(f"{me}-{number}", timeout=30, thread_local=False) for _ in range(2))
            assert await call(lock, "acquire")
            assert not await call(other, "acquire", blocking=False)
            assert await call(lock, "owned")
            assert await call(lock, "extend", 30)
            fence = lock.fence
            with after(0.01, lock.release):
                assert await call(other, "acquire", blocking_timeout=PATIENCE)
            assert other.fence > fence
            assert (await call(other, "info")).fence == other.fence
            both = MultiLock([lock.name, f"{me}-also"], timeout=30)
            assert not await call(both, "acquire", blocking=False)
            await call(other, "release")
            assert not await call(other, "locked")
            assert await call(both, "acquire")
            assert both.fences[lock.name] > other.fence
            await call(both, "release")


class Semaphores(Locks):
    """Each semaphore has two permits, and more callers."""

    things = "permits"
    limit = 2

    @staticmethod
    def key(name: str) -> str:
        return SemaphoreKeys(conf.prefix(), name).holders

    async def produce(self, call: Call, name: str, item: str) -> None:
        options = {"blocking": True, "blocking_timeout": PATIENCE, "using": self.using}
        pool = Semaphore(name, self.limit, timeout=self.lease, **options)
        await self.insist(name, lambda: call(pool, "acquire"))
        self._count(name, 1)
        await self._release(call, name, pool)

    @property
    def is_drained(self) -> bool:
        found = [Semaphore(name, self.limit, using=self.using).info() for name in self.names]
        return not any(one.held + one.waiting for one in found)

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """Never more permits than the limit."""
        for number in range(4):
            pool = Semaphore(f"{me}-{number}", 2, timeout=30)
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
            await call(pool, "set_limit", 2)


class Rates(Shared):
    """Each key of a rate limit is used with request ids, and never as often as the limit."""

    things = "uses"

    def __init__(self, spread: Spread, **options: Any) -> None:
        super().__init__(spread, **options)
        self._used: list[tuple[str, str]] = []
        # the level falls by less than one use meanwhile
        self._limit = RateLimit("calls", 30_000, per=timedelta(days=3000), using=self.using)

    @staticmethod
    def key(name: str) -> str:
        return RateKeys(conf.prefix(), "calls", name, 0).level

    @property
    def items(self) -> set[object]:
        return set(self._used)

    async def produce(self, call: Call, name: str, item: str) -> None:
        await self.insist(name, lambda: call(self._limit, "take", name, request_id=item))
        self._used.append((name, item))

    async def check(self, call: Call) -> None:
        for name in self.names:
            used = [item for item in self._used if item[0] == name]
            counted = self._limit.rates[0].limit - (await call(self._limit, "peek", name)).remaining
            self.doubled += max(counted - len(used), 0)
            self.lost |= set(used[counted:])  # the latest ones, as far as anybody can know

    @staticmethod
    async def story(call: Call, me: str) -> None:
        """Two uses per minute, by either algorithm; a request counts once."""
        for algorithm in ("gcra", "window"):
            limit = RateLimit(f"{me} {algorithm}", "2/m, 3/h", algorithm=algorithm)
            for key in (f"{me}-{number}" for number in range(4)):
                for request_id in ("a", "a", "b"):
                    assert await call(limit, "take", key, request_id=request_id)
                refused = await call(limit, "take", key)
                assert not refused
                assert 25 < refused.retry_after <= 60
                assert await call(limit, "refund", key)
                assert (await call(limit, "peek", key)).remaining == 1
                assert await call(limit, "reset", key)
                assert (await call(limit, "peek", key)).remaining == 2


async def coordination(call: Call, me: str) -> None:
    """Latches that open once, and the leadership that passes on."""
    for number in range(SEVERAL):
        latch = messaging.Latch(f"{me}-{number}", 2)
        assert await call(latch, "count_down", request_id="a") == 1
        with after(0.01, lambda latch=latch: latch.count_down(request_id="b")):
            assert await call(latch, "wait_until_open", PATIENCE)
        assert await call(latch, "reset") == (await call(latch, "info")).round
        assert await call(latch, "delete")
        leader, fences = messaging.Leader(f"{me}-{number}"), list[int]()
        for _ in range(2):
            await call(leader, "run", lambda term, fences=fences: fences.append(term.fence))
        assert fences[0] < fences[1]
        assert not await call(leader, "step_down")


async def live_events(call: Call, me: str) -> None:
    """Two streams follow eight chats, the lists and the mailboxes of their users, and who is online."""
    from tests.live.test_streams import following

    names = [f"{me}-{number}" for number in range(SEVERAL)]
    chats = [await call(Chat, "create", "ann", ["bob"], "one", chat_id=name) for name in names]
    async with following("ann", rooms=names) as ann, following("bob", rooms=names) as bob:
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
        and body in bodies(event.changes.messages)
    )


async def tasks(call: Call, me: str) -> None:
    """Tasks of Django that a worker runs: results, errors, cancellation."""
    from tests.support.workers import burst
    from tests.tasks import jobs

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


async def read_write_locks(call: Call, me: str) -> None:
    """Two readers, then a writer with a greater fence."""
    for number in range(4):
        lock, other = (ReadWriteLock(f"{me}-{number}", timeout=30) for _ in range(2))
        for reader in (lock.read, other.read):
            assert await call(reader, "acquire")
            await call(reader, "extend")
            assert await call(reader, "owned")
        writer = ReadWriteLock(lock.name, timeout=30).write
        assert not await call(writer, "acquire", blocking=False)
        await call(lock.read, "release")
        await call(other.read, "release")
        assert await call(writer, "acquire", blocking_timeout=PATIENCE)
        assert writer.fence > other.read.fence
        info = await call(lock, "info")
        assert (info.readers, info.fence, len(info.holders)) == (0, writer.fence, 1)
        await call(writer, "release")


async def recent_contacts(call: Call, me: str) -> None:
    """The latest first, each once, found by any prefix."""
    contacts = RecentContacts(me, size=3)
    for name in ("Zoë", "bob", "Bert", "carl", "bob"):
        await call(contacts, "touch", name)
    assert await call(contacts, "list") == ["bob", "carl", "Bert"]
    assert await call(contacts, "suggest", "B") == ["bob", "Bert"]
    for name in ("bob", "carl"):
        await call(contacts, "remove", name)
    assert await call(contacts, "list") == ["Bert"]


async def directories(call: Call, me: str) -> None:
    """Names in any script, found by each word."""
    staff = Directory(me)
    await call(staff, "add", "1", "John Smith Jones", aliases=["Jack"])
    assert await call(staff, "add_many", [("2", "Ärger"), ("3", "smith"), ("4", "Anna")]) == 3
    assert [contact.id for contact in await call(staff, "suggest", "SMITH")] == ["3", "1"]
    assert [contact.label for contact in await call(staff, "suggest", "ärg")] == ["Ärger"]
    assert [contact.id for contact in await call(staff, "suggest", "jac")] == ["1"]
    assert await call(staff, "labels", ["4", "9"]) == {"4": "Anna"}
    await call(staff, "remove", "1")
    assert await call(staff, "size") == 3
    assert await call(staff, "suggest", "jones") == []
    await call(staff, "remove_many", ["2", "3", "4"])


async def blocks(call: Call, me: str) -> None:
    """Blocked people can't create chats with the user."""
    blocked = Blocks(me)
    assert [await call(blocked, "block", "mallory") for _ in range(2)] == [True, False]
    assert await call(blocked, "list") == ["mallory"]
    with pytest.raises(NotPermitted):
        await call(Chat, "create", "mallory", [me])
    assert await call(blocked, "unblock", "mallory")
    assert await call(blocked, "list") == []
    chat = await call(Chat, "create", "mallory", [me])
    await call(chat, "delete", "mallory")


async def files(call: Call, me: str) -> None:
    """Two files, one compressed, complete and in order for each of two consumers."""
    channel = FileChannel(me)
    with tempfile.TemporaryDirectory() as folder:
        write_logs(Path(folder))
        report = await call(channel, "publish", folder, consumers=["a", "b"])
    assert (report.files, report.completed) == (2, True)
    for consumer in ("a", "b"):
        found: dict[str, list[bytes]] = {}
        async with aclosing(each(await call(channel, "consume", consumer))) as items:
            async for file in items:
                found[file.name] = [line async for line in each(await call(file, "lines"))]
                await call(file, "ack")
                if file.name.endswith(".gz"):
                    break
        assert found == {"1.log": [b"line %d" % n for n in range(1000)], "2.log.gz": [b"last"]}
    assert (await call(channel, "stats")).bytes == 0


def write_logs(folder: Path) -> None:
    folder.joinpath("1.log").write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    folder.joinpath("2.log.gz").write_bytes(gzip.compress(b"last\n"))


async def aggregates(call: Call, me: str) -> None:
    """Each line is counted once, also when its file is delivered again."""
    visits, number = Aggregator(me), next(_numbers)
    lines = Lines([b"mon DE", b"tue FR;tue DE", b"?", b"tue DE"], number, channel=me)
    counted = [await call(visits, "add_file", lines, parse) for _ in range(2)]
    assert [(one.lines, one.malformed) for one in counted] == [(4, 1), (0, 0)]
    assert await call(visits, "periods") == ["mon", "tue"]
    assert [(one.key, one.count) for one in await call(visits, "top", "tue")] == [("DE", 2), ("FR", 1)]
    assert [await call(visits, "total", period) for period in ("mon", "tue")] == [1, 3]
    await call(visits, "delete")
    assert await call(visits, "periods") == []


async def user_rates(call: Call, me: str) -> None:
    """Two uses per minute."""
    rate, other = (UserRate(me, f"send {next(_numbers)}", limit=2, period=60) for _ in range(2))
    assert [await call(rate, "take") for _ in range(2)] == [0, 0]
    assert 50 < await call(rate, "take") <= 60
    with pytest.raises(RateExceeded):
        await call(rate, "require")
    assert await call(other, "take") == 0


async def forgetting(call: Call, me: str) -> None:
    """Nothing of a user is left, in any service and on any node."""
    names = [f"{me}-{number}" for number in range(SEVERAL)]
    chats = [await call(Chat, "create", me, [f"{me}-bob"], "hello", chat_id=name) for name in names]
    await call(RecentContacts(me), "touch", "bob")
    await call(Mailbox(me), "send", "mail")
    await call(Blocks(me), "block", "mallory")
    await call(Directory(f"{me}-staff"), "add", me, "Ann")
    await call(messaging, "forget", me)
    assert await call(Inbox(me), "chats") == []
    for chat in chats:
        assert [member.user for member in await call(chat, "members")] == [f"{me}-bob"]
    assert await call(RecentContacts(me), "list") == []
    assert (await call(Mailbox(me), "fetch")).messages == []
    assert await call(Blocks(me), "list") == []
    assert await call(Directory(f"{me}-staff"), "size") == 0
    pending = await call(Inbox(f"{me}-bob"), "pending")
    assert sum(len(one.messages) for one in pending) >= SEVERAL
    await call(messaging, "forget", f"{me}-bob")


async def operators(call: Call, me: str) -> None:
    """What is found, explained and recorded of things on all nodes."""
    names = [f"{me}-{number}" for number in range(SEVERAL)]
    for name in names:
        lock = Lock(name, timeout=60)
        assert await call(lock, "acquire", blocking=False)
        assert [str(one) for one in await call(Catalogue(), "find", name)] == [f"lock:{name}"]
        [cause] = (await call(messaging, "explain", Thing("lock", name))).causes
        assert (cause.code, str(cause.thing)) == ("lock_held", f"lock:{name}")
        await call(AuditTrail(), "record", me, "release", Thing("lock", name), request_id=name)
        await call(lock, "release")
    entries = [entry.thing for entry in await call(AuditTrail(), "entries", limit=500) if entry.by == me]
    assert entries == [f"lock:{name}" for name in reversed(names)]
    [line] = await call(History(), "lines", [Series("queue", me)])
    assert line.points == []


#: the services whose resources many callers share: while servers fail, and while nothing may be lost
FAILING: list[type[Shared]] = [Chats, Broadcasts, Jobs, Timers, Locks]
SHARED: list[type[Shared]] = [*FAILING, Mailboxes, Semaphores, Rates]
#: the whole use of a service by one caller, beside others
STORIES: list[Story] = [
    Chats.story,
    Mailboxes.story,
    Broadcasts.story,
    Jobs.story,
    Timers.story,
    Locks.story,
    Semaphores.story,
    Rates.story,
    read_write_locks,
    coordination,
    recent_contacts,
    directories,
    blocks,
    files,
    aggregates,
    user_rates,
    forgetting,
    operators,
]
#: the same, of services that are used by this one caller only
ALONE: list[Story] = [live_events, tasks]


@contextmanager
def after(seconds: float, function: Callable[[], object]) -> Iterator[None]:
    """Call a function in a thread, so many seconds after the begin of the block."""
    timer = threading.Timer(seconds, function)
    timer.start()
    yield
    timer.join()


@contextmanager
def in_thread(function: Callable[[], object]) -> Iterator[None]:
    """Run a function in a thread during the block, which lets it end."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE)
    assert not thread.is_alive()


def bodies(messages: list[Any]) -> list[str]:
    return [message.body for message in messages]


async def each(items: Any) -> AsyncIterator[Any]:
    """The items of a sync or async iterator."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
