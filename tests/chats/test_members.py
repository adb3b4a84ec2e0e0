"""Membership: joining, adding, leaving, roles, direct chats, and the users' lists of chats."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import (
    Blocks,
    Chat,
    ChatExists,
    ChatNotFound,
    Choices,
    Inbox,
    LimitExceeded,
    NotAMember,
    NotPermitted,
    forget,
)
from django_redis_messaging.services.chats.keys import direct_id
from django_redis_messaging.services.chats.repairing import ChatRepair
from tests.conftest import Call

from ..support.server import (
    all_keys,
    change,
    copied,
    crash_after,
    index,
    keys,
    rolled_back,
    said,
    server,
    snapshot,
)

#: maximum number of users in each list of former members
MAX_LISTED = 1000


@pytest.fixture
def chat() -> Chat:
    """A chat of ann (owner), bob and cat with two messages by ann."""
    made = Chat.create("ann", ["bob", "cat"], "one", chat_id="club", title="Club")
    said(made, "ann", "two")
    return made


def users(chat: Chat) -> list[str]:
    return [one.user for one in chat.members()]


def roles(chat: Chat) -> list[tuple[str, str]]:
    return [(one.user, one.role) for one in chat.members()]


def refused(error: type[Exception], words: str, act: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Check that an operation raises an error of exactly this type, with these words in it."""
    with pytest.raises(error) as caught:
        act(*args, **options)
    assert caught.type is error
    assert words in str(caught.value)


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def remains(chat: Chat) -> bool:
    """Whether anything is stored but the answers to requests."""
    left = [key for key in all_keys() if keys(chat).tag in key]
    assert all(0 < server().pttl(key) <= 240_000 for key in left if ":requests:" in key)
    return not all(":requests:" in key for key in left)


class TestAdding:
    async def test_add_returns_the_new_members(self, chat: Chat, call: Call) -> None:
        assert await call(chat, "add", ["dan", "bob", "eve", "dan"], by="bob") == ["dan", "eve"]
        assert users(chat) == ["ann", "bob", "cat", "dan", "eve"]
        assert Inbox("eve").unread() == 0
        chat.send("ann", "two")
        assert [Inbox(user).unread() for user in ("dan", "eve")] == [1, 1]
        assert await call(chat, "add", [], by="cat") == []
        for error, words, where, added, by in (
            (NotAMember, "can't add", chat, ["fay"], "zoe"),
            (ChatNotFound, "no", Chat("no"), ["fay"], "ann"),
            (TypeError, "list", chat, "fay", "ann"),
            (ValueError, "at most 500", chat, map(str, range(501)), "ann"),
        ):
            with pytest.raises(error, match=words):
                await call(where, "add", added, by=by)
        assert not server().exists(index("fay"))

    def test_add_takes_three_steps_for_500_users(self, chat: Chat) -> None:
        added = [f"user {number}" for number in range(500)]
        crash_after(chat.add, 3, added, by="ann")
        assert chat.add(added, by="ann") == []
        assert chat.info().member_count == 503
        assert not any(
            server().hget(index(user), chat.id).startswith(b"0 ") for user in (added[0], added[-1])
        )

    def test_add_is_all_or_nothing(self, chat: Chat, settings: Settings) -> None:
        change(settings, CHAT_MAX_MEMBERS=5, USER_MAX_CHATS=10)
        for number in range(9):
            Chat.create("zoe", ["ed"], chat_id=f"ed {number}")
        chat.add(["gil"], by="ann")
        chat.leave("gil", again=False)
        Blocks("hal").block("bob")
        before = snapshot()
        for added, error, words in (
            (["dan", "fay", "joe"], LimitExceeded, "CHAT_MAX_MEMBERS"),
            (["dan", "ed"], LimitExceeded, "USER_MAX_CHATS"),
            (["dan", "gil"], NotPermitted, "'gil' left chat 'club'"),
            (["dan", "hal"], NotPermitted, "One of these people can't be added."),
        ):
            refused(error, words, chat.add, added, by="bob")
            assert snapshot() == before
        assert chat.add(["dan", "fay"], by="ann") == ["dan", "fay"]

    async def test_a_repeat_by_a_former_member_is_refused(self, chat: Chat, call: Call) -> None:
        assert await call(chat, "add", ["eve"], by="bob", request_id="r") == ["eve"]
        chat.leave("bob")
        for added in ("eve", "dan"):
            with pytest.raises(NotAMember, match="bob"):
                await call(chat, "add", [added], by="bob", request_id="r")
        assert Inbox("dan").chats() == []


