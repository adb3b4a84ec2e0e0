"""Reading pages of a chat and acking: directions, gaps, cursors of missing messages."""

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, ChatNotFound, Inbox, NotAMember

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
    until,
)


@pytest.fixture
def ten() -> Chat:
    """A chat of ann and bob with ten messages."""
    chat = Chat.create("ann", ["bob"], chat_id="ten")
    said(chat, "ann", *(f"m{number}" for number in range(1, 11)))
    return chat


@pytest.mark.parametrize(
    ("after", "before", "found", "more"),
    [
        (None, None, [8, 9, 10], True),
        (0, None, [1, 2, 3], True),
        (4, None, [5, 6, 7], True),
        (7, None, [8, 9, 10], False),
        (9, None, [10], False),
        (10, None, [], False),
        (99, None, [], False),
        (None, 11, [8, 9, 10], True),
        (None, 99, [8, 9, 10], True),
        (None, 5, [2, 3, 4], True),
        (None, 4, [1, 2, 3], False),
        (None, 2, [1], False),
        (None, 1, [], False),
        (None, 0, [], False),
    ],
)
def test_pages(ten: Chat, after: int | None, before: int | None, found: list[int], more: bool) -> None:
    before_all = snapshot()
    for by_cursor in (False, True):
        places = {"after": after, "before": before}
        if by_cursor:
            cursors = {message.id: message.cursor for message in ten.history("bob").messages}
            places = {key: cursors.get(place, place) for key, place in places.items()}  # type: ignore[arg-type,misc]
        page = ten.history("bob", limit=3, **places)
        assert (ids(page), page.has_more, page.gap, page.reset) == (found, more, 0, False)
    assert snapshot() == before_all


def test_consecutive_pages_contain_all_messages(ten: Chat) -> None:
    for limit in (1, 3, 10, 1000):
        place: str | int = 0
        seen: list[int] = []
        for _ in range(11):
            page = ten.history("bob", after=place, limit=limit)
            seen += ids(page)
            if not page.has_more:
                break
            place = page.messages[-1].cursor
        assert seen == list(range(1, 11))


def test_page_of_a_thousand() -> None:
    chat = Chat.create("ann", ["bob"])
    said(chat, "ann", *"x" * 1001)
    page = chat.history("bob", after=0, limit=1000)
    assert (len(page.messages), page.has_more) == (1000, True)
    assert [len(news.messages) for news in Inbox("bob").pending(limit=1000)] == [1000]


def test_every_page_at_the_gap_reports_it(ten: Chat, settings: Settings) -> None:
    change(settings, CHAT_MAX_LENGTH=4)
    told = {
        "newest": ten.history("bob"),
        "part": ten.history("bob", limit=2),
        "beginning": ten.history("bob", after=0, limit=2),
        "within": ten.history("bob", after=4),
        "border": ten.history("bob", after=6),
        "beyond": ten.history("bob", after=8),
        "back": ten.history("bob", before=9),
    }
    assert {name: (ids(page), page.gap) for name, page in told.items()} == {
        "newest": ([7, 8, 9, 10], 6),
        "part": ([9, 10], 0),
        "beginning": ([7, 8], 6),
        "within": ([7, 8, 9, 10], 2),
        "border": ([7, 8, 9, 10], 0),
        "beyond": ([9, 10], 0),
        "back": ([7, 8], 6),
    }
    assert not any(page.reset for page in told.values())


def test_after_and_before_exclude_each_other(ten: Chat) -> None:
    with pytest.raises(ValueError, match="one direction"):
        ten.history("bob", after=1, before=3)


# ack


def test_position_never_moves_back(ten: Chat) -> None:
    cursors = {message.id: message.cursor for message in ten.history("bob").messages}
    assert [ten.ack("bob", place) for place in (3, cursors[5], 4, cursors[1], cursors[5], 0)] == [
        3,
        5,
        5,
        5,
        5,
        5,
    ]
    assert Inbox("bob").unread() == 5
    assert [one.read_id for one in ten.members()] == [10, 5]


def test_ack_above_the_newest_acks_the_newest(ten: Chat) -> None:
    assert ten.ack("bob", 2**52) == 10
    ten.send("ann", "m11")
    assert Inbox("bob").unread() == 1


def test_ack_of_a_message_removed_by_a_limit(ten: Chat, settings: Settings) -> None:
    third = ten.history("bob", after=2, limit=1).messages[0].cursor
    change(settings, CHAT_MAX_LENGTH=4)
    ten.send("ann", "m11")
    assert ten.ack("bob", third) == 3
    (news,) = Inbox("bob").pending()
    assert (ids(news), news.gap, news.reset) == ([8, 9, 10, 11], 4, False)


