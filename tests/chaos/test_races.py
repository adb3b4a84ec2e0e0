"""Eight processes at once, in one chat."""

from __future__ import annotations

import pytest

from django_redis_messaging import Chat, Inbox, Message
from django_redis_messaging.core.embedded import EmbeddedServer

from . import actors
from .conftest import Cast, Connect

pytestmark = pytest.mark.promise

PEOPLE = [f"p{number}" for number in range(8)]
EACH = 60


def everything(chat: Chat, user: str) -> list[Message]:
    """All a member can see."""
    messages: list[Message] = []
    while True:
        page = chat.history(user, after=messages[-1].cursor if messages else 0, limit=500)
        messages += page.messages
        assert not page.gap
        if not page.has_more:
            return messages


class TestEightInOneChat:
    def test_everybody_hears_everything_once_in_one_order(
        self, lasting: EmbeddedServer, connect: Connect, all_at_once: Cast
    ) -> None:
        stage = connect(lasting)
        chat = Chat.create(PEOPLE[0], PEOPLE[1:], chat_id="crowd")
        total = EACH * len(PEOPLE)
        found = all_at_once(
            stage,
            [(actors.converse, (chat.id, user, EACH, total, at)) for at, user in enumerate(PEOPLE)],
        )
        messages = everything(chat, PEOPLE[0])
        assert [message.id for message in messages] == list(range(1, total + 1))
        assert sorted(message.body for message in messages) == sorted(
            f"{user} {number}" for user in PEOPLE for number in range(EACH)
        )
        for user in PEOPLE:
            own = [message.body for message in messages if message.sender == user]
            assert own == [f"{user} {number}" for number in range(EACH)]
        for heard in found:
            assert (heard.again, heard.holes) == ([], [])
            assert heard.bodies == {message.id: message.body for message in messages}
        assert [member.read_id for member in chat.members()] == [total] * len(PEOPLE)
        assert [Inbox(user).unread() for user in PEOPLE] == [0] * len(PEOPLE)


class TestComingAndGoing:
    def test_whoever_comes_hears_all_from_then_on(
        self, lasting: EmbeddedServer, connect: Connect, all_at_once: Cast
    ) -> None:
        stage = connect(lasting)
        chat = Chat.create("host", ["talker"], chat_id="party")
        guests = [f"g{number}" for number in range(5)]
        *stays, first, second = all_at_once(
            stage,
            [
                *[(actors.come_and_go, (chat.id, "host", guest, 12)) for guest in guests],
                (actors.chatter, (chat.id, "host", 250)),
                (actors.chatter, (chat.id, "talker", 250)),
            ],
        )
        said = {message.id: message.body for message in everything(chat, "host")}
        assert sorted(said) == list(range(1, 5 * 12 + 500 + 1))
        assert first == sorted(first)
        assert second == sorted(second)
        for before, after, mark, heard in [stay for stays_of_one in stays for stay in stays_of_one]:
            ids = sorted(heard.bodies)
            assert before >= 0, "joined and left each time"
            assert before + 1 <= ids[0] <= after + 1
            assert ids == list(range(ids[0], ids[-1] + 1))
            assert ids[-1] >= mark
            assert (heard.again, heard.holes) == ([], [])
            assert heard.bodies.items() <= said.items()
        assert [member.user for member in chat.members()] == ["host", "talker"]
        assert [Inbox(guest).chats() for guest in guests] == [[]] * len(guests)
