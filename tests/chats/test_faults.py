"""Lost replies, full memory, servers and clients that are killed or frozen, refused scripts, many processes:
nothing is lost, and nothing is applied twice."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_redis_messaging import (
    Blocks,
    Chat,
    Inbox,
    Message,
    NotPermitted,
    OutcomeUnknown,
    Unavailable,
    deadline,
)
from django_redis_messaging.core import commands
from django_redis_messaging.core.commands import Fan
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.rates.user_rates import UserRate
from tests.conftest import Call

from ..support import child_processes
from ..support.faults import (
    GENEROUS,
    PATIENCE,
    Cast,
    Connect,
    Prepared,
    cast,
    processes,
    results_around_a_loss,
)
from ..support.proxy import LossyProxy
from ..support.scripts import Planting
from ..support.server import bodies, ids, index, keys, reply_to, said, server, snapshot, steps

pytestmark = pytest.mark.one_server

Fill = Callable[[], None]
numbers = itertools.count()


def all_messages(chat: Chat, user: str) -> list[Message]:
    """All messages that a member can read."""
    page = chat.history(user, after=0, limit=500)
    messages = page.messages
    while page.has_more:
        page = chat.history(user, after=page.cursor, limit=500)
        messages += page.messages
        assert not page.gap
    return messages


def two_owners() -> Chat:
    chat = Chat.create("ann", ["bob"], "hello")
    chat.set_role("ann", "bob", "owner")
    return chat


def rate_of_two() -> UserRate:
    return UserRate(f"ann-{next(numbers)}", "send", limit=2, period=3600)


#: changes of a state; results of a call, of one whose reply is lost, and of a further one
REPEATABLE: dict[str, tuple[Callable[[], Prepared], list[Any]]] = {
    "leave": (lambda: (two_owners(), "leave", "bob"), [True, True, False]),
    "leave, the last": (lambda: (Chat.create("ann", []), "leave", "ann"), [True, True, False]),
    "delete": (lambda: (two_owners(), "delete", "ann"), [True, True, False]),
    "set_role": (lambda: (two_owners(), "set_role", "ann", "bob", "member"), [True, True, False]),
    "set_role of oneself": (
        lambda: (two_owners(), "set_role", "ann", "ann", "member"),
        [True, True, NotPermitted],
    ),
    "take of a rate": (lambda: (rate_of_two(), "take", 2), [0.0, 0.0, pytest.approx(3600, abs=60)]),
}


class TestLostReplies:
    """A third of all replies is lost together with the connection."""

    async def test_messages_are_sent_and_read_once(self, call: Call, lossy: LossyProxy) -> None:
        chat = Chat.create("ann", ["bob"])
        texts = [f"{number}" for number in range(50)]
        sent = [await call(chat, "send", "ann", text) for text in texts]
        assert ids(sent) == list(range(1, 51))
        assert lossy.lost > 10
        read: list[str] = []
        while found := await call(Inbox("bob"), "pending", limit=3):
            read += bodies(found[0])
            last = found[0].messages[-1]
            assert await call(chat, "ack", "bob", last.cursor) == last.id
        assert read == bodies(chat.history("bob", limit=100)) == texts
        assert lossy.lost > 20

    async def test_without_request_ids_they_would_not_be(
        self, call: Call, lossy: LossyProxy, plant: Planting
    ) -> None:
        plant(("chats/send", "if recorded then", "if false then"))
        with pytest.raises(AssertionError):
            await self.test_messages_are_sent_and_read_once(call, lossy)

    async def test_chats_are_created_once(self, call: Call, lossy: LossyProxy) -> None:
        for number in range(20):
            await call(Chat, "create", "ann", ["bob", "cat"], "hello", chat_id=f"chat {number}")
        for user in ("ann", "bob", "cat"):
            summaries = Inbox(user).chats()
            assert {one.chat_id for one in summaries} == {f"chat {number}" for number in range(20)}
            assert {(one.unread, one.member_count) for one in summaries} == {(int(user != "ann"), 3)}
        assert lossy.lost > 10

    async def test_members_join_once(self, call: Call, lossy: LossyProxy) -> None:
        chat = Chat.create("host", [])
        guests = [f"g{number}" for number in range(12)]
        assert [await call(chat, "join", guest, by="host") for guest in guests] == [True] * 12
        assert [await call(chat, "join", guest, by="host") for guest in guests[:5]] == [False] * 5
        assert [member.user for member in chat.members()] == ["host", *guests]
        assert [len(Inbox(guest).chats()) for guest in guests] == [1] * 12
        for guest in guests:
            await call(chat, "leave", guest)
        assert [member.user for member in chat.members()] == ["host"]
        assert [Inbox(guest).chats() for guest in guests] == [[]] * 12
        assert lossy.lost > 12

    async def test_messages_acked_by_pending_are_not_fetched_again(
        self, call: Call, connect: Connect, proxy: LossyProxy
    ) -> None:
        connect(proxy, COMMAND_DEADLINE=GENEROUS)
        chat = Chat.create("ann", ["bob"])
        said(chat, "ann", *"012")
        assert await call(Inbox("bob"), "pending", limit=1)
        proxy.lose_next(1)
        with pytest.raises(OutcomeUnknown):
            await call(Inbox("bob"), "pending", limit=2, ack=True)
        [found] = await call(Inbox("bob"), "pending", ack=True)
        assert bodies(found) == ["2"]

    async def test_what_was_received_before_a_lost_reply_is_kept(
        self, call: Call, connect: Connect, proxy: LossyProxy
    ) -> None:
        connect(proxy, COMMAND_DEADLINE=GENEROUS)
        for number in range(150):
            Chat.create("ann", ["bob"], "hello", chat_id=f"{number}")
        assert len(await call(Inbox("bob"), "pending")) == 150
        proxy.lose_one_after(1)
        with pytest.raises(OutcomeUnknown) as caught:
            await call(Inbox("bob"), "pending", ack=True)
        received = caught.value.received
        assert sum(len(found.messages) for found in received) == 100
        assert await call(Inbox("bob"), "pending") == []
        assert {Chat(found.chat_id).members()[1].read_id for found in received} == {1}

    def test_threads_send_at_once(self, lossy: LossyProxy) -> None:
        people = [f"p{number}" for number in range(6)]
        chat = Chat.create(people[0], people[1:])
        texts = {user: [f"{user} {number}" for number in range(15)] for user in people}
        threads = [
            threading.Thread(target=said, args=[chat, user, *texts[user]], daemon=True) for user in people
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        messages = chat.history("p0", limit=200).messages
        assert ids(messages) == list(range(1, 91))
        assert len(set(bodies(messages))) == 90
        assert lossy.lost > 15

    async def test_no_user_keeps_a_deleted_chat_in_their_list(self, call: Call, lossy: LossyProxy) -> None:
        for end in ("leave", "delete"):
            lossy.lose_next(0)
            chat = Chat.create("ann", ["bob"])
            lossy.lose_next(1)
            assert await call(chat, end, "ann")
            lossy.lose_next(0)
            assert Inbox("ann").chats() == []
            chat.leave("bob")
            assert Inbox("bob").chats() == []

    @pytest.mark.parametrize("operation", REPEATABLE)
    async def test_the_first_result_is_returned(self, operation: str, call: Call, lossy: LossyProxy) -> None:
        prepare, results = REPEATABLE[operation]
        assert await results_around_a_loss(call, lossy, prepare) == results

    async def test_the_result_of_an_unblocking_is_unknown(self, call: Call, lossy: LossyProxy) -> None:
        lossy.asking, blocks = b"ZREM", Blocks("ann")

        def block() -> Prepared:
            blocks.block("mallory")
            return blocks, "unblock", "mallory"

        assert await results_around_a_loss(call, lossy, block) == [True, None, False]


def left_for_good(chat: Chat) -> bool:
    """Those who left are still remembered."""
    assert chat.leave("cat", by="ann")
    assert chat.leave("bob", again=False)
    listed = [server().zrange(key, 0, -1) for key in (keys(chat).removed, keys(chat).opted_out)]
    return listed == [[b"cat"], [b"bob"]]


REFUSED: dict[str, Callable[[Chat], object]] = {
    "send": lambda chat: chat.send("ann", "more"),
    "send by a member with unread messages": lambda chat: chat.send("cat", "more"),
    "create": lambda chat: Chat.create("ann", ["dan"], "more"),
    "join": lambda chat: chat.join("dan", by="ann"),
    "add": lambda chat: chat.add(["bob", "dan", "eve"], by="ann"),
    "block": lambda chat: Blocks("ann").block("mallory"),
    "edit": lambda chat: chat.edit("ann", 2, "x" * 200),
    "rename": lambda chat: chat.rename("ann", "another title"),
}
#: what still works, in an order in which one follows the other
ALLOWED: dict[str, Callable[[Chat], object]] = {
    "pending": lambda chat: Inbox("cat").pending()[0].messages[-1].id == 5,
    "chats": lambda chat: Inbox("cat").chats()[0].unread == 5,
    "rate": lambda chat: UserRate("cat", "edit", limit=1, period=60).take() == 0.0,
    "unread": lambda chat: Inbox("cat").unread() == 5,
    "history": lambda chat: len(chat.history("cat").messages) == 5,
    "members": lambda chat: len(chat.members()) == 3,
    "info": lambda chat: chat.info().last_id == 5,
    "repeat of send": lambda chat: chat.send("bob", "other", request_id="five").body == "five",
    "ack of some": lambda chat: chat.ack("bob", 3) == 3 and Inbox("bob").unread() == 1,
    "delete_message": lambda chat: chat.delete_message("ann", 2).deleted,
    "its record": lambda chat: ids(chat.changes("bob", after=5, edits=0).edited) == [2],
    "pending that acks": lambda chat: ids(Inbox("bob").pending(ack=True)[0]) == [4, 5],
    "nothing is pending": lambda chat: not Inbox("bob").pending(),
    "ack of all": lambda chat: chat.ack("cat", 5) == 5 and not Inbox("cat").pending(),
    "unblock": lambda chat: Blocks("cat").unblock("mallory"),
    "leave for good": left_for_good,
    "leave": lambda chat: Chat("other").leave("ann") and Chat("other").members()[0].role == "owner",
    "delete": lambda chat: chat.delete("ann") and not Inbox("ann").chats(),
}


class TestFullMemory:
    """What adds data is refused and changes nothing; the rest works."""

    @pytest.fixture
    def chat(self, fill: Fill) -> Chat:
        for chat_id in ("other", "full"):
            chat = Chat.create("ann", ["bob", "cat"], "one", chat_id=chat_id, keep_last=1)
        Blocks("cat").block("mallory")
        said(chat, "ann", "two", "three", "four")
        chat.send("bob", "five", request_id="five")
        Chat("other").ack("bob", 1)
        Chat("other").ack("cat", 1)
        return chat

    def test_what_is_refused_and_what_works(
        self, chat: Chat, fill: Fill, raw: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = snapshot()
        fill()
        for name, operation in REFUSED.items():
            with pytest.raises(Unavailable, match="out of memory"):
                operation(chat)
            assert snapshot() == before, name
        for name, operation in ALLOWED.items():
            assert operation(chat), name
        assert not caplog.records
        raw.config_set("maxmemory", 0)
        assert Chat("other").send("bob", "more").id == 2

    def test_a_join_is_completed_if_memory_fills_before_its_last_step(self, chat: Chat, fill: Fill) -> None:
        joining = steps(chat.join, "dan", by="ann")
        step = joining.send(reply_to(next(joining)))
        step = joining.send(reply_to(step))
        fill()
        with pytest.raises(StopIteration) as returned:
            joining.send(reply_to(step))
        assert returned.value.value is True
        assert [one.chat_id for one in Inbox("dan").chats()] == ["full"]


#: seconds of COMMAND_DEADLINE in tests where operations fail
SHORT = 0.5


@pytest.mark.promise
class TestKilledServer:
    @pytest.mark.parametrize("patience", [PATIENCE, 0.05])
    def test_each_acknowledged_write_exists_once(
        self, patience: float, fragile: EmbeddedServer, connect: Connect, until: Callable[..., None]
    ) -> None:
        people, each = [f"p{number}" for number in range(4)], 200
        stage = connect(fragile, COMMAND_DEADLINE=2 * SHORT)
        chat = Chat.create(people[0], people[1:])
        impatient = child_processes.Stage(stage.url, {**stage.messaging, "COMMAND_DEADLINE": patience})
        with cast(impatient, len(people)) as pool:
            sending = [
                pool.submit(child_processes.begin, child_processes.send_through_failures, chat.id, user, each)
                for user in people
            ]
            for share in (0.1, 0.3):
                until(lambda: chat.info().last_id > share * each * len(people))  # noqa: B023
                fragile.kill()
                with pytest.raises(Unavailable):
                    chat.info()
                fragile.start()
            outcomes = [one.result(PATIENCE) for one in sending]
        messages = all_messages(chat, people[0])
        texts = bodies(messages)
        assert ids(messages) == list(range(1, len(messages) + 1))
        assert len(set(texts)) == len(texts)
        for outcome in outcomes:
            assert sum(map(len, outcome.values())) == each
            lost = set(outcome["sent"]) - set(texts)
            assert not lost, (lost, outcome["unknown"], outcome["refused"], texts, fragile.log.read_text())
            assert not set(outcome["refused"]) & set(texts)
        unsure = sum(len(outcome["unknown"] + outcome["refused"]) for outcome in outcomes)
        assert unsure == 0 if patience == PATIENCE else unsure > 0


@pytest.mark.promise
class TestFrozenServer:
    @contextmanager
    def frozen(self, server: EmbeddedServer, chat: Chat) -> Iterator[None]:
        """Freeze the server during the block, whose operation must fail within the deadline."""
        assert chat.info()  # over a connection that stays open
        server.freeze()
        began = time.monotonic()
        try:
            yield
            assert SHORT * 0.9 <= time.monotonic() - began <= SHORT + 3
        finally:
            server.thaw()

    def test_the_deadline_holds_and_a_repeat_is_safe(self, fragile: EmbeddedServer, connect: Connect) -> None:
        connect(fragile, COMMAND_DEADLINE=SHORT)
        chat = Chat.create("ann", ["bob"])
        for error, act in (
            (OutcomeUnknown, lambda: chat.send("ann", "hello", request_id="once")),
            (OutcomeUnknown, lambda: Chat.create("ann", ["bob"], chat_id="other", request_id="once")),
            (OutcomeUnknown, lambda: chat.ack("bob", 1)),
            (Unavailable, lambda: Inbox("bob").pending()),
            (Unavailable, lambda: chat.history("bob")),
        ):
            with self.frozen(fragile, chat), pytest.raises(error):
                act()
        assert chat.send("ann", "hello", request_id="once").id == 1
        assert Chat.create("ann", ["bob"], chat_id="other", request_id="once").members()[0].role == "owner"
        assert bodies(chat.history("bob")) == ["hello"]
        assert {one.chat_id for one in Inbox("bob").chats()} == {chat.id, "other"}


@pytest.mark.promise
class TestKilledClient:
    def test_unacked_messages_are_delivered_again(self, lasting: EmbeddedServer, connect: Connect) -> None:
        stage = connect(lasting)
        chat = Chat.create("ann", ["bob"], "one")
        chat.send("ann", "two")
        parent_end, child_end = processes.Pipe()
        process = processes.Process(target=child_processes.fetch_and_hang, args=(stage, "bob", child_end))
        process.start()
        assert parent_end.poll(PATIENCE)
        assert parent_end.recv() == [1, 2]
        process.kill()
        process.join()
        [pending] = Inbox("bob").pending()
        assert bodies(pending) == ["one", "two"]
        assert chat.ack("bob", pending.messages[-1].cursor) == 2
        assert Inbox("bob").pending() == []


@pytest.mark.promise
class TestManyProcesses:
    def test_each_member_receives_each_message_once_in_order(
        self, lasting: EmbeddedServer, connect: Connect, all_at_once: Cast
    ) -> None:
        people, each = [f"p{number}" for number in range(8)], 60
        stage = connect(lasting)
        chat = Chat.create(people[0], people[1:], chat_id="crowd")
        total = each * len(people)
        parts = [(chat.id, user, each, total, seed) for seed, user in enumerate(people)]
        found = all_at_once(stage, [(child_processes.converse, part) for part in parts])
        messages = all_messages(chat, people[0])
        assert ids(messages) == list(range(1, total + 1))
        for user in people:
            own = [message.body for message in messages if message.sender == user]
            assert own == [f"{user} {number}" for number in range(each)]
        for received in found:
            assert (received.repeated, received.out_of_order) == ([], [])
            assert received.bodies == {message.id: message.body for message in messages}
        assert [member.read_id for member in chat.members()] == [total] * len(people)
        assert [Inbox(user).unread() for user in people] == [0] * len(people)

    def test_new_members_receive_all_later_messages(
        self, lasting: EmbeddedServer, connect: Connect, all_at_once: Cast
    ) -> None:
        stage = connect(lasting)
        chat = Chat.create("host", ["talker"], chat_id="party")
        guests = [f"g{number}" for number in range(5)]
        *visits, first, second = all_at_once(
            stage,
            [
                *[(child_processes.join_and_leave, (chat.id, "host", guest, 12)) for guest in guests],
                (child_processes.send_many, (chat.id, "host", 250)),
                (child_processes.send_many, (chat.id, "talker", 250)),
            ],
        )
        sent = {message.id: message.body for message in all_messages(chat, "host")}
        assert sorted(sent) == list(range(1, 5 * 12 + 500 + 1))
        assert (first, second) == (sorted(first), sorted(second))
        for before, after, mark, received in itertools.chain(*visits):
            numbers = sorted(received.bodies)
            assert before >= 0, "every join and leave must succeed"
            assert before + 1 <= numbers[0] <= after + 1
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert numbers[-1] >= mark
            assert (received.repeated, received.out_of_order) == ([], [])
            assert received.bodies.items() <= sent.items()
        assert [member.user for member in chat.members()] == ["host", "talker"]
        assert [Inbox(guest).chats() for guest in guests] == [[]] * len(guests)


#: number of chats: two calls
CHATS = 150
EVERY = sorted(str(at) for at in range(CHATS))
#: added to the script; the error is the value of a key beside those of the call's first chat
REFUSAL = """
local refusal = redis.call('GET', KEYS[1] .. ':refusal')
if refusal then
  return redis.error_reply(refusal)
