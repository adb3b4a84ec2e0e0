"""All chats of a user: pending and unread messages."""

import itertools
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox
from django_redis_messaging.services.chats import inbox as inbox_module

from ..support.server import (
    bodies,
    change,
    copied,
    create_chat,
    ids,
    index,
    is_cluster,
    keys,
    reply_to,
    rolled_back,
    said,
    server,
    server_ms,
    snapshot,
    steps,
    until,
)

pytestmark = pytest.mark.worlds


def found(user: str, **options: Any) -> dict[str, list[int]]:
    return {news.chat_id: ids(news) for news in Inbox(user).pending(**options)}


# unread


def test_own_messages_never_count_as_unread() -> None:
    chat = create_chat("x", "one", "two")
    assert (Inbox("ann").unread(), Inbox("bob").unread()) == (0, 2)
    said(chat, "bob", "three")
    assert (Inbox("ann").unread(), Inbox("bob").unread()) == (1, 2)
    chat.ack("bob", 1)
    assert Inbox("bob").unread() == 1
    chat.ack("bob", 3)
    assert Inbox("bob").unread() == 0


def test_sending_moves_the_position_only_if_nothing_is_unread() -> None:
    chat = create_chat("x", "one", members=("bob", "cat"))
    said(chat, "bob", "two")
    assert [one.read_id for one in chat.members()] == [1, 0, 0]
    chat.ack("bob", 2)
    said(chat, "bob", "three", "four")
    assert [one.read_id for one in chat.members()] == [1, 4, 0]
    said(chat, "ann", "five")
    assert (Inbox("ann").unread(), Inbox("bob").unread(), Inbox("cat").unread()) == (3, 1, 5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [1000, 7])
def test_unread_equals_a_manual_count(seed: int, most: int, settings: Settings) -> None:
    change(settings, CHAT_MAX_LENGTH=most)
    chance = random.Random(seed)
    people = ["ann", "bob", "an", 'an"n']
    chat = Chat.create("ann", people)
    senders: list[str] = []
    positions = dict.fromkeys(people, 0)
    for _ in range(60):
        who = chance.choice(people)
        if chance.random() < 0.6:
            if positions[who] == len(senders):
                positions[who] += 1
            senders.append(who)
            chat.send(who, "x")
        else:
            up_to = chance.randint(0, len(senders))
            positions[who] = max(positions[who], up_to)
            assert chat.ack(who, up_to) == positions[who]
        first = max(0, len(senders) - most)
        for one in people:
            expected = sum(sender != one for sender in senders[max(positions[one], first) :])
            assert Inbox(one).unread() == expected
            assert sum(summary.unread for summary in Inbox(one).chats()) == expected
    assert {one.user: one.read_id for one in chat.members()} == positions


def test_unread_is_the_sum_of_all_chats_including_muted_ones() -> None:
    create_chat("x", "one")
    create_chat("y", "one", "two").mute("bob", datetime.now(UTC) + timedelta(hours=1))
    create_chat("z")
    create_chat("w", "one", members=("cat",))
    assert Inbox("bob").unread() == 3
    assert Inbox("nobody").unread() == 0


# pending


def test_pending_includes_all_unacked_messages_and_own_ones() -> None:
    chat = create_chat("x", "one")
    said(chat, "bob", "two")
    said(chat, "ann", "three")
    (news,) = Inbox("bob").pending()
    assert (news.chat_id, bodies(news)) == ("x", ["one", "two", "three"])
    assert (news.gap, news.has_more, news.reset) == (0, False, False)
    assert news.messages == chat.history("bob").messages
    chat.ack("bob", 1)
    assert found("bob") == {"x": [2, 3]}
    assert found("ann") == {"x": [2, 3]}


def test_only_acking_moves_the_position() -> None:
    chat = create_chat("x", "one", "two")
    assert found("bob") == found("bob") == {"x": [1, 2]}
    assert [one.read_id for one in chat.members()] == [2, 0]
    chat.ack("bob", Inbox("bob").pending()[0].messages[-1].cursor)
    for _ in range(3):
        assert Inbox("bob").pending() == []
    said(chat, "ann", "three")
    assert found("bob") == {"x": [3]}


