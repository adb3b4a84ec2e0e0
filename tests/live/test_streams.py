"""Live streams: every change is read once for all, and handed to those whom it concerns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import TypeVar

import pytest
from pytest_django import Settings

from django_redis_messaging import Blocks, Chat, Choices, Inbox, Mailbox, live
from django_redis_messaging.core.connection import AsyncConnection
from django_redis_messaging.services.live import hub as polling
from django_redis_messaging.services.live.hints import ChangeHint, HintSubscription
from django_redis_messaging.services.live.hub import hub_of

from ..support.server import change

pytestmark = pytest.mark.asyncio

E = TypeVar("E", bound=live.LiveEvent)


class Reader:
    """Takes the events of a stream as they come."""

    def __init__(self, stream: object) -> None:
        self.events: list[live.LiveEvent] = []
        self._stream = stream
        self._came = asyncio.Event()

    async def run(self) -> None:
        async for event in self._stream:  # type: ignore[attr-defined]
            self.events.append(event)
            self._came.set()

    async def until(self, kind: type[E], condition: Callable[[E], object] = bool, seconds: float = 5) -> E:
        """The first event of this kind that meets the condition."""
        async with asyncio.timeout(seconds):
            while True:
                for event in self.events:
                    if isinstance(event, kind) and condition(event):
                        return event
                self._came.clear()
                await self._came.wait()

    @property
    def ids(self) -> list[int]:
        rooms = [event for event in self.events if isinstance(event, live.RoomChanged)]
        return [message.id for event in rooms for message in event.changes.messages]


@asynccontextmanager
async def following(user: str, **arguments: object) -> AsyncIterator[Reader]:
    """Read the stream of a user; the block begins when its first state has come."""
    async with aclosing(live.events(user, **arguments)) as stream:  # type: ignore[arg-type]
        reader = Reader(stream)
        task = asyncio.create_task(reader.run())
        try:
            await reader.until(live.ChatsChanged)
            await reader.until(live.MailChanged)
            if "rooms" in arguments:
                await reader.until(live.RoomChanged)
            yield reader
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_begins_with_the_state(closing: None) -> None:
    chat = await Chat.acreate("ann", ["bob"], "One")
    await Mailbox("bob").asend({"text": "Hi"})
    async with following("bob", rooms=[chat.id]) as reader:
        chats = await reader.until(live.ChatsChanged)
        mail = await reader.until(live.MailChanged)
        room = await reader.until(live.RoomChanged)
    assert chats.complete and [one.unread for one in chats.chats] == [1]
    assert mail.status.unread == 1
    assert (room.changes.last_id, room.changes.messages) == (1, [])


async def test_a_message_reaches_the_room_and_the_list(closing: None) -> None:
    chat = await Chat.acreate("ann", ["bob"])
    async with following("bob", rooms=[chat.id]) as reader:
        await chat.asend("ann", "Hello")
        room = await reader.until(live.RoomChanged, lambda event: event.changes.messages)
        chats = await reader.until(live.ChatsChanged, lambda event: not event.complete)
    assert [message.body for message in room.changes.messages] == ["Hello"]
    assert [(one.chat_id, one.unread) for one in chats.chats] == [(chat.id, 1)]


async def test_goes_on_where_another_stream_ended(closing: None) -> None:
    chat = await Chat.acreate("ann", ["bob"], "One")
    async with following("bob", rooms={chat.id: live.Known(0)}) as reader:
        known = (await reader.until(live.RoomChanged, lambda event: event.changes.messages)).known
    await chat.asend("ann", "Two")
    async with following("bob", rooms={chat.id: known}) as reader:
        assert reader.ids == [2]


async def test_everything_comes_once_in_order_to_many(closing: None) -> None:
    users = [f"user-{number}" for number in range(20)]
    chat = await Chat.acreate("ann", users)
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(following(user, rooms={chat.id: live.Known(0)})) for user in users
        ]
        for number in range(60):
            await chat.asend("ann", f"Message {number}")
        for reader in readers:
            await reader.until(
                live.RoomChanged, lambda event: any(one.id == 60 for one in event.changes.messages)
            )
            assert reader.ids == list(range(1, 61))


async def test_a_hub_that_closes_as_something_changes_reads_it_for_the_next_stream(closing: None) -> None:
    chat, hub = await Chat.acreate("ann", ["bob"], "One"), hub_of()
    async with following("bob") as reader:
        hub.receive(ChangeHint("m", chat.id))
        hub.close()  # before the task that reads has begun
    async with following("bob", rooms=[chat.id]) as reader:
        assert await reader.until(live.RoomChanged)


async def test_nothing_after_leaving(closing: None) -> None:
    chat = await Chat.acreate("ann", ["bob"], "One")
    async with following("bob", rooms=[chat.id]) as bob, following("ann", rooms=[chat.id]) as ann:
        await chat.aleave("bob", by="ann")
        await chat.asend("ann", "Secret")
        assert (await bob.until(live.RoomClosed)).chat_id == chat.id
        await bob.until(live.ChatsChanged, lambda event: event.gone == [chat.id])
        await ann.until(live.RoomChanged, lambda event: event.changes.messages)
    assert bob.ids == []


async def test_chats_that_the_user_joins_and_leaves(closing: None) -> None:
    old = await Chat.acreate("ann", ["bob"], "Hi")
    async with following("bob") as reader:
        await reader.until(live.ChatsChanged, lambda event: event.complete)
        first, second = [await Chat.acreate("ann", ["bob"], "Hi") for _ in range(2)]
        for chat in (first, second):
            joined = await reader.until(live.ChatsChanged, partial(is_new, chat.id))
            assert old.id not in [one.chat_id for one in joined.chats]
        await second.asend("ann", "Two")
        await reader.until(live.ChatsChanged, lambda event: event.chats and event.chats[0].unread == 2)
        await old.aleave("bob")
        await reader.until(live.ChatsChanged, lambda event: event.gone == [old.id] and not event.complete)


def is_new(chat_id: str, event: live.ChatsChanged) -> bool:
    return not event.complete and chat_id in [one.chat_id for one in event.chats]


async def test_who_joins_again_before_the_reader_takes_is_not_gone() -> None:
    chat = await Chat.acreate("ann", ["bob"], "Hi")
    [summary] = await Inbox("bob").achats()
    async with hub_of().stream("bob", {}) as stream:
        stream.remove_chats([chat.id])
        stream.put_summary(summary, {})
        [event] = await stream.take()
    assert isinstance(event, live.ChatsChanged)
    assert (event.gone, [one.chat_id for one in event.chats]) == ([], [chat.id])


async def test_a_chat_that_leaves_the_list_takes_no_other_with_it() -> None:
    registry = hub_of()._registry
    async with hub_of().stream("bob", {}) as stream:
        registry.list_chats(stream, {"a": b"1", "b": b"1"})
        registry.unlist(stream, "a")
        assert (stream.chat_ids, set(registry.chats)) == (("b",), {"b"})


@pytest.mark.timing
async def test_a_lost_index_of_many_chats_does_not_block_the_event_loop() -> None:
    hub, chats = hub_of(), {f"chat {number}": b"1" for number in range(5000)}
    async with hub.stream("bob", {}) as stream:
        hub._registry.list_chats(stream, chats)
        began = time.perf_counter()
        stream.remove_chats(hub._registry.list_chats(stream, {}))
        assert time.perf_counter() - began < 0.1
        [event] = await stream.take()
        assert isinstance(event, live.ChatsChanged)
        assert (event.gone, hub._registry.chats, stream.chat_ids) == (sorted(chats), {}, ())


async def test_the_first_chat_of_a_user(closing: None) -> None:
    async with following("bob") as reader:
        chat = await Chat.acreate("ann", ["bob"], "Hi")
        found = await reader.until(live.ChatsChanged, lambda event: event.chats)
        assert [one.chat_id for one in found.chats] == [chat.id]


async def test_typing_positions_and_mail(closing: None) -> None:
    chat = await Chat.acreate("ann", ["bob"], "One")
    async with following("bob", rooms=[chat.id]) as reader:
        await chat.atyping("ann")
        await reader.until(live.RoomChanged, lambda event: event.changes.typists == ["ann"])
        await chat.aack("bob", 1)
        await reader.until(live.RoomChanged, lambda event: event.changes.read_id == 1)
        await reader.until(live.ChatsChanged, lambda event: not event.complete and event.chats[0].unread == 0)
        await Mailbox("bob").asend("News")
        await reader.until(live.MailChanged, lambda event: event.status.unread == 1)


@pytest.mark.parametrize("case", ["shown", "hidden", "off", "large"])
async def test_positions_wake_those_who_see_them(
    closing: None, monkeypatch: pytest.MonkeyPatch, settings: Settings, case: str
) -> None:
    limits = {"READ_RECEIPTS": case != "off", "TYPING_MAX_MEMBERS": 2 if case == "large" else 100}
    change(settings, **limits)
    chat = await Chat.acreate("ann", ["bob", "cat"], "One")
    reads: list[set[str]] = []
    read = Chat.achanges_for

    async def record(self: Chat, users: list[str], **known: object) -> object:
        reads.append(set(users))
        return await read(self, users, **known)  # type: ignore[arg-type]

    async with (
        never_polling(monkeypatch),
        following("ann", rooms=[chat.id]) as ann,
        following("bob", rooms=[chat.id]) as bob,
    ):
        begun = await ann.until(live.RoomChanged)
        if case == "hidden":
            await Choices().achoose("bob", receipts=False)
            begun = await ann.until(live.RoomChanged, lambda event: "bob" not in event.changes.positions)
            await bob.until(live.RoomChanged, lambda event: "bob" not in event.changes.positions)
        monkeypatch.setattr(Chat, "achanges_for", record)
        await chat.aack("bob", 1)
        await bob.until(live.RoomChanged, lambda event: event.changes.read_id == 1)
        assert reads == [{"ann", "bob"} if case == "shown" else {"bob"}]
        await chat.asend("cat", "Two")  # who is behind: it moves no position
        news = await ann.until(live.RoomChanged, lambda event: event.changes.messages)
    assert news.changes.positions.get("bob") == (1 if case in ("shown", "large") else None)
    assert (news.since.moved == begun.changes.moved) == (case != "shown")
    assert (news.changes.moved == begun.changes.moved) == (case in ("hidden", "off"))


@asynccontextmanager
async def never_polling(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The hub polls at the beginning, then never again by itself."""
    monkeypatch.setattr(polling, "INTERVAL", 60)
    async with following("somebody else"):
        yield


