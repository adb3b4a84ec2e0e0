"""Adding several members at once, who may be added again, and direct chats."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import (
    Blocks,
    Chat,
    ChatNotFound,
    Inbox,
    LimitExceeded,
    NotAMember,
    NotPermitted,
)
from django_redis_messaging.services.chats.keys import direct_id
from tests.conftest import Call

from ..support.server import all_keys, change, crash_after, index, keys, reply_to, server, snapshot, steps

#: maximum number of users in each list of former members
MAX_LISTED = 1000


@pytest.fixture
def chat() -> Chat:
    """A closed chat of ann (owner) and bob."""
    return Chat.create("ann", ["bob"], "one", chat_id="club")


def users(chat: Chat) -> list[str]:
    return [one.user for one in chat.members()]


def refusal(act: Callable[[], Any]) -> tuple[type[Exception], str]:
    """The error that an operation raises."""
    with pytest.raises((NotPermitted, LimitExceeded, NotAMember)) as caught:
        act()
    return caught.type, str(caught.value)


async def test_add_returns_the_new_members(chat: Chat, call: Call) -> None:
    assert await call(chat, "add", ["dan", "bob", "cat", "dan"], by="bob") == ["dan", "cat"]
    assert users(chat) == ["ann", "bob", "dan", "cat"]
    assert Inbox("cat").unread() == 0
    chat.send("ann", "two")
    assert [Inbox(user).unread() for user in ("cat", "dan")] == [1, 1]
    assert await call(chat, "add", [], by="cat") == []
    with pytest.raises(NotAMember, match="can't add"):
        await call(chat, "add", ["fay"], by="eve")
    with pytest.raises(ChatNotFound):
        await call(Chat("no"), "add", ["fay"], by="ann")
    with pytest.raises(TypeError, match="list"):
        await call(chat, "add", "fay", by="ann")
    with pytest.raises(ValueError, match="at most 500"):
        await call(chat, "add", map(str, range(501)), by="ann")
    assert not server().exists(index("fay"))


def test_add_takes_three_steps_for_500_users(chat: Chat) -> None:
    added = [f"user {number}" for number in range(500)]
    crash_after(chat.add, 3, added, by="ann")
    assert chat.add(added, by="ann") == []
    assert chat.info().member_count == 502
    assert all(b"?" not in server().hget(index(user), chat.id) for user in (added[0], added[-1]))


def test_add_is_all_or_nothing(chat: Chat, settings: Settings) -> None:
    change(settings, CHAT_MAX_MEMBERS=4, USER_MAX_CHATS=10)
    for number in range(9):
        Chat.create("zoe", ["ed"], chat_id=f"ed {number}")
    chat.add(["gil"], by="ann")
    chat.leave("gil", again=False)
    Blocks("hal").block("bob")
    refusals: dict[tuple[str, ...], tuple[type[Exception], str]] = {
        ("dan", "fay", "joe"): (LimitExceeded, "CHAT_MAX_MEMBERS"),
        ("dan", "ed"): (LimitExceeded, "USER_MAX_CHATS"),
        ("dan", "gil"): (NotPermitted, "'gil' left chat 'club'"),
        ("dan", "hal"): (NotPermitted, "One of these people can't be added."),
    }
    before = snapshot()
    for added, (error, text) in refusals.items():
        kind, message = refusal(lambda added=added: chat.add(added, by="bob"))  # type: ignore[misc]
        assert (kind, text in message) == (error, True), message
        assert snapshot() == before
    assert chat.add(["dan", "fay"], by="ann") == ["dan", "fay"]


def test_others_fill_at_most_nine_tenths_of_a_list_of_chats(chat: Chat, settings: Settings) -> None:
    change(settings, USER_MAX_CHATS=10)
    chats = [Chat.create("zoe", [], chat_id=str(number), open=True) for number in range(4)]
    made = [Chat.create(f"host {number}", ["ed"]) for number in range(8)]
    assert chats[0].join("ed", by="zoe") is True
    for act in (
        lambda: chats[1].join("ed", by="zoe"),
        lambda: chat.add(["dan", "ed"], by="ann"),
        lambda: Chat.create("ann", ["ed"]),
        lambda: Chat.direct("ann", "ed"),
    ):
        with pytest.raises(LimitExceeded) as caught:
            act()
        assert (caught.value.limit, caught.value.setting) == (9, "USER_MAX_CHATS")
    assert chats[1].join("ed") is True
    with pytest.raises(LimitExceeded) as caught:
        Chat.create("ed", [])
    assert caught.value.limit == 10
    made[0].leave("ed")
    Chat.create("ed", [])
    assert len(Inbox("ed").chats()) == 10


async def test_only_owners_add_again_whom_an_owner_removed(call: Call) -> None:
    chat = Chat.create("ann", ["bob", "cat"], chat_id="club", open=True)
    await call(chat, "leave", "cat", by="ann")
    assert "only an owner" in refusal(lambda: chat.join("cat", by="bob"))[1]
    assert "only an owner" in refusal(lambda: chat.add(["dan", "cat"], by="bob"))[1]
    assert "only an owner" in refusal(lambda: chat.join("cat"))[1]
    assert users(chat) == ["ann", "bob"]
    assert not server().exists(index("cat"))
    assert await call(chat, "add", ["cat"], by="ann") == ["cat"]
    await call(chat, "leave", "cat", by="cat")
    assert await call(chat, "join", "cat", by="bob") is True
    assert not server().exists(keys(chat).removed)


async def test_who_left_for_good_is_added_by_nobody_else(call: Call) -> None:
    chat = Chat.create("ann", ["bob"], chat_id="club", open=True)
    assert await call(chat, "leave", "bob", again=False) is True
    assert await call(chat, "leave", "bob", again=False) is False
    assert "does not want to be added" in refusal(lambda: chat.join("bob", by="ann"))[1]
    assert "does not want to be added" in refusal(lambda: chat.add(["dan", "bob"], by="ann"))[1]
    assert Chat.create("ann", ["bob"]).info().member_count == 2
    assert await call(chat, "join", "bob") is True
    chat.leave("bob")
    assert await call(chat, "join", "bob", by="ann") is True
    assert not server().exists(keys(chat).opted_out)
    with pytest.raises(ValueError, match="by themselves"):
        await call(chat, "leave", "bob", by="ann", again=False)
    with pytest.raises(TypeError, match="again"):
        await call(chat, "leave", "bob", again=1)
    assert await call(chat, "leave", "bob", by="bob", again=False) is True
    assert refusal(lambda: chat.join("bob", by="ann"))[0] is NotPermitted


def test_lists_of_former_members_are_capped_and_end_with_the_chat(chat: Chat) -> None:
    held = keys(chat)
    for key in (held.removed, held.opted_out):
        server().zadd(key, {f"old {number}": number for number in range(MAX_LISTED)})
    chat.add(["cat", "dan"], by="ann")
    chat.leave("cat", by="ann")
    chat.leave("dan", again=False)
    for key, newest in ((held.removed, b"cat"), (held.opted_out, b"dan")):
        listed = server().zrange(key, 0, -1)
        assert (len(listed), listed[0], listed[-1]) == (MAX_LISTED, b"old 1", newest)
    chat.delete("ann")
    assert not server().exists(held.removed, held.opted_out)
    chat = Chat.create("ann", ["dan"], chat_id="club")
    chat.leave("ann", again=False)
    chat.leave("dan", again=False)
    assert all(":requests:" in key for key in all_keys() if "{chat:" in key)


def test_crash_while_adding_hides_the_chat_from_no_member(chat: Chat) -> None:
    for done in range(4):
        chat = Chat.create("ann", [], chat_id=f"club {done}")
        crash_after(chat.add, done, ["cat", "dan"], by="ann", request_id="r")
        assert chat.add(["cat", "dan"], by="ann", request_id="r") == ["cat", "dan"]
        chat.send("ann", "news")
        assert [Inbox(user).pending()[-1].chat_id for user in ("cat", "dan")] == [chat.id] * 2
        for user in ("cat", "dan"):
            chat.leave(user)
            assert not server().exists(index(user))


def test_direct_chat_is_one_whoever_begins(chat: Chat) -> None:
    direct = Chat.direct("ann", "bob")
    assert (direct.id, users(direct)) == (direct_id("bob", "ann"), ["ann", "bob"])
    direct.send("bob", "hi")
    before = snapshot()
    assert Chat.direct("bob", "ann").id == direct.id
    assert snapshot() == before
    assert Chat.direct("ann", "cat").id != direct.id
    with pytest.raises(ValueError, match="another user"):
        Chat.direct("ann", "ann")
    with pytest.raises(ValueError, match=r"Chat\.direct"):
        Chat.create("eve", [], chat_id=direct.id)
    for act in (lambda: direct.join("eve", by="ann"), lambda: direct.add(["bob", "eve"], by="ann")):
        assert "direct chat" in refusal(act)[1]
    assert refusal(lambda: direct.join("eve"))[0] is NotAMember
    assert not server().exists(index("eve"))


async def test_direct_chat_takes_back_who_left(call: Call) -> None:
    direct = await call(Chat, "direct", "ann", "bob")
    for user, other in itertools.permutations(("ann", "bob")):
        for asker, asked in ((user, other), (other, user)):
            direct.leave(user)
            assert (await call(Chat, "direct", asker, asked)).id == direct.id
            assert sorted(users(direct)) == ["ann", "bob"]
    direct.leave("bob", again=False)
    assert refusal(lambda: Chat.direct("ann", "bob"))[0] is NotPermitted
    assert sorted(users(await call(Chat, "direct", "bob", "ann"))) == ["ann", "bob"]
    Blocks("ann").block("bob")
    assert Chat.direct("bob", "ann").id == direct.id
    direct.leave("bob")
    assert refusal(lambda: Chat.direct("bob", "ann")) == (NotPermitted, "One of these people can't be added.")
    assert "unblock" in refusal(lambda: Chat.direct("ann", "bob"))[1]
    Blocks("ann").unblock("bob")
    assert sorted(users(await call(Chat, "direct", "ann", "bob"))) == ["ann", "bob"]


def test_two_people_open_their_direct_chat_at_the_same_time() -> None:
    for ahead in range(1, 5):  # steps of the first before the second begins
        one, other = f"ann {ahead}", f"bob {ahead}"
        direct = Chat(direct_id(one, other))
        first = steps(direct._direct, one, other)
        reply = None
        for _ in range(ahead):
            reply = reply_to(first.send(reply))
        assert Chat.direct(other, one).id == direct.id
        with pytest.raises(StopIteration):
            while True:
                reply = reply_to(first.send(reply))
        assert sorted(users(direct)) == [one, other]
        assert [summary.chat_id for user in (one, other) for summary in Inbox(user).chats()] == [
            direct.id
        ] * 2