def test_limit_applies_per_chat_and_total_to_all() -> None:
    for name in "xyz":
        create_chat(name, *"12345")
    limited = Inbox("bob").pending(limit=2)
    assert {news.chat_id: ids(news) for news in limited} == {name: [1, 2] for name in "xyz"}
    assert all(news.has_more for news in limited)
    all_of_them = Inbox("bob").pending(limit=5)
    assert not any(news.has_more for news in all_of_them)

    some = Inbox("bob").pending(total=7)
    assert sorted(ids(news) for news in some) == [[], [1, 2], [1, 2, 3, 4, 5]]
    assert sorted(news.chat_id for news in some) == ["x", "y", "z"]
    assert sorted(news.has_more for news in some) == [False, True, True]


def test_ack_is_limited_by_total() -> None:
    chats = {name: create_chat(name, *"12345") for name in "xyz"}
    some = found("bob", total=7, ack=True)
    # on a Cluster each chat is read by a separate call, so the total applies to each
    assert sum(map(len, some.values())) == (15 if is_cluster() else 7)
    for name, chat in chats.items():
        assert chat.members()[1].read_id == len(some[name])


def test_acking_a_part_leaves_the_remainder_pending() -> None:
    chat = create_chat("x", *"1234567")
    seen: list[int] = []
    while pending := Inbox("bob").pending(limit=3):
        seen += ids(pending[0])
        assert pending[0].has_more is (seen[-1] < 7)
        chat.ack("bob", pending[0].messages[-1].cursor)
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_pending_reports_a_gap(settings: Settings) -> None:
    chat = create_chat("x", *"12345")
    chat.ack("bob", 1)
    change(settings, CHAT_MAX_LENGTH=2)
    (news,) = Inbox("bob").pending()
    assert (ids(news), news.gap, news.reset) == ([4, 5], 2, False)
    assert Inbox("bob").unread() == 2
    chat.ack("bob", 4)
    (news,) = Inbox("bob").pending()
    assert (ids(news), news.gap) == ([5], 0)


def test_ack_covers_only_returned_messages() -> None:
    chat, other = create_chat("x", *"12345"), create_chat("y", "one")
    assert found("bob", limit=3, ack=True) == {"x": [1, 2, 3], "y": [1]}
    assert (chat.members()[1].read_id, other.members()[1].read_id) == (3, 1)
    assert Inbox("bob").unread() == 2
    assert found("bob", ack=True) == {"x": [4, 5]}
    assert (found("bob", ack=True), Inbox("bob").unread()) == ({}, 0)


def test_ack_covers_own_messages() -> None:
    chat = create_chat("x", "1")
    said(chat, "bob", "2", "3")
    said(chat, "ann", "4")
    assert found("bob", limit=2, ack=True) == {"x": [1, 2]}
    assert Inbox("bob").unread() == 1
    assert found("bob", ack=True) == {"x": [3, 4]}


def test_more_chats_than_fit_into_one_script() -> None:
    chats = [create_chat(f"c{number}", "one") for number in range(260)]
    assert found("bob") == {chat.id: [1] for chat in chats}
    assert Inbox("bob").unread() == 260
    assert len(Inbox("bob").chats(limit=1000)) == 260
    for chat in chats[:255]:
        chat.ack("bob", 1)
    assert sorted(found("bob")) == sorted(chat.id for chat in chats[255:])
    said(chats[0], "ann", "two")
    assert found("bob")["c0"] == [2]


@pytest.mark.parametrize("look", ["pending", "unread"])
def test_idle_read_takes_one_round_trip_for_any_number_of_chats(look: str) -> None:
    chats = [create_chat(f"c{number}", "one") for number in range(5)]
    for chat in chats:
        chat.ack("bob", 1)
    assert round_trips(Inbox("bob").pending) == 4  # the index, the newest keys, the chats, and what was acked
    kept = Inbox("bob")
    for _ in range(2):
        assert round_trips(getattr(kept, look)) == round_trips(getattr(Inbox("bob"), look)) == 1
    create_chat("another")
    assert round_trips(getattr(Inbox("bob"), look)) == 4  # its newest key, itself, and that all is acked
    assert round_trips(getattr(kept, look)) == 2  # another object has remembered the chat
    chats[2].leave("bob")
    assert round_trips(getattr(Inbox("bob"), look)) == 1
    said(chats[3], "ann", "two")
    assert round_trips(getattr(Inbox("bob"), look)) == 2