async def test_what_changes_before_hints_come(closing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream begins while the hub has no subscription, and what changes before it has one is not lost."""
    may_subscribe, subscribe = asyncio.Event(), HintSubscription._subscribe

    async def fail(self: HintSubscription, connection: AsyncConnection) -> None:
        if not may_subscribe.is_set():
            raise OSError("no connection")
        await subscribe(self, connection)

    monkeypatch.setattr(HintSubscription, "_subscribe", fail)
    async with never_polling(monkeypatch), following("bob") as reader:
        await Chat.acreate("ann", ["bob"], "Hi")
        await Mailbox("bob").asend("News")
        may_subscribe.set()
        await reader.until(live.ChatsChanged, lambda event: event.chats)
        await reader.until(live.MailChanged, lambda event: event.status.unread == 1)


async def test_everything_is_read_again_after_hints_were_lost(
    closing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await Chat.acreate("ann", ["bob"], "One")
    async with never_polling(monkeypatch), following("bob", rooms=[chat.id]) as reader:
        await reader.until(live.ChatsChanged, lambda event: event.chats[0].unread == 1)
        with monkeypatch.context() as patch:
            patch.setattr(hub_of()._hints, "_receive", lambda hint: None)
            await chat.aack("bob", 1)
            with pytest.raises(TimeoutError):
                await reader.until(live.RoomChanged, lambda event: event.changes.read_id == 1, 0.2)
        hub_of()._polling.hints_lost()
        await reader.until(live.RoomChanged, lambda event: event.changes.read_id == 1)
        await reader.until(live.ChatsChanged, lambda event: event.chats[0].unread == 0)


async def test_without_hints_changes_are_found(closing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = await Chat.acreate("ann", ["bob"], "One")
    monkeypatch.setattr(polling, "INTERVAL", 0.2)
    monkeypatch.setattr(hub_of()._hints, "_receive", lambda hint: None)
    async with following("bob", rooms=[chat.id]) as reader:
        await chat.asend("ann", "Two")
        await reader.until(live.RoomChanged, lambda event: event.changes.messages)
        await chat.aedit("ann", 1, "Uno")
        await reader.until(live.RoomChanged, lambda event: event.changes.edited)
        other = await Chat.acreate("ann", ["bob"], "Hi")
        await reader.until(live.ChatsChanged, lambda event: other.id in [one.chat_id for one in event.chats])
        await Mailbox("bob").asend("News")
        await reader.until(live.MailChanged, lambda event: event.status.unread == 1)


async def test_who_is_online(closing: None, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 0.1)
    chat = await Chat.acreate("ann", ["bob"], "One")
    presence = live.Presence()
    async with following("ann", rooms=[chat.id]) as ann:
        for user in ("ann", "bob", "cat"):
            await presence.aenter(user, "one")
        await ann.until(live.PresenceChanged, lambda event: event.online == {"bob"})
        await chat.ajoin("cat", by="ann")
        await ann.until(live.PresenceChanged, lambda event: event.online == {"bob", "cat"})
        await chat.aleave("bob")
        await ann.until(live.PresenceChanged, lambda event: event.online == {"cat"})
        await Choices().achoose("cat", online=False)
        await ann.until(live.PresenceChanged, lambda event: event.online == frozenset())
    change(settings, PRESENCE_MAX_MEMBERS=1)
    await Choices().achoose("cat", online=True)
    await presence.arenew({"one": "cat"})
    async with following("ann", rooms=[chat.id]) as ann:
        await chat.asend("ann", "Two")
        await ann.until(live.RoomChanged, lambda event: event.changes.messages)
        assert hub_of()._registry.chats[chat.id].members == frozenset()


async def test_non_members_do_not_learn_who_is_online(closing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even between the beginning of a stream and the reading of the chat."""
    monkeypatch.setattr(polling, "INTERVAL", 0.1)
    chat, hub = await Chat.acreate("ann", ["bob"], "One"), hub_of()
    await live.Presence().aenter("bob", "one")
    async with following("ann", rooms=[chat.id]) as ann:
        await ann.until(live.PresenceChanged, lambda event: event.online == {"bob"})
        await until_all_is_read("ann")
        monkeypatch.setattr(hub._reading, "mark_chat", lambda *args: None)  # the reading is late
        async with hub.stream("mallory", {chat.id: live.Known()}) as stream:
            await hub._polling._poll_who_is_online()
            found = await stream.take(0.1)
            assert not [event for event in found if isinstance(event, live.PresenceChanged)]


async def test_a_chat_that_grows_shows_nobody_online(
    closing: None, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 0.1)
    change(settings, PRESENCE_MAX_MEMBERS=2)
    chat = await Chat.acreate("ann", ["bob"], "One")
    await live.Presence().aenter("bob", "one")
    async with following("ann", rooms=[chat.id]) as ann:
        await ann.until(live.PresenceChanged, lambda event: event.online == {"bob"})
        await chat.aadd(["cat"], by="ann")
        await ann.until(live.PresenceChanged, lambda event: event.online == frozenset())
        async with following("cat", rooms=[chat.id]) as cat:
            await chat.asend("ann", "Two")
            await cat.until(live.RoomChanged, lambda event: event.changes.messages)
            assert not [event for event in cat.events if isinstance(event, live.PresenceChanged)]
        await chat.aleave("cat")
        shown = [event.online for event in ann.events if isinstance(event, live.PresenceChanged)]
        assert shown == [{"bob"}, frozenset()]
        ann.events.clear()
        await ann.until(live.PresenceChanged, lambda event: event.online == {"bob"})


async def test_members_who_see_less_share_nothing_with_the_others(closing: None) -> None:
    chat = await Chat.acreate("ann", ["bob"], "One")
    await chat.aadd(["cat"], by="ann")
    await chat.asend("ann", "Two")
    known = {chat.id: live.Known(0)}

    async def first(user: str) -> live.RoomChanged:
        async with following(user, rooms=known) as reader:
            return await reader.until(live.RoomChanged)

    bob, cat = await asyncio.gather(first("bob"), first("cat"))
    assert [len(event.changes.messages) for event in (bob, cat)] == [2, 1]
    assert bob.shared is not cat.shared


async def test_what_changes_while_the_list_is_read(closing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream follows the chat yet, and no poll will find the change."""
    chat = await Chat.acreate("ann", ["bob"], "One")
    read, came = Inbox.achats, asyncio.Event()
    async with never_polling(monkeypatch):
        receive = hub_of().receive
        monkeypatch.setattr(hub_of()._hints, "_receive", lambda hint: (receive(hint), came.set()))

        async def read_slowly(self: Inbox, *, limit: int) -> object:
            found = await read(self, limit=limit)
            if self.user == "bob" and not came.is_set():
                await chat.asend("ann", "Two")
                await came.wait()
            return found

        monkeypatch.setattr(Inbox, "achats", read_slowly)
        async with following("bob") as bob:
            await bob.until(live.ChatsChanged, lambda event: event.chats[0].unread == 1)
            await bob.until(live.ChatsChanged, lambda event: event.chats[0].unread == 2)


async def until_all_is_read(user: str) -> None:
    """Wait until no poll will find more about the user's chats."""
    inbox, hub = Inbox(user), hub_of()
    await inbox.achats()
    async with asyncio.timeout(30):
        while hub._reading._tasks or any(  # noqa: ASYNC110
            hub._registry.chats[chat_id].newest != newest for chat_id, newest in inbox.newest.items()
        ):
            await asyncio.sleep(0.01)


async def test_blocking_ends_the_direct_chat_for_the_blocker_alone(
    closing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocked person gets no event, but that the other one is offline."""
    monkeypatch.setattr(polling, "INTERVAL", 0.1)
    chat = await Chat.adirect("ann", "bob")
    await chat.asend("bob", "One")
    other = await Chat.acreate("zoe", ["ann", "bob"])
    async with following("ann", rooms=[chat.id]) as ann, following("bob", rooms=[chat.id]) as bob:
        for user in ("ann", "bob"):
            await live.Presence().aenter(user, "one")
        await ann.until(live.PresenceChanged, lambda event: event.online == {"bob"})
        await bob.until(live.PresenceChanged, lambda event: event.online == {"ann"})
        await until_all_is_read("bob")
        bob.events.clear()
        await Blocks("ann").ablock("bob")
        await ann.until(live.RoomClosed)
        await ann.until(live.ChatsChanged, lambda event: event.gone == [chat.id])
        await bob.until(live.PresenceChanged, lambda event: event.online == frozenset())
        assert [type(event) for event in bob.events] == [live.PresenceChanged]
        ann.events.clear()
        await chat.asend("bob", "Two")
        await bob.until(live.RoomChanged, lambda event: event.changes.messages)
        await other.asend("zoe", "Three")
        for reader in (ann, bob):
            await reader.until(live.ChatsChanged, lambda event: event.chats[-1].chat_id == other.id)
        assert {one.chat_id for event in ann.events for one in event.chats} == {other.id}  # type: ignore[attr-defined]
        await until_all_is_read("bob")
        bob.events.clear()
        await Blocks("ann").aunblock("bob")
        await ann.until(live.ChatsChanged, lambda event: event.chats[-1].chat_id == chat.id)
        await bob.until(live.PresenceChanged, lambda event: event.online == {"ann"})
        assert [type(event) for event in bob.events] == [live.PresenceChanged]
