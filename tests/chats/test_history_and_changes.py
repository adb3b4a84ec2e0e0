"""Reading a chat: pages of its history, acks and cursors, what changed since the last read, its events."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pytest_django import Settings

from django_redis_messaging import Changes, Chat, ChatNotFound, Choices, Inbox, MessagingError, NotAMember
from django_redis_messaging.services.chats import ChatEvent
from django_redis_messaging.services.chats.repairing import ChatRepair

from ..support.scripts import server_clock
from ..support.server import (
    bodies,
    change,
    copied,
    create_chat,
    ids,
    keys,
    rolled_back,
    said,
    server,
    server_ms,
    snapshot,
)


@pytest.fixture
def ten() -> Chat:
    """A chat of ann and bob with ten messages."""
    return create_chat("ten", *(f"m{number}" for number in range(1, 11)))


def reading(chat: Chat, place: str | int | None) -> list[Callable[[], object]]:
    return [
        lambda: chat.ack("bob", place),
        lambda: chat.history("bob", after=place),
        lambda: chat.history("bob", before=place),
    ]


class TestHistory:
    def test_pages(self, ten: Chat) -> None:
        """In both directions, by ids and by cursors: see also test_machine.py."""
        before = snapshot()
        cursors = {message.id: message.cursor for message in ten.history("bob").messages}
        for options, found, more in (
            ({}, [8, 9, 10], True),
            ({"after": 4}, [5, 6, 7], True),
            ({"after": cursors[7]}, [8, 9, 10], False),
            ({"after": 99}, [], False),
            ({"before": 5}, [2, 3, 4], True),
            ({"before": cursors[4]}, [1, 2, 3], False),
            ({"before": 0}, [], False),
        ):
            page = ten.history("bob", limit=3, **options)
            assert (ids(page), page.has_more, page.gap, page.reset) == (found, more, 0, False)
        assert snapshot() == before

    def test_a_page_of_a_thousand(self) -> None:
        chat = create_chat("large", *"x" * 1001)
        page = chat.history("bob", after=0, limit=1000)
        assert (len(page.messages), page.has_more) == (1000, True)
        assert [len(news.messages) for news in Inbox("bob").pending(limit=1000)] == [1000]

    def test_after_and_before_exclude_each_other(self, ten: Chat) -> None:
        with pytest.raises(ValueError, match="one direction"):
            ten.history("bob", after=1, before=3)

    async def test_async(self, ten: Chat) -> None:
        page = await ten.ahistory("bob", after=2, limit=3)
        assert (ids(page), page.has_more) == ([3, 4, 5], True)
        assert await ten.aack("bob", page.messages[-1].cursor) == 5
        assert ids(await ten.ahistory("bob", before=page.messages[0].cursor)) == [1, 2]
        with pytest.raises(NotAMember):
            await ten.ahistory("cat")
        assert (await ten.achanges("bob", after=0)) == ten.changes("bob", after=0)


class TestAcks:
    @pytest.mark.parametrize(
        ("place", "words"),
        [
            *((text, "not a cursor") for text in ("", "1", "1-2", "1-2-3-4", "x-1-2", "1-2-" + 22 * "3")),
            *((text, "not a cursor") for text in ("1--2", "-1-2-3", "1-2-٣", "1-2-3\n", "A-1-2")),
            *((number, str(number)) for number in (-1, -(2**70), 2**70)),
        ],
    )
    def test_invalid_cursors_and_positions(self, ten: Chat, place: str | int, words: str) -> None:
        before = snapshot()
        for act in reading(ten, place):
            with pytest.raises(ValueError, match=words):
                act()
        assert snapshot() == before


class TestCursorsOfMissingMessages:
    """The chat was created anew, or Redis lost data."""

    def test_another_chat(self, ten: Chat) -> None:
        other = create_chat("other", "x").history("bob").messages[0].cursor
        assert ten.ack("bob", other) == 0
        assert ten.history("bob", after=other).reset is True

    def test_messages_of_the_same_time_have_different_cursors(self, ten: Chat) -> None:
        """The clock was set back, so that another message got the id and the time of a lost one."""
        copy, now = copied(ten), server_ms() + 1000
        with server_clock(now):
            lost = ten.send("ann", "lost")
            rolled_back(ten, copy)
            ten.send("ann", "instead")
        [instead] = ten.history("bob", after=10).messages
        assert (instead.sent_at, instead.body) == (lost.sent_at, "instead")
        assert (ten.ack("bob", lost.cursor), ten.history("bob", after=lost.cursor).reset) == (0, True)
        ten.send("ann", "m12")
        assert (ten.ack("bob", lost.cursor), ten.history("bob", after=lost.cursor).reset) == (0, True)
        assert ten.ack("bob", instead.cursor) == 11

    def test_a_removed_message_must_be_older_than_the_kept_ones(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_LENGTH=2)
        chat = create_chat("short", "1", "2")
        removed = chat.history("bob").messages[0].cursor
        said(chat, "ann", "3", "4")
        with server_clock("NOW + 1000"):
            chat.send("ann", "5")
        epoch, _, stamp = chat.history("bob").cursor.split("-")
        page = chat.history("bob", after=removed)
        assert (ids(page), page.gap, page.reset) == ([4, 5], 2, False)
        impossible = f"{epoch}-1-{stamp}"
        assert chat.history("bob", after=impossible).reset is True
        assert (chat.ack("bob", impossible), chat.ack("bob", removed)) == (0, 1)


@pytest.fixture
def chat() -> Chat:
    """A chat of ann (owner), bob and cat with three messages."""
    made = Chat.create("ann", ["bob", "cat"], "one", chat_id="changes", title="Trip")
    made.send("bob", "two")
    made.send("ann", "three")
    return made


def following(chat: Chat, known: Changes, user: str = "bob") -> Changes:
    return chat.changes(user, after=known.cursor, edits=known.edits, moved=known.moved)


class TestChanges:
    def test_first_call_and_idle_call(self, chat: Chat) -> None:
        first = chat.changes("bob", after=0)
        assert first.messages == chat.history("bob", after=0).messages
        assert (first.cursor, first.gap, first.has_more, first.reset) == (
            first.messages[-1].cursor, 0, False, False,
        )  # fmt: skip
        assert (first.edited, first.edits, first.edits_missed) == ([], 0, False)
        assert first.positions == {"ann": 1, "bob": 0, "cat": 0}
        assert (first.title, first.member_count, first.role) == ("Trip", 3, "member")
        assert (first.last_id, first.last_sender) == (3, "ann")
        idle = following(chat, first)
        assert (idle.messages, idle.edited, idle.positions, idle.last_sender) == ([], [], {}, "")
        assert (idle.cursor, idle.edits, idle.moved) == (first.cursor, first.edits, first.moved)
        assert following(chat, idle) == idle

    def test_what_a_reader_learns_about_itself(self, chat: Chat, settings: Settings) -> None:
        said(chat, "ann", "four", "five")
        chat.ack("bob", 2)
        chat.send("bob", "mine")
        changes = chat.changes("bob", after=6)
        assert (changes.read_id, changes.unread, changes.oldest_id, changes.removed) == (2, 3, 1, 0)
        own = chat.changes("ann", after=6)
        assert (own.read_id, own.unread) == (1, 2)
        chat.join("dan", by="ann")
        change(settings, CHAT_MAX_LENGTH=2)
        said(chat, "ann", *"7890")
        changes = chat.changes("dan", after=0)
        assert (changes.oldest_id, changes.removed, changes.unread) == (9, 2, 2)

    def test_edited_messages_are_returned_once(self, chat: Chat) -> None:
        known = chat.changes("bob", after=2, edits=0)
        late = chat.changes("bob", after=1)
        edited, deleted = chat.edit("bob", 2, "zwei"), chat.delete_message("ann", 1)
        chat.edit("ann", 3, "drei")
        news = following(chat, known)
        assert ids(news.edited) == [2, 1, 3]
        assert (news.edited[:2], news.edit_numbers, news.edits) == ([edited, deleted], [1, 2, 3], 3)
        # A new message is returned once, as it is now.
        assert (late.messages[0].body, late.edited) == ("two", [])
        page = chat.changes("bob", after=1, edits=0)
        assert (bodies(page.messages), ids(page.edited)) == (["zwei", "drei"], [1])
        page = chat.changes("bob", after=1, edits=0, limit=1)
        assert (ids(page.messages), ids(page.edited), page.has_more) == ([2], [1], True)
        assert following(chat, news).edited == []

    def test_who_joined_after_the_newest_message_has_not_read_it(self, chat: Chat) -> None:
        known = chat.changes("ann", after=0)
        assert known.newcomers == []
        chat.join("dan", by="ann")
        chat.ack("bob", 3)
        known = following(chat, known, "ann")
        assert (known.positions, known.newcomers) == ({"ann": 1, "bob": 3, "cat": 0, "dan": 3}, ["dan"])
        chat.ack("dan", chat.send("ann", "four").id)
        assert following(chat, known, "ann").newcomers == []
        assert Chat.create("ann", ["bob"]).changes("ann", after=0).newcomers == []

    def test_the_index_of_edits_is_capped_and_incomplete_answers_are_told(self, chat: Chat) -> None:
        said(chat, "bob", *map(str, range(102)))
        known = chat.changes("cat", after=105)
        for number in (*range(4, 104), 103, 103, 103):
            chat.edit("bob", number, "x")
        news = following(chat, known, "cat")
        assert (len(news.edited), news.edits, news.edits_missed) == (100, 103, False)
        assert ids(news.edited)[-2:] == [102, 103]
        chat.edit("bob", 104, "x")
        news = following(chat, known, "cat")
        assert (news.edited, news.edits, news.edits_missed) == ([], 104, True)
        assert len(chat.changes("cat", after=105, edits=1).edited) == 100
        assert chat.changes("cat", after=105, edits=105).edits_missed
        assert server().zcard(keys(chat).edits) == 101

    def test_edits_of_a_chat_without_an_index_are_missed(self, chat: Chat) -> None:
        chat.edit("bob", 2, "zwei")
        server().delete(keys(chat).edits)
        assert chat.changes("cat", after=3, edits=0).edits_missed
        assert not chat.changes("cat", after=3, edits=1).edits_missed
        chat.edit("bob", 2, "deux")
        assert bodies(chat.changes("cat", after=3, edits=1).edited) == ["deux"]

    def test_edits_of_a_chat_that_has_lost_their_number_are_missed(self, chat: Chat) -> None:
        chat.edit("bob", 2, "zwei")
        chat.edit("ann", 1, "eins")
        known = chat.changes("cat", after=3)
        chat.edit("ann", 3, "drei")
        server().hdel(keys(chat).info, "edits")
        chat.edit("bob", 2, "deux")
        news = chat.changes("cat", after=3, edits=known.edits)
        assert (known.edits, news.edits, news.edits_missed) == (2, 1, True)
        chat.edit("bob", 2, "two")
        assert bodies(chat.changes("cat", after=3, edits=1).edited) == ["two"]

    def test_positions_are_returned_when_they_changed(self, chat: Chat) -> None:
        known = chat.changes("bob", after=3)
        chat.ack("cat", 2)
        news = following(chat, known)
        assert (news.positions, news.last_id, news.last_sender) == ({"ann": 1, "bob": 0, "cat": 2}, 3, "ann")
        assert news.moved != known.moved
        chat.ack("cat", 1)
        assert following(chat, news).positions == {}
        chat.leave("cat")
        chat.join("dan", by="ann")
        left = following(chat, news)
        assert left.positions == {"ann": 1, "bob": 0, "dan": 3}
        chat.rename("ann", "Tour")
        assert following(chat, left).title == "Tour"
        assert following(chat, left).positions
        # With new messages, too: whoever has read the newest one may have changed.
        known = chat.changes("bob", after=3)
        chat.send("bob", "four")
        news = following(chat, known)
        assert (news.moved, news.positions["bob"], news.last_sender) == (known.moved, 0, "bob")

    def test_an_idle_call_reads_no_positions(self, chat: Chat) -> None:
        """So that it costs the same for any number of members."""
        known = chat.changes("bob", after=0)
        for key in (keys(chat).standing, keys(chat).hidden):
            server().delete(key)
            server().set(key, "not a set")
        assert following(chat, known).moved == known.moved

    def test_acks_while_reading_pending_messages_and_hiding_change_the_positions(self, chat: Chat) -> None:
        known = chat.changes("bob", after=0)
        Inbox("cat").pending(ack=True)
        acked = following(chat, known)
        assert (acked.positions["cat"], acked.moved == known.moved) == (3, False)
        Choices().choose("cat", receipts=False)
        hidden = following(chat, acked)
        assert ("cat" in hidden.positions, hidden.moved == acked.moved) == (False, False)

    @pytest.mark.parametrize("case", ["hidden", "off"])
    def test_what_is_hidden_changes_nothing(self, case: str, chat: Chat, settings: Settings) -> None:
        if case == "off":
            change(settings, READ_RECEIPTS=False)
        else:
            Choices().choose("cat", receipts=False)
        known = chat.changes("bob", after=0)
        chat.ack("cat", 2)
        assert following(chat, known) == replace(known, messages=[], members=[], positions={}, last_sender="")

    def test_no_part_of_lost_information_is_written(self, chat: Chat) -> None:
        server().delete(keys(chat).info)
        chat.ack("cat", 2)
        Choices().choose("cat", receipts=False)
        assert not server().exists(keys(chat).info)

    def test_who_has_stopped_typing_is_left_out(self, chat: Chat) -> None:
        chat.typing("ann")
        before_the_clock_was_set_back = server_ms() + 3_600_000
        server().zadd(keys(chat).typing, {"cat": server_ms() - 1, "dan": before_the_clock_was_set_back})
        assert chat.changes("bob", after=3).typists == chat.typists() == ["ann"]

    def test_refusals_and_lost_data(self, chat: Chat) -> None:
        known = chat.changes("bob", after=0)
        with pytest.raises(NotAMember):
            chat.changes("dan", after=0)
        with pytest.raises(ChatNotFound):
            Chat("no").changes("bob", after=0)
        for arguments in ({"after": "x"}, {"after": 0, "edits": -1}, {"after": 0, "moved": 2**60}):
            with pytest.raises(ValueError, match=r"cursor|edits|moved"):
                chat.changes("bob", **arguments)
        chat.delete("ann")
        Chat.create("bob", [], "anew", chat_id=chat.id)
        news = following(chat, known)
        assert (news.reset, news.edited, news.positions) == (True, [], {"bob": 1})


class TestBytesOfChanges:
    """Messages, edited messages, names and positions share the bytes of an answer."""

    def test_messages(self, chat: Chat, settings: Settings) -> None:
        said(chat, "bob", *["x" * 60_000] * 5)
        page = chat.changes("cat", after=3)
        assert (ids(page.messages), page.has_more) == ([4, 5, 6, 7], True)
        rest = following(chat, page, "cat")
        assert (ids(rest.messages), rest.has_more) == ([8], False)
        change(settings, MESSAGE_MAX_BYTES=400_000)
        chat.send("bob", "x" * 300_000)
        page = chat.changes("cat", after=8)
        assert (ids(page.messages), page.has_more) == ([9], False)

    def test_names_and_positions(self, chat: Chat) -> None:
        chat.add([f"{number:03}" + "x" * 250 for number in range(190)], by="ann")
        said(chat, "bob", *["x" * 60_000] * 5)
        page = chat.changes("cat", after=3)
        assert (ids(page.messages), page.has_more, len(page.members)) == ([4, 5, 6], True, 193)

    def test_edited_messages(self, chat: Chat) -> None:
        said(chat, "bob", *["x" * 10] * 6)
        for number in range(4, 9):
            chat.edit("bob", number, "y" * 60_000)
        known = chat.changes("cat", after=8, edits=0)
        assert ids(known.messages) == [9]
        assert (ids(known.edited), known.edits, known.has_more) == ([4, 5, 6, 7], 4, True)
        rest = following(chat, known, "cat")
        assert (ids(rest.edited), rest.edits, rest.has_more) == ([8], 5, False)


def events(chat: Chat, user: str = "ann", known: int | None = None) -> list[ChatEvent]:
    return chat.changes(user, after=0, events=known).events


def titles(chat: Chat, user: str = "ann", known: int | None = None) -> list[str]:
    return [one.title for one in events(chat, user, known)]


class TestEvents:
    """What happened to a chat between its messages."""

    def test_each_kind(self, chat: Chat) -> None:
        chat.add(["dan", "eve", "fay", "gil"], by="ann")
        chat.send("bob", "four")
        chat.leave("dan", by="ann")
        chat.leave("eve")
        chat.rename("bob", "Tour")
        chat.set_role("ann", "bob", "owner")
        chat.set_role("ann", "bob", "member")
        found = [(one.kind, one.actor, one.users, one.count, one.title, one.after_id) for one in events(chat)]
        assert found == [
            ("added", "ann", ["dan", "eve", "fay"], 4, "", 3),
            ("removed", "ann", ["dan"], 1, "", 4),
            ("left", "eve", ["eve"], 1, "", 4),
            ("renamed", "bob", [], 0, "Tour", 4),
            ("owner", "ann", ["bob"], 1, "", 4),
            ("member", "ann", ["bob"], 1, "", 4),
        ]
        assert [one.number for one in events(chat)] == [1, 2, 3, 4, 5, 6]

    def test_who_joins_an_open_chat_and_who_succeeds_the_owner(self) -> None:
        chat = Chat.create("ann", ["bob"], chat_id="open", open=True)
        chat.join("cat")
        chat.leave("ann")
        found = [(one.kind, one.actor, one.users) for one in events(chat, "bob")]
        assert found == [("joined", "cat", ["cat"]), ("left", "ann", ["ann"]), ("owner", "", ["bob"])]

    def test_they_are_no_messages(self, chat: Chat) -> None:
        chat.ack("bob", 3)
        chat.add(["dan"], by="ann")
        chat.rename("ann", "Tour")
        assert (Inbox("bob").unread(), Inbox("bob").pending(), chat.info().last_id) == (0, [], 3)
        assert chat.send("ann", "four").id == 4

    def test_only_those_since_joining_and_since_the_last_answer(self, chat: Chat) -> None:
        chat.rename("ann", "Before")
        known = chat.changes("ann", after=0).event
        assert events(chat, known=known) == []
        chat.add(["dan"], by="ann")
        chat.rename("ann", "After")
        assert [(one.kind, one.title) for one in events(chat, "dan")] == [("added", ""), ("renamed", "After")]
        assert titles(chat, known=known) == ["", "After"]
        assert titles(chat, known=10**9) == ["Before", "", "After"]
        chat.leave("dan")
        chat.add(["dan"], by="ann")
        assert "After" not in titles(chat, "dan")

    @pytest.mark.parametrize("ms", [1, 10**13])
    def test_the_clock_decides_nothing(self, chat: Chat, ms: int) -> None:
        """Set back after people have joined; or they joined in the same ms."""
        with server_clock(ms):
            chat.rename("ann", "Before")
        with server_clock(10**13):
            for user in ("dan", "eve", "fay"):
                chat.add([user], by="ann")
        with server_clock(ms):
            chat.rename("ann", "After")
        alone = {user: chat.changes(user, after=0) for user in ("ann", "dan", "eve", "fay")}
        assert [len(changes.events) for changes in alone.values()] == [5, 4, 3, 2]
        assert [one.users or one.title for one in alone["eve"].events] == [["eve"], ["fay"], "After"]
        for users in (["dan", "eve", "fay"], ["fay", "dan"]):
            assert chat.changes_for(users, after=1) == {user: chat.changes(user, after=1) for user in users}

    def test_a_chat_created_anew_has_its_own(self, chat: Chat) -> None:
        for title in ("A", "B", "C"):
            chat.rename("ann", title)
        known = chat.changes("bob", after=0)
        chat.delete("ann")
        Chat.create("ann", ["bob"], "Anew", chat_id=chat.id)
        assert events(chat) == []
        for title in ("D", "E", "F"):
            chat.rename("ann", title)
        news = chat.changes("bob", after=known.cursor, events=known.event)
        assert (news.reset, [one.title for one in news.events]) == (True, ["D", "E", "F"])

    def test_after_a_repair(self, chat: Chat) -> None:
        chat.rename("ann", "Before")
        chat.add(["dan"], by="ann")
        server().hdel(keys(chat).roster, "bob")
        ChatRepair(chat.id).run()
        assert [len(events(chat, user)) for user in ("ann", "bob", "dan")] == [2, 0, 1]
        server().delete(keys(chat).info)
        ChatRepair(chat.id).run()
        chat.rename("ann", "After")
        assert [titles(chat, user) for user in ("ann", "bob", "dan")] == [["After"]] * 3

    def test_the_newest_hundred_are_kept_and_fewer_long_ones(self, chat: Chat) -> None:
        for number in range(120):
            chat.rename("ann", str(number))
        assert titles(chat) == [str(number) for number in range(20, 120)]
        for number in range(90):
            chat.rename("ann", f"{number:02}" + "🦊" * 120)
        found = titles(chat)
        assert found == [f"{90 - len(found) + at}" + "🦊" * 98 for at in range(len(found))]
        assert 32_000 < sum(map(len, server().lrange(keys(chat).events, 0, -1))) <= 32_768

    def test_a_repeated_rename_and_a_refused_change_record_nothing(self, chat: Chat) -> None:
        chat.rename("ann", "Same")
        chat.rename("bob", "Same")
        assert chat.leave("eve", by="ann") is False
        assert [one.kind for one in events(chat)] == ["renamed"]

    def test_names_and_titles_with_any_characters(self, chat: Chat) -> None:
        name, title = "x\n\x01 {ä}", "\0a\0\nb"
        chat.add([name], by="ann")
        chat.rename(name, title)
        found = [(one.users, one.actor, one.title) for one in events(chat)]
        assert found == [([name], "ann", ""), ([], name, "a\nb")]


PEOPLE = ["ann", "bob", "cat", "dan", "eve"]


class Story:
    """What people do in a chat, at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        chat = self.chat = Chat.create("ann", PEOPLE[1:3], "one", title="Trip")
        later = datetime.now(UTC) + timedelta(hours=1)
        choose = self.chance.choice
        self.acts: list[Callable[[str], object]] = [
            lambda who: chat.send(who, choose(["short", "long " * 50])),
            lambda who: chat.edit(who, self.number(), "edited"),
            lambda who: chat.delete_message(who, self.number()),
            lambda who: chat.ack(who, self.number()),
            lambda who: chat.join(choose(PEOPLE), by=who),
            lambda who: chat.leave(choose(PEOPLE[1:]), by=who),
            lambda who: chat.rename(who, choose(["Trip", "Journey"])),
            lambda who: chat.mute(who, choose([None, later])),
            lambda who: chat.typing(who),
        ]

    def number(self) -> int:
        newest = self.chat.info().last_id
        return self.chance.randint(max(1, newest - 5), newest)

    def go_on(self) -> None:
        with suppress(MessagingError):  # not everybody may do everything
            self.chance.choice(self.acts)(self.chance.choice(PEOPLE))


