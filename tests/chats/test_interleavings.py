"""Joining, leaving and repairing in every order of their steps: a member always finds the chat."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pytest

from django_redis_messaging import Chat, Inbox, MessagingError, conf
from django_redis_messaging.core import clients, commands
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.users.keys import UserKeys

from ..support.faults import Connect

pytestmark = pytest.mark.one_server


USER = "zed"
HOST = "host"
Operation = Generator[Any, Any, Any]
#: creates a new operation for each order
Begin = Callable[[Chat], Operation]


def steps(operation: Any, *arguments: Any, **options: Any) -> Operation:
    """The body of a bound operation, to be run step by step."""
    body: Operation = operation.__func__.__wrapped__(operation.__self__, *arguments, **options)
    return body


def join(chat: Chat) -> Operation:
    return steps(chat.join, USER, by=HOST)


def leave(chat: Chat) -> Operation:
    return steps(chat.leave, USER)


def repeat_creation(chat: Chat) -> Operation:
    return steps(chat._create, HOST, [USER], "", "", False, None, f"request of {chat.id}")


def fetch_pending(chat: Chat) -> Operation:
    return steps(Inbox(USER).pending)


class StepwiseOperation:
    """An operation that runs one step at a time."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._next: Any = next(operation)

    def run_step(self) -> None:
        """Run one step, or nothing if the operation has ended."""
        if self._next is None:
            return
        try:
            reply = clients.execute(conf.alias(), self._next)
            self._next = self._operation.send(reply)
        except (StopIteration, MessagingError):
            self._next = None


def orders(operations: int, max_steps: int, max_orders: int) -> Iterator[tuple[int, ...]]:
    """Random orders of the steps of several operations."""
    turns = [number for number in range(operations) for _ in range(max_steps)]
    chance = random.Random(0)
    for _ in range(max_orders):
        chance.shuffle(turns)
        yield tuple(turns)


def all_orders(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All orders of steps."""
    if not any(lengths):
        yield ()
    for index, length in enumerate(lengths):
        if length:
            rest = [one - (number == index) for number, one in enumerate(lengths)]
            for order in all_orders(rest):
                yield (index, *order)


def run(begin: Sequence[Begin], order: Sequence[int], chat: Chat) -> None:
    running = [StepwiseOperation(one(chat)) for one in begin]
    for number in order:
        running[number].run_step()


def is_inconsistent(chat: Chat) -> bool:
    """Whether a member does not find the chat, or the chat is listed for a user who is no member."""
    is_member = USER in [member.user for member in chat.members()]
    listed = [one.chat_id for one in Inbox(USER).chats(limit=1000)]
    return (chat.id in listed) != is_member


def count_inconsistent(begin: Sequence[Begin], orders: Iterator[tuple[int, ...]], *, joined: bool) -> int:
    found = 0
    for number, order in enumerate(orders):
        chat = Chat.create(HOST, [USER], chat_id=f"c{number}", request_id=f"request of c{number}")
        if not joined:
            chat.leave(USER)
        run(begin, order, chat)
        found += is_inconsistent(chat)
        chat.delete(HOST)
    return found


#: whether the user is a member at the beginning
JOINED = [pytest.param(True, marks=pytest.mark.long), False]


class TestEveryOrder:
    @pytest.mark.parametrize("joined", JOINED)
    def test_two_joins_and_a_leave(self, joined: bool, lasting: EmbeddedServer, connect: Connect) -> None:
        connect(lasting)
        assert count_inconsistent([join, join, leave], all_orders([3, 3, 2]), joined=joined) == 0

    @pytest.mark.parametrize("joined", JOINED)
    def test_join_leave_and_repeated_creation(
        self, joined: bool, lasting: EmbeddedServer, connect: Connect
    ) -> None:
        connect(lasting)
        assert count_inconsistent([join, leave, repeat_creation], all_orders([3, 2, 3]), joined=joined) == 0


class TestManyOrders:
    @pytest.mark.parametrize("joined", JOINED)
    def test_three_joins_two_leaves_and_a_fetch(
        self, joined: bool, lasting: EmbeddedServer, connect: Connect
    ) -> None:
        connect(lasting)
        begin = [join, join, join, leave, leave, fetch_pending]
        assert count_inconsistent(begin, orders(len(begin), 3, 400), joined=joined) == 0

    def test_stale_entries_are_removed_during_joins(self, lasting: EmbeddedServer, connect: Connect) -> None:
        connect(lasting)
        index = UserKeys(conf.prefix(), USER).chats
        with lasting.client() as client:
            for number, order in enumerate(all_orders([3, 4])):
                chat = Chat.create(HOST, [], chat_id=f"c{number}")
                client.hset(index, chat.id, "old 0 0")
                run([join, fetch_pending], order, chat)
                assert not is_inconsistent(chat)
                assert chat.leave(USER)
                Inbox(USER).pending()
                assert client.hkeys(index) == []


class TestPlantedBugs:
    """The orders must find these bugs, otherwise they prove nothing."""

    @pytest.mark.parametrize(
        ("where", "line", "mistake"),
        [
            ("chats/inbox_confirm", "if pending_joining ~= joining and", "if false and"),
            ("chats/inbox_reserve", "  joining = ''\n", "  joining = new_joining\n"),
        ],
    )
    def test_planted_bug_is_found(
        self, where: str, line: str, mistake: str,
        lasting: EmbeddedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        read = commands.read
        assert read(f"{where}.lua").count(line) == 1
        monkeypatch.setattr(
            commands,
            "read",
            lambda name: read(name).replace(line, mistake) if name == f"{where}.lua" else read(name),
        )
        commands.load.cache_clear()
        connect(lasting)
        try:
            assert count_inconsistent([join, join, leave], all_orders([3, 3, 2]), joined=True)
        finally:
            commands.load.cache_clear()
