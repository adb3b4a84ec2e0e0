"""Services in use while the slots of their keys move. Each of them checks its promises afterwards."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag

from django_redis_messaging import (
    Aggregator,
    Blocks,
    Broadcast,
    Chat,
    Directory,
    Expired,
    Expiry,
    FileChannel,
    Inbox,
    Mailbox,
    RecentContacts,
    Semaphore,
    conf,
)
from django_redis_messaging.handlers import TimerHandler
from django_redis_messaging.services.aggregates.aggregator import AggregateKeys
from django_redis_messaging.services.broadcasts.broadcast import BroadcastKeys
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.common.rates import Rate, rate_key
from django_redis_messaging.services.directories.directory import DirectoryKeys
from django_redis_messaging.services.expiries.timers import TIMERS
from django_redis_messaging.services.files.keys import FileChannelKeys, FileKeys, file_name
from django_redis_messaging.services.jobs.keys import JobKeys
from django_redis_messaging.services.jobs.worker import Limits
from django_redis_messaging.services.listening import Listener
from django_redis_messaging.services.semaphores.semaphore import SemaphoreKeys
from tests.support.memory_file import Lines, parse

#: seconds between two operations of a thread
PACE = 0.005
#: maximum number of items read at once
LIMIT = 1000
#: seconds: delay of the timers
DELAY = 0.1


class Resident:
    """A service in use. `works` are called again and again, each in its own thread; `keys` are in the slots
    to move."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.prefix = conf.prefix()
        self._ended: SimpleQueue[None] = SimpleQueue()

    keys: list[str]

    @property
    def works(self) -> list[Callable[[int], object]]:
        """Each is called with 0, 1, 2 …"""
        raise NotImplementedError

    @property
    def loops(self) -> list[Callable[[Flag], None]]:
        """Functions that run until the flag is set, beyond the works."""
        return [functools.partial(self._repeat, work) for work in self.works]

    def check(self) -> None:
        """Compare what was acknowledged with what is stored."""
        raise NotImplementedError

    @property
    def works_have_ended(self) -> bool:
        """Whether all of them have returned for the last time."""
        return self._ended.qsize() == len(self.works)

    def _repeat(self, work: Callable[[int], object], stop: Flag) -> None:
        try:
            for number in itertools.count():
                work(number)
                if stop.wait(PACE):
                    return
        finally:
            self._ended.put(None)


class Channels(Resident):
    """A broadcast with a publisher in a thread, one in an event loop, and a reader."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = [BroadcastKeys(self.prefix, "news").head]
        self._channel = Broadcast("news")
        self._sent: dict[int, str] = {}
        self._got: list[tuple[int, str]] = []
        self._cursor: str | None = None

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._publish, self._read]

    @property
    def loops(self) -> list[Callable[[Flag], None]]:
        return [*super().loops, lambda stop: asyncio.run(self._apublish(stop))]

    def check(self) -> None:
        while self._read(0):
            pass
        assert [id_ for id_, _ in self._got] == list(range(1, len(self._sent) + 1))
        assert dict(self._got) == self._sent

    def _publish(self, number: int) -> None:
        text = f"thread {number}"
        self._sent[self._channel.publish(text).id] = text

    async def _apublish(self, stop: Flag) -> None:
        for number in itertools.count():
            text = f"task {number}"
            self._sent[(await self._channel.apublish(text)).id] = text
            await asyncio.sleep(PACE)
            if stop.is_set():
                return

    def _read(self, _: int) -> int:
        batch = self._channel.fetch(self._cursor, limit=LIMIT)
        assert not batch.missed
        self._cursor = batch.cursor
        self._got += [(event.id, event.payload) for event in batch.events]
        return len(batch.events)


class Timers(Resident):
    """Timers that fire, once each, and others that are extended and cancelled."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = [JobKeys(self.prefix, *TIMERS).jobs]
        self._timers = Expiry("order")
        self._started: list[str] = []
        self._fired: Counter[str] = Counter()
        handlers = {"order": TimerHandler("order", self._fire, None)}
        self._listener = Listener(handlers, [], Limits(concurrency=2, drain=5.0))
        self._done = threading.Event()

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._start, self._cancel]

    @property
    def loops(self) -> list[Callable[[Flag], None]]:
        return [*super().loops, self._listen]

    def check(self) -> None:
        assert self._fired == Counter(self._started)

    def _start(self, number: int) -> None:
        self._timers.start(str(number), DELAY)
        self._started.append(str(number))

    def _cancel(self, number: int) -> None:
        name = f"cancelled {number}"
        self._timers.start(name, 3600)
        assert self._timers.extend(name, 7200)
        assert self._timers.cancel(name)
        assert self._timers.remaining(name) is None

    def _listen(self, stop: Flag) -> None:
        thread = threading.Thread(target=self._listener.run, daemon=True)
        thread.start()
        stop.wait()
        while not self.works_have_ended or set(self._fired) < set(self._started):  # the test has a time limit
            self._done.wait(PACE)
        self._listener.stop()
        thread.join()
        assert not self._listener.failed

    def _fire(self, expired: Expired) -> None:
        self._fired[expired.name] += 1


