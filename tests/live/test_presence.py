"""Who is online, and what users let others see."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, Choices, Inbox, InvalidArgument, NotAMember, forget, live
from django_redis_messaging.core.encoding import current_prefix
from django_redis_messaging.services.chats.repairing import ChatRepair
from django_redis_messaging.services.live.presence import GRACE, LIFETIME
from django_redis_messaging.services.users.keys import UserKeys

from ..conftest import Call
from ..support.server import change, crash_after, finish, index, keys, reply_to, server, server_ms, steps

PEOPLE = ["ann", "bob", "cat"]


@pytest.fixture
def presence() -> live.Presence:
    return live.Presence()


def remaining(user: str) -> int:
    return server().pttl(UserKeys(current_prefix(), user).online)


def test_online_while_there_is_a_stream(presence: live.Presence) -> None:
    assert presence.enter("ann", "one")
    assert presence.enter("ann", "two")
    assert presence.online(PEOPLE) == {"ann"}
    presence.leave("ann", "one")
    assert GRACE < remaining("ann") <= LIFETIME
    presence.leave("ann", "two")
    assert 0 < remaining("ann") <= GRACE
    assert presence.online(PEOPLE) == {"ann"}  # maybe on the way to another page
    presence.renew({"three": "bob"})
    assert presence.online(PEOPLE) == {"ann", "bob"}
    assert presence.online([]) == set()


def test_streams_of_killed_processes_end(presence: live.Presence) -> None:
    assert presence.enter("ann", "one")
    keys = UserKeys(current_prefix(), "ann")
    server().zadd(keys.streams, {"dead": 1})
    assert presence.enter("ann", "two")
    assert server().zrange(keys.streams, 0, -1) == [b"one", b"two"]
    assert 0 < server().pttl(keys.streams) <= LIFETIME


def test_a_stream_that_ends_during_a_renewal(presence: live.Presence) -> None:
    tokens = {"one": "ann", "two": "bob"}
    renewal = steps(presence.renew, tokens)
    step = next(renewal)
    presence.leave("ann", "one")
    del tokens["one"]
    finish(renewal, step)
    assert not server().exists(UserKeys(current_prefix(), "ann").streams)
    assert remaining("ann") <= GRACE < remaining("bob")


def test_streams_from_before_the_clock_was_set_back(presence: live.Presence, settings: Settings) -> None:
    change(settings, LIVE_MAX_STREAMS=2)
    later = server_ms() + 3_600_000
    server().zadd(UserKeys(current_prefix(), "ann").streams, {"killed": later, "open": later})
    assert presence.enter("ann", "one")
    presence.renew({"open": "ann"})
    assert not presence.enter("ann", "two")
    presence.leave("ann", "one")
    assert presence.enter("ann", "two")


def test_no_more_streams_than_the_limit(presence: live.Presence, settings: Settings) -> None:
    change(settings, LIVE_MAX_STREAMS=2)
    assert presence.enter("ann", "one")
    assert presence.enter("ann", "two")
    assert not presence.enter("ann", "three")
    assert presence.enter("bob", "one")
    presence.renew({"one": "ann", "two": "ann"})
    presence.leave("ann", "one")
    assert presence.enter("ann", "three")


def test_who_is_not_seen_online(presence: live.Presence) -> None:
    presence.enter("ann", "one")
    assert Choices().choose("ann", online=False) == (False, True, True)
    assert presence.online(PEOPLE) == set()
    presence.renew({"one": "ann"})
    assert presence.online(PEOPLE) == set()
    assert Choices().choose("ann", online=True) == (True, True, True)
    presence.renew({"one": "ann"})
    assert presence.online(PEOPLE) == {"ann"}


def hidden(chat: Chat) -> set[str]:
    return {name.decode() for name in server().smembers(keys(chat).hidden)}


def positions(chat: Chat, user: str = "ann") -> dict[str, int]:
    return chat.changes(user, after=0).positions


def test_chats_tell_nobody_what_is_hidden() -> None:
    chat, choices = Chat.create("ann", ["bob"], "One"), Choices()
    chat.send("ann", "Two")
    choices.choose("bob", receipts=False)
    known = chat.changes("ann", after=2)
    assert (known.members, known.positions, chat.seen_by(1)) == (["ann", "bob"], {"ann": 2}, ["ann"])
    chat.ack("bob", 1)
    assert chat.changes("ann", after=2) == known
    Inbox("bob").pending(ack=True)
    assert chat.changes("ann", after=2, moved=known.moved).members == []
    assert chat.changes("bob", after=2).read_id == 2
    choices.choose("bob", receipts=True)
    assert positions(chat) == {"ann": 2, "bob": 2}
    assert (chat.seen_by(2), hidden(chat)) == (["ann", "bob"], set())


def test_chats_that_a_user_joins_later_hide_it(settings: Settings) -> None:
    Choices().choose("bob", receipts=False)
    chat = Chat.create("ann", ["cat", "bob"], "One")
    other = Chat.create("ann", ["cat"], "One", open=True)
    other.add(["dan", "bob"], by="ann")
    assert positions(chat) == {"ann": 1, "cat": 0}
    assert positions(other) == {"ann": 1, "cat": 0, "dan": 1}
    other.leave("bob")
    assert (hidden(chat), hidden(other)) == ({"bob"}, set())
    other.join("bob")
    assert hidden(other) == {"bob"}
    server().delete(keys(chat).hidden)
    ChatRepair(chat.id).run()
    assert hidden(chat) == {"bob"}
    change(settings, READ_RECEIPTS=False)
    moved = chat.changes("cat", after=0).moved
    chat.ack("bob", 1)
    state = chat.changes("cat", after=0)
    assert (state.positions, state.members, state.moved) == ({}, ["ann", "cat", "bob"], moved)


@pytest.mark.parametrize("receipts", [False, True])
def test_choosing_while_joining(receipts: bool) -> None:
    """After the index was reserved, and before the user is a member."""
    chat, choices = Chat.create("ann", [], "One", open=True), Choices()
    choices.choose("bob", receipts=not receipts)
    joining = steps(chat.join, "bob")
    reply = reply_to(next(joining))
    choices.choose("bob", receipts=receipts)
    finish(joining, joining.send(reply))
    assert hidden(chat) == (set() if receipts else {"bob"})


def test_a_repeated_choice_repairs_what_a_crash_while_joining_left() -> None:
    chat, choices = Chat.create("ann", [], "One", open=True), Choices()
    joining = steps(chat.join, "bob")
    reply = reply_to(next(joining))
    choices.choose("bob", receipts=False)
    reply_to(joining.send(reply))
    joining.close()
    assert hidden(chat) == set()
    choices.choose("bob", receipts=False)
    assert hidden(chat) == {"bob"}


def test_choosing_again_while_a_joining_is_confirmed() -> None:
    chat, choices = Chat.create("ann", [], "One", open=True), Choices()
    joining = steps(chat.join, "bob")
    reply = reply_to(next(joining))
    choices.choose("bob", receipts=False)
    reply = reply_to(joining.send(reply))
    reply = reply_to(joining.send(reply))  # its confirmation finds the choice
    step = joining.send(reply)
    choices.choose("bob", receipts=True)
    finish(joining, step)
    assert hidden(chat) == set()


def test_an_interrupted_choice_is_not_taken_for_the_new_one() -> None:
    chats, choices = [Chat.create("ann", ["bob"], "One") for _ in range(3)], Choices()
    server().set(keys("broken").members, "not ours")
    server().hset(index("bob"), "broken", "1 0-0-0-0-0-0-0")
    crash_after(choices.choose, 2, "bob", receipts=False)
    assert [hidden(chat) for chat in chats] == [set(), set(), set()]
    assert choices.get("bob").receipts
    assert not choices.choose("bob", receipts=False).receipts
    assert [hidden(chat) for chat in chats] == [{"bob"}] * 3
    assert not choices.get("bob").receipts


@pytest.mark.parametrize("receipts", [False, True])
def test_of_two_choices_at_the_same_time_one_holds_in_all_chats(receipts: bool) -> None:
    chats, choices = [Chat.create("ann", ["bob"], "One") for _ in range(3)], Choices()
    choices.choose("bob", receipts=receipts)
    slow = steps(choices.choose, "bob", receipts=not receipts)
    step = slow.send(reply_to(next(slow)))
    choices.choose("bob", receipts=receipts)
    assert finish(slow, step).receipts == receipts
    assert [hidden(chat) for chat in chats] == [set() if receipts else {"bob"}] * 3


async def test_typing_is_not_shown_of_who_is_not_seen_online(call: Call) -> None:
    chat = Chat.create("ann", ["bob"], "One")
    Choices().choose("bob", online=False)
    await call(chat, "typing", "bob")
    assert await call(chat, "typists") == chat.changes("ann", after=0).typists == []
    with pytest.raises(NotAMember):
        await call(chat, "typing", "cat")
    Choices().choose("bob", online=True)
    await call(chat, "typing", "bob")
    assert chat.changes("ann", after=0).typists == ["bob"]


def test_choices_and_forgetting() -> None:
    choices = Choices()
    assert choices.get("ann") == choices.choose("ann") == (True, True, True)
    assert choices.choose("ann", receipts=False) == choices.get("ann") == (True, False, True)
    assert choices.choose("ann", online=False) == (False, False, True)
    forget("ann")
    assert choices.get("ann") == (True, True, True)
    with pytest.raises(TypeError, match="online must be True or False"):
        choices.choose("ann", online=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        choices.get("")


async def test_async(presence: live.Presence) -> None:
    assert await presence.aenter("ann", "one")
    await presence.arenew({"one": "ann"})
    assert await presence.aonline(PEOPLE) == {"ann"}
    await presence.aleave("ann", "one")
    assert (
        await Choices().achoose("ann", receipts=False) == await Choices().aget("ann") == (True, False, True)
    )
