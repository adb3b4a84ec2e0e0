"""The users' indexes of chats. In every order of the steps of joining, leaving, reading and repairing, the
index of a member contains the chat, and the index of a former member eventually does not."""

import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, ChatExists, Inbox, LimitExceeded, NotAMember, forget
from django_redis_messaging.services.users.forgetting import _UserRemoval

from ..support.server import change, crash_after, index, reply_to, said, server, steps

#: maximum number of steps of an operation; for FORGET, of the part that concerns chats
JOIN, LEAVE, LOOK, CREATE, FORGET = 3, 2, 4, 3, 3
#: an old entry whose token belongs to no membership
OLD_ENTRY = "feedfacefeedface 1 0"


def orders(*counts: int) -> list[tuple[int, ...]]:
    """All interleavings of the steps of several operations."""
    every = [who for who, count in enumerate(counts) for _ in range(count)]
    return sorted(set(itertools.permutations(every)))


def interleaved(order: tuple[int, ...], *operations: Iterator[Any]) -> None:
    """Run the operations' steps in this order, then the remaining steps of each."""
    replies: list[Any] = [None] * len(operations)
    over: set[int] = set()
    for who in (*order, *sorted(set(order)) * 9):
        if who in over:
            continue
        try:
            step = operations[who].send(replies[who])  # type: ignore[attr-defined]
        except (StopIteration, NotAMember, ChatExists):
            over.add(who)
        else:
            replies[who] = reply_to(step)
    assert over == set(order)


def interrupted(operation: Generator[Any, Any, Any], count: int) -> Generator[Any, Any, None]:
    """The first steps of an operation whose process crashes after them."""
    step = next(operation)
    for done in range(count):
        reply = yield step
        if done + 1 < count:
            step = operation.send(reply)


def is_member(chat: Chat, user: str) -> bool:
    return user in [one.user for one in chat.members()]


def finds(user: str, chat: Chat) -> bool:
    """Whether all reads of an inbox find the chat, which has pending messages; fails if only some do."""
    chat.send("ann", "news")
    seen = {
        chat.id in [summary.chat_id for summary in Inbox(user).chats()],
        chat.id in [news.chat_id for news in Inbox(user).pending()],
        Inbox(user).unread() > 0,
    }
    assert len(seen) == 1
    return seen.pop()


def settle(user: str, chat: Chat) -> None:
    """Check that a member finds the chat, also after the grace period, and that others have no entry then."""
    expected = is_member(chat, user)
    assert finds(user, chat) is expected
    grace_over(user)
    assert finds(user, chat) is expected
    assert server().exists(index(user)) == expected


def grace_over(user: str) -> None:
    """Make the user's entries so old that the next read repairs them."""
    for chat_id, entry in server().hgetall(index(user)).items():
        token, _, seen = entry.split(b" ")
        server().hset(index(user), chat_id, b" ".join([token, b"1", seen]))
    Inbox(user).chats()


@pytest.fixture
def chat() -> Chat:
    return Chat.create("ann", ["eve"], "one", chat_id="club", open=True)


@pytest.mark.parametrize("order", orders(JOIN, LEAVE), ids=str)
@pytest.mark.parametrize("before", ["a member", "not yet", "a ghost"])
def test_join_and_leave_in_every_order(before: str, order: tuple[int, ...], chat: Chat) -> None:
    begin(before, chat)
    interleaved(order, steps(chat.join, "bob"), steps(chat.leave, "bob"))
    settle("bob", chat)


def begin(before: str, chat: Chat) -> None:
    if before == "a member":
        chat.join("bob")
    elif before == "a ghost":
        server().hset(index("bob"), chat.id, OLD_ENTRY)


def test_leave_and_interrupted_join_in_every_order() -> None:
    for number, order in enumerate(orders(JOIN - 1, LEAVE)):
        chat = Chat.create("ann", ["bob"], "one", chat_id=f"club {number}", open=True)
        interleaved(order, interrupted(steps(chat.join, "bob"), JOIN - 1), steps(chat.leave, "bob"))
        assert finds("bob", chat) is is_member(chat, "bob"), order


