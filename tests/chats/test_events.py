"""The events of a chat: what happened to it, between the messages."""

from __future__ import annotations

import pytest

from django_redis_messaging import Chat, Inbox
from django_redis_messaging.services.chats import ChatEvent
from django_redis_messaging.services.chats.repairing import ChatRepair

from ..support.server import keys, server


@pytest.fixture
def chat() -> Chat:
    """A chat of ann, its owner, and bob, with one message."""
    return Chat.create("ann", ["bob"], "One", chat_id="events")


def events(chat: Chat, user: str = "ann", known: int | None = None) -> list[ChatEvent]:
    return chat.changes(user, after=0, events=known).events


def kinds(chat: Chat, user: str = "ann") -> list[str]:
    return [event.kind for event in events(chat, user)]


def test_each_kind_of_event(chat: Chat) -> None:
    chat.add(["cat", "dan", "eve", "fay"], by="ann")
    chat.send("bob", "Two")
    chat.leave("dan", by="ann")
    chat.leave("eve")
    chat.rename("bob", "Trip")
    chat.set_role("ann", "bob", "owner")
    chat.set_role("ann", "bob", "member")
    found = [(one.kind, one.actor, one.users, one.count, one.title, one.after_id) for one in events(chat)]
    assert found == [
        ("added", "ann", ["cat", "dan", "eve"], 4, "", 1),
        ("removed", "ann", ["dan"], 1, "", 2),
        ("left", "eve", ["eve"], 1, "", 2),
        ("renamed", "bob", [], 0, "Trip", 2),
        ("owner", "ann", ["bob"], 1, "", 2),
        ("member", "ann", ["bob"], 1, "", 2),
    ]
    assert [one.number for one in events(chat)] == [1, 2, 3, 4, 5, 6]


def test_who_joins_an_open_chat_and_who_succeeds_the_owner() -> None:
    chat = Chat.create("ann", ["bob"], chat_id="open", open=True)
    chat.join("cat")
    chat.leave("ann")
    found = [(one.kind, one.actor, one.users) for one in events(chat, "bob")]
    assert found == [("joined", "cat", ["cat"]), ("left", "ann", ["ann"]), ("owner", "", ["bob"])]


def test_events_are_no_messages(chat: Chat) -> None:
    chat.ack("bob", 1)
    chat.add(["cat"], by="ann")
    chat.rename("ann", "Trip")
    assert (Inbox("bob").unread(), Inbox("bob").pending(), chat.info().last_id) == (0, [], 1)
    assert chat.send("ann", "Two").id == 2


def test_only_those_since_joining(chat: Chat) -> None:
    chat.rename("ann", "Before")
    chat.add(["cat"], by="ann")
    chat.rename("ann", "After")
    found = [(one.kind, one.title) for one in events(chat, "cat")]
    assert found[-2:] == [("added", ""), ("renamed", "After")]
    chat.leave("cat")
    chat.add(["cat"], by="ann")
    assert "After" not in [one.title for one in events(chat, "cat")]


@pytest.mark.parametrize("ms", [1, 10**13])
def test_the_clock_decides_nothing(chat: Chat, ms: int) -> None:
    """Set back after people have joined; or they joined in the same ms."""
    chat.rename("ann", "Before")
    for user in ("cat", "dan", "eve"):
        chat.add([user], by="ann")
    chat.rename("ann", "After")
    stored = server().hget(keys(chat).info, "events").split(b"\0")
    stored[1::10] = [b"%d" % ms] * 5
    server().hset(keys(chat).info, "events", b"\0".join(stored))
    for user, line in server().hgetall(keys(chat).roster).items():
        event, join_id, _, *others = line.split()
        server().hset(keys(chat).roster, user, b" ".join([event, join_id, b"10000000000000", *others]))
    alone = {user: chat.changes(user, after=0) for user in ("ann", "cat", "dan", "eve")}
    assert [len(changes.events) for changes in alone.values()] == [5, 4, 3, 2]
    assert [one.users or one.title for one in alone["dan"].events] == [["dan"], ["eve"], "After"]
    for users in (["cat", "dan", "eve"], ["eve", "cat"]):
        assert chat.changes_for(users, after=1) == {user: chat.changes(user, after=1) for user in users}


def test_after_a_reset_those_of_the_new_chat(chat: Chat) -> None:
    for title in ("A", "B", "C"):
        chat.rename("ann", title)
    known = chat.changes("bob", after=0)
    chat.delete("ann")
    Chat.create("ann", ["bob"], "Anew", chat_id=chat.id)
    for title in ("D", "E", "F"):
        chat.rename("ann", title)
    news = chat.changes("bob", after=known.cursor, events=known.event)
    assert (news.reset, [one.title for one in news.events]) == (True, ["D", "E", "F"])


def test_after_a_repair(chat: Chat) -> None:
    chat.rename("ann", "Before")
    chat.add(["cat"], by="ann")
    server().hdel(keys(chat).roster, "bob")
    ChatRepair(chat.id).run()
    assert [len(events(chat, user)) for user in ("ann", "bob", "cat")] == [2, 0, 1]
    server().delete(keys(chat).info)
    ChatRepair(chat.id).run()
    chat.rename("ann", "After")
    assert [[one.title for one in events(chat, user)] for user in ("ann", "bob", "cat")] == [["After"]] * 3


def test_only_those_after_the_last_answer(chat: Chat) -> None:
    chat.rename("ann", "A")
    known = chat.changes("ann", after=0).event
    assert events(chat, known=known) == []
    chat.rename("ann", "B")
    assert [one.title for one in events(chat, known=known)] == ["B"]
    assert [one.title for one in events(chat, known=10**9)] == ["A", "B"]


def test_the_newest_hundred_are_kept(chat: Chat) -> None:
    for number in range(120):
        chat.rename("ann", str(number))
    assert [one.title for one in events(chat)] == [str(number) for number in range(20, 120)]


def test_long_names_and_titles_are_bounded_in_bytes(chat: Chat) -> None:
    for number in range(90):
        chat.rename("ann", f"{number:02}" + "🦊" * 120)
    found = events(chat)
    assert [one.title for one in found] == [f"{90 - len(found) + at}" + "🦊" * 98 for at in range(len(found))]
    assert 32_000 < server().hstrlen(keys(chat).info, "events") <= 32_768


def test_a_repeated_rename_and_a_refused_change_record_nothing(chat: Chat) -> None:
    chat.rename("ann", "Same")
    chat.rename("bob", "Same")
    assert chat.leave("eve", by="ann") is False
    assert kinds(chat) == ["renamed"]


def test_names_and_titles_with_any_characters(chat: Chat) -> None:
    name, title = "x\n\x01 {ä}", "\0a\0\nb"
    chat.add([name], by="ann")
    chat.rename(name, title)
    assert [(one.users, one.actor, one.title) for one in events(chat)] == [
        ([name], "ann", ""),
        ([], name, "a\nb"),
    ]


def test_a_chat_created_anew_has_no_events_of_the_old_one(chat: Chat) -> None:
    chat.rename("ann", "Old")
    chat.delete("ann")
    again = Chat.create("ann", ["bob"], chat_id="events")
    assert events(again) == []