class TestReadingForManyMembers:
    """Each of them gets what they read alone."""

    @pytest.mark.parametrize("seed", range(6))
    def test_everybody_reads_the_same_together(self, seed: int, settings: Settings) -> None:
        change(settings, CHAT_MAX_LENGTH=12)
        story = Story(seed)
        chat, known = story.chat, [{"after": 0}]
        for _ in range(60):
            story.go_on()
            after = story.chance.choice(known)
            alone = {}
            for user in PEOPLE:
                with suppress(NotAMember):
                    alone[user] = chat.changes(user, **after)
            assert chat.changes_for(PEOPLE, **after) == alone
            for changes in alone.values():
                numbers = {"edits": changes.edits, "moved": changes.moved, "events": changes.event}
                known.append({"after": changes.cursor, **numbers})
            summaries = {user: Inbox(user).chats() for user in PEOPLE}
            listed = {user: replace(found[0], cursor="") for user, found in summaries.items() if found}
            summarized = chat.summaries_for(PEOPLE)
            assert {user: replace(one, cursor="") for user, one in summarized.items()} == listed

    def test_nobody_is_a_member(self) -> None:
        chat = Chat.create("ann", [], "One")
        assert chat.changes_for(["bob", "cat"], after=0) == chat.summaries_for(["bob", "cat"]) == {}
        with pytest.raises(ChatNotFound):
            Chat("none").changes_for(["ann"], after=0)
        assert Chat("none").summaries_for(["ann"]) == {}