class TestLeaving:
    def test_all_data_of_the_member_is_removed(self, chat: Chat) -> None:
        chat.send("bob", "behind")
        chat.mute("bob", in_an_hour())
        chat.typing("bob")
        chat.leave("bob")
        held = keys(chat)
        assert not server().exists(held.own, held.mutes, held.typing)
        assert server().zscore(held.members, "bob") is None
        assert server().zscore(held.standing, "bob") is None
        assert not server().hexists(held.roster, "bob")

    def test_the_last_member_deletes_the_chat(self, chat: Chat) -> None:
        chat.typing("cat")
        chat.mute("cat", in_an_hour())
        for user in ("ann", "bob", "cat"):
            chat.leave(user)
        assert not remains(chat)
        for verb, *arguments in (("info",), ("members",), ("typists",), ("seen_by", 1), ("send", "ann", "x")):
            with pytest.raises(ChatNotFound, match="club"):
                getattr(chat, verb)(*arguments)

    async def test_who_was_removed_or_left_for_good_is_not_added_again(self, call: Call) -> None:
        chat = Chat.create("ann", ["bob", "cat", "dan"], chat_id="club", open=True)
        await call(chat, "leave", "cat", by="ann")
        await call(chat, "leave", "dan", by="dan", again=False)
        for by in ("bob", None):
            refused(NotPermitted, "only an owner", chat.join, "cat", by=by)
        for by in ("bob", "ann"):
            refused(NotPermitted, "does not want to be added", chat.join, "dan", by=by)
        assert not any(server().exists(index(user)) for user in ("cat", "dan"))
        assert await call(chat, "add", ["cat"], by="ann") == ["cat"]
        assert await call(chat, "join", "dan") is True
        assert not server().exists(keys(chat).removed, keys(chat).opted_out)

    def test_lists_of_former_members_are_capped_and_end_with_the_chat(self, chat: Chat) -> None:
        held = keys(chat)
        for key in (held.removed, held.opted_out):
            server().zadd(key, {f"old {number}": number for number in range(MAX_LISTED)})
        chat.add(["dan"], by="ann")
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
        assert not remains(chat)


class TestRoles:
    def test_owners_change_roles(self, chat: Chat) -> None:
        assert chat.set_role("ann", "bob", "member") is False
        assert chat.set_role("ann", "bob", "owner") is True
        assert chat.set_role("bob", "ann", "member") is True
        assert roles(chat) == [("ann", "member"), ("bob", "owner"), ("cat", "member")]
        before = snapshot()
        for error, words, *arguments in (
            (NotPermitted, "must keep an owner", "bob", "bob", "member"),
            (NotPermitted, "owner", "ann", "ann", "owner"),
            (NotAMember, "dan", "bob", "dan", "owner"),
            (NotAMember, "dan", "dan", "bob", "owner"),
            (ValueError, "owner, member", "bob", "ann", "admin"),
        ):
            with pytest.raises(error, match=words):
                chat.set_role(*arguments)
        with pytest.raises(ChatNotFound):
            Chat("no").set_role("ann", "bob", "owner")
        assert snapshot() == before


