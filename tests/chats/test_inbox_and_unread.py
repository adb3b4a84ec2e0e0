"""All chats of a user: unread and pending messages, and the list of chats."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, ChatSummary, Inbox
from django_redis_messaging.services.chats import inbox as inbox_module

from ..support.scripts import server_clock
from ..support.server import (
    bodies,
    change,
    copied,
    crash_after,
    create_chat,
    ids,
    index,
    is_cluster,
    keys,
    let_pass,
    reply_to,
    rolled_back,
    said,
    server,
    snapshot,
    steps,
)


def found(user: str, **options: Any) -> dict[str, list[int]]:
    return {news.chat_id: ids(news) for news in Inbox(user).pending(**options)}


def names(summaries: list[ChatSummary]) -> list[str]:
    return [summary.chat_id for summary in summaries]


def positions(chat: Chat) -> list[int]:
    return [one.read_id for one in chat.members()]


class TestUnread:
    def test_own_messages_never_count_as_unread(self) -> None:
        chat = create_chat("x", "one", "two")
        assert (Inbox("ann").unread(), Inbox("bob").unread()) == (0, 2)
        said(chat, "bob", "three", "four")
        assert (Inbox("ann").unread(), Inbox("bob").unread()) == (2, 2)
        chat.ack("bob", 1)
        assert Inbox("bob").unread() == 1
        chat.ack("bob", 3)
        assert Inbox("bob").unread() == 0

    def test_sending_moves_the_position_only_if_nothing_is_unread(self) -> None:
        chat = create_chat("x", "one", members=("bob", "cat"))
        said(chat, "bob", "two")
        assert positions(chat) == [1, 0, 0]
        assert bodies(Inbox("bob").pending()[0]) == ["one", "two"]
        chat.ack("bob", 2)
        said(chat, "bob", "three", "four")
        assert positions(chat) == [1, 4, 0]
        said(chat, "ann", "five")
        assert (Inbox("ann").unread(), Inbox("bob").unread(), Inbox("cat").unread()) == (3, 1, 5)

    def test_it_is_the_sum_of_all_chats_including_muted_ones(self) -> None:
        create_chat("x", "one")
        create_chat("y", "one", "two").mute("bob", datetime.now(UTC) + timedelta(hours=1))
        create_chat("z")
        create_chat("w", "one", members=("cat",))
        assert Inbox("bob").unread() == 3
        assert Inbox("nobody").unread() == 0

    def test_acks_read_no_messages_and_pass_own_ones(self) -> None:
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


@pytest.mark.worlds
class TestPending:
    def test_limit_applies_per_chat_and_total_to_all(self) -> None:
        chats = {name: create_chat(name, *"12345") for name in "xyz"}
        limited = Inbox("bob").pending(limit=2)
        assert {news.chat_id: ids(news) for news in limited} == {name: [1, 2] for name in "xyz"}
        assert all(news.has_more for news in limited)
        assert not any(news.has_more for news in Inbox("bob").pending(limit=5))

        some = Inbox("bob").pending(total=7)
        assert sorted(ids(news) for news in some) == [[], [1, 2], [1, 2, 3, 4, 5]]
        assert sorted(news.chat_id for news in some) == ["x", "y", "z"]
        assert sorted(news.has_more for news in some) == [False, True, True]
        [left_out] = [news for news in some if not news.messages]
        assert Chat(left_out.chat_id).ack("bob", left_out.cursor) == 0

        acked = found("bob", total=7, ack=True)
        # on a Cluster each chat is read by a separate call, so the total applies to each
        assert sum(map(len, acked.values())) == (15 if is_cluster() else 7)
        for name, chat in chats.items():
            assert positions(chat)[1] == len(acked[name])

    @pytest.mark.parametrize("ack", [False, True])
    def test_total_applies_to_any_number_of_chats(self, ack: bool) -> None:
        for number in range(150):
            create_chat(f"chat {number}", "one")
        found = Inbox("bob").pending(total=120, ack=ack)
        assert len(found) == 150
        # each node of a Cluster can only count the messages of one chat
        read = 150 if ack and is_cluster() else 120
        assert sum(len(news.messages) for news in found) == read
        assert all(news.has_more is not bool(news.messages) for news in found)
        assert Inbox("bob").unread() == (150 - read if ack else 150)

    def test_total_above_the_maximum_of_one_script(self) -> None:
        for name in "xyz":
            create_chat(name, *map(str, range(700)))
        found = Inbox("bob").pending(limit=1000, total=2000)
        assert sorted((len(news.messages), news.has_more) for news in found) == [
            (600 if is_cluster() else 300, True), (700, False), (700, False),
        ]  # fmt: skip

    def test_more_chats_than_fit_into_one_script(self) -> None:
        chats = [create_chat(f"c{number}", "one") for number in range(260)]
        assert found("bob") == {chat.id: [1] for chat in chats}
        assert Inbox("bob").unread() == 260
        assert len(Inbox("bob").chats(limit=1000)) == 260
        for chat in chats[:255]:
            chat.ack("bob", 1)
        assert sorted(found("bob")) == sorted(chat.id for chat in chats[255:])
        said(chats[0], "ann", "two")
        assert found("bob")["c0"] == [2]

    def test_entries_of_another_program_hide_no_other_chats(self, caplog: pytest.LogCaptureFixture) -> None:
        for name in "xyz":
            create_chat(name, "one")
        for entry in ("garbage", "{}", "[1,2]"):
            server().lset(keys("y").log, 0, entry)
            assert {chat.chat_id for chat in Inbox("bob").chats()} == {"x", "z"}
            assert found("bob") == {"x": [1], "z": [1]}
        assert found("bob", ack=True) == {"x": [1], "z": [1]}
        assert caplog.text.count("Chat 'y' was left out of a list") == 7

    async def test_async(self) -> None:
        chats = [create_chat(name, "one", "two") for name in "xy"]
        inbox = Inbox("bob")
        assert await inbox.aunread() == 4
        assert sorted(names(await inbox.achats())) == ["x", "y"]
        assert sorted(itertools.chain(*map(ids, await inbox.apending(limit=1)))) == [1, 1]
        await chats[0].aack("bob", 2)
        assert [(news.chat_id, ids(news)) for news in await inbox.apending(ack=True)] == [("y", [1, 2])]
        assert await inbox.apending() == []
        assert await inbox.aunread() == 0


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


def elsewhere(operation: Any, **options: Any) -> Any:
    """What an operation returns in another process, which has not read the inbox before."""
    memory = inbox_module._memory
    inbox_module._forget()
    try:
        return getattr(Inbox("bob"), operation.__name__)(**options)
    finally:
        inbox_module._memory = memory


@pytest.mark.worlds
class TestMemoryOfTheProcess:
    """It keeps what it last read of an inbox, so that reads take few round trips."""

    @pytest.mark.parametrize("look", ["pending", "unread"])
    def test_an_idle_read_takes_one_round_trip_for_any_number_of_chats(self, look: str) -> None:
        chats = [create_chat(f"c{number}", "one") for number in range(5)]
        for chat in chats:
            chat.ack("bob", 1)
        assert round_trips(Inbox("bob").pending) == 4  # the list, the newest keys, the chats, what was acked
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

    def test_a_count_takes_one_round_trip_while_the_same_chats_have_unread_messages(self) -> None:
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

    def test_a_count_of_a_chat_that_changed_since_the_process_read_it(self, settings: Settings) -> None:
        """Another process has recorded what the user has seen, or the user has joined again."""
        chat, inbox = create_chat("x", "one", "two"), Inbox("bob")
        assert inbox.unread() == 2
        assert elsewhere(inbox.pending, ack=True)
        assert elsewhere(inbox.unread) == 0
        said(chat, "ann", "three")
        assert (inbox.unread(), Inbox("bob").unread()) == (1, 1)
        chat.leave("bob")
        said(chat, "ann", "four")
        chat.join("bob", by="ann")
        assert (inbox.unread(), Inbox("bob").unread()) == (0, 0)
        said(chat, "ann", "five", "six")
        change(settings, CHAT_MAX_LENGTH=1)
        assert (inbox.unread(), Inbox("bob").unread()) == (1, 1)

    def test_lost_data_of_a_chat_that_is_read_ahead_is_still_reported(self) -> None:
        chat = create_chat("x", "one")
        copy = copied(chat)
        assert Inbox("bob").unread() == 1
        said(chat, "ann", "two")
        assert elsewhere(Inbox("bob").pending, ack=True)
        assert elsewhere(Inbox("bob").unread) == 0
        rolled_back(chat, copy)
        chat.ack("bob", 1)
        assert Inbox("bob").unread() == 0
        (news,) = Inbox("bob").pending()
        assert news.reset

    def test_the_users_whose_inboxes_were_made_last_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_a_reused_inbox_returns_the_same_as_a_new_one(self) -> None:
        kept = Inbox("bob")
        assert kept.pending() == []
        for name in ("one", "two"):
            create_chat(name, "hi")
        assert kept.unread() == Inbox("bob").unread() == 2
        Chat("one").leave("bob")
        Chat("two").ack("bob", 1)
        assert kept.pending() == Inbox("bob").pending() == []
        Chat("two").send("ann", "more")
        assert bodies(kept.pending()[0]) == bodies(Inbox("bob").pending()[0]) == ["more"]
        Chat("one").join("bob", by="ann")
        Chat("one").send("ann", "welcome back")
        assert {news.chat_id for news in kept.pending()} == {"one", "two"}


class TestIndex:
    def test_reading_changes_only_the_users_index(self) -> None:
        create_chat("x", "one")
        create_chat("y")
        before = snapshot(but=[index("bob")])
        for operation in (Inbox("bob").pending, Inbox("bob").unread, Inbox("bob").chats) * 2:
            operation()
        assert snapshot(but=[index("bob")]) == before

    def test_it_is_separate_per_prefix(self, settings: Settings) -> None:
        create_chat("x", "one")
        change(settings, PREFIX="other")
        assert (Inbox("bob").chats(), Inbox("bob").unread(), Inbox("bob").pending()) == ([], 0, [])

    @pytest.mark.parametrize("look", ["pending", "unread", "chats"])
    def test_the_entry_of_an_interrupted_joining_is_removed_after_the_grace_period(self, look: str) -> None:
        """Three times the COMMAND_DEADLINE of 10 seconds."""
        crash_after(create_chat("x", "one").join, 1, "cat")
        for seconds, kept in ((29, 1), (31, 0)):
            with server_clock(f"NOW + {seconds * 1000}"):
                assert not getattr(Inbox("cat"), look)()
            assert server().hlen(index("cat")) == kept

    @pytest.mark.parametrize("look", ["pending", "unread", "chats"])
    def test_an_entry_without_membership_is_removed(self, look: str) -> None:
        server().delete(*copied(create_chat("x", "one")))
        assert not getattr(Inbox("bob"), look)()
        assert not server().exists(index("bob"))


def read_pages(limit: int, between: Callable[[], object] = lambda: None) -> list[list[str]]:
    """All pages of bob's list by cursor; `between` is called after the first one."""
    pages: list[list[str]] = []
    page = Inbox("bob").chats(limit=limit)
    while page:
        pages.append(names(page))
        assert len(pages) < 10, "the pages don't end"
        if len(pages) == 1:
            between()
        page = Inbox("bob").chats(limit=limit, after=page[-1].cursor)
    return pages


