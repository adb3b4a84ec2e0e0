"""Joining, leaving, reading and repairing in every order of their steps, or stopped after any step: a member
always finds the chat, and the list of chats of anybody else eventually does not contain it."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from django_redis_messaging import (
    Chat,
    ChatExists,
    ChatNotFound,
    Inbox,
    NotAMember,
    OutcomeUnknown,
    Unavailable,
    forget,
)
from django_redis_messaging.services.chats.keys import direct_id
from django_redis_messaging.services.users.forgetting import _UserRemoval

from ..support.pytest_hooks import LONG
from ..support.scripts import Planting
from ..support.server import bodies, crash_after, finish, index, joining, keys, reply_to, said, server, steps

Operation = Generator[Any, Any, Any]
#: an entry of a list of chats whose number belongs to no membership
OLD_ENTRY = "1 0-0-0-0-0-0-0"
LOOKS = ("pending", "chats", "unread")
#: arguments of the creation of a chat
CREATION = ("ann", ["bob"], "one", "", True, None, "request")


def interrupted(operation: Operation, count: int) -> Operation:
    """The first steps of an operation whose process crashes after them."""
    step = next(operation)
    for done in range(count):
        reply = yield step
        if done + 1 < count:
            step = operation.send(reply)


#: operations of bob, or concerning him: maximum number of steps, and how to begin one
OPERATIONS: dict[str, tuple[int, Callable[[Chat], Operation]]] = {
    "join": (3, lambda chat: steps(chat.join, "bob")),
    "added": (3, lambda chat: steps(chat.join, "bob", by="ann")),
    "refused join": (3, lambda chat: steps(chat.join, "bob", by="zoe")),
    "interrupted join": (2, lambda chat: interrupted(steps(chat.join, "bob"), 2)),
    "refused creation": (3, lambda chat: steps(chat._create, "zoe", *CREATION[1:])),
    "leave": (2, lambda chat: steps(chat.leave, "bob")),
    "create": (3, lambda chat: steps(chat._create, *CREATION)),
    "pending": (4, lambda chat: steps(Inbox("bob").pending)),
    "chats": (4, lambda chat: steps(Inbox("bob").chats)),
    "unread": (4, lambda chat: steps(Inbox("bob").unread)),
    "forget": (3, lambda chat: steps(_UserRemoval("bob").run)),  # the part that concerns chats
}
JOINS = {"join", "interrupted join", "added", "create"}
#: what bob is before
MEMBER, NO_MEMBER, OLD, LISTED = "a member", "no member", "an old entry", "left, but listed"
NO_CHAT, ONLY_OLD = "no chat", "an old entry of no chat"
ANY = [MEMBER, NO_MEMBER, OLD]
#: operations at the same time, and what bob is before
SCENARIOS: list[tuple[list[str], list[str]]] = [
    (["join", "leave"], ANY),
    (["interrupted join", "leave"], [MEMBER]),
    *((["join", look], [NO_MEMBER, OLD, LISTED]) for look in LOOKS),
    *((["leave", look], [MEMBER]) for look in LOOKS),
    (["create", "leave"], [NO_CHAT]),
    (["create", "pending"], [ONLY_OLD]),
    (["join", "refused join"], ANY),
    (["refused join", "leave"], ANY),
    (["refused creation", "leave"], ANY),
    (["join", "forget"], ANY),
    (["interrupted join", "forget"], ANY),
    (["added", "added", "leave"], [NO_MEMBER, MEMBER]),
    (["added", "leave", "create"], [NO_MEMBER, MEMBER]),
]


def scenario(before: str, operations: list[str]) -> Any:
    """Those with most orders run from one state only, unless in the large form."""
    marks = [pytest.mark.long] if len(operations) > 2 and before == MEMBER else []
    return pytest.param(before, operations, id=", ".join([before, *operations]), marks=marks)


def orders(*counts: int) -> Iterator[tuple[int, ...]]:
    """All orders of the steps of several operations."""
    if not any(counts):
        yield ()
    for at, count in enumerate(counts):
        if count:
            for order in orders(*counts[:at], count - 1, *counts[at + 1 :]):
                yield (at, *order)


def orders_of(operations: list[str]) -> list[tuple[int, ...]]:
    """All orders; of two equal operations, the first one always begins. Of three operations, a third of the
    orders, unless in the large form."""
    are_equal = operations[0] == operations[1]
    found = [
        order
        for order in orders(*(OPERATIONS[name][0] for name in operations))
        if not are_equal or order.index(0) < order.index(1)
    ]
    return found[:: 1 if LONG or len(operations) < 3 else 3]


def interleave(order: Iterable[int], *operations: Operation) -> None:
    """Run the operations' steps in this order, then the remaining steps of each."""
    replies: list[Any] = [None] * len(operations)
    over: set[int] = set()
    for at in (*order, *[at for at in range(len(operations)) for _ in range(9)]):
        if at not in over:
            try:
                replies[at] = reply_to(operations[at].send(replies[at]))
            except (StopIteration, NotAMember, ChatExists):
                over.add(at)
    assert len(over) == len(operations)