@pytest.mark.parametrize(
    "place",
    ["", "1", "1-2", "1-2-3-4", "x-1-2", "1-2-" + 22 * "3", "1--2", "-1-2-3", "1-2-٣", "1-2-3\n", "A-1-2"],
)
def test_invalid_cursor(ten: Chat, place: str) -> None:
    before = snapshot()
    for refused in (
        lambda: ten.ack("bob", place),
        lambda: ten.history("bob", after=place),
        lambda: ten.history("bob", before=place),
    ):
        with pytest.raises(ValueError, match="not a cursor"):
            refused()
    assert snapshot() == before


@pytest.mark.parametrize("place", [-1, -(2**70), 2**70])
def test_invalid_position(ten: Chat, place: int) -> None:
    for refused in (
        lambda: ten.ack("bob", place),
        lambda: ten.history("bob", after=place),
        lambda: ten.history("bob", before=place),
    ):
        with pytest.raises(ValueError, match=str(place)):
            refused()


# cursors of missing messages: the chat was created anew, or Redis lost data


def test_cursor_from_before_recreation_resets_reading(ten: Chat) -> None:
    old = ten.history("bob").messages[4].cursor
    ten.delete("ann")
    again = Chat.create("ann", ["bob"], "n1", chat_id="ten")
    said(again, "ann", *(f"n{number}" for number in range(2, 8)))
    assert again.ack("bob", 2) == 2
    before = snapshot()
    assert again.ack("bob", old) == 2
    for page in (again.history("bob", after=old, limit=3), again.history("bob", before=old, limit=3)):
        assert (bodies(page), page.gap, page.has_more, page.reset) == (["n3", "n4", "n5"], 0, True, True)
    assert snapshot() == before


def test_cursor_from_before_recreation_resets_reading_above_the_newest(ten: Chat, settings: Settings) -> None:
    old = ten.history("bob").messages[4].cursor
    ten.delete("ann")
    again = Chat.create("ann", ["bob"], chat_id="ten")
    change(settings, CHAT_MAX_LENGTH=2)
    said(again, "ann", *"12345678")
    assert again.ack("bob", old) == 0
    page = again.history("bob", after=old)
    assert (ids(page), page.gap, page.reset) == ([7, 8], 6, True)


def test_cursor_of_another_chat_moves_nothing(ten: Chat) -> None:
    other = Chat.create("ann", ["bob"], "x").history("bob").messages[0].cursor
    assert ten.ack("bob", other) == 0
    assert ten.history("bob", after=other).reset is True


def test_cursor_of_lost_messages_resets_reading(ten: Chat) -> None:
    ten.ack("bob", 3)
    copy = copied(ten)
    lost = ten.send("ann", "lost")
    rolled_back(ten, copy)
    assert ten.ack("bob", lost.cursor) == 3
    page = ten.history("bob", after=lost.cursor)
    assert (ids(page), page.reset) == ([4, 5, 6, 7, 8, 9, 10], True)

    until(lambda: server_ms() > lost.sent_at.timestamp() * 1000 + 1)
    assert ten.send("ann", "instead").id == lost.id
    assert ten.ack("bob", lost.cursor) == 3
    page = ten.history("bob", after=lost.cursor, limit=2)
    assert (ids(page), page.has_more, page.reset) == ([4, 5], True, True)
    kept = page.messages[0].cursor
    assert (ten.ack("bob", kept), ten.history("bob", after=kept).reset) == (4, False)


@pytest.mark.parametrize("limit", [2, 5])
def test_cursor_of_an_empty_page_detects_lost_messages(limit: int) -> None:
    """A client that polls with the cursor of its last page, and the last page of which was empty."""
    chat = create_chat("polled", *"12345")
    copy = copied(chat)
    chat.send("ann", "lost")
    page = chat.history("bob")
    while page.messages:
        page = chat.history("bob", after=page.cursor, limit=limit)
    assert page.cursor == chat.history("bob").cursor
    rolled_back(chat, copy)
    chat.send("ann", "instead")
    assert chat.ack("bob", page.cursor) == 0
    again = chat.history("bob", after=page.cursor)
    assert (bodies(again), again.reset) == ([*"12345", "instead"], True)