def sent_bytes(call: Callable[[], object]) -> int:
    """The bytes that the server sends because of a call."""
    started = server().info("stats")["total_net_output_bytes"]
    own = server().info("stats")["total_net_output_bytes"] - started
    call()
    return int(server().info("stats")["total_net_output_bytes"]) - started - 2 * own


def described(call: Callable[[], object]) -> int:
    """The number of chats that a call describes: it counts the members of each."""
    server().config_resetstat()
    call()
    return int(server().info("commandstats").get("cmdstat_zcard", {"calls": 0})["calls"])


class TestListOfChats:
    def test_the_latest_activity_is_first(self) -> None:
        chats = {}
        for name in "xyz":
            let_pass(0)
            chats[name] = create_chat(name, members=("bob", "cat"))
        assert names(Inbox("bob").chats()) == ["z", "y", "x"]
        let_pass(0)
        message = chats["x"].send("cat", "hello")
        first, *others = Inbox("bob").chats()
        assert (first.chat_id, first.last_message, first.unread, first.title) == ("x", message, 1, "")
        assert (first.active_at, first.member_count, first.muted) == (message.sent_at, 3, False)
        assert names(others) == ["z", "y"]
        assert [(other.last_message, other.unread) for other in others] == [(None, 0)] * 2
        chats["x"].ack("bob", 1)
        assert names(Inbox("bob").chats()) == ["x", "z", "y"]

    def test_pages_by_cursor_continue_while_chats_move(self) -> None:
        for name in "uvwxyz":
            create_chat(name, "one", members=("bob", "cat"))
            let_pass(0)
        assert read_pages(2) == [["z", "y"], ["x", "w"], ["v", "u"]]
        assert read_pages(2, lambda: Chat("y").send("cat", "up")) == [["z", "y"], ["x", "w"], ["v", "u"]]
        let_pass(0)
        assert names(Inbox("bob").chats()) == ["y", "z", "x", "w", "v", "u"]
        assert read_pages(2, lambda: Chat("y").send("cat", "up")) == [["y", "z"], ["x", "w"], ["v", "u"]]
        assert read_pages(3, lambda: Chat("u").send("cat", "up")) == [["y", "z", "x"], ["w", "v"]]
        assert read_pages(3, lambda: Chat("z").leave("bob")) == [["u", "y", "z"], ["x", "w", "v"]]
        assert read_pages(2, lambda: Chat("y").delete("ann")) == [["u", "y"], ["x", "w"], ["v"]]

    def test_cursors_separate_chats_of_the_same_millisecond(self) -> None:
        chat_ids = [f"chat-{at}" for at in range(20)]
        for chat_id in chat_ids:
            create_chat(chat_id, "one")
            server().set(keys(chat_id).newest, server().get(keys(chat_ids[0]).newest))
        assert len({one.active_at for one in Inbox("bob").chats()}) == 1
        assert list(itertools.chain(*read_pages(3))) == sorted(chat_ids, reverse=True)

    def test_after_can_be_any_chat_id(self) -> None:
        """Also one that looks like a cursor; other texts are refused."""
        odd = ["00000000000-x", "fffffffffff-x", "1-x", "00000000000-", "-"]
        for name in odd:
            create_chat(name, "one")
        listed = names(Inbox("bob").chats())
        assert sorted(listed) == sorted(odd)
        for rank, name in enumerate(listed):
            assert names(Inbox("bob").chats(after=name)) == listed[rank + 1 :]
        Chat("00000000000-").leave("bob")
        for wrong, words in (
            *((text, "start with the first page") for text in ("nowhere", "00000000000-", "g0000000000-x")),
            *((text, "after") for text in ("", "00000000000-" + "x" * 256)),
        ):
            with pytest.raises(ValueError, match=words):
                Inbox("bob").chats(after=wrong)
        with pytest.raises(TypeError, match="after must be a str"):
            Inbox("bob").chats(after=5)

    def test_the_last_message_can_be_a_tombstone_or_missing(self) -> None:
        create_chat("x", "one").delete_message("ann", 1)
        last = Inbox("bob").chats()[0].last_message
        assert last.deleted
        gone = Chat.create("ann", ["bob"], "read", chat_id="y", keep_last=0)
        gone.ack("bob", 1)
        assert {one.chat_id: one.last_message for one in Inbox("bob").chats()} == {"x": last, "y": None}

    def test_the_last_message_is_an_excerpt(self) -> None:
        chat = create_chat("x")
        short = chat.send("ann", "😀" * 100, data={"a": 1})
        assert Inbox("bob").chats()[0].last_message == short
        for body in ("😀\n" * 300, "\\" * 1000, "\x01" * 1000, "x" * 2000, "é" + "漢" * 400):
            sent = chat.send("ann", body, data={"a": 1})
            last = Inbox("bob").chats()[0].last_message
            assert last.body[-1] == "…" and body.startswith(last.body[:-1])
            assert 80 < len(last.body) <= 512
            assert (last.id, last.cursor, last.sender, last.data) == (sent.id, sent.cursor, "ann", None)
        chat.send("ann", "short", data="x" * 2000)
        last = Inbox("bob").chats()[0].last_message
        assert (last.body, last.data) == ("short", None)

    def test_a_page_costs_what_is_on_it(self) -> None:
        large = "'" * 60_000
        for number in range(60):
            create_chat(f"chat {number}", large)
        inbox = Inbox("bob")
        assert described(lambda: inbox.chats(limit=10)) == 10
        cursor = inbox.chats(limit=25)[-1].cursor
        assert described(lambda: inbox.chats(limit=10, after=cursor)) == 10
        assert sent_bytes(lambda: inbox.chats(limit=60)) < 80_000

    def test_a_page_is_filled_if_some_chats_are_not_the_users(self) -> None:
        for name in "stuvwxyz":
            create_chat(name, "one")
            let_pass(0)
        for name in "zxv":
            server().zrem(keys(name).members, "bob")
        assert names(Inbox("bob").chats(limit=3)) == ["y", "w", "u"]
        assert names(Inbox("bob").chats(limit=9)) == ["y", "w", "u", "t", "s"]
        server().delete(keys("y").newest)
        assert names(Inbox("bob").chats(limit=3)) == ["w", "u", "t"]
