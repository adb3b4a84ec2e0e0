"""The state that remains when a process or its server stops between the steps of an operation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

from django_redis_messaging import Chat, ChatNotFound, Inbox, OutcomeUnknown, Unavailable, conf
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.chats import joining as joining_module
from django_redis_messaging.services.users.keys import UserKeys

from ..support.faults import Connect
from .test_interleavings import steps

pytestmark = [pytest.mark.one_server, pytest.mark.timing]

Operation = Generator[Any, Any, Any]


@pytest.fixture(autouse=True)
def connected(connect: Connect, lasting: EmbeddedServer) -> None:
    connect(lasting)


@pytest.fixture
def index(lasting: EmbeddedServer) -> Callable[[str], dict[bytes, bytes]]:
    """The stored chat index of a user."""

    def read(user: str) -> dict[bytes, bytes]:
        with lasting.client() as client:
            return cast(dict[bytes, bytes], client.hgetall(UserKeys(conf.prefix(), user).chats))

    return read


def stop_after(done: int, operation: Operation) -> None:
    """Run the first steps of an operation, then abandon it as a killed process would."""
    reply = None
    for _ in range(done):
        reply = clients.execute(conf.alias(), operation.send(reply))
    operation.close()


def fail_at(step: int, operation: Operation, error: Exception) -> Any:
    """Run an operation in which one step fails with this error; its result."""
    execute, reply = functools.partial(clients.execute, conf.alias()), None
    for _ in range(step):
        reply = execute(operation.send(reply))
    operation.send(reply)
    try:
        next_step = operation.throw(error)
        while True:
            next_step = operation.send(execute(next_step))
    except StopIteration as stop:
        return stop.value


def create(chat: Chat) -> Operation:
    return steps(chat._create, "ann", ["bob"], "hello", "", False, None, "request")


class TestJoining:
    def test_stopped_before_the_chat_is_updated(
        self, index: Callable[[str], dict[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chat = Chat.create("ann", [], chat_id="c")
        stop_after(1, steps(chat.join, "bob", by="ann"))
        assert list(index("bob")) == [b"c"]
        assert (Inbox("bob").chats(), Inbox("bob").pending(), Inbox("bob").unread()) == ([], [], 0)
        assert list(index("bob")) == [b"c"], "the entry is removed only after a grace period"
        monkeypatch.setattr(joining_module, "_GRACE", 0)
        Inbox("bob").pending()
        assert index("bob") == {}
        assert chat.join("bob", by="ann")

    def test_stopped_before_the_index_entry_is_confirmed(
        self, index: Callable[[str], dict[bytes, bytes]]
    ) -> None:
        chat = Chat.create("ann", [], chat_id="c")
        stop_after(2, steps(chat.join, "bob", by="ann"))
        chat.send("ann", "hello")
        assert [one.chat_id for one in Inbox("bob").pending()] == ["c"]
        assert not chat.join("bob", by="ann")
        assert Inbox("bob").unread() == 1
        assert chat.leave("bob")
        assert Inbox("bob").chats() == []

    def test_process_paused_beyond_the_grace_period_still_joins(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chat = Chat.create("ann", [], chat_id="c")
        joining = steps(chat.join, "bob", by="ann")
        execute = functools.partial(clients.execute, conf.alias())
        reply = execute(next(joining))
        monkeypatch.setattr(joining_module, "_GRACE", 0)
        assert Inbox("bob").pending() == []
        with pytest.raises(StopIteration):
            while True:
                reply = execute(joining.send(reply))
        assert [one.chat_id for one in Inbox("bob").chats()] == ["c"]

    @pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
    def test_join_succeeds_if_the_index_cannot_be_confirmed(self, error: type[Exception]) -> None:
        chat = Chat.create("ann", [], chat_id="c")
        assert fail_at(2, steps(chat.join, "bob", by="ann"), error("for a while")) is True
        assert [one.chat_id for one in Inbox("bob").chats()] == ["c"]


class TestCreating:
    def test_stopped_before_the_chat_exists(
        self, index: Callable[[str], dict[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chat = Chat("c")
        stop_after(1, create(chat))
        with pytest.raises(ChatNotFound):
            chat.info()
        assert [Inbox(user).chats() for user in ("ann", "bob")] == [[], []]
        monkeypatch.setattr(joining_module, "_GRACE", 0)
        assert [Inbox(user).unread() for user in ("ann", "bob")] == [0, 0]
        assert [index(user) for user in ("ann", "bob")] == [{}, {}]

    def test_stopped_before_the_index_entries_are_confirmed(self) -> None:
        chat = Chat("c")
        stop_after(2, create(chat))
        assert [len(Inbox(user).chats()) for user in ("ann", "bob")] == [1, 1]
        assert Inbox("bob").unread() == 1

    @pytest.mark.parametrize("done", [1, 2, 3])
    def test_repeat_after_a_crash_completes_the_creation(
        self, done: int, index: Callable[[str], dict[bytes, bytes]]
    ) -> None:
        stop_after(done, create(Chat("c")))
        chat = Chat.create("ann", ["bob"], "hello", chat_id="c", request_id="request")
        assert [message.body for message in chat.history("bob").messages] == ["hello"]
        assert chat.leave("bob")
        assert index("bob") == {}

    def test_create_succeeds_if_the_index_cannot_be_confirmed(self) -> None:
        fail_at(2, create(Chat("c")), Unavailable("for a while"))
        assert [len(Inbox(user).chats()) for user in ("ann", "bob")] == [1, 1]


class TestLeaving:
    def test_stopped_before_the_index_is_updated(
        self, index: Callable[[str], dict[bytes, bytes]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chat = Chat.create("ann", ["bob"], "hello", chat_id="c")
        stop_after(1, steps(chat.leave, "bob"))
        assert (Inbox("bob").chats(), Inbox("bob").pending(), Inbox("bob").unread()) == ([], [], 0)
        monkeypatch.setattr(joining_module, "_GRACE", 0)
        Inbox("bob").chats()
        assert index("bob") == {}

    @pytest.mark.parametrize("verb", ["leave", "delete"])
    def test_leave_and_delete_succeed_if_the_index_cannot_be_updated(self, verb: str) -> None:
        chat = Chat.create("ann", ["bob"], chat_id="c")
        assert fail_at(1, steps(getattr(chat, verb), "ann"), Unavailable("for a while")) is True
        assert Inbox("ann").chats() == []


class TestReading:
    def test_pending_with_ack_succeeds_if_the_index_cannot_be_updated(self) -> None:
        chat = Chat.create("ann", ["bob"], "hello", chat_id="c")
        quiet = Chat.create("ann", ["bob"], chat_id="quiet")
        [found] = fail_at(3, steps(Inbox("bob").pending, ack=True), Unavailable("for a while"))
        assert [message.body for message in found.messages] == ["hello"]
        assert (chat.members()[1].read_id, quiet.members()[1].read_id) == (1, 0)
        assert Inbox("bob").pending() == []
