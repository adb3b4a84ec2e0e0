"""Eight processes at once in one chat."""

from __future__ import annotations

import pytest

from django_redis_messaging import Chat, Inbox, Message
from django_redis_messaging.devserver.server import EmbeddedServer

from ..support import child_processes
from ..support.faults import Cast, Connect

pytestmark = [pytest.mark.one_server, pytest.mark.promise]

PEOPLE = [f"p{number}" for number in range(8)]
EACH = 60


def all_messages(chat: Chat, user: str) -> list[Message]:
    """All messages that a member can read."""
    messages: list[Message] = []
    while True:
        page = chat.history(user, after=messages[-1].cursor if messages else 0, limit=500)
        messages += page.messages
        assert not page.gap
        if not page.has_more:
            return messages


class TestEightInOneChat:
    def test_each_member_receives_each_message_once_in_order(
        self, lasting: EmbeddedServer, connect: Connect, all_at_once: Cast
    ) -> None:
        stage = connect(lasting)
        chat = Chat.create(PEOPLE[0], PEOPLE[1:], chat_id="crowd")
        total = EACH * len(PEOPLE)
        found = all_at_once(
            stage,
            [
                (child_processes.converse, (chat.id, user, EACH, total, seed))
                for seed, user in enumerate(PEOPLE)
            ],
        )
        messages = all_messages(chat, PEOPLE[0])
        assert [message.id for message in messages] == list(range(1, total + 1))
        assert sorted(message.body for message in messages) == sorted(
            f"{user} {number}" for user in PEOPLE for number in range(EACH)
        )
        for user in PEOPLE:
            own = [message.body for message in messages if message.sender == user]
            assert own == [f"{user} {number}" for number in range(EACH)]
        for received in found:
            assert (received.repeated, received.out_of_order) == ([], [])
            assert received.bodies == {message.id: message.body for message in messages}
        assert [member.read_id for member in chat.members()] == [total] * len(PEOPLE)
        assert [Inbox(user).unread() for user in PEOPLE] == [0] * len(PEOPLE)


class TestJoiningAndLeaving:
    def test_new_members_receive_all_later_messages(
        self, lasting: EmbeddedServer, connect: Connect, all_at_once: Cast
    ) -> None:
        stage = connect(lasting)
        chat = Chat.create("host", ["talker"], chat_id="party")
        guests = [f"g{number}" for number in range(5)]
        *stays, first, second = all_at_once(
            stage,
            [
                *[(child_processes.join_and_leave, (chat.id, "host", guest, 12)) for guest in guests],
                (child_processes.send_many, (chat.id, "host", 250)),
                (child_processes.send_many, (chat.id, "talker", 250)),
            ],
        )
        sent = {message.id: message.body for message in all_messages(chat, "host")}
        assert sorted(sent) == list(range(1, 5 * 12 + 500 + 1))
        assert first == sorted(first)
        assert second == sorted(second)
        for before, after, mark, received in [stay for stays_of_one in stays for stay in stays_of_one]:
            ids = sorted(received.bodies)
            assert before >= 0, "every join and leave must succeed"
            assert before + 1 <= ids[0] <= after + 1
            assert ids == list(range(ids[0], ids[-1] + 1))
            assert ids[-1] >= mark
            assert (received.repeated, received.out_of_order) == ([], [])
            assert received.bodies.items() <= sent.items()
        assert [member.user for member in chat.members()] == ["host", "talker"]
        assert [Inbox(guest).chats() for guest in guests] == [[]] * len(guests)