class Mail(Resident):
    """A mailbox whose mail is sent, read and acked."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = [rate_key(self.prefix, "ann", "any")]
        self._box = Mailbox("ann")
        self._sent: list[int] = []
        self._got: list[int] = []
        self._cursor: str | None = None

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._send, self._read]

    def check(self) -> None:
        while self._read(0):
            pass
        assert self._got == sorted(self._sent) == list(range(1, len(self._sent) + 1))
        assert self._box.unread() == 0

    def _send(self, number: int) -> None:
        self._sent.append(self._box.send(number).id)

    def _read(self, _: int) -> int:
        page = self._box.fetch(after=self._cursor, limit=LIMIT)
        assert (page.gap, page.reset) == (0, False)
        self._cursor = page.cursor
        if page.messages:
            self._got += [mail.id for mail in page.messages]
            self._box.mark_read([page.messages[0].id])
            self._box.ack(page.cursor)
        return len(page.messages)


class Permits(Resident):
    """A semaphore with more callers than permits."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = [SemaphoreKeys(self.prefix, "pool").holders]
        self._inside = 0
        self._counting = threading.Lock()
        self._max_inside = 0

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._hold] * 3

    def check(self) -> None:
        assert self._max_inside <= 2
        info = Semaphore("pool", 2).info()
        assert (info.held, info.waiting) == (0, 0)

    def _hold(self, _: int) -> None:
        with Semaphore("pool", 2, timeout=120, blocking=True, blocking_timeout=60):
            self._count(1)
            self._count(-1)

    def _count(self, by: int) -> None:
        with self._counting:
            self._inside += by
            self._max_inside = max(self._max_inside, self._inside)


class Files(Resident):
    """A file channel with a consumer that counts the lines of each file, and one that does not."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        stored = [FileKeys(self.prefix, file_name("logs", id_)).blocks for id_ in (1, 2)]
        counts = AggregateKeys(self.prefix, "visits").period("mon")
        self.keys = [FileChannelKeys(self.prefix, "logs").state, counts, *stored]
        self._channel = FileChannel("logs")
        self._published: list[str] = []
        self._got: dict[str, list[str]] = {"counting": [], "reading": []}

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._publish]

    @property
    def loops(self) -> list[Callable[[Flag], None]]:
        return [*super().loops, *(functools.partial(self._consume, name) for name in self._got)]

    def check(self) -> None:
        for name in self._got:
            assert self._got[name] == self._published
        visits = Aggregator("visits")
        assert visits.total("mon") == len(self._published)
        assert [(one.key, one.count) for one in visits.top("mon")] == [("DE", len(self._published))]

    def _publish(self, number: int) -> None:
        file = self.directory / f"{number:06}"
        file.write_bytes(b"mon DE\n")
        assert self._channel.publish([file], consumers=list(self._got)).completed
        self._published.append(file.name)

    def _consume(self, name: str, stop: Flag) -> None:
        """Consume until everything that was published has been acked."""
        published = self._published
        end = _Until(lambda: self.works_have_ended and len(self._got[name]) >= len(published))
        for file in self._channel.consume(name, stop=end):
            if name == "counting":
                Aggregator("visits").add_file(file, parse)
            else:
                assert list(file.lines()) == [b"mon DE"]
            file.ack()
            self._got[name].append(file.name)


class _Until:
    """A stop flag that is set when a condition is true."""

    def __init__(self, is_set: Callable[[], bool]) -> None:
        self.is_set = is_set


class Counts(Resident):
    """An aggregate that gets each file twice."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = [AggregateKeys(self.prefix, "twice").periods]
        self._lines = 0

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._add]

    def check(self) -> None:
        assert Aggregator("twice").total("mon") == self._lines

    def _add(self, number: int) -> None:
        file = Lines([b"mon DE", b"mon FR"], number + 1)
        counted = [Aggregator("twice").add_file(file, parse).lines for _ in range(2)]
        assert counted == [2, 0]
        self._lines += 2


