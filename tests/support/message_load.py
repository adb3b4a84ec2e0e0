"""Chats and broadcasts during a fault: senders, and readers with cursors."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from threading import Event as Flag
from time import monotonic

from django_redis_messaging import Broadcast, Chat, Inbox, OutcomeUnknown, Unavailable

from .load import PACE, Load

#: maximum number of messages or events read at once
LIMIT = 500


class Feeds(Load):
    """Resources that give each item an id: 1, 2, 3 … without holes."""

    def __init__(self, names: list[str], using: str | None = None) -> None:
        super().__init__(names, using)
        #: (resource, content) → the acknowledged id
        self.sent: dict[tuple[str, str], int] = {}
        #: resource and content of what was not sent: Unavailable, and not repeated
        self.refused: set[tuple[str, str]] = set()
        #: resource → id → content, as its reader knows it
        self.known: dict[str, dict[int, str]] = {name: {} for name in names}
        self._cursors: dict[str, str | None] = dict.fromkeys(names)

    @property
    def producers(self) -> list[Callable[[Flag], None]]:
        return [self._send]

    @property
    def coroutines(self) -> list[Callable[[Flag], Awaitable[None]]]:
        return [self._asend]

    @property
    def consumers(self) -> list[Callable[[Flag], None]]:
        return [self._read]

    def check(self) -> None:
        for name in self.names:
            while self._read_one(name):
                pass
            self._compare(name, self._stored(name))

    def note(self, name: str, items: list[tuple[int, str]], *, is_reset: bool) -> None:
        """Add what the reader got; a reset discards what it knows."""
        known = self.known[name]
        if is_reset:
            self.reported += 1
            known.clear()
        for id_, content in items:
            if known.setdefault(id_, content) != content:
                self.violations.append(f"{name}: {id_} was {known[id_]!r}, is {content!r}, without a reset")

    def _compare(self, name: str, stored: list[tuple[int, str]]) -> None:
        """Compare what is stored, oldest first, with what was acknowledged and read."""
        ids = dict(stored)
        if list(ids) != list(range(1, len(stored) + 1)):
            self.violations.append(f"{name}: ids have holes: {list(ids)}")
        if self.known[name] != ids:
            self.violations.append(f"{name}: the reader knows {len(self.known[name])} of {len(ids)}")
        if applied := self.refused & {(name, content) for content in ids.values()}:
            self.violations.append(f"applied although Unavailable was raised: {applied}")
        contents = Counter(content for _, content in stored)
        self.doubled += sum(times - 1 for times in contents.values())
        self.lost += sum(ids.get(id_) != content for (of, content), id_ in self.sent.items() if of == name)

    def send_some(self, number: int) -> None:
        """Send this many items to each resource."""
        for at in range(number):
            self._send_to_each(at)

    def _send(self, stop: Flag) -> None:
        for number in itertools.count():
            self._send_to_each(number)
            if stop.wait(PACE):
                return

    def _send_to_each(self, number: int) -> None:
        for name in self.names:
            content, request_id = f"{self.using} thread {number}", uuid.uuid4().hex
            id_ = self.insist(name, lambda: self._send_one(name, content, request_id))  # noqa: B023
            self.sent[name, content] = id_

    async def _asend(self, stop: Flag) -> None:
        await asyncio.gather(*(self._asend_to(name, stop) for name in self.names))

    async def _asend_to(self, name: str, stop: Flag) -> None:
        for number in itertools.count():
            content, request_id = f"{self.using} task {number}", uuid.uuid4().hex
            id_ = await self._offer(name, lambda: self._asend_one(name, content, request_id))  # noqa: B023
            if id_ is None:
                self.refused.add((name, content))
            else:
                self.sent[name, content] = id_
            await asyncio.sleep(PACE)
            if stop.is_set():
                return

    async def _offer(self, name: str, send: Callable[[], Awaitable[int]]) -> int | None:
        """Send an item, and repeat it only if the outcome is unknown. None: it was refused."""
        try:
            id_ = await send()
        except Unavailable as error:
            self.errors[type(error).__name__] += 1
            return None
        except OutcomeUnknown as error:
            self.errors[type(error).__name__] += 1
            return await self.ainsist(name, send)
        self.acknowledged[name].append(monotonic())
        return id_

    def _read(self, stop: Flag) -> None:
        while not stop.wait(PACE):
            for name in self.names:
                self.attempt(lambda: self._read_one(name), False)  # noqa: B023

    def _send_one(self, name: str, content: str, request_id: str) -> int:
        raise NotImplementedError

    async def _asend_one(self, name: str, content: str, request_id: str) -> int:
        raise NotImplementedError

    def _read_one(self, name: str) -> bool:
        """Read what is new; whether there was anything."""
        raise NotImplementedError

    def _stored(self, name: str) -> list[tuple[int, str]]:
        """Id and content of everything that is stored, oldest first."""
        raise NotImplementedError


class Chats(Feeds):
    """Two senders to each chat; a member who reads it with a cursor, and one who acks what is pending.

    The latter has no cursor, so a loss is not always reported to it: see docs/chat.md.
    """

    things = "messages"

    def __init__(self, names: list[str], using: str | None = None) -> None:
        super().__init__(names, using)
        #: chat and content of the messages that were pending
        self._received: set[tuple[str, str]] = set()

    def create(self) -> None:
        for name in self.names:
            Chat.create("ann", ["bob", "cat"], chat_id=name, keep_last=10_000, using=self.using)

    @property
    def consumers(self) -> list[Callable[[Flag], None]]:
        return [*super().consumers, self._ack]

    def _send_one(self, name: str, content: str, request_id: str) -> int:
        return Chat(name, using=self.using).send("ann", content, request_id=request_id).id

    async def _asend_one(self, name: str, content: str, request_id: str) -> int:
        return (await Chat(name, using=self.using).asend("ann", content, request_id=request_id)).id

    def _read_one(self, name: str) -> bool:
        page = Chat(name, using=self.using).history("cat", after=self._cursors[name] or 0, limit=LIMIT)
        self._cursors[name] = page.cursor
        items = [(message.id, message.body) for message in page.messages]
        self.note(name, items, is_reset=page.reset)
        return bool(items)

    def _stored(self, name: str) -> list[tuple[int, str]]:
        chat, items = Chat(name, using=self.using), list[tuple[int, str]]()
        while messages := chat.history("cat", after=items[-1][0] if items else 0, limit=LIMIT).messages:
            items += [(message.id, message.body) for message in messages]
        return items

    def check(self) -> None:
        super().check()
        while self._receive():
            pass
        missing = {(name, body) for name in self.names for _, body in self._stored(name)} - self._received
        if missing:
            self.violations.append(f"never pending: {missing}")

    def _ack(self, stop: Flag) -> None:
        while not stop.wait(PACE):
            self.attempt(self._receive, False)

    def _receive(self) -> bool:
        """Ack what is pending; whether there was anything."""
        found = Inbox("bob", using=self.using).pending(limit=LIMIT)
        for pending in found:
            self._received |= {(pending.chat_id, message.body) for message in pending.messages}
            Chat(pending.chat_id, using=self.using).ack("bob", pending.cursor)
        return bool(found)


class Broadcasts(Feeds):
    """Two publishers to each channel, and a reader."""

    things = "events"

    def _send_one(self, name: str, content: str, request_id: str) -> int:
        return Broadcast(name, using=self.using).publish(content, request_id=request_id).id

    async def _asend_one(self, name: str, content: str, request_id: str) -> int:
        return (await Broadcast(name, using=self.using).apublish(content, request_id=request_id)).id

    def _read_one(self, name: str) -> bool:
        batch = Broadcast(name, using=self.using).fetch(self._cursors[name], limit=LIMIT)
        self._cursors[name] = batch.cursor
        items = [(event.id, event.payload) for event in batch.events]
        self.note(name, items, is_reset=batch.missed)
        return bool(items)

    def _stored(self, name: str) -> list[tuple[int, str]]:
        channel, items, cursor = Broadcast(name, using=self.using), list[tuple[int, str]](), None
        while events := (batch := channel.fetch(cursor, limit=LIMIT)).events:
            items, cursor = [*items, *((event.id, event.payload) for event in events)], batch.cursor
        return items
