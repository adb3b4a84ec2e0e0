"""The users' indexes of chats. In every order of the steps of joining, leaving, reading and repairing, the
index of a member contains the chat, and the index of a former member eventually does not."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redis_messaging import Chat, ChatExists, Inbox, NotAMember

from .asking import crash_after, index, reply_to, said, server, steps

#: maximum number of steps of an operation
JOIN, LEAVE, LOOK, CREATE = 3, 2, 4, 3
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