def test_count_takes_one_round_trip_while_the_same_chats_have_unread_messages() -> None:
    first, second = create_chat("x", "one"), create_chat("y", "one")
    assert Inbox("bob").unread() == 2
    for total in range(3, 6):
        said(first, "ann", "more")
        assert (round_trips(Inbox("bob").unread), Inbox("bob").unread()) == (1, total)
    first.ack("bob", first.info().last_id)
    assert round_trips(Inbox("bob").unread) == 2  # records that all is acked
    assert (round_trips(Inbox("bob").unread), Inbox("bob").unread()) == (1, 1)
    said(first, "ann", "again")
    assert (round_trips(Inbox("bob").unread), round_trips(Inbox("bob").unread)) == (2, 1)
    second.leave("bob")
    assert (round_trips(Inbox("bob").unread), Inbox("bob").unread()) == (1, 1)


def test_count_of_a_chat_that_changed_since_the_process_read_it(settings: Settings) -> None:
    """Another process has recorded what the user has seen, or the user has joined again."""
    chat, inbox = create_chat("x", "one", "two"), Inbox("bob")
    assert inbox.unread() == 2
    assert forgotten(Inbox("bob").pending, ack=True)
    assert forgotten(Inbox("bob").unread) == 0
    said(chat, "ann", "three")
    assert (inbox.unread(), Inbox("bob").unread()) == (1, 1)
    chat.leave("bob")
    said(chat, "ann", "four")
    chat.join("bob", by="ann")
    assert (inbox.unread(), Inbox("bob").unread()) == (0, 0)
    said(chat, "ann", "five", "six")
    change(settings, CHAT_MAX_LENGTH=1)
    assert (inbox.unread(), Inbox("bob").unread()) == (1, 1)


def test_lost_data_of_a_chat_that_is_read_ahead_is_still_reported() -> None:
    chat = create_chat("x", "one")
    copy = copied(chat)
    assert Inbox("bob").unread() == 1
    said(chat, "ann", "two")
    assert forgotten(Inbox("bob").pending, ack=True)
    assert forgotten(Inbox("bob").unread) == 0
    rolled_back(chat, copy)
    chat.ack("bob", 1)
    assert Inbox("bob").unread() == 0
    (news,) = Inbox("bob").pending()
    assert news.reset


def forgotten(operation: Any, **options: Any) -> Any:
    """What an operation returns in another process, which has not read the inbox before."""
    memory = inbox_module._memory
    inbox_module._forget()
    try:
        return getattr(Inbox("bob"), operation.__name__)(**options)
    finally:
        inbox_module._memory = memory


def test_memory_keeps_the_users_whose_inboxes_were_made_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module._Memory, "SIZE", 8)  # each of these users takes up 2
    for user in ("bob", "cat", "dan", "eve"):
        create_chat(f"of {user}", members=(user,))
        Inbox(user).pending()
    assert round_trips(Inbox("bob").pending) == 1
    create_chat("of fay", members=("fay",))
    Inbox("fay").pending()
    assert round_trips(Inbox("bob").pending) == 1
    assert round_trips(Inbox("cat").pending) == 2
    for number in range(10):  # more than the memory can hold
        create_chat(f"c{number}", members=("gil",))
    Inbox("gil").pending()
    assert [round_trips(Inbox(user).pending) for user in ("gil", "bob")] == [2, 2]


def round_trips(operation: Any) -> int:
    """Count the steps of an operation that send commands."""
    body, asked = steps(operation), 0
    step = next(body)
    while True:
        asked += bool(step.calls(split=False)) if hasattr(step, "calls") else 1
        try:
            step = body.send(reply_to(step))
        except StopIteration:
            return asked


def test_reading_changes_only_the_users_index(settings: Settings) -> None:
    create_chat("x", "one")
    create_chat("y")
    before = snapshot(but=[index("bob")])
    for operation in (Inbox("bob").pending, Inbox("bob").unread, Inbox("bob").chats) * 2:
        operation()
    assert snapshot(but=[index("bob")]) == before


def test_index_is_separate_per_prefix(settings: Settings) -> None:
    create_chat("x", "one")
    change(settings, PREFIX="other")
    assert (Inbox("bob").chats(), Inbox("bob").unread(), Inbox("bob").pending()) == ([], 0, [])


@pytest.mark.timing
def test_entry_without_membership_is_removed_after_the_grace_period(settings: Settings) -> None:
    chat = create_chat("x", "one")
    server().delete(*snapshot_of(chat))
    for look in (Inbox("bob").pending, Inbox("bob").unread, Inbox("bob").chats):
        assert not look()
    assert server().hlen(index("bob")) == 1
    change(settings, COMMAND_DEADLINE=0.8)
    until(lambda: not Inbox("bob").chats() and not server().exists(index("bob")))


