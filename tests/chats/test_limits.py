"""How many messages a chat keeps: until all have acked, then keep_last; limits of length, age and size."""

import time
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, LimitExceeded

from ..support.server import bodies, change, ids, keys, said, server, server_ms, snapshot, until


def stored(chat: Chat) -> int:
    """The number of stored messages."""
    return int(server().llen(keys(chat).log))


def aged(chat: Chat, seconds: float) -> None:
    """Wait until the newest message is older than `seconds`, by the server's clock."""
    newest = chat.info().active_at.timestamp() * 1000
    until(lambda: server_ms() > newest + seconds * 1000 + 1)


@pytest.mark.parametrize("keep_last", [0, 1, 3])
def test_keep_last_remains_after_all_have_acked(keep_last: int) -> None:
    chat = Chat.create("ann", ["bob", "cat"], keep_last=keep_last)
    said(chat, "ann", *"12345678")
    chat.ack("bob", 8)
    chat.ack("cat", 2)
    assert ids(chat.history("cat", after=2)) == [3, 4, 5, 6, 7, 8]
    assert stored(chat) == 6
    chat.ack("cat", 8)
    assert ids(chat.history("cat")) == list(range(9 - keep_last, 9))
    assert (stored(chat), chat.info().first_id, chat.info().last_id) == (keep_last, 9 - keep_last, 8)
    assert chat.send("ann", "9").id == 9
    assert bodies(chat.history("cat", after=8)) == ["9"]


def test_single_member_with_keep_last_0_keeps_nothing() -> None:
    chat = Chat.create("ann", [], keep_last=0)
    for number in (1, 2, 3):
        assert chat.send("ann", "x").id == number
        assert stored(chat) == 0
    assert Inbox("ann").pending() == []


def test_single_member_keeps_about_keep_last() -> None:
    chat = Chat.create("ann", [], keep_last=32)
    said(chat, "ann", *"x" * 100)
    assert 32 <= stored(chat) <= 34
    chat = Chat.create("ann", [], keep_last=3)
    said(chat, "ann", *"x" * 10)
    assert stored(chat) == 3


def test_the_default_is_a_setting(settings: Settings) -> None:
    change(settings, CHAT_KEEP_LAST=2)
    chat = Chat.create("ann", ["bob"])
    change(settings, CHAT_KEEP_LAST=100)
    said(chat, "ann", *"12345")
    chat.ack("bob", 5)
    assert bodies(chat.history("bob")) == ["4", "5"]


def test_reading_trimmed_messages_reports_a_gap() -> None:
    chat = Chat.create("ann", ["bob"], keep_last=2)
    said(chat, "ann", *"12345")
    chat.ack("bob", 5)
    page = chat.history("bob", after=1)
    assert (bodies(page), page.gap) == (["4", "5"], 2)
    assert chat.history("bob").gap == 3


def test_former_member_does_not_block_trimming() -> None:
    chat = Chat.create("ann", ["bob", "cat"], keep_last=1)
    said(chat, "ann", *"12345")
    chat.ack("cat", 5)
    assert stored(chat) == 5
    chat.leave("bob", by="ann")
    assert stored(chat) == 1


def test_new_member_does_not_block_trimming_older_messages() -> None:
    chat = Chat.create("ann", ["bob"], keep_last=0)
    said(chat, "ann", *"123")
    chat.join("cat", by="ann")
    chat.ack("bob", 3)
    assert stored(chat) == 0


def test_acking_with_pending_also_trims() -> None:
    chat = Chat.create("ann", ["bob"], keep_last=0)
    said(chat, "ann", *"123")
    assert [ids(news) for news in Inbox("bob").pending(ack=True, limit=2)] == [[1, 2]]
    assert stored(chat) == 1
    Inbox("bob").pending(ack=True)
    assert stored(chat) == 0


# length


def test_length_limit_on_write(settings: Settings) -> None:
    change(settings, CHAT_MAX_LENGTH=3)
    chat = Chat.create("ann", ["bob"])
    for number in range(1, 8):
        assert chat.send("ann", str(number)).id == number
        assert stored(chat) == min(number, 3)
    (news,) = Inbox("bob").pending()
    assert (ids(news), news.gap, news.has_more, news.reset) == ([5, 6, 7], 4, False, False)
    assert (Inbox("bob").unread(), Inbox("bob").chats()[0].unread) == (3, 3)
    assert ids(chat.history("bob")) == [5, 6, 7]


