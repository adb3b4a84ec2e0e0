"""What a chat does: creating it, sending, editing, request ids, title, typing, mutes, search."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pytest_django import Settings

from django_redis_messaging import (
    Broadcast,
    Chat,
    ChatExists,
    ChatNotFound,
    Choices,
    ConfigurationError,
    DelayQueue,
    Inbox,
    InvalidArgument,
    LimitExceeded,
    Mailbox,
    NotAMember,
    NotPermitted,
)
from django_redis_messaging.core.operations import Script
from django_redis_messaging.services.common import arguments
from tests.conftest import Call

from ..support.scripts import server_clock
from ..support.server import (
    all_keys,
    bodies,
    change,
    copied,
    ids,
    index,
    keys,
    reply_to,
    rolled_back,
    said,
    server,
    snapshot,
    until,
)

#: ms: the default of REQUEST_WINDOW
WINDOW = 120_000


@pytest.fixture
def chat() -> Chat:
    """A chat of ann (owner), bob and cat with three messages by bob."""
    made = Chat.create("ann", ["bob", "cat"], chat_id="trip", title="Trip")
    made.send("bob", "one")
    made.send("bob", "two", data={"n": [1, {}]}, reply_to=1)
    made.send("bob", "three")
    return made


class TestCreating:
    def test_the_sender_is_a_member_and_duplicates_are_removed(self) -> None:
        recipients = ["cat", "bob", "cat", "ann"]
        for _ in range(2):
            chat = Chat.create("ann", recipients)
            assert [(one.user, one.role) for one in chat.members()] == [
                ("ann", "owner"),
                ("cat", "member"),
                ("bob", "member"),
            ]
        assert recipients == ["cat", "bob", "cat", "ann"]
        assert [one.user for one in Chat.create("ann", (name for name in "xx")).members()] == ["ann", "x"]
        assert [one.user for one in Chat.create("ann", []).members()] == ["ann"]

    def test_a_repeat_returns_the_first_chat_even_with_a_generated_id(self) -> None:
        first = Chat.create("ann", ["bob"], "a", request_id="r")
        said(first, "bob", "b")
        again = Chat.create("ann", ["bob"], "a", request_id="r")
        assert again.id == first.id
        assert bodies(again.history("bob")) == ["a", "b"]
        assert Chat.create("bob", ["ann"], request_id="r").id != first.id
        assert Chat.create("ann", ["bob"]).id != Chat.create("ann", ["bob"]).id

    def test_no_chat_is_created_over_leftover_keys(self) -> None:
        chat = Chat.create("ann", ["bob", "eve", "fay"], "a", chat_id="trip")
        chat.send("bob", "behind")
        chat.leave("eve", by="ann")
        chat.leave("fay", again=False)
        chat.edit("ann", 1, "b")
        Choices().choose("bob", receipts=False)
        copy, held = copied(chat), keys(chat)
        for key in set(held.all_keys) - {held.typing, held.mutes, *held.requests}:
            rolled_back(chat, {key: copy[key]})
            leftover = copied(chat)
            assert list(leftover) == [key]
            with pytest.raises(ChatExists, match="trip"):
                Chat.create("cat", ["dan"], chat_id="trip", request_id="r")
            assert copied(chat) == leftover
            assert not any(server().exists(index(user)) for user in ("cat", "dan"))

    def test_an_id_can_be_used_again_after_the_last_member_left(self) -> None:
        old = Chat.create("ann", ["bob"], "old", chat_id="x")
        said(old, "ann", *"23456789")
        stale = old.history("bob").messages[-1]
        old.ack("bob", stale.cursor)
        assert Inbox("bob").pending() == []
        for user in ("ann", "bob"):
            old.leave(user)
        new = Chat.create("ann", ["bob"], "new", chat_id="x")
        assert bodies(Inbox("bob").pending()[0]) == ["new"]
        assert new.ack("bob", stale.cursor) == 0
        page = new.history("bob", after=stale.cursor)
        assert (bodies(page), page.reset) == (["new"], True)
        assert Inbox("bob").unread() == 1

    def test_the_number_of_members_is_limited(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_MEMBERS=2)
        with pytest.raises(LimitExceeded) as caught:
            Chat.create("ann", ["bob", "cat"])
        assert (caught.value.limit, caught.value.actual) == (2, 3)
        assert all_keys() == []
        chat = Chat.create("ann", ["bob"], chat_id="two")
        with pytest.raises(LimitExceeded):
            chat.join("cat", by="ann")
        assert chat.info().member_count == 2

    def test_ten_thousand_members(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_MEMBERS=10_000)
        names = ["ann", *(str(number) for number in range(9999))]
        values = ("1", WINDOW, "Title", 1, 1000, '7,0,5,7,"ann","hello"]', 0, len(names))
        chat = Chat("large")
        for _ in range(2):  # the second one is a repeat
            reply = reply_to(Script("chats/create", keys(chat).all_keys, (*values, *names)))
        assert list(map(int, reply[1:])) == list(range(int(reply[0]), int(reply[0]) + 10_000))
        info = chat.info()
        assert (info.member_count, info.last_id) == (10_000, 1)
        assert [(one.user, one.role, one.read_id) for one in chat.members(limit=2)] == [
            ("ann", "owner", 1),
            ("0", "member", 0),
        ]
        assert [one.user for one in chat.members(after="9997")] == ["9998"]
        with pytest.raises(LimitExceeded):
            chat.join("bob")
        assert chat.leave("9998") is True
        assert len(reply_to(Script("chats/delete", keys(chat).all_keys, ("ann", "2", WINDOW)))) == 2 * 9999
        assert all(":requests:" in key for key in all_keys() if "{chat:" in key)


class TestSending:
    def test_fields_of_a_message(self) -> None:
        chat = Chat.create("ann", ["bob"], "hello", chat_id="trip")
        sent = chat.send("bob", "hi", data={"n": 1}, reply_to=1, request_id="0123")
        first, second = chat.history("ann").messages
        assert second == sent
        assert (sent.id, sent.chat_id, sent.sender, sent.body) == (2, "trip", "bob", "hi")
        assert (sent.data, sent.reply_to, sent.kind) == ({"n": 1}, 1, "text")
        assert (sent.edited_at, sent.deleted) == (None, False)
        assert sent.nonce == second.nonce == zlib.crc32(b"0123")
        assert (first.sender, first.body, first.data, first.reply_to) == ("ann", "hello", None, None)
        assert first.cursor != second.cursor

    async def test_mentions_are_other_members_at_the_time_of_sending(self, call: Call) -> None:
        chat = Chat.create("ann", ["bob", 'c"],[ät'], chat_id="trip")
        named = ["bob", "zoe", "ann", "bob", 'c"],[ät']
        sent = await call(chat, "send", "ann", "hi", mentions=named, request_id="r")
        assert sent.mentions == ("bob", 'c"],[ät')
        chat.leave("bob")
        assert await call(chat, "send", "ann", "hi", mentions=named, request_id="r") == sent
        assert (await call(chat, "send", "ann", "hi", data=[1], reply_to=1, mentions=["bob"])).mentions == ()
        last = await call(chat, "send", "ann", "hi", data={"n": 1}, reply_to=1, mentions=['c"],[ät'])
        assert (last.mentions, last.data, last.reply_to) == (('c"],[ät',), {"n": 1}, 1)
        stored = chat.history("ann").messages
        assert [message.mentions for message in stored] == [sent.mentions, (), last.mentions]
        assert [message for message in stored if message.mentions] == [sent, last]
        assert chat.edit("ann", 1, "Hello").mentions == sent.mentions
        assert chat.delete_message("ann", 1).mentions == ()

    def test_at_most_20_others_are_mentioned(self) -> None:
        members = [f"user{number}" for number in range(21)]
        chat = Chat.create("ann", members)
        assert len(chat.send("ann", "hi", mentions=[*members[:20], "ann"]).mentions) == 20
        with pytest.raises(ValueError, match="at most 20 items, not 21"):
            chat.send("ann", "hi", mentions=members)
        with pytest.raises(TypeError, match="wrap it in a list"):
            chat.send("ann", "hi", mentions="bob")
        assert chat.info().last_id == 1

    def test_any_data_and_body_can_be_read_back(self) -> None:
        chat = Chat.create("ann", ["bob"])
        for data in (
            *(2**53 + 1, -0.0, 1.5, 0, False, 10**400, "", "😀 \x00 \u2028"),
            *([], {}, [None], [[], {}, [{}]], {"": {"a": []}}, {"{": "}", '"]': "],["}),
        ):
            chat.send("ann", "b", data=data)
            found = chat.history("bob").messages[-1].data
            assert repr(found) == repr(data)
        for body in ("", " ", "😀", "a\0b", '"],["', "[1,2,3,4,5,", "line\nline\r\t\\", "\u2028é"):
            chat.send("ann", body)
            chat.send("ann", body, data=body)
            assert bodies(chat.history("bob"))[-2:] == [body, body]

    def test_sent_at_is_aware_and_never_decreases(self) -> None:
        chat = Chat.create("ann", ["bob"], "a")
        ahead = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
        with server_clock(ahead):  # the clock of the server before a failover
            chat.send("ann", "b")
        moments = [message.sent_at for message in said(chat, "ann", "c", "d")]
        assert all(moment.utcoffset() == timedelta(0) for moment in moments)
        assert moments[0] >= datetime.fromtimestamp(ahead / 1000, UTC)
        assert moments == sorted(moments)


class TestRequestIds:
    def test_a_repeat_returns_the_first_answer(self, chat: Chat) -> None:
        first = chat.send("ann", "a", data=[1], reply_to=1, request_id="r")
        said(chat, "bob", "b")
        before = snapshot()
        assert chat.send("ann", "a", data=[1], reply_to=1, request_id="r") == first
        assert chat.send("ann", "other", reply_to=99, request_id="r") == first
        assert snapshot() == before
        edited = chat.edit("ann", first.id, "edited")
        assert chat.send("ann", "other", request_id="r") == edited
        assert chat.send("ann", "a", data=[1], request_id="r2").id == 6
        assert ids(said(chat, "ann", "same", "same")) == [7, 8]

    def test_a_repeat_whose_message_is_no_longer_stored_has_no_mentions(self) -> None:
        chat = Chat.create("ann", ["bob"], keep_last=0)
        assert chat.send("ann", "hi", mentions=["bob"], request_id="r").mentions == ("bob",)
        chat.ack("bob", 1)
        repeat = chat.send("ann", "hi", mentions=["bob"], request_id="r")
        assert (repeat.id, repeat.mentions) == (1, ())

    def test_they_outlive_the_chat_and_expire(self) -> None:
        chat = Chat.create("ann", ["bob"], "a", chat_id="trip", request_id="made")
        chat.send("ann", "b", request_id="sent")
        assert chat.delete("ann") is True
        left = all_keys()
        assert left
        assert all(":requests:" in key and 0 < server().pttl(key) <= 2 * WINDOW for key in left)
        assert Chat.create("ann", ["bob"], "a", chat_id="trip", request_id="made").id == "trip"
        with pytest.raises(ChatNotFound):
            chat.send("ann", "b", request_id="sent")

    @pytest.mark.timing
    def test_they_are_forgotten_after_the_window(self, settings: Settings) -> None:
        change(settings, REQUEST_WINDOW=0.2)
        chat = Chat.create("ann", ["bob"])
        chat.send("ann", "a", request_id="r")
        assert all(0 < server().pttl(key) <= 400 for key in all_keys() if ":requests:" in key)
        until(lambda: not any(server().hexists(key, "ann\0r") for key in keys(chat).requests))
        assert chat.send("ann", "a", request_id="r").id == 2

    def test_they_are_known_for_a_whole_window(self, chat: Chat) -> None:
        """The hashes in which they are stored take turns, a window each."""
        begin = 10**13
        with server_clock(begin + WINDOW - 1):
            sent = chat.send("ann", "a", request_id="r")
        with server_clock(begin + WINDOW):
            said(chat, "ann", "b")
        with server_clock(begin + 2 * WINDOW - 1):
            assert chat.send("ann", "a", request_id="r") == sent

    @pytest.mark.parametrize("turn", [0, 1])
    def test_one_that_could_not_be_written_is_not_known(self, chat: Chat, turn: int) -> None:
        """In the turn of either hash."""
        log = keys(chat).log
        entries = server().lrange(log, 0, -1)
        with server_clock(10**13 + turn * WINDOW):
            server().set(log, "of another type")
            with pytest.raises(ConfigurationError):
                chat.send("ann", "a", request_id="r")
            server().delete(log)
            server().rpush(log, *entries)
            assert chat.send("ann", "a", request_id="r").id == 4
        assert chat.history("ann").messages[-1].body == "a"


#: operations that record an answer, and what happens before
RECORDED: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "create": (
        lambda: Chat.create("ann", ["bob"], chat_id="trip").delete("ann"),
        lambda: Chat.create("ann", ["bob"], chat_id="trip"),
    ),
    "send": (lambda: Chat.create("ann", ["bob"], chat_id="trip"), lambda: Chat("trip").send("ann", "a")),
    "promote": (
        lambda: Chat.create("ann", ["bob"], chat_id="trip"),
        lambda: Chat("trip").set_role("ann", "bob", "owner"),
    ),
    "mail": (lambda: Mailbox("ann").send("a"), lambda: Mailbox("ann").send("b")),
    "publish": (lambda: Broadcast("news").publish("a"), lambda: Broadcast("news").publish("b")),
    "push": (
        lambda: DelayQueue("mails").push("a", request_id="r") and DelayQueue("mails").pop(lease=None),
        lambda: DelayQueue("mails").push("b", request_id="r"),
    ),
}


class TestRecordedAnswers:
    @pytest.mark.parametrize("operation", RECORDED)
    @pytest.mark.parametrize(
        "ttl", [5_000, None, 30 * 86_400_000], ids=["short", "missing", "after the clock was set back"]
    )
    def test_each_is_kept_for_a_window(self, ttl: int | None, operation: str) -> None:
        """Also in a hash that would expire too early, since the window was raised, or years later."""
        prepare, operate = RECORDED[operation]
        prepare()
        hashes = {f"{key[:-1]}{turn}" for key in all_keys() if ":requests:" in key for turn in (0, 1)}
        for key in hashes:
            server().delete(key)
            server().hset(key, "earlier", "1")
            if ttl:
                server().pexpire(key, ttl)
        operate()
        written = [key for key in hashes if server().hlen(key) > 1]
        assert written
        assert all(WINDOW - 2_000 < server().pttl(key) <= 2 * WINDOW for key in written)


class TestEditing:
    """What members of each role may change is in test_machine.py."""

    def test_an_edit_replaces_the_body_and_a_tombstone_the_whole_message(self, chat: Chat) -> None:
        one, two, three = chat.history("cat").messages
        edited = chat.edit("bob", 2, 'zwei "2" 😀')
        assert edited == replace(two, body='zwei "2" 😀', edited_at=edited.edited_at)
        assert edited.edited_at >= edited.sent_at
        assert chat.history("cat").messages == [one, edited, three]
        gone = chat.delete_message("ann", 2)
        emptied = replace(two, body="", data=None, reply_to=None, deleted=True, edited_at=gone.edited_at)
        assert gone == emptied
        assert gone.edited_at >= edited.edited_at
        assert chat.history("cat").messages == [one, gone, three]
        after = snapshot()
        assert chat.delete_message("ann", 2) == gone
        assert chat.edit("bob", 2, "back") is None
        assert snapshot() == after
        assert chat.info().edits == 2

    @pytest.mark.parametrize(
        ("author", "other"), [("bob", "bo"), ("bo", "bob"), ('b"', "b"), ("b,1", "b"), ("é", "e")]
    )
    def test_only_the_author_edits(self, author: str, other: str) -> None:
        """Whose name begins like that of another member."""
        chat = Chat.create("ann", [author, other])
        chat.send(author, "a", data=[other])
        for user in (other, "ann"):  # ann is the owner
            with pytest.raises(NotPermitted, match="did not write"):
                chat.edit(user, 1, "b")
        with pytest.raises(NotPermitted):
            chat.delete_message(other, 1)
        assert chat.edit(author, 1, "c") is not None


class TestTitleAndMutes:
    def test_rename_and_info(self, chat: Chat) -> None:
        chat.rename("bob", "Neu: {%s} 😀")
        info = chat.info()
        last = chat.history("ann").messages[-1]
        assert (info.chat_id, info.title, info.open, info.keep_last) == ("trip", "Neu: {%s} 😀", False, 1000)
        assert (info.last_id, info.first_id, info.edits, info.member_count) == (3, 1, 0, 3)
        assert info.created_at <= info.active_at == last.sent_at
        assert Inbox("cat").chats()[0].title == "Neu: {%s} 😀"
        chat.rename("bob", "")
        assert chat.info().title == ""
        empty = Chat.create("ann", [], keep_last=10**9).info()
        assert (empty.title, empty.keep_last) == ("", 10**9)
        assert (empty.last_id, empty.first_id, empty.active_at) == (0, 1, empty.created_at)
        assert (chat.id, chat.chat_id, repr(chat)) == ("trip", "trip", "Chat('trip')")

    @pytest.mark.timing
    def test_mute_until_a_given_time(self, chat: Chat) -> None:
        inbox = Inbox("cat")
        until_then = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        chat.mute("cat", until_then)
        assert (inbox.chats()[0].muted, inbox.unread(), Inbox("bob").chats()[0].muted) == (True, 3, False)
        assert chat.changes("cat", after=0).muted_until == until_then
        assert chat.changes("bob", after=0).muted_until is None
        chat.mute("cat", None)
        assert inbox.chats()[0].muted is False
        chat.mute("cat", datetime.now(UTC) + timedelta(milliseconds=300))
        assert inbox.chats()[0].muted is True
        until(lambda: not inbox.chats()[0].muted)
        chat.mute("cat", datetime.now(UTC) - timedelta(seconds=1))
        assert chat.changes("cat", after=0).muted_until is None

    def test_mute_until_a_moment_that_cannot_be_read_back(self, chat: Chat) -> None:
        with pytest.raises(InvalidArgument, match="until must be between"):
            chat.mute("bob", datetime.max.replace(tzinfo=UTC))
        chat.mute("bob", arguments.MAX_MOMENT)
        assert chat.changes("bob", after=0).muted_until == arguments.MAX_MOMENT


class TestTyping:
    @pytest.mark.timing
    def test_it_expires_for_each_member(self, chat: Chat, settings: Settings) -> None:
        change(settings, TYPING_WINDOW=0.3)
        assert chat.typists() == []
        chat.typing("cat")
        assert chat.typists() == ["cat"]
        chat.typing("bob")
        assert sorted(chat.typists()) == ["bob", "cat"]
        until(lambda: chat.typing("bob") or chat.typists() == ["bob"])
        until(lambda: chat.typists() == [])
        until(lambda: not server().exists(keys(chat).typing))
        change(settings, TYPING_MAX_MEMBERS=2)
        chat.typing("bob")
        assert chat.typists() == []

    def test_who_has_sent_and_who_reads_are_left_out(self, chat: Chat) -> None:
        for user in ("cat", "bob"):
            chat.typing(user)
        assert chat.changes("bob", after=0).typists == ["cat"]
        assert set(chat.changes("ann", after=0).typists) == {"bob", "cat"}
        chat.send("bob", "Here it is")
        assert chat.typists() == chat.changes("ann", after=1).typists == ["cat"]


class TestGettingMessages:
    def test_visible_messages_in_order(self, chat: Chat) -> None:
        assert bodies(chat.get_messages("cat", [3, 1, 3, 9])) == ["one", "three"]
        chat.join("dan", by="ann")
        chat.send("ann", "Welcome")
        assert ids(chat.get_messages("dan", range(1, 10))) == [4]
        with pytest.raises(ValueError, match="at most 50 items, not 51"):
            chat.get_messages("bob", range(1, 52))
        with pytest.raises(NotAMember):
            chat.get_messages("eve", [1])

    def test_removed_and_too_large_ones_are_left_out(self, settings: Settings) -> None:
        chat = Chat.create("ann", ["bob"])
        said(chat, "ann", *["x" * 60_000] * 5)
        assert ids(chat.get_messages("bob", range(1, 6))) == [1, 2, 3, 4]
        change(settings, CHAT_MAX_LENGTH=2)
        assert ids(chat.get_messages("bob", [1, 2, 3, 4, 5])) == [4, 5]


class TestSearch:
    @pytest.fixture
    def meals(self) -> Chat:
        chat = Chat.create("ann", ["bob", "cat"], chat_id="meals")
        said(chat, "ann", "Pizza", "Straße", "pasta", "salad", "Pizza again")
        return chat

    def test_folded_texts_newest_first(self, meals: Chat) -> None:
        found = meals.search("bob", "PIZZA")
        assert (ids(found.messages), found.complete) == ([5, 1], True)
        assert ids(meals.search("bob", "strasse").messages) == [2]
        first = meals.search("bob", "a", limit=2)
        assert (ids(first.messages), first.complete) == ([5, 4], False)
        rest = meals.search("bob", "a", before=first.before, limit=5)
        assert (ids(rest.messages), rest.complete) == ([3, 2, 1], True)
        with pytest.raises(ValueError, match="empty"):
            meals.search("bob", "")

    def test_deleted_and_invisible_messages_are_left_out(self, meals: Chat) -> None:
        meals.delete_message("ann", 1)
        meals.join("dan", by="ann")
        assert ids(meals.search("bob", "pizza").messages) == [5]
        assert meals.search("dan", "pizza").messages == []

    def test_a_call_reads_a_bounded_number_of_messages(self, meals: Chat) -> None:
        said(meals, "ann", *["other"] * 600)
        first = meals.search("bob", "salad")
        assert (first.messages, first.before, first.complete) == ([], 106, False)
        rest = meals.search("bob", "salad", before=first.before)
        assert (ids(rest.messages), rest.complete) == ([4], True)


async def test_async_versions() -> None:
    chat = await Chat.acreate("ann", ["bob"], "a", title="T", request_id="r")
    assert (await Chat.acreate("ann", ["bob"], "a", request_id="r")).id == chat.id
    sent = await chat.asend("bob", "b", data={"x": [2**60]}, reply_to=1, request_id="s")
    assert await chat.asend("bob", "b", data={"x": [2**60]}, reply_to=1, request_id="s") == sent
    assert (await chat.ahistory("ann")).messages[-1] == sent
    assert ids(await chat.aget_messages("bob", [2])) == [2]
    assert ids((await chat.asearch("bob", "B")).messages) == [2]
    assert (await chat.aedit("bob", 2, "c")).body == "c"
    assert (await chat.adelete_message("ann", 2)).deleted
    assert await chat.aedit("bob", 2, "x") is None
    with pytest.raises(NotPermitted):
        await chat.adelete_message("bob", 1)
    await chat.arename("bob", "New")
    assert (await chat.ainfo()).title == "New"
    await chat.amute("bob", datetime.now(UTC) + timedelta(hours=1))
    await chat.atyping("bob")
    assert await chat.atypists() == ["bob"]
    with pytest.raises(ChatExists):
        await Chat.acreate("ann", [], chat_id=chat.id)
    with pytest.raises(NotAMember):
        await chat.asend("cat", "x")
