"""What changed in a chat: new messages, edits, read positions, limits of an answer."""

import pytest
from pytest_django import Settings

from django_redis_messaging import Changes, Chat, ChatNotFound, Choices, Inbox, NotAMember

from ..support.server import change, keys, server, server_ms


@pytest.fixture
def chat() -> Chat:
    """A chat of ann (owner), bob and cat with three messages."""
    made = Chat.create("ann", ["bob", "cat"], "one", chat_id="changes", title="Trip")
    made.send("bob", "two")
    made.send("ann", "three")
    return made


def following(chat: Chat, known: Changes, user: str = "bob") -> Changes:
    return chat.changes(user, after=known.cursor, edits=known.edits, moved=known.moved)


def test_first_call_and_idle_call(chat: Chat) -> None:
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


def test_edited_messages_are_returned_once(chat: Chat) -> None:
    known = chat.changes("bob", after=2, edits=0)
    late = chat.changes("bob", after=1)
    edited, deleted = chat.edit("bob", 2, "zwei"), chat.delete_message("ann", 1)
    chat.edit("ann", 3, "drei")
    news = following(chat, known)
    assert [one.id for one in news.edited] == [2, 1, 3]
    assert (news.edited[:2], news.edit_numbers, news.edits) == ([edited, deleted], [1, 2, 3], 3)
    # A new message is returned once, as it is now.
    assert (late.messages[0].body, late.edited) == ("two", [])
    page = chat.changes("bob", after=1, edits=0)
    assert [one.body for one in page.messages] == ["zwei", "drei"]
    assert [one.id for one in page.edited] == [1]
    page = chat.changes("bob", after=1, edits=0, limit=1)
    assert ([one.id for one in page.messages], [one.id for one in page.edited], page.has_more) == (
        [2],
        [1],
        True,
    )
    assert following(chat, news).edited == []


def test_messages_that_a_member_may_not_see_are_left_out(chat: Chat) -> None:
    chat.join("dan", by="ann")
    known = chat.changes("dan", after=0)
    assert (known.messages, known.last_sender) == ([], "")
    chat.edit("bob", 2, "zwei")
    assert following(chat, known, "dan").edited == []


def test_who_joined_after_the_newest_message_has_not_read_it(chat: Chat) -> None:
    known = chat.changes("ann", after=0)
    assert known.newcomers == []
    chat.join("dan", by="ann")
    chat.ack("bob", 3)
    known = following(chat, known, "ann")
    assert (known.positions, known.newcomers) == ({"ann": 1, "bob": 3, "cat": 0, "dan": 3}, ["dan"])
    chat.ack("dan", chat.send("ann", "four").id)
    assert following(chat, known, "ann").newcomers == []
    empty = Chat.create("ann", ["bob"], chat_id="empty")
    assert empty.changes("ann", after=0).newcomers == []


def test_the_index_of_edits_is_capped_and_incomplete_answers_are_told(chat: Chat) -> None:
    for number in range(102):
        chat.send("bob", str(number))
    known = chat.changes("cat", after=105)
    for number in range(4, 104):
        chat.edit("bob", number, "x")
    for _ in range(3):
        chat.edit("bob", 103, "again")
    news = following(chat, known, "cat")
    assert (len(news.edited), news.edits, news.edits_missed) == (100, 103, False)
    assert [one.id for one in news.edited[-2:]] == [102, 103]
    chat.edit("bob", 104, "x")
    news = following(chat, known, "cat")
    assert (news.edited, news.edits, news.edits_missed) == ([], 104, True)
    assert len(chat.changes("cat", after=105, edits=1).edited) == 100
    assert chat.changes("cat", after=105, edits=105).edits_missed
    assert len(server().hget(keys(chat).info, "edited")) < 1000


def test_edits_of_a_chat_without_an_index_are_missed(chat: Chat) -> None:
    chat.edit("bob", 2, "zwei")
    server().hdel(keys(chat).info, "edited")
    assert chat.changes("cat", after=3, edits=0).edits_missed
    assert not chat.changes("cat", after=3, edits=1).edits_missed
    chat.edit("bob", 2, "deux")
    assert [one.body for one in chat.changes("cat", after=3, edits=1).edited] == ["deux"]


def test_positions_are_returned_when_something_of_them_changed(chat: Chat) -> None:
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