LOOKS: list[Any] = [
    lambda chat: chat.history("bob"),
    lambda chat: Inbox("bob").pending(),
    lambda chat: Inbox("bob").unread(),
    lambda chat: Inbox("bob").chats(),
]


@pytest.mark.parametrize("look", LOOKS)
def test_lowered_length_limit_applies_to_reads(look: Any, settings: Settings) -> None:
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", *"1234567")
    change(settings, CHAT_MAX_LENGTH=3)
    look(chat)
    assert stored(chat) == 3


def test_own_removed_messages_are_not_subtracted_from_unread(settings: Settings) -> None:
    chat = Chat.create("ann", ["bob"])
    for sender in ("ann", "bob", "bob", "ann", "bob", "ann"):
        chat.send(sender, "x")
    assert Inbox("bob").unread() == 3
    change(settings, CHAT_MAX_LENGTH=3)
    assert Inbox("bob").unread() == 2
    chat.ack("bob", 4)
    assert Inbox("bob").unread() == 1


@pytest.mark.worlds
def test_many_messages_are_removed_in_steps(settings: Settings) -> None:
    """Freeing thousands of large messages at once would delay other clients."""
    chat = Chat.create("ann", ["bob"], keep_last=0)
    said(chat, "ann", *map(str, range(1, 1203)))
    change(settings, CHAT_MAX_LENGTH=3)
    for left in (702, 202, 3):
        assert bodies(chat.history("bob")) == ["1200", "1201", "1202"]
        assert stored(chat) == left
    change(settings, CHAT_MAX_LENGTH=1)
    (news,) = Inbox("bob").pending()
    assert (bodies(news), news.gap, chat.info().first_id) == (["1202"], 1201, 1202)
    chat.ack("bob", 1202)
    assert stored(chat) == 0


def test_many_acked_messages_are_removed_in_steps() -> None:
    chat = Chat.create("ann", ["bob"], keep_last=1)
    said(chat, "ann", *map(str, range(1, 1203)))
    chat.ack("bob", 1202)
    assert (stored(chat), chat.info().first_id) == (702, 1202)
    assert bodies(chat.history("bob", after=0)) == bodies(chat.history("bob")) == ["1202"]
    assert stored(chat) == 1


def test_own_messages_of_who_never_reads_are_forgotten_with_them(settings: Settings) -> None:
    change(settings, CHAT_MAX_LENGTH=30)
    chat = Chat.create("ann", ["bob", "cat"], "one")
    for _ in range(150):
        chat.send("bob", "x")
        chat.send("cat", "y")
    assert server().zcard(keys(chat).own) <= 50
    assert (Inbox("ann").unread(), Inbox("bob").unread(), Inbox("cat").unread()) == (30, 15, 15)


# bytes


def stored_bytes(chat: Chat) -> int:
    """The bytes of the stored entries, without their offsets and sizes."""
    return sum(len(entry.rsplit(b",", 2)[0]) for entry in server().lrange(keys(chat).log, 0, -1))


def test_a_chat_is_limited_in_bytes(settings: Settings) -> None:
    change(settings, CHAT_MAX_BYTES=5000)
    chat = Chat.create("ann", ["bob"])
    for number in range(1, 21):
        chat.send("ann", f"{number:01000}")
        assert stored_bytes(chat) <= 5000
        assert stored(chat) == min(number, 4)
    (news,) = Inbox("bob").pending()
    assert (ids(news), news.gap, news.has_more, news.reset) == ([17, 18, 19, 20], 16, False, False)
    assert (chat.info().first_id, Inbox("bob").unread(), Inbox("bob").chats()[0].unread) == (17, 4, 4)
    said(chat, "ann", *"abc")
    assert stored_bytes(chat) <= 5000
    assert [ids(chat.history("bob")), stored(chat)] == [[17, 18, 19, 20, 21, 22, 23], 7]


@pytest.mark.parametrize("look", LOOKS[:2])
def test_lowered_limit_of_bytes_applies_to_reads(look: Any, settings: Settings) -> None:
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", *(f"{number:0100}" for number in range(700)))
    change(settings, CHAT_MAX_BYTES=2000)
    look(chat)
    assert stored(chat) == 200
    look(chat)
    assert 1500 < stored_bytes(chat) <= 2000
    assert chat.history("bob", after=0).gap == 700 - stored(chat)
    change(settings, CHAT_MAX_BYTES=1)
    look(chat)
    assert ids(chat.history("bob")) == [700]


