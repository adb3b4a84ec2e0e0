"""Blocks: who is blocked can't make a chat with a person, nor add them to one; their direct chat is
suspended."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
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
    forget,
)
from django_redis_messaging.services.chats.repairing import ChatRepair, Repair
from tests.conftest import Call

from ..support.server import (
    all_keys,
    bodies,
    change,
    crash_after,
    index,
    keys,
    reply_to,
    server,
    snapshot,
    steps,
)


async def test_block_list_and_unblock(call: Call, settings: Settings) -> None:
    change(settings, USER_MAX_BLOCKS=3)
    blocks = Blocks("ann")
    assert await call(blocks, "list") == []
    blocked = [await call(blocks, "block", other) for other in ("bob", "cat", "bob", "dan")]
    assert blocked == [True, True, False, True]
    assert await call(blocks, "list") == ["dan", "cat", "bob"]
    with pytest.raises(LimitExceeded) as caught:
        await call(blocks, "block", "eve")
    assert (caught.value.limit, caught.value.setting) == (3, "USER_MAX_BLOCKS")
    assert await call(blocks, "block", "cat") is False
    assert [await call(blocks, "unblock", other) for other in ("bob", "bob")] == [True, False]
    assert await call(blocks, "block", "bob") is True
    assert await call(blocks, "list") == ["bob", "dan", "cat"]
    with pytest.raises(ValueError, match="themselves"):
        await call(blocks, "block", "ann")
    assert Blocks("bob").list() == []
    forget("ann")
    assert all_keys() == []


def test_blocked_user_can_neither_create_nor_add() -> None:
    club = Chat.create("zoe", ["mallory"], chat_id="club", open=True)
    Blocks("ann").block("mallory")
    attempts: dict[str, Callable[[], Any]] = {
        "create": lambda: Chat.create("mallory", ["bob", "ann"]),
        "direct": lambda: Chat.direct("mallory", "ann"),
        "join": lambda: club.join("ann", by="mallory"),
        "add": lambda: club.add(["bob", "ann"], by="mallory"),
    }
    before = snapshot()
    for name, attempt in attempts.items():
        with pytest.raises(NotPermitted) as caught:
            attempt()
        assert str(caught.value) == "One of these people can't be added.", name
        assert snapshot() == before, name
    assert club.join("ann", by="zoe") is True
    Blocks("bob").block("mallory")
    assert club.join("bob") is True
    with pytest.raises(NotPermitted, match="unblock them first"):
        Chat.direct("ann", "mallory")


def test_members_who_block_each_other_stay_members() -> None:
    """Adding them to their chat once more adds nobody, as without the block; a repeat of create succeeds."""
    chat = Chat.create("mallory", ["ann"], "one", chat_id="club", request_id="r")
    Blocks("ann").block("mallory")
    before = snapshot(but=[index("bob"), index("mallory")])
    assert chat.join("ann", by="mallory") is False
    assert Chat.create("mallory", ["ann"], "one", chat_id="club", request_id="r").id == "club"
    assert chat.add(["ann"], by="mallory") == []
    assert {**before, **snapshot(but=[index("ann")])}.keys() == before.keys() | {index("mallory")}
    assert chat.add(["ann", "bob"], by="mallory") == ["bob"]
    assert [summary.chat_id for summary in Inbox("ann").chats()] == ["club"]
    chat.leave("ann")
    with pytest.raises(NotPermitted):
        chat.join("ann", by="mallory")
    with pytest.raises(NotPermitted):
        Chat.create("mallory", ["ann"], chat_id="other", request_id="r")


def test_blocked_user_cannot_use_an_entry_that_was_left_behind() -> None:
    chat = Chat.create("zoe", ["ann", "mallory"], chat_id="club")
    Blocks("ann").block("mallory")
    crash_after(chat.leave, 1, "ann")
    assert chat.add(["ann"], by="mallory") == []
    chat.delete("zoe")
    with pytest.raises(NotPermitted):
        Chat.create("mallory", ["ann"], chat_id="club")
    assert Inbox("ann").chats() == []


def is_suspended(chat: Chat, user: str) -> bool:
    return {member.user: member.suspended for member in chat.members()}[user]


async def test_direct_chat_with_a_blocked_person_is_suspended(call: Call) -> None:
    """To the blocker it is gone, whatever comes; the blocked person goes on as before."""
    chat = await call(Chat, "direct", "ann", "bob")
    chat.send("bob", "one")
    chat.typing("ann")
    assert await call(Blocks("ann"), "block", "bob") is True
    chat.send("bob", "two")
    for name, arguments in {
        "send": ["no"], "history": [], "ack": [2], "edit": [1, "no"], "delete_message": [1], "mute": [None],
        "rename": ["no"], "typing": [], "role": [], "set_role": ["bob", "owner"], "delete": [],
        "get_messages": [[1]], "search": ["one"],
    }.items():  # fmt: skip
        with pytest.raises(NotAMember):
            await call(chat, name, "ann", *arguments)
    for act in (lambda: chat.changes("ann", after=0), lambda: chat.leave("bob", by="ann")):
        with pytest.raises(NotAMember):
            act()
    assert chat.changes_for(["ann", "bob"], after=0).keys() == {"bob"}
    assert chat.summaries_for(["ann", "bob"]).keys() == {"bob"}
    assert [await call(Inbox("ann"), verb) for verb in ("pending", "unread", "chats")] == [[], 0, []]
    with pytest.raises(NotPermitted, match="unblock them first"):
        await call(Chat, "direct", "ann", "bob")
    assert (await call(Chat, "direct", "bob", "ann")).id == chat.id
    assert chat.typists() == []


async def test_unblocking_resumes_the_direct_chat_from_then_on(call: Call) -> None:
    chat = await call(Chat, "direct", "bob", "ann")
    chat.send("bob", "one")
    chat.ack("ann", 1)
    before = chat.members()[1]
    Blocks("ann").block("bob")
    chat.send("bob", "two")
    chat.rename("bob", "an insult")
    assert await call(Blocks("ann"), "unblock", "bob") is True
    news = chat.changes("ann", after=0)
    assert (news.resumed, bodies(news.messages), news.unread, news.read_id) == (True, [], 0, 2)
    assert (news.role, news.events) == ("member", [])
    (listed,) = Inbox("ann").chats()
    assert (listed.chat_id, listed.unread, listed.last_message) == (chat.id, 0, None)
    assert Inbox("ann").pending() == []
    # What she has read of the time before, and not what she has never seen:
    assert [chat.seen_by(number) for number in (1, 2)] == [["ann", "bob"], ["bob"]]
    assert chat.changes("bob", after=0).positions == {"bob": 2, "ann": 1}
    assert chat.members()[1] == before
    chat.send("bob", "three")
    assert [bodies(one) for one in Inbox("ann").pending()] == [["three"]]
    assert bodies(chat.history("ann")) == ["three"]
    assert chat.ack("ann", 3) == 3
    assert chat.changes("bob", after=0).positions == {"bob": 3, "ann": 3}
    # As of somebody who was never blocked:
    assert [chat.seen_by(number) for number in (1, 2, 3)] == [["ann", "bob"]] * 3
    assert chat.send("ann", "four").id == 4
    chat.leave("ann")
    Chat.direct("ann", "bob")
    assert not chat.changes("ann", after=0).resumed


def what_bob_learns(other: str) -> list[str]:
    """What every call about the direct chat with another person tells bob, without their name and times."""
    chat = Chat.direct("bob", other)
    news = chat.changes("bob", after=0)
    found: list[Any] = [chat.send("bob", f"{number}") for number in range(3, 6)]
    found += [chat.send("bob", "reply", reply_to=2), chat.info(), chat.history("bob"), chat.members(), news]
    found += [chat.typists(), [chat.seen_by(number) for number in range(1, 7)], chat.role("bob")]
    found += [chat.join(other, by="bob"), chat.add([other], by="bob"), chat.edit("bob", 3, "new")]
    found += [chat.ack("bob", 5), Inbox("bob").pending(), Inbox("bob").unread()]
    found += [chat.get_messages("bob", [2, 3])]
    found += [one for one in Inbox("bob").chats() if one.chat_id == chat.id]
    found += [chat.set_role("bob", other, "owner"), chat.set_role("bob", other, "member")]
    found += [chat.rename("bob", "title"), chat.changes("bob", after=0, moved=news.moved).events]
    found += [chat.leave(other, by="bob"), chat.info(), chat.members()]
    moments = r"datetime.datetime\(.*?utc\)|cursor='[^']*'|moved=\d+"
    return [re.sub(moments, "…", repr(one)).replace(other, "…").replace(chat.id, "…") for one in found]


@pytest.mark.parametrize("keep_last", [0, 1000])
def test_nothing_tells_the_blocked_person(settings: Settings, keep_last: int) -> None:
    """Not even retention: a person who has blocked bob looks like one who doesn't read."""
    change(settings, CHAT_KEEP_LAST=keep_last)
    learned = []
    for other in ("ann", "abe"):
        chat = Chat.direct("bob", other)
        chat.send("bob", "one")
        chat.send(other, "two")
        chat.ack(other, 2)
        chat.ack("bob", 2)
        before = chat.changes("bob", after=0)
        if other == "ann":
            Blocks("ann").block("bob")
        assert chat.changes("bob", after=0) == before
        learned.append(what_bob_learns(other))
    assert learned[0] == learned[1]