def test_an_idle_call_reads_no_positions(chat: Chat) -> None:
    """So that it costs the same for any number of members."""
    known = chat.changes("bob", after=0)
    for key in (keys(chat).standing, keys(chat).hidden):
        server().delete(key)
        server().set(key, "not a set")
    assert following(chat, known).moved == known.moved


def test_acks_while_reading_pending_messages_and_hiding_change_the_positions(chat: Chat) -> None:
    known = chat.changes("bob", after=0)
    Inbox("cat").pending(ack=True)
    acked = following(chat, known)
    assert (acked.positions["cat"], acked.moved == known.moved) == (3, False)
    Choices().choose("cat", receipts=False)
    hidden = following(chat, acked)
    assert ("cat" in hidden.positions, hidden.moved == acked.moved) == (False, False)


@pytest.mark.parametrize("case", ["hidden", "off"])
def test_what_is_hidden_changes_nothing(case: str, chat: Chat, settings: Settings) -> None:
    if case == "off":
        change(settings, READ_RECEIPTS=False)
    else:
        Choices().choose("cat", receipts=False)
    known = chat.changes("bob", after=0)
    chat.ack("cat", 2)
    assert following(chat, known) == known.__class__(
        **{**vars(known), "messages": [], "members": [], "positions": {}, "last_sender": ""}
    )


def test_no_part_of_lost_information_is_written(chat: Chat) -> None:
    server().delete(keys(chat).info)
    chat.ack("cat", 2)
    Choices().choose("cat", receipts=False)
    assert not server().exists(keys(chat).info)


def test_an_answer_is_bounded_in_bytes(chat: Chat, settings: Settings) -> None:
    for _ in range(5):
        chat.send("bob", "x" * 60_000)
    page = chat.changes("cat", after=3)
    assert ([one.id for one in page.messages], page.has_more) == ([4, 5, 6, 7], True)
    rest = following(chat, page, "cat")
    assert ([one.id for one in rest.messages], rest.has_more) == ([8], False)
    change(settings, MESSAGE_MAX_BYTES=400_000)
    chat.send("bob", "x" * 300_000)
    page = chat.changes("cat", after=8)
    assert ([one.id for one in page.messages], page.has_more) == ([9], False)


def test_names_and_positions_share_the_bytes_with_messages(chat: Chat) -> None:
    chat.add([f"{number:03}" + "x" * 250 for number in range(190)], by="ann")
    for _ in range(5):
        chat.send("bob", "x" * 60_000)
    page = chat.changes("cat", after=3)
    assert ([one.id for one in page.messages], page.has_more, len(page.members)) == ([4, 5, 6], True, 193)


def test_edited_entries_share_the_bytes_with_the_new_ones(chat: Chat) -> None:
    for _ in range(6):
        chat.send("bob", "x" * 10)
    known = chat.changes("cat", after=8, edits=0)
    for number in range(4, 9):
        chat.edit("bob", number, "y" * 60_000)
    known = chat.changes("cat", after=8, edits=0)
    assert [one.id for one in known.messages] == [9]
    assert ([one.id for one in known.edited], known.edits, known.has_more) == ([4, 5, 6, 7], 4, True)
    rest = following(chat, known, "cat")
    assert ([one.id for one in rest.edited], rest.edits, rest.has_more) == ([8], 5, False)


def test_who_has_stopped_typing_is_left_out(chat: Chat) -> None:
    chat.typing("ann")
    before_the_clock_was_set_back = server_ms() + 3_600_000
    server().zadd(keys(chat).typing, {"cat": server_ms() - 1, "dan": before_the_clock_was_set_back})
    assert chat.changes("bob", after=3).typists == chat.typists() == ["ann"]


def test_refusals_and_lost_data(chat: Chat) -> None:
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


def test_edits_are_recorded_on_a_full_server(chat: Chat) -> None:
    """A deletion works, and its record is complete."""
    memory = server().info("memory")["used_memory"]
    known = chat.changes("bob", after=3)
    server().config_set("maxmemory", max(memory // 2, 1))
    try:
        chat.delete_message("bob", 2)
        assert [one.deleted for one in following(chat, known).edited] == [True]
    finally:
        server().config_set("maxmemory", 0)


async def test_async_changes(chat: Chat) -> None:
    assert (await chat.achanges("bob", after=0)) == chat.changes("bob", after=0)