def test_edits_cannot_exceed_the_limit_of_bytes(settings: Settings) -> None:
    change(settings, CHAT_MAX_BYTES=5000)
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", *"12345678")
    for number in range(1, 9):
        chat.edit("ann", number, str(number) * 1000)
        assert stored_bytes(chat) <= 5000
    assert chat.history("bob", after=0).gap == 8 - stored(chat)


def test_repeated_edits_of_a_message_remove_no_others(settings: Settings) -> None:
    change(settings, CHAT_MAX_BYTES=5000)
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", *"1234")
    for _ in range(10):
        chat.edit("ann", 3, "x" * 1000)
        chat.edit("ann", 3, "x")
    chat.delete_message("ann", 3)
    assert ids(chat.history("bob")) == [1, 2, 3, 4]
    chat.send("ann", "x" * 3000, data={"a": 1})
    assert (
        chat.edit(
            "ann",
            4,
            "four",
        )
        is not None
    )
    assert bodies(chat.history("bob", after=1))[1:3] == ["", "four"]
    assert chat.history("bob").messages[-1].data == {"a": 1}


def test_a_message_may_have_its_bytes_whatever_its_characters() -> None:
    chat = Chat.create("ann", ["bob"])
    for body in ("'" * 65536, '"' * 65536, "\\" * 65536, "\n" * 65536, "é" * 32768):
        assert chat.send("ann", body).body == chat.history("bob").messages[-1].body == body
    data = "x" * (65536 - 2)
    assert chat.send("ann", "", data=data).data == data
    assert chat.send("ann", "x" * 65536, reply_to=1).reply_to == 1
    for body, added in (("\x01" * 65536, None), ("é" * 32769, None), ("x", data)):
        with pytest.raises(LimitExceeded, match="MESSAGE_MAX_BYTES"):
            chat.send("ann", body, data=added)
    with pytest.raises(LimitExceeded, match="control characters"):
        chat.edit("ann", 1, "\x01" * 65536)


def test_answers_are_limited_in_bytes() -> None:
    chat = Chat.create("ann", ["bob"])
    sizes = [20_000 if number % 7 else 65_000 for number in range(1, 41)]
    for size in sizes:
        chat.send("ann", "x" * size)
    everything = list(range(1, 41))

    def checked(page: Any, at_least: int) -> list[int]:
        found = ids(page)
        assert sum(sizes[number - 1] for number in found) <= 256 * 1024 and len(found) >= at_least
        return found

    seen: list[int] = []
    while (page := chat.history("bob", after=seen[-1] if seen else 0, limit=100)).messages:
        seen += checked(page, 6 if page.has_more else 1)
    assert seen == everything
    seen = []
    while not seen or page.has_more:
        page = chat.history("bob", before=seen[0] if seen else None, limit=100)
        seen = checked(page, 6 if page.has_more else 1) + seen
    assert (seen, page.gap) == (everything, 0)
    seen = []
    while pending := Inbox("bob").pending(ack=True):
        seen += checked(pending[0], 1)
    assert seen == everything


@pytest.mark.worlds
def test_gaps_are_reported_if_many_chats_are_read_and_acked(settings: Settings) -> None:
    """A chat for which no bytes were left is read again: its gap must not be acked meanwhile."""
    change(settings, CHAT_MAX_LENGTH=3)
    for number in range(30):
        said(Chat.create("ann", ["bob"], chat_id=f"{number}"), "ann", *["x" * 65_000] * 5)
    pending = Inbox("bob").pending(ack=True)
    assert sorted(int(news.chat_id) for news in pending) == list(range(30))
    assert {(news.gap, *ids(news)) for news in pending} == {(2, 3, 4, 5)}
    assert Inbox("bob").pending() == []


def test_pending_of_many_chats_is_limited_in_bytes() -> None:
    for number in range(30):
        said(Chat.create("ann", ["bob"], chat_id=f"{number}"), "ann", *["x" * 60_000] * 4)
    pending = Inbox("bob").pending()
    assert sorted(int(news.chat_id) for news in pending) == list(range(30))
    assert all(ids(news) == [1, 2, 3, 4] and not news.has_more for news in pending)


# age


