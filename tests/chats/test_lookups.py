"""Messages by id, the search, and what a reader learns about itself."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime, timedelta

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, InvalidArgument, NotAMember
from django_redis_messaging.services.common import arguments


@pytest.fixture
def chat() -> Chat:
    """A chat of three members in which the first has sent five messages."""
    chat = Chat.create("ann", ["bob", "cat"], chat_id="lookups")
    for text in ("Pizza", "Straße", "pasta", "salad", "Pizza again"):
        chat.send("ann", text)
    return chat


class TestGetMessages:
    def test_returns_visible_messages_in_order(self, chat: Chat) -> None:
        assert [one.body for one in chat.get_messages("bob", [5, 1, 5, 9])] == ["Pizza", "Pizza again"]

    def test_leaves_out_what_was_sent_before_joining(self, chat: Chat) -> None:
        chat.join("dan", by="ann")
        chat.send("ann", "Welcome")
        assert [one.id for one in chat.get_messages("dan", range(1, 10))] == [6]

    def test_leaves_out_removed_messages(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "CHAT_MAX_LENGTH": 2}
        chat = Chat.create("ann", ["bob"])
        for number in range(4):
            chat.send("ann", str(number))
        assert [one.id for one in chat.get_messages("bob", [1, 2, 3, 4])] == [3, 4]

    def test_is_bounded_in_bytes(self, settings: Settings) -> None:
        chat = Chat.create("ann", ["bob"])
        for _ in range(5):
            chat.send("ann", "x" * 60_000)
        assert [one.id for one in chat.get_messages("bob", range(1, 6))] == [1, 2, 3, 4]

    def test_refuses_too_many_ids_and_outsiders(self, chat: Chat) -> None:
        with pytest.raises(ValueError, match="at most 50 items, not 51"):
            chat.get_messages("bob", range(1, 52))
        with pytest.raises(NotAMember):
            chat.get_messages("eve", [1])

    async def test_async(self, chat: Chat) -> None:
        assert [one.id for one in await chat.aget_messages("bob", [2])] == [2]


class TestSearch:
    def test_finds_folded_texts_newest_first(self, chat: Chat) -> None:
        found = chat.search("bob", "PIZZA")
        assert ([one.id for one in found.messages], found.complete) == ([5, 1], True)
        assert [one.id for one in chat.search("bob", "strasse").messages] == [2]

    def test_continues_where_it_ended(self, chat: Chat) -> None:
        first = chat.search("bob", "a", limit=2)
        assert ([one.id for one in first.messages], first.complete) == ([5, 4], False)
        rest = chat.search("bob", "a", before=first.before, limit=5)
        assert ([one.id for one in rest.messages], rest.complete) == ([3, 2, 1], True)

    def test_leaves_out_deleted_and_invisible_messages(self, chat: Chat) -> None:
        chat.delete_message("ann", 1)
        chat.join("dan", by="ann")
        assert [one.id for one in chat.search("bob", "pizza").messages] == [5]
        assert chat.search("dan", "pizza").messages == []

    def test_a_call_reads_a_bounded_number_of_messages(self, chat: Chat) -> None:
        for _ in range(600):
            chat.send("ann", "other")
        first = chat.search("bob", "salad")
        assert (first.messages, first.before, first.complete) == ([], 106, False)
        rest = chat.search("bob", "salad", before=first.before)
        assert ([one.id for one in rest.messages], rest.complete) == ([4], True)

    def test_refuses_an_empty_text(self, chat: Chat) -> None:
        with pytest.raises(ValueError, match="empty"):
            chat.search("bob", "")

    async def test_async(self, chat: Chat) -> None:
        assert [one.id for one in (await chat.asearch("bob", "pasta")).messages] == [3]


class TestReaderInChanges:
    def test_position_and_unread(self, chat: Chat) -> None:
        chat.ack("bob", 2)
        chat.send("bob", "mine")
        changes = chat.changes("bob", after=6)
        assert (changes.read_id, changes.unread, changes.oldest_id, changes.removed) == (2, 3, 1, 0)
        own = chat.changes("ann", after=6)
        assert (own.read_id, own.unread) == (5, 1)

    def test_removed_messages(self, settings: Settings) -> None:
        settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "CHAT_MAX_LENGTH": 2}
        chat = Chat.create("ann", ["bob"], "before")
        chat.join("dan", by="ann")
        for number in range(4):
            chat.send("ann", str(number))
        changes = chat.changes("dan", after=0)
        assert (changes.oldest_id, changes.removed, changes.unread) == (4, 2, 2)

    def test_mute_of_the_reader(self, chat: Chat) -> None:
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=8)
        chat.mute("bob", until)
        assert chat.changes("bob", after=0).muted_until == until
        assert chat.changes("cat", after=0).muted_until is None
        chat.mute("bob", datetime.now(UTC) - timedelta(seconds=1))
        assert chat.changes("bob", after=0).muted_until is None

    def test_mute_until_a_moment_that_cannot_be_read_back(self, chat: Chat) -> None:
        with pytest.raises(InvalidArgument, match="until must be between"):
            chat.mute("bob", datetime.max.replace(tzinfo=UTC))
        chat.mute("bob", arguments.MAX_MOMENT)
        assert chat.changes("bob", after=0).muted_until == arguments.MAX_MOMENT

    def test_typists_without_the_reader(self, chat: Chat) -> None:
        chat.typing("bob")
        chat.typing("cat")
        assert chat.changes("bob", after=0).typists == ["cat"]
        assert set(chat.changes("ann", after=0).typists) == {"bob", "cat"}


def test_the_nonce_is_that_of_the_request_id(chat: Chat) -> None:
    sent = chat.send("bob", "Once", request_id="0123")
    assert sent.nonce == zlib.crc32(b"0123")
    assert chat.history("cat").messages[-1].nonce == sent.nonce