def snapshot_of(chat: Chat) -> list[str]:
    return [key for key in snapshot() if key.startswith(keys(chat).tag)]


async def test_async_inbox() -> None:
    chats = [create_chat(name, "one", "two") for name in "xy"]
    inbox = Inbox("bob")
    assert await inbox.aunread() == 4
    assert sorted(one.chat_id for one in await inbox.achats()) == ["x", "y"]
    assert sorted(itertools.chain(*map(ids, await inbox.apending(limit=1)))) == [1, 1]
    await chats[0].aack("bob", 2)
    assert [(news.chat_id, ids(news)) for news in await inbox.apending(ack=True)] == [("y", [1, 2])]
    assert await inbox.apending() == []
    assert await inbox.aunread() == 0


def test_gap_without_messages_after_it_can_be_acked(settings: Settings) -> None:
    """The age limit removed everything bob had not read, so there is no message to ack."""
    chat = Chat.create("ann", ["bob"], "old", chat_id="aged")
    limit = 0.05
    change(settings, CHAT_MAX_AGE=limit)
    until(lambda: server_ms() > chat.info().active_at.timestamp() * 1000 + limit * 1000 + 1)

    [news] = Inbox("bob").pending()
    assert (news.messages, news.gap, news.has_more) == ([], 1, False)
    assert chat.ack("bob", news.cursor) == 1
    assert Inbox("bob").pending() == []


@pytest.mark.parametrize("ack", [False, True])
def test_total_applies_to_any_number_of_chats(ack: bool) -> None:
    for number in range(150):
        Chat.create("ann", ["bob"], "one", chat_id=f"chat {number}")
    found = Inbox("bob").pending(total=120, ack=ack)
    assert len(found) == 150
    # each node of a Cluster can only count the messages of one chat
    read = 150 if ack and is_cluster() else 120
    assert sum(len(news.messages) for news in found) == read
    assert all(news.has_more is not bool(news.messages) for news in found)
    assert Inbox("bob").unread() == (150 - read if ack else 150)


def test_total_above_the_maximum_of_one_script() -> None:
    for name in "xyz":
        said(create_chat(name), "ann", *map(str, range(700)))
    found = Inbox("bob").pending(limit=1000, total=2000)
    assert sorted((len(news.messages), news.has_more) for news in found) == [
        (600 if is_cluster() else 300, True), (700, False), (700, False),
    ]  # fmt: skip


@pytest.mark.parametrize("entry", ["garbage", "{}", "[1,2]"])
def test_entries_of_another_program_do_not_hide_other_chats(
    entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "xyz":
        create_chat(name, "one")
    server().lset(keys("y").log, 0, entry)
    assert {chat.chat_id for chat in Inbox("bob").chats()} == {"x", "z"}
    assert found("bob") == found("bob", ack=True) == {"x": [1], "z": [1]}
    assert caplog.text.count("Chat 'y' was left out of a list") == 3


def test_acks_read_no_messages_and_pass_own_ones() -> None:
    chat = create_chat("x", *map(str, range(20)))
    said(chat, "bob", "own", "own")
    said(chat, "ann", *map(str, range(20)))
    server().config_resetstat()
    for position in range(1, 43):
        assert chat.ack("bob", position) == position
        own = max(0, 22 - max(position, 20))
        assert Inbox("bob").unread() == 42 - position - own
    commands = server().info("commandstats")
    assert "cmdstat_zlexcount" in commands
    assert not commands.keys() & {"cmdstat_lrange", "cmdstat_lindex"}
    chat.ack("ann", 42)
    assert not server().exists(keys(chat).own)


def test_every_pending_has_a_cursor() -> None:
    chat = Chat.create("ann", ["bob"], "one", chat_id="ends")
    for number in range(3):
        chat.send("ann", f"more {number}")

    [news] = Inbox("bob").pending(limit=2)
    assert news.cursor == news.messages[-1].cursor
    page = chat.history("bob", after=news.cursor)
    assert [message.id for message in page.messages] == [3, 4]
    end = chat.history("bob", after=page.cursor)
    assert (end.messages, end.reset) == ([], False)
    assert chat.history("bob", after=end.cursor).reset is False


def test_chat_beyond_the_total_keeps_its_position() -> None:
    for name in ("first", "second"):
        Chat.create("ann", ["bob"], "hi", chat_id=name)

    found = Inbox("bob").pending(total=1)
    [left_out] = [news for news in found if not news.messages]
    assert left_out.has_more
    assert Chat(left_out.chat_id).ack("bob", left_out.cursor) == 0