LOOKS: dict[str, Callable[[], Any]] = {
    "pending": lambda: steps(Inbox("bob").pending),
    "chats": lambda: steps(Inbox("bob").chats),
    "unread": lambda: steps(Inbox("bob").unread),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("before", ["not yet", "a ghost", "left"])
def test_join_and_repair_in_every_order(before: str, look: str) -> None:
    for number, order in enumerate(orders(JOIN, LOOK)):
        chat = Chat.create("ann", [], "one", chat_id=f"club {number}", open=True)
        if before == "left":
            chat.join("bob")
            crash_after(chat.leave, 1, "bob")
        else:
            begin(before, chat)
        interleaved(order, steps(chat.join, "bob"), LOOKS[look]())
        assert is_member(chat, "bob")
        assert finds("bob", chat), order
        chat.leave("bob")


@pytest.mark.parametrize("look", LOOKS)
def test_leave_and_read_in_every_order(look: str) -> None:
    for number, order in enumerate(orders(LEAVE, LOOK)):
        chat = Chat.create("ann", ["bob"], "one", chat_id=f"club {number}")
        chat.ack("bob", 1)
        interleaved(order, steps(chat.leave, "bob"), LOOKS[look]())
        assert not finds("bob", chat), order
        assert not server().exists(index("bob")), order


@pytest.mark.parametrize("again", [False, True])
def test_leave_and_count_of_known_unread_messages_in_every_order(again: bool) -> None:
    """The count reads the chat in its first round trip, together with the index."""

    def leave(chat: Chat) -> Iterator[Any]:
        yield from steps(chat.leave, "bob")
        if again:
            yield from steps(chat.join, "bob")

    for number, order in enumerate(orders(LEAVE + JOIN * again, 1)):
        chat = Chat.create("ann", ["bob"], "one", chat_id=f"club {number}", open=True)
        assert Inbox("bob").unread() == 1
        interleaved(order, leave(chat), steps(Inbox("bob").unread))
        assert Inbox("bob").unread() == 0, order
        assert finds("bob", chat) is again, order
        chat.leave("bob")


@pytest.mark.parametrize("first", range(JOIN + 1))
def test_two_joins_and_a_leave_in_every_order(first: int) -> None:
    counts = (JOIN, JOIN, LEAVE)
    for number, order in enumerate(sorted(set(orders(*counts)))):
        if number % (JOIN + 1) != first:
            continue
        chat = Chat.create("ann", [], "one", chat_id=f"club {number}", open=True)
        interleaved(order, *(steps(chat.join, "bob") for _ in range(2)), steps(chat.leave, "bob"))
        assert finds("bob", chat) is is_member(chat, "bob"), order
        chat.leave("bob")
    grace_over("bob")
    assert not server().exists(index("bob"))


@pytest.mark.parametrize("order", orders(CREATE, LEAVE), ids=str)
def test_create_and_leave_in_every_order(order: tuple[int, ...]) -> None:
    chat = Chat("made")
    made = steps(chat._create, "ann", ["bob"], "one", "", False, None, "request")
    interleaved(order, made, steps(chat.leave, "bob"))
    settle("bob", chat)


@pytest.mark.parametrize("order", orders(CREATE, LOOK), ids=str)
def test_create_and_repair_in_every_order(order: tuple[int, ...]) -> None:
    server().hset(index("bob"), "made", OLD_ENTRY)
    chat = Chat("made")
    made = steps(chat._create, "ann", ["bob"], "one", "", False, None, "request")
    interleaved(order, made, steps(Inbox("bob").pending))
    assert finds("bob", chat)


@pytest.mark.parametrize("asked", range(JOIN + 1))
def test_a_crash_between_the_steps_of_joining(asked: int, chat: Chat) -> None:
    crash_after(chat.join, asked, "bob")
    settle("bob", chat)


@pytest.mark.parametrize("asked", range(LEAVE + 1))
def test_a_crash_between_the_steps_of_leaving(asked: int, chat: Chat) -> None:
    chat.join("bob")
    crash_after(chat.leave, asked, "bob")
    settle("bob", chat)


@pytest.mark.parametrize("refused", ["a taken id", "not open", "by a stranger", "by one who left"])
def test_refused_join_hides_no_chat_from_members_and_shows_none_to_others(refused: str) -> None:
    chat = Chat.create("ann", ["bob", "eve"], "one", chat_id="closed")
    chat.leave("eve")
    refusals: dict[str, Callable[[str], Any]] = {
        "a taken id": lambda user: Chat.create("zoe", [user], "x", chat_id="closed"),
        "not open": lambda user: chat.join(user),
        "by a stranger": lambda user: chat.join(user, by="zoe"),
        "by one who left": lambda user: chat.join(user, by="eve"),
    }
    for user in ("bob", "cat"):
        try:
            refusals[refused](user)
        except (ChatExists, NotAMember):
            pass
        else:
            assert chat.join(user, by="ann") is False
    for user in ("bob", "cat"):
        assert finds(user, chat) is (user == "bob")
    settle("cat", chat)
    settle("bob", chat)
    chat.leave("bob")
    settle("bob", chat)


@pytest.mark.parametrize("before", ["a member", "not yet", "a ghost"])
def test_join_and_refused_join_in_every_order(before: str) -> None:
    for number, order in enumerate(orders(JOIN, JOIN)):
        chat = Chat.create("ann", [], "one", chat_id=f"club {number}", open=True)
        begin(before, chat)
        interleaved(order, steps(chat.join, "bob"), steps(chat.join, "bob", by="zoe"))
        assert finds("bob", chat), order
        chat.leave("bob")
    grace_over("bob")
    assert not server().exists(index("bob"))


@pytest.mark.parametrize("before", ["a member", "not yet", "a ghost"])
def test_refused_join_and_leave_in_every_order(before: str) -> None:
    for number, order in enumerate(orders(JOIN, LEAVE)):
        chat = Chat.create("ann", [], "one", chat_id=f"club {number}", open=True)
        begin(before, chat)
        interleaved(order, steps(chat.join, "bob", by="zoe"), steps(chat.leave, "bob"))
        assert not finds("bob", chat), order
        if before != "a ghost":
            assert not server().exists(index("bob")), order


@pytest.mark.parametrize("joined", [JOIN, JOIN - 1], ids=["", "interrupted"])
@pytest.mark.parametrize("before", ["a member", "not yet", "a ghost"])
def test_join_and_forget_in_every_order(before: str, joined: int) -> None:
    for number, order in enumerate(orders(joined, FORGET)):
        chat = Chat.create("ann", [], "one", chat_id=f"club {number}", open=True)
        begin(before, chat)
        interleaved(order, interrupted(steps(chat.join, "bob"), joined), steps(_UserRemoval("bob").run))
        assert finds("bob", chat) is is_member(chat, "bob"), order
        grace_over("bob")
        forget("bob")
        assert not server().exists(index("bob")), order


@pytest.mark.parametrize("asked", range(JOIN + 1))
def test_forget_after_an_interrupted_join(asked: int, chat: Chat) -> None:
    crash_after(chat.join, asked, "bob")
    for name, entry in server().hgetall(index("bob")).items():
        token, _, seen = entry.split(b" ")
        server().hset(index("bob"), name, b" ".join([token, b"1", seen]))
    forget("bob")
    assert not is_member(chat, "bob")
    assert not server().exists(index("bob"))


def test_joins_that_were_refused_or_interrupted_shut_nobody_out(settings: Settings) -> None:
    change(settings, USER_MAX_CHATS=3)
    chats = [Chat.create("ann", [], chat_id=str(number)) for number in range(3)]
    for chat in chats:
        with pytest.raises(NotAMember, match="not open"):
            chat.join("bob")
        with pytest.raises(ChatExists):
            Chat.create("bob", ["cat"], chat_id=chat.id)
    assert not any(server().exists(index(user)) for user in ("bob", "cat"))
    for number in range(3):
        crash_after(Chat(f"none {number}").join, 1, "bob")
    assert [chat.join("bob", by="ann") for chat in chats] == [True] * 3
    with pytest.raises(LimitExceeded):
        Chat.create("cat", ["bob"])
    assert server().hlen(index("bob")) == 6


def test_unconfirmed_entries_are_limited(settings: Settings) -> None:
    change(settings, USER_MAX_CHATS=2)
    for number in range(4):
        crash_after(Chat(f"none {number}").join, 1, "bob")
    with pytest.raises(LimitExceeded):
        Chat("none").join("bob")
    with pytest.raises(NotAMember):
        Chat.create("ann", [], chat_id="none 0").join("bob")
    assert server().hlen(index("bob")) == 4


def test_create_that_one_recipient_has_no_room_for_leaves_nothing(settings: Settings) -> None:
    change(settings, USER_MAX_CHATS=1)
    Chat.create("ann", [], chat_id="only")
    with pytest.raises(LimitExceeded):
        Chat.create("bob", ["ann", "cat"])
    assert not any(server().exists(index(user)) for user in ("bob", "cat"))
    assert server().hkeys(index("ann")) == [b"only"]


def test_refused_repeat_of_create_hides_the_chat_from_nobody(settings: Settings) -> None:
    change(settings, USER_MAX_CHATS=1)
    chat = Chat("made")
    request = ("ann", ["bob", "cat"], "one", "", False, None, "request")
    crash_after(chat._create, 2, *request)
    server().delete(index("cat"))
    crash_after(Chat("other").join, 1, "cat")
    server().hset(index("cat"), "other", OLD_ENTRY)
    with pytest.raises(LimitExceeded):
        chat._create(*request)
    assert finds("bob", chat)


def test_repeat_of_an_interrupted_create_confirms_it() -> None:
    request = ("ann", ["bob"], "one", "", False, None, "request")
    crash_after(Chat("made")._create, 2, *request)
    Chat("made")._create(*request)
    Chat("made").leave("bob")
    assert not server().exists(index("bob"))


def test_late_repeat_of_create_restores_no_membership() -> None:
    chat = Chat.create("ann", ["bob", "cat"], "one", request_id="r")
    chat.leave("bob")
    chat.leave("cat")
    chat.join("cat", by="ann")
    Chat.create("ann", ["bob", "cat"], "one", request_id="r")
    assert not is_member(chat, "bob")
    settle("bob", chat)
    settle("cat", chat)
    chat.leave("cat")
    settle("cat", chat)


def test_deleted_chat_is_removed_from_all_indexes(chat: Chat) -> None:
    people = [f"user {number}" for number in range(5)]
    for user in people:
        chat.join(user)
    said(chat, "ann", "two")
    chat.delete("ann")
    assert not any(server().exists(index(user)) for user in ("ann", "eve", *people))