end
"""


@pytest.mark.promise
@pytest.mark.usefixtures("closing")
class TestRefusedPolls:
    """A poll that also acks, of more chats than fit into one script, while the server refuses the second."""

    @pytest.fixture
    def inbox(
        self, connect: Connect, lasting: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Inbox]:
        """An inbox with one message in each chat."""
        connect(lasting)
        read = commands.read
        monkeypatch.setattr(
            commands, "read", lambda name: REFUSAL * (name == "chats/inbox_pending.lua") + read(name)
        )
        commands.load.cache_clear()
        for at in range(CHATS):
            Chat.create("ann", ["bob"], f"{at}", chat_id=f"{at}")
        yield Inbox("bob")
        commands.load.cache_clear()

    def refuse(self, text: str, *, ms: int | None = None) -> str:
        """Refuse the second script; returns the key that does it."""
        key = f"{keys(list(server().hkeys(index('bob')))[Fan.SIZE].decode()).newest}:refusal"
        server().set(key, text, px=ms)
        return key

    def texts(self, found: list[Any]) -> list[str]:
        return [text for pending in found for text in bodies(pending)]

    async def test_for_now_nothing_is_lost(self, call: Call, inbox: Inbox) -> None:
        self.refuse("NOREPLICAS for now", ms=200)
        assert sorted(self.texts(await call(inbox, "pending", ack=True))) == EVERY
        assert await call(inbox, "pending") == []

    @pytest.mark.parametrize("text", ["NOREPLICAS for ever", "OOM command not allowed"])
    async def test_finally_nothing_is_lost(self, text: str, call: Call, inbox: Inbox) -> None:
        key = self.refuse(text)
        with deadline(1):
            received = self.texts(await call(inbox, "pending", ack=True))
        assert len(received) == Fan.SIZE
        server().delete(key)
        received += self.texts(await call(inbox, "pending", ack=True))
        assert sorted(received) == EVERY

    async def test_chats_beyond_the_total_can_fail(self, call: Call, inbox: Inbox) -> None:
        self.refuse("NOREPLICAS for ever")
        with deadline(1):
            received = self.texts(await call(inbox, "pending", total=50, ack=True))
        assert len(received) == 50
        with deadline(1), pytest.raises(Unavailable):
            await call(inbox, "pending", total=50)


class TestKnownDefects:
    """Of the well-known chat example with lists and counters in Redis; others are in test_interleavings.py,
    test_inbox_and_unread.py (own messages are unread, sending acks), test_limits.py (an absent member) and
    test_behaviour.py (a chat created anew)."""

    def test_reads_and_cleanup_are_atomic(self) -> None:
        chat = Chat.create("ann", ["bob", "cat"], keep_last=0)
        told: dict[str, list[int]] = {"bob": [], "cat": []}
        done = threading.Event()

        def read(user: str) -> None:
            while not done.is_set() or Inbox(user).unread():
                for news in Inbox(user).pending(limit=3):
                    assert (news.gap, news.reset) == (0, False)
                    told[user] += ids(news)
                    chat.ack(user, news.messages[-1].cursor)

        readers = [threading.Thread(target=read, args=[user], daemon=True) for user in told]
        for reader in readers:
            reader.start()
        said(chat, "ann", *"x" * 200)
        done.set()
        for reader in readers:
            reader.join()
        assert told == {"bob": list(range(1, 201)), "cat": list(range(1, 201))}
        assert server().llen(keys(chat).log) == 0
