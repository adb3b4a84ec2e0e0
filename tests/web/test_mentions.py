"""Members who are mentioned by name in a message."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from django_redis_messaging import Chat, Mailbox, Unavailable
from django_redis_messaging.services.blocks import Blocks
from django_redis_messaging.web import mentions
from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.mentions import find_mentions

from .conftest import client_of


@pytest.fixture
def people(person: Callable[..., User]) -> dict[str, User]:
    names = {"ann": ("Ann", ""), "bob": ("Bob", ""), "lee": ("Bob", "Lee"), "zoe": ("Zoë", "Å.")}
    return {key: person(key, first_name=first, last_name=last) for key, (first, last) in names.items()}


@pytest.fixture
def chat(people: dict[str, User]) -> Chat:
    ids = [str(user.pk) for user in people.values()]
    return Chat.create(ids[0], ids[1:], title="Trip")


def send(chat: Chat, user: User, body: str, **data: str) -> None:
    address = reverse("messaging:send", args=[chat.id])
    assert client_of(user, json=True).post(address, {"body": body, **data}).status_code == 200


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("@Bob", ["bob"]),
        ("Ask @bob lee, or @BOB.", ["lee", "bob"]),
        ("@Bobby", []),
        ("mail@bob", []),
        ("@zoë å.: hi", ["zoe"]),
        ("@Zoe\u0308 A\u030a.", ["zoe"]),
        ("`@Bob`", []),
        ("```\n@Bob\n```", []),
        ("@Ann", []),
        ("@Nobody @", []),
        ("@Bob @Bob", ["bob"]),
    ],
)
def test_names_after_an_at(chat: Chat, people: dict[str, User], body: str, found: list[str]) -> None:
    ids = find_mentions(Identity(), chat, str(people["ann"].pk), body)
    assert ids == [str(people[key].pk) for key in found]


def test_members_are_read_only_for_an_at(chat: Chat, people: dict[str, User], operations: list[str]) -> None:
    find_mentions(Identity(), chat, str(people["ann"].pk), "Hello `@`")
    assert operations == []


def test_the_mentioned_member_is_notified_once_and_the_name_is_highlighted(
    chat: Chat, people: dict[str, User]
) -> None:
    for _ in range(2):
        send(chat, people["ann"], "Hi @Bob", request_id="r")
    (mail,) = Mailbox(str(people["bob"].pk)).fetch().messages
    assert mail.payload["text"] == "Ann mentioned you in Trip."
    assert mail.payload["url"] == f"{reverse('messaging:room', args=[chat.id])}?at=1"
    assert mail.count == 1
    assert Mailbox(str(people["lee"].pk)).unread() == 0
    page = client_of(people["lee"]).get(reverse("messaging:room", args=[chat.id])).content.decode()
    assert 'Hi <span class="drm-mention">@Bob</span>' in page
    chat.rename(str(people["ann"].pk), "")
    send(chat, people["ann"], "@Bob")
    assert Mailbox(str(people["bob"].pk)).fetch().messages[-1].payload["text"] == "Ann mentioned you."


def test_who_has_blocked_the_sender_is_not_notified(chat: Chat, people: dict[str, User]) -> None:
    Blocks(str(people["bob"].pk)).block(str(people["ann"].pk))
    send(chat, people["ann"], "Hi @Bob")
    assert Mailbox(str(people["bob"].pk)).unread() == 0


def test_a_failing_notification_does_not_fail_the_message(
    chat: Chat, people: dict[str, User], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Unavailable("gone")

    monkeypatch.setattr(mentions, "notify", fail)
    with caplog.at_level(logging.WARNING):
        send(chat, people["ann"], "Hi @Bob")
    assert "Notifying" in caplog.text and "Hi" not in caplog.text
    assert chat.info().last_id == 1


def test_data_of_other_programs_is_not_taken_for_mentions(chat: Chat, people: dict[str, User]) -> None:
    for data in ({"mentions": "x"}, {"mentions": [1, None]}, ["mentions"], 7):
        chat.send(str(people["ann"].pk), "@Bob", data=data)
    page = client_of(people["bob"]).get(reverse("messaging:room", args=[chat.id]))
    assert page.status_code == 200
    assert "drm-mention" not in page.content.decode()
