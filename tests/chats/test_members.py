"""Membership: joining, leaving, roles, and operations on the chat itself."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, ChatNotFound, Choices, Inbox, NotAMember, NotPermitted, forget
from django_redis_messaging.services.chats.repairing import ChatRepair

from ..support.server import (
    all_keys,
    bodies,
    change,
    copied,
    ids,
    index,
    keys,
    rolled_back,
    said,
    server,
    snapshot,
    until,
)


@pytest.fixture
def chat() -> Chat:
    """A chat of ann (owner), bob and cat with two messages by ann."""
    made = Chat.create("ann", ["bob", "cat"], "one", chat_id="club", title="Club")
    said(made, "ann", "two")
    return made


def users(chat: Chat) -> list[tuple[str, str]]:
    return [(one.user, one.role) for one in chat.members()]


def test_new_member_sees_only_later_messages(chat: Chat) -> None:
    assert chat.join("dan", by="bob") is True
    inbox = Inbox("dan")
    for page in (chat.history("dan"), chat.history("dan", after=0), chat.history("dan", before=9)):
        assert (page.messages, page.gap, page.has_more, page.reset) == ([], 0, False, False)
    assert (inbox.pending(), inbox.unread()) == ([], 0)
    (summary,) = inbox.chats()
    assert (summary.last_message, summary.unread, summary.member_count) == (None, 0, 4)

    three = chat.send("ann", "three")
    for page in (chat.history("dan"), chat.history("dan", after=0), chat.history("dan", before=9)):
        assert (bodies(page), page.gap, page.has_more) == (["three"], 0, False)
    assert [(ids(news), news.gap) for news in inbox.pending()] == [([3], 0)]
    assert (inbox.unread(), inbox.chats()[0].last_message) == (1, three)


def test_joining_twice_returns_false(chat: Chat) -> None:
    chat.ack("bob", 1)
    before = snapshot(but=[index("bob")])
    assert chat.join("bob", by="ann") is False
    assert snapshot(but=[index("bob")]) == before
    assert Inbox("bob").unread() == 1


def test_only_open_chats_can_be_joined_alone(chat: Chat) -> None:
    with pytest.raises(NotAMember, match="not open"):
        chat.join("dan")
    assert chat.info().member_count == 3
    assert Inbox("dan").chats() == []
    assert Chat.create("ann", [], chat_id="open", open=True).join("dan") is True


def test_non_member_cannot_add_members(chat: Chat) -> None:
    chat.leave("cat")
    for by in ("dan", "cat", "eve"):
        with pytest.raises(NotAMember, match="can't add"):
            chat.join("dan", by=by)
    with pytest.raises(ChatNotFound):
        Chat("no").join("dan", by="ann")
    assert chat.info().member_count == 2


def test_former_member_cannot_read_or_send(chat: Chat) -> None:
    assert chat.leave("bob") is True
    assert chat.leave("bob") is False
    assert Chat("no").leave("bob") is False
    assert users(chat) == [("ann", "owner"), ("cat", "member")]
    assert (Inbox("bob").chats(), Inbox("bob").unread(), Inbox("bob").pending()) == ([], 0, [])
    assert not server().exists(index("bob"))
    operations: list[Callable[[], Any]] = [
        lambda: chat.send("bob", "x"),
        lambda: chat.rename("bob", "x"),
        lambda: chat.mute("bob", None),
        lambda: chat.typing("bob"),
        lambda: chat.edit("bob", 1, "x"),
        lambda: chat.set_role("bob", "ann", "member"),
        lambda: chat.delete("bob"),
    ]
    before = snapshot()
    for operation in operations:
        with pytest.raises(NotAMember, match="bob"):
            operation()
    assert snapshot() == before


def test_leaving_removes_all_data_of_the_member(chat: Chat) -> None:
    chat.send("bob", "behind")
    chat.mute("bob", datetime.now(UTC) + timedelta(hours=1))
    chat.typing("bob")
    chat.leave("bob")
    held = keys(chat)
    assert not server().exists(held.own, held.mutes, held.typing)
    assert server().zscore(held.members, "bob") is None
    assert server().zscore(held.standing, "bob") is None
    assert not server().hexists(held.roster, "bob")


def test_last_member_to_leave_deletes_the_chat(chat: Chat) -> None:
    chat.typing("cat")
    chat.mute("cat", datetime.now(UTC) + timedelta(hours=1))
    for user in ("ann", "bob", "cat"):
        chat.leave(user)
    left = all_keys()
    assert all(":requests:" in key for key in left)
    assert all(0 < server().pttl(key) <= 240_000 for key in left)
    for unknown in (
        chat.info,
        chat.members,
        chat.typists,
        lambda: chat.seen_by(1),
        lambda: chat.send("ann", "x"),
    ):
        with pytest.raises(ChatNotFound, match="club"):
            unknown()


def test_longest_standing_member_becomes_owner(chat: Chat) -> None:
    chat.leave("bob")
    chat.join("bob", by="cat")
    chat.join("abe", by="cat")
    chat.leave("ann")
    assert users(chat) == [("cat", "owner"), ("bob", "member"), ("abe", "member")]
    chat.set_role("cat", "abe", "owner")
    chat.leave("cat")
    assert users(chat) == [("bob", "member"), ("abe", "owner")]


def test_rejoining_begins_a_new_membership(chat: Chat) -> None:
    chat.send("bob", "behind")
    chat.set_role("ann", "bob", "owner")
    chat.mute("bob", datetime.now(UTC) + timedelta(hours=1))
    chat.leave("bob")
    said(chat, "ann", "meanwhile")
    assert chat.join("bob", by="ann") is True
    assert users(chat)[-1] == ("bob", "member")
    assert chat.history("bob").messages == []
    assert chat.members()[-1].read_id == 4
    (summary,) = Inbox("bob").chats()
    assert (summary.unread, summary.muted, summary.last_message) == (0, False, None)
    said(chat, "ann", "five")
    said(chat, "bob", "six")
    assert Inbox("bob").unread() == 1
    assert [ids(news) for news in Inbox("bob").pending()] == [[5, 6]]


def test_only_owners_can_remove_members(chat: Chat) -> None:
    with pytest.raises(NotPermitted):
        chat.leave("cat", by="bob")
    with pytest.raises(NotAMember, match="can't remove"):
        chat.leave("cat", by="dan")
    assert chat.info().member_count == 3
    assert chat.leave("cat", by="ann") is True
    assert chat.leave("cat", by="ann") is False
    assert chat.leave("bob", by="bob") is True
    assert users(chat) == [("ann", "owner")]
    assert Inbox("cat").chats() == []


def test_roles(chat: Chat) -> None:
    assert chat.set_role("ann", "bob", "member") is False
    assert chat.set_role("ann", "bob", "owner") is True
    assert chat.set_role("bob", "ann", "member") is True
    assert users(chat) == [("ann", "member"), ("bob", "owner"), ("cat", "member")]
    before = snapshot()
    with pytest.raises(NotPermitted, match="must keep an owner"):
        chat.set_role("bob", "bob", "member")
    with pytest.raises(NotPermitted):
        chat.set_role("ann", "ann", "owner")
    with pytest.raises(NotAMember, match="dan"):
        chat.set_role("bob", "dan", "owner")
    with pytest.raises(NotAMember, match="dan"):
        chat.set_role("dan", "bob", "owner")
    with pytest.raises(ValueError, match="owner, member"):
        chat.set_role("bob", "ann", "admin")  # type: ignore[arg-type]
    with pytest.raises(ChatNotFound):
        Chat("no").set_role("ann", "bob", "owner")
    assert snapshot() == before


def test_only_owners_can_delete_the_chat(chat: Chat) -> None:
    with pytest.raises(NotPermitted):
        chat.delete("bob")
    assert chat.delete("ann") is True
    assert chat.delete("ann") is False
    assert all(":requests:" in key for key in all_keys())
    assert Inbox("cat").chats() == []


def test_nobody_can_join_a_damaged_chat() -> None:
    chat = Chat.create("ann", ["bob"], "one", keep_last=0, open=True)
    copy = copied(chat)
    held = keys(chat)
    for lost in (held.newest, held.members, held.roster, held.standing, held.info):
        rolled_back(chat, {key: dump for key, dump in copy.items() if key != lost})
        before = snapshot()
        with pytest.raises((ChatNotFound, NotAMember), match=r"not exist|messaging_repair|not open"):
            chat.join("dan")
        assert snapshot() == before, lost
        if lost in (held.members, held.roster, held.standing):
            assert chat.members() == []


def test_damaged_chats_can_be_left() -> None:
    chat = Chat.create("ann", ["bob", "cat"], "one", keep_last=0)
    said(chat, "ann", "two")
    chat.send("bob", "behind")
    copy = copied(chat)
    held = keys(chat)
    for lost in held.all_keys[:-2]:
        rolled_back(chat, {key: dump for key, dump in copy.items() if key != lost})
        for user in ("bob", "ann"):
            assert chat.leave(user) is True
            assert chat.leave(user) is False
        assert not server().exists(lost)
        ChatRepair(chat.id).run()
        assert users(chat) == [("cat", "owner")], lost
        assert chat.send("cat", "alone").id == 4
        assert chat.leave("cat") is True
        assert not server().exists(*held.all_keys[:-2]), lost


def test_forget_leaves_damaged_chats(chat: Chat) -> None:
    copy = copied(chat)
    for lost in (keys(chat).newest, keys(chat).roster, keys(chat).members):
        rolled_back(chat, {key: dump for key, dump in copy.items() if key != lost})
        ChatRepair(chat.id).run()  # restores the index entry
        rolled_back(chat, {key: dump for key, dump in copy.items() if key != lost})
        forget("bob")
        assert not server().exists(index("bob")), lost
        ChatRepair(chat.id).run()
        assert [user for user, _ in users(chat)] == ["ann", "cat"]


def test_damaged_chats_can_be_deleted(chat: Chat) -> None:
    chat.add(["eve", "fay"], by="ann")
    chat.leave("eve", by="ann")
    chat.leave("fay", again=False)
    chat.send("bob", "behind")
    chat.typing("bob")
    chat.mute("bob", datetime.now(UTC) + timedelta(hours=1))
    Choices().choose("bob", receipts=False)
    copy = copied(chat)
    part_names = [key for key in keys(chat).all_keys if key not in keys(chat).requests]
    for lost in part_names:
        rolled_back(chat, {key: dump for key, dump in copy.items() if key != lost})
        if lost == keys(chat).roster:
            with pytest.raises(NotAMember):
                chat.delete("dan")
            assert chat.delete("cat") is True
        else:
            with pytest.raises(NotPermitted):
                chat.delete("cat")
            assert chat.delete("ann") is True
        assert not server().exists(*part_names), lost
        assert chat.delete("ann") is False
    for left in set(part_names) - {keys(chat).roster, keys(chat).members}:
        rolled_back(chat, {left: copy[left]})
        if left not in {keys(chat).typing, keys(chat).mutes, keys(chat).hidden}:
            with pytest.raises(ChatNotFound, match="can't be repaired"):
                ChatRepair(chat.id).run()
        assert chat.delete("dan") is True
        assert not server().exists(*part_names), left


def test_rename_and_info(chat: Chat) -> None:
    chat.rename("bob", "Neu: {%s} 😀")
    info = chat.info()
    last = chat.history("ann").messages[-1]
    assert (info.chat_id, info.title, info.open, info.keep_last) == ("club", "Neu: {%s} 😀", False, 1000)
    assert (info.last_id, info.first_id, info.edits, info.member_count) == (2, 1, 0, 3)
    assert info.created_at <= info.active_at == last.sent_at
    assert Inbox("cat").chats()[0].title == "Neu: {%s} 😀"
    chat.rename("bob", "")
    assert chat.info().title == ""
    empty = Chat.create("ann", []).info()
    assert (empty.last_id, empty.first_id, empty.active_at) == (0, 1, empty.created_at)


@pytest.mark.timing
def test_mute_until_a_given_time(chat: Chat) -> None:
    inbox = Inbox("bob")
    chat.mute("bob", datetime.now(UTC) + timedelta(hours=1))
    assert (inbox.chats()[0].muted, inbox.unread(), Inbox("cat").chats()[0].muted) == (True, 2, False)
    chat.mute("bob", None)
    assert inbox.chats()[0].muted is False
    chat.mute("bob", datetime.now(UTC) + timedelta(milliseconds=700))
    assert inbox.chats()[0].muted is True
    until(lambda: not inbox.chats()[0].muted)
    with pytest.raises(ValueError, match="naive"):
        chat.mute("bob", datetime(2099, 1, 1))
    with pytest.raises(TypeError, match="datetime"):
        chat.mute("bob", 5)  # type: ignore[arg-type]


@pytest.mark.timing
def test_typing_expires(chat: Chat, settings: Settings) -> None:
    change(settings, TYPING_WINDOW=0.8)
    assert chat.typists() == []
    chat.typing("cat")
    assert chat.typists() == ["cat"]
    chat.typing("bob")
    assert sorted(chat.typists()) == ["bob", "cat"]
    until(lambda: chat.typists() == [])
    until(lambda: not server().exists(keys(chat).typing))
    change(settings, TYPING_MAX_MEMBERS=2)
    chat.typing("bob")
    assert chat.typists() == []


def test_who_has_sent_is_no_longer_typing(chat: Chat) -> None:
    chat.typing("cat")
    chat.typing("bob")
    chat.send("bob", "Here it is")
    assert chat.typists() == ["cat"]
    assert chat.changes("ann", after=1).typists == ["cat"]


def test_typing_expires_per_member(chat: Chat, settings: Settings) -> None:
    change(settings, TYPING_WINDOW=0.2)
    chat.typing("cat")
    until(lambda: chat.typing("bob") or chat.typists() == ["bob"])


def test_seen_by_lists_members_who_acked(chat: Chat) -> None:
    assert (chat.seen_by(1), chat.seen_by(2), chat.seen_by(3)) == (["ann"], ["ann"], [])
    chat.ack("cat", 1)
    chat.ack("bob", 2)
    assert (sorted(chat.seen_by(1)), sorted(chat.seen_by(2))) == (["ann", "bob", "cat"], ["ann", "bob"])
    found = [chat.seen_by(1, limit=limit) for limit in (2, 3, 4)]
    assert [(len(one), one.has_more) for one in found] == [(2, True), (3, False), (3, False)]


def test_default_limits_of_lists_of_members() -> None:
    members = [f"member-{at}" for at in range(501)]
    chat = Chat.create(members[0], members[1:], "one")
    assert [member.user for member in chat.members()] == members[:500]
    server().zadd(keys(chat).members, dict.fromkeys(members, 1))
    assert (len(chat.seen_by(1)), chat.seen_by(1).has_more) == (500, True)


def test_seen_by_leaves_out_later_members(chat: Chat) -> None:
    chat.join("abe", by="ann")
    said(chat, "ann", "three")
    chat.ack("abe", 3)
    assert (sorted(chat.seen_by(2)), sorted(chat.seen_by(3))) == (["ann"], ["abe", "ann"])
    assert chat.seen_by(2, limit=1) == ["ann"]


def test_seen_by_finds_few_among_many_later_members(chat: Chat) -> None:
    """A script examines 1000 members."""
    later, earlier = ([f"{kind} {at}" for at in range(1100)] for kind in "ab")
    server().zadd(keys(chat).members, dict.fromkeys([*later, *earlier], 7))
    lines = {**dict.fromkeys(later, "1 7 1 member t"), **dict.fromkeys(earlier, "1 0 1 member t")}
    server().hset(keys(chat).roster, mapping=lines)
    found = chat.seen_by(7, limit=500)
    assert (len(found), found.has_more) == (500, True)
    assert set(found) <= set(earlier)
    for name in earlier[1:]:
        server().hset(keys(chat).roster, name, "1 7 1 member t")
    assert (chat.seen_by(7), chat.seen_by(7).has_more) == (earlier[:1], False)


def test_seen_by_misses_nobody_while_others_read(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two pages, members move within the order, from the end of the page, too."""
    members = [f"m {at:04}" for at in range(2100)]
    server().zadd(keys(chat).members, dict.fromkeys(members, 7))
    server().hset(keys(chat).roster, mapping=dict.fromkeys(members, "1 7 1 member t"))
    server().hset(keys(chat).roster, mapping=dict.fromkeys(members[-3:], "1 0 1 member t"))

    ends: list[bytes] = []

    def checked(reply: list[bytes], *_: object) -> list[bytes]:
        if not ends:
            server().zadd(keys(chat).members, dict.fromkeys([members[0], reply[1]], 8))
        ends.append(reply[1])
        return reply

    monkeypatch.setattr(chat, "_checked", checked)
    assert chat.seen_by(7) == members[-3:]
    assert ends == [b"m 0999", b"m 1001", b"m 2001", b""]