def test_both_block_each_other() -> None:
    chat = Chat.direct("ann", "bob")
    Blocks("ann").block("bob")
    Blocks("bob").block("ann")
    for user in ("ann", "bob"):
        with pytest.raises(NotAMember):
            chat.send(user, "no")
    Blocks("ann").unblock("bob")
    assert chat.send("ann", "anybody?").id == 1
    assert Inbox("bob").unread() == 0
    Blocks("bob").unblock("ann")
    assert Inbox("bob").unread() == 0
    chat.send("ann", "hello")
    assert Inbox("bob").unread() == 1


def test_suspended_member_who_leaves_or_is_forgotten_leaves_nothing() -> None:
    chat = Chat.direct("ann", "bob")
    for leave in (lambda: chat.leave("ann"), lambda: forget("ann")):
        Chat.direct("ann", "bob")
        Blocks("ann").block("bob")
        leave()
        assert [(one.user, one.role) for one in chat.members()] == [("bob", "owner")]
        assert Inbox("ann").chats() == []
        Blocks("ann").unblock("bob")
        with pytest.raises(NotAMember):
            chat.history("ann")
        chat.leave("bob")
    chat = Chat.direct("bob", "ann")
    Blocks("ann").block("bob")
    chat.leave("bob")
    assert [(one.user, one.role, one.suspended) for one in chat.members()] == [("ann", "owner", True)]
    Blocks("ann").unblock("bob")
    assert Chat.direct("ann", "bob").send("ann", "sorry").id == 1