class People(Resident):
    """A directory, contacts, blocks, and a rate of a user."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = [DirectoryKeys(self.prefix, "staff").entries, rate_key(self.prefix, "bob", "send")]
        self._added: set[str] = set()
        self._granted = 0
        self._rate = Rate("bob", "send", limit=100, period=3600)

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._index, self._touch, self._block, self._use]

    def check(self) -> None:
        staff = Directory("staff")
        assert staff.size() == len(self._added)
        assert {one.id for one in staff.suggest("Smith", limit=100)} <= self._added
        assert all(staff.suggest(f"Ann{number}-")[0].id == number for number in self._added)
        assert self._granted <= 100
        assert (self._rate.take() > 0) == (self._granted == 100)

    def _index(self, number: int) -> None:
        """Every second one is removed again."""
        Directory("staff").add(str(number), f"Ann{number}- Smith")
        if number % 2:
            Directory("staff").remove(str(number))
        else:
            self._added.add(str(number))

    def _touch(self, number: int) -> None:
        contacts = RecentContacts("bob", size=5)
        contacts.touch(f"c{number}")
        assert contacts.list() == [f"c{one}" for one in range(number, max(-1, number - 5), -1)]

    def _block(self, number: int) -> None:
        blocks = Blocks("bob")
        assert blocks.block("mallory") in (True, None)
        assert blocks.list() == ["mallory"]
        assert blocks.unblock("mallory") in (True, None)
        assert blocks.list() == []

    def _use(self, _: int) -> None:
        self._granted += self._rate.take() == 0


class Rooms(Resident):
    """A chat in which one member sends and edits, while another joins and leaves."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keys = [ChatKeys(self.prefix, "talk").log, rate_key(self.prefix, "cat", "any")]
        self._chat = Chat.create("dan", ["eve"], chat_id="talk", keep_last=10_000)
        self._bodies: dict[int, str] = {}
        self._is_member = False

    @property
    def works(self) -> list[Callable[[int], object]]:
        return [self._send, self._join_or_leave]

    def check(self) -> None:
        stored: dict[int, str] = {}
        while messages := self._chat.history("eve", after=max(stored, default=0), limit=LIMIT).messages:
            stored |= {message.id: message.body for message in messages}
        assert stored == self._bodies
        assert list(stored) == list(range(1, len(stored) + 1))
        assert ("cat" in {one.user for one in self._chat.members()}) == self._is_member
        assert [one.chat_id for one in Inbox("cat").chats()] == ["talk"] * self._is_member

    def _send(self, number: int) -> None:
        sent = self._chat.send("dan", f"{number}").id
        self._bodies[sent] = self._chat.edit("dan", sent, f"edited {number}").body

    def _join_or_leave(self, number: int) -> None:
        if number % 2:
            assert self._chat.leave("cat") in (True, None)
        else:
            assert self._chat.join("cat", by="dan") in (True, None)
        self._is_member = not self._is_member


#: every service beyond those of test_cluster.py
RESIDENTS: list[type[Resident]] = [Channels, Timers, Mail, Permits, Files, Counts, People, Rooms]