@pytest.mark.timing
def test_age_limit_on_write(settings: Settings) -> None:
    change(settings, CHAT_MAX_AGE=0.3)
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", "1", "2", "3")
    aged(chat, 0.3)
    chat.send("ann", "4")
    assert stored(chat) == 1
    change(settings, CHAT_MAX_AGE=None)
    (news,) = Inbox("bob").pending()
    assert (ids(news), news.gap) == ([4], 3)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.timing
def test_age_limit_on_read(look: Any, settings: Settings) -> None:
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", "1", "2", "3")
    aged(chat, 0.3)
    began = time.monotonic()
    said(chat, "ann", "4", "5")
    change(settings, CHAT_MAX_AGE=0.3)
    look(chat)
    held = stored(chat)
    assert held == 2 or time.monotonic() - began > 0.2
    assert held <= 2


def test_acking_ends_the_gap_if_all_messages_expired(settings: Settings) -> None:
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", "1", "2", "3")
    change(settings, CHAT_MAX_AGE=0.05)
    aged(chat, 0.05)
    assert Inbox("bob").unread() == 0
    (news,) = Inbox("bob").pending()
    assert (news.messages, news.gap, news.has_more, news.reset) == ([], 3, False, False)
    page = chat.history("bob", after=0)
    assert (page.messages, page.gap, page.has_more) == ([], 3, False)
    assert stored(chat) == 0
    assert chat.ack("bob", 3) == 3
    assert Inbox("bob").pending() == []


def test_expired_messages_are_gone_for_every_operation(settings: Settings) -> None:
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", "1", "2")
    change(settings, CHAT_MAX_AGE=0.05)
    aged(chat, 0.05)
    assert chat.info().first_id == 3
    assert chat.edit("ann", 2, "again") is None
    assert chat.delete_message("ann", 2) is None
    assert Inbox("bob").chats()[0].last_message is None


def test_the_messages_of_an_idle_chat_expire(settings: Settings) -> None:
    change(settings, CHAT_MAX_AGE=0.2)
    chat = Chat.create("ann", ["bob"], "text")
    until(lambda: not server().exists(keys(chat).log))
    chat.send("ann", "text")
    until(lambda: not server().exists(keys(chat).log))
    page = chat.history("bob", after=0)
    assert (page.messages, page.gap, chat.info().last_id) == ([], 2, 2)
    change(settings, CHAT_MAX_AGE=60)
    chat.send("ann", "3")
    assert 59_000 < server().pttl(keys(chat).log) <= 60_001
    change(settings, CHAT_MAX_AGE=None)
    chat.send("ann", "4")
    assert server().pttl(keys(chat).log) == -1
    assert ids(chat.history("bob")) == [3, 4]


def test_pending_with_ack_reports_expired_messages_once(settings: Settings) -> None:
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", "1", "2", "3")
    change(settings, CHAT_MAX_AGE=0.05)
    aged(chat, 0.05)
    assert [news.gap for news in Inbox("bob").pending(ack=True)] == [3]
    assert Inbox("bob").pending(ack=True) == []


# size


def test_body_over_the_limit(settings: Settings) -> None:
    change(settings, MESSAGE_MAX_BYTES=10, TITLE_MAX_BYTES=5)
    chat = Chat.create("ann", ["bob"], "1234567890", title="12345")
    before = snapshot()
    sized: list[tuple[Any, int, int]] = [
        (lambda: chat.send("ann", "12345678901"), 10, 11),
        (lambda: chat.send("ann", "é" * 6), 10, 12),
        (lambda: chat.edit("ann", 1, "x" * 99), 10, 99),
        (lambda: Chat.create("ann", [], "x" * 11), 10, 11),
        (lambda: chat.rename("ann", "123456"), 5, 6),
        (lambda: Chat.create("ann", [], title="ééé"), 5, 6),
    ]
    for operation, limit, actual in sized:
        with pytest.raises(LimitExceeded) as caught:
            operation()
        assert (caught.value.limit, caught.value.actual) == (limit, actual)
    with pytest.raises(LimitExceeded) as caught:
        chat.send("ann", "a", data="b" * 8)
    assert caught.value.limit == 10
    assert caught.value.actual > 10
    assert snapshot() == before
    assert chat.send("ann", "é" * 5).id == 2


def test_message_of_maximum_size() -> None:
    chat = Chat.create("ann", ["bob"], "x" * 65536)
    chat.send("ann", "", data="é" * 30000)
    assert [len(body) for body in bodies(chat.history("bob"))] == [65536, 0]
