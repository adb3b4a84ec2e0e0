"""Joining, leaving and healing in every order of their steps: a member always finds the chat."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pytest

from django_redis_messaging import Chat, Inbox, MessagingError, conf
from django_redis_messaging.core import clients, scripts
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.services.users import UserKeys

from .conftest import Connect

USER = "zed"
HOST = "host"
Operation = Generator[Any, Any, Any]
#: made anew for each order
Begin = Callable[[Chat], Operation]


def steps(operation: Any, *arguments: Any, **options: Any) -> Operation:
    """The body of a bound operation, to be driven step by step."""
    body: Operation = operation.__func__.__wrapped__(operation.__self__, *arguments, **options)
    return body


def join(chat: Chat) -> Operation:
    return steps(chat.join, USER, by=HOST)


def leave(chat: Chat) -> Operation:
    return steps(chat.leave, USER)


def create_again(chat: Chat) -> Operation:
    return steps(chat._create, HOST, [USER], "", "", False, None, f"request of {chat.id}")


def look(chat: Chat) -> Operation:
    return steps(Inbox(USER).pending)


class Actor:
    """One operation, a step at a time."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._next: Any = next(operation)

    def act(self) -> None:
        """One step; nothing to do once it is over."""
        if self._next is None:
            return
        try:
            reply = clients.execute(conf.alias(), self._next)
            self._next = self._operation.send(reply)
        except (StopIteration, MessagingError):
            self._next = None


def orders(operations: int, longest: int, most: int) -> Iterator[tuple[int, ...]]:
    """The orders in which steps can come; some of them, where there are more than `most`."""
    turns = [number for number in range(operations) for _ in range(longest)]
    chance = random.Random(0)
    for _ in range(most):
        chance.shuffle(turns)
        yield tuple(turns)


def all_orders(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every one."""
    if not any(lengths):
        yield ()
    for at, length in enumerate(lengths):
        if length:
            rest = [one - (number == at) for number, one in enumerate(lengths)]
            for order in all_orders(rest):
                yield (at, *order)


def play(begin: Sequence[Begin], order: Sequence[int], chat: Chat) -> None:
    actors = [Actor(one(chat)) for one in begin]
    for number in order:
        actors[number].act()


def blind(chat: Chat) -> bool:
    """Whether the user is a member who doesn't find the chat, or finds it without being one."""
    is_member = USER in [member.user for member in chat.members()]
    listed = [one.chat_id for one in Inbox(USER).chats(limit=1000)]
    return (chat.id in listed) != is_member


def count_blind(begin: Sequence[Begin], orders: Iterator[tuple[int, ...]], *, joined: bool) -> int:
    found = 0
    for number, order in enumerate(orders):
        chat = Chat.create(HOST, [USER], chat_id=f"c{number}", request_id=f"request of c{number}")
        if not joined:
            chat.leave(USER)
        play(begin, order, chat)
        found += blind(chat)
        chat.delete(HOST)
    return found


class TestEveryOrder:
    @pytest.mark.parametrize("joined", [True, False])
    def test_two_joins_and_a_leave(self, joined: bool, lasting: EmbeddedServer, connect: Connect) -> None:
        connect(lasting)
        assert count_blind([join, join, leave], all_orders([3, 3, 2]), joined=joined) == 0

    @pytest.mark.parametrize("joined", [True, False])
    def test_a_join_a_leave_and_creating_again(
        self, joined: bool, lasting: EmbeddedServer, connect: Connect
    ) -> None:
        connect(lasting)
        assert count_blind([join, leave, create_again], all_orders([3, 2, 3]), joined=joined) == 0


class TestManyOrders:
    @pytest.mark.parametrize("joined", [True, False])
    def test_three_joins_and_two_leaves_and_a_look(
        self, joined: bool, lasting: EmbeddedServer, connect: Connect
    ) -> None:
        connect(lasting)
        begin = [join, join, join, leave, leave, look]
        assert count_blind(begin, orders(len(begin), 3, 400), joined=joined) == 0

    def test_old_entries_are_healed_while_people_join(
        self, lasting: EmbeddedServer, connect: Connect
    ) -> None:
        connect(lasting)
        index = UserKeys(conf.prefix(), USER).chats
        with lasting.client() as client:
            for number, order in enumerate(all_orders([3, 4])):
                chat = Chat.create(HOST, [], chat_id=f"c{number}")
                client.hset(index, chat.id, "old 0 0")
                play([join, look], order, chat)
                assert not blind(chat)
                assert chat.leave(USER)
                Inbox(USER).pending()
                assert client.hkeys(index) == []


class TestPlantedBugs:
    """The orders find them, or could not be believed."""

    @pytest.mark.parametrize(
        ("where", "line", "mistake"),
        [
            ("inbox_confirm", "if token ~= '?' .. joining then", "if false then"),
            ("inbox_reserve", "pending_token = '?'\n", "pending_token = '?' .. ARGV[2]\n"),
        ],
    )
    def test_a_member_is_blind(
        self, where: str, line: str, mistake: str,
        lasting: EmbeddedServer, connect: Connect, monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        read = scripts.read
        assert read(f"{where}.lua").count(line) == 1
        monkeypatch.setattr(
            scripts,
            "read",
            lambda name: read(name).replace(line, mistake) if name == f"{where}.lua" else read(name),
        )
        scripts.load.cache_clear()
        connect(lasting)
        try:
            assert count_blind([join, join, leave], all_orders([3, 3, 2]), joined=True)
        finally:
            scripts.load.cache_clear()
