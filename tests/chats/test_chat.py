"""Creating chats and sending messages: ids, fields, repeats."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, ChatExists, ChatNotFound, Choices, Inbox, LimitExceeded, NotAMember
from django_redis_messaging.core.operations import Script
from tests.conftest import Call

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
    server_ms,
    snapshot,
    until,
)


def test_ids_are_consecutive_for_all_senders() -> None:
    chat = Chat.create("ann", ["bob", "cat"], "first")
    sent = [chat.send(sender, "next") for sender in ["bob", "ann", "ann", "cat"]]
    assert ids(sent) == [2, 3, 4, 5]
    assert ids(chat.history("cat")) == [1, 2, 3, 4, 5]


def test_message_fields() -> None:
    chat = Chat.create("ann", ["bob"], "hello", chat_id="trip")
    sent = chat.send("bob", "hi", data={"n": 1}, reply_to=1)
    first, second = chat.history("ann").messages
    assert second == sent
    assert (sent.id, sent.chat_id, sent.sender, sent.body) == (2, "trip", "bob", "hi")
    assert (sent.data, sent.reply_to, sent.kind) == ({"n": 1}, 1, "text")
    assert (sent.edited_at, sent.deleted) == (None, False)
    assert (first.sender, first.body, first.data, first.reply_to) == ("ann", "hello", None, None)
    assert first.cursor != second.cursor


async def test_mentions_are_other_members_at_the_time_of_sending(call: Call) -> None:
    chat = Chat.create("ann", ["bob", 'c"],[ät'], chat_id="trip")
    named = ["bob", "zoe", "ann", "bob", 'c"],[ät']
    sent = await call(chat, "send", "ann", "hi", mentions=named, request_id="r")
    assert sent.mentions == ("bob", 'c"],[ät')
    chat.leave("bob")
    assert await call(chat, "send", "ann", "hi", mentions=named, request_id="r") == sent
    assert (await call(chat, "send", "ann", "hi", data=[1], reply_to=1, mentions=["bob"])).mentions == ()
    with_all = await call(chat, "send", "ann", "hi", data={"n": 1}, reply_to=1, mentions=['c"],[ät'])
    assert (with_all.mentions, with_all.data, with_all.reply_to) == (('c"],[ät',), {"n": 1}, 1)
    assert [message.mentions for message in chat.history("ann").messages] == [
        sent.mentions,
        (),
        with_all.mentions,
    ]
    assert [message for message in chat.history("ann").messages if message.mentions] == [sent, with_all]
    assert chat.edit("ann", 1, "Hello").mentions == sent.mentions
    assert chat.delete_message("ann", 1).mentions == ()


def test_at_most_20_others_are_mentioned() -> None:
    members = [f"user{number}" for number in range(21)]
    chat = Chat.create("ann", members)
    assert len(chat.send("ann", "hi", mentions=[*members[:20], "ann"]).mentions) == 20
    with pytest.raises(ValueError, match="at most 20 items, not 21"):
        chat.send("ann", "hi", mentions=members)
    with pytest.raises(TypeError, match="wrap it in a list"):
        chat.send("ann", "hi", mentions="bob")
    assert chat.info().last_id == 1


def test_a_repeat_whose_message_is_no_longer_stored_has_no_mentions() -> None:
    chat = Chat.create("ann", ["bob"], keep_last=0)
    assert chat.send("ann", "hi", mentions=["bob"], request_id="r").mentions == ("bob",)
    chat.ack("bob", 1)
    repeat = chat.send("ann", "hi", mentions=["bob"], request_id="r")
    assert (repeat.id, repeat.mentions) == (1, ())


@pytest.mark.parametrize(
    "data",
    [
        *(2**53 + 1, -0.0, 1.5, 0, False, 10**400, "", "😀 \x00 \u2028"),
        *([], {}, [None], [[], {}, [{}]], {"": {"a": []}}, {"{": "}", '"]': "],["}),
    ],
    ids=repr,
)
def test_data_round_trips(data: Any) -> None:
    chat = Chat.create("ann", ["bob"])
    chat.send("ann", "b", data=data)
    (message,) = chat.history("bob").messages
    assert message.data == data
    assert type(message.data) is type(data)


@pytest.mark.parametrize(
    "body", ["", " ", "😀", "a\0b", '"],["', "[1,2,3,4,5,", "line\nline\r\t\\", "\u2028é"]
)
def test_body_round_trips(body: str) -> None:
    chat = Chat.create("ann", ["bob"])
    chat.send("ann", body)
    chat.send("ann", body, data=body)
    assert bodies(chat.history("bob")) == [body, body]


def test_sent_at_is_aware_and_never_decreases() -> None:
    chat = Chat.create("ann", ["bob"], "a")
    ahead = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    line = server().get(keys(chat).newest).split(b"-")
    # the clock of the server before a failover was an hour ahead
    server().set(keys(chat).newest, b"-".join([line[0], str(ahead).encode(), *line[2:]]))
    moments = [message.sent_at for message in said(chat, "ann", "b", "c")]
    assert all(moment.utcoffset() == timedelta(0) for moment in moments)
    assert moments[0] >= datetime.fromtimestamp(ahead / 1000, UTC)
    assert moments == sorted(moments)


def test_reply_to_must_not_be_above_the_newest() -> None:
    chat = Chat.create("ann", [], "a")
    before = snapshot()
    with pytest.raises(ValueError, match="reply_to"):
        chat.send("ann", "b", reply_to=2)
    assert snapshot() == before


# request ids


def test_repeated_send_returns_the_first_answer() -> None:
    chat = Chat.create("ann", ["bob"])
    first = chat.send("ann", "a", data=[1], request_id="r1")
    said(chat, "bob", "b")
    before = snapshot()
    assert chat.send("ann", "a", data=[1], request_id="r1") == first
    assert snapshot() == before
    assert chat.send("ann", "a", data=[1], request_id="r2").id == 3


def test_a_repeat_with_another_body_gets_the_stored_message() -> None:
    chat = Chat.create("ann", ["bob"], "hi")
    first = chat.send("ann", "a", data=[1], reply_to=1, request_id="r")
    chat.send("bob", "b")
    assert chat.send("ann", "other", reply_to=2, request_id="r") == first
    assert chat.send("ann", "other", reply_to=99, request_id="r") == first
    edited = chat.edit("ann", first.id, "edited")
    assert chat.send("ann", "other", request_id="r") == edited


def test_sends_without_request_id_are_separate_messages() -> None:
    chat = Chat.create("ann", ["bob"])
    assert ids(said(chat, "ann", "same", "same")) == [1, 2]


def test_create_and_send_can_share_a_request_id() -> None:
    chat = Chat.create("ann", ["bob"], chat_id="trip", request_id="form-1")
    sent = chat.send("ann", "a", request_id="form-1")
    assert sent.id == 1
    chat.send("ann", "b", request_id="form-2")
    with pytest.raises(ChatExists):
        Chat.create("ann", ["bob"], chat_id="trip", request_id="form-2")


@pytest.mark.timing
def test_request_ids_are_valid_for_at_least_one_window(settings: Settings) -> None:
    change(settings, REQUEST_WINDOW=0.5)
    chat = Chat.create("ann", ["bob"])
    chat.send("ann", "a", request_id="r")
    assert all(0 < server().pttl(key) <= 1000 for key in all_keys() if ":requests:" in key)
    until(lambda: not any(server().hexists(key, "ann\0r") for key in keys(chat).requests))
    assert chat.send("ann", "a", request_id="r").id == 2


@pytest.mark.timing
def test_repeat_in_the_next_turn_is_recognized(settings: Settings) -> None:
    change(settings, REQUEST_WINDOW=1)
    chat = Chat.create("ann", ["bob"])
    sent = chat.send("ann", "a", request_id="r")
    turn = int(sent.sent_at.timestamp())
    until(lambda: server_ms() // 1000 > turn)
    said(chat, "ann", "b")
    assert chat.send("ann", "a", request_id="r") == sent


def test_request_ids_belong_to_their_sender() -> None:
    chat = Chat.create("ann", ["bob"])
    sent = chat.send("bob", "from bob", request_id="r")
    assert chat.send("ann", "from ann", request_id="r").body == "from ann"
    assert chat.send("bob", "from bob", request_id="r") == sent
    assert bodies(chat.history("ann")) == ["from bob", "from ann"]


def test_only_members_get_the_answer_to_a_repeat() -> None:
    chat = Chat.create("ann", ["bob"])
    chat.send("bob", "a", request_id="r")
    chat.leave("bob")
    for sender in ("bob", "eve"):
        with pytest.raises(NotAMember):
            chat.send(sender, "a", request_id="r")
    assert ids(chat.history("ann")) == [1]


def test_request_ids_outlive_the_chat_and_expire() -> None:
    chat = Chat.create("ann", ["bob"], "a", chat_id="trip", request_id="made")
    chat.send("ann", "b", request_id="sent")
    assert chat.delete("ann") is True
    left = all_keys()
    assert left
    assert all(":requests:" in key and 0 < server().pttl(key) <= 240_000 for key in left)
    assert Chat.create("ann", ["bob"], "a", chat_id="trip", request_id="made").id == "trip"
    with pytest.raises(ChatNotFound):
        chat.send("ann", "b", request_id="sent")


# create


def test_repeated_create_returns_the_first_chat_even_with_a_generated_id() -> None:
    first = Chat.create("ann", ["bob"], "a", request_id="r")
    said(first, "bob", "b")
    again = Chat.create("ann", ["bob"], "a", request_id="r")
    assert again.id == first.id
    assert bodies(again.history("bob")) == ["a", "b"]
    assert Chat.create("bob", ["ann"], request_id="r").id != first.id
    assert Chat.create("ann", ["bob"]).id != Chat.create("ann", ["bob"]).id


def test_creating_an_existing_chat_fails() -> None:
    Chat.create("ann", ["bob"], "a", chat_id="trip", title="T", request_id="r")
    chat_keys = [key for key in all_keys() if "{chat:" in key]
    before = {key: server().dump(key) for key in chat_keys}
    with pytest.raises(ChatExists, match="trip"):
        Chat.create("cat", ["dan"], "x", chat_id="trip")
    assert {key: server().dump(key) for key in chat_keys} == before
    assert Chat.create("ann", ["bob"], "a", chat_id="trip", request_id="r").info().last_id == 1
    assert Inbox("dan").chats() == []


def test_a_chat_is_not_created_over_leftover_keys() -> None:
    chat = Chat.create("ann", ["bob", "eve", "fay"], "a", chat_id="trip")
    chat.send("bob", "behind")
    chat.leave("eve", by="ann")
    chat.leave("fay", again=False)
    Choices().choose("bob", receipts=False)
    copy = copied(chat)
    held = keys(chat)
    for key in set(held.all_keys) - {held.typing, held.mutes, *held.requests}:
        rolled_back(chat, {key: copy[key]})
        leftover = copied(chat)
        assert list(leftover) == [key]
        with pytest.raises(ChatExists):
            Chat.create("cat", ["dan"], chat_id="trip", request_id="r")
        assert copied(chat) == leftover
        assert not any(server().exists(index(user)) for user in ("cat", "dan"))


def test_id_can_be_reused_after_the_last_member_left() -> None:
    Chat.create("ann", [], "old", chat_id="trip").leave("ann")
    chat = Chat.create("bob", ["ann"], "new", chat_id="trip")
    assert bodies(chat.history("ann")) == ["new"]


def test_sender_is_a_member_and_duplicates_are_removed() -> None:
    recipients = ["cat", "bob", "cat", "ann"]
    chat = Chat.create("ann", recipients)
    assert [(one.user, one.role) for one in chat.members()] == [
        ("ann", "owner"),
        ("cat", "member"),
        ("bob", "member"),
    ]
    assert recipients == ["cat", "bob", "cat", "ann"]
    assert [one.user for one in Chat.create("ann", (name for name in ["x", "x"])).members()] == ["ann", "x"]
    assert [one.user for one in Chat.create("ann", []).members()] == ["ann"]


def test_create_without_body_sends_no_message() -> None:
    chat = Chat.create("ann", ["bob"])
    assert (chat.info().last_id, chat.history("ann").messages) == (0, [])
    assert Inbox("bob").unread() == 0


def test_recipients_must_not_be_a_str() -> None:
    with pytest.raises(TypeError, match="list"):
        Chat.create("ann", "bob")
    assert all_keys() == []


@pytest.mark.parametrize("keep_last", [0, 1, 10**9])
def test_keep_last_title_and_open_are_stored(keep_last: int) -> None:
    chat = Chat.create("ann", ["bob"], "a", title="😀 T", open=True, keep_last=keep_last)
    said(chat, "bob", "b")
    info = chat.info()
    assert (info.title, info.open, info.keep_last, info.last_id) == ("😀 T", True, keep_last, 2)
    assert Chat.create("ann", []).info().keep_last == 1000
    assert Chat.create("ann", []).info().open is False


def test_too_many_members(settings: Settings) -> None:
    change(settings, CHAT_MAX_MEMBERS=2)
    with pytest.raises(LimitExceeded) as caught:
        Chat.create("ann", ["bob", "cat"])
    assert (caught.value.limit, caught.value.actual) == (2, 3)
    assert all_keys() == []
    chat = Chat.create("ann", ["bob"], chat_id="two")
    with pytest.raises(LimitExceeded):
        chat.join("cat", by="ann")
    assert chat.info().member_count == 2


def test_too_many_chats_of_a_user(settings: Settings) -> None:
    change(settings, USER_MAX_CHATS=2)
    chats = [Chat.create("ann", ["bob"], chat_id=name) for name in "xy"]
    with pytest.raises(LimitExceeded) as caught:
        Chat.create("cat", ["bob"], chat_id="z")
    assert caught.value.limit == 2
    with pytest.raises(ChatNotFound):
        Chat("z").info()
    assert chats[0].join("bob", by="ann") is False
    chats[0].leave("bob")
    Chat.create("cat", ["bob"], chat_id="z")
    assert server().hlen(index("bob")) == 2


def test_maximum_number_of_members(settings: Settings) -> None:
    change(settings, CHAT_MAX_MEMBERS=10_000)
    names = ["ann", *(str(number) for number in range(9999))]
    values = ("1", 120_000, "token", "Title", 1, 1000, '7,0,5,7,"ann","hello"]', 0, len(names))
    chat = Chat("large")
    for _ in range(2):  # the second one is a repeat
        reply = reply_to(Script("chats/create", keys(chat).all_keys, (*values, *names)))
    assert reply[1:] == [b"token"] * 10_000
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
    assert len(reply_to(Script("chats/delete", keys(chat).all_keys, ("ann", "2", 120_000)))) == 2 * 9999
    assert all(":requests:" in key for key in all_keys() if "{chat:" in key)


async def test_async_create_and_send() -> None:
    chat = await Chat.acreate("ann", ["bob"], "a", title="T", request_id="r")
    assert (await Chat.acreate("ann", ["bob"], "a", request_id="r")).id == chat.id
    first = await chat.asend("bob", "b", data={"x": [2**60]}, reply_to=1, request_id="s")
    assert await chat.asend("bob", "b", data={"x": [2**60]}, reply_to=1, request_id="s") == first
    assert (await chat.ahistory("ann")).messages[-1] == first
    assert (await chat.ainfo()).title == "T"
    with pytest.raises(ChatExists):
        await Chat.acreate("ann", [], chat_id=chat.id)
    with pytest.raises(NotAMember):
        await chat.asend("cat", "x")


def test_repr_contains_the_id() -> None:
    chat = Chat("lunch")
    assert (chat.id, chat.chat_id, repr(chat)) == ("lunch", "lunch", "Chat('lunch')")