@pytest.mark.parametrize("lost", ["members", "roster", "newest", "info", "standing"])
def test_repair_keeps_a_suspension(lost: str) -> None:
    chat = Chat.direct("ann", "bob")
    for number in range(3):
        chat.send("bob", f"{number}")
    chat.ack("ann", 2)
    Blocks("ann").block("bob")
    server().delete(getattr(keys(chat), lost))
    ChatRepair(chat.id).run()
    assert ChatRepair(chat.id).run() == Repair([], 0)
    assert is_suspended(chat, "ann")
    with pytest.raises(NotAMember):
        chat.history("ann")
    assert chat.send("bob", "more").id == 4
    Blocks("ann").unblock("bob")
    chat.send("bob", "welcome back")
    assert bodies(chat.history("ann")) == ["welcome back"]


def test_block_and_unblock_of_a_damaged_chat_hold_after_the_repair() -> None:
    chat = Chat.direct("ann", "bob")
    chat.send("bob", "one")
    server().delete(keys(chat).members)
    Blocks("ann").block("bob")
    ChatRepair(chat.id).run()
    assert is_suspended(chat, "ann")
    Blocks("ann").unblock("bob")
    chat.send("bob", "two")
    shown = chat.changes("bob", after=0).positions
    server().delete(keys(chat).members)
    ChatRepair(chat.id).run()
    assert chat.changes("bob", after=0).positions["ann"] == shown["ann"] == 0