def test_members_are_paged_by_seniority(chat: Chat) -> None:
    for name in ("x", "e", "😀"):
        chat.join(name, by="ann")
    first = chat.members(limit=4)
    assert [one.user for one in first] == ["ann", "bob", "cat", "x"]
    rest = chat.members(limit=4, after="x")
    assert [one.user for one in rest] == ["e", "😀"]
    assert chat.members(after="😀") == []
    assert [one.read_id for one in first + rest] == [2, 0, 0, 2, 2, 2]
    moments = [one.joined_at for one in first + rest]
    assert moments == sorted(moments)
    assert moments[0].utcoffset() == timedelta(0)
    with pytest.raises(NotAMember, match="dan"):
        chat.members(after="dan")


async def test_async_membership(chat: Chat) -> None:
    assert await chat.ajoin("dan", by="ann") is True
    assert await chat.aset_role("ann", "dan", "owner") is True
    await chat.arename("dan", "New")
    await chat.amute("dan", datetime.now(UTC) + timedelta(hours=1))
    await chat.atyping("dan")
    assert await chat.atypists() == ["dan"]
    assert await chat.aseen_by(2) == ["ann"]
    assert [one.user for one in await chat.amembers(after="cat")] == ["dan"]
    assert (await chat.ainfo()).title == "New"
    assert await chat.aleave("bob", by="dan") is True
    assert await chat.adelete("dan") is True
    with pytest.raises(ChatNotFound):
        await chat.amembers()