class TestMembers:
    def test_pages_by_seniority(self, chat: Chat) -> None:
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

    def test_default_limits(self) -> None:
        members = [f"member-{at}" for at in range(501)]
        chat = Chat.create(members[0], members[1:], "one")
        assert users(chat) == members[:500]
        server().zadd(keys(chat).members, dict.fromkeys(members, 1))
        assert (len(chat.seen_by(1)), chat.seen_by(1).has_more) == (500, True)

    def test_seen_by_lists_members_who_acked(self, chat: Chat) -> None:
        assert (chat.seen_by(1), chat.seen_by(2), chat.seen_by(3)) == (["ann"], ["ann"], [])
        chat.ack("cat", 1)
        chat.ack("bob", 2)
        assert (sorted(chat.seen_by(1)), sorted(chat.seen_by(2))) == (["ann", "bob", "cat"], ["ann", "bob"])
        found = [chat.seen_by(1, limit=limit) for limit in (2, 3, 4)]
        assert [(len(one), one.has_more) for one in found] == [(2, True), (3, False), (3, False)]

    def test_seen_by_leaves_out_later_members(self, chat: Chat) -> None:
        chat.join("abe", by="ann")
        said(chat, "ann", "three")
        chat.ack("abe", 3)
        assert (sorted(chat.seen_by(2)), sorted(chat.seen_by(3))) == (["ann"], ["abe", "ann"])
        assert chat.seen_by(2, limit=1) == ["ann"]

    def test_seen_by_finds_few_among_many_later_members(self, chat: Chat) -> None:
        """A script examines 1000 members."""
        later, earlier = ([f"{kind} {at}" for at in range(1100)] for kind in "ab")
        server().zadd(keys(chat).members, dict.fromkeys([*later, *earlier], 7))
        lines = {**dict.fromkeys(later, "1 7 1 member 1"), **dict.fromkeys(earlier, "1 0 1 member 1")}
        server().hset(keys(chat).roster, mapping=lines)
        found = chat.seen_by(7, limit=500)
        assert (len(found), found.has_more) == (500, True)
        assert set(found) <= set(earlier)
        server().hset(keys(chat).roster, mapping=dict.fromkeys(earlier[1:], "1 7 1 member 1"))
        assert (chat.seen_by(7), chat.seen_by(7).has_more) == (earlier[:1], False)

    def test_seen_by_misses_nobody_while_others_read(
        self, chat: Chat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between two pages, members move within the order, from the end of the page, too."""
        members = [f"m {at:04}" for at in range(2100)]
        server().zadd(keys(chat).members, dict.fromkeys(members, 7))
        server().hset(keys(chat).roster, mapping=dict.fromkeys(members, "1 7 1 member 1"))
        server().hset(keys(chat).roster, mapping=dict.fromkeys(members[-3:], "1 0 1 member 1"))
        ends: list[bytes] = []

        def checked(reply: list[bytes], *_: object) -> list[bytes]:
            if not ends:
                server().zadd(keys(chat).members, dict.fromkeys([members[0], reply[1]], 8))
            ends.append(reply[1])
            return reply

        monkeypatch.setattr(chat, "_checked", checked)
        assert chat.seen_by(7) == members[-3:]
        assert ends == [b"m 0999", b"m 1001", b"m 2001", b""]

    async def test_async(self, chat: Chat) -> None:
        assert await chat.ajoin("dan", by="ann") is True
        assert await chat.aset_role("ann", "dan", "owner") is True
        assert await chat.aseen_by(2) == ["ann"]
        assert [one.user for one in await chat.amembers(after="cat")] == ["dan"]
        assert await chat.aleave("bob", by="dan") is True
        assert await chat.adelete("dan") is True
        with pytest.raises(ChatNotFound):
            await chat.amembers()


class TestDirectChats:
    def test_one_chat_whoever_begins(self) -> None:
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
        refused(NotPermitted, "direct chat", direct.join, "eve", by="ann")
        refused(NotPermitted, "direct chat", direct.add, ["bob", "eve"], by="ann")
        refused(NotAMember, "", direct.join, "eve")
        assert not server().exists(index("eve"))

    async def test_who_left_is_taken_back(self, call: Call) -> None:
        direct = await call(Chat, "direct", "ann", "bob")
        for user, other in itertools.permutations(("ann", "bob")):
            for asker, asked in ((user, other), (other, user)):
                direct.leave(user)
                assert (await call(Chat, "direct", asker, asked)).id == direct.id
                assert sorted(users(direct)) == ["ann", "bob"]
        direct.leave("bob", again=False)
        refused(NotPermitted, "", Chat.direct, "ann", "bob")
        assert sorted(users(await call(Chat, "direct", "bob", "ann"))) == ["ann", "bob"]
        Blocks("ann").block("bob")
        assert Chat.direct("bob", "ann").id == direct.id
        direct.leave("bob")
        refused(NotPermitted, "One of these people can't be added.", Chat.direct, "bob", "ann")
        refused(NotPermitted, "unblock", Chat.direct, "ann", "bob")
        Blocks("ann").unblock("bob")
        assert sorted(users(await call(Chat, "direct", "ann", "bob"))) == ["ann", "bob"]


class TestDamagedChats:
    """Chats that have lost one of their keys."""

    def lose(self, chat: Chat, copy: dict[str, bytes], lost: str) -> None:
        rolled_back(chat, {key: dump for key, dump in copy.items() if key != lost})

    def test_nobody_can_join(self) -> None:
        chat = Chat.create("ann", ["bob"], "one", keep_last=0, open=True)
        copy, held = copied(chat), keys(chat)
        for lost in (held.newest, held.members, held.roster, held.standing, held.info):
            self.lose(chat, copy, lost)
            before = snapshot()
            with pytest.raises((ChatNotFound, NotAMember), match=r"not exist|messaging_repair|not open"):
                chat.join("dan")
            assert snapshot() == before, lost
            if lost in (held.members, held.roster, held.standing):
                assert chat.members() == []

    def test_members_can_leave(self) -> None:
        chat = Chat.create("ann", ["bob", "cat"], "one", keep_last=0)
        said(chat, "ann", "two")
        chat.send("bob", "behind")
        copy, held = copied(chat), keys(chat)
        for lost in held.all_keys[:-2]:
            self.lose(chat, copy, lost)
            for user in ("bob", "ann"):
                assert chat.leave(user) is True
                assert chat.leave(user) is False
            assert lost == held.events or not server().exists(lost)
            ChatRepair(chat.id).run()
            assert roles(chat) == [("cat", "owner")], lost
            assert chat.send("cat", "alone").id == 4
            assert chat.leave("cat") is True
            assert not server().exists(*held.all_keys[:-2]), lost

    def test_forget_leaves_them(self, chat: Chat) -> None:
        copy = copied(chat)
        for lost in (keys(chat).newest, keys(chat).roster, keys(chat).members):
            self.lose(chat, copy, lost)
            ChatRepair(chat.id).run()  # restores the entry in the list of chats
            self.lose(chat, copy, lost)
            forget("bob")
            assert not server().exists(index("bob")), lost
            ChatRepair(chat.id).run()
            assert users(chat) == ["ann", "cat"]

    def test_owners_can_delete_them(self, chat: Chat) -> None:
        chat.add(["eve", "fay"], by="ann")
        chat.leave("eve", by="ann")
        chat.leave("fay", again=False)
        chat.send("bob", "behind")
        chat.typing("bob")
        chat.mute("bob", in_an_hour())
        chat.edit("ann", 1, "x")
        Choices().choose("bob", receipts=False)
        copy, held = copied(chat), keys(chat)
        parts = [key for key in held.all_keys if key not in held.requests]
        for lost in parts:
            self.lose(chat, copy, lost)
            other, error, owner = ("cat", NotPermitted, "ann")
            if lost == held.roster:
                other, error, owner = ("dan", NotAMember, "cat")
            refused(error, "", chat.delete, other)
            assert chat.delete(owner) is True
            assert not server().exists(*parts), lost
            assert chat.delete("ann") is False
        for left in set(parts) - {held.roster, held.members}:
            rolled_back(chat, {left: copy[left]})
            if left not in {held.typing, held.mutes, held.hidden}:
                with pytest.raises(ChatNotFound, match="can't be repaired"):
                    ChatRepair(chat.id).run()
            assert chat.delete("dan") is True
            assert not server().exists(*parts), left


class TestListsOfChats:
    """Entries are reserved before a joining and confirmed after it: see also test_interleavings.py."""

    def test_refused_and_interrupted_joins_shut_nobody_out(self, settings: Settings) -> None:
        change(settings, USER_MAX_CHATS=3)
        chats = [Chat.create("ann", [], chat_id=str(number)) for number in range(3)]
        for chat in chats:
            refused(NotAMember, "not open", chat.join, "bob")
            with pytest.raises(ChatExists):
                Chat.create("bob", ["cat"], chat_id=chat.id)
        assert not any(server().exists(index(user)) for user in ("bob", "cat"))
        for number in range(3):
            crash_after(Chat(f"none {number}").join, 1, "bob")
        assert [chat.join("bob", by="ann") for chat in chats] == [True] * 3
        refused(LimitExceeded, "", Chat.create, "cat", ["bob"])
        assert server().hlen(index("bob")) == 6

    def test_unconfirmed_entries_are_limited(self, settings: Settings) -> None:
        change(settings, USER_MAX_CHATS=2)
        for number in range(4):
            crash_after(Chat(f"none {number}").join, 1, "bob")
        refused(LimitExceeded, "", Chat("none").join, "bob")
        refused(NotAMember, "", Chat.create("ann", [], chat_id="none 0").join, "bob")
        assert server().hlen(index("bob")) == 4

    def test_others_fill_at_most_nine_tenths(self, chat: Chat, settings: Settings) -> None:
        change(settings, USER_MAX_CHATS=10)
        chats = [Chat.create("zoe", [], chat_id=str(number), open=True) for number in range(2)]
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

    def test_the_number_of_chats_is_limited(self, settings: Settings) -> None:
        change(settings, USER_MAX_CHATS=2)
        first, _ = (Chat.create("ann", ["bob"], chat_id=name) for name in "xy")
        with pytest.raises(LimitExceeded) as caught:
            Chat.create("cat", ["bob"], chat_id="z")
        assert caught.value.limit == 2
        with pytest.raises(ChatNotFound):
            Chat("z").info()
        assert first.join("bob", by="ann") is False
        first.leave("bob")
        Chat.create("cat", ["bob"], chat_id="z")
        assert server().hlen(index("bob")) == 2
        refused(LimitExceeded, "", Chat.create, "dan", ["eve", "bob"])
        assert not any(server().exists(index(user)) for user in ("dan", "eve"))

    def test_a_refused_repeat_of_create_hides_the_chat_from_nobody(self, settings: Settings) -> None:
        change(settings, USER_MAX_CHATS=1)
        chat = Chat("made")
        request = ("ann", ["bob", "cat"], "one", "", False, None, "request")
        crash_after(chat._create, 2, *request)
        server().delete(index("cat"))
        crash_after(Chat("other").join, 1, "cat")
        server().hset(index("cat"), "other", "1 0-0-0-0-0-0-0")
        refused(LimitExceeded, "", chat._create, *request)
        assert [news.chat_id for news in Inbox("bob").pending()] == ["made"]