def begin(before: str, number: int) -> Chat:
    """A chat of ann, with one message, and what bob is before."""
    chat = Chat(f"club {number}")
    if before not in (NO_CHAT, ONLY_OLD):
        Chat.create("ann", ["bob"], "one", chat_id=chat.id, open=True, request_id="request")
        chat.ack("bob", 1)
        if before == LISTED:
            crash_after(chat.leave, 1, "bob")
        elif before != MEMBER:
            chat.leave("bob")
    if before in (OLD, ONLY_OLD):
        server().hset(index("bob"), chat.id, OLD_ENTRY)
    return chat


def is_member(chat: Chat, user: str = "bob") -> bool:
    try:
        return user in [one.user for one in chat.members()]
    except ChatNotFound:
        return False


def finds(chat: Chat, user: str = "bob") -> bool:
    """Whether all reads of an inbox find the chat, which has pending messages; fails if only some do."""
    with suppress(ChatNotFound):
        chat.send("ann", "news")
    inbox = Inbox(user)
    listed = chat.id in [one.chat_id for one in inbox.chats()]
    assert listed is (chat.id in [news.chat_id for news in inbox.pending()]) is (inbox.unread() > 0)
    return listed


def grace_over(user: str = "bob") -> None:
    """Let the joinings in progress be so old that they count as interrupted, and read."""
    server().delete(joining(user))
    Inbox(user).chats()


def settle(chat: Chat, user: str = "bob") -> None:
    """Check that a member finds the chat, also after the grace period, and that others have no entry then."""
    expected = is_member(chat, user)
    assert finds(chat, user) is expected
    grace_over(user)
    assert finds(chat, user) is expected
    assert server().exists(index(user)) == expected


def check(before: str, operations: list[str], number: int, order: Iterable[int]) -> None:
    chat = begin(before, number)
    interleave(order, *(OPERATIONS[name][1](chat) for name in operations))
    if before != OLD and not JOINS.intersection(operations):
        assert not server().exists(index("bob")), order  # at once
    settle(chat)
    if "forget" in operations:
        forget("bob")
    else:
        chat.leave("bob")
        grace_over()
    assert not server().exists(index("bob")), order
    chat.delete("ann")


@pytest.mark.parametrize(
    ("before", "operations"),
    [scenario(before, operations) for operations, states in SCENARIOS for before in states],
)
def test_every_order(before: str, operations: list[str]) -> None:
    for number, order in enumerate(orders_of(operations)):
        check(before, operations, number, order)