def test_messages_of_the_same_time_have_different_cursors(ten: Chat) -> None:
    """The clock was set back, so that another message got the id and the time of a lost one."""
    copy = copied(ten)
    lost = ten.send("ann", "lost")
    rolled_back(ten, copy)
    ten.send("ann", "instead")
    ms = round(lost.sent_at.timestamp() * 1000)
    entry = server().lindex(keys(ten).log, -1).split(b",", 1)[1]
    server().lset(keys(ten).log, -1, b"[%d,%b" % (ms, entry))
    _, _, rest = server().get(keys(ten).newest).split(b"-", 2)
    server().set(keys(ten).newest, b"%d-%d-%b" % (lost.id, ms, rest))
    [instead] = ten.history("bob", after=10).messages
    assert (instead.sent_at, instead.body) == (lost.sent_at, "instead")
    assert (ten.ack("bob", lost.cursor), ten.history("bob", after=lost.cursor).reset) == (0, True)
    ten.send("ann", "m12")
    assert (ten.ack("bob", lost.cursor), ten.history("bob", after=lost.cursor).reset) == (0, True)
    assert ten.ack("bob", instead.cursor) == 11


def test_cursor_of_a_removed_message_must_be_older_than_the_kept_ones(settings: Settings) -> None:
    change(settings, CHAT_MAX_LENGTH=2)
    chat = create_chat("short", "1", "2")
    removed = chat.history("bob").messages[0].cursor
    said(chat, "ann", "3", "4")
    until(lambda: server_ms() > chat.info().active_at.timestamp() * 1000 + 1)
    chat.send("ann", "5")
    epoch, _, stamp = chat.history("bob").cursor.split("-")
    page = chat.history("bob", after=removed)
    assert (ids(page), page.gap, page.reset) == ([4, 5], 2, False)
    impossible = f"{epoch}-1-{stamp}"
    assert chat.history("bob", after=impossible).reset is True
    assert (chat.ack("bob", impossible), chat.ack("bob", removed)) == (0, 1)


def test_a_reset_is_reported_once_for_all_pages(ten: Chat) -> None:
    """It is reported again at the same position, since the page may not have arrived; never after its ack."""
    ten.ack("bob", 3)
    copy = copied(ten)
    ten.ack("bob", 10)
    assert Inbox("bob").pending() == []
    rolled_back(ten, copy)
    ten.send("ann", "m11")
    told = []
    while pages := Inbox("bob").pending(limit=3):
        assert Inbox("bob").unread() == 11 - ten.members()[1].read_id
        assert Inbox("bob").pending(limit=3) == pages
        told += [(ids(news), news.reset) for news in pages]
        ten.ack("bob", pages[0].cursor)
    assert told == [([4, 5, 6], True), ([7, 8, 9], False), ([10, 11], False)]


def test_pending_reports_lost_messages_that_the_member_replaced(ten: Chat) -> None:
    ten.ack("bob", 10)
    copy = copied(ten)
    said(ten, "ann", "lost", "lost")
    ten.ack("bob", 12)
    assert Inbox("bob").pending() == []
    rolled_back(ten, copy)
    said(ten, "bob", "mine", "and mine")
    assert Inbox("bob").unread() == 0
    assert [(ids(news), news.reset) for news in Inbox("bob").pending()] == [([], True)]
    assert Inbox("bob").pending() == []


def test_pending_reports_a_lost_ack(ten: Chat) -> None:
    ten.ack("bob", 6)
    copy = copied(ten)
    ten.ack("bob", 10)
    assert Inbox("bob").pending() == []
    rolled_back(ten, copy)
    ten.send("ann", "m11")
    (news,) = Inbox("bob").pending()
    assert (ids(news), news.gap, news.reset) == ([7, 8, 9, 10, 11], 0, True)
    ten.ack("bob", 11)
    assert Inbox("bob").pending() == []
    ten.send("ann", "m12")
    assert [(ids(news), news.reset) for news in Inbox("bob").pending()] == [([12], False)]


def test_only_members_can_read_and_ack(ten: Chat) -> None:
    for user in ("cat", "Bob", "bob "):
        with pytest.raises(NotAMember, match="ten"):
            ten.history(user)
        with pytest.raises(NotAMember, match="ten"):
            ten.ack(user, 1)
    ten.leave("bob")
    with pytest.raises(NotAMember):
        ten.history("bob")
    for unknown in (lambda: Chat("no").history("ann"), lambda: Chat("no").ack("ann", 1)):
        with pytest.raises(ChatNotFound, match="no"):
            unknown()


async def test_async_history_and_ack(ten: Chat) -> None:
    page = await ten.ahistory("bob", after=2, limit=3)
    assert (ids(page), page.has_more) == ([3, 4, 5], True)
    assert await ten.aack("bob", page.messages[-1].cursor) == 5
    assert ids(await ten.ahistory("bob", before=page.messages[0].cursor)) == [1, 2]
    with pytest.raises(NotAMember):
        await ten.ahistory("cat")
