"""Signals of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse

from django_redis_messaging import Chat, Inbox, Message
from django_redis_messaging.services.directories import Directory
from django_redis_messaging.signals import message_sent
from django_redis_messaging.web.views import NewChatView, SendView

from .conftest import client_of


@pytest.fixture
def ann(person: Callable[..., User]) -> User:
    return person("ann")


@pytest.fixture
def bob(person: Callable[..., User]) -> User:
    return person("bob")


@pytest.fixture
def chat(ann: User, bob: User) -> Chat:
    return Chat.create(str(ann.pk), [str(bob.pk)], "Hi", chat_id="lunch")


@pytest.fixture
def received() -> Iterator[list[tuple[Any, Any, Message]]]:
    """The view, the user and the message of each signal."""
    signals = []

    def receive(sender: Any, request: HttpRequest, message: Message, **_: object) -> None:
        signals.append((sender, request.user, message))

    message_sent.connect(receive)
    yield signals
    message_sent.disconnect(receive)


def send(user: User, chat_id: str, **data: str) -> int:
    address = reverse("messaging:send", args=[chat_id])
    return client_of(user, json=True).post(address, data).status_code


def test_only_messages_sent_by_pages_are_signalled(
    chat: Chat, ann: User, bob: User, received: list[tuple[Any, Any, Message]]
) -> None:
    assert send(bob, chat.id, body="Pizza?") == 200
    assert received == [(SendView, bob, chat.history(str(bob.pk)).messages[-1])]
    assert received[0][2].body == "Pizza?"
    assert send(ann, "another", body="x") == 404
    assert send(ann, chat.id, body="") == 400
    chat.send(str(ann.pk), "by code")
    assert len(received) == 1


def test_a_repeated_request_signals_the_same_message(chat: Chat, bob: User, received: list[Any]) -> None:
    for _ in range(2):
        assert send(bob, chat.id, body="Pizza?", request_id="r") == 200
    assert len(received) == 2
    assert received[0] == received[1]


@pytest.mark.parametrize("body", ["Hello", ""])
def test_the_first_message_of_a_new_chat(
    ann: User, bob: User, body: str, received: list[tuple[Any, Any, Message]]
) -> None:
    Directory("everyone").add(str(bob.pk), "Bob")
    answer = client_of(ann, json=True).post(reverse("messaging:new"), {"to": str(bob.pk), "body": body})
    assert answer.status_code == 200
    assert [(view, user, message.body) for view, user, message in received] == (
        [(NewChatView, ann, "Hello")] if body else []
    )


def test_a_failing_receiver_is_logged_and_the_message_is_sent(
    chat: Chat, bob: User, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("out of order")

    message_sent.connect(fail)
    try:
        assert send(bob, chat.id, body="Pizza?") == 200
    finally:
        message_sent.disconnect(fail)
    assert Inbox(str(bob.pk)).chats()[0].last_message.body == "Pizza?"  # type: ignore[union-attr]
    assert "out of order" in caplog.text