@pytest.mark.parametrize("before", [pytest.param(MEMBER, marks=pytest.mark.long), NO_MEMBER])
def test_many_orders_of_three_joins_two_leaves_and_a_read(before: str) -> None:
    operations = [*["added"] * 3, *["leave"] * 2, "pending"]
    turns, chance = sorted([*range(6)] * 3), random.Random(0)
    for number in range(150 if LONG else 50):
        chance.shuffle(turns)
        check(before, operations, number, turns)


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("operations", "bug"),
    [
        (
            ["interrupted join", "leave"],
            ("users/_user", "if is_joining(joining, chat) then", "if false then"),
        ),
        (["added", "added", "leave"], ("chats/inbox_leave", "number <= ended then", "number then")),
        (["added", "leave"], ("chats/inbox_confirm", "if number > known then", "if known == 0 then")),
    ],
)
def test_every_order_finds_a_planted_bug(
    operations: list[str], bug: tuple[str, str, str], plant: Planting
) -> None:
    plant(bug)
    with pytest.raises(AssertionError):
        test_every_order(MEMBER, operations)


@pytest.mark.parametrize("again", [False, True])
def test_leave_and_count_of_known_unread_messages(again: bool) -> None:
    """The count reads the chat in its first round trip, together with the list."""

    def leave(chat: Chat) -> Operation:
        yield from steps(chat.leave, "bob")
        if again:
            yield from steps(chat.join, "bob")

    for number, order in enumerate(orders(5 if again else 2, 1)):
        chat = begin(MEMBER, number)
        chat.send("ann", "two")
        assert Inbox("bob").unread() == 1
        interleave(order, leave(chat), steps(Inbox("bob").unread))
        assert Inbox("bob").unread() == 0, order
        assert finds(chat) is again, order
        chat.delete("ann")


def test_fetch_that_acks_and_leave_restore_no_membership() -> None:
    for number, order in enumerate(orders(3, 2)):
        chat = Chat.create("ann", ["bob"], "one", keep_last=0, chat_id=f"club {number}")
        interleave(order, steps(Inbox("bob").pending, ack=True), steps(chat.leave, "bob"))
        said(chat, "ann", "two", "three")
        assert server().zrange(keys(chat).members, 0, -1) == [b"ann"]
        assert server().llen(keys(chat).log) == 0
        with pytest.raises(NotAMember):
            chat.ack("bob", 3)
        assert Inbox("bob").pending() == []


def test_two_people_open_their_direct_chat() -> None:
    for ahead in range(1, 5):  # steps of the first before the second begins
        ann, bob = f"ann {ahead}", f"bob {ahead}"
        direct = Chat(direct_id(ann, bob))
        first = steps(direct._direct, ann, bob)
        reply = None
        for _ in range(ahead):
            reply = reply_to(first.send(reply))
        assert Chat.direct(bob, ann).id == direct.id
        with pytest.raises(StopIteration):
            while True:
                reply = reply_to(first.send(reply))
        assert sorted(one.user for one in direct.members()) == [ann, bob]
        assert [one.chat_id for user in (ann, bob) for one in Inbox(user).chats()] == [direct.id] * 2


