"""What all views have in common: who may use them, headers, signing in, errors in forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.people import MAX_SUGGESTION_PAGES, SUGGESTIONS_PER_PAGE

from .conftest import Room, client_of
from .test_roles import JSON_ONLY, TABLE, address, ask


class Nobody(Identity):
    """Lets nobody use the pages."""

    def may_use(self, user: Any) -> bool:
        return False


@pytest.mark.parametrize(("name", "method"), TABLE)
def test_the_identity_may_refuse_the_use_of_each_view(
    room: Room, settings: Settings, name: str, method: str
) -> None:
    path = f"{__name__}.Nobody"
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "IDENTITY": path}
    for json in (True, False):
        assert ask(room, "owner", name, method, json=json).status_code == 403


@pytest.mark.parametrize(("name", "method"), TABLE)
def test_headers(room: Room, name: str, method: str) -> None:
    for role in ("owner", "outsider", "anonymous"):
        answer = ask(room, role, name, method, json=False)
        vary = {header.strip() for header in answer["Vary"].split(",")}
        assert {"Accept", "Cookie"} <= vary
        assert answer["Referrer-Policy"] == "same-origin"


@pytest.mark.parametrize(("name", "method"), [row for row in TABLE if row[0] not in JSON_ONLY])
def test_where_signing_in_leads(room: Room, name: str, method: str) -> None:
    """Back to a page; a change can't be repeated, so to the list of chats."""
    path = address(name, room.chat.id)
    answer = getattr(room.client("anonymous"), method)(path)
    target = path if method == "get" else reverse("messaging:chats")
    assert answer["Location"] == f"/admin/login/?next={target}"


def test_pages_of_suggestions_are_bounded(person: Callable[..., User]) -> None:
    client = client_of(person("ann"))
    total = SUGGESTIONS_PER_PAGE * MAX_SUGGESTION_PAGES + 5
    for number in range(total):
        person(f"zed{number:03}")
    path = reverse("messaging:suggest")
    last = client.get(path, {"q": "zed", "page": MAX_SUGGESTION_PAGES}).json()
    assert (len(last["results"]), last["pagination"]["more"]) == (SUGGESTIONS_PER_PAGE, False)
    beyond = client.get(path, {"q": "zed", "page": 9999}).json()
    assert beyond == last


def test_the_feed_of_a_room_without_messages(room: Room) -> None:
    from django_redis_messaging import Chat

    chat = Chat.create(room.id("owner"), [room.id("member")])
    client = room.client("owner", json=True)
    answer = client.get(reverse("messaging:room_feed", args=[chat.id])).json()
    assert (answer["messages"], answer["gap"], answer["has_more"], answer["seen"]) == ([], 0, False, "")
    assert "No messages yet." in room.client("owner").get(address("room", chat.id)).content.decode()


def test_errors_of_forms_are_shown(room: Room) -> None:
    for name in ("send", "edit"):
        answer = room.client("member").post(address(name, room.chat.id), {"body": " "})
        assert answer.status_code == 400
        assert "This field is required." in answer.content.decode()
    answer = room.client("member").post(reverse("messaging:new"), {"body": "My words"})
    assert answer.status_code == 400
    assert "Choose at least one person." in answer.content.decode()
    assert "My words" in answer.content.decode()


@pytest.mark.parametrize(("role", "numbers"), [("owner", [1, 2]), ("member", [2])])
def test_deletion_is_offered_where_it_works(room: Room, role: str, numbers: list[int]) -> None:
    """Message 1 is by the owner, message 2 by the member."""

    def page(*args: Any) -> str:
        return room.client(role).get(reverse(f"messaging:{args[0]}", args=args[1:])).content.decode()

    def offered() -> list[int]:
        options = re.findall(r'data-id="(\d+)"[^>]* data-can="([^"]*)"', page("room", room.chat.id))
        return [int(number) for number, can in options if "delete" in can]

    assert offered() == numbers
    for number in (1, 2):
        delete = reverse("messaging:delete_message", args=[room.chat.id, number])
        assert (delete in page("message", room.chat.id, number)) is (number in numbers)
    room.client("owner").post(reverse("messaging:delete_message", args=[room.chat.id, 2]))
    assert offered() == [number for number in numbers if number == 1]
