"""Servers that are killed, frozen or full, and clients that are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from django_redis_messaging import Chat, Inbox, Message, OutcomeUnknown, Unavailable
from django_redis_messaging.devserver.server import EmbeddedServer

from ..support import child_processes
from ..support.faults import PATIENCE, Connect, cast, processes

pytestmark = [pytest.mark.one_server, pytest.mark.promise]

Until = Callable[[Callable[[], object]], None]
PEOPLE = [f"p{number}" for number in range(4)]
EACH = 300
#: seconds of COMMAND_DEADLINE in tests where operations fail
SHORT = 0.5


def history(chat: Chat, user: str) -> list[Message]:
    messages: list[Message] = []
    while (page := chat.history(user, after=messages[-1].id if messages else 0, limit=500)).messages:
        messages += page.messages
    return messages


@contextmanager
def frozen(server: EmbeddedServer, chat: Chat) -> Iterator[None]:
    """Freeze the server during the block, whose operation must fail within the deadline."""
    assert chat.info()  # over a connection that stays open
    server.freeze()
    began = time.monotonic()
    try:
        yield
        assert SHORT * 0.9 <= time.monotonic() - began <= SHORT + 3
    finally:
        server.thaw()


class TestKilledServer:
    @pytest.mark.parametrize("deadline", [PATIENCE, 0.05])
    def test_each_acknowledged_write_exists_once(
        self, deadline: float, fragile: EmbeddedServer, connect: Connect, until: Until
    ) -> None:
        stage = connect(fragile, COMMAND_DEADLINE=2 * SHORT)
        chat = Chat.create(PEOPLE[0], PEOPLE[1:])
        impatient = child_processes.Stage(stage.url, {**stage.messaging, "COMMAND_DEADLINE": deadline})
        with cast(impatient, len(PEOPLE)) as pool:
            sending = [
                pool.submit(child_processes.begin, child_processes.send_through_failures, chat.id, user, EACH)
                for user in PEOPLE
            ]
            for share in (0.1, 0.3):
                until(lambda: chat.info().last_id > share * EACH * len(PEOPLE))  # noqa: B023
                fragile.kill()
                with pytest.raises(Unavailable):
                    chat.info()
                fragile.start()
            outcomes = [one.result(PATIENCE) for one in sending]
        messages = history(chat, PEOPLE[0])
        bodies = [message.body for message in messages]
        assert [message.id for message in messages] == list(range(1, len(messages) + 1))
        assert len(set(bodies)) == len(bodies)
        for outcome in outcomes:
            assert sum(map(len, outcome.values())) == EACH
            lost = set(outcome["sent"]) - set(bodies)
            assert not lost, (lost, outcome["unknown"], outcome["refused"], bodies, fragile.log.read_text())
            assert not set(outcome["refused"]) & set(bodies)
        unsure = sum(len(outcome["unknown"] + outcome["refused"]) for outcome in outcomes)
        assert unsure == 0 if deadline == PATIENCE else unsure > 0


class TestFrozenServer:
    def test_deadline_holds_and_a_repeat_is_safe(self, fragile: EmbeddedServer, connect: Connect) -> None:
        connect(fragile, COMMAND_DEADLINE=SHORT)
        chat = Chat.create("ann", ["bob"])
        with frozen(fragile, chat), pytest.raises(OutcomeUnknown):
            chat.send("ann", "hello", request_id="once")
        with frozen(fragile, chat), pytest.raises(OutcomeUnknown):
            Chat.create("ann", ["bob"], chat_id="other", request_id="once")
        with frozen(fragile, chat), pytest.raises(OutcomeUnknown):
            chat.ack("bob", 1)
        with frozen(fragile, chat), pytest.raises(Unavailable):
            Inbox("bob").pending()
        with frozen(fragile, chat), pytest.raises(Unavailable):
            chat.history("bob")
        assert chat.send("ann", "hello", request_id="once").id == 1
        assert Chat.create("ann", ["bob"], chat_id="other", request_id="once").members()[0].role == "owner"
        assert [message.body for message in chat.history("bob").messages] == ["hello"]
        assert {one.chat_id for one in Inbox("bob").chats()} == {chat.id, "other"}


class TestKilledClient:
    def test_unacked_messages_are_delivered_again(self, lasting: EmbeddedServer, connect: Connect) -> None:
        stage = connect(lasting)
        chat = Chat.create("ann", ["bob"], "one")
        chat.send("ann", "two")
        parent_end, child_end = processes.Pipe()
        process = processes.Process(target=child_processes.fetch_and_hang, args=(stage, "bob", child_end))
        process.start()
        assert parent_end.poll(PATIENCE)
        assert parent_end.recv() == [1, 2]
        process.kill()
        process.join()
        [pending] = Inbox("bob").pending()
        assert [message.body for message in pending.messages] == ["one", "two"]
        assert chat.ack("bob", pending.messages[-1].cursor) == 2
        assert Inbox("bob").pending() == []