#: two operations at the same time: one of ann or bob, and one of ann
RACES: dict[str, tuple[Callable[[Chat, str, str], Any], Callable[[Chat, str, str], Any]]] = {
    "ann opens the chat and blocks": (
        lambda chat, ann, bob: steps(chat._direct, ann, bob),
        lambda chat, ann, bob: steps(Blocks(ann).block, bob),
    ),
    "bob opens the chat and ann blocks": (
        lambda chat, ann, bob: steps(chat._direct, bob, ann),
        lambda chat, ann, bob: steps(Blocks(ann).block, bob),
    ),
    "block and unblock": (
        lambda chat, ann, bob: steps(Blocks(ann).block, bob),
        lambda chat, ann, bob: steps(Blocks(ann).unblock, bob),
    ),
    "bob opens the chat and ann leaves for good": (
        lambda chat, ann, bob: steps(chat._direct, bob, ann),
        lambda chat, ann, bob: steps(chat.leave, ann, again=False),
    ),
}


@pytest.mark.parametrize("members", [[], ["ann"], ["bob"], ["ann", "bob"]], ids=" and ".join)
@pytest.mark.parametrize("race", RACES)
def test_no_order_of_steps_leaves_a_membership(race: str, members: list[str]) -> None:
    """`members`: those of ann and bob who have not left their chat."""
    for number, order in enumerate(itertools.product([0, 1], repeat=6)):
        ann, bob = f"ann {number}", f"bob {number}"
        chat = Chat.direct(ann, bob)
        for name in {"ann", "bob"} - set(members):
            chat.leave(f"{name} {number}")
        operations = [begin(Chat(chat.id), ann, bob) for begin in RACES[race]]
        replies: list[Any] = [None, None]
        for at in (*order, *[0] * 20, *[1] * 20):
            with suppress(StopIteration, NotPermitted):
                replies[at] = reply_to(operations[at].send(replies[at]))
        roster: dict[str, bool] = {}
        with suppress(ChatNotFound):
            roster = {member.user: member.suspended for member in chat.members()}
        if race == "block and unblock":
            assert roster.get(ann, False) == (ann in roster and Blocks(ann).list() == [bob]), order
        elif "for good" in race:
            with pytest.raises(NotPermitted, match="does not want to be added again"):
                Chat.direct(bob, ann)
            assert ann not in roster, order
            assert not server().exists(index(ann)), order
        else:
            assert roster.get(ann, True), order  # a membership is suspended
            assert Inbox(ann).chats() == []


def test_repeat_finishes_what_a_crash_left() -> None:
    chat, blocks = Chat.direct("ann", "bob"), Blocks("ann")
    crash_after(blocks.block, 1, "bob")
    assert not is_suspended(chat, "ann")
    assert blocks.block("bob") is False
    assert is_suspended(chat, "ann")
    crash_after(blocks.unblock, 1, "bob")
    assert blocks.unblock("bob") is False
    assert not is_suspended(chat, "ann")
    blocks.block("bob")
    crash_after(blocks.unblock, 1, "bob")
    Chat.direct("ann", "bob")
    assert not is_suspended(chat, "ann")
    crash_after(blocks.block, 1, "bob")
    with pytest.raises(NotPermitted):
        Chat.direct("ann", "bob")
    assert is_suspended(chat, "ann")


def test_who_leaves_a_direct_chat_for_good_is_not_added_again_whoever_leaves() -> None:
    chat = Chat.direct("mallory", "ann")
    chat.leave("ann", again=False)
    chat.leave("mallory")
    for _ in range(2):
        with pytest.raises(NotPermitted, match="does not want to be added again"):
            Chat.direct("mallory", "ann")
    assert Inbox("ann").chats() == []
    # Calls that change nothing end nothing:
    assert chat.leave("ann") is False
    Blocks("mallory").block("ann")
    with pytest.raises(NotPermitted):
        Chat.direct("ann", "mallory")
    Blocks("mallory").unblock("ann")
    with pytest.raises(NotPermitted, match="does not want to be added again"):
        Chat.direct("mallory", "ann")
    Chat.direct("ann", "mallory").leave("ann")
    assert Chat.direct("mallory", "ann").info().member_count == 2
    for user in ("mallory", "ann"):
        chat.leave(user, again=False)
    forget("ann")
    assert Chat.direct("mallory", "ann").info().member_count == 2