class TestCrashes:
    """A process stops between the steps of an operation."""

    @pytest.mark.parametrize("asked", range(4))
    def test_joining(self, asked: int) -> None:
        chat = begin(NO_MEMBER, 0)
        crash_after(chat.join, asked, "bob")
        settle(chat)
        forget("bob")
        assert not is_member(chat)
        assert not server().exists(index("bob"))

    def test_entry_of_an_interrupted_join_is_kept_for_the_grace_period(self) -> None:
        chat = begin(NO_MEMBER, 0)
        crash_after(chat.join, 1, "bob")
        assert not finds(chat)
        assert server().hkeys(index("bob")) == [b"club 0"]
        assert chat.join("bob", by="ann")

    def test_join_that_goes_on_after_the_grace_period(self) -> None:
        chat = begin(NO_MEMBER, 0)
        operation = steps(chat.join, "bob")
        reply = reply_to(next(operation))
        grace_over()
        assert not server().exists(index("bob"))
        finish(operation, operation.send(reply))
        settle(chat)

    def test_a_refused_joining_keeps_the_entry_of_an_interrupted_one(self) -> None:
        chat = begin(NO_MEMBER, 0)
        crash_after(chat.join, 2, "bob")
        server().delete(joining("bob"))  # it was long ago
        with pytest.raises(NotAMember):
            chat.join("bob", by="zoe")
        assert is_member(chat)
        settle(chat)

    @pytest.mark.parametrize("asked", range(4))
    def test_adding_several_members_is_completed_by_its_repeat(self, asked: int) -> None:
        chat = begin(NO_MEMBER, 0)
        crash_after(chat.add, asked, ["bob", "cat"], by="ann", request_id="r")
        assert chat.add(["bob", "cat"], by="ann", request_id="r") == ["bob", "cat"]
        for user in ("bob", "cat"):
            assert finds(chat, user)
            chat.leave(user)
            grace_over(user)
            assert not server().exists(index(user))

    @pytest.mark.parametrize("asked", range(4))
    def test_creating_is_completed_by_its_repeat(self, asked: int) -> None:
        chat = Chat("made")
        crash_after(chat._create, asked, *CREATION)
        if asked < 2:
            with pytest.raises(ChatNotFound):
                chat.info()
        settle(chat)
        Chat.create("ann", ["bob"], "one", chat_id="made", open=True, request_id="request")
        assert bodies(chat.history("bob"))[:1] == ["one"]
        assert chat.leave("bob")
        grace_over()
        assert not server().exists(index("bob"))

    @pytest.mark.parametrize("asked", range(3))
    def test_leaving(self, asked: int) -> None:
        chat = begin(MEMBER, 0)
        crash_after(chat.leave, asked, "bob")
        settle(chat)

    def test_reading_loses_no_messages(self) -> None:
        chat = Chat.create("ann", ["bob", "cat", "dan"], "one")
        for asked, user in enumerate(("bob", "cat", "dan"), 1):
            crash_after(Inbox(user).pending, asked)
            assert bodies(Inbox(user).pending()[0]) == ["one"]
        crash_after(chat.history, 1, "bob")
        assert Inbox("bob").unread() == 1

    def test_no_lock_is_left_behind(self) -> None:
        chat = Chat.create("ann", ["bob"], "one", open=True)
        said(chat, "bob", "two")
        crash_after(chat.send, 1, "ann", "three")
        for asked in (1, 2):
            crash_after(chat.leave, asked, "bob")
            crash_after(chat.join, asked, "cat")
            assert chat.send("ann", "on").id == 3 + asked
            assert chat.join("bob") is True
        assert chat.join("cat") is False
        assert chat.send("cat", "on").id == 6
        assert chat.ack("ann", 6) == 6


class TestFailures:
    """An operation whose step at the list of chats fails has succeeded: the list is repaired later."""

    def fail_at(self, done: int, operation: Operation, error: type[Exception] = Unavailable) -> Any:
        """Run an operation in which one step fails; its result."""
        step = next(operation)
        for _ in range(done):
            step = operation.send(reply_to(step))
        try:
            step = operation.throw(error("for a while"))
        except StopIteration as ended:
            return ended.value
        return finish(operation, step)

    @pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
    def test_join(self, error: type[Exception]) -> None:
        chat = begin(NO_MEMBER, 0)
        assert self.fail_at(2, steps(chat.join, "bob"), error) is True
        settle(chat)

    def test_create(self) -> None:
        self.fail_at(2, steps(Chat("made")._create, *CREATION))
        assert [len(Inbox(user).chats()) for user in ("ann", "bob")] == [1, 1]

    @pytest.mark.parametrize("verb", ["leave", "delete"])
    def test_leave_and_delete(self, verb: str) -> None:
        chat = Chat.create("ann", ["bob"])
        assert self.fail_at(1, steps(getattr(chat, verb), "ann")) is True
        assert Inbox("ann").chats() == []

    def test_pending_with_ack(self) -> None:
        chat = Chat.create("ann", ["bob"], "hello")
        quiet = Chat.create("ann", ["bob"])
        [found] = self.fail_at(3, steps(Inbox("bob").pending, ack=True))
        assert bodies(found) == ["hello"]
        assert (chat.members()[1].read_id, quiet.members()[1].read_id) == (1, 0)
        assert Inbox("bob").pending() == []
